//! When a server that failed is tried again: for requests, for messages, and how often at most.

use std::sync::Arc;

use crate::world::{World, pool, redis};
use cashew_config::Snapshot;
use cashew_engine::{Action, CloseReason, ConnId};
use cashew_metrics::{Layout, Segments, ServerGauge};

const REFUSED: &str = "-ERR Connection refused\r\n";
const SILENT: &str = "-ERR Server does not answer\r\n";
const ONE: &str = "$1\r\n1\r\n";
const PLAIN: &str = "redis: true\ntimeout: 2000\npreconnect: true";

/// A server that was well for a while is killed; it refuses connections, and its lane backs off as long as
/// it ever does.
fn killed(snapshot: &Snapshot) -> (World, ConnId) {
    let (mut world, [lane]) = World::connected(snapshot);
    world.wait_ms(2000);
    world.close(lane, CloseReason::Reset);
    for _ in 0..8 {
        refuse_all(&mut world);
        world.wait_ms(1000);
    }
    refuse_all(&mut world);
    world.wait_ms(100);
    assert!(!world.connects_to(0), "it backs off for half a second at least");
    let client = world.client();
    (world, client)
}

fn refuse_all(world: &mut World) -> usize {
    let mut refused = 0;
    while world.connects_to(0) {
        world.refuse(0);
        refused += 1;
    }
    refused
}

/// Accepts a connection and answers the question that it begins with.
fn come_back(world: &mut World) -> ConnId {
    let lane = world.accept(0);
    assert!(world.received(lane).starts_with(redis("PING").as_bytes()));
    world.send(lane, "+PONG\r\n");
    lane
}

fn ejections(world: &World) -> usize {
    world.actions.iter().filter(|action| matches!(action, Action::Eject { .. })).count()
}

#[test]
fn a_request_tries_the_server_again_and_waits_for_it() {
    let (mut world, client) = killed(&pool(PLAIN, 1));
    world.send(client, redis("GET a"));
    world.expect(client, "");
    let lane = come_back(&mut world);
    world.expect(lane, redis("GET a"));
    world.send(lane, ONE);
    world.expect(client, ONE);
    world.assert_idle();
}

#[test]
fn a_refusal_fails_all_who_wait_and_who_comes_within_25_ms() {
    let (mut world, client) = killed(&pool(PLAIN, 1));
    let others: Vec<ConnId> = (0..50).map(|_| world.client()).collect();
    for &other in &others {
        world.send(other, redis("GET a"));
    }
    world.wait_ms(3);
    assert_eq!(refuse_all(&mut world), 1, "one attempt for all");
    for &other in &others {
        world.expect(other, REFUSED);
    }
    world.wait_ms(21);
    world.send(client, redis("GET a"));
    world.expect(client, REFUSED);
    world.wait_ms(1);
    world.send(client, redis("GET a"));
    world.expect(client, "");
    world.refuse(0);
    world.expect(client, REFUSED);
    world.assert_idle();
}

#[test]
fn under_load_a_dead_server_is_tried_forty_times_a_second_over_all_lanes_and_workers() {
    let snapshot = pool("redis: true\ntimeout: 2000\nserver_connections: 6\npreconnect: true", 1);
    let segments = Arc::new(Segments::in_memory(&Layout::new(&snapshot), 3));
    let mut workers: Vec<World> =
        (0..3).map(|slot| World::of_worker(&snapshot, &segments, slot, 3)).collect();
    let mut clients = Vec::new();
    for world in &mut workers {
        assert_eq!(refuse_all(world), 2, "lanes of each worker");
        clients.push([(); 8].map(|()| world.client()));
    }
    let mut begun = Vec::new();
    for _ in 0..10_000 {
        let mut count = 0;
        for (world, clients) in workers.iter_mut().zip(&clients) {
            for &client in clients {
                world.send(client, redis("GET a"));
                count += refuse_all(world);
                world.expect(client, REFUSED);
            }
            world.wait_ms(1);
            count += refuse_all(world);
        }
        begun.push(count);
    }
    // Each lane's own backoff comes on top, as without requests: two attempts in a second at most.
    let by_second: Vec<usize> = begun.chunks(1000).map(|chunk| chunk.iter().sum()).collect();
    assert!(
        by_second[2..].iter().all(|&count| (30..=40 + 6 * 2).contains(&count)),
        "{by_second:?}"
    );
    // When one has reached it all others go there as soon as they are asked to.
    while !workers[0].connects_to(0) {
        for world in &mut workers {
            refuse_all(world);
            world.wait_ms(1);
        }
        workers[0].send(clients[0][0], redis("GET a"));
    }
    let lane = workers[0].accept(0);
    if !workers[0].received(lane).is_empty() {
        workers[0].send(lane, "+PONG\r\n");
    }
    workers.iter_mut().for_each(|world| world.wait_ms(25));
    for (world, clients) in workers.iter_mut().zip(&clients).skip(1) {
        for &client in clients {
            world.send(client, redis("GET a"));
            world.expect(client, "");
        }
        assert_eq!(world.connecting[&0].len(), 2, "lanes of each worker");
    }
}

#[test]
fn a_host_that_does_not_answer_holds_requests_up_once_and_not_for_long() {
    for (timeout, wait) in [("timeout: 400", 100), ("", 250)] {
        let options = format!("redis: true\npreconnect: true\n{timeout}");
        let (mut world, client) = killed(&pool(&options, 1));
        world.send(client, redis("GET a"));
        world.wait_ms(wait - 1);
        world.expect(client, "");
        world.wait_ms(1);
        world.expect(client, SILENT);
        // Nobody waits from then on, though it is tried again and again.
        let mut dials = 0;
        for _ in 0..3000 {
            dials += usize::from(world.connects_to(0));
            world.connecting.clear();
            world.send(client, redis("GET a"));
            world.expect(client, SILENT);
            world.wait_ms(1);
        }
        assert!((9..=12).contains(&dials), "in three seconds: {dials}");
        // Whenever it is back, it is seen within 300 ms.
        let begin = world.now;
        while !world.connects_to(0) {
            world.wait_ms(1);
        }
        assert!(world.now.micros_since(begin) <= 300_000);
        let lane = world.accept(0);
        world.expect(lane, redis("PING"));
        world.send(lane, "+PONG\r\n");
        world.send(client, redis("GET a"));
        world.expect(lane, redis("GET a"));
    }
}

#[test]
fn a_far_host_is_given_the_time_that_its_connections_take() {
    let (mut world, [lane]) =
        World::connected(&pool("redis: true\ntimeout: 2000\npreconnect: true", 1));
    world.wait_ms(2000);
    world.close(lane, CloseReason::Reset);
    // It takes 200 ms to get there.
    world.wait_ms(200);
    let lane = world.accept(0);
    world.wait_ms(2000);
    let client = world.client();
    world.send(client, redis("GET a"));
    world.received(lane);
    world.wait_ms(2000);
    // It is silent, and a connection stands only after three quarters of a second.
    world.wait_ms(1000);
    world.received(client);
    let server = world.metrics.server(0, 0);
    assert_eq!(world.metrics.server_gauge(server, ServerGauge::Silent), 1);
    for _ in 0..10 {
        if world.connects_to(0) {
            let dial = world.connecting[&0][0];
            world.wait_ms(700);
            if world.connecting[&0].contains(&dial) {
                let lane = world.accept(0);
                world.send(lane, "+PONG\r\n");
                break;
            }
        }
        world.wait_ms(50);
    }
    assert_eq!(world.metrics.server_gauge(server, ServerGauge::Silent), 0);
}

#[test]
fn early_attempts_do_not_hasten_an_ejection() {
    let run = |is_asked: bool| {
        let options =
            "auto_eject_hosts: true\nserver_failure_limit: 9\npreconnect: true\nredis: true";
        let mut world = World::new(&pool(options, 2));
        let client = world.client();
        let begin = world.now;
        let mut refused = 0;
        while ejections(&world) == 0 {
            refused += refuse_all(&mut world);
            if is_asked {
                world.send(client, redis("GET a"));
                refused += refuse_all(&mut world);
                world.expect(client, REFUSED);
            }
            world.wait_ms(1);
        }
        (world.now.micros_since(begin) / 1000, refused)
    };
    let (alone, few) = run(false);
    let (asked, many) = run(true);
    assert_eq!(few, 9);
    assert!(many > few + 20, "{many}");
    // The sum of eight backoffs, each by chance half of what it may be to all.
    for took in [alone, asked] {
        assert!((1100..=2300).contains(&took), "{alone} {asked}");
    }
}

#[test]
fn who_leases_a_connection_tries_again_as_well() {
    let (mut world, client) = killed(&pool(&format!("{PLAIN}\nsession_connections: 1"), 1));
    for request in ["WATCH a", "BLPOP a 1"] {
        // Its backoff becomes long.
        for _ in 0..8 {
            let client = world.client();
            world.send(client, redis(request));
            refuse_all(&mut world);
            world.expect(client, REFUSED);
            world.wait_ms(1000);
        }
        refuse_all(&mut world);
        world.wait_ms(25);
        refuse_all(&mut world);
        let [waits, late] = [world.client(), world.client()];
        world.send(waits, redis(request));
        world.expect(waits, "");
        assert_eq!(refuse_all(&mut world), 1);
        world.expect(waits, REFUSED);
        world.send(late, redis(request));
        world.expect(late, REFUSED);
        world.wait_ms(25);
    }
    world.send(client, redis("WATCH a"));
    let lease = world.accept(0);
    world.expect(lease, redis("WATCH a"));
    world.send(lease, "+OK\r\n");
    world.expect(client, "+OK\r\n");
}

#[test]
fn subscriptions_are_made_again_soon_after_the_server_is_back() {
    let (mut world, client) = killed(&pool(PLAIN, 1));
    world.send(client, redis("SUBSCRIBE news"));
    let feed = world.accept(0);
    world.send(feed, "*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
    assert!(world.received(client).starts_with(b"*3\r\n$9\r\nsubscribe"));
    refuse_all(&mut world);
    world.wait_ms(2000);
    world.close(feed, CloseReason::Reset);
    let mut refused = 0;
    for _ in 0..5000 {
        refused += refuse_all(&mut world);
        world.wait_ms(1);
    }
    assert!((100..=5 * 50).contains(&refused), "in five seconds: {refused}");
    let begin = world.now;
    while !world.connects_to(0) {
        world.wait_ms(1);
    }
    assert!(world.now.micros_since(begin) <= 65_000);
}

#[test]
fn what_will_not_pass_by_itself_is_not_tried_more_often() {
    let options = "redis: true\npreconnect: true\nredis_auth: secret";
    let (mut world, [lane]) = World::connected(&pool(options, 1));
    world.send(lane, "-WRONGPASS no\r\n");
    let client = world.client();
    world.send(client, redis("AUTH secret"));
    world.received(client);
    let mut tries = 0;
    for _ in 0..10_000 {
        while world.connects_to(0) {
            tries += 1;
            let lane = world.accept(0);
            world.send(lane, "-WRONGPASS no\r\n");
        }
        world.send(client, redis("GET a"));
        world.wait_ms(1);
        while world.connects_to(0) {
            tries += 1;
            let lane = world.accept(0);
            world.send(lane, "-WRONGPASS no\r\n");
        }
        world.expect(client, "-ERR Server refused AUTH or SELECT\r\n");
    }
    assert!((10..=30).contains(&tries), "in ten seconds: {tries}");
}
