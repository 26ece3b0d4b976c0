//! What this machine gives, against what the configuration needs.

use std::collections::BTreeMap;
use std::fs;

use cashew_config::Snapshot;
use cashew_config::snapshot::{Endpoint, Listen, Pool, Protocol};
use cashew_engine::OpenFiles;
use rustix::process::{Resource, geteuid, getrlimit};

use super::Facts;
use super::finding::Finding;
use crate::output;

/// The kernel's own limit if there is no other (`fs.nr_open`).
const OPEN_FILES_MAX: u64 = 1 << 20;
/// Connections of clients that are for large values, one by one.
const LARGE: u64 = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Machine {
    /// Files that a worker may open, and who says so.
    pub(super) open_files: u64,
    pub(super) open_files_of: String,
    /// The largest listen queue.
    pub(super) somaxconn: Option<u64>,
    /// Bytes that this process may use, of the machine or the control group.
    pub(super) memory: Option<u64>,
    /// The most bytes of all workers.
    pub(super) memory_bound: u64,
    /// Ports for outgoing connections.
    pub(super) ports: Option<u64>,
}

impl Machine {
    /// `worker` is the process of one that runs.
    pub(super) fn look(snapshot: &Snapshot, worker: Option<u32>) -> Self {
        let workers = u64::from(snapshot.global.worker_processes.max(1));
        let running = worker.and_then(|pid| {
            let text = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
            Some((soft_limit(&text)?, format!("the running worker {pid}")))
        });
        let (open_files, open_files_of) = running
            .unwrap_or_else(|| (of_shell(snapshot), "a worker started from here".to_owned()));
        Self {
            open_files,
            open_files_of,
            somaxconn: number_in("/proc/sys/net/core/somaxconn"),
            memory: cashew_config::available_memory(),
            memory_bound: output::memory_bound(snapshot).total().saturating_mul(workers),
            ports: fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
                .ok()
                .and_then(|text| port_count(&text)),
        }
    }
}

/// The limit of a worker that an instance would have which is started like this process.
fn of_shell(snapshot: &Snapshot) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let (soft, hard) =
        (limit.current.unwrap_or(OPEN_FILES_MAX), limit.maximum.unwrap_or(OPEN_FILES_MAX));
    let wanted = snapshot.global.max_open_files.unwrap_or(soft);
    if geteuid().is_root() { wanted } else { wanted.min(hard) }
}

/// `Max open files            1024                 524288               files`.
fn soft_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(OPEN_FILES_MAX),
        number => number.parse().ok(),
    }
}

/// The first and the last port.
fn port_count(range: &str) -> Option<u64> {
    let mut ends = range.split_whitespace().map(str::parse::<u64>);
    let (first, last) = (ends.next()?.ok()?, ends.next()?.ok()?);
    (last + 1).checked_sub(first)
}

fn number_in(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The most connections that a gateway makes to each server of a pool.
pub(super) fn connections_to_each(pool: &Pool, workers: u32) -> u64 {
    let workers = u64::from(workers.max(1));
    let at_least_one = |connections: u32| u64::from(connections).max(workers);
    // As in "File descriptors" of the handbook: kinds of clients, one more of each for what is large.
    let of_kind = at_least_one(pool.server_connections) + workers;
    match pool.protocol {
        Protocol::Redis => {
            2 * of_kind + workers * (LARGE + 1) + at_least_one(pool.session_connections)
        }
        Protocol::Memcached => of_kind + workers * LARGE,
        Protocol::Tcp => {
            let options = pool.tcp.as_ref();
            options.map_or(0, |options| options.connections_max).max(1).into()
        }
    }
}

/// What lowers the number of connections to an address: options that its pools have.
pub(super) fn lowering(snapshot: &Snapshot, address: &str) -> &'static str {
    let is_there = |pool: &&Pool| pool.servers.iter().any(|it| it.endpoint.to_string() == address);
    let pools = || snapshot.pools.iter().filter(is_there);
    let is_tcp = |pool: &Pool| pool.protocol == Protocol::Tcp;
    match (pools().any(is_tcp), pools().all(is_tcp)) {
        (true, true) => "lower server_connections_max",
        (true, false) => "lower server_connections_max, server_connections or session_connections",
        (false, _) => "lower server_connections or session_connections",
    }
}

/// The most connections by address, of all pools.
pub(super) fn connections_by_server(snapshot: &Snapshot) -> BTreeMap<String, u64> {
    let mut by_address = BTreeMap::new();
    for pool in &snapshot.pools {
        let each = connections_to_each(pool, snapshot.global.worker_processes);
        for server in pool.servers.iter().filter(|server| !server.endpoint.is_unknown()) {
            *by_address.entry(server.endpoint.to_string()).or_default() += each;
        }
    }
    by_address
}

/// Descriptors for clients and servers.
pub(super) fn descriptors(facts: &Facts) -> Vec<Finding> {
    let (machine, global) = (&facts.machine, &facts.snapshot.global);
    let files = OpenFiles::of(&facts.snapshot, machine.open_files);
    let place = &machine.open_files_of;
    let limit = machine.open_files;
    let advice = "raise max_openfiles, and the hard limit (ulimit -Hn, LimitNOFILE=)";
    if files.is_short() {
        let what = format!(
            "may open {limit} files, and connections to servers may need {}",
            files.reserved()
        );
        let why = "connections to servers fail with `Too many open files`";
        return vec![Finding::error(place, what).why(why).advice(advice)];
    }
    let workers = u64::from(global.worker_processes.max(1));
    let clients: u64 =
        facts.snapshot.pools.iter().map(|pool| u64::from(pool.client_connections)).sum();
    let each = clients.div_ceil(workers);
    if each > files.clients() {
        let what = format!(
            "may open {limit} files, which leaves {} for clients, of {each} that \
             client_connections lets in",
            files.clients()
        );
        let why = "clients beyond that are refused";
        return vec![Finding::warning(place, what).why(why).advice(advice)];
    }
    match global.max_open_files {
        Some(wanted) if wanted > limit => {
            let what = format!("may open {limit} files, and max_openfiles is {wanted}");
            let advice = "raise the hard limit (ulimit -Hn, LimitNOFILE=), and start it anew";
            vec![Finding::warning(place, what).why("fewer clients are let in").advice(advice)]
        }
        _ => Vec::new(),
    }
}

/// The kernel cuts listen queues.
pub(super) fn backlog(facts: &Facts) -> Vec<Finding> {
    let Some(somaxconn) = facts.machine.somaxconn else { return Vec::new() };
    let listens = |pool: &&Pool| pool.listens().any(|listen| *listen != Listen::Nowhere);
    let pools = facts.snapshot.pools.iter().filter(listens);
    let finding = |pool: &Pool| {
        let what = format!("has backlog: {}, and net.core.somaxconn is {somaxconn}", pool.backlog);
        Finding::warning(format!("pool '{}'", pool.name), what)
            .why("the kernel keeps no more clients waiting than that, and drops others")
            .advice(format!("sysctl -w net.core.somaxconn={}", pool.backlog))
    };
    pools.filter(|pool| u64::from(pool.backlog) > somaxconn).map(finding).collect()
}

/// Whether all that limits allow fits. It is rarely all used.
pub(super) fn memory(facts: &Facts) -> Vec<Finding> {
    let (Some(memory), bound) = (facts.machine.memory, facts.machine.memory_bound) else {
        return Vec::new();
    };
    if bound <= memory {
        return Vec::new();
    }
    let mib = |bytes: u64| bytes >> 20;
    let what = format!(
        "workers may take up to {} MiB, and this process may use {} MiB",
        mib(bound),
        mib(memory)
    );
    let finding = Finding::note("this machine", what)
        .why("with all limits used at once the kernel would end a worker")
        .advice("lower memory_max, request_size_max or client_output_max; `cashew -t` has the sum");
    vec![finding]
}

/// Ports for connections to one server.
pub(super) fn ports(facts: &Facts) -> Vec<Finding> {
    let Some(ports) = facts.machine.ports else { return Vec::new() };
    let is_tcp = |address: &str| {
        let mut servers = facts.snapshot.pools.iter().flat_map(|pool| &pool.servers);
        servers.any(|it| {
            matches!(it.endpoint, Endpoint::Tcp { .. }) && it.endpoint.to_string() == address
        })
    };
    let over = connections_by_server(&facts.snapshot).into_iter().filter(|(_, need)| *need > ports);
    let finding = |(address, need): (String, u64)| {
        let what = format!(
            "may get {need} connections, and net.ipv4.ip_local_port_range has {ports} ports"
        );
        Finding::warning(format!("server {address}"), what)
            .why("further connections to it fail")
            .advice(format!("{}, or widen the range", lowering(&facts.snapshot, &address)))
    };
    over.filter(|(address, _)| is_tcp(address)).map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{facts, found, good};
    use super::*;

    #[test]
    fn files_of_proc_are_read() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 524288               files\n";
        assert_eq!(soft_limit(limits), Some(1024));
        assert_eq!(
            (soft_limit("x"), port_count("32768\t60999\n"), port_count("9")),
            (None, Some(28232), None)
        );
    }

    #[test]
    fn descriptors_are_counted() {
        let mut facts = good();
        assert_eq!(found(descriptors, &facts), "");
        facts.snapshot.pools[0].client_connections = 1 << 20;
        assert!(found(descriptors, &facts).contains("client_connections lets in"));
        facts.snapshot.pools[0].client_connections = 0;
        facts.snapshot.global.max_open_files = Some(1 << 20);
        assert!(found(descriptors, &facts).contains("max_openfiles is 1048576"));
        facts.machine.open_files = 40;
        assert!(found(descriptors, &facts).starts_with("error: a worker: may open 40 files"));
    }

    #[test]
    fn queues_longer_than_the_kernels_are_found() {
        let mut facts = good();
        assert_eq!(found(backlog, &facts), "");
        facts.machine.somaxconn = Some(128);
        assert!(found(backlog, &facts).contains("backlog: 512"));
        facts.machine.somaxconn = None;
        assert_eq!(found(backlog, &facts), "");
    }

    #[test]
    fn memory_is_compared_with_what_there_is() {
        let mut facts = good();
        assert_eq!(found(memory, &facts), "");
        facts.machine.memory = Some(1 << 20);
        assert!(found(memory, &facts).contains("may use 1 MiB"));
    }

    #[test]
    fn ports_are_counted_for_each_server() {
        let mut facts = facts("redis: true\n  timeout: 400", "   - 10.0.0.1:1:1\n");
        assert_eq!(found(ports, &facts), "");
        facts.machine.ports = Some(100);
        let text = found(ports, &facts);
        assert!(text.contains("server 10.0.0.1:1: may get 1"));
        assert!(
            text.contains("lower server_connections or session_connections, or widen"),
            "{text}"
        );
    }

    #[test]
    fn advice_names_options_that_a_pool_has() {
        let options = "protocol: tcp\n  server_connections_max: 200";
        let mut facts = facts(options, "   - 10.0.0.1:1:1\n");
        facts.machine.ports = Some(100);
        let text = found(ports, &facts);
        assert!(text.contains("may get 200 connections"), "{text}");
        assert!(text.contains("lower server_connections_max, or widen the range"), "{text}");
    }
}
