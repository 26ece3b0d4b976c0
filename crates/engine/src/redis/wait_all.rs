//! WAIT and WAITAOF where a pool has several servers.
//!
//! They are asked one after the other, each for what is left of the time, on lanes of which the client
//! has one at a time: it could not wait for several without keeping others waiting. The answer is the
//! least that any of them says. Between two servers the request stands in front of the client's input
//! again, so that a change of the ring finds it at rest; what is known so far is kept here.

use cashew_protocol::Span;
use cashew_protocol::redis::{Command, Wait};
use cashew_protocol::resp::{self, Reply, encode};

use crate::base::failure::Failure;
use crate::base::id::{ClientId, ServerId};
use crate::base::time::Time;
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::redis::keyless::{self, Walk};
use crate::redis::tenant::Named;
use crate::upstream::exclusive::Lease;

/// A client's way from server to server.
pub(crate) struct WaitAll {
    /// Servers that are to be asked yet, the next one last.
    left: Vec<ServerId>,
    /// The least of what was said: one number, or the two of WAITAOF. Empty before the first reply.
    least: Vec<i64>,
    is_array: bool,
    until: Time,
    /// By which servers and which ring `left` is meant.
    walk: Walk,
    ring_version: u64,
}

impl Engine {
    /// Goes on to the next server, or answers.
    pub(crate) fn tour_redis(
        &mut self,
        client: ClientId,
        command: &'static Command,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        if self.clients[client].requests > 0 {
            return Plan::Wait;
        }
        if let Some(ending) = self.clients[client].modes.take_ending() {
            return self.reply_ended(client, command, ending);
        }
        let wait = command.wait(bytes, args);
        let wait_all =
            self.tours.remove(&client).filter(|wait_all| self.is_tour_valid(client, wait_all));
        let wait_all = wait_all.unwrap_or_else(|| self.new_wait_all(client, wait));
        let Some(&server) = wait_all.left.last() else {
            if wait_all.least.is_empty() {
                return self.fail(client, Failure::NoServer);
            }
            return self.reply_with(client, |out| wait_all.write_reply(out));
        };
        let lane = match self.leased(client, server) {
            Some(lane) => {
                self.align(client, lane);
                lane
            }
            None => match self.lease(client, server) {
                Lease::Lane(lane) => lane,
                other => {
                    if let Lease::InLine = other {
                        self.tours.insert(client, wait_all);
                    }
                    return self.without_lease(client, server, &other);
                }
            },
        };
        let millis = wait_all.until.micros_since(self.now).div_ceil(1000).max(1);
        let (wait, stop) = match wait {
            // The server will say what is wrong with it.
            Wait::No | Wait::AtMost { millis: 0 } => (wait, bytes.to_vec()),
            Wait::ForEver => (wait, bytes.to_vec()),
            Wait::AtMost { .. } => {
                let mut words: Vec<&[u8]> = args.iter().map(|arg| arg.of(bytes)).collect();
                let millis_text = millis.to_string();
                words.pop();
                words.push(millis_text.as_bytes());
                let mut stop = Vec::new();
                encode::write_command(&mut stop, &words);
                (Wait::AtMost { millis }, stop)
            }
        };
        self.catch_up(lane);
        self.block_on(client, lane, (wait, command, Named::Nowhere), bytes, &stop);
        if self.leased(client, server).is_none() {
            // Until it is answered nobody else gets the lane.
            self.release(lane);
        }
        self.tours.insert(client, wait_all);
        Plan::Done
    }

    fn is_tour_valid(&self, client: ClientId, wait_all: &WaitAll) -> bool {
        let backend = self.backend_of(client);
        self.redis_backends[backend].walk == wait_all.walk
            && self.backends[backend].ring_version == wait_all.ring_version
    }

    fn new_wait_all(&self, client: ClientId, wait: Wait) -> WaitAll {
        let backend_id = self.backend_of(client);
        let backend = &self.backends[backend_id];
        let until = match wait {
            Wait::AtMost { millis } => self.now.plus_millis(millis),
            Wait::ForEver | Wait::No => Time::NEVER,
        };
        let mut left = self.heads(backend_id);
        left.reverse();
        WaitAll {
            left,
            least: Vec::new(),
            is_array: false,
            until,
            walk: self.redis_backends[backend_id].walk,
            ring_version: backend.ring_version,
        }
    }

    /// No server is asked any more but the one where the client waits.
    pub(crate) fn shorten_wait_all(&mut self, client: ClientId) {
        if let Some(wait_all) = self.tours.get_mut(&client) {
            wait_all.left.drain(..wait_all.left.len().saturating_sub(1));
        }
    }

    /// Takes in what a server says; returns whether its client's tour goes on.
    pub(crate) fn end_stop(&mut self, client: ClientId, reply: &[u8]) -> bool {
        let Some(wait_all) = self.tours.get_mut(&client) else { return false };
        let is_taken = wait_all.take_in(reply);
        if !is_taken {
            self.tours.remove(&client);
        }
        is_taken
    }
}

impl WaitAll {
    /// `None` if it is an error, which is the answer then, or makes no sense.
    fn take_in(&mut self, reply: &[u8]) -> bool {
        let said = match resp::reply(reply) {
            Some(Reply::Integer(count)) => Some(vec![count]),
            _ => keyless::integers(reply),
        };
        let Some(said) = said.filter(|said| !said.is_empty()) else { return false };
        self.is_array = reply.starts_with(b"*");
        if self.least.is_empty() {
            self.least = said;
        } else {
            self.least.iter_mut().zip(said).for_each(|(least, said)| *least = said.min(*least));
        }
        self.left.pop();
        true
    }

    pub(crate) fn has_heard(&self) -> bool {
        !self.least.is_empty()
    }

    pub(crate) fn write_reply(&self, out: &mut Vec<u8>) {
        if self.is_array {
            encode::write_array_header(out, self.least.len());
        }
        self.least.iter().for_each(|&least| encode::write_integer(out, least));
    }
}
