//! Signals, as events that the master polls.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use tracing::warn;

/// An operator's order by signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Stop,
    StopNow,
    LevelUp,
    LevelDown,
    LogReopen,
    Reload,
    Upgrade,
}

/// SIGPIPE needs no handling: Rust's runtime ignores it from the start.
pub(crate) struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
}

impl Signals {
    pub(crate) fn new() -> io::Result<Self> {
        let signals = [SIGTERM, SIGINT, SIGTTIN, SIGTTOU, SIGUSR1, SIGHUP, SIGUSR2];
        let (read, write) = UnixStream::pair()?;
        Ok(Self { delivery: SignalDelivery::with_pipe(read, write, SignalOnly, signals)? })
    }

    pub(crate) fn receive(&mut self) -> Vec<Request> {
        self.delivery.pending().map(request).collect()
    }

    /// While signals are held, sends this process again those that were received and not handled,
    /// for the next program.
    pub(crate) fn put_back(&mut self) {
        for signal in self.delivery.pending() {
            let signal = Signal::from_named_raw(signal).expect("it was received");
            if let Err(errno) = kill_process(getpid(), signal) {
                warn!("{signal:?} is lost: {errno}");
            }
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }
}

fn request(signal: i32) -> Request {
    match signal {
        SIGTERM => Request::Stop,
        SIGINT => Request::StopNow,
        SIGTTIN => Request::LevelUp,
        SIGTTOU => Request::LevelDown,
        SIGUSR1 => Request::LogReopen,
        SIGHUP => Request::Reload,
        SIGUSR2 => Request::Upgrade,
        other => unreachable!("signal {other} was not asked for"),
    }
}
