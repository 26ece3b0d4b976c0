//! Rings with workers that misbehave in every possible way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use cashew_config::snapshot::TopologyState;
use cashew_control::ToChild;

use super::Rings;
use super::flaps::FLAP_PAUSE_MAX;
use super::pool::RingConfig;
use super::tests::{pool, replicated};

/// Workers that read their messages late, die and are replaced at random moments, while epochs
/// change, never dispatch by two rings of one pool at once.
#[test]
fn no_two_workers_ever_dispatch_by_different_rings() {
    for seed in 1..=300 {
        Simulation::new(seed, |names| replicated(names, 0)).run();
    }
}

/// The same where a pool opens as soon as two of three servers are down.
#[test]
fn nor_do_they_while_pools_open_and_close() {
    let half = |names| RingConfig { fail_open_percent: 50, ..pool("alpha", names) };
    let times: u32 = (1..=300).map(|seed| Simulation::new(seed, half).run()).sum();
    assert!(times > 1000, "too little happened: {times}");
}

/// Epochs are switched while nobody reads: rings do not ensure that all workers switch together.
struct Simulation {
    random: u64,
    rings: Rings,
    now: Instant,
    workers: [Option<Worker>; 3],
    /// The server at each place of the pool.
    servers: Vec<&'static str>,
    config: fn([&'static str; 3]) -> RingConfig,
    versions: BTreeSet<u64>,
    changes: u32,
    switches: u32,
    /// How often the pool opened.
    opened: u32,
}

#[derive(Default)]
struct Worker {
    inbox: VecDeque<ToChild>,
    started: bool,
    held: bool,
    topology: Option<TopologyState>,
}

impl Simulation {
    fn new(seed: u64, config: fn([&'static str; 3]) -> RingConfig) -> Self {
        Self {
            random: seed,
            rings: Rings::new(vec![config(["a", "b", "c"])]),
            now: Instant::now(),
            workers: [(); 3].map(|()| None),
            servers: vec!["a", "b", "c"],
            config,
            versions: BTreeSet::new(),
            changes: 0,
            switches: 0,
            opened: 0,
        }
    }

    fn run(&mut self) -> u32 {
        for _ in 0..2000 {
            let (was_quiet, was_open) = (self.rings.is_quiet(), self.rings.is_open(0));
            self.step();
            self.opened += u32::from(!was_open && self.rings.is_open(0));
            assert!(!(self.rings.frozen && was_quiet) || self.rings.is_quiet());
            self.deliver();
            self.check();
        }
        assert!(self.changes > 5, "too little happened: {}", self.changes);
        assert!(self.switches > 2, "too little happened: {}", self.switches);
        self.settle();
        self.opened
    }

    fn deliver(&mut self) {
        while let Some((slot, message)) = self.rings.poll_message() {
            if let ToChild::Hold { version, .. } = message {
                self.versions.insert(version);
                assert_eq!(self.versions.last(), Some(&version), "a version comes again");
            }
            let worker = self.workers[slot as usize].as_mut();
            worker.expect("messages of the dead are dropped").inbox.push_back(message);
        }
    }

    fn step(&mut self) {
        let slot = self.below(3);
        match self.below(24) {
            0 if self.workers[slot].is_some() => {
                self.workers[slot] = None;
                self.rings.left(slot as u32, self.now);
            }
            1..=3 if self.workers[slot].is_none() => {
                self.workers[slot] = Some(Worker::default());
                self.rings.joined(slot as u32);
                self.deliver();
                self.workers[slot].as_mut().unwrap().inbox.push_back(ToChild::Start);
            }
            4 | 5 => {
                let server = self.below(3) as u32;
                self.rings.server_down(0, server, "refused".into(), self.now);
            }
            6 | 7 => {
                let server = self.below(3) as u32;
                self.rings.server_up(0, server, self.now);
            }
            12 | 13 => {
                // Whether it may be is not what this is about.
                let server = self.below(3) as u32;
                let _ = self.rings.promote(0, server, "asked for".into(), self.now);
            }
            8 => {
                let pause = Duration::from_millis(self.below(400) as u64);
                self.now += pause;
                self.rings.handle_timeout(self.now);
            }
            9 => self.rings.freeze(),
            10 => self.rings.thaw(self.now),
            11 if self.rings.frozen && self.rings.is_quiet() => self.switch(),
            _ => {
                self.read(slot);
            }
        }
    }

    /// All workers read their messages and switch together.
    fn switch(&mut self) {
        (0..3).for_each(|slot| while self.read(slot) {});
        let places = self.servers.len();
        let (one, other) = (self.below(places), self.below(places));
        let known: BTreeMap<_, _> = self.servers.iter().copied().zip(self.rings.live(0)).collect();
        self.servers.swap(one, other);
        if self.below(3) == 0 {
            self.servers[one] = ["a", "b", "c", "d", "e"]
                .into_iter()
                .find(|name| !self.servers.contains(name))
                .unwrap();
        }
        let next = vec![(self.config)([self.servers[0], self.servers[1], self.servers[2]])];
        let preview = self.rings.switched(next.clone());
        self.rings.switch(next);
        let live = self.rings.live(0);
        assert_eq!(preview.live(0), live);
        for (server, live) in self.servers.iter().zip(&live) {
            assert_eq!(*live, known.get(server).copied().unwrap_or(true));
        }
        for worker in self.workers.iter_mut().flatten() {
            worker.topology = Some(self.rings.topology(0));
        }
        self.switches += 1;
    }

    /// Returns whether there was a message.
    fn read(&mut self, slot: usize) -> bool {
        let Some(worker) = &mut self.workers[slot] else { return false };
        match worker.inbox.pop_front() {
            Some(ToChild::Start) => worker.started = true,
            Some(ToChild::Hold { pool, version, .. }) => {
                worker.held = true;
                self.rings.held(slot as u32, pool, version, self.now);
            }
            Some(ToChild::Release { topology, .. }) => {
                let topology = Some(topology);
                self.changes += u32::from(worker.started && worker.topology != topology);
                (worker.held, worker.topology) = (false, topology);
            }
            Some(message) => panic!("unexpected {message:?}"),
            None => return false,
        }
        true
    }

    fn check(&self) {
        // Nobody is ejected where nothing is under way, or is still to be said, and the pool is open.
        let ring = &self.rings.pools[0];
        if ring.is_open() && ring.change.is_none() && !ring.has_wishes() {
            assert_eq!(self.rings.live(0), [true; 3]);
        }
        let mut dispatching =
            self.workers.iter().flatten().filter(|worker| worker.started && !worker.held);
        if let Some(first) = dispatching.next() {
            assert!(dispatching.all(|other| other.topology == first.topology));
        }
    }

    /// In the end all servers return, and no pool is held any more.
    fn settle(&mut self) {
        self.rings.thaw(self.now);
        for _ in 0..10 {
            self.now += FLAP_PAUSE_MAX;
            self.rings.handle_timeout(self.now);
            (0..3).for_each(|server| self.rings.server_up(0, server, self.now));
            for _ in 0..3 {
                self.deliver();
                (0..3).for_each(|slot| while self.read(slot) {});
            }
        }
        assert_eq!(self.rings.live(0), [true; 3]);
        assert!(self.rings.is_quiet() && !self.rings.is_open(0));
        assert!(self.workers.iter().flatten().all(|worker| !worker.held));
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) as usize % limit
    }
}
