//! Large requests, which stay in the buffer that they came in.

use std::io::IoSlice;

use crate::world::{World, pool, redis};
use cashew_engine::ConnId;

/// Capacity of the buffers of these tests.
const CAPACITY: usize = 64 * 1024;

fn set(value: usize) -> Vec<u8> {
    format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${value}\r\n{}\r\n", "v".repeat(value)).into_bytes()
}

fn memcached_set(value: usize) -> Vec<u8> {
    format!("set k 0 0 {value}\r\n{}\r\n", "v".repeat(value)).into_bytes()
}

/// A client and the lane to the only server, with nothing on their way.
fn world(options: &str) -> (World, ConnId, ConnId) {
    let (world, client, [lane]) =
        World::with_client(&pool(&format!("{options}\npreconnect: true"), 1));
    (world, client, lane)
}

/// The bytes arrive in a buffer of that capacity. Returns where it lies, and what is left of it.
fn receive(
    world: &mut World,
    client: ConnId,
    bytes: &[u8],
    capacity: usize,
) -> (*const u8, Vec<u8>) {
    let mut buffer = Vec::with_capacity(capacity);
    buffer.extend_from_slice(bytes);
    let place = buffer.as_ptr();
    world.engine.handle_received_buffer(client, &mut buffer, world.now);
    (place, buffer)
}

/// Where the first bytes lie that the lane is to write.
fn first(world: &World, lane: ConnId) -> *const u8 {
    let mut slices = [IoSlice::new(&[]); 4];
    assert!(world.engine.output(lane, &mut slices) > 0, "there is nothing to write");
    slices[0].as_ptr()
}

#[test]
fn a_request_that_fills_half_of_a_buffer_is_not_copied() {
    for (options, request, reply) in
        [("redis: true", set(40_000), "+OK\r\n"), ("", memcached_set(40_000), "STORED\r\n")]
    {
        let (mut world, client, lane) = world(options);
        let (place, left) = receive(&mut world, client, &request, CAPACITY);
        assert_eq!(left.capacity(), 0, "{options}: the buffer is taken");
        assert_eq!(first(&world, lane), place, "{options}");
        world.tick();
        world.expect(lane, &request);
        world.send(lane, reply);
        world.expect(client, reply);
        world.assert_idle();
    }
}

#[test]
fn the_rest_of_a_request_joins_its_beginning() {
    for (options, request) in [("redis: true", set(60_000)), ("", memcached_set(60_000))] {
        let (mut world, client, lane) = world(options);
        let (place, left) = receive(&mut world, client, &request[..40_000], CAPACITY);
        assert_eq!(left.capacity(), 0, "{options}: the buffer is taken");
        let (_, left) = receive(&mut world, client, &request[40_000..], CAPACITY);
        assert_eq!(left.capacity(), CAPACITY, "{options}: little is copied");
        assert_eq!(first(&world, lane), place, "{options}");
        world.tick();
        world.expect(lane, &request);
    }
}

/// To keep it would hold the memory of several such requests.
#[test]
fn of_a_large_buffer_a_small_part_is_copied() {
    let (mut world, client, lane) = world("redis: true");
    let request = set(20_000);
    let (place, left) = receive(&mut world, client, &request, CAPACITY);
    assert_eq!(left.capacity(), CAPACITY, "the buffer stays with the driver");
    assert_ne!(first(&world, lane), place);
    world.tick();
    world.expect(lane, &request);
}

#[test]
fn what_follows_a_large_request_comes_behind_it() {
    let (mut world, client, lane) = world("redis: true");
    let get = redis("GET a");
    let (half, rest) = get.split_at(10);
    let bytes = [&set(40_000), get.as_bytes(), &set(100), half.as_bytes()].concat();
    receive(&mut world, client, &bytes, CAPACITY);
    world.tick();
    let whole = bytes.len() - half.len();
    world.expect(lane, &bytes[..whole]);
    let held = world.engine.held_bytes();
    assert!(held <= 4096, "{held} bytes are held for half of a request of {}", get.len());
    world.send(client, rest);
    world.expect(lane, &get);
    world.send(lane, "+OK\r\n$1\r\n1\r\n+OK\r\n$1\r\n2\r\n");
    world.expect(client, "+OK\r\n$1\r\n1\r\n+OK\r\n$1\r\n2\r\n");
    world.assert_idle();
}

/// Requests that do not go the shortest way fill a buffer, the last of them in part.
#[test]
fn who_sent_much_and_half_a_request_holds_little() {
    let (mut world, client, lane) = world("redis: true");
    let many = redis(&format!("DEL a {}", "b".repeat(200))).repeat(200);
    let (most, rest) = many.split_at(many.len() - 10);
    let (_, left) = receive(&mut world, client, most.as_bytes(), CAPACITY);
    assert_eq!(left.capacity(), 0, "the buffer is taken");
    world.tick();
    let mut sent = world.received(lane);
    world.send(lane, ":2\r\n".repeat(199));
    assert!(world.received(client) == ":2\r\n".repeat(199).into_bytes());
    let held = world.engine.held_bytes();
    assert!(held <= 4096, "{held} bytes are held for half of a request");
    world.send(client, rest);
    sent.extend(world.received(lane));
    assert!(sent == many.as_bytes());
}

/// Large requests in one buffer are copied rather than cut out of it one by one.
#[test]
fn large_requests_of_one_read_are_all_there() {
    let (mut world, client, lane) = world("redis: true");
    let requests = set(20_000).repeat(3);
    let (_, left) = receive(&mut world, client, &requests, CAPACITY);
    assert_eq!(left.capacity(), 0, "the buffer is taken");
    let held = world.engine.held_bytes();
    assert!(held <= 3 * CAPACITY, "{held} bytes are held for {}", requests.len());
    world.tick();
    assert!(world.received(lane) == requests);
    world.send(lane, "+OK\r\n".repeat(3));
    world.expect(client, "+OK\r\n".repeat(3));
    world.assert_idle();
}

/// A request to be passed on while it arrives, in which something follows that is no argument: the
/// connection is closed, and as the client wants no replies it is gone at once.
const BROKEN: &str = "*300000\r\n$5\r\nRPUSH\r\n$1\r\nk\r\n";

fn broken() -> Vec<u8> {
    let arguments = "$1\r\nv\r\n".repeat(40_000);
    [BROKEN.as_bytes(), arguments.as_bytes(), &[b'x'; 40_000]].concat()
}

fn silent_world() -> (World, ConnId) {
    let (mut world, client, _) = world("redis: true");
    world.send(client, redis("CLIENT REPLY OFF"));
    (world, client)
}

#[test]
fn who_breaks_the_protocol_in_one_read_and_hears_nothing_is_closed() {
    let (mut world, client) = silent_world();
    receive(&mut world, client, &broken(), 8 * CAPACITY);
    world.tick();
    assert!(world.closed.contains(&client));
    world.assert_idle();
}

#[test]
fn who_breaks_the_protocol_in_two_reads_and_hears_nothing_is_closed() {
    for at in [1, 100, 20_000, 270_000, 300_000] {
        let (mut world, client) = silent_world();
        let bytes = broken();
        world.send(client, &bytes[..at]);
        world.send(client, &bytes[at..]);
        assert!(world.closed.contains(&client), "{at}");
        world.assert_idle();
    }
}

#[test]
fn who_breaks_the_protocol_after_a_wait_and_hears_nothing_is_closed() {
    let (mut world, client, lane) = world("redis: true");
    world.send(client, redis("CLIENT REPLY OFF"));
    world.send(client, redis("GET a"));
    receive(&mut world, client, &broken(), 8 * CAPACITY);
    world.tick();
    world.expect(lane, redis("GET a"));
    assert!(!world.closed.contains(&client), "an upload waits until its client is owed nothing");
    world.send(lane, "$-1\r\n");
    assert!(world.closed.contains(&client));
    world.assert_idle();
}
