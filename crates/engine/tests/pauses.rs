//! Clients that must wait in the middle of a request.

mod world;

use world::{World, pool};

/// The pool is held between two pieces of a request; then another client comes.
fn hold_within_a_request(options: &str, pieces: [&str; 3], other: &str) {
    let mut world = World::new(&pool(options, 1));
    let (one, two) = (world.client(), world.client());
    world.send(one, pieces[0]);
    world.engine.handle_hold(0, 1, world.now);
    world.send(one, pieces[1]);
    world.engine.handle_release(0, 1, &[true], world.now, 0);
    world.send(two, other);
    let lane = world.accept(0);
    world.expect(lane, other);
    world.send(one, pieces[2]);
    world.expect(lane, pieces.concat());
}

#[test]
fn a_redis_request_that_is_interrupted_does_not_spoil_another_clients() {
    let pieces = ["*2\r\n$3\r\nGET\r\n", "$5\r\nab", "cde\r\n"];
    let other = "*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$1\r\n1\r\n";
    hold_within_a_request("redis: true", pieces, other);
}

#[test]
fn a_memcached_request_that_is_interrupted_does_not_spoil_another_clients() {
    let pieces = ["set abc 0 0 5\r\n", "he", "llo\r\n"];
    hold_within_a_request("redis: false", pieces, "get x\r\n");
}
