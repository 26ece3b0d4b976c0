//! From a request to the lanes that carry it.

use cashew_config::snapshot::{Protocol, Reads};
use cashew_metrics::PoolCounter;
use cashew_placement::slot_of;
use cashew_protocol::Span;
use cashew_protocol::memcached::Expect;
use cashew_protocol::redis::Access;

use crate::base::buffer::LARGE;
use crate::base::failure::{Failure, NamedFailure};
use crate::base::id::{BackendId, ClientId, LaneId, RequestId, ServerId};
use crate::downstream::client::Client;
use crate::downstream::receive::Plan;
use crate::downstream::window::UNKNOWN;
use crate::engine::{Engine, shrink};
use crate::request::{Due, Gather, Merge, Role};
use crate::upstream::backend::Backend;
use crate::upstream::bulk::{BULK_SIZE, Mark};
use crate::upstream::health::{Reading, Servers};
use crate::upstream::lane::Link;
use crate::upstream::replica_reads::{ReadingClient, WriteMark};

/// Larger ones are not kept to be used again.
const GATHER_KEPT_MAX: usize = 64 * 1024;

/// The bytes of a request on their way to a lane.
pub(crate) enum Payload<'a> {
    Bytes(&'a [u8]),
    /// Two pieces that belong together.
    Two(&'a [u8], &'a [u8]),
    Owned(Vec<u8>),
}

/// The distribution of one request's keys over servers. Reused from request to request.
#[derive(Default)]
pub(crate) struct Split {
    /// By server, or by shard: the fragment that has it, if `stamp` is current.
    seen: Vec<Seen>,
    stamp: u64,
    /// Where parts go that do not say otherwise.
    backend: BackendId,
    /// Its parts are reads that another server may answer, too.
    pub(crate) may_move: bool,
    /// By whose policy, if that is not the pool's.
    reads: Option<Reads>,
    /// Some of its parts are slots of a cluster: several may be for one server.
    by_slot: bool,
    pub(crate) parts: Vec<Part>,
    /// By key: its part.
    pub(crate) owners: Vec<u32>,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    stamp: u64,
    part: u32,
}

/// What one server gets of a split request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) backend: BackendId,
    pub(crate) server: ServerId,
    pub(crate) lane: LaneId,
    pub(crate) keys: u32,
    /// Why it has no lane.
    failure: Option<Failure>,
    /// Where it begins in the lane's output, and its length there.
    start: u64,
    wire_len: u64,
    /// Of a cluster: of which slot its keys are.
    slot: u16,
}

impl Part {
    fn new(backend: BackendId, server: ServerId) -> Self {
        let (lane, failure) = (LaneId::NONE, None);
        Self { backend, server, lane, keys: 0, failure, start: 0, wire_len: 0, slot: 0 }
    }
}

impl Split {
    pub(crate) fn begin(&mut self, backend: BackendId, servers: usize) {
        self.stamp += 1;
        self.backend = backend;
        self.may_move = false;
        self.reads = None;
        self.by_slot = false;
        if self.seen.len() < servers {
            self.seen.resize(servers, Seen::default());
        }
        self.parts.clear();
        self.owners.clear();
    }

    /// Adds to the part of a server among several backends', or to that of a slot of one that is a cluster.
    pub(crate) fn add_among(&mut self, backend: BackendId, server: ServerId, slot: Option<u16>) {
        self.by_slot |= slot.is_some();
        let number = slot.unwrap_or_default();
        let is_of = |it: &Part| it.backend == backend && it.server == server && it.slot == number;
        // There may be as many parts as slots, so they are not gone through for each key.
        let seen = match slot {
            Some(slot) if self.has(usize::from(slot)) => {
                let part = self.seen[usize::from(slot)].part as usize;
                let is_it = is_of(&self.parts[part]);
                if is_it { Some(part) } else { self.parts.iter().position(is_of) }
            }
            Some(_) => None,
            None => self.parts.iter().position(is_of),
        };
        let part = seen.unwrap_or_else(|| {
            let part = self.parts.len();
            self.parts.push(Part { slot: number, ..Part::new(backend, server) });
            if let Some(slot) = slot {
                self.seen[usize::from(slot)] = Seen { stamp: self.stamp, part: part as u32 };
            }
            part
        });
        self.parts[part].keys += 1;
        self.owners.push(part as u32);
    }

    /// Whether no part of it has a lane.
    pub(crate) fn is_unsent(&self) -> bool {
        self.parts.iter().all(|part| part.lane == LaneId::NONE)
    }

    /// Gives the room back that a huge request needed.
    pub(crate) fn shrink(&mut self) {
        self.parts.clear();
        self.owners.clear();
        shrink(&mut self.parts);
        shrink(&mut self.owners);
    }

    /// Whether there is a part of this number.
    fn has(&self, number: usize) -> bool {
        self.seen[number].stamp == self.stamp
    }

    #[inline(always)]
    fn add(&mut self, server: ServerId) {
        self.add_at(server.index(), || server);
    }

    /// Adds to the part of this number, whose server is chosen when it is new.
    #[inline(always)]
    fn add_at(&mut self, number: usize, server: impl FnOnce() -> ServerId) {
        let seen = &mut self.seen[number];
        if seen.stamp != self.stamp {
            *seen = Seen { stamp: self.stamp, part: self.parts.len() as u32 };
            let server = server();
            self.parts.push(Part::new(self.backend, server));
        }
        self.parts[seen.part as usize].keys += 1;
        self.owners.push(seen.part);
    }
}

impl Engine {
    #[inline]
    pub(crate) fn route(
        &mut self,
        backend: BackendId,
        key: &[u8],
        access: Access,
    ) -> Option<ServerId> {
        let backend = &self.backends[backend];
        let health = Servers { backend, now: self.now, reading: None };
        backend.topology.select(key, (access, None), &health, &mut self.rng)
    }

    /// As [`route`](Self::route), for a client: reads go to replicas only if they are good for it.
    #[inline]
    pub(crate) fn route_for(
        &mut self,
        client: ClientId,
        key: &[u8],
        access: Access,
    ) -> Option<ServerId> {
        let backend = self.backend_of(client);
        let reader = self.reader(client, backend);
        let reading = Some(Reading { reader, lanes: &self.lanes, metrics: &self.metrics });
        let backend = &self.backends[backend];
        let health = Servers { backend, now: self.now, reading };
        backend.topology.select(key, (access, reader.reads), &health, &mut self.rng)
    }

    /// A client as one that reads.
    #[inline]
    pub(crate) fn reader(&mut self, client: ClientId, backend: BackendId) -> ReadingClient {
        if self.backends[backend].replica_rules.heed_writes() {
            self.settle_write(client);
        }
        let Client { variant, lane_choice, .. } = self.clients[client];
        let written = self.write_marks.of(client);
        ReadingClient { variant, lane_choice, written, reads: self.own_reads(client, backend) }
    }

    /// Who answers what a client reads by the command that it has called last: its own policy, or that of
    /// the command, if it is not left to the pool.
    #[inline]
    pub(crate) fn own_reads(&self, client: ClientId, backend: BackendId) -> Option<Reads> {
        let Client { called, reads, .. } = self.clients[client];
        reads.or_else(|| self.backends[backend].topology.reads_by_class(called))
    }

    /// The client asks for something that may write.
    #[inline]
    pub(crate) fn note_write(&mut self, client: ClientId) {
        let backend = self.backend_of(client);
        if self.backends[backend].replica_rules.heed_writes() {
            self.write_marks.set(client, WriteMark::OPEN);
        }
    }

    /// The client has been answered: if it wrote, that was before this.
    #[inline]
    pub(crate) fn settle_write(&mut self, client: ClientId) {
        let state = &self.clients[client];
        if state.head == RequestId::NONE && self.write_marks.of(client) == WriteMark::OPEN {
            let backend = &self.backends[self.backend_of(client)];
            // Where nobody heeds it, it stays for where somebody does.
            if backend.replica_rules.heed_writes() {
                let written = backend.write_mark(&self.metrics, self.now);
                self.write_marks.set(client, written);
            }
        }
    }

    /// Sends a request with one key as it is.
    #[inline]
    pub(crate) fn forward_key(
        &mut self,
        client: ClientId,
        key: &[u8],
        access: Access,
        expect: Expect,
        size: usize,
    ) -> Plan {
        let backend = self.backend_of(client);
        let mark = Mark::of(key);
        let is_presumed = self.clients[client].window == 0 && access.reads();
        let is_large = (is_presumed || self.backends[backend].large_replies.contains(mark))
            && self.clients[client].modes.transaction.is_none();
        let server = self.route_for(client, key, access);
        let plan = match server.filter(|_| is_large) {
            Some(server) => self.forward_large(client, server, access, expect, size),
            None => self.forward_to(client, server, expect, size),
        };
        if let Plan::Forward { request, .. } = plan {
            self.requests[request].mark = mark;
            self.note_access(backend, request, access);
        }
        plan
    }

    /// A read may go on with another server where there is a choice.
    #[inline]
    pub(crate) fn note_access(&mut self, backend: BackendId, request: RequestId, access: Access) {
        if access == Access::Read {
            let own = self.own_reads(self.requests[request].client, backend);
            if self.backends[backend].topology.moves_reads(own) {
                self.requests[request].may_move(own);
            }
        }
    }

    /// Sends a request alone whose reply is likely to be large: on a lane of its own, or if all are
    /// taken on that of large ones, where a few may be read at a time.
    #[cold]
    pub(crate) fn forward_large(
        &mut self,
        client: ClientId,
        server: ServerId,
        access: Access,
        expect: Expect,
        size: usize,
    ) -> Plan {
        let Client { requests, variant, .. } = self.clients[client];
        let backend = self.backend_of(client);
        if requests > 0 {
            return Plan::Wait;
        }
        let private = self.streaming_lane(backend, server, variant);
        if let Ok(None) = private
            && access.reads()
            && self.is_bulk_lane_busy(backend, server, variant)
        {
            self.await_bulk_lane(client, server);
            return Plan::Wait;
        }
        let client_state = &mut self.clients[client];
        client_state.fenced = true;
        // If it is not so large after all, the next may not be either.
        client_state.window = client_state.window.max(UNKNOWN);
        match private {
            Ok(Some(lane)) if self.may_trust(lane) => self.forward_on(client, lane, expect),
            _ => self.forward_to(client, Some(server), expect, size.max(BULK_SIZE)),
        }
    }

    /// Sends a request that stores on a connection that nobody else has meanwhile: that one is closed
    /// if the server does not know what is asked.
    #[cold]
    pub(crate) fn forward_alone(&mut self, client: ClientId, key: &[u8], expect: Expect) -> Plan {
        let Client { requests, variant, .. } = self.clients[client];
        let backend = self.backend_of(client);
        if requests > 0 {
            return Plan::Wait;
        }
        let Some(server) = self.route(backend, key, Access::Write) else {
            return self.fail(client, Failure::NoServer);
        };
        match self.streaming_lane(backend, server, variant) {
            Ok(Some(lane)) => {
                self.clients[client].fenced = true;
                let plan = self.forward_on(client, lane, expect);
                if let Plan::Forward { request, .. } = plan {
                    self.requests[request].mark = Mark::of(key);
                }
                plan
            }
            Ok(None) => {
                self.await_streaming_lane(client, server);
                Plan::Wait
            }
            Err(failure) => self.fail_for(client, server, failure),
        }
    }

    /// Sends a request to a server as it is.
    #[inline]
    pub(crate) fn forward_to(
        &mut self,
        client: ClientId,
        server: Option<ServerId>,
        expect: Expect,
        size: usize,
    ) -> Plan {
        let Some(server) = server else { return self.fail(client, Failure::NoServer) };
        match self.lane_for(client, server, size) {
            Ok(lane) => self.forward_on(client, lane, expect),
            Err(failure) => self.fail_for(client, server, failure),
        }
    }

    pub(crate) fn forward_on(&mut self, client: ClientId, lane: LaneId, expect: Expect) -> Plan {
        let request = self.new_request(client);
        self.requests[request].expect = expect;
        Plan::Forward { lane, request }
    }

    /// Answers a request with the error that kept it from being sent.
    pub(crate) fn fail(&mut self, client: ClientId, failure: impl Into<NamedFailure>) -> Plan {
        let mut failure = failure.into();
        let backend = self.backend_of(client);
        if failure.why == Failure::NoServer && self.backends[backend].topology.has_slots() {
            self.doubt_map(backend);
            failure = Failure::ClusterDown.into();
        }
        self.fail_named(client, &failure)
    }

    /// The same where it is a server's.
    #[cold]
    pub(crate) fn fail_for(&mut self, client: ClientId, server: ServerId, why: Failure) -> Plan {
        self.fail_at(client, (self.backend_of(client), server), why)
    }

    /// The same where it is a server's, of whatever backend.
    #[cold]
    fn fail_at(
        &mut self,
        client: ClientId,
        (backend, server): (BackendId, ServerId),
        why: Failure,
    ) -> Plan {
        let failure = self.backends[backend].named(server, why);
        self.fail_named(client, &failure)
    }

    #[cold]
    fn fail_named(&mut self, client: ClientId, failure: &NamedFailure) -> Plan {
        let protocol = self.protocol_of(client);
        self.count_forward_error(self.backend_of(client));
        if protocol == Protocol::Memcached {
            return self.fail_unsent_memcached(client, failure);
        }
        self.answer(client, |out| failure.write_reply(protocol, out));
        Plan::Done
    }

    /// The client's lane to a server, if it can take `size` more bytes; the bulk lane for what is
    /// large.
    #[inline]
    pub(crate) fn lane_for(
        &mut self,
        client: ClientId,
        server: ServerId,
        size: usize,
    ) -> Result<LaneId, Failure> {
        let Client { off_fast_path, variant, lane_choice, .. } = self.clients[client];
        let backend = self.backend_of(client);
        if off_fast_path && let Some(lane) = self.leased(client, server) {
            return self.on_leased(client, lane, size);
        }
        self.lane_of((backend, server), variant, lane_choice, size)
    }

    /// The client's lane to a server of another backend than the one where it stands.
    #[cold]
    pub(crate) fn lane_at_other(
        &mut self,
        client: ClientId,
        (backend, server): (BackendId, ServerId),
        size: usize,
    ) -> Result<LaneId, Failure> {
        let variant = self.variant_at(client, backend)?;
        let choice = self.clients[client].lane_choice;
        self.lane_of((backend, server), variant, choice, size)
    }

    /// A lane that the client has for itself, if it can take `size` more bytes.
    #[cold]
    fn on_leased(
        &mut self,
        client: ClientId,
        lane: LaneId,
        size: usize,
    ) -> Result<LaneId, Failure> {
        self.align(client, lane);
        let limits = &self.backends[self.backend_of(client)].limits;
        let is_full = self.lane(lane).is_full(limits, size);
        if is_full { Err(Failure::QueueFull) } else { Ok(lane) }
    }

    /// The same for a client that may be gone.
    #[inline]
    pub(crate) fn lane_of(
        &mut self,
        (backend, server): (BackendId, ServerId),
        variant: u16,
        choice: u16,
        size: usize,
    ) -> Result<LaneId, Failure> {
        if self.backends[backend].has_to_forget(server, &self.metrics) {
            return Err(Failure::Forgetting);
        }
        self.lane_of_held((backend, server), variant, choice, size)
    }

    /// The same, also of a server that has something to forget.
    #[inline]
    pub(crate) fn lane_of_held(
        &mut self,
        (backend, server): (BackendId, ServerId),
        variant: u16,
        choice: u16,
        size: usize,
    ) -> Result<LaneId, Failure> {
        let backend = &self.backends[backend];
        let server = &backend.servers[server];
        let index = match size < BULK_SIZE {
            true => server.lane(variant, choice),
            false => server.bulk_lane(variant),
        };
        let lane = &self.lanes[index];
        if lane.is_full(&backend.limits, size) {
            return Err(Failure::QueueFull);
        }
        match lane.link {
            Link::Ready { .. } => {}
            _ if server.leaves => return Err(Failure::Removed),
            Link::Connecting { .. } | Link::Handshaking { .. } if backend.failover_wait_us > 0 => {
                let until = self.now.plus_micros(backend.failover_wait_us);
                let _ = self.reach(index);
                self.arm_lane(index, until);
            }
            _ if server.is_silent() => self.wait_or(index, Failure::Silent)?,
            _ => {
                if let Err(failure) = self.reach(index) {
                    self.wait_or(index, failure)?;
                }
            }
        }
        Ok(index)
    }

    /// Sends a request without keys as it is: to the first server that is well, or else to the
    /// first in the ring. So a client that says related things without keys, as loading a script
    /// and calling it, says them to one server while that one is well.
    pub(crate) fn forward_anywhere(
        &mut self,
        client: ClientId,
        access: Access,
        size: usize,
    ) -> Plan {
        let server = self.any_server(client, access);
        self.forward_to(client, server, Expect::Line, size)
    }

    /// The server for what has no keys.
    pub(crate) fn any_server(&mut self, client: ClientId, access: Access) -> Option<ServerId> {
        let backend = self.backend_of(client);
        let config = &self.backends[backend];
        if config.topology.is_one_shard() {
            self.route_for(client, b"", access)
        } else {
            let is_up = |&server: &ServerId| config.servers[server].is_up();
            let topology = &config.topology;
            topology.heads().find(is_up).or_else(|| topology.heads().next())
        }
    }

    /// Whether all of the client's keys are on one server, whichever they are.
    pub(crate) fn is_single(&self, client: ClientId) -> bool {
        let backend = &self.backends[self.backend_of(client)];
        let is_one = backend.topology.is_one_shard() || backend.servers.len() == 1;
        is_one && !backend.topology.has_slots()
    }

    /// Puts a request's bytes at the end of a lane.
    #[inline]
    pub(crate) fn send(&mut self, lane: LaneId, request: RequestId, payload: Payload<'_>) {
        let state = &mut self.lanes[lane];
        state.close_gets(&mut self.bufs);
        let output = &mut state.output;
        let before = output.len();
        match payload {
            Payload::Bytes(bytes) => output.push(bytes, &mut self.bufs),
            Payload::Two(first, second) => {
                output.push(first, &mut self.bufs);
                output.push(second, &mut self.bufs);
            }
            Payload::Owned(buf) => output.push_buf(buf, &mut self.bufs),
        }
        let wire_len = output.len() - before;
        self.enqueue(lane, request, wire_len);
    }

    /// Puts a request, whose bytes are the last `wire_len` of the lane's output, into its queue.
    #[inline]
    pub(crate) fn enqueue(&mut self, index: LaneId, request: RequestId, wire_len: u64) {
        let lane = &mut self.lanes[index];
        debug_assert!(lane.coalesced.waiting() == 0, "gets wait that stand in front");
        lane.append(request, wire_len, &mut self.requests);
        if self.requests[request].is_sent_on {
            // It has left the connection that it was known to be on.
            self.sent_on.scatter(request);
        }
        let expiry = self.backends[lane.backend].expiry(self.requests[request].started);
        lane.arm(index, expiry, &mut self.timers);
        lane.mark(&mut self.dirty_lanes);
        if self.backends[lane.backend].is_cached {
            self.note_for_caches(index, request, wire_len);
        }
    }

    /// Deals keys out to servers. `Ok(Some(server))` when one server has them all.
    pub(crate) fn place_keys<'k>(
        &mut self,
        client: ClientId,
        keys: impl Iterator<Item = &'k [u8]>,
        access: Access,
        split: &mut Split,
    ) -> Result<Option<ServerId>, Failure> {
        if self.destination_of(client).route.is_some() {
            return self.place_keys_by_route(client, keys, access, split);
        }
        let backend = self.backend_of(client);
        split.begin(backend, self.backends[backend].topology.places());
        let reader = self.reader(client, backend);
        let reading = Some(Reading { reader, lanes: &self.lanes, metrics: &self.metrics });
        let backend = &self.backends[backend];
        let health = Servers { backend, now: self.now, reading };
        let Backend { topology, .. } = backend;
        split.reads = reader.reads;
        if topology.has_slots() {
            split.by_slot = true;
            split.may_move = access == Access::Read && topology.moves_reads(split.reads);
            // Keys of two slots are not asked for together, though one server owns both.
            for key in keys {
                let slot = usize::from(slot_of(key));
                if split.has(slot) {
                    split.add_at(slot, || unreachable!("the slot has its part"));
                    continue;
                }
                let asked = (access, reader.reads);
                let server = topology.select(key, asked, &health, &mut self.rng);
                let server = server.ok_or(Failure::NoServer)?;
                split.add_at(slot, || server);
            }
        } else if access.reads() && topology.has_choice(split.reads) {
            split.may_move = access == Access::Read && topology.moves_reads(split.reads);
            // One server answers for all keys of a shard.
            for key in keys {
                let shard = topology.shard(key, &mut self.rng).ok_or(Failure::NoServer)?;
                split.add_at(shard.index(), || {
                    topology.server(shard, key, (access, reader.reads), &health, &mut self.rng)
                });
            }
        } else {
            for key in keys {
                let asked = (access, reader.reads);
                let server = topology.select(key, asked, &health, &mut self.rng);
                split.add(server.ok_or(Failure::NoServer)?);
            }
        }
        Ok(match split.parts[..] {
            [part] => Some(part.server),
            _ => None,
        })
    }

    /// Sends one fragment to each part's server, with the keys that it has in the order of the request.
    /// Nothing is sent when one of the servers cannot be.
    pub(crate) fn send_fragments<'b>(
        &mut self,
        client: ClientId,
        split: &mut Split,
        merge: Merge,
        request: FragmentText<'_, impl Iterator<Item = &'b [u8]>>,
    ) -> Plan {
        let here = self.backend_of(client);
        for at in 0..split.parts.len() {
            let Part { backend, server, .. } = split.parts[at];
            let lane = match backend == here {
                true => self.lane_for(client, server, request.size),
                false => self.lane_at_other(client, (backend, server), request.size),
            };
            match lane {
                Ok(lane) => split.parts[at].lane = lane,
                Err(failure) => {
                    self.recycle_merge(merge);
                    return self.fail_at(client, (backend, server), failure);
                }
            }
        }
        if split.by_slot
            && let Some(Part { backend, server, .. }) = self.part_too_many(split)
        {
            self.recycle_merge(merge);
            return self.fail_at(client, (backend, server), Failure::QueueFull);
        }
        self.write_fragments(client, split, merge, request)
    }

    /// A part that makes too many for its lane, where each of them alone has room.
    fn part_too_many(&self, split: &Split) -> Option<Part> {
        let has_room = |part: &Part, parts: usize| {
            let limits = &self.backends[part.backend].limits;
            self.lanes[part.lane].has_room_for(limits, parts)
        };
        // Mostly there is room for all of them on any lane.
        if split.parts.iter().all(|part| has_room(part, split.parts.len())) {
            return None;
        }
        let mut parts = split.parts.clone();
        parts.sort_unstable_by_key(|part| part.lane);
        let mut of_lanes = parts.chunk_by(|a, b| a.lane == b.lane);
        of_lanes.find(|of_lane| !has_room(&of_lane[0], of_lane.len())).map(|of_lane| of_lane[0])
    }

    /// As [`Engine::send_fragments`], but a server that cannot be sent its fragment is taken to
    /// have answered that it has none of the keys, or, if values are not asked for, why it cannot.
    /// That is in [`crate::memcached::RequestCtx`], too. Nothing is sent, and nothing answered, if none
    /// of them can.
    pub(crate) fn send_fragments_that_can<'b>(
        &mut self,
        client: ClientId,
        split: &mut Split,
        merge: Merge,
        request: FragmentText<'_, impl Iterator<Item = &'b [u8]>>,
    ) {
        let here = self.backend_of(client);
        for at in 0..split.parts.len() {
            let Part { backend, server, .. } = split.parts[at];
            let lane = match backend == here {
                true => self.lane_for(client, server, request.size),
                false => self.lane_at_other(client, (backend, server), request.size),
            };
            match lane {
                Ok(lane) => split.parts[at].lane = lane,
                Err(failure) => {
                    split.parts[at].failure = Some(failure);
                    let named = self.backends[backend].named(server, failure);
                    self.request_ctx.failure = Some(named);
                }
            }
        }
        if split.is_unsent() {
            self.recycle_merge(merge);
        } else {
            self.write_fragments(client, split, merge, request);
        }
    }

    /// Writes fragments to the lanes that parts have; those that have none are answered already.
    fn write_fragments<'b>(
        &mut self,
        client: ClientId,
        split: &mut Split,
        merge: Merge,
        mut request: FragmentText<'_, impl Iterator<Item = &'b [u8]>>,
    ) -> Plan {
        // A guess at the room that it takes.
        let room = request.size.min(LARGE);
        if split.by_slot {
            self.write_parts_in_turn(split, room, &mut request);
        } else {
            for part in split.parts.iter_mut().filter(|part| part.lane != LaneId::NONE) {
                let lane = &mut self.lanes[part.lane];
                lane.close_gets(&mut self.bufs);
                part.start = lane.output.len();
                lane.output.write_with(&mut self.bufs, room, |out| (request.head)(out, part.keys));
            }
            for (&owner, key) in split.owners.iter().zip(request.keys) {
                let Some(lane) = self.lanes.get_mut(split.parts[owner as usize].lane) else {
                    continue;
                };
                lane.output.push(key, &mut self.bufs);
            }
            for part in split.parts.iter_mut().filter(|part| part.lane != LaneId::NONE) {
                let output = &mut self.lanes[part.lane].output;
                output.push(request.foot, &mut self.bufs);
                part.wire_len = output.len() - part.start;
            }
        }
        let parent = self.new_request(client);
        let backend = self.backend_of(client);
        let mut next = RequestId::NONE;
        let mut pending = 0;
        for part in split.parts.iter().rev() {
            if part.lane == LaneId::NONE {
                let failure =
                    part.failure.map(|why| self.backends[part.backend].named(part.server, why));
                next = self.missing_fragment(client, (parent, next), request.expect, failure);
                continue;
            }
            pending += 1;
            let (fragment, _) = self.requests.add(part.backend, ClientId::NONE, self.now);
            let slot = &mut self.requests[fragment];
            slot.role = Role::Fragment { parent, next };
            slot.expect = request.expect;
            slot.is_tagged = self.request_ctx.is_tagged && self.backends[part.backend].has_tags();
            slot.asked = self.request_ctx.asked;
            slot.due = Due::of(&merge, part.keys);
            if split.may_move {
                slot.may_move(split.reads);
            }
            self.enqueue(part.lane, fragment, part.wire_len);
            next = fragment;
        }
        self.requests[parent].role = Role::Parent { fragments: next, pending, merge };
        let metrics = self.backends[backend].metrics;
        self.metrics.add_pool(metrics, PoolCounter::Fragments, u64::from(pending));
        Plan::Done
    }

    /// Writes one fragment after the other, as several may be for one lane: the last part first, as they are put
    /// into their queues.
    #[cold]
    fn write_parts_in_turn<'b>(
        &mut self,
        split: &mut Split,
        room: usize,
        request: &mut FragmentText<'_, impl Iterator<Item = &'b [u8]>>,
    ) {
        let mut texts: Vec<(u32, &[u8])> =
            split.owners.iter().copied().zip(&mut request.keys).collect();
        // Stable: a part's keys stay in their order.
        texts.sort_by_key(|&(owner, _)| owner);
        let mut rest = &texts[..];
        for part in split.parts.iter_mut().rev() {
            let (others, own) = rest.split_at(rest.len() - part.keys as usize);
            rest = others;
            let Some(lane) = self.lanes.get_mut(part.lane) else { continue };
            lane.close_gets(&mut self.bufs);
            part.start = lane.output.len();
            lane.output.write_with(&mut self.bufs, room, |out| (request.head)(out, part.keys));
            own.iter().for_each(|(_, text)| lane.output.push(text, &mut self.bufs));
            lane.output.push(request.foot, &mut self.bufs);
            part.wire_len = lane.output.len() - part.start;
        }
    }

    /// A fragment that is answered already: none of its keys is there, or its server is not.
    fn missing_fragment(
        &mut self,
        client: ClientId,
        (parent, next): (RequestId, RequestId),
        expect: Expect,
        failure: Option<NamedFailure>,
    ) -> RequestId {
        let backend = self.backend_of(client);
        let (fragment, _) = self.requests.add(backend, ClientId::NONE, self.now);
        let slot = &mut self.requests[fragment];
        slot.role = Role::Fragment { parent, next };
        slot.done = true;
        let mut text = std::mem::take(&mut self.scratch.text);
        text.clear();
        match failure.filter(|_| expect != Expect::Values) {
            None => text.extend_from_slice(b"END\r\n"),
            Some(failure) => {
                self.count_forward_error(backend);
                self.write_memcached_failure(expect, &failure, &mut text);
            }
        }
        self.requests[fragment].hold(&text, &mut self.bufs);
        self.charge(fragment, text.len());
        self.scratch.text = text;
        fragment
    }

    /// Sends the same bytes to every live server of the pool. Those that cannot be sent them have
    /// answered why, unless that is all of them.
    pub(crate) fn send_to_all(
        &mut self,
        client: ClientId,
        text: &[u8],
        expect: Expect,
        merge: Merge,
    ) -> Plan {
        let mut split = std::mem::take(&mut self.scratch.split);
        let id = self.backend_of(client);
        let backend = &self.backends[id];
        split.begin(id, backend.servers.len());
        for (server, &live) in backend.topology.live().iter().enumerate() {
            if live {
                split.add(ServerId::new(server as u32));
            }
        }
        let plan = if split.parts.is_empty() {
            self.fail(client, Failure::NoServer)
        } else {
            let request = FragmentText {
                head: &|_, _| {},
                keys: std::iter::repeat(text),
                foot: b"",
                expect,
                size: text.len(),
            };
            self.send_fragments_that_can(client, &mut split, merge, request);
            let failure = self.request_ctx.failure.take().filter(|_| split.is_unsent());
            failure.map_or(Plan::Done, |failure| self.fail(client, failure))
        };
        self.scratch.split = split;
        plan
    }

    /// What dealing replies back to keys needs to know.
    pub(crate) fn gather(&mut self, split: &Split) -> Box<Gather> {
        let mut gather = self.scratch.gathers.take().unwrap_or_default();
        gather.owners.extend_from_slice(&split.owners);
        self.bufs.charge(gather.size());
        gather
    }

    /// As [`Engine::gather`], with the keys themselves.
    pub(crate) fn gather_with_keys(
        &mut self,
        split: &Split,
        keys: &[Span],
        text: &[u8],
    ) -> Box<Gather> {
        let mut gather = self.gather(split);
        self.bufs.discharge(gather.size());
        if let (Some(first), Some(last)) = (keys.first(), keys.last()) {
            let start = first.start as usize;
            gather.text.extend_from_slice(&text[start..last.end()]);
            let moved = |key: &Span| Span::new(key.start as usize - start, key.len as usize);
            gather.keys.extend(keys.iter().map(moved));
        }
        self.bufs.charge(gather.size());
        gather
    }

    pub(crate) fn recycle_merge(&mut self, merge: Merge) {
        match merge {
            Merge::Elements(mut gather) | Merge::Values(mut gather) => {
                self.bufs.discharge(gather.size());
                if gather.size() <= GATHER_KEPT_MAX {
                    gather.clear();
                    self.scratch.gathers.give(gather);
                }
            }
            Merge::Sum | Merge::Same | Merge::Whole(_) => {}
        }
    }
}

/// How a fragment is written.
pub(crate) struct FragmentText<'a, K> {
    /// Writes the start, given the number of keys.
    pub(crate) head: &'a dyn Fn(&mut Vec<u8>, u32),
    /// The keys in their order, each with what belongs to it, as they are written.
    pub(crate) keys: K,
    pub(crate) foot: &'a [u8],
    pub(crate) expect: Expect,
    /// Upper bound of a fragment's length.
    pub(crate) size: usize,
}
