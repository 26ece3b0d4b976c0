//! Which workers have clients that monitor a pool, and which workers must report to them.

use std::collections::{BTreeMap, BTreeSet};

use crate::ring::Slot;

#[derive(Debug, Default)]
pub(crate) struct Monitors {
    /// By pool name. No set is empty.
    pools: BTreeMap<String, BTreeSet<Slot>>,
    /// Lines that were not sent to a worker and that it does not know to be missing.
    missed: BTreeMap<(Slot, String), u64>,
    /// By the worker whose clients began to monitor a pool: the workers that have not confirmed
    /// that they report.
    unconfirmed: BTreeMap<(Slot, String), BTreeSet<Slot>>,
}

/// Which workers need not report a pool's commands any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relieved {
    Nobody,
    /// The only worker left with monitors: its own commands reach them directly.
    Only(Slot),
    All,
}

impl Monitors {
    /// Clients of this worker monitor the pool. If they did not before, the worker wants to know
    /// when all other `serving` workers report. Returns whether they do already.
    pub(crate) fn begin(
        &mut self,
        slot: Slot,
        pool: &str,
        serving: impl Iterator<Item = Slot>,
    ) -> bool {
        if !self.pools.entry(pool.to_owned()).or_default().insert(slot) {
            return false;
        }
        let others: BTreeSet<Slot> = serving.filter(|&other| other != slot).collect();
        let is_alone = others.is_empty();
        if !is_alone {
            self.unconfirmed.insert((slot, pool.to_owned()), others);
        }
        is_alone
    }

    /// A worker reports the pool's commands from now on. Returns the workers to which all report
    /// now.
    pub(crate) fn confirm(&mut self, from: Slot, pool: &str) -> Vec<Slot> {
        self.settle(from, |of| of == pool).into_iter().map(|(slot, _)| slot).collect()
    }

    fn settle(&mut self, from: Slot, which: impl Fn(&str) -> bool) -> Vec<(Slot, String)> {
        let mut confirmed = Vec::new();
        self.unconfirmed.retain(|(slot, pool), missing| {
            if which(pool) && missing.remove(&from) && missing.is_empty() {
                confirmed.push((*slot, pool.clone()));
            }
            !missing.is_empty()
        });
        confirmed
    }

    /// No client of this worker monitors the pool any more.
    pub(crate) fn end(&mut self, slot: Slot, pool: &str) -> Relieved {
        let key = (slot, pool.to_owned());
        self.missed.remove(&key);
        self.unconfirmed.remove(&key);
        let Some(slots) = self.pools.get_mut(pool) else { return Relieved::Nobody };
        if !slots.remove(&slot) {
            return Relieved::Nobody;
        }
        match (slots.first(), slots.len()) {
            (Some(&last), 1) => Relieved::Only(last),
            (Some(_), _) => Relieved::Nobody,
            (None, _) => {
                self.pools.remove(pool);
                Relieved::All
            }
        }
    }

    /// A worker is gone. Returns the workers to which all the others report now.
    pub(crate) fn unneeded(&mut self, slot: Slot) -> Vec<(Slot, String)> {
        self.settle(slot, |_| true)
    }

    /// A worker is gone. Returns which workers need not report any more.
    pub(crate) fn left(&mut self, slot: Slot) -> Vec<(String, Relieved)> {
        let pools: Vec<String> = self.pools_of(|slots| slots.contains(&slot)).collect();
        pools
            .into_iter()
            .map(|pool| {
                let relieved = self.end(slot, &pool);
                (pool, relieved)
            })
            .collect()
    }

    /// The pools whose commands a worker must report.
    pub(crate) fn watched(&self, slot: Slot) -> impl Iterator<Item = String> {
        self.pools_of(move |slots| slots.iter().any(|&other| other != slot))
    }

    /// The workers that want this worker's commands in the pool.
    pub(crate) fn listeners(&self, slot: Slot, pool: &str) -> Vec<Slot> {
        let slots = self.pools.get(pool).into_iter().flatten();
        slots.copied().filter(|&other| other != slot).collect()
    }

    /// So many lines were not sent to a worker.
    pub(crate) fn miss(&mut self, slot: Slot, pool: &str, lines: u64) {
        *self.missed.entry((slot, pool.to_owned())).or_default() += lines;
    }

    /// How many lines were not sent since the last call.
    pub(crate) fn take_missed(&mut self, slot: Slot, pool: &str) -> u64 {
        match self.missed.is_empty() {
            true => 0,
            false => self.missed.remove(&(slot, pool.to_owned())).unwrap_or(0),
        }
    }

    fn pools_of(&self, which: impl Fn(&BTreeSet<Slot>) -> bool) -> impl Iterator<Item = String> {
        self.pools.iter().filter(move |(_, slots)| which(slots)).map(|(pool, _)| pool.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(monitors: &Monitors, slot: Slot) -> Vec<String> {
        monitors.watched(slot).collect()
    }

    #[test]
    fn all_workers_report_to_monitors_elsewhere() {
        let mut monitors = Monitors::default();
        assert!(monitors.listeners(0, "p").is_empty());
        monitors.begin(1, "p", 0..4);
        monitors.begin(1, "p", 0..4);
        assert_eq!((monitors.listeners(0, "p"), monitors.listeners(1, "p")), (vec![1], vec![]));
        assert!(monitors.listeners(0, "q").is_empty());
        assert_eq!(watched(&monitors, 0), ["p"]);
        assert!(watched(&monitors, 1).is_empty());
        monitors.begin(2, "p", 0..4);
        monitors.begin(2, "q", 0..4);
        assert_eq!((monitors.listeners(0, "p"), monitors.listeners(1, "p")), (vec![1, 2], vec![2]));
        assert_eq!(watched(&monitors, 1), ["p", "q"]);
    }

    #[test]
    fn without_monitors_no_worker_reports() {
        let mut monitors = Monitors::default();
        assert_eq!(monitors.end(1, "p"), Relieved::Nobody);
        for slot in 1..4 {
            monitors.begin(slot, "p", 0..4);
        }
        assert_eq!(monitors.end(0, "p"), Relieved::Nobody);
        assert_eq!(monitors.end(1, "p"), Relieved::Nobody);
        assert_eq!(monitors.end(2, "p"), Relieved::Only(3));
        assert_eq!(monitors.end(3, "p"), Relieved::All);
        assert_eq!(monitors.end(3, "p"), Relieved::Nobody);
        assert!(watched(&monitors, 0).is_empty());
    }

    #[test]
    fn dead_workers_are_not_reported_to() {
        let mut monitors = Monitors::default();
        for slot in 1..3 {
            monitors.begin(slot, "p", 0..4);
        }
        monitors.begin(1, "q", 0..4);
        monitors.miss(1, "q", 3);
        let relieved = [("p".to_owned(), Relieved::Only(2)), ("q".to_owned(), Relieved::All)];
        assert_eq!(monitors.left(1), relieved);
        assert!(monitors.left(1).is_empty());
        assert_eq!(monitors.take_missed(1, "q"), 0, "its successor begins anew");
    }

    #[test]
    fn a_monitor_starts_when_all_others_report() {
        let mut monitors = Monitors::default();
        assert!(monitors.begin(1, "q", 1..2), "there is nobody else");
        assert!(!monitors.begin(1, "p", 0..3));
        assert!(monitors.confirm(0, "p").is_empty() && monitors.confirm(2, "q").is_empty());
        assert!(!monitors.begin(1, "p", 0..3), "it says so again");
        assert!(!monitors.begin(3, "p", 0..4));
        assert_eq!(monitors.confirm(2, "p"), [1]);
        assert!(monitors.confirm(2, "p").is_empty());
        monitors.confirm(1, "p");
        assert_eq!(monitors.unneeded(0), [(3, "p".to_owned())]);
        monitors.begin(2, "p", 0..4);
        monitors.left(2);
        (0..4).for_each(|slot| assert!(monitors.confirm(slot, "p").is_empty()));
    }

    #[test]
    fn missing_lines_are_reported_once() {
        let mut monitors = Monitors::default();
        monitors.begin(1, "p", 0..4);
        assert_eq!(monitors.take_missed(1, "p"), 0);
        monitors.miss(1, "p", 3);
        monitors.miss(1, "p", 4);
        assert_eq!((monitors.take_missed(2, "p"), monitors.take_missed(1, "p")), (0, 7));
        assert_eq!(monitors.take_missed(1, "p"), 0);
    }
}
