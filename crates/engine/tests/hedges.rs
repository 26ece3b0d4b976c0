//! Reads that take long are sent to a second server: `hedge`.

use crate::world::{World, redis, snapshot};
use cashew_config::Snapshot;
use cashew_engine::{CloseReason, ConnId};
use cashew_metrics::PoolCounter;

const LOADING: &str = "-LOADING Redis is loading the dataset in memory\r\n";
const VALUE: &str = "$1\r\nx\r\n";
const NOBODY: [usize; 0] = [];

/// By the order of their names: of `s1` the primary and two replicas.
const PRIMARY: usize = 0;

fn group(options: &str) -> Snapshot {
    snapshot(&format!(
        "p:\n  listen: 127.0.0.1:6000\n  redis: true\n  timeout: 400\n  preconnect: true\n  hide_topology: true\n\
         \x20 pipeline_start: 0\n{options}  servers:\n\
         \x20  - {{name: s1, primary: 127.0.0.1:7001, replicas: [127.0.0.1:7002, 127.0.0.1:7003]}}\n"
    ))
}

fn hedged(reads: &str) -> (World, ConnId, [ConnId; 3]) {
    World::with_client(&group(&format!("  reads: {reads}\n  hedge: {{after: 3ms}}\n")))
}

/// Sent, won and denied.
fn counts(world: &World) -> [u64; 3] {
    let pool = world.metrics.pool(0);
    [PoolCounter::HedgesSent, PoolCounter::HedgesWon, PoolCounter::HedgesDenied]
        .map(|counter| world.metrics.pool_counter(pool, counter))
}

/// Who has got a request.
#[track_caller]
fn takers(world: &mut World, lanes: &[ConnId], request: &str) -> Vec<usize> {
    let got = |world: &mut World, lane: ConnId| {
        let bytes = world.received(lane);
        assert!(bytes.is_empty() || bytes == request.as_bytes(), "{bytes:?}");
        !bytes.is_empty()
    };
    (0..lanes.len()).filter(|&at| got(world, lanes[at])).collect()
}

#[track_caller]
fn taker(world: &mut World, lanes: &[ConnId], request: &str) -> usize {
    let takers = takers(world, lanes, request);
    assert_eq!(takers.len(), 1, "{takers:?}");
    takers[0]
}

/// A read that is on its way to two servers: the first and the second.
#[track_caller]
fn sent_twice(
    world: &mut World,
    client: ConnId,
    lanes: &[ConnId],
    request: &str,
) -> (ConnId, ConnId) {
    world.send(client, request);
    let first = taker(world, lanes, request);
    world.wait_ms(2);
    assert_eq!(takers(world, lanes, request), NOBODY, "it has not waited long enough");
    world.wait_ms(1);
    let second = taker(world, lanes, request);
    assert_ne!(first, second);
    (lanes[first], lanes[second])
}

#[test]
fn the_first_reply_wins_and_the_other_is_nobodys() {
    let get = redis("GET a");
    let (mut world, client, lanes) = hedged("prefer_replica");
    let (first, second) = sent_twice(&mut world, client, &lanes, &get);
    world.send(second, VALUE);
    world.expect(client, VALUE);
    assert_eq!(counts(&world), [1, 1, 0]);
    world.send(first, "$1\r\ny\r\n");
    world.expect(client, "");
    world.assert_idle();

    let (mut world, client, lanes) = hedged("prefer_replica");
    let (first, second) = sent_twice(&mut world, client, &lanes, &get);
    world.send(first, VALUE);
    world.expect(client, VALUE);
    world.send(second, "$1\r\ny\r\n");
    world.expect(client, "");
    assert_eq!(counts(&world), [1, 0, 0]);
    world.assert_idle();
    // In pieces, too, and with what comes behind.
    let (first, second) = sent_twice(&mut world, client, &lanes, &get);
    let other = world.client();
    world.send(other, &get);
    let taker = lanes[taker(&mut world, &lanes, &get)];
    world.send(second, "$1");
    world.send(first, "$1\r");
    world.send(first, "\ny\r\n");
    world.expect(client, "");
    world.send(second, "\r\nx\r\n");
    world.expect(client, VALUE);
    world.send(taker, "$1\r\nz\r\n");
    world.expect(other, "$1\r\nz\r\n");
    assert_eq!(counts(&world), [2, 1, 0]);
    world.assert_idle();
}

#[test]
fn an_error_never_wins_while_the_other_may_answer() {
    let get = redis("GET a");
    for error in [LOADING, "-ERR whatever\r\n", "-MASTERDOWN Link with MASTER is down\r\n"] {
        for is_second in [false, true] {
            let (mut world, client, lanes) = hedged("prefer_replica");
            let (first, second) = sent_twice(&mut world, client, &lanes, &get);
            let (bad, good) = if is_second { (second, first) } else { (first, second) };
            world.send(bad, &error[..3]);
            world.send(bad, &error[3..]);
            world.expect(client, "");
            world.send(good, VALUE);
            world.expect(client, VALUE);
            assert_eq!(counts(&world), [1, u64::from(!is_second), 0]);
            world.assert_idle();
        }
    }
    // The last one's error is the answer.
    let (mut world, client, lanes) = hedged("prefer_replica");
    let (first, second) = sent_twice(&mut world, client, &lanes, &get);
    world.send(first, "-ERR one\r\n");
    world.send(second, "-ERR two\r\n");
    world.expect(client, "-ERR two\r\n");
    world.assert_idle();
    // What the last one refuses to run goes on with another.
    let (first, second) = sent_twice(&mut world, client, &lanes, &get);
    world.send(second, LOADING);
    world.send(first, LOADING);
    world.expect(client, "");
    let third = taker(&mut world, &lanes, &get);
    world.send(lanes[third], VALUE);
    world.expect(client, VALUE);
}

#[test]
fn a_server_that_fails_is_out_of_it() {
    let get = redis("GET a");
    for is_second in [false, true] {
        let (mut world, client, lanes) = hedged("prefer_replica");
        let (first, second) = sent_twice(&mut world, client, &lanes, &get);
        let (bad, good) = if is_second { (second, first) } else { (first, second) };
        world.close(bad, CloseReason::Reset);
        world.expect(client, "");
        world.send(good, VALUE);
        world.expect(client, VALUE);
        let failed = world.metrics.pool_counter(world.metrics.pool(0), PoolCounter::ForwardError);
        assert_eq!(failed, 0);
        world.assert_idle();
    }
    let (mut world, client, lanes) = hedged("prefer_replica");
    let (first, second) = sent_twice(&mut world, client, &lanes, &get);
    world.close(second, CloseReason::Reset);
    world.close(first, CloseReason::Eof);
    world.expect(client, "-ERR Server closed the connection\r\n");
    let failed = world.metrics.pool_counter(world.metrics.pool(0), PoolCounter::ForwardError);
    assert_eq!(failed, 1, "once");
    world.assert_idle();
}

#[test]
fn a_client_that_goes_leaves_nothing_behind() {
    let (mut world, client, lanes) = hedged("prefer_replica");
    let (first, second) = sent_twice(&mut world, client, &lanes, &redis("GET a"));
    world.close(client, CloseReason::Reset);
    world.send(second, VALUE);
    world.send(first, VALUE);
    world.assert_idle();
    let client = world.client();
    let (first, second) = sent_twice(&mut world, client, &lanes, &redis("GET a"));
    world.close(client, CloseReason::Reset);
    world.close(first, CloseReason::Reset);
    world.close(second, CloseReason::Reset);
    world.assert_idle();
}

#[test]
fn answers_pay_for_them_so_that_what_is_slow_everywhere_is_not_asked_twice() {
    let get = redis("GET a");
    let (mut world, _, lanes) = hedged("any");
    let clients: Vec<ConnId> = (0..40).map(|_| world.client()).collect();
    for &client in &clients {
        world.send(client, &get);
    }
    world.wait_ms(3);
    let [sent, _, denied] = counts(&world);
    assert_eq!((sent, sent + denied), (9, 40), "a burst, and no more");
    world.wait_ms(100);
    assert_eq!(counts(&world), [sent, 0, denied], "each is looked at once");
    for lane in lanes {
        let asked = world.received(lane).len() / get.len();
        world.send(lane, VALUE.repeat(asked));
    }
    for &client in &clients {
        world.expect(client, VALUE);
    }
    world.assert_idle();
    // 49 answers, of which 9 had no part in it: two more.
    let (mut sent, before) = (0, counts(&world)[0]);
    for &client in &clients[..10] {
        world.send(client, &get);
    }
    world.wait_ms(3);
    sent += counts(&world)[0] - before;
    assert!((2..=3).contains(&sent), "{sent}");
}

#[test]
fn only_reads_are_and_none_that_has_begun_to_be_answered() {
    let (mut world, client, lanes) = hedged("prefer_replica");
    for request in ["INCR a", "SET a 1", "EVAL x 1 a", "HSCAN a 0", "SORT a STORE b"] {
        world.send(client, redis(request));
        world.wait_ms(50);
        world.expect(lanes[PRIMARY], redis(request));
        world.send(lanes[PRIMARY], ":1\r\n");
        world.expect(client, ":1\r\n");
    }
    world.send(client, redis("GET a"));
    let taker = taker(&mut world, &lanes, &redis("GET a"));
    world.send(lanes[taker], "$");
    world.wait_ms(50);
    world.send(lanes[taker], "1\r\nx\r\n");
    world.expect(client, VALUE);
    assert_eq!(counts(&world), [0, 0, 0]);
    world.assert_idle();
}

#[test]
fn a_read_overtakes_no_write_of_its_client_and_none_overtakes_it() {
    let (get, set) = (redis("GET a"), redis("SET a 1"));
    // In front of it.
    let (mut world, client, lanes) = hedged("prefer_primary");
    world.send(client, set.clone() + &get);
    world.expect(lanes[PRIMARY], set.clone() + &get);
    world.wait_ms(50);
    assert_eq!(takers(&mut world, &lanes, &get), NOBODY);
    world.send(lanes[PRIMARY], format!("+OK\r\n{VALUE}"));
    world.expect(client, format!("+OK\r\n{VALUE}"));
    // Behind it.
    world.send(client, get.clone() + &set);
    world.expect(lanes[PRIMARY], get.clone() + &set);
    world.wait_ms(50);
    assert_eq!(takers(&mut world, &lanes, &get), NOBODY);
    world.send(lanes[PRIMARY], format!("{VALUE}+OK\r\n"));
    world.expect(client, format!("{VALUE}+OK\r\n"));
    assert_eq!(counts(&world), [0, 0, 0]);
    // Behind it, after it was sent twice: not before it is answered.
    let (first, second) = sent_twice(&mut world, client, &lanes, &get);
    assert_eq!(first, lanes[PRIMARY]);
    world.send(client, &set);
    world.wait_ms(50);
    world.expect(lanes[PRIMARY], "");
    world.send(second, VALUE);
    world.expect(client, VALUE);
    world.expect(lanes[PRIMARY], &set);
    world.send(first, format!("{VALUE}+OK\r\n"));
    world.expect(client, "+OK\r\n");
    world.assert_idle();
}

#[test]
fn a_write_that_waits_after_a_refusal_is_not_overtaken() {
    let options = "  reads: prefer_primary\n  failover_wait: 300\n  hedge: {after: 3ms}\n";
    let (mut world, client, lanes) = World::with_client::<3>(&group(options));
    world.send(client, redis("SET a 1") + &redis("GET a"));
    world.received(lanes[PRIMARY]);
    world.send(lanes[PRIMARY], "-READONLY You can't write against a read only replica.\r\n");
    world.wait_ms(40);
    assert_eq!(takers(&mut world, &lanes[1..], &redis("GET a")), NOBODY);
    assert_eq!(counts(&world), [0, 0, 0]);
}

#[test]
fn own_writes_are_read() {
    let options = "  reads: prefer_primary\n  read_your_writes: 100ms\n  hedge: {after: 3ms}\n";
    let (mut world, client, lanes) = World::with_client::<3>(&group(options));
    world.send(client, redis("SET a 1"));
    world.expect(lanes[PRIMARY], redis("SET a 1"));
    world.send(lanes[PRIMARY], "+OK\r\n");
    world.send(client, redis("GET a"));
    world.expect(lanes[PRIMARY], redis("GET a"));
    world.wait_ms(50);
    assert_eq!(takers(&mut world, &lanes, &redis("GET a")), NOBODY, "no replica has it yet");
    world.send(lanes[PRIMARY], VALUE);
    world.expect(client, format!("+OK\r\n{VALUE}"));
    world.wait_ms(100);
    sent_twice(&mut world, client, &lanes, &redis("GET a"));
}

#[test]
fn parts_of_a_split_read_are_sent_twice_each() {
    let text = "pools:\n  p:\n    listen: 127.0.0.1:6000\n    redis: true\n    preconnect: true\n    hide_topology: true\n\
         \x20   distribution: modula\n    reads: prefer_replica\n    hedge: {after: 3ms}\n    servers:\n\
         \x20   - {name: s0, primary: 127.0.0.1:7000, replicas: [127.0.0.1:7001]}\n\
         \x20   - {name: s1, primary: 127.0.0.1:7002, replicas: [127.0.0.1:7003]}\n";
    let (mut world, client, lanes) = World::with_client::<4>(&snapshot(text));
    world.send(client, redis("MGET a b c d e f"));
    let [_, first, _, second] = lanes;
    let (one, two) = (world.received(first), world.received(second));
    assert!(!one.is_empty() && !two.is_empty());
    world.wait_ms(3);
    world.expect(lanes[0], &one);
    world.expect(lanes[2], &two);
    let reply = |request: &[u8]| {
        let words = String::from_utf8_lossy(request).matches('$').count() - 1;
        format!("*{words}\r\n{}", VALUE.repeat(words))
    };
    world.send(first, LOADING);
    world.send(lanes[2], &reply(&two)[..2]);
    world.send(second, &reply(&two)[..3]);
    world.send(lanes[2], &reply(&two)[2..]);
    world.send(second, &reply(&two)[3..]);
    world.expect(client, "");
    world.send(lanes[0], reply(&one));
    world.expect(client, format!("*6\r\n{}", VALUE.repeat(6)));
    assert_eq!(counts(&world), [2, 2, 0]);
    world.assert_idle();
}

#[test]
fn a_large_reply_is_passed_on_as_it_comes() {
    let (mut world, client, lanes) = hedged("prefer_replica");
    let (first, second) = sent_twice(&mut world, client, &lanes, &redis("GET a"));
    let size = 4 << 20;
    let reply = format!("${size}\r\n{}\r\n", "x".repeat(size));
    let (start, rest) = reply.split_at(reply.len() / 2);
    world.send(second, start);
    world.send(first, start);
    let passed_on = world.received(client);
    assert!(passed_on.len() > size / 4, "{}", passed_on.len());
    world.send(second, rest);
    world.send(first, rest);
    let all = [passed_on, world.received(client)].concat();
    assert!(all == reply.as_bytes());
    world.assert_idle();
}

#[test]
fn who_takes_long_is_passed_by() {
    let get = redis("GET a");
    let (mut world, client, lanes) = hedged("prefer_replica");
    let mut taken = [0; 3];
    let slow = 1;
    for _ in 0..300 {
        world.send(client, &get);
        let first = taker(&mut world, &lanes, &get);
        taken[first] += 1;
        if first == slow {
            world.wait_ms(3);
            for second in takers(&mut world, &lanes, &get) {
                world.send(lanes[second], VALUE);
            }
            world.wait_ms(17);
        } else {
            world.wait_ms(1);
        }
        world.send(lanes[first], VALUE);
        world.expect(client, VALUE);
    }
    assert_eq!(taken[PRIMARY], 0);
    assert!((1..=6).contains(&taken[slow]), "{taken:?}");
    // It is asked now and then, and is well again some time.
    for _ in 0..60 {
        world.wait_ms(1000);
        for _ in 0..3 {
            world.send(client, &get);
            let first = taker(&mut world, &lanes, &get);
            world.send(lanes[first], VALUE);
            world.expect(client, VALUE);
        }
    }
    let mut taken = [0; 3];
    for _ in 0..10 {
        world.send(client, &get);
        let first = taker(&mut world, &lanes, &get);
        taken[first] += 1;
        world.send(lanes[first], VALUE);
        world.expect(client, VALUE);
    }
    assert_eq!(taken[slow], 5);
}

#[test]
fn those_that_are_all_slow_are_asked_in_turn() {
    let get = redis("GET a");
    let (mut world, client, lanes) = hedged("prefer_replica");
    let mut taken = [0; 3];
    for _ in 0..60 {
        world.send(client, &get);
        let first = taker(&mut world, &lanes, &get);
        taken[first] += 1;
        world.wait_ms(20);
        for second in takers(&mut world, &lanes, &get) {
            world.send(lanes[second], VALUE);
        }
        world.send(lanes[first], VALUE);
        world.expect(client, VALUE);
    }
    assert!(taken[1] > 20 && taken[2] > 20, "{taken:?}");
}

#[test]
fn copies_of_memcached_are_asked_likewise() {
    let text = |options: &str| {
        snapshot(&format!(
            "p:\n  listen: 127.0.0.1:6000\n  timeout: 400\n  preconnect: true\n  hide_topology: true\n\
             \x20 hedge: {{after: 3ms}}\n{options}  servers:\n\
             \x20  - {{name: s1, primary: 127.0.0.1:7001, replicas: [127.0.0.1:7002]}}\n"
        ))
    };
    let hit = "VALUE k 0 1\r\nx\r\nEND\r\n";
    for options in ["", "  reads: any\n", "  on_failure: miss\n"] {
        let (mut world, client, lanes) = World::with_client::<2>(&text(options));
        for (request, sent, reply, answer) in [
            ("get k\r\n", "get k\r\n", hit, hit),
            ("get k l\r\n", "get k l\r\n", hit, hit),
            ("mg k v\r\n", "mg k v\r\n", "VA 1\r\nx\r\n", "VA 1\r\nx\r\n"),
            ("mg k v q\r\nmn\r\n", "mg k v\r\n", "EN\r\n", "MN\r\n"),
        ] {
            world.send(client, request);
            let first = taker(&mut world, &lanes, sent);
            world.wait_ms(3);
            let second = taker(&mut world, &lanes, sent);
            world.send(lanes[first], "SERVER_ERROR out of memory\r\n");
            world.expect(client, "");
            world.send(lanes[second], reply);
            world.expect(client, answer);
            world.assert_idle();
        }
        // What has a unique is for the one that judges writes by it; writes are nobody's to repeat.
        for request in ["gets k\r\n", "mg k c\r\n"] {
            world.send(client, request);
            let first = taker(&mut world, &lanes, request);
            world.wait_ms(50);
            assert_eq!(takers(&mut world, &lanes, request), NOBODY, "{request}");
            world.send(
                lanes[first],
                "EN\r\n".replace("EN", if request.starts_with('g') { "END" } else { "EN" }),
            );
            world.received(client);
        }
        world.send(client, "set k 0 0 1\r\nx\r\nget k\r\n");
        world.wait_ms(50);
        for lane in lanes {
            let gets = String::from_utf8_lossy(&world.received(lane)).matches("get k").count();
            world.send(lane, format!("STORED\r\n{}", hit.repeat(gets)));
        }
        world.expect(client, format!("STORED\r\n{hit}"));
        assert_eq!(counts(&world), [4, 4, 0], "{options}");
        world.assert_idle();
        // Both fail.
        world.send(client, "get k\r\n");
        world.wait_ms(3);
        for lane in lanes {
            world.close(lane, CloseReason::Reset);
        }
        let miss = options.contains("miss");
        world.expect(
            client,
            if miss { "END\r\n" } else { "SERVER_ERROR Connection reset by peer\r\n" },
        );
    }
}

#[test]
fn without_the_option_nothing_is_sent_twice() {
    let (mut world, client, lanes) = World::with_client::<3>(&group("  reads: prefer_replica\n"));
    world.send(client, redis("GET a"));
    let first = taker(&mut world, &lanes, &redis("GET a"));
    world.wait_ms(300);
    assert_eq!(takers(&mut world, &lanes, &redis("GET a")), NOBODY);
    world.send(lanes[first], VALUE);
    world.expect(client, VALUE);
}
