//! The client's side: from bytes to requests, and replies in their order.

use cashew_metrics::{PoolCounter, PoolGauge};
use cashew_protocol::resp;

use crate::base::action::Action;
use crate::base::buffer::LARGE;
use crate::base::command_stats::Counting;
use crate::base::id::{ClientId, ConnId, LaneId, RequestId};
use crate::downstream::client::{Handoff, Parser, Skip, State};
use crate::downstream::upload::{Begun, UPLOAD_SIZE_MIN};
use crate::engine::{Closed, Engine};
use crate::exchange::dispatch::Payload;
use crate::redis::blocking::AHEAD_OF_BLOCKED_MAX;
use crate::request::Role;
use crate::request::replay::Replay;
use crate::upstream::bulk::BULK_SIZE;
use crate::upstream::exclusive::Turn;
use crate::upstream::session_params::WireProtocol;

/// Who has not logged in may send a request of this many bytes at most, as nobody need keep more for a stranger.
/// Redis takes ten arguments of 16 KiB.
const UNAUTHENTICATED_MAX: usize = 64 << 10;
const UNAUTHENTICATED_LENGTH: &[u8] =
    b"-ERR Protocol error: unauthenticated request is too long\r\n";

/// What became of one parsed request.
pub(crate) enum Plan {
    /// All is done.
    Done,
    /// Its bytes go to this lane as this request.
    Forward { lane: LaneId, request: RequestId },
    /// Nothing is done: it is to be dispatched when the client is owed nothing any more.
    Wait,
}

/// How far consuming a buffer got.
pub(crate) enum Step {
    /// So many bytes were consumed; the rest is part of a request, or the client may not go on.
    /// `need` is the length that the request at the front will have at least.
    Rest { used: usize, need: usize },
    /// A large request of this length stands at the front of an owned buffer: forward the buffer.
    Large { len: usize, lane: LaneId, request: RequestId },
    /// So many bytes were consumed; the rest is the start of a request that is passed on while it
    /// arrives.
    Upload { used: usize },
}

impl Engine {
    #[inline(always)]
    pub(crate) fn client_received(&mut self, conn: ConnId, bytes: &[u8]) {
        let index = conn.client();
        let Some(client) = self.clients.get_mut(index, conn.generation()) else {
            if conn.is_paired() {
                self.paired_received(conn, bytes);
            }
            return;
        };
        client.totals.received += bytes.len() as u64;
        let metrics = self.listeners[client.listener].metrics;
        self.metrics.add_pool(metrics, PoolCounter::ClientBytesReceived, bytes.len() as u64);
        self.activity.received += 1;
        if client.state != State::Open || client.input.capacity() > 0 || client.paused {
            self.keep_received(index, bytes);
            return;
        }
        self.activity.pipelined += u64::from(client.head != RequestId::NONE);
        let rest = self.fast_requests(index, bytes);
        if !rest.is_empty() {
            self.consume_rest(index, rest);
        }
    }

    /// As [`Engine::client_received`], for an open client. A buffer that is half full or more, and does
    /// not begin with what goes the shortest way, is kept as it is. Returns whether the bytes have been
    /// received.
    pub(crate) fn client_received_buffer(&mut self, index: ClientId, buffer: &mut Vec<u8>) -> bool {
        let client = &self.clients[index];
        let is_new = client.input.capacity() == 0 && !client.paused;
        if !is_new || buffer.len() < buffer.capacity() / 2 {
            return false;
        }
        self.activity.received += 1;
        self.activity.pipelined += u64::from(client.head != RequestId::NONE);
        let rest = self.fast_requests(index, buffer);
        if rest.len() < buffer.len() {
            if !rest.is_empty() {
                self.consume_rest(index, rest);
            }
            return true;
        }
        self.bufs.charge(buffer.capacity());
        self.clients[index].input = std::mem::take(buffer);
        self.consume_input(index);
        true
    }

    /// Bytes arrived that do not begin a request, or that the client may not ask for yet.
    #[inline(never)]
    fn keep_received(&mut self, index: ClientId, bytes: &[u8]) {
        let client = &mut self.clients[index];
        match client.state {
            State::Closing => return,
            State::Uploading => {
                let buf = self.bufs.copy_of(bytes);
                self.upload_received(index, buf);
                return;
            }
            State::Open => {}
        }
        self.bufs.reserve(&mut client.input, bytes.len());
        client.input.extend_from_slice(bytes);
        if client.paused && !client.is_muted && client.input.len() > AHEAD_OF_BLOCKED_MAX {
            self.mute(index);
        }
        let client = &self.clients[index];
        if !client.paused || self.passes_pause(index, &client.input) {
            self.consume_input(index);
        }
    }

    /// What the fast path leaves of the bytes that arrived.
    #[inline(never)]
    fn consume_rest(&mut self, index: ClientId, mut bytes: &[u8]) {
        if self.widen(index) {
            bytes = self.fast_requests(index, bytes);
            if bytes.is_empty() {
                return;
            }
        }
        match self.consume(index, bytes, false) {
            Step::Rest { used, need } => self.keep_rest(index, &bytes[used..], need),
            Step::Upload { used } => {
                let buf = self.bufs.copy_of(&bytes[used..]);
                self.upload_received(index, buf);
                return;
            }
            Step::Large { .. } => unreachable!("these bytes are not owned"),
        }
        if self.clients[index].state == State::Closing {
            self.close_if_finished(index);
        }
    }

    /// Goes on with what may go the shortest way behind a request that could not.
    #[inline]
    pub(crate) fn fast_further<'b>(&mut self, index: ClientId, bytes: &'b [u8]) -> &'b [u8] {
        self.widen(index);
        self.fast_requests(index, bytes)
    }

    /// Keeps what could not be consumed yet.
    fn keep_rest(&mut self, index: ClientId, rest: &[u8], need: usize) {
        let client = &mut self.clients[index];
        if rest.is_empty() || client.state == State::Closing {
            return;
        }
        client.input = self.bufs.take_for(room_for(rest.len(), need));
        client.input.extend_from_slice(rest);
    }

    /// Consumes what has been kept. The client may be gone then.
    pub(crate) fn consume_input(&mut self, index: ClientId) {
        let mut input = std::mem::take(&mut self.clients[index].input);
        loop {
            match self.consume(index, &input, true) {
                Step::Large { len, lane, request } => {
                    let rest = input.split_off(len);
                    self.bufs.charge(rest.capacity());
                    self.send(lane, request, Payload::Owned(input));
                    input = rest;
                }
                Step::Upload { used } => {
                    input.drain(..used);
                    self.upload_received(index, input);
                    return;
                }
                Step::Rest { used, need } => {
                    let is_most = used == 0 || input.len() - used > input.capacity() / 2;
                    if is_most && self.clients[index].state != State::Closing {
                        input.drain(..used);
                        let missing = room_for(input.len(), need) - input.len();
                        self.bufs.reserve_exact(&mut input, missing);
                        self.clients[index].input = input;
                    } else {
                        self.keep_rest(index, &input[used..], need);
                        self.bufs.give(input);
                    }
                    self.close_if_finished(index);
                    return;
                }
            }
        }
    }

    /// Parses and dispatches whole requests from the start of `buf`. With `owned`, a large request
    /// at the very front is left to the caller, who can pass the buffer on without a copy.
    pub(crate) fn consume(&mut self, index: ClientId, buf: &[u8], owned: bool) -> Step {
        // A parser in the middle of a request stays with its client: among the spare ones it
        // would take another client's bytes for the rest of that request.
        if !self.passes_pause(index, buf) && !self.may_consume(index, buf) {
            return Step::Rest { used: 0, need: 0 };
        }
        match self.clients[index].session.wire_protocol {
            WireProtocol::Resp2 | WireProtocol::Resp3 => self.consume_redis(index, buf, owned),
            WireProtocol::Text => self.consume_text(index, buf, owned),
            WireProtocol::Binary => self.consume_binary(index, buf, owned),
        }
    }

    fn consume_redis(&mut self, index: ClientId, buf: &[u8], owned: bool) -> Step {
        let mut used = 0;
        let mut need = 0;
        let mut parser = match self.unpark(index) {
            Some(Parser::Redis(parser)) => parser,
            _ => self.scratch.redis.take().unwrap_or_default(),
        };
        let limit = self.listener_of(index).limits.request_size_max;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        while used < buf.len()
            && (self.passes_pause(index, &buf[used..]) || self.may_consume(index, &buf[used..]))
        {
            let bytes = &buf[used..];
            match parser.parse(bytes, limit) {
                resp::Parsed::Complete { len } => {
                    if self.puts_off(index, len, parser.args().len()) {
                        // Parsed again it is as it is now, but for what had to be written anew.
                        if parser.inline_encoded().is_some() {
                            parser.reset();
                        }
                        self.park(index, Parser::Redis(parser));
                        return Step::Rest { used, need };
                    }
                    self.spend(len);
                    let plan = match self.must_wait(index, len) {
                        true => Plan::Wait,
                        false => self.redis_request(index, &parser, &bytes[..len]),
                    };
                    self.fence(index, len, &plan);
                    if let Plan::Wait = plan {
                        parser.reset();
                        break;
                    }
                    if self.is_metered(index) {
                        self.pay_request(index, len);
                    }
                    self.end_unused_turn(index);
                    if self.clients[index].skip != Skip::No {
                        self.advance_skip(index);
                    }
                    if let Plan::Forward { lane, request } = plan {
                        let inline = parser.inline_encoded();
                        if owned && used == 0 && inline.is_none() && fills(len, buf) {
                            parser.reset();
                            self.scratch.redis.give(parser);
                            return Step::Large { len, lane, request };
                        }
                        let payload = inline.unwrap_or(&bytes[..len]);
                        self.send(lane, request, Payload::Bytes(payload));
                    }
                    parser.reset();
                    used += len;
                    if used < buf.len() {
                        used = buf.len() - self.fast_further(index, &buf[used..]).len();
                    }
                }
                resp::Parsed::Partial { need: total } => {
                    if total >= UPLOAD_SIZE_MIN {
                        let begun = self.begin_redis_upload(index, &parser, bytes, total);
                        if let Begun::Yes = begun
                            && self.clients[index].skip != Skip::No
                        {
                            self.advance_skip(index);
                        }
                        if let Some(step) = self.step_of(index, begun, used) {
                            parser.reset();
                            self.scratch.redis.give(parser);
                            return step;
                        }
                    }
                    if total > UNAUTHENTICATED_MAX && !self.clients[index].session.authenticated {
                        parser.reset();
                        self.answer(index, |out| out.extend_from_slice(UNAUTHENTICATED_LENGTH));
                        self.give_up(index);
                        used = buf.len();
                        continue;
                    }
                    need = total;
                    self.park(index, Parser::Redis(parser));
                    return Step::Rest { used, need };
                }
                resp::Parsed::Invalid(error) => {
                    parser.reset();
                    self.command_stats.current = Counting::default();
                    self.answer(index, |out| {
                        out.extend_from_slice(b"-ERR ");
                        error.write_message(out);
                        out.extend_from_slice(b"\r\n");
                    });
                    self.give_up(index);
                    used = buf.len();
                }
            }
        }
        self.scratch.redis.give(parser);
        Step::Rest { used, need }
    }

    /// Keeps a parser with its client until more of the request comes.
    pub(crate) fn park(&mut self, index: ClientId, parser: Parser) {
        self.bufs.charge(parser.size());
        self.clients[index].parser = Some(parser);
    }

    #[inline]
    pub(crate) fn unpark(&mut self, index: ClientId) -> Option<Parser> {
        let parser = self.clients[index].parser.take()?;
        self.bufs.discharge(parser.size());
        Some(parser)
    }

    /// What is left to do, the first `used` bytes being consumed, if a request is not collected.
    pub(crate) fn step_of(&mut self, index: ClientId, begun: Begun, used: usize) -> Option<Step> {
        match begun {
            Begun::No => None,
            Begun::Yes => Some(Step::Upload { used }),
            Begun::Later => {
                self.fence(index, UPLOAD_SIZE_MIN, &Plan::Wait);
                Some(Step::Rest { used, need: 0 })
            }
        }
    }

    /// How many of the next `available` bytes belong to a request refused already.
    pub(crate) fn swallow(&mut self, index: ClientId, available: usize) -> usize {
        let parser = &mut self.clients[index].parser;
        let Some(Parser::Swallow(left)) = parser else { return 0 };
        let bytes = (*left).min(available as u64);
        *left -= bytes;
        if *left == 0 {
            *parser = None;
        }
        bytes as usize
    }

    /// The next bytes, so many, belong to a request that is refused already. Returns how many of them are `available`.
    pub(crate) fn swallow_next(&mut self, index: ClientId, bytes: u64, available: usize) -> usize {
        debug_assert!(self.clients[index].parser.is_none(), "nothing else has begun");
        self.clients[index].parser = (bytes > 0).then_some(Parser::Swallow(bytes));
        self.swallow(index, available)
    }

    /// Whether the client may have one more request dispatched, the one at the start of `bytes`; pauses it if not.
    #[inline]
    pub(crate) fn may_consume(&mut self, index: ClientId, bytes: &[u8]) -> bool {
        let client = &self.clients[index];
        if client.state == State::Closing {
            return false;
        }
        if self.is_blocked(index) {
            let client = &self.clients[index];
            if client.requests >= client.window && client.requests > 0 {
                self.wait_at_window(index);
            }
            self.pause(index);
            return false;
        }
        if self.is_metered(index) && self.awaits_quota(index, bytes) {
            self.pause(index);
            return false;
        }
        self.widen(index);
        self.clients[index].fenced = false;
        true
    }

    /// Whether a request of this length has to wait until the client is owed nothing.
    #[inline]
    pub(crate) fn must_wait(&self, index: ClientId, len: usize) -> bool {
        len >= BULK_SIZE && self.clients[index].requests > 0
    }

    /// Keeps what follows a large request, or the request itself, from being dispatched too early.
    #[inline]
    pub(crate) fn fence(&mut self, index: ClientId, len: usize, plan: &Plan) {
        if let Plan::Wait = plan {
            self.clients[index].fenced = true;
            self.pause(index);
        } else if len >= BULK_SIZE {
            self.clients[index].fenced = true;
        }
    }

    #[inline]
    fn is_blocked(&self, index: ClientId) -> bool {
        self.destination_of(index).held || self.is_blocked_itself(index)
    }

    /// Whether it may not ask for another reason than that its pool is held.
    #[inline]
    pub(crate) fn is_blocked_itself(&self, index: ClientId) -> bool {
        let client = &self.clients[index];
        let listener = &self.listeners[client.listener];
        client.throttled
            // What has begun goes on to its end.
            || (client.handoff.is_leaving()
                && client.state != State::Uploading
                && client.modes.transaction.is_none()
                && client.modes.many.is_none()
                && client.modes.ending.is_none())
            || matches!(client.modes.turn, Turn::Waits | Turn::HeldBack)
            || client.modes.slowed_until.is_some()
            || client.modes.awaits_quota
            || (client.fenced && client.requests > 0)
            || (client.requests >= client.window
                && u32::from(client.requests) >= self.pipeline_max(index))
            || client.output.len() + client.held >= listener.limits.client_output_pause
    }

    pub(crate) fn pause(&mut self, index: ClientId) {
        if std::mem::replace(&mut self.clients[index].paused, true) {
            return;
        }
        match self.is_listened_to(index) {
            true => self.unmute(index),
            false => self.mute(index),
        }
    }

    /// Has the connection not be read.
    fn mute(&mut self, index: ClientId) {
        if !std::mem::replace(&mut self.clients[index].is_muted, true) {
            let conn = self.client_conn(index);
            self.actions.push_back(Action::PauseRead { conn });
        }
    }

    /// Has the connection be read.
    pub(crate) fn unmute(&mut self, index: ClientId) {
        if std::mem::take(&mut self.clients[index].is_muted) {
            let conn = self.client_conn(index);
            self.actions.push_back(Action::ResumeRead { conn });
        }
    }

    /// Notes that a paused client may perhaps go on.
    #[inline]
    pub(crate) fn unblock(&mut self, index: ClientId) {
        let client = &self.clients[index];
        if client.paused && !client.resumable && !self.is_blocked(index) {
            self.clients[index].resumable = true;
            let conn = self.client_conn(index);
            self.resumable.push(conn);
        }
    }

    pub(crate) fn resume(&mut self, index: ClientId) {
        self.clients[index].resumable = false;
        if !self.clients[index].paused || self.is_blocked(index) {
            return;
        }
        self.clients[index].paused = false;
        if self.clients[index].is_at_window {
            self.leave_window(index);
        }
        if !self.clients[index].input.is_empty() {
            self.consume_input(index);
        }
        if !self.clients[index].paused {
            self.unmute(index);
        }
        self.close_if_finished(index);
    }

    /// Answers a request here, in its turn.
    pub(crate) fn answer(&mut self, index: ClientId, write: impl FnOnce(&mut Vec<u8>)) {
        let request = self.new_request(index);
        self.answer_request(index, request, write);
    }

    /// Answers one of a client's requests here.
    pub(crate) fn answer_request(
        &mut self,
        index: ClientId,
        request: RequestId,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let mut text = std::mem::take(&mut self.scratch.text);
        text.clear();
        write(&mut text);
        self.spend(text.len());
        if !self.requests[request].silent {
            self.note_reply(index, &text);
        }
        self.clients[index].held += text.len() as u64;
        let slot = &mut self.requests[request];
        slot.done = true;
        if text.len() < LARGE {
            slot.hold(&text, &mut self.bufs);
            self.scratch.text = text;
        } else {
            self.bufs.charge(text.capacity());
            self.bufs.give(std::mem::replace(&mut slot.reply, text));
        }
        self.client_ready(index);
    }

    /// A new request at the end of the client's queue.
    #[inline]
    pub(crate) fn new_request(&mut self, index: ClientId) -> RequestId {
        let backend = self.backend_of(index);
        let client = &mut self.clients[index];
        let (request, _) = self.requests.add(backend, index, self.now);
        let slot = &mut self.requests[request];
        slot.silent = client.noreply;
        slot.asked = self.request_ctx.asked;
        if client.head == RequestId::NONE {
            self.activity.join(&mut client.asked_in, &mut client.asked);
        }
        client.append(request, &mut self.requests);
        client.asked = client.asked.wrapping_add(1);
        client.totals.requests += 1;
        let listener = &self.listeners[client.listener];
        self.metrics.add_pool(listener.metrics, PoolCounter::Requests, 1);
        if listener.counts {
            let form = client.session.wire_protocol.reply_form();
            self.command_stats.begin(request, form, self.command_stats.current);
            // Where one request is answered as several, its bytes count once.
            self.command_stats.current.size = 0;
        }
        request
    }

    /// Whether its requests are counted by class of commands and by prefix.
    #[inline]
    pub(crate) fn counts(&self, client: ClientId) -> bool {
        self.listeners[self.clients[client].listener].counts
    }

    /// The request that is dispatched next counts as this; `key` is the first that it names. Only
    /// for clients whose requests are [counted](Self::counts).
    pub(crate) fn count_as(&mut self, client: ClientId, counting: Counting, key: Option<&[u8]>) {
        let listener = &self.listeners[self.clients[client].listener];
        let prefix = key.map(|key| listener.prefixes.find(key)).unwrap_or_default();
        self.command_stats.current = Counting { prefix, ..counting };
    }

    /// Takes the client's only request back, as if it had just been received.
    pub(crate) fn put_back(&mut self, index: RequestId, request: Replay) {
        let client = self.requests[index].client;
        debug_assert_eq!(self.clients[client].head, index);
        if self.clients[client].modes.tracking.is_some() {
            self.release_pushes(client);
        }
        debug_assert_eq!(self.clients[client].requests, 1);
        let is_silent = self.requests[index].silent;
        let state = &mut self.clients[client];
        (state.head, state.tail, state.requests) = (RequestId::NONE, RequestId::NONE, 0);
        if is_silent && !state.noreply {
            // It was the one that CLIENT REPLY SKIP is about, and is again.
            (state.noreply, state.skip) = (true, Skip::This);
            self.update_off_fast_path(client);
        }
        self.activity.leave();
        self.free_request(index);
        self.settle_in_flight(client);
        if self.clients[client].state == State::Closing {
            // It is not to ask anything more, but gets the rest of what it has been answered.
            request.give_back(&mut self.bufs);
            self.close_if_finished(client);
            return;
        }
        self.unpark(client);
        let request = self.by_clients_name(client, request);
        let input = std::mem::take(&mut self.clients[client].input);
        let mut text = request.into_buffer();
        self.bufs.reserve_exact(&mut text, input.len());
        text.extend_from_slice(&input);
        self.bufs.give(input);
        self.clients[client].input = text;
        self.pause(client);
        self.unblock(client);
    }

    /// Moves replies that are complete and in turn into the client's output.
    #[inline]
    pub(crate) fn client_ready(&mut self, index: ClientId) {
        let client = &mut self.clients[index];
        let before = client.requests;
        let listener = &self.listeners[client.listener];
        let (requests, bufs) = (&mut self.requests, &mut self.bufs);
        let mut slowest = 0;
        client.deliver_done(requests, bufs, &mut self.activity, |id, request| {
            let latency = self.now.micros_since(request.started);
            slowest = latency.max(slowest);
            let stats = &mut self.command_stats;
            self.latency_batch.add(listener.metrics, latency, stats, &self.metrics);
            if listener.counts {
                let kept = request.kept_reply();
                self.command_stats.end(id, kept, kept.len() as u64);
            }
        });
        client.totals.note_latency(slowest);
        if client.requests < before {
            let is_off_fast_path = client.off_fast_path;
            self.settle_write(index);
            self.mark_client(index);
            self.unblock(index);
            if is_off_fast_path {
                self.settle_in_flight(index);
                self.release_held(index);
                self.release_announcements(index);
            }
        }
    }

    /// Bytes of the client's output are written.
    #[inline(always)]
    pub(crate) fn client_sent(&mut self, conn: ConnId, bytes: u64) {
        let index = conn.client();
        let Some(client) = self.clients.get_mut(index, conn.generation()) else {
            if conn.is_paired() {
                self.paired_sent(conn, bytes);
            }
            return;
        };
        let metrics = self.listeners[client.listener].metrics;
        self.metrics.add_pool(metrics, PoolCounter::ClientBytesSent, bytes);
        client.totals.sent += bytes;
        let concerns_more = client.paused
            || client.fenced
            || client.read_closed
            || client.state == State::Closing
            || client.off_fast_path
            || client.output.len() != bytes;
        if concerns_more {
            return self.follow_sent(index, bytes);
        }
        client.output.clear(&mut self.bufs);
    }

    /// The same for a client that may go on now, or has come to its end.
    #[inline(never)]
    fn follow_sent(&mut self, index: ClientId, bytes: u64) {
        let client = &mut self.clients[index];
        client.output.advance(bytes, &mut self.bufs);
        if let Some(stripping) = client.modes.stripping() {
            stripping.ready -= bytes;
        }
        self.observe_sent(index, bytes);
        if self.is_metered(index) {
            self.pay_sent(index, bytes);
        }
        let client = &self.clients[index];
        let (is_finished, is_fenced) = (client.is_finished(), client.fenced);
        if client.paused {
            self.unblock(index);
        }
        if is_fenced {
            self.balance_paused(index);
        }
        if is_finished {
            self.close_if_finished(index);
        }
    }

    /// Takes no more requests; closes when all replies owed are written.
    pub(crate) fn finish(&mut self, index: ClientId) {
        let client = &mut self.clients[index];
        if let Some(Parser::Upload(upload)) = &mut client.parser {
            upload.closing = true;
            return;
        }
        if client.modes.many.is_some() {
            // It is in the middle of a reply.
            client.read_closed = true;
            return;
        }
        if client.handoff == Handoff::HandedOff {
            // It is not for this process to write what it is owed.
            return;
        }
        client.state = State::Closing;
        client.paused = false;
        let input = std::mem::take(&mut client.input);
        self.bufs.give(input);
        self.withdraw(index);
        self.close_if_finished(index);
    }

    /// The client broke the protocol, or its reply broke off.
    pub(crate) fn give_up(&mut self, index: ClientId) {
        let client = &mut self.clients[index];
        client.state = State::Closing;
        self.metrics.add_pool(self.listeners[client.listener].metrics, PoolCounter::ClientErr, 1);
    }

    pub(crate) fn close_if_finished(&mut self, index: ClientId) {
        let client = &self.clients[index];
        if client.is_finished() {
            if client.read_closed {
                let metrics = self.listeners[client.listener].metrics;
                self.metrics.add_pool(metrics, PoolCounter::ClientEof, 1);
            }
            self.drop_client(index, Closed::ByUs);
        }
    }

    /// Forgets the client. Its requests run to their end on the servers; nobody reads the replies.
    ///
    /// Until the end of the tick a closed client stands in for it, to which nothing happens: whoever
    /// goes on with its id need not ask whether it is there.
    pub(crate) fn drop_client(&mut self, index: ClientId, closed: Closed) {
        if self.clients.is_retired(index) {
            return;
        }
        let conn = self.client_conn(index);
        self.unmeter(index);
        self.leave_line(index);
        if !self.tours.is_empty() {
            self.tours.remove(&index);
        }
        let backend = self.backend_of(index);
        let keyless = self.keyless_backend(index);
        let stand_in = self.clients[index].closed();
        self.publish_user(index);
        let mut client = self.clients.retire(index, stand_in);
        let blocking = client.modes.end_blocking();
        let waited_on = blocking.as_ref().map_or(LaneId::NONE, |blocking| blocking.lane);
        if let Some(blocking) = blocking {
            self.drop_blocking(*blocking);
        }
        if client.handoff == Handoff::HandedOff {
            self.moving.forget_handed_off();
        }
        self.orphan_all(client.head, client.asker);
        self.activity.depart(client.asked_in);
        if waited_on != LaneId::NONE {
            self.abandon_session(waited_on);
        }
        if let Some(transaction) = client.modes.end_transaction() {
            self.drop_transaction(*transaction, waited_on);
        }
        if let Some(Parser::Upload(upload)) = &client.parser
            && upload.lane != LaneId::NONE
        {
            let request = self.abandon(upload.lane);
            self.free_request(request);
        }
        if client.fenced {
            self.abandon_paused();
        }
        if client.modes.end_monitor().is_some() {
            self.forget_monitor(index, client.listener);
        }
        if let Some(subscriber) = client.modes.end_subscriber() {
            self.forget_subscriber(index, keyless, *subscriber);
        }
        client.output.clear(&mut self.bufs);
        self.bufs.give(client.input);
        self.bufs.discharge(client.session.profile_size());
        if let Some(parser) = client.parser {
            self.bufs.discharge(parser.size());
        }
        self.leave_variant(backend, client.variant);
        let listener = &mut self.listeners[client.listener];
        listener.clients -= 1;
        if client.has_place {
            listener.places_taken -= 1;
            self.metrics.set_pool(
                listener.metrics,
                PoolGauge::ClientConnections,
                listener.places_taken,
            );
            self.departed.push(listener.quota);
        }
        if closed == Closed::ByUs {
            self.actions.push_back(Action::Close { conn });
        }
    }

    /// Frees the slots of clients that were dropped in this tick.
    #[cold]
    pub(crate) fn free_dropped(&mut self) {
        while let Some(mut client) = self.clients.free_retired() {
            self.orphan_all(client.head, client.asker);
            client.output.clear(&mut self.bufs);
            self.bufs.give(client.input);
            if let Some(parser) = client.parser {
                self.bufs.discharge(parser.size());
            }
        }
    }

    /// The requests of a client, of which this is the first, have none any more.
    fn orphan_all(&mut self, head: RequestId, asker: u32) {
        if head == RequestId::NONE {
            return;
        }
        self.activity.leave();
        // They are known by one number even if none has been sent to another node yet.
        let asker = if asker == 0 { self.sent_on.new_asker() } else { asker };
        let mut at = head;
        while at != RequestId::NONE {
            let next = self.requests[at].next_in_client;
            self.requests[at].asker = asker;
            self.orphan(at);
            at = next;
        }
    }

    /// The request has no client any more.
    fn orphan(&mut self, index: RequestId) {
        let request = &mut self.requests[index];
        request.client = ClientId::NONE;
        let waits = match request.role {
            Role::Parent { pending, .. } => pending > 0,
            Role::Flow { pending, .. } => pending > 0 || request.in_lane,
            Role::Single | Role::Fragment { .. } | Role::Probe { .. } | Role::Own(_) => {
                request.in_lane
            }
        };
        if !waits {
            self.free_request(index);
        } else if !request.reply.is_empty() {
            let reply = std::mem::take(&mut request.reply);
            self.bufs.give(reply);
        }
    }

    pub(crate) fn free_request(&mut self, index: RequestId) {
        // It may be given up where it is.
        self.note_answered_elsewhere(index);
        let request = &mut self.requests[index];
        if request.cache_mark.is_some() {
            self.drop_cache_mark(index);
        }
        let request = &mut self.requests[index];
        self.bufs.give(std::mem::take(&mut request.reply));
        if let Role::Flow { .. } = request.role {
            self.end_flow(index);
        }
        let request = &mut self.requests[index];
        match std::mem::replace(&mut request.role, Role::Single) {
            Role::Parent { merge, .. } => self.recycle_merge(merge),
            Role::Single
            | Role::Flow { .. }
            | Role::Fragment { .. }
            | Role::Probe { .. }
            | Role::Own(_) => {}
        }
        self.requests.remove(index, &mut self.bufs);
    }

    /// Closes a client whose reply broke off, after what it has been answered is written. Who is in the
    /// middle of something else is closed at once.
    #[cold]
    pub(crate) fn break_off(&mut self, index: ClientId) {
        let client = &self.clients[index];
        let is_plain = !client.is_odd()
            && !matches!(client.parser, Some(Parser::Upload(_)))
            && client.modes.are_none()
            && !client.handoff.is_leaving()
            && !self.tours.contains_key(&index);
        if !is_plain || client.output.is_empty() {
            return self.cut_client(index, PoolCounter::ClientErr);
        }
        drop(self.unpark(index));
        let client = &mut self.clients[index];
        self.bufs.give(std::mem::take(&mut client.input));
        let head = std::mem::replace(&mut client.head, RequestId::NONE);
        (client.tail, client.requests, client.held, client.paused) = (RequestId::NONE, 0, 0, false);
        let is_fenced = std::mem::take(&mut client.fenced);
        let asker = client.asker;
        self.orphan_all(head, asker);
        if is_fenced {
            self.abandon_paused();
        }
        self.give_up(index);
        // What it goes on to say is dropped: it may not read before it has said it.
        self.unmute(index);
        self.mark_client(index);
    }

    /// Closes a client whose replies pile up beyond the limit, or whose reply broke off.
    pub(crate) fn cut_client(&mut self, index: ClientId, counter: PoolCounter) {
        self.metrics.add_pool(self.listener_of(index).metrics, counter, 1);
        self.drop_client(index, Closed::ByUs);
    }
}

/// Whether a request of this length at the front of a buffer is large, and most of it, so that it may
/// have the buffer: it is not copied then, but what follows it is.
pub(crate) fn fills(len: usize, buf: &[u8]) -> bool {
    len >= LARGE && len >= buf.len() / 2
}

/// How much room to make for a request of `need` bytes of which `len` are there. What is only
/// announced is not believed at once: anybody can announce 512 MiB.
fn room_for(len: usize, need: usize) -> usize {
    const ADVANCE_MAX: usize = 1 << 20;
    need.min(len.saturating_mul(2).max(ADVANCE_MAX)).max(len)
}
