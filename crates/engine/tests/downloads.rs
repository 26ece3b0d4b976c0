//! Large replies to clients that read more slowly than servers write.

use crate::world::{World, pool, redis};
use cashew_engine::{Action, CloseReason, ConnId};
use cashew_metrics::{PoolCounter, ServerCounter};

const MIB: usize = 1 << 20;
const READ_SIZE: usize = 64 * 1024;
/// The most of a reply that may wait in the gateway: the limit, and one read more.
const AHEAD_MAX: usize = MIB + READ_SIZE;

/// A client in a pool with these options, one of whose replies for the key `big` was large.
fn world(options: &str) -> (World, ConnId) {
    let snapshot = pool(&format!("redis: true\npreconnect: true\n{options}"), 1);
    let (mut world, [shared]) = World::connected(&snapshot);
    let client = world.client();
    world.send(client, redis("GET big"));
    for piece in reply(MIB).chunks(READ_SIZE) {
        world.send(shared, piece);
    }
    assert!(world.received(client) == reply(MIB));
    world.received(shared);
    // That connection was set aside, and is not kept.
    world.accept(0);
    world.wait_ms(20_000);
    assert_eq!(std::mem::take(&mut world.closed), [shared]);
    (world, client)
}

fn reply(size: usize) -> Vec<u8> {
    let value = (0..size).map(|at| b'a' + (at % 23) as u8).collect::<Vec<u8>>();
    [format!("${size}\r\n").as_bytes(), &value, b"\r\n"].concat()
}

/// The client asks for the large value: the lane that carries the reply.
#[track_caller]
fn ask(world: &mut World, client: ConnId) -> ConnId {
    world.send(client, redis("GET big"));
    let lane = world.accept(0);
    world.expect(lane, redis("GET big"));
    lane
}

/// The server sends as much as the gateway takes; returns what it does not.
fn feed<'b>(world: &mut World, lane: ConnId, mut bytes: &'b [u8]) -> &'b [u8] {
    while !bytes.is_empty() && !world.paused.contains(&lane) {
        let (now, later) = bytes.split_at(READ_SIZE.min(bytes.len()));
        world.send(lane, now);
        bytes = later;
    }
    bytes
}

#[test]
fn a_client_that_reads_slowly_is_waited_for() {
    let (mut world, client) = world("timeout: 400");
    let lane = ask(&mut world, client);
    let reply = reply(8 * MIB);
    world.stuck.push(client);
    let mut rest = feed(&mut world, lane, &reply);
    let mut seen = Vec::new();
    while !rest.is_empty() {
        let waits = reply.len() - rest.len() - seen.len();
        assert!(waits <= AHEAD_MAX, "{waits} bytes wait");
        world.wait_ms(2000);
        world.write_some(client, (300 * 1024).min(waits));
        seen.extend(world.received(client));
        world.tick();
        rest = feed(&mut world, lane, rest);
    }
    world.stuck.clear();
    world.write(client);
    seen.extend(world.received(client));
    assert!(seen == reply);
    world.assert_idle();
    assert!(world.closed.is_empty());
    // The lane is as good as before.
    world.send(client, redis("GET big"));
    world.expect(lane, redis("GET big"));
}

#[test]
fn a_reply_may_take_longer_than_the_timeout_if_it_goes_on() {
    let (mut world, client) = world("timeout: 400");
    let lane = ask(&mut world, client);
    let reply = reply(MIB);
    for piece in reply.chunks(300 * 1024) {
        world.wait_ms(350);
        world.send(lane, piece);
    }
    assert!(world.received(client) == reply);
    world.send(client, redis("GET big"));
    world.send(lane, &reply[..READ_SIZE]);
    world.wait_ms(450);
    assert!(world.closed.is_empty(), "some may have come that was not told of");
    world.wait_ms(400);
    assert!(world.closed.contains(&client) && world.closed.contains(&lane));
}

/// All of it comes in one wait, whether or not the lane is paused.
fn flood(world: &mut World, lane: ConnId, bytes: &[u8], piece: usize) {
    for piece in bytes.chunks(piece) {
        world.engine.handle_received_buffer(lane, &mut piece.to_vec(), world.now);
    }
    world.tick();
}

/// The client takes some of what waits for it, again and again.
fn take_slowly(world: &mut World, client: ConnId, len: usize) -> Vec<u8> {
    let mut seen = Vec::new();
    while seen.len() < len {
        world.write_some(client, 16_000.min(len - seen.len()));
        seen.extend(world.received(client));
        world.tick();
    }
    seen
}

#[test]
fn what_came_when_the_server_was_not_to_be_read_waits_for_the_client() {
    for piece in [READ_SIZE, 1000] {
        let (mut world, client) = world("");
        let lane = ask(&mut world, client);
        let reply = reply(3 * MIB);
        world.stuck.push(client);
        flood(&mut world, lane, &reply, piece);
        assert!(world.paused.contains(&lane));
        let held = world.engine.held_bytes();
        assert!((3 * MIB..4 * MIB).contains(&held), "it is counted: {held}");
        assert!(take_slowly(&mut world, client, reply.len()) == reply);
        let is_resumed =
            |action: &&Action| matches!(action, Action::ResumeRead { conn } if *conn == lane);
        assert_eq!(world.actions.iter().filter(is_resumed).count(), 1, "when all had its turn");
        world.assert_idle();
        world.stuck.clear();
        world.send(client, redis("GET big"));
        world.expect(lane, redis("GET big"));
    }
}

#[test]
fn a_reply_larger_than_the_limit_passes_a_client_that_reads() {
    let (mut world, client) = world("client_output_pause: 64kb\nclient_output_max: 64kb");
    let lane = ask(&mut world, client);
    let reply = reply(MIB);
    world.stuck.push(client);
    let mut seen = Vec::new();
    for several in reply.chunks(5 * READ_SIZE) {
        assert!(!world.paused.contains(&lane));
        flood(&mut world, lane, several, READ_SIZE);
        seen.extend(take_slowly(&mut world, client, several.len()));
    }
    assert!(seen == reply);
    assert!(world.closed.is_empty());
    world.assert_idle();
}

#[test]
fn a_server_that_leaves_a_paused_connection_takes_what_waited_with_it() {
    let (mut world, client) = world("");
    let lane = ask(&mut world, client);
    world.stuck.push(client);
    flood(&mut world, lane, &reply(4 * MIB)[..3 * MIB], READ_SIZE);
    world.close(lane, CloseReason::Reset);
    world.stuck.clear();
    world.write(client);
    world.tick();
    assert!(world.closed.contains(&client), "it has half a reply");
    world.assert_idle();
}

/// What the driver was told, in order.
fn low_water(world: &World, lane: ConnId) -> Vec<u32> {
    let of_lane = |action: &Action| match action {
        Action::SetLowWater { conn, bytes } if *conn == lane => Some(*bytes),
        _ => None,
    };
    world.actions.iter().filter_map(of_lane).collect()
}

#[test]
fn of_a_large_reply_as_much_is_told_as_is_worth_a_write_but_not_more_than_is_to_come() {
    let (mut world, client) = world("");
    let lane = ask(&mut world, client);
    let reply = reply(MIB);
    let mut sent = 0;
    for (size, told) in [(READ_SIZE, 512 * 1024), (MIB / 2 - 100, 512 * 1024), (MIB / 2 + 100, 1)] {
        for piece in reply[std::mem::replace(&mut sent, size)..size].chunks(READ_SIZE) {
            world.send(lane, piece);
        }
        assert_eq!(low_water(&world, lane).last(), Some(&told), "after {size}");
    }
    world.send(lane, &reply[sent..]);
    assert!(world.received(client) == reply);
    assert_eq!(low_water(&world, lane), [512 * 1024, 1]);
}

#[test]
fn a_reply_that_comes_slowly_is_told_of_byte_by_byte_to_its_end() {
    let (mut world, client) = world("timeout: 400");
    let lane = ask(&mut world, client);
    let reply = reply(2 * MIB);
    let (start, rest) = reply.split_at(READ_SIZE);
    world.send(lane, start);
    assert_eq!(low_water(&world, lane), [512 * 1024]);
    world.wait_ms(450);
    let (slow, rest) = rest.split_at(3 * READ_SIZE);
    for piece in slow.chunks(READ_SIZE / 2) {
        world.send(lane, piece);
        world.wait_ms(350);
    }
    assert_eq!(low_water(&world, lane), [512 * 1024, 1]);
    world.send(lane, rest);
    assert!(world.received(client) == reply);
    // The next one is given another chance.
    world.send(client, redis("GET big"));
    world.send(lane, start);
    assert_eq!(low_water(&world, lane), [512 * 1024, 1, 512 * 1024]);
}

#[test]
fn the_end_of_a_value_leaves_with_the_piece_before_it() {
    let (mut world, client) = world("");
    let lane = ask(&mut world, client);
    let reply = reply(MIB);
    let almost = reply.len() - 12;
    for piece in reply[..almost].chunks(READ_SIZE) {
        world.send(lane, piece);
    }
    let seen = world.received(client).len();
    assert_eq!(seen, 512 * 1024, "a write's worth");
    world.send(lane, &reply[almost..]);
    assert!(world.received(client) == reply[seen..]);
}

#[test]
fn what_nobody_reads_any_more_is_not_read_here_either() {
    let (mut world, client) = world("");
    let lane = ask(&mut world, client);
    let reply = reply(8 * MIB);
    world.stuck.push(client);
    assert!(!feed(&mut world, lane, &reply).is_empty());
    world.close(client, CloseReason::Reset);
    assert!(world.closed.contains(&lane));
    world.assert_idle();
    let failing = crate::world::is_failure;
    assert!(!world.actions.iter().any(failing), "it is not the server's fault");
    let other = world.client();
    ask(&mut world, other);
}

/// Four clients that read nothing of a reply of that size, and the lanes that it waits on, with what
/// the servers have not sent of it.
fn four_that_read_nothing(options: &str, reply: &[u8]) -> (World, [(ConnId, ConnId, usize); 4]) {
    let (mut world, _) = world(options);
    let four = std::array::from_fn(|_| {
        let client = world.client();
        let lane = ask(&mut world, client);
        world.stuck.push(client);
        let left = feed(&mut world, lane, reply).len();
        assert!(world.paused.contains(&lane));
        (client, lane, left)
    });
    (world, four)
}

fn slow_clients(world: &World) -> u64 {
    world.metrics.pool_counter(world.metrics.pool(0), PoolCounter::SlowClients)
}

#[test]
fn what_is_left_for_who_reads_nothing_is_kept_when_others_wait() {
    let reply = reply(8 * MIB);
    let (mut world, four) = four_that_read_nothing("transfer_stall_timeout: 0", &reply);
    world.wait_ms(100_000);
    assert!(four.iter().all(|(_, lane, _)| world.paused.contains(lane)), "nobody waits");
    // More of the same go to the lane for all.
    let reader = world.client();
    ask(&mut world, reader);
    assert_eq!(slow_clients(&world), 4);
    for (client, lane, left) in four {
        assert_eq!(feed(&mut world, lane, &reply[reply.len() - left..]), b"");
        world.stuck.retain(|&other| other != client);
        world.write(client);
        assert!(world.received(client) == reply);
    }
    assert!(world.closed.is_empty());
    // Its lane is free, and waits for its client again.
    let next = world.client();
    world.send(next, redis("GET big"));
    let lane = four.iter().map(|&(_, lane, _)| lane).find(|&lane| !world.received(lane).is_empty());
    world.stuck.push(next);
    assert!(!feed(&mut world, lane.expect("one of them is used"), &reply).is_empty());
}

#[test]
fn who_reads_nothing_of_a_huge_reply_is_closed_when_others_wait() {
    let reply = reply(20 * MIB);
    let (mut world, four) = four_that_read_nothing("", &reply);
    world.wait_ms(3000);
    let waiting = world.client();
    let start = "v".repeat(300_000);
    world.send(waiting, format!("*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$20000000\r\n{start}"));
    assert!(four.iter().all(|(client, ..)| world.closed.contains(client)));
    assert_eq!(slow_clients(&world), 4);
    world.accept(0);
    assert!(!world.paused.contains(&waiting));
}

#[test]
fn who_reads_nothing_for_long_is_closed_whoever_waits() {
    let reply = reply(8 * MIB);
    let (mut world, four) = four_that_read_nothing("transfer_stall_timeout: 30000", &reply);
    world.wait_ms(29_000);
    assert!(world.closed.is_empty());
    world.wait_ms(2000);
    assert!(four.iter().all(|(client, ..)| world.closed.contains(client)));
    world.assert_idle();
}

#[test]
fn who_reads_fast_enough_is_waited_for_whoever_waits() {
    let reply = reply(40 * MIB);
    let (mut world, mut four) = four_that_read_nothing("transfer_rate_min: 100kb", &reply);
    let reader = world.client();
    ask(&mut world, reader);
    for _ in 0..20 {
        for (client, lane, left) in &mut four {
            world.write_some(*client, 110 << 10);
            world.tick();
            *left = feed(&mut world, *lane, &reply[reply.len() - *left..]).len();
        }
        world.wait_ms(1000);
        let other = world.client();
        world.send(other, redis("GET big"));
    }
    assert!(four.iter().all(|(client, ..)| !world.closed.contains(client)));
    assert_eq!(slow_clients(&world), 0);
}

#[test]
fn what_was_uploaded_is_read_apart_from_others() {
    let snapshot = pool("redis: true\npreconnect: true", 1);
    let (mut world, [shared]) = World::connected(&snapshot);
    let client = world.client();
    let value = "v".repeat(MIB);
    world.send(client, format!("*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n${MIB}\r\n{}", &value[9..]));
    let lane = world.accept(0);
    world.send(client, format!("{}\r\n", &value[..9]));
    world.received(lane);
    world.send(lane, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.send(client, redis("GET big"));
    world.expect(shared, "");
    world.expect(lane, redis("GET big"));
}

#[test]
fn a_large_reply_that_nobody_expected_is_read_apart_from_others_too() {
    let snapshot = pool("redis: true\npreconnect: true", 1);
    let (mut world, [aside]) = World::connected(&snapshot);
    let [slow, other] = std::array::from_fn(|_| world.client());
    world.send(slow, redis("GET big"));
    world.expect(aside, redis("GET big"));
    world.stuck.push(slow);
    let reply = reply(8 * MIB);
    let (start, rest) = reply.split_at(READ_SIZE);
    world.send(aside, start);
    let shared = world.accept(0);
    world.send(other, redis("GET small"));
    world.expect(aside, "");
    world.expect(shared, redis("GET small"));
    world.send(shared, "+small\r\n");
    world.expect(other, "+small\r\n");

    // It waits for its client like any that was known to be large.
    let rest = feed(&mut world, aside, rest);
    assert!(world.paused.contains(&aside));
    assert!(reply.len() - rest.len() <= AHEAD_MAX);
    world.send(slow, redis("SET key small"));
    world.expect(shared, "");
    world.stuck.clear();
    let mut rest = rest;
    while !rest.is_empty() {
        world.write(slow);
        world.tick();
        rest = feed(&mut world, aside, rest);
    }
    world.write(slow);
    assert!(world.received(slow) == reply);
    world.tick();
    world.expect(shared, redis("SET key small"));
    world.send(shared, "+OK\r\n");
    world.expect(slow, "+OK\r\n");
    world.assert_idle();
    assert!(world.closed.is_empty());

    // The connections have changed places; each goes on under its name.
    world.wait_ms(2000);
    world.send(other, redis("GET small"));
    world.expect(shared, redis("GET small"));
    world.close(shared, CloseReason::Reset);
    world.expect(other, "-ERR Connection reset by peer\r\n");
    let shared = world.accept(0);
    world.send(other, redis("GET small"));
    world.expect(shared, redis("GET small"));
    world.send(other, redis("GET big"));
    world.expect(shared, "");
}

#[test]
fn what_was_asked_behind_a_large_reply_is_not_overtaken_and_does_not_wait_for_its_client() {
    let snapshot = pool("redis: true\npreconnect: true", 1);
    let (mut world, [aside]) = World::connected(&snapshot);
    let [slow, behind] = std::array::from_fn(|_| world.client());
    world.send(slow, redis("GET big"));
    world.send(behind, redis("SET key 1"));
    world.expect(aside, redis("GET big") + &redis("SET key 1"));
    world.stuck.push(slow);
    let reply = reply(8 * MIB);
    let (start, rest) = reply.split_at(READ_SIZE);
    world.send(aside, start);
    let shared = world.accept(0);
    world.send(behind, redis("GET key"));
    world.expect(shared, "");
    assert!(feed(&mut world, aside, rest).is_empty(), "somebody else's reply comes behind it");
    world.send(aside, "+OK\r\n");
    world.expect(behind, "+OK\r\n");
    world.expect(shared, redis("GET key"));
    world.stuck.clear();
    world.write(slow);
    assert!(world.received(slow) == reply);
}

#[test]
fn a_connection_set_aside_changes_places_with_one_that_is_ready() {
    let snapshot = pool("redis: true\npreconnect: true", 1);
    let (mut world, [first]) = World::connected(&snapshot);
    let client = world.client();
    let reply = reply(MIB);
    let ask = |world: &mut World, lane: ConnId, key: &str| {
        world.send(client, redis(&format!("GET {key}")));
        world.expect(lane, redis(&format!("GET {key}")));
        for piece in reply.chunks(READ_SIZE) {
            world.send(lane, piece);
        }
        assert!(world.received(client) == reply);
    };
    ask(&mut world, first, "one");
    let second = world.accept(0);
    for round in 0..10 {
        ask(&mut world, [second, first][round % 2], &format!("key:{round}"));
        assert!(!world.connects_to(0));
    }
    world.close(first, CloseReason::Eof);
    world.close(second, CloseReason::Eof);
    let shared = world.accept(0);
    ask(&mut world, shared, "again");
    world.accept(0);
    world.assert_idle();
}

#[test]
fn requests_are_counted_whatever_lanes_have_changed_places() {
    let snapshot = pool("redis: true\npreconnect: true", 1);
    let (mut world, [first]) = World::connected(&snapshot);
    let client = world.client();
    let reply = reply(MIB);
    let counted = |world: &World| {
        let server = world.metrics.server(0, 0);
        world.metrics.server_counter(server, ServerCounter::Requests)
    };
    let before = counted(&world);
    let large = |world: &mut World, lane: ConnId, key: &str| {
        for piece in reply.chunks(READ_SIZE) {
            world.send(lane, piece);
        }
        assert!(world.received(client) == reply, "{key}");
    };
    // The reply comes in the turn behind the one that ended with writing the request …
    world.engine.handle_received(client, redis("GET one").as_bytes(), world.now);
    world.engine.settle(world.now);
    while let Some(conn) = world.engine.poll_dirty() {
        world.write(conn);
    }
    world.expect(first, redis("GET one"));
    large(&mut world, first, "one");
    let second = world.accept(0);
    // … and a turn later.
    world.send(client, redis("GET two"));
    world.expect(second, redis("GET two"));
    world.tick();
    large(&mut world, second, "two");
    for count in 3..6 {
        world.send(client, redis("GET small"));
        world.expect(first, redis("GET small"));
        world.send(first, "$-1\r\n");
        world.expect(client, "$-1\r\n");
        world.tick();
        assert_eq!(counted(&world) - before, count);
    }
}

/// A client asks for something small, for something large and then this; it reads nothing until its
/// server, which has answered the first and half of the second, has broken off.
fn break_off(options: &str, then: &str) -> (World, ConnId) {
    let options = format!("redis: true\npreconnect: true\n{options}");
    let (mut world, client, [lane]) = World::with_client(&pool(&options, 1));
    world.send(client, redis("GET small") + &redis("GET big") + then);
    world.stuck.push(client);
    world.send(lane, [FINE, half().as_slice()].concat());
    world.close(lane, CloseReason::Eof);
    assert!(!world.closed.contains(&client), "there is more for it");
    (world, client)
}

const FINE: &[u8] = b"$4\r\nfine\r\n";

fn half() -> Vec<u8> {
    reply(MIB)[..MIB / 2].to_vec()
}

/// It gets the whole reply and the half, and nothing else.
#[track_caller]
fn check_end(mut world: World, client: ConnId) {
    world.stuck.clear();
    world.write(client);
    world.tick();
    assert!(world.received(client) == [FINE, half().as_slice()].concat());
    assert!(world.closed.contains(&client));
    world.assert_idle();
}

#[test]
fn who_gets_half_of_a_reply_gets_the_whole_ones_before_it_and_nothing_behind_it() {
    let (mut world, client) = break_off("", &redis("GET behind"));
    world.send(client, redis("GET late"));
    check_end(world, client);
}

#[test]
fn who_is_in_the_middle_of_a_request_gets_the_whole_replies_before_half_a_one() {
    let (mut world, client) = break_off("", "*2\r\n$3\r\nGET\r\n$4\r\nla");
    world.send(client, "te\r\n");
    check_end(world, client);
}

#[test]
fn who_was_not_read_and_gets_half_of_a_reply_is_read_until_it_is_written() {
    let behind = redis("GET behind").repeat(10);
    let (mut world, client) = break_off("client_requests_max: 3", &behind);
    let was_paused =
        |action: &Action| matches!(action, Action::PauseRead { conn } if *conn == client);
    assert!(world.actions.iter().any(was_paused), "it has asked too much");
    assert!(!world.paused.contains(&client), "it may not read before it has said all");
    let waits = world.engine.held_bytes();
    world.send(client, redis("GET late").repeat(1000));
    assert_eq!(world.engine.held_bytes(), waits);
    check_end(world, client);
}

#[test]
fn who_is_in_a_transaction_is_closed_at_once_when_a_reply_breaks_off() {
    let (mut world, client, [lane]) = World::with_client(&pool("redis: true\npreconnect: true", 1));
    world.send(client, redis("GET small") + &redis("GET big") + &redis("MULTI"));
    world.stuck.push(client);
    world.send(lane, [FINE, half().as_slice()].concat());
    world.close(lane, CloseReason::Eof);
    assert!(world.closed.contains(&client));
    world.assert_idle();
}

#[test]
fn a_pause_of_writes_takes_nothing_from_who_reads() {
    let options = "redis: true\npreconnect: true\ncommand_policy: admin\nclient_pause_max: 100000";
    let (mut world, client, [lane]) = World::with_client(&pool(options, 1));
    let other = world.client();
    world.send(other, redis("CLIENT PAUSE 100000 WRITE"));
    world.expect(other, "+OK\r\n");
    world.send(client, redis("GET small") + &redis("GET big"));
    world.stuck.push(client);
    world.send(lane, [FINE, half().as_slice()].concat());
    world.close(lane, CloseReason::Eof);
    assert!(!world.closed.contains(&client), "there is more for it");
    check_end(world, client);
}
