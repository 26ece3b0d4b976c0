//! One child as the master sees it: its slot, the child that holds it now, and the mail that the
//! child has yet to take.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use cashew_control::frozen::Frozen;
use cashew_control::{
    MasterChannel, ReceiveError, SESSION_VERSION, SendError, Session, ToChild, ToMaster, VERSION,
};
use rustix::process::{Pid, Signal};
use tracing::{error, warn};

use crate::child::{Child, Role};
use crate::slots::Slot;
use crate::state::{ChildState, MemberState, Pack, Unpack};
use crate::watchdog::Hang;

/// Letters that wait for a child that does not read: what need not be said is not said then.
const BACKLOG_MAX: usize = 64;

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
    /// Sent, and not confirmed: nobody serves them yet.
    unconfirmed: VecDeque<Waiting>,
    /// The outbox holds no more: who leaves that much unread is wedged.
    outbox_max: usize,
    /// What it gave as its reason to end.
    pub(crate) failed: Option<String>,
    pub(crate) is_ready: bool,
    /// It has handed sessions over, and may go on to.
    pub(crate) hands_over: bool,
    /// Whether it hands none over while there is nobody to take them.
    keeping: Keeping,
    /// What it speaks, which may be of another version than this program.
    control_version: u8,
    pub(crate) session_version: u32,
    /// Whether it counts in the metrics in use: one that another version started may not.
    pub(crate) counts: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeping {
    No,
    Asked,
    Confirmed,
}

/// A session on its way, with what comes along.
pub(crate) type Waiting = (Session, Vec<Rc<OwnedFd>>);

pub(crate) struct Letter {
    pub(crate) message: ToChild,
    pub(crate) descriptors: Vec<Rc<OwnedFd>>,
}

impl Letter {
    fn into_session(self) -> Option<Waiting> {
        match self.message {
            ToChild::Adopt { session } => Some((session, self.descriptors)),
            _ => None,
        }
    }
}

impl Member {
    pub(crate) fn new(role: Role, rank: u32, now: Instant) -> Self {
        Self { role, rank, generation: 0, slot: Slot::new(now), running: None, restarts: 0 }
    }

    pub(crate) fn post(&mut self, letter: Letter, now: Instant) {
        let Some(running) = &mut self.running else { return };
        // What another version would not understand is nothing that it needs.
        let is_foreign = running.is_foreign() && !letter.message.is_frozen();
        if running.channel.is_none() || is_foreign {
            return;
        }
        if running.outbox.len() >= running.outbox_max {
            self.condemn("it does not read what it is told", now);
            return;
        }
        running.outbox.push_back(letter);
        self.flush(now);
    }

    /// Whether it can be asked about its clients.
    pub(crate) fn is_answering(&self) -> bool {
        self.running.as_ref().is_some_and(|running| {
            running.is_ready && running.channel.is_some() && !running.is_foreign()
        })
    }

    /// Whether it reads what it is told: not much of that waits.
    pub(crate) fn reads(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.outbox.len() < BACKLOG_MAX)
    }

    /// Sends as much as the channel takes.
    pub(crate) fn flush(&mut self, now: Instant) {
        let Some(running) = &mut self.running else { return };
        let Some(channel) = &running.channel else { return };
        while let Some(letter) = running.outbox.front() {
            let descriptors: Vec<_> = letter.descriptors.iter().map(|fd| fd.as_fd()).collect();
            match channel.send(&letter.message, &descriptors) {
                Ok(()) => running
                    .unconfirmed
                    .extend(running.outbox.pop_front().and_then(Letter::into_session)),
                Err(SendError::WouldBlock) => return,
                // What it said before is still to be read.
                Err(SendError::Closed) => return self.slot.doomed(now),
                Err(error) => return self.condemn(&error.to_string(), now),
            }
        }
    }

    /// The next message with its descriptors, `None` in their place if they are lost.
    pub(crate) fn receive(&mut self, now: Instant) -> Option<(ToMaster, Option<Vec<OwnedFd>>)> {
        let running = self.running.as_mut()?;
        let channel = running.channel.as_mut()?;
        match channel.receive() {
            Ok(Some((message, _))) if channel.is_stripped() => {
                error!("{} has sent what there is no free descriptor for", self.role);
                Some((message, None))
            }
            Ok(message) => message.map(|(message, descriptors)| (message, Some(descriptors))),
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
        running.hang_up();
        running.child.signal(Signal::ABORT);
        self.slot.aborted(now);
    }

    /// Has it killed for not getting on.
    pub(crate) fn end_hang(&mut self, hang: Hang, now: Instant) {
        let Some(running) = &mut self.running else { return };
        if hang == Hang::Stopped {
            // It would not take SIGABRT before it goes on.
            error!("{} ({}) is killed: {hang}", self.role, running.child);
            running.hang_up();
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

    /// For another program to go on with.
    pub(crate) fn state(&self, pack: &mut Pack, now: Instant) -> io::Result<MemberState> {
        let child = self.running.as_ref().map(|running| running.state(pack)).transpose()?.flatten();
        Ok(MemberState {
            slot: match self.role {
                Role::Worker { slot } => Some(slot),
                Role::Admin => None,
            },
            rank: self.rank,
            generation: self.generation,
            restarts: self.restarts,
            retire_within_ms: self.slot.retire_within(now).map(|left| left.as_millis() as u64),
            child,
        })
    }

    /// `None` for one who was to go and is gone.
    pub(crate) fn resume(
        state: MemberState,
        descriptors: &Unpack,
        now: Instant,
    ) -> Result<Option<Self>, String> {
        let mut member = Self {
            generation: state.generation,
            restarts: state.restarts,
            ..Self::new(state.role(), state.rank, now)
        };
        match (state.child, state.retire_within_ms) {
            (None, None) => {}
            (None, Some(_)) => return Ok(None),
            (Some(child), retire_within_ms) => {
                member.running = Some(Running::resume(child, descriptors)?);
                member.slot.spawned(now);
                member.slot.ready(now);
                if let Some(left) = retire_within_ms {
                    member.slot.retire(now + Duration::from_millis(left));
                }
            }
        }
        Ok(Some(member))
    }

    /// The metrics in use are others from now on.
    pub(crate) fn lose_count(&mut self) {
        if let Some(running) = &mut self.running {
            running.counts = false;
        }
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
            unconfirmed: VecDeque::new(),
            outbox_max,
            failed: None,
            is_ready: false,
            hands_over: false,
            keeping: Keeping::No,
            control_version: VERSION,
            session_version: SESSION_VERSION,
            counts: true,
        }
    }

    /// `None` when it will not be heard of any more.
    fn state(&self, pack: &mut Pack) -> io::Result<Option<ChildState>> {
        let (Some((pid, pidfd)), Some(channel)) = (self.child.process(), &self.channel) else {
            return Ok(None);
        };
        Ok(Some(ChildState {
            pid: pid.as_raw_pid(),
            pidfd: pack.put(&pidfd),
            channel: pack.put_copy(channel)?,
            control_version: self.control_version,
            session_version: self.session_version,
            counts: self.counts,
        }))
    }

    fn resume(state: ChildState, descriptors: &Unpack) -> Result<Self, String> {
        let pid = Pid::from_raw(state.pid).ok_or("a process has the id 0")?;
        let child = Child::inherited(pid, descriptors.copy(state.pidfd)?);
        let channel = descriptors.copy(state.channel)?;
        Ok(Self {
            is_ready: true,
            control_version: state.control_version,
            session_version: state.session_version,
            counts: state.counts,
            ..Self::new(child, MasterChannel::speaking(channel, state.control_version), 0)
        })
    }

    /// Whether it speaks another version.
    pub(crate) fn is_foreign(&self) -> bool {
        self.control_version != VERSION
    }

    /// On top of what waits already.
    pub(crate) fn set_outbox_max(&mut self, outbox_max: usize) {
        self.outbox_max = self.outbox.len() + outbox_max;
    }

    /// How many messages it has yet to take, and sessions to confirm. `None` when it will never take
    /// any.
    pub(crate) fn mail(&self) -> Option<usize> {
        self.channel.is_some().then_some(self.outbox.len() + self.unconfirmed.len())
    }

    /// As [`Running::mail`], also of one that will never take any.
    pub(crate) fn sent(&self) -> usize {
        self.outbox.len() + self.unconfirmed.len()
    }

    /// Whether it is still to say that it has taken a session over.
    pub(crate) fn has_unconfirmed(&self) -> bool {
        !self.unconfirmed.is_empty()
    }

    /// How many descriptors there are for it of sessions.
    pub(crate) fn session_descriptors(&self) -> usize {
        let is_session = |letter: &&Letter| matches!(letter.message, ToChild::Adopt { .. });
        let waiting = self.outbox.iter().filter(is_session).map(|it| it.descriptors.len());
        let sent = self.unconfirmed.iter().map(|(_, descriptors)| descriptors.len());
        waiting.chain(sent).sum()
    }

    /// It is to hand nothing over. Whether it is still to be told so.
    pub(crate) fn keep(&mut self) -> bool {
        let is_news = self.keeping == Keeping::No;
        if is_news {
            self.keeping = Keeping::Asked;
        }
        is_news
    }

    /// What it said before was its last session.
    pub(crate) fn kept(&mut self) {
        if self.keeping == Keeping::Asked {
            self.keeping = Keeping::Confirmed;
        }
    }

    /// It may hand sessions over again.
    pub(crate) fn let_go(&mut self) {
        self.keeping = Keeping::No;
    }

    /// Whether no session is to be expected of it.
    pub(crate) fn keeps(&self) -> bool {
        self.keeping == Keeping::Confirmed
    }

    /// It has taken over the first of the sessions that were sent.
    pub(crate) fn adopted(&mut self) {
        self.unconfirmed.pop_front();
    }

    /// Nothing that it says is heard any more, so it may have taken over all that was sent.
    fn hang_up(&mut self) {
        self.channel = None;
        self.unconfirmed.clear();
    }

    /// The child, and the sessions that it has not taken over, when it is dead and all that it said
    /// was heard.
    pub(crate) fn into_parts(self) -> (Child, Vec<Waiting>) {
        let unsent = self.outbox.into_iter().filter_map(Letter::into_session);
        (self.child, self.unconfirmed.into_iter().chain(unsent).collect())
    }

    /// The channel while it is open, and whether there is mail to send.
    pub(crate) fn channel(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.channel.as_ref().map(|channel| (channel.as_fd(), !self.outbox.is_empty()))
    }
}
