//! MULTI, EXEC and WATCH: one connection for each client, and nothing done by halves.

use crate::world::{World, all, pool, redis};
use cashew_config::Snapshot;
use cashew_engine::{CloseReason, ConnId};

const OPTIONS: &str = "redis: true\nhash_tag: \"{}\"\ntimeout: 400\npreconnect: true";
const ABORTED: &str = "-EXECABORT Transaction discarded because of previous errors.\r\n";

/// `a c e` are keys of the first of the two servers, `b d f` of the second.
fn two_servers() -> (World, ConnId, [ConnId; 2]) {
    World::with_client(&pool(OPTIONS, 2))
}

fn one_server() -> (World, ConnId, ConnId) {
    let (world, client, [lane]) = World::with_client(&pool(OPTIONS, 1));
    (world, client, lane)
}

#[test]
fn a_transaction_in_one_packet_takes_one_round_trip_on_a_lane_of_its_own() {
    let (mut world, client, [shared, _]) = two_servers();
    let other = world.client();
    world.send(client, all(&["MULTI", "SET a 1", "INCR c", "EXEC", "GET a"]));
    world.expect(client, "+OK\r\n");
    let lane = world.accept(0);
    world.expect(lane, all(&["MULTI", "SET a 1", "INCR c", "EXEC"]));
    assert_eq!(world.sessions(0), 1);
    // Nobody else is kept waiting.
    world.send(other, redis("GET a"));
    world.expect(shared, redis("GET a"));
    world.send(lane, "+OK\r\n+QUEUED\r\n");
    world.expect(client, "+QUEUED\r\n");
    world.send(lane, "+QUEUED\r\n*2\r\n+OK\r\n:1\r\n");
    world.expect(client, "+QUEUED\r\n*2\r\n+OK\r\n:1\r\n");
    // What follows EXEC goes as ever, after it.
    world.expect(shared, redis("GET a"));
    world.send(shared, "$1\r\n0\r\n$1\r\n1\r\n");
    world.expect(client, "$1\r\n1\r\n");
    assert_eq!(world.sessions(0), 0);
    world.assert_idle();
    // The lane is used again, by whoever needs it.
    world.received(other);
    world.send(other, all(&["MULTI", "GET e", "EXEC"]));
    world.expect(lane, all(&["MULTI", "GET e", "EXEC"]));
    world.send(lane, "+OK\r\n+QUEUED\r\n*1\r\n$-1\r\n");
    world.expect(other, "+OK\r\n+QUEUED\r\n*1\r\n$-1\r\n");
    world.assert_idle();
}

#[test]
fn what_was_asked_before_is_not_overtaken() {
    let (mut world, client, [shared, _]) = two_servers();
    world.send(client, all(&["SET a 1", "MULTI", "GET a", "EXEC"]));
    world.expect(shared, redis("SET a 1"));
    assert!(!world.connects_to(0));
    world.send(shared, "+OK\r\n");
    let lane = world.accept(0);
    world.expect(lane, all(&["MULTI", "GET a", "EXEC"]));
    world.send(lane, "+OK\r\n+QUEUED\r\n*1\r\n$1\r\n1\r\n");
    world.expect(client, "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n$1\r\n1\r\n");
    world.assert_idle();
}

#[test]
fn commands_without_keys_wait_for_the_one_that_names_the_server() {
    let (mut world, client, _) = two_servers();
    world.send(client, redis("MULTI"));
    world.send(client, redis("PING"));
    world.send(client, redis("ECHO x"));
    world.expect(client, "+OK\r\n+QUEUED\r\n+QUEUED\r\n");
    assert!(!world.connects_to(0) && !world.connects_to(1));
    world.send(client, redis("SET b 1"));
    let lane = world.accept(1);
    world.expect(lane, all(&["MULTI", "PING", "ECHO x", "SET b 1"]));
    world.send(lane, "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n");
    world.expect(client, "+QUEUED\r\n");
    world.send(client, redis("EXEC"));
    world.expect(lane, redis("EXEC"));
    world.send(lane, "*3\r\n+PONG\r\n$1\r\nx\r\n+OK\r\n");
    world.expect(client, "*3\r\n+PONG\r\n$1\r\nx\r\n+OK\r\n");
    // Without any key some server does.
    world.send(client, all(&["MULTI", "PING", "EXEC"]));
    let lane = world.accept(0);
    world.expect(lane, all(&["MULTI", "PING", "EXEC"]));
    world.send(lane, "+OK\r\n+QUEUED\r\n*1\r\n+PONG\r\n");
    world.expect(client, "+OK\r\n+QUEUED\r\n*1\r\n+PONG\r\n");
    world.send(client, all(&["MULTI", "EXEC", "MULTI", "DISCARD"]));
    world.expect(client, "+OK\r\n*0\r\n+OK\r\n+OK\r\n");
    world.assert_idle();
}

#[test]
fn a_key_of_another_server_aborts_and_says_why() {
    let (mut world, client, _) = two_servers();
    world.send(client, all(&["MULTI", "SET a 1", "SET b 1"]));
    let lane = world.accept(0);
    world.expect(lane, all(&["MULTI", "SET a 1"]));
    world.send(lane, "+OK\r\n+QUEUED\r\n");
    world.expect(
        client,
        "+OK\r\n+QUEUED\r\n-CROSSSLOT SET 'b' is for another server than the transaction: \
         keys with the same part between { and } share a server\r\n",
    );
    world.send(client, redis("SET c 1"));
    world.expect(lane, redis("SET c 1"));
    world.send(lane, "+QUEUED\r\n");
    world.expect(client, "+QUEUED\r\n");
    world.send(client, all(&["EXEC", "GET a"]));
    world.expect(lane, redis("DISCARD"));
    world.expect(client, ABORTED);
    // The lane is taken until the server has answered.
    assert_eq!(world.sessions(0), 1);
    world.send(lane, "+OK\r\n");
    assert_eq!(world.sessions(0), 0);
}

#[test]
fn keys_of_one_command_on_two_servers_abort() {
    let (mut world, client, _) = two_servers();
    world.send(client, all(&["MULTI", "MGET a b", "GET a", "EXEC"]));
    world.expect(
        client,
        format!(
            "+OK\r\n-CROSSSLOT MGET needs its keys on one server, but 'a' and 'b' are on two: keys \
             with the same part between {{ and }} share a server\r\n+QUEUED\r\n{ABORTED}"
        ),
    );
    assert!(!world.connects_to(0), "nothing is leased for what will not be");
    world.assert_idle();
}

#[test]
fn patterns_that_may_name_keys_of_other_servers_abort() {
    let (mut world, client, _) = two_servers();
    world.send(client, all(&["MULTI", "SORT a BY w_*", "EXEC"]));
    world.expect(
        client,
        format!(
            "+OK\r\n-CROSSSLOT SORT would read keys like 'w_*', which may be on other servers: keys \
             with the same part between {{ and }} share a server\r\n{ABORTED}"
        ),
    );
    assert!(!world.connects_to(0), "nothing is leased for what will not be");
    world.assert_idle();
}

#[test]
fn what_is_wrong_is_said_while_queueing_and_aborts() {
    let (mut world, client, _) = two_servers();
    let cases = [
        ("NOPE x", "-ERR unknown command 'NOPE', with args beginning with: 'x' \r\n"),
        ("GET", "-ERR wrong number of arguments for 'get' command\r\n"),
        ("OBJECT NOPE", "-ERR unknown subcommand 'NOPE'. Try OBJECT HELP.\r\n"),
        ("SHUTDOWN", "-ERR Command not allowed inside a transaction\r\n"),
        ("SAVE", "-ERR Command not allowed inside a transaction\r\n"),
    ];
    for (line, error) in cases {
        world.send(client, all(&["MULTI", line, "EXEC", "EXEC"]));
        world.expect(client, format!("+OK\r\n{error}{ABORTED}-ERR EXEC without MULTI\r\n"));
    }
    for line in ["CLIENT ID", "SUBSCRIBE x", "DBSIZE", "HELLO 2"] {
        world.send(client, all(&["MULTI", line, "DISCARD"]));
        let said = String::from_utf8(world.received(client)).unwrap();
        assert!(said.starts_with("+OK\r\n-ERR ") && said.ends_with("\r\n+OK\r\n"), "{said}");
    }
    world.assert_idle();
}

#[test]
fn what_is_out_of_place_gets_redis_errors_and_does_not_abort() {
    let (mut world, client, _) = two_servers();
    world.send(client, all(&["EXEC", "DISCARD", "UNWATCH", "MULTI", "MULTI", "WATCH a", "EXEC"]));
    world.expect(
        client,
        "-ERR EXEC without MULTI\r\n-ERR DISCARD without MULTI\r\n+OK\r\n+OK\r\n\
         -ERR MULTI calls can not be nested\r\n-ERR WATCH inside MULTI is not allowed\r\n*0\r\n",
    );
    world.assert_idle();
}

#[test]
fn one_server_is_asked_whatever_it_may_know() {
    let (mut world, client, _) = one_server();
    world.send(client, all(&["MULTI", "DBSIZE", "SET a 1", "PUBLISH c x", "BLPOP l 0", "EXEC"]));
    let lane = world.accept(0);
    world.expect(lane, all(&["MULTI", "DBSIZE", "SET a 1", "PUBLISH c x", "BLPOP l 0", "EXEC"]));
    world.send(lane, "+OK\r\n".to_owned() + &"+QUEUED\r\n".repeat(4) + "*-1\r\n");
    world.expect(client, "+OK\r\n".to_owned() + &"+QUEUED\r\n".repeat(4) + "*-1\r\n");
    world.assert_idle();
}

#[test]
fn watching_takes_a_lane_that_has_all_for_its_server() {
    let (mut world, client, [shared, other]) = two_servers();
    world.send(client, redis("WATCH a c"));
    let lane = world.accept(0);
    world.expect(lane, redis("WATCH a c"));
    world.send(lane, "+OK\r\n");
    world.send(client, all(&["GET a", "GET b", "MGET c d", "WATCH b"]));
    world.expect(lane, all(&["GET a", "MGET c"]));
    world.expect(other, all(&["GET b", "MGET d"]));
    world.expect(shared, "");
    world.send(lane, "$1\r\n1\r\n*1\r\n$-1\r\n");
    world.send(other, "$1\r\n2\r\n*1\r\n$-1\r\n");
    world.expect(
        client,
        "+OK\r\n$1\r\n1\r\n$1\r\n2\r\n*2\r\n$-1\r\n$-1\r\n-CROSSSLOT WATCH 'b' is for another \
         server than the transaction: keys with the same part between { and } share a server\r\n",
    );
    world.send(client, all(&["MULTI", "SET a 2", "EXEC"]));
    world.expect(lane, all(&["MULTI", "SET a 2", "EXEC"]));
    world.send(lane, "+OK\r\n+QUEUED\r\n*-1\r\n");
    world.expect(client, "+OK\r\n+QUEUED\r\n*-1\r\n");
    world.send(client, redis("GET a"));
    world.expect(shared, redis("GET a"));
    world.send(shared, "$-1\r\n");
    assert_eq!(world.sessions(0), 0);
}

#[test]
fn an_empty_transaction_asks_whether_what_is_watched_has_changed() {
    let (mut world, client, _) = one_server();
    world.send(client, all(&["WATCH a", "MULTI", "EXEC"]));
    let lane = world.accept(0);
    world.expect(lane, all(&["WATCH a", "MULTI", "EXEC"]));
    world.send(lane, "+OK\r\n+OK\r\n*-1\r\n");
    world.expect(client, "+OK\r\n+OK\r\n*-1\r\n");
    world.send(client, all(&["WATCH a", "UNWATCH", "WATCH b", "MULTI", "DISCARD"]));
    world.expect(lane, all(&["WATCH a", "UNWATCH"]));
    world.send(lane, "+OK\r\n+OK\r\n");
    world.expect(lane, redis("WATCH b") + &redis("UNWATCH"));
    world.send(lane, "+OK\r\n+OK\r\n");
    world.expect(client, "+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n");
    assert_eq!(world.sessions(0), 0);
    world.assert_idle();
}

#[test]
fn who_leaves_in_the_middle_leaves_nothing_behind() {
    let (mut world, client, _) = one_server();
    world.send(client, all(&["WATCH a", "MULTI", "SET a 1"]));
    let lane = world.accept(0);
    world.expect(lane, all(&["WATCH a", "MULTI", "SET a 1"]));
    world.close(client, CloseReason::Reset);
    world.expect(lane, redis("DISCARD"));
    assert_eq!(world.sessions(0), 1);
    world.send(lane, "+OK\r\n+OK\r\n+QUEUED\r\n+OK\r\n");
    assert_eq!(world.sessions(0), 0);
    let second = world.client();
    world.send(second, redis("WATCH a"));
    world.send(lane, "+OK\r\n");
    world.received(lane);
    world.close(second, CloseReason::Eof);
    world.expect(lane, redis("UNWATCH"));
    world.send(lane, "+OK\r\n");
    let third = world.client();
    world.send(third, redis("WATCH a"));
    world.received(lane);
    world.send(third, redis("QUIT"));
    world.expect(lane, "");
    // Its answers first.
    world.send(lane, "+OK\r\n");
    world.expect(third, "+OK\r\n+OK\r\n");
    world.expect(lane, redis("UNWATCH"));
    world.send(lane, "+OK\r\n");
    assert_eq!(world.sessions(0), 0);
    world.assert_idle();
}

#[test]
fn a_lane_that_is_not_given_back_clean_is_closed() {
    let (mut world, client, _) = one_server();
    world.send(client, redis("WATCH a"));
    let lane = world.accept(0);
    world.close(client, CloseReason::Reset);
    world.expect(lane, all(&["WATCH a", "UNWATCH"]));
    world.send(lane, "+OK\r\n-ERR no\r\n");
    assert!(world.closed.contains(&lane));
    assert_eq!(world.sessions(0), 0);
    world.assert_idle();
}

#[test]
fn a_server_that_dies_is_told_of_and_nothing_is_executed_by_halves() {
    let (mut world, client, _) = one_server();
    world.send(client, all(&["MULTI", "SET a 1"]));
    let lane = world.accept(0);
    world.send(lane, "+OK\r\n+QUEUED\r\n");
    world.expect(client, "+OK\r\n+QUEUED\r\n");
    world.close(lane, CloseReason::Reset);
    world.send(client, redis("SET b 1"));
    world.expect(client, "-ERR Connection reset by peer\r\n");
    world.send(client, redis("EXEC"));
    world.expect(client, ABORTED);
    world.assert_idle();
    world.wait_ms(2000);

    // In the middle of a packet: the rest is not sent to the next connection.
    world.send(client, all(&["MULTI", "SET a 1"]));
    let lane = world.accept(0);
    world.send(lane, "+OK\r\n+QUEUED\r\n");
    world.stuck.push(lane);
    world.send(client, all(&["SET b 1", "EXEC"]));
    world.write_some(lane, 5);
    world.received(client);
    world.close(lane, CloseReason::Reset);
    world.expect(client, "-ERR Connection reset by peer\r\n-ERR Connection reset by peer\r\n");
    world.assert_idle();
    assert_eq!(world.sessions(0), 0);
}

#[test]
fn a_connection_that_ended_unnoticed_is_made_anew_for_a_whole_transaction_only() {
    let (mut world, client, _) = one_server();
    world.send(client, all(&["MULTI", "SET a 1", "EXEC"]));
    let lane = world.accept(0);
    world.send(lane, "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    world.received(lane);
    world.received(client);
    // Nothing of the second one is written when the server closes.
    world.stuck.push(lane);
    world.send(client, all(&["MULTI", "SET b 1", "EXEC"]));
    world.close(lane, CloseReason::Eof);
    let lane = world.accept(0);
    world.expect(lane, all(&["MULTI", "SET b 1", "EXEC"]));
    world.send(lane, "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    world.expect(client, "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    // With a watch it would mean something else.
    world.send(client, redis("WATCH a"));
    world.send(lane, "+OK\r\n");
    world.stuck.push(lane);
    world.received(client);
    world.send(client, all(&["MULTI", "SET b 1", "EXEC"]));
    world.close(lane, CloseReason::Eof);
    let closed = "-ERR Server closed the connection\r\n";
    world.expect(client, format!("+OK\r\n{closed}{closed}"));
    world.assert_idle();
}

#[test]
fn a_watch_that_is_lost_makes_exec_do_nothing() {
    let (mut world, client, [shared]) = {
        let (world, client, lane) = one_server();
        (world, client, [lane])
    };
    world.send(client, redis("WATCH a"));
    let lane = world.accept(0);
    world.send(lane, "+OK\r\n");
    world.close(lane, CloseReason::Eof);
    world.send(client, redis("GET a"));
    world.expect(shared, redis("GET a"));
    world.send(shared, "$-1\r\n");
    world.send(client, all(&["MULTI", "SET a 1", "EXEC", "GET a"]));
    world.expect(client, "+OK\r\n$-1\r\n+OK\r\n+QUEUED\r\n*-1\r\n");
    world.expect(shared, redis("GET a"));
    world.send(shared, "$-1\r\n");
    world.assert_idle();
}

#[test]
fn a_server_that_is_down_refuses_at_once() {
    let (mut world, client, _) = one_server();
    world.send(client, all(&["MULTI", "SET a 1", "SET b 1", "EXEC"]));
    world.refuse(0);
    let refused = "-ERR Connection refused\r\n";
    world.expect(client, format!("+OK\r\n{}", refused.repeat(3)));
    world.send(client, redis("MULTI"));
    world.send(client, redis("SET a 1"));
    world.expect(client, format!("+OK\r\n{refused}"));
    world.send(client, redis("EXEC"));
    world.expect(client, ABORTED);
    world.assert_idle();
}

#[test]
fn a_server_that_hangs_is_given_up_with_all_that_was_said() {
    let (mut world, client, shared) = one_server();
    world.send(client, all(&["MULTI", "SET a 1", "EXEC"]));
    let lane = world.accept(0);
    world.wait_ms(450);
    assert!(world.closed.contains(&lane));
    // Others it answers.
    world.expect(shared, redis("PING"));
    world.send(shared, "+PONG\r\n");
    let late = "-ERR Connection timed out\r\n";
    world.expect(client, format!("+OK\r\n{late}{late}"));
    // One that is never connected to takes as long.
    world.wait_ms(5000);
    world.send(client, redis("MULTI"));
    world.send(client, redis("SET a 1"));
    world.wait_ms(100);
    world.send(client, redis("EXEC"));
    world.wait_ms(400);
    let said = String::from_utf8(world.received(client)).unwrap();
    assert_eq!(said, format!("+OK\r\n{late}{late}"));
    world.assert_idle();
}

#[test]
fn reset_makes_a_connection_like_a_new_one() {
    let (mut world, client, _) = one_server();
    world.send(client, all(&["CLIENT SETNAME x", "WATCH a", "MULTI", "SET a 1", "RESET"]));
    let lane = world.accept(0);
    world.expect(lane, all(&["WATCH a", "MULTI", "SET a 1"]));
    world.send(lane, "+OK\r\n+OK\r\n+QUEUED\r\n");
    world.expect(lane, redis("DISCARD"));
    world.send(lane, "+OK\r\n");
    world.expect(client, "+OK\r\n+OK\r\n+OK\r\n+QUEUED\r\n+RESET\r\n");
    world.send(client, all(&["EXEC", "CLIENT GETNAME"]));
    world.expect(client, "-ERR EXEC without MULTI\r\n$-1\r\n");
    assert_eq!(world.sessions(0), 0);
    world.assert_idle();
}

#[test]
fn a_password_is_asked_for_again_after_reset() {
    let (mut world, [lane]) = World::connected(&pool(&format!("{OPTIONS}\nredis_auth: secret"), 1));
    world.expect(lane, redis("AUTH secret"));
    let client = world.client();
    world.send(client, all(&["RESET", "MULTI", "AUTH secret", "MULTI", "EXEC", "RESET", "MULTI"]));
    let refused = "-NOAUTH Authentication required.\r\n";
    world.expect(client, format!("+RESET\r\n{refused}+OK\r\n+OK\r\n*0\r\n+RESET\r\n{refused}"));
}

// Changes.

fn change(world: &mut World, next: &mut Snapshot) {
    next.epoch += 1;
    world.prepare(next);
    world.accept_all::<3>();
    world.pause(5000);
    world.commit(next);
}

#[test]
fn a_change_of_the_ring_aborts_what_is_open() {
    let (mut world, client, _) = two_servers();
    let watching = world.client();
    let early = world.client();
    world.send(client, all(&["MULTI", "SET a 1"]));
    let lane = world.accept(0);
    world.send(lane, "+OK\r\n+QUEUED\r\n");
    world.send(watching, redis("WATCH c"));
    let second = world.accept(0);
    world.send(second, "+OK\r\n");
    world.send(early, all(&["MULTI", "PING"]));
    for conn in [client, watching, early, lane, second] {
        world.received(conn);
    }
    change(&mut world, &mut pool(OPTIONS, 3));
    world.expect(lane, redis("DISCARD"));
    world.expect(second, redis("UNWATCH"));
    world.send(lane, "+OK\r\n");
    world.send(second, "+OK\r\n");
    world.send(client, all(&["SET a 2", "EXEC"]));
    world.expect(
        client,
        "+QUEUED\r\n-EXECABORT Transaction discarded because its keys may have moved to other \
         servers meanwhile.\r\n",
    );
    world.send(watching, all(&["MULTI", "SET c 2", "EXEC"]));
    world.expect(watching, "+OK\r\n+QUEUED\r\n*-1\r\n");
    // What has no server yet is not concerned.
    world.send(early, redis("EXEC"));
    world.expect(lane, all(&["MULTI", "PING", "EXEC"]));
    world.send(lane, "+OK\r\n+QUEUED\r\n*1\r\n+PONG\r\n");
    world.expect(early, "*1\r\n+PONG\r\n");
    world.assert_idle();
}

#[test]
fn a_change_of_something_else_leaves_it_alone() {
    let (mut world, client, _) = one_server();
    world.send(client, all(&["MULTI", "SET a 1"]));
    let lane = world.accept(0);
    world.send(lane, "+OK\r\n+QUEUED\r\n");
    world.received(lane);
    change(&mut world, &mut pool(&OPTIONS.replace("400", "500"), 1));
    world.send(client, redis("EXEC"));
    world.expect(lane, redis("EXEC"));
    world.send(lane, "*1\r\n+OK\r\n");
    world.expect(client, "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    world.assert_idle();
}

#[test]
fn a_server_that_is_removed_takes_its_transactions_along() {
    let (mut world, client, _) = two_servers();
    world.send(client, all(&["MULTI", "SET b 1"]));
    let lane = world.accept(1);
    world.send(lane, "+OK\r\n+QUEUED\r\n");
    world.received(client);
    change(&mut world, &mut pool(OPTIONS, 1));
    assert!(world.closed.contains(&lane));
    world.send(client, all(&["SET b 2", "EXEC", "MULTI", "EXEC"]));
    let said = String::from_utf8(world.received(client)).unwrap();
    assert!(said.starts_with("+QUEUED\r\n-EXECABORT Transaction discarded because its"), "{said}");
    assert!(said.ends_with("+OK\r\n*0\r\n"), "{said}");
    world.assert_idle();
}

#[test]
fn who_is_to_leave_finishes_first() {
    let (mut world, client, _) = one_server();
    world.send(client, all(&["MULTI", "SET a 1"]));
    let lane = world.accept(0);
    world.send(lane, "+OK\r\n+QUEUED\r\n");
    world.received(lane);
    world.engine.handle_leave(client, world.now);
    world.tick();
    assert!(!world.is_handed_off(client));
    world.send(client, all(&["SET b 1", "EXEC", "GET a"]));
    world.expect(lane, all(&["SET b 1", "EXEC"]));
    world.send(lane, "+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n");
    world.expect(client, "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n");
    assert!(world.is_handed_off(client));
    let left = world.engine.export(client, world.now).expect("it was handed off");
    assert_eq!(left.input, redis("GET a").as_bytes());
    world.assert_idle();
}
