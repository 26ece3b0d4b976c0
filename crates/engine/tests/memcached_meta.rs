//! Meta commands, statistics and retrievals of very many keys through the gateway.

use crate::world::{World, pool, snapshot};
use cashew_engine::{CloseReason, ConnId};

/// `a e i` are keys of the first of the four servers, `b f j` of the second, `c g k` of the third,
/// `d h l` of the fourth.
fn four_servers(options: &str) -> (World, ConnId, [ConnId; 4]) {
    let options = format!("timeout: 400\npreconnect: true\n{options}");
    World::with_client(&pool(&options, 4))
}

#[test]
fn meta_commands_go_to_the_server_of_their_key() {
    let (mut world, client, [_, b, ..]) = four_servers("");
    for (request, reply) in [
        ("mg b v t f\r\n", "VA 2 t-1 f0\r\nhi\r\n"),
        ("mg b\r\n", "EN\r\n"),
        ("mg b k O1\r\n", "EN kb O1\r\n"),
        ("mg Yg== b v\r\n", "HD\r\n"),
        ("ms b 2 T5\r\nhi\r\n", "HD\r\n"),
        ("ms Yg== 2 b\r\nhi\r\n", "NS\r\n"),
        ("md b I T30\r\n", "NF\r\n"),
        ("ma b v\r\n", "VA 1\r\n5\r\n"),
        ("me b\r\n", "ME b exp=-1 la=0 cas=1 fetch=no cls=1 size=64\r\n"),
        ("mg b D5 v\r\n", "CLIENT_ERROR invalid flag\r\n"),
    ] {
        world.send(client, request);
        world.expect(b, request);
        world.send(b, reply);
        world.expect(client, reply);
    }
    world.assert_idle();
}

/// A server tells a key that was stored by a binary request as it is: `YQpi` is `a`, a line feed and `b`.
#[test]
fn no_reply_has_a_line_end_in_its_key() {
    let error = "CLIENT_ERROR a key with a line feed cannot be told: ask without it\r\n";
    let (mut world, client, lanes) = four_servers("");
    for request in ["mg YQpi b k v\r\n", "mg YQpi k O1 b q\r\n", "me YQpi b\r\n"] {
        world.send(client, request);
        world.expect(client, error);
    }
    world.send(client, "mg YQpi b v\r\nmd YQpi b k\r\nms YQpi 1 b k\r\nx\r\n");
    let asked = "mg YQpi b v\r\nmd YQpi b k\r\nms YQpi 1 b k\r\nx\r\n";
    let lane = lanes.into_iter().find(|&lane| world.received(lane) == asked.as_bytes()).unwrap();
    world.send(lane, "EN\r\nNF kYQpi b\r\nHD kYQpi b\r\n");
    world.expect(client, "EN\r\nNF kYQpi b\r\nHD kYQpi b\r\n");
    // Where clients speak text only, meta commands make such keys all the same: `ma YQpi b N0`.
    let (mut world, client, lanes) = four_servers("protocol: text\ncommand_policy: admin");
    world.send(client, "mg YQpi b k v\r\nme YQpi b\r\n");
    world.expect(client, error.repeat(2));
    let listed = "CLIENT_ERROR keys may have line feeds: ask in binary, or the server itself\r\n";
    world.send(client, "stats cachedump 1 0\r\nstats  detail dump\r\n");
    world.expect(client, listed.repeat(2));
    assert!(lanes.into_iter().all(|lane| world.received(lane).is_empty()));
}

/// A client of a route, and the connections to the servers of its pools.
fn routed(route: &str) -> (World, ConnId, Vec<ConnId>) {
    let mut world = World::new(&snapshot(&format!(
        "global: {{worker_processes: 1}}
pools:
  a: {{listen: '127.0.0.1:6001', preconnect: true, servers: ['127.0.0.1:7000:1']}}
  b: {{listen: '127.0.0.1:6002', preconnect: true, servers: ['127.0.0.1:7001:1']}}
routes:
  main: {{listen: '127.0.0.1:6000', route: {route}}}
"
    )));
    // Each pool has a server of that number.
    let mut lanes = Vec::new();
    while world.connects_to(0) {
        lanes.push(world.accept(0));
    }
    let main = world.engine.listener_named("main").unwrap();
    let client = world.client_of(main.number());
    (world, client, lanes)
}

/// Later versions of memcached take `delete noreply` for an order to be silent: the next reply would be its own.
#[test]
fn a_key_that_a_route_makes_is_no_order_to_be_silent() {
    for (route, request) in [
        ("{prefix: {'x:': {strip: true, to: a}}}", "delete x:noreply\r\n"),
        ("{prefix: {'x:': {strip: true, to: a}}}", "delete x:noreply noreply\r\n"),
        ("{prefix: {'x': {rewrite: 'no', to: a}}}", "delete xreply\r\n"),
        ("{all_initial: [a, b]}", "delete noreply\r\n"),
        ("{migrate: {from: a, to: b, share: 50%, dual_write: true}}", "incr noreply 1\r\n"),
    ] {
        let (mut world, client, lanes) = routed(route);
        world.send(client, request);
        let mut deleted = 0;
        for lane in [&lanes[..], &lanes[..]].concat() {
            let received = String::from_utf8(world.received(lane)).unwrap();
            assert!(!received.contains("delete noreply\r\n"), "{route}: {received}");
            deleted += received.matches("delete noreply 0\r\n").count();
            world.send(lane, "NOT_FOUND\r\n".repeat(received.lines().count()));
        }
        assert!(deleted > 0, "{route}");
        if !request.ends_with("noreply noreply\r\n") {
            world.expect(client, "NOT_FOUND\r\n");
        }
    }
}

#[test]
fn no_reply_by_way_of_a_route_has_a_line_end_in_its_key() {
    let error = "CLIENT_ERROR a key with a line feed cannot be told: ask without it\r\n";
    for route in [
        "{prefix: {'': {rewrite: 'x:', to: a}}}",
        "{key_split: {to: a, copies: 2}}",
        "{all_initial: [a, b]}",
    ] {
        let (mut world, client, lanes) = routed(route);
        for request in ["mg YQpi b k v\r\n", "mg YQpi k O1 b q\r\n", "me YQpi b\r\n"] {
            world.send(client, request);
            world.expect(client, error);
        }
        for &lane in &lanes {
            assert!(world.received(lane).is_empty(), "{route}");
        }
        world.send(client, "mg YQpi b v\r\n");
        assert!(lanes.iter().any(|&lane| !world.received(lane).is_empty()), "{route}");
    }
}

#[test]
fn whatever_a_server_says_to_what_administers_it_nobody_elses_reply_follows() {
    let enabled = "STAT sizes_status enabled\r\n";
    for (said, told) in [
        ("", "SERVER_ERROR no answer\r\n"),
        (enabled, enabled),
        ("STAT sizes_status enabled\r\nEND\r\n", "STAT sizes_status enabled\r\nEND\r\n"),
    ] {
        let (mut world, [lane]): (World, [ConnId; 1]) = World::connected(&pool(
            "preconnect: true\nserver_connections: 1\ncommand_policy: admin",
            1,
        ));
        let [client, other] = [world.client(), world.client()];
        world.send(client, "stats sizes_enable\r\n");
        world.send(other, "mg a v\r\n");
        world.expect(lane, "stats sizes_enable\r\nversion\r\nmg a v\r\n");
        let reply = format!("{said}VERSION 1.6.18\r\nVA 1\r\nx\r\n");
        for byte in reply.bytes() {
            world.send(lane, [byte]);
        }
        world.expect(client, told);
        world.expect(other, "VA 1\r\nx\r\n");
        world.assert_idle();
    }
}

/// One client's line that its server finds odd keeps nobody from `ms`.
#[test]
fn a_line_that_a_server_refuses_costs_a_connection_and_no_more() {
    for request in ["ms a 1\r\nx\r\n", "set a 0 0 1\r\nx\r\n"] {
        let (mut world, [lane]): (World, [ConnId; 1]) =
            World::connected(&pool("preconnect: true\nserver_connections: 1", 1));
        let client = world.client();
        world.send(client, request);
        world.expect(lane, request);
        world.send(lane, "CLIENT_ERROR bad command line format\r\n");
        world.expect(client, "SERVER_ERROR Server sent an invalid reply\r\n");
        assert!(world.closed.contains(&lane), "{request}");
        world.wait_ms(1000);
        let lane = world.accept(0);
        for (request, reply) in
            [("ms a 1\r\nx\r\n", "HD\r\n"), ("set a 0 0 1\r\nx\r\n", "STORED\r\n")]
        {
            world.send(client, request);
            world.expect(lane, request);
            world.send(lane, reply);
            world.expect(client, reply);
        }
    }
}

#[test]
fn a_server_that_does_not_know_ms_is_not_sent_it_again() {
    for (request, reply, refusal) in [
        ("ms a 1\r\nx\r\n", "ERROR\r\n", "SERVER_ERROR the server is too old for ms\r\n"),
        (
            "ms a 1 q c\r\nx\r\n",
            "CLIENT_ERROR invalid flag\r\n",
            "SERVER_ERROR the server is too old for ms\r\n",
        ),
    ] {
        let (mut world, [lane]): (World, [ConnId; 1]) =
            World::connected(&pool("preconnect: true\nserver_connections: 1", 1));
        let client = world.client();
        world.send(client, request);
        world.send(client, "get b\r\n");
        assert!(!world.received(lane).is_empty());
        // The data were read as a command.
        world.send(lane, format!("{reply}VALUE b 0 1\r\nx\r\nEND\r\n"));
        world.expect(client, "SERVER_ERROR Server sent an invalid reply\r\n".repeat(2));
        assert!(world.closed.contains(&lane));
        world.send(client, request);
        world.expect(client, refusal);
    }
}

#[test]
fn what_is_quiet_is_told_by_its_reply() {
    let (mut world, client, [a, ..]) = four_servers("");
    for (request, sent, reply, told) in [
        ("mg a q v\r\n", "mg a v\r\n", "EN\r\n", ""),
        ("mg a v  q k\r\n", "mg a v k\r\n", "VA 2 ka\r\nEN\r\n", "VA 2 ka\r\nEN\r\n"),
        ("mg a q\r\n", "mg a\r\n", "HD\r\n", "HD\r\n"),
        ("ms a 1 q\r\nx\r\n", "ms a 1\r\nx\r\n", "HD\r\n", ""),
        ("ms a 1 q ME\r\nx\r\n", "ms a 1 ME\r\nx\r\n", "NS\r\n", "NS\r\n"),
        ("md a q\r\n", "md a q\r\nmn\r\n", "MN\r\n", ""),
        ("md a q\r\n", "md a q\r\nmn\r\n", "NF\r\nMN\r\n", "NF\r\n"),
        ("ma a q N0 v\r\n", "ma a q N0 v\r\nmn\r\n", "VA 1\r\n0\r\nMN\r\n", "VA 1\r\n0\r\n"),
        ("mg a q\r\n", "mg a\r\n", "SERVER_ERROR x\r\n", "SERVER_ERROR x\r\n"),
    ] {
        for cut in 0..reply.len() {
            world.send(client, request);
            world.expect(a, sent);
            let (start, rest) = reply.split_at(cut);
            world.send(a, start);
            world.send(a, rest);
            world.expect(client, told);
        }
    }
    world.assert_idle();
}

#[test]
fn the_fence_of_a_client_that_is_gone_is_nobody_elses_reply() {
    let (mut world, client, [a, ..]) = four_servers("");
    for reply in ["MN\r\n", "NF\r\nMN\r\n", "VA 1 c7\r\n0\r\nMN\r\n"] {
        for (goes, cut) in (0..reply.len()).flat_map(|cut| (0..=cut).map(move |goes| (goes, cut))) {
            let gone = world.client();
            world.send(gone, "ma a q v c\r\n");
            world.send(client, "set a 0 0 1\r\nx\r\n");
            world.expect(a, "ma a q v c\r\nmn\r\nset a 0 0 1\r\nx\r\n");
            world.send(a, &reply[..goes]);
            world.close(gone, CloseReason::Reset);
            world.send(a, &reply[goes..cut]);
            world.send(a, &reply[cut..]);
            world.expect(client, "");
            world.send(a, "STORED\r\n");
            world.expect(client, "STORED\r\n");
        }
    }
    world.assert_idle();
}

#[test]
fn what_comes_before_a_fence_is_not_kept_without_end() {
    let (mut world, client, [a, ..]) =
        four_servers("client_output_pause: 64kb\nclient_output_max: 64kb");
    world.send(client, "md a q\r\n");
    world.expect(a, "md a q\r\nmn\r\n");
    for _ in 0..8 {
        world.send(a, "NF\r\n".repeat(4096));
    }
    assert!(world.closed.contains(&client));
    world.send(a, "MN\r\n");
    world.assert_idle();
}

#[test]
fn mn_means_what_it_says_over_all_servers() {
    let (mut world, client, [a, b, ..]) = four_servers("");
    world.send(client, "mg a q v\r\nmg b q v\r\nms a 1 q\r\nx\r\nmd b q\r\nmn\r\nmg e q\r\nmn\r\n");
    world.expect(a, "mg a v\r\nms a 1\r\nx\r\nmg e\r\n");
    world.expect(b, "mg b v\r\nmd b q\r\nmn\r\n");
    world.send(b, "VA 1\r\ny\r\nNF\r\nMN\r\n");
    world.expect(client, "");
    world.send(a, "EN\r\nHD\r\n");
    world.expect(client, "VA 1\r\ny\r\nNF\r\nMN\r\n");
    world.send(a, "EN\r\n");
    world.expect(client, "MN\r\n");
    world.assert_idle();
}

#[test]
fn a_large_quiet_value_is_passed_on_while_it_arrives() {
    let (mut world, client, [a, ..]) = four_servers("");
    world.send(client, "mg a q v\r\n");
    world.expect(a, "mg a v\r\n");
    world.send(a, "V");
    let value = vec![b'x'; 100_000];
    world.send(a, "A 100000\r\n");
    world.send(a, &value[..60_000]);
    world.send(a, &value[60_000..]);
    world.send(a, "\r\n");
    world.expect(client, [b"VA 100000\r\n", &value[..], b"\r\n"].concat());
    world.assert_idle();
}

#[test]
fn a_meta_set_that_is_too_large_drops_what_is_stored() {
    let (mut world, client, [a, ..]) = four_servers("request_size_max: 1024");
    world.send(client, "ms a 2000 q\r\n");
    world.expect(a, "delete a\r\n");
    world.send(a, "DELETED\r\n");
    world.expect(client, "SERVER_ERROR object too large for cache\r\n");
    world.send(client, [&[b'x'; 2000][..], b"\r\nms YQ== 2000 b\r\n"].concat());
    world.expect(a, "md YQ== b\r\n");
    world.send(a, "NF\r\n");
    world.expect(client, "SERVER_ERROR object too large for cache\r\n");
    world.send(client, [&[b'x'; 2000][..], b"\r\nmn\r\n"].concat());
    world.expect(client, "MN\r\n");
    world.assert_idle();
}

#[test]
fn a_failed_server_is_an_error_or_a_miss() {
    for (on_failure, gets, quiet) in [
        (
            "error",
            "SERVER_ERROR Connection reset by peer\r\n",
            "SERVER_ERROR Connection reset by peer\r\n",
        ),
        ("miss", "EN O1 ka\r\n", ""),
    ] {
        let options = format!("on_failure: {on_failure}");
        let (mut world, client, [a, b, ..]) = four_servers(&options);
        world.send(client, "mg a v O1 k\r\nmg a q v\r\nms a 1 q\r\nx\r\nget a b\r\nmn\r\n");
        world.send(b, "VALUE b 0 1\r\ny\r\nEND\r\n");
        world.close(a, CloseReason::Reset);
        let error = "SERVER_ERROR Connection reset by peer\r\n";
        let get = match on_failure {
            "error" => error,
            _ => "VALUE b 0 1\r\ny\r\nEND\r\n",
        };
        world.expect(client, [gets, quiet, error, get, "MN\r\n"].concat());
        // A server that cannot be sent anything is left out likewise.
        world.send(client, "get a b\r\nmg a k v\r\n");
        if on_failure == "miss" {
            world.send(b, "VALUE b 0 1\r\ny\r\nEND\r\n");
            world.expect(client, "VALUE b 0 1\r\ny\r\nEND\r\nEN ka\r\n");
        } else {
            world.expect(client, error.repeat(2));
        }
    }
}

#[test]
fn a_quiet_miss_stays_quiet_where_a_hit_breaks_off() {
    let (mut world, client, [a, ..]) = four_servers("on_failure: miss");
    world.send(client, "mg a v q\r\nmn\r\n");
    world.send(a, "VA 10\r\n01");
    world.close(a, CloseReason::Reset);
    world.expect(client, "MN\r\n");
    world.assert_idle();
}

#[test]
fn statistics_of_all_servers_are_put_together() {
    let (mut world, client, lanes) = four_servers("command_policy: admin");
    world.send(client, "stats\r\nstats items\r\nstats reset\r\n");
    for (at, lane) in lanes.into_iter().enumerate() {
        world.expect(lane, "stats\r\nstats items\r\nstats reset\r\n");
        world.send(
            lane,
            format!("STAT curr_items {at}\r\nSTAT version 1\r\nEND\r\nEND\r\nRESET\r\n"),
        );
    }
    world.expect(client, "STAT curr_items 6\r\nSTAT version 1\r\nEND\r\nEND\r\nRESET\r\n");
    world
        .send(client, "cache_memlimit 64\r\nlru_crawler crawl all\r\nslabs automove 1 noreply\r\n");
    for (at, lane) in lanes.into_iter().enumerate() {
        let lines = ["cache_memlimit 64", "lru_crawler crawl all", "slabs automove 1"];
        world.expect(lane, lines.map(|line| format!("{line}\r\nversion\r\n")).concat());
        let answers = ["OK\r\n", if at == 2 { "BUSY x\r\n" } else { "OK\r\n" }, "OK\r\n"];
        world.send(lane, answers.map(|answer| format!("{answer}VERSION 1.6.18\r\n")).concat());
    }
    world.expect(client, "OK\r\nBUSY x\r\n");
    world.assert_idle();
}

/// A retrieval of so many keys, all of them the four that [`four_servers`] names first.
fn many(keys: usize) -> String {
    let keys: Vec<&str> = (0..keys).map(|n| ["a", "b", "c", "d"][n % 4]).collect();
    format!("get {}\r\n", keys.join(" "))
}

#[test]
fn very_many_keys_are_asked_for_in_parts() {
    let (mut world, client, lanes) = four_servers("");
    world.send(client, many(300));
    world.send(client, "mn\r\n");
    // 128 keys, then as many as may come to a megabyte, at most twice as many as before.
    for keys in [32, 43] {
        for (lane, key) in lanes.into_iter().zip(["a", "b", "c", "d"]) {
            world.expect(lane, format!("get{}\r\n", format!(" {key}").repeat(keys)));
        }
        for (at, (lane, key)) in lanes.into_iter().zip(["a", "b", "c", "d"]).enumerate() {
            let hit = format!("VALUE {key} 0 1\r\nx\r\n");
            world.send(lane, format!("{}END\r\n", hit.repeat(keys)));
            if at < 3 {
                world.expect(client, "");
            }
        }
        let hits = ["a", "b", "c", "d"].map(|key| format!("VALUE {key} 0 1\r\nx\r\n")).concat();
        let end = if keys == 43 { "END\r\nMN\r\n" } else { "" };
        world.wait_ms(1);
        world.expect(client, format!("{}{end}", hits.repeat(keys)));
    }
    world.assert_idle();
}

#[test]
fn a_part_that_fails_is_told_at_the_end() {
    let (mut world, client, [a, b, c, d]) = four_servers("");
    world.send(client, many(200));
    world.send(a, "VALUE a 0 1\r\nx\r\nSERVER_ERROR out of memory\r\n");
    for lane in [b, c, d] {
        world.send(lane, "END\r\n");
    }
    world.wait_ms(1);
    world.expect(client, "VALUE a 0 1\r\nx\r\n");
    world.close(a, CloseReason::Reset);
    for lane in [b, c] {
        world.send(lane, "END\r\n");
    }
    world.send(d, "VALUE d 0 1\r\nx\r\nEND\r\n");
    world.wait_ms(1);
    world.expect(client, "VALUE d 0 1\r\nx\r\nSERVER_ERROR out of memory\r\n");
}

#[test]
fn values_of_one_server_are_passed_on_while_another_is_waited_for() {
    let (mut world, client, [a, b, ..]) =
        four_servers("client_output_pause: 64kb\nclient_output_max: 64kb");
    world.send(client, "get a e b\r\n");
    let value = "x".repeat(20_000);
    let hit = |key| format!("VALUE {key} 0 20000\r\n{value}\r\n");
    world.send(a, hit("a"));
    world.expect(client, hit("a"));
    world.send(a, &hit("e")[..10_000]);
    world.expect(client, "");
    world.send(a, [&hit("e")[10_000..], "END\r\n"].concat());
    world.expect(client, hit("e"));
    world.send(b, "VALUE b 0 1\r\nx\r\nEND\r\n");
    world.expect(client, "VALUE b 0 1\r\nx\r\nEND\r\n");
    world.assert_idle();
    // What has been passed on stays, and an error takes the place of the rest.
    world.send(client, "get a b e\r\n");
    world.send(a, hit("a"));
    world.expect(client, hit("a"));
    world.close(a, CloseReason::Reset);
    world.send(b, "VALUE b 0 1\r\nx\r\nEND\r\n");
    world.expect(client, "SERVER_ERROR Connection reset by peer\r\n");
}

#[test]
fn users_log_in_by_text() {
    let options = "client_auth: 'ann:one bob:two'";
    let (mut world, client, [a, ..]) = four_servers(options);
    for (request, reply) in [
        ("get a\r\n", "CLIENT_ERROR unauthenticated\r\n"),
        ("mn\r\n", "CLIENT_ERROR unauthenticated\r\n"),
        ("nosuch\r\n", "CLIENT_ERROR unauthenticated\r\n"),
        ("set x 0 0 2000\r\n", "CLIENT_ERROR unauthenticated\r\n"),
    ] {
        world.send(client, request);
        world.expect(client, reply);
    }
    world.send(client, [&[b'x'; 2000][..], b"\r\nset x 0 0 7\r\nann two\r\n"].concat());
    world.expect(client, "CLIENT_ERROR authentication failure\r\n");
    world.send(client, "set x 0 0 3\r\nann\r\nset x 0 0 7\r\nann one\r\nget a\r\n");
    world.expect(client, "CLIENT_ERROR bad authentication token format\r\nSTORED\r\n");
    world.expect(a, "get a\r\n");
    world.send(a, "END\r\n");
    world.expect(client, "END\r\n");
    world.assert_idle();
}

#[test]
fn servers_are_told_who_comes() {
    let mut world = World::new(&pool("server_auth: gate:way", 1));
    let client = world.client();
    world.send(client, "mg a v\r\n");
    let lane = world.accept(0);
    world.expect(lane, "set auth 0 0 8\r\ngate way\r\n");
    world.send(lane, "STORED\r\n");
    world.expect(lane, "mg a v\r\n");
    world.send(lane, "EN\r\n");
    world.expect(client, "EN\r\n");
    world.close(lane, CloseReason::Eof);
    world.send(client, "mg a v\r\n");
    let lane = world.accept(0);
    world.send(lane, "CLIENT_ERROR authentication failure\r\n");
    world.expect(client, "SERVER_ERROR Server refused AUTH or SELECT\r\n");
}
