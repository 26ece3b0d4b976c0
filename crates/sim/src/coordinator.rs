//! A minimal model of the master's part in changing rings and epochs.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use cashew_config::Snapshot;
use cashew_config::snapshot::{ClusterMap, Pool, Promoted, Topology, TopologyState};
use cashew_engine::PoolState;

use crate::random::Random;
use crate::reload::{changed, named_anew};
use crate::scenario::{pool_id, server_id};

/// A message to all gateways. Pools are given by their number in the epoch.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    Hold { pool: u32, version: u64, drain_ms: u64 },
    Release { pool: u32, version: u64, topology: TopologyState },
    Prepare(Rc<Proposal>),
    Pause { drain_ms: u64 },
    Commit,
    Abort,
}

/// An epoch that gateways are asked to prepare.
#[derive(Debug)]
pub(crate) struct Proposal {
    pub(crate) snapshot: Snapshot,
    pub(crate) states: Vec<PoolState>,
    /// How many gateways share the servers' connections.
    pub(crate) workers: u32,
    /// Which gateway refuses it, if any.
    pub(crate) refused_by: Option<u32>,
}

/// A gateway's answer about an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Prepared,
    Refused,
    Paused,
}

/// Changes rings in two phases: all gateways hold, then all are released. Changes epochs in three,
/// while no ring changes.
pub(crate) struct Coordinator {
    gateways: u32,
    snapshot: Snapshot,
    /// By pool of the snapshot.
    pools: Vec<State>,
    /// Of rings and of epochs; never reused.
    versions: u64,
    change: Option<Change>,
    removed: Vec<u32>,
    /// The last map of the cluster, until it is in effect; and whether its epoch may fail.
    map: Option<(ClusterMap, bool)>,
    random: Random,
    pub(crate) changes: u64,
    pub(crate) commits: u64,
}

struct State {
    version: u64,
    topology: TopologyState,
    /// Gateways that have not confirmed the hold.
    waiting: BTreeSet<u32>,
    /// The current change; empty if there is none.
    change: Wanted,
    wanted: Wanted,
}

impl State {
    fn of(version: u64, topology: TopologyState) -> Self {
        let (change, wanted) = (Wanted::default(), Wanted::default());
        Self { version, topology, waiting: BTreeSet::new(), change, wanted }
    }
}

/// What is to be different about a pool's topology.
#[derive(Default)]
struct Wanted {
    /// The new state of each server.
    live: BTreeMap<u32, bool>,
    /// The new primary of each shard.
    primaries: BTreeMap<u32, u32>,
}

impl Wanted {
    fn is_empty(&self) -> bool {
        self.live.is_empty() && self.primaries.is_empty()
    }

    fn apply(self, topology: &mut TopologyState) {
        for (server, live) in self.live {
            topology.live[server as usize] = live;
        }
        for (shard, server) in self.primaries {
            topology.primaries.retain(|promoted| promoted.shard != shard);
            topology.primaries.push(Promoted { shard, server });
            let reign = topology.reign(shard) + 1;
            topology.reigns.retain(|(its, _)| *its != shard);
            topology.reigns.push((shard, reign));
        }
    }
}

/// Groups that there were before keep who takes their writes, as long as it is one of them, and count on.
fn keep_primaries(next: &mut TopologyState, pool: &Pool, (before, was): (&TopologyState, &Pool)) {
    let Topology::Groups(groups) = &pool.topology else { return };
    for (shard, group) in (0..).zip(groups) {
        let Some(old) = was.shards().iter().position(|it| it.name == group.name) else { continue };
        let old = old as u32;
        if let Some(promoted) = before.primaries.iter().find(|it| it.shard == old) {
            let server = server_id(&was.servers[promoted.server as usize]);
            let its = |&at: &u32| server_id(&pool.servers[at as usize]) == server;
            if let Some(server) = group.members().find(its) {
                next.primaries.push(Promoted { shard, server });
            }
        }
        if before.reign(old) > 0 {
            next.reigns.push((shard, before.reign(old)));
        }
    }
}

struct Change {
    proposal: Rc<Proposal>,
    phase: Answer,
    waiting: BTreeSet<u32>,
    /// It is cancelled when all have given this answer.
    fails_at: Option<Answer>,
}

impl Coordinator {
    pub(crate) fn new(gateways: u32, snapshot: &Snapshot, random: Random) -> Self {
        let whole = |pool| State::of(0, TopologyState::whole(pool));
        let pools = snapshot.pools.iter().map(whole).collect();
        Self {
            gateways,
            snapshot: snapshot.clone(),
            pools,
            versions: snapshot.epoch,
            change: None,
            removed: Vec::new(),
            map: None,
            random,
            changes: 0,
            commits: 0,
        }
    }

    /// By their places in the universe.
    fn find(&self, pool: u32, server: u32) -> Option<(u32, u32)> {
        let pool = self.find_pool(pool)?;
        let servers = &self.snapshot.pools[pool as usize].servers;
        let server = servers.iter().position(|other| server_id(other) == server)?;
        Some((pool, server as u32))
    }

    fn find_pool(&self, pool: u32) -> Option<u32> {
        let pool = self.snapshot.pools.iter().position(|other| pool_id(other) == pool)?;
        Some(pool as u32)
    }

    pub(crate) fn want(&mut self, pool: u32, server: u32, live: bool) -> Vec<Order> {
        let Some((pool, server)) = self.find(pool, server) else { return Vec::new() };
        let state = &mut self.pools[pool as usize];
        let now = state.topology.live[server as usize];
        let coming = state.change.live.get(&server).copied().unwrap_or(now);
        if coming == live {
            state.wanted.live.remove(&server);
        } else {
            state.wanted.live.insert(server, live);
        }
        self.advance(pool)
    }

    /// Another server of some group takes its writes from now on.
    pub(crate) fn promote(&mut self) -> Vec<Order> {
        let groups = self.snapshot.pools.iter().zip(0..);
        let groups = groups.flat_map(|(pool, number)| {
            pool.replicated().into_iter().map(move |(shard, group)| (number, shard, group))
        });
        let groups: Vec<_> = groups.collect();
        if groups.is_empty() {
            return Vec::new();
        }
        let at = self.random.below(groups.len() as u64) as usize;
        let (pool, shard, ref group) = groups[at];
        let members: Vec<u32> = group.members().collect();
        let server = self.random.pick(&members);
        self.pools[pool as usize].wanted.primaries.insert(shard, server);
        self.advance(pool)
    }

    pub(crate) fn held(&mut self, pool: u32, gateway: u32, version: u64) -> Vec<Order> {
        let Some(pool) = self.find_pool(pool) else { return Vec::new() };
        let state = &mut self.pools[pool as usize];
        if version == state.version {
            state.waiting.remove(&gateway);
        }
        self.advance(pool)
    }

    /// All servers of all pools are live, and no change is wanted.
    pub(crate) fn is_whole(&self) -> bool {
        self.change.is_none()
            && self.pools.iter().all(|state| {
                state.topology.live.iter().all(|&live| live)
                    && state.change.is_empty()
                    && state.wanted.is_empty()
            })
    }

    fn advance(&mut self, pool: u32) -> Vec<Order> {
        let state = &mut self.pools[pool as usize];
        let mut orders = Vec::new();
        if !state.waiting.is_empty() {
            return orders;
        }
        if !state.change.is_empty() {
            std::mem::take(&mut state.change).apply(&mut state.topology);
            self.changes += 1;
            let (version, topology) = (state.version, state.topology.clone());
            orders.push(Order::Release { pool, version, topology });
        }
        if !state.wanted.is_empty() && self.change.is_none() {
            state.change = std::mem::take(&mut state.wanted);
            self.versions += 1;
            state.version = self.versions;
            state.waiting = (0..self.gateways).collect();
            let drain_ms = self.random.pick(&[0, 1, 20]);
            orders.push(Order::Hold { pool, version: state.version, drain_ms });
        }
        orders
    }

    /// Proposes another epoch; does nothing while a ring changes.
    pub(crate) fn reload(&mut self, universe: &[Pool], names_anew: bool) -> Vec<Order> {
        let is_busy = self.pools.iter().any(|state| !state.change.is_empty());
        // Sometimes it replaces one that is only prepared.
        let may_replace =
            self.change.as_ref().is_none_or(|change| change.phase == Answer::Prepared);
        if is_busy || !may_replace || (self.change.is_some() && self.random.percent(70)) {
            return Vec::new();
        }
        let snapshot = match names_anew {
            true => named_anew(&self.snapshot, universe, &mut self.random),
            false => changed(&self.snapshot, universe, &self.removed, &mut self.random),
        };
        self.propose(snapshot, true)
    }

    /// The first pool is to go by this map, as soon as no other epoch is on its way.
    pub(crate) fn remap(&mut self, map: ClusterMap, may_fail: bool) -> Vec<Order> {
        self.map = Some((map, may_fail));
        self.put_map()
    }

    fn put_map(&mut self) -> Vec<Order> {
        if self.change.is_some() || self.pools.iter().any(|state| !state.change.is_empty()) {
            return Vec::new();
        }
        let Some((map, may_fail)) = self.map.take() else { return Vec::new() };
        let mut snapshot = self.snapshot.clone();
        match snapshot.pools[0].set_cluster_map(&map) {
            true => self.propose(snapshot, may_fail),
            false => Vec::new(),
        }
    }

    fn propose(&mut self, mut snapshot: Snapshot, may_fail: bool) -> Vec<Order> {
        self.versions += 1;
        snapshot.epoch = self.versions;
        let state_of = |pool: &Pool| {
            let mut state = PoolState::whole(pool);
            if let Some(known) = self.find_pool(pool_id(pool)) {
                let before = &self.pools[known as usize];
                state.ring_version = before.version;
                let was = &self.snapshot.pools[known as usize];
                keep_primaries(&mut state.topology, pool, (&before.topology, was));
            }
            for (server, live) in pool.servers.iter().zip(&mut state.topology.live) {
                if let Some((pool, known)) = self.find(pool_id(pool), server_id(server)) {
                    *live = self.pools[pool as usize].topology.live[known as usize];
                }
            }
            state
        };
        let states = snapshot.pools.iter().map(state_of).collect();
        let refused_by =
            self.random.percent(10).then(|| self.random.below(self.gateways.into()) as u32);
        let refused_by = refused_by.filter(|_| may_fail);
        let workers = self.gateways + self.random.pick(&[0, 0, 1, 3]);
        // A map does not change how many there are.
        let is_map = snapshot.pools.iter().any(Pool::is_cluster);
        let workers = if is_map { self.gateways } else { workers };
        let proposal = Rc::new(Proposal { snapshot, states, workers, refused_by });
        let fails_at = match self.random.below(10) {
            0 => Some(Answer::Prepared),
            1 => Some(Answer::Paused),
            _ => None,
        };
        let fails_at = fails_at.filter(|_| may_fail);
        self.change = Some(Change {
            proposal: Rc::clone(&proposal),
            phase: Answer::Prepared,
            waiting: (0..self.gateways).collect(),
            fails_at,
        });
        vec![Order::Prepare(proposal)]
    }

    pub(crate) fn answered(&mut self, gateway: u32, epoch: u64, answer: Answer) -> Vec<Order> {
        let Some(change) = &mut self.change else { return Vec::new() };
        if change.proposal.snapshot.epoch != epoch {
            return Vec::new();
        }
        let is_off = answer == Answer::Refused;
        if !is_off {
            assert_eq!(answer, change.phase, "an answer to what was not asked");
            change.waiting.remove(&gateway);
            if !change.waiting.is_empty() {
                return Vec::new();
            }
        }
        if is_off || change.fails_at == Some(change.phase) {
            self.change = None;
            return self.thaw(Order::Abort);
        }
        if change.phase == Answer::Prepared {
            change.phase = Answer::Paused;
            change.waiting = (0..self.gateways).collect();
            return vec![Order::Pause { drain_ms: self.random.pick(&[0, 1, 20, 1000]) }];
        }
        let proposal = Rc::clone(&change.proposal);
        self.change = None;
        self.commits += 1;
        self.adopt(&proposal);
        self.thaw(Order::Commit)
    }

    fn adopt(&mut self, proposal: &Proposal) {
        let Proposal { snapshot, states, .. } = proposal;
        let mut wanted = BTreeMap::new();
        for (state, pool) in self.pools.iter().zip(&self.snapshot.pools) {
            for (&server, &live) in &state.wanted.live {
                wanted.insert((pool_id(pool), server_id(&pool.servers[server as usize])), live);
            }
        }
        let ids: Vec<u32> = snapshot.pools.iter().map(pool_id).collect();
        self.removed.extend(self.snapshot.pools.iter().map(pool_id).filter(|id| !ids.contains(id)));
        self.pools = states
            .iter()
            .map(|state| State::of(state.ring_version, state.topology.clone()))
            .collect();
        self.snapshot = snapshot.clone();
        for ((pool, server), live) in wanted {
            if let Some((pool, server)) = self.find(pool, server) {
                self.pools[pool as usize].wanted.live.insert(server, live);
            }
        }
    }

    /// Begins the ring changes that came meanwhile.
    fn thaw(&mut self, order: Order) -> Vec<Order> {
        let mut orders = vec![order];
        for pool in 0..self.pools.len() as u32 {
            orders.extend(self.advance(pool));
        }
        orders.extend(self.put_map());
        orders
    }
}
