//! The engine's public face: events in, work out.

pub(crate) mod cache;
pub(crate) mod change;
pub(crate) mod clients;
pub(crate) mod copies;
pub(crate) mod epoch;
mod external_auth;
pub(crate) mod fast_path;
pub(crate) mod hold;
pub(crate) mod memory;
mod observe;
pub(crate) mod open_files;

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;

use cashew_config::snapshot::{self, Protocol};
use cashew_metrics::{
    Generations, HotActs, Passages, PoolCounter, PoolGauge, RequestRing, ServerCounter, Writer,
};
use cashew_protocol::{Span, memcached, resp};
use cashew_spool::Queue;

use crate::base::action::Action;
use crate::base::buffer::{BufPool, LARGE, Output};
use crate::base::command_stats::CommandStats;
use crate::base::failure::{CloseReason, Failure};
use crate::base::fifo::Fifo;
use crate::base::free_ids::FreeIds;
use crate::base::id::{BackendId, ClientId, ConnId, HedgeId, LaneId, ListenerId, ServerId};
use crate::base::latency_batch::{Answered, LatencyBatch};
use crate::base::recycler::Recycler;
use crate::base::rng::Rng;
use crate::base::slab::Slab;
use crate::base::table::Table;
use crate::base::time::Time;
use crate::base::timers::{Timer, Timers};
use crate::base::work_budget::WorkBudget;
use crate::downstream::activity::Activity;
use crate::downstream::audit::AuditQueue;
use crate::downstream::client::{Client, Dirty, Profile, Selected, Session, State, Wishes};
use crate::downstream::handoff::Moving;
use crate::downstream::listener::{Destination, DestinationNumber, Listener};
use crate::downstream::pressure::Pressure;
use crate::downstream::standpoints::Standpoints;
use crate::downstream::totals::Published;
use crate::downstream::user_limits::{Meters, Priorities};
use crate::engine::cache::Caches;
use crate::engine::change::Change;
use crate::engine::epoch::Plan;
use crate::exchange::flow::Flows;
use crate::memcached::{Invalidations, Notes, RequestCtx};
use crate::observe::Observer;
use crate::redis;
use crate::redis::client_tracking::Tracking;
use crate::redis::monitor::MonitorRelay;
use crate::redis::redirects::Waiting;
use crate::redis::script_replay::Call;
use crate::redis::sent_on::SentOn;
use crate::redis::wait_all::WaitAll;
use crate::redis::worker_query::Inquiries;
use crate::request::seal::Secret;
use crate::request::slab::Requests;
use crate::request::{Gather, Own, Role};
use crate::tcp::handoff::PairParts;
use crate::tcp::session::Source;
use crate::tcp::{self, Tcp};
use crate::upstream::backend::Backend;
use crate::upstream::hedge::Hedge;
use crate::upstream::inspect::LaneState;
use crate::upstream::lane::Lane;
use crate::upstream::replica_reads::WriteMarks;
use crate::upstream::spool::Spooling;

/// How often memory that a peak left behind is given back.
const HOUSEKEEPING_MS: u64 = 1000;

/// Queues and lists of fewer elements are not worth shrinking.
pub(crate) const QUEUE_KEPT: usize = 1024;

/// What an engine is made of.
pub struct Setup {
    pub plan: Plan,
    pub metrics: Writer,
    /// Decides jitter and random placement; equal seeds and events give equal runs.
    pub seed: u64,
    /// Where this worker counts, which is its name.
    pub slot: u32,
    pub identity: Identity,
    pub now: Time,
}

/// What INFO and HELLO say about this process.
#[derive(Clone, Debug)]
pub struct Identity {
    pub version: &'static str,
    pub process_id: u32,
}

/// Whether a new client is welcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Welcome,
    /// `client_connections` is reached: tell the client and close.
    Full,
}

/// The proxy of one worker: a state machine without sockets, clocks or threads.
///
/// The caller reports what happened (`handle_*`), calls [`Engine::settle`] when it has reported
/// all of a tick, carries out [`Engine::poll_action`], and writes what [`Engine::poll_dirty`]
/// names: for each of these connections [`Engine::output`], then [`Engine::handle_sent`]. It
/// returns by [`Engine::poll_timeout`] at the latest.
pub struct Engine {
    pub(crate) now: Time,
    pub(crate) started: Time,
    pub(crate) identity: Identity,
    pub(crate) slot: u32,
    /// Which of the workers this is; the first counts what all do.
    pub(crate) rank: u32,
    pub(crate) workers: u32,
    /// Where it is kept what servers are to forget.
    pub(crate) spooling: Spooling,
    /// Writes to several regions that are under way, over all workers.
    pub(crate) passages: Passages,
    pub(crate) caches: Caches,
    pub(crate) epoch: u64,
    pub(crate) metrics: Writer,
    /// First those of the epoch in use, in its order, then others: see [`crate::base::standing::Standing`].
    pub(crate) listeners: Table<ListenerId, Listener>,
    /// How many are of the epoch in use.
    pub(crate) listeners_in_use: usize,
    /// In the order of `listeners`.
    pub(crate) backends: Table<BackendId, Backend>,
    pub(crate) backends_in_use: usize,
    pub(crate) redis_listeners: Table<ListenerId, redis::state::ListenerState>,
    pub(crate) redis_backends: Table<BackendId, redis::state::BackendState>,
    /// The epoch that is being changed to.
    pub(crate) change: Option<Change>,
    /// Something about a change is to be said as soon as it is so.
    pub(crate) is_watching: bool,
    /// A lane keeps its number, which is in the tokens of its connections, as long as it is used.
    pub(crate) lanes: Table<LaneId, Lane>,
    pub(crate) free_ids: FreeIds,
    /// Those of `lanes` that are made for one client at a time.
    pub(crate) streaming_lanes: Vec<LaneId>,
    /// Connections for sessions there are, and may be, over all servers.
    pub(crate) session_links: u64,
    pub(crate) sessions_max: u64,
    /// By the slot that its connections are named by: the lane. Most are at their own number, see
    /// [`crate::upstream::detach_large`].
    pub(crate) lane_at: Vec<LaneId>,
    /// No connection of a lane that is not there any more has had a higher number.
    pub(crate) lane_generation: u32,
    pub(crate) clients: Slab<ClientId, Client>,
    pub(crate) write_marks: WriteMarks,
    pub(crate) standpoints: Standpoints,
    pub(crate) meters: Meters,
    pub(crate) priorities: Priorities,
    pub(crate) published: Published,
    /// Users of ports whose clients wait for room, in the order of their turns, and when it is looked whether there
    /// is.
    pub(crate) users_waiting: Vec<(ListenerId, u32)>,
    pub(crate) users_wake_at: Time,
    /// So many requests more go on of the client whose user's turn it is.
    pub(crate) users_share: Option<u32>,
    /// By client, which waits for several servers.
    pub(crate) tours: HashMap<ClientId, WaitAll>,
    /// Clients whose calls servers have not ended when they were told to: see `end_again`.
    pub(crate) not_ended: Vec<ConnId>,
    pub(crate) requests: Requests,
    pub(crate) flows: Flows,
    pub(crate) invalidations: Invalidations,
    /// What nodes of clusters have sent to others, and when it is looked at again.
    pub(crate) sent_on: SentOn<Waiting>,
    /// Who is told of what has changed.
    pub(crate) tracking: Tracking,
    pub(crate) sent_on_armed: Option<Time>,
    /// When lines for connections to oneself are looked at next.
    pub(crate) lines_due: Time,
    /// How often clients in them looked again: for tests.
    pub(crate) line_looks: u64,
    pub(crate) hedges: Slab<HedgeId, Hedge>,
    pub(crate) bufs: BufPool,
    pub(crate) latency_batch: LatencyBatch,
    pub(crate) command_stats: CommandStats,
    pub(crate) observer: Observer,
    pub(crate) audit_queue: AuditQueue,
    /// The hot keys that clients were told of last.
    pub(crate) hot_rows: Option<redis::own_logs::HotRows>,
    pub(crate) pressure: Pressure,
    pub(crate) rng: Rng,
    pub(crate) secret: Secret,
    pub(crate) timers: Timers,
    pub(crate) actions: VecDeque<Action>,
    pub(crate) dirty_clients: Fifo<ConnId>,
    /// Dirty clients that are owed more.
    pub(crate) deferred_clients: Fifo<ConnId>,
    pub(crate) dirty_lanes: Fifo<ConnId>,
    /// Lanes that the statistics are behind of.
    pub(crate) unpublished_lanes: Vec<LaneId>,
    pub(crate) activity: Activity,
    pub(crate) resumable: Vec<ConnId>,
    pub(crate) moving: Moving,
    pub(crate) inquiries: Inquiries,
    pub(crate) last_auth_ticket: u64,
    pub(crate) scratch: Scratch,
    pub(crate) request_ctx: RequestCtx,
    pub(crate) miss_notes: Notes,
    /// Quotas of clients that are gone.
    pub(crate) departed: Vec<u32>,
    /// Clients that wait for marks of feeds that are gone: see [`Engine::settle_lost_marks`].
    pub(crate) lost_marks: Vec<ConnId>,
    pub(crate) clients_seen: u64,
    pub(crate) monitor_relay: MonitorRelay,
    pub(crate) draining: bool,
    /// What clients are told that want to know, and until when.
    pub(crate) moving_away: Option<redis::maintenance::MovingAway>,
    pub(crate) work_budget: WorkBudget,
    /// Connections that bytes pass through.
    pub(crate) tcp: Tcp,
}

/// Memory that requests use for the moment of their parsing, kept to be used again.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) redis: Recycler<Box<resp::RequestParser>>,
    pub(crate) memcached: Recycler<Box<memcached::RequestParser>>,
    pub(crate) binary: Recycler<Box<memcached::binary::RequestParser>>,
    pub(crate) keys: Vec<Span>,
    pub(crate) clients: Vec<ClientId>,
    pub(crate) split: crate::exchange::dispatch::Split,
    /// A reply while it is written.
    pub(crate) text: Vec<u8>,
    /// Part of a reply whose uniques have got their tags.
    pub(crate) tagged: Vec<u8>,
    pub(crate) gathers: Recycler<Box<Gather>>,
    pub(crate) calls: Recycler<Box<Call>>,
    pub(crate) places: Vec<crate::exchange::gather::Place>,
}

impl Scratch {
    fn trim(&mut self) {
        self.redis.trim(drop);
        self.memcached.trim(drop);
        self.binary.trim(drop);
        self.gathers.trim(drop);
        self.calls.trim(drop);
        self.keys.clear();
        self.places.clear();
        shrink(&mut self.keys);
        shrink(&mut self.clients);
        shrink(&mut self.places);
        self.split.shrink();
        self.tagged.clear();
        self.tagged.shrink_to(LARGE);
    }
}

/// Gives the room back that a list no longer needs.
pub(crate) fn shrink<T>(list: &mut Vec<T>) {
    if list.capacity() > QUEUE_KEPT {
        list.shrink_to(QUEUE_KEPT.max(2 * list.len()));
    }
}

impl Engine {
    pub fn new(setup: Setup) -> Self {
        let Setup { plan, metrics, seed, slot, identity, now } = setup;
        let mut engine = Self {
            now,
            started: now,
            identity,
            slot,
            rank: 0,
            workers: 1,
            spooling: Spooling::default(),
            passages: Passages::default(),
            caches: Caches::default(),
            epoch: 0,
            metrics,
            listeners: Table::new(),
            listeners_in_use: 0,
            backends: Table::new(),
            backends_in_use: 0,
            redis_listeners: Table::new(),
            redis_backends: Table::new(),
            change: None,
            is_watching: false,
            lanes: Table::new(),
            free_ids: FreeIds::default(),
            streaming_lanes: Vec::new(),
            session_links: 0,
            sessions_max: u64::MAX,
            lane_at: Vec::new(),
            lane_generation: 0,
            clients: Slab::new(),
            write_marks: WriteMarks::default(),
            standpoints: Standpoints::default(),
            meters: Meters::default(),
            priorities: Priorities::default(),
            published: Published::default(),
            users_waiting: Vec::new(),
            users_wake_at: Time::NEVER,
            users_share: None,
            tours: HashMap::new(),
            not_ended: Vec::new(),
            requests: Requests::new(),
            flows: Flows::new(),
            invalidations: Invalidations::default(),
            sent_on: SentOn::default(),
            tracking: Tracking::default(),
            sent_on_armed: None,
            lines_due: Time::NEVER,
            line_looks: 0,
            hedges: Slab::new(),
            bufs: BufPool::default(),
            latency_batch: LatencyBatch::default(),
            command_stats: CommandStats::default(),
            observer: Observer::new(now, seed),
            audit_queue: AuditQueue::default(),
            hot_rows: None,
            pressure: Pressure::new(None),
            rng: Rng::new(seed),
            secret: Secret::new([seed, slot.into()]),
            timers: Timers::default(),
            actions: VecDeque::new(),
            dirty_clients: Fifo::new(),
            deferred_clients: Fifo::new(),
            dirty_lanes: Fifo::new(),
            unpublished_lanes: Vec::new(),
            activity: Activity::default(),
            resumable: Vec::new(),
            moving: Moving::default(),
            inquiries: Inquiries::default(),
            last_auth_ticket: 0,
            scratch: Scratch::default(),
            request_ctx: RequestCtx::default(),
            miss_notes: Notes::default(),
            departed: Vec::new(),
            lost_marks: Vec::new(),
            clients_seen: 0,
            monitor_relay: MonitorRelay::default(),
            draining: false,
            moving_away: None,
            work_budget: WorkBudget::default(),
            tcp: Tcp::default(),
        };
        engine.timers.arm(now.plus_millis(HOUSEKEEPING_MS), Timer::Housekeeping);
        engine.begin(plan);
        engine
    }

    /// What seals are made of: nobody else is to know it.
    pub fn set_secret(&mut self, noise: [u64; 2]) {
        self.secret = Secret::new(noise);
        self.caches.name_copies([self.secret.next(), self.secret.next()]);
    }

    // Events.

    /// A client connected to the pool's address. `id` is what CLIENT ID tells it. Returns the id of
    /// the connection.
    pub fn handle_accepted(
        &mut self,
        listener: ListenerId,
        admission: Admission,
        id: u64,
        now: Time,
    ) -> ConnId {
        self.now = now;
        self.clients_seen += 1;
        let config = &mut self.listeners[listener];
        if tcp::serves(config.protocol) {
            self.metrics.add_pool(config.metrics, PoolCounter::ClientsAccepted, 1);
            let is_welcome = admission == Admission::Welcome;
            let (tcp, mut cx) = self.tcp();
            return tcp.accepted(&mut cx, listener, is_welcome, id);
        }
        let session = Session {
            id,
            protocol: config.protocol,
            wire_protocol: self.backends[config.destination.backend].params_set[0].wire_protocol,
            database: Selected::NONE,
            authenticated: config.is_open(),
            profile: Profile::of_user(config.first_user()),
            wishes: Wishes::default(),
            since_us: now.as_micros() as i64,
        };
        config.clients += 1;
        self.metrics.add_pool(config.metrics, PoolCounter::ClientsAccepted, 1);
        let has_place = admission == Admission::Welcome;
        config.places_taken += u64::from(has_place);
        self.metrics.set_pool(config.metrics, PoolGauge::ClientConnections, config.places_taken);
        let lane_choice = self.clients_seen as u16;
        let destination = config.destination_of(session.user());
        let undecided = self.is_undecided(listener);
        let client = Client {
            has_place,
            destination,
            undecided,
            off_fast_path: undecided
                || self.redis_listeners[listener].holds_writes_back()
                || session.restricted_user().is_some(),
            ..Client::new(listener, lane_choice, session)
        };
        self.bufs.charge(client.session.profile_size());
        let (index, generation) = self.clients.insert(client);
        self.write_marks.forget(index);
        self.standpoints.forget(index);
        self.published.forget(index);
        let conn = ConnId::of_client(index, generation);
        self.leave_new(index);
        if destination != DestinationNumber::OWN {
            self.settle_there(index);
        }
        if self.clients[index].session.user().is_some()
            && let Some(text) = self.meter_new(index)
            && admission == Admission::Welcome
        {
            self.refuse_user(index, &text);
            return conn;
        }
        match admission {
            Admission::Welcome if !self.draining => self.throttle_new(index),
            Admission::Welcome => self.finish(index),
            Admission::Full => {
                let metrics = self.listeners[listener].metrics;
                self.metrics.add_pool(metrics, PoolCounter::ClientsRefused, 1);
                self.refuse(index);
            }
        }
        conn
    }

    /// A client connected, and is closed at once for want of descriptors. Returns what it is told.
    pub fn handle_refused(&mut self, listener: ListenerId) -> &'static [u8] {
        let Listener { protocol, metrics, .. } = self.listeners[listener];
        self.metrics.add_pool(metrics, PoolCounter::ClientsAccepted, 1);
        self.metrics.add_pool(metrics, PoolCounter::ClientsRefused, 1);
        refusal(protocol)
    }

    /// A client connected from where none may, and is closed at once. Returns what it is told.
    pub fn handle_denied(&mut self, listener: ListenerId) -> &'static [u8] {
        let metrics = self.listeners[listener].metrics;
        self.metrics.add_pool(metrics, PoolCounter::ClientsAccepted, 1);
        self.metrics.add_pool(metrics, PoolCounter::ClientsDenied, 1);
        self.refusal_of_source(listener)
    }

    /// What a client is told that comes from where none may.
    pub fn refusal_of_source(&self, listener: ListenerId) -> &'static [u8] {
        match self.listeners[listener].protocol {
            Protocol::Redis => b"-DENIED this gateway takes no clients from this address\r\n",
            Protocol::Memcached => {
                b"SERVER_ERROR this gateway takes no clients from this address\r\n"
            }
            Protocol::Tcp => b"",
        }
    }

    /// The connection asked for by [`Action::Connect`] is there.
    pub fn handle_connected(&mut self, conn: ConnId, now: Time) {
        self.now = now;
        if let Some(lane) = self.current_lane(conn) {
            self.lane_connected(lane);
        } else if conn.is_paired() {
            let (tcp, mut cx) = self.tcp();
            tcp.connected(&mut cx, conn);
        }
    }

    /// It is known of a client whose bytes pass through where it comes from, and it is secured if it is to be. Nothing
    /// was received from it before. Of other clients this changes nothing.
    pub fn handle_ready(&mut self, conn: ConnId, source: Option<Source>, now: Time) {
        if conn.is_paired() {
            self.now = now;
            let (tcp, mut cx) = self.tcp();
            tcp.ready(&mut cx, conn, source);
            self.throttle_new_passing(conn);
        }
    }

    /// Bytes arrived.
    #[inline(always)]
    pub fn handle_received(&mut self, conn: ConnId, bytes: &[u8], now: Time) {
        self.now = now;
        if conn.is_lane() {
            self.handle_lane_received(conn, bytes);
        } else {
            self.client_received(conn, bytes);
        }
        self.check_pressure();
    }

    /// As [`Engine::handle_received`], but takes the buffer, and leaves an empty one in its place,
    /// where that saves a copy: in a large request, or in the middle of a large reply.
    #[inline(always)]
    pub fn handle_received_buffer(&mut self, conn: ConnId, buffer: &mut Vec<u8>, now: Time) {
        self.now = now;
        if buffer.len() >= LARGE && self.take_buffer(conn, buffer) {
            self.check_pressure();
            return;
        }
        self.handle_received(conn, buffer, now);
    }

    /// Passes a buffer on whole, if its bytes are on their way through or are a large request's.
    /// Returns whether its bytes have been received.
    #[inline(never)]
    fn take_buffer(&mut self, conn: ConnId, buffer: &mut Vec<u8>) -> bool {
        if conn.is_paired() {
            let (tcp, mut cx) = self.tcp();
            tcp.received_buffer(&mut cx, conn, buffer);
            return true;
        }
        if conn.is_lane() {
            return self.current_lane(conn).is_some_and(|l| self.lane_received_buffer(l, buffer));
        }
        let index = conn.client();
        let Some(client) = self.clients.get(index, conn.generation()) else { return false };
        let (metrics, size) = (self.listeners[client.listener].metrics, buffer.len() as u64);
        let is_taken = match client.state {
            State::Uploading => {
                self.bufs.charge(buffer.capacity());
                self.upload_received(index, std::mem::take(buffer));
                true
            }
            State::Open => self.client_received_buffer(index, buffer),
            State::Closing => false,
        };
        // What is not taken is received, and counted, in the other way.
        if is_taken {
            self.metrics.add_pool(metrics, PoolCounter::ClientBytesReceived, size);
            if let Some(client) = self.clients.get_mut(index, conn.generation()) {
                client.totals.received += size;
            }
        }
        is_taken
    }

    /// An empty buffer of at least this capacity, one that was taken earlier if there is any.
    /// It is the caller's until [`Engine::handle_received_buffer`] takes it.
    pub fn buffer(&mut self, capacity: usize) -> Vec<u8> {
        let buffer = self.bufs.take_for_reading(capacity);
        self.bufs.discharge(buffer.capacity());
        buffer
    }

    /// The peer will send nothing more, but may still read.
    pub fn handle_read_closed(&mut self, conn: ConnId, now: Time) {
        self.now = now;
        if conn.is_paired() {
            let (tcp, mut cx) = self.tcp();
            tcp.read_closed(&mut cx, conn);
        } else if conn.is_lane() {
            if let Some(lane) = self.current_lane(conn) {
                self.lane_down(lane, Failure::Closed, Closed::ByUs);
            }
        } else if self.clients.is_current(conn.client(), conn.generation()) {
            let client = &mut self.clients[conn.client()];
            client.read_closed = true;
            if self.is_listened_to(conn.client()) {
                // As in Redis: whoever says no more is not kept waiting for.
                self.drop_client(conn.client(), Closed::ByUs);
                return;
            }
            let client = &self.clients[conn.client()];
            match client.state {
                State::Uploading => self.upload_broken(conn.client()),
                State::Open | State::Closing => self.close_if_finished(conn.client()),
            }
        }
    }

    /// The first `bytes` bytes of the connection's output are in the kernel's hands.
    #[inline(always)]
    pub fn handle_sent(&mut self, conn: ConnId, bytes: u64, now: Time) {
        self.now = now;
        if conn.is_lane() {
            self.handle_lane_sent(conn, bytes);
        } else {
            self.client_sent(conn, bytes);
        }
    }

    #[inline(never)]
    fn handle_lane_sent(&mut self, conn: ConnId, bytes: u64) {
        if let Some(lane) = self.current_lane(conn) {
            self.lane_sent(lane, bytes);
        } else if conn.is_paired() {
            self.paired_sent(conn, bytes);
        }
    }

    #[inline(never)]
    pub(crate) fn paired_sent(&mut self, conn: ConnId, bytes: u64) {
        let (tcp, mut cx) = self.tcp();
        tcp.sent(&mut cx, conn, bytes);
    }

    #[inline(never)]
    pub(crate) fn paired_received(&mut self, conn: ConnId, bytes: &[u8]) {
        let (tcp, mut cx) = self.tcp();
        tcp.received(&mut cx, conn, bytes);
    }

    #[inline(never)]
    fn handle_lane_received(&mut self, conn: ConnId, bytes: &[u8]) {
        let Some(lane) = self.current_lane(conn) else {
            if conn.is_paired() {
                self.paired_received(conn, bytes);
            }
            return;
        };
        match self.lanes[lane].paused {
            true => self.keep_for_later(lane, bytes),
            false => self.lane_received(lane, bytes),
        }
    }

    /// The connection is gone; the driver has forgotten it already.
    pub fn handle_closed(&mut self, conn: ConnId, reason: CloseReason, now: Time) {
        self.now = now;
        if conn.is_paired() {
            let (tcp, mut cx) = self.tcp();
            tcp.closed(&mut cx, conn, reason);
        } else if conn.is_lane() {
            if let Some(lane) = self.current_lane(conn) {
                self.lane_down(lane, reason.into(), Closed::ByPeer);
            }
        } else if self.clients.is_current(conn.client(), conn.generation()) {
            let client = &self.clients[conn.client()];
            let counter = match reason {
                CloseReason::Eof => PoolCounter::ClientEof,
                _ => PoolCounter::ClientErr,
            };
            self.metrics.add_pool(self.listeners[client.listener].metrics, counter, 1);
            self.drop_client(conn.client(), Closed::ByPeer);
        }
    }

    /// Counts what was seen of a client's connection beneath the engine.
    pub fn count_client(&mut self, conn: ConnId, counter: PoolCounter) {
        if let Some(session) = conn.is_paired().then(|| self.tcp.session(conn)).flatten() {
            let metrics = self.listeners[session.listener()].metrics;
            self.metrics.add_pool(metrics, counter, 1);
        }
        if !conn.is_lane() && self.clients.is_current(conn.client(), conn.generation()) {
            let listener = self.clients[conn.client()].listener;
            self.metrics.add_pool(self.listeners[listener].metrics, counter, 1);
        }
    }

    /// Counts what was seen of a connection to a server beneath the engine.
    pub fn count_server(&mut self, conn: ConnId, counter: ServerCounter) {
        if let Some((backend, server)) =
            conn.is_paired().then(|| self.tcp.server_of(conn)).flatten()
        {
            self.backends[backend].servers[server].count(&self.metrics, counter);
        }
        if let Some(lane) = conn.is_lane().then(|| self.current_lane(conn)).flatten() {
            let Lane { backend, server, .. } = self.lanes[lane];
            self.backends[backend].servers[server].count(&self.metrics, counter);
        }
    }

    /// Writes to several regions are counted there. Without it each one counts as crossed.
    pub fn set_passages(&mut self, passages: Passages) {
        self.passages = passages;
    }

    /// Workers tell each other there that keys are written. Without it no node keeps replies.
    pub fn set_generations(&mut self, generations: Generations) {
        self.caches.generations = generations;
    }

    /// Which keys are hot is known from there. Without it none is.
    pub fn set_hot_acts(&mut self, acts: HotActs) {
        self.caches.acts = acts;
    }

    /// Slow requests are shown from there. Without it there are none to show.
    pub fn set_slow_log(&mut self, ring: RequestRing) {
        self.observer.slow_log = ring;
    }

    /// What servers could not be told to forget goes there from now on. Without it nothing is kept.
    pub fn set_spool(&mut self, queue: Queue) {
        self.spooling.queue = Some(queue);
        self.spooling.announce(&self.backends);
    }

    pub fn has_spool(&self) -> bool {
        self.spooling.queue.is_some()
    }

    /// Time has passed: whatever is due happens.
    pub fn handle_timeout(&mut self, now: Time) {
        self.now = now;
        while let Some((at, timer)) = self.timers.pop_due(now) {
            match timer {
                Timer::Lane(lane) => {
                    // It may have been given up.
                    if self.lanes.get(lane).is_some_and(|lane| lane.armed == at) {
                        self.lane_timeout(lane);
                    }
                }
                Timer::Flow { flow, generation } => self.flow_timeout(flow, generation, at),
                Timer::Probe { backend, server } => {
                    if self.backends[backend].servers[server].probe_at == at {
                        self.probe(backend, server);
                    }
                }
                Timer::Change => {
                    self.is_watching = true;
                    self.maintain_draining();
                }
                // Otherwise it was armed for an earlier time since.
                Timer::Line if at == self.lines_due => self.maintain_waiters(),
                Timer::Line => {}
                Timer::Monitors => self.release_lines(),
                Timer::ClientPause => self.end_client_pauses(),
                Timer::Invalidations => self.maintain_invalidations(),
                Timer::SentOn => self.maintain_sent_on(),
                Timer::Copies => self.unlink_copies(),
                Timer::Spool => {
                    let Self { spooling, backends, metrics, timers, .. } = self;
                    spooling.maintain(backends, metrics, now, timers);
                }
                Timer::Slowed { client, generation } => {
                    self.end_slow_down(client, generation, at);
                }
                Timer::Expiry { client, generation } => self.expire(client, generation, at),
                Timer::UserLimits => self.release_waiting(at),
                Timer::Pairs => {
                    let (tcp, mut cx) = self.tcp();
                    tcp.timeout(&mut cx);
                }
                Timer::Housekeeping => {
                    self.allow_handoffs();
                    self.maintain_draining();
                    self.maintain_streaming_lanes();
                    self.maintain_worker_queries();
                    self.end_again();
                    self.maintain_feeds();
                    self.maintain_tracking();
                    self.maintain_trackers();
                    self.maintain_caches();
                    self.maintain_strained();
                    self.maintain_monitors();
                    self.maintain_sessions();
                    self.maintain_params();
                    self.maintain_moving_slots();
                    self.publish_users();
                    self.check_stall();
                    self.give_back();
                    self.timers.arm(now.plus_millis(HOUSEKEEPING_MS), Timer::Housekeeping);
                }
            }
        }
    }

    /// Lets go of what only a peak needed.
    fn give_back(&mut self) {
        self.bufs.trim();
        self.scratch.trim();
        self.miss_notes.trim(&self.requests);
        self.requests.shrink(&mut self.bufs);
        self.command_stats.shrink(self.requests.slots());
        self.clients.shrink();
        self.tcp.shrink();
        self.flows.shrink();
        self.hedges.shrink();
        self.redis_backends.iter_mut().for_each(|backend| backend.pubsub.topics.shrink());
        shrink(&mut self.unpublished_lanes);
        shrink(&mut self.resumable);
        self.work_budget.trim();
        self.shrink_lanes();
        for dirty in [&mut self.dirty_clients, &mut self.deferred_clients, &mut self.dirty_lanes] {
            dirty.shrink(QUEUE_KEPT);
        }
        if self.actions.capacity() > QUEUE_KEPT {
            self.actions.shrink_to(QUEUE_KEPT.max(2 * self.actions.len()));
        }
        for lane in &mut self.lanes {
            let batches = &mut lane.batches;
            if batches.capacity() > QUEUE_KEPT && batches.len() < batches.capacity() / 4 {
                batches.shrink_to(2 * batches.len());
            }
        }
        // A lane and a probe each have one deadline that counts; the others were replaced.
        if self.timers.len() > QUEUE_KEPT + 4 * self.lanes.len() {
            let (lanes, backends, flows) = (&self.lanes, &self.backends, &self.flows);
            let (clients, lines_due) = (&self.clients, self.lines_due);
            self.timers.retain(|at, timer| match timer {
                Timer::Lane(lane) => lanes.get(lane).is_some_and(|lane| lane.armed == at),
                Timer::Probe { backend, server } => {
                    backends[backend].servers[server].probe_at == at
                }
                Timer::Flow { flow, generation } => flows.wakes(flow, generation, at),
                Timer::Expiry { client, generation } => {
                    clients.is_current(client, generation)
                        && clients[client].session.expires_at() == Some(at)
                }
                Timer::Line => at == lines_due,
                Timer::Change
                | Timer::Monitors
                | Timer::ClientPause
                | Timer::Invalidations
                | Timer::SentOn
                | Timer::Copies
                | Timer::Spool
                | Timer::Slowed { .. }
                | Timer::UserLimits
                | Timer::Pairs
                | Timer::Housekeeping => true,
            });
        }
    }

    /// Bytes that went back to the allocator since the last call.
    pub fn take_released(&mut self) -> usize {
        self.bufs.take_released()
    }

    /// Stop gracefully: no request is taken any more, connections close as soon as what they wait
    /// for is written.
    pub fn handle_drain(&mut self, now: Time) {
        self.now = now;
        self.draining = true;
        let clients: Vec<ClientId> = self.clients.indices().collect();
        for index in clients {
            self.finish(index);
        }
        let (tcp, mut cx) = self.tcp();
        tcp.drain(&mut cx);
        self.hurry_invalidations(|_| true);
    }

    /// Whether a drain is complete.
    pub fn is_drained(&self) -> bool {
        self.draining && self.clients() == 0 && self.owes_nothing()
    }

    /// Whether nothing is under way, or on its way to the disk, that goes on without a client.
    pub fn owes_nothing(&self) -> bool {
        !self.invalidations.awaits_replies()
            && !self.flows.any_outlives_client()
            && self.spooling.queue.as_ref().is_none_or(Queue::is_written)
    }

    // Work.

    /// Ends a tick: clients that may go on do. Call it after the last event and before
    /// [`Engine::poll_action`].
    pub fn settle(&mut self, now: Time) {
        self.now = now;
        self.rest();
        if self.sent_on.has_ready() {
            self.send_ready();
        }
        self.requests.note_peak();
        self.publish_lanes();
        self.settle_pressure();
        if !self.resumable.is_empty() {
            self.resume_clients();
        }
        self.settle_work();
        if self.is_watching {
            self.watch_changes();
        }
        if self.moving.is_busy() {
            self.maintain_detached();
        }
        self.latency_batch.publish(&mut self.command_stats, &self.metrics);
        self.observer.tick(now);
        self.activity.tick(now);
        if self.clients.has_retired() {
            self.free_dropped();
        }
    }

    /// Lets those go on who may. What becomes resumable now is for the next tick, so that one tick
    /// stays bounded, and so are the others where some ask for much.
    #[inline(never)]
    fn resume_clients(&mut self) {
        let mut batch = std::mem::take(&mut self.resumable);
        let mut resumed = 0;
        while !self.has_overspent()
            && let Some(&conn) = batch.get(resumed)
        {
            resumed += 1;
            if self.clients.is_current(conn.client(), conn.generation()) {
                self.resume(conn.client());
            }
        }
        batch.drain(..resumed);
        batch.append(&mut self.resumable);
        self.resumable = batch;
    }

    /// When [`Engine::handle_timeout`] wants to be called; at once when clients may go on.
    pub fn poll_timeout(&self) -> Time {
        let is_idle =
            self.resumable.is_empty() && !self.has_put_off() && !self.moving.is_pressing();
        if is_idle { self.timers.next() } else { Time::ZERO }
    }

    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// A connection that got something to send since it was named last.
    pub fn poll_dirty(&mut self) -> Option<ConnId> {
        self.let_go();
        self.poll_dirty_lane().or_else(|| self.poll_dirty_client())
    }

    /// As [`Engine::poll_dirty`], for connections to servers only.
    #[inline]
    pub fn poll_dirty_lane(&mut self) -> Option<ConnId> {
        let conn = self.dirty_lanes.pop()?;
        if let Some(lane) = self.current_lane(conn) {
            let lane = &mut self.lanes[lane];
            lane.dirty = false;
            lane.close_gets(&mut self.bufs);
        }
        Some(conn)
    }

    /// Whether there is something to write that gains from company: requests, and replies to
    /// clients that wait for more of them.
    #[inline]
    pub fn has_held_back(&self) -> bool {
        !self.dirty_lanes.is_empty() || !self.deferred_clients.is_empty()
    }

    /// Names the clients among them with the others from now on.
    #[inline]
    pub fn let_go(&mut self) {
        self.dirty_clients.take_over(&mut self.deferred_clients);
    }

    /// As [`Engine::poll_dirty`], for connections of clients only.
    #[inline]
    pub fn poll_dirty_client(&mut self) -> Option<ConnId> {
        let conn = self.dirty_clients.pop()?;
        if let Some(client) = self.clients.get_mut(conn.client(), conn.generation()) {
            client.dirty = Dirty::No;
            let (has_modes, is_empty) = (!client.modes.are_none(), client.output.is_empty());
            if has_modes {
                self.strip_output(conn.client());
            }
            if is_empty {
                // What was answered wanted no reply: there will be no `handle_sent`.
                self.close_if_finished(conn.client());
            }
        } else if conn.is_paired() {
            self.tcp.unmark(conn);
        }
        Some(conn)
    }

    /// Fills `slices` with the start of what is to be written; returns how many were filled, 0
    /// when there is nothing.
    pub fn output<'a>(&'a self, conn: ConnId, slices: &mut [IoSlice<'a>]) -> usize {
        match self.ready(conn) {
            Some(ready) => {
                self.writable(conn).map_or(0, |output| output.slices_within(ready, slices))
            }
            None => self.writable(conn).map_or(0, |output| output.slices(slices)),
        }
    }

    /// The first piece of what is to be written, empty if there is nothing, and whether there is
    /// more behind it.
    #[inline(always)]
    pub fn front(&self, conn: ConnId) -> (&[u8], bool) {
        match self.ready(conn) {
            Some(ready) => {
                self.writable(conn).map_or((&[], false), |output| output.front_within(ready))
            }
            None => self.writable(conn).map_or((&[], false), Output::front),
        }
    }

    /// How much of what is to be written to a client may be written, if that is not all.
    #[inline(always)]
    fn ready(&self, conn: ConnId) -> Option<u64> {
        if conn.is_lane() {
            return None;
        }
        let client = self.clients.get(conn.client(), conn.generation())?;
        if client.modes.are_none() {
            return None;
        }
        client.modes.stripping.as_ref().map(|stripping| stripping.ready)
    }

    #[inline(always)]
    fn writable(&self, conn: ConnId) -> Option<&Output> {
        if conn.is_lane() {
            match self.current_lane(conn) {
                Some(lane) => self.lanes[lane].writable(),
                None => self.paired_output(conn),
            }
        } else {
            match self.clients.get(conn.client(), conn.generation()) {
                Some(client) => Some(&client.output),
                None => self.paired_output(conn),
            }
        }
    }

    #[inline(never)]
    fn paired_output(&self, conn: ConnId) -> Option<&Output> {
        conn.is_paired().then(|| self.tcp.output(conn)).flatten()
    }

    /// What is configured of a backend that an action names.
    pub fn backend_config(&self, backend: BackendId) -> &snapshot::Pool {
        &self.backends[backend].config
    }

    /// The listener of a client that is there.
    pub fn listener_of_client(&self, conn: ConnId) -> Option<ListenerId> {
        if conn.is_paired() {
            return self.tcp.session(conn).map(|session| session.listener());
        }
        let client = self.clients.get(conn.client(), conn.generation())?;
        (!conn.is_lane()).then_some(client.listener)
    }

    /// The server that a connection leads to.
    pub fn server_of_conn(&self, conn: ConnId) -> Option<(BackendId, ServerId)> {
        if conn.is_paired() {
            return self.tcp.server_of(conn);
        }
        let lane = &self.lanes[self.current_lane(conn)?];
        conn.is_lane().then_some((lane.backend, lane.server))
    }

    /// What is configured of a listener that an action names.
    pub fn listener_config(&self, listener: ListenerId) -> &snapshot::Pool {
        &self.listeners[listener].config
    }

    /// What the pool of that listener is called, if there is one of that number.
    pub fn listener_name(&self, listener: ListenerId) -> Option<&str> {
        self.listeners.get(listener).map(|listener| listener.config.name.as_str())
    }

    /// All listeners there are.
    pub fn listeners(&self) -> impl Iterator<Item = ListenerId> + use<> {
        self.listeners.ids()
    }

    /// That of the pool in use of that name, or of one that was removed and has clients still.
    pub fn listener_named(&self, name: &str) -> Option<ListenerId> {
        let mut serving = self.listeners.entries().filter(|(_, listener)| listener.serves());
        serving.find(|(_, listener)| listener.config.name == name).map(|(id, _)| id)
    }

    /// Where its clients are counted over all workers, as [`PoolState`](crate::PoolState) said.
    pub fn quota(&self, listener: ListenerId) -> u32 {
        self.listeners[listener].quota
    }

    /// The quota of a client that was welcome and is gone; one that was exported is not.
    pub fn poll_departed(&mut self) -> Option<u32> {
        self.departed.pop()
    }

    /// Clients connected, of all pools.
    pub fn clients(&self) -> usize {
        self.clients.len() + self.tcp.len()
    }

    /// Files that these take: whose bytes pass through has two.
    pub fn files_of_clients(&self) -> u64 {
        (self.clients.len() + 2 * self.tcp.len()) as u64
    }

    /// Whether the client is still there.
    pub fn has_client(&self, conn: ConnId) -> bool {
        !conn.is_lane() && self.clients.is_current(conn.client(), conn.generation())
            || conn.is_paired() && self.tcp.session(conn).is_some()
    }

    /// Whether the client is in the middle of a request: it may wait for the rest to be wanted.
    pub fn is_amid_request(&self, conn: ConnId) -> bool {
        !conn.is_lane()
            && self
                .clients
                .get(conn.client(), conn.generation())
                .is_some_and(|client| client.parser.is_some() || !client.input.is_empty())
    }

    /// Clients of the listener here.
    pub fn clients_of(&self, listener: ListenerId) -> u64 {
        self.listeners[listener].clients
    }

    /// All of them.
    pub fn clients_at(&self, listener: ListenerId) -> Vec<ConnId> {
        let clients = self.clients.indices();
        let at = clients.filter(|&index| self.clients[index].listener == listener);
        at.map(|index| self.client_conn(index)).collect()
    }

    /// Closes a client once it has what it asked for.
    pub fn dismiss(&mut self, conn: ConnId, now: Time) {
        self.now = now;
        if conn.is_paired() {
            let (tcp, mut cx) = self.tcp();
            return tcp.dismiss(&mut cx, conn);
        }
        let is_there = self.clients.is_current(conn.client(), conn.generation());
        if !conn.is_lane() && is_there && self.clients[conn.client()].state != State::Closing {
            self.finish(conn.client());
        }
    }

    /// Who asks, and who waits.
    #[inline]
    pub fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Clients that have come since the start.
    #[inline]
    pub fn clients_seen(&self) -> u64 {
        self.clients_seen
    }

    /// What has been answered since the start, up to the last [`Engine::settle`].
    #[inline]
    pub fn answered(&self) -> Answered {
        self.latency_batch.total
    }

    /// Requests that are not answered yet, of all pools.
    pub fn requests_pending(&self) -> usize {
        self.requests.len()
    }

    /// What is believed of a connection to a server; `None` when it is gone.
    pub fn lane_state(&self, conn: ConnId) -> Option<LaneState> {
        let lane = conn.is_lane().then(|| self.lane_elsewhere(conn))??;
        Some(self.lane(lane).state())
    }

    /// What the server is to say next if that is a seal: for tests, which play servers.
    pub fn seal_awaited(&self, conn: ConnId) -> Option<Vec<u8>> {
        let lane = self.lane(self.lane_elsewhere(conn)?);
        match self.requests[(lane.in_flight > 0).then_some(lane.head)?].role {
            Role::Own(Own::Seal(seal)) => Some(seal.awaited()),
            _ => None,
        }
    }

    // Sessions whose bytes pass through.

    /// They, and what they need of others.
    pub(crate) fn tcp(&mut self) -> (&mut Tcp, tcp::Context<'_>) {
        let cx = tcp::Context {
            now: self.now,
            rank: self.rank,
            draining: self.draining,
            listeners: &mut self.listeners,
            backends: &mut self.backends,
            metrics: &self.metrics,
            timers: &mut self.timers,
            actions: &mut self.actions,
            dirty: &mut self.dirty_clients,
            bufs: &mut self.bufs,
            rng: &mut self.rng,
            departed: &mut self.departed,
        };
        (&mut self.tcp, cx)
    }

    pub(crate) fn tie_pair(&mut self, conn: ConnId, is_tied: bool) {
        let (tcp, mut cx) = self.tcp();
        tcp.set_tied(&mut cx, conn, is_tied);
    }

    pub(crate) fn leave_pairs(&mut self) {
        let (tcp, mut cx) = self.tcp();
        tcp.leave_all(&mut cx);
    }

    pub(crate) fn stay_pairs(&mut self) {
        self.tcp.stay_all();
    }

    pub(crate) fn close_pairs_handed_off(&mut self) {
        let (tcp, mut cx) = self.tcp();
        tcp.close_handed_off(&mut cx);
    }

    /// The other connection of a session whose bytes pass through.
    pub fn partner(&self, conn: ConnId) -> Option<ConnId> {
        conn.is_paired().then(|| self.tcp.partner(conn)).flatten()
    }

    /// As [`Engine::export`], of a session whose bytes pass through, of which the driver has let go of both connections.
    pub fn export_pair(&mut self, conn: ConnId, now: Time) -> Option<(ListenerId, PairParts)> {
        self.now = now;
        let (tcp, mut cx) = self.tcp();
        tcp.export(&mut cx, conn)
    }

    /// As [`Engine::handle_adopted`], of such a session. Returns the names of the client's connection and of the
    /// server's.
    pub fn handle_adopted_pair(
        &mut self,
        listener: ListenerId,
        parts: PairParts,
        now: Time,
    ) -> (ConnId, ConnId) {
        self.now = now;
        self.clients_seen += 1;
        let (tcp, mut cx) = self.tcp();
        let conns = tcp.adopted(&mut cx, listener, parts);
        self.throttle_new_passing(conns.0);
        conns
    }

    // Shared by the parts.

    #[inline]
    fn current_lane(&self, conn: ConnId) -> Option<LaneId> {
        let at = LaneId::new(conn.slot());
        let lane = self.lanes.get(at)?;
        if lane.conn == conn {
            return lane.has_connection().then_some(at);
        }
        self.lane_elsewhere(conn)
    }

    pub(crate) fn client_conn(&self, client: ClientId) -> ConnId {
        ConnId::of_client(client, self.clients.generation(client))
    }

    pub(crate) fn lane_conn(&self, lane: LaneId) -> ConnId {
        self.lanes[lane].conn
    }

    #[inline]
    pub(crate) fn mark_client(&mut self, index: ClientId) {
        let conn = self.client_conn(index);
        self.clients[index].mark(conn, &mut self.dirty_clients, &mut self.deferred_clients);
    }

    #[inline]
    pub(crate) fn mark_lane(&mut self, index: LaneId) {
        self.lanes[index].mark(&mut self.dirty_lanes);
    }

    pub(crate) fn protocol_of(&self, client: ClientId) -> Protocol {
        self.clients[client].session.protocol
    }

    fn refuse_user(&mut self, client: ClientId, text: &str) {
        let text = match self.protocol_of(client) {
            Protocol::Redis => format!("-ERR {text}\r\n"),
            Protocol::Memcached => format!("SERVER_ERROR {text}\r\n"),
            Protocol::Tcp => String::new(),
        };
        self.answer(client, |out| out.extend_from_slice(text.as_bytes()));
        self.clients[client].state = State::Closing;
    }

    fn refuse(&mut self, client: ClientId) {
        let text = refusal(self.protocol_of(client));
        self.answer(client, |out| out.extend_from_slice(text));
        self.clients[client].state = State::Closing;
    }
}

/// What a client is told that finds no place.
fn refusal(protocol: Protocol) -> &'static [u8] {
    match protocol {
        Protocol::Redis => b"-ERR max number of clients reached\r\n",
        Protocol::Memcached => b"ERROR Too many open connections\r\n",
        Protocol::Tcp => b"",
    }
}

/// Who ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// The driver reported it and has closed the descriptor.
    ByPeer,
    /// The engine decided: the driver is told.
    ByUs,
}

/// This worker's share of a server's connections: they are dealt out evenly, and each worker has
/// at least one.
pub(crate) fn lanes_here(connections: u32, slot: u32, workers: u32) -> u32 {
    let workers = workers.max(1);
    let share = connections / workers + u32::from(slot < connections % workers);
    share.max(1)
}

impl Engine {
    /// What the client's port promises.
    #[inline(always)]
    pub(crate) fn listener_of(&self, client: ClientId) -> &Listener {
        &self.listeners[self.clients[client].listener]
    }

    /// Where the client's requests go.
    #[inline(always)]
    pub(crate) fn destination_of(&self, client: ClientId) -> &Destination {
        let Client { listener, destination, .. } = self.clients[client];
        self.listeners[listener].destination(destination)
    }

    /// Where the client's request at hand goes.
    #[inline(always)]
    pub(crate) fn backend_of(&self, client: ClientId) -> BackendId {
        let destination = self.destination_of(client);
        match destination.route {
            None => destination.backend,
            Some(_) => self.standpoints.of(client).unwrap_or(destination.backend),
        }
    }

    /// Where what the client asks goes that has no key.
    #[inline]
    pub(crate) fn keyless_backend(&self, client: ClientId) -> BackendId {
        self.destination_of(client).backend
    }

    /// Those whose requests go to the backend.
    pub(crate) fn listeners_before(&self, backend: BackendId) -> impl Iterator<Item = ListenerId> {
        self.listeners.entries().filter(move |(_, it)| it.leads_to(backend)).map(|(id, _)| id)
    }

    /// Dispatches again for the listener's clients, unless they are held for another reason; or who
    /// is told of their requests has changed.
    pub(crate) fn update_held(&mut self, listener: ListenerId) {
        let features = &self.redis_listeners[listener];
        let state = &mut self.listeners[listener];
        let is_held = |backend| self.backends.get(backend).is_some_and(Backend::is_held);
        let is_cached = |backend| self.backends.get(backend).is_some_and(|it| it.is_cached);
        let (waits, is_on) = (features.holds_all_back(), features.watch.is_on());
        state.set_off_fast_path(waits, is_on, is_held, is_cached);
    }

    /// Whether the backend is held has changed.
    pub(crate) fn update_held_before(&mut self, backend: BackendId) {
        for listener in self.listeners_before(backend).collect::<Vec<ListenerId>>() {
            self.update_held(listener);
        }
    }

    pub(crate) fn count_forward_error(&self, backend: BackendId) {
        self.metrics.add_pool(self.backends[backend].metrics, PoolCounter::ForwardError, 1);
    }
}

#[cfg(test)]
mod tests {
    use cashew_config::Context;

    use super::*;
    use crate::base::id::ServerId;

    /// An engine whose first listener has the second backend, and the other way round.
    fn crossed() -> Engine {
        let text = "global: {worker_processes: 1}
pools:
  a: {redis: true, listen: 127.0.0.1:1, servers: ['h:1:1']}
  b: {redis: true, listen: 127.0.0.1:2, servers: ['h:2:1', 'h:3:1']}";
        let snapshot = match cashew_config::parse("f", text, &Context::of_system()) {
            Ok(loaded) => loaded.snapshot,
            Err(errors) => panic!("{errors}"),
        };
        let mut engine = Engine::new(Setup {
            plan: Plan::whole(&snapshot, 0, 1),
            metrics: Writer::in_memory(&snapshot),
            seed: 1,
            slot: 0,
            identity: Identity { version: "0", process_id: 1 },
            now: Time::ZERO,
        });
        for (listener, backend) in engine.listeners.iter_mut().zip([1, 0]) {
            listener.destination.backend = BackendId::new(backend);
        }
        engine
    }

    fn connects(engine: &mut Engine) -> Vec<(ConnId, BackendId, ServerId)> {
        let actions = std::iter::from_fn(|| engine.poll_action());
        let connects = actions.filter_map(|action| match action {
            Action::Connect { conn, backend, server } => Some((conn, backend, server)),
            _ => None,
        });
        connects.collect()
    }

    fn output(engine: &Engine, conn: ConnId) -> &str {
        std::str::from_utf8(engine.front(conn).0).unwrap()
    }

    #[test]
    fn requests_go_to_the_backend_of_their_listener_whatever_its_number() {
        let (mut engine, now) = (crossed(), Time::ZERO);
        let [one, other] = [0, 1].map(ListenerId::new);
        let client = engine.handle_accepted(one, Admission::Welcome, 1, now);
        let get = b"*2\r\n$3\r\nGET\r\n$1\r\nb\r\n";
        engine.handle_received(client, get, now);
        engine.settle(now);
        let [(lane, backend, _)] = connects(&mut engine)[..] else { panic!("one server is asked") };
        assert_eq!(backend, BackendId::new(1));
        engine.handle_connected(lane, now);
        engine.settle(now);
        assert_eq!(output(&engine, lane).as_bytes(), get);
        engine.handle_sent(lane, get.len() as u64, now);

        // A hold of the backend holds its listener's clients, and nobody else.
        engine.handle_hold(backend, 1, 1000, now);
        assert!(
            engine.listeners[one].destination.held && !engine.listeners[other].destination.held
        );
        engine.handle_received(client, get, now);
        engine.handle_received(lane, b"$1\r\n1\r\n", now);
        engine.settle(now);
        assert_eq!((output(&engine, client), output(&engine, lane)), ("$1\r\n1\r\n", ""));
        engine.handle_release(backend, 1, vec![true, true].into(), now, 0);
        engine.settle(now);
        assert_eq!(output(&engine, lane).as_bytes(), get);

        engine.handle_closed(client, CloseReason::Eof, now);
        assert_eq!((engine.clients_of(one), engine.clients_of(other)), (0, 0));
    }

    #[test]
    fn a_lease_is_of_a_server_of_its_backend() {
        let (mut engine, now) = (crossed(), Time::ZERO);
        let one = ListenerId::new(0);
        let conn = engine.handle_accepted(one, Admission::Welcome, 1, now);
        engine.handle_received(conn, b"*2\r\n$5\r\nWATCH\r\n$1\r\na\r\n", now);
        engine.settle(now);
        let client = conn.client();
        let servers = engine.backends[BackendId::new(1)].servers.ids();
        let leased: Vec<ServerId> =
            servers.filter(|&server| engine.leased(client, server).is_some()).collect();
        assert_eq!(leased.len(), 1, "the client watches a key");
        // The other backend has a server of the same number, or not: neither is leased.
        engine.listeners[one].destination.backend = BackendId::new(0);
        assert_eq!(engine.leased(client, leased[0]), None);
    }

    #[test]
    fn connections_are_dealt_to_workers_and_none_goes_without() {
        let deal = |connections, workers| -> Vec<u32> {
            (0..workers).map(|slot| lanes_here(connections, slot, workers)).collect()
        };
        assert_eq!(deal(1, 4), [1, 1, 1, 1]);
        assert_eq!(deal(6, 4), [2, 2, 1, 1]);
        assert_eq!(deal(8, 4), [2, 2, 2, 2]);
        assert_eq!(deal(3, 0).len(), 0);
        assert_eq!(lanes_here(3, 0, 0), 3);
    }
}
