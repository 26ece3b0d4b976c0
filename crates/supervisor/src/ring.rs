//! Changes of the pools' rings: which servers are live, agreed on by all workers.
//!
//! A change goes in two phases. First every worker *holds* the pool: it dispatches nothing more and
//! says so. When the last one has, every worker is *released* with the new ring. So at no instant
//! do two workers dispatch by different rings of one pool. A change that is not held in time is
//! abandoned, by releasing everybody with the old ring, and tried again later.
//!
//! A pure state machine: events and the time go in, messages come out of [`Rings::poll_message`].
//! It relies on two things: a channel delivers in order, and a worker that [left](Rings::left) is
//! dead and not merely out of reach.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use cashew_control::ToChild;
use tracing::{info, warn};

/// How long workers may take to hold a pool. Its clients wait as long.
pub(crate) const HOLD_TIMEOUT: Duration = Duration::from_millis(500);

/// How long an abandoned change waits for its next try.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A worker, by its slot. One slot has one worker at a time.
pub(crate) type Slot = u32;

pub(crate) struct Rings {
    pools: Vec<Ring>,
    workers: BTreeSet<Slot>,
    messages: VecDeque<(Slot, ToChild)>,
    halted: bool,
}

struct Ring {
    pool_name: String,
    server_names: Vec<String>,
    /// Grows with every change that is begun, so that a late answer to an abandoned change is told
    /// from one to its next try.
    version: u64,
    live: Vec<bool>,
    change: Option<Change>,
    /// Servers to be ejected or readmitted by the next change. Never holds what is true already
    /// or becomes true by the change under way.
    wanted: BTreeMap<u32, Wanted>,
    not_before: Option<Instant>,
}

/// A change whose hold has been sent and whose release has not.
struct Change {
    servers: BTreeMap<u32, Wanted>,
    /// Who may still dispatch by the old ring.
    waiting: BTreeSet<Slot>,
    deadline: Instant,
}

struct Wanted {
    live: bool,
    why: String,
}

impl Rings {
    /// `pools` are names of pools and of their servers. All servers are live.
    pub(crate) fn new<'a>(pools: impl IntoIterator<Item = (&'a str, Vec<String>)>) -> Self {
        let pools = pools.into_iter().map(|(pool_name, server_names)| Ring {
            pool_name: pool_name.to_owned(),
            version: 0,
            live: vec![true; server_names.len()],
            server_names,
            change: None,
            wanted: BTreeMap::new(),
            not_before: None,
        });
        Self {
            pools: pools.collect(),
            workers: BTreeSet::new(),
            messages: VecDeque::new(),
            halted: false,
        }
    }

    /// A worker was started; its messages are to be sent before [`ToChild::Start`]. No change waits
    /// for it that was begun before: it dispatches nothing until it has read of it.
    pub(crate) fn joined(&mut self, slot: Slot) {
        let new = self.workers.insert(slot);
        assert!(new, "the worker before it left");
        for (pool, ring) in (0..).zip(&self.pools) {
            self.messages.push_back((slot, ring.release(pool)));
            if ring.change.is_some() {
                self.messages
                    .push_back((slot, ToChild::Hold { pool, version: ring.version, drain_ms: 0 }));
            }
        }
    }

    /// A worker is dead.
    pub(crate) fn left(&mut self, slot: Slot, now: Instant) {
        self.workers.remove(&slot);
        self.messages.retain(|(to, _)| *to != slot);
        for pool in 0..self.pools.len() {
            if let Some(change) = &mut self.pools[pool].change {
                change.waiting.remove(&slot);
            }
            self.advance(pool, now);
        }
    }

    pub(crate) fn held(&mut self, slot: Slot, pool: u32, version: u64, now: Instant) {
        let Some(ring) = self.pools.get_mut(pool as usize) else { return };
        if version != ring.version {
            return;
        }
        if let Some(change) = &mut ring.change {
            change.waiting.remove(&slot);
        }
        self.advance(pool as usize, now);
    }

    pub(crate) fn server_down(&mut self, pool: u32, server: u32, why: String, now: Instant) {
        self.want(pool, server, Wanted { live: false, why }, now);
    }

    pub(crate) fn server_up(&mut self, pool: u32, server: u32, now: Instant) {
        let why = "it answers again".to_owned();
        self.want(pool, server, Wanted { live: true, why }, now);
    }

    /// Abandons what is under way and begins nothing any more: the instance is stopping.
    pub(crate) fn halt(&mut self) {
        self.halted = true;
        for pool in 0..self.pools.len() {
            self.pools[pool].wanted.clear();
            if self.pools[pool].change.take().is_some() {
                self.release(pool);
            }
        }
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        for pool in 0..self.pools.len() {
            if self.pools[pool].change.as_ref().is_some_and(|change| change.deadline <= now) {
                self.abandon(pool, now);
            }
            self.advance(pool, now);
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let of_ring = |ring: &Ring| match &ring.change {
            Some(change) => Some(change.deadline),
            None if ring.wanted.is_empty() => None,
            None => ring.not_before,
        };
        self.pools.iter().filter_map(of_ring).min()
    }

    pub(crate) fn poll_message(&mut self) -> Option<(Slot, ToChild)> {
        self.messages.pop_front()
    }

    fn want(&mut self, pool: u32, server: u32, wanted: Wanted, now: Instant) {
        let Some(ring) = self.pools.get_mut(pool as usize) else { return };
        let Some(&live) = ring.live.get(server as usize) else { return };
        if self.halted {
            return;
        }
        let change = ring.change.as_ref().and_then(|change| change.servers.get(&server));
        if change.map_or(live, |change| change.live) == wanted.live {
            ring.wanted.remove(&server);
        } else {
            // The first reason is the one that counts.
            ring.wanted.entry(server).or_insert(wanted);
        }
        self.advance(pool as usize, now);
    }

    /// Finishes the change of a pool that everybody holds and begins its next one.
    fn advance(&mut self, pool: usize, now: Instant) {
        loop {
            let ring = &mut self.pools[pool];
            match &ring.change {
                Some(change) if !change.waiting.is_empty() => return,
                Some(_) => self.commit(pool),
                None if ring.wanted.is_empty() => return,
                None if ring.not_before.is_some_and(|instant| now < instant) => return,
                None => self.begin(pool, now),
            }
        }
    }

    fn begin(&mut self, pool: usize, now: Instant) {
        let ring = &mut self.pools[pool];
        ring.version += 1;
        ring.not_before = None;
        ring.change = Some(Change {
            servers: std::mem::take(&mut ring.wanted),
            waiting: self.workers.clone(),
            deadline: now + HOLD_TIMEOUT,
        });
        let hold = ToChild::Hold { pool: pool as u32, version: ring.version, drain_ms: 0 };
        self.broadcast(hold);
    }

    fn commit(&mut self, pool: usize) {
        let ring = &mut self.pools[pool];
        let change = ring.change.take().expect("a change is under way");
        for (server, wanted) in change.servers {
            ring.live[server as usize] = wanted.live;
            let (pool, server) = (&ring.pool_name, &ring.server_names[server as usize]);
            if wanted.live {
                info!("pool '{pool}': server '{server}' is readmitted: {}", wanted.why);
            } else {
                warn!("pool '{pool}': server '{server}' is ejected: {}", wanted.why);
            }
        }
        if !ring.live.contains(&true) {
            warn!("pool '{}': all servers are ejected", ring.pool_name);
        }
        self.release(pool);
    }

    fn abandon(&mut self, pool: usize, now: Instant) {
        let ring = &mut self.pools[pool];
        let change = ring.change.take().expect("a change is under way");
        warn!(
            "pool '{}': the ring is not changed, workers {:?} did not hold in time",
            ring.pool_name, change.waiting
        );
        // What was wanted meanwhile contradicts the change, so both vanish.
        for (server, wanted) in change.servers {
            if ring.wanted.remove(&server).is_none() {
                ring.wanted.insert(server, wanted);
            }
        }
        ring.not_before = Some(now + RETRY_PAUSE);
        self.release(pool);
    }

    fn release(&mut self, pool: usize) {
        let release = self.pools[pool].release(pool as u32);
        self.broadcast(release);
    }

    fn broadcast(&mut self, message: ToChild) {
        self.messages.extend(self.workers.iter().map(|&slot| (slot, message.clone())));
    }
}

impl Ring {
    fn release(&self, pool: u32) -> ToChild {
        ToChild::Release { pool, version: self.version, live: self.live.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_learns_the_ring_before_it_starts() {
        let mut rings = rings();
        rings.joined(0);
        assert_eq!(messages(&mut rings), [(0, release(0, 0, "11")), (0, release(1, 0, "111"))]);
    }

    #[test]
    fn everybody_holds_before_anybody_is_released() {
        let (mut rings, now) = running([0, 1]);
        rings.server_down(1, 2, "refused".into(), now);
        assert_eq!(messages(&mut rings), [(0, hold(1, 1)), (1, hold(1, 1))]);
        rings.held(1, 1, 1, now);
        assert_eq!(messages(&mut rings), []);
        rings.held(0, 1, 1, now);
        assert_eq!(messages(&mut rings), [(0, release(1, 1, "110")), (1, release(1, 1, "110"))]);
        assert_eq!(rings.poll_timeout(), None);
    }

    #[test]
    fn reports_of_many_workers_are_one_change() {
        let (mut rings, now) = running([0, 1]);
        rings.server_down(0, 1, "refused".into(), now);
        rings.server_down(0, 1, "refused".into(), now);
        assert_eq!(messages(&mut rings), [(0, hold(0, 1)), (1, hold(0, 1))]);
        rings.held(0, 0, 1, now);
        rings.held(1, 0, 1, now);
        messages(&mut rings);
        rings.server_down(0, 1, "refused".into(), now);
        assert_eq!(messages(&mut rings), []);
    }

    #[test]
    fn what_comes_during_a_change_makes_the_next_one() {
        let (mut rings, now) = running([0]);
        rings.server_down(1, 0, "refused".into(), now);
        rings.server_down(1, 1, "refused".into(), now);
        rings.server_down(1, 2, "refused".into(), now);
        rings.server_up(1, 2, now);
        assert_eq!(messages(&mut rings), [(0, hold(1, 1))]);
        rings.held(0, 1, 1, now);
        assert_eq!(messages(&mut rings), [(0, release(1, 1, "011")), (0, hold(1, 2))]);
        rings.server_up(1, 0, now);
        rings.held(0, 1, 2, now);
        assert_eq!(messages(&mut rings), [(0, release(1, 2, "001")), (0, hold(1, 3))]);
        rings.held(0, 1, 3, now);
        assert_eq!(messages(&mut rings), [(0, release(1, 3, "101"))]);
    }

    #[test]
    fn all_servers_may_be_ejected_and_come_back() {
        let (mut rings, now) = running([0]);
        rings.server_down(0, 0, "refused".into(), now);
        rings.held(0, 0, 1, now);
        rings.server_down(0, 1, "refused".into(), now);
        rings.held(0, 0, 2, now);
        assert_eq!(messages(&mut rings).last(), Some(&(0, release(0, 2, "00"))));
        rings.server_up(0, 1, now);
        rings.held(0, 0, 3, now);
        assert_eq!(messages(&mut rings).last(), Some(&(0, release(0, 3, "01"))));
    }

    #[test]
    fn a_change_not_held_in_time_is_abandoned_and_tried_again() {
        let (mut rings, now) = running([0, 1]);
        rings.server_down(0, 1, "refused".into(), now);
        rings.held(0, 0, 1, now);
        messages(&mut rings);
        let late = rings.poll_timeout().unwrap();
        assert_eq!(late, now + HOLD_TIMEOUT);
        rings.handle_timeout(late);
        assert_eq!(messages(&mut rings), [(0, release(0, 1, "11")), (1, release(0, 1, "11"))]);

        rings.server_down(0, 1, "refused".into(), late);
        assert_eq!(messages(&mut rings), [], "it is not time yet");
        let again = rings.poll_timeout().unwrap();
        assert_eq!(again, late + RETRY_PAUSE);
        rings.handle_timeout(again);
        assert_eq!(messages(&mut rings), [(0, hold(0, 2)), (1, hold(0, 2))]);
        rings.held(1, 0, 1, again);
        rings.held(0, 0, 2, again);
        assert_eq!(messages(&mut rings), [], "an answer to the abandoned try does not count");
        rings.held(1, 0, 2, again);
        assert_eq!(messages(&mut rings), [(0, release(0, 2, "10")), (1, release(0, 2, "10"))]);
    }

    #[test]
    fn a_server_that_recovers_meanwhile_is_not_ejected_by_the_next_try() {
        let (mut rings, now) = running([0]);
        rings.server_down(0, 1, "refused".into(), now);
        rings.server_up(0, 1, now);
        rings.handle_timeout(now + HOLD_TIMEOUT);
        rings.handle_timeout(now + HOLD_TIMEOUT + RETRY_PAUSE);
        assert_eq!(messages(&mut rings), [(0, hold(0, 1)), (0, release(0, 1, "11"))]);
    }

    #[test]
    fn a_dead_worker_holds_nothing_up() {
        let (mut rings, now) = running([0, 1]);
        rings.server_down(0, 0, "refused".into(), now);
        rings.held(0, 0, 1, now);
        messages(&mut rings);
        rings.left(1, now);
        assert_eq!(messages(&mut rings), [(0, release(0, 1, "01"))]);
    }

    #[test]
    fn a_worker_that_joins_in_a_change_holds_from_its_start_and_is_not_waited_for() {
        let (mut rings, now) = running([0]);
        rings.server_down(0, 0, "refused".into(), now);
        messages(&mut rings);
        rings.joined(1);
        let expected = [(1, release(0, 1, "11")), (1, hold(0, 1)), (1, release(1, 0, "111"))];
        assert_eq!(messages(&mut rings), expected);
        rings.held(0, 0, 1, now);
        assert_eq!(messages(&mut rings), [(0, release(0, 1, "01")), (1, release(0, 1, "01"))]);
    }

    #[test]
    fn without_workers_a_change_is_made_at_once() {
        let (mut rings, now) = running([0]);
        rings.left(0, now);
        rings.server_down(0, 0, "refused".into(), now);
        assert_eq!(messages(&mut rings), []);
        rings.joined(0);
        assert_eq!(messages(&mut rings)[0], (0, release(0, 1, "01")));
    }

    #[test]
    fn a_stopping_instance_changes_nothing() {
        let (mut rings, now) = running([0]);
        rings.server_down(0, 0, "refused".into(), now);
        messages(&mut rings);
        rings.halt();
        assert_eq!(messages(&mut rings), [(0, release(0, 1, "11"))]);
        rings.server_down(0, 0, "refused".into(), now);
        assert_eq!(messages(&mut rings), []);
        assert_eq!(rings.poll_timeout(), None);
    }

    #[test]
    fn what_makes_no_sense_is_ignored() {
        let (mut rings, now) = running([0]);
        rings.held(0, 0, 0, now);
        rings.held(0, 9, 1, now);
        rings.server_down(9, 0, String::new(), now);
        rings.server_up(0, 9, now);
        rings.server_up(0, 0, now);
        assert_eq!(messages(&mut rings), []);
    }

    /// Workers that read their mail late, die and are replaced at random moments never dispatch by
    /// two rings of one pool at once.
    #[test]
    fn no_two_workers_ever_dispatch_by_different_rings() {
        for seed in 1..=300 {
            Simulation::new(seed).run();
        }
    }

    struct Simulation {
        random: u64,
        rings: Rings,
        now: Instant,
        workers: [Option<Worker>; 3],
        changes: u32,
    }

    #[derive(Default)]
    struct Worker {
        inbox: VecDeque<ToChild>,
        started: bool,
        held: bool,
        live: Vec<bool>,
    }

    impl Simulation {
        fn new(seed: u64) -> Self {
            let rings = Rings::new([("alpha", vec!["a".into(), "b".into(), "c".into()])]);
            Self {
                random: seed,
                rings,
                now: Instant::now(),
                workers: [(); 3].map(|()| None),
                changes: 0,
            }
        }

        fn run(&mut self) {
            for _ in 0..2000 {
                self.step();
                while let Some((slot, message)) = self.rings.poll_message() {
                    let worker = self.workers[slot as usize].as_mut();
                    worker.expect("messages of the dead are dropped").inbox.push_back(message);
                }
                self.check();
            }
            assert!(self.changes > 5, "too little happened: {}", self.changes);
        }

        fn step(&mut self) {
            let slot = self.below(3);
            match self.below(20) {
                0 if self.workers[slot].is_some() => {
                    self.workers[slot] = None;
                    self.rings.left(slot as u32, self.now);
                }
                1..=3 if self.workers[slot].is_none() => {
                    self.workers[slot] = Some(Worker::default());
                    self.rings.joined(slot as u32);
                    let mut worker = self.workers[slot].take().unwrap();
                    while let Some((to, message)) = self.rings.poll_message() {
                        assert_eq!(to, slot as u32);
                        worker.inbox.push_back(message);
                    }
                    worker.inbox.push_back(ToChild::Start);
                    self.workers[slot] = Some(worker);
                }
                4 => {
                    let server = self.below(3) as u32;
                    self.rings.server_down(0, server, "refused".into(), self.now);
                }
                5 => {
                    let server = self.below(3) as u32;
                    self.rings.server_up(0, server, self.now);
                }
                6 => {
                    let pause = Duration::from_millis(self.below(400) as u64);
                    self.now += pause;
                    self.rings.handle_timeout(self.now);
                }
                _ => self.read(slot),
            }
        }

        fn read(&mut self, slot: usize) {
            let Some(worker) = &mut self.workers[slot] else { return };
            match worker.inbox.pop_front() {
                Some(ToChild::Start) => worker.started = true,
                Some(ToChild::Hold { pool, version, .. }) => {
                    worker.held = true;
                    self.rings.held(slot as u32, pool, version, self.now);
                }
                Some(ToChild::Release { live, .. }) => {
                    self.changes += u32::from(worker.started && worker.live != live);
                    (worker.held, worker.live) = (false, live);
                }
                Some(message) => panic!("unexpected {message:?}"),
                None => {}
            }
        }

        fn check(&self) {
            let mut dispatching =
                self.workers.iter().flatten().filter(|worker| worker.started && !worker.held);
            if let Some(first) = dispatching.next() {
                assert!(dispatching.all(|other| other.live == first.live));
            }
        }

        fn below(&mut self, limit: usize) -> usize {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.random >> 33) as usize % limit
        }
    }

    fn rings() -> Rings {
        Rings::new([
            ("alpha", vec!["a".into(), "b".into()]),
            ("beta", vec!["a".into(), "b".into(), "c".into()]),
        ])
    }

    fn running<const N: usize>(slots: [Slot; N]) -> (Rings, Instant) {
        let mut rings = rings();
        slots.into_iter().for_each(|slot| rings.joined(slot));
        messages(&mut rings);
        (rings, Instant::now())
    }

    fn messages(rings: &mut Rings) -> Vec<(Slot, ToChild)> {
        std::iter::from_fn(|| rings.poll_message()).collect()
    }

    fn hold(pool: u32, version: u64) -> ToChild {
        ToChild::Hold { pool, version, drain_ms: 0 }
    }

    fn release(pool: u32, version: u64, live: &str) -> ToChild {
        ToChild::Release { pool, version, live: live.chars().map(|c| c == '1').collect() }
    }
}
