//! Who is subscribed to what, and where that is subscribed.

use std::collections::HashMap;
use std::sync::Arc;

use cashew_protocol::redis::glob_matches;

use crate::base::failure::Failure;
use crate::base::id::{ClientId, ServerId, TopicSlot};
use crate::base::slab::Slab;

/// What a topic takes beside its name: its slot, its entry among the names, its place on a server
/// and what is owed there.
pub(crate) const TOPIC_SIZE: usize = 256;
/// What one client's subscription takes: an entry of the topic's and one of the client's.
pub(crate) const SUBSCRIPTION_SIZE: usize = 64;

/// The kinds of what can be subscribed to; a name of one has nothing to do with that of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Channel,
    Pattern,
    /// A channel of SSUBSCRIBE and SPUBLISH.
    Shard,
}

impl Kind {
    pub(crate) fn subscribe(self) -> &'static [u8] {
        match self {
            Self::Channel => b"subscribe",
            Self::Pattern => b"psubscribe",
            Self::Shard => b"ssubscribe",
        }
    }

    pub(crate) fn unsubscribe(self) -> &'static [u8] {
        match self {
            Self::Channel => b"unsubscribe",
            Self::Pattern => b"punsubscribe",
            Self::Shard => b"sunsubscribe",
        }
    }
}

/// Names a topic as long as there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TopicId {
    pub(crate) index: TopicSlot,
    generation: u32,
}

pub(crate) struct Topic {
    pub(crate) kind: Kind,
    pub(crate) name: Arc<[u8]>,
    /// Clients that get its messages.
    pub(crate) subscribers: Vec<ClientId>,
    /// How many of them have asked for no more, and still get what was published before.
    pub(crate) leavers: u32,
    /// Clients that are to be told something about it: that they are subscribed, or while it is
    /// `draining`, that they are not any more. As often as they asked.
    pub(crate) waiting: Waiting,
    pub(crate) places: Vec<Place>,
    /// Nobody wants it any more, and servers have yet to say that they know. It has no name then:
    /// who subscribes to that name makes a new topic. What a server publishes before it says so is for
    /// those who have left it.
    pub(crate) is_draining: bool,
    /// How often a node has sent it to another of late.
    pub(crate) hops: u8,
}

/// Clients that wait for news of a topic. One may wait as often as a request has room for names, so
/// that no step may look at all.
#[derive(Default)]
pub(crate) struct Waiting {
    /// By client: its place in the order of coming, and how often it is to be told.
    clients: HashMap<ClientId, (u64, u32)>,
    next: u64,
}

/// A server that has a topic, or should.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) server: ServerId,
    /// The server is one of the pool that is being prepared.
    pub(crate) is_preparing: bool,
    /// It is to have the topic from the next epoch on.
    pub(crate) is_next: bool,
    pub(crate) standing: Standing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// There is no connection to ask on.
    Away,
    /// By the question of that number.
    Asked(u64),
    Subscribed,
    /// The server answered with this error.
    Refused(Box<[u8]>),
    /// Asked to forget it.
    Leaving,
}

/// What can be said to who wants to subscribe to a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    Waiting,
    Subscribed,
    Failed(ServerId, Failure),
    Refused(Box<[u8]>),
}

pub(crate) struct Topics {
    slots: Slab<TopicSlot, Topic>,
    /// By kind.
    names: [HashMap<Arc<[u8]>, TopicSlot>; 3],
    /// By kind: names of topics that are leaving, and the topics that have them.
    draining: [HashMap<Arc<[u8]>, Vec<TopicSlot>>; 3],
    /// How many subscriptions clients have, all together.
    pub(crate) subscriptions: u64,
}

impl Topics {
    pub(crate) fn new() -> Self {
        Self {
            slots: Slab::new(),
            names: Default::default(),
            draining: Default::default(),
            subscriptions: 0,
        }
    }

    /// How many there are, those among them that nobody wants any more.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn find(&self, kind: Kind, name: &[u8]) -> Option<TopicSlot> {
        self.names[kind as usize].get(name).copied()
    }

    pub(crate) fn insert(&mut self, kind: Kind, name: &[u8]) -> TopicSlot {
        let name: Arc<[u8]> = name.into();
        let (index, _) = self.slots.insert(Topic {
            kind,
            name: name.clone(),
            subscribers: Vec::new(),
            leavers: 0,
            waiting: Waiting::default(),
            places: Vec::new(),
            is_draining: false,
            hops: 0,
        });
        self.names[kind as usize].insert(name, index);
        index
    }

    pub(crate) fn id(&self, index: TopicSlot) -> TopicId {
        TopicId { index, generation: self.slots.generation(index) }
    }

    pub(crate) fn is_current(&self, id: TopicId) -> bool {
        self.slots.is_current(id.index, id.generation)
    }

    pub(crate) fn get(&self, index: TopicSlot) -> &Topic {
        &self.slots[index]
    }

    pub(crate) fn get_mut(&mut self, index: TopicSlot) -> &mut Topic {
        &mut self.slots[index]
    }

    /// Takes its name away from a topic that nobody wants.
    pub(crate) fn begin_draining(&mut self, index: TopicSlot) {
        let topic = self.get_mut(index);
        topic.is_draining = true;
        let (kind, name) = (topic.kind, topic.name.clone());
        self.names[kind as usize].remove(&name);
        self.draining[kind as usize].entry(name).or_default().push(index);
    }

    /// Those of that name that nobody wants any more.
    pub(crate) fn draining(&self, kind: Kind, name: &[u8]) -> &[TopicSlot] {
        let draining = &self.draining[kind as usize];
        match draining.is_empty() {
            true => &[],
            false => draining.get(name).map_or(&[], Vec::as_slice),
        }
    }

    /// Whether servers may yet count a subscription that is known to be none.
    pub(crate) fn has_draining(&self, kind: Kind, name: &[u8]) -> bool {
        let patterns = &self.draining[Kind::Pattern as usize];
        self.draining[kind as usize].contains_key(name)
            || (kind == Kind::Channel && patterns.keys().any(|pattern| glob_matches(pattern, name)))
    }

    pub(crate) fn has_any_draining(&self) -> bool {
        self.draining.iter().any(|draining| !draining.is_empty())
    }

    pub(crate) fn remove(&mut self, index: TopicSlot) -> Topic {
        let topic = self.slots.remove(index);
        debug_assert!(topic.is_draining && topic.subscribers.is_empty());
        let draining = &mut self.draining[topic.kind as usize];
        if let Some(topics) = draining.get_mut(&topic.name) {
            topics.retain(|&other| other != index);
            if topics.is_empty() {
                draining.remove(&topic.name);
            }
        }
        topic
    }

    pub(crate) fn indices(&self) -> Vec<TopicSlot> {
        self.slots.indices().collect()
    }

    pub(crate) fn ids(&self) -> Vec<TopicId> {
        self.slots.indices().map(|index| self.id(index)).collect()
    }

    /// Patterns that clients want.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = TopicSlot> {
        self.names[Kind::Pattern as usize].values().copied()
    }

    /// Gives room back that only a peak needed.
    pub(crate) fn shrink(&mut self) {
        self.slots.shrink();
        self.names.iter_mut().for_each(shrink);
        self.draining.iter_mut().for_each(shrink);
    }
}

fn shrink<T>(names: &mut HashMap<Arc<[u8]>, T>) {
    if names.capacity() > 1024 && names.len() < names.capacity() / 4 {
        names.shrink_to(2 * names.len());
    }
}

impl Topic {
    /// How many are subscribed.
    pub(crate) fn audience(&self) -> u32 {
        self.subscribers.len() as u32 - self.leavers
    }

    /// Whether anybody is subscribed, or wants to be.
    pub(crate) fn is_wanted(&self) -> bool {
        let has_clients = self.audience() > 0 || !self.waiting.is_empty();
        has_clients && !self.is_draining
    }

    pub(crate) fn place(&mut self, server: ServerId, is_preparing: bool) -> Option<&mut Place> {
        self.places.iter_mut().find(|place| place.is_at(server, is_preparing))
    }

    /// Whether a server has it.
    pub(crate) fn is_subscribed(&self) -> bool {
        self.places.iter().any(|place| place.standing == Standing::Subscribed && !place.is_next)
    }

    /// What it takes beside its subscriptions.
    pub(crate) fn size(&self) -> usize {
        TOPIC_SIZE + self.name.len()
    }
}

impl Waiting {
    pub(crate) fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// The client is to be told once more.
    pub(crate) fn add(&mut self, client: ClientId) {
        let (_, count) = self.clients.entry(client).or_insert((self.next, 0));
        *count += 1;
        self.next += 1;
    }

    /// The client is told, once.
    pub(crate) fn told(&mut self, client: ClientId) {
        let Some((_, count)) = self.clients.get_mut(&client) else { return };
        *count -= 1;
        if *count == 0 {
            self.clients.remove(&client);
        }
        if self.clients.is_empty() {
            // Gives back what a peak needed.
            self.clients = HashMap::new();
        }
    }

    /// Each once, in the order of coming.
    pub(crate) fn clients(&self) -> Vec<ClientId> {
        let places = self.clients.iter().map(|(&client, &(place, _))| (place, client));
        let mut places: Vec<(u64, ClientId)> = places.collect();
        places.sort_unstable();
        places.into_iter().map(|(_, client)| client).collect()
    }
}

impl Place {
    pub(crate) fn is_at(&self, server: ServerId, is_preparing: bool) -> bool {
        self.server == server && self.is_preparing == is_preparing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids<const N: usize>(numbers: [u32; N]) -> [ClientId; N] {
        numbers.map(ClientId::new)
    }

    #[test]
    fn who_waits_is_told_as_often_as_it_asked_and_in_the_order_of_coming() {
        let mut waiting = Waiting::default();
        for client in ids([7, 3, 7, 9, 3, 7]) {
            waiting.add(client);
        }
        assert_eq!(waiting.clients(), ids([7, 3, 9]));
        for client in ids([3, 7, 7, 5]) {
            waiting.told(client);
        }
        assert_eq!(waiting.clients(), ids([7, 3, 9]));
        waiting.told(ClientId::new(7));
        assert_eq!(waiting.clients(), ids([3, 9]));
        waiting.add(ClientId::new(7));
        assert_eq!(waiting.clients(), ids([3, 9, 7]));
        for client in ids([3, 7, 9]) {
            assert!(!waiting.is_empty());
            waiting.told(client);
        }
        assert!(waiting.is_empty());
        assert_eq!(waiting.clients.capacity(), 0);
    }
}
