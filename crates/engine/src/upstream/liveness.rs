//! Servers that accept connections, perhaps, and answer nothing.
//!
//! After a request has waited for `timeout` in vain its lane's next connection asks the server for a
//! sign of life before anything else. If that does not come either, and nothing else has meanwhile,
//! the server is *silent*: what is for it fails at once. Its first lane goes on asking, and the
//! first answer, whatever it says, ends that. Each worker sees for itself.
//!
//! Lanes for sessions, messages and large values neither ask nor are closed for it; while the server
//! is silent none is taken.

use cashew_config::snapshot::Protocol;
use cashew_metrics::{Evidence, ServerGauge};
use cashew_protocol::memcached::{Answer, Expect};

use crate::base::failure::Failure;
use crate::base::id::{BackendId, LaneId, ServerId};
use crate::base::outcome::Refusal;
use crate::base::time::Time;
use crate::engine::{Closed, Engine};
use crate::upstream::backend::Backend;
use crate::upstream::lane::{Lane, Link};
use crate::upstream::server::Server;
use crate::upstream::session_params::WireProtocol;

/// So long at most the first sign of life is waited for. Requests wait meanwhile.
const FIRST_SIGN_MAX_MS: u64 = 250;
/// So long at most a connection waits for each further one: then another one may get through where that
/// one did not.
const SIGN_MAX_MS: u64 = 1000;
/// So long at most a connection to a silent server is waited for, if it took no more than a quarter of
/// that the last time. The kernel repeats what got lost only after a second.
const DIAL_MS: u64 = 250;
/// A packet that asks for the version.
const BINARY_VERSION: [u8; 24] = {
    let mut packet = [0; 24];
    packet[0] = 0x80;
    packet[1] = 0x0b;
    packet
};

/// What every server answers soon if it answers at all.
pub(crate) fn question(wire_protocol: WireProtocol) -> (&'static [u8], Expect) {
    match wire_protocol {
        WireProtocol::Resp2 | WireProtocol::Resp3 => (b"*1\r\n$4\r\nPING\r\n", Expect::Line),
        WireProtocol::Text => (b"version\r\n", Expect::Answer(Answer::Version)),
        WireProtocol::Binary => (&BINARY_VERSION, Expect::Packet),
    }
}

/// Asks a server of Redis what it is.
const ROLE: &[u8] = b"*1\r\n$4\r\nROLE\r\n";

/// What a server answers when it is asked whether it is there.
pub(crate) enum Sign {
    Fit,
    /// It is there, and refuses to serve.
    Unfit(Failure),
    /// This is no answer.
    Misfit,
}

impl Lane {
    /// Why nothing can be sent on it between two attempts to connect.
    pub(crate) fn absence(&self) -> Failure {
        if self.asks && self.last_failure == Failure::TimedOut {
            return Failure::Silent;
        }
        self.last_failure
    }

    /// Whether clients share it for requests.
    pub(crate) fn is_shared(&self) -> bool {
        !self.is_private && !self.is_feed
    }
}

impl Server {
    #[inline]
    pub(crate) fn is_silent(&self) -> bool {
        self.silent_since != Time::NEVER
    }
}

impl Backend {
    /// Whether a lane's server is of use only if it is a primary: it refused writes as a replica, and is still
    /// taken for the primary.
    fn must_be_primary(&self, lane: &Lane) -> bool {
        self.repeats_refused
            && lane.last_failure == Failure::ReadOnly
            && self.topology.primary_of(lane.server) == lane.server
    }

    /// What a lane asks its server first.
    pub(crate) fn question_of(&self, lane: &Lane) -> &'static [u8] {
        match self.must_be_primary(lane) {
            true => ROLE,
            false => question(self.params_set[usize::from(lane.variant)].wire_protocol).0,
        }
    }

    /// What follows from the answer to that.
    pub(crate) fn sign_in(&self, lane: &Lane, reply: &[u8]) -> Sign {
        if self.protocol != Protocol::Redis {
            return Sign::Fit;
        }
        let refusal = Refusal::of(reply)
            .filter(|_| self.repeats_refused)
            .and_then(|it| it.absence(self.topology.has_slots()));
        match (reply.first(), refusal) {
            (_, Some(why)) => Sign::Unfit(why),
            (Some(b'*'), _) if self.must_be_primary(lane) => {
                let is_replica = reply.starts_with(b"*5\r\n$5\r\nslave\r\n");
                if is_replica { Sign::Unfit(Failure::ReadOnly) } else { Sign::Fit }
            }
            (Some(b'+' | b'-'), _) => Sign::Fit,
            _ => Sign::Misfit,
        }
    }

    /// Until when a connection that is begun now has to have brought the first sign of life, while
    /// requests wait.
    pub(crate) fn first_sign(&self, now: Time) -> Time {
        let max = self.config.timeout_ms.map_or(u64::MAX, |timeout| timeout.div_ceil(4));
        self.connect_deadline(now).min(now.plus_millis(max.min(FIRST_SIGN_MAX_MS)))
    }

    /// Until when a connection to a silent server that is begun now has to stand. As long as it is not
    /// known how long that takes, each one gets more time than the one before.
    pub(crate) fn dial_deadline(&self, server: &Server, attempts: u32, now: Time) -> Time {
        let span = match server.connect_us {
            0 => DIAL_MS << attempts.min(2),
            last_us => DIAL_MS.max(last_us / 250),
        };
        self.connect_deadline(now).min(now.plus_millis(span.min(SIGN_MAX_MS)))
    }

    /// Until when a connection to a silent server that stands now has to bring its answer.
    pub(crate) fn sign_deadline(&self, now: Time) -> Time {
        self.connect_deadline(now).min(now.plus_millis(SIGN_MAX_MS))
    }
}

impl Engine {
    /// A reply on the lane is overdue, or an answer to its handshake.
    pub(crate) fn suspect(&mut self, index: LaneId) {
        let lane = &mut self.lanes[index];
        if lane.is_shared() {
            lane.asks = true;
            return;
        }
        let Lane { backend, server, is_feed, .. } = *lane;
        let server = &self.backends[backend].servers[server];
        if is_feed || server.is_silent() || server.ejected {
            return;
        }
        // What a client has a lane to itself for says little of others: one of these is to find out.
        let first = server.first_lane;
        match self.lane(first).link {
            // What is on its way there finds out.
            Link::Ready { .. } if !self.lane(first).is_free() => {}
            Link::Connecting { .. } | Link::Handshaking { .. } if self.lane(first).asks => {}
            Link::Ready { .. } | Link::Connecting { .. } | Link::Handshaking { .. } => {
                self.ask_for_sign(first);
            }
            Link::Idle | Link::Backoff { .. } => {
                self.lanes[first].asks = true;
                self.connect(first);
            }
        }
    }

    /// Asks on a connection on which nothing is on its way, or which is being made.
    pub(crate) fn ask_for_sign(&mut self, index: LaneId) {
        let lane = &mut self.lanes[index];
        let backend = &self.backends[lane.backend];
        let mut deadline = backend.first_sign(self.now);
        let text = backend.question_of(lane);
        (lane.asks, lane.tried_at) = (true, self.now);
        lane.link = match lane.link {
            // The question is said when it stands.
            Link::Connecting { deadline: before } => {
                Link::Connecting { deadline: deadline.min(before) }
            }
            Link::Handshaking { deadline: before } => {
                deadline = deadline.min(before);
                lane.handshake.replies_owed += 1;
                lane.handshake.output.push(text, &mut self.bufs);
                Link::Handshaking { deadline }
            }
            Link::Idle | Link::Backoff { .. } | Link::Ready { .. } => {
                (lane.handshake.replies_owed, lane.handshake.greetings) = (1, 0);
                lane.handshake.output.push(text, &mut self.bufs);
                Link::Handshaking { deadline }
            }
        };
        self.mark_lane(index);
        self.rearm(index);
    }

    /// Whether a lane that is being connected shows that its server is silent: it has brought no sign
    /// of life in time, or no connection for a request for as long as that may wait.
    pub(crate) fn shows_silence(&self, index: LaneId, deadline: Time) -> bool {
        let lane = self.lane(index);
        let server = &self.backends[lane.backend].servers[lane.server];
        if !lane.is_shared() || server.is_silent() || server.ejected {
            return false;
        }
        let is_unanswered = lane.asks && deadline <= self.now;
        if is_unanswered && server.heard_at < lane.tried_at {
            return true;
        }
        let is_overdue = self.first_unsent_expiry(index).is_some_and(|expiry| expiry <= self.now);
        is_overdue && server.heard_at < self.requests[lane.first_unsent].started
    }

    /// All that waits for the server fails, and nothing is sent there until it answers.
    pub(crate) fn fall_silent(&mut self, backend: BackendId, server: ServerId) {
        let now = self.now;
        let state = &mut self.backends[backend].servers[server];
        state.silent_since = now;
        let (first, metrics) = (state.first_lane, state.metrics);
        let own: Vec<LaneId> = state.own_lanes().collect();
        self.metrics.set_server(metrics, ServerGauge::Silent, 1);
        self.note_evidence(backend, server, Evidence::Silent);
        for lane in own {
            if self.lane(lane).has_connection() {
                self.lane_down(lane, Failure::TimedOut, Closed::ByUs);
            }
        }
        // What is asked there is not waited for as long any more.
        let state = &self.backends[backend].servers[server];
        let feeds = [state.feed_lane(), state.tracker_lane()];
        for feed in feeds.into_iter().flatten() {
            self.rearm(feed);
        }
        // Who waits for a lane of its own looks again.
        self.dissolve_line(backend, server);
        let state = &mut self.backends[backend].servers[server];
        let waiting = std::mem::take(&mut state.waiting);
        let reading = std::mem::take(&mut state.reading);
        self.unblock_all(waiting);
        self.unblock_all(reading);
        if self.lane(first).link == Link::Idle {
            self.connect(first);
        }
    }

    /// A connection that asks ends. Where that is an answer of a kind the server only fails, as
    /// others do; perhaps it is the question that it does not like.
    pub(crate) fn hear_failure(&mut self, index: LaneId, failure: Failure) {
        let Lane { backend, server, asks, .. } = self.lanes[index];
        if !asks || !failure.is_sign_of_life() {
            return;
        }
        self.lanes[index].asks = false;
        if self.backends[backend].servers[server].is_silent() {
            self.end_silence(backend, server);
        }
    }

    /// A shared lane of a silent server has lost its connection: what has waited there fails. Only
    /// the first lane tries again; of an ejected server that is the probe's affair.
    pub(crate) fn down_in_silence(&mut self, index: LaneId, is_early: bool) {
        self.expire_unsent(index);
        match self.may_wait(index) {
            true => self.expire_waiting(index),
            false => self.fail_unsent(index, Failure::Silent),
        }
        let server = self.server_of(index);
        let asks = index == server.first_lane && !server.ejected;
        self.lanes[index].asks = false;
        if asks {
            // For ejection each question counts as much as one that waits for its whole time.
            let wait = self.backends[self.lane(index).backend].sign_deadline(self.now);
            self.back_off(index, wait, is_early);
        } else if self.lane(index).unsent > 0 {
            self.await_attempt(index);
        }
    }

    /// The server has answered, or another worker found it well.
    pub(crate) fn end_silence(&mut self, backend: BackendId, server: ServerId) {
        let state = &mut self.backends[backend].servers[server];
        state.silent_since = Time::NEVER;
        state.failing = false;
        state.trial.begin(self.now);
        let metrics = state.metrics;
        self.metrics.set_server(metrics, ServerGauge::Silent, 0);
        let state = &self.backends[backend];
        let is_preconnected = state.preconnect;
        let state = &state.servers[server];
        let mut shared = state.shared_lanes();
        let lanes: Vec<LaneId> = state.all_lanes().collect();
        for index in lanes {
            let is_feed_wanted = self.lane(index).is_feed && self.is_feed_wanted(index);
            let lane = &mut self.lanes[index];
            lane.attempts = 0;
            let is_kept = is_feed_wanted || (is_preconnected && shared.any(|lane| lane == index));
            match lane.link {
                Link::Idle if is_kept => self.connect(index),
                Link::Backoff { .. } if is_kept || lane.unsent > 0 => self.connect(index),
                Link::Backoff { .. } => lane.link = Link::Idle,
                Link::Idle | Link::Connecting { .. } | Link::Handshaking { .. } => {}
                Link::Ready { .. } => {}
            }
        }
    }
}
