//! Users of low priority, who wait while others do.

use crate::world::{World, all, pool, redis};
use cashew_engine::ConnId;

const USERS: &str = "users: {ann: {rules: 'on >p ~* +@all', priority: low}, bob: on >p ~* +@all}";
/// As documented.
const LOW_IN_FLIGHT: usize = 8;

fn count(world: &mut World, lane: ConnId) -> usize {
    String::from_utf8(world.received(lane)).unwrap().matches("GET").count()
}

#[test]
fn who_waits_for_a_slow_server_is_there_though_it_asks_nothing() {
    let (mut world, [lane]) =
        World::connected(&pool(&format!("redis: true\npreconnect: true\n{USERS}"), 1));
    let [ann, other_ann, bob] = ["ann", "ann", "bob"].map(|user| {
        let client = world.client();
        world.send(client, redis(&format!("AUTH {user} p")));
        world.expect(client, "+OK\r\n");
        client
    });
    // Many who are owed nothing are nobody to wait for, nor is one's own user.
    let idle: Vec<ConnId> = (0..100).map(|_| world.client()).collect();
    world.wait_ms(300);
    world.send(other_ann, redis("GET o"));
    world.send(ann, redis("GET a").repeat(100));
    world.wait_ms(300);
    assert_eq!(count(&mut world, lane), 101);
    world.send(lane, "$-1\r\n".repeat(101));
    assert_eq!(world.received(ann).len(), 500);
    world.expect(other_ann, "$-1\r\n");
    // As long as somebody else waits.
    world.send(bob, redis("GET b"));
    world.expect(lane, redis("GET b"));
    world.wait_ms(300);
    world.send(ann, redis("GET a").repeat(100));
    world.wait_ms(300);
    assert_eq!(count(&mut world, lane), LOW_IN_FLIGHT);
    world.send(lane, "$-1\r\n");
    world.expect(bob, "$-1\r\n");
    world.wait_ms(300);
    assert_eq!(count(&mut world, lane), 100 - LOW_IN_FLIGHT);
    world.send(lane, "$-1\r\n".repeat(100));
    assert_eq!(world.received(ann).len(), 500);
    // Who is blocked waits for something that happens, not for a server.
    world.send(bob, redis("BLPOP b 0"));
    let session = world.accept(0);
    world.expect(session, all(&["CLIENT ID", "BLPOP b 0"]));
    world.send(session, ":7\r\n");
    world.wait_ms(300);
    world.send(ann, redis("GET a").repeat(100));
    world.wait_ms(300);
    assert_eq!(count(&mut world, lane), 100);
    assert!(idle.iter().all(|client| !world.closed.contains(client)));
}
