//! The server's side: connecting, writing, reading, failing, coming back.

use cashew_config::snapshot::Protocol;
use cashew_metrics::{ServerCounter, ServerGauge, ServerId};
use cashew_protocol::memcached::Expect;
use cashew_protocol::resp::encode;

use crate::action::Action;
use crate::dispatch::Payload;
use crate::engine::{Closed, Engine};
use crate::failure::Failure;
use crate::id::ConnId;
use crate::lane::{Batch, Lane, Link, Scan, Scanner};
use crate::memcached::{greet, is_greeted};
use crate::pool::Server;
use crate::request::Role;
use crate::silence::question;
use crate::slab::NONE;
use crate::time::Time;
use crate::timers::Timer;
use crate::variant::{Dialect, Variant};

/// Backoff after the first failed attempt to connect; it doubles with every further one.
const BACKOFF_MIN_MS: u64 = 10;
const BACKOFF_MAX_MS: u64 = 1000;
/// A connection that lived shorter than this counts as a failed attempt.
const SETTLED_AFTER_US: u64 = 1_000_000;
/// How long the ejection of a server is waited for before it is asked for again.
const ASK_AGAIN_MS: u64 = 1000;
/// Longest reply to AUTH, HELLO or SELECT; HELLO names all modules.
const HANDSHAKE_REPLY_MAX: usize = 64 * 1024;

impl Engine {
    pub(crate) fn server_of(&mut self, lane: u32) -> &mut Server {
        let Lane { pool, server, .. } = self.lanes[lane as usize];
        &mut self.pools[pool as usize].servers[server as usize]
    }

    /// Something has come from the lane's server.
    #[inline]
    fn heard_from(&mut self, index: u32) -> ServerId {
        let now = self.now;
        let server = self.server_of(index);
        server.heard_at = now;
        server.metrics
    }

    pub(crate) fn connect(&mut self, index: u32) {
        let lane = &mut self.lanes[index as usize];
        let pool = &self.pools[lane.pool as usize];
        let is_silent = pool.servers[lane.server as usize].is_silent();
        lane.asks |= is_silent && lane.is_shared();
        lane.tried_at = self.now;
        let deadline = match lane.asks {
            true => pool.sign_deadline(self.now, is_silent),
            false => pool.connect_deadline(self.now),
        };
        lane.generation = lane.generation.wrapping_add(1);
        lane.conn = ConnId::lane(lane.slot, lane.generation);
        lane.link = Link::Connecting { deadline };
        self.session_links += u64::from(lane.is_session);
        lane.dirty = false;
        let (pool, server) = (lane.pool, lane.server);
        let conn = self.lane_conn(index);
        self.actions.push_back(Action::Connect { conn, pool, server });
        self.arm_lane(index, deadline);
    }

    /// The connection stands: say who we are, then send what waits.
    pub(crate) fn lane_connected(&mut self, index: u32) {
        let lane = &mut self.lanes[index as usize];
        let Link::Connecting { deadline } = lane.link else { return };
        let pool = &self.pools[lane.pool as usize];
        let server = pool.servers[lane.server as usize].metrics;
        self.metrics.add_server(server, ServerCounter::Connects, 1);
        let Variant { dialect, database } = pool.variants[usize::from(lane.variant)];
        lane.scanner = Scanner::new(dialect);
        lane.tagger = None;
        lane.progress_at = self.now;
        let handshake = &mut lane.handshake;
        debug_assert!(handshake.output.is_empty() && handshake.reply.is_empty());
        handshake.replies_owed = 0;
        if let Some(credentials) = &pool.config.memcached.server_auth {
            handshake.replies_owed += 1;
            handshake.output.write_with(&mut self.bufs, 0, |out| greet(dialect, credentials, out));
        }
        if let Some(password) = &pool.auth {
            handshake.replies_owed += 1;
            handshake.output.write_with(&mut self.bufs, 0, |out| {
                encode::write_command(out, &[b"AUTH", password.as_bytes()]);
            });
        }
        if dialect == Dialect::Resp3 {
            handshake.replies_owed += 1;
            handshake.output.write_with(&mut self.bufs, 0, |out| {
                encode::write_command(out, &[b"HELLO", b"3"]);
            });
        }
        if database > 0 {
            handshake.replies_owed += 1;
            let database = database.to_string();
            handshake.output.write_with(&mut self.bufs, 0, |out| {
                encode::write_command(out, &[b"SELECT", database.as_bytes()]);
            });
        }
        if lane.asks {
            handshake.replies_owed += 1;
            let (text, _) = question(dialect);
            handshake.output.push(text, &mut self.bufs);
        }
        let is_greeting = handshake.replies_owed > 0;
        lane.link = Link::Handshaking { deadline };
        let server = self.server_of(index);
        // It may be another process that has been started in the place of the last one.
        server.scripts_seen.clear();
        server.functions_seen = false;
        server.connections += 1;
        self.publish_connections(index);
        if is_greeting {
            self.mark_lane(index);
        } else {
            self.lane_ready(index);
        }
    }

    /// Agrees with the server on the lane's variant, which was another one so far. What is sent
    /// waits for that: it would mean something else.
    pub(crate) fn greet_again(&mut self, index: u32, before: u16) {
        let lane = &mut self.lanes[index as usize];
        let pool = &self.pools[lane.pool as usize];
        let (was, is) =
            (pool.variants[usize::from(before)], pool.variants[usize::from(lane.variant)]);
        let handshake = &mut lane.handshake;
        if let Link::Ready { .. } = lane.link {
            lane.link = Link::Handshaking { deadline: pool.connect_deadline(self.now) };
            handshake.replies_owed = 0;
        }
        if was.dialect != is.dialect {
            let version: &[u8] = if is.dialect == Dialect::Resp3 { b"3" } else { b"2" };
            handshake.replies_owed += 1;
            handshake.output.write_with(&mut self.bufs, 0, |out| {
                encode::write_command(out, &[b"HELLO", version]);
            });
        }
        if was.database != is.database || (was.dialect != is.dialect && is.database > 0) {
            let database = is.database.to_string();
            handshake.replies_owed += 1;
            handshake.output.write_with(&mut self.bufs, 0, |out| {
                encode::write_command(out, &[b"SELECT", database.as_bytes()]);
            });
        }
        match self.lanes[index as usize].handshake.replies_owed {
            0 => self.lane_ready(index),
            _ => self.mark_lane(index),
        }
        self.rearm(index);
    }

    fn lane_ready(&mut self, index: u32) {
        let lane = &mut self.lanes[index as usize];
        lane.link = Link::Ready { since: self.now };
        let has_asked = std::mem::take(&mut lane.asks);
        let server = self.server_of(index);
        if server.is_silent() {
            if has_asked {
                let Lane { pool, server, .. } = self.lanes[index as usize];
                self.end_silence(pool, server);
            }
        } else if std::mem::take(&mut server.failing) {
            let Lane { pool, server, .. } = self.lanes[index as usize];
            self.actions.push_back(Action::ServerRecovered { pool, server });
        }
        if self.lanes[index as usize].unsent > 0 {
            self.mark_lane(index);
        }
        self.rearm(index);
        if self.lanes[index as usize].is_feed {
            self.feed_ready(index);
        }
    }

    /// Bytes of the lane's output are written.
    #[inline]
    pub(crate) fn lane_sent(&mut self, index: u32, bytes: u64) {
        let lane = &mut self.lanes[index as usize];
        lane.progress_at = self.now;
        if matches!(lane.link, Link::Handshaking { .. }) {
            lane.handshake.output.advance(bytes, &mut self.bufs);
            return;
        }
        if lane.is_feed {
            lane.output.advance(bytes, &mut self.bufs);
            return;
        }
        if lane.upload != NONE {
            self.upload_sent(index, bytes);
            self.publish_queues(index);
            return;
        }
        lane.joined.close();
        lane.output.advance(bytes, &mut self.bufs);
        lane.in_flight_size += bytes;
        let mut sent = 0;
        if lane.output.is_empty() {
            sent = lane.unsent;
            lane.first_unsent = NONE;
            lane.partial = 0;
        } else {
            lane.partial += bytes;
            while lane.first_unsent != NONE {
                let request = &self.requests[lane.first_unsent];
                if lane.partial < request.wire_len {
                    break;
                }
                lane.partial -= request.wire_len;
                lane.first_unsent = request.next_in_lane;
                sent += 1;
            }
        }
        if sent > 0 {
            lane.unsent -= sent;
            if self.requests[lane.head].is_remnant() {
                sent -= 1;
                self.drop_remnant(index);
            }
        }
        let lane = &mut self.lanes[index as usize];
        if sent > 0 {
            lane.in_flight += sent;
            lane.written += u64::from(sent);
            lane.batches.push_back(Batch { end: lane.written, at: self.now });
        }
        self.publish_queues(index);
    }

    /// Passes a buffer on whole, if all of it is the middle of one reply that its client gets as it
    /// comes. Returns whether it did.
    pub(crate) fn lane_received_buffer(&mut self, index: u32, buffer: &mut Vec<u8>) -> bool {
        let lane = &mut self.lanes[index as usize];
        if lane.in_flight == 0 || !self.requests[lane.head].streaming {
            return false;
        }
        let request = lane.head;
        if lane.scanner.remaining() <= buffer.len() as u64 {
            return false;
        }
        let Scan::Partial = lane.scanner.scan(self.requests[request].expect, buffer) else {
            unreachable!("the scanner said that the reply goes on behind these bytes");
        };
        if let Some(tagger) = &mut lane.tagger {
            tagger.skip(buffer.len() as u64);
        }
        let server = self.heard_from(index);
        self.metrics.add_server(server, ServerCounter::ResponseBytes, buffer.len() as u64);
        self.bufs.charge(buffer.capacity());
        self.deliver_middle(request, std::mem::take(buffer));
        if self.lanes[index as usize].is_private {
            self.balance(index);
        }
        true
    }

    /// Bytes arrived from the server.
    pub(crate) fn lane_received(&mut self, index: u32, mut bytes: &[u8]) {
        let generation = self.lanes[index as usize].generation;
        let server = self.heard_from(index);
        self.metrics.add_server(server, ServerCounter::ResponseBytes, bytes.len() as u64);
        while !bytes.is_empty() && self.lanes[index as usize].generation == generation {
            let rest = self.express_replies(index, bytes);
            if rest.len() < bytes.len() {
                bytes = rest;
                continue;
            }
            let lane = &mut self.lanes[index as usize];
            if lane.is_feed {
                bytes = self.feed_received(index, bytes);
                continue;
            }
            if lane.scanner.is_push(bytes) {
                bytes = self.push_received(index, bytes);
                continue;
            }
            if matches!(lane.link, Link::Handshaking { .. }) {
                bytes = self.handshake_received(index, bytes);
                continue;
            }
            // A request may be refused before all of it is written, an unwritten one may not.
            let is_half_sent = lane.in_flight == 0 && lane.partial > 0;
            let is_owed =
                lane.in_flight > 0 || (is_half_sent && !self.requests[lane.head].is_remnant());
            if !is_owed {
                self.lane_down(index, Failure::BadReply, Closed::ByUs);
                break;
            }
            let request = lane.head;
            if self.requests[request].expect.is_joined() {
                bytes = self.joined_received(index, bytes);
                continue;
            }
            match lane.scanner.scan(self.requests[request].expect, bytes) {
                Scan::Complete(len) => {
                    if let Role::Blocked = self.requests[request].role
                        && let Some(batch) = lane.batches.front_mut()
                    {
                        // What a client waited for is not the time that its server took.
                        batch.at = self.now;
                    }
                    if is_half_sent {
                        self.leave_remnant(index);
                    } else {
                        self.pop_answered(index);
                    }
                    let tag = self.tag_of_reply(index, request);
                    match tag.is_some() {
                        true => self.deliver_tagged(index, request, tag, (&bytes[..len], true)),
                        false => self.deliver(request, &bytes[..len]),
                    }
                    bytes = &bytes[len..];
                }
                Scan::Partial => {
                    let tag = self.tag_of_reply(index, request);
                    match tag.is_some() {
                        true => self.deliver_tagged(index, request, tag, (bytes, false)),
                        false => self.deliver_part(request, bytes),
                    }
                    break;
                }
                Scan::Invalid => {
                    self.lane_down(index, Failure::BadReply, Closed::ByUs);
                    break;
                }
            }
        }
        self.record_answered(index);
        let index = if self.brings_large(index) { self.set_aside(index) } else { index };
        if self.lanes[index as usize].is_private {
            self.balance(index);
        }
        self.publish_queues(index);
    }

    /// Consumes a push, or as much as there is of it; returns what follows. On a lane that several
    /// clients share none is anybody's: no client can ask for pushes there. In RESP2 there are none.
    #[cold]
    fn push_received<'b>(&mut self, index: u32, bytes: &'b [u8]) -> &'b [u8] {
        let lane = &mut self.lanes[index as usize];
        let variants = &self.pools[lane.pool as usize].variants;
        let is_resp3 = variants[usize::from(lane.variant)].dialect == Dialect::Resp3;
        match lane.scanner.scan(Expect::Line, bytes) {
            Scan::Complete(len) if is_resp3 => &bytes[len..],
            Scan::Partial if is_resp3 => &[],
            Scan::Complete(_) | Scan::Partial | Scan::Invalid => {
                self.lane_down(index, Failure::BadReply, Closed::ByUs);
                &[]
            }
        }
    }

    /// The head is answered though part of it is not written, as memcached does with a value that
    /// is too large. The rest has to be written all the same: a remnant takes the request's place.
    fn leave_remnant(&mut self, index: u32) {
        let lane = &mut self.lanes[index as usize];
        let answered = lane.head;
        let request = &mut self.requests[answered];
        request.in_lane = false;
        let (wire_len, next_in_lane) = (request.wire_len, request.next_in_lane);
        let (remnant, _) = self.requests.add(lane.pool, NONE, self.now);
        let slot = &mut self.requests[remnant];
        slot.in_lane = true;
        slot.done = true;
        slot.wire_len = wire_len;
        slot.next_in_lane = next_in_lane;
        lane.head = remnant;
        lane.first_unsent = remnant;
        if lane.tail == answered {
            lane.tail = remnant;
        }
    }

    /// The remnant at the lane's head is written: no reply is owed for it.
    fn drop_remnant(&mut self, index: u32) {
        let lane = &mut self.lanes[index as usize];
        let remnant = lane.head;
        let request = &self.requests[remnant];
        lane.in_flight_size -= request.wire_len;
        lane.head = request.next_in_lane;
        if lane.head == NONE {
            lane.tail = NONE;
        }
        self.free_request(remnant);
    }

    /// The head's reply is here: it leaves the lane.
    #[inline]
    pub(crate) fn pop_answered(&mut self, index: u32) {
        let lane = &mut self.lanes[index as usize];
        let request = &mut self.requests[lane.head];
        request.in_lane = false;
        lane.pop_head(request.next_in_lane, request.wire_len);
        self.end_batch(index);
    }

    /// Forgets the oldest batch if all of it is answered.
    #[inline]
    pub(crate) fn end_batch(&mut self, index: u32) {
        if self.lanes[index as usize].is_batch_answered() {
            self.record_answered(index);
            self.lanes[index as usize].batches.pop_front();
        }
    }

    /// Puts replies into the statistics. Those of one batch were written together, so that when
    /// they arrive together they took equally long.
    pub(crate) fn record_answered(&mut self, index: u32) {
        let lane = &mut self.lanes[index as usize];
        let count = lane.answered - lane.recorded;
        if count == 0 {
            return;
        }
        lane.recorded = lane.answered;
        let batch = lane.batches.front().expect("a batch ends here at the earliest");
        let latency = self.now.micros_since(batch.at);
        let server = &mut self.pools[lane.pool as usize].servers[lane.server as usize];
        server.failures = 0;
        self.metrics.record_server(server.metrics, latency, count);
        self.metrics.add_server(server.metrics, ServerCounter::Responses, count);
    }

    /// Consumes replies to the handshake; returns what is left of `bytes`.
    fn handshake_received<'b>(&mut self, index: u32, bytes: &'b [u8]) -> &'b [u8] {
        let lane = &mut self.lanes[index as usize];
        let handshake = &mut lane.handshake;
        let (len, complete) = match lane.scanner.scan(Expect::Line, bytes) {
            Scan::Complete(len) => (len, true),
            Scan::Partial => (bytes.len(), false),
            Scan::Invalid => {
                self.lane_down(index, Failure::BadReply, Closed::ByUs);
                return &[];
            }
        };
        handshake.reply.extend_from_slice(&bytes[..len]);
        if handshake.reply.len() > HANDSHAKE_REPLY_MAX {
            self.lane_down(index, Failure::BadReply, Closed::ByUs);
            return &[];
        }
        if complete {
            let dialect =
                self.pools[lane.pool as usize].variants[usize::from(lane.variant)].dialect;
            let is_ok = match dialect {
                // A sign of life, whatever it says.
                _ if lane.asks && handshake.replies_owed == 1 => true,
                // A map, or an array, is the answer to HELLO.
                Dialect::Resp2 | Dialect::Resp3 => {
                    matches!(handshake.reply.first(), Some(b'+' | b'%' | b'*'))
                }
                Dialect::Text | Dialect::Binary => is_greeted(dialect, &handshake.reply),
            };
            if !is_ok {
                let failure = self.refusal_of(index);
                self.lane_down(index, failure, Closed::ByUs);
                return &[];
            }
            handshake.reply.clear();
            handshake.replies_owed -= 1;
            if handshake.replies_owed == 0 {
                self.lane_ready(index);
            }
        }
        &bytes[len..]
    }

    /// What the server refused with its reply to the handshake. Only what a client has asked for is
    /// its own affair: what the configuration asks of a server concerns all.
    fn refusal_of(&self, index: u32) -> Failure {
        let lane = &self.lanes[index as usize];
        let pool = &self.pools[lane.pool as usize];
        let Variant { dialect, database } = pool.variants[usize::from(lane.variant)];
        let behind = u32::from(lane.asks);
        let is_selecting = database > 0 && lane.handshake.replies_owed == 1 + behind;
        let hello_owed = 1 + u32::from(database > 0) + behind;
        let is_greeting = dialect == Dialect::Resp3 && lane.handshake.replies_owed == hello_owed;
        let reply = lane.handshake.reply.as_slice();
        if reply.starts_with(b"-BUSY") {
            Failure::Busy
        } else if reply.starts_with(b"-LOADING") {
            Failure::Loading
        } else if is_selecting && database != pool.variants[0].database {
            Failure::DatabaseRefused
        } else if is_greeting
            && (reply.starts_with(b"-NOPROTO") || reply.starts_with(b"-ERR unknown command"))
        {
            Failure::DialectRefused
        } else {
            Failure::HandshakeRefused
        }
    }

    /// The connection ended, or could not be made.
    ///
    /// What was sent on it fails, since nobody knows whether it was executed; what was not waits
    /// for the next connection, unless the server cannot be reached.
    pub(crate) fn lane_down(&mut self, index: u32, failure: Failure, closed: Closed) {
        if self.lanes[index as usize].is_feed {
            self.feed_lost(index);
            self.connection_down(index, failure, closed);
            self.feed_settled(index);
            return;
        }
        let holder = self.lane(index).lease;
        self.connection_down(index, failure, closed);
        if self.lane(index).unsent == 0 {
            self.lose_lease(index, holder, failure);
        }
    }

    fn connection_down(&mut self, index: u32, failure: Failure, closed: Closed) {
        self.hear_failure(index, failure);
        let lane = &mut self.lanes[index as usize];
        lane.last_failure = failure;
        let had_requests = lane.in_flight > 0 || lane.partial > 0;
        let is_engaged = self.is_engaged(index);
        let link = self.disconnect(index, closed);
        self.count_down(index, link, failure);
        self.fail_sent(index, failure);
        if is_engaged {
            // What comes next in a transaction means something else on another connection.
            self.fail_unsent(index, failure);
        }

        let is_clean = failure == Failure::Closed && !had_requests;
        let settled = matches!(link, Link::Ready { since }
            if self.now.micros_since(since) >= SETTLED_AFTER_US);
        if failure == Failure::DialectRefused {
            self.dialect_refused(index);
        }
        if !is_clean && failure.is_of_server() {
            self.note_failure(index, failure);
        }
        if self.lane(index).is_shared() && self.server_of(index).is_silent() {
            self.down_in_silence(index);
            return;
        }
        let is_feed_wanted = self.is_feed_wanted(index);
        let lane = &mut self.lanes[index as usize];
        let pool = &self.pools[lane.pool as usize];
        let server = &pool.servers[lane.server as usize];
        // What fails gets no reads while there are replicas, so nothing but this finds it well.
        let is_missed = server.failing && !server.ejected;
        let is_kept = match lane.is_private {
            true => false,
            false if lane.is_feed => is_feed_wanted,
            false if lane.variant == 0 => pool.preconnect || is_missed,
            false => is_missed && pool.usage[usize::from(lane.variant)].clients > 0,
        };
        let wanted = lane.unsent > 0 || is_kept;
        if settled || (is_clean && lane.attempts == 0) {
            lane.attempts = u32::from(!settled);
            if wanted {
                self.connect(index);
            }
            return;
        }
        lane.attempts = lane.attempts.saturating_add(1);
        if failure == Failure::TimedOut {
            // Those that have not waited long enough try again.
            self.expire_unsent(index);
            if self.lanes[index as usize].unsent > 0 {
                self.connect(index);
                return;
            }
        } else {
            self.fail_unsent(index, failure);
        }
        self.back_off(index);
    }

    pub(crate) fn back_off(&mut self, index: u32) {
        let lane = &mut self.lanes[index as usize];
        let steps = lane.attempts.saturating_sub(1).min(16);
        let span = (BACKOFF_MIN_MS << steps).min(BACKOFF_MAX_MS);
        let until = self.now.plus_millis(self.rng.jitter(span).max(1));
        lane.link = Link::Backoff { until };
        self.arm_lane(index, until);
    }

    fn count_down(&mut self, index: u32, link: Link, failure: Failure) {
        let server = self.server_of(index).metrics;
        let counter = match (link, failure) {
            (_, Failure::TimedOut) => ServerCounter::ServerTimedout,
            (Link::Connecting { .. }, _) => ServerCounter::ConnectErrors,
            (_, Failure::Closed) => ServerCounter::ServerEof,
            _ => ServerCounter::ServerErr,
        };
        self.metrics.add_server(server, counter, 1);
    }

    /// Counts a failure of the server and asks for its ejection at the limit.
    fn note_failure(&mut self, index: u32, failure: Failure) {
        let now = self.now;
        let Lane { pool: pool_index, server: server_index, .. } = self.lanes[index as usize];
        let pool = &mut self.pools[pool_index as usize];
        let limit = pool.failure_limit;
        let may_eject = pool.auto_eject && pool.router.may_eject(server_index);
        let server = &mut pool.servers[server_index as usize];
        if !std::mem::replace(&mut server.failing, true) {
            self.actions.push_back(Action::ServerFailing {
                pool: pool_index,
                server: server_index,
                why: failure,
            });
        }
        if server.failed_at != now {
            server.failed_at = now;
            server.failures = server.failures.saturating_add(1);
        }
        if may_eject && server.failures >= limit && !server.ejected && now >= server.ask_at {
            server.ask_at = now.plus_millis(ASK_AGAIN_MS);
            self.actions.push_back(Action::Eject {
                pool: pool_index,
                server: server_index,
                why: failure,
            });
        }
    }

    /// Fails what was sent, wholly or in part, on the connection that is gone.
    pub(crate) fn fail_sent(&mut self, index: u32, failure: Failure) {
        let lane = &mut self.lanes[index as usize];
        let mut at = lane.head;
        let mut end = lane.first_unsent;
        if lane.partial > 0 {
            let broken = &self.requests[lane.first_unsent];
            lane.output.advance(broken.wire_len - lane.partial, &mut self.bufs);
            lane.partial = 0;
            lane.unsent -= 1;
            lane.first_unsent = broken.next_in_lane;
            end = lane.first_unsent;
            self.detach_upload(index);
        }
        end = self.rest_of_get(index, end);
        let lane = &mut self.lanes[index as usize];
        lane.in_flight = 0;
        lane.in_flight_size = 0;
        lane.head = end;
        if end == NONE {
            lane.tail = NONE;
        }
        while at != end {
            let next = self.requests[at].next_in_lane;
            self.forget_key(index, at);
            self.fail_request(at, failure);
            at = next;
        }
        self.publish_queues(index);
    }

    /// What is left of a get of several keys when its start is sent means nothing to another
    /// connection: takes it out of the output. `end` is the first request not sent; returns the one
    /// behind that get.
    fn rest_of_get(&mut self, index: u32, mut end: u32) -> u32 {
        let lane = &mut self.lanes[index as usize];
        let mut at = lane.head;
        let mut goes_on = false;
        while at != end || (goes_on && end != NONE) {
            let request = &self.requests[at];
            goes_on = request.expect == Expect::Joined;
            if at == end {
                lane.output.advance(request.wire_len, &mut self.bufs);
                lane.unsent -= 1;
                lane.first_unsent = request.next_in_lane;
                end = request.next_in_lane;
            }
            at = request.next_in_lane;
        }
        end
    }

    /// A request is about to leave the lane without its reply.
    fn forget_key(&mut self, index: u32, request: u32) {
        if self.requests[request].expect.is_joined() && !self.requests[request].is_remnant() {
            self.lanes[index as usize].joined.pop_key(&mut self.bufs);
        }
    }

    /// Fails what waits to be sent.
    pub(crate) fn fail_unsent(&mut self, index: u32, failure: Failure) {
        while self.lanes[index as usize].unsent > 0 {
            self.fail_first_unsent(index, failure);
        }
        self.publish_queues(index);
    }

    /// Fails what has waited to be sent longer than the timeout.
    pub(crate) fn expire_unsent(&mut self, index: u32) {
        if self.lane(index).is_session {
            // They belong together.
            if self.first_unsent_expiry(index).is_some_and(|expiry| expiry <= self.now) {
                let holder = self.lane(index).lease;
                self.fail_unsent(index, Failure::TimedOut);
                self.lose_lease(index, holder, Failure::TimedOut);
            }
            return;
        }
        while let Some(expiry) = self.first_unsent_expiry(index)
            && expiry <= self.now
        {
            self.fail_first_unsent(index, Failure::TimedOut);
        }
        self.publish_queues(index);
    }

    pub(crate) fn first_unsent_expiry(&self, index: u32) -> Option<Time> {
        let lane = &self.lanes[index as usize];
        if lane.unsent == 0 {
            return None;
        }
        let started = self.requests[lane.first_unsent].started;
        Some(self.pools[lane.pool as usize].expiry(started))
    }

    /// Only while nothing is in flight: then the first unsent request is the lane's head. Those that
    /// are joined with it fail with it.
    fn fail_first_unsent(&mut self, index: u32, failure: Failure) {
        self.lanes[index as usize].joined.close();
        while self.fail_unsent_head(index, failure) == Expect::Joined {}
    }

    fn fail_unsent_head(&mut self, index: u32, failure: Failure) -> Expect {
        let lane = &mut self.lanes[index as usize];
        assert!(lane.in_flight == 0 && lane.partial == 0 && lane.head == lane.first_unsent);
        let request = lane.first_unsent;
        lane.output.advance(self.requests[request].wire_len, &mut self.bufs);
        lane.unsent -= 1;
        lane.head = self.requests[request].next_in_lane;
        lane.first_unsent = lane.head;
        if lane.head == NONE {
            lane.tail = NONE;
        }
        self.detach_upload(index);
        self.forget_key(index, request);
        let expect = self.requests[request].expect;
        self.fail_request(request, failure);
        expect
    }

    /// Answers a request in its server's place.
    pub(crate) fn fail_request(&mut self, index: u32, failure: Failure) {
        let request = &mut self.requests[index];
        if request.is_remnant() {
            // It was answered; that the rest of it was not written is nobody's failure.
            self.free_request(index);
            return;
        }
        request.in_lane = false;
        request.failed = true;
        match request.role {
            Role::Probe { .. } | Role::Own(_) => {
                self.free_request(index);
                return;
            }
            Role::Blocked if failure == Failure::Removed => {
                self.wait_failed(index);
                return;
            }
            Role::Single
            | Role::Parent { .. }
            | Role::Fragment { .. }
            | Role::Counted(_)
            | Role::Selecting(_)
            | Role::Blocked
            | Role::Call(_) => {}
        }
        if request.streaming && request.client != NONE {
            // Half of a reply is with the client: nothing sensible can follow it.
            let client = request.client;
            self.cut_client(client, cashew_metrics::PoolCounter::ClientErr);
            return;
        }
        let pool = request.pool;
        let protocol = self.pools[pool as usize].protocol;
        self.count_forward_error(pool);
        if protocol == Protocol::Memcached {
            return self.fail_sent_memcached(index, failure);
        }
        self.answer_instead(index, |out| failure.write_reply(protocol, out));
    }

    /// Answers a request that has left its lane with the gateway's words.
    pub(crate) fn answer_instead(&mut self, index: u32, write: impl FnOnce(&mut Vec<u8>)) {
        self.drop_reply(index);
        let mut reply = self.bufs.take();
        write(&mut reply);
        self.charge(index, reply.len());
        self.deliver_buf(index, reply);
    }

    pub(crate) fn lane_timeout(&mut self, index: u32) {
        self.lanes[index as usize].armed = Time::NEVER;
        let now = self.now;
        match self.lanes[index as usize].link {
            Link::Idle => {}
            Link::Connecting { deadline } | Link::Handshaking { deadline } => {
                if self.shows_silence(index, deadline) {
                    let Lane { pool, server, .. } = self.lanes[index as usize];
                    self.fall_silent(pool, server);
                } else if deadline <= now {
                    if !self.lanes[index as usize].is_shared() {
                        self.doubt(index);
                    }
                    self.lane_down(index, Failure::TimedOut, Closed::ByUs);
                } else {
                    self.expire_unsent(index);
                }
            }
            Link::Backoff { until } => {
                if until <= now {
                    self.retry(index);
                }
            }
            Link::Ready { .. } => {
                if self.reply_deadline(index) <= now {
                    self.doubt(index);
                    self.lane_down(index, Failure::TimedOut, Closed::ByUs);
                }
            }
        }
        self.rearm(index);
    }

    /// The backoff is over: tries to connect, unless the server is ejected, which is for
    /// [`Engine::probe`] to end, or nobody may want the lane.
    fn retry(&mut self, index: u32) {
        let lane = &self.lanes[index as usize];
        let pool = &self.pools[lane.pool as usize];
        let is_used = lane.variant == 0 || pool.usage[usize::from(lane.variant)].clients > 0;
        let server = &pool.servers[lane.server as usize];
        // Of a silent server only the first lane asks whether it still is.
        let is_vain = server.ejected || (server.is_silent() && index != server.first_lane);
        let is_used = is_used && (!lane.is_feed || self.is_feed_wanted(index));
        if is_vain || lane.is_private || !is_used || lane.last_failure.is_of_variant() {
            self.lanes[index as usize].link = Link::Idle;
        } else {
            self.connect(index);
        }
    }

    /// When a connected lane has waited too long: for the oldest reply, or to write anything.
    fn reply_deadline(&self, index: u32) -> Time {
        let lane = &self.lanes[index as usize];
        let pool = &self.pools[lane.pool as usize];
        if lane.paused {
            return Time::NEVER;
        }
        if lane.is_feed {
            return self.feed_deadline(index);
        }
        if lane.in_flight > 0
            && let Some(blocking) = self.blocked_at(index)
        {
            return blocking.until;
        }
        if let Some(batch) = lane.batches.front() {
            // What takes a lane for itself may take its time, as long as it goes on.
            let from = if lane.is_private { batch.at.max(lane.progress_at) } else { batch.at };
            return pool.expiry(from);
        }
        if lane.upload != NONE {
            return self.upload_deadline(index);
        }
        if lane.unsent > 0 {
            let started = self.requests[lane.first_unsent].started;
            return pool.expiry(started.max(lane.progress_at));
        }
        Time::NEVER
    }

    pub(crate) fn rearm(&mut self, index: u32) {
        let deadline = match self.lanes[index as usize].link {
            Link::Idle => Time::NEVER,
            Link::Connecting { deadline } | Link::Handshaking { deadline } => {
                self.first_unsent_expiry(index).map_or(deadline, |expiry| expiry.min(deadline))
            }
            Link::Backoff { until } => until,
            Link::Ready { .. } => self.reply_deadline(index),
        };
        self.arm_lane(index, deadline);
    }

    #[inline]
    pub(crate) fn arm_lane(&mut self, index: u32, at: Time) {
        self.lanes[index as usize].arm(index, at, &mut self.timers);
    }

    /// Asks an ejected server whether it is well; asks again later if it is not.
    pub(crate) fn probe(&mut self, pool_index: u32, server_index: u32) {
        let pool = &self.pools[pool_index as usize];
        let server = &pool.servers[server_index as usize];
        if !server.ejected {
            return;
        }
        let lane = server.first_lane;
        let (text, expect) = question(pool.variants[0].dialect);
        self.arm_probe(pool_index, server_index);
        let link = self.lanes[lane as usize].link;
        let is_waiting = matches!(link, Link::Connecting { .. } | Link::Handshaking { .. });
        let is_asked = self.lanes[lane as usize].unsent + self.lanes[lane as usize].in_flight > 0;
        if is_waiting || is_asked {
            return;
        }
        if matches!(link, Link::Idle | Link::Backoff { .. }) {
            self.connect(lane);
        }
        let (request, _) = self.requests.add(pool_index, NONE, self.now);
        self.requests[request].role = Role::Probe { server: server_index };
        self.requests[request].expect = expect;
        self.send(lane, request, Payload::Bytes(text));
    }

    pub(crate) fn arm_probe(&mut self, pool_index: u32, server_index: u32) {
        let pool = &mut self.pools[pool_index as usize];
        let at = self.now.plus_millis(self.rng.jitter(pool.retry_ms).max(1));
        pool.servers[server_index as usize].probe_at = at;
        self.timers.arm(at, Timer::Probe { pool: pool_index, server: server_index });
    }

    /// The reply to a probe.
    pub(crate) fn probed(&mut self, lane_pool: u32, lane_server: u32, reply: &[u8]) {
        let pool = &self.pools[lane_pool as usize];
        let is_ejected = pool.is_in_use() && pool.servers[lane_server as usize].ejected;
        let is_well =
            [&b"+"[..], b"VERSION", b"\x81\x0b"].iter().any(|start| reply.starts_with(start));
        // Every time: it may be too early yet for this one to come back.
        if is_well && is_ejected {
            self.actions.push_back(Action::Readmit { pool: lane_pool, server: lane_server });
        }
    }

    pub(crate) fn publish_connections(&mut self, index: u32) {
        let server = self.server_of(index);
        let (id, connections) = (server.metrics, u64::from(server.connections));
        self.metrics.set_server(id, ServerGauge::ServerConnections, connections);
    }

    /// Brings the server's statistics up to date with the lane.
    pub(crate) fn publish_queues(&mut self, index: u32) {
        let Lane { pool, server, is_session, .. } = self.lanes[index as usize];
        if is_session {
            self.publish_session(index);
        }
        if !self.pools[pool as usize].servers[server as usize].waiting.is_empty() {
            self.wake_waiting(pool, server);
        }
        let lane = &mut self.lanes[index as usize];
        let server = &mut self.pools[pool as usize].servers[server as usize];
        if lane.uncounted_size > 0 {
            let (count, size) = (lane.uncounted, lane.uncounted_size);
            (lane.uncounted, lane.uncounted_size) = (0, 0);
            self.metrics.add_server(server.metrics, ServerCounter::Requests, count);
            self.metrics.add_server(server.metrics, ServerCounter::RequestBytes, size);
        }
        let mut queues = server.session_queues;
        // Most servers have lanes of one variant only.
        for first in [server.first_lane].iter().chain(&server.others) {
            // A server that is no more has none.
            let of_variant = self.lanes.get(*first as usize..).unwrap_or_default();
            for lane in of_variant.iter().take(server.lanes as usize + 1) {
                queues.add(lane);
            }
        }
        for &lane in &server.private_lanes {
            queues.add(&self.lanes[lane as usize]);
        }
        if queues == server.queues {
            return;
        }
        server.queues = queues;
        self.metrics.set_server(server.metrics, ServerGauge::InQueue, queues.unsent);
        self.metrics.set_server(server.metrics, ServerGauge::InQueueBytes, queues.unsent_size);
        self.metrics.set_server(server.metrics, ServerGauge::OutQueue, queues.in_flight);
        self.metrics.set_server(server.metrics, ServerGauge::OutQueueBytes, queues.in_flight_size);
    }
}
