//! Users of low priority, who wait while others do; and others, who wait while those of high priority do.

use crate::world::{World, all, pool, redis, snapshot};
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

/// Which keys are asked for.
fn keys(world: &mut World, lane: ConnId) -> Vec<char> {
    let text = String::from_utf8(world.received(lane)).unwrap();
    text.split("GET\r\n$1\r\n").skip(1).filter_map(|rest| rest.chars().next()).collect()
}

#[test]
fn those_who_wait_for_a_high_user_go_on_by_turns() {
    let (mut world, [lane]) =
        World::connected(&pool(&format!("redis: true\npreconnect: true\n{HIGH}"), 1));
    let [ann, bob, other_bob, cid] = users(&mut world, ["ann", "bob", "bob", "cid"]);
    world.send(ann, redis("GET a"));
    world.wait_ms(5);
    for (client, key) in [(bob, "b"), (other_bob, "b"), (cid, "c")] {
        world.send(client, redis(&format!("GET {key}")).repeat(300));
    }
    let mut on_their_way = std::collections::VecDeque::new();
    let mut asked = std::collections::HashMap::new();
    for _ in 0..300 {
        let now = keys(&mut world, lane);
        now.iter().for_each(|&key| *asked.entry(key).or_insert(0) += 1);
        on_their_way.extend(now);
        let key = on_their_way.pop_front().expect("there is always something on its way");
        assert!(on_their_way.len() <= NORMAL_IN_FLIGHT);
        world.send(lane, "$-1\r\n");
        if key == 'a' {
            world.send(ann, redis("GET a"));
        }
        world.wait_ms(1);
    }
    let [of_bob, of_cid] = ['b', 'c'].map(|key| asked.get(&key).copied().unwrap_or(0));
    // What bob had of the room at first is all that it has more.
    assert!(of_cid >= 100 && of_bob >= 100 && of_bob - of_cid <= 40, "{of_bob} {of_cid}");
}

#[test]
fn who_says_who_it_is_waits_for_nobody() {
    let (mut world, [lane]) =
        World::connected(&pool(&format!("redis: true\npreconnect: true\n{HIGH}"), 1));
    let [ann, bob, other] = users(&mut world, ["ann", "bob", "bob"]);
    world.send(ann, redis("GET a"));
    world.wait_ms(5);
    world.send(bob, redis("GET b").repeat(100));
    world.wait_ms(5);
    assert_eq!(count(&mut world, lane), 1 + NORMAL_IN_FLIGHT);
    world.send(other, all(&["AUTH cid p", "AUTH ann p", "AUTH bob p"]));
    world.expect(other, "+OK\r\n".repeat(3));
    // What asks something waits, and so does what is behind it.
    world.send(other, all(&["GET e", "AUTH ann p"]));
    world.send(lane, "$-1\r\n".repeat(2));
    world.wait_ms(5);
    world.expect(lane, redis("GET b"));
    world.expect(other, "");
}

#[test]
fn a_user_of_high_priority_is_high_at_its_own_port() {
    let text = format!(
        "global: {{worker_processes: 1}}
pools:
  p: {{listen: '127.0.0.1:6000', redis: true, preconnect: true, hide_topology: true, pipeline_start: 0, servers: ['127.0.0.1:7000:1'], {HIGH}}}
  q: {{listen: '127.0.0.1:6001', redis: true, preconnect: true, hide_topology: true, pipeline_start: 0, servers: ['127.0.0.1:7001:1'], {HIGH}}}
"
    );
    let mut world = World::new(&snapshot(&text));
    let [one, two] = std::array::from_fn(|_| world.accept(0));
    let [ann, bob, other] = [("ann", 0), ("bob", 0), ("bob", 1)].map(|(user, pool)| {
        let client = world.client_of(pool);
        world.send(client, redis(&format!("AUTH {user} p")));
        world.expect(client, "+OK\r\n");
        client
    });
    world.send(ann, redis("GET a"));
    world.wait_ms(5);
    for client in [bob, other] {
        world.send(client, redis("GET b").repeat(100));
    }
    world.wait_ms(5);
    assert_eq!([one, two].map(|lane| count(&mut world, lane)), [1 + NORMAL_IN_FLIGHT, 100]);
}
