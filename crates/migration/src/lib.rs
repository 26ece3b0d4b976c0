//! Moves: one pool is copied to another while clients go on, and the copy is kept in step.
//!
//! # How it cannot go wrong
//!
//! While pool A serves, A is the truth and nobody but the copier writes to B. So there is no race between what clients
//! write to B and what is copied there, and no order of two servers to be kept.
//!
//! - **Of Redis** each primary of A tells the names of all keys that change (`CLIENT TRACKING ON BCAST`), whoever
//!   changed them and however: scripts, transactions, expiry. The copier is told *before* it walks over the keys, and
//!   reads a key anew after each time that it is told. One thread copies all keys of a primary, one batch after the
//!   other, so a copy that was read earlier never arrives later.
//! - **memcached** has no such feed that loses nothing. Its items have a unique that changes whenever an item does. A
//!   *pass* lists all keys with it (`lru_crawler metadump hash`), and copies those whose unique or time of expiry is
//!   another one than that of the copy.
//! - **Whatever is lost is done again.** If a connection to A or B ends, the feed may have a hole, and what was sent
//!   may have arrived or not: the walk begins from the start, and what B has that A has not is removed first.
//! - **What no feed tells** is done again at the end: who has read what of a stream, and functions. An emptied copy is
//!   seen by a feed of its own, which tells of flushes and losses.
//! - **What cannot be read is not gone.** A key is removed only if the source says that it is not there.
//! - **Cutting over** is a change of the epoch. All workers pause the two pools until nothing is on its way. Then the
//!   copier proves that it has seen everything: of Redis two PINGs in a row come back on the feed, of memcached a pass
//!   finds nothing. Only then do workers go on, with B. From there on B is the truth, and the copier goes the other
//!   way. It listens to B before the first client writes there. So rolling back is the same thing once more.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used))]

mod apart;
mod bucket;
mod carrier;
mod feed;
mod job;
mod link;
mod memcached;
mod migrator;
mod redis;
mod reply;
mod side;
mod value;

pub use carrier::{Carriage, Carrier, Refusal};
pub use job::MoveStatus;
pub use migrator::{HAS_BEGUN, Migrator, Task, tasks};
