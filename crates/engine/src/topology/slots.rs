//! Which node of a cluster owns which slot.

use cashew_config::snapshot::{Cluster, ServerGroup};

use crate::base::id::ServerId;

/// Owners of slots: as the map says, until a server has said otherwise. Workers may differ for moments, as nodes
/// refuse what is not theirs.
pub(crate) struct SlotMap {
    owners: Box<[ServerId]>,
    /// By server: whether it owns any slot, or has since the map came.
    owns: Vec<bool>,
}

impl SlotMap {
    pub(crate) fn new(cluster: &Cluster, groups: &[ServerGroup]) -> Self {
        let primary = |group: u32| groups.get(group as usize).map(|it| ServerId::new(it.primary));
        let owner = |group: &Option<u32>| group.and_then(primary).unwrap_or(ServerId::NONE);
        let mut map =
            Self { owners: cluster.owners().iter().map(owner).collect(), owns: Vec::new() };
        for at in 0..map.owners.len() {
            map.note_owner(map.owners[at]);
        }
        map
    }

    #[inline]
    pub(crate) fn owner(&self, slot: u16) -> Option<ServerId> {
        self.owners.get(usize::from(slot)).copied().filter(|&server| server != ServerId::NONE)
    }

    /// Returns whether it was another one.
    pub(crate) fn set_owner(&mut self, slot: u16, server: ServerId) -> bool {
        let Some(owner) = self.owners.get_mut(usize::from(slot)) else { return false };
        let is_news = std::mem::replace(owner, server) != server;
        self.note_owner(server);
        is_news
    }

    fn note_owner(&mut self, server: ServerId) {
        if server == ServerId::NONE {
            return;
        }
        if self.owns.len() <= server.index() {
            self.owns.resize(server.index() + 1, false);
        }
        self.owns[server.index()] = true;
    }

    /// Whether the server may have keys.
    pub(crate) fn owns_any(&self, server: ServerId) -> bool {
        self.owns.get(server.index()).copied().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use cashew_config::snapshot::SlotRange;

    use super::*;

    #[test]
    fn a_slot_is_the_primarys_of_its_group_until_a_server_says_otherwise() {
        let range = |first, last| vec![SlotRange { first, last }];
        let cluster = Cluster {
            seeds: Vec::new(),
            connections_max: 0,
            slots: vec![range(0, 99), range(100, 16_000)],
            epoch: 1,
            changes: 1,
        };
        let group = |primary: u32| ServerGroup {
            name: primary.to_string(),
            weight: 1,
            primary,
            replicas: Vec::new(),
        };
        let mut slots = SlotMap::new(&cluster, &[group(3), group(1)]);
        let [b, d] = [1, 3].map(ServerId::new);
        assert_eq!(
            [0, 99, 100, 16_000].map(|slot| slots.owner(slot)),
            [Some(d), Some(d), Some(b), Some(b)]
        );
        assert_eq!(
            [0, 1, 2, 3].map(|at| slots.owns_any(ServerId::new(at))),
            [false, true, false, true]
        );
        assert_eq!([16_001, 16_383, u16::MAX].map(|slot| slots.owner(slot)), [None; 3]);
        assert!(slots.set_owner(100, d) && !slots.set_owner(100, d));
        assert!(slots.set_owner(16_383, b) && !slots.set_owner(16_384, b));
        assert_eq!([100, 101, 16_383].map(|slot| slots.owner(slot)), [Some(d), Some(b), Some(b)]);
    }
}
