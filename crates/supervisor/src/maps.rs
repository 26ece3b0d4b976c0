//! The maps of clusters that discovery has told: when they are put into effect, and what they change.
//!
//! An epoch each time. A node that takes the writes or that has joined cannot wait; slots that move and nodes that
//! leave can, as workers follow redirects meanwhile.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cashew_config::Snapshot;
use cashew_config::snapshot::{Address, ClusterMap, MapChange, Pool, SLOTS};

use crate::retry::Retry;
use crate::status::{ClusterStatus, SeedStatus, ShardSlotsStatus, now};

/// The least time from one change to the next: of what cannot wait, and of what can.
const URGENT_INTERVAL: Duration = Duration::from_millis(100);
const INTERVAL: Duration = Duration::from_secs(1);

/// Nodes that a line names.
const SHOWN_MAX: usize = 10;

#[derive(Debug, Default)]
pub(crate) struct Maps {
    /// By the name of the pool: not in effect yet.
    wanted: BTreeMap<String, Wanted>,
    changed_at: Option<Instant>,
    retry: Retry,
    /// Whether seeds answer, and why not.
    seeds: BTreeMap<(String, Address), Option<String>>,
    /// The last change, in seconds since 1970, and what it was.
    last: BTreeMap<String, (u64, String)>,
}

#[derive(Debug)]
struct Wanted {
    /// By which it was found.
    seeds: Vec<Address>,
    map: ClusterMap,
    due: Instant,
}

/// A map that a pool is to go by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MapMove {
    pub(crate) pool: String,
    seeds: Vec<Address>,
    map: ClusterMap,
}

impl Maps {
    /// The map of the cluster that a pool is in front of is this one, found by these seeds. `current` is in effect, and
    /// may be about to be replaced by one with another map.
    pub(crate) fn told(
        &mut self,
        pool: String,
        (seeds, map): (Vec<Address>, ClusterMap),
        (current, is_changing): (&Snapshot, bool),
        now: Instant,
    ) {
        let due = self.wanted.get(&pool).map(|wanted| wanted.due);
        let is_known = || current.pools.iter().any(|it| it.name == pool && it.is_cluster());
        let earliest = self.earliest(&pool, (&seeds, &map), current, now);
        let Some(earliest) = earliest.or_else(|| (is_changing && is_known()).then_some(now)) else {
            self.wanted.remove(&pool);
            return;
        };
        // One that has waited does not wait for longer because there is another.
        let due = due.map_or(earliest.max(now), |due| due.min(earliest.max(now)));
        self.wanted.insert(pool, Wanted { seeds, map, due });
    }

    /// When a map may be in effect; `None` if it is, or if there is no such pool in front of this cluster.
    fn earliest(
        &self,
        pool: &str,
        (seeds, map): (&[Address], &ClusterMap),
        current: &Snapshot,
        now: Instant,
    ) -> Option<Instant> {
        let pool = current.pools.iter().find(|it| it.name == pool)?;
        if !pool.is_of_map(seeds, map) {
            return None;
        }
        let mut next = pool.clone();
        if !next.set_cluster_map(map) {
            return None;
        }
        let change = MapChange::between(pool, &next);
        let is_urgent = !change.joined.is_empty() || !change.promoted.is_empty();
        let interval = if is_urgent { URGENT_INTERVAL } else { INTERVAL };
        Some(self.changed_at.map_or(now, |at| at + interval))
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let due = self.wanted.values().map(|wanted| wanted.due).min()?;
        Some(self.retry.not_before().map_or(due, |at| at.max(due)))
    }

    pub(crate) fn are_due(&self, now: Instant) -> bool {
        self.poll_timeout().is_some_and(|at| now >= at)
    }

    /// Puts all maps into a snapshot, and returns those that are not in effect, which are lost if the snapshot is not
    /// to be either.
    pub(crate) fn take(&mut self, snapshot: &mut Snapshot, current: &Snapshot) -> Vec<MapMove> {
        let mut moves = Vec::new();
        for (pool, Wanted { seeds, map, .. }) in std::mem::take(&mut self.wanted) {
            let Some(is) = current.pools.iter().find(|it| it.name == pool) else { continue };
            // A file may put the pool in front of another cluster.
            let next = snapshot.pools.iter_mut().find(|it| it.name == pool);
            if let Some(next) = next.filter(|next| next.is_of_map(&seeds, &map)) {
                next.set_cluster_map(&map);
            }
            if is.clone().set_cluster_map(&map) {
                moves.push(MapMove { pool, seeds, map });
            }
        }
        moves
    }

    /// A snapshot with everything that has been told, in effect or not.
    pub(crate) fn put(&self, snapshot: &mut Snapshot) {
        for (name, Wanted { seeds, map, .. }) in &self.wanted {
            let pool = snapshot.pools.iter_mut().find(|it| it.name == *name);
            if let Some(pool) = pool.filter(|pool| pool.is_of_map(seeds, map)) {
                pool.set_cluster_map(map);
            }
        }
    }

    /// They are in effect. Returns a line for each.
    pub(crate) fn done(
        &mut self,
        moves: &[MapMove],
        before: &Snapshot,
        current: &Snapshot,
        at: Instant,
    ) -> Vec<(String, String)> {
        self.retry.done();
        if !moves.is_empty() {
            self.changed_at = Some(at);
        }
        self.drop_known(current, at);
        let mut lines = Vec::new();
        for MapMove { pool, map, .. } in moves {
            let named =
                |snapshot: &'_ Snapshot| snapshot.pools.iter().find(|it| it.name == *pool).cloned();
            let Some(is) = named(current).filter(Pool::is_cluster) else { continue };
            if is.clone().set_cluster_map(map) {
                // It is in front of another cluster by now.
                continue;
            }
            let was = named(before).unwrap_or_else(|| without_map(&is));
            let what = described(&MapChange::between(&was, &is));
            self.last.insert(pool.clone(), (now(), what.clone()));
            lines.push((pool.clone(), format!("{what} ({})", summary(&is))));
        }
        lines
    }

    /// They could not be put into effect, and are tried again.
    pub(crate) fn failed(&mut self, moves: Vec<MapMove>, current: &Snapshot, now: Instant) {
        self.give_back(moves, now);
        self.drop_known(current, now);
        self.retry.failed(now);
    }

    /// These have been taken, and are not to be in effect as they are.
    pub(crate) fn give_back(&mut self, moves: Vec<MapMove>, now: Instant) {
        for MapMove { pool, seeds, map } in moves {
            // What has been told since is newer.
            self.wanted.entry(pool).or_insert(Wanted { seeds, map, due: now });
        }
    }

    /// Nothing is changing any more: what is in effect need not be put into effect.
    fn drop_known(&mut self, current: &Snapshot, now: Instant) {
        for (pool, Wanted { seeds, map, .. }) in std::mem::take(&mut self.wanted) {
            if let Some(due) = self.earliest(&pool, (&seeds, &map), current, now) {
                self.wanted.insert(pool, Wanted { seeds, map, due });
            }
        }
    }

    pub(crate) fn seed(&mut self, pool: String, seed: Address, failure: Option<String>) {
        self.seeds.insert((pool, seed), failure);
    }

    /// Who told of it is gone, and it may be otherwise by now.
    pub(crate) fn forget_seeds(&mut self) {
        self.seeds.clear();
    }

    /// Forgets what is not of this snapshot.
    pub(crate) fn keep(&mut self, snapshot: &Snapshot) {
        let cluster = |name: &str| {
            let pool = snapshot.pools.iter().find(|it| it.name == name);
            pool.and_then(|pool| pool.cluster.as_ref())
        };
        self.wanted.retain(|pool, _| cluster(pool).is_some());
        self.last.retain(|pool, _| cluster(pool).is_some());
        self.seeds.retain(|(pool, seed), _| {
            cluster(pool).is_some_and(|cluster| cluster.seeds.contains(seed))
        });
    }

    /// `None` while that is not known.
    pub(crate) fn is_answering(&self, pool: &str, seed: &Address) -> Option<bool> {
        self.seeds.get(&(pool.to_owned(), seed.clone())).map(Option::is_none)
    }

    /// `None` of a pool that is in front of no cluster.
    pub(crate) fn status_of(&self, pool: &Pool) -> Option<ClusterStatus> {
        let cluster = pool.cluster.as_ref()?;
        let map = pool.cluster_map().unwrap_or_default();
        let shards = map.shards.iter().map(|shard| ShardSlotsStatus {
            primary: shard.primary.name(),
            replicas: shard.replicas.iter().map(|it| it.name()).collect(),
            slots: shard.slots_owned() as u32,
        });
        let seeds = cluster.seeds.iter().map(|seed| {
            let told = self.seeds.get(&(pool.name.clone(), seed.clone()));
            SeedStatus {
                address: seed.to_string(),
                is_answering: told.map(Option::is_none),
                failure: told.cloned().flatten(),
            }
        });
        let last = self.last.get(&pool.name).cloned();
        Some(ClusterStatus {
            epoch: cluster.epoch,
            changes: cluster.changes,
            slots_covered: map.coverage() as u32,
            shards: shards.collect(),
            seeds: seeds.collect(),
            last_change_at: last.as_ref().map(|(at, _)| *at),
            last_change: last.map(|(_, what)| what).unwrap_or_default(),
        })
    }
}

fn without_map(pool: &Pool) -> Pool {
    let mut pool = pool.clone();
    pool.set_cluster_map(&ClusterMap::default());
    pool
}

/// How many nodes and slots there are.
pub(crate) fn summary(pool: &Pool) -> String {
    let map = pool.cluster_map().unwrap_or_default();
    let owners = map.shards.iter().filter(|shard| !shard.slots.is_empty()).count();
    let (nodes, coverage) = (map.nodes().count(), map.coverage());
    let epoch = pool.cluster.as_ref().map_or(0, |cluster| cluster.epoch);
    format!("{nodes} nodes, {owners} with slots, {coverage} of {SLOTS} slots, epoch {epoch}")
}

fn described(change: &MapChange) -> String {
    let MapChange { joined, left, promoted, slots_moved, slots_moving } = change;
    let names = |names: &[String]| {
        let shown = names.iter().take(SHOWN_MAX).cloned().collect::<Vec<_>>().join(", ");
        match names.len().saturating_sub(SHOWN_MAX) {
            0 => shown,
            more => format!("{shown} and {more} more"),
        }
    };
    let mut parts = Vec::new();
    for (names, what) in [
        (names(joined), "joined"),
        (names(left), "left"),
        (names(promoted), "takes writes that it did not take before"),
    ] {
        if !names.is_empty() {
            parts.push(format!("{names} {what}"));
        }
    }
    match slots_moved {
        0 => {}
        1 => parts.push("1 slot has moved".to_owned()),
        many => parts.push(format!("{many} slots have moved")),
    }
    match slots_moving {
        None => {}
        Some(0) => parts.push("no slot has keys at two nodes any more".to_owned()),
        Some(1) => parts.push("1 slot has keys at two nodes".to_owned()),
        Some(many) => parts.push(format!("{many} slots have keys at two nodes")),
    }
    match parts.is_empty() {
        true => "replicas have other primaries".to_owned(),
        false => parts.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use cashew_config::snapshot::{ClusterNode, ClusterShard, SlotRange};

    use super::*;
    use crate::retry::PAUSE_MIN;

    fn snapshot() -> Snapshot {
        let yaml =
            "a: {listen: 127.0.0.1:1, redis: true, cluster: {seeds: ['10.0.0.1:1', 'h:2']}}\n";
        let loaded = cashew_config::parse("t.yml", yaml, &cashew_config::Context::of_system());
        loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot
    }

    fn node(port: u16) -> ClusterNode {
        let address = Address { host: "10.0.0.1".to_owned(), port };
        ClusterNode { address, zone: None }
    }

    /// Primaries with one replica each, and where their slots end.
    fn map(shards: &[(u16, u16, u16)]) -> ClusterMap {
        let mut first = 0;
        let shard = |&(primary, replica, last): &(u16, u16, u16)| {
            let slots = vec![SlotRange { first, last }];
            first = last + 1;
            let (primary, replicas) = (node(primary), vec![node(replica)]);
            ClusterShard { primary, replicas, slots, epoch: u64::from(last) }
        };
        ClusterMap { shards: shards.iter().map(shard).collect(), moving: Vec::new() }
    }

    /// As discovery tells it.
    fn found(map: ClusterMap) -> (Vec<Address>, ClusterMap) {
        (snapshot().pools[0].cluster.as_ref().expect("it has one").seeds.clone(), map)
    }

    fn change(maps: &mut Maps, current: &mut Snapshot, now: Instant) -> Vec<String> {
        assert!(maps.are_due(now));
        let mut next = current.clone();
        let moves = maps.take(&mut next, current);
        let lines = maps.done(&moves, current, &next, now);
        *current = next;
        lines.into_iter().map(|(_, line)| line).collect()
    }

    #[test]
    fn a_failover_is_in_effect_at_once_and_slots_that_move_once_a_second() {
        let (mut maps, mut current, now) = (Maps::default(), snapshot(), Instant::now());
        let told = |maps: &mut Maps, current: &Snapshot, shards, now| {
            maps.told("a".to_owned(), found(map(shards)), (current, false), now);
        };
        let later = |ms| now + Duration::from_millis(ms);
        told(&mut maps, &current, &[(1, 11, 99), (2, 12, SLOTS - 1)], later(0));
        let lines = change(&mut maps, &mut current, later(0));
        assert_eq!(
            lines,
            [
                "10.0.0.1:1, 10.0.0.1:11, 10.0.0.1:12, 10.0.0.1:2 joined; 10.0.0.1:1, 10.0.0.1:2 takes \
              writes that it did not take before; 16384 slots have moved (4 nodes, 2 with slots, 16384 of \
              16384 slots, epoch 16383)"
            ]
        );
        // The same again is no news.
        told(&mut maps, &current, &[(1, 11, 99), (2, 12, SLOTS - 1)], later(10));
        assert_eq!(maps.poll_timeout(), None);
        told(&mut maps, &current, &[(1, 11, 100), (2, 12, SLOTS - 1)], later(10));
        assert_eq!(maps.poll_timeout(), Some(later(1000)));
        // Others follow meanwhile, and do not make it wait.
        told(&mut maps, &current, &[(1, 11, 101), (2, 12, SLOTS - 1)], later(900));
        assert!(!maps.are_due(later(999)));
        let lines = change(&mut maps, &mut current, later(1000));
        assert!(lines[0].starts_with("2 slots have moved ("), "{lines:?}");
        told(&mut maps, &current, &[(11, 1, 101), (2, 12, SLOTS - 1)], later(1001));
        assert_eq!(maps.poll_timeout(), Some(later(1100)));
        let lines = change(&mut maps, &mut current, later(1100));
        let expected =
            "10.0.0.1:11 takes writes that it did not take before; 102 slots have moved (";
        assert!(lines[0].starts_with(expected), "{lines:?}");
        let status = maps.status_of(&current.pools[0]).unwrap();
        assert_eq!((status.changes, status.slots_covered), (3, 16_384));
        assert!(status.last_change.starts_with("10.0.0.1:11 takes"));
        // What moves can wait, too.
        let mut moving = current.pools[0].cluster_map().unwrap();
        moving.moving = vec![SlotRange { first: 5, last: 5 }];
        maps.told("a".to_owned(), found(moving), (&current, false), later(1101));
        assert_eq!(maps.poll_timeout(), Some(later(2100)));
        let lines = change(&mut maps, &mut current, later(2100));
        assert!(lines[0].starts_with("1 slot has keys at two nodes ("), "{lines:?}");
    }

    #[test]
    fn what_fails_is_tried_again_later_unless_there_is_another_map() {
        let (mut maps, mut current, now) = (Maps::default(), snapshot(), Instant::now());
        let (one, other) = (map(&[(1, 2, 99)]), map(&[(2, 1, 99)]));
        maps.told("a".to_owned(), found(one.clone()), (&current, false), now);
        let mut told = current.clone();
        maps.put(&mut told);
        assert_eq!(told.pools[0].servers.len(), 2);
        let moves = maps.take(&mut current.clone(), &current);
        maps.failed(moves.clone(), &current, now);
        assert_eq!(maps.poll_timeout(), Some(now + PAUSE_MIN));
        maps.told("a".to_owned(), found(other.clone()), (&current, false), now);
        let taken = maps.take(&mut current.clone(), &current);
        assert_eq!(
            taken,
            [MapMove { pool: "a".to_owned(), seeds: found(other.clone()).0, map: other.clone() }]
        );
        maps.told("a".to_owned(), found(other), (&current, false), now);
        maps.failed(moves, &current, now);
        assert_eq!(maps.poll_timeout(), Some(now + PAUSE_MIN * 2));
        change(&mut maps, &mut current, now + PAUSE_MIN * 2);
        assert_eq!(current.pools[0].cluster_map().unwrap().shards[0].primary, node(2));
        maps.told("b".to_owned(), found(one.clone()), (&current, false), now);
        assert_eq!(maps.poll_timeout(), None);
        maps.told("a".to_owned(), found(one), (&current, false), now);
        current.pools[0].cluster = None;
        maps.keep(&current);
        assert_eq!(maps.poll_timeout(), None);
    }

    #[test]
    fn a_map_that_a_reload_has_taken_over_is_tried_again_if_the_reload_fails() {
        let (mut maps, mut current, now) = (Maps::default(), snapshot(), Instant::now());
        maps.told("a".to_owned(), found(map(&[(1, 2, 99)])), (&current, false), now);
        // What a file is loaded into has everything that has been told.
        let mut loaded = current.clone();
        maps.put(&mut loaded);
        let moves = maps.take(&mut loaded, &current);
        assert_eq!((moves.len(), maps.poll_timeout()), (1, None));
        maps.failed(moves, &current, now);
        let lines = change(&mut maps, &mut current, now + PAUSE_MIN);
        assert!(lines[0].starts_with("10.0.0.1:1, 10.0.0.1:2 joined"), "{lines:?}");
        // A file that has the pool in front of another cluster does not get it, and one without the pool has no line.
        maps.told("a".to_owned(), found(map(&[(2, 1, 99)])), (&current, false), now);
        let (mut other, mut without) = (current.clone(), current.clone());
        let pool = &mut other.pools[0];
        pool.set_cluster_map(&ClusterMap::default());
        pool.cluster.as_mut().unwrap().seeds = vec![node(99).address];
        let expected = other.clone();
        let moves = maps.take(&mut other, &current);
        assert_eq!((moves.len(), &other), (1, &expected));
        assert!(maps.done(&moves, &current, &other, now).is_empty());
        without.pools.clear();
        maps.failed(moves, &current, now);
        let moves = maps.take(&mut without, &current);
        assert_eq!(moves.len(), 1);
        assert!(maps.done(&moves, &current, &without, now).is_empty());
    }

    #[test]
    fn a_map_is_for_the_cluster_that_it_was_found_in() {
        let (mut maps, current, now) = (Maps::default(), snapshot(), Instant::now());
        maps.told("a".to_owned(), found(map(&[(1, 2, 99)])), (&current, false), now);
        // A file has the pool in front of another cluster before it is in effect.
        let mut other = current.clone();
        other.pools[0].cluster.as_mut().unwrap().seeds = vec![node(99).address];
        let mut loaded = other.clone();
        maps.put(&mut loaded);
        assert_eq!(loaded, other);
        maps.done(&[], &current, &other, now);
        assert_eq!((maps.poll_timeout(), maps.take(&mut loaded, &other)), (None, Vec::new()));
        assert_eq!(loaded, other);
        // What was on its way then comes too late.
        maps.told("a".to_owned(), found(map(&[(1, 2, 99)])), (&other, false), now);
        assert_eq!(maps.poll_timeout(), None);
        // By other seeds it is still the cluster, if they are nodes of it.
        other.pools[0].cluster.as_mut().unwrap().seeds = vec![node(2).address];
        maps.told("a".to_owned(), found(map(&[(1, 2, 99)])), (&other, false), now);
        assert_eq!(maps.poll_timeout(), Some(now));
    }

    #[test]
    fn a_map_that_is_as_it_was_before_a_change_is_not_lost_in_it() {
        let (mut maps, mut current, now) = (Maps::default(), snapshot(), Instant::now());
        let (one, other) = (map(&[(1, 2, 99)]), map(&[(2, 1, 99)]));
        current.set_cluster_map("a", &one);
        let told = |maps: &mut Maps, current: &Snapshot, map: &ClusterMap| {
            maps.told("a".to_owned(), found(map.clone()), (current, true), now);
        };
        for is_done in [false, true] {
            told(&mut maps, &current, &other);
            let mut next = current.clone();
            let moves = maps.take(&mut next, &current);
            told(&mut maps, &current, &one);
            if !is_done {
                // Nor is the other one tried again.
                maps.failed(moves, &current, now);
                assert_eq!(maps.poll_timeout(), None);
                continue;
            }
            maps.done(&moves, &current, &next, now);
            current = next;
            assert_eq!(maps.poll_timeout(), Some(now + URGENT_INTERVAL));
            change(&mut maps, &mut current, now + URGENT_INTERVAL);
        }
        assert_eq!(current.pools[0].cluster_map().unwrap(), one);
        // Before the change has begun, it is not what is put into effect.
        told(&mut maps, &current, &other);
        let mut next = current.clone();
        let moves = maps.take(&mut next, &current);
        told(&mut maps, &current, &one);
        maps.give_back(moves, now);
        assert_eq!(maps.take(&mut next, &current), []);
        assert_eq!(next.pools[0].cluster_map().unwrap(), one);
        // What has been put into effect meanwhile is no news.
        told(&mut maps, &current, &one);
        maps.done(&[], &current, &current, now);
        assert_eq!(maps.poll_timeout(), None);
    }

    #[test]
    fn seeds_are_told_as_they_answer() {
        let (mut maps, current) = (Maps::default(), snapshot());
        let seeds = |maps: &Maps| -> Vec<Option<bool>> {
            let status = maps.status_of(&current.pools[0]).unwrap();
            status.seeds.iter().map(|seed| seed.is_answering).collect()
        };
        assert_eq!(seeds(&maps), [None, None]);
        maps.seed("a".to_owned(), node(1).address, None);
        let other = Address { host: "h".to_owned(), port: 2 };
        maps.seed("a".to_owned(), other.clone(), Some("refuses connections".to_owned()));
        assert_eq!(seeds(&maps), [Some(true), Some(false)]);
        assert_eq!(maps.is_answering("a", &other), Some(false));
        maps.forget_seeds();
        assert_eq!(seeds(&maps), [None, None]);
    }
}
