//! A pool in front of Redis Cluster or Valkey Cluster: where its nodes are asked for, and what they last said.

use serde::{Deserialize, Serialize};

use super::{Address, Pool};

/// Hash slots of a cluster: a key is in slot CRC16(key) mod 16384
/// ([cluster specification](https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/)).
pub const SLOTS: u16 = 16_384;

/// A pool's cluster. Its servers are the nodes that the map names, and its topology is
/// [`Topology::Groups`](super::Topology::Groups) with a group for each primary. Until there is a map there are
/// none of both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// Who is asked while no node is known, in the order of the file. Never empty, without duplicates.
    pub seeds: Vec<Address>,
    /// The most connections to one node over all workers, those of replicas and of exclusive use included;
    /// 0 is without limit.
    #[serde(default)]
    pub connections_max: u32,
    /// By group: the slots that it owns, ascending. Empty while there is no map.
    #[serde(default)]
    pub slots: Vec<Vec<SlotRange>>,
    /// The highest config epoch of the map.
    #[serde(default)]
    pub epoch: u64,
    /// How often the map has changed, in this instance.
    #[serde(default)]
    pub changes: u32,
}

/// Slots from the first to the last, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlotRange {
    pub first: u16,
    pub last: u16,
}

impl SlotRange {
    pub fn slots(self) -> impl Iterator<Item = u16> {
        self.first..=self.last
    }
}

impl Cluster {
    /// By slot: the number of the group that owns it.
    pub fn owners(&self) -> Box<[Option<u32>]> {
        let mut owners = vec![None; usize::from(SLOTS)].into_boxed_slice();
        for (group, ranges) in (0..).zip(&self.slots) {
            for slot in ranges.iter().flat_map(|range| range.slots()) {
                if let Some(owner) = owners.get_mut(usize::from(slot)) {
                    *owner = Some(group);
                }
            }
        }
        owners
    }
}

impl Pool {
    /// Whether its servers are the nodes of a cluster.
    pub fn is_cluster(&self) -> bool {
        self.cluster.is_some()
    }
}
