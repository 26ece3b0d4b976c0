//! The messages.
//!
//! Messages of one channel are handled in order. Pools and servers are referred to by their index
//! in the snapshot of the last [`ToChild::Commit`] before the message, or else of
//! [`ToChild::Init`].
//!
//! A worker receives [`ToChild::Init`], then one [`ToChild::Release`] for each pool, followed by a
//! [`ToChild::Hold`] if the pool's ring is changing, and [`ToChild::Listen`] for each of its
//! listeners, then [`ToChild::Start`]. So it knows which ring to use before it serves.
//!
//! An epoch changes in two phases: [`ToChild::Prepare`] is answered by [`ToMaster::Prepared`] or
//! [`ToMaster::Refused`]; then [`ToChild::Pause`] by [`ToMaster::Paused`]; then [`ToChild::Commit`]
//! by [`ToMaster::Committed`]. Until the commit [`ToChild::Abort`] undoes it all, and is not
//! answered.

use std::path::PathBuf;

use cashew_config::snapshot::{Address, Lineage, Maintenance, TopologyState};
use serde::{Deserialize, Serialize};

use crate::session::Session;

/// From the master to a worker, to the admin process or to discovery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "few are on their way at a time")]
pub enum ToChild {
    /// The first message. Carries three descriptors: the sealed memfd of the
    /// [`Epoch`](crate::Epoch), the metrics memfd of all slots, and the memfd that all processes
    /// share for the life of the instance. `slot` is where the worker counts. `rank` is its
    /// position among the `workers` that share the servers' connections. Both mean nothing to the
    /// admin process.
    Init { slot: u32, rank: u32, workers: u32 },
    /// Accept from a listening socket of a pool from now on. Carries the socket. For the admin
    /// process this is the stats socket, with pool 0; a second one replaces the first. `listener`
    /// identifies the socket and is never reused.
    Listen { listener: u32, pool: u32 },
    /// Stop accepting from that socket. With `drain`, first accept all connections that wait there
    /// already: nobody else will.
    Unlisten { listener: u32, drain: bool },
    /// All is handed over: begin to serve, then answer [`ToMaster::Ready`].
    Start,
    /// First phase of a ring change: dispatch nothing more in that pool, let requests to healthy
    /// servers finish within `drain_ms`, then answer [`ToMaster::Held`].
    Hold { pool: u32, version: u64, drain_ms: u64 },
    /// Second phase: dispatch again, by this topology. If the change was abandoned, the topology is
    /// unchanged. Before `Start` it tells a new worker the topology in use. A pool whose servers are
    /// all ejected answers errors.
    Release {
        pool: u32,
        version: u64,
        #[serde(flatten)]
        topology: TopologyState,
    },
    /// Prepare another epoch while serving by the old one. Carries its sealed memfd and its metrics
    /// memfd. Also sent to the admin process. The rank of a retiring worker may not be below
    /// `workers`.
    Prepare { epoch: u64, rank: u32, workers: u32 },
    /// Dispatch nothing more in pools whose keys may move to another server, let their requests
    /// finish within `drain_ms`, then answer [`ToMaster::Paused`].
    Pause { epoch: u64, drain_ms: u64 },
    /// Switch to the prepared epoch.
    Commit { epoch: u64 },
    /// Discard the prepared epoch and stay with the old one.
    Abort { epoch: u64 },
    /// Another process takes over: stop accepting, hand every session over when it is at rest
    /// ([`ToMaster::HandOver`]), close the others after `timeout_ms`, exit with 0 when none is
    /// left. Epochs and rings may change meanwhile.
    Retire { timeout_ms: u64 },
    /// Keep serving. [`ToChild::Listen`] follows.
    Unretire,
    /// Nobody takes sessions for a while: hand none over, as if never told to retire or to shed,
    /// until told again. Answered by [`ToMaster::Kept`] when none is on its way any more.
    Keep,
    /// Hand over sessions that together caused at most this share of this worker's recent requests.
    Shed { permille: u32 },
    /// Serve a session of another worker. Carries its socket, and a sealed memfd with unconsumed
    /// input followed by unwritten output, unless both are empty. Answered by [`ToMaster::Adopted`]
    /// before the session is served: without that, the session of a worker that dies can be given
    /// to another.
    Adopt { session: Session },
    /// Clients of other workers monitor the pool of that name. Report its commands with
    /// [`ToMaster::Overheard`], until some seconds after the last such message, and answer
    /// [`ToMaster::Watching`]. With `on` false, stop.
    Watched { pool: String, on: bool },
    /// All other workers now report the commands of the pool of that name, which clients here
    /// monitor.
    Monitored { pool: String },
    /// Commands of other workers' clients in the pool of that name, for monitors here: the lines,
    /// and how many are missing.
    Overheard { pool: String, lines: String, missed: u64 },
    /// A query of another worker about a pool: a client's request, in the sealed memfd that comes
    /// with it. `by` is that client's id. Answer with [`ToMaster::Answer`].
    Question { number: u64, pool: String, by: u64 },
    /// One worker's answer to [`ToMaster::Ask`], in a sealed memfd unless it is empty.
    Answer { ticket: u64, rest: Rest },
    /// How a group is, by the names of its pool and of its server: to the admin process.
    Group {
        pool: String,
        server: String,
        state: String,
        config_epoch: Option<u64>,
        /// How often its primary has moved, and when it did last, in seconds since 1970, and why.
        switches: u64,
        switched_at: Option<u64>,
        why: String,
    },
    /// Whether a Sentinel of the pool of that name answers, if that is known: to the admin process.
    Sentinel { pool: String, address: String, is_answering: Option<bool> },
    /// A server refuses writes as a replica does, which is taken for the primary: ask who is. Pool and server
    /// by their names: to discovery.
    NotPrimary { pool: String, server: String },
    /// Something does not go with the map of the cluster that the pool of that name is in front of: ask the
    /// nodes at once. To discovery.
    MapDoubted { pool: String },
    /// Whether a seed of the pool of that name answers, if that is known: to the admin process.
    Seed { pool: String, address: String, is_answering: Option<bool> },
    /// How the source of a pool is, as JSON, as discovery has told: to the admin process.
    Source { json: String },
    /// How it is with a server that is asked to tell of its maintenance, as JSON, as discovery has told: to the admin
    /// process.
    Maintained { json: String },
    /// What becomes of the command of that number, [`ToMaster::Operate`]: a line, and at the end how it went, with a
    /// sealed memfd if a document was asked for. To the admin process.
    Operated {
        number: u64,
        text: String,
        is_ok: Option<bool>,
        /// At the end: there was nothing to change.
        #[serde(default)]
        unchanged: bool,
    },
    /// Do something about the move that is kept in that directory, and answer [`ToMaster::Migrated`] with that number.
    /// To discovery.
    Migrate { number: u64, directory: PathBuf, act: MoveAct },
    /// Find out whether these keys can go, as long as nobody waits for it, and answer [`ToMaster::KeysLookedAt`] with that
    /// number. To discovery.
    LookAtKeys {
        number: u64,
        keys: KeysCarried,
        /// The most bytes that a key may have in memory.
        size_max: Option<u64>,
    },
    /// All workers have paused: make the copies complete that are to serve by that epoch, then answer
    /// [`ToMaster::CaughtUp`], and change nothing until it is committed or aborted. To discovery.
    CatchUp {
        epoch: u64,
        directories: Vec<PathBuf>,
        /// Single keys that are to be in another pool then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keys: Option<KeysCarried>,
    },
    /// How all moves are, as JSON, as discovery has told: to the admin process.
    Moves { json: String },
    /// Tell clients of it that want to know: those whose requests may go to that pool, or all.
    Maintenance { pool: Option<u32>, event: Maintenance },
    /// Set the log level (0..=11 as nutcracker's `-v`).
    LogLevel { level: u8 },
    /// Carries the newly opened log file, which replaces the current one.
    LogReopen,
    /// Stop accepting, finish requests in flight within `worker_shutdown_timeout`, exit with 0.
    Shutdown,
}

/// What may be done about a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveAct {
    /// Say whether it can begin.
    CheckStart {
        /// Also if the other pool has something, which will be removed.
        may_overwrite: bool,
        /// Also if servers of the other pool evict keys for lack of memory.
        #[serde(default)]
        may_evict: bool,
    },
    /// Begin, pause or go on, as is kept.
    Obey,
    /// Compare both pools.
    Verify,
    /// Say whether the copy can serve.
    CheckChange {
        /// Keys that are not where their names place them are left behind.
        ignore_misplaced: bool,
    },
}

/// Keys that go from one pool to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeysCarried {
    pub from: String,
    pub to: String,
    pub keys: Vec<String>,
    /// Also if the other pool has something by their names.
    pub may_overwrite: bool,
}

/// Which answers to a query are still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rest {
    Awaited,
    /// All have answered.
    None,
    /// No more will come, though not all have answered.
    Missing,
}

/// From a worker, the admin process or discovery to the master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToMaster {
    Ready,
    /// Cannot serve, and why. The process exits right after.
    Failed {
        why: String,
    },
    Held {
        pool: u32,
        version: u64,
    },
    /// A server reached its failure limit here and should be ejected for all workers.
    ServerDown {
        pool: u32,
        server: u32,
        why: String,
    },
    /// A server that is taken for a primary refuses writes as a replica does.
    NotPrimary {
        pool: u32,
        server: u32,
    },
    /// Something does not go with the map of the cluster that this pool is in front of.
    MapDoubted {
        pool: u32,
    },
    /// An ejected server answered a probe.
    ServerUp {
        pool: u32,
        server: u32,
    },
    /// These servers (pool, place) have connections here to addresses that their hosts no longer
    /// resolve to, by the epoch being prepared. Comes before [`ToMaster::Prepared`], if at all, and
    /// more than once if there are many.
    Moved {
        epoch: u64,
        servers: Vec<(u32, u32)>,
    },
    /// Ready to switch to that epoch.
    Prepared {
        epoch: u64,
    },
    /// Cannot serve that epoch; stays with the old one.
    Refused {
        epoch: u64,
        why: String,
    },
    /// No requests are in flight in the pools that the epoch changes, or the time for that is over
    /// and `unfinished` requests still are.
    Paused {
        epoch: u64,
        unfinished: u64,
    },
    /// Serves by that epoch.
    Committed {
        epoch: u64,
    },
    /// Clients here monitor the pool of that name, or none do any more. Repeated every second while
    /// they do.
    Monitors {
        pool: String,
        any: bool,
    },
    /// Reports this pool's commands from now on, or does so already.
    Watching {
        pool: String,
    },
    /// Commands of clients here in the pool of that name, for monitors at other workers: the lines,
    /// and how many are missing.
    Overheard {
        pool: String,
        lines: String,
        missed: u64,
    },
    /// A client's request about the clients of all workers, to be sent to the others as
    /// [`ToChild::Question`]. Carries it in a sealed memfd. `ticket` identifies it in the answers.
    Ask {
        ticket: u64,
        pool: String,
        by: u64,
    },
    /// The answer to that question, in a sealed memfd unless it is empty.
    Answer {
        number: u64,
    },
    /// A session at rest, for another worker. Carries what [`ToChild::Adopt`] does.
    HandOver {
        session: Session,
    },
    /// A primary has become the replica of another server of its group, which has its data and takes writes: by
    /// the names of the pool and of the servers. Only discovery says this.
    Successor {
        pool: String,
        from: String,
        to: String,
    },
    /// The primary of a group is at another address than the epoch in effect says: the server of that
    /// name, of the pool of that name. Only discovery says this and the next two.
    Primary {
        pool: String,
        server: String,
        host: String,
        port: u16,
        config_epoch: Option<u64>,
        why: String,
    },
    /// The replicas of a group whose primary is there, as its Sentinels name them. Only discovery says this.
    Replicas {
        pool: String,
        server: String,
        primary: Address,
        replicas: Vec<Address>,
    },
    /// How a group is, and what whoever watches it next has to know. Comes before the primary that it
    /// is about does.
    Group {
        pool: String,
        server: String,
        state: String,
        config_epoch: Option<u64>,
        #[serde(default)]
        primary: Option<Address>,
        #[serde(default)]
        lineage: Lineage,
    },
    /// Whether a Sentinel of the pool of that name answers, and why not.
    Sentinel {
        pool: String,
        host: String,
        port: u16,
        failure: Option<String>,
    },
    /// The map of the cluster that the pool of that name is in front of, as its nodes tell, which is another one
    /// than before. Carries it in a sealed memfd. Only discovery says this and the next.
    Cluster {
        pool: String,
    },
    /// Whether a seed of the pool of that name answers, and why not.
    Seed {
        pool: String,
        seed: Address,
        failure: Option<String>,
    },
    /// Sources name other servers for pools. Carries them in a sealed memfd. Only discovery says this and the next.
    Found,
    /// How the source of a pool is, as JSON.
    Source {
        json: String,
    },
    /// How it is with a server that is asked to tell of its maintenance, as JSON. Only discovery says this and the
    /// next.
    Maintained {
        json: String,
    },
    /// A server has moved, as it has said itself. As JSON.
    Relocated {
        json: String,
    },
    /// Somebody at that place asks for a command by HTTP, which is as at the control socket, and has shown that it may.
    /// Only the admin process says this.
    Operate {
        number: u64,
        command: String,
        place: String,
    },
    /// What has become of [`ToChild::Migrate`]. Only discovery says this and the next two.
    Migrated {
        number: u64,
        failure: Option<String>,
        /// What an operator should know though nothing fails.
        #[serde(default)]
        notes: Vec<String>,
    },
    /// Whether keys can go, or why not. Only discovery says this.
    KeysLookedAt {
        number: u64,
        failure: Option<String>,
        /// The pool of which a server does not answer, if that is why.
        pool: Option<String>,
    },
    /// The copies are complete that are to serve by that epoch, or why they are not.
    CaughtUp {
        epoch: u64,
        failure: Option<String>,
    },
    /// How all moves are, as JSON.
    Moves {
        json: String,
    },
    /// Serves the next of the sessions that it was sent with [`ToChild::Adopt`].
    Adopted,
    /// Hands nothing over any more, after [`ToChild::Keep`]: no session follows.
    Kept,
}
