//! From a key to a shard to a server: pure, and the only way there is.

pub(crate) mod cache_rules;
mod health;
mod reads;
pub(crate) mod route_tree;
mod shard;
mod slots;

use std::cell::Cell;

use cashew_config::snapshot::{self, Promoted, Reads, ServerGroup, SlotRange, TopologyState};
use cashew_placement::{Distribution, Hash, HashTag, Node, Ring, SHARE_WHOLE, SLOTS, slot_of};
use cashew_protocol::redis::{Access, CommandId};

pub(crate) use self::health::Health;
use self::health::Without;
use self::reads::{Choice, ClassReads, ReadPolicy};
use self::shard::Shard;
use self::slots::SlotMap;
use crate::base::id::{ServerId, ShardId};
use crate::base::rng::Rng;
use crate::base::table::Table;
use crate::base::time::Time;

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
    /// By shard: how often Sentinels had moved its primary.
    moves: Table<ShardId, u32>,
    shards: Table<ShardId, Shard>,
    /// By server: its shard.
    homes: Table<ServerId, ShardId>,
    locate: Locate,
    /// Of a cluster.
    slots: Option<SlotMap>,
    reads: ReadPolicy,
    classes: ClassReads,
    /// Somebody's reads go by how long servers take to answer.
    is_by_latency: bool,
    /// All servers of a shard take its writes: the first that can be reached is as good as the primary.
    writes_to_all: bool,
    /// Names the primary of the shard that has a point, or one of the replicas of the only shard.
    ring: Ring,
    state: TopologyState,
    /// By server: whether it is in the gateway's zone.
    is_near: Vec<bool>,
    /// By shard: whose turn it is to answer.
    turns: Vec<Cell<u32>>,
    /// Nothing but the ring over FNV-1a of the key decides, as by default.
    is_default: bool,
    /// The only server that is ever asked, while it is live.
    only: Option<ServerId>,
    /// Some shard has several servers, or one that Sentinels name.
    may_change_primaries: bool,
}

/// How often Sentinels had moved the primary of a shard.
fn moves_of(pool: &snapshot::Pool, shard: &ServerGroup) -> u32 {
    let mut groups = pool.sentinel.iter().flat_map(|sentinel| &sentinel.groups);
    groups.find(|group| group.server == shard.name).map_or(0, |group| group.moves)
}

/// How a key finds its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Locate {
    /// There is one shard.
    Only,
    /// Shards are on the ring while their primaries are live.
    Ring,
    /// Nodes of a cluster have slots.
    Slots,
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
        let (reads, classes) = (ReadPolicy::of(pool), ClassReads::of(pool));
        let nodes = match reads {
            ReadPolicy::By(_) => {
                groups.iter().map(|group| (group.name.clone(), group.weight)).collect()
            }
            ReadPolicy::RingOfReplicas => {
                let servers = pool.servers.iter();
                servers.map(|server| (server.name.clone(), server.weight)).collect()
            }
        };
        let is_near = |server: &snapshot::Server| server.zone.is_some() && server.zone == pool.zone;
        let slots = pool.cluster.as_ref().map(|cluster| SlotMap::new(cluster, &groups));
        let locate = match slots {
            Some(_) => Locate::Slots,
            None if pool.is_one_shard() => Locate::Only,
            None => Locate::Ring,
        };
        let mut topology = Self {
            hash: pool.hash,
            tag: pool.hash_tag,
            distribution: pool.distribution,
            nodes,
            configured: shards.clone(),
            moves: groups.iter().map(|group| moves_of(pool, group)).collect(),
            turns: vec![Cell::new(0); shards.len()],
            is_near: pool.servers.iter().map(is_near).collect(),
            shards,
            homes: homes.into(),
            locate,
            slots,
            reads,
            is_by_latency: reads == ReadPolicy::By(Reads::Nearest) || classes.has(Reads::Nearest),
            classes,
            writes_to_all: pool.writes_to_all(),
            ring: Ring::build(pool.distribution, &[], &[]),
            state,
            is_default: false,
            only: None,
            may_change_primaries: pool.has_replicas() || pool.sentinel.is_some(),
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

    /// Who takes the writes of the keys that a server has.
    pub(crate) fn primary_of(&self, server: ServerId) -> ServerId {
        self.shards[self.shard_of(server)].primary
    }

    /// Servers of which each takes the writes of a share of the keys, as far as they are in the ring.
    pub(crate) fn heads(&self) -> impl Iterator<Item = ServerId> {
        self.heads_of(self.shards.iter())
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
        primaries.filter(|&server| self.is_on_ring(server) && self.may_have_keys(server))
    }

    /// Who takes the writes of a shard.
    pub(crate) fn head(&self, shard: ShardId) -> ServerId {
        self.shards[shard].primary
    }

    /// The number of a shard's primary: the next one has another, and so has the same server when it
    /// takes the writes again. All workers agree on it, and it is kept over a reload and an upgrade.
    pub(crate) fn reign(&self, shard: ShardId) -> u32 {
        self.moves[shard].wrapping_add(self.state.reign(shard.number()))
    }

    /// Whether another server may become the primary of any shard while the pool stays as it is.
    pub(crate) fn may_change_primaries(&self) -> bool {
        self.may_change_primaries
    }

    /// Whether it is one of [`Topology::heads`].
    pub(crate) fn is_head(&self, server: ServerId) -> bool {
        self.shards[self.shard_of(server)].primary == server
            && self.is_on_ring(server)
            && self.may_have_keys(server)
    }

    /// A node of a cluster without slots has no keys.
    pub(crate) fn may_have_keys(&self, server: ServerId) -> bool {
        self.slots.as_ref().is_none_or(|slots| slots.owns_any(server))
    }

    pub(crate) fn is_on_ring(&self, primary: ServerId) -> bool {
        let is_live = |server: ServerId| self.live()[server.index()];
        self.is_one_shard()
            || is_live(primary)
            || self.writes_to_all && self.members(primary).any(is_live)
    }

    /// The servers of the shard that a server is of, the primary first.
    pub(crate) fn members(&self, server: ServerId) -> impl Iterator<Item = ServerId> + Clone {
        self.shards[self.shard_of(server)].members()
    }

    /// Whether what is written goes to all servers of a shard.
    #[inline]
    pub(crate) fn writes_to_all(&self) -> bool {
        self.writes_to_all
    }

    /// The shard that a server is of.
    pub(crate) fn shard_of(&self, server: ServerId) -> ShardId {
        self.homes[server]
    }

    /// By shard: who takes its writes.
    pub(crate) fn primaries(&self) -> impl Iterator<Item = ServerId> {
        self.shards.iter().map(|shard| shard.primary)
    }

    /// Whether it is left to chance which server gets a key that is written.
    pub(crate) fn is_random(&self) -> bool {
        self.distribution == Distribution::Random && !self.is_one_shard()
    }

    /// Whether the server may be left out of the ring: the only primary has no substitute.
    pub(crate) fn may_eject(&self, server: ServerId) -> bool {
        !self.is_one_shard() || self.shards.iter().all(|shard| shard.primary != server)
    }

    /// Whether the server is left out since it is drained. It may be well.
    pub(crate) fn is_drained(&self, server: ServerId) -> bool {
        self.state.share_of(server.number()) == 0
    }

    /// Thousandths of its keys that the server does not have since it is drained.
    pub(crate) fn drained(&self, server: ServerId) -> u16 {
        SHARE_WHOLE - self.state.share_of(server.number()).min(SHARE_WHOLE)
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
                let share = |server: u32| self.state.share_of(server);
                Ring::build_with_shares(self.distribution, &nodes, &on_ring, share)
            }
            ReadPolicy::By(_) => {
                let primaries = self.shards.iter().map(|shard| shard.primary);
                let on_ring: Vec<bool> = primaries.map(|it| self.is_on_ring(it)).collect();
                let share = |shard: u32| self.state.share_of(primary_of(shard).number());
                Ring::build_with_shares(self.distribution, &nodes, &on_ring, share)
                    .with_indices(|shard| primary_of(shard).number())
            }
        };
        let is_ring = self.locate == Locate::Ring;
        let is_by_primaries = !self.has_choice(None);
        self.is_default = is_ring
            && is_by_primaries
            && self.ring.needs_hash()
            && self.hash == Hash::Fnv1a64
            && self.tag.is_none();
        let is_only = is_by_primaries && self.shards.len() == 1 && self.slots.is_none();
        let first = self.heads().next();
        self.only = first.filter(|_| is_only);
    }

    /// Who answers reads of this command, unless it is left to the pool.
    #[inline]
    pub(crate) fn reads_by_class(&self, called: CommandId) -> Option<Reads> {
        self.classes.by(called)
    }

    /// By a command's or a client's own policy, or else the pool's.
    #[inline]
    fn policy(&self, own: Option<Reads>) -> ReadPolicy {
        own.map_or(self.reads, ReadPolicy::By)
    }

    /// Whether a read may be answered by another server than the primary. `own` is the policy of its
    /// command or its client, if that is not the pool's.
    #[inline]
    pub(crate) fn has_choice(&self, own: Option<Reads>) -> bool {
        !self.policy(own).is_primary() || self.writes_to_all
    }

    /// Whether a read that is not sent may go on with another server: not with the fork's replicas.
    #[inline]
    pub(crate) fn moves_reads(&self, own: Option<Reads>) -> bool {
        self.has_choice(own) && self.policy(own) != ReadPolicy::RingOfReplicas
    }

    /// Whether it is of interest how long servers take to answer.
    #[inline]
    pub(crate) fn is_by_latency(&self) -> bool {
        self.is_by_latency
    }

    /// A client wants its reads to go by that.
    #[cold]
    pub(crate) fn heed_latency(&mut self) {
        self.is_by_latency = true;
    }

    /// Who takes the writes of `key`, or `None` when none is on the ring. Where reads have no choice, it
    /// answers them, too.
    #[inline(always)]
    pub(crate) fn primary(&self, key: &[u8], rng: &mut Rng) -> Option<ServerId> {
        if self.is_default && !key.is_empty() {
            return self.ring.select(Hash::Fnv1a64.hash(key)).map(ServerId::new);
        }
        match self.only {
            Some(server) => Some(server),
            None => self.primary_otherwise(key, rng),
        }
    }

    #[inline(never)]
    fn primary_otherwise(&self, key: &[u8], rng: &mut Rng) -> Option<ServerId> {
        match &self.slots {
            Some(slots) => slots.owner(slot_of(key)),
            None => Some(self.shards[self.shard(key, rng)?].primary),
        }
    }

    /// How many parts a request for several keys may be split into: by server, by shard, or by slot.
    pub(crate) fn places(&self) -> usize {
        match self.slots {
            Some(_) => usize::from(SLOTS),
            None => self.homes.len(),
        }
    }

    /// Whether it is a cluster's.
    #[inline]
    pub(crate) fn has_slots(&self) -> bool {
        self.slots.is_some()
    }

    /// The slot of a key, of a cluster, where keys of two slots are not asked for together.
    #[inline]
    pub(crate) fn slot(&self, key: &[u8]) -> Option<u16> {
        self.slots.as_ref().map(|_| slot_of(key))
    }

    /// Who owns a slot, by the map and what servers have said since.
    pub(crate) fn owner(&self, slot: u16) -> Option<ServerId> {
        self.slots.as_ref()?.owner(slot)
    }

    /// A server says that the slot is another one's. Holds until the next map. Returns whether that is news.
    pub(crate) fn set_owner(&mut self, slot: u16, server: ServerId) -> bool {
        self.slots.as_mut().is_some_and(|slots| slots.set_owner(slot, server))
    }

    /// The slots that have keys at two nodes are these by the map.
    pub(crate) fn set_moving(&mut self, moving: &[SlotRange]) {
        if let Some(slots) = &mut self.slots {
            slots.set_moving(moving);
        }
    }

    /// A server says that keys of a slot are elsewhere by now: only the primary knows which. Returns whether that is
    /// news.
    pub(crate) fn note_moving(&mut self, slot: u16, now: Time) -> bool {
        self.slots.as_mut().is_some_and(|slots| slots.note_moving(slot, now))
    }

    /// Forgets what servers have said so long ago that the map says it by now, if it is still so.
    pub(crate) fn forget_moving(&mut self, now: Time) {
        if let Some(slots) = self.slots.as_mut().filter(|slots| slots.has_moving()) {
            slots.forget_moving(now);
        }
    }

    /// A slot has another owner than before, whose replicas may not have all of it yet.
    pub(crate) fn note_arrived(&mut self, slot: u16, now: Time) {
        if let Some(slots) = &mut self.slots {
            slots.note_arrived(slot, now);
        }
    }

    /// What servers have said stays in force in this topology, which takes the place of the other one; `kept` has the
    /// former numbers of its servers.
    pub(crate) fn keep_moving(&mut self, from: &Self, kept: &[Option<ServerId>], now: Time) {
        if let (Some(slots), Some(from)) = (&mut self.slots, &from.slots) {
            slots.keep_moving(from, kept, now);
        }
    }

    /// Whether some slot has keys at two nodes.
    #[inline]
    pub(crate) fn has_moving(&self) -> bool {
        self.slots.as_ref().is_some_and(SlotMap::has_moving)
    }

    /// Whether this one has.
    pub(crate) fn is_moving(&self, slot: u16) -> bool {
        self.slots.as_ref().is_some_and(|slots| slots.is_moving(slot))
    }

    /// The server for `key`, or `None` when all that could answer are ejected.
    #[inline(always)]
    pub(crate) fn select(
        &self,
        key: &[u8],
        (access, own): (Access, Option<Reads>),
        health: &impl Health,
        rng: &mut Rng,
    ) -> Option<ServerId> {
        if own.is_some() {
            return self.select_otherwise(key, (access, own), health, rng);
        }
        if self.is_default && !key.is_empty() {
            return self.ring.select(Hash::Fnv1a64.hash(key)).map(ServerId::new);
        }
        match self.only {
            Some(server) => Some(server),
            None => self.select_otherwise(key, (access, own), health, rng),
        }
    }

    #[inline(never)]
    fn select_otherwise(
        &self,
        key: &[u8],
        asked: (Access, Option<Reads>),
        health: &impl Health,
        rng: &mut Rng,
    ) -> Option<ServerId> {
        if let Some(slots) = &self.slots {
            let owner = slots.owner(slot_of(key))?;
            let shard = self.shard_of(owner);
            // The map does not know yet who leads the shard, or who has the slot. Or replicas do not know what has left it.
            let is_as_mapped = self.shards[shard].primary == owner;
            let may_choose = is_as_mapped && !(slots.has_moving() && slots.is_moving(slot_of(key)));
            return Some(match may_choose {
                true => self.server(shard, key, asked, health, rng),
                false => owner,
            });
        }
        let shard = self.shard(key, rng)?;
        Some(self.server(shard, key, asked, health, rng))
    }

    /// The shard of a key, or `None` when none is on the ring.
    pub(crate) fn shard(&self, key: &[u8], rng: &mut Rng) -> Option<ShardId> {
        match self.locate {
            Locate::Only => Some(ShardId::new(0)),
            Locate::Ring => {
                let primary = self.ring.select(self.point(key, rng)).map(ServerId::new)?;
                Some(self.shard_of(primary))
            }
            Locate::Slots => self.owner(slot_of(key)).map(|owner| self.shard_of(owner)),
        }
    }

    /// Who of a shard gets a request: the only place where that is decided. The key matters only where
    /// replicas are on a ring.
    pub(crate) fn server(
        &self,
        id: ShardId,
        key: &[u8],
        (access, own): (Access, Option<Reads>),
        health: &impl Health,
        rng: &mut Rng,
    ) -> ServerId {
        let shard = &self.shards[id];
        let turn = &self.turns[id.index()];
        let (live, is_near) = (&*self.state.live, &*self.is_near);
        let mut choice = Choice { shard, primary: shard.primary, live, is_near, health, turn };
        if self.writes_to_all {
            choice.lead();
        }
        match (access, self.policy(own)) {
            (Access::Read | Access::Walk, ReadPolicy::RingOfReplicas) => {
                self.replica(&choice, key, rng)
            }
            (Access::Read, ReadPolicy::By(reads)) => choice.by(reads, rng),
            (Access::Walk | Access::Write | Access::None, _) => choice.primary,
        }
    }

    /// Nothing was sent to the server that was chosen: it is its turn again.
    #[cold]
    pub(crate) fn give_turn_back(&self, server: ServerId) {
        let turn = &self.turns[self.shard_of(server).index()];
        turn.set(turn.get().wrapping_sub(1));
    }

    /// Another server for a read that was for this one, which cannot be reached.
    pub(crate) fn another(
        &self,
        server: ServerId,
        own: Option<Reads>,
        health: &impl Health,
        rng: &mut Rng,
    ) -> Option<ServerId> {
        let health = Without { health, server };
        let shard = self.shard_of(server);
        let other = self.server(shard, b"", (Access::Read, own), &health, rng);
        let is_good = other == self.shards[shard].primary || health.is_fit(other);
        let is_live = self.live()[other.index()] && health.is_up(other);
        (is_live && is_good).then_some(other)
    }

    /// The same of one that takes long, which is nobody's turn.
    pub(crate) fn beside(
        &self,
        server: ServerId,
        own: Option<Reads>,
        health: &impl Health,
        rng: &mut Rng,
    ) -> Option<ServerId> {
        let turn = &self.turns[self.shard_of(server).index()];
        let before = turn.get();
        let other = self.another(server, own, health, rng);
        turn.set(before);
        other
    }

    fn replica(&self, choice: &Choice<'_, impl Health>, key: &[u8], rng: &mut Rng) -> ServerId {
        let usable = |&server: &ServerId| choice.is_usable(server);
        self.ring
            .select(self.point(key, rng))
            .map(ServerId::new)
            .filter(usable)
            .or_else(|| choice.shard.replicas.iter().copied().find(usable))
            .unwrap_or(choice.shard.primary)
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
