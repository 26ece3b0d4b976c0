//! The shortest way of a request and of its reply: plain, for one key, nothing in its way.
//!
//! Both stop at whatever gives cause for thought – a limit, a fence, a server that is not connected,
//! a reply that is merged – and leave it to the general way, which comes to the same result for
//! those that pass here. Each protocol has its own copy of the loops, with its reader inside.
//!
//! The same is here for a reply to a part of a split request, to where it waits for the others.

use std::marker::PhantomData;

use cashew_metrics::PoolCounter;
use cashew_protocol::memcached::{self, Answer, Expect, Tag, binary, retagged_header};
use cashew_protocol::redis::{self, Access, Policy};
use cashew_protocol::resp;
use cashew_protocol::{CommandClass, ReplyForm};

use crate::base::buffer::LARGE;
use crate::base::command_stats::{CommandStats, Counting};
use crate::base::id::{ClientId, ConnId, LaneId, RequestId};
use crate::base::prefixes::PrefixNumber;
use crate::downstream::client::{Client, Selected, State};
use crate::downstream::listener::{Choice, Destination, Listener};
use crate::engine::Engine;
use crate::memcached::{Asked, END, Part};
use crate::request::{Request, Role};
use crate::topology::route_tree::{Operation, Way};
use crate::upstream::bulk::Mark;
use crate::upstream::equal_reads::Sharing;
use crate::upstream::health::{Reading, Servers};
use crate::upstream::lane::{Link, Scanner};
use crate::upstream::replica_reads::{ReadingClient, WriteMark};
use crate::upstream::session_params::WireProtocol;

/// A request that one server answers.
struct Plain<'b> {
    /// The whole request.
    bytes: &'b [u8],
    /// What follows it.
    rest: &'b [u8],
    key: &'b [u8],
    access: Access,
    expect: Expect,
    /// It has to do with CAS uniques in a way for which the general way is.
    cas_tags: bool,
    /// What it calls, in Redis.
    called: Option<&'static redis::PlainCommand>,
}

/// How a protocol's plain requests and replies are read. A trait, as functions that are handed over
/// would not be inlined.
trait Reader {
    /// A lane's replies may have uniques in them that get a tag.
    const TAGS: bool;
    /// All of them do, in their headers.
    const TAGS_HEADERS: bool = false;

    fn request<'b>(buf: &'b [u8], policy: &Policy) -> Option<Plain<'b>>;

    /// Whether a reply names the key of its request, if it names any.
    #[inline(always)]
    fn is_for(_: &Request, _: &[u8]) -> bool {
        true
    }

    /// The reply at the start of the buffer, and what follows it.
    fn reply(expect: Expect, buf: &[u8]) -> Option<(&[u8], &[u8])>;

    /// Reads may have a choice of servers, or requests may be sent again. Where not, none of what that takes
    /// is compiled in.
    const CHOOSES: bool = false;

    /// Keys may be of several backends, or of another than the port's own: the client's listener is a route, or its
    /// user has one.
    const ROUTED: bool = false;

    /// Whether several requests may be joined to one: see [`crate::memcached::Coalesced`].
    const JOINS: bool = false;

    /// What changes something may have to go to several servers, and what has to do with uniques to the one
    /// that takes the writes: the general way is for those where there is a choice.
    const COPIES: bool = false;

    /// There is `ms`, which not all servers know.
    const STORES_META: bool = false;

    /// Equal reads may share a reply: see [`crate::upstream::equal_reads`]. Where not, none of what that takes is
    /// compiled in.
    const SHARES: bool = false;

    /// What a request is to those.
    fn sharing(plain: &Plain<'_>) -> Sharing {
        match plain.access {
            Access::Read => Sharing::Yes,
            Access::Walk => Sharing::No,
            Access::Write | Access::None => Sharing::Ends,
        }
    }

    const FORM: ReplyForm;

    /// What a request counts as, where that is of interest.
    fn class(plain: &Plain<'_>) -> CommandClass;

    /// What has to be kept of a request for its reply.
    #[inline(always)]
    fn asked(_: &[u8]) -> Option<Asked> {
        None
    }
}

/// Without `RESP3`, replies of types that only RESP3 has are not plain. With `GUARDED`, some plain
/// commands are not for clients.
struct Redis<const RESP3: bool, const GUARDED: bool, const CHOOSES: bool, const ROUTED: bool>;

impl<const RESP3: bool, const GUARDED: bool, const CHOOSES: bool, const ROUTED: bool> Reader
    for Redis<RESP3, GUARDED, CHOOSES, ROUTED>
{
    const TAGS: bool = false;
    const CHOOSES: bool = CHOOSES;
    const ROUTED: bool = ROUTED;

    #[inline(always)]
    fn request<'b>(buf: &'b [u8], policy: &Policy) -> Option<Plain<'b>> {
        let head = resp::plain_head(buf)?;
        let command = redis::find_plain(&head)?;
        if GUARDED && policy.guards_id(command.index()) {
            return None;
        }
        let resp::PlainRequest { bytes, rest, key } = head.request()?;
        let (access, expect, called) = (command.access, Expect::Line, Some(command));
        Some(Plain { bytes, rest, key, access, expect, cas_tags: false, called })
    }

    #[inline(always)]
    fn reply(_: Expect, buf: &[u8]) -> Option<(&[u8], &[u8])> {
        // An error is none: it is counted, and the request may have to be sent again.
        resp::plain_reply_of::<RESP3>(buf)
    }

    fn sharing(plain: &Plain<'_>) -> Sharing {
        let is_repeatable = plain.called.is_some_and(|called| called.is_repeatable);
        match plain.access {
            Access::Read if is_repeatable => Sharing::Yes,
            Access::Read | Access::Walk => Sharing::No,
            Access::Write | Access::None => Sharing::Ends,
        }
    }

    const FORM: ReplyForm = ReplyForm::Resp;

    #[inline(always)]
    fn class(plain: &Plain<'_>) -> CommandClass {
        plain.called.map(|called| called.id().class()).unwrap_or_default()
    }
}

/// With `METAGETS`, `mg` is among the plain ones: where its failure is an error, of which nothing has to
/// be known beforehand.
struct Text<const METAGETS: bool, const CHOOSES: bool, const ROUTED: bool>;

impl<const METAGETS: bool, const CHOOSES: bool, const ROUTED: bool> Reader
    for Text<METAGETS, CHOOSES, ROUTED>
{
    const TAGS: bool = true;
    const CHOOSES: bool = CHOOSES;
    const ROUTED: bool = ROUTED;
    // Joined ones could not go on with another server.
    const JOINS: bool = !CHOOSES;
    const STORES_META: bool = true;
    const COPIES: bool = CHOOSES;

    #[inline(always)]
    fn request<'b>(buf: &'b [u8], _: &Policy) -> Option<Plain<'b>> {
        let plain = memcached::plain_request(buf)?;
        let memcached::PlainRequest { bytes, rest, key, retrieves, cas_tags, expect } = plain;
        if !METAGETS && expect == Expect::Meta {
            return None;
        }
        Some(Plain { bytes, rest, key, access: access(retrieves), expect, cas_tags, called: None })
    }

    #[inline(always)]
    fn is_for(request: &Request, reply: &[u8]) -> bool {
        request.expect != Expect::Values
            || memcached::plain_key(reply).is_none_or(|key| request.is_for(key))
    }

    #[inline(always)]
    fn reply(expect: Expect, buf: &[u8]) -> Option<(&[u8], &[u8])> {
        memcached::plain_reply(expect, buf)
    }

    const FORM: ReplyForm = ReplyForm::Text;

    #[inline(always)]
    fn class(plain: &Plain<'_>) -> CommandClass {
        memcached::plain_class(plain.expect)
    }
}

struct Binary<const CHOOSES: bool, const ROUTED: bool>;

impl<const CHOOSES: bool, const ROUTED: bool> Reader for Binary<CHOOSES, ROUTED> {
    const TAGS: bool = true;
    const TAGS_HEADERS: bool = true;
    const CHOOSES: bool = CHOOSES;
    const ROUTED: bool = ROUTED;
    const COPIES: bool = CHOOSES;

    #[inline(always)]
    fn request<'b>(buf: &'b [u8], _: &Policy) -> Option<Plain<'b>> {
        let plain = binary::plain_request(buf)?;
        let binary::PlainRequest { bytes, rest, key, retrieves, names_unique, .. } = plain;
        // A reply always has a unique, which is good only where writes are judged by it.
        let access = if CHOOSES && retrieves { Access::Walk } else { access(retrieves) };
        let (expect, cas_tags) = (Expect::Packet, names_unique);
        Some(Plain { bytes, rest, key, access, expect, cas_tags, called: None })
    }

    #[inline(always)]
    fn is_for(request: &Request, reply: &[u8]) -> bool {
        let Asked { opcode, opaque, .. } = request.asked;
        // What is plain was sent as it was asked.
        reply.get(12..16) == Some(&opaque) && reply[1] == opcode
    }

    #[inline(always)]
    fn reply(expect: Expect, buf: &[u8]) -> Option<(&[u8], &[u8])> {
        if expect == Expect::Packet { binary::plain_reply(buf) } else { None }
    }

    const FORM: ReplyForm = ReplyForm::Packet;

    #[inline(always)]
    fn class(plain: &Plain<'_>) -> CommandClass {
        let opcode = plain.bytes.get(1).and_then(|&byte| binary::Opcode::from_byte(byte));
        opcode.map(|(opcode, _)| opcode.class()).unwrap_or_default()
    }

    #[inline(always)]
    fn asked(request: &[u8]) -> Option<Asked> {
        let (&[_, opcode], opaque) = (request.first_chunk()?, request.get(12..16)?);
        let opaque = opaque.try_into().ok()?;
        Some(Asked { opcode, opaque, ..Asked::default() })
    }
}

/// The same where equal reads share replies.
struct Sharer<R>(PhantomData<R>);

impl<R: Reader> Reader for Sharer<R> {
    const TAGS: bool = R::TAGS;
    const TAGS_HEADERS: bool = R::TAGS_HEADERS;
    const CHOOSES: bool = R::CHOOSES;
    const ROUTED: bool = R::ROUTED;
    const JOINS: bool = R::JOINS;
    const COPIES: bool = R::COPIES;
    const STORES_META: bool = R::STORES_META;
    const SHARES: bool = true;
    const FORM: ReplyForm = R::FORM;

    #[inline(always)]
    fn request<'b>(buf: &'b [u8], policy: &Policy) -> Option<Plain<'b>> {
        R::request(buf, policy)
    }

    #[inline(always)]
    fn is_for(request: &Request, reply: &[u8]) -> bool {
        R::is_for(request, reply)
    }

    #[inline(always)]
    fn reply(expect: Expect, buf: &[u8]) -> Option<(&[u8], &[u8])> {
        R::reply(expect, buf)
    }

    #[inline(always)]
    fn sharing(plain: &Plain<'_>) -> Sharing {
        R::sharing(plain)
    }

    #[inline(always)]
    fn class(plain: &Plain<'_>) -> CommandClass {
        R::class(plain)
    }

    #[inline(always)]
    fn asked(request: &[u8]) -> Option<Asked> {
        R::asked(request)
    }
}

#[inline(always)]
fn access(retrieves: bool) -> Access {
    if retrieves { Access::Read } else { Access::Write }
}

/// A plain request is one of those that are counted by class and by prefix. Out of the way, so that
/// the loop has its registers for itself; for the same reason what it needs comes piece by piece.
#[cold]
#[inline(never)]
fn count<R: Reader>(
    stats: &mut CommandStats,
    listener: &Listener,
    request: RequestId,
    class: CommandClass,
    size: usize,
    key: &[u8],
) {
    match listener.prefixes.find_at_once(key) {
        Some(prefix) => stats.begin(request, R::FORM, counting::<R>(class, size, prefix)),
        None => count_at_length::<R>(stats, listener, request, class, size, key),
    }
}

#[cold]
#[inline(never)]
fn count_at_length<R: Reader>(
    stats: &mut CommandStats,
    listener: &Listener,
    request: RequestId,
    class: CommandClass,
    size: usize,
    key: &[u8],
) {
    let prefix = listener.prefixes.find(key);
    stats.begin(request, R::FORM, counting::<R>(class, size, prefix));
}

#[inline(always)]
fn counting<R: Reader>(class: CommandClass, size: usize, prefix: PrefixNumber) -> Counting {
    let is_memcached = R::FORM != ReplyForm::Resp;
    let keys = u32::from(is_memcached && class == CommandClass::Get);
    Counting { size: size as u64, keys, class, prefix }
}

impl Engine {
    /// Dispatches requests from the start of `buf`; returns what it leaves.
    #[inline(always)]
    pub(crate) fn fast_requests<'b>(&mut self, index: ClientId, buf: &'b [u8]) -> &'b [u8] {
        let client = &self.clients[index];
        let listener = &self.listeners[client.listener];
        match client.session.wire_protocol {
            WireProtocol::Resp2 | WireProtocol::Resp3 => {
                match (listener.fast_policy.refuses_plain(), listener.destination.choice) {
                    (false, Choice::None) => {
                        self.fast_requests_with::<Redis<true, false, false, false>>(index, buf)
                    }
                    (false, Choice::Replicas) => {
                        self.fast_requests_with::<Redis<true, false, true, false>>(index, buf)
                    }
                    (true, Choice::None) => {
                        self.fast_requests_with::<Redis<true, true, false, false>>(index, buf)
                    }
                    (true, Choice::Replicas) => {
                        self.fast_requests_with::<Redis<true, true, true, false>>(index, buf)
                    }
                    (_, Choice::Backends) => self.fast_requests_routed(index, buf),
                    (_, Choice::Sharing) => self.fast_requests_sharing(index, buf),
                }
            }
            WireProtocol::Text => {
                match (listener.destination.misses, listener.destination.choice) {
                    (false, Choice::None) => {
                        self.fast_requests_with::<Text<true, false, false>>(index, buf)
                    }
                    (false, Choice::Replicas) => {
                        self.fast_requests_with::<Text<true, true, false>>(index, buf)
                    }
                    (true, Choice::None) => {
                        self.fast_requests_with::<Text<false, false, false>>(index, buf)
                    }
                    (true, Choice::Replicas) => {
                        self.fast_requests_with::<Text<false, true, false>>(index, buf)
                    }
                    (_, Choice::Backends) => self.fast_requests_routed(index, buf),
                    (_, Choice::Sharing) => self.fast_requests_sharing(index, buf),
                }
            }
            WireProtocol::Binary => match listener.destination.choice {
                Choice::None => self.fast_requests_with::<Binary<false, false>>(index, buf),
                Choice::Replicas => self.fast_requests_with::<Binary<true, false>>(index, buf),
                Choice::Backends => self.fast_requests_routed(index, buf),
                Choice::Sharing => self.fast_requests_sharing(index, buf),
            },
        }
    }

    #[inline(never)]
    fn fast_requests_routed<'b>(&mut self, index: ClientId, buf: &'b [u8]) -> &'b [u8] {
        let client = &self.clients[index];
        let Destination { has_replicas, shares_reads, .. } = *self.destination_of(index);
        if shares_reads {
            return self.fast_requests_sharing(index, buf);
        }
        match (client.session.wire_protocol, has_replicas) {
            (WireProtocol::Resp2 | WireProtocol::Resp3, false) => {
                self.fast_requests_with::<Redis<true, true, false, true>>(index, buf)
            }
            (WireProtocol::Resp2 | WireProtocol::Resp3, true) => {
                self.fast_requests_with::<Redis<true, true, true, true>>(index, buf)
            }
            (WireProtocol::Text, false) => {
                self.fast_requests_with::<Text<false, false, true>>(index, buf)
            }
            (WireProtocol::Text, true) => {
                self.fast_requests_with::<Text<false, true, true>>(index, buf)
            }
            (WireProtocol::Binary, false) => {
                self.fast_requests_with::<Binary<false, true>>(index, buf)
            }
            (WireProtocol::Binary, true) => {
                self.fast_requests_with::<Binary<true, true>>(index, buf)
            }
        }
    }

    #[inline(never)]
    fn fast_requests_sharing<'b>(&mut self, index: ClientId, buf: &'b [u8]) -> &'b [u8] {
        let client = &self.clients[index];
        let Destination { has_replicas, misses, ref route, .. } = *self.destination_of(index);
        let has_metagets = !misses && route.is_none();
        match (client.session.wire_protocol, has_replicas) {
            (WireProtocol::Resp2 | WireProtocol::Resp3, false) => {
                self.fast_requests_with::<Sharer<Redis<true, true, false, true>>>(index, buf)
            }
            (WireProtocol::Resp2 | WireProtocol::Resp3, true) => {
                self.fast_requests_with::<Sharer<Redis<true, true, true, true>>>(index, buf)
            }
            (WireProtocol::Text, false) if has_metagets => {
                self.fast_requests_with::<Sharer<Text<true, false, true>>>(index, buf)
            }
            (WireProtocol::Text, true) if has_metagets => {
                self.fast_requests_with::<Sharer<Text<true, true, true>>>(index, buf)
            }
            (WireProtocol::Text, false) => {
                self.fast_requests_with::<Sharer<Text<false, false, true>>>(index, buf)
            }
            (WireProtocol::Text, true) => {
                self.fast_requests_with::<Sharer<Text<false, true, true>>>(index, buf)
            }
            // A reply names what its own request does.
            (WireProtocol::Binary, false) => {
                self.fast_requests_with::<Binary<false, true>>(index, buf)
            }
            (WireProtocol::Binary, true) => {
                self.fast_requests_with::<Binary<true, true>>(index, buf)
            }
        }
    }

    // By itself it has more registers than as part of its caller.
    #[inline(never)]
    fn fast_requests_with<'b, R: Reader>(
        &mut self,
        index: ClientId,
        mut buf: &'b [u8],
    ) -> &'b [u8] {
        let client = &mut self.clients[index];
        let listener = &self.listeners[client.listener];
        let limits = &listener.limits;
        let destination = match (client.off_fast_path, client.goes_elsewhere) {
            (false, _) => &listener.destination,
            (true, false) => return buf,
            (true, true) if !R::ROUTED => return self.fast_requests_routed(index, buf),
            (true, true) => listener.destination(client.destination),
        };
        let is_clear = client.session.authenticated
            && client.state == State::Open
            && !client.handoff.is_leaving()
            && client.parser.is_none()
            && destination.is_clear
            && !client.fenced
            && client.output.len() + client.held < limits.client_output_pause;
        if !is_clear {
            return buf;
        }
        let (requests_before, is_idle) = (client.requests, client.head == RequestId::NONE);
        let mut called = None;
        let size_max = (LARGE as u64 - 1).min(limits.request_size_max) as usize;
        let mut backend_id = destination.backend;
        if R::ROUTED
            && destination.route.is_some()
            && let Some(backend) = self.standpoints.of(index)
        {
            backend_id = backend;
        }
        let mut backend = &self.backends[backend_id];
        let mut expiry = backend.expiry(self.now);
        let mut has_tags = R::TAGS && backend.has_tags();
        let client_reads = if R::CHOOSES { client.reads } else { None };
        let mut writes_to_all = R::COPIES && backend.topology.writes_to_all();
        let heeds_writes = R::CHOOSES && backend.replica_rules.heed_writes();
        let is_answered = client.head == RequestId::NONE;
        if heeds_writes && is_answered && self.write_marks.of(index) == WriteMark::OPEN {
            self.write_marks.set(index, backend.write_mark(&self.metrics, self.now));
        }
        while client.requests < client.window
            && let Some(plain) = R::request(buf, &listener.fast_policy)
            && plain.bytes.len() <= size_max
        {
            if R::ROUTED
                && let Some(route) = &destination.route
            {
                let is_read = plain.access.reads();
                let operation = if is_read { Operation::Read } else { Operation::Write };
                let Way::Straight(to) = route.way(plain.key, operation) else { break };
                if to != backend_id {
                    let Some(next) = self.backends.get(to) else { break };
                    // Elsewhere it takes what comes first there, or the general way moves it.
                    let is_plain = client.variant == 0
                        && client.session.database == Selected::NONE
                        && client.session.wire_protocol == next.params_set[0].wire_protocol
                        && !heeds_writes
                        && !next.replica_rules.heed_writes();
                    if !is_plain {
                        break;
                    }
                    (backend_id, backend) = (to, next);
                    self.standpoints.set(index, to);
                    expiry = backend.expiry(self.now);
                    has_tags = R::TAGS && backend.has_tags();
                    writes_to_all = R::COPIES && backend.topology.writes_to_all();
                }
            }
            if has_tags && plain.cas_tags {
                break;
            }
            if R::COPIES && (plain.cas_tags || writes_to_all && !plain.access.reads()) {
                break;
            }
            let mark = Mark::of(plain.key);
            if backend.large_replies.contains(mark) {
                break;
            }
            let own = match plain.called {
                Some(called) if R::CHOOSES && client_reads.is_none() => {
                    backend.topology.reads_by_class(called.id())
                }
                _ => client_reads,
            };
            let moves =
                R::CHOOSES && plain.access == Access::Read && backend.topology.moves_reads(own);
            let chosen = if R::CHOOSES {
                let Client { variant, lane_choice, .. } = *client;
                let written =
                    if heeds_writes { self.write_marks.of(index) } else { WriteMark::NONE };
                let reader = ReadingClient { variant, lane_choice, written, reads: own };
                let reading = Some(Reading { reader, lanes: &self.lanes, metrics: &self.metrics });
                let health = Servers { backend, now: self.now, reading };
                backend.topology.select(plain.key, (plain.access, own), &health, &mut self.rng)
            } else {
                backend.topology.primary(plain.key, &mut self.rng)
            };
            let Some(server) = chosen else {
                break;
            };
            // All listeners of a pool with a spool have a route.
            if R::ROUTED && backend.has_to_forget(server, &self.metrics) {
                break;
            }
            let lane_index = backend.servers[server].lane(client.variant, client.lane_choice);
            let lane = &mut self.lanes[lane_index];
            let is_ready = matches!(lane.link, Link::Ready { .. });
            if !is_ready || lane.is_full(&backend.limits, plain.bytes.len()) {
                if moves {
                    // The general way chooses anew.
                    backend.topology.give_turn_back(server);
                }
                break;
            }
            if R::STORES_META
                && plain.expect == Expect::Answer(Answer::MetaSet)
                && self.now < backend.servers[server].unknown.sets
            {
                break;
            }
            if heeds_writes && !plain.access.reads() {
                self.write_marks.set(index, WriteMark::OPEN);
            }
            let (request, slot) = self.requests.add(backend_id, index, self.now);
            slot.mark = mark;
            slot.expect = plain.expect;
            if moves {
                slot.may_move(own);
            }
            if let Some(asked) = R::asked(plain.bytes) {
                slot.asked = asked;
            }
            if !R::JOINS {
                // While the slot is at hand.
                slot.enter_lane(plain.bytes.len() as u64);
            }
            client.append(request, &mut self.requests);
            if listener.counts {
                let (stats, class) = (&mut self.command_stats, R::class(&plain));
                count::<R>(stats, listener, request, class, plain.bytes.len(), plain.key);
            }
            let (requests, bufs) = (&mut self.requests, &mut self.bufs);
            let shares = R::SHARES && backend.shares_reads;
            let shared = (if shares { R::sharing(&plain) } else { Sharing::No }, mark, plain.bytes);
            let mut get = None;
            // Of those that retrieve, all but `get` have to do with uniques.
            if shares && lane.follow(request, shared, index, requests) {
                self.metrics.add_pool(backend.metrics, PoolCounter::ReadsCoalesced, 1);
            } else if R::JOINS && plain.expect == Expect::Values && !plain.cas_tags {
                let word = &plain.bytes[b"get".len()..plain.bytes.len() - b"\r\n".len()];
                let stage = lane.append_get(request, word, index, requests, bufs);
                if R::SHARES {
                    get = Some(stage);
                }
            } else if R::JOINS {
                lane.append_beside_gets(request, plain.bytes, index, requests, bufs);
            } else {
                if R::CHOOSES && R::STORES_META {
                    // Since before a reload.
                    lane.write_gets(bufs);
                }
                lane.link(request, plain.bytes.len() as u64, requests);
                lane.output.push(plain.bytes, bufs);
            }
            if shares && !self.requests[request].follows {
                lane.note_unsent(request, shared, index, get);
            }
            lane.mark(&mut self.dirty_lanes);
            lane.arm(lane_index, expiry, &mut self.timers);
            called = plain.called;
            buf = plain.rest;
        }
        if let Some(called) = called {
            client.called = called.id();
        }
        let count = client.requests - requests_before;
        if is_idle && count > 0 {
            self.activity.join(&mut client.asked_in, &mut client.asked);
        }
        client.asked = client.asked.wrapping_add(count.into());
        client.totals.requests += u64::from(count);
        self.metrics.add_pool(listener.metrics, PoolCounter::Requests, count.into());
        buf
    }

    /// Delivers replies from the start of `buf`, which come from a lane; returns what it leaves.
    #[inline]
    pub(crate) fn fast_replies<'b>(&mut self, index: LaneId, buf: &'b [u8]) -> &'b [u8] {
        let lane = &self.lanes[index];
        if lane.followers > 0 {
            return self.fast_replies_shared(index, buf);
        }
        let looks_closer = self.backends[lane.backend].looks_closer;
        match &lane.scanner {
            Scanner::Redis(scanner) => match (scanner.is_resp3(), looks_closer) {
                (false, false) => {
                    self.fast_replies_with::<Redis<false, false, false, false>>(index, buf)
                }
                (false, true) => {
                    self.fast_replies_with::<Redis<false, false, true, false>>(index, buf)
                }
                (true, false) => {
                    self.fast_replies_with::<Redis<true, false, false, false>>(index, buf)
                }
                (true, true) => {
                    self.fast_replies_with::<Redis<true, false, true, false>>(index, buf)
                }
            },
            Scanner::Memcached(_) => self.fast_replies_with::<Text<true, false, false>>(index, buf),
            Scanner::Binary(_) => self.fast_replies_with::<Binary<false, false>>(index, buf),
        }
    }

    /// The same where requests share replies.
    #[inline(never)]
    fn fast_replies_shared<'b>(&mut self, index: LaneId, buf: &'b [u8]) -> &'b [u8] {
        match &self.lanes[index].scanner {
            Scanner::Redis(scanner) if scanner.is_resp3() => {
                self.fast_replies_with::<Sharer<Redis<true, false, true, false>>>(index, buf)
            }
            Scanner::Redis(_) => {
                self.fast_replies_with::<Sharer<Redis<false, false, true, false>>>(index, buf)
            }
            Scanner::Memcached(_) => {
                self.fast_replies_with::<Sharer<Text<true, false, false>>>(index, buf)
            }
            Scanner::Binary(_) => buf,
        }
    }

    #[inline(never)]
    fn fast_replies_with<'b, R: Reader>(&mut self, index: LaneId, mut buf: &'b [u8]) -> &'b [u8] {
        let lane = &mut self.lanes[index];
        let backend = &self.backends[lane.backend];
        let is_clear = matches!(lane.link, Link::Ready { .. })
            && backend.large_replies.is_empty()
            // There it is looked at whether a reply can be what is due.
            && !lane.is_session
            && !(backend.is_cached || R::CHOOSES && lane.refused.is_some())
            && !lane.scanner.is_push(b"");
        if !is_clear {
            return buf;
        }
        if lane.in_flight > 0 {
            let age_us = self.now.micros_since(self.requests[lane.head].started);
            if self.observer.is_suspect(age_us, backend.slow_after_us) {
                return buf;
            }
        }
        let heeds_writes = R::CHOOSES && backend.replica_rules.heed_writes();
        let batch_end = lane.batches.front().map_or(u64::MAX, |batch| batch.end);
        let tag = match R::TAGS_HEADERS {
            true => backend.servers[lane.server].tag,
            false => Tag::default(),
        };
        let mut unblocked = ClientId::NONE;
        // The last one is a sample.
        let mut left = self.observer.left;
        while lane.in_flight > 0 && left > 1 {
            let head = lane.head;
            let request = &mut self.requests[head];
            // Where nothing of the reply has arrived, and no push, the lane's scanner is at its start.
            let is_plain = matches!(request.role, Role::Single)
                && request.client != ClientId::NONE
                && !(request.silent | request.is_sent_on | (R::TAGS && request.is_tagged))
                && request.arrived == 0;
            if !is_plain {
                break;
            }
            let is_coalesced = R::JOINS && request.expect.is_coalesced();
            let (reply, is_open, rest) = if is_coalesced {
                let Some(part) = lane.coalesced.plain_part(request, buf) else { break };
                (part.reply, part.is_open, part.rest)
            } else {
                let Some((whole, rest)) = R::reply(request.expect, buf) else { break };
                if !R::is_for(request, whole) {
                    break;
                }
                (whole, false, rest)
            };
            let len = (reply.len() + if is_open { END.len() } else { 0 }) as u64;
            if len >= LARGE as u64 {
                break;
            }
            let owner = request.client;
            let (client, generation) = self.clients.entry(owner);
            let listener = &self.listeners[client.listener];
            if client.output.len() + client.held + len > listener.limits.client_output_max {
                break;
            }
            left -= 1;
            request.in_lane = false;
            request.done = true;
            let (next, mut wire_len) = (request.next_in_lane, request.wire_len);
            let mut is_shared = false;
            if R::SHARES && lane.hand_on(head, next, &mut self.requests) {
                (is_shared, wire_len) = (true, 0);
                // Its server was not asked for it.
                lane.recorded += 1;
            } else {
                buf = rest;
            }
            let request = &mut self.requests[head];
            lane.pop_head(next, wire_len);
            let mut ended = |id, started, reply: &[u8], len: u64| {
                let latency = self.now.micros_since(started);
                let stats = &mut self.command_stats;
                self.latency_batch.add(listener.metrics, latency, stats, &self.metrics);
                if listener.counts {
                    self.command_stats.end(id, reply, len);
                }
                latency
            };
            let is_next = client.head == head;
            if is_next {
                client.totals.note_latency(ended(head, request.started, reply, len));
            }
            let (header, reply) = match reply.split_first_chunk() {
                Some((header, rest)) if R::TAGS_HEADERS && tag.is_some() => {
                    (Some(retagged_header(tag, header)), rest)
                }
                _ => (None, reply),
            };
            if is_coalesced && !is_shared {
                lane.coalesced.pop_key(request, &mut self.bufs);
            }
            if !is_next {
                if let Some(header) = header {
                    request.hold(&header, &mut self.bufs);
                }
                request.hold(reply, &mut self.bufs);
                if is_open {
                    request.hold(END, &mut self.bufs);
                }
                client.held += len;
            } else {
                if let Some(header) = header {
                    client.output.push(&header, &mut self.bufs);
                }
                client.output.push(reply, &mut self.bufs);
                if is_open {
                    client.output.push(END, &mut self.bufs);
                }
                let (requests, bufs) = (&mut self.requests, &mut self.bufs);
                client.end_head(requests, bufs, &mut self.activity);
                client.deliver_done(requests, bufs, &mut self.activity, |id, request| {
                    let kept = request.kept_reply();
                    ended(id, request.started, kept, kept.len() as u64);
                });
                if heeds_writes
                    && client.head == RequestId::NONE
                    && self.write_marks.of(owner) == WriteMark::OPEN
                {
                    self.write_marks.set(owner, backend.write_mark(&self.metrics, self.now));
                }
                if client.paused {
                    unblocked = owner;
                }
                let conn = ConnId::of_client(owner, generation);
                client.mark(conn, &mut self.dirty_clients, &mut self.deferred_clients);
            }
            if unblocked != ClientId::NONE || lane.answered == batch_end {
                break;
            }
        }
        self.observer.left = left;
        if unblocked != ClientId::NONE {
            self.unblock(unblocked);
        }
        self.end_batch(index);
        buf
    }
}

impl Engine {
    /// Takes replies to fragments from the start of `buf`, which come from a lane; returns what it
    /// leaves.
    #[inline(never)]
    pub(crate) fn express_parts<'b>(&mut self, index: LaneId, mut buf: &'b [u8]) -> &'b [u8] {
        let lane = &self.lanes[index];
        if lane.refused.is_some() {
            return buf;
        }
        let generation = lane.generation;
        while !buf.is_empty() {
            let lane = &mut self.lanes[index];
            // Answering a client may end the connection that the bytes came on.
            let is_clear = lane.generation == generation
                && matches!(lane.link, Link::Ready { .. })
                && lane.in_flight > 0
                && !self.backends[lane.backend].is_cached
                && !lane.scanner.is_push(b"");
            if !is_clear {
                break;
            }
            let fragment = lane.head;
            let request = &mut self.requests[fragment];
            let age_us = self.now.micros_since(request.started);
            let slow_after_us = self.backends[lane.backend].slow_after_us;
            if self.observer.left <= 1 || self.observer.is_suspect(age_us, slow_after_us) {
                break;
            }
            let Role::Fragment { parent, .. } = request.role else { break };
            let mut end: &[u8] = b"";
            // Where nothing of the reply has arrived, and no push, the lane's scanner is at its start.
            if request.arrived > 0 || request.is_tagged || request.is_sent_on {
                break;
            }
            let is_coalesced = request.expect.is_coalesced();
            let plain = match (&lane.scanner, request.expect) {
                // It may have to be sent again.
                (Scanner::Redis(_), _)
                    if buf[0] == b'-' && self.backends[lane.backend].repeats_refused =>
                {
                    None
                }
                (Scanner::Redis(scanner), _) => {
                    let plain = match scanner.is_resp3() {
                        true => resp::plain_reply_or_array::<true>(buf),
                        false => resp::plain_reply_or_array::<false>(buf),
                    };
                    plain.filter(|(reply, _)| request.due.is_met_by(reply) == Some(true))
                }
                (Scanner::Memcached(_), Expect::Values) => memcached::plain_values(buf),
                (Scanner::Memcached(_), _) if is_coalesced => {
                    let part = lane.coalesced.plain_part(request, buf);
                    part.map(|Part { reply, is_open, rest }| {
                        end = if is_open { END } else { b"" };
                        (reply, rest)
                    })
                }
                _ => None,
            };
            let Some((reply, rest)) = plain.filter(|(reply, _)| reply.len() < LARGE) else { break };
            buf = rest;
            self.observer.left -= 1;
            request.in_lane = false;
            request.done = true;
            lane.pop_head(request.next_in_lane, request.wire_len);
            if is_coalesced {
                lane.coalesced.pop_key(request, &mut self.bufs);
            }
            let client = self.requests[parent].client;
            if client != ClientId::NONE {
                let request = &mut self.requests[fragment];
                request.hold(reply, &mut self.bufs);
                request.hold(end, &mut self.bufs);
                self.clients[client].held += (reply.len() + end.len()) as u64;
            } else {
                // A flow may go on without its client.
                self.hold(fragment, reply);
            }
            self.end_batch(index);
            self.fragment_done(fragment, parent);
        }
        buf
    }
}
