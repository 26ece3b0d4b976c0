//! From the file's content to the [`Snapshot`]: checks across options, lookups, sorting.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use cashew_placement::{Distribution, Hash, HashTag};

use crate::accounts::{self, Account};
use crate::address::{ListenText, ServerLine, check_name};
use crate::balance;
use crate::client_sources;
use crate::client_user;
use crate::cluster;
use crate::diagnostic::{At, Complaint, Pos, Report};
use crate::external_auth;
use crate::file::{Dialect, File, GlobalSection, PoolSection};
use crate::groups;
use crate::hedge;
use crate::loops;
use crate::memory;
use crate::policy;
use crate::pose;
use crate::prefixes;
use crate::reads_by_class;
use crate::replica_reads;
use crate::routes::{self, Reach};
use crate::secret::{self, SecretFile};
use crate::sentinel;
use crate::server_auth;
use crate::server_maintenance;
use crate::servers_from;
use crate::snapshot::{
    CasUniques, Global, Limits, Listen, Memcached, OnFailure, Pool, Protocol, Snapshot, Topology,
    UserRoute, Wire, nobody,
};
use crate::spool;
use crate::tcp;
use crate::tls;
use crate::users;
use crate::value::{FilePath, Memory, RoundSize, SizeText, StatsListen, WORKERS_MAX, Workers};

/// Most pools of one instance.
pub const POOLS_MAX: usize = 4096;

/// Largest sum of weights in a pool with `distribution: modula`, whose ring has a slot for each.
pub const MODULA_WEIGHT_MAX: u64 = 1 << 22;

/// The minimum share of `memory_max` for a worker: a few dozen reads must have room.
pub(crate) const WORKER_MEMORY_MIN: u64 = 8 << 20;

/// A busy but healthy server may need longer than this for a reply.
const EJECTING_TIMEOUT_MIN: u64 = 50;

/// The server name that makes a redis pool of the sectioned dialect one master with replicas.
pub(crate) const MASTER: &str = "master";

/// Databases of a server with the default configuration.
const DATABASES: u32 = 16;

/// Fields of the statistics, of twemproxy and its forks, that stand beside the pools.
const RESERVED_POOL_NAMES: [&str; 9] = [
    "service",
    "source",
    "version",
    "pid",
    "uptime",
    "timestamp",
    "total_connections",
    "curr_connections",
    "pools",
];

/// What a configuration depends on besides its text.
pub struct Context<'a> {
    /// The value of `worker_processes: auto`.
    pub processors: usize,
    /// Bytes of memory that this process may use; `memory_max: auto` is half of it, or no limit if
    /// it is unknown.
    pub memory: Option<u64>,
    /// The first address of a host and port.
    pub resolve: &'a dyn Fn(&str, u16) -> io::Result<SocketAddr>,
    /// Whether there is a directory.
    pub is_directory: &'a dyn Fn(&Path) -> bool,
    /// Whether this process may change its user.
    pub is_root: bool,
    /// Whether the operating system knows an account of that name.
    pub has_account: &'a dyn Fn(Account, &str) -> bool,
    /// Accounts to suggest instead of an unknown one.
    pub account_names: &'a dyn Fn(Account) -> Vec<String>,
    /// Whether an address is one of this machine's.
    pub is_local: &'a dyn Fn(IpAddr) -> bool,
    /// Reads a file with a password.
    pub read_secret: &'a dyn Fn(&Path) -> io::Result<SecretFile>,
    /// A variable of the environment.
    pub read_env: &'a dyn Fn(&str) -> Option<String>,
    /// Reads a file with certificates, or with a certificate's key.
    pub read_pem: &'a dyn Fn(&Path) -> io::Result<SecretFile>,
    /// Seconds since 1970.
    pub now: u64,
    /// Reads a file with keys, and where routes send them.
    pub read_keys: &'a dyn Fn(&Path) -> io::Result<String>,
}

impl Context<'static> {
    /// The real machine and its resolver.
    pub fn of_system() -> Self {
        Self {
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory: memory::available(),
            resolve: &|host, port| {
                let mut addresses = (host, port).to_socket_addrs()?;
                addresses.next().ok_or_else(|| io::Error::other("the name has no address"))
            },
            is_directory: &|path| path.is_dir(),
            is_root: nix::unistd::geteuid().is_root(),
            has_account: &Account::exists,
            account_names: &Account::local_names,
            is_local: &|ip| is_local(ip).unwrap_or(false),
            read_secret: &secret::read_file,
            read_env: &|name| std::env::var(name).ok(),
            read_pem: &secret::read_pem,
            now: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs()),
            read_keys: &routes::read_keys_file,
        }
    }
}

/// Whether this machine would use the address as source of packets to it. None is sent. A bind
/// would not show it: some machines allow binding any address.
fn is_local(ip: IpAddr) -> io::Result<bool> {
    let any =
        if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(SocketAddr::new(ip, 9))?;
    Ok(socket.local_addr()?.ip() == ip)
}

/// A snapshot of epoch 1, or `None` after an error, now or before.
pub(crate) fn resolve(
    file: File,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> Option<Snapshot> {
    check_pool_names(&file, report);
    check_listens(&file, report);
    let mut listens = HashMap::new();
    let mut pools: Vec<Pool> = Vec::with_capacity(file.pools.len());
    let mut lines: Vec<&[At<ServerLine>]> = Vec::with_capacity(file.pools.len());
    for (name, section) in &file.pools {
        if let Some(pool) = resolve_pool(name, section, file.dialect, context, report) {
            check_listen_address(&pool, section, &mut listens, report);
            pools.push(pool);
            lines.push(section.servers.as_ref().map_or(&[], |servers| &servers.value.0));
        }
    }
    let mut reach = Reach::new(&file.pools, &file.routes);
    for (name, section) in &file.routes {
        let mut pool = resolve_route(name, &section.clients, context, report);
        if reach.resolve(section, &mut pool, context, report) {
            check_listen_address(&pool, &section.clients, &mut listens, report);
            pools.push(pool);
            lines.push(&[]);
        }
    }
    route_users(&file, &mut pools, &mut reach, report);
    reach.check_pools(&file.without_listen, &pools, report);
    let is_deaf = |name: &At<String>| file.without_listen.iter().any(|it| it.value == name.value);
    for (_, section) in file.pools.iter().filter(|(name, _)| is_deaf(name)) {
        routes::warn_without_clients(section, report);
    }
    let pool_lines: Vec<_> = pools.iter().zip(lines).collect();
    loops::check(&pool_lines, context, report);
    balance::check(&pool_lines, report);
    let stats_listen = resolve_stats(&file.global, &pools, context, report);
    check_file("log_file", file.global.log_file.as_ref(), context, report);
    check_access_log(&file.global, context, report);
    check_audit_log(&file.global, context, report);
    check_file("sentinel_state", file.global.sentinel_state.as_ref(), context, report);
    check_file("discovery_state", file.global.discovery_state.as_ref(), context, report);
    accounts::check(Account::User, file.global.user.as_ref(), context, report);
    accounts::check(Account::Group, file.global.group.as_ref(), context, report);
    check_ready_workers(&file.global, context, report);
    warn_of_memory(&file, context, report);
    if report.has_errors() {
        return None;
    }
    pools.sort_by(|a, b| by_length_then_bytes(&a.name, &b.name));
    let global = Global { stats_listen, ..resolve_global(file.global, context, report) };
    Some(Snapshot { epoch: 1, global, pools })
}

/// Has users' requests go where the file says of them, once it is known what that is.
fn route_users(file: &File, pools: &mut [Pool], reach: &mut Reach<'_>, report: &mut Report<'_>) {
    let routes = file.routes.iter().map(|(name, route)| (name.value.as_str(), &route.clients));
    let of_pools = file.pools.iter().map(|(name, section)| (name.value.as_str(), section));
    let sections: Vec<(&str, &PoolSection)> = of_pools.chain(routes).collect();
    let places = users::places(sections.iter().copied());
    for (name, section) in sections {
        let found = users::route(name, section, &places, &mut |to| reach.reach(to), report);
        let mut resolved = Vec::new();
        for to in found {
            // It may have errors of its own.
            let Some(pool) = pools.iter().find(|pool| pool.name == to) else { continue };
            if let Some((_, target)) = file.pools.iter().find(|(it, _)| it.value == to) {
                let lines = target.servers.as_ref().map_or(&[][..], |it| &it.value.0);
                for reads in users::reads_elsewhere(section, &to) {
                    groups::check_policy(target, ("reads", &reads), lines, &pool.topology, report);
                }
            }
            let (route, databases, redis_db) = (pool.own_route(), pool.databases, pool.redis_db);
            resolved.push(UserRoute { name: to, route, databases, redis_db });
        }
        if let Some(pool) = pools.iter_mut().find(|pool| pool.name == name) {
            pool.user_routes = resolved;
        }
    }
}

/// twemproxy's order of pools and servers.
pub(crate) fn by_length_then_bytes(a: &str, b: &str) -> Ordering {
    a.len().cmp(&b.len()).then_with(|| a.as_bytes().cmp(b.as_bytes()))
}

fn resolve_global(
    section: GlobalSection,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> Global {
    let token = section.stats_token.as_ref().map(|token| &token.value);
    let stats_token = secret::resolve("stats_token", token, context, report);
    let operate_token = resolve_operate_token(&section, stats_token.as_ref(), context, report);
    let worker_processes = worker_processes(&section, context);
    let memory_max = match section.memory_max.value {
        Memory::Auto => context.memory.map(|memory| memory / 2),
        Memory::Unlimited => None,
        Memory::Fixed(bytes) => Some(bytes),
    };
    let share = |bytes: u64| (bytes / u64::from(worker_processes.max(1))).max(WORKER_MEMORY_MIN);
    Global {
        worker_processes,
        worker_memory_max: memory_max.map(share),
        max_open_files: section.max_openfiles.map(|files| files.value.0),
        user: section.user.map(|user| user.value.0),
        group: section.group.map(|group| group.value.0),
        worker_shutdown_timeout_ms: section.worker_shutdown_timeout.value.0 * 1000,
        batch_window_max_us: section.batch_window_max.value.0,
        io_engine: section.io_engine.value,
        reload_drain_timeout_ms: section.reload_drain_timeout.value.0,
        control_socket: section.control_socket.map(|path| path.value.0),
        worker_cpu_affinity: section.worker_cpu_affinity.value,
        worker_heartbeat_timeout_ms: section.worker_heartbeat_timeout.value.0,
        rebalance_threshold: section
            .rebalance
            .value
            .0
            .then_some(section.rebalance_threshold.value.0 as u32),
        stats_listen: None,
        stats_raw: section.stats_raw.value,
        stats_token: stats_token.map(|token| token.0),
        operate_token,
        operate_from: section.operate_from.map_or_else(Vec::new, |from| from.value.0),
        log_file: section.log_file.map(|path| path.value.0),
        sentinel_state: section.sentinel_state.map(|path| path.value.0),
        discovery_state: section.discovery_state.map(|path| path.value.0),
        log_level: said(&section.log_level).map(|level| level.0 as u8),
        log_format: section.log_format.value,
        ready_workers: section.ready_workers.value.0 as u32,
        ready_needs_primaries: section.ready_needs_primaries.value.0,
        drain_delay_ms: section.drain_delay.value.0 * 1000,
        drain_to: section.drain_to.map(|to| to.value.0),
        tracing: section.tracing.map(|tracing| tracing.value.0),
        access_log: section.access_log.map(|access_log| access_log.value.log),
        audit_log: section.audit_log.map(|audit_log| audit_log.value.log),
    }
}

/// Shorter ones can be tried out.
const OPERATE_TOKEN_MIN: usize = 16;

fn resolve_operate_token(
    section: &GlobalSection,
    stats_token: Option<&crate::value::Text>,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> Option<String> {
    let Some(given) = &section.operate_token else {
        if let Some(from) = &section.operate_from {
            let complaint = Complaint::new("\"operate_from\" has no effect");
            report.warning(from.pos, complaint.hint("there is no \"operate_token\""));
        }
        return None;
    };
    let token = secret::resolve("operate_token", Some(&given.value), context, report)?.0;
    if stats_token.is_some_and(|stats_token| stats_token.0 == token) {
        let complaint = Complaint::new("\"operate_token\" is the same as \"stats_token\"");
        report.error(given.pos, complaint.hint("whoever may read could change everything"));
    }
    if token.len() < OPERATE_TOKEN_MIN {
        let complaint = Complaint::new("\"operate_token\" is short");
        report.warning(
            given.pos,
            complaint.hint(format!(
                "expected {OPERATE_TOKEN_MIN} bytes or more, as by openssl rand -hex 32"
            )),
        );
    }
    Some(token)
}

fn worker_processes(section: &GlobalSection, context: &Context<'_>) -> u32 {
    match section.worker_processes.value {
        Workers::Auto => {
            u32::try_from(context.processors).unwrap_or(WORKERS_MAX).clamp(1, WORKERS_MAX)
        }
        Workers::Fixed(workers) => workers,
    }
}

/// With fewer workers the instance would never be ready.
fn check_ready_workers(section: &GlobalSection, context: &Context<'_>, report: &mut Report<'_>) {
    let (wanted, workers) =
        (section.ready_workers.value.0, worker_processes(section, context).max(1));
    if wanted > u64::from(workers) {
        let complaint =
            format!("option \"ready_workers\": {wanted} is more than there are workers");
        let hint = format!("at most {workers}, the number of worker_processes");
        report.error(section.ready_workers.pos, Complaint::new(complaint).hint(hint));
    }
}

/// The value of an option that is in the file.
fn said<T>(option: &At<T>) -> Option<&T> {
    (option.pos != Pos::NONE).then_some(&option.value)
}

/// `None` if it is not in the file, or after an error.
fn resolve_stats(
    section: &GlobalSection,
    pools: &[Pool],
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> Option<SocketAddr> {
    let StatsListen { host, port } = said(&section.stats_listen)?;
    let pos = section.stats_listen.pos;
    let address = resolve_address("stats_listen", host, *port, pos, context, report)?;
    if let Some(owner) =
        pools.iter().find(|pool| pool.listens().any(|it| *it == Listen::Tcp(address)))
    {
        report.error(pos, taken(kind_of(owner), &owner.name));
    }
    Some(address)
}

/// Two kinds of lines in one file would be of use to nobody.
fn check_access_log(section: &GlobalSection, context: &Context<'_>, report: &mut Report<'_>) {
    let Some(file) = section.access_log.as_ref().map(|access_log| &access_log.value.file) else {
        return;
    };
    check_file("file", Some(file), context, report);
    if section.log_file.as_ref().is_some_and(|log| log.value.0 == file.value.0) {
        let complaint = Complaint::new("the access log cannot be in the file of the log");
        report.error(file.pos, complaint.hint("expected another file"));
    }
}

/// As above.
fn check_audit_log(section: &GlobalSection, context: &Context<'_>, report: &mut Report<'_>) {
    let Some(file) = section.audit_log.as_ref().map(|audit_log| &audit_log.value.file) else {
        return;
    };
    check_file("file", Some(file), context, report);
    let log = section.log_file.as_ref().map(|log| &log.value.0);
    let access_log = section.access_log.as_ref().map(|log| &log.value.file.value.0);
    if log == Some(&file.value.0) || access_log == Some(&file.value.0) {
        let complaint = Complaint::new("the audit log cannot be in the file of another log");
        report.error(file.pos, complaint.hint("expected another file"));
    }
}

/// Of a file that this instance makes.
fn check_file(
    key: &str,
    file: Option<&At<FilePath>>,
    context: &Context<'_>,
    report: &mut Report<'_>,
) {
    let Some(file) = file else { return };
    let path = &file.value.0;
    let directory = path.parent().filter(|directory| !(context.is_directory)(directory));
    let complaint = match directory {
        Some(directory) => format!("there is no directory {}", directory.display()),
        None if (context.is_directory)(path) => format!("{} is a directory", path.display()),
        None => return,
    };
    report.error(file.pos, Complaint::new(format!("option \"{key}\": {complaint}")));
}

fn check_pool_names(file: &File, report: &mut Report<'_>) {
    let pools = file.pools.iter().map(|(name, _)| ("pool", name));
    let routes = file.routes.iter().map(|(name, _)| ("route", name));
    let number = pools.len() + routes.len();
    if let Some((_, name)) = pools.clone().chain(routes.clone()).nth(POOLS_MAX) {
        let complaint = Complaint::new(format!("{number} pools are too many"));
        let what = if routes.len() > 0 { ", routes included" } else { "" };
        report.error(name.pos, complaint.hint(format!("at most {POOLS_MAX}{what}")));
    }
    let mut first = HashMap::new();
    for (what, name) in pools.chain(routes) {
        if let Err(complaint) = check_name(what, &name.value) {
            report.error(name.pos, complaint);
        }
        if RESERVED_POOL_NAMES.contains(&name.value.as_str()) {
            let complaint = Complaint::new(format!("a {what} cannot be named \"{}\"", name.value))
                .hint("the statistics have a field of that name beside the pools");
            report.error(name.pos, complaint);
        }
        match first.entry(name.value.as_str()) {
            Entry::Vacant(entry) => {
                entry.insert((what, name.pos.line));
            }
            Entry::Occupied(first) => {
                let (whose, line) = first.get();
                let message = match *whose == what {
                    true => format!("{what} \"{}\" is given twice", name.value),
                    false => format!("{what} \"{}\" is named as a {whose} is", name.value),
                };
                let hint = format!("first given on line {line}");
                report.error(name.pos, Complaint::new(message).hint(hint));
            }
        }
    }
}

/// Reports pools with the same address in the text of the file.
fn check_listens(file: &File, report: &mut Report<'_>) {
    let mut owners: HashMap<String, (&str, &str)> = HashMap::new();
    let pools = file.pools.iter().map(|(name, section)| ("pool", name, section));
    let routes = file.routes.iter().map(|(name, section)| ("route", name, &section.clients));
    for (what, name, section) in pools.chain(routes) {
        for listen in section.listen.iter().chain(&section.tls_listen) {
            let place = match &listen.value {
                ListenText::Tcp { host, port } => format!("{host}:{port}"),
                ListenText::Unix { path, .. } => path.display().to_string(),
            };
            match owners.entry(place) {
                Entry::Vacant(entry) => {
                    entry.insert((what, &name.value));
                }
                Entry::Occupied(owner) => {
                    let (what, owner) = owner.get();
                    report.error(listen.pos, taken(what, owner));
                }
            }
        }
    }
}

/// Reports pools with the same address after names are resolved.
fn check_listen_address(
    pool: &Pool,
    section: &PoolSection,
    owners: &mut HashMap<SocketAddr, (ListenText, &'static str, String)>,
    report: &mut Report<'_>,
) {
    let listens =
        [(Some(&pool.listen), &section.listen), (pool.tls_listen.as_ref(), &section.tls_listen)];
    for (listen, text) in listens {
        if let (Some(Listen::Tcp(address)), Some(text)) = (listen, text) {
            check_place(*address, text, pool, owners, report);
        }
    }
}

fn check_place(
    address: SocketAddr,
    listen: &At<ListenText>,
    pool: &Pool,
    owners: &mut HashMap<SocketAddr, (ListenText, &'static str, String)>,
    report: &mut Report<'_>,
) {
    // A listener at `[::]` accepts IPv4 as well.
    let place = match address.ip().is_unspecified() {
        true => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port()),
        false => address,
    };
    match owners.entry(place) {
        Entry::Vacant(entry) => {
            entry.insert((listen.value.clone(), kind_of(pool), pool.name.clone()));
        }
        Entry::Occupied(owner) => {
            let (text, what, name) = owner.get();
            if *text != listen.value {
                let hint = match address.ip().is_unspecified() {
                    true => format!("[::]:{0} takes IPv4 as well, 0.0.0.0:{0}", address.port()),
                    false => format!("both are {address}"),
                };
                report.error(listen.pos, taken(what, name).hint(hint));
            }
        }
    }
}

fn taken(what: &str, owner: &str) -> Complaint {
    Complaint::new(format!("{what} \"{owner}\" already listens there"))
}

fn kind_of(pool: &Pool) -> &'static str {
    if pool.route.is_some() { "route" } else { "pool" }
}

/// A pool without servers, whose tree is still to come.
fn resolve_route(
    name: &At<String>,
    section: &PoolSection,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> Pool {
    let lines = Some(&[][..]);
    let pool = resolve_section(name, section, lines, Dialect::Sectioned, context, report);
    pool.expect("a pool is there where its servers are")
}

/// `None` if something needed is missing or invalid.
fn resolve_pool(
    name: &At<String>,
    section: &PoolSection,
    dialect: Dialect,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> Option<Pool> {
    let is_told_later = section.cluster.is_some() || section.servers_from.is_some();
    let lines = match &section.servers {
        Some(servers) => Some(servers.value.0.as_slice()),
        None => is_told_later.then_some(&[][..]),
    };
    resolve_section(name, section, lines, dialect, context, report)
}

/// `None` without lines.
fn resolve_section(
    name: &At<String>,
    section: &PoolSection,
    lines: Option<&[At<ServerLine>]>,
    dialect: Dialect,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> Option<Pool> {
    let protocol = section.spoken();
    check_redis_options(section, protocol, report);
    check_memcached_options(section, protocol, report);
    check_databases(section, report);
    check_limits(section, report);
    warn_of_crc32(section, report);
    warn_of_ejection(section, report);
    note_waits(section, report);
    let listen = section.listen.as_ref().and_then(|l| resolve_listen(l, context, report));
    let tls_listen = section.tls_listen.as_ref();
    let tls_listen = tls_listen.and_then(|l| resolve_listen_of("tls_listen", l, context, report));
    let command_policy = Some(policy::resolve(section, protocol, report));
    let client_sources = client_sources::resolve(section, listen.as_ref(), report);
    let redis_auth = section.redis_auth.as_ref().map(|it| &it.value);
    let redis_auth = secret::resolve("redis_auth", redis_auth, context, report);
    let (users, user_options) = users::resolve(section, context, report);
    let has_users = section.users.is_some() || section.acl_file.is_some();
    let external_auth = external_auth::resolve(section, has_users, context, report);
    let memcached = memcached(section, context, report);
    let pose = pose::resolve(section, [listen.as_ref(), tls_listen.as_ref()], report);
    let lines = lines?;
    check_servers(name, lines, section.distribution.value, report);
    warn_of_aliases(lines, report);
    groups::check(section, lines, protocol, dialect, report);
    let cluster = cluster::resolve(section, listen.as_ref(), context, report);
    let servers_from = servers_from::resolve(section, context, report);
    let (servers, topology) = match (&cluster, &servers_from) {
        (Some(_), _) => (Vec::new(), Topology::Groups(Vec::new())),
        (None, Some(_)) => (vec![nobody()], Topology::Sharded),
        (None, None) => groups::resolve(lines, protocol, dialect),
    };
    let topology = groups::await_replicas(section, lines, &servers, topology);
    groups::check_reads(section, lines, &topology, report);
    groups::check_user_reads(section, &user_options, lines, &topology, report);
    groups::check_writes(section, protocol, lines, &topology, report);
    sentinel::check_listen(section, listen.as_ref(), context, report);
    let sentinel = match cluster.is_some() || servers_from.is_some() {
        // They are refused already.
        true => None,
        false => sentinel::resolve(section, &servers, dialect, context, report),
    };
    if protocol == Protocol::Redis && dialect == Dialect::Flat {
        warn_of_flat_master(lines, report);
    }
    let known = (&*servers, &topology);
    let server_auth =
        server_auth::resolve(section, known, protocol, redis_auth.as_ref(), context, report);
    // Half is for all clients, half for exclusive use.
    let connections_max = cluster.as_ref().map_or(0, |cluster| cluster.connections_max);
    let most_of = |wanted: u32| match connections_max {
        0 => wanted,
        most => wanted.min((most / 2).max(1)),
    };
    let pool = Pool {
        name: name.value.clone(),
        // Where it is missing and needed, that is an error elsewhere.
        listen: listen.unwrap_or(Listen::Nowhere),
        protocol,
        hash: section.hash.value,
        hash_tag: match cluster {
            Some(_) => HashTag::parse("{}"),
            None => section.hash_tag.as_ref().map(|tag| tag.value),
        },
        distribution: section.distribution.value,
        topology,
        servers,
        timeout_ms: section.timeout.value.0,
        backlog: section.backlog.value.0 as u32,
        client_connections: section.client_connections.value.0 as u32,
        tcp_keepalive: section.tcpkeepalive.value.0,
        tcp_quickack: section.tcp_quickack.value.0,
        reuseport: section.reuseport.value.0,
        redis_auth: redis_auth.map(|auth| auth.0),
        server_auth,
        users,
        external_auth,
        user_options,
        // Known when all pools and routes are.
        user_routes: Vec::new(),
        redis_db: section.redis_db.value.0 as u32,
        memcached,
        databases: databases(section),
        preconnect: section.preconnect.value.0,
        auto_eject_hosts: section.auto_eject_hosts.value.0,
        server_connections: most_of(section.server_connections.value.0 as u32),
        session_connections: most_of(section.session_connections.value.0 as u32),
        session_connections_idle: most_of(section.session_connections_idle.value.0 as u32),
        session_wait_ms: section.session_wait_timeout.value.0,
        server_retry_timeout_ms: section.server_retry_timeout.value.0,
        server_check_interval_ms: section.server_check_interval.value.0,
        server_failure_limit: (section.server_failure_limit.value.0 as u32).max(1),
        fail_open_percent: section.fail_open.value.0,
        cross_server_copy: section.cross_server_copy.value.0,
        limits: limits(section),
        commands: section.commands.as_ref().map_or_else(Vec::new, |c| c.value.0.clone()),
        commands_from_servers: section.commands_from_servers.value.0,
        command_policy,
        client_pause_max_ms: Some(section.client_pause_max.value.0),
        failover_wait_ms: match &section.failover_wait {
            Some(wait) => wait.value.0,
            None if sentinel.is_some() || cluster.is_some() => FAILOVER_WAIT_MS,
            None => 0,
        },
        pose,
        hide_topology: section.hide_topology.value.0,
        sentinel,
        reads: section.reads.as_ref().map(|reads| reads.value),
        reads_by_class: reads_by_class::resolve(section, report),
        zone: section.zone.clone().and_then(|zone| groups::check_zone(zone, report)),
        replica_reads: replica_reads::resolve(section),
        route: None,
        cluster,
        servers_from,
        hedge: section.hedge.as_ref().map(|hedge| hedge.value.0),
        retry_reads: section.retry_reads.value.0,
        server_maintenance: section.server_maintenance.value.0.clone(),
        coalesce_reads: section.coalesce_reads.value.0,
        tracking_keys_max: section.tracking_keys_max.value.0 as u32,
        redis_version: section.redis_version.value.0.clone(),
        spool: section.spool.as_ref().map(|spool| spool.value.0.clone()),
        slow_log_ms: section.slow_log.value.0,
        hot_keys: section.hot_keys.value.is_on,
        hot_rule: section.hot_keys.value.rule.clone(),
        command_stats: prefixes::counts(section, report),
        prefixes: section.prefixes.as_ref().map_or_else(Vec::new, |it| it.value.0.clone()),
        tls: tls::resolve(section, context, report),
        tls_listen,
        server_tls: tls::resolve_servers(section, context, report),
        client_sources,
        tcp: tcp::resolve(section, lines, report),
    };
    if let Some(tls) = &section.tls {
        client_user::check(&pool, tls.pos, report);
    }
    users::warn_of_unknown_passwords(&pool, section, report);
    replica_reads::warn_without_replicas(&pool, section, report);
    hedge::warn_without_choice(&pool, section, report);
    hedge::check_coalescing(section, report);
    server_maintenance::check(&pool, section, report);
    spool::check(&pool, section, report);
    if pool.fail_open_percent < 100 && !pool.auto_eject_hosts {
        let complaint = Complaint::new("\"fail_open\" has no effect".to_owned());
        report.warning(
            section.fail_open.pos,
            complaint.hint("without \"auto_eject_hosts\" no server is ejected"),
        );
    }
    Some(pool)
}

/// Servers have 16 unless configured otherwise, the nodes of a cluster one. If only the initial database is
/// set, that is the only one.
pub(crate) fn databases(section: &PoolSection) -> u32 {
    match &section.databases {
        Some(databases) => databases.value.0 as u32,
        None if section.redis_db.value.0 > 0 || section.cluster.is_some() => 1,
        None => DATABASES,
    }
}

/// Where Sentinels or a cluster promote replicas: longer than that takes once a primary is known to be down.
const FAILOVER_WAIT_MS: u64 = 3000;

fn limits(section: &PoolSection) -> Limits {
    Limits {
        request_size_max: section.request_size_max.value.0,
        client_requests_max: section.client_requests_max.value.0 as u32,
        client_output_pause: section.client_output_pause.value.0,
        client_output_max: section.client_output_max.value.0,
        pubsub_output_max: section.pubsub_output_max.value.0,
        pubsub_output_soft_max: section.pubsub_output_soft_max.value.0,
        pubsub_output_soft_ms: section.pubsub_output_soft_time.value.0,
        client_subscriptions_max: section.client_subscriptions_max.value.0 as u32,
        subscriptions_max: section.subscriptions_max.value.0 as u32,
        server_queue_max: section.server_queue_max.value.0 as u32,
        server_queue_size_max: section.server_queue_size_max.value.0,
        server_connect_timeout_ms: section.server_connect_timeout.value.0,
        session_hold_ms: section.session_hold_timeout.value.0,
        pipeline_start: section.pipeline_start.value.0 as u32,
        transfer_rate_min: section.transfer_rate_min.value.0,
        transfer_stall_ms: section.transfer_stall_timeout.value.0,
    }
}

fn memcached(section: &PoolSection, context: &Context<'_>, report: &mut Report<'_>) -> Memcached {
    let client_auth = section.client_auth.as_ref().map(|it| &it.value);
    let client_auth = secret::resolve("client_auth", client_auth, context, report);
    Memcached {
        wire: match section.protocol.value {
            Wire::Tcp => Wire::Auto,
            wire => wire,
        },
        on_failure: section.on_failure.value,
        cas_uniques: section.cas_uniques.value,
        writes: section.writes.as_ref().map(|writes| writes.value).unwrap_or_default(),
        client_auth: client_auth.map_or_else(Vec::new, |list| list.0),
    }
}

fn warn_of_flat_master(lines: &[At<ServerLine>], report: &mut Report<'_>) {
    let is_master = |line: &&At<ServerLine>| line.value.name == MASTER && !line.value.is_group;
    if let Some(line) = lines.iter().find(|line| is_master(line) && lines.len() > 1) {
        let complaint = Complaint::new("this server holds a share of the keys like any other");
        // Under "pools:" there can be no master beside groups.
        let hint = match lines.iter().any(|line| line.value.is_group) {
            true => "a group says who has replicas: {primary: host:port, replicas: [host:port]}",
            false => "put the pools under \"pools:\" to make it the master of the other servers",
        };
        report.warning(line.pos, complaint.hint(hint));
    }
}

fn warn_of_crc32(section: &PoolSection, report: &mut Report<'_>) {
    let servers = section.servers.as_ref().map_or(0, |servers| servers.value.0.len());
    if section.hash.value == Hash::Crc32
        && section.distribution.value == Distribution::Ketama
        && servers > 1
    {
        let complaint = Complaint::new("crc32 with ketama puts nearly all keys on one server")
            .hint("it has only 32768 values, a sliver of the ring; crc32a has them all");
        report.warning(section.hash.pos, complaint);
    }
}

/// Without a `timeout` only an unreachable server is ejected; with a small one, also a busy server.
fn warn_of_ejection(section: &PoolSection, report: &mut Report<'_>) {
    if !section.auto_eject_hosts.value.0 {
        return;
    }
    let (pos, complaint) = match section.timeout.value.0 {
        None => (
            section.auto_eject_hosts.pos,
            Complaint::new("a server that hangs is not ejected without \"timeout\"")
                .hint("for example timeout: 400, in milliseconds"),
        ),
        Some(timeout) if timeout < EJECTING_TIMEOUT_MIN => (
            section.timeout.pos,
            Complaint::new(format!("{timeout} ms without a reply get a server ejected"))
                .hint("a fork for a snapshot, or one long command, keeps a server busy for longer"),
        ),
        Some(_) => return,
    };
    report.warning(pos, complaint);
}

/// Who waits for a server to be back waits no longer than for a reply.
fn note_waits(section: &PoolSection, report: &mut Report<'_>) {
    let (Some(wait), Some(timeout)) = (&section.failover_wait, section.timeout.value.0) else {
        return;
    };
    if wait.value.0 > timeout {
        let message = format!(
            "requests wait for {timeout} ms at most, the \"timeout\", and not for the {} ms of \
             \"failover_wait\"",
            wait.value.0
        );
        let hint = "a longer timeout, or what failover_wait is meant for does not come about";
        report.note(wait.pos, Complaint::new(message).hint(hint));
    }
}

/// Warns of one server under two names. Hosts are compared as written.
fn warn_of_aliases(lines: &[At<ServerLine>], report: &mut Report<'_>) {
    let mut first = HashMap::new();
    for line in lines.iter().filter(|line| line.value.is_single()) {
        match first.entry(groups::address_of(&line.value.endpoint)) {
            Entry::Vacant(entry) => {
                entry.insert(line);
            }
            // That is an error.
            Entry::Occupied(other) if other.get().value.name == line.value.name => {}
            Entry::Occupied(other) => {
                let (name, first) = (&line.value.name, other.get());
                let message = format!("\"{name}\" is the same server as \"{}\"", first.value.name);
                let hint = format!(
                    "the other is on line {}; the ring counts it as two servers: it gets both \
                     shares, and a command for all servers, like DBSIZE, runs on it twice",
                    first.pos.line
                );
                report.warning(line.pos, Complaint::new(message).hint(hint));
            }
        }
    }
}

/// Warns of limits beyond the available memory.
fn warn_of_memory(file: &File, context: &Context<'_>, report: &mut Report<'_>) {
    let Some(memory) = context.memory else { return };
    let mut warn = |key: &str, bytes: u64, pos: Pos, hint: &str| {
        if pos == Pos::NONE || bytes <= memory {
            return;
        }
        let message = format!(
            "option \"{key}\": {} is more than the {} of memory that this process may use",
            SizeText(bytes),
            RoundSize(memory)
        );
        report.warning(pos, Complaint::new(message).hint(hint));
    };
    if let At { value: Memory::Fixed(bytes), pos } = file.global.memory_max {
        let hint =
            "the kernel would end processes before it is reached; auto is half of what there is";
        warn("memory_max", bytes, pos, hint);
    }
    let hint = "one client or server must not be allowed to take it all";
    let routes = file.routes.iter().map(|(_, section)| &section.clients);
    for section in file.pools.iter().map(|(_, section)| section).chain(routes) {
        for (key, bytes, pos) in [
            ("request_size_max", section.request_size_max.value.0, section.request_size_max.pos),
            (
                "client_output_pause",
                section.client_output_pause.value.0,
                section.client_output_pause.pos,
            ),
            ("client_output_max", section.client_output_max.value.0, section.client_output_max.pos),
            ("pubsub_output_max", section.pubsub_output_max.value.0, section.pubsub_output_max.pos),
            (
                "server_queue_size_max",
                section.server_queue_size_max.value.0,
                section.server_queue_size_max.pos,
            ),
        ] {
            warn(key, bytes, pos, hint);
        }
    }
}

fn check_redis_options(section: &PoolSection, protocol: Protocol, report: &mut Report<'_>) {
    if protocol == Protocol::Redis {
        return;
    }
    let mut refuse = |key: &str, pos: Pos| {
        let complaint = Complaint::new(format!("option \"{key}\" is only valid for a redis pool"));
        report.error(pos, complaint.hint("a redis pool has \"redis: true\""));
    };
    if let Some(auth) = &section.redis_auth {
        refuse("redis_auth", auth.pos);
    }
    if section.redis_db.value.0 > 0 {
        refuse("redis_db", section.redis_db.pos);
    }
    for (key, pos) in [
        ("session_connections", section.session_connections.pos),
        ("session_connections_idle", section.session_connections_idle.pos),
        ("session_wait_timeout", section.session_wait_timeout.pos),
        ("session_hold_timeout", section.session_hold_timeout.pos),
    ] {
        if pos != Pos::NONE {
            refuse(key, pos);
        }
    }
    if let Some(commands) = &section.commands {
        refuse("commands", commands.pos);
    }
    if section.commands_from_servers.value.0 {
        refuse("commands_from_servers", section.commands_from_servers.pos);
    }
    if section.cross_server_copy.value.0 {
        refuse("cross_server_copy", section.cross_server_copy.pos);
    }
    if let Some(databases) = &section.databases {
        refuse("databases", databases.pos);
    }
    if let Some(sentinels) = &section.sentinels {
        refuse("sentinels", sentinels.pos);
    }
    if let Some(classes) = &section.reads_by_class {
        refuse("reads_by_class", classes.pos);
    }
    if let Some(pose) = &section.pose {
        refuse("pose", pose.pos);
    }
    let given = [
        ("pubsub_output_max", section.pubsub_output_max.pos),
        ("pubsub_output_soft_max", section.pubsub_output_soft_max.pos),
        ("pubsub_output_soft_time", section.pubsub_output_soft_time.pos),
        ("client_subscriptions_max", section.client_subscriptions_max.pos),
        ("subscriptions_max", section.subscriptions_max.pos),
        ("client_pause_max", section.client_pause_max.pos),
    ];
    for (key, pos) in given.into_iter().filter(|&(_, pos)| pos != Pos::NONE) {
        refuse(key, pos);
    }
    for (key, pos) in replica_reads::given(section) {
        refuse(key, pos);
    }
}

fn check_databases(section: &PoolSection, report: &mut Report<'_>) {
    let Some(databases) = &section.databases else { return };
    let (count, index) = (databases.value.0, section.redis_db.value.0);
    if count > 1 && index >= count {
        let message = format!("\"redis_db\" is {index}, which is not among {count} databases");
        let hint = "clients have it at first and must be able to come back to it";
        report.error(databases.pos, Complaint::new(message).hint(hint));
    }
}

fn check_memcached_options(section: &PoolSection, protocol: Protocol, report: &mut Report<'_>) {
    if protocol == Protocol::Memcached {
        return;
    }
    let mut refuse = |key: &str, pos: Pos| {
        let message = format!("option \"{key}\" is only valid for a memcached pool");
        let hint = "a memcached pool has no \"redis: true\"";
        report.error(pos, Complaint::new(message).hint(hint));
    };
    if !matches!(section.protocol.value, Wire::Auto | Wire::Tcp) {
        refuse("protocol", section.protocol.pos);
    }
    if section.on_failure.value != OnFailure::Error {
        refuse("on_failure", section.on_failure.pos);
    }
    if section.cas_uniques.value != CasUniques::Auto {
        refuse("cas_uniques", section.cas_uniques.pos);
    }
    if let Some(writes) = &section.writes {
        refuse("writes", writes.pos);
    }
    if let Some(auth) = &section.client_auth {
        refuse("client_auth", auth.pos);
    }
}

fn check_limits(section: &PoolSection, report: &mut Report<'_>) {
    let (pause, max) = (&section.client_output_pause, &section.client_output_max);
    if pause.value.0 > max.value.0 {
        let pos = if pause.pos == Pos::NONE { max.pos } else { pause.pos };
        let message = "\"client_output_pause\" is larger than \"client_output_max\"";
        let hint = "a client must stop being read before it is closed";
        report.error(pos, Complaint::new(message).hint(hint));
    }
}

/// The largest sum of weights in one pool, and why.
pub(crate) fn weight_limit(distribution: Distribution) -> (u64, &'static str) {
    match distribution {
        Distribution::Modula => (MODULA_WEIGHT_MAX, "modula has a slot for each"),
        Distribution::Ketama | Distribution::Random => {
            (u32::MAX.into(), "twemproxy adds them in 32 bits")
        }
    }
}

fn check_servers(
    pool: &At<String>,
    lines: &[At<ServerLine>],
    distribution: Distribution,
    report: &mut Report<'_>,
) {
    let mut first_lines = HashMap::new();
    for line in lines {
        match first_lines.entry(line.value.name.as_str()) {
            Entry::Vacant(entry) => {
                entry.insert(line.pos.line);
            }
            Entry::Occupied(first) => {
                let message =
                    format!("pool \"{}\" has two servers named \"{}\"", pool.value, first.key());
                let hint = format!("the first is on line {}", first.get());
                report.error(line.pos, Complaint::new(message).hint(hint));
            }
        }
    }
    let weight: u64 = lines.iter().map(|line| u64::from(line.value.weight)).sum();
    let (weight_max, why) = weight_limit(distribution);
    if weight > weight_max {
        let message = format!("the weights of pool \"{}\" sum up to {weight}", pool.value);
        let hint = format!("at most {weight_max}: {why}; smaller ones in the same proportion do");
        report.error(pool.pos, Complaint::new(message).hint(hint));
    }
}

fn resolve_listen(
    listen: &At<ListenText>,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> Option<Listen> {
    resolve_listen_of("listen", listen, context, report)
}

fn resolve_listen_of(
    key: &str,
    listen: &At<ListenText>,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> Option<Listen> {
    match &listen.value {
        ListenText::Unix { path, mode } => Some(Listen::Unix { path: path.clone(), mode: *mode }),
        ListenText::Tcp { host, port } => {
            resolve_address(key, host, *port, listen.pos, context, report).map(Listen::Tcp)
        }
    }
}

/// An empty host is every address. `None` after an error.
fn resolve_address(
    key: &str,
    host: &str,
    port: u16,
    pos: Pos,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> Option<SocketAddr> {
    if host.is_empty() {
        return Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port));
    }
    match (context.resolve)(host, port) {
        Ok(address) => Some(address),
        Err(error) => {
            let message = format!("option \"{key}\": \"{host}\" cannot be resolved: {error}");
            report.error(pos, Complaint::new(message));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_are_told_from_others() {
        assert!(is_local(Ipv4Addr::LOCALHOST.into()).unwrap());
        // Of no machine (RFC 5737); without a route it is an error.
        assert!(!is_local(IpAddr::from([192, 0, 2, 1])).unwrap_or(false));
    }
}
