//! Whether an ejected server is well again.

use cashew_protocol::memcached::binary::Opcode;

use crate::base::action::Action;
use crate::base::id::{BackendId, ClientId, ServerId};
use crate::base::timers::Timer;
use crate::engine::Engine;
use crate::exchange::dispatch::Payload;
use crate::memcached::Asked;
use crate::request::Role;
use crate::upstream::lane::Link;
use crate::upstream::liveness::question;

impl Engine {
    /// Asks an ejected server whether it is well; asks again later if it is not.
    pub(crate) fn probe(&mut self, backend_id: BackendId, server_index: ServerId) {
        let backend = &self.backends[backend_id];
        let server = &backend.servers[server_index];
        if !server.ejected {
            return;
        }
        let lane = server.first_lane;
        let (text, expect) = question(backend.params_set[0].wire_protocol);
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
        let (request, _) = self.requests.add(backend_id, ClientId::NONE, self.now);
        self.requests[request].role = Role::Probe { server: server_index };
        self.requests[request].expect = expect;
        self.requests[request].asked = Asked { opcode: Opcode::Version.byte(), ..Asked::default() };
        self.send(lane, request, Payload::Bytes(text));
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
        // Every time: it may be too early yet for this one to come back.
        if is_well && is_ejected {
            self.actions.push_back(Action::Readmit { backend: lane_pool, server: lane_server });
        }
    }
}
