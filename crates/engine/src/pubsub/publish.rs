//! PUBLISH, and how many have heard.
//!
//! A server counts a worker as one subscriber, by whichever of its topics. Here it is known how many
//! clients that stands for, and so what the server would have said with each of them connected to
//! it. Other workers' clients are not known: each of these workers counts as one, and the number is
//! the least that can be.

use cashew_protocol::memcached::Expect;
use cashew_protocol::redis::{Access, Command, glob_matches};
use cashew_protocol::resp::{self, Reply, encode};
use cashew_protocol::Span;

use crate::clients::Plan;
use crate::engine::Engine;
use crate::pubsub::topics::{Kind, Standing};
use crate::request::Role;

impl Engine {
    /// The server that a channel belongs to. It publishes what is published there.
    pub(crate) fn channel_server(&mut self, pool: u32, channel: &[u8]) -> Option<u32> {
        self.route(pool, channel, Access::None)
    }

    pub(crate) fn publish(
        &mut self,
        client: u32,
        command: &Command,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        let channel = args[1].of(bytes);
        let kind = if command.name == "spublish" { Kind::Shard } else { Kind::Channel };
        let pool = self.clients[client].pool;
        let server = self.channel_server(pool, channel);
        let plan = self.forward_to(client, server, Expect::Line, bytes.len());
        if let (Plan::Forward { request, .. }, Some(server)) = (&plan, server) {
            let correction = self.correction(pool, server, kind, channel);
            if correction != 0 {
                self.requests[*request].role = Role::Publish { correction };
            }
        }
        plan
    }

    /// What is to be added to the number of those who heard, as the server counts them.
    fn correction(&self, pool: u32, server: u32, kind: Kind, channel: &[u8]) -> i32 {
        let topics = &self.pools[pool as usize].pubsub.topics;
        if topics.len() == 0 {
            return 0;
        }
        let correction = |topic: u32| {
            let topic = topics.get(topic);
            let is_here = topic.places.iter().any(|place| {
                place.is_at(server, false) && place.standing == Standing::Subscribed
            });
            let heard = if is_here { topic.subscribers.len() as i32 } else { 0 };
            heard - i32::from(is_here)
        };
        let mut sum = topics.find(kind, channel).map_or(0, correction);
        if kind == Kind::Channel {
            for topic in topics.patterns() {
                if glob_matches(&topics.get(topic).name, channel) {
                    sum += correction(topic);
                }
            }
        }
        sum
    }
}

/// The reply to PUBLISH with another number.
pub(crate) fn correct(reply: &mut Vec<u8>, correction: i32) {
    if let Some(Reply::Integer(heard)) = resp::reply(reply) {
        reply.clear();
        encode::write_integer(reply, (heard + i64::from(correction)).max(0));
    }
}
