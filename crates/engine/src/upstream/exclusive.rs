//! Lanes that clients lease for transactions and blocking calls.
//!
//! A lease lasts over several requests, until the last of them is sent; what is still on its way
//! then keeps the lane from others until it is answered. A lane is given back as it was taken, with
//! no transaction open and nothing watched, or its connection is closed.
//!
//! Each worker makes up to its share of `session_connections` for each server, and of all servers
//! together as many as open files allow. Who finds none waits in the server's line.
//!
//! Where requests wait for a server that cannot be reached (`failover_wait`), so does who wants a lease there: nothing of
//! what it asks is sent before there is a connection. It looks again when its keys have another server, and the first of
//! those that wait now and then, too, until one is connected.

use cashew_metrics::{PoolCounter, ServerCounter, ServerGauge};

use crate::base::action::Action;
use crate::base::failure::Failure;
use crate::base::id::{BackendId, ClientId, ConnId, LaneId, RequestId, ServerId};
use crate::base::time::Time;
use crate::base::timers::Timer;
use crate::downstream::client::Client;
use crate::downstream::receive::Plan;
use crate::downstream::slow_clients::{TELL_US, is_due};
use crate::engine::{Closed, Engine, lanes_here};
use crate::exchange::dispatch::Payload;
use crate::request::{Due, Own, Role};
use crate::upstream::backend::Backend;
use crate::upstream::lane::{Counted, Lane, Link};
use crate::upstream::server::Queues;

/// Clients that may wait for a lease of one server, in each worker.
const LINE_MAX: usize = 4096;
/// How long a connection that nobody needs is kept.
const IDLE_MAX_US: u64 = 60_000_000;
/// A lease of which nothing is made for so long gives way to a client that waits: at the latest when
/// half of the time is up that it may wait.
const UNUSED_MAX_US: u64 = 10_000_000;
/// What is said on a lease may lie unwritten up to so many bytes; beyond that its client waits.
pub(crate) const UNSENT_MAX: u64 = 1 << 20;

/// Connections that are made to one server at once.
const DIALS_MAX: usize = 8;

/// Where a client stands that wants a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It wants none, or has one.
    No,
    /// In line.
    Waits,
    /// It is to have this lane when its request is looked at again.
    Has { lane: LaneId },
    /// It has waited long enough.
    Over,
    /// It is held back by CLIENT PAUSE, whatever it wants.
    HeldBack,
}

/// What became of the wish for a lease.
pub(crate) enum Lease {
    Lane(LaneId),
    /// The client is in line: its request is to be looked at again.
    InLine,
    /// All are taken, and as many wait as may, or this client has waited long enough.
    None,
    /// The server cannot be reached.
    Failed(Failure),
}

impl Engine {
    /// So many connections for sessions there may be at once, over all servers.
    pub fn set_session_connections_max(&mut self, max: u64) {
        self.sessions_max = max;
    }

    /// How many lanes for sessions this worker may have to a server of the pool.
    pub(crate) fn session_lanes_max(&self, backend: &Backend) -> usize {
        lanes_here(backend.config.session_connections, self.rank, self.workers) as usize
    }

    /// Gives the client a lane to itself. It is to be called only while the client is owed nothing:
    /// what it asked by other lanes must not be overtaken.
    pub(crate) fn lease(&mut self, client: ClientId, server: ServerId) -> Lease {
        let backend = self.backend_of(client);
        let Client { variant, ref modes, .. } = self.clients[client];
        match modes.turn {
            Turn::No | Turn::HeldBack => {}
            Turn::Waits => return Lease::InLine,
            Turn::Over => {
                self.clients[client].modes.end_turn();
                return Lease::None;
            }
            Turn::Has { lane } => {
                let state = &self.lanes[lane];
                let is_there = (state.backend, state.server) == (backend, server);
                if is_there && self.is_connecting_for(client, lane) {
                    return Lease::InLine;
                }
                self.clients[client].modes.end_turn();
                if is_there {
                    return self.take(client, lane);
                }
                // Its keys have another server by now.
                self.release(lane);
            }
        }
        if self.backends[backend].servers[server].is_silent() {
            return self.await_server(client, server, Failure::Silent);
        }
        if self.backends[backend].has_to_forget(server, &self.metrics) {
            return Lease::Failed(Failure::Forgetting);
        }
        let is_first = self.backends[backend].servers[server].line.is_empty();
        let lane = match is_first {
            true => self.session_lane(backend, server, variant),
            false => None,
        };
        match lane {
            Some(lane) => self.take(client, lane),
            None => self.join_line(client, server),
        }
    }

    fn take(&mut self, client: ClientId, index: LaneId) -> Lease {
        let Lane { backend, server, .. } = self.lanes[index];
        if !self.lane(index).has_connection() {
            // Nothing need be said twice on a connection that is made for this client.
            self.lanes[index].variant = self.clients[client].variant;
            if let Err(failure) = self.reach(index) {
                self.release(index);
                return self.await_server(client, server, failure);
            }
        }
        if self.awaits_connection(client, index) {
            let state = &mut self.lanes[index];
            state.lease = client;
            state.leased_since = self.now;
            self.clients[client].modes.enter().turn = Turn::Has { lane: index };
            self.count_session(index);
            return Lease::InLine;
        }
        self.clients[client].modes.end_absence();
        let ready = matches!(self.lane(index).link, Link::Ready { .. });
        if ready {
            self.wake_absent(backend, server);
        }
        let lane = &mut self.lanes[index];
        debug_assert!(lane.is_free(), "nothing is on its way on a lane that is taken");
        lane.lease = client;
        lane.leased_at = lane.written;
        lane.leased_since = self.now;
        lane.progress_at = self.now;
        self.align(client, index);
        self.publish_session(index);
        Lease::Lane(index)
    }

    /// A lane that nobody has, which best has the right variant and a connection.
    fn session_lane(
        &mut self,
        backend_id: BackendId,
        server_index: ServerId,
        variant: u16,
    ) -> Option<LaneId> {
        let backend = &self.backends[backend_id];
        let server = &backend.servers[server_index];
        let may_add = server.session_lanes.len() < self.session_lanes_max(backend);
        let rank = |lane: &LaneId| {
            let lane = &self.lanes[*lane];
            match lane.link {
                Link::Ready { .. } => u32::from(lane.variant != variant),
                Link::Handshaking { .. } | Link::Connecting { .. } => 2,
                Link::Idle => 3,
                // While one attempt was in vain the next is not made.
                Link::Backoff { .. } => 4,
            }
        };
        let free = server.session_lanes.iter().copied();
        let free = free.filter(|&lane| !self.lanes[lane].is_taken());
        let best = free.min_by_key(rank);
        if best.is_some_and(|lane| self.lane(lane).has_connection()) {
            return best;
        }
        if best.is_none() && !may_add {
            return None;
        }
        if self.is_paced(backend_id, server_index)
            || self.session_links >= self.sessions_max && !self.close_idle()
        {
            return None;
        }
        Some(best.unwrap_or_else(|| self.add_session_lane(backend_id, server_index, variant)))
    }

    /// Whether so many connections to a server are being made that the next one waits for the end of another:
    /// after a server has come back all its clients want one at once, and it accepts one by one.
    fn is_paced(&self, backend: BackendId, server: ServerId) -> bool {
        let state = &self.backends[backend].servers[server];
        let is_dialling = |lane: &&LaneId| match self.lane(**lane).link {
            Link::Connecting { .. } | Link::Handshaking { .. } => true,
            // Its client is about to.
            Link::Idle | Link::Backoff { .. } => self.lane(**lane).is_taken(),
            Link::Ready { .. } => false,
        };
        let is_paced = state.session_lanes.len() >= DIALS_MAX
            && state.session_lanes.iter().filter(is_dialling).count() >= DIALS_MAX;
        if is_paced {
            self.metrics.add_server(state.metrics, ServerCounter::ConnectsPaced, 1);
        }
        is_paced
    }

    fn add_session_lane(&mut self, backend: BackendId, server: ServerId, variant: u16) -> LaneId {
        let wire_protocol = self.backends[backend].params_set[usize::from(variant)].wire_protocol;
        let lane = self.add_lanes(1, (backend, server), variant, wire_protocol);
        let state = &mut self.lanes[lane];
        (state.is_private, state.is_session) = (true, true);
        self.backends[backend].servers[server].session_lanes.push(lane);
        lane
    }

    /// Closes a connection for sessions that nobody has, to whichever server. Returns whether there
    /// was one.
    #[cold]
    fn close_idle(&mut self) -> bool {
        let servers = self.backends.iter().flat_map(|backend| &backend.servers);
        let mut lanes = servers.flat_map(|server| &server.session_lanes).copied();
        let unused = lanes.find(|&lane| {
            let lane = self.lane(lane);
            lane.has_connection() && !lane.is_taken()
        });
        if let Some(lane) = unused {
            self.disconnect(lane, Closed::ByUs);
        }
        unused.is_some()
    }

    /// Brings what the lane's connection has agreed on to what its client has. To be called before
    /// anything is sent for the client.
    pub(crate) fn align(&mut self, client: ClientId, index: LaneId) {
        let wanted = self.clients[client].variant;
        let lane = &mut self.lanes[index];
        if lane.variant == wanted {
            return;
        }
        debug_assert!(lane.is_free(), "a client that is owed nothing agrees on something else");
        let before = std::mem::replace(&mut lane.variant, wanted);
        // Until then the handshake is still to come, and goes by the lane's variant.
        if matches!(lane.link, Link::Ready { .. } | Link::Handshaking { .. }) {
            self.greet_again(index, before);
        }
    }

    /// Says something of the gateway's own on a lane, to which an answer is due.
    pub(crate) fn ask(&mut self, lane: LaneId, own: Own, due: Due, words: &[&str]) {
        let mut text = String::new();
        use std::fmt::Write;
        let _ = write!(text, "*{}\r\n", words.len());
        for word in words {
            let _ = write!(text, "${}\r\n{word}\r\n", word.len());
        }
        self.ask_with(lane, own, due, text.as_bytes());
    }

    pub(crate) fn ask_with(&mut self, lane: LaneId, own: Own, due: Due, text: &[u8]) {
        let backend = self.lanes[lane].backend;
        let (request, slot) = self.requests.add(backend, ClientId::NONE, self.now);
        (slot.role, slot.due) = (Role::Own(own), due);
        self.send(lane, request, Payload::Bytes(text));
    }

    /// The reply to something that the gateway asked for itself.
    pub(crate) fn own_reply(&mut self, own: Own, reply: &[u8]) {
        match own {
            Own::Whatever | Own::Seal(_) | Own::Invalidation { .. } | Own::Twin { .. } => {}
            Own::Queued { lane } => self.note_refused_part(lane, reply),
            Own::Together { asker, slot, lane, asks } => {
                self.keys_answered((asker, slot), (lane, asks), reply);
            }
            Own::Demand { lane } => {
                if reply.starts_with(b"-") {
                    self.break_session(lane, Failure::HandshakeRefused);
                }
            }
            Own::PeerId { lane } => {
                let id = cashew_protocol::resp::reply(reply);
                if let Some(cashew_protocol::resp::Reply::Integer(id)) = id {
                    self.lanes[lane].peer_id = id.unsigned_abs();
                }
                self.withdraw_due(lane);
            }
            Own::Unblock { client } => self.note_not_ended(client, reply),
        }
    }

    /// The lane is nobody's any more, as soon as what is on its way there is answered.
    pub(crate) fn release(&mut self, index: LaneId) {
        self.lanes[index].lease = ClientId::NONE;
        self.publish_session(index);
    }

    // The line.

    fn join_line(&mut self, client: ClientId, server: ServerId) -> Lease {
        let conn = self.client_conn(client);
        let backend_id = self.backend_of(client);
        let backend = &mut self.backends[backend_id];
        let until = self.now.plus_millis(backend.config.session_wait_ms);
        let line = &mut backend.servers[server].line;
        if line.len() >= LINE_MAX {
            return Lease::None;
        }
        line.push_back((conn, until));
        self.clients[client].modes.enter().turn = Turn::Waits;
        self.arm_lines(until);
        self.publish_line(backend_id, server);
        self.tell_line(backend_id, server);
        Lease::InLine
    }

    /// Counts and tells that somebody has to wait.
    #[cold]
    fn tell_line(&mut self, backend_id: BackendId, server_index: ServerId) {
        let backend = &mut self.backends[backend_id];
        self.metrics.add_pool(backend.metrics, PoolCounter::SessionWaits, 1);
        let server = &mut backend.servers[server_index];
        if is_due(&mut server.line_told_at, self.now, TELL_US) {
            let clients = server.line.len() as u32;
            let (backend, server) = (backend_id, server_index);
            self.actions.push_back(Action::SessionsWait { backend, server, clients });
        }
    }

    /// Whether a lane is still being connected for the client that is to have it, and may not be given to it before:
    /// what is sent there would fail with the attempt.
    fn is_connecting_for(&self, client: ClientId, index: LaneId) -> bool {
        let lane = self.lane(index);
        let is_made = matches!(lane.link, Link::Connecting { .. } | Link::Handshaking { .. });
        lane.lease == client && is_made && self.absence_until(client, lane.backend) > self.now
    }

    /// The same of a client that has not begun to wait perhaps, and does so.
    fn awaits_connection(&mut self, client: ClientId, index: LaneId) -> bool {
        let Lane { backend, server, link, .. } = self.lanes[index];
        if self.backends[backend].failover_wait_us == 0 || matches!(link, Link::Ready { .. }) {
            return false;
        }
        self.clients[client].modes.enter().absent_since.get_or_insert(self.now);
        let until = self.absence_until(client, backend);
        if until <= self.now {
            return false;
        }
        let state = &mut self.backends[backend].servers[server];
        state.dials_until = state.dials_until.min(until);
        self.arm_lines(until);
        true
    }

    /// How long a client waits for a server that cannot be reached.
    fn absence_until(&self, client: ClientId, backend: BackendId) -> Time {
        let state = &self.backends[backend];
        let since = self.clients[client].modes.absent_since.unwrap_or(self.now);
        since.plus_micros(state.failover_wait_us).min(state.expiry(since))
    }

    /// The server cannot be reached: the client waits for it, if it may and has not done so for long enough.
    #[cold]
    fn await_server(&mut self, client: ClientId, server: ServerId, why: Failure) -> Lease {
        let conn = self.client_conn(client);
        let backend = self.backend_of(client);
        self.clients[client].modes.enter().absent_since.get_or_insert(self.now);
        let until = self.absence_until(client, backend);
        let state = &self.backends[backend].servers[server];
        let is_full = state.absent_line.len() >= LINE_MAX;
        let may_wait = self.is_worth_waiting(backend, why) && !state.ejected && !is_full;
        if !may_wait || until <= self.now {
            self.clients[client].modes.end_absence();
            return Lease::Failed(why);
        }
        self.clients[client].modes.enter().turn = Turn::Waits;
        let line = &mut self.backends[backend].servers[server].absent_line;
        line.push(conn, until, self.now);
        let due = line.due();
        self.arm_lines(due);
        self.publish_line(backend, server);
        Lease::InLine
    }

    /// All look again that wait for a server that could not be reached.
    pub(crate) fn wake_absent(&mut self, backend: BackendId, server: ServerId) {
        let line = self.backends[backend].servers[server].absent_line.take_all();
        if !line.is_empty() {
            self.let_look_again(line);
            self.publish_line(backend, server);
        }
    }

    fn let_look_again(&mut self, clients: Vec<ConnId>) {
        self.line_looks += clients.len() as u64;
        for conn in clients {
            self.clients[conn.client()].modes.end_turn();
            self.unblock(conn.client());
        }
    }

    /// How often clients looked again so far that waited for a connection to themselves: for tests.
    pub fn looks_of_lines(&self) -> u64 {
        self.line_looks
    }

    /// The keys of a pool have other servers perhaps: all look again that wait for one that cannot be reached.
    pub(crate) fn wake_all_absent(&mut self, backend: BackendId) {
        for server in self.backends[backend].servers.ids() {
            self.wake_absent(backend, server);
            self.wake_all_connecting(backend, server);
        }
    }

    /// All look again for which a lane to the server is being connected.
    pub(crate) fn wake_all_connecting(&mut self, backend: BackendId, server: ServerId) {
        if self.backends[backend].servers[server].dials_until == Time::NEVER {
            return;
        }
        for lane in self.backends[backend].servers[server].session_lanes.clone() {
            self.wake_connecting(lane);
        }
    }

    /// The client looks again for which a lane is, or was, being connected.
    pub(crate) fn wake_connecting(&mut self, index: LaneId) {
        let client = self.lane(index).lease;
        if client != ClientId::NONE
            && self.clients[client].modes.turn == (Turn::Has { lane: index })
        {
            self.unblock(client);
        }
    }

    /// Lets the first try again that waits for a server that cannot be reached, and those know that have waited for
    /// long enough.
    fn maintain_absent(&mut self, backend: BackendId, server: ServerId) {
        let now = self.now;
        if self.backends[backend].servers[server].dials_until <= now {
            self.maintain_connecting(backend, server);
        }
        let state = &mut self.backends[backend].servers[server];
        let due = state.absent_line.take_due(now);
        let next = state.absent_line.due().min(state.dials_until);
        self.arm_lines(next);
        if !due.is_empty() {
            self.let_look_again(due);
            self.publish_line(backend, server);
        }
    }

    /// Lets those know that have waited for long enough for a lane that is being connected.
    #[cold]
    fn maintain_connecting(&mut self, backend: BackendId, server: ServerId) {
        let mut until = Time::NEVER;
        for lane in self.backends[backend].servers[server].session_lanes.clone() {
            let client = self.lanes[lane].lease;
            if client == ClientId::NONE || self.clients[client].modes.turn != (Turn::Has { lane }) {
                continue;
            }
            let its = self.absence_until(client, backend);
            if its <= self.now {
                self.wake_connecting(lane);
            } else if self.clients[client].modes.absent_since.is_some() {
                until = until.min(its);
            }
        }
        self.backends[backend].servers[server].dials_until = until;
    }

    /// It is looked then whether somebody in a line has waited for long enough, or may look again.
    fn arm_lines(&mut self, at: Time) {
        if at < self.lines_due {
            self.lines_due = at;
            self.timers.arm(at, Timer::Line);
        }
    }

    /// Gives lanes that nobody has to those who wait for them.
    #[cold]
    pub(crate) fn serve_line(&mut self, backend: BackendId, server: ServerId) {
        while let Some((conn, _)) = self.first_in_line(backend, server) {
            let variant = self.clients[conn.client()].variant;
            let Some(lane) = self.session_lane(backend, server, variant) else { break };
            self.backends[backend].servers[server].line.pop_front();
            let client = conn.client();
            self.lanes[lane].lease = client;
            self.clients[client].modes.enter().turn = Turn::Has { lane };
            self.count_session(lane);
            self.unblock(client);
        }
        self.publish_line(backend, server);
    }

    /// All in a line are clients that wait: who does not any more is taken out. Another client may have the number
    /// of one that is gone, so nobody else has its turn.
    fn first_in_line(&mut self, backend: BackendId, server: ServerId) -> Option<(ConnId, Time)> {
        loop {
            let first = self.backends[backend].servers[server].line.front().copied()?;
            if self.waits_in_line(first.0) {
                return Some(first);
            }
            debug_assert!(false, "who waits no more leaves the line");
            self.backends[backend].servers[server].line.pop_front();
        }
    }

    fn waits_in_line(&self, conn: ConnId) -> bool {
        let client = self.clients.get(conn.client(), conn.generation());
        client.is_some_and(|client| client.modes.turn == Turn::Waits)
    }

    /// Lets those know who have waited long enough. Within a line all wait equally long.
    pub(crate) fn maintain_waiters(&mut self) {
        self.lines_due = Time::NEVER;
        for backend in self.backends.ids() {
            for server in self.backends[backend].servers.ids() {
                self.maintain_absent(backend, server);
                if self.backends[backend].servers[server].line.is_empty() {
                    continue;
                }
                while let Some((conn, until)) = self.first_in_line(backend, server) {
                    let client = &mut self.clients[conn.client()];
                    if until > self.now {
                        self.arm_lines(until);
                        break;
                    }
                    self.line_looks += 1;
                    client.modes.enter().turn = Turn::Over;
                    self.backends[backend].servers[server].line.pop_front();
                    self.unblock(conn.client());
                }
                self.publish_line(backend, server);
            }
        }
    }

    /// All of the server's line look again where they belong.
    pub(crate) fn dissolve_line(&mut self, backend: BackendId, server: ServerId) {
        self.wake_absent(backend, server);
        let line = std::mem::take(&mut self.backends[backend].servers[server].line);
        for (conn, _) in line {
            if !self.waits_in_line(conn) {
                continue;
            }
            self.clients[conn.client()].modes.end_turn();
            self.unblock(conn.client());
        }
        self.publish_line(backend, server);
    }

    /// The client wants no lease any more.
    pub(crate) fn leave_line(&mut self, client: ClientId) {
        match self.clients[client].modes.end_turn() {
            Turn::Has { lane } => self.release(lane),
            Turn::Waits => self.take_out_of_line(client, self.backend_of(client)),
            Turn::No | Turn::Over | Turn::HeldBack => {}
        }
    }

    /// The client looks again where its request belongs, if it waits at this backend or has waited there.
    pub(crate) fn leave_line_at(&mut self, client: ClientId, backend: BackendId) {
        if matches!(self.clients[client].modes.turn, Turn::No | Turn::HeldBack) {
            return;
        }
        match self.clients[client].modes.end_turn() {
            Turn::Has { lane } => self.release(lane),
            Turn::Waits if backend != BackendId::NONE => self.take_out_of_line(client, backend),
            Turn::No | Turn::Waits | Turn::Over | Turn::HeldBack => {}
        }
        self.unblock(client);
    }

    /// Who is gone takes no room from others.
    #[cold]
    fn take_out_of_line(&mut self, client: ClientId, backend: BackendId) {
        let conn = self.client_conn(client);
        for server in self.backends[backend].servers.ids() {
            let state = &mut self.backends[backend].servers[server];
            let place = state.line.iter().position(|&(other, _)| other == conn);
            let is_out = place.and_then(|place| state.line.remove(place)).is_some();
            if is_out || state.absent_line.remove(conn) {
                self.publish_line(backend, server);
                return;
            }
        }
    }

    /// A request has been dispatched. What its client waited for and did not take after all, as other
    /// keys came together or apart meanwhile, is for others.
    #[inline]
    pub(crate) fn end_unused_turn(&mut self, client: ClientId) {
        let modes = &mut self.clients[client].modes;
        // It was for this request only, which was answered in another way.
        if modes.ending.is_some() {
            modes.take_ending();
        }
        if modes.absent_since.is_some() {
            modes.end_absence();
        }
        if matches!(modes.turn, Turn::Has { .. } | Turn::Over) {
            self.leave_line(client);
        }
    }

    fn publish_line(&mut self, backend: BackendId, server: ServerId) {
        let server = &self.backends[backend].servers[server];
        self.metrics.set_server(server.metrics, ServerGauge::InLine, server.in_line());
    }

    // How leases end that are not given back.

    /// Ends the connection of a lane that a client leased, or one with requests that must not be
    /// executed by themselves: all of them fail. No fault of the server's.
    pub(crate) fn break_session(&mut self, index: LaneId, failure: Failure) {
        self.observe_lost(index, failure);
        if self.lane(index).has_connection() {
            self.disconnect(index, Closed::ByUs);
        }
        let holder = self.lane(index).lease;
        self.fail_sent(index, failure);
        self.fail_unsent(index, failure);
        self.lose_lease(index, holder, failure);
    }

    /// The lane's connection is gone, and with it what the client had agreed on there who had
    /// leased it until then, if one had.
    pub(crate) fn lose_lease(&mut self, index: LaneId, client: ClientId, failure: Failure) {
        if client == ClientId::NONE || self.lane(index).lease != client {
            return;
        }
        self.lanes[index].lease = ClientId::NONE;
        match self.clients[client].modes.turn {
            // It has not said anything there.
            Turn::Has { .. } => {
                self.clients[client].modes.end_turn();
                self.unblock(client);
            }
            Turn::No | Turn::Waits | Turn::Over | Turn::HeldBack => {
                self.lose_transaction(client, self.named_of(index, failure))
            }
        }
        self.publish_session(index);
    }

    /// Ends the connection under requests that are for nobody any more.
    pub(crate) fn abandon_session(&mut self, index: LaneId) {
        if self.lane(index).has_connection() {
            self.disconnect(index, Closed::ByUs);
        }
        let lane = &mut self.lanes[index];
        lane.lease = ClientId::NONE;
        let mut at = lane.head;
        (lane.head, lane.tail, lane.first_unsent) =
            (RequestId::NONE, RequestId::NONE, RequestId::NONE);
        (lane.unsent, lane.partial, lane.in_flight, lane.in_flight_size) = (0, 0, 0, 0);
        lane.sent.clear(&mut self.bufs);
        lane.output.clear(&mut self.bufs);
        while at != RequestId::NONE {
            let next = self.requests[at].next_in_lane;
            debug_assert_eq!(self.requests[at].client, ClientId::NONE);
            self.free_request(at);
            at = next;
        }
        self.publish_queues(index);
    }

    /// Whether a connection of the lane that is about to end had begun something that cannot be
    /// gone on with on another one.
    pub(crate) fn is_engaged(&self, index: LaneId) -> bool {
        let lane = self.lane(index);
        lane.is_session && (lane.written > lane.leased_at || lane.partial > 0)
    }

    // Now and then.

    /// Closes connections that nobody needs, makes ready those that somebody will, and takes leases
    /// back of which nothing is made while others wait.
    pub(crate) fn maintain_sessions(&mut self) {
        for backend in self.backends.ids() {
            for server in self.backends[backend].servers.ids() {
                let state = &self.backends[backend].servers[server];
                if !state.session_lanes.is_empty() {
                    self.maintain_exclusive_lanes(backend, server);
                }
                self.make_ready(backend, server);
                // There may be room by now that another server's connections left.
                if !self.backends[backend].servers[server].line.is_empty() {
                    self.serve_line(backend, server);
                }
            }
        }
    }

    fn maintain_exclusive_lanes(&mut self, backend: BackendId, server: ServerId) {
        let state = &self.backends[backend];
        let max = self.session_lanes_max(state);
        let kept = state.config.session_connections_idle as usize;
        let unused_max_us = UNUSED_MAX_US.min(state.config.session_wait_ms * 500);
        let held_max_us = state.limits.session_hold_ms * 1000;
        let state = &state.servers[server];
        let is_awaited = !state.line.is_empty();
        let mut unused = 0;
        for lane in state.session_lanes.clone() {
            let state = self.lane(lane);
            let idle_us = self.now.micros_since(state.progress_at);
            if state.lease != ClientId::NONE {
                let is_unused = state.is_free() && idle_us >= unused_max_us;
                let modes = &self.clients[state.lease].modes;
                let is_held = modes.transaction.is_some()
                    && self.now.micros_since(state.leased_since) >= held_max_us;
                if is_awaited && (is_unused || is_held) && modes.turn == Turn::No {
                    self.take_back(lane, if is_held { Failure::Held } else { Failure::Unused });
                }
            } else if state.is_free() {
                let is_ready = matches!(state.link, Link::Ready { .. });
                unused += usize::from(is_ready);
                let is_over = is_ready && unused > kept && idle_us >= IDLE_MAX_US;
                let count = self.backends[backend].servers[server].session_lanes.len();
                if is_over || (count > max && state.has_connection()) {
                    self.disconnect(lane, Closed::ByUs);
                }
                if count > max && self.lane(lane).link == Link::Idle {
                    let state = &mut self.backends[backend].servers[server];
                    state.session_lanes.retain(|&other| other != lane);
                    self.vacate(lane.number()..lane.number() + 1);
                }
            }
        }
    }

    /// A client has not used its lease for long, or has had it for long, and others wait.
    fn take_back(&mut self, lane: LaneId, why: Failure) {
        let backend = self.lane(lane).backend;
        let metrics = self.backends[backend].metrics;
        self.metrics.add_pool(metrics, PoolCounter::SessionsReclaimed, 1);
        self.break_session(lane, why);
    }

    /// Connects as many as are to be ready.
    fn make_ready(&mut self, backend_id: BackendId, server_index: ServerId) {
        let backend = &self.backends[backend_id];
        let server = &backend.servers[server_index];
        let max = self.session_lanes_max(backend);
        let wanted = (backend.config.session_connections_idle as usize).min(max);
        if wanted == 0 || !backend.is_in_use() || !server.is_up() {
            return;
        }
        let lanes = server.session_lanes.clone();
        let free = || lanes.iter().filter(|&&lane| !self.lane(lane).is_taken());
        let connected = free().filter(|&&lane| self.lane(lane).has_connection()).count();
        let mut idle: Vec<LaneId> =
            free().copied().filter(|&lane| self.lane(lane).link == Link::Idle).collect();
        let mut count = lanes.len();
        for _ in connected..wanted {
            let lane = match idle.pop() {
                Some(lane) => lane,
                None if count < max => {
                    count += 1;
                    self.add_session_lane(backend_id, server_index, 0)
                }
                None => return,
            };
            if self.session_links >= self.sessions_max || self.is_paced(backend_id, server_index) {
                return;
            }
            self.lanes[lane].progress_at = self.now;
            self.connect(lane);
        }
    }

    // Statistics.

    /// The state of a lane for sessions has changed: counts it, and lets those go on who wait.
    pub(crate) fn publish_session(&mut self, index: LaneId) {
        self.count_session(index);
        let lane = &self.lanes[index];
        let (backend, server) = (lane.backend, lane.server);
        if !lane.is_taken() && !self.backends[backend].servers[server].line.is_empty() {
            self.serve_line(backend, server);
        }
    }

    fn count_session(&mut self, index: LaneId) {
        let lane = &mut self.lanes[index];
        let counted = Counted { queues: Queues::of(lane), is_taken: lane.is_taken() };
        let before = std::mem::replace(&mut lane.counted, counted);
        let server = &mut self.backends[lane.backend].servers[lane.server];
        server.session_queues.replace(before.queues, counted.queues);
        if before.is_taken != counted.is_taken {
            match counted.is_taken {
                true => server.sessions += 1,
                false => server.sessions -= 1,
            }
            let sessions = u64::from(server.sessions);
            self.metrics.set_server(server.metrics, ServerGauge::Sessions, sessions);
        }
    }

    /// What a client is told that finds no lease.
    pub(crate) fn no_lease(&mut self, client: ClientId, server: ServerId) -> String {
        let backend = &self.backends[self.backend_of(client)];
        let server = match backend.config.hide_topology {
            true => "a server".to_owned(),
            false => format!("server {}", backend.config.servers[server.index()].name),
        };
        format!(
            "ERR all connections to {server} for transactions and blocking calls are in use; \
             session_connections of pool {} is their number",
            backend.config.name
        )
    }

    /// What comes of a request for which there is no lease, or not yet.
    pub(crate) fn without_lease(
        &mut self,
        client: ClientId,
        server: ServerId,
        lease: &Lease,
    ) -> Plan {
        match *lease {
            Lease::Lane(_) | Lease::InLine => Plan::Wait,
            Lease::None => {
                let text = self.no_lease(client, server);
                self.reply_error(client, &text)
            }
            Lease::Failed(failure) => self.fail_for(client, server, failure),
        }
    }
}
