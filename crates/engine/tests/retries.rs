//! Reads are sent again whose server fails: `retry_reads`.

use crate::world::{World, pool, redis, snapshot};
use cashew_config::Snapshot;
use cashew_engine::{CloseReason, ConnId};
use cashew_metrics::PoolCounter;

const VALUE: &str = "$1\r\nx\r\n";
const CLOSED: &str = "-ERR Server closed the connection\r\n";

fn group(options: &str) -> Snapshot {
    snapshot(&format!(
        "p:\n  listen: 127.0.0.1:6000\n  redis: true\n  timeout: 400\n  preconnect: true\n  hide_topology: true\n\
         \x20 pipeline_start: 0\n  retry_reads: true\n{options}  servers:\n\
         \x20  - {{name: s1, primary: 127.0.0.1:7001, replicas: [127.0.0.1:7002, 127.0.0.1:7003]}}\n"
    ))
}

/// Sent again, and denied.
fn counts(world: &World) -> [u64; 2] {
    let pool = world.metrics.pool(0);
    [PoolCounter::RequestsRetried, PoolCounter::RetriesDenied]
        .map(|counter| world.metrics.pool_counter(pool, counter))
}

/// The only one that has got the request.
#[track_caller]
fn taker(world: &mut World, lanes: &[ConnId], request: &str) -> ConnId {
    let takers: Vec<ConnId> =
        lanes.iter().copied().filter(|&lane| world.received(lane) == request.as_bytes()).collect();
    assert_eq!(takers.len(), 1, "{takers:?}");
    takers[0]
}

#[test]
fn a_read_goes_to_another_server_once() {
    let get = redis("GET a");
    for (reason, answer) in [
        (Some(CloseReason::Eof), CLOSED),
        (Some(CloseReason::Reset), "-ERR Connection reset by peer\r\n"),
        (None, "-ERR Connection timed out\r\n"),
    ] {
        let options = "  reads: prefer_replica\n";
        let (mut world, client, lanes) = World::with_client::<3>(&group(options));
        let fail = |world: &mut World, lane: ConnId| match reason {
            Some(reason) => world.close(lane, reason),
            None => world.wait_ms(400),
        };
        world.send(client, &get);
        let first = taker(&mut world, &lanes, &get);
        fail(&mut world, first);
        world.expect(client, "");
        let second = taker(&mut world, &lanes, &get);
        assert_ne!(first, second);
        world.send(second, VALUE);
        world.expect(client, VALUE);
        assert_eq!(counts(&world), [1, 0]);
        world.send(client, &get);
        let third = taker(&mut world, &lanes, &get);
        fail(&mut world, third);
        let fourth = taker(&mut world, &lanes, &get);
        fail(&mut world, fourth);
        world.expect(client, answer);
        assert_eq!(counts(&world), [2, 0]);
        world.assert_idle();
    }
}

#[test]
fn a_read_of_a_server_that_is_alone_waits_until_it_is_back() {
    for wait in ["", "failover_wait: 300\n"] {
        let options = format!("redis: true\npreconnect: true\nretry_reads: true\n{wait}");
        let (mut world, client, [lane]) = World::with_client::<1>(&pool(&options, 1));
        // Long enough for the next connection to be made at once.
        world.wait_ms(1500);
        world.send(client, redis("GET a") + &redis("MGET a b"));
        world.received(lane);
        world.close(lane, CloseReason::Eof);
        world.expect(client, "");
        let lane = world.accept(0);
        world.expect(lane, redis("GET a") + &redis("MGET a b"));
        world.send(lane, format!("{VALUE}*2\r\n{VALUE}{VALUE}"));
        world.expect(client, format!("{VALUE}*2\r\n{VALUE}{VALUE}"));
        assert_eq!(counts(&world), [2, 0]);
        // Once.
        world.wait_ms(1500);
        world.send(client, redis("GET a"));
        world.received(lane);
        world.close(lane, CloseReason::Eof);
        if wait.is_empty() {
            world.refuse(0);
            world.expect(client, "-ERR Connection refused\r\n");
        } else {
            let lane = world.accept(0);
            world.expect(lane, redis("GET a"));
            world.close(lane, CloseReason::Eof);
            world.expect(client, CLOSED);
        }
        world.assert_idle();
    }
}

#[test]
fn what_may_change_something_is_not_sent_again_nor_a_read_in_front_of_it() {
    let options = "redis: true\npreconnect: true\nretry_reads: true\nfailover_wait: 300\n";
    let (mut world, client, [lane]) = World::with_client::<1>(&pool(options, 1));
    let other = world.client();
    world.wait_ms(1500);
    world.send(client, redis("GET a") + &redis("SET a 1") + &redis("GET b"));
    world.send(other, redis("GET a") + &redis("SSCAN a 0"));
    world.received(lane);
    world.close(lane, CloseReason::Eof);
    world.expect(client, CLOSED.repeat(2));
    world.expect(other, CLOSED.repeat(2));
    // What comes next stands behind.
    world.send(client, redis("SET b 1"));
    let lane = world.accept(0);
    world.expect(lane, redis("GET b") + &redis("SET b 1"));
    world.send(lane, format!("{VALUE}+OK\r\n"));
    world.expect(client, format!("{VALUE}+OK\r\n"));
    assert_eq!(counts(&world), [1, 0]);
    world.assert_idle();
}

#[test]
fn a_reply_that_broke_off_is_an_error() {
    let (mut world, client, lanes) = World::with_client::<3>(&group("  reads: prefer_replica\n"));
    world.send(client, redis("GET a"));
    let lane = taker(&mut world, &lanes, &redis("GET a"));
    world.send(lane, "$1\r\n");
    world.close(lane, CloseReason::Eof);
    world.expect(client, CLOSED);
    assert_eq!(counts(&world), [0, 0]);
}

#[test]
fn answers_pay_for_it() {
    let options = "redis: true\npreconnect: true\nretry_reads: true\nfailover_wait: 300\n";
    let (mut world, client, [mut lane]) = World::with_client::<1>(&pool(options, 1));
    let get = redis("GET a");
    world.wait_ms(1500);
    let mut denied = 0;
    for answered in [0, 100] {
        world.send(client, get.repeat(answered));
        world.send(lane, VALUE.repeat(answered));
        world.expect(client, VALUE.repeat(answered));
        world.received(lane);
        world.send(client, get.repeat(50));
        world.received(lane);
        world.close(lane, CloseReason::Eof);
        let paid = 10 + answered / 5;
        denied += 50 - paid as u64;
        world.expect(client, "");
        lane = world.accept(0);
        world.expect(lane, get.repeat(paid));
        world.send(lane, VALUE.repeat(paid));
        world.expect(client, VALUE.repeat(paid) + &CLOSED.repeat(50 - paid));
        assert_eq!(counts(&world)[1], denied);
        world.wait_ms(3500);
    }
    world.assert_idle();
}

#[test]
fn reads_of_memcached_are_sent_again() {
    let hit = "VALUE k 0 1\r\nx\r\nEND\r\n";
    let text = "p:\n  listen: 127.0.0.1:6000\n  timeout: 400\n  preconnect: true\n  hide_topology: true\n\
         \x20 retry_reads: true\n  servers:\n\
         \x20  - {name: s1, primary: 127.0.0.1:7001, replicas: [127.0.0.1:7002]}\n";
    let (mut world, client, lanes) = World::with_client::<2>(&snapshot(text));
    world.wait_ms(1500);
    world.send(client, "get k\r\nmg k v\r\nget k l\r\n");
    let first = taker(&mut world, &lanes, "get k\r\nmg k v\r\nget k l\r\n");
    world.close(first, CloseReason::Reset);
    let second = taker(&mut world, &lanes, "get k\r\nmg k v\r\nget k l\r\n");
    assert_ne!(first, second);
    world.send(second, format!("{hit}VA 1\r\nx\r\n{hit}"));
    world.expect(client, format!("{hit}VA 1\r\nx\r\n{hit}"));
    assert_eq!(counts(&world), [3, 0]);
    world.assert_idle();
}

#[test]
fn gets_that_were_joined_are_sent_again_by_themselves() {
    let hit = |key: &str| format!("VALUE {key} 0 1\r\nx\r\nEND\r\n");
    let options = "preconnect: true\nretry_reads: true\nfailover_wait: 300\n";
    let (mut world, client, [lane]) = World::with_client::<1>(&pool(options, 1));
    let (second, other) = (world.client(), world.client());
    for it in [client, second, other] {
        // It is known to speak text.
        world.send(it, "what\r\n");
        world.received(it);
    }
    world.wait_ms(1500);
    // In one turn of the loop.
    world.engine.handle_received(client, b"get a\r\n", world.now);
    world.engine.handle_received(second, b"get b\r\n", world.now);
    world.engine.handle_received(other, b"get c d\r\nset d 0 0 1\r\nx\r\n", world.now);
    world.tick();
    let sent = String::from_utf8(world.received(lane)).unwrap();
    assert!(sent.starts_with("get a b\r\n"), "{sent}");
    world.close(lane, CloseReason::Eof);
    world.expect(client, "");
    world.expect(other, "SERVER_ERROR Server closed the connection\r\n".repeat(2));
    let lane = world.accept(0);
    world.expect(lane, "get a\r\nget b\r\n");
    world.send(lane, hit("a") + &hit("b"));
    world.expect(client, hit("a"));
    world.expect(second, hit("b"));
    assert_eq!(counts(&world), [2, 0]);
    world.assert_idle();
}

#[test]
fn without_the_option_it_is_an_error() {
    let options = "redis: true\npreconnect: true\nfailover_wait: 300\n";
    let (mut world, client, [lane]) = World::with_client::<1>(&pool(options, 1));
    world.wait_ms(1500);
    world.send(client, redis("GET a"));
    world.received(lane);
    world.close(lane, CloseReason::Eof);
    world.expect(client, CLOSED);
    assert_eq!(counts(&world), [0, 0]);
}
