//! Which node of a cluster owns which slot.

use cashew_config::snapshot::{Cluster, ServerGroup};

use crate::base::id::ServerId;

/// Owners of slots: as the map says, until a server has said otherwise. Workers may differ for moments, as nodes
/// refuse what is not theirs.
pub(crate) struct SlotMap(Box<[ServerId]>);

impl SlotMap {
    pub(crate) fn new(cluster: &Cluster, groups: &[ServerGroup]) -> Self {
        let primary = |group: u32| groups.get(group as usize).map(|it| ServerId::new(it.primary));
        let owner = |group: &Option<u32>| group.and_then(primary).unwrap_or(ServerId::NONE);
        Self(cluster.owners().iter().map(owner).collect())
    }

    #[inline]
    pub(crate) fn owner(&self, slot: u16) -> Option<ServerId> {
        self.0.get(usize::from(slot)).copied().filter(|&server| server != ServerId::NONE)
    }

    /// Returns whether it was another one.
    pub(crate) fn set_owner(&mut self, slot: u16, server: ServerId) -> bool {
        let Some(owner) = self.0.get_mut(usize::from(slot)) else { return false };
        std::mem::replace(owner, server) != server
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
        assert_eq!([16_001, 16_383, u16::MAX].map(|slot| slots.owner(slot)), [None; 3]);
        assert!(slots.set_owner(100, d) && !slots.set_owner(100, d));
        assert!(slots.set_owner(16_383, b) && !slots.set_owner(16_384, b));
        assert_eq!([100, 101, 16_383].map(|slot| slots.owner(slot)), [Some(d), Some(b), Some(b)]);
    }
}
