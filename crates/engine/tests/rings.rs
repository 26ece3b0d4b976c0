//! Changes of a pool's ring, and the rings that come out of them.

use crate::world::{World, pool, redis, snapshot};
use cashew_engine::{Action, BackendId, CloseReason, ConnId, ServerId};
use cashew_metrics::{PoolCounter, PoolGauge, ServerGauge};
use cashew_placement::{Distribution, Hash, Node, Ring};

const OPTIONS: &str = "redis: true\npreconnect: true\ntimeout: 400";

/// `a e i` are keys of the first of the four servers, `b f j` of the second, `c g k` of the third,
/// `d h l` of the fourth.
fn four_servers() -> (World, ConnId, [ConnId; 4]) {
    World::with_client(&pool(OPTIONS, 4))
}

fn hold(world: &mut World, version: u64) {
    world.engine.handle_hold(BackendId::new(0), version, 0, world.now);
    world.tick();
    assert_eq!(world.actions.last(), Some(&Action::Held { backend: BackendId::new(0), version }));
}

fn release(world: &mut World, version: u64, live: &[bool]) {
    world.engine.handle_release(
        BackendId::new(0),
        version,
        live.to_vec().into(),
        world.now,
        1_000_000,
    );
    world.tick();
}

/// Those too that have asked another one of its pools last.
#[test]
fn clients_of_a_route_go_on_when_any_of_its_pools_does() {
    let config = snapshot(
        "global: {worker_processes: 1}
pools:
  a: {redis: true, preconnect: true, servers: ['127.0.0.1:7000:1'], hide_topology: true}
  b: {redis: true, preconnect: true, servers: ['127.0.0.1:7001:1'], hide_topology: true}
routes:
  by: {redis: true, listen: '127.0.0.1:6000', route: {prefix: {'': a, 'b:': b}}}
",
    );
    let mut world = World::new(&config);
    let lanes = [0, 0].map(|first| world.accept(first));
    let by = world.engine.listener_named("by").unwrap();
    let client = world.client_of(by.number());
    let asked = ["GET x", "GET b:x"].map(redis);
    let answer = |world: &mut World, at: usize| {
        world.expect(lanes[at], &asked[at]);
        world.send(lanes[at], "$-1\r\n");
        world.expect(client, "$-1\r\n");
    };
    for (before, held, then) in [(0, 1, 1), (0, 1, 0), (1, 0, 0), (1, 0, 1), (0, 0, 1)] {
        world.send(client, &asked[before]);
        answer(&mut world, before);
        let backend = BackendId::new(held);
        world.engine.handle_hold(backend, 1, 0, world.now);
        world.tick();
        world.send(client, &asked[then]);
        world.expect(lanes[then], "");
        world.engine.handle_release(backend, 1, vec![true].into(), world.now, 0);
        world.tick();
        answer(&mut world, then);
    }
}

#[test]
fn a_held_pool_dispatches_nothing_and_then_goes_on() {
    let (mut world, one, [a, b, ..]) = four_servers();
    let two = world.client();
    world.send(one, redis("GET a"));
    world.expect(a, redis("GET a"));
    hold(&mut world, 1);
    world.send(one, redis("GET e") + &redis("PING"));
    world.send(two, redis("SET b 1") + &redis("MGET a b"));
    let late = world.client();
    world.send(late, redis("GET b"));
    let mut paused = world.paused.clone();
    paused.sort_by_key(|conn| conn.token());
    assert_eq!(paused, [one, two, late]);
    // What is in flight finishes.
    world.send(a, "$1\r\n1\r\n");
    world.expect(one, "$1\r\n1\r\n");
    world.wait_ms(1000);
    for conn in [a, b, one, two, late] {
        world.expect(conn, "");
    }
    release(&mut world, 1, &[true; 4]);
    assert!(world.paused.is_empty());
    world.expect(a, redis("GET e") + &redis("MGET a"));
    let to_b = String::from_utf8(world.received(b)).unwrap();
    let first = redis("SET b 1") + &redis("MGET b");
    assert_eq!(to_b, first + &redis("GET b"));
    world.send(a, "$1\r\n2\r\n*1\r\n$1\r\n3\r\n");
    world.send(b, "+OK\r\n*1\r\n$1\r\n4\r\n$1\r\n5\r\n");
    world.expect(one, "$1\r\n2\r\n+PONG\r\n");
    world.expect(two, "+OK\r\n*2\r\n$1\r\n3\r\n$1\r\n4\r\n");
    world.expect(late, "$1\r\n5\r\n");
    world.assert_idle();
}

#[test]
fn requests_cut_by_a_hold_are_whole_after_it() {
    let (mut world, client, [a, ..]) = four_servers();
    let request = redis("GET a");
    world.send(client, &request[..9]);
    hold(&mut world, 1);
    world.send(client, &request[9..15]);
    world.send(client, request[15..].to_owned() + &request[..3]);
    world.expect(a, "");
    release(&mut world, 1, &[true; 4]);
    world.expect(a, &request);
    world.send(client, &request[3..]);
    world.expect(a, &request);
    world.send(a, "$-1\r\n$-1\r\n");
    world.expect(client, "$-1\r\n$-1\r\n");
    world.assert_idle();
}

#[test]
fn a_client_paused_for_another_reason_goes_on_after_a_hold() {
    let options = "redis: true\npreconnect: true\nclient_requests_max: 2";
    let (mut world, [lane]): (World, [ConnId; 1]) = World::connected(&pool(options, 1));
    let client = world.client();
    world.send(client, redis("GET a").repeat(5));
    world.expect(lane, redis("GET a").repeat(2));
    hold(&mut world, 1);
    world.send(lane, "$-1\r\n$-1\r\n");
    world.expect(client, "$-1\r\n$-1\r\n");
    world.expect(lane, "");
    assert_eq!(world.paused, [client]);
    release(&mut world, 1, &[true]);
    for round in [2, 1] {
        world.expect(lane, redis("GET a").repeat(round));
        world.send(lane, "$-1\r\n".repeat(round));
        world.expect(client, "$-1\r\n".repeat(round));
    }
    assert!(world.paused.is_empty());
    world.assert_idle();
}

#[test]
fn clients_may_leave_while_their_pool_is_held() {
    let (mut world, reset, [a, ..]) = four_servers();
    let (half, next) = (world.client(), world.client());
    world.send(reset, redis("GET a"));
    world.expect(a, redis("GET a"));
    hold(&mut world, 1);
    for client in [reset, half, next] {
        world.send(client, redis("GET e"));
    }
    world.close(reset, CloseReason::Reset);
    world.read_closed(half);
    assert!(!world.closed.contains(&half));
    let fresh = world.client();
    release(&mut world, 1, &[true; 4]);
    world.expect(a, redis("GET e").repeat(2));
    world.send(a, "$1\r\n0\r\n$1\r\n1\r\n$1\r\n2\r\n");
    world.expect(half, "$1\r\n1\r\n");
    assert!(world.closed.contains(&half));
    world.expect(next, "$1\r\n2\r\n");
    world.expect(fresh, "");
    world.assert_idle();
}

#[test]
fn an_abandoned_change_leaves_the_ring_as_it_was() {
    let (mut world, client, [_, b, ..]) = four_servers();
    for version in 1..4 {
        hold(&mut world, version);
        world.send(client, redis("GET b"));
        world.expect(b, "");
        release(&mut world, version, &[true; 4]);
        world.expect(b, redis("GET b"));
        world.send(b, "$-1\r\n");
        world.expect(client, "$-1\r\n");
    }
    let id = world.metrics.pool(0);
    assert_eq!(world.metrics.pool_gauge(id, PoolGauge::RingVersion), 3);
    assert_eq!(world.metrics.pool_counter(id, PoolCounter::ServerEjects), 0);
    world.assert_idle();
}

#[test]
fn an_abandoned_ejection_may_be_asked_for_again() {
    let options = "redis: true\nauto_eject_hosts: true\nserver_failure_limit: 1";
    let mut world = World::new(&pool(options, 2));
    let client = world.client();
    for round in 1..4 {
        world.send(client, redis("GET a"));
        world.refuse(0);
        world.expect(client, "-ERR Connection refused\r\n");
        let is_ejection = |action: &&Action| matches!(action, Action::Eject { server, .. } if server.number() == 0);
        assert_eq!(world.actions.iter().filter(is_ejection).count(), round);
        hold(&mut world, round as u64);
        release(&mut world, round as u64, &[true; 2]);
        // Past the backoff, which ends with an attempt to connect.
        while !world.connects_to(0) {
            world.wait_ms(10);
        }
    }
}

#[test]
fn a_drain_does_not_wait_for_a_hold() {
    let (mut world, client, _) = four_servers();
    hold(&mut world, 1);
    world.send(client, redis("GET a"));
    world.engine.handle_drain(world.now);
    world.tick();
    assert!(world.closed.contains(&client) && world.engine.is_drained());
    release(&mut world, 1, &[true; 4]);
    world.assert_idle();
}

#[test]
fn other_pools_know_nothing_of_a_hold() {
    let two = snapshot(
        "p:\n  listen: 127.0.0.1:6000\n  redis: true\n  preconnect: true\n  servers:\n   \
         - 127.0.0.1:7000:1\nq:\n  listen: 127.0.0.1:6001\n  redis: true\n  servers:\n   \
         - 127.0.0.1:7001:1\n",
    );
    let mut world = World::new(&two);
    world.accept(0);
    hold(&mut world, 1);
    let client = world.client_of(1);
    world.send(client, redis("GET a"));
    let lane = world.accept(0);
    world.expect(lane, redis("GET a"));
    world.send(lane, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    assert!(world.paused.is_empty());
}

/// Which server the key goes to; it answers.
#[track_caller]
fn placed(world: &mut World, client: ConnId, lanes: &[ConnId], key: &[u8]) -> usize {
    let mut get = format!("*2\r\n$3\r\nGET\r\n${}\r\n", key.len()).into_bytes();
    get.extend_from_slice(key);
    get.extend_from_slice(b"\r\n");
    world.send(client, &get);
    let got: Vec<_> = lanes.iter().map(|&lane| world.received(lane)).collect();
    let server = got.iter().position(|bytes| !bytes.is_empty()).expect("somebody gets it");
    assert_eq!(got[server], get);
    world.send(lanes[server], "$-1\r\n");
    world.expect(client, "$-1\r\n");
    server
}

const GOLDEN_KEYS: [&[u8]; 9] = [
    b"apple",
    b"a",
    b"foo",
    b"key-1",
    b"key-2",
    b"user:1000",
    b"\xe4\xb8\xad\xe6\x96\x87",
    b"\xff\x80",
    b"",
];

#[test]
fn keys_go_where_twemproxy_sends_them() {
    let named = "127.0.0.1:7001:1 server1,127.0.0.1:7002:1 server2,127.0.0.1:7003:1 server3,\
                 127.0.0.1:7004:1 server4";
    let by_address = "10.0.0.1:11211:1,10.0.0.2:11211:1,10.0.0.10:11211:1";
    let weighted = "127.0.0.1:6379:1,127.0.0.1:6380:2,127.0.0.1:6381:3";
    for (distribution, servers, expected) in [
        ("ketama", named, [0, 2, 0, 2, 2, 0, 1, 2, 2]),
        ("ketama", by_address, [1, 1, 2, 0, 0, 2, 0, 1, 1]),
        ("ketama", weighted, [2, 2, 2, 1, 1, 2, 2, 1, 1]),
        ("modula", named, [3, 0, 3, 2, 3, 1, 1, 2, 0]),
        ("modula", weighted, [2, 2, 2, 1, 2, 2, 1, 2, 0]),
    ] {
        let lines: String = servers.split(',').map(|line| format!("   - {line}\n")).collect();
        let mut world = World::new(&snapshot(&format!(
            "p:\n  listen: 127.0.0.1:6000\n  redis: true\n  preconnect: true\n  hash: fnv1a_64\n  \
             distribution: {distribution}\n  servers:\n{lines}"
        )));
        let lanes: [Option<ConnId>; 4] = world.accept_all();
        let lanes: Vec<ConnId> = lanes.into_iter().flatten().collect();
        let client = world.client();
        let got = GOLDEN_KEYS.map(|key| placed(&mut world, client, &lanes, key));
        assert_eq!(got, expected, "{distribution} {servers}");
    }
}

#[test]
fn the_ring_without_the_ejected_is_the_one_twemproxy_builds() {
    const NAMES: [&str; 4] = ["one", "two", "four", "three"];
    const WEIGHTS: [u32; 4] = [1, 5, 2, 1];
    for distribution in [Distribution::Ketama, Distribution::Modula] {
        let servers: String = (0..4)
            .map(|n| format!("   - 127.0.0.1:{}:{} {}\n", 7000 + n, WEIGHTS[n], NAMES[n]))
            .collect();
        let snapshot = snapshot(&format!(
            "p:\n  listen: 127.0.0.1:6000\n  redis: true\n  preconnect: true\n  hash: murmur\n  \
             distribution: {}\n  auto_eject_hosts: true\n  servers:\n{servers}",
            distribution.name()
        ));
        let (mut world, lanes): (World, [ConnId; 4]) = World::connected(&snapshot);
        let client = world.client();
        let nodes: Vec<Node<'_>> = NAMES
            .iter()
            .zip(WEIGHTS)
            .map(|(name, weight)| Node { name: name.as_bytes(), weight })
            .collect();
        // Every set of live servers but the empty one, each from the one before.
        for (version, mask) in (1..16u32).chain([15, 1, 8, 15]).enumerate() {
            let live: Vec<bool> = (0..4).map(|server| mask & 1 << server != 0).collect();
            hold(&mut world, version as u64);
            release(&mut world, version as u64, &live);
            let ring = Ring::build(distribution, &nodes, &live);
            for n in 0..100 {
                let key = format!("key:{n}");
                let expected = ring.select(ring.point(Hash::Murmur, None, key.as_bytes()));
                let server = placed(&mut world, client, &lanes, key.as_bytes());
                assert_eq!(Some(server as u32), expected, "{key} with {live:?}");
            }
        }
        world.assert_idle();
    }
}

#[test]
fn a_split_request_follows_the_ring() {
    let (mut world, client, [a, b, c, d]) = four_servers();
    release(&mut world, 1, &[true, false, true, true]);
    // `modula` deals all keys anew: fnv1a_64 modulo 3 is 1 for these.
    world.send(client, redis("MGET a b c d"));
    world.expect(c, redis("MGET a b c d"));
    for lane in [a, b, d] {
        world.expect(lane, "");
    }
    world.send(c, "*4\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n");
    world.expect(client, "*4\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n");
    world.assert_idle();
}

#[test]
fn requests_on_their_way_to_an_ejected_server_are_still_answered() {
    let (mut world, client, [_, b, ..]) = four_servers();
    world.send(client, redis("GET b"));
    hold(&mut world, 1);
    release(&mut world, 1, &[true, false, true, true]);
    world.send(b, "$1\r\n1\r\n");
    world.expect(client, "$1\r\n1\r\n");
    world.assert_idle();
}

#[test]
fn without_a_server_requests_fail_at_once() {
    let (mut world, client, lanes) = four_servers();
    release(&mut world, 1, &[false; 4]);
    let refused = "-ERR Connection refused\r\n";
    for request in ["GET a", "MGET a b", "MGET a", "MSET a 1 b 2", "EVAL s 1 a"] {
        world.send(client, redis(request));
        world.expect(client, refused);
    }
    world.send(client, redis("PING"));
    world.expect(client, "+PONG\r\n");
    lanes.into_iter().for_each(|lane| world.expect(lane, ""));
    world.assert_idle();

    let (mut world, _): (World, [ConnId; 2]) = World::connected(&pool("preconnect: true", 2));
    let client = world.client();
    release(&mut world, 1, &[false; 2]);
    for request in [
        "get a\r\n",
        "get a b\r\n",
        "set a 0 0 1\r\nx\r\n",
        "set a 0 0 1 noreply\r\nx\r\nversion\r\n",
        "flush_all\r\n",
        "flush_all noreply\r\nincr a 1\r\n",
    ] {
        world.send(client, request);
        world.expect(client, "SERVER_ERROR Connection refused\r\n");
    }
    world.assert_idle();
}

#[test]
fn ejections_are_counted_and_dated() {
    let (mut world, _, _) = four_servers();
    release(&mut world, 1, &[true, false, true, false]);
    release(&mut world, 2, &[true, false, true, true]);
    release(&mut world, 3, &[true, true, true, false]);
    let metrics = &world.metrics;
    assert_eq!(metrics.pool_counter(metrics.pool(0), PoolCounter::ServerEjects), 3);
    let gauges = |gauge| [0, 1, 2, 3].map(|n| metrics.server_gauge(metrics.server(0, n), gauge));
    assert_eq!(gauges(ServerGauge::Ejected), [0, 0, 0, 1]);
    assert_eq!(gauges(ServerGauge::EjectedAt), [0, 1_000_000, 0, 1_000_000]);
}

#[test]
fn one_failure_that_many_requests_notice_counts_once() {
    let options = "redis: true\npreconnect: true\nauto_eject_hosts: true\n\
                   server_failure_limit: 3\nserver_connections: 4";
    let mut world = World::new(&pool(options, 2));
    let _: [Option<ConnId>; 2] = world.accept_all();
    let clients: Vec<ConnId> = (0..4).map(|_| world.client()).collect();
    for &client in &clients {
        world.send(client, redis("GET a").repeat(10));
    }
    for lane in world.lanes[&0].clone() {
        world.close(lane, CloseReason::Reset);
    }
    let is_ejection = |action: &Action| matches!(action, Action::Eject { .. });
    assert!(!world.actions.iter().any(is_ejection));
    for &client in &clients {
        world.expect(client, "-ERR Connection reset by peer\r\n".repeat(10));
    }
    world.assert_idle();
}

#[test]
fn an_idle_connection_that_the_server_closes_is_no_failure() {
    let options = "redis: true\npreconnect: true\nauto_eject_hosts: true\nserver_failure_limit: 1";
    let (mut world, [lane, _]): (World, [ConnId; 2]) = World::connected(&pool(options, 2));
    world.wait_ms(5000);
    world.read_closed(lane);
    // The descriptor is the engine's to give up.
    assert!(world.closed.contains(&lane));
    let lane = world.accept(0);
    let client = world.client();
    world.send(client, redis("GET a"));
    world.expect(lane, redis("GET a"));
    world.send(lane, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    assert!(!world.actions.iter().any(|action| matches!(action, Action::Eject { .. })));
}

#[test]
fn a_reply_resets_the_count_of_failures() {
    let options = "redis: true\nauto_eject_hosts: true\nserver_failure_limit: 2";
    let mut world = World::new(&pool(options, 2));
    let client = world.client();
    for _ in 0..5 {
        world.send(client, redis("GET a"));
        let lane = world.accept(0);
        if world.received(lane).starts_with(redis("PING").as_bytes()) {
            world.send(lane, "+PONG\r\n");
        }
        world.send(lane, "$-1\r\n");
        world.expect(client, "$-1\r\n");
        world.send(client, redis("GET a"));
        world.close(lane, CloseReason::Reset);
        world.expect(client, "-ERR Connection reset by peer\r\n");
        while !world.connects_to(0) {
            world.wait_ms(10);
        }
    }
    assert!(!world.actions.iter().any(|action| matches!(action, Action::Eject { .. })));
    // A reply in the same breath as nonsense does not make up for the nonsense.
    for _ in 0..2 {
        let lane = world.accept(0);
        world.send(client, redis("GET a"));
        world.send(lane, "$-1\r\n!\r\n");
        while !world.connects_to(0) {
            world.wait_ms(10);
        }
        world.now = world.now.plus_millis(1);
    }
    assert!(!world.actions.iter().any(|action| matches!(action, Action::Eject { .. })));
    world.refuse(0);
    assert!(world.actions.iter().any(|action| matches!(action, Action::Eject { .. })));
}

#[test]
fn a_server_that_comes_and_goes_is_probed_no_more_often_for_it() {
    let options = "redis: true\nauto_eject_hosts: true\nserver_retry_timeout: 1000";
    let mut world = World::new(&pool(options, 2));
    for round in 0..20 {
        release(&mut world, 2 * round, &[false, true]);
        world.wait_ms(10);
        release(&mut world, 2 * round + 1, &[true, true]);
    }
    release(&mut world, 40, &[false, true]);
    world.actions.clear();
    for _ in 0..10_000 {
        world.wait_ms(1);
        while world.connects_to(0) {
            world.refuse(0);
        }
    }
    let is_attempt =
        |action: &&Action| matches!(action, Action::Connect { server, .. } if server.number() == 0);
    let attempts = world.actions.iter().filter(is_attempt).count();
    // Every 500 to 1000 ms.
    assert!((9..=21).contains(&attempts), "{attempts}");
}

#[test]
fn an_ejection_that_nobody_answers_is_asked_for_again() {
    let options = "redis: true\npreconnect: true\nauto_eject_hosts: true\nserver_failure_limit: 1";
    let mut world = World::new(&pool(options, 2));
    let asked = |world: &World| {
        let is_ejection = |action: &&Action| matches!(action, Action::Eject { server, .. } if server.number() == 0);
        world.actions.iter().filter(is_ejection).count()
    };
    world.refuse(0);
    assert_eq!(asked(&world), 1);
    for _ in 0..10_000 {
        world.wait_ms(1);
        while world.connects_to(0) {
            world.refuse(0);
        }
    }
    // Each second, with the next attempt to connect.
    assert!((5..=10).contains(&asked(&world)), "{}", asked(&world));
}

#[test]
fn a_server_that_is_not_taken_back_says_so_with_every_probe() {
    let options = "redis: true\nauto_eject_hosts: true\nserver_retry_timeout: 1000";
    let mut world = World::new(&pool(options, 2));
    release(&mut world, 1, &[false, true]);
    let readmit = Action::Readmit { backend: BackendId::new(0), server: ServerId::new(0) };
    world.wait_ms(1000);
    let lane = world.accept(0);
    for round in 1..5 {
        world.expect(lane, redis("PING"));
        world.send(lane, "+PONG\r\n");
        assert_eq!(world.actions.iter().filter(|action| **action == readmit).count(), round);
        if round == 2 {
            // An abandoned change is no answer either.
            hold(&mut world, 2);
            release(&mut world, 2, &[false, true]);
        }
        world.wait_ms(1000);
    }
    world.expect(lane, redis("PING"));
    release(&mut world, 3, &[true, true]);
    world.send(lane, "+PONG\r\n");
    assert_eq!(world.actions.iter().filter(|action| **action == readmit).count(), 4);
    world.assert_idle();
}
