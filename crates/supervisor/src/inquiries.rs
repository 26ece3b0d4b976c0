//! What one worker wants to know of all: who is asked, whose answer is missing, whom it is for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::ring::Slot;

/// How many may be open at once; who asks beyond that gets no answers but its own.
const OPEN_MAX: usize = 256;

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Inquiries {
    open: BTreeMap<u64, Inquiry>,
    /// The highest number there was.
    last: u64,
}

#[derive(Debug)]
struct Inquiry {
    asker: Asker,
    missing: BTreeSet<Slot>,
    until: Instant,
}

/// Who asked, and how it calls its question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    pub(crate) slot: Slot,
    pub(crate) ticket: u64,
}

/// Whom a question goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// To these, who are to answer under this number.
    Asked { number: u64, whom: Vec<Slot> },
    /// There are no others.
    Alone,
    /// Too many are open.
    Refused,
}

impl Inquiries {
    /// Numbers begin behind this one. Answers may still come to what the program before this one
    /// asked.
    pub(crate) fn after(last: u64) -> Self {
        Self { open: BTreeMap::new(), last }
    }

    /// A worker has a question for these, itself left out.
    pub(crate) fn begin(
        &mut self,
        asker: Asker,
        asked: impl Iterator<Item = Slot>,
        now: Instant,
    ) -> Begun {
        let missing: BTreeSet<Slot> = asked.filter(|&slot| slot != asker.slot).collect();
        if missing.is_empty() {
            return Begun::Alone;
        }
        if self.open.len() >= OPEN_MAX {
            return Begun::Refused;
        }
        self.last += 1;
        let whom = missing.iter().copied().collect();
        self.open.insert(self.last, Inquiry { asker, missing, until: now + PATIENCE });
        Begun::Asked { number: self.last, whom }
    }

    /// A worker answered: who is to be told, and whether it was the last. `None` if nobody waits
    /// for it any more.
    pub(crate) fn answered(&mut self, number: u64, slot: Slot) -> Option<(Asker, bool)> {
        let inquiry = self.open.get_mut(&number)?;
        if !inquiry.missing.remove(&slot) {
            return None;
        }
        let (asker, is_last) = (inquiry.asker, inquiry.missing.is_empty());
        if is_last {
            self.open.remove(&number);
        }
        Some((asker, is_last))
    }

    /// A worker is gone: it answers nothing any more, and nobody needs to answer it. Returns who
    /// has all answers now.
    pub(crate) fn gone(&mut self, slot: Slot) -> Vec<Asker> {
        self.open.retain(|_, inquiry| inquiry.asker.slot != slot);
        for inquiry in self.open.values_mut() {
            inquiry.missing.remove(&slot);
        }
        self.close(|inquiry| inquiry.missing.is_empty())
    }

    /// Gives up waiting where it took too long. Returns who has to do with what there is.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Vec<Asker> {
        self.close(|inquiry| inquiry.until <= now)
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        // Of all the first was begun first.
        self.open.values().next().map(|inquiry| inquiry.until)
    }

    fn close(&mut self, is_over: impl Fn(&Inquiry) -> bool) -> Vec<Asker> {
        let mut askers = Vec::new();
        self.open.retain(|_, inquiry| {
            let is_over = is_over(inquiry);
            askers.extend(is_over.then_some(inquiry.asker));
            !is_over
        });
        askers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(slot: Slot, ticket: u64) -> Asker {
        Asker { slot, ticket }
    }

    fn begin(inquiries: &mut Inquiries, asker: Asker, slots: u32, now: Instant) -> u64 {
        match inquiries.begin(asker, 0..slots, now) {
            Begun::Asked { number, .. } => number,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn all_others_are_asked_and_the_last_answer_is_known_as_such() {
        let now = Instant::now();
        let mut inquiries = Inquiries::after(40);
        assert_eq!(inquiries.begin(asker(3, 9), [3].into_iter(), now), Begun::Alone);
        let begun = inquiries.begin(asker(1, 7), 0..3, now);
        assert_eq!(begun, Begun::Asked { number: 41, whom: vec![0, 2] });
        assert_eq!(inquiries.answered(41, 1), None);
        assert_eq!(inquiries.answered(41, 2), Some((asker(1, 7), false)));
        assert_eq!(inquiries.answered(41, 2), None);
        assert_eq!(inquiries.answered(41, 0), Some((asker(1, 7), true)));
        assert_eq!(inquiries.answered(41, 0), None);
        assert_eq!(inquiries.poll_timeout(), None);
    }

    #[test]
    fn nobody_waits_for_the_dead_or_for_ever() {
        let now = Instant::now();
        let mut inquiries = Inquiries::after(0);
        let first = begin(&mut inquiries, asker(0, 1), 3, now);
        let second = begin(&mut inquiries, asker(1, 1), 3, now + PATIENCE / 2);
        assert_eq!(inquiries.answered(first, 1), Some((asker(0, 1), false)));
        assert_eq!(inquiries.gone(2), [asker(0, 1)]);
        assert_eq!(inquiries.poll_timeout(), Some(now + PATIENCE / 2 + PATIENCE));
        assert_eq!(inquiries.handle_timeout(now + PATIENCE), []);
        assert_eq!(inquiries.handle_timeout(now + 2 * PATIENCE), [asker(1, 1)]);
        assert_eq!(inquiries.answered(second, 0), None);
        let third = begin(&mut inquiries, asker(0, 2), 2, now);
        assert_eq!(inquiries.gone(0), []);
        assert_eq!(inquiries.answered(third, 1), None);
    }

    #[test]
    fn so_many_may_be_open() {
        let now = Instant::now();
        let mut inquiries = Inquiries::after(0);
        for ticket in 0..OPEN_MAX as u64 {
            begin(&mut inquiries, asker(0, ticket), 2, now);
        }
        assert_eq!(inquiries.begin(asker(0, 0), 0..2, now), Begun::Refused);
        assert_eq!(inquiries.begin(asker(0, 0), 0..1, now), Begun::Alone);
    }
}
