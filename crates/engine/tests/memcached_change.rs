//! What clients of memcached notice when servers fail and when the configuration changes.

use crate::world::{World, pool};
use cashew_config::Snapshot;
use cashew_engine::{CloseReason, ConnId, Plan};
use cashew_metrics::Writer;

const OPTIONS: &str = "timeout: 400\npreconnect: true";
const KEYS: usize = 10_000;
const NOOP: u8 = 0x0a;
const SASL_AUTH: u8 = 0x21;

/// `a` is a key of the first of the four servers, `b` of the second, `c` of the third, `d` of the
/// fourth.
fn four_servers() -> (World, ConnId, [ConnId; 4]) {
    let (mut world, lanes) = World::connected(&pool(OPTIONS, 4));
    let client = world.client();
    (world, client, lanes)
}

/// Another epoch, with all its phases.
fn change(world: &mut World, mut next: Snapshot, epoch: u64) {
    next.epoch = epoch;
    world.engine.handle_prepare(Plan::whole(&next, 0, 1), world.now);
    world.tick();
    while (0..4).any(|server| world.connects_to(server)) {
        for server in 0..4 {
            if world.connects_to(server) {
                world.accept(server);
            }
        }
    }
    world.engine.handle_pause(0, world.now);
    world.tick();
    world.metrics = Writer::in_memory(&next);
    world.engine.handle_commit(world.metrics.clone(), world.now);
    world.tick();
}

/// What a server with a value for every key answers to what has come on these connections.
fn serve(world: &mut World, lanes: &[ConnId]) -> bool {
    let mut has_served = false;
    for &lane in lanes {
        let asked = String::from_utf8(world.received(lane)).unwrap();
        for line in asked.split_terminator("\r\n") {
            let keys = line.strip_prefix("get ").unwrap();
            let values = keys.split(' ').map(|key| format!("VALUE {key} 0 2\r\n{key}{key}\r\n"));
            let reply = values.collect::<String>() + "END\r\n";
            world.send(lane, reply);
            has_served = true;
        }
    }
    has_served
}

fn many_keys() -> Vec<&'static str> {
    (0..KEYS).map(|n| ["a", "b", "c", "d"][n % 4]).collect()
}

fn all_values() -> String {
    let values = many_keys().into_iter().map(|key| format!("VALUE {key} 0 2\r\n{key}{key}\r\n"));
    values.collect::<String>() + "END\r\n"
}

/// A client has asked for very many values and got those of the first part.
fn amidst_many() -> (World, ConnId, [ConnId; 4]) {
    let (mut world, client, lanes) = four_servers();
    world.send(client, format!("get {}\r\nmn\r\n", many_keys().join(" ")));
    assert!(serve(&mut world, &lanes));
    world.wait_ms(1);
    (world, client, lanes)
}

#[test]
fn a_client_that_is_to_leave_gets_the_whole_of_very_many_values_first() {
    for leaves_alone in [true, false] {
        let (mut world, client, lanes) = amidst_many();
        let now = world.now;
        match leaves_alone {
            true => world.engine.handle_leave(client, now),
            false => world.engine.leave_all(now),
        }
        world.tick();
        let mut parts = 0;
        while !world.is_handed_off(client) {
            assert!(serve(&mut world, &lanes), "it is neither served nor handed off");
            world.wait_ms(1);
            parts += 1;
        }
        assert!(parts > 1, "{parts}");
        world.expect(client, all_values());
        let now = world.now;
        let export = world.engine.export(client, now).unwrap();
        assert_eq!((&*export.input, &*export.output), (&b"mn\r\n"[..], &b""[..]));
        world.assert_idle();
    }
}

#[test]
fn very_many_values_come_whole_over_a_reload_that_moves_their_keys() {
    let (mut world, client, lanes) = amidst_many();
    let mut next = pool(OPTIONS, 4);
    next.pools[0].servers.swap(0, 3);
    change(&mut world, next, 2);
    while serve(&mut world, &lanes) {
        world.wait_ms(1);
    }
    world.expect(client, all_values() + "MN\r\n");
    world.assert_idle();
}

#[test]
fn a_server_that_fails_is_named_and_the_others_are_heard() {
    let (mut world, client, [a, b, c, d]) = four_servers();
    let closed = "SERVER_ERROR Connection reset by peer";
    let failed = "STAT servers_failed 1\r\nSTAT server1:error";
    let named = "SERVER_ERROR server1: Connection reset by peer\r\n";
    // It fails with the requests on their way, and then it cannot be sent any.
    for is_down in [false, true] {
        world.send(client, "stats\r\nstats items\r\nflush_all\r\nstats servers\r\n");
        for lane in [a, c, d] {
            world.expect(lane, "stats\r\nstats items\r\nflush_all\r\nstats\r\n");
            world.send(lane, "STAT n 2\r\nEND\r\nEND\r\nOK\r\nSTAT n 2\r\nEND\r\n");
        }
        if !is_down {
            world.expect(client, "");
            world.close(b, CloseReason::Reset);
        }
        let rows = |name: &str| format!("STAT {name}:n 2\r\n");
        let answer = format!(
            "STAT n 6\r\n{failed} {closed}\r\nEND\r\n{failed} {closed}\r\nEND\r\n{named}\
             {}STAT server1:error {closed}\r\n{}{}END\r\n",
            rows("server0"),
            rows("server2"),
            rows("server3"),
        );
        world.expect(client, answer);
    }
    world.assert_idle();
    // Nobody is left to say anything.
    for lane in [a, c, d] {
        world.close(lane, CloseReason::Reset);
    }
    world.send(client, "stats\r\nflush_all\r\n");
    world.expect(client, format!("{closed}\r\n").repeat(2));
    world.assert_idle();
}

/// A packet with a key and a value, and nothing else.
fn packet(magic: u8, opcode: u8, status: u8, [key, value]: [&str; 2]) -> Vec<u8> {
    let mut bytes = vec![magic, opcode, 0, key.len() as u8, 0, 0, 0, status];
    bytes.extend(((key.len() + value.len()) as u32).to_be_bytes());
    bytes.extend([0; 12]);
    bytes.extend([key.as_bytes(), value.as_bytes()].concat());
    bytes
}

#[test]
fn who_speaks_what_is_no_longer_spoken_goes_on() {
    let noop = [packet(0x80, NOOP, 0, [""; 2]), packet(0x81, NOOP, 0, [""; 2])];
    let (mut world, text, _) = four_servers();
    let binary = world.client();
    let undecided = world.client();
    for (client, [asked, answer]) in
        [(binary, &noop), (text, &[b"mn\r\n".to_vec(), b"MN\r\n".to_vec()])]
    {
        world.send(client, asked);
        assert_eq!(&world.received(client), answer);
    }
    // From any to text.
    change(&mut world, pool(&format!("{OPTIONS}\nprotocol: text"), 4), 2);
    world.send(binary, &noop[0]);
    assert_eq!(world.received(binary), noop[1]);
    world.send(text, "mn\r\n");
    world.expect(text, "MN\r\n");
    for late in [undecided, world.client()] {
        world.send(late, &noop[0]);
        let is_new = late != undecided;
        assert_eq!(
            world.received(late),
            if is_new { b"ERROR\r\n".to_vec() } else { noop[1].clone() }
        );
    }
    // From text to binary: another pool, whose name it is.
    change(&mut world, pool(&format!("{OPTIONS}\nprotocol: binary"), 4), 3);
    let fresh = world.client();
    world.send(fresh, &noop[0]);
    assert_eq!(world.received(fresh), noop[1]);
    world.send(fresh, "mn\r\n");
    assert!(world.closed.contains(&fresh));
    world.send(text, "mn\r\n");
    world.expect(text, "MN\r\n");
    assert!(!world.closed.contains(&text));
    world.wait_ms(60_000);
    assert!(world.closed.contains(&text));
    world.assert_idle();
}

#[test]
fn who_has_come_before_users_were_changed_stays() {
    let (mut world, first, _) = four_servers();
    let login = |password: &str| format!("set x 0 0 {}\r\nu {password}\r\n", 2 + password.len());
    let asked = "mn\r\n";
    let (known, unknown) = ("MN\r\n", "CLIENT_ERROR unauthenticated\r\n");
    change(&mut world, pool(&format!("{OPTIONS}\nclient_auth: 'u:one'"), 4), 2);
    world.send(first, asked);
    world.expect(first, known);
    let [second, stranger, late] = [(); 3].map(|()| world.client());
    for client in [second, stranger, late] {
        world.send(client, asked);
        world.expect(client, unknown);
    }
    world.send(second, login("one") + asked);
    world.expect(second, format!("STORED\r\n{known}"));
    change(&mut world, pool(&format!("{OPTIONS}\nclient_auth: 'u:two'"), 4), 3);
    world.send(stranger, login("one") + asked);
    world.expect(stranger, format!("CLIENT_ERROR authentication failure\r\n{unknown}"));
    world.send(stranger, login("two") + asked);
    world.expect(stranger, format!("STORED\r\n{known}"));
    for client in [first, second] {
        world.send(client, asked);
        world.expect(client, known);
    }
    let binary = world.client();
    world.send(binary, packet(0x80, SASL_AUTH, 0, ["PLAIN", "\0u\0two"]));
    world.expect(binary, packet(0x81, SASL_AUTH, 0, ["", "Authenticated"]));
    // Nobody is asked any more.
    change(&mut world, pool(OPTIONS, 4), 4);
    for client in [first, second, stranger, late, world.client()] {
        world.send(client, asked);
        world.expect(client, known);
    }
    assert!(world.closed.is_empty());
    world.assert_idle();
}
