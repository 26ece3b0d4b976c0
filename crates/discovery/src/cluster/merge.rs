//! One map from what several nodes say.
//!
//! No node knows the cluster better than another, and one that is cut off goes on to answer. So each slot
//! belongs to the node that claims it with the highest configuration epoch, as nodes decide it among themselves,
//! and what contradicts the map so far without a higher one takes two nodes, and time: news of a failover
//! may not have come to both.

use std::collections::{BTreeMap, BTreeSet};

use cashew_config::snapshot::{Address, ClusterMap, ClusterNode, ClusterShard, SLOTS, SlotRange};

use super::view::{NodeView, View};

/// How many have to say what the map so far contradicts, where there are as many.
const AGREE_MIN: usize = 2;

/// Who owns a slot, as far as the views say.
#[derive(Clone, Copy)]
struct Claim<'a> {
    id: &'a str,
    epoch: u64,
    /// How many views say it.
    by: usize,
}

/// What comes of views.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Merged {
    pub(crate) map: ClusterMap,
    /// Enough of them contradict the map so far, with no higher epoch.
    pub(crate) is_contradicted: bool,
}

/// The map after these views; `before` is the one so far, if there is one, and `has_lasted` says that it has been
/// contradicted for long enough. `None` where none of them owns any slots: a node that has just met the others
/// knows of none.
pub(crate) fn merge(
    views: &[View],
    before: Option<&ClusterMap>,
    has_lasted: bool,
) -> Option<Merged> {
    let views: Vec<&View> = views.iter().filter(|view| view.owns_slots()).collect();
    if views.is_empty() {
        return None;
    }
    let nodes = Nodes::of(&views);
    let known = before.map_or(0, |map| map.nodes().count());
    let agree_min = AGREE_MIN.min(known.max(1));
    let claims = claims(&views);
    let so_far = before;
    let before = Owned::of(before);
    let mut is_contradicted = false;
    // By address: who owns which slots, and since which epoch.
    let mut owners: BTreeMap<&Address, (Vec<SlotRange>, u64)> = BTreeMap::new();
    for (slot, (claim, was)) in (0..).zip(claims.iter().zip(&before.slots)) {
        let claimed = claim.as_ref().and_then(|claim| Some((nodes.address(claim.id)?, claim)));
        let owner = match (claimed, was) {
            (Some((address, claim)), Some((was, epoch))) if address != *was => {
                let is_newer = claim.epoch > *epoch;
                let is_agreed = !is_newer && claim.by >= agree_min;
                is_contradicted |= is_agreed;
                match is_newer || is_agreed && has_lasted {
                    true => (address, claim.epoch),
                    false => (*was, *epoch),
                }
            }
            (Some((address, claim)), _) => (address, claim.epoch),
            (None, Some((was, epoch))) => {
                let is_agreed = views.len() >= agree_min;
                is_contradicted |= is_agreed;
                if is_agreed && has_lasted {
                    continue;
                }
                (*was, *epoch)
            }
            (None, None) => continue,
        };
        let (ranges, epoch) = owners.entry(owner.0).or_default();
        *epoch = (*epoch).max(owner.1);
        add_slot(ranges, slot);
    }
    let mut map = nodes.map(owners, views.len());
    map.moving = moving(&views, &nodes, so_far, &map);
    Some(Merged { map, is_contradicted })
}

/// A slot behind those so far.
fn add_slot(ranges: &mut Vec<SlotRange>, slot: u16) {
    match ranges.last_mut() {
        Some(range) if range.last.checked_add(1) == Some(slot) => range.last = slot,
        _ => ranges.push(SlotRange { first: slot, last: slot }),
    }
}

/// Slots whose keys are at two nodes, as either of them shows it. Of an owner that was not asked, what moved before
/// still does.
fn moving(
    views: &[&View],
    nodes: &Nodes<'_>,
    before: Option<&ClusterMap>,
    map: &ClusterMap,
) -> Vec<SlotRange> {
    let mut slots: BTreeSet<u16> = views.iter().flat_map(|view| &view.moving).copied().collect();
    let own = views.iter().filter_map(|view| view.nodes.iter().find(|(_, node)| node.is_own));
    let heard: BTreeSet<&Address> = own.filter_map(|(id, _)| nodes.address(id)).collect();
    if let Some(before) = before.filter(|before| !before.moving.is_empty()) {
        let (was, is) = (Owned::of(Some(before)), Owned::of(Some(map)));
        let moved = before.moving.iter().flat_map(|range| range.slots());
        slots.extend(moved.filter(|&slot| {
            let owner = is.owner(slot);
            owner == was.owner(slot) && owner.is_some_and(|address| !heard.contains(address))
        }));
    }
    let mut ranges = Vec::new();
    slots.into_iter().for_each(|slot| add_slot(&mut ranges, slot));
    ranges
}

/// By slot: the claim with the highest epoch. Of equal ones, which nodes do not let stand, the one that more
/// say.
fn claims<'a>(views: &[&'a View]) -> Vec<Option<Claim<'a>>> {
    let mut claims: Vec<Vec<Claim<'a>>> = vec![Vec::new(); usize::from(SLOTS)];
    for view in views {
        for (id, node) in &view.nodes {
            for slot in node.slots.iter().flat_map(|range| range.slots()) {
                let of_slot = &mut claims[usize::from(slot)];
                match of_slot.iter_mut().find(|claim| claim.id == id) {
                    Some(claim) => {
                        claim.by += 1;
                        claim.epoch = claim.epoch.max(node.epoch);
                    }
                    None => of_slot.push(Claim { id, epoch: node.epoch, by: 1 }),
                }
            }
        }
    }
    let best = |of_slot: Vec<Claim<'a>>| {
        of_slot.into_iter().max_by(|a, b| (a.epoch, a.by, b.id).cmp(&(b.epoch, b.by, a.id)))
    };
    claims.into_iter().map(best).collect()
}

/// By slot: where its owner was, and since which epoch.
struct Owned<'a> {
    slots: Vec<Option<(&'a Address, u64)>>,
}

impl<'a> Owned<'a> {
    fn of(map: Option<&'a ClusterMap>) -> Self {
        let mut slots = vec![None; usize::from(SLOTS)];
        for shard in map.iter().flat_map(|map| &map.shards) {
            for slot in shard.slots.iter().flat_map(|range| range.slots()) {
                if let Some(place) = slots.get_mut(usize::from(slot)) {
                    *place = Some((&shard.primary.address, shard.epoch));
                }
            }
        }
        Self { slots }
    }

    fn owner(&self, slot: u16) -> Option<&'a Address> {
        self.slots.get(usize::from(slot))?.map(|(address, _)| address)
    }
}

/// What the views say of each node.
struct Nodes<'a> {
    by_id: BTreeMap<&'a str, Node<'a>>,
}

struct Node<'a> {
    /// As most views have it.
    address: &'a Address,
    /// As the view has it whose epoch of it is the highest; of equal ones, as most have it.
    primary: Option<&'a str>,
    epoch: u64,
    zone: Option<&'a str>,
    /// In how many views it is, and in how many of them it has failed.
    views: usize,
    failed: usize,
}

impl<'a> Nodes<'a> {
    fn of(views: &[&'a View]) -> Self {
        let mut said: BTreeMap<&'a str, Vec<&'a NodeView>> = BTreeMap::new();
        for (id, node) in views.iter().flat_map(|view| &view.nodes) {
            said.entry(id).or_default().push(node);
        }
        let node = |said: Vec<&'a NodeView>| {
            // What a node has a name for counts more than that it is where it was asked.
            let named: Vec<&NodeView> = said.iter().copied().filter(|it| it.is_named).collect();
            let places = if named.is_empty() { &said } else { &named };
            let address = most(places.iter().map(|it| &it.address));
            let epoch = said.iter().map(|it| it.epoch).max().unwrap_or_default();
            let newest = || said.iter().filter(|it| it.epoch == epoch);
            let itself = newest().find(|it| it.is_own);
            let primary = match (itself, newest().count()) {
                // One against one: the node itself knows.
                (Some(itself), ..=2) => itself.primary.as_deref(),
                _ => most(newest().map(|it| it.primary.as_deref())).flatten(),
            };
            Some(Node {
                address: address?,
                primary,
                epoch,
                zone: said.iter().find_map(|it| it.zone.as_deref()),
                views: said.len(),
                failed: said.iter().filter(|it| it.is_failed).count(),
            })
        };
        let by_id = said.into_iter().filter_map(|(id, said)| Some((id, node(said)?)));
        Self { by_id: by_id.collect() }
    }

    fn address(&self, id: &str) -> Option<&'a Address> {
        self.by_id.get(id).map(|node| node.address)
    }

    /// The owners of slots, and those that half of the views have and do not take to have failed.
    fn map(
        &self,
        mut owners: BTreeMap<&Address, (Vec<SlotRange>, u64)>,
        views: usize,
    ) -> ClusterMap {
        let zones: BTreeMap<&Address, &str> =
            self.by_id.values().filter_map(|it| Some((it.address, it.zone?))).collect();
        let cluster_node = |address: &Address| ClusterNode {
            address: address.clone(),
            zone: zones.get(address).map(|&zone| zone.to_owned()),
        };
        let shard = |address: &Address, slots, epoch| ClusterShard {
            primary: cluster_node(address),
            replicas: Vec::new(),
            slots,
            epoch,
        };
        let is_here = |node: &&Node<'_>| 2 * node.views >= views && 2 * node.failed < node.views;
        let is_owner: BTreeSet<Address> = owners.keys().map(|&address| address.clone()).collect();
        let mut shards: BTreeMap<&Address, ClusterShard> = BTreeMap::new();
        let mut replicas = Vec::new();
        for node in self.by_id.values().filter(is_here) {
            match node.primary {
                _ if is_owner.contains(node.address) => {}
                Some(primary) => replicas.push((node.address, primary)),
                None => {
                    shards.insert(node.address, shard(node.address, Vec::new(), node.epoch));
                }
            }
        }
        while let Some((address, (slots, epoch))) = owners.pop_first() {
            let node = self.by_id.values().find(|node| node.address == address);
            let address = node.map_or(address, |node| node.address);
            shards.insert(address, shard(address, slots, epoch));
        }
        for (address, primary) in replicas {
            let Some(primary) = self.primary_of(primary) else { continue };
            if let Some(shard) = shards.get_mut(primary) {
                shard.replicas.push(cluster_node(address));
            }
        }
        let mut shards: Vec<ClusterShard> = shards.into_values().collect();
        shards.iter_mut().for_each(|shard| shard.replicas.sort());
        // Of an address that two nodes have had, the one with slots is the one that is there.
        shards.sort_by_key(|shard| shard.slots.is_empty());
        ClusterMap { shards, moving: Vec::new() }
    }

    /// Where the primary is that has that id, or whose replica it is by now.
    fn primary_of(&self, mut id: &'a str) -> Option<&'a Address> {
        for _ in 0..4 {
            let node = self.by_id.get(id)?;
            match node.primary {
                Some(primary) => id = primary,
                None => return Some(node.address),
            }
        }
        None
    }
}

/// What most of them are; of equally many, the least.
fn most<T: Ord + Copy>(all: impl Iterator<Item = T>) -> Option<T> {
    let mut counts: BTreeMap<T, usize> = BTreeMap::new();
    all.for_each(|it| *counts.entry(it).or_default() += 1);
    counts.into_iter().rev().max_by_key(|(_, count)| *count).map(|(it, _)| it)
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::{at, view};
    use super::*;

    /// Lines of CLUSTER NODES: id and port, whose replica, epoch, what else.
    fn nodes(lines: &[(&str, &str, u64, &str)]) -> View {
        let line = |(id, primary, epoch, rest): &(&str, &str, u64, &str)| {
            let role = if *primary == "-" { "master" } else { "slave" };
            let (flags, slots) = rest.split_once(' ').unwrap_or((rest, ""));
            let flags = if flags.is_empty() { role.to_owned() } else { format!("{flags},{role}") };
            format!("{id} 10.0.0.1:{id}@1 {flags} {primary} 0 0 {epoch} connected {slots}\n")
        };
        view(&lines.iter().map(line).collect::<String>())
    }

    /// `primary<replica,replica first-last first-last`, for each shard.
    fn shown(map: &ClusterMap) -> Vec<String> {
        let shard = |shard: &ClusterShard| {
            let replicas: Vec<String> =
                shard.replicas.iter().map(|it| it.address.port.to_string()).collect();
            let slots: String = shard
                .slots
                .iter()
                .map(|range| format!(" {}-{}", range.first, range.last))
                .collect();
            format!("{}<{}{slots}", shard.primary.address.port, replicas.join(","))
        };
        map.shards.iter().map(shard).collect()
    }

    fn whole() -> View {
        nodes(&[
            ("1", "-", 1, " 0-5460"),
            ("2", "-", 2, " 5461-10922"),
            ("3", "-", 3, " 10923-16383"),
            ("4", "1", 1, ""),
            ("5", "2", 2, ""),
            ("6", "3", 3, ""),
        ])
    }

    #[test]
    fn slots_move_until_who_owns_them_shows_otherwise() {
        let seen = |own: &str, rest: &str| {
            let mut lines =
                vec![("1", "-", 1, " 0-5460"), ("2", "-", 2, " 5461-10922"), ("4", "1", 1, "")];
            let third = "3 10.0.0.1:3@1 master - 0 0 3 connected 10923-16383\n";
            let own = lines.iter().position(|it| it.0 == own).unwrap();
            let line = format!("myself{} {rest}", lines[own].3);
            lines[own].3 = &line;
            let mut seen = nodes(&lines);
            seen.nodes.extend(view(third).nodes);
            seen
        };
        let moving = |views: &[View], before: Option<&ClusterMap>| -> (ClusterMap, Vec<u16>) {
            let map = merged(views, before).unwrap();
            let moving = map.moving.iter().flat_map(|range| range.slots()).collect();
            (map, moving)
        };
        let (map, slots) =
            moving(&[seen("1", "[7->-2] [8->-2]"), seen("2", "[7-<-1] [11000-<-3]")], None);
        assert_eq!((map.moving.len(), slots), (2, vec![7, 8, 11_000]));
        // Who was not asked says nothing; nor does a replica, which does not know in Redis.
        assert_eq!(moving(&[seen("2", "[7-<-1]"), seen("4", "")], Some(&map)).1, [7, 8, 11_000]);
        assert_eq!(moving(&[seen("1", "[8->-2]")], Some(&map)).1, [8, 11_000]);
        assert_eq!(moving(&[seen("1", ""), seen("2", "")], Some(&map)).1, [11_000]);
        // It has another owner.
        let mut moved = seen("2", "");
        for (id, first, last) in [("1", 8, 5460), ("2", 5461, 10922)] {
            moved.nodes.get_mut(id).unwrap().slots = vec![SlotRange { first, last }];
        }
        let two = moved.nodes.get_mut("2").unwrap();
        (two.slots, two.epoch) = (vec![SlotRange { first: 0, last: 7 }, two.slots[0]], 9);
        assert_eq!(moving(&[moved], Some(&map)).1, [8, 11_000]);
    }

    fn merged(views: &[View], before: Option<&ClusterMap>) -> Option<ClusterMap> {
        let merged = merge(views, before, true)?;
        // What is not contradicted does not depend on how long it has been.
        let at_once = merge(views, before, false)?;
        assert_eq!(merged.is_contradicted, at_once.is_contradicted);
        assert_eq!(merged.map == at_once.map, !merged.is_contradicted);
        Some(merged.map)
    }

    const WHOLE: [&str; 3] = ["1<4 0-5460", "2<5 5461-10922", "3<6 10923-16383"];

    fn before() -> ClusterMap {
        merged(&[whole()], None).unwrap()
    }

    #[test]
    fn one_view_is_a_map_where_there_is_none() {
        let map = before();
        assert_eq!(shown(&map), WHOLE);
        assert_eq!((map.coverage(), map.epoch()), (16_384, 3));
        assert_eq!(merged(&[whole(), whole(), whole()], Some(&map)), Some(map));
    }

    #[test]
    fn a_node_that_knows_no_slots_is_not_heard() {
        let joining = nodes(&[("7", "-", 0, "myself"), ("1", "-", 1, "")]);
        assert_eq!(merged(std::slice::from_ref(&joining), None), None);
        assert_eq!(merged(std::slice::from_ref(&joining), Some(&before())), None);
        let map = merged(&[joining, whole()], Some(&before())).unwrap();
        assert_eq!(shown(&map), WHOLE);
    }

    /// 4 has taken the place of 1; those that are cut off with 1 do not know.
    #[test]
    fn a_minority_loses_slot_by_slot_whoever_is_heard_first() {
        let after = nodes(&[
            ("1", "-", 1, "fail"),
            ("4", "-", 7, " 0-5460"),
            ("2", "-", 2, " 5461-10922"),
            ("3", "-", 3, " 10923-16383"),
            ("5", "2", 2, ""),
            ("6", "3", 3, ""),
        ]);
        let expected = ["4< 0-5460", "2<5 5461-10922", "3<6 10923-16383"];
        let sorted = |mut shown: Vec<String>| {
            shown.sort();
            shown
        };
        let expected = sorted(expected.map(str::to_owned).to_vec());
        for views in [
            vec![after.clone()],
            vec![whole(), after.clone()],
            vec![after.clone(), whole(), whole()],
            vec![whole(), whole(), after, whole(), whole()],
        ] {
            // One that is cut off still takes 1 to be well, so that may stay a node without slots.
            let mut map = merged(&views, Some(&before())).unwrap();
            map.shards.retain(|shard| !shard.slots.is_empty());
            assert_eq!(sorted(shown(&map)), expected, "{}", views.len());
            // And the map is not put back by those, how many they ever are not.
            let again = merged(&[whole()], Some(&map)).unwrap();
            let kept: Vec<String> =
                shown(&again).into_iter().filter(|shard| shard.contains(" 0-5460")).collect();
            assert_eq!(kept, ["4< 0-5460"]);
        }
        // The old primary is back as a replica.
        let back = nodes(&[
            ("1", "4", 7, "myself"),
            ("4", "-", 7, " 0-5460"),
            ("2", "-", 2, " 5461-10922"),
            ("3", "-", 3, " 10923-16383"),
        ]);
        let map = merged(&[back.clone(), back], Some(&before())).unwrap();
        assert_eq!(sorted(shown(&map)), ["2< 5461-10922", "3< 10923-16383", "4<1 0-5460"]);
    }

    #[test]
    fn a_lower_epoch_or_fewer_slots_take_two() {
        // A cluster that was set up anew has low epochs.
        let anew = nodes(&[("3", "-", 1, " 0-16383"), ("1", "-", 0, ""), ("2", "-", 0, "")]);
        let map = merged(std::slice::from_ref(&anew), Some(&before())).unwrap();
        assert_eq!(map.shards[0].primary.address, at("10.0.0.1", 1));
        assert_eq!(map.coverage(), 16_384);
        let map = merged(&[anew.clone(), anew], Some(&before())).unwrap();
        assert_eq!(shown(&map), ["3< 0-16383", "1<", "2<"]);
        // Slots that nobody owns any more.
        let fewer = nodes(&[
            ("1", "-", 1, " 0-5460"),
            ("2", "-", 2, " 5461-10000"),
            ("3", "-", 3, " 10923-16383"),
        ]);
        let one = merged(std::slice::from_ref(&fewer), Some(&before())).unwrap();
        assert_eq!(one.coverage(), 16_384);
        let one = merged(&[fewer.clone(), whole()], Some(&before())).unwrap();
        assert_eq!(one.coverage(), 16_384);
        let two = merged(&[fewer.clone(), fewer], Some(&before())).unwrap();
        assert_eq!(two.coverage(), 16_384 - 922);
        // Of a cluster of one node there is one word only.
        let alone = |slots: &str| nodes(&[("1", "-", 1, &format!("myself {slots}"))]);
        let before = merged(&[alone("0-16383")], None).unwrap();
        let fewer = merged(&[alone("0-99")], Some(&before)).unwrap();
        assert_eq!(shown(&fewer), ["1< 0-99"]);
    }

    #[test]
    fn slots_move_one_by_one() {
        let moved = nodes(&[
            ("1", "-", 1, " 1-5460"),
            ("2", "-", 8, " 0 5461-10922 [3-<-1]"),
            ("3", "-", 3, " 10923-16383"),
        ]);
        let map = merged(&[whole(), moved, whole()], Some(&before())).unwrap();
        let shown = shown(&map);
        assert!(shown.contains(&"2<5 0-0 5461-10922".to_owned()), "{shown:?}");
        assert!(shown.contains(&"1<4 1-5460".to_owned()), "{shown:?}");
    }

    #[test]
    fn nodes_join_and_leave_as_most_say_and_failed_replicas_are_left_out() {
        let mut lines = vec![
            ("1", "-", 1, " 0-16383"),
            ("4", "1", 1, ""),
            ("5", "1", 1, "fail"),
            ("6", "4", 1, ""),
        ];
        let before = merged(&[nodes(&lines)], None).unwrap();
        assert_eq!(shown(&before), ["1<4,6 0-16383"]);
        lines.push(("7", "-", 0, ""));
        let [with, without] = [nodes(&lines), nodes(&lines[..4])];
        let joined = |views: &[&View]| {
            let views: Vec<View> = views.iter().map(|&view| view.clone()).collect();
            merged(&views, Some(&before)).unwrap().shards.len() == 2
        };
        assert!(
            joined(&[&with]) && joined(&[&with, &without]) && joined(&[&with, &with, &without])
        );
        assert!(!joined(&[&with, &without, &without]));
        // An owner of slots stays, whoever does not know it or takes it to be dead.
        let dead = nodes(&[("1", "-", 1, "fail 0-16383"), ("4", "1", 1, "")]);
        let map = merged(&[dead.clone(), dead], Some(&before)).unwrap();
        assert_eq!(shown(&map), ["1<4 0-16383"]);
    }

    #[test]
    fn a_node_is_where_most_find_it() {
        let here = |host: &str, asked: &str| {
            let nodes = format!("a {host}:7001@1 master - 0 0 1 connected 0-16383\n");
            View::read(
                &super::super::view::tests::bulk(&nodes),
                b"*0\r\n",
                b"$0\r\n\r\n",
                &at(asked, 1),
            )
            .unwrap()
        };
        let place = |views: &[View]| merged(views, None).unwrap().shards[0].primary.address.clone();
        assert_eq!(place(&[here("", "localhost")]), at("localhost", 7001));
        let views = [here("", "localhost"), here("", "localhost"), here("10.0.0.1", "x")];
        assert_eq!(place(&views), at("10.0.0.1", 7001));
        let views = [here("10.0.0.2", "x"), here("10.0.0.1", "x"), here("10.0.0.2", "x")];
        assert_eq!(place(&views), at("10.0.0.2", 7001));
    }
}
