//! Who answers reads of a shard.

use std::cell::Cell;

use cashew_config::snapshot::{self, Reads};
use cashew_protocol::redis::{COMMANDS, CommandId, most_specific};

use super::health::Health;
use super::shard::Shard;
use crate::base::id::ServerId;
use crate::base::rng::Rng;

/// Which of a shard's servers answers a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadPolicy {
    /// The replica that the ring over the replicas names, or another that is up; the primary when
    /// none is.
    RingOfReplicas,
    /// The one that the configuration names.
    By(Reads),
}

impl ReadPolicy {
    pub(crate) fn of(pool: &snapshot::Pool) -> Self {
        let by_default = match pool.topology {
            snapshot::Topology::MasterReplica { .. } => Self::RingOfReplicas,
            snapshot::Topology::Sharded | snapshot::Topology::Groups(_) => Self::By(Reads::Primary),
        };
        // Where each server has keys of its own there is no choice.
        let reads = pool.reads.filter(|_| pool.topology != snapshot::Topology::Sharded);
        reads.map_or(by_default, Self::By)
    }

    /// Primaries answer everything.
    pub(crate) fn is_primary(self) -> bool {
        self == Self::By(Reads::Primary)
    }
}

/// Who answers reads of a command, where that differs from the rest of the pool. Empty where it never
/// does.
#[derive(Default)]
pub(crate) struct ClassReads(Box<[Option<Reads>]>);

impl ClassReads {
    pub(crate) fn of(pool: &snapshot::Pool) -> Self {
        let classes = &pool.reads_by_class;
        if classes.is_empty() || pool.topology == snapshot::Topology::Sharded {
            return Self::default();
        }
        let mut reads = vec![None; 1 + COMMANDS.len()];
        for command in COMMANDS.iter().filter(|command| command.may_be_read_from_replicas()) {
            let class = most_specific(classes.iter().map(|(class, _)| &**class), command);
            reads[CommandId::of(command).number()] = class.map(|at| classes[at].1);
        }
        Self(reads.into())
    }

    #[inline]
    pub(crate) fn by(&self, called: CommandId) -> Option<Reads> {
        self.0.get(called.number()).copied().flatten()
    }

    pub(crate) fn has(&self, reads: Reads) -> bool {
        self.0.contains(&Some(reads))
    }
}

/// One choice among the servers of a shard.
pub(crate) struct Choice<'a, H> {
    pub(crate) shard: &'a Shard,
    /// Who takes the writes.
    pub(crate) primary: ServerId,
    /// By server: whether it is not ejected.
    pub(crate) live: &'a [bool],
    /// By server: whether it is in the gateway's zone.
    pub(crate) is_near: &'a [bool],
    pub(crate) health: &'a H,
    /// Whose turn it is.
    pub(crate) turn: &'a Cell<u32>,
}

impl<H: Health> Choice<'_, H> {
    /// The server for a read. One that cannot answer is chosen only where no other may. One that came back
    /// a moment ago gets a share.
    pub(crate) fn by(&self, reads: Reads, rng: &mut Rng) -> ServerId {
        let chosen = self.choose(reads, rng);
        let is_required = chosen == self.primary || reads == Reads::Primary;
        match is_required || self.health.admits(chosen) {
            true => chosen,
            false => self.instead_of(chosen, reads),
        }
    }

    /// Who answers what a server on trial is not to get: the others that may, if there are any.
    #[cold]
    fn instead_of(&self, chosen: ServerId, reads: Reads) -> ServerId {
        let is_well = |server: &ServerId| *server != chosen && !self.health.is_on_trial(*server);
        let other = match reads {
            Reads::Replica => self.in_turn(self.replicas().filter(is_well)),
            _ => self.in_turn(self.members().filter(is_well)),
        };
        other.unwrap_or(chosen)
    }

    fn choose(&self, reads: Reads, rng: &mut Rng) -> ServerId {
        let primary = self.primary;
        match reads {
            Reads::Primary => primary,
            Reads::PreferPrimary if self.is_usable(primary) => primary,
            Reads::PreferPrimary | Reads::PreferReplica => self.replica().unwrap_or(primary),
            Reads::Replica => self.replica().or_else(|| self.any_replica()).unwrap_or(primary),
            Reads::Any => self.in_turn(self.members()).unwrap_or(primary),
            Reads::Nearest => self.nearest(rng).unwrap_or(primary),
            Reads::Zone => {
                let near = |server: &ServerId| self.is_near[server.index()];
                let near_primary = || Some(primary).filter(|it| near(it) && self.is_usable(*it));
                self.in_turn(self.replicas().filter(near))
                    .or_else(near_primary)
                    .or_else(|| self.replica())
                    .unwrap_or(primary)
            }
        }
    }

    /// Where all take the writes: the first that can be reached is asked in the primary's place.
    pub(crate) fn lead(&mut self) {
        let can_lead = |it: &ServerId| self.live[it.index()] && self.health.is_up(*it);
        let leader = self.members().find(can_lead);
        self.primary = leader.unwrap_or(self.primary);
    }

    pub(crate) fn is_usable(&self, server: ServerId) -> bool {
        self.live[server.index()]
            && self.health.is_up(server)
            && (server == self.shard.primary || self.health.is_fit(server))
    }

    fn replicas(&self) -> impl Iterator<Item = ServerId> + Clone {
        self.shard.replicas.iter().copied()
    }

    fn members(&self) -> impl Iterator<Item = ServerId> + Clone {
        self.shard.members()
    }

    fn replica(&self) -> Option<ServerId> {
        self.in_turn(self.replicas())
    }

    /// For its error. Of one that is not fit there would be none.
    fn any_replica(&self) -> Option<ServerId> {
        self.replicas().find(|&server| self.health.is_fit(server))
    }

    /// The one of those that are usable whose turn it is.
    fn in_turn(&self, servers: impl Iterator<Item = ServerId> + Clone) -> Option<ServerId> {
        let usable = servers.filter(|&server| self.is_usable(server));
        match self.health.slow_from() {
            None => self.turn_of(usable),
            Some(slow_from) => self.turn_of_quick(usable, slow_from),
        }
    }

    /// The same, but those that take long are passed by: longer than hedged reads wait, and more than twice
    /// as long as the quickest. Now and then one finds out whether they still do.
    fn turn_of_quick(
        &self,
        usable: impl Iterator<Item = ServerId> + Clone,
        slow_from: u32,
    ) -> Option<ServerId> {
        if let Some(due) = usable.clone().find(|&server| self.health.takes_measurement(server)) {
            return Some(due);
        }
        let latencies = usable.clone().map(|server| self.health.latency(server));
        let slow_from = slow_from.max(latencies.min().unwrap_or(0).saturating_mul(2));
        let quick = usable.clone().filter(|&server| self.health.latency(server) <= slow_from);
        match quick.clone().next() {
            Some(_) => self.turn_of(quick),
            None => self.turn_of(usable),
        }
    }

    fn turn_of(&self, mut usable: impl Iterator<Item = ServerId> + Clone) -> Option<ServerId> {
        let count = usable.clone().count() as u32;
        let turn = self.turn.get();
        self.turn.set(turn.wrapping_add(1));
        usable.nth(turn.checked_rem(count)? as usize)
    }

    /// Of two that are usable, at random, the one that has answered sooner lately: so that many
    /// gateways do not all take the same one. What is not known is found out first.
    fn nearest(&self, rng: &mut Rng) -> Option<ServerId> {
        let usable = self.members().filter(|&server| self.is_usable(server));
        if let Some(due) = usable.clone().find(|&server| self.health.takes_measurement(server)) {
            return Some(due);
        }
        let count = usable.clone().count() as u64;
        let random = rng.next() >> 16;
        let first = random.checked_rem(count)?;
        let second = match count {
            1 => first,
            count => (first + 1 + (random >> 16) % (count - 1)) % count,
        };
        let pick = |at: u64| usable.clone().nth(at as usize);
        let (first, second) = (pick(first)?, pick(second)?);
        let is_nearer = self.health.latency(second) < self.health.latency(first);
        Some(if is_nearer { second } else { first })
    }
}
