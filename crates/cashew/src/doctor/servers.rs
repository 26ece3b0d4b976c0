//! What servers say, against what the configuration takes them to be.

use std::collections::BTreeMap;

use cashew_config::Snapshot;
use cashew_config::snapshot::{Listen, Pool, Protocol};

use super::Facts;
use super::answers::{Answer, Redis};
use super::finding::{Finding, Severity};
use super::machine;

/// A clock that is further off makes keys expire at different times.
const CLOCK_OFF_MS: i64 = 1000;
/// Seconds since a replica has last told of itself: it does so every second.
const LAG_MAX_S: u64 = 10;
/// The part of a limit beyond which little is left, in percent.
const NEARLY: u64 = 90;
/// The first version of memcached with the meta commands as they are now.
const META_SINCE: (u64, u64) = (1, 6);

/// A server that was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// Which pool, by its place in the snapshot.
    pub(super) pool: usize,
    pub(super) name: String,
    pub(super) address: String,
    /// Whether writes go to it; a replica's do not.
    pub(super) is_primary: bool,
    pub(super) answer: Answer,
}

impl Facts {
    fn pool_of(&self, asked: &Asked) -> &Pool {
        &self.snapshot.pools[asked.pool]
    }

    fn place(&self, asked: &Asked) -> String {
        let Asked { name, address, .. } = asked;
        let pool = &self.pool_of(asked).name;
        match name.contains(&**address) {
            true => format!("pool '{pool}', server {name}"),
            false => format!("pool '{pool}', server '{name}' ({address})"),
        }
    }

    fn redis(&self) -> impl Iterator<Item = (&Asked, &Redis)> {
        self.asked.iter().filter_map(|asked| match &asked.answer {
            Answer::Redis(redis) => Some((asked, redis)),
            _ => None,
        })
    }

    fn memcached(&self) -> impl Iterator<Item = (&Asked, &BTreeMap<String, String>)> {
        self.asked.iter().filter_map(|asked| match &asked.answer {
            Answer::Memcached(stats) => Some((asked, stats)),
            _ => None,
        })
    }
}

impl Redis {
    fn number(&self, name: &str) -> Option<u64> {
        number(&self.info, name)
    }

    fn is(&self, name: &str, value: &str) -> bool {
        self.info.get(name).is_some_and(|it| it == value)
    }

    fn maxclients(&self) -> Option<u64> {
        self.maxclients.or_else(|| self.number("maxclients"))
    }
}

fn number(values: &BTreeMap<String, String>, name: &str) -> Option<u64> {
    values.get(name)?.parse().ok()
}

fn is_nearly(used: u64, of: u64) -> bool {
    used.saturating_mul(100) >= of.saturating_mul(NEARLY)
}

/// Servers that cannot be reached from this machine.
pub(super) fn reachable(facts: &Facts) -> Vec<Finding> {
    let finding = |asked: &Asked| {
        let Answer::Unreachable(why) = &asked.answer else { return None };
        let what = format!("cannot be asked from here: {why}");
        let finding = Finding::error(facts.place(asked), what);
        Some(
            match (facts.pool_of(asked).protocol, asked.is_primary) {
                (Protocol::Tcp, _) => finding.why("clients cannot be connected to it"),
                (_, true) => finding.why("requests for its keys fail, or go elsewhere"),
                (_, false) => finding.why("it answers no reads"),
            }
            .advice("start it, check the address and the firewall, or take it out of the pool"),
        )
    };
    facts.asked.iter().filter_map(finding).collect()
}

/// Servers that do not take the pool's password.
pub(super) fn login(facts: &Facts) -> Vec<Finding> {
    let finding = |asked: &Asked| {
        let Answer::Refused(why) = &asked.answer else { return None };
        Some(
            Finding::error(facts.place(asked), format!("refuses the pool's login: {why}"))
                .why("all requests to it fail")
                .advice("set server_auth, or redis_auth, to what it takes"),
        )
    };
    facts.asked.iter().filter_map(finding).collect()
}

/// Servers of which nothing but that is known.
pub(super) fn questions(facts: &Facts) -> Vec<Finding> {
    let finding = |asked: &Asked| {
        let Answer::Silent(why) = &asked.answer else { return None };
        Some(
            Finding::note(facts.place(asked), format!("was not asked how it is: {why}"))
                .why("what is below cannot be checked of it")
                .advice("for Redis allow its user INFO, CONFIG|GET and TIME"),
        )
    };
    facts.asked.iter().filter_map(finding).collect()
}

/// Nodes of clusters, and of none.
pub(super) fn cluster(facts: &Facts) -> Vec<Finding> {
    let finding = |(asked, redis): (&Asked, &Redis)| {
        let (pool, is_node) = (facts.pool_of(asked), redis.is("cluster_enabled", "1"));
        let place = facts.place(asked);
        match (pool.is_cluster(), is_node) {
            (false, true) => Some(
                Finding::error(place, "is a node of a cluster, and the pool does not know of that")
                    .why("it answers MOVED for keys that other nodes have")
                    .advice("use `cluster: {seeds: [...]}` in place of servers"),
            ),
            (true, false) => Some(
                Finding::error(place, "is no node of a cluster: it has cluster_enabled:0")
                    .why("it has no slots")
                    .advice("name it in `servers` of a pool without `cluster`"),
            ),
            _ => None,
        }
    };
    facts.redis().filter_map(finding).collect()
}

/// Replicas where writes go, and the other way round.
pub(super) fn role(facts: &Facts) -> Vec<Finding> {
    let finding = |(asked, redis): (&Asked, &Redis)| {
        let place = facts.place(asked);
        let its = redis.info.get("role")?;
        match (asked.is_primary, &**its) {
            (true, "slave") => {
                // Routes may lead reads alone there.
                let severity = match facts.pool_of(asked).listen {
                    Listen::Nowhere => Severity::Warning,
                    Listen::Tcp(_) | Listen::Unix { .. } => Severity::Error,
                };
                Some(
                    Finding::new(severity, place, "is a replica, and writes go to it")
                        .why("it answers them with -READONLY")
                        .advice(
                            "name its primary; or promote it (REPLICAOF NO ONE) and run \
                             `cashew failover`",
                        ),
                )
            }
            (false, "master") => Some(
                Finding::warning(place, "is a replica of its group here, and says it is a primary")
                    .why("it does not get what is written to the group, and reads of it are stale")
                    .advice("REPLICAOF the group's primary, or take it out of the group"),
            ),
            _ => None,
        }
    };
    facts
        .redis()
        .filter(|(asked, _)| !facts.pool_of(asked).is_cluster())
        .filter_map(finding)
        .collect()
}

/// Replicas that do not follow, and primaries that take no writes without them.
pub(super) fn replication(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (asked, redis) in facts.redis() {
        let place = facts.place(asked);
        if redis.is("role", "slave") && redis.is("master_link_status", "down") {
            let since = redis.number("master_link_down_since_seconds");
            let since = since.map_or_else(String::new, |s| format!(" for {s} s"));
            findings.push(
                Finding::warning(&place, format!("has had no connection to its primary{since}"))
                    .why("its data is old")
                    .advice("check masterauth, the network, and the log of both"),
            );
        }
        for (replica, lag) in lags(redis).filter(|(_, lag)| *lag > LAG_MAX_S) {
            findings.push(
                Finding::warning(
                    &place,
                    format!("has not heard of its replica {replica} for {lag} s"),
                )
                .why("what is written is not on the replica")
                .advice("is it busy, or the network down?"),
            );
        }
        let good = redis.number("min_slaves_good_slaves").filter(|_| redis.is("role", "master"));
        // It is there only if some are wanted.
        let wanted = redis.min_replicas.unwrap_or(1).max(1);
        if let Some(good) = good.filter(|good| *good < wanted) {
            let what =
                format!("has {good} replicas that keep up, and min-replicas-to-write is {wanted}");
            findings.push(
                Finding::error(&place, what)
                    .why("it answers writes with -NOREPLICAS")
                    .advice("bring replicas back, or lower min-replicas-to-write"),
            );
        }
    }
    findings
}

/// `slave0:ip=10.0.0.2,port=6379,state=online,offset=1,lag=0`.
fn lags(redis: &Redis) -> impl Iterator<Item = (String, u64)> + '_ {
    let is_replica = |name: &str| {
        let number = name.strip_prefix("slave");
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let replicas = redis.info.iter().filter(move |(name, _)| is_replica(name));
    replicas.filter_map(|(_, value)| {
        let of =
            |key: &str| value.split(',').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
        Some((format!("{}:{}", of("ip")?, of("port")?), of("lag")?.parse().ok()?))
    })
}

/// Connections that the server lets in, of Redis.
pub(super) fn maxclients(facts: &Facts) -> Vec<Finding> {
    let need = machine::connections_by_server(&facts.snapshot);
    let finding = |(asked, redis): (&Asked, &Redis)| {
        let connected = redis.number("connected_clients").unwrap_or(0);
        connections(
            facts.place(asked),
            ("maxclients", redis.maxclients()?),
            connected,
            (&facts.snapshot, &need),
            asked,
        )
    };
    facts.redis().filter_map(finding).collect()
}

/// The same of memcached.
pub(super) fn maxconns(facts: &Facts) -> Vec<Finding> {
    let need = machine::connections_by_server(&facts.snapshot);
    let finding = |(asked, stats): (&Asked, &BTreeMap<String, String>)| {
        let connected = number(stats, "curr_connections").unwrap_or(0);
        let most = number(stats, "max_connections")?;
        connections(
            facts.place(asked),
            ("maxconns", most),
            connected,
            (&facts.snapshot, &need),
            asked,
        )
    };
    facts.memcached().filter_map(finding).collect()
}

fn connections(
    place: String,
    (limit, most): (&str, u64),
    connected: u64,
    (snapshot, need): (&Snapshot, &BTreeMap<String, u64>),
    asked: &Asked,
) -> Option<Finding> {
    let need = need.get(&asked.address).copied().unwrap_or(0);
    let advice = format!("raise {limit}, or {}", machine::lowering(snapshot, &asked.address));
    match () {
        () if is_nearly(connected, most) => {
            let what = format!("has {connected} connections, and {limit} {most}");
            Some(Finding::warning(place, what).why("it refuses further ones").advice(advice))
        }
        () if need > most => {
            let what =
                format!("lets in {most} connections ({limit}), and this gateway may make {need}");
            Some(Finding::warning(place, what).why("it refuses those beyond").advice(advice))
        }
        () => None,
    }
}

/// Memory of a server that evicts nothing.
pub(super) fn maxmemory(facts: &Facts) -> Vec<Finding> {
    let finding = |(asked, redis): (&Asked, &Redis)| {
        let (used, most) = (redis.number("used_memory")?, redis.number("maxmemory")?);
        let is_full =
            most > 0 && redis.is("maxmemory_policy", "noeviction") && is_nearly(used, most);
        is_full.then(|| {
            let what = format!(
                "uses {} % of its maxmemory, and has maxmemory-policy noeviction",
                used.saturating_mul(100) / most
            );
            Finding::warning(facts.place(asked), what)
                .why("when it is full, it answers writes with -OOM")
                .advice("raise maxmemory, or have it evict (allkeys-lru)")
        })
    };
    facts.redis().filter_map(finding).collect()
}

/// A server that still loads its data.
pub(super) fn loading(facts: &Facts) -> Vec<Finding> {
    let loading = facts.redis().filter(|(_, redis)| redis.is("loading", "1"));
    let finding = |(asked, _): (&Asked, &Redis)| {
        Finding::warning(facts.place(asked), "loads its data from disk")
            .why("until then it answers with -LOADING")
            .advice("wait; failover_wait lets requests wait, too")
    };
    loading.map(finding).collect()
}

/// Clocks, by which keys expire.
pub(super) fn clock(facts: &Facts) -> Vec<Finding> {
    let finding = |(asked, redis): (&Asked, &Redis)| {
        let off = redis.clock_ahead_ms.filter(|off| off.abs() > CLOCK_OFF_MS)?;
        let which = if off > 0 { "ahead of" } else { "behind" };
        let what = format!(
            "has a clock that is {:.1} s {which} this machine's",
            off.abs() as f64 / 1000.0
        );
        Some(
            Finding::warning(facts.place(asked), what)
                .why("EXPIREAT, and keys that move between servers, expire too early or too late")
                .advice("run chrony or ntpd there and here"),
        )
    };
    facts.redis().filter_map(finding).collect()
}

/// What memcached is too old for.
pub(super) fn version(facts: &Facts) -> Vec<Finding> {
    let finding = |(asked, stats): (&Asked, &BTreeMap<String, String>)| {
        let version = stats.get("version")?;
        let mut parts = version.split('.').map(str::parse::<u64>);
        let its = (parts.next()?.ok()?, parts.next()?.ok()?);
        (its < META_SINCE).then(|| {
            Finding::note(facts.place(asked), format!("is memcached {version}"))
                .why("it answers the meta commands (mg, ms, ...) with ERROR")
                .advice("upgrade it to 1.6 if clients use them")
        })
    };
    facts.memcached().filter_map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{facts, found, good, good_memcached, set};
    use super::*;

    #[test]
    fn healthy_servers_have_no_findings() {
        for facts in [good(), good_memcached()] {
            for check in [
                reachable,
                login,
                questions,
                cluster,
                role,
                replication,
                maxclients,
                maxconns,
                maxmemory,
                loading,
                clock,
                version,
            ] {
                assert_eq!(found(check, &facts), "");
            }
        }
    }

    #[test]
    fn servers_that_do_not_answer_are_found() {
        let mut facts = good();
        facts.asked[0].answer = Answer::Unreachable("Connection refused".into());
        assert!(found(reachable, &facts).starts_with(
            "error: pool 'alpha', server 's0' (127.0.0.1:1): cannot be asked from here: Connection refused"
        ));
        assert!(found(reachable, &facts).contains("requests for its keys fail"));
        facts.snapshot.pools[0].protocol = Protocol::Tcp;
        assert!(found(reachable, &facts).contains("clients cannot be connected to it"));
        facts.asked[0].answer = Answer::Refused("it wants a password".into());
        assert!(found(login, &facts).contains("refuses the pool's login"));
        facts.asked[0].answer = Answer::Silent("it answers INFO with -NOPERM".into());
        assert!(found(questions, &facts).starts_with("note: "));
    }

    #[test]
    fn roles_and_clusters_are_found() {
        let mut node = good();
        set(&mut node, "cluster_enabled", "1");
        assert!(found(cluster, &node).contains("it answers MOVED"));
        let mut replica = good();
        set(&mut replica, "role", "slave");
        assert!(found(role, &replica).starts_with("error: "));
        replica.snapshot.pools[0].listen = Listen::Nowhere;
        assert!(found(role, &replica).starts_with("warning: "));
        replica.asked[0].is_primary = false;
        assert_eq!(found(role, &replica), "");
        set(&mut replica, "role", "master");
        assert!(found(role, &replica).contains("reads of it are stale"));
    }

    #[test]
    fn replication_that_stands_still_is_found() {
        let mut replica = good();
        set(&mut replica, "role", "slave");
        set(&mut replica, "master_link_status", "up");
        assert_eq!(found(replication, &replica), "");
        set(&mut replica, "master_link_status", "down");
        set(&mut replica, "master_link_down_since_seconds", "7");
        assert!(found(replication, &replica).contains("to its primary for 7 s"));
        let mut primary = good();
        set(&mut primary, "slave0", "ip=10.0.0.2,port=6379,state=online,offset=1,lag=1");
        set(&mut primary, "min_slaves_good_slaves", "1");
        assert_eq!(found(replication, &primary), "");
        set(&mut primary, "slave0", "ip=10.0.0.2,port=6379,state=online,offset=1,lag=60");
        set(&mut primary, "min_slaves_good_slaves", "0");
        let text = found(replication, &primary);
        assert!(text.contains("10.0.0.2:6379 for 60 s") && text.contains("-NOREPLICAS"), "{text}");
        let mut fewer = good();
        set(&mut fewer, "min_slaves_good_slaves", "1");
        assert_eq!(found(replication, &fewer), "");
        let Answer::Redis(redis) = &mut fewer.asked[0].answer else { panic!() };
        redis.min_replicas = Some(2);
        assert!(found(replication, &fewer).contains("min-replicas-to-write is 2"));
    }

    #[test]
    fn limits_of_connections_are_found() {
        let mut few = good();
        set(&mut few, "maxclients", "100");
        assert!(found(maxclients, &few).contains("lets in 100 connections"));
        let mut full = good();
        set(&mut full, "connected_clients", "9500");
        assert!(found(maxclients, &full).contains("has 9500 connections"));
        let mut full = good_memcached();
        set(&mut full, "curr_connections", "1000");
        assert!(found(maxconns, &full).contains("maxconns 1024"));
        set(&mut full, "curr_connections", "3");
        set(&mut full, "max_connections", "4");
        assert!(found(maxconns, &full).contains("this gateway may make"));
    }

    #[test]
    fn memory_loading_and_clocks_are_found() {
        let mut server = good();
        set(&mut server, "maxmemory", "1000");
        set(&mut server, "used_memory", "950");
        assert!(found(maxmemory, &server).contains("95 %"));
        set(&mut server, "maxmemory_policy", "allkeys-lru");
        assert_eq!(found(maxmemory, &server), "");
        set(&mut server, "loading", "1");
        assert!(found(loading, &server).contains("-LOADING"));
        for (off, words) in [(1500, "1.5 s ahead of"), (-61_000, "61.0 s behind")] {
            let Answer::Redis(redis) = &mut server.asked[0].answer else { panic!() };
            redis.clock_ahead_ms = Some(off);
            assert!(found(clock, &server).contains(words));
        }
    }

    #[test]
    fn old_memcached_is_noted() {
        let mut old = good_memcached();
        set(&mut old, "version", "1.4.39");
        assert!(found(version, &old).starts_with("note: "));
        set(&mut old, "version", "unknown");
        assert_eq!(found(version, &old), "");
    }

    #[test]
    fn nodes_are_wanted_where_there_is_a_cluster() {
        let mut plain = facts("redis: true\n  timeout: 400\n  cluster: {seeds: [127.0.0.1:1]}", "");
        plain.asked = good().asked;
        assert!(found(cluster, &plain).contains("is no node of a cluster"));
        set(&mut plain, "cluster_enabled", "1");
        assert_eq!(found(cluster, &plain), "");
    }
}
