//! The configuration as the rest of Cashew sees it: validated, resolved, sorted, with all options
//! set. The master hands it to the workers as JSON in a sealed memfd.

mod access_log;
mod audit_log;
mod client_sources;
mod cluster;
mod external_auth;
mod key_map;
mod live;
mod maintenance;
mod replica_reads;
mod route;
mod server_auth;
mod server_maintenance;
mod servers_from;
mod tcp;
mod topology;
mod tracing;
mod way;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use cashew_placement::{Distribution, Hash, HashTag};
use cashew_protocol::memcached::ChorePolicy;
use cashew_protocol::redis::{Clearance, Definition, KeyPlaces, Rules};
use cashew_tls::{ListenerTls, ServerTls};
use serde::{Deserialize, Serialize};

pub use self::access_log::AccessLog;
pub use self::audit_log::AuditLog;
pub use self::client_sources::{ClientSources, ProxyProtocol, Source};
pub use self::cluster::{
    Cluster, ClusterMap, ClusterNode, ClusterShard, MapChange, SLOTS, SlotRange,
};
pub use self::external_auth::{AuthSource, ExternalAuth};
pub(crate) use self::key_map::route_of_hot;
pub use self::key_map::{KeysLed, LedForeign, is_listable, lead_foreign};
pub use self::maintenance::{Maintenance, Notified, Refuge};
pub use self::replica_reads::{Hedge, ReadYourWrites, ReplicaReads};
pub use self::route::{FailoverOn, Follow, KeepRules, Move, PrefixArm, Route, SHARE_ALL, share_of};
pub use self::server_auth::{Credentials, DEFAULT_USER, ServerAuth};
pub use self::server_maintenance::{MovingEndpoint, Relocation, ServerMaintenance};
pub(crate) use self::servers_from::nobody;
pub use self::servers_from::{
    ConsulSource, DnsSource, EtcdSource, KubernetesSource, ServerSource, ServersFrom, SourceTls,
};
pub use self::tcp::{Balance, SendProxy, Tcp};
pub use self::topology::{Promoted, Reads, ServerGroup, Topology, TopologyState};
pub use self::tracing::{CollectorUrl, KeysShown, Tracing};
pub use self::way::{Operation, Reach, Role, Visit, share_text};

/// One numbered configuration of the whole instance.
///
/// During an upgrade another version of cashew reads it, which ignores unknown fields. A field that
/// is added after a release needs a `serde(default)` that is right for snapshots without it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Grows by one with every configuration that takes effect; the first is 1.
    pub epoch: u64,
    pub global: Global,
    /// Sorted by (name length, name bytes), as twemproxy sorts them. Never empty.
    pub pools: Vec<Pool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Global {
    /// 0 = a single process, without a master.
    pub worker_processes: u32,
    /// RLIMIT_NOFILE of each worker; `None` keeps the inherited limit.
    pub max_open_files: Option<u64>,
    /// User that workers become if the master runs as root.
    pub user: Option<String>,
    pub group: Option<String>,
    /// How long a stopping worker waits for requests in flight.
    pub worker_shutdown_timeout_ms: u64,
    /// How long a busy worker may hold output back for batching; 0 = never.
    pub batch_window_max_us: u64,
    /// Bytes that the buffers and requests of one worker may take; `None` is without limit.
    pub worker_memory_max: Option<u64>,
    pub io_engine: IoEngine,
    /// How long a change of the configuration waits for requests in flight.
    pub reload_drain_timeout_ms: u64,
    /// The operators' socket; `None` uses the default path.
    pub control_socket: Option<PathBuf>,
    pub worker_cpu_affinity: Affinity,
    /// A worker whose last heartbeat is older is replaced; 0 = never.
    pub worker_heartbeat_timeout_ms: u64,
    /// Difference between two workers, in percent of a processor's time, from which on clients are
    /// moved; `None` never moves any.
    pub rebalance_threshold: Option<u32>,
    /// Address of the statistics, if set by the file or the command line; otherwise
    /// [`STATS_LISTEN`].
    #[serde(default)]
    pub stats_listen: Option<SocketAddr>,
    #[serde(default)]
    pub stats_raw: StatsFormat,
    /// What whoever asks for the statistics by HTTP must show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats_token: Option<String>,
    /// For what changes something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operate_token: Option<String>,
    /// Empty is this machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operate_from: Vec<Source>,
    /// `None` is standard error.
    #[serde(default)]
    pub log_file: Option<PathBuf>,
    /// 0..=11 as nutcracker's `-v`, if set by the file or the command line; otherwise
    /// [`LOG_LEVEL`].
    #[serde(default)]
    pub log_level: Option<u8>,
    #[serde(default)]
    pub log_format: LogFormat,
    /// Where it is kept where the primaries of groups are.
    #[serde(default)]
    pub sentinel_state: Option<PathBuf>,
    /// Where it is kept which servers sources have named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery_state: Option<PathBuf>,
    /// Workers that serve where an instance is ready.
    #[serde(default = "one_worker")]
    pub ready_workers: u32,
    /// An instance is not ready while no server of some pool can take writes.
    #[serde(default)]
    pub ready_needs_primaries: bool,
    /// How long an instance that drains goes on; 0 = it stops at once.
    #[serde(default)]
    pub drain_delay_ms: u64,
    /// Where clients go that are told of it; `None` is to the address that they know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_to: Option<Refuge>,
    /// Requests are exported as spans.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracing: Option<Tracing>,
    /// Requests are written to a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_log: Option<AccessLog>,
    /// Who did what is written to a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit_log: Option<AuditLog>,
}

fn one_worker() -> u32 {
    1
}

/// nutcracker's address of the statistics.
pub const STATS_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 22222);

/// nutcracker's.
pub const LOG_LEVEL: u8 = 5;

impl Global {
    pub fn stats_listen(&self) -> SocketAddr {
        self.stats_listen.unwrap_or(STATS_LISTEN)
    }

    pub fn log_level(&self) -> u8 {
        self.log_level.unwrap_or(LOG_LEVEL)
    }
}

/// Which processors workers are pinned to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Affinity {
    Off,
    /// Each on one of those that the master may use.
    Auto,
    /// A worker's rank is the index here, modulo the length. Never empty, without duplicates, each
    /// below [`PROCESSORS_MAX`].
    List(Vec<u32>),
}

/// The number of processors in a sched_setaffinity(2) mask of the usual size.
pub const PROCESSORS_MAX: u32 = 1024;

/// The network I/O of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IoEngine {
    /// The best known.
    Auto,
    Epoll,
    /// io_uring, or epoll if that is not allowed.
    Uring,
}

/// What the statistics say to whoever asks for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StatsFormat {
    /// What nutcracker says, and nothing more.
    #[default]
    Nutcracker,
    Full,
}

/// How lines of the log look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// As nutcracker's.
    #[default]
    Plain,
    Json,
}

impl LogFormat {
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Json => "json",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    pub name: String,
    pub listen: Listen,
    pub protocol: Protocol,
    pub hash: Hash,
    pub hash_tag: Option<HashTag>,
    pub distribution: Distribution,
    pub topology: Topology,
    /// Sorted by (name length, name bytes); a server's index everywhere is its position here.
    /// Empty only of a route, and of a cluster without a map; at most [`SERVERS_MAX`].
    pub servers: Vec<Server>,
    /// Limit for the reply once a request is sent, and before that for a connection; `None` is no
    /// limit.
    pub timeout_ms: Option<u64>,
    pub backlog: u32,
    /// Clients of this pool over all workers; 0 = no limit other than descriptors.
    pub client_connections: u32,
    /// SO_KEEPALIVE on client connections. Server connections always have it.
    pub tcp_keepalive: bool,
    /// Partial requests are acknowledged at once.
    pub tcp_quickack: bool,
    /// Accepted for compatibility: Cashew always listens with SO_REUSEPORT.
    pub reuseport: bool,
    /// Clients must give it.
    pub redis_auth: Option<String>,
    /// What servers are given.
    #[serde(default)]
    pub server_auth: ServerAuth,
    /// Who may log in: lines as of an ACL file, sorted by name, with the SHA-256 of passwords. Empty:
    /// whoever has `redis_auth`, or one of memcached's `client_auth`, or everybody.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
    /// What users have beyond rules, sorted by name; users that have nothing are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub user_options: Vec<UserOptions>,
    /// Where requests go of users who say so, sorted by name; each is some user's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub user_routes: Vec<UserRoute>,
    /// Who is asked about names that none of these users has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_auth: Option<ExternalAuth>,
    /// Initial database of clients.
    pub redis_db: u32,
    /// Clients may select those below; if it is 1, only `redis_db`.
    pub databases: u32,
    #[serde(default)]
    pub memcached: Memcached,
    pub preconnect: bool,
    pub auto_eject_hosts: bool,
    /// Shared connections per server over all workers; each worker has at least one.
    pub server_connections: u32,
    /// Exclusive connections per server over all workers that clients may lease; each worker may
    /// have at least one.
    #[serde(default = "session_connections")]
    pub session_connections: u32,
    /// Kept ready by each worker, per server.
    #[serde(default)]
    pub session_connections_idle: u32,
    /// How long a client waits for one.
    #[serde(default = "session_wait_ms")]
    pub session_wait_ms: u64,
    pub server_retry_timeout_ms: u64,
    pub server_failure_limit: u32,
    /// The share of the shards beyond which none is ejected.
    #[serde(default = "fail_open_percent")]
    pub fail_open_percent: u32,
    /// How often servers that nobody uses are looked after; 0 is never.
    #[serde(default)]
    pub server_check_interval_ms: u64,
    /// RENAME, RENAMENX and COPY copy keys from one server to another.
    #[serde(default)]
    pub cross_server_copy: bool,
    pub limits: Limits,
    /// Commands that Redis itself does not have, sorted by name. Redis pools only.
    #[serde(default)]
    pub commands: Vec<CustomCommand>,
    /// Whether servers are queried about unknown commands.
    #[serde(default)]
    pub commands_from_servers: bool,
    /// What clients may call. `None` is everything: of a version of cashew that had no such option.
    #[serde(default)]
    pub command_policy: Option<CommandPolicy>,
    /// The longest CLIENT PAUSE; `None` is without limit, of such a version.
    #[serde(default)]
    pub client_pause_max_ms: Option<u64>,
    /// How long requests that were not sent wait for a server that cannot be reached; 0 is not at all.
    #[serde(default)]
    pub failover_wait_ms: u64,
    /// What it looks like to its clients, if not like one server. Redis pools only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pose: Option<Pose>,
    /// Errors do not name servers.
    #[serde(default)]
    pub hide_topology: bool,
    /// Where servers are that Sentinels name. Redis pools only.
    #[serde(default)]
    pub sentinel: Option<Sentinel>,
    /// Its servers are the nodes of a cluster. Redis pools only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Cluster>,
    /// Who names its servers, if the file does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers_from: Option<ServersFrom>,
    /// Where the gateway is.
    #[serde(default)]
    pub zone: Option<String>,
    /// Who answers reads. `None` is the primary, or with one master the ring of its replicas.
    #[serde(default)]
    pub reads: Option<Reads>,
    /// Who answers the reads of classes of commands: commands, subcommands, and categories with `@`. The
    /// most specific one is about a command, of categories the first. Redis pools only.
    #[serde(default)]
    pub reads_by_class: Vec<(String, Reads)>,
    /// When replicas may answer reads. Redis pools only.
    #[serde(default)]
    pub replica_reads: ReplicaReads,
    /// Where its requests go, if that are other pools: then it has no servers of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<Route>,
    /// Reads that take long are sent to a second server.
    #[serde(default)]
    pub hedge: Option<Hedge>,
    /// Reads are sent again whose server fails.
    #[serde(default)]
    pub retry_reads: bool,
    /// Servers are asked to tell of their maintenance. Redis pools only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_maintenance: Option<ServerMaintenance>,
    /// Equal reads that wait to be written are sent once.
    #[serde(default)]
    pub coalesce_reads: bool,
    /// So many keys are known in each worker that clients with CLIENT TRACKING have read.
    #[serde(default = "tracking_keys_max")]
    pub tracking_keys_max: u32,
    /// As HELLO tells it.
    #[serde(default = "redis_version")]
    pub redis_version: String,
    /// What servers are to forget is kept while they cannot be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spool: Option<Spool>,
    /// Requests that take longer are recorded; 0 is none.
    #[serde(default = "slow_log_ms")]
    pub slow_log_ms: u64,
    /// Samples tell which keys are asked for most.
    #[serde(default = "hot_keys")]
    pub hot_keys: bool,
    /// What is done about them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot_rule: Option<HotRule>,
    /// Requests are counted by class of commands.
    #[serde(default)]
    pub command_stats: bool,
    /// Requests for keys that begin so are counted by themselves; none is empty, none there twice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<String>,
    /// What clients are secured with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<ListenerTls>,
    /// Where they are secured, if that is not everywhere. Only with `tls`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_listen: Option<Listen>,
    /// What servers are secured with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_tls: Option<ServerTls>,
    /// Where its clients come from.
    #[serde(default, skip_serializing_if = "ClientSources::is_empty")]
    pub client_sources: ClientSources,
    /// How bytes are passed through. Of pools with that protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<Tcp>,
}

/// All users of a pool whose numbers are not shown by name.
pub const OTHER_USERS: &str = "(others)";
/// Most users of a pool whose numbers are shown by name.
const USER_ROWS_MAX: usize = 100;

impl Pool {
    /// Whose numbers are shown by name, sorted; behind them `(others)`. Nothing where there are no users.
    pub fn user_rows(&self) -> Vec<&str> {
        let names = self.users.iter().map(|line| crate::users::name_of(line));
        let mut rows: Vec<&str> = names.take(USER_ROWS_MAX).collect();
        if rows.is_empty() {
            return rows;
        }
        rows.push("default");
        rows.sort_unstable();
        rows.dedup();
        rows.push(OTHER_USERS);
        rows
    }

    /// Requests that take as long are recorded, in microseconds; the largest number if none is.
    pub fn slow_after_us(&self) -> u64 {
        match self.slow_log_ms {
            0 => u64::MAX,
            ms => ms.saturating_mul(1000),
        }
    }
}

/// A cluster whose nodes are gateways.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pose {
    /// This gateway and others, this one first. Empty: this one, at the address that a client has reached.
    pub advertise: Vec<Address>,
}

/// What a user has beyond rules. Limits are over all workers; 0 is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserOptions {
    pub name: String,
    pub requests_per_second: u32,
    /// Of requests and replies together.
    pub bytes_per_second: u64,
    pub connections_max: u32,
    /// Requests whose reply is not written yet.
    pub in_flight_max: u32,
    pub over_limit: OverLimit,
    /// What all its keys begin with; may be empty.
    #[serde(default)]
    pub key_prefix: String,
    /// Who answers its reads, if not the same as for others.
    #[serde(default)]
    pub reads: Option<Reads>,
    #[serde(default)]
    pub priority: Priority,
    /// The pool or route where its requests go, if that is not where others of its port go: one of
    /// [`Pool::user_routes`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
}

/// Where requests of some users go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRoute {
    /// Of a pool or a route.
    pub name: String,
    /// Of a pool: this alone.
    pub route: Route,
    /// Clients may select those below, as there; if it is 1, only `redis_db`. 0 in a snapshot of a version that did
    /// not say it: as many as all pools have.
    #[serde(default)]
    pub databases: u32,
    #[serde(default)]
    pub redis_db: u32,
}

/// Most places of one pool where its users' requests go.
pub const USER_ROUTES_MAX: usize = 250;

/// Who has to wait for whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    #[default]
    Normal,
    Low,
    High,
}

/// What becomes of a request beyond a user's limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OverLimit {
    #[default]
    Error,
    /// It waits.
    Delay,
}

impl UserOptions {
    /// Of a user who has nothing.
    pub fn of(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            requests_per_second: 0,
            bytes_per_second: 0,
            connections_max: 0,
            in_flight_max: 0,
            over_limit: OverLimit::Error,
            key_prefix: String::new(),
            reads: None,
            priority: Priority::Normal,
            route: None,
        }
    }

    pub fn is_low(&self) -> bool {
        self.priority == Priority::Low
    }

    pub fn is_high(&self) -> bool {
        self.priority == Priority::High
    }

    pub fn is_limited(&self) -> bool {
        self.requests_per_second > 0
            || self.bytes_per_second > 0
            || self.connections_max > 0
            || self.in_flight_max > 0
            || self.priority != Priority::Normal
    }
}

impl Pool {
    /// Where the requests of a user go, if that is not where others' go.
    pub fn route_of_user(&self, name: &str) -> Option<&UserRoute> {
        let found = self.user_options.binary_search_by(|options| options.name.as_str().cmp(name));
        let route = self.user_options[found.ok()?].route.as_ref()?;
        let found = self.user_routes.binary_search_by(|it| it.name.cmp(route));
        found.ok().map(|at| &self.user_routes[at])
    }

    /// The pools where requests go of clients that have not said who they are.
    pub fn own_route(&self) -> Route {
        self.route.clone().unwrap_or_else(|| Route::Pool(self.name.clone()))
    }

    /// Users who have limits: statistics know them by their place here.
    pub fn limited_users(&self) -> impl Iterator<Item = &UserOptions> {
        self.user_options.iter().filter(|options| options.is_limited())
    }
}

/// As in a snapshot of a version without the option.
fn redis_version() -> String {
    "7.0.15".to_owned()
}

fn tracking_keys_max() -> u32 {
    100_000
}

fn slow_log_ms() -> u64 {
    10
}

/// As in a snapshot of a version without the option.
fn hot_keys() -> bool {
    true
}

/// When something is done about a key: where nodes `cache` keep hot ones only, replies to reads of it are kept, or reads of
/// it go to copies; or it goes to another pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HotRule {
    /// Of a hundred requests of the pool, those for the key.
    pub above_percent: u32,
    /// Keys at a time.
    pub keys_max: u32,
    /// The pool that they go to, if they do. Otherwise replies are kept.
    #[serde(default)]
    pub moves_to: Option<String>,
    /// Over how many servers reads of them go, their own among them, if they are split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<u8>,
}

/// Over how many servers a key is split unless it is said.
pub const COPIES_DEFAULT: u8 = 4;

impl Pool {
    /// Why its hot keys cannot be split over servers, if they cannot.
    pub fn cannot_split(&self) -> Option<&'static str> {
        let may_grow = self.cluster.is_some() || self.servers_from.is_some();
        match self.protocol {
            Protocol::Redis if !may_grow && self.shards().len() <= 1 => {
                Some("it has one server, and copies are on others")
            }
            Protocol::Redis if self.timeout_ms.is_none() => Some(
                "it has no \"timeout\", and reads would wait for a server that hangs though another one has the key",
            ),
            Protocol::Redis => None,
            _ => Some(
                "only servers of Redis tell of changes, by which copies are known to be current",
            ),
        }
    }
}

impl Snapshot {
    /// Whether there is a node that keeps replies to reads of a pool's hot keys.
    pub fn keeps_hot_of(&self, pool: &str) -> bool {
        self.pools.iter().filter_map(|it| it.route.as_ref()).any(|route| route.keeps_hot_of(pool))
    }
}

/// Where it is kept what servers are to forget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spool {
    pub directory: PathBuf,
    /// Bytes, over all workers.
    pub max: u64,
    /// A failed write of a whole value counts as well.
    pub overwrites: bool,
    /// How long a server that is back is kept from reads at most.
    pub hold_ms: u64,
    /// What is older need not be forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

/// The Sentinels of a pool, and the groups of servers whose primaries they name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sentinel {
    /// Never empty, without duplicates.
    pub addresses: Vec<Address>,
    /// What Sentinels are given.
    pub auth: Option<Credentials>,
    /// What Sentinels are secured with.
    #[serde(default)]
    pub tls: Option<ServerTls>,
    /// In the order of the pool's servers. Never empty.
    pub groups: Vec<Group>,
}

/// A server of a pool that is the primary of a group. The ring knows it by its name; its endpoint is
/// where the primary is, or [unknown](Endpoint::is_unknown).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// The server's name.
    pub server: String,
    /// What Sentinels call the group.
    pub master: String,
    /// Sentinel's number of the configuration by which the server is where it is. `None` while it is
    /// unknown, or not from a majority of the Sentinels.
    #[serde(default)]
    pub config_epoch: Option<u64>,
    #[serde(default)]
    pub lineage: Lineage,
    /// How often the server has moved, in this instance.
    #[serde(default)]
    pub moves: u32,
}

/// What the primary of a group succeeds to. Whoever watches the group next goes on from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lineage {
    /// The primaries before this one, since the last that a majority of the Sentinels has named. While
    /// there are any, the Sentinels have not confirmed this one.
    pub superseded: Vec<Address>,
    /// The id of the history that the primary's data has.
    pub replid: Option<String>,
    /// Replicas that were seen to follow that history, and how far they had come.
    pub followers: Vec<(Address, u64)>,
}

/// A host, by name or literally, and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Address {
    pub host: String,
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl From<Address> for Endpoint {
    fn from(Address { host, port }: Address) -> Self {
        Self::Tcp { host, port }
    }
}

impl Endpoint {
    /// Stands for the address of a group that no Sentinel has named yet. Nobody listens at port 0, so
    /// connecting there is refused at once.
    pub fn unknown() -> Self {
        Self::Tcp { host: Ipv4Addr::LOCALHOST.to_string(), port: 0 }
    }

    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Tcp { port: 0, .. })
    }

    /// Of a server that is reached by TCP and whose address is known.
    pub fn address(&self) -> Option<Address> {
        match self {
            Self::Tcp { host, port } if *port > 0 => {
                Some(Address { host: host.clone(), port: *port })
            }
            Self::Tcp { .. } | Self::Unix(_) => None,
        }
    }
}

impl Snapshot {
    /// Removes the content of certificates and keys, once they are in use.
    pub fn forget_tls_files(&mut self) {
        self.forget_listeners_tls_files();
        for pool in &mut self.pools {
            let sentinels = pool.sentinel.iter_mut().filter_map(|it| it.tls.as_mut());
            pool.server_tls.iter_mut().chain(sentinels).for_each(ServerTls::forget_files);
        }
    }

    /// Whether any servers or Sentinels are connected with TLS.
    pub fn has_secured_servers(&self) -> bool {
        let has_tls = |sentinel: &Sentinel| sentinel.tls.is_some();
        let mut pools = self.pools.iter();
        pools.any(|pool| pool.server_tls.is_some() || pool.sentinel.as_ref().is_some_and(has_tls))
    }

    /// As [`forget_tls_files`](Self::forget_tls_files), but for what servers and Sentinels are connected with.
    pub fn forget_listeners_tls_files(&mut self) {
        self.pools.iter_mut().flat_map(|pool| &mut pool.tls).for_each(ListenerTls::forget_files);
    }

    /// The groups of all pools, each with its pool and where its primary is.
    pub fn groups(&self) -> impl Iterator<Item = (&Pool, &Group, &Endpoint)> {
        self.pools.iter().flat_map(|pool| {
            let groups = pool.sentinel.iter().flat_map(|sentinel| &sentinel.groups);
            groups.filter_map(move |group| {
                let server = pool.servers.iter().find(|server| server.name == group.server)?;
                Some((pool, group, &server.endpoint))
            })
        })
    }

    /// Whether any pool asks Sentinels.
    pub fn has_sentinels(&self) -> bool {
        self.pools.iter().any(|pool| pool.sentinel.is_some())
    }

    /// Whether the servers of any pool are the nodes of a cluster.
    pub fn has_clusters(&self) -> bool {
        self.pools.iter().any(Pool::is_cluster)
    }

    /// Notes where the primary of a group is. False if there is no such group, or it is there already.
    pub fn set_primary(
        &mut self,
        pool: &str,
        server: &str,
        address: &Address,
        config_epoch: Option<u64>,
    ) -> bool {
        let Some(pool) = self.pools.iter_mut().find(|it| it.name == pool) else { return false };
        let groups = pool.sentinel.iter_mut().flat_map(|sentinel| &mut sentinel.groups);
        let group = groups.into_iter().find(|group| group.server == server);
        let server = pool.servers.iter_mut().find(|it| it.name == server);
        let (Some(group), Some(server)) = (group, server) else { return false };
        let endpoint = Endpoint::from(address.clone());
        let has_moved = server.endpoint != endpoint;
        server.endpoint = endpoint;
        let name = server.name.clone();
        // It may be lower: of Sentinels that were set up anew.
        group.config_epoch = config_epoch.or(group.config_epoch);
        if has_moved {
            group.lineage = Lineage::default();
            group.moves = group.moves.wrapping_add(1);
            // The one before is none of them until Sentinels say so.
            let mut replicas = pool.replicas_of(&name);
            replicas.retain(|it| it != address);
            pool.set_replicas(&name, &replicas);
        }
        has_moved
    }

    /// Notes where the replicas of a group are that Sentinels name. False if there is no such group, its
    /// primary is not there, or they are so already.
    pub fn set_replicas(
        &mut self,
        pool: &str,
        server: &str,
        primary: &Address,
        replicas: &[Address],
    ) -> bool {
        let Some(pool) = self.pools.iter_mut().find(|it| it.name == pool) else { return false };
        let is_there =
            |it: &Server| it.name == server && it.endpoint.address().as_ref() == Some(primary);
        pool.servers.iter().any(is_there) && pool.set_replicas(server, replicas)
    }

    /// Notes what the primary of a group succeeds to, if it is there.
    pub fn set_lineage(
        &mut self,
        pool: &str,
        server: &str,
        address: &Address,
        config_epoch: Option<u64>,
        lineage: &Lineage,
    ) {
        let is_there = self.groups().any(|(its, group, endpoint)| {
            (&*its.name, &*group.server) == (pool, server)
                && endpoint.address().as_ref() == Some(address)
        });
        let Some(pool) = self.pools.iter_mut().find(|it| is_there && it.name == pool) else {
            return;
        };
        let mut groups = pool.sentinel.iter_mut().flat_map(|sentinel| &mut sentinel.groups);
        if let Some(group) = groups.find(|group| group.server == server) {
            (group.config_epoch, group.lineage) = (config_epoch, lineage.clone());
        }
    }

    /// Takes over where the primaries of groups are from another snapshot that has these groups. Their
    /// pools and servers may have other names there. Likewise the maps of clusters, what sources have named, and where
    /// servers have moved.
    pub fn keep_primaries(&mut self, from: &Self) {
        let mut found = Vec::new();
        for (pool, group, _) in self.groups() {
            let is_named = |(its, it, _): &(&Pool, &Group, &Endpoint)| {
                (&its.name, &it.server) == (&pool.name, &group.server)
            };
            let same = || {
                let known = from.groups().filter(|(.., endpoint)| !endpoint.is_unknown());
                known.filter(|(its, it, _)| is_same_group((pool, group), (its, it)))
            };
            let kept = same().find(is_named).or_else(|| same().next());
            if let Some((its, kept, endpoint)) = kept
                && let Some(address) = endpoint.address()
            {
                let replicas = its.replicas_of(&kept.server);
                let (name, server) = (pool.name.clone(), group.server.clone());
                found.push((name, server, address, kept.clone(), replicas));
            }
        }
        for (pool, server, address, kept, replicas) in found {
            let Group { config_epoch, lineage, moves, .. } = kept;
            self.set_primary(&pool, &server, &address, config_epoch);
            self.set_replicas(&pool, &server, &address, &replicas);
            self.set_lineage(&pool, &server, &address, config_epoch, &lineage);
            let mut groups =
                self.pools.iter_mut().filter(|it| it.name == pool).flat_map(|it| &mut it.sentinel);
            if let Some(group) =
                groups.find_map(|it| it.groups.iter_mut().find(|group| group.server == server))
            {
                group.moves = moves;
            }
        }
        self.keep_maps(from);
        self.keep_found(from);
        self.keep_relocations(from);
    }
}

/// Whether Sentinels mean the same group: they call it so, and some of them are the same, or the server
/// is.
pub fn is_same_group((pool, group): (&Pool, &Group), (other, its): (&Pool, &Group)) -> bool {
    let addresses =
        |pool: &Pool| pool.sentinel.iter().flat_map(|it| it.addresses.clone()).collect();
    let (ours, theirs): (Vec<Address>, Vec<Address>) = (addresses(pool), addresses(other));
    let is_named_so = (&pool.name, &group.server) == (&other.name, &its.server);
    group.master == its.master && (is_named_so || ours.iter().any(|it| theirs.contains(it)))
}

/// What clients may call: what the base lets them, but for what is listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandPolicy {
    pub base: PolicyBase,
    /// Commands, subcommands as `container|subcommand`, and categories with `@`, in lower case.
    pub allow: Vec<String>,
    pub deny: Vec<String>,
    /// Names of commands, and what clients call them instead; nothing where that is empty. In lower case,
    /// sorted.
    #[serde(default)]
    pub rename: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyBase {
    /// What uses data, but empties nothing as a whole.
    Cache,
    /// What uses data.
    Application,
    /// What administers servers as well.
    Admin,
}

impl PolicyBase {
    pub fn clearance(self) -> Clearance {
        match self {
            Self::Cache => Clearance::Cache,
            Self::Application => Clearance::Application,
            Self::Admin => Clearance::Admin,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Cache => "cache",
            Self::Application => "application",
            Self::Admin => "admin",
        }
    }
}

impl CommandPolicy {
    pub fn of(base: PolicyBase) -> Self {
        Self { base, allow: Vec::new(), deny: Vec::new(), rename: Vec::new() }
    }

    /// For a pool of Redis.
    pub fn rules(&self) -> Rules {
        let (allow, deny) = (self.allow.clone(), self.deny.clone());
        Rules { base: self.base.clearance(), allow, deny }
    }

    /// For a pool of memcached.
    pub fn chores(&self) -> ChorePolicy {
        ChorePolicy::new(self.base.clearance(), &self.allow, &self.deny)
    }
}

impl fmt::Display for Pose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cluster")?;
        for (at, address) in self.advertise.iter().enumerate() {
            let before = if at == 0 { ", advertise" } else { "," };
            write!(f, "{before} {address}")?;
        }
        Ok(())
    }
}

impl fmt::Display for CommandPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.base.name())?;
        for (what, list) in [("allow", &self.allow), ("deny", &self.deny)] {
            if !list.is_empty() {
                write!(f, ", {what} {}", list.join(" ").to_uppercase())?;
            }
        }
        for (at, (name, other)) in self.rename.iter().enumerate() {
            let (before, name) = (if at == 0 { ", rename" } else { "" }, name.to_uppercase());
            match other.is_empty() {
                true => write!(f, "{before} {name} to nothing")?,
                false => write!(f, "{before} {name} to {other}")?,
            }
        }
        Ok(())
    }
}

/// A command of a module: what must be known of it to serve it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CustomCommand {
    /// In lower case; a subcommand is "container|subcommand".
    pub name: String,
    /// Arguments including the name, and the subcommand's name; negative: at least that many.
    pub arity: i16,
    pub keys: CommandKeys,
    /// Redis's flags.
    pub flags: Vec<String>,
}

/// Where the keys of a command are. Arguments are counted from 0, the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandKeys {
    None,
    /// A negative `last` counts from the end.
    Range {
        first: u16,
        last: i16,
        step: u16,
    },
    /// The argument at `at` is their number; they follow it.
    Numkeys {
        at: u16,
        step: u16,
    },
}

impl CustomCommand {
    pub fn definition(&self) -> Definition {
        let keys = match self.keys {
            CommandKeys::None => KeyPlaces::None,
            CommandKeys::Range { first, last, step } => KeyPlaces::Range { first, last, step },
            CommandKeys::Numkeys { at, step } => {
                KeyPlaces::Numkeys { at, first: at.saturating_add(1), step }
            }
        };
        Definition { name: self.name.clone(), arity: self.arity, keys, flags: self.flags.clone() }
    }
}

/// Of pools that have no such option.
pub(crate) const SESSION_CONNECTIONS: u32 = 128;
pub(crate) const SESSION_WAIT_MS: u64 = 5000;

fn session_connections() -> u32 {
    SESSION_CONNECTIONS
}

/// All may be ejected.
pub fn fail_open_percent() -> u32 {
    100
}

fn session_wait_ms() -> u64 {
    SESSION_WAIT_MS
}

impl Pool {
    /// The addresses that clients connect to.
    pub fn listens(&self) -> impl Iterator<Item = &Listen> {
        [&self.listen].into_iter().chain(&self.tls_listen).filter(|it| **it != Listen::Nowhere)
    }

    /// What clients of this address are secured with.
    pub fn tls_at(&self, listen: &Listen) -> Option<&ListenerTls> {
        let is_there = self.tls_listen.as_ref().is_none_or(|it| it == listen);
        self.tls.as_ref().filter(|_| is_there)
    }

    /// What clients may call.
    pub fn policy(&self) -> CommandPolicy {
        self.command_policy.clone().unwrap_or_else(|| CommandPolicy::of(PolicyBase::Admin))
    }
}

/// Largest number of servers in one pool.
pub const SERVERS_MAX: usize = 65_536;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    Redis,
    Memcached,
    /// Any: bytes are passed through as they are.
    Tcp,
}

impl Protocol {
    /// As texts call it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Redis => "Redis",
            Self::Memcached => "memcached",
            Self::Tcp => "TCP",
        }
    }
}

/// What only pools of memcached have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memcached {
    pub wire: Wire,
    pub on_failure: OnFailure,
    #[serde(default)]
    pub cas_uniques: CasUniques,
    /// Which servers of a group get what is written.
    #[serde(default)]
    pub writes: Writes,
    /// Who may come; everybody if there is none.
    pub client_auth: Vec<Credentials>,
}

/// Which of memcached's protocols clients may speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wire {
    /// Each connection's first byte tells.
    #[default]
    Auto,
    /// Text, with the meta commands.
    Text,
    Binary,
    /// None of them: the pool passes bytes through.
    Tcp,
}

/// What becomes of a request for values whose server fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    #[default]
    Error,
    Miss,
}

/// Whether CAS uniques tell which server they are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CasUniques {
    /// Where there are several.
    #[default]
    Auto,
    Tagged,
    /// They are as servers give them.
    Plain,
}

/// Which servers of a group get what is written to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Writes {
    /// All that can be reached: they are copies of each other.
    #[default]
    All,
    /// The primary, whether it can be reached or not.
    First,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Listen {
    Tcp(SocketAddr),
    /// `mode` is applied to the path after binding; `None` leaves what the umask gives.
    Unix {
        path: PathBuf,
        mode: Option<u32>,
    },
    /// No client connects to it: routes lead there.
    Nowhere,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// The name in the ring, the statistics and the check for duplicates.
    pub name: String,
    pub endpoint: Endpoint,
    /// At least 1. Of a group, each of its servers has the group's.
    pub weight: u32,
    /// Where it is, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Endpoint {
    /// `host` is a name or a literal address; names are looked up when connecting.
    Tcp {
        host: String,
        port: u16,
    },
    Unix(PathBuf),
}

/// The named maxima of one pool. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Largest whole request; beyond it the client gets an error and is closed.
    pub request_size_max: u64,
    /// Requests of one client that wait for replies; beyond it the client is not read.
    pub client_requests_max: u32,
    /// Replies waiting for one client that do not yet stop it from being read.
    pub client_output_pause: u64,
    /// Replies waiting for one client; beyond it the client is closed.
    pub client_output_max: u64,
    /// Bytes waiting for one subscriber; beyond it the subscriber is closed.
    pub pubsub_output_max: u64,
    /// Bytes waiting for one subscriber; beyond it for that long the subscriber is closed.
    pub pubsub_output_soft_max: u64,
    pub pubsub_output_soft_ms: u64,
    /// Subscriptions of one client; beyond it they are refused with an error.
    pub client_subscriptions_max: u32,
    /// Subscriptions of all clients of one worker; beyond it they are refused with an error.
    pub subscriptions_max: u32,
    /// Requests queued or in flight on one server connection; beyond it requests are refused
    /// with an error.
    pub server_queue_max: u32,
    /// Bytes waiting to be written on one server connection; beyond it requests are refused
    /// with an error, unless nothing else waits.
    pub server_queue_size_max: u64,
    /// How long connecting to a server may take when the pool has no shorter `timeout`.
    pub server_connect_timeout_ms: u64,
    /// How long a transaction may keep its connection while others wait for one.
    #[serde(default = "session_hold_ms")]
    pub session_hold_ms: u64,
    /// Requests in flight with replies of unknown size, of all clients of a worker; 0 is no limit.
    #[serde(default = "pipeline_start")]
    pub pipeline_start: u32,
    /// Bytes per second of a large request or reply while others wait for its connection; 0 is no
    /// limit.
    #[serde(default = "transfer_rate_min")]
    pub transfer_rate_min: u64,
    /// How long a large request or reply may stop because of its client; 0 is no limit.
    #[serde(default = "transfer_stall_ms")]
    pub transfer_stall_ms: u64,
}

fn session_hold_ms() -> u64 {
    10_000
}

fn pipeline_start() -> u32 {
    64
}

fn transfer_rate_min() -> u64 {
    64 << 10
}

fn transfer_stall_ms() -> u64 {
    60_000
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request_size_max: 1 << 30,
            client_requests_max: 1024,
            client_output_pause: 1 << 20,
            client_output_max: 1 << 30,
            pubsub_output_max: 32 << 20,
            pubsub_output_soft_max: 8 << 20,
            pubsub_output_soft_ms: 60_000,
            client_subscriptions_max: 65_536,
            subscriptions_max: 1 << 20,
            server_queue_max: 262_144,
            server_queue_size_max: 256 << 20,
            server_connect_timeout_ms: 5000,
            session_hold_ms: session_hold_ms(),
            pipeline_start: pipeline_start(),
            transfer_rate_min: transfer_rate_min(),
            transfer_stall_ms: transfer_stall_ms(),
        }
    }
}
