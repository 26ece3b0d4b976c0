//! The messages between master, workers and admin process: small JSON messages, one per datagram of
//! a `SOCK_SEQPACKET` socket pair, with descriptors attached where needed. A closed channel means
//! that the other side died. The snapshot is too big for a message and is passed as a sealed memfd:
//! an [`Epoch`].
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used))]

mod channel;
mod epoch;
pub mod frozen;
mod message;
mod sealed;
mod session;

pub use channel::{
    Channel, DESCRIPTORS_MAX, MESSAGE_BYTES_MAX, ReceiveError, SendError, VERSION, pair,
};
pub use epoch::{Epoch, PoolState};
pub use message::{KeysCarried, MoveAct, Rest, ToChild, ToMaster};
pub use sealed::{SEALED_BYTES_MAX, seal, unseal};
pub use session::{
    PairedSession, SESSION_VERSION, SESSION_VERSION_MIN, SESSION_VERSION_PAIRED,
    SESSION_VERSION_SECURED, SESSION_VERSION_TRACKING, SecuredSession, Session, TrackingSession,
};

/// The master's end of the channel to one child.
pub type MasterChannel = Channel<ToChild, ToMaster>;

/// A child's end, which it finds as its standard input.
pub type ChildChannel = Channel<ToMaster, ToChild>;
