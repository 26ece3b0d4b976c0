//! Rings: from a hash to the index of a live server.
//!
//! A ring is built once per change of the live servers and read on every request, so all
//! distributions share one compact form: ascending values, each with the index of the server that
//! owns everything up to it.

use std::cmp::Ordering;
use std::io::Write as _;

use serde::{Deserialize, Serialize};

use crate::md5::Md5;
use crate::{Hash, HashTag};

/// How keys are spread over servers, named as in the configuration's `distribution:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    Ketama,
    Modula,
    Random,
}

impl Distribution {
    pub const ALL: [Self; 3] = [Self::Ketama, Self::Modula, Self::Random];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ketama => "ketama",
            Self::Modula => "modula",
            Self::Random => "random",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|distribution| distribution.name() == name)
    }
}

/// One server of a pool as the ring sees it.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    pub name: &'a [u8],
    /// At least 1.
    pub weight: u32,
}

/// The order in which the servers of a pool are numbered: length of the name first, then its bytes.
pub fn server_order(a: &str, b: &str) -> Ordering {
    a.len().cmp(&b.len()).then_with(|| a.as_bytes().cmp(b.as_bytes()))
}

/// Which live server owns a point.
#[derive(Clone, Debug)]
pub struct Ring {
    /// What points are reduced by before they are looked up; 0 means they are taken as they are.
    modulus: u64,
    /// By ascending value. A point belongs to the first mark that is not below it; past the last
    /// mark, to the first one.
    marks: Vec<Mark>,
    starts: Starts,
    needs_hash: bool,
    /// The start of the digest: what of the live servers is not in the marks.
    names: Md5,
}

impl Ring {
    /// `nodes` are in `server_order`; `live` says which of them take part.
    pub fn build(distribution: Distribution, nodes: &[Node<'_>], live: &[bool]) -> Self {
        Self::build_with_shares(distribution, nodes, live, |_| SHARE_WHOLE)
    }

    /// As [`Ring::build`], where nodes, by their indices, may have a share of their points only, in thousandths. With
    /// `ketama` a smaller share takes keys from that node alone, and gives them to others; with none it takes no part.
    /// The others have what they have without shares, so a node with none is as if it were not live. Other
    /// distributions know all or nothing.
    pub fn build_with_shares(
        distribution: Distribution,
        nodes: &[Node<'_>],
        live: &[bool],
        share: impl Fn(u32) -> u16,
    ) -> Self {
        assert_eq!(nodes.len(), live.len());
        let mut members = Vec::with_capacity(nodes.len());
        for ((index, &node), &live) in (0..).zip(nodes).zip(live) {
            let share = share(index).min(SHARE_WHOLE);
            if live && share > 0 {
                members.push(Member { index, node, share });
            }
        }
        let (modulus, values, indexes) = match distribution {
            Distribution::Ketama => ketama(&members),
            Distribution::Modula => slots(&members, |node| node.weight),
            Distribution::Random => slots(&members, |_| 1),
        };
        let needs_hash = nodes.len() > 1 && distribution != Distribution::Random;
        let starts = Starts::build(&values);
        let marks = values.into_iter().zip(indexes);
        let marks = marks.map(|(value, server)| Mark { value, server }).collect();
        Self { modulus, marks, starts, needs_hash, names: names(distribution, &members) }
    }

    /// The same ring with other indices, for those who go on from them: not to be compared by its
    /// digest.
    pub fn with_indices(mut self, index: impl Fn(u32) -> u32) -> Self {
        self.marks.iter_mut().for_each(|mark| mark.server = index(mark.server));
        self
    }

    /// The point of `key`, to be given to `select`. An empty key and a pool of one server have
    /// point 0 without being hashed. With `Distribution::Random` a point is a random number
    /// instead.
    #[inline]
    pub fn point(&self, hash: Hash, tag: Option<HashTag>, key: &[u8]) -> u32 {
        if !self.needs_hash || key.is_empty() {
            return 0;
        }
        hash.hash(tag.map_or(key, |tag| tag.part(key)))
    }

    /// The index of the server that owns `point`; `None` when no server is live.
    #[inline(always)]
    pub fn select(&self, point: u32) -> Option<u32> {
        let point = match self.modulus {
            0 => point,
            modulus => (u64::from(point) % modulus) as u32,
        };
        let mut at = self.starts.of(point);
        while let Some(mark) = self.marks.get(at) {
            if mark.value >= point {
                return Some(mark.server);
            }
            at += 1;
        }
        self.marks.first().map(|mark| mark.server)
    }

    /// The server that owns `point`, and the last point of the row of points from there on that
    /// belong to it for the same reason. The next row may be the same server's.
    pub fn run(&self, point: u32) -> Option<(u32, u32)> {
        let (reduced, last) = match self.modulus {
            0 => (point, u32::MAX),
            modulus => {
                let reduced = (u64::from(point) % modulus) as u32;
                let left = u32::try_from(modulus - 1).unwrap_or(u32::MAX) - reduced;
                (reduced, point.saturating_add(left))
            }
        };
        let at = self.marks.partition_point(|mark| mark.value < reduced);
        match self.marks.get(at) {
            Some(mark) => Some((mark.server, point.saturating_add(mark.value - reduced))),
            None => self.marks.first().map(|mark| (mark.server, last)),
        }
    }

    /// The share of the points that each of so many servers owns, of 1 in all.
    pub fn shares(&self, servers: usize) -> Vec<f64> {
        let (mut owned, mut start) = (vec![0; servers], 0);
        while let Some((server, last)) = self.run(start as u32) {
            let end = (u64::from(last) + 1).min(self.period());
            owned[server as usize] += end - start;
            start = end;
            if start == self.period() {
                break;
            }
        }
        owned.into_iter().map(|points| points as f64 / self.period() as f64).collect()
    }

    /// After how many points the ring begins anew.
    pub fn period(&self) -> u64 {
        match self.modulus {
            0 => 1 << u32::BITS,
            modulus => modulus,
        }
    }

    /// How many rows of points one period has, at most.
    pub fn runs(&self) -> usize {
        self.marks.len() + 1
    }

    /// Whether points come from keys: not so when there is but one server, live or not, or when
    /// servers are picked at random.
    #[inline]
    pub fn needs_hash(&self) -> bool {
        self.needs_hash
    }

    /// The same for rings that send every key to servers of the same index and name, on any
    /// machine and in any version.
    pub fn digest(&self) -> u64 {
        let mut md5 = self.names.clone();
        for mark in &self.marks {
            md5.update(mark.value.to_le_bytes());
            md5.update(mark.server.to_le_bytes());
        }
        let digest = md5.finalize();
        let (first, _) = digest.split_at(8);
        first.iter().rev().fold(0, |value, &byte| (value << 8) | u64::from(byte))
    }

    /// How many points or slots the live servers share.
    pub fn points(&self) -> usize {
        match self.modulus {
            0 => self.marks.len(),
            modulus => modulus as usize,
        }
    }
}

/// The server that owns everything up to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    value: u32,
    server: u32,
}

/// Where to look for a point: the range of values is cut into about as many equal parts as there
/// are values, so that as a rule one or two remain to be compared instead of the ten steps of a
/// binary search.
#[derive(Clone, Debug)]
struct Starts {
    /// Points that agree from this bit on are in one part.
    shift: u32,
    /// By part: the first value that may not be below a point of it.
    first: Vec<u32>,
}

impl Starts {
    fn build(values: &[u32]) -> Self {
        let last = values.last().copied().unwrap_or(0);
        let bits = u32::BITS - last.leading_zeros();
        let shift = bits.saturating_sub(values.len().next_power_of_two().ilog2()).min(31);
        let mut at = 0;
        let first = (0..=last >> shift).map(|part| {
            let least = part << shift;
            at += values[at..].iter().take_while(|&&value| value < least).count();
            at as u32
        });
        Self { shift, first: first.collect() }
    }

    /// No value before this one is the point's.
    #[inline]
    fn of(&self, point: u32) -> usize {
        self.first.get((point >> self.shift) as usize).map_or(usize::MAX, |&first| first as usize)
    }
}

/// All of its points: thousandths.
pub const SHARE_WHOLE: u16 = 1000;

/// A live server and its index among all servers.
#[derive(Clone, Copy)]
struct Member<'a> {
    index: u32,
    node: Node<'a>,
    /// Of its points, in thousandths: at least 1.
    share: u16,
}

/// Modulus, values and indexes of a ring.
type Parts = (u64, Vec<u32>, Vec<u32>);

/// What a server gets on a ketama ring when all weights are equal, before rounding.
const KETAMA_POINTS_PER_SERVER: f32 = 160.0;
/// One MD5 digest makes four points.
const KETAMA_POINTS_PER_HASH: usize = 4;
/// Longer point names are cut.
const KETAMA_NAME_MAX: usize = 272;

fn ketama(members: &[Member<'_>]) -> Parts {
    let weight_total: u64 = members.iter().map(|member| u64::from(member.node.weight)).sum();
    let mut points = Vec::with_capacity(members.len() * KETAMA_POINTS_PER_SERVER as usize);
    let mut name = Vec::new();
    for member in members {
        let whole = ketama_hashes(member.node.weight, weight_total, members.len());
        for number in 0..part_of(whole, member.share) {
            name.clear();
            name.extend_from_slice(member.node.name);
            write!(name, "-{number}").expect("a vector takes everything");
            name.truncate(KETAMA_NAME_MAX);
            let digest = Md5::digest(&name);
            for bytes in digest.chunks_exact(KETAMA_POINTS_PER_HASH) {
                let value = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                // One number of both sorts fastest, and equal values by server, as twemproxy's.
                points.push(u64::from(value) << u32::BITS | u64::from(member.index));
            }
        }
    }
    points.sort_unstable();
    let (values, indexes) =
        points.into_iter().map(|point| ((point >> u32::BITS) as u32, point as u32)).unzip();
    (0, values, indexes)
}

/// How many digests a server puts on the ring. Single precision throughout: several sizes of pool
/// get fewer points than exact arithmetic would give, and keys depend on it.
fn ketama_hashes(weight: u32, weight_total: u64, live: usize) -> u32 {
    let share = weight as f32 / weight_total as f32;
    let hashes = share * KETAMA_POINTS_PER_SERVER / KETAMA_POINTS_PER_HASH as f32 * live as f32;
    (f64::from(hashes) + 1e-10) as f32 as u32
}

/// At least one of them, unless there is none: who has a share has keys.
fn part_of(hashes: u32, share: u16) -> u32 {
    match share {
        SHARE_WHOLE => hashes,
        _ => {
            let part = u64::from(hashes) * u64::from(share) / u64::from(SHARE_WHOLE);
            (part as u32).max(1).min(hashes)
        }
    }
}

/// As many slots in a row for each server as `share` says. Only the last slot of each is stored,
/// so that large weights cost nothing.
fn slots(members: &[Member<'_>], share: impl Fn(&Node<'_>) -> u32) -> Parts {
    let mut modulus = 0u64;
    let mut values = Vec::with_capacity(members.len());
    let mut indexes = Vec::with_capacity(members.len());
    for member in members {
        let share = share(&member.node);
        // Slots beyond what a point can reach belong to nobody.
        if share == 0 || modulus > u64::from(u32::MAX) {
            continue;
        }
        modulus += u64::from(share);
        values.push(u32::try_from(modulus - 1).unwrap_or(u32::MAX));
        indexes.push(member.index);
    }
    (modulus, values, indexes)
}

/// Names are part of the digest because equal weights alone make the same slots for other servers;
/// points are part of it so that a version that computes them differently is noticed.
fn names(distribution: Distribution, members: &[Member<'_>]) -> Md5 {
    let mut md5 = Md5::new();
    md5.update(distribution.name());
    md5.update((members.len() as u64).to_le_bytes());
    for member in members {
        md5.update(member.index.to_le_bytes());
        md5.update((member.node.name.len() as u64).to_le_bytes());
        md5.update(member.node.name);
    }
    md5
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error, StrDeserializer};

    use super::*;

    #[test]
    fn a_smaller_share_takes_keys_from_that_server_alone() {
        let names: Vec<String> = (0..7).map(|number| format!("server{number}")).collect();
        let weights = [1, 1, 3, 2, 1, 5, 1];
        let nodes: Vec<Node<'_>> = names
            .iter()
            .zip(weights)
            .map(|(name, weight)| Node { name: name.as_bytes(), weight })
            .collect();
        let live = [true; 7];
        let with = |share| {
            let of = |node| if node == 2 { share } else { SHARE_WHOLE };
            Ring::build_with_shares(Distribution::Ketama, &nodes, &live, of)
        };
        let points: Vec<u32> = (0..20_000u32).map(|at| at.wrapping_mul(2_654_435_761)).collect();
        let owners = |ring: &Ring| -> Vec<u32> {
            points.iter().map(|&point| ring.select(point).unwrap()).collect()
        };
        let whole = Ring::build(Distribution::Ketama, &nodes, &live);
        assert_eq!(with(SHARE_WHOLE).digest(), whole.digest());
        let count = |owners: &[u32]| owners.iter().filter(|&&owner| owner == 2).count();
        let (mut before, all) = (owners(&whole), count(&owners(&whole)));
        for share in [900, 750, 500, 250, 1] {
            let now = owners(&with(share));
            assert!(now.iter().zip(&before).all(|(now, was)| now == was || *was == 2), "{share}");
            assert!(count(&now) > 0, "{share}");
            let off = count(&now) as f64 / all as f64 - f64::from(share) / 1000.0;
            assert!(off.abs() < 0.1, "{share}: {off}");
            before = now;
        }
        let mut without = live;
        without[2] = false;
        let gone = Ring::build(Distribution::Ketama, &nodes, &without);
        assert_eq!(with(0).digest(), gone.digest());
    }

    #[test]
    fn other_distributions_know_all_or_nothing() {
        let nodes = [Node { name: b"a", weight: 2 }, Node { name: b"b", weight: 3 }];
        for distribution in [Distribution::Modula, Distribution::Random] {
            let with = |share| {
                let of = |node| if node == 1 { share } else { SHARE_WHOLE };
                Ring::build_with_shares(distribution, &nodes, &[true; 2], of).digest()
            };
            assert_eq!(with(1), Ring::build(distribution, &nodes, &[true; 2]).digest());
            assert_eq!(with(0), Ring::build(distribution, &nodes, &[true, false]).digest());
        }
    }

    const KEYS: [&[u8]; 9] = [
        b"apple",
        b"a",
        b"foo",
        b"key-1",
        b"key-2",
        b"user:1000",
        b"\xe4\xb8\xad\xe6\x96\x87",
        b"\xff\x80",
        b"",
    ];

    #[test]
    fn shares_are_those_of_the_points() {
        let even = ring(Distribution::Modula, &SERVERS, &[1, 1, 1, 5]).shares(4);
        assert_eq!(even, [0.125, 0.125, 0.125, 0.625]);
        let ketama = ring(Distribution::Ketama, &SERVERS, &[1; 4]);
        let shares = ketama.shares(4);
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
        // As many keys as may be are where the shares say.
        let mut counts = [0; 4];
        for key in 0..20_000 {
            let point = ketama.point(Hash::Md5, None, format!("key-{key}").as_bytes());
            counts[ketama.select(point).unwrap() as usize] += 1;
        }
        for (share, count) in shares.iter().zip(counts) {
            assert!((share - f64::from(count) / 20_000.0).abs() < 0.02, "{shares:?} {counts:?}");
        }
        assert_eq!(ring(Distribution::Ketama, &SERVERS[..1], &[1]).shares(1), [1.0]);
    }

    #[test]
    fn ketama_places_keys_as_twemproxy_does() {
        let ring = ring(Distribution::Ketama, &SERVERS, &[1; 4]);
        assert_eq!(ring.points(), 640);
        assert_eq!(ring.marks[0], Mark { value: 9_796_559, server: 2 });
        assert_eq!(ring.marks[639], Mark { value: 4_290_847_573, server: 3 });
        assert_eq!(placed(&ring), [0, 2, 0, 2, 2, 0, 1, 2, 2]);

        let hosts = ["10.0.0.1", "10.0.0.2", "10.0.0.10"];
        let ring = self::ring(Distribution::Ketama, &hosts, &[1; 3]);
        assert_eq!(ring.points(), 480);
        assert_eq!(placed(&ring), [1, 1, 2, 0, 0, 2, 0, 1, 1]);

        let ring = self::ring(Distribution::Ketama, &PORTS, &[1, 2, 3]);
        assert_eq!(ring.points(), 480);
        assert_eq!(placed(&ring), [2, 2, 2, 1, 1, 2, 2, 1, 1]);
    }

    #[test]
    fn modula_places_keys_as_twemproxy_does() {
        let ring = ring(Distribution::Modula, &SERVERS, &[1; 4]);
        assert_eq!(placed(&ring), [3, 0, 3, 2, 3, 1, 1, 2, 0]);

        let ring = self::ring(Distribution::Modula, &PORTS, &[1, 2, 3]);
        assert_eq!(ring.points(), 6);
        assert_eq!(placed(&ring), [2, 2, 2, 1, 2, 2, 1, 2, 0]);
    }

    #[test]
    fn ketama_counts_points_in_single_precision() {
        let short = [25, 47, 50, 55, 61, 71, 94, 100];
        for servers in 1..=100 {
            let points = if short.contains(&servers) { 156 } else { 160 };
            let names: Vec<String> = (0..servers).map(|number| format!("s{number}")).collect();
            let nodes: Vec<Node<'_>> =
                names.iter().map(|name| Node { name: name.as_bytes(), weight: 1 }).collect();
            let ring = Ring::build(Distribution::Ketama, &nodes, &vec![true; servers]);
            assert_eq!(ring.points(), servers * points, "{servers} servers");
        }
    }

    #[test]
    fn a_low_weight_may_get_no_point() {
        let ring = ring(Distribution::Ketama, &["a", "b"], &[1, 1000]);
        assert_eq!(ring.points(), 316);
        assert!(ring.marks.iter().all(|mark| mark.server == 1));
        for point in [0, 1, u32::MAX / 2, u32::MAX] {
            assert_eq!(ring.select(point), Some(1));
        }
    }

    #[test]
    fn names_of_points_are_cut() {
        // The cut falls before the number, so every digest of a server is the same.
        let name = "x".repeat(KETAMA_NAME_MAX);
        let ring = ring(Distribution::Ketama, &[&name], &[1]);
        let mut values: Vec<u32> = ring.marks.iter().map(|mark| mark.value).collect();
        values.dedup();
        assert_eq!((ring.points(), values.len()), (160, 4));
    }

    #[test]
    fn a_dead_server_leaves_what_a_pool_without_it_would_have() {
        for distribution in Distribution::ALL {
            let nodes = nodes(&SERVERS, &[3, 1, 4, 1]);
            let ejected = Ring::build(distribution, &nodes, &[true, false, true, true]);
            let without = Ring::build(distribution, &[nodes[0], nodes[2], nodes[3]], &[true; 3]);
            assert_eq!(ejected.points(), without.points());
            for step in 0..10_000u32 {
                let point = step.wrapping_mul(429_497);
                let index = without.select(point).map(|index| [0, 2, 3][index as usize]);
                assert_eq!(ejected.select(point), index);
            }
        }
    }

    #[test]
    fn nothing_live_selects_nothing() {
        for distribution in Distribution::ALL {
            let ring = Ring::build(distribution, &nodes(&PORTS, &[1; 3]), &[false; 3]);
            assert_eq!((ring.select(0), ring.select(u32::MAX), ring.points()), (None, None, 0));
            let ring = Ring::build(distribution, &[], &[]);
            assert_eq!(ring.select(7), None);
        }
    }

    #[test]
    fn random_ignores_weights() {
        let ring = Ring::build(
            Distribution::Random,
            &nodes(&SERVERS, &[9, 9, 1, 1]),
            &[true, true, false, true],
        );
        let selected: Vec<_> = (0..6).map(|point| ring.select(point).unwrap()).collect();
        assert_eq!(selected, [0, 1, 3, 0, 1, 3]);
    }

    #[test]
    fn one_server_is_not_hashed_for() {
        for distribution in Distribution::ALL {
            let one = ring(distribution, &["a"], &[5]);
            assert!(!one.needs_hash());
            assert_eq!(one.point(Hash::Md5, None, b"key"), 0);
            // One live server of two is hashed for: the pool, not the ring, decides.
            let half = Ring::build(distribution, &nodes(&["a", "b"], &[1; 2]), &[true, false]);
            assert_eq!(half.needs_hash(), distribution != Distribution::Random);
        }
    }

    #[test]
    fn points_honour_tags() {
        let ring = ring(Distribution::Ketama, &SERVERS, &[1; 4]);
        let point = |key| ring.point(Hash::Fnv1a64, HashTag::parse("{}"), key);
        assert_eq!(point(b"x{apple}y"), Hash::Fnv1a64.hash(b"apple"));
        assert_eq!(point(b"x{}y"), Hash::Fnv1a64.hash(b"x{}y"));
        assert_eq!(point(b""), 0);
    }

    #[test]
    fn huge_weights_cost_nothing() {
        let ring = ring(Distribution::Modula, &PORTS, &[u32::MAX, u32::MAX, u32::MAX]);
        assert_eq!(ring.select(0), Some(0));
        assert_eq!(ring.select(u32::MAX - 1), Some(0));
        assert_eq!(ring.select(u32::MAX), Some(1));
        let ring = self::ring(Distribution::Ketama, &PORTS, &[u32::MAX, u32::MAX, u32::MAX]);
        assert_eq!(ring.points(), 480);
    }

    #[test]
    fn digests_tell_mappings_apart() {
        let weights = [1, 2, 3];
        let base = ring(Distribution::Modula, &PORTS, &weights).digest();
        // A fixed number: hosts of different make compare it.
        assert_eq!(base, 451_662_800_369_618_237);
        assert_eq!(ring(Distribution::Modula, &PORTS, &weights).digest(), base);
        assert_ne!(ring(Distribution::Ketama, &PORTS, &weights).digest(), base);
        assert_ne!(ring(Distribution::Modula, &PORTS, &[1, 2, 4]).digest(), base);
        assert_ne!(ring(Distribution::Modula, &["a", "b", "c"], &weights).digest(), base);
        let ejected =
            Ring::build(Distribution::Modula, &nodes(&PORTS, &weights), &[true, true, false]);
        assert_ne!(ejected.digest(), base);
    }

    #[test]
    fn servers_are_ordered_by_length_first() {
        let mut names = ["10.0.0.10", "b", "10.0.0.2", "a", "10.0.0.1", ""];
        names.sort_by(|a, b| server_order(a, b));
        assert_eq!(names, ["", "a", "b", "10.0.0.1", "10.0.0.2", "10.0.0.10"]);
    }

    #[test]
    fn names_are_those_of_the_configuration() {
        for distribution in Distribution::ALL {
            assert_eq!(Distribution::from_name(distribution.name()), Some(distribution));
            let name: StrDeserializer<'_, Error> = distribution.name().into_deserializer();
            assert_eq!(Distribution::deserialize(name), Ok(distribution));
        }
        assert_eq!(Distribution::from_name("Ketama"), None);
    }

    #[test]
    fn runs_cover_the_ring_without_gap_or_overlap() {
        for distribution in Distribution::ALL {
            let ring = ring(distribution, &SERVERS, &[3, 1, 4, 1]);
            let end = ring.period().min(1 << u32::BITS) - 1;
            let (mut at, mut runs) = (0, 0);
            loop {
                let (server, last) = ring.run(at).unwrap();
                runs += 1;
                for point in [at, at + (last - at) / 2, last] {
                    assert_eq!(ring.select(point), Some(server), "{distribution:?} {point}");
                }
                if u64::from(last) >= end {
                    break;
                }
                at = last + 1;
            }
            assert!(runs <= ring.runs(), "{distribution:?}: {runs} of {}", ring.runs());
        }
    }

    proptest! {
        #[test]
        fn selects_live_servers_and_builds_the_same_again(
            distribution in prop::sample::select(Distribution::ALL.to_vec()),
            servers in prop::collection::vec(
                (prop::collection::vec(any::<u8>(), 0..300), 1..=u32::MAX, any::<bool>()),
                0..12,
            ),
            points in prop::collection::vec(any::<u32>(), 32),
        ) {
            let nodes: Vec<Node<'_>> =
                servers.iter().map(|(name, weight, _)| Node { name, weight: *weight }).collect();
            let live: Vec<bool> = servers.iter().map(|&(_, _, live)| live).collect();
            let ring = Ring::build(distribution, &nodes, &live);
            let again = Ring::build(distribution, &nodes, &live);
            prop_assert_eq!(ring.digest(), again.digest());
            prop_assert!(ring.marks.is_sorted_by_key(|mark| mark.value));
            for point in points {
                let reduced = match ring.modulus {
                    0 => point,
                    modulus => (u64::from(point) % modulus) as u32,
                };
                let at = ring.marks.partition_point(|mark| mark.value < reduced);
                let owner = ring.marks.get(at).or(ring.marks.first()).map(|mark| mark.server);
                prop_assert_eq!(ring.select(point), owner);
                match ring.select(point) {
                    Some(index) => prop_assert!(live[index as usize]),
                    None => prop_assert!(!live.contains(&true)),
                }
                prop_assert_eq!(ring.select(point), again.select(point));
            }
        }
    }

    const SERVERS: [&str; 4] = ["server1", "server2", "server3", "server4"];
    const PORTS: [&str; 3] = ["127.0.0.1:6379", "127.0.0.1:6380", "127.0.0.1:6381"];

    fn nodes<'a>(names: &[&'a str], weights: &[u32]) -> Vec<Node<'a>> {
        let pairs = names.iter().zip(weights);
        pairs.map(|(name, &weight)| Node { name: name.as_bytes(), weight }).collect()
    }

    fn ring(distribution: Distribution, names: &[&str], weights: &[u32]) -> Ring {
        Ring::build(distribution, &nodes(names, weights), &vec![true; names.len()])
    }

    fn placed(ring: &Ring) -> Vec<u32> {
        let points = KEYS.map(|key| ring.point(Hash::Fnv1a64, None, key));
        points.into_iter().map(|point| ring.select(point).unwrap()).collect()
    }
}
