//! Where the time of slow requests went, and which keys samples tell of.

use crate::world::{World, pool, redis};
use cashew_engine::Sighting;
use cashew_metrics::{Ranking, Times};

const OPTIONS: &str = "redis: true\npreconnect: true\nslow_log: 10ms";

fn words(sighting: &Sighting) -> Vec<String> {
    sighting.arguments.iter().map(|it| String::from_utf8_lossy(it).into_owned()).collect()
}

#[track_caller]
fn only(world: &mut World) -> Sighting {
    world.tick();
    assert_eq!(world.sightings.len(), 1, "{:#?}", world.sightings);
    world.sightings.remove(0)
}

#[test]
fn a_slow_server_is_told_of_with_command_and_key() {
    let (mut world, client, [lane]) = World::with_client(&pool(OPTIONS, 1));
    world.send(client, redis("SET some:key value"));
    world.wait_ms(25);
    world.send(lane, "+OK\r\n");
    let seen = only(&mut world);
    assert_eq!(seen.times, Times { server_us: 25_000, ..Times::default() });
    assert_eq!(words(&seen), ["SET", "some:key", "value"]);
    assert_eq!((seen.pool.as_str(), seen.server.as_str()), ("p", "s0"));
    assert_eq!((seen.client, seen.reply_bytes, seen.is_slow), (Some(client), 5, true));
    // What takes less is not.
    world.send(client, redis("GET k"));
    world.wait_ms(9);
    world.send(lane, "$-1\r\n");
    world.tick();
    assert!(world.sightings.is_empty());
}

#[test]
fn each_of_a_pipeline_is_told_of_with_its_own_text() {
    let (mut world, client, [lane]) = World::with_client(&pool(OPTIONS, 1));
    world.send(client, redis("GET a") + &redis("GET b") + &redis("GET c"));
    world.wait_ms(5);
    world.send(lane, "$1\r\na\r\n");
    world.wait_ms(15);
    world.send(lane, "$1\r\nb\r\n$1\r\nc\r\n");
    world.tick();
    let seen: Vec<_> = world.sightings.iter().map(words).collect();
    assert_eq!(seen, [["GET", "b"], ["GET", "c"]]);
}

#[test]
fn what_waits_for_a_connection_waits_in_the_queue() {
    let mut world = World::new(&pool("redis: true\nslow_log: 10ms", 1));
    let client = world.client();
    world.send(client, redis("GET k"));
    world.wait_ms(30);
    let lane = world.accept(0);
    world.wait_ms(2);
    world.send(lane, "$-1\r\n");
    let seen = only(&mut world);
    assert_eq!(seen.times, Times { queue_us: 30_000, server_us: 2000, ..Times::default() });
}

#[test]
fn a_reply_that_waits_for_another_waits_for_its_order() {
    let (mut world, client, [first, second]) = World::with_client(&pool(OPTIONS, 2));
    world.send(client, redis("GET a") + &redis("GET b"));
    let (slow, fast) = match world.received(first).ends_with(b"a\r\n") {
        true => (first, second),
        false => (second, first),
    };
    world.wait_ms(1);
    world.send(fast, "$-1\r\n");
    world.wait_ms(40);
    world.send(slow, "$-1\r\n");
    world.tick();
    let of = |key: &str| {
        let seen = world.sightings.iter().find(|it| words(it)[1] == key);
        seen.map(|it| it.times)
    };
    assert_eq!(of("a"), Some(Times { server_us: 41_000, ..Times::default() }));
    // It was not known to be slow when it was answered, which is the gateway's way of looking.
    assert_eq!(of("b"), None);
}

#[test]
fn a_client_that_reads_slowly_is_told_of() {
    let (mut world, client, [lane]) = World::with_client(&pool(OPTIONS, 1));
    world.send(client, redis("GET k"));
    world.stuck.push(client);
    world.send(lane, "$10\r\n0123456789\r\n");
    world.write_some(client, 4);
    world.wait_ms(50);
    world.stuck.clear();
    world.write(client);
    let seen = only(&mut world);
    assert_eq!(seen.times, Times { client_us: 50_000, ..Times::default() });
    assert_eq!(
        (words(&seen), seen.is_slow),
        (vec!["(not kept, the last one called was GET)".to_owned()], true)
    );
}

#[test]
fn a_worker_that_was_busy_is_told_of() {
    let (mut world, client, [lane]) = World::with_client(&pool(OPTIONS, 1));
    world.now = world.now.plus_millis(100);
    // It looked at nothing for so long, and then finds a request.
    let from = world.now;
    world.now = world.now.plus_millis(20);
    world.engine.note_busy(from, 20_000, world.now);
    world.send(client, redis("GET k"));
    world.wait_ms(1);
    world.send(lane, "$-1\r\n");
    let seen = only(&mut world);
    assert_eq!(seen.times, Times { gateway_us: 20_000, server_us: 1000, ..Times::default() });
    // The reply may have lain there as well.
    world.send(client, redis("GET k"));
    let from = world.now.plus_millis(2);
    world.now = world.now.plus_millis(30);
    world.engine.note_busy(from, 28_000, world.now);
    world.send(lane, "$-1\r\n");
    let seen = only(&mut world);
    assert_eq!(seen.times, Times { gateway_us: 28_000, server_us: 2000, ..Times::default() });
}

#[test]
fn what_fails_after_a_while_is_told_of_with_why() {
    let (mut world, client, [_lane]) =
        World::with_client(&pool(&format!("{OPTIONS}\ntimeout: 400"), 1));
    world.send(client, redis("GET k"));
    world.wait_ms(400);
    let seen = only(&mut world);
    assert_eq!(
        (words(&seen), seen.failure.as_str()),
        (vec!["GET".into(), "k".into()], "Connection timed out")
    );
    assert_eq!(seen.times.server_us, 400_000);
}

#[test]
fn blocking_calls_are_not_slow() {
    let (mut world, client, [_lane]) = World::with_client(&pool(OPTIONS, 1));
    world.send(client, redis("BLPOP k 0"));
    let lane = world.accept(0);
    world.send(lane, ":77\r\n");
    world.wait_ms(5000);
    world.send(lane, "*2\r\n$1\r\nk\r\n$1\r\nv\r\n");
    world.expect(client, "*2\r\n$1\r\nk\r\n$1\r\nv\r\n");
    world.tick();
    assert!(world.sightings.is_empty(), "{:?}", world.sightings);
}

#[test]
fn too_many_slow_requests_are_counted_and_nothing_is_when_it_is_off() {
    let (mut world, client, [lane]) = World::with_client(&pool(OPTIONS, 1));
    world.send(client, redis("GET k").repeat(500));
    world.wait_ms(20);
    world.send(lane, "$-1\r\n".repeat(500));
    world.tick();
    assert_eq!(world.sightings.len(), 100);
    let off = OPTIONS.replace("10ms", "0ms");
    let (mut world, client, [lane]) = World::with_client(&pool(&off, 1));
    world.send(client, redis("GET k"));
    world.wait_ms(2000);
    world.send(lane, "$-1\r\n");
    world.tick();
    assert!(world.sightings.is_empty());
}

#[test]
fn samples_tell_which_keys_are_hot() {
    let (mut world, client, [lane]) = World::with_client(&pool(OPTIONS, 1));
    for round in 0..200 {
        let key =
            if round % 4 == 0 { "cold".to_owned() + &round.to_string() } else { "hot".into() };
        world.send(client, redis(&format!("GET {key}")));
        world.wait_ms(1);
        world.send(lane, "$1\r\nv\r\n");
    }
    let now_us = world.now.as_micros();
    let hot = world.metrics.hot_keys(world.metrics.pool(0), Ranking::Requests, now_us);
    assert_eq!(hot.keys[0].key, b"hot");
    let share = hot.keys[0].weight as f64 / hot.total as f64;
    assert!((0.65..0.85).contains(&share), "{share}");
    let off = format!("{OPTIONS}\nhot_keys: false");
    let (mut world, client, [lane]) = World::with_client(&pool(&off, 1));
    world.send(client, redis("GET k"));
    world.send(lane, "$1\r\nv\r\n");
    let hot = world.metrics.hot_keys(world.metrics.pool(0), Ranking::Requests, 1);
    assert!(hot.keys.is_empty());
}

#[test]
fn requests_of_long_pipelines_are_known_by_their_keys() {
    let (mut world, client, [lane]) = World::with_client(&pool(OPTIONS, 1));
    let requests: String = (0..2000).map(|n| redis(&format!("GET key:{n}"))).collect();
    assert!(requests.len() > 32 * 1024);
    world.send(client, requests);
    world.wait_ms(20);
    world.send(lane, "$-1\r\n".repeat(2000));
    world.tick();
    let seen: Vec<_> = world.sightings.iter().map(words).collect();
    let expected: Vec<_> = (0..100).map(|n| ["GET".to_owned(), format!("key:{n}")]).collect();
    assert_eq!(seen, expected);
}
