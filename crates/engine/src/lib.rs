//! The proxy of one worker, as a pure state machine: events in, work out.
//!
//! It owns clients, requests, lanes to servers and their queues. It has no sockets, reads no
//! clock and starts no thread: a driver, a simulator or a test moves the bytes, tells the time and
//! carries out what the engine asks for. See [`Engine`] for the order of calls.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used))]

#[cfg(test)]
extern crate self as cashew_engine;

mod base;
mod downstream;
mod engine;
mod exchange;
mod memcached;
mod observe;
mod redis;
mod request;
mod route;
mod tcp;
mod topology;
mod upstream;

pub use base::action::{Action, Login, Notice, Scope, Sequel, SlowEnd};
pub use base::failure::{CloseReason, Failure};
pub use base::id::{BackendId, ConnId, ListenerId, ServerId};
pub use base::latency_batch::Answered;
pub use base::time::Time;
pub use downstream::activity::Activity;
pub use downstream::audit::Audited;
pub use downstream::client::Profile;
pub use downstream::external_auth::{Authenticated, Verdict};
pub use downstream::handoff::{Export, SessionParts, Silence};
pub use downstream::totals::Totals;
pub use engine::epoch::{Plan, PoolState};
pub use engine::memory::{DriverMemory, MemoryBound};
pub use engine::open_files::OpenFiles;
pub use engine::{Admission, Engine, Identity, Setup};
pub use memcached::memcached_reach;
pub use observe::Sighting;
pub use redis::client_pause::ClientPause;
pub use redis::monitor::{Hearing, Observed};
pub use redis::routed::redis_reach;
pub use redis::worker_query::{Place, Rest};
pub use tcp::handoff::PairParts;
pub use tcp::session::Source;
pub use upstream::inspect::{LaneKind, LaneState};
pub use upstream::session_params::WireProtocol;
