//! Snapshots for tests, and how long tests with threads take.

use cashew_config::snapshot::{Pool, Server};
use cashew_config::{Context, Snapshot};

/// A snapshot from a file that has only pools and servers.
pub(crate) fn snapshot(pools: &[(&str, &[&str])]) -> Snapshot {
    let text = "global: {worker_processes: 1}
pools: {p: {listen: '127.0.0.1:22121', redis: true, servers: ['127.0.0.1:6379:1 s']}}";
    let mut snapshot = match cashew_config::parse("test.yml", text, &Context::of_system()) {
        Ok(loaded) => loaded.snapshot,
        Err(errors) => panic!("{errors}"),
    };
    let pool = snapshot.pools.remove(0);
    let server = |name: &&str| Server { name: (*name).into(), ..pool.servers[0].clone() };
    let named = |(name, servers): &(&str, &[&str])| Pool {
        name: (*name).into(),
        servers: servers.iter().map(server).collect(),
        ..pool.clone()
    };
    snapshot.pools = pools.iter().map(named).collect();
    snapshot
}

/// How often threads that meet by chance do something: a few times under Miri, which is a thousand times slower and makes
/// them meet by itself, in other ways with each seed.
pub(crate) const fn repetitions(count: usize) -> usize {
    const UNDER_MIRI: usize = 30;
    if cfg!(miri) && count > UNDER_MIRI { UNDER_MIRI } else { count }
}
