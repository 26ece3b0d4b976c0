//! Pools with `protocol: tcp` where memory is short: what waits for their sessions counts, those that hold most are not
//! read, and closed if that is not enough. Others do not notice.

use cashew_config::Snapshot;
use cashew_engine::{Action, CloseReason, ConnId};
use cashew_metrics::PoolCounter;

use crate::passing::{World, snapshot};

const MAX: u64 = 8 << 20;
const READ: usize = 64 * 1024;

fn tight(options: &str) -> Snapshot {
    let mut snapshot = snapshot(options, 1);
    snapshot.global.worker_memory_max = Some(MAX);
    snapshot
}

/// What a driver does with what it is told: which connections it does not read, and which were reset.
#[derive(Default)]
struct Driver {
    paused: Vec<ConnId>,
    reset: Vec<ConnId>,
}

impl Driver {
    fn follow(&mut self, actions: &[Action]) {
        for action in actions {
            match *action {
                Action::PauseRead { conn } => {
                    assert!(!self.paused.contains(&conn), "{conn:?} is paused twice");
                    self.paused.push(conn);
                }
                Action::ResumeRead { conn } => {
                    let at = self.paused.iter().position(|it| *it == conn);
                    self.paused.swap_remove(at.expect("it was paused"));
                }
                Action::Reset { conn } => self.reset.push(conn),
                _ => {}
            }
        }
    }

    fn reads(&self, conn: ConnId) -> bool {
        !self.paused.contains(&conn) && !self.reset.contains(&conn)
    }
}

/// Each side of each session sends as much as is read, and takes nothing.
fn flood(world: &mut World, driver: &mut Driver, pairs: &[(ConnId, ConnId)]) {
    let mut is_any = true;
    while std::mem::take(&mut is_any) {
        for conn in pairs.iter().flat_map(|pair| [pair.0, pair.1]) {
            if driver.reads(conn) {
                is_any = true;
                world.receive(conn, &[7; READ]);
                driver.follow(&world.settle());
                let held = world.engine.held_bytes() as u64;
                assert!(held <= MAX + 2 * READ as u64, "{held} bytes are held");
            }
        }
    }
}

#[test]
fn sessions_that_hold_most_are_not_read_and_then_closed() {
    let mut world = World::of(&tight(""));
    let mut driver = Driver::default();
    let calm = world.pair();
    let pairs: Vec<(ConnId, ConnId)> = (0..40).map(|_| world.pair()).collect();
    // Of the sixteen megabytes that these would hold.
    flood(&mut world, &mut driver, &pairs);
    assert!(world.pool(PoolCounter::ClientsThrottled) > 0);
    let mut shed = world.pool(PoolCounter::ClientsShed);
    for _ in 0..20 {
        driver.follow(&world.wait(1000));
        flood(&mut world, &mut driver, &pairs);
        // Who sends and takes little goes on all the time.
        world.receive(calm.0, b"little");
        driver.follow(&world.settle());
        assert!(driver.reads(calm.0) && driver.reads(calm.1), "{shed}");
        assert_eq!(world.take(calm.1), b"little");
        driver.follow(&world.settle());
        shed = world.pool(PoolCounter::ClientsShed);
    }
    assert!((1..40).contains(&shed), "{shed}");
    // Both sides learn it, and nothing else was closed.
    assert_eq!(driver.reset.len() as u64, 2 * shed);
    for (client, server) in &pairs {
        assert_eq!(driver.reset.contains(client), driver.reset.contains(server));
    }
    let left: Vec<_> = pairs.iter().filter(|pair| !driver.reset.contains(&pair.0)).collect();
    assert_eq!(world.connections(0), left.len() as u64 + 1);
    // What they have had is taken, and all are read again.
    for (client, server) in left.iter().copied() {
        world.take(*client);
        world.take(*server);
        driver.follow(&world.settle());
    }
    driver.follow(&world.wait(1000));
    assert!(left.iter().all(|pair| driver.reads(pair.0) && driver.reads(pair.1)));
    for (client, server) in left {
        assert!(world.engine.partner(*client) == Some(*server));
        world.engine.handle_closed(*client, CloseReason::Reset, world.now);
    }
    world.settle();
    assert_eq!(world.engine.held_bytes(), 0);
}

#[test]
fn one_that_is_connected_under_pressure_is_not_read_until_it_is_over() {
    let mut world = World::of(&tight(", server_connect_timeout: 60000"));
    let mut driver = Driver::default();
    // What they say is kept until their servers are there.
    let clients: Vec<ConnId> = (0..60).map(|_| world.accept()).collect();
    let servers: Vec<ConnId> = world
        .settle()
        .iter()
        .filter_map(|action| match action {
            Action::Connect { conn, .. } => Some(*conn),
            _ => None,
        })
        .collect();
    let mut held = Vec::new();
    for (client, server) in clients.iter().zip(&servers) {
        for _ in 0..3 {
            if driver.reads(*client) {
                world.receive(*client, &[7; READ]);
                driver.follow(&world.settle());
            }
        }
        held.push((*client, *server));
    }
    assert!(world.pool(PoolCounter::ClientsThrottled) > 0);
    held.retain(|(client, _)| !driver.reset.contains(client));
    for (_, server) in &held {
        world.engine.handle_connected(*server, world.now);
        driver.follow(&world.settle());
    }
    let is_read = |driver: &Driver, conn| !driver.paused.contains(&conn);
    assert!(held.iter().any(|(_, server)| !is_read(&driver, *server)));
    for (_, server) in &held {
        world.take(*server);
        driver.follow(&world.settle());
    }
    driver.follow(&world.wait(1000));
    held.retain(|(client, _)| !driver.reset.contains(client));
    assert!(held.len() > 20, "{}", held.len());
    for (client, server) in held {
        assert!(is_read(&driver, client) && is_read(&driver, server));
    }
}
