//! What comes and goes on connections to servers, and when it is overdue.

use cashew_config::snapshot::{Protocol, Reads};
use cashew_metrics::{PoolCounter, ServerCounter, ServerGauge};
use cashew_protocol::memcached::Expect;

use crate::base::action::Sequel;
use crate::base::buffer::LARGE;
use crate::base::failure::{Failure, NamedFailure};
use crate::base::id::{ClientId, HedgeId, LaneId, RequestId, ServerId};
use crate::base::time::Time;
use crate::engine::{Closed, Engine};
use crate::request::seal::Seal;
use crate::request::{Due, Own, Request, Role};
use crate::upstream::health::{Reading, Servers};
use crate::upstream::hedge::Hedge;
use crate::upstream::lane::{Batch, Lane, Link, SENT_MAX, Scan, Scanner};
use crate::upstream::redirect::Users;
use crate::upstream::server::{Queues, Server};
use crate::upstream::session_params::WireProtocol;

/// Of a client that waits for more than this nothing is sent elsewhere: what it waits for is looked at.
const PIPELINE_MAX: usize = 64;

/// A read that may be sent elsewhere, too.
#[derive(Clone, Copy)]
struct Overdue {
    request: RequestId,
    client: ClientId,
    /// The one before it in its lane.
    before: RequestId,
    /// Where it begins in what the lane keeps.
    start: usize,
}

impl Engine {
    pub(crate) fn server_of(&mut self, lane: LaneId) -> &mut Server {
        let Lane { backend, server, .. } = self.lanes[lane];
        &mut self.backends[backend].servers[server]
    }

    /// Something has come from the lane's server.
    #[inline]
    fn heard_from(&mut self, index: LaneId) -> cashew_metrics::ServerId {
        let now = self.now;
        let server = self.server_of(index);
        server.heard_at = now;
        server.metrics
    }

    /// Bytes of the lane's output are written.
    pub(crate) fn lane_sent(&mut self, index: LaneId, bytes: u64) {
        let lane = &mut self.lanes[index];
        lane.progress_at = self.now;
        if matches!(lane.link, Link::Handshaking { .. }) {
            lane.handshake.output.advance(bytes, &mut self.bufs);
            return;
        }
        if lane.is_feed {
            lane.output.advance(bytes, &mut self.bufs);
            return;
        }
        if lane.upload != ClientId::NONE {
            lane.sent.clear(&mut self.bufs);
            lane.keep_start(bytes);
            self.upload_sent(index, bytes);
            self.publish_queues(index);
            return;
        }
        lane.close_gets(&mut self.bufs);
        let backend = &self.backends[lane.backend];
        let keeps = lane.keeps_sent() || backend.topology.has_slots();
        if backend.keeps_sent && keeps {
            lane.keep_sent(bytes, SENT_MAX, &mut self.bufs);
            if let Some(hedging) = &backend.hedging {
                lane.arm(index, self.now.plus_micros(hedging.after_us), &mut self.timers);
            }
        } else if backend.is_observed {
            let most = lane.shown_max(bytes);
            lane.keep_sent(bytes, most, &mut self.bufs);
        } else {
            lane.output.advance(bytes, &mut self.bufs);
        }
        lane.in_flight_size += bytes;
        let mut sent = 0;
        if lane.output.is_empty() {
            sent = lane.unsent;
            lane.first_unsent = RequestId::NONE;
            lane.partial = 0;
        } else {
            lane.partial += bytes;
            while lane.first_unsent != RequestId::NONE {
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
        let lane = &mut self.lanes[index];
        if sent > 0 {
            lane.in_flight += sent;
            lane.written += u64::from(sent);
            lane.batches.push_back(Batch { end: lane.written, at: self.now });
        }
        self.publish_lane_queues(index);
        if sent > 0 && self.lanes[index].is_session {
            self.withdraw_due(index);
        }
    }

    /// Puts a seal behind what was sent last on a lane.
    pub(crate) fn seal(&mut self, lane: LaneId) {
        let seal = Seal::new(self.secret.next());
        self.ask_with(lane, Own::Seal(seal), Due::Anything, &seal.text());
    }

    /// Whether a seal is what the lane waits for. What comes before it answers nothing.
    #[inline]
    fn is_sealed(&self, index: LaneId) -> bool {
        let lane = &self.lanes[index];
        lane.head != RequestId::NONE
            && lane.scanner.at_start()
            && matches!(self.requests[lane.head].role, Role::Own(Own::Seal(_)))
    }

    /// Bytes come while a seal is waited for; returns what follows it.
    fn sealed_received<'b>(&mut self, index: LaneId, bytes: &'b [u8]) -> &'b [u8] {
        let Lane { head, in_flight, .. } = self.lanes[index];
        let Role::Own(Own::Seal(seal)) = &mut self.requests[head].role else {
            unreachable!("the lane's head is a seal");
        };
        let (len, is_whole, is_news) = seal.receive(bytes);
        if is_news {
            self.notify_misfit(index, "no line end in an error", Sequel::Dropped, bytes);
        }
        // Before all of it is written nobody but who guesses can say it.
        if is_whole && in_flight > 0 {
            self.pop_answered(index);
            self.free_request(head);
        }
        &bytes[len..]
    }

    /// Bytes that are read already arrived from the server, whose client is to take others first.
    #[cold]
    pub(crate) fn keep_for_later(&mut self, index: LaneId, bytes: &[u8]) {
        self.lanes[index].kept.push(bytes, &mut self.bufs);
    }

    /// Passes a buffer on whole, if all of it is the middle of one reply that its client gets as it
    /// comes, or keeps it for later. Returns whether it did.
    pub(crate) fn lane_received_buffer(&mut self, index: LaneId, buffer: &mut Vec<u8>) -> bool {
        let lane = &mut self.lanes[index];
        if lane.paused {
            self.bufs.charge(buffer.capacity());
            lane.kept.push_buf(std::mem::take(buffer), &mut self.bufs);
            return true;
        }
        if lane.in_flight == 0 || !self.requests[lane.head].streaming || lane.followers > 0 {
            return false;
        }
        let request = lane.head;
        if lane.scanner.remaining() <= buffer.len() as u64 {
            return false;
        }
        let Scan::Partial = lane.scanner.scan(self.requests[request].expect, buffer) else {
            unreachable!("the scanner said that the reply goes on behind these bytes");
        };
        let left = lane.scanner.remaining();
        if let Some(tagger) = &mut lane.tagger {
            tagger.skip(buffer.len() as u64);
        }
        let server = self.heard_from(index);
        self.metrics.add_server(server, ServerCounter::ResponseBytes, buffer.len() as u64);
        self.bufs.charge(buffer.capacity());
        self.actions.extend(self.lanes[index].adjust_low_water());
        self.deliver_middle(request, std::mem::take(buffer), left);
        if self.lanes[index].is_private {
            self.balance(index);
        }
        true
    }

    /// Bytes arrived from the server.
    pub(crate) fn lane_received(&mut self, index: LaneId, mut bytes: &[u8]) {
        let generation = self.lanes[index].generation;
        let server = self.heard_from(index);
        self.metrics.add_server(server, ServerCounter::ResponseBytes, bytes.len() as u64);
        while !bytes.is_empty() && self.lanes[index].generation == generation {
            let mut rest = self.fast_replies(index, bytes);
            if !rest.is_empty() {
                rest = self.express_parts(index, rest);
            }
            if rest.len() < bytes.len() {
                bytes = rest;
                continue;
            }
            let lane = &mut self.lanes[index];
            let is_handshaking = matches!(lane.link, Link::Handshaking { .. });
            if lane.is_feed && !is_handshaking {
                bytes = self.feed_received(index, bytes);
                continue;
            }
            if self.is_sealed(index) {
                bytes = self.sealed_received(index, bytes);
                continue;
            }
            let lane = &mut self.lanes[index];
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
                self.misfit(index, "nothing: no request is open", bytes);
                break;
            }
            if let Role::Own(Own::Twin { .. }) = self.requests[lane.head].role
                && self.settle_twin(index, bytes)
            {
                continue;
            }
            let lane = &self.lanes[index];
            let request = lane.head;
            if self.requests[request].expect.is_coalesced() {
                bytes = self.coalesced_received(index, bytes);
                continue;
            }
            let asked = &self.requests[request];
            if !asked.has_begun() && !asked.is_named_by(bytes) {
                self.misfit_of_head(index, bytes);
                break;
            }
            let lane = &mut self.lanes[index];
            let scan = lane.scanner.scan(self.requests[request].expect, bytes);
            if !lane.scanner.names(&self.requests[request]) || !self.is_due(index, request, bytes) {
                self.misfit_of_head(index, bytes);
                break;
            }
            match scan {
                Scan::Complete(_) if is_half_sent && self.is_shared_by_next(index) => {
                    self.misfit_of_head(index, bytes);
                    break;
                }
                Scan::Complete(len) => {
                    self.end_reply(index, &bytes[..len], is_half_sent);
                    while std::mem::take(&mut self.lanes[index].replays) {
                        self.end_reply(index, &bytes[..len], false);
                    }
                    bytes = &bytes[len..];
                }
                Scan::Partial => {
                    let tag = self.tag_of_reply(index, request);
                    match tag.is_some() {
                        true => self.deliver_tagged(index, request, tag, (bytes, false)),
                        false => self.deliver_part_to_all(index, bytes),
                    }
                    break;
                }
                Scan::Invalid => {
                    self.misfit_of_head(index, bytes);
                    break;
                }
            }
        }
        self.record_answered(index);
        let lane = &self.lanes[index];
        if !lane.sent.is_empty() || lane.refused.is_some() {
            self.lanes[index].trim_sent(&mut self.bufs);
            if self.lanes[index].refused.is_some() && self.lanes[index].in_flight == 0 {
                self.stand_down(index);
            }
        }
        let index = if self.brings_large(index) { self.detach_large(index) } else { index };
        if self.lanes[index].is_private {
            self.actions.extend(self.lanes[index].adjust_low_water());
            self.balance(index);
        }
        self.publish_lane_queues(index);
    }

    /// A whole reply to the lane's head, of which `end` are the last bytes. `is_half_sent` says that not all of the
    /// request is written.
    #[inline]
    fn end_reply(&mut self, index: LaneId, end: &[u8], is_half_sent: bool) {
        if self.keeps_refused(index, end) {
            return;
        }
        let request = self.lanes[index].head;
        match self.requests[request].role {
            Role::Flow { .. } if self.blocked_at(index).is_some() => {
                if let Some(batch) = self.lanes[index].batches.front_mut() {
                    // What a client waited for is not the time that its server took.
                    batch.at = self.now;
                }
            }
            // What no client asked for is in no statistics.
            Role::Probe { .. } => self.lanes[index].recorded += 1,
            _ => {}
        }
        self.observe_head(index, end);
        if is_half_sent {
            self.leave_remnant(index);
        } else {
            self.pop_answered(index);
        }
        if self.requests[request].cache_mark.is_some() {
            self.settle_cache_mark(index, request, end);
        }
        let tag = self.tag_of_reply(index, request);
        match tag.is_some() {
            true => self.deliver_tagged(index, request, tag, (end, true)),
            false => self.deliver(request, end),
        }
    }

    /// Whether the head of a lane is not the only one that gets its reply.
    pub(crate) fn is_shared_by_next(&self, index: LaneId) -> bool {
        let lane = self.lane(index);
        let next = self.requests[lane.head].next_in_lane;
        lane.followers > 0 && next != RequestId::NONE && self.requests[next].follows
    }

    /// Bytes of a reply that goes on, for the lane's head and for those that share it.
    pub(crate) fn deliver_part_to_all(&mut self, index: LaneId, bytes: &[u8]) {
        let mut at = self.lane(index).head;
        let mut is_shared = self.lane(index).followers > 0;
        loop {
            let next = self.requests[at].next_in_lane;
            is_shared = is_shared && next != RequestId::NONE && self.requests[next].follows;
            self.deliver_part(at, bytes);
            if !is_shared {
                return;
            }
            at = next;
        }
    }

    /// Whether a reply can be what is due to its request, by its start: to a fragment, or to what is
    /// said on a connection for sessions. What cannot answers another request, and so does all that
    /// follows it.
    fn is_due(&mut self, index: LaneId, request: RequestId, bytes: &[u8]) -> bool {
        let slot = &mut self.requests[request];
        let lane = &self.lanes[index];
        if slot.due == Due::Anything || !matches!(lane.scanner, Scanner::Redis(_)) {
            return true;
        }
        if !matches!(slot.role, Role::Fragment { .. }) {
            return slot.due.goes_on(bytes);
        }
        let is_met = match slot.reply.is_empty() {
            true => slot.due.is_met_by(bytes),
            false => {
                let (mut start, mut len) = ([0; Due::START_MAX], 0);
                for (place, &byte) in start.iter_mut().zip(slot.reply.iter().chain(bytes)) {
                    *place = byte;
                    len += 1;
                }
                slot.due.is_met_by(&start[..len])
            }
        };
        // After an error it may be asked again.
        let is_error = matches!(slot.reply.first().or(bytes.first()), Some(b'-'));
        if is_met == Some(true) && !is_error {
            slot.due = Due::Anything;
        }
        is_met != Some(false)
    }

    /// Consumes a push, or as much as there is of it; returns what follows. On a lane that several
    /// clients share none is anybody's: no client can ask for pushes there. In RESP2 there are none.
    #[cold]
    fn push_received<'b>(&mut self, index: LaneId, bytes: &'b [u8]) -> &'b [u8] {
        let lane = &mut self.lanes[index];
        let params_set = &self.backends[lane.backend].params_set;
        let is_resp3 = params_set[usize::from(lane.variant)].wire_protocol == WireProtocol::Resp3;
        match lane.scanner.scan(Expect::Line, bytes) {
            Scan::Complete(len) if is_resp3 => &bytes[len..],
            Scan::Partial if is_resp3 => &[],
            Scan::Complete(_) | Scan::Partial | Scan::Invalid => {
                self.misfit(index, "a reply of RESP2, which has no pushes", bytes);
                &[]
            }
        }
    }

    /// The head is answered though part of it is not written, as memcached does with a value that
    /// is too large. The rest has to be written all the same: a remnant takes the request's place.
    fn leave_remnant(&mut self, index: LaneId) {
        let lane = &mut self.lanes[index];
        lane.close_gets(&mut self.bufs);
        lane.users = None;
        let answered = lane.head;
        let request = &mut self.requests[answered];
        request.in_lane = false;
        let (wire_len, next_in_lane) = (request.wire_len, request.next_in_lane);
        let (remnant, _) = self.requests.add(lane.backend, ClientId::NONE, self.now);
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
    fn drop_remnant(&mut self, index: LaneId) {
        let lane = &mut self.lanes[index];
        let remnant = lane.head;
        lane.users = None;
        let request = &self.requests[remnant];
        lane.in_flight_size -= request.wire_len;
        lane.trim_sent(&mut self.bufs);
        lane.head = request.next_in_lane;
        if lane.head == RequestId::NONE {
            lane.tail = RequestId::NONE;
        }
        self.free_request(remnant);
    }

    /// The head's reply is here: it leaves the lane.
    #[inline]
    pub(crate) fn pop_answered(&mut self, index: LaneId) {
        let lane = &mut self.lanes[index];
        let head = lane.head;
        let request = &mut self.requests[head];
        request.in_lane = false;
        let (next, wire_len) = (request.next_in_lane, request.wire_len);
        lane.replays = lane.hand_on(head, next, &mut self.requests);
        // Its server was not asked for it.
        lane.recorded += u64::from(lane.replays);
        lane.pop_head(next, if lane.replays { 0 } else { wire_len });
        self.end_batch(index);
    }

    /// Forgets the oldest batch if all of it is answered.
    #[inline]
    pub(crate) fn end_batch(&mut self, index: LaneId) {
        if self.lanes[index].is_batch_answered() {
            self.record_answered(index);
            self.lanes[index].batches.pop_front();
        }
    }

    /// Puts replies into the statistics. Those of one batch were written together, so that when
    /// they arrive together they took equally long.
    pub(crate) fn record_answered(&mut self, index: LaneId) {
        let lane = &mut self.lanes[index];
        let count = lane.answered - lane.recorded;
        if count == 0 {
            return;
        }
        lane.recorded = lane.answered;
        let batch = lane.batches.front().expect("a batch ends here at the earliest");
        let latency = self.now.micros_since(batch.at);
        let backend = &mut self.backends[lane.backend];
        let server = &mut backend.servers[lane.server];
        server.failures = 0;
        if backend.watches_answers {
            server.latency.add(latency, self.now);
            if let Some(hedging) = &mut backend.hedging {
                hedging.answered(count);
            }
            if let Some(retries) = &mut backend.retries {
                retries.answered(count, self.now);
            }
        }
        let is_news = server.is_in_doubt;
        self.metrics.record_server(server.metrics, latency, count);
        self.metrics.add_server(server.metrics, ServerCounter::Responses, count);
        if is_news {
            self.note_answered(index);
        }
    }

    pub(crate) fn lane_timeout(&mut self, index: LaneId) {
        self.lanes[index].armed = Time::NEVER;
        let now = self.now;
        match self.lanes[index].link {
            Link::Idle => {}
            Link::Connecting { deadline } | Link::Handshaking { deadline } => {
                if self.shows_silence(index, deadline) {
                    let Lane { backend, server, .. } = self.lanes[index];
                    self.fall_silent(backend, server);
                } else if deadline <= now {
                    if !self.lanes[index].is_shared() {
                        self.suspect(index);
                    }
                    self.lane_down(index, Failure::TimedOut, Closed::ByUs);
                } else {
                    self.expire_unsent(index);
                    if self.trial_expiry(index).is_some() {
                        self.expire_waiting(index);
                    }
                }
            }
            Link::Backoff { until } => {
                if until <= now {
                    self.expire_waiting(index);
                    self.retry(index);
                }
            }
            Link::Ready { .. } => {
                if self.reply_deadline(index) <= now {
                    match self.lanes[index].may_trickle(now) {
                        Some(news) => self.actions.push_back(news),
                        None => {
                            self.suspect(index);
                            self.lane_down(index, Failure::TimedOut, Closed::ByUs);
                        }
                    }
                } else {
                    self.hedge_overdue(index);
                }
            }
        }
        self.rearm(index);
    }

    /// The backoff is over: tries to connect, unless the server is ejected, which is for
    /// [`Engine::probe`] to end, or nobody may want the lane.
    fn retry(&mut self, index: LaneId) {
        let lane = &self.lanes[index];
        let backend = &self.backends[lane.backend];
        let is_used = lane.variant == 0 || backend.usage[usize::from(lane.variant)].clients > 0;
        let server = &backend.servers[lane.server];
        // Of a silent server only the first lane asks whether it still is.
        let is_vain = server.ejected || (server.is_silent() && index != server.first_lane);
        let is_used = (is_used || lane.unsent > 0) && (!lane.is_feed || self.is_feed_wanted(index));
        let waits = lane.unsent > 0 && self.may_wait(index);
        let lane = self.lane(index);
        if waits && is_vain {
            self.await_attempt(index);
        } else if is_vain || lane.is_private || !is_used || lane.last_failure.is_of_variant() {
            self.lanes[index].link = Link::Idle;
        } else if self.now >= self.lanes[index].due_at {
            self.connect(index);
        } else if self.may_try(index) {
            self.try_again(index);
        } else {
            self.await_attempt(index);
        }
    }

    /// When what has waited since `from` for the lane's server has waited long enough, which it has at `expiry` as a
    /// rule: later while the server says that it takes longer.
    pub(crate) fn relaxed(&self, index: LaneId, from: Time, expiry: Time) -> Time {
        let lane = self.lane(index);
        self.backends[lane.backend].relaxed(lane.server, (from, expiry), &self.metrics, self.now)
    }

    /// The same of what may wait for `timeout`.
    pub(crate) fn lane_expiry(&self, index: LaneId, from: Time) -> Time {
        self.relaxed(index, from, self.backends[self.lane(index).backend].expiry(from))
    }

    /// When a connected lane has waited too long: for the oldest reply, or to write anything.
    fn reply_deadline(&self, index: LaneId) -> Time {
        let lane = &self.lanes[index];
        if lane.paused {
            return Time::NEVER;
        }
        if lane.is_feed {
            return self.feed_deadline(index);
        }
        if lane.in_flight > 0
            && let Some(blocking) = self.blocked_at(index)
        {
            return self.relaxed(index, blocking.ends, blocking.until);
        }
        if let Some(batch) = lane.batches.front() {
            // What takes a lane for itself may take its time, as long as it goes on.
            let from = if lane.is_private { batch.at.max(lane.progress_at) } else { batch.at };
            return self.lane_expiry(index, from);
        }
        if lane.upload != ClientId::NONE {
            return self.upload_deadline(index);
        }
        if lane.unsent > 0 {
            let started = self.requests[lane.first_unsent].started;
            return self.lane_expiry(index, started.max(lane.progress_at));
        }
        Time::NEVER
    }

    pub(crate) fn rearm(&mut self, index: LaneId) {
        let deadline = match self.lanes[index].link {
            Link::Idle => Time::NEVER,
            Link::Connecting { deadline } | Link::Handshaking { deadline } => {
                let expiries = [self.first_unsent_expiry(index), self.trial_expiry(index)];
                expiries.into_iter().flatten().fold(deadline, Time::min)
            }
            Link::Backoff { until } => until,
            Link::Ready { .. } => self.reply_deadline(index).min(self.hedge_due(index)),
        };
        self.arm_lane(index, deadline);
    }

    #[inline]
    pub(crate) fn arm_lane(&mut self, index: LaneId, at: Time) {
        self.lanes[index].arm(index, at, &mut self.timers);
    }

    pub(crate) fn publish_connections(&mut self, index: LaneId) {
        let server = self.server_of(index);
        let (id, connections) = (server.metrics, u64::from(server.connections));
        self.metrics.set_server(id, ServerGauge::ServerConnections, connections);
    }

    /// The server's statistics are behind the lane: they are brought up to date once a tick, unless
    /// somebody may be waiting for a lane.
    #[inline]
    fn publish_lane_queues(&mut self, index: LaneId) {
        let lane = &mut self.lanes[index];
        if lane.is_private {
            self.publish_queues(index);
        } else if !std::mem::replace(&mut lane.is_unpublished, true) {
            self.unpublished_lanes.push(index);
        }
    }

    /// Brings all statistics of servers up to date.
    #[inline]
    pub(crate) fn publish_lanes(&mut self) {
        while let Some(index) = self.unpublished_lanes.pop() {
            self.lanes[index].is_unpublished = false;
            self.publish_queues(index);
        }
    }

    /// Brings the server's statistics up to date with the lane.
    pub(crate) fn publish_queues(&mut self, index: LaneId) {
        if self.lanes[index].is_session {
            self.publish_session(index);
        }
        let lane = &mut self.lanes[index];
        let (backend, server_index) = (lane.backend, lane.server);
        let server = &mut self.backends[backend].servers[server_index];
        if lane.uncounted_size > 0 {
            let (count, size) = (lane.uncounted, lane.uncounted_size);
            (lane.uncounted, lane.uncounted_size) = (0, 0);
            self.metrics.add_server(server.metrics, ServerCounter::Requests, count.into());
            self.metrics.add_server(server.metrics, ServerCounter::RequestBytes, size);
        }
        let mut queues = server.session_queues;
        let mut add_variant = |first: LaneId| {
            // A server that is no more has none.
            let lanes = (*self.lanes).get(first.index()..).unwrap_or_default();
            lanes.iter().take(server.lanes as usize + 1).for_each(|lane| queues.add(lane));
        };
        add_variant(server.first_lane);
        // Most servers have lanes of one variant only.
        server.others.iter().copied().for_each(add_variant);
        for &lane in &server.streaming_lanes {
            queues.add(&self.lanes[lane]);
        }
        if queues != server.queues {
            server.queues = queues;
            let Queues { unsent, unsent_size, in_flight, in_flight_size } = queues;
            let (metrics, id) = (&self.metrics, server.metrics);
            metrics.set_server(id, ServerGauge::InQueue, unsent);
            metrics.set_server(id, ServerGauge::InQueueBytes, unsent_size);
            metrics.set_server(id, ServerGauge::OutQueue, in_flight);
            metrics.set_server(id, ServerGauge::OutQueueBytes, in_flight_size);
        }
        if !server.waiting.is_empty() || !server.reading.is_empty() {
            self.wake_waiting(backend, server_index);
        }
    }
}

/// Hedged reads: see [`crate::upstream::hedge`].
impl Engine {
    /// When the next of a lane's reads in flight are sent elsewhere, too.
    pub(crate) fn hedge_due(&self, index: LaneId) -> Time {
        let lane = self.lane(index);
        let Some(hedging) = &self.backends[lane.backend].hedging else { return Time::NEVER };
        let next = lane.batches.iter().find(|batch| batch.end > lane.hedged);
        let next = next.filter(|_| lane.is_shared());
        next.map_or(Time::NEVER, |batch| batch.at.plus_micros(hedging.after_us))
    }

    /// Sends those reads elsewhere, too, that have been in flight on a lane for long.
    pub(crate) fn hedge_overdue(&mut self, index: LaneId) {
        if self.hedge_due(index) > self.now {
            return;
        }
        let now = self.now;
        let lane = &mut self.lanes[index];
        lane.trim_sent(&mut self.bufs);
        let backend = &mut self.backends[lane.backend];
        let Some(hedging) = &backend.hedging else { return };
        let after_us = hedging.after_us;
        let is_due = |at: Time| at.plus_micros(after_us) <= now;
        let due = lane.batches.iter().take_while(|batch| is_due(batch.at)).last();
        let from = lane.hedged.max(lane.answered);
        let to = due.map_or(from, |batch| batch.end);
        lane.hedged = lane.hedged.max(to);
        if lane.followers > 0 {
            // From before a reload.
            return;
        }
        // What takes so long, and may take for ever, counts before it has come.
        let server = &mut backend.servers[lane.server];
        server.latency.is_overdue(2 * after_us);
        if backend.is_held() || lane.refused.is_some() {
            return;
        }
        let unkept = lane.in_flight_size - lane.sent.len();
        let (mut before, mut at) = (RequestId::NONE, lane.head);
        let (mut ordinal, mut place, in_flight) = (lane.answered, 0, lane.in_flight);
        for _ in 0..in_flight {
            if ordinal >= to {
                break;
            }
            ordinal += 1;
            let Request { next_in_lane, wire_len, .. } = self.requests[at];
            let mut here = at;
            if ordinal > from
                && let Some(start) = u64::checked_sub(place, unkept)
                && let Some(client) = self.may_hedge(at)
            {
                let read = Overdue { request: at, client, before, start: start as usize };
                here = self.hedge(index, read).unwrap_or(at);
            }
            place += wire_len;
            (before, at) = (here, next_in_lane);
        }
    }

    /// For whom a request is, if it is a read without a reply that another server may answer, too, and
    /// its client waits for nothing but reads.
    fn may_hedge(&self, index: RequestId) -> Option<ClientId> {
        let request = &self.requests[index];
        let is_whole = match request.role {
            Role::Single => true,
            Role::Fragment { parent, .. } => {
                matches!(self.requests[parent].role, Role::Parent { .. })
            }
            Role::Parent { .. } | Role::Flow { .. } | Role::Probe { .. } | Role::Own(_) => false,
        };
        // What is sent elsewhere keeps an order that goes by connections.
        let is_odd = request.silent
            || request.is_tagged
            || request.is_sent_on
            || request.expect.is_coalesced();
        let client = self.waiting_client(index);
        let is_fit = is_whole
            && request.is_movable_read()
            && !request.has_begun()
            && !request.streaming
            && !is_odd
            && request.wire_len < LARGE as u64
            && client != ClientId::NONE
            && self.waits_for_reads(client);
        is_fit.then_some(client)
    }

    fn waits_for_reads(&self, client: ClientId) -> bool {
        let mut at = self.clients[client].head;
        for _ in 0..PIPELINE_MAX {
            if at == RequestId::NONE {
                return true;
            }
            let request = &self.requests[at];
            let is_read = match request.role {
                Role::Parent { fragments, .. } => self.is_split_read(fragments),
                _ => request.is_movable_read(),
            };
            if !request.done && !is_read {
                return false;
            }
            at = request.next_in_client;
        }
        false
    }

    /// Whether what was split is a read: all of its parts are, then.
    fn is_split_read(&self, mut at: RequestId) -> bool {
        while at != RequestId::NONE && self.requests[at].done {
            at = self.requests.next_fragment(at);
        }
        at == RequestId::NONE || self.requests[at].is_movable_read()
    }

    /// Sends a read of a lane to another server, too. Returns what stands in its place in the lane.
    fn hedge(&mut self, index: LaneId, read: Overdue) -> Option<RequestId> {
        let Overdue { request, client, before, start } = read;
        let Lane { backend, server, variant, .. } = self.lanes[index];
        let Request { wire_len, reads, started, .. } = self.requests[request];
        let to = self.hedge_lane(index, read, reads)?;
        if self.backends[backend].topology.has_moving() {
            let mut text = Vec::new();
            self.lanes[index].sent.copy_range(start, wire_len as usize, &mut text);
            if !self.is_readable_elsewhere(backend, &text) {
                return None;
            }
        }
        let state = &mut self.backends[backend];
        if !state.hedging.as_mut()?.spend() {
            self.metrics.add_pool(state.metrics, PoolCounter::HedgesDenied, 1);
            return None;
        }
        self.metrics.add_pool(state.metrics, PoolCounter::HedgesSent, 1);
        let has_replicas = state.protocol == Protocol::Redis;
        if has_replicas && state.topology.primary_of(server) == server {
            self.clients[client].fenced = true;
        }
        debug_assert_eq!(self.lanes[to].variant, variant);
        let mut text = self.bufs.take_for(wire_len as usize);
        self.lanes[index].sent.copy_range(start, wire_len as usize, &mut text);
        let (hedge, _) = self.hedges.insert(Hedge { request, twins: [RequestId::NONE; 2] });
        let twins = [(); 2].map(|()| {
            let (twin, _) = self.requests.add(backend, ClientId::NONE, started);
            let Request { expect, asked, mark, .. } = self.requests[request];
            let slot = &mut self.requests[twin];
            (slot.asked, slot.mark) = (asked, mark);
            // What its client does not want to hear is left out when it is answered.
            slot.expect = if expect == Expect::MetaQuiet { Expect::Meta } else { expect };
            slot.role = Role::Own(Own::Twin { hedge, of: request });
            twin
        });
        self.hedges[hedge].twins = twins;
        let [here, there] = twins;
        self.requests[here].enter_lane(wire_len);
        let next = std::mem::replace(&mut self.requests[request].next_in_lane, RequestId::NONE);
        self.requests[here].next_in_lane = next;
        self.put_in_place(index, (before, request), here);
        let lane = &mut self.lanes[to];
        lane.close_gets(&mut self.bufs);
        lane.output.push(&text, &mut self.bufs);
        self.bufs.give(text);
        self.enqueue(to, there, wire_len);
        Some(here)
    }

    /// The client's lane to another server that may answer its read at once.
    fn hedge_lane(&mut self, index: LaneId, read: Overdue, reads: Option<Reads>) -> Option<LaneId> {
        let Lane { backend, server, variant, .. } = self.lanes[index];
        let state = &self.backends[backend];
        let reader = self.reading_client(read.request, variant);
        let reading = Some(Reading { reader, lanes: &self.lanes, metrics: &self.metrics });
        let health = Servers { backend: state, now: self.now, reading };
        let other: ServerId = state.topology.beside(server, reads, &health, &mut self.rng)?;
        let to = state.servers[other].lane(variant, reader.lane_choice);
        let lane = &self.lanes[to];
        if !matches!(lane.link, Link::Ready { .. }) {
            // For those that come.
            let _ = self.reach(to);
            return None;
        }
        let size = self.requests[read.request].wire_len as usize;
        (lane.refused.is_none() && !lane.is_full(&state.limits, size)).then_some(to)
    }

    /// Something else stands in a request's place in a lane, behind the request `before`.
    fn put_in_place(
        &mut self,
        index: LaneId,
        (before, request): (RequestId, RequestId),
        other: RequestId,
    ) {
        let lane = &mut self.lanes[index];
        match before {
            RequestId::NONE => lane.head = other,
            before => self.requests[before].next_in_lane = other,
        }
        let noted = lane.users.iter_mut().flat_map(|users| {
            let Users { seen, fenced, .. } = &mut **users;
            [&mut seen.last, &mut fenced.last]
        });
        for place in [&mut lane.tail, &mut lane.first_unsent].into_iter().chain(noted) {
            if *place == request {
                *place = other;
            }
        }
    }

    /// The reply to a lane's head, which is a twin, begins so. Returns whether the request itself stands in
    /// its place now.
    #[cold]
    pub(crate) fn settle_twin(&mut self, index: LaneId, start: &[u8]) -> bool {
        let twin = self.lane(index).head;
        let Role::Own(Own::Twin { hedge: id, .. }) = self.requests[twin].role else { return false };
        let is_error = match self.lane(index).scanner {
            Scanner::Redis(_) => matches!(start.first(), Some(b'-' | b'!')),
            Scanner::Memcached(_) | Scanner::Binary(_) => is_error_of_memcached(start),
        };
        let hedge = &mut self.hedges[id];
        let is_second = hedge.twins[1] == twin;
        let other = hedge.take(twin);
        if is_error && other != RequestId::NONE {
            self.requests[twin].role = Role::Own(Own::Whatever);
            return false;
        }
        if other != RequestId::NONE {
            self.requests[other].role = Role::Own(Own::Whatever);
        }
        let Hedge { request, .. } = self.hedges.remove(id);
        if is_second {
            let metrics = self.backends[self.requests[request].backend].metrics;
            self.metrics.add_pool(metrics, PoolCounter::HedgesWon, 1);
        }
        self.requests[request].next_in_lane = self.requests[twin].next_in_lane;
        self.put_in_place(index, (RequestId::NONE, twin), request);
        self.free_request(twin);
        true
    }

    /// A twin has left its lane and gets no reply.
    #[cold]
    pub(crate) fn twin_failed(&mut self, id: HedgeId, twin: RequestId, failure: NamedFailure) {
        let other = self.hedges[id].take(twin);
        self.free_request(twin);
        if other == RequestId::NONE {
            let Hedge { request, .. } = self.hedges.remove(id);
            self.fail_request(request, failure);
        }
    }
}

fn is_error_of_memcached(start: &[u8]) -> bool {
    const ERRORS: [&[u8]; 3] = [b"ERROR", b"SERVER_ERROR", b"CLIENT_ERROR"];
    ERRORS.iter().any(|error| start.starts_with(error))
}
