//! Clients that go from one engine to another.

use crate::world::{World, pool, redis};
use cashew_engine::{
    Action, Admission, BackendId, CloseReason, ConnId, Export, ListenerId, Profile, SessionParts,
    Totals, WireProtocol,
};
use cashew_metrics::{PoolCounter, PoolGauge};

const MIB: usize = 1 << 20;

fn two(options: &str) -> [(World, ConnId); 2] {
    [(); 2].map(|()| {
        let options = format!("{options}\npreconnect: true");
        let (world, [lane]) = World::connected::<1>(&pool(&options, 1));
        (world, lane)
    })
}

fn is_handed_off(world: &World, conn: ConnId) -> bool {
    world.actions.contains(&Action::HandOff { conn })
}

fn handed_off(world: &World) -> usize {
    world.actions.iter().filter(|action| matches!(action, Action::HandOff { .. })).count()
}

fn leave(world: &mut World, conn: ConnId) {
    world.engine.handle_leave(conn, world.now);
    world.tick();
}

fn stay(world: &mut World, conn: ConnId) {
    world.engine.handle_stay(conn);
    world.tick();
}

#[track_caller]
fn export(world: &mut World, conn: ConnId) -> Export {
    assert!(is_handed_off(world, conn), "it is not at rest");
    let export = world.engine.export(conn, world.now).expect("it is here");
    assert_eq!(world.engine.export(conn, world.now), None, "it is exported once");
    assert!(!world.closed.contains(&conn));
    export
}

fn clients_counted(world: &World) -> u64 {
    world.metrics.pool_gauge(world.metrics.pool(0), PoolGauge::ClientConnections)
}

#[test]
fn a_client_at_rest_leaves_at_once_with_all_that_was_agreed() {
    let [(mut one, _), (mut two, lane)] = two("redis: true\nredis_auth: secret");
    one.accept_all::<1>();
    let conn = one.client();
    let other = one.client();
    one.send(conn, redis("AUTH secret"));
    one.send(conn, redis("CLIENT SETNAME me"));
    one.expect(conn, "+OK\r\n+OK\r\n");
    leave(&mut one, conn);
    assert!(is_handed_off(&one, conn) && !is_handed_off(&one, other));
    let moved = export(&mut one, conn);
    let Totals { received, sent, requests, errors, .. } = moved.parts.totals;
    assert_eq!((received, sent, requests, errors), (63, 10, 2, 0));
    let parts = SessionParts {
        id: 1,
        authenticated: true,
        swallow: 0,
        wire_protocol: Some(WireProtocol::Resp2),
        profile: Profile { name: b"me".to_vec(), ..Profile::default() },
        called: "client|setname".to_owned(),
        totals: moved.parts.totals,
        ..SessionParts::default()
    };
    assert_eq!(
        moved,
        Export { listener: ListenerId::new(0), parts, input: Vec::new(), output: Vec::new() }
    );
    assert_eq!((clients_counted(&one), clients_counted(&two)), (1, 0));
    let conn = two.adopt(moved);
    assert_eq!((clients_counted(&one), clients_counted(&two)), (1, 1));
    let accepted = two.metrics.pool_counter(two.metrics.pool(0), PoolCounter::ClientsAccepted);
    assert_eq!(accepted, 0, "it was accepted elsewhere");
    two.received(lane);
    two.send(lane, "+OK\r\n");
    two.send(conn, redis("CLIENT ID"));
    two.send(conn, redis("CLIENT GETNAME"));
    two.expect(conn, ":1\r\n$2\r\nme\r\n");
    two.send(conn, redis("GET a"));
    two.expect(lane, redis("GET a"));
    two.send(lane, "$1\r\nx\r\n");
    two.expect(conn, "$1\r\nx\r\n");
    // A password that was not given here or there is still wanted.
    leave(&mut one, other);
    let moved = export(&mut one, other);
    assert!(!moved.parts.authenticated);
    let other = two.adopt(moved);
    two.send(other, redis("GET a"));
    two.expect(other, "-NOAUTH Authentication required.\r\n");
    assert_eq!((clients_counted(&one), clients_counted(&two)), (0, 2));
    two.close(other, CloseReason::Eof);
    two.close(conn, CloseReason::Eof);
    assert_eq!(clients_counted(&two), 0);
    one.assert_idle();
    two.assert_idle();
}

#[test]
fn what_was_asked_is_answered_first_and_what_follows_is_asked_elsewhere() {
    let [(mut one, lane), (mut two, other_lane)] = two("redis: true");
    let conn = one.client();
    one.send(conn, redis("GET a"));
    one.expect(lane, redis("GET a"));
    leave(&mut one, conn);
    assert!(one.paused.contains(&conn));
    // The driver had read it before it was told.
    let more = format!("{}{}{}", redis("GET b"), redis("PING"), &redis("GET c")[..10]);
    one.send(conn, &more);
    one.expect(lane, "");
    one.wait_ms(100);
    assert!(!is_handed_off(&one, conn));
    one.send(lane, "$1\r\na\r\n");
    // The answer goes from here.
    one.expect(conn, "$1\r\na\r\n");
    let mut moved = export(&mut one, conn);
    assert_eq!(moved.input, more.as_bytes());
    assert!(moved.output.is_empty());
    one.assert_idle();
    // What the driver reports on the way belongs to it, too.
    moved.input.extend(&redis("GET c").as_bytes()[10..12]);
    let conn = two.adopt(moved);
    assert!(!two.paused.contains(&conn));
    two.expect(other_lane, redis("GET b"));
    two.send(conn, &redis("GET c")[12..]);
    two.expect(other_lane, redis("GET c"));
    two.send(other_lane, "$1\r\nb\r\n$1\r\nc\r\n");
    two.expect(conn, "$1\r\nb\r\n+PONG\r\n$1\r\nc\r\n");
    two.assert_idle();
}

#[test]
fn bytes_that_come_after_it_was_handed_off_go_along() {
    let [(mut one, lane), (mut two, other_lane)] = two("redis: true");
    let conn = one.client();
    leave(&mut one, conn);
    assert!(is_handed_off(&one, conn));
    one.send(conn, redis("GET a"));
    one.send(conn, redis("GET b"));
    one.expect(lane, "");
    // Too late to change one's mind.
    stay(&mut one, conn);
    one.engine.stay_all(one.now);
    one.tick();
    one.expect(lane, "");
    let moved = export(&mut one, conn);
    two.adopt(moved);
    two.expect(other_lane, redis("GET a") + &redis("GET b"));
    assert_eq!(handed_off(&one), 1);
}

#[test]
fn half_a_request_is_parsed_again_from_its_start() {
    let [(mut one, _), (mut two, lane)] = two("redis: true");
    let request = redis("MGET one two three");
    for cut in 1..request.len() {
        let conn = one.client();
        one.send(conn, &request[..cut]);
        leave(&mut one, conn);
        let moved = export(&mut one, conn);
        assert_eq!(moved.input, &request.as_bytes()[..cut]);
        one.assert_idle();
        let conn = two.adopt(moved);
        two.expect(lane, "");
        two.send(conn, &request[cut..]);
        two.expect(lane, &request);
        two.send(lane, "*3\r\n$-1\r\n$-1\r\n$-1\r\n");
        two.expect(conn, "*3\r\n$-1\r\n$-1\r\n$-1\r\n");
        two.close(conn, CloseReason::Eof);
        two.assert_idle();
    }
}

#[test]
fn unsent_output_is_written_elsewhere() {
    let [(mut one, lane), (mut two, _)] = two("redis: true");
    for size in [10, 1000, 40_000, 700_000] {
        let conn = one.client();
        one.stuck.push(conn);
        one.send(conn, redis("GET a") + &redis("ECHO behind"));
        one.send(lane, format!("${size}\r\n{}\r\n", "x".repeat(size)));
        one.write_some(conn, 7);
        leave(&mut one, conn);
        let head = one.received(conn);
        let moved = export(&mut one, conn);
        one.assert_idle();
        assert_eq!(clients_counted(&one), 0);
        let conn = two.adopt(moved);
        let all = [head, two.received(conn)].concat();
        let expected = format!("${size}\r\n{}\r\n$6\r\nbehind\r\n", "x".repeat(size));
        assert!(all == expected.as_bytes(), "{size}");
        assert!(!two.closed.contains(&conn));
        two.assert_idle();
        two.close(conn, CloseReason::Eof);
    }
}

#[test]
fn what_is_to_be_swallowed_is_swallowed_elsewhere() {
    let [(mut one, _), (mut two, lane)] = two("request_size_max: 1kb");
    let conn = one.client();
    one.send(conn, "add k 0 0 5000\r\n1234567890");
    let error = one.received(conn);
    assert_eq!(error, b"SERVER_ERROR object too large for cache\r\n");
    leave(&mut one, conn);
    one.send(conn, "more of it");
    let moved = export(&mut one, conn);
    assert_eq!((moved.parts.swallow, moved.input.len()), (5002 - 10, 10));
    one.assert_idle();
    let conn = two.adopt(moved);
    let rest = vec![b'x'; 5002 - 20];
    two.send(conn, [&rest[..], b"get k\r\n"].concat());
    two.expect(lane, "get k\r\n");
    two.send(lane, "END\r\n");
    two.expect(conn, "END\r\n");
    two.assert_idle();
}

#[test]
fn who_pipelines_for_ever_comes_to_rest() {
    let [(mut one, lane), (mut two, other_lane)] = two("redis: true\nclient_requests_max: 4");
    let conn = one.client();
    let burst = redis("GET a").repeat(3);
    one.send(conn, &burst);
    one.send(conn, &burst);
    leave(&mut one, conn);
    for _ in 0..4 {
        assert!(!is_handed_off(&one, conn));
        one.send(lane, "$-1\r\n");
        one.send(conn, &burst);
    }
    one.expect(lane, redis("GET a").repeat(4));
    let moved = export(&mut one, conn);
    assert_eq!(moved.input, redis("GET a").repeat(2 + 4 * 3).as_bytes());
    let conn = two.adopt(moved);
    for _ in 0..2 + 4 * 3 {
        two.send(other_lane, "$-1\r\n");
    }
    two.expect(other_lane, redis("GET a").repeat(2 + 4 * 3));
    two.expect(conn, "$-1\r\n".repeat(2 + 4 * 3));
    assert!(!two.paused.contains(&conn));
    two.assert_idle();
}

#[test]
fn an_upload_goes_on_to_its_end_first() {
    let [(mut one, _), (mut two, other_lane)] = two("redis: true");
    let conn = one.client();
    let head = format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n${}\r\n", 3 * MIB);
    one.send(conn, [head.as_bytes(), &vec![b'x'; MIB / 4]].concat());
    let lane = one.accept(0);
    leave(&mut one, conn);
    one.stuck.push(lane);
    for _ in 0..44 {
        one.send(conn, vec![b'x'; MIB / 16]);
    }
    assert!(one.paused.contains(&conn), "the server is slower");
    one.stuck.clear();
    one.write(lane);
    one.tick();
    assert!(!one.paused.contains(&conn), "it is read to its end");
    assert!(!is_handed_off(&one, conn));
    one.send(conn, format!("\r\n{}", redis("GET a")));
    assert_eq!(one.received(lane).len(), head.len() + 3 * MIB + 2);
    assert!(one.paused.contains(&conn) && !is_handed_off(&one, conn));
    one.send(lane, "+OK\r\n");
    one.expect(conn, "+OK\r\n");
    let moved = export(&mut one, conn);
    assert_eq!(moved.input, redis("GET a").as_bytes());
    two.adopt(moved);
    two.expect(other_lane, redis("GET a"));
    one.assert_idle();
}

#[test]
fn an_upload_whose_server_is_gone_is_still_read_to_its_end() {
    let [(mut one, _), _] = two("redis: true");
    let conn = one.client();
    let head = format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n${}\r\n", 3 * MIB);
    one.send(conn, [head.as_bytes(), &vec![b'x'; MIB / 4]].concat());
    let lane = one.accept(0);
    leave(&mut one, conn);
    one.stuck.push(lane);
    for _ in 0..28 {
        one.send(conn, vec![b'x'; MIB / 16]);
    }
    assert!(one.paused.contains(&conn));
    one.close(lane, CloseReason::Reset);
    assert!(one.received(conn).starts_with(b"-ERR"));
    assert!(!one.paused.contains(&conn) && !is_handed_off(&one, conn));
    one.send(conn, vec![b'x'; MIB]);
    one.send(conn, "\r\n");
    export(&mut one, conn);
    one.assert_idle();
}

#[test]
fn who_changes_his_mind_goes_on() {
    let [(mut one, lane), _] = two("redis: true");
    let conn = one.client();
    one.send(conn, redis("GET a"));
    leave(&mut one, conn);
    one.send(conn, redis("GET b"));
    stay(&mut one, conn);
    one.expect(lane, redis("GET a") + &redis("GET b"));
    assert!(!one.paused.contains(&conn));
    // All the same.
    one.engine.leave_all(one.now);
    one.tick();
    let late = one.client();
    assert!(is_handed_off(&one, late), "who comes then leaves, too");
    one.send(conn, redis("GET c"));
    one.engine.stay_all(one.now);
    one.tick();
    one.expect(lane, redis("GET c"));
    one.send(lane, "$-1\r\n$-1\r\n$-1\r\n");
    one.expect(conn, "$-1\r\n$-1\r\n$-1\r\n");
    assert!(!is_handed_off(&one, conn));
    export(&mut one, late);
    let later = one.client();
    one.wait_ms(100);
    assert!(!is_handed_off(&one, later));
    one.assert_idle();
}

#[test]
fn all_leave_some_at_a_time_but_for_those_who_are_being_closed() {
    const CLIENTS: usize = 700;
    let [(mut one, lane), (mut two, _)] = two("redis: true");
    let clients: Vec<ConnId> = (0..CLIENTS).map(|_| one.client()).collect();
    let (closing, busy) = (clients[3], clients[4]);
    one.stuck.push(closing);
    one.send(closing, redis("QUIT"));
    one.send(busy, redis("GET a"));
    assert!(!one.engine.is_left());
    one.engine.leave_all(one.now);
    one.tick();
    let mut moved = 0;
    for round in 1.. {
        let ready: Vec<ConnId> = clients
            .iter()
            .copied()
            .filter(|&conn| one.actions.contains(&Action::HandOff { conn }))
            .collect();
        if ready.is_empty() {
            assert!(round > 2, "not all are out of service at once");
            break;
        }
        assert!(ready.len() <= 256, "{}", ready.len());
        one.actions.clear();
        for conn in ready {
            let export = one.engine.export(conn, one.now).unwrap();
            two.adopt(export);
            moved += 1;
        }
        one.tick();
    }
    assert_eq!(moved, CLIENTS - 2);
    assert!(!one.engine.is_left());
    one.send(lane, "$-1\r\n");
    one.expect(busy, "$-1\r\n");
    export(&mut one, busy);
    one.stuck.clear();
    one.write(closing);
    one.tick();
    one.expect(closing, "+OK\r\n");
    assert!(one.closed.contains(&closing) && one.engine.is_left());
    assert_eq!((clients_counted(&one), clients_counted(&two)), (0, CLIENTS as u64 - 2));
    one.assert_idle();
    one.engine.stay_all(one.now);
    assert!(!one.engine.is_left());
}

#[test]
fn who_is_gone_does_not_leave() {
    let [(mut one, lane), _] = two("redis: true");
    let asked = one.client();
    one.send(asked, redis("GET a"));
    leave(&mut one, asked);
    one.close(asked, CloseReason::Reset);
    let off = one.client();
    leave(&mut one, off);
    one.close(off, CloseReason::Reset);
    assert_eq!(one.engine.export(off, one.now), None);
    leave(&mut one, off);
    stay(&mut one, off);
    one.send(lane, "$-1\r\n");
    let stays = one.client();
    assert_eq!(one.engine.export(stays, one.now), None, "nobody told it to leave");
    leave(&mut one, lane);
    assert_eq!(handed_off(&one), 1);
    one.assert_idle();
}

#[test]
fn a_half_closed_client_takes_what_it_is_owed_and_leaves() {
    let [(mut one, lane), (mut two, other_lane)] = two("redis: true");
    let conn = one.client();
    one.send(conn, redis("GET a"));
    leave(&mut one, conn);
    one.send(conn, redis("GET b"));
    one.read_closed(conn);
    one.send(lane, "$-1\r\n");
    one.expect(conn, "$-1\r\n");
    let moved = export(&mut one, conn);
    let conn = two.adopt(moved);
    // The next driver reports it anew.
    two.read_closed(conn);
    two.expect(other_lane, redis("GET b"));
    two.send(other_lane, "$-1\r\n");
    two.expect(conn, "$-1\r\n");
    assert!(two.closed.contains(&conn));
    assert!(one.closed.is_empty());
}

#[test]
fn a_request_without_a_reply_is_over_before_its_client_leaves() {
    let [(mut one, lane), _] = two("");
    let conn = one.client();
    one.send(conn, "set k 0 0 1 noreply\r\nx\r\n");
    leave(&mut one, conn);
    assert!(!is_handed_off(&one, conn));
    one.send(lane, "STORED\r\n");
    one.wait_ms(10);
    let moved = export(&mut one, conn);
    assert_eq!((moved.input, moved.output), (Vec::new(), Vec::new()));
    one.assert_idle();
}

#[test]
fn an_adopted_client_waits_for_a_pool_that_is_held() {
    let [(mut one, _), (mut two, lane)] = two("redis: true");
    let conn = one.client();
    leave(&mut one, conn);
    one.send(conn, redis("GET a"));
    let moved = export(&mut one, conn);
    two.engine.handle_hold(BackendId::new(0), 1, 0, two.now);
    two.tick();
    let conn = two.adopt(moved);
    assert!(two.paused.contains(&conn));
    two.expect(lane, "");
    two.engine.handle_release(BackendId::new(0), 1, vec![true].into(), two.now, 0);
    two.tick();
    two.expect(lane, redis("GET a"));
    assert!(!two.paused.contains(&conn));
}

#[test]
fn a_drain_closes_who_leaves_but_not_whom_the_driver_lets_go_of() {
    let [(mut one, lane), _] = two("redis: true");
    let (off, asked) = (one.client(), one.client());
    one.send(asked, redis("GET a"));
    leave(&mut one, off);
    leave(&mut one, asked);
    one.engine.handle_drain(one.now);
    one.tick();
    assert!(one.closed.is_empty() && !one.engine.is_drained());
    one.send(lane, "$-1\r\n");
    one.expect(asked, "$-1\r\n");
    assert_eq!(one.closed, [asked]);
    export(&mut one, off);
    assert!(one.engine.is_drained());
    one.assert_idle();
}

/// Clients that asked so often.
fn busy_clients(world: &mut World, lane: ConnId, counts: &[usize]) -> Vec<ConnId> {
    let clients: Vec<ConnId> = counts.iter().map(|_| world.client()).collect();
    for (&conn, &count) in clients.iter().zip(counts) {
        for _ in 0..count {
            world.send(conn, redis("GET a"));
            world.send(lane, "$-1\r\n");
        }
    }
    clients
}

fn shares(counts: &[usize], permille: u32) -> Vec<usize> {
    let [(mut one, lane), _] = two("redis: true");
    let clients = busy_clients(&mut one, lane, counts);
    let picked = one.engine.leave_share(permille, one.now);
    one.tick();
    assert_eq!(picked, handed_off(&one));
    // What was counted is not counted again.
    assert_eq!(one.engine.leave_share(1000, one.now), 0);
    let gone = |&(conn, _): &(&ConnId, &usize)| is_handed_off(&one, *conn);
    clients.iter().zip(counts).filter(gone).map(|(_, &count)| count).collect()
}

#[test]
fn a_share_is_made_of_the_largest_that_fit() {
    assert_eq!(shares(&[10, 60, 20, 10], 250), [20]);
    assert_eq!(shares(&[10, 60, 20, 10], 300), [20, 10]);
    assert_eq!(shares(&[10, 60, 20, 10], 99), [0; 0]);
    assert_eq!(shares(&[10, 60, 20, 10], 100), [10]);
    assert_eq!(shares(&[50], 500), [0; 0]);
    assert_eq!(shares(&[50], 1000), [50]);
    assert_eq!(shares(&[50, 0], 2000), [50]);
    assert_eq!(shares(&[], 500), [0; 0]);
    let many = vec![1; 300];
    assert_eq!(shares(&many, 1000).len(), 256);
}

#[test]
fn a_share_is_of_what_was_asked_lately() {
    let [(mut one, lane), _] = two("redis: true");
    let old = busy_clients(&mut one, lane, &[100]);
    // What runs often enough to keep count.
    for _ in 0..1000 {
        one.wait_ms(21);
    }
    let new = busy_clients(&mut one, lane, &[5, 5]);
    assert_eq!(one.engine.leave_share(500, one.now), 1);
    one.tick();
    assert!(!is_handed_off(&one, old[0]));
    assert!(new.iter().filter(|&&conn| is_handed_off(&one, conn)).count() == 1);
}

#[test]
fn a_refused_client_is_not_moved() {
    let [(mut one, _), _] = two("redis: true");
    one.engine.leave_all(one.now);
    let full = one.engine.handle_accepted(ListenerId::new(0), Admission::Full, 5, one.now);
    one.tick();
    assert!(one.closed.contains(&full) && !is_handed_off(&one, full));
    assert!(one.engine.is_left());
}

#[test]
fn of_those_who_are_owed_replies_some_at_a_time_leave_too() {
    const CLIENTS: usize = 1000;
    let [(mut one, lane), _] = two("redis: true");
    let clients: Vec<ConnId> = (0..CLIENTS).map(|_| one.client()).collect();
    for &conn in &clients {
        one.send(conn, redis("GET a"));
    }
    one.received(lane);
    one.engine.leave_all(one.now);
    for _ in 0..5 {
        one.tick();
    }
    one.send(lane, "$-1\r\n".repeat(CLIENTS));
    for _ in 0..5 {
        one.tick();
    }
    assert_eq!(handed_off(&one), 256, "the others are served until it is their turn");
}

#[test]
fn those_who_cannot_come_to_rest_hold_up_nobody_else() {
    let [(mut one, _), _] = two("redis: true");
    let stuck: Vec<ConnId> = (0..300).map(|_| one.client()).collect();
    let idle = one.client();
    for &conn in &stuck {
        one.send(conn, redis("GET a"));
    }
    one.engine.leave_all(one.now);
    one.wait_ms(3000);
    assert!(is_handed_off(&one, idle));
    assert_eq!(handed_off(&one), 1);
}

#[test]
fn who_was_handed_off_and_has_nowhere_to_go_is_closed() {
    let [(mut one, _), _] = two("redis: true");
    let (leaving, other) = (one.client(), one.client());
    leave(&mut one, leaving);
    assert!(is_handed_off(&one, leaving));
    one.engine.close_handed_off(one.now);
    one.tick();
    assert_eq!(one.closed, [leaving]);
    one.send(other, redis("PING"));
    one.expect(other, "+PONG\r\n");
    assert_eq!(clients_counted(&one), 1);
}

#[test]
fn names_have_an_end() {
    let [(mut one, _), _] = two("redis: true");
    let conn = one.client();
    one.send(conn, redis(&format!("CLIENT SETNAME {}", "x".repeat(4096))));
    one.expect(conn, "+OK\r\n");
    one.send(conn, redis(&format!("CLIENT SETNAME {}", "x".repeat(4097))));
    one.expect(conn, "-ERR Client name is too long.\r\n");
}
