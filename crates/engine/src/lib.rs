//! The proxy of one worker, as a pure state machine: events in, work out.
//!
//! It owns clients, requests, lanes to servers and their queues. It has no sockets, reads no
//! clock and starts no thread: a driver, a simulator or a test moves the bytes, tells the time and
//! carries out what the engine asks for. See [`Engine`] for the order of calls.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used))]

mod action;
mod aside;
mod attempts;
mod blocking;
mod buffer;
mod bulk;
mod calls;
mod carry;
mod census;
mod change;
mod client;
mod client_command;
mod client_pause;
mod clients;
mod crowd;
mod deliver;
mod dispatch;
mod effects;
mod effort;
mod engine;
mod epoch;
mod express;
mod express_parts;
mod failure;
mod fan;
mod fifo;
mod files;
mod gather;
mod guessing;
mod handshake;
mod hold;
mod id;
mod inquiry;
mod lane;
mod lanes;
mod learning;
mod lease;
mod low_water;
mod memcached;
mod memory;
mod misfit;
mod modes;
mod monitor;
mod moving;
mod notice;
mod outage;
mod patterns;
mod permission;
mod pool;
mod pressure;
mod private;
mod probe;
mod pubsub;
mod redis;
mod request;
mod requests;
mod rng;
mod router;
mod scripts;
mod session;
mod shares;
mod silence;
mod slab;
mod spares;
mod tally;
mod time;
mod timers;
mod tour;
mod transaction;
mod upload;
mod vacant;
mod variant;

pub use action::{Action, Scope};
pub use client::Profile;
pub use client_pause::ClientPause;
pub use crowd::Crowd;
pub use engine::{Admission, Engine, Identity, Setup};
pub use epoch::{Plan, PoolState};
pub use failure::{CloseReason, Failure};
pub use files::OpenFiles;
pub use id::ConnId;
pub use inquiry::{Place, Rest};
pub use memory::{DriverMemory, MemoryBound};
pub use monitor::{Hearing, Overheard};
pub use moving::{Export, SessionParts, Silence};
pub use notice::Notice;
pub use tally::Answered;
pub use time::Time;
pub use variant::Dialect;
