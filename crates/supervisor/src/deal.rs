//! Which worker accepts from which listening socket.
//!
//! A socket is never closed when workers come and go: another worker accepts from it instead, so no
//! connection in its queue is lost. A socket of a group has one owner: the worker whose rank is the
//! socket's number. While that worker does not serve, another one has it: as few sockets as
//! possible change hands, and no worker gets more than its share. A socket that is alone on its
//! address is owned by all workers.
//!
//! Pure: [`Deal::update`] takes the serving workers and returns the messages to send.

use std::collections::{BTreeMap, BTreeSet};

use crate::ring::Slot;

/// Identifies a listening socket; never reused.
pub(crate) type ListenerId = u32;

/// The sockets of one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hand {
    /// The kernel spreads new connections over these.
    Spread(Vec<ListenerId>),
    Shared(ListenerId),
}

/// A worker that accepts, or will once it is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Player {
    pub(crate) slot: Slot,
    pub(crate) rank: u32,
    /// A worker that is not ready gets its future sockets already; its substitute keeps them too
    /// until then.
    pub(crate) is_ready: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Listen { slot: Slot, listener: ListenerId },
    Unlisten { slot: Slot, listener: ListenerId, drain: bool },
}

/// Which worker listens on which socket now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deal {
    owners: BTreeMap<ListenerId, BTreeSet<Slot>>,
}

impl Deal {
    /// Resumes from a saved [`owners`](Self::owners).
    pub(crate) fn resume(owners: BTreeMap<ListenerId, BTreeSet<Slot>>) -> Self {
        Self { owners }
    }

    /// Which workers accept from which socket.
    pub(crate) fn owners(&self) -> &BTreeMap<ListenerId, BTreeSet<Slot>> {
        &self.owners
    }

    /// Deals again and returns the differences, those that begin to listen first. Sockets without
    /// an owner are drained.
    pub(crate) fn update<'a>(
        &mut self,
        hands: impl IntoIterator<Item = &'a Hand>,
        players: &[Player],
    ) -> Vec<Change> {
        let owners = self.deal(hands, players);
        let mut changes = Vec::new();
        for (&listener, slots) in &owners {
            let before = self.owners.get(&listener);
            let new = slots.iter().filter(|slot| !before.is_some_and(|it| it.contains(slot)));
            changes.extend(new.map(|&slot| Change::Listen { slot, listener }));
        }
        for (&listener, before) in &self.owners {
            let slots = owners.get(&listener);
            let old = before.iter().filter(|slot| !slots.is_some_and(|it| it.contains(slot)));
            let drain = slots.is_none();
            changes.extend(old.map(|&slot| Change::Unlisten { slot, listener, drain }));
        }
        self.owners = owners;
        changes
    }

    fn deal<'a>(
        &self,
        hands: impl IntoIterator<Item = &'a Hand>,
        players: &[Player],
    ) -> BTreeMap<ListenerId, BTreeSet<Slot>> {
        let (ready, joining): (Vec<Player>, Vec<Player>) =
            players.iter().partition(|player| player.is_ready);
        // Of two workers with the same rank, the later one will replace the other.
        let is_followed = |at: usize| ready[at + 1..].iter().any(|it| it.rank == ready[at].rank);
        let ready: Vec<Player> =
            (0..ready.len()).filter(|&at| !is_followed(at)).map(|at| ready[at]).collect();
        let mut owners = BTreeMap::new();
        for hand in hands {
            match hand {
                Hand::Shared(listener) => {
                    owners.insert(*listener, players.iter().map(|player| player.slot).collect());
                }
                Hand::Spread(listeners) => {
                    let spread = self.spread(listeners, &ready);
                    for ((number, &listener), owner) in (0..).zip(listeners).zip(spread) {
                        let at_home = joining.iter().filter(|player| player.rank == number);
                        let slots = at_home.map(|player| player.slot).chain(owner);
                        owners.insert(listener, slots.collect());
                    }
                }
            }
        }
        owners
    }

    /// Which of the players, no two of them of one rank, owns which socket: the one at home; else
    /// the current owner, if it would not have its share without it; else the one with the fewest
    /// sockets.
    fn spread(&self, listeners: &[ListenerId], ready: &[Player]) -> Vec<Option<Slot>> {
        if ready.is_empty() {
            return vec![None; listeners.len()];
        }
        let homes = (0..).zip(listeners);
        let mut owners: Vec<Option<usize>> = homes
            .map(|(number, _)| ready.iter().position(|player| player.rank == number))
            .collect();
        let mut counts = vec![0; ready.len()];
        owners.iter().flatten().for_each(|&at| counts[at] += 1);
        let share = listeners.len().div_ceil(ready.len());
        for (owner, listener) in owners.iter_mut().zip(listeners) {
            let before = self.owners.get(listener);
            let has_it = |&at: &usize| {
                before.is_some_and(|it| it.contains(&ready[at].slot)) && counts[at] < share
            };
            if owner.is_none()
                && let Some(at) = (0..ready.len()).find(has_it)
            {
                counts[at] += 1;
                *owner = Some(at);
            }
        }
        for (number, owner) in owners.iter_mut().enumerate().filter(|(_, it)| it.is_none()) {
            // Rotates among those with equally few.
            let around = (0..ready.len()).map(|at| (number + at) % ready.len());
            let least = around.min_by_key(|&at| counts[at]).expect("somebody is ready");
            counts[least] += 1;
            *owner = Some(least);
        }
        owners.into_iter().map(|owner| owner.map(|at| ready[at].slot)).collect()
    }

    /// A worker is dead, or was told to stop accepting.
    pub(crate) fn left(&mut self, slot: Slot) {
        for slots in self.owners.values_mut() {
            slots.remove(&slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_gets_the_socket_of_its_rank() {
        let mut deal = Deal::default();
        let hands = [Hand::Spread(vec![10, 11, 12]), Hand::Shared(20)];
        let changes = deal.update(&hands, &[ready(0, 0), ready(1, 1), ready(2, 2)]);
        let expected = [
            listen(0, 10),
            listen(1, 11),
            listen(2, 12),
            listen(0, 20),
            listen(1, 20),
            listen(2, 20),
        ];
        assert_eq!(changes, expected);
        assert_eq!(deal.update(&hands, &[ready(0, 0), ready(1, 1), ready(2, 2)]), []);
    }

    #[test]
    fn sockets_of_dead_workers_go_to_others_and_return() {
        let mut deal = Deal::default();
        let hands = [Hand::Spread(vec![10, 11, 12])];
        deal.update(&hands, &[ready(0, 0), ready(1, 1), ready(2, 2)]);
        deal.left(1);
        assert_eq!(deal.update(&hands, &[ready(0, 0), ready(2, 2)]), [listen(2, 11)]);
        let joining = Player { is_ready: false, ..ready(1, 1) };
        let changes = deal.update(&hands, &[ready(0, 0), joining, ready(2, 2)]);
        assert_eq!(changes, [listen(1, 11)], "both accept until the new one is known to");
        let changes = deal.update(&hands, &[ready(0, 0), ready(1, 1), ready(2, 2)]);
        assert_eq!(changes, [unlisten(2, 11)]);
    }

    #[test]
    fn each_worker_has_a_socket_and_each_socket_an_owner() {
        for sockets in 1..8 {
            let hands = [Hand::Spread((0..sockets).collect())];
            for present in 1..64_u32 {
                let ranks = (0..6).filter(|rank| present & (1 << rank) != 0);
                let players: Vec<Player> = ranks.map(|rank| ready(rank, rank)).collect();
                let mut deal = Deal::default();
                deal.update(&hands, &players);
                assert!(deal.owners.values().all(|slots| slots.len() == 1));
                for player in players.iter().filter(|player| player.rank < sockets) {
                    assert!(deal.owners[&player.rank].contains(&player.slot));
                }
            }
        }
    }

    #[test]
    fn workers_keep_their_sockets_when_others_leave() {
        let mut deal = Deal::default();
        let hands = [Hand::Spread((0..6).collect())];
        let players: Vec<Player> = (0..6).map(|rank| ready(rank, rank)).collect();
        deal.update(&hands, &players);
        let mut owned = deal.owners.clone();
        // Only the sockets of leaving workers move, and they are spread evenly.
        for count in (1..6).rev() {
            let changes = deal.update(&hands, &players[..count]);
            let gone = owned.values().filter(|slots| slots.contains(&(count as Slot))).count();
            assert_eq!(changes.len(), 2 * gone, "{count}: {changes:?}");
            for slot in 0..count as Slot {
                let has = deal.owners.values().filter(|slots| slots.contains(&slot)).count();
                assert!(has <= 6_usize.div_ceil(count), "{slot} of {count} has {has}");
            }
            owned = deal.owners.clone();
        }
    }

    #[test]
    fn a_worker_with_a_successor_gets_no_more_sockets() {
        let mut deal = Deal::default();
        let hands = [Hand::Spread(vec![10, 11, 12])];
        deal.update(&hands, &[ready(0, 0), ready(1, 1), ready(2, 2)]);
        deal.left(2);
        let changes = deal.update(&hands, &[ready(0, 0), ready(3, 0), ready(1, 1)]);
        assert_eq!(changes, [listen(3, 10), listen(3, 12), unlisten(0, 10)]);
    }

    #[test]
    fn a_successor_takes_the_socket_over() {
        let mut deal = Deal::default();
        let hands = [Hand::Spread(vec![10, 11])];
        deal.update(&hands, &[ready(0, 0), ready(1, 1)]);
        let changes = deal.update(&hands, &[ready(0, 0), ready(1, 1), ready(2, 0)]);
        assert_eq!(changes, [listen(2, 10), unlisten(0, 10)]);
    }

    #[test]
    fn sockets_without_an_owner_are_drained() {
        let mut deal = Deal::default();
        deal.update(&[Hand::Spread(vec![10, 11]), Hand::Shared(20)], &[ready(0, 0), ready(1, 1)]);
        let changes = deal.update(&[Hand::Shared(20)], &[ready(0, 0), ready(1, 1)]);
        let drain = |slot, listener| Change::Unlisten { slot, listener, drain: true };
        assert_eq!(changes, [drain(0, 10), drain(1, 11)]);
    }

    fn ready(slot: Slot, rank: u32) -> Player {
        Player { slot, rank, is_ready: true }
    }

    fn listen(slot: Slot, listener: ListenerId) -> Change {
        Change::Listen { slot, listener }
    }

    fn unlisten(slot: Slot, listener: ListenerId) -> Change {
        Change::Unlisten { slot, listener, drain: false }
    }
}
