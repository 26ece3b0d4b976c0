//! Snapshots for tests.

use cashew_config::Snapshot;
use cashew_config::snapshot::{
    Affinity, Endpoint, Global, IoEngine, Limits, Listen, Pool, Protocol, Server, Topology,
};
use cashew_placement::{Distribution, Hash};

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
