//! memcached's gets of one key that leave together.

use std::collections::HashMap;

use crate::world::gets::{random_of, serve, together, value};
use crate::world::{World, pool};
use cashew_engine::{CloseReason, ConnId};

/// All keys are of the one server.
fn one_server<const N: usize>() -> (World, [ConnId; N], ConnId) {
    let (mut world, [lane]): (World, [ConnId; 1]) =
        World::connected(&pool("timeout: 400\npreconnect: true", 1));
    let clients = [(); N].map(|()| client(&mut world));
    (world, clients, lane)
}

/// A client that is known to speak the text protocol.
fn client(world: &mut World) -> ConnId {
    let client = world.client();
    world.send(client, "what\r\n");
    world.received(client);
    client
}

fn hit(key: &str, data: &str) -> String {
    value(key, data) + "END\r\n"
}

#[test]
fn gets_leave_as_one_and_each_is_answered_its_own() {
    let (mut world, [x, y, z], lane) = one_server();
    together(&mut world, &[(x, "get a\r\n"), (y, "get b\r\nget a\r\n"), (z, "get c\r\n")]);
    world.expect(lane, "get a b a c\r\n");
    world
        .send(lane, [value("a", "1"), value("a", "2"), value("c", "END\r\n")].concat() + "END\r\n");
    world.expect(x, hit("a", "1"));
    world.expect(y, "END\r\n".to_string() + &hit("a", "2"));
    world.expect(z, hit("c", "END\r\n"));
    world.assert_idle();
}

#[test]
fn a_get_alone_is_forwarded_as_it_is() {
    let (mut world, [x, y], lane) = one_server();
    together(&mut world, &[(x, "get a\r\n")]);
    together(&mut world, &[(y, "get b\r\n")]);
    // What is written takes nothing more.
    world.expect(lane, "get a\r\nget b\r\n");
    world.send(lane, "END\r\n".to_string() + &hit("b", "1"));
    world.expect(x, "END\r\n");
    world.expect(y, hit("b", "1"));
    world.assert_idle();
}

#[test]
fn gets_pass_by_what_others_ask_and_not_what_their_own_client_has() {
    let (mut world, [x, y, z], lane) = one_server();
    together(
        &mut world,
        &[
            (x, "get a\r\nset k 0 0 1\r\n1\r\nget k\r\nget l\r\n"),
            (y, "get b\r\n"),
            (z, "gets c\r\nget c\r\nincr n 1\r\nget n\r\n"),
        ],
    );
    // `gets c` passes by the gets of the others, `set k` and `incr n` not by those of their clients.
    world.expect(lane, "gets c\r\nget a b c\r\nset k 0 0 1\r\n1\r\nincr n 1\r\nget k l n\r\n");
    let replies = [
        "VALUE c 0 1 7\r\n3\r\nEND\r\n",
        &value("b", "2"),
        &hit("c", "3"),
        "STORED\r\n8\r\n",
        &value("k", "1"),
        &hit("n", "8"),
    ];
    world.send(lane, replies.concat());
    world.expect(x, "END\r\nSTORED\r\n".to_string() + &hit("k", "1") + "END\r\n");
    world.expect(y, hit("b", "2"));
    world.expect(
        z,
        "VALUE c 0 1 7\r\n3\r\nEND\r\n".to_string() + &hit("c", "3") + "8\r\n" + &hit("n", "8"),
    );
    world.assert_idle();
}

#[test]
fn a_set_passes_by_gets_of_other_clients() {
    let (mut world, [x, y, z], lane) = one_server();
    together(
        &mut world,
        &[(x, "get a\r\n"), (y, "set b 0 0 1\r\n1\r\n"), (z, "get ccc\r\nget d\r\n")],
    );
    world.expect(lane, "set b 0 0 1\r\n1\r\nget a ccc d\r\n");
    world.send(lane, "STORED\r\n".to_string() + &hit("ccc", "3"));
    world.expect(x, "END\r\n");
    world.expect(y, "STORED\r\n");
    world.expect(z, hit("ccc", "3") + "END\r\n");
    world.assert_idle();
}

/// Gets wait behind what is on its way, behind what is answered meanwhile, and behind nothing.
#[test]
fn sets_pass_by_gets_whatever_stands_in_front() {
    for answered in [0, 1, 2] {
        let (mut world, [w, x, y, z], lane) = one_server();
        together(&mut world, &[(w, "set p 0 0 1\r\n1\r\nset q 0 0 1\r\n1\r\n")]);
        world.received(lane);
        let mut receive = |from, bytes: &str| {
            world.engine.handle_received(from, bytes.as_bytes(), world.now);
        };
        receive(x, "get a\r\n");
        (0..answered).for_each(|_| receive(lane, "STORED\r\n"));
        receive(y, "set b 0 0 1\r\n1\r\n");
        receive(z, "get c\r\n");
        receive(w, "incr n 1\r\nget w\r\n");
        receive(y, "touch b 1\r\n");
        world.tick();
        world.expect(lane, "set b 0 0 1\r\n1\r\nincr n 1\r\ntouch b 1\r\nget a c w\r\n");
        world.send(lane, "STORED\r\n".repeat(3 - answered) + "7\r\nTOUCHED\r\n" + &hit("w", "1"));
        world.expect(w, "STORED\r\n".repeat(2) + "7\r\n" + &hit("w", "1"));
        world.expect(x, "END\r\n");
        world.expect(y, "STORED\r\nTOUCHED\r\n");
        world.expect(z, "END\r\n");
        world.assert_idle();
    }
}

#[test]
fn gets_that_wait_when_the_connection_is_lost_are_sent_on_the_next() {
    let (mut world, [w, x, y], lane) = one_server();
    world.wait_ms(10_000);
    together(&mut world, &[(w, "set p 0 0 1\r\n1\r\n")]);
    for (client, request) in [(x, "get a\r\n"), (w, "set q 0 0 1\r\n1\r\n"), (y, "get b\r\n")] {
        world.engine.handle_received(client, request.as_bytes(), world.now);
    }
    world.close(lane, CloseReason::Reset);
    world.expect(w, "SERVER_ERROR Connection reset by peer\r\n");
    let lane = world.accept(0);
    world.expect(lane, "set q 0 0 1\r\n1\r\nget a b\r\n");
    world.send(lane, "STORED\r\n".to_string() + &hit("b", "1"));
    world.expect(w, "STORED\r\n");
    world.expect(x, "END\r\n");
    world.expect(y, hit("b", "1"));
    world.assert_idle();
}

/// What passes by is known by the client's number, and these are many.
#[test]
fn no_client_overtakes_itself_among_many() {
    let (mut world, clients, lane) = one_server::<200>();
    let all = clients.iter().enumerate();
    let requests: Vec<_> = all
        .map(|(at, &client)| (client, format!("get k{at}\r\nset k{at} 0 0 1\r\n1\r\n")))
        .collect();
    let requests: Vec<_> = requests.iter().map(|(client, text)| (*client, text.as_str())).collect();
    together(&mut world, &requests);
    let written = String::from_utf8(world.received(lane)).unwrap();
    for at in 0..clients.len() {
        let get = written
            .find(&format!(" k{at}\r\n"))
            .unwrap_or_else(|| written.find(&format!(" k{at} k")).expect("it was asked"));
        assert!(get < written.find(&format!("set k{at} ")).expect("it was set"), "{written}");
    }
}

#[test]
fn pipelines_of_gets_and_sets_by_turns_share_few_gets() {
    let (mut world, clients, lane) = one_server::<50>();
    let turns = |from: usize, count: usize| -> String {
        (from..from + count).map(|at| format!("get k\r\nset k 0 0 1\r\n{at}\r\n")).collect()
    };
    // Those that begin with a set are one turn behind.
    let first = turns(0, 4);
    let second = "set k 0 0 1\r\n0\r\n".to_string() + &turns(1, 3) + "get k\r\n";
    let all = clients.iter().enumerate();
    let requests: Vec<_> =
        all.map(|(at, &client)| (client, [&first, &second][at % 2].as_str())).collect();
    together(&mut world, &requests);
    let written = String::from_utf8(world.received(lane)).unwrap();
    assert_eq!(written.lines().filter(|line| line.starts_with("get ")).count(), 4);
    // One turn more than there are stages: the clients before are all in front.
    let (mut world, [x, y, z], lane) = one_server();
    together(&mut world, &[(x, "get a\r\n"), (y, &turns(0, 5)), (z, "get b\r\n")]);
    let written = String::from_utf8(world.received(lane)).unwrap();
    let expected = "get a k\r\n".to_string() + &turns(0, 5)["get k\r\n".len()..];
    assert_eq!(written, expected.replace("1\r\n3\r\nget k", "1\r\n3\r\nget k b"));
}

/// Clients that each have a key of their own, of which they know what they have set last.
#[test]
fn whatever_order_is_written_each_client_finds_what_it_has_set() {
    for seed in 1..=60_u64 {
        let mut random = random_of(seed);
        let (mut world, clients, lane) = one_server::<150>();
        let mut known = [(); 150].map(|()| String::new());
        let mut stored: HashMap<String, String> = HashMap::new();
        let mut expected = [(); 150].map(|()| String::new());
        for _ in 0..10 {
            for _ in 0..random(300) {
                let most = random(150);
                let at = random(1 + most);
                let key = format!("{at}{}", "k".repeat(random(2) * (at % 40)));
                let key = if key.ends_with('k') { key } else { format!("key{at}") };
                let text = match random(3) {
                    0 if key.starts_with("key") => {
                        known[at] = random(1000).to_string();
                        expected[at] += "STORED\r\n";
                        let data = &known[at];
                        format!("set {key} 0 0 {}\r\n{data}\r\n", data.len())
                    }
                    _ => {
                        let is_hit = key.starts_with("key") && !known[at].is_empty();
                        expected[at] +=
                            &if is_hit { hit(&key, &known[at]) } else { "END\r\n".into() };
                        format!("get {key}\r\n")
                    }
                };
                world.engine.handle_received(clients[at], text.as_bytes(), world.now);
            }
            world.tick();
            let written = String::from_utf8(world.received(lane)).unwrap();
            let reply = serve(&written, &mut stored).into_bytes();
            let mut rest = &reply[..];
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at(1 + random(rest.len()));
                world.send(lane, piece);
                rest = behind;
            }
        }
        for (client, expected) in clients.iter().zip(expected) {
            world.expect(*client, expected);
        }
        world.assert_idle();
    }
}

#[test]
fn keys_of_many_lines_that_are_on_their_way_are_told_apart() {
    let (mut world, [x, y], lane) = one_server();
    let key = |at: usize| format!("{at:0>200}");
    let gets: Vec<_> = (0..100).map(|at| format!("get {}\r\n", key(at))).collect();
    together(&mut world, &[(x, &gets[..60].concat()), (y, &gets[60..].concat())]);
    assert_eq!(world.received(lane).iter().filter(|&&byte| byte == b'\n').count(), 12);
    // Others come while some are answered. Every third is not there.
    let reply = |at: usize| if at.is_multiple_of(3) { String::new() } else { value(&key(at), "1") };
    for first in (0..100).step_by(9) {
        let of_line: String = (first..100.min(first + 9)).map(reply).collect();
        world.engine.handle_received(x, b"get a\r\n", world.now);
        world.engine.handle_received(lane, (of_line + "END\r\n").as_bytes(), world.now);
    }
    world.tick();
    world.expect(lane, format!("get{}\r\n", " a".repeat(12)));
    world.send(lane, value("a", "2").repeat(12) + "END\r\n");
    let replies = |range: std::ops::Range<usize>| -> String {
        range.map(|at| reply(at) + "END\r\n").collect()
    };
    world.expect(x, replies(0..60) + &hit("a", "2").repeat(12));
    world.expect(y, replies(60..100));
    world.assert_idle();
}

#[test]
fn a_get_does_not_pass_by_what_its_client_wants_no_answer_to() {
    let (mut world, [x, y], lane) = one_server();
    together(
        &mut world,
        &[(x, "get a\r\n"), (y, "set k 0 0 1 noreply\r\n1\r\nget k\r\n"), (x, "get b\r\n")],
    );
    world.expect(lane, "get a\r\nset k 0 0 1\r\n1\r\nget k b\r\n");
    world.send(lane, "END\r\nSTORED\r\n".to_string() + &hit("k", "1"));
    world.expect(x, "END\r\n".repeat(2));
    world.expect(y, hit("k", "1"));
    world.assert_idle();
}

#[test]
fn other_retrievals_stay_apart() {
    let (mut world, [x], lane) = one_server();
    let requests = "gets a\r\nget  b\r\nget a b\r\ngat 10 a\r\nmg a v\r\n";
    together(&mut world, &[(x, requests)]);
    world.expect(lane, "gets a\r\nget b\r\nget a b\r\ngat 10 a\r\nmg a v\r\n");
}

#[test]
fn replies_are_the_same_however_they_are_cut() {
    let key = "k".repeat(250);
    let replies = [
        vec![hit("c", "\r\nEND\r\n")],
        vec!["END\r\n".into()],
        vec![value("a", ""), value(&key, &"v".repeat(300)), hit("c", "VALUE c 0 1")],
        vec![value("a", "1"), value("b", "2"), hit(&key, "3")],
        vec![value("b", "2"), "SERVER_ERROR out of memory writing get response\r\n".into()],
    ];
    for reply in replies {
        let reply = reply.concat();
        let mut outcomes = Vec::new();
        let halves = (0..reply.len()).map(|cut| vec![&reply[..cut], &reply[cut..]]);
        let bytes = (0..reply.len()).map(|at| &reply[at..=at]).collect::<Vec<_>>();
        for pieces in halves.chain([bytes]) {
            let (mut world, [x, y, z], lane) = one_server();
            let last = format!("get {key}\r\nget c\r\n");
            together(&mut world, &[(x, "get a\r\n"), (y, "get b\r\n"), (z, &last)]);
            world.expect(lane, format!("get a b {key} c\r\n"));
            for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
                world.send(lane, piece);
            }
            assert!(!world.closed.contains(&lane));
            world.assert_idle();
            outcomes.push([x, y, z].map(|client| world.received(client)));
        }
        outcomes.dedup();
        assert_eq!(outcomes.len(), 1, "{reply}");
    }
}

#[test]
fn an_error_is_for_those_that_are_not_answered() {
    let (mut world, [x, y, z], lane) = one_server();
    together(&mut world, &[(x, "get a\r\n"), (y, "get b\r\n"), (z, "get c\r\n")]);
    world.expect(lane, "get a b c\r\n");
    let error = "SERVER_ERROR out of memory writing get response\r\n";
    world.send(lane, value("a", "1") + error);
    world.expect(x, hit("a", "1"));
    world.expect(y, error);
    world.expect(z, error);
    together(&mut world, &[(x, "get a\r\n")]);
    world.expect(lane, "get a\r\n");
    world.send(lane, "END\r\n");
    world.expect(x, "END\r\n");
    world.assert_idle();
}

#[test]
fn what_is_no_reply_ends_the_connection() {
    let nonsense = [
        "STORED\r\n".to_string(),
        value("c", "1"),
        value("b", "1") + &value("b", "1"),
        value("a", "1") + &value("a", "1"),
        value("b", "1") + &value("a", "1") + &value("a", "1"),
        "VALUE a 0 1\r\nxx\r\n".into(),
        "VALUE a 0 99999999999\r\n".into(),
        "VALUE a\r\n".into(),
        "x".repeat(10_000),
        hit("a", "1") + "END\r\n",
    ];
    for reply in nonsense {
        let (mut world, [x, y], lane) = one_server();
        together(&mut world, &[(x, "get a\r\n"), (y, "get b\r\n")]);
        world.send(lane, &reply);
        assert!(world.closed.contains(&lane), "{reply}");
        // Nobody gets another's value.
        let got = [x, y].map(|client| String::from_utf8(world.received(client)).unwrap());
        assert!(got.iter().all(|got| got.ends_with("\r\n")), "{got:?}");
        assert!(!got[1].contains("VALUE a") && !got[0].contains("VALUE b"), "{got:?}");
    }
}

/// As nutcracker does where keys of several servers are not there.
#[test]
fn whatever_order_the_hits_come_in_each_key_gets_its_own() {
    let (mut world, [x, y, z], lane) = one_server();
    let requests = "get b\r\nget c\r\n";
    // A key may be asked for twice, and a set follows.
    let all = [(x, "get a\r\n"), (y, requests), (z, "get a\r\nget d\r\nset a 0 0 1\r\n9\r\n")];
    let keys = ["a", "b", "c", "a", "d"];
    let mut orders = vec![Vec::new()];
    while let Some(order) = orders.pop() {
        for next in (0..keys.len()).filter(|next| !order.contains(next)) {
            orders.push([order.clone(), vec![next]].concat());
        }
        together(&mut world, &all);
        world.expect(lane, "get a b c a d\r\nset a 0 0 1\r\n9\r\n");
        // The first of two of the same key is the first that is asked for.
        let mut replies = [const { None }; 5];
        let mut text = String::new();
        for (number, &at) in order.iter().enumerate() {
            let block = value(keys[at], &number.to_string());
            text += &block;
            let at = if at == 3 && replies[0].is_none() { 0 } else { at };
            let at = if at == 0 && replies[0].is_some() { 3 } else { at };
            replies[at] = Some(block);
        }
        let mut rest = (text + "END\r\nSTORED\r\n").into_bytes();
        while !rest.is_empty() {
            let behind = rest.split_off((7 + 9 * order.len()).min(rest.len()));
            world.send(lane, std::mem::replace(&mut rest, behind));
        }
        let [a, b, c, again, d] = replies.map(|reply| reply.unwrap_or_default() + "END\r\n");
        world.expect(x, a);
        world.expect(y, b + &c);
        world.expect(z, again + &d + "STORED\r\n");
        world.assert_idle();
    }
}

/// While others ask already for what is to follow.
#[test]
fn a_hit_behind_misses_leaves_the_order_of_what_waits() {
    let (mut world, [x, y, z], lane) = one_server();
    together(&mut world, &[(x, "get a\r\nget b\r\nget c\r\n")]);
    world.expect(lane, "get a b c\r\n");
    let now = world.now;
    world.engine.handle_received(y, b"get d\r\n", now);
    world.engine.handle_received(lane, value("c", "1").as_bytes(), now);
    world.engine.handle_received(z, b"set e 0 0 1\r\n1\r\n", now);
    world.tick();
    world.expect(lane, "set e 0 0 1\r\n1\r\nget d\r\n");
    world.send(lane, "END\r\nSTORED\r\n".to_string() + &hit("d", "2"));
    world.expect(x, "END\r\n".repeat(2) + &hit("c", "1"));
    world.expect(y, hit("d", "2"));
    world.expect(z, "STORED\r\n");
    world.assert_idle();
}

#[test]
fn many_hits_come_from_behind_or_in_pairs() {
    let count = 180;
    let in_pairs = |at: usize| at ^ 1;
    let from_behind = move |at: usize| count - 1 - at;
    let some = |at: usize| at * 7 % count;
    for order in [&in_pairs as &dyn Fn(usize) -> usize, &from_behind, &some] {
        let (mut world, [x, y], lane) = one_server();
        let key = |at: usize| format!("k{at:0>3}");
        let gets: Vec<String> = (0..count).map(|at| format!("get {}\r\n", key(at))).collect();
        for round in 0..3 {
            // Two gets: more keys than one has room for.
            together(&mut world, &[(x, &gets.concat()), (y, &gets.concat())]);
            let written = String::from_utf8(world.received(lane)).unwrap();
            assert!(written.lines().count() == 1 || written.len() > 1900, "{written}");
            let is_there = |at: usize| at % 3 != round;
            let mut reply = String::new();
            for line in written.lines() {
                let asked: Vec<&str> = line.split(' ').skip(1).collect();
                let found = (0..count).map(order).filter(|&at| is_there(at));
                for key in found.map(key) {
                    let times = asked.iter().filter(|&&it| it == key).count();
                    reply += &value(&key, &key).repeat(times);
                }
                reply += "END\r\n";
            }
            for piece in reply.as_bytes().chunks(997) {
                world.send(lane, piece);
            }
            let expected: String = (0..count)
                .map(|at| if is_there(at) { hit(&key(at), &key(at)) } else { "END\r\n".into() })
                .collect();
            world.expect(x, &*expected);
            world.expect(y, &*expected);
            world.assert_idle();
        }
    }
}

#[test]
fn all_fail_with_the_connection() {
    let (mut world, [x, y], lane) = one_server();
    world.wait_ms(10_000);
    together(&mut world, &[(x, "get a\r\n"), (y, "get b\r\nget c\r\n")]);
    world.send(lane, value("a", "1") + "VALUE b 0 2\r\nx");
    world.close(lane, CloseReason::Reset);
    world.expect(x, hit("a", "1"));
    let error = "SERVER_ERROR Connection reset by peer\r\n";
    world.expect(y, error.repeat(2));
    let lane = world.accept(0);
    together(&mut world, &[(x, "get d\r\n"), (y, "get e\r\n")]);
    world.expect(lane, "get d e\r\n");
    world.send(lane, hit("e", "1"));
    world.expect(x, "END\r\n");
    world.expect(y, hit("e", "1"));
    world.assert_idle();
}

#[test]
fn a_get_that_was_written_in_part_fails_whole_and_the_rest_is_sent_anew() {
    let line = "get a bb ccc\r\n";
    for cut in 1..=line.len() {
        let (mut world, [w, x, y, z], lane) = one_server();
        world.wait_ms(10_000);
        world.stuck.push(lane);
        together(
            &mut world,
            &[(w, "set k 0 0 1\r\n1\r\n"), (x, "get a\r\n"), (y, "get bb\r\n"), (z, "get ccc\r\n")],
        );
        together(&mut world, &[(w, "set l 0 0 1\r\n2\r\n")]);
        world.write_some(lane, "set k 0 0 1\r\n1\r\n".len() + cut);
        world.close(lane, CloseReason::Reset);
        let error = "SERVER_ERROR Connection reset by peer\r\n";
        for client in [w, x, y, z] {
            world.expect(client, error);
        }
        world.stuck.clear();
        let lane = world.accept(0);
        world.expect(lane, "set l 0 0 1\r\n2\r\n");
        world.send(lane, "STORED\r\n");
        world.expect(w, "STORED\r\n");
        together(&mut world, &[(x, "get a\r\n"), (y, "get bb\r\n")]);
        world.expect(lane, "get a bb\r\n");
        world.send(lane, hit("bb", "1"));
        world.expect(x, "END\r\n");
        world.expect(y, hit("bb", "1"));
        world.assert_idle();
    }
}

#[test]
fn what_waits_for_a_connection_goes_as_it_came() {
    let mut world = World::new(&pool("timeout: 400\nserver_connect_timeout: 300", 1));
    let clients = [(); 3].map(|()| client(&mut world));
    let [x, y, z] = clients;
    together(&mut world, &[(x, "get a\r\n"), (y, "get b\r\n")]);
    world.wait_ms(200);
    together(&mut world, &[(z, "get c\r\n")]);
    world.wait_ms(250);
    for client in [x, y] {
        world.expect(client, "SERVER_ERROR Connection timed out\r\n");
    }
    world.expect(z, "SERVER_ERROR Server does not answer\r\n");
    let mut world = World::new(&pool("timeout: 400\nserver_connect_timeout: 300", 1));
    let [x, y, z] = [(); 3].map(|()| client(&mut world));
    together(&mut world, &[(x, "get a\r\n"), (y, "get b\r\n"), (z, "get c\r\n")]);
    let lane = world.accept(0);
    world.expect(lane, "get a\r\nget b\r\nget c\r\n");
    world.send(lane, hit("a", "1") + "END\r\n" + &hit("c", "2"));
    world.expect(x, hit("a", "1"));
    world.expect(y, "END\r\n");
    world.expect(z, hit("c", "2"));
    world.assert_idle();
}

#[test]
fn who_leaves_takes_nobody_along() {
    let (mut world, [x, y, z], lane) = one_server();
    together(&mut world, &[(x, "get a\r\n"), (y, "get b\r\n"), (z, "get c\r\n")]);
    world.close(x, CloseReason::Reset);
    world.send(lane, value("a", "1") + "VALUE b 0 3\r\n");
    world.close(y, CloseReason::Eof);
    world.send(lane, "123\r\n".to_string() + &hit("c", "1"));
    world.expect(z, hit("c", "1"));
    world.assert_idle();
}

#[test]
fn large_values_pass_through() {
    for size in [16 << 10, 300 << 10, 3 << 20] {
        let (mut world, [x, y, z], lane) = one_server();
        together(&mut world, &[(x, "get a\r\n"), (y, "get b\r\n"), (z, "get c\r\n")]);
        let data = "v".repeat(size);
        let reply = value("b", &data) + &hit("c", "1");
        for piece in reply.as_bytes().chunks(50_000) {
            world.send(lane, piece);
        }
        world.expect(x, "END\r\n");
        world.expect(y, hit("b", &data));
        world.expect(z, hit("c", "1"));
    }
}

/// Its connection is ended under it, and its lane is another time the one for all.
#[test]
fn a_large_value_that_nobody_reads_leaves_no_key_behind() {
    let (mut world, [x, y, z], first) = one_server();
    let data = "1".repeat(700 << 10);
    let large = |key: &str| value(key, &data);
    world.send(x, "get a\r\nget b\r\nget c\r\n");
    world.expect(first, "get a b c\r\n");
    world.stuck.push(x);
    let feed = |world: &mut World, lane: ConnId, text: &str| {
        for piece in text.as_bytes().chunks(64 << 10) {
            if !world.paused.contains(&lane) {
                world.send(lane, piece);
            }
        }
    };
    feed(&mut world, first, &(large("a") + &large("b") + &large("c")));
    assert!(world.paused.contains(&first));
    let second = world.accept(0);
    world.close(x, CloseReason::Reset);
    assert!(world.closed.contains(&first));
    world.send(y, "get d\r\n");
    world.expect(second, "get d\r\n");
    feed(&mut world, second, &(large("d") + "END\r\n"));
    world.expect(y, large("d") + "END\r\n");
    let third = world.accept(0);
    world.send(y, "get w\r\n");
    world.expect(third, "get w\r\n");
    world.send(third, "END\r\n");
    world.expect(y, "END\r\n");
    together(&mut world, &[(y, "get e\r\n"), (z, "get f\r\n")]);
    world.expect(third, "get e f\r\n");
    world.send(third, hit("e", "2"));
    world.expect(y, hit("e", "2"));
    world.expect(z, "END\r\n");
    world.assert_idle();
}

#[test]
fn a_line_does_not_grow_beyond_what_old_servers_take() {
    let (mut world, [x, y], lane) = one_server();
    let key = "k".repeat(200);
    let request = format!("get {key}\r\n");
    together(&mut world, &[(x, &request.repeat(12)), (y, "get a\r\n")]);
    // What is short finds room where what is long did not.
    let first = format!("get {} a\r\n", [key.as_str(); 9].join(" "));
    let second = format!("get {}\r\n", [key.as_str(); 3].join(" "));
    assert!(first.len() <= 2000);
    world.expect(lane, first + &second);
    world.send(lane, value(&key, "1").repeat(9) + &hit("a", "2") + "END\r\n");
    world.expect(x, hit(&key, "1").repeat(9) + &"END\r\n".repeat(3));
    world.expect(y, hit("a", "2"));
    world.assert_idle();
}

#[test]
fn misses_are_told_instead_of_failures_where_that_is_wished() {
    let (mut world, [lane]): (World, [ConnId; 1]) =
        World::connected(&pool("timeout: 400\npreconnect: true\non_failure: miss", 1));
    let (x, y) = (client(&mut world), client(&mut world));
    together(&mut world, &[(x, "get a\r\n"), (y, "get b\r\n")]);
    world.expect(lane, "get a b\r\n");
    world.send(lane, value("a", "1"));
    world.close(lane, CloseReason::Reset);
    world.expect(x, hit("a", "1"));
    world.expect(y, "END\r\n");
}

/// The connection that a large value comes on is set aside with what waits for it to be written. Then
/// its client goes, who is behind with reading.
#[test]
fn what_waits_on_a_lane_that_is_abandoned_is_said_to_nobody() {
    let options =
        "timeout: 400\npreconnect: true\nclient_output_max: 600kb\nclient_output_pause: 600kb";
    let (mut world, [first]): (World, [ConnId; 1]) = World::connected(&pool(options, 1));
    let [x, y] = [(); 2].map(|()| client(&mut world));
    world.stuck.push(x);
    world.send(x, "get big\r\n");
    world.expect(first, "get big\r\n");
    let now = world.now;
    world.engine.handle_received(x, b"get s\r\n", now);
    let reply = hit("big", &"v".repeat(310_000));
    for piece in reply.as_bytes().chunks(100_000) {
        world.engine.handle_received(first, piece, now);
    }
    world.engine.handle_closed(x, CloseReason::Reset, now);
    world.tick();
    assert!(world.closed.contains(&first));
    let shared = world.accept(0);
    world.expect(shared, "");
    // A large value is known by its key, and is asked for on the lane that was abandoned.
    world.send(y, "get big\r\n");
    let private = world.accept(0);
    world.expect(private, "get big\r\n");
    world.send(private, "END\r\n");
    world.expect(y, "END\r\n");
    world.assert_idle();
}
