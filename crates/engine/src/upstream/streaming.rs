//! Lanes that one client has to itself for a while.
//!
//! They are made when they are needed, at most [`PRIVATE_LANES_MAX`] for each server, and lose their
//! connection when nobody has needed them for [`IDLE_MAX_US`].

use crate::base::action::Action;
use crate::base::failure::Failure;
use crate::base::id::{BackendId, ClientId, ConnId, LaneId, RequestId, ServerId};
use crate::base::pace::Pace;
use crate::engine::{Closed, Engine};
use crate::upstream::lane::{Lane, Link};

/// Each is a connection more to the server, from every worker.
pub(crate) const PRIVATE_LANES_MAX: usize = 4;
/// Beyond this many bytes that wait to be written on one side the other is not read, until half of
/// them are written.
pub(crate) const AHEAD_MAX: u64 = 1 << 20;
const IDLE_MAX_US: u64 = 10_000_000;

/// Values that may be read at once on a lane of large ones, which nobody has to itself.
pub(crate) const BULK_READS_MAX: u32 = 16;

impl Engine {
    /// A free lane to the server; `None` when all are taken, even after those who are too slow have
    /// given up theirs.
    pub(crate) fn streaming_lane(
        &mut self,
        backend: BackendId,
        server: ServerId,
        variant: u16,
    ) -> Result<Option<LaneId>, Failure> {
        let lane = self.free_private_lane(backend, server, variant)?;
        if lane.is_none() && self.want_streaming_lane(backend, server) {
            return self.free_private_lane(backend, server, variant);
        }
        Ok(lane)
    }

    fn free_private_lane(
        &mut self,
        pool_index: BackendId,
        server_index: ServerId,
        variant: u16,
    ) -> Result<Option<LaneId>, Failure> {
        let server = &self.backends[pool_index].servers[server_index];
        if server.is_silent() {
            return Err(Failure::Silent);
        }
        if self.backends[pool_index].has_to_forget(server_index, &self.metrics) {
            return Err(Failure::Forgetting);
        }
        let rank = |lane: &LaneId| {
            let lane = &self.lanes[*lane];
            match lane.link {
                Link::Backoff { .. } => 4,
                _ if lane.variant != variant => 3,
                Link::Ready { .. } => 0,
                Link::Handshaking { .. } | Link::Connecting { .. } => 1,
                Link::Idle => 2,
            }
        };
        let free = |lane: &LaneId| self.lanes[*lane].is_free();
        let best = server.streaming_lanes.iter().copied().filter(free).min_by_key(rank);
        let may_add = server.streaming_lanes.len() < PRIVATE_LANES_MAX;
        let lane = match best {
            Some(lane) if self.lanes[lane].variant == variant => lane,
            _ if may_add => self.add_private_lane(pool_index, server_index, variant),
            Some(lane) => {
                self.reassign(lane, variant);
                lane
            }
            None => return Ok(None),
        };
        self.reach(lane)?;
        Ok(Some(lane))
    }

    /// Makes a free lane one of another variant, which takes another connection.
    pub(crate) fn reassign(&mut self, index: LaneId, variant: u16) {
        if self.lanes[index].has_connection() {
            self.disconnect(index, Closed::ByUs);
        }
        let lane = &mut self.lanes[index];
        lane.variant = variant;
        if lane.last_failure.is_of_variant() {
            // That says nothing about the other.
            (lane.link, lane.last_failure) = (Link::Idle, Failure::Closed);
        }
    }

    /// Has the client told when a lane to the server is free.
    pub(crate) fn await_streaming_lane(&mut self, client: ClientId, server: ServerId) {
        let conn = self.client_conn(client);
        let backend = self.backend_of(client);
        self.backends[backend].servers[server].waiting.push(conn);
        self.notify_want(backend, server);
    }

    /// Whether as many values are read on the lane of large ones as may be.
    pub(crate) fn is_bulk_lane_busy(
        &self,
        backend: BackendId,
        server: ServerId,
        variant: u16,
    ) -> bool {
        let server = &self.backends[backend].servers[server];
        let lane = self.lane(server.bulk_lane(variant));
        lane.in_flight + lane.unsent >= BULK_READS_MAX
    }

    /// Has the client told when there is room on that lane, or when a lane of its own is free.
    pub(crate) fn await_bulk_lane(&mut self, client: ClientId, server: ServerId) {
        let conn = self.client_conn(client);
        let backend = self.backend_of(client);
        self.count_want(backend, server);
        self.backends[backend].servers[server].reading.push(conn);
    }

    pub(crate) fn add_private_lane(
        &mut self,
        backend_id: BackendId,
        server_index: ServerId,
        variant: u16,
    ) -> LaneId {
        let backend = &self.backends[backend_id];
        let wire_protocol = backend.params_set[usize::from(variant)].wire_protocol;
        let lane = self.add_lanes(1, (backend_id, server_index), variant, wire_protocol);
        self.lanes[lane].is_private = true;
        let backend = &mut self.backends[backend_id];
        backend.servers[server_index].streaming_lanes.push(lane);
        self.streaming_lanes.push(lane);
        lane
    }

    /// Lets clients try again that wait for a lane to the server, if one is free.
    #[cold]
    pub(crate) fn wake_waiting(&mut self, backend: BackendId, server: ServerId) {
        let state = &mut self.backends[backend].servers[server];
        let is_free = state.streaming_lanes.iter().any(|&lane| self.lanes[lane].is_free());
        // All of them: it is not known here who still wants it.
        let waiting = if is_free { std::mem::take(&mut state.waiting) } else { Vec::new() };
        self.unblock_all(waiting);
        let state = &self.backends[backend].servers[server];
        if state.reading.is_empty() {
            return;
        }
        let mut params_set = 0..=state.others.len() as u16;
        if is_free || params_set.any(|variant| !self.is_bulk_lane_busy(backend, server, variant)) {
            let state = &mut self.backends[backend].servers[server];
            let reading = std::mem::take(&mut state.reading);
            self.unblock_all(reading);
        }
    }

    pub(crate) fn unblock_all(&mut self, clients: Vec<ConnId>) {
        for conn in clients {
            if self.clients.is_current(conn.client(), conn.generation()) {
                self.unblock(conn.client());
            }
        }
    }

    /// Ends the connection under a request that will never be whole, so that it is not executed, or
    /// whose reply nobody reads. Returns the request, which is in no queue of the lane any more. No
    /// fault of the server's.
    pub(crate) fn abandon(&mut self, index: LaneId) -> RequestId {
        let request = self.lanes[index].head;
        self.forget_key(index, request);
        let lane = &mut self.lanes[index];
        debug_assert!(request == lane.tail, "a private lane has one request");
        (lane.head, lane.tail, lane.first_unsent) =
            (RequestId::NONE, RequestId::NONE, RequestId::NONE);
        (lane.unsent, lane.partial, lane.in_flight, lane.in_flight_size) = (0, 0, 0, 0);
        lane.sent.clear(&mut self.bufs);
        lane.upload = ClientId::NONE;
        lane.close_gets(&mut self.bufs);
        lane.output.clear(&mut self.bufs);
        if lane.has_connection() {
            self.disconnect(index, Closed::ByUs);
        }
        self.publish_queues(index);
        request
    }

    /// Bytes came on a private lane, or its client took some: stops reading it while much of the
    /// reply waits for the client.
    pub(crate) fn balance(&mut self, index: LaneId) {
        let client = self.reader_of(&self.lanes[index]);
        let lane = &mut self.lanes[index];
        lane.progress_at = self.now;
        if lane.is_session {
            return;
        }
        let (mut waits, mut limit) = (0, AHEAD_MAX);
        if client != ClientId::NONE {
            let client = &self.clients[client];
            waits = client.output.len();
            limit = limit.min(self.listeners[client.listener].limits.client_output_max / 2);
        }
        // What was asked behind it, before it was known to be large, must not wait for a client.
        let is_alone = lane.in_flight + lane.unsent <= 1;
        lane.is_hurried &= lane.in_flight > 0;
        let conn = lane.conn;
        if !lane.is_hurried && !lane.paused && waits > limit && is_alone {
            lane.paused = true;
            let request = &self.requests[lane.head];
            if lane.pace.is_older(request.started) {
                lane.pace = Pace::new(self.now, request.arrived.saturating_sub(waits));
            }
            if !std::mem::replace(&mut lane.is_muted, true) {
                self.actions.push_back(Action::PauseRead { conn });
            }
        } else if lane.paused && waits <= limit / 2 {
            lane.paused = false;
            let expiry = self.backends[lane.backend].expiry(self.now);
            lane.arm(index, expiry, &mut self.timers);
        }
        if lane.is_muted && !lane.paused && lane.kept.is_empty() {
            lane.is_muted = false;
            self.actions.push_back(Action::ResumeRead { conn });
        }
    }

    /// Who gets what comes on a private lane, or [`ClientId::NONE`].
    pub(crate) fn reader_of(&self, lane: &Lane) -> ClientId {
        if lane.head == RequestId::NONE { ClientId::NONE } else { self.requests[lane.head].client }
    }

    /// A client took some of its large reply.
    #[cold]
    pub(crate) fn balance_paused(&mut self, client: ClientId) {
        for at in 0..self.streaming_lanes.len() {
            let index = self.streaming_lanes[at];
            let lane = &self.lanes[index];
            if lane.paused && self.reader_of(lane) == client {
                self.balance(index);
                self.take_kept(index);
            }
        }
    }

    /// Goes on with what came while the lane was paused.
    pub(crate) fn take_kept(&mut self, index: LaneId) {
        while let lane = &mut self.lanes[index]
            && !lane.paused
            && let Some(bytes) = lane.kept.pop(&mut self.bufs)
        {
            self.lane_received(index, &bytes);
            self.bufs.give(bytes);
        }
    }

    /// A client is gone: ends connections that were not read for its sake.
    #[cold]
    pub(crate) fn abandon_paused(&mut self) {
        for at in 0..self.streaming_lanes.len() {
            let index = self.streaming_lanes[at];
            let lane = &self.lanes[index];
            if lane.paused && lane.head != RequestId::NONE && self.reader_of(lane) == ClientId::NONE
            {
                let request = self.abandon(index);
                self.free_request(request);
            }
        }
    }

    /// Closes private connections that nobody needs, and takes lanes back from clients that are too
    /// slow for them.
    pub(crate) fn maintain_streaming_lanes(&mut self) {
        for at in 0..self.streaming_lanes.len() {
            let index = self.streaming_lanes[at];
            let lane = &self.lanes[index];
            if lane.upload != ClientId::NONE || lane.paused {
                self.check_pace(index);
            } else if lane.is_free()
                && matches!(lane.link, Link::Ready { .. })
                && self.now.micros_since(lane.progress_at) >= IDLE_MAX_US
            {
                self.disconnect(index, Closed::ByUs);
            }
        }
    }

    /// Ends the connection.
    pub(crate) fn disconnect(&mut self, index: LaneId, closed: Closed) -> Link {
        if closed == Closed::ByUs {
            let conn = self.lane_conn(index);
            self.actions.push_back(Action::Close { conn });
        }
        self.record_answered(index);
        let lane = &mut self.lanes[index];
        self.session_links -= u64::from(lane.is_session && lane.has_connection());
        (lane.peer_id, lane.leased_at) = (0, 0);
        let link = std::mem::replace(&mut lane.link, Link::Idle);
        lane.generation = lane.generation.wrapping_add(1);
        lane.dirty = false;
        lane.reads_replica = false;
        lane.paused = false;
        lane.is_hurried = false;
        lane.is_muted = false;
        lane.kept.clear(&mut self.bufs);
        lane.handshake.output.clear(&mut self.bufs);
        lane.handshake.reply.clear();
        lane.batches.clear();
        lane.close_gets(&mut self.bufs);
        lane.coalesced.reset();
        lane.replays = false;
        lane.written = 0;
        lane.hedged = 0;
        lane.answered = 0;
        lane.users = None;
        lane.recorded = 0;
        if !matches!(link, Link::Connecting { .. }) {
            self.server_of(index).connections -= 1;
            self.publish_connections(index);
        }
        link
    }
}
