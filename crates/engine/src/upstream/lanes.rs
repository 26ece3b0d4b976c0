//! What comes and goes on connections to servers, and when it is overdue.

use cashew_metrics::{ServerCounter, ServerGauge};
use cashew_protocol::memcached::Expect;

use crate::base::action::Sequel;
use crate::base::failure::Failure;
use crate::base::id::{ClientId, LaneId, RequestId};
use crate::base::time::Time;
use crate::engine::{Closed, Engine};
use crate::request::seal::Seal;
use crate::request::{Due, Own, Role};
use crate::upstream::lane::{Batch, Lane, Link, Scan, Scanner};
use crate::upstream::server::{Queues, Server};
use crate::upstream::session_params::WireProtocol;

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
            self.upload_sent(index, bytes);
            self.publish_queues(index);
            return;
        }
        lane.close_gets(&mut self.bufs);
        if self.backends[lane.backend].keeps_sent && lane.keeps_sent() {
            lane.keep_sent(bytes, &mut self.bufs);
        }
        lane.output.advance(bytes, &mut self.bufs);
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
            if lane.is_feed {
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
                Scan::Complete(len) if self.keeps_refused(index, &bytes[..len]) => {
                    bytes = &bytes[len..];
                }
                Scan::Complete(len) => {
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
        let request = &self.requests[remnant];
        lane.in_flight_size -= request.wire_len;
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
        let request = &mut self.requests[lane.head];
        request.in_lane = false;
        lane.pop_head(request.next_in_lane, request.wire_len);
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
        if backend.topology.is_by_latency() {
            server.latency.add(latency, self.now);
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

    /// When a connected lane has waited too long: for the oldest reply, or to write anything.
    fn reply_deadline(&self, index: LaneId) -> Time {
        let lane = &self.lanes[index];
        let backend = &self.backends[lane.backend];
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
            return backend.expiry(from);
        }
        if lane.upload != ClientId::NONE {
            return self.upload_deadline(index);
        }
        if lane.unsent > 0 {
            let started = self.requests[lane.first_unsent].started;
            return backend.expiry(started.max(lane.progress_at));
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
            Link::Ready { .. } => self.reply_deadline(index),
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
