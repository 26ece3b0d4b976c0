//! The engine in a world that can be replayed: a virtual clock, a network that cuts and delays
//! bytes at will, model servers, model clients, and an oracle that knows the correct reply to every
//! request.
//!
//! The seed determines everything: topology, limits, traffic, faults and the order of events.
//! Nothing here reads a clock or does I/O, so a failing seed fails again. [`run`] plays one seed
//! and panics at the first violation. The first scenario that fails is made smaller as long as it fails in the
//! same way, and the last events of the smallest are printed, and of the run itself.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod binary_client;
mod binary_server;
mod cas_tags;
mod client;
mod clock;
mod cluster;
mod coordinator;
mod counts;
mod coverage;
mod faults;
mod gateway;
mod history;
mod memcached_client;
mod memcached_server;
mod meta_client;
mod meta_server;
mod moves;
mod network;
mod oracle;
mod packet;
mod random;
mod redis_client;
mod redis_server;
mod refusals;
mod reload;
mod replication;
mod request;
mod resharding;
mod rings;
mod route;
mod scenario;
mod server;
mod shape;
mod shrink;
mod store;
mod surprise;
mod trace;
mod user;
mod wire;
mod world;

pub use counts::Counts;
pub use coverage::Coverage;
pub use scenario::Scenario;
pub use world::{Report, run};
