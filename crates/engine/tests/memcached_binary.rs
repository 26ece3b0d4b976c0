//! memcached's binary protocol through the gateway.

use crate::world::{World, pool};
use cashew_engine::{Action, BackendId, CloseReason, ConnId, ListenerId, WireProtocol};
use cashew_metrics::PoolCounter;

const GET: u8 = 0x00;
const SET: u8 = 0x01;
const DELETE: u8 = 0x04;
const FLUSH: u8 = 0x08;
const GETQ: u8 = 0x09;
const NOOP: u8 = 0x0a;
const VERSION: u8 = 0x0b;
const GETKQ: u8 = 0x0d;
const STAT: u8 = 0x10;
const SETQ: u8 = 0x11;
const FLUSHQ: u8 = 0x18;
const NOT_FOUND: u8 = 1;

fn packet(
    magic: u8,
    opcode: u8,
    status: u8,
    opaque: u32,
    [extras, key, value]: [&[u8]; 3],
) -> Vec<u8> {
    let mut bytes = vec![magic, opcode];
    bytes.extend((key.len() as u16).to_be_bytes());
    bytes.extend([extras.len() as u8, 0, 0, status]);
    bytes.extend(((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    bytes.extend(opaque.to_be_bytes());
    bytes.extend([0; 8]);
    bytes.extend([extras, key, value].concat());
    bytes
}

/// A request for a key.
fn ask(opcode: u8, opaque: u32, key: &str) -> Vec<u8> {
    packet(0x80, opcode, 0, opaque, [b"", key.as_bytes(), b""])
}

fn set(opcode: u8, opaque: u32, key: &str, value: &[u8]) -> Vec<u8> {
    packet(0x80, opcode, 0, opaque, [&[0; 8], key.as_bytes(), value])
}

fn reply(opcode: u8, status: u8, opaque: u32, value: &str) -> Vec<u8> {
    packet(0x81, opcode, status, opaque, [b"", b"", value.as_bytes()])
}

fn miss(opcode: u8, opaque: u32) -> Vec<u8> {
    reply(opcode, NOT_FOUND, opaque, "Not found")
}

fn hit(opcode: u8, opaque: u32, value: &str) -> Vec<u8> {
    packet(0x81, opcode, 0, opaque, [&[0; 4], b"", value.as_bytes()])
}

/// `a e` are keys of the first of the four servers, `b f` of the second, `c g` of the third, `d h`
/// of the fourth. The client has asked for one of each, and there are connections for it.
fn four_servers(options: &str) -> (World, ConnId, [ConnId; 4]) {
    let mut world = World::new(&pool(&format!("timeout: 400\n{options}"), 4));
    let client = world.client();
    for key in ["a", "b", "c", "d"] {
        world.send(client, ask(GET, 0, key));
    }
    let lanes = [0, 1, 2, 3].map(|server| world.accept(server));
    for (lane, key) in lanes.into_iter().zip(["a", "b", "c", "d"]) {
        world.expect(lane, ask(GET, 0, key));
        world.send(lane, miss(GET, 0));
    }
    world.expect(client, miss(GET, 0).repeat(4));
    (world, client, lanes)
}

#[test]
fn the_first_byte_decides_and_lanes_are_apart() {
    let (mut world, binary, [a, ..]) = four_servers("");
    let text = world.client();
    world.send(text, "get a\r\n");
    let lane = world.accept(0);
    assert_ne!(lane, a);
    world.expect(lane, "get a\r\n");
    world.send(binary, ask(GET, 7, "a"));
    world.expect(a, ask(GET, 7, "a"));
    world.send(a, hit(GET, 7, "x"));
    world.expect(binary, hit(GET, 7, "x"));
    world.send(lane, "END\r\n");
    world.expect(text, "END\r\n");
    // Later it is a byte like any other.
    world.send(text, "\x7f\r\n");
    world.expect(text, "ERROR\r\n");
    world.send(text, b"\x80\x0b\r\n");
    world.expect(text, "ERROR\r\n");
    world.send(binary, "get a\r\n");
    assert_eq!(world.closed, [binary]);
}

#[test]
fn quiet_batches_are_answered_in_order_and_closed_by_noop() {
    let (mut world, client, [a, b, ..]) = four_servers("");
    let batch = [
        ask(GETQ, 1, "a"),
        ask(GETKQ, 2, "b"),
        set(SETQ, 3, "a", b"x"),
        ask(GETQ, 4, "e"),
        ask(DELETE, 5, "b"),
        ask(NOOP, 6, ""),
    ];
    world.send(client, batch.concat());
    world.expect(a, [ask(GET, 1, "a"), set(SET, 3, "a", b"x"), ask(GET, 4, "e")].concat());
    world.expect(b, [ask(0x0c, 2, "b"), ask(DELETE, 5, "b")].concat());
    world.send(b, [hit(0x0c, 2, "y"), reply(DELETE, 0, 5, "")].concat());
    world.expect(client, "");
    world.send(a, [miss(GET, 1), reply(SET, 0, 3, ""), hit(GET, 4, "z")].concat());
    let told =
        [hit(GETKQ, 2, "y"), hit(GETQ, 4, "z"), reply(DELETE, 0, 5, ""), reply(NOOP, 0, 6, "")];
    world.expect(client, told.concat());
    world.assert_idle();
}

#[test]
fn replies_are_the_same_however_they_come() {
    let (mut world, client, [a, ..]) = four_servers("");
    for (request, sent, said, told) in [
        (ask(GETQ, 1, "a"), ask(GET, 1, "a"), hit(GET, 1, "xyz"), hit(GETQ, 1, "xyz")),
        (ask(GETQ, 1, "a"), ask(GET, 1, "a"), miss(GET, 1), vec![]),
        (set(SETQ, 1, "a", b"x"), set(SET, 1, "a", b"x"), reply(SET, 0, 1, ""), vec![]),
        (
            set(SETQ, 1, "a", b"x"),
            set(SET, 1, "a", b"x"),
            reply(SET, 3, 1, "Too large."),
            reply(SETQ, 3, 1, "Too large."),
        ),
        (ask(GET, 1, "a"), ask(GET, 1, "a"), hit(GET, 1, "xyz"), hit(GET, 1, "xyz")),
    ] {
        for cut in 0..said.len() {
            let (start, rest) = request.split_at(cut.min(request.len()));
            world.send(client, start);
            world.send(client, rest);
            world.expect(a, &sent);
            let (start, rest) = said.split_at(cut);
            world.send(a, start);
            world.send(a, rest);
            world.expect(client, &told);
        }
    }
    world.assert_idle();
}

#[test]
fn a_large_value_goes_through_under_the_name_it_was_asked_by() {
    let (mut world, client, [a, ..]) = four_servers("");
    let value = "x".repeat(100_000);
    world.send(client, ask(GETQ, 1, "a"));
    for piece in hit(GET, 1, &value).chunks(30_000) {
        world.send(a, piece);
    }
    world.expect(client, hit(GETQ, 1, &value));
    world.assert_idle();
    // In the other direction it has a lane for itself.
    let value = vec![b'y'; 2 << 20];
    let request = set(SETQ, 2, "a", &value);
    world.send(client, &request[..1 << 20]);
    let lane = world.accept(0);
    world.send(client, [&request[1 << 20..], &ask(NOOP, 3, "")].concat());
    world.expect(lane, set(SET, 2, "a", &value));
    world.send(lane, reply(SET, 0, 2, ""));
    world.expect(client, reply(NOOP, 0, 3, ""));
}

#[test]
fn what_concerns_all_servers_is_told_to_all() {
    let (mut world, client, lanes) = four_servers("");
    world.send(client, [ask(FLUSH, 1, ""), ask(FLUSHQ, 2, ""), ask(FLUSHQ, 3, "")].concat());
    for (at, lane) in lanes.into_iter().enumerate() {
        world.expect(lane, [ask(FLUSH, 1, ""), ask(FLUSH, 2, ""), ask(FLUSH, 3, "")].concat());
        world.send(lane, [reply(FLUSH, 0, 1, ""), reply(FLUSH, 0, 2, "")].concat());
        let third =
            if at == 1 { reply(FLUSH, 0x20, 3, "Auth failure.") } else { reply(FLUSH, 0, 3, "") };
        world.send(lane, third);
    }
    let told = [reply(FLUSH, 0, 1, ""), reply(FLUSHQ, 0x20, 3, "Auth failure.")];
    world.expect(client, told.concat());
    world.send(client, ask(STAT, 4, ""));
    let stat =
        |key: &str, value: &str| packet(0x81, STAT, 0, 4, [b"", key.as_bytes(), value.as_bytes()]);
    for lane in lanes {
        world.expect(lane, ask(STAT, 4, ""));
        world.send(lane, [stat("curr_items", "5"), stat("version", "1"), stat("", "")].concat());
    }
    world.expect(client, [stat("curr_items", "20"), stat("version", "1"), stat("", "")].concat());
    world.assert_idle();
}

#[test]
fn a_failed_server_is_an_error_or_a_miss() {
    let error = |opcode, opaque| reply(opcode, 0x86, opaque, "Connection reset by peer");
    for on_failure in ["error", "miss"] {
        let (mut world, client, [a, ..]) = four_servers(&format!("on_failure: {on_failure}"));
        let batch = [
            ask(GET, 1, "a"),
            ask(GETQ, 2, "a"),
            ask(0x0c, 3, "a"),
            set(SETQ, 4, "a", b"x"),
            ask(NOOP, 5, ""),
        ];
        world.send(client, batch.concat());
        world.close(a, CloseReason::Reset);
        let gets = match on_failure {
            "error" => [error(GET, 1), error(GETQ, 2), error(0x0c, 3)],
            _ => [miss(GET, 1), vec![], packet(0x81, 0x0c, NOT_FOUND, 3, [b"", b"a", b""])],
        };
        world.expect(client, [gets.concat(), error(SETQ, 4), reply(NOOP, 0, 5, "")].concat());
    }
}

#[test]
fn a_quiet_miss_stays_quiet_where_a_hit_breaks_off() {
    let (mut world, client, [a, ..]) = four_servers("on_failure: miss");
    world.send(client, [ask(GETQ, 1, "a"), ask(NOOP, 2, "")].concat());
    world.send(a, &hit(GETQ, 1, "value")[..26]);
    world.close(a, CloseReason::Reset);
    world.expect(client, reply(NOOP, 0, 2, ""));
    world.assert_idle();
}

#[test]
fn malformed_packets_are_answered_and_closed() {
    for (request, told) in [
        (packet(0x80, GET, 0, 1, [b"", b"", b""]), reply(GET, 4, 1, "Invalid arguments")),
        (packet(0x80, NOOP, 0, 1, [b"", b"", b"x"]), reply(NOOP, 4, 1, "Invalid arguments")),
        (ask(GET, 1, &"k".repeat(251)), reply(GET, 4, 1, "Invalid arguments")),
        (b"\x81\x00".to_vec(), vec![]),
    ] {
        let (mut world, client, _) = four_servers("");
        world.send(client, [ask(NOOP, 9, ""), request, ask(NOOP, 9, "")].concat());
        world.expect(client, [reply(NOOP, 0, 9, ""), told].concat());
        assert_eq!(world.closed, [client]);
        let errors = world.metrics.pool_counter(world.metrics.pool(0), PoolCounter::ClientErr);
        assert_eq!(errors, 1);
    }
    let (mut world, client, _) = four_servers("");
    world.send(
        client,
        [packet(0x80, 0x30, 0, 1, [b"", b"key", b"value"]), ask(NOOP, 2, "")].concat(),
    );
    world.expect(client, [reply(0x30, 0x81, 1, "Unknown command"), reply(NOOP, 0, 2, "")].concat());
}

#[test]
fn what_is_too_large_is_swallowed_and_dropped() {
    let (mut world, client, [a, ..]) = four_servers("request_size_max: 1024");
    let request = set(SETQ, 1, "a", &[b'x'; 2000]);
    world.send(client, &request[..100]);
    world.expect(a, ask(DELETE, 0, "a"));
    world.send(a, miss(DELETE, 0));
    world.expect(client, reply(SETQ, 3, 1, "Too large."));
    world.send(client, [&request[100..], &ask(NOOP, 2, "")].concat());
    world.expect(client, reply(NOOP, 0, 2, ""));
    world.assert_idle();
}

#[test]
fn users_log_in_by_sasl() {
    let auth = |opcode, data: &[u8]| packet(0x80, opcode, 0, 1, [b"", b"PLAIN", data]);
    let mut world = World::new(&pool("client_auth: 'ann:one bob:two'", 1));
    let client = world.client();
    world.send(client, [ask(0x20, 1, ""), auth(0x21, b"\0ann\0two"), auth(0x22, b"x")].concat());
    let refused = |opcode| reply(opcode, 0x20, 1, "Auth failure.");
    world.expect(client, [reply(0x20, 0, 1, "PLAIN"), refused(0x21), refused(0x22)].concat());
    world.send(client, [auth(0x21, b"\0bob\0two"), ask(NOOP, 1, "")].concat());
    world.expect(client, [reply(0x21, 0, 1, "Authenticated"), reply(NOOP, 0, 1, "")].concat());
    let stranger = world.client();
    world.send(stranger, [ask(GET, 1, "a"), ask(NOOP, 1, "")].concat());
    world.expect(stranger, refused(GET));
    assert_eq!(world.closed, [stranger]);
}

#[test]
fn servers_that_speak_nothing_else_are_probed_and_told_who_comes() {
    let options = "protocol: binary\nserver_auth: gate:way\nauto_eject_hosts: true\n\
                   server_failure_limit: 1\nserver_retry_timeout: 100";
    let mut world = World::new(&pool(options, 2));
    let client = world.client();
    world.send(client, ask(VERSION, 1, ""));
    let lane = world.accept(0);
    world.expect(lane, packet(0x80, 0x21, 0, 0, [b"", b"PLAIN", b"\0gate\0way"]));
    world.send(lane, reply(0x21, 0, 0, "Authenticated"));
    world.expect(lane, ask(VERSION, 1, ""));
    world.send(lane, reply(VERSION, 0, 1, "1.6.18"));
    world.expect(client, reply(VERSION, 0, 1, "1.6.18"));
    world.engine.handle_hold(BackendId::new(0), 1, 1000, world.now);
    world.engine.handle_release(BackendId::new(0), 1, vec![false, true].into(), world.now, 0);
    world.wait_ms(200);
    world.expect(lane, ask(VERSION, 0, ""));
    world.send(lane, reply(VERSION, 0, 0, "1.6.18"));
    assert!(
        world
            .actions
            .iter()
            .any(|action| matches!(action, Action::Readmit { server, .. } if server.number() == 0))
    );
}

#[test]
fn servers_that_refuse_credentials_are_given_the_next() {
    let options = "protocol: binary\nserver_auth: gate:old gate:way";
    let mut world = World::new(&pool(options, 1));
    let client = world.client();
    let login = |password: &[u8]| packet(0x80, 0x21, 0, 0, [b"", b"PLAIN", password]);
    world.send(client, ask(GET, 1, "a"));
    let lane = world.accept(0);
    world.expect(lane, login(b"\0gate\0old"));
    world.send(lane, reply(0x21, 0x20, 0, "Auth failure."));
    world.expect(lane, login(b"\0gate\0way"));
    world.send(lane, reply(0x21, 0, 0, "Authenticated"));
    world.expect(lane, ask(GET, 1, "a"));
    world.send(lane, reply(GET, 1, 1, "Not found"));
    world.expect(client, reply(GET, 1, 1, "Not found"));
    let is_told = |action: &Action| matches!(action, Action::CredentialsRefused { .. });
    assert_eq!(world.actions.iter().filter(|it| is_told(it)).count(), 1);
    // The next connection begins with those that were taken.
    world.close(lane, CloseReason::Eof);
    world.send(client, ask(GET, 2, "a"));
    let lane = world.accept(0);
    world.expect(lane, login(b"\0gate\0way"));
    // Now it takes none, and nobody is asked for ever.
    world.send(lane, reply(0x21, 0x20, 0, "Auth failure."));
    world.expect(lane, login(b"\0gate\0old"));
    world.send(lane, reply(0x21, 0x20, 0, "Auth failure."));
    assert!(world.closed.contains(&lane));
}

#[test]
fn who_moves_speaks_on_as_before() {
    let (mut world, client, _) = four_servers("");
    let newcomer = world.client();
    for (conn, wire_protocol) in [(client, Some(WireProtocol::Binary)), (newcomer, None)] {
        world.engine.handle_leave(conn, world.now);
        world.tick();
        assert!(world.is_handed_off(conn));
        let moved = world.engine.export(conn, world.now).unwrap();
        assert_eq!(moved.parts.wire_protocol, wire_protocol);
        let conn =
            world.engine.handle_adopted(ListenerId::new(0), moved.parts, vec![], vec![], world.now);
        world.send(conn, ask(NOOP, 5, ""));
        world.expect(conn, reply(NOOP, 0, 5, ""));
    }
}
