//! An engine with a model of its driver and its worker's loop.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::rc::Rc;

use cashew_config::Snapshot;
use cashew_config::snapshot::{Protocol, Topology};
use cashew_engine::{
    Action, Admission, BackendId, CloseReason, ConnId, Engine, Export, Identity, ListenerId, Place,
    Plan, Rest, ServerId, Setup,
};
use cashew_metrics::{PoolGauge, ServerGauge, Writer};

use crate::clock::{Clock, Event};
use crate::coordinator::{Answer, Order, Proposal};
use crate::moves::Leave;
use crate::network::{Peer, Side, piece};
use crate::scenario::{pool_id, server_id};
use crate::world::Fabric;

/// The most bytes of one read.
const READ_SIZE: usize = 64 * 1024;
/// The most bytes that a driver has already read when it is told to pause.
const LATE_MAX: usize = 640 * 1024;
/// The most slices of one write.
const SLICES_MAX: usize = 8;

/// The events of one wake-up.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    Accept { conn: u32, pool: u32, admission: Admission },
    Connected { token: u64, conn: u32 },
    Failed { token: u64, why: CloseReason },
    Readable { conn: u32 },
    Writable { conn: u32 },
    Reset { conn: u32 },
    Obey(Order),
    Drain,
    Leave(Leave),
    Detached { token: u64 },
    Adopt { conn: u32, export: Box<Export> },
}

/// What a gateway wants from the world. Pools and servers are given by their places in the
/// universe.
#[derive(Clone, Debug)]
pub(crate) enum Wish {
    Connect {
        token: u64,
        pool: u32,
        server: u32,
    },
    Held {
        pool: u32,
        version: u64,
    },
    Answer {
        epoch: u64,
        answer: Answer,
    },
    Eject {
        pool: u32,
        server: u32,
    },
    Readmit {
        pool: u32,
        server: u32,
    },
    HandOver {
        conn: u32,
        export: Box<Export>,
    },
    /// The map of the cluster may be old.
    Doubt,
}

pub(crate) struct Gateway {
    pub(crate) id: u32,
    pub(crate) engine: Engine,
    metrics: Writer,
    /// The current one.
    pub(crate) snapshot: Snapshot,
    prepared: Option<Rc<Proposal>>,
    /// When a pause has lasted long enough.
    paused_until: u64,
    /// Requests in flight of paused pools.
    unfinished: u64,
    pub(crate) wishes: Vec<Wish>,
    pub(crate) sockets: BTreeMap<u64, Socket>,
    inbox: VecDeque<Input>,
    /// When the next tick is planned; later ones are stale.
    tick_at: u64,
    /// Tokens of closed connections.
    stale: VecDeque<u64>,
}

/// How many closed connections are remembered.
const STALE_MAX: usize = 8;

pub(crate) struct Socket {
    /// `None` while connecting.
    pub(crate) conn: Option<u32>,
    paused: bool,
    /// While it is paused: how many bytes have been read before and are still to be reported.
    late: usize,
    /// Fewer bytes are not read, unless no more can come.
    low_water: usize,
    write_blocked: bool,
    /// The engine knows that the peer sends nothing more.
    ended: bool,
    /// Being detached: it may be read, but not written.
    pub(crate) detaching: bool,
}

impl Socket {
    pub(crate) fn of(conn: u32) -> Self {
        Self {
            conn: Some(conn),
            paused: false,
            late: 0,
            low_water: 1,
            write_blocked: false,
            ended: false,
            detaching: false,
        }
    }
}

impl Gateway {
    pub(crate) fn new(id: u32, count: u32, snapshot: &Snapshot, fabric: &mut Fabric) -> Self {
        let metrics = Writer::in_memory(snapshot);
        let engine = Engine::new(Setup {
            plan: Plan::whole(snapshot, id, count),
            metrics: metrics.clone(),
            seed: fabric.random.next(),
            slot: id,
            identity: Identity { version: "0.0.0", process_id: 1 },
            now: fabric.clock.time(),
        });
        let mut gateway = Self {
            id,
            engine,
            metrics,
            snapshot: snapshot.clone(),
            prepared: None,
            paused_until: 0,
            unfinished: 0,
            wishes: Vec::new(),
            sockets: BTreeMap::new(),
            inbox: VecDeque::new(),
            tick_at: u64::MAX,
            stale: VecDeque::new(),
        };
        gateway.wake(0, &mut fabric.clock);
        gateway
    }

    pub(crate) fn push(&mut self, input: Input, fabric: &mut Fabric) {
        self.inbox.push_back(input);
        self.plan_tick(fabric);
    }

    /// As [`Gateway::push`], before all pending inputs.
    pub(crate) fn push_first(&mut self, input: Input, fabric: &mut Fabric) {
        self.inbox.push_front(input);
        self.plan_tick(fabric);
    }

    fn plan_tick(&mut self, fabric: &mut Fabric) {
        let at = fabric.clock.now() + fabric.random.below(fabric.network.tick_max_us());
        self.wake(at, &mut fabric.clock);
    }

    pub(crate) fn is_connecting(&self, token: u64) -> bool {
        self.sockets.get(&token).is_some_and(|socket| socket.conn.is_none())
    }

    fn wake(&mut self, at: u64, clock: &mut Clock) {
        if at < self.tick_at {
            self.tick_at = at;
            clock.plan(at, Event::Tick { gateway: self.id });
        }
    }

    /// One tick of the loop, in the order of the worker's. Returns what the world has to do.
    pub(crate) fn tick(&mut self, fabric: &mut Fabric) -> Vec<Wish> {
        if self.tick_at != fabric.clock.now() {
            return Vec::new();
        }
        self.tick_at = u64::MAX;
        for input in std::mem::take(&mut self.inbox) {
            self.take(input, fabric);
            // After much input, some output is written before the rest is read.
            if fabric.random.percent(2) {
                self.act(fabric);
                self.send_all(fabric);
            }
        }
        if fabric.random.percent(2) {
            self.report_stale(fabric);
        }
        let now = fabric.clock.time();
        if self.engine.poll_timeout() <= now {
            self.engine.handle_timeout(now);
        }
        self.engine.settle(now);
        self.act(fabric);
        self.send_all(fabric);
        // Whoever drives the engine takes them; here nobody shows them.
        drop(self.engine.take_sightings(now));
        drop(self.engine.take_audited());
        self.act(fabric);
        self.check_bounds(fabric);
        let next = Clock::instant(self.engine.poll_timeout()).max(fabric.clock.now() + 10);
        self.wake(next, &mut fabric.clock);
        std::mem::take(&mut self.wishes)
    }

    fn send_all(&mut self, fabric: &mut Fabric) {
        while let Some(conn) = self.engine.poll_dirty() {
            self.send(conn.token(), fabric);
        }
    }

    /// The engine's token of a connection; 0 if another gateway has it by now.
    fn token_of(&self, conn: u32, fabric: &Fabric) -> u64 {
        let conn = fabric.network.conn(conn);
        if conn.gateway == self.id { conn.token } else { 0 }
    }

    /// Reports an event of a closed connection, which the engine must ignore.
    fn report_stale(&mut self, fabric: &mut Fabric) {
        if self.stale.is_empty() {
            return;
        }
        let at = fabric.random.below(self.stale.len() as u64) as usize;
        let (conn, now) = (ConnId::from_token(self.stale[at]), fabric.clock.time());
        match fabric.random.below(5) {
            0 => self.engine.handle_received(conn, b"+STALE\r\n", now),
            1 => self.engine.handle_read_closed(conn, now),
            2 => self.engine.handle_closed(conn, CloseReason::Reset, now),
            3 => self.engine.handle_connected(conn, now),
            _ => self.engine.handle_sent(conn, 1, now),
        }
    }

    /// Forgets a connection. Its token may appear again in stale events.
    pub(crate) fn remove(&mut self, token: u64) -> Option<Socket> {
        let socket = self.sockets.remove(&token)?;
        if self.stale.len() == STALE_MAX {
            self.stale.pop_front();
        }
        self.stale.push_back(token);
        Some(socket)
    }

    fn take(&mut self, input: Input, fabric: &mut Fabric) {
        let now = fabric.clock.time();
        match input {
            Input::Accept { conn, pool, admission } => {
                let place = self.snapshot.pools.iter().position(|other| pool_id(other) == pool);
                let Some(pool) = place else {
                    // Nobody listens there any more.
                    self.close(conn, fabric);
                    return;
                };
                let id = u64::from(conn) + 1;
                let token = self
                    .engine
                    .handle_accepted(ListenerId::new(pool as u32), admission, id, now)
                    .token();
                fabric.network.name(conn, token);
                assert!(
                    self.sockets.insert(token, Socket::of(conn)).is_none(),
                    "a token names two"
                );
                self.read(conn, fabric);
            }
            Input::Connected { token, conn } => {
                let Some(socket) = self.sockets.get_mut(&token) else {
                    // It was given up meanwhile.
                    let Fabric { network, clock, random, .. } = fabric;
                    network.close(conn, Side::Gateway, clock, random);
                    return;
                };
                socket.conn = Some(conn);
                fabric.network.name(conn, token);
                self.engine.handle_connected(ConnId::from_token(token), now);
                self.read(conn, fabric);
            }
            Input::Failed { token, why } => {
                if self.remove(token).is_some() {
                    self.engine.handle_closed(ConnId::from_token(token), why, now);
                }
            }
            Input::Readable { conn } => self.read(conn, fabric),
            Input::Writable { conn } => {
                let token = self.token_of(conn, fabric);
                if let Some(socket) = self.sockets.get_mut(&token)
                    && std::mem::take(&mut socket.write_blocked)
                {
                    self.send(token, fabric);
                }
            }
            Input::Reset { conn } => {
                let token = self.token_of(conn, fabric);
                if self.remove(token).is_some() {
                    let reason = CloseReason::Reset;
                    self.engine.handle_closed(ConnId::from_token(token), reason, now);
                }
            }
            Input::Obey(order) => self.obey(order, fabric),
            Input::Drain => {
                fabric.oracle.draining(self.id);
                self.engine.handle_drain(now);
            }
            Input::Leave(leave) => self.leave(leave, fabric),
            Input::Detached { token } => self.detached(token, fabric),
            Input::Adopt { conn, export } => self.adopt(conn, export, fabric),
        }
    }

    fn obey(&mut self, order: Order, fabric: &mut Fabric) {
        let (now, at) = (fabric.clock.time(), fabric.clock.now());
        let id = u64::from(self.id);
        match order {
            Order::Hold { pool, version, drain_ms } => {
                fabric.trace.note(at, "gateway is to hold", [id, pool.into(), version]);
                self.engine.handle_hold(BackendId::new(pool), version, drain_ms, now);
            }
            Order::Release { pool, version, topology } => {
                fabric.trace.note(at, "gateway is to release", [id, pool.into(), version]);
                let config = &self.snapshot.pools[pool as usize];
                if fabric.oracle.rings.released(config, self.id, version, &topology, at) {
                    fabric.oracle.cut_short(self.id, at);
                }
                self.engine.handle_release(BackendId::new(pool), version, topology, now, at);
            }
            Order::Prepare(proposal) => {
                let Proposal { snapshot, states, workers, refused_by } = &*proposal;
                let epoch = snapshot.epoch;
                fabric.trace.note(at, "gateway is to prepare", [id, epoch, 0]);
                if *refused_by == Some(self.id) {
                    self.wishes.push(Wish::Answer { epoch, answer: Answer::Refused });
                    return;
                }
                let plan = Plan::new(snapshot, states, self.id, *workers);
                self.engine.handle_prepare(plan, now);
                self.prepared = Some(proposal);
            }
            Order::Pause { drain_ms } => {
                fabric.trace.note(at, "gateway is to pause", [id, drain_ms, 0]);
                self.paused_until = at + drain_ms * 1000;
                self.engine.handle_pause(drain_ms, now);
            }
            Order::Commit => self.commit(fabric),
            Order::Abort => {
                fabric.trace.note(at, "gateway is to abort", [id, 0, 0]);
                self.prepared = None;
                self.engine.handle_abort(now);
                for pool in &self.snapshot.pools {
                    fabric.oracle.rings.resumed(pool_id(pool), self.id, at);
                }
            }
        }
    }

    fn commit(&mut self, fabric: &mut Fabric) {
        let (now, at) = (fabric.clock.time(), fabric.clock.now());
        let proposal = self.prepared.take().expect("an epoch is prepared");
        let Proposal { snapshot, states, .. } = &*proposal;
        let numbers = [u64::from(self.id), snapshot.epoch, self.unfinished];
        fabric.trace.note(at, "gateway commits", numbers);
        if self.unfinished > 0 {
            fabric.oracle.cut_short(self.id, at);
        }
        for pool in &self.snapshot.pools {
            let id = pool_id(pool);
            if pool.is_cluster() {
                fabric.oracle.nodes_left(pool, snapshot.pools.iter(), at);
            }
            if snapshot.pools.iter().all(|other| pool_id(other) != id) {
                fabric.oracle.pool_removed(id, self.id);
                fabric.oracle.rings.resumed(id, self.id, at);
            }
        }
        for (pool, state) in snapshot.pools.iter().zip(states) {
            let version = state.ring_version;
            let moves = fabric.oracle.rings.released(pool, self.id, version, &state.topology, at);
            // What was in the middle of a transaction there ends.
            if moves && matches!(pool.topology, Topology::Groups(_)) {
                fabric.oracle.cut_short(self.id, at);
            }
        }
        self.metrics = Writer::in_memory(snapshot);
        self.engine.handle_commit(self.metrics.clone(), now);
        self.snapshot = snapshot.clone();
    }

    /// The place of a pool and its server in the universe.
    fn place(&self, backend: BackendId, server: ServerId) -> (u32, u32) {
        let config = self.engine.backend_config(backend);
        (pool_id(config), server_id(&config.servers[server.index()]))
    }

    /// One read, of any size.
    pub(crate) fn read(&mut self, conn: u32, fabric: &mut Fabric) {
        let now = fabric.clock.time();
        let token = self.token_of(conn, fabric);
        let Some(socket) = self.sockets.get_mut(&token) else { return };
        let is_paused = socket.paused && !socket.detaching;
        if (is_paused && socket.late == 0) || fabric.network.is_reset(conn, Side::Gateway) {
            return;
        }
        let ready = fabric.network.readable(conn, Side::Gateway);
        if ready < socket.low_water && !fabric.network.is_complete(conn, Side::Gateway) {
            return;
        }
        let ready = ready.min(READ_SIZE).min(if is_paused { socket.late } else { usize::MAX });
        let max = piece(ready, fabric.cuts, &mut fabric.random);
        let bytes = fabric.network.read(conn, Side::Gateway, max, &mut fabric.clock);
        let id = ConnId::from_token(token);
        if !bytes.is_empty() {
            socket.late = socket.late.saturating_sub(bytes.len());
            let at = fabric.clock.now();
            let numbers = [u64::from(self.id), u64::from(conn), 0];
            fabric.trace.quote(at, "gateway reads", numbers, &bytes);
            if let Peer::Client(client) = fabric.network.conn(conn).peer {
                fabric.oracle.read(client, bytes.len(), at);
            }
            if fabric.network.readable(conn, Side::Gateway) > 0
                || fabric.network.at_end(conn, Side::Gateway)
            {
                self.push(Input::Readable { conn }, fabric);
            }
            if fabric.has_surprises
                && let Peer::Server(_) = fabric.network.conn(conn).peer
            {
                fabric.wire_received(conn, &bytes);
            }
            // Drivers pass what they read in a buffer that may be larger.
            let mut buffer = Vec::with_capacity(bytes.len() * fabric.random.pick(&[1, 2, 4]));
            buffer.extend_from_slice(&bytes);
            self.engine.handle_received_buffer(id, &mut buffer, now);
        } else if fabric.network.at_end(conn, Side::Gateway) && !socket.ended && !is_paused {
            socket.ended = true;
            fabric.trace.note(
                fabric.clock.now(),
                "gateway sees the end of",
                [u64::from(self.id), u64::from(conn), 0],
            );
            self.engine.handle_read_closed(id, now);
        }
    }

    /// Writes as much as possible of a connection's output.
    fn send(&mut self, token: u64, fabric: &mut Fabric) {
        let id = ConnId::from_token(token);
        loop {
            let Some(socket) = self.sockets.get_mut(&token) else { return };
            let Some(conn) = socket.conn else { return };
            if socket.write_blocked || socket.detaching {
                return;
            }
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = self.engine.output(id, &mut slices);
            let bytes = slices[..count].iter().map(|slice| &**slice).collect::<Vec<_>>().concat();
            if bytes.is_empty() {
                assert!(count == 0, "an empty slice is no output");
                return;
            }
            let Fabric { network, clock, random, .. } = fabric;
            let taken = network.write(conn, Side::Gateway, &bytes, clock, random);
            if fabric.has_surprises
                && let Peer::Server(_) = fabric.network.conn(conn).peer
            {
                let mut slices = [IoSlice::new(&[]); 64];
                let count = self.engine.output(id, &mut slices);
                let all = slices[..count].iter().map(|slice| &**slice).collect::<Vec<_>>().concat();
                fabric.wire_sent(conn, &all, taken);
            }
            let numbers = [u64::from(self.id), u64::from(conn), taken as u64];
            fabric.trace.quote(fabric.clock.now(), "gateway writes", numbers, &bytes[..taken]);
            socket.write_blocked = taken < bytes.len();
            if taken > 0 {
                self.engine.handle_sent(id, taken as u64, fabric.clock.time());
            }
        }
    }

    fn act(&mut self, fabric: &mut Fabric) {
        // Limits of clients are the caller's here.
        while self.engine.poll_departed().is_some() {}
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Connect { conn, backend, server } => {
                    let token = conn.token();
                    let socket = Socket { conn: None, ..Socket::of(0) };
                    assert!(self.sockets.insert(token, socket).is_none(), "a token names two");
                    let (pool, server) = self.place(backend, server);
                    self.wishes.push(Wish::Connect { token, pool, server });
                }
                Action::Close { conn } => {
                    // It may have ended by itself in the same tick.
                    let Some(socket) = self.remove(conn.token()) else { continue };
                    if let Some(conn) = socket.conn {
                        self.close(conn, fabric);
                    }
                }
                Action::PauseRead { conn } => {
                    if let Some(socket) = self.sockets.get_mut(&conn.token()) {
                        socket.paused = true;
                        socket.late = fabric.random.pick(&[0, 1, 100, LATE_MAX]);
                    }
                }
                Action::ResumeRead { conn } => {
                    if let Some(socket) = self.sockets.get_mut(&conn.token()) {
                        socket.paused = false;
                        if let Some(conn) = socket.conn {
                            self.push(Input::Readable { conn }, fabric);
                        }
                    }
                }
                Action::Reset { .. } | Action::EndWriting { .. } => {
                    unreachable!("no pool here passes bytes through")
                }
                Action::SetLowWater { conn, bytes } => {
                    if let Some(socket) = self.sockets.get_mut(&conn.token()) {
                        socket.low_water = bytes as usize;
                        if let Some(conn) = socket.conn {
                            self.push(Input::Readable { conn }, fabric);
                        }
                    }
                }
                Action::Held { backend: pool, version } => {
                    let pool = pool_id(&self.snapshot.pools[pool.index()]);
                    let numbers = [u64::from(self.id), pool.into(), version];
                    fabric.trace.note(fabric.clock.now(), "gateway holds", numbers);
                    fabric.oracle.rings.held(pool, self.id, fabric.clock.now());
                    self.wishes.push(Wish::Held { pool, version });
                }
                Action::Eject { backend, server, .. } => {
                    assert!(backend.index() < self.snapshot.pools.len(), "it is in use");
                    let (pool, server) = self.place(backend, server);
                    self.wishes.push(Wish::Eject { pool, server });
                }
                Action::Readmit { backend, server } => {
                    assert!(backend.index() < self.snapshot.pools.len(), "it is in use");
                    let (pool, server) = self.place(backend, server);
                    self.wishes.push(Wish::Readmit { pool, server });
                }
                Action::Prepared { epoch } => {
                    self.wishes.push(Wish::Answer { epoch, answer: Answer::Prepared });
                }
                Action::Paused { epoch, unfinished } => self.paused(epoch, unfinished, fabric),
                Action::NotPrimary { backend, server }
                | Action::ServerState { backend, server, .. }
                | Action::ServerHindered { backend, server, .. }
                | Action::CredentialsRefused { backend, server }
                | Action::KeepingRefused { backend, server, .. }
                | Action::CopyRefused { backend, server, .. }
                | Action::ServerMisfit { backend, server, .. }
                | Action::ServerRecovered { backend, server } => {
                    self.place(backend, server);
                }
                Action::MapDoubted { backend } => {
                    assert!(backend.index() < self.snapshot.pools.len(), "it is in use");
                    self.wishes.push(Wish::Doubt);
                }
                Action::HandOff { conn } => self.detach(conn.token(), fabric),
                Action::Ask { ticket, listener: pool, by, request, .. } => {
                    let (now, place) = (fabric.clock.time(), |_| Place::UNKNOWN);
                    let own = self.engine.handle_question(pool, by, &request, &place, now);
                    self.engine.handle_answer(ticket, &own, Rest::None, now);
                }
                Action::Authenticate { .. } => {
                    unreachable!("no scenario asks others who clients are")
                }
                Action::Pressed { .. }
                | Action::HeldBack { .. }
                | Action::Shed { .. }
                | Action::Notice { .. }
                | Action::LargeWaits { .. }
                | Action::SessionsWait { .. }
                | Action::SlowClient { .. }
                | Action::Monitors { .. } => {}
            }
        }
    }

    fn paused(&mut self, epoch: u64, unfinished: u64, fabric: &mut Fabric) {
        let at = fabric.clock.now();
        fabric.trace.note(at, "gateway has paused", [u64::from(self.id), epoch, unfinished]);
        self.unfinished = unfinished;
        let is_over = at >= self.paused_until || fabric.oracle.may_leave_unfinished();
        assert!(unfinished == 0 || is_over, "I3: {unfinished} requests could still have ended");
        self.wishes.push(Wish::Answer { epoch, answer: Answer::Paused });
        let proposal = self.prepared.as_ref().expect("an epoch is prepared");
        let Proposal { snapshot, states, .. } = &**proposal;
        for pool in &self.snapshot.pools {
            let next = snapshot.pools.iter().zip(states);
            let mut next = next.filter(|(next, _)| pool_id(next) == pool_id(pool));
            if let Some((next, state)) = next.next()
                && !fabric.oracle.rings.is_same(next, self.id, &state.topology)
            {
                fabric.oracle.rings.held(pool_id(pool), self.id, at);
            }
        }
    }

    pub(crate) fn close(&mut self, conn: u32, fabric: &mut Fabric) {
        let numbers = [u64::from(self.id), u64::from(conn), 0];
        fabric.trace.note(fabric.clock.now(), "gateway closes", numbers);
        fabric.wire_closed(conn);
        let Fabric { network, clock, random, .. } = fabric;
        let is_server = matches!(network.conn(conn).peer, Peer::Server(_));
        // The kernel resets a connection that is closed with unread bytes.
        if is_server && random.percent(50) {
            network.reset(conn, Side::Gateway, clock, random);
        } else {
            network.close(conn, Side::Gateway, clock, random);
        }
    }

    /// I4: pending data stays below the limits.
    fn check_bounds(&self, fabric: &Fabric) {
        for (&token, socket) in &self.sockets {
            let Some(conn) = socket.conn else { continue };
            let mut slices = [IoSlice::new(&[]); 64];
            let count = self.engine.output(ConnId::from_token(token), &mut slices[..]);
            let waiting: usize = slices[..count].iter().map(|slice| slice.len()).sum();
            match fabric.network.conn(conn).peer {
                Peer::Client(client) => {
                    let pool = fabric.oracle.pool_of(client) as usize;
                    let limits = &fabric.pools[pool].limits;
                    // The gateway's own replies may repeat a request (ECHO), one at a time.
                    let local = limits.client_output_pause + fabric.request_size_max;
                    // A partly forwarded reply is counted separately from what waits before it.
                    let limit = limits.client_output_max.max(local) as usize + READ_SIZE;
                    assert!(waiting <= limit, "I4: {waiting} bytes wait for client {client}");
                }
                Peer::Server(server) => {
                    fabric.check_wire(conn);
                    let (pool, _) = fabric.server_of(server);
                    let limits = &fabric.pools[pool as usize].limits;
                    // One request larger than the limit may wait alone.
                    let limit = limits.server_queue_size_max.max(fabric.request_size_max);
                    assert!(waiting as u64 <= limit, "I4: {waiting} bytes wait for {server}");
                }
            }
        }
        for (pool, config) in self.snapshot.pools.iter().enumerate() {
            for server in 0..config.servers.len() {
                let id = self.metrics.server(pool, server);
                let queued = self.metrics.server_gauge(id, ServerGauge::InQueue)
                    + self.metrics.server_gauge(id, ServerGauge::OutQueue);
                // At most one lane more than its share, and a probe, for each protocol version and
                // database. Exclusive and streaming lanes come on top.
                const PRIVATE_LANES: u64 = 4;
                // Commands of the longest transaction of a client, with what the gateway says before it.
                const TRANSACTION: u64 = 12;
                let variants = match config.protocol {
                    Protocol::Redis => 2 * u64::from(config.databases),
                    // Text and binary.
                    Protocol::Memcached | Protocol::Tcp => 2,
                };
                let lanes = u64::from(config.server_connections) * variants;
                let shared = lanes * (u64::from(config.limits.server_queue_max) + 1);
                // A cluster's transactions are sent as a whole, each on an exclusive lane.
                let sessions = self.metrics.server_gauge(id, ServerGauge::Sessions);
                let queued_whole = if config.is_cluster() { sessions * TRANSACTION } else { 0 };
                let limit = shared + queued_whole + PRIVATE_LANES;
                assert!(queued <= limit, "I4: {queued} requests queued for {pool}/{server}");
            }
        }
    }

    /// All clients are gone and all requests are done.
    pub(crate) fn check_quiet(&self, fabric: &Fabric) {
        let pending = self.engine.requests_pending();
        assert_eq!(pending, 0, "I3: requests are left in gateway {}", self.id);
        assert_eq!(self.engine.held_bytes(), 0, "I4: bytes are held for nobody");
        let clients = self
            .sockets
            .values()
            .filter_map(|socket| socket.conn)
            .filter(|&conn| matches!(fabric.network.conn(conn).peer, Peer::Client(_)));
        assert_eq!(clients.count(), 0, "I3: connections of clients are left");
        for (pool, config) in self.snapshot.pools.iter().enumerate() {
            assert_eq!(
                self.engine.clients_of(ListenerId::new(pool as u32)),
                0,
                "I3: clients are left"
            );
            let gauge =
                self.metrics.pool_gauge(self.metrics.pool(pool), PoolGauge::ClientConnections);
            assert_eq!(gauge, 0, "clients counted");
            for server in 0..config.servers.len() {
                self.check_quiet_server(pool, server, fabric);
            }
        }
        let in_use = |conn: u32| match fabric.network.conn(conn).peer {
            Peer::Server(server) => {
                let (pool, server) = fabric.server_of(server);
                let mut pools = self.snapshot.pools.iter().filter(|p| pool_id(p) == pool);
                pools.any(|pool| pool.servers.iter().any(|s| server_id(s) == server))
            }
            Peer::Client(_) => false,
        };
        let mut conns = self.sockets.values().filter_map(|socket| socket.conn);
        assert!(conns.all(in_use), "I4: connections to servers that were removed are left");
    }

    fn check_quiet_server(&self, pool: usize, server: usize, fabric: &Fabric) {
        let id = self.metrics.server(pool, server);
        for gauge in [
            ServerGauge::InQueue,
            ServerGauge::OutQueue,
            ServerGauge::InQueueBytes,
            ServerGauge::OutQueueBytes,
            ServerGauge::Sessions,
            ServerGauge::InLine,
        ] {
            let value = self.metrics.server_gauge(id, gauge);
            assert_eq!(value, 0, "I3: {gauge:?} of {pool}/{server} in gateway {}", self.id);
        }
        let config = &self.snapshot.pools[pool];
        let place = (pool_id(config), server_id(&config.servers[server]));
        let open = self.sockets.values().filter_map(|socket| socket.conn).filter(|&conn| {
            let peer = fabric.network.conn(conn).peer;
            matches!(peer, Peer::Server(s) if fabric.server_of(s) == place)
        });
        let counted = self.metrics.server_gauge(id, ServerGauge::ServerConnections);
        assert_eq!(
            open.count() as u64,
            counted,
            "I4: connections to {pool}/{server} that are open, and that the engine knows of"
        );
    }
}
