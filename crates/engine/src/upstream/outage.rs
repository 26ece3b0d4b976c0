//! Connections to servers that end or do not come about, and what fails with them.
//!
//! What was sent fails, since nobody knows whether it was executed; what was refused
//! ([`crate::upstream::refused`]) or not sent waits for the next connection, unless the server
//! cannot be reached. Failures in a row are counted, and lead to the server's ejection.

use std::collections::VecDeque;
use std::time::Duration;

use cashew_config::snapshot::Protocol;
use cashew_metrics::{Cause, Evidence, PoolCounter, ServerCounter};
use cashew_protocol::memcached::Expect;

use crate::base::action::{Action, Sequel};
use crate::base::failure::{Failure, NamedFailure};
use crate::base::id::{ClientId, LaneId, RequestId};
use crate::base::time::Time;
use crate::engine::{Closed, Engine};
use crate::request::slab::Requests;
use crate::request::{Own, Request, Role};
use crate::upstream::bulk::BULK_SIZE;
use crate::upstream::health::{Reading, Servers};
use crate::upstream::lane::{Lane, Link};
use crate::upstream::refused::RefusedRequest;
use crate::upstream::replica_reads::{ReadingClient, WriteMark};
use crate::upstream::retry::is_read;

/// Backoff after the first failed attempt to connect; it doubles with every further one.
const BACKOFF_MIN_MS: u64 = 10;
const BACKOFF_MAX_MS: u64 = 1000;
/// A connection that lived shorter than this counts as a failed attempt.
const SETTLED_AFTER_US: u64 = 1_000_000;
/// So seldom at most it is told that a server refuses writes as a replica does.
const TELL_AGAIN_MS: u64 = 100;
/// How long the ejection of a server is waited for before it is asked for again.
const ASK_AGAIN_MS: u64 = 1000;
/// The log is told so seldom at most what keeps the gateway from connecting to a server.
const HINDERED_AGAIN: Duration = Duration::from_secs(10);

impl Engine {
    /// The connection ended, or could not be made.
    ///
    /// What was sent on it fails, since nobody knows whether it was executed; what was not waits
    /// for the next connection, unless the server cannot be reached.
    pub(crate) fn lane_down(&mut self, index: LaneId, failure: Failure, closed: Closed) {
        if self.lanes[index].is_feed {
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

    /// A connection to a server is lost, or could not be made. Returns whether what waits for the next
    /// one must not go there unseen, since there may be another process.
    pub(crate) fn doubt_replica(&mut self, index: LaneId) -> bool {
        let lane = &mut self.lanes[index];
        let backend = &mut self.backends[lane.backend];
        if !backend.replica_rules.has_replicas || !lane.is_shared() {
            return false;
        }
        lane.was_lost = true;
        let begun = self.metrics.board().begun(backend.metrics);
        backend.servers[lane.server].confirm_after = begun + 1;
        let is_kept = self.metrics.board().is_kept(backend.metrics, self.now.as_micros() / 1000);
        is_kept && backend.topology.primary_of(lane.server) != lane.server
    }

    fn connection_down(&mut self, index: LaneId, failure: Failure, closed: Closed) {
        self.hear_failure(index, failure);
        let lane = &mut self.lanes[index];
        lane.last_failure = failure;
        lane.failed_at = self.now;
        let is_early = std::mem::take(&mut lane.is_early);
        let had_requests = lane.in_flight > 0 || lane.partial > 0;
        let is_engaged = self.is_engaged(index);
        self.observe_lost(index, failure);
        let link = self.disconnect(index, closed);
        self.count_down(index, link, failure);
        let again = self.fail_sent(index, failure);
        for _ in 0..again {
            if !self.move_first_unsent(index) {
                break;
            }
        }
        if is_engaged {
            // What comes next in a transaction means something else on another connection.
            self.fail_unsent(index, failure);
        }

        if self.doubt_replica(index) {
            self.fail_or_move_unsent(index, failure);
        }
        let is_clean = failure == Failure::Closed && !had_requests;
        let settled = matches!(link, Link::Ready { since }
            if self.now.micros_since(since) >= SETTLED_AFTER_US);
        if failure == Failure::WireProtocolRefused {
            self.wire_protocol_refused(index);
        }
        // One client's scripts can bring it about: it says nothing of the server, and concerns nobody
        // who comes next.
        let is_clients_fault = failure == Failure::BadReply
            && self.lane(index).is_private
            && matches!(link, Link::Ready { .. });
        let is_counted = !(is_clients_fault || is_early && self.server_of(index).failing);
        if !is_clean && failure.is_of_server() && is_counted {
            self.note_failure(index, failure);
        }
        if failure.is_of_server() {
            let backend = self.lanes[index].backend;
            self.doubt_map(backend);
        }
        let is_evidence = failure.is_local() || (failure.is_of_server() && !is_clients_fault);
        if !is_clean && is_evidence {
            self.note_end(index, link, failure);
        }
        if failure.is_local() {
            self.note_local_error(index, failure);
        }
        if self.lane(index).is_shared() && self.server_of(index).is_silent() {
            self.down_in_silence(index, is_early);
            return;
        }
        let is_feed_wanted = self.is_feed_wanted(index);
        let lane = &mut self.lanes[index];
        let backend = &self.backends[lane.backend];
        let server = &backend.servers[lane.server];
        // What fails gets no reads while there are replicas, so nothing but this finds it well.
        let is_missed = server.failing && !server.ejected;
        let is_kept = match lane.is_private {
            true => false,
            false if lane.is_feed => is_feed_wanted,
            false if lane.variant == 0 => backend.preconnect || is_missed,
            false => is_missed && backend.usage[usize::from(lane.variant)].clients > 0,
        };
        let wanted = lane.unsent > 0 || is_kept;
        if settled || is_clients_fault || (is_clean && lane.attempts == 0) {
            lane.attempts = u32::from(!settled && !is_clients_fault);
            // What failed may have left something to do there, such as a copy to be forgotten, and it is being connected
            // for that already.
            if wanted && lane.link == Link::Idle {
                self.connect(index);
            }
            return;
        }
        if self.lane(index).unsent > 0 && self.may_wait(index) {
            self.expire_waiting(index);
        } else if failure == Failure::TimedOut && !is_early {
            // Those that have not waited long enough try again.
            self.expire_unsent(index);
            let lane = &mut self.lanes[index];
            if lane.unsent > 0 {
                lane.attempts = lane.attempts.saturating_add(1);
                if lane.link == Link::Idle {
                    self.connect(index);
                }
                return;
            }
        } else {
            self.fail_or_move_unsent(index, failure);
        }
        self.back_off(index, self.now, is_early);
    }

    /// A further attempt was in vain: the next one is due after a while that begins at that time. An early
    /// one leaves that as it was.
    pub(crate) fn back_off(&mut self, index: LaneId, from: Time, is_early: bool) {
        let lane = &mut self.lanes[index];
        if !is_early {
            lane.attempts = lane.attempts.saturating_add(1);
            let steps = lane.attempts.saturating_sub(1).min(16);
            let span = (BACKOFF_MIN_MS << steps).min(BACKOFF_MAX_MS);
            lane.due_at = from.plus_millis(self.rng.jitter(span).max(1));
        }
        self.await_attempt(index);
    }

    fn count_down(&mut self, index: LaneId, link: Link, failure: Failure) {
        let counter = match (link, failure) {
            (_, Failure::TimedOut) => ServerCounter::ServerTimedout,
            (Link::Connecting { .. }, _) => ServerCounter::ConnectErrors,
            (_, Failure::Closed) => ServerCounter::ServerEof,
            _ => ServerCounter::ServerErr,
        };
        let Lane { backend, server, .. } = self.lanes[index];
        self.backends[backend].servers[server].count(&self.metrics, counter);
    }

    /// Counts a failure of the server and asks for its ejection at the limit.
    fn note_failure(&mut self, index: LaneId, failure: Failure) {
        let now = self.now;
        let Lane { backend: backend_id, server: server_index, .. } = self.lanes[index];
        let backend = &mut self.backends[backend_id];
        let limit = backend.failure_limit;
        let may_eject = backend.auto_eject && backend.topology.may_eject(server_index);
        let server = &mut backend.servers[server_index];
        server.failing = true;
        if server.failed_at != now {
            server.failed_at = now;
            server.failures = server.failures.saturating_add(1);
        }
        if may_eject && server.failures >= limit && !server.ejected && now >= server.ask_at {
            server.ask_at = now.plus_millis(ASK_AGAIN_MS);
            self.actions.push_back(Action::Eject {
                backend: backend_id,
                server: server_index,
                why: failure,
            });
        }
    }

    /// This machine failed, which says nothing of the server. The log is told, but not of what goes on
    /// or comes and goes.
    fn note_local_error(&mut self, index: LaneId, failure: Failure) {
        let Lane { backend, server: server_index, .. } = self.lanes[index];
        let server = &mut self.backends[backend].servers[server_index];
        let is_new = server.local_error != Some(failure);
        if is_new && server.hindered_at.is_none_or(|at| self.now - at >= HINDERED_AGAIN) {
            (server.local_error, server.hindered_at) = (Some(failure), Some(self.now));
            self.actions.push_back(Action::ServerHindered {
                backend,
                server: server_index,
                why: failure,
            });
        }
    }

    /// Fails what was sent, wholly or in part, on the connection that is gone. Returns how many are sent
    /// again instead: they stand in front of what is not sent.
    pub(crate) fn fail_sent(&mut self, index: LaneId, failure: Failure) -> usize {
        let mut again = self.reads_to_repeat(index, failure);
        let count = again.len();
        let lane = &mut self.lanes[index];
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
        if self.lanes[index].refused.is_some() {
            self.give_up_before(index, end);
        }
        let lane = &mut self.lanes[index];
        lane.users = None;
        lane.sent.clear(&mut self.bufs);
        lane.in_flight = 0;
        lane.in_flight_size = 0;
        lane.head = end;
        if end == RequestId::NONE {
            lane.tail = RequestId::NONE;
        }
        while at != end {
            let next = self.requests[at].next_in_lane;
            if again.front().is_some_and(|read| read.request == at) {
                self.repeat_read(index, failure, again.pop_front());
            } else {
                self.forget_key(index, at);
                self.fail_request(at, self.named_of(index, failure));
            }
            at = next;
        }
        if self.lanes[index].refused.is_some() {
            self.put_refused_back(index);
        }
        self.publish_queues(index);
        count
    }

    /// A whole reply to a lane's head, of which `end` are the last bytes. Returns whether the request was
    /// refused and is kept, to be sent again (see [`crate::upstream::refused`]), or is answered otherwise.
    #[inline]
    pub(crate) fn keeps_refused(&mut self, index: LaneId, end: &[u8]) -> bool {
        let lane = &self.lanes[index];
        let is_error = || {
            let start = self.requests[lane.head].reply.first().or(end.first());
            matches!(start, Some(b'-'))
        };
        let is_kept = self.backends[lane.backend].repeats_refused
            && (lane.refused.is_some() || is_error())
            && (self.is_redirected(index, end)
                || self.takes_refused(index, end)
                || self.hides_redirect(index, end));
        if !is_kept {
            self.note_answered_elsewhere(self.lanes[index].head);
        }
        is_kept
    }

    #[cold]
    fn takes_refused(&mut self, index: LaneId, end: &[u8]) -> bool {
        let request = self.lanes[index].head;
        let client = self.requests.waiting_client(request);
        let is_behind = client != ClientId::NONE && self.has_refused(index, request);
        let lane = &mut self.lanes[index];
        let backend = &self.backends[lane.backend];
        let context = (is_behind, self.now);
        let repeat = lane.may_repeat(backend, &self.requests, &mut self.bufs, end, context);
        let Some((why, bytes)) = repeat else {
            if is_behind {
                // This one has run.
                self.give_refused_up(index, request);
            }
            return false;
        };
        if !self.lane(index).is_shared() {
            return self.repeat_where_others_wait(index, why, bytes);
        }
        let mut reply = self.take_reply(request);
        self.bufs.extend(&mut reply, end);
        if let Some(retries) = &mut self.backends[self.lanes[index].backend].retries {
            retries.refused();
        }
        self.pop_answered(index);
        let slot = &mut self.requests[request];
        (slot.in_lane, slot.arrived) = (true, 0);
        let asker = self.asker_of(request);
        self.lanes[index].keep_refused(why, RefusedRequest { request, asker, bytes, reply });
        true
    }

    /// Sends what was refused on a lane that its client has to itself on that of large values, where it may wait.
    /// Nothing else is on its way there, so that nothing of the client's is.
    fn repeat_where_others_wait(&mut self, index: LaneId, why: Failure, bytes: Vec<u8>) -> bool {
        let Lane { backend, server, variant, head: request, .. } = self.lanes[index];
        self.note_unfit(index, why);
        let size = bytes.len();
        let is_alone = self.lane(index).in_flight == 1 && self.lane(index).unsent == 0;
        let is_single = matches!(self.requests[request].role, Role::Single);
        let to = match is_alone && is_single {
            true => self.lane_of((backend, server), variant, 0, BULK_SIZE.max(size)).ok(),
            false => None,
        };
        let Some(to) = to else {
            self.bufs.give(bytes);
            return false;
        };
        self.drop_reply(request);
        self.pop_answered(index);
        self.requests[request].arrived = 0;
        let metrics = self.backends[backend].metrics;
        self.metrics.add_pool(metrics, PoolCounter::RequestsRetried, 1);
        let lane = &mut self.lanes[to];
        lane.close_gets(&mut self.bufs);
        lane.output.push(&bytes, &mut self.bufs);
        self.bufs.give(bytes);
        self.enqueue(to, request, size as u64);
        true
    }

    /// Answers the refused requests of whoever has asked for this one with the server's errors.
    fn give_refused_up(&mut self, index: LaneId, request: RequestId) {
        let asker = self.asker_of(request);
        let given_up = self.lanes[index].take_refused_of(asker);
        given_up.into_iter().for_each(|it| self.answer_refused(it));
    }

    fn answer_refused(&mut self, refused: RefusedRequest) {
        let RefusedRequest { request, bytes, reply, .. } = refused;
        self.requests[request].in_lane = false;
        self.answer_unfollowed(request, &reply, &bytes);
        self.bufs.give(bytes);
        self.bufs.give(reply);
    }

    /// The connection is lost on which so many requests are in flight, and nobody knows whether they ran:
    /// what their clients asked before them is not sent again.
    fn give_up_before(&mut self, index: LaneId, end: RequestId) {
        let mut at = self.lane(index).head;
        while at != end && self.lane(index).refused.is_some() {
            let client = self.requests.waiting_client(at);
            if client != ClientId::NONE {
                self.give_refused_up(index, at);
            }
            at = self.requests[at].next_in_lane;
        }
    }

    /// Puts what was refused in front of what is not sent. Nothing is in flight.
    fn put_refused_back(&mut self, index: LaneId) {
        let lane = &mut self.lanes[index];
        let Some(refused) = lane.refused.take() else { return };
        let metrics = self.backends[lane.backend].metrics;
        let (count, unwanted) = lane.put_refused_back(*refused, &mut self.requests, &mut self.bufs);
        self.metrics.add_pool(metrics, PoolCounter::RequestsRetried, count);
        unwanted.into_iter().for_each(|it| self.answer_refused(it));
    }

    /// All that was in flight when a server began to refuse requests is answered: the lane is closed, and
    /// what was refused, and what was not sent, goes elsewhere or waits until the server is fit again.
    #[cold]
    pub(crate) fn stand_down(&mut self, index: LaneId) {
        let Some(why) = self.lane(index).refused.as_ref().map(|refused| refused.why) else {
            return;
        };
        let now = self.now;
        let lane = &mut self.lanes[index];
        lane.take_partial_back(&mut self.bufs);
        (lane.last_failure, lane.failed_at) = (why, now);
        let is_early = std::mem::take(&mut lane.is_early);
        self.doubt_replica(index);
        self.disconnect(index, Closed::ByUs);
        self.fail_sent(index, why);
        self.lanes[index].asks = true;
        self.note_unfit(index, why);
        let backend = self.lanes[index].backend;
        self.doubt_map(backend);
        while self.lane(index).unsent > 0 && self.move_first_unsent(index) {}
        match self.may_wait(index) {
            true => self.expire_waiting(index),
            false => self.fail_or_move_unsent(index, why),
        }
        self.back_off(index, now, is_early);
        self.publish_queues(index);
    }

    /// A server answers that it is not fit to serve for now: reads pass it by, and who connects asks first.
    pub(crate) fn note_unfit(&mut self, index: LaneId, why: Failure) {
        let Lane { backend, server, .. } = self.lanes[index];
        let now = self.now;
        let is_in_use = self.backends[backend].is_in_use();
        let state = self.server_of(index);
        state.failing = true;
        let is_told = state.demotion_told_at.is_some_and(|at| now < at.plus_millis(TELL_AGAIN_MS));
        if why == Failure::ReadOnly && is_in_use && !is_told {
            state.demotion_told_at = Some(now);
            self.actions.push_back(Action::NotPrimary { backend, server });
        }
        self.note_evidence(backend, server, Evidence::Failed(Cause::from(why)));
    }

    /// Ends a connection whose server sent `bytes`, or what they go on, in the place of what is
    /// `expected`.
    #[cold]
    pub(crate) fn misfit(&mut self, index: LaneId, expected: &'static str, bytes: &[u8]) {
        self.notify_misfit(index, expected, Sequel::Closed, bytes);
        self.lane_down(index, Failure::BadReply, Closed::ByUs);
    }

    /// The same for a reply to the lane's head.
    #[cold]
    pub(crate) fn misfit_of_head(&mut self, index: LaneId, bytes: &[u8]) {
        let lane = &self.lanes[index];
        let server = &mut self.backends[lane.backend].servers[lane.server];
        let request = &self.requests[lane.head];
        let expected = server.learn_misfit(request, &lane.scanner, bytes, self.now);
        self.misfit(index, expected, bytes);
    }

    /// Counts and tells that a server has sent `bytes`, or what they go on, in the place of what is
    /// `expected`.
    #[cold]
    pub(crate) fn notify_misfit(
        &mut self,
        index: LaneId,
        expected: &'static str,
        sequel: Sequel,
        bytes: &[u8],
    ) {
        let Lane { backend, server, .. } = self.lanes[index];
        let state = &mut self.backends[backend].servers[server];
        self.metrics.add_server(state.metrics, ServerCounter::ProtocolErrors, 1);
        if let Some(excerpt) = state.misfit_for_log(bytes, self.now) {
            let news = Action::ServerMisfit { backend, server, expected, excerpt, sequel };
            self.actions.push_back(news);
        }
    }

    /// What is left of a get of several keys when its start is sent means nothing to another
    /// connection: takes it out of the output. `end` is the first request not sent; returns the one
    /// behind that get.
    fn rest_of_get(&mut self, index: LaneId, mut end: RequestId) -> RequestId {
        let lane = &mut self.lanes[index];
        let mut at = lane.head;
        let mut goes_on = false;
        let follows =
            |requests: &Requests, end: RequestId| end != RequestId::NONE && requests[end].follows;
        while at != end || (goes_on && end != RequestId::NONE) || follows(&self.requests, end) {
            let request = &self.requests[at];
            if !request.follows {
                goes_on = request.expect == Expect::Coalesced;
            }
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

    /// A request is about to leave the lane without its reply: if it shared another one's, nothing of it stays.
    pub(crate) fn forget_key(&mut self, index: LaneId, request: RequestId) {
        let slot = &mut self.requests[request];
        if std::mem::take(&mut slot.follows) {
            self.lanes[index].followers -= 1;
        } else if slot.expect.is_coalesced() && !slot.is_remnant() {
            let lane = &mut self.lanes[index];
            lane.coalesced.pop_key(&self.requests[request], &mut self.bufs);
        }
    }

    /// Fails what waits to be sent.
    pub(crate) fn fail_unsent(&mut self, index: LaneId, failure: Failure) {
        while self.lanes[index].unsent > 0 {
            self.fail_first_unsent(index, failure);
        }
        self.publish_queues(index);
    }

    /// The same, but reads go on with another server that has the keys.
    pub(crate) fn fail_or_move_unsent(&mut self, index: LaneId, failure: Failure) {
        let Lane { backend, .. } = self.lanes[index];
        let has_choice = self.backends[backend].replica_rules.has_replicas;
        if !self.lanes[index].is_shared() || !has_choice {
            return self.fail_unsent(index, failure);
        }
        while self.lanes[index].unsent > 0 {
            if !self.move_first_unsent(index) {
                self.fail_first_unsent(index, failure);
            }
        }
        self.publish_queues(index);
    }

    /// Has another server answer the first request that waits to be sent on a lane, if that is a read
    /// and there is one. Only while nothing is in flight there.
    pub(crate) fn move_first_unsent(&mut self, index: LaneId) -> bool {
        let Lane { backend, server, variant, first_unsent: request, upload, .. } =
            self.lanes[index];
        let Request { moves_left, wire_len, client, .. } = self.requests[request];
        let is_wanted = client != ClientId::NONE || self.is_fragment(request);
        if moves_left == 0 || !is_wanted || upload != ClientId::NONE {
            return false;
        }
        let state = &self.backends[backend];
        let reader = self.reading_client(request, variant);
        let reading = Some(Reading { reader, lanes: &self.lanes, metrics: &self.metrics });
        let health = Servers { backend: state, now: self.now, reading };
        let Some(other) = state.topology.another(server, reader.reads, &health, &mut self.rng)
        else {
            return false;
        };
        let choice = if client == ClientId::NONE { 0 } else { self.clients[client].lane_choice };
        let Ok(size) = usize::try_from(wire_len) else { return false };
        if self.backends[backend].topology.has_moving() {
            let mut text = Vec::new();
            self.lanes[index].output.copy_front(size, &mut text);
            if !self.is_readable_elsewhere(backend, &text) {
                return false;
            }
        }
        let Ok(to) = self.lane_of((backend, other), variant, choice, size) else { return false };
        let lane = &mut self.lanes[index];
        assert!(lane.in_flight == 0 && lane.partial == 0 && lane.head == lane.first_unsent);
        let mut text = self.bufs.take_for(size);
        lane.close_gets(&mut self.bufs);
        lane.users = None;
        lane.output.copy_front(size, &mut text);
        let next = self.requests[request].next_in_lane;
        if !lane.hand_on(request, next, &mut self.requests) {
            lane.output.advance(wire_len, &mut self.bufs);
        }
        lane.unsent -= 1;
        lane.head = next;
        lane.first_unsent = lane.head;
        if lane.head == RequestId::NONE {
            lane.tail = RequestId::NONE;
        }
        // It is a read that any of the shard may answer: it keeps no order with what is asked of others.
        self.note_answered_elsewhere(request);
        let slot = &mut self.requests[request];
        slot.moves_left -= 1;
        slot.in_lane = false;
        slot.next_in_lane = RequestId::NONE;
        let is_retried = slot.is_retried;
        let lane = &mut self.lanes[to];
        if is_retried {
            // Its time may be up. That is not this server's doing.
            lane.progress_at = self.now;
        }
        lane.close_gets(&mut self.bufs);
        lane.output.push(&text, &mut self.bufs);
        self.bufs.give(text);
        self.enqueue(to, request, wire_len);
        true
    }

    /// Who asked for what a request is, or is a part of.
    pub(crate) fn reading_client(&self, request: RequestId, variant: u16) -> ReadingClient {
        let client = match self.requests[request].role {
            Role::Fragment { parent, .. } => self.requests[parent].client,
            _ => self.requests[request].client,
        };
        let (lane_choice, written) = match client {
            // It is answered by nobody.
            ClientId::NONE => (0, WriteMark::OPEN),
            client => (self.clients[client].lane_choice, self.write_marks.of(client)),
        };
        ReadingClient { variant, lane_choice, written, reads: self.requests[request].reads }
    }

    fn is_fragment(&self, request: RequestId) -> bool {
        matches!(self.requests[request].role, Role::Fragment { .. })
    }

    /// Fails what has waited to be sent longer than the timeout.
    pub(crate) fn expire_unsent(&mut self, index: LaneId) {
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

    pub(crate) fn first_unsent_expiry(&self, index: LaneId) -> Option<Time> {
        let lane = &self.lanes[index];
        if lane.unsent == 0 {
            return None;
        }
        let started = self.requests[lane.first_unsent].started;
        Some(self.lane_expiry(index, started))
    }

    /// Only while nothing is in flight: then the first unsent request is the lane's head. Those that
    /// are joined with it fail with it.
    pub(crate) fn fail_first_unsent(&mut self, index: LaneId, failure: Failure) {
        self.lanes[index].close_gets(&mut self.bufs);
        loop {
            let is_joined = self.fail_unsent_head(index, failure) == Expect::Coalesced;
            let next = self.lanes[index].first_unsent;
            if !is_joined && (next == RequestId::NONE || !self.requests[next].follows) {
                return;
            }
        }
    }

    fn fail_unsent_head(&mut self, index: LaneId, failure: Failure) -> Expect {
        self.observe_unsent(index, failure);
        let lane = &mut self.lanes[index];
        assert!(lane.in_flight == 0 && lane.partial == 0 && lane.head == lane.first_unsent);
        let request = lane.first_unsent;
        lane.users = None;
        let Request { wire_len, next_in_lane: next, expect, .. } = self.requests[request];
        // Of a get of several keys none is good for another one.
        if expect.is_coalesced() || !lane.hand_on(request, next, &mut self.requests) {
            lane.output.advance(wire_len, &mut self.bufs);
        }
        lane.unsent -= 1;
        lane.head = next;
        lane.first_unsent = lane.head;
        if lane.head == RequestId::NONE {
            lane.tail = RequestId::NONE;
        }
        self.detach_upload(index);
        self.forget_key(index, request);
        let expect = self.requests[request].expect;
        self.fail_request(request, self.named_of(index, failure));
        expect
    }

    /// A failure of the lane's server.
    pub(crate) fn named_of(&self, index: LaneId, why: Failure) -> NamedFailure {
        let lane = self.lane(index);
        self.backends[lane.backend].named(lane.server, why)
    }

    /// Answers a request in its server's place.
    pub(crate) fn fail_request(&mut self, index: RequestId, mut failure: NamedFailure) {
        let request = &mut self.requests[index];
        if request.is_remnant() {
            // It was answered; that the rest of it was not written is nobody's failure.
            self.free_request(index);
            return;
        }
        request.in_lane = false;
        if request.cache_mark.is_some() {
            self.drop_cache_mark(index);
        }
        self.note_answered_elsewhere(index);
        match self.requests[index].role {
            Role::Own(Own::Twin { hedge, .. }) => return self.twin_failed(hedge, index, failure),
            Role::Probe { .. } | Role::Own(_) => {
                if let Role::Own(own) = self.requests[index].role {
                    self.not_invalidated(own);
                }
                self.free_request(index);
                return;
            }
            Role::Fragment { .. } if self.is_attempt(index) => {
                self.attempt_failed(index, failure);
                return;
            }
            Role::Flow { .. } => match self.watched_failure(index, failure) {
                Some(why) => failure = why,
                None => return,
            },
            Role::Single | Role::Parent { .. } | Role::Fragment { .. } => {}
        }
        let request = &self.requests[index];
        if request.streaming && request.client != ClientId::NONE {
            // Half of a reply is with the client: nothing sensible can follow it.
            let client = request.client;
            self.break_off(client);
            return;
        }
        let backend = request.backend;
        let protocol = self.backends[backend].protocol;
        self.count_forward_error(backend);
        if protocol == Protocol::Memcached {
            return self.fail_sent_memcached(index, &failure);
        }
        self.answer_instead(index, |out| failure.write_reply(protocol, out));
    }

    /// Answers a request that has left its lane with the gateway's words.
    pub(crate) fn answer_instead(&mut self, index: RequestId, write: impl FnOnce(&mut Vec<u8>)) {
        self.drop_reply(index);
        let reply = self.bufs.written(0, write);
        self.charge(index, reply.len());
        self.deliver_buf(index, reply);
    }
}

/// Reads that are sent again: see [`crate::upstream::retry`].
impl Engine {
    /// Which of the requests in flight on a lane are sent again, in their order, when it fails so.
    #[inline]
    pub(crate) fn reads_to_repeat(
        &mut self,
        index: LaneId,
        failure: Failure,
    ) -> VecDeque<RefusedRequest> {
        let lane = self.lane(index);
        let has_failed = matches!(
            failure,
            Failure::Closed | Failure::Reset | Failure::TimedOut | Failure::Silent
        );
        let may = has_failed && lane.in_flight > 0 && lane.is_shared();
        match self.backends[lane.backend].retries {
            Some(_) if may => self.find_reads_to_repeat(index),
            _ => VecDeque::new(),
        }
    }

    #[cold]
    fn find_reads_to_repeat(&mut self, index: LaneId) -> VecDeque<RefusedRequest> {
        let lane = &mut self.lanes[index];
        lane.trim_sent(&mut self.bufs);
        let unkept = lane.in_flight_size - lane.sent.len();
        let Lane { backend, head, in_flight, .. } = *lane;
        let protocol = self.backends[backend].protocol;
        let mut in_flight_here: Vec<(RequestId, Vec<u8>)> = Vec::with_capacity(in_flight as usize);
        let (mut at, mut place, mut keys) = (head, 0, 0);
        for _ in 0..in_flight {
            let request = &self.requests[at];
            let Request { next_in_lane, wire_len, .. } = *request;
            let mut bytes = self.bufs.take();
            let before = bytes.capacity();
            let lane = &self.lanes[index];
            if request.follows {
                let same: &[u8] = in_flight_here.last().map_or(b"", |(_, bytes)| bytes);
                bytes.extend_from_slice(same);
            } else if request.expect.is_coalesced() {
                lane.coalesced.write_get(request, &mut keys, &mut bytes);
            } else if let Some(start) = u64::checked_sub(place, unkept) {
                lane.sent.copy_range(start as usize, wire_len as usize, &mut bytes);
            }
            self.bufs.charge(bytes.capacity() - before);
            in_flight_here.push((at, bytes));
            (at, place) = (next_in_lane, place + wire_len);
        }
        let mut reads = VecDeque::new();
        // Who has asked for something behind that may have run and is no read.
        let mut others: Vec<ClientId> = Vec::new();
        for (request, bytes) in in_flight_here.into_iter().rev() {
            let client = self.waiting_client(request);
            if !is_read(protocol, &bytes) {
                others.push(client);
            } else if !others.contains(&client) && self.may_repeat_read(request, client) {
                let asker = self.asker_of(request);
                reads.push_front(RefusedRequest { request, asker, bytes, reply: Vec::new() });
                continue;
            }
            self.bufs.give(bytes);
        }
        // The first come first.
        let (now, workers) = (self.now, self.workers);
        let state = &mut self.backends[backend];
        let Some(budget) = &mut state.retries else { return reads };
        let paid = reads.iter().take_while(|_| budget.spend(workers, now)).count();
        let denied = reads.split_off(paid);
        self.metrics.add_pool(state.metrics, PoolCounter::RetriesDenied, denied.len() as u64);
        denied.into_iter().for_each(|it| self.bufs.give(it.bytes));
        reads
    }

    fn may_repeat_read(&self, index: RequestId, client: ClientId) -> bool {
        let request = &self.requests[index];
        let is_whole = match request.role {
            Role::Single => true,
            Role::Fragment { parent, .. } => {
                matches!(self.requests[parent].role, Role::Parent { .. })
            }
            Role::Parent { .. } | Role::Flow { .. } | Role::Probe { .. } | Role::Own(_) => false,
        };
        is_whole
            && client != ClientId::NONE
            && !request.is_retried
            && !request.has_begun()
            && !request.streaming
    }

    /// A read in flight is sent again: it stands with what was refused.
    #[cold]
    pub(crate) fn repeat_read(
        &mut self,
        index: LaneId,
        why: Failure,
        read: Option<RefusedRequest>,
    ) {
        let Some(read) = read else { return };
        self.forget_key(index, read.request);
        let request = &mut self.requests[read.request];
        request.is_retried = true;
        // From here on it is a request of its own.
        request.wire_len = read.bytes.len() as u64;
        if request.expect.is_coalesced() {
            request.expect = Expect::Values;
        }
        self.lanes[index].keep_refused(why, read);
    }
}
