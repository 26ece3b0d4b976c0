//! UNSUBSCRIBE, and what was published before it.
//!
//! As with Redis a client gets all that was published before it is told that it is subscribed no more:
//! what PUBLISH has counted it for is not lost. Messages come by feeds, so a feed has to say that they
//! have come. Where the client was the topic's last one the server is asked to forget the topic, and
//! says so behind them; where others stay, it is asked for a *mark*, a PING. Until then the client is
//! one of the topic's *leavers*: it gets messages, and is not counted among those who will.

use std::collections::VecDeque;

use cashew_metrics::PoolGauge;

use crate::base::id::{BackendId, ClientId, ConnId, ServerId, TopicSlot};
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::redis::pubsub::subscribe::{Line, Subscriber};
use crate::redis::pubsub::topics::{Kind, SUBSCRIPTION_SIZE, Standing, TopicId};

/// What leaving a topic is reckoned at, in bytes looked at.
const TOPIC_EFFORT: usize = 64;

/// Whether others are subscribed to a topic that a client leaves.
enum Left {
    /// The client was not subscribed.
    Nothing,
    ToOthers(TopicSlot),
    /// If servers have yet to say that they have forgotten it.
    ToNobody(Option<TopicId>),
}

impl Engine {
    pub(super) fn unsubscribe<'n>(
        &mut self,
        client: ClientId,
        kind: Kind,
        names: impl ExactSizeIterator<Item = &'n [u8]>,
    ) -> Plan {
        let request = self.new_request(client);
        let (mut lines, mut left) = (VecDeque::new(), Vec::new());
        if names.len() > 0 {
            for name in names {
                lines.push_back(self.unsubscribe_one(client, kind, name, &mut left));
            }
        } else {
            for topic in self.topics_of(client, kind) {
                let backend = self.keyless_backend(client);
                let name = self.redis_backends[backend].pubsub.topics.get(topic).name.clone();
                lines.push_back(self.unsubscribe_one(client, kind, &name, &mut left));
            }
            if lines.is_empty() {
                let count = self.subscriptions(client, kind);
                lines.push_back(Line::Unsubscribed { kind, name: None, count, topic: None });
            }
        }
        self.begin_pending(client, request, lines, left);
        Plan::Done
    }

    fn unsubscribe_one(
        &mut self,
        client: ClientId,
        kind: Kind,
        name: &[u8],
        left: &mut Vec<TopicSlot>,
    ) -> Line {
        let backend = self.keyless_backend(client);
        let topic = self.redis_backends[backend].pubsub.topics.find(kind, name);
        let topic = topic.and_then(|topic| self.leave_topic(client, topic, left));
        let count = self.subscriptions(client, kind);
        Line::Unsubscribed { kind, name: Some(name.into()), count, topic }
    }

    /// Has a client that is about to say goodbye get first what was published before: QUIT and RESET are
    /// to be looked at again then. Returns whether there is anything to wait for.
    pub(crate) fn leave_topics(&mut self, client: ClientId) -> bool {
        let is_subscribed = |subscriber: &Subscriber| !subscriber.topics.is_empty();
        if !self.clients[client].modes.subscriber.as_deref().is_some_and(is_subscribed) {
            return false;
        }
        // Those run alone.
        if self.clients[client].requests > 0 {
            return true;
        }
        let request = self.hidden_request(client);
        let (mut lines, mut left) = (VecDeque::new(), Vec::new());
        for kind in [Kind::Channel, Kind::Pattern, Kind::Shard] {
            for topic in self.topics_of(client, kind) {
                lines.push_back(Line::Left(self.leave_topic(client, topic, &mut left)));
            }
        }
        self.begin_pending(client, request, lines, left);
        self.clients[client].requests > 0
    }

    /// Ends a client's subscription, if it has it. Returns the topic if servers have yet to say that
    /// it is gone; one that others stay subscribed to is put into `left`.
    fn leave_topic(
        &mut self,
        client: ClientId,
        topic: TopicSlot,
        left: &mut Vec<TopicSlot>,
    ) -> Option<TopicId> {
        match self.begin_to_leave(client, topic) {
            Left::Nothing | Left::ToNobody(None) => None,
            Left::ToOthers(topic) => {
                left.push(topic);
                None
            }
            Left::ToNobody(Some(id)) => {
                let backend = self.keyless_backend(client);
                let topics = &mut self.redis_backends[backend].pubsub.topics;
                topics.get_mut(id.index).waiting.add(client);
                Some(id)
            }
        }
    }

    fn begin_to_leave(&mut self, client: ClientId, topic: TopicSlot) -> Left {
        let backend = self.keyless_backend(client);
        let Some(subscriber) = self.clients[client].modes.subscriber() else {
            return Left::Nothing;
        };
        let Some(membership) = subscriber.topics.get_mut(&topic) else { return Left::Nothing };
        if std::mem::replace(&mut membership.is_draining, true) {
            return Left::Nothing;
        }
        let state = self.redis_backends[backend].pubsub.topics.get_mut(topic);
        subscriber.counts[state.kind as usize] -= 1;
        state.leavers += 1;
        if state.is_wanted() {
            self.notify_audience(backend, topic);
            return Left::ToOthers(topic);
        }
        Left::ToNobody(self.leave_if_unwanted(backend, topic))
    }

    /// Asks the servers that have these topics for marks: each of them once.
    pub(super) fn ask_for_marks(&mut self, client: ClientId, left: Vec<TopicSlot>) {
        if left.is_empty() {
            return;
        }
        let (backend, conn) = (self.keyless_backend(client), self.client_conn(client));
        let topics = &self.redis_backends[backend].pubsub.topics;
        let places = left.iter().flat_map(|&topic| &topics.get(topic).places);
        let there = places.filter(|place| place.standing == Standing::Subscribed);
        let mut sources: Vec<(bool, ServerId)> =
            there.map(|place| (place.is_preparing, place.server)).collect();
        sources.sort_unstable();
        sources.dedup();
        let mut marks = 0;
        for (is_preparing, server) in sources {
            let of = self.pool_of(backend, is_preparing);
            marks += u32::from(self.ask_for_mark(of, server, conn));
        }
        let pending = self.clients[client].modes.subscriber().and_then(|s| s.pending.as_mut());
        if let Some(pending) = pending {
            (pending.left, pending.marks) = (left, marks);
        }
        if marks == 0 {
            self.finish_draining(client);
        }
    }

    /// What a server published before it was asked for a mark has come, or never will.
    pub(super) fn marked(&mut self, conn: ConnId) {
        let client = conn.client();
        if !self.clients.is_current(client, conn.generation()) {
            return;
        }
        let pending = self.clients[client].modes.subscriber().and_then(|s| s.pending.as_mut());
        let Some(pending) = pending else { return };
        pending.marks -= 1;
        if pending.marks == 0 {
            self.finish_draining(client);
            self.answer_pending(client);
        }
    }

    /// Servers that were asked for marks are gone: nothing more comes of what they published. To be called
    /// when pools and servers stand where they are to be.
    pub(crate) fn settle_lost_marks(&mut self) {
        for client in std::mem::take(&mut self.lost_marks) {
            self.marked(client);
        }
    }

    /// Takes the client out of the topics that it has left to others.
    fn finish_draining(&mut self, client: ClientId) {
        let backend = self.keyless_backend(client);
        let pending = self.clients[client].modes.subscriber().and_then(|s| s.pending.as_mut());
        let Some(pending) = pending else { return };
        for topic in std::mem::take(&mut pending.left) {
            let Some(subscriber) = self.clients[client].modes.subscriber() else { return };
            // Others may have left it meanwhile, too.
            if subscriber.topics.get(&topic).is_some_and(|membership| membership.is_draining) {
                let membership = subscriber.topics.remove(&topic);
                self.take_subscriber(backend, topic, membership);
            }
        }
    }

    /// A topic is gone, and so are those who have left it.
    pub(super) fn dismiss_leavers(&mut self, home: BackendId, topic: TopicSlot) {
        let topics = &mut self.redis_backends[home].pubsub.topics;
        let state = topics.get_mut(topic);
        state.leavers = 0;
        for client in std::mem::take(&mut state.subscribers) {
            let subscriber = self.clients[client].modes.subscriber().expect("it is subscribed");
            subscriber.topics.remove(&topic);
            self.count_subscriber_out(home);
        }
    }

    /// Takes a client out of the topic's list.
    fn take_subscriber(
        &mut self,
        home: BackendId,
        topic: TopicSlot,
        membership: Option<super::Membership>,
    ) {
        let Some(membership) = membership else { return };
        let state = self.redis_backends[home].pubsub.topics.get_mut(topic);
        state.leavers -= u32::from(membership.is_draining);
        state.subscribers.swap_remove(membership.at as usize);
        if let Some(&moved) = state.subscribers.get(membership.at as usize) {
            let moved = self.clients[moved].modes.subscriber().expect("it is subscribed");
            if let Some(moved) = moved.topics.get_mut(&topic) {
                moved.at = membership.at;
            }
        }
        self.count_subscriber_out(home);
        self.notify_audience(home, topic);
    }

    fn count_subscriber_out(&mut self, home: BackendId) {
        let metrics = self.backends[home].metrics;
        let topics = &mut self.redis_backends[home].pubsub.topics;
        topics.subscriptions -= 1;
        self.bufs.discharge(SUBSCRIPTION_SIZE);
        self.metrics.set_pool(metrics, PoolGauge::Subscriptions, topics.subscriptions);
    }

    /// A client is gone, and so are its subscriptions.
    pub(crate) fn forget_subscriber(
        &mut self,
        client: ClientId,
        backend: BackendId,
        subscriber: Subscriber,
    ) {
        self.bufs.give(subscriber.held);
        // One client may have many thousands, and many may go at once.
        self.spend(TOPIC_EFFORT * subscriber.topics.len());
        for (topic, membership) in subscriber.topics {
            self.take_subscriber(backend, topic, Some(membership));
            self.leave_if_unwanted(backend, topic);
        }
        for line in subscriber.pending.into_iter().flat_map(|pending| pending.lines) {
            let topic = match line {
                Line::Subscribe(topic) => topic,
                Line::Unsubscribed { topic: Some(topic), .. } | Line::Left(Some(topic)) => topic,
                Line::Unsubscribed { topic: None, .. } | Line::Left(None) => continue,
            };
            let topics = &mut self.redis_backends[backend].pubsub.topics;
            if topics.is_current(topic) {
                topics.get_mut(topic.index).waiting.told(client);
                self.leave_if_unwanted(backend, topic.index);
            }
        }
    }
}
