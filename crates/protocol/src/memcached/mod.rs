//! The protocols of memcached 1.6: text with its meta commands here, binary in [`binary`].
//!
//! Requests are parsed in place and resumed without rescanning; replies are scanned as a stream and
//! not stored here. Requests that the server would refuse are refused here with its errors, because
//! a forwarded request must never make a server close or lose its place on a shared connection.

mod answer;
mod base64;
pub mod binary;
mod cas_tags;
mod forms;
mod key_name;
mod key_prefix;
mod meta;
mod number;
mod plain;
mod policy;
mod refusal;
mod reply;
mod request;
mod stats;
mod values;
mod verb;
mod words;

pub use answer::{Answer, is_unknown_set};
pub use base64::{KeyBuf, decode_key, encode_key};
pub use cas_tags::{Tag, Tagger, Uniques, retagged_header, write_untagged};
pub use forms::knows_statistics;
pub use key_name::{can_name_key, is_plain_key, write_delete};
pub use key_prefix::{KEY_PREFIX_MAX, KeyStripper, write_packet_with_prefix};
pub use meta::{Meta, write_meta_miss};
pub use plain::{
    PlainRequest, plain_block, plain_class, plain_key, plain_reply, plain_request,
    plain_value_head, plain_values,
};
pub use policy::{ChorePolicy, chores};
pub use reply::{Expect, REPLY_LINE_SIZE_MAX, ReplyScanner, Reticence, Scan, is_error};
pub use request::{COMMAND_SIZE_MAX, MULTIGET_SIZE_MAX, Parsed, RequestParser, VALUE_SIZE_LIMIT};
pub use stats::{Stat, Stats};
pub use values::{Value, Values, value_key};
pub use verb::Verb;
pub use words::{next_word, words};

/// Longest key of memcached.
pub const KEY_SIZE_MAX: usize = 250;
/// The first byte of a binary request; no text command starts with it.
pub const BINARY_REQUEST: u8 = 0x80;
