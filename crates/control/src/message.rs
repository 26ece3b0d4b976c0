//! The messages.
//!
//! Messages of one channel are handled in order. Pools and servers are named by their index in the
//! snapshot that the last [`ToChild::Commit`] before the message put into effect, or else
//! [`ToChild::Init`].
//!
//! A worker is told [`ToChild::Init`], then one [`ToChild::Release`] for each pool, possibly
//! followed by a [`ToChild::Hold`] where the pool's ring is just changing, and
//! [`ToChild::Listen`] for what it is to accept from, then [`ToChild::Start`]: so it knows which
//! ring to use before it serves anybody.
//!
//! An epoch changes in two phases: [`ToChild::Prepare`] is answered by [`ToMaster::Prepared`] or
//! [`ToMaster::Refused`]; then [`ToChild::Pause`] by [`ToMaster::Paused`]; then
//! [`ToChild::Commit`] by [`ToMaster::Committed`]. Until the commit [`ToChild::Abort`] undoes it
//! all, and is not answered.

use cashew_config::snapshot::TopologyState;
use serde::{Deserialize, Serialize};

use crate::session::Session;

/// From the master to a worker or to the admin process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToChild {
    /// The first message. Carries three descriptors: the sealed memfd of the
    /// [`Epoch`](crate::Epoch), the metrics memfd of all slots, and the memfd of what all processes
    /// share for the whole life of the instance. `slot` says where to count, `rank` which of the
    /// `workers` that share the servers' connections this one is; both mean nothing to the admin
    /// process.
    Init { slot: u32, rank: u32, workers: u32 },
    /// Accept from a listening socket of a pool from now on. Carries the socket (for the admin
    /// process the stats socket, with pool 0; a second one takes the place of the first). `listener`
    /// names it and is never used again for another.
    Listen { listener: u32, pool: u32 },
    /// Accept from that socket no more. With `drain` take all those first who wait there already:
    /// nobody else will.
    Unlisten { listener: u32, drain: bool },
    /// Everything is handed over: begin to serve, then answer [`ToMaster::Ready`].
    Start,
    /// First phase of a change of a pool's ring: dispatch nothing more in that pool, let what is on
    /// its way to servers that are well finish, `drain_ms` at most, then answer
    /// [`ToMaster::Held`].
    Hold { pool: u32, version: u64, drain_ms: u64 },
    /// Second phase: go on, by this topology. When the change was abandoned it is what it was before.
    /// Also comes unasked, before `Start`, to tell a new worker the topology in use. A pool whose
    /// servers are all ejected answers errors.
    Release {
        pool: u32,
        version: u64,
        #[serde(flatten)]
        topology: TopologyState,
    },
    /// Make everything ready for another epoch, and go on by the old one. Carries its sealed memfd
    /// and its metrics memfd. To the admin process too. The rank of a worker that retires may not
    /// be below `workers`.
    Prepare { epoch: u64, rank: u32, workers: u32 },
    /// Dispatch nothing more in pools whose keys may get to another server by the epoch prepared,
    /// let what is on its way there finish, `drain_ms` at most, then answer [`ToMaster::Paused`].
    Pause { epoch: u64, drain_ms: u64 },
    /// Go on by the epoch prepared.
    Commit { epoch: u64 },
    /// Forget the epoch prepared and go on by the old one.
    Abort { epoch: u64 },
    /// Another process takes over: accept nothing more, hand every session over when it comes to
    /// rest ([`ToMaster::HandOver`]), close those that have not after `timeout_ms`, exit with 0
    /// when there are none left. Epochs and rings change here too meanwhile.
    Retire { timeout_ms: u64 },
    /// Go on serving after all. [`ToChild::Listen`] follows.
    Unretire,
    /// Nobody takes sessions for a while: hand no more over, as if never told to retire or to shed,
    /// until told so again. Answered by [`ToMaster::Kept`] when none is on its way any more.
    Keep,
    /// Hand sessions over that together caused at most this share of this worker's requests lately.
    Shed { permille: u32 },
    /// Serve a session of another worker. Carries its socket, and a sealed memfd with what was
    /// received and not consumed, then what is still to be written, unless both are empty. Answered
    /// by [`ToMaster::Adopted`] before anything is done with it: the session of a worker that dies
    /// without that can be given to another one.
    Adopt { session: Session },
    /// Clients of other workers monitor the pool of that name: tell what its clients ask here, with
    /// [`ToMaster::Overheard`], for some seconds or until this is said again, and answer
    /// [`ToMaster::Watching`]. Or they do not any more.
    Watched { pool: String, on: bool },
    /// All workers tell what is asked of the pool of that name, which clients here monitor.
    Monitored { pool: String },
    /// What clients of other workers asked of the pool of that name, for the clients here that
    /// monitor it: lines as they are told, and how many are missing.
    Overheard { pool: String, lines: String, missed: u64 },
    /// What another worker wants to know of this one, about a pool by its name: the request of a
    /// client, in the sealed memfd that comes with it. `by` is that client's id. To be answered with
    /// [`ToMaster::Answer`].
    Question { number: u64, pool: String, by: u64 },
    /// What one worker answered to [`ToMaster::Ask`], in a sealed memfd, if it is not empty.
    Answer { ticket: u64, rest: Rest },
    /// Set the log level (0..=11 as nutcracker's `-v`).
    LogLevel { level: u8 },
    /// Carries the newly opened log file, which replaces the one in use.
    LogReopen,
    /// Stop accepting, finish what is in flight within `worker_shutdown_timeout`, exit with 0.
    Shutdown,
}

/// What is still to be expected of the workers that were asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rest {
    Awaited,
    /// All have answered.
    None,
    /// Nothing, though not all have answered.
    Missing,
}

/// From a worker or the admin process to the master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToMaster {
    Ready,
    /// Cannot serve, and why; the process exits right after.
    Failed {
        why: String,
    },
    Held {
        pool: u32,
        version: u64,
    },
    /// A server reached its failure limit here and should be ejected for everybody.
    ServerDown {
        pool: u32,
        server: u32,
        why: String,
    },
    /// An ejected server answered a probe.
    ServerUp {
        pool: u32,
        server: u32,
    },
    /// Has connections to addresses that the hosts of these servers do not resolve to any more, by the
    /// epoch being prepared: their pool and their place there. Comes before [`ToMaster::Prepared`], if
    /// at all, and more than once if there are many.
    Moved {
        epoch: u64,
        servers: Vec<(u32, u32)>,
    },
    /// Ready to switch to that epoch.
    Prepared {
        epoch: u64,
    },
    /// Cannot serve that epoch; goes on by the old one.
    Refused {
        epoch: u64,
        why: String,
    },
    /// Nothing is on its way any more in the pools that the epoch changes, or the time for that is
    /// up: `unfinished` requests still are.
    Paused {
        epoch: u64,
        unfinished: u64,
    },
    /// Serves by that epoch.
    Committed {
        epoch: u64,
    },
    /// Clients here monitor the pool of that name, which is said again every second; or none do any
    /// more.
    Monitors {
        pool: String,
        any: bool,
    },
    /// Begins to tell what clients here ask of that pool, or does so already.
    Watching {
        pool: String,
    },
    /// What clients here ask of the pool of that name, for clients elsewhere that monitor it: lines
    /// as they are told, and how many are missing.
    Overheard {
        pool: String,
        lines: String,
        missed: u64,
    },
    /// A client's request that concerns the clients of all workers: the others are to be asked by
    /// [`ToChild::Question`]. Carries it in a sealed memfd. `ticket` names it in the answers.
    Ask {
        ticket: u64,
        pool: String,
        by: u64,
    },
    /// The answer to that question, in a sealed memfd, unless it is empty.
    Answer {
        number: u64,
    },
    /// A session at rest, for another worker. Carries what [`ToChild::Adopt`] does.
    HandOver {
        session: Session,
    },
    /// The next of the sessions it was told to adopt is its own from now on.
    Adopted,
    /// Hands nothing over any more, as it was told by [`ToChild::Keep`]: no session follows.
    Kept,
}
