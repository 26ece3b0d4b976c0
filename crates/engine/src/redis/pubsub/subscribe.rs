//! SUBSCRIBE, UNSUBSCRIBE and what belongs to them.

use std::collections::{BTreeMap, VecDeque};

use cashew_metrics::PoolGauge;
use cashew_protocol::Span;
use cashew_protocol::redis::{Command, Local, Rule, SessionRule, Subscription};
use cashew_protocol::resp::encode;

use crate::base::id::{BackendId, ClientId, RequestId, ServerId, TopicSlot};
use crate::base::time::Time;
use crate::downstream::client::{Client, Handoff};
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::redis::pubsub::topics::{Kind, Readiness, SUBSCRIPTION_SIZE, TopicId};
use crate::upstream::session_params::WireProtocol;

/// The longest name of a channel or pattern. Redis has no limit, but here names are kept and sent
/// again.
pub(crate) const NAME_MAX: usize = 64 * 1024;
/// Longest pattern: each message that is published is held against all of them.
const PATTERN_MAX: usize = 1024;

/// What a client that is subscribed to anything has more than others.
pub(crate) struct Subscriber {
    /// By topic.
    pub(super) topics: BTreeMap<TopicSlot, Membership>,
    /// By kind, without those that are being left.
    pub(super) counts: [u32; 3],
    /// The request that is being answered.
    pub(super) pending: Option<Pending>,
    /// Messages that wait for the end of a reply.
    pub(crate) held: Vec<u8>,
    /// Since when more waits than is good for long, or never.
    pub(crate) strained_since: Time,
}

/// One client among a topic's subscribers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Membership {
    /// Its place there.
    pub(super) at: u32,
    /// It has asked for no more, and gets what was published before.
    pub(super) is_draining: bool,
}

/// A request whose answers are given one after the other, as servers confirm. It is its client's
/// only one.
pub(super) struct Pending {
    pub(super) request: RequestId,
    pub(super) lines: VecDeque<Line>,
    /// Topics that the client leaves and others do not.
    pub(super) left: Vec<TopicSlot>,
    /// Servers that have yet to say that what they published before has come: see
    /// [`Engine::ask_for_mark`].
    pub(super) marks: u32,
}

pub(super) enum Line {
    Subscribe(TopicId),
    /// The client is not subscribed any more. It is told when the topic is gone, if it was the last, or
    /// when what was published before has come.
    Unsubscribed {
        kind: Kind,
        name: Option<Box<[u8]>>,
        count: u32,
        topic: Option<TopicId>,
    },
    /// The same for one that is not told so.
    Left(Option<TopicId>),
}

impl Line {
    /// The topic that has to be gone.
    pub(super) fn left(&self) -> Option<TopicId> {
        match self {
            Self::Subscribe(_) => None,
            Self::Unsubscribed { topic, .. } | Self::Left(topic) => *topic,
        }
    }
}

impl Subscriber {
    fn new() -> Self {
        Self {
            topics: BTreeMap::new(),
            counts: [0; 3],
            pending: None,
            held: Vec::new(),
            strained_since: Time::NEVER,
        }
    }

    /// What is told as the number of subscriptions, of which there are two kinds.
    fn count(&self, kind: Kind) -> u32 {
        match kind {
            Kind::Shard => self.counts[Kind::Shard as usize],
            Kind::Channel | Kind::Pattern => {
                self.counts[Kind::Channel as usize] + self.counts[Kind::Pattern as usize]
            }
        }
    }
}

impl Engine {
    /// A request that concerns subscriptions. It runs alone: what came before it is answered, and
    /// what comes after it waits for the servers' confirmations, since messages and other replies
    /// come by different connections.
    pub(crate) fn subscription(
        &mut self,
        client: ClientId,
        which: Subscription,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        if self.clients[client].requests > 0 {
            return Plan::Wait;
        }
        let names = args[1..].iter().map(|span| span.of(bytes));
        match which {
            Subscription::Subscribe => self.subscribe(client, Kind::Channel, names),
            Subscription::Psubscribe => self.subscribe(client, Kind::Pattern, names),
            Subscription::Ssubscribe => self.subscribe(client, Kind::Shard, names),
            Subscription::Unsubscribe => self.unsubscribe(client, Kind::Channel, names),
            Subscription::Punsubscribe => self.unsubscribe(client, Kind::Pattern, names),
            Subscription::Sunsubscribe => self.unsubscribe(client, Kind::Shard, names),
        }
    }

    /// The error for a command that a client may not give while it is subscribed.
    pub(crate) fn refused_while_subscribed(
        &self,
        client: ClientId,
        command: &Command,
    ) -> Option<String> {
        let owner = &self.clients[client];
        let subscriber = owner.modes.subscriber.as_deref()?;
        let is_confined =
            owner.session.wire_protocol == WireProtocol::Resp2 && !subscriber.topics.is_empty();
        let is_allowed = matches!(
            command.rule,
            Rule::Subscribe(_)
                | Rule::Local(Local::Ping | Local::Quit)
                | Rule::Session(SessionRule::Reset)
        );
        (is_confined && !is_allowed).then(|| {
            let name = command.name;
            format!(
                "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT \
                 / RESET are allowed in this context"
            )
        })
    }

    /// Whether PING is answered as a message, which who only waits for messages can read.
    pub(crate) fn is_pinged_as_subscriber(&self, client: ClientId) -> bool {
        let owner = &self.clients[client];
        owner.session.wire_protocol == WireProtocol::Resp2
            && owner
                .modes
                .subscriber
                .as_deref()
                .is_some_and(|subscriber| !subscriber.topics.is_empty())
    }

    fn subscribe<'n>(
        &mut self,
        client: ClientId,
        kind: Kind,
        names: impl ExactSizeIterator<Item = &'n [u8]> + Clone,
    ) -> Plan {
        if let Some(text) = self.too_many(client, kind, names.clone()) {
            return self.reply_error(client, text);
        }
        let backend = self.keyless_backend(client);
        let request = self.new_request(client);
        let mut lines = VecDeque::with_capacity(names.len());
        for name in names {
            let topic = self.topic(backend, kind, name);
            let topics = &mut self.redis_backends[backend].pubsub.topics;
            topics.get_mut(topic).waiting.add(client);
            lines.push_back(Line::Subscribe(topics.id(topic)));
        }
        self.begin_pending(client, request, lines, Vec::new());
        Plan::Done
    }

    /// The error when the client, or all together, would have too many subscriptions.
    fn too_many<'n>(
        &self,
        client: ClientId,
        kind: Kind,
        mut names: impl ExactSizeIterator<Item = &'n [u8]>,
    ) -> Option<&'static str> {
        let limits = &self.listener_of(client).limits;
        let topics = &self.redis_backends[self.keyless_backend(client)].pubsub.topics;
        let own = self.clients[client].modes.subscriber.as_deref().map_or(0, |s| s.topics.len());
        let more = names.len();
        if own + more > limits.client_subscriptions_max as usize {
            return Some("ERR max number of subscriptions of a client reached");
        }
        let all = topics.subscriptions.max(topics.len() as u64);
        if all + more as u64 > u64::from(limits.subscriptions_max) {
            return Some("ERR max number of subscriptions reached");
        }
        let (max, text) = match kind {
            Kind::Pattern => (PATTERN_MAX, "ERR pattern is too long"),
            Kind::Channel | Kind::Shard => (NAME_MAX, "ERR channel name is too long"),
        };
        names.any(|name| name.len() > max).then_some(text)
    }

    /// Of the topics that the client leaves, those in `left` have other subscribers.
    pub(super) fn begin_pending(
        &mut self,
        client: ClientId,
        request: RequestId,
        lines: VecDeque<Line>,
        left: Vec<TopicSlot>,
    ) {
        let owner = &mut self.clients[client];
        owner.leave_fast_path();
        // Nothing is dispatched before it is answered.
        owner.fenced = true;
        let subscriber =
            owner.modes.enter().subscriber.get_or_insert_with(|| Box::new(Subscriber::new()));
        debug_assert!(subscriber.pending.is_none(), "such requests run alone");
        subscriber.pending = Some(Pending { request, lines, left: Vec::new(), marks: 0 });
        self.ask_for_marks(client, left);
        self.answer_pending(client);
    }

    pub(crate) fn topics_of(&self, client: ClientId, kind: Kind) -> Vec<TopicSlot> {
        let owner = &self.clients[client];
        let topics = &self.redis_backends[self.keyless_backend(client)].pubsub.topics;
        let subscribed =
            owner.modes.subscriber.iter().flat_map(|subscriber| subscriber.topics.iter());
        subscribed
            .filter(|(topic, membership)| {
                topics.get(**topic).kind == kind && !membership.is_draining
            })
            .map(|(&topic, _)| topic)
            .collect()
    }

    pub(super) fn subscriptions(&self, client: ClientId, kind: Kind) -> u32 {
        self.clients[client]
            .modes
            .subscriber
            .as_deref()
            .map_or(0, |subscriber| subscriber.count(kind))
    }

    /// Makes a client one of the topic's subscribers, unless it is already.
    fn join_topic(&mut self, client: ClientId, topic: TopicSlot) {
        let home = self.keyless_backend(client);
        let owner = &mut self.clients[client];
        let topics = &mut self.redis_backends[home].pubsub.topics;
        let subscriber = owner.modes.subscriber().expect("it is being subscribed");
        if subscriber.topics.contains_key(&topic) {
            return;
        }
        let state = topics.get_mut(topic);
        let at = state.subscribers.len() as u32;
        subscriber.topics.insert(topic, Membership { at, is_draining: false });
        subscriber.counts[state.kind as usize] += 1;
        state.subscribers.push(client);
        topics.subscriptions += 1;
        self.bufs.charge(SUBSCRIPTION_SIZE);
        let metrics = self.backends[home].metrics;
        self.metrics.set_pool(metrics, PoolGauge::Subscriptions, topics.subscriptions);
        self.notify_audience(home, topic);
    }

    /// Writes what can be said of the request that is being answered.
    pub(crate) fn answer_pending(&mut self, client: ClientId) {
        loop {
            let owner = &self.clients[client];
            let backend = self.keyless_backend(client);
            let Some(subscriber) = owner.modes.subscriber.as_deref() else { return };
            let Some(pending) = &subscriber.pending else { return };
            let Some(line) = pending.lines.front() else { break };
            let (topic, readiness) = match line {
                Line::Subscribe(topic) => (Some(*topic), self.readiness(backend, topic.index)),
                Line::Unsubscribed { .. } | Line::Left(_) => {
                    let topics = &self.redis_backends[backend].pubsub.topics;
                    let is_left = |topic| !topics.is_current(topic);
                    match pending.marks == 0 && line.left().is_none_or(is_left) {
                        true => (None, Readiness::Subscribed),
                        false => (None, Readiness::Waiting),
                    }
                }
            };
            if readiness == Readiness::Waiting {
                return;
            }
            let owner = &mut self.clients[client];
            let subscriber = owner.modes.subscriber().expect("it was just there");
            let pending = subscriber.pending.as_mut().expect("it was just there");
            let line = pending.lines.pop_front().expect("it was just there");
            match (line, topic) {
                (Line::Subscribe(_), Some(topic)) => self.subscribed(client, topic, readiness),
                (Line::Unsubscribed { kind, name, count, .. }, _) => {
                    self.confirm(client, kind.unsubscribe(), name.as_deref(), count);
                }
                (Line::Left(_), _) => {}
                (Line::Subscribe(_), None) => unreachable!("it is of a topic"),
            }
        }
        self.end_pending(client);
    }

    /// The client is subscribed to the topic, or could not be.
    fn subscribed(&mut self, client: ClientId, topic: TopicId, readiness: Readiness) {
        let backend = self.keyless_backend(client);
        let topics = &mut self.redis_backends[backend].pubsub.topics;
        topics.get_mut(topic.index).waiting.told(client);
        match readiness {
            Readiness::Subscribed => {
                self.join_topic(client, topic.index);
                let state = self.redis_backends[backend].pubsub.topics.get(topic.index);
                let (kind, name) = (state.kind, state.name.clone());
                let count = self.subscriptions(client, kind);
                self.confirm(client, kind.subscribe(), Some(&name), count);
            }
            Readiness::Failed(server, why) => {
                let protocol = self.protocol_of(client);
                self.count_forward_error(backend);
                let failure = match server {
                    ServerId::NONE => why.into(),
                    server => self.backends[backend].named(server, why),
                };
                let output = &mut self.clients[client].output;
                output.write_with(&mut self.bufs, 64, |out| failure.write_reply(protocol, out));
                self.mark_client(client);
                self.leave_if_unwanted(backend, topic.index);
            }
            Readiness::Refused(text) => {
                self.clients[client].output.push(&text, &mut self.bufs);
                self.mark_client(client);
                self.leave_if_unwanted(backend, topic.index);
            }
            Readiness::Waiting => unreachable!("there is something to say"),
        }
    }

    /// Tells a client of a subscription that began or ended.
    fn confirm(&mut self, client: ClientId, verb: &[u8], name: Option<&[u8]>, count: u32) {
        let owner = &mut self.clients[client];
        let name = match (owner.session.key_prefix(), name) {
            (Some(prefix), Some(name)) if verb.starts_with(b"p") => {
                Some(prefix.strip_pattern(name))
            }
            (Some(prefix), Some(name)) => Some(prefix.strip(name)),
            (_, name) => name,
        };
        let kind = if owner.session.wire_protocol == WireProtocol::Resp3 { b'>' } else { b'*' };
        let is_resp3 = kind == b'>';
        let room = name.map_or(0, <[u8]>::len) + 64;
        owner.output.write_with(&mut self.bufs, room, |out| {
            out.extend_from_slice(&[kind, b'3', b'\r', b'\n']);
            encode::write_bulk(out, verb);
            match name {
                Some(name) => encode::write_bulk(out, name),
                None if is_resp3 => out.extend_from_slice(b"_\r\n"),
                None => encode::write_nil(out),
            }
            encode::write_integer(out, i64::from(count));
        });
        self.mark_client(client);
    }

    /// All is said.
    fn end_pending(&mut self, client: ClientId) {
        let owner = &mut self.clients[client];
        let Some(subscriber) = owner.modes.subscriber() else { return };
        let Some(pending) = subscriber.pending.take() else { return };
        if subscriber.topics.is_empty() {
            self.end_subscriber(client);
        }
        self.requests[pending.request].done = true;
        self.client_ready(client);
    }

    /// The client is like any other again.
    pub(super) fn end_subscriber(&mut self, client: ClientId) {
        let owner = &mut self.clients[client];
        let Some(subscriber) = owner.modes.end_subscriber() else { return };
        owner.held -= subscriber.held.len() as u64;
        owner.output.push_buf(subscriber.held, &mut self.bufs);
        self.update_off_fast_path(client);
        // It could not be told to leave before.
        self.leave_new(client);
    }

    /// Tells those who wait for news of the topic.
    pub(crate) fn notify_waiting(&mut self, backend: BackendId, topic: TopicSlot) {
        let waiting = self.redis_backends[backend].pubsub.topics.get(topic).waiting.clients();
        for client in waiting {
            self.answer_pending(client);
        }
    }

    /// Whether the client is told what comes from elsewhere, which another worker would miss, or is tied to this one.
    pub(crate) fn is_pinned(&self, client: ClientId) -> bool {
        let Client { modes, handoff, .. } = &self.clients[client];
        *handoff == Handoff::Tied || modes.subscriber.is_some() || modes.monitor.is_some()
    }
}
