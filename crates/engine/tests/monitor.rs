//! MONITOR: what is told, and to whom.

mod world;

use cashew_engine::{CloseReason, ConnId};
use world::{World, pool, redis};

const REDIS: &str = "redis: true\npreconnect: true";

fn monitored(options: &str) -> (World, ConnId, ConnId) {
    let (mut world, [lane]): (World, [ConnId; 1]) = World::connected(&pool(options, 1));
    world.engine.tell_time(1_700_000_000_000_000 + world.now.as_micros(), world.now);
    let monitor = world.client();
    world.send(monitor, redis("MONITOR"));
    world.expect(monitor, "+OK\r\n");
    (world, lane, monitor)
}

#[test]
fn a_monitor_is_told_what_others_ask() {
    let (mut world, lane, monitor) = monitored(REDIS);
    let client = world.client();
    let at = |world: &World| {
        let micros = 1_700_000_000_000_000 + world.now.as_micros();
        format!("+{}.{:06}", micros / 1_000_000, micros % 1_000_000)
    };
    world.send(client, redis("SET k v") + &redis("GET k") + "ping \"a b\"\r\n");
    let now = at(&world);
    world.expect(
        monitor,
        format!(
            "{now} [0 client:2] \"SET\" \"k\" \"v\"\r\n{now} [0 client:2] \"GET\" \"k\"\r\n\
             {now} [0 client:2] \"ping\" \"a b\"\r\n"
        ),
    );
    world.send(lane, "+OK\r\n$1\r\nv\r\n");
    world.expect(client, "+OK\r\n$1\r\nv\r\n$3\r\na b\r\n");
    // What waits is told once, when it is dispatched.
    world.send(client, redis("GET k") + &redis("SELECT 1"));
    world.expect(monitor, format!("{now} [0 client:2] \"GET\" \"k\"\r\n"));
    world.send(lane, "$1\r\nv\r\n");
    world.expect(monitor, format!("{now} [0 client:2] \"SELECT\" \"1\"\r\n"));
    // Secrets are not told, nor what is no command.
    world.send(client, redis("AUTH user secret") + &redis("NOSUCH x") + &redis("CONFIG GET x"));
    let told = String::from_utf8(world.received(monitor)).unwrap();
    assert_eq!(told, format!("{now} [1 client:2] \"AUTH\" \"(redacted)\" \"(redacted)\"\r\n"));
}

#[test]
fn a_monitor_asks_nothing_and_can_be_reset() {
    let (mut world, lane, monitor) = monitored(REDIS);
    world.send(monitor, redis("GET a"));
    world.expect(monitor, "-ERR Replica can't interact with the keyspace\r\n");
    world.send(monitor, redis("PING") + &redis("RESET"));
    world.expect(monitor, "+PONG\r\n+RESET\r\n");
    let client = world.client();
    world.send(client, redis("GET a"));
    world.expect(monitor, "");
    world.send(lane, "$-1\r\n");
    world.send(monitor, redis("MONITOR"));
    world.expect(monitor, "+OK\r\n");
    world.close(monitor, CloseReason::Eof);
    world.send(client, redis("GET a"));
    world.expect(lane, redis("GET a").repeat(2));
}

#[test]
fn a_monitor_that_does_not_read_misses_lines() {
    let (mut world, lane, monitor) = monitored(REDIS);
    world.stuck.push(monitor);
    let client = world.client();
    let request = redis(&format!("GET {}", "k".repeat(1000)));
    for _ in 0..2000 {
        world.send(client, &request);
        world.send(lane, "$-1\r\n");
    }
    world.received(client);
    world.stuck.clear();
    world.write(monitor);
    let told = world.received(monitor).len();
    assert!((900_000..=1 << 20).contains(&told), "{told}");
    world.send(client, redis("GET b"));
    assert!(world.received(monitor).ends_with(b"\"GET\" \"b\"\r\n"));
}
