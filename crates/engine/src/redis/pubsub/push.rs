//! Messages, from a feed to the clients that are subscribed.
//!
//! A message is copied from where it was read to the output of each client. It may stand between any
//! two replies, but not in the middle of one: while part of a reply is with the client and the rest
//! has yet to come, messages wait.

use cashew_metrics::PoolCounter;
use cashew_protocol::resp::{self, Reply};

use crate::base::id::{ClientId, ConnId, LaneId, RequestId, ServerId, TopicSlot};
use crate::base::time::Time;
use crate::engine::Engine;
use crate::redis::pubsub::feed::Source;
use crate::redis::pubsub::place::{is_of_every_server, is_of_key};
use crate::redis::pubsub::topics::{Kind, Place, Standing};
use crate::upstream::session_params::WireProtocol;

/// What comes on a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Incoming<'a> {
    /// Of the topic that it came by, which for a pattern is not its channel.
    Message {
        kind: Kind,
        topic: &'a [u8],
    },
    Answer(Confirmed<'a>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confirmed<'a> {
    Subscribed(&'a [u8]),
    /// Whether from a channel of a slot, and from what.
    Unsubscribed(bool, &'a [u8]),
    Pong,
    /// As it came, with its line end.
    Error(&'a [u8]),
}

impl<'a> Incoming<'a> {
    /// Reads a whole reply; `None` if it is nothing that comes on a feed.
    pub(crate) fn read(bytes: &'a [u8]) -> Option<Self> {
        if bytes.starts_with(b"-") {
            return Some(Self::Answer(Confirmed::Error(bytes)));
        }
        // Without a subscription a server answers PING as ever.
        if bytes == b"+PONG\r\n" {
            return Some(Self::Answer(Confirmed::Pong));
        }
        let Some(Reply::Array(mut elements)) = resp::reply(bytes) else { return None };
        let len = elements.len();
        let mut text = || match resp::reply(elements.next()?) {
            Some(Reply::Bulk(text)) => Some(text),
            _ => None,
        };
        let what = text()?;
        let message = |kind, topic| Some(Self::Message { kind, topic });
        match (what, len) {
            (b"message", 3) => message(Kind::Channel, text()?),
            (b"pmessage", 4) => message(Kind::Pattern, text()?),
            (b"smessage", 3) => message(Kind::Shard, text()?),
            (b"subscribe" | b"psubscribe" | b"ssubscribe", 3) => {
                Some(Self::Answer(Confirmed::Subscribed(text()?)))
            }
            (b"unsubscribe" | b"punsubscribe" | b"sunsubscribe", 3) => {
                let is_shard = what == b"sunsubscribe";
                Some(Self::Answer(Confirmed::Unsubscribed(is_shard, text()?)))
            }
            (b"pong", 2) => Some(Self::Answer(Confirmed::Pong)),
            _ => None,
        }
    }
}

impl Engine {
    /// Copies a message to all who are subscribed to the topic.
    pub(crate) fn spread(&mut self, lane: LaneId, kind: Kind, topic: &[u8], message: &[u8]) {
        let source = self.source_of(lane);
        if self.is_of_other_node(source, (kind, topic), message) {
            return;
        }
        let topics = &self.redis_backends[source.home].pubsub.topics;
        let named = topics.find(kind, topic);
        let is_left_here = |&index: &TopicSlot| {
            let topic = topics.get(index);
            let mut places = topic.places.iter();
            !topic.subscribers.is_empty()
                && places.any(|place| place.is_at(source.server, source.is_preparing))
        };
        // Where a cluster's topic has been, what is published may still come, and comes from where it is now.
        let of_cluster = self.backends[source.home].topology.has_slots();
        let is_here = |&index: &TopicSlot| {
            let mut places = topics.get(index).places.iter();
            !of_cluster || places.any(|place| place.is_at(source.server, source.is_preparing))
        };
        let named = named.filter(is_here);
        let left = topics.draining(kind, topic).iter().copied().find(is_left_here);
        for index in left.into_iter().chain(named) {
            if !self.is_heard_twice(source, index) {
                self.spread_to(source, index, message);
            }
        }
    }

    fn spread_to(&mut self, source: Source, index: TopicSlot, message: &[u8]) {
        // Those for whom there is no room are closed before each has its copy, not after.
        let room = self.buffers_max();
        let pubsub = &mut self.redis_backends[source.home].pubsub;
        let subscribers = &pubsub.topics.get(index).subscribers;
        let (mut overflowed, mut shed) = (Vec::new(), Vec::new());
        for &client in subscribers {
            let (owner, generation) = self.clients.entry(client);
            let conn = ConnId::of_client(client, generation);
            let own = owner.session.key_prefix().and_then(|prefix| prefix.message(message));
            let message = own.as_deref().unwrap_or(message);
            if self.bufs.held() + message.len() > room {
                shed.push(conn);
                continue;
            }
            let kind: &[u8] =
                if owner.session.wire_protocol == WireProtocol::Resp3 { b">" } else { b"*" };
            let is_amid_reply =
                owner.head != RequestId::NONE && self.requests[owner.head].streaming;
            if is_amid_reply {
                let subscriber = owner.modes.subscriber().expect("it is subscribed");
                self.bufs.reserve(&mut subscriber.held, message.len());
                subscriber.held.extend_from_slice(kind);
                subscriber.held.extend_from_slice(&message[1..]);
                owner.held += message.len() as u64;
            } else {
                owner.output.push(kind, &mut self.bufs);
                owner.output.push(&message[1..], &mut self.bufs);
                owner.mark(conn, &mut self.dirty_clients, &mut self.deferred_clients);
            }
            let waits = owner.output.len() + owner.held;
            let limits = &self.listeners[owner.listener].limits;
            let allowed = limits.pubsub_output_max.min(limits.client_output_max);
            if waits > allowed {
                overflowed.push(conn);
            } else if waits > limits.pubsub_output_soft_max {
                let subscriber = owner.modes.subscriber().expect("it is subscribed");
                if subscriber.strained_since == Time::NEVER {
                    subscriber.strained_since = self.now;
                    pubsub.strained.push(conn);
                }
            }
        }
        let count = subscribers.len() - shed.len();
        let metrics = self.backends[source.home].metrics;
        self.metrics.add_pool(metrics, PoolCounter::MessagesDelivered, count as u64);
        self.spend(message.len().saturating_mul(count));
        self.cut_all(overflowed, PoolCounter::ClientsOverflowed);
        self.cut_all(shed, PoolCounter::ClientsShed);
    }

    /// A message of the topic was larger than anybody may be sent: they would have missed it.
    pub(crate) fn overflow_subscribers(&mut self, lane: LaneId, start: &[u8]) {
        let source = self.source_of(lane);
        let topics = &self.redis_backends[source.home].pubsub.topics;
        let topic = topic_of_start(start).and_then(|(kind, topic)| topics.find(kind, topic));
        if let Some(topic) = topic {
            let subscribers = topics.get(topic).subscribers.iter();
            let conns = subscribers.map(|&client| self.client_conn(client)).collect();
            self.cut_all(conns, PoolCounter::ClientsOverflowed);
        }
    }

    pub(crate) fn cut_all(&mut self, clients: Vec<ConnId>, counter: PoolCounter) {
        for conn in clients {
            if self.clients.is_current(conn.client(), conn.generation()) {
                self.cut_client(conn.client(), counter);
            }
        }
    }

    /// Writes the messages that waited for the end of a reply, if it has come.
    #[cold]
    pub(crate) fn release_held(&mut self, client: ClientId) {
        let owner = &mut self.clients[client];
        let Some(subscriber) = owner.modes.subscriber() else { return };
        let is_amid_reply = owner.head != RequestId::NONE && self.requests[owner.head].streaming;
        if subscriber.held.is_empty() || is_amid_reply {
            return;
        }
        let held = std::mem::take(&mut subscriber.held);
        owner.held -= held.len() as u64;
        owner.output.push_buf(held, &mut self.bufs);
        self.mark_client(client);
    }

    /// Cuts clients for which too much has waited for too long. To be called once a second.
    pub(crate) fn maintain_strained(&mut self) {
        for backend in self.backends.ids() {
            let strained = std::mem::take(&mut self.redis_backends[backend].pubsub.strained);
            let mut still = Vec::new();
            for conn in strained {
                let (index, now) = (conn.client(), self.now);
                if !self.clients.is_current(index, conn.generation()) {
                    continue;
                }
                let client = &mut self.clients[index];
                let limits = &self.listeners[client.listener].limits;
                let waits = client.output.len() + client.held;
                let Some(subscriber) = client.modes.subscriber() else { continue };
                let since = subscriber.strained_since;
                if waits <= limits.pubsub_output_soft_max {
                    subscriber.strained_since = Time::NEVER;
                } else if now.micros_since(since) >= limits.pubsub_output_soft_ms * 1000 {
                    self.cut_client(index, PoolCounter::ClientsOverflowed);
                } else {
                    still.push(conn);
                }
            }
            self.redis_backends[backend].pubsub.strained.append(&mut still);
        }
    }
}

/// The topic of a message of which only the start is known.
fn topic_of_start(start: &[u8]) -> Option<(Kind, &[u8])> {
    let mut rest = start.splitn(2, |&byte| byte == b'\n').nth(1)?;
    let mut bulk = || {
        let resp::Scan::Complete(len) = resp::ReplyScanner::default().scan(rest) else {
            return None;
        };
        let (element, behind) = rest.split_at(len);
        rest = behind;
        match resp::reply(element) {
            Some(Reply::Bulk(text)) => Some(text),
            _ => None,
        }
    };
    let kind = match bulk()? {
        b"message" => Kind::Channel,
        b"pmessage" => Kind::Pattern,
        b"smessage" => Kind::Shard,
        _ => return None,
    };
    Some((kind, bulk()?))
}

impl Engine {
    /// Whether the message comes by a pattern that all nodes of a cluster have, for what happens to their keys, and is
    /// one that any node hears. It counts where the other channels and patterns are.
    fn is_of_other_node(
        &mut self,
        source: Source,
        (kind, topic): (Kind, &[u8]),
        message: &[u8],
    ) -> bool {
        let of_all = kind == Kind::Pattern
            && self.backends[source.home].topology.has_slots()
            && is_of_every_server(kind, topic, true);
        of_all
            && !channel_of_pattern(message).is_some_and(is_of_key)
            && (source.is_preparing || self.classic_node(source.home) != Some(source.server))
    }

    /// Whether a server of the next epoch is of a shard of which another one has the topic now: a replica says what
    /// happens to keys, as its primary does.
    fn is_of_heard_shard(&self, source: Source, topic: TopicSlot) -> bool {
        let pubsub = &self.redis_backends[source.home].pubsub;
        let Some(next) = &pubsub.next else { return false };
        let topology = &self.backends[next.preparing].topology;
        let same = || next.kept.iter().position(|&old| old == Some(source.server));
        let server = match source.is_preparing {
            true => Some(source.server),
            false => same().map(|at| ServerId::new(at as u32)),
        };
        let Some(server) = server else { return false };
        let mut members = topology.members(server);
        let places = &pubsub.topics.get(topic).places;
        members.any(|member| {
            let is_it = |place: &&Place| {
                Some(place.server) == next.kept[member.index()] && !place.is_preparing
            };
            let place = places.iter().find(is_it);
            place.is_some_and(|it| !it.is_next && it.standing == Standing::Subscribed)
        })
    }

    /// Whether the message also comes on another feed: a server that the topic moves to may be the
    /// one it is on, by another name or another password.
    fn is_heard_twice(&self, source: Source, topic: TopicSlot) -> bool {
        let backend = &self.backends[source.home];
        let pubsub = &self.redis_backends[source.home].pubsub;
        let Some(next) = &pubsub.next else { return false };
        let places = &pubsub.topics.get(topic).places;
        let is_next =
            |place: &&Place| place.is_next && place.is_at(source.server, source.is_preparing);
        if places.iter().find(is_next).is_none() {
            return false;
        }
        let state = pubsub.topics.get(topic);
        if backend.topology.has_slots() && state.kind != Kind::Shard {
            if is_of_every_server(state.kind, &state.name, true) {
                return self.is_of_heard_shard(source, topic);
            }
            // Both hear everything.
            return places.iter().any(|it| !it.is_next && it.standing == Standing::Subscribed);
        }
        let endpoint = match source.is_preparing {
            true => &self.backends[next.preparing].config.servers[source.server.index()],
            false => &backend.config.servers[source.server.index()],
        };
        places
            .iter()
            .filter(|place| !place.is_next)
            .any(|place| backend.config.servers[place.server.index()].endpoint == endpoint.endpoint)
    }
}

/// The channel of a message that came by a pattern.
fn channel_of_pattern(message: &[u8]) -> Option<&[u8]> {
    let Some(Reply::Array(mut elements)) = resp::reply(message) else { return None };
    match resp::reply(elements.nth(2)?) {
        Some(Reply::Bulk(channel)) => Some(channel),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_on_a_feed_is_told_apart() {
        let read = |text: &'static str| Incoming::read(text.as_bytes());
        assert_eq!(
            read("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n"),
            Some(Incoming::Message { kind: Kind::Channel, topic: b"c" })
        );
        assert_eq!(
            read("*4\r\n$8\r\npmessage\r\n$2\r\nc*\r\n$1\r\nc\r\n$2\r\nhi\r\n"),
            Some(Incoming::Message { kind: Kind::Pattern, topic: b"c*" })
        );
        assert_eq!(
            read("*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"),
            Some(Incoming::Answer(Confirmed::Subscribed(b"c")))
        );
        assert_eq!(read("*2\r\n$4\r\npong\r\n$0\r\n\r\n"), Some(Incoming::Answer(Confirmed::Pong)));
        assert_eq!(
            read("-NOPERM no\r\n"),
            Some(Incoming::Answer(Confirmed::Error(b"-NOPERM no\r\n")))
        );
        for bad in ["+OK\r\n", ":1\r\n", "*1\r\n$7\r\nmessage\r\n", "*0\r\n", "$-1\r\n"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_start_of_a_message_tells_its_topic() {
        let start = b"*3\r\n$7\r\nmessage\r\n$3\r\nabc\r\n$100\r\nxxx";
        assert_eq!(topic_of_start(start), Some((Kind::Channel, &b"abc"[..])));
        assert_eq!(topic_of_start(&start[..20]), None);
        assert_eq!(topic_of_start(b""), None);
    }
}
