//! The state of an instance, as `cashew status` shows it.
//!
//! Two versions of cashew may meet here: unknown fields are ignored, missing fields are empty.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use cashew_discovery::{MaintenanceStatus, SourceStatus};
use cashew_migration::MoveStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The state of the instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Status {
    pub version: String,
    pub pid: u32,
    /// `serving`, or what it does beside that.
    pub state: String,
    pub configuration: PathBuf,
    pub uptime_s: u64,
    pub epoch: u64,
    pub workers: Vec<WorkerStatus>,
    /// Without an admin process there are no statistics.
    pub admin: Option<AdminStatus>,
    /// Where there are groups whose primaries Sentinels name.
    pub discovery: Option<AdminStatus>,
    pub pools: Vec<PoolStatus>,
    /// Pools that are copied to others.
    pub moves: Vec<MoveStatus>,
    /// Requests by HTTP with a wrong token.
    pub tokens_refused: u64,
    /// Address of the statistics.
    pub statistics: Option<SocketAddr>,
    /// `None` is standard error.
    pub log_file: Option<PathBuf>,
    pub log_level: Option<u8>,
    /// Lines that could not be written to the log.
    pub log_lines_lost: u64,
    /// Where spans of requests are sent.
    pub tracing: Option<TracingStatus>,
    pub access_log: Option<AccessLogStatus>,
    pub audit_log: Option<AuditLogStatus>,
    /// It is to stop.
    pub drain: Option<DrainStatus>,
    pub last_reload: Option<Outcome>,
    pub last_upgrade: Option<Outcome>,
}

/// An instance that drains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DrainStatus {
    /// Until it stops.
    pub seconds_left: u64,
    /// Where clients are told to go; `None` is to the address that they know.
    pub to: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TracingStatus {
    pub endpoint: String,
    /// Spans that the collector has taken, and those that it has not.
    pub spans: u64,
    pub spans_dropped: u64,
    /// Exports that failed.
    pub errors: u64,
    pub last_error: Option<String>,
    /// In seconds since 1970.
    pub last_error_at: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AccessLogStatus {
    pub file: PathBuf,
    pub lines: u64,
    pub lines_lost: u64,
    pub last_error: Option<String>,
    /// In seconds since 1970.
    pub last_error_at: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AuditLogStatus {
    pub file: PathBuf,
    pub lines: u64,
    pub lines_lost: u64,
    pub last_error: Option<String>,
    /// In seconds since 1970.
    pub last_error_at: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WorkerStatus {
    pub slot: u32,
    pub rank: u32,
    /// `None` if there is no process, or if it is a thread.
    pub pid: Option<u32>,
    pub state: String,
    /// Since its start.
    pub uptime_s: u64,
    /// Clients connected.
    pub sessions: u64,
    /// Share of the last second in which it was not waiting.
    pub busy_permille: u32,
    /// Restarts of its slot, in the life of the instance.
    pub restarts: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AdminStatus {
    pub pid: Option<u32>,
    pub state: String,
    pub restarts: u64,
}

/// What a user with limits uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct UserStatus {
    pub name: String,
    pub requests: u64,
    /// Of requests and replies.
    pub bytes: u64,
    /// Requests and logins beyond its limits.
    pub refused: u64,
    /// How often its clients had to wait.
    pub delayed: u64,
    pub connections: u64,
    pub in_flight: u64,
}

/// How it goes with whoever is asked who clients are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExternalAuthStatus {
    /// Where it is.
    pub source: String,
    pub asked: u64,
    pub refused: u64,
    /// Questions without a right answer.
    pub outages: u64,
    /// Those of them for which an earlier answer was used.
    pub cached: u64,
    /// Workers that got no right answer to their last question.
    pub lost_at: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PoolStatus {
    pub name: String,
    pub listen: String,
    /// The pools that it leads to, of a route, which has no servers of its own.
    pub leads_to: Vec<String>,
    pub servers: u32,
    /// Servers on the ring.
    pub live: u32,
    /// All servers are used although too many are down: since when, in seconds since 1970.
    pub open_since: Option<u64>,
    /// Who takes the writes, where the others are its replicas; else empty.
    pub primary: String,
    /// The groups of several servers, unless there is one that has them all.
    pub shards: Vec<ShardStatus>,
    pub ring_version: u64,
    /// Digest of the ring, in hex: the same on every machine that sends keys to the same servers.
    pub digest: String,
    /// What it looks like to its clients, if not like one server; else empty.
    pub pose: String,
    /// Which commands clients may use.
    pub command_policy: String,
    /// Requests refused by the command policy.
    pub commands_refused: u64,
    /// Attempts to log in with a wrong password.
    pub auth_failures: u64,
    /// Of a pool that asks others who clients are.
    #[serde(default)]
    pub external_auth: Option<ExternalAuthStatus>,
    /// Those of the users with limits who have asked most.
    pub users: Vec<UserStatus>,
    /// Reads that were sent to a second server, those that it answered first, and those that were not sent
    /// since the budget was spent.
    pub hedges_sent: u64,
    pub hedges_won: u64,
    pub hedges_denied: u64,
    /// Times that a request was sent again, unseen by its client, and reads that were not for want of
    /// budget.
    pub requests_retried: u64,
    /// Reads that got the reply to an equal one.
    #[serde(default)]
    pub reads_coalesced: u64,
    /// Where nodes `cache` keep replies.
    #[serde(default)]
    pub cache: Option<CacheStatus>,
    /// Keys of which replies are kept as they are hot.
    #[serde(default)]
    pub hot_keys: Vec<HotKeyStatus>,
    /// What its rule leaves alone for a while, since a hot key could not go.
    #[serde(default)]
    pub hot_waits: Vec<HotWaitStatus>,
    pub retries_denied: u64,
    /// Errors of nodes of a cluster that clients got, of a pool that does not know of the cluster.
    pub redirects_passed_on: u64,
    /// How much longer CLIENT PAUSE holds clients back; 0 if it does not.
    pub paused_ms: u64,
    /// The pause covers only writes.
    pub paused_writes_only: bool,
    /// How each server is. Empty if that is not known.
    pub server_states: Vec<ServerStatus>,
    /// Servers whose addresses Sentinels tell.
    pub groups: Vec<GroupStatus>,
    /// Servers of which some have copies of what others have.
    pub members: Vec<MemberStatus>,
    /// Where it is reached with TLS; else empty.
    pub tls_at: String,
    pub certificates: Vec<CertificateStatus>,
    pub sentinels: Vec<SentinelStatus>,
    /// Where its servers are the nodes of a cluster.
    pub cluster: Option<ClusterStatus>,
    /// Where its servers are named by a source.
    pub source: Option<SourceStatus>,
    /// Servers that are asked to tell of their maintenance.
    #[serde(default)]
    pub server_maintenance: Vec<MaintenanceStatus>,
    /// How often the servers that it names have changed, in this instance.
    pub source_changes: u32,
    /// Since the master was started.
    pub source_change: Option<SourceChange>,
}

/// What a route's nodes `cache` keep, over all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CacheStatus {
    /// Reads that were answered from there, and those that were not.
    pub hits: u64,
    pub misses: u64,
    /// Bytes that it takes, and replies.
    pub bytes: u64,
    pub replies: u64,
    /// Bytes that it may take.
    pub bytes_max: u64,
    /// Servers whose replies are not kept, since they refuse what that takes. Events say why.
    pub refused_servers: u64,
}

/// A hot key that something is done about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HotKeyStatus {
    /// In quotes, with escapes.
    pub key: String,
    /// `cache` if replies to reads of it are kept, `move` if it is in another pool, `split` if reads of it may go to
    /// copies.
    pub action: String,
    /// Over how many servers it is split, at most; 0 if it is not.
    pub copies: u8,
    /// `rule` or `command`.
    pub cause: String,
    /// In seconds since 1970.
    pub since: u64,
    /// Its share of the pool's requests, in millionths. `None` where there are too few.
    pub share_ppm: Option<u32>,
}

/// What the rule of a pool leaves alone for a while, since a hot key could not go to another pool or come back: a key, a way to
/// another pool, or the pool itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HotWaitStatus {
    /// The key that is not tried, in quotes, with escapes. Else empty.
    pub key: String,
    /// The pool that no hot key goes to from this one. Empty beside a key; and if it is empty, too, no hot key goes to this pool
    /// or comes from there.
    pub to: String,
    /// For how many seconds more.
    pub left_s: u64,
    /// What went wrong the last time.
    pub why: String,
}

/// A change of the servers that a source names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SourceChange {
    /// In seconds since 1970.
    pub at: u64,
    pub what: String,
}

/// The map that a pool in front of a cluster goes by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ClusterStatus {
    /// The highest config epoch of it.
    pub epoch: u64,
    /// How often it has changed, in this instance.
    pub changes: u32,
    /// Slots that have an owner.
    pub slots_covered: u32,
    /// Empty while there is no map.
    pub shards: Vec<ShardSlotsStatus>,
    pub seeds: Vec<SeedStatus>,
    /// Seconds since 1970, since the master was started.
    pub last_change_at: Option<u64>,
    pub last_change: String,
}

/// A primary of a cluster with its replicas, by the names of servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ShardSlotsStatus {
    pub primary: String,
    pub replicas: Vec<String>,
    pub slots: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SeedStatus {
    pub address: String,
    /// `None` while that is not known.
    pub is_answering: Option<bool>,
    pub failure: Option<String>,
}

/// A certificate that clients are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CertificateStatus {
    pub file: String,
    pub names: Vec<String>,
    /// Seconds since 1970.
    pub expires_at: u64,
}

/// A group of servers that hold the same keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ShardStatus {
    pub name: String,
    /// Who takes the writes.
    pub primary: String,
    pub replicas: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ServerStatus {
    pub name: String,
    pub address: String,
    /// `primary` or `replica`, where servers have roles; else empty.
    pub role: String,
    /// `untried`, `well`, `suspect`, `out` or `trial`.
    pub state: String,
    /// Whether the last that is known of it is good.
    pub is_up: bool,
    /// Seconds since 1970; `None` if it was never tried.
    pub since: Option<u64>,
    /// Why it is not well; else empty.
    pub cause: String,
    /// What last went wrong, however it is now.
    pub last_error: Option<String>,
    /// Seconds since 1970.
    pub last_error_at: Option<u64>,
    /// Writes to its group that it did not get or confirm, while another did.
    pub writes_missed: u64,
    /// Keys that it has yet to be told to forget.
    pub to_forget: u64,
    /// How much of its keys it does not have, since it is drained, in thousandths: 1000 if it has none.
    pub drained_permille: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GroupStatus {
    pub server: String,
    /// What Sentinels call it.
    pub master: String,
    /// Where those who serve take its primary to be.
    pub primary: Option<String>,
    /// Sentinel's number of the configuration in which it is.
    pub config_epoch: Option<u64>,
    /// `stable`, `suspect`, `switching`, `unknown`, or `not watched` while discovery does not run.
    pub state: String,
    /// The last time that the primary moved, since the master was started.
    pub last_switch: Option<SwitchStatus>,
}

/// A server as discovery sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MemberStatus {
    pub server: String,
    /// What it says that it is.
    pub role: String,
    /// `fit`, or why it gets no reads; `unknown` while nobody has asked it.
    pub fitness: String,
    /// Bytes that it is behind its primary.
    pub lag: Option<u64>,
    /// Of a replica: whether its connection to the primary is up.
    pub is_link_up: Option<bool>,
    /// For how many seconds it is not.
    pub link_down_s: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SwitchStatus {
    /// Seconds since 1970.
    pub at: u64,
    pub from: Option<String>,
    pub to: String,
    pub why: String,
    /// How many there were.
    pub switches: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SentinelStatus {
    pub address: String,
    /// `None` while that is not known.
    pub is_answering: Option<bool>,
    pub failure: Option<String>,
}

/// The outcome of a reload or an upgrade.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Outcome {
    /// Seconds since 1970.
    pub at: u64,
    /// `None` on success.
    pub failed: Option<String>,
}

impl Outcome {
    /// Of something that has ended just now.
    pub fn new(failed: Option<String>) -> Self {
        Self { at: now(), failed }
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
