//! Sources for tests.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use cashew_config::Snapshot;
use cashew_config::snapshot::{
    Affinity, Endpoint, Global, IoEngine, Limits, Listen, Pool, Protocol, Server, Topology,
};
use cashew_metrics::{
    Layout, PoolCounter, PoolGauge, Segments, ServerCounter, ServerGauge, Shared, monotonic_ms,
};
use cashew_placement::{Distribution, Hash};

use crate::Source;

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
    segments.writer(0).beat(monotonic_ms());
    source
}

pub(crate) fn source_of(snapshot: Snapshot, slots: u32) -> (Source, Arc<Segments>) {
    let segments = Arc::new(Segments::in_memory(&Layout::new(&snapshot), slots));
    let started = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let shared = Shared::in_memory();
    shared.add_reload(1_700_000_100, Some("it is \"too\" hard"));
    shared.add_reload(1_700_000_200, None);
    (Source::new(Arc::new(snapshot), Arc::clone(&segments), shared, started, "1.2.3"), segments)
}

pub(crate) fn snapshot(pools: &[(&str, &[&str])]) -> Snapshot {
    let global = Global {
        worker_processes: 1,
        max_open_files: None,
        user: None,
        group: None,
        worker_shutdown_timeout_ms: 1000,
        batch_window_max_us: 0,
        worker_memory_max: None,
        io_engine: IoEngine::Auto,
        reload_drain_timeout_ms: 5000,
        control_socket: None,
        worker_cpu_affinity: Affinity::Off,
        worker_heartbeat_timeout_ms: 700,
        rebalance_threshold: None,
        stats_listen: None,
        log_file: None,
        log_level: None,
    };
    let pools = pools.iter().map(|(name, servers)| pool(name, servers)).collect();
    Snapshot { epoch: 1, global, pools }
}

fn pool(name: &str, servers: &[&str]) -> Pool {
    let server = |name: &&str| Server {
        name: (*name).into(),
        endpoint: Endpoint::Tcp { host: "127.0.0.1".into(), port: 6379 },
        weight: 1,
    };
    Pool {
        name: name.into(),
        listen: Listen::Tcp(([127, 0, 0, 1], 22121).into()),
        protocol: Protocol::Redis,
        hash: Hash::Fnv1a64,
        hash_tag: None,
        distribution: Distribution::Ketama,
        topology: Topology::Sharded,
        servers: servers.iter().map(server).collect(),
        timeout_ms: None,
        backlog: 512,
        client_connections: 0,
        tcp_keepalive: false,
        tcp_quickack: false,
        reuseport: true,
        redis_auth: None,
        memcached: Default::default(),
        redis_db: 0,
        databases: 16,
        preconnect: false,
        auto_eject_hosts: false,
        server_connections: 1,
        session_connections: 128,
        session_connections_idle: 0,
        session_wait_ms: 5000,
        server_retry_timeout_ms: 30_000,
        server_failure_limit: 2,
        cross_server_copy: false,
        limits: Limits::default(),
        commands: Vec::new(),
        commands_from_servers: false,
    }
}
