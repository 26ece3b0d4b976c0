//! A connection to a server that messages come on.
//!
//! It speaks RESP2, which every server can, and asks for one topic at a time, so that every question
//! has one answer: a confirmation or an error. Answers come in the order of the questions, with
//! messages between them.

use std::collections::VecDeque;
use std::sync::Arc;

use cashew_protocol::memcached::Expect;
use cashew_protocol::resp::encode;

use crate::base::id::{BackendId, ConnId, LaneId, ServerId};
use crate::base::time::Time;
use crate::engine::{Closed, Engine, QUEUE_KEPT};
use crate::redis::pubsub::push::{Confirmed, Incoming};
use crate::redis::pubsub::topics::{Kind, Standing, TopicId};
use crate::upstream::lane::{Lane, Link, Scan};
use crate::upstream::session_params::WireProtocol;

/// Questions that may be unanswered on one feed; the others wait here.
const OWED_MAX: usize = 1024;
/// A server that has said nothing for so long is asked whether it is there.
const SILENCE_MAX_MS: u64 = 10_000;
/// How long an answer may take where the pool has no shorter `timeout`.
const ANSWER_MAX_MS: u64 = 10_000;
/// The same of a server that answers nothing else.
const SIGN_MAX_MS: u64 = 1000;

/// What is known of the connection that a server's messages come on.
#[derive(Default)]
pub(crate) struct Feed {
    pub(crate) lane: LaneId,
    /// What has been asked and not answered, in its order.
    owed: VecDeque<Owed>,
    /// What is to be asked, in its order.
    unasked: VecDeque<Question>,
    /// Numbers questions.
    asked: u64,
    /// Topics that are, or should be, subscribed here.
    pub(crate) topics: u32,
    /// When anything came.
    heard_at: Time,
    /// The start of what is coming.
    pub(crate) partial: Vec<u8>,
    /// What is coming is larger than anybody may be sent: it is not kept.
    is_oversized: bool,
}

struct Owed {
    answer: Answer,
    asked_at: Time,
}

#[derive(Clone, Debug)]
enum Answer {
    Subscribed {
        topic: TopicId,
        number: u64,
    },
    Unsubscribed {
        topic: TopicId,
        kind: Kind,
        name: Arc<[u8]>,
    },
    Pong,
    /// The same, which a client waits for.
    Mark {
        client: ConnId,
    },
}

enum Question {
    Subscribe(TopicId),
    /// The topic may be gone by then.
    Unsubscribe {
        topic: TopicId,
        kind: Kind,
        name: Arc<[u8]>,
    },
    Mark {
        client: ConnId,
    },
}

impl Feed {
    /// Whether everything asked is answered.
    fn is_settled(&self) -> bool {
        self.owed.is_empty() && self.unasked.is_empty()
    }

    /// Whether the next answer is that it has forgotten that channel of a slot.
    fn awaits_end_of(&self, channel: &[u8]) -> bool {
        self.owed.front().is_some_and(|owed| {
            matches!(&owed.answer, Answer::Unsubscribed { kind: Kind::Shard, name, .. } if **name == *channel)
        })
    }

    /// Gives up all that was asked. Returns the clients that wait for marks, once for each.
    pub(crate) fn give_up(&mut self) -> Vec<ConnId> {
        let owed = self.owed.drain(..).filter_map(|owed| match owed.answer {
            Answer::Mark { client } => Some(client),
            _ => None,
        });
        let unasked = self.unasked.drain(..).filter_map(|question| match question {
            Question::Mark { client } => Some(client),
            _ => None,
        });
        owed.chain(unasked).collect()
    }
}

impl Engine {
    /// The feed of a server, which has one.
    fn feed_mut(&mut self, backend: BackendId, server: ServerId) -> Option<&mut Feed> {
        self.redis_backends[backend].servers[server].feed.as_deref_mut()
    }

    fn feed_on(&mut self, lane: LaneId) -> &mut Feed {
        let Lane { backend, server, .. } = self.lanes[lane];
        self.feed_mut(backend, server).expect("the lane of a feed is its server's")
    }

    /// The lane of a server's feed, which is made if there is none.
    pub(crate) fn feed_lane(&mut self, backend: BackendId, server: ServerId) -> LaneId {
        if let Some(feed) = self.feed_mut(backend, server) {
            return feed.lane;
        }
        let lane = self.add_lanes(1, (backend, server), 0, WireProtocol::Resp2);
        self.lanes[lane].is_feed = true;
        self.backends[backend].servers[server].feed_lane = lane;
        let state = &mut self.redis_backends[backend].servers[server];
        state.feed = Some(Box::new(Feed { lane, ..Feed::default() }));
        lane
    }

    /// The pool that has the topics which come to servers of this one.
    fn home_of(&self, backend: BackendId) -> BackendId {
        match self.redis_backends[backend].pubsub.home {
            BackendId::NONE => backend,
            home => home,
        }
    }

    /// Whose topics come on a lane, and how they name its server.
    pub(crate) fn source_of(&self, lane: LaneId) -> Source {
        let Lane { backend, server, .. } = self.lanes[lane];
        let home = self.home_of(backend);
        Source { home, server, is_preparing: home != backend }
    }

    /// Asks a server for a topic as soon as there is a connection to ask on.
    pub(crate) fn ask_for(&mut self, backend: BackendId, server: ServerId, topic: TopicId) {
        let lane = self.feed_lane(backend, server);
        let link = self.lane(lane).link;
        match link {
            Link::Ready { .. } => {
                self.feed_on(lane).unasked.push_back(Question::Subscribe(topic));
                self.put_questions(lane);
            }
            Link::Idle if self.may_ask(backend, server) => self.connect(lane),
            Link::Backoff { .. } if self.may_ask(backend, server) && self.may_try(lane) => {
                self.try_again(lane);
            }
            // When it is connected all topics are asked for that should be there.
            Link::Idle | Link::Connecting { .. } | Link::Handshaking { .. } => {}
            Link::Backoff { .. } => {}
        }
    }

    /// Whether there is any point in connecting to the server.
    fn may_ask(&self, backend: BackendId, server: ServerId) -> bool {
        let server = &self.backends[backend].servers[server];
        !server.ejected && !server.is_silent()
    }

    /// Asks a server to forget a topic. Returns whether there is an answer to come.
    pub(crate) fn ask_to_forget(
        &mut self,
        backend: BackendId,
        server: ServerId,
        topic: TopicId,
    ) -> bool {
        let home = self.home_of(backend);
        let Some(feed) = self.feed_mut(backend, server) else { return false };
        let lane = feed.lane;
        if !matches!(self.lane(lane).link, Link::Ready { .. }) {
            return false;
        }
        let state = self.redis_backends[home].pubsub.topics.get(topic.index);
        let (kind, name) = (state.kind, state.name.clone());
        self.feed_on(lane).unasked.push_back(Question::Unsubscribe { topic, kind, name });
        self.put_questions(lane);
        true
    }

    /// Has a server say something that the client is told of ([`Engine::marked`]): what was published
    /// before has come then. Returns whether there is an answer to come.
    pub(crate) fn ask_for_mark(
        &mut self,
        backend: BackendId,
        server: ServerId,
        client: ConnId,
    ) -> bool {
        let Some(feed) = self.feed_mut(backend, server) else { return false };
        let lane = feed.lane;
        if !matches!(self.lane(lane).link, Link::Ready { .. }) {
            return false;
        }
        self.feed_on(lane).unasked.push_back(Question::Mark { client });
        self.put_questions(lane);
        true
    }

    /// Writes as many questions as may be unanswered.
    fn put_questions(&mut self, lane: LaneId) {
        let Source { home, server, is_preparing } = self.source_of(lane);
        loop {
            let feed = self.feed_on(lane);
            if feed.owed.len() >= OWED_MAX {
                return;
            }
            let Some(question) = feed.unasked.pop_front() else {
                if feed.unasked.capacity() > QUEUE_KEPT {
                    feed.unasked = VecDeque::new();
                }
                return;
            };
            match question {
                Question::Subscribe(topic) => {
                    feed.asked += 1;
                    let number = feed.asked;
                    let topics = &mut self.redis_backends[home].pubsub.topics;
                    if !topics.is_current(topic) {
                        continue;
                    }
                    let state = topics.get_mut(topic.index);
                    let Some(place) = state.place(server, is_preparing) else { continue };
                    if place.standing != Standing::Away {
                        continue;
                    }
                    place.standing = Standing::Asked(number);
                    let (kind, name) = (state.kind, state.name.clone());
                    let answer = Answer::Subscribed { topic, number };
                    self.question(lane, &[kind.subscribe(), &name], answer);
                }
                Question::Unsubscribe { topic, kind, name } => {
                    let answer = Answer::Unsubscribed { topic, kind, name: Arc::clone(&name) };
                    self.question(lane, &[kind.unsubscribe(), &name], answer);
                }
                Question::Mark { client } => {
                    self.question(lane, &[b"PING"], Answer::Mark { client });
                }
            }
        }
    }

    fn question(&mut self, index: LaneId, words: &[&[u8]], answer: Answer) {
        let asked_at = self.now;
        self.feed_on(index).owed.push_back(Owed { answer, asked_at });
        let lane = &mut self.lanes[index];
        let room = words.iter().map(|word| word.len() + 16).sum();
        lane.output.write_with(&mut self.bufs, room, |out| encode::write_command(out, words));
        self.mark_lane(index);
        self.rearm(index);
    }

    /// When what was asked first has to be answered. A server that says anything is well.
    pub(crate) fn feed_deadline(&self, index: LaneId) -> Time {
        let lane = &self.lanes[index];
        if lane.is_tracker {
            return self.tracker_deadline(index);
        }
        let backend = &self.backends[lane.backend];
        let feed = self.redis_backends[lane.backend].servers[lane.server].feed.as_deref();
        let first = feed.and_then(|feed| Some((feed, feed.owed.front()?)));
        first.map_or(Time::NEVER, |(feed, owed)| {
            let from = owed.asked_at.max(feed.heard_at);
            let is_silent = backend.servers[lane.server].is_silent();
            let max = if is_silent { SIGN_MAX_MS } else { ANSWER_MAX_MS };
            backend.expiry(from).min(from.plus_millis(max))
        })
    }

    /// The connection stands: asks for all that should be there.
    pub(crate) fn feed_ready(&mut self, lane: LaneId) {
        if self.lanes[lane].is_tracker {
            return self.tracker_ready(lane);
        }
        let Source { home, server, is_preparing } = self.source_of(lane);
        let now = self.now;
        let topics = &mut self.redis_backends[home].pubsub.topics;
        let mut here = topics.indices();
        here.retain(|&topic| topics.get_mut(topic).place(server, is_preparing).is_some());
        let questions = here.into_iter().map(|topic| Question::Subscribe(topics.id(topic)));
        let questions = questions.collect();
        let feed = self.feed_on(lane);
        (feed.heard_at, feed.unasked) = (now, questions);
        self.put_questions(lane);
    }

    /// Bytes came on a feed; returns those behind the first message.
    pub(crate) fn feed_received<'b>(&mut self, index: LaneId, bytes: &'b [u8]) -> &'b [u8] {
        if self.lanes[index].is_tracker {
            return self.tracker_received(index, bytes);
        }
        let (scan, now) = (self.lanes[index].scanner.scan(Expect::Line, bytes), self.now);
        let feed = self.feed_on(index);
        feed.heard_at = now;
        match scan {
            Scan::Complete(len) => {
                let is_oversized = std::mem::take(&mut feed.is_oversized);
                let mut partial = std::mem::take(&mut feed.partial);
                if is_oversized {
                    self.overflow_subscribers(index, &partial);
                } else if partial.is_empty() {
                    self.feed_message(index, &bytes[..len]);
                } else {
                    self.bufs.reserve(&mut partial, len);
                    partial.extend_from_slice(&bytes[..len]);
                    self.feed_message(index, &partial);
                }
                self.bufs.give(partial);
                &bytes[len..]
            }
            Scan::Partial => {
                self.keep_part(index, bytes);
                &[]
            }
            Scan::Invalid => {
                self.misfit(index, "a message, or an answer about subscriptions", bytes);
                &[]
            }
        }
    }

    /// Keeps the start of a message, as long as somebody may be sent so much.
    fn keep_part(&mut self, index: LaneId, bytes: &[u8]) {
        let Lane { backend, server, .. } = self.lanes[index];
        let listeners =
            self.listeners_before(backend).map(|listener| &self.listeners[listener].limits);
        let allowed =
            listeners.map(|limits| limits.client_output_max.min(limits.pubsub_output_max));
        let limit = allowed.max().unwrap_or(0);
        let Some(feed) = self.redis_backends[backend].servers[server].feed.as_deref_mut() else {
            return;
        };
        feed.is_oversized |= (feed.partial.len() + bytes.len()) as u64 > limit;
        if !feed.is_oversized {
            self.bufs.reserve(&mut feed.partial, bytes.len());
            feed.partial.extend_from_slice(bytes);
        }
    }

    fn feed_message(&mut self, index: LaneId, bytes: &[u8]) {
        match Incoming::read(bytes) {
            Some(Incoming::Message { kind, topic }) => self.spread(index, kind, topic, bytes),
            Some(Incoming::Answer(confirmed)) => self.feed_answered(index, confirmed),
            None => self.misfit(index, "a message, or an answer about subscriptions", bytes),
        }
    }

    /// The oldest question is answered.
    fn feed_answered(&mut self, index: LaneId, confirmed: Confirmed<'_>) {
        let Source { home, server, is_preparing } = self.source_of(index);
        if let Confirmed::Unsubscribed(true, name) = confirmed
            && !self.feed_on(index).awaits_end_of(name)
        {
            // The channel's slot is not the server's any more.
            return self.shard_is_dropped(index, name);
        }
        let Some(Owed { answer, .. }) = self.feed_on(index).owed.pop_front() else {
            return self.misfit(index, "nothing: no question is open", b"");
        };
        let topics = &mut self.redis_backends[home].pubsub.topics;
        match (answer, confirmed) {
            (
                Answer::Subscribed { topic, number },
                Confirmed::Subscribed(_) | Confirmed::Error(_),
            ) => {
                let is_awaited = topics.is_current(topic)
                    && topics
                        .get_mut(topic.index)
                        .place(server, is_preparing)
                        .is_some_and(|place| place.standing == Standing::Asked(number));
                let is_elsewhere = match confirmed {
                    Confirmed::Error(text) if is_awaited => {
                        self.shard_is_elsewhere(index, topic, text)
                    }
                    _ => false,
                };
                let topics = &mut self.redis_backends[home].pubsub.topics;
                if is_awaited
                    && !is_elsewhere
                    && let Some(place) = topics.get_mut(topic.index).place(server, is_preparing)
                {
                    place.standing = match confirmed {
                        Confirmed::Error(text) => Standing::Refused(text.into()),
                        _ => Standing::Subscribed,
                    };
                    self.is_taken(home, topic.index);
                    self.notify_audience(home, topic.index);
                    self.notify_waiting(home, topic.index);
                }
            }
            (
                Answer::Unsubscribed { topic, .. },
                Confirmed::Unsubscribed(..) | Confirmed::Error(_),
            ) => {
                if topics.is_current(topic) && topics.get(topic.index).is_draining {
                    self.remove_place(home, topic.index, server, is_preparing);
                    self.forget_if_gone(home, topic.index);
                }
            }
            (Answer::Pong, Confirmed::Pong | Confirmed::Error(_)) => {}
            (Answer::Mark { client }, Confirmed::Pong | Confirmed::Error(_)) => {
                self.marked(client);
            }
            _ => {
                return self.misfit(
                    index,
                    "the answer to what was asked about a subscription",
                    b"",
                );
            }
        }
        self.put_questions(index);
    }

    /// The connection is about to be given up: nothing asked on it is answered any more.
    pub(crate) fn feed_lost(&mut self, index: LaneId) {
        if self.lanes[index].is_tracker {
            return self.tracker_lost(index);
        }
        let Source { home, server, is_preparing } = self.source_of(index);
        self.lanes[index].output.clear(&mut self.bufs);
        let feed = self.feed_on(index);
        let marks = feed.give_up();
        feed.is_oversized = false;
        let partial = std::mem::take(&mut feed.partial);
        self.bufs.give(partial);
        let topics = &mut self.redis_backends[home].pubsub.topics;
        let (mut draining, mut away) = (Vec::new(), Vec::new());
        for topic in topics.indices() {
            let state = topics.get_mut(topic);
            let is_draining = state.is_draining;
            match state.place(server, is_preparing) {
                Some(_) if is_draining => draining.push(topic),
                Some(place) => {
                    place.standing = Standing::Away;
                    away.push(topic);
                }
                None => {}
            }
        }
        for topic in away {
            self.notify_audience(home, topic);
        }
        for topic in draining {
            self.remove_place(home, topic, server, is_preparing);
            self.forget_if_gone(home, topic);
        }
        // Nothing more comes of what was published.
        for client in marks {
            self.marked(client);
        }
    }

    /// The connection was given up, and is made again or not: clients that wait for topics there
    /// can perhaps be told.
    pub(crate) fn feed_settled(&mut self, index: LaneId) {
        if self.lanes[index].is_tracker {
            return self.wake_tracking();
        }
        let Source { home, server, is_preparing } = self.source_of(index);
        let topics = &mut self.redis_backends[home].pubsub.topics;
        let mut here = topics.indices();
        here.retain(|&topic| {
            let state = topics.get_mut(topic);
            !state.waiting.is_empty() && state.place(server, is_preparing).is_some()
        });
        for topic in here {
            self.notify_waiting(home, topic);
        }
        if !is_preparing && self.redis_backends[home].pubsub.classic == server {
            self.leave_lost_node(home);
        }
    }

    /// Whether the connection should be made again when it is lost.
    pub(crate) fn is_feed_wanted(&self, index: LaneId) -> bool {
        let lane = &self.lanes[index];
        if lane.is_tracker {
            return self.is_tracker_wanted(index);
        }
        let feed = self.redis_backends[lane.backend].servers[lane.server].feed.as_deref();
        feed.is_some_and(|feed| feed.topics > 0)
            && !self.backends[lane.backend].servers[lane.server].ejected
    }

    /// Closes feeds that nobody needs and asks those that are silent. To be called once a second.
    pub(crate) fn maintain_feeds(&mut self) {
        self.retry_shards();
        for (backend, server) in self.feeds() {
            let lane = self.feed_lane(backend, server);
            let (Link::Ready { .. }, now) = (self.lane(lane).link, self.now) else { continue };
            let feed = self.feed_on(lane);
            if !feed.is_settled() {
                continue;
            }
            if feed.topics == 0 {
                self.feed_lost(lane);
                self.disconnect(lane, Closed::ByUs);
            } else if now.micros_since(feed.heard_at) >= SILENCE_MAX_MS * 1000 {
                self.question(lane, &[b"PING"], Answer::Pong);
            }
        }
    }

    /// Servers that have feeds, by their backends.
    fn feeds(&self) -> Vec<(BackendId, ServerId)> {
        let mut feeds = Vec::new();
        for (backend, state) in self.redis_backends.entries() {
            let with_feed = state.servers.entries().filter(|(_, server)| server.feed.is_some());
            feeds.extend(with_feed.map(|(server, _)| (backend, server)));
        }
        feeds
    }

    /// Has the servers of a pool say something: what they sent before has come when they have.
    pub(crate) fn sound_feeds(&mut self, backend: BackendId) {
        for (_, server) in self.feeds().into_iter().filter(|&(of, _)| of == backend) {
            let lane = self.feed_lane(backend, server);
            if matches!(self.lane(lane).link, Link::Ready { .. }) {
                self.question(lane, &[b"PING"], Answer::Pong);
            }
        }
    }

    /// Whether servers of the pool that are well have yet to say what they were asked.
    pub(crate) fn awaits_sound(&self, backend: BackendId) -> bool {
        let servers =
            self.backends[backend].servers.iter().zip(&self.redis_backends[backend].servers);
        let up = servers.filter(|(server, _)| server.is_up());
        up.filter_map(|(_, state)| state.feed.as_deref()).any(|feed| {
            matches!(self.lane(feed.lane).link, Link::Ready { .. }) && !feed.is_settled()
        })
    }

    /// Whether the pool's servers may still be connected and confirm.
    pub(crate) fn awaits_feeds(&self, backend: BackendId) -> bool {
        let servers = self.redis_backends[backend].servers.iter();
        servers.filter_map(|server| server.feed.as_deref()).any(|feed| {
            match self.lane(feed.lane).link {
                Link::Ready { .. } => !feed.is_settled(),
                Link::Connecting { .. } | Link::Handshaking { .. } => feed.topics > 0,
                Link::Idle | Link::Backoff { .. } => false,
            }
        })
    }
}

/// What a feed is to the topics that come on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// The pool that has the topics.
    pub(crate) home: BackendId,
    pub(crate) server: ServerId,
    /// The server is one of a pool that is being prepared.
    pub(crate) is_preparing: bool,
}
