//! Sessions that go to another process, and those that come from one: both connections, and what is on its way between
//! them.

use cashew_metrics::PoolGauge;

use crate::base::action::Action;
use crate::base::id::{ConnId, ListenerId, PairId, ServerId};
use crate::tcp::session::{Handoff, Session, Side, Stage};
use crate::tcp::{Context, Owner, Tcp, WAITING_MAX};

/// A session that is no longer here, but for its sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairParts {
    /// Unique in the instance.
    pub id: u64,
    /// The server, by name; empty if it is not configured any more.
    pub server: String,
    /// The client was told that nothing more comes, or the server was.
    pub client_told_end: bool,
    pub server_told_end: bool,
    pub age_us: u64,
    /// Bytes from the client and to it.
    pub received: u64,
    pub sent: u64,
    /// What is to be written before anything else.
    pub to_server: Vec<u8>,
    pub to_client: Vec<u8>,
}

impl Tcp {
    /// Has all sessions leave, those too that come yet.
    pub(crate) fn leave_all(&mut self, cx: &mut Context<'_>) {
        self.leaving = true;
        for index in self.sessions.indices().collect::<Vec<PairId>>() {
            let conn = self.sessions[index].client.conn;
            self.leave(cx, conn);
        }
    }

    /// Those that were not handed off need not leave.
    pub(crate) fn stay_all(&mut self) {
        self.leaving = false;
    }

    /// A session's connections are ones that cannot go to another process, or can again.
    pub(crate) fn set_tied(&mut self, cx: &mut Context<'_>, conn: ConnId, is_tied: bool) {
        if let Some((index, _)) = self.find(conn) {
            self.sessions[index].is_tied = is_tied;
            if self.leaving {
                self.leave(cx, conn);
            }
        }
    }

    /// Hands the session off, if that is possible: the driver is to let go of both connections.
    pub(super) fn leave(&mut self, cx: &mut Context<'_>, conn: ConnId) {
        let Some((index, _)) = self.find(conn) else { return };
        let session = &mut self.sessions[index];
        let is_whole = session.client.is_there && session.to_server.is_there;
        let is_listened_to = cx.listeners[session.listener].is_in_use();
        if session.stage != Stage::Open
            || session.handoff != Handoff::No
            || session.is_tied
            || !is_whole
            || !is_listened_to
        {
            return;
        }
        session.handoff = Handoff::HandedOff;
        cx.actions.push_back(Action::HandOff { conn: session.client.conn });
    }

    /// The other connection of a session.
    pub(crate) fn partner(&self, conn: ConnId) -> Option<ConnId> {
        let (index, side) = self.find(conn)?;
        Some(self.sessions[index].end(side.other()).conn)
    }

    /// Takes a session that was handed off out of here, now that the driver has let go of both connections.
    pub(crate) fn export(
        &mut self,
        cx: &mut Context<'_>,
        conn: ConnId,
    ) -> Option<(ListenerId, PairParts)> {
        let (index, _) = self.find(conn)?;
        if self.sessions[index].handoff != Handoff::HandedOff {
            return None;
        }
        self.release(index, Side::Server);
        let mut session = self.sessions.remove(index);
        let Session { id, listener, backend, server, received, sent, .. } = session;
        let servers = &cx.backends[backend].config.servers;
        let parts = PairParts {
            id,
            server: servers.get(server.index()).map_or_else(String::new, |it| it.name.clone()),
            client_told_end: session.client.is_told_end,
            server_told_end: session.to_server.is_told_end,
            age_us: session.age_us(cx.now),
            received,
            sent,
            to_server: session.to_server.output.to_vec(),
            to_client: session.client.output.to_vec(),
        };
        session.to_server.output.clear(cx.bufs);
        session.client.output.clear(cx.bufs);
        // Its place moves with it.
        self.forget(cx, &session);
        Some((listener, parts))
    }

    /// A session comes from another process. Returns the names of its connections, which the driver is to be given.
    pub(crate) fn adopted(
        &mut self,
        cx: &mut Context<'_>,
        listener: ListenerId,
        parts: PairParts,
    ) -> (ConnId, ConnId) {
        let state = &mut cx.listeners[listener];
        state.clients += 1;
        state.places_taken += 1;
        let backend = state.destination.backend;
        cx.metrics.set_pool(state.metrics, PoolGauge::ClientConnections, state.places_taken);
        let mut session = Session::new(parts.id, listener, backend, true, cx.now);
        session.since_us = cx.now.as_micros() as i64 - parts.age_us as i64;
        session.stage = Stage::Open;
        (session.received, session.sent) = (parts.received, parts.sent);
        let mut servers = cx.backends[backend].config.servers.iter();
        let server = servers.position(|server| server.name == parts.server);
        session.server = server.map_or(ServerId::NONE, |at| ServerId::new(at as u32));
        session.client.is_told_end = parts.client_told_end;
        session.to_server.is_told_end = parts.server_told_end;
        for (end, bytes) in
            [(&mut session.client, parts.to_client), (&mut session.to_server, parts.to_server)]
        {
            cx.bufs.charge(bytes.capacity());
            end.output.push_buf(bytes, cx.bufs);
        }
        let server = session.server;
        let (index, generation) = self.sessions.insert(session);
        let (link, link_generation) = self.links.insert(Owner::Session(index));
        let conns =
            (ConnId::of_pair(index, generation), ConnId::of_pair_to_server(link, link_generation));
        let session = &mut self.sessions[index];
        (session.client.conn, session.to_server.conn) = conns;
        session.to_server.is_there = true;
        for side in [Side::Client, Side::Server] {
            let is_full = session.end(side.other()).output.len() > WAITING_MAX;
            let from = session.end_mut(side);
            if is_full {
                // It was not read before it came, either.
                from.is_paused = true;
                cx.actions.push_back(Action::PauseRead { conn: from.conn });
            }
        }
        if server != ServerId::NONE {
            self.balancers.entry(backend).or_default().take(cx, backend, server);
        }
        self.arm_idle(cx, index);
        self.mark(cx, index, Side::Client);
        self.mark(cx, index, Side::Server);
        if self.leaving {
            self.leave(cx, conns.0);
        }
        conns
    }

    /// Sessions that were handed off are over: there is nobody to whom they could go.
    pub(crate) fn close_handed_off(&mut self, cx: &mut Context<'_>) {
        for index in self.sessions.indices().collect::<Vec<PairId>>() {
            if self.sessions[index].handoff == Handoff::HandedOff {
                self.end(cx, index);
            }
        }
    }
}
