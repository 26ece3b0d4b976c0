//! Requests with keys on several servers: one fragment for each, one reply for all.

use crate::world::{World, pool, redis};
use cashew_engine::{CloseReason, ConnId};
use cashew_metrics::PoolCounter;

/// `a e i` are keys of the first of the four servers, `b f j` and `miss` of the second, `c g k` of the third,
/// `d h l` of the fourth.
fn four_servers() -> (World, ConnId, [ConnId; 4]) {
    World::with_client(&pool("redis: true\ntimeout: 400\npreconnect: true", 4))
}

fn count(world: &World, counter: PoolCounter) -> u64 {
    world.metrics.pool_counter(world.metrics.pool(0), counter)
}

#[test]
fn each_server_gets_one_command_with_its_keys_and_values_come_back_in_order() {
    let (mut world, client, [a, b, c, d]) = four_servers();
    world.send(client, redis("MGET a b e c f a miss b"));
    world.expect(a, redis("MGET a e a"));
    world.expect(b, redis("MGET b f miss b"));
    world.expect(c, redis("MGET c"));
    world.expect(d, "");
    world.send(c, "*1\r\n$2\r\nvc\r\n");
    world.send(b, "*4\r\n$2\r\nvb\r\n$2\r\nvf\r\n$-1\r\n$2\r\nVB\r\n");
    world.expect(client, "");
    world.send(a, "*3\r\n$2\r\nva\r\n$2\r\nve\r\n$2\r\nVA\r\n");
    world.expect(
        client,
        "*8\r\n$2\r\nva\r\n$2\r\nvb\r\n$2\r\nve\r\n$2\r\nvc\r\n$2\r\nvf\r\n$2\r\nVA\r\n$-1\r\n\
         $2\r\nVB\r\n",
    );
    assert_eq!(count(&world, PoolCounter::Fragments), 3);
    assert_eq!(count(&world, PoolCounter::Requests), 1);
    assert_eq!(count(&world, PoolCounter::Responses), 1);
    world.assert_idle();
}

#[test]
fn what_one_server_has_alone_is_forwarded_untouched() {
    let (mut world, client, [a, ..]) = four_servers();
    let requests =
        ["mGet a e i", "MSET a 1 e 2", "DEL a a", "UNLINK e", "TOUCH a i", "EXISTS a a a", "del a"];
    for request in requests {
        world.send(client, redis(request));
        world.expect(a, redis(request));
        world.send(a, "-ERR whatever\r\n");
        world.expect(client, "-ERR whatever\r\n");
    }
    assert_eq!(count(&world, PoolCounter::Fragments), 0);
    world.assert_idle();
}

#[test]
fn counts_are_added() {
    let (mut world, client, [a, b, _, d]) = four_servers();
    for name in ["DEL", "UNLINK", "TOUCH", "EXISTS"] {
        world.send(client, redis(&format!("{name} d a b a d")));
        world.expect(a, redis(&format!("{name} a a")));
        world.expect(b, redis(&format!("{name} b")));
        world.expect(d, redis(&format!("{name} d d")));
        world.send(a, ":2\r\n");
        world.send(d, ":1\r\n");
        world.send(b, ":0\r\n");
        world.expect(client, ":3\r\n");
    }
    world.assert_idle();
}

#[test]
fn values_stay_with_their_keys_and_the_answer_is_ok() {
    let (mut world, client, [a, b, ..]) = four_servers();
    world.send(client, redis("MSET a 1 b 2 e 3 a 4"));
    world.expect(a, redis("MSET a 1 e 3 a 4"));
    world.expect(b, redis("MSET b 2"));
    world.send(b, "+OK\r\n");
    world.expect(client, "");
    world.send(a, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.assert_idle();
}

#[test]
fn values_with_any_bytes_survive_the_split() {
    let (mut world, client, [a, b, ..]) = four_servers();
    let value = b"\0\r\n*1\r\n$-1\r\n\xff";
    let mut request = b"*5\r\n$4\r\nMSET\r\n$1\r\na\r\n$13\r\n".to_vec();
    request.extend_from_slice(value);
    request.extend_from_slice(b"\r\n$1\r\nb\r\n$0\r\n\r\n");
    world.send(client, &request);
    let mut to_a = b"*3\r\n$4\r\nMSET\r\n$1\r\na\r\n$13\r\n".to_vec();
    to_a.extend_from_slice(value);
    to_a.extend_from_slice(b"\r\n");
    assert_eq!(world.received(a), to_a);
    world.expect(b, "*3\r\n$4\r\nMSET\r\n$1\r\nb\r\n$0\r\n\r\n");
    world.send(a, "+OK\r\n");
    world.send(b, "+OK\r\n");
    world.expect(client, "+OK\r\n");
}

#[test]
fn fragments_of_what_came_in_another_form_are_in_the_plain_one() {
    let (mut world, client, [a, b, ..]) = four_servers();
    let requests = [
        "MSET a 1 b '2 2' e 3\r\n",
        "*7\r\n$4\r\nMSET\r.$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r.$3\r.2 2\r\n$1\r\ne\r\n$1\r\n3\r\n",
    ];
    for request in requests {
        world.send(client, request);
        world.expect(a, redis("MSET a 1 e 3"));
        world.expect(b, "*3\r\n$4\r\nMSET\r\n$1\r\nb\r\n$3\r\n2 2\r\n");
        world.send(a, "+OK\r\n");
        world.send(b, "+OK\r\n");
        world.expect(client, "+OK\r\n");
    }
    world.assert_idle();
}

#[test]
fn the_error_of_a_fragment_is_the_answer() {
    let (mut world, client, [a, b, c, _]) = four_servers();
    for (request, good, bad) in [
        ("MGET a b c", "*1\r\n$1\r\n1\r\n", "-LOADING Redis is loading the dataset in memory\r\n"),
        ("DEL a b c", ":1\r\n", "-READONLY You can't write against a read only replica.\r\n"),
        ("MSET a 1 b 2 c 3", "+OK\r\n", "-OOM command not allowed\r\n"),
    ] {
        world.send(client, redis(request));
        world.send(a, good);
        world.send(c, bad);
        world.send(b, "-ERR the error of the fragment before\r\n");
        world.expect(client, "-ERR the error of the fragment before\r\n");
        world.send(client, redis(request));
        world.send(c, bad);
        world.send(b, good);
        world.send(a, good);
        world.expect(client, bad);
    }
    world.assert_idle();
}

#[test]
fn a_refused_fragment_fails_the_request_and_not_its_neighbours() {
    let mut world = World::new(&pool("redis: true\ntimeout: 400", 4));
    let client = world.client();
    world.send(client, redis("GET a") + &redis("MGET a b") + &redis("GET e"));
    let a = world.accept(0);
    world.expect(a, redis("GET a") + &redis("MGET a") + &redis("GET e"));
    world.send(a, "$1\r\n1\r\n*1\r\n$1\r\n2\r\n$1\r\n3\r\n");
    world.expect(client, "$1\r\n1\r\n");
    world.refuse(1);
    world.expect(client, "-ERR Connection refused\r\n$1\r\n3\r\n");
    // While the server is known to be gone nothing is sent to the others either.
    world.send(client, redis("DEL a b"));
    world.expect(client, "-ERR Connection refused\r\n");
    world.expect(a, "");
    world.assert_idle();
}

#[test]
fn a_fragment_that_times_out_fails_the_request_alone() {
    let (mut world, client, [a, b, ..]) = four_servers();
    world.send(client, redis("MSET a 1 b 2") + &redis("GET e"));
    world.send(a, "+OK\r\n$1\r\ne\r\n");
    world.wait_ms(399);
    world.expect(client, "");
    world.wait_ms(1);
    world.expect(client, "-ERR Connection timed out\r\n$1\r\ne\r\n");
    assert!(world.closed.contains(&b) && !world.closed.contains(&a));
    world.assert_idle();
}

#[test]
fn a_connection_lost_in_the_middle_of_a_fragments_reply_fails_the_request() {
    let (mut world, client, [a, b, ..]) = four_servers();
    world.send(client, redis("MGET a b"));
    world.send(b, "*1\r\n$100000\r\n");
    world.send(b, vec![b'x'; 60_000]);
    world.send(a, "*1\r\n$1\r\n1\r\n");
    world.expect(client, "");
    world.close(b, CloseReason::Reset);
    world.expect(client, "-ERR Connection reset by peer\r\n");
    assert!(!world.closed.contains(&client));
    world.assert_idle();
}

/// One error for who asked, and nothing of what comes behind for anybody: that is late by one reply, or
/// early.
#[test]
fn a_fragments_reply_that_does_not_fit_ends_that_servers_connection() {
    for (request, good, bad) in [
        ("MGET a b e", "*1\r\n$1\r\n1\r\n", "*1\r\n$1\r\n1\r\n"),
        ("MGET a b e", "*1\r\n$1\r\n1\r\n", "*3\r\n$1\r\n1\r\n$1\r\n1\r\n$1\r\n1\r\n"),
        ("MGET a b e", "*1\r\n$1\r\n1\r\n", "*-1\r\n"),
        ("MGET a b e", "*1\r\n$1\r\n1\r\n", "*0\r\n"),
        ("MGET a b e", "*1\r\n$1\r\n1\r\n", "$1\r\n1\r\n"),
        ("MGET a b e", "*1\r\n$1\r\n1\r\n", "+OK\r\n"),
        ("DEL a b e", ":1\r\n", "+OK\r\n"),
        ("DEL a b e", ":1\r\n", "*1\r\n:1\r\n"),
        ("MSET a 1 b 2", "+OK\r\n", ":1\r\n"),
        ("MSET a 1 b 2", "+OK\r\n", "$2\r\nOK\r\n"),
    ] {
        for cut in 0..bad.len() {
            let (mut world, client, [a, b, ..]) = four_servers();
            let other = world.client();
            world.send(client, redis(request));
            world.send(other, redis("GET a"));
            if cut % 2 == 0 {
                world.send(b, good);
            }
            world.send(a, &bad[..cut]);
            world.send(a, format!("{}$6\r\nothers\r\n", &bad[cut..]));
            if cut % 2 == 1 {
                world.send(b, good);
            }
            for client in [client, other] {
                world.expect(client, "-ERR Server sent an invalid reply\r\n");
            }
            assert_eq!(world.closed, [a], "{request} {bad:?}");
            world.wait_ms(50);
            let again = world.accept(0);
            world.send(other, redis("GET a"));
            world.expect(again, redis("GET a"));
            world.send(again, "$1\r\nx\r\n");
            world.expect(other, "$1\r\nx\r\n");
            world.assert_idle();
        }
    }
}

#[test]
fn who_left_leaves_no_reply_that_does_not_fit() {
    for cut in 1.."*1\r\n".len() {
        let (mut world, client, [a, b, ..]) = four_servers();
        let other = world.client();
        world.send(client, redis("MGET a b e"));
        world.send(other, redis("GET a"));
        world.close(client, CloseReason::Reset);
        let bad = "*1\r\n$1\r\n1\r\n";
        world.send(a, &bad[..cut]);
        world.send(a, format!("{}$6\r\nothers\r\n", &bad[cut..]));
        world.send(b, "*1\r\n$1\r\n1\r\n");
        world.expect(other, "-ERR Server sent an invalid reply\r\n");
        assert!(world.closed.contains(&a));
        world.assert_idle();
    }
}

#[test]
fn counts_that_cannot_be_added_are_an_error() {
    let (mut world, client, [a, b, ..]) = four_servers();
    for bad in [":x\r\n", ":9223372036854775807\r\n"] {
        for (first, second) in [(a, b), (b, a)] {
            world.send(client, redis("DEL a b e"));
            world.send(first, bad);
            world.send(second, ":1\r\n");
            world.expect(client, "-ERR Server sent an invalid reply\r\n");
        }
    }
    assert!(world.closed.is_empty());
    world.assert_idle();
}

#[test]
fn a_fragments_reply_that_is_no_reply_ends_that_servers_connection() {
    let (mut world, client, [a, b, ..]) = four_servers();
    world.send(client, redis("MGET a b") + &redis("GET e"));
    world.send(b, "!nonsense\r\n");
    world.send(a, "*1\r\n$1\r\n1\r\n$1\r\ne\r\n");
    world.expect(client, "-ERR Server sent an invalid reply\r\n$1\r\ne\r\n");
    assert_eq!(world.closed, [b]);
    world.assert_idle();
}

#[test]
fn fragments_outlive_their_client() {
    let (mut world, client, [a, b, ..]) = four_servers();
    let other = world.client();
    world.send(client, redis("MGET a b") + &redis("DEL a b") + &redis("MSET a 1 b 2"));
    world.send(other, redis("MGET b a"));
    world.send(a, "*1\r\n$1\r\n1\r\n:1\r\n+O");
    world.close(client, CloseReason::Reset);
    world.send(b, "*1\r\n$1\r\n1\r\n:1\r\n+OK\r\n*1\r\n$1\r\nB\r\n");
    world.expect(other, "");
    world.send(a, "K\r\n*1\r\n$1\r\nA\r\n");
    world.expect(other, "*2\r\n$1\r\nB\r\n$1\r\nA\r\n");
    world.expect(client, "");
    world.assert_idle();
}

#[test]
fn fragments_of_a_client_that_left_may_fail() {
    let (mut world, client, [a, b, ..]) = four_servers();
    world.send(client, redis("MGET a b") + &redis("MGET b a"));
    world.send(a, "*1\r\n$1\r\n1\r\n");
    world.close(client, CloseReason::Reset);
    world.close(b, CloseReason::Reset);
    world.wait_ms(400);
    assert!(world.closed.contains(&a));
    world.assert_idle();
}

#[test]
fn a_half_closed_client_gets_the_merged_reply() {
    let (mut world, client, [a, b, ..]) = four_servers();
    world.send(client, redis("DEL a b"));
    world.read_closed(client);
    world.send(a, ":1\r\n");
    assert!(!world.closed.contains(&client));
    world.send(b, ":1\r\n");
    world.expect(client, ":2\r\n");
    assert!(world.closed.contains(&client));
    world.assert_idle();
}

#[test]
fn splits_keep_their_place_in_a_pipeline() {
    let (mut world, client, [a, b, c, d]) = four_servers();
    let pipeline = ["GET d", "MGET a b", "PING", "DEL c d", "MGET a", "NOSUCH", "MSET b 1 c 2"];
    world.send(client, pipeline.map(redis).concat());
    world.expect(a, redis("MGET a") + &redis("MGET a"));
    world.expect(b, redis("MGET b") + &redis("MSET b 1"));
    world.expect(c, redis("DEL c") + &redis("MSET c 2"));
    world.expect(d, redis("GET d") + &redis("DEL d"));
    world.send(c, ":1\r\n+OK\r\n");
    world.send(b, "*1\r\n$1\r\nb\r\n+OK\r\n");
    world.send(a, "*1\r\n$1\r\na\r\n*1\r\n$1\r\nA\r\n");
    world.expect(client, "");
    world.send(d, "$1\r\nd\r\n:1\r\n");
    world.expect(
        client,
        "$1\r\nd\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n+PONG\r\n:2\r\n*1\r\n$1\r\nA\r\n\
         -ERR unknown command 'NOSUCH', with args beginning with: \r\n+OK\r\n",
    );
    world.assert_idle();
}

#[test]
fn what_is_wrong_with_a_split_changes_nothing_before_it() {
    let invalid = "-ERR Server sent an invalid reply\r\n";
    for (reply, answer) in [
        ("*2\r\n:1\r\n:2\r\n", invalid),
        ("*0\r\n", invalid),
        (":1\r\n", invalid),
        ("-ERR x\r\n", "-ERR x\r\n"),
        ("*1\r\n*1\r\n:1\r\n", "*2\r\n*1\r\n:1\r\n:3\r\n"),
    ] {
        let (mut world, client, [a, b, ..]) = four_servers();
        world.send(client, [redis("MGET a b"), redis("MGET b a"), redis("GET a")].concat());
        world.send(a, "*1\r\n:1\r\n*1\r\n:3\r\n+A\r\n");
        world.expect(client, "");
        world.send(b, format!("*1\r\n$1\r\nB\r\n{reply}"));
        world.expect(client, format!("*2\r\n:1\r\n$1\r\nB\r\n{answer}+A\r\n"));
        world.assert_idle();
    }
}

#[test]
fn replies_to_parts_may_come_in_any_pieces() {
    let (mut world, client, [a, b, ..]) = four_servers();
    let reply = "*2\r\n$1\r\na\r\n$-1\r\n*1\r\n:1\r\n";
    for cut in 1..reply.len() {
        world.send(client, [redis("MGET a b e"), redis("MGET b a")].concat());
        world.send(b, "*1\r\n$1\r\nB\r\n*1\r\n$-1\r\n");
        world.send(a, &reply[..cut]);
        world.send(a, &reply[cut..]);
        let first = "*3\r\n$1\r\na\r\n$1\r\nB\r\n$-1\r\n";
        world.expect(client, format!("{first}*2\r\n$-1\r\n:1\r\n"));
    }
    world.assert_idle();
}

#[test]
fn large_values_pass_through_a_split() {
    let (mut world, client, [a, b, ..]) = four_servers();
    let (large, small) = ("x".repeat(200_000), "y".repeat(10));
    let request = redis(&format!("MSET a {large} b {small}"));
    for chunk in request.as_bytes().chunks(65_536) {
        world.send(client, chunk);
    }
    world.expect(a, redis(&format!("MSET a {large}")));
    world.expect(b, redis(&format!("MSET b {small}")));
    world.send(a, "+OK\r\n");
    world.send(b, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.send(client, redis("MGET b a"));
    let reply = format!("*1\r\n$200000\r\n{large}\r\n");
    for chunk in reply.as_bytes().chunks(65_536) {
        world.send(a, chunk);
    }
    world.send(b, format!("*1\r\n$10\r\n{small}\r\n"));
    world.expect(client, format!("*2\r\n$10\r\n{small}\r\n$200000\r\n{large}\r\n"));
    world.assert_idle();
}

#[test]
fn keys_of_several_servers_without_a_merge_are_refused() {
    let (mut world, client, lanes) = four_servers();
    for request in [
        "RENAME a b",
        "SINTERSTORE a e b",
        "MSETNX a 1 b 2",
        "BITOP AND a e f",
        "SMOVE a b member",
        "PFCOUNT a b",
        "ZUNIONSTORE a 2 e f",
        "ZUNIONSTORE b 2 a e",
        "EVAL script 2 a b",
        "XREAD STREAMS a b 0 0",
        "SORT a STORE b",
    ] {
        world.send(client, redis(request) + &redis("PING"));
        let reply = String::from_utf8(world.received(client)).unwrap();
        let name = request.split(' ').next().unwrap();
        let start = format!("-CROSSSLOT {name} needs its keys on one server, but '");
        assert!(reply.starts_with(&start) && reply.ends_with("\r\n+PONG\r\n"), "{reply}");
    }
    lanes.into_iter().for_each(|lane| world.expect(lane, ""));
    world.assert_idle();
}

#[test]
fn keys_of_one_server_need_no_merge() {
    let (mut world, client, [a, ..]) = four_servers();
    for request in [
        "RENAME a e",
        "SINTERSTORE a e i",
        "MSETNX a 1 e 2",
        "ZUNIONSTORE a 2 e i WEIGHTS 1 2",
        // What is not a key does not matter.
        "EVAL script 2 a e b",
        "FCALL f 1 a b c d",
        "XREAD COUNT 1 STREAMS a e 0 0",
    ] {
        world.send(client, redis(request));
        world.expect(a, redis(request));
        world.send(a, ":1\r\n");
        world.expect(client, ":1\r\n");
    }
    world.assert_idle();
}

#[test]
fn a_hash_tag_brings_keys_together() {
    let options = "redis: true\npreconnect: true\nhash_tag: \"{}\"";
    let (mut world, [a, b, ..]): (World, [ConnId; 4]) = World::connected(&pool(options, 4));
    let client = world.client();
    for request in [
        "RENAME {a}1 2{a}",
        "SINTERSTORE {a}b {a}c x{a}d",
        "MSETNX {a}b 1 a 2",
        "MGET {a}b {a}c",
        "DEL {a}b {a}c",
    ] {
        world.send(client, redis(request));
        world.expect(a, redis(request));
        world.send(a, ":1\r\n");
        world.expect(client, ":1\r\n");
    }
    world.send(client, redis("DEL {a}x {b}x {a}y"));
    world.expect(a, redis("DEL {a}x {a}y"));
    world.expect(b, redis("DEL {b}x"));
    world.send(a, ":2\r\n");
    world.send(b, ":1\r\n");
    world.expect(client, ":3\r\n");
    world.assert_idle();
}

#[test]
fn patterns_that_may_name_keys_of_other_servers_are_refused() {
    let options = "redis: true\npreconnect: true\nhash_tag: \"{}\"";
    let (mut world, [a, b, ..]): (World, [ConnId; 4]) = World::connected(&pool(options, 4));
    let client = world.client();
    let stray = [
        ("SORT a BY w_*", "w_*"),
        ("SORT a BY nosort GET w_*->f", "w_*->f"),
        ("SORT_RO {a} BY {a}_* GET *", "*"),
        ("SORT {a} GET *{a}", "*{a}"),
        ("SORT {a} GET {*}", "{*}"),
        ("SORT {a} LIMIT 0 1 GET # GET {b}* DESC", "{b}*"),
    ];
    for (request, pattern) in stray {
        world.send(client, redis(request) + &redis("PING"));
        let name = request.split(' ').next().unwrap();
        world.expect(
            client,
            format!(
                "-CROSSSLOT {name} would read keys like '{pattern}', which may be on other \
                 servers: keys with the same part between {{ and }} share a server\r\n+PONG\r\n"
            ),
        );
    }
    world.expect(b, "");
    for request in [
        "SORT a",
        "SORT a BY nosort GET #",
        "SORT {a} BY {a}_* GET {a}:*->f GET # LIMIT 0 1",
        "SORT a BY {a}w_* STORE {a}b",
        "SORT_RO a LIMIT BY * ALPHA",
    ] {
        world.send(client, redis(request));
        world.expect(a, redis(request));
        world.send(a, "*0\r\n");
        world.expect(client, "*0\r\n");
    }
    world.assert_idle();
}

#[test]
fn one_server_completes_any_pattern() {
    let (mut world, [a]): (World, [ConnId; 1]) =
        World::connected(&pool("redis: true\npreconnect: true", 1));
    let client = world.client();
    world.send(client, redis("SORT a BY w_* GET *"));
    world.expect(a, redis("SORT a BY w_* GET *"));
    world.send(a, "*0\r\n");
    world.expect(client, "*0\r\n");
    world.assert_idle();
}

#[test]
fn a_senseless_number_of_keys_gets_redis_errors() {
    let (mut world, client, _) = four_servers();
    for (request, error) in [
        ("EVAL script 3 a e", "ERR Number of keys can't be greater than number of args"),
        ("EVAL script -1 a", "ERR Number of keys can't be negative"),
        ("EVAL script x a", "ERR value is not an integer or out of range"),
        ("ZUNIONSTORE a 0 e", "ERR at least 1 input key is needed for 'zunionstore' command"),
        ("ZUNIONSTORE a 9 e", "ERR syntax error"),
        ("MSET a 1 b", "ERR wrong number of arguments for 'mset' command"),
        ("MSETNX a 1 b", "ERR wrong number of arguments for 'msetnx' command"),
        ("MGET", "ERR wrong number of arguments for 'mget' command"),
        ("DEL", "ERR wrong number of arguments for 'del' command"),
    ] {
        world.send(client, redis(request));
        world.expect(client, format!("-{error}\r\n"));
    }
    world.assert_idle();
}

#[test]
fn a_full_queue_refuses_the_whole_request() {
    let options = "redis: true\npreconnect: true\nserver_queue_max: 1";
    let (mut world, [a, b, ..]): (World, [ConnId; 4]) = World::connected(&pool(options, 4));
    let client = world.client();
    world.send(client, redis("GET b") + &redis("MGET a b") + &redis("GET a"));
    world.expect(a, redis("GET a"));
    world.send(b, "$-1\r\n");
    world.send(a, "$-1\r\n");
    world.expect(client, "$-1\r\n-ERR Server queue is full\r\n$-1\r\n");
    world.assert_idle();
}
