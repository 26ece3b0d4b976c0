//! The share of a pool's keys that another snapshot sends to another server.

use std::collections::HashMap;
use std::fmt;

use cashew_placement::{Distribution, Hash, Ring};

use crate::snapshot::{Endpoint, Pool, Protocol, Topology, TopologyState};

/// Rings whose comparison takes more steps than this are compared at samples only.
const STEPS_MAX: u64 = 1 << 22;

/// The number of points, or keys, in a sample.
const SAMPLES: u32 = 100_000;

/// A share of the keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share {
    /// 0.0..=1.0
    pub(crate) of_keys: f64,
    /// Whether all keys were counted, not a sample.
    pub(crate) is_exact: bool,
}

impl Share {
    const ALL: Self = Self { of_keys: 1.0, is_exact: true };
    const NONE: Self = Self { of_keys: 0.0, is_exact: true };
}

/// As the beginning of a sentence about those keys.
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = if self.is_exact { "" } else { "about " };
        let percent = self.of_keys * 100.0;
        match percent {
            0.0 if self.is_exact => f.write_str("no key goes"),
            0.0 => f.write_str("nearly no keys go"),
            100.0 if self.is_exact => f.write_str("all keys go"),
            100.0 => f.write_str("nearly all keys go"),
            ..0.1 => f.write_str("less than 0.1% of the keys go"),
            99.9.. => f.write_str("more than 99.9% of the keys go"),
            _ => write!(f, "{about}{percent:.1}% of the keys go"),
        }
    }
}

/// The shares that move for writes and for reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Moved {
    pub(crate) writes: Share,
    pub(crate) reads: Share,
}

/// `None` if nothing in either pool determines where a key goes, or if both determine it alike.
/// Hash tags are ignored: their effect depends on the keys.
///
/// A server is identified by its address: under another name it is the same server, at another
/// address it is not.
pub(crate) fn moved(old: &Pool, new: &Pool) -> Option<Moved> {
    let is_random = |pool: &Pool| pool.distribution == Distribution::Random && !pool.is_one_shard();
    let has_no_keys = old.protocol == Protocol::Tcp || new.protocol == Protocol::Tcp;
    if has_no_keys || is_same(old, new) || is_random(old) && is_random(new) {
        return None;
    }
    let mut places = Places::default();
    let (old, new) = (Map::new(old, &mut places), Map::new(new, &mut places));
    Some(Moved { writes: share(&old.writes, &new.writes), reads: share(&old.reads, &new.reads) })
}

fn is_same(old: &Pool, new: &Pool) -> bool {
    let placement = |pool: &Pool| (pool.hash, pool.distribution);
    placement(old) == placement(new) && old.topology == new.topology && old.servers == new.servers
}

/// Numbers for what must be equal for a key not to move.
#[derive(Default)]
struct Places<'a>(HashMap<&'a Endpoint, u32>);

impl<'a> Places<'a> {
    fn number(&mut self, endpoint: &'a Endpoint) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(endpoint).or_insert(next)
    }
}

/// The mapping of keys to servers.
struct Map {
    writes: Way,
    reads: Way,
}

/// From keys to places.
#[derive(Clone)]
enum Way {
    /// Everything goes to one place.
    Straight(u32),
    Ring {
        ring: Ring,
        hash: Hash,
        is_random: bool,
        /// By the index that the ring has: of the shard, or the replica.
        places: Vec<u32>,
    },
}

impl Map {
    /// As in the engine's router: with a master, the ring has its replicas.
    fn new<'a>(pool: &'a Pool, places: &mut Places<'a>) -> Self {
        let endpoint = |server: u32| &pool.servers[server as usize].endpoint;
        let numbers: Vec<u32> = match &pool.topology {
            Topology::Sharded | Topology::MasterReplica { .. } => {
                pool.servers.iter().map(|server| places.number(&server.endpoint)).collect()
            }
            // Replicas have the keys of their primary, whoever of them answers reads.
            Topology::Groups(groups) => {
                groups.iter().map(|group| places.number(endpoint(group.primary))).collect()
            }
        };
        let mut on_ring = vec![true; numbers.len()];
        let master = match pool.topology {
            Topology::Sharded | Topology::Groups(_) => None,
            Topology::MasterReplica { master } => {
                on_ring[master as usize] = false;
                Some(numbers[master as usize])
            }
        };
        let mut shares = numbers.iter().zip(&on_ring).filter(|(_, on_ring)| **on_ring);
        let first = shares.next().map(|(place, _)| *place);
        let reads = match first {
            Some(place) if shares.all(|(other, _)| *other == place) => Way::Straight(place),
            _ => Way::Ring {
                ring: pool.ring(&TopologyState::whole(pool)),
                hash: pool.hash,
                is_random: pool.distribution == Distribution::Random,
                places: numbers,
            },
        };
        Self { writes: master.map_or_else(|| reads.clone(), Way::Straight), reads }
    }
}

fn share(old: &Way, new: &Way) -> Share {
    match (old, new) {
        (Way::Straight(old), Way::Straight(new)) if old == new => Share::NONE,
        (Way::Straight(_), Way::Straight(_)) => Share::ALL,
        (Way::Straight(place), ring @ Way::Ring { .. })
        | (ring @ Way::Ring { .. }, Way::Straight(place)) => {
            let part = ring.parts().get(place).copied().unwrap_or(0.0);
            Share { of_keys: (1.0 - part).clamp(0.0, 1.0), is_exact: ring.is_walked() }
        }
        // Neither determines a place for keys.
        (Way::Ring { is_random: true, .. }, Way::Ring { is_random: true, .. }) => Share::NONE,
        (Way::Ring { is_random: true, .. }, Way::Ring { .. })
        | (Way::Ring { .. }, Way::Ring { is_random: true, .. }) => {
            // A random choice of the server is independent of the key.
            let (old_parts, new_parts) = (old.parts(), new.parts());
            let stays: f64 = old_parts
                .iter()
                .map(|(place, part)| part * new_parts.get(place).copied().unwrap_or(0.0))
                .sum();
            let is_exact = old.is_walked() && new.is_walked();
            Share { of_keys: (1.0 - stays).clamp(0.0, 1.0), is_exact }
        }
        (Way::Ring { hash: old_hash, .. }, Way::Ring { hash: new_hash, .. })
            if old_hash == new_hash =>
        {
            compare(old, new, old_hash.values())
        }
        (Way::Ring { .. }, Way::Ring { .. }) => {
            let keys = (0..SAMPLES).map(|number| format!("key:{number}"));
            let moved = keys.filter(|key| old.of_key(key) != new.of_key(key)).count();
            Share { of_keys: moved as f64 / f64::from(SAMPLES), is_exact: false }
        }
    }
}

/// Compares the mapping of the points below `values`.
fn compare(old: &Way, new: &Way, values: u64) -> Share {
    let period = lcm(old.period(), new.period()).min(values);
    if old.steps(period) + new.steps(period) > STEPS_MAX {
        let moved = samples(values).filter(|&point| old.run(point).0 != new.run(point).0).count();
        return Share { of_keys: moved as f64 / f64::from(SAMPLES), is_exact: false };
    }
    let in_period = count(old, new, period);
    let moved = in_period * (values / period) + count(old, new, values % period);
    Share { of_keys: moved as f64 / values as f64, is_exact: true }
}

/// How many of the points below `end` go to different places.
fn count(old: &Way, new: &Way, end: u64) -> u64 {
    let (mut moved, mut at) = (0, 0);
    while at < end {
        let ((old, old_last), (new, new_last)) = (old.run(at as u32), new.run(at as u32));
        let next = u64::from(old_last.min(new_last)) + 1;
        if old != new {
            moved += next.min(end) - at;
        }
        at = next;
    }
    moved
}

/// One random point in each of equal parts of the points below `values`: steps of equal length
/// would meet a modulus that nearly divides them in only some of its slots.
fn samples(values: u64) -> impl Iterator<Item = u32> {
    let start = move |number: u32| u64::from(number) * values / u64::from(SAMPLES);
    (0..SAMPLES).map(move |number| {
        let width = (start(number + 1) - start(number)).max(1);
        let scattered = u64::from(Hash::Murmur.hash(&number.to_le_bytes()));
        (start(number) + ((scattered * width) >> u32::BITS)) as u32
    })
}

fn lcm(a: u64, b: u64) -> u64 {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor).saturating_mul(b)
}

impl Way {
    /// The place of a point, and the last point after it that certainly goes there too.
    fn run(&self, point: u32) -> (u32, u32) {
        match self {
            Self::Straight(place) => (*place, u32::MAX),
            Self::Ring { ring, places, .. } => {
                let (server, last) = ring.run(point).expect("a ring of a snapshot has servers");
                (places[server as usize], last)
            }
        }
    }

    fn of_key(&self, key: &str) -> u32 {
        match self {
            Self::Straight(place) => *place,
            Self::Ring { ring, hash, .. } => self.run(ring.point(*hash, None, key.as_bytes())).0,
        }
    }

    fn period(&self) -> u64 {
        match self {
            Self::Straight(_) => 1,
            Self::Ring { ring, .. } => ring.period(),
        }
    }

    /// The maximum number of calls of `run` for the points below `end`.
    fn steps(&self, end: u64) -> u64 {
        match self {
            Self::Straight(_) => 1,
            Self::Ring { ring, .. } => {
                end.div_ceil(ring.period()).saturating_mul(ring.runs() as u64).min(end)
            }
        }
    }

    /// The range of the random number, or of the hash.
    fn values(&self) -> u64 {
        match self {
            Self::Ring { hash, is_random: false, .. } => hash.values(),
            Self::Straight(_) | Self::Ring { .. } => 1 << u32::BITS,
        }
    }

    /// Whether [`Way::parts`] counts everything.
    fn is_walked(&self) -> bool {
        self.steps(self.period().min(self.values())) <= STEPS_MAX
    }

    /// The part of the points that goes to each place.
    fn parts(&self) -> HashMap<u32, f64> {
        let values = self.values();
        let mut parts = HashMap::new();
        if !self.is_walked() {
            for point in samples(values) {
                *parts.entry(self.run(point).0).or_default() += 1.0 / f64::from(SAMPLES);
            }
            return parts;
        }
        let period = self.period().min(values);
        for (end, times) in [(period, values / period), (values % period, 1)] {
            let mut at = 0;
            while at < end {
                let (place, last) = self.run(at as u32);
                let next = u64::from(last) + 1;
                let points = (next.min(end) - at) * times;
                *parts.entry(place).or_default() += points as f64 / values as f64;
                at = next;
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::difference::tests::{pool, server};
    use crate::snapshot::{Promoted, Server, ServerGroup};

    #[test]
    fn shares_are_those_of_arithmetic() {
        let modula = |servers: Vec<Server>| Pool {
            distribution: Distribution::Modula,
            ..pool("p", servers)
        };
        let named = |count: u16| (1..=count).map(|n| server(&format!("s{n}"), n, 1)).collect();
        // Of six points in a row the first two stay.
        let two_to_three = exact(&modula(named(2)), &modula(named(3)));
        assert!((two_to_three - 2.0 / 3.0).abs() < 1e-8, "{two_to_three}");
        let heavier = vec![server("s1", 1, 1), server("s2", 2, 3)];
        let half_to_quarter = exact(&modula(named(2)), &modula(heavier));
        assert!((half_to_quarter - 0.25).abs() < 1e-9, "{half_to_quarter}");
        assert_eq!(exact(&modula(named(1)), &modula(named(2))), 0.5);
        assert_eq!(exact(&modula(named(4)), &modula(named(1))), 0.75);
        assert_eq!(exact(&pool("p", named(1)), &pool("p", vec![server("s9", 9, 1)])), 1.0);
    }

    #[test]
    fn a_server_is_its_address() {
        let before = pool("p", vec![server("one", 1, 1), server("two", 2, 1)]);
        let named_anew = pool("p", vec![server("one", 1, 1), server("new", 2, 1)]);
        let moved = pool("p", vec![server("one", 1, 1), server("two", 3, 1)]);
        let keys = exact(&before, &moved);
        let ring = Map::new(&before, &mut Places::default());
        assert!((keys - ring.reads.parts()[&1]).abs() < 1e-9, "{keys}");
        assert!(exact(&before, &named_anew) < 0.5);
        let alone = |name| pool("p", vec![server(name, 1, 1)]);
        assert_eq!(exact(&alone("one"), &alone("two")), 0.0);
    }

    #[test]
    fn chance_has_no_keys() {
        let two = vec![server("one", 1, 1), server("two", 2, 1)];
        let random = |servers: &[Server]| Pool {
            distribution: Distribution::Random,
            ..pool("p", servers.to_vec())
        };
        assert_eq!(moved(&random(&two), &random(&two[..1])), None);
        let ketama = pool("p", two.clone());
        assert!((exact(&ketama, &random(&two)) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn with_a_master_writes_and_reads_differ() {
        let servers = vec![server("a", 1, 1), server("b", 2, 1), server("master", 3, 1)];
        let replicated =
            Pool { topology: Topology::MasterReplica { master: 2 }, ..pool("p", servers) };
        let fewer = Pool {
            topology: Topology::MasterReplica { master: 1 },
            ..pool("p", vec![server("a", 1, 1), server("master", 3, 1)])
        };
        let share = moved(&replicated, &fewer).unwrap();
        assert_eq!(share.writes, Share::NONE);
        assert!(share.reads.of_keys > 0.3 && share.reads.of_keys < 0.7, "{share:?}");
    }

    /// The file swaps the addresses of two names, as a failover has them already.
    #[test]
    fn a_file_that_names_the_primary_in_force_moves_no_writes() {
        let replicated = |a: u16, b: u16| Pool {
            topology: Topology::MasterReplica { master: 0 },
            ..pool("p", vec![server("master", a, 1), server("r1", b, 1), server("r2", 3, 1)])
        };
        let promoted = TopologyState {
            primaries: vec![Promoted { shard: 0, server: 1 }],
            ..TopologyState::whole(&replicated(1, 2))
        };
        let (before, after) = (replicated(1, 2).in_force(&promoted), replicated(2, 1));
        assert_eq!(moved(&before, &after).unwrap().writes, Share::NONE);
        assert_eq!(moved(&before, &replicated(1, 2)).unwrap().writes, Share::ALL);
        assert_eq!(moved(&replicated(1, 2), &after).unwrap().writes, Share::ALL);
    }

    fn grouped(primary: u16, replicas: &[u16]) -> Pool {
        let mut servers = vec![server("s1", primary, 1)];
        servers.extend(replicas.iter().map(|&it| server(&format!("s1/{it}"), it, 1)));
        let replicas = (1..servers.len() as u32).collect();
        let group = ServerGroup { name: "s1".into(), weight: 1, primary: 0, replicas };
        Pool { topology: Topology::Groups(vec![group]), ..pool("p", servers) }
    }

    #[test]
    fn keys_of_a_group_are_at_its_primary() {
        let line = |at| pool("p", vec![server("s1", at, 1)]);
        assert_eq!(exact(&line(1), &grouped(1, &[2, 3])), 0.0);
        assert_eq!(exact(&grouped(1, &[2, 3]), &grouped(1, &[3])), 0.0);
        assert_eq!(exact(&grouped(1, &[2, 3]), &line(1)), 0.0);
        assert_eq!(exact(&line(1), &grouped(2, &[1])), 1.0);
        assert_eq!(exact(&grouped(1, &[2]), &grouped(2, &[1])), 1.0);
        assert_eq!(exact(&grouped(1, &[2]), &line(2)), 1.0);
        // Since a failover.
        let promoted = TopologyState {
            primaries: vec![Promoted { shard: 0, server: 1 }],
            ..TopologyState::whole(&grouped(1, &[2]))
        };
        let before = grouped(1, &[2]).in_force(&promoted);
        assert_eq!(exact(&before, &grouped(2, &[1])), 0.0);
        assert_eq!(exact(&before, &line(2)), 0.0);
        assert_eq!(exact(&before, &line(1)), 1.0);
    }

    #[test]
    fn another_hash_is_tried_with_some_keys() {
        let servers: Vec<Server> = (1..=4).map(|n| server(&format!("s{n}"), n, 1)).collect();
        let before = pool("p", servers);
        let share = moved(&before, &Pool { hash: Hash::Murmur, ..before.clone() }).unwrap().reads;
        assert!(!share.is_exact && (share.of_keys - 0.75).abs() < 0.05, "{share:?}");
    }

    #[test]
    fn rings_that_have_little_in_common_are_sampled() {
        let weights = |a, b| Pool {
            distribution: Distribution::Modula,
            ..pool("p", vec![server("a", 1, a), server("b", 2, b)])
        };
        let share = moved(&weights(1, 1), &pool("p", weights(1, 1).servers)).unwrap().reads;
        assert!(!share.is_exact && (share.of_keys - 0.5).abs() < 0.02, "{share:?}");
        let share = moved(&weights(2_000_003, 1), &weights(1, 2_000_029)).unwrap().reads;
        assert!((share.of_keys - 1.0).abs() < 0.02, "{share:?}");
    }

    /// A 100,000th of all points is just above the modulus: in equal steps of that size the samples
    /// would cover the slots only one and a half times.
    #[test]
    fn samples_do_not_march_in_step_with_a_modulus() {
        let modula = |servers: Vec<Server>| Pool {
            distribution: Distribution::Modula,
            ..pool("p", servers)
        };
        let weight = |n: u16| if n == 60 { 42_949 - 59 * 715 } else { 715 };
        let many = (1..=60).map(|n| server(&format!("s{n:02}"), n, weight(n))).collect();
        let halves = vec![server("s01", 31, 1_000_001), server("s02", 60, 1_000_002)];
        let share = moved(&modula(many), &modula(halves)).unwrap().reads;
        let stays = (715.0 + 764.0) / 42_949.0 / 2.0;
        assert!(!share.is_exact && (share.of_keys - 1.0 + stays).abs() < 0.001, "{share:?}");
    }

    #[test]
    fn only_values_of_the_hash_count() {
        let with = |servers: Vec<Server>| Pool {
            hash: Hash::Crc32,
            distribution: Distribution::Modula,
            ..pool("p", servers)
        };
        let before = with(vec![server("a", 1, 32_767), server("b", 2, 1)]);
        let after = with(vec![server("a", 1, 32_767), server("c", 3, 1)]);
        assert!((exact(&before, &after) - 1.0 / 32_768.0).abs() < 1e-12);
    }

    #[test]
    fn shares_are_never_rounded_to_nothing_or_all() {
        let text = |of_keys, is_exact| Share { of_keys, is_exact }.to_string();
        assert_eq!(text(0.0, true), "no key goes");
        assert_eq!(text(0.0, false), "nearly no keys go");
        assert_eq!(text(0.000_01, true), "less than 0.1% of the keys go");
        assert_eq!(text(0.25, true), "25.0% of the keys go");
        assert_eq!(text(0.251_23, false), "about 25.1% of the keys go");
        assert_eq!(text(0.999_9, true), "more than 99.9% of the keys go");
        assert_eq!(text(1.0, true), "all keys go");
    }

    /// Multiples of the golden ratio are not a representative sample: they would give 84.0% instead
    /// of 89.1%.
    #[test]
    fn exact_shares_of_a_small_cycle_are_what_sampling_finds() {
        let old = [(1, 1), (0, 6), (6, 8), (7, 4), (2, 7), (3, 3)];
        let new = [(0, 4), (1, 8), (7, 7)];
        let (exact, sampled) = exact_and_sampled(Distribution::Modula, &old, &new).unwrap();
        assert!((exact - 491.0 / 551.0).abs() < 1e-8, "{exact}");
        assert!((sampled - exact).abs() < 0.01, "{sampled} {exact}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn exact_shares_are_what_sampling_finds(
            distribution in prop::sample::select(vec![Distribution::Ketama, Distribution::Modula]),
            old in prop::collection::vec((0u16..8, 1u32..9), 1..8),
            new in prop::collection::vec((0u16..8, 1u32..9), 1..8),
        ) {
            if let Some((exact, sampled)) = exact_and_sampled(distribution, &old, &new) {
                prop_assert!((sampled - exact).abs() < 0.01, "{sampled} {exact}");
            }
        }
    }

    /// The share that moves between pools of these ports and weights, exact and sampled.
    fn exact_and_sampled(
        distribution: Distribution,
        old: &[(u16, u32)],
        new: &[(u16, u32)],
    ) -> Option<(f64, f64)> {
        let make = |servers: &[(u16, u32)]| {
            let mut servers: Vec<Server> = servers
                .iter()
                .map(|&(port, weight)| server(&format!("s{port}"), port, weight))
                .collect();
            servers.sort_by(|a, b| a.name.cmp(&b.name));
            servers.dedup_by(|a, b| a.name == b.name);
            Pool { distribution, ..pool("p", servers) }
        };
        let (old, new) = (make(old), make(new));
        let exact = moved(&old, &new)?.reads;
        assert!(exact.is_exact);
        let mut places = Places::default();
        let (old, new) = (Map::new(&old, &mut places), Map::new(&new, &mut places));
        let differs = |&point: &u32| old.reads.run(point).0 != new.reads.run(point).0;
        let sampled = samples(1 << u32::BITS).filter(differs).count();
        Some((exact.of_keys, sampled as f64 / f64::from(SAMPLES)))
    }

    fn exact(old: &Pool, new: &Pool) -> f64 {
        let share = moved(old, new).unwrap().reads;
        assert!(share.is_exact);
        share.of_keys
    }
}
