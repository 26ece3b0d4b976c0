//! A change of the epoch, as one worker takes part in it.
//!
//! It is prepared beside the epoch in use, which nothing is taken from before the commit: pools
//! that come stand behind those in use, with lanes for the servers that are new. From one epoch to
//! the other a pool is known by its name and protocol, a server by its name and endpoint, unless it
//! has [moved](Plan::move_server).
//!
//! Only pools that may send a key elsewhere after the commit are *rerouted*: they dispatch nothing
//! from the pause on. Servers that stay keep their lanes with all that is on them, though not if
//! the lanes' number or what is said on connecting changes, since clients then have other lanes,
//! where their requests could overtake those on the way.
//!
//! Everything that holds the number of a pool or server is renumbered at the commit, except lanes:
//! they keep theirs.

use std::collections::HashMap;
use std::ops::Range;

use cashew_config::snapshot;
use cashew_metrics::{PoolCounter, PoolGauge, ServerGauge, Writer};

use crate::base::action::Action;
use crate::base::failure::Failure;
use crate::base::id::{ClientId, LaneId, PoolId, ServerId};
use crate::base::table::Table;
use crate::base::time::Time;
use crate::base::timers::Timer;
use crate::downstream::client::State;
use crate::downstream::session_params::WireProtocol;
use crate::downstream::window::narrowed;
use crate::engine::epoch::{Plan, PlannedPool};
use crate::engine::{Closed, Engine};
use crate::redis::blocking::Blocking;
use crate::request::Role;
use crate::upstream::lane::{Lane, Link};
use crate::upstream::pool::{Pool, Queues, Server, Standing};

/// How long a pool that was removed stays though it has no clients.
const LINGER_US: u64 = 1_000_000;

/// How long connections to new servers are waited for; they go on being made after that.
const CONNECT_MAX_MS: u64 = 500;
/// The room of fewer lanes that are nobody's is kept.
const LANES_KEPT: usize = 64;

pub(crate) struct Change {
    epoch: u64,
    rank: u32,
    workers: u32,
    memory_max: Option<u64>,
    leave_ms: u64,
    phase: Phase,
    /// One for each pool of the new epoch, in its order.
    steps: Vec<Step>,
    /// Lanes to new servers that are being connected.
    awaited: Vec<LaneId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Preparing {
        until: Time,
    },
    Prepared,
    /// Servers are asked what they have published when nothing else is on its way to them.
    Pausing {
        until: Time,
        is_sounded: bool,
    },
    Paused,
}

/// What becomes a pool of the new epoch. Pools are named by their numbers before the commit.
enum Step {
    /// A pool in use whose keys all stay where they are.
    Same { pool: PoolId, config: Box<snapshot::Pool> },
    /// A pool in use, with the servers and the topology of one that comes.
    Rerouted {
        pool: PoolId,
        preparing: PoolId,
        /// By new server: which one it is already.
        kept: Vec<Option<ServerId>>,
        ring_version: u64,
    },
    New {
        preparing: PoolId,
        /// The pool of the same name, of another protocol.
        displaced: Option<PoolId>,
        ring_version: u64,
    },
}

impl Step {
    /// The pool in use that becomes this one.
    fn old(&self) -> Option<PoolId> {
        match *self {
            Self::Same { pool, .. } | Self::Rerouted { pool, .. } => Some(pool),
            Self::New { .. } => None,
        }
    }

    fn preparing(&self) -> Option<PoolId> {
        match *self {
            Self::Same { .. } => None,
            Self::Rerouted { preparing, .. } | Self::New { preparing, .. } => Some(preparing),
        }
    }

    /// The pool that dispatches nothing while it is changed.
    fn paused(&self) -> Option<PoolId> {
        match *self {
            Self::Same { .. } => None,
            Self::Rerouted { pool, .. } => Some(pool),
            Self::New { displaced, .. } => displaced,
        }
    }
}

/// Where pools and servers stand after the commit, by where they stood; `None` for nowhere.
struct Places {
    pools: Vec<Option<PoolId>>,
    /// Empty where all servers stay where they are.
    servers: Vec<Vec<ServerId>>,
}

impl Places {
    fn new(steps: &[Step], pools: &[Pool]) -> Self {
        let mut places = Self { pools: vec![None; pools.len()], servers: Vec::new() };
        places.servers.resize(pools.len(), Vec::new());
        for (place, step) in steps.iter().enumerate() {
            for pool in step.old().into_iter().chain(step.preparing()) {
                places.pools[pool.index()] = Some(PoolId::new(place as u32));
            }
            if let Step::Rerouted { pool, kept, .. } = step {
                let servers = &mut places.servers[pool.index()];
                servers.resize(pools[pool.index()].servers.len(), ServerId::NONE);
                for (place, kept) in kept.iter().enumerate() {
                    if let Some(server) = kept {
                        servers[server.index()] = ServerId::new(place as u32);
                    }
                }
            }
        }
        let mut behind = steps.len() as u32;
        for (place, pool) in places.pools.iter_mut().zip(pools) {
            if place.is_none() && pool.standing != Standing::Gone {
                *place = Some(PoolId::new(behind));
                behind += 1;
            }
        }
        places
    }

    fn pool(&self, pool: PoolId) -> Option<PoolId> {
        self.pools[pool.index()]
    }

    fn server(&self, pool: PoolId, server: ServerId) -> Option<(PoolId, ServerId)> {
        let place = match &self.servers[pool.index()][..] {
            [] => server,
            servers => servers[server.index()],
        };
        self.pool(pool).filter(|_| place != ServerId::NONE).map(|pool| (pool, place))
    }
}

impl Engine {
    /// Makes everything ready for another epoch, beside the one in use, and takes the place of one
    /// that was prepared and not committed. [`Action::Prepared`] says when connections to new
    /// servers stand or have failed, or have had time enough.
    pub fn handle_prepare(&mut self, plan: Plan, now: Time) {
        self.now = now;
        self.call_off();
        let until = now.plus_millis(CONNECT_MAX_MS);
        self.prepare(plan, Phase::Preparing { until });
        self.watch_until(until);
    }

    /// From here on pools whose keys may get to another server dispatch nothing.
    /// [`Action::Paused`] says when nothing of theirs is on its way any more, or that `drain_ms` are
    /// over. Without an epoch prepared it does nothing.
    pub fn handle_pause(&mut self, drain_ms: u64, now: Time) {
        self.now = now;
        let until = now.plus_millis(drain_ms);
        let Some(change) = &mut self.change else { return };
        change.phase = Phase::Pausing { until, is_sounded: false };
        for pool in change.steps.iter().filter_map(Step::paused) {
            let pool = &mut self.pools[pool];
            pool.paused = true;
            pool.update_held();
        }
        let pools = &self.pools;
        let paused: Vec<bool> = pools.iter().map(|pool| pool.paused).collect();
        self.withdraw_all(|pool| paused[pool.index()]);
        self.watch_until(until);
    }

    /// Goes on by the epoch prepared, and counts in `metrics`, which have its layout.
    ///
    /// # Panics
    ///
    /// When none is prepared.
    pub fn handle_commit(&mut self, metrics: Writer, now: Time) {
        self.now = now;
        self.publish_lanes();
        let change = self.change.take().expect("an epoch is prepared before it is committed");
        self.commit(change, metrics);
        self.settle_lost_marks();
    }

    /// Goes on by the epoch in use, as if no other had been prepared.
    pub fn handle_abort(&mut self, now: Time) {
        self.now = now;
        self.call_off();
    }

    /// The epoch that [`Engine::handle_commit`] would change to.
    pub fn prepared_epoch(&self) -> Option<u64> {
        self.change.as_ref().map(|change| change.epoch)
    }

    /// The first epoch.
    pub(crate) fn begin(&mut self, plan: Plan) {
        self.prepare(plan, Phase::Prepared);
        if let Some(change) = self.change.take() {
            self.commit(change, self.metrics.clone());
        }
    }

    fn prepare(&mut self, plan: Plan, phase: Phase) {
        let Plan { epoch, rank, workers, memory_max, leave_ms, pools } = plan;
        let in_use = self.pools.entries().take(self.pools_in_use);
        let by_name: HashMap<String, PoolId> =
            in_use.map(|(index, pool)| (pool.config.name.clone(), index)).collect();
        let mut awaited = Vec::new();
        let mut steps = Vec::with_capacity(pools.len());
        for planned in pools {
            let named = by_name.get(&planned.config.name).copied();
            let ring_version = planned.ring_version;
            let is_alike = |&pool: &PoolId| {
                let old = &self.pools[pool].config;
                WireProtocol::first_of(old) == WireProtocol::first_of(&planned.config)
            };
            steps.push(match named.filter(is_alike) {
                Some(pool) if places_alike(&self.pools[pool], &planned) => {
                    Step::Same { pool, config: Box::new(planned.config) }
                }
                Some(pool) => {
                    let old = &self.pools[pool];
                    let kept = servers_kept(old, &planned);
                    let connects = old.servers.iter().any(|server| server.connections > 0);
                    let preparing = self.add_preparing(planned, &kept, connects, &mut awaited);
                    Step::Rerouted { pool, preparing, kept, ring_version }
                }
                None => {
                    let kept = vec![None; planned.config.servers.len()];
                    let preparing = self.add_preparing(planned, &kept, false, &mut awaited);
                    Step::New { preparing, displaced: named, ring_version }
                }
            });
        }
        for step in &steps {
            if let Step::Rerouted { pool, preparing, kept, .. } = step {
                self.prepare_topics(*pool, *preparing, kept);
            }
        }
        self.change =
            Some(Change { epoch, rank, workers, memory_max, leave_ms, phase, steps, awaited });
    }

    /// A pool that comes, with lanes to the servers that are not kept.
    fn add_preparing(
        &mut self,
        planned: PlannedPool,
        kept: &[Option<ServerId>],
        connects: bool,
        awaited: &mut Vec<LaneId>,
    ) -> PoolId {
        let PlannedPool { config, topology, lanes, quota, .. } = planned;
        let (index, wire_protocol) = (self.pools.next_id(), WireProtocol::first_of(&config));
        let void = self.metrics.void_server();
        let servers = kept.iter().zip((0..).map(ServerId::new)).map(|(kept, server)| match kept {
            Some(_) => Server::new(void, LaneId::NONE, 0),
            None => {
                let first = self.add_lanes(lanes + 1, (index, server), 0, wire_protocol);
                Server::new(void, first, lanes)
            }
        });
        let servers: Table<ServerId, Server> = servers.collect();
        let connects = connects || config.preconnect;
        let shared: Vec<LaneId> = servers.iter().flat_map(Server::shared_lanes).collect();
        let mut pool = Pool::new(config, topology, self.metrics.void_pool(), servers);
        pool.quota = quota;
        self.pools.push(pool);
        if connects {
            shared.iter().for_each(|&lane| self.connect(lane));
            awaited.extend(shared);
        }
        index
    }

    /// So many lanes in a row; returns the first.
    pub(crate) fn add_lanes(
        &mut self,
        count: u32,
        place: (PoolId, ServerId),
        variant: u16,
        wire_protocol: WireProtocol,
    ) -> LaneId {
        if let Some(first) = self.free_ids.take(count) {
            for lane in &mut (*self.lanes)[first as usize..(first + count) as usize] {
                // No connection has the name of an earlier one.
                lane.renew(Lane::new(place, variant, wire_protocol));
            }
            return LaneId::new(first);
        }
        let first = self.lanes.len() as u32;
        let slots = first..first + count;
        let generation = self.lane_generation;
        let lane = |slot| Lane { slot, generation, ..Lane::new(place, variant, wire_protocol) };
        self.lanes.extend(slots.clone().map(lane));
        self.lane_at.extend(slots.map(LaneId::new));
        LaneId::new(first)
    }

    /// Says what has become true of the change of the epoch; returns whether there is more to say.
    pub(crate) fn watch_epoch(&mut self) -> bool {
        let Some(change) = &self.change else { return false };
        let (epoch, phase) = (change.epoch, change.phase);
        let next = match phase {
            Phase::Prepared | Phase::Paused => return false,
            Phase::Preparing { until } => {
                let is_open = |&lane: &LaneId| {
                    let link = self.lane(lane).link;
                    matches!(link, Link::Connecting { .. } | Link::Handshaking { .. })
                };
                let mut concerned = change
                    .steps
                    .iter()
                    .flat_map(|step| step.old().into_iter().chain(step.preparing()));
                let is_awaited = change.awaited.iter().any(is_open)
                    || concerned.any(|pool| self.awaits_feeds(pool));
                if self.now < until && is_awaited {
                    return true;
                }
                self.actions.push_back(Action::Prepared { epoch });
                Phase::Prepared
            }
            Phase::Pausing { until, is_sounded } => {
                let paused = || change.steps.iter().filter_map(Step::paused);
                if self.now < until {
                    if paused().any(|pool| self.is_awaited(pool)) {
                        return true;
                    }
                    let concerned = change.steps.iter().filter(|step| step.paused().is_some());
                    let concerned: Vec<PoolId> = concerned
                        .flat_map(|step| step.paused().into_iter().chain(step.preparing()))
                        .collect();
                    if !is_sounded {
                        concerned.iter().for_each(|&pool| self.sound_feeds(pool));
                    }
                    if concerned.iter().any(|&pool| self.awaits_sound(pool)) {
                        if let Some(change) = &mut self.change {
                            change.phase = Phase::Pausing { until, is_sounded: true };
                        }
                        return true;
                    }
                }
                let Some(change) = &self.change else { return false };
                let paused = || change.steps.iter().filter_map(Step::paused);
                let unfinished = paused().map(|pool| self.requests_on_lanes(pool)).sum();
                self.actions.push_back(Action::Paused { epoch, unfinished });
                Phase::Paused
            }
        };
        if let Some(change) = &mut self.change {
            change.phase = next;
        }
        false
    }

    /// Whether something is on its way to a server of the pool and has prospects. To a server that fails
    /// that is what waits for a connection that is being made, which does not take long: it would be sent
    /// after the change to where its keys were before. What waits for a later one would only hold the change up.
    fn is_awaited(&self, pool: PoolId) -> bool {
        self.pools[pool].servers.iter().any(|server| {
            server.all_lanes().any(|index| {
                let lane = self.lane(index);
                let has_prospects = server.is_up() || lane.has_connection();
                self.is_busy(index) && has_prospects && !server.ejected
            })
        })
    }

    /// Whether something is on its way on a lane that will not take as long as it likes.
    pub(crate) fn is_busy(&self, index: LaneId) -> bool {
        let waits = |blocking: &Blocking| !blocking.is_withdrawn;
        !self.lane(index).is_free() && !self.blocked_at(index).is_some_and(waits)
    }

    fn requests_on_lanes(&self, pool: PoolId) -> u64 {
        let lanes = self.pools[pool].servers.iter().flat_map(Server::all_lanes);
        lanes.map(|lane| self.lane(lane)).map(|lane| u64::from(lane.in_flight + lane.unsent)).sum()
    }

    /// Forgets the epoch that is being prepared, if there is one.
    fn call_off(&mut self) {
        let Some(change) = self.change.take() else { return };
        for pool in change.steps.iter().filter_map(Step::paused) {
            let pool = &mut self.pools[pool];
            pool.paused = false;
            pool.update_held();
        }
        for step in &change.steps {
            if let Step::Rerouted { pool, .. } = step {
                self.abort_topics(*pool);
            }
        }
        for pool in change.steps.iter().filter_map(Step::preparing) {
            self.close_pool(pool);
        }
        self.forget_gone();
        let is_answer =
            |action: &Action| matches!(action, Action::Prepared { .. } | Action::Paused { .. });
        self.actions.retain(|action| !is_answer(action));
        self.unblock_clients(|_| true);
        self.settle_lost_marks();
    }

    /// Ends all connections of a pool, which then is no more.
    fn close_pool(&mut self, pool_index: PoolId) {
        for server in self.pools[pool_index].servers.ids() {
            self.close_server(pool_index, server);
        }
        self.drop_topics(pool_index);
        let pool = &mut self.pools[pool_index];
        pool.standing = Standing::Gone;
        pool.servers = Table::new();
        let mut never = Vec::new();
        self.actions.retain(|action| match *action {
            Action::Connect { conn, pool: of, .. } if of == pool_index => {
                never.push(conn);
                false
            }
            Action::Close { conn } => !never.contains(&conn),
            Action::ServerFailing { pool: of, .. }
            | Action::ServerHindered { pool: of, .. }
            | Action::ServerMisfit { pool: of, .. }
            | Action::ServerRecovered { pool: of, .. } => of != pool_index,
            _ => true,
        });
    }

    /// Those at the end, that is: others stand where they are until the next commit.
    fn forget_gone(&mut self) {
        while self.pools.last().is_some_and(|pool| pool.standing == Standing::Gone) {
            self.pools.pop();
        }
    }

    /// Ends all connections to a server. What is still on them fails.
    fn close_server(&mut self, pool: PoolId, server: ServerId) {
        let state = &mut self.pools[pool].servers[server];
        // Who waits here finds another server.
        state.waiting.clear();
        state.reading.clear();
        self.dissolve_line(pool, server);
        let state = &mut self.pools[pool].servers[server];
        let own: Vec<Range<u32>> = state.own_ranges().collect();
        for lane in state.all_lanes().collect::<Vec<LaneId>>() {
            if self.lane(lane).has_connection() {
                self.disconnect(lane, Closed::ByUs);
            }
            self.lanes[lane].link = Link::Idle;
            let holder = self.lane(lane).lease;
            self.fail_sent(lane, Failure::Removed);
            self.fail_unsent(lane, Failure::Removed);
            self.lose_lease(lane, holder, Failure::Removed);
        }
        let state = &mut self.pools[pool].servers[server];
        let private = std::mem::take(&mut state.streaming_lanes);
        let sessions = std::mem::take(&mut state.session_lanes);
        let feed = state.feed.take().map(|mut feed| {
            self.lost_marks.append(&mut feed.give_up());
            self.lanes[feed.lane].output.clear(&mut self.bufs);
            self.bufs.give(feed.partial);
            feed.lane
        });
        self.streaming_lanes.retain(|lane| !private.contains(lane));
        own.into_iter().for_each(|range| self.vacate(range));
        for lane in private.into_iter().chain(sessions).chain(feed) {
            self.vacate(lane.number()..lane.number() + 1);
        }
    }

    /// Lanes without connections and requests are nobody's any more.
    pub(crate) fn vacate(&mut self, range: Range<u32>) {
        self.publish_lanes();
        for lane in &mut (*self.lanes)[range.start as usize..range.end as usize] {
            debug_assert!(!lane.is_taken() && lane.output.is_empty() && !lane.has_connection());
            lane.renew(Lane::new((PoolId::new(0), ServerId::new(0)), 0, WireProtocol::Resp2));
        }
        self.free_ids.give(range);
    }

    /// Gives back the room of lanes at the end that are nobody's, as after servers were removed. Those
    /// that come there later have connections of names that none had before.
    pub(crate) fn shrink_lanes(&mut self) {
        let len = self.lanes.len();
        let Some(first) = self.free_ids.cut(len as u32) else { return };
        let start = first as usize;
        // Lanes exchange their names.
        let is_whole = (*self.lanes)[start..].iter().all(|lane| lane.slot >= first);
        if len - start < LANES_KEPT || !is_whole {
            self.free_ids.give(first..len as u32);
            return;
        }
        let newest = (*self.lanes)[start..].iter().map(|lane| lane.generation).max().unwrap_or(0);
        self.lane_generation = self.lane_generation.max(newest);
        self.lanes.truncate(start);
        self.lane_at.truncate(start);
        self.lanes.shrink_to_fit();
        self.lane_at.shrink_to_fit();
        self.bufs.note_released((len - start) * size_of::<Lane>());
    }

    fn commit(&mut self, change: Change, metrics: Writer) {
        let Change { epoch, rank, workers, memory_max, leave_ms, steps, .. } = change;
        let places = Places::new(&steps, &self.pools);
        self.count_in(metrics, &places, PoolId::new(steps.len() as u32));
        let rerouted = steps.iter().filter_map(|step| match *step {
            Step::Rerouted { pool, .. } => Some(pool),
            Step::Same { .. } | Step::New { .. } => None,
        });
        let rerouted: Vec<PoolId> = rerouted.collect();
        self.invalidate_leases(|pool| rerouted.contains(&pool));
        for (pool, servers) in places.servers.iter().enumerate() {
            for server in (0..servers.len()).filter(|&server| servers[server] == ServerId::NONE) {
                self.close_server(PoolId::new(pool as u32), ServerId::new(server as u32));
            }
        }
        self.renumber_actions(&places, PoolId::new(steps.len() as u32));
        (self.epoch, self.rank, self.workers) = (epoch, rank, workers);
        self.pools_in_use = steps.len();
        self.pressure.set_max(memory_max);
        let before = std::mem::take(&mut self.pools);
        let changes = self.rearrange(before, steps, self.now.plus_millis(leave_ms));
        self.renumber(&places);
        (0..self.pools_in_use as u32)
            .map(PoolId::new)
            .for_each(|pool| self.complete_variants(pool));
        self.follow_clients(&changes);
        for (pool, change) in changes.into_iter().enumerate() {
            self.follow(PoolId::new(pool as u32), change);
            self.commit_topics(PoolId::new(pool as u32));
        }
        self.arm_probes();
        self.publish_all();
        self.unblock_clients(|_| true);
        self.maintain_draining();
    }

    /// Counts by another layout from here on, which is that of the pools after the commit.
    fn count_in(&mut self, metrics: Writer, places: &Places, in_use: PoolId) {
        let mut tallied = None;
        for (index, pool) in self.pools.iter_mut().enumerate() {
            let index = PoolId::new(index as u32);
            let place = places.pool(index).filter(|&place| place < in_use);
            let id = match place {
                Some(place) => metrics.pool(place.index()),
                None => metrics.void_pool(),
            };
            if self.latency_batch.pool() == Some(&mut pool.metrics)
                && pool.standing != Standing::Coming
            {
                tallied = Some(id);
            }
            pool.metrics = id;
            for (server, state) in pool.servers.iter_mut().enumerate() {
                let place = places
                    .server(index, ServerId::new(server as u32))
                    .filter(|&(pool, _)| pool < in_use);
                state.metrics = match place {
                    Some((pool, server)) => metrics.server(pool.index(), server.index()),
                    None => metrics.void_server(),
                };
            }
        }
        if let (Some(pool), Some(tallied)) = (self.latency_batch.pool(), tallied) {
            *pool = tallied;
        }
        self.metrics = metrics;
    }

    /// Actions that nobody has seen yet will be carried out by the new numbers.
    fn renumber_actions(&mut self, places: &Places, in_use: PoolId) {
        let mut never = Vec::new();
        let (lanes, lane_at) = (&self.lanes, &self.lane_at);
        let in_use = |pool: PoolId| pool < in_use;
        self.actions.retain_mut(|action| match action {
            Action::Connect { conn, pool, server } => {
                let lane = &lanes[lane_at[conn.slot() as usize]];
                let is_current = lane.conn == *conn && lane.has_connection();
                match places.server(*pool, *server).filter(|_| is_current) {
                    Some(place) => (*pool, *server) = place,
                    // Whoever asked for it has already given it up.
                    None => never.push(*conn),
                }
                is_current
            }
            Action::Close { conn } => !never.contains(conn),
            Action::Held { pool, .. } => match places.pool(*pool).filter(|&pool| in_use(pool)) {
                Some(place) => {
                    *pool = place;
                    true
                }
                None => false,
            },
            Action::Eject { pool, server, .. } | Action::Readmit { pool, server } => {
                match places.server(*pool, *server).filter(|&(pool, _)| in_use(pool)) {
                    Some(place) => {
                        (*pool, *server) = place;
                        true
                    }
                    None => false,
                }
            }
            Action::ServerFailing { pool, server, .. }
            | Action::ServerHindered { pool, server, .. }
            | Action::ServerMisfit { pool, server, .. }
            | Action::LargeWaits { pool, server }
            | Action::SessionsWait { pool, server, .. }
            | Action::SlowClient { pool, server, .. }
            | Action::ServerSilent { pool, server }
            | Action::ServerSpeaks { pool, server, .. }
            | Action::ServerRecovered { pool, server } => match places.server(*pool, *server) {
                Some(place) => {
                    (*pool, *server) = place;
                    true
                }
                None => false,
            },
            Action::Ask { pool, .. }
            | Action::Notice { pool, .. }
            | Action::HeldBack { pool, .. }
            | Action::Shed { pool, .. } => match places.pool(*pool) {
                Some(place) => {
                    *pool = place;
                    true
                }
                None => false,
            },
            Action::PauseRead { .. }
            | Action::ResumeRead { .. }
            | Action::SetLowWater { .. }
            | Action::HandOff { .. }
            | Action::Prepared { .. }
            | Action::Paused { .. }
            | Action::Monitors { .. }
            | Action::Pressed { .. } => true,
        });
    }

    /// Makes the new epoch's pools of those there are; says for each what is new about it.
    fn rearrange(
        &mut self,
        before: Table<PoolId, Pool>,
        steps: Vec<Step>,
        leave: Time,
    ) -> Vec<Changed> {
        let mut before: Vec<Option<Pool>> = before.into_iter().map(Some).collect();
        let mut take =
            |pool: PoolId| before[pool.index()].take().expect("a pool becomes one other");
        let mut changes = Vec::with_capacity(steps.len());
        for step in steps {
            let (mut pool, changed) = match step {
                Step::Same { pool, config } => {
                    let mut pool = take(pool);
                    let changed = Changed::of(&pool.config, &config);
                    pool.config = config;
                    (pool, changed)
                }
                Step::Rerouted { pool, preparing, kept, ring_version } => {
                    let (mut pool, preparing) = (take(pool), take(preparing));
                    let changed = Changed::of(&pool.config, &preparing.config);
                    let mut servers: Vec<Option<Server>> =
                        pool.servers.into_iter().map(Some).collect();
                    let mut kept_server = |server: ServerId| {
                        servers[server.index()].take().expect("a server is kept once")
                    };
                    let merged = preparing.servers.into_iter().zip(kept);
                    pool.servers =
                        merged.map(|(fresh, kept)| kept.map_or(fresh, &mut kept_server)).collect();
                    (pool.config, pool.topology) = (preparing.config, preparing.topology);
                    pool.ring_version = ring_version;
                    (pool, Changed { is_rerouted: true, ..changed })
                }
                Step::New { preparing, ring_version, .. } => {
                    let mut pool = take(preparing);
                    pool.ring_version = ring_version;
                    (pool, Changed { is_rerouted: true, ..Changed::default() })
                }
            };
            pool.standing = Standing::InUse;
            pool.configure();
            pool.paused = false;
            pool.update_held();
            self.pools.push(pool);
            changes.push(changed);
        }
        for mut pool in before.into_iter().flatten() {
            if pool.is_in_use() {
                pool.standing = Standing::Leaving { since: self.now, until: leave };
                (pool.hold, pool.paused, pool.auto_eject) = (None, false, false);
                pool.update_held();
                // What is found out about its servers is for nobody.
                pool.servers.iter_mut().for_each(|server| server.ask_at = Time::NEVER);
                self.timers.arm(leave, Timer::Change);
            }
            if pool.standing != Standing::Gone {
                self.pools.push(pool);
            }
        }
        changes
    }

    /// Points everything that names pools and servers to where they stand now.
    fn renumber(&mut self, places: &Places) {
        for (pool, state) in self.pools.iter().enumerate() {
            for (server, state) in state.servers.iter().enumerate() {
                for lane in state.all_lanes() {
                    let lane = &mut self.lanes[lane];
                    (lane.pool, lane.server) =
                        (PoolId::new(pool as u32), ServerId::new(server as u32));
                }
            }
        }
        for client in self.clients.indices().collect::<Vec<ClientId>>() {
            let client = &mut self.clients[client];
            client.pool = places.pool(client.pool).unwrap_or(PoolId::NONE);
            debug_assert_ne!(client.pool, PoolId::NONE);
        }
        for request in self.requests.iter_mut() {
            if let Role::Probe { server } = &mut request.role
                && let Some((_, place)) = places.server(request.pool, *server)
            {
                *server = place;
            }
            request.pool = places.pool(request.pool).unwrap_or(PoolId::NONE);
            debug_assert_ne!(request.pool, PoolId::NONE);
        }
    }

    /// Does for the clients what the changes of their pools ask for.
    fn follow_clients(&mut self, changes: &[Changed]) {
        for index in self.clients.indices().collect::<Vec<ClientId>>() {
            let client = &mut self.clients[index];
            let Some(changed) = changes.get(client.pool.index()) else { continue };
            let limits = &self.pools[client.pool].limits;
            client.window = client.window.min(narrowed(limits.client_requests_max));
            if changed.is_rerouted || changed.has_auth {
                // Nobody can be asked any more for what there is no password for.
                client.session.authenticated |= self.pools[client.pool].is_open();
                // What is still on its way must not be overtaken on another server.
                client.fenced |= changed.is_rerouted && client.requests > 0;
            }
            if changed.has_database && !self.follow_session(index) {
                self.finish(index);
            }
        }
    }

    /// Does for a pool of the new epoch what its changes ask for.
    fn follow(&mut self, index: PoolId, changed: Changed) {
        if changed.is_rerouted {
            self.follow_ring(index);
        }
        let pool = &self.pools[index];
        let preconnect = pool.preconnect;
        if changed.has_timeout {
            let lanes = pool.servers.iter().flat_map(Server::all_lanes);
            lanes.collect::<Vec<LaneId>>().into_iter().for_each(|lane| self.rearm(lane));
        }
        if changed.has_preconnect && preconnect {
            let servers = self.pools[index].servers.iter();
            let lanes = servers.filter(|server| server.is_up()).flat_map(Server::shared_lanes);
            let idle = lanes.filter(|&lane| self.lane(lane).link == Link::Idle);
            idle.collect::<Vec<LaneId>>().into_iter().for_each(|lane| self.connect(lane));
        }
    }

    /// Servers are ejected or not as the ring says.
    fn follow_ring(&mut self, index: PoolId) {
        for server in self.pools[index].servers.ids() {
            let pool = &mut self.pools[index];
            let ejected = !pool.topology.live()[server.index()];
            let state = &mut pool.servers[server];
            // Who is in charge of it has perhaps forgotten what was asked.
            state.ask_at = Time::ZERO;
            if state.ejected == ejected {
                continue;
            }
            (state.ejected, state.failures, state.probe_at) = (ejected, 0, Time::NEVER);
            if !ejected {
                self.readmitted(index, server);
            }
        }
    }

    /// Probes go by numbers of pools and servers.
    fn arm_probes(&mut self) {
        self.timers.retain(|_, timer| !matches!(timer, Timer::Probe { .. }));
        for pool in self.pools.ids().take(self.pools_in_use) {
            for server in self.pools[pool].servers.ids() {
                let state = &self.pools[pool].servers[server];
                match state.probe_at {
                    _ if !state.ejected => {}
                    Time::NEVER => self.arm_probe(pool, server),
                    at => self.timers.arm(at, Timer::Probe { pool, server }),
                }
            }
        }
    }

    /// Gauges of all pools and servers in use, which have new places.
    fn publish_all(&mut self) {
        let mut lanes = Vec::new();
        for pool in self.pools.iter_mut().take(self.pools_in_use) {
            self.metrics.set_pool(pool.metrics, PoolGauge::ClientConnections, pool.places_taken);
            self.metrics.set_pool(pool.metrics, PoolGauge::RingVersion, pool.ring_version);
            for server in &mut pool.servers {
                let ejected = u64::from(server.ejected);
                let sessions = u64::from(server.sessions);
                self.metrics.set_server(server.metrics, ServerGauge::Sessions, sessions);
                let in_line = server.line.len() as u64;
                self.metrics.set_server(server.metrics, ServerGauge::InLine, in_line);
                self.metrics.set_server(server.metrics, ServerGauge::Ejected, ejected);
                let silent = u64::from(server.is_silent());
                self.metrics.set_server(server.metrics, ServerGauge::Silent, silent);
                // No queues are so long: they are published in any case.
                server.queues = Queues { unsent: u64::MAX, ..Queues::default() };
                lanes.push(server.first_lane);
            }
        }
        for lane in lanes {
            self.publish_connections(lane);
            self.publish_queues(lane);
        }
    }

    /// Pools that were removed vanish when their clients are gone. When their time is up, clients go
    /// as they come to rest; after as long again those go who have not.
    pub(crate) fn maintain_draining(&mut self) {
        for index in self.pools.ids().skip(self.pools_in_use) {
            let pool = &self.pools[index];
            let Standing::Leaving { since, until } = pool.standing else { continue };
            let is_over = until <= self.now;
            if is_over && pool.clients > 0 {
                let rest_us = until.micros_since(since).max(LINGER_US);
                let is_late = until.plus_micros(rest_us) <= self.now;
                for client in self.clients.indices().collect::<Vec<ClientId>>() {
                    let state = &self.clients[client];
                    if state.pool != index {
                        continue;
                    }
                    if is_late {
                        self.cut_client(client, PoolCounter::ClientErr);
                    } else if state.state != State::Closing {
                        self.finish(client);
                    }
                }
            }
            // Somebody may still come from the queue of a listening socket. Requests whose clients
            // have left run to their end, too.
            let is_quiet =
                self.now.micros_since(since) >= LINGER_US && self.requests_on_lanes(index) == 0;
            if self.pools[index].clients == 0 && (is_over || is_quiet) {
                self.close_pool(index);
                self.settle_lost_marks();
            }
        }
        self.forget_gone();
    }
}

/// What is new about a pool and needs to be acted on.
#[derive(Clone, Copy, Debug, Default)]
struct Changed {
    is_rerouted: bool,
    has_auth: bool,
    has_database: bool,
    has_timeout: bool,
    has_preconnect: bool,
}

impl Changed {
    fn of(old: &snapshot::Pool, new: &snapshot::Pool) -> Self {
        Self {
            is_rerouted: false,
            has_auth: old.redis_auth != new.redis_auth
                || old.memcached.client_auth != new.memcached.client_auth,
            has_database: old.redis_db != new.redis_db,
            has_timeout: old.timeout_ms != new.timeout_ms,
            has_preconnect: old.preconnect != new.preconnect,
        }
    }
}

/// Whether lanes are the same in number, and say the same on connecting.
fn lanes_alike(old: &Pool, new: &PlannedPool) -> bool {
    let (was, is) = (&*old.config, &new.config);
    was.redis_auth == is.redis_auth
        && was.redis_db == is.redis_db
        && was.memcached.server_auth == is.memcached.server_auth
        && old.servers.iter().all(|server| server.lanes == new.lanes)
}

/// Whether every key of every client takes the same lane as before.
fn places_alike(old: &Pool, new: &PlannedPool) -> bool {
    let (was, is) = (&*old.config, &new.config);
    lanes_alike(old, new)
        && new.moved.is_empty()
        && was.servers == is.servers
        && was.hash == is.hash
        && was.hash_tag == is.hash_tag
        && was.distribution == is.distribution
        && was.topology == is.topology
        && old.topology.live() == new.topology.live()
}

/// By new server: which of the old ones it is, with its lanes.
fn servers_kept(old: &Pool, new: &PlannedPool) -> Vec<Option<ServerId>> {
    let alike = lanes_alike(old, new);
    let servers = old.config.servers.iter().zip((0..).map(ServerId::new)).filter(|_| alike);
    let by_name: HashMap<&str, (&snapshot::Server, ServerId)> =
        servers.map(|(server, index)| (&*server.name, (server, index))).collect();
    let kept = |(server, place): (&snapshot::Server, ServerId)| {
        let &(old, index) = by_name.get(&*server.name)?;
        (old.endpoint == server.endpoint && !new.moved.contains(&place)).then_some(index)
    };
    new.config.servers.iter().zip((0..).map(ServerId::new)).map(kept).collect()
}
