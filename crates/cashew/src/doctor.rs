//! `cashew doctor`: what is wrong with a configuration, this machine, the servers or the running instance, or
//! will be, and what to do about it.
//!
//! Facts are collected first; each check is a function of them that has a name.

mod answers;
mod file;
mod finding;
mod instance;
mod machine;
mod servers;

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use cashew_config::snapshot::Pool;
use cashew_config::{Diagnostic, Snapshot};
use cashew_supervisor::{PoolStatus, Status};
use serde_json::Value;

use self::finding::{Finding, LookedAt, Report, Severity};
use self::instance::{Instance, unix_seconds};
use self::machine::Machine;
use self::servers::Asked;
use crate::arguments::InstanceArguments;
use crate::operate::status_if_running;
use crate::output::VERSION;
use crate::stats_port;

/// The most servers that are asked.
const SERVERS_MAX: usize = 200;
/// How long Sentinels and seeds of clusters may take to say where servers are.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(2);

/// All that checks look at.
#[derive(Clone, Debug)]
struct Facts {
    snapshot: Snapshot,
    /// What reading the file has brought up.
    remarks: Vec<(Severity, Diagnostic)>,
    machine: Machine,
    /// Servers that were asked, with their answers.
    asked: Vec<Asked>,
    /// `None` if none runs, or it cannot be reached.
    instance: Option<Instance>,
}

type Check = fn(&Facts) -> Vec<Finding>;

/// Of the file, this machine and the servers. The documentation lists them, in docs/operations.md.
const CHECKS: [(&str, Check); 19] = [
    ("configuration", file::configuration),
    ("timeout", file::timeout),
    ("descriptors", machine::descriptors),
    ("backlog", machine::backlog),
    ("memory", machine::memory),
    ("ports", machine::ports),
    ("reachable", servers::reachable),
    ("login", servers::login),
    ("questions", servers::questions),
    ("cluster", servers::cluster),
    ("role", servers::role),
    ("replication", servers::replication),
    ("maxclients", servers::maxclients),
    ("maxconns", servers::maxconns),
    ("maxmemory", servers::maxmemory),
    ("loading", servers::loading),
    ("clock", servers::clock),
    ("version", servers::version),
    ("unknown_address", unknown_address),
];

/// Of an instance that runs. Likewise.
const CHECKS_OF_INSTANCE: [(&str, Check); 13] = [
    ("servers", instance::servers),
    ("fail_open", instance::fail_open),
    ("cache", instance::cache),
    ("redirects", instance::redirects),
    ("discovery", instance::discovery),
    ("workers", instance::workers),
    ("clients", instance::clients),
    ("pressure", instance::pressure),
    ("latency", instance::latency),
    ("reload", instance::reload),
    ("logs", instance::logs),
    ("spool", instance::spool),
    ("certificates", instance::certificates),
];

pub(crate) fn doctor(arguments: &InstanceArguments, json: bool) -> ExitCode {
    let report = examine(arguments);
    let text = match json {
        true => serde_json::to_string_pretty(&report).expect("findings are plain JSON"),
        false => report.text(),
    };
    // The reader may be gone, as with `head`.
    let _ = writeln!(io::stdout(), "{text}");
    ExitCode::from(report.status())
}

fn examine(arguments: &InstanceArguments) -> Report {
    let path = &arguments.conf_file;
    let mut report = Report::default();
    report.looked_at.configuration = path.display().to_string();
    let mut loaded = match cashew_config::load(path) {
        Ok(loaded) => loaded,
        // About the file as a whole: it cannot be read.
        Err(errors) if matches!(&errors.0[..], [Diagnostic { line: 0, .. }]) => {
            report.looked_at.not_looked_at.push(errors.to_string());
            report.is_blind = true;
            return report;
        }
        Err(errors) => {
            let findings = errors.0.iter().map(|error| file::of_remark(Severity::Error, error));
            report.findings = named("configuration", findings);
            report.looked_at.checks.push("configuration");
            let why = "servers and the instance, since the file is invalid";
            report.looked_at.not_looked_at.push(why.to_owned());
            report.sort();
            return report;
        }
    };
    let warnings = loaded.warnings.drain(..).map(|it| (Severity::Warning, it));
    let remarks = warnings.chain(loaded.notes.drain(..).map(|it| (Severity::Note, it))).collect();
    let looked_at = &mut report.looked_at;
    let instance = match status_if_running(arguments) {
        Ok(status) => Some(look_at_instance(arguments, status, looked_at)),
        Err(why) => {
            looked_at.not_looked_at.push(format!("a running instance: {why}"));
            // Where its socket is not named, none may be meant to run.
            report.is_blind = why.may_run || arguments.control.is_some();
            None
        }
    };
    let mut snapshot = loaded.snapshot;
    // Those that are not found have no address, which is a finding.
    let _ = cashew_discovery::ask_once(&mut snapshot, DISCOVERY_TIMEOUT);
    let _ = cashew_discovery::find_once(&mut snapshot, DISCOVERY_TIMEOUT);
    let asked = ask_servers(&snapshot, instance.as_ref().map(|it| &it.status), looked_at);
    let worker = instance.as_ref().and_then(|it| it.status.workers.iter().find_map(|it| it.pid));
    let machine = Machine::look(&snapshot, worker);
    let facts = Facts { snapshot, remarks, machine, asked, instance };
    run(&facts, &mut report);
    report
}

/// All checks that there is something to look at for.
fn run(facts: &Facts, report: &mut Report) {
    let of_instance = facts.instance.iter().flat_map(|_| CHECKS_OF_INSTANCE);
    for (name, check) in CHECKS.into_iter().chain(of_instance) {
        report.findings.extend(named(name, check(facts)));
        report.looked_at.checks.push(name);
    }
    report.looked_at.pools = facts.snapshot.pools.len();
    report.looked_at.servers = facts.asked.len();
    report.looked_at.instance = facts.instance.as_ref().map(|it| it.status.pid);
    report.sort();
}

fn named(check: &'static str, findings: impl IntoIterator<Item = Finding>) -> Vec<Finding> {
    findings.into_iter().map(|finding| Finding { check, ..finding }).collect()
}

fn look_at_instance(
    arguments: &InstanceArguments,
    status: Status,
    looked_at: &mut LookedAt,
) -> Instance {
    stats_port::find_token(Some(arguments));
    let mut get = |path: &str| {
        let address = status.statistics.ok_or("it has no stats port");
        let address = address.map(|address| stats_port::reachable(address).to_string());
        let got = address.map_err(str::to_owned).and_then(|it| stats_port::get::<Value>(&it, path));
        got.unwrap_or_else(|why| {
            looked_at.not_looked_at.push(format!("the instance's statistics: {why}"));
            Value::Null
        })
    };
    let (stats, state) = (get("/stats"), get("/state.json"));
    Instance {
        stats,
        state,
        file_changed_at: changed_at(&arguments.conf_file),
        now: unix_seconds(SystemTime::now()),
        version: VERSION.to_owned(),
        status,
    }
}

fn changed_at(path: &Path) -> Option<u64> {
    fs::metadata(path).ok()?.modified().ok().map(unix_seconds)
}

fn ask_servers(
    snapshot: &Snapshot,
    status: Option<&Status>,
    looked_at: &mut LookedAt,
) -> Vec<Asked> {
    let of_pool = |(at, pool): (usize, &Pool)| {
        let known = pool.servers.iter().enumerate().filter(|(_, it)| !it.endpoint.is_unknown());
        known.map(|(server, _)| (at, server)).collect::<Vec<_>>()
    };
    let mut places: Vec<(usize, usize)> =
        snapshot.pools.iter().enumerate().flat_map(of_pool).collect();
    if places.len() > SERVERS_MAX {
        let more = places.len() - SERVERS_MAX;
        let what = format!("{more} more servers, since no more than {SERVERS_MAX} are asked");
        looked_at.not_looked_at.push(what);
        places.truncate(SERVERS_MAX);
    }
    let questions: Vec<(&Pool, usize)> =
        places.iter().map(|(pool, server)| (&snapshot.pools[*pool], *server)).collect();
    let answers = answers::ask_all(&questions);
    let primaries: Vec<BTreeSet<&str>> =
        snapshot.pools.iter().map(|pool| primaries_of(pool, status)).collect();
    let asked = |((pool, server), answer): ((usize, usize), answers::Answer)| {
        let it = &snapshot.pools[pool].servers[server];
        let is_primary = primaries[pool].contains(&*it.name);
        let (name, address) = (it.name.clone(), it.endpoint.to_string());
        Asked { pool, name, address, is_primary, answer }
    };
    places.into_iter().zip(answers).map(asked).collect()
}

/// The servers that take writes: as the running instance has it, which may have failed over.
fn primaries_of<'a>(pool: &'a Pool, status: Option<&'a Status>) -> BTreeSet<&'a str> {
    let shards = pool.shards();
    let name = |server: u32| &*pool.servers[server as usize].name;
    let mut primaries: BTreeSet<&str> = shards.iter().map(|shard| name(shard.primary)).collect();
    let status = status.and_then(|it| it.pools.iter().find(|its| its.name == pool.name));
    let Some(PoolStatus { primary, shards: now, .. }) = status else { return primaries };
    for shard in shards.iter() {
        let primary = match shards.len() {
            1 => Some(primary),
            _ => now.iter().find(|it| it.name == shard.name).map(|it| &it.primary),
        };
        let is_it = |server: &u32| {
            let server = &pool.servers[*server as usize];
            primary.is_some_and(|it| *it == server.name || *it == server.endpoint.to_string())
        };
        if let Some(server) = shard.members().find(is_it) {
            primaries.remove(name(shard.primary));
            primaries.insert(name(server));
        }
    }
    primaries
}

/// Servers that Sentinels do not name, and clusters without a map.
fn unknown_address(facts: &Facts) -> Vec<Finding> {
    let pools = facts.snapshot.pools.iter();
    let finding = |pool: &Pool| {
        let place = format!("pool '{}'", pool.name);
        if let (Some(source), []) = (pool.source(), pool.found()) {
            let finding = Finding::error(&place, format!("{source} names no servers for it"));
            let advice = format!("`cashew discover {}` says why", pool.name);
            return vec![finding.why("all requests fail").advice(&advice)];
        }
        let unknown = pool.servers.iter().filter(|it| it.endpoint.is_unknown());
        let mut findings: Vec<Finding> = unknown
            .map(|server| {
                Finding::error(
                    &place,
                    format!("no majority of its Sentinels says where '{}' is", server.name),
                )
                .why("requests for its keys fail")
                .advice("check `sentinels`, sentinel_auth, and the name of the group")
            })
            .collect();
        if pool.is_cluster() && pool.cluster_map().is_none() {
            findings.push(
                Finding::error(&place, "none of its seeds says which nodes its cluster has")
                    .why("all requests fail")
                    .advice("check `seeds` and the password"),
            );
        }
        findings
    };
    pools.flat_map(finding).collect()
}

#[cfg(test)]
mod testing {
    use std::collections::BTreeMap;

    use cashew_config::Context;
    use cashew_supervisor::{ServerStatus, WorkerStatus};

    use super::answers::{Answer, Redis};
    use super::*;

    /// Of a file with the pool `alpha`, on a machine that has plenty, without servers or instance.
    pub(super) fn facts(options: &str, servers: &str) -> Facts {
        let servers =
            if servers.is_empty() { String::new() } else { format!("  servers:\n{servers}") };
        let yaml = format!("alpha:\n  listen: 127.0.0.1:22121\n  {options}\n{servers}");
        let loaded = cashew_config::parse("test.yml", &yaml, &Context::of_system())
            .unwrap_or_else(|errors| panic!("{errors}"));
        let warnings = loaded.warnings.into_iter().map(|it| (Severity::Warning, it));
        let notes = loaded.notes.into_iter().map(|it| (Severity::Note, it));
        let machine = Machine {
            open_files: 1 << 16,
            open_files_of: "a worker".into(),
            somaxconn: Some(4096),
            memory: Some(64 << 30),
            memory_bound: 8 << 30,
            ports: Some(28_232),
        };
        let remarks = warnings.chain(notes).collect();
        Facts { snapshot: loaded.snapshot, remarks, machine, asked: Vec::new(), instance: None }
    }

    /// A pool of a server of Redis that is as it should be, and its instance.
    pub(super) fn good() -> Facts {
        let redis = [
            ("redis_version", "7.0.15"),
            ("role", "master"),
            ("cluster_enabled", "0"),
            ("loading", "0"),
            ("connected_clients", "3"),
            ("used_memory", "1000000"),
            ("maxmemory", "0"),
            ("maxmemory_policy", "noeviction"),
            ("maxclients", "10000"),
        ];
        let answer =
            Answer::Redis(Redis { info: of(&redis), clock_ahead_ms: Some(0), ..Redis::default() });
        let facts = facts("redis: true\n  timeout: 400", "   - 127.0.0.1:1:1 s0\n");
        let server = ServerStatus {
            name: "s0".into(),
            address: "127.0.0.1:1".into(),
            state: "well".into(),
            is_up: true,
            ..ServerStatus::default()
        };
        let pool = PoolStatus {
            name: "alpha".into(),
            server_states: vec![server],
            ..PoolStatus::default()
        };
        let worker = WorkerStatus { state: "serving".into(), ..WorkerStatus::default() };
        let status = Status {
            version: "1.0.0".into(),
            uptime_s: 100,
            workers: vec![worker],
            pools: vec![pool],
            ..Status::default()
        };
        let instance = Instance {
            status,
            now: 1_700_000_000,
            file_changed_at: Some(1_699_000_000),
            version: "1.0.0".into(),
            ..Instance::default()
        };
        Facts { asked: vec![asked(answer)], instance: Some(instance), ..facts }
    }

    pub(super) fn good_memcached() -> Facts {
        let stats = [("version", "1.6.18"), ("curr_connections", "3"), ("max_connections", "1024")];
        let facts = facts("timeout: 400", "   - 127.0.0.1:1:1 s0\n");
        Facts { asked: vec![asked(Answer::Memcached(of(&stats)))], ..facts }
    }

    fn asked(answer: Answer) -> Asked {
        let (name, address) = ("s0".to_owned(), "127.0.0.1:1".to_owned());
        Asked { pool: 0, name, address, is_primary: true, answer }
    }

    fn of(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// Changes what the server has answered.
    pub(super) fn set(facts: &mut Facts, name: &str, value: &str) {
        let values = match &mut facts.asked[0].answer {
            Answer::Redis(redis) => &mut redis.info,
            Answer::Memcached(stats) => stats,
            other => panic!("{other:?}"),
        };
        values.insert(name.to_owned(), value.to_owned());
    }

    pub(super) fn checked(check: Check, facts: &Facts) -> Vec<Finding> {
        check(facts)
    }

    /// All lines.
    pub(super) fn found(check: Check, facts: &Facts) -> String {
        check(facts).iter().map(|finding| format!("{finding}\n")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{facts, found, good};
    use super::*;

    #[test]
    fn nothing_is_found_where_all_is_well() {
        let mut report = Report::default();
        run(&good(), &mut report);
        assert_eq!((report.findings.len(), report.status()), (0, 0), "{}", report.text());
        let LookedAt { pools, servers, checks, .. } = &report.looked_at;
        let all = CHECKS.len() + CHECKS_OF_INSTANCE.len();
        assert_eq!((*pools, *servers, checks.len()), (1, 1, all));
        let (mut alone, mut report) = (good(), Report::default());
        alone.instance = None;
        run(&alone, &mut report);
        assert_eq!(report.looked_at.checks.len(), CHECKS.len());
    }

    #[test]
    fn each_check_is_in_the_handbook() {
        let text = include_str!("../../../docs/operations.md");
        let table = text.split("### The doctor").nth(1).expect("it has a section");
        let table = table.split("\n## ").next().unwrap();
        let rows: BTreeSet<&str> =
            table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
        let all = CHECKS.iter().chain(&CHECKS_OF_INSTANCE);
        assert_eq!(rows, all.map(|(name, _)| *name).collect());
    }

    #[test]
    fn groups_that_nobody_names_are_found() {
        let sentinels = "redis: true\n  timeout: 400\n  sentinels: [127.0.0.1:1]";
        let unknown = facts(sentinels, "   - {name: s0, sentinel: mymaster}\n");
        assert!(found(unknown_address, &unknown).contains("where 's0' is"));
        let cluster = facts("redis: true\n  timeout: 400\n  cluster: {seeds: [127.0.0.1:1]}", "");
        assert!(found(unknown_address, &cluster).contains("none of its seeds"));
        assert_eq!(found(unknown_address, &good()), "");
    }

    #[test]
    fn a_failover_is_taken_from_the_instance() {
        let group = "   - {name: s0, primary: 127.0.0.1:1, replicas: [127.0.0.1:2]}\n";
        let facts = facts("redis: true\n  timeout: 400", group);
        let pool = &facts.snapshot.pools[0];
        let by_file = primaries_of(pool, None);
        assert_eq!(by_file.len(), 1);
        let primary = "127.0.0.1:2".to_owned();
        let pools = vec![PoolStatus { name: "alpha".into(), primary, ..PoolStatus::default() }];
        let status = Status { pools, ..Status::default() };
        let now = primaries_of(pool, Some(&status));
        assert!(now.len() == 1 && now != by_file, "{now:?}");
    }
}
