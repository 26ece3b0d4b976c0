//! SCAN while servers of a group take the writes from each other: a server's cursor means nothing to the next.

use crate::world::{World, redis, snapshot};
use cashew_config::Snapshot;
use cashew_config::snapshot::{Endpoint, Promoted, TopologyState};
use cashew_engine::{BackendId, CloseReason, ConnId};

/// `s1` is a group of three, by the order of names 1, 2 and 3 of the servers, beside which another may stand.
fn grouped(alone: bool, options: &str) -> Snapshot {
    let alone = if alone { "    - 127.0.0.1:7000:1 s0\n" } else { "" };
    snapshot(&format!(
        "pools:\n  p:\n    listen: 127.0.0.1:6000\n    redis: true\n    preconnect: true\n\
         \x20   pipeline_start: 0\n    hide_topology: true\n    distribution: modula\n{options}\
         \x20   servers:\n{alone}\
         \x20   - {{name: s1, primary: 127.0.0.1:7001, replicas: [127.0.0.1:7002, 127.0.0.1:7003]}}\n"
    ))
}

fn reign(world: &mut World, version: u64, (shard, server): (u32, Option<u32>), servers: usize) {
    let topology = TopologyState {
        primaries: server.map(|server| Promoted { shard, server }).into_iter().collect(),
        reigns: vec![(shard, version as u32)],
        ..vec![true; servers].into()
    };
    world.engine.handle_hold(BackendId::new(0), version, 100, world.now);
    world.tick();
    world.engine.handle_release(BackendId::new(0), version, topology, world.now, 0);
    world.tick();
}

/// Sends a SCAN, which `lane` gets with the cursor `inner`; it answers with `next`. Returns the client's.
#[track_caller]
fn scan(
    world: &mut World,
    client: ConnId,
    cursor: &str,
    (lane, inner, next): (ConnId, u32, u32),
) -> String {
    world.send(client, redis(&format!("SCAN {cursor} COUNT 9")));
    world.expect(lane, redis(&format!("SCAN {inner} COUNT 9")));
    answer(world, client, lane, next)
}

#[track_caller]
fn answer(world: &mut World, client: ConnId, lane: ConnId, next: u32) -> String {
    let next = next.to_string();
    world.send(lane, format!("*2\r\n${}\r\n{next}\r\n*1\r\n$1\r\nx\r\n", next.len()));
    let reply = String::from_utf8(world.received(client)).unwrap();
    let parts: Vec<&str> = reply.split("\r\n").collect();
    assert!(parts[0] == "*2" && reply.ends_with("\r\n*1\r\n$1\r\nx\r\n"), "{reply}");
    parts[2].to_owned()
}

#[test]
fn a_shard_is_walked_anew_at_its_next_primary() {
    let (mut world, client, lanes): (World, ConnId, [ConnId; 4]) =
        World::with_client(&grouped(true, ""));
    let first = scan(&mut world, client, "0", (lanes[0], 0, 7));
    let second = scan(&mut world, client, &first, (lanes[0], 7, 0));
    let third = scan(&mut world, client, &second, (lanes[1], 0, 5));
    reign(&mut world, 1, (1, Some(2)), 4);
    // The other shard's cursors are as good as before.
    scan(&mut world, client, &first, (lanes[0], 7, 8));
    let fourth = scan(&mut world, client, &third, (lanes[2], 0, 9));
    // The first primary is back, perhaps with another seed.
    reign(&mut world, 2, (1, None), 4);
    for cursor in [&third, &fourth] {
        let next = scan(&mut world, client, cursor, (lanes[1], 0, 6));
        assert_eq!(scan(&mut world, client, &next, (lanes[1], 6, 0)), "0");
    }
    world.assert_idle();
}

#[test]
fn the_only_group_is_walked_anew_at_its_next_primary() {
    let (mut world, client, lanes): (World, ConnId, [ConnId; 3]) =
        World::with_client(&grouped(false, ""));
    let first = scan(&mut world, client, "0", (lanes[0], 0, 7));
    let second = scan(&mut world, client, &first, (lanes[0], 7, 5));
    reign(&mut world, 1, (0, Some(1)), 3);
    let third = scan(&mut world, client, &second, (lanes[1], 0, 5));
    assert_eq!(scan(&mut world, client, &third, (lanes[1], 5, 0)), "0");
    // What is no cursor of the gateway's is refused.
    world.send(client, redis("SCAN 7") + &redis("SCAN x"));
    let reply = String::from_utf8(world.received(client)).unwrap();
    assert!(reply.starts_with("-ERR invalid cursor: the servers of this pool"), "{reply}");
    assert!(reply.ends_with("-ERR invalid cursor\r\n"), "{reply}");
    // Within an EXEC nobody reads cursors.
    world.send(client, redis("MULTI") + &redis("SCAN 0") + &redis("EXEC"));
    let reply = String::from_utf8(world.received(client)).unwrap();
    assert!(reply.starts_with("+OK\r\n-ERR SCAN in a transaction would have a cursor"), "{reply}");
    assert!(reply.contains("-EXECABORT"), "{reply}");
    world.assert_idle();
}

#[test]
fn a_page_that_waited_for_the_server_and_came_from_the_next_one_is_not_the_last() {
    let (mut world, client, [lane, next, _]): (World, ConnId, [ConnId; 3]) =
        World::with_client(&grouped(false, "    failover_wait: 2000\n"));
    let first = scan(&mut world, client, "0", (lane, 0, 7));
    world.close(lane, CloseReason::Reset);
    world.send(client, redis(&format!("SCAN {first} COUNT 9")));
    world.expect(client, "");
    reign(&mut world, 1, (0, Some(1)), 3);
    // It waited, and is sent as it is: only its reply is not the last.
    world.expect(next, redis("SCAN 7 COUNT 9"));
    let second = answer(&mut world, client, next, 0);
    assert_ne!(second, "0");
    let third = scan(&mut world, client, &second, (next, 0, 3));
    assert_eq!(scan(&mut world, client, &third, (next, 3, 0)), "0");
}

#[test]
fn a_shard_whose_primary_sentinels_have_moved_is_walked_anew() {
    for alone in [true, false] {
        let line = if alone { "   - 127.0.0.1:7000:1 s0\n" } else { "" };
        let mut before = snapshot(&format!(
            "p:\n  listen: 127.0.0.1:6000\n  redis: true\n  preconnect: true\n  pipeline_start: 0\n\
             \x20 sentinels: [127.0.0.1:1, 127.0.0.1:2]\n  servers:\n{line}   - {{name: s1, sentinel: m}}\n"
        ));
        let at = usize::from(alone);
        let to = |snapshot: &mut Snapshot, port| {
            let endpoint = Endpoint::Tcp { host: "127.0.0.1".to_owned(), port };
            snapshot.set_primary("p", "s1", &endpoint.address().unwrap(), None);
        };
        to(&mut before, 7001);
        let mut world = World::new(&before);
        let lanes: Vec<ConnId> = (0..=at as u32).map(|server| world.accept(server)).collect();
        let client = world.client();
        let mut cursor = "0".to_owned();
        if alone {
            cursor = scan(&mut world, client, &cursor, (lanes[0], 0, 0));
        }
        cursor = scan(&mut world, client, &cursor, (lanes[at], 0, 7));
        let mut next = before;
        next.epoch += 1;
        to(&mut next, 7002);
        world.prepare(&next);
        let lane = world.accept(at as u32);
        world.pause(50);
        world.epoch_answers();
        world.commit(&next);
        let next = scan(&mut world, client, &cursor, (lane, 0, 7));
        assert_eq!(scan(&mut world, client, &next, (lane, 7, 0)), "0");
    }
}
