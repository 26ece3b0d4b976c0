//! memcached's text protocol through the gateway.

use crate::world::{World, pool};
use cashew_engine::{CloseReason, ConnId};
use cashew_metrics::PoolCounter;

/// Uniques pass as they are: what becomes of them otherwise is in `memcached_uniques`.
const OPTIONS: &str = "timeout: 400\npreconnect: true\ncas_uniques: plain";

/// `a e i` are keys of the first of the four servers, `b f j` of the second, `c g k` of the third,
/// `d h l` of the fourth.
fn four_servers() -> (World, ConnId, [ConnId; 4]) {
    World::with_client(&pool(OPTIONS, 4))
}

fn count(world: &World, counter: PoolCounter) -> u64 {
    world.metrics.pool_counter(world.metrics.pool(0), counter)
}

#[test]
fn every_command_with_a_key_goes_to_its_server_as_it_is() {
    let (mut world, client, [_, b, ..]) = four_servers();
    for (request, reply) in [
        ("get b\r\n", "VALUE b 5 3\r\nxyz\r\nEND\r\n"),
        ("get b\r\n", "END\r\n"),
        ("gets b\r\n", "VALUE b 5 3 17\r\nxyz\r\nEND\r\n"),
        ("gat 10 b\r\n", "VALUE b 5 3\r\nxyz\r\nEND\r\n"),
        ("gats -1 b\r\n", "VALUE b 5 3 18446744073709551615\r\nxyz\r\nEND\r\n"),
        ("get b f\r\n", "VALUE f 0 1\r\nx\r\nEND\r\n"),
        ("set b 5 0 3\r\nxyz\r\n", "STORED\r\n"),
        ("set b 5 -1 0\r\n\r\n", "STORED\r\n"),
        ("add b 5 0 3\r\nxyz\r\n", "NOT_STORED\r\n"),
        ("replace b 5 0 3\r\nxyz\r\n", "NOT_STORED\r\n"),
        ("append b 0 0 4\r\n\r\n\0\n\r\n", "STORED\r\n"),
        ("prepend b 0 0 5\r\nEND\r\n\r\n", "STORED\r\n"),
        ("cas b 0 0 1 17\r\nx\r\n", "EXISTS\r\n"),
        ("cas b 0 0 1 17\r\nx\r\n", "NOT_FOUND\r\n"),
        ("delete b\r\n", "DELETED\r\n"),
        ("delete b\r\n", "NOT_FOUND\r\n"),
        ("incr b 7\r\n", "8\r\n"),
        ("decr b 7\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
        ("touch b 100\r\n", "TOUCHED\r\n"),
        ("touch b -1\r\n", "NOT_FOUND\r\n"),
        ("set b 0 0 1\r\nx\r\n", "SERVER_ERROR out of memory storing object\r\n"),
        ("get b\r\n", "SERVER_ERROR out of memory writing get response\r\n"),
    ] {
        world.send(client, request);
        world.expect(b, request);
        world.send(b, reply);
        world.expect(client, reply);
    }
    world.assert_idle();
}

#[test]
fn commands_are_pipelined_and_answered_in_order() {
    let (mut world, client, [a, b, ..]) = four_servers();
    world.send(client, "get a\r\nset b 0 0 1\r\nx\r\nget a b\r\nincr a 1\r\n");
    world.expect(a, "get a\r\nget a\r\nincr a 1\r\n");
    world.expect(b, "set b 0 0 1\r\nx\r\nget b\r\n");
    world.send(b, "STORED\r\nVALUE b 0 1\r\nx\r\nEND\r\n");
    world.expect(client, "");
    world.send(a, "END\r\nVALUE a 0 1\r\n5\r\nEND\r\n6\r\n");
    world.expect(client, "END\r\nSTORED\r\nVALUE a 0 1\r\n5\r\nVALUE b 0 1\r\nx\r\nEND\r\n6\r\n");
    world.assert_idle();
}

#[test]
fn noreply_is_answered_to_nobody() {
    let (mut world, client, [a, ..]) = four_servers();
    for (request, forwarded, reply) in [
        ("set a 0 0 1 noreply\r\nx\r\n", "set a 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("add a 0 0 1 noreply\r\nx\r\n", "add a 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("replace a 0 0 1 noreply\r\nx\r\n", "replace a 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("append a 0 0 1 noreply\r\nx\r\n", "append a 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("prepend a 0 0 1 noreply\r\nx\r\n", "prepend a 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("cas a 0 0 1 9 noreply\r\nx\r\n", "cas a 0 0 1 9\r\nx\r\n", "EXISTS\r\n"),
        ("delete a noreply\r\n", "delete a\r\n", "DELETED\r\n"),
        ("incr a 1 noreply\r\n", "incr a 1\r\n", "2\r\n"),
        ("decr a 1 noreply\r\n", "decr a 1\r\n", "NOT_FOUND\r\n"),
        ("touch a 1 noreply\r\n", "touch a 1\r\n", "TOUCHED\r\n"),
    ] {
        world.send(client, request);
        world.expect(a, forwarded);
        world.send(a, reply);
        world.expect(client, "");
        world.assert_idle();
    }
    assert_eq!(count(&world, PoolCounter::Requests), 10);
    assert_eq!(count(&world, PoolCounter::Responses), 10);
}

#[test]
fn an_error_of_a_noreply_request_is_not_taken_for_the_next_reply() {
    let (mut world, client, [a, b, ..]) = four_servers();
    world
        .send(client, "set a 0 0 1 noreply\r\nx\r\nget a\r\nset b 0 0 1 noreply\r\nx\r\nget b\r\n");
    world.send(b, "SERVER_ERROR out of memory storing object\r\nEND\r\n");
    world.expect(client, "");
    world.send(a, "SERVER_ERROR out of memory storing object\r\nVALUE a 0 1\r\ny\r\nEND\r\n");
    world.expect(client, "VALUE a 0 1\r\ny\r\nEND\r\nEND\r\n");
    world.assert_idle();
}

#[test]
fn a_noreply_request_that_fails_here_is_silent_too() {
    let mut world = World::new(&pool("timeout: 400", 1));
    let client = world.client();
    world.send(client, "set a 0 0 1 noreply\r\nx\r\nget a\r\n");
    world.refuse(0);
    world.expect(client, "SERVER_ERROR Connection refused\r\n");
    world.send(client, "set a 0 0 1 noreply\r\nx\r\nincr a 1 noreply\r\nversion\r\n");
    world.expect(client, "SERVER_ERROR Connection refused\r\n");
    world.assert_idle();
}

#[test]
fn a_client_that_only_sends_noreply_requests_leaves_nothing_behind() {
    let (mut world, client, [a, ..]) = four_servers();
    for _ in 0..100 {
        world.send(client, "set a 0 0 1 noreply\r\nx\r\n".repeat(100));
        world.send(a, "STORED\r\n".repeat(100));
        world.assert_idle();
    }
    world.send(client, "set a 0 0 1 noreply\r\nx\r\n");
    world.read_closed(client);
    assert!(!world.closed.contains(&client));
    world.send(a, "STORED\r\n");
    assert!(world.closed.contains(&client));
    world.assert_idle();
}

#[test]
fn bad_noreply_requests_are_silent_and_good_ones_follow() {
    let (mut world, client, [a, ..]) = four_servers();
    let long = "k".repeat(251);
    world.send(
        client,
        format!("delete {long} noreply\r\nincr a x noreply\r\ntouch a x noreply\r\n"),
    );
    world.send(client, "set a 0 0 3 noreply\r\nabcXY");
    world.expect(client, "");
    world.expect(a, "");
    world.send(client, "get a\r\n");
    world.expect(a, "get a\r\n");
    world.send(a, "END\r\n");
    world.expect(client, "END\r\n");
    world.assert_idle();
}

#[test]
fn values_of_several_servers_come_in_the_order_of_the_keys() {
    let (mut world, client, [a, b, c, d]) = four_servers();
    world.send(client, "get d a miss b e a c i\r\n");
    world.expect(a, "get a e a i\r\n");
    world.expect(b, "get miss b\r\n");
    world.expect(c, "get c\r\n");
    world.expect(d, "get d\r\n");
    world.send(c, "END\r\n");
    world.send(b, "VALUE b 1 5\r\nEND\r\n\r\nEND\r\n");
    world.send(d, "VALUE d 0 0\r\n\r\nEND\r\n");
    world.expect(client, "");
    world.send(a, "VALUE a 0 1\r\n1\r\nVALUE a 0 1\r\n2\r\nVALUE i 0 1\r\n3\r\nEND\r\n");
    world.expect(
        client,
        "VALUE d 0 0\r\n\r\nVALUE a 0 1\r\n1\r\nVALUE b 1 5\r\nEND\r\n\r\nVALUE a 0 1\r\n2\r\n\
         VALUE i 0 1\r\n3\r\nEND\r\n",
    );
    assert_eq!(count(&world, PoolCounter::Fragments), 4);
    world.assert_idle();
}

#[test]
fn a_retrieval_without_hits_is_an_end() {
    let (mut world, client, [a, b, ..]) = four_servers();
    world.send(client, "get a b a\r\n");
    world.send(a, "END\r\n");
    world.send(b, "END\r\n");
    world.expect(client, "END\r\n");
    world.assert_idle();
}

#[test]
fn uniques_and_expiry_times_survive_the_split() {
    let (mut world, client, [a, b, ..]) = four_servers();
    for (request, to_a, to_b) in [
        ("gets b a\r\n", "gets a\r\n", "gets b\r\n"),
        ("gat 60 b a\r\n", "gat 60 a\r\n", "gat 60 b\r\n"),
        ("gats -1 b a\r\n", "gats -1 a\r\n", "gats -1 b\r\n"),
        ("  gat   60   b   a  \r\n", "gat 60 a\r\n", "gat 60 b\r\n"),
        ("get b a\n", "get a\r\n", "get b\r\n"),
    ] {
        world.send(client, request);
        world.expect(a, to_a);
        world.expect(b, to_b);
        world.send(a, "VALUE a 0 1 7\r\n1\r\nEND\r\n");
        world.send(b, "VALUE b 0 1 8\r\n2\r\nEND\r\n");
        world.expect(client, "VALUE b 0 1 8\r\n2\r\nVALUE a 0 1 7\r\n1\r\nEND\r\n");
    }
    world.assert_idle();
}

#[test]
fn the_error_of_a_fragment_is_the_answer() {
    let (mut world, client, [a, b, ..]) = four_servers();
    for error in [
        "SERVER_ERROR out of memory\r\n",
        "VALUE b 0 1\r\n2\r\nSERVER_ERROR out of memory\r\n",
        "ERROR\r\n",
    ] {
        world.send(client, "get a b\r\n");
        world.send(client, "get a\r\n");
        world.send(a, "VALUE a 0 1\r\n1\r\nEND\r\n");
        world.send(b, error);
        let line = error.split_inclusive("\r\n").last().expect("a line");
        world.expect(client, line);
        world.send(a, "END\r\n");
        world.expect(client, "END\r\n");
    }
    world.assert_idle();
}

#[test]
fn values_that_nobody_asked_for_are_an_invalid_reply() {
    let (mut world, client, [a, b, ..]) = four_servers();
    for reply in ["VALUE e 0 1\r\n1\r\nEND\r\n", "VALUE a 0 1\r\n1\r\nVALUE a 0 1\r\n1\r\nEND\r\n"]
    {
        world.send(client, "get a b\r\n");
        world.send(b, "END\r\n");
        world.send(a, reply);
        world.expect(client, "SERVER_ERROR Server sent an invalid reply\r\n");
    }
    world.assert_idle();
}

/// As nutcracker does where keys of several servers are not there.
#[test]
fn values_in_another_order_than_asked_for_get_to_their_keys() {
    let (mut world, client, [a, b, ..]) = four_servers();
    let block = |key: &str, data: &str| format!("VALUE {key} 0 1\r\n{data}\r\n");
    world.send(client, "get a e b i a\r\n");
    world.expect(a, "get a e i a\r\n");
    world.send(b, block("b", "5") + "END\r\n");
    let [i, one, e, two] =
        [("i", "1"), ("a", "2"), ("e", "3"), ("a", "4")].map(|(k, d)| block(k, d));
    world.send(a, [&*i, &one, &e, &two, "END\r\n"].concat());
    world.expect(client, [one, e, block("b", "5"), i, two, "END\r\n".into()].concat());
    // Behind what is not there.
    world.send(client, "get a e b i\r\n");
    world.send(b, "END\r\n");
    world.send(a, block("i", "1") + &block("e", "2") + "END\r\n");
    world.expect(client, block("e", "2") + &block("i", "1") + "END\r\n");
    world.assert_idle();
}

#[test]
fn what_is_wrong_with_a_retrieval_changes_nothing_before_it() {
    let (mut world, client, [a, b, ..]) = four_servers();
    for (reply, answer) in [
        ("VALUE b 0 1\r\n2\r\nSERVER_ERROR x\r\n", "SERVER_ERROR x\r\n"),
        ("VALUE f 0 1\r\n2\r\nEND\r\n", "SERVER_ERROR Server sent an invalid reply\r\n"),
    ] {
        for request in ["get a b\r\n", "get b a\r\n", "get a\r\n"] {
            world.send(client, request);
        }
        world.send(a, "VALUE a 0 1\r\n1\r\nEND\r\nVALUE a 0 1\r\n1\r\nEND\r\nEND\r\n");
        world.expect(client, "");
        world.send(b, format!("VALUE b 0 1\r\n2\r\nEND\r\n{reply}"));
        let first = "VALUE a 0 1\r\n1\r\nVALUE b 0 1\r\n2\r\nEND\r\n";
        world.expect(client, format!("{first}{answer}END\r\n"));
    }
    world.assert_idle();
}

#[test]
fn a_reply_of_another_shape_ends_the_servers_connection() {
    let (mut world, client, [a, ..]) = four_servers();
    world.send(client, "get a\r\n");
    world.send(a, "STORED\r\n");
    world.expect(client, "SERVER_ERROR Server sent an invalid reply\r\n");
    assert_eq!(world.closed, [a]);
    world.assert_idle();
}

#[test]
fn a_lost_or_slow_server_fails_the_retrieval_in_memcacheds_words() {
    let (mut world, client, [a, b, ..]) = four_servers();
    world.send(client, "get a b\r\n");
    world.send(a, "VALUE a 0 1\r\n1\r\nEND\r\n");
    world.close(b, CloseReason::Reset);
    world.expect(client, "SERVER_ERROR Connection reset by peer\r\n");
    world.send(client, "get a\r\n");
    world.wait_ms(400);
    world.expect(client, "SERVER_ERROR Connection timed out\r\n");
    world.assert_idle();
}

#[test]
fn flush_all_and_verbosity_go_to_every_server() {
    let options = format!("{OPTIONS}\ncommand_policy: admin");
    let (mut world, client, lanes): (World, ConnId, [ConnId; 4]) =
        World::with_client(&pool(&options, 4));
    let fenced = "OK\r\nVERSION 1.6.18\r\n";
    for (request, forwarded, reply) in [
        ("flush_all\r\n", "flush_all\r\n", "OK\r\n"),
        ("flush_all 10\r\n", "flush_all 10\r\n", "OK\r\n"),
        ("flush_all 10 x\r\n", "flush_all 10\r\n", "OK\r\n"),
        ("verbosity 1\r\n", "verbosity 1\r\nversion\r\n", fenced),
    ] {
        world.send(client, request);
        for lane in lanes {
            world.expect(client, "");
            world.expect(lane, forwarded);
            world.send(lane, reply);
        }
        world.expect(client, "OK\r\n");
    }
    for (request, forwarded, reply) in [
        ("flush_all noreply\r\n", "flush_all\r\n", "OK\r\n"),
        ("flush_all 0 noreply\r\n", "flush_all 0\r\n", "OK\r\n"),
        ("verbosity 1 noreply\r\n", "verbosity 1\r\nversion\r\n", fenced),
    ] {
        world.send(client, request);
        for lane in lanes {
            world.expect(lane, forwarded);
            world.send(lane, reply);
        }
        world.expect(client, "");
    }
    world.assert_idle();
}

#[test]
fn a_broadcast_that_fails_on_one_server_fails() {
    let (mut world, client, [a, b, c, d]) = four_servers();
    world.send(client, "flush_all\r\nflush_all noreply\r\nget a\r\n");
    for lane in [a, c, d] {
        world.send(lane, "OK\r\nOK\r\n");
    }
    world.send(b, "CLIENT_ERROR flush_all not allowed\r\nCLIENT_ERROR flush_all not allowed\r\n");
    world.expect(client, "CLIENT_ERROR flush_all not allowed\r\n");
    world.send(a, "END\r\n");
    world.expect(client, "END\r\n");
    world.assert_idle();
}

#[test]
fn version_is_asked_of_a_server() {
    let (mut world, client, [a, ..]) = four_servers();
    world.send(client, "version\r\n");
    world.expect(a, "version\r\n");
    world.send(a, "VERSION 1.6.18\r\n");
    world.expect(client, "VERSION 1.6.18\r\n");
    world.assert_idle();
}

#[test]
fn quit_closes_when_the_replies_owed_are_written() {
    let (mut world, client, [a, b, ..]) = four_servers();
    world.send(client, "get a\r\nset b 0 0 1 noreply\r\nx\r\nquit\r\nget a\r\n");
    world.expect(a, "get a\r\n");
    assert!(!world.closed.contains(&client));
    world.send(a, "END\r\n");
    world.expect(client, "END\r\n");
    assert!(!world.closed.contains(&client));
    world.send(b, "STORED\r\n");
    assert!(world.closed.contains(&client));
    let idle = world.client();
    world.send(idle, "quit\r\n");
    world.expect(idle, "");
    assert!(world.closed.contains(&idle));
    world.assert_idle();
}

#[test]
fn what_memcached_would_refuse_is_refused_here_in_its_words() {
    let (mut world, client, lanes) = four_servers();
    let format = "CLIENT_ERROR bad command line format\r\n";
    for (request, reply) in [
        ("\r\n", "ERROR\r\n"),
        ("nosuch a\r\n", "ERROR\r\n"),
        ("get\r\n", "ERROR\r\n"),
        ("set a 0 0\r\n", "ERROR\r\n"),
        ("set a 0 0 x\r\n", format),
        ("set a 0 0 -1\r\n", format),
        ("cas a 0 0 1 x\r\nx\r\n", "CLIENT_ERROR bad command line format\r\nERROR\r\n"),
        (
            "delete a 5\r\n",
            "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n",
        ),
        ("incr a x\r\n", "CLIENT_ERROR invalid numeric delta argument\r\n"),
        ("incr a -1\r\n", "CLIENT_ERROR invalid numeric delta argument\r\n"),
        ("touch a x\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
        ("gat x a\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
        ("flush_all x\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
        ("verbosity\r\n", "ERROR\r\n"),
        ("set a 0 0 3\r\nabcXY", "CLIENT_ERROR bad data chunk\r\n"),
        ("set a 0 0 3\r\nabcd\r\n", "CLIENT_ERROR bad data chunk\r\nERROR\r\n"),
    ] {
        world.send(client, request);
        let told = world.received(client);
        let told = String::from_utf8_lossy(&told);
        // What follows a bad data chunk is read as a command, and may be one that is incomplete.
        assert_eq!(told, reply, "{request:?}");
    }
    lanes.into_iter().for_each(|lane| world.expect(lane, ""));
    world.send(client, "get a\r\n");
    world.expect(lanes[0], "get a\r\n");
    world.send(lanes[0], "END\r\n");
    world.expect(client, "END\r\n");
    world.assert_idle();
}

#[test]
fn errors_keep_their_place_in_a_pipeline() {
    let (mut world, client, [a, b, ..]) = four_servers();
    world.send(client, "get a\r\nnosuch\r\nset a 0 0 1\r\nxyz\r\nget b\r\n");
    world.expect(client, "");
    world.send(b, "END\r\n");
    world.expect(client, "");
    world.send(a, "END\r\n");
    world.expect(client, "END\r\nERROR\r\nCLIENT_ERROR bad data chunk\r\nERROR\r\nEND\r\n");
    world.assert_idle();
}

#[test]
fn keys_have_at_most_250_bytes() {
    let (mut world, client, lanes) = four_servers();
    let (longest, longer) = ("k".repeat(250), "k".repeat(251));
    for (request, reply) in [
        (format!("get {longest}\r\n"), "END\r\n"),
        (format!("set {longest} 0 0 1\r\nx\r\n"), "STORED\r\n"),
        (format!("delete {longest}\r\n"), "DELETED\r\n"),
    ] {
        world.send(client, &request);
        let lane = lanes.into_iter().find(|&lane| !world.received(lane).is_empty());
        world.send(lane.expect("it is forwarded"), reply);
        world.expect(client, reply);
    }
    for request in [
        format!("get {longer}\r\n"),
        format!("get a {longer} b\r\n"),
        format!("gat 0 {longer}\r\n"),
        format!("delete {longer}\r\n"),
        format!("incr {longer} 1\r\n"),
        format!("touch {longer} 1\r\n"),
    ] {
        world.send(client, &request);
        world.expect(client, "CLIENT_ERROR bad command line format\r\n");
    }
    lanes.into_iter().for_each(|lane| world.expect(lane, ""));
    world.assert_idle();
}

#[test]
fn a_value_that_is_too_large_is_swallowed() {
    let options = "timeout: 400\npreconnect: true\nrequest_size_max: 1kb";
    let (mut world, [a, b, ..]): (World, [ConnId; 4]) = World::connected(&pool(options, 4));
    let client = world.client();
    let value = "get a\r\n".repeat(1000);
    let set = format!("set b 0 0 {}\r\n{value}\r\n", value.len());
    for pieces in [set.len(), 1000, 7] {
        for piece in format!("get a\r\n{set}get a\r\n").as_bytes().chunks(pieces) {
            world.send(client, piece);
        }
        world.expect(a, "get a\r\nget a\r\n");
        world.send(a, "END\r\nEND\r\n");
        // As memcached does it, what was stored before is gone.
        world.expect(b, "delete b\r\n");
        world.send(b, "DELETED\r\n");
        world.expect(client, "END\r\nSERVER_ERROR object too large for cache\r\nEND\r\n");
        world.send(client, set.replace("7000", "7000 noreply"));
        world.expect(client, "");
        world.expect(b, "delete b\r\n");
        world.send(b, "NOT_FOUND\r\n");
        world.expect(client, "");
        world.assert_idle();
    }
    // Other commands leave what is stored alone.
    world.send(client, set.replacen("set", "add", 1));
    world.expect(b, "");
    world.expect(client, "SERVER_ERROR object too large for cache\r\n");
    world.assert_idle();
}

#[test]
fn a_client_that_leaves_in_the_middle_of_what_is_swallowed_is_forgotten() {
    let options = "preconnect: true\nrequest_size_max: 1kb";
    let (mut world, _): (World, [ConnId; 1]) = World::connected(&pool(options, 1));
    let client = world.client();
    world.send(client, "add b 0 0 1000000\r\nxyz");
    world.expect(client, "SERVER_ERROR object too large for cache\r\n");
    world.read_closed(client);
    assert!(world.closed.contains(&client));
    world.assert_idle();
}

#[test]
fn a_line_without_an_end_closes_the_client() {
    let (mut world, client, [a, ..]) = four_servers();
    world.send(client, format!("get a\r\ndelete {}", "x".repeat(3000)));
    world.expect(client, "");
    world.send(a, "END\r\n");
    world.expect(client, "END\r\nCLIENT_ERROR line too long\r\n");
    assert!(world.closed.contains(&client));
    world.assert_idle();
}

#[test]
fn a_browser_is_sent_away() {
    let (mut world, client, [a, ..]) = four_servers();
    world.send(client, "get a\r\nPOST / HTTP/1.1\r\n\r\nflush_all\r\n");
    world.send(a, "END\r\n");
    world.expect(client, "END\r\n");
    assert!(world.closed.contains(&client));
    let other = world.client();
    world.send(other, "GET / HTTP/1.1\r\n");
    assert!(world.closed.contains(&other));
    world.assert_idle();
}

#[test]
fn requests_and_replies_arrive_in_any_pieces() {
    let (mut world, client, [a, b, ..]) = four_servers();
    let requests =
        "set a 0 0 6 noreply\r\nab\r\ncd\r\nget a b\r\ncas b 0 0 0 1\r\n\r\nflush_all\r\n";
    for byte in requests.bytes() {
        world.send(client, [byte]);
    }
    world.expect(a, "set a 0 0 6\r\nab\r\ncd\r\nget a\r\nflush_all\r\n");
    world.expect(b, "get b\r\ncas b 0 0 0 1\r\n\r\nflush_all\r\n");
    for byte in b"STORED\r\nVALUE a 0 6\r\nab\r\ncd\r\nEND\r\nOK\r\n" {
        world.send(a, [*byte]);
    }
    for byte in b"END\r\nSTORED\r\nOK\r\n" {
        world.send(b, [*byte]);
    }
    world.expect(client, "VALUE a 0 6\r\nab\r\ncd\r\nEND\r\nSTORED\r\n");
    for server in [2, 3] {
        let lane = world.lanes[&server][0];
        world.expect(lane, "flush_all\r\n");
        world.send(lane, "OK\r\n");
    }
    world.expect(client, "OK\r\n");
    world.assert_idle();
}

#[test]
fn a_large_value_passes_in_both_directions() {
    let (mut world, client, [a, ..]) = four_servers();
    let value = "v".repeat(200_000);
    for (request, forwarded) in [("200000", "200000"), ("200000 noreply", "200000")] {
        let set = format!("set a 0 0 {request}\r\n{value}\r\nget a\r\n");
        for chunk in set.as_bytes().chunks(65_536) {
            world.send(client, chunk);
        }
        world.expect(a, format!("set a 0 0 {forwarded}\r\n{value}\r\nget a\r\n"));
        world.send(a, "STORED\r\n");
        let reply = format!("VALUE a 0 200000\r\n{value}\r\nEND\r\n");
        for chunk in reply.as_bytes().chunks(65_536) {
            world.send(a, chunk);
        }
        let status = if request.ends_with("noreply") { "" } else { "STORED\r\n" };
        world.expect(client, format!("{status}{reply}"));
    }
    world.assert_idle();
}
