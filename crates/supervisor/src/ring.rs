//! Changes of the pools' rings: which servers are live, agreed on by all workers.
//!
//! A change has two phases. First every worker *holds* the pool: it dispatches nothing more and
//! confirms. When the last one has, every worker is *released* with the new ring. So at no instant
//! do two workers dispatch by different rings of one pool. A change that is not held in time is
//! abandoned: all workers are released with the old ring, and it is tried again later.
//!
//! A new epoch replaces the pools: [`Rings::freeze`], wait until [`Rings::is_quiet`],
//! [`Rings::switch`] with the commit, [`Rings::thaw`]. Meanwhile no change begins; reports are
//! remembered.
//!
//! Where a pool's `fail_open` would be exceeded all servers are used instead, see [`open`].
//!
//! A server that is ejected again soon after its readmission flaps, and every ejection costs
//! requests. So it stays out longer each time, see [`flaps::Flaps`].
//!
//! A pure state machine: events and the time go in, messages come out of [`Rings::poll_message`].
//! It relies on two things: a channel delivers in order, and a worker that has [left](Rings::left)
//! is dead, not just unreachable.

mod flaps;
mod open;
mod pool;
#[cfg(test)]
mod simulation;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use cashew_config::Snapshot;
use cashew_config::snapshot::TopologyState;
use cashew_control::ToChild;
use cashew_metrics::EventKind;
use cashew_placement::SHARE_WHOLE;
use serde::{Deserialize, Serialize};
use tracing::warn;

pub(crate) use self::pool::RingConfig;
use self::pool::{Change, Promotion, Ring, RingState, Wanted};

/// How long workers may take to hold a pool. Its clients wait as long.
pub(crate) const HOLD_TIMEOUT: Duration = Duration::from_millis(500);

/// How much of that time they may wait for replies of healthy servers.
pub(crate) const DRAIN_MS: u64 = 100;

/// The same where a primary changes: what is on its way then fails.
pub(crate) const PROMOTION_DRAIN_MS: u64 = 400;

/// Pause before an abandoned change is tried again.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A worker, by its slot. One slot has one worker at a time.
pub(crate) type Slot = u32;

#[derive(Clone)]
pub(crate) struct Rings {
    /// The number of changes begun, in all pools of all epochs: the version of the last one.
    version: u64,
    pools: Vec<Ring>,
    workers: BTreeSet<Slot>,
    messages: VecDeque<(Slot, ToChild)>,
    /// No change may begin.
    frozen: bool,
    halted: bool,
}

/// All that survives an exchange of the program while [quiet](Rings::is_quiet).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RingsState {
    version: u64,
    frozen: bool,
    workers: BTreeSet<Slot>,
    pools: Vec<RingState>,
}

impl RingsState {
    /// Whether it matches the pools of the snapshot and their servers.
    pub(crate) fn are_of(&self, snapshot: &Snapshot) -> bool {
        let pools = &snapshot.pools;
        self.pools.len() == pools.len()
            && self.pools.iter().zip(pools).all(|(ring, pool)| ring.is_of(pool))
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

    /// The state for [`Rings::from_state`]. All messages have been sent.
    pub(crate) fn state(&self, now: Instant) -> RingsState {
        assert!(self.is_quiet() && self.messages.is_empty(), "a change would never end");
        RingsState {
            version: self.version,
            frozen: self.frozen,
            workers: self.workers.clone(),
            pools: self.pools.iter().map(|ring| ring.state(now)).collect(),
        }
    }

    /// Only the former workers that are still there take part from now on. `configs` has the pools of
    /// the state: another version may have known less about them.
    pub(crate) fn from_state(
        state: RingsState,
        configs: &[RingConfig],
        is_there: impl Fn(Slot) -> bool,
        now: Instant,
    ) -> Self {
        Self {
            version: state.version,
            pools: state
                .pools
                .into_iter()
                .zip(configs)
                .map(|(ring, config)| Ring::from_state(ring, config.clone(), now))
                .collect(),
            workers: state.workers.into_iter().filter(|&slot| is_there(slot)).collect(),
            messages: VecDeque::new(),
            frozen: state.frozen,
            halted: false,
        }
    }

    /// What of a pool's topology changes without another epoch.
    pub(crate) fn topology(&self, pool: u32) -> TopologyState {
        self.pools[pool as usize].topology()
    }

    /// Who takes the writes of each group of several servers of a pool: by shard.
    pub(crate) fn primaries(&self, pool: u32) -> &BTreeMap<u32, u32> {
        &self.pools[pool as usize].primaries
    }

    /// Has a replica take the writes of its group. False if it does so already. An error says why it can't.
    pub(crate) fn promote(
        &mut self,
        pool: u32,
        server: u32,
        why: String,
        now: Instant,
    ) -> Result<bool, String> {
        let ring = &mut self.pools[pool as usize];
        let name = &ring.config.servers[server as usize].name;
        if self.halted {
            return Err("the instance stops".into());
        }
        let Some(shard) = ring.group_of(server) else {
            return Err(match ring.primaries.is_empty() {
                true => "the pool has no replicas: each of its servers has keys of its own".into(),
                false => format!("server '{name}' is no replica: it has keys of its own"),
            });
        };
        let (is_primary, pending) = (ring.primaries[&shard] == server, ring.pending(shard));
        match pending {
            None if is_primary => return Ok(false),
            Some(pending) if pending != server => self.withdraw(pool, pending, now),
            None | Some(_) => {}
        }
        let ring = &mut self.pools[pool as usize];
        // Otherwise it was enough that nobody else becomes it.
        if !is_primary {
            ring.wanted.remove(&server);
            ring.promotions.insert(shard, Promotion { server, why });
            self.advance(pool as usize, now);
        }
        Ok(true)
    }

    /// The promotion of a server is not wanted any more. What is under way for it ends.
    pub(crate) fn withdraw(&mut self, pool: u32, server: u32, now: Instant) {
        let is_it = |promotion: &Promotion| promotion.server == server;
        let ring = &mut self.pools[pool as usize];
        if let Some(change) = &mut ring.change
            && change.promotions.values().any(is_it)
        {
            change.promotions.retain(|_, promotion| !is_it(promotion));
            let not_before = ring.not_before;
            self.undo(pool as usize);
            // It is nobody's fault, so the rest need not wait.
            self.pools[pool as usize].not_before = not_before;
        }
        self.pools[pool as usize].promotions.retain(|_, promotion| !is_it(promotion));
        self.advance(pool as usize, now);
    }

    /// The groups of a pool that get other primaries by the change that is under way, by name.
    pub(crate) fn promoting(&self, pool: u32) -> Vec<String> {
        let ring = &self.pools[pool as usize];
        let shards = ring.change.iter().flat_map(|change| change.promotions.keys());
        shards.map(|shard| ring.config.groups[shard].name.clone()).collect()
    }

    /// The group of several servers that a server is of, by the number of its shard.
    pub(crate) fn group_of(&self, pool: u32, server: u32) -> Option<u32> {
        self.pools[pool as usize].group_of(server)
    }

    /// The share of its keys that a server has if it is live, in thousandths.
    pub(crate) fn share(&self, pool: u32, server: u32) -> u16 {
        self.pools[pool as usize].servers[server as usize].share
    }

    /// The share that a server is to have by a change under way or to come.
    pub(crate) fn wanted_share(&self, pool: u32, server: u32) -> Option<u16> {
        let ring = &self.pools[pool as usize];
        let changed = ring.change.as_ref().and_then(|change| change.shares.get(&server));
        ring.wanted_shares.get(&server).or(changed).copied()
    }

    /// Has a server have that share of its keys from the next change on.
    pub(crate) fn set_share(&mut self, pool: u32, server: u32, share: u16, now: Instant) {
        if self.halted {
            return;
        }
        self.pools[pool as usize].wanted_shares.insert(server, share.min(SHARE_WHOLE));
        self.advance(pool as usize, now);
    }

    /// Whether all servers of a pool are used, although too many are down.
    pub(crate) fn is_open(&self, pool: u32) -> bool {
        self.pools[pool as usize].is_open()
    }

    /// Which servers of a pool are on its ring.
    pub(crate) fn live(&self, pool: u32) -> Vec<bool> {
        self.pools[pool as usize].live()
    }

    pub(crate) fn version(&self, pool: u32) -> u64 {
        self.pools[pool as usize].version
    }

    /// No change begins any more. A change under way is finished.
    pub(crate) fn freeze(&mut self) {
        self.frozen = true;
    }

    /// Whether no change is under way. It stays so while frozen.
    pub(crate) fn is_quiet(&self) -> bool {
        self.pools.iter().all(|ring| ring.change.is_none())
    }

    /// Allows changes again, beginning with those wanted meanwhile.
    pub(crate) fn thaw(&mut self, now: Instant) {
        self.frozen = false;
        for pool in 0..self.pools.len() {
            self.advance(pool, now);
        }
    }

    /// The state after a [`Rings::switch`] to these pools, if nothing is reported before: it tells
    /// which servers will be live.
    pub(crate) fn switched(&self, pools: Vec<RingConfig>) -> Self {
        let mut next = self.clone();
        next.messages.clear();
        next.switch(pools);
        next
    }

    /// The topologies after a switch to these pools, and a line for each failover that it undoes.
    pub(crate) fn foreseen(&self, pools: Vec<RingConfig>) -> (Vec<TopologyState>, Vec<String>) {
        let before = |name: &str| self.pools.iter().find(|ring| ring.config.name == name);
        let next = |config: RingConfig| match before(&config.name) {
            Some(ring) => ring.clone().reconfigured(config, self.halted),
            None => Ring::new(config),
        };
        let next: Vec<Ring> = pools.into_iter().map(next).collect();
        let undone = |ring: &Ring| {
            let is_same = |it: &&Ring| it.config.name == ring.config.name;
            match next.iter().find(is_same) {
                Some(same) => ring.undone(&[same]),
                // It may have another name.
                None => {
                    let is_new = |it: &&Ring| before(&it.config.name).is_none();
                    ring.undone(&next.iter().filter(is_new).collect::<Vec<_>>())
                }
            }
        };
        let undone = self.pools.iter().flat_map(undone).collect();
        (next.iter().map(Ring::topology).collect(), undone)
    }

    /// Replaces the pools. Servers that stay, by pool name and server name, stay on or off the
    /// ring; what is known of the others is forgotten. Only while frozen and quiet and with all
    /// messages taken, since those refer to the old pools.
    pub(crate) fn switch(&mut self, pools: Vec<RingConfig>) {
        assert!(self.frozen && self.is_quiet(), "a change of a ring would get lost");
        assert!(self.messages.is_empty(), "these pools would be told what is meant for the old");
        let mut old: HashMap<String, Ring> =
            self.pools.drain(..).map(|ring| (ring.config.name.clone(), ring)).collect();
        let carried = pools.into_iter().map(|config| match old.remove(&config.name) {
            Some(ring) => {
                let was_open = ring.is_open();
                let ring = ring.reconfigured(config, self.halted);
                ring.tell_if_open_now(was_open);
                ring
            }
            None => Ring::new(config),
        });
        self.pools = carried.collect();
    }

    /// A worker was started; its messages are sent before [`ToChild::Start`]. No change begun
    /// earlier waits for it: it dispatches nothing until it has read of the change.
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
        // A worker may have sent the report before it knew that this server may not be ejected any
        // more.
        let ring = self.pools.get_mut(pool as usize);
        let Some(ring) = ring.filter(|ring| ring.may_eject(server) && !self.halted) else { return };
        ring.went_down(server, why);
        self.advance(pool as usize, now);
    }

    /// A server answers that was ejected, or down in an open pool. If it may not return yet, this is
    /// forgotten: workers keep probing it and report again.
    pub(crate) fn server_up(&mut self, pool: u32, server: u32, now: Instant) {
        let ring = self.pools.get_mut(pool as usize).filter(|_| !self.halted);
        let Some(ring) = ring.filter(|ring| ring.may_return(server, now)) else { return };
        let why = "it answers again".to_owned();
        ring.came_up(server);
        ring.wish(server, Wanted { live: true, why });
        self.advance(pool as usize, now);
    }

    /// Abandons changes under way and begins none any more: the instance is stopping.
    pub(crate) fn halt(&mut self) {
        self.halted = true;
        for pool in 0..self.pools.len() {
            self.pools[pool].wanted.clear();
            self.pools[pool].promotions.clear();
            self.pools[pool].wanted_shares.clear();
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
            None if self.frozen || !ring.has_wishes() => None,
            None => ring.not_before,
        };
        self.pools.iter().filter_map(of_ring).min()
    }

    pub(crate) fn poll_message(&mut self) -> Option<(Slot, ToChild)> {
        self.messages.pop_front()
    }

    /// Finishes the change of a pool that all workers hold and begins its next one.
    fn advance(&mut self, pool: usize, now: Instant) {
        loop {
            let ring = &mut self.pools[pool];
            match &ring.change {
                Some(change) if !change.waiting.is_empty() => return,
                Some(_) => self.commit(pool, now),
                None if self.frozen || !ring.has_wishes() => return,
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
            promotions: std::mem::take(&mut ring.promotions),
            shares: std::mem::take(&mut ring.wanted_shares),
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
        for (server, share) in change.shares {
            ring.servers[server as usize].share = share;
        }
        for (shard, promotion) in change.promotions {
            ring.promote(shard, promotion);
        }
        // Who is a primary no more is not missed.
        ring.weigh_and_tell();
        if !ring.live().contains(&true) {
            warn!(
                kind = EventKind::PoolEmpty.name(),
                pool = ring.config.name,
                "pool '{}': all servers are ejected",
                ring.config.name
            );
        }
        self.release(pool);
    }

    fn abandon(&mut self, pool: usize, now: Instant) {
        let ring = &mut self.pools[pool];
        if let Some(change) = &ring.change {
            warn!(
                kind = EventKind::RingNotChanged.name(),
                pool = ring.config.name,
                "pool '{}': the ring is not changed, workers {:?} did not hold in time",
                ring.config.name,
                change.waiting
            );
        }
        self.undo(pool);
        self.pools[pool].not_before = Some(now + RETRY_PAUSE);
    }

    /// What was to change is wanted again.
    fn undo(&mut self, pool: usize) {
        let ring = &mut self.pools[pool];
        let change = ring.change.take().expect("a change is under way");
        // A report that came meanwhile contradicts the change, so both cancel out.
        for (server, wanted) in change.servers {
            if ring.wanted.remove(&server).is_none() {
                ring.wanted.insert(server, wanted);
            }
        }
        // The latest order counts.
        for (shard, promotion) in change.promotions {
            ring.promotions.entry(shard).or_insert(promotion);
        }
        for (server, share) in change.shares {
            ring.wanted_shares.entry(server).or_insert(share);
        }
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

#[cfg(test)]
mod tests {
    use cashew_config::snapshot::{Endpoint, Promoted};

    use super::flaps::{FLAP_MEMORY, FLAP_PAUSE_MAX, FLAP_WINDOW};
    use super::pool::{GroupConfig, ServerConfig};
    use super::*;

    #[test]
    fn a_worker_learns_the_ring_before_it_starts() {
        let mut rings = rings();
        rings.joined(0);
        assert_eq!(messages(&mut rings), [(0, release(0, 0, "11")), (0, release(1, 0, "111"))]);
    }

    #[test]
    fn all_workers_hold_before_any_is_released() {
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
    fn reports_during_a_change_make_the_next_one() {
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
    fn a_share_is_agreed_on_by_all_and_stays() {
        let (mut rings, now) = running([0, 1]);
        let topology = |live: &[bool], shares: &[(u32, u16)]| TopologyState {
            shares: shares.to_vec(),
            ..live.to_vec().into()
        };
        rings.set_share(1, 2, 250, now);
        assert_eq!(rings.wanted_share(1, 2), Some(250));
        assert_eq!(messages(&mut rings), [(0, hold(1, 1)), (1, hold(1, 1))]);
        // It is tried again if a worker does not hold in time.
        rings.handle_timeout(now + HOLD_TIMEOUT);
        assert_eq!(rings.share(1, 2), SHARE_WHOLE);
        let again = now + HOLD_TIMEOUT + RETRY_PAUSE;
        rings.handle_timeout(again);
        (0..2).for_each(|slot| rings.held(slot, 1, 2, again));
        assert_eq!((rings.share(1, 2), rings.wanted_share(1, 2)), (250, None));
        assert_eq!(rings.topology(1), topology(&[true; 3], &[(2, 250)]));
        // Nothing is left of it, and it is not ejected: it may come and go.
        rings.set_share(1, 2, 0, again);
        (0..2).for_each(|slot| rings.held(slot, 1, 3, again));
        let drained = topology(&[true, true, false], &[(2, 0)]);
        assert_eq!(rings.topology(1), drained);
        rings.server_up(1, 2, again);
        assert_eq!(rings.topology(1), drained);
        messages(&mut rings);
        // A worker that joins, and the next program, know it.
        rings.joined(2);
        let told = |message: &ToChild| matches!(message, ToChild::Release { topology, .. } if *topology == drained);
        assert!(messages(&mut rings).iter().any(|(slot, message)| *slot == 2 && told(message)));
        let configs: Vec<RingConfig> = rings.pools.iter().map(|it| it.config.clone()).collect();
        let state = rings.state(again);
        let next = Rings::from_state(state, &configs, |_| true, again);
        assert_eq!(next.topology(1), drained);
        // As does another epoch, unless no other server has keys.
        assert_eq!(rings.switched_while_frozen(configs.clone()).topology(1), drained);
        let mut alone = configs;
        alone[1].servers.drain(..2);
        assert_eq!(rings.switched_while_frozen(alone).topology(1), topology(&[true], &[]));
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
    fn a_dead_worker_delays_nothing() {
        let (mut rings, now) = running([0, 1]);
        rings.server_down(0, 0, "refused".into(), now);
        rings.held(0, 0, 1, now);
        messages(&mut rings);
        rings.left(1, now);
        assert_eq!(messages(&mut rings), [(0, release(0, 1, "01"))]);
    }

    #[test]
    fn a_worker_that_joins_during_a_change_holds_from_its_start() {
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
    fn invalid_reports_are_ignored() {
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
    fn servers_that_stay_in_the_next_epoch_keep_their_state() {
        let (mut rings, now) = running([0]);
        for (version, server) in [(1, 0), (2, 1), (3, 2)] {
            rings.server_down(1, server, "refused".into(), now);
            rings.held(0, 1, version, now);
        }
        messages(&mut rings);
        rings.freeze();
        rings.server_down(0, 0, "refused".into(), now);
        rings.server_down(0, 1, "refused".into(), now);
        // In beta, a is gone, b is elsewhere and c is first; in alpha, a is gone and b is last.
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
        let mut rings = Rings::from_state(state.clone(), &configs(), |_| true, now);
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
    fn workers_lost_in_the_exchange_are_not_waited_for() {
        let (mut rings, now) = running([0, 3]);
        rings.freeze();
        let mut rings = Rings::from_state(rings.state(now), &configs(), |slot| slot == 0, now);
        rings.thaw(now);
        eject(&mut rings, 1, now);
        assert_eq!(rings.live(0), [true, false]);
        // Its place is free.
        rings.joined(3);
    }

    #[test]
    fn a_server_that_flaps_stays_out_longer_each_time() {
        let (mut rings, now) = running([0]);
        let mut pause = |server, ejected_at| {
            eject(&mut rings, server, ejected_at);
            readmit(&mut rings, server, ejected_at) - ejected_at
        };
        // After its first ejection it returns as soon as it answers.
        assert_eq!(pause(0, now), Duration::ZERO);
        let mut at = now;
        for seconds in [20, 40, 80, 160, 300, 300] {
            at += FLAP_WINDOW;
            assert_eq!(pause(0, at), Duration::from_secs(seconds));
            at += Duration::from_secs(seconds);
        }
        // A little later it waits as long as the last time.
        at += FLAP_WINDOW + RETRY_TIMEOUT;
        assert_eq!(pause(0, at), FLAP_PAUSE_MAX);
        at += FLAP_PAUSE_MAX + FLAP_MEMORY * FLAP_PAUSE_MAX;
        assert_eq!(pause(0, at), Duration::ZERO);
        at += FLAP_WINDOW;
        assert_eq!(pause(0, at), RETRY_TIMEOUT, "it begins anew");
        // The other servers of the pool are not affected.
        assert_eq!(pause(1, at + RETRY_TIMEOUT), Duration::ZERO);
    }

    #[test]
    fn a_flapping_server_is_better_than_none() {
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

    const RETRY_TIMEOUT: Duration = Duration::from_secs(20);

    fn configs() -> Vec<RingConfig> {
        vec![pool("alpha", ["a", "b"]), pool("beta", ["a", "b", "c"])]
    }

    impl Rings {
        fn switched_while_frozen(&self, pools: Vec<RingConfig>) -> Self {
            let mut next = self.clone();
            next.freeze();
            next.switched(pools)
        }
    }

    fn rings() -> Rings {
        Rings::new(configs())
    }

    pub(super) fn pool<const N: usize>(name: &str, servers: [&str; N]) -> RingConfig {
        let server = |name: &str| ServerConfig {
            name: name.into(),
            group: name.into(),
            endpoint: endpoint(name),
            may_eject: true,
        };
        RingConfig {
            name: name.into(),
            retry_timeout_ms: RETRY_TIMEOUT.as_millis() as u64,
            servers: servers.into_iter().map(server).collect(),
            groups: BTreeMap::new(),
            is_one_shard: false,
            fail_open_percent: 100,
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

    /// Readmits it as soon as possible, and returns when that is.
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

    /// All workers hold what is to be held.
    fn settle(rings: &mut Rings, now: Instant) {
        while let Some((slot, message)) = rings.poll_message() {
            if let ToChild::Hold { pool, version, .. } = message {
                rings.held(slot, pool, version, now);
            }
        }
    }

    /// Rings of one pool of which half may be ejected.
    fn half(config: RingConfig) -> (Rings, Instant) {
        let mut rings = Rings::new(vec![RingConfig { fail_open_percent: 50, ..config }]);
        rings.joined(0);
        (rings, Instant::now())
    }

    fn down(rings: &mut Rings, server: u32, now: Instant) {
        rings.server_down(0, server, "refused".into(), now);
        settle(rings, now);
    }

    fn up(rings: &mut Rings, server: u32, now: Instant) {
        rings.server_up(0, server, now);
        settle(rings, now);
    }

    #[test]
    fn a_pool_with_too_many_servers_down_uses_them_all_until_enough_answer() {
        let (mut rings, now) = half(pool("alpha", ["a", "b", "c", "d"]));
        down(&mut rings, 0, now);
        down(&mut rings, 1, now);
        assert_eq!((rings.live(0), rings.is_open(0)), (vec![false, false, true, true], false));
        down(&mut rings, 2, now);
        assert_eq!((rings.live(0), rings.is_open(0)), (vec![true; 4], true));
        let version = rings.version(0);
        down(&mut rings, 3, now);
        down(&mut rings, 0, now);
        assert_eq!((rings.version(0), messages(&mut rings)), (version, vec![]), "nothing changes");
        // One that was never down changes nothing, either, and three are still too many.
        up(&mut rings, 3, now);
        up(&mut rings, 3, now);
        assert_eq!((rings.live(0), rings.is_open(0)), (vec![true; 4], true));
        up(&mut rings, 1, now);
        assert_eq!((rings.live(0), rings.is_open(0)), (vec![false, true, false, true], false));
        // Those that were taken back for others' sake do not flap.
        up(&mut rings, 0, now);
        up(&mut rings, 2, now);
        assert_eq!(rings.live(0), [true; 4]);
    }

    #[test]
    fn a_pool_opens_in_the_middle_of_a_change() {
        let (mut rings, now) = half(pool("alpha", ["a", "b"]));
        messages(&mut rings);
        rings.server_down(0, 0, "refused".into(), now);
        assert_eq!(messages(&mut rings), [(0, hold(0, 1))]);
        rings.server_down(0, 1, "refused".into(), now);
        assert!(rings.is_open(0));
        rings.held(0, 0, 1, now);
        assert_eq!(messages(&mut rings), [(0, release(0, 1, "01")), (0, hold(0, 2))]);
        rings.held(0, 0, 2, now);
        assert_eq!(messages(&mut rings), [(0, release(0, 2, "11"))]);
        // Nobody may be ejected with 0 %: then there is nothing to change.
        let none = RingConfig { fail_open_percent: 0, ..pool("alpha", ["a", "b"]) };
        let mut rings = Rings::new(vec![none]);
        down(&mut rings, 1, now);
        assert_eq!((rings.live(0), rings.is_open(0)), (vec![true; 2], true));
        up(&mut rings, 1, now);
        assert!(!rings.is_open(0));
    }

    #[test]
    fn groups_count_once_where_pools_fail_open() {
        // One group of three, and one server alone.
        let (mut rings, now) = half(grouped(["a", "b", "c", "d"], 0, 1));
        down(&mut rings, 2, now);
        down(&mut rings, 3, now);
        assert_eq!((rings.live(0), rings.is_open(0)), (vec![true, true, false, false], false));
        down(&mut rings, 0, now);
        assert_eq!((rings.live(0)[0], rings.is_open(0)), (false, false));
        down(&mut rings, 1, now);
        // Replicas have nothing to do with it.
        assert_eq!((rings.live(0), rings.is_open(0)), (vec![true, true, false, false], true));
        up(&mut rings, 2, now);
        // A group whose primary is another is well.
        rings.promote(0, 2, "asked for".into(), now).unwrap();
        settle(&mut rings, now);
        assert_eq!((rings.live(0), rings.is_open(0)), (vec![false, true, true, false], false));
    }

    #[test]
    fn a_pool_stays_open_over_epochs_and_programs() {
        let names = ["a", "b", "c", "d"];
        let config = || RingConfig { fail_open_percent: 50, ..pool("alpha", names) };
        let (mut rings, now) = half(config());
        (0..3).for_each(|server| down(&mut rings, server, now));
        rings.freeze();
        let state: RingsState =
            serde_json::from_slice(&serde_json::to_vec(&rings.state(now)).unwrap()).unwrap();
        let rings = Rings::from_state(state, &[config()], |_| true, now);
        assert!(rings.is_open(0));
        // Those that stay are down as before, by their names.
        let next = |percent, names| {
            rings.switched(vec![RingConfig { fail_open_percent: percent, ..pool("alpha", names) }])
        };
        assert!(next(50, ["d", "c", "b", "a"]).is_open(0));
        assert!(!next(50, ["d", "c", "b", "e"]).is_open(0));
        assert!(!next(75, names).is_open(0));
        let mut closed = next(100, names);
        assert!(!closed.is_open(0));
        closed.thaw(now);
        settle(&mut closed, now);
        assert_eq!(closed.live(0), [false, false, false, true]);
        // Another share opens it at once.
        closed.freeze();
        closed.switch(vec![config()]);
        assert!(closed.is_open(0));
        closed.thaw(now);
        settle(&mut closed, now);
        assert_eq!(closed.live(0), [true; 4]);
    }

    fn messages(rings: &mut Rings) -> Vec<(Slot, ToChild)> {
        std::iter::from_fn(|| rings.poll_message()).collect()
    }

    fn hold(pool: u32, version: u64) -> ToChild {
        ToChild::Hold { pool, version, drain_ms: DRAIN_MS }
    }

    fn release(pool: u32, version: u64, live: &str) -> ToChild {
        let live: Vec<bool> = live.chars().map(|c| c == '1').collect();
        ToChild::Release { pool, version, topology: live.into() }
    }

    /// A pool of a primary and its replicas.
    pub(super) fn replicated<const N: usize>(servers: [&str; N], primary: u32) -> RingConfig {
        let replicas = (0..N as u32).filter(|&it| it != primary).collect();
        let group = GroupConfig { name: "master".into(), primary, replicas };
        let groups = BTreeMap::from([(0, group)]);
        RingConfig { groups, is_one_shard: true, ..pool("alpha", servers) }
    }

    /// Who takes the writes of the pool's first group.
    fn primary(rings: &Rings) -> Option<u32> {
        rings.primaries(0).get(&0).copied()
    }

    fn primary_of(message: &ToChild) -> Option<u32> {
        match message {
            ToChild::Release { topology, .. } => topology.primaries.first().map(|it| it.server),
            _ => None,
        }
    }

    #[test]
    fn a_replica_is_promoted_by_all_workers_together() {
        let mut rings = Rings::new(vec![replicated(["a", "b", "c"], 0)]);
        let now = Instant::now();
        [0, 1].into_iter().for_each(|slot| rings.joined(slot));
        assert_eq!(messages(&mut rings).len(), 2);
        rings.promote(0, 2, "asked for".into(), now).unwrap();
        // What is on its way has longer than before other changes.
        let longer = ToChild::Hold { pool: 0, version: 1, drain_ms: PROMOTION_DRAIN_MS };
        assert_eq!(messages(&mut rings), [(0, longer.clone()), (1, longer)]);
        rings.held(0, 0, 1, now);
        assert_eq!((messages(&mut rings), primary(&rings)), (vec![], Some(0)));
        rings.held(1, 0, 1, now);
        let releases = messages(&mut rings);
        assert!(releases.len() == 2 && releases.iter().all(|(_, it)| primary_of(it) == Some(2)));
        assert_eq!(primary(&rings), Some(2));
        assert_eq!(rings.promote(0, 2, String::new(), now), Ok(false), "it is the primary already");
        // The primary may not be ejected, and who was it may.
        rings.server_down(0, 2, "refused".into(), now);
        assert_eq!(messages(&mut rings), []);
        rings.server_down(0, 0, "refused".into(), now);
        settle(&mut rings, now);
        assert_eq!(rings.live(0), [false, true, true]);
        // Back to the configured one, which is live by that.
        rings.promote(0, 0, "asked for".into(), now).unwrap();
        let told = settled(&mut rings, now);
        assert_eq!((primary_of(&told), rings.live(0)), (None, vec![true; 3]));
    }

    #[test]
    fn a_later_promotion_of_the_group_takes_the_place_of_one_under_way() {
        let mut rings = Rings::new(vec![replicated(["a", "b", "c"], 0)]);
        let now = Instant::now();
        [0, 1].into_iter().for_each(|slot| rings.joined(slot));
        messages(&mut rings);
        rings.promote(0, 1, "asked for".into(), now).unwrap();
        rings.held(0, 0, 1, now);
        messages(&mut rings);
        // At once: nobody was late.
        rings.promote(0, 2, "asked for".into(), now).unwrap();
        let sent = messages(&mut rings);
        assert!(sent[..2].iter().all(|(_, it)| matches!(it, ToChild::Release { .. })), "{sent:?}");
        assert!(sent[2..].iter().all(|(_, it)| matches!(it, ToChild::Hold { version: 2, .. })));
        rings.held(1, 0, 1, now);
        [0, 1].into_iter().for_each(|slot| rings.held(slot, 0, 2, now));
        assert_eq!(primary(&rings), Some(2));
        assert_eq!(rings.topology(0).reigns, [(0, 1)]);
        // So does the wish that the primary stays.
        messages(&mut rings);
        rings.promote(0, 1, "asked for".into(), now).unwrap();
        rings.promote(0, 2, "asked for".into(), now).unwrap();
        assert!(rings.is_quiet() && primary(&rings) == Some(2));
        assert_eq!(rings.poll_timeout(), None);
        assert_eq!(rings.topology(0).reigns, [(0, 1)]);
    }

    #[test]
    fn what_else_was_to_change_with_a_withdrawn_promotion_is_changed_at_once() {
        let mut config = replicated(["a", "b", "c"], 0);
        config.servers[1].may_eject = true;
        let mut rings = Rings::new(vec![config]);
        let now = Instant::now();
        rings.joined(0);
        rings.freeze();
        rings.server_down(0, 1, "refused".into(), now);
        rings.promote(0, 2, "asked for".into(), now).unwrap();
        rings.thaw(now);
        messages(&mut rings);
        rings.withdraw(0, 2, now);
        rings.held(0, 0, 2, now);
        assert_eq!((rings.live(0), primary(&rings)), (vec![true, false, true], Some(0)));
    }

    #[test]
    fn the_reigns_of_a_group_go_on_over_a_reload() {
        let mut rings = Rings::new(vec![replicated(["a", "b", "c"], 0)]);
        let now = Instant::now();
        rings.promote(0, 2, "asked for".into(), now).unwrap();
        let reigns = |rings: &Rings| rings.topology(0).reigns;
        assert_eq!(reigns(&rings), [(0, 1)]);
        let reload = |rings: &mut Rings, servers: [&str; 3], primary| {
            rings.freeze();
            rings.switch(vec![replicated(servers, primary)]);
            rings.thaw(now);
        };
        reload(&mut rings, ["a", "c", "d"], 0);
        assert_eq!((primary(&rings), reigns(&rings)), (Some(1), vec![(0, 1)]));
        // The file has another take the writes, and then the same as before.
        reload(&mut rings, ["a", "c", "d"], 2);
        reload(&mut rings, ["a", "c", "d"], 1);
        assert_eq!((primary(&rings), reigns(&rings)), (Some(1), vec![(0, 3)]));
        rings.freeze();
        let again =
            Rings::from_state(rings.state(now), &[replicated(["a", "c", "d"], 1)], |_| true, now);
        assert_eq!(reigns(&again), reigns(&rings));
    }

    #[test]
    fn a_promotion_that_is_not_held_in_time_is_tried_again() {
        let mut rings = Rings::new(vec![replicated(["a", "b"], 0)]);
        let now = Instant::now();
        rings.joined(0);
        rings.promote(0, 1, "asked for".into(), now).unwrap();
        messages(&mut rings);
        let late = now + HOLD_TIMEOUT;
        rings.handle_timeout(late);
        let told = messages(&mut rings);
        assert!(matches!(told[..], [(0, ref release)] if primary_of(release).is_none()));
        let again = late + RETRY_PAUSE;
        rings.handle_timeout(again);
        settle(&mut rings, again);
        assert_eq!(primary(&rings), Some(1));
    }

    #[test]
    fn who_is_promoted_stays_so_until_the_file_names_another_primary() {
        let mut rings = Rings::new(vec![replicated(["a", "b", "c"], 0)]);
        let now = Instant::now();
        rings.promote(0, 2, "asked for".into(), now).unwrap();
        assert_eq!(primary(&rings), Some(2), "there is no worker to wait for");
        rings.freeze();
        let state: RingsState =
            serde_json::from_slice(&serde_json::to_vec(&rings.state(now)).unwrap()).unwrap();
        let mut rings = Rings::from_state(state, &[replicated(["a", "b", "c"], 0)], |_| true, now);
        assert_eq!(primary(&rings), Some(2));
        rings.switch(vec![replicated(["c", "a", "d"], 1)]);
        assert_eq!(primary(&rings), Some(0), "by its name");
        let other = rings.switched(vec![replicated(["a", "c", "d"], 2)]);
        assert_eq!(primary(&other), Some(2), "the file names d");
        let gone = rings.switched(vec![replicated(["a", "b"], 0)]);
        assert_eq!(primary(&gone), Some(0), "c is not there any more");
        rings.switch(vec![pool("alpha", ["a", "c"])]);
        assert_eq!(primary(&rings), None);
        assert!(rings.promote(0, 1, String::new(), now).is_err(), "each has keys of its own");
    }

    #[test]
    fn a_switch_that_undoes_a_failover_is_foreseen() {
        let mut rings = Rings::new(vec![replicated(["a", "b", "c"], 0)]);
        rings.promote(0, 2, "asked for".into(), Instant::now()).unwrap();
        let foreseen = |config| {
            let (topologies, undone) = rings.foreseen(vec![config]);
            (topologies[0].primaries.first().map(|it| it.server), undone)
        };
        assert_eq!(foreseen(replicated(["a", "b", "c"], 0)), (Some(2), vec![]));
        assert_eq!(foreseen(replicated(["c", "a"], 1)), (Some(0), vec![]));
        let (primary, undone) = foreseen(replicated(["a", "b"], 0));
        assert_eq!((primary, undone.len()), (None, 1));
        assert!(undone[0].contains("the file has it no more"), "{undone:?}");
        let (primary, undone) = foreseen(replicated(["a", "b", "c"], 1));
        assert_eq!((primary, undone.len()), (None, 1));
        assert!(undone[0].contains("the file names another primary"), "{undone:?}");
        // The one that is promoted becomes the configured one.
        assert_eq!(foreseen(replicated(["a", "b", "c"], 2)), (None, vec![]));
        assert_eq!(foreseen(pool("beta", ["x"])), (None, vec![]));
    }

    /// Two shards: one of "a" alone, the other of the rest, of which the first is the primary.
    fn grouped<const N: usize>(servers: [&str; N], alone: u32, primary: u32) -> RingConfig {
        let replicas = (0..N as u32).filter(|&it| it != primary && it != alone).collect();
        let group = GroupConfig { name: "s1".into(), primary, replicas };
        let mut config = pool("alpha", servers);
        let of_group = |(at, server): (u32, &mut ServerConfig)| {
            server.group = if at == alone { "s0".into() } else { "s1".into() };
        };
        (0..).zip(&mut config.servers).for_each(of_group);
        RingConfig { groups: BTreeMap::from([(1, group)]), ..config }
    }

    #[test]
    fn a_failover_is_undone_by_another_name_too() {
        let mut rings = Rings::new(vec![grouped(["a", "b", "c", "d"], 0, 1)]);
        rings.promote(0, 3, "asked for".into(), Instant::now()).unwrap();
        let why = |configs: Vec<RingConfig>| {
            let (_, undone) = rings.foreseen(configs);
            let only = |line: String| {
                let start = "pool 'alpha': the failover of 's1' to 'd' (d:6379) is undone, since ";
                line.strip_prefix(start).expect(&line).to_owned()
            };
            undone.into_iter().map(only).collect::<Vec<_>>().join("; ")
        };
        let renamed = |group: &str, mut config: RingConfig| {
            config
                .servers
                .iter_mut()
                .filter(|it| it.group == "s1")
                .for_each(|it| it.group = group.into());
            config.groups.values_mut().for_each(|it| it.name = group.into());
            config
        };
        let same = || grouped(["a", "b", "c", "d"], 0, 1);
        assert_eq!(why(vec![same()]), "");
        assert_eq!(why(vec![pool("beta", ["x"]), same()]), "");
        assert_eq!(why(vec![grouped(["a", "b", "c", "d", "e"], 0, 1)]), "");
        // It keeps the writes, alone or by another name.
        assert_eq!(why(vec![pool("alpha", ["a", "b", "d"])]), "");
        let to_b = "writes go to 'b' (b:6379)";
        assert_eq!(
            why(vec![renamed("s2", same())]),
            format!("the group has another name in the file: {to_b}")
        );
        assert_eq!(
            why(vec![pool("beta", ["x"]), RingConfig { name: "gamma".into(), ..same() }]),
            format!("the pool has another name in the file: {to_b}")
        );
        assert_eq!(
            why(vec![grouped(["a", "b", "c"], 0, 1)]),
            format!("the file has it no more: {to_b}")
        );
        assert_eq!(
            why(vec![pool("alpha", ["a", "b"])]),
            format!("the file has it no more: {to_b}")
        );
        // The group is a line, and the promoted server another one.
        let mut lines = pool("alpha", ["a", "b", "d"]);
        (lines.servers[1].name, lines.servers[1].group) = ("s1".into(), "s1".into());
        let to_b = "writes go to 's1' (b:6379)";
        assert_eq!(why(vec![lines]), format!("it is not in the group any more: {to_b}"));
        assert_eq!(
            why(vec![grouped(["a", "b", "c", "d"], 0, 2)]),
            "the file names another primary: writes go to 'c' (c:6379)"
        );
        // Its servers are gone, or another pool had them already.
        assert_eq!(why(vec![pool("alpha", ["a"])]), "");
        assert_eq!(why(vec![]), "");
    }

    #[test]
    fn each_group_has_a_primary_of_its_own() {
        let mut rings = Rings::new(vec![grouped(["a", "b", "c", "d"], 0, 1)]);
        let now = Instant::now();
        rings.joined(0);
        assert!(rings.promote(0, 0, String::new(), now).unwrap_err().contains("is no replica"));
        rings.promote(0, 3, "asked for".into(), now).unwrap();
        settle(&mut rings, now);
        let promoted = Promoted { shard: 1, server: 3 };
        assert_eq!(rings.topology(0).primaries, [promoted]);
        // A primary may be ejected where there are other shards.
        eject(&mut rings, 3, now);
        rings.freeze();
        settle(&mut rings, now);
        // Servers are known by their groups and endpoints.
        let mut next = grouped(["c", "d", "b", "a"], 3, 2);
        next.servers[0].name = "s1/c".into();
        rings.switch(vec![next]);
        let topology = rings.topology(0);
        assert_eq!(topology.primaries, [Promoted { shard: 1, server: 1 }]);
        assert_eq!(topology.live, [true, false, true, true]);
        // The file names another primary.
        rings.switch(vec![grouped(["c", "d", "b", "a"], 3, 0)]);
        assert_eq!(rings.topology(0).primaries, []);
    }

    /// Answers what is asked, and returns the last message.
    fn settled(rings: &mut Rings, now: Instant) -> ToChild {
        let mut last = None;
        while let Some((slot, message)) = rings.poll_message() {
            if let ToChild::Hold { pool, version, .. } = message {
                rings.held(slot, pool, version, now);
            }
            last = Some(message);
        }
        last.expect("there was something to say")
    }
}
