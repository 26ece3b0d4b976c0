//! Users of low priority, who wait while others do; and others, who wait while those of high priority do.

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

const HIGH: &str = "users: {ann: {rules: 'on >p ~* +@all', priority: high}, bob: on >p ~* +@all, \
                    cid: {rules: 'on >p ~* +@all', in_flight_max: 1000}}";
/// As documented.
const NORMAL_IN_FLIGHT: usize = 32;

fn users<const N: usize>(world: &mut World, names: [&str; N]) -> [ConnId; N] {
    names.map(|user| {
        let client = world.client();
        world.send(client, redis(&format!("AUTH {user} p")));
        world.expect(client, "+OK\r\n");
        client
    })
}

#[test]
fn others_wait_while_a_user_of_high_priority_does() {
    let (mut world, [lane]) =
        World::connected(&pool(&format!("redis: true\npreconnect: true\n{HIGH}"), 1));
    let [ann, bob, cid] = users(&mut world, ["ann", "bob", "cid"]);
    world.wait_ms(300);
    // As long as nobody of high priority asks there is no bound.
    world.send(bob, redis("GET b").repeat(100));
    world.wait_ms(300);
    assert_eq!(count(&mut world, lane), 100);
    world.send(lane, "$-1\r\n".repeat(100));
    assert_eq!(world.received(bob).len(), 500);
    // Whoever else asks then stands behind few, and all together have these.
    world.send(ann, redis("GET a"));
    world.expect(lane, redis("GET a"));
    world.wait_ms(300);
    for client in [bob, cid] {
        world.send(client, redis("GET b").repeat(100));
    }
    world.wait_ms(300);
    let mut asked = count(&mut world, lane);
    assert_eq!(asked, NORMAL_IN_FLIGHT);
    world.send(lane, "$-1\r\n");
    world.expect(ann, "$-1\r\n");
    // Nobody starves: each answer makes room, though the other asks on and on.
    let mut on_their_way = asked;
    for _ in 0..4 {
        world.send(ann, redis("GET a"));
        world.send(lane, "$-1\r\n".repeat(on_their_way + 1));
        world.expect(ann, "$-1\r\n");
        world.wait_ms(5);
        on_their_way = count(&mut world, lane) - 1;
        assert_eq!(on_their_way, NORMAL_IN_FLIGHT);
        asked += on_their_way;
    }
    // And when it asks nothing more the rest goes on.
    world.wait_ms(300);
    asked += count(&mut world, lane);
    assert_eq!(asked, 200);
    world.send(lane, "$-1\r\n".repeat(200));
    assert_eq!([bob, cid].map(|client| world.received(client).len()), [500, 500]);
}

#[test]
fn who_is_of_high_priority_waits_for_nobody() {
    let (mut world, [lane]) =
        World::connected(&pool(&format!("redis: true\npreconnect: true\n{HIGH}"), 1));
    let [one, other, bob] = users(&mut world, ["ann", "ann", "bob"]);
    for client in [one, other] {
        world.send(client, redis("GET a").repeat(200));
    }
    assert_eq!(count(&mut world, lane), 400);
    world.send(bob, redis("GET b").repeat(100));
    world.wait_ms(50);
    assert_eq!(count(&mut world, lane), NORMAL_IN_FLIGHT);
    // A reload that takes it away lets the others go on.
    let next = HIGH.replace("high", "normal");
    let next = pool(&format!("redis: true\npreconnect: true\n{next}"), 1);
    world.prepare(&next);
    world.pause(1000);
    world.commit(&next);
    assert_eq!(count(&mut world, lane), 100 - NORMAL_IN_FLIGHT);
    world.send(lane, "$-1\r\n".repeat(500));
    let answers = [one, other, bob].map(|client| world.received(client).len());
    assert_eq!(answers, [1000, 1000, 500]);
}
