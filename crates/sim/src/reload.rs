//! Changes of the configuration.

use cashew_config::Snapshot;
use cashew_config::snapshot::{Pool, Server, ServerGroup, Topology};
use cashew_placement::{Distribution, Hash};

use crate::random::Random;
use crate::route::{self, Copies};
use crate::scenario::{pool_id, server_id};
use crate::user;

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
    for pool in next.pools.iter_mut().filter(|pool| !pool.users.is_empty()) {
        if random.percent(50) {
            pool.users = user::lines(random);
        }
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
        0..=5 | 7 if matches!(pool.topology, Topology::Groups(_)) => {
            regroup(pool, of_universe, random);
        }
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

/// As when those who say where servers are name others all the time: any of those that there may be, in any order, and
/// groups of others.
pub(crate) fn named_anew(current: &Snapshot, universe: &[Pool], random: &mut Random) -> Snapshot {
    let mut next = current.clone();
    // Nothing else holds requests up then that are on their way to where keys were.
    let is_of_routes = next.pools.iter().any(|pool| pool.route.is_some()) && random.percent(40);
    for pool in &mut next.pools {
        let of_universe = &universe[pool_id(pool) as usize];
        match pool.topology {
            _ if random.percent(30) => {}
            _ if let Some(route) = &mut pool.route => {
                *route = route::tree(Copies::of(route), random);
            }
            _ if is_of_routes => {}
            Topology::Groups(_) => {
                for _ in 0..random.range(1, 3) {
                    regroup(pool, of_universe, random);
                }
            }
            Topology::Sharded => {
                let mut servers = of_universe.servers.clone();
                shuffle(&mut servers, random);
                servers.truncate(random.range(1, servers.len() as u64) as usize);
                pool.servers = servers;
            }
            Topology::MasterReplica { .. } => {}
        }
    }
    next
}

/// Changes one thing about the groups: a server joins one or leaves it, a group comes or goes, or another server of one is
/// configured as its primary.
fn regroup(pool: &mut Pool, of_universe: &Pool, random: &mut Random) {
    let Topology::Groups(groups) = &pool.topology else { return };
    let server_of = |at: u32| pool.servers[at as usize].clone();
    let mut groups: Vec<(String, u32, Vec<Server>)> = groups
        .iter()
        .map(|it| (it.name.clone(), it.weight, it.members().map(server_of).collect()))
        .collect();
    let known: Vec<u32> = pool.servers.iter().map(server_id).collect();
    let fresh: Vec<&Server> =
        of_universe.servers.iter().filter(|it| !known.contains(&server_id(it))).collect();
    let at = random.below(groups.len() as u64) as usize;
    let members = groups[at].2.len();
    match random.below(5) {
        0 if !fresh.is_empty() && members < 3 => groups[at].2.push(random.pick(&fresh).clone()),
        1 if members > 1 => drop(groups[at].2.remove(random.below(members as u64) as usize)),
        2 if !fresh.is_empty() && groups.len() < 4 => {
            let name = (0..).map(|number| format!("g{number}"));
            let mut names = name.filter(|name| groups.iter().all(|group| group.0 != *name));
            let name = names.next().unwrap_or_default();
            groups.push((name, random.range(1, 3) as u32, vec![random.pick(&fresh).clone()]));
            groups.sort_by(|a, b| a.0.cmp(&b.0));
        }
        3 if groups.len() > 1 => drop(groups.remove(at)),
        _ => groups[at].2.rotate_left(1),
    }
    // Without any copy it would be no pool of groups.
    if groups.iter().all(|group| group.2.len() < 2) {
        return;
    }
    let mut servers: Vec<Server> = Vec::new();
    let mut made = Vec::new();
    for (name, weight, members) in groups {
        let first = servers.len() as u32;
        servers.extend(members);
        let replicas = (first + 1..servers.len() as u32).collect();
        made.push(ServerGroup { name, weight, primary: first, replicas });
    }
    (pool.servers, pool.topology) = (servers, Topology::Groups(made));
}

/// The master stays the same as long as it exists.
fn edit_servers(pool: &mut Pool, edit: impl FnOnce(&mut Vec<Server>)) {
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
