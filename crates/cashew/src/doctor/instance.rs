//! What the running instance says of itself.

use std::time::{SystemTime, UNIX_EPOCH};

use cashew_config::snapshot::Protocol;
use cashew_supervisor::{PoolStatus, ServerStatus, Status};
use serde_json::Value;

use super::Facts;
use super::finding::Finding;

/// Seconds that what servers are to forget may wait.
const SPOOL_OLD_S: u64 = 60;
/// Certificates that expire sooner should be new by now.
const EXPIRES_SOON_S: u64 = 14 * 24 * 3600;

/// A running instance.
#[derive(Clone, Debug, Default)]
pub(super) struct Instance {
    pub(super) status: Status,
    /// `/stats` and `/state.json`; null if they could not be had.
    pub(super) stats: Value,
    pub(super) state: Value,
    /// When the file was last written. In seconds since 1970, as what follows.
    pub(super) file_changed_at: Option<u64>,
    pub(super) now: u64,
    /// Of this executable.
    pub(super) version: String,
}

pub(super) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn pools(facts: &Facts) -> impl Iterator<Item = (&Instance, &PoolStatus)> {
    let instance = facts.instance.iter();
    instance.flat_map(|it| it.status.pools.iter().map(move |pool| (it, pool)))
}

fn place(pool: &PoolStatus) -> String {
    format!("pool '{}'", pool.name)
}

fn place_of(pool: &PoolStatus, server: &ServerStatus) -> String {
    format!("pool '{}', server '{}' ({})", pool.name, server.name, server.address)
}

/// Since the start of the instance.
fn counted(instance: &Instance, pool: &str, name: &str) -> u64 {
    instance.stats[pool][name].as_u64().unwrap_or(0)
}

/// Whether it knows neither requests nor keys, and has no options about them.
fn is_passed_through(facts: &Facts, pool: &PoolStatus) -> bool {
    let mut pools = facts.snapshot.pools.iter();
    pools.any(|it| it.name == pool.name && it.protocol == Protocol::Tcp)
}

/// Servers that the instance does not use.
pub(super) fn servers(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (_, pool) in pools(facts) {
        for server in &pool.server_states {
            let cause = match (&*server.cause, &server.last_error) {
                ("", Some(error)) => format!(": {error}"),
                ("", None) => String::new(),
                (cause, _) => format!(": {cause}"),
            };
            let place = place_of(pool, server);
            let why = match is_passed_through(facts, pool) {
                true => "clients are not connected to it",
                false => "requests for its keys fail, wait, or go elsewhere",
            };
            match &*server.state {
                "out" => findings.push(
                    Finding::error(place, format!("is out{cause}"))
                        .why(why)
                        .advice("bring it back; `cashew events` says since when"),
                ),
                "suspect" => findings.push(
                    Finding::warning(place, format!("is suspect{cause}"))
                        .why("its connections fail, or it does not answer")
                        .advice("look at its log and load"),
                ),
                _ => {}
            }
        }
    }
    findings
}

/// Pools that use servers although too many are down.
pub(super) fn fail_open(facts: &Facts) -> Vec<Finding> {
    let open = pools(facts).filter(|(_, pool)| pool.open_since.is_some());
    let finding = |(_, pool): (&Instance, &PoolStatus)| {
        Finding::error(place(pool), "fails open: too many of its servers are down to eject them")
            .why("requests for keys of servers that are down fail")
            .advice("bring servers back")
    };
    open.map(finding).collect()
}

/// Caches that keep nothing.
pub(super) fn cache(facts: &Facts) -> Vec<Finding> {
    let finding = |(_, pool): (&Instance, &PoolStatus)| {
        let count = pool.cache.as_ref()?.refused_servers;
        let servers = match count {
            0 => return None,
            1 => "a server, which refuses".to_owned(),
            _ => format!("{count} servers, which refuse"),
        };
        Some(
            Finding::warning(
                place(pool),
                format!("its cache keeps nothing of {servers} what that takes"),
            )
            .why("all reads go to servers; `cashew events --kind cache_refused` says which and why")
            .advice("allow the pool's user there +client|tracking and +pttl"),
        )
    };
    pools(facts).filter_map(finding).collect()
}

/// Redirects of a cluster that clients got.
pub(super) fn redirects(facts: &Facts) -> Vec<Finding> {
    let passed_on = pools(facts).filter(|(_, pool)| pool.redirects_passed_on > 0);
    let finding = |(_, pool): (&Instance, &PoolStatus)| {
        let what = format!("has passed on {} MOVED or ASK errors", pool.redirects_passed_on);
        Finding::error(place(pool), what)
            .why("its servers are nodes of a cluster, of which it does not know")
            .advice("use `cluster: {seeds: [...]}` in place of servers")
    };
    passed_on.map(finding).collect()
}

/// Sentinels and what they name.
pub(super) fn discovery(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (_, pool) in pools(facts) {
        for group in pool.groups.iter().filter(|group| group.primary.is_none()) {
            let what = format!("no Sentinel has named a primary of '{}'", group.master);
            findings.push(
                Finding::error(place(pool), what)
                    .why("requests for its keys fail")
                    .advice("check `sentinels` and the name of the group"),
            );
        }
        let sentinels =
            pool.sentinels.iter().map(|it| ("Sentinel", &it.address, it.is_answering, &it.failure));
        let seeds = pool.cluster.iter().flat_map(|it| &it.seeds);
        let seeds = seeds.map(|it| ("seed", &it.address, it.is_answering, &it.failure));
        for (what, address, is_answering, failure) in sentinels.chain(seeds) {
            if is_answering == Some(false) {
                let why = failure.as_ref().map_or_else(String::new, |why| format!(": it {why}"));
                findings.push(
                    Finding::warning(place(pool), format!("{what} {address} does not answer{why}"))
                        .why("with too few of them, nobody sees a failover")
                        .advice("start it, or take it out of the file"),
                );
            }
        }
        for member in &pool.members {
            if !matches!(&*member.fitness, "" | "fit" | "unknown") {
                let what = format!("'{}' gets no reads: {}", member.server, member.fitness);
                findings.push(
                    Finding::warning(place(pool), what)
                        .why("others of its group have its share")
                        .advice("look at its replication"),
                );
            }
        }
    }
    findings
}

/// Processes that have died.
pub(super) fn workers(facts: &Facts) -> Vec<Finding> {
    let Some(Instance { status, .. }) = &facts.instance else { return Vec::new() };
    let worker =
        status.workers.iter().map(|it| (format!("worker {}", it.slot), &it.state, it.restarts));
    let other = |name: &str, it: &Option<cashew_supervisor::AdminStatus>| {
        it.as_ref().map(|it| (name.to_owned(), it.state.clone(), it.restarts))
    };
    let others = [other("admin process", &status.admin), other("discovery", &status.discovery)];
    let all = worker.map(|(name, state, restarts)| (name, state.clone(), restarts));
    let mut findings = Vec::new();
    for (name, state, restarts) in all.chain(others.into_iter().flatten()) {
        if state == "restarting" {
            findings.push(
                Finding::error(&name, "does not run: it is to be started again")
                    .why("it has died, and others do its work if there are any")
                    .advice("the log says why it died; a crash is a bug, please report it"),
            );
        } else if restarts > 0 {
            let what = format!("was started again {restarts} times in the life of the instance");
            findings.push(
                Finding::warning(&name, what)
                    .why("connections of its clients ended each time")
                    .advice(
                        "`cashew events` and the log say why; a crash is a bug, please report it",
                    ),
            );
        }
    }
    findings
}

/// Clients that were refused or cut for a limit, since the start.
pub(super) fn clients(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (instance, pool) in pools(facts) {
        for (name, what, advice) in [
            (
                "clients_refused",
                "clients were refused for a limit of connections or descriptors",
                "raise client_connections or max_openfiles",
            ),
            (
                "clients_overflowed",
                "clients were closed that did not read what waited for them",
                "look at these clients, or raise client_output_max",
            ),
        ] {
            let count = counted(instance, &pool.name, name);
            if count > 0 {
                findings.push(
                    Finding::warning(
                        place(pool),
                        format!("{count} {what} since the start ({name})"),
                    )
                    .advice(advice),
                );
            }
        }
    }
    findings
}

/// Whether workers have reached the bound of their memory, since the start.
pub(super) fn pressure(facts: &Facts) -> Vec<Finding> {
    let Some(instance) = &facts.instance else { return Vec::new() };
    let workers = instance.stats["cashew"]["workers"].as_array().into_iter().flatten();
    let pressed: u64 = workers.filter_map(|it| it["memory_pressed"].as_u64()).sum();
    if pressed == 0 {
        return Vec::new();
    }
    let what = format!("workers have reached memory_max {pressed} times since the start");
    let finding = Finding::warning("this instance", what)
        .why("they read no requests then, and may close clients that take most")
        .advice(
            "raise memory_max, or lower the limits of clients; `clients_shed` counts those closed",
        );
    vec![finding]
}

/// Servers that need too much of the timeout, in the last seconds.
pub(super) fn latency(facts: &Facts) -> Vec<Finding> {
    let Some(instance) = &facts.instance else { return Vec::new() };
    let mut findings = Vec::new();
    for pool in instance.state["pools"].as_array().into_iter().flatten() {
        let name = pool["name"].as_str().unwrap_or_default();
        let config = facts.snapshot.pools.iter().find(|it| it.name == name);
        let Some(timeout_ms) = config.and_then(|it| it.timeout_ms) else { continue };
        for server in pool["servers"].as_array().into_iter().flatten() {
            let Some(p99_us) = server["p99_us"].as_u64() else { continue };
            if p99_us.saturating_mul(3) > timeout_ms.saturating_mul(1000) {
                let its = server["name"].as_str().unwrap_or_default();
                let what = format!(
                    "answers one request of a hundred in {} ms or more, and timeout is {timeout_ms}",
                    p99_us / 1000
                );
                findings.push(
                    Finding::warning(format!("pool '{name}', server '{its}'"), what)
                        .why("slightly slower, and requests fail")
                        .advice(
                            "`cashew slowlog` has the requests; raise timeout if they are meant",
                        ),
                );
            }
        }
    }
    findings
}

/// Changes of the file that are not in effect.
pub(super) fn reload(facts: &Facts) -> Vec<Finding> {
    let Some(instance) = &facts.instance else { return Vec::new() };
    let status = &instance.status;
    let mut findings = Vec::new();
    let place = status.configuration.display().to_string();
    let reload = status.last_reload.as_ref();
    if let Some(why) = reload.and_then(|it| it.failed.as_ref()) {
        findings.push(
            Finding::error(&place, format!("the last reload has failed: {why}"))
                .why("the instance runs with what was before")
                .advice("mend the file, and run `cashew reload`"),
        );
    } else {
        let started = instance.now.saturating_sub(status.uptime_s);
        let loaded = reload.map_or(started, |it| it.at.max(started));
        // Both are in whole seconds.
        if instance.file_changed_at.is_some_and(|at| at > loaded + 1) {
            findings.push(
                Finding::warning(&place, "was changed since it was last loaded")
                    .why("the instance does not know of it, and what is said here of the file is not in effect")
                    .advice("`cashew reload --dry-run` shows what would change, `cashew reload` does it"),
            );
        }
    }
    if let Some(why) = status.last_upgrade.as_ref().and_then(|it| it.failed.as_ref()) {
        findings.push(
            Finding::warning("this instance", format!("the last upgrade has failed: {why}"))
                .why("the former program runs on")
                .advice("run `cashew upgrade` again when that is mended"),
        );
    }
    if status.version != instance.version {
        let what = format!("runs version {}, and this is {}", status.version, instance.version);
        findings.push(
            Finding::note("this instance", what).advice("`cashew upgrade` keeps the connections"),
        );
    }
    findings
}

/// Lines and spans that are lost.
pub(super) fn logs(facts: &Facts) -> Vec<Finding> {
    let Some(Instance { status, .. }) = &facts.instance else { return Vec::new() };
    let mut findings = Vec::new();
    let mut lost = |what: &str, lines: u64, error: Option<&String>, why: &str| {
        if lines == 0 {
            return;
        }
        let error = error.map_or_else(String::new, |error| format!(": {error}"));
        let finding = Finding::warning(what, format!("{lines} were lost since the start{error}"));
        findings.push(finding.why(why).advice("is the disk full, or who takes them too slow?"));
    };
    lost("lines of the log", status.log_lines_lost, None, "what happened is not known");
    if let Some(log) = &status.audit_log {
        let why = "the record of who did what has gaps";
        lost("lines of the audit log", log.lines_lost, log.last_error.as_ref(), why);
    }
    if let Some(log) = &status.access_log {
        let why = "it does not have all that was chosen";
        lost("lines of the access log", log.lines_lost, log.last_error.as_ref(), why);
    }
    if let Some(tracing) = &status.tracing {
        let why = "traces have gaps";
        lost("spans", tracing.spans_dropped, tracing.last_error.as_ref(), why);
    }
    findings
}

/// What servers have yet to be told to forget.
pub(super) fn spool(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (instance, pool) in pools(facts) {
        for server in &pool.server_states {
            let stats = &instance.stats[&pool.name][&server.name];
            let depth = stats["spool_depth"].as_u64().unwrap_or(0);
            let oldest = stats["spool_oldest_at"].as_u64().filter(|at| *at > 0);
            let age = oldest.map_or(0, |at| instance.now.saturating_sub(at));
            if depth > 0 && age > SPOOL_OLD_S {
                let what = format!("has {depth} keys to forget, the oldest for {age} s");
                findings.push(
                    Finding::warning(place_of(pool, server), what)
                        .why("until then whoever reaches it finds what was deleted")
                        .advice("bring it back, or take it out of the pool"),
                );
            }
        }
    }
    findings
}

/// Certificates that expire.
pub(super) fn certificates(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (instance, pool) in pools(facts) {
        for certificate in &pool.certificates {
            let left = certificate.expires_at.saturating_sub(instance.now);
            let file = &certificate.file;
            let advice = "renew it, and run `cashew reload`";
            if left == 0 {
                let what = format!("the certificate {file} has expired");
                findings.push(
                    Finding::error(place(pool), what).why("clients refuse it").advice(advice),
                );
            } else if left < EXPIRES_SOON_S {
                let what = format!("the certificate {file} expires in {} days", left / 86_400);
                findings.push(
                    Finding::warning(place(pool), what)
                        .why("clients refuse it then")
                        .advice(advice),
                );
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use cashew_supervisor::{
        AdminStatus, AuditLogStatus, CacheStatus, CertificateStatus, GroupStatus, MemberStatus,
        Outcome, SentinelStatus,
    };
    use serde_json::json;

    use super::super::testing::{found, good};
    use super::*;

    /// Changes what a healthy instance says.
    fn changed(change: impl FnOnce(&mut Instance)) -> Facts {
        let mut facts = good();
        change(facts.instance.as_mut().unwrap());
        facts
    }

    #[test]
    fn a_healthy_instance_has_no_findings() {
        for check in [
            servers,
            fail_open,
            cache,
            redirects,
            discovery,
            workers,
            clients,
            pressure,
            latency,
            reload,
            logs,
            spool,
            certificates,
        ] {
            assert_eq!(found(check, &good()), "");
        }
    }

    #[test]
    fn servers_and_pools_that_fail_are_found() {
        let out = changed(|it| {
            let server = &mut it.status.pools[0].server_states[0];
            (server.state, server.cause) = ("out".into(), "Connection refused".into());
        });
        assert!(found(servers, &out).contains("is out: Connection refused"));
        let mut passed_through = out;
        passed_through.snapshot.pools[0].protocol = Protocol::Tcp;
        let text = found(servers, &passed_through);
        assert!(
            text.contains("clients are not connected to it") && !text.contains("keys"),
            "{text}"
        );
        let suspect = changed(|it| it.status.pools[0].server_states[0].state = "suspect".into());
        assert!(found(servers, &suspect).starts_with("warning: "));
        let open = changed(|it| it.status.pools[0].open_since = Some(1));
        assert!(found(fail_open, &open).contains("fails open"));
        let kept = CacheStatus { refused_servers: 2, ..CacheStatus::default() };
        let refused = changed(|it| it.status.pools[0].cache = Some(kept.clone()));
        assert!(found(cache, &refused).contains("keeps nothing of 2 servers, which refuse"));
        let well = changed(|it| it.status.pools[0].cache = Some(CacheStatus::default()));
        assert_eq!(found(cache, &well), "");
        let moved = changed(|it| it.status.pools[0].redirects_passed_on = 3);
        assert!(found(redirects, &moved).contains("passed on 3 MOVED"));
    }

    #[test]
    fn what_discovery_misses_is_found() {
        let facts = changed(|it| {
            let pool = &mut it.status.pools[0];
            let group = GroupStatus { master: "mymaster".into(), ..GroupStatus::default() };
            pool.groups.push(group);
            let sentinel = SentinelStatus {
                address: "s:1".into(),
                is_answering: Some(false),
                failure: Some("refuses connections".into()),
            };
            pool.sentinels.push(sentinel);
            let fitness = "stale".to_owned();
            pool.members.push(MemberStatus {
                server: "r1".into(),
                fitness,
                ..MemberStatus::default()
            });
        });
        let text = found(discovery, &facts);
        for words in
            ["a primary of 'mymaster'", "s:1 does not answer: it refuses", "'r1' gets no reads"]
        {
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn processes_that_die_are_found() {
        let again = changed(|it| it.status.workers[0].restarts = 2);
        assert!(found(workers, &again).contains("worker 0: was started again 2 times"));
        let gone = changed(|it| it.status.workers[0].state = "restarting".into());
        assert!(found(workers, &gone).starts_with("error: "));
        let admin = AdminStatus { restarts: 1, state: "serving".into(), pid: None };
        let admin = changed(|it| it.status.admin = Some(admin));
        assert!(found(workers, &admin).contains("admin process"));
    }

    #[test]
    fn limits_that_were_reached_are_found() {
        let facts = changed(|it| {
            it.stats = json!({
                "alpha": {"clients_refused": 4, "clients_overflowed": 1},
                "cashew": {"workers": [{"memory_pressed": 2}, {"memory_pressed": 1}]},
            });
        });
        let text = found(clients, &facts);
        assert!(text.contains("4 clients were refused") && text.contains("1 clients were closed"));
        assert!(found(pressure, &facts).contains("memory_max 3 times"));
    }

    #[test]
    fn slow_servers_are_found() {
        let at = |p99_us: u64| {
            changed(|it| {
                let servers = json!([{"name": "s0", "p99_us": p99_us}]);
                it.state = json!({"pools": [{"name": "alpha", "servers": servers}]});
            })
        };
        assert!(found(latency, &at(150_000)).contains("in 150 ms or more, and timeout is 400"));
        assert_eq!(found(latency, &at(100_000)), "");
    }

    #[test]
    fn files_that_are_not_in_effect_are_found() {
        let newer = changed(|it| it.file_changed_at = Some(it.now - 5));
        assert!(found(reload, &newer).contains("was changed since"));
        let loaded = changed(|it| {
            it.file_changed_at = Some(it.now - 5);
            it.status.last_reload = Some(Outcome { at: it.now - 4, failed: None });
        });
        assert_eq!(found(reload, &loaded), "");
        let failed = changed(|it| {
            it.status.last_reload = Some(Outcome { at: it.now, failed: Some("line 3".into()) });
            it.status.last_upgrade = Some(Outcome { at: it.now, failed: Some("no file".into()) });
            it.version = "9.9.9".into();
        });
        let text = found(reload, &failed);
        for words in ["reload has failed: line 3", "upgrade has failed: no file", "this is 9.9.9"] {
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn what_is_lost_or_late_is_found() {
        let facts = changed(|it| {
            it.status.log_lines_lost = 7;
            let error = Some("disk full".to_owned());
            let log =
                AuditLogStatus { lines_lost: 2, last_error: error, ..AuditLogStatus::default() };
            it.status.audit_log = Some(log);
            it.stats =
                json!({"alpha": {"s0": {"spool_depth": 3, "spool_oldest_at": it.now - 100}}});
            let expires_at = it.now + 3 * 86_400;
            let certificate =
                CertificateStatus { file: "a.pem".into(), names: Vec::new(), expires_at };
            it.status.pools[0].certificates.push(certificate);
        });
        let text = found(logs, &facts);
        assert!(
            text.contains("lines of the log: 7")
                && text.contains("2 were lost since the start: disk full")
        );
        assert!(found(spool, &facts).contains("has 3 keys to forget, the oldest for 100 s"));
        assert!(found(certificates, &facts).contains("expires in 3 days"));
    }
}
