//! A pool in front of Redis Cluster or Valkey Cluster: where its nodes are asked for, and what they last said.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Address, Endpoint, Pool, Server, ServerGroup, Snapshot, Topology};
use crate::resolve::by_length_then_bytes;

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
    /// Slots whose keys are at two nodes for now, as the nodes show it; ascending.
    #[serde(default)]
    pub moving: Vec<SlotRange>,
    /// The highest config epoch of the map.
    #[serde(default)]
    pub epoch: u64,
    /// How often the map has changed, in this instance; not counting when all that changed is what moves.
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

/// Who owns which slots, and who has copies of them, as the nodes of a cluster tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMap {
    pub shards: Vec<ClusterShard>,
    /// Slots whose keys are at two nodes for now: MIGRATING at one, IMPORTING at the other. Ascending, and not next
    /// to each other.
    #[serde(default)]
    pub moving: Vec<SlotRange>,
}

/// A primary with its replicas. One without slots has none yet, or no more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterShard {
    pub primary: ClusterNode,
    pub replicas: Vec<ClusterNode>,
    /// Ascending, and not next to each other.
    pub slots: Vec<SlotRange>,
    /// The cluster's number of the configuration in which it owns them.
    pub epoch: u64,
}

/// A node, where redirects lead to when they lead to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClusterNode {
    pub address: Address,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}

impl ClusterNode {
    /// What a server is called that is this node: as redirects name it.
    pub fn name(&self) -> String {
        format!("{}:{}", self.address.host, self.address.port)
    }
}

impl ClusterMap {
    /// How many slots have an owner.
    pub fn coverage(&self) -> usize {
        self.shards.iter().map(ClusterShard::slots_owned).sum()
    }

    pub fn epoch(&self) -> u64 {
        self.shards.iter().map(|shard| shard.epoch).max().unwrap_or_default()
    }

    pub fn nodes(&self) -> impl Iterator<Item = &ClusterNode> {
        self.shards.iter().flat_map(|shard| std::iter::once(&shard.primary).chain(&shard.replicas))
    }
}

impl ClusterShard {
    pub fn slots_owned(&self) -> usize {
        self.slots.iter().map(|range| range.slots().count()).sum()
    }
}

/// What another map changes, by the names of servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapChange {
    pub joined: Vec<String>,
    pub left: Vec<String>,
    /// Who owns slots now, and was a replica, or not there, before.
    pub promoted: Vec<String>,
    /// Slots that have another owner, or one again, or none any more.
    pub slots_moved: usize,
    /// How many slots have keys at two nodes by now, if these are others than before.
    pub slots_moving: Option<usize>,
}

impl MapChange {
    pub fn between(before: &Pool, after: &Pool) -> Self {
        let names = |pool: &Pool| -> BTreeSet<String> {
            pool.servers.iter().map(|server| server.name.clone()).collect()
        };
        let (was, is) = (names(before), names(after));
        let primaries = before.slot_owners();
        let promoted = after.slot_owners().into_iter().filter(|it| !primaries.contains(it));
        let owners = |pool: &Pool| pool.cluster.as_ref().map(Cluster::owners);
        let group = |pool: &Pool, owner: Option<u32>| -> Option<String> {
            let Topology::Groups(groups) = &pool.topology else { return None };
            groups.get(owner? as usize).map(|group| group.name.clone())
        };
        let slots_moved = match (owners(before), owners(after)) {
            (Some(was), Some(is)) => {
                // Few owners, many slots.
                let mut same = BTreeMap::new();
                let mut is_same = |pair: (Option<u32>, Option<u32>)| {
                    *same
                        .entry(pair)
                        .or_insert_with(|| group(before, pair.0) == group(after, pair.1))
                };
                was.iter().zip(&is).filter(|&(&was, &is)| !is_same((was, is))).count()
            }
            _ => 0,
        };
        Self {
            joined: is.difference(&was).cloned().collect(),
            left: was.difference(&is).cloned().collect(),
            promoted: promoted.collect(),
            slots_moved,
            slots_moving: moving(before, after),
        }
    }
}

/// How many slots have keys at two nodes afterwards, if these are others than before.
fn moving(before: &Pool, after: &Pool) -> Option<usize> {
    let of = |pool: &'_ Pool| pool.cluster.as_ref().map(|it| it.moving.clone()).unwrap_or_default();
    let is = of(after);
    (of(before) != is).then(|| is.iter().map(|range| range.slots().count()).sum())
}

impl Pool {
    /// Whether its servers are the nodes of a cluster.
    pub fn is_cluster(&self) -> bool {
        self.cluster.is_some()
    }

    /// The names of the primaries that own slots.
    fn slot_owners(&self) -> BTreeSet<String> {
        let Some(map) = self.cluster_map() else { return BTreeSet::new() };
        let owners = map.shards.iter().filter(|shard| !shard.slots.is_empty());
        owners.map(|shard| shard.primary.name()).collect()
    }

    /// The map that it goes by; `None` where there is none, or where it is in front of no cluster. Which
    /// configuration a shard has its slots from is only known of all together.
    pub fn cluster_map(&self) -> Option<ClusterMap> {
        let cluster = self.cluster.as_ref().filter(|cluster| !cluster.slots.is_empty())?;
        let Topology::Groups(groups) = &self.topology else { return None };
        let node = |server: u32| {
            let Server { endpoint, zone, .. } = self.servers.get(server as usize)?;
            Some(ClusterNode { address: endpoint.address()?, zone: zone.clone() })
        };
        let shard = |(group, slots): (&ServerGroup, &Vec<SlotRange>)| {
            Some(ClusterShard {
                primary: node(group.primary)?,
                replicas: group.replicas.iter().filter_map(|&it| node(it)).collect(),
                slots: slots.clone(),
                epoch: cluster.epoch,
            })
        };
        let shards = groups.iter().zip(&cluster.slots).filter_map(shard).collect();
        Some(ClusterMap { shards, moving: cluster.moving.clone() })
    }

    /// Takes the nodes of a map for its servers. False if they are so already, or where it is in front of no
    /// cluster. A node that is there twice is what it was first.
    pub fn set_cluster_map(&mut self, map: &ClusterMap) -> bool {
        let Some(cluster) = &self.cluster else { return false };
        let mut known = BTreeSet::new();
        let mut servers = Vec::new();
        let mut shards: Vec<(String, Vec<String>, &ClusterShard)> = Vec::new();
        let mut add = |node: &ClusterNode| {
            let name = node.name();
            let endpoint = Endpoint::from(node.address.clone());
            let is_new = known.insert(name.clone());
            if is_new {
                let zone = node.zone.clone();
                servers.push(Server { name: name.clone(), endpoint, weight: 1, zone });
            }
            is_new.then_some(name)
        };
        // Primaries first: one of them that is somebody's replica as well owns its slots.
        for shard in &map.shards {
            if let Some(name) = add(&shard.primary) {
                shards.push((name, Vec::new(), shard));
            }
        }
        for (_, replicas, shard) in &mut shards {
            replicas.extend(shard.replicas.iter().filter_map(&mut add));
            replicas.sort_by(|a, b| by_length_then_bytes(a, b));
        }
        servers.sort_by(|a, b| by_length_then_bytes(&a.name, &b.name));
        shards.sort_by(|(a, ..), (b, ..)| by_length_then_bytes(a, b));
        let places: BTreeMap<&str, u32> =
            servers.iter().map(|server| &*server.name).zip(0..).collect();
        let groups = shards.iter().map(|(name, replicas, _)| ServerGroup {
            name: name.clone(),
            weight: 1,
            primary: places[&**name],
            replicas: replicas.iter().map(|it| places[&**it]).collect(),
        });
        let topology = Topology::Groups(groups.collect());
        let slots: Vec<Vec<SlotRange>> =
            shards.iter().map(|(.., shard)| shard.slots.clone()).collect();
        drop(places);
        let is_same =
            self.servers == servers && self.topology == topology && cluster.slots == slots;
        if is_same && cluster.moving == map.moving {
            return false;
        }
        (self.servers, self.topology) = (servers, topology);
        if let Some(cluster) = &mut self.cluster {
            cluster.moving.clone_from(&map.moving);
            if !is_same {
                cluster.slots = slots;
                cluster.epoch = map.epoch();
                cluster.changes = cluster.changes.wrapping_add(1);
            }
        }
        true
    }

    /// Takes over the map of a pool that is in front of the same cluster.
    fn keep_map(&mut self, from: &Self) {
        let (Some(map), Some(was)) = (from.cluster_map(), &from.cluster) else { return };
        self.set_cluster_map(&map);
        if let Some(cluster) = &mut self.cluster {
            (cluster.epoch, cluster.changes) = (was.epoch, was.changes);
        }
    }

    /// Whether it is in front of the same cluster: some of its seeds are the other's, or nodes of it.
    pub fn is_same_cluster(&self, other: &Self) -> bool {
        let (Some(cluster), Some(its)) = (&self.cluster, &other.cluster) else { return false };
        let nodes: Vec<Address> =
            other.servers.iter().filter_map(|server| server.endpoint.address()).collect();
        cluster.seeds.iter().any(|seed| its.seeds.contains(seed) || nodes.contains(seed))
    }

    /// The same, of a map that was found by these seeds.
    pub fn is_of_map(&self, seeds: &[Address], map: &ClusterMap) -> bool {
        let is_node = |seed: &Address| map.nodes().any(|node| node.address == *seed);
        self.cluster.as_ref().is_some_and(|cluster| {
            cluster.seeds.iter().any(|seed| seeds.contains(seed) || is_node(seed))
        })
    }
}

impl Snapshot {
    /// Goes by a map in a pool. False where that is no news.
    pub fn set_cluster_map(&mut self, pool: &str, map: &ClusterMap) -> bool {
        let pool = self.pools.iter_mut().find(|it| it.name == pool);
        pool.is_some_and(|pool| pool.set_cluster_map(map))
    }

    /// Takes over the maps of clusters from another snapshot: of pools of the same name, or else of any in
    /// front of the same cluster.
    pub fn keep_maps(&mut self, from: &Self) {
        for pool in self.pools.iter_mut().filter(|pool| pool.is_cluster()) {
            let same = || from.pools.iter().filter(|other| pool.is_same_cluster(other));
            let kept = same().find(|other| other.name == pool.name).or_else(|| same().next());
            if let Some(kept) = kept.cloned() {
                pool.keep_map(&kept);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(pools: &[(&str, &str)]) -> Snapshot {
        let pool = |(at, (name, seeds)): (usize, &(&str, &str))| {
            let port = 22_121 + at;
            format!(
                "{name}: {{listen: 127.0.0.1:{port}, redis: true, cluster: {{seeds: [{seeds}]}}}}\n"
            )
        };
        let yaml: String = pools.iter().enumerate().map(pool).collect();
        let loaded = crate::parse("t.yml", &yaml, &crate::Context::of_system());
        loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot
    }

    fn node(port: u16) -> ClusterNode {
        let address = Address { host: "10.0.0.1".to_owned(), port };
        ClusterNode { address, zone: None }
    }

    fn shard(primary: u16, replicas: &[u16], slots: &[(u16, u16)], epoch: u64) -> ClusterShard {
        ClusterShard {
            primary: node(primary),
            replicas: replicas.iter().map(|&port| node(port)).collect(),
            slots: slots.iter().map(|&(first, last)| SlotRange { first, last }).collect(),
            epoch,
        }
    }

    fn names(pool: &Pool) -> Vec<&str> {
        pool.servers.iter().map(|server| &*server.name).collect()
    }

    #[test]
    fn nodes_are_servers_and_primaries_are_groups() {
        let mut snapshot = snapshot(&[("a", "'h:1'")]);
        assert_eq!(snapshot.pools[0].cluster_map(), None);
        let map = ClusterMap {
            shards: vec![
                shard(7001, &[7010, 7003], &[(100, SLOTS - 1)], 4),
                shard(700, &[7001, 7004], &[(0, 99)], 7),
                shard(7005, &[], &[], 0),
            ],
            moving: Vec::new(),
        };
        assert!(snapshot.set_cluster_map("a", &map) && !snapshot.set_cluster_map("a", &map));
        let pool = &snapshot.pools[0];
        let all = [
            "10.0.0.1:700",
            "10.0.0.1:7001",
            "10.0.0.1:7003",
            "10.0.0.1:7004",
            "10.0.0.1:7005",
            "10.0.0.1:7010",
        ];
        assert_eq!(names(pool), all);
        // By their own names: a node stays the same server when another one becomes its primary.
        assert_eq!(pool.group_names(), all);
        let Topology::Groups(groups) = &pool.topology else { panic!("groups") };
        let shown: Vec<_> = groups.iter().map(|it| (it.primary, &*it.replicas)).collect();
        assert_eq!(shown, [(0, &[3][..]), (1, &[2, 5]), (4, &[])]);
        let cluster = pool.cluster.as_ref().unwrap();
        assert_eq!((cluster.epoch, cluster.changes), (7, 1));
        let owners = cluster.owners();
        assert_eq!([owners[0], owners[99], owners[100]], [Some(0), Some(0), Some(1)]);
        let mut read = pool.cluster_map().unwrap();
        assert_eq!((read.coverage(), read.epoch(), read.nodes().count()), (16_384, 7, 6));
        assert!(!snapshot.set_cluster_map("a", &read) && !snapshot.set_cluster_map("b", &map));
        // What moves is news, but no other map.
        read.moving = vec![SlotRange { first: 5, last: 5 }];
        assert!(snapshot.set_cluster_map("a", &read) && !snapshot.set_cluster_map("a", &read));
        assert_eq!(snapshot.pools[0].cluster_map(), Some(read));
        assert_eq!(snapshot.pools[0].cluster.as_ref().unwrap().changes, 1);
    }

    #[test]
    fn what_a_map_changes_is_told() {
        let mut before = snapshot(&[("a", "'h:1'")]);
        let slots = [(0, 99), (100, 199)];
        let map = |shards: Vec<ClusterShard>| ClusterMap { shards, moving: Vec::new() };
        before.set_cluster_map(
            "a",
            &map(vec![shard(1, &[2], &slots[..1], 1), shard(3, &[4], &slots[1..], 2)]),
        );
        let mut after = before.clone();
        // 2 takes the place of 1, which is gone, 3 gives half of its slots to 5.
        after.set_cluster_map(
            "a",
            &map(vec![
                shard(2, &[], &slots[..1], 3),
                shard(3, &[4], &[(100, 149)], 2),
                shard(5, &[], &[(150, 199)], 4),
            ]),
        );
        let change = MapChange::between(&before.pools[0], &after.pools[0]);
        let name = |port: u16| format!("10.0.0.1:{port}");
        assert_eq!(change.joined, [name(5)]);
        assert_eq!(change.left, [name(1)]);
        assert_eq!(change.promoted, [name(2), name(5)]);
        assert_eq!((change.slots_moved, change.slots_moving), (150, None));
        let mut moving = after.clone();
        let range = SlotRange { first: 7, last: 9 };
        moving.pools[0].cluster.as_mut().unwrap().moving = vec![range];
        let change = |before: &Snapshot, after: &Snapshot| {
            MapChange::between(&before.pools[0], &after.pools[0])
        };
        let expected = |count| MapChange { slots_moving: Some(count), ..MapChange::default() };
        assert_eq!(change(&after, &moving), expected(3));
        assert_eq!(change(&moving, &after), expected(0));
        let same = MapChange::between(&after.pools[0], &after.pools[0]);
        assert_eq!(same, MapChange::default());
    }

    #[test]
    fn a_map_is_kept_by_a_pool_of_the_same_cluster() {
        let mut before = snapshot(&[("a", "'h:1', 'h:2'"), ("b", "'i:1'")]);
        let map = |port| ClusterMap {
            shards: vec![shard(port, &[], &[(0, SLOTS - 1)], 3)],
            moving: Vec::new(),
        };
        before.set_cluster_map("a", &map(7001));
        before.set_cluster_map("b", &map(7002));
        let kept = |pools: &[(&str, &str)]| {
            let mut after = snapshot(pools);
            after.keep_maps(&before);
            let pools = after.pools.iter();
            pools.map(|pool| names(pool).join(",")).collect::<Vec<_>>()
        };
        assert_eq!(kept(&[("a", "'h:2', 'x:1'")]), ["10.0.0.1:7001"]);
        assert_eq!(kept(&[("z", "'i:1'"), ("b", "'x:1'")]), ["", "10.0.0.1:7002"]);
        assert_eq!(kept(&[("a", "'10.0.0.1:7002'")]), ["10.0.0.1:7002"]);
        assert_eq!(kept(&[("a", "'x:1'")]), [""]);
    }
}
