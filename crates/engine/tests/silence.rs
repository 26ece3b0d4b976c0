//! Servers that accept connections, or not even that, and answer nothing.

use std::fmt::Write as _;

use crate::world::{World, pool, redis};
use cashew_config::Snapshot;
use cashew_engine::{Action, BackendId, CloseReason, ConnId, ServerId};
use cashew_metrics::{Cause, Health, ServerGauge};

const LATE: &str = "-ERR Connection timed out\r\n";
const SILENT: &str = "-ERR Server does not answer\r\n";
const ONE: &str = "$1\r\n1\r\n";

fn hangs(options: &str) -> (World, [ConnId; 2]) {
    settled(&pool(&format!("redis: true\ntimeout: 400\npreconnect: true\n{options}"), 2))
}

/// The connections have stood for a while: so the next ones follow them at once.
fn settled<const N: usize>(snapshot: &Snapshot) -> (World, [ConnId; N]) {
    let (mut world, lanes) = World::connected(snapshot);
    world.wait_ms(1000);
    (world, lanes)
}

/// A request of the client to server 0 waits in vain, and so does the sign of life that the server
/// is asked for then.
fn fall_silent(world: &mut World, client: ConnId) {
    world.send(client, redis("GET a"));
    world.wait_ms(400);
    world.expect(client, LATE);
    let sign = world.accept(0);
    world.expect(sign, redis("PING"));
    world.wait_ms(100);
    assert!(world.closed.contains(&sign));
    assert!(is_told_silent(world));
    assert_eq!(gauge(world), 1);
}

fn is_told_silent(world: &World) -> bool {
    world.actions.iter().any(|action| match *action {
        Action::ServerState { server, change, .. } => {
            server == ServerId::new(0) && (change.to, change.cause) == (Health::Out, Cause::Silent)
        }
        _ => false,
    })
}

fn gauge(world: &World) -> u64 {
    let server = world.metrics.server(0, 0);
    world.metrics.server_gauge(server, ServerGauge::Silent)
}

fn speaks(world: &World) -> Vec<u64> {
    let lasted = |action: &Action| match *action {
        Action::ServerState { change, .. } if change.to == Health::Well => {
            Some(change.lasted_ms).filter(|&lasted_ms| lasted_ms > 0)
        }
        _ => None,
    };
    world.actions.iter().filter_map(lasted).collect()
}

/// Lets time pass until the silent server is asked again; returns the connection.
fn asked_again(world: &mut World) -> ConnId {
    for _ in 0..100 {
        if world.connects_to(0) {
            return world.accept(0);
        }
        world.wait_ms(20);
    }
    panic!("a silent server is asked again within two seconds");
}

#[test]
fn one_pipeline_waits_for_a_server_that_hangs_and_then_none() {
    let (mut world, [a, b]) = hangs("");
    let client = world.client();
    let pipeline = redis("GET a") + &redis("GET b");
    world.send(client, &pipeline);
    world.send(b, ONE);
    world.expect(client, "");
    world.wait_ms(400);
    world.expect(client, format!("{LATE}{ONE}"));
    assert!(world.closed.contains(&a));
    // What comes now waits for the sign of life.
    let sign = world.accept(0);
    world.expect(sign, redis("PING"));
    world.send(client, &pipeline);
    world.send(b, ONE);
    world.wait_ms(99);
    world.expect(client, "");
    world.wait_ms(1);
    world.expect(client, format!("{SILENT}{ONE}"));
    for _ in 0..20 {
        world.send(client, &pipeline);
        world.send(b, ONE);
        world.expect(client, format!("{SILENT}{ONE}"));
        world.wait_ms(100);
    }
    assert_eq!(gauge(&world), 1);
    world.assert_idle();
}

#[test]
fn a_silent_server_is_asked_until_it_says_anything() {
    let (mut world, [_, b]) = hangs("");
    let client = world.client();
    fall_silent(&mut world, client);
    for _ in 0..5 {
        let sign = asked_again(&mut world);
        world.expect(sign, redis("PING"));
        // Nobody waits for it.
        world.send(client, redis("GET a"));
        world.expect(client, SILENT);
        world.wait_ms(400);
        assert!(world.closed.contains(&sign), "another connection may fare better");
    }
    let sign = asked_again(&mut world);
    world.expect(sign, redis("PING"));
    world.send(client, redis("GET a"));
    world.expect(client, SILENT);
    assert!(speaks(&world).is_empty());
    world.send(sign, "-LOADING Redis is loading the dataset in memory\r\n");
    let [lasted] = speaks(&world)[..] else { panic!("it is said once") };
    assert!((2000..20_000).contains(&lasted), "{lasted}");
    assert_eq!(gauge(&world), 0);
    world.send(client, redis("GET a") + &redis("GET b"));
    world.expect(sign, redis("GET a"));
    world.send(sign, ONE);
    world.send(b, ONE);
    world.expect(client, format!("{ONE}{ONE}"));
    let recovered =
        Action::ServerRecovered { backend: BackendId::new(0), server: ServerId::new(0) };
    assert!(!world.actions.contains(&recovered), "one line is enough");
    world.assert_idle();
}

#[test]
fn a_server_that_gives_a_sign_of_life_is_only_slow() {
    let (mut world, _) = hangs("");
    let client = world.client();
    world.send(client, redis("GET a"));
    world.wait_ms(400);
    world.expect(client, LATE);
    let sign = world.accept(0);
    world.send(client, redis("GET a"));
    world.expect(sign, redis("PING"));
    world.wait_ms(50);
    world.send(sign, "+PONG\r\n");
    world.expect(sign, redis("GET a"));
    world.send(sign, ONE);
    world.expect(client, ONE);
    assert!(!is_told_silent(&world));
    world.assert_idle();
}

#[test]
fn a_server_that_answers_elsewhere_is_not_silent() {
    let mut world =
        World::new(&pool("redis: true\ntimeout: 400\nserver_connections: 2\npreconnect: true", 1));
    let lanes = [world.accept(0), world.accept(0)];
    let clients = [world.client(), world.client()];
    for client in clients {
        world.send(client, redis("GET a"));
    }
    let is_asked = |world: &mut World, lane| !world.received(lane).is_empty();
    assert!(lanes.iter().all(|&lane| is_asked(&mut world, lane)), "clients take turns");
    let well = lanes[1];
    let mut late = 0;
    for _ in 0..10 {
        world.send(well, ONE);
        for client in clients {
            match &world.received(client)[..] {
                b"" => {}
                reply if reply == LATE.as_bytes() => late += 1,
                _ => world.send(client, redis("GET a")),
            }
        }
        world.wait_ms(49);
    }
    assert_eq!(late, 1);
    // The question is not answered, but something else is.
    let sign = world.accept(0);
    world.expect(sign, redis("PING"));
    world.wait_ms(60);
    world.send(well, ONE);
    world.wait_ms(39);
    world.send(clients[0], redis("GET a"));
    world.send(clients[1], redis("GET a"));
    world.wait_ms(1);
    assert!(!is_told_silent(&world));
}

#[test]
fn a_host_that_is_gone_holds_up_one_pipeline() {
    let (mut world, [a, b]) = hangs("");
    let client = world.client();
    // The connection breaks, and no other comes about.
    world.close(a, CloseReason::Reset);
    world.wait_ms(1100);
    let pipeline = redis("GET a") + &redis("GET b");
    for _ in 0..1000 {
        world.send(client, &pipeline);
        world.send(b, ONE);
        match String::from_utf8(world.received(client)).unwrap().as_str() {
            "" => break,
            reply => assert!(reply.ends_with(ONE), "{reply}"),
        }
        world.wait_ms(1);
    }
    // Since the server was failing already, for no longer than it may take to give a sign of life.
    world.wait_ms(100);
    world.expect(client, format!("{SILENT}{ONE}"));
    for _ in 0..100 {
        world.send(client, &pipeline);
        world.send(b, ONE);
        world.expect(client, format!("{SILENT}{ONE}"));
        world.wait_ms(17);
    }
    let sign = asked_again(&mut world);
    world.expect(sign, redis("PING"));
    world.send(sign, "+PONG\r\n");
    world.send(client, redis("GET a"));
    world.expect(sign, redis("GET a"));
}

#[test]
fn requests_that_must_not_be_sent_in_vain_fail_at_once() {
    let (mut world, [_, b]) = hangs("session_connections: 4");
    let client = world.client();
    fall_silent(&mut world, client);
    world.send(client, redis("MGET a b"));
    world.expect(client, SILENT);
    world.send(client, redis("BLPOP a 0"));
    world.expect(client, SILENT);
    world.send(client, redis("WATCH a"));
    world.expect(client, SILENT);
    world.send(client, redis("DBSIZE"));
    world.expect(client, SILENT);
    world.send(client, redis("SUBSCRIBE a"));
    let mut all = String::new();
    write!(all, "{}", String::from_utf8_lossy(&world.received(client))).unwrap();
    assert!(all.starts_with("-ERR"), "{all}");
    let large = "x".repeat(2 << 20);
    world.send(client, redis(&format!("SET a {large}")));
    world.expect(client, SILENT);
    world.expect(b, "");
    // The server that is well can be subscribed to, and asked.
    world.send(client, redis("GET b"));
    world.expect(b, redis("GET b"));
    world.send(b, ONE);
    world.expect(client, ONE);
    world.assert_idle();
}

#[test]
fn transactions_find_out_too_that_a_server_is_silent() {
    let (mut world, [a, _]) = hangs("session_connections: 4");
    let client = world.client();
    world.send(client, redis("WATCH a"));
    let lease = world.accept(0);
    world.expect(lease, redis("WATCH a"));
    world.wait_ms(400);
    world.expect(client, LATE);
    // A lane that all share is asked, and says nothing either.
    world.expect(a, redis("PING"));
    world.wait_ms(100);
    assert!(world.closed.contains(&a));
    assert_eq!(gauge(&world), 1);
    // What was watched cannot be relied on any more.
    let transaction = redis("MULTI") + &redis("GET a") + &redis("EXEC");
    world.send(client, &transaction);
    world.expect(client, "+OK\r\n+QUEUED\r\n*-1\r\n");
    world.send(client, &transaction);
    let answer = world.received(client);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("Server does not answer"), "{answer}");
}

#[test]
fn the_first_transaction_in_vain_shows_it_though_others_were_answered_since() {
    let (mut world, [a, _]) = hangs("session_connections: 4");
    let [slow, well] = [world.client(), world.client()];
    world.send(well, redis("WATCH a"));
    let lease = world.accept(0);
    world.send(slow, redis("WATCH a"));
    world.accept(0);
    world.wait_ms(100);
    world.send(lease, "+OK\r\n");
    world.expect(well, "+OK\r\n");
    // From here on the server hangs.
    world.wait_ms(300);
    world.expect(slow, LATE);
    world.expect(a, redis("PING"));
    world.wait_ms(100);
    assert_eq!(gauge(&world), 1);
    world.send(slow, redis("BLPOP a 0"));
    world.expect(slow, SILENT);
}

#[test]
fn a_connection_for_a_transaction_that_is_not_greeted_shows_it() {
    for is_answered in [false, true] {
        let options = "redis: true\ntimeout: 400\npreconnect: true\nredis_auth: secret";
        let (mut world, [a]) = World::connected(&pool(options, 1));
        world.expect(a, redis("AUTH secret"));
        world.send(a, "+OK\r\n");
        let client = world.client();
        world.send(client, redis("AUTH secret") + &redis("BLPOP a 0"));
        world.expect(client, "+OK\r\n");
        let lease = world.accept(0);
        world.expect(lease, redis("AUTH secret"));
        world.wait_ms(400);
        assert!(world.closed.contains(&lease));
        world.expect(client, LATE);
        world.expect(a, redis("PING"));
        if is_answered {
            world.send(a, "+PONG\r\n");
        }
        world.wait_ms(100);
        assert_eq!(gauge(&world), u64::from(!is_answered));
    }
}

#[test]
fn a_connection_that_is_being_made_is_asked_too() {
    // Nothing comes of the first lane's connection either, which began a moment before.
    for is_made in [false, true] {
        let mut world = World::new(&pool("redis: true\ntimeout: 400\nredis_auth: secret", 1));
        let [client, other] = [world.client(), world.client()];
        world.send(client, redis("AUTH secret") + &redis("BLPOP a 0"));
        let lease = world.accept(0);
        world.expect(lease, redis("AUTH secret"));
        world.wait_ms(350);
        world.send(other, redis("AUTH secret") + &redis("GET a"));
        let shared = is_made.then(|| world.accept(0));
        world.wait_ms(50);
        if let Some(shared) = shared {
            world.expect(shared, redis("AUTH secret") + &redis("PING"));
        }
        assert_eq!(gauge(&world), 0);
        world.wait_ms(100);
        assert_eq!(gauge(&world), 1);
        world.expect(other, format!("+OK\r\n{SILENT}"));
    }
}

#[test]
fn clients_in_line_for_a_silent_server_are_told() {
    let (mut world, _) = hangs("session_connections: 1\nsession_connections_idle: 0");
    let [holder, waiter, client] = [world.client(), world.client(), world.client()];
    world.send(holder, redis("BLPOP a 0"));
    let lease = world.accept(0);
    assert!(!world.received(lease).is_empty());
    // What it is called there.
    world.send(lease, ":7\r\n");
    world.send(waiter, redis("BLPOP a 0"));
    fall_silent(&mut world, client);
    world.expect(waiter, SILENT);
    // Who waits without a limit goes on waiting.
    assert!(!world.closed.contains(&lease));
    world.expect(holder, "");
}

/// Servers are numbered by the order of their names: `r1`, `r2`, `z`, the master.
fn replicated() -> (World, [ConnId; 3]) {
    settled(&crate::world::snapshot(
        "pools:\n  p:\n    listen: 127.0.0.1:6000\n    redis: true\n    hide_topology: true\n    distribution: modula\n    \
         timeout: 400\n    preconnect: true\n    servers:\n    - 127.0.0.1:7002:1 master\n    \
         - 127.0.0.1:7000:1 a1\n    - 127.0.0.1:7001:1 a2\n",
    ))
}

#[test]
fn reads_avoid_a_silent_replica() {
    let (mut world, [one, two, master]) = replicated();
    let client = world.client();
    let key = (0..).map(|n| format!("k{n}"));
    let key = key.take(100).find(|key| {
        world.send(client, redis(&format!("GET {key}")));
        let is_first = !world.received(one).is_empty();
        if !is_first {
            world.received(two);
            world.send(two, ONE);
            world.received(client);
        }
        is_first
    });
    let read = redis(&format!("GET {}", key.expect("the first replica has keys")));
    world.wait_ms(400);
    world.expect(client, LATE);
    world.accept(0);
    world.wait_ms(100);
    assert!(is_told_silent(&world));
    for _ in 0..10 {
        world.send(client, &read);
        world.expect(two, &read);
        world.send(two, ONE);
        world.expect(client, ONE);
        world.wait_ms(100);
    }
    world.expect(master, "");
    let sign = asked_again(&mut world);
    world.send(sign, "+PONG\r\n");
    world.received(sign);
    world.send(client, &read);
    world.expect(sign, &read);
}

#[test]
fn writes_to_a_silent_master_fail_and_reads_go_on() {
    let (mut world, [one, ..]) = replicated();
    let client = world.client();
    let write = redis("SET a 1");
    world.send(client, &write);
    world.wait_ms(400);
    world.expect(client, LATE);
    world.accept(2);
    world.wait_ms(100);
    for _ in 0..10 {
        world.send(client, &write);
        world.expect(client, SILENT);
        world.send(client, redis("GET a"));
        for replica in [one, world.lanes[&1][0]] {
            if !world.received(replica).is_empty() {
                world.send(replica, ONE);
            }
        }
        world.expect(client, ONE);
        world.wait_ms(100);
    }
}

#[test]
fn a_silent_server_is_ejected_and_comes_back() {
    let (mut world, [_, _]) =
        hangs("auto_eject_hosts: true\nserver_failure_limit: 3\nserver_retry_timeout: 1000");
    let client = world.client();
    fall_silent(&mut world, client);
    let asks = |world: &World| {
        world
            .actions
            .iter()
            .any(|action| matches!(action, Action::Eject { server, .. } if server.number() == 0))
    };
    for _ in 0..10 {
        if asks(&world) {
            break;
        }
        let sign = asked_again(&mut world);
        world.wait_ms(400);
        assert!(world.closed.contains(&sign));
    }
    assert!(asks(&world));
    world.engine.handle_hold(BackendId::new(0), 1, 500, world.now);
    world.engine.handle_release(BackendId::new(0), 1, vec![false, true].into(), world.now, 1);
    world.tick();
    world.send(client, redis("GET a"));
    let b = world.lanes[&1][0];
    world.expect(b, redis("GET a"));
    world.send(b, ONE);
    world.expect(client, ONE);
    // Its probe is the sign of life, too.
    let probe = asked_again(&mut world);
    world.expect(probe, redis("PING"));
    world.send(probe, "+PONG\r\n");
    assert!(speaks(&world).is_empty(), "it is off the ring");
    assert_eq!(gauge(&world), 0);
    for _ in 0..100 {
        if !world.received(probe).is_empty() {
            break;
        }
        world.wait_ms(20);
    }
    world.send(probe, "+PONG\r\n");
    assert!(
        world
            .actions
            .iter()
            .any(|action| matches!(action, Action::Readmit { server, .. } if server.number() == 0))
    );
    world.engine.handle_hold(BackendId::new(0), 2, 500, world.now);
    world.engine.handle_release(BackendId::new(0), 2, vec![true, true].into(), world.now, 2);
    world.tick();
    world.send(client, redis("GET a"));
    world.expect(probe, redis("GET a"));
    world.send(probe, ONE);
    world.expect(client, ONE);
    assert_eq!(speaks(&world).len(), 1);
}

#[test]
fn without_timeout_nothing_is_asked() {
    let (mut world, [a, _]) = World::connected(&pool("redis: true\npreconnect: true", 2));
    let client = world.client();
    world.send(client, redis("GET a"));
    world.received(a);
    world.wait_ms(60_000);
    world.expect(client, "");
    world.close(a, CloseReason::TimedOut);
    world.expect(client, LATE);
    let next = world.accept(0);
    world.expect(next, "");
    world.send(client, redis("GET a"));
    world.expect(next, redis("GET a"));
}

#[test]
fn memcached_is_asked_for_its_version() {
    let (mut world, [_, _]) = settled(&pool("timeout: 400\npreconnect: true", 2));
    let client = world.client();
    world.send(client, "get a\r\n");
    world.wait_ms(400);
    world.expect(client, "SERVER_ERROR Connection timed out\r\n");
    let sign = world.accept(0);
    world.expect(sign, "version\r\n");
    world.wait_ms(100);
    for request in ["get a\r\n", "set a 0 0 1\r\n1\r\n", "get a b\r\n", "incr a 1\r\n"] {
        world.send(client, request);
        world.expect(client, "SERVER_ERROR Server does not answer\r\n");
    }
    let sign = asked_again(&mut world);
    world.expect(sign, "version\r\n");
    world.send(sign, "VERSION 1.6.18\r\n");
    world.send(client, "get a\r\n");
    world.expect(sign, "get a\r\n");
    world.send(sign, "END\r\n");
    world.expect(client, "END\r\n");
}

#[test]
fn in_the_binary_protocol_the_question_is_a_packet() {
    let packet = |magic: u8, opcode: u8, key: &[u8]| {
        let mut bytes =
            vec![magic, opcode, 0, key.len() as u8, 0, 0, 0, 0, 0, 0, 0, key.len() as u8];
        bytes.extend([0; 12]);
        bytes.extend(key);
        bytes
    };
    let mut world = World::new(&pool("timeout: 400", 2));
    let client = world.client();
    world.send(client, packet(0x80, 0, b"a"));
    let lane = world.accept(0);
    world.expect(lane, packet(0x80, 0, b"a"));
    world.send(lane, packet(0x81, 0, b""));
    world.received(client);
    world.wait_ms(1000);
    world.send(client, packet(0x80, 0, b"a"));
    world.wait_ms(400);
    assert_eq!(world.received(client)[7], 0x86, "a temporary failure");
    let sign = world.accept(0);
    world.expect(sign, packet(0x80, 0x0b, b""));
    world.send(client, packet(0x80, 0, b"a"));
    world.expect(sign, "");
    world.send(sign, packet(0x81, 0x0b, b""));
    world.expect(sign, packet(0x80, 0, b"a"));
}

#[test]
fn a_connection_that_is_refused_ends_silence() {
    let (mut world, _) = hangs("");
    let client = world.client();
    fall_silent(&mut world, client);
    for _ in 0..100 {
        if world.connects_to(0) {
            break;
        }
        world.wait_ms(20);
    }
    world.refuse(0);
    assert_eq!(gauge(&world), 0);
    world.send(client, redis("GET a"));
    world.expect(client, "-ERR Connection refused\r\n");
    for _ in 0..100 {
        if world.connects_to(0) {
            break;
        }
        world.wait_ms(20);
    }
    let lane = world.accept(0);
    world.send(client, redis("GET a"));
    world.expect(lane, redis("GET a"));
}

#[test]
fn a_subscriber_of_a_silent_server_does_not_wait_for_the_whole_timeout() {
    let snapshot = pool("redis: true\ntimeout: 3000\npreconnect: true", 2);
    let (mut world, _): (World, [ConnId; 2]) = settled(&snapshot);
    let client = world.client();
    world.send(client, redis("GET a"));
    world.wait_ms(3000);
    world.expect(client, LATE);
    let sign = world.accept(0);
    world.expect(sign, redis("PING"));
    world.wait_ms(251);
    assert!(is_told_silent(&world));
    world.send(client, redis("SUBSCRIBE a"));
    for _ in 0..53 {
        while world.connects_to(0) {
            world.accept(0);
        }
        world.wait_ms(20);
    }
    world.expect(client, SILENT);
}
