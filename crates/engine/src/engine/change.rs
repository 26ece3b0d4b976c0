//! A change of the epoch, as one worker takes part in it.
//!
//! It is prepared beside the epoch in use, which nothing is taken from before the commit: pools
//! that come stand behind those in use, with lanes for the servers that are new. From one epoch to
//! the other a pool is known by its name and protocol, a server by the name of its group and its endpoint, unless it
//! has [moved](Plan::move_server).
//!
//! Only pools that may send a key elsewhere after the commit are *rerouted*: they dispatch nothing
//! from the pause on. Servers that stay keep their lanes with all that is on them, though not if
//! the lanes' number or what is said on connecting changes, since clients then have other lanes,
//! where their requests could overtake those on the way.
//!
//! A pool is a listener and the backend behind it, which have the same number: that is known here and
//! nowhere else. Everything that holds the number of a listener, backend or server is renumbered at
//! the commit, except lanes: they keep theirs.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use cashew_config::snapshot::{self, OnFailure};
use cashew_metrics::{PoolCounter, PoolGauge, ServerGauge, Writer};

use crate::base::action::Action;
use crate::base::command_stats::CommandStats;
use crate::base::failure::{CloseReason, Failure};
use crate::base::id::{BackendId, ClientId, ConnId, LaneId, ListenerId, PoolId, ServerId};
use crate::base::prefixes::{PrefixNumber, Prefixes};
use crate::base::standing::Standing;
use crate::base::table::Table;
use crate::base::time::Time;
use crate::base::timers::Timer;
use crate::downstream::audit::AuditRules;
use crate::downstream::client::{Client, State};
use crate::downstream::listener::{Choice, Destination, DestinationNumber, Listener};
use crate::downstream::window::narrowed;
use crate::engine::epoch::{Plan, PlannedPool};
use crate::engine::{Closed, Engine};
use crate::redis::state::{BackendState, ListenerState};
use crate::request::Role;
use crate::topology::route_tree::Tree;
use crate::upstream::backend::Backend;
use crate::upstream::lane::{Lane, Link};
use crate::upstream::server::{Queues, Server};
use crate::upstream::session_params::WireProtocol;

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
    audit: Option<AuditRules>,
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
    Same { pool: PoolId, config: Arc<snapshot::Pool> },
    /// A pool in use, with the servers and the topology of one that comes.
    Rerouted {
        pool: PoolId,
        preparing: PoolId,
        /// By new server: which one it is already.
        kept: Vec<Option<ServerId>>,
        ring_version: u64,
        /// It goes on dispatching until the commit: nodes of a cluster refuse what is not theirs.
        goes_on: bool,
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
            Self::Same { .. } | Self::Rerouted { goes_on: true, .. } => None,
            Self::Rerouted { pool, .. } => Some(pool),
            Self::New { displaced, .. } => displaced,
        }
    }
}

impl PoolId {
    fn listener(self) -> ListenerId {
        ListenerId::new(self.number())
    }

    fn backend(self) -> BackendId {
        BackendId::new(self.number())
    }
}

/// By what was counted before a change, by the listeners' old numbers.
struct CountedBefore {
    /// Whose numbers are not published yet.
    unpublished: Option<ListenerId>,
    counts: Vec<bool>,
    prefixes: Vec<Prefixes>,
}

/// A pool on its way from one epoch's place to the next one's.
struct Pool {
    listener: Listener,
    backend: Backend,
    redis: (ListenerState, BackendState),
}

impl Pool {
    /// Goes by what is configured, but for the state of its servers and what places keys.
    fn configure(&mut self) {
        let Self { listener, backend, redis } = self;
        listener.configure();
        listener.define_commands();
        backend.configure();
        backend.tag_servers();
        redis.0.configure(&listener.config);
        redis.1.configure(&backend.config);
    }
}

/// Where pools and servers stand after the commit, by where they stood; `None` for nowhere.
struct Places {
    pools: Vec<Option<PoolId>>,
    /// Empty where all servers stay where they are.
    servers: Vec<Vec<ServerId>>,
}

impl Places {
    fn new(steps: &[Step], backends: &[Backend]) -> Self {
        let mut places = Self { pools: vec![None; backends.len()], servers: Vec::new() };
        places.servers.resize(backends.len(), Vec::new());
        for (place, step) in steps.iter().enumerate() {
            for pool in step.old().into_iter().chain(step.preparing()) {
                places.pools[pool.index()] = Some(PoolId::new(place as u32));
            }
            if let Step::Rerouted { pool, kept, .. } = step {
                let servers = &mut places.servers[pool.index()];
                servers.resize(backends[pool.index()].servers.len(), ServerId::NONE);
                for (place, kept) in kept.iter().enumerate() {
                    if let Some(server) = kept {
                        servers[server.index()] = ServerId::new(place as u32);
                    }
                }
            }
        }
        let mut behind = steps.len() as u32;
        for (place, backend) in places.pools.iter_mut().zip(backends) {
            if place.is_none() && backend.standing != Standing::Gone {
                *place = Some(PoolId::new(behind));
                behind += 1;
            }
        }
        places
    }

    fn listener(&self, listener: ListenerId) -> Option<ListenerId> {
        self.pools[listener.index()].map(PoolId::listener)
    }

    fn backend(&self, backend: BackendId) -> Option<BackendId> {
        self.pools[backend.index()].map(PoolId::backend)
    }

    fn server(&self, backend: BackendId, server: ServerId) -> Option<(BackendId, ServerId)> {
        let place = match &self.servers[backend.index()][..] {
            [] => server,
            servers => servers[server.index()],
        };
        self.backend(backend).filter(|_| place != ServerId::NONE).map(|backend| (backend, place))
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
        let paused = change.steps.iter().filter_map(Step::paused).map(PoolId::backend);
        for backend in paused.collect::<Vec<BackendId>>() {
            self.backends[backend].paused = true;
            self.update_held_before(backend);
        }
        let paused: Vec<bool> = self.backends.iter().map(|backend| backend.paused).collect();
        self.withdraw_all(|backend| paused[backend.index()]);
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
        let Plan { epoch, rank, workers, memory_max, leave_ms, audit, pools } = plan;
        let in_use = self.backends.iter().take(self.backends_in_use);
        let by_name: HashMap<String, PoolId> = in_use
            .zip((0..).map(PoolId::new))
            .map(|(backend, pool)| (backend.config.name.clone(), pool))
            .collect();
        let mut awaited = Vec::new();
        let mut steps = Vec::with_capacity(pools.len());
        let on_new_ways = self.on_new_ways(&pools, &by_name);
        for planned in pools {
            let named = by_name.get(&planned.config.name).copied();
            let ring_version = planned.ring_version;
            let is_alike = |&pool: &PoolId| {
                let old = &self.backends[pool.backend()].config;
                WireProtocol::first_of(old) == WireProtocol::first_of(&planned.config)
            };
            steps.push(match named.filter(is_alike) {
                Some(pool)
                    if places_alike(&self.backends[pool.backend()], &planned)
                        && !on_new_ways.contains(&planned.config.name) =>
                {
                    Step::Same { pool, config: Arc::new(planned.config) }
                }
                Some(pool) => {
                    let old = &self.backends[pool.backend()];
                    let kept = servers_kept(old, &planned);
                    let connects = old.servers.iter().any(|server| server.connections > 0);
                    // What is on its way to a node that leaves is waited for.
                    let stay = kept.iter().flatten().count();
                    let goes_on = old.topology.has_slots()
                        && planned.topology.has_slots()
                        && stay == old.servers.len();
                    let preparing = self.add_preparing(planned, &kept, connects, &mut awaited);
                    Step::Rerouted { pool, preparing, kept, ring_version, goes_on }
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
                self.prepare_topics(pool.backend(), preparing.backend(), kept);
            }
        }
        self.change = Some(Change {
            epoch,
            rank,
            workers,
            memory_max,
            leave_ms,
            audit,
            phase,
            steps,
            awaited,
        });
    }

    /// The pools that routes lead to, before or after, whose ways change: what is on its way to them must not be
    /// overtaken on another way.
    fn on_new_ways(
        &self,
        pools: &[PlannedPool],
        by_name: &HashMap<String, PoolId>,
    ) -> HashSet<String> {
        let mut found = HashSet::new();
        for planned in pools {
            let Some(&pool) = by_name.get(&planned.config.name) else { continue };
            let was = &*self.backends[pool.backend()].config;
            let is = &planned.config;
            if was.route != is.route {
                let led_to = was.route.iter().chain(&is.route).flat_map(snapshot::Route::pools);
                found.extend(led_to.map(str::to_owned));
            }
            found.extend(pools_on_other_ways(was, is));
        }
        found
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
        let (pool, wire_protocol) =
            (PoolId::new(self.backends.len() as u32), WireProtocol::first_of(&config));
        let void = self.metrics.void_server();
        let servers = kept.iter().zip((0..).map(ServerId::new)).map(|(kept, server)| match kept {
            Some(_) => Server::new(void, LaneId::NONE, 0),
            None if lanes == 0 => Server::new(void, LaneId::NONE, 0),
            None => {
                let first = self.add_lanes(lanes + 1, (pool.backend(), server), 0, wire_protocol);
                Server::new(void, first, lanes)
            }
        });
        let servers: Table<ServerId, Server> = servers.collect();
        let connects = connects || config.preconnect;
        let shared: Vec<LaneId> = servers.iter().flat_map(Server::shared_lanes).collect();
        let (config, metrics) = (Arc::new(config), self.metrics.void_pool());
        let mut listener = Listener::new(Arc::clone(&config), pool.backend(), metrics, quota);
        listener.define_commands();
        self.listeners.push(listener);
        self.redis_listeners.push(ListenerState::new(&config));
        self.redis_backends.push(BackendState::new(&config));
        let mut backend = Backend::new(config, topology, metrics, servers);
        backend.tag_servers();
        self.backends.push(backend);
        if connects {
            shared.iter().for_each(|&lane| self.connect(lane));
            awaited.extend(shared);
        }
        pool
    }

    /// So many lanes in a row; returns the first.
    pub(crate) fn add_lanes(
        &mut self,
        count: u32,
        place: (BackendId, ServerId),
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
                    .flat_map(|step| step.old().into_iter().chain(step.preparing()))
                    .map(PoolId::backend);
                let is_awaited = change.awaited.iter().any(is_open)
                    || concerned.any(|backend| self.awaits_feeds(backend));
                if self.now < until && is_awaited {
                    return true;
                }
                self.actions.push_back(Action::Prepared { epoch });
                Phase::Prepared
            }
            Phase::Pausing { until, is_sounded } => {
                let paused = || change.steps.iter().filter_map(Step::paused).map(PoolId::backend);
                if self.now < until {
                    if paused().any(|backend| self.is_awaited(backend)) {
                        return true;
                    }
                    // Another copy may lead next: what it is to forget it must not answer.
                    let paused: Vec<BackendId> = paused().collect();
                    if self.hurry_invalidations(|backend| paused.contains(&backend)) {
                        return true;
                    }
                    let Some(change) = &self.change else { return false };
                    let concerned = change.steps.iter().filter(|step| step.paused().is_some());
                    let concerned: Vec<BackendId> = concerned
                        .flat_map(|step| step.paused().into_iter().chain(step.preparing()))
                        .map(PoolId::backend)
                        .collect();
                    if !is_sounded {
                        concerned.iter().for_each(|&backend| self.sound_feeds(backend));
                    }
                    if concerned.iter().any(|&backend| self.awaits_sound(backend)) {
                        if let Some(change) = &mut self.change {
                            change.phase = Phase::Pausing { until, is_sounded: true };
                        }
                        return true;
                    }
                }
                let Some(change) = &self.change else { return false };
                let paused = || change.steps.iter().filter_map(Step::paused).map(PoolId::backend);
                let unfinished = paused().map(|backend| self.requests_on_lanes(backend)).sum();
                self.actions.push_back(Action::Paused { epoch, unfinished });
                Phase::Paused
            }
        };
        if let Some(change) = &mut self.change {
            change.phase = next;
        }
        false
    }

    /// Whether something is on its way to a server of the backend and has prospects. To a server that fails
    /// that is what waits for a connection that is being made, which does not take long: it would be sent
    /// after the change to where its keys were before. What waits for a later one would only hold the change up.
    fn is_awaited(&self, backend: BackendId) -> bool {
        self.backends[backend].servers.iter().any(|server| {
            server.all_lanes().any(|index| {
                let lane = self.lane(index);
                let has_prospects = server.is_up() || lane.has_connection();
                self.is_busy(index) && has_prospects && !server.ejected
            })
        })
    }

    /// Whether something is on its way on a lane that will not take as long as it likes.
    pub(crate) fn is_busy(&self, index: LaneId) -> bool {
        !self.lane(index).is_free() && !self.waits_at(index)
    }

    fn requests_on_lanes(&self, backend: BackendId) -> u64 {
        let lanes = self.backends[backend].servers.iter().flat_map(Server::all_lanes);
        lanes.map(|lane| self.lane(lane)).map(|lane| u64::from(lane.in_flight + lane.unsent)).sum()
    }

    /// Forgets the epoch that is being prepared, if there is one.
    fn call_off(&mut self) {
        let Some(change) = self.change.take() else { return };
        for pool in change.steps.iter().filter_map(Step::paused) {
            self.backends[pool.backend()].paused = false;
            self.update_held_before(pool.backend());
        }
        for step in &change.steps {
            if let Step::Rerouted { pool, .. } = step {
                self.abort_topics(pool.backend());
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
    fn close_pool(&mut self, pool: PoolId) {
        let index = pool.backend();
        self.end_waiting(index);
        for server in self.backends[index].servers.ids() {
            self.close_server(index, server, Failure::Removed);
        }
        self.drop_topics(index);
        let (tcp, mut cx) = self.tcp();
        tcp.forget_backend(&mut cx, index);
        self.listeners[pool.listener()].standing = Standing::Gone;
        let backend = &mut self.backends[index];
        backend.standing = Standing::Gone;
        backend.servers = Table::new();
        self.redis_backends[index].servers = Table::new();
        let mut never = Vec::new();
        self.actions.retain(|action| match *action {
            Action::Connect { conn, backend: of, .. } if of == index => {
                never.push(conn);
                false
            }
            Action::Close { conn } => !never.contains(&conn),
            Action::ServerState { backend: of, .. }
            | Action::MapDoubted { backend: of }
            | Action::ServerHindered { backend: of, .. }
            | Action::CredentialsRefused { backend: of, .. }
            | Action::KeepingRefused { backend: of, .. }
            | Action::CopyRefused { backend: of, .. }
            | Action::ServerMisfit { backend: of, .. }
            | Action::ServerRecovered { backend: of, .. } => of != index,
            _ => true,
        });
    }

    /// Those at the end, that is: others stand where they are until the next commit.
    fn forget_gone(&mut self) {
        while self.backends.last().is_some_and(|backend| backend.standing == Standing::Gone) {
            self.listeners.pop();
            self.redis_listeners.pop();
            self.backends.pop();
            self.redis_backends.pop();
        }
    }

    /// Ends all connections to a server. What is still on them fails.
    fn close_server(&mut self, backend: BackendId, server: ServerId, why: Failure) {
        let state = &mut self.backends[backend].servers[server];
        // Who waits here finds another server.
        state.waiting.clear();
        state.reading.clear();
        state.leaves = true;
        self.dissolve_line(backend, server);
        let state = &mut self.backends[backend].servers[server];
        let own: Vec<Range<u32>> = state.own_ranges().collect();
        for lane in state.all_lanes().collect::<Vec<LaneId>>() {
            if self.lane(lane).has_connection() {
                self.disconnect(lane, Closed::ByUs);
            }
            self.lanes[lane].link = Link::Idle;
            let holder = self.lane(lane).lease;
            self.fail_sent(lane, why);
            self.fail_unsent(lane, why);
            self.lose_lease(lane, holder, why);
        }
        let state = &mut self.backends[backend].servers[server];
        let private = std::mem::take(&mut state.streaming_lanes);
        let sessions = std::mem::take(&mut state.session_lanes);
        state.feed_lane = LaneId::NONE;
        state.tracker_lane = LaneId::NONE;
        let tracker = self.redis_backends[backend].servers[server].tracker.take();
        let tracker = tracker.map(|mut tracker| {
            let partial = tracker.end();
            self.bufs.give(partial);
            self.lanes[tracker.lane].output.clear(&mut self.bufs);
            tracker.lane
        });
        let feed = self.redis_backends[backend].servers[server].feed.take().map(|mut feed| {
            self.lost_marks.append(&mut feed.give_up());
            self.lanes[feed.lane].output.clear(&mut self.bufs);
            self.bufs.give(feed.partial);
            feed.lane
        });
        self.streaming_lanes.retain(|lane| !private.contains(lane));
        own.into_iter().for_each(|range| self.vacate(range));
        for lane in private.into_iter().chain(sessions).chain(feed).chain(tracker) {
            self.vacate(lane.number()..lane.number() + 1);
        }
    }

    /// Lanes without connections and requests are nobody's any more.
    pub(crate) fn vacate(&mut self, range: Range<u32>) {
        self.publish_lanes();
        for lane in &mut (*self.lanes)[range.start as usize..range.end as usize] {
            debug_assert!(!lane.is_taken() && lane.output.is_empty() && !lane.has_connection());
            lane.renew(Lane::new((BackendId::new(0), ServerId::new(0)), 0, WireProtocol::Resp2));
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
        let Change { epoch, rank, workers, memory_max, leave_ms, audit, steps, .. } = change;
        let places = Places::new(&steps, &self.backends);
        let in_use = PoolId::new(steps.len() as u32);
        self.count_in(metrics, &places, in_use);
        self.renumber_user_rows(&steps);
        let rerouted = steps.iter().filter_map(|step| match *step {
            Step::Rerouted { pool, .. } => Some(pool.backend()),
            Step::Same { .. } | Step::New { .. } => None,
        });
        let rerouted: Vec<BackendId> = rerouted.collect();
        // A node of a cluster itself refuses a transaction whose slot has moved.
        let keeps_leases: Vec<bool> =
            self.backends.iter().map(|it| it.topology.has_slots()).collect();
        self.invalidate_leases(|backend| {
            rerouted.contains(&backend) && !keeps_leases[backend.index()]
        });
        let (mut heirs, mut stranded) = (Vec::new(), Vec::new());
        for (servers, backend) in places.servers.iter().zip(self.backends.ids()) {
            if servers.is_empty() {
                continue;
            }
            let successors = successors(&steps, &self.backends, backend);
            for server in (0..servers.len()).filter(|&server| servers[server] == ServerId::NONE) {
                let server = ServerId::new(server as u32);
                let Some(successor) = successors[server.index()] else {
                    if self.backends[backend].topology.has_slots() {
                        let waiting = self.take_waiting_unconnected(backend, server);
                        stranded.push((backend, waiting));
                    }
                    self.close_server(backend, server, Failure::Removed);
                    continue;
                };
                if self.backends[backend].failover_wait_us > 0 {
                    let own: Vec<LaneId> =
                        self.backends[backend].servers[server].own_lanes().collect();
                    for lane in own {
                        self.cut_lane(lane, Failure::Replaced);
                    }
                    heirs.push((successor, self.take_waiting(backend, server)));
                }
                self.close_server(backend, server, Failure::Replaced);
            }
        }
        let primaries = self.primaries_after(&steps, &places);
        let stood = self.standpoints_before(&steps, &places);
        let subscribers = self.clients.indices();
        let subscribers =
            subscribers.filter(|&client| self.clients[client].modes.subscriber.is_some());
        let keyless = subscribers
            .filter_map(|client| Some((client, places.backend(self.keyless_backend(client))?)));
        let keyless: Vec<(ClientId, BackendId)> = keyless.collect();
        let unreachable_now = self.renumber_actions(&places, in_use);
        (self.epoch, self.rank, self.workers) = (epoch, rank, workers);
        (self.listeners_in_use, self.backends_in_use) = (steps.len(), steps.len());
        self.pressure.set_max(memory_max);
        self.spooling.announce(&self.backends);
        let counted = self.take_counted();
        let before = self.take_pools();
        let changes = self.rearrange(before, steps, self.now.plus_millis(leave_ms));
        self.renumber(&places);
        self.renumber_counted(counted, &places);
        self.lay_routes(stood, &keyless);
        self.lay_caches();
        for backend in self.backends.ids().take(self.backends_in_use) {
            self.complete_variants(backend);
            self.backends[backend].distrust_replicas(&self.metrics, self.now);
        }
        for (backend, server) in primaries {
            self.supersede_if_replica(backend, server);
        }
        for ((step, server), heirs) in heirs {
            self.give_waiting(step, server, heirs);
        }
        for (backend, waiting) in stranded {
            match places.backend(backend) {
                Some(backend) => self.deal_again((backend, None), waiting),
                None => debug_assert!(waiting.is_empty(), "a pool's requests go with it"),
            }
        }
        // What they have written before is below that.
        self.write_marks.forget_answered();
        self.renew_user_limits();
        self.follow_clients(&changes);
        for (change, backend) in changes.into_iter().zip(self.backends.ids()) {
            self.follow(backend, change);
            self.commit_topics(backend);
        }
        self.renumber_tracking();
        self.follow_audit(audit);
        self.arm_probes();
        self.publish_all();
        let (tcp, mut cx) = self.tcp();
        tcp.follow(&mut cx);
        for conn in unreachable_now {
            tcp.closed(&mut cx, conn, CloseReason::Unreachable);
        }
        self.unblock_clients(|_| true);
        self.maintain_draining();
    }

    /// Who takes writes so far, and stays, by the numbers after the commit.
    fn primaries_after(&self, steps: &[Step], places: &Places) -> Vec<(BackendId, ServerId)> {
        let rerouted = steps.iter().filter_map(|step| match step {
            Step::Rerouted { pool, .. } => Some(pool.backend()),
            Step::Same { .. } | Step::New { .. } => None,
        });
        // Where all copies are written who was the first one goes on.
        let of_groups = rerouted.filter(|&it| {
            let topology = &self.backends[it].topology;
            !topology.has_slots() && !topology.writes_to_all()
        });
        let primaries = |backend: BackendId| {
            let topology = &self.backends[backend].topology;
            topology.primaries().filter_map(move |it| places.server(backend, it))
        };
        of_groups.flat_map(primaries).collect()
    }

    /// Users count in the rows that their pools have in the other layout from here on, or nowhere.
    fn renumber_user_rows(&mut self, steps: &[Step]) {
        self.listeners.iter_mut().for_each(|listener| listener.user_rows.clear());
        for step in steps {
            let (pool, config) = match step {
                Step::Same { pool, config } => (*pool, config),
                Step::Rerouted { pool, preparing, .. } => {
                    (*pool, &self.listeners[preparing.listener()].config)
                }
                Step::New { .. } => continue,
            };
            let rows = config.user_rows().into_iter().map(str::to_owned).collect();
            self.listeners[pool.listener()].user_rows = rows;
        }
    }

    /// Counts by another layout from here on, which is that of the pools after the commit.
    fn count_in(&mut self, metrics: Writer, places: &Places, in_use: PoolId) {
        let mut tallied = None;
        let pool_of = |place: Option<PoolId>| match place.filter(|&place| place < in_use) {
            Some(place) => metrics.pool(place.index()),
            None => metrics.void_pool(),
        };
        for (listener, &place) in self.listeners.iter_mut().zip(&places.pools) {
            let id = pool_of(place);
            if listener.standing != Standing::Coming {
                let before = listener.metrics;
                let is_of = |pool: Option<&mut _>| pool.is_some_and(|pool| *pool == before);
                tallied = if is_of(self.latency_batch.pool()) { Some(id) } else { tallied };
            }
            listener.metrics = id;
        }
        let backends = self.backends.iter_mut().zip((0..).map(BackendId::new));
        for ((backend, index), &place) in backends.zip(&places.pools) {
            backend.metrics = pool_of(place);
            for (server, state) in backend.servers.iter_mut().enumerate() {
                let place = places
                    .server(index, ServerId::new(server as u32))
                    .filter(|&(backend, _)| backend < in_use.backend());
                let place = match place {
                    Some((backend, server)) => metrics.server(backend.index(), server.index()),
                    None => metrics.void_server(),
                };
                state.count_at(place, &metrics);
            }
        }
        if let (Some(pool), Some(tallied)) = (self.latency_batch.pool(), tallied) {
            *pool = tallied;
        }
        self.metrics = metrics;
    }

    /// What the listeners count by, before a change.
    fn take_counted(&mut self) -> CountedBefore {
        let unpublished = self.latency_batch.pool().copied();
        let unpublished = self.listeners.entries().find(|(_, it)| Some(it.metrics) == unpublished);
        CountedBefore {
            unpublished: unpublished.map(|(id, _)| id),
            counts: self.listeners.iter().map(|it| it.counts).collect(),
            prefixes: self
                .listeners
                .iter_mut()
                .map(|it| std::mem::take(&mut it.prefixes))
                .collect(),
        }
    }

    /// What is under way counts by the prefixes as they are now, if it counted before.
    fn renumber_counted(&mut self, before: CountedBefore, places: &Places) {
        let mut uncounted = Vec::new();
        let mut changed = HashMap::new();
        let mut keeps_unpublished = false;
        for (number, (counted, prefixes)) in
            (0..).zip(before.counts.into_iter().zip(before.prefixes))
        {
            let old = ListenerId::new(number);
            let Some(new) = places.listener(old) else { continue };
            let listener = &self.listeners[new];
            if !(counted && listener.counts) {
                uncounted.push(new);
                continue;
            }
            let is_unpublished = before.unpublished == Some(old);
            keeps_unpublished |= is_unpublished;
            let (prefixes, now) = (prefixes.texts(), listener.prefixes.texts());
            if prefixes == now {
                continue;
            }
            let place = |text| now.iter().position(|it| it == text);
            let numbers = prefixes.iter().map(|text| place(text).map(PrefixNumber::new));
            let numbers: Vec<_> = numbers.map(Option::unwrap_or_default).collect();
            if is_unpublished {
                self.command_stats.renumber_unpublished(&numbers);
            }
            changed.insert(new, numbers);
        }
        if !keeps_unpublished {
            self.command_stats.drop_unpublished();
        }
        if !self.command_stats.is_used() {
            return;
        }
        for (id, request) in self.requests.entries() {
            if request.client == ClientId::NONE {
                continue;
            }
            let listener = self.clients[request.client].listener;
            if uncounted.contains(&listener) {
                self.command_stats.forget(id);
            } else if let Some(numbers) = changed.get(&listener) {
                self.command_stats.renumber_prefix(id, numbers);
            }
        }
        if self.listeners.iter().all(|listener| !listener.counts) {
            self.command_stats = CommandStats::default();
        }
    }

    /// Actions that nobody has seen yet will be carried out by the new numbers. Returns connections that bytes were to
    /// pass through and that nobody will make, as their servers are gone.
    fn renumber_actions(&mut self, places: &Places, in_use: PoolId) -> Vec<ConnId> {
        let (mut never, mut unreachable_now) = (Vec::new(), Vec::new());
        let (lanes, lane_at) = (&self.lanes, &self.lane_at);
        let in_use = |backend: BackendId| backend < in_use.backend();
        self.actions.retain_mut(|action| match action {
            Action::Connect { conn, backend: pool, server } if conn.is_paired() => {
                match places.server(*pool, *server) {
                    Some(place) => (*pool, *server) = place,
                    // What it was configured as is not known any more: it is as if it could not be reached.
                    None => unreachable_now.push(*conn),
                }
                unreachable_now.last() != Some(conn)
            }
            Action::Connect { conn, backend: pool, server } => {
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
            Action::Held { backend: pool, .. } | Action::MapDoubted { backend: pool } => {
                match places.backend(*pool).filter(|&backend| in_use(backend)) {
                    Some(place) => {
                        *pool = place;
                        true
                    }
                    None => false,
                }
            }
            Action::Eject { backend: pool, server, .. }
            | Action::NotPrimary { backend: pool, server }
            | Action::Readmit { backend: pool, server } => {
                match places.server(*pool, *server).filter(|&(pool, _)| in_use(pool)) {
                    Some(place) => {
                        (*pool, *server) = place;
                        true
                    }
                    None => false,
                }
            }
            Action::ServerState { backend: pool, server, .. }
            | Action::ServerHindered { backend: pool, server, .. }
            | Action::CredentialsRefused { backend: pool, server }
            | Action::KeepingRefused { backend: pool, server, .. }
            | Action::CopyRefused { backend: pool, server, .. }
            | Action::ServerMisfit { backend: pool, server, .. }
            | Action::LargeWaits { backend: pool, server }
            | Action::SessionsWait { backend: pool, server, .. }
            | Action::SlowClient { backend: pool, server, .. }
            | Action::ServerRecovered { backend: pool, server } => {
                match places.server(*pool, *server) {
                    Some(place) => {
                        (*pool, *server) = place;
                        true
                    }
                    None => false,
                }
            }
            Action::Ask { listener: pool, .. }
            | Action::Notice { listener: pool, .. }
            | Action::Authenticate { listener: pool, .. }
            | Action::HeldBack { listener: pool, .. }
            | Action::Shed { listener: pool, .. } => match places.listener(*pool) {
                Some(place) => {
                    *pool = place;
                    true
                }
                None => false,
            },
            Action::PauseRead { .. }
            | Action::ResumeRead { .. }
            | Action::Reset { .. }
            | Action::EndWriting { .. }
            | Action::SetLowWater { .. }
            | Action::HandOff { .. }
            | Action::Prepared { .. }
            | Action::Paused { .. }
            | Action::Monitors { .. }
            | Action::Pressed { .. } => true,
        });
        unreachable_now
    }

    /// All pools there are, in their order; none are left.
    fn take_pools(&mut self) -> Vec<Pool> {
        let listeners = std::mem::take(&mut self.listeners).into_iter();
        let backends = std::mem::take(&mut self.backends).into_iter();
        let features = std::mem::take(&mut self.redis_listeners)
            .into_iter()
            .zip(std::mem::take(&mut self.redis_backends));
        let pools = listeners.zip(backends).zip(features);
        pools.map(|((listener, backend), redis)| Pool { listener, backend, redis }).collect()
    }

    /// Gives a pool the next place.
    fn push_pool(&mut self, pool: Pool) {
        let Pool { mut listener, backend, redis } = pool;
        let id = self.listeners.next_id();
        listener.destination.backend = self.backends.next_id();
        // Where it leads is known when all pools have their places.
        listener.destination.route = None;
        listener.user_destinations.clear();
        self.listeners.push(listener);
        self.backends.push(backend);
        self.redis_listeners.push(redis.0);
        self.redis_backends.push(redis.1);
        self.update_held(id);
    }

    /// Makes the new epoch's pools of those there are; says for each what is new about it.
    fn rearrange(&mut self, before: Vec<Pool>, steps: Vec<Step>, leave: Time) -> Vec<Changed> {
        let mut before: Vec<Option<Pool>> = before.into_iter().map(Some).collect();
        let mut take =
            |pool: PoolId| before[pool.index()].take().expect("a pool becomes one other");
        let mut changes = Vec::with_capacity(steps.len());
        for step in steps {
            let (mut pool, changed) = match step {
                Step::Same { pool, config } => {
                    let mut pool = take(pool);
                    let changed = Changed::of(&pool.backend.config, &config);
                    if let Some(cluster) = &config.cluster {
                        pool.backend.topology.set_moving(&cluster.moving);
                    }
                    pool.listener.config = Arc::clone(&config);
                    pool.backend.config = config;
                    (pool, changed)
                }
                Step::Rerouted { pool, preparing, kept, ring_version, .. } => {
                    let (mut pool, preparing) = (take(pool), take(preparing));
                    let changed = Changed::of(&pool.backend.config, &preparing.backend.config);
                    let backend = &mut pool.backend;
                    merge(&mut backend.servers, preparing.backend.servers, &kept);
                    merge(&mut pool.redis.1.servers, preparing.redis.1.servers, &kept);
                    pool.listener.config = preparing.listener.config;
                    backend.config = preparing.backend.config;
                    let is_by_latency = backend.topology.is_by_latency();
                    let before =
                        std::mem::replace(&mut backend.topology, preparing.backend.topology);
                    backend.topology.keep_moving(&before, &kept, self.now);
                    if is_by_latency {
                        backend.topology.heed_latency();
                    }
                    backend.ring_version = ring_version;
                    (pool, Changed { is_rerouted: true, ..changed })
                }
                Step::New { preparing, ring_version, .. } => {
                    let mut pool = take(preparing);
                    pool.backend.ring_version = ring_version;
                    (pool, Changed { is_rerouted: true, ..Changed::default() })
                }
            };
            pool.listener.standing = Standing::InUse;
            pool.backend.standing = Standing::InUse;
            pool.configure();
            pool.backend.paused = false;
            self.push_pool(pool);
            changes.push(changed);
        }
        for mut pool in before.into_iter().flatten() {
            let backend = &mut pool.backend;
            if backend.is_in_use() {
                backend.standing = Standing::Leaving { since: self.now, until: leave };
                (backend.hold, backend.paused, backend.auto_eject) = (None, false, false);
                // What is found out about its servers is for nobody.
                backend.servers.iter_mut().for_each(|server| server.ask_at = Time::NEVER);
                pool.listener.standing = backend.standing;
                // They count where nobody sees it.
                pool.listener.counts = false;
                self.timers.arm(leave, Timer::Change);
            }
            if backend.standing != Standing::Gone {
                self.push_pool(pool);
            }
        }
        changes
    }

    /// Points everything that names pools and servers to where they stand now.
    fn renumber(&mut self, places: &Places) {
        self.standpoints.renumber(|backend| places.backend(backend));
        for (backend, state) in self.backends.entries() {
            for (server, state) in state.servers.entries() {
                for lane in state.all_lanes() {
                    let lane = &mut self.lanes[lane];
                    (lane.backend, lane.server) = (backend, server);
                }
            }
        }
        for client in self.clients.indices().collect::<Vec<ClientId>>() {
            let client = &mut self.clients[client];
            client.listener = places.listener(client.listener).unwrap_or(ListenerId::NONE);
            debug_assert_ne!(client.listener, ListenerId::NONE);
        }
        let pool = |backend| {
            Some((
                places.listener(ListenerId::new(backend))?,
                places.backend(BackendId::new(backend))?,
            ))
        };
        self.tcp.renumber(
            |backend| pool(backend.number()),
            |backend, server| places.server(backend, server).map(|(_, server)| server),
        );
        self.invalidations.renumber(|backend| places.backend(backend));
        for request in self.requests.iter_mut() {
            if let Role::Probe { server } = &mut request.role
                && let Some((_, place)) = places.server(request.backend, *server)
            {
                *server = place;
            }
            request.backend = places.backend(request.backend).unwrap_or(BackendId::NONE);
            debug_assert_ne!(request.backend, BackendId::NONE);
        }
    }

    /// Where clients stand, by the numbers after the commit. Without routes, before and after, that is not asked.
    fn standpoints_before(&self, steps: &[Step], places: &Places) -> Vec<(ClientId, BackendId)> {
        let mut preparing = steps.iter().filter_map(Step::preparing).map(PoolId::listener);
        let has_user_routes = steps.iter().any(|step| match step {
            Step::Same { config, .. } => !config.user_routes.is_empty(),
            Step::Rerouted { preparing, .. } | Step::New { preparing, .. } => {
                !self.listeners[preparing.listener()].config.user_routes.is_empty()
            }
        });
        let has_routes = self
            .listeners
            .iter()
            .any(|listener| listener.destination.route.is_some() || listener.has_user_routes())
            || preparing.any(|listener| {
                let config = &self.listeners[listener].config;
                config.route.is_some() || config.spool.is_some()
            })
            || has_user_routes;
        if !has_routes {
            return Vec::new();
        }
        let place = |client| places.backend(self.backend_of(client)).unwrap_or(BackendId::NONE);
        self.clients.indices().map(|client| (client, place(client))).collect()
    }

    /// Has routes lead to where the pools stand now, and their clients stand where these lead. `keyless` says where
    /// the channels of subscribers were.
    fn lay_routes(&mut self, stood: Vec<(ClientId, BackendId)>, keyless: &[(ClientId, BackendId)]) {
        let mut named: HashMap<String, BackendId> = HashMap::new();
        for (id, backend) in self.backends.entries() {
            // Those in use come first.
            named.entry(backend.config.name.clone()).or_insert(id);
        }
        let backends = &self.backends;
        let leaf = |pool: &str| {
            let backend = named.get(pool).copied().unwrap_or(BackendId::NONE);
            let spool = backends.get(backend).and_then(|backend| backend.spool.as_ref());
            (backend, spool.map(|spool| spool.overwrites))
        };
        let destination = |route: &snapshot::Route| {
            let tree = Tree::new(route, &leaf);
            let mut known = tree.backends().iter().filter_map(|&it| backends.get(it));
            let has_replicas = known.clone().any(|backend| backend.config.has_copies());
            let shares_reads = known.clone().any(|backend| backend.config.coalesces());
            let databases = known.by_ref().map(|backend| backend.config.databases).min();
            Destination {
                backend: tree.home(),
                misses: false,
                has_replicas,
                shares_reads,
                choice: Choice::Backends,
                copies_across: false,
                databases: databases.unwrap_or(1),
                redis_db: 0,
                route: Some(Arc::new(tree)),
                held: false,
                is_clear: true,
            }
        };
        for listener in &mut self.listeners {
            let config = Arc::clone(&listener.config);
            // What a pool could not delete is kept by a node.
            let own = config.spool.as_ref();
            let own = own.map(|_| snapshot::Route::Pool(config.name.clone()));
            if let Some(route) = config.route.as_ref().or(own.as_ref()) {
                let led = destination(route);
                let own = &mut listener.destination;
                if led.backend != BackendId::NONE {
                    own.backend = led.backend;
                }
                (own.has_replicas, own.choice, own.route) =
                    (led.has_replicas, led.choice, led.route);
            }
            let of_users = config.user_routes.iter().map(|it| {
                let pool = match &it.route {
                    snapshot::Route::Pool(name) => named.get(name.as_str()).copied(),
                    _ => None,
                };
                let mut led = match pool.and_then(|id| Some((id, backends.get(id)?))) {
                    Some((id, backend)) if backend.spool.is_none() => {
                        Destination::new(id, &backend.config)
                    }
                    Some((_, backend)) => Destination {
                        misses: backend.config.memcached.on_failure == OnFailure::Miss,
                        ..destination(&it.route)
                    },
                    None => destination(&it.route),
                };
                if it.databases > 0 {
                    (led.databases, led.redis_db) = (it.databases, it.redis_db);
                }
                led
            });
            let of_users = of_users.collect();
            listener.set_user_destinations(of_users);
        }
        for listener in self.listeners.ids() {
            let routes = self.listeners[listener].destinations();
            let routes: Vec<Arc<Tree>> = routes.filter_map(|it| it.route.clone()).collect();
            for route in routes {
                let backends =
                    route.backends().iter().filter(|&&backend| backend != BackendId::NONE);
                for &backend in backends.filter(|_| route.backends().len() > 1) {
                    self.backends[backend].tag_servers_of_several();
                }
            }
        }
        for listener in self.listeners.ids() {
            let state = &self.listeners[listener];
            if state.destination.route.is_some() || state.has_user_routes() {
                self.update_held(listener);
            }
        }
        let stranded = self.end_stranded(keyless);
        for (index, stood) in stood {
            let client = &mut self.clients[index];
            let listener = &self.listeners[client.listener];
            client.destination = listener.destination_of(client.session.user());
            let destination = listener.destination(client.destination);
            let is_elsewhere = client.destination != DestinationNumber::OWN;
            let of_lease = self.transaction_backend(index);
            if of_lease.is_some_and(|backend| !destination.leads_to(backend)) {
                self.abandon_transaction(index);
            }
            let destination = self.destination_of(index);
            if destination.leads_to(stood) {
                if destination.route.is_some() {
                    // What has no key may go elsewhere now.
                    self.standpoints.set(index, stood);
                }
                if is_elsewhere && !self.has_its_database(index) {
                    self.finish(index);
                }
                self.update_off_fast_path(index);
                continue;
            }
            self.leave_behind(index, stood, None);
            let variant = std::mem::take(&mut self.clients[index].variant);
            if stood != BackendId::NONE {
                self.leave_variant(stood, variant);
            }
            self.standpoints.forget(index);
            self.settle_there(index);
        }
        for client in stranded {
            self.cut_client(client, PoolCounter::ClientErr);
        }
    }

    /// Ends the subscriptions of those whose channels are elsewhere now, where they are: `before` says where that is,
    /// by the numbers after the commit. Returns the clients, which are to be closed.
    fn end_stranded(&mut self, before: &[(ClientId, BackendId)]) -> Vec<ClientId> {
        let mut stranded = Vec::new();
        for &(client, backend) in before {
            let Client { listener, ref session, .. } = self.clients[client];
            let listener = &self.listeners[listener];
            let now = listener.destination(listener.destination_of(session.user())).backend;
            if now == backend {
                continue;
            }
            if let Some(subscriber) = self.clients[client].modes.end_subscriber() {
                self.forget_subscriber(client, backend, *subscriber);
                stranded.push(client);
            }
        }
        stranded
    }

    /// Whether some route, which may have clients, leads to the backend.
    fn is_led_to(&self, backend: BackendId) -> bool {
        let mut routes = self.listeners.iter().filter(|listener| listener.serves());
        routes.any(|it| {
            let mut elsewhere = it.user_destinations.iter();
            it.destination.route.is_some() && it.destination.leads_to(backend)
                || elsewhere.any(|destination| destination.leads_to(backend))
        })
    }

    /// Does for the clients what the changes of their pools ask for.
    fn follow_clients(&mut self, changes: &[Changed]) {
        for index in self.clients.indices().collect::<Vec<ClientId>>() {
            let client = &mut self.clients[index];
            let Some(changed) = changes.get(client.listener.index()) else { continue };
            let listener = &self.listeners[client.listener];
            let mut changed = *changed;
            let destination = listener.destination(client.destination);
            for backend in destination.backends() {
                if let Some(of_leaf) = changes.get(backend.index()) {
                    changed.is_rerouted |= of_leaf.is_rerouted;
                    changed.has_database |= of_leaf.has_database;
                }
            }
            let limits = &listener.limits;
            client.window = client.window.min(narrowed(limits.client_requests_max));
            if changed.is_rerouted || changed.has_auth {
                // Nobody can be asked any more for what there is no password for.
                client.session.authenticated |= self.listeners[client.listener].is_open();
                // What is still on its way must not be overtaken on another server.
                client.fenced |= changed.is_rerouted && client.requests > 0;
            }
            if changed.has_auth {
                self.follow_users(index);
                if self.clients.is_retired(index) {
                    continue;
                }
            }
            if changed.has_database && !self.follow_session(index) {
                self.finish(index);
            }
        }
    }

    /// Does for a backend of the new epoch what its changes ask for.
    fn follow(&mut self, index: BackendId, changed: Changed) {
        if changed.is_rerouted && self.backends[index].topology.has_slots() {
            self.follow_map(index);
        }
        if changed.is_rerouted {
            self.follow_ring(index);
        }
        let backend = &self.backends[index];
        let preconnect = backend.preconnect;
        if changed.has_timeout {
            let lanes = backend.servers.iter().flat_map(Server::all_lanes);
            lanes.collect::<Vec<LaneId>>().into_iter().for_each(|lane| self.rearm(lane));
        }
        if changed.has_preconnect && preconnect {
            let servers = self.backends[index].servers.iter();
            let lanes = servers.filter(|server| server.is_up()).flat_map(Server::shared_lanes);
            let idle = lanes.filter(|&lane| self.lane(lane).link == Link::Idle);
            idle.collect::<Vec<LaneId>>().into_iter().for_each(|lane| self.connect(lane));
        }
    }

    /// Servers are ejected or not as the ring says.
    fn follow_ring(&mut self, index: BackendId) {
        for server in self.backends[index].servers.ids() {
            let backend = &mut self.backends[index];
            let ejected =
                !backend.topology.live()[server.index()] && !backend.topology.is_drained(server);
            let state = &mut backend.servers[server];
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

    /// Probes go by numbers of backends and servers.
    fn arm_probes(&mut self) {
        self.timers.retain(|_, timer| !matches!(timer, Timer::Probe { .. }));
        for backend in self.backends.ids().take(self.backends_in_use) {
            for server in self.backends[backend].servers.ids() {
                let state = &self.backends[backend].servers[server];
                match state.probe_at {
                    _ if !state.ejected => {}
                    Time::NEVER => self.arm_probe(backend, server),
                    at => self.timers.arm(at, Timer::Probe { backend, server }),
                }
            }
        }
    }

    /// Gauges of all pools and servers in use, which have new places.
    fn publish_all(&mut self) {
        let mut lanes = Vec::new();
        for listener in self.listeners.iter().take(self.listeners_in_use) {
            let taken = listener.places_taken;
            self.metrics.set_pool(listener.metrics, PoolGauge::ClientConnections, taken);
        }
        for backend in self.backends.iter_mut().take(self.backends_in_use) {
            let ring_version = backend.ring_version;
            self.metrics.set_pool(backend.metrics, PoolGauge::RingVersion, ring_version);
            for (at, server) in (0..).map(ServerId::new).zip(&mut backend.servers) {
                let drained = u64::from(backend.topology.drained(at));
                self.metrics.set_server(server.metrics, ServerGauge::Drained, drained);
                let ejected = u64::from(server.ejected);
                let sessions = u64::from(server.sessions);
                self.metrics.set_server(server.metrics, ServerGauge::Sessions, sessions);
                self.metrics.set_server(server.metrics, ServerGauge::InLine, server.in_line());
                self.metrics.set_server(server.metrics, ServerGauge::Ejected, ejected);
                let silent = u64::from(server.is_silent());
                self.metrics.set_server(server.metrics, ServerGauge::Silent, silent);
                // No queues are so long: they are published in any case.
                server.queues = Queues { unsent: u64::MAX, ..Queues::default() };
                if server.first_lane != LaneId::NONE {
                    lanes.push(server.first_lane);
                }
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
        let pools = (0..self.listeners.len() as u32).map(PoolId::new);
        for pool in pools.skip(self.listeners_in_use) {
            let index = pool.listener();
            let listener = &self.listeners[index];
            let Standing::Leaving { since, until } = listener.standing else { continue };
            let is_over = until <= self.now;
            if is_over && listener.clients > 0 {
                let (tcp, mut cx) = self.tcp();
                tcp.cut(&mut cx, index);
                let rest_us = until.micros_since(since).max(LINGER_US);
                let is_late = until.plus_micros(rest_us) <= self.now;
                for client in self.clients.indices().collect::<Vec<ClientId>>() {
                    let state = &self.clients[client];
                    if state.listener != index {
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
            let is_quiet = self.now.micros_since(since) >= LINGER_US
                && self.requests_on_lanes(pool.backend()) == 0
                && self.backends[pool.backend()].sent_back == 0;
            if self.listeners[index].clients == 0
                && (is_over || is_quiet)
                && !self.is_led_to(pool.backend())
            {
                self.close_pool(pool);
                self.settle_lost_marks();
            }
        }
        self.forget_gone();
    }
}

/// Who takes the place of each server of a pool that ends: the one of its name in the pool that comes, by its
/// number after the commit. A group's primary has the group's next one, as its own name may be a replica's then.
fn successors(
    steps: &[Step],
    backends: &[Backend],
    backend: BackendId,
) -> Vec<Option<(BackendId, ServerId)>> {
    let before = &backends[backend.index()];
    let servers = &before.config.servers;
    let is_of = |step: &Step| step.old().is_some_and(|pool| pool.backend() == backend);
    let step = steps.iter().position(is_of);
    let Some((step, next)) = step.and_then(|step| Some((step, steps[step].preparing()?))) else {
        return vec![None; servers.len()];
    };
    let next = &backends[next.backend().index()];
    // Pools of tens of thousands of servers are looked through once, and of several of one name the first counts.
    let mut places = HashMap::new();
    for (server, place) in next.config.servers.iter().zip((0..).map(ServerId::new)) {
        places.entry(&*server.name).or_insert(place);
    }
    let mut successors: Vec<Option<ServerId>> =
        servers.iter().map(|it| places.get(&*it.name).copied()).collect();
    let has_roles = |it: &Backend| !it.topology.has_slots() && !it.topology.writes_to_all();
    if has_roles(before)
        && has_roles(next)
        && let (snapshot::Topology::Groups(groups), snapshot::Topology::Groups(next_groups)) =
            (&before.config.topology, &next.config.topology)
    {
        let heads = next_groups.iter().zip(next.topology.primaries());
        let heads: HashMap<&str, ServerId> =
            heads.map(|(group, head)| (&*group.name, head)).collect();
        for (group, primary) in groups.iter().zip(before.topology.primaries()) {
            successors[primary.index()] = heads.get(&*group.name).copied();
        }
    }
    let step = BackendId::new(step as u32);
    successors.into_iter().map(|place| Some((step, place?))).collect()
}

/// Puts what is kept in its new place among what is fresh.
fn merge<T>(all: &mut Table<ServerId, T>, fresh: Table<ServerId, T>, kept: &[Option<ServerId>]) {
    let mut old: Vec<Option<T>> = std::mem::take(all).into_iter().map(Some).collect();
    let mut take = |server: ServerId| old[server.index()].take().expect("a server is kept once");
    let merged = fresh.into_iter().zip(kept);
    *all = merged.map(|(fresh, kept)| kept.map_or(fresh, &mut take)).collect();
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
                || old.users != new.users
                || old.memcached.client_auth != new.memcached.client_auth,
            has_database: old.redis_db != new.redis_db,
            has_timeout: old.timeout_ms != new.timeout_ms,
            has_preconnect: old.preconnect != new.preconnect,
        }
    }
}

/// The pools to which some users' requests go that went to others, and the others.
fn pools_on_other_ways(was: &snapshot::Pool, is: &snapshot::Pool) -> HashSet<String> {
    let mut found = HashSet::new();
    if was.user_routes.is_empty() && is.user_routes.is_empty() {
        return found;
    }
    let users = was.user_options.iter().chain(&is.user_options).map(|options| &options.name);
    for user in users.collect::<HashSet<&String>>() {
        let [before, now] = [was, is].map(|config| match config.route_of_user(user) {
            Some(elsewhere) => elsewhere.route.clone(),
            None => config.own_route(),
        });
        if before != now {
            let led_to = before.pools().into_iter().chain(now.pools());
            found.extend(led_to.map(str::to_owned));
        }
    }
    found
}

/// Whether lanes are the same in number, and say the same on connecting.
fn lanes_alike(old: &Backend, new: &PlannedPool) -> bool {
    let (was, is) = (&*old.config, &new.config);
    was.server_auth == is.server_auth
        && was.redis_db == is.redis_db
        && old.servers.iter().all(|server| server.lanes == new.lanes)
}

/// Whether every key of every client takes the same lane as before.
fn places_alike(old: &Backend, new: &PlannedPool) -> bool {
    let (was, is) = (&*old.config, &new.config);
    lanes_alike(old, new)
        && new.moved.is_empty()
        && was.servers == is.servers
        && was.hash == is.hash
        && was.hash_tag == is.hash_tag
        && was.distribution == is.distribution
        && was.topology == is.topology
        && was.cluster.as_ref().map(|it| &it.slots) == is.cluster.as_ref().map(|it| &it.slots)
        && was.reads == is.reads
        && was.reads_by_class == is.reads_by_class
        && was.zone == is.zone
        && old.topology.state() == new.topology.state()
        && was.route == is.route
}

/// By new server: which of the old ones it is, with its lanes.
fn servers_kept(old: &Backend, new: &PlannedPool) -> Vec<Option<ServerId>> {
    let alike = lanes_alike(old, new);
    let of = |config: &snapshot::Pool| {
        let groups: Vec<String> = config.group_names().into_iter().map(str::to_owned).collect();
        let endpoints = config.servers.iter().map(|server| server.endpoint.clone());
        groups.into_iter().zip(endpoints).zip((0..).map(ServerId::new)).collect::<Vec<_>>()
    };
    let old: HashMap<_, ServerId> = of(&old.config).into_iter().filter(|_| alike).collect();
    let kept = |(server, place)| old.get(&server).copied().filter(|_| !new.moved.contains(&place));
    of(&new.config).into_iter().map(kept).collect()
}
