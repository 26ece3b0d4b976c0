#![forbid(unsafe_code)]

//! Incremental parsers, encoders and command tables for the protocols that Cashew speaks.
//!
//! Nothing here does I/O or knows about connections: bytes go in, spans and facts come out.

pub mod memcached;
pub mod redis;
pub mod resp;
mod span;

pub use span::Span;
