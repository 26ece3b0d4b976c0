//! Publish and subscribe.
//!
//! What clients subscribe to, channels and patterns, are a pool's *topics*. Each worker subscribes
//! to a topic once, however many of its clients did, on a connection to the server that is for
//! nothing else, its *feed*; what comes there is copied to all of them. A channel's topic is on
//! the server that its name belongs to as a key's would, and PUBLISH goes there, too; a pattern's is
//! on all servers, each message being published on one.
//!
//! Nodes of a cluster tell each other what is published: there one node has all channels and patterns, and is where
//! PUBLISH goes. Channels of SSUBSCRIBE are at the owners of their slots, and follow these.
//!
//! A client is told that it is subscribed when the server has said so, and unsubscribed when the
//! server has said that, if it was the last: what is published after an answer finds the
//! subscriptions as they were answered. Requests of one client that concern subscriptions run alone.
//!
//! | file | owns |
//! |---|---|
//! | `topics` | who is subscribed to what, and where that is subscribed: no I/O |
//! | `feed` | the connection: what is asked on it and what is owed, its loss and its return |
//! | `place` | which servers have a topic, also while that changes |
//! | `subscribe` | SUBSCRIBE, and the answers to all that concerns subscriptions |
//! | `leave` | UNSUBSCRIBE, and what was published before it |
//! | `push` | messages, from a feed to the clients |
//! | `publish` | PUBLISH, and how many have heard |

pub(crate) mod feed;
mod leave;
mod place;
pub(crate) mod publish;
mod push;
mod subscribe;
pub(crate) mod topics;

pub(crate) use feed::Feed;
use subscribe::Membership;
pub(crate) use subscribe::Subscriber;
pub(crate) use topics::Topics;

use crate::base::id::{BackendId, ConnId, ServerId};

/// The most bytes that a subscription takes.
pub(crate) fn subscription_size() -> u64 {
    (topics::TOPIC_SIZE + topics::SUBSCRIPTION_SIZE + subscribe::NAME_MAX) as u64
}

/// What a pool has to do with publishing and subscribing.
pub(crate) struct PubSub {
    pub(crate) topics: Topics,
    /// The pool whose topics come to servers of this one: itself, or the one that it is to replace.
    pub(crate) home: BackendId,
    /// Where topics will be after a change of the epoch, while that is prepared.
    pub(crate) next: Option<place::Next>,
    /// Clients for which more waits than is good for long.
    pub(crate) strained: Vec<ConnId>,
    /// Clients that wait to publish until servers have forgotten what was left before.
    pub(crate) publishers: Vec<ConnId>,
    /// Those of them that have waited.
    pub(crate) deferred: Vec<ConnId>,
    /// Of a cluster: where its channels and patterns are, but those of slots. See `place`.
    pub(crate) classic: ServerId,
    /// Tells its channels from those of other pools.
    pub(crate) seed: u64,
}

impl PubSub {
    /// Of the pool of that name.
    pub(crate) fn new(pool: &str) -> Self {
        Self {
            topics: Topics::new(),
            home: BackendId::NONE,
            next: None,
            strained: Vec::new(),
            publishers: Vec::new(),
            deferred: Vec::new(),
            classic: ServerId::NONE,
            seed: hash(FNV_OFFSET, pool.as_bytes()),
        }
    }

    /// What a topic is known by to other workers.
    pub(crate) fn hash(&self, kind: topics::Kind, name: &[u8]) -> u64 {
        let hash = hash(hash(self.seed, &[0xff, kind as u8]), name);
        // FNV's upper bits hardly know of the last bytes.
        (hash ^ hash >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

fn hash(from: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(from, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
