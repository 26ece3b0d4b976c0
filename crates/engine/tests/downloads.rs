//! Large replies to clients that read more slowly than servers write.

mod world;

use cashew_engine::{Action, CloseReason, ConnId};
use world::{World, pool, redis};

const MIB: usize = 1 << 20;
const READ_SIZE: usize = 64 * 1024;
/// The most of a reply that may wait in the gateway: the limit, and one read more.
const AHEAD_MAX: usize = MIB + READ_SIZE;

/// A client in a pool with these options, one of whose replies for the key `big` was large.
fn world(options: &str) -> (World, ConnId) {
    let snapshot = pool(&format!("redis: true\npreconnect: true\n{options}"), 1);
    let (mut world, [shared]) = World::connected(&snapshot);
    let client = world.client();
    world.send(client, redis("GET big"));
    for piece in reply(MIB).chunks(READ_SIZE) {
        world.send(shared, piece);
    }
    assert!(world.received(client) == reply(MIB));
    world.received(shared);
    (world, client)
}

fn reply(size: usize) -> Vec<u8> {
    let value = (0..size).map(|at| b'a' + (at % 23) as u8).collect::<Vec<u8>>();
    [format!("${size}\r\n").as_bytes(), &value, b"\r\n"].concat()
}

/// The client asks for the large value: the lane that carries the reply.
#[track_caller]
fn ask(world: &mut World, client: ConnId) -> ConnId {
    world.send(client, redis("GET big"));
    let lane = world.accept(0);
    world.expect(lane, redis("GET big"));
    lane
}

/// The server sends as much as the gateway takes; returns what it does not.
fn feed<'b>(world: &mut World, lane: ConnId, mut bytes: &'b [u8]) -> &'b [u8] {
    while !bytes.is_empty() && !world.paused.contains(&lane) {
        let (now, later) = bytes.split_at(READ_SIZE.min(bytes.len()));
        world.send(lane, now);
        bytes = later;
    }
    bytes
}

#[test]
fn a_client_that_reads_slowly_is_waited_for() {
    let (mut world, client) = world("timeout: 400");
    let lane = ask(&mut world, client);
    let reply = reply(8 * MIB);
    world.stuck.push(client);
    let mut rest = feed(&mut world, lane, &reply);
    let mut seen = Vec::new();
    while !rest.is_empty() {
        let waits = reply.len() - rest.len() - seen.len();
        assert!(waits <= AHEAD_MAX, "{waits} bytes wait");
        world.wait_ms(2000);
        world.write_some(client, (300 * 1024).min(waits));
        seen.extend(world.received(client));
        world.tick();
        rest = feed(&mut world, lane, rest);
    }
    world.stuck.clear();
    world.write(client);
    seen.extend(world.received(client));
    assert!(seen == reply);
    world.assert_idle();
    assert!(world.closed.is_empty());
    // The lane is as good as before.
    world.send(client, redis("GET big"));
    world.expect(lane, redis("GET big"));
}

#[test]
fn a_reply_may_take_longer_than_the_timeout_if_it_goes_on() {
    let (mut world, client) = world("timeout: 400");
    let lane = ask(&mut world, client);
    let reply = reply(MIB);
    for piece in reply.chunks(300 * 1024) {
        world.wait_ms(350);
        world.send(lane, piece);
    }
    assert!(world.received(client) == reply);
    world.send(client, redis("GET big"));
    world.send(lane, &reply[..READ_SIZE]);
    world.wait_ms(450);
    assert!(world.closed.contains(&client) && world.closed.contains(&lane));
}

#[test]
fn what_nobody_reads_any_more_is_not_read_here_either() {
    let (mut world, client) = world("");
    let lane = ask(&mut world, client);
    let reply = reply(8 * MIB);
    world.stuck.push(client);
    assert!(!feed(&mut world, lane, &reply).is_empty());
    world.close(client, CloseReason::Reset);
    assert!(world.closed.contains(&lane));
    world.assert_idle();
    let failing = |action: &Action| matches!(action, Action::ServerFailing { .. });
    assert!(!world.actions.iter().any(failing), "it is not the server's fault");
    let other = world.client();
    ask(&mut world, other);
}

#[test]
fn who_reads_nothing_gives_way_to_who_waits() {
    let (mut world, _) = world("");
    let reply = reply(8 * MIB);
    let clients: [ConnId; 4] = std::array::from_fn(|_| world.client());
    for client in clients {
        let lane = ask(&mut world, client);
        world.stuck.push(client);
        feed(&mut world, lane, &reply);
        assert!(world.paused.contains(&lane));
    }
    world.wait_ms(60_000);
    assert!(world.closed.is_empty(), "nobody waits");
    // More of the same go to the lane for all.
    let reader = world.client();
    ask(&mut world, reader);
    let waiting = world.client();
    world.send(waiting, "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$2000000\r\n");
    assert!(world.paused.contains(&waiting));
    world.wait_ms(2000);
    let cut = clients.iter().filter(|client| world.closed.contains(client)).count();
    assert_eq!(cut, 1, "one is enough");
    world.accept(0);
    assert!(!world.paused.contains(&waiting));
}

#[test]
fn what_was_uploaded_is_read_apart_from_others() {
    let snapshot = pool("redis: true\npreconnect: true", 1);
    let (mut world, [shared]) = World::connected(&snapshot);
    let client = world.client();
    let value = "v".repeat(MIB);
    world.send(client, format!("*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n${MIB}\r\n"));
    let lane = world.accept(0);
    world.send(client, format!("{value}\r\n"));
    world.received(lane);
    world.send(lane, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.send(client, redis("GET big"));
    world.expect(shared, "");
    world.expect(lane, redis("GET big"));
}
