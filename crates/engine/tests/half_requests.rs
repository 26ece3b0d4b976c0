//! Requests that are half there when their clients have to wait.

use crate::world::{World, pool};
use cashew_engine::BackendId;

/// `a` has sent half of a request when its pool is held; `b` goes on before it.
fn wait_with_half_a_request(options: &str, halves: [&str; 2], whole: &str, answer: &str) {
    let mut world = World::new(&pool(options, 1));
    let (a, b) = (world.client(), world.client());
    world.send(a, halves[0]);
    world.engine.handle_hold(BackendId::new(0), 1, 0, world.now);
    world.tick();
    world.send(b, whole);
    world.send(a, halves[1]);
    world.engine.handle_release(BackendId::new(0), 1, vec![true].into(), world.now, 1);
    world.tick();
    world.expect(b, answer);
    let lane = world.accept(0);
    world.expect(lane, halves.concat());
}

#[test]
fn a_redis_client_that_waits_keeps_its_half_request_to_itself() {
    let halves = ["*2\r\n$3\r\nGET\r\n$1\r\n", "a\r\n"];
    wait_with_half_a_request("redis: true", halves, "PING\r\n", "+PONG\r\n");
}

#[test]
fn a_memcached_client_that_waits_keeps_its_half_request_to_itself() {
    let halves = ["set a 0 0 3\r\nx", "yz\r\n"];
    wait_with_half_a_request("", halves, "nonsense\r\n", "ERROR\r\n");
}
