//! Groups of memcached: what is written goes to all servers of a group.

use crate::world::{World, snapshot};
use cashew_config::Snapshot;
use cashew_engine::{Action, CloseReason, ConnId};
use cashew_metrics::ServerCounter;

const STORED: &str = "STORED\r\n";

/// The only group: `s1` with its primary and two more, by the order of their names.
fn group(options: &str, ports: [u16; 3]) -> Snapshot {
    let [a, b, c] = ports;
    snapshot(&format!(
        "p:\n  listen: 127.0.0.1:6000\n  timeout: 400\n  preconnect: true\n  pipeline_start: 0\n\
         \x20 hide_topology: true\n{options}  servers:\n\
         \x20  - {{name: s1, primary: 127.0.0.1:{a}, replicas: [127.0.0.1:{b}, 127.0.0.1:{c}]}}\n"
    ))
}

fn copies(options: &str) -> (World, ConnId, [ConnId; 3]) {
    World::with_client(&group(options, [7000, 7001, 7002]))
}

fn missed(world: &World) -> [u64; 3] {
    [0, 1, 2].map(|server| {
        world.metrics.server_counter(world.metrics.server(0, server), ServerCounter::WritesMissed)
    })
}

fn invalidated(world: &World) -> [u64; 3] {
    [0, 1, 2].map(|server| {
        world.metrics.server_counter(world.metrics.server(0, server), ServerCounter::Invalidated)
    })
}

/// Two clients that have connections of their own to each server.
fn two_lines(options: &str) -> (World, [ConnId; 2], [[ConnId; 3]; 2]) {
    let options = format!("  server_connections: 2\n{options}");
    let mut world = World::new(&group(&options, [7000, 7001, 7002]));
    let one = [0, 1, 2].map(|server| world.accept(server));
    let other = [0, 1, 2].map(|server| world.accept(server));
    let first = world.client();
    let second = world.client();
    // Which of the clients has which.
    world.send(first, "set which 0 0 1\r\nx\r\n");
    let is_first = !world.received(one[0]).is_empty();
    let lines = if is_first { [one, other] } else { [other, one] };
    for lane in lines[0] {
        let _ = world.received(lane);
        world.send(lane, STORED);
    }
    lines.iter().flatten().for_each(|&lane| drop(world.received(lane)));
    world.expect(first, STORED);
    (world, [first, second], lines)
}

fn packet(
    magic: u8,
    opcode: u8,
    status: u8,
    [extras, key, value]: [&[u8]; 3],
    cas: u64,
) -> Vec<u8> {
    let mut bytes = vec![magic, opcode];
    bytes.extend((key.len() as u16).to_be_bytes());
    bytes.extend([extras.len() as u8, 0, 0, status]);
    bytes.extend(((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    bytes.extend(*b"opaq");
    bytes.extend(cas.to_be_bytes());
    bytes.extend([extras, key, value].concat());
    bytes
}

#[test]
fn all_get_a_write_and_the_client_is_answered_by_the_first_when_all_have_replied() {
    let (mut world, client, [a, b, c]) = copies("");
    for (request, sent, replies, answer) in [
        ("set k 1 0 1\r\nx\r\n", "set k 1 0 1\r\nx\r\n", [STORED; 3], STORED),
        ("set k 1 0 1 noreply\r\nx\r\n", "set k 1 0 1\r\nx\r\n", [STORED; 3], ""),
        (
            "delete k\r\n",
            "delete k\r\n",
            ["NOT_FOUND\r\n", "DELETED\r\n", "DELETED\r\n"],
            "NOT_FOUND\r\n",
        ),
        ("incr k 2\r\n", "incr k 2\r\n", ["7\r\n", "3\r\n", "NOT_FOUND\r\n"], "7\r\n"),
        ("ms k 1 q\r\nx\r\n", "ms k 1\r\nx\r\n", ["HD\r\n"; 3], ""),
        ("md k q\r\n", "md k q\r\nmn\r\n", ["MN\r\n"; 3], ""),
        ("touch k 9\r\n", "touch k 9\r\n", ["TOUCHED\r\n"; 3], "TOUCHED\r\n"),
    ] {
        world.send(client, request);
        for (lane, reply) in [a, b, c].into_iter().zip(replies) {
            world.expect(lane, sent);
            world.expect(client, "");
            world.send(lane, reply);
        }
        world.expect(client, answer);
        world.assert_idle();
    }
    assert_eq!(missed(&world), [0; 3]);
}

#[test]
fn replies_keep_their_order_whoever_is_late() {
    let (mut world, client, [a, b, c]) = copies("  reads: replica\n");
    let other = world.client();
    world.send(client, "set k 0 0 1\r\nx\r\nget k\r\nset k 0 0 1 noreply\r\ny\r\nget k\r\nmn\r\n");
    world.send(other, "get k\r\n");
    world.expect(a, "set k 0 0 1\r\nx\r\nset k 0 0 1\r\ny\r\n");
    world.expect(b, "set k 0 0 1\r\nx\r\nget k\r\nset k 0 0 1\r\ny\r\nget k\r\n");
    world.expect(c, "set k 0 0 1\r\nx\r\nset k 0 0 1\r\ny\r\nget k\r\n");
    world.send(a, "STORED\r\nSTORED\r\n");
    world.send(b, "STORED\r\nVALUE k 0 1\r\nx\r\nEND\r\nSTORED\r\nVALUE k 0 1\r\ny\r\nEND\r\n");
    world.expect(other, "VALUE k 0 1\r\ny\r\nEND\r\n");
    world.expect(client, "");
    world.send(c, "STORED\r\nSTORED\r\nVALUE k 0 1\r\ny\r\nEND\r\n");
    world.expect(client, "STORED\r\nVALUE k 0 1\r\nx\r\nEND\r\nVALUE k 0 1\r\ny\r\nEND\r\nMN\r\n");
    world.assert_idle();
}

#[test]
fn a_copy_that_fails_fails_no_command_and_is_counted() {
    let (mut world, client, [a, b, c]) = copies("");
    world.send(client, "set k 0 0 1\r\nx\r\ndelete k\r\n");
    world.send(a, "STORED\r\nDELETED\r\n");
    world.send(b, "SERVER_ERROR out of memory storing object\r\nNOT_FOUND\r\n");
    world.expect(client, "");
    world.close(c, CloseReason::Reset);
    world.expect(client, "STORED\r\nDELETED\r\n");
    assert_eq!(missed(&world), [0, 1, 2]);
    // Who is not reached is not waited for.
    let _ = (world.received(a), world.received(b));
    world.send(client, "set k 0 0 1\r\nx\r\n");
    world.send(a, STORED);
    world.send(b, STORED);
    world.expect(client, STORED);
    assert_eq!(missed(&world), [0, 1, 3]);
}

#[test]
fn a_reply_that_does_not_fit_is_nobodys() {
    let (mut world, client, [a, b, c]) = copies("");
    world.send(client, "set k 0 0 1\r\nx\r\n");
    world.send(a, STORED);
    world.send(b, "VALUE k 0 1\r\nz\r\nEND\r\n");
    assert!(world.closed.contains(&b));
    world.send(c, STORED);
    world.expect(client, STORED);
    assert_eq!(missed(&world), [0, 1, 0]);
}

#[test]
fn the_next_one_answers_where_the_first_dies_and_leads_from_then_on() {
    let (mut world, client, [a, b, c]) = copies("");
    world.send(client, "set k 0 0 1\r\nx\r\nget k\r\n");
    world.send(b, STORED);
    world.send(c, "STORED\r\n");
    world.close(a, CloseReason::Reset);
    world.expect(client, "STORED\r\nSERVER_ERROR Connection reset by peer\r\n");
    let _ = (world.received(b), world.received(c));
    world.send(client, "get k\r\ngets k\r\nadd k 0 0 1\r\nx\r\n");
    world.expect(b, "get k\r\ngets k\r\nadd k 0 0 1\r\nx\r\n");
    world.expect(c, "");
    world.send(b, "END\r\nEND\r\nSTORED\r\n");
    world.expect(client, "END\r\nEND\r\n");
    world.expect(c, "set k 0 0 1\r\nx\r\n");
    world.send(c, STORED);
    world.expect(client, STORED);
}

#[test]
fn where_all_die_there_is_an_error_in_the_clients_protocol() {
    for is_binary in [false, true] {
        let (mut world, client, lanes) = copies("");
        let lanes = match is_binary {
            false => {
                world.send(client, "set k 0 0 1\r\nx\r\n");
                lanes
            }
            true => {
                let request = packet(0x80, 0x11, 0, [&[0; 8], b"k", b"x"], 0);
                world.send(client, &request);
                let lanes = world.accept_all::<3>().map(Option::unwrap);
                world.tick();
                lanes
            }
        };
        lanes.into_iter().for_each(|lane| world.close(lane, CloseReason::Reset));
        let words = "Connection reset by peer";
        match is_binary {
            false => world.expect(client, format!("SERVER_ERROR {words}\r\n")),
            true => {
                let reply = packet(0x81, 0x11, 0x86, [b"", b"", words.as_bytes()], 0);
                world.expect(client, reply);
            }
        }
        assert_eq!(missed(&world), [0; 3]);
    }
}

#[test]
fn what_is_on_a_condition_is_judged_by_the_first_and_nothing_overtakes_it() {
    let (mut world, client, [a, b, c]) = copies("");
    for (request, first, done, then, of_others) in [
        ("add k 1 9 1\r\nx\r\n", "add k 1 9 1\r\nx\r\n", STORED, "set k 1 9 1\r\nx\r\n", STORED),
        (
            "replace k 1 9 1 noreply\r\nx\r\n",
            "replace k 1 9 1\r\nx\r\n",
            STORED,
            "set k 1 9 1\r\nx\r\n",
            STORED,
        ),
        (
            "ms k 1 T9 ME O5\r\nx\r\n",
            "ms k 1 T9 ME O5\r\nx\r\n",
            "HD O5\r\n",
            "ms k 1 T9 O5\r\nx\r\n",
            "HD O5\r\n",
        ),
        ("ms k 1 q MR\r\nx\r\n", "ms k 1 MR\r\nx\r\n", "HD\r\n", "ms k 1\r\nx\r\n", "HD\r\n"),
    ] {
        world.send(client, [request, "delete k\r\n"].concat());
        world.expect(a, first);
        world.send(a, done);
        world.expect(a, "");
        for lane in [b, c] {
            world.expect(lane, then);
            world.send(lane, of_others);
        }
        let is_silent = request.contains("noreply") || request.contains(" q");
        world.expect(client, if is_silent { "" } else { done });
        for lane in [a, b, c] {
            world.expect(lane, "delete k\r\n");
            world.send(lane, "DELETED\r\n");
        }
        world.expect(client, "DELETED\r\n");
        world.assert_idle();
    }
    // What is not done there is done nowhere.
    for (request, reply) in [
        ("add k 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("cas k 0 0 1 5\r\nx\r\n", "EXISTS\r\n"),
        ("md k C5\r\n", "EX\r\n"),
        ("add k 0 0 1\r\nx\r\n", "SERVER_ERROR out of memory storing object\r\n"),
    ] {
        world.send(client, request);
        world.send(a, reply);
        world.expect(client, reply);
        world.expect(b, "");
        world.expect(c, "");
        world.assert_idle();
    }
    assert_eq!(missed(&world), [0; 3]);
}

#[test]
fn what_the_first_has_done_the_others_get_though_the_client_has_gone() {
    let (mut world, client, [a, b, c]) = copies("");
    world.send(client, "add k 0 0 1\r\nx\r\n");
    world.close(client, CloseReason::Reset);
    world.send(a, STORED);
    for lane in [b, c] {
        world.expect(lane, "set k 0 0 1\r\nx\r\n");
        world.send(lane, STORED);
    }
    world.assert_idle();
}

#[test]
fn the_others_are_found_again_after_a_reload() {
    let (mut world, client, [a, b, c]) = copies("");
    world.send(client, "add k 0 0 1\r\nx\r\n");
    // Another server is the primary, one is gone, and one has come.
    let mut next = group("", [7001, 7000, 6999]);
    next.epoch = 2;
    world.prepare(&next);
    let lane = world.accept(0);
    world.pause(0);
    world.commit(&next);
    world.send(a, STORED);
    world.expect(b, "set k 0 0 1\r\nx\r\n");
    world.expect(lane, "");
    assert!(world.closed.contains(&c));
    world.send(b, STORED);
    world.expect(client, STORED);
    world.assert_idle();
}

#[test]
fn packets_lose_their_condition_and_keep_their_names() {
    let (mut world, client, _) = copies("");
    let text: [&[u8]; 3] = [&[0; 8], b"k", b"x"];
    world.send(client, packet(0x80, 0x12, 0, text, 0));
    let a = world.accept(0);
    world.expect(a, packet(0x80, 0x02, 0, text, 0));
    world.send(a, packet(0x81, 0x02, 0, [b"", b"", b""], 7));
    let [_, b, c] = world.accept_all::<3>().map(Option::unwrap);
    for lane in [b, c] {
        world.expect(lane, packet(0x80, 0x01, 0, text, 0));
        world.send(lane, packet(0x81, 0x01, 0, [b"", b"", b""], 9));
    }
    world.expect(client, "");
    // A touch for the others of what retrieves for the first.
    world.send(client, packet(0x80, 0x1d, 0, [&[0, 0, 0, 9], b"k", b""], 0));
    world.expect(a, packet(0x80, 0x1d, 0, [&[0, 0, 0, 9], b"k", b""], 0));
    for lane in [b, c] {
        let mut touch = packet(0x80, 0x1c, 0, [&[0, 0, 0, 9], b"k", b""], 0);
        touch[12..16].fill(0);
        world.expect(lane, touch);
    }
    world.send(a, packet(0x81, 0x1d, 1, [b"", b"", b""], 0));
    world.expect(client, packet(0x81, 0x1d, 1, [b"", b"", b""], 0));
}

#[test]
fn a_server_that_hangs_holds_writes_up_until_the_timeout() {
    let (mut world, client, [a, b, _]) = copies("");
    world.send(client, "set k 0 0 1\r\nx\r\n");
    world.send(a, STORED);
    world.send(b, STORED);
    world.wait_ms(399);
    world.expect(client, "");
    world.wait_ms(2);
    world.expect(client, STORED);
    assert_eq!(missed(&world), [0, 0, 1]);
}

#[test]
fn gat_is_for_the_first_and_touches_the_others() {
    let (mut world, client, [a, b, c]) = copies("  reads: any\n");
    world.send(client, "gat 9 k l\r\nmg k v T9\r\n");
    world.expect(a, "gat 9 k l\r\nmg k v T9\r\n");
    for lane in [b, c] {
        world.expect(lane, "touch k 9\r\ntouch l 9\r\nmg k T9\r\n");
    }
    world.send(a, "END\r\nEN\r\n");
    world.expect(client, "END\r\nEN\r\n");
    world.send(b, "TOUCHED\r\nNOT_FOUND\r\nHD\r\n");
    world.send(c, "TOUCHED\r\nNOT_FOUND\r\nHD\r\n");
    world.expect(client, "");
    world.assert_idle();
}

#[test]
fn copies_forget_what_was_written_on_two_lines_at_once() {
    let (mut world, [one, other], [line, rival]) = two_lines("");
    world.send(one, "set k 0 0 1\r\nx\r\n");
    world.send(other, "set k 0 0 1\r\ny\r\nset l 0 0 1\r\ny\r\n");
    for lane in rival {
        world.expect(lane, "set k 0 0 1\r\ny\r\nset l 0 0 1\r\ny\r\n");
        world.send(lane, "STORED\r\nSTORED\r\n");
    }
    world.expect(other, "STORED\r\nSTORED\r\n");
    for lane in line {
        world.expect(lane, "set k 0 0 1\r\nx\r\n");
        world.send(lane, STORED);
    }
    world.expect(one, STORED);
    world.wait_ms(200);
    line.into_iter().chain(rival).for_each(|lane| world.expect(lane, ""));
    world.wait_ms(51);
    let by = |world: &mut World, place: usize| {
        [world.received(line[place]), world.received(rival[place])].concat()
    };
    assert_eq!(by(&mut world, 0), b"", "the one that leads keeps it");
    for place in [1, 2] {
        assert_eq!(by(&mut world, place), b"delete k\r\n");
    }
    assert_eq!(invalidated(&world), [0, 1, 1]);
}

#[test]
fn the_second_half_of_a_condition_may_come_too_late() {
    for is_alone in [true, false] {
        let (mut world, client, [a, b, c]) = copies("");
        let other = world.client();
        world.send(client, "cas k 0 0 1 5\r\nx\r\n");
        if !is_alone {
            // On the same connections, and yet before the other.
            world.send(other, "set k 0 0 1\r\ny\r\n");
            for lane in [b, c] {
                world.expect(lane, "set k 0 0 1\r\ny\r\n");
                world.send(lane, STORED);
            }
        }
        let _ = world.received(a);
        world.send(a, if is_alone { STORED } else { "STORED\r\nSTORED\r\n" });
        for lane in [b, c] {
            world.expect(lane, "set k 0 0 1\r\nx\r\n");
            world.send(lane, STORED);
        }
        world.expect(client, STORED);
        world.expect(other, if is_alone { "" } else { STORED });
        world.wait_ms(251);
        world.expect(a, "");
        for lane in [b, c] {
            world.expect(lane, if is_alone { "" } else { "delete k\r\n" });
            world.send(lane, if is_alone { "" } else { "DELETED\r\n" });
        }
        world.wait_ms(5000);
        [a, b, c].into_iter().for_each(|lane| world.expect(lane, ""));
    }
}

#[test]
fn who_is_confirmed_alone_afterwards_need_not_be_forgotten() {
    let (mut world, [one, other], [line, rival]) = two_lines("");
    world.send(one, "set k 0 0 1\r\nx\r\n");
    world.send(other, "set k 0 0 1\r\ny\r\n");
    for lane in rival.into_iter().chain(line) {
        let _ = world.received(lane);
        world.send(lane, STORED);
    }
    world.wait_ms(200);
    world.send(one, "set k 0 0 1\r\nz\r\n");
    for lane in line {
        world.expect(lane, "set k 0 0 1\r\nz\r\n");
        world.send(lane, STORED);
    }
    world.wait_ms(5000);
    line.into_iter().chain(rival).for_each(|lane| world.expect(lane, ""));
    assert_eq!(invalidated(&world), [0; 3]);
}

#[test]
fn increments_and_touches_commute() {
    let (mut world, [one, other], [line, rival]) = two_lines("");
    world.send(one, "incr k 1\r\n");
    world.send(other, "incr k 1\r\ntouch k 9\r\n");
    for (at, (lane, rival)) in line.into_iter().zip(rival).enumerate() {
        let [first, second] = if at == 0 { ["6\r\n", "5\r\n"] } else { ["5\r\n", "6\r\n"] };
        let _ = (world.received(lane), world.received(rival));
        world.send(rival, [second, "TOUCHED\r\n"].concat());
        world.send(lane, first);
    }
    world.expect(one, "6\r\n");
    world.wait_ms(1000);
    line.into_iter().chain(rival).for_each(|lane| world.expect(lane, ""));
    // An increment beside a set does not commute.
    world.send(one, "incr l 1\r\n");
    world.send(other, "set l 0 0 1\r\n1\r\n");
    for (lane, rival) in line.into_iter().zip(rival) {
        let _ = (world.received(lane), world.received(rival));
        world.send(lane, "2\r\n");
        world.send(rival, STORED);
    }
    world.wait_ms(251);
    assert_eq!(invalidated(&world), [0, 1, 1]);
}

#[test]
fn what_makes_a_key_where_it_is_not_there_shows_that_copies_differ() {
    let (mut world, client, [a, b, c]) = copies("");
    for (request, replies, forgets) in [
        ("ma k N0 J5 v\r\n", ["VA 1\r\n7\r\n", "VA 1\r\n5\r\n", "VA 1\r\n7\r\n"], [b].as_slice()),
        ("ma k N0 c\r\n", ["HD c7\r\n", "HD c9\r\n", "HD c1\r\n"], &[]),
        ("append k 0 0 1\r\nx\r\n", ["STORED\r\n", "NOT_STORED\r\n", "STORED\r\n"], &[]),
        ("append k 0 0 1\r\nx\r\n", ["NOT_STORED\r\n", "NOT_STORED\r\n", "STORED\r\n"], &[c]),
    ] {
        world.send(client, request);
        for (lane, reply) in [a, b, c].into_iter().zip(replies) {
            world.expect(lane, request);
            world.send(lane, reply);
        }
        let _ = world.received(client);
        world.wait_ms(251);
        for lane in [a, b, c] {
            let is_told = forgets.contains(&lane);
            world.expect(lane, if is_told { "delete k\r\n" } else { "" });
            world.send(lane, if is_told { "DELETED\r\n" } else { "" });
        }
    }
}

#[test]
fn a_copy_that_is_back_forgets_what_it_missed() {
    let (mut world, client, [a, b, c]) = copies("");
    world.close(c, CloseReason::Reset);
    world.send(client, "set k 0 0 1\r\nx\r\nadd l 0 0 1\r\nx\r\nset m 0 0 1\r\nx\r\n");
    world.send(a, "STORED\r\nNOT_STORED\r\n");
    world.send(b, STORED);
    world.expect(client, "STORED\r\nNOT_STORED\r\n");
    world.send(a, STORED);
    world.send(b, STORED);
    world.expect(client, STORED);
    let _ = (world.received(a), world.received(b));
    world.wait_ms(400);
    let c = world.accept(2);
    world.tick();
    let asked = world.received(c);
    if !asked.is_empty() {
        assert_eq!(asked, b"version\r\n");
        world.send(c, "VERSION 1.6.18\r\n");
    }
    // It has the last of them in full by then, and that only.
    world.send(client, "set m 0 0 1\r\ny\r\n");
    for lane in [a, b, c] {
        world.expect(lane, "set m 0 0 1\r\ny\r\n");
        world.send(lane, STORED);
    }
    world.wait_ms(1300);
    world.expect(c, "delete k\r\n");
    world.send(c, "DELETED\r\n");
    world.wait_ms(5000);
    [a, b, c].into_iter().for_each(|lane| world.expect(lane, ""));
}

#[test]
fn keys_are_forgotten_by_whichever_name_they_have() {
    let (mut world, client, [a, b, c]) = copies("");
    for (request, order) in [
        ("set k 0 0 1\r\nx\r\n", "delete k\r\n"),
        ("set noreply 0 0 1\r\nx\r\n", "delete noreply 0\r\n"),
        ("ms YSBi 1 b\r\nx\r\n", "md YSBi b\r\n"),
        ("ms a2V5 1 b\r\nx\r\n", "delete key\r\n"),
    ] {
        world.send(client, request);
        for lane in [a, b, c] {
            let _ = world.received(lane);
            let is_bad = lane == b;
            let done = if request.starts_with("ms") { "HD\r\n" } else { STORED };
            world.send(lane, if is_bad { "SERVER_ERROR out of memory\r\n" } else { done });
        }
        world.wait_ms(251);
        world.expect(b, order);
        world.send(b, if order.starts_with("md") { "HD\r\n" } else { "DELETED\r\n" });
    }
}

#[test]
fn a_copy_has_forgotten_what_differs_before_a_reload_has_it_lead() {
    let (mut world, [one, other], [line, rival]) = two_lines("");
    world.send(one, "set k 0 0 1\r\nx\r\n");
    world.send(other, "set k 0 0 1\r\ny\r\n");
    for lane in rival.into_iter().chain(line) {
        let _ = world.received(lane);
        world.send(lane, STORED);
    }
    let mut next = group("  server_connections: 2\n", [7001, 7000, 7002]);
    next.epoch = 2;
    world.prepare(&next);
    world.pause(1000);
    let is_paused = |world: &mut World| {
        world.epoch_answers().iter().any(|it| matches!(it, Action::Paused { .. }))
    };
    assert!(!is_paused(&mut world), "something is to be forgotten yet");
    let told: Vec<ConnId> = line
        .into_iter()
        .chain(rival)
        .filter(|&lane| world.received(lane) == b"delete k\r\n")
        .collect();
    assert_eq!(told.len(), 2);
    told.into_iter().for_each(|lane| world.send(lane, "DELETED\r\n"));
    assert!(is_paused(&mut world));
}

#[test]
fn a_server_that_hangs_leads_again_only_when_it_has_answered() {
    let (mut world, [one, other], [line, rival]) = two_lines("");
    world.send(one, "add k 0 0 1\r\nx\r\n");
    world.expect(line[0], "add k 0 0 1\r\nx\r\n");
    world.wait_ms(401);
    assert!(world.received(one).starts_with(b"SERVER_ERROR "));
    assert_eq!(missed(&world), [1, 0, 0]);
    // Whoever listens there takes connections still.
    world.close(rival[0], CloseReason::Reset);
    for _ in 0..10 {
        while world.connects_to(0) {
            let lane = world.accept(0);
            world.expect(lane, "version\r\n");
        }
        world.wait_ms(20);
    }
    world.send(other, "add k 0 0 1\r\nx\r\n");
    world.expect(rival[1], "add k 0 0 1\r\nx\r\n");
}
