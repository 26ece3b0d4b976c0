//! Publish and subscribe: who hears what, who is told what, and what servers are asked.

use std::sync::Arc;

use crate::world::{World, pool, redis};
use cashew_config::Snapshot;
use cashew_engine::{Action, CloseReason, ConnId, Plan};
use cashew_metrics::{Layout, PoolCounter, PoolGauge, Segments};

const REDIS: &str = "redis: true\npreconnect: true\ntimeout: 400";

/// A confirmation, or with a text instead of a number a message, as RESP2 has it.
fn array(words: &str) -> String {
    let words: Vec<&str> = words.split(' ').collect();
    let element = |word: &&str| match word.strip_prefix(':') {
        Some(number) => format!(":{number}\r\n"),
        None => format!("${}\r\n{word}\r\n", word.len()),
    };
    format!("*{}\r\n{}", words.len(), words.iter().map(element).collect::<String>())
}

/// A client that is subscribed to `channel`, the only one; and the feed, which was asked for it.
#[track_caller]
fn subscriber(world: &mut World, server: u32, channel: &str) -> (ConnId, ConnId) {
    let client = world.client();
    world.send(client, redis(&format!("SUBSCRIBE {channel}")));
    let feed = world.accept(server);
    world.expect(feed, redis(&format!("subscribe {channel}")));
    world.send(feed, array(&format!("subscribe {channel} :1")));
    world.expect(client, array(&format!("subscribe {channel} :1")));
    (client, feed)
}

fn closed(world: &World, conn: ConnId) -> bool {
    world.closed.contains(&conn)
}

#[test]
fn one_subscription_on_the_server_feeds_many_clients() {
    let (mut world, [_lane]): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
    let first = world.client();
    world.send(first, redis("SUBSCRIBE news"));
    let feed = world.accept(0);
    world.expect(feed, redis("subscribe news"));
    // Nobody is told before the server has said so.
    let second = world.client();
    world.send(second, redis("SUBSCRIBE news"));
    world.expect(feed, "");
    world.expect(first, "");
    world.send(feed, array("subscribe news :1"));
    world.expect(first, array("subscribe news :1"));
    world.expect(second, array("subscribe news :1"));
    // What is known is told at once.
    let third = world.client();
    world.send(third, redis("SUBSCRIBE news"));
    world.expect(third, array("subscribe news :1"));
    world.expect(feed, "");
    let message = array("message news hello");
    world.send(feed, message.clone() + &message);
    for client in [first, second, third] {
        world.expect(client, message.clone() + &message);
    }
    let pool = world.metrics.pool(0);
    assert_eq!(world.metrics.pool_counter(pool, PoolCounter::MessagesDelivered), 6);
    assert_eq!(world.metrics.pool_gauge(pool, PoolGauge::Subscriptions), 3);

    // The server hears of it when the last one goes, who is told when the server knows.
    // Who goes before waits until what was published before has come.
    world.send(first, redis("UNSUBSCRIBE news"));
    world.expect(feed, redis("PING"));
    world.expect(first, "");
    world.send(feed, message.clone() + "*2\r\n$4\r\npong\r\n$0\r\n\r\n" + &message);
    world.expect(first, message.clone() + &array("unsubscribe news :0"));
    world.close(second, CloseReason::Eof);
    world.expect(feed, "");
    world.expect(third, message.clone() + &message);
    world.send(third, redis("UNSUBSCRIBE"));
    world.expect(feed, redis("unsubscribe news"));
    world.expect(third, "");
    world.send(feed, message.clone() + &array("unsubscribe news :0") + &message);
    world.expect(third, message + &array("unsubscribe news :0"));
    world.expect(first, "");
    assert_eq!(world.metrics.pool_gauge(pool, PoolGauge::Subscriptions), 0);
    world.assert_idle();
    // A feed of nothing is closed.
    world.wait_ms(2000);
    assert!(closed(&world, feed));
}

#[test]
fn subscriptions_keep_their_place_among_other_requests() {
    let (mut world, [lane]): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
    let client = world.client();
    let requests = ["GET a", "SUBSCRIBE x y", "PING", "UNSUBSCRIBE", "GET b"].map(redis).concat();
    world.send(client, requests);
    world.expect(lane, redis("GET a"));
    assert!(!world.connects_to(0), "the subscription waits for what came before");
    world.send(lane, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    let feed = world.accept(0);
    world.expect(feed, redis("subscribe x") + &redis("subscribe y"));
    world.send(feed, array("subscribe x :1"));
    // Confirmations go as they come.
    world.expect(client, array("subscribe x :1"));
    world.send(feed, array("message x 1"));
    world.expect(client, array("message x 1"));
    world.send(feed, array("subscribe y :2"));
    let pong = "*2\r\n$4\r\npong\r\n$0\r\n\r\n";
    world.expect(client, array("subscribe y :2") + pong);
    world.expect(feed, redis("unsubscribe x") + &redis("unsubscribe y"));
    world.expect(lane, "");
    world.send(feed, array("unsubscribe x :1") + &array("message y 2"));
    world.expect(client, array("unsubscribe x :1") + &array("message y 2"));
    world.send(feed, array("unsubscribe y :0"));
    world.expect(client, array("unsubscribe y :0"));
    world.expect(lane, redis("GET b"));
    world.send(lane, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.assert_idle();
}

#[test]
fn a_subscriber_may_do_little_else() {
    let (mut world, [lane]): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
    let (client, feed) = subscriber(&mut world, 0, "news");
    world.send(client, redis("GET a"));
    world.expect(
        client,
        "-ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET \
         are allowed in this context\r\n",
    );
    world.send(client, redis("PING hi"));
    world.expect(client, array("pong hi"));
    world.send(client, redis("NOSUCH"));
    assert!(world.received(client).starts_with(b"-ERR unknown command 'NOSUCH'"));
    world.send(client, redis("QUIT"));
    world.expect(feed, redis("unsubscribe news"));
    world.expect(client, "");
    world.send(feed, array("message news late") + &array("unsubscribe news :0"));
    world.expect(client, array("message news late") + "+OK\r\n");
    assert!(closed(&world, client));
    world.expect(lane, "");
}

const PONG: &str = "*2\r\n$4\r\npong\r\n$0\r\n\r\n";

#[test]
fn what_comes_for_those_who_have_left_is_not_for_those_who_come() {
    let (mut world, [_]): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
    let (first, feed) = subscriber(&mut world, 0, "news");
    world.send(first, redis("UNSUBSCRIBE news news nosuch"));
    world.expect(feed, redis("unsubscribe news"));
    // To the same name, before the server has forgotten it.
    let second = world.client();
    world.send(second, redis("SUBSCRIBE news"));
    world.expect(feed, redis("subscribe news"));
    let early = array("message news early");
    let late = array("message news late");
    let left = array("unsubscribe news :0");
    world.send(feed, early.clone() + &left + &array("subscribe news :1") + &late);
    world.expect(first, early + &left.repeat(2) + &array("unsubscribe nosuch :0"));
    world.expect(second, array("subscribe news :1") + &late);
    // Who leaves with another one gets what the last one gets.
    let third = world.client();
    world.send(third, redis("SUBSCRIBE news"));
    world.expect(third, array("subscribe news :1"));
    world.send(third, redis("UNSUBSCRIBE"));
    world.expect(feed, redis("PING"));
    world.send(second, redis("UNSUBSCRIBE"));
    world.expect(feed, redis("unsubscribe news"));
    world.send(feed, late.clone() + PONG + &late + &left);
    world.expect(third, late.clone() + &left);
    world.expect(second, late.repeat(2) + &left);
    assert_eq!(world.metrics.pool_gauge(world.metrics.pool(0), PoolGauge::Subscriptions), 0);
    world.assert_idle();
}

#[test]
fn who_leaves_is_told_so_though_the_server_goes_or_the_client_does() {
    let (mut world, [_]): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
    let (stays, feed) = subscriber(&mut world, 0, "news");
    let [leaves, quits, resets, gone] = [(); 4].map(|()| {
        let client = world.client();
        world.send(client, redis("SUBSCRIBE news"));
        world.expect(client, array("subscribe news :1"));
        client
    });
    for (client, words) in
        [(leaves, "UNSUBSCRIBE"), (quits, "QUIT"), (resets, "RESET"), (gone, "UNSUBSCRIBE news")]
    {
        world.send(client, redis(words));
        world.expect(feed, redis("PING"));
        world.expect(client, "");
    }
    world.close(gone, CloseReason::Eof);
    world.send(resets, redis("PING"));
    world.close(feed, CloseReason::Reset);
    world.expect(leaves, array("unsubscribe news :0"));
    world.expect(quits, "+OK\r\n");
    world.expect(resets, "+RESET\r\n+PONG\r\n");
    assert!(closed(&world, quits));
    world.wait_ms(1000);
    let feed = world.accept(0);
    world.expect(feed, redis("subscribe news"));
    world.send(feed, array("subscribe news :1") + &array("message news again"));
    world.expect(stays, array("message news again"));
    for client in [leaves, resets] {
        world.expect(client, "");
    }
    assert_eq!(world.metrics.pool_gauge(world.metrics.pool(0), PoolGauge::Subscriptions), 1);
    world.close(stays, CloseReason::Eof);
    world.send(feed, array("unsubscribe news :0"));
    world.assert_idle();
}

#[test]
fn who_leaves_while_a_message_is_on_its_way_is_not_counted() {
    let (mut world, [lane]): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
    let (_stays, feed) = subscriber(&mut world, 0, "news");
    let leaves = world.client();
    world.send(leaves, redis("SUBSCRIBE news"));
    world.expect(leaves, array("subscribe news :1"));
    let publisher = world.client();
    for (is_answered_before, heard) in [(true, ":2\r\n"), (false, ":1\r\n")] {
        world.send(publisher, redis("PUBLISH news x"));
        world.expect(lane, redis("PUBLISH news x"));
        if is_answered_before {
            world.send(lane, ":1\r\n");
            world.expect(publisher, heard);
            continue;
        }
        world.send(leaves, redis("UNSUBSCRIBE news"));
        world.send(lane, ":1\r\n");
        world.expect(publisher, heard);
    }
    world.expect(feed, redis("PING"));
    world.send(feed, array("message news x") + PONG + &array("message news x"));
    world.expect(leaves, array("message news x") + &array("unsubscribe news :0"));
}

#[test]
fn subscriptions_are_counted_as_redis_counts_them() {
    let (mut world, [_]): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
    let (client, feed) = subscriber(&mut world, 0, "a");
    world.send(client, redis("UNSUBSCRIBE b b"));
    world.expect(client, array("unsubscribe b :1").repeat(2));
    world.send(client, redis("PSUBSCRIBE p*"));
    world.send(feed, array("psubscribe p* :2"));
    world.expect(client, array("psubscribe p* :2"));
    world.send(client, redis("SSUBSCRIBE s"));
    world.send(feed, array("ssubscribe s :1"));
    world.expect(client, array("ssubscribe s :1"));
    world.send(client, redis("SUBSCRIBE a a"));
    world.expect(client, array("subscribe a :2").repeat(2));
    world.send(client, redis("PUNSUBSCRIBE"));
    world.send(feed, array("punsubscribe p* :1"));
    world.expect(client, array("punsubscribe p* :1"));
    world.send(client, redis("PUNSUBSCRIBE"));
    world.expect(client, "*3\r\n$12\r\npunsubscribe\r\n$-1\r\n:1\r\n");
    world.send(client, redis("SUNSUBSCRIBE s"));
    world.send(feed, array("sunsubscribe s :0"));
    world.expect(client, array("sunsubscribe s :0"));
}

#[test]
fn publish_tells_how_many_clients_have_heard() {
    let (mut world, [lane]): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
    let (_, feed) = subscriber(&mut world, 0, "news");
    let others: [ConnId; 2] = std::array::from_fn(|_| world.client());
    for other in others {
        world.send(other, redis("SUBSCRIBE news"));
        world.send(other, redis("PSUBSCRIBE n*"));
    }
    world.send(feed, array("psubscribe n* :2"));
    let publisher = world.client();
    let publish = |world: &mut World, text: &str, heard: u32| {
        world.send(publisher, redis(text));
        world.expect(lane, redis(text));
        world.send(lane, format!(":{heard}\r\n"));
        String::from_utf8(world.received(publisher)).unwrap()
    };
    // The server has the channel and the pattern of this worker, and three of others.
    assert_eq!(publish(&mut world, "PUBLISH news hi", 2 + 3), ":8\r\n");
    assert_eq!(publish(&mut world, "PUBLISH nothing hi", 1), ":2\r\n");
    assert_eq!(publish(&mut world, "PUBLISH other hi", 7), ":7\r\n");
    assert_eq!(publish(&mut world, "SPUBLISH news hi", 1), ":1\r\n");
    // Behind others of its client.
    world.send(publisher, redis("SET a b") + &redis("PUBLISH news hi") + &redis("GET a"));
    world.expect(lane, redis("SET a b") + &redis("PUBLISH news hi") + &redis("GET a"));
    world.send(lane, "+OK\r\n:2\r\n$1\r\nb\r\n");
    world.expect(publisher, "+OK\r\n:5\r\n$1\r\nb\r\n");
    world.send(publisher, redis("PUBLISH news hi"));
    world.send(lane, "-NOPERM no\r\n");
    world.expect(publisher, "-NOPERM no\r\n");
}

#[test]
fn who_publishes_does_not_count_those_who_have_left() {
    let (mut world, [lane]): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
    let (client, feed) = subscriber(&mut world, 0, "news");
    world.send(client, redis("PSUBSCRIBE n*"));
    world.send(feed, array("psubscribe n* :2"));
    for conn in [client, feed] {
        world.received(conn);
    }
    world.close(client, CloseReason::Eof);
    world.expect(feed, redis("unsubscribe news") + &redis("punsubscribe n*"));
    let publisher = world.client();
    world.send(publisher, redis("PUBLISH other hi"));
    world.expect(lane, redis("PUBLISH other hi"));
    world.send(lane, ":0\r\n");
    world.expect(publisher, ":0\r\n");
    // Its subscription is not gone yet where it counts.
    world.send(publisher, redis("PUBLISH news hi") + &redis("GET a"));
    world.expect(lane, "");
    world.send(feed, array("punsubscribe n* :1"));
    // What others leave meanwhile is not waited for, too.
    world.expect(lane, redis("PUBLISH news hi") + &redis("GET a"));
    world.send(lane, ":0\r\n$-1\r\n");
    world.expect(publisher, ":0\r\n$-1\r\n");
    world.send(publisher, redis("PUBSUB NUMPAT"));
    world.expect(lane, "");
    world.send(feed, array("unsubscribe news :0"));
    world.expect(lane, redis("PUBSUB NUMPAT"));
    world.send(lane, ":0\r\n");
    world.expect(publisher, ":0\r\n");
    world.assert_idle();
}

#[test]
fn subscribers_are_counted_by_clients() {
    let (mut world, lanes): (World, [ConnId; 2]) = World::connected(&pool(REDIS, 2));
    let (first, feed) = {
        let client = world.client();
        world.send(client, redis("SUBSCRIBE a"));
        let server = if world.connects_to(0) { 0 } else { 1 };
        (client, world.accept(server))
    };
    world.send(feed, array("subscribe a :1"));
    let second = world.client();
    world.send(second, redis("SUBSCRIBE a"));
    for client in [first, second] {
        world.expect(client, array("subscribe a :1"));
    }
    let asker = world.client();
    world.send(asker, redis("PUBSUB NUMSUB none a"));
    let said = "*4\r\n$4\r\nnone\r\n:3\r\n$1\r\na\r\n:1\r\n";
    for lane in lanes {
        world.expect(lane, redis("PUBSUB NUMSUB none a"));
        world.send(lane, said);
    }
    world.expect(asker, "*4\r\n$4\r\nnone\r\n:6\r\n$1\r\na\r\n:3\r\n");
    // Every pattern is on all servers.
    world.send(asker, redis("PUBSUB NUMPAT"));
    for (lane, count) in lanes.into_iter().zip([":2\r\n", ":3\r\n"]) {
        world.send(lane, count);
    }
    world.expect(asker, ":3\r\n");
    // One server is asked as it is, and corrected.
    let (mut world, [lane]): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
    subscriber(&mut world, 0, "a");
    let other = world.client();
    world.send(other, redis("SUBSCRIBE a"));
    let asker = world.client();
    world.send(asker, redis("PUBSUB NUMSUB none a"));
    world.send(lane, said);
    world.expect(asker, "*4\r\n$4\r\nnone\r\n:3\r\n$1\r\na\r\n:2\r\n");
    world.send(asker, redis("PUBSUB NUMSUB a"));
    world.send(lane, "-NOPERM no\r\n");
    world.expect(asker, "-NOPERM no\r\n");
}

#[test]
fn workers_tell_each_other_how_many_clients_they_have() {
    let snapshot = pool(REDIS, 1);
    let segments = Arc::new(Segments::in_memory(&Layout::new(&snapshot), 2));
    let [mut one, mut other] = [0, 1].map(|slot| World::of_worker(&snapshot, &segments, slot, 2));
    let lanes = [&mut one, &mut other].map(|world| world.accept(0));
    let (client, feed) = subscriber(&mut one, 0, "news");
    for _ in 0..4 {
        let more = one.client();
        one.send(more, redis("SUBSCRIBE news"));
        one.send(more, redis("PSUBSCRIBE n*"));
    }
    one.send(feed, array("psubscribe n* :2"));
    let publish = |world: &mut World, lane: ConnId| {
        let client = world.client();
        world.send(client, redis("PUBLISH news hi"));
        // The channel and the pattern of one of the workers.
        world.send(lane, ":2\r\n");
        String::from_utf8(world.received(client)).unwrap()
    };
    assert_eq!(publish(&mut one, lanes[0]), ":9\r\n");
    assert_eq!(publish(&mut other, lanes[1]), ":9\r\n");
    one.close(client, CloseReason::Eof);
    assert_eq!(publish(&mut other, lanes[1]), ":8\r\n");
    // What a server has not got it does not count either.
    one.close(feed, CloseReason::Eof);
    assert_eq!(publish(&mut other, lanes[1]), ":2\r\n");
    let feed = one.accept(0);
    one.send(feed, array("subscribe news :1") + &array("psubscribe n* :2"));
    assert_eq!(publish(&mut other, lanes[1]), ":8\r\n");
}

#[test]
fn channels_are_on_one_server_and_patterns_on_all() {
    let (mut world, lanes): (World, [ConnId; 3]) = World::connected(&pool(REDIS, 3));
    let client = world.client();
    world.send(client, redis("PSUBSCRIBE *"));
    let feeds: [ConnId; 3] = std::array::from_fn(|server| world.accept(server as u32));
    for (at, feed) in feeds.into_iter().enumerate() {
        world.expect(feed, redis("psubscribe *"));
        world.expect(client, "");
        world.send(feed, array("psubscribe * :1"));
        assert_eq!(world.received(client).is_empty(), at < 2);
    }
    for n in 0..20 {
        let channel = format!("channel:{n}");
        world.send(client, redis(&format!("SUBSCRIBE {channel}")));
        let publisher = world.client();
        world.send(publisher, redis(&format!("PUBLISH {channel} hi")));
        let heard: Vec<usize> =
            (0..3).filter(|&at| !world.received(feeds[at]).is_empty()).collect();
        let published: Vec<usize> =
            (0..3).filter(|&at| !world.received(lanes[at]).is_empty()).collect();
        assert_eq!((heard.len(), &heard), (1, &published), "{channel}");
        world.send(feeds[heard[0]], array(&format!("subscribe {channel} :2")));
        world.send(lanes[heard[0]], ":2\r\n");
        world.expect(publisher, ":2\r\n");
        world.received(client);
    }
    // Every server says what happens to its own keys.
    world.send(client, redis("SUBSCRIBE __keyevent@0__:expired"));
    for feed in feeds {
        world.expect(feed, redis("subscribe __keyevent@0__:expired"));
    }
}

#[test]
fn a_server_that_cannot_be_reached_is_an_error_for_its_channels_only() {
    let (mut world, [_, _]): (World, [ConnId; 2]) = World::connected(&pool(REDIS, 2));
    let client = world.client();
    world.send(client, redis("SUBSCRIBE a b"));
    world.refuse(0);
    let feed = world.accept(1);
    let asked = String::from_utf8(world.received(feed)).unwrap();
    let here = if asked.contains("$1\r\na") { "a" } else { "b" };
    world.send(feed, array(&format!("subscribe {here} :1")));
    let answer = String::from_utf8(world.received(client)).unwrap();
    let confirmed = array(&format!("subscribe {here} :1"));
    let refused = "-ERR Connection refused\r\n";
    let expected = match here {
        "a" => confirmed + refused,
        _ => refused.to_owned() + &confirmed,
    };
    assert_eq!(answer, expected);
    // A pattern does without it, until it is back.
    world.send(client, redis("PSUBSCRIBE x*"));
    world.send(feed, array("psubscribe x* :2"));
    world.expect(client, array("psubscribe x* :2"));
    world.wait_ms(20);
    let other = world.accept(0);
    world.expect(other, redis("psubscribe x*"));
    world.send(other, array("psubscribe x* :1") + &array("pmessage x* xyz hi"));
    world.expect(client, array("pmessage x* xyz hi"));
}

#[test]
fn an_error_of_the_server_is_passed_on() {
    let (mut world, [_]): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
    let (client, feed) = subscriber(&mut world, 0, "a");
    world.send(client, redis("SUBSCRIBE secret b"));
    world.expect(feed, redis("subscribe secret") + &redis("subscribe b"));
    world.send(feed, "-NOPERM not this one\r\n".to_owned() + &array("subscribe b :2"));
    world.expect(client, "-NOPERM not this one\r\n".to_owned() + &array("subscribe b :2"));
    // Nothing of it is left.
    let other = world.client();
    world.send(other, redis("SUBSCRIBE secret"));
    world.expect(feed, redis("subscribe secret"));
}

#[test]
fn what_was_subscribed_is_subscribed_again() {
    let (mut world, [lane]): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
    let (client, feed) = subscriber(&mut world, 0, "news");
    world.send(client, redis("PSUBSCRIBE p*"));
    world.send(feed, array("psubscribe p* :2"));
    world.received(client);
    world.wait_ms(1500);
    world.close(feed, CloseReason::Eof);
    world.close(lane, CloseReason::Eof);
    world.refuse(0);
    world.refuse(0);
    assert!(!closed(&world, client));
    // Who comes meanwhile is told that it is away.
    let late = world.client();
    world.send(late, redis("SUBSCRIBE news"));
    world.expect(late, "-ERR Connection refused\r\n");
    for _ in 0..50 {
        world.wait_ms(100);
        while world.connects_to(0) {
            world.refuse(0);
        }
    }
    let again = redis("subscribe news") + &redis("psubscribe p*");
    let feed = loop {
        world.wait_ms(10);
        let conn = world.connects_to(0).then(|| world.accept(0));
        if let Some(conn) = conn.filter(|&conn| world.received(conn) == again.as_bytes()) {
            break conn;
        }
    };
    world.send(feed, array("subscribe news :1") + &array("message news back"));
    world.expect(client, array("message news back"));
    world.expect(late, "");
}

#[test]
fn a_silent_server_is_asked_and_given_up() {
    let (mut world, [_]): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
    let (_, feed) = subscriber(&mut world, 0, "news");
    assert!((0..120).any(|_| {
        world.wait_ms(100);
        closed(&world, feed)
    }));
    world.expect(feed, redis("PING"));
    let feed = world.accept(0);
    world.expect(feed, redis("subscribe news"));
    world.send(feed, array("subscribe news :1"));
    assert!((0..120).any(|_| {
        world.wait_ms(100);
        world.received(feed) == redis("PING").as_bytes()
    }));
    world.send(feed, "*2\r\n$4\r\npong\r\n$0\r\n\r\n");
    world.wait_ms(5000);
    assert!(!closed(&world, feed));
}

#[test]
fn confirmations_have_their_time() {
    let (mut world, [_]): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
    let client = world.client();
    world.send(client, redis("SUBSCRIBE news"));
    let feed = world.accept(0);
    world.wait_ms(399);
    world.expect(client, "");
    world.wait_ms(1);
    world.expect(client, "-ERR Connection timed out\r\n");
    assert!(closed(&world, feed));
    world.assert_idle();
}

#[test]
fn a_client_that_goes_takes_its_subscriptions_along() {
    let (mut world, [_]): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
    let (first, feed) = subscriber(&mut world, 0, "a");
    world.send(first, redis("SUBSCRIBE b c"));
    world.expect(feed, redis("subscribe b") + &redis("subscribe c"));
    world.send(feed, array("subscribe b :2"));
    // In the middle of a request.
    world.close(first, CloseReason::Reset);
    let gone = world.received(feed);
    let gone = String::from_utf8(gone).unwrap();
    for channel in ["a", "b", "c"] {
        assert!(gone.contains(&redis(&format!("unsubscribe {channel}"))), "{gone}");
    }
    world.send(feed, array("message b 1"));
    // Somebody else wants one of them before the server has answered.
    let second = world.client();
    world.send(second, redis("SUBSCRIBE b"));
    world.expect(feed, redis("subscribe b"));
    world.send(feed, array("message b 2"));
    world.send(feed, array("subscribe c :3"));
    let order: Vec<&str> = gone.split("*2\r\n").filter(|text| !text.is_empty()).collect();
    for text in order {
        let channel = text.trim_end().rsplit("\r\n").next().unwrap();
        world.send(feed, array(&format!("unsubscribe {channel} :0")));
    }
    world.expect(second, "");
    world.send(feed, array("subscribe b :1") + &array("message b 3"));
    world.expect(second, array("subscribe b :1") + &array("message b 3"));
    world.close(second, CloseReason::Eof);
    world.send(feed, array("unsubscribe b :0"));
    world.assert_idle();
}

#[test]
fn who_does_not_read_is_cut_and_others_go_on() {
    let options = "redis: true\npreconnect: true\npubsub_output_max: 64kb\n\
                   pubsub_output_soft_max: 32kb\npubsub_output_soft_time: 2000";
    let (mut world, [_]): (World, [ConnId; 1]) = World::connected(&pool(options, 1));
    let (good, feed) = subscriber(&mut world, 0, "news");
    let (slow, slower) = (world.client(), world.client());
    for client in [slow, slower] {
        world.send(client, redis("SUBSCRIBE news"));
        world.received(client);
        world.stuck.push(client);
    }
    let message = array(&format!("message news {}", "x".repeat(10_000)));
    for _ in 0..4 {
        world.send(feed, message.clone());
        world.expect(good, message.clone());
    }
    // For a while it may have so much.
    world.wait_ms(1000);
    assert!(!closed(&world, slow));
    world.stuck.retain(|&conn| conn != slow);
    world.write(slow);
    world.wait_ms(2500);
    assert_eq!((closed(&world, slow), closed(&world, slower)), (false, true));
    world.stuck.push(slow);
    for _ in 0..6 {
        world.send(feed, message.clone());
    }
    assert!(!closed(&world, slow));
    world.send(feed, message.clone());
    assert!(closed(&world, slow), "no client may have so much");
    world.expect(good, message.repeat(7));
    let pool = world.metrics.pool(0);
    assert_eq!(world.metrics.pool_counter(pool, PoolCounter::ClientsOverflowed), 2);
    // What is larger than anybody may be sent is not kept.
    let large = array(&format!("message news {}", "x".repeat(100_000)));
    for piece in large.as_bytes().chunks(30_000) {
        world.send(feed, piece);
    }
    assert!(closed(&world, good));
    world.send(feed, array("unsubscribe news :0"));
    world.assert_idle();
}

#[test]
fn there_is_a_most_of_subscriptions() {
    let options =
        "redis: true\npreconnect: true\nclient_subscriptions_max: 2\nsubscriptions_max: 3";
    let (mut world, [_]): (World, [ConnId; 1]) = World::connected(&pool(options, 1));
    let (client, feed) = subscriber(&mut world, 0, "a");
    world.send(client, redis("SUBSCRIBE b c"));
    world.expect(client, "-ERR max number of subscriptions of a client reached\r\n");
    world.send(client, redis("SUBSCRIBE b"));
    world.send(feed, array("subscribe b :2"));
    world.expect(client, array("subscribe b :2"));
    let other = world.client();
    world.send(other, redis("SUBSCRIBE c d"));
    world.expect(other, "-ERR max number of subscriptions reached\r\n");
    world.send(other, redis("SUBSCRIBE a"));
    world.expect(other, array("subscribe a :1"));
    world.send(other, redis(&format!("PSUBSCRIBE {}", "x".repeat(65_537))));
    world.expect(other, "-ERR max number of subscriptions reached\r\n");
}

/// Each message is held against all patterns.
#[test]
fn patterns_are_short() {
    let (mut world, [_]): (World, [ConnId; 1]) =
        World::connected(&pool("redis: true\npreconnect: true", 1));
    let client = world.client();
    world.send(client, redis(&format!("PSUBSCRIBE {}", "*".repeat(1025))));
    world.expect(client, "-ERR pattern is too long\r\n");
    world.send(client, redis(&format!("SUBSCRIBE {}", "x".repeat(65_537))));
    world.expect(client, "-ERR channel name is too long\r\n");
}

/// Has two workers go on by another snapshot; `meanwhile` happens to the first one when it is prepared.
fn change_both(
    [one, other]: [&mut World; 2],
    next: &mut Snapshot,
    meanwhile: impl FnOnce(&mut World),
) {
    next.epoch += 1;
    let segments = Arc::new(Segments::in_memory(&Layout::new(next), 2));
    one.engine.handle_prepare(Plan::whole(next, 0, 2), one.now);
    other.engine.handle_prepare(Plan::whole(next, 1, 2), other.now);
    one.tick();
    other.tick();
    meanwhile(one);
    for (slot, world) in [(0, one), (1, other)] {
        world.pause(0);
        world.metrics = segments.writer(slot);
        world.engine.handle_commit(world.metrics.clone(), world.now);
        world.tick();
    }
}

/// What a client is told that publishes, where the server counts one.
fn heard(world: &mut World, lane: ConnId, channel: &str) -> String {
    let client = world.client();
    world.send(client, redis(&format!("PUBLISH {channel} x")));
    world.expect(lane, redis(&format!("PUBLISH {channel} x")));
    world.send(lane, ":1\r\n");
    String::from_utf8(world.received(client)).unwrap()
}

#[test]
fn subscribers_are_counted_by_other_workers_though_only_the_next_server_has_them() {
    let snapshot = pool(REDIS, 1);
    let segments = Arc::new(Segments::in_memory(&Layout::new(&snapshot), 2));
    let [mut one, mut other] = [0, 1].map(|slot| World::of_worker(&snapshot, &segments, slot, 2));
    for world in [&mut one, &mut other] {
        world.accept(0);
    }
    let clients = [one.client(), one.client()];
    for client in clients {
        one.send(client, redis("PSUBSCRIBE n*"));
    }
    let feed = one.accept(0);
    one.send(feed, array("psubscribe n* :1"));
    let mut next = pool(REDIS, 1);
    next.pools[0].servers[0].name = "other".to_owned();
    change_both([&mut one, &mut other], &mut next, |one| {
        let fresh = [one.accept(0), one.accept(0)];
        let asked = confirm(one, &fresh);
        assert_eq!(asked, ["psubscribe n*"]);
        // What is prepared stands, what is in use does not.
        one.close(feed, CloseReason::Reset);
    });
    let lane = other.accept(0);
    assert_eq!(heard(&mut other, lane, "news"), ":2\r\n");
}

#[test]
fn who_has_left_by_that_name_does_not_hide_who_has_come() {
    let snapshot = pool(REDIS, 1);
    let segments = Arc::new(Segments::in_memory(&Layout::new(&snapshot), 2));
    let [mut one, mut other] = [0, 1].map(|slot| World::of_worker(&snapshot, &segments, slot, 2));
    for world in [&mut one, &mut other] {
        world.accept(0);
    }
    let (leaves, feed) = subscriber(&mut one, 0, "news");
    one.send(leaves, redis("UNSUBSCRIBE news"));
    // The server does not say so before the channel is another one's.
    one.expect(feed, redis("unsubscribe news"));
    let mut next = pool(REDIS, 2);
    next.pools[0].servers.reverse();
    change_both([&mut one, &mut other], &mut next, |one| {
        one.accept(0);
    });
    let clients = [one.client(), one.client()];
    for client in clients {
        one.send(client, redis("SUBSCRIBE news"));
    }
    let fresh = one.accept(0);
    one.send(fresh, array("subscribe news :1"));
    for client in clients {
        one.expect(client, array("subscribe news :1"));
    }
    let lane = other.accept(0);
    assert_eq!(heard(&mut other, lane, "news"), ":2\r\n");
    one.expect(leaves, "");
    one.close(leaves, CloseReason::Eof);
    assert_eq!(heard(&mut other, lane, "news"), ":2\r\n");
    one.send(feed, array("unsubscribe news :0"));
    assert_eq!(heard(&mut other, lane, "news"), ":2\r\n");
}

fn prepare(world: &mut World, next: &mut Snapshot) {
    next.epoch += 1;
    world.prepare(next);
}

/// Channels, one on each of the servers of a pool of two, and by which of three they are had then.
fn channels() -> Vec<String> {
    (0..12).map(|n| format!("channel:{n}")).collect()
}

#[test]
fn a_channel_that_moves_is_subscribed_there_before_it_is_left_here() {
    let (mut world, [a, b]): (World, [ConnId; 2]) = World::connected(&pool(REDIS, 2));
    let client = world.client();
    world.send(client, redis(&format!("SUBSCRIBE {}", channels().join(" "))));
    world.send(client, redis("PSUBSCRIBE *"));
    let feeds = [world.accept(0), world.accept(1)];
    confirm(&mut world, &feeds);
    let _ = (a, b);
    world.received(client);

    let mut next = pool(REDIS, 3);
    prepare(&mut world, &mut next);
    // Two connections are made: the server's own, and its feed.
    let fresh = [world.accept(2), world.accept(2)];
    assert_eq!(world.epoch_answers(), [], "the server has not confirmed");
    let moved = confirm(&mut world, &fresh);
    // Of channels that were on one of the two some are on the other now.
    let moved_here = confirm(&mut world, &feeds);
    assert!(moved.len() > 1 && !moved_here.is_empty(), "{moved:?} {moved_here:?}");
    assert_eq!(world.epoch_answers(), [Action::Prepared { epoch: 2 }]);
    world.expect(client, "");

    // What was published before is read before the pause is confirmed.
    world.engine.handle_pause(5000, world.now);
    world.tick();
    let all: Vec<ConnId> = feeds.into_iter().chain(fresh).collect();
    let pinged: Vec<ConnId> = all
        .iter()
        .copied()
        .filter(|&feed| world.received(feed) == redis("PING").as_bytes())
        .collect();
    assert_eq!(pinged.len(), 3);
    for &feed in &pinged {
        assert_eq!(world.epoch_answers(), []);
        world.send(feed, array("message channel:1 x") + "*2\r\n$4\r\npong\r\n$0\r\n\r\n");
    }
    assert_eq!(world.epoch_answers(), [Action::Paused { epoch: 2, unfinished: 0 }]);
    world.expect(client, array("message channel:1 x").repeat(3));

    world.commit(&next);
    let left: Vec<String> = feeds.iter().flat_map(|&feed| asked(&mut world, feed)).collect();
    let came: usize =
        moved.iter().chain(&moved_here).filter(|text| text.starts_with("sub")).count();
    assert_eq!(left.len(), came, "{left:?}");
    assert!(left.iter().all(|text| text.starts_with("unsubscribe")), "{left:?}");
    // Each channel is on one server, and where it is published.
    let publisher = world.client();
    for channel in channels() {
        world.send(publisher, redis(&format!("PUBLISH {channel} hi")));
    }
    assert!(!closed(&world, client));
    world.expect(client, "");
}

#[test]
fn an_aborted_change_leaves_what_it_had_subscribed() {
    let (mut world, [_, _]): (World, [ConnId; 2]) = World::connected(&pool(REDIS, 2));
    let client = world.client();
    world.send(client, redis(&format!("SUBSCRIBE {}", channels().join(" "))));
    let feeds = [world.accept(0), world.accept(1)];
    confirm(&mut world, &feeds);
    world.received(client);
    let mut next = pool(REDIS, 3);
    prepare(&mut world, &mut next);
    let fresh = [world.accept(2), world.accept(2)];
    confirm(&mut world, &fresh);
    let moved_here = confirm(&mut world, &feeds);
    world.engine.handle_abort(world.now);
    world.tick();
    assert!(fresh.iter().all(|&conn| closed(&world, conn)));
    let left: Vec<String> = feeds.iter().flat_map(|&feed| asked(&mut world, feed)).collect();
    assert_eq!(left.len(), moved_here.len());
    world.close(client, CloseReason::Eof);
    let left: Vec<String> = feeds.iter().flat_map(|&feed| asked(&mut world, feed)).collect();
    assert_eq!(left.len(), channels().len());
}

#[test]
fn removed_servers_leave_nothing_behind() {
    let (mut world, [_, _, _]): (World, [ConnId; 3]) = World::connected(&pool(REDIS, 3));
    let client = world.client();
    world.send(client, redis("PSUBSCRIBE *"));
    world.send(client, redis(&format!("SUBSCRIBE {}", channels().join(" "))));
    let feeds: [ConnId; 3] = std::array::from_fn(|server| world.accept(server as u32));
    confirm(&mut world, &feeds);
    world.received(client);
    let mut next = pool(REDIS, 1);
    prepare(&mut world, &mut next);
    confirm(&mut world, &feeds);
    world.commit(&next);
    assert_eq!(feeds.map(|feed| closed(&world, feed)), [false, true, true]);
    world.send(feeds[0], array("message channel:7 hi"));
    world.expect(client, array("message channel:7 hi"));
    // Another password: other connections.
    let mut next = pool(&format!("{REDIS}\nredis_auth: secret"), 1);
    next.epoch = 5;
    prepare(&mut world, &mut next);
    let fresh = [world.accept(0), world.accept(0)];
    for conn in fresh {
        world.expect(conn, redis("AUTH secret"));
        world.send(conn, "+OK\r\n");
    }
    confirm(&mut world, &fresh);
    let feed = fresh.into_iter().find(|&conn| !world.received(conn).is_empty());
    assert_eq!(feed, None, "all is asked");
    // What is published now comes on both connections, and is heard once.
    for feed in fresh.into_iter().chain([feeds[0]]) {
        world.send(feed, array("message channel:7 once"));
    }
    world.commit(&next);
    assert!(closed(&world, feeds[0]));
    world.expect(client, array("message channel:7 once"));
}

/// A transaction keeps a client that is to leave, which may subscribe meanwhile.
#[test]
fn who_subscribes_while_it_is_to_leave_stays() {
    let (mut world, [_]): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
    let client = world.client();
    world.send(client, redis("HELLO 3"));
    world.received(client);
    world.send(client, redis("WATCH a"));
    let lane = world.accept(0);
    world.send(lane, "%0\r\n");
    world.send(lane, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.received(lane);
    world.engine.handle_leave(client, world.now);
    world.tick();
    world.send(client, redis("SUBSCRIBE news"));
    let feed = world.accept(0);
    world.expect(feed, redis("subscribe news"));
    world.send(feed, array("subscribe news :1"));
    world.received(client);
    world.send(client, redis("UNWATCH"));
    world.expect(lane, redis("UNWATCH"));
    world.send(lane, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.wait_ms(10);
    assert!(!world.is_handed_off(client), "another process would miss messages");
    world.send(feed, array("message news x"));
    world.expect(client, array("message news x").replacen('*', ">", 1));
    world.send(client, redis("PING"));
    world.expect(client, "+PONG\r\n");
}

/// What a server was asked on a feed since the last call: a verb and a name each.
fn asked(world: &mut World, feed: ConnId) -> Vec<String> {
    let text = String::from_utf8(world.received(feed)).unwrap();
    let requests = text.split("*2\r\n").filter(|request| !request.is_empty());
    let words = |request: &str| {
        let lines: Vec<&str> = request.split("\r\n").collect();
        format!("{} {}", lines[1], lines[3])
    };
    requests.map(words).collect()
}

/// Confirms all that was asked on these feeds; returns what it was.
fn confirm(world: &mut World, feeds: &[ConnId]) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let before = all.len();
        for &feed in feeds {
            for text in asked(world, feed) {
                world.send(feed, array(&format!("{text} :1")));
                all.push(text);
            }
        }
        if all.len() == before {
            return all;
        }
    }
}

/// A client may name a channel as often as it likes in one request: what that costs is as much for
/// each name, however many there are.
#[test]
fn many_who_wait_for_the_same_channel_hold_nobody_up() {
    const NAMES: usize = 8_000;
    let (mut world, _): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
    let request = redis(&format!("SUBSCRIBE{}", " c".repeat(NAMES)));
    let clients: Vec<ConnId> = (0..20).map(|_| world.client()).collect();
    for &client in &clients {
        world.send(client, &request);
    }
    let feed = world.accept(0);
    world.expect(feed, redis("subscribe c"));
    // Of the processor: others may have it meanwhile.
    let used = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        let nanos = text.split(' ').next().unwrap().parse().unwrap();
        std::time::Duration::from_nanos(nanos)
    };
    let begun = used();
    world.send(feed, array("subscribe c :1"));
    let took = used() - begun;
    for client in clients {
        world.expect(client, array("subscribe c :1").repeat(NAMES));
    }
    // A search through all that wait takes ten seconds and more.
    assert!(took.as_secs() < 3, "{took:?}");
}
