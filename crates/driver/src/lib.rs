//! Moves bytes between sockets and a handler, and knows nothing of protocols.
//!
//! A [`Driver`] reports events to a [`Handler`] from inside [`Driver::wait`], one tick at a time.
//! It writes the handler's output when [`Driver::send`] and [`Driver::flush`] are called.
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used))]

mod epoll;
#[allow(unsafe_code)]
mod give_up;
#[allow(unsafe_code)]
mod low_water;
#[allow(unsafe_code)]
mod precise;
#[allow(unsafe_code)]
mod ring;
mod secured;
mod socket;
mod uring;

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use cashew_protocol::proxy;
use cashew_tls::{Acceptor, Facts, Failure};

pub use cashew_protocol::proxy::Header as ProxyHeader;
pub use epoll::EpollDriver;
pub use secured::{Luggage, Secured};
pub use uring::{Refusal, UringDriver};

/// Tables of connections: see [`Token`].
const TABLES: usize = 4;

/// Identifies a connection. The handler chooses it: bits 0..30 are an index into one of four dense
/// tables and stay below 2^29, bits 30 and 31 are the table, bits 32..64 are a generation that distinguishes
/// successive users of an index. Connections to servers have bit 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

impl Token {
    fn table(self) -> usize {
        (self.0 >> 30 & 3) as usize
    }

    fn index(self) -> usize {
        (self.0 & 0x3fff_ffff) as usize
    }

    fn leads_to_server(self) -> bool {
        self.0 & 1 << 31 != 0
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseKind {
    Refused,
    Reset,
    TimedOut,
    Unreachable,
    /// This process, or the system, is out of descriptors.
    Exhausted,
    /// The kernel has no memory for it.
    NoMemory,
    /// No local port is free for the connection, or there is no local address for it.
    NoPort,
    /// This machine does not allow the connection.
    Forbidden,
    /// This machine does not support such sockets.
    NoSocket,
    /// It could not be secured.
    Insecure(Failure),
    /// It was to begin with a header that tells whose it is.
    Unintroduced(Unintroduced),
}

/// Why a connection that was to begin with a header of the PROXY protocol is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unintroduced {
    /// What came is no header.
    Malformed,
    TimedOut,
    /// The peer left before it sent anything.
    Closed,
    /// The handler does not take such a client.
    Refused,
}

impl CloseKind {
    /// Whether the cause is this machine and not the peer.
    pub fn is_local(self) -> bool {
        match self {
            Self::Refused
            | Self::Reset
            | Self::TimedOut
            | Self::Unreachable
            | Self::Insecure(_)
            | Self::Unintroduced(_) => false,
            Self::Exhausted | Self::NoMemory | Self::NoPort | Self::Forbidden | Self::NoSocket => {
                true
            }
        }
    }
}

/// The driver's user.
pub trait Handler {
    /// A wait is over: the events that follow have happened by now.
    fn woken(&mut self);
    /// A client connected. Returns its token, or an error message that is sent before the
    /// connection is closed at once. So a refused client does not keep its descriptor while others
    /// are accepted.
    fn accepted(&mut self, listener: u32, socket: BorrowedFd<'_>) -> Result<Token, &'static [u8]>;
    /// How long the header may take that such a connection begins with; `None` if it begins with none.
    fn header_timeout(&self, _listener: u32, _socket: BorrowedFd<'_>) -> Option<Duration> {
        None
    }
    /// The header has come, before anything else; the connection `will_be_secured`, or is plain. An error message is
    /// sent before the connection is closed.
    ///
    /// # Errors
    /// If such a client is not taken.
    fn introduced(
        &mut self,
        _conn: Token,
        _header: proxy::Header,
        _will_be_secured: bool,
    ) -> Result<(), &'static [u8]> {
        Ok(())
    }
    /// Out of descriptors: clients wait until some are free.
    fn accept_blocked(&mut self, listener: u32);
    fn connected(&mut self, conn: Token);
    /// Bytes arrived; never none. The handler may take the buffer, or leave it to be overwritten.
    fn received(&mut self, conn: Token, bytes: &mut Vec<u8>);
    /// As [`Handler::received`], where it is rare.
    fn received_late(&mut self, conn: Token, bytes: &mut Vec<u8>) {
        self.received(conn, bytes);
    }
    /// What the clients of the listener are secured with, if they are.
    fn acceptor(&self, _listener: u32) -> Option<&Acceptor> {
        None
    }
    /// The handshake of a secured connection is over. Of one to a server [`Handler::connected`] follows. `_user_names`
    /// are those of a client's certificate that may be its user's.
    fn secured(&mut self, _conn: Token, _facts: Facts, _user_names: &[String]) {}
    /// A replacement for a buffer that was taken, empty, of at least this capacity.
    fn buffer(&mut self, capacity: usize) -> Vec<u8>;
    /// The peer will send nothing more. Reported by a later wait than its last bytes, so that
    /// replies to these can be written before the end has consequences.
    fn read_closed(&mut self, conn: Token);
    /// The connection is detached, after [`Driver::detach`]: here is its socket, and the token is
    /// free. All received bytes have been reported; unsent output stays with the handler.
    fn detached(&mut self, conn: Token, socket: OwnedFd);
    /// The same of a secured connection, with what it takes to go on with it.
    fn detached_secured(&mut self, conn: Token, socket: OwnedFd, _luggage: Luggage) {
        drop(socket);
        self.closed(conn, CloseKind::Reset);
    }
    /// The connection is gone, its descriptor closed, the token free.
    fn closed(&mut self, conn: Token, why: CloseKind);
    /// A descriptor given to [`Driver::watch`] is readable.
    fn readable(&mut self, watch: u32);
    /// The first piece of the output, empty if there is none, and whether there is more after it.
    fn front(&self, conn: Token) -> (&[u8], bool);
    /// Fills `slices` with the start of the output and returns how many it filled.
    fn output<'a>(&'a self, conn: Token, slices: &mut [IoSlice<'a>]) -> usize;
    /// The kernel has taken so many bytes of the output.
    fn sent(&mut self, conn: Token, bytes: u64);
}

/// What every driver must do; `tests/contract.rs` tests it.
pub trait Driver {
    /// The most bytes of a connection that are reported after the read for which it is to be
    /// paused: by the same wait, and by later ones after [`Driver::pause`].
    const LATE_MAX: u64;

    /// Accepts from a listening, non-blocking socket from now on. Connections inherit the socket's
    /// options; TCP_NODELAY should be set.
    fn listen(&mut self, listener: u32, socket: OwnedFd) -> io::Result<()>;

    /// Stops accepting from the sockets of this number and releases them. Connections that already
    /// wait are accepted first, 65,536 at most: the kernel wakes one process for a connection, and
    /// if that was this one, no other that holds the socket would look. All are reported within
    /// this call. Only with `drain`, if there is no free descriptor, are more reported later; the
    /// socket is then released when none waits any more.
    fn unlisten(&mut self, listener: u32, drain: bool, handler: &mut impl Handler);

    /// Stops accepting and releases the sockets. This closes them only if no other process has
    /// them.
    fn stop_listening(&mut self);

    /// Reports [`Handler::readable`] while the descriptor is readable: once until [`Driver::is_behind`] is false, so that
    /// whoever reads it then does not wait. It must stay open.
    fn watch(&mut self, watch: u32, descriptor: BorrowedFd<'_>) -> io::Result<()>;

    /// Ends [`Driver::watch`].
    fn unwatch(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()>;

    /// Starts to connect; [`Handler::connected`] or [`Handler::closed`] follows, unless this fails
    /// at once.
    fn connect(&mut self, conn: Token, address: &Address) -> Result<(), CloseKind>;

    /// Adopts a connection that was accepted elsewhere, as if it had been accepted here. Waiting
    /// bytes are reported, and so is the end if the peer sends nothing more.
    fn adopt(&mut self, conn: Token, socket: OwnedFd) -> io::Result<()>;

    /// Detaches a connection that was accepted or adopted: [`Handler::detached`] follows, possibly
    /// in a later wait, or [`Handler::closed`] if it broke before. Until then bytes may still be
    /// reported, even if it is paused, but nothing is sent.
    fn detach(&mut self, conn: Token);

    /// Closes the connection after the bytes already written; nothing is reported about it any
    /// more.
    fn close(&mut self, conn: Token);

    /// Before a connection to a server is closed: what its peer has not acknowledged by then is not sent again, and
    /// what it had no room for is not sent at all. A peer that cannot be reached, or hangs, would otherwise get it
    /// much later, when others have said something else.
    fn give_up(&mut self, conn: Token);

    /// Stops reading from the connection until [`Driver::resume`]. Bytes read already are still
    /// reported, up to [`Driver::LATE_MAX`]; the end is not.
    fn pause(&mut self, conn: Token);

    fn resume(&mut self, conn: Token);

    /// Bytes of the connection need not be reported before this many are there or the kernel's
    /// buffer is full; its end is reported as usual. The initial value is 1. This is a hint that
    /// saves wake-ups: more may be reported, and always is over a Unix socket.
    fn set_low_water(&mut self, conn: Token, bytes: u32);

    /// Acknowledges the bytes received so far at once, without waiting for a reply that could carry
    /// the acknowledgement.
    fn acknowledge(&mut self, conn: Token);

    /// The connection's descriptor, only for querying the kernel about it.
    fn descriptor(&self, conn: Token) -> Option<BorrowedFd<'_>>;

    /// Requests that the connection's output be written: now, or by the next [`Driver::flush`]
    /// together with that of others. The rest is written by itself when the peer has read.
    fn send(&mut self, conn: Token, handler: &mut impl Handler);

    /// Writes as much as possible for the connections of [`Driver::send`], and reports the
    /// progress. Call it before the output has to be visible, and before waiting.
    fn flush(&mut self, handler: &mut impl Handler);

    /// Bytes of its own buffers returned to the allocator since the last call.
    fn take_released(&mut self) -> usize;

    /// Waits for events, at most for `timeout` (`None`: without limit), and reports them.
    ///
    /// After 128 KiB have been reported, plus up to 65 KiB of the last read, the remaining events
    /// are left to the next calls, which return at once and fetch no others. So replies to the
    /// first bytes can be written while the rest is read. See [`Driver::is_behind`].
    fn wait(&mut self, timeout: Option<Duration>, handler: &mut impl Handler) -> io::Result<()>;

    /// Whether the last [`Driver::wait`] has left events to the next one.
    fn is_behind(&self) -> bool;
}
