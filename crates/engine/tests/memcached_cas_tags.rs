//! CAS uniques of memcached tell which server they are of.

use crate::world::{World, pool};
use cashew_engine::{ConnId, Plan};
use cashew_metrics::Writer;
use cashew_protocol::memcached::Tag;

const OPTIONS: &str = "timeout: 400\npreconnect: true";
const MIB: usize = 1 << 20;

/// `a e i` are keys of the first of the four servers, `b f j` of the second.
fn four_servers(options: &str) -> (World, ConnId, [ConnId; 4]) {
    let (mut world, lanes) = World::connected(&pool(&format!("{OPTIONS}\n{options}"), 4));
    let client = world.client();
    (world, client, lanes)
}

/// A unique of the server of that number, as clients see it.
fn tagged(server: u32, unique: u64) -> u64 {
    Tag::of(format!("127.0.0.1:{}", 7000 + server).as_bytes()).apply(unique)
}

/// `A<17>` is the unique 17 of the first server as clients see it, `B<17>` that of the second.
fn seen(text: &str) -> String {
    let mut text = text.to_owned();
    for (server, name) in [(0, "A<"), (1, "B<")] {
        while let Some(start) = text.find(name) {
            let end = start + text[start..].find('>').unwrap();
            let unique: u64 = text[start + 2..end].parse().unwrap();
            text.replace_range(start..=end, &tagged(server, unique).to_string());
        }
    }
    text
}

/// Sends a request in pieces to the first server and returns the connection on which all of it, as it
/// is to be sent, came there.
#[track_caller]
fn pass(world: &mut World, client: ConnId, request: &[u8], sent: &[u8]) -> ConnId {
    for piece in request.chunks(65_536) {
        world.send(client, piece);
        while world.connects_to(0) {
            world.accept(0);
        }
    }
    let mut lanes = world.lanes[&0].clone().into_iter();
    let lane = lanes.find(|&lane| world.received(lane) == sent);
    lane.unwrap_or_else(|| panic!("{} bytes on no connection", sent.len()))
}

/// What a client asks, what the server gets, what it answers, what the client gets: all of the first
/// server.
const EXCHANGES: [[&str; 4]; 17] = [
    [
        "gets a\r\n",
        "gets a\r\n",
        "VALUE a 5 3 17\r\nxyz\r\nEND\r\n",
        "VALUE a 5 3 A<17>\r\nxyz\r\nEND\r\n",
    ],
    [
        "gets a e\r\n",
        "gets a e\r\n",
        "VALUE e 5 0 9\r\n\r\nEND\r\n",
        "VALUE e 5 0 A<9>\r\n\r\nEND\r\n",
    ],
    [
        "gats 9 a\r\n",
        "gats 9 a\r\n",
        "VALUE a 0 1 17\r\nx\r\nEND\r\n",
        "VALUE a 0 1 A<17>\r\nx\r\nEND\r\n",
    ],
    ["gets a\r\n", "gets a\r\n", "VALUE a 5 0 0\r\n\r\nEND\r\n", "VALUE a 5 0 0\r\n\r\nEND\r\n"],
    ["get a\r\n", "get a\r\n", "VALUE a 5 1\r\nx\r\nEND\r\n", "VALUE a 5 1\r\nx\r\nEND\r\n"],
    ["cas a 0 0 1 A<17>\r\nx\r\n", "cas a 0 0 1 17\r\nx\r\n", "STORED\r\n", "STORED\r\n"],
    ["cas a 0 0 1 0\r\nx\r\n", "cas a 0 0 1 0\r\nx\r\n", "EXISTS\r\n", "EXISTS\r\n"],
    ["cas a 0 0 1 A<17> noreply\r\nx\r\n", "cas a 0 0 1 17\r\nx\r\n", "STORED\r\n", ""],
    ["mg a c v\r\n", "mg a c v\r\n", "VA 1 c17\r\nx\r\n", "VA 1 cA<17>\r\nx\r\n"],
    ["mg a c k q\r\n", "mg a c k\r\n", "HD c17 ka\r\n", "HD cA<17> ka\r\n"],
    ["mg a v Oc17\r\n", "mg a v Oc17\r\n", "VA 1 Oc17\r\nx\r\n", "VA 1 Oc17\r\nx\r\n"],
    ["ms a 1 CA<17> c\r\nx\r\n", "ms a 1 C17 c\r\nx\r\n", "HD c18\r\n", "HD cA<18>\r\n"],
    ["ms a 1 q CA<17>\r\nx\r\n", "ms a 1 C17\r\nx\r\n", "EX\r\n", "EX\r\n"],
    ["md a CA<17>\r\n", "md a C17\r\n", "HD\r\n", "HD\r\n"],
    ["md a q CA<17>\r\n", "md a q C17\r\nmn\r\n", "EX\r\nMN\r\n", "EX\r\n"],
    ["ma a v c\r\n", "ma a v c\r\n", "VA 1 c17\r\n5\r\n", "VA 1 cA<17>\r\n5\r\n"],
    ["ma a v c q\r\n", "ma a v c q\r\nmn\r\n", "VA 1 c17\r\n5\r\nMN\r\n", "VA 1 cA<17>\r\n5\r\n"],
];

#[test]
fn uniques_are_tagged_on_the_way_out_and_untagged_on_the_way_in() {
    let (mut world, client, [a, ..]) = four_servers("");
    for exchange in EXCHANGES {
        let [asked, sent, reply, answer] = exchange.map(seen);
        for cut in 1..reply.len() {
            world.send(client, &asked);
            world.expect(a, &sent);
            world.send(a, &reply[..cut]);
            world.send(a, &reply[cut..]);
            world.expect(client, &answer);
        }
    }
    let [asked, sent, reply, answers] = EXCHANGES
        .map(|exchange| exchange.map(seen))
        .iter()
        .fold(std::array::from_fn(|_| String::new()), |all: [String; 4], one| {
            std::array::from_fn(|at| all[at].clone() + &one[at])
        });
    world.send(client, asked);
    world.expect(a, sent);
    world.send(a, reply);
    world.expect(client, answers);
    world.assert_idle();
}

/// On a connection of its own, which is closed if the server does not know it.
#[test]
fn a_unique_that_is_given_is_untagged() {
    let (mut world, client, _) = four_servers("");
    world.send(client, seen("ms a 1 q EA<5> CA<17>\r\nx\r\n"));
    let server = (0..4).find(|&server| world.connects_to(server)).expect("it is sent alone");
    let alone = world.accept(server);
    world.expect(alone, "ms a 1 E5 C17\r\nx\r\n");
    world.send(alone, "EX\r\n");
    world.expect(client, "EX\r\n");
    world.assert_idle();
}

#[test]
fn a_unique_of_another_server_is_none_of_the_next() {
    let (mut world, client, [a, ..]) = four_servers("");
    for request in
        ["cas a 0 0 1 B<17>\r\nx\r\n", "ms a 1 CB<17>\r\nx\r\n", "cas a 0 0 1 17\r\nx\r\n"]
    {
        world.send(client, seen(request));
        let sent = String::from_utf8(world.received(a)).unwrap();
        let named = sent.split([' ', '\r', 'C']).filter_map(|word| word.parse::<u64>().ok());
        assert!(named.max() > Some(1 << 40), "{sent}");
        let reply = if request.starts_with("cas") { "EXISTS\r\n" } else { "EX\r\n" };
        world.send(a, reply);
        world.expect(client, reply);
    }
    world.assert_idle();
}

#[test]
fn a_multiget_over_servers_tells_whose_each_unique_is() {
    let (mut world, client, [a, b, ..]) = four_servers("");
    world.send(client, "gets b a\r\n");
    world.expect(a, "gets a\r\n");
    world.expect(b, "gets b\r\n");
    world.send(a, "VALUE a 0 1 7\r\n1\r\nEND\r\n");
    world.send(b, "VALUE b 0 1 7\r\n2\r\nEND\r\n");
    world.expect(client, seen("VALUE b 0 1 B<7>\r\n2\r\nVALUE a 0 1 A<7>\r\n1\r\nEND\r\n"));
    world.assert_idle();
}

#[test]
fn one_server_has_no_tags_unless_they_are_asked_for() {
    for (options, servers, answer) in [
        ("", 1, "VALUE a 0 1 17\r\nx\r\nEND\r\n"),
        ("cas_uniques: tagged", 1, "VALUE a 0 1 A<17>\r\nx\r\nEND\r\n"),
        ("cas_uniques: plain", 2, "VALUE a 0 1 17\r\nx\r\nEND\r\n"),
    ] {
        let mut world = World::new(&pool(&format!("{OPTIONS}\n{options}"), servers));
        let lane = world.accept(0);
        let client = world.client();
        world.send(client, "gets a\r\n");
        world.expect(lane, "gets a\r\n");
        world.send(lane, "VALUE a 0 1 17\r\nx\r\nEND\r\n");
        world.expect(client, seen(answer));
        world.assert_idle();
    }
}

#[test]
fn tags_go_by_addresses_and_not_by_places() {
    let (mut world, client, [a, ..]) = four_servers("");
    let ask = |world: &mut World, key: &str| {
        world.send(client, format!("gets {key}\r\n"));
        world.expect(a, format!("gets {key}\r\n"));
        world.send(a, format!("VALUE {key} 0 1 17\r\nx\r\nEND\r\n"));
        world.expect(client, seen(&format!("VALUE {key} 0 1 A<17>\r\nx\r\nEND\r\n")));
    };
    ask(&mut world, "a");
    let mut next = pool(OPTIONS, 4);
    next.epoch += 1;
    next.pools[0].servers.swap(0, 1);
    world.engine.handle_prepare(Plan::whole(&next, 0, 1), world.now);
    world.tick();
    world.engine.handle_pause(0, world.now);
    world.tick();
    world.metrics = Writer::in_memory(&next);
    world.engine.handle_commit(world.metrics.clone(), world.now);
    world.tick();
    ask(&mut world, "b");
    world.assert_idle();
}

#[test]
fn large_values_pass_with_their_uniques() {
    let (mut world, client, _) = four_servers("");
    for size in [20_000, 300_000, 5 * MIB] {
        let value = "v".repeat(size);
        let reply = format!("VALUE a 0 {size} 17\r\n{value}\r\nVALUE e 0 1 18\r\nx\r\nEND\r\n");
        let lane = pass(&mut world, client, b"gets a e\r\n", b"gets a e\r\n");
        for piece in reply.as_bytes().chunks(65_536) {
            world.send(lane, piece);
        }
        let answer =
            format!("VALUE a 0 {size} A<17>\r\n{value}\r\nVALUE e 0 1 A<18>\r\nx\r\nEND\r\n");
        assert!(world.received(client) == seen(&answer).into_bytes(), "{size}");
    }
    world.assert_idle();
}

#[test]
fn large_values_are_stored_by_their_uniques() {
    let (mut world, client, _) = four_servers("");
    for size in [20_000, 300_000, 2 * MIB] {
        let value = "v".repeat(size);
        for (asked, sent, reply) in [
            (format!("cas a 0 0 {size} A<17>"), format!("cas a 0 0 {size} 17"), ["STORED\r\n"; 2]),
            (
                format!("ms a {size} q c CA<17>"),
                format!("ms a {size} c C17"),
                ["EX c3\r\n", "EX cA<3>\r\n"],
            ),
        ] {
            let request = seen(&format!("{asked}\r\n{value}\r\n"));
            let sent = format!("{sent}\r\n{value}\r\n");
            let lane = pass(&mut world, client, request.as_bytes(), sent.as_bytes());
            world.send(lane, reply[0]);
            world.expect(client, seen(reply[1]));
        }
    }
    world.assert_idle();
}

fn packet(magic: u8, opcode: u8, unique: u64, [extras, key, value]: [&[u8]; 3]) -> Vec<u8> {
    let mut bytes = vec![magic, opcode];
    bytes.extend((key.len() as u16).to_be_bytes());
    bytes.extend([extras.len() as u8, 0, 0, 0]);
    bytes.extend(((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    bytes.extend(*b"opaq");
    bytes.extend(unique.to_be_bytes());
    bytes.extend([extras, key, value].concat());
    bytes
}

#[test]
fn packets_have_tags_in_their_headers() {
    const GET: u8 = 0x00;
    const SET: u8 = 0x01;
    const GETQ: u8 = 0x09;
    const NOOP: u8 = 0x0a;
    const SETQ: u8 = 0x11;
    let (mut world, client, _) = four_servers("");
    world.send(client, packet(0x80, GET, 0, [b"", b"a", b""]));
    let a = world.accept(0);
    world.send(a, packet(0x81, GET, 17, [&[0; 4], b"", b"x"]));
    assert!(world.received(client) == packet(0x81, GET, tagged(0, 17), [&[0; 4], b"", b"x"]));
    let value = vec![b'v'; 40_000];
    let large = vec![b'v'; 2 * MIB];
    let mut round = |asked: (u8, u64),
                     value: &[u8],
                     (loud, sent): (u8, u64),
                     told: u64,
                     answer: Option<u64>| {
        let (extras, body): (&[u8], &[u8]) = match loud {
            SET => (&[0; 8], value),
            _ => (b"", b""),
        };
        world.received(a);
        let request = packet(0x80, asked.0, asked.1, [extras, b"a", body]);
        let sent = packet(0x80, loud, sent, [extras, b"a", body]);
        let lane = pass(&mut world, client, &request, &sent);
        let (extras, body): (&[u8], &[u8]) = match loud {
            GET => (&[0; 4], value),
            _ => (b"", b""),
        };
        let reply = packet(0x81, loud, told, [extras, b"", body]);
        for (at, piece) in reply.chunks(65_536).enumerate() {
            let (head, tail) = piece.split_at(if at == 0 { 20 } else { 0 });
            world.send(lane, head);
            world.send(lane, tail);
        }
        world.send(client, packet(0x80, NOOP, 0, [b"", b"", b""]));
        let answer = answer.map(|unique| packet(0x81, asked.0, unique, [extras, b"", body]));
        let noop = packet(0x81, NOOP, 0, [b"", b"", b""]);
        assert!(world.received(client) == [answer.unwrap_or_default(), noop].concat());
    };
    let unique = tagged(0, 17);
    round((GETQ, 0), b"x", (GET, 0), 17, Some(unique));
    for value in [&b"x"[..], &value, &large] {
        round((GET, 0), value, (GET, 0), 17, Some(unique));
        round((GET, 0), value, (GET, 0), 0, Some(0));
        round((SET, unique), value, (SET, 17), 18, Some(tagged(0, 18)));
        round((SET, 0), value, (SET, 0), 19, Some(tagged(0, 19)));
        round((SETQ, unique), value, (SET, 17), 18, None);
    }
    world.assert_idle();
}

/// What a client gets of a reply, of which `cut` bytes are there when a reload changes whether uniques
/// have tags, and what of the next, which comes after it.
fn reloaded(
    [before, after]: [&str; 2],
    request: &[u8],
    [reply, next]: [&[u8]; 2],
    cut: usize,
) -> [Vec<u8>; 2] {
    let with = |cas_tags| pool(&format!("{OPTIONS}\ncas_uniques: {cas_tags}"), 1);
    let mut after = with(after);
    after.epoch += 1;
    let mut world = World::new(&with(before));
    world.accept(0);
    let client = world.client();
    let lane = pass(&mut world, client, request, request);
    world.send(lane, &reply[..cut]);
    world.prepare(&after);
    world.pause(0);
    world.commit(&after);
    world.send(lane, &reply[cut..]);
    let told = world.received(client);
    world.send(client, request);
    assert_eq!(world.received(lane), request);
    world.send(lane, next);
    let answers = [told, world.received(client)];
    world.assert_idle();
    answers
}

#[test]
fn a_reload_leaves_the_reply_that_has_begun_as_it_is() {
    const GET: u8 = 0x00;
    let get = |unique| packet(0x81, GET, unique, [&[0; 4], b"", &[b'x'; 60]]);
    let text = |start: &str, unique: u64| {
        let end = if start.starts_with("VALUE") { "\r\nhello\r\nEND\r\n" } else { "\r\nhello\r\n" };
        format!("{start}{unique}{end}").into_bytes()
    };
    type Reply<'t> = &'t dyn Fn(u64) -> Vec<u8>;
    let replies: [(Vec<u8>, Reply<'_>); 3] = [
        (b"gets a\r\n".to_vec(), &|unique| text("VALUE a 0 5 ", unique)),
        (b"mg a c v\r\n".to_vec(), &|unique| text("VA 5 c", unique)),
        (packet(0x80, GET, 0, [b"", b"a", b""]), &get),
    ];
    for (request, reply) in &replies {
        let sent = reply(17);
        for (change, then, thereafter) in
            [(["tagged", "plain"], tagged(0, 17), 17), (["plain", "tagged"], 17, tagged(0, 17))]
        {
            for cut in 1..sent.len() {
                let [told, next] = reloaded(change, request, [&sent, &sent], cut);
                let context = format!("{} {change:?} {cut}", request.escape_ascii());
                assert!(told == reply(then), "{context}: {}", told.escape_ascii());
                assert!(next == reply(thereafter), "{context}: {}", next.escape_ascii());
            }
        }
    }
}
