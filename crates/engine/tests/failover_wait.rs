//! Requests that were not sent wait for a server that cannot be reached, where `failover_wait` lets them.

use crate::world::{World, pool, redis};
use cashew_config::Snapshot;
use cashew_config::snapshot::Endpoint;
use cashew_engine::{CloseReason, ConnId};

const REFUSED: &str = "-ERR Connection refused\r\n";

fn waiting(options: &str, servers: usize) -> Snapshot {
    pool(&format!("redis: true\npreconnect: true\nfailover_wait: 1000\n{options}"), servers)
}

/// Refuses each attempt to connect to a server for so long.
fn refuse_for(world: &mut World, server: u32, millis: u64) {
    for _ in 0..millis / 5 {
        while world.connects_to(server) {
            world.refuse(server);
        }
        world.wait_ms(5);
    }
}

#[test]
fn what_was_not_sent_waits_until_the_server_is_back_in_the_order_of_each_client() {
    let (mut world, client, [lane]): (World, ConnId, [ConnId; 1]) =
        World::with_client(&waiting("", 1));
    world.send(client, redis("SET a 1"));
    world.received(lane);
    world.close(lane, CloseReason::Reset);
    // What was sent may have run.
    world.expect(client, "-ERR Connection reset by peer\r\n");
    let requests = redis("SET a 2") + &redis("GET a") + &redis("INCR b");
    world.send(client, &requests);
    refuse_for(&mut world, 0, 300);
    // Some more come while the server is known to be gone.
    world.send(client, redis("GET b"));
    refuse_for(&mut world, 0, 300);
    world.expect(client, "");
    world.wait_ms(50);
    let lane = world.accept(0);
    world.send(lane, "+PONG\r\n");
    let sent = String::from_utf8(world.received(lane)).unwrap();
    assert!(sent.ends_with(&(requests + &redis("GET b"))), "{sent}");
    world.send(lane, "+OK\r\n$1\r\n2\r\n:1\r\n$1\r\n1\r\n");
    world.expect(client, "+OK\r\n$1\r\n2\r\n:1\r\n$1\r\n1\r\n");
}

#[test]
fn it_ends_with_the_reason_when_the_time_is_up_and_not_before() {
    for (options, longest) in [("", 1000), ("timeout: 400", 400)] {
        let (mut world, client, [lane]): (World, ConnId, [ConnId; 1]) =
            World::with_client(&waiting(options, 1));
        world.close(lane, CloseReason::Reset);
        world.send(client, redis("GET a"));
        refuse_for(&mut world, 0, longest - 50);
        world.expect(client, "");
        refuse_for(&mut world, 0, 100);
        world.expect(client, REFUSED);
        // Each has its own time.
        world.send(client, redis("GET a"));
        refuse_for(&mut world, 0, longest / 2);
        let other = world.client();
        world.send(other, redis("GET a"));
        refuse_for(&mut world, 0, longest / 2 + 50);
        world.expect(client, REFUSED);
        world.expect(other, "");
        refuse_for(&mut world, 0, longest / 2);
        world.expect(other, REFUSED);
        world.assert_idle();
    }
}

#[test]
fn what_waits_goes_to_the_server_that_takes_the_place() {
    let snapshot = waiting("", 2);
    let (mut world, client, [_, b]): (World, ConnId, [ConnId; 2]) = World::with_client(&snapshot);
    world.send(client, redis("INCR b"));
    world.received(b);
    world.close(b, CloseReason::Eof);
    world.expect(client, "-ERR Server closed the connection\r\n");
    world.send(client, redis("SET b 1") + &redis("GET b"));
    refuse_for(&mut world, 1, 200);
    world.send(client, redis("INCR b"));
    let mut next = snapshot;
    next.epoch += 1;
    next.pools[0].servers[1].endpoint = Endpoint::Tcp { host: "127.0.0.1".to_owned(), port: 7009 };
    world.prepare(&next);
    let lane = world.accept(1);
    world.pause(50);
    // Nothing is waited for that has no prospects.
    assert_eq!(world.epoch_answers().len(), 2);
    world.commit(&next);
    world.expect(lane, redis("SET b 1") + &redis("GET b") + &redis("INCR b"));
    world.send(lane, "+OK\r\n$1\r\n1\r\n:2\r\n");
    world.expect(client, "+OK\r\n$1\r\n1\r\n:2\r\n");
    world.assert_idle();
}

#[test]
fn off_means_that_what_cannot_be_sent_fails_at_once() {
    let (mut world, client, [lane]): (World, ConnId, [ConnId; 1]) =
        World::with_client(&pool("redis: true\npreconnect: true", 1));
    world.close(lane, CloseReason::Reset);
    world.send(client, redis("GET a"));
    world.expect(client, "-ERR Connection reset by peer\r\n");
}

#[test]
fn those_that_wait_count_against_the_limit_of_the_queue() {
    let (mut world, client, [lane]): (World, ConnId, [ConnId; 1]) =
        World::with_client(&waiting("server_queue_max: 2", 1));
    world.close(lane, CloseReason::Reset);
    world.send(client, redis("GET a").repeat(3));
    refuse_for(&mut world, 0, 1100);
    let said = String::from_utf8(world.received(client)).unwrap();
    assert_eq!(said, REFUSED.repeat(2) + "-ERR Server queue is full\r\n");
}

/// The server is back: what it is asked by the first connection on which that is a request.
fn come_back(world: &mut World) -> (ConnId, Vec<u8>) {
    for _ in 0..20 {
        while world.connects_to(0) {
            let lane = world.accept(0);
            let mut asked = world.received(lane);
            if asked.starts_with(redis("PING").as_bytes()) {
                world.send(lane, "+PONG\r\n");
                asked = world.received(lane);
            }
            if !asked.is_empty() {
                return (lane, asked);
            }
        }
        world.wait_ms(10);
    }
    panic!("nobody asks for anything");
}

#[test]
fn a_read_of_a_large_value_waits_on_the_lane_of_all_large_ones() {
    let (mut world, client, [lane]): (World, ConnId, [ConnId; 1]) =
        World::with_client(&waiting("", 1));
    let big = format!("$300000\r\n{}\r\n", "x".repeat(300_000));
    world.send(client, redis("GET big"));
    world.received(lane);
    big.as_bytes().chunks(65_536).for_each(|piece| world.send(lane, piece));
    assert!(world.received(client) == big.as_bytes());
    let shared = world.accept(0);
    for lane in [lane, shared] {
        world.close(lane, CloseReason::Reset);
    }
    world.send(client, redis("GET big") + &redis("GET small"));
    refuse_for(&mut world, 0, 400);
    world.expect(client, "");
    let (lane, asked) = come_back(&mut world);
    assert_eq!(asked, redis("GET big").as_bytes());
    world.send(lane, "$1\r\nx\r\n");
    // What comes behind goes by the other.
    let (other, asked) = come_back(&mut world);
    assert_eq!(asked, redis("GET small").as_bytes());
    world.send(other, "$1\r\ny\r\n");
    world.expect(client, "$1\r\nx\r\n$1\r\ny\r\n");
}

#[test]
fn a_large_request_waits_whole() {
    for size in [300_000, 2_000_000] {
        let (mut world, client, [lane]): (World, ConnId, [ConnId; 1]) =
            World::with_client(&waiting("", 1));
        world.close(lane, CloseReason::Reset);
        let request = format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n${size}\r\n{}\r\n", "x".repeat(size));
        for piece in request.as_bytes().chunks(65_536) {
            world.send(client, piece);
            refuse_for(&mut world, 0, 5);
        }
        refuse_for(&mut world, 0, 100);
        world.expect(client, "");
        let (lane, asked) = come_back(&mut world);
        assert!(asked == request.as_bytes(), "{} bytes", asked.len());
        world.send(lane, "+OK\r\n");
        world.expect(client, "+OK\r\n");
    }
}

#[test]
fn nobody_waits_longer_for_a_connection_that_does_not_come_about() {
    let (mut world, client, [lane]): (World, ConnId, [ConnId; 1]) =
        World::with_client(&waiting("", 1));
    world.close(lane, CloseReason::Reset);
    for _ in 0..3 {
        world.send(client, redis("GET a"));
        world.wait_ms(980);
        world.expect(client, "");
        world.wait_ms(40);
        let said = String::from_utf8(world.received(client)).unwrap();
        assert!(said.starts_with("-ERR "), "{said}");
        world.wait_ms(130);
    }
}

/// Requests that want a connection for their client alone, and the first that is sent of each.
const EXCLUSIVE: [(&str, &str); 2] = [("BLPOP a 0", "BLPOP a 0"), ("WATCH a", "WATCH a")];

#[test]
fn who_wants_a_connection_to_itself_waits_until_the_server_is_back() {
    for (request, sent) in EXCLUSIVE {
        let (mut world, client, [lane]): (World, ConnId, [ConnId; 1]) =
            World::with_client(&waiting("", 1));
        world.close(lane, CloseReason::Reset);
        let others: Vec<ConnId> = (0..3).map(|_| world.client()).collect();
        world.send(client, redis(request));
        others.iter().for_each(|&other| world.send(other, redis(request)));
        refuse_for(&mut world, 0, 600);
        world.expect(client, "");
        let mut found = String::new();
        for _ in 0..40 {
            while world.connects_to(0) {
                let lane = world.accept(0);
                world.send(lane, "+PONG\r\n".repeat(usize::from(found.is_empty())));
                found += &String::from_utf8(world.received(lane)).unwrap();
            }
            world.wait_ms(5);
            for lane in world.lanes[&0].clone() {
                found += &String::from_utf8(world.received(lane)).unwrap();
            }
        }
        assert_eq!(found.matches(&redis(sent)).count(), 4, "{found}");
        world.expect(client, "");
    }
}

#[test]
fn who_wants_a_connection_to_itself_does_not_wait_longer_than_it_may() {
    for (options, longest) in [("", 1000), ("timeout: 400", 400)] {
        for (request, _) in EXCLUSIVE {
            let (mut world, client, [lane]): (World, ConnId, [ConnId; 1]) =
                World::with_client(&waiting(options, 1));
            world.close(lane, CloseReason::Reset);
            world.send(client, redis(request));
            refuse_for(&mut world, 0, longest - 50);
            world.expect(client, "");
            refuse_for(&mut world, 0, 100);
            world.expect(client, REFUSED);
            // Who goes meanwhile is waited for by nobody.
            let other = world.client();
            world.send(other, redis(request));
            refuse_for(&mut world, 0, longest / 2);
            world.close(other, CloseReason::Eof);
            refuse_for(&mut world, 0, longest);
            world.close(client, CloseReason::Eof);
            world.assert_idle();
        }
    }
}

#[test]
fn without_failover_wait_nobody_waits_for_a_connection_to_itself() {
    for (request, _) in EXCLUSIVE {
        let snapshot = pool("redis: true\npreconnect: true", 1);
        let (mut world, client, [lane]): (World, ConnId, [ConnId; 1]) =
            World::with_client(&snapshot);
        world.close(lane, CloseReason::Reset);
        world.send(client, redis(request));
        while world.connects_to(0) {
            world.refuse(0);
        }
        world.expect(client, REFUSED);
        world.close(client, CloseReason::Eof);
        world.assert_idle();
    }
}

/// They look again one by one, not all of them each time.
#[test]
fn thousands_who_want_connections_to_themselves_look_seldom_while_they_wait() {
    let (mut world, client, [lane]): (World, ConnId, [ConnId; 1]) =
        World::with_client(&waiting("", 1));
    world.close(lane, CloseReason::Reset);
    let clients: Vec<ConnId> = (0..1000).map(|_| world.client()).chain([client]).collect();
    for &client in &clients {
        world.send(client, redis("BLPOP a 0"));
    }
    refuse_for(&mut world, 0, 900);
    assert!(
        (20..=60).contains(&world.engine.looks_of_lines()),
        "{}",
        world.engine.looks_of_lines()
    );
    refuse_for(&mut world, 0, 200);
    // Each has been told once.
    assert!(world.engine.looks_of_lines() <= 1100, "{}", world.engine.looks_of_lines());
    clients.into_iter().for_each(|client| world.expect(client, REFUSED));
}
