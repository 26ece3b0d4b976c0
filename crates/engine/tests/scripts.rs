//! Scripts that a server has lost and gets back, unnoticed.

use std::sync::Arc;

use crate::world::{World, pool, redis};
use cashew_engine::{CloseReason, ConnId};
use cashew_metrics::{Layout, Segments};

const OPTIONS: &str = "redis: true\npreconnect: true\nhash_tag: \"{}\"";
const LOST: &str = "-NOSCRIPT No matching script. Please use EVAL.\r\n";

/// A script in one word, and its hash as the server says it.
fn script() -> (&'static str, String) {
    ("return1", sha("return1"))
}

fn sha(text: &str) -> String {
    sha1_smol::Sha1::from(text).digest().to_string()
}

/// `a e` are keys of the first of the four servers, `b f` of the second.
fn four_servers() -> (World, ConnId, [ConnId; 4]) {
    World::with_client(&pool(OPTIONS, 4))
}

#[test]
fn what_another_worker_was_told_to_flush_is_not_brought_back() {
    let snapshot = pool(OPTIONS, 1);
    let segments = Arc::new(Segments::in_memory(&Layout::new(&snapshot), 2));
    let [mut one, mut other] = [0, 1].map(|slot| World::of_worker(&snapshot, &segments, slot, 2));
    let [client, elsewhere] = [one.client(), other.client()];
    let lanes = [one.accept(0), other.accept(0)];
    let (_, sha) = script();
    one.send(client, redis("EVAL return1 1 a"));
    one.send(lanes[0], ":1\r\n");
    other.send(elsewhere, redis("SCRIPT FLUSH"));
    other.send(lanes[1], "+OK\r\n");
    let call = redis(&format!("EVALSHA {sha} 1 a"));
    one.received(client);
    one.received(lanes[0]);
    for _ in 0..2 {
        one.send(client, &call);
        one.expect(lanes[0], &call);
        one.send(lanes[0], LOST);
        one.expect(client, LOST);
    }
    // What came since is remembered as ever.
    one.send(client, redis("EVAL return1 1 a"));
    one.send(lanes[0], ":1\r\n");
    one.received(client);
    one.received(lanes[0]);
    one.send(client, &call);
    one.send(lanes[0], LOST);
    one.expect(client, "");
    one.expect(lanes[0], call.clone() + &redis("SCRIPT LOAD return1") + &call);
}

fn load(world: &mut World, client: ConnId, lanes: [ConnId; 4]) -> String {
    let (text, sha) = script();
    world.send(client, redis(&format!("SCRIPT LOAD {text}")));
    for lane in lanes {
        world.expect(lane, redis(&format!("SCRIPT LOAD {text}")));
        world.send(lane, format!("$40\r\n{sha}\r\n"));
    }
    world.expect(client, format!("$40\r\n{sha}\r\n"));
    sha
}

#[test]
fn a_script_that_was_loaded_here_is_loaded_again_where_it_is_lost() {
    let (mut world, client, lanes) = four_servers();
    let sha = load(&mut world, client, lanes);
    let [a, b, ..] = lanes;
    for name in ["EVALSHA", "EVALSHA_RO", "evalsha"] {
        let call = redis(&format!("{name} {sha} 1 a arg"));
        world.send(client, &call);
        world.expect(a, &call);
        world.send(a, LOST);
        world.expect(client, "");
        world.expect(a, redis("SCRIPT LOAD return1") + &call);
        world.send(a, format!("$40\r\n{sha}\r\n"));
        world.expect(client, "");
        world.send(a, "*1\r\n:1\r\n");
        world.expect(client, "*1\r\n:1\r\n");
    }
    // The error may come in pieces.
    let call = redis(&format!("EVALSHA {} 1 b", sha.to_uppercase()));
    world.send(client, &call);
    world.received(b);
    for piece in LOST.as_bytes().chunks(5) {
        world.send(b, piece);
    }
    world.expect(b, redis("SCRIPT LOAD return1") + &call);
    world.send(b, "$1\r\nx\r\n:7\r\n");
    world.expect(client, ":7\r\n");
    // Though nobody waits for the reply.
    let call = redis(&format!("EVALSHA {sha} 1 b"));
    world.send(client, redis("CLIENT REPLY OFF") + &call);
    world.received(b);
    for piece in LOST.as_bytes().chunks(5) {
        world.send(b, piece);
    }
    world.expect(b, redis("SCRIPT LOAD return1") + &call);
    world.send(b, "$1\r\nx\r\n:7\r\n");
    world.expect(client, "");
    world.assert_idle();
}

#[test]
fn there_is_what_a_call_would_find() {
    let (mut world, client, lanes) = four_servers();
    let (text, sha) = script();
    let none = "0".repeat(40);
    let question = redis(&format!("SCRIPT EXISTS {sha} {none} nonsense"));
    let ask = |world: &mut World, has: [u32; 4], answer: &str| {
        world.send(client, &question);
        for (lane, has) in lanes.into_iter().zip(has) {
            world.expect(lane, &question);
            world.send(lane, format!("*3\r\n:{has}\r\n:0\r\n:0\r\n"));
        }
        world.expect(client, answer);
    };
    const NOTHING: &str = "*3\r\n:0\r\n:0\r\n:0\r\n";
    const THIS: &str = "*3\r\n:1\r\n:0\r\n:0\r\n";
    // By another way than this gateway it came to one server: others will not be given it.
    ask(&mut world, [1, 0, 0, 0], NOTHING);
    ask(&mut world, [1; 4], THIS);
    world.send(client, redis(&format!("EVAL {text} 1 a")));
    world.received(lanes[0]);
    world.send(lanes[0], ":1\r\n");
    world.received(client);
    ask(&mut world, [1, 0, 0, 0], THIS);
    ask(&mut world, [0; 4], THIS);
    world.send(client, redis("SCRIPT FLUSH"));
    for lane in lanes {
        world.received(lane);
        world.send(lane, "+OK\r\n");
    }
    world.expect(client, "+OK\r\n");
    ask(&mut world, [0; 4], NOTHING);
    world.assert_idle();
}

#[test]
fn what_eval_brought_is_known_too_and_what_nobody_brought_is_not() {
    let (mut world, client, [a, b, ..]) = four_servers();
    let (text, sha) = script();
    let call = redis(&format!("EVALSHA {sha} 1 b"));
    world.send(client, &call);
    world.expect(b, &call);
    world.send(b, LOST);
    world.expect(client, LOST);
    world.send(client, redis(&format!("EVAL {text} 1 a")));
    world.received(a);
    world.send(a, ":1\r\n");
    world.expect(client, ":1\r\n");
    world.send(client, &call);
    world.expect(b, &call);
    world.send(b, LOST);
    world.expect(b, redis("SCRIPT LOAD return1") + &call);
    world.send(b, "+x\r\n:1\r\n");
    world.expect(client, ":1\r\n");
    // Who flushes scripts wants them gone.
    world.send(client, redis("SCRIPT FLUSH"));
    for lane in world.lanes.values().flatten().copied().collect::<Vec<_>>() {
        world.received(lane);
        world.send(lane, "+OK\r\n");
    }
    world.expect(client, "+OK\r\n");
    world.send(client, &call);
    world.received(b);
    world.send(b, LOST);
    world.expect(client, LOST);
    world.assert_idle();
}

#[test]
fn a_server_that_cannot_load_it_has_the_last_word() {
    let (mut world, client, lanes) = four_servers();
    let sha = load(&mut world, client, lanes);
    let a = lanes[0];
    let call = redis(&format!("EVALSHA {sha} 1 a"));
    world.send(client, &call);
    world.send(a, LOST);
    world.received(a);
    world.send(a, format!("-OOM no\r\n{LOST}"));
    world.expect(client, LOST);
    world.send(client, &call);
    world.send(a, LOST);
    world.close(a, CloseReason::Reset);
    world.expect(client, "-ERR Connection reset by peer\r\n");
    world.assert_idle();
}

/// The first call waits alone; when the server has been seen to have the script calls follow each
/// other at once.
#[test]
fn nothing_overtakes_a_call_that_may_have_to_be_repeated() {
    let (mut world, client, lanes) = four_servers();
    let sha = load(&mut world, client, lanes);
    let a = lanes[0];
    let call = redis(&format!("EVALSHA {sha} 1 a"));
    let three = call.clone() + &redis("SET a 1") + &call;
    world.send(client, &three);
    world.expect(a, &call);
    world.send(a, LOST);
    world.expect(a, redis("SCRIPT LOAD return1") + &call);
    world.send(a, "+x\r\n:1\r\n");
    world.expect(a, redis("SET a 1") + &call);
    world.send(a, "+OK\r\n:2\r\n");
    world.expect(client, ":1\r\n+OK\r\n:2\r\n");
    // It has been seen now.
    world.send(client, &three);
    world.expect(a, &three);
    world.send(a, ":3\r\n+OK\r\n:4\r\n");
    world.expect(client, ":3\r\n+OK\r\n:4\r\n");
    // Where it is lost all the same the order counts for more, and it is not believed again.
    world.send(client, &three);
    world.expect(a, &three);
    world.send(a, format!("{LOST}+OK\r\n"));
    world.expect(client, format!("{LOST}+OK\r\n"));
    world.send(a, LOST);
    world.expect(a, redis("SCRIPT LOAD return1") + &call);
    world.send(a, "+x\r\n:5\r\n");
    world.expect(client, ":5\r\n");
    world.assert_idle();
}

#[test]
fn another_connection_may_be_to_a_server_that_has_nothing() {
    let (mut world, client, lanes) = four_servers();
    let sha = load(&mut world, client, lanes);
    let call = redis(&format!("EVALSHA {sha} 1 a"));
    world.send(client, &call);
    world.send(lanes[0], ":1\r\n");
    world.expect(client, ":1\r\n");
    world.wait_ms(2000);
    world.close(lanes[0], CloseReason::Eof);
    let a = world.accept(0);
    world.send(client, call.clone() + &redis("GET a"));
    world.expect(a, &call);
    world.send(a, LOST);
    world.expect(a, redis("SCRIPT LOAD return1") + &call);
    world.send(a, "+x\r\n:1\r\n");
    world.expect(a, redis("GET a"));
    world.send(a, "$-1\r\n");
    world.expect(client, ":1\r\n$-1\r\n");
    world.assert_idle();
}

#[test]
fn large_replies_of_scripts_are_passed_on_while_they_come() {
    let (mut world, client, lanes) = four_servers();
    let sha = load(&mut world, client, lanes);
    let a = lanes[0];
    world.send(client, redis(&format!("EVALSHA {sha} 1 a")));
    world.send(a, "*50\r\n");
    let piece = format!("$20000\r\n{}\r\n", "x".repeat(20_000));
    for _ in 0..49 {
        world.send(a, &piece);
    }
    let come = world.received(client).len();
    assert!(come > 400_000, "{come}");
    world.send(a, &piece);
    assert_eq!(come + world.received(client).len(), 5 + 50 * piece.len());
    world.assert_idle();
}

#[test]
fn a_client_that_leaves_is_not_served_any_more() {
    let (mut world, client, lanes) = four_servers();
    let sha = load(&mut world, client, lanes);
    let a = lanes[0];
    world.received(a);
    world.send(client, redis(&format!("EVALSHA {sha} 1 a")));
    world.received(a);
    world.close(client, CloseReason::Eof);
    world.send(a, LOST);
    world.expect(a, "");
    let client = world.client();
    world.send(client, redis(&format!("EVALSHA {sha} 1 a")));
    world.send(a, LOST);
    world.close(client, CloseReason::Eof);
    world.send(a, "+x\r\n:1\r\n");
    world.assert_idle();
}

#[test]
fn what_comes_for_nobody_in_pieces_is_an_error_all_the_same() {
    let (mut world, client, lanes) = four_servers();
    let sha = load(&mut world, client, lanes);
    let a = lanes[0];
    let call = redis(&format!("EVALSHA {sha} 1 a"));
    for cut in 1..LOST.len() {
        let gone = world.client();
        world.send(gone, &call);
        world.received(a);
        world.close(gone, CloseReason::Eof);
        world.send(a, &LOST[..cut]);
        world.send(a, &LOST[cut..]);
        // The server has not been seen to have it: what follows waits, and it gets it.
        world.send(client, call.clone() + &redis("GET a"));
        world.expect(a, &call);
        world.send(a, LOST);
        world.expect(a, redis("SCRIPT LOAD return1") + &call);
        world.send(a, "+x\r\n");
        // It answers by another error, which tells nothing of whether it has it.
        world.send(a, "-ERR\r\n");
        world.expect(client, "-ERR\r\n");
        world.expect(a, redis("GET a"));
        world.send(a, "$-1\r\n");
        world.expect(client, "$-1\r\n");
    }
    world.assert_idle();
}

const NO_FUNCTION: &str = "-ERR Function not found\r\n";

#[test]
fn a_server_without_functions_gets_those_of_another() {
    let (mut world, client, [a, b, ..]) = four_servers();
    for call in ["FCALL f 1 b", "FCALL_RO f 1 b x"] {
        world.wait_ms(1000);
        world.send(client, redis(call) + &redis("SET b 1"));
        world.expect(b, redis(call));
        world.send(b, NO_FUNCTION);
        world.expect(client, "");
        world.expect(a, redis("FUNCTION DUMP"));
        world.expect(b, "");
        world.send(a, "$2\r\n\0d\r\n");
        world.expect(
            b,
            redis("FUNCTION RESTORE XX").replace("$2\r\nXX", "$2\r\n\0d") + &redis(call),
        );
        world.send(b, "+OK\r\n:7\r\n");
        world.expect(client, ":7\r\n");
        world.expect(b, redis("SET b 1"));
        world.send(b, "+OK\r\n");
        world.expect(client, "+OK\r\n");
    }
    // It has some now, so that calls follow each other at once.
    world.send(client, redis("FCALL f 1 b"));
    world.received(b);
    world.send(b, ":1\r\n");
    let two = redis("FCALL f 1 b") + &redis("FCALL g 1 b");
    world.send(client, &two);
    world.expect(b, &two);
    world.send(b, format!(":1\r\n{NO_FUNCTION}"));
    // The same moment as the last time: nobody is asked.
    world.expect(client, format!(":1\r\n:1\r\n{NO_FUNCTION}"));
    world.assert_idle();
}

#[test]
fn a_function_that_nobody_has_is_not_found() {
    for (dumped, restored) in [
        ("$2\r\n\0d\r\n", "+OK\r\n"),
        ("$2\r\n\0d\r\n", "-ERR Library lib already exists\r\n"),
        ("-NOPERM no\r\n", ""),
        ("$-1\r\n", ""),
    ] {
        let (mut world, client, [a, b, ..]) = four_servers();
        world.send(client, redis("FCALL f 1 b"));
        world.send(b, NO_FUNCTION);
        world.send(a, dumped);
        if !restored.is_empty() {
            world.send(b, format!("{restored}{NO_FUNCTION}"));
        }
        world.expect(client, NO_FUNCTION);
        // Not asked again at once.
        world.received(a);
        world.send(client, redis("FCALL f 1 b"));
        world.send(b, NO_FUNCTION);
        world.expect(client, NO_FUNCTION);
        world.expect(a, "");
        world.assert_idle();
    }
    let (mut world, client, [a, b, ..]) = four_servers();
    world.send(client, redis("FCALL f 1 b"));
    world.send(b, NO_FUNCTION);
    world.close(a, CloseReason::Reset);
    world.expect(client, NO_FUNCTION);
    world.assert_idle();
}

#[test]
fn a_client_that_calls_functions_may_leave_at_any_time() {
    for stage in 0..3 {
        let (mut world, client, [a, b, ..]) = four_servers();
        world.send(client, redis("FCALL f 1 b"));
        for at in 0..3 {
            if at == stage {
                world.close(client, CloseReason::Eof);
            }
            match at {
                0 => world.send(b, NO_FUNCTION),
                1 if stage > 0 => world.send(a, "$2\r\n\0d\r\n"),
                2 if stage > 1 => world.send(b, format!("+OK\r\n{NO_FUNCTION}")),
                _ => {}
            }
        }
        world.assert_idle();
    }
}

/// A script in a transaction at a server that has not been seen to have it.
fn begin_queued_call(world: &mut World, client: ConnId, lanes: [ConnId; 4]) -> (String, String) {
    let (text, sha) = script();
    world.send(client, redis(&format!("EVAL {text} 1 b")));
    world.expect(lanes[1], redis(&format!("EVAL {text} 1 b")));
    world.send(lanes[1], ":1\r\n");
    world.expect(client, ":1\r\n");
    let call = redis(&format!("EVALSHA {sha} 1 a"));
    world.send(client, redis("MULTI") + &call + &redis("EXEC"));
    world.expect(client, "+OK\r\n");
    // Nothing is queued before the script is there.
    world.expect(lanes[0], redis(&format!("SCRIPT LOAD {text}")));
    assert_eq!(world.sessions(0), 0);
    (call, sha)
}

#[test]
fn a_transaction_waits_until_its_server_has_what_it_calls() {
    let (mut world, client, lanes) = four_servers();
    let (call, sha) = begin_queued_call(&mut world, client, lanes);
    world.send(lanes[0], format!("$40\r\n{sha}\r\n"));
    let lane = world.accept(0);
    world.expect(lane, redis("MULTI") + &call + &redis("EXEC"));
    world.send(lane, "+OK\r\n+QUEUED\r\n*1\r\n:1\r\n");
    world.expect(client, "+QUEUED\r\n*1\r\n:1\r\n");
    // The connection was new, and so might the server have been. Then once is enough.
    for is_known in [false, true] {
        world.send(client, redis("MULTI") + &call + &redis("EXEC"));
        if !is_known {
            world.expect(lanes[0], redis("SCRIPT LOAD return1"));
            world.send(lanes[0], format!("$40\r\n{sha}\r\n"));
        }
        world.expect(lane, redis("MULTI") + &call + &redis("EXEC"));
        world.send(lane, "+OK\r\n+QUEUED\r\n*1\r\n:1\r\n");
        world.expect(client, "+OK\r\n+QUEUED\r\n*1\r\n:1\r\n");
    }
    world.assert_idle();
}

#[test]
fn a_script_that_cannot_be_given_is_for_the_server_to_miss() {
    let (mut world, client, lanes) = four_servers();
    let (call, _) = begin_queued_call(&mut world, client, lanes);
    world.send(lanes[0], "-OOM command not allowed\r\n");
    let lane = world.accept(0);
    world.expect(lane, redis("MULTI") + &call + &redis("EXEC"));
    world.send(lane, format!("+OK\r\n+QUEUED\r\n*1\r\n{LOST}"));
    world.expect(client, format!("+QUEUED\r\n*1\r\n{LOST}"));
    world.assert_idle();
}

#[test]
fn who_waits_for_a_script_to_be_given_may_go_and_so_may_the_server() {
    let (mut world, client, lanes) = four_servers();
    let (call, sha) = begin_queued_call(&mut world, client, lanes);
    world.close(client, CloseReason::Eof);
    world.send(lanes[0], format!("$40\r\n{sha}\r\n"));
    let client = world.client();
    world.send(client, redis("MULTI") + &call + &redis("EXEC"));
    let lane = world.accept(0);
    world.expect(lane, redis("MULTI") + &call + &redis("EXEC"));
    world.send(lane, "+OK\r\n+QUEUED\r\n*1\r\n:1\r\n");
    world.expect(client, "+OK\r\n+QUEUED\r\n*1\r\n:1\r\n");

    let (mut world, client, lanes) = four_servers();
    let (call, _) = begin_queued_call(&mut world, client, lanes);
    world.close(lanes[0], CloseReason::Eof);
    let lane = world.accept(0);
    world.expect(lane, redis("MULTI") + &call + &redis("EXEC"));
    world.send(lane, format!("+OK\r\n+QUEUED\r\n*1\r\n{LOST}"));
    world.expect(client, format!("+QUEUED\r\n*1\r\n{LOST}"));
}
