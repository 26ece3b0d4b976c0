//! MONITOR: what is told, and to whom.

use std::sync::Arc;

use crate::world::{World, pool, redis};
use cashew_engine::{Action, CloseReason, ConnId, ListenerId, Time};
use cashew_metrics::{Layout, PoolCounter, Segments};

const REDIS: &str = "redis: true\npreconnect: true";
const WALL_US: u64 = 1_700_000_000_000_000;

fn monitored(options: &str) -> (World, ConnId, ConnId) {
    let (mut world, [lane]): (World, [ConnId; 1]) = World::connected(&pool(options, 1));
    world.engine.tell_time(WALL_US + world.now.as_micros(), world.now);
    let monitor = world.client();
    world.send(monitor, redis("MONITOR"));
    world.expect(monitor, "+OK\r\n");
    (world, lane, monitor)
}

/// The lines for those requests of client 2, now.
fn lines(world: &World, database: u32, requests: &[&str]) -> String {
    let micros = WALL_US + world.now.as_micros();
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    let line = |request: &&str| {
        let words: Vec<String> = request.split(' ').map(|word| format!("\"{word}\"")).collect();
        let words = words.join(" ");
        format!("+{seconds}.{micros:06} [{database} 127.0.0.1:2] {words}\r\n")
    };
    requests.iter().map(line).collect()
}

fn announced(world: &mut World) -> Vec<bool> {
    let monitors = |action: Action| match action {
        Action::Monitors { pool, any } => {
            assert_eq!(pool, "p");
            Some(any)
        }
        _ => None,
    };
    std::mem::take(&mut world.actions).into_iter().filter_map(monitors).collect()
}

#[test]
fn a_monitor_is_told_what_others_ask() {
    let (mut world, lane, monitor) = monitored("redis: true\npreconnect: true\ndatabases: 16");
    let client = world.client();
    world.send(client, redis("SET k v") + &redis("GET k") + "ping \"a b\"\r\n");
    let told = String::from_utf8(world.received(monitor)).unwrap();
    let expected = lines(&world, 0, &["SET k v", "GET k", "ping a_b"]).replace('_', " ");
    assert_eq!(told, expected);
    world.send(lane, "+OK\r\n$1\r\nv\r\n");
    world.expect(client, "+OK\r\n$1\r\nv\r\n$3\r\na b\r\n");
    // What waits is told once, when it is dispatched, and by the database that it chooses.
    world.send(client, redis("GET k") + &redis("SELECT 1"));
    let expected = lines(&world, 0, &["GET k"]);
    world.expect(monitor, expected);
    world.send(lane, "$1\r\nv\r\n");
    let expected = lines(&world, 1, &["SELECT 1"]);
    world.expect(monitor, expected);
}

#[test]
fn secrets_and_administration_are_not_told() {
    let (mut world, lane, monitor) = monitored(REDIS);
    let client = world.client();
    for hidden in ["NOSUCH x", "GET", "CONFIG GET x", "SHUTDOWN", "MONITOR x"] {
        world.send(client, redis(hidden));
        world.expect(monitor, "");
    }
    world.expect(lane, redis("CONFIG GET x"));
    world.send(lane, "*0\r\n");
    world.send(client, redis("AUTH user secret") + &redis("HELLO 3 AUTH user secret SETNAME me"));
    let expected = lines(
        &world,
        0,
        &["AUTH (redacted) (redacted)", "HELLO 3 AUTH (redacted) (redacted) SETNAME me"],
    );
    world.expect(monitor, expected);
}

#[test]
fn who_has_not_said_the_password_is_not_told_of() {
    let (mut world, [lane]): (World, [ConnId; 1]) =
        World::connected(&pool("redis: true\npreconnect: true\nredis_auth: secret", 1));
    world.send(lane, "+OK\r\n");
    world.engine.tell_time(WALL_US + world.now.as_micros(), world.now);
    let monitor = world.client();
    world.send(monitor, redis("MONITOR"));
    world.expect(monitor, "-NOAUTH Authentication required.\r\n");
    world.send(monitor, redis("AUTH secret") + &redis("MONITOR"));
    world.expect(monitor, "+OK\r\n+OK\r\n");
    let client = world.client();
    world.send(client, redis("GET k"));
    world.expect(client, "-NOAUTH Authentication required.\r\n");
    world.expect(monitor, "");
    world.send(client, redis("AUTH secret") + &redis("PING"));
    let expected = lines(&world, 0, &["AUTH (redacted)", "PING"]);
    world.expect(monitor, expected);
}

#[test]
fn what_is_queued_is_told_when_it_is_executed() {
    let (mut world, _, monitor) = monitored(REDIS);
    let lane = |world: &mut World| match world.connects_to(0) {
        true => world.accept(0),
        false => *world.lanes[&0].last().unwrap(),
    };
    let client = world.client();
    world.send(client, redis("MULTI"));
    let expected = lines(&world, 0, &["MULTI"]);
    world.expect(monitor, expected);
    world.send(client, redis("SET k 1"));
    let leased = lane(&mut world);
    world.send(leased, "+OK\r\n+QUEUED\r\n");
    world.send(client, redis("AUTH me pw") + &redis("INCR k"));
    world.send(leased, "+QUEUED\r\n");
    world.expect(monitor, "");
    // AUTH cannot be queued, since the gateway answers it: so nothing is executed.
    world.send(client, redis("EXEC"));
    let expected = lines(&world, 0, &["EXEC"]);
    world.expect(monitor, expected);
    world.send(leased, "+OK\r\n");

    world.received(client);
    world.send(client, redis("MULTI") + &redis("SET k 1") + &redis("INCR k") + &redis("EXEC"));
    let expected = lines(&world, 0, &["MULTI", "SET k 1", "INCR k", "EXEC"]);
    world.expect(monitor, expected);
    world.send(leased, "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n:2\r\n");
    world.expect(client, "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n:2\r\n");
    world.send(client, redis("MULTI") + &redis("PING") + &redis("DISCARD"));
    let expected = lines(&world, 0, &["MULTI", "DISCARD"]);
    world.expect(monitor, expected);
    // What comes behind SELECT is told with the database that it is executed in.
    world.received(client);
    world.send(client, ["MULTI", "GET k", "SELECT 9", "GET k", "EXEC"].map(redis).concat());
    let expected = lines(&world, 0, &["MULTI", "GET k"])
        + &lines(&world, 9, &["SELECT 9", "GET k"])
        + &lines(&world, 0, &["EXEC"]);
    world.expect(monitor, expected);
    world.received(leased);
    world
        .send(leased, "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n$-1\r\n+OK\r\n$-1\r\n+OK\r\n");
    for conn in [client, monitor] {
        world.close(conn, CloseReason::Eof);
    }
    world.wait_ms(15_000);
    world.assert_idle();
}

#[test]
fn a_call_that_is_asked_anew_after_a_change_is_told_once() {
    const OPTIONS: &str = "redis: true\npreconnect: true";
    let (mut world, [shared, _]): (World, [ConnId; 2]) = World::connected(&pool(OPTIONS, 2));
    world.engine.tell_time(WALL_US + world.now.as_micros(), world.now);
    let monitor = world.client();
    world.send(monitor, redis("MONITOR"));
    world.expect(monitor, "+OK\r\n");
    let client = world.client();
    world.send(client, redis("BLPOP c 0"));
    let expected = lines(&world, 0, &["BLPOP c 0"]);
    world.expect(monitor, expected);
    let lane = world.accept(0);
    world.send(lane, ":77\r\n");
    let mut next = pool(OPTIONS, 3);
    next.epoch += 1;
    world.prepare(&next);
    world.accept_all::<3>();
    world.pause(60_000);
    world.received(shared);
    world.send(lane, "*-1\r\n");
    world.send(shared, ":1\r\n");
    world.commit(&next);
    // Of three servers the second has the key.
    let lane = world.accept(1);
    world.expect(lane, redis("CLIENT ID") + &redis("BLPOP c 0"));
    world.expect(monitor, "");
    world.send(lane, ":9\r\n*2\r\n$1\r\nc\r\n$1\r\n1\r\n");
    world.expect(client, "*2\r\n$1\r\nc\r\n$1\r\n1\r\n");
    // What it asks next is told, be it the same.
    world.send(client, redis("BLPOP c 0"));
    let expected = lines(&world, 0, &["BLPOP c 0"]);
    world.expect(monitor, expected);
    world.send(lane, "*-1\r\n");
    world.expect(client, "*-1\r\n");
}

#[test]
fn a_call_that_is_asked_anew_by_another_worker_is_told_once() {
    let [mut here, mut there] = std::array::from_fn(|_| {
        let (mut world, [shared]): (World, [ConnId; 1]) =
            World::connected(&pool("redis: true\npreconnect: true", 1));
        world.engine.tell_time(WALL_US + world.now.as_micros(), world.now);
        let monitor = world.client();
        world.send(monitor, redis("MONITOR"));
        world.expect(monitor, "+OK\r\n");
        (world, shared, monitor)
    });
    let (world, shared, monitor) = (&mut here.0, here.1, here.2);
    let client = world.client();
    world.send(client, redis("BLPOP c 0"));
    let expected = lines(world, 0, &["BLPOP c 0"]);
    world.expect(monitor, expected);
    let lane = world.accept(0);
    world.send(lane, ":77\r\n");
    world.engine.handle_leave(client, world.now);
    world.tick();
    world.received(shared);
    world.send(lane, "*-1\r\n");
    world.send(shared, ":1\r\n");
    let moved = world.engine.export(client, world.now).expect("it is at rest");
    let (world, monitor) = (&mut there.0, there.2);
    let client = world.adopt(moved);
    let lane = world.accept(0);
    world.expect(lane, redis("CLIENT ID") + &redis("BLPOP c 0"));
    world.expect(monitor, "");
    world.send(lane, ":9\r\n*-1\r\n");
    world.expect(client, "*-1\r\n");
    // What it asks next is told, be it the same.
    world.send(client, redis("BLPOP c 0"));
    let told = String::from_utf8(world.received(monitor)).unwrap();
    assert!(told.ends_with("\"BLPOP\" \"c\" \"0\"\r\n"), "{told}");
    assert_eq!(told.matches("BLPOP").count(), 1);
}

#[test]
fn uploads_are_told_by_their_start() {
    let (mut world, _, monitor) = monitored(REDIS);
    let client = world.client();
    world.send(
        client,
        format!("*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n${}\r\n{}", 2 << 20, "x".repeat(1 << 18)),
    );
    if world.connects_to(0) {
        world.accept(0);
    }
    let told = String::from_utf8(world.received(monitor)).unwrap();
    assert!(told.ends_with("] \"SET\" \"big\" \"... (1 more arguments)\"\r\n"), "{told}");
    assert_eq!(told.matches("SET").count(), 1);
}

#[test]
fn a_monitor_asks_servers_nothing_and_can_be_reset() {
    let (mut world, lane, monitor) = monitored(REDIS);
    assert_eq!(announced(&mut world), [true]);
    world.send(monitor, redis("GET a"));
    world.expect(monitor, "-ERR Replica can't interact with the keyspace\r\n");
    world.send(monitor, redis("MULTI"));
    world.expect(monitor, "-ERR a client that monitors may ask this gateway only, no server\r\n");
    // A second one is not answered, as in Redis. It is told of itself, too.
    world.send(monitor, redis("MONITOR") + &redis("PING"));
    let told = String::from_utf8(world.received(monitor)).unwrap();
    assert!(told.starts_with("+PONG\r\n+17") && told.ends_with("] \"PING\"\r\n"), "{told}");
    world.send(monitor, redis("RESET"));
    world.wait_ms(20);
    world.expect(monitor, "+RESET\r\n");
    let client = world.client();
    world.send(client, redis("GET a"));
    world.expect(monitor, "");
    world.send(lane, "$-1\r\n");
    world.send(monitor, redis("MONITOR"));
    world.expect(monitor, "+OK\r\n");
    world.close(monitor, CloseReason::Eof);
    world.send(client, redis("GET a"));
    world.expect(lane, redis("GET a").repeat(2));
    assert_eq!(announced(&mut world), [false, true, false]);
    let monitor = world.client();
    world.send(monitor, redis("MONITOR") + &redis("QUIT"));
    world.wait_ms(20);
    world.expect(monitor, "+OK\r\n+OK\r\n");
    assert_eq!(announced(&mut world), [true, false]);
}

#[test]
fn a_monitor_may_speak_resp3_and_have_watched_something() {
    let (mut world, lane, _) = monitored(REDIS);
    let monitor = world.client();
    world.send(monitor, redis("HELLO 3"));
    world.received(monitor);
    world.send(monitor, redis("MONITOR") + &redis("CLIENT INFO"));
    let told = String::from_utf8(world.received(monitor)).unwrap();
    assert!(told.starts_with("+OK\r\n") && told.contains(" flags=O "), "{told}");
    assert!(told.ends_with("[0 127.0.0.1:2] \"CLIENT\" \"INFO\"\r\n"), "{told}");
    let other = world.client();
    world.send(other, redis("GET k"));
    let told = String::from_utf8(world.received(monitor)).unwrap();
    assert!(told.ends_with("[0 127.0.0.1:3] \"GET\" \"k\"\r\n"), "{told}");
    world.send(lane, "$-1\r\n");
    world.expect(other, "$-1\r\n");
}

/// A transaction keeps a client that is to leave, and monitoring ends it.
#[test]
fn who_begins_to_monitor_while_it_is_to_leave_stays() {
    for all_leave in [false, true] {
        let (mut world, [_]): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
        let client = world.client();
        world.send(client, redis("WATCH a"));
        let lane = world.accept(0);
        world.expect(lane, redis("WATCH a"));
        world.send(lane, "+OK\r\n");
        world.expect(client, "+OK\r\n");
        match all_leave {
            false => world.engine.handle_leave(client, world.now),
            true => world.engine.leave_all(world.now),
        }
        world.tick();
        world.send(client, redis("MONITOR"));
        world.expect(lane, redis("UNWATCH"));
        world.send(lane, "+OK\r\n");
        world.expect(client, "+OK\r\n");
        world.wait_ms(10);
        assert!(!world.is_handed_off(client), "others would not tell it");
        // It is served, and looked after.
        world.send(client, redis("PING"));
        world.wait_ms(5000);
        let told = String::from_utf8(world.received(client)).unwrap();
        assert!(told.starts_with("+PONG\r\n"), "{told}");
        assert!(!world.closed.contains(&client));
        // When it is like others again it goes with them.
        world.send(client, redis("RESET"));
        world.wait_ms(20);
        world.expect(client, "+RESET\r\n");
        world.wait_ms(10);
        assert_eq!(world.is_handed_off(client), all_leave);
    }
}

#[test]
fn clients_of_other_pools_are_nobodys_business() {
    let snapshot = crate::world::snapshot(
        "a:\n  listen: 127.0.0.1:6000\n  redis: true\n  servers: [127.0.0.1:7000:1]\n\
         b:\n  listen: 127.0.0.1:6001\n  redis: true\n  servers: [127.0.0.1:7001:1]\n",
    );
    let mut world = World::new(&snapshot);
    let monitor = world.client_of(0);
    world.send(monitor, redis("MONITOR"));
    world.expect(monitor, "+OK\r\n");
    let (same, other) = (world.client_of(0), world.client_of(1));
    world.send(other, redis("PING"));
    world.expect(monitor, "");
    world.send(same, redis("PING"));
    assert!(world.received(monitor).ends_with(b"\"PING\"\r\n"));
}

#[test]
fn a_monitor_that_does_not_read_is_closed() {
    let limits = "redis: true\npreconnect: true\npubsub_output_max: 64kb";
    let (mut world, lane, monitor) = monitored(limits);
    world.stuck.push(monitor);
    let client = world.client();
    let request = redis(&format!("GET {}", "k".repeat(1000)));
    for _ in 0..70 {
        world.send(client, &request);
        world.send(lane, "$-1\r\n");
    }
    assert!(world.closed.contains(&monitor));
    let pool = world.metrics.pool(0);
    assert_eq!(world.metrics.pool_counter(pool, PoolCounter::ClientsOverflowed), 1);
    world.received(client);
    world.send(client, &request);
    world.send(lane, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.close(client, CloseReason::Eof);
    world.wait_ms(3000);
    world.assert_idle();
}

#[test]
fn a_monitor_that_reads_too_slowly_is_closed() {
    let limits = "redis: true\npreconnect: true\npubsub_output_soft_max: 4kb\n\
                  pubsub_output_soft_time: 5000";
    let (mut world, lane, monitor) = monitored(limits);
    let client = world.client();
    let request = redis(&format!("GET {}", "k".repeat(1000)));
    let ask = |world: &mut World, times| {
        for _ in 0..times {
            world.send(client, &request);
            world.send(lane, "$-1\r\n");
        }
    };
    world.stuck.push(monitor);
    ask(&mut world, 10);
    world.wait_ms(3000);
    world.stuck.clear();
    world.write(monitor);
    world.wait_ms(10_000);
    assert!(!world.closed.contains(&monitor), "it has read in time");
    world.stuck.push(monitor);
    ask(&mut world, 10);
    world.wait_ms(4000);
    assert!(!world.closed.contains(&monitor));
    world.wait_ms(3000);
    assert!(world.closed.contains(&monitor));
}

#[test]
fn monitors_elsewhere_are_told_as_far_as_there_is_room_and_as_long_as_they_ask() {
    let (mut world, [lane]): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
    world.engine.tell_time(WALL_US + world.now.as_micros(), world.now);
    let _first = world.client();
    let client = world.client();
    let ask = |world: &mut World, key: &str| {
        world.send(client, redis(&format!("GET {key}")));
        world.send(lane, "$-1\r\n");
        world.expect(client, "$-1\r\n");
    };
    ask(&mut world, "a");
    assert_eq!(world.told_elsewhere, "");
    world.engine.handle_watched(ListenerId::new(0), true, world.now);
    ask(&mut world, "a");
    assert_eq!(world.told_elsewhere, "", "nothing is allowed yet");
    assert_eq!(world.engine.poll_left_out(), Some((ListenerId::new(0), 1)));
    assert_eq!(world.engine.poll_left_out(), None);
    // One line is begun as long as there is any room.
    world.engine.allow_elsewhere(1);
    ask(&mut world, "b");
    assert_eq!(world.told_elsewhere, lines(&world, 0, &["GET b"]));
    ask(&mut world, "c");
    assert_eq!(world.told_elsewhere, lines(&world, 0, &["GET b"]));
    assert_eq!(world.engine.poll_left_out(), Some((ListenerId::new(0), 1)));
    world.told_elsewhere.clear();
    world.engine.allow_elsewhere(1000);
    world.engine.handle_watched(ListenerId::new(0), false, world.now);
    ask(&mut world, "d");
    assert_eq!(world.told_elsewhere, "");
    // Who dies cannot say that it wants no more.
    world.engine.handle_watched(ListenerId::new(0), true, world.now);
    world.wait_ms(3000);
    ask(&mut world, "e");
    assert_eq!(world.told_elsewhere, lines(&world, 0, &["GET e"]));
    world.wait_ms(4000);
    ask(&mut world, "f");
    assert!(!world.told_elsewhere.contains("\"f\""));
    assert_eq!(world.engine.poll_left_out(), None);
}

#[test]
fn monitors_are_told_how_much_they_missed_once_a_second() {
    let (mut world, _, monitor) = monitored(REDIS);
    let skipped = |world: &World, count: u32| {
        lines(world, 0, &[&format!("cashew skipped {count}")]).replace("127.0.0.1:2", "cashew:0")
    };
    let line = "+1.000000 [0 10.0.0.1:1] \"GET\" \"there\"\r\n";
    world.wait_ms(1500);
    world.engine.handle_observed(ListenerId::new(0), line.as_bytes(), 3, world.now);
    world.tick();
    let expected = skipped(&world, 3) + line;
    world.expect(monitor, expected);
    for _ in 0..2 {
        world.engine.handle_observed(ListenerId::new(0), b"", 2, world.now);
        world.tick();
        world.expect(monitor, "");
    }
    world.now = Time::from_micros(world.now.as_micros() + 1_000_000);
    world.engine.handle_timeout(world.now);
    world.tick();
    let expected = skipped(&world, 4);
    world.expect(monitor, expected);
    let pool = world.metrics.pool(0);
    assert_eq!(world.metrics.pool_counter(pool, PoolCounter::MonitorDropped), 7);
    // It is said again that somebody monitors.
    assert!(announced(&mut world).len() >= 2);
    // Without a monitor nobody misses anything.
    world.close(monitor, CloseReason::Eof);
    world.engine.handle_observed(ListenerId::new(0), line.as_bytes(), 3, world.now);
    assert_eq!(world.metrics.pool_counter(pool, PoolCounter::MonitorDropped), 7);
}

#[test]
fn monitor_is_answered_when_all_workers_tell() {
    let (mut world, [lane]): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
    world.is_unconfirmed = true;
    world.engine.tell_time(WALL_US + world.now.as_micros(), world.now);
    let [monitor, client, second] = std::array::from_fn(|_| world.client());
    world.send(monitor, redis("MONITOR") + &redis("PING"));
    world.send(client, redis("GET a"));
    world.send(lane, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.expect(monitor, "");
    world.engine.handle_monitored(ListenerId::new(0), world.now);
    world.tick();
    let told = String::from_utf8(world.received(monitor)).unwrap();
    assert!(told.starts_with("+OK\r\n+PONG\r\n+17") && told.ends_with("\"PING\"\r\n"), "{told}");
    // Now they do.
    world.send(second, redis("MONITOR"));
    world.expect(second, "+OK\r\n");
    for conn in [monitor, second] {
        world.close(conn, CloseReason::Eof);
    }
    // Nobody waits for ever, and who leaves meanwhile does no harm.
    let [monitor, second] = std::array::from_fn(|_| world.client());
    world.send(monitor, redis("MONITOR"));
    world.send(second, redis("MONITOR"));
    world.close(second, CloseReason::Eof);
    world.expect(monitor, "");
    world.wait_ms(2500);
    world.expect(monitor, "+OK\r\n");
    for conn in [monitor, client] {
        world.close(conn, CloseReason::Eof);
    }
    world.assert_idle();
}

#[test]
fn what_was_asked_before_a_monitor_says_goodbye_comes_before_the_answer() {
    for (words, answer) in [("QUIT", "+OK\r\n"), ("RESET", "+RESET\r\n")] {
        let (mut world, lane, monitor) = monitored(REDIS);
        let client = world.client();
        world.send(client, redis("GET a"));
        let told = lines(&world, 0, &["GET a"]);
        world.send(monitor, redis(words));
        world.expect(monitor, told);
        world.wait_ms(20);
        // It hears of itself no more, nor of others.
        world.expect(monitor, answer);
        world.send(client, redis("GET b"));
        world.expect(monitor, "");
        assert_eq!(world.closed.contains(&monitor), words == "QUIT");
        world.send(lane, "$-1\r\n$-1\r\n");
        world.received(client);
        world.received(lane);
        world.assert_idle();
    }
}

#[test]
fn of_several_workers_lines_are_held_until_they_are_in_order() {
    let snapshot = pool(REDIS, 1);
    let segments = Arc::new(Segments::in_memory(&Layout::new(&snapshot), 2));
    let mut world = World::of_worker(&snapshot, &segments, 0, 2);
    world.accept(0);
    world.engine.tell_time(WALL_US + world.now.as_micros(), world.now);
    let client = world.client();
    let monitor = world.client();
    world.send(monitor, redis("MONITOR"));
    world.engine.handle_monitored(ListenerId::new(0), world.now);
    world.tick();
    world.expect(monitor, "+OK\r\n");
    let early = lines(&world, 0, &["GET elsewhere"]).replace(":2]", ":9]");
    world.wait_ms(4);
    world.send(client, redis("PING"));
    let here = lines(&world, 0, &["PING"]).replace(":2]", ":1]");
    world.expect(client, "+PONG\r\n");
    world.expect(monitor, "");
    world.wait_ms(8);
    world.engine.handle_observed(ListenerId::new(0), early.as_bytes(), 0, world.now);
    world.tick();
    world.wait_ms(10);
    let told = String::from_utf8(world.received(monitor)).unwrap();
    assert_eq!(told.replace("127.0.0.1:", ""), (early + &here).replace("127.0.0.1:", ""));
}
