//! Snapshots for tests.

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
