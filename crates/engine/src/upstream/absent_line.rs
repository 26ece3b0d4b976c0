//! Who waits for a server that cannot be reached, to have a connection there to itself: see
//! [`crate::upstream::exclusive`].

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::base::id::ConnId;
use crate::base::time::Time;

/// How often the first of those that wait looks whether the server can be reached again.
const LOOK_AGAIN_MS: u64 = 25;

/// All steps are constant or logarithmic.
pub(crate) struct AbsentLine {
    /// In the order of their coming, by number, and until when they wait.
    waiting: BTreeMap<u64, (ConnId, Time)>,
    numbers: HashMap<ConnId, u64>,
    /// Until when which of them wait.
    ends: BTreeSet<(Time, u64)>,
    /// The number of who comes next.
    next: u64,
    /// When the first one looks again.
    look_at: Time,
}

impl AbsentLine {
    pub(crate) fn new() -> Self {
        Self {
            waiting: BTreeMap::new(),
            numbers: HashMap::new(),
            ends: BTreeSet::new(),
            next: 0,
            look_at: Time::NEVER,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// A client comes that is in no such line.
    pub(crate) fn push(&mut self, conn: ConnId, until: Time, now: Time) {
        if self.waiting.is_empty() {
            self.look_at = now.plus_millis(LOOK_AGAIN_MS);
        }
        self.waiting.insert(self.next, (conn, until));
        self.ends.insert((until, self.next));
        self.numbers.insert(conn, self.next);
        self.next += 1;
    }

    /// Returns whether the client was there.
    pub(crate) fn remove(&mut self, conn: ConnId) -> bool {
        let Some(number) = self.numbers.get(&conn).copied() else { return false };
        self.take(number);
        true
    }

    fn take(&mut self, number: u64) -> Option<ConnId> {
        let (conn, until) = self.waiting.remove(&number)?;
        self.ends.remove(&(until, number));
        self.numbers.remove(&conn);
        Some(conn)
    }

    /// Who leaves the line now: all that have waited for long enough, and now and then the first.
    pub(crate) fn take_due(&mut self, now: Time) -> Vec<ConnId> {
        let mut due = Vec::new();
        while let Some(&(until, number)) = self.ends.first()
            && until <= now
        {
            due.extend(self.take(number));
        }
        if self.look_at <= now {
            self.look_at = now.plus_millis(LOOK_AGAIN_MS);
            if let Some((&first, _)) = self.waiting.first_key_value() {
                due.extend(self.take(first));
            }
        }
        due
    }

    /// When somebody is to leave it.
    pub(crate) fn due(&self) -> Time {
        self.ends.first().map_or(Time::NEVER, |&(until, _)| until.min(self.look_at))
    }

    /// All, in the order of their coming.
    pub(crate) fn take_all(&mut self) -> Vec<ConnId> {
        let waiting = std::mem::take(&mut self.waiting);
        self.ends.clear();
        self.numbers = HashMap::new();
        waiting.into_values().map(|(conn, _)| conn).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO.plus_millis(millis)
    }

    #[test]
    fn the_first_looks_again_and_whoever_has_waited_long_enough_leaves() {
        let [a, b, c, d] = [1, 2, 3, 4].map(|number| ConnId::of_lane(number, 1));
        let mut line = AbsentLine::new();
        assert_eq!(line.due(), Time::NEVER);
        line.push(a, at(100), at(0));
        line.push(b, at(10), at(0));
        line.push(c, at(100), at(0));
        line.push(d, at(100), at(20));
        assert_eq!(line.due(), at(10));
        assert_eq!(line.take_due(at(9)), []);
        assert_eq!(line.take_due(at(10)), [b]);
        assert!(line.remove(c) && !line.remove(c) && !line.remove(b));
        assert_eq!(line.due(), at(25));
        // Who has looked in vain comes last.
        assert_eq!(line.take_due(at(25)), [a]);
        line.push(a, at(100), at(25));
        assert_eq!(line.take_due(at(49)), []);
        assert_eq!(line.take_due(at(50)), [d]);
        line.push(d, at(100), at(50));
        assert_eq!(line.len(), 2);
        assert_eq!(line.take_all(), [a, d]);
        assert_eq!((line.len(), line.due()), (0, Time::NEVER));
        line.push(b, at(200), at(150));
        assert_eq!(line.due(), at(175));
    }
}
