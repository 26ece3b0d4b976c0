//! Attempts to connect to a server whose last connection failed.
//!
//! Each lane backs off, up to a second. A request does not wait for the end of that: if nobody has tried
//! the server for a moment it begins an attempt, and waits for it together with all that come meanwhile.
//! So does, without a request, what wants the server all the time: a feed with topics, and the lane that
//! asks a silent server. Such an *early* attempt that fails changes nothing: it is no further failure for
//! ejection, and the backoff ends when it would have ended.
//!
//! Workers see each other's attempts in the memory that they share. So all lanes of all workers try a
//! failing server about as often as one would, and all go there when one has reached it.
//!
//! # Requests that wait
//!
//! What was not sent did surely not run. So where `failover_wait` lets it, it does not fail with the
//! connection: it stays in its lane, in its order, until the server is back or another has taken its place
//! (see `engine/hold.rs`), and counts against the lane's limits. So do requests that come meanwhile. Each fails
//! when it has waited for so long in all, with the reason for which the server could not be reached last. Only
//! lanes that clients share have requests that wait.

use cashew_metrics::{Cause, Evidence, PoolCounter};
use cashew_protocol::redis::{self, Access, Group, Lookup};
use cashew_protocol::resp::{Parsed, RequestParser};

use crate::base::action::Action;
use crate::base::buffer::{LARGE, Output};
use crate::base::failure::Failure;
use crate::base::id::{BackendId, ClientId, LaneId, RequestId, ServerId};
use crate::base::outcome::{Execution, Outcome, Refusal, Sign};
use crate::base::time::Time;
use crate::engine::{Closed, Engine};
use crate::request::{Request, Role};
use crate::upstream::lane::{Lane, Link};
use crate::upstream::refused::{Refused, RefusedRequest};

/// A request tries the server again if the last attempt is older than this.
const PACE_MS: u64 = 25;
/// What wants the server all the time looks so often whether it may try: half of it to all.
const POLL_MS: u64 = 40;
/// The same as [`PACE_MS`] for a silent server, where an attempt lasts until it is given up.
const SILENT_PACE_MS: u64 = 250;
/// So seldom at most it is told that a server refuses writes as a replica does.
const TELL_AGAIN_MS: u64 = 100;
/// The memory that workers share is looked at so seldom at most for one server.
const LOOK_MS: u64 = 1;

impl Failure {
    /// Whether the next attempt may end differently at any moment. A password that was refused, a name
    /// without an address or a lack of files will hardly be put right while a request waits.
    fn may_pass_soon(self) -> bool {
        matches!(
            self,
            Self::Refused
                | Self::Reset
                | Self::Closed
                | Self::TimedOut
                | Self::Unreachable
                | Self::Busy
                | Self::Loading
                | Self::MasterDown
                | Self::ReadOnly
        )
    }
}

impl Engine {
    /// Whether requests wait on this lane while its server cannot be reached.
    pub(crate) fn may_wait(&self, index: LaneId) -> bool {
        let lane = self.lane(index);
        let backend = &self.backends[lane.backend];
        backend.failover_wait_us > 0
            && lane.is_shared()
            && !backend.servers[lane.server].ejected
            && Outcome::of(lane.last_failure, false).is_worth_waiting()
    }

    /// When the first of those that wait has waited long enough.
    pub(crate) fn wait_expiry(&self, index: LaneId) -> Option<Time> {
        let lane = self.lane(index);
        let wait_us = self.backends[lane.backend].failover_wait_us;
        (lane.unsent > 0 && lane.in_flight == 0)
            .then(|| self.requests[lane.first_unsent].started.plus_micros(wait_us))
    }

    /// Fails those that have waited long enough.
    pub(crate) fn expire_waiting(&mut self, index: LaneId) {
        let why = self.lane(index).absence();
        while self.wait_expiry(index).is_some_and(|expiry| expiry <= self.now) {
            self.fail_first_unsent(index, why);
        }
        self.publish_queues(index);
    }

    /// A request is about to wait on a lane that has no connection, and its next attempt is due soon; or
    /// that may not be.
    #[cold]
    pub(crate) fn wait_or(&mut self, index: LaneId, why: Failure) -> Result<(), Failure> {
        if !self.may_wait(index) {
            return Err(why);
        }
        if let Link::Idle | Link::Backoff { .. } = self.lane(index).link
            && self.lane(index).unsent == 0
        {
            self.await_attempt_with(index, true);
        }
        Ok(())
    }

    /// Has a lane connected, for a request that is to wait for it there. An error if its server could not
    /// be reached a moment ago.
    pub(crate) fn reach(&mut self, index: LaneId) -> Result<(), Failure> {
        let Lane { link, attempts, asks, .. } = self.lanes[index];
        match link {
            Link::Ready { .. } => {}
            Link::Connecting { .. } | Link::Handshaking { .. } => {
                // It was begun for nobody, who had time.
                let server = self.server_of(index);
                let is_trial = server.failing && !server.ejected && attempts > 0;
                if is_trial && !asks && self.lane(index).is_shared() {
                    self.ask_for_sign(index);
                }
            }
            Link::Idle if attempts == 0 => self.connect(index),
            Link::Idle => self.try_again(index),
            Link::Backoff { .. } if self.may_try(index) => self.try_again(index),
            Link::Backoff { .. } => return Err(self.lane(index).absence()),
        }
        Ok(())
    }

    /// Whether the lane's server may be tried before the lane's backoff is over.
    pub(crate) fn may_try(&mut self, index: LaneId) -> bool {
        let now = self.now;
        let lane = &self.lanes[index];
        let server = &mut self.backends[lane.backend].servers[lane.server];
        let is_silent = server.is_silent();
        let is_soon = now < lane.tried_at.plus_millis(PACE_MS) || now < server.look_at;
        if is_soon || server.ejected || !(is_silent || lane.last_failure.may_pass_soon()) {
            return false;
        }
        if !server.failing && !is_silent {
            return true;
        }
        let attempts = self.metrics.attempts(server.metrics);
        let pace = if is_silent { SILENT_PACE_MS } else { PACE_MS };
        let due = Time::from_micros(attempts.tried_us).plus_millis(pace);
        let is_reached = Time::from_micros(attempts.reached_us) >= lane.failed_at;
        if is_reached || due <= now {
            return true;
        }
        server.look_at = due.min(now.plus_millis(LOOK_MS));
        false
    }

    /// Connects a lane whose last connection failed. A server that is still failing has little time to
    /// answer, as requests wait meanwhile: on a lane that clients share it is asked for a sign of life.
    pub(crate) fn try_again(&mut self, index: LaneId) {
        let lane = &mut self.lanes[index];
        lane.is_early = matches!(lane.link, Link::Backoff { .. }) && self.now < lane.due_at;
        let server = &self.backends[lane.backend].servers[lane.server];
        let is_trial = server.failing && !server.ejected;
        lane.asks |= is_trial && lane.is_shared();
        let deadline = is_trial.then(|| self.backends[lane.backend].first_sign(self.now));
        self.connect_until(index, deadline);
    }

    /// The lane waits for its next attempt: until its backoff is over, or less if it tries in between
    /// without a request.
    pub(crate) fn await_attempt(&mut self, index: LaneId) {
        let is_wanted = self.lane(index).unsent > 0 && self.may_wait(index);
        self.await_attempt_with(index, is_wanted);
    }

    /// The same, where requests wait for it or do not.
    pub(crate) fn await_attempt_with(&mut self, index: LaneId, is_wanted: bool) {
        let server = self.server_of(index);
        let is_asking = server.is_silent() && server.first_lane == index;
        let poll = self.now.plus_millis(self.rng.jitter(POLL_MS));
        let lane = &self.lanes[index];
        let is_polling =
            is_asking || is_wanted || (lane.is_feed && lane.last_failure.may_pass_soon());
        let mut until = if is_polling { lane.due_at.min(poll) } else { lane.due_at };
        if is_wanted {
            until = until.max(self.now.plus_millis(1));
        }
        if let Some(expiry) = self.wait_expiry(index).filter(|_| is_wanted) {
            until = until.min(expiry);
        }
        self.lanes[index].link = Link::Backoff { until };
        self.arm_lane(index, until);
    }

    /// A server that was failing has let itself be connected, or has answered: other workers go there,
    /// too, and so does its feed.
    pub(crate) fn note_reached(&mut self, backend: BackendId, server: ServerId) {
        let state = &self.backends[backend].servers[server];
        self.metrics.set_reached(state.metrics, self.now.as_micros());
        let Some(feed) = state.feed_lane() else { return };
        if matches!(self.lane(feed).link, Link::Backoff { .. }) && self.is_feed_wanted(feed) {
            self.try_again(feed);
        }
    }

    /// A whole reply to a lane's head, of which `end` are the last bytes. Returns whether the request was
    /// refused and is kept, to be sent again: see [`crate::upstream::refused`].
    #[inline]
    pub(crate) fn keeps_refused(&mut self, index: LaneId, end: &[u8]) -> bool {
        let lane = &self.lanes[index];
        let is_error = || {
            let start = self.requests[lane.head].reply.first().or(end.first());
            matches!(start, Some(b'-'))
        };
        self.backends[lane.backend].keeps_sent
            && (lane.refused.is_some() || is_error())
            && self.takes_refused(index, end)
    }

    #[cold]
    fn takes_refused(&mut self, index: LaneId, end: &[u8]) -> bool {
        let request = self.lane(index).head;
        let client = self.waiting_client(request);
        let is_behind = self.has_refused(index, client);
        let Some((why, bytes)) = self.may_repeat(index, end, is_behind) else {
            if is_behind {
                // This one has run.
                self.give_refused_up(index, client);
            }
            return false;
        };
        let mut reply = self.take_reply(request);
        self.bufs.extend(&mut reply, end);
        self.pop_answered(index);
        let slot = &mut self.requests[request];
        (slot.in_lane, slot.arrived) = (true, 0);
        let refused = RefusedRequest { request, bytes, reply };
        let lane = &mut self.lanes[index];
        match &mut lane.refused {
            Some(before) => before.requests.push(refused),
            None => lane.refused = Some(Box::new(Refused { why, requests: vec![refused] })),
        }
        true
    }

    /// Whether a lane's head may be sent again after this reply: why, and what was sent. `is_behind` is
    /// whether it stands behind a request of its client's that is to be sent again.
    fn may_repeat(
        &mut self,
        index: LaneId,
        end: &[u8],
        is_behind: bool,
    ) -> Option<(Failure, Vec<u8>)> {
        let lane = &mut self.lanes[index];
        let request = &self.requests[lane.head];
        let is_whole = match request.role {
            Role::Single => true,
            Role::Fragment { parent, .. } => {
                matches!(self.requests[parent].role, Role::Parent { .. })
            }
            Role::Parent { .. } | Role::Flow { .. } | Role::Probe { .. } | Role::Own(_) => false,
        };
        let is_short = request.reply.len() + end.len() < LARGE;
        if !is_whole || !is_short || request.streaming || !lane.is_shared() {
            return None;
        }
        if !lane.keeps_head(&mut self.bufs) {
            return None;
        }
        let why = self.refusal_worth_waiting(index, end).or_else(|| {
            let refused = self.lanes[index].refused.as_ref().filter(|_| is_behind)?;
            Some(refused.why)
        })?;
        let lane = &self.lanes[index];
        let wire_len = self.requests[lane.head].wire_len as usize;
        let mut bytes = self.bufs.take_for(wire_len);
        lane.sent.copy_front(wire_len, &mut bytes);
        let is_refused = self.refusal_worth_waiting(index, end).is_some();
        if !may_run_again(&bytes, is_refused) {
            self.bufs.give(bytes);
            return None;
        }
        Some((why, bytes))
    }

    /// The failure that a lane's head waits for the end of if it is answered so; or it goes to another
    /// server.
    fn refusal_worth_waiting(&self, index: LaneId, end: &[u8]) -> Option<Failure> {
        let lane = self.lane(index);
        let request = &self.requests[lane.head];
        let refusal = match request.reply.is_empty() {
            true => Refusal::of(end),
            false => Refusal::of(&[&request.reply, end].concat()),
        }?;
        let outcome = Outcome::from(refusal);
        let why = refusal.absence().filter(|_| outcome.execution == Execution::No)?;
        let backend = &self.backends[lane.backend];
        let is_primary = backend.topology.primary_of(lane.server) == lane.server;
        let waited_until = request.started.plus_micros(backend.failover_wait_us);
        let waits = waited_until > self.now && !backend.servers[lane.server].ejected;
        let moves = request.moves_left > 0;
        match outcome.sign {
            Sign::NotPrimary => waits && is_primary,
            _ => waits || moves,
        }
        .then_some(why)
    }

    fn has_refused(&self, index: LaneId, client: ClientId) -> bool {
        let refused = self.lane(index).refused.iter().flat_map(|refused| &refused.requests);
        client != ClientId::NONE
            && refused.into_iter().any(|it| self.waiting_client(it.request) == client)
    }

    /// Answers a client's refused requests with the server's errors: what it asked behind them has run, or
    /// may have.
    fn give_refused_up(&mut self, index: LaneId, client: ClientId) {
        let Some(mut refused) = self.lanes[index].refused.take() else { return };
        let is_given_up = |it: &mut RefusedRequest| self.waiting_client(it.request) == client;
        let given_up: Vec<RefusedRequest> = refused.requests.extract_if(.., is_given_up).collect();
        self.lanes[index].refused = Some(refused);
        given_up.into_iter().for_each(|it| self.answer_refused(it));
    }

    fn answer_refused(&mut self, refused: RefusedRequest) {
        let RefusedRequest { request, bytes, reply } = refused;
        self.bufs.give(bytes);
        self.requests[request].in_lane = false;
        self.deliver(request, &reply);
        self.bufs.give(reply);
    }

    /// The connection is lost on which so many requests are in flight, and nobody knows whether they ran:
    /// what their clients asked before them is not sent again.
    pub(crate) fn give_up_before(&mut self, index: LaneId, end: RequestId) {
        let mut at = self.lane(index).head;
        while at != end && self.lane(index).refused.is_some() {
            let client = self.waiting_client(at);
            if client != ClientId::NONE {
                self.give_refused_up(index, client);
            }
            at = self.requests[at].next_in_lane;
        }
    }

    /// Puts what was refused in front of what is not sent. Nothing is in flight.
    pub(crate) fn put_refused_back(&mut self, index: LaneId) {
        let Some(refused) = self.lanes[index].refused.take() else { return };
        let mut output = Output::default();
        let mut requests = Vec::with_capacity(refused.requests.len());
        for it in refused.requests {
            let Request { role, client, .. } = &self.requests[it.request];
            let is_wanted = match role {
                Role::Fragment { parent, .. } => self.requests[*parent].client != ClientId::NONE,
                _ => *client != ClientId::NONE,
            };
            if !is_wanted {
                self.answer_refused(it);
                continue;
            }
            output.push(&it.bytes, &mut self.bufs);
            self.bufs.give(it.bytes);
            self.bufs.give(it.reply);
            requests.push(it.request);
        }
        let metrics = self.backends[self.lane(index).backend].metrics;
        self.metrics.add_pool(metrics, PoolCounter::RequestsRetried, requests.len() as u64);
        let lane = &mut self.lanes[index];
        assert!(lane.in_flight == 0 && lane.partial == 0 && lane.head == lane.first_unsent);
        output.append(std::mem::take(&mut lane.output), &mut self.bufs);
        lane.output = output;
        for request in requests.into_iter().rev() {
            let slot = &mut self.requests[request];
            slot.next_in_lane = lane.head;
            if lane.tail == RequestId::NONE {
                lane.tail = request;
            }
            (lane.head, lane.first_unsent) = (request, request);
            lane.count_unsent(slot.wire_len);
        }
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
}

/// Whether a request that a server refused, or that has run behind such a one, may be sent once more. What a
/// script or a module was asked answers errors of its own making.
fn may_run_again(bytes: &[u8], is_refused: bool) -> bool {
    let mut parser = RequestParser::default();
    if !matches!(parser.parse(bytes, usize::MAX), Parsed::Complete { len } if len == bytes.len()) {
        return false;
    }
    match redis::find(bytes, parser.args()) {
        Lookup::Found(command) if command.is_sealed() || command.group == Group::Module => false,
        Lookup::Found(command) => is_refused || command.access == Access::Read,
        Lookup::WrongArity(_) | Lookup::UnknownCommand | Lookup::UnknownSubcommand(_) => false,
    }
}
