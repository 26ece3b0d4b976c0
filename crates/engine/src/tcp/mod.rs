//! Pools with `protocol: tcp`: each client has a connection to a server for itself, and bytes pass through as they are.
//!
//! A session ([`session`]) is two connections and what waits to be written to each, which is bounded: who sends faster than the other
//! reads is not read meanwhile. The driver knows its connections by names of their own ([`ConnId::is_paired`]), so
//! nothing that serves requests ever sees them. Which server a session gets is [`balance`]'s to say, whether a server
//! is in use [`health`]'s, how sessions go to other processes [`handoff`]'s, and what they hold [`holding`]'s.
//!
//! All of it is one owner, [`Tcp`], which the engine lends what it needs of others: [`Context`].

pub(crate) mod balance;
pub(crate) mod deadlines;
pub(crate) mod handoff;
pub(crate) mod header;
pub(crate) mod health;
pub(crate) mod holding;
pub(crate) mod session;

use std::collections::{HashMap, VecDeque};

use cashew_config::snapshot::{Protocol, Tcp as Options};
use cashew_metrics::{Evidence, PoolCounter, PoolGauge, ServerCounter, Writer};

use crate::base::action::Action;
use crate::base::buffer::{BufPool, Output};
use crate::base::failure::{CloseReason, Failure};
use crate::base::fifo::Fifo;
use crate::base::id::{BackendId, ConnId, ListenerId, PairId, ServerId};
use crate::base::rng::Rng;
use crate::base::slab::Slab;
use crate::base::table::Table;
use crate::base::time::Time;
use crate::base::timers::Timers;
use crate::downstream::listener::Listener;
use crate::tcp::balance::{Balancer, Choice};
use crate::tcp::deadlines::{Deadlines, Due};
use crate::tcp::session::{Handoff, Session, Side, Source, Stage};
use crate::upstream::backend::Backend;

/// Beyond so many bytes that wait for one side the other is not read; one read may come on top, and what was read already.
pub(crate) const WAITING_MAX: u64 = 128 * 1024;
/// It is read again when so few are left.
const WAITING_MIN: u64 = 32 * 1024;
/// What was read before one side was reset goes to the other one first, unless that takes none of it for so long.
const PARTING_MS: u64 = 5_000;
/// Buffers that are passed on are at most so many times as large as what is in them.
const ROOM_FACTOR: usize = 2;
/// Deadlines that count no more are swept out beyond so many, and four for each session.
const DEADLINES_KEPT: usize = 1024;
/// Those who have left while they waited for a place are swept out beyond so many, and two for each session.
const LINE_KEPT: usize = 64;
/// How often it is looked whether a server has a place for who waits for one, which others may have given back.
const LOOK_EVERY_MS: u64 = 20;

/// What is the engine's and lent for one event.
pub(crate) struct Context<'a> {
    pub(crate) now: Time,
    /// The first of the workers is the one that checks servers.
    pub(crate) rank: u32,
    pub(crate) draining: bool,
    pub(crate) listeners: &'a mut Table<ListenerId, Listener>,
    pub(crate) backends: &'a mut Table<BackendId, Backend>,
    pub(crate) metrics: &'a Writer,
    pub(crate) timers: &'a mut Timers,
    pub(crate) actions: &'a mut VecDeque<Action>,
    pub(crate) dirty: &'a mut Fifo<ConnId>,
    pub(crate) bufs: &'a mut BufPool,
    pub(crate) rng: &'a mut Rng,
    /// Quotas of clients that are gone.
    pub(crate) departed: &'a mut Vec<u32>,
}

impl Context<'_> {
    fn count(&self, listener: ListenerId, counter: PoolCounter, n: u64) {
        self.metrics.add_pool(self.listeners[listener].metrics, counter, n);
    }

    fn count_server(&mut self, backend: BackendId, server: ServerId, counter: ServerCounter) {
        if let Some(server) = self.backends[backend].servers.get_mut(server) {
            server.count(self.metrics, counter);
        }
    }

    /// A connection to the server stands that was begun then, a session's or a check's.
    fn count_connected(&mut self, backend: BackendId, server: ServerId, since: Time) {
        self.count_server(backend, server, ServerCounter::Connects);
        let metrics = self.backends[backend].servers[server].metrics;
        self.metrics.add_server(metrics, ServerCounter::ConnectUs, self.now.micros_since(since));
    }

    fn options(&self, backend: BackendId) -> Option<&Options> {
        self.backends[backend].config.tcp.as_ref()
    }

    /// Tells all workers what was seen of a server.
    fn note(&mut self, backend: BackendId, server: ServerId, evidence: Evidence) {
        let metrics = self.backends[backend].servers[server].metrics;
        if let Some(change) = self.metrics.note(metrics, evidence, self.now.as_micros()) {
            self.actions.push_back(Action::ServerState { backend, server, change });
        }
    }
}

/// Whose connection to a server it is.
#[derive(Clone, Copy)]
pub(crate) enum Owner {
    Session(PairId),
    /// Nobody's: it is only looked whether the server accepts it.
    Check(Check),
    /// The same, which the server has accepted: it is told so, and then it is over.
    Told,
}

/// A connection that was begun then to look whether a server accepts it.
#[derive(Clone, Copy)]
pub(crate) struct Check {
    backend: BackendId,
    server: ServerId,
    since: Time,
}

/// The sessions of one worker.
pub(crate) struct Tcp {
    sessions: Slab<PairId, Session>,
    /// Connections to servers, by their names.
    links: Slab<PairId, Owner>,
    /// What servers are told over connections that are [`Owner::Told`].
    words: HashMap<PairId, Output>,
    balancers: HashMap<BackendId, Balancer>,
    deadlines: Deadlines,
    /// All are to leave, those too who come yet.
    leaving: bool,
}

impl Default for Tcp {
    fn default() -> Self {
        Self {
            sessions: Slab::new(),
            links: Slab::new(),
            words: HashMap::new(),
            balancers: HashMap::new(),
            deadlines: Deadlines::default(),
            leaving: false,
        }
    }
}

/// Whether the listener's clients have sessions here.
pub(crate) fn serves(protocol: Protocol) -> bool {
    protocol == Protocol::Tcp
}

impl Tcp {
    /// What a session takes at rest, and when it is looked at next.
    #[cfg(test)]
    pub(crate) const SESSION_SIZE: usize = Slab::<PairId, Session>::SLOT_SIZE
        + Slab::<PairId, Owner>::SLOT_SIZE
        + Deadlines::ENTRY_SIZE;

    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// The session of a connection, and which side of it that is.
    #[inline]
    fn find(&self, conn: ConnId) -> Option<(PairId, Side)> {
        let (index, generation) = (conn.pair(), conn.generation());
        if !conn.is_lane() {
            self.sessions.get(index, generation)?;
            return Some((index, Side::Client));
        }
        match self.links.get(index, generation)? {
            Owner::Session(session) => Some((*session, Side::Server)),
            Owner::Check(_) | Owner::Told => None,
        }
    }

    pub(crate) fn session(&self, conn: ConnId) -> Option<&Session> {
        self.find(conn).map(|(index, _)| &self.sessions[index])
    }

    /// What is to be written to a connection.
    pub(crate) fn output(&self, conn: ConnId) -> Option<&Output> {
        match self.session(conn) {
            Some(session) => Some(session.output_of(conn)),
            None => self.links.get(conn.pair(), conn.generation()).and_then(|owner| match owner {
                Owner::Told if conn.is_lane() => self.words.get(&conn.pair()),
                _ => None,
            }),
        }
    }

    /// The server that a connection leads to.
    pub(crate) fn server_of(&self, conn: ConnId) -> Option<(BackendId, ServerId)> {
        match *self.links.get(conn.pair(), conn.generation())? {
            Owner::Session(session) => {
                let Session { backend, server, .. } = self.sessions[session];
                (server != ServerId::NONE).then_some((backend, server))
            }
            // It may have been removed since.
            Owner::Check(Check { backend, server, .. }) => {
                (server != ServerId::NONE).then_some((backend, server))
            }
            Owner::Told => None,
        }
    }

    /// A client connected. Whether it is welcome it is told when the connection is known to the driver.
    pub(crate) fn accepted(
        &mut self,
        cx: &mut Context<'_>,
        listener: ListenerId,
        is_welcome: bool,
        id: u64,
    ) -> ConnId {
        let state = &mut cx.listeners[listener];
        state.clients += 1;
        state.places_taken += u64::from(is_welcome);
        let backend = state.destination.backend;
        cx.metrics.set_pool(state.metrics, PoolGauge::ClientConnections, state.places_taken);
        let session = Session::new(id, listener, backend, is_welcome, cx.now);
        let (index, generation) = self.sessions.insert(session);
        let conn = ConnId::of_pair(index, generation);
        self.sessions[index].client.conn = conn;
        if !is_welcome {
            cx.count(listener, PoolCounter::ClientsRefused, 1);
        }
        if !is_welcome || cx.draining {
            self.end(cx, index);
        }
        conn
    }

    /// It is known whose the connection is, and it is secured if it is to be: it gets a server.
    pub(crate) fn ready(&mut self, cx: &mut Context<'_>, conn: ConnId, source: Option<Source>) {
        let Some((index, Side::Client)) = self.find(conn) else { return };
        let session = &mut self.sessions[index];
        if session.stage != Stage::Opening {
            return;
        }
        (session.source, session.stage) = (source, Stage::Waiting);
        let Some(options) = cx.options(session.backend) else { return };
        session.until = cx.now.plus_millis(options.wait_ms);
        // Nothing was received before this.
        if let Some(header) = header::header(options.send_proxy, source) {
            session.to_server.output.push(&header, cx.bufs);
        }
        self.seek(cx, index);
    }

    /// Connects the session to a server, has it wait for one, or ends it.
    fn seek(&mut self, cx: &mut Context<'_>, index: PairId) {
        let Session { backend, source, .. } = self.sessions[index];
        let balancer = self.balancers.entry(backend).or_default();
        let choice = balancer.choose(cx, backend, source, &self.sessions[index].tried);
        match choice {
            Choice::Server(server) => self.connect(cx, index, server),
            Choice::Full if self.sessions[index].until > cx.now => {
                let session = &mut self.sessions[index];
                session.stage = Stage::Waiting;
                let (conn, until) = (session.client.conn, session.until);
                if !std::mem::replace(&mut session.is_in_line, true) {
                    cx.count(session.listener, PoolCounter::ConnectionsWaited, 1);
                    if balancer.line.len() > LINE_KEPT + 2 * self.sessions.len() {
                        let is_there =
                            |it: &ConnId| self.sessions.get(it.pair(), it.generation()).is_some();
                        balancer.line.retain(is_there);
                    }
                    balancer.line.push_back(conn);
                    balancer.look_at = cx.now.plus_millis(LOOK_EVERY_MS);
                    self.deadlines.arm(cx.timers, balancer.look_at, Due::Line(backend));
                }
                self.arm(cx, index, until);
            }
            Choice::Full | Choice::None => {
                cx.count(self.sessions[index].listener, PoolCounter::ConnectionsFailed, 1);
                self.abort(cx, index);
            }
        }
    }

    fn connect(&mut self, cx: &mut Context<'_>, index: PairId, server: ServerId) {
        let (link, generation) = self.links.insert(Owner::Session(index));
        let conn = ConnId::of_pair_to_server(link, generation);
        let session = &mut self.sessions[index];
        let backend = session.backend;
        session.to_server.conn = conn;
        session.to_server.is_there = true;
        let (listener, is_another) = (session.listener, !session.tried.is_empty());
        (session.server, session.stage) = (server, Stage::Connecting);
        session.connects_since = cx.now;
        self.balancers.entry(backend).or_default().take(cx, backend, server);
        cx.actions.push_back(Action::Connect { conn, backend, server });
        if is_another {
            cx.count(listener, PoolCounter::ConnectionsRetried, 1);
        }
        let until = cx.backends[backend].connect_deadline(cx.now);
        self.arm(cx, index, until);
    }

    /// The connection to a server stands.
    pub(crate) fn connected(&mut self, cx: &mut Context<'_>, conn: ConnId) {
        let owner = self.links.get(conn.pair(), conn.generation());
        if let Some(&Owner::Check(check)) = owner {
            return self.accepts(cx, conn, check);
        }
        let Some((index, Side::Server)) = self.find(conn) else { return };
        let session = &mut self.sessions[index];
        let Session { backend, server, listener, .. } = *session;
        let client = session.client.conn;
        session.stage = Stage::Open;
        session.tried = Vec::new();
        session.active_at = cx.now;
        let since = session.connects_since;
        cx.count(listener, PoolCounter::ConnectionsPassed, 1);
        if server != ServerId::NONE {
            cx.count_connected(backend, server, since);
            self.balancers.entry(backend).or_default().reached(cx, backend, server);
        }
        self.arm_idle(cx, index);
        self.mark(cx, index, Side::Server);
        if self.sessions[index].is_throttled {
            self.hold_back(cx, index);
        }
        self.let_on(cx, index);
        self.pass_ends_on(cx, index);
        if self.leaving {
            self.leave(cx, client);
        }
    }

    /// Bytes came.
    pub(crate) fn received(&mut self, cx: &mut Context<'_>, conn: ConnId, bytes: &[u8]) {
        if let Some((index, side)) = self.find(conn) {
            let session = &mut self.sessions[index];
            let to = session.end(side.other());
            if to.is_there || session.stage != Stage::Open {
                session.end_mut(side.other()).output.push(bytes, cx.bufs);
            }
            self.note_received(cx, index, side, bytes.len() as u64);
        }
    }

    /// The same, of a whole buffer, which is passed on as it is, unless most of it would be kept for nothing.
    pub(crate) fn received_buffer(
        &mut self,
        cx: &mut Context<'_>,
        conn: ConnId,
        buffer: &mut Vec<u8>,
    ) {
        if buffer.capacity() > ROOM_FACTOR * buffer.len() {
            return self.received(cx, conn, buffer);
        }
        let Some((index, side)) = self.find(conn) else { return };
        let session = &mut self.sessions[index];
        let len = buffer.len() as u64;
        if session.end(side.other()).is_there || session.stage != Stage::Open {
            cx.bufs.charge(buffer.capacity());
            let buffer = std::mem::take(buffer);
            session.end_mut(side.other()).output.push_buf(buffer, cx.bufs);
        }
        self.note_received(cx, index, side, len);
    }

    fn note_received(&mut self, cx: &mut Context<'_>, index: PairId, side: Side, bytes: u64) {
        let session = &mut self.sessions[index];
        let Session { listener, backend, server, .. } = *session;
        session.active_at = cx.now;
        match side {
            Side::Client => {
                session.received += bytes;
                cx.count(listener, PoolCounter::ClientBytesReceived, bytes);
            }
            Side::Server if server != ServerId::NONE => {
                let metrics = cx.backends[backend].servers[server].metrics;
                cx.metrics.add_server(metrics, ServerCounter::ResponseBytes, bytes);
            }
            Side::Server => {}
        }
        let is_full = session.end(side.other()).output.len() > WAITING_MAX;
        let from = session.end_mut(side);
        if is_full && !std::mem::replace(&mut from.is_paused, true) {
            cx.actions.push_back(Action::PauseRead { conn: from.conn });
        }
        self.mark(cx, index, side.other());
    }

    /// So many bytes of what waited for a connection are with the kernel.
    pub(crate) fn sent(&mut self, cx: &mut Context<'_>, conn: ConnId, bytes: u64) {
        let Some((index, side)) = self.find(conn) else { return self.told(cx, conn, bytes) };
        let session = &mut self.sessions[index];
        let Session { listener, backend, server, .. } = *session;
        session.active_at = cx.now;
        session.end_mut(side).output.advance(bytes, cx.bufs);
        match side {
            Side::Client => {
                session.sent += bytes;
                cx.count(listener, PoolCounter::ClientBytesSent, bytes);
            }
            Side::Server if server != ServerId::NONE => {
                let metrics = cx.backends[backend].servers[server].metrics;
                cx.metrics.add_server(metrics, ServerCounter::RequestBytes, bytes);
            }
            Side::Server => {}
        }
        self.let_on(cx, index);
        self.pass_ends_on(cx, index);
    }

    /// Reads on where there is room for what comes.
    fn let_on(&mut self, cx: &mut Context<'_>, index: PairId) {
        let session = &mut self.sessions[index];
        if session.is_throttled {
            return;
        }
        for side in [Side::Client, Side::Server] {
            let has_room = session.end(side.other()).output.len() <= WAITING_MIN;
            let from = session.end_mut(side);
            if has_room && from.is_there && std::mem::take(&mut from.is_paused) {
                cx.actions.push_back(Action::ResumeRead { conn: from.conn });
            }
        }
    }

    /// The peer sends nothing more, and may still read.
    pub(crate) fn read_closed(&mut self, cx: &mut Context<'_>, conn: ConnId) {
        let Some((index, side)) = self.find(conn) else { return };
        let session = &mut self.sessions[index];
        session.end_mut(side).has_ended = true;
        let Session { backend, server, .. } = *session;
        if side == Side::Server && server != ServerId::NONE {
            cx.count_server(backend, server, ServerCounter::ServerEof);
        }
        let session = &mut self.sessions[index];
        // Who comes and goes without a word only looks whether somebody listens.
        if session.stage != Stage::Open && session.received == 0 {
            cx.count(session.listener, PoolCounter::ClientEof, 1);
            return self.end(cx, index);
        }
        self.pass_ends_on(cx, index);
    }

    /// Tells either peer that the other one sends nothing more, once it has all. When both know, the session is over.
    fn pass_ends_on(&mut self, cx: &mut Context<'_>, index: PairId) {
        let session = &mut self.sessions[index];
        // Where it goes the driver tells of the ends anew.
        if session.stage != Stage::Open || session.handoff == Handoff::HandedOff {
            return;
        }
        for side in [Side::Client, Side::Server] {
            let (from, to) = (session.end(side), session.end(side.other()));
            if !to.output.is_empty() || !to.is_there {
                continue;
            }
            if from.is_broken {
                return self.pass_reset_on(cx, index, side.other());
            }
            if from.has_ended && !to.is_told_end {
                cx.actions.push_back(Action::EndWriting { conn: to.conn });
                session.end_mut(side.other()).is_told_end = true;
            }
        }
        if session.client.is_told_end && session.to_server.is_told_end {
            cx.count(session.listener, PoolCounter::ClientEof, 1);
            self.end(cx, index);
        }
    }

    /// One side was reset: so is the other one, and the session is over.
    fn pass_reset_on(&mut self, cx: &mut Context<'_>, index: PairId, to: Side) {
        cx.actions.push_back(Action::Reset { conn: self.sessions[index].end(to).conn });
        self.release(index, to);
        self.end(cx, index);
    }

    /// A connection is gone; the driver has forgotten it.
    pub(crate) fn closed(&mut self, cx: &mut Context<'_>, conn: ConnId, reason: CloseReason) {
        let owner = self.links.get(conn.pair(), conn.generation()).copied();
        match owner.filter(|_| conn.is_lane()) {
            Some(Owner::Check(check)) => return self.fails(cx, conn, check, reason.into()),
            Some(Owner::Told) => return self.forget_told(cx, conn),
            Some(Owner::Session(_)) | None => {}
        }
        let Some((index, side)) = self.find(conn) else { return };
        self.release(index, side);
        let Session { listener, backend, server, stage, .. } = self.sessions[index];
        match (side, stage) {
            (Side::Server, Stage::Connecting) => {
                return self.failed(cx, index, reason.into());
            }
            (Side::Server, _) if server != ServerId::NONE => {
                cx.count_server(backend, server, ServerCounter::ServerErr);
            }
            (Side::Server, _) => {}
            (Side::Client, _) => cx.count(listener, PoolCounter::ClientErr, 1),
        }
        let session = &mut self.sessions[index];
        let from = session.end_mut(side);
        from.is_broken = true;
        from.output.clear(cx.bufs);
        let is_leaving = session.handoff == Handoff::HandedOff;
        if stage != Stage::Open || is_leaving || !session.end(side.other()).is_there {
            return self.end(cx, index);
        }
        // What came before goes before.
        session.active_at = cx.now;
        self.arm(cx, index, cx.now.plus_millis(PARTING_MS));
        self.pass_ends_on(cx, index);
    }

    /// The session's connection to its server did not come about: nothing was sent, so another server may have it.
    fn failed(&mut self, cx: &mut Context<'_>, index: PairId, why: Failure) {
        let session = &mut self.sessions[index];
        let Session { backend, server, .. } = *session;
        session.server = ServerId::NONE;
        self.release(index, Side::Server);
        let session = &mut self.sessions[index];
        if server != ServerId::NONE {
            session.tried.push(server);
            let balancer = self.balancers.entry(backend).or_default();
            balancer.give(cx, backend, server);
            balancer.missed(cx, backend, server, why);
        }
        self.seek(cx, index);
    }

    /// Ends a session whose client gets no server, or none any more.
    fn abort(&mut self, cx: &mut Context<'_>, index: PairId) {
        let client = &mut self.sessions[index].client;
        if std::mem::take(&mut client.is_there) {
            cx.actions.push_back(Action::Reset { conn: client.conn });
        }
        self.end(cx, index);
    }

    /// The driver has that connection no more, or is about to forget it.
    fn release(&mut self, index: PairId, side: Side) {
        let end = self.sessions[index].end_mut(side);
        if std::mem::take(&mut end.is_there) && side == Side::Server {
            self.links.remove(end.conn.pair());
        }
    }

    /// Closes what is left of a session, and forgets it.
    fn end(&mut self, cx: &mut Context<'_>, index: PairId) {
        let mut session = self.sessions.remove(index);
        for side in [Side::Client, Side::Server] {
            let end = session.end_mut(side);
            end.output.clear(cx.bufs);
            if end.is_there {
                cx.actions.push_back(Action::Close { conn: end.conn });
            }
        }
        if session.to_server.is_there {
            self.links.remove(session.to_server.conn.pair());
        }
        self.forget(cx, &session);
        if session.has_place {
            cx.departed.push(cx.listeners[session.listener].quota);
        }
        cx.count(session.listener, PoolCounter::ConnectionMs, session.age_us(cx.now) / 1000);
    }

    /// Counts a session no more, which is gone, and lets others have its place.
    fn forget(&mut self, cx: &mut Context<'_>, session: &Session) {
        let Session { listener, backend, server, .. } = *session;
        let state = &mut cx.listeners[listener];
        state.clients -= 1;
        state.places_taken -= u64::from(session.has_place);
        cx.metrics.set_pool(state.metrics, PoolGauge::ClientConnections, state.places_taken);
        if server == ServerId::NONE {
            return;
        }
        let balancer = self.balancers.entry(backend).or_default();
        balancer.give(cx, backend, server);
        self.serve_line(cx, backend);
    }

    /// Lets those go on who wait for a place, the first first.
    fn serve_line(&mut self, cx: &mut Context<'_>, backend: BackendId) {
        loop {
            let Some(balancer) = self.balancers.get_mut(&backend) else { return };
            let Some(&conn) = balancer.line.front() else { return };
            let Some((index, Side::Client)) = self.find(conn) else {
                self.drop_first(backend);
                continue;
            };
            let session = &self.sessions[index];
            if session.stage != Stage::Waiting {
                self.drop_first(backend);
                continue;
            }
            let source = session.source;
            let Some(balancer) = self.balancers.get_mut(&backend) else { return };
            match balancer.choose(cx, backend, source, &self.sessions[index].tried) {
                Choice::Full => return,
                Choice::Server(server) => {
                    self.drop_first(backend);
                    self.sessions[index].is_in_line = false;
                    self.connect(cx, index, server);
                }
                Choice::None => {
                    self.drop_first(backend);
                    cx.count(self.sessions[index].listener, PoolCounter::ConnectionsFailed, 1);
                    self.abort(cx, index);
                }
            }
        }
    }

    fn drop_first(&mut self, backend: BackendId) {
        if let Some(balancer) = self.balancers.get_mut(&backend) {
            balancer.line.pop_front();
        }
    }

    /// Something waits to be written to one side.
    fn mark(&mut self, cx: &mut Context<'_>, index: PairId, side: Side) {
        let session = &mut self.sessions[index];
        if side == Side::Server && session.stage != Stage::Open {
            return;
        }
        let end = session.end_mut(side);
        if !end.output.is_empty() && end.is_there && !std::mem::replace(&mut end.is_dirty, true) {
            cx.dirty.push(end.conn);
        }
    }

    /// The connection is about to be written.
    pub(crate) fn unmark(&mut self, conn: ConnId) {
        if let Some((index, side)) = self.find(conn) {
            self.sessions[index].end_mut(side).is_dirty = false;
        }
    }

    fn arm(&mut self, cx: &mut Context<'_>, index: PairId, at: Time) {
        let session = &mut self.sessions[index];
        session.deadline = at;
        if at != Time::NEVER {
            let conn = session.client.conn;
            self.deadlines.arm(cx.timers, at, Due::Session(conn));
        }
        if self.deadlines.len() > DEADLINES_KEPT + 4 * self.sessions.len() {
            let sessions = &self.sessions;
            self.deadlines.retain_sessions(|conn, at| {
                sessions.get(conn.pair(), conn.generation()).is_some_and(|it| it.deadline == at)
            });
        }
    }

    /// Has an open session end when nothing goes over it for long.
    fn arm_idle(&mut self, cx: &mut Context<'_>, index: PairId) {
        let session = &self.sessions[index];
        let at = self.idle_at(cx, session);
        self.arm(cx, index, at);
    }

    fn idle_at(&self, cx: &Context<'_>, session: &Session) -> Time {
        match cx.options(session.backend).map_or(0, |options| options.idle_timeout_ms) {
            0 => Time::NEVER,
            timeout_ms => session.active_at.plus_millis(timeout_ms),
        }
    }

    /// Whatever is due happens.
    pub(crate) fn timeout(&mut self, cx: &mut Context<'_>) {
        while let Some((at, due)) = self.deadlines.pop(cx.now) {
            match due {
                Due::Session(conn) => {
                    if let Some((index, _)) = self.find(conn)
                        && self.sessions[index].deadline == at
                    {
                        self.session_due(cx, index);
                    }
                }
                Due::Line(backend) => {
                    self.serve_line(cx, backend);
                    if let Some(balancer) = self.balancers.get_mut(&backend)
                        && !balancer.line.is_empty()
                    {
                        balancer.look_at = cx.now.plus_millis(LOOK_EVERY_MS);
                        self.deadlines.arm(cx.timers, balancer.look_at, Due::Line(backend));
                    }
                }
                Due::Checks(backend) => self.check_servers(cx, backend, at),
                Due::Check(conn) => {
                    let owner = self.links.get(conn.pair(), conn.generation());
                    match owner.copied() {
                        Some(Owner::Check(check)) => {
                            cx.actions.push_back(Action::Close { conn });
                            self.fails(cx, conn, check, Failure::TimedOut);
                        }
                        Some(Owner::Told) => {
                            cx.actions.push_back(Action::Close { conn });
                            self.forget_told(cx, conn);
                        }
                        Some(Owner::Session(_)) | None => {}
                    }
                }
            }
        }
        self.deadlines.rearm(cx.timers);
    }

    fn session_due(&mut self, cx: &mut Context<'_>, index: PairId) {
        let session = &self.sessions[index];
        let Session { backend, server, listener, stage, handoff, .. } = *session;
        match stage {
            Stage::Opening => {}
            Stage::Waiting => {
                cx.count(listener, PoolCounter::ConnectionsFailed, 1);
                self.abort(cx, index);
            }
            Stage::Connecting => {
                cx.actions.push_back(Action::Close { conn: session.to_server.conn });
                if server != ServerId::NONE {
                    cx.count_server(backend, server, ServerCounter::ServerTimedout);
                }
                self.failed(cx, index, Failure::TimedOut);
            }
            Stage::Open => {
                let left = session.left_of_reset();
                let at = match left {
                    Some(_) => session.active_at.plus_millis(PARTING_MS),
                    None => self.idle_at(cx, session),
                };
                if at > cx.now || handoff == Handoff::HandedOff {
                    let at = at.max(cx.now.plus_millis(1));
                    return self.arm(cx, index, at);
                }
                if let Some(side) = left {
                    return self.pass_reset_on(cx, index, side);
                }
                cx.count(listener, PoolCounter::ConnectionsIdle, 1);
                self.end(cx, index);
            }
        }
    }

    /// Nobody gets a server any more; those who have one go on.
    pub(crate) fn drain(&mut self, cx: &mut Context<'_>) {
        for index in self.sessions.indices().collect::<Vec<PairId>>() {
            if self.sessions[index].stage != Stage::Open {
                self.end(cx, index);
            }
        }
    }

    /// Ends all sessions of a listener, which is to go.
    pub(crate) fn cut(&mut self, cx: &mut Context<'_>, listener: ListenerId) {
        for index in self.sessions.indices().collect::<Vec<PairId>>() {
            if self.sessions[index].listener == listener {
                cx.count(listener, PoolCounter::ClientErr, 1);
                self.end(cx, index);
            }
        }
    }

    /// Ends one session.
    pub(crate) fn dismiss(&mut self, cx: &mut Context<'_>, conn: ConnId) {
        if let Some((index, _)) = self.find(conn) {
            self.end(cx, index);
        }
    }

    /// Points to where pools and servers stand after a change of the epoch: `pool` says where a pool is, `place` where a
    /// server is, which may have gone: its sessions go on.
    pub(crate) fn renumber(
        &mut self,
        pool: impl Fn(BackendId) -> Option<(ListenerId, BackendId)>,
        place: impl Fn(BackendId, ServerId) -> Option<ServerId>,
    ) {
        for index in self.sessions.indices().collect::<Vec<PairId>>() {
            let session = &mut self.sessions[index];
            if session.server != ServerId::NONE {
                session.server = place(session.backend, session.server).unwrap_or(ServerId::NONE);
            }
            session.tried.clear();
            let (listener, backend) =
                pool(session.backend).unwrap_or((ListenerId::NONE, BackendId::NONE));
            debug_assert_ne!(listener, ListenerId::NONE, "a pool stays while it has clients");
            (session.listener, session.backend) = (listener, backend);
        }
        for link in self.links.indices().collect::<Vec<PairId>>() {
            // One of a server that went before stays without a place.
            if let Owner::Check(check) = self.links[link]
                && check.server != ServerId::NONE
            {
                let now = pool(check.backend).zip(place(check.backend, check.server));
                let (backend, server) =
                    now.map_or((BackendId::NONE, ServerId::NONE), |((_, it), server)| (it, server));
                self.links[link] = Owner::Check(Check { backend, server, ..check });
            }
        }
        let before = std::mem::take(&mut self.balancers);
        let kept = before.into_iter().filter_map(|(backend, balancer)| {
            let (_, now) = pool(backend)?;
            Some((now, balancer.renumbered(|server| place(backend, server))))
        });
        self.balancers = kept.collect();
    }

    /// A pool is gone, which has no sessions any more. Its servers may still be being checked.
    pub(crate) fn forget_backend(&mut self, cx: &mut Context<'_>, backend: BackendId) {
        self.balancers.remove(&backend);
        for link in self.links.indices().collect::<Vec<PairId>>() {
            if matches!(self.links[link], Owner::Check(check) if check.backend == backend) {
                let conn = ConnId::of_pair_to_server(link, self.links.generation(link));
                self.links.remove(link);
                cx.actions.push_back(Action::Close { conn });
            }
        }
    }

    /// Goes by what is configured after a change of the epoch.
    pub(crate) fn follow(&mut self, cx: &mut Context<'_>) {
        self.deadlines.forget_backends();
        let backends = cx.backends.ids().collect::<Vec<BackendId>>();
        for backend in backends {
            if !serves(cx.backends[backend].protocol) {
                continue;
            }
            let balancer = self.balancers.entry(backend).or_default();
            balancer.publish(cx, backend);
            if !balancer.line.is_empty() {
                self.deadlines.arm(cx.timers, cx.now, Due::Line(backend));
            }
            self.begin_checks(cx, backend);
        }
        for index in self.sessions.indices().collect::<Vec<PairId>>() {
            if self.sessions[index].stage == Stage::Open {
                self.arm_idle(cx, index);
            }
        }
    }

    /// Lets go of what only a peak needed.
    pub(crate) fn shrink(&mut self) {
        self.sessions.shrink();
        self.links.shrink();
        self.deadlines.shrink(self.sessions.len());
    }
}
