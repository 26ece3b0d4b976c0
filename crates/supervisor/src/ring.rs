//! Changes of the pools' rings: which servers are live, agreed on by all workers.
//!
//! A change goes in two phases. First every worker *holds* the pool: it dispatches nothing more and
//! says so. When the last one has, every worker is *released* with the new ring. So at no instant
//! do two workers dispatch by different rings of one pool. A change that is not held in time is
//! abandoned, by releasing everybody with the old ring, and tried again later.
//!
//! Another epoch puts other pools in the place of these: [`Rings::freeze`], wait until
//! [`Rings::is_quiet`], [`Rings::switch`] with the commit, [`Rings::thaw`]. Meanwhile no change is
//! begun; what is reported is remembered.
//!
//! A server that is ejected again soon after its readmission flaps, and every ejection costs
//! requests: it stays out longer each time, see [`Flaps`].
//!
//! A pure state machine: events and the time go in, messages come out of [`Rings::poll_message`].
//! It relies on two things: a channel delivers in order, and a worker that [left](Rings::left) is
//! dead and not merely out of reach.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use cashew_config::Snapshot;
use cashew_config::snapshot::{Endpoint, Topology};
use cashew_control::ToChild;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

/// How long workers may take to hold a pool. Its clients wait as long.
pub(crate) const HOLD_TIMEOUT: Duration = Duration::from_millis(500);

/// How much of that they may wait for replies that are still owed by servers that are well.
pub(crate) const DRAIN_MS: u64 = 100;

/// How long an abandoned change waits for its next try.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A server that is ejected again within this time, and the pool's retry timeout, flaps.
const FLAP_WINDOW: Duration = Duration::from_secs(30);

/// The pause of a server that flaps is at least this, where the retry timeout is next to nothing.
const FLAP_PAUSE_MIN: Duration = Duration::from_millis(100);

/// The pause grows no further than this, or the retry timeout where that is longer.
const FLAP_PAUSE_MAX: Duration = Duration::from_secs(300);

/// After how many times its last pause of serving well a server's flapping is forgotten.
const FLAP_MEMORY: u32 = 10;

/// A worker, by its slot. One slot has one worker at a time.
pub(crate) type Slot = u32;

#[derive(Clone)]
pub(crate) struct Rings {
    /// How many changes were begun, in all pools of all epochs: the version of the last one.
    version: u64,
    pools: Vec<Ring>,
    workers: BTreeSet<Slot>,
    messages: VecDeque<(Slot, ToChild)>,
    /// No change is begun.
    frozen: bool,
    halted: bool,
}

/// What is configured about a pool and matters here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RingConfig {
    pub(crate) name: String,
    pub(crate) retry_timeout_ms: u64,
    pub(crate) servers: Vec<ServerConfig>,
}

/// A server is the same in another epoch when its name and its endpoint are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerConfig {
    pub(crate) name: String,
    pub(crate) endpoint: Endpoint,
    pub(crate) may_eject: bool,
}

/// All that outlives the master's program while [quiet](Rings::is_quiet).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RingsState {
    version: u64,
    frozen: bool,
    workers: BTreeSet<Slot>,
    pools: Vec<RingState>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RingState {
    config: RingConfig,
    version: u64,
    /// One for each server.
    servers: Vec<ServerState>,
    wanted: BTreeMap<u32, Wanted>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ServerState {
    live: bool,
    pause_ms: u64,
    changed_ms_ago: Option<u64>,
}

#[derive(Clone)]
struct Ring {
    config: RingConfig,
    /// Of the last change that was begun. No two changes have the same, so that a late answer to
    /// one that is over is told from one to the change under way.
    version: u64,
    /// One for each server that is configured.
    servers: Vec<Server>,
    change: Option<Change>,
    /// Servers to be ejected or readmitted by the next change. Never holds what is true already
    /// or becomes true by the change under way.
    wanted: BTreeMap<u32, Wanted>,
    not_before: Option<Instant>,
}

#[derive(Clone, Copy)]
struct Server {
    live: bool,
    flaps: Flaps,
}

/// How a server behaved that was ejected once.
///
/// An ejection within [`FLAP_WINDOW`] and the retry timeout of the readmission doubles the pause
/// before the next readmission, beginning with the retry timeout; one that comes later, but before
/// the server has served [`FLAP_MEMORY`] times the pause, leaves it as it is; then it begins anew.
#[derive(Clone, Copy, Default)]
struct Flaps {
    /// How long the server stays out at least when it is ejected, or was the last time.
    pause: Duration,
    /// When it was last ejected or readmitted.
    changed_at: Option<Instant>,
}

/// A change whose hold has been sent and whose release has not.
#[derive(Clone)]
struct Change {
    servers: BTreeMap<u32, Wanted>,
    /// Who may still dispatch by the old ring.
    waiting: BTreeSet<Slot>,
    deadline: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Wanted {
    live: bool,
    why: String,
}

impl RingConfig {
    /// The pools of a snapshot.
    pub(crate) fn of(snapshot: &Snapshot) -> Vec<Self> {
        let of_pool = |pool: &cashew_config::snapshot::Pool| {
            let master = match pool.topology {
                Topology::Sharded => None,
                Topology::MasterReplica { master } => Some(master),
            };
            let of_server = |(index, server): (u32, &cashew_config::snapshot::Server)| {
                let may_eject = pool.auto_eject_hosts && master != Some(index);
                let (name, endpoint) = (server.name.clone(), server.endpoint.clone());
                ServerConfig { name, endpoint, may_eject }
            };
            Self {
                name: pool.name.clone(),
                retry_timeout_ms: pool.server_retry_timeout_ms,
                servers: (0..).zip(&pool.servers).map(of_server).collect(),
            }
        };
        snapshot.pools.iter().map(of_pool).collect()
    }
}

impl Rings {
    /// All servers are live.
    pub(crate) fn new(pools: Vec<RingConfig>) -> Self {
        Self {
            version: 0,
            pools: pools.into_iter().map(Ring::new).collect(),
            workers: BTreeSet::new(),
            messages: VecDeque::new(),
            frozen: false,
            halted: false,
        }
    }

    /// What [`Rings::from_state`] goes on with. Everybody has been told what there was to tell.
    pub(crate) fn state(&self, now: Instant) -> RingsState {
        assert!(self.is_quiet() && self.messages.is_empty(), "a change would never end");
        RingsState {
            version: self.version,
            frozen: self.frozen,
            workers: self.workers.clone(),
            pools: self.pools.iter().map(|ring| ring.state(now)).collect(),
        }
    }

    /// The workers of then are expected to be there: whoever is not has [left](Rings::left).
    pub(crate) fn from_state(state: RingsState, now: Instant) -> Self {
        Self {
            version: state.version,
            pools: state.pools.into_iter().map(|ring| Ring::from_state(ring, now)).collect(),
            workers: state.workers,
            messages: VecDeque::new(),
            frozen: state.frozen,
            halted: false,
        }
    }

    /// Which servers of a pool are on its ring.
    pub(crate) fn live(&self, pool: u32) -> Vec<bool> {
        self.pools[pool as usize].live()
    }

    pub(crate) fn version(&self, pool: u32) -> u64 {
        self.pools[pool as usize].version
    }

    /// Begins no change any more. One that is under way goes on to its end.
    pub(crate) fn freeze(&mut self) {
        self.frozen = true;
    }

    /// Whether no change is under way. It stays so while frozen.
    pub(crate) fn is_quiet(&self) -> bool {
        self.pools.iter().all(|ring| ring.change.is_none())
    }

    /// Begins changes again, with those that were wanted meanwhile.
    pub(crate) fn thaw(&mut self, now: Instant) {
        self.frozen = false;
        for pool in 0..self.pools.len() {
            self.advance(pool, now);
        }
    }

    /// As it will be after [`Rings::switch`] to these pools, unless something is reported first:
    /// to tell which servers are live then.
    pub(crate) fn switched(&self, pools: Vec<RingConfig>) -> Self {
        let mut next = self.clone();
        next.messages.clear();
        next.switch(pools);
        next
    }

    /// Puts other pools in the place of these. Servers that stay, by the names of their pools and
    /// their own, stay on or off the ring; what is known of the others is forgotten. Only while
    /// frozen and quiet, and with all messages taken: they mean the old pools.
    pub(crate) fn switch(&mut self, pools: Vec<RingConfig>) {
        assert!(self.frozen && self.is_quiet(), "a change of a ring would get lost");
        assert!(self.messages.is_empty(), "these pools would be told what is meant for the old");
        let mut old: HashMap<String, Ring> =
            self.pools.drain(..).map(|ring| (ring.config.name.clone(), ring)).collect();
        let carried = pools.into_iter().map(|config| match old.remove(&config.name) {
            Some(ring) => ring.reconfigured(config, self.halted),
            None => Ring::new(config),
        });
        self.pools = carried.collect();
    }

    /// A worker was started; its messages are to be sent before [`ToChild::Start`]. No change waits
    /// for it that was begun before: it dispatches nothing until it has read of it.
    pub(crate) fn joined(&mut self, slot: Slot) {
        let new = self.workers.insert(slot);
        assert!(new, "the worker before it left");
        for (pool, ring) in (0..).zip(&self.pools) {
            self.messages.push_back((slot, ring.release(pool)));
            if ring.change.is_some() {
                self.messages.push_back((slot, ring.hold(pool)));
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
        let config = self.pools.get(pool as usize).map(|ring| &ring.config);
        // A worker may have asked before it knew that this server is not ejected any more.
        if config
            .and_then(|config| config.servers.get(server as usize))
            .is_some_and(|server| server.may_eject)
        {
            self.want(pool, server, Wanted { live: false, why }, now);
        }
    }

    /// An ejected server answers. If it is not to come back yet this is forgotten: the workers go
    /// on probing it and say so again.
    pub(crate) fn server_up(&mut self, pool: u32, server: u32, now: Instant) {
        let ring = self.pools.get(pool as usize);
        if ring.is_some_and(|ring| ring.may_return(server, now)) {
            let why = "it answers again".to_owned();
            self.want(pool, server, Wanted { live: true, why }, now);
        }
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
            None if self.frozen || ring.wanted.is_empty() => None,
            None => ring.not_before,
        };
        self.pools.iter().filter_map(of_ring).min()
    }

    pub(crate) fn poll_message(&mut self) -> Option<(Slot, ToChild)> {
        self.messages.pop_front()
    }

    fn want(&mut self, pool: u32, server: u32, wanted: Wanted, now: Instant) {
        let Some(ring) = self.pools.get_mut(pool as usize) else { return };
        let Some(&Server { live, .. }) = ring.servers.get(server as usize) else { return };
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
                Some(_) => self.commit(pool, now),
                None if self.frozen || ring.wanted.is_empty() => return,
                None if ring.not_before.is_some_and(|instant| now < instant) => return,
                None => self.begin(pool, now),
            }
        }
    }

    fn begin(&mut self, pool: usize, now: Instant) {
        self.version += 1;
        let ring = &mut self.pools[pool];
        ring.version = self.version;
        ring.not_before = None;
        ring.change = Some(Change {
            servers: std::mem::take(&mut ring.wanted),
            waiting: self.workers.clone(),
            deadline: now + HOLD_TIMEOUT,
        });
        let hold = ring.hold(pool as u32);
        self.broadcast(hold);
    }

    fn commit(&mut self, pool: usize, now: Instant) {
        let ring = &mut self.pools[pool];
        let change = ring.change.take().expect("a change is under way");
        for (server, wanted) in change.servers {
            ring.change_server(server, wanted, now);
        }
        if !ring.servers.iter().any(|server| server.live) {
            warn!("pool '{}': all servers are ejected", ring.config.name);
        }
        self.release(pool);
    }

    fn abandon(&mut self, pool: usize, now: Instant) {
        let ring = &mut self.pools[pool];
        let change = ring.change.take().expect("a change is under way");
        warn!(
            "pool '{}': the ring is not changed, workers {:?} did not hold in time",
            ring.config.name, change.waiting
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
    fn new(config: RingConfig) -> Self {
        Self {
            version: 0,
            servers: vec![Server { live: true, flaps: Flaps::default() }; config.servers.len()],
            config,
            change: None,
            wanted: BTreeMap::new(),
            not_before: None,
        }
    }

    /// The ring of the pool of the same name in another epoch.
    fn reconfigured(mut self, config: RingConfig, halted: bool) -> Self {
        let old: HashMap<(&str, &Endpoint), u32> = (0..)
            .zip(&self.config.servers)
            .map(|(index, server)| ((&*server.name, &server.endpoint), index))
            .collect();
        let mut ring =
            Self { version: self.version, not_before: self.not_before, ..Self::new(config) };
        for (index, server) in (0..).zip(&ring.config.servers) {
            let Some(&before) = old.get(&(&*server.name, &server.endpoint)) else { continue };
            let state = self.servers[before as usize];
            ring.servers[index as usize] = state;
            let wanted = self.wanted.remove(&before);
            if server.may_eject {
                ring.wanted.extend(wanted.map(|wanted| (index, wanted)));
            } else if !state.live && !halted {
                let why = "it is not to be ejected any more".to_owned();
                ring.wanted.insert(index, Wanted { live: true, why });
            }
        }
        ring
    }

    fn state(&self, now: Instant) -> RingState {
        let millis = |span: Duration| span.as_millis().try_into().unwrap_or(u64::MAX);
        let of_server = |server: &Server| ServerState {
            live: server.live,
            pause_ms: millis(server.flaps.pause),
            changed_ms_ago: server.flaps.changed_at.map(|at| millis(now - at)),
        };
        RingState {
            config: self.config.clone(),
            version: self.version,
            servers: self.servers.iter().map(of_server).collect(),
            wanted: self.wanted.clone(),
        }
    }

    fn from_state(state: RingState, now: Instant) -> Self {
        let of_server = |server: ServerState| {
            let ago = server.changed_ms_ago.map(Duration::from_millis);
            let flaps = Flaps {
                pause: Duration::from_millis(server.pause_ms),
                changed_at: ago.and_then(|ago| now.checked_sub(ago)),
            };
            Server { live: server.live, flaps }
        };
        Self {
            config: state.config,
            version: state.version,
            servers: state.servers.into_iter().map(of_server).collect(),
            change: None,
            wanted: state.wanted,
            not_before: None,
        }
    }

    fn live(&self) -> Vec<bool> {
        self.servers.iter().map(|server| server.live).collect()
    }

    /// Whether the pause of a server that flaps is over. It is while no other server is live: one
    /// that flaps is better than none.
    fn may_return(&self, server: u32, now: Instant) -> bool {
        let Some(Server { live, flaps }) = self.servers.get(server as usize) else { return false };
        *live
            || flaps.changed_at.is_none_or(|ejected_at| now >= ejected_at + flaps.pause)
            || !self.servers.iter().any(|server| server.live)
    }

    fn change_server(&mut self, index: u32, wanted: Wanted, now: Instant) {
        let server = &mut self.servers[index as usize];
        let (pool, name) = (&self.config.name, &self.config.servers[index as usize].name);
        server.live = wanted.live;
        if wanted.live {
            server.flaps.changed_at = Some(now);
            info!("pool '{pool}': server '{name}' is readmitted: {}", wanted.why);
            return;
        }
        let retry = Duration::from_millis(self.config.retry_timeout_ms);
        match server.flaps.ejected(retry, now) {
            Some(served) => warn!(
                "pool '{pool}': server '{name}' is ejected: {}; it was readmitted {served:.1?} \
                 ago, so it stays out for {:?} at least",
                wanted.why, server.flaps.pause
            ),
            None => warn!("pool '{pool}': server '{name}' is ejected: {}", wanted.why),
        }
    }

    fn hold(&self, pool: u32) -> ToChild {
        ToChild::Hold { pool, version: self.version, drain_ms: DRAIN_MS }
    }

    fn release(&self, pool: u32) -> ToChild {
        ToChild::Release { pool, version: self.version, live: self.live() }
    }
}

impl Flaps {
    /// Determines the pause. Tells how long the server has served if that was not well enough to
    /// go without one.
    fn ejected(&mut self, retry: Duration, now: Instant) -> Option<Duration> {
        let served = self.changed_at.replace(now).map(|readmitted_at| now - readmitted_at)?;
        if served < FLAP_WINDOW + retry {
            let pause_min = retry.max(FLAP_PAUSE_MIN);
            self.pause = (self.pause * 2).clamp(pause_min, pause_min.max(FLAP_PAUSE_MAX));
        } else if served >= self.pause * FLAP_MEMORY {
            self.pause = Duration::ZERO;
        }
        (self.pause > Duration::ZERO).then_some(served)
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

    #[test]
    fn no_two_changes_have_the_same_version() {
        let (mut rings, now) = running([0]);
        rings.server_down(0, 0, "refused".into(), now);
        rings.server_down(1, 0, "refused".into(), now);
        assert_eq!(messages(&mut rings), [(0, hold(0, 1)), (0, hold(1, 2))]);
        rings.held(0, 1, 1, now);
        assert_eq!(messages(&mut rings), [], "the answer to the other pool's does not count");
        rings.held(0, 0, 1, now);
        rings.held(0, 1, 2, now);
        messages(&mut rings);
        rings.freeze();
        rings.switch(vec![pool("gamma", ["a", "b"]), pool("beta", ["a", "b", "c"])]);
        rings.thaw(now);
        assert_eq!((rings.version(0), rings.version(1)), (0, 2));
        rings.server_down(0, 0, "refused".into(), now);
        rings.held(0, 0, 1, now);
        assert_eq!(messages(&mut rings), [(0, hold(0, 3))]);
    }

    #[test]
    fn frozen_rings_finish_a_change_and_begin_none() {
        let (mut rings, now) = running([0]);
        rings.server_down(1, 0, "refused".into(), now);
        rings.freeze();
        rings.server_down(1, 1, "refused".into(), now);
        rings.server_down(0, 1, "refused".into(), now);
        assert_eq!(messages(&mut rings), [(0, hold(1, 1))]);
        assert!(!rings.is_quiet());
        rings.held(0, 1, 1, now);
        assert_eq!(messages(&mut rings), [(0, release(1, 1, "011"))]);
        assert!(rings.is_quiet());
        assert_eq!(rings.poll_timeout(), None);
        rings.thaw(now);
        assert_eq!(messages(&mut rings), [(0, hold(0, 2)), (0, hold(1, 3))]);
    }

    #[test]
    fn frozen_rings_abandon_a_change_in_time() {
        let (mut rings, now) = running([0]);
        rings.server_down(0, 0, "refused".into(), now);
        rings.freeze();
        messages(&mut rings);
        let late = rings.poll_timeout().unwrap();
        rings.handle_timeout(late);
        assert!(rings.is_quiet());
        assert_eq!(messages(&mut rings), [(0, release(0, 1, "11"))]);
        rings.handle_timeout(late + RETRY_PAUSE);
        assert_eq!(messages(&mut rings), []);
        assert_eq!(rings.poll_timeout(), None);
        rings.thaw(late + RETRY_PAUSE);
        assert_eq!(messages(&mut rings), [(0, hold(0, 2))]);
    }

    #[test]
    fn what_stays_in_another_epoch_stays_as_it_is() {
        let (mut rings, now) = running([0]);
        for (version, server) in [(1, 0), (2, 1), (3, 2)] {
            rings.server_down(1, server, "refused".into(), now);
            rings.held(0, 1, version, now);
        }
        messages(&mut rings);
        rings.freeze();
        rings.server_down(0, 0, "refused".into(), now);
        rings.server_down(0, 1, "refused".into(), now);
        // In beta, a is gone, b is elsewhere, c is first; in alpha a is gone, b is last.
        let mut beta = pool("beta", ["c", "b", "d"]);
        beta.servers[1].endpoint = endpoint("elsewhere");
        let next = vec![beta, pool("gamma", ["c"]), pool("alpha", ["c", "b"])];
        let preview = rings.switched(next.clone());
        assert_eq!(preview.live(0), [false, true, true]);
        assert_eq!(preview.version(0), 3);
        assert_eq!(rings.live(1), [false, false, false], "nothing has changed yet");
        rings.switch(next);
        assert_eq!(
            (0..3).map(|pool| rings.live(pool)).collect::<Vec<_>>(),
            [vec![false, true, true], vec![true], vec![true, true]]
        );
        assert_eq!(messages(&mut rings), []);
        rings.thaw(now);
        assert_eq!(messages(&mut rings), [(0, hold(2, 4))]);
        rings.held(0, 2, 4, now);
        assert_eq!(messages(&mut rings), [(0, release(2, 4, "10"))]);
    }

    #[test]
    fn a_server_that_may_not_be_ejected_any_more_comes_back() {
        let (mut rings, now) = running([0]);
        rings.server_down(0, 1, "refused".into(), now);
        rings.held(0, 0, 1, now);
        messages(&mut rings);
        let mut alpha = pool("alpha", ["a", "b"]);
        alpha.servers.iter_mut().for_each(|server| server.may_eject = false);
        rings.freeze();
        rings.switch(vec![alpha]);
        assert_eq!(rings.live(0), [true, false], "by a change like any other");
        rings.thaw(now);
        rings.held(0, 0, 2, now);
        assert_eq!(messages(&mut rings), [(0, hold(0, 2)), (0, release(0, 2, "11"))]);
        rings.server_down(0, 1, "refused".into(), now);
        assert_eq!(messages(&mut rings), [], "who says so has not heard of it yet");
    }

    #[test]
    fn rings_survive_the_exchange_of_the_program() {
        let (mut rings, now) = running([0, 3]);
        eject(&mut rings, 1, now);
        readmit(&mut rings, 1, now);
        eject(&mut rings, 1, now);
        rings.freeze();
        rings.server_down(0, 0, "refused".into(), now);
        let saved = serde_json::to_vec(&rings.state(now)).unwrap();
        let later = now + Duration::from_secs(1);
        let state: RingsState = serde_json::from_slice(&saved).unwrap();
        let mut rings = Rings::from_state(state.clone(), now);
        assert_eq!(rings.state(now), state);
        assert_eq!(rings.live(0), [true, false]);
        rings.thaw(later);
        assert_eq!(messages(&mut rings), [(0, hold(0, 4)), (3, hold(0, 4))]);
        rings.held(0, 0, 4, later);
        rings.left(3, later);
        messages(&mut rings);
        assert_eq!(rings.live(0), [false, false]);
        rings.server_up(0, 0, later);
        rings.held(0, 0, 5, later);
        messages(&mut rings);
        rings.server_up(0, 1, later);
        assert_eq!(messages(&mut rings), [], "it still flaps");
    }

    #[test]
    fn a_server_that_flaps_stays_out_longer_each_time() {
        let (mut rings, now) = running([0]);
        let mut pause = |server, ejected_at| {
            eject(&mut rings, server, ejected_at);
            readmit(&mut rings, server, ejected_at) - ejected_at
        };
        // Ejected for the first time it comes back as soon as it answers.
        assert_eq!(pause(0, now), Duration::ZERO);
        let mut at = now;
        for seconds in [20, 40, 80, 160, 300, 300] {
            at += FLAP_WINDOW;
            assert_eq!(pause(0, at), Duration::from_secs(seconds));
            at += Duration::from_secs(seconds);
        }
        // Later, but not much later, it waits as long as the last time.
        at += FLAP_WINDOW + RETRY_TIMEOUT;
        assert_eq!(pause(0, at), FLAP_PAUSE_MAX);
        at += FLAP_PAUSE_MAX + FLAP_MEMORY * FLAP_PAUSE_MAX;
        assert_eq!(pause(0, at), Duration::ZERO);
        at += FLAP_WINDOW;
        assert_eq!(pause(0, at), RETRY_TIMEOUT, "it begins anew");
        // The other servers of the pool have nothing to do with it.
        assert_eq!(pause(1, at + RETRY_TIMEOUT), Duration::ZERO);
    }

    #[test]
    fn a_pause_follows_the_retry_timeout_where_that_is_extreme() {
        let ejected = |retry, times| {
            let now = Instant::now();
            let mut flaps = Flaps::default();
            for _ in 0..times {
                flaps.ejected(retry, now);
            }
            flaps.pause
        };
        assert_eq!(ejected(Duration::ZERO, 1), Duration::ZERO);
        assert_eq!(ejected(Duration::ZERO, 2), FLAP_PAUSE_MIN);
        assert_eq!(ejected(Duration::ZERO, 3), 2 * FLAP_PAUSE_MIN);
        assert_eq!(ejected(Duration::ZERO, 30), FLAP_PAUSE_MAX);
        let hour = Duration::from_secs(3600);
        assert_eq!(ejected(hour, 3), hour);
    }

    #[test]
    fn who_flaps_is_better_than_none() {
        let (mut rings, now) = running([0]);
        eject(&mut rings, 0, now);
        readmit(&mut rings, 0, now);
        eject(&mut rings, 0, now);
        assert_eq!(rings.live(0), [false, true]);
        rings.server_up(0, 0, now);
        assert_eq!(messages(&mut rings), []);
        rings.server_down(0, 1, "refused".into(), now);
        rings.held(0, 0, rings.version(0), now);
        messages(&mut rings);
        rings.server_up(0, 0, now);
        rings.held(0, 0, rings.version(0), now);
        assert_eq!(rings.live(0), [true, false]);
    }

    /// Workers that read their mail late, die and are replaced at random moments, while epochs
    /// come and go, never dispatch by two rings of one pool at once.
    #[test]
    fn no_two_workers_ever_dispatch_by_different_rings() {
        for seed in 1..=300 {
            Simulation::new(seed).run();
        }
    }

    /// Epochs are switched here while nobody reads: that all workers go over to one together is
    /// not for the rings to see to.
    struct Simulation {
        random: u64,
        rings: Rings,
        now: Instant,
        workers: [Option<Worker>; 3],
        /// The server on each place of the pool.
        servers: Vec<&'static str>,
        versions: BTreeSet<u64>,
        changes: u32,
        switches: u32,
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
            Self {
                random: seed,
                rings: Rings::new(vec![pool("alpha", ["a", "b", "c"])]),
                now: Instant::now(),
                workers: [(); 3].map(|()| None),
                servers: vec!["a", "b", "c"],
                versions: BTreeSet::new(),
                changes: 0,
                switches: 0,
            }
        }

        fn run(&mut self) {
            for _ in 0..2000 {
                let was_quiet = self.rings.is_quiet();
                self.step();
                assert!(!(self.rings.frozen && was_quiet) || self.rings.is_quiet());
                self.deliver();
                self.check();
            }
            assert!(self.changes > 5, "too little happened: {}", self.changes);
            assert!(self.switches > 2, "too little happened: {}", self.switches);
            self.settle();
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

        /// All workers read what they were told and go over together.
        fn switch(&mut self) {
            (0..3).for_each(|slot| while self.read(slot) {});
            let places = self.servers.len();
            let (one, other) = (self.below(places), self.below(places));
            let known: BTreeMap<_, _> =
                self.servers.iter().copied().zip(self.rings.live(0)).collect();
            self.servers.swap(one, other);
            if self.below(3) == 0 {
                self.servers[one] = ["a", "b", "c", "d", "e"]
                    .into_iter()
                    .find(|name| !self.servers.contains(name))
                    .unwrap();
            }
            let next = vec![pool("alpha", [self.servers[0], self.servers[1], self.servers[2]])];
            let preview = self.rings.switched(next.clone());
            self.rings.switch(next);
            let live = self.rings.live(0);
            assert_eq!(preview.live(0), live);
            for (server, live) in self.servers.iter().zip(&live) {
                assert_eq!(*live, known.get(server).copied().unwrap_or(true));
            }
            for worker in self.workers.iter_mut().flatten() {
                worker.live.clone_from(&live);
            }
            self.switches += 1;
        }

        /// Whether there was anything to read.
        fn read(&mut self, slot: usize) -> bool {
            let Some(worker) = &mut self.workers[slot] else { return false };
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
                None => return false,
            }
            true
        }

        fn check(&self) {
            let mut dispatching =
                self.workers.iter().flatten().filter(|worker| worker.started && !worker.held);
            if let Some(first) = dispatching.next() {
                assert!(dispatching.all(|other| other.live == first.live));
            }
        }

        /// When all is well all servers come back, and nobody is held any more.
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
            assert!(self.rings.is_quiet());
            assert!(self.workers.iter().flatten().all(|worker| !worker.held));
        }

        fn below(&mut self, limit: usize) -> usize {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.random >> 33) as usize % limit
        }
    }

    const RETRY_TIMEOUT: Duration = Duration::from_secs(20);

    fn rings() -> Rings {
        Rings::new(vec![pool("alpha", ["a", "b"]), pool("beta", ["a", "b", "c"])])
    }

    fn pool<const N: usize>(name: &str, servers: [&str; N]) -> RingConfig {
        let server = |name: &str| ServerConfig {
            name: name.into(),
            endpoint: endpoint(name),
            may_eject: true,
        };
        RingConfig {
            name: name.into(),
            retry_timeout_ms: RETRY_TIMEOUT.as_millis() as u64,
            servers: servers.into_iter().map(server).collect(),
        }
    }

    fn endpoint(host: &str) -> Endpoint {
        Endpoint::Tcp { host: host.into(), port: 6379 }
    }

    fn running<const N: usize>(slots: [Slot; N]) -> (Rings, Instant) {
        let mut rings = rings();
        slots.into_iter().for_each(|slot| rings.joined(slot));
        messages(&mut rings);
        (rings, Instant::now())
    }

    /// Ejects a server of the first pool.
    fn eject(rings: &mut Rings, server: u32, now: Instant) {
        rings.server_down(0, server, "refused".into(), now);
        settle(rings, now);
        assert!(!rings.live(0)[server as usize]);
    }

    /// Readmits it as soon as that can be, which is told.
    fn readmit(rings: &mut Rings, server: u32, mut now: Instant) -> Instant {
        loop {
            rings.server_up(0, server, now);
            settle(rings, now);
            if rings.live(0)[server as usize] {
                return now;
            }
            now += Duration::from_secs(1);
        }
    }

    /// Everybody holds what there is to hold.
    fn settle(rings: &mut Rings, now: Instant) {
        while let Some((slot, message)) = rings.poll_message() {
            if let ToChild::Hold { pool, version, .. } = message {
                rings.held(slot, pool, version, now);
            }
        }
    }

    fn messages(rings: &mut Rings) -> Vec<(Slot, ToChild)> {
        std::iter::from_fn(|| rings.poll_message()).collect()
    }

    fn hold(pool: u32, version: u64) -> ToChild {
        ToChild::Hold { pool, version, drain_ms: DRAIN_MS }
    }

    fn release(pool: u32, version: u64, live: &str) -> ToChild {
        ToChild::Release { pool, version, live: live.chars().map(|c| c == '1').collect() }
    }
}
