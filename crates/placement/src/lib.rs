//! Which server a key belongs to: twemproxy's hashes, hash tags and rings, bit for bit.
//!
//! Everything here is a pure function of its arguments. Nothing allocates after a ring is built.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used))]

mod hash;
mod md5;
mod ring;
mod slot;
mod tag;

pub use hash::Hash;
pub use ring::{Distribution, Node, Ring, SHARE_WHOLE, server_order};
pub use slot::{SLOTS, slot_of};
pub use tag::HashTag;
