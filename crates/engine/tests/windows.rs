//! Pipelines of clients of which nobody knows how large the replies will be.

use crate::world::{World, pool, redis};
use cashew_engine::ConnId;
use cashew_metrics::PoolCounter;

const OPTIONS: &str = "redis: true\npreconnect: true\npipeline_start: 8";
const MISS: &str = "$-1\r\n";

fn get(number: usize) -> String {
    redis(&format!("GET key:{number:05}"))
}

fn value(size: usize) -> Vec<u8> {
    [format!("${size}\r\n").as_bytes(), &vec![b'v'; size], b"\r\n"].concat()
}

/// How many requests the server has received since it was last looked at.
fn asked(world: &mut World, lane: ConnId) -> usize {
    let received = world.received(lane);
    received.windows(3).filter(|&word| word == b"GET" || word == b"get").count()
}

/// A large reply comes in pieces.
fn send_large(world: &mut World, lane: ConnId, reply: &[u8]) {
    for piece in reply.chunks(65_536) {
        world.send(lane, piece);
    }
}

fn paused(world: &World) -> u64 {
    world.metrics.pool_counter(world.metrics.pool(0), PoolCounter::PipelinesPaused)
}

#[test]
fn a_pipeline_is_as_long_as_small_replies_have_shown_that_it_may_be() {
    let (mut world, client, [lane]) = World::with_client::<1>(&pool(OPTIONS, 1));
    world.send(client, (0..1000).map(get).collect::<String>());
    let mut before = 8;
    assert_eq!(asked(&mut world, lane), before);
    let mut answered = 0;
    // It doubles with each round.
    while answered + before < 1000 {
        world.send(lane, MISS.repeat(before));
        answered += before;
        let now = asked(&mut world, lane);
        assert_eq!(now, (2 * before).min(1000 - answered), "behind {answered}");
        before = now;
    }
    world.send(lane, MISS.repeat(before));
    world.expect(client, MISS.repeat(1000));
    // What it has shown it may do from then on.
    let count = paused(&world);
    world.send(client, (0..500).map(get).collect::<String>());
    assert_eq!(asked(&mut world, lane), 500);
    world.send(lane, MISS.repeat(500));
    world.expect(client, MISS.repeat(500));
    assert_eq!(paused(&world), count);
    world.assert_idle();
}

#[test]
fn memcached_is_no_different() {
    let options = "preconnect: true\npipeline_start: 8";
    let (mut world, client, [lane]) = World::with_client::<1>(&pool(options, 1));
    world.send(client, "mg a v\r\n".repeat(20));
    world.expect(lane, "mg a v\r\n".repeat(8));
    world.send(lane, "EN\r\n".repeat(8));
    world.expect(lane, "mg a v\r\n".repeat(12));
    world.send(lane, "EN\r\n".repeat(12));
    world.expect(client, "EN\r\n".repeat(20));
    // A large value: the next one is read alone.
    world.send(client, "mg a v\r\n".repeat(10));
    world.expect(lane, "mg a v\r\n".repeat(10));
    let large = [b"VA 300000\r\n", &vec![b'v'; 300_000][..], b"\r\n"].concat();
    send_large(&mut world, lane, &large);
    let shared = world.accept(0);
    world.send(lane, "EN\r\n".repeat(9));
    assert!(world.received(client) == [&large, "EN\r\n".repeat(9).as_bytes()].concat());
    world.send(client, "mg b v\r\nmg c v\r\n");
    world.expect(shared, "");
    world.expect(lane, "mg b v\r\n");
    world.send(lane, "EN\r\n");
    world.expect(shared, "mg c v\r\n");
}

#[test]
fn many_who_ask_at_once_have_one_each() {
    let (mut world, first, [lane]) = World::with_client::<1>(&pool(OPTIONS, 1));
    let clients: Vec<ConnId> =
        std::iter::once(first).chain((1..100).map(|_| world.client())).collect();
    for &client in &clients {
        world.send(client, (0..200).map(get).collect::<String>());
    }
    let count = asked(&mut world, lane);
    // Of 20,000: one each, and eight dealt out to those who came first.
    assert!((100..130).contains(&count), "{count}");
    assert_eq!(paused(&world), 100);
    // They learn one by one.
    world.send(lane, MISS.repeat(count));
    let next = asked(&mut world, lane);
    assert!((count..3 * count).contains(&next), "{next}");
}

#[test]
fn what_a_header_says_is_known_before_the_value_is_there() {
    let (mut world, client, [lane]) = World::with_client::<1>(&pool(OPTIONS, 1));
    world.send(client, (0..200).map(get).collect::<String>());
    assert_eq!(asked(&mut world, lane), 8);
    let large = value(1 << 20);
    world.send(lane, &large[..100]);
    // Others go by a new connection from here on.
    let shared = world.accept(0);
    let other = world.client();
    world.send(other, redis("GET small"));
    world.expect(shared, redis("GET small"));
    world.send(shared, MISS);
    world.expect(other, MISS);
    // One that the client has asked for already, and nothing more until all are answered.
    world.send(lane, &large[100..]);
    for _ in 1..8 {
        assert_eq!(asked(&mut world, lane) + asked(&mut world, shared), 0);
        world.send(lane, &large);
    }
    assert!(world.received(client) == large.repeat(8));
    // Then one value at a time, on a connection apart.
    for _ in 8..20 {
        assert_eq!((asked(&mut world, lane), asked(&mut world, shared)), (1, 0));
        world.send(lane, &large);
        assert!(world.received(client) == large);
    }
    // A small one shows that others may be small, too.
    assert_eq!((asked(&mut world, lane), asked(&mut world, shared)), (1, 0));
    world.send(lane, MISS);
    assert_eq!((asked(&mut world, lane), asked(&mut world, shared)), (0, 8));
    assert!(world.closed.is_empty());
}

#[test]
fn replies_of_middling_size_leave_room_for_as_many_as_may_wait() {
    let options = format!("{OPTIONS}\nclient_output_pause: 200kb");
    let (mut world, client, [lane]) = World::with_client::<1>(&pool(&options, 1));
    world.send(client, (0..50).map(get).collect::<String>());
    assert_eq!(asked(&mut world, lane), 8);
    let reply = value(50_000);
    world.send(lane, reply.repeat(8));
    let mut flight = asked(&mut world, lane);
    // Four fit.
    for _ in 0..20 {
        assert!((4..=5).contains(&flight), "{flight}");
        world.send(lane, &reply);
        flight = flight - 1 + asked(&mut world, lane);
    }
}

#[test]
fn who_wants_no_such_limit_has_none() {
    let options = "redis: true\npreconnect: true\npipeline_start: 0";
    let (mut world, client, [lane]) = World::with_client::<1>(&pool(options, 1));
    world.send(client, (0..1024).map(get).collect::<String>());
    assert_eq!(asked(&mut world, lane), 1024);
    assert_eq!(paused(&world), 0);
}

#[test]
fn no_more_values_are_read_on_the_lane_of_large_ones_than_may_be() {
    let (mut world, client, [lane]) = World::with_client::<1>(&pool(OPTIONS, 1));
    let large = value(300_000);
    world.send(client, redis("GET big"));
    world.received(lane);
    send_large(&mut world, lane, &large);
    let shared = world.accept(0);
    world.received(client);
    // Four have a connection of their own, sixteen share one, and the others wait.
    let clients: Vec<ConnId> = (0..40).map(|_| world.client()).collect();
    for &client in &clients {
        world.send(client, redis("GET big"));
    }
    let mut lanes = vec![lane];
    while world.connects_to(0) {
        lanes.push(world.accept(0));
    }
    assert_eq!(lanes.len(), 5);
    let asked: Vec<usize> = lanes.iter().map(|&lane| asked(&mut world, lane)).collect();
    let mut sorted = asked.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [1, 1, 1, 1, 16]);
    world.expect(shared, "");
    // Each that is read makes room for the next, and all get theirs.
    let mut owed = asked;
    while owed.iter().any(|&count| count > 0) {
        for (at, &lane) in lanes.iter().enumerate() {
            for _ in 0..std::mem::take(&mut owed[at]) {
                send_large(&mut world, lane, &large);
            }
        }
        for (at, &lane) in lanes.iter().enumerate() {
            owed[at] += self::asked(&mut world, lane);
        }
    }
    for &client in &clients {
        assert!(world.received(client) == large);
    }
    assert!(world.paused.is_empty());
    world.assert_idle();
}
