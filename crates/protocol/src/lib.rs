#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used))]

//! Incremental parsers, encoders and command tables for the protocols of Cashew.
//!
//! Nothing here does I/O or knows about connections: bytes go in, spans and facts come out.

mod class;
pub mod memcached;
mod outcome;
pub mod proxy;
pub mod redis;
pub mod resp;
mod span;

pub use class::CommandClass;
pub use outcome::{Outcome, OutcomeReader, ReplyForm};
pub use span::Span;
