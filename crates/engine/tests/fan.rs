//! Commands without keys in a pool of several servers: who is asked, and how replies become one.

use crate::world::{World, pool, redis};
use cashew_engine::{BackendId, CloseReason, ConnId};
use cashew_metrics::PoolCounter;

const OPTIONS: &str =
    "redis: true\ncommand_policy: admin\ntimeout: 400\npreconnect: true\nhide_topology: false";

fn three_servers() -> (World, ConnId, [ConnId; 3]) {
    World::with_client(&pool(OPTIONS, 3))
}

/// Each server gets the request as it is and answers; the client gets the last of these.
#[track_caller]
fn merges(request: &str, replies: [&str; 3], merged: &str) {
    let (mut world, client, lanes) = three_servers();
    let request = redis(request);
    world.send(client, &request);
    for (lane, reply) in lanes.into_iter().zip(replies).rev() {
        world.expect(client, "");
        world.expect(lane, &request);
        world.send(lane, reply);
    }
    world.expect(client, merged);
    world.assert_idle();
}

/// The same for a client that speaks RESP3, whose lanes do, too.
#[track_caller]
fn merges_resp3(request: &str, replies: [&str; 3], merged: &str) {
    let (mut world, client, _) = three_servers();
    world.send(client, redis("HELLO 3"));
    assert!(world.received(client).starts_with(b"%7\r\n"));
    let request = redis(request);
    world.send(client, &request);
    for (server, reply) in replies.into_iter().enumerate() {
        let lane = world.accept(server as u32);
        world.expect(lane, redis("HELLO 3"));
        world.send(lane, "%1\r\n+proto\r\n:3\r\n");
        world.expect(lane, &request);
        world.expect(client, "");
        world.send(lane, reply);
    }
    world.expect(client, merged);
    world.assert_idle();
}

#[test]
fn replies_in_resp3_are_merged_in_resp3() {
    merges_resp3("DBSIZE", [":3\r\n", ":0\r\n", ":4\r\n"], ":7\r\n");
    merges_resp3("DBSIZE", [":3\r\n", "!6\r\nERR no\r\n", ":4\r\n"], "!6\r\nERR no\r\n");
    merges_resp3("FLUSHALL", ["+OK\r\n"; 3], "+OK\r\n");
    merges_resp3("LASTSAVE", [":2\r\n", ":1\r\n", ":3\r\n"], ":1\r\n");
    merges_resp3(
        "KEYS *",
        ["*1\r\n$1\r\na\r\n", "*0\r\n", "*1\r\n$1\r\nb\r\n"],
        "*2\r\n$1\r\na\r\n$1\r\nb\r\n",
    );
    merges_resp3(
        "SCRIPT EXISTS a b",
        ["*2\r\n:1\r\n:1\r\n", "*2\r\n:1\r\n:0\r\n", "*2\r\n:1\r\n:1\r\n"],
        "*2\r\n:1\r\n:0\r\n",
    );
    let counts = "*2\r\n$1\r\na\r\n:1\r\n";
    merges_resp3("PUBSUB NUMSUB a", [counts; 3], "*2\r\n$1\r\na\r\n:3\r\n");
    let idle = "-NOTBUSY none\r\n";
    merges_resp3("SCRIPT KILL", [idle, idle, "+OK\r\n"], "+OK\r\n");
    merges_resp3(
        "MEMORY STATS",
        ["%1\r\n+a\r\n,1.5\r\n", "_\r\n", "%0\r\n"],
        "%3\r\n$2\r\ns0\r\n%1\r\n+a\r\n,1.5\r\n$2\r\ns1\r\n_\r\n$2\r\ns2\r\n%0\r\n",
    );
}

#[test]
fn a_client_of_resp3_gets_nulls_texts_and_cursors_in_its_own_way() {
    let (mut world, client, _) = three_servers();
    world.send(client, redis("HELLO 3"));
    world.received(client);
    let lanes = |world: &mut World| -> Vec<ConnId> {
        let all: [Option<ConnId>; 3] = world.accept_all();
        for lane in all.into_iter().flatten() {
            if world.received(lane).starts_with(redis("HELLO 3").as_bytes()) {
                world.send(lane, "%1\r\n+proto\r\n:3\r\n");
            }
        }
        all.into_iter().flatten().collect()
    };
    world.send(client, redis("INFO"));
    let [a, b, c] = lanes(&mut world)[..] else { panic!("three lanes") };
    for lane in [a, b, c] {
        world.expect(lane, redis("INFO"));
        world.send(lane, "=14\r\ntxt:# X\r\na:1\r\n\r\n");
    }
    let reply = String::from_utf8(world.received(client)).unwrap();
    let (header, rest) = reply.split_once("\r\n").unwrap();
    assert_eq!(header, format!("={}", rest.len() - 2));
    assert!(rest.starts_with("txt:# X\r\na:1\r\n\r\n# Cashew\r\n"), "{rest}");

    world.send(client, redis("RANDOMKEY"));
    for _ in 0..3 {
        for lane in [a, b, c] {
            if !world.received(lane).is_empty() {
                world.send(lane, "_\r\n");
            }
        }
    }
    world.expect(client, "_\r\n");

    world.send(client, redis("SCAN 0"));
    world.expect(a, redis("SCAN 0"));
    world.send(a, "*2\r\n$1\r\n5\r\n*0\r\n");
    let (cursor, _) = page(&mut world, client);
    world.send(client, redis(&format!("SCAN {cursor}")));
    world.expect(a, redis("SCAN 5"));
    world.send(a, "*2\r\n$1\r\n0\r\n*0\r\n");
    page(&mut world, client);
    world.assert_idle();
}

#[test]
fn counts_of_all_servers_are_added() {
    merges("DBSIZE", [":3\r\n", ":0\r\n", ":4\r\n"], ":7\r\n");
    merges("COMMANDLOG LEN slow", [":1\r\n", ":2\r\n", ":3\r\n"], ":6\r\n");
}

#[test]
fn logs_are_told_as_one() {
    let entry = |id: u32, at: u32| format!("*3\r\n:{id}\r\n:{at}\r\n+x\r\n");
    let list = |entries: &[(u32, u32)]| {
        let text: String = entries.iter().map(|&(id, at)| entry(id, at)).collect();
        format!("*{}\r\n{text}", entries.len())
    };
    let one = list(&[(9, 70), (8, 40)]);
    let two = list(&[(5, 60)]);
    let three = list(&[(2, 70), (1, 50)]);
    let replies = [one.as_str(), &two, &three];
    // Ids of three servers: three times the server's, and its place.
    merges("COMMANDLOG GET 3 slow", replies, &list(&[(27, 70), (8, 70), (16, 60)]));
    let all = list(&[(27, 70), (8, 70), (16, 60), (5, 50), (24, 40)]);
    merges("COMMANDLOG GET -1 slow", replies, &all);
    merges("COMMANDLOG GET 1 slow", replies, &list(&[(27, 70)]));
    merges("COMMANDLOG GET x slow", ["-ERR count\r\n"; 3], "-ERR count\r\n");
    merges(
        "LATENCY HISTORY command",
        ["*1\r\n*2\r\n:5\r\n:1\r\n", "*0\r\n", "*1\r\n*2\r\n:4\r\n:2\r\n"],
        "*2\r\n*2\r\n:4\r\n:2\r\n*2\r\n:5\r\n:1\r\n",
    );
    merges(
        "LATENCY LATEST",
        ["*1\r\n*4\r\n+a\r\n:5\r\n:1\r\n:9\r\n", "*0\r\n", "*1\r\n*4\r\n+a\r\n:6\r\n:2\r\n:3\r\n"],
        "*1\r\n*4\r\n+a\r\n:6\r\n:2\r\n:9\r\n",
    );
}

#[test]
fn sections_that_are_asked_for_come_alone() {
    let (mut world, client, lanes) = three_servers();
    for (request, has_own) in [
        ("INFO keyspace", false),
        ("INFO nosuch stats", false),
        ("INFO ALL", true),
        ("INFO stats cashew", true),
    ] {
        world.send(client, redis(request));
        for lane in lanes {
            world.expect(lane, redis(request));
            world.send(lane, "$27\r\n# Stats\r\nkeyspace_hits:10\r\n\r\n");
        }
        let reply = String::from_utf8(world.received(client)).unwrap();
        assert!(reply.contains("# Stats\r\nkeyspace_hits:30\r\n"), "{reply}");
        assert_eq!(reply.contains("# Cashew\r\n"), has_own, "{reply}");
    }
    world.assert_idle();
}

#[test]
fn patterns_are_on_all_servers_and_counted_once() {
    merges("PUBSUB NUMPAT", [":1\r\n", ":3\r\n", ":2\r\n"], ":3\r\n");
}

#[test]
fn what_all_say_is_said_once() {
    let ok = ["+OK\r\n"; 3];
    for request in ["FLUSHALL ASYNC", "FLUSHDB", "CONFIG SET a b", "SCRIPT FLUSH", "MEMORY PURGE"] {
        merges(request, ok, "+OK\r\n");
    }
    let sha = "$40\r\n5332031c6b470dc5a0dd9b4bf2030dea6d65de91\r\n";
    merges("SCRIPT LOAD x", [sha; 3], sha);
}

#[test]
fn an_error_of_one_server_is_the_answer_whatever_the_others_did() {
    let (readonly, oom) = ["-READONLY You can't write\r\n", "-OOM no\r\n"].into();
    merges("FLUSHALL", ["+OK\r\n", readonly, oom], readonly);
    merges(
        "DBSIZE",
        [":1\r\n", ":2\r\n", "-LOADING Redis is loading\r\n"],
        "-LOADING Redis is loading\r\n",
    );
}

#[test]
fn the_least_and_the_least_at_each_place() {
    merges(
        "LASTSAVE",
        [":1700000002\r\n", ":1700000001\r\n", ":1700000003\r\n"],
        ":1700000001\r\n",
    );
    merges(
        "SCRIPT EXISTS a b",
        ["*2\r\n:1\r\n:1\r\n", "*2\r\n:1\r\n:0\r\n", "*2\r\n:1\r\n:1\r\n"],
        "*2\r\n:1\r\n:0\r\n",
    );
}

#[test]
fn counts_by_name_are_added() {
    merges(
        "PUBSUB NUMSUB a b",
        [
            "*4\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n:0\r\n",
            "*4\r\n$1\r\na\r\n:0\r\n$1\r\nb\r\n:0\r\n",
            "*4\r\n$1\r\na\r\n:2\r\n$1\r\nb\r\n:0\r\n",
        ],
        "*4\r\n$1\r\na\r\n:3\r\n$1\r\nb\r\n:0\r\n",
    );
}

/// On a connection that a script was called on the server would not read what is to end it.
#[test]
fn who_is_to_be_stopped_is_asked_on_another_connection() {
    let (mut world, client, lanes) = three_servers();
    let busy = world.client();
    world.send(busy, redis("EVAL x 1 a"));
    world.expect(lanes[1], redis("EVAL x 1 a"));
    let idle = "-NOTBUSY No scripts in execution right now.\r\n";
    let rests = "*4\r\n+running_script\r\n*-1\r\n+engines\r\n*0\r\n";
    let runs = "*4\r\n+running_script\r\n*2\r\n+name\r\n+f\r\n+engines\r\n*0\r\n";
    for (request, replies, merged) in [
        ("SCRIPT KILL", [idle, "+OK\r\n", idle], "+OK\r\n"),
        ("FUNCTION KILL", [idle, idle, idle], idle),
        ("FUNCTION STATS", [rests, runs, rests], runs),
    ] {
        world.send(client, redis(request));
        let apart: [Option<ConnId>; 3] = world.accept_all();
        for (lane, reply) in apart.into_iter().zip(replies) {
            world.expect(lane.unwrap(), redis(request));
            world.send(lane.unwrap(), reply);
        }
        world.expect(client, merged);
    }
    world.send(lanes[1], "-ERR Script killed by user\r\n");
    world.expect(busy, "-ERR Script killed by user\r\n");
    world.assert_idle();
}

/// While it runs a script a server takes no SELECT, and what is to end it would wait for that.
#[test]
fn who_is_to_be_stopped_is_asked_without_choosing_a_database() {
    for options in
        ["redis: true\ncommand_policy: admin", "redis: true\ncommand_policy: admin\nredis_db: 3"]
    {
        let mut world = World::new(&pool(options, 1));
        let client = world.client();
        let database = if options.contains("redis_db") { 3 } else { 9 };
        world.send(client, redis(&format!("SELECT {database}")) + &redis("SCRIPT KILL"));
        let apart = world.accept(0);
        world.expect(apart, redis("SCRIPT KILL"));
        world.send(apart, "+OK\r\n");
        world.expect(client, "+OK\r\n+OK\r\n");
        world.assert_idle();
    }
}

#[test]
fn each_server_is_named_and_errors_are_its_own() {
    merges(
        "MEMORY DOCTOR",
        ["$2\r\nhi\r\n", "-ERR ill\r\n", "$2\r\nho\r\n"],
        "*6\r\n$2\r\ns0\r\n$2\r\nhi\r\n$2\r\ns1\r\n-ERR ill\r\n$2\r\ns2\r\n$2\r\nho\r\n",
    );
}

#[test]
fn what_is_no_such_reply_is_an_error() {
    let named = "-ERR Server sent an invalid reply (server s1, 127.0.0.1:7001)\r\n";
    merges("DBSIZE", [":3\r\n", "+OK\r\n", ":4\r\n"], named);
    // Of which server it is is not known once they are put together.
    let unnamed = "-ERR Server sent an invalid reply\r\n";
    merges("SCRIPT EXISTS a", ["*1\r\n:1\r\n", ":1\r\n", "*0\r\n"], unnamed);
}

/// KEYS takes the lanes of large replies, which nobody shares for small ones.
#[test]
fn keys_of_all_servers_come_by_the_lanes_of_large_replies() {
    let (mut world, client, lanes) = three_servers();
    world.send(client, redis("KEYS *") + &redis("GET a"));
    let bulk: [ConnId; 3] = std::array::from_fn(|server| world.accept(server as u32));
    for lane in bulk {
        world.expect(lane, redis("KEYS *"));
    }
    for lane in lanes {
        world.expect(lane, "");
    }
    world.send(bulk[1], "*1\r\n$1\r\nb\r\n");
    world.send(bulk[2], "*0\r\n");
    world.expect(client, "");
    world.send(bulk[0], "*2\r\n$1\r\na\r\n$1\r\ne\r\n");
    world.expect(client, "*3\r\n$1\r\na\r\n$1\r\ne\r\n$1\r\nb\r\n");
    // What follows has waited.
    world.expect(lanes[1], redis("GET a"));
    world.send(lanes[1], "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.assert_idle();
}

#[test]
fn replies_of_all_servers_together_are_bounded() {
    let options = format!("{OPTIONS}\nclient_output_max: 64kb\nclient_output_pause: 64kb");
    let (mut world, [_, _]): (World, [ConnId; 2]) = World::connected(&pool(&options, 2));
    let client = world.client();
    world.send(client, redis("KEYS *"));
    let (a, b) = (world.accept(0), world.accept(1));
    let keys = format!("$30000\r\n{}\r\n", "k".repeat(30_000));
    world.send(a, format!("*2\r\n{keys}"));
    world.expect(client, "");
    assert!(!world.closed.contains(&client));
    world.send(b, format!("*2\r\n{keys}"));
    world.send(b, &keys[..20_000]);
    assert!(world.closed.contains(&client));
    assert_eq!(
        world.metrics.pool_counter(world.metrics.pool(0), PoolCounter::ClientsOverflowed),
        1
    );
    // What is still to come finds nobody.
    world.send(b, &keys[20_000..]);
    world.send(a, &keys);
    world.assert_idle();
}

#[test]
fn one_server_is_asked_as_if_the_gateway_were_not_there() {
    let (mut world, [a]): (World, [ConnId; 1]) = World::connected(&pool(OPTIONS, 1));
    let client = world.client();
    let requests = [
        "SCAN 7 MATCH x* COUNT 3 TYPE set",
        "DBSIZE",
        "RANDOMKEY",
        "FLUSHALL",
        "INFO",
        "INFO everything",
        "SCRIPT LOAD x",
        "FUNCTION LIST",
        "MEMORY STATS",
        "CONFIG GET a",
        "DEBUG OBJECT a",
        "LASTSAVE",
    ];
    for request in requests {
        world.send(client, redis(request));
        world.expect(a, redis(request));
        world.send(a, "*2\r\n$1\r\n9\r\n*1\r\n$-1\r\n");
        world.expect(client, "*2\r\n$1\r\n9\r\n*1\r\n$-1\r\n");
    }
    world.assert_idle();
}

#[test]
fn a_server_that_cannot_be_reached_is_the_answer_and_nothing_is_sent() {
    let (mut world, client, [a, b, c]) = three_servers();
    world.close(b, CloseReason::Refused);
    world.send(client, redis("FLUSHALL"));
    world.expect(client, "-ERR Connection refused (server s1, 127.0.0.1:7001)\r\n");
    world.expect(a, "");
    world.expect(c, "");
    // Where each answers for itself the others do.
    world.send(client, redis("MEMORY DOCTOR"));
    world.send(a, "+a\r\n");
    world.send(c, "+c\r\n");
    world.expect(
        client,
        "*6\r\n$2\r\ns0\r\n+a\r\n$2\r\ns1\r\n-ERR Connection refused (server s1, 127.0.0.1:7001)\r\n$2\r\ns2\r\n+c\r\n",
    );
    world.assert_idle();
}

#[test]
fn a_server_that_dies_in_the_middle_is_the_answer() {
    let (mut world, client, [a, b, c]) = three_servers();
    world.send(client, redis("DBSIZE") + &redis("GET a"));
    world.send(a, ":1\r\n");
    world.close(c, CloseReason::Reset);
    world.send(b, ":1\r\n$1\r\nx\r\n");
    world
        .expect(client, "-ERR Connection reset by peer (server s2, 127.0.0.1:7002)\r\n$1\r\nx\r\n");
    world.assert_idle();
}

#[test]
fn a_client_that_leaves_leaves_nothing_behind() {
    for request in ["DBSIZE", "MEMORY DOCTOR", "INFO", "RANDOMKEY", "SCAN 0"] {
        let (mut world, client, lanes) = three_servers();
        world.send(client, redis(request));
        world.close(client, CloseReason::Eof);
        for lane in lanes {
            let asked = world.received(lane);
            if !asked.is_empty() {
                world.send(lane, "$-1\r\n");
            }
        }
        world.assert_idle();
    }
}

#[test]
fn only_servers_of_the_ring_are_asked() {
    let (mut world, client, [a, b, c]) = three_servers();
    world.engine.handle_release(BackendId::new(0), 1, vec![true, false, true].into(), world.now, 0);
    world.send(client, redis("DBSIZE"));
    world.expect(b, "");
    world.send(a, ":1\r\n");
    world.send(c, ":2\r\n");
    world.expect(client, ":3\r\n");
    world.engine.handle_release(BackendId::new(0), 2, vec![false; 3].into(), world.now, 0);
    for request in ["DBSIZE", "SCAN 0", "MEMORY DOCTOR"] {
        world.send(client, redis(request));
        world.expect(client, "-ERR Connection refused\r\n");
    }
    world.send(client, redis("RANDOMKEY"));
    world.expect(client, "$-1\r\n");
    world.assert_idle();
}

#[test]
fn servers_are_asked_for_a_random_key_until_one_has_one() {
    let (mut world, client, lanes) = three_servers();
    world.send(client, redis("RANDOMKEY") + &redis("GET a"));
    let mut asked = Vec::new();
    for turn in 0..3 {
        let at = (0..3).find(|&at| world.received(lanes[at]) == redis("RANDOMKEY").into_bytes());
        let at = at.expect("somebody is asked");
        asked.push(at);
        world.send(lanes[at], if turn == 2 { "$1\r\nk\r\n" } else { "$-1\r\n" });
    }
    asked.sort_unstable();
    assert_eq!(asked, [0, 1, 2]);
    world.expect(client, "$1\r\nk\r\n");
    // What follows has not overtaken it.
    world.expect(lanes[1], redis("GET a"));
    world.send(lanes[1], "$1\r\nv\r\n");
    world.expect(client, "$1\r\nv\r\n");

    world.send(client, redis("RANDOMKEY"));
    for _ in 0..3 {
        for lane in lanes {
            if !world.received(lane).is_empty() {
                world.send(lane, "$-1\r\n");
            }
        }
    }
    world.expect(client, "$-1\r\n");
    world.send(client, redis("RANDOMKEY"));
    for lane in lanes {
        if !world.received(lane).is_empty() {
            world.send(lane, "-LOADING wait\r\n");
        }
    }
    world.expect(client, "-LOADING wait\r\n");
    world.assert_idle();
}

#[test]
fn a_named_server_is_asked_alone() {
    let (mut world, client, [a, b, c]) = three_servers();
    for (request, sent) in [
        ("SLOWLOG GET 10 server:s1", "SLOWLOG GET 10"),
        ("DBSIZE server:s1", "DBSIZE"),
        ("INFO server:s1", "INFO"),
        ("INFO memory SERVER:s1", "INFO memory"),
        ("CONFIG SET a b server:s1", "CONFIG SET a b"),
        ("CONFIG GET * server:s1", "CONFIG GET *"),
    ] {
        world.send(client, redis(request));
        world.expect(b, redis(sent));
        world.send(b, "+fine\r\n");
        world.expect(client, "+fine\r\n");
    }
    world.send(client, redis("DBSIZE server:s9") + &redis("DBSIZE x server:s1"));
    world.expect(
        client,
        "-ERR this pool has no server 's9'\r\n\
         -ERR wrong number of arguments for 'dbsize' command\r\n",
    );
    world.send(client, redis("DBSIZE elsewhere"));
    world.expect(client, "-ERR wrong number of arguments for 'dbsize' command\r\n");
    world.expect(a, "");
    world.expect(c, "");
    // A pattern is a pattern.
    world.send(client, redis("PUBSUB CHANNELS server:s1"));
    let bulk = world.accept(0);
    world.expect(bulk, redis("PUBSUB CHANNELS server:s1"));
}

#[test]
fn info_is_put_together_and_the_gateway_adds_its_own() {
    let (mut world, client, lanes) = three_servers();
    world.send(client, redis("INFO"));
    for lane in lanes {
        world.expect(lane, redis("INFO"));
    }
    let info = |hits: u32, id: u32| {
        let text = format!("# Stats\r\nkeyspace_hits:{hits}\r\nrun:{id}\r\n");
        format!("${}\r\n{text}\r\n", text.len())
    };
    world.send(lanes[0], info(1, 1));
    world.send(lanes[1], "-LOADING\r\n");
    world.send(lanes[2], info(2, 2));
    let reply = String::from_utf8(world.received(client)).unwrap();
    assert!(reply.contains("# Stats\r\nkeyspace_hits:3\r\n\r\n# Cashew\r\n"), "{reply}");
    assert!(reply.contains("server1:name=s1,state=up\r\n"), "{reply}");
    let (header, rest) = reply.split_once("\r\n").unwrap();
    assert_eq!(header, format!("${}", rest.len() - 2));

    world.send(client, redis("INFO"));
    for lane in lanes {
        world.send(lane, "-LOADING wait\r\n");
    }
    world.expect(client, "-LOADING wait\r\n");

    // With what the gateway adds it is longer than a buffer for what it is made of.
    world.send(client, redis("INFO"));
    let line = format!("# Long\r\nline:{}\r\n", "x".repeat(900));
    world.send(lanes[0], format!("${}\r\n{line}\r\n", line.len()));
    world.send(lanes[1], "-LOADING wait\r\n");
    world.send(lanes[2], "-LOADING wait\r\n");
    let reply = String::from_utf8(world.received(client)).unwrap();
    assert!(reply.len() > 1024 && reply.contains(&line) && reply.contains("# Cashew"), "{reply}");

    world.send(client, redis("INFO Cashew") + &redis("INFO gateway"));
    let reply = String::from_utf8(world.received(client)).unwrap();
    assert_eq!(reply.matches("# Cashew\r\ncashew_version:0.0.0\r\n").count(), 2, "{reply}");
    world.assert_idle();
}

/// What the client gets for a request to SCAN: its cursor, and the elements as they came.
fn page(world: &mut World, client: ConnId) -> (String, String) {
    let reply = String::from_utf8(world.received(client)).unwrap();
    let mut parts = reply.splitn(4, "\r\n");
    assert_eq!(parts.next(), Some("*2"), "{reply}");
    let (_, cursor) = (parts.next().unwrap(), parts.next().unwrap().to_owned());
    assert!(cursor.parse::<u64>().unwrap() < 1 << 63);
    (cursor, parts.next().unwrap().to_owned())
}

#[test]
fn a_scan_walks_over_the_servers_and_keeps_its_options() {
    let (mut world, client, lanes) = three_servers();
    let options = "MATCH a* COUNT 2 TYPE string";
    let mut cursor = "0".to_owned();
    let inner = [["0", "5"], ["0", "3"], ["0", "9"]];
    for (lane, inner) in lanes.into_iter().zip(inner) {
        world.send(client, redis(&format!("SCAN {cursor} {options}")));
        world.expect(lane, redis(&format!("SCAN {} {options}", inner[0])));
        world.send(lane, format!("*2\r\n$1\r\n{}\r\n*1\r\n$1\r\nx\r\n", inner[1]));
        let elements;
        (cursor, elements) = page(&mut world, client);
        assert_eq!(elements, "*1\r\n$1\r\nx\r\n");
        // Another client may go on: the gateway remembers nothing.
        let other = world.client();
        world.send(other, redis(&format!("sCan {cursor}")));
        world.expect(lane, redis(&format!("sCan {}", inner[1])));
        world.send(lane, "*2\r\n$1\r\n0\r\n*0\r\n");
        (cursor, _) = page(&mut world, other);
    }
    assert_eq!(cursor, "0");
    world.assert_idle();
}

#[test]
fn errors_of_a_scan_are_passed_on() {
    let (mut world, client, [a, ..]) = three_servers();
    world.send(client, redis("SCAN 0 COUNT x"));
    world.send(a, "-ERR value is not an integer or out of range\r\n");
    world.expect(client, "-ERR value is not an integer or out of range\r\n");
    world.send(client, redis("SCAN x") + &redis("SCAN -1") + &redis("SCAN 18446744073709551616"));
    world.expect(client, "-ERR invalid cursor\r\n".repeat(3));
    world.send(client, redis("SCAN 0"));
    world.send(a, format!("*2\r\n$20\r\n{}\r\n*0\r\n", u64::MAX));
    let reply = world.received(client);
    assert!(
        reply.starts_with(b"-ERR the server's cursor is too large"),
        "{}",
        reply.escape_ascii()
    );
    world.assert_idle();
}

#[test]
fn a_scan_passes_over_ejected_servers_and_says_if_it_was_at_one() {
    let (mut world, client, [a, b, c]) = three_servers();
    world.send(client, redis("SCAN 0"));
    world.send(a, "*2\r\n$1\r\n0\r\n*0\r\n");
    let (second, _) = page(&mut world, client);
    world.engine.handle_release(BackendId::new(0), 1, vec![true, false, true].into(), world.now, 0);
    world.send(client, redis(&format!("SCAN {second}")));
    world.expect(
        client,
        "-ERR the server that this SCAN was at, 's1', has been ejected; start again with cursor 0\r\n",
    );
    world.received(a);
    world.send(client, redis("SCAN 0"));
    world.expect(a, redis("SCAN 0"));
    world.send(a, "*2\r\n$1\r\n0\r\n*0\r\n");
    let (third, _) = page(&mut world, client);
    world.send(client, redis(&format!("SCAN {third}")));
    world.expect(b, "");
    world.expect(c, redis("SCAN 0"));
    world.send(c, "*2\r\n$1\r\n0\r\n*0\r\n");
    assert_eq!(page(&mut world, client).0, "0");
    world.assert_idle();
}
