//! The stats port: twemproxy's statistics as JSON on a plain connection, more of them over HTTP, and
//! metrics for Prometheus.
//!
//! All numbers are read from shared memory on request. So they are never older than the request and
//! cost the workers nothing.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used))]

mod connection;
mod describe;
mod discovery;
mod events;
mod http;
mod json;
mod nutcracker;
mod processes;
mod prometheus;
mod readiness;
mod server;
mod source;
mod stats;

#[cfg(test)]
mod testing;

pub use describe::describe;
pub use discovery::{Discovery, GroupState};
pub use server::{Change, Changer, Changes, changes, serve};
pub use source::Source;
