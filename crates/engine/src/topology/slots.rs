//! Which node of a cluster owns which slot, and which slots have keys at two nodes.

use std::collections::BTreeMap;

use cashew_config::snapshot::{Cluster, SLOTS, ServerGroup, SlotRange};

use crate::base::id::ServerId;
use crate::base::time::Time;

/// How long a slot counts as one that moves after a node has said so by ASK. By then the nodes were asked, and the map
/// says it. Many times as long as that takes: a busy machine is late.
const ASKED_LASTS_US: u64 = 10_000_000;
/// The same after it has got another owner, whose replicas may not have all of it yet.
const ARRIVED_LASTS_US: u64 = 2_000_000;

/// Owners of slots: as the map says, until a server has said otherwise. Workers may differ for moments, as nodes
/// refuse what is not theirs.
pub(crate) struct SlotMap {
    owners: Box<[ServerId]>,
    /// By server: whether it owns any slot, or has since the map came.
    owns: Vec<bool>,
    /// Slots whose keys are at two nodes for now, and until when that is so; [`Time::NEVER`] is until the next map. Mostly
    /// empty, and never many: slots move one after the other.
    moving: BTreeMap<u16, Time>,
}

impl SlotMap {
    pub(crate) fn new(cluster: &Cluster, groups: &[ServerGroup]) -> Self {
        let primary = |group: u32| groups.get(group as usize).map(|it| ServerId::new(it.primary));
        let owner = |group: &Option<u32>| group.and_then(primary).unwrap_or(ServerId::NONE);
        let mut map = Self {
            owners: cluster.owners().iter().map(owner).collect(),
            owns: Vec::new(),
            moving: BTreeMap::new(),
        };
        map.set_moving(&cluster.moving);
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

    /// Slots that move by the map.
    pub(crate) fn set_moving(&mut self, moving: &[SlotRange]) {
        self.moving.retain(|_, until| *until != Time::NEVER);
        for slot in moving.iter().flat_map(|range| range.slots()) {
            self.moving.insert(slot, Time::NEVER);
        }
    }

    /// A node has said that a slot has keys elsewhere. Returns whether that was not known.
    pub(crate) fn note_moving(&mut self, slot: u16, now: Time) -> bool {
        let until = now.plus_micros(ASKED_LASTS_US);
        let before = self.moving.get(&slot).copied();
        if slot < SLOTS && before != Some(Time::NEVER) {
            self.moving.insert(slot, until);
        }
        before.is_none()
    }

    /// All of a slot is at another owner than before, a moment ago.
    pub(crate) fn note_arrived(&mut self, slot: u16, now: Time) {
        self.moving.insert(slot, now.plus_micros(ARRIVED_LASTS_US));
    }

    /// Forgets what nodes have said long ago.
    pub(crate) fn forget_moving(&mut self, now: Time) {
        self.moving.retain(|_, until| *until > now);
    }

    /// What nodes have said stays in force with this map, where a slot has the owner that it had; others that moved have
    /// arrived. `kept` names the servers by their former numbers.
    pub(crate) fn keep_moving(&mut self, from: &Self, kept: &[Option<ServerId>], now: Time) {
        for (&slot, &until) in &from.moving {
            let is = self.owner(slot).and_then(|owner| kept.get(owner.index()).copied().flatten());
            let is_same = is.is_some() && is == from.owner(slot);
            if self.moving.contains_key(&slot) || (is_same && until == Time::NEVER) {
                continue;
            }
            match is_same {
                true => drop(self.moving.insert(slot, until)),
                false => self.note_arrived(slot, now),
            }
        }
    }

    #[inline]
    pub(crate) fn has_moving(&self) -> bool {
        !self.moving.is_empty()
    }

    /// Whether keys of the slot are at two nodes, or were a moment ago.
    #[inline]
    pub(crate) fn is_moving(&self, slot: u16) -> bool {
        self.has_moving() && self.moving.contains_key(&slot)
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
            moving: Vec::new(),
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
    #[test]
    fn a_slot_moves_by_the_map_or_by_what_a_node_has_said_for_a_while() {
        let range = |first, last| SlotRange { first, last };
        let cluster = |moving| Cluster {
            seeds: Vec::new(),
            connections_max: 0,
            slots: vec![vec![range(0, 99)], vec![range(100, 16_383)]],
            moving,
            epoch: 1,
            changes: 1,
        };
        let group = |primary: u32| ServerGroup {
            name: primary.to_string(),
            weight: 1,
            primary,
            replicas: Vec::new(),
        };
        let new =
            |moving, primaries: [u32; 2]| SlotMap::new(&cluster(moving), &primaries.map(group));
        let at = |seconds: u64| Time::ZERO.plus_micros(seconds * 1_000_000);
        let moving = |slots: &SlotMap| [5, 6, 7, 100].map(|slot| slots.is_moving(slot));
        let mut slots = new(vec![range(5, 6)], [0, 1]);
        assert_eq!(moving(&slots), [true, true, false, false]);
        assert!(!slots.note_moving(5, at(1)) && slots.note_moving(7, at(1)));
        assert!(!slots.note_moving(7, at(2)) && slots.note_moving(100, at(3)));
        assert_eq!(moving(&slots), [true; 4]);
        slots.set_moving(&[range(6, 6)]);
        assert_eq!(moving(&slots), [false, true, true, true]);
        // The second server is the first one of the next map, where slot 100 is another's.
        let kept = [Some(ServerId::new(1)), Some(ServerId::new(0))];
        let mut next = new(Vec::new(), [1, 1]);
        next.keep_moving(&slots, &kept, at(3));
        assert_eq!(moving(&next), [false, false, true, true]);
        next.forget_moving(at(5));
        assert_eq!(moving(&next), [false, false, true, false]);
        slots.forget_moving(at(12));
        assert_eq!(moving(&slots), [false, true, false, true]);
        // A node has said that all of it is elsewhere.
        slots.note_arrived(6, at(12));
        assert_eq!(moving(&slots), [false, true, false, true]);
        slots.forget_moving(at(14));
        assert_eq!(moving(&slots), [false; 4]);
    }
}
