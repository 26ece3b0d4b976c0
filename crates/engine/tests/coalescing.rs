//! Equal reads that wait to be written are sent once: `coalesce_reads`.

use crate::world::gets::{random_of, together, value};
use crate::world::{World, all, pool, redis, snapshot};
use cashew_engine::{CloseReason, ConnId};
use cashew_metrics::{PoolCounter, ServerCounter};

const VALUE: &str = "$1\r\nx\r\n";
const OK: &str = "+OK\r\n";
const RESET: &str = "-ERR Connection reset by peer\r\n";

fn redis_with<const N: usize>(options: &str) -> (World, [ConnId; N], ConnId) {
    let options = format!("redis: true\npreconnect: true\ncoalesce_reads: true\n{options}");
    let (mut world, [lane]): (World, [ConnId; 1]) = World::connected(&pool(&options, 1));
    let clients = [(); N].map(|()| world.client());
    (world, clients, lane)
}

fn memcached<const N: usize>() -> (World, [ConnId; N], ConnId) {
    let options = "timeout: 400\npreconnect: true\ncoalesce_reads: true";
    let (mut world, [lane]): (World, [ConnId; 1]) = World::connected(&pool(options, 1));
    let clients = [(); N].map(|()| {
        let client = world.client();
        world.send(client, "what\r\n");
        world.received(client);
        client
    });
    (world, clients, lane)
}

fn ask(world: &mut World, requests: &[(ConnId, &[&str])]) {
    let texts: Vec<(ConnId, String)> =
        requests.iter().map(|(client, lines)| (*client, all(lines))).collect();
    let texts: Vec<(ConnId, &str)> =
        texts.iter().map(|(client, text)| (*client, text.as_str())).collect();
    together(world, &texts);
}

/// The next connection to the server.
fn next(world: &mut World) -> ConnId {
    for _ in 0..400 {
        if world.connects_to(0) {
            return world.accept(0);
        }
        world.wait_ms(5);
    }
    panic!("nobody tries the server again");
}

fn shared(world: &World) -> u64 {
    world.metrics.pool_counter(world.metrics.pool(0), PoolCounter::ReadsCoalesced)
}

fn hit(key: &str, data: &str) -> String {
    value(key, data) + "END\r\n"
}

#[test]
fn equal_reads_are_sent_once_and_each_client_is_answered() {
    let (mut world, [x, y, z], lane) = redis_with("");
    ask(
        &mut world,
        &[(x, &["GET a", "HGETALL h"]), (y, &["GET a", "GET b"]), (z, &["GET a", "HGETALL h"])],
    );
    world.expect(lane, all(&["GET a", "HGETALL h", "GET b"]));
    world.send(lane, format!("{VALUE}*2\r\n{VALUE}{VALUE}$-1\r\n"));
    let hash = format!("*2\r\n{VALUE}{VALUE}");
    world.expect(x, format!("{VALUE}{hash}"));
    world.expect(y, format!("{VALUE}$-1\r\n"));
    world.expect(z, format!("{VALUE}{hash}"));
    assert_eq!(shared(&world), 3);
    world.tick();
    let pool = world.metrics.pool(0);
    let count = |counter| world.metrics.pool_counter(pool, counter);
    assert_eq!(count(PoolCounter::Requests), 6, "each of a client's counts");
    let server = world.metrics.server(0, 0);
    let of_server = |counter| world.metrics.server_counter(server, counter);
    let sent = [ServerCounter::Requests, ServerCounter::Responses].map(of_server);
    assert_eq!(sent, [3, 3], "only what was sent counts for the server");
    world.assert_idle();
}

#[test]
fn without_the_option_each_is_sent() {
    let options = "redis: true\npreconnect: true";
    let (mut world, [lane]): (World, [ConnId; 1]) = World::connected(&pool(options, 1));
    let clients = [(); 2].map(|()| world.client());
    ask(&mut world, &clients.map(|client| (client, &["GET a"][..])));
    world.expect(lane, all(&["GET a", "GET a"]));
}

#[test]
fn what_is_written_takes_no_more() {
    let (mut world, [x, y], lane) = redis_with("");
    ask(&mut world, &[(x, &["GET a"])]);
    ask(&mut world, &[(y, &["GET a"])]);
    world.expect(lane, all(&["GET a", "GET a"]));
    assert_eq!(shared(&world), 0);
}

#[test]
fn nothing_is_shared_across_what_may_change_the_key() {
    for between in [
        "SET a 1",
        "DEL a",
        "GETEX a",
        "MSET b 1 a 2",
        "EVAL x 0",
        "FLUSHALL",
        "RENAME b a",
        "SORT b STORE a",
        "MGET a b",
    ] {
        let (mut world, [w, x, y], lane) = redis_with("command_policy: admin");
        ask(&mut world, &[(x, &["GET a"]), (w, &[between]), (y, &["GET a"])]);
        let sent = String::from_utf8(world.received(lane)).unwrap();
        assert_eq!(sent.matches(&redis("GET a")).count(), 2, "{between}: {sent}");
    }
    for between in ["SET b 1", "GET b", "TTL a", "HSCAN a 0"] {
        let (mut world, [w, x, y], lane) = redis_with("");
        ask(&mut world, &[(x, &["GET a"]), (w, &[between]), (y, &["GET a"])]);
        world.expect(lane, all(&["GET a", between]));
    }
}

#[test]
fn what_depends_on_chance_or_time_or_a_cursor_is_not_shared() {
    for read in ["SRANDMEMBER a", "HRANDFIELD a", "TTL a", "SSCAN a 0", "GETEX a"] {
        let (mut world, [x, y], lane) = redis_with("");
        ask(&mut world, &[(x, &[read]), (y, &[read])]);
        world.expect(lane, all(&[read, read]));
    }
}

#[test]
fn nobody_follows_what_stands_in_front_of_something_of_its_own() {
    let (mut world, [x, y], lane) = redis_with("");
    ask(&mut world, &[(x, &["GET a", "GET b"]), (y, &["SET c 1", "GET a"])]);
    world.expect(lane, all(&["GET a", "GET b", "SET c 1", "GET a"]));
    world.send(lane, format!("{VALUE}{VALUE}{OK}$-1\r\n"));
    world.expect(x, VALUE.repeat(2));
    world.expect(y, format!("{OK}$-1\r\n"));
    // Nor what stands in front of what it has followed.
    ask(&mut world, &[(x, &["GET a", "GET b"]), (y, &["GET b", "GET a"])]);
    world.expect(lane, all(&["GET a", "GET b", "GET a"]));
    world.send(lane, format!("{VALUE}$-1\r\n$1\r\ny\r\n"));
    world.expect(x, format!("{VALUE}$-1\r\n"));
    world.expect(y, "$-1\r\n$1\r\ny\r\n");
    world.assert_idle();
}

#[test]
fn a_client_shares_with_itself() {
    let (mut world, [x], lane) = redis_with("");
    ask(&mut world, &[(x, &["GET a", "GET a", "GET a"])]);
    world.expect(lane, redis("GET a"));
    world.send(lane, VALUE);
    world.expect(x, VALUE.repeat(3));
    world.assert_idle();
}

#[test]
fn clients_of_other_dialects_and_databases_share_nothing() {
    let options = "redis: true\ndatabases: 16\ncoalesce_reads: true";
    let mut world = World::new(&pool(options, 1));
    let [x, y, z] = [(); 3].map(|()| world.client());
    world.send(y, redis("SELECT 1"));
    world.send(z, redis("HELLO 3"));
    for client in [x, y, z] {
        world.send(client, redis("GET warm"));
    }
    let lanes: Vec<ConnId> = (0..3).map(|_| world.accept(0)).collect();
    for &lane in &lanes {
        let sent = String::from_utf8(world.received(lane)).unwrap();
        let hello = "%1\r\n$5\r\nproto\r\n:3\r\n";
        let greeting = if sent.contains("HELLO") { hello } else { "" };
        let select = if sent.contains("SELECT") { OK } else { "" };
        world.send(lane, format!("{greeting}{select}"));
        if !greeting.is_empty() || !select.is_empty() {
            world.received(lane);
        }
        world.send(lane, VALUE);
    }
    let _ = [x, y, z].map(|client| world.received(client));
    ask(&mut world, &[x, y, z].map(|client| (client, &["GET a"][..])));
    for lane in lanes {
        world.expect(lane, redis("GET a"));
    }
    assert_eq!(shared(&world), 0);
}

#[test]
fn who_leaves_takes_nobody_along() {
    for gone in 0..3 {
        let (mut world, clients, lane) = redis_with::<3>("");
        ask(&mut world, &clients.map(|client| (client, &["GET a"][..])));
        world.expect(lane, redis("GET a"));
        world.close(clients[gone], CloseReason::Reset);
        world.send(lane, &VALUE[..3]);
        world.send(lane, &VALUE[3..]);
        for (at, client) in clients.into_iter().enumerate() {
            if at != gone {
                world.expect(client, VALUE);
            }
        }
        world.assert_idle();
    }
}

#[test]
fn a_reply_in_pieces_is_everybodys_and_a_large_one_too() {
    for size in [10, 1000, 16 << 10, 100 << 10, 300 << 10, 3 << 20] {
        for piece in [1, 7, 50_000] {
            if size / piece > 100_000 {
                continue;
            }
            let (mut world, [x, y, z], lane) = redis_with("");
            ask(&mut world, &[(x, &["GET a"]), (y, &["GET a", "GET b"]), (z, &["GET c"])]);
            world.expect(lane, all(&["GET a", "GET b", "GET c"]));
            let reply = format!("${size}\r\n{}\r\n", "v".repeat(size));
            for piece in format!("{reply}{VALUE}$-1\r\n").as_bytes().chunks(piece) {
                world.send(lane, piece);
            }
            world.expect(x, &*reply);
            world.expect(y, format!("{reply}{VALUE}"));
            world.expect(z, "$-1\r\n");
            // It is known to be large from here on, and has a connection to itself.
            ask(&mut world, &[(x, &["GET d"]), (y, &["GET d"])]);
            let sent = world.received(lane);
            assert!(sent.is_empty() || sent == redis("GET d").as_bytes());
        }
    }
}

#[test]
fn an_error_is_everybodys() {
    let (mut world, [x, y], lane) = redis_with("");
    ask(&mut world, &[(x, &["GET a"]), (y, &["GET a"])]);
    world.received(lane);
    world.send(lane, "-WRONGTYPE it");
    world.send(lane, " is a list\r\n");
    for client in [x, y] {
        world.expect(client, "-WRONGTYPE it is a list\r\n");
    }
    world.assert_idle();
}

#[test]
fn all_fail_with_the_connection_and_what_waits_behind_does_not() {
    let request = redis("GET a");
    for cut in 1..=request.len() {
        let (mut world, [w, x, y], lane) = redis_with("");
        world.wait_ms(10_000);
        world.stuck.push(lane);
        ask(&mut world, &[(w, &["SET k 1"]), (x, &["GET a"]), (y, &["GET a"])]);
        world.write_some(lane, redis("SET k 1").len() + cut);
        ask(&mut world, &[(w, &["GET b"]), (x, &["GET b"])]);
        world.close(lane, CloseReason::Reset);
        for client in [w, x, y] {
            world.expect(client, RESET);
        }
        world.stuck.clear();
        let lane = world.accept(0);
        world.expect(lane, redis("GET b"));
        world.send(lane, VALUE);
        world.expect(w, VALUE);
        world.expect(x, VALUE);
        world.assert_idle();
    }
}

#[test]
fn what_is_not_written_fails_in_time() {
    let (mut world, [x, y], lane) = redis_with("timeout: 400");
    world.wait_ms(10_000);
    world.stuck.push(lane);
    ask(&mut world, &[(x, &["GET a"])]);
    world.wait_ms(200);
    ask(&mut world, &[(y, &["GET a"])]);
    world.wait_ms(250);
    world.expect(x, "-ERR Connection timed out\r\n");
    // As one that was to be sent by itself.
    world.expect(y, "-ERR Server does not answer\r\n");
    world.stuck.clear();
    let lane = next(&mut world);
    world.expect(lane, redis("PING"));
    world.send(lane, "+PONG\r\n");
    ask(&mut world, &[(x, &["GET a"]), (y, &["GET a"])]);
    world.expect(lane, redis("GET a"));
    world.send(lane, VALUE);
    world.expect(x, VALUE);
    world.expect(y, VALUE);
    world.assert_idle();
}

#[test]
fn what_is_refused_is_sent_again_for_each() {
    let (mut world, [x, y], lane) = redis_with("failover_wait: 1000");
    world.wait_ms(1500);
    ask(&mut world, &[(x, &["GET a"]), (y, &["GET a", "SET a 1"])]);
    world.expect(lane, all(&["GET a", "SET a 1"]));
    world.send(lane, "-LOADING wait\r\n".repeat(2));
    world.expect(x, "");
    let lane = next(&mut world);
    world.expect(lane, redis("PING"));
    world.send(lane, "+PONG\r\n");
    world.expect(lane, all(&["GET a", "GET a", "SET a 1"]));
    world.send(lane, format!("{VALUE}{VALUE}{OK}"));
    world.expect(x, VALUE);
    world.expect(y, format!("{VALUE}{OK}"));
    world.assert_idle();
}

#[test]
fn reads_are_sent_again_for_each() {
    let (mut world, [x, y], lane) = redis_with("retry_reads: true\nfailover_wait: 300");
    world.wait_ms(1500);
    ask(&mut world, &[(x, &["GET a"]), (y, &["GET a", "GET b"])]);
    world.expect(lane, all(&["GET a", "GET b"]));
    world.close(lane, CloseReason::Eof);
    let lane = world.accept(0);
    world.expect(lane, all(&["GET a", "GET a", "GET b"]));
    world.send(lane, VALUE.repeat(3));
    world.expect(x, VALUE);
    world.expect(y, VALUE.repeat(2));
    world.assert_idle();
}

#[test]
fn a_read_moves_to_another_server_and_leaves_the_others_theirs() {
    let mut world = World::new(&snapshot(
        "p:\n  listen: 127.0.0.1:6000\n  redis: true\n  timeout: 400\n  coalesce_reads: true\n\
         \x20 reads: prefer_replica\n  servers:\n\
         \x20  - {name: s1, primary: 127.0.0.1:7001, replicas: [127.0.0.1:7002]}\n",
    ));
    let [x, y] = [(); 2].map(|()| world.client());
    world.send(x, redis("GET warm"));
    world.send(y, redis("SET warm 1"));
    let lanes: Vec<ConnId> = [1, 0].into_iter().map(|server| world.accept(server)).collect();
    for &lane in &lanes {
        let sent = world.received(lane);
        world.send(lane, if sent == redis("SET warm 1").as_bytes() { OK } else { VALUE });
    }
    let _ = [x, y].map(|client| world.received(client));
    world.wait_ms(2000);
    world.stuck.push(lanes[0]);
    ask(&mut world, &[(x, &["GET a"]), (y, &["GET a"])]);
    world.close(lanes[0], CloseReason::Reset);
    world.stuck.clear();
    // By whatever way they go, each is answered.
    let mut sent = world.received(lanes[1]);
    if sent.is_empty() {
        let lane = world.accept(1);
        sent = world.received(lane);
        world.send(lane, VALUE.repeat(sent.len() / redis("GET a").len()));
    } else {
        world.send(lanes[1], VALUE.repeat(sent.len() / redis("GET a").len()));
    }
    world.expect(x, VALUE);
    world.expect(y, VALUE);
    world.assert_idle();
}

#[test]
fn gets_of_memcached_share_within_a_get_of_several_keys() {
    let (mut world, [x, y, z], lane) = memcached();
    together(
        &mut world,
        &[(x, "get a\r\nget b\r\n"), (y, "get a\r\nget c\r\n"), (z, "get b\r\nget a\r\nget c\r\n")],
    );
    world.expect(lane, "get a b c\r\n");
    assert_eq!(shared(&world), 4);
    for piece in (value("a", "1") + &value("c", "3") + "END\r\n").as_bytes().chunks(5) {
        world.send(lane, piece);
    }
    world.expect(x, hit("a", "1") + "END\r\n");
    world.expect(y, hit("a", "1") + &hit("c", "3"));
    world.expect(z, "END\r\n".to_string() + &hit("a", "1") + &hit("c", "3"));
    // One alone is a get as it is.
    together(&mut world, &[(x, "get a\r\n"), (y, "get a\r\n")]);
    world.expect(lane, "get a\r\n");
    world.send(lane, hit("a", "1"));
    world.expect(x, hit("a", "1"));
    world.expect(y, hit("a", "1"));
    world.assert_idle();
}

#[test]
fn gets_of_memcached_keep_the_order_of_each_client() {
    let (mut world, [x, y], lane) = memcached();
    together(
        &mut world,
        &[(y, "get a\r\nset b 0 0 1\r\n1\r\n"), (x, "get k\r\n"), (y, "get k\r\n")],
    );
    // The set stands behind the first get, and so does what its client asks next.
    world.expect(lane, "get a k\r\nset b 0 0 1\r\n1\r\nget k\r\n");
    world.send(lane, "END\r\nSTORED\r\n".to_string() + &hit("k", "2"));
    world.expect(x, "END\r\n");
    world.expect(y, "END\r\nSTORED\r\n".to_string() + &hit("k", "2"));
    // A set of the key ends it.
    together(&mut world, &[(x, "get k\r\n"), (y, "set k 0 0 1\r\n3\r\nget k\r\n")]);
    world.expect(lane, "set k 0 0 1\r\n3\r\nget k k\r\n");
    world.send(lane, "STORED\r\n".to_string() + &value("k", "3") + &hit("k", "3"));
    world.expect(x, hit("k", "3"));
    world.expect(y, "STORED\r\n".to_string() + &hit("k", "3"));
    world.assert_idle();
}

#[test]
fn metagets_share_if_they_change_nothing() {
    let (mut world, [x, y], lane) = memcached();
    let both = |text| [(x, text), (y, text)];
    together(&mut world, &both("mg a v Oq\r\n"));
    world.expect(lane, "mg a v Oq\r\n");
    world.send(lane, "VA 1 Oq\r\nx\r\n");
    world.expect(x, "VA 1 Oq\r\nx\r\n");
    world.expect(y, "VA 1 Oq\r\nx\r\n");
    for request in ["mg a v T30\r\n", "mg a v N30\r\n", "mg a v R30\r\n"] {
        together(&mut world, &both(request));
        world.expect(lane, request.repeat(2));
        world.send(lane, "VA 1\r\nx\r\n".repeat(2));
        let _ = [x, y].map(|client| world.received(client));
    }
    together(&mut world, &[(x, "mg a v O1\r\n"), (y, "mg a v O2\r\n")]);
    world.expect(lane, "mg a v O1\r\nmg a v O2\r\n");
}

#[test]
fn hits_out_of_order_take_along_who_shares_them() {
    let keys = ["a", "b", "c"];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        for missing in [None, Some(0), Some(1), Some(2)] {
            let (mut world, [x, y, z], lane) = memcached();
            let all = "get a\r\nget b\r\nget c\r\n";
            together(&mut world, &[(x, all), (y, all), (z, "get b\r\nset b 0 0 1\r\n9\r\n")]);
            world.expect(lane, "get a b c\r\nset b 0 0 1\r\n9\r\n");
            let there = |at: &usize| Some(*at) != missing;
            let found: String =
                order.into_iter().filter(there).map(|at| value(keys[at], keys[at])).collect();
            for piece in (found + "END\r\nSTORED\r\n").as_bytes().chunks(11) {
                world.send(lane, piece);
            }
            let reply = |at: usize| match there(&at) {
                true => hit(keys[at], keys[at]),
                false => "END\r\n".to_owned(),
            };
            let every: String = (0..3).map(reply).collect();
            world.expect(x, &*every);
            world.expect(y, &*every);
            world.expect(z, reply(1) + "STORED\r\n");
            world.assert_idle();
        }
    }
}

#[test]
fn a_get_that_was_written_in_part_fails_whole() {
    let line = "get a bb\r\n";
    for cut in 1..=line.len() {
        let (mut world, [w, x, y, z], lane) = memcached();
        world.wait_ms(10_000);
        world.stuck.push(lane);
        together(
            &mut world,
            &[(w, "set k 0 0 1\r\n1\r\n"), (x, "get a\r\n"), (y, "get bb\r\n"), (z, "get bb\r\n")],
        );
        world.write_some(lane, "set k 0 0 1\r\n1\r\n".len() + cut);
        together(&mut world, &[(w, "get q\r\n")]);
        world.close(lane, CloseReason::Reset);
        for client in [w, x, y, z] {
            world.expect(client, "SERVER_ERROR Connection reset by peer\r\n");
        }
        world.stuck.clear();
        let lane = world.accept(0);
        world.expect(lane, "get q\r\n");
        world.send(lane, "END\r\n");
        world.expect(w, "END\r\n");
        world.assert_idle();
    }
}

#[test]
fn gets_that_share_expire_together() {
    let (mut world, [x, y, z], lane) = memcached();
    world.wait_ms(10_000);
    world.stuck.push(lane);
    together(&mut world, &[(x, "get a\r\n"), (y, "get b\r\n"), (z, "get b\r\n")]);
    world.wait_ms(450);
    for client in [x, y, z] {
        world.expect(client, "SERVER_ERROR Connection timed out\r\n");
    }
    world.stuck.clear();
    let lane = next(&mut world);
    world.expect(lane, "version\r\n");
    world.send(lane, "VERSION 1.6.0\r\n");
    together(&mut world, &[(x, "get a\r\n"), (y, "get a\r\n")]);
    world.expect(lane, "get a\r\n");
    world.send(lane, hit("a", "1"));
    world.expect(x, hit("a", "1"));
    world.expect(y, hit("a", "1"));
    world.assert_idle();
}

/// Who has read or written a value sees none that the server had before it.
#[test]
fn no_reply_is_older_than_what_its_client_knows() {
    for seed in 1..=60 {
        let is_redis = seed % 2 == 0;
        let (mut world, clients, lane) =
            if is_redis { redis_with::<6>("") } else { memcached::<6>() };
        let mut random = random_of(seed);
        let mut server = Numbers { is_redis, ..Numbers::default() };
        let mut known = vec![[0usize; 3]; clients.len()];
        let mut number = 0;
        for _ in 0..200 {
            let mut texts: Vec<(ConnId, String)> = Vec::new();
            let mut expected: Vec<Vec<(usize, Option<u64>)>> = vec![Vec::new(); clients.len()];
            for _ in 0..1 + random(12) {
                let (client, key) = (random(clients.len()), random(3));
                let is_write = random(5) == 0;
                number += u64::from(is_write);
                expected[client].push((key, is_write.then_some(number)));
                let text = match (is_redis, is_write) {
                    (true, false) => redis(&format!("GET k{key}")),
                    (true, true) => redis(&format!("SET k{key} {number:08}")),
                    (false, false) => format!("get k{key}\r\n"),
                    (false, true) => format!("set k{key} 0 0 8\r\n{number:08}\r\n"),
                };
                texts.push((clients[client], text));
            }
            let texts: Vec<(ConnId, &str)> =
                texts.iter().map(|(client, text)| (*client, text.as_str())).collect();
            together(&mut world, &texts);
            let sent = String::from_utf8(world.received(lane)).unwrap();
            let reply = server.answer(&sent);
            let mut rest = reply.as_bytes();
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at((1 + random(40)).min(rest.len()));
                world.send(lane, piece);
                rest = behind;
            }
            for (at, client) in clients.into_iter().enumerate() {
                let got = String::from_utf8(world.received(client)).unwrap();
                server.check(&got, &expected[at], &mut known[at]);
            }
        }
        assert!(shared(&world) > 100, "{}", shared(&world));
        world.assert_idle();
    }
}

/// A server of numbers.
#[derive(Default)]
struct Numbers {
    is_redis: bool,
    /// By key what it had, in that order.
    had: [Vec<u64>; 3],
}

impl Numbers {
    fn value(&self, key: &str) -> String {
        let number = self.had[key_of(key)].last().copied().unwrap_or_default();
        match self.is_redis {
            true => format!("$8\r\n{number:08}\r\n"),
            false => value(key, &format!("{number:08}")),
        }
    }

    fn set(&mut self, key: &str, number: &str) {
        self.had[key_of(key)].push(number.parse().expect("a number"));
    }

    fn answer(&mut self, sent: &str) -> String {
        let mut reply = String::new();
        let mut lines = sent.lines();
        while let Some(line) = lines.next() {
            if let Some(count) = line.strip_prefix('*') {
                let count: usize = count.parse().expect("an array");
                let words: Vec<&str> = (0..count).filter_map(|_| lines.by_ref().nth(1)).collect();
                if let [_, key, number] = words[..] {
                    self.set(key, number);
                    reply += OK;
                } else {
                    reply += &self.value(words[1]);
                }
                continue;
            }
            let words: Vec<&str> = line.split(' ').collect();
            if words[0] == "set" {
                self.set(words[1], lines.next().expect("data"));
                reply += "STORED\r\n";
            } else {
                words[1..].iter().for_each(|key| reply += &self.value(key));
                reply += "END\r\n";
            }
        }
        reply
    }

    /// The replies of one client, who knows by key how much the server had.
    fn check(&self, got: &str, expected: &[(usize, Option<u64>)], known: &mut [usize; 3]) {
        let mut lines = got.lines();
        for &(key, written) in expected {
            let first = lines.next().expect("a reply");
            let number = match written {
                Some(number) => {
                    assert_eq!(first, if self.is_redis { "+OK" } else { "STORED" });
                    number
                }
                None => lines.next().expect("a value").parse().expect("a number"),
            };
            if !self.is_redis && written.is_none() {
                assert!(first.starts_with(&format!("VALUE k{key} ")), "{first}");
                assert_eq!(lines.next(), Some("END"));
            }
            let place = self.had[key].iter().position(|&it| it == number);
            let place = place.map_or(0, |place| place + 1);
            assert!(
                place >= known[key],
                "{number} is older than {:?}",
                self.had[key][known[key] - 1]
            );
            known[key] = place;
        }
        assert_eq!(lines.next(), None);
    }
}

fn key_of(word: &str) -> usize {
    word[1..].parse().expect("k and a number")
}
