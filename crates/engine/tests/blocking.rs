//! Calls that wait at the server, each on a lane of its own.

use crate::world::{World, all, pool, redis};
use cashew_config::Snapshot;
use cashew_engine::{BackendId, CloseReason, ConnId, Silence};
use cashew_metrics::ServerCounter;

const OPTIONS: &str = "redis: true\nhash_tag: \"{}\"\ntimeout: 400\npreconnect: true";

/// `a c e` are keys of the first of the two servers, `b d f` of the second.
fn two_servers() -> (World, ConnId, [ConnId; 2]) {
    World::with_client(&pool(OPTIONS, 2))
}

fn one_server() -> (World, ConnId, ConnId) {
    let (world, client, [lane]) = World::with_client(&pool(OPTIONS, 1));
    (world, client, lane)
}

/// What a server answers to a call that it was told to end.
const ENDED: &str = "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n";

/// What a server says before the reply to WAIT.
const WAITS: &str = "+PONG\r\n:0\r\n:77\r\n";

/// What a server is asked by a connection that it has not named yet.
fn asks(wait: &str) -> String {
    all(&["PING", "SPUBLISH cashew:wait ", "CLIENT ID", wait])
}

/// The client waits: returns the lane where it does, whose name at the server is 77.
fn blocked(world: &mut World, client: ConnId, line: &str, server: u32) -> ConnId {
    world.send(client, redis(line));
    let lane = world.accept(server);
    world.expect(lane, redis("CLIENT ID") + &redis(line));
    world.send(lane, ":77\r\n");
    lane
}

#[test]
fn a_call_waits_as_long_as_it_likes_and_holds_nobody_up() {
    let (mut world, client, [shared, _]) = two_servers();
    let other = world.client();
    let lane = blocked(&mut world, client, "BLPOP a c 0", 0);
    world.send(other, redis("GET a"));
    world.expect(shared, redis("GET a"));
    world.send(shared, "$-1\r\n");
    world.expect(other, "$-1\r\n");
    world.wait_ms(60_000);
    assert!(!world.closed.contains(&lane));
    assert_eq!(world.engine.activity().waiting, 0);
    // What the client asks meanwhile waits for it.
    world.send(client, redis("GET c"));
    world.expect(shared, "");
    world.send(lane, "*2\r\n$1\r\na\r\n$1\r\n1\r\n");
    world.expect(client, "*2\r\n$1\r\na\r\n$1\r\n1\r\n");
    world.expect(shared, redis("GET c"));
    world.send(shared, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    assert_eq!(world.sessions(0), 0);
    // The next one does not ask for the name again.
    world.send(client, redis("BLMOVE a c LEFT RIGHT 0"));
    world.expect(lane, redis("BLMOVE a c LEFT RIGHT 0"));
    world.send(lane, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.assert_idle();
    let timeouts = ServerCounter::ServerTimedout;
    assert_eq!(world.metrics.server_counter(world.metrics.server(0, 0), timeouts), 0);
}

#[test]
fn a_server_is_given_its_time_and_then_the_timeout() {
    let (mut world, client, _) = one_server();
    let lane = blocked(&mut world, client, "BLPOP a 2", 0);
    world.wait_ms(2300);
    world.expect(client, "");
    world.wait_ms(300);
    world.expect(client, "-ERR Connection timed out\r\n");
    assert!(world.closed.contains(&lane));
    world.assert_idle();
}

#[test]
fn what_is_asked_before_is_answered_first() {
    let (mut world, client, shared) = one_server();
    world.send(client, all(&["LPUSH a 1", "BLPOP a 0"]));
    world.expect(shared, redis("LPUSH a 1"));
    assert!(!world.connects_to(0));
    world.send(shared, ":1\r\n");
    let lane = world.accept(0);
    world.expect(lane, all(&["CLIENT ID", "BLPOP a 0"]));
    world.send(lane, ":5\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n");
    world.expect(client, ":1\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n");
    world.assert_idle();
}

#[test]
fn streams_are_read_on_shared_lanes_without_block() {
    let (mut world, client, shared) = one_server();
    world.send(client, redis("XREAD COUNT 1 STREAMS a 0"));
    world.expect(shared, redis("XREAD COUNT 1 STREAMS a 0"));
    world.send(shared, "*-1\r\n");
    world.expect(client, "*-1\r\n");
    let lane = blocked(&mut world, client, "XREAD BLOCK 0 STREAMS a $", 0);
    world.send(lane, "*-1\r\n");
    world.expect(client, "*-1\r\n");
    world.assert_idle();
}

#[test]
fn replicas_are_waited_for_after_all_that_was_written() {
    let (mut world, client, shared) = one_server();
    world.send(client, all(&["SET a 1", "WAIT 1 0"]));
    world.expect(shared, redis("SET a 1"));
    world.send(shared, "+OK\r\n");
    let lane = world.accept(0);
    // Redis counts from what the connection that waits did last.
    let nothing = redis("SPUBLISH cashew:wait ") + &all(&["CLIENT ID", "WAIT 1 0"]);
    world.expect(lane, redis("PING") + &nothing);
    world.send(lane, "+PONG\r\n:0\r\n:3\r\n:1\r\n");
    world.expect(client, "+OK\r\n:1\r\n");
    world.assert_idle();
}

#[test]
fn keys_on_several_servers_are_refused_in_words() {
    let (mut world, client, _) = two_servers();
    world.send(client, redis("BLPOP a b 0"));
    world.expect(
        client,
        "-CROSSSLOT BLPOP needs its keys on one server, but 'a' and 'b' are on two: keys with the \
         same part between { and } share a server\r\n",
    );
    world.assert_idle();
}

#[test]
fn the_server_stops_waiting_for_who_is_gone() {
    let (mut world, client, shared) = one_server();
    let lane = blocked(&mut world, client, "BLPOP a 0", 0);
    world.close(client, CloseReason::Reset);
    assert!(world.closed.contains(&lane));
    assert_eq!(world.sessions(0), 0);
    world.assert_idle();
    // Also where the client has only closed its sending side, and where it had sent more.
    let client = world.client();
    let lane = blocked(&mut world, client, "BLPOP a 0", 0);
    world.send(client, redis("GET a"));
    assert!(!world.paused.contains(&client), "its end could not be noticed");
    world.read_closed(client);
    assert!(world.closed.contains(&lane) && world.closed.contains(&client));
    world.expect(shared, "");
    world.assert_idle();
    // It may not send without limit.
    let client = world.client();
    blocked(&mut world, client, "BLPOP a 0", 0);
    for _ in 0..70 {
        world.send(client, redis(&format!("ECHO {}", "x".repeat(1000))));
    }
    assert!(world.paused.contains(&client));
}

#[test]
fn who_watches_waits_on_its_own_lane() {
    let (mut world, client, _) = one_server();
    world.send(client, redis("WATCH a"));
    let lane = world.accept(0);
    world.send(lane, "+OK\r\n");
    world.received(lane);
    world.send(client, redis("BLPOP l 0"));
    world.expect(lane, all(&["CLIENT ID", "BLPOP l 0"]));
    world.send(lane, ":4\r\n");
    world.close(client, CloseReason::Eof);
    assert!(world.closed.contains(&lane));
    assert_eq!(world.sessions(0), 0);
    world.assert_idle();
}

#[test]
fn a_server_that_dies_is_told_of() {
    let (mut world, client, _) = one_server();
    let lane = blocked(&mut world, client, "BLPOP a 0", 0);
    world.close(lane, CloseReason::Reset);
    world.expect(client, "-ERR Connection reset by peer\r\n");
    assert_eq!(world.engine.activity().waiting, 0);
    world.assert_idle();
}

#[test]
fn a_large_reply_arrives_whole() {
    let (mut world, client, _) = one_server();
    let lane = blocked(&mut world, client, "XREAD BLOCK 0 STREAMS a $", 0);
    let reply = format!("*1\r\n${}\r\n{}\r\n", 300_000, "x".repeat(300_000));
    for piece in reply.as_bytes().chunks(40_000) {
        world.send(lane, piece);
    }
    world.expect(client, reply);
    world.assert_idle();
}

// Changes.

fn prepare(world: &mut World, next: &mut Snapshot) {
    next.epoch += 1;
    world.prepare(next);
    world.accept_all::<3>();
    world.pause(60_000);
}

fn is_paused(world: &World) -> bool {
    world.actions.iter().any(|action| matches!(action, cashew_engine::Action::Paused { .. }))
}

#[test]
fn a_change_of_the_ring_sends_the_call_where_its_key_is_now() {
    let (mut world, client, [shared, _]) = two_servers();
    // Of three servers it is the second's.
    let lane = blocked(&mut world, client, "BLPOP c 0", 0);
    let mut next = pool(OPTIONS, 3);
    prepare(&mut world, &mut next);
    world.expect(shared, redis("CLIENT UNBLOCK 77 ERROR"));
    assert!(!is_paused(&world));
    world.send(lane, ENDED);
    assert!(!is_paused(&world));
    world.send(shared, ":1\r\n");
    assert!(is_paused(&world));
    world.expect(client, "");
    assert!(world.closed.contains(&lane), "it might be told once more");
    world.commit(&next);
    let lane = world.accept(1);
    world.expect(lane, all(&["CLIENT ID", "BLPOP c 0"]));
    world.send(lane, ":9\r\n*2\r\n$1\r\nc\r\n$1\r\n1\r\n");
    world.expect(client, "*2\r\n$1\r\nc\r\n$1\r\n1\r\n");
    world.assert_idle();
}

#[test]
fn a_call_that_clients_have_another_name_for_is_asked_anew_by_that() {
    let options =
        format!("{OPTIONS}\ncommand_policy: {{base: admin, rename: {{BLPOP: hold, WAIT: stay}}}}");
    let (mut world, client, [shared, _]) = World::with_client::<2>(&pool(&options, 2));
    world.send(client, redis("HOLD c 0"));
    let lane = world.accept(0);
    world.expect(lane, all(&["CLIENT ID", "blpop c 0"]));
    world.send(lane, ":77\r\n");
    let mut next = pool(&options, 3);
    prepare(&mut world, &mut next);
    world.expect(shared, redis("CLIENT UNBLOCK 77 ERROR"));
    world.send(lane, ENDED);
    world.send(shared, ":1\r\n");
    assert!(is_paused(&world));
    world.commit(&next);
    let lane = world.accept(1);
    world.expect(lane, all(&["CLIENT ID", "blpop c 0"]));
    world.send(lane, ":9\r\n*2\r\n$1\r\nc\r\n$1\r\n1\r\n");
    world.expect(client, "*2\r\n$1\r\nc\r\n$1\r\n1\r\n");
    world.assert_idle();
}

#[test]
fn what_was_given_just_before_a_change_is_passed_on() {
    let (mut world, client, [shared, _]) = two_servers();
    let lane = blocked(&mut world, client, "BLPOP c 0", 0);
    let mut next = pool(OPTIONS, 3);
    prepare(&mut world, &mut next);
    world.send(lane, "*2\r\n$1\r\nc\r\n$1\r\n1\r\n");
    world.send(shared, ":0\r\n");
    world.expect(client, "*2\r\n$1\r\nc\r\n$1\r\n1\r\n");
    world.commit(&next);
    assert!(!world.connects_to(1));
    world.assert_idle();
}

#[test]
fn a_change_does_not_wait_for_a_call_that_cannot_be_withdrawn() {
    let (mut world, client, _) = two_servers();
    world.send(client, redis("BLPOP c 0"));
    let lane = world.accept(0);
    world.received(lane);
    // It does not say who it is to the server.
    world.send(lane, "-ERR unknown command 'CLIENT'\r\n");
    let mut next = pool(OPTIONS, 3);
    prepare(&mut world, &mut next);
    assert!(is_paused(&world));
    world.commit(&next);
    assert!(world.closed.contains(&lane));
    let lane = world.accept(1);
    world.expect(lane, all(&["CLIENT ID", "BLPOP c 0"]));
    world.send(lane, ":9\r\n*-1\r\n");
    world.expect(client, "*-1\r\n");
    world.assert_idle();
}

#[test]
fn a_server_that_is_removed_does_not_fail_the_call() {
    let (mut world, client, [shared, other]) = two_servers();
    let lane = blocked(&mut world, client, "BLPOP b 0", 1);
    let mut next = pool(OPTIONS, 1);
    prepare(&mut world, &mut next);
    world.expect(other, redis("CLIENT UNBLOCK 77 ERROR"));
    // It does not answer, and time is up.
    world.commit(&next);
    assert!(world.closed.contains(&lane));
    world.expect(client, "");
    world.expect(shared, "");
    let lane = world.accept(0);
    world.expect(lane, all(&["CLIENT ID", "BLPOP b 0"]));
    world.send(lane, ":9\r\n*2\r\n$1\r\nb\r\n$1\r\n1\r\n");
    world.expect(client, "*2\r\n$1\r\nb\r\n$1\r\n1\r\n");
    world.assert_idle();
}

#[test]
fn an_ejection_sends_calls_anew() {
    let (mut world, client, [shared, _]) = two_servers();
    let lane = blocked(&mut world, client, "BLPOP a 0", 0);
    world.engine.handle_hold(BackendId::new(0), 1, 60_000, world.now);
    world.tick();
    world.expect(shared, redis("CLIENT UNBLOCK 77 ERROR"));
    world.send(lane, ENDED);
    world.send(shared, ":1\r\n");
    world.engine.handle_release(BackendId::new(0), 1, vec![false, true].into(), world.now, 1);
    world.tick();
    let lane = world.accept(1);
    world.expect(lane, all(&["CLIENT ID", "BLPOP a 0"]));
    world.send(lane, ":9\r\n*-1\r\n");
    world.expect(client, "*-1\r\n");
    world.assert_idle();
}

/// How often the server is told to end a call.
fn unblocks(world: &mut World, shared: ConnId) -> usize {
    String::from_utf8(world.received(shared)).unwrap().matches("UNBLOCK").count()
}

/// A server that holds writes back has not blocked a call that has come since: it ends no such call. Newer ones say so.
#[test]
fn a_server_that_has_ended_nothing_is_told_again() {
    let (mut world, client, shared) = one_server();
    let lane = blocked(&mut world, client, "BLPOP a 0", 0);
    world.engine.handle_leave(client, world.now);
    world.tick();
    for _ in 0..3 {
        world.expect(shared, redis("CLIENT UNBLOCK 77 ERROR"));
        world.send(shared, ":0\r\n");
        assert_eq!(unblocks(&mut world, shared), 0);
        world.wait_ms(1000);
    }
    world.expect(shared, redis("CLIENT UNBLOCK 77 ERROR"));
    world.send(lane, ENDED);
    world.send(shared, ":1\r\n");
    assert!(world.is_handed_off(client) && world.closed.contains(&lane));
    world.wait_ms(2000);
    assert_eq!(unblocks(&mut world, shared), 0);
    // Nor is it told again for a call that was over just before, or for one of later.
    let (mut world, client, shared) = one_server();
    let lane = blocked(&mut world, client, "BLPOP a 0", 0);
    world.engine.handle_hold(BackendId::new(0), 1, 60_000, world.now);
    world.tick();
    world.expect(shared, redis("CLIENT UNBLOCK 77 ERROR"));
    world.send(shared, ":0\r\n");
    world.send(lane, "*2\r\n$1\r\na\r\n$1\r\n1\r\n");
    world.expect(client, "*2\r\n$1\r\na\r\n$1\r\n1\r\n");
    world.engine.handle_release(BackendId::new(0), 1, vec![true].into(), world.now, 0);
    world.tick();
    world.send(client, redis("BLPOP a 0"));
    world.wait_ms(2000);
    assert_eq!(unblocks(&mut world, shared), 0);
}

/// Up to Redis 7.0 a call is executed after its error if it was held back. A connection that the client keeps, as it
/// watches keys, must not give that reply to what comes next.
#[test]
fn a_reply_after_the_end_of_a_call_is_nobodys() {
    let (mut world, client, shared) = one_server();
    world.send(client, redis("WATCH a"));
    let lane = world.accept(0);
    world.expect(lane, redis("WATCH a"));
    world.send(lane, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.send(client, redis("BLPOP a 0"));
    world.expect(lane, all(&["CLIENT ID", "BLPOP a 0"]));
    world.send(lane, ":77\r\n");
    world.engine.handle_hold(BackendId::new(0), 1, 60_000, world.now);
    world.tick();
    world.expect(shared, redis("CLIENT UNBLOCK 77 ERROR"));
    world.send(shared, ":1\r\n");
    world.send(lane, ENDED);
    world.expect(lane, redis("PING"));
    world.engine.handle_release(BackendId::new(0), 1, vec![true].into(), world.now, 0);
    world.tick();
    world.expect(client, "");
    world.expect(lane, redis("BLPOP a 0"));
    world.send(lane, "*2\r\n$1\r\na\r\n$1\r\n1\r\n");
    assert!(world.closed.contains(&lane), "that is no answer to PING");
    assert!(!world.received(client).starts_with(b"*2"));
}

#[test]
fn who_is_to_leave_takes_the_call_along() {
    let (mut world, client, shared) = one_server();
    let lane = blocked(&mut world, client, "BLPOP a 0", 0);
    world.send(client, redis("GET a"));
    world.engine.handle_leave(client, world.now);
    world.tick();
    world.expect(shared, redis("CLIENT UNBLOCK 77 ERROR"));
    assert!(!world.is_handed_off(client));
    world.send(lane, ENDED);
    assert!(world.is_handed_off(client));
    let left = world.engine.export(client, world.now).expect("it was handed off");
    assert_eq!(String::from_utf8_lossy(&left.input), all(&["BLPOP a 0", "GET a"]));
    world.send(shared, ":1\r\n");
    world.assert_idle();
}

#[test]
fn a_worker_that_stops_keeps_nobody_waiting() {
    let (mut world, client, shared) = one_server();
    let lane = blocked(&mut world, client, "BLPOP a 0", 0);
    let other = world.client();
    world.engine.handle_drain(world.now);
    world.tick();
    assert!(world.closed.contains(&other) && !world.closed.contains(&client));
    world.expect(shared, redis("CLIENT UNBLOCK 77 ERROR"));
    world.send(lane, ENDED);
    world.expect(client, "");
    assert!(world.closed.contains(&client) && world.engine.is_drained());
}

/// Both servers are asked, one after the other, for what is left of the time.
#[test]
fn replicas_of_all_servers_are_waited_for_and_the_least_counts() {
    let (mut world, client, shared) = two_servers();
    world.send(client, all(&["SET a 1", "WAIT 2 1000", "GET a"]));
    let writes = shared.map(|lane| world.received(lane).len());
    let wrote = shared[usize::from(writes[0] == 0)];
    world.send(wrote, "+OK\r\n");
    let start = redis("PING") + &redis("SPUBLISH cashew:wait ") + &redis("CLIENT ID");
    let first = world.accept(0);
    world.expect(first, start.clone() + &redis("WAIT 2 1000"));
    world.send(first, "+PONG\r\n:0\r\n:3\r\n");
    world.wait_ms(400);
    world.send(first, ":2\r\n");
    let second = world.accept(1);
    world.expect(second, start + &redis("WAIT 2 600"));
    world.expect(client, "+OK\r\n");
    world.send(second, "+PONG\r\n:0\r\n:4\r\n");
    world.wait_ms(600);
    world.send(second, ":1\r\n");
    world.expect(client, ":1\r\n");
    world.expect(wrote, redis("GET a"));
    world.send(wrote, "$1\r\n1\r\n");
    world.expect(client, "$1\r\n1\r\n");

    world.send(client, redis("WAITAOF 1 1 0"));
    world.expect(first, redis("PING") + &redis("SPUBLISH cashew:wait ") + &redis("WAITAOF 1 1 0"));
    world.send(first, "+PONG\r\n:0\r\n");
    world.wait_ms(10_000);
    world.send(first, "*2\r\n:1\r\n:3\r\n");
    let second = *world.lanes[&1].last().unwrap();
    world.send(second, "+PONG\r\n:0\r\n*2\r\n:0\r\n:4\r\n");
    world.expect(client, "*2\r\n:0\r\n:3\r\n");
    world.received(second);

    // An error is the answer, and the next one begins anew.
    for _ in 0..2 {
        world.send(client, redis("WAIT x 10"));
        let first = *world.lanes[&0].last().unwrap();
        world.received(first);
        world.send(first, "+PONG\r\n:0\r\n-ERR value is not an integer or out of range\r\n");
        world.expect(client, "-ERR value is not an integer or out of range\r\n");
    }
    world.send(client, redis("WAIT 1 0"));
    world.close(client, CloseReason::Reset);
    world.assert_idle();
}

/// Who leaves between two servers takes what is known along: nobody else gets an answer made of it.
#[test]
fn who_comes_in_the_place_of_one_that_left_asks_all_servers() {
    let (mut world, gone, [shared, _]) = two_servers();
    let start = redis("PING") + &redis("SPUBLISH cashew:wait ") + &redis("CLIENT ID");
    world.send(gone, redis("WAIT 1 1000"));
    let first = world.accept(0);
    world.expect(first, start.clone() + &redis("WAIT 1 1000"));
    world.send(first, "+PONG\r\n:0\r\n:3\r\n");
    world.engine.handle_leave(gone, world.now);
    world.tick();
    world.expect(shared, redis("CLIENT UNBLOCK 3 TIMEOUT"));
    world.send(shared, ":1\r\n");
    world.send(first, ":2\r\n");
    assert!(world.is_handed_off(gone));
    let left = world.engine.export(gone, world.now).expect("it was handed off");
    assert_eq!(String::from_utf8_lossy(&left.input), redis("WAIT 1 1000"));

    let next = world.client();
    world.send(next, redis("WAIT 1 5000"));
    let first = world.accept(0);
    world.expect(first, start.clone() + &redis("WAIT 1 5000"));
    world.send(first, "+PONG\r\n:0\r\n:3\r\n:2\r\n");
    let second = world.accept(1);
    world.expect(second, start + &redis("WAIT 1 5000"));
    world.send(second, "+PONG\r\n:0\r\n:4\r\n:1\r\n");
    world.expect(next, ":1\r\n");
    world.assert_idle();
}

#[test]
fn what_the_server_has_not_got_yet_is_taken_back_at_once() {
    let (mut world, client, _) = two_servers();
    world.send(client, redis("BLPOP c 0"));
    assert!(world.connects_to(0));
    let mut next = pool(OPTIONS, 3);
    next.epoch += 1;
    world.prepare(&next);
    world.accept(2);
    world.pause(60_000);
    assert!(is_paused(&world) && !world.connects_to(0));
    world.commit(&next);
    let lane = world.accept(1);
    world.expect(lane, all(&["CLIENT ID", "BLPOP c 0"]));
    world.send(lane, ":9\r\n*-1\r\n");
    world.expect(client, "*-1\r\n");
    world.assert_idle();
    // A worker that stops forgets who asked for it.
    let (mut world, client, _) = two_servers();
    world.send(client, redis("BLPOP a 0"));
    world.engine.handle_drain(world.now);
    world.tick();
    assert!(world.closed.contains(&client));
    world.assert_idle();
}

#[test]
fn a_connection_is_waited_for_that_has_not_said_its_name() {
    let (mut world, client, [shared, _]) = two_servers();
    world.send(client, redis("BLPOP c 0"));
    let lane = world.accept(0);
    world.received(lane);
    let mut next = pool(OPTIONS, 3);
    prepare(&mut world, &mut next);
    assert!(!is_paused(&world));
    world.expect(shared, "");
    world.send(lane, ":77\r\n");
    world.expect(shared, redis("CLIENT UNBLOCK 77 ERROR"));
    world.send(lane, ENDED);
    world.send(shared, ":1\r\n");
    assert!(is_paused(&world));
    world.expect(client, "");
}

#[test]
fn a_change_waits_for_the_rest_of_a_call_that_is_written_in_part() {
    let (mut world, client, [shared, _]) = two_servers();
    let lane = blocked(&mut world, client, "BLPOP c 0.01", 0);
    world.send(lane, "*-1\r\n");
    world.expect(client, "*-1\r\n");
    world.stuck.push(lane);
    world.send(client, redis("BLPOP c 0"));
    world.write_some(lane, 5);
    let mut next = pool(OPTIONS, 3);
    prepare(&mut world, &mut next);
    assert!(!is_paused(&world));
    world.expect(shared, "");
    world.stuck.clear();
    world.write(lane);
    world.tick();
    world.expect(lane, redis("BLPOP c 0"));
    world.expect(shared, redis("CLIENT UNBLOCK 77 ERROR"));
    world.send(lane, ENDED);
    world.send(shared, ":1\r\n");
    assert!(is_paused(&world));
    world.expect(client, "");
}

#[test]
fn a_worker_that_stops_passes_on_the_rest_of_what_was_said_before_a_call() {
    let (mut world, client, _) = one_server();
    world.stuck.push(client);
    world.send(client, all(&["PING", "BLPOP a 0"]));
    world.write_some(client, 5);
    world.engine.handle_drain(world.now);
    world.tick();
    assert!(!world.closed.contains(&client));
    world.stuck.clear();
    world.write(client);
    world.tick();
    world.expect(client, "+PONG\r\n");
    assert!(world.closed.contains(&client) && world.engine.is_drained());
}

#[test]
fn a_call_to_all_servers_goes_on_when_one_is_left() {
    let (mut world, client, _) = two_servers();
    world.send(client, redis("WAIT 1 1000"));
    let lane = world.accept(0);
    world.received(lane);
    world.send(lane, WAITS);
    let mut next = pool(OPTIONS, 1);
    prepare(&mut world, &mut next);
    world.send(lane, ":0\r\n");
    world.commit(&next);
    let lane = world.accept(0);
    world.expect(lane, asks("WAIT 1 1000"));
    world.send(lane, WAITS);
    world.send(lane, ":1\r\n");
    world.expect(client, ":1\r\n");
    world.expect(lane, "");
}

/// CLIENT REPLY SKIP is about the request after it, however often that is sent.
#[test]
fn what_is_not_to_be_answered_is_asked_anew_without_an_answer() {
    let (mut world, client, _) = two_servers();
    world.send(client, all(&["CLIENT REPLY SKIP", "WAIT 1 1000", "PING"]));
    for server in 0..2 {
        let lane = world.accept(server);
        world.received(lane);
        world.send(lane, format!("{WAITS}:1\r\n"));
    }
    world.expect(client, "+PONG\r\n");
    world.assert_idle();

    let (mut world, client, _) = two_servers();
    world.send(client, redis("CLIENT REPLY SKIP"));
    let lane = blocked(&mut world, client, "BLPOP a 0", 0);
    world.engine.handle_hold(BackendId::new(0), 1, 60_000, world.now);
    world.tick();
    world.send(lane, "*-1\r\n");
    world.engine.handle_release(BackendId::new(0), 1, vec![true, true].into(), world.now, 0);
    world.tick();
    let lane = world.accept(0);
    world.expect(lane, all(&["CLIENT ID", "BLPOP a 0"]));
    world.send(lane, ":78\r\n");
    // Nor does it get an answer elsewhere.
    world.engine.handle_leave(client, world.now);
    world.tick();
    world.send(lane, "*-1\r\n");
    assert!(world.is_handed_off(client));
    let left = world.engine.export(client, world.now).expect("it was handed off");
    assert_eq!(String::from_utf8_lossy(&left.input), redis("BLPOP a 0"));
    assert_eq!(left.parts.silence, Silence::Next);
    let client = world.adopt(left);
    let lane = world.accept(0);
    world.received(lane);
    world.send(lane, ":79\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n");
    world.send(client, redis("PING"));
    world.expect(client, "+PONG\r\n");
}

#[test]
fn what_is_never_answered_is_asked_anew_too() {
    let (mut world, client, _) = one_server();
    world.send(client, redis("CLIENT REPLY OFF"));
    let lane = blocked(&mut world, client, "BLMOVE a c LEFT RIGHT 0", 0);
    world.engine.handle_hold(BackendId::new(0), 1, 60_000, world.now);
    world.tick();
    world.send(lane, "$-1");
    world.send(lane, "\r\n");
    world.engine.handle_release(BackendId::new(0), 1, vec![true].into(), world.now, 0);
    world.tick();
    let lane = world.accept(0);
    world.expect(lane, all(&["CLIENT ID", "BLMOVE a c LEFT RIGHT 0"]));
    // Only a whole reply says that there was nothing.
    world.send(lane, ":78\r\n$7\r\nab");
    world.engine.handle_leave(client, world.now);
    world.tick();
    world.send(lane, "$-1\r\n");
    assert!(!world.is_handed_off(client));
    world.send(lane, "\r\n");
    assert!(world.is_handed_off(client));
    let left = world.engine.export(client, world.now).expect("it was handed off");
    assert!(left.input.is_empty() && left.output.is_empty());
}

/// WAIT says a number when it is ended, which is no answer if it is less than was asked for.
#[test]
fn replicas_are_waited_for_anew_for_what_is_left_of_the_time() {
    for (call, short, after, anew) in [
        ("WAIT 1 0", ":0\r\n", 100_000, Some("WAIT 1 0")),
        ("WAIT 2 1000", ":1\r\n", 300, Some("WAIT 2 700")),
        ("wait 2 1000", ":2\r\n", 300, None),
        ("WAIT 2 1000", ":1\r\n", 1000, None),
        ("WAITAOF 1 2 5000", "*2\r\n:1\r\n:1\r\n", 4991, Some("WAITAOF 1 2 9")),
        ("WAITAOF 1 2 5000", "*2\r\n:0\r\n:2\r\n", 10, Some("WAITAOF 1 2 4990")),
        ("WAITAOF 1 2 5000", "*2\r\n:1\r\n:2\r\n", 10, None),
        ("WAIT 2 1000", "-UNBLOCKED it is a replica now\r\n", 300, None),
    ] {
        let (mut world, client, shared) = one_server();
        world.send(client, redis(call));
        let lane = world.accept(0);
        world.expect(lane, asks(call));
        world.send(lane, WAITS);
        world.wait_ms(after);
        world.engine.handle_hold(BackendId::new(0), 1, 60_000, world.now);
        world.tick();
        world.expect(shared, redis("CLIENT UNBLOCK 77 TIMEOUT"));
        world.send(shared, ":1\r\n");
        world.send(lane, short);
        world.engine.handle_release(BackendId::new(0), 1, vec![true].into(), world.now, 0);
        world.tick();
        let Some(anew) = anew else {
            world.expect(client, short);
            world.assert_idle();
            continue;
        };
        world.expect(client, "");
        let lane = world.accept(0);
        world.expect(lane, asks(anew));
        let reply = if anew.starts_with("WAITAOF") { "*2\r\n:1\r\n:2\r\n" } else { ":7\r\n" };
        world.send(lane, format!("{WAITS}{reply}"));
        world.expect(client, reply);
        world.assert_idle();
    }
}

/// What a server said because it was told to end the wait does not count among several, either.
#[test]
fn replicas_of_all_servers_are_waited_for_anew() {
    let (mut world, client, shared) = two_servers();
    world.send(client, redis("WAIT 2 1000"));
    let first = world.accept(0);
    world.expect(first, asks("WAIT 2 1000"));
    world.send(first, WAITS);
    world.wait_ms(100);
    world.engine.handle_hold(BackendId::new(0), 1, 60_000, world.now);
    world.tick();
    world.expect(shared[0], redis("CLIENT UNBLOCK 77 TIMEOUT"));
    world.send(shared[0], ":1\r\n");
    world.send(first, ":0\r\n");
    world.engine.handle_release(BackendId::new(0), 1, vec![true, true].into(), world.now, 0);
    world.tick();
    for server in 0..2 {
        let lane = world.accept(server);
        world.expect(lane, asks("WAIT 2 900"));
        world.send(lane, format!("{WAITS}:2\r\n"));
    }
    world.expect(client, ":2\r\n");
    world.assert_idle();
}

#[test]
fn a_worker_that_stops_passes_on_how_many_replicas_there_are() {
    let (mut world, client, shared) = one_server();
    world.send(client, redis("WAIT 2 0"));
    let lane = world.accept(0);
    world.send(lane, WAITS);
    world.engine.handle_drain(world.now);
    world.tick();
    world.expect(shared, redis("CLIENT UNBLOCK 77 TIMEOUT"));
    world.send(lane, ":1\r\n");
    world.expect(client, ":1\r\n");
    assert!(world.closed.contains(&client) && world.engine.is_drained());
}
