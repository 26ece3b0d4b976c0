//! The statistics as JSON, in full and in the shape of twemproxy's multi-process fork.
//!
//! As in twemproxy's own shape, pools are beside the header and servers beside a pool's numbers. In
//! full, Cashew's additions come after twemproxy's own names, and yield to a pool or server of the
//! same name.

use std::time::SystemTime;

use cashew_config::snapshot::{ClusterShard, Pool, Pose, ServerSource, StatsFormat};
use cashew_discovery::{MaintenanceStatus, SourceStatus};
use cashew_metrics::{
    Histogram, LastReload, PoolCounter, PoolGauge, PoolId, ServerCounter, ServerGauge, ServerId,
    Stat,
};

use crate::counted;
use crate::discovery::{ClusterState, Group, Sentinel};
use crate::json::{Json, Object};
use crate::nutcracker;
use crate::source::{Member, Numbers, ServerStatus, Source, Worker, unix_seconds};
use cashew_migration::MoveStatus;

/// What monitoring of twemproxy looks for, whatever the name of the program.
pub(crate) const SERVICE: &str = "nutcracker";

/// Upper bounds, in milliseconds, of all but the last of the fork's counts.
const FORK_BOUNDS_MS: [u64; 10] = [1, 10, 20, 50, 100, 200, 500, 1000, 2000, 3000];

#[derive(Clone, Copy)]
pub(crate) enum PoolStat {
    Counter(PoolCounter),
    Gauge(PoolGauge),
}

#[derive(Clone, Copy)]
pub(crate) enum ServerStat {
    Counter(ServerCounter),
    Gauge(ServerGauge),
}

/// Twemproxy's names in its order ([`POOL_STATS_OF_TWEMPROXY`] of them), then ours.
pub(crate) const POOL_STATS: [PoolStat; 81] = [
    PoolStat::Counter(PoolCounter::ClientEof),
    PoolStat::Counter(PoolCounter::ClientErr),
    PoolStat::Gauge(PoolGauge::ClientConnections),
    PoolStat::Counter(PoolCounter::ServerEjects),
    PoolStat::Counter(PoolCounter::ForwardError),
    PoolStat::Counter(PoolCounter::Fragments),
    PoolStat::Counter(PoolCounter::ClientsAccepted),
    PoolStat::Counter(PoolCounter::ClientsRefused),
    PoolStat::Counter(PoolCounter::ClientsOverflowed),
    PoolStat::Counter(PoolCounter::ClientsShed),
    PoolStat::Counter(PoolCounter::CommandsRefused),
    PoolStat::Counter(PoolCounter::MaintenanceNotices),
    PoolStat::Counter(PoolCounter::AuthFailures),
    PoolStat::Counter(PoolCounter::ExternalAuthAsked),
    PoolStat::Counter(PoolCounter::ExternalAuthRefused),
    PoolStat::Counter(PoolCounter::ExternalAuthOutages),
    PoolStat::Counter(PoolCounter::ExternalAuthCached),
    PoolStat::Gauge(PoolGauge::ExternalAuthLost),
    PoolStat::Counter(PoolCounter::ClientsThrottled),
    PoolStat::Counter(PoolCounter::LargeWaits),
    PoolStat::Counter(PoolCounter::SlowClients),
    PoolStat::Counter(PoolCounter::SessionWaits),
    PoolStat::Counter(PoolCounter::SessionsReclaimed),
    PoolStat::Counter(PoolCounter::PipelinesPaused),
    PoolStat::Counter(PoolCounter::ClientBytesReceived),
    PoolStat::Counter(PoolCounter::ClientBytesSent),
    PoolStat::Counter(PoolCounter::Requests),
    PoolStat::Counter(PoolCounter::Responses),
    PoolStat::Gauge(PoolGauge::RingVersion),
    PoolStat::Gauge(PoolGauge::Subscriptions),
    PoolStat::Counter(PoolCounter::MessagesDelivered),
    PoolStat::Counter(PoolCounter::MonitorDropped),
    PoolStat::Counter(PoolCounter::ScriptFlushes),
    PoolStat::Counter(PoolCounter::RequestsRetried),
    PoolStat::Counter(PoolCounter::RouteFailovers),
    PoolStat::Counter(PoolCounter::RouteRefused),
    PoolStat::Counter(PoolCounter::RegionCopies),
    PoolStat::Counter(PoolCounter::RegionForgets),
    PoolStat::Counter(PoolCounter::CacheHits),
    PoolStat::Counter(PoolCounter::CacheMisses),
    PoolStat::Counter(PoolCounter::CacheFills),
    PoolStat::Counter(PoolCounter::CacheWritten),
    PoolStat::Counter(PoolCounter::CacheInvalidations),
    PoolStat::Counter(PoolCounter::CacheEvictions),
    PoolStat::Counter(PoolCounter::CopyReads),
    PoolStat::Counter(PoolCounter::CopiesWritten),
    PoolStat::Counter(PoolCounter::CopiesMissing),
    PoolStat::Counter(PoolCounter::CopiesRefused),
    PoolStat::Gauge(PoolGauge::CacheEntries),
    PoolStat::Gauge(PoolGauge::CacheBytes),
    PoolStat::Gauge(PoolGauge::CacheBoundMs),
    PoolStat::Gauge(PoolGauge::CacheRefused),
    PoolStat::Counter(PoolCounter::ShadowSent),
    PoolStat::Counter(PoolCounter::ShadowDiffers),
    PoolStat::Counter(PoolCounter::WarmUpFills),
    PoolStat::Counter(PoolCounter::ConnectionsPassed),
    PoolStat::Counter(PoolCounter::ConnectionsRetried),
    PoolStat::Counter(PoolCounter::ConnectionsWaited),
    PoolStat::Counter(PoolCounter::ConnectionsFailed),
    PoolStat::Counter(PoolCounter::ConnectionsIdle),
    PoolStat::Counter(PoolCounter::ConnectionMs),
    PoolStat::Counter(PoolCounter::Moved),
    PoolStat::Counter(PoolCounter::Asked),
    PoolStat::Counter(PoolCounter::TriedAgain),
    PoolStat::Counter(PoolCounter::RedirectsPassedOn),
    PoolStat::Counter(PoolCounter::RetriesDenied),
    PoolStat::Counter(PoolCounter::ReadsCoalesced),
    PoolStat::Counter(PoolCounter::KeysInvalidated),
    PoolStat::Counter(PoolCounter::HedgesSent),
    PoolStat::Counter(PoolCounter::HedgesWon),
    PoolStat::Counter(PoolCounter::HedgesDenied),
    PoolStat::Counter(PoolCounter::TlsHandshakes),
    PoolStat::Counter(PoolCounter::TlsResumed),
    PoolStat::Counter(PoolCounter::TlsOlder),
    PoolStat::Counter(PoolCounter::TlsPlain),
    PoolStat::Counter(PoolCounter::TlsVersions),
    PoolStat::Counter(PoolCounter::TlsCertificates),
    PoolStat::Counter(PoolCounter::TlsTimeouts),
    PoolStat::Counter(PoolCounter::TlsFailures),
    PoolStat::Counter(PoolCounter::ClientsDenied),
    PoolStat::Counter(PoolCounter::ProxyHeaderErrors),
];
pub(crate) const POOL_STATS_OF_TWEMPROXY: usize = 6;

/// Twemproxy's names in its order ([`SERVER_STATS_OF_TWEMPROXY`] of them), then ours.
pub(crate) const SERVER_STATS: [ServerStat; 30] = [
    ServerStat::Counter(ServerCounter::ServerEof),
    ServerStat::Counter(ServerCounter::ServerErr),
    ServerStat::Counter(ServerCounter::ServerTimedout),
    ServerStat::Gauge(ServerGauge::ServerConnections),
    ServerStat::Gauge(ServerGauge::EjectedAt),
    ServerStat::Counter(ServerCounter::Requests),
    ServerStat::Counter(ServerCounter::RequestBytes),
    ServerStat::Counter(ServerCounter::Responses),
    ServerStat::Counter(ServerCounter::ResponseBytes),
    ServerStat::Gauge(ServerGauge::InQueue),
    ServerStat::Gauge(ServerGauge::InQueueBytes),
    ServerStat::Gauge(ServerGauge::OutQueue),
    ServerStat::Gauge(ServerGauge::OutQueueBytes),
    ServerStat::Counter(ServerCounter::Connects),
    ServerStat::Counter(ServerCounter::ConnectErrors),
    ServerStat::Counter(ServerCounter::ConnectUs),
    ServerStat::Counter(ServerCounter::ConnectsPaced),
    ServerStat::Counter(ServerCounter::ProtocolErrors),
    ServerStat::Counter(ServerCounter::Spooled),
    ServerStat::Counter(ServerCounter::SpoolRefused),
    ServerStat::Counter(ServerCounter::WritesMissed),
    ServerStat::Counter(ServerCounter::Invalidated),
    ServerStat::Gauge(ServerGauge::Ejected),
    ServerStat::Gauge(ServerGauge::Silent),
    ServerStat::Gauge(ServerGauge::Sessions),
    ServerStat::Gauge(ServerGauge::InLine),
    ServerStat::Gauge(ServerGauge::Drained),
    ServerStat::Counter(ServerCounter::TlsHandshakes),
    ServerStat::Counter(ServerCounter::TlsResumed),
    ServerStat::Counter(ServerCounter::TlsFailures),
];
pub(crate) const SERVER_STATS_OF_TWEMPROXY: usize = 13;

// The lists are complete.
const _: () = assert!(POOL_STATS.len() == PoolCounter::ALL.len() + PoolGauge::ALL.len());
const _: () = assert!(SERVER_STATS.len() == ServerCounter::ALL.len() + ServerGauge::ALL.len());

impl PoolStat {
    pub(crate) fn stat(self) -> &'static Stat {
        match self {
            Self::Counter(counter) => counter.stat(),
            Self::Gauge(gauge) => gauge.stat(),
        }
    }

    pub(crate) fn value(self, numbers: Numbers<'_>, pool: PoolId) -> u64 {
        match self {
            Self::Counter(counter) => numbers.pool_counter(pool, counter),
            Self::Gauge(gauge) => numbers.pool_gauge(pool, gauge),
        }
    }
}

impl ServerStat {
    pub(crate) fn stat(self) -> &'static Stat {
        match self {
            Self::Counter(counter) => counter.stat(),
            Self::Gauge(gauge) => gauge.stat(),
        }
    }

    pub(crate) fn value(self, numbers: Numbers<'_>, server: ServerId) -> u64 {
        match self {
            Self::Counter(counter) => numbers.server_counter(server, counter),
            Self::Gauge(gauge) => numbers.server_gauge(server, gauge),
        }
    }
}

/// For whoever asks for nothing.
pub(crate) fn unasked(source: &Source) -> Vec<u8> {
    match source.snapshot().global.stats_raw {
        StatsFormat::Nutcracker => nutcracker::line(source),
        StatsFormat::Full => full_shape(source).to_line(),
    }
}

/// In the format that the query of an address names; in full without one.
pub(crate) fn in_format(query: &str, source: &Source) -> Vec<u8> {
    let format = query.split('&').find_map(|pair| pair.strip_prefix("format="));
    match format {
        Some("nutcracker") => nutcracker::line(source),
        Some("fork") => fork_shape(source).to_line(),
        _ => full_shape(source).to_line(),
    }
}

/// All workers together, with everything that is known.
pub(crate) fn full_shape(source: &Source) -> Json<'_> {
    let numbers = source.total();
    let mut root = header(source, source.started_at());
    connections(&mut root, source, numbers);
    for (index, pool) in source.snapshot().pools.iter().enumerate() {
        root.insert(&pool.name, pool_with_servers(source, numbers, index));
    }
    if !root.has("cashew") {
        root.insert("cashew", cashew(source));
    }
    root.into()
}

/// Each worker by itself, in the fork's shape: a list, or the bare object if there is no master.
pub(crate) fn fork_shape(source: &Source) -> Json<'_> {
    let mut workers = source.workers().map(|worker| fork_worker(source, &worker));
    if source.snapshot().global.worker_processes == 0 {
        workers.next().unwrap_or_default().into()
    } else {
        workers.collect()
    }
}

fn fork_worker<'a>(source: &'a Source, worker: &Worker) -> Object<'a> {
    let numbers = source.of_slot(worker.slot);
    let started_at = match worker.header.started_at {
        0 => source.started_at(),
        started_at => started_at,
    };
    let mut root = header(source, started_at);
    root.insert("pid", u64::from(worker.header.pid));
    connections(&mut root, source, numbers);
    let mut pools = Object::default();
    for (index, pool) in source.snapshot().pools.iter().enumerate() {
        pools.insert(&pool.name, fork_pool(source, numbers, index));
    }
    root.insert("pools", pools);
    root
}

fn header(source: &Source, started_at: u64) -> Object<'_> {
    let now = unix_seconds(SystemTime::now());
    let mut header = Object::default();
    header.insert("service", SERVICE);
    header.insert("source", source.host());
    header.insert("version", source.version());
    header.insert("uptime", now.saturating_sub(started_at));
    header.insert("timestamp", now);
    header
}

fn connections(root: &mut Object<'_>, source: &Source, numbers: Numbers<'_>) {
    let (total, current) = count_connections(source, numbers);
    root.insert("total_connections", total);
    root.insert("curr_connections", current);
}

/// Clients, servers and one listener per pool: since the start, and now.
pub(crate) fn count_connections(source: &Source, numbers: Numbers<'_>) -> (u64, u64) {
    let layout = source.layout();
    let (mut total, mut current) = (0, 0);
    for (index, pool) in source.snapshot().pools.iter().enumerate() {
        let id = layout.pool(index);
        total += 1 + numbers.pool_counter(id, PoolCounter::ClientsAccepted);
        current += 1 + numbers.pool_gauge(id, PoolGauge::ClientConnections);
        for server in 0..pool.servers.len() {
            let id = layout.server(index, server);
            total += numbers.server_counter(id, ServerCounter::Connects);
            current += numbers.server_gauge(id, ServerGauge::ServerConnections);
        }
    }
    (total, current)
}

fn pool_with_servers<'a>(source: &'a Source, numbers: Numbers<'_>, pool: usize) -> Object<'a> {
    let id = source.layout().pool(pool);
    let servers = &source.snapshot().pools[pool].servers;
    let (known, added) = POOL_STATS.split_at(POOL_STATS_OF_TWEMPROXY);
    let mut object = pool_stats(numbers, id, known);
    for (index, server) in servers.iter().enumerate() {
        source.beat();
        object.insert(&server.name, server_with_additions(source, numbers, pool, index));
    }
    for stat in added {
        if !object.has(stat.stat().name) {
            object.insert(stat.stat().name, stat.value(numbers, id));
        }
    }
    if !object.has("request_latency") {
        object.insert("request_latency", latency(&numbers.pool_latency(id)));
    }
    let (classes, prefixes) = (counted::classes(source, pool), counted::prefixes(source, pool));
    for (name, parts) in [("commands", classes), ("prefixes", prefixes)] {
        if !parts.is_empty() && !object.has(name) {
            object.insert(name, counted::object(numbers, id, parts));
        }
    }
    let users = counted::users(source, pool);
    if !users.is_empty() && !object.has("users") {
        object.insert(
            "users",
            counted::user_object(numbers, id, users, &source.snapshot().pools[pool]),
        );
    }
    object
}

fn server_with_additions<'a>(
    source: &Source,
    numbers: Numbers<'_>,
    pool: usize,
    server: usize,
) -> Object<'a> {
    let id = source.layout().server(pool, server);
    let mut object = server_stats(numbers, id, &SERVER_STATS);
    object.insert("server_latency", latency(&numbers.server_latency(id)));
    if source.snapshot().pools[pool].spool.is_some() {
        let spool = source.spool(id);
        object.insert("spool_depth", spool.depth);
        object.insert("spool_oldest_at", spool.oldest_at);
        object.insert("spool_replayed", spool.replayed);
        object.insert("spool_held", u64::from(spool.is_held));
    }
    object
}

fn fork_pool<'a>(source: &'a Source, numbers: Numbers<'_>, pool: usize) -> Object<'a> {
    let id = source.layout().pool(pool);
    let mut servers = Object::default();
    for (index, server) in source.snapshot().pools[pool].servers.iter().enumerate() {
        let id = source.layout().server(pool, index);
        let mut object = server_stats(numbers, id, &SERVER_STATS[..SERVER_STATS_OF_TWEMPROXY]);
        object.insert("server_latency", latency(&numbers.server_latency(id)));
        servers.insert(&server.name, object);
    }
    let mut object = pool_stats(numbers, id, &POOL_STATS[..POOL_STATS_OF_TWEMPROXY]);
    object.insert("request_latency", latency(&numbers.pool_latency(id)));
    object.insert("servers", servers);
    object
}

fn pool_stats<'a>(numbers: Numbers<'_>, pool: PoolId, stats: &[PoolStat]) -> Object<'a> {
    let mut object = Object::default();
    for stat in stats {
        object.insert(stat.stat().name, stat.value(numbers, pool));
    }
    object
}

fn server_stats<'a>(numbers: Numbers<'_>, server: ServerId, stats: &[ServerStat]) -> Object<'a> {
    let mut object = Object::default();
    for stat in stats {
        object.insert(stat.stat().name, stat.value(numbers, server));
    }
    object
}

/// The fork's counts: each covers values above the previous bound and up to its own; the last has
/// all beyond.
fn latency<'a>(histogram: &Histogram) -> Json<'a> {
    let mut below = 0;
    let up_to = FORK_BOUNDS_MS.map(|ms| histogram.count_le(ms * 1000));
    up_to
        .into_iter()
        .chain([histogram.count()])
        .map(|count| {
            let within = count - below;
            below = count;
            within
        })
        .collect()
}

fn cashew(source: &Source) -> Object<'_> {
    let mut object = Object::default();
    object.insert("version", source.version());
    object.insert("epoch", source.snapshot().epoch);
    object.insert("reloads", reloads(source));
    let cut = source.slots().map(|worker| worker.header.sessions_cut).sum::<u64>();
    object.insert("sessions_cut", cut);
    object.insert("log_lines_lost", source.log_lines_lost());
    object.insert(
        "workers",
        source.workers().map(|worker| worker_state(&worker)).collect::<Json<'_>>(),
    );
    object.insert("servers", source.servers().map(server_status).collect::<Json<'_>>());
    if source.snapshot().has_sentinels() {
        let groups = source.groups().into_iter().map(group);
        object.insert("groups", groups.collect::<Json<'_>>());
        let sentinels = source.sentinels().into_iter().map(sentinel);
        object.insert("sentinels", sentinels.collect::<Json<'_>>());
    }
    let clusters = source.clusters();
    if !clusters.is_empty() {
        object.insert("clusters", clusters.into_iter().map(cluster).collect::<Json<'_>>());
    }
    let sources = source.sources();
    if !sources.is_empty() {
        object.insert("sources", sources.into_iter().map(server_source).collect::<Json<'_>>());
    }
    let maintained = source.maintained();
    if !maintained.is_empty() {
        let all = maintained.into_iter().map(server_maintenance).collect::<Json<'_>>();
        object.insert("server_maintenance", all);
    }
    let moves = source.moves();
    if !moves.is_empty() {
        object.insert("moves", moves.into_iter().map(move_of_pools).collect::<Json<'_>>());
    }
    let posing = source.snapshot().pools.iter().filter_map(|it| Some((it, it.pose.as_ref()?)));
    let poses: Vec<_> = posing.map(|(pool, it)| pose(pool, it)).collect();
    if !poses.is_empty() {
        object.insert("poses", poses.into_iter().collect::<Json<'_>>());
    }
    let open = source.open_pools();
    if !open.is_empty() {
        object.insert("fail_open", open.into_iter().map(open_pool).collect::<Json<'_>>());
    }
    let members = source.members();
    if !members.is_empty() {
        object.insert("members", members.into_iter().map(member).collect::<Json<'_>>());
    }
    object
}

fn move_of_pools<'a>(it: MoveStatus) -> Object<'a> {
    let mut object = Object::default();
    object.insert("route", Some(it.route));
    object.insert("serves", Some(it.from));
    object.insert("follows", Some(it.to));
    object.insert("state", Some(it.state));
    object.insert("directory", Some(it.directory));
    // As Prometheus has it.
    object.insert("cut_over", u64::from(it.is_cut_over));
    for (name, number) in [
        ("keys", it.keys),
        ("keys_walked", it.keys_walked),
        ("keys_copied", it.keys_copied),
        ("keys_removed", it.keys_removed),
        ("bytes_copied", it.bytes_copied),
        ("keys_per_second", it.keys_per_second),
        ("keys_behind", it.keys_behind),
        ("lag_ms", it.lag_ms),
        ("keys_compared", it.keys_compared),
        ("mismatches", it.mismatches),
        ("keys_refused", it.keys_refused),
        ("keys_misplaced", it.keys_misplaced),
        ("walks", it.walks),
        ("errors", it.errors),
    ] {
        object.insert(name, number);
    }
    object.insert("eta_s", it.eta_s);
    object.insert("verified_at", it.verified_at);
    object.insert("last_error", it.last_error);
    object
}

fn pose<'a>(pool: &'a Pool, pose: &Pose) -> Object<'a> {
    let mut object = Object::default();
    object.insert("pool", pool.name.as_str());
    object.insert("pose", "cluster");
    let advertise = pose.advertise.iter().map(|address| Some(address.to_string()));
    object.insert("advertise", advertise.collect::<Json<'_>>());
    object
}

fn open_pool((pool, is_open): (&str, bool)) -> Object<'_> {
    let mut object = Object::default();
    object.insert("pool", pool);
    // As Prometheus has it.
    object.insert("open", u64::from(is_open));
    object
}

fn member(member: Member<'_>) -> Object<'_> {
    let state = member.state;
    let mut object = Object::default();
    object.insert("pool", member.pool);
    object.insert("server", member.server);
    object.insert("role", Some(state.role.name().to_owned()));
    object.insert("reads", Some(state.fitness.name().to_owned()));
    object.insert("lag_bytes", state.lag);
    // As Prometheus has it.
    object.insert("link_up", state.is_link_up.map(u64::from));
    object.insert("link_down_s", state.link_down_secs);
    object
}

fn server_status(server: ServerStatus<'_>) -> Object<'_> {
    let mut object = Object::default();
    object.insert("pool", server.pool);
    object.insert("server", server.name);
    object.insert("address", Some(server.address));
    // As Prometheus has it.
    object.insert("up", u64::from(server.state.health.is_up()));
    object.insert("state", server.state.health.name());
    let cause = server.state.cause.text().to_owned();
    object.insert("cause", Some(cause).filter(|text| !text.is_empty()));
    object.insert("since", server.since_ms.map(|ms| ms / 1000));
    object.insert("last_error", server.last_error.map(|(why, _)| why.to_owned()));
    object.insert("last_error_at", server.last_error.map(|(_, ms)| ms / 1000));
    object
}

fn group(group: Group<'_>) -> Object<'_> {
    let mut object = Object::default();
    object.insert("pool", group.pool);
    object.insert("server", group.server);
    object.insert("master", group.master);
    object.insert("primary", group.primary);
    object.insert("config_epoch", group.state.config_epoch);
    object.insert("state", Some(group.state.state));
    object.insert("switches", group.state.switches);
    object.insert("switched_at", group.state.switched_at);
    object.insert("why", Some(group.state.why).filter(|why| !why.is_empty()));
    object
}

fn sentinel(sentinel: Sentinel<'_>) -> Object<'_> {
    let mut object = Object::default();
    object.insert("pool", sentinel.pool);
    object.insert("address", Some(sentinel.address));
    // As Prometheus has it.
    object.insert("up", sentinel.is_answering.map(u64::from));
    object
}

fn cluster(state: ClusterState<'_>) -> Object<'_> {
    let ClusterState { pool, cluster, map, seeds } = state;
    let mut object = Object::default();
    object.insert("pool", &*pool.name);
    object.insert("config_epoch", cluster.epoch);
    object.insert("map_changes", u64::from(cluster.changes));
    object.insert("nodes", map.nodes().count() as u64);
    object.insert("slots_covered", map.coverage() as u64);
    let shard = |shard: &ClusterShard| {
        let mut object = Object::default();
        object.insert("primary", Some(shard.primary.name()));
        object.insert("replicas", shard.replicas.len() as u64);
        object.insert("slots", shard.slots_owned() as u64);
        object
    };
    object.insert("shards", map.shards.iter().map(shard).collect::<Json<'_>>());
    let seed = |(address, is_answering): (String, Option<bool>)| {
        let mut object = Object::default();
        object.insert("address", Some(address));
        // As Prometheus has it.
        object.insert("up", is_answering.map(u64::from));
        object
    };
    object.insert("seeds", seeds.into_iter().map(seed).collect::<Json<'_>>());
    object
}

/// How it is with a server that is asked to tell of its maintenance.
fn server_maintenance<'a>(status: MaintenanceStatus) -> Object<'a> {
    let mut object = Object::default();
    // As Prometheus has it.
    object.insert("tells", u64::from(status.state == "tells"));
    object.insert("relaxed", u64::from(status.is_relaxed));
    object.insert("notices", status.notices);
    object.insert("pool", Some(status.pool));
    object.insert("server", Some(status.server));
    object.insert("address", Some(status.address));
    object.insert("moved_from", status.moved_from);
    object.insert("state", Some(status.state));
    object.insert("last", status.last);
    object.insert("last_at", status.last_at);
    object
}

/// Who names the servers of a pool.
fn server_source((pool, status): (&Pool, SourceStatus)) -> Object<'_> {
    let mut object = Object::default();
    object.insert("pool", &*pool.name);
    object.insert("kind", pool.source().map_or("", ServerSource::kind));
    object.insert("source", pool.source().map(ToString::to_string));
    // As Prometheus has it.
    object.insert("up", status.is_answering.map(u64::from));
    object.insert("failure", status.failure);
    object.insert("answered_at", status.answered_at);
    object.insert("named", status.named);
    object.insert("servers", pool.found().len() as u64);
    object.insert("held", status.held.map_or(0, |held| held.servers));
    object.insert("changes", u64::from(pool.servers_from.as_ref().map_or(0, |it| it.changes)));
    object
}

pub(crate) fn reloads(source: &Source) -> Object<'_> {
    let reloads = source.reloads();
    let mut object = Object::default();
    object.insert("ok", reloads.ok);
    object.insert("failed", reloads.failed);
    object.insert("last_at", reloads.last.map(|last| last.at));
    let result = |last: LastReload| if last.is_ok { "ok" } else { "failed" };
    object.insert("last_result", reloads.last.map_or(Json::Null, |last| result(last).into()));
    object.insert("last_failure", reloads.failure);
    object
}

pub(crate) fn worker_state<'a>(worker: &Worker) -> Object<'a> {
    let mut object = Object::default();
    object.insert("slot", u64::from(worker.slot));
    object.insert("pid", u64::from(worker.header.pid));
    object.insert("epoch", worker.header.epoch);
    object.insert("started_at", worker.header.started_at);
    object.insert("heartbeat_age_ms", worker.heartbeat_age_ms());
    object.insert("buffered_bytes", worker.header.buffered);
    object.insert("memory_pressed", worker.header.pressed);
    object.insert("batch_window_us", worker.header.window_us);
    object.insert("busy_permille", u64::from(worker.header.busy));
    object.insert("sessions_in", worker.header.sessions_in);
    object.insert("sessions_out", worker.header.sessions_out);
    object.insert("sessions_cut", worker.header.sessions_cut);
    object
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::testing::{
        busy_source, cluster_source, found_source, maintained_source, snapshot, source_of,
        watched_source,
    };

    #[test]
    fn groups_are_told_of_where_there_are_any() {
        assert!(parse(&full_shape(&busy_source()))["cashew"].get("groups").is_none());
        let source = watched_source();
        let told = parse(&full_shape(&source));
        let groups = serde_json::json!([
            {"pool": "alpha", "server": "s1", "master": "one", "primary": "10.0.0.1:6379",
             "config_epoch": 4, "state": "stable", "switches": 2,
             "switched_at": 1_700_000_300, "why": "they say so"},
            {"pool": "alpha", "server": "s2", "master": "two", "primary": null,
             "config_epoch": null, "state": "not watched", "switches": 0,
             "switched_at": null, "why": null},
        ]);
        assert_eq!(told["cashew"]["groups"], groups);
        let ups = told["cashew"]["sentinels"].as_array().unwrap().iter().map(|it| &it["up"]);
        assert_eq!(ups.collect::<Vec<_>>(), [&1.into(), &0.into(), &Value::Null]);
    }

    #[test]
    fn clusters_are_told_of_where_there_are_any() {
        assert!(parse(&full_shape(&busy_source()))["cashew"].get("clusters").is_none());
        let told = parse(&full_shape(&cluster_source()));
        let clusters = serde_json::json!([
            {"pool": "alpha", "config_epoch": 7, "map_changes": 1, "nodes": 3, "slots_covered": 101,
             "shards": [{"primary": "10.0.0.1:1", "replicas": 1, "slots": 101},
                        {"primary": "10.0.0.1:3", "replicas": 0, "slots": 0}],
             "seeds": [{"address": "h:1", "up": 1}, {"address": "h:2", "up": 0},
                       {"address": "h:3", "up": null}]},
        ]);
        assert_eq!(told["cashew"]["clusters"], clusters);
    }

    #[test]
    fn sources_are_told_of_where_there_are_any() {
        assert!(parse(&full_shape(&busy_source()))["cashew"].get("sources").is_none());
        let told = parse(&full_shape(&found_source()));
        let sources = serde_json::json!([
            {"pool": "alpha", "kind": "file", "source": "file /etc/list", "up": 1, "failure": null,
             "answered_at": 1_700_000_300, "named": 1, "servers": 2, "held": 1, "changes": 1},
            {"pool": "gamma", "kind": "dns", "source": "DNS a.b, port 1", "up": null, "failure": null,
             "answered_at": null, "named": null, "servers": 0, "held": 0, "changes": 0},
        ]);
        assert_eq!(told["cashew"]["sources"], sources);
    }

    #[test]
    fn servers_that_tell_of_their_maintenance_are_told_of_where_there_are_any() {
        assert!(parse(&full_shape(&busy_source()))["cashew"].get("server_maintenance").is_none());
        let told = parse(&full_shape(&maintained_source()));
        let servers = serde_json::json!([
            {"pool": "alpha", "server": "s1", "address": "10.0.0.9:1", "moved_from": "10.0.0.1:1",
             "state": "tells", "tells": 1, "relaxed": 1, "notices": 2, "last": "MOVING 7",
             "last_at": 1_700_000_300},
            {"pool": "alpha", "server": "s2", "address": "10.0.0.1:2", "moved_from": null,
             "state": "asked", "tells": 0, "relaxed": 0, "notices": 0, "last": null, "last_at": null},
        ]);
        assert_eq!(told["cashew"]["server_maintenance"], servers);
    }

    #[test]
    fn poses_are_told_of_where_there_are_any() {
        assert!(parse(&full_shape(&busy_source()))["cashew"].get("poses").is_none());
        let yaml = "
alpha: {listen: 127.0.0.1:1, redis: true, pose: cluster, servers: [127.0.0.1:3:1]}
beta: {listen: 127.0.0.1:2, redis: true, pose: cluster, advertise: ['h:2', 'i:2'], servers: [127.0.0.1:3:1]}
gamma: {listen: 127.0.0.1:4, redis: true, servers: [127.0.0.1:3:1]}
";
        let loaded = cashew_config::parse("t.yml", yaml, &cashew_config::Context::of_system());
        let snapshot = loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot;
        let told = parse(&full_shape(&source_of(snapshot, 1).0));
        let poses = serde_json::json!([
            {"pool": "beta", "pose": "cluster", "advertise": ["h:2", "i:2"]},
            {"pool": "alpha", "pose": "cluster", "advertise": []},
        ]);
        assert_eq!(told["cashew"]["poses"], poses);
    }

    /// What nutcracker 0.5.0 of Debian shows for the same two pools.
    const NUTCRACKER: &str = include_str!("../tests/nutcracker.json");

    fn parse(json: &Json<'_>) -> Value {
        let line = json.to_line();
        assert!(line.ends_with(b"}\n") || line.ends_with(b"]\n"));
        serde_json::from_slice(&line).unwrap()
    }

    /// Every name of `known` is in `ours`, at its place and of its type.
    fn assert_covers(ours: &Value, known: &Value, path: &str) {
        match known {
            Value::Object(known) => {
                for (name, value) in known {
                    let ours = ours.get(name).unwrap_or_else(|| panic!("no {path}/{name}"));
                    assert_covers(ours, value, &format!("{path}/{name}"));
                }
            }
            Value::Number(_) => assert!(ours.is_u64(), "{path} is {ours}"),
            _ => assert!(ours.is_string(), "{path} is {ours}"),
        }
    }

    fn names(value: &Value) -> Vec<&str> {
        value.as_object().unwrap().keys().map(String::as_str).collect()
    }

    #[test]
    fn has_every_name_of_nutcracker_and_only_known_additions() {
        let source = busy_source();
        let ours = parse(&full_shape(&source));
        let known: Value = serde_json::from_str(NUTCRACKER).unwrap();
        assert_covers(&ours, &known, "");
        let added = |ours: &Value, known: &Value| -> Vec<String> {
            let new = |name: &&str| known.get(name).is_none();
            names(ours).into_iter().filter(new).map(String::from).collect()
        };
        assert_eq!(added(&ours, &known), ["cashew"]);
        let pool_additions = [
            "auth_failures",
            "cache_bound_ms",
            "cache_bytes",
            "cache_entries",
            "cache_evictions",
            "cache_fills",
            "cache_hits",
            "cache_invalidations",
            "cache_misses",
            "cache_refused",
            "cache_written",
            "client_bytes_received",
            "client_bytes_sent",
            "client_requests",
            "client_responses",
            "clients_accepted",
            "clients_denied",
            "clients_overflowed",
            "clients_refused",
            "clients_shed",
            "clients_throttled",
            "cluster_asked",
            "cluster_moved",
            "cluster_tried_again",
            "commands_refused",
            "connection_ms",
            "connections_failed",
            "connections_idle",
            "connections_passed",
            "connections_retried",
            "connections_waited",
            "copies_missing",
            "copies_refused",
            "copies_written",
            "copy_reads",
            "external_auth_asked",
            "external_auth_cached",
            "external_auth_lost",
            "external_auth_outages",
            "external_auth_refused",
            "hedges_denied",
            "hedges_sent",
            "hedges_won",
            "keys_invalidated",
            "large_waits",
            "maintenance_notices",
            "messages_delivered",
            "monitor_dropped",
            "pipelines_paused",
            "proxy_header_errors",
            "reads_coalesced",
            "redirects_passed_on",
            "region_copies",
            "region_forgets",
            "request_latency",
            "requests_retried",
            "retries_denied",
            "ring_version",
            "route_failovers",
            "route_refused",
            "script_flushes",
            "session_waits",
            "sessions_reclaimed",
            "shadow_differs",
            "shadow_sent",
            "slow_clients",
            "subscriptions",
            "tls_certificates",
            "tls_failures",
            "tls_handshakes",
            "tls_older",
            "tls_plain",
            "tls_resumed",
            "tls_timeouts",
            "tls_versions",
            "warm_up_fills",
        ];
        assert_eq!(added(&ours["alpha"], &known["alpha"]), pool_additions);
        let server_additions = [
            "connect_errors",
            "connect_us",
            "connects",
            "connects_paced",
            "drained",
            "ejected",
            "in_line",
            "invalidated",
            "protocol_errors",
            "server_latency",
            "sessions",
            "silent",
            "spool_refused",
            "spooled",
            "tls_failures",
            "tls_handshakes",
            "tls_resumed",
            "writes_missed",
        ];
        assert_eq!(added(&ours["alpha"]["one"], &known["alpha"]["one"]), server_additions);
    }

    #[test]
    fn header_and_nutcrackers_names_come_first() {
        let source = busy_source();
        let line = full_shape(&source).to_line();
        let line = str::from_utf8(&line).unwrap();
        assert!(line.starts_with(r#"{"service":"nutcracker","source":""#), "{line}");
        let order = [
            "\"total_connections\":",
            "\"beta\":{\"client_eof\":",
            "\"fragments\":",
            "\"127.0.0.1:21211\":{\"server_eof\":",
            "\"out_queue_bytes\":",
            "\"connects\":",
            "\"ring_version\":",
            "\"alpha\":{",
            "\"cashew\":{",
        ];
        let mut rest = line;
        for text in order {
            rest = rest.split_once(text).unwrap_or_else(|| panic!("{text} not in order")).1;
        }
    }

    #[test]
    fn workers_are_summed() {
        let ours = parse(&full_shape(&busy_source()));
        let (pool, server) = (&ours["alpha"], &ours["alpha"]["one"]);
        assert_eq!(pool["fragments"], 3);
        assert_eq!(pool["client_connections"], 12);
        assert_eq!(pool["ring_version"], 5);
        assert_eq!(pool["request_latency"], serde_json::json!([2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]));
        assert_eq!(server["requests"], 30);
        assert_eq!(server["out_queue"], 7);
        assert_eq!(server["ejected"], 1);
        assert_eq!(server["server_ejected_at"], 1_700_000_000_500_000u64);
        assert_eq!(server["server_latency"], serde_json::json!([0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
        // 12 clients, 3 connections to servers and 2 listeners; 20 accepted, 9 connects.
        assert_eq!(ours["curr_connections"], 17);
        assert_eq!(ours["total_connections"], 31);
        let workers = ours["cashew"]["workers"].as_array().unwrap();
        assert_eq!(workers.len(), 2);
        assert_eq!((&workers[1]["slot"], &workers[1]["pid"]), (&2.into(), &102.into()));
        assert!(workers[0]["heartbeat_age_ms"].as_u64().unwrap() < 5000);
        assert!(workers[1]["heartbeat_age_ms"].is_null());
        assert_eq!(workers[0]["buffered_bytes"], 4096);
        assert_eq!(workers[1]["memory_pressed"], 1);
        assert_eq!(workers[0]["batch_window_us"], 150);
        assert_eq!(workers[0]["busy_permille"], 250);
        let sessions = ["sessions_in", "sessions_out", "sessions_cut"];
        assert_eq!(sessions.map(|name| workers[1][name].as_u64().unwrap()), [5, 6, 7]);
        assert_eq!(ours["cashew"]["epoch"], 3);
        let reloads = serde_json::json!({
            "ok": 1,
            "failed": 1,
            "last_at": 1_700_000_200,
            "last_result": "ok",
            "last_failure": "it is \"too\" hard",
        });
        let servers = ours["cashew"]["servers"].as_array().unwrap();
        let one = servers.iter().find(|server| server["server"] == "one").unwrap();
        assert_eq!((&one["up"], &one["state"]), (&0.into(), &"out".into()));
        assert_eq!(one["cause"], "Connection refused");
        assert_eq!(one["last_error"], "Connection refused");
        assert!(one["since"].as_u64() > Some(1_000_000_000));
        let other = servers.iter().find(|server| server["server"] == "127.0.0.1:26380").unwrap();
        assert_eq!((&other["up"], &other["state"]), (&0.into(), &"untried".into()));
        assert!(other["since"].is_null() && other["last_error"].is_null());
        assert_eq!(ours["cashew"]["reloads"], reloads);
    }

    #[test]
    fn the_forks_shape_has_each_worker() {
        let ours = parse(&fork_shape(&busy_source()));
        let workers = ours.as_array().unwrap();
        assert_eq!(workers.len(), 2);
        let pids: Vec<_> = workers.iter().map(|worker| worker["pid"].as_u64().unwrap()).collect();
        assert_eq!(pids, [100, 102]);
        let pool = &workers[1]["pools"]["alpha"];
        assert_eq!(pool["fragments"], 2);
        assert_eq!(pool["request_latency"].as_array().unwrap().len(), 11);
        let server = &pool["servers"]["one"];
        assert_eq!(server["requests"], 20);
        assert_eq!(server["server_latency"].as_array().unwrap().len(), 11);
        assert_eq!(names(server).len(), SERVER_STATS_OF_TWEMPROXY + 1);
        assert_eq!(names(pool).len(), POOL_STATS_OF_TWEMPROXY + 2);
    }

    #[test]
    fn the_forks_single_process_is_a_bare_object() {
        let mut snapshot = snapshot(&[("a", &["x"])]);
        snapshot.global.worker_processes = 0;
        let (source, segments) = source_of(snapshot, 1);
        assert_eq!(parse(&fork_shape(&source)), serde_json::json!({}));
        segments.writer(0).set_pid(7);
        assert_eq!(parse(&fork_shape(&source))["pid"], 7);
    }

    #[test]
    fn additions_yield_to_pools_and_servers_of_their_names() {
        let (source, _) =
            source_of(snapshot(&[("cashew", &["ring_version", "request_latency"])]), 1);
        let line = full_shape(&source).to_line();
        let line = str::from_utf8(&line).unwrap();
        for name in ["\"cashew\"", "\"ring_version\"", "\"request_latency\""] {
            assert_eq!(line.matches(name).count(), 1, "{name}");
        }
        let ours: Value = serde_json::from_str(line).unwrap();
        assert_eq!(ours["cashew"]["ring_version"]["server_eof"], 0);
    }

    #[test]
    fn the_lists_name_everything_once() {
        let mut pool = POOL_STATS.map(|stat| stat.stat().name);
        pool.sort_unstable();
        assert!(pool.windows(2).all(|pair| pair[0] != pair[1]));
        let mut server = SERVER_STATS.map(|stat| stat.stat().name);
        server.sort_unstable();
        assert!(server.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
