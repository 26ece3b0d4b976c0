//! CLIENT TRACKING: clients that keep what they read are told when it may have changed.

use crate::world::{World, all, pool, redis, snapshot};
use cashew_engine::{CloseReason, ConnId};
use cashew_metrics::PoolCounter;

const OPTIONS: &str = "redis: true\npreconnect: true\ntimeout: 400";
const HELLO: &str = "%1\r\n$5\r\nproto\r\n:3\r\n";
const OK: &str = "+OK\r\n";
const VALUE: &str = "$1\r\nx\r\n";
const ALL: &str = ">2\r\n$10\r\ninvalidate\r\n_\r\n";
const ASKED: &str = "CLIENT TRACKING ON BCAST";

fn bulks(keys: &[&str]) -> String {
    let texts: String = keys.iter().map(|key| format!("${}\r\n{key}\r\n", key.len())).collect();
    format!("*{}\r\n{texts}", keys.len())
}

fn told(keys: &[&str]) -> String {
    format!(">2\r\n$10\r\ninvalidate\r\n{}", bulks(keys))
}

/// As a server tells of keys.
fn changed(keys: &[&str]) -> String {
    told(keys)
}

const FLUSHED: &str = ALL;

/// A server does what it is asked to.
#[track_caller]
fn tell(world: &mut World, feed: ConnId) {
    world.expect(feed, redis("HELLO 3"));
    world.send(feed, HELLO);
    world.expect(feed, redis(ASKED));
    world.send(feed, OK);
}

fn resp3(world: &mut World) -> ConnId {
    let client = world.client();
    world.send(client, redis("HELLO 3"));
    assert!(world.received(client).starts_with(b"%"));
    client
}

/// The lane on which clients of RESP3 ask, after a first request that is answered.
#[track_caller]
fn lane_of(world: &mut World, client: ConnId) -> ConnId {
    world.send(client, redis("PFCOUNT warm"));
    let lane = world.accept(0);
    world.expect(lane, redis("HELLO 3"));
    world.send(lane, HELLO);
    world.expect(lane, redis("PFCOUNT warm"));
    world.send(lane, ":0\r\n");
    world.expect(client, ":0\r\n");
    lane
}

/// A client that is told, the server's feed, and the lane of all such clients.
#[track_caller]
fn tracker(options: &str, how: &str) -> (World, ConnId, ConnId, ConnId) {
    let (mut world, [_lane]): (World, [ConnId; 1]) =
        World::connected(&pool(&format!("{OPTIONS}\n{options}"), 1));
    let client = resp3(&mut world);
    let lane = lane_of(&mut world, client);
    world.send(client, redis(format!("CLIENT TRACKING ON {how}").trim()));
    let feed = world.accept(0);
    // Not before the server does it.
    world.expect(client, "");
    tell(&mut world, feed);
    world.expect(client, OK);
    (world, client, feed, lane)
}

#[track_caller]
fn read(world: &mut World, (client, lane): (ConnId, ConnId), key: &str) {
    world.send(client, redis(&format!("GET {key}")));
    world.expect(lane, redis(&format!("GET {key}")));
    world.send(lane, VALUE);
    world.expect(client, VALUE);
}

#[test]
fn who_has_read_a_key_is_told_once_and_nobody_else() {
    let (mut world, client, feed, lane) = tracker("", "");
    let other = resp3(&mut world);
    world.send(other, redis("CLIENT TRACKING ON"));
    world.expect(other, OK);
    read(&mut world, (client, lane), "a");
    read(&mut world, (other, lane), "b");
    world.send(feed, changed(&["c", "a"]));
    world.expect(client, told(&["a"]));
    world.expect(other, "");
    // It has forgotten it.
    world.send(feed, changed(&["a", "b"]));
    world.expect(client, "");
    world.expect(other, told(&["b"]));
    read(&mut world, (client, lane), "a");
    for piece in changed(&["a"]).as_bytes().chunks(3) {
        world.send(feed, piece);
    }
    world.expect(client, told(&["a"]));
    let counted = world.metrics.pool_counter(world.metrics.pool(0), PoolCounter::KeysInvalidated);
    assert_eq!(counted, 3);
    world.assert_idle();
}

#[test]
fn every_command_that_reads_counts_with_all_its_keys() {
    let (mut world, client, feed, lane) = tracker("", "");
    for (request, reply) in [
        ("MGET a b", "*2\r\n$-1\r\n$-1\r\n"),
        ("HGETALL a", "*0\r\n"),
        ("SINTER b a", "*0\r\n"),
        ("EXISTS a", ":0\r\n"),
        ("SSCAN a 0", "*2\r\n$1\r\n0\r\n*0\r\n"),
    ] {
        world.send(client, redis(request));
        world.expect(lane, redis(request));
        world.send(lane, reply);
        world.received(client);
        world.send(feed, changed(&["a"]));
        world.expect(client, told(&["a"]));
    }
    world.send(client, redis("SET w 1"));
    world.expect(lane, redis("SET w 1"));
    world.send(lane, OK);
    world.expect(client, OK);
    world.send(feed, changed(&["w"]));
    world.expect(client, "");
}

/// The reply on its way may have the value from before.
#[test]
fn what_is_told_while_a_reply_is_owed_comes_behind_it() {
    let (mut world, client, feed, lane) = tracker("", "");
    world.send(client, all(&["GET a", "GET b"]));
    world.expect(lane, all(&["GET a", "GET b"]));
    world.send(feed, changed(&["a"]));
    world.expect(client, "");
    world.send(client, redis("GET c"));
    world.expect(lane, redis("GET c"));
    world.send(feed, changed(&["b", "z"]) + &changed(&["c"]));
    world.send(lane, VALUE);
    world.expect(client, VALUE);
    world.send(lane, VALUE);
    // The first is behind what was owed then, the others behind all.
    world.expect(client, format!("{VALUE}{}", told(&["a"])));
    world.send(lane, VALUE);
    world.expect(client, format!("{VALUE}{}{}", told(&["b"]), told(&["c"])));
    world.assert_idle();
}

#[test]
fn a_push_is_not_put_into_a_reply() {
    let (mut world, client, feed, lane) = tracker("", "");
    read(&mut world, (client, lane), "a");
    world.send(client, redis("GET big"));
    world.received(lane);
    let size = 300_000;
    world.send(lane, format!("${size}\r\n{}", "v".repeat(size / 2)));
    world.send(feed, changed(&["a"]));
    world.send(lane, format!("{}\r\n", "v".repeat(size / 2)));
    let expected = format!("${size}\r\n{}\r\n{}", "v".repeat(size), told(&["a"]));
    world.expect(client, expected);
}

#[test]
fn keys_of_a_transaction_are_told_until_it_has_run() {
    let (mut world, client, feed, lane) = tracker("", "");
    let _ = lane;
    world.send(client, all(&["MULTI", "GET a"]));
    let got = world.received(client);
    if got != format!("{OK}+QUEUED\r\n").as_bytes() {
        // The server says so.
        let session = world.accept(0);
        world.received(session);
        world.send(session, HELLO);
        world.received(session);
        world.send(session, format!("{OK}+QUEUED\r\n"));
        world.received(client);
        for _ in 0..2 {
            world.send(feed, changed(&["a"]));
            world.expect(client, told(&["a"]));
        }
        world.send(client, redis("EXEC"));
        world.received(session);
        world.send(session, format!("*1\r\n{VALUE}"));
    }
    world.received(client);
    world.send(feed, changed(&["a"]));
    world.expect(client, told(&["a"]));
    world.send(feed, changed(&["a"]));
    world.expect(client, "");
}

#[test]
fn prefixes_are_told_to_who_has_asked_for_them() {
    let (mut world, client, feed, lane) = tracker("", "BCAST PREFIX user: PREFIX item:");
    read(&mut world, (client, lane), "other");
    world.send(feed, changed(&["user:1", "other", "item:2", "use"]));
    world.expect(client, told(&["user:1", "item:2"]));
    world.send(feed, changed(&["user:1"]));
    world.expect(client, told(&["user:1"]));
    let everything = resp3(&mut world);
    world.send(everything, redis("CLIENT TRACKING ON BCAST"));
    world.expect(everything, OK);
    world.send(feed, changed(&["x", "user:1"]));
    world.expect(everything, told(&["x", "user:1"]));
    world.expect(client, told(&["user:1"]));
    // Also behind what is owed.
    world.send(everything, redis("GET q"));
    world.received(lane);
    world.send(feed, changed(&["q"]));
    world.expect(everything, "");
    world.send(lane, VALUE);
    world.expect(everything, format!("{VALUE}{}", told(&["q"])));
    world.send(everything, redis("CLIENT TRACKING OFF"));
    world.expect(everything, OK);
    world.send(feed, changed(&["q"]));
    world.expect(everything, "");
}

#[test]
fn optin_and_optout_are_for_the_next_command_or_transaction() {
    let (mut world, client, feed, lane) = tracker("", "OPTIN");
    let caching = |world: &mut World, word: &str| {
        world.send(client, redis(&format!("CLIENT CACHING {word}")));
        world.received(client)
    };
    read(&mut world, (client, lane), "a");
    assert_eq!(caching(&mut world, "yes"), OK.as_bytes());
    world.send(client, redis("CLIENT ID"));
    world.received(client);
    read(&mut world, (client, lane), "b");
    read(&mut world, (client, lane), "c");
    world.send(feed, changed(&["a", "b", "c"]));
    world.expect(client, told(&["b"]));
    assert!(caching(&mut world, "no").starts_with(b"-ERR CLIENT CACHING NO is only valid"));
    let (mut world, client, feed, lane) = tracker("", "OPTOUT NOLOOP");
    world.send(client, redis("CLIENT CACHING no"));
    world.expect(client, OK);
    world.send(client, redis("CLIENT TRACKINGINFO"));
    let info = String::from_utf8(world.received(client)).unwrap();
    for flag in ["on", "optout", "caching-no", "noloop"] {
        assert!(info.contains(&format!("\r\n{flag}\r\n")), "{info}");
    }
    read(&mut world, (client, lane), "a");
    read(&mut world, (client, lane), "b");
    world.send(feed, changed(&["a", "b"]));
    world.expect(client, told(&["b"]));
}

#[test]
fn all_may_have_changed_if_the_server_says_so_or_does_not_tell_any_more() {
    let (mut world, client, feed, lane) = tracker("", "");
    read(&mut world, (client, lane), "a");
    world.send(feed, FLUSHED);
    world.expect(client, ALL);
    read(&mut world, (client, lane), "a");
    world.wait_ms(2000);
    world.close(feed, CloseReason::Reset);
    world.expect(client, ALL);
    let feed = world.accept(0);
    // What is read meanwhile nobody tells of.
    world.send(client, redis("GET a"));
    world.expect(lane, redis("GET a"));
    world.send(lane, VALUE);
    world.expect(client, format!("{VALUE}{}", told(&["a"])));
    tell(&mut world, feed);
    world.expect(client, ALL);
    read(&mut world, (client, lane), "a");
    world.send(feed, changed(&["a"]));
    world.expect(client, told(&["a"]));
    // Behind a reply that is owed, too.
    world.send(client, redis("GET b"));
    world.received(lane);
    world.send(feed, FLUSHED);
    world.expect(client, "");
    world.send(lane, VALUE);
    world.expect(client, format!("{VALUE}{ALL}"));
}

#[test]
fn a_feed_that_says_nothing_is_asked_and_given_up() {
    let (mut world, client, feed, lane) = tracker("", "");
    read(&mut world, (client, lane), "a");
    for answer in ["+PONG\r\n", "-BUSY it runs a script\r\n", ""] {
        let asked = (0..30).find(|_| {
            world.wait_ms(100);
            world.received(feed) == redis("PING").as_bytes()
        });
        assert!(asked.is_some_and(|asked| asked > 5), "{asked:?}");
        world.expect(client, "");
        world.send(feed, answer);
    }
    world.wait_ms(2500);
    assert!(world.closed.contains(&feed));
    world.expect(client, ALL);
}

#[test]
fn the_table_has_a_limit_and_what_falls_out_is_told() {
    let (mut world, client, feed, lane) = tracker("tracking_keys_max: 3", "");
    let keys = ["a", "b", "c", "d", "e"];
    let mut fallen = String::new();
    for key in keys {
        world.send(client, redis(&format!("GET {key}")));
        world.expect(lane, redis(&format!("GET {key}")));
        world.send(lane, VALUE);
        let got = String::from_utf8(world.received(client)).unwrap();
        // Its own may be the one that falls out: behind the value.
        let value = got.find(VALUE).expect("there is a value");
        fallen += &got[..value];
        fallen += &got[value + VALUE.len()..];
    }
    world.send(feed, changed(&keys));
    let rest = String::from_utf8(world.received(client)).unwrap();
    assert_eq!(fallen.matches("invalidate").count(), 2, "{fallen}");
    for key in keys {
        let name = format!("$1\r\n{key}\r\n");
        assert_eq!([&fallen, &rest].map(|it| it.matches(&name).count()).iter().sum::<usize>(), 1);
    }
}

/// It may be the very key that is asked for.
#[test]
fn what_falls_out_while_it_is_asked_for_is_told_behind_the_reply() {
    let (mut world, client, _feed, lane) = tracker("tracking_keys_max: 1", "");
    let mut before = 0;
    for number in 0..50 {
        let key = format!("k{number:02}");
        world.send(client, redis(&format!("GET {key}")));
        world.expect(lane, redis(&format!("GET {key}")));
        // Nothing comes before the reply.
        world.expect(client, "");
        world.send(lane, VALUE);
        let got = String::from_utf8(world.received(client)).unwrap();
        assert!(got.starts_with(VALUE), "{got}");
        before += usize::from(got.contains(&key));
    }
    assert!(before > 5, "{before}");
}

#[test]
fn what_cannot_be_right_is_refused() {
    let (mut world, [_lane]): (World, [ConnId; 1]) = World::connected(&pool(OPTIONS, 1));
    let client = world.client();
    let ask = |world: &mut World, request: &str| {
        world.send(client, redis(request));
        String::from_utf8(world.received(client)).unwrap()
    };
    let refused = [
        ("CLIENT TRACKING ON", "-ERR CLIENT TRACKING needs RESP3"),
        ("CLIENT TRACKING ON REDIRECT 1", "-ERR CLIENT TRACKING with REDIRECT is not supported"),
        ("CLIENT TRACKING ON PREFIX a", "-ERR PREFIX option requires BCAST mode"),
        ("CLIENT TRACKING ON BCAST OPTIN", "-ERR OPTIN and OPTOUT are not compatible with BCAST"),
        (
            "CLIENT TRACKING ON OPTIN OPTOUT",
            "-ERR You can't specify both OPTIN mode and OPTOUT mode",
        ),
        (
            "CLIENT TRACKING ON BCAST PREFIX ab PREFIX a",
            "-ERR Prefix 'ab' overlaps with another provided prefix 'a'.",
        ),
        ("CLIENT TRACKING ON WHAT", "-ERR syntax error"),
        ("CLIENT TRACKING maybe", "-ERR syntax error"),
        ("CLIENT CACHING yes", "-ERR CLIENT CACHING can be called only when"),
    ];
    for (request, error) in refused {
        let got = ask(&mut world, request);
        assert!(got.starts_with(error), "{request}: {got}");
    }
    assert_eq!(ask(&mut world, "CLIENT GETREDIR"), ":-1\r\n");
    let (mut world, client, _feed, _lane) = tracker("", "BCAST PREFIX foo");
    let mut ask = |request: &str| {
        world.send(client, redis(request));
        String::from_utf8(world.received(client)).unwrap()
    };
    assert!(ask("CLIENT TRACKING ON").starts_with("-ERR You can't switch BCAST mode on/off"));
    let overlap = "-ERR Prefix 'fo' overlaps with an existing prefix 'foo'.";
    assert!(ask("CLIENT TRACKING ON BCAST PREFIX fo").starts_with(overlap));
    assert_eq!(ask("CLIENT TRACKING ON BCAST PREFIX bar"), OK);
    assert_eq!(ask("CLIENT GETREDIR"), ":0\r\n");
    assert!(ask("CLIENT TRACKINGINFO").ends_with("*2\r\n$3\r\nbar\r\n$3\r\nfoo\r\n"));
    assert_eq!(ask("RESET"), "+RESET\r\n");
    assert_eq!(ask("CLIENT GETREDIR"), ":-1\r\n");
}

#[test]
fn a_server_that_does_not_do_it_is_named() {
    let (mut world, [_lane]): (World, [ConnId; 1]) = World::connected(&pool(OPTIONS, 1));
    let client = resp3(&mut world);
    world.send(client, redis("CLIENT TRACKING ON"));
    let feed = world.accept(0);
    world.expect(feed, redis("HELLO 3"));
    world.send(feed, HELLO);
    world.expect(feed, redis(ASKED));
    world.send(feed, "-NOPERM this user has no permissions\r\n");
    let error = "-ERR CLIENT TRACKING is not possible, as server server0 says: NOPERM this user has no permissions\r\n";
    world.expect(client, error);
    assert!(world.closed.contains(&feed));
    world.send(client, redis("CLIENT TRACKING ON"));
    world.expect(client, error);
}

#[test]
fn replicas_that_answer_reads_tell_too() {
    let options = "redis: true\npreconnect: true\ntimeout: 400";
    let (mut world, [_, _]): (World, [ConnId; 2]) = World::connected(&pool(options, 2));
    let client = resp3(&mut world);
    world.send(client, redis("CLIENT TRACKING ON"));
    let feeds = [world.accept(0), world.accept(1)];
    tell(&mut world, feeds[0]);
    world.expect(client, "");
    tell(&mut world, feeds[1]);
    world.expect(client, OK);
}

#[test]
fn it_moves_with_the_client_who_hears_that_all_may_have_changed() {
    let (mut world, client, _feed, lane) = tracker("", "OPTOUT NOLOOP");
    read(&mut world, (client, lane), "a");
    let now = world.now;
    world.engine.handle_leave(client, now);
    world.tick();
    assert!(world.is_handed_off(client));
    let export = world.engine.export(client, now).expect("it is at rest");
    let (mut other, [_lane]): (World, [ConnId; 1]) = World::connected(&pool(OPTIONS, 1));
    let client = other.adopt(export);
    other.expect(client, ALL);
    let feed = other.accept(0);
    tell(&mut other, feed);
    other.expect(client, ALL);
    let lane = lane_of(&mut other, client);
    read(&mut other, (client, lane), "a");
    other.send(feed, changed(&["a"]));
    other.expect(client, told(&["a"]));
    other.send(client, redis("CLIENT TRACKINGINFO"));
    let info = String::from_utf8(other.received(client)).unwrap();
    assert!(info.contains("optout") && info.contains("noloop"), "{info}");
}

#[test]
fn a_reload_tells_that_all_may_have_changed_and_the_feed_stays() {
    let (mut world, client, feed, lane) = tracker("", "");
    read(&mut world, (client, lane), "a");
    let next = pool(&format!("{OPTIONS}\nslow_log: 7"), 1);
    world.prepare(&next);
    world.pause(1000);
    world.commit(&next);
    world.expect(client, ALL);
    read(&mut world, (client, lane), "a");
    world.send(feed, changed(&["a"]));
    world.expect(client, told(&["a"]));
}

#[test]
fn without_clients_there_is_no_feed() {
    let (mut world, client, feed, _lane) = tracker("", "");
    world.close(client, CloseReason::Eof);
    world.wait_ms(2500);
    assert!(world.closed.contains(&feed));
    world.assert_idle();
}

/// Nobody would tell of a change: what a client reads then it is not to keep.
#[test]
fn what_is_read_while_the_server_does_not_tell_is_told_at_once() {
    let (mut world, client, feed, lane) = tracker("", "");
    read(&mut world, (client, lane), "a");
    world.wait_ms(2000);
    world.close(feed, CloseReason::Reset);
    world.expect(client, ALL);
    let feed = world.accept(0);
    world.expect(feed, redis("HELLO 3"));
    world.send(feed, "-NOPERM not any more\r\n");
    world.expect(client, "");
    for _ in 0..2 {
        world.send(client, all(&["GET a", "PING", "MGET b c", "SET d x"]));
        world.received(lane);
        world.send(lane, format!("{VALUE}*2\r\n{VALUE}{VALUE}{OK}"));
        let got = String::from_utf8(world.received(client)).unwrap();
        let told = [told(&["a"]), told(&["b", "c"])];
        let expected = format!("{VALUE}{}+PONG\r\n*2\r\n{VALUE}{VALUE}{}{OK}", told[0], told[1]);
        assert_eq!(got, expected);
    }
}

#[test]
fn who_is_told_by_prefixes_is_told_of_what_it_reads_while_the_server_does_not_tell() {
    let (mut world, client, feed, lane) = tracker("", "BCAST PREFIX a");
    world.close(feed, CloseReason::Reset);
    world.expect(client, ALL);
    world.send(client, redis("MGET ab b"));
    world.received(lane);
    world.send(lane, format!("*2\r\n{VALUE}{VALUE}"));
    world.expect(client, format!("*2\r\n{VALUE}{VALUE}{}", told(&["ab"])));
}

/// As long as the lanes answer the server is there: only who could tell of a key counts.
#[test]
fn servers_that_have_the_key_tell_of_it_whoever_else_is_gone() {
    let options = "redis: true\npreconnect: true\ntimeout: 400";
    let (mut world, [_, _]): (World, [ConnId; 2]) = World::connected(&pool(options, 2));
    let client = resp3(&mut world);
    world.send(client, redis("CLIENT TRACKING ON"));
    let feeds = [world.accept(0), world.accept(1)];
    feeds.iter().for_each(|&feed| tell(&mut world, feed));
    world.expect(client, OK);
    world.close(feeds[0], CloseReason::Reset);
    world.expect(client, ALL);
    let (mut lanes, mut told_of) = ([None; 2], [0; 2]);
    for number in 0..40 {
        let key = format!("key{number}");
        world.send(client, redis(&format!("GET {key}")));
        for server in 0..2 {
            if lanes[server].is_none() && world.connects_to(server as u32) {
                let lane = world.accept(server as u32);
                if world.received(lane) == redis("HELLO 3").as_bytes() {
                    world.send(lane, HELLO);
                }
                lanes[server] = Some(lane);
            }
            let Some(lane) = lanes[server] else { continue };
            if world.received(lane).is_empty() {
                continue;
            }
            world.send(lane, VALUE);
            let got = String::from_utf8(world.received(client)).unwrap();
            let expected = if server == 0 { told(&[&key]) } else { String::new() };
            assert_eq!(got, format!("{VALUE}{expected}"), "{key} at {server}");
            told_of[server] += 1;
        }
    }
    assert!(told_of.iter().all(|&count| count > 5), "{told_of:?}");
}

/// What was read in a transaction was read when that ended.
#[test]
fn a_transaction_while_the_server_does_not_tell_is_told_of_at_its_end() {
    let (mut world, client, feed, _lane) = tracker("", "");
    world.wait_ms(2000);
    world.close(feed, CloseReason::Reset);
    world.expect(client, ALL);
    let feed = world.accept(0);
    world.expect(feed, redis("HELLO 3"));
    world.send(client, all(&["MULTI", "GET a"]));
    let session = world.accept(0);
    world.received(session);
    world.send(session, HELLO);
    world.received(session);
    world.send(session, format!("{OK}+QUEUED\r\n"));
    world.received(client);
    world.send(client, redis("EXEC"));
    world.received(session);
    world.send(session, format!("*1\r\n{VALUE}"));
    world.expect(client, format!("*1\r\n{VALUE}{ALL}"));
}

/// A reply that is on its way is not cut by what a blocking call behind it is told of.
#[test]
fn a_push_is_not_put_into_a_reply_before_a_blocking_call() {
    let (mut world, client, feed, lane) = tracker("", "");
    read(&mut world, (client, lane), "a");
    world.send(client, all(&["GET big", "BLPOP list 0"]));
    world.received(lane);
    let size = 300_000;
    world.send(lane, format!("${size}\r\n{}", "v".repeat(size / 2)));
    for session in world.accept_all::<1>().into_iter().flatten() {
        world.send(session, HELLO);
    }
    world.send(feed, changed(&["a"]));
    world.send(lane, format!("{}\r\n", "v".repeat(size / 2)));
    let expected = format!("${size}\r\n{}\r\n{}", "v".repeat(size), told(&["a"]));
    world.expect(client, expected);
}

/// A server that cannot be reached, or says nothing, is not waited for without end.
#[test]
fn who_asks_for_it_does_not_wait_for_a_server_that_is_gone() {
    for is_frozen in [false, true] {
        let (mut world, [_lane]): (World, [ConnId; 1]) = World::connected(&pool(OPTIONS, 1));
        let client = resp3(&mut world);
        world.send(client, redis("CLIENT TRACKING ON"));
        if is_frozen {
            let feed = world.accept(0);
            world.expect(feed, redis("HELLO 3"));
        } else {
            world.refuse(0);
        }
        let mut got = Vec::new();
        for _ in 0..50 {
            world.wait_ms(100);
            if is_frozen && world.connects_to(0) {
                world.accept(0);
            }
            if !is_frozen && world.connects_to(0) {
                world.refuse(0);
            }
            got.extend(world.received(client));
        }
        assert_eq!(String::from_utf8(got).unwrap(), OK, "{is_frozen}");
    }
}

/// Connections come and go, and read the same keys.
#[test]
fn clients_that_are_gone_take_no_room() {
    let (mut world, client, _feed, lane) = tracker("", "");
    let mut held = Vec::new();
    for round in 0..600 {
        let other = resp3(&mut world);
        world.send(other, redis("CLIENT TRACKING ON"));
        world.expect(other, OK);
        read(&mut world, (other, lane), "a");
        world.close(other, CloseReason::Eof);
        if round % 200 == 199 {
            held.push(world.engine.held_bytes());
        }
    }
    assert!(held[2] <= held[0] + 256, "{held:?}");
    read(&mut world, (client, lane), "a");
}

/// What is known of reads goes when memory is short, and those who have read hear of it.
#[test]
fn what_is_known_of_reads_does_not_fill_the_memory() {
    let mut snapshot = pool(OPTIONS, 1);
    snapshot.global.worker_memory_max = Some(8 << 20);
    let (mut world, [_lane]): (World, [ConnId; 1]) = World::connected(&snapshot);
    let client = resp3(&mut world);
    let lane = lane_of(&mut world, client);
    world.send(client, redis("CLIENT TRACKING ON"));
    let feed = world.accept(0);
    tell(&mut world, feed);
    world.expect(client, OK);
    let mut flushes = 0;
    for number in 0..200 {
        let key = format!("{number}{}", "k".repeat(100_000));
        let request = redis(&format!("GET {key}"));
        for piece in request.as_bytes().chunks(16_384) {
            world.send(client, piece);
        }
        assert!(world.received(lane) == request.as_bytes(), "request {number} is held back");
        world.send(lane, VALUE);
        let got = String::from_utf8(world.received(client)).unwrap();
        assert!(got.contains(VALUE), "{got}");
        flushes += usize::from(got.contains(ALL));
    }
    assert!(flushes > 1, "{flushes}");
}

/// The limit is each pool's.
#[test]
fn the_table_of_a_pool_is_not_that_of_another() {
    let many = format!("{OPTIONS}\ntracking_keys_max: 100");
    let few = format!("{OPTIONS}\ntracking_keys_max: 1").replace('\n', "\n  ");
    let yaml = format!(
        "a:\n  listen: 127.0.0.1:1\n  {}\n  servers: [127.0.0.1:11:1]\n\
         b:\n  listen: 127.0.0.1:2\n  {few}\n  servers: [127.0.0.1:12:1]\n",
        many.replace('\n', "\n  ")
    );
    // Each has a server 0.
    let mut world = World::new(&snapshot(&yaml));
    world.accept_all::<1>();
    let mut clients = Vec::new();
    for pool in 0..2 {
        let client = world.client_of(pool);
        world.send(client, redis("HELLO 3"));
        world.received(client);
        world.send(client, redis("PFCOUNT warm"));
        let lane = world.accept(0);
        world.received(lane);
        world.send(lane, HELLO);
        world.received(lane);
        world.send(lane, ":0\r\n");
        world.received(client);
        world.send(client, redis("CLIENT TRACKING ON"));
        let feed = world.accept(0);
        tell(&mut world, feed);
        world.expect(client, OK);
        clients.push((client, lane));
    }
    for key in ["a", "b", "c", "d"] {
        read(&mut world, clients[0], key);
    }
    read(&mut world, clients[1], "e");
    world.expect(clients[0].0, "");
}
