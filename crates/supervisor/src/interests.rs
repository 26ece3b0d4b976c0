//! What the master polls: descriptors, each with a name.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

pub(crate) struct Interests<'a, Name> {
    names: Vec<Name>,
    fds: Vec<PollFd<'a>>,
}

impl<'a, Name> Interests<'a, Name> {
    pub(crate) fn new() -> Self {
        Self { names: Vec::new(), fds: Vec::new() }
    }

    /// The death of a peer is reported whatever the flags.
    pub(crate) fn add(&mut self, name: Name, fd: BorrowedFd<'a>, flags: PollFlags) {
        self.names.push(name);
        self.fds.push(PollFd::from_borrowed_fd(fd, flags));
    }

    /// Waits for events. Returns all names that are ready, in the order of adding.
    pub(crate) fn wait(mut self, timeout: Option<Duration>) -> io::Result<Vec<Name>> {
        let timeout = timeout.map(|left| Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(&mut self.fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(errno) => return Err(errno.into()),
        }
        let ready =
            self.names.into_iter().zip(&self.fds).filter(|(_, fd)| !fd.revents().is_empty());
        Ok(ready.map(|(name, _)| name).collect())
    }
}
