//! The messages.
//!
//! Messages of one channel are handled in order. A worker is told [`ToChild::Init`], then one
//! [`ToChild::Listen`] and one [`ToChild::Release`] for each pool, possibly followed by a
//! [`ToChild::Hold`] where the pool's ring is just changing, then [`ToChild::Start`]: so it knows
//! which ring to use before it serves anybody.

use serde::{Deserialize, Serialize};

/// From the master to a worker or to the admin process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToChild {
    /// The first message. Carries two descriptors: the sealed memfd of the snapshot (JSON) and the
    /// metrics memfd of all slots. `slot` means nothing to the admin process.
    Init { slot: u32, workers: u32 },
    /// Carries one listening socket of a pool (or, to the admin process, the stats socket with
    /// pool 0).
    Listen { pool: u32 },
    /// Everything is handed over: begin to serve, then answer [`ToMaster::Ready`].
    Start,
    /// First phase of a change of a pool's ring: dispatch nothing more in that pool, then answer
    /// [`ToMaster::Held`].
    Hold { pool: u32, version: u64 },
    /// Second phase: use the ring over the servers for which `live` is true, and go on. When the
    /// change was abandoned, `live` is what it was before. Also comes unasked, before `Start`, to
    /// tell a new worker the ring in use. A pool whose servers are all ejected answers errors.
    Release {
        pool: u32,
        version: u64,
        #[serde(with = "crate::live")]
        live: Vec<bool>,
    },
    /// Set the log level (0..=11 as nutcracker's `-v`).
    LogLevel { level: u8 },
    /// Carries the newly opened log file, which replaces the one in use.
    LogReopen,
    /// Stop accepting, finish what is in flight within `worker_shutdown_timeout`, exit with 0.
    Shutdown,
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
}
