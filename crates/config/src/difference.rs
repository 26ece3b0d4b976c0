//! The difference between two snapshots, in words for an operator.

mod route;
mod share;
mod tcp;
mod tls;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::PathBuf;

use cashew_placement::HashTag;

use crate::access_log;
use crate::audit_log;
use crate::client_sources;
use crate::external_auth;
use crate::policy::shown_policy;
use crate::pose;
use crate::replica_reads::SpanText;
use crate::resolve::WORKER_MEMORY_MIN;
use crate::snapshot::{
    Address, Affinity, CasUniques, ClientSources, Cluster, Credentials, CustomCommand, Endpoint,
    Global, Hedge, HotRule, IoEngine, Limits, Listen, Memcached, OnFailure, OverLimit, Pool,
    Priority, Protocol, ProxyProtocol, Reads, ReplicaReads, Sentinel, Server, ServerAuth,
    ServerGroup, ServerMaintenance, ServersFrom, Snapshot, Spool, StatsFormat, Topology,
    TopologyState, UserOptions, Wire, Writes,
};
use crate::tracing;
use crate::users::name_of;
use crate::value::RoundSize;
use crate::value::SizeText;

/// Added, removed or changed servers of a pool beyond this number are counted, not named.
const SERVERS_SHOWN_MAX: usize = 20;

/// The changes, a line for each. Passwords are never shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    lines: Vec<String>,
}

impl Difference {
    /// The epoch number is not compared.
    pub fn between(old: &Snapshot, new: &Snapshot) -> Self {
        Self::in_force((old, &[]), (new, &[]))
    }

    /// Each with its topologies by pool: the keys that move are those that do with the primaries that
    /// are in force, not with the configured ones.
    pub fn in_force(
        (old, old_states): (&Snapshot, &[TopologyState]),
        (new, new_states): (&Snapshot, &[TopologyState]),
    ) -> Self {
        let in_force = |pool: &Pool, state: Option<&TopologyState>| match state {
            Some(state) => pool.in_force(state),
            None => pool.clone(),
        };
        let mut difference = Self::default();
        difference.global(&old.global, &new.global);
        let places: HashMap<&str, usize> =
            (0..).zip(&old.pools).map(|(at, pool)| (&*pool.name, at)).collect();
        let new_pools = by_name(&new.pools, |pool| &pool.name);
        for pool in old.pools.iter().filter(|pool| !new_pools.contains_key(pool.name.as_str())) {
            difference.lines.push(format!("{}: removed", whose(pool)));
        }
        for (at, pool) in new.pools.iter().enumerate() {
            match places.get(pool.name.as_str()) {
                Some(&before) => {
                    let old = &old.pools[before];
                    difference.pool(old, pool);
                    difference.keys(
                        &in_force(old, old_states.get(before)),
                        &in_force(pool, new_states.get(at)),
                    );
                }
                None => difference.lines.push(format!(
                    "{}: added, {}, {}",
                    whose(pool),
                    listens(pool),
                    match &pool.route {
                        Some(route) => format!("leads to {}", route.pools().join(", ")),
                        None if pool.is_cluster() => "a cluster".to_owned(),
                        None if pool.found().is_empty() && pool.servers_from.is_some() => {
                            "no servers yet".to_owned()
                        }
                        None => count(pool.servers.len(), "server"),
                    }
                )),
            }
        }
        difference
    }

    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    fn global(&mut self, old: &Global, new: &Global) {
        // All fields by name, so that none is forgotten.
        let Global {
            worker_processes,
            max_open_files,
            user,
            group,
            worker_shutdown_timeout_ms,
            batch_window_max_us,
            worker_memory_max,
            io_engine,
            reload_drain_timeout_ms,
            control_socket,
            worker_cpu_affinity,
            worker_heartbeat_timeout_ms,
            rebalance_threshold,
            stats_listen: _,
            stats_raw,
            stats_token,
            operate_token,
            operate_from,
            log_file,
            sentinel_state,
            discovery_state,
            log_level: _,
            log_format,
            ready_workers,
            ready_needs_primaries,
            drain_delay_ms,
            drain_to,
            tracing,
            access_log,
            audit_log,
        } = old;
        let shown = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let log = |path| shown(path).unwrap_or_else(|| "standard error".to_owned());
        let mut option = Options { lines: &mut self.lines, whose: None };
        option.changed("worker_processes", worker_processes, &new.worker_processes);
        option.changed("max_openfiles", &or_none(max_open_files), &or_none(&new.max_open_files));
        option.changed("user", &or_none(user), &or_none(&new.user));
        option.changed("group", &or_none(group), &or_none(&new.group));
        option.changed(
            "worker_shutdown_timeout",
            &(worker_shutdown_timeout_ms / 1000),
            &(new.worker_shutdown_timeout_ms / 1000),
        );
        option.changed("batch_window_max", batch_window_max_us, &new.batch_window_max_us);
        if !is_same_memory(old, new) {
            option.size_changed(
                "memory_max, each worker's share",
                *worker_memory_max,
                new.worker_memory_max,
            );
        }
        option.changed("io_engine", &engine(*io_engine), &engine(new.io_engine));
        option.changed(
            "reload_drain_timeout",
            reload_drain_timeout_ms,
            &new.reload_drain_timeout_ms,
        );
        option.changed(
            "control_socket",
            &or_none(&shown(control_socket)),
            &or_none(&shown(&new.control_socket)),
        );
        option.changed("worker_cpu_affinity", worker_cpu_affinity, &new.worker_cpu_affinity);
        option.changed(
            "worker_heartbeat_timeout",
            worker_heartbeat_timeout_ms,
            &new.worker_heartbeat_timeout_ms,
        );
        match (rebalance_threshold, &new.rebalance_threshold) {
            (Some(old), Some(new)) => option.changed("rebalance_threshold", old, new),
            (old, new) => option.changed("rebalance", &old.is_some(), &new.is_some()),
        }
        option.changed("stats_listen", &old.stats_listen(), &new.stats_listen());
        option.changed(
            "stats_raw",
            &stats_format_name(*stats_raw),
            &stats_format_name(new.stats_raw),
        );
        option.secret("stats_token", stats_token.as_ref(), new.stats_token.as_ref());
        option.secret("operate_token", operate_token.as_ref(), new.operate_token.as_ref());
        let sources = |sources: &[crate::snapshot::Source]| match sources {
            [] => "this machine".to_owned(),
            some => some.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
        };
        option.changed("operate_from", &sources(operate_from), &sources(&new.operate_from));
        option.changed("log_file", &log(log_file), &log(&new.log_file));
        option.changed(
            "sentinel_state",
            &or_none(&shown(sentinel_state)),
            &or_none(&shown(&new.sentinel_state)),
        );
        option.changed(
            "discovery_state",
            &or_none(&shown(discovery_state)),
            &or_none(&shown(&new.discovery_state)),
        );
        option.changed("log_level", &old.log_level(), &new.log_level());
        option.changed("log_format", &log_format.name(), &new.log_format.name());
        option.changed("ready_workers", ready_workers, &new.ready_workers);
        option.changed("ready_needs_primaries", ready_needs_primaries, &new.ready_needs_primaries);
        option.changed("drain_delay", &(drain_delay_ms / 1000), &(new.drain_delay_ms / 1000));
        option.changed("drain_to", &or_none(drain_to), &or_none(&new.drain_to));
        let shown = (tracing::shown(tracing), tracing::shown(&new.tracing));
        option.changed("tracing", &shown.0, &shown.1);
        if shown.0 == shown.1 && *tracing != new.tracing {
            option.say("tracing: values of headers");
        }
        option.changed(
            "access_log",
            &access_log::shown(access_log),
            &access_log::shown(&new.access_log),
        );
        option.changed(
            "audit_log",
            &audit_log::shown(audit_log),
            &audit_log::shown(&new.audit_log),
        );
    }

    fn pool(&mut self, old: &Pool, new: &Pool) {
        let Pool {
            name,
            listen,
            protocol,
            hash,
            hash_tag,
            distribution,
            topology,
            servers,
            timeout_ms,
            backlog,
            client_connections,
            tcp_keepalive,
            tcp_quickack,
            reuseport,
            redis_auth,
            server_auth,
            users,
            user_options,
            // Users name them, and what they are is told of the routes.
            user_routes: _,
            external_auth,
            redis_db,
            memcached,
            databases,
            preconnect,
            auto_eject_hosts,
            server_connections,
            session_connections,
            session_connections_idle,
            session_wait_ms,
            server_retry_timeout_ms,
            server_failure_limit,
            server_check_interval_ms,
            fail_open_percent,
            cross_server_copy,
            limits,
            commands,
            commands_from_servers,
            command_policy: _,
            client_pause_max_ms,
            failover_wait_ms,
            pose,
            hide_topology,
            sentinel,
            cluster,
            servers_from,
            zone,
            reads,
            reads_by_class,
            replica_reads,
            route,
            hedge,
            retry_reads,
            server_maintenance,
            coalesce_reads,
            tracking_keys_max,
            redis_version,
            spool,
            slow_log_ms,
            hot_keys,
            hot_rule,
            command_stats,
            prefixes,
            tls,
            tls_listen,
            server_tls,
            client_sources,
            tcp,
        } = old;
        let whose = whose(new);
        if *listen != new.listen {
            let line = match listen {
                Listen::Nowhere => format!("{whose}: {}", listens(new)),
                _ => format!("{whose}: {} instead of {listen}", listens(new)),
            };
            self.lines.push(line);
        }
        match (route, &new.route) {
            (Some(old), Some(new)) => {
                let lines = route::lines(old, new);
                self.lines.extend(lines.into_iter().map(|line| format!("{whose}: {line}")));
            }
            (None, Some(route)) => {
                let pools = route.pools().join(", ");
                self.lines.push(format!("{whose}: leads to {pools} instead of its own servers"));
            }
            (Some(_), None) => {
                self.lines.push(format!("{whose}: has servers of its own, and is no route"));
            }
            (None, None) => {}
        }
        match (topology, &new.topology) {
            // The cluster's, which no file names.
            _ if old.is_cluster() && new.is_cluster() => {}
            (Topology::Groups(_), _) | (_, Topology::Groups(_)) => self.groups(old, new),
            _ => self.servers(name, servers, &new.servers),
        }
        let mut option = Options { lines: &mut self.lines, whose: Some(whose) };
        let is_redis = |protocol: Protocol| protocol == Protocol::Redis;
        option.changed("redis", &is_redis(*protocol), &is_redis(new.protocol));
        option.tcp(tcp.as_ref(), new.tcp.as_ref());
        option.changed("hash", &hash.name(), &new.hash.name());
        option.changed("hash_tag", &tag(*hash_tag), &tag(new.hash_tag));
        option.changed("distribution", &distribution.name(), &new.distribution.name());
        option.changed("timeout", &or_none(timeout_ms), &or_none(&new.timeout_ms));
        option.changed("backlog", backlog, &new.backlog);
        option.changed("client_connections", client_connections, &new.client_connections);
        option.changed("tcpkeepalive", tcp_keepalive, &new.tcp_keepalive);
        option.changed("tcp_quickack", tcp_quickack, &new.tcp_quickack);
        option.changed("reuseport", reuseport, &new.reuseport);
        option.secret("redis_auth", redis_auth.as_ref(), new.redis_auth.as_ref());
        let own = |auth: &ServerAuth, clients: &Option<String>| {
            (!auth.is_of_clients(clients.as_deref())).then(|| auth.clone())
        };
        let (old_auth, new_auth) =
            (own(server_auth, redis_auth), own(&new.server_auth, &new.redis_auth));
        option.secret("server_auth", old_auth.as_ref(), new_auth.as_ref());
        option.users(users, &new.users);
        option.user_options(user_options, &new.user_options);
        let (old_auth, new_auth) =
            (external_auth::shown(external_auth), external_auth::shown(&new.external_auth));
        match old_auth == new_auth {
            // What is not shown may be another.
            true => {
                option.secret("external_auth", external_auth.as_ref(), new.external_auth.as_ref())
            }
            false => option.changed("external_auth", &old_auth, &new_auth),
        }
        option.changed("redis_db", redis_db, &new.redis_db);
        option.memcached(memcached, &new.memcached);
        option.changed("databases", databases, &new.databases);
        option.changed("preconnect", preconnect, &new.preconnect);
        option.changed("auto_eject_hosts", auto_eject_hosts, &new.auto_eject_hosts);
        option.changed("server_connections", server_connections, &new.server_connections);
        option.changed("session_connections", session_connections, &new.session_connections);
        option.changed(
            "session_connections_idle",
            session_connections_idle,
            &new.session_connections_idle,
        );
        option.changed("session_wait_timeout", session_wait_ms, &new.session_wait_ms);
        option.changed(
            "server_retry_timeout",
            server_retry_timeout_ms,
            &new.server_retry_timeout_ms,
        );
        option.changed(
            "server_check_interval",
            server_check_interval_ms,
            &new.server_check_interval_ms,
        );
        option.changed("server_failure_limit", server_failure_limit, &new.server_failure_limit);
        let share = |percent: u32| format!("{percent}%");
        option.changed("fail_open", &share(*fail_open_percent), &share(new.fail_open_percent));
        option.changed("cross_server_copy", cross_server_copy, &new.cross_server_copy);
        option.limits(limits, &new.limits);
        option.changed("commands", &names(commands), &names(&new.commands));
        if names(commands) == names(&new.commands) && *commands != new.commands {
            option.say("commands: what is said about them");
        }
        let seeds = |cluster: &Option<Cluster>| {
            let seeds = cluster.iter().flat_map(|cluster| &cluster.seeds);
            let seeds: Vec<String> = seeds.map(Address::to_string).collect();
            if seeds.is_empty() { "none".to_owned() } else { seeds.join(", ") }
        };
        option.changed("cluster: seeds", &seeds(cluster), &seeds(&new.cluster));
        let max = |cluster: &Option<Cluster>| cluster.as_ref().map_or(0, |it| it.connections_max);
        option.changed("cluster: connections_max", &max(cluster), &max(&new.cluster));
        let source = |from: &Option<ServersFrom>| match from {
            Some(from) => from.source.to_string(),
            None => "the file of the configuration".to_owned(),
        };
        let (was, is) = (source(servers_from), source(&new.servers_from));
        option.changed("servers_from", &was, &is);
        let sources = |pool: &Pool| pool.source().cloned();
        if was == is && sources(old) != sources(new) {
            option.say("servers_from: how the source is asked");
        }
        option.changed("commands_from_servers", commands_from_servers, &new.commands_from_servers);
        option.changed("command_policy", &shown_policy(old), &shown_policy(new));
        let (old_max, new_max) = (or_none(client_pause_max_ms), or_none(&new.client_pause_max_ms));
        option.changed("client_pause_max", &old_max, &new_max);
        option.changed("failover_wait", failover_wait_ms, &new.failover_wait_ms);
        option.changed("pose", &pose::shown(pose.as_ref()), &pose::shown(new.pose.as_ref()));
        option.changed("hide_topology", hide_topology, &new.hide_topology);
        option.replica_reads(replica_reads, &new.replica_reads);
        let hedged = |hedge: &Option<Hedge>| match hedge {
            None => "none".to_owned(),
            Some(Hedge { after_ms, budget_percent }) => {
                format!("after {}, budget {budget_percent}%", SpanText(*after_ms))
            }
        };
        option.changed("retry_reads", retry_reads, &new.retry_reads);
        let told = |it: &Option<ServerMaintenance>| {
            it.as_ref().map_or_else(|| "false".to_owned(), ToString::to_string)
        };
        option.changed(
            "server_maintenance",
            &told(server_maintenance),
            &told(&new.server_maintenance),
        );
        option.changed("coalesce_reads", coalesce_reads, &new.coalesce_reads);
        option.changed("tracking_keys_max", tracking_keys_max, &new.tracking_keys_max);
        option.changed("redis_version", redis_version, &new.redis_version);
        let spooled = |spool: &Option<Spool>| match spool {
            None => "none".to_owned(),
            Some(Spool { directory, max, overwrites, hold_ms, ttl_ms }) => format!(
                "in {}, max {}, overwrites {overwrites}, hold {}, ttl {}",
                directory.display(),
                SizeText(*max),
                SpanText(*hold_ms),
                ttl_ms.map_or_else(|| "none".to_owned(), |ttl_ms| SpanText(ttl_ms).to_string()),
            ),
        };
        option.changed("spool", &spooled(spool), &spooled(&new.spool));
        option.changed("slow_log", &SpanText(*slow_log_ms), &SpanText(new.slow_log_ms));
        let hot = |is_on: &bool, rule: &Option<HotRule>| match rule {
            Some(rule) => rule.to_string(),
            None => is_on.to_string(),
        };
        option.changed("hot_keys", &hot(hot_keys, hot_rule), &hot(&new.hot_keys, &new.hot_rule));
        option.changed("command_stats", command_stats, &new.command_stats);
        option.changed("prefixes", &listed(prefixes), &listed(&new.prefixes));
        option.tls(tls.as_ref(), new.tls.as_ref());
        option.changed("tls_listen", &or_none(tls_listen), &or_none(&new.tls_listen));
        option.server_tls("server_tls", server_tls.as_ref(), new.server_tls.as_ref());
        let ClientSources { allow_from, deny_from, proxy_protocol } = client_sources;
        let sources = &new.client_sources;
        let shown = client_sources::shown;
        option.changed("allow_from", &shown(allow_from), &shown(&sources.allow_from));
        option.changed("deny_from", &shown(deny_from), &shown(&sources.deny_from));
        let shown =
            |protocol: &Option<ProxyProtocol>| client_sources::shown_protocol(protocol.as_ref());
        option.changed("proxy_protocol", &shown(proxy_protocol), &shown(&sources.proxy_protocol));
        option.changed("hedge", &hedged(hedge), &hedged(&new.hedge));
        option.sentinel(sentinel.as_ref(), new.sentinel.as_ref());
        let by_default = |reads: &Option<Reads>| match reads {
            None => "by default".to_owned(),
            Some(reads) => reads.to_string(),
        };
        option.changed("reads", &by_default(reads), &by_default(&new.reads));
        option.changed("reads_by_class", &classes(reads_by_class), &classes(&new.reads_by_class));
        option.changed("zone", &or_none(zone), &or_none(&new.zone));
        match (topology, &new.topology) {
            (Topology::Sharded | Topology::Groups(_), Topology::MasterReplica { .. }) => {
                option.say("one server is the master of the others, which are its replicas");
            }
            (Topology::MasterReplica { .. }, Topology::Sharded | Topology::Groups(_)) => {
                option.say("the servers share the keys, none is the master of the others");
            }
            // Its index changes with the number of replicas; its name cannot.
            (Topology::Sharded | Topology::Groups(_), Topology::Sharded | Topology::Groups(_))
            | (Topology::MasterReplica { .. }, Topology::MasterReplica { .. }) => {}
        }
    }

    fn servers(&mut self, pool: &str, old: &[Server], new: &[Server]) {
        let old_servers = by_name(old, |server| &server.name);
        let new_servers = by_name(new, |server| &server.name);
        let removed = old.iter().filter(|s| !new_servers.contains_key(s.name.as_str()));
        self.list(pool, "removed", removed.map(|server| format!("'{}' removed", server.name)));
        let added = new.iter().filter(|s| !old_servers.contains_key(s.name.as_str()));
        let added = added.map(|server| {
            let Server { name, endpoint, weight, zone: _ } = server;
            format!("'{name}' added, at {endpoint} with weight {weight}")
        });
        self.list(pool, "added", added);
        let both = new.iter().filter_map(|s| Some((*old_servers.get(s.name.as_str())?, s)));
        let changes = both.flat_map(|(old, new)| {
            let moved = (old.endpoint != new.endpoint).then(|| {
                format!("'{}': at {} instead of {}", new.name, new.endpoint, old.endpoint)
            });
            let weighed = (old.weight != new.weight)
                .then(|| format!("'{}': weight {} -> {}", new.name, old.weight, new.weight));
            moved.into_iter().chain(weighed)
        });
        self.list(pool, "changed", changes);
    }

    /// What is new where groups share the keys, a server alone being a group of one.
    fn groups(&mut self, old: &Pool, new: &Pool) {
        let (old_groups, new_groups) = (old.shards(), new.shards());
        let old_by_name = by_name(&old_groups, |group| &group.name);
        let new_by_name = by_name(&new_groups, |group| &group.name);
        let name = &new.name;
        let shown = |pool: &Pool, group: &ServerGroup| {
            let at = |server: u32| pool.servers[server as usize].endpoint.to_string();
            let replicas: Vec<String> = group.replicas.iter().map(|&it| at(it)).collect();
            (at(group.primary), replicas)
        };
        let described = |pool: &Pool, group: &ServerGroup| match shown(pool, group) {
            (primary, replicas) if replicas.is_empty() => format!("at {primary}"),
            (primary, replicas) => format!("{primary} with replicas {}", replicas.join(", ")),
        };
        let removed = old_groups.iter().filter(|it| !new_by_name.contains_key(&*it.name));
        self.list(name, "removed", removed.map(|group| format!("'{}' removed", group.name)));
        let added = new_groups.iter().filter(|it| !old_by_name.contains_key(&*it.name));
        let added = added.map(|group| {
            let (name, weight) = (&group.name, group.weight);
            format!("'{name}' added, {} with weight {weight}", described(new, group))
        });
        self.list(name, "added", added);
        let both = new_groups.iter().filter_map(|it| Some((*old_by_name.get(&*it.name)?, it)));
        let changes = both.flat_map(|(old_group, group)| {
            let (was, is) = (described(old, old_group), described(new, group));
            let moved = (was != is).then(|| format!("'{}': {is} instead of {was}", group.name));
            let (was, is) = (old_group.weight, group.weight);
            let weighed = (was != is).then(|| format!("'{}': weight {was} -> {is}", group.name));
            moved.into_iter().chain(weighed)
        });
        self.list(name, "changed", changes);
    }

    fn list(&mut self, pool: &str, what: &str, mut items: impl Iterator<Item = String>) {
        let shown = items.by_ref().take(SERVERS_SHOWN_MAX);
        self.lines.extend(shown.map(|item| format!("pool '{pool}': server {item}")));
        let more = items.count();
        if more > 0 {
            self.lines.push(format!("pool '{pool}': {} {what}", count(more, "more server")));
        }
    }

    fn keys(&mut self, old: &Pool, new: &Pool) {
        let mut option = Options { lines: &mut self.lines, whose: Some(whose(new)) };
        if old.protocol != new.protocol || old.route.is_some() || new.route.is_some() {
            return;
        }
        if old.redis_db != new.redis_db {
            option.say("all keys are in another database");
            return;
        }
        match (old.is_cluster(), new.is_cluster()) {
            (false, false) => {}
            // Where keys are the cluster says, at any time.
            (true, true) => return,
            (false, true) => return option.say("keys are where the cluster has them"),
            (true, false) => return option.say("keys are no more where the cluster has them"),
        }
        if let Some(share::Moved { writes, reads }) = share::moved(old, new) {
            if writes == reads {
                option.say(&format!("{reads} to another server"));
            } else {
                option.say(&format!("writes: {writes} to another server"));
                option.say(&format!("reads: {reads} to another server"));
            }
        }
        if old.hash_tag != new.hash_tag && old.servers.len().max(new.servers.len()) > 1 {
            option.say("keys with text between the delimiters may go to another server, too");
        }
    }
}

fn whose(pool: &Pool) -> String {
    let what = if pool.route.is_some() { "route" } else { "pool" };
    format!("{what} '{}'", pool.name)
}

fn listens(pool: &Pool) -> String {
    match &pool.listen {
        Listen::Nowhere => "does not listen".to_owned(),
        listen => format!("listens on {listen}"),
    }
}

fn classes(classes: &[(String, Reads)]) -> String {
    let classes: Vec<String> =
        classes.iter().map(|(class, reads)| format!("{class}: {reads}")).collect();
    if classes.is_empty() { "none".to_owned() } else { classes.join(", ") }
}

fn listed(texts: &[String]) -> String {
    if texts.is_empty() { "none".to_owned() } else { format!("[{}]", texts.join(", ")) }
}

fn names(commands: &[CustomCommand]) -> String {
    let names: Vec<&str> = commands.iter().map(|command| command.name.as_str()).collect();
    if names.is_empty() { "none".into() } else { names.join(" ") }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

/// Writes lines about the options of a pool or of the instance.
struct Options<'a> {
    lines: &'a mut Vec<String>,
    whose: Option<String>,
}

impl Options<'_> {
    /// By name: rules may have what identifies passwords.
    fn users(&mut self, old: &[String], new: &[String]) {
        let by_name = |lines: &[String]| -> BTreeMap<String, String> {
            lines.iter().map(|line| (name_of(line).to_owned(), line.clone())).collect()
        };
        let (old, new) = (by_name(old), by_name(new));
        let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for name in names {
            self.secret(&format!("user '{name}'"), old.get(name), new.get(name));
        }
    }

    fn user_options(&mut self, old: &[UserOptions], new: &[UserOptions]) {
        let of = |options: &[UserOptions], name: &str| {
            let found = options.iter().find(|options| options.name == name);
            found.cloned().unwrap_or_else(|| UserOptions::of(name))
        };
        let names: BTreeSet<&String> = old.iter().chain(new).map(|options| &options.name).collect();
        for name in names {
            let (was, is) = (of(old, name), of(new, name));
            let UserOptions {
                name,
                requests_per_second,
                bytes_per_second,
                connections_max,
                in_flight_max,
                over_limit,
                key_prefix,
                reads,
                priority,
                route,
            } = &was;
            let called = |option: &str| format!("user '{name}': {option}");
            let key = called("requests_per_second");
            self.changed(&key, requests_per_second, &is.requests_per_second);
            let key = called("bytes_per_second");
            self.changed(&key, &SizeText(*bytes_per_second), &SizeText(is.bytes_per_second));
            self.changed(&called("connections_max"), connections_max, &is.connections_max);
            self.changed(&called("in_flight_max"), in_flight_max, &is.in_flight_max);
            self.changed(&called("key_prefix"), key_prefix, &is.key_prefix);
            let shown = |reads: Option<Reads>| {
                reads.map_or_else(|| "as the pool".to_owned(), |reads| reads.to_string())
            };
            self.changed(&called("reads"), &shown(*reads), &shown(is.reads));
            let led =
                |route: &Option<String>| route.clone().unwrap_or_else(|| "as others".to_owned());
            self.changed(&called("route"), &led(route), &led(&is.route));
            let named = |priority: Priority| match priority {
                Priority::Normal => "normal",
                Priority::Low => "low",
                Priority::High => "high",
            };
            self.changed(&called("priority"), &named(*priority), &named(is.priority));
            let how = |over_limit: OverLimit| match over_limit {
                OverLimit::Error => "error",
                OverLimit::Delay => "delay",
            };
            self.changed(&called("over_limit"), &how(*over_limit), &how(is.over_limit));
        }
    }

    fn memcached(&mut self, old: &Memcached, new: &Memcached) {
        let Memcached { wire, on_failure, cas_uniques, writes, client_auth } = old;
        let wire_of = |wire: Wire| match wire {
            Wire::Auto => "auto",
            Wire::Text => "text",
            Wire::Binary => "binary",
            Wire::Tcp => "tcp",
        };
        let failure = |on_failure: OnFailure| match on_failure {
            OnFailure::Error => "error",
            OnFailure::Miss => "miss",
        };
        self.changed("protocol", &wire_of(*wire), &wire_of(new.wire));
        let uniques = |cas_uniques: CasUniques| match cas_uniques {
            CasUniques::Auto => "auto",
            CasUniques::Tagged => "tagged",
            CasUniques::Plain => "plain",
        };
        self.changed("on_failure", &failure(*on_failure), &failure(new.on_failure));
        self.changed("cas_uniques", &uniques(*cas_uniques), &uniques(new.cas_uniques));
        let writes_to = |writes: Writes| match writes {
            Writes::All => "all",
            Writes::First => "first",
        };
        self.changed("writes", &writes_to(*writes), &writes_to(new.writes));
        let some = |auth: &'_ [Credentials]| (!auth.is_empty()).then(|| auth.to_vec());
        self.secret("client_auth", some(client_auth).as_ref(), some(&new.client_auth).as_ref());
    }

    fn replica_reads(&mut self, old: &ReplicaReads, new: &ReplicaReads) {
        let ReplicaReads { lag_max, link_down_max_ms, read_your_writes } = old;
        let size = |lag: &Option<u64>| {
            lag.map_or_else(|| "none".to_owned(), |lag| RoundSize(lag).to_string())
        };
        self.changed("replica_lag_max", &size(lag_max), &size(&new.lag_max));
        let (old_max, new_max) = (SpanText(*link_down_max_ms), SpanText(new.link_down_max_ms));
        self.changed("replica_link_down_max", &old_max, &new_max);
        self.changed("read_your_writes", read_your_writes, &new.read_your_writes);
    }

    fn sentinel(&mut self, old: Option<&Sentinel>, new: Option<&Sentinel>) {
        let addresses = |sentinel: Option<&Sentinel>| {
            let addresses = sentinel.iter().flat_map(|sentinel| &sentinel.addresses);
            let addresses: Vec<String> = addresses.map(ToString::to_string).collect();
            if addresses.is_empty() { "none".to_owned() } else { addresses.join(" ") }
        };
        self.changed("sentinels", &addresses(old), &addresses(new));
        let auth = |sentinel: Option<&Sentinel>| sentinel.and_then(|it| it.auth.clone());
        self.secret("sentinel_auth", auth(old).as_ref(), auth(new).as_ref());
        let tls = |sentinel: Option<&Sentinel>| sentinel.and_then(|it| it.tls.clone());
        self.server_tls("sentinel_tls", tls(old).as_ref(), tls(new).as_ref());
        let groups = |sentinel: Option<&Sentinel>| -> Vec<(String, String)> {
            let groups = sentinel.iter().flat_map(|sentinel| &sentinel.groups);
            groups.map(|group| (group.server.clone(), group.master.clone())).collect()
        };
        let (old, new) = (groups(old), groups(new));
        for (server, master) in new.iter().filter(|group| !old.contains(group)) {
            self.say(&format!("server '{server}' is the primary of Sentinel's group {master}"));
        }
        for (server, master) in old.iter().filter(|group| !new.contains(group)) {
            self.say(&format!("server '{server}' is no more that of Sentinel's group {master}"));
        }
    }

    /// Reports that it changed, without the values.
    fn secret<T: PartialEq>(&mut self, key: &str, old: Option<&T>, new: Option<&T>) {
        match (old, new) {
            (None, Some(_)) => self.say(&format!("{key}: set")),
            (Some(_), None) => self.say(&format!("{key}: removed")),
            (old, new) if old != new => self.say(&format!("{key}: changed")),
            _ => {}
        }
    }

    fn say(&mut self, what: &str) {
        self.lines.push(match &self.whose {
            Some(whose) => format!("{whose}: {what}"),
            None => what.to_owned(),
        });
    }

    fn changed<T: fmt::Display + PartialEq>(&mut self, key: &str, old: &T, new: &T) {
        if old != new {
            self.say(&format!("{key}: {old} -> {new}"));
        }
    }

    /// `None` is without limit.
    fn size_changed(&mut self, key: &str, old: Option<u64>, new: Option<u64>) {
        if old == new {
            return;
        }
        let round = |size: Option<u64>| or_none(&size.map(RoundSize));
        let exact = |size: Option<u64>| or_none(&size.map(|bytes| format!("{bytes} bytes")));
        match (round(old), round(new)) {
            (one, other) if one == other => self.changed(key, &exact(old), &exact(new)),
            (one, other) => self.changed(key, &one, &other),
        }
    }

    fn limits(&mut self, old: &Limits, new: &Limits) {
        let Limits {
            request_size_max,
            client_requests_max,
            client_output_pause,
            client_output_max,
            pubsub_output_max,
            pubsub_output_soft_max,
            pubsub_output_soft_ms,
            client_subscriptions_max,
            subscriptions_max,
            server_queue_max,
            server_queue_size_max,
            server_connect_timeout_ms,
            session_hold_ms,
            pipeline_start,
            transfer_rate_min,
            transfer_stall_ms,
        } = old;
        let sizes = [
            ("request_size_max", request_size_max, new.request_size_max),
            ("client_output_pause", client_output_pause, new.client_output_pause),
            ("client_output_max", client_output_max, new.client_output_max),
            ("pubsub_output_max", pubsub_output_max, new.pubsub_output_max),
            ("pubsub_output_soft_max", pubsub_output_soft_max, new.pubsub_output_soft_max),
            ("server_queue_size_max", server_queue_size_max, new.server_queue_size_max),
            ("transfer_rate_min", transfer_rate_min, new.transfer_rate_min),
        ];
        for (key, old, new) in sizes {
            self.size_changed(key, Some(*old), Some(new));
        }
        self.changed("client_requests_max", client_requests_max, &new.client_requests_max);
        let (old_ms, new_ms) = (pubsub_output_soft_ms, &new.pubsub_output_soft_ms);
        self.changed("pubsub_output_soft_time", old_ms, new_ms);
        let (old_max, new_max) = (client_subscriptions_max, &new.client_subscriptions_max);
        self.changed("client_subscriptions_max", old_max, new_max);
        self.changed("subscriptions_max", subscriptions_max, &new.subscriptions_max);
        self.changed("server_queue_max", server_queue_max, &new.server_queue_max);
        self.changed(
            "server_connect_timeout",
            server_connect_timeout_ms,
            &new.server_connect_timeout_ms,
        );
        self.changed("session_hold_timeout", session_hold_ms, &new.session_hold_ms);
        self.changed("pipeline_start", pipeline_start, &new.pipeline_start);
        self.changed("transfer_stall_timeout", transfer_stall_ms, &new.transfer_stall_ms);
    }
}

/// Whether the memory of all workers may be the same, so that only the number of workers has
/// changed their shares.
fn is_same_memory(old: &Global, new: &Global) -> bool {
    let [old, new] = [old, new].map(|global| {
        let workers = u64::from(global.worker_processes.max(1));
        global.worker_memory_max.map(|share| {
            let least = if share > WORKER_MEMORY_MIN { share.saturating_mul(workers) } else { 0 };
            (least, share.saturating_mul(workers).saturating_add(workers - 1))
        })
    });
    match (old, new) {
        (Some((old_min, old_max)), Some((new_min, new_max))) => {
            old_min <= new_max && new_min <= old_max
        }
        (old, new) => old == new,
    }
}

fn by_name<T>(items: &[T], name: impl Fn(&T) -> &str) -> HashMap<&str, &T> {
    items.iter().map(|item| (name(item), item)).collect()
}

fn or_none<T: fmt::Display>(value: &Option<T>) -> String {
    value.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)
}

fn tag(tag: Option<HashTag>) -> String {
    or_none(
        &tag.map(|HashTag { open, close }| format!("{}{}", char::from(open), char::from(close))),
    )
}

fn stats_format_name(format: StatsFormat) -> &'static str {
    match format {
        StatsFormat::Nutcracker => "nutcracker",
        StatsFormat::Full => "full",
    }
}

fn engine(engine: IoEngine) -> &'static str {
    match engine {
        IoEngine::Auto => "auto",
        IoEngine::Epoll => "epoll",
        IoEngine::Uring => "uring",
    }
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// As in a file.
impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix { path, mode: None } => write!(f, "{}", path.display()),
            Self::Unix { path, mode: Some(mode) } => write!(f, "{} {mode:04o}", path.display()),
            Self::Nowhere => f.write_str("nowhere"),
        }
    }
}

/// As in a file, without the weight.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { port: 0, .. } => f.write_str("an address not known yet"),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// As in a file, without ranges.
impl fmt::Display for Affinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Auto => f.write_str("auto"),
            Self::List(list) => {
                let numbers: Vec<_> = list.iter().map(u32::to_string).collect();
                f.write_str(&numbers.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Context, parse};

    const GLOBAL: &str = "worker_processes: 2, memory_max: 400mb";
    const SERVERS: &str = "servers: [\"h:1:1 one\", \"h:2:1 two\"]";

    #[test]
    fn the_same_is_no_difference() {
        let mut new = snapshot(GLOBAL, &format!("redis: true, {SERVERS}"));
        new.epoch = 7;
        let difference =
            Difference::between(&snapshot(GLOBAL, &format!("redis: true, {SERVERS}")), &new);
        assert!(difference.is_empty(), "{difference}");
        assert_eq!(difference.to_string(), "");
    }

    #[test]
    fn what_is_not_shown_of_a_url_is_a_difference() {
        let of = |query: &str| {
            let users = "users: {default: \"on >pw ~* +@all\"}";
            let auth = format!("external_auth: {{url: \"http://h/in?key={query}\"}}");
            snapshot(GLOBAL, &format!("redis: true, {users}, {auth}, {SERVERS}"))
        };
        let text = Difference::between(&of("one"), &of("two")).to_string();
        assert!(text.contains("external_auth: changed"), "{text}");
        assert!(!text.contains("key="), "{text}");
        assert!(Difference::between(&of("one"), &of("one")).is_empty());
    }

    #[test]
    fn global_options_are_told_as_the_file_has_them() {
        let table = [
            // The share changes with it, as expected.
            ("worker_processes: 4, memory_max: 400mb", "worker_processes: 2 -> 4"),
            ("worker_processes: 3, memory_max: 400mb", "worker_processes: 2 -> 3"),
            ("max_openfiles: 1024", "max_openfiles: none -> 1024"),
            ("user: nobody, group: nogroup", "user: none -> nobody\ngroup: none -> nogroup"),
            ("worker_shutdown_timeout: 5", "worker_shutdown_timeout: 30 -> 5"),
            ("batch_window_max: 0", "batch_window_max: 5000 -> 0"),
            ("memory_max: 500000000", "memory_max, each worker's share: 200.0 MiB -> 238.4 MiB"),
            ("memory_max: 0", "memory_max, each worker's share: 200.0 MiB -> none"),
            ("io_engine: uring", "io_engine: auto -> uring"),
            ("reload_drain_timeout: 1", "reload_drain_timeout: 5000 -> 1"),
            ("control_socket: /s", "control_socket: none -> /s"),
            ("worker_cpu_affinity: \"0-1,4\"", "worker_cpu_affinity: off -> 0,1,4"),
            ("worker_heartbeat_timeout: 0", "worker_heartbeat_timeout: 700 -> 0"),
            ("rebalance: false", "rebalance: true -> false"),
            ("rebalance_threshold: 50", "rebalance_threshold: 20 -> 50"),
            ("stats_listen: \"[::1]:1\"", "stats_listen: 0.0.0.0:22222 -> [::1]:1"),
            ("stats_listen: \"*:22222\"", ""),
            ("stats_raw: full", "stats_raw: nutcracker -> full"),
            ("stats_token: abc", "stats_token: set"),
            ("operate_token: abcdefghijklmnop", "operate_token: set"),
            ("log_file: /log", "log_file: standard error -> /log"),
            ("log_level: 7", "log_level: 5 -> 7"),
            ("log_level: 5", ""),
            ("log_format: json", "log_format: plain -> json"),
            ("ready_workers: 2", "ready_workers: 1 -> 2"),
            ("ready_needs_primaries: true", "ready_needs_primaries: false -> true"),
            ("drain_delay: 20", "drain_delay: 0 -> 20"),
            ("drain_to: other", "drain_to: none -> other"),
            (
                "tracing: {endpoint: 'http://c', headers: {x-token: secret}}",
                "tracing: none -> http://c:4318/v1/traces, share 1%, service_name cashew, keys hash, \
                 headers x-token",
            ),
            (
                "audit_log: {file: /audit, commands: [write, GET], logins: false}",
                "audit_log: none -> /audit, commands write get, share 100%, denied true, logins false, operators true",
            ),
            (
                "access_log: {file: /access}",
                "access_log: none -> /access, plain, share 1%, slow true, arguments true",
            ),
        ];
        let old = snapshot(GLOBAL, SERVERS);
        for (text, expected) in table {
            let key = text.split(':').next().unwrap();
            let mut options: Vec<&str> = GLOBAL.split(", ").collect();
            options.retain(|option| !option.starts_with(key) && !text.contains(option));
            options.push(text);
            assert_eq!(words(&old, &snapshot(&options.join(", "), SERVERS)), expected);
        }
    }

    #[test]
    fn options_of_pools_are_told_as_the_file_has_them() {
        let table = [
            (
                "hash_tag: \"{}\"",
                "hash_tag: none -> {}\nkeys with text between the delimiters may go to another server, too",
            ),
            ("timeout: 400", "timeout: none -> 400"),
            ("backlog: 1", "backlog: 512 -> 1"),
            ("client_connections: 5", "client_connections: 0 -> 5"),
            ("tcpkeepalive: true", "tcpkeepalive: false -> true"),
            ("tcp_quickack: true", "tcp_quickack: false -> true"),
            ("reuseport: true", "reuseport: false -> true"),
            ("redis_auth: secret", "redis_auth: set"),
            (
                "redis_db: 3",
                "redis_db: 0 -> 3\ndatabases: 16 -> 1\nall keys are in another database",
            ),
            ("databases: 4", "databases: 16 -> 4"),
            ("preconnect: true", "preconnect: false -> true"),
            ("auto_eject_hosts: true", "auto_eject_hosts: false -> true"),
            ("server_connections: 2", "server_connections: 1 -> 2"),
            ("session_connections: 7", "session_connections: 128 -> 7"),
            ("session_connections_idle: 7", "session_connections_idle: 0 -> 7"),
            ("session_wait_timeout: 7", "session_wait_timeout: 5000 -> 7"),
            ("server_retry_timeout: 1", "server_retry_timeout: 30000 -> 1"),
            ("server_check_interval: 1000", "server_check_interval: 0 -> 1000"),
            ("server_failure_limit: 3", "server_failure_limit: 2 -> 3"),
            ("fail_open: 50%", "fail_open: 100% -> 50%"),
            ("cross_server_copy: true", "cross_server_copy: false -> true"),
            ("command_policy: admin", "command_policy: application -> admin"),
            (
                "command_policy: {allow: [CONFIG|SET]}",
                "command_policy: application -> application, allow CONFIG|SET",
            ),
            ("replica_lag_max: 1mb", "replica_lag_max: none -> 1.0 MiB"),
            ("replica_link_down_max: 1500", "replica_link_down_max: 60s -> 1500ms"),
            ("read_your_writes: offset", "read_your_writes: off -> offset"),
            ("read_your_writes: 2s", "read_your_writes: off -> 2s"),
            ("retry_reads: true", "retry_reads: false -> true"),
            ("server_maintenance: true", "server_maintenance: false -> true"),
            ("server_maintenance: none", "server_maintenance: false -> none"),
            ("coalesce_reads: true", "coalesce_reads: false -> true"),
            ("tracking_keys_max: 9", "tracking_keys_max: 100000 -> 9"),
            ("redis_version: 8.2.1", "redis_version: 7.0.15 -> 8.2.1"),
            ("hedge: {after: 3ms}", "hedge: none -> after 3ms, budget 5%"),
            ("client_pause_max: 5", "client_pause_max: 60000 -> 5"),
            ("failover_wait: 500", "failover_wait: 0 -> 500"),
            (
                "pose: cluster, advertise: [a:1, 10.0.0.1:2]",
                "pose: none -> cluster, advertise a:1, 10.0.0.1:2",
            ),
            ("hide_topology: true", "hide_topology: false -> true"),
            ("allow_from: [10.0.0.0/8, unix]", "allow_from: none -> 10.0.0.0/8, unix"),
            ("deny_from: 192.0.2.7", "deny_from: none -> 192.0.2.7"),
            ("proxy_protocol: true", "proxy_protocol: false -> from everybody, timeout 3s"),
            (
                "proxy_protocol: {trusted: 10.0.0.7, timeout: 1s}",
                "proxy_protocol: false -> from 10.0.0.7, timeout 1s",
            ),
            ("slow_log: 2ms", "slow_log: 10ms -> 2ms"),
            ("hot_keys: false", "hot_keys: true -> false"),
            ("command_stats: true", "command_stats: false -> true"),
            ("prefixes: [a:, b:]", "command_stats: false -> true\nprefixes: none -> [a:, b:]"),
            ("request_size_max: 1mb", "request_size_max: 1.0 GiB -> 1.0 MiB"),
            ("client_requests_max: 1", "client_requests_max: 1024 -> 1"),
            ("client_output_pause: 5kb", "client_output_pause: 1.0 MiB -> 5.0 KiB"),
            ("client_output_max: 2gb", "client_output_max: 1.0 GiB -> 2.0 GiB"),
            (
                "client_output_max: 1073741825",
                "client_output_max: 1073741824 bytes -> 1073741825 bytes",
            ),
            ("server_queue_max: 9", "server_queue_max: 262144 -> 9"),
            ("server_queue_size_max: 100000", "server_queue_size_max: 256.0 MiB -> 97.7 KiB"),
            ("server_connect_timeout: 1", "server_connect_timeout: 5000 -> 1"),
            ("session_hold_timeout: 7", "session_hold_timeout: 10000 -> 7"),
            ("pipeline_start: 0", "pipeline_start: 64 -> 0"),
            ("transfer_rate_min: 1mb", "transfer_rate_min: 64.0 KiB -> 1.0 MiB"),
            ("transfer_stall_timeout: 0", "transfer_stall_timeout: 60000 -> 0"),
            (
                "commands: [{name: b.x, arity: 2, first_key: 1}, {name: a.x, arity: 1}]",
                "commands: none -> a.x b.x",
            ),
            ("commands_from_servers: true", "commands_from_servers: false -> true"),
        ];
        let old = snapshot(GLOBAL, &format!("redis: true, {SERVERS}"));
        for (text, expected) in table {
            let new = snapshot(GLOBAL, &format!("redis: true, {text}, {SERVERS}"));
            let expected: Vec<_> =
                expected.lines().map(|line| format!("pool 'alpha': {line}")).collect();
            assert_eq!(words(&old, &new), expected.join("\n"));
        }
    }

    #[test]
    fn options_of_memcached_are_told_without_secrets() {
        let old = snapshot(GLOBAL, SERVERS);
        for (text, expected) in [
            ("protocol: binary", "protocol: auto -> binary"),
            ("on_failure: miss", "on_failure: error -> miss"),
            ("cas_uniques: plain", "cas_uniques: auto -> plain"),
            ("client_auth: 'a:b'", "client_auth: set"),
            ("server_auth: 'a:b'", "server_auth: set"),
        ] {
            let new = snapshot(GLOBAL, &format!("{text}, {SERVERS}"));
            assert_eq!(words(&old, &new), format!("pool 'alpha': {expected}"));
        }
    }

    #[test]
    fn what_changes_about_commands_is_told() {
        let with = |arity: i32| {
            let commands = format!("commands: [{{name: x.y, arity: {arity}}}]");
            snapshot(GLOBAL, &format!("redis: true, {commands}, {SERVERS}"))
        };
        let expected = "pool 'alpha': commands: what is said about them";
        assert_eq!(words(&with(1), &with(-1)), expected);
        assert_eq!(words(&with(1), &with(1)), "");
    }

    #[test]
    fn the_share_of_an_automatic_memory_max_goes_without_saying() {
        let with = |global: &str, memory| {
            let text = format!("global: {{{global}}}\npools: {{p: {{listen: /p, {SERVERS}}}}}");
            let context = Context { memory: Some(memory), ..Context::of_system() };
            parse("f", &text, &context).unwrap_or_else(|errors| panic!("{errors}")).snapshot
        };
        // Uneven numbers, and so many workers that each has the minimum.
        for memory in [25_276_508_285, 100 << 20] {
            let four = with("worker_processes: 4", memory);
            for workers in [0, 1, 3, 7, 256] {
                let other = with(&format!("worker_processes: {workers}"), memory);
                assert_eq!(words(&four, &other), format!("worker_processes: 4 -> {workers}"));
                assert_eq!(words(&other, &four), format!("worker_processes: {workers} -> 4"));
            }
        }
        let before = with("worker_processes: 4", 25_276_508_285);
        assert_eq!(
            words(&before, &with("worker_processes: 4, memory_max: 50gb", 25_276_508_285)),
            "memory_max, each worker's share: 2.9 GiB -> 12.5 GiB"
        );
        assert_eq!(
            words(&before, &with("worker_processes: 2, memory_max: 50gb", 0)),
            "worker_processes: 4 -> 2\nmemory_max, each worker's share: 2.9 GiB -> 25.0 GiB"
        );
    }

    #[test]
    fn users_are_told_by_name() {
        let with =
            |users: &str| snapshot(GLOBAL, &format!("redis: true, users: {{{users}}}, {SERVERS}"));
        let (old, new) =
            (with("ann: on >a, bob: on >b, cid: on"), with("ann: on >a, bob: on >c, dan: on"));
        let expected = "pool 'alpha': user 'bob': changed\npool 'alpha': user 'cid': removed\n\
                        pool 'alpha': user 'dan': set";
        assert_eq!(words(&old, &new), expected);
        assert_eq!(words(&old, &old), "");
    }

    #[test]
    fn limits_of_users_are_told() {
        let with =
            |ann: &str| snapshot(GLOBAL, &format!("redis: true, users: {{ann: {ann}}}, {SERVERS}"));
        let old = with("{rules: on >a, requests_per_second: 10, bytes_per_second: 1mb}");
        let new = with("{rules: on >a, requests_per_second: 20, over_limit: delay}");
        let expected = "pool 'alpha': user 'ann': requests_per_second: 10 -> 20\n\
                        pool 'alpha': user 'ann': bytes_per_second: 1mb -> 0\n\
                        pool 'alpha': user 'ann': over_limit: error -> delay";
        assert_eq!(words(&old, &new), expected);
        assert_eq!(words(&old, &old), "");
    }

    #[test]
    fn passwords_are_not_shown() {
        let with =
            |auth: &str| snapshot(GLOBAL, &format!("redis: true, redis_auth: {auth}, {SERVERS}"));
        assert_eq!(words(&with("secret1"), &with("secret2")), "pool 'alpha': redis_auth: changed");
        let without = snapshot(GLOBAL, &format!("redis: true, {SERVERS}"));
        assert_eq!(words(&with("secret1"), &without), "pool 'alpha': redis_auth: removed");
    }

    #[test]
    fn servers_come_go_and_change() {
        let old = snapshot(
            GLOBAL,
            "distribution: modula, servers: [\"h:1:1 a\", \"h:2:1 b\", \"h:3:2 c\"]",
        );
        let new = snapshot(
            GLOBAL,
            "distribution: modula, servers: [\"h:1:2 a\", \"[::1]:2:1 b\", \"/d:1 d\"]",
        );
        // Before: a b c c; after: a a b d; of four points one stays, and b is another server.
        assert_eq!(
            words(&old, &new),
            "pool 'alpha': server 'c' removed
pool 'alpha': server 'd' added, at /d with weight 1
pool 'alpha': server 'a': weight 1 -> 2
pool 'alpha': server 'b': at [::1]:2 instead of h:2
pool 'alpha': 75.0% of the keys go to another server"
        );
    }

    #[test]
    fn many_servers_are_counted() {
        let servers = |ports: std::ops::Range<u16>| {
            let lines: Vec<_> = ports.map(|port| format!("\"h:{port}:1\"")).collect();
            snapshot(GLOBAL, &format!("servers: [{}]", lines.join(", ")))
        };
        let words = words(&servers(1..11), &servers(1..100));
        assert_eq!(words.lines().count(), 22, "{words}");
        assert!(words.contains("\npool 'alpha': 69 more servers added\n"), "{words}");
    }

    #[test]
    fn pools_come_go_and_move() {
        let pools = |pools: &[(&str, &str)]| {
            let pools: Vec<_> = pools
                .iter()
                .map(|(name, listen)| format!("{name}: {{listen: \"{listen}\", {SERVERS}}}"))
                .collect();
            load(&format!("pools: {{{}}}", pools.join(", ")))
        };
        let old = pools(&[("gone", "/gone"), ("stays", "/stays"), ("moves", "127.0.0.1:1")]);
        let new = pools(&[("moves", "/gone 0600"), ("stays", "/stays"), ("comes", "[::1]:5")]);
        assert_eq!(
            words(&old, &new),
            "pool 'gone': removed
pool 'comes': added, listens on [::1]:5, 2 servers
pool 'moves': listens on /gone 0600 instead of 127.0.0.1:1"
        );
    }

    #[test]
    fn what_is_new_about_a_route_is_told() {
        let with = |route: &str| {
            let pool = |name: &str| format!("{name}: {{redis: true, servers: [\"{name}:1:1\"]}}");
            let pools = ["a", "b", "c", "d"].map(pool).join(", ");
            load(&format!(
                "pools: {{{pools}}}\nroutes:\n  all: {{listen: /all, redis: true, route: {{all_sync: [a, b, c, d]}}}}\n  \
                 main: {{listen: /main, redis: true, route: {route}}}"
            ))
        };
        let table = [
            ("a", "b", "b instead of a\nkeys: all go to other pools"),
            (
                "a",
                "{all_initial: [a, b]}",
                "all_initial [a, b] instead of a\nkeys: all go to other pools",
            ),
            (
                "{failover: [a, b]}",
                "{failover: [a, c], ttl: 60s}",
                "failover, ttl 1m instead of failover\nfailover 2: c instead of b",
            ),
            (
                "{prefix: {'u:': a, 't:': {strip: true, to: b}, '': {migrate: {from: a, to: b, share: 10%}}}}",
                "{prefix: {'u:': c, 'n:': {rewrite: 'x:', to: d}, 't:': b, '': {migrate: {from: a, to: b, share: 60%}}}}",
                "prefix \"\": migrate, share 60% instead of migrate, share 10%
prefix \"n:\" added, rewritten to \"x:\", to d
prefix \"t:\": sent as it is instead of stripped
prefix \"u:\": c instead of a
other keys: about 50% go to other pools
keys \"n:\": all go to other pools
keys \"t:\": all go to other pools
keys \"u:\": all go to other pools",
            ),
            (
                "{prefix: {'u:': a, '': b}}",
                "{prefix: {'': b}}",
                "prefix \"u:\" removed\nkeys \"u:\": all go to other pools",
            ),
            (
                "{keys: {exact: {x: a, y: b, z: c}}, else: d}",
                "{keys: {exact: {w: a, v: a, y: c, z: c}}, else: d}",
                "2 listed keys added\n1 listed key removed\n1 listed key elsewhere",
            ),
            (
                "{operation: {read: a, write: b}}",
                "{operation: {read: c, write: b}}",
                "operation read: c instead of a\nkeys: reads: all go to other pools",
            ),
        ];
        // Shares are of samples.
        let round = |words: String| {
            let lines = words.lines().map(|line| match line.split_once("about ") {
                Some((before, rest)) => {
                    let (share, after) = rest.split_once('%').unwrap();
                    let share = share.parse::<f64>().unwrap();
                    format!("{before}about {:.0}%{after}", (share / 10.0).round() * 10.0)
                }
                None => line.to_owned(),
            });
            lines.collect::<Vec<_>>().join("\n")
        };
        for (old, new, expected) in table {
            let expected: Vec<_> =
                expected.lines().map(|line| format!("route 'main': {line}")).collect();
            assert_eq!(round(words(&with(old), &with(new))), expected.join("\n"), "{old} {new}");
            assert_eq!(words(&with(old), &with(old)), "");
        }
    }

    #[test]
    fn a_pool_may_lose_its_listen_and_become_a_route() {
        let with = |a: &str| {
            load(&format!(
                "pools: {{b: {{listen: /b, servers: [\"b:1:1\"]}}, {a}}}\nroutes: {{main: {{listen: /main, route: b}}}}"
            ))
        };
        let before = with("a: {listen: /a, servers: [\"a:1:1\"]}");
        let mut after = before.clone();
        after.pools[0].listen = Listen::Nowhere;
        assert_eq!(words(&before, &after), "pool 'a': does not listen instead of /a");
        assert_eq!(words(&after, &before), "pool 'a': listens on /a");
        after = before.clone();
        after.pools[0].servers.clear();
        after.pools[0].route = before.pools[2].route.clone();
        assert_eq!(
            words(&before, &after),
            "route 'a': leads to b instead of its own servers\npool 'a': server 'a:1' removed"
        );
        assert!(
            words(&after, &before).starts_with("pool 'a': has servers of its own, and is no route")
        );
        let only_b = load("pools: {b: {listen: /b, servers: [\"b:1:1\"]}}");
        let both = load(
            "pools: {b: {listen: /b, servers: [\"b:1:1\"]}}\nroutes: {main: {listen: /main, route: b}}",
        );
        assert_eq!(words(&only_b, &both), "route 'main': added, listens on /main, leads to b");
        assert_eq!(words(&both, &only_b), "route 'main': removed");
    }

    #[test]
    fn a_master_is_told() {
        let old = snapshot(GLOBAL, "redis: true, servers: [\"h:1:1 one\", \"h:2:1 two\"]");
        let new = snapshot(GLOBAL, "redis: true, servers: [\"h:1:1 master\", \"h:2:1 two\"]");
        let words = words(&old, &new);
        assert!(words.contains("one server is the master of the others"), "{words}");
        assert!(words.contains("pool 'alpha': writes: ") && words.contains("reads: "), "{words}");
        let memcached = snapshot(GLOBAL, SERVERS);
        assert_eq!(super::tests::words(&old, &memcached), "pool 'alpha': redis: true -> false");
    }

    fn words(old: &Snapshot, new: &Snapshot) -> String {
        Difference::between(old, new).to_string()
    }

    fn snapshot(global: &str, pool: &str) -> Snapshot {
        load(&format!("global: {{{global}}}\npools: {{alpha: {{listen: /alpha, {pool}}}}}\n"))
    }

    fn load(text: &str) -> Snapshot {
        let context = Context { processors: 2, memory: Some(800 << 20), ..Context::of_system() };
        parse("f", text, &context).unwrap_or_else(|errors| panic!("{errors}")).snapshot
    }

    /// A sharded pool with defaults.
    pub(super) fn pool(name: &str, servers: Vec<Server>) -> Pool {
        let mut pool = snapshot(GLOBAL, "servers: [\"h:1:1\"]").pools.remove(0);
        name.clone_into(&mut pool.name);
        pool.servers = servers;
        pool
    }

    pub(super) fn server(name: &str, port: u16, weight: u32) -> Server {
        let endpoint = Endpoint::Tcp { host: "h".to_owned(), port };
        Server { name: name.to_owned(), endpoint, weight, zone: None }
    }
}
