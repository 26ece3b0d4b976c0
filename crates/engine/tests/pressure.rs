//! What is held is counted, new requests wait when it is much, and who holds most is closed when
//! it is too much.

use crate::world::{World, pool, redis};
use cashew_config::Snapshot;
use cashew_engine::{Action, CloseReason, ConnId, ListenerId, Rest};
use cashew_metrics::PoolCounter;

const MAX: u64 = 8 << 20;

/// A pool over one server whose worker may hold [`MAX`].
fn tight(options: &str) -> Snapshot {
    let mut snapshot = pool(&format!("redis: true\npreconnect: true\n{options}"), 1);
    snapshot.global.worker_memory_max = Some(MAX);
    snapshot
}

/// As [`half_set`], of a request that is collected whatever its size.
fn half_mset(size: usize, come: usize) -> Vec<u8> {
    [b"*3\r\n$4\r\nMSET", &half_set(size, come)[11..]].concat()
}

/// The start of a SET of so many bytes, of which some come.
fn half_set(size: usize, come: usize) -> Vec<u8> {
    let mut text = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${size}\r\n").into_bytes();
    text.resize(text.len() + come, b'x');
    text
}

fn shed(world: &World) -> u64 {
    world.metrics.pool_counter(world.metrics.pool(0), PoolCounter::ClientsShed)
}

fn is_pressed(world: &World) -> bool {
    let is_it =
        |action: &Action| matches!(action, Action::Pressed { .. } | Action::HeldBack { .. });
    world.actions.iter().any(is_it)
}

/// A client that does not read, and owes its size to replies that wait for it.
fn stuck_client(world: &mut World, lane: ConnId, bytes: usize) -> ConnId {
    let client = world.client();
    world.stuck.push(client);
    // None so large that it would be read as its client reads.
    let count = bytes.div_ceil(200_000);
    world.send(client, redis(&format!("GET {bytes}")).repeat(count));
    for _ in 0..count {
        let mut reply = format!("${}\r\n", bytes / count).into_bytes();
        reply.resize(reply.len() + bytes / count, b'x');
        reply.extend(b"\r\n");
        for piece in reply.chunks(65_536) {
            world.send(lane, piece);
        }
    }
    client
}

#[test]
fn whatever_clients_hold_is_counted_and_goes_with_them() {
    let snapshot = pool("redis: true\npreconnect: true", 4);
    let (mut world, lanes) = World::connected::<4>(&snapshot);
    assert_eq!(world.engine.held_bytes(), 0);
    let half = world.client();
    world.send(half, half_set(5 << 20, 3 << 20));
    let held = world.engine.held_bytes();
    assert!(held >= 3 << 20, "{held}");
    let asker = world.client();
    world.send(asker, redis("MGET a b c d e f g h i j"));
    assert!(world.engine.held_bytes() > held);
    let spans = world.client();
    let held = world.engine.held_bytes();
    world.send(spans, "*1000\r\n");
    assert!(world.engine.held_bytes() >= held + 8000, "spans are held too");
    for client in [half, asker, spans] {
        world.close(client, cashew_engine::CloseReason::Eof);
    }
    for lane in lanes {
        world.send(lane, "*0\r\n");
    }
    world.wait_ms(10);
    world.assert_idle();
    assert_eq!(world.engine.held_bytes(), 0);
}

#[test]
fn what_clients_say_of_themselves_is_held_too() {
    let (mut world, _) = World::connected::<1>(&tight(""));
    let long = "x".repeat(4096);
    let say = |world: &mut World, words: &str| {
        let client = world.client();
        world.send(client, redis(words));
        world.received(client);
        client
    };
    let named = say(&mut world, &format!("HELLO 3 SETNAME {long}"));
    let first = world.engine.held_bytes();
    assert!(first >= 4096, "{first}");
    world.send(named, redis(&format!("CLIENT SETINFO lib-name {long}")));
    let second = world.engine.held_bytes();
    assert!(second >= first + 4096, "{second}");
    world.send(named, redis("RESET"));
    assert!(world.engine.held_bytes() <= second - 4096);
    world.close(named, cashew_engine::CloseReason::Eof);
    world.assert_idle();
    // Those who say so much that there is no room for it are closed like others who hold it.
    for _ in 0..2 * MAX / 4096 {
        say(&mut world, &format!("CLIENT SETNAME {long}"));
        world.wait_ms(10);
    }
    world.wait_ms(3000);
    assert!(world.engine.held_bytes() as u64 <= MAX, "{}", world.engine.held_bytes());
}

#[test]
fn answers_of_workers_are_held_and_no_longer_than_their_client_may_take() {
    let (mut world, _) =
        World::connected::<1>(&tight("client_output_max: 64kb\nclient_output_pause: 64kb"));
    world.has_others = true;
    let (asker, other) = (world.client(), world.client());
    let ask = |world: &mut World| {
        world.send(asker, redis("CLIENT LIST"));
        world.question().0
    };
    let ticket = ask(&mut world);
    let held = world.engine.held_bytes();
    let line = |id: usize| format!("id={id} {}\n", "x".repeat(1000));
    let answer = |ids: std::ops::Range<usize>| ids.map(line).collect::<String>();
    world.answered(ticket, answer(10..40).as_bytes(), Rest::Awaited);
    assert!(world.engine.held_bytes() >= held + 30_000);
    world.answered(ticket, answer(40..50).as_bytes(), Rest::None);
    assert!(world.received(asker).len() > 40_000);
    world.assert_idle();
    let ticket = ask(&mut world);
    world.answered(ticket, answer(10..80).as_bytes(), Rest::Awaited);
    assert_eq!(world.closed, [asker], "it is not waited for more");
    assert_eq!(world.engine.held_bytes(), 0);
    // Nor is more told to another worker, since nobody could take it.
    for _ in 0..30 {
        let client = world.client();
        world.send(client, redis(&format!("CLIENT SETNAME {}", "x".repeat(4096))));
    }
    let own = world.answer(0, 99, redis("CLIENT LIST").as_bytes());
    assert!((65_536..75_000).contains(&own.len()), "{}", own.len());
    world.close(other, CloseReason::Eof);
}

#[test]
fn a_message_is_copied_for_as_many_as_there_is_room_for() {
    let (mut world, _) = World::connected::<1>(&tight(""));
    let confirmed = "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n";
    let first = world.client();
    world.send(first, redis("SUBSCRIBE c"));
    let feed = world.accept(0);
    world.send(feed, confirmed);
    let others: Vec<ConnId> = (0..19).map(|_| world.client()).collect();
    for &client in &others {
        world.send(client, redis("SUBSCRIBE c"));
        world.expect(client, confirmed);
    }
    world.stuck.push(first);
    world.stuck.extend(&others);
    let message = format!("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n${}\r\n", 1 << 20);
    for piece in [message.as_bytes(), &vec![b'x'; 1 << 20], b"\r\n"] {
        world.send(feed, piece);
    }
    let pool = world.metrics.pool(0);
    let delivered = world.metrics.pool_counter(pool, PoolCounter::MessagesDelivered);
    assert!((5..8).contains(&delivered), "{delivered}");
    assert_eq!(shed(&world), 20 - delivered);
    assert_eq!(world.closed.len() as u64, 20 - delivered);
}

#[test]
fn who_holds_most_waits_until_there_is_room_and_half_requests_go_on() {
    let (mut world, [lane]) = World::connected::<1>(&tight("client_output_pause: 1gb"));
    let half = world.client();
    world.send(half, half_set(200_000, 1000));
    let bystander = world.client();
    let stuck = stuck_client(&mut world, lane, 5_600_000);
    world.received(lane);
    assert!(is_pressed(&world));
    assert!(world.paused.contains(&stuck) && !world.paused.contains(&half));
    // Others are served.
    let newcomer = world.client();
    for client in [bystander, newcomer] {
        assert!(!world.paused.contains(&client));
        world.send(client, redis("GET b"));
        world.expect(lane, redis("GET b"));
        world.send(lane, "$-1\r\n");
        world.expect(client, "$-1\r\n");
    }
    let mut rest = vec![b'x'; 199_000];
    rest.extend(b"\r\n");
    world.send(half, rest);
    assert!(world.received(lane).starts_with(b"*3\r\n$3\r\nSET"));
    // There is room again.
    world.send(stuck, redis("GET c"));
    world.expect(lane, "");
    world.stuck.clear();
    world.write(stuck);
    world.tick();
    world.expect(lane, redis("GET c"));
    assert!(world.paused.is_empty() && world.closed.is_empty());
    assert_eq!(shed(&world), 0);
    let pool = world.metrics.pool(0);
    assert_eq!(world.metrics.pool_counter(pool, PoolCounter::ClientsThrottled), 1);
}

/// Two pools that share what their worker may hold.
fn neighbours() -> World {
    let pool = |name: &str, port| {
        format!(
            "{name}:\n  listen: 127.0.0.1:{port}\n  redis: true\n  preconnect: true\n  \
             client_output_pause: 1gb\n  servers:\n   - 127.0.0.1:1{port}:1\n"
        )
    };
    let mut snapshot = crate::world::snapshot(&(pool("p", 6000) + &pool("q", 6001)));
    snapshot.global.worker_memory_max = Some(MAX);
    World::new(&snapshot)
}

#[test]
fn clients_of_another_pool_do_not_notice() {
    let mut world = neighbours();
    let [greedy, calm] = [world.accept(0), world.accept(0)];
    let other = world.client_of(1);
    // Of the same pool as those that hold much, and little itself.
    let small = stuck_client(&mut world, greedy, 10_000);
    let large: Vec<ConnId> = (0..5).map(|_| stuck_client(&mut world, greedy, 1_400_000)).collect();
    assert!(is_pressed(&world));
    let ask = |world: &mut World| {
        world.send(other, redis("GET a"));
        world.expect(calm, redis("GET a"));
        world.send(calm, "$1\r\na\r\n");
        world.expect(other, "$1\r\na\r\n");
    };
    ask(&mut world);
    assert!(large.iter().any(|client| world.paused.contains(client)));
    assert!(!world.paused.contains(&other) && !world.paused.contains(&small));
    // Those who hold most go, of the pool over its share.
    world.wait_ms(2500);
    ask(&mut world);
    assert!(!world.closed.contains(&other) && !world.closed.contains(&small));
    let mut clients = 0;
    for action in &world.actions {
        if let Action::Shed { listener: pool, clients: closed, held, share, most, .. } = *action {
            assert!(pool == ListenerId::new(0) && most > 1 && (held > share || clients > 0));
            clients += closed;
        }
    }
    assert!(clients > 0 && clients as usize == world.closed.len(), "{clients}");
    assert_eq!(shed(&world), u64::from(clients));
}

#[test]
fn a_stall_of_many_who_hold_little_is_ended_too() {
    let (mut world, [lane]) = World::connected::<1>(&tight(""));
    let clients: Vec<ConnId> = (0..200).map(|_| world.client()).collect();
    for &client in &clients {
        world.send(client, half_set(30_000, 12_000));
    }
    assert!(is_pressed(&world) && world.closed.is_empty());
    let other = world.client();
    world.send(other, redis("GET a"));
    world.wait_ms(3000);
    world.expect(lane, redis("GET a"));
    assert!((1..100).contains(&shed(&world)), "{}", shed(&world));
    assert!(!world.closed.contains(&other));
}

#[test]
fn a_stall_is_ended_by_closing_who_holds_most() {
    let (mut world, [lane]) = World::connected::<1>(&tight("client_output_pause: 1gb"));
    let small = stuck_client(&mut world, lane, 10_000);
    let large = stuck_client(&mut world, lane, 3_000_000);
    let largest = stuck_client(&mut world, lane, 3_900_000);
    assert!(is_pressed(&world));
    world.wait_ms(900);
    assert_eq!(shed(&world), 0);
    world.wait_ms(1200);
    assert_eq!(shed(&world), 1);
    assert_eq!(world.closed, [largest]);
    assert!(!world.paused.contains(&large));
    assert!(!world.paused.contains(&small));
}

#[test]
fn what_is_held_never_passes_the_limit_by_more_than_one_read() {
    let (mut world, [_lane]) = World::connected::<1>(&tight(""));
    let clients: Vec<ConnId> = (0..20).map(|_| world.client()).collect();
    for client in &clients {
        world.send(*client, half_mset(2 << 20, 1000));
    }
    for _ in 0..40 {
        for client in &clients {
            if !world.closed.contains(client) && !world.paused.contains(client) {
                world.engine.handle_received(*client, &[b'x'; 65_536], world.now);
                let held = world.engine.held_bytes() as u64;
                assert!(held <= MAX + (2 << 20), "{held}");
            }
        }
        world.tick();
    }
    let closed = world.closed.len();
    assert!(shed(&world) == closed as u64 && (1..20).contains(&closed), "{closed}");
    // Some came through.
    world.accept(0);
}

#[test]
fn clients_are_not_closed_for_what_waits_for_a_server() {
    let (mut world, [lane]) =
        World::connected::<1>(&tight("server_queue_size_max: 16gb\nclient_requests_max: 1000000"));
    world.stuck.push(lane);
    let client = world.client();
    let set = redis(&format!("SET k {}", "x".repeat(60_000)));
    let mut sent = 0;
    while !world.paused.contains(&client) {
        world.send(client, &set);
        sent += set.len();
        assert!(sent < MAX as usize);
    }
    world.wait_ms(5000);
    assert_eq!(shed(&world), 0);
    assert!(world.closed.is_empty());
    world.stuck.clear();
    world.write(lane);
    world.tick();
    assert!(world.paused.is_empty());
}
