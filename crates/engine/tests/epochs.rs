//! Changes of the epoch: what changes feels it, what does not change feels nothing.

use crate::world::{World, pool, redis, snapshot};
use cashew_config::Snapshot;
use cashew_engine::{
    Action, BackendId, CloseReason, ConnId, ListenerId, Plan, PoolState, ServerId,
};
use cashew_metrics::{PoolCounter, PoolGauge, ServerGauge};

const REDIS: &str = "redis: true\npreconnect: true\ntimeout: 400";
const REMOVED: &str = "-ERR Server was removed from the configuration\r\n";

fn prepare(world: &mut World, next: &mut Snapshot) {
    next.epoch += 1;
    prepare_as(world, next, 0, 1);
}

fn prepare_as(world: &mut World, next: &Snapshot, rank: u32, workers: u32) {
    world.engine.handle_prepare(Plan::whole(next, rank, workers), world.now);
    world.tick();
}

/// All phases, one after the other.
fn change(world: &mut World, next: &mut Snapshot) {
    prepare(world, next);
    world.pause(0);
    world.commit(next);
}

fn two_pools() -> Snapshot {
    snapshot(
        "a:\n  listen: 127.0.0.1:6000\n  redis: true\n  servers:\n   - 127.0.0.1:7000:1 s0\n\
         b:\n  listen: 127.0.0.1:6001\n  redis: true\n  servers:\n   - 127.0.0.1:7001:1 s0\n",
    )
}

#[test]
fn what_is_on_its_way_ends_before_a_pause_is_confirmed() {
    let (mut world, [a, b]): (World, [ConnId; 2]) = World::connected(&pool(REDIS, 2));
    let client = world.client();
    world.send(client, redis("MGET a b c d"));
    let mut next = pool(REDIS, 3);
    prepare(&mut world, &mut next);
    assert_eq!(world.epoch_answers(), []);
    let fresh = world.accept(2);
    assert_eq!(world.epoch_answers(), [Action::Prepared { epoch: 2 }]);
    world.pause(5000);
    world.send(client, redis("GET c") + &redis("GET d"));
    world.send(a, "*2\r\n$-1\r\n$-1\r\n");
    assert_eq!(world.epoch_answers(), []);
    world.send(b, "*2\r\n$-1\r\n$-1\r\n");
    assert_eq!(world.epoch_answers(), [Action::Paused { epoch: 2, unfinished: 0 }]);
    world.expect(client, format!("*4\r\n{}", "$-1\r\n".repeat(4)));
    for lane in [a, b] {
        world.received(lane);
    }
    world.commit(&next);
    let asked: usize = [a, b, fresh].map(|lane| world.received(lane).len()).iter().sum();
    assert_eq!(asked, 2 * redis("GET c").len());
    assert!(world.paused.is_empty() && world.closed.is_empty());
}

#[test]
fn what_waits_for_a_connection_to_a_server_that_failed_ends_before_a_pause_is_confirmed() {
    for is_back in [true, false] {
        let (mut world, [lane]): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
        let client = world.client();
        world.send(client, redis("GET a"));
        world.close(lane, CloseReason::Reset);
        world.received(client);
        world.wait_ms(50);
        world.send(client, redis("GET a"));
        assert!(world.connects_to(0));
        let mut next = pool(REDIS, 2);
        prepare(&mut world, &mut next);
        world.accept(1);
        assert_eq!(world.epoch_answers(), [Action::Prepared { epoch: 2 }]);
        world.pause(5000);
        // It could be sent after the change to where its key was before.
        assert_eq!(world.epoch_answers(), []);
        if is_back {
            let lane = world.accept(0);
            world.expect(lane, redis("PING"));
            world.send(lane, "+PONG\r\n");
            assert_eq!(world.epoch_answers(), []);
            world.expect(lane, redis("GET a"));
            world.send(lane, "$-1\r\n");
            world.expect(client, "$-1\r\n");
        } else {
            world.refuse(0);
            assert!(world.received(client).starts_with(b"-"));
        }
        assert_eq!(world.epoch_answers(), [Action::Paused { epoch: 2, unfinished: 0 }]);
    }
}

#[test]
fn connections_to_new_servers_are_waited_for_half_a_second() {
    let options = "redis: true\npreconnect: true";
    let mut world = World::new(&pool(options, 1));
    let mut next = pool(options, 2);
    prepare(&mut world, &mut next);
    world.wait_ms(499);
    assert_eq!(world.epoch_answers(), []);
    world.wait_ms(1);
    assert_eq!(world.epoch_answers(), [Action::Prepared { epoch: 2 }]);
    // Another takes its place; a connection that fails is no reason to wait.
    let mut third = pool(options, 3);
    world.connecting.clear();
    third.epoch = 7;
    prepare(&mut world, &mut third);
    for server in [1, 2] {
        world.refuse(server);
    }
    assert_eq!(world.epoch_answers(), [Action::Prepared { epoch: 8 }]);
    assert_eq!(world.engine.prepared_epoch(), Some(8));
    world.commit(&third);
    assert_eq!(world.engine.prepared_epoch(), None);
}

#[test]
fn a_server_that_has_moved_gets_other_connections_in_its_turn() {
    let (mut world, [a, b]): (World, [ConnId; 2]) = World::connected(&pool(REDIS, 2));
    let client = world.client();
    world.send(client, redis("MGET a b c d"));
    let [first, _] = [a, b].map(|lane| world.received(lane));
    assert!(!first.is_empty());
    let mut next = pool(REDIS, 2);
    next.epoch += 1;
    let mut plan = Plan::whole(&next, 0, 1);
    plan.move_server(BackendId::new(0), ServerId::new(1));
    world.engine.handle_prepare(plan, world.now);
    world.tick();
    let fresh = world.accept(1);
    assert_eq!(world.epoch_answers(), [Action::Prepared { epoch: 2 }]);
    world.pause(5000);
    // What comes now waits for what is on its way, and takes none of the old connections.
    world.send(client, redis("MGET a b c d"));
    world.send(a, "*2\r\n$-1\r\n$-1\r\n");
    assert_eq!(world.epoch_answers(), []);
    world.send(b, "*2\r\n$-1\r\n$-1\r\n");
    assert_eq!(world.epoch_answers(), [Action::Paused { epoch: 2, unfinished: 0 }]);
    world.expect(client, format!("*4\r\n{}", "$-1\r\n".repeat(4)));
    world.expect(b, "");
    world.commit(&next);
    assert_eq!(world.closed, [b]);
    for lane in [a, fresh] {
        assert!(!world.received(lane).is_empty());
        world.send(lane, "*2\r\n$-1\r\n$-1\r\n");
    }
    world.expect(client, format!("*4\r\n{}", "$-1\r\n".repeat(4)));
    world.assert_idle();
}

#[test]
fn an_aborted_change_leaves_no_trace() {
    let (mut world, [a]): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
    let client = world.client();
    let mut next = pool(REDIS, 2);
    prepare(&mut world, &mut next);
    let fresh = world.accept(1);
    world.pause(0);
    world.send(client, redis("GET a"));
    world.expect(a, "");
    world.engine.handle_abort(world.now);
    world.tick();
    assert_eq!(world.closed, [fresh]);
    world.expect(a, redis("GET a"));
    world.send(a, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.assert_idle();
}

#[test]
fn requests_on_removed_servers_fail_when_their_time_is_up() {
    let (mut world, [a, b]): (World, [ConnId; 2]) = World::connected(&pool(REDIS, 2));
    let client = world.client();
    world.send(client, redis("MGET a b c d"));
    assert!(!world.received(a).is_empty() && !world.received(b).is_empty());
    let mut next = pool(REDIS, 1);
    prepare(&mut world, &mut next);
    world.pause(20);
    world.wait_ms(19);
    assert_eq!(world.epoch_answers(), [Action::Prepared { epoch: 2 }]);
    world.wait_ms(1);
    assert_eq!(world.epoch_answers(), [Action::Paused { epoch: 2, unfinished: 2 }]);
    world.commit(&next);
    assert_eq!(world.closed, [b]);
    // Of a split request that is half answered nothing is passed on; what follows waits for it.
    world.send(client, redis("GET a"));
    world.expect(a, "");
    world.expect(client, "");
    world.send(a, "*2\r\n$-1\r\n$-1\r\n");
    world.expect(client, REMOVED);
    world.expect(a, redis("GET a"));
    world.send(a, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.assert_idle();
}

#[test]
fn unchanged_pools_feel_nothing_though_their_numbers_change() {
    let mut world = World::new(&two_pools());
    let client = world.client_of(1);
    world.send(client, redis("GET x"));
    let lane = world.accept(0);
    world.expect(lane, redis("GET x"));
    let mut next = two_pools();
    next.pools.reverse();
    next.pools[0].limits.client_requests_max = 3;
    next.pools[0].auto_eject_hosts = true;
    prepare(&mut world, &mut next);
    world.pause(5000);
    let prepared = Action::Prepared { epoch: 2 };
    assert_eq!(world.epoch_answers(), [prepared, Action::Paused { epoch: 2, unfinished: 0 }]);
    world.send(client, redis("GET y"));
    world.expect(lane, redis("GET y"));
    world.commit(&next);
    world.send(lane, "$-1\r\n$-1\r\n");
    world.expect(client, "$-1\r\n$-1\r\n");
    assert!(world.closed.is_empty() && world.paused.is_empty());
    assert_eq!(world.engine.clients_of(ListenerId::new(0)), 1);
    let id = world.metrics.pool(0);
    assert_eq!(world.metrics.pool_gauge(id, PoolGauge::ClientConnections), 1);
    assert_eq!(world.metrics.pool_counter(id, PoolCounter::Responses), 2);
    let server = world.metrics.server(0, 0);
    assert_eq!(world.metrics.server_gauge(server, ServerGauge::ServerConnections), 1);
    world.assert_idle();
}

#[test]
fn clients_of_a_removed_pool_are_served_until_their_time_is_up() {
    let mut world = World::new(&two_pools());
    let (client, idle) = (world.client_of(0), world.client_of(0));
    world.send(client, redis("GET x"));
    let lane = world.accept(0);
    let mut next = two_pools();
    next.pools.remove(0);
    next.global.worker_shutdown_timeout_ms = 2000;
    change(&mut world, &mut next);
    world.expect(lane, redis("GET x"));
    world.send(lane, "$-1\r\n");
    world.send(client, redis("GET y"));
    world.expect(lane, redis("GET y"));
    world.wait_ms(1999);
    assert!(world.closed.is_empty());
    world.wait_ms(1);
    assert_eq!(world.closed, [idle]);
    world.send(lane, "$-1\r\n");
    world.expect(client, "$-1\r\n$-1\r\n");
    assert!(world.closed.contains(&client));
    world.wait_ms(1000);
    assert!(world.closed.contains(&lane));
    assert_eq!(world.engine.clients_of(ListenerId::new(0)), 0);
    world.assert_idle();
}

#[test]
fn the_same_name_with_another_protocol_is_another_pool() {
    let mut world = World::new(&pool("redis: true", 1));
    let old = world.client();
    let mut next = pool("redis: false", 1);
    change(&mut world, &mut next);
    let new = world.client();
    world.send(old, redis("GET x"));
    let lane = world.accept(0);
    world.expect(lane, redis("GET x"));
    world.send(new, "get x\r\n");
    let other = world.accept(0);
    world.expect(other, "get x\r\n");
    world.send(other, "END\r\n");
    world.send(lane, "$-1\r\n");
    world.expect(old, "$-1\r\n");
    world.expect(new, "END\r\n");
    world.assert_idle();
}

#[test]
fn another_number_of_lanes_is_a_change_of_lanes() {
    let options = format!("{REDIS}\nserver_connections: 4");
    let mut world = World::new(&pool(&options, 1));
    let _: [Option<ConnId>; 1] = world.accept_all();
    let before = world.lanes[&0].clone();
    assert_eq!(before.len(), 4);
    let mut next = pool(&options, 1);
    next.epoch = 2;
    prepare_as(&mut world, &next, 1, 3);
    let _: [Option<ConnId>; 1] = world.accept_all();
    assert_eq!(world.lanes[&0].len(), 5);
    world.pause(0);
    world.commit(&next);
    assert_eq!(world.closed, before);
    // Numbers of lanes are used again, under names that were never used.
    next.epoch = 3;
    prepare_as(&mut world, &next, 0, 1);
    let _: [Option<ConnId>; 1] = world.accept_all();
    world.pause(0);
    world.commit(&next);
    assert!(world.lanes[&0].iter().all(|lane| !before.contains(lane)));
    assert_eq!(world.lanes[&0].len(), 4);
}

#[test]
fn an_upload_to_a_removed_server_fails_and_its_rest_is_dropped() {
    let mut world = World::new(&pool("redis: true", 1));
    let client = world.client();
    let size = 2 << 20;
    let head = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${size}\r\n");
    world.send(client, [head.as_bytes(), &vec![b'v'; size / 2]].concat());
    let lane = world.accept(0);
    let mut next = pool("redis: true", 1);
    next.pools[0].servers[0].name = "other".to_owned();
    change(&mut world, &mut next);
    world.expect(client, REMOVED);
    assert!(world.closed.contains(&lane));
    world.send(client, [vec![b'v'; size / 2], b"\r\n".to_vec()].concat());
    world.send(client, redis("GET x"));
    let fresh = world.accept(0);
    world.expect(fresh, redis("GET x"));
    world.send(fresh, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.assert_idle();
}

#[test]
fn ejected_servers_stay_so_and_are_probed_under_their_new_numbers() {
    let options = format!("{REDIS}\nauto_eject_hosts: true\nserver_retry_timeout: 1000");
    let (mut world, [_, b]): (World, [ConnId; 2]) = World::connected(&pool(&options, 2));
    world.close(b, CloseReason::Reset);
    world.engine.handle_hold(BackendId::new(0), 5, 0, world.now);
    world.engine.handle_release(BackendId::new(0), 5, vec![true, false].into(), world.now, 1);
    world.tick();
    let mut next = pool(&options, 2);
    next.epoch = 2;
    next.pools[0].servers.reverse();
    let states = [PoolState { quota: 0, ring_version: 5, topology: vec![false, true].into() }];
    world.engine.handle_prepare(Plan::new(&next, &states, 0, 1), world.now);
    world.pause(0);
    world.commit(&next);
    let server = world.metrics.server(0, 0);
    assert_eq!(world.metrics.server_gauge(server, ServerGauge::Ejected), 1);
    assert_eq!(world.metrics.pool_gauge(world.metrics.pool(0), PoolGauge::RingVersion), 5);
    world.wait_ms(450);
    world.connecting.clear();
    while !world.connects_to(0) {
        world.wait_ms(1);
    }
    let lane = *world.connecting.values().flatten().next().expect("it is probed");
    world.engine.handle_connected(lane, world.now);
    world.tick();
    world.send(lane, "+PONG\r\n");
    assert!(
        world
            .actions
            .contains(&Action::Readmit { backend: BackendId::new(0), server: ServerId::new(0) })
    );
}

#[test]
fn a_hold_waits_for_servers_that_are_well() {
    let (mut world, [a, b]): (World, [ConnId; 2]) = World::connected(&pool(REDIS, 2));
    let client = world.client();
    world.send(client, redis("MGET a b c d"));
    world.engine.handle_hold(BackendId::new(0), 3, 100, world.now);
    world.tick();
    let held = Action::Held { backend: BackendId::new(0), version: 3 };
    world.close(b, CloseReason::Reset);
    assert!(!world.actions.contains(&held));
    world.send(a, "*2\r\n$-1\r\n$-1\r\n");
    assert!(world.actions.contains(&held));
    world.engine.handle_release(BackendId::new(0), 3, vec![true; 2].into(), world.now, 0);
    world.wait_ms(20);
    world.accept(1);
    world.send(client, redis("MGET a b c d"));
    world.engine.handle_hold(BackendId::new(0), 4, 100, world.now);
    world.wait_ms(99);
    assert!(!world.actions.contains(&Action::Held { backend: BackendId::new(0), version: 4 }));
    world.wait_ms(1);
    assert!(world.actions.contains(&Action::Held { backend: BackendId::new(0), version: 4 }));
}

#[test]
fn a_drain_ends_in_any_phase() {
    for phase in 0..4 {
        let (mut world, [a]): (World, [ConnId; 1]) = World::connected(&pool(REDIS, 1));
        let client = world.client();
        world.send(client, redis("GET a"));
        let mut next = pool(REDIS, 2);
        prepare(&mut world, &mut next);
        if phase > 0 {
            world.pause(100);
        }
        if phase > 1 {
            world.commit(&next);
        }
        world.engine.handle_drain(world.now);
        if phase == 3 {
            next.pools[0].servers.remove(0);
            change(&mut world, &mut next);
            world.expect(client, REMOVED);
        } else {
            world.send(a, "$-1\r\n");
            world.expect(client, "$-1\r\n");
        }
        assert!(world.engine.is_drained(), "phase {phase}");
        world.assert_idle();
    }
}

#[test]
fn a_removed_pool_cuts_who_never_comes_to_rest() {
    let mut world = World::new(&two_pools());
    let client = world.client_of(0);
    world.send(client, redis("GET x"));
    let lane = world.accept(0);
    world.expect(lane, redis("GET x"));
    let mut next = two_pools();
    next.pools.remove(0);
    next.global.worker_shutdown_timeout_ms = 2000;
    change(&mut world, &mut next);
    // Its server hangs, and nothing has a timeout.
    world.wait_ms(3500);
    assert!(world.closed.is_empty());
    world.wait_ms(2000);
    assert!(world.closed.contains(&client) && world.closed.contains(&lane));
    world.assert_idle();
}

#[test]
fn a_removed_pool_still_takes_who_waited_to_be_accepted() {
    let mut world = World::new(&two_pools());
    let mut next = two_pools();
    next.pools.remove(0);
    change(&mut world, &mut next);
    let pool = world.engine.listener_named("a").expect("it stays a moment without clients");
    let late = world.client_of(pool.number());
    world.send(late, redis("GET x"));
    let lane = world.accept(0);
    world.send(lane, "$-1\r\n");
    world.expect(late, "$-1\r\n");
    world.close(late, CloseReason::Eof);
    world.wait_ms(2000);
    assert_eq!(world.engine.listener_named("a"), None);
}

#[test]
fn a_user_of_a_removed_port_is_cut_with_half_an_answer() {
    let behind = |server: &str| {
        format!(
            "global: {{worker_processes: 1}}\npools:\n  b: {{listen: '127.0.0.1:6001', redis: true, servers: \
             ['127.0.0.1:7001:1 {server}']}}\n"
        )
    };
    let front = "routes:\n  front: {listen: '127.0.0.1:6000', redis: true, route: b, \
                 users: {ann: on >pw ~* +@all, default: off}}\n";
    let mut world = World::new(&snapshot(&(behind("one") + front)));
    let client = world.client_of(world.engine.listener_named("front").unwrap().number());
    world.send(client, redis("AUTH ann pw"));
    world.expect(client, "+OK\r\n");
    world.send(client, redis("GET x"));
    let lane = world.accept(0);
    world.expect(lane, redis("GET x"));
    world.send(lane, format!("${}\r\n{}", 1 << 20, "x".repeat(1 << 17)));
    change(&mut world, &mut snapshot(&behind("other")));
    assert!(world.closed.contains(&client) && world.closed.contains(&lane));
}

#[test]
fn clients_of_a_removed_pool_leave_for_nowhere() {
    let mut world = World::new(&two_pools());
    let (removed, kept) = (world.client_of(0), world.client_of(1));
    let mut next = two_pools();
    next.pools.remove(0);
    change(&mut world, &mut next);
    world.engine.leave_all(world.now);
    world.tick();
    world.tick();
    assert!(world.actions.contains(&Action::HandOff { conn: kept }));
    assert!(!world.actions.contains(&Action::HandOff { conn: removed }));
    assert!(world.engine.export(kept, world.now).is_some());
    world.send(removed, redis("PING"));
    world.expect(removed, "+PONG\r\n");
}
