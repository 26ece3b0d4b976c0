//! The stats port: twemproxy's statistics as JSON on a plain connection, more of them over HTTP,
//! metrics for Prometheus, and a page for browsers.
//!
//! All numbers are read from shared memory on request. So they are never older than the request and
//! cost the workers nothing. Only the last hour of some is kept here.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used))]

mod access_log;
mod api;
mod audit_log;
mod body;
mod collector;
mod connection;
mod counted;
mod describe;
mod discovery;
mod events;
mod foreign;
mod history;
mod hot;
mod http;
mod json;
mod line_log;
mod nutcracker;
mod operate;
mod page;
mod place;
mod printable;
mod processes;
mod prometheus;
mod query;
mod readiness;
mod request_tap;
mod roles;
mod section;
mod server;
mod slow;
mod source;
mod span;
mod span_exporter;
mod state;
mod stats;
mod stream;

#[cfg(test)]
mod testing;

pub use describe::describe;
pub use discovery::{Discovery, GroupState};
pub use foreign::read_request;
pub use hot::{HotListing, HotRecord};
pub use operate::{Said, SendCommand};
pub use section::{Cell, Column, Section, Unit};
pub use server::{Change, Changer, Changes, changes, serve};
pub use slow::{Parts, SlowListing, SlowRecord};
pub use source::{Source, TellRoutes};
