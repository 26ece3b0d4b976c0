//! Requests that a server refuses to run are sent again where `failover_wait` lets them, and reads go to
//! another member of the group.

use crate::world::{World, pool, redis, snapshot};
use cashew_config::Snapshot;
use cashew_config::snapshot::{Promoted, TopologyState};
use cashew_engine::{Action, BackendId, CloseReason, ConnId};
use cashew_metrics::PoolCounter;

const LOADING: &str = "-LOADING Redis is loading the dataset in memory\r\n";
const READONLY: &str = "-READONLY You can't write against a read only replica.\r\n";
const SLAVE: &str = "*5\r\n$5\r\nslave\r\n$9\r\n127.0.0.1\r\n:7001\r\n$9\r\nconnected\r\n:9\r\n";
const MASTER: &str = "*3\r\n$6\r\nmaster\r\n:9\r\n*0\r\n";

fn waiting(options: &str, servers: usize) -> Snapshot {
    pool(&format!("redis: true\npreconnect: true\nfailover_wait: 1000\n{options}"), servers)
}

fn one(options: &str) -> (World, ConnId, ConnId) {
    let (world, client, [lane]) = World::with_client(&waiting(options, 1));
    (world, client, lane)
}

/// The lane is closed and asks on its next connection; returns that.
#[track_caller]
fn asked(world: &mut World, server: u32, question: &str) -> ConnId {
    for _ in 0..40 {
        if world.connects_to(server) {
            let lane = world.accept(server);
            world.expect(lane, redis(question));
            return lane;
        }
        world.wait_ms(5);
    }
    panic!("nobody tries server {server} again");
}

fn retried(world: &World) -> u64 {
    world.metrics.pool_counter(world.metrics.pool(0), PoolCounter::RequestsRetried)
}

#[test]
fn what_a_loading_server_refuses_waits_and_is_sent_again_in_order() {
    let (mut world, client, lane) = one("");
    let other = world.client();
    world.send(client, redis("SET a 1") + &redis("APPEND a 2"));
    world.send(other, redis("INCR b"));
    world.received(lane);
    // In pieces.
    world.send(lane, &LOADING[..5]);
    world.send(lane, &LOADING[5..]);
    // What comes meanwhile stands behind it, and nothing is sent.
    world.send(client, redis("GET a"));
    world.expect(lane, "");
    world.send(lane, LOADING.repeat(2));
    world.expect(client, "");
    world.expect(other, "");
    for _ in 0..3 {
        let lane = asked(&mut world, 0, "PING");
        world.send(lane, LOADING);
    }
    let lane = asked(&mut world, 0, "PING");
    world.send(lane, "+PONG\r\n");
    let again = redis("SET a 1") + &redis("APPEND a 2") + &redis("INCR b") + &redis("GET a");
    world.expect(lane, again);
    world.send(lane, "+OK\r\n:2\r\n:1\r\n$2\r\n12\r\n");
    world.expect(client, "+OK\r\n:2\r\n$2\r\n12\r\n");
    world.expect(other, ":1\r\n");
    assert_eq!(retried(&world), 3);
    world.assert_idle();
}

#[test]
fn what_is_refused_in_vain_fails_when_its_time_is_up() {
    for (said, options, longest) in [
        (LOADING, "", 1000),
        (LOADING, "timeout: 400", 400),
        (READONLY, "", 1000),
        ("-REDIRECT 127.0.0.1:7001\r\n", "", 1000),
    ] {
        let (mut world, client, lane) = one(options);
        world.send(client, redis("SET a 1"));
        world.received(lane);
        world.send(lane, said);
        let (question, answer) = if said == LOADING { ("PING", LOADING) } else { ("ROLE", SLAVE) };
        let refuse_for = |world: &mut World, millis: u64| {
            for _ in 0..millis / 5 {
                if world.connects_to(0) {
                    let lane = world.accept(0);
                    world.expect(lane, redis(question));
                    world.send(lane, answer);
                }
                world.wait_ms(5);
            }
        };
        refuse_for(&mut world, longest - 60);
        world.expect(client, "");
        refuse_for(&mut world, 120);
        world.expect(client, if said == LOADING { LOADING } else { READONLY });
        world.assert_idle();
    }
}

#[test]
fn the_master_hears_that_a_primary_is_none_and_not_too_often() {
    let (mut world, client, lane) = one("");
    let told = |world: &mut World| {
        let actions = std::mem::take(&mut world.actions);
        actions.iter().filter(|it| matches!(it, Action::NotPrimary { .. })).count()
    };
    world.send(client, redis("SET a 1"));
    world.received(lane);
    world.send(lane, LOADING);
    assert_eq!(told(&mut world), 0);
    let lane = asked(&mut world, 0, "PING");
    world.send(lane, "+PONG\r\n");
    world.received(lane);
    world.send(lane, READONLY);
    assert_eq!(told(&mut world), 1);
    let (mut times, begin) = (0, world.now);
    while world.now - begin < std::time::Duration::from_millis(500) {
        if world.connects_to(0) {
            let lane = world.accept(0);
            world.send(lane, SLAVE);
        }
        world.wait_ms(5);
        times += told(&mut world);
    }
    assert!((2..=5).contains(&times), "{times}");
}

#[test]
fn a_request_that_ran_behind_a_refused_one_is_not_overtaken() {
    let (mut world, client, lane) = one("");
    let other = world.client();
    world.send(client, redis("SET a 1"));
    world.send(other, redis("SET b 1"));
    world.send(client, redis("SET a 2"));
    world.received(lane);
    world.send(lane, LOADING.repeat(2));
    world.send(lane, "+OK\r\n");
    // The first has to fail, the other client's is sent again.
    world.expect(client, LOADING.to_owned() + "+OK\r\n");
    let lane = asked(&mut world, 0, "PING");
    world.send(lane, "+PONG\r\n");
    world.expect(lane, redis("SET b 1"));
    world.send(lane, "+OK\r\n");
    world.expect(other, "+OK\r\n");
    world.assert_idle();
}

#[test]
fn a_read_that_ran_behind_a_refused_write_is_made_anew() {
    let (mut world, client, lane) = one("");
    world.send(client, redis("SET a 1") + &redis("GET a") + &redis("SET a 3"));
    world.received(lane);
    world.send(lane, READONLY.to_owned() + "$1\r\n0\r\n" + READONLY);
    let lane = asked(&mut world, 0, "ROLE");
    world.send(lane, MASTER);
    world.expect(lane, redis("SET a 1") + &redis("GET a") + &redis("SET a 3"));
    world.send(lane, "+OK\r\n$1\r\n1\r\n+OK\r\n");
    world.expect(client, "+OK\r\n$1\r\n1\r\n+OK\r\n");
    world.assert_idle();
}

#[test]
fn what_may_have_run_behind_a_refused_one_fails_and_so_does_that() {
    let (mut world, client, lane) = one("");
    let other = world.client();
    world.send(client, redis("SET a 1"));
    world.send(other, redis("SET b 1"));
    world.send(client, redis("SET a 2"));
    world.received(lane);
    world.send(lane, LOADING.repeat(2));
    world.close(lane, CloseReason::Reset);
    world.expect(client, LOADING.to_owned() + "-ERR Connection reset by peer\r\n");
    world.expect(other, "");
    world.wait_ms(50);
    let lane = world.accept(0);
    world.expect(lane, redis("SET b 1"));
    world.send(lane, "+OK\r\n");
    world.expect(other, "+OK\r\n");
}

#[test]
fn scripts_transactions_and_other_errors_get_what_the_server_said() {
    let (mut world, client, lane) = one("");
    for (request, error) in [
        ("SET a 1", "-OOM command not allowed when used memory > 'maxmemory'.\r\n"),
        ("SET a 1", "-NOREPLICAS Not enough good replicas to write.\r\n"),
        ("SET a 1", "-MISCONF no\r\n"),
        ("INCR a", "-ERR value is not an integer or out of range\r\n"),
        ("GET a", "-WRONGTYPE no\r\n"),
        ("GET a", "-LOADINGS no\r\n"),
    ] {
        world.send(client, redis(request));
        world.expect(lane, redis(request));
        world.send(lane, error);
        world.expect(client, error);
    }
    // A script may have run in part.
    let script = "-READONLY You can't write against a read only replica. script: 1b9e, on @user_script:1.\r\n";
    for error in [READONLY, script] {
        world.send(client, redis("EVAL x 1 a"));
        assert!(!world.received(lane).is_empty());
        world.send(lane, error);
        world.expect(client, error);
    }
    assert_eq!(retried(&world), 0);
    world.assert_idle();
}

#[test]
fn without_failover_wait_the_error_is_the_answer() {
    let snapshot = pool("redis: true\npreconnect: true", 1);
    let (mut world, client, [lane]) = World::with_client(&snapshot);
    for error in [READONLY, LOADING] {
        world.send(client, redis("SET a 1") + &redis("GET a"));
        world.received(lane);
        world.send(lane, error.to_owned() + "$1\r\n1\r\n");
        world.expect(client, error.to_owned() + "$1\r\n1\r\n");
    }
    world.assert_idle();
}

#[test]
fn who_has_gone_wants_nothing_sent_again() {
    let (mut world, client, lane) = one("");
    let other = world.client();
    world.send(client, redis("SET a 1"));
    world.send(other, redis("SET b 1"));
    world.received(lane);
    world.send(lane, LOADING);
    world.close(client, CloseReason::Eof);
    world.send(lane, LOADING);
    let lane = asked(&mut world, 0, "PING");
    world.send(lane, "+PONG\r\n");
    world.expect(lane, redis("SET b 1"));
    world.send(lane, "+OK\r\n");
    world.expect(other, "+OK\r\n");
    world.assert_idle();
}

#[test]
fn a_half_written_request_is_written_anew() {
    let (mut world, client, lane) = one("");
    world.send(client, redis("SET a 1"));
    world.received(lane);
    let value = "x".repeat(9000);
    let large = redis(&format!("SET b {value}"));
    world.engine.handle_received(client, large.as_bytes(), world.now);
    world.write_some(lane, 4000);
    world.send(lane, LOADING);
    world.received(lane);
    let lane = asked(&mut world, 0, "PING");
    world.send(lane, "+PONG\r\n");
    world.expect(lane, redis("SET a 1") + &large);
    world.send(lane, "+OK\r\n+OK\r\n");
    world.expect(client, "+OK\r\n+OK\r\n");
    world.assert_idle();
}

#[test]
fn parts_of_a_split_request_are_sent_again_one_by_one() {
    let (mut world, client, lanes): (World, ConnId, [ConnId; 2]) =
        World::with_client(&waiting("", 2));
    world.send(client, redis("MSET k0 0 k1 1 k2 2 k3 3"));
    let parts = lanes.map(|lane| world.received(lane));
    assert!(parts.iter().all(|part| !part.is_empty()), "both have keys");
    world.send(lanes[0], "+OK\r\n");
    world.send(lanes[1], READONLY);
    world.expect(client, "");
    let lane = asked(&mut world, 1, "ROLE");
    world.send(lane, MASTER);
    assert_eq!(world.received(lane), parts[1]);
    world.send(lane, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.assert_idle();
}

fn group(options: &str) -> Snapshot {
    snapshot(&format!(
        "pools:\n  p:\n    listen: 127.0.0.1:6000\n    redis: true\n    preconnect: true\n{options}\
         \x20   servers:\n\
         \x20   - {{name: s1, primary: 127.0.0.1:7001, replicas: [127.0.0.1:7002, 127.0.0.1:7003]}}\n"
    ))
}

#[test]
fn what_is_refused_goes_to_the_server_that_takes_the_place() {
    let (mut world, client, lanes): (World, ConnId, [ConnId; 3]) =
        World::with_client(&group("    failover_wait: 5000\n"));
    let requests = redis("SET a 1") + &redis("INCR a");
    world.send(client, &requests);
    world.expect(lanes[0], &requests);
    world.send(lanes[0], READONLY.repeat(2));
    let backend = BackendId::new(0);
    world.engine.handle_hold(backend, 2, 50, world.now);
    world.tick();
    let state =
        TopologyState { primaries: vec![Promoted { shard: 0, server: 1 }], ..vec![true; 3].into() };
    world.send(client, redis("GET a"));
    world.engine.handle_release(backend, 2, state, world.now, 0);
    world.tick();
    world.expect(lanes[1], requests + &redis("GET a"));
    world.send(lanes[1], "+OK\r\n:2\r\n$1\r\n2\r\n");
    world.expect(client, "+OK\r\n:2\r\n$1\r\n2\r\n");
    // The former primary is asked no more what it is.
    let lane = asked(&mut world, 0, "PING");
    world.send(lane, "+PONG\r\n");
    world.assert_idle();
}

#[test]
fn a_read_goes_to_another_member_with_failover_wait_and_without() {
    let down =
        "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n";
    for (error, wait) in [(LOADING, ""), (down, ""), (LOADING, "    failover_wait: 5000\n")] {
        let (mut world, client, lanes): (World, ConnId, [ConnId; 3]) =
            World::with_client(&group(&format!("    reads: prefer_replica\n{wait}")));
        let get = redis("GET a");
        world.send(client, &get);
        world.expect(lanes[1], &get);
        world.send(lanes[1], error);
        world.expect(lanes[2], &get);
        world.send(lanes[2], error);
        world.expect(lanes[0], &get);
        world.send(lanes[0], "$1\r\n1\r\n");
        world.expect(client, "$1\r\n1\r\n");
        // They are passed by until they are well.
        world.send(client, &get);
        world.expect(lanes[0], &get);
        world.send(lanes[0], "$1\r\n1\r\n");
        world.expect(client, "$1\r\n1\r\n");
        assert_eq!(retried(&world), 2);
        // A write has nowhere to go.
        world.send(client, redis("SET a 1"));
        world.received(lanes[0]);
        world.send(lanes[0], LOADING);
        world.expect(client, if wait.is_empty() { LOADING } else { "" });
    }
}

#[test]
fn a_read_of_a_large_value_waits_like_others() {
    let (mut world, client, lane) = one("");
    let big = format!("$300000\r\n{}\r\n", "x".repeat(300_000));
    let answer = |world: &mut World, lane: ConnId| {
        big.as_bytes().chunks(65_536).for_each(|piece| world.send(lane, piece));
        assert!(world.received(client) == big.as_bytes());
    };
    world.send(client, redis("GET big"));
    world.expect(lane, redis("GET big"));
    answer(&mut world, lane);
    // That connection is for large values from here on.
    world.accept(0);
    world.send(client, redis("GET big"));
    world.expect(lane, redis("GET big"));
    world.send(lane, LOADING);
    world.expect(client, "");
    // It goes on with the lane of all large values, as any other request.
    let bulk = world.accept(0);
    world.expect(bulk, redis("GET big"));
    world.send(bulk, LOADING);
    world.expect(client, "");
    let bulk = asked(&mut world, 0, "PING");
    world.send(bulk, "+PONG\r\n");
    world.expect(bulk, redis("GET big"));
    answer(&mut world, bulk);
    assert_eq!(retried(&world), 2);
}
