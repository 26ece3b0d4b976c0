//! Moves bytes between sockets and whoever handles them, and knows nothing of protocols.
//!
//! A [`Driver`] reports what happened to a [`Handler`] from inside [`Driver::wait`], one tick at a
//! time, and writes what the handler has when told to by [`Driver::send`] and [`Driver::flush`].
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used))]

mod epoll;
#[allow(unsafe_code)]
mod low_water;
#[allow(unsafe_code)]
mod precise;
#[allow(unsafe_code)]
mod ring;
mod socket;
mod uring;

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

pub use epoll::EpollDriver;
pub use uring::{Refusal, UringDriver};

/// Names a connection. The handler chooses it: bits 0..31 index into one of two dense tables and
/// stay below 2^30, bit 31 is the table, bits 32..64 a generation that tells successive users of an
/// index apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

impl Token {
    fn table(self) -> usize {
        (self.0 >> 31 & 1) as usize
    }

    fn index(self) -> usize {
        (self.0 & 0x7fff_ffff) as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Where to connect to.
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
    /// No port of this machine is free to connect from, or it has no address to connect from.
    NoPort,
    /// This machine does not let this process connect there.
    Forbidden,
    /// This machine makes no such sockets.
    NoSocket,
}

impl CloseKind {
    /// Whether it says something of this machine only, and nothing of the peer.
    pub fn is_local(self) -> bool {
        match self {
            Self::Refused | Self::Reset | Self::TimedOut | Self::Unreachable => false,
            Self::Exhausted | Self::NoMemory | Self::NoPort | Self::Forbidden | Self::NoSocket => {
                true
            }
        }
    }
}

/// Whoever the driver works for.
pub trait Handler {
    /// A wait is over: what follows happened by now.
    fn woken(&mut self);
    /// A client connected. Its token, or what it is told before it is closed at once, so that it
    /// does not keep its descriptor until others have been heard.
    fn accepted(&mut self, listener: u32) -> Result<Token, &'static [u8]>;
    /// Out of descriptors: clients wait to be accepted until some are free.
    fn accept_blocked(&mut self, listener: u32);
    fn connected(&mut self, conn: Token);
    /// Bytes arrived; never none. The handler may take the buffer away, or leave it and what is in
    /// it to be overwritten.
    fn received(&mut self, conn: Token, bytes: &mut Vec<u8>);
    /// A buffer in place of one that was taken, empty, of at least this capacity.
    fn buffer(&mut self, capacity: usize) -> Vec<u8>;
    /// The peer will send nothing more. Reported by a later wait than its last bytes, so that what
    /// these led to can be written before the end has consequences.
    fn read_closed(&mut self, conn: Token);
    /// The driver has let go of the connection, as [`Driver::detach`] told it to: its socket, and
    /// the token is free. What was received has been reported, what was not sent stays with the
    /// handler.
    fn detached(&mut self, conn: Token, socket: OwnedFd);
    /// The connection is gone, its descriptor closed, the token free.
    fn closed(&mut self, conn: Token, why: CloseKind);
    /// A descriptor given to [`Driver::watch`] can be read.
    fn readable(&mut self, watch: u32);
    /// The first piece of what is to be written, empty if there is nothing, and whether there is
    /// more behind it.
    fn front(&self, conn: Token) -> (&[u8], bool);
    /// Fills `slices` with the start of what is to be written and returns how many it filled.
    fn output<'a>(&'a self, conn: Token, slices: &mut [IoSlice<'a>]) -> usize;
    /// So many bytes of the output are in the kernel's hands.
    fn sent(&mut self, conn: Token, bytes: u64);
}

/// What every way of moving bytes must do; `tests/contract.rs` says it in code.
pub trait Driver {
    /// The most bytes of a connection that are reported behind the read for which it is to be
    /// paused: by the same wait, and by later ones after [`Driver::pause`].
    const LATE_MAX: u64;

    /// Accepts from a listening, non-blocking socket from now on. Connections inherit the socket's
    /// options; TCP_NODELAY should be among them.
    fn listen(&mut self, listener: u32, socket: OwnedFd) -> io::Result<()>;

    /// Accepts nothing more from the sockets that go by this number, and lets go of them. With
    /// `drain`, those who wait there already are accepted first, 65,536 at most. Whom the kernel
    /// has accepted is reported here and now. Only if `drain` finds no descriptor free are more
    /// reported later, and the socket is let go of when nobody waits there any more.
    fn unlisten(&mut self, listener: u32, drain: bool, handler: &mut impl Handler);

    /// Accepts nothing more. The sockets are let go of, which closes them only if nobody else has
    /// them.
    fn stop_listening(&mut self);

    /// Reports [`Handler::readable`] while the descriptor can be read. It must stay open.
    fn watch(&mut self, watch: u32, descriptor: BorrowedFd<'_>) -> io::Result<()>;

    /// Ends what [`Driver::watch`] began.
    fn unwatch(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()>;

    /// Starts to connect; [`Handler::connected`] or [`Handler::closed`] follows, unless this fails
    /// at once.
    fn connect(&mut self, conn: Token, address: &Address) -> Result<(), CloseKind>;

    /// Takes a connection that was accepted elsewhere, as if it had been accepted here. What can
    /// be read already is reported, and so is the end if the peer sends nothing more.
    fn adopt(&mut self, conn: Token, socket: OwnedFd) -> io::Result<()>;

    /// Lets go of a connection that was accepted or adopted: [`Handler::detached`] follows, perhaps
    /// in a later wait, or [`Handler::closed`] if it broke before. Until then bytes may still be
    /// reported, even if it is paused, but nothing is sent.
    fn detach(&mut self, conn: Token);

    /// Closes the connection, after what has been written; nothing is reported about it any more.
    fn close(&mut self, conn: Token);

    /// Reads no more of the connection until [`Driver::resume`]. What has been read is still reported,
    /// up to [`Driver::LATE_MAX`]; the end is not.
    fn pause(&mut self, conn: Token);

    fn resume(&mut self, conn: Token);

    /// Bytes of the connection need not be reported before so many are there or the kernel's buffer
    /// is full; its end is, as ever. For every connection this is 1 at first. A hint, which keeps the
    /// kernel from waking this process for less: more may be reported, and over a Unix socket is.
    fn set_low_water(&mut self, conn: Token, bytes: u32);

    /// What came on the connection so far is acknowledged to its peer now, without waiting for a
    /// reply that could carry that.
    fn acknowledge(&mut self, conn: Token);

    /// The connection's descriptor, to ask the kernel about it and for nothing else.
    fn descriptor(&self, conn: Token) -> Option<BorrowedFd<'_>>;

    /// The connection's output is to be written: here and now, or by the next [`Driver::flush`],
    /// together with that of others. What does not go then follows by itself when the peer has
    /// read.
    fn send(&mut self, conn: Token, handler: &mut impl Handler);

    /// Writes as much as goes of what [`Driver::send`] was called for, and reports how far that
    /// came. Call it before what is sent has to be seen, and before waiting.
    fn flush(&mut self, handler: &mut impl Handler);

    /// Bytes of its own buffers that went back to the allocator since the last call.
    fn take_released(&mut self) -> usize;

    /// Waits for something to happen, at most for `timeout` (`None`: without end), and reports it.
    ///
    /// When 128 KiB have been reported, by reads of which the last may bring 65 KiB more, the rest of
    /// what it found is left to the next calls, which return at once and look for nothing else: so what
    /// came first can be written while the rest is read. See [`Driver::is_behind`].
    fn wait(&mut self, timeout: Option<Duration>, handler: &mut impl Handler) -> io::Result<()>;

    /// Whether the last [`Driver::wait`] has left something that it found to the next one.
    fn is_behind(&self) -> bool;
}
