//! The whole world: all actors, and the consequences of each event.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use cashew_config::snapshot::Pool;
use cashew_engine::{Admission, CloseReason};

use crate::client::{Client, Temper};
use crate::clock::{Clock, Event};
use crate::cluster::Cluster;
use crate::coordinator::{Answer, Coordinator, Order};
use crate::counts::Counts;
use crate::gateway::{Gateway, Input, Wish};
use crate::network::{Arrival, Network, Peer, Side};
use crate::oracle::Oracle;
use crate::random::Random;
use crate::replication::Replication;
use crate::request::Access;
use crate::scenario::{Scenario, pool_id};
use crate::server::{Health, Server};
use crate::shrink;
use crate::trace::Trace;
use crate::wire::Wires;

/// The longest time with faults before everything is healed.
const TALK_MAX_US: u64 = 6_000_000;
/// The longest time after that until all replies have come.
const SETTLE_MAX_US: u64 = 40_000_000;
/// The longest time of a reply when only others are slow: some dozen network delays and ticks.
const UNDISTURBED_MAX_US: u64 = 20_000;
/// A run with more events does not end by itself.
const STEPS_MAX: u64 = 3_000_000;
/// An unanswered attempt to connect is repeated, as TCP does.
pub(crate) const CONNECT_AGAIN_US: u64 = 1_000_000;

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Over all events, in order.
    pub hash: u64,
    pub steps: u64,
    /// Virtual time that passed.
    pub micros: u64,
    pub counts: Counts,
}

/// Runs in which a scenario that fails may be made smaller.
const SHRINK_TRIES: u32 = 150;

/// Plays a scenario to its end.
///
/// # Panics
/// At the first violation. Then the last events are printed, and of the first scenario of the process that fails those
/// of a smaller one that fails in the same way.
pub fn run(scenario: &Scenario) -> Report {
    static HAS_FAILED: AtomicBool = AtomicBool::new(false);
    let mut report = None;
    let failure = shrink::failure_of(|| report = Some(play_once(scenario)));
    if let Some(failure) = failure
        && !HAS_FAILED.swap(true, Ordering::Relaxed)
    {
        let fails = |scenario: &Scenario| {
            shrink::failure_of(|| _ = play_once(scenario)).as_ref() == Some(&failure)
        };
        let smaller = shrink::shrunk(scenario, SHRINK_TRIES, fails);
        eprintln!(
            "\nSeed {} made smaller: {} clients, {} of them at once, with {} requests each; faults {:?}, {} of them",
            smaller.seed,
            smaller.clients_total,
            smaller.clients,
            smaller.temper.requests,
            smaller.faults.kinds,
            smaller.faults.count_max,
        );
        _ = catch_unwind(AssertUnwindSafe(|| play_once(&smaller)));
    }
    // Once more where it failed, so that its panic is seen.
    report.unwrap_or_else(|| play_once(scenario))
}

pub(crate) fn play_once(scenario: &Scenario) -> Report {
    let mut world = World::new(scenario);
    world.play();
    world.fabric.oracle.counts.ring_changes = world.coordinator.changes;
    world.fabric.oracle.counts.epochs = world.coordinator.commits;
    Report {
        hash: world.fabric.trace.hash(),
        steps: world.steps,
        micros: world.fabric.clock.now(),
        counts: world.fabric.oracle.counts,
    }
}

/// State shared by all actors.
pub(crate) struct Fabric {
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    pub(crate) network: Network,
    pub(crate) oracle: Oracle,
    pub(crate) trace: Trace,
    pub(crate) pools: Vec<Pool>,
    pub(crate) cuts: u64,
    /// Servers give surprising replies, so connections are followed.
    pub(crate) has_surprises: bool,
    pub(crate) wires: Wires,
    pub(crate) replication: Replication,
    pub(crate) cluster: Option<Cluster>,
    /// Longest request of any client.
    pub(crate) request_size_max: u64,
    /// By the server's number: its pool, and its index there.
    pub(crate) servers: Vec<(u32, u32)>,
}

impl Fabric {
    pub(crate) fn server_of(&self, server: u32) -> (u32, u32) {
        self.servers[server as usize]
    }
}

pub(crate) struct World<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) fabric: Fabric,
    pub(crate) gateways: Vec<Gateway>,
    pub(crate) servers: Vec<Server>,
    pub(crate) clients: Vec<Client>,
    pub(crate) coordinator: Coordinator,
    attempts: Vec<Attempt>,
    letters: Vec<Letter>,
    /// By gateway: when the last message to it arrives, so that they arrive in order.
    pub(crate) last_letter: Vec<u64>,
    drained: BTreeSet<u32>,
    /// Gateways that all clients are to leave.
    pub(crate) retired: BTreeSet<u32>,
    /// How often clients were ordered to leave.
    pub(crate) shifts: u64,
    pub(crate) faults: u64,
    pub(crate) healed: bool,
    /// What has happened to the cluster, and when discovery looks next.
    pub(crate) reshardings: u64,
    pub(crate) map_at: u64,
    steps: u64,
    reloads: u64,
}

struct Attempt {
    gateway: u32,
    token: u64,
    server: u32,
}

pub(crate) enum Letter {
    ToGateway { gateway: u32, input: Input },
    Held { gateway: u32, pool: u32, version: u64 },
    Answer { gateway: u32, epoch: u64, answer: Answer },
    Want { pool: u32, server: u32, live: bool },
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let pools = scenario.universe.clone();
        let mut random = Random::new(scenario.seed);
        let mut servers = Vec::new();
        for (pool, config) in pools.iter().enumerate() {
            for index in 0..config.servers.len() {
                let id = servers.len() as u32;
                servers.push(Server::new(id, pool as u32, index as u32, config));
            }
        }
        let mut fabric = Fabric {
            clock: Clock::default(),
            network: Network::new(scenario.weather),
            oracle: Oracle::new(scenario),
            trace: Trace::default(),
            cuts: scenario.weather.cuts,
            has_surprises: scenario.surprises,
            wires: Wires::default(),
            replication: Replication::new(scenario.replication_lag_max_us, &pools),
            cluster: scenario.new_cluster(),
            request_size_max: 5 * (scenario.temper.value_size_max + 500),
            servers: servers.iter().map(|server| (server.pool, server.index)).collect(),
            random: random.fork(),
            pools,
        };
        let gateways = (0..scenario.gateways)
            .map(|id| Gateway::new(id, scenario.gateways, &scenario.snapshot, &mut fabric))
            .collect();
        let orders = fabric.random.fork();
        let mut world = Self {
            scenario,
            fabric,
            gateways,
            servers,
            clients: Vec::new(),
            coordinator: Coordinator::new(scenario.gateways, &scenario.snapshot, orders),
            attempts: Vec::new(),
            letters: Vec::new(),
            last_letter: vec![0; scenario.gateways as usize],
            drained: BTreeSet::new(),
            retired: BTreeSet::new(),
            shifts: 0,
            faults: 0,
            healed: false,
            reshardings: 0,
            map_at: 0,
            steps: 0,
            reloads: 0,
        };
        for _ in 0..scenario.clients {
            world.join();
        }
        if scenario.faults.any() {
            let at = world.fabric.random.below(scenario.faults.gap_max_us);
            world.fabric.clock.plan(at, Event::Fault);
        }
        if scenario.reloads.count > 0 {
            let at = world.fabric.random.below(scenario.reloads.gap_max_us);
            world.fabric.clock.plan(at, Event::Reload);
        }
        if scenario.promotions.count > 0 {
            let at = world.fabric.random.below(scenario.promotions.gap_max_us);
            world.fabric.clock.plan(at, Event::Promote);
        }
        if let Some(at) = scenario.drain_at {
            let gateway = world.fabric.random.below(scenario.gateways.into()) as u32;
            world.post(Letter::ToGateway { gateway, input: Input::Drain }, at);
        }
        if let Some(moves) = scenario.moves {
            let at = world.fabric.random.below(moves.gap_max_us);
            world.fabric.clock.plan(at, Event::Shift);
        }
        if let Some(plan) = &scenario.resharding {
            let at = world.fabric.random.below(plan.gap_max_us);
            world.fabric.clock.plan(at, Event::Reshard);
            world.plan_map(false);
        }
        if scenario.isolation {
            world.servers[0].health = Health::Hung;
        }
        world
    }

    fn play(&mut self) {
        self.advance(TALK_MAX_US, true);
        if self.scenario.isolation {
            self.check_isolation();
        }
        self.heal();
        self.settle();
        // Backoffs, probes and ring changes end.
        let end = self.fabric.clock.now() + 8_000_000;
        self.advance(end, false);
        if self.scenario.surprises {
            self.check_lasting_damage();
        }
        for (id, gateway) in self.gateways.iter().enumerate() {
            gateway.check_quiet(&self.fabric);
            let drained = self.drained.contains(&(id as u32));
            assert_eq!(gateway.engine.is_drained(), drained, "I3: gateway {id} is drained");
            let retired = self.retired.contains(&(id as u32));
            assert_eq!(gateway.engine.is_left(), retired, "I3: gateway {id} is left");
        }
        self.servers.iter().for_each(Server::check_clean);
        assert!(self.coordinator.is_whole(), "I3: a server that is well stays ejected");
        if let Some(cluster) = &self.fabric.cluster {
            let known = self.fabric.oracle.known_values();
            cluster.check(&known);
            self.fabric.oracle.counts.kept_keys = known.len() as u64;
        }
        if self.scenario.is_clean() && !self.fabric.oracle.was_cut_short() {
            assert_eq!((self.fabric.oracle.counts.errors, self.fabric.oracle.counts.cuts), (0, 0));
            if self.drained.is_empty() && !self.fabric.oracle.has_removed() {
                self.fabric.oracle.check_all_done();
            }
        }
    }

    /// Surprises have no lasting effect: new clients get correct replies.
    fn check_lasting_damage(&mut self) {
        self.fabric.check_wires_at_rest();
        let before = self.fabric.oracle.counts;
        for _ in 0..6 {
            self.join();
        }
        for client in &mut self.clients {
            client.calm(&mut self.fabric);
        }
        self.settle();
        let after = self.fabric.oracle.counts;
        assert_eq!((before.errors, before.cuts), (after.errors, after.cuts), "I1: damage lasts");
        let end = self.fabric.clock.now() + 8_000_000;
        self.advance(end, false);
        self.fabric.check_wires_at_rest();
    }

    /// Lets clients finish, however long that takes with a slow network, as long as there is
    /// progress.
    fn settle(&mut self) {
        loop {
            let before = self.fabric.oracle.progress();
            let end = self.fabric.clock.now() + SETTLE_MAX_US;
            self.advance(end, true);
            let Some(client) = self.clients.iter().find(|client| !client.is_gone()) else { return };
            if self.fabric.oracle.progress() == before {
                let ledger = &self.fabric.oracle.ledgers[client.id as usize];
                panic!("I3: client {} waits for ever: {}", client.id, ledger.describe());
            }
        }
    }

    /// I6: clients of healthy servers that read their replies are not affected by others.
    fn check_isolation(&self) {
        for client in &self.clients {
            let (id, ledger) = (client.id, &self.fabric.oracle.ledgers[client.id as usize]);
            let is_well = !is_stalled(id) && !never_reads(id);
            assert_eq!(client.is_gone(), is_well, "I6: client {id}: {}", ledger.describe());
            let slowest = ledger.slowest_us;
            let in_time = !is_well || slowest <= UNDISTURBED_MAX_US;
            assert!(in_time, "I6: client {id} waited {slowest} us for a reply");
        }
    }

    /// Lets time pass until `end`, or until all clients are gone.
    fn advance(&mut self, end: u64, until_gone: bool) {
        while let Some(event) = self.fabric.clock.next(end) {
            self.steps += 1;
            assert!(self.steps < STEPS_MAX, "I4: this never ends");
            self.happen(event);
            if until_gone && self.clients.iter().all(Client::is_gone) {
                if self.clients.len() as u32 >= self.scenario.clients_total {
                    return;
                }
                self.join();
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Tick { gateway } => {
                let wishes = self.gateways[gateway as usize].tick(&mut self.fabric);
                wishes.into_iter().for_each(|wish| self.grant(gateway, wish));
                self.end_lost();
            }
            Event::Arrive { conn, at } => self.arrive(conn, at),
            Event::Writable { conn, at: Side::Gateway } => {
                let gateway = self.fabric.network.conn(conn).gateway;
                self.tell(gateway, Input::Writable { conn });
            }
            Event::Writable { conn, at: Side::Peer } => self.notice(conn),
            Event::Connect { attempt } => self.connect(attempt),
            Event::Client { client } => {
                let was_gone = self.clients[client as usize].is_gone();
                self.clients[client as usize].act(&mut self.fabric);
                if !was_gone && self.clients[client as usize].is_gone() {
                    self.replace();
                }
            }
            Event::Serve { conn } => {
                if let Peer::Server(server) = self.fabric.network.conn(conn).peer {
                    self.servers[server as usize].serve(conn, &mut self.fabric);
                }
            }
            Event::Mail { letter } => self.deliver(letter),
            Event::Fault => self.fault(),
            Event::Shift => self.shift(),
            Event::Reload => self.reload(),
            Event::Promote => self.promote(),
            Event::Replicate { letter } => self.copy(letter),
            Event::Reshard => self.reshard(),
            Event::Pass { passing } => self.pass(passing),
            Event::MoveKey { slot } => self.move_key(slot),
            Event::Gossip { node } => self.gossip(node),
            Event::Map => self.map(),
            Event::Recover { server } => {
                if self.servers[server as usize].health != Health::Well {
                    self.recover(server as usize);
                }
            }
        }
    }

    pub(crate) fn has_drained(&self, gateway: u32) -> bool {
        self.drained.contains(&gateway)
    }

    pub(crate) fn tell(&mut self, gateway: u32, input: Input) {
        self.gateways[gateway as usize].push(input, &mut self.fabric);
    }

    fn arrive(&mut self, conn: u32, at: Side) {
        let now = self.fabric.clock.now();
        let arrival = self.fabric.network.arrive(conn, at, now);
        let gateway = self.fabric.network.conn(conn).gateway;
        match (at, arrival) {
            (_, Arrival::Nothing) => {}
            (Side::Gateway, Arrival::Readable) => self.tell(gateway, Input::Readable { conn }),
            (Side::Gateway, Arrival::Reset) => self.tell(gateway, Input::Reset { conn }),
            (Side::Peer, Arrival::Readable) => self.notice(conn),
            (Side::Peer, Arrival::Reset) => match self.fabric.network.conn(conn).peer {
                Peer::Client(client) => self.clients[client as usize].lost(&mut self.fabric),
                Peer::Server(server) => self.servers[server as usize].lost(conn),
            },
        }
    }

    fn notice(&mut self, conn: u32) {
        match self.fabric.network.conn(conn).peer {
            Peer::Client(client) => self.clients[client as usize].notice(&mut self.fabric),
            Peer::Server(server) => self.servers[server as usize].notice(conn, &mut self.fabric),
        }
    }

    /// A new client.
    fn join(&mut self) {
        let Self { scenario, fabric, .. } = self;
        let gateway = fabric.random.below(scenario.gateways.into()) as u32;
        let pools = &self.gateways[gateway as usize].snapshot.pools;
        let pool = pool_id(&pools[fabric.random.below(pools.len() as u64) as usize]);
        let is_full = scenario.admitted.is_some_and(|limit| {
            let here = self.clients.iter().filter(|client| {
                !client.is_gone() && fabric.network.conn(client.conn).gateway == gateway
            });
            here.count() as u64 >= limit
        });
        let id = fabric.oracle.join(pool, gateway);
        let conn = fabric.network.open(gateway, Peer::Client(id));
        let random = fabric.random.fork();
        let config = fabric.pools[pool as usize].clone();
        let temper = self.temper(id);
        let fabric = &mut self.fabric;
        let mut client = Client::new(id, conn, &config, temper, random, fabric);
        if self.scenario.isolation {
            let stalled = is_stalled(id);
            let rings = &mut fabric.oracle.rings;
            client.restrict(|key| {
                let owners = rings.owners(pool, gateway, key, Access::Write, 0, 0);
                owners.contains(&0) == stalled
            });
        }
        if is_full {
            client.expect_refusal(config.protocol, fabric);
        }
        self.clients.push(client);
        let admission = if is_full { Admission::Full } else { Admission::Welcome };
        self.tell(gateway, Input::Accept { conn, pool, admission });
    }

    fn temper(&self, client: u32) -> Temper {
        let mut temper = self.scenario.temper.clone();
        if self.scenario.isolation && never_reads(client) {
            temper.stalls = 100;
            temper.pipeline = 64;
            temper.requests = 400;
        }
        temper
    }

    fn replace(&mut self) {
        if (self.clients.len() as u32) < self.scenario.clients_total && !self.healed {
            self.join();
        }
    }

    fn grant(&mut self, gateway: u32, wish: Wish) {
        let now = self.fabric.clock.now();
        let delay = self.fabric.network.latency(&mut self.fabric.random);
        match wish {
            Wish::Connect { token, pool, server } => {
                let wanted = |s: &Server| (s.pool, s.index) == (pool, server);
                let server = self.servers.iter().position(wanted).expect("it exists") as u32;
                self.attempts.push(Attempt { gateway, token, server });
                let attempt = self.attempts.len() as u32 - 1;
                self.fabric.clock.plan(now + delay, Event::Connect { attempt });
            }
            Wish::Answer { epoch, answer } => {
                self.post(Letter::Answer { gateway, epoch, answer }, now + delay);
            }
            Wish::Held { pool, version } => {
                self.post(Letter::Held { gateway, pool, version }, now + delay);
            }
            Wish::Eject { pool, server } => {
                self.post(Letter::Want { pool, server, live: false }, now + delay);
            }
            Wish::Readmit { pool, server } => {
                self.post(Letter::Want { pool, server, live: true }, now + delay);
            }
            Wish::HandOver { conn, export } => self.hand_over(gateway, conn, export),
            Wish::Doubt => self.plan_map(true),
        }
    }

    pub(crate) fn post(&mut self, letter: Letter, at: u64) {
        self.letters.push(letter);
        let letter = self.letters.len() as u32 - 1;
        self.fabric.clock.plan(at, Event::Mail { letter });
    }

    fn deliver(&mut self, letter: u32) {
        let orders = match self.letters[letter as usize] {
            Letter::ToGateway { gateway, ref input } => {
                let input = input.clone();
                if let Input::Drain = input {
                    self.drained.insert(gateway);
                }
                self.tell(gateway, input);
                return;
            }
            Letter::Held { gateway, pool, version } => {
                self.coordinator.held(pool, gateway, version)
            }
            Letter::Answer { gateway, epoch, answer } => {
                self.coordinator.answered(gateway, epoch, answer)
            }
            Letter::Want { pool, server, live } => self.coordinator.want(pool, server, live),
        };
        self.send(orders);
    }

    fn reload(&mut self) {
        let reloads = self.scenario.reloads;
        if self.healed || self.reloads >= reloads.count {
            return;
        }
        let now = self.fabric.clock.now();
        let gap = self.fabric.random.below(reloads.gap_max_us);
        self.fabric.clock.plan(now + gap, Event::Reload);
        let orders = self.coordinator.reload(&self.scenario.universe, reloads.names_anew);
        self.reloads += u64::from(!orders.is_empty());
        self.send(orders);
    }

    fn promote(&mut self) {
        let promotions = self.scenario.promotions;
        let promoted = self.fabric.oracle.counts.promotions;
        if self.healed || promoted >= promotions.count {
            return;
        }
        self.fabric.oracle.counts.promotions += 1;
        let gap = self.fabric.random.below(promotions.gap_max_us);
        self.fabric.clock.plan(self.fabric.clock.now() + gap, Event::Promote);
        let orders = self.coordinator.promote();
        self.send(orders);
    }

    pub(crate) fn send(&mut self, orders: Vec<Order>) {
        for order in orders {
            let input = Input::Obey(order);
            for gateway in 0..self.scenario.gateways {
                let at = self.fabric.clock.now() + self.fabric.random.range(10, 5_000);
                let last = &mut self.last_letter[gateway as usize];
                *last = at.max(*last);
                let at = *last;
                self.post(Letter::ToGateway { gateway, input: input.clone() }, at);
            }
        }
    }

    fn connect(&mut self, attempt: u32) {
        let now = self.fabric.clock.now();
        let Attempt { gateway, token, server } = self.attempts[attempt as usize];
        if !self.gateways[gateway as usize].is_connecting(token) {
            return;
        }
        match self.servers[server as usize].health {
            Health::Unreachable => {
                self.fabric.clock.plan(now + CONNECT_AGAIN_US, Event::Connect { attempt });
            }
            Health::Down => {
                self.tell(gateway, Input::Failed { token, why: CloseReason::Refused });
            }
            Health::Well | Health::Hung | Health::Slow | Health::Unfriendly | Health::Moody => {
                let conn = self.fabric.network.open(gateway, Peer::Server(server));
                self.servers[server as usize].accept(conn);
                self.tell(gateway, Input::Connected { token, conn });
            }
        }
    }
}

impl Drop for World<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !shrink::is_quiet() {
            eprintln!("\nThe last events of seed {}:\n{}", self.scenario.seed, self.fabric.trace);
            eprintln!("The head of the test's file says how to run it alone.");
        }
    }
}

/// In runs about isolation: clients of the server that hangs.
fn is_stalled(client: u32) -> bool {
    client.is_multiple_of(3)
}

/// In runs about isolation: clients that do not read.
fn never_reads(client: u32) -> bool {
    client % 3 == 1
}
