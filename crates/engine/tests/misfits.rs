//! Replies that do not fit what was asked: the connection ends, and nobody gets another's.

use crate::world::{World, pool, redis};
use cashew_engine::{Action, ConnId, Sequel};
use cashew_metrics::ServerCounter;

const ERROR: &str = "SERVER_ERROR Server sent an invalid reply\r\n";

fn one_lane(options: &str) -> (World, ConnId, [ConnId; 3]) {
    let options = format!("timeout: 400\npreconnect: true\nserver_connections: 1\n{options}");
    let (mut world, [lane]): (World, [ConnId; 1]) = World::connected(&pool(&options, 1));
    let clients = [world.client(), world.client(), world.client()];
    (world, lane, clients)
}

fn counted(world: &World) -> u64 {
    let server = world.metrics.server(0, 0);
    world.metrics.server_counter(server, ServerCounter::ProtocolErrors)
}

/// What the log is told: what was expected, and what came.
fn told(world: &World) -> Vec<(&'static str, Vec<u8>)> {
    let actions = world.actions.iter().filter_map(|action| match action {
        Action::ServerMisfit {
            backend: pool,
            server,
            expected,
            excerpt,
            sequel: Sequel::Closed,
        } if (pool.number(), server.number()) == (0, 0) => Some((*expected, excerpt.clone())),
        _ => None,
    });
    actions.collect()
}

#[test]
fn a_line_that_answers_something_else_ends_the_connection_for_all() {
    for (request, misfits) in [
        ("set a 0 0 1\r\nx\r\n", &["HD", "END", "17", "DELETED", "VALUE a 0 1", "MN", "OK"][..]),
        ("delete a\r\n", &["STORED", "HD", "END", "TOUCHED", "VERSION 1"]),
        ("incr a 1\r\n", &["STORED", "END", "x", "1 ", "VA 1", "123456789012345678901"]),
        ("touch a 1\r\n", &["STORED", "DELETED", "1"]),
        ("flush_all\r\n", &["RESET", "STORED", "END"]),
        ("version\r\n", &["OK", "STORED", "END"]),
        ("mg a v\r\n", &["NF", "MN", "END", "STORED", "VALUE a 0 1", "ME a", "VAX", "HDX"]),
        ("ms a 1\r\nx\r\n", &["STORED", "EN", "MN", "ERROR", "CLIENT_ERROR invalid flag"]),
        ("md a\r\n", &["EN", "DELETED", "VA 1", "END"]),
        ("ma a\r\n", &["EN", "STORED", "1", "MN"]),
        ("ma a q\r\n", &["EN", "END", "VERSION 1"]),
        ("me a\r\n", &["HD", "END", "VA 1"]),
        ("get a\r\n", &["EN", "STORED", "VALUE b 0 1\r\nx\r\nEND", "VALUE aa 0 1\r\nx\r\nEND"]),
        ("gets a\r\n", &["HD", "VALUE b 0 1 7\r\nx\r\nEND"]),
        ("gat 5 a\r\n", &["TOUCHED", "VALUE b 0 1\r\nx\r\nEND"]),
        ("stats\r\n", &["STORED", "VALUE a 0 1", "EN"]),
        ("verbosity 1\r\n", &[]),
    ] {
        for misfit in misfits {
            let (mut world, lane, [x, y, z]) = one_lane("");
            world.send(x, request);
            world.send(y, "mg key v\r\n");
            world.send(z, "set other 0 0 1\r\ny\r\n");
            assert!(!world.received(lane).is_empty(), "{request:?}");
            world.send(lane, format!("{misfit}\r\nHD\r\nSTORED\r\n"));
            for client in [x, y, z] {
                let said = String::from_utf8(world.received(client)).unwrap();
                let is_named = said.starts_with("SERVER_ERROR ");
                assert!(
                    is_named && said.ends_with("Server sent an invalid reply\r\n"),
                    "{request:?} {misfit:?} {said}"
                );
            }
            assert!(world.closed.contains(&lane), "{request:?} {misfit:?}");
            assert_eq!(counted(&world), 1);
            let [(_, excerpt)] = &told(&world)[..] else { panic!("it is told once") };
            assert!(excerpt.starts_with(misfit.as_bytes()) && excerpt.len() <= 64);
            world.assert_idle();
        }
    }
}

#[test]
fn a_misfit_is_noticed_however_it_is_cut() {
    for (request, misfit) in [
        ("set a 0 0 1\r\nx\r\n", "NOT_DELETED\r\n"),
        ("mg a v\r\n", "NF\r\n"),
        ("incr a 1\r\n", "DELETED\r\n"),
        ("stats\r\n", "STORED\r\n"),
    ] {
        for cut in 1..misfit.len() {
            let (mut world, lane, [x, y, _]) = one_lane("");
            world.send(x, request);
            world.send(y, "mg key v\r\n");
            world.send(lane, &misfit[..cut]);
            world.send(lane, format!("{}HD\r\n", &misfit[cut..]));
            world.expect(y, ERROR);
            assert_eq!(counted(&world), 1, "{request:?} {cut}");
        }
    }
}

#[test]
fn the_log_is_told_of_a_server_once_in_ten_seconds() {
    let (mut world, lane, [x, ..]) = one_lane("");
    let mut lane = lane;
    for round in 1..=4 {
        if round == 4 {
            world.wait_ms(11_000);
        }
        world.send(x, "delete a\r\n");
        world.send(lane, "STORED\r\n");
        world.expect(x, ERROR);
        world.wait_ms(50);
        lane = world.accept(0);
        world.wait_ms(1500);
        assert_eq!(counted(&world), round);
        assert_eq!(told(&world).len(), 1 + usize::from(round == 4));
    }
    let said = Vec::from([("DELETED or NOT_FOUND", b"STORED\r\n".to_vec())]);
    assert_eq!(told(&world)[..1], said);
}

#[test]
fn a_packet_names_what_was_asked() {
    let get = |opaque: &[u8; 4]| {
        let mut packet = vec![0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1];
        packet.extend_from_slice(opaque);
        packet.extend_from_slice(&[0; 8]);
        packet.push(b'k');
        packet
    };
    let reply = |opcode: u8, opaque: &[u8; 4]| {
        let mut packet = vec![0x81, opcode, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        packet.extend_from_slice(opaque);
        packet.extend_from_slice(&[0; 8]);
        packet
    };
    for (opcode, opaque, is_fit) in [(0, b"abcd", true), (0, b"abce", false), (1, b"abcd", false)] {
        for cut in [0, 10, 23] {
            let (mut world, lane, [x, ..]) = one_lane("protocol: binary");
            world.send(x, get(b"abcd"));
            world.expect(lane, get(b"abcd"));
            let packet = reply(opcode, opaque);
            world.send(lane, &packet[..cut]);
            world.send(lane, &packet[cut..]);
            assert_eq!(world.closed.contains(&lane), !is_fit, "{opcode} {opaque:?} {cut}");
            assert_eq!(counted(&world), u64::from(!is_fit));
            let status = world.received(x)[7];
            assert_eq!(status == 1, is_fit);
        }
    }
}

#[test]
fn what_does_not_fit_in_redis_is_told_alike() {
    for (request, reply, expected) in [
        ("", "+OK\r\n".to_owned(), "nothing: no request is open"),
        ("GET a", "?\r\n".to_owned(), "a reply of RESP"),
        ("GET a", ">1\r\n+x\r\n".to_owned(), "a reply of RESP2, which has no pushes"),
    ] {
        let (mut world, lane, [x, y, _]) = one_lane("redis: true");
        if !request.is_empty() {
            world.send(x, redis(request));
            world.send(y, redis("GET b"));
        }
        world.send(lane, format!("{reply}$1\r\nx\r\n"));
        assert!(world.closed.contains(&lane));
        let error = "-ERR Server sent an invalid reply\r\n";
        let is_asked = usize::from(!request.is_empty());
        world.expect(x, error.repeat(is_asked));
        world.expect(y, error.repeat(is_asked));
        assert_eq!(counted(&world), 1);
        assert_eq!(told(&world)[0].0, expected);
    }
}

#[test]
fn a_flag_that_an_old_server_does_not_know_closes_nobody_elses_connection() {
    let (mut world, lane, [hostile, other, _]) = one_lane("");
    world.send(other, "get a\r\n");
    world.expect(lane, "get a\r\n");
    world.send(hostile, "ms k 1 E5\r\nx\r\n");
    world.expect(lane, "");
    let alone = world.accept(0);
    world.expect(alone, "ms k 1 E5\r\nx\r\n");
    world.send(alone, "CLIENT_ERROR invalid flag\r\n");
    world.expect(hostile, ERROR);
    assert_eq!(world.closed, [alone]);
    world.send(lane, "END\r\n");
    world.expect(other, "END\r\n");
    world.send(hostile, "ms k 1 E5\r\nx\r\n");
    world.expect(hostile, "CLIENT_ERROR invalid flag\r\n");
    world.send(hostile, "ms k 1\r\nx\r\n");
    world.expect(lane, "ms k 1\r\nx\r\n");
    world.send(lane, "HD\r\n");
    world.expect(hostile, "HD\r\n");
    world.assert_idle();
}
