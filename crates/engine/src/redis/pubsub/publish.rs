//! PUBLISH, and how many have heard.
//!
//! A server counts a worker as one subscriber, by whichever of its topics. Workers know how many
//! clients that stands for and tell each other, so that a client hears what the server would have said
//! with each of them connected to it. A worker tells of as many channels and patterns as there is
//! room for; beyond that it counts as one, and the number is the least that can be.
//!
//! A client that publishes does not count those who have left before: it waits until servers have
//! forgotten them, too. Who leaves while a message is on its way to its server may be counted or not: so
//! the number is the lesser one of when it was sent and when it was answered. Who is counted then gets
//! the message, since it has not yet asked for no more when the server has published it.

use cashew_protocol::Span;
use cashew_protocol::memcached::Expect;
use cashew_protocol::redis::{Access, Command, Fan, glob_matches};
use cashew_protocol::resp::{self, Reply, ReplyScanner, Scan, encode};

use crate::base::id::{BackendId, ClientId, RequestId, ServerId, TopicSlot};
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::exchange::flow::{Flow, FlowContext, Step};
use crate::redis::pubsub::topics::{Kind, Place, Standing};

/// A message that is published, and how many more hear it than its server counts.
#[derive(Debug)]
struct Published {
    server: ServerId,
    kind: Kind,
    channel: Box<[u8]>,
    more: i32,
}

/// What is to be added to the number of each channel's subscribers, in the order of the reply.
#[derive(Debug)]
struct Audiences(Box<[i32]>);

impl Flow for Published {
    fn on_reply(&mut self, cx: &mut FlowContext<'_>, _attempt: RequestId, reply: &[u8]) -> Step {
        let now = cx.engine.correction(cx.backend(), self.server, self.kind, &self.channel);
        corrected(cx, |out| correct(reply, now.min(self.more), out), reply.len())
    }
}

impl Flow for Audiences {
    fn on_reply(&mut self, cx: &mut FlowContext<'_>, _attempt: RequestId, reply: &[u8]) -> Step {
        corrected(cx, |out| correct_each(reply, &self.0, out), reply.len())
    }
}

/// The reply that a server gave, with the numbers that it should have. An error stays one.
fn corrected(
    cx: &mut FlowContext<'_>,
    correct: impl FnOnce(&mut Vec<u8>) -> Option<()>,
    len: usize,
) -> Step {
    let mut is_corrected = None;
    let out = cx.engine.written(len + 32, |out| is_corrected = correct(out));
    match is_corrected {
        Some(()) => Step::Reply(out),
        None => {
            cx.engine.bufs.give(out);
            Step::Answer
        }
    }
}

impl Engine {
    /// The server that a channel belongs to. It publishes what is published there.
    pub(crate) fn channel_server(
        &mut self,
        backend: BackendId,
        kind: Kind,
        channel: &[u8],
    ) -> Option<ServerId> {
        match kind {
            Kind::Channel | Kind::Pattern if self.backends[backend].topology.has_slots() => {
                self.classic_node(backend)
            }
            _ => self.route(backend, channel, Access::None),
        }
    }

    pub(crate) fn publish(
        &mut self,
        client: ClientId,
        command: &Command,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        let channel = args[1].of(bytes);
        let kind = if command.name == "spublish" { Kind::Shard } else { Kind::Channel };
        let backend = self.keyless_backend(client);
        let topics = &self.redis_backends[backend].pubsub.topics;
        if topics.has_draining(kind, channel) && self.must_wait_to_publish(client) {
            return Plan::Wait;
        }
        if kind == Kind::Channel {
            // It is held against every pattern, now and when it is answered.
            let topics = &self.redis_backends[backend].pubsub.topics;
            let patterns = topics.patterns().map(|topic| topics.get(topic).name.len());
            let looked_at: usize = patterns.map(|size| size + channel.len()).sum();
            self.spend(2 * looked_at);
        }
        self.leave_lost_node(backend);
        let server = self.channel_server(backend, kind, channel);
        let plan = self.forward_to(client, server, Expect::Line, bytes.len());
        if let (Plan::Forward { request, .. }, Some(server)) = (&plan, server) {
            let more = self.correction(backend, server, kind, channel);
            if more != 0 {
                let published = Published { server, kind, channel: channel.into(), more };
                self.watch_reply(*request, Box::new(published), None);
            }
        }
        plan
    }

    /// What is to be added to the number of those who heard, as the server counts them.
    fn correction(&self, backend: BackendId, server: ServerId, kind: Kind, channel: &[u8]) -> i32 {
        let pubsub = &self.redis_backends[backend].pubsub;
        let topics = &pubsub.topics;
        let correction = |topic: TopicSlot| {
            let topic = topics.get(topic);
            let is_here = topic
                .places
                .iter()
                .any(|place| place.is_at(server, false) && place.standing == Standing::Subscribed);
            let heard = if is_here { topic.audience() as i32 } else { 0 };
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
        if self.workers > 1 {
            let mut others = self.metrics.channel_elsewhere(pubsub.hash(kind, channel));
            if kind == Kind::Channel {
                let matches = |pattern: &[u8]| glob_matches(pattern, channel);
                others += self.metrics.patterns_elsewhere(pubsub.seed as u16, matches);
            }
            sum = sum.saturating_add(others as i32);
        }
        sum
    }

    /// Tells other workers how many clients the subscription to a topic stands for.
    pub(crate) fn notify_audience(&self, home: BackendId, topic: TopicSlot) {
        let pubsub = &self.redis_backends[home].pubsub;
        if self.workers <= 1 || !self.backends[home].is_in_use() {
            return;
        }
        let topic = pubsub.topics.get(topic);
        // Its name may be that of another topic by now.
        if topic.is_draining {
            return;
        }
        let more = if topic.is_subscribed() { topic.audience().saturating_sub(1) } else { 0 };
        match topic.kind {
            Kind::Pattern => self.metrics.set_pattern(pubsub.seed as u16, &topic.name, more),
            Kind::Channel | Kind::Shard => {
                self.metrics.set_channel(pubsub.hash(topic.kind, &topic.name), more);
            }
        }
    }

    /// Has a client wait that is about to ask for who is subscribed, since servers do not know yet
    /// what has been left before. It waits once: others may go on leaving.
    fn must_wait_to_publish(&mut self, client: ClientId) -> bool {
        let conn = self.client_conn(client);
        let backend = self.keyless_backend(client);
        let pubsub = &mut self.redis_backends[backend].pubsub;
        if let Some(at) = pubsub.deferred.iter().position(|&other| other == conn) {
            pubsub.deferred.swap_remove(at);
            return false;
        }
        if !pubsub.publishers.contains(&conn) {
            pubsub.publishers.push(conn);
        }
        true
    }

    /// A server has forgotten what was left: those who wait for that try again.
    pub(crate) fn wake_publishers(&mut self, backend: BackendId) {
        let pubsub = &mut self.redis_backends[backend].pubsub;
        if pubsub.publishers.is_empty() {
            return;
        }
        let woken = std::mem::take(&mut pubsub.publishers);
        pubsub.deferred.clone_from(&woken);
        for conn in woken {
            if self.clients.is_current(conn.client(), conn.generation()) {
                self.unblock(conn.client());
            }
        }
    }

    /// PUBSUB NUMSUB and SHARDNUMSUB, PUBSUB NUMPAT and the like: what servers say, corrected.
    pub(crate) fn pubsub_redis(
        &mut self,
        client: ClientId,
        command: &'static Command,
        fan: Fan,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        let backend = self.keyless_backend(client);
        let has_draining = self.redis_backends[backend].pubsub.topics.has_any_draining();
        if has_draining && self.must_wait_to_publish(client) {
            return Plan::Wait;
        }
        let plan = self.broadcast_redis(client, command, fan, bytes, args);
        if let Plan::Forward { request, .. } = plan
            && let Some(corrections) = self.audience_corrections(backend, command, bytes, args)
        {
            self.watch_reply(request, Box::new(Audiences(corrections)), None);
        }
        plan
    }

    /// What is to be added to the numbers in the reply to PUBSUB NUMSUB, if anything is.
    pub(crate) fn audience_corrections(
        &self,
        backend: BackendId,
        command: &Command,
        bytes: &[u8],
        args: &[Span],
    ) -> Option<Box<[i32]>> {
        let kind = match command.name {
            "pubsub|numsub" => Kind::Channel,
            "pubsub|shardnumsub" => Kind::Shard,
            _ => return None,
        };
        let channels = args[2..].iter().map(|span| span.of(bytes));
        let corrections: Box<[i32]> =
            channels.map(|channel| self.audience_correction(backend, kind, channel)).collect();
        corrections.iter().any(|&correction| correction != 0).then_some(corrections)
    }

    /// What is to be added to the number of a channel's subscribers, over all servers.
    fn audience_correction(&self, backend: BackendId, kind: Kind, channel: &[u8]) -> i32 {
        let pubsub = &self.redis_backends[backend].pubsub;
        let here = pubsub.topics.find(kind, channel).map_or(0, |topic| {
            let topic = pubsub.topics.get(topic);
            let subscribed = |place: &&Place| place.standing == Standing::Subscribed;
            match topic.places.iter().filter(subscribed).count() {
                0 => 0,
                places => topic.audience() as i32 - places as i32,
            }
        });
        let elsewhere = match self.workers {
            0 | 1 => 0,
            _ => self.metrics.channel_elsewhere(pubsub.hash(kind, channel)) as i32,
        };
        here.saturating_add(elsewhere)
    }
}

/// The reply to PUBSUB NUMSUB with other numbers, in the order of its channels.
pub(crate) fn correct_each(reply: &[u8], corrections: &[i32], out: &mut Vec<u8>) -> Option<()> {
    let (header, mut rest) = reply.split_at(reply.iter().position(|&byte| byte == b'\n')? + 1);
    out.extend_from_slice(header);
    for &correction in corrections {
        for is_number in [false, true] {
            let Scan::Complete(len) = ReplyScanner::default().scan(rest) else { return None };
            let (element, behind) = rest.split_at(len);
            rest = behind;
            match resp::reply(element) {
                Some(Reply::Integer(count)) if is_number => {
                    encode::write_integer(out, count.saturating_add(correction.into()).max(0));
                }
                _ => out.extend_from_slice(element),
            }
        }
    }
    out.extend_from_slice(rest);
    Some(())
}

/// The reply to PUBLISH with another number.
fn correct(reply: &[u8], correction: i32, out: &mut Vec<u8>) -> Option<()> {
    let Some(Reply::Integer(heard)) = resp::reply(reply) else { return None };
    encode::write_integer(out, heard.saturating_add(correction.into()).max(0));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_corrected_whatever_servers_say() {
        let each = |count: &str, by| {
            let reply = format!("*2\r\n$1\r\na\r\n:{count}\r\n");
            let mut out = Vec::new();
            correct_each(reply.as_bytes(), &[by], &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(each("3", 4), "*2\r\n$1\r\na\r\n:7\r\n");
        assert_eq!(each("3", -4), "*2\r\n$1\r\na\r\n:0\r\n");
        assert_eq!(each(&i64::MAX.to_string(), 1), format!("*2\r\n$1\r\na\r\n:{}\r\n", i64::MAX));
        assert_eq!(each(&i64::MIN.to_string(), -1), "*2\r\n$1\r\na\r\n:0\r\n");
        let mut out = Vec::new();
        correct(b":9223372036854775807\r\n", 1, &mut out).unwrap();
        assert_eq!(out, b":9223372036854775807\r\n");
    }
}
