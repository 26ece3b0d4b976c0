//! Changes of one pool's ring: hold, then release.

use cashew_config::snapshot::TopologyState;
use cashew_metrics::{Evidence, PoolCounter, PoolGauge, ServerGauge};

use crate::base::action::Action;
use crate::base::failure::Failure;
use crate::base::id::{BackendId, ClientId, LaneId, RequestId, ServerId};
use crate::base::time::Time;
use crate::base::timers::Timer;
use crate::downstream::listener::Destination;
use crate::engine::{Closed, Engine};
use crate::exchange::dispatch::Payload;
use crate::upstream::backend::Hold;
use crate::upstream::lane::{Lane, Link};
use crate::upstream::server::Server;

/// Requests on their way from a lane of a server to that of its successor, each with its bytes.
pub(crate) struct Heirs {
    /// The same of the successor's lanes is theirs.
    variant: u16,
    offset: u32,
    requests: Vec<(RequestId, Vec<u8>)>,
}

impl Engine {
    /// First phase of a change of a pool's ring: from here on the pool dispatches nothing.
    /// [`Action::Held`] says when nothing is on its way any more to servers that are well, or that
    /// `drain_ms` are over.
    pub fn handle_hold(&mut self, backend: BackendId, version: u64, drain_ms: u64, now: Time) {
        self.now = now;
        let until = now.plus_millis(drain_ms);
        self.backends[backend].hold = Some(Hold { version, until, is_told: false });
        self.update_held_before(backend);
        self.withdraw_all(|of| of == backend);
        self.watch_until(until);
    }

    /// Second phase: the pool goes on, by this topology. `wall_us` is the time of day for the
    /// statistics, in microseconds since 1970.
    ///
    /// # Panics
    ///
    /// Unless the topology has a flag for each server of the pool.
    pub fn handle_release(
        &mut self,
        backend: BackendId,
        version: u64,
        topology: TopologyState,
        now: Time,
        wall_us: u64,
    ) {
        self.now = now;
        self.backends[backend].hold = None;
        self.update_held_before(backend);
        let state = &mut self.backends[backend];
        state.ring_version = version;
        self.metrics.set_pool(state.metrics, PoolGauge::RingVersion, version);
        let live = topology.live.clone();
        let is_other = *state.topology.state() != topology;
        let mut drained = Vec::new();
        if is_other {
            let before: Vec<ServerId> = state.topology.primaries().collect();
            let was_drained: Vec<bool> =
                state.servers.ids().map(|it| state.topology.is_drained(it)).collect();
            state.topology.set_state(topology);
            let is_new = |it: &ServerId| state.topology.is_drained(*it) && !was_drained[it.index()];
            drained = state.servers.ids().filter(is_new).collect();
            state.distrust_replicas(&self.metrics, now);
            let moved: Vec<(ServerId, ServerId)> = before
                .into_iter()
                .zip(state.topology.primaries())
                .filter(|(old, new)| old != new)
                .collect();
            for (old, new) in moved {
                self.supersede(backend, old, new);
            }
            self.invalidate_leases(|of| of == backend);
        }
        for (server, live) in (0..).map(ServerId::new).zip(live) {
            let state = &self.backends[backend];
            let is_drained = state.topology.is_drained(server);
            let drained = u64::from(state.topology.drained(server));
            self.metrics.set_server(state.servers[server].metrics, ServerGauge::Drained, drained);
            self.set_ejected(backend, server, !live && !is_drained, wall_us);
        }
        for server in drained {
            self.fail_waiting(backend, server);
        }
        if is_other {
            self.place_topics(backend);
            self.forget_kept(backend);
            self.tracked_servers_changed(backend);
        }
        // Of a route, whichever of its pools they have asked last.
        self.unblock_clients(|it| it.backend == backend || it.leads_to(backend));
    }

    /// Lets the clients go on that go there and have no other reason to wait.
    pub(crate) fn unblock_clients(&mut self, goes_there: impl Fn(&Destination) -> bool) {
        for client in self.clients.indices().collect::<Vec<ClientId>>() {
            if goes_there(self.destination_of(client)) {
                self.unblock(client);
            }
        }
    }

    fn set_ejected(&mut self, backend_id: BackendId, index: ServerId, ejected: bool, wall_us: u64) {
        let backend = &mut self.backends[backend_id];
        let server = &mut backend.servers[index];
        server.ask_at = Time::ZERO;
        if server.ejected == ejected {
            return;
        }
        server.ejected = ejected;
        server.failures = 0;
        self.metrics.set_server(server.metrics, ServerGauge::Ejected, u64::from(ejected));
        let evidence = if ejected { Evidence::Ejected } else { Evidence::Returned };
        self.note_evidence(backend_id, index, evidence);
        if !ejected {
            self.readmitted(backend_id, index);
            return;
        }
        let backend = &self.backends[backend_id];
        let server = &backend.servers[index];
        self.metrics.set_server(server.metrics, ServerGauge::EjectedAt, wall_us);
        // All workers eject, one counts.
        if self.rank == 0 {
            self.metrics.add_pool(backend.metrics, PoolCounter::ServerEjects, 1);
        }
        self.arm_probe(backend_id, index);
        self.fail_waiting(backend_id, index);
    }

    /// Another worker found the server well; what is known of it here is out of date.
    pub(crate) fn readmitted(&mut self, backend: BackendId, index: ServerId) {
        let server = &self.backends[backend].servers[index];
        let (first, own, is_failing) =
            (server.first_lane, server.own_lanes().collect::<Vec<LaneId>>(), server.failing);
        let is_silent = server.is_silent();
        let (feed, tracker) = (server.feed_lane(), server.tracker_lane());
        let private = server.streaming_lanes.iter().chain(&server.session_lanes);
        for &lane in private.chain(&feed).chain(&tracker) {
            let link = &mut self.lanes[lane].link;
            if let Link::Backoff { .. } = link {
                *link = Link::Idle;
            }
        }
        if is_silent {
            self.end_silence(backend, index);
        }
        for lane in own {
            let state = &mut self.lanes[lane];
            state.attempts = 0;
            match state.link {
                Link::Backoff { .. } => self.connect(lane),
                Link::Idle if is_failing && lane == first => self.connect(lane),
                _ => {}
            }
        }
    }

    /// Looks at the end of every tick whether there is something to say about changes, and at that
    /// time at the latest.
    pub(crate) fn watch_until(&mut self, at: Time) {
        self.is_watching = true;
        self.timers.arm(at, Timer::Change);
    }

    /// Says what has become true about changes.
    #[cold]
    pub(crate) fn watch_changes(&mut self) {
        self.is_watching = self.watch_epoch();
        for index in self.backends.ids().take(self.backends_in_use) {
            let pool = &self.backends[index];
            let Some(hold) = pool.hold.filter(|hold| !hold.is_told) else { continue };
            let awaits = |server: &Server| {
                server.is_up() && server.all_lanes().any(|lane| self.is_busy(lane))
            };
            if self.now < hold.until && pool.servers.iter().any(awaits) {
                self.is_watching = true;
                continue;
            }
            self.backends[index].hold = Some(Hold { is_told: true, ..hold });
            let (pool, version) = (index, hold.version);
            self.actions.push_back(Action::Held { backend: pool, version });
        }
    }

    /// The server is left out of the ring: what waits for it fails, since what comes next goes elsewhere
    /// and would overtake it.
    pub(crate) fn fail_waiting(&mut self, backend: BackendId, server: ServerId) {
        let own: Vec<LaneId> = self.backends[backend].servers[server].own_lanes().collect();
        for lane in own {
            let waits = matches!(self.lane(lane).link, Link::Idle | Link::Backoff { .. });
            if waits && self.lane(lane).unsent > 0 {
                self.fail_unsent(lane, self.lane(lane).absence());
            }
        }
    }

    /// Another server takes a primary's place. What is still on its way there fails, so that nobody is told
    /// that the former one has executed it; what was not sent goes to the new one.
    fn supersede(&mut self, backend: BackendId, old: ServerId, new: ServerId) {
        let state = &self.backends[backend].servers[old];
        let own: Vec<LaneId> = state.own_lanes().collect();
        let private = state.session_lanes.iter().chain(&state.streaming_lanes);
        // Of transactions that rest there the lease ends: see `invalidate_leases`.
        let may_reach_it = |lane: LaneId| self.lane(lane).unsent > 0 || self.may_execute(lane);
        let private: Vec<LaneId> = private.copied().filter(|&it| may_reach_it(it)).collect();
        for &lane in &own {
            if self.may_execute(lane) {
                self.cut_lane(lane, Failure::Replaced);
            }
        }
        // One that is left out of the ring gets nothing.
        if self.backends[backend].topology.is_on_ring(new) {
            let heirs = self.take_waiting(backend, old);
            self.give_waiting(backend, new, heirs);
        }
        for lane in own {
            if self.lane(lane).in_flight == 0 {
                self.fail_unsent(lane, Failure::Replaced);
            }
        }
        for lane in private {
            self.break_session(lane, Failure::Replaced);
        }
    }

    /// The same of a primary of before, if it is a replica from here on.
    pub(crate) fn supersede_if_replica(&mut self, backend: BackendId, server: ServerId) {
        let new = self.backends[backend].topology.primary_of(server);
        if new != server {
            self.supersede(backend, server, new);
        }
    }

    /// Whether something is on its way of which nobody knows whether it is executed. A reply that a client
    /// has half of is none: it is that of a read, and goes on.
    fn may_execute(&self, index: LaneId) -> bool {
        let lane = self.lane(index);
        let is_read_only = lane.in_flight == 1 && self.requests[lane.head].streaming;
        (lane.in_flight > 0 && !is_read_only) || lane.partial > 0
    }

    /// Ends a connection that clients share. What was sent on it fails.
    pub(crate) fn cut_lane(&mut self, lane: LaneId, why: Failure) {
        if self.lane(lane).has_connection() {
            self.disconnect(lane, Closed::ByUs);
        }
        self.lanes[lane].link = Link::Idle;
        self.fail_sent(lane, why);
    }

    /// Takes what waits on a server's lanes, with nothing in flight there, for the server that takes its
    /// place.
    pub(crate) fn take_waiting(&mut self, backend: BackendId, server: ServerId) -> Vec<Heirs> {
        let state = &self.backends[backend].servers[server];
        let count = state.lanes + 1;
        let firsts = std::iter::once(state.first_lane).chain(state.others.iter().copied());
        let firsts: Vec<LaneId> = firsts.collect();
        let mut heirs = Vec::new();
        for (first, variant) in firsts.into_iter().zip(0..) {
            if first == LaneId::NONE {
                continue;
            }
            for offset in 0..count {
                let requests = self.take_unsent(LaneId::new(first.number() + offset));
                if !requests.is_empty() {
                    heirs.push(Heirs { variant, offset, requests });
                }
            }
        }
        heirs
    }

    /// Takes what waits on those of a node's lanes that have no connection, for the owners of its slots: each with
    /// the number of what its client has agreed on, and whether it is for the lane of large values.
    pub(crate) fn take_waiting_unconnected(
        &mut self,
        backend: BackendId,
        server: ServerId,
    ) -> Vec<(u16, bool, RequestId, Vec<u8>)> {
        let state = &self.backends[backend].servers[server];
        let lanes: Vec<LaneId> = state.own_lanes().collect();
        let mut waiting = Vec::new();
        for lane in lanes {
            let Lane { link, variant, .. } = self.lanes[lane];
            if matches!(link, Link::Ready { .. }) {
                continue;
            }
            let is_large = self.backends[backend].servers[server].bulk_lane(variant) == lane;
            let taken = self.take_unsent(lane).into_iter();
            waiting.extend(taken.map(|(request, bytes)| (variant, is_large, request, bytes)));
        }
        waiting
    }

    fn take_unsent(&mut self, index: LaneId) -> Vec<(RequestId, Vec<u8>)> {
        let lane = &mut self.lanes[index];
        lane.close_gets(&mut self.bufs);
        let is_plain = lane.in_flight == 0 && lane.partial == 0 && lane.upload == ClientId::NONE;
        if lane.unsent == 0 || !is_plain {
            return Vec::new();
        }
        let text = lane.output.to_vec();
        let mut requests = Vec::with_capacity(lane.unsent as usize);
        let (mut at, mut start, mut before) = (lane.first_unsent, 0, 0);
        while at != RequestId::NONE {
            let request = &self.requests[at];
            if request.expect.is_coalesced() {
                // Its bytes are those of several.
                for (_, bytes) in requests {
                    self.bufs.give(bytes);
                }
                return Vec::new();
            }
            if request.follows {
                requests.push((at, self.bufs.copy_of(&text[before..start])));
                at = request.next_in_lane;
                continue;
            }
            let end = start + request.wire_len as usize;
            requests.push((at, self.bufs.copy_of(&text[start..end])));
            (at, before, start) = (request.next_in_lane, start, end);
        }
        let lane = &mut self.lanes[index];
        lane.users = None;
        lane.output.clear(&mut self.bufs);
        (lane.head, lane.tail, lane.first_unsent) =
            (RequestId::NONE, RequestId::NONE, RequestId::NONE);
        (lane.unsent, lane.followers) = (0, 0);
        for &(request, _) in &requests {
            let slot = &mut self.requests[request];
            slot.follows = false;
            (slot.in_lane, slot.next_in_lane) = (false, RequestId::NONE);
        }
        self.publish_queues(index);
        requests
    }

    /// Gives a server what waited for another.
    pub(crate) fn give_waiting(&mut self, backend: BackendId, server: ServerId, heirs: Vec<Heirs>) {
        for Heirs { variant, offset, requests } in heirs {
            let state = &self.backends[backend].servers[server];
            let lane = match offset == state.lanes {
                true => state.bulk_lane(variant),
                false => state.lane(variant, offset as u16),
            };
            for (request, bytes) in requests {
                self.send(lane, request, Payload::Owned(bytes));
            }
            if let Link::Idle = self.lane(lane).link {
                self.connect(lane);
            }
            self.rearm(lane);
        }
    }

    pub(crate) fn lane(&self, index: LaneId) -> &Lane {
        &self.lanes[index]
    }
}
