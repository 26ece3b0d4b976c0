//! `/state.json`: what the page and `cashew top` show of now.

use std::collections::BTreeMap;
use std::time::SystemTime;

use cashew_config::snapshot::{Pool, Protocol, Topology};
use cashew_metrics::{MemberState, PoolCounter, PoolGauge, ServerCounter, ServerGauge};

use crate::history::{History, Series};
use crate::json::{Json, Object};
use crate::section;
use crate::source::{ServerStatus, Source, Worker, unix_seconds};
use crate::stats;

/// What discovery has found, by pool and server.
type Members<'a> = BTreeMap<(&'a str, &'a str), MemberState>;

pub(crate) fn document<'a>(source: &'a Source, history: &History) -> Json<'a> {
    let now = unix_seconds(SystemTime::now());
    let mut root = Object::default();
    root.insert("version", source.version());
    root.insert("host", source.host());
    root.insert("at", now);
    root.insert("uptime_s", now.saturating_sub(source.started_at()));
    root.insert("epoch", source.snapshot().epoch);
    root.insert("reloads", stats::reloads(source));
    root.insert("log_lines_lost", source.log_lines_lost());
    root.insert("pools", pools(source, history));
    root.insert("workers", source.workers().map(|it| worker(source, &it)).collect::<Json<'_>>());
    let sections = source.sections().map(|it| section::table(it, source));
    root.insert("sections", sections.collect::<Json<'_>>());
    root.into()
}

fn pools<'a>(source: &'a Source, history: &History) -> Json<'a> {
    let members: Members<'_> =
        source.members().into_iter().map(|it| ((it.pool, it.server), it.state)).collect();
    let open: BTreeMap<&str, bool> = source.open_pools().into_iter().collect();
    let mut servers = source.servers();
    let pools = source.snapshot().pools.iter().enumerate();
    pools
        .map(|(at, config)| {
            source.beat();
            let roles = roles(config);
            let statuses = servers.by_ref().take(config.servers.len());
            let servers = statuses.enumerate().map(|(index, status)| {
                let member = members.get(&(&config.name, status.name));
                let series = history.server(&config.name, status.name);
                // What discovery says counts first.
                let role = member.map_or(roles[index], |it| it.role.name());
                server(source, (at, index), status, (role, member), series)
            });
            let mut object = pool(source, at, history.pool(&config.name));
            object.insert("open", u64::from(open.get(&*config.name) == Some(&true)));
            object.insert("groups", groups(config));
            object.insert("servers", servers.collect::<Json<'_>>());
            object
        })
        .collect()
}

fn pool<'a>(source: &'a Source, at: usize, series: Option<&Series>) -> Object<'a> {
    let (config, id) = (&source.snapshot().pools[at], source.layout().pool(at));
    let numbers = source.total();
    let counter = |counter| numbers.pool_counter(id, counter);
    let mut object = Object::default();
    object.insert("name", config.name.as_str());
    object.insert("listen", Some(config.listen.to_string()));
    let protocol = match config.protocol {
        Protocol::Redis => "redis",
        Protocol::Memcached => "memcached",
        Protocol::Tcp => "tcp",
    };
    object.insert("protocol", protocol);
    let leads_to = config.route.iter().flat_map(|route| route.pools());
    object.insert("leads_to", leads_to.map(|name| Some(name.to_owned())).collect::<Json<'_>>());
    object.insert("clients", numbers.pool_gauge(id, PoolGauge::ClientConnections));
    object.insert("requests", counter(PoolCounter::Requests));
    object.insert("responses", counter(PoolCounter::Responses));
    object.insert("errors", counter(PoolCounter::ForwardError));
    object.insert("ejections", counter(PoolCounter::ServerEjects));
    now(&mut object, series);
    object
}

/// Rates and latencies. `null` where they are not known, or there was nothing.
fn now(object: &mut Object<'_>, series: Option<&Series>) {
    let rates = series.and_then(Series::rates);
    let latency = series.and_then(Series::latency);
    object.insert("requests_per_s", rates.map(|it| it.requests));
    object.insert("errors_per_s", rates.map(|it| it.errors));
    object.insert("p50_us", latency.map(|it| u64::from(it.p50)));
    object.insert("p99_us", latency.map(|it| u64::from(it.p99)));
    object.insert("p999_us", latency.map(|it| u64::from(it.p999)));
}

/// Servers that have the same keys, where there are several of them.
fn groups(pool: &Pool) -> Json<'_> {
    let named = matches!(pool.topology, Topology::Groups(_));
    let shards = pool.shards();
    let shown = shards.iter().filter(|_| pool.has_copies() || named);
    shown
        .map(|shard| {
            let member = |at: u32| Some(pool.servers[at as usize].name.clone());
            let mut object = Object::default();
            object.insert("name", Some(shard.name.clone()));
            object.insert("servers", shard.members().map(member).collect::<Json<'_>>());
            object
        })
        .collect()
}

fn server<'a>(
    source: &'a Source,
    (pool, index): (usize, usize),
    status: ServerStatus<'a>,
    (role, member): (&'static str, Option<&MemberState>),
    series: Option<&Series>,
) -> Object<'a> {
    let id = source.layout().server(pool, index);
    let numbers = source.total();
    let gauge = |gauge| numbers.server_gauge(id, gauge);
    let mut object = Object::default();
    object.insert("name", status.name);
    object.insert("address", Some(status.address));
    object.insert("role", role);
    object.insert("reads", member.map(|it| it.fitness.name().to_owned()));
    object.insert("lag_bytes", member.and_then(|it| it.lag));
    object.insert("up", u64::from(status.state.health.is_up()));
    object.insert("state", status.state.health.name());
    let cause = status.state.cause.text().to_owned();
    object.insert("cause", Some(cause).filter(|text| !text.is_empty()));
    object.insert("since", status.since_ms.map(|ms| ms / 1000));
    object.insert("last_error", status.last_error.map(|(why, _)| why.to_owned()));
    object.insert("last_error_at", status.last_error.map(|(_, ms)| ms / 1000));
    object.insert("ejected", gauge(ServerGauge::Ejected));
    object.insert("silent", gauge(ServerGauge::Silent));
    object.insert("drained_permille", gauge(ServerGauge::Drained));
    object.insert("connections", gauge(ServerGauge::ServerConnections));
    object.insert("sessions", gauge(ServerGauge::Sessions));
    object.insert("queue", gauge(ServerGauge::InQueue) + gauge(ServerGauge::OutQueue));
    object.insert("requests", numbers.server_counter(id, ServerCounter::Requests));
    object.insert("to_forget", status.spool.map(|spool| spool.depth));
    now(&mut object, series);
    object
}

/// Of each server, as the file has it. Empty where they have none.
fn roles(pool: &Pool) -> Vec<&'static str> {
    let mut roles = vec![""; pool.servers.len()];
    if !pool.has_copies() {
        return roles;
    }
    for shard in pool.shards().iter() {
        let is_memcached = pool.protocol == Protocol::Memcached;
        for member in shard.members() {
            roles[member as usize] = match member == shard.primary {
                // All of them take the writes.
                _ if is_memcached => "copy",
                true => "primary",
                false => "replica",
            };
        }
    }
    roles
}

fn worker<'a>(source: &Source, worker: &Worker) -> Object<'a> {
    let numbers = source.of_slot(worker.slot);
    let pools = 0..source.snapshot().pools.len();
    let clients =
        |pool| numbers.pool_gauge(source.layout().pool(pool), PoolGauge::ClientConnections);
    let mut object = stats::worker_state(worker);
    object.insert("clients", pools.map(clients).sum::<u64>());
    object
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::Value;

    use super::*;
    use crate::testing::{busy_source, snapshot, source_of};
    use crate::{Cell, Column, Section, Unit};

    fn state(source: &Source) -> Value {
        let mut history = History::default();
        history.sample(source);
        serde_json::from_slice(&document(source, &history).to_line()).unwrap()
    }

    #[test]
    fn a_document_has_what_is_shown() {
        let state = state(&busy_source());
        assert_eq!((&state["version"], &state["epoch"]), (&"1.2.3".into(), &3.into()));
        assert_eq!(state["reloads"]["last_failure"], "it is \"too\" hard");
        let (pool, server) = (&state["pools"][1], &state["pools"][1]["servers"][0]);
        assert_eq!((&pool["name"], &pool["protocol"]), (&"alpha".into(), &"redis".into()));
        assert_eq!((&pool["clients"], &pool["groups"]), (&12.into(), &serde_json::json!([])));
        assert!(pool["p50_us"].is_null() && pool["requests_per_s"].is_null());
        assert_eq!((&server["name"], &server["role"]), (&"one".into(), &"".into()));
        assert_eq!((&server["up"], &server["state"]), (&0.into(), &"out".into()));
        assert_eq!((&server["cause"], &server["queue"]), (&"Connection refused".into(), &7.into()));
        assert_eq!((&server["requests"], &server["ejected"]), (&30.into(), &1.into()));
        assert_eq!(state["pools"][1]["servers"][1]["name"], "127.0.0.1:26380");
        let workers = state["workers"].as_array().unwrap();
        assert_eq!((&workers[1]["slot"], &workers[1]["clients"]), (&2.into(), &8.into()));
        let sections = state["sections"].as_array().unwrap();
        let names: Vec<_> = sections.iter().map(|it| it["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["events", "slow", "hot"]);
    }

    #[test]
    fn servers_have_the_roles_of_the_file() {
        let mut snapshot = snapshot(&[("a", &["s1", "s2", "s3"])]);
        assert_eq!(roles(&snapshot.pools[0]), ["", "", ""]);
        snapshot.pools[0].topology = Topology::MasterReplica { master: 1 };
        assert_eq!(roles(&snapshot.pools[0]), ["replica", "primary", "replica"]);
        let (source, _) = source_of(snapshot.clone(), 1);
        let pool = state(&source)["pools"][0].take();
        assert_eq!(pool["servers"][1]["role"], "primary");
        assert_eq!(pool["groups"][0]["servers"], serde_json::json!(["s2", "s1", "s3"]));
        snapshot.pools[0].protocol = Protocol::Memcached;
        assert_eq!(roles(&snapshot.pools[0]), ["copy", "copy", "copy"]);
    }

    struct Another;

    impl Section for Another {
        fn name(&self) -> &'static str {
            "another"
        }

        fn columns(&self) -> &'static [Column] {
            &[
                Column { name: "took", unit: Unit::Microseconds },
                Column { name: "command", unit: Unit::Text },
                Column { name: "server", unit: Unit::Text },
            ]
        }

        fn rows(&self, source: &Source) -> Vec<Vec<Cell>> {
            let host = source.version().to_owned();
            vec![vec![Cell::Number(5), Cell::Text("GET".to_owned() + &host), Cell::Nothing]; 500]
        }
    }

    #[test]
    fn sections_are_tables() {
        let state = state(&busy_source().with_section(Arc::new(Another)));
        let table = &state["sections"][3];
        assert_eq!(table["name"], "another");
        assert_eq!(table["columns"][0], serde_json::json!({"name": "took", "unit": "us"}));
        assert_eq!(table["rows"][0], serde_json::json!([5, "GET1.2.3", null]));
        assert_eq!(table["rows"].as_array().unwrap().len(), 100);
    }
}
