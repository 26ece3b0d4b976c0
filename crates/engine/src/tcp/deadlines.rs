//! When sessions, lines and checks are to be looked at.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::base::id::{BackendId, ConnId};
use crate::base::time::Time;
use crate::base::timers::{Timer, Timers};

/// So many entries that count no more are kept at least.
const KEPT: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// A session, by its client's connection.
    Session(ConnId),
    /// Those who wait for a place at a backend's servers.
    Line(BackendId),
    /// The servers of a backend are checked.
    Checks(BackendId),
    /// A check has taken long enough.
    Check(ConnId),
}

struct Entry {
    at: Time,
    due: Due,
}

impl Entry {
    /// Whatever is due at the same time has some order.
    fn key(&self) -> (Time, u8, u64) {
        match self.due {
            Due::Session(conn) => (self.at, 0, conn.token()),
            Due::Line(backend) => (self.at, 1, backend.number().into()),
            Due::Checks(backend) => (self.at, 2, backend.number().into()),
            Due::Check(conn) => (self.at, 3, conn.token()),
        }
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// Whoever arms a deadline remembers for when, and ignores what fires at another time.
pub(super) struct Deadlines {
    entries: BinaryHeap<Reverse<Entry>>,
    /// The engine's timer is set for then.
    armed: Time,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { entries: BinaryHeap::new(), armed: Time::NEVER }
    }
}

impl Deadlines {
    #[cfg(test)]
    pub(crate) const ENTRY_SIZE: usize = size_of::<Entry>();

    pub(super) fn arm(&mut self, timers: &mut Timers, at: Time, due: Due) {
        self.entries.push(Reverse(Entry { at, due }));
        if at < self.armed {
            self.armed = at;
            timers.arm(at, Timer::Pairs);
        }
    }

    /// The next that is due.
    pub(super) fn pop(&mut self, now: Time) -> Option<(Time, Due)> {
        self.entries.peek().filter(|Reverse(entry)| entry.at <= now)?;
        let Reverse(Entry { at, due }) = self.entries.pop()?;
        Some((at, due))
    }

    /// Sets the engine's timer, which has fired, for the next one.
    pub(super) fn rearm(&mut self, timers: &mut Timers) {
        self.armed = self.entries.peek().map_or(Time::NEVER, |Reverse(entry)| entry.at);
        if self.armed != Time::NEVER {
            timers.arm(self.armed, Timer::Pairs);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Forgets those of sessions that count no more.
    pub(super) fn retain_sessions(&mut self, is_current: impl Fn(ConnId, Time) -> bool) {
        self.entries.retain(|Reverse(entry)| match entry.due {
            Due::Session(conn) => is_current(conn, entry.at),
            Due::Line(_) | Due::Checks(_) | Due::Check(_) => true,
        });
    }

    /// Backends have other numbers from here on.
    pub(super) fn forget_backends(&mut self) {
        self.entries.retain(|Reverse(entry)| matches!(entry.due, Due::Session(_) | Due::Check(_)));
    }

    /// Lets go of room that nobody needs.
    pub(super) fn shrink(&mut self, sessions: usize) {
        if self.entries.capacity() > KEPT + 4 * sessions {
            self.entries.shrink_to(KEPT + 2 * self.entries.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_comes_in_order_and_only_then() {
        let (mut deadlines, mut timers) = (Deadlines::default(), Timers::default());
        let at = |ms| Time::ZERO.plus_millis(ms);
        let conn = |token| Due::Session(ConnId::from_token(token));
        deadlines.arm(&mut timers, at(20), conn(1));
        deadlines.arm(&mut timers, at(10), conn(2));
        deadlines.arm(&mut timers, at(30), Due::Line(BackendId::new(0)));
        assert_eq!(timers.next(), at(10));
        assert_eq!(deadlines.pop(at(9)), None);
        assert_eq!(deadlines.pop(at(25)), Some((at(10), conn(2))));
        assert_eq!(deadlines.pop(at(25)), Some((at(20), conn(1))));
        assert_eq!(deadlines.pop(at(25)), None);
        deadlines.forget_backends();
        assert_eq!(deadlines.pop(at(99)), None);
    }
}
