//! Sources for tests.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use cashew_config::snapshot::{
    Address, ClusterMap, ClusterNode, ClusterShard, Pool, Server, SlotRange,
};
use cashew_config::{Context, Snapshot};
use cashew_discovery::{HeldStatus, MaintenanceStatus, SourceStatus};
use cashew_metrics::{
    Cause, Evidence, Layout, PoolCounter, PoolGauge, Segments, ServerCounter, ServerGauge, Shared,
    monotonic_ms,
};

use crate::{Discovery, GroupState, Source};

/// The pools of `tests/nutcracker.json`, and two workers, in slots 0 and 2 of 3, that worked for
/// pool alpha and its server one.
pub(crate) fn busy_source() -> Source {
    let pools: [(&str, &[&str]); 2] =
        [("beta", &["127.0.0.1:21211"]), ("alpha", &["one", "127.0.0.1:26380"])];
    let mut snapshot = snapshot(&pools);
    snapshot.epoch = 3;
    let (source, segments) = source_of(snapshot, 3);
    let (pool, server) = (segments.layout().pool(1), segments.layout().server(1, 0));
    for (slot, times) in [(0, 1), (2, 2)] {
        let worker = segments.writer(slot);
        worker.set_pid(100 + slot);
        worker.set_epoch(3);
        worker.set_buffered(4096);
        worker.add_pressed();
        worker.set_window_us(150);
        worker.set_busy(250);
        worker.add_sessions_in(5);
        worker.add_sessions_out(6);
        worker.add_sessions_cut(7);
        worker.set_started_at(1_700_000_000);
        worker.add_pool(pool, PoolCounter::Fragments, times);
        worker.add_pool(pool, PoolCounter::ClientsAccepted, 10);
        worker.set_pool(pool, PoolGauge::ClientConnections, 4 * times);
        worker.set_pool(pool, PoolGauge::RingVersion, 5);
        worker.record_pool(pool, 1000, 1);
        worker.record_pool(pool, 2_999_999 + times, 1);
        worker.add_server(server, ServerCounter::Requests, 10 * times);
        worker.add_server(server, ServerCounter::Connects, 3 * times);
        worker.set_server(server, ServerGauge::ServerConnections, times);
        worker.set_server(server, ServerGauge::OutQueue, 2 + times);
        worker.set_server(server, ServerGauge::Ejected, 1);
        worker.set_server(server, ServerGauge::EjectedAt, 1_700_000_000_000_000 + 250_000 * times);
        worker.record_server(server, 10_000, 1);
    }
    let gone = Evidence::Unreachable(Cause::Refused);
    segments.writer(0).note(server, gone, monotonic_ms() * 1000);
    segments.writer(0).beat(monotonic_ms());
    source
}

pub(crate) fn source_of(snapshot: Snapshot, slots: u32) -> (Source, Arc<Segments>) {
    let shared = Shared::in_memory();
    shared.add_reload(1_700_000_100, Some("it is \"too\" hard"));
    shared.add_reload(1_700_000_200, None);
    source_with(snapshot, shared, slots)
}

pub(crate) fn source_with(
    snapshot: Snapshot,
    shared: Shared,
    slots: u32,
) -> (Source, Arc<Segments>) {
    let segments = Arc::new(Segments::in_memory(&Layout::new(&snapshot), slots));
    let started = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    (Source::new(Arc::new(snapshot), Arc::clone(&segments), shared, started, "1.2.3"), segments)
}

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

/// Of a pool with two groups, of one of which it is known where the primary is.
pub(crate) fn watched_source() -> Source {
    let yaml = "alpha:
  listen: 127.0.0.1:1
  redis: true
  sentinels: [10.0.0.7:26379, 10.0.0.8:26379, 10.0.0.9:26379]
  servers:
   - {name: s1, sentinel: one}
   - {name: s2, sentinel: two}
";
    let loaded = cashew_config::parse("test.yml", yaml, &Context::of_system());
    let mut snapshot = loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot;
    let primary = Address { host: "10.0.0.1".to_owned(), port: 6379 };
    assert!(snapshot.set_primary("alpha", "s1", &primary, Some(3)));
    let discovery = Discovery::default();
    let state = GroupState {
        state: "stable".to_owned(),
        config_epoch: Some(4),
        switches: 2,
        switched_at: Some(1_700_000_300),
        why: "they say so".to_owned(),
    };
    let alpha = || "alpha".to_owned();
    discovery.group(alpha(), "s1".to_owned(), state.clone());
    discovery.group(alpha(), "gone".to_owned(), state);
    discovery.sentinel(alpha(), "10.0.0.7:26379".to_owned(), Some(true));
    discovery.sentinel(alpha(), "10.0.0.8:26379".to_owned(), Some(false));
    discovery.sentinel(alpha(), "10.0.0.9:26379".to_owned(), Some(true));
    discovery.sentinel(alpha(), "10.0.0.9:26379".to_owned(), None);
    source_of(snapshot, 1).0.with_discovery(discovery)
}

/// A pool in front of a cluster of a primary with a replica, and one without slots.
pub(crate) fn cluster_source() -> Source {
    let yaml =
        "alpha: {listen: 127.0.0.1:1, redis: true, cluster: {seeds: ['h:1', 'h:2', 'h:3']}}\n";
    let loaded = cashew_config::parse("t.yml", yaml, &cashew_config::Context::of_system());
    let mut snapshot = loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot;
    let node =
        |port| ClusterNode { address: Address { host: "10.0.0.1".to_owned(), port }, zone: None };
    let shard = |port, replicas: &[u16], slots: &[SlotRange]| ClusterShard {
        primary: node(port),
        replicas: replicas.iter().map(|&port| node(port)).collect(),
        slots: slots.to_vec(),
        epoch: 7,
    };
    let slots = [SlotRange { first: 0, last: 99 }, SlotRange { first: 200, last: 200 }];
    let map =
        ClusterMap { shards: vec![shard(1, &[2], &slots), shard(3, &[], &[])], moving: Vec::new() };
    assert!(snapshot.set_cluster_map("alpha", &map));
    let discovery = Discovery::default();
    let seed = |host: &str, is_answering| {
        discovery.seed("alpha".to_owned(), host.to_owned(), is_answering);
    };
    seed("h:1", Some(true));
    seed("h:2", Some(false));
    seed("gone:1", Some(true));
    source_of(snapshot, 1).0.with_discovery(discovery)
}

/// A pool whose servers are asked to tell of their maintenance, of which one has moved.
pub(crate) fn maintained_source() -> Source {
    let yaml = "
alpha: {listen: 127.0.0.1:1, redis: true, server_maintenance: true, servers: ['10.0.0.1:1:1 s1', '10.0.0.1:2:1 s2']}
";
    let loaded = cashew_config::parse("t.yml", yaml, &cashew_config::Context::of_system());
    let snapshot = loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot;
    let discovery = Discovery::default();
    discovery.maintained(MaintenanceStatus {
        pool: "alpha".to_owned(),
        server: "s1".to_owned(),
        address: "10.0.0.9:1".to_owned(),
        moved_from: Some("10.0.0.1:1".to_owned()),
        state: "tells".to_owned(),
        is_relaxed: true,
        notices: 2,
        last: Some("MOVING 7".to_owned()),
        last_at: Some(1_700_000_300),
    });
    source_of(snapshot, 1).0.with_discovery(discovery)
}

/// A pool whose servers a file names, of which one is held back, and one of whose source nothing is known.
pub(crate) fn found_source() -> Source {
    let yaml = "
alpha: {listen: 127.0.0.1:1, servers_from: {file: /etc/list}}
gamma: {listen: 127.0.0.1:2, servers_from: {dns: {name: a.b, port: 1}}}
";
    let loaded = cashew_config::parse("t.yml", yaml, &cashew_config::Context::of_system());
    let mut snapshot = loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot;
    let server = |line: &str| cashew_config::parse_server(line, "").unwrap();
    let alpha = snapshot.pools.iter_mut().find(|pool| pool.name == "alpha").unwrap();
    assert!(alpha.set_found(&[server("h:1:1 s1"), server("h:2:1 s2")]));
    let discovery = Discovery::default();
    discovery.source(SourceStatus {
        pool: "alpha".to_owned(),
        kind: "file".to_owned(),
        source: "file /etc/list".to_owned(),
        is_answering: Some(true),
        answered_at: Some(1_700_000_300),
        named: Some(1),
        held: Some(HeldStatus { servers: 1, of: 2, ..HeldStatus::default() }),
        ..SourceStatus::default()
    });
    // Of a source that is not its any more.
    discovery.source(SourceStatus {
        pool: "gamma".to_owned(),
        source: "file /etc/other".to_owned(),
        is_answering: Some(true),
        ..SourceStatus::default()
    });
    source_of(snapshot, 1).0.with_discovery(discovery)
}
