//! From a key to a shard to a server: pure, and the only way there is.

mod shard;

use cashew_config::snapshot::{self, Promoted, TopologyState};
use cashew_placement::{Distribution, Hash, HashTag, Node, Ring};
use cashew_protocol::redis::Access;

use self::shard::Shard;
use crate::base::id::{ServerId, ShardId};
use crate::base::rng::Rng;
use crate::base::table::Table;

/// The placement of one pool: which shard has which key, and which of its servers answers.
///
/// It only changes when the whole instance changes it ([`Topology::set_state`]); which replica
/// stands in for another that does not answer is decided here and now.
pub(crate) struct Topology {
    hash: Hash,
    tag: Option<HashTag>,
    distribution: Distribution,
    nodes: Vec<(String, u32)>,
    /// As configured: changes of primaries begin with them.
    configured: Table<ShardId, Shard>,
    shards: Table<ShardId, Shard>,
    locate: Locate,
    reads: ReadPolicy,
    /// Of shards, or of the replicas of the only one.
    ring: Ring,
    state: TopologyState,
    /// Every shard is the server of its number, and nothing but the ring over FNV-1a of the key
    /// decides, as by default.
    is_default: bool,
    /// The server of a pool that has but one, while it is live.
    only: Option<ServerId>,
}

/// How a key finds its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Locate {
    /// There is one shard.
    Only,
    /// Shards are one server each, by the same numbers, and are on the ring while that is live.
    Ring,
}

/// Who answers reads of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadPolicy {
    Primary,
    /// The replica that the ring over the replicas names, or another that is up; the primary when
    /// none is.
    RingOfReplicas,
}

impl Topology {
    /// # Panics
    ///
    /// Unless `state` is of the pool.
    pub(crate) fn new(pool: &snapshot::Pool, state: TopologyState) -> Self {
        assert!(state.is_of(pool), "one flag for each server");
        let nodes = pool.servers.iter().map(|s| (s.name.clone(), s.weight)).collect();
        let servers = (0..pool.servers.len() as u32).map(ServerId::new);
        let (shards, locate, reads): (Table<ShardId, Shard>, _, _) = match pool.topology {
            snapshot::Topology::Sharded => {
                (servers.map(Shard::of_one).collect(), Locate::Ring, ReadPolicy::Primary)
            }
            snapshot::Topology::MasterReplica { master } => {
                let primary = ServerId::new(master);
                let replicas = servers.filter(|&server| server != primary).collect();
                let shard = Shard { primary, replicas };
                (vec![shard].into(), Locate::Only, ReadPolicy::RingOfReplicas)
            }
        };
        let mut topology = Self {
            hash: pool.hash,
            tag: pool.hash_tag,
            distribution: pool.distribution,
            nodes,
            configured: shards.clone(),
            shards,
            locate,
            reads,
            ring: Ring::build(pool.distribution, &[], &[]),
            state,
            is_default: false,
            only: None,
        };
        topology.rebuild();
        topology
    }

    pub(crate) fn state(&self) -> &TopologyState {
        &self.state
    }

    /// By server: whether it is on the ring.
    pub(crate) fn live(&self) -> &[bool] {
        &self.state.live
    }

    /// Whether any server that may answer for one key may answer for all.
    pub(crate) fn is_one_shard(&self) -> bool {
        self.locate == Locate::Only
    }

    /// Servers of which each takes the writes of a share of the keys, as far as they are in the ring.
    pub(crate) fn heads(&self) -> impl Iterator<Item = ServerId> {
        let is_in_ring = |server: &ServerId| self.is_one_shard() || self.live()[server.index()];
        self.shards.iter().map(|shard| shard.primary).filter(is_in_ring)
    }

    /// Whether it is left to chance which server gets a key that is written.
    pub(crate) fn is_random(&self) -> bool {
        self.distribution == Distribution::Random && !self.is_one_shard()
    }

    /// Whether the server may be left out of the ring: the only primary has no substitute.
    pub(crate) fn may_eject(&self, server: ServerId) -> bool {
        !self.is_one_shard() || self.shards.iter().all(|shard| shard.primary != server)
    }

    /// Takes what the whole instance has agreed on.
    ///
    /// # Panics
    ///
    /// Unless it has one flag for each server.
    pub(crate) fn set_state(&mut self, state: TopologyState) {
        assert_eq!(state.live.len(), self.nodes.len(), "one flag for each server");
        self.state = state;
        self.rebuild();
    }

    fn rebuild(&mut self) {
        self.shards.clone_from(&self.configured);
        for &Promoted { shard, server } in &self.state.primaries {
            if let Some(shard) = self.shards.get_mut(ShardId::new(shard)) {
                shard.promote(ServerId::new(server));
            }
        }
        let nodes: Vec<Node<'_>> = self
            .nodes
            .iter()
            .map(|(name, weight)| Node { name: name.as_bytes(), weight: *weight })
            .collect();
        let mut on_ring = self.state.live.clone();
        if self.reads == ReadPolicy::RingOfReplicas {
            for shard in &self.shards {
                on_ring[shard.primary.index()] = false;
            }
        }
        self.ring = Ring::build(self.distribution, &nodes, &on_ring);
        let is_ring = self.locate == Locate::Ring;
        self.is_default =
            is_ring && self.ring.needs_hash() && self.hash == Hash::Fnv1a64 && self.tag.is_none();
        let is_only = is_ring && matches!(self.state.live[..], [true]);
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
        let shard = &self.shards[self.shard(key, rng)?];
        Some(match (access, self.reads) {
            (Access::Read, ReadPolicy::RingOfReplicas) => self.replica(shard, key, rng, is_up),
            _ => shard.primary,
        })
    }

    /// The shard of a key, or `None` when none is on the ring.
    fn shard(&self, key: &[u8], rng: &mut Rng) -> Option<ShardId> {
        match self.locate {
            Locate::Only => Some(ShardId::new(0)),
            Locate::Ring => self.ring.select(self.point(key, rng)).map(ShardId::new),
        }
    }

    fn replica(
        &self,
        shard: &Shard,
        key: &[u8],
        rng: &mut Rng,
        is_up: impl Fn(ServerId) -> bool,
    ) -> ServerId {
        let usable = |&server: &ServerId| self.state.live[server.index()] && is_up(server);
        self.ring
            .select(self.point(key, rng))
            .map(ServerId::new)
            .filter(usable)
            .or_else(|| shard.replicas.iter().copied().find(usable))
            .unwrap_or(shard.primary)
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
