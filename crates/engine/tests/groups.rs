//! Shards of several servers: who gets what.

use crate::world::{World, redis, snapshot};
use cashew_config::snapshot::{Promoted, TopologyState};
use cashew_engine::{BackendId, CloseReason, ConnId};

/// By the order of their names: `s0`, and of `s1` the primary and two replicas.
const ALONE: usize = 0;
const PRIMARY: usize = 1;
const NEAR: usize = 3;

fn grouped(options: &str) -> cashew_config::Snapshot {
    snapshot(&format!(
        "pools:\n  p:\n    listen: 127.0.0.1:6000\n    redis: true\n    distribution: modula\n\
         \x20   hash: one_at_a_time\n    zone: here\n{options}\
         \x20   servers:\n\
         \x20   - 127.0.0.1:7000:1 s0\n\
         \x20   - {{name: s1, primary: 127.0.0.1:7001, replicas: [{{address: 127.0.0.1:7002, zone: there}}, \
         {{address: 127.0.0.1:7003, zone: here}}]}}\n"
    ))
}

fn connected(reads: &str) -> (World, ConnId, [ConnId; 4]) {
    World::with_client(&grouped(&format!("    preconnect: true\n    reads: {reads}\n")))
}

/// A key of the group, and one of the server that is alone.
fn keys() -> [String; 2] {
    let is_of_group =
        |key: &String| cashew_placement::Hash::OneAtATime.hash(key.as_bytes()) % 2 == 1;
    let mut keys = (0..).map(|n| format!("k{n}"));
    let grouped = keys.find(|key| is_of_group(key)).unwrap();
    [grouped, keys.find(|key| !is_of_group(key)).unwrap()]
}

/// Sends a request, and returns who gets it; that one answers.
#[track_caller]
fn asks(world: &mut World, client: ConnId, lanes: &[ConnId], request: &str) -> usize {
    world.send(client, request);
    let got: Vec<usize> =
        (0..lanes.len()).filter(|&at| world.received(lanes[at]) == request.as_bytes()).collect();
    assert_eq!(got.len(), 1, "one server gets it");
    world.send(lanes[got[0]], ":1\r\n");
    world.expect(client, ":1\r\n");
    got[0]
}

/// Who answers so many reads.
#[track_caller]
fn readers(world: &mut World, client: ConnId, lanes: &[ConnId], count: usize) -> Vec<usize> {
    let [key, _] = keys();
    (0..count).map(|_| asks(world, client, lanes, &redis(&format!("GET {key}")))).collect()
}

#[test]
fn each_policy_has_its_order() {
    for (reads, expected) in [
        ("primary", [1, 1, 1, 1, 1, 1]),
        ("prefer_primary", [1, 1, 1, 1, 1, 1]),
        ("prefer_replica", [2, 3, 2, 3, 2, 3]),
        ("any", [1, 2, 3, 1, 2, 3]),
        ("zone", [3, 3, 3, 3, 3, 3]),
    ] {
        let (mut world, client, lanes) = connected(reads);
        assert_eq!(readers(&mut world, client, &lanes, 6), expected, "{reads}");
        let [grouped, alone] = keys();
        // What is no read, or goes on with a cursor, is the primary's.
        for request in [
            format!("SET {grouped} v"),
            format!("INCR {grouped}"),
            format!("SSCAN {grouped} 0"),
            format!("HSCAN {grouped} 7"),
            format!("ZSCAN {grouped} 0"),
            format!("EVAL x 1 {grouped}"),
            "DBSIZE".to_owned(),
        ] {
            let request = redis(&request);
            if request.contains("DBSIZE") {
                world.send(client, &request);
                let reply = ":1\r\n";
                for at in [ALONE, PRIMARY] {
                    world.expect(lanes[at], &request);
                }
                for at in [ALONE, PRIMARY] {
                    world.send(lanes[at], reply);
                }
                world.expect(client, ":2\r\n");
            } else {
                let got = asks(&mut world, client, &lanes, &request);
                assert_eq!(got, PRIMARY, "{reads} {request}");
            }
        }
        let got = asks(&mut world, client, &lanes, &redis(&format!("GET {alone}")));
        assert_eq!(got, ALONE);
        world.assert_idle();
    }
}

#[test]
fn servers_that_are_down_are_passed_over() {
    for (reads, down, expected) in [
        ("prefer_primary", PRIMARY, vec![2, 3, 2, 3]),
        ("prefer_replica", 2, vec![3, 3]),
        ("any", 2, vec![3, 1, 3, 1]),
        ("zone", NEAR, vec![2, 2]),
    ] {
        let (mut world, client, lanes) = connected(reads);
        world.close(lanes[down], CloseReason::Reset);
        let mut expected = expected;
        let mut got = readers(&mut world, client, &lanes, expected.len());
        got.sort_unstable();
        expected.sort_unstable();
        assert_eq!(got, expected, "{reads}");
    }
}

#[test]
fn a_server_that_came_back_gets_its_share_of_reads_bit_by_bit() {
    for (reads, fair) in [("any", 40), ("prefer_replica", 60)] {
        let (mut world, client, lanes) = connected(reads);
        assert_eq!(
            readers(&mut world, client, &lanes, 120).iter().filter(|at| **at == 2).count(),
            fair
        );
        world.close(lanes[2], CloseReason::Reset);
        world.wait_ms(1000);
        world.refuse(2);
        let others = [lanes[0], lanes[1], lanes[3]];
        assert_eq!(readers(&mut world, client, &others, 60).len(), 60);
        world.wait_ms(1000);
        let back = world.accept(2);
        if world.received(back).starts_with(b"*1") {
            world.send(back, "+PONG\r\n");
        }
        let lanes = [lanes[0], lanes[1], back, lanes[3]];
        let mut before = 0;
        for step in 0..5 {
            let got = readers(&mut world, client, &lanes, 120);
            let got = got.iter().filter(|at| **at == 2).count();
            match step {
                0 => assert!((1..=fair / 5).contains(&got), "{reads}: {got} at first"),
                4 => assert_eq!(got, fair, "{reads}: all of its share"),
                _ => assert!(
                    got > before && got < fair,
                    "{reads}: {got} after {before} in step {step}"
                ),
            }
            before = got;
            world.wait_ms(100);
        }
        // If nobody else can answer it gets all at once.
        world.close(lanes[2], CloseReason::Reset);
        world.assert_idle();
    }
}

#[test]
fn who_alone_can_answer_gets_all_at_once() {
    let group = snapshot(
        "pools:\n  p:\n    listen: 127.0.0.1:6000\n    redis: true\n    preconnect: true\n\
         \x20   reads: replica\n    servers:\n\
         \x20   - {name: s1, primary: 127.0.0.1:7001, replicas: [127.0.0.1:7002]}\n",
    );
    let (mut world, client, [_, replica]) = World::with_client(&group);
    world.close(replica, CloseReason::Reset);
    world.wait_ms(1000);
    world.refuse(1);
    world.wait_ms(1000);
    let back = world.accept(1);
    if world.received(back).starts_with(b"*1") {
        world.send(back, "+PONG\r\n");
    }
    for _ in 0..20 {
        assert_eq!(asks(&mut world, client, &[back], &redis("GET a")), 0);
    }
}

#[test]
fn one_server_answers_for_all_keys_of_a_group() {
    let (mut world, client, lanes) = connected("any");
    let [grouped, alone] = keys();
    for expected in [1, 2, 3, 1] {
        let request = redis(&format!("MGET {grouped} {grouped} {grouped}"));
        assert_eq!(asks(&mut world, client, &lanes, &request), expected);
    }
    world.send(client, redis(&format!("MGET {grouped} {alone} {grouped}")));
    world.expect(lanes[ALONE], redis(&format!("MGET {alone}")));
    world.expect(lanes[2], redis(&format!("MGET {grouped} {grouped}")));
    world.send(lanes[ALONE], "*1\r\n$1\r\na\r\n");
    world.send(lanes[2], "*2\r\n$1\r\nx\r\n$1\r\ny\r\n");
    world.expect(client, "*3\r\n$1\r\nx\r\n$1\r\na\r\n$1\r\ny\r\n");
    world.assert_idle();
}

#[test]
fn reads_that_were_not_sent_go_on_with_another_server() {
    // Nobody is connected yet.
    let mut world = World::new(&grouped("    reads: prefer_replica\n"));
    let client = world.client();
    let [key, alone] = keys();
    let get = redis(&format!("GET {key}"));
    let split = redis(&format!("MGET {key} {alone}"));
    world.send(client, format!("{get}{get}{split}"));
    // Some go to the first replica, and some to the second.
    world.refuse(2);
    let near = world.accept(NEAR as u32);
    let moved = redis(&format!("MGET {key}"));
    world.expect(near, format!("{get}{get}{moved}"));
    world.send(near, "$1\r\na\r\n$1\r\nb\r\n*1\r\n$1\r\nc\r\n");
    let lonely = world.accept(ALONE as u32);
    world.expect(lonely, redis(&format!("MGET {alone}")));
    world.send(lonely, "*1\r\n$1\r\nd\r\n");
    // The second was the first on that connection.
    world.expect(client, "$1\r\nb\r\n$1\r\na\r\n*2\r\n$1\r\nc\r\n$1\r\nd\r\n");
    world.assert_idle();
}

#[test]
fn what_was_sent_to_a_server_that_fails_is_an_error() {
    let (mut world, client, lanes) = connected("prefer_replica");
    let [key, _] = keys();
    let get = redis(&format!("GET {key}"));
    world.send(client, &get);
    world.expect(lanes[2], &get);
    world.close(lanes[2], CloseReason::Reset);
    let told = "-ERR Connection reset by peer (server s1/127.0.0.1:7002, 127.0.0.1:7002)\r\n";
    world.expect(client, told);
    assert_eq!(readers(&mut world, client, &[lanes[0], lanes[1], lanes[3]], 2), [2, 2]);
}

#[test]
fn a_transaction_reads_from_the_primary() {
    let (mut world, client, _lanes) = connected("prefer_replica");
    let [key, _] = keys();
    let watch = redis(&format!("WATCH {key}"));
    world.send(client, &watch);
    let session = world.accept(PRIMARY as u32);
    world.expect(session, &watch);
    world.send(session, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    let get = redis(&format!("GET {key}"));
    world.send(client, &get);
    world.expect(session, &get);
}

#[test]
fn the_nearest_answers_and_each_is_measured_once_a_second() {
    let (mut world, client, lanes) = connected("nearest");
    let [key, _] = keys();
    let get = redis(&format!("GET {key}"));
    let mut counts = [0; 4];
    let mut since = [0; 4];
    for _ in 0..400 {
        world.send(client, &get);
        let got = (0..4).find(|&at| !world.received(lanes[at]).is_empty()).expect("somebody");
        // One of them is far away.
        world.wait_ms(if got == 2 { 30 } else { 1 });
        world.send(lanes[got], "$-1\r\n");
        world.expect(client, "$-1\r\n");
        counts[got] += 1;
        since[got] += 1;
        world.wait_ms(10);
    }
    // 400 reads take some 4.5 seconds.
    assert!((4..=7).contains(&counts[2]), "{counts:?}");
    assert!(counts[1] > 100 && counts[3] > 100 && counts[0] == 0, "{counts:?}");
}

#[test]
fn another_primary_takes_the_writes_and_the_old_one_may_be_read() {
    let (mut world, client, lanes) = connected("prefer_replica");
    let promoted = Promoted { shard: 1, server: 3 };
    let topology = TopologyState { primaries: vec![promoted], ..vec![true; 4].into() };
    world.engine.handle_release(BackendId::new(0), 1, topology, world.now, 0);
    world.tick();
    let [key, _] = keys();
    assert_eq!(asks(&mut world, client, &lanes, &redis(&format!("SET {key} v"))), 3);
    let mut got = readers(&mut world, client, &lanes, 2);
    got.sort_unstable();
    assert_eq!(got, [1, 2]);
    // An ejected replica is not read, and an ejected primary takes the group out.
    let topology =
        TopologyState { primaries: vec![promoted], ..vec![true, false, true, true].into() };
    world.engine.handle_release(BackendId::new(0), 2, topology, world.now, 0);
    world.tick();
    assert_eq!(readers(&mut world, client, &lanes, 2), [2, 2]);
    let topology =
        TopologyState { primaries: vec![promoted], ..vec![true, true, true, false].into() };
    world.engine.handle_release(BackendId::new(0), 3, topology, world.now, 0);
    world.tick();
    assert_eq!(readers(&mut world, client, &lanes, 2), [ALONE, ALONE]);
}

/// The same while the connections to all servers are made anew, as there are to be more of them.
#[test]
fn what_waits_for_a_primary_goes_to_the_next_one_whose_connections_are_new() {
    let group = |primary: u16, replica: u16, connections: u16| {
        snapshot(&format!(
            "pools:\n  p:\n    listen: 127.0.0.1:6000\n    redis: true\n    failover_wait: 1000\n    \
             server_connections: {connections}\n    servers:\n\
             \x20   - {{name: s1, primary: 127.0.0.1:{primary}, replicas: [127.0.0.1:{replica}]}}\n"
        ))
    };
    let mut world = World::new(&group(7001, 7002, 1));
    let client = world.client();
    let set = redis("SET k v");
    world.send(client, &set);
    assert!(world.connects_to(0));
    let mut next = group(7002, 7001, 2);
    next.epoch += 1;
    world.prepare(&next);
    world.pause(0);
    world.commit(&next);
    let lane = world.accept(1);
    world.expect(lane, &set);
    world.send(lane, "+OK\r\n");
    world.expect(client, "+OK\r\n");
}

/// A reload makes the replica the primary while clients wait for a connection to the former one.
#[test]
fn what_waits_for_a_primary_goes_to_the_one_that_a_reload_makes() {
    let group = |primary: u16, replica: u16| {
        snapshot(&format!(
            "pools:\n  p:\n    listen: 127.0.0.1:6000\n    redis: true\n    servers:\n\
             \x20   - {{name: s1, primary: 127.0.0.1:{primary}, replicas: [127.0.0.1:{replica}]}}\n"
        ))
    };
    let mut world = World::new(&group(7001, 7002));
    let client = world.client();
    let set = redis("SET k v");
    world.send(client, &set);
    assert!(world.connects_to(0));
    let mut next = group(7002, 7001);
    next.epoch += 1;
    world.prepare(&next);
    world.pause(0);
    world.commit(&next);
    let former = world.accept(0);
    world.expect(former, "");
    let lane = world.accept(1);
    world.expect(lane, &set);
    world.send(lane, "+OK\r\n");
    world.expect(client, "+OK\r\n");
}

#[test]
fn all_are_connected_to_in_turn() {
    let mut world = World::new(&grouped("    reads: any\n"));
    let client = world.client();
    let [key, _] = keys();
    let get = redis(&format!("GET {key}"));
    for server in [1, 2, 3] {
        world.send(client, &get);
        let lane = world.accept(server);
        world.expect(lane, &get);
        world.send(lane, "$-1\r\n");
        world.expect(client, "$-1\r\n");
    }
}
