//! Metrics in Prometheus' text format 0.0.4.

use std::fmt::{Display, Write};

use cashew_config::snapshot::{Pool, ServerSource};
use cashew_discovery::MaintenanceStatus;
use cashew_metrics::{
    ChildKind, CommandCounter, EventKind, ExportCounter, Histogram, HotDeed, MemberRole,
    PoolCounter, PoolGauge, PoolId, ServerCounter, ServerGauge, ServerId, SlotHeader, UserCounter,
    UserId, UserStat,
};

use crate::counted;
use crate::discovery::{ClusterState, Group};
use crate::hot;
use crate::processes::{Process, Role, processes};
use crate::source::{Member, ServerStatus, Source, Worker};
use cashew_migration::MoveStatus;

pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of buckets in microseconds. Each is also a bound of the fine buckets, hence exact.
const BOUNDS_US: [u64; 17] = [
    50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000, 10_000_000,
];

type WorkerStat = (&'static str, &'static str, &'static str, fn(&SlotHeader) -> Number);

/// Metrics per worker.
const WORKER_STATS: [WorkerStat; 7] = [
    (
        "cashew_worker_buffered_bytes",
        "gauge",
        "Bytes held by buffers and requests of the worker in the slot",
        |header| Number::Whole(header.buffered),
    ),
    (
        "cashew_worker_memory_pressed_total",
        "counter",
        "Times that the worker took no new requests for lack of memory",
        |header| Number::Whole(header.pressed),
    ),
    (
        "cashew_worker_batch_window_seconds",
        "gauge",
        "How long the worker in the slot holds output back to write more at once",
        |header| Number::Micros(header.window_us),
    ),
    (
        "cashew_worker_busy_ratio",
        "gauge",
        "Share of the last second that the worker in the slot was not waiting for events",
        |header| Number::Micros(u64::from(header.busy) * 1000),
    ),
    (
        "cashew_worker_sessions_in_total",
        "counter",
        "Client connections that came from another worker",
        |header| Number::Whole(header.sessions_in),
    ),
    (
        "cashew_worker_sessions_out_total",
        "counter",
        "Client connections that went to another worker",
        |header| Number::Whole(header.sessions_out),
    ),
    (
        "cashew_worker_sessions_cut_total",
        "counter",
        "Client connections closed because they were not idle within worker_shutdown_timeout",
        |header| Number::Whole(header.sessions_cut),
    ),
];

enum Number {
    Whole(u64),
    /// Millionths, shown as a fraction.
    Micros(u64),
}

impl Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Whole(number) => number.fmt(f),
            Self::Micros(micros) => Seconds(micros).fmt(f),
        }
    }
}

pub(crate) fn exposition(source: &Source) -> String {
    let mut text = Exposition(String::new());
    instance(&mut text, source);
    process_stats(&mut text, source);
    pools(&mut text, source);
    limited_users(&mut text, source);
    servers(&mut text, source);
    server_states(&mut text, source);
    groups(&mut text, source);
    clusters(&mut text, source);
    server_sources(&mut text, source);
    server_maintenance(&mut text, source);
    moves(&mut text, source);
    members(&mut text, source);
    slow_requests(&mut text, source);
    hot_keys(&mut text, source);
    text.0
}

fn instance(text: &mut Exposition, source: &Source) {
    text.family("cashew_info", "gauge", "What runs here");
    text.sample("cashew_info", &label("version", source.version()), 1);
    let build = [
        label("version", source.version()),
        label("os", std::env::consts::OS),
        label("arch", std::env::consts::ARCH),
        label("profile", if cfg!(debug_assertions) { "debug" } else { "release" }),
    ];
    text.family("cashew_build_info", "gauge", "How the program that answers here was built");
    text.sample("cashew_build_info", &build.join(","), 1);
    text.family("cashew_start_time_seconds", "gauge", "When the instance started, since 1970");
    text.sample("cashew_start_time_seconds", "", source.started_at());
    text.family("cashew_config_epoch", "gauge", "Number of the configuration in effect");
    text.sample("cashew_config_epoch", "", source.snapshot().epoch);
    reloads(text, source);
    let name = "cashew_log_lines_lost_total";
    text.family(name, "counter", "Lines that could not be written to the log");
    text.sample(name, "", source.log_lines_lost());
    exports(text, source);
    audit_log(text, source);
    let name = "cashew_restarts_total";
    text.family(name, "counter", "Processes that ended though they were not to");
    for child in ChildKind::ALL {
        text.sample(name, &label("role", child.name()), source.restarts(child));
    }
    events(text, source);
    text.family("cashew_workers", "gauge", "Worker slots in use");
    text.sample("cashew_workers", "", source.workers().count());
    let name = "cashew_worker_heartbeat_age_seconds";
    text.family(name, "gauge", "Time since the worker in the slot last showed that it runs");
    for worker in source.workers() {
        if let Some(age_ms) = worker.heartbeat_age_ms() {
            text.sample(name, &label("slot", &worker.slot.to_string()), Seconds(age_ms * 1000));
        }
    }
    for (name, kind, help, number) in WORKER_STATS {
        text.family(name, kind, help);
        // Counters outlive their worker, which may have counted just before its end.
        let is_told = |worker: &Worker| kind == "counter" || worker.header.pid != 0;
        for worker in source.slots().filter(is_told) {
            let number = number(&worker.header);
            text.sample(name, &label("slot", &worker.slot.to_string()), number);
        }
    }
}

/// Of single requests, where that is on or was.
fn exports(text: &mut Exposition, source: &Source) {
    let exports = source.exports();
    let global = &source.snapshot().global;
    let is_on = global.tracing.is_some() || global.access_log.is_some();
    let counts: Vec<u64> = EXPORT_STATS.iter().map(|(_, it, _)| exports.count(*it)).collect();
    if !is_on && counts.iter().all(|&count| count == 0) {
        return;
    }
    for ((name, _, help), count) in EXPORT_STATS.into_iter().zip(counts) {
        text.family(name, "counter", help);
        text.sample(name, "", count);
    }
}

/// Of the audit log, where it is on or was, and of tokens.
fn audit_log(text: &mut Exposition, source: &Source) {
    let audit = source.shared().audit();
    let global = &source.snapshot().global;
    if global.stats_token.is_some() || global.operate_token.is_some() {
        let name = "cashew_stats_tokens_refused_total";
        text.family(name, "counter", "Requests to the statistics with a wrong token");
        text.sample(name, "", audit.tokens_refused());
    }
    let (lines, lost) = (audit.lines(), audit.lost());
    if source.snapshot().global.audit_log.is_none() && lines + lost == 0 {
        return;
    }
    text.family("cashew_audit_log_lines_total", "counter", "Lines written to the audit log");
    text.sample("cashew_audit_log_lines_total", "", lines);
    text.family(
        "cashew_audit_log_lines_lost_total",
        "counter",
        "Lines of the audit log that could not be written, or for which there was no room on their way",
    );
    text.sample("cashew_audit_log_lines_lost_total", "", lost);
}

const EXPORT_STATS: [(&str, ExportCounter, &str); 6] = [
    ("cashew_trace_spans_total", ExportCounter::Spans, "Spans that the collector has taken"),
    (
        "cashew_trace_spans_dropped_total",
        ExportCounter::SpansDropped,
        "Spans that the collector has not taken, and that are given up",
    ),
    (
        "cashew_trace_export_errors_total",
        ExportCounter::SpanErrors,
        "Exports of spans that failed, those included that are tried again",
    ),
    (
        "cashew_access_log_lines_total",
        ExportCounter::AccessLines,
        "Lines written to the access log",
    ),
    (
        "cashew_access_log_lines_lost_total",
        ExportCounter::AccessLinesLost,
        "Lines that could not be written to the access log",
    ),
    (
        "cashew_request_samples_missed_total",
        ExportCounter::SamplesMissed,
        "Samples of requests that were overwritten before they were chosen from",
    ),
];

type ProcessStat = (&'static str, &'static str, &'static str, fn(&Process) -> Option<Number>);

/// Metrics per process, with the names that they have everywhere.
const PROCESS_STATS: [ProcessStat; 5] = [
    (
        "process_cpu_seconds_total",
        "counter",
        "Processor time of the process, of the user and of the system",
        |process| Some(Number::Micros(process.cpu.as_micros() as u64)),
    ),
    ("process_resident_memory_bytes", "gauge", "Resident memory of the process", |process| {
        Some(Number::Whole(process.resident_bytes))
    }),
    ("process_open_fds", "gauge", "Open descriptors of the process", |process| {
        process.open_fds.map(Number::Whole)
    }),
    ("process_max_fds", "gauge", "Descriptors that the process may have", |process| {
        process.max_fds.map(Number::Whole)
    }),
    ("process_start_time_seconds", "gauge", "When the process started, since 1970", |process| {
        Some(Number::Micros(process.started.as_micros() as u64))
    }),
];

fn process_stats(text: &mut Exposition, source: &Source) {
    let processes = processes(source);
    let labels = |process: &Process| {
        let role = label("role", process.role.name());
        match process.role {
            Role::Worker { slot } => format!("{role},{}", label("slot", &slot.to_string())),
            _ => role,
        }
    };
    for (name, kind, help, number) in PROCESS_STATS {
        text.family(name, kind, help);
        for process in &processes {
            if let Some(number) = number(process) {
                text.sample(name, &labels(process), number);
            }
        }
    }
}

fn reloads(text: &mut Exposition, source: &Source) {
    let reloads = source.reloads();
    let name = "cashew_reloads_total";
    text.family(name, "counter", "Reloads of the configuration");
    text.sample(name, &label("result", "ok"), reloads.ok);
    text.sample(name, &label("result", "failed"), reloads.failed);
    let name = "cashew_draining";
    text.family(name, "gauge", "Whether the instance drains: it is not ready, and is to stop");
    text.sample(name, "", u64::from(source.is_draining()));
    let Some(last) = reloads.last else { return };
    let name = "cashew_last_reload_timestamp_seconds";
    text.family(name, "gauge", "When the last reload was over, since 1970");
    text.sample(name, "", last.at);
    let name = "cashew_last_reload_success";
    text.family(name, "gauge", "Whether the last reload was a success");
    text.sample(name, "", u64::from(last.is_ok));
}

fn pools(text: &mut Exposition, source: &Source) {
    let pools = source.snapshot().pools.iter().enumerate();
    let pools: Vec<(String, PoolId)> = pools
        .map(|(index, pool)| (label("pool", &pool.name), source.layout().pool(index)))
        .collect();
    let numbers = source.total();
    for &counter in PoolCounter::ALL {
        let stat = counter.stat();
        text.family(stat.prometheus, "counter", stat.help);
        for (labels, id) in &pools {
            text.sample(stat.prometheus, labels, numbers.pool_counter(*id, counter));
        }
    }
    for &gauge in PoolGauge::ALL {
        let stat = gauge.stat();
        text.family(stat.prometheus, "gauge", stat.help);
        for (labels, id) in &pools {
            text.sample(stat.prometheus, labels, numbers.pool_gauge(*id, gauge));
        }
    }
    open_pools(text, source);
    let name = "cashew_request_duration_seconds";
    text.family(name, "histogram", "From a client's request to its response");
    for (labels, id) in &pools {
        source.beat();
        text.histogram(name, labels, &numbers.pool_latency(*id));
    }
    counted(text, source);
    users(text, source);
}

/// Of pools with users; nothing where there are none.
fn users(text: &mut Exposition, source: &Source) {
    let numbers = source.total();
    let mut rows = Vec::new();
    for (index, pool) in source.snapshot().pools.iter().enumerate() {
        for (name, row) in counted::users(source, index) {
            let labels = format!("{},{}", label("pool", &pool.name), label("user", name));
            rows.push((labels, source.layout().pool(index), row));
        }
    }
    if rows.is_empty() {
        return;
    }
    for &counter in UserCounter::ALL {
        let stat = counter.stat();
        let is_time = counter == UserCounter::SlowestUs;
        text.family(stat.prometheus, if is_time { "gauge" } else { "counter" }, stat.help);
        for (labels, id, row) in &rows {
            let value = numbers.user_counter(*id, *row, counter);
            match is_time {
                true => text.sample(stat.prometheus, labels, value as f64 / 1e6),
                false => text.sample(stat.prometheus, labels, value),
            }
        }
    }
}

/// By class of commands, and by prefix; of classes only those that are used.
fn counted(text: &mut Exposition, source: &Source) {
    let numbers = source.total();
    let (mut classes, mut prefixes) = (Vec::new(), Vec::new());
    for (index, pool) in source.snapshot().pools.iter().enumerate() {
        let (name, id) = (label("pool", &pool.name), source.layout().pool(index));
        let labelled = |kind, text: &str| format!("{name},{}", label(kind, text));
        let parts = counted::classes(source, index).into_iter();
        classes.extend(parts.map(|(text, part)| (labelled("class", text), id, part)));
        let parts = counted::prefixes(source, index).into_iter();
        prefixes.extend(parts.map(|(text, part)| (labelled("prefix", text), id, part)));
    }
    for (kind, by, parts) in
        [("command", "class of commands", classes), ("prefix", "prefix of keys", prefixes)]
    {
        if parts.is_empty() {
            continue;
        }
        for &counter in CommandCounter::ALL {
            let stat = counter.stat();
            let name = format!("cashew_{kind}_{}_total", stat.name);
            text.family(&name, "counter", &format!("{}, by {by}", stat.help));
            for (labels, id, part) in &parts {
                text.sample(&name, labels, part.counter(numbers, *id, counter));
            }
        }
        let name = format!("cashew_{kind}_duration_seconds");
        let help = format!("From a client's request to its response, by {by}");
        text.family(&name, "histogram", &help);
        for (labels, id, part) in &parts {
            source.beat();
            text.histogram(&name, labels, &part.latency(numbers, *id));
        }
    }
}

/// Of pools with `fail_open`; nothing where there are none.
fn open_pools(text: &mut Exposition, source: &Source) {
    let pools = source.open_pools();
    if pools.is_empty() {
        return;
    }
    let name = "cashew_pool_open";
    text.family(name, "gauge", "Whether all servers are used although too many are down");
    for (pool, is_open) in pools {
        text.sample(name, &label("pool", pool), u64::from(is_open));
    }
}

/// What is told of users who have limits, of which a pool has a thousand at most.
const LIMITED_STATS: [(&str, UserStat, &str); 4] = [
    (
        "cashew_user_refused_total",
        UserStat::Refused,
        "Requests and logins refused by the limits of a user",
    ),
    ("cashew_user_delayed_total", UserStat::Delayed, "Times that its clients had to wait"),
    ("cashew_user_connections", UserStat::Connections, "Connections that are logged in as it"),
    ("cashew_user_in_flight", UserStat::InFlight, "Its requests that are not answered yet"),
];

fn limited_users(text: &mut Exposition, source: &Source) {
    let mut users: Vec<(String, UserId)> = Vec::new();
    for (index, pool) in source.snapshot().pools.iter().enumerate() {
        let id = source.layout().pool(index);
        for (place, user) in pool.limited_users().enumerate() {
            let labels = format!("{},{}", label("pool", &pool.name), label("user", &user.name));
            users.push((labels, source.layout().user(id, place)));
        }
    }
    if users.is_empty() {
        return;
    }
    let numbers = source.total();
    for (name, stat, help) in LIMITED_STATS {
        text.family(name, if stat.is_gauge() { "gauge" } else { "counter" }, help);
        source.beat();
        for (labels, user) in &users {
            text.sample(name, labels, numbers.user(*user, stat));
        }
    }
}

fn servers(text: &mut Exposition, source: &Source) {
    let mut servers: Vec<(String, ServerId)> = Vec::new();
    for (pool_index, pool) in source.snapshot().pools.iter().enumerate() {
        let pool_label = label("pool", &pool.name);
        for (index, server) in pool.servers.iter().enumerate() {
            let labels = format!("{pool_label},{}", label("server", &server.name));
            servers.push((labels, source.layout().server(pool_index, index)));
        }
    }
    let numbers = source.total();
    for &counter in ServerCounter::ALL {
        source.beat();
        let stat = counter.stat();
        text.family(stat.prometheus, "counter", stat.help);
        for (labels, id) in &servers {
            text.sample(stat.prometheus, labels, numbers.server_counter(*id, counter));
        }
    }
    for &gauge in ServerGauge::ALL {
        source.beat();
        let stat = gauge.stat();
        text.family(stat.prometheus, "gauge", stat.help);
        for (labels, id) in &servers {
            let value = numbers.server_gauge(*id, gauge);
            if gauge == ServerGauge::EjectedAt {
                text.sample(stat.prometheus, labels, Seconds(value));
            } else {
                text.sample(stat.prometheus, labels, value);
            }
        }
    }
    let name = "cashew_server_duration_seconds";
    text.family(name, "histogram", "From a request sent to the server to its response");
    for (labels, id) in &servers {
        source.beat();
        text.histogram(name, labels, &numbers.server_latency(*id));
    }
}

/// How the servers are.
fn server_states(text: &mut Exposition, source: &Source) {
    let servers: Vec<(String, ServerStatus<'_>)> = source
        .servers()
        .map(|server| {
            let labels = [label("pool", server.pool), label("server", server.name)].join(",");
            (labels, server)
        })
        .collect();
    source.beat();
    let name = "cashew_server_up";
    text.family(name, "gauge", "Whether the last that is known of the server is good");
    for (labels, server) in &servers {
        text.sample(name, labels, u64::from(server.state.health.is_up()));
    }
    let name = "cashew_server_state_info";
    text.family(name, "gauge", "Where the server is, how it is, and what last went wrong with it");
    for (labels, server) in &servers {
        let labels = [
            labels.clone(),
            label("address", &server.address),
            label("state", server.state.health.name()),
            label("last_error", server.last_error.map_or("", |(why, _)| why)),
        ];
        text.sample(name, &labels.join(","), 1);
    }
    let name = "cashew_server_state_since_timestamp_seconds";
    text.family(name, "gauge", "Since when the server has been so, since 1970");
    for (labels, server) in &servers {
        if let Some(since_ms) = server.since_ms {
            text.sample(name, labels, Seconds(since_ms * 1000));
        }
    }
    let name = "cashew_server_last_error_timestamp_seconds";
    text.family(name, "gauge", "When something last went wrong with the server, since 1970");
    for (labels, server) in &servers {
        if let Some((_, at_ms)) = server.last_error {
            text.sample(name, labels, Seconds(at_ms * 1000));
        }
    }
    spools(text, &servers);
}

/// What servers are to forget, where that is kept.
fn spools(text: &mut Exposition, servers: &[(String, ServerStatus<'_>)]) {
    let spools = || servers.iter().filter_map(|(labels, server)| Some((labels, server.spool?)));
    if spools().next().is_none() {
        return;
    }
    let name = "cashew_server_spool_depth";
    text.family(name, "gauge", "Keys that the server has yet to be told to forget");
    spools().for_each(|(labels, spool)| text.sample(name, labels, spool.depth));
    let name = "cashew_server_spool_oldest_timestamp_seconds";
    text.family(
        name,
        "gauge",
        "Since when the first of these keys waits, since 1970; 0 if none does",
    );
    spools().for_each(|(labels, spool)| text.sample(name, labels, spool.oldest_at));
    let name = "cashew_server_spool_replayed_total";
    text.family(name, "counter", "Keys that the server was told later to forget");
    spools().for_each(|(labels, spool)| text.sample(name, labels, spool.replayed));
    let name = "cashew_server_spool_held";
    text.family(name, "gauge", "Whether the server is to forget keys before it answers reads");
    spools().for_each(|(labels, spool)| text.sample(name, labels, u64::from(spool.is_held)));
}

/// Of pools in front of clusters; nothing where there are none.
fn clusters(text: &mut Exposition, source: &Source) {
    let clusters = source.clusters();
    if clusters.is_empty() {
        return;
    }
    let pool = |it: &ClusterState<'_>| label("pool", &it.pool.name);
    let name = "cashew_cluster_seed_up";
    text.family(name, "gauge", "Whether the seed answers");
    for it in &clusters {
        for (address, is_answering) in &it.seeds {
            if let Some(is_answering) = is_answering {
                let labels = format!("{},{}", pool(it), label("seed", address));
                text.sample(name, &labels, u64::from(*is_answering));
            }
        }
    }
    let name = "cashew_cluster_nodes";
    text.family(name, "gauge", "Nodes that the map in effect has");
    clusters.iter().for_each(|it| text.sample(name, &pool(it), it.map.nodes().count() as u64));
    let name = "cashew_cluster_slots_covered";
    text.family(name, "gauge", "Slots that have an owner by the map in effect, of 16384");
    clusters.iter().for_each(|it| text.sample(name, &pool(it), it.map.coverage() as u64));
    let name = "cashew_cluster_slots";
    text.family(name, "gauge", "Slots that the primary owns by the map in effect");
    for it in &clusters {
        for shard in &it.map.shards {
            let labels = format!("{},{}", pool(it), label("server", &shard.primary.name()));
            text.sample(name, &labels, shard.slots_owned() as u64);
        }
    }
    let name = "cashew_cluster_config_epoch";
    text.family(name, "gauge", "The highest config epoch of the map in effect");
    clusters.iter().for_each(|it| text.sample(name, &pool(it), it.cluster.epoch));
    let name = "cashew_cluster_map_changes_total";
    text.family(name, "counter", "Times that another map has come into effect");
    clusters.iter().for_each(|it| text.sample(name, &pool(it), u64::from(it.cluster.changes)));
}

/// Of pools whose servers a source names; nothing where there are none.
fn server_sources(text: &mut Exposition, source: &Source) {
    let sources = source.sources();
    if sources.is_empty() {
        return;
    }
    let labels = |pool: &Pool| {
        let kind = pool.source().map_or("", ServerSource::kind);
        format!("{},{}", label("pool", &pool.name), label("source", kind))
    };
    let name = "cashew_source_up";
    text.family(name, "gauge", "Whether the source of a pool's servers answers");
    for (pool, status) in &sources {
        if let Some(is_answering) = status.is_answering {
            text.sample(name, &labels(pool), u64::from(is_answering));
        }
    }
    let name = "cashew_source_answered_timestamp_seconds";
    text.family(name, "gauge", "Unix time of the last answer of the source");
    for (pool, status) in &sources {
        if let Some(at) = status.answered_at {
            text.sample(name, &labels(pool), at);
        }
    }
    let name = "cashew_source_servers";
    text.family(name, "gauge", "Servers in use of those that the source has named");
    sources
        .iter()
        .for_each(|(pool, _)| text.sample(name, &labels(pool), pool.found().len() as u64));
    let name = "cashew_source_held_servers";
    text.family(name, "gauge", "Servers in use that the source does not name any more");
    for (pool, status) in &sources {
        text.sample(name, &labels(pool), status.held.as_ref().map_or(0, |held| held.servers));
    }
    let name = "cashew_source_changes_total";
    text.family(name, "counter", "Times that servers of the source have changed");
    for (pool, _) in &sources {
        let changes = pool.servers_from.as_ref().map_or(0, |from| from.changes);
        text.sample(name, &labels(pool), u64::from(changes));
    }
}

/// Of servers that are asked to tell of their maintenance; nothing where there are none.
fn server_maintenance(text: &mut Exposition, source: &Source) {
    let servers = source.maintained();
    if servers.is_empty() {
        return;
    }
    let labels = |it: &MaintenanceStatus| {
        format!("{},{}", label("pool", &it.pool), label("server", &it.server))
    };
    let name = "cashew_server_maintenance_tells";
    text.family(name, "gauge", "Whether the server tells of its maintenance, as it is asked to");
    servers.iter().for_each(|it| text.sample(name, &labels(it), u64::from(it.state == "tells")));
    let name = "cashew_server_maintenance_relaxed";
    text.family(name, "gauge", "Whether replies of the server may take longer, as it has said");
    servers.iter().for_each(|it| text.sample(name, &labels(it), u64::from(it.is_relaxed)));
    let name = "cashew_server_maintenance_moved";
    text.family(name, "gauge", "Whether the server is not where the file has it, as it has said");
    let has_moved = |it: &MaintenanceStatus| u64::from(it.moved_from.is_some());
    servers.iter().for_each(|it| text.sample(name, &labels(it), has_moved(it)));
    let name = "cashew_server_maintenance_notices_total";
    text.family(name, "counter", "Times that the server has told something");
    servers.iter().for_each(|it| text.sample(name, &labels(it), it.notices));
}

/// Of pools that are copied to others; nothing where there are none.
fn moves(text: &mut Exposition, source: &Source) {
    let moves = source.moves();
    if moves.is_empty() {
        return;
    }
    type Of = fn(&MoveStatus) -> u64;
    let families: [(&str, &str, &str, Of); 14] = [
        ("cashew_move_cut_over", "gauge", "Whether the pool that was the copy serves", |it| {
            it.is_cut_over.into()
        }),
        (
            "cashew_move_in_step",
            "gauge",
            "Whether the copy has everything, and follows what changes",
            |it| u64::from(it.state == "in step" || it.state == "comparing"),
        ),
        (
            "cashew_move_keys",
            "gauge",
            "Keys that the walk over the pool has to look at, about",
            |it| it.keys,
        ),
        ("cashew_move_keys_walked", "gauge", "Keys that it has looked at", |it| it.keys_walked),
        (
            "cashew_move_keys_behind",
            "gauge",
            "Keys that have changed and are not copied yet",
            |it| it.keys_behind,
        ),
        ("cashew_move_keys_refused", "gauge", "Keys that the copy does not take", |it| {
            it.keys_refused
        }),
        (
            "cashew_move_keys_misplaced",
            "gauge",
            "Keys that are not where their names place them, and are not copied",
            |it| it.keys_misplaced,
        ),
        (
            "cashew_move_keys_compared",
            "gauge",
            "Keys compared in the last comparison, or in the one under way",
            |it| it.keys_compared,
        ),
        ("cashew_move_keys_copied_total", "counter", "Keys copied", |it| it.keys_copied),
        ("cashew_move_keys_removed_total", "counter", "Keys removed from the copy", |it| {
            it.keys_removed
        }),
        ("cashew_move_bytes_copied_total", "counter", "Bytes of values copied", |it| {
            it.bytes_copied
        }),
        (
            "cashew_move_mismatches_total",
            "counter",
            "Keys that differed though nobody had changed them",
            |it| it.mismatches,
        ),
        (
            "cashew_move_walks_total",
            "counter",
            "Times that copying has begun from the start",
            |it| it.walks,
        ),
        ("cashew_move_errors_total", "counter", "Errors of servers of either pool", |it| it.errors),
    ];
    for (name, kind, help, of) in families {
        text.family(name, kind, help);
        moves.iter().for_each(|it| text.sample(name, &label("pool", &it.route), of(it)));
    }
    let name = "cashew_move_state_info";
    text.family(
        name,
        "gauge",
        "What it does: ready, connecting, copying, comparing, in step, paused",
    );
    for it in &moves {
        let labels = format!("{},{}", label("pool", &it.route), label("state", &it.state));
        text.sample(name, &labels, 1);
    }
    let name = "cashew_move_eta_seconds";
    text.family(name, "gauge", "How long the walk will take still, where that is known");
    for (it, eta_s) in moves.iter().filter_map(|it| Some((it, it.eta_s?))) {
        text.sample(name, &label("pool", &it.route), eta_s);
    }
    let name = "cashew_move_verified_timestamp_seconds";
    text.family(name, "gauge", "When a comparison last found no difference, since 1970");
    for (it, at) in moves.iter().filter_map(|it| Some((it, it.verified_at?))) {
        text.sample(name, &label("pool", &it.route), at);
    }
    let name = "cashew_move_lag_seconds";
    text.family(name, "gauge", "How long the first key that has changed has waited to be copied");
    for it in &moves {
        text.sample(name, &label("pool", &it.route), Seconds(it.lag_ms * 1000));
    }
}

/// Of pools that ask Sentinels; nothing where there are none.
fn groups(text: &mut Exposition, source: &Source) {
    if !source.snapshot().has_sentinels() {
        return;
    }
    let name = "cashew_sentinel_up";
    text.family(name, "gauge", "Whether the Sentinel answers");
    for sentinel in source.sentinels() {
        if let Some(is_answering) = sentinel.is_answering {
            let (pool, address) =
                (label("pool", sentinel.pool), label("sentinel", &sentinel.address));
            text.sample(name, &format!("{pool},{address}"), u64::from(is_answering));
        }
    }
    let groups = source.groups();
    let labels = |group: &Group<'_>| {
        format!("{},{}", label("pool", group.pool), label("server", group.server))
    };
    let name = "cashew_group_primary_info";
    text.family(name, "gauge", "Where the primary of the group is");
    for group in &groups {
        if let Some(primary) = &group.primary {
            text.sample(name, &format!("{},{}", labels(group), label("address", primary)), 1);
        }
    }
    let name = "cashew_group_stable";
    text.family(name, "gauge", "Whether nothing suspicious is known of the group");
    for group in &groups {
        text.sample(name, &labels(group), u64::from(group.state.state == "stable"));
    }
    let name = "cashew_group_config_epoch";
    text.family(
        name,
        "gauge",
        "Sentinel's number of the configuration by which the primary is there",
    );
    for group in &groups {
        if let Some(config_epoch) = group.state.config_epoch {
            text.sample(name, &labels(group), config_epoch);
        }
    }
    let name = "cashew_group_switches_total";
    text.family(name, "counter", "Times that the primary of the group has moved");
    for group in &groups {
        text.sample(name, &labels(group), group.state.switches);
    }
    let name = "cashew_group_last_switch_timestamp_seconds";
    text.family(name, "gauge", "When the primary of the group moved last, since 1970");
    for group in &groups {
        if let Some(at) = group.state.switched_at {
            text.sample(name, &labels(group), at);
        }
    }
}

/// Of servers of pools that have replicas; nothing where there are none.
fn members(text: &mut Exposition, source: &Source) {
    let members = source.members();
    if members.is_empty() {
        return;
    }
    let labels = |member: &Member<'_>| {
        format!("{},{}", label("pool", member.pool), label("server", member.server))
    };
    let name = "cashew_server_role";
    text.family(name, "gauge", "1 for the role that the server has by its own word");
    for member in &members {
        for role in [MemberRole::Primary, MemberRole::Replica] {
            let labels = format!("{},{}", labels(member), label("role", role.name()));
            text.sample(name, &labels, u64::from(member.state.role == role));
        }
    }
    let name = "cashew_server_lag_bytes";
    text.family(name, "gauge", "Bytes that the replica is behind its primary");
    for member in &members {
        if let Some(lag) = member.state.lag {
            text.sample(name, &labels(member), lag);
        }
    }
    let name = "cashew_replica_link_up";
    text.family(name, "gauge", "Whether the replica's connection to its primary is up");
    for member in &members {
        if let Some(is_up) = member.state.is_link_up {
            text.sample(name, &labels(member), u64::from(is_up));
        }
    }
    let name = "cashew_replica_fit";
    text.family(name, "gauge", "Whether the replica may answer reads, with the reason if not");
    for member in members.iter().filter(|member| member.is_replica) {
        let reason = label("reason", member.state.fitness.name());
        let is_fit = u64::from(!member.state.fitness.is_unfit());
        text.sample(name, &format!("{},{reason}", labels(member)), is_fit);
    }
}

/// All kinds, so that a rate is there from the first event on.
fn events(text: &mut Exposition, source: &Source) {
    let events = source.events();
    let name = "cashew_events_total";
    text.family(name, "counter", "Events, with those that were left out for being too many");
    for &kind in EventKind::ALL {
        text.sample(name, &label("kind", kind.name()), events.count(kind));
    }
    let name = "cashew_events_left_out_total";
    text.family(name, "counter", "Events that are neither kept nor logged: there were too many");
    for &kind in EventKind::ALL {
        text.sample(name, &label("kind", kind.name()), events.left_out(kind));
    }
}

fn slow_requests(text: &mut Exposition, source: &Source) {
    let slow = source.slow_requests();
    let name = "cashew_slow_requests_total";
    text.family(name, "counter", "Requests that were recorded in the slow log");
    text.sample(name, "", slow.count());
    let name = "cashew_slow_requests_left_out_total";
    text.family(name, "counter", "Slow requests that were not recorded: there were too many");
    text.sample(name, "", slow.left_out());
}

/// Nothing where no key has much.
fn hot_keys(text: &mut Exposition, source: &Source) {
    let kept = "Hot keys of the pool of which replies are kept, by rule or by command";
    let moved = "Hot keys of the pool that are in another pool, by rule or by command";
    let split = "Hot keys of the pool whose reads may go to copies, by rule or by command";
    for (deed, name, help) in [
        (HotDeed::Cache, "cashew_hot_keys_kept", kept),
        (HotDeed::Move, "cashew_hot_keys_moved", moved),
        (HotDeed::Split { copies: 0 }, "cashew_hot_keys_split", split),
    ] {
        let counts = hot::counts(source, deed);
        if !counts.is_empty() {
            text.family(name, "gauge", help);
        }
        for (pool, keys) in counts {
            text.sample(name, &label("pool", &pool), keys);
        }
    }
    let shares = hot::shares(source);
    if shares.is_empty() {
        return;
    }
    let name = "cashew_hot_key_share";
    text.family(name, "gauge", "Share of the pool's requests that are for the key, from 0 to 1");
    for (pool, key, share) in shares {
        let labels = [label("pool", &pool), label("key", &key)].join(",");
        text.sample(name, &labels, format_args!("{share:.4}"));
    }
}

struct Exposition(String);

impl Exposition {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        match labels {
            "" => self.line(format_args!("{name} {value}")),
            labels => self.line(format_args!("{name}{{{labels}}} {value}")),
        }
    }

    fn histogram(&mut self, name: &str, labels: &str, histogram: &Histogram) {
        for bound in BOUNDS_US {
            let (le, count) = (Seconds(bound), histogram.count_le(bound));
            self.line(format_args!("{name}_bucket{{{labels},le=\"{le}\"}} {count}"));
        }
        let (sum, count) = (Seconds(histogram.sum_us()), histogram.count());
        self.line(format_args!("{name}_bucket{{{labels},le=\"+Inf\"}} {count}"));
        self.line(format_args!("{name}_sum{{{labels}}} {sum}"));
        self.line(format_args!("{name}_count{{{labels}}} {count}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("a string takes all that is written");
    }
}

fn label(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{value}\"")
}

/// Microseconds, shown as seconds without loss.
struct Seconds(u64);

impl Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (whole, micros) = (self.0 / 1_000_000, self.0 % 1_000_000);
        if micros == 0 {
            return write!(f, "{whole}");
        }
        let fraction = format!("{micros:06}");
        write!(f, "{whole}.{}", fraction.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap, HashSet};

    use super::*;
    use crate::testing::{
        busy_source, cluster_source, found_source, maintained_source, snapshot, source_of,
        watched_source,
    };

    #[derive(Debug)]
    struct Sample {
        name: String,
        labels: BTreeMap<String, String>,
        value: f64,
    }

    /// Parses an exposition and checks every line against the format.
    fn parse(text: &str) -> Vec<Sample> {
        assert!(text.ends_with('\n'));
        let (mut helps, mut types) = (HashSet::new(), HashMap::new());
        let (mut samples, mut series) = (Vec::new(), HashSet::new());
        let mut family = String::new();
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let name = help.split_once(' ').expect("help text").0;
                assert!(helps.insert(name.to_string()), "{name} explained twice");
                family = name.to_string();
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect("a type");
                assert_eq!(name, family, "HELP then TYPE");
                assert!(["counter", "gauge", "histogram"].contains(&kind));
                assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
                types.insert(name.to_string(), kind.to_string());
            } else {
                let sample = parse_sample(line);
                let suffixes: &[&str] = match types[&family].as_str() {
                    "histogram" => &["_bucket", "_sum", "_count"],
                    _ => &[""],
                };
                let suffix = sample.name.strip_prefix(&family).expect("samples in their family");
                assert!(suffixes.contains(&suffix), "{line}");
                assert!(series.insert(line.rsplit_once(' ').unwrap().0.to_string()), "{line}");
                samples.push(sample);
            }
        }
        samples
    }

    fn parse_sample(line: &str) -> Sample {
        let end = line.find(['{', ' ']).unwrap();
        let (name, mut rest) = line.split_at(end);
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
        let mut labels = BTreeMap::new();
        while rest.starts_with(['{', ',']) {
            let (label, after) = rest[1..].split_once("=\"").unwrap();
            let (mut value, mut chars) = (String::new(), after.char_indices());
            let end = loop {
                match chars.next().expect("an end of the label") {
                    (at, '"') => break at,
                    (_, '\\') => match chars.next().unwrap().1 {
                        'n' => value.push('\n'),
                        c @ ('\\' | '"') => value.push(c),
                        c => panic!("unknown escape {c}"),
                    },
                    (_, c) => value.push(c),
                }
            };
            assert!(labels.insert(label.into(), value).is_none());
            rest = &after[end + 1..];
        }
        let rest = rest.strip_prefix('}').unwrap_or(rest);
        let value = rest.strip_prefix(' ').unwrap().parse().unwrap();
        Sample { name: name.into(), labels, value }
    }

    fn value(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> f64 {
        let labels = labels.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let found = samples.iter().find(|s| s.name == name && s.labels == labels);
        found.unwrap_or_else(|| panic!("no {name} {labels:?}")).value
    }

    #[test]
    fn samples_have_the_counted_values() {
        let samples = parse(&exposition(&busy_source()));
        let pool = [("pool", "alpha")];
        let server = [("pool", "alpha"), ("server", "one")];
        assert_eq!(value(&samples, "cashew_fragments_total", &pool), 3.0);
        assert_eq!(value(&samples, "cashew_ring_version", &pool), 5.0);
        assert_eq!(value(&samples, "cashew_server_requests_total", &server), 30.0);
        let ejected_at = value(&samples, "cashew_server_ejected_timestamp_seconds", &server);
        assert_eq!(ejected_at, 1_700_000_000.5);
        assert_eq!(value(&samples, "cashew_config_epoch", &[]), 3.0);
        assert_eq!(value(&samples, "cashew_draining", &[]), 0.0);
        for result in ["ok", "failed"] {
            assert_eq!(value(&samples, "cashew_reloads_total", &[("result", result)]), 1.0);
        }
        let at = value(&samples, "cashew_last_reload_timestamp_seconds", &[]);
        assert_eq!(at, 1_700_000_200.0);
        assert_eq!(value(&samples, "cashew_last_reload_success", &[]), 1.0);
        assert_eq!(value(&samples, "cashew_workers", &[]), 2.0);
        assert_eq!(value(&samples, "cashew_info", &[("version", "1.2.3")]), 1.0);
        assert!(value(&samples, "cashew_worker_heartbeat_age_seconds", &[("slot", "0")]) < 5.0);
        assert_eq!(value(&samples, "cashew_worker_busy_ratio", &[("slot", "2")]), 0.25);
        assert_eq!(value(&samples, "cashew_worker_sessions_out_total", &[("slot", "0")]), 6.0);
        let le = |le| [("pool", "alpha"), ("server", "one"), ("le", le)];
        let name = "cashew_server_duration_seconds_bucket";
        assert_eq!(value(&samples, name, &le("0.005")), 0.0);
        assert_eq!(value(&samples, name, &le("0.01")), 2.0);
        assert_eq!(value(&samples, "cashew_server_duration_seconds_sum", &server), 0.02);
    }

    #[test]
    fn the_state_of_each_server_is_told() {
        let samples = parse(&exposition(&busy_source()));
        let server = |name| [("pool", "alpha"), ("server", name)];
        let (one, other) = (server("one"), server("127.0.0.1:26380"));
        for of in [one, other, [("pool", "beta"), ("server", "127.0.0.1:21211")]] {
            assert_eq!(value(&samples, "cashew_server_up", &of), 0.0);
        }
        let since = value(&samples, "cashew_server_state_since_timestamp_seconds", &one);
        assert!(since > 1e9);
        assert_eq!(value(&samples, "cashew_server_last_error_timestamp_seconds", &one), since);
        let state_of = |name: &str| {
            let mut infos = samples.iter().filter(|it| it.name == "cashew_server_state_info");
            let info = infos.find(|it| it.labels["server"] == name).unwrap();
            ["address", "state", "last_error"].map(|label| info.labels[label].clone())
        };
        assert_eq!(state_of("one"), ["127.0.0.1:6379", "out", "Connection refused"]);
        assert_eq!(state_of("127.0.0.1:26380"), ["127.0.0.1:6379", "untried", ""]);
    }

    #[test]
    fn servers_that_tell_of_their_maintenance_have_samples() {
        let samples = parse(&exposition(&maintained_source()));
        let of = |what: &str, server| {
            let name = format!("cashew_server_maintenance_{what}");
            value(&samples, &name, &[("pool", "alpha"), ("server", server)])
        };
        for (what, of_s1) in
            [("tells", 1.0), ("relaxed", 1.0), ("moved", 1.0), ("notices_total", 2.0)]
        {
            assert_eq!((of(what, "s1"), of(what, "s2")), (of_s1, 0.0), "{what}");
        }
        assert!(!exposition(&busy_source()).contains("cashew_server_maintenance"));
    }

    #[test]
    fn histograms_are_cumulative_and_complete() {
        let samples = parse(&exposition(&busy_source()));
        let mut histograms: BTreeMap<_, Vec<(f64, f64)>> = BTreeMap::new();
        for sample in samples.iter().filter(|sample| sample.name.ends_with("_bucket")) {
            let mut labels = sample.labels.clone();
            let le = labels.remove("le").unwrap().parse().unwrap();
            let name = sample.name.trim_end_matches("_bucket").to_string();
            histograms.entry((name, labels)).or_default().push((le, sample.value));
        }
        assert_eq!(histograms.len(), 2 + 3);
        for ((name, labels), buckets) in histograms {
            let labels: Vec<_> = labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            assert!(buckets.windows(2).all(|pair| pair[0].0 < pair[1].0), "{name} bounds");
            assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{name} counts");
            let (last_bound, last_count) = buckets[buckets.len() - 1];
            assert_eq!(last_bound, f64::INFINITY);
            assert_eq!(value(&samples, &format!("{name}_count"), &labels), last_count);
        }
    }

    #[test]
    fn special_characters_in_names_are_escaped() {
        let odd = "a\\b\"c\nd{},=é";
        let (source, segments) = source_of(snapshot(&[(odd, &["x"])]), 1);
        let id = segments.layout().pool(0);
        segments.writer(0).add_pool(id, PoolCounter::Requests, 9);
        let samples = parse(&exposition(&source));
        assert_eq!(value(&samples, "cashew_requests_total", &[("pool", odd)]), 9.0);
    }

    #[test]
    fn sources_are_told_of_where_there_are_any() {
        assert!(!exposition(&busy_source()).contains("cashew_source"));
        let samples = parse(&exposition(&found_source()));
        let labels = [("pool", "alpha"), ("source", "file")];
        for (name, expected) in [
            ("cashew_source_up", 1.0),
            ("cashew_source_answered_timestamp_seconds", 1_700_000_300.0),
            ("cashew_source_servers", 2.0),
            ("cashew_source_held_servers", 1.0),
            ("cashew_source_changes_total", 1.0),
        ] {
            assert_eq!(value(&samples, name, &labels), expected, "{name}");
        }
        let ups = samples.iter().filter(|sample| sample.name == "cashew_source_up");
        assert_eq!(ups.count(), 1);
        let other = [("pool", "gamma"), ("source", "dns")];
        assert_eq!(value(&samples, "cashew_source_servers", &other), 0.0);
    }

    #[test]
    fn clusters_are_told_of_where_there_are_any() {
        assert!(!exposition(&busy_source()).contains("cashew_cluster_nodes"));
        let samples = parse(&exposition(&cluster_source()));
        let pool = [("pool", "alpha")];
        for (name, expected) in [
            ("cashew_cluster_nodes", 3.0),
            ("cashew_cluster_slots_covered", 101.0),
            ("cashew_cluster_config_epoch", 7.0),
            ("cashew_cluster_map_changes_total", 1.0),
        ] {
            assert_eq!(value(&samples, name, &pool), expected, "{name}");
        }
        for (server, slots) in [("10.0.0.1:1", 101.0), ("10.0.0.1:3", 0.0)] {
            let labels = [("pool", "alpha"), ("server", server)];
            assert_eq!(value(&samples, "cashew_cluster_slots", &labels), slots);
        }
        for (seed, is_up) in [("h:1", 1.0), ("h:2", 0.0)] {
            let labels = [("pool", "alpha"), ("seed", seed)];
            assert_eq!(value(&samples, "cashew_cluster_seed_up", &labels), is_up);
        }
        let ups = samples.iter().filter(|sample| sample.name == "cashew_cluster_seed_up");
        assert_eq!(ups.count(), 2);
    }

    #[test]
    fn groups_are_told_of_where_there_are_any() {
        assert!(!exposition(&busy_source()).contains("cashew_group"));
        let samples = parse(&exposition(&watched_source()));
        let group = [("pool", "alpha"), ("server", "s1")];
        assert_eq!(value(&samples, "cashew_group_stable", &group), 1.0);
        assert_eq!(value(&samples, "cashew_group_config_epoch", &group), 4.0);
        assert_eq!(value(&samples, "cashew_group_switches_total", &group), 2.0);
        let name = "cashew_group_last_switch_timestamp_seconds";
        assert_eq!(value(&samples, name, &group), 1_700_000_300.0);
        let address = [("pool", "alpha"), ("server", "s1"), ("address", "10.0.0.1:6379")];
        assert_eq!(value(&samples, "cashew_group_primary_info", &address), 1.0);
        let unknown = [("pool", "alpha"), ("server", "s2")];
        assert_eq!(value(&samples, "cashew_group_stable", &unknown), 0.0);
        for (sentinel, is_up) in [("10.0.0.7:26379", 1.0), ("10.0.0.8:26379", 0.0)] {
            let labels = [("pool", "alpha"), ("sentinel", sentinel)];
            assert_eq!(value(&samples, "cashew_sentinel_up", &labels), is_up);
        }
        let ups = samples.iter().filter(|sample| sample.name == "cashew_sentinel_up");
        assert_eq!(ups.count(), 2);
    }

    #[test]
    fn seconds_lose_nothing() {
        let shown = [0, 1, 50, 1_000_000, 1_500_000, 12_000_001].map(|us| Seconds(us).to_string());
        assert_eq!(shown, ["0", "0.000001", "0.00005", "1", "1.5", "12.000001"]);
    }
}
