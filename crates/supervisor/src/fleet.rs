//! Which workers there should be, and the next steps to get there.
//!
//! Each rank below the number of workers is held by one serving worker that was started since the
//! last change of an option that only new processes apply. Surplus workers retire. Outdated ones
//! retire once a successor is ready, one after the other.
//!
//! Pure: the current workers go in, the next orders come out. Called again whenever something has
//! changed, it comes to an end.

use std::collections::BTreeSet;

use crate::ring::Slot;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Worker {
    pub(crate) slot: Slot,
    pub(crate) rank: u32,
    pub(crate) life: Life,
    /// Started with the current process options, or will be.
    pub(crate) is_fresh: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Not ready yet, or dead and to be restarted.
    Pending,
    Serving,
    Retiring,
    /// Ending; no successor takes its slot.
    Going,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Start a worker in a free slot.
    Add {
        slot: Slot,
        rank: u32,
    },
    Retire(Slot),
    Unretire(Slot),
    /// It has never served and is no longer wanted.
    Drop(Slot),
}

impl Order {
    /// The slot and the state of life that the order assumes. Earlier orders may have changed it by
    /// the time it is carried out.
    pub(crate) fn premise(self) -> Option<(Slot, Life)> {
        match self {
            Self::Add { .. } => None,
            Self::Retire(slot) => Some((slot, Life::Serving)),
            Self::Unretire(slot) => Some((slot, Life::Retiring)),
            Self::Drop(slot) => Some((slot, Life::Pending)),
        }
    }
}

/// `slots_max` is the number of slots.
pub(crate) fn plan(workers: &[Worker], wanted: u32, slots_max: u32) -> Vec<Order> {
    let mut orders = Vec::new();
    let mut taken: BTreeSet<Slot> = workers.iter().map(|worker| worker.slot).collect();
    let mut add = |rank, orders: &mut Vec<Order>| {
        let slot = (0..slots_max).find(|slot| !taken.contains(slot));
        if let Some(slot) = slot {
            taken.insert(slot);
            orders.push(Order::Add { slot, rank });
        }
        slot.is_some()
    };
    for worker in workers.iter().filter(|worker| worker.rank >= wanted) {
        match worker.life {
            Life::Serving => orders.push(Order::Retire(worker.slot)),
            Life::Pending => orders.push(Order::Drop(worker.slot)),
            Life::Retiring | Life::Going => {}
        }
    }
    // One after the other: while a successor starts, no other worker is replaced.
    let mut is_replacing = false;
    let mut outdated = None;
    for rank in 0..wanted {
        let holders = workers.iter().filter(|worker| worker.rank == rank);
        let mut staying =
            holders.clone().filter(|worker| matches!(worker.life, Life::Pending | Life::Serving));
        match (staying.next(), staying.next()) {
            (None, _) => {
                let back = holders.clone().find(|it| it.life == Life::Retiring && it.is_fresh);
                match back {
                    Some(worker) => orders.push(Order::Unretire(worker.slot)),
                    // No slot is free. One will be when the retiring worker has ended.
                    None => {
                        add(rank, &mut orders);
                    }
                }
            }
            (Some(only), None) => {
                if only.life == Life::Serving && !only.is_fresh {
                    outdated = outdated.or(Some(only));
                }
            }
            (Some(one), Some(other)) => {
                let (old, new) = if one.is_fresh { (other, one) } else { (one, other) };
                match (old.life, new.life) {
                    (Life::Serving, Life::Serving) => orders.push(Order::Retire(old.slot)),
                    // It is dead, and its successor is there already.
                    (Life::Pending, _) => orders.push(Order::Drop(old.slot)),
                    _ => is_replacing = true,
                }
            }
        }
    }
    if let (Some(worker), false) = (outdated, is_replacing)
        && !add(worker.rank, &mut orders)
    {
        orders.push(Order::Retire(worker.slot));
    }
    orders
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: u32 = 8;

    #[test]
    fn the_fleet_grows_and_shrinks() {
        assert_eq!(plan(&[], 2, SLOTS), [add(0, 0), add(1, 1)]);
        let four: Vec<Worker> = (0..4).map(|slot| serving(slot, slot)).collect();
        assert_eq!(plan(&four, 4, SLOTS), []);
        assert_eq!(plan(&four, 2, SLOTS), [Order::Retire(2), Order::Retire(3)]);
    }

    #[test]
    fn a_retiring_worker_is_taken_back_or_keeps_its_slot() {
        let retiring = Worker { life: Life::Retiring, ..serving(1, 1) };
        assert_eq!(plan(&[serving(0, 0), retiring], 2, SLOTS), [Order::Unretire(1)]);
        assert_eq!(plan(&[serving(0, 0), retiring], 1, SLOTS), []);
        let outdated = Worker { is_fresh: false, ..retiring };
        assert_eq!(plan(&[serving(0, 0), outdated], 2, SLOTS), [add(2, 1)]);
        let going = Worker { life: Life::Going, ..serving(1, 1) };
        assert_eq!(plan(&[serving(0, 0), going], 2, SLOTS), [add(2, 1)]);
    }

    #[test]
    fn a_surplus_worker_that_has_not_served_is_dropped() {
        let pending = Worker { life: Life::Pending, ..serving(1, 1) };
        assert_eq!(plan(&[serving(0, 0), pending], 1, SLOTS), [Order::Drop(1)]);
        assert_eq!(plan(&[serving(0, 0), pending], 2, SLOTS), []);
    }

    #[test]
    fn outdated_workers_are_replaced_one_by_one() {
        let mut workers: Vec<Worker> =
            (0..3).map(|slot| Worker { is_fresh: false, ..serving(slot, slot) }).collect();
        let mut retired = Vec::new();
        for _ in 0..20 {
            for order in plan(&workers, 3, SLOTS) {
                match order {
                    Order::Add { slot, rank } => {
                        workers.push(Worker { life: Life::Pending, ..serving(slot, rank) });
                    }
                    Order::Retire(slot) => {
                        retired.push(slot);
                        workers.retain(|worker| worker.slot != slot);
                    }
                    other => panic!("unexpected {other:?}"),
                }
            }
            let pending = workers.iter().filter(|worker| worker.life == Life::Pending).count();
            assert!(pending <= 1);
            let serving = workers.iter().filter(|worker| worker.life == Life::Serving).count();
            assert!(serving >= 3, "nobody goes before the next is there");
            workers.iter_mut().for_each(|worker| worker.life = Life::Serving);
        }
        assert_eq!(retired, [0, 1, 2]);
        assert!(workers.len() == 3 && workers.iter().all(|worker| worker.is_fresh));
    }

    #[test]
    fn without_a_free_slot_the_old_one_goes_first() {
        let old = Worker { is_fresh: false, ..serving(1, 1) };
        let mut workers = [serving(0, 0), old];
        assert_eq!(plan(&workers, 2, 2), [Order::Retire(1)]);
        workers[1].life = Life::Retiring;
        assert_eq!(plan(&workers, 2, 2), []);
        assert_eq!(plan(&workers[..1], 2, 2), [add(1, 1)]);
    }

    fn serving(slot: Slot, rank: u32) -> Worker {
        Worker { slot, rank, life: Life::Serving, is_fresh: true }
    }

    fn add(slot: Slot, rank: u32) -> Order {
        Order::Add { slot, rank }
    }
}
