//! When workers hand sessions over because their loads differ.
//!
//! The kernel spreads connections by hash, not by load, so a few busy clients make workers uneven.
//! Once a second the busy shares of the workers are compared. When they are too far apart, the
//! busiest worker sheds as much as would make the two even. The effect shows later: until then
//! nothing more is moved, and each move that did not help doubles the pause. So a load that no move
//! can spread, such as that of one client, comes to rest.
//!
//! Pure: shares and time go in, moves come out.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::ring::Slot;

/// How often the loads are to be reported.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// Workers below this busy share need no help.
const BUSY_MIN: u32 = 250;

/// How long a move needs to show in the loads, which are smoothed.
const PAUSE_MIN: Duration = Duration::from_secs(3);

const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Share of time, in permille.
type Permille = u32;

#[derive(Debug)]
pub(crate) struct Balance {
    /// A smoothed mean in which the last second counts for half.
    loads: BTreeMap<Slot, Permille>,
    last: Option<Move>,
    pause: Duration,
    not_before: Option<Instant>,
}

/// The sessions that `from` hands over go to `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) from: Slot,
    pub(crate) to: Slot,
    /// The share of `from`'s work to move.
    pub(crate) share: Permille,
    /// How far apart the loads were.
    difference: Permille,
}

impl Balance {
    pub(crate) fn new() -> Self {
        Self { loads: BTreeMap::new(), last: None, pause: PAUSE_MIN, not_before: None }
    }

    /// `loads` has all serving workers. The threshold is a difference between two loads.
    pub(crate) fn handle_loads(
        &mut self,
        loads: &[(Slot, Permille)],
        threshold: Permille,
        now: Instant,
    ) -> Option<Move> {
        let smoothed = |&(slot, load)| {
            let before = self.loads.get(&slot).copied().unwrap_or(load);
            (slot, (before + load) / 2)
        };
        self.loads = loads.iter().map(smoothed).collect();
        if self.not_before.is_some_and(|instant| now < instant) {
            return None;
        }
        let (&to, &least) = self.loads.iter().min_by_key(|(_, load)| **load)?;
        let (&from, &most) = self.loads.iter().max_by_key(|(_, load)| **load)?;
        let difference = most - least;
        self.judge();
        if difference <= threshold || most <= BUSY_MIN {
            return None;
        }
        let share = (difference / 2 * 1000 / most).max(1);
        let next = Move { from, to, share, difference };
        self.last = Some(next);
        self.not_before = Some(now + self.pause);
        Some(next)
    }

    /// Which worker gets the sessions that this worker hands over.
    pub(crate) fn target(&self, from: Slot) -> Option<Slot> {
        self.last.filter(|last| last.from == from).map(|last| last.to)
    }

    /// Checks the last move: the loads of its two workers should be closer now.
    fn judge(&mut self) {
        let Some(last) = self.last.take() else { return };
        let (Some(&from), Some(&to)) = (self.loads.get(&last.from), self.loads.get(&last.to))
        else {
            return;
        };
        // The reverse difference counts as well: then the move was too large.
        let helped = from.abs_diff(to) < last.difference - last.difference / 8;
        self.pause = if helped { PAUSE_MIN } else { (self.pause * 2).min(PAUSE_MAX) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THRESHOLD: Permille = 200;

    #[test]
    fn even_or_idle_workers_move_nothing() {
        let mut balance = Balance::new();
        let now = Instant::now();
        assert_eq!(balance.handle_loads(&[], THRESHOLD, now), None);
        assert_eq!(balance.handle_loads(&[(0, 1000)], THRESHOLD, now), None);
        for loads in [[(0, 900), (1, 700)], [(0, 250), (1, 0)], [(0, 1000), (1, 1000)]] {
            let mut balance = Balance::new();
            for _ in 0..10 {
                assert_eq!(balance.handle_loads(&loads, THRESHOLD, now), None);
            }
        }
    }

    #[test]
    fn half_of_the_difference_is_shed() {
        let mut balance = Balance::new();
        let now = Instant::now();
        let next = balance.handle_loads(&[(3, 400), (5, 800), (7, 600)], THRESHOLD, now).unwrap();
        assert_eq!((next.from, next.to, next.share), (5, 3, 250));
        assert_eq!(balance.target(5), Some(3));
        assert_eq!(balance.target(7), None);
    }

    #[test]
    fn many_clients_are_spread_in_a_few_moves() {
        for workers in 2..6 {
            let mut world = World::new(workers);
            // All clients are on the first worker, each a small load.
            world.clients = (0..200).map(|_| (0, 900 / 200)).collect();
            world.run(60);
            assert!(world.is_even(), "{workers}: {:?}", world.loads());
            let moves = world.moves;
            assert!(moves <= 3 * workers, "{workers}: {moves} moves");
            world.run(600);
            assert_eq!(world.moves, moves, "{workers}: it comes to rest");
        }
    }

    #[test]
    fn uneven_clients_are_spread_too() {
        let mut world = World::new(4);
        world.clients = (1..30).map(|i| (i as Slot % 2, i * 3)).collect();
        world.run(120);
        assert!(world.is_even(), "{:?}", world.loads());
        let moves = world.moves;
        world.run(600);
        assert_eq!(world.moves, moves);
    }

    #[test]
    fn a_single_heavy_client_is_not_moved_back_and_forth() {
        let mut world = World::new(2);
        world.clients = vec![(0, 900)];
        world.run(600);
        assert!(world.moves <= 14, "{}", world.moves);
        assert_eq!(world.clients, [(0, 900)]);

        // With other clients beside it, only those are moved.
        let mut world = World::new(2);
        world.clients = (0..10).map(|_| (0, 20)).collect();
        world.clients.push((0, 700));
        world.run(600);
        assert!(world.moves <= 15, "{}", world.moves);
        let loads = world.loads();
        assert_eq!((loads[0].1, loads[1].1), (700, 200));
    }

    #[test]
    fn jumping_loads_cause_few_moves() {
        let mut world = World::new(3);
        world.clients = (0..90).map(|i| (i % 3, 18)).collect();
        let mut random = 1_u64;
        for _ in 0..300 {
            for client in &mut world.clients {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                client.1 = (random >> 33) as u32 % 36;
            }
            world.run(1);
        }
        assert!(world.moves <= 2, "{}", world.moves);
    }

    /// Workers with clients of given loads. They shed as real workers do: the largest clients that
    /// still fit come first.
    struct World {
        workers: u32,
        clients: Vec<(Slot, Permille)>,
        balance: Balance,
        now: Instant,
        moves: u32,
    }

    impl World {
        fn new(workers: u32) -> Self {
            let (balance, now) = (Balance::new(), Instant::now());
            Self { workers, clients: Vec::new(), balance, now, moves: 0 }
        }

        fn run(&mut self, seconds: u32) {
            for _ in 0..seconds {
                self.now += INTERVAL;
                let loads = self.loads();
                if let Some(next) = self.balance.handle_loads(&loads, THRESHOLD, self.now) {
                    self.moves += 1;
                    self.shed(next);
                }
            }
        }

        fn shed(&mut self, next: Move) {
            let total: u32 =
                self.clients.iter().filter(|it| it.0 == next.from).map(|it| it.1).sum();
            let mut budget = total * next.share / 1000;
            self.clients.sort_by_key(|client| std::cmp::Reverse(client.1));
            for client in &mut self.clients {
                if client.0 == next.from && client.1 <= budget {
                    budget -= client.1;
                    client.0 = next.to;
                }
            }
        }

        fn loads(&self) -> Vec<(Slot, Permille)> {
            let load = |slot| self.clients.iter().filter(|it| it.0 == slot).map(|it| it.1).sum();
            (0..self.workers).map(|slot| (slot, load(slot))).collect()
        }

        fn is_even(&self) -> bool {
            let loads: Vec<Permille> = self.loads().into_iter().map(|(_, load)| load).collect();
            let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
            most - least <= THRESHOLD || *most <= BUSY_MIN
        }
    }
}
