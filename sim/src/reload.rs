//! Changes of the configuration.

use cashew_config::Snapshot;
use cashew_config::snapshot::{Pool, Topology};
use cashew_placement::{Distribution, Hash};

use crate::random::Random;
use crate::scenario::{pool_id, server_id};

/// Another configuration, a few changes away from this one. A removed pool does not return: its
/// clients may still be there.
pub(crate) fn changed(
    current: &Snapshot,
    universe: &[Pool],
    removed: &[u32],
    random: &mut Random,
) -> Snapshot {
    let mut next = current.clone();
    for _ in 0..random.below(4) {
        change(&mut next, universe, removed, random);
    }
    // The real order is that of names; a random order here shows what depends on it.
    if random.percent(50) {
        shuffle(&mut next.pools, random);
    }
    next
}

fn change(next: &mut Snapshot, universe: &[Pool], removed: &[u32], random: &mut Random) {
    let at = random.below(next.pools.len() as u64) as usize;
    let of_universe = &universe[pool_id(&next.pools[at]) as usize];
    let pool = &mut next.pools[at];
    match random.below(16) {
        0..=2 => {
            let known: Vec<u32> = pool.servers.iter().map(server_id).collect();
            let fresh: Vec<_> =
                of_universe.servers.iter().filter(|s| !known.contains(&server_id(s))).collect();
            if !fresh.is_empty() {
                let server = random.pick(&fresh).clone();
                edit_servers(pool, |servers| servers.push(server));
            }
        }
        3..=5 => {
            let at = random.below(pool.servers.len() as u64) as usize;
            if pool.servers.len() > 1 {
                edit_servers(pool, |servers| drop(servers.remove(at)));
            }
        }
        6 => {
            let at = random.below(pool.servers.len() as u64) as usize;
            pool.servers[at].weight = random.range(1, 4) as u32;
        }
        7 => edit_servers(pool, |servers| shuffle(servers, random)),
        8 => pool.hash = random.pick(&Hash::ALL),
        9 if pool.distribution != Distribution::Random => {
            pool.distribution = random.pick(&[Distribution::Ketama, Distribution::Modula]);
        }
        10 => pool.server_connections = random.range(1, 4) as u32,
        11 => {
            pool.limits.client_requests_max = random.range(1, 1000) as u32;
            pool.preconnect = random.percent(50);
            pool.server_retry_timeout_ms = random.range(10, 200);
            pool.server_failure_limit = random.range(1, 3) as u32;
        }
        12 => {
            pool.timeout_ms = of_universe.timeout_ms.filter(|_| random.percent(50));
            pool.auto_eject_hosts = random.percent(50);
        }
        13 if next.pools.len() > 1 => {
            next.pools.remove(at);
        }
        14 => {
            let is_fresh = |pool: &&Pool| {
                let named = next.pools.iter().any(|other| other.name == pool.name);
                !named && !removed.contains(&pool_id(pool))
            };
            let fresh: Vec<&Pool> = universe.iter().filter(is_fresh).collect();
            if !fresh.is_empty() {
                let mut pool = random.pick(&fresh).clone();
                let count = random.range(1, pool.servers.len() as u64) as usize;
                edit_servers(&mut pool, |servers| servers.truncate(count));
                next.pools.push(pool);
            }
        }
        15 => {
            let max = next.global.worker_memory_max;
            next.global.worker_memory_max = max.map(|_| random.range(500_000, 4_000_000));
        }
        _ => {}
    }
}

/// The master stays the same as long as it exists.
fn edit_servers(pool: &mut Pool, edit: impl FnOnce(&mut Vec<cashew_config::snapshot::Server>)) {
    let master = match pool.topology {
        Topology::MasterReplica { master } => Some(pool.servers[master as usize].name.clone()),
        Topology::Sharded | Topology::Groups(_) => None,
    };
    edit(&mut pool.servers);
    if let Some(name) = master {
        let master = pool.servers.iter().position(|server| server.name == name).unwrap_or(0);
        pool.topology = Topology::MasterReplica { master: master as u32 };
    }
}

fn shuffle<T>(list: &mut [T], random: &mut Random) {
    for at in 1..list.len() {
        list.swap(at, random.below(at as u64 + 1) as usize);
    }
}
