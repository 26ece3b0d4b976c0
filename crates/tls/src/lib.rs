//! TLS beneath the engine: a transform of bytes between a socket and its user, and what it is configured with.
//!
//! A [`Stream`] is one connection's state. It holds no socket and no clock: bytes of the peer go in, plaintext and
//! bytes for the peer come out. [`Acceptor`] and [`Connector`] make streams; they are built once per configuration.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used))]

mod acceptor;
mod certificate;
mod connector;
mod failure;
mod moved;
mod options;
mod provider;
mod secured;
mod stream;
mod tickets;

pub use acceptor::Acceptor;
pub use certificate::{Certificate, Unusable};
pub use connector::Connector;
pub use failure::Failure;
pub use moved::Parted;
pub use options::{
    Ciphers, ClientAuth, ClientNames, ClientUser, Identity, ListenerTls, ServerTls, Version,
};
pub use secured::{SecuredSocket, Security};
pub use stream::{Facts, Progress, Stream};
pub use tickets::{TICKET_PERIOD, TicketSecret};
