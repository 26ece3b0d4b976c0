//! Connections for transactions and blocking calls: how many, for whom, and for how long.

use crate::world::{World, all, pool, redis};
use cashew_engine::{Action, BackendId, CloseReason, ConnId, Plan};
use cashew_metrics::{PoolCounter, ServerCounter, ServerGauge};

const OPTIONS: &str = "redis: true\ntimeout: 4000\npreconnect: true";
const LATE: &str = "-ERR all connections to a server for transactions and blocking calls are in \
                    use; session_connections of pool p is their number\r\n";

/// Servers with so many connections for sessions; keys as in `transactions.rs`.
fn few<const N: usize>(connections: u32) -> (World, [ConnId; N]) {
    let options = format!("{OPTIONS}\nsession_connections: {connections}");
    World::connected(&pool(&options, N))
}

fn gauge(world: &World, gauge: ServerGauge) -> u64 {
    world.metrics.server_gauge(world.metrics.server(0, 0), gauge)
}

fn watch(world: &mut World, client: ConnId, key: &str, server: u32) -> ConnId {
    world.send(client, redis(&format!("WATCH {key}")));
    let lane = world.accept(server);
    world.send(lane, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.received(lane);
    lane
}

#[test]
fn who_finds_none_waits_in_the_order_of_coming() {
    let (mut world, [shared]) = few(1);
    let clients: Vec<ConnId> = (0..4).map(|_| world.client()).collect();
    let lane = watch(&mut world, clients[0], "a", 0);
    world.send(clients[1], all(&["MULTI", "SET a 1", "EXEC"]));
    world.send(clients[2], redis("BLPOP l 0"));
    world.send(clients[3], redis("WATCH b"));
    assert!(!world.connects_to(0));
    assert_eq!((gauge(&world, ServerGauge::Sessions), gauge(&world, ServerGauge::InLine)), (1, 3));
    // Others are served, and they themselves as soon as they have had their turn.
    world.send(clients[3], redis("GET a"));
    let other = world.client();
    world.send(other, redis("GET a"));
    world.expect(shared, redis("GET a"));
    world.send(shared, "$-1\r\n");
    world.send(clients[0], redis("UNWATCH"));
    world.send(lane, "+OK\r\n");
    world.expect(lane, redis("UNWATCH") + &all(&["MULTI", "SET a 1", "EXEC"]));
    assert_eq!((gauge(&world, ServerGauge::Sessions), gauge(&world, ServerGauge::InLine)), (1, 2));
    world.send(lane, "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    world.expect(clients[1], "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    world.expect(lane, all(&["CLIENT ID", "BLPOP l 0"]));
    world.send(lane, ":1\r\n*-1\r\n");
    world.expect(clients[2], "*-1\r\n");
    world.expect(lane, all(&["WATCH b", "GET a"]));
    world.send(lane, "+OK\r\n$-1\r\n");
    world.expect(clients[3], "+OK\r\n$-1\r\n");
    world.send(clients[3], redis("UNWATCH"));
    world.send(lane, "+OK\r\n");
    assert_eq!((gauge(&world, ServerGauge::Sessions), gauge(&world, ServerGauge::InLine)), (0, 0));
    world.received(clients[0]);
    world.assert_idle();
}

#[test]
fn nobody_waits_for_ever() {
    let (mut world, _) = few::<1>(1);
    let [holder, queued, blocked] = [(); 3].map(|()| world.client());
    let lane = watch(&mut world, holder, "a", 0);
    // What is not used is taken back.
    let use_it = |world: &mut World, millis: u64| {
        for _ in 0..millis / 500 {
            world.wait_ms(500);
            world.send(holder, redis("GET a"));
            world.send(lane, "$-1\r\n");
        }
        world.received(lane);
    };
    world.send(queued, all(&["MULTI", "SET a 1"]));
    use_it(&mut world, 1000);
    world.send(blocked, redis("BLPOP l 0"));
    use_it(&mut world, 3500);
    world.expect(queued, "+OK\r\n");
    use_it(&mut world, 1000);
    world.expect(queued, LATE);
    world.send(queued, redis("EXEC"));
    world.expect(queued, "-EXECABORT Transaction discarded because of previous errors.\r\n");
    world.expect(blocked, "");
    use_it(&mut world, 1000);
    world.expect(blocked, LATE);
    assert_eq!(gauge(&world, ServerGauge::InLine), 0);
    // What is asked next is looked at anew.
    world.send(blocked, redis("WATCH a"));
    world.send(holder, redis("UNWATCH"));
    world.send(lane, "+OK\r\n");
    world.expect(lane, all(&["UNWATCH", "WATCH a"]));
}

#[test]
fn eight_connections_are_made_at_once_and_the_others_wait_for_these() {
    let (mut world, _) = few::<1>(100);
    let paced = |world: &World| {
        world.metrics.server_counter(world.metrics.server(0, 0), ServerCounter::ConnectsPaced)
    };
    let clients: Vec<ConnId> = (0..20).map(|_| world.client()).collect();
    for &client in &clients {
        world.send(client, redis("BLPOP l 0"));
    }
    assert_eq!((gauge(&world, ServerGauge::Sessions), gauge(&world, ServerGauge::InLine)), (8, 12));
    assert!(paced(&world) > 0);
    let mut lanes = Vec::new();
    for made in 1..=20 {
        assert!(world.connects_to(0), "{made}");
        lanes.push(world.accept(0));
        assert_eq!(gauge(&world, ServerGauge::Sessions), (8 + made).min(20));
    }
    assert!(!world.connects_to(0));
    for lane in lanes {
        world.expect(lane, all(&["CLIENT ID", "BLPOP l 0"]));
        world.send(lane, ":1\r\n*-1\r\n");
    }
    for &client in &clients {
        world.expect(client, "*-1\r\n");
    }
    world.assert_idle();
}

#[test]
fn who_waits_for_a_connection_that_fails_is_told_so() {
    let (mut world, _) = few::<1>(100);
    let clients: Vec<ConnId> = (0..20).map(|_| world.client()).collect();
    for &client in &clients {
        world.send(client, redis("BLPOP l 0"));
    }
    for _ in 0..20 {
        if world.connects_to(0) {
            world.refuse(0);
        }
    }
    for &client in &clients {
        world.expect(client, "-ERR Connection refused\r\n");
    }
    assert_eq!((gauge(&world, ServerGauge::Sessions), gauge(&world, ServerGauge::InLine)), (0, 0));
}

#[test]
fn two_that_wait_for_each_other_both_come_to_an_end() {
    let (mut world, _) = few::<2>(1);
    let [one, two] = [(); 2].map(|()| world.client());
    watch(&mut world, one, "a", 0);
    watch(&mut world, two, "b", 1);
    world.send(one, redis("BLPOP b 0"));
    world.send(two, redis("BLPOP a 0"));
    world.wait_ms(6000);
    world.expect(two, LATE);
    world.expect(one, LATE);
}

#[test]
fn who_leaves_the_line_or_gets_a_lane_too_late_keeps_nobody_waiting() {
    let (mut world, _) = few::<1>(1);
    let [holder, first, second, third] = [(); 4].map(|()| world.client());
    let lane = watch(&mut world, holder, "a", 0);
    for client in [first, second, third] {
        world.send(client, redis("WATCH a"));
    }
    world.close(first, CloseReason::Reset);
    world.read_closed(second);
    assert!(world.closed.contains(&second));
    world.send(holder, redis("UNWATCH"));
    world.send(lane, "+OK\r\n");
    world.expect(lane, all(&["UNWATCH", "WATCH a"]));
    world.send(lane, "+OK\r\n");
    world.expect(third, "+OK\r\n");
}

#[test]
fn a_lease_that_is_not_used_gives_way() {
    let (mut world, _) = few::<1>(1);
    let [watching, queueing, next] = [(); 3].map(|()| world.client());
    let lane = watch(&mut world, watching, "a", 0);
    world.wait_ms(60_000);
    assert!(!world.closed.contains(&lane), "nobody else needs it");
    world.send(queueing, all(&["MULTI", "SET a 1"]));
    world.wait_ms(1500);
    assert!(world.closed.contains(&lane));
    let lane = world.accept(0);
    world.expect(lane, all(&["MULTI", "SET a 1"]));
    world.send(lane, "+OK\r\n+QUEUED\r\n");
    // To who watched it is as if what it watched had changed.
    world.send(watching, all(&["MULTI", "SET a 2", "EXEC"]));
    world.expect(watching, "+OK\r\n+QUEUED\r\n*-1\r\n");
    world.wait_ms(8000);
    world.send(next, redis("WATCH a"));
    world.wait_ms(4000);
    assert!(world.closed.contains(&lane));
    world.send(queueing, redis("EXEC"));
    world.expect(
        queueing,
        "+OK\r\n+QUEUED\r\n-EXECABORT Transaction discarded because of previous errors.\r\n",
    );
    let lane = world.accept(0);
    world.expect(lane, redis("WATCH a"));
}

#[test]
fn connections_that_nobody_needs_are_closed_after_a_while() {
    let (mut world, _) = few::<1>(5);
    let clients: Vec<ConnId> = (0..5).map(|_| world.client()).collect();
    let lanes: Vec<ConnId> =
        clients.iter().map(|&client| watch(&mut world, client, "a", 0)).collect();
    for (&client, &lane) in clients.iter().zip(&lanes) {
        world.close(client, CloseReason::Eof);
        world.send(lane, "+OK\r\n");
    }
    world.wait_ms(50_000);
    assert!(!lanes.iter().any(|lane| world.closed.contains(lane)));
    world.wait_ms(15_000);
    assert!(lanes.iter().all(|lane| world.closed.contains(lane)));
    world.assert_idle();
}

#[test]
fn as_many_as_wanted_are_kept_ready() {
    let options = format!("{OPTIONS}\nsession_connections: 5\nsession_connections_idle: 2");
    let (mut world, _): (World, [ConnId; 1]) = World::connected(&pool(&options, 1));
    world.wait_ms(1500);
    let ready = [world.accept(0), world.accept(0)];
    world.wait_ms(100_000);
    assert!(!world.connects_to(0) && !ready.iter().any(|lane| world.closed.contains(lane)));
    let client = world.client();
    world.send(client, redis("WATCH a"));
    let taken = ready.into_iter().find(|&lane| !world.received(lane).is_empty());
    world.send(taken.expect("one that was ready"), "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.wait_ms(1000);
    world.accept(0);
    assert!(!world.connects_to(0));
}

#[test]
fn all_servers_together_have_as_many_as_files_allow() {
    let (mut world, _) = few::<2>(5);
    world.engine.set_session_connections_max(2);
    let clients: Vec<ConnId> = (0..3).map(|_| world.client()).collect();
    let first = watch(&mut world, clients[0], "a", 0);
    let second = watch(&mut world, clients[1], "a", 0);
    world.send(clients[2], redis("WATCH b"));
    assert!(!world.connects_to(1));
    // One that nobody has any more makes room.
    world.send(clients[0], redis("UNWATCH"));
    world.send(first, "+OK\r\n");
    world.wait_ms(1000);
    assert!(world.closed.contains(&first) && !world.closed.contains(&second));
    let third = world.accept(1);
    world.expect(third, redis("WATCH b"));
}

#[test]
fn large_values_do_not_wait_for_sessions_nor_sessions_for_them() {
    let (mut world, _) = few::<1>(1);
    let [holder, uploader, second] = [(); 3].map(|()| world.client());
    watch(&mut world, holder, "a", 0);
    let head = "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$2000000\r\n";
    world.send(uploader, format!("{head}{}", "x".repeat(500_000)));
    let lane = world.accept(0);
    assert!(world.received(lane).starts_with(head.as_bytes()));
    for _ in 0..3 {
        let client = world.client();
        world.send(client, format!("{head}{}", "x".repeat(500_000)));
        world.accept(0);
    }
    world.close(holder, CloseReason::Eof);
    world.send(second, redis("WATCH a"));
    assert!(!world.connects_to(0), "the one there is is used");
}

#[test]
fn workers_share_the_connections() {
    let options = format!("{OPTIONS}\nsession_connections: 3");
    let (mut world, _): (World, [ConnId; 1]) = World::connected(&pool(&options, 1));
    let clients: Vec<ConnId> = (0..4).map(|_| world.client()).collect();
    let lanes: Vec<ConnId> =
        clients[..3].iter().map(|&client| watch(&mut world, client, "a", 0)).collect();
    // There are two more workers from now on.
    let mut next = pool(&options, 1);
    next.epoch += 1;
    world.engine.handle_prepare(Plan::whole(&next, 0, 3), world.now);
    world.tick();
    world.pause(5000);
    world.commit(&next);
    for (&client, &lane) in clients[..2].iter().zip(&lanes) {
        world.send(client, redis("UNWATCH"));
        world.send(lane, "+OK\r\n");
    }
    world.wait_ms(2000);
    assert_eq!(lanes.iter().filter(|lane| world.closed.contains(lane)).count(), 2);
    world.send(clients[3], redis("WATCH a"));
    assert!(!world.connects_to(0));
    assert_eq!(gauge(&world, ServerGauge::InLine), 1);
}

#[test]
fn a_long_transaction_is_passed_on_as_fast_as_the_server_takes_it() {
    let (mut world, _) = few::<1>(1);
    let client = world.client();
    world.send(client, all(&["MULTI", "SET a 1"]));
    let lane = world.accept(0);
    world.expect(lane, all(&["MULTI", "SET a 1"]));
    world.send(lane, "+OK\r\n+QUEUED\r\n");
    world.received(client);
    world.stuck.push(lane);
    for _ in 0..100 {
        world.send(client, redis(&format!("SET a {}", "x".repeat(30_000))));
    }
    assert!(world.paused.contains(&client));
    world.stuck.clear();
    let mut count = 0;
    loop {
        world.write(lane);
        let written = world.received(lane);
        let sets = String::from_utf8_lossy(&written).matches("SET").count();
        world.send(lane, "+QUEUED\r\n".repeat(sets));
        count += sets;
        if sets == 0 {
            break;
        }
    }
    assert_eq!(count, 100);
    assert!(!world.paused.contains(&client));
}

#[test]
fn a_free_connection_is_told_what_its_next_client_has_agreed_on() {
    let options = format!("{OPTIONS}\nsession_connections: 1\ndatabases: 4");
    let (mut world, _): (World, [ConnId; 1]) = World::connected(&pool(&options, 1));
    let [plain, other] = [(); 2].map(|()| world.client());
    let lane = watch(&mut world, plain, "a", 0);
    world.send(plain, redis("UNWATCH"));
    world.send(lane, "+OK\r\n");
    world.received(lane);
    world.send(other, all(&["HELLO 3", "SELECT 2"]));
    world.received(other);
    world.send(other, all(&["MULTI", "SET a 1", "EXEC"]));
    // What follows would mean something else if this were refused.
    world.expect(lane, all(&["HELLO 3", "SELECT 2"]));
    world.send(lane, "%1\r\n$5\r\nproto\r\n:3\r\n+OK\r\n");
    world.expect(lane, all(&["MULTI", "SET a 1", "EXEC"]));
    world.send(lane, "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    world.expect(other, "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    // In the middle of a watch, too.
    world.received(plain);
    world.send(plain, redis("WATCH a"));
    world.expect(lane, all(&["HELLO 2", "SELECT 0"]));
    world.send(lane, "*0\r\n+OK\r\n");
    world.expect(lane, redis("WATCH a"));
    world.send(lane, "+OK\r\n");
    world.send(plain, all(&["SELECT 1", "GET a"]));
    world.expect(lane, redis("SELECT 1"));
    world.send(lane, "+OK\r\n");
    world.expect(lane, redis("GET a"));
    world.send(lane, "$-1\r\n");
    world.expect(plain, "+OK\r\n+OK\r\n$-1\r\n");
    world.send(plain, redis("SELECT 3") + &all(&["MULTI", "SET a 1", "EXEC"]));
    world.expect(lane, redis("SELECT 3"));
    world.send(lane, "-ERR no\r\n");
    assert!(world.closed.contains(&lane));
    let refused = "-ERR DB index is out of range\r\n";
    world.expect(plain, format!("+OK\r\n+OK\r\n{refused}{refused}"));
    world.assert_idle();
}

#[test]
fn lanes_of_a_variant_that_is_closed_stay_with_who_watches() {
    let options = format!("{OPTIONS}\ndatabases: 4");
    let (mut world, _): (World, [ConnId; 1]) = World::connected(&pool(&options, 1));
    let client = world.client();
    world.send(client, redis("SELECT 1"));
    world.received(client);
    world.send(client, redis("WATCH a"));
    let lane = world.accept(0);
    world.expect(lane, all(&["SELECT 1"]));
    world.send(lane, "+OK\r\n");
    world.send(lane, "+OK\r\n");
    world.send(client, redis("SELECT 0"));
    // Nobody has that database any more.
    world.wait_ms(60_000);
    assert!(!world.closed.contains(&lane));
    world.received(lane);
    world.send(client, all(&["MULTI", "EXEC"]));
    world.expect(lane, redis("SELECT 0"));
    world.send(lane, "+OK\r\n");
    world.expect(lane, all(&["MULTI", "EXEC"]));
}

const EJECTING: &str = "redis: true\nhash_tag: \"{}\"\ntimeout: 400\npreconnect: true\n\
                        session_connections: 1\nsession_wait_timeout: 500\nauto_eject_hosts: true";
const ONE_EJECTED: [bool; 3] = [true, true, false];

/// The server of each key, by what is asked there.
fn servers_of(world: &mut World, keys: &[String]) -> Vec<u32> {
    let client = world.client();
    let mut server_of = |key: &String| {
        world.send(client, redis(&format!("GET {key}")));
        let asked = (0..3).find(|server| {
            let lane = world.lanes[server][0];
            let is_asked = !world.received(lane).is_empty();
            if is_asked {
                world.send(lane, "$-1\r\n");
            }
            is_asked
        });
        world.received(client);
        asked.expect("some server is asked")
    };
    keys.iter().map(&mut server_of).collect()
}

/// A pool of three in which one client has the lane to server 1 by WATCH and another waits for it
/// with keys that are apart when the held pool goes on as [`ONE_EJECTED`]; the lane, and a key
/// that stays.
fn waiter_whose_keys_part() -> (World, [ConnId; 2], ConnId, String) {
    let keys: Vec<String> = (0..60).map(|n| format!("k{n}")).collect();
    let (mut world, _): (World, [ConnId; 3]) = World::connected(&pool(EJECTING, 3));
    let before = servers_of(&mut world, &keys);
    world.engine.handle_hold(BackendId::new(0), 1, 0, world.now);
    world.engine.handle_release(BackendId::new(0), 1, ONE_EJECTED.to_vec().into(), world.now, 0);
    world.tick();
    let after = servers_of(&mut world, &keys);
    let key = |was: u32, is: u32| {
        let found = (0..keys.len()).find(|&at| (before[at], after[at]) == (was, is));
        keys[found.expect("there is such a key")].clone()
    };
    let (stays, moves) = (key(1, 1), key(1, 0));
    let (mut world, _): (World, [ConnId; 3]) = World::connected(&pool(EJECTING, 3));
    let [holder, waiter] = [(); 2].map(|()| world.client());
    let lane = watch(&mut world, holder, &stays, 1);
    world.send(waiter, redis(&format!("BLPOP {stays} {moves} 0")));
    world.engine.handle_hold(BackendId::new(0), 1, 10_000, world.now);
    world.tick();
    (world, [holder, waiter], lane, stays)
}

/// The pool goes on: the keys of who waits are apart.
fn part(world: &mut World, waiter: ConnId) {
    world.engine.handle_release(BackendId::new(0), 1, ONE_EJECTED.to_vec().into(), world.now, 0);
    world.tick();
    let told = String::from_utf8(world.received(waiter)).unwrap();
    assert!(told.starts_with("-CROSSSLOT"), "{told}");
}

#[test]
fn who_does_not_need_the_lane_any_more_gives_it_back() {
    let (mut world, [holder, waiter], lane, key) = waiter_whose_keys_part();
    // Its turn comes while nothing is dispatched.
    world.close(holder, CloseReason::Reset);
    world.expect(lane, redis("UNWATCH"));
    world.send(lane, "+OK\r\n");
    assert_eq!(world.sessions(1), 1, "it is the other's");
    part(&mut world, waiter);
    assert_eq!(world.sessions(1), 0, "nobody needs it");
    let third = world.client();
    world.send(third, redis(&format!("WATCH {key}")));
    world.expect(lane, redis(&format!("WATCH {key}")));
}

#[test]
fn who_waited_in_vain_for_what_it_does_not_need_may_wait_anew() {
    let (mut world, [holder, waiter], lane, key) = waiter_whose_keys_part();
    world.wait_ms(1000);
    part(&mut world, waiter);
    world.send(waiter, redis(&format!("WATCH {key}")));
    world.expect(waiter, "");
    world.send(holder, redis("UNWATCH"));
    world.send(lane, "+OK\r\n");
    world.expect(lane, redis("UNWATCH") + &redis(&format!("WATCH {key}")));
}

#[test]
fn those_who_left_the_line_take_no_room_there() {
    let (mut world, _) = few::<1>(1);
    let [holder, first] = [(); 2].map(|()| world.client());
    let lane = watch(&mut world, holder, "a", 0);
    world.send(first, redis("BLPOP a 0"));
    // As many as may wait, and some more.
    for _ in 0..5000 {
        let client = world.client();
        world.send(client, redis("BLPOP a 0"));
        world.close(client, CloseReason::Reset);
    }
    assert_eq!(gauge(&world, ServerGauge::InLine), 1);
    let late = world.client();
    world.send(late, redis("BLPOP b 0"));
    world.expect(late, "");
    assert_eq!(gauge(&world, ServerGauge::InLine), 2);
    // Who leaves from the middle leaves the others in their order.
    let last = world.client();
    world.send(last, redis("BLPOP c 0"));
    world.close(late, CloseReason::Reset);
    world.send(holder, redis("UNWATCH"));
    world.send(lane, "+OK\r\n");
    world.expect(lane, redis("UNWATCH") + &all(&["CLIENT ID", "BLPOP a 0"]));
    world.send(lane, ":1\r\n*-1\r\n");
    world.expect(first, "*-1\r\n");
    world.expect(lane, redis("BLPOP c 0"));
    assert_eq!(gauge(&world, ServerGauge::InLine), 0);
}

#[test]
fn a_transaction_that_takes_long_gives_its_connection_up_to_who_waits() {
    let snapshot = pool(
        "redis: true\npreconnect: true\nsession_connections: 1\nsession_wait_timeout: 60000\n\
         session_hold_timeout: 8000",
        1,
    );
    for is_awaited in [false, true] {
        let (mut world, _) = World::connected::<1>(&snapshot);
        let [holder, other] = [(); 2].map(|()| world.client());
        let lane = watch(&mut world, holder, "a", 0);
        if is_awaited {
            world.send(other, redis("WATCH b"));
        }
        for _ in 0..10 {
            world.wait_ms(1000);
            world.send(holder, redis("GET a"));
            if world.closed.contains(&lane) {
                break;
            }
            world.expect(lane, redis("GET a"));
            world.send(lane, "$-1\r\n");
            world.expect(holder, "$-1\r\n");
        }
        assert_eq!(world.closed.contains(&lane), is_awaited);
        let counted = |counter| world.metrics.pool_counter(world.metrics.pool(0), counter);
        assert_eq!(counted(PoolCounter::SessionsReclaimed), u64::from(is_awaited));
        assert_eq!(counted(PoolCounter::SessionWaits), u64::from(is_awaited));
        let told = |action: &Action| matches!(action, Action::SessionsWait { backend: pool, server, clients: 1 } if (pool.number(), server.number()) == (0, 0));
        assert_eq!(world.actions.iter().any(told), is_awaited);
        if is_awaited {
            let next = world.accept(0);
            world.expect(next, redis("WATCH b"));
        }
    }
}
