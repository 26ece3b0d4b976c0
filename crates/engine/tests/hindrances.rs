//! What is wrong with the gateway's own machine, and says nothing of its servers.

use crate::world::{World, pool, redis};
use cashew_engine::{Action, BackendId, CloseReason, ConnId, Failure, ServerId};
use cashew_metrics::ServerCounter;

const EJECTING: &str = "redis: true\nauto_eject_hosts: true\nserver_failure_limit: 1";

const LOCAL: [(CloseReason, Failure, &str); 6] = [
    (CloseReason::Exhausted, Failure::Exhausted, "Too many open files"),
    (
        CloseReason::NoMemory,
        Failure::NoMemory,
        "Cannot allocate memory for a connection to the server",
    ),
    (
        CloseReason::NoPort,
        Failure::NoPort,
        "Cannot assign requested address: no local port or address to connect from",
    ),
    (CloseReason::Forbidden, Failure::Forbidden, "Permission denied to connect to the server"),
    (
        CloseReason::NoSocket,
        Failure::NoSocket,
        "Address family not supported: no socket to connect with",
    ),
    (
        CloseReason::NoLookUp,
        Failure::NoLookUp,
        "Cannot look up the server's name: no descriptor or memory for it",
    ),
];

/// The attempt to connect to the first server comes to this.
#[track_caller]
fn fail(world: &mut World, reason: CloseReason) {
    let conn: ConnId = world.connecting.get_mut(&0).expect("it connects").remove(0);
    world.close(conn, reason);
}

fn is_against_the_server(action: &Action) -> bool {
    matches!(action, Action::Eject { .. }) || crate::world::is_failure(action)
}

fn told(world: &World) -> Vec<Failure> {
    let told = world.actions.iter().filter_map(|action| match action {
        Action::ServerHindered { backend: pool, server, why }
            if (pool.number(), server.number()) == (0, 0) =>
        {
            Some(*why)
        }
        _ => None,
    });
    told.collect()
}

#[test]
fn no_server_is_ejected_for_what_is_wrong_with_this_machine() {
    for (reason, failure, text) in LOCAL {
        let mut world = World::new(&pool(EJECTING, 2));
        let client = world.client();
        let error = format!("-ERR {text}\r\n");
        world.send(client, redis("GET a"));
        for _ in 0..5 {
            fail(&mut world, reason);
            world.expect(client, &error);
            // Until the next attempt it fails at once.
            world.send(client, redis("GET a"));
            world.expect(client, &error);
            while !world.connects_to(0) {
                world.wait_ms(1);
                world.send(client, redis("GET a"));
                if !world.connects_to(0) {
                    world.expect(client, &error);
                }
            }
        }
        assert!(!world.actions.iter().any(is_against_the_server), "{reason:?}");
        assert_eq!(told(&world), [failure]);
        let server = world.metrics.server(0, 0);
        assert_eq!(world.metrics.server_counter(server, ServerCounter::ConnectErrors), 5);
        let lane = world.accept(0);
        world.send(lane, "$1\r\n1\r\n");
        world.expect(client, "$1\r\n1\r\n");
        let again =
            Action::ServerRecovered { backend: BackendId::new(0), server: ServerId::new(0) };
        assert!(world.actions.contains(&again), "{reason:?}");
    }
}

#[test]
fn failures_of_the_server_still_count() {
    let reasons = [
        CloseReason::Refused,
        CloseReason::Reset,
        CloseReason::Unreachable,
        CloseReason::Unresolved,
        CloseReason::TimedOut,
    ];
    for reason in reasons {
        let mut world = World::new(&pool(EJECTING, 2));
        let client = world.client();
        world.send(client, redis("GET a"));
        fail(&mut world, reason);
        assert_eq!(world.actions.iter().filter(|&action| is_against_the_server(action)).count(), 2);
        assert!(told(&world).is_empty());
    }
}

#[test]
fn the_log_is_told_once_of_what_goes_on_and_seldom_of_what_comes_and_goes() {
    let mut world = World::new(&pool("redis: true\npreconnect: true", 1));
    for _ in 0..100 {
        fail(&mut world, CloseReason::NoPort);
        world.wait_ms(1000);
    }
    assert_eq!(told(&world), [Failure::NoPort]);
    fail(&mut world, CloseReason::Forbidden);
    assert_eq!(told(&world), [Failure::NoPort, Failure::Forbidden]);
    world.wait_ms(1000);
    for _ in 0..15 {
        let lane = world.accept(0);
        world.close(lane, CloseReason::Reset);
        world.wait_ms(1000);
        fail(&mut world, CloseReason::NoPort);
        world.wait_ms(1000);
    }
    let causes = told(&world).len();
    assert!((4..=6).contains(&causes), "30 s: {causes}");
}
