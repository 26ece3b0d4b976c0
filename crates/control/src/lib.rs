//! What master, workers and admin say to each other: small JSON messages, one per datagram of a
//! `SOCK_SEQPACKET` socket pair, with descriptors attached where a message needs them. A closed
//! channel means that the other side died.
#![forbid(unsafe_code)]

mod message;

pub use message::{ToChild, ToMaster};
