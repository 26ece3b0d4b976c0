//! One child as the master sees it: its slot, the child that holds it now, and the mail that the
//! child has yet to take.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use cashew_control::{MasterChannel, ReceiveError, SendError, ToChild, ToMaster};
use rustix::process::Signal;
use tracing::{error, warn};

use crate::child::{Child, Role};
use crate::slots::Slot;
use crate::watchdog::Hang;

pub(crate) struct Member {
    pub(crate) role: Role,
    /// Which share of the work is a worker's; means nothing for the admin.
    pub(crate) rank: u32,
    /// Counts the changes of what only new processes can take on: as of the last start.
    pub(crate) generation: u64,
    pub(crate) slot: Slot,
    pub(crate) running: Option<Running>,
    /// How many were started before the one that holds the slot now.
    pub(crate) restarts: u64,
}

pub(crate) struct Running {
    pub(crate) child: Child,
    /// `None` once it is closed.
    channel: Option<MasterChannel>,
    outbox: VecDeque<Letter>,
    /// The outbox holds no more: who leaves that much unread is wedged.
    outbox_max: usize,
    /// What it gave as its reason to end.
    pub(crate) failed: Option<String>,
    pub(crate) is_ready: bool,
    /// It has handed sessions over, and may go on to.
    pub(crate) hands_over: bool,
}

pub(crate) struct Letter {
    pub(crate) message: ToChild,
    pub(crate) descriptors: Vec<Rc<OwnedFd>>,
}

impl Member {
    pub(crate) fn new(role: Role, rank: u32, now: Instant) -> Self {
        Self { role, rank, generation: 0, slot: Slot::new(now), running: None, restarts: 0 }
    }

    pub(crate) fn post(&mut self, letter: Letter, now: Instant) {
        let Some(running) = &mut self.running else { return };
        if running.channel.is_none() {
            return;
        }
        if running.outbox.len() == running.outbox_max {
            self.condemn("it does not read what it is told", now);
            return;
        }
        running.outbox.push_back(letter);
        self.flush(now);
    }

    /// Sends as much as the channel takes.
    pub(crate) fn flush(&mut self, now: Instant) {
        let Some(running) = &mut self.running else { return };
        let Some(channel) = &running.channel else { return };
        while let Some(letter) = running.outbox.front() {
            let descriptors: Vec<_> = letter.descriptors.iter().map(|fd| fd.as_fd()).collect();
            match channel.send(&letter.message, &descriptors) {
                Ok(()) => {
                    running.outbox.pop_front();
                }
                Err(SendError::WouldBlock) => return,
                Err(SendError::Closed) => return self.closed(now),
                Err(error) => return self.condemn(&error.to_string(), now),
            }
        }
    }

    pub(crate) fn receive(&mut self, now: Instant) -> Option<(ToMaster, Vec<OwnedFd>)> {
        let running = self.running.as_mut()?;
        match running.channel.as_mut()?.receive() {
            Ok(message) => message,
            Err(ReceiveError::Closed) => {
                self.closed(now);
                None
            }
            Err(error) => {
                self.condemn(&error.to_string(), now);
                None
            }
        }
    }

    /// Has it killed for being out of order.
    pub(crate) fn condemn(&mut self, why: &str, now: Instant) {
        let Some(running) = &mut self.running else { return };
        error!("{} ({}) is aborted: {why}", self.role, running.child);
        running.channel = None;
        running.child.signal(Signal::ABORT);
        self.slot.aborted(now);
    }

    /// Has it killed for not getting on.
    pub(crate) fn end_hang(&mut self, hang: Hang, now: Instant) {
        let Some(running) = &mut self.running else { return };
        if hang == Hang::Stopped {
            // It would not take SIGABRT before it goes on.
            error!("{} ({}) is killed: {hang}", self.role, running.child);
            running.channel = None;
            running.child.signal(Signal::KILL);
            self.slot.doomed(now);
        } else {
            self.condemn(&hang.to_string(), now);
        }
    }

    /// `false` when it cannot be killed.
    pub(crate) fn kill(&mut self) -> bool {
        let Some(running) = &self.running else { return true };
        let killed = running.child.signal(Signal::KILL);
        if killed {
            warn!("{} ({}) is killed", self.role, running.child);
        }
        killed
    }

    /// Its end is closed: it is dying.
    fn closed(&mut self, now: Instant) {
        if let Some(running) = &mut self.running {
            running.channel = None;
            self.slot.doomed(now);
        }
    }
}

impl Running {
    pub(crate) fn new(child: Child, channel: MasterChannel, outbox_max: usize) -> Self {
        Self {
            child,
            channel: Some(channel),
            outbox: VecDeque::new(),
            outbox_max,
            failed: None,
            is_ready: false,
            hands_over: false,
        }
    }

    pub(crate) fn set_outbox_max(&mut self, outbox_max: usize) {
        self.outbox_max = outbox_max;
    }

    /// How many messages it has yet to take. `None` when it will never take any.
    pub(crate) fn mail(&self) -> Option<usize> {
        self.channel.is_some().then_some(self.outbox.len())
    }

    /// The child, and what it has not been sent.
    pub(crate) fn into_parts(self) -> (Child, VecDeque<Letter>) {
        (self.child, self.outbox)
    }

    /// The channel while it is open, and whether there is mail to send.
    pub(crate) fn channel(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.channel.as_ref().map(|channel| (channel.as_fd(), !self.outbox.is_empty()))
    }
}
