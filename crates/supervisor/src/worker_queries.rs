//! Queries of one worker to all others: who was asked, whose answer is missing, and who gets the
//! answers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::ring::Slot;

/// How many may be open at once. Beyond that the asker gets only its own answer.
const OPEN_MAX: usize = 256;

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct WorkerQueries {
    open: BTreeMap<u64, WorkerQuery>,
    /// The highest number used.
    last: u64,
}

#[derive(Debug)]
struct WorkerQuery {
    asker: Asker,
    missing: BTreeSet<Slot>,
    until: Instant,
}

/// The worker that asked, and its own number for the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    pub(crate) slot: Slot,
    pub(crate) ticket: u64,
}

/// Who gets a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// These workers; they answer under this number.
    Asked { number: u64, whom: Vec<Slot> },
    /// There are no others.
    Alone,
    /// Too many are open.
    Refused,
}

impl WorkerQueries {
    /// Continues the numbers. Answers to queries of the previous program may still come.
    pub(crate) fn after(last: u64) -> Self {
        Self { open: BTreeMap::new(), last }
    }

    /// A worker has a query for `asked`, except itself.
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
        self.open.insert(self.last, WorkerQuery { asker, missing, until: now + PATIENCE });
        Begun::Asked { number: self.last, whom }
    }

    /// A worker answered. Returns the asker and whether this was the last answer; `None` if nobody
    /// waits for it any more.
    pub(crate) fn answered(&mut self, number: u64, slot: Slot) -> Option<(Asker, bool)> {
        let query = self.open.get_mut(&number)?;
        if !query.missing.remove(&slot) {
            return None;
        }
        let (asker, is_last) = (query.asker, query.missing.is_empty());
        if is_last {
            self.open.remove(&number);
        }
        Some((asker, is_last))
    }

    /// A worker is gone: it answers nothing more, and its own queries end. Returns the askers that
    /// have all answers now.
    pub(crate) fn gone(&mut self, slot: Slot) -> Vec<Asker> {
        self.open.retain(|_, query| query.asker.slot != slot);
        for query in self.open.values_mut() {
            query.missing.remove(&slot);
        }
        self.close(|query| query.missing.is_empty())
    }

    /// Ends queries that took too long. Returns their askers, which get no more answers.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Vec<Asker> {
        self.close(|query| query.until <= now)
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        // The oldest query has the earliest deadline.
        self.open.values().next().map(|query| query.until)
    }

    fn close(&mut self, is_over: impl Fn(&WorkerQuery) -> bool) -> Vec<Asker> {
        let mut askers = Vec::new();
        self.open.retain(|_, query| {
            let is_over = is_over(query);
            askers.extend(is_over.then_some(query.asker));
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

    fn begin(worker_queries: &mut WorkerQueries, asker: Asker, slots: u32, now: Instant) -> u64 {
        match worker_queries.begin(asker, 0..slots, now) {
            Begun::Asked { number, .. } => number,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_query_goes_to_all_others_and_ends_with_the_last_answer() {
        let now = Instant::now();
        let mut worker_queries = WorkerQueries::after(40);
        assert_eq!(worker_queries.begin(asker(3, 9), [3].into_iter(), now), Begun::Alone);
        let begun = worker_queries.begin(asker(1, 7), 0..3, now);
        assert_eq!(begun, Begun::Asked { number: 41, whom: vec![0, 2] });
        assert_eq!(worker_queries.answered(41, 1), None);
        assert_eq!(worker_queries.answered(41, 2), Some((asker(1, 7), false)));
        assert_eq!(worker_queries.answered(41, 2), None);
        assert_eq!(worker_queries.answered(41, 0), Some((asker(1, 7), true)));
        assert_eq!(worker_queries.answered(41, 0), None);
        assert_eq!(worker_queries.poll_timeout(), None);
    }

    #[test]
    fn dead_workers_are_not_waited_for_and_waits_are_bounded() {
        let now = Instant::now();
        let mut worker_queries = WorkerQueries::after(0);
        let first = begin(&mut worker_queries, asker(0, 1), 3, now);
        let second = begin(&mut worker_queries, asker(1, 1), 3, now + PATIENCE / 2);
        assert_eq!(worker_queries.answered(first, 1), Some((asker(0, 1), false)));
        assert_eq!(worker_queries.gone(2), [asker(0, 1)]);
        assert_eq!(worker_queries.poll_timeout(), Some(now + PATIENCE / 2 + PATIENCE));
        assert_eq!(worker_queries.handle_timeout(now + PATIENCE), []);
        assert_eq!(worker_queries.handle_timeout(now + 2 * PATIENCE), [asker(1, 1)]);
        assert_eq!(worker_queries.answered(second, 0), None);
        let third = begin(&mut worker_queries, asker(0, 2), 2, now);
        assert_eq!(worker_queries.gone(0), []);
        assert_eq!(worker_queries.answered(third, 1), None);
    }

    #[test]
    fn open_queries_are_bounded() {
        let now = Instant::now();
        let mut worker_queries = WorkerQueries::after(0);
        for ticket in 0..OPEN_MAX as u64 {
            begin(&mut worker_queries, asker(0, ticket), 2, now);
        }
        assert_eq!(worker_queries.begin(asker(0, 0), 0..2, now), Begun::Refused);
        assert_eq!(worker_queries.begin(asker(0, 0), 0..1, now), Begun::Alone);
    }
}
