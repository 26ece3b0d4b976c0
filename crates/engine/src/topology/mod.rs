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
    /// What is on the ring: shards, or the servers of the only one.
    nodes: Vec<(String, u32)>,
    /// As configured: changes of primaries begin with them.
    configured: Table<ShardId, Shard>,
    shards: Table<ShardId, Shard>,
    /// By server: its shard.
    homes: Table<ServerId, ShardId>,
    locate: Locate,
    reads: ReadPolicy,
    /// Names the primary of the shard that has a point, or one of the replicas of the only shard.
    ring: Ring,
    state: TopologyState,
    /// Nothing but the ring over FNV-1a of the key decides, as by default.
    is_default: bool,
    /// The only server that is ever asked, while it is live.
    only: Option<ServerId>,
}

/// How a key finds its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Locate {
    /// There is one shard.
    Only,
    /// Shards are on the ring while their primaries are live.
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
        let groups = pool.shards();
        let shards: Table<ShardId, Shard> = groups.iter().map(Shard::of).collect();
        let mut homes = vec![ShardId::new(0); pool.servers.len()];
        for (number, group) in (0..).map(ShardId::new).zip(groups.iter()) {
            group.members().for_each(|member| homes[member as usize] = number);
        }
        let (nodes, reads) = match pool.topology {
            snapshot::Topology::Sharded | snapshot::Topology::Groups(_) => {
                let nodes = groups.iter().map(|group| (group.name.clone(), group.weight));
                (nodes.collect(), ReadPolicy::Primary)
            }
            snapshot::Topology::MasterReplica { .. } => {
                let nodes = pool.servers.iter().map(|server| (server.name.clone(), server.weight));
                (nodes.collect(), ReadPolicy::RingOfReplicas)
            }
        };
        let locate = if pool.is_one_shard() { Locate::Only } else { Locate::Ring };
        let mut topology = Self {
            hash: pool.hash,
            tag: pool.hash_tag,
            distribution: pool.distribution,
            nodes,
            configured: shards.clone(),
            shards,
            homes: homes.into(),
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

    /// By server: whether it is not ejected.
    pub(crate) fn live(&self) -> &[bool] {
        &self.state.live
    }

    /// Whether any server that may answer for one key may answer for all.
    pub(crate) fn is_one_shard(&self) -> bool {
        self.locate == Locate::Only
    }

    /// Servers of which each takes the writes of a share of the keys, as far as they are in the ring.
    pub(crate) fn heads(&self) -> impl Iterator<Item = ServerId> {
        self.heads_of(self.shards.iter())
    }

    /// By shard: who takes its writes.
    pub(crate) fn primaries(&self) -> impl Iterator<Item = ServerId> {
        self.shards.iter().map(|shard| shard.primary)
    }

    /// Those of the shards behind this one.
    pub(crate) fn heads_behind(&self, shard: ShardId) -> impl Iterator<Item = ServerId> {
        self.heads_of(self.shards.iter().skip(shard.index() + 1))
    }

    fn heads_of<'a>(
        &'a self,
        shards: impl Iterator<Item = &'a Shard>,
    ) -> impl Iterator<Item = ServerId> {
        let primaries = shards.map(|shard| shard.primary);
        primaries.filter(|&server| self.is_on_ring(server))
    }

    /// Whether it is one of [`Topology::heads`].
    pub(crate) fn is_head(&self, server: ServerId) -> bool {
        self.shards[self.shard_of(server)].primary == server && self.is_on_ring(server)
    }

    fn is_on_ring(&self, primary: ServerId) -> bool {
        self.is_one_shard() || self.live()[primary.index()]
    }

    /// The shard that a server is of.
    pub(crate) fn shard_of(&self, server: ServerId) -> ShardId {
        self.homes[server]
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
        assert_eq!(state.live.len(), self.homes.len(), "one flag for each server");
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
        let primary_of = |shard: u32| self.shards[ShardId::new(shard)].primary;
        self.ring = match self.reads {
            ReadPolicy::RingOfReplicas => {
                let mut on_ring = self.state.live.clone();
                on_ring[primary_of(0).index()] = false;
                Ring::build(self.distribution, &nodes, &on_ring)
            }
            ReadPolicy::Primary => {
                let primaries = self.shards.iter().map(|shard| shard.primary);
                let on_ring: Vec<bool> = primaries.map(|it| self.is_on_ring(it)).collect();
                Ring::build(self.distribution, &nodes, &on_ring)
                    .with_indices(|shard| primary_of(shard).number())
            }
        };
        let is_ring = self.locate == Locate::Ring;
        let is_by_primaries = self.reads == ReadPolicy::Primary;
        self.is_default = is_ring
            && is_by_primaries
            && self.ring.needs_hash()
            && self.hash == Hash::Fnv1a64
            && self.tag.is_none();
        let is_only = is_by_primaries && self.shards.len() == 1;
        let first = self.heads().next();
        self.only = first.filter(|_| is_only);
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
        let primary = match self.locate {
            Locate::Only => self.shards[ShardId::new(0)].primary,
            Locate::Ring => self.ring.select(self.point(key, rng)).map(ServerId::new)?,
        };
        Some(match (access, self.reads) {
            (Access::Read, ReadPolicy::RingOfReplicas) => {
                self.replica(&self.shards[self.shard_of(primary)], key, rng, is_up)
            }
            _ => primary,
        })
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
