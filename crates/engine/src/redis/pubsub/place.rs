//! Which servers have a topic, also while that changes.
//!
//! A change of the epoch loses no message: topics that move are subscribed on their next servers
//! while the change is prepared, and left on the former ones after the commit. Between the two
//! nothing is published, and no worker says that it pauses before it has read what was.

use std::collections::{HashMap, HashSet};

use cashew_config::snapshot;

use crate::base::failure::Failure;
use crate::base::id::{BackendId, LaneId, ServerId, TopicSlot};
use crate::base::outcome::Refusal;
use crate::engine::Engine;
use crate::redis::pubsub::feed::Source;
use crate::redis::pubsub::topics::{Kind, Place, Readiness, Standing, TopicId};
use crate::topology::Topology;
use crate::upstream::backend::Backend;
use crate::upstream::lane::{Lane, Link};
use crate::upstream::redirect::Redirect;

/// So often a channel is asked for elsewhere at once.
const HOPS_MAX: u8 = 5;

/// Where the topics of a pool will be.
pub(crate) struct Next {
    /// The pool that has the topology to come, and the servers that are not known yet.
    pub(crate) preparing: BackendId,
    /// By server to come: which of those in use it is.
    pub(super) kept: Vec<Option<ServerId>>,
}

/// Each server publishes what happens to its own keys. Else nodes of a cluster tell each other what is published,
/// so that one of them has it all.
pub(super) fn is_of_every_server(kind: Kind, name: &[u8], of_cluster: bool) -> bool {
    match kind {
        Kind::Pattern if of_cluster => name.starts_with(b"__key"),
        Kind::Pattern => true,
        Kind::Channel => is_of_key(name),
        Kind::Shard => false,
    }
}

/// Whether servers say there what happens to their keys (`notify-keyspace-events`).
pub(super) fn is_of_key(channel: &[u8]) -> bool {
    channel.starts_with(b"__keyspace@") || channel.starts_with(b"__keyevent@")
}

impl Engine {
    /// The topic of that name, which is made and asked for if there is none.
    pub(crate) fn topic(&mut self, pool_index: BackendId, kind: Kind, name: &[u8]) -> TopicSlot {
        let topics = &mut self.redis_backends[pool_index].pubsub.topics;
        if let Some(topic) = topics.find(kind, name) {
            return topic;
        }
        let topic = topics.insert(kind, name);
        self.bufs.charge(topics.get(topic).size());
        self.place_topic(pool_index, topic);
        topic
    }

    /// The servers that have the channel, or each a part of what is published.
    fn servers_of(&mut self, pool_index: BackendId, kind: Kind, name: &[u8]) -> Vec<ServerId> {
        let Backend { topology, config, .. } = &self.backends[pool_index];
        if is_of_every_server(kind, name, topology.has_slots()) || topology.is_random() {
            return heads(topology, config);
        }
        self.channel_server(pool_index, kind, name).into_iter().collect()
    }

    /// The node of a cluster where channels and patterns are that any node hears of, and where is published: one
    /// for all, so that what clients of this gateway publish keeps its order and is counted as one server does.
    /// Another is chosen when it is lost.
    pub(super) fn classic_node(&mut self, backend: BackendId) -> Option<ServerId> {
        let pubsub = &self.redis_backends[backend].pubsub;
        let Backend { topology, servers, config, .. } = &self.backends[backend];
        let is_head = |server: ServerId| server.index() < servers.len() && topology.is_head(server);
        let is_lost = |server: ServerId| !servers[server].is_up() || servers[server].is_silent();
        if pubsub.home != BackendId::NONE {
            // One that is to come stays where the one in use is.
            let home = &self.redis_backends[pubsub.home].pubsub;
            let kept = home.next.as_ref().map_or(&[][..], |next| &next.kept);
            let same = kept.iter().position(|&old| old == Some(home.classic));
            let same = same.map(|at| ServerId::new(at as u32)).filter(|&server| is_head(server));
            if same.is_some() && home.classic != ServerId::NONE {
                return same;
            }
        }
        let current = pubsub.classic;
        if current != ServerId::NONE && is_head(current) && !is_lost(current) {
            return Some(current);
        }
        let rank = |server: ServerId| {
            pubsub.hash(Kind::Channel, config.servers[server.index()].name.as_bytes())
        };
        let chosen = topology.heads().min_by_key(|&server| (is_lost(server), rank(server)));
        self.redis_backends[backend].pubsub.classic = chosen.unwrap_or(ServerId::NONE);
        chosen
    }

    /// Has topics elsewhere that were at the node which is lost.
    pub(crate) fn leave_lost_node(&mut self, home: BackendId) {
        let before = self.redis_backends[home].pubsub.classic;
        if self.backends[home].topology.has_slots()
            && before != ServerId::NONE
            && self.classic_node(home) != Some(before)
        {
            self.place_topics(home);
        }
    }

    /// A node of a cluster has not subscribed to a channel, as its slot is another's, or has forgotten it, as the
    /// slot has moved away. Clients need not know. Returns whether that is so.
    pub(super) fn shard_is_elsewhere(&mut self, lane: LaneId, topic: TopicId, text: &[u8]) -> bool {
        let Lane { backend, server, .. } = self.lanes[lane];
        if !self.backends[backend].topology.has_slots() {
            return false;
        }
        match Redirect::of(text) {
            Some(Redirect::Moved { slot, to }) => _ = self.learn_owner(backend, server, slot, to),
            Some(Redirect::Ask { .. } | Redirect::TryAgain) => self.doubt_map(backend),
            None => return false,
        }
        let source = self.source_of(lane);
        let state = self.redis_backends[source.home].pubsub.topics.get_mut(topic.index);
        if let Some(place) = state.place(source.server, source.is_preparing) {
            place.standing = Standing::Away;
        }
        state.hops = state.hops.saturating_add(1);
        // Nodes that send it to each other are asked again a little later: see `retry_shards`.
        if state.hops <= HOPS_MAX {
            self.place_topic(source.home, topic.index);
        }
        true
    }

    /// A node has forgotten a channel without being asked to. Whom it is with now, it says when it is asked for it.
    pub(super) fn shard_is_dropped(&mut self, lane: LaneId, name: &[u8]) {
        let Source { home, server, is_preparing } = self.source_of(lane);
        let backend = self.lanes[lane].backend;
        self.doubt_map(backend);
        let topics = &mut self.redis_backends[home].pubsub.topics;
        let Some(topic) = topics.find(Kind::Shard, name) else { return };
        let id = topics.id(topic);
        if let Some(place) = topics.get_mut(topic).place(server, is_preparing)
            && place.standing == Standing::Subscribed
        {
            place.standing = Standing::Away;
            self.notify_audience(home, topic);
            self.ask_for(backend, server, id);
        }
    }

    /// Asks again for channels of a cluster's slots that no node has taken. To be called once a second.
    pub(crate) fn retry_shards(&mut self) {
        for home in self.backends.ids() {
            if !self.backends[home].topology.has_slots() {
                continue;
            }
            for id in self.redis_backends[home].pubsub.topics.ids() {
                let topics = &mut self.redis_backends[home].pubsub.topics;
                let state = topics.get_mut(id.index);
                state.hops = 0;
                if state.kind != Kind::Shard || state.is_draining {
                    continue;
                }
                for place in &mut state.places {
                    if matches!(&place.standing, Standing::Refused(text) if is_passing(text)) {
                        place.standing = Standing::Away;
                    }
                }
                self.place_topic(home, id.index);
                let places = self.redis_backends[home].pubsub.topics.get(id.index).places.clone();
                for place in places.iter().filter(|place| place.standing == Standing::Away) {
                    let pool = self.pool_of(home, place.is_preparing);
                    self.ask_for(pool, place.server, id);
                }
            }
        }
    }

    /// Has the topic on the servers where it belongs, and on no others.
    fn place_topic(&mut self, home: BackendId, topic: TopicSlot) {
        let state = self.redis_backends[home].pubsub.topics.get(topic);
        if state.is_draining {
            return;
        }
        let (kind, name) = (state.kind, state.name.clone());
        let mut wanted: Vec<(ServerId, bool, bool)> =
            self.servers_of(home, kind, &name).into_iter().map(|at| (at, false, false)).collect();
        if let Some(next) = &self.redis_backends[home].pubsub.next {
            let (preparing, kept) = (next.preparing, next.kept.clone());
            for server in self.servers_of(preparing, kind, &name) {
                let (server, is_preparing) = match kept[server.index()] {
                    Some(old) => (old, false),
                    None => (server, true),
                };
                if !wanted
                    .iter()
                    .any(|&(at, preparing, _)| (at, preparing) == (server, is_preparing))
                {
                    wanted.push((server, is_preparing, true));
                }
            }
        }
        let state = self.redis_backends[home].pubsub.topics.get(topic);
        let had: Vec<(ServerId, bool)> =
            state.places.iter().map(|place| (place.server, place.is_preparing)).collect();
        let id = self.redis_backends[home].pubsub.topics.id(topic);
        // First there, then not here any more.
        for &(server, is_preparing, is_next) in &wanted {
            let state = self.redis_backends[home].pubsub.topics.get_mut(topic);
            match state.place(server, is_preparing) {
                Some(place) => place.is_next = is_next,
                None => {
                    let standing = Standing::Away;
                    state.places.push(Place { server, is_preparing, is_next, standing });
                    let pool = self.pool_of(home, is_preparing);
                    self.feed_lane(pool, server);
                    self.count_place(pool, server, 1);
                    self.ask_for(pool, server, id);
                }
            }
        }
        for (server, is_preparing) in had {
            if !wanted.iter().any(|&(at, preparing, _)| (at, preparing) == (server, is_preparing))
                && !self.is_kept_for_now(home, topic, server, is_preparing)
            {
                self.leave_place(home, id, server, is_preparing);
            }
        }
    }

    /// Whether a channel of a cluster's slot stays with a node until another one has it: who says that the slot has
    /// moved may know less than the node, which forgets the channel by itself once it has. Not so a replica, which
    /// hears what its primary does.
    fn is_kept_for_now(
        &mut self,
        home: BackendId,
        topic: TopicSlot,
        server: ServerId,
        is_preparing: bool,
    ) -> bool {
        let topology = &self.backends[home].topology;
        let state = self.redis_backends[home].pubsub.topics.get_mut(topic);
        let is_of_slot = state.kind == Kind::Shard && topology.has_slots();
        let is_taken = |it: &Place| !it.is_next && it.standing == Standing::Subscribed;
        let is_elsewhere =
            state.places.iter().any(|it| is_taken(it) && !it.is_at(server, is_preparing));
        is_of_slot
            && !is_preparing
            && topology.is_head(server)
            && state.place(server, false).is_some_and(|it| is_taken(it))
            && !is_elsewhere
    }

    /// A node has a topic. If it is a channel of a cluster's slot, others leave it now.
    pub(super) fn is_taken(&mut self, home: BackendId, topic: TopicSlot) {
        let state = self.redis_backends[home].pubsub.topics.get(topic);
        if state.kind == Kind::Shard && state.places.len() > 1 {
            self.place_topic(home, topic);
        }
    }

    /// The pool that a place of a topic is in.
    pub(super) fn pool_of(&self, home: BackendId, is_preparing: bool) -> BackendId {
        match &self.redis_backends[home].pubsub.next {
            Some(next) if is_preparing => next.preparing,
            _ => home,
        }
    }

    fn count_place(&mut self, backend: BackendId, server: ServerId, change: i32) {
        let server = &mut self.redis_backends[backend].servers[server];
        if let Some(feed) = &mut server.feed {
            feed.topics = feed.topics.saturating_add_signed(change);
        }
    }

    /// A topic that clients want is not to be on that server any more.
    fn leave_place(
        &mut self,
        home: BackendId,
        topic: TopicId,
        server: ServerId,
        is_preparing: bool,
    ) {
        let state = self.redis_backends[home].pubsub.topics.get_mut(topic.index);
        let Some(place) = state.place(server, is_preparing) else { return };
        let is_known = matches!(place.standing, Standing::Asked(_) | Standing::Subscribed);
        let pool = self.pool_of(home, is_preparing);
        if is_known {
            self.ask_to_forget(pool, server, topic);
        }
        self.remove_place(home, topic.index, server, is_preparing);
    }

    pub(crate) fn remove_place(
        &mut self,
        home: BackendId,
        topic: TopicSlot,
        server: ServerId,
        is_preparing: bool,
    ) {
        let pool = self.pool_of(home, is_preparing);
        let state = self.redis_backends[home].pubsub.topics.get_mut(topic);
        let before = state.places.len();
        state.places.retain(|place| !place.is_at(server, is_preparing));
        if state.places.len() < before {
            self.count_place(pool, server, -1);
        }
    }

    /// Lets go of a topic that nobody wants any more. Returns it if servers have yet to say that they
    /// have forgotten it.
    pub(crate) fn leave_if_unwanted(
        &mut self,
        home: BackendId,
        topic: TopicSlot,
    ) -> Option<TopicId> {
        let topics = &mut self.redis_backends[home].pubsub.topics;
        let state = topics.get(topic);
        if state.is_wanted() || state.is_draining {
            return None;
        }
        // While it has its name.
        self.notify_audience(home, topic);
        let topics = &mut self.redis_backends[home].pubsub.topics;
        topics.begin_draining(topic);
        let id = topics.id(topic);
        for place in topics.get(topic).places.clone() {
            let Place { server, is_preparing, standing, .. } = place;
            let pool = self.pool_of(home, is_preparing);
            let is_known = matches!(standing, Standing::Asked(_) | Standing::Subscribed);
            if is_known && self.ask_to_forget(pool, server, id) {
                let state = self.redis_backends[home].pubsub.topics.get_mut(topic);
                let place = state.place(server, is_preparing).expect("it is being asked there");
                place.standing = Standing::Leaving;
            } else {
                self.remove_place(home, topic, server, is_preparing);
            }
        }
        let is_gone = self.forget_if_gone(home, topic);
        (!is_gone).then_some(id)
    }

    /// Forgets a topic that no server has any more. Returns whether it is gone.
    pub(crate) fn forget_if_gone(&mut self, home: BackendId, topic: TopicSlot) -> bool {
        let topics = &mut self.redis_backends[home].pubsub.topics;
        let state = topics.get(topic);
        if !state.is_draining || !state.places.is_empty() {
            return false;
        }
        self.dismiss_leavers(home, topic);
        let state = self.redis_backends[home].pubsub.topics.remove(topic);
        self.bufs.discharge(state.size());
        for client in state.waiting.clients() {
            self.answer_pending(client);
        }
        self.wake_publishers(home);
        true
    }

    /// What can be said to who wants to be subscribed.
    pub(crate) fn readiness(&self, home: BackendId, topic: TopicSlot) -> Readiness {
        let state = self.redis_backends[home].pubsub.topics.get(topic);
        let (mut is_subscribed, mut why) = (false, (ServerId::NONE, Failure::NoServer));
        for place in state.places.iter().filter(|place| !place.is_next) {
            match &place.standing {
                Standing::Asked(_) | Standing::Leaving => return Readiness::Waiting,
                Standing::Refused(text) => return Readiness::Refused(text.clone()),
                Standing::Subscribed => is_subscribed = true,
                Standing::Away => match self.absence(home, place) {
                    None => return Readiness::Waiting,
                    Some(failure) => why = (place.server, failure),
                },
            }
        }
        // Where several servers have the topic those that can be reached are enough: the others
        // follow when they are back.
        if is_subscribed { Readiness::Subscribed } else { Readiness::Failed(why.0, why.1) }
    }

    /// Why a server cannot be asked, unless that is only a matter of time.
    fn absence(&self, home: BackendId, place: &Place) -> Option<Failure> {
        let backend = self.pool_of(home, place.is_preparing);
        let server = &self.backends[backend].servers[place.server];
        let Some(lane) = server.feed_lane() else { return Some(Failure::NoServer) };
        let lane = self.lane(lane);
        if server.is_silent() {
            return Some(Failure::Silent);
        }
        match lane.link {
            Link::Connecting { .. } | Link::Handshaking { .. } | Link::Ready { .. } => None,
            Link::Idle | Link::Backoff { .. } => Some(lane.last_failure),
        }
    }

    /// Another ring places keys: topics follow.
    pub(crate) fn place_topics(&mut self, home: BackendId) {
        for topic in self.redis_backends[home].pubsub.topics.indices() {
            self.place_topic(home, topic);
        }
        self.notify_audiences(home);
        for id in self.redis_backends[home].pubsub.topics.ids() {
            let topics = &self.redis_backends[home].pubsub.topics;
            if topics.is_current(id) && !topics.get(id.index).waiting.is_empty() {
                self.notify_waiting(home, id.index);
            }
        }
    }

    /// The pool is to be replaced by another one: what moves is subscribed there beforehand.
    pub(crate) fn prepare_topics(
        &mut self,
        home: BackendId,
        preparing: BackendId,
        kept: &[Option<ServerId>],
    ) {
        self.redis_backends[preparing].pubsub.home = home;
        self.redis_backends[home].pubsub.next = Some(Next { preparing, kept: kept.to_vec() });
        self.place_topics(home);
    }

    /// The pool is not to be replaced after all.
    pub(crate) fn abort_topics(&mut self, home: BackendId) {
        // While it is known what is coming, so that it can be left.
        for topic in self.redis_backends[home].pubsub.topics.indices() {
            let topics = &self.redis_backends[home].pubsub.topics;
            let (id, places) = (topics.id(topic), topics.get(topic).places.clone());
            for place in places.iter().filter(|place| place.is_next || place.is_preparing) {
                self.leave_place(home, id, place.server, place.is_preparing);
            }
            self.forget_if_gone(home, topic);
        }
        if let Some(next) = self.redis_backends[home].pubsub.next.take() {
            self.redis_backends[next.preparing].pubsub.home = BackendId::NONE;
        }
    }

    /// The pool has been replaced: servers have other numbers, and topics are where they will be.
    pub(crate) fn commit_topics(&mut self, home: BackendId) {
        let pubsub = &mut self.redis_backends[home].pubsub;
        pubsub.home = BackendId::NONE;
        let Some(Next { kept, .. }) = pubsub.next.take() else {
            return self.notify_audiences(home);
        };
        let places: HashMap<ServerId, usize> =
            kept.iter().enumerate().filter_map(|(new, old)| Some(((*old)?, new))).collect();
        let new_place = |old: ServerId| places.get(&old).copied();
        let classic = Some(pubsub.classic).filter(|&it| it != ServerId::NONE).and_then(new_place);
        pubsub.classic = classic.map_or(ServerId::NONE, |at| ServerId::new(at as u32));
        for topic in pubsub.topics.indices() {
            pubsub.topics.get_mut(topic).places.retain_mut(|place| {
                let server = match place.is_preparing {
                    true => Some(place.server.index()),
                    false => new_place(place.server),
                };
                (place.is_preparing, place.is_next) = (false, false);
                place.server = server.map_or(ServerId::NONE, |server| ServerId::new(server as u32));
                server.is_some()
            });
        }
        for topic in self.redis_backends[home].pubsub.topics.indices() {
            self.forget_if_gone(home, topic);
        }
        self.place_topics(home);
    }

    /// Tells other workers of all topics: they are on other servers, or it is told elsewhere from now on.
    fn notify_audiences(&self, home: BackendId) {
        for topic in self.redis_backends[home].pubsub.topics.indices() {
            self.notify_audience(home, topic);
        }
    }

    /// Forgets all topics of a pool that has no clients any more.
    pub(crate) fn drop_topics(&mut self, backend: BackendId) {
        for topic in self.redis_backends[backend].pubsub.topics.indices() {
            let state = self.redis_backends[backend].pubsub.topics.get(topic);
            debug_assert!(state.subscribers.is_empty(), "the pool has no clients");
            self.bufs.discharge(state.size());
        }
        let name = &self.backends[backend].config.name;
        self.redis_backends[backend].pubsub = super::PubSub::new(name);
    }
}

/// Whether a node says what will be otherwise in a moment.
fn is_passing(error: &[u8]) -> bool {
    Refusal::is_of_cluster(error) || error.starts_with(b"-LOADING ")
}

/// The servers of which each may publish something of its own, none of them twice.
fn heads(topology: &Topology, config: &snapshot::Pool) -> Vec<ServerId> {
    let mut seen = HashSet::new();
    let is_new = |&server: &ServerId| seen.insert(&config.servers[server.index()].endpoint);
    topology.heads().filter(is_new).collect()
}
