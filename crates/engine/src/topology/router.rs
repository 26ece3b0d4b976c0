//! From a key to a server.

use cashew_config::snapshot::{self, Topology};
use cashew_placement::{Distribution, Hash, HashTag, Node, Ring};
use cashew_protocol::redis::Access;

use crate::base::id::ServerId;
use crate::base::rng::Rng;

/// The placement of one pool: which server answers for which key, for reading and for writing.
///
/// The ring only changes when the whole instance changes it ([`Router::set_live`]); which replica
/// stands in for another that does not answer is decided here and now.
pub(crate) struct Router {
    hash: Hash,
    tag: Option<HashTag>,
    distribution: Distribution,
    nodes: Vec<(String, u32)>,
    shards: Shards,
    ring: Ring,
    /// Nothing but the ring over FNV-1a of the key decides, as by default.
    is_default: bool,
    /// The server of a pool that has but one, while it is live.
    only: Option<ServerId>,
    live: Vec<bool>,
}

enum Shards {
    /// Every server is a shard; the ring is over all.
    Servers,
    /// One shard: `master` takes the writes, the ring is over its replicas.
    Replicated { master: ServerId, reads: ReadPolicy },
}

/// Who answers reads of a shard that has replicas.
enum ReadPolicy {
    /// The replica that the ring names, or another that is up; the master when none is.
    Replicas,
}

impl Router {
    /// With the ring over the servers for which `live` is true.
    pub(crate) fn new(pool: &snapshot::Pool, live: Vec<bool>) -> Self {
        assert_eq!(live.len(), pool.servers.len(), "one flag for each server");
        let nodes = pool.servers.iter().map(|s| (s.name.clone(), s.weight)).collect();
        let shards = match pool.topology {
            Topology::Sharded => Shards::Servers,
            Topology::MasterReplica { master } => {
                Shards::Replicated { master: ServerId::new(master), reads: ReadPolicy::Replicas }
            }
        };
        let mut router = Self {
            hash: pool.hash,
            tag: pool.hash_tag,
            distribution: pool.distribution,
            nodes,
            shards,
            ring: Ring::build(pool.distribution, &[], &[]),
            is_default: false,
            only: None,
            live,
        };
        router.rebuild();
        router
    }

    pub(crate) fn live(&self) -> &[bool] {
        &self.live
    }

    /// Whether any server that may answer for one key may answer for all.
    pub(crate) fn is_one_shard(&self) -> bool {
        matches!(self.shards, Shards::Replicated { .. })
    }

    /// Servers of which each takes the writes of a share of the keys, as far as they are in the ring.
    pub(crate) fn heads(&self) -> impl Iterator<Item = ServerId> {
        let master = match self.shards {
            Shards::Servers => None,
            Shards::Replicated { master, .. } => Some(master),
        };
        let live = self.live.iter().zip((0..).map(ServerId::new));
        live.filter(move |&(&live, at)| match master {
            Some(master) => at == master,
            None => live,
        })
        .map(|(_, at)| at)
    }

    /// Whether it is left to chance which server gets a key that is written.
    pub(crate) fn is_random(&self) -> bool {
        self.distribution == Distribution::Random && !self.is_one_shard()
    }

    /// Whether the server may be left out of the ring: a master has no substitute.
    pub(crate) fn may_eject(&self, server: ServerId) -> bool {
        match self.shards {
            Shards::Servers => true,
            Shards::Replicated { master, .. } => server != master,
        }
    }

    /// Builds the ring over the servers for which `live` is true.
    pub(crate) fn set_live(&mut self, live: Vec<bool>) {
        assert_eq!(live.len(), self.nodes.len(), "one flag per server");
        self.live = live;
        self.rebuild();
    }

    fn rebuild(&mut self) {
        let nodes: Vec<Node<'_>> = self
            .nodes
            .iter()
            .map(|(name, weight)| Node { name: name.as_bytes(), weight: *weight })
            .collect();
        let mut on_ring = self.live.clone();
        if let Shards::Replicated { master, .. } = self.shards {
            on_ring[master.index()] = false;
        }
        self.ring = Ring::build(self.distribution, &nodes, &on_ring);
        self.is_default = !self.is_one_shard()
            && self.ring.needs_hash()
            && self.hash == Hash::Fnv1a64
            && self.tag.is_none();
        let is_only = !self.is_one_shard() && matches!(self.live[..], [true]);
        self.only = is_only.then_some(ServerId::new(0));
    }

    /// The server for `key`, or `None` when all that could answer are ejected. `is_up` says
    /// whether a replica can be reached as far as this worker knows.
    #[inline(always)]
    pub(crate) fn select(
        &self,
        key: &[u8],
        access: Access,
        rng: &mut Rng,
        is_up: impl Fn(ServerId) -> bool,
    ) -> Option<ServerId> {
        if self.is_default && !key.is_empty() {
            return self.ring.select(Hash::Fnv1a64.hash(key)).map(ServerId::new);
        }
        match self.only {
            Some(server) => Some(server),
            None => self.select_otherwise(key, access, rng, is_up),
        }
    }

    #[inline(never)]
    fn select_otherwise(
        &self,
        key: &[u8],
        access: Access,
        rng: &mut Rng,
        is_up: impl Fn(ServerId) -> bool,
    ) -> Option<ServerId> {
        match &self.shards {
            Shards::Servers => self.ring.select(self.point(key, rng)).map(ServerId::new),
            Shards::Replicated { master, reads } => match access {
                Access::Write | Access::None => Some(*master),
                Access::Read => Some(self.replica(key, *master, reads, rng, is_up)),
            },
        }
    }

    fn replica(
        &self,
        key: &[u8],
        master: ServerId,
        reads: &ReadPolicy,
        rng: &mut Rng,
        is_up: impl Fn(ServerId) -> bool,
    ) -> ServerId {
        let ReadPolicy::Replicas = reads;
        let usable =
            |&server: &ServerId| server != master && self.live[server.index()] && is_up(server);
        self.ring
            .select(self.point(key, rng))
            .map(ServerId::new)
            .filter(usable)
            .or_else(|| (0..self.nodes.len() as u32).map(ServerId::new).find(usable))
            .unwrap_or(master)
    }

    #[inline]
    fn point(&self, key: &[u8], rng: &mut Rng) -> u32 {
        if self.distribution == Distribution::Random {
            rng.next() as u32
        } else {
            self.ring.point(self.hash, self.tag, key)
        }
    }
}
