//! Deadlines: few, since requests on one lane expire in order and only the first counts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::base::id::{BackendId, ClientId, FlowId, LaneId, ServerId};
use crate::base::time::Time;

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Lane(LaneId),
    /// A flow has waited as long as it wanted.
    Flow {
        flow: FlowId,
        generation: u32,
    },
    /// Time to see whether an ejected server is back.
    Probe {
        backend: BackendId,
        server: ServerId,
    },
    /// Something about the change of an epoch or a ring has waited long enough.
    Change,
    /// A client has waited long enough for a lease.
    Line,
    /// Lines that are held for monitors are due.
    Monitors,
    /// CLIENT PAUSE is over.
    ClientPause,
    /// Copies are to forget keys.
    Invalidations,
    /// Requests that nodes of clusters have sent back are to be sent again.
    SentOn,
    /// Copies of hot keys are to go.
    Copies,
    /// Records are on their way to the disk.
    Spool,
    /// A client that gave wrong passwords may go on.
    Slowed {
        client: ClientId,
        generation: u32,
    },
    /// A client has to say again who it is.
    Expiry {
        client: ClientId,
        generation: u32,
    },
    /// Users may have room for requests.
    UserLimits,
    /// Something is due of connections that bytes pass through.
    Pairs,
    Housekeeping,
}

/// Deadlines in order. Whoever arms a timer remembers for when, and ignores what fires at another
/// time: that was armed before and replaced.
#[derive(Default)]
pub(crate) struct Timers(BinaryHeap<Reverse<(Time, Timer)>>);

impl Timers {
    pub(crate) fn arm(&mut self, at: Time, timer: Timer) {
        self.0.push(Reverse((at, timer)));
    }

    pub(crate) fn next(&self) -> Time {
        self.0.peek().map_or(Time::NEVER, |Reverse((at, _))| *at)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn retain(&mut self, is_current: impl Fn(Time, Timer) -> bool) {
        self.0.retain(|&Reverse((at, timer))| is_current(at, timer));
        self.0.shrink_to_fit();
    }

    /// What is due, and for when it was armed.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<(Time, Timer)> {
        if self.next() > now {
            return None;
        }
        self.0.pop().map(|Reverse(entry)| entry)
    }
}
