//! What is known of a server, and what is asked of it without a request: whether an ejected one is well
//! again, and how those are that nobody uses.
//!
//! The state of a server is one for all workers; it follows from what each has seen by the rule of
//! [`Evidence`]. Whoever makes a change tells the log.

use cashew_metrics::{Cause, Evidence, Health, ServerGauge};
use cashew_protocol::memcached::binary::Opcode;

use crate::base::action::Action;
use crate::base::failure::Failure;
use crate::base::id::{BackendId, ClientId, LaneId, ServerId};
use crate::base::time::Time;
use crate::base::timers::Timer;
use crate::engine::Engine;
use crate::exchange::dispatch::Payload;
use crate::request::{Asked, Role};
use crate::upstream::lane::Link;
use crate::upstream::liveness::question;

/// How long a question may be unanswered before the server counts as suspect, and how long a connection
/// has to have carried replies after another one failed.
const ANSWER_US: u64 = 1_000_000;

impl Engine {
    /// Asks an ejected server whether it is well; asks again later if it is not.
    pub(crate) fn probe(&mut self, backend_id: BackendId, server_index: ServerId) {
        let backend = &self.backends[backend_id];
        let server = &backend.servers[server_index];
        if !server.ejected {
            return;
        }
        let lane = server.first_lane;
        self.arm_probe(backend_id, server_index);
        let link = self.lanes[lane].link;
        let is_waiting = matches!(link, Link::Connecting { .. } | Link::Handshaking { .. });
        let is_asked = self.lanes[lane].unsent + self.lanes[lane].in_flight > 0;
        if is_waiting || is_asked {
            return;
        }
        if matches!(link, Link::Idle | Link::Backoff { .. }) {
            self.connect(lane);
        }
        self.question_server(backend_id, server_index);
    }

    pub(crate) fn arm_probe(&mut self, backend_id: BackendId, server_index: ServerId) {
        let backend = &mut self.backends[backend_id];
        let at = self.now.plus_millis(self.rng.jitter(backend.retry_ms).max(1));
        backend.servers[server_index].probe_at = at;
        self.timers.arm(at, Timer::Probe { backend: backend_id, server: server_index });
    }

    /// The reply to a probe.
    pub(crate) fn probed(&mut self, lane_pool: BackendId, lane_server: ServerId, reply: &[u8]) {
        let backend = &self.backends[lane_pool];
        let is_ejected = backend.is_in_use() && backend.servers[lane_server].ejected;
        let is_well =
            [&b"+"[..], b"VERSION", b"\x81\x0b"].iter().any(|start| reply.starts_with(start));
        if backend.is_in_use() && !is_ejected {
            let is_loading = reply.starts_with(b"-LOADING") || reply.starts_with(b"-MASTERDOWN");
            let evidence =
                if is_loading { Evidence::Failed(Cause::Loading) } else { Evidence::Answered };
            self.note_evidence(lane_pool, lane_server, evidence);
        }
        // Every time: it may be too early yet for this one to come back.
        if is_well && is_ejected {
            self.actions.push_back(Action::Readmit { backend: lane_pool, server: lane_server });
        }
    }

    pub(crate) fn note_evidence(
        &mut self,
        backend: BackendId,
        server: ServerId,
        evidence: Evidence,
    ) {
        let is_reported = self.backends[backend].fails_open && evidence == Evidence::Answered;
        let state = &mut self.backends[backend].servers[server];
        state.is_in_doubt = evidence != Evidence::Answered;
        if is_reported && !state.ejected {
            self.actions.push_back(Action::Readmit { backend, server });
        }
        if let Some(change) = self.metrics.note(state.metrics, evidence, self.now.as_micros()) {
            self.actions.push_back(Action::ServerState { backend, server, change });
        }
    }

    /// A connection ended, or did not come about, for which that server may be to blame.
    pub(crate) fn note_end(&mut self, index: LaneId, link: Link, failure: Failure) {
        let cause = Cause::from(failure);
        let evidence = match (link, failure) {
            _ if failure.is_local() => Evidence::Hindered,
            (Link::Ready { .. }, _) => Evidence::Failed(cause),
            // As good as not connected, and nothing that passes by itself.
            (Link::Handshaking { .. }, Failure::HandshakeRefused) => Evidence::Unreachable(cause),
            (Link::Handshaking { .. }, _) => Evidence::Failed(cause),
            _ => Evidence::Unreachable(cause),
        };
        let (backend, server) = (self.lanes[index].backend, self.lanes[index].server);
        self.note_evidence(backend, server, evidence);
    }

    /// Replies have come from a server of which that is news.
    #[cold]
    pub(crate) fn note_answered(&mut self, index: LaneId) {
        let (backend, server) = (self.lanes[index].backend, self.lanes[index].server);
        self.note_evidence(backend, server, Evidence::Answered);
    }

    /// Looks after servers that nobody uses, so that their states are true without requests: connects to
    /// those that no worker is connected to, and asks those that have said nothing for a while. Of all
    /// workers one does so, once in the pool's `server_check_interval`. No request is concerned.
    pub fn check_servers(&mut self, now: Time) {
        self.now = now;
        if self.draining {
            return;
        }
        for backend in self.backends.ids().take(self.backends_in_use) {
            let state = &self.backends[backend];
            let interval_us = state.config.server_check_interval_ms.saturating_mul(1000);
            if interval_us == 0 || state.is_held() {
                continue;
            }
            for server in state.servers.ids() {
                self.check_server(backend, server, interval_us);
            }
        }
    }

    fn check_server(&mut self, backend: BackendId, index: ServerId, interval_us: u64) {
        let server = &self.backends[backend].servers[index];
        // An ejected one is probed, and a silent one asked all the time.
        if server.ejected || server.is_silent() || server.first_lane == LaneId::NONE {
            return;
        }
        let (now_us, metrics, lane) = (self.now.as_micros(), server.metrics, server.first_lane);
        match self.lanes[lane].link {
            Link::Ready { .. } => self.check_connected(backend, index, interval_us),
            Link::Idle
                if server.connections == 0
                    && self.metrics.sum_server_gauge(metrics, ServerGauge::ServerConnections)
                        == 0
                    && self.metrics.claim_check(metrics, now_us, interval_us) =>
            {
                self.try_again(lane);
            }
            // What failed is tried again anyway.
            Link::Idle
            | Link::Connecting { .. }
            | Link::Handshaking { .. }
            | Link::Backoff { .. } => {}
        }
    }

    fn check_connected(&mut self, backend: BackendId, index: ServerId, interval_us: u64) {
        let now_us = self.now.as_micros();
        let server = &self.backends[backend].servers[index];
        let metrics = server.metrics;
        let lane = &self.lanes[server.first_lane];
        let heard_us = server.heard_at.as_micros();
        let is_unanswered = server.heard_at <= server.asked_at;
        if server.asked_at != Time::ZERO && is_unanswered {
            if now_us >= server.asked_at.as_micros() + ANSWER_US {
                self.note_evidence(backend, index, Evidence::Failed(Cause::Silent));
            }
            return;
        }
        let state = self.metrics.server_state(metrics);
        if matches!(state.health, Health::Suspect | Health::Trial | Health::Untried) {
            let failed_ms = self.metrics.last_error(metrics).map_or(0, |error| error.at_ms);
            let good_us = match state.health {
                Health::Suspect => failed_ms.max(state.since_ms) * 1000 + ANSWER_US,
                _ => state.since_ms * 1000,
            };
            if heard_us > good_us {
                self.note_evidence(backend, index, Evidence::Answered);
                return;
            }
        }
        let is_quiet = heard_us.saturating_add(interval_us) <= now_us || !state.health.is_up();
        let is_known = state.health == Health::Well && !is_quiet;
        if is_known || !lane.is_free() || !self.metrics.claim_check(metrics, now_us, interval_us) {
            return;
        }
        self.question_server(backend, index);
    }

    /// A question of no client's. It counts as no request, neither of the server nor in any latency.
    fn question_server(&mut self, backend: BackendId, index: ServerId) {
        let state = &mut self.backends[backend];
        let (text, expect) = question(state.params_set[0].wire_protocol);
        let server = &mut state.servers[index];
        server.asked_at = self.now;
        server.is_in_doubt = true;
        let lane = server.first_lane;
        let (request, _) = self.requests.add(backend, ClientId::NONE, self.now);
        self.requests[request].role = Role::Probe { server: index };
        self.requests[request].expect = expect;
        self.requests[request].asked = Asked { opcode: Opcode::Version.byte(), ..Asked::default() };
        self.send(lane, request, Payload::Bytes(text));
        let lane = &mut self.lanes[lane];
        lane.uncounted -= 1;
        lane.uncounted_size -= text.len() as u64;
    }
}
