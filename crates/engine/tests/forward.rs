//! Requests on their way to one server and back.

use crate::world::{World, pool};
use cashew_engine::{Action, Admission, BackendId, CloseReason, ListenerId, ServerId};
use cashew_metrics::PoolCounter;

const REDIS: &str = "redis: true\ntimeout: 400";

/// Keys by server of `pool(REDIS, 2)`.
const A: &str = "a";
const B: &str = "b";

fn get(key: &str) -> String {
    format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len())
}

fn two_servers() -> (World, [cashew_engine::ConnId; 2]) {
    let mut world = World::new(&pool(REDIS, 2));
    let client = world.client();
    world.send(client, get(A) + &get(B));
    let lanes = [world.accept(0), world.accept(1)];
    for lane in lanes {
        world.received(lane);
        world.send(lane, "$-1\r\n");
    }
    world.expect(client, "$-1\r\n$-1\r\n");
    world.read_closed(client);
    world.assert_idle();
    (world, lanes)
}

/// Lanes that get `A` and `B`.
fn lanes_of_keys(
    world: &mut World,
    lanes: [cashew_engine::ConnId; 2],
) -> [cashew_engine::ConnId; 2] {
    let client = world.client();
    world.send(client, get(A));
    let first = usize::from(world.received(lanes[0]).is_empty());
    world.received(lanes[1]);
    world.send(lanes[first], "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.read_closed(client);
    [lanes[first], lanes[1 - first]]
}

#[test]
fn requests_of_one_tick_leave_together_and_replies_find_their_clients() {
    let (mut world, lanes) = two_servers();
    let [a, _] = lanes_of_keys(&mut world, lanes);
    let (one, two) = (world.client(), world.client());
    world.engine.handle_received(one, get(A).as_bytes(), world.now);
    world.engine.handle_received(two, get(A).as_bytes(), world.now);
    world.tick();
    world.expect(a, get(A) + &get(A));
    world.send(a, "$1\r\n1\r\n$1\r\n2\r\n");
    world.expect(one, "$1\r\n1\r\n");
    world.expect(two, "$1\r\n2\r\n");
    world.assert_idle();
}

#[test]
fn replies_keep_the_order_of_requests_whoever_answers_first() {
    let (mut world, lanes) = two_servers();
    let [a, b] = lanes_of_keys(&mut world, lanes);
    let client = world.client();
    world.send(client, get(A) + &get(B) + &get(A));
    world.send(b, "$1\r\nb\r\n");
    world.expect(client, "");
    world.send(a, "$2\r\na1\r\n");
    world.expect(client, "$2\r\na1\r\n$1\r\nb\r\n");
    world.send(a, "$2\r\na2\r\n");
    world.expect(client, "$2\r\na2\r\n");
    world.assert_idle();
}

#[test]
fn a_reply_outlives_its_client_and_is_swallowed() {
    let (mut world, lanes) = two_servers();
    let [a, _] = lanes_of_keys(&mut world, lanes);
    let (one, two) = (world.client(), world.client());
    world.send(one, get(A));
    world.send(two, get(A));
    world.close(one, CloseReason::Reset);
    world.send(a, "$3\r\none\r\n$3\r\ntwo\r\n");
    world.expect(two, "$3\r\ntwo\r\n");
    world.assert_idle();
}

#[test]
fn a_half_closed_client_gets_what_it_is_owed() {
    let (mut world, lanes) = two_servers();
    let [a, _] = lanes_of_keys(&mut world, lanes);
    let client = world.client();
    world.send(client, get(A));
    world.read_closed(client);
    assert!(!world.closed.contains(&client));
    world.send(a, "$1\r\n1\r\n");
    world.expect(client, "$1\r\n1\r\n");
    assert!(world.closed.contains(&client));
    world.assert_idle();
}

#[test]
fn requests_arrive_in_any_pieces() {
    let (mut world, lanes) = two_servers();
    let [a, _] = lanes_of_keys(&mut world, lanes);
    let client = world.client();
    for byte in get(A).bytes() {
        world.send(client, [byte]);
    }
    world.expect(a, get(A));
    for byte in b"$5\r\nhello\r\n" {
        world.send(a, [*byte]);
    }
    world.expect(client, "$5\r\nhello\r\n");
    world.assert_idle();
}

#[test]
fn a_large_value_passes_in_both_directions() {
    let (mut world, lanes) = two_servers();
    let [a, _] = lanes_of_keys(&mut world, lanes);
    let client = world.client();
    let value = vec![b'v'; 200_000];
    let mut set = format!("*3\r\n$3\r\nSET\r\n$1\r\n{A}\r\n$200000\r\n").into_bytes();
    set.extend_from_slice(&value);
    set.extend_from_slice(b"\r\n");
    let mut all = set.clone();
    all.extend_from_slice(get(A).as_bytes());
    for chunk in all.chunks(65_536) {
        world.send(client, chunk);
    }
    set.extend_from_slice(get(A).as_bytes());
    assert!(world.received(a) == set);
    let mut reply = b"+OK\r\n$200000\r\n".to_vec();
    reply.extend_from_slice(&value);
    reply.extend_from_slice(b"\r\n");
    for chunk in reply.chunks(65_536) {
        world.send(a, chunk);
    }
    assert!(world.received(client) == reply);
    world.assert_idle();
}

#[test]
fn a_huge_request_takes_a_lane_of_its_own_and_keeps_its_place() {
    let mut world = World::new(&pool(REDIS, 1));
    let (huge, small) = (world.client(), world.client());
    let value = "v".repeat(1 << 20);
    let set = format!("*3\r\n$3\r\nSET\r\n$1\r\n{A}\r\n$1048576\r\n{value}\r\n");
    world.send(huge, get(A) + &set + &get(A));
    let shared = world.accept(0);
    // What comes before it is answered first, what comes behind waits for it.
    world.expect(shared, get(A));
    world.send(shared, "$-1\r\n");
    world.expect(huge, "$-1\r\n");
    let bulk = world.accept(0);
    assert!(world.received(bulk) == set.as_bytes());
    world.expect(shared, "");
    // Others are not held up.
    world.send(small, get(A));
    world.expect(shared, get(A));
    world.send(shared, "$1\r\n1\r\n");
    world.expect(small, "$1\r\n1\r\n");
    world.send(bulk, "+OK\r\n");
    world.expect(huge, "+OK\r\n");
    world.expect(shared, get(A));
    world.send(shared, "$1\r\n2\r\n");
    world.expect(huge, "$1\r\n2\r\n");
    assert!(world.paused.is_empty());
    world.assert_idle();
}

#[test]
fn a_key_with_a_huge_reply_is_read_on_the_bulk_lane_from_then_on() {
    let mut world = World::new(&pool(REDIS, 1));
    let client = world.client();
    let huge = format!("$1048576\r\n{}\r\n", "v".repeat(1 << 20));
    world.send(client, get(A));
    let shared = world.accept(0);
    world.expect(shared, get(A));
    world.send(shared, &huge);
    assert!(world.received(client) == huge.as_bytes());
    // The first GET is owed when the second comes, which has to wait, and so has the third.
    world.send(client, get(B) + &get(A) + &get(B));
    world.expect(shared, get(B));
    assert!(!world.connects_to(0));
    world.send(shared, "$-1\r\n");
    let bulk = world.accept(0);
    world.expect(bulk, get(A));
    world.expect(shared, "");
    world.send(bulk, "$5\r\nsmall\r\n");
    world.expect(client, "$-1\r\n$5\r\nsmall\r\n");
    world.expect(shared, get(B));
    world.send(shared, "$-1\r\n");
    // It is small again: back to the shared lane.
    world.send(client, get(A));
    world.expect(shared, get(A));
    world.send(shared, "$-1\r\n");
    world.expect(client, "$-1\r\n$-1\r\n");
    world.assert_idle();
}

#[test]
fn a_reply_that_breaks_off_closes_its_client_and_no_other() {
    let (mut world, lanes) = two_servers();
    let [a, _] = lanes_of_keys(&mut world, lanes);
    let (one, two) = (world.client(), world.client());
    world.send(one, get(A));
    world.send(two, get(A));
    world.send(a, "$1000000\r\n");
    world.send(a, vec![b'x'; 600_000]);
    assert_eq!(world.received(one).len(), 10 + 600_000);
    world.close(a, CloseReason::Reset);
    assert!(world.closed.contains(&one));
    world.expect(two, "-ERR Connection reset by peer\r\n");
    world.assert_idle();
}

#[test]
fn a_stray_reply_ends_the_connection_and_reaches_nobody() {
    let (mut world, lanes) = two_servers();
    let [a, _] = lanes_of_keys(&mut world, lanes);
    let client = world.client();
    world.send(a, "+STRAY\r\n");
    assert!(world.closed.contains(&a));
    world.send(client, "PING\r\n");
    world.expect(client, "+PONG\r\n");
    world.assert_idle();
}

#[test]
fn a_refused_server_fails_requests_at_once_and_is_tried_again() {
    let mut world = World::new(&pool(REDIS, 1));
    let client = world.client();
    world.send(client, get(A));
    world.refuse(0);
    world.expect(client, "-ERR Connection refused\r\n");
    world.send(client, get(A));
    world.expect(client, "-ERR Connection refused\r\n");
    world.wait_ms(10);
    let lane = world.accept(0);
    world.send(client, get(A));
    world.expect(lane, get(A));
    world.send(lane, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.assert_idle();
}

#[test]
fn a_server_that_does_not_connect_fails_requests_after_the_timeout() {
    let mut world = World::new(&pool(REDIS, 1));
    let client = world.client();
    world.send(client, get(A));
    world.wait_ms(399);
    world.expect(client, "");
    world.wait_ms(1);
    world.expect(client, "-ERR Connection timed out\r\n");
    world.assert_idle();
}

#[test]
fn a_timeout_fails_what_is_behind_it_on_its_connection_only() {
    let (mut world, lanes) = two_servers();
    let [a, b] = lanes_of_keys(&mut world, lanes);
    let client = world.client();
    world.send(client, get(A) + &get(B));
    world.wait_ms(300);
    let late = world.client();
    world.send(late, get(A));
    world.wait_ms(50);
    world.send(b, "$1\r\nb\r\n");
    world.wait_ms(49);
    world.expect(client, "");
    world.wait_ms(1);
    world.expect(client, "-ERR Connection timed out\r\n$1\r\nb\r\n");
    world.expect(late, "-ERR Connection timed out\r\n");
    assert!(world.closed.contains(&a) && !world.closed.contains(&b));
    world.assert_idle();
}

#[test]
fn what_was_not_sent_waits_for_the_next_connection() {
    let (mut world, lanes) = two_servers();
    let [a, _] = lanes_of_keys(&mut world, lanes);
    world.wait_ms(2000);
    let client = world.client();
    world.stuck.push(a);
    world.send(client, get(A) + &get(A) + &get(A));
    world.write_some(a, get(A).len() + 3);
    world.close(a, CloseReason::Reset);
    world.expect(client, "-ERR Connection reset by peer\r\n-ERR Connection reset by peer\r\n");
    let server = if a == lanes[0] { 0 } else { 1 };
    let again = world.accept(server);
    world.expect(again, get(A));
    world.send(again, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.assert_idle();
}

#[test]
fn auth_and_select_come_before_any_request() {
    let mut world = World::new(&pool("redis: true\nredis_auth: secret\nredis_db: 3", 1));
    let client = world.client();
    world.send(client, get(A) + "AUTH wrong\r\nAUTH secret\r\n" + &get(A));
    world.expect(
        client,
        "-NOAUTH Authentication required.\r\n\
         -WRONGPASS invalid username-password pair or user is disabled.\r\n+OK\r\n",
    );
    let lane = world.accept(0);
    world.expect(lane, "*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n");
    world.send(lane, "+OK\r\n");
    world.expect(lane, "");
    world.send(lane, "+OK\r\n");
    world.expect(lane, get(A));
    world.send(lane, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.assert_idle();
}

#[test]
fn a_server_that_refuses_the_password_gets_no_request() {
    let mut world = World::new(&pool("redis: true\nredis_auth: secret", 1));
    let client = world.client();
    world.send(client, "AUTH secret\r\n");
    world.expect(client, "+OK\r\n");
    world.send(client, get(A));
    let lane = world.accept(0);
    world.received(lane);
    world.send(lane, "-WRONGPASS no\r\n");
    world.expect(client, "-ERR Server refused AUTH or SELECT\r\n");
    world.expect(lane, "");
    world.assert_idle();
}

#[test]
fn a_greedy_client_is_paused_and_goes_on() {
    let mut world = World::new(&pool("redis: true\nclient_requests_max: 4", 1));
    let client = world.client();
    world.send(client, get(A).repeat(10));
    let lane = world.accept(0);
    assert_eq!(world.paused, [client]);
    for round in [4, 4, 2] {
        world.expect(lane, get(A).repeat(round));
        world.send(lane, "$-1\r\n".repeat(round));
        world.expect(client, "$-1\r\n".repeat(round));
    }
    assert!(world.paused.is_empty());
    world.assert_idle();
}

#[test]
fn a_client_that_does_not_read_is_paused_then_cut() {
    let options = "redis: true\nclient_output_pause: 1kb\nclient_output_max: 64kb";
    let mut world = World::new(&pool(options, 1));
    let client = world.client();
    world.send(client, get(A));
    let lane = world.accept(0);
    world.stuck.push(client);
    world.send(lane, format!("$2000\r\n{}\r\n", "x".repeat(2000)));
    world.send(client, get(A));
    assert_eq!(world.paused, [client]);
    world.stuck.clear();
    world.write(client);
    world.tick();
    assert!(world.paused.is_empty());
    world.stuck.push(client);
    world.received(lane);
    world.send(lane, format!("$100000\r\n{}\r\n", "x".repeat(100_000)));
    assert!(world.closed.contains(&client));
    world.assert_idle();
}

#[test]
fn a_full_server_queue_answers_an_error() {
    let mut world = World::new(&pool("redis: true\nserver_queue_max: 2", 1));
    let client = world.client();
    world.send(client, get(A).repeat(3));
    let lane = world.accept(0);
    world.send(lane, "$-1\r\n$-1\r\n");
    world.expect(client, "$-1\r\n$-1\r\n-ERR Server queue is full\r\n");
    world.assert_idle();
}

#[test]
fn errors_leave_the_neighbours_in_the_pipeline_alone() {
    let mut world = World::new(&pool(REDIS, 1));
    let client = world.client();
    world.send(client, get(A) + "NOSUCH x y\r\nGET\r\n" + &get(A));
    let lane = world.accept(0);
    world.expect(lane, get(A).repeat(2));
    world.send(lane, "$1\r\n1\r\n$1\r\n2\r\n");
    world.expect(
        client,
        "$1\r\n1\r\n\
         -ERR unknown command 'NOSUCH', with args beginning with: 'x' 'y' \r\n\
         -ERR wrong number of arguments for 'get' command\r\n\
         $1\r\n2\r\n",
    );
    world.assert_idle();
}

#[test]
fn a_protocol_error_is_told_after_the_replies_owed_then_the_client_is_closed() {
    let mut world = World::new(&pool(REDIS, 1));
    let client = world.client();
    world.send(client, get(A) + "*1\r\n!\r\n" + &get(A));
    let lane = world.accept(0);
    world.expect(lane, get(A));
    world.expect(client, "");
    world.send(lane, "$-1\r\n");
    world.expect(client, "$-1\r\n-ERR Protocol error: expected '$', got '!'\r\n");
    assert!(world.closed.contains(&client));
    world.assert_idle();
}

#[test]
fn quit_is_answered_and_what_follows_is_not() {
    let mut world = World::new(&pool(REDIS, 1));
    let client = world.client();
    world.send(client, "QUIT\r\nPING\r\n");
    world.expect(client, "+OK\r\n");
    assert!(world.closed.contains(&client));
}

#[test]
fn a_client_too_many_is_told_so() {
    let mut world = World::new(&pool(REDIS, 1));
    let client = world.engine.handle_accepted(ListenerId::new(0), Admission::Full, 1, world.now);
    world.tick();
    world.expect(client, "-ERR max number of clients reached\r\n");
    assert!(world.closed.contains(&client));
}

#[test]
fn a_client_without_a_descriptor_is_told_so_and_counted() {
    for (protocol, told) in [
        (REDIS, "-ERR max number of clients reached\r\n"),
        ("redis: false", "ERROR Too many open connections\r\n"),
    ] {
        let mut world = World::new(&pool(protocol, 1));
        assert_eq!(world.engine.handle_refused(ListenerId::new(0)), told.as_bytes());
        assert_eq!(world.engine.clients(), 0);
        let counted = [PoolCounter::ClientsAccepted, PoolCounter::ClientsRefused]
            .map(|counter| world.metrics.pool_counter(world.metrics.pool(0), counter));
        assert_eq!(counted, [1, 1]);
    }
}

#[test]
fn a_drain_finishes_what_is_in_flight() {
    let mut world = World::new(&pool(REDIS, 1));
    let (busy, idle) = (world.client(), world.client());
    world.send(busy, get(A));
    let lane = world.accept(0);
    world.engine.handle_drain(world.now);
    world.tick();
    assert!(world.closed.contains(&idle) && !world.engine.is_drained());
    world.send(lane, "$-1\r\n");
    world.expect(busy, "$-1\r\n");
    assert!(world.closed.contains(&busy) && world.engine.is_drained());
}

#[test]
fn a_server_is_ejected_by_agreement_and_readmitted_after_a_probe() {
    let options = "redis: true\nauto_eject_hosts: true\nserver_failure_limit: 2\n\
                   server_retry_timeout: 1000";
    let mut world = World::new(&pool(options, 2));
    let client = world.client();
    world.send(client, get(A));
    let server = if world.connects_to(0) { 0 } else { 1 };
    let other = 1 - server;
    world.refuse(server);
    world.wait_ms(10);
    world.refuse(server);
    world.expect(client, "-ERR Connection refused\r\n");
    let asked = world.actions.iter().any(
        |action| matches!(action, Action::Eject { server: ejected, .. } if *ejected == ServerId::new(server)),
    );
    assert!(asked);

    world.engine.handle_hold(BackendId::new(0), 1, 0, world.now);
    world.tick();
    assert!(world.actions.contains(&Action::Held { backend: BackendId::new(0), version: 1 }));
    world.send(client, get(A));
    let mut live = [true; 2];
    live[server as usize] = false;
    world.engine.handle_release(BackendId::new(0), 1, live.to_vec().into(), world.now, 0);
    world.tick();
    let lane = world.accept(other);
    world.expect(lane, get(A));
    world.send(lane, "$-1\r\n");
    world.expect(client, "$-1\r\n");

    world.wait_ms(1000);
    let probe = world.accept(server);
    world.expect(probe, "*1\r\n$4\r\nPING\r\n");
    world.send(probe, "-LOADING\r\n");
    assert!(!world.actions.iter().any(|action| matches!(action, Action::Readmit { .. })));
    world.wait_ms(1000);
    world.expect(probe, "*1\r\n$4\r\nPING\r\n");
    world.send(probe, "+PONG\r\n");
    assert!(
        world.actions.contains(&Action::Readmit {
            backend: BackendId::new(0),
            server: ServerId::new(server)
        })
    );
    world.engine.handle_release(BackendId::new(0), 2, vec![true; 2].into(), world.now, 0);
    world.tick();
    world.send(client, get(A));
    world.expect(probe, get(A));
    world.send(probe, "$-1\r\n");
    world.assert_idle();
}

#[test]
fn ping_takes_one_argument_at_most() {
    let mut world = World::new(&pool(REDIS, 1));
    let client = world.client();
    world.send(client, "PING\r\nPING a\r\nPING a b\r\n");
    world.expect(
        client,
        "+PONG\r\n$1\r\na\r\n-ERR wrong number of arguments for 'ping' command\r\n",
    );
}

#[test]
fn a_request_may_be_refused_before_all_of_it_is_written() {
    let mut world = World::new(&pool("timeout: 400", 1));
    let client = world.client();
    world.send(client, "get a\r\n");
    let lane = world.accept(0);
    world.send(lane, "END\r\n");
    world.expect(client, "END\r\n");
    world.received(lane);

    let set = format!("set a 0 0 100000\r\n{}\r\n", "v".repeat(100_000));
    world.stuck.push(lane);
    world.send(client, &set);
    world.send(client, "get b\r\n");
    world.write_some(lane, 1000);
    world.send(lane, "SERVER_ERROR object too large for cache\r\n");
    world.expect(client, "SERVER_ERROR object too large for cache\r\n");
    world.stuck.clear();
    world.write(lane);
    assert_eq!(world.received(lane), (set + "get b\r\n").into_bytes());
    world.send(lane, "END\r\n");
    world.expect(client, "END\r\n");
    assert!(!world.closed.contains(&lane));
    world.assert_idle();
}

#[test]
fn a_refused_request_gets_no_second_reply_while_the_rest_is_written() {
    let mut world = World::new(&pool("timeout: 400", 1));
    let client = world.client();
    world.send(client, "get a\r\n");
    let lane = world.accept(0);
    world.send(lane, "END\r\n");
    world.received(client);
    world.stuck.push(lane);
    world.send(client, format!("set a 0 0 100000\r\n{}\r\n", "v".repeat(100_000)));
    world.write_some(lane, 1000);
    world.send(lane, "SERVER_ERROR a\r\nSERVER_ERROR b\r\n");
    world.expect(client, "SERVER_ERROR a\r\n");
    assert!(world.closed.contains(&lane));
    let errors = world.metrics.pool_counter(world.metrics.pool(0), PoolCounter::ForwardError);
    assert_eq!(errors, 0);
    world.assert_idle();
}

#[test]
fn a_client_that_reads_gets_a_reply_beyond_its_output_limit() {
    let options = "redis: true\nclient_output_pause: 128kb\nclient_output_max: 256kb";
    let mut world = World::new(&pool(options, 1));
    let client = world.client();
    world.send(client, get(A));
    let lane = world.accept(0);
    let reply = format!("$1000000\r\n{}\r\n", "v".repeat(1_000_000));
    for chunk in reply.as_bytes().chunks(65_536) {
        world.send(lane, chunk);
    }
    assert!(!world.closed.contains(&client));
    assert!(world.received(client) == reply.as_bytes());
    world.assert_idle();
}

#[test]
fn who_sends_before_the_answer_is_told_from_who_waits_for_it() {
    let (mut world, lanes) = two_servers();
    let [a, _] = lanes_of_keys(&mut world, lanes);
    let before = *world.engine.activity();
    let client = world.client();
    // Several requests at once are one sending.
    for _ in 0..2 {
        world.send(client, get(A) + &get(A));
        world.expect(a, get(A) + &get(A));
        world.send(a, "$-1\r\n$-1\r\n");
        world.expect(client, "$-1\r\n$-1\r\n");
    }
    let waits = *world.engine.activity();
    assert_eq!((waits.asked - before.asked, waits.pipelined - before.pipelined), (2, 0));
    world.send(client, get(A));
    world.send(client, get(A));
    // Also if the first is no request that goes the shortest way.
    world.send(client, "*2\r\n$4\r\nMGET\r\n$1\r\na\r\n");
    let pipelined = *world.engine.activity();
    assert_eq!((pipelined.asked - waits.asked, pipelined.pipelined - waits.pipelined), (1, 2));
}

#[test]
fn who_is_answered_first_is_written_to_first() {
    let (mut world, lanes) = two_servers();
    let clients: [cashew_engine::ConnId; 5] = std::array::from_fn(|_| world.client());
    for client in clients {
        world.send(client, get(A));
    }
    let lane = lanes.into_iter().find(|&lane| !world.received(lane).is_empty()).unwrap();
    let replies = "$1\r\nx\r\n".repeat(clients.len());
    world.engine.handle_received(lane, replies.as_bytes(), world.now);
    let order: Vec<_> = std::iter::from_fn(|| world.engine.poll_dirty()).collect();
    assert_eq!(order, clients);
    order.into_iter().for_each(|client| world.write(client));
}
