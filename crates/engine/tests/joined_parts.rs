//! memcached's gets of several keys on several servers, which leave together with other gets.

use std::collections::HashMap;

use crate::world::gets::{random_of, serve, together, value};
use crate::world::{World, pool};
use cashew_engine::{CloseReason, ConnId};
use cashew_metrics::PoolCounter;

/// `a e i` are keys of the first of the four servers, `b f j` of the second, `c g k` of the third,
/// `d h l` of the fourth. The clients are known to speak the text protocol.
fn four_servers<const N: usize>(options: &str) -> (World, [ConnId; N], [ConnId; 4]) {
    let (mut world, lanes) =
        World::connected(&pool(&format!("timeout: 400\npreconnect: true\n{options}"), 4));
    let clients = [(); N].map(|()| {
        let client = world.client();
        world.send(client, "what\r\n");
        world.received(client);
        client
    });
    (world, clients, lanes)
}

#[test]
fn each_server_gets_one_get_and_each_client_its_own_values_in_its_order() {
    let (mut world, [x, y, z], [a, b, c, _]) = four_servers("");
    together(
        &mut world,
        &[(x, "get b a e\r\n"), (y, "get a\r\nget e c a  b\r\n"), (z, "get f i f\r\n")],
    );
    world.expect(a, "get a e a e a i\r\n");
    world.expect(b, "get b b f f\r\n");
    world.expect(c, "get c\r\n");
    let of_a = [("a", "1"), ("e", "2"), ("a", "3"), ("a", "5")].map(|(k, d)| value(k, d));
    world.send(a, of_a.concat() + "END\r\n");
    world.expect(y, value("a", "3") + "END\r\n");
    world.send(c, value("c", "6") + "END\r\n");
    world.expect(y, "");
    world.send(b, value("b", "7") + &value("f", "8") + "END\r\n");
    world.expect(x, value("b", "7") + &value("a", "1") + &value("e", "2") + "END\r\n");
    world.expect(y, value("c", "6") + &value("a", "5") + "END\r\n");
    world.expect(z, value("f", "8") + "END\r\n");
    let pool = world.metrics.pool(0);
    assert_eq!(world.metrics.pool_counter(pool, PoolCounter::Requests), 4 + 3, "with three `what`");
    assert_eq!(world.metrics.pool_counter(pool, PoolCounter::Fragments), 2 + 3 + 2);
    world.assert_idle();
}

#[test]
fn a_server_that_fails_is_told_of_to_all_who_asked_it() {
    let (mut world, [x, y], [a, b, ..]) = four_servers("");
    together(&mut world, &[(x, "get a b\r\n"), (y, "get b\r\nget e f\r\n")]);
    world.send(a, value("a", "1") + &value("e", "1") + "END\r\n");
    world.send(b, value("b", "2") + "SERVER_ERROR out of memory\r\n");
    world.expect(x, value("a", "1") + &value("b", "2") + "END\r\n");
    world.expect(y, "SERVER_ERROR out of memory\r\n".repeat(2));
    together(&mut world, &[(x, "get a b\r\n"), (y, "get b\r\nget e f\r\n")]);
    world.close(b, CloseReason::Reset);
    world.send(a, value("a", "1") + "END\r\n");
    world.expect(x, "SERVER_ERROR Connection reset by peer\r\n");
    world.expect(y, "SERVER_ERROR Connection reset by peer\r\n".repeat(2));
    world.assert_idle();
}

#[test]
fn where_failures_are_misses_the_other_keys_are_found() {
    let (mut world, [x, y], [a, b, ..]) = four_servers("on_failure: miss");
    together(&mut world, &[(x, "get a b\r\n"), (y, "get f e\r\n")]);
    world.close(b, CloseReason::Reset);
    world.send(a, value("a", "1") + &value("e", "2") + "END\r\n");
    world.expect(x, value("a", "1") + "END\r\n");
    world.expect(y, value("e", "2") + "END\r\n");
    world.assert_idle();
}

#[test]
fn a_client_that_goes_takes_nothing_from_the_others() {
    let (mut world, [x, y], [a, b, ..]) = four_servers("");
    together(&mut world, &[(x, "get a b\r\n"), (y, "get a b\r\n")]);
    world.close(x, CloseReason::Eof);
    world.send(a, value("a", "1").repeat(2) + "END\r\n");
    world.send(b, value("b", "2").repeat(2) + "END\r\n");
    world.expect(y, value("a", "1") + &value("b", "2") + "END\r\n");
    world.assert_idle();
}

#[test]
fn large_values_pass_while_they_come() {
    let (mut world, [x, y], [a, b, ..]) = four_servers("");
    together(&mut world, &[(x, "get a b e\r\n"), (y, "get e\r\n")]);
    let large = value("a", &"l".repeat(600_000));
    let (start, end) = large.split_at(100_000);
    for piece in start.as_bytes().chunks(10_000) {
        world.send(a, piece);
    }
    for piece in end.as_bytes().chunks(10_000) {
        world.send(a, piece);
    }
    let seen = String::from_utf8(world.received(x)).unwrap();
    assert!(large.starts_with(&seen));
    world.send(b, value("b", "2") + "END\r\n");
    world.send(a, value("e", "3").repeat(2) + "END\r\n");
    let rest = String::from_utf8(world.received(x)).unwrap();
    assert!(seen + &rest == large + &value("b", "2") + &value("e", "3") + "END\r\n");
    world.expect(y, value("e", "3") + "END\r\n");
    // It is known by now, and is not put together with what is small.
    world.received(b);
    together(&mut world, &[(x, "get a b\r\n"), (y, "get b\r\n")]);
    world.expect(b, "get b\r\n".repeat(2));
}

#[test]
fn gets_of_many_keys_and_other_retrievals_go_by_themselves() {
    let (mut world, [x, y], [a, b, ..]) = four_servers("cas_uniques: plain");
    let many = format!("get{}{}\r\n", " a".repeat(31), " b".repeat(2));
    together(&mut world, &[(x, "get a b\r\ngets a b\r\ngat 10 a b\r\n"), (y, &many)]);
    world.expect(a, format!("get a\r\ngets a\r\ngat 10 a\r\nget{}\r\n", " a".repeat(31)));
    world.expect(b, "get b\r\ngets b\r\ngat 10 b\r\nget b b\r\n");
}

#[test]
fn no_more_is_asked_of_a_server_than_may_wait() {
    let (mut world, [x, y], [a, b, ..]) = four_servers("server_queue_max: 3");
    together(&mut world, &[(x, "get a e b\r\n"), (y, "get i a b\r\n")]);
    // Two and two would be more than three: the second goes as one.
    world.expect(a, "get a e\r\nget i a\r\n");
    world.expect(b, "get b\r\nget b\r\n");
    world.send(a, "END\r\n".repeat(2));
    world.send(b, value("b", "1") + "END\r\n" + &value("b", "1") + "END\r\n");
    world.expect(x, value("b", "1") + "END\r\n");
    world.expect(y, value("b", "1") + "END\r\n");
    world.assert_idle();
}

/// Clients that each have keys of their own, of which they know what they have set last, and ask for
/// several of them at once. Replies come in pieces, and while others ask.
#[test]
fn whatever_is_put_together_each_client_finds_what_it_has_set() {
    const CLIENTS: usize = 140;
    const LETTERS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    for seed in 1..=40_u64 {
        let mut random = random_of(seed);
        let (mut world, clients, lanes) = four_servers::<CLIENTS>("");
        let mut known: HashMap<String, String> = HashMap::new();
        let mut stored = [(); 4].map(|()| HashMap::new());
        let mut replies = [(); 4].map(|()| Vec::new());
        let mut expected = vec![String::new(); CLIENTS];
        for _ in 0..12 {
            for _ in 0..random(200) {
                let at = random(CLIENTS);
                let mut key = || format!("{}{at}", LETTERS[random(8)]);
                let text = match key() {
                    key if key.starts_with(['a', 'd']) => {
                        let data = expected[at].len().to_string();
                        expected[at] += "STORED\r\n";
                        let text = format!("set {key} 0 0 {}\r\n{data}\r\n", data.len());
                        known.insert(key, data);
                        text
                    }
                    first => {
                        let keys = [vec![first], (0..5).map(|_| key()).collect()].concat();
                        let found = keys.iter().filter_map(|key| Some(value(key, known.get(key)?)));
                        expected[at].extend(found);
                        expected[at] += "END\r\n";
                        format!("get {}\r\n", keys.join(" "))
                    }
                };
                world.engine.handle_received(clients[at], text.as_bytes(), world.now);
                let server = random(4);
                let reply = &mut replies[server];
                let piece: Vec<u8> = reply.drain(..random(80).min(reply.len())).collect();
                world.engine.handle_received(lanes[server], &piece, world.now);
            }
            world.tick();
            for ((&lane, stored), reply) in lanes.iter().zip(&mut stored).zip(&mut replies) {
                let written = String::from_utf8(world.received(lane)).unwrap();
                reply.extend_from_slice(serve(&written, stored).as_bytes());
            }
        }
        for (&lane, reply) in lanes.iter().zip(replies) {
            world.send(lane, reply);
        }
        for (client, expected) in clients.iter().zip(expected) {
            world.expect(*client, expected);
        }
        world.assert_idle();
    }
}
