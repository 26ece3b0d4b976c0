//! One child from the master's view: its slot, the child that holds it now, and its unsent
//! messages.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use cashew_control::frozen::Frozen;
use cashew_control::{
    MasterChannel, ReceiveError, SESSION_VERSION, SendError, Session, ToChild, ToMaster, VERSION,
};
use cashew_metrics::EventKind;
use rustix::process::{Pid, Signal};
use tracing::{error, warn};

use crate::child::{Child, Role};
use crate::slots::Slot;
use crate::state::{ChildState, MemberState, Pack, Unpack};
use crate::watchdog::Hang;

/// With this many unsent messages, optional ones are not sent.
const BACKLOG_MAX: usize = 64;

pub(crate) struct Member {
    pub(crate) role: Role,
    /// The worker's rank; means nothing for the admin process.
    pub(crate) rank: u32,
    /// The generation at the last start: it counts changes of options that only new processes
    /// apply.
    pub(crate) generation: u64,
    pub(crate) slot: Slot,
    pub(crate) running: Option<Running>,
    /// How many children held the slot before this one.
    pub(crate) restarts: u64,
}

pub(crate) struct Running {
    pub(crate) child: Child,
    /// `None` once it is closed.
    channel: Option<MasterChannel>,
    outbox: VecDeque<Letter>,
    /// Sessions that were sent and not confirmed: nobody serves them yet.
    unconfirmed: VecDeque<Waiting>,
    /// The outbox holds no more; a child that leaves this much unread is stuck.
    outbox_max: usize,
    /// The reason it gave for ending.
    pub(crate) failed: Option<String>,
    pub(crate) is_ready: bool,
    /// It has handed sessions over, and may do so again.
    pub(crate) hands_over: bool,
    /// Whether it hands nothing over while there is nobody to take it.
    keeping: Keeping,
    /// Its control version, which may differ from this program's.
    control_version: u8,
    pub(crate) session_version: u32,
    /// Whether it counts in the current metrics; a worker of another version may not.
    pub(crate) counts: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeping {
    No,
    Asked,
    Confirmed,
}

/// A session on its way, with its descriptors.
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
        // What another version would not understand is not needed there.
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

    /// Whether it answers queries about its clients.
    pub(crate) fn is_answering(&self) -> bool {
        self.running.as_ref().is_some_and(|running| {
            running.is_ready && running.channel.is_some() && !running.is_foreign()
        })
    }

    /// Whether it reads its messages: few are waiting.
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
                // Its earlier messages are still to be read.
                Err(SendError::Closed) => return self.slot.mark_dying(now),
                Err(error) => return self.condemn(&error.to_string(), now),
            }
        }
    }

    /// The next message with its descriptors, or `None` in their place if they were lost.
    pub(crate) fn receive(&mut self, now: Instant) -> Option<(ToMaster, Option<Vec<OwnedFd>>)> {
        let running = self.running.as_mut()?;
        let channel = running.channel.as_mut()?;
        match channel.receive() {
            Ok(Some((message, _))) if channel.is_stripped() => {
                error!("no free descriptor for a message from {}", self.role);
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

    /// Aborts it for violating the protocol.
    pub(crate) fn condemn(&mut self, why: &str, now: Instant) {
        self.abort((EventKind::WorkerAborted, EventKind::HelperAborted), why, now);
    }

    fn abort(&mut self, kinds: (EventKind, EventKind), why: &str, now: Instant) {
        let role = self.role;
        let Some(running) = &mut self.running else { return };
        error!(
            kind = role.event(kinds.0, kinds.1),
            worker = role.slot(),
            "{role} ({}) is aborted: {why}",
            running.child
        );
        running.hang_up();
        running.child.signal(Signal::ABORT);
        self.slot.aborted(now);
    }

    /// Kills it because it hangs.
    pub(crate) fn end_hang(&mut self, hang: Hang, now: Instant) {
        let (role, kinds) = (self.role, (EventKind::WorkerHung, EventKind::HelperHung));
        let Some(running) = &mut self.running else { return };
        if hang == Hang::Stopped {
            // A stopped process takes SIGABRT only when it continues.
            error!(
                kind = role.event(kinds.0, kinds.1),
                worker = role.slot(),
                "{role} ({}) is killed: {hang}",
                running.child
            );
            running.hang_up();
            running.child.signal(Signal::KILL);
            self.slot.mark_dying(now);
        } else {
            self.abort(kinds, &hang.to_string(), now);
        }
    }

    /// Returns `false` if it cannot be killed.
    pub(crate) fn kill(&mut self) -> bool {
        let Some(running) = &self.running else { return true };
        let killed = running.child.signal(Signal::KILL);
        if killed {
            let role = self.role;
            warn!(
                kind = role.event(EventKind::WorkerKilled, EventKind::HelperKilled),
                worker = role.slot(),
                "{role} ({}) is killed",
                running.child
            );
        }
        killed
    }

    /// State for the next program.
    pub(crate) fn state(&self, pack: &mut Pack, now: Instant) -> io::Result<MemberState> {
        let child = self.running.as_ref().map(|running| running.state(pack)).transpose()?.flatten();
        Ok(MemberState {
            slot: match self.role {
                Role::Worker { slot } => Some(slot),
                Role::Admin | Role::Discovery => None,
            },
            rank: self.rank,
            generation: self.generation,
            restarts: self.restarts,
            retire_within_ms: self.slot.retire_within(now).map(|left| left.as_millis() as u64),
            child,
        })
    }

    /// `None` for one that was to end and has ended.
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

    /// The metrics in use have been replaced.
    pub(crate) fn lose_count(&mut self) {
        if let Some(running) = &mut self.running {
            running.counts = false;
        }
    }

    /// Its end of the channel is closed: it is dying.
    fn closed(&mut self, now: Instant) {
        if let Some(running) = &mut self.running {
            running.channel = None;
            self.slot.mark_dying(now);
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

    /// `None` if no more messages will come from it.
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

    /// Whether it has another control version.
    pub(crate) fn is_foreign(&self) -> bool {
        self.control_version != VERSION
    }

    /// On top of the messages that wait already.
    pub(crate) fn set_outbox_max(&mut self, outbox_max: usize) {
        self.outbox_max = self.outbox.len() + outbox_max;
    }

    /// How many messages wait for it and how many sessions it has not confirmed. `None` if it will
    /// never take any.
    pub(crate) fn mail(&self) -> Option<usize> {
        self.channel.is_some().then_some(self.outbox.len() + self.unconfirmed.len())
    }

    /// Like [`Running::mail`], also for one that will never take any.
    pub(crate) fn sent(&self) -> usize {
        self.outbox.len() + self.unconfirmed.len()
    }

    /// Whether it still has to confirm a session.
    pub(crate) fn has_unconfirmed(&self) -> bool {
        !self.unconfirmed.is_empty()
    }

    /// How many descriptors of sessions are held for it.
    pub(crate) fn session_descriptors(&self) -> usize {
        let is_session = |letter: &&Letter| matches!(letter.message, ToChild::Adopt { .. });
        let waiting = self.outbox.iter().filter(is_session).map(|it| it.descriptors.len());
        let sent = self.unconfirmed.iter().map(|(_, descriptors)| descriptors.len());
        waiting.chain(sent).sum()
    }

    /// It must hand nothing over. Returns whether it still has to be told.
    pub(crate) fn keep(&mut self) -> bool {
        let is_news = self.keeping == Keeping::No;
        if is_news {
            self.keeping = Keeping::Asked;
        }
        is_news
    }

    /// It has confirmed that no more sessions come.
    pub(crate) fn kept(&mut self) {
        if self.keeping == Keeping::Asked {
            self.keeping = Keeping::Confirmed;
        }
    }

    /// It may hand sessions over again.
    pub(crate) fn let_go(&mut self) {
        self.keeping = Keeping::No;
    }

    /// Whether no session is to be expected from it.
    pub(crate) fn keeps(&self) -> bool {
        self.keeping == Keeping::Confirmed
    }

    /// It has confirmed the first of the sessions sent to it.
    pub(crate) fn adopted(&mut self) {
        self.unconfirmed.pop_front();
    }

    /// Stops reading from it. So it may have adopted all sessions that were sent.
    fn hang_up(&mut self) {
        self.channel = None;
        self.unconfirmed.clear();
    }

    /// The child and the sessions that it has not adopted, once it is dead and its messages are all
    /// read.
    pub(crate) fn into_parts(self) -> (Child, Vec<Waiting>) {
        let unsent = self.outbox.into_iter().filter_map(Letter::into_session);
        (self.child, self.unconfirmed.into_iter().chain(unsent).collect())
    }

    /// The channel while it is open, and whether there are messages to send.
    pub(crate) fn channel(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.channel.as_ref().map(|channel| (channel.as_fd(), !self.outbox.is_empty()))
    }
}
