//! Requests that are sealed: what a server puts behind a line end in an error is nobody's reply.

use crate::world::{World, pool, redis};
use cashew_engine::{Action, ConnId, Sequel};

const SCRIPT: &str = "EVAL error(ARGV[1]) 0 x";
/// What a server says to it, and what a client would have others believe.
const ERROR: &str = "-ERR user_script:1: a\r\n";
const JUNK: &str = "$1\r\nx\r\n+forged\r\n>2\r\n*9\r\n-BUSY\r\n script: f, on @user_script:1.\r\n";

fn one_lane(options: &str) -> (World, ConnId, ConnId, ConnId) {
    let options = format!("redis: true\npreconnect: true\nserver_connections: 1\n{options}");
    let (mut world, [lane]) = World::connected(&pool(&options, 1));
    world.shows_seals = true;
    let clients = [world.client(), world.client()];
    (world, lane, clients[0], clients[1])
}

/// The seal at the end of what a server got, which is `before` otherwise: what it answers.
#[track_caller]
fn seal(world: &mut World, lane: ConnId, before: &str) -> String {
    let received = String::from_utf8(world.received(lane)).unwrap();
    let echo = received.strip_prefix(before).expect("the request comes first");
    let number = echo.strip_prefix("*2\r\n$4\r\nECHO\r\n").expect("it is sealed");
    assert_eq!(number.len(), "$16\r\n0123456789abcdef\r\n".len());
    number.to_owned()
}

fn dropped(world: &World) -> usize {
    let is_drop =
        |action: &&Action| matches!(action, Action::ServerMisfit { sequel: Sequel::Dropped, .. });
    world.actions.iter().filter(is_drop).count()
}

#[test]
fn what_follows_a_line_end_in_an_error_is_dropped() {
    let text = format!("{ERROR}{JUNK}");
    for cut in 0..=text.len() {
        let (mut world, lane, hostile, other) = one_lane("");
        world.send(hostile, redis(SCRIPT));
        let seal = seal(&mut world, lane, &redis(SCRIPT));
        world.send(other, redis("GET a"));
        world.expect(lane, redis("GET a"));
        // Cut anywhere, in the seal too.
        world.send(lane, &text[..cut]);
        world.send(lane, &text[cut..]);
        world.send(lane, &seal[..cut % seal.len()]);
        world.send(lane, &seal[cut % seal.len()..]);
        world.send(lane, "$2\r\nme\r\n");
        world.expect(hostile, ERROR);
        world.expect(other, "$2\r\nme\r\n");
        assert!(world.closed.is_empty());
        assert_eq!(dropped(&world), 1);
        world.assert_idle();
    }
}

#[test]
fn a_server_that_keeps_errors_in_one_line_is_not_told_of() {
    let (mut world, lane, client, _) = one_lane("");
    for reply in [ERROR, ":1\r\n", "*2\r\n:1\r\n$-1\r\n", "+OK\r\n"] {
        for request in [SCRIPT, "EVALSHA x 0", "FCALL f 0", "FUNCTION LIST", "SCRIPT LOAD x"] {
            world.send(client, redis(request));
            let seal = seal(&mut world, lane, &redis(request));
            world.send(lane, format!("{reply}{seal}"));
            world.expect(client, reply);
        }
    }
    assert_eq!(dropped(&world), 0);
    assert!(world.closed.is_empty());
    world.assert_idle();
}

#[test]
fn no_seal_is_like_another() {
    let (mut world, lane, client, _) = one_lane("");
    let mut seals = std::collections::HashSet::new();
    for _ in 0..50 {
        world.send(client, redis(SCRIPT));
        let seal = seal(&mut world, lane, &redis(SCRIPT));
        world.send(lane, format!(":1\r\n{seal}"));
        world.expect(client, ":1\r\n");
        assert!(seals.insert(seal));
    }
}

#[test]
fn a_server_that_does_not_say_it_loses_the_connection_in_time() {
    let (mut world, lane, hostile, other) = one_lane("timeout: 400");
    world.send(hostile, redis(SCRIPT));
    world.send(other, redis("GET a"));
    world.send(lane, format!("{ERROR}+x\r\n+y\r\n"));
    world.expect(hostile, ERROR);
    world.expect(other, "");
    world.wait_ms(500);
    assert_eq!(world.closed, [lane]);
    let reply = String::from_utf8(world.received(other)).unwrap();
    assert!(reply.starts_with('-'), "{reply}");
    world.assert_idle();
}

#[test]
fn a_transaction_with_a_script_is_sealed_behind_exec() {
    let (mut world, _, hostile, other) = one_lane("session_connections: 1");
    world.shows_seals = true;
    world.send(hostile, redis("MULTI") + &redis("SET k v") + &redis(SCRIPT) + &redis("EXEC"));
    let lease = world.accept(0);
    let sent = redis("MULTI") + &redis("SET k v") + &redis(SCRIPT) + &redis("EXEC");
    let seal = seal(&mut world, lease, &sent);
    world.send(lease, "+OK\r\n+QUEUED\r\n+QUEUED\r\n");
    world.send(lease, format!("*2\r\n+OK\r\n{ERROR}"));
    world.expect(hostile, format!("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n{ERROR}"));
    // Nobody else gets the connection before the rest is here.
    world.send(other, redis("MULTI") + &redis("GET k") + &redis("EXEC"));
    world.expect(lease, "");
    world.send(lease, format!("{JUNK}{seal}"));
    world.expect(lease, redis("MULTI") + &redis("GET k") + &redis("EXEC"));
    world.send(lease, "+OK\r\n+QUEUED\r\n*1\r\n$1\r\nv\r\n");
    world.expect(other, "+OK\r\n+QUEUED\r\n*1\r\n$1\r\nv\r\n");
    assert!(world.closed.is_empty());
    world.assert_idle();
}

#[test]
fn what_several_servers_say_is_sealed_at_each() {
    let options = "redis: true\npreconnect: true\nserver_connections: 1";
    let (mut world, client, lanes): (World, ConnId, [ConnId; 2]) =
        World::with_client(&pool(options, 2));
    world.shows_seals = true;
    world.send(client, redis("FUNCTION LOAD x"));
    for lane in lanes {
        let seal = seal(&mut world, lane, &redis("FUNCTION LOAD x"));
        world.send(lane, format!("{ERROR}{JUNK}{seal}"));
    }
    world.expect(client, ERROR);
    world.assert_idle();
}
