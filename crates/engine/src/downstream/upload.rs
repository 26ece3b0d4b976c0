//! Large requests that are passed on while they arrive.
//!
//! An upload has a lane to itself ([`crate::upstream::streaming`]), so that a slow client holds up nobody, and
//! at most about [`AHEAD_MAX`] of it waits here: beyond that the client is not read. Its request
//! stands in the lane's queue like any other, with a `wire_len` that grows as bytes come.

use std::borrow::Cow;

use cashew_acl::Call;
use cashew_metrics::PoolCounter;
use cashew_protocol::memcached::Expect;
use cashew_protocol::redis::{self, Access, Called, Command, Rule};
use cashew_protocol::{Span, resp};

use crate::base::command_stats::Counting;
use crate::base::failure::{Failure, NamedFailure};
use crate::base::id::{ClientId, LaneId, RequestId};
use crate::base::pace::Pace;
use crate::base::time::Time;
use crate::downstream::client::{Parser, State};
use crate::downstream::command_policy::NOT_AUTHENTICATED;
use crate::downstream::slow_clients::COLLECTED_MAX;
use crate::engine::{Closed, Engine};
use crate::upstream::bulk::Mark;
use crate::upstream::streaming::AHEAD_MAX;

/// Requests of at least this many bytes are passed on while they arrive. Smaller ones take no more
/// memory when they are collected, and need no connection of their own.
pub(crate) const UPLOAD_SIZE_MIN: usize = 1 << 20;
/// What has come is written in pieces of at least this size: every write wakes the server.
const WRITE_MIN: u64 = 256 * 1024;

/// How much of a request is there, and how long it is at least.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) here: usize,
    pub(crate) need: usize,
}

const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";

/// A request that is arriving.
pub(crate) struct Upload {
    /// Where it goes; [`LaneId::NONE`] when nobody wants the rest.
    pub(crate) lane: LaneId,
    /// When bytes of it came last.
    pub(crate) fed_at: Time,
    tail: Tail,
    head: Head,
    /// Bytes that have come.
    pub(crate) size: u64,
    /// The client is to be closed behind it.
    pub(crate) closing: bool,
}

/// What the parser has seen already: the start of the first bytes.
#[derive(Default)]
pub(crate) struct Head {
    pub(crate) len: usize,
    /// A part of it that is not passed on.
    pub(crate) cut: Option<Span>,
    /// The second byte as it is passed on: a packet's opcode.
    pub(crate) opcode: Option<u8>,
    /// What is passed on in place of its first bytes, and of how many.
    pub(crate) text: Option<(usize, Vec<u8>)>,
}

/// Finds the end of the rest.
pub(crate) enum Tail {
    Redis(resp::Tail),
    /// So many bytes are to come, the last two a line end.
    Memcached {
        left: usize,
        is_bad: bool,
    },
    /// So many bytes are to come.
    Packet {
        left: usize,
    },
}

/// Why a request cannot go on.
enum Fault {
    Redis(resp::ProtocolError),
    BadChunk,
}

/// What became of a large request whose start is there.
pub(crate) enum Begun {
    /// It is not for passing on: collect it.
    No,
    /// The client now uploads: all that has come of the request goes to
    /// [`Engine::upload_received`].
    Yes,
    /// It is to begin when the client is owed nothing, or when a lane is free.
    Later,
}

impl Engine {
    /// Begins to pass a Redis request on, if it goes to one server by one key that is there.
    #[cold]
    pub(crate) fn begin_redis_upload(
        &mut self,
        client: ClientId,
        parser: &resp::RequestParser,
        bytes: &[u8],
        need: usize,
    ) -> Begun {
        let args = parser.args();
        let policy = &self.listener_of(client).policy;
        if policy.renames().is_some_and(|renames| {
            args.first()
                .is_none_or(|name| !matches!(renames.called(name.of(bytes)), Called::AsEver))
        }) {
            return Begun::No;
        }
        let command = parser.announced().and_then(|count| redis::find_begun(bytes, args, count));
        let Some(command) =
            command.filter(|command| command.rule == Rule::Forward && !command.is_sealed())
        else {
            return Begun::No;
        };
        let key = command.single_key().and_then(|key| args.get(key));
        let (Some(key), Some((len, tail))) = (key, parser.tail()) else { return Begun::No };
        let head = Head { len, ..Head::default() };
        if self.counts(client) {
            let class = redis::CommandId::of(command).class();
            let counting = Counting { size: need as u64, class, ..Counting::default() };
            self.count_as(client, counting, Some(key.of(bytes)));
        }
        // What a limited user asks is decided about when all of it is there, and what a restricted one asks
        // whenever that is not sure to be allowed.
        let session = &self.clients[client].session;
        let call = Call { command, buf: bytes, args };
        let is_restricted = session.restricted_user().is_some_and(|user| !user.may_begin(&call))
            || self.is_metered(client)
            || session.key_prefix().is_some();
        if is_restricted || self.clients[client].modes.transaction.is_some() {
            return Begun::No;
        }
        if self.clients[client].off_fast_path && self.is_postponed(client, command) {
            self.postpone(client);
            return Begun::Later;
        }
        if !self.clients[client].session.authenticated {
            self.answer(client, |out| out.extend_from_slice(NOT_AUTHENTICATED));
            self.upload_to(client, LaneId::NONE, Tail::Redis(tail), head);
            return Begun::Yes;
        }
        if self.may_not_call(client, command) {
            self.refuse_command(client, command);
            self.upload_to(client, LaneId::NONE, Tail::Redis(tail), head);
            return Begun::Yes;
        }
        if self.clients[client].off_fast_path
            && let Some(text) = self.refused_in_mode(client, command)
        {
            self.reply_error(client, &text);
            self.upload_to(client, LaneId::NONE, Tail::Redis(tail), head);
            return Begun::Yes;
        }
        let extent = Extent { here: bytes.len(), need };
        let tail = Tail::Redis(tail);
        self.clients[client].called = redis::CommandId::of(command);
        if !self.stands_for(client, key.of(bytes)) {
            return Begun::No;
        }
        let begun = self.begin_upload(client, key.of(bytes), command.access, (tail, head), extent);
        if let Begun::Yes = begun
            && self.listener_of(client).is_monitored
        {
            let missing = parser.announced().unwrap_or_default().saturating_sub(args.len());
            self.observe_upload(client, command, bytes, args, missing);
        }
        begun
    }

    /// The error for a command that a subscriber or a monitor may not give.
    fn refused_in_mode(&self, client: ClientId, command: &Command) -> Option<Cow<'static, str>> {
        let subscribed = self.refused_while_subscribed(client, command).map(Cow::from);
        subscribed.or_else(|| self.refused_while_monitoring(client, command).map(Cow::from))
    }

    /// Begins to pass a memcached request on, of what has been `asked`.
    #[cold]
    pub(crate) fn begin_memcached_upload(
        &mut self,
        client: ClientId,
        key: &[u8],
        (tail, head): (Tail, Head),
        extent: Extent,
    ) -> Begun {
        if self.clients[client].session.restricted_user().is_some() {
            return Begun::No;
        }
        self.begin_upload(client, key, Access::Write, (tail, head), extent)
    }

    fn begin_upload(
        &mut self,
        client: ClientId,
        key: &[u8],
        access: Access,
        (tail, head): (Tail, Head),
        extent: Extent,
    ) -> Begun {
        // A node of a cluster may send it elsewhere, or it is looked at what it writes: then all of it has to be here.
        let is_restricted = self.is_metered(client)
            || self.clients[client].session.key_prefix().is_some()
            || self.backends[self.backend_of(client)].topology.has_slots()
            || self.backends[self.backend_of(client)].is_cached;
        if is_restricted || (extent.here as u64) < WRITE_MIN {
            // There is nothing to write yet, so it needs no lane: who sends little has none.
            return Begun::No;
        }
        if self.clients[client].requests > 0 {
            return Begun::Later;
        }
        let expect = match tail {
            Tail::Redis(_) => Expect::Line,
            Tail::Memcached { .. } | Tail::Packet { .. } => self.request_ctx.expect,
        };
        let backend = self.backend_of(client);
        let variant = self.clients[client].variant;
        let server =
            self.route_for(client, key, access).ok_or(NamedFailure::from(Failure::NoServer));
        if !access.reads() {
            self.note_write(client);
        }
        let may_collect = extent.need as u64 <= COLLECTED_MAX && self.has_ample_room();
        let placed = server.and_then(|server| {
            let lane = match self.streaming_lane(backend, server, variant) {
                // What cannot be sent at once waits where others wait: whole.
                Ok(Some(lane)) if may_collect && !self.may_trust(lane) => {
                    return Ok((server, None));
                }
                Err(why) if may_collect && self.is_worth_waiting(backend, why) => {
                    return Ok((server, None));
                }
                lane => lane,
            };
            Ok((server, lane.map_err(|why| self.backends[backend].named(server, why))?))
        });
        let lane = match placed {
            Ok((_, Some(lane))) => {
                let request = self.new_request(client);
                self.requests[request].expect = expect;
                self.enqueue(lane, request, 0);
                let state = &mut self.lanes[lane];
                state.upload = client;
                state.pace = Pace::new(self.now, 0);
                // Whoever reads it had better not be read with others.
                self.backends[backend].large_replies.learn(Mark::of(key), true);
                lane
            }
            Ok((server, None)) if may_collect => {
                // Whole it goes by the lane of large requests, which nobody has for long.
                self.notify_want(backend, server);
                return Begun::No;
            }
            Ok((server, None)) => {
                self.await_streaming_lane(client, server);
                return Begun::Later;
            }
            Err(failure) => {
                self.fail(client, failure);
                LaneId::NONE
            }
        };
        self.upload_to(client, lane, tail, head);
        Begun::Yes
    }

    fn upload_to(&mut self, client: ClientId, lane: LaneId, tail: Tail, head: Head) {
        let upload = Upload { lane, fed_at: self.now, tail, head, size: 0, closing: false };
        let slot = &mut self.clients[client];
        slot.state = State::Uploading;
        slot.fenced = true;
        self.park(client, Parser::Upload(Box::new(upload)));
    }

    /// Where the client's upload goes, and as which request, if anybody wants it.
    pub(crate) fn upload_request(&mut self, client: ClientId) -> Option<(LaneId, RequestId)> {
        let lane = self.upload(client).lane;
        (lane != LaneId::NONE).then(|| (lane, self.lane(lane).tail))
    }

    pub(crate) fn upload(&mut self, client: ClientId) -> &mut Upload {
        match &mut self.clients[client].parser {
            Some(Parser::Upload(upload)) => upload,
            _ => unreachable!("a client that uploads has an upload"),
        }
    }

    /// Bytes of an upload, and perhaps of what follows it.
    pub(crate) fn upload_received(&mut self, client: ClientId, mut buf: Vec<u8>) {
        let limit = self.listener_of(client).limits.request_size_max;
        let now = self.now;
        let upload = self.upload(client);
        upload.fed_at = now;
        match upload.scan(&mut buf, limit) {
            Ok(None) => self.pass_on(client, buf, false),
            Ok(Some(len)) => {
                let rest = buf.split_off(len);
                self.bufs.charge(rest.capacity());
                self.pass_on(client, buf, true);
                self.end_upload(client, rest);
            }
            Err((fault, len)) => {
                let rest = buf.split_off(len);
                self.bufs.charge(rest.capacity());
                self.bufs.give(buf);
                self.refuse_upload(client, fault, rest);
            }
        }
    }

    /// Passes bytes on to the upload's lane, the last ones of it perhaps.
    fn pass_on(&mut self, client: ClientId, mut buf: Vec<u8>, is_last: bool) {
        let upload = self.upload(client);
        let index = upload.lane;
        let head = std::mem::take(&mut upload.head);
        if let Some((len, text)) = head.text {
            self.bufs.discharge(buf.capacity());
            buf.splice(..len, text);
            self.bufs.charge(buf.capacity());
        } else {
            if let (Some(opcode), Some(byte)) = (head.opcode, buf.get_mut(1)) {
                *byte = opcode;
            }
            if let Some(cut) = head.cut {
                buf.drain(cut.start as usize..cut.end());
            }
        }
        if index == LaneId::NONE {
            self.bufs.give(buf);
            return;
        }
        let lane = &mut self.lanes[index];
        let len = buf.len() as u64;
        let before = lane.output.len();
        lane.output.push_buf(buf, &mut self.bufs);
        lane.uncounted_size += len;
        let request = &mut self.requests[lane.tail];
        request.wire_len += len;
        if is_last && !request.done {
            request.started = self.now;
        }
        let ahead = lane.output.len();
        if !is_last && ahead < WRITE_MIN {
            return;
        }
        if before < WRITE_MIN {
            // Up to now there was nothing for the server to take.
            lane.progress_at = self.now;
            let expiry = self.backends[lane.backend].expiry(self.now);
            lane.arm(index, expiry, &mut self.timers);
        }
        lane.mark(&mut self.dirty_lanes);
        if !is_last && ahead > AHEAD_MAX {
            self.pause(client);
        }
    }

    /// All of the upload has come; `rest` is what follows it.
    fn end_upload(&mut self, index: ClientId, rest: Vec<u8>) {
        let upload = self.upload(index);
        let (lane, closing) = (upload.lane, upload.closing);
        if lane != LaneId::NONE {
            self.lanes[lane].upload = ClientId::NONE;
        }
        self.unpark(index);
        let client = &mut self.clients[index];
        if closing {
            client.state = State::Closing;
            self.bufs.give(rest);
            self.close_if_finished(index);
            return;
        }
        client.state = State::Open;
        if rest.is_empty() {
            self.bufs.give(rest);
        } else {
            client.input = rest;
        }
        if self.clients[index].paused {
            // Perhaps it was paused for the upload's sake only.
            self.unblock(index);
        } else if self.clients[index].input.is_empty() {
            self.close_if_finished(index);
        } else {
            self.consume_input(index);
        }
    }

    /// The client broke the protocol in the middle: the server must not get to see the rest.
    fn refuse_upload(&mut self, index: ClientId, fault: Fault, rest: Vec<u8>) {
        let conn = self.client_conn(index);
        let lane = std::mem::replace(&mut self.upload(index).lane, LaneId::NONE);
        if lane != LaneId::NONE {
            let request = self.abandon(lane);
            self.refuse_request(request, &fault);
        }
        if !self.clients.is_current(conn.client(), conn.generation()) {
            self.bufs.give(rest);
            return;
        }
        match fault {
            Fault::BadChunk => self.end_upload(index, rest),
            Fault::Redis(_) => {
                self.unpark(index);
                self.bufs.give(rest);
                self.give_up(index);
                self.close_if_finished(index);
            }
        }
    }

    fn refuse_request(&mut self, index: RequestId, fault: &Fault) {
        let request = &mut self.requests[index];
        if request.is_remnant() {
            self.free_request(index);
            return;
        }
        request.in_lane = false;
        let client = request.client;
        match request.streaming {
            // An answer to what is not whole yet, and not whole itself.
            true => self.cut_client(client, PoolCounter::ClientErr),
            false => self.answer_instead(index, |out| fault.write_reply(out)),
        }
    }

    /// The client sends nothing more, but may still listen.
    pub(crate) fn upload_broken(&mut self, index: ClientId) {
        if self.clients[index].requests > 0 {
            // What it waits for is the answer to this.
            let listener = self.listener_of(index).metrics;
            self.metrics.add_pool(listener, PoolCounter::ClientEof, 1);
            self.drop_client(index, Closed::ByUs);
            return;
        }
        let lane = std::mem::replace(&mut self.upload(index).lane, LaneId::NONE);
        if lane != LaneId::NONE {
            let request = self.abandon(lane);
            self.free_request(request);
        }
        self.unpark(index);
        self.clients[index].state = State::Closing;
        self.close_if_finished(index);
    }

    /// Bytes of an upload that goes on are written.
    pub(crate) fn upload_sent(&mut self, index: LaneId, bytes: u64) {
        let lane = &mut self.lanes[index];
        lane.output.advance(bytes, &mut self.bufs);
        lane.partial += bytes;
        lane.in_flight_size += bytes;
        if lane.output.len() > AHEAD_MAX / 2 {
            return;
        }
        let client = lane.upload;
        if std::mem::take(&mut self.clients[client].paused) {
            self.unmute(client);
        }
    }

    /// The lane has failed under an upload: the rest of it is for nobody.
    pub(crate) fn detach_upload(&mut self, lane: LaneId) {
        let client = std::mem::replace(&mut self.lanes[lane].upload, ClientId::NONE);
        if client != ClientId::NONE {
            self.upload(client).lane = LaneId::NONE;
            self.unblock(client);
        }
    }

    /// When a server that gets an upload has taken too long to take what is there.
    pub(crate) fn upload_deadline(&self, index: LaneId) -> Time {
        let lane = &self.lanes[index];
        match self.awaits_client(index) {
            true => Time::NEVER,
            false => self.lane_expiry(index, lane.progress_at),
        }
    }

    /// Whether there is too little of an upload to write it.
    pub(crate) fn awaits_client(&self, lane: LaneId) -> bool {
        self.lanes[lane].output.len() < WRITE_MIN
    }
}

impl Upload {
    /// Has the server get to see another head.
    pub(crate) fn replace_head(&mut self, text: Vec<u8>) {
        self.head.text = Some((self.head.len, text));
    }

    /// Returns the length of what belongs to the request, if it ends in `buf`; or what is wrong with
    /// it, and how much of `buf` it takes.
    fn scan(&mut self, buf: &mut [u8], limit: u64) -> Result<Option<usize>, (Fault, usize)> {
        let start = self.head.len;
        self.head.len = 0;
        let whole = buf.len();
        let (len, least) = match &mut self.tail {
            Tail::Redis(tail) => match tail.scan(&mut buf[start..]) {
                Ok(resp::TailScan::Complete(len)) => (Some(start + len), 0),
                Ok(resp::TailScan::Partial(least)) => (None, least),
                Err(error) => return Err((Fault::Redis(error), whole)),
            },
            Tail::Memcached { left, is_bad } => {
                let data = &buf[start..];
                for (distance, byte) in [(2, b'\r'), (1, b'\n')] {
                    let at = left.checked_sub(distance).and_then(|at| data.get(at));
                    *is_bad |= at.is_some_and(|&found| found != byte);
                }
                let len = data.len().min(*left);
                *left -= len;
                match (*left, *is_bad) {
                    (0, true) => return Err((Fault::BadChunk, start + len)),
                    (0, false) => (Some(start + len), 0),
                    _ => (None, 0),
                }
            }
            Tail::Packet { left } => {
                let len = (buf.len() - start).min(*left);
                *left -= len;
                ((*left == 0).then_some(start + len), 0)
            }
        };
        self.size += len.unwrap_or(whole) as u64;
        if matches!(self.tail, Tail::Redis(_)) && self.size + least as u64 > limit {
            return Err((Fault::Redis(resp::ProtocolError::RequestTooLarge), whole));
        }
        Ok(len)
    }
}

impl Fault {
    fn write_reply(&self, out: &mut Vec<u8>) {
        match self {
            Self::Redis(error) => {
                out.extend_from_slice(b"-ERR ");
                error.write_message(out);
                out.extend_from_slice(b"\r\n");
            }
            Self::BadChunk => out.extend_from_slice(BAD_CHUNK),
        }
    }
}
