//! The text protocol of memcached, as version 1.6 speaks it.
//!
//! Requests are parsed in place and resumed without rescanning; replies are scanned as a stream
//! and kept by nobody here. What the server would refuse is refused here in its words, because a
//! forwarded request must never make a server close or lose its place on a shared connection.

mod number;
mod plain;
mod reply;
mod request;
mod values;

pub use plain::{PlainRequest, plain_reply, plain_request};
pub use reply::{Expect, REPLY_LINE_SIZE_MAX, ReplyScanner, Scan, is_error};
pub use request::{
    COMMAND_SIZE_MAX, MULTIGET_SIZE_MAX, Parsed, RequestParser, VALUE_SIZE_LIMIT, Verb,
};
pub use values::{Value, Values};

/// Longest key that memcached takes.
pub const KEY_SIZE_MAX: usize = 250;
