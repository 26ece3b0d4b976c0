//! The invalidation spool: keys that servers could not be told to forget are kept on disk, and told them
//! when they are back.
//!
//! Workers queue records ([`channel`]); a thread of each writes them to segments of its own ([`write`]). A
//! replayer, one for the instance, reads all segments and has the servers forget what is in them ([`Replayer`]).
//! In memory that all processes share, a server is held from the moment something is queued until it has
//! forgotten everything: see [`cashew_metrics::Segments::note_spooled`].
//!
//! # Files
//!
//! `DIRECTORY/POOL/SERVER/TIME-PID-NUMBER.spool`, where the time is in milliseconds since 1970, so that names
//! are in the order of the segments. A segment begins with [`MAGIC`] and has records: the length of what
//! follows the next four bytes, its CRC-32, then the time in milliseconds since 1970 (8 bytes), the database
//! (4), and the key; numbers have their least significant byte first. A segment that is written or removed is
//! locked (flock). What is torn at the end of one, since the writer was killed, is no record.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used))]

mod channel;
mod forget;
mod record;
mod replay;
mod segment;
mod write;

#[doc(hidden)]
pub use record::read_records;

pub use channel::{Incoming, Place, QUEUE_MAX, Queue, channel};
pub use replay::{Replayer, Target, mark_leftovers, targets};
pub use segment::MAGIC;
pub use write::write;
