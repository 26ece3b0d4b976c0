//! The numbers under which the clients of each pool are counted over all workers. Also corrects
//! these counts: a worker that dies does not uncount its clients.

use std::collections::{BTreeMap, BTreeSet};

use cashew_config::Snapshot;
use cashew_metrics::QUOTAS_MAX;

/// A pool keeps its number as long as a pool of its name exists.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quotas {
    numbers: BTreeMap<String, u32>,
    /// Counts that were wrong at the last check.
    suspects: BTreeMap<u32, Figures>,
}

/// Two figures that are equal unless clients come, go or move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Clients counted in the quota.
    pub(crate) taken: u64,
    /// Clients that the workers report.
    pub(crate) connected: u64,
}

impl Quotas {
    /// The numbers for the pools of another snapshot. `taken` says whether clients are counted
    /// under a number: clients of a removed pool may stay for a while.
    pub(crate) fn switched(&self, snapshot: &Snapshot, taken: impl Fn(u32) -> u64) -> Self {
        let kept = |name: &String| self.numbers.get(name).copied();
        let mut used: BTreeSet<u32> =
            snapshot.pools.iter().filter_map(|pool| kept(&pool.name)).collect();
        let mut numbers = BTreeMap::new();
        for pool in &snapshot.pools {
            let number = kept(&pool.name).unwrap_or_else(|| {
                let mut free = (0..QUOTAS_MAX).filter(|number| !used.contains(number));
                let number = free.clone().find(|&number| taken(number) == 0);
                number.or_else(|| free.next()).expect("there are no more pools than quotas")
            });
            used.insert(number);
            numbers.insert(pool.name.clone(), number);
        }
        Self { numbers, suspects: BTreeMap::new() }
    }

    pub(crate) fn from_numbers(numbers: BTreeMap<String, u32>) -> Self {
        Self { numbers, suspects: BTreeMap::new() }
    }

    /// By pool name.
    pub(crate) fn numbers(&self) -> &BTreeMap<String, u32> {
        &self.numbers
    }

    /// `None` if there is no pool of that name.
    pub(crate) fn number(&self, pool: &str) -> Option<u32> {
        self.numbers.get(pool).copied()
    }

    /// Call this with all figures once a second. Returns the corrections: a count that is wrong
    /// twice in the same way is not due to clients that come or go.
    pub(crate) fn handle_figures(
        &mut self,
        figures: impl IntoIterator<Item = (u32, Figures)>,
    ) -> Vec<(u32, i64)> {
        let wrong = figures.into_iter().filter(|(_, it)| it.taken != it.connected).collect();
        let before = std::mem::replace(&mut self.suspects, wrong);
        let same = self.suspects.iter().filter(|(quota, it)| before.get(quota) == Some(it));
        let difference = |it: &Figures| it.connected.wrapping_sub(it.taken) as i64;
        same.map(|(&quota, it)| (quota, difference(it))).collect()
    }

    /// Clients are moving, so the figures mean nothing now.
    pub(crate) fn forget_figures(&mut self) {
        self.suspects.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_with_names() {
        let free = |_| 0;
        let quotas = Quotas::default().switched(&snapshot(&["a", "b", "c"]), free);
        let numbers = |quotas: &Quotas, names: &[&str]| -> Vec<u32> {
            names.iter().map(|name| quotas.number(name).unwrap()).collect()
        };
        assert_eq!(numbers(&quotas, &["a", "b", "c"]), [0, 1, 2]);
        // The clients of "a" are still there.
        let quotas = quotas.switched(&snapshot(&["b", "d", "c"]), |number| u64::from(number == 0));
        assert_eq!(numbers(&quotas, &["b", "c", "d"]), [1, 2, 3]);
        let quotas = quotas.switched(&snapshot(&["b", "e"]), free);
        assert_eq!(numbers(&quotas, &["b", "e"]), [1, 0]);
    }

    #[test]
    fn a_count_that_is_wrong_twice_alike_is_corrected() {
        let mut quotas = Quotas::default();
        let figures = |taken, connected| [(7, Figures { taken, connected })];
        assert_eq!(quotas.handle_figures(figures(5, 3)), []);
        assert_eq!(quotas.handle_figures(figures(5, 4)), []);
        assert_eq!(quotas.handle_figures(figures(5, 4)), [(7, -1)]);
        assert_eq!(quotas.handle_figures(figures(4, 4)), []);
        assert_eq!(quotas.handle_figures(figures(4, 6)), []);
        quotas.forget_figures();
        assert_eq!(quotas.handle_figures(figures(4, 6)), []);
        assert_eq!(quotas.handle_figures(figures(4, 6)), [(7, 2)]);
    }

    fn snapshot(pools: &[&str]) -> Snapshot {
        let mut text = String::new();
        for (port, name) in (1..).zip(pools) {
            let listen = format!("127.0.0.1:{port}");
            text += &format!("{name}:\n  listen: {listen}\n  servers:\n   - 127.0.0.1:65535:1\n");
        }
        let loaded = cashew_config::parse("test.yml", &text, &cashew_config::Context::of_system());
        loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot
    }
}
