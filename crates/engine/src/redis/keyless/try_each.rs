//! RANDOMKEY: one server after the other, until one has a key, so that none is asked in vain as a
//! rule.

use cashew_protocol::resp::encode;

use super::merge::is_null;
use crate::base::id::{ClientId, RequestId, ServerId};
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::exchange::flow::{Attempts, Flow, FlowContext, Step, Target, Text};
use crate::request::replay::Replay;

/// A request that servers get one after the other.
#[derive(Debug)]
struct TryEach {
    next: u32,
    /// How many servers are to be asked yet.
    left: u32,
}

impl TryEach {
    /// The next primary on the ring, if one is left.
    fn next(&mut self, engine: &Engine, client: ClientId) -> Option<ServerId> {
        let pool = &engine.backends[engine.backend_of(client)];
        while self.left > 0 {
            let server = ServerId::new(self.next % pool.servers.len() as u32);
            self.next = server.number() + 1;
            self.left -= 1;
            if pool.topology.is_head(server) {
                return Some(server);
            }
        }
        None
    }

    /// Asks the next server, or answers null.
    fn step(&mut self, engine: &mut Engine, client: ClientId) -> Step {
        match self.next(engine, client) {
            Some(server) => Step::Send(Attempts::one(Target::Server(server), Text::Replay)),
            None => {
                let version = engine.resp_of(client);
                Step::Reply(engine.written(0, |out| encode::write_null(out, version)))
            }
        }
    }
}

impl Flow for TryEach {
    fn on_reply(&mut self, cx: &mut FlowContext<'_>, _attempt: RequestId, reply: &[u8]) -> Step {
        match is_null(reply) {
            true => self.step(cx.engine, cx.client()),
            false => Step::Answer,
        }
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }
}

impl Engine {
    pub(super) fn random_key(&mut self, client: ClientId, text: &[u8]) -> Plan {
        let servers = self.backends[self.backend_of(client)].servers.len() as u32;
        let mut flow = TryEach { next: self.rng.next() as u32 % servers, left: servers };
        let replay = Replay::new(text, &mut self.bufs);
        // What follows must not overtake it.
        self.clients[client].fenced = true;
        let step = flow.step(self, client);
        let request = self.new_request(client);
        self.begin_flow(request, Box::new(flow), Some(replay), step);
        Plan::Done
    }
}
