//! Counters, gauges and histograms of all workers, in one piece of shared memory.
//!
//! Every worker slot has its own segment, written only by the worker that holds the slot. So a
//! write is a relaxed load and a relaxed store: no lock, no read-modify-write instruction. Anybody
//! may read at any time: while the worker is busy or hangs, and after it died. A reader sees each
//! number whole, but not all numbers of one instant.
//!
//! The [`Layout`], which follows from the configuration snapshot, determines where a number lies.
//! The numbers belong to that snapshot's pools and servers. A snapshot with other pools or servers
//! needs its own segments, and takes over the counters of those that both have.
//!
//! Beside the segments is what all workers write of each server: its [state](ServerState), and where servers
//! are copies of each other, [marks](WriteStamp) of the writes that are on their way.
//! Behind the slots is the [`Board`], which discovery alone writes.
//!
//! [`Shared`] has what all workers write: client ids, limits of clients, the outcomes of reloads, and the
//! [events](Events) of all processes, and [requests](RequestRing) that are worth a look.
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used))]

mod audience;
mod audit;
mod board;
mod clock;
mod digest;
mod events;
mod exports;
mod generations;
mod histogram;
mod hot;
mod hot_acts;
mod ids;
mod layout;
mod mapping;
mod overlaps;
mod passages;
mod record;
mod requests;
mod segments;
mod server_state;
mod shared;
mod users;
mod writer;

#[cfg(test)]
mod testing;

pub use audience::PATTERN_MAX;
pub use audit::{AUDITED_KEY_MAX, AuditTrail, Deed, DeedOutcome, NewDeed};
pub use board::{
    BOARD_STALE_AFTER_MS, Board, BoardWriter, Fitness, MemberRole, MemberState, Progress,
};
pub use clock::{WallClock, monotonic_ms};
pub use events::{EVENTS_MAX, Event, EventKind, EventLevel, EventRing, Events, NewEvent, Recorded};
pub use exports::{ExportCounter, ExportKind, Exports};
pub use generations::{Generations, KeyWord, Stamp};
pub use histogram::Histogram;
pub use hot::{HALF_LIFE_US, HotKey, HotKeys, HotSample, KEY_SIZE_MAX, Ranking};
pub use hot_acts::{HOT_ACTS_MAX, HotAct, HotActs, HotCause, HotDeed};
pub use ids::{
    CommandCounter, CommandCounts, PoolCounter, PoolGauge, ServerCounter, ServerGauge, Stat,
    UserCounter,
};
pub use layout::{Layout, PoolId, SLOTS_MAX, ServerId};
pub use overlaps::{WriteKind, WriteLane, WriteStamp};
pub use passages::{Passage, Passages};
pub use requests::{
    ARGUMENT_SIZE_MAX, ARGUMENTS_MAX, NewRequest, RequestRing, SLOW_MAX, SeenRequest, Times,
    key_hash,
};
pub use segments::{Attempts, Segments, SlotHeader};
pub use server_state::{Cause, Evidence, Health, LastError, ServerState, SpoolState, StateChange};
pub use shared::{
    ChildKind, FAILURE_MAX, LastReload, PAUSES_MAX, Pause, QUOTAS_MAX, Reloads, Shared,
};
pub use users::{Rate, UserId, UserStat};
pub use writer::Writer;
