//! What must hold whatever bytes come from outside: the bodies of the fuzz targets.
//!
//! Each module has one function that takes bytes and panics if something does not hold. `fuzz/run` looks for such
//! bytes, guided by coverage; the test `seeds` plays what `fuzz/seeds` has of earlier searches on every push.
#![forbid(unsafe_code)]

pub mod config;
pub mod discovery;
pub mod engine;
pub mod files;
pub mod foreign;
pub mod memcached_binary;
pub mod memcached_reply;
pub mod memcached_request;
pub mod messages;
pub mod operators;
#[path = "../../protocol/tests/pieces/mod.rs"]
mod pieces;
pub mod placement;
pub mod redis_command;
pub mod resp_reply;
pub mod resp_request;
pub mod sources;
pub mod state_files;

use pieces::{Step, ends, feed};

/// A target's name, and what it does with bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All targets, as `fuzz/fuzz_targets` has them.
pub const TARGETS: &[Target] = &[
    ("config", config::judge),
    ("discovery", discovery::read),
    ("engine", engine::play),
    ("files", files::read),
    ("foreign", foreign::play),
    ("memcached_binary", memcached_binary::read),
    ("memcached_reply", memcached_reply::scan),
    ("memcached_request", memcached_request::read),
    ("messages", messages::read),
    ("operators", operators::read),
    ("placement", placement::place),
    ("redis_command", redis_command::look_up),
    ("resp_reply", resp_reply::scan),
    ("resp_request", resp_request::read),
    ("sources", sources::read),
    ("state_files", state_files::read),
];

/// All of it at once.
const WHOLE: &[usize] = &[usize::MAX];
/// One byte after the other.
const BYTES: &[usize] = &[1];

/// Bytes at the start of a test case that choose the sizes of the pieces.
const CUTS: usize = 8;

/// Splits a test case into the sizes of pieces and the input that arrives in them.
fn split(data: &[u8]) -> (Vec<usize>, &[u8]) {
    let (sizes, input) = data.split_at(data.len().min(CUTS));
    (sizes.iter().map(|&size| usize::from(size) + 1).collect(), input)
}
