//! Servers that hold the same share of the keys.

use cashew_config::snapshot::ServerGroup;

use crate::base::id::ServerId;

/// One share of a pool's keys, and who has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    /// Who takes the writes.
    pub(crate) primary: ServerId,
    /// Who has copies; in the order of the configuration.
    pub(crate) replicas: Vec<ServerId>,
}

impl Shard {
    pub(crate) fn of(group: &ServerGroup) -> Self {
        let replicas = group.replicas.iter().map(|&server| ServerId::new(server)).collect();
        Self { primary: ServerId::new(group.primary), replicas }
    }

    /// The primary first.
    pub(crate) fn members(&self) -> impl Iterator<Item = ServerId> + Clone {
        std::iter::once(self.primary).chain(self.replicas.iter().copied())
    }

    /// Has another of its servers take the writes; the one that did so becomes a replica. Any other
    /// server changes nothing.
    pub(crate) fn promote(&mut self, server: ServerId) {
        let Some(place) = self.replicas.iter().position(|&replica| replica == server) else {
            return;
        };
        self.replicas[place] = std::mem::replace(&mut self.primary, server);
        self.replicas.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_primary_changes_places_with_the_replica_that_is_promoted() {
        let [a, b, c, d] = [0, 1, 2, 3].map(ServerId::new);
        let mut shard = Shard { primary: b, replicas: vec![a, c] };
        shard.promote(c);
        assert_eq!(shard, Shard { primary: c, replicas: vec![a, b] });
        shard.promote(c);
        shard.promote(d);
        assert_eq!(shard, Shard { primary: c, replicas: vec![a, b] });
    }
}
