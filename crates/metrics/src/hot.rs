//! Which keys are asked for most: a sketch of fixed size for each pool of each worker.
//!
//! Workers tell it of samples. For each [`Ranking`] it keeps the heaviest keys by the Space-Saving algorithm (Metwally
//! et al., "Efficient Computation of Frequent and Top-k Elements in Data Streams", 2005): a key that has no entry takes
//! over the lightest one with its weight, and the new entry's weight is too high by that at most. Here a key may stand
//! only in one of [`WAYS`] entries, as in a processor's cache, so that a sample costs a handful of comparisons.
//!
//! Weights are halved every [`HALF_LIFE_US`]: what was hot is forgotten. The sizes of large values are not weights:
//! there the largest of the last hour are kept.

use std::collections::HashMap;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

use crate::digest::fnv1a;

/// Entries that a key may have.
const WAYS: usize = 8;
const SETS: usize = 16;
/// Keys that each ranking of a pool and worker keeps.
pub(crate) const KEYS_MAX: usize = WAYS * SETS;
/// After so long a weight counts half.
pub const HALF_LIFE_US: u64 = 10_000_000;
/// Sizes are forgotten if they were not seen again for so long.
const SIZE_KEPT_US: u64 = 3_600_000_000;
/// Bytes kept of a key.
pub const KEY_SIZE_MAX: usize = 48;

mod word {
    /// Odd while it is written.
    pub(super) const VERSION: usize = 0;
    /// 0 if it is free.
    pub(super) const HASH: usize = 1;
    pub(super) const WEIGHT: usize = 2;
    /// By so much the weight may be too high.
    pub(super) const EXCESS: usize = 3;
    /// The server, and the length of the key.
    pub(super) const PLACE: usize = 4;
    /// When it was seen last, in microseconds of the worker's time.
    pub(super) const SEEN_US: usize = 5;
    pub(super) const KEY: usize = 6;
    pub(super) const COUNT: usize = KEY + super::KEY_SIZE_MAX / 8;
}

/// In front of the entries of a ranking: the sum of all weights, and when they were halved.
const TOTAL: usize = 0;
const HALVED_US: usize = 1;
const ENTRIES: usize = 8;
const RANKING_WORDS: usize = ENTRIES + KEYS_MAX * word::COUNT;
/// Words of a pool's sketch: about 48 KiB, of which only what is used takes memory.
pub(crate) const WORDS: usize = Ranking::ALL.len() * RANKING_WORDS;

/// By what keys are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ranking {
    /// How often they are asked for.
    Requests,
    /// The bytes of their requests and replies.
    Bytes,
    /// How long servers take for them, in microseconds.
    Time,
    /// The largest request or reply, in bytes.
    Size,
}

impl Ranking {
    pub const ALL: [Self; 4] = [Self::Requests, Self::Bytes, Self::Time, Self::Size];

    pub fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Bytes => "bytes",
            Self::Time => "time",
            Self::Size => "size",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ranking| ranking.name() == name)
    }
}

/// A request that stands for several.
#[derive(Clone, Copy, Debug)]
pub struct HotSample<'a> {
    pub key: &'a [u8],
    /// The number of its server in the pool.
    pub server: u32,
    /// For how many requests it stands.
    pub weight: u64,
    pub request_bytes: u64,
    pub reply_bytes: u64,
    pub server_us: u64,
}

/// A key and how heavy it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotKey {
    /// The first [`KEY_SIZE_MAX`] bytes.
    pub key: Vec<u8>,
    /// Bytes of the whole key.
    pub len: usize,
    /// Of the whole key.
    pub hash: u64,
    pub server: u32,
    /// In the ranking's unit, decayed: what was surely seen of it.
    pub weight: u64,
    /// By so much it may be heavier, since it was seen before it had an entry.
    pub unseen: u64,
}

/// The heaviest keys of a pool over all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HotKeys {
    /// The heaviest first.
    pub keys: Vec<HotKey>,
    /// The weight of all keys, those that are not kept included; 0 for sizes.
    pub total: u64,
}

/// By what a key is known; never 0.
pub(crate) fn hash(key: &[u8]) -> u64 {
    fnv1a(key) | 1
}

/// Takes a sample up. There must be one writer at a time.
pub(crate) fn note(words: &[AtomicU64], sample: &HotSample<'_>, now_us: u64) {
    let hash = hash(sample.key);
    let bytes = sample.request_bytes + sample.reply_bytes;
    let size = sample.request_bytes.max(sample.reply_bytes);
    for ranking in Ranking::ALL {
        let weight = match ranking {
            Ranking::Requests => sample.weight,
            Ranking::Bytes => sample.weight * bytes,
            Ranking::Time => sample.weight * sample.server_us,
            Ranking::Size => size,
        };
        let words = part(words, ranking);
        if now_us.saturating_sub(words[HALVED_US].load(Relaxed)) >= HALF_LIFE_US {
            age(words, ranking, now_us);
        }
        if weight > 0 {
            add(words, ranking, (hash, weight), sample, now_us);
        }
    }
}

fn part(words: &[AtomicU64], ranking: Ranking) -> &[AtomicU64] {
    let start = ranking as usize * RANKING_WORDS;
    &words[start..start + RANKING_WORDS]
}

fn entry(words: &[AtomicU64], at: usize) -> &[AtomicU64] {
    let start = ENTRIES + at * word::COUNT;
    &words[start..start + word::COUNT]
}

fn add(
    words: &[AtomicU64],
    ranking: Ranking,
    (hash, weight): (u64, u64),
    sample: &HotSample<'_>,
    now_us: u64,
) {
    let is_size = ranking == Ranking::Size;
    if !is_size {
        let total = words[TOTAL].load(Relaxed);
        words[TOTAL].store(total.saturating_add(weight), Relaxed);
    }
    // The lowest bit is the same in all.
    let set = (hash >> 1) as usize % SETS;
    let (mut lightest, mut least) = (0, u64::MAX);
    for way in 0..WAYS {
        let at = set * WAYS + way;
        let entry = entry(words, at);
        let before = entry[word::WEIGHT].load(Relaxed);
        if entry[word::HASH].load(Relaxed) == hash {
            let after = if is_size { before.max(weight) } else { before.saturating_add(weight) };
            entry[word::WEIGHT].store(after, Relaxed);
            entry[word::SEEN_US].store(now_us, Relaxed);
            return;
        }
        if before < least {
            (lightest, least) = (at, before);
        }
    }
    let (weight, excess) = match is_size {
        true if weight <= least => return,
        true => (weight, 0),
        false => (least.saturating_add(weight), least),
    };
    take_over(entry(words, lightest), (hash, weight, excess), sample, now_us);
}

fn take_over(
    entry: &[AtomicU64],
    (hash, weight, excess): (u64, u64, u64),
    sample: &HotSample<'_>,
    now_us: u64,
) {
    let version = entry[word::VERSION].load(Relaxed);
    entry[word::VERSION].store(version | 1, Relaxed);
    fence(Release);
    entry[word::HASH].store(hash, Relaxed);
    entry[word::WEIGHT].store(weight, Relaxed);
    entry[word::EXCESS].store(excess, Relaxed);
    let len = sample.key.len() as u64;
    entry[word::PLACE].store(u64::from(sample.server) << 32 | len & 0xffff_ffff, Relaxed);
    entry[word::SEEN_US].store(now_us, Relaxed);
    let kept = &sample.key[..sample.key.len().min(KEY_SIZE_MAX)];
    for (word, bytes) in entry[word::KEY..].iter().zip(kept.chunks(8)) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_le_bytes(padded), Relaxed);
    }
    entry[word::VERSION].store((version | 1) + 1, Release);
}

/// Halves weights as often as is due, and forgets old sizes.
#[cold]
fn age(words: &[AtomicU64], ranking: Ranking, now_us: u64) {
    let since = words[HALVED_US].swap(now_us, Relaxed);
    let halvings = (now_us.saturating_sub(since) / HALF_LIFE_US).min(63) as u32;
    let halve = |word: &AtomicU64| word.store(word.load(Relaxed) >> halvings, Relaxed);
    if ranking != Ranking::Size {
        halve(&words[TOTAL]);
    }
    for at in 0..KEYS_MAX {
        let entry = entry(words, at);
        let age = now_us.saturating_sub(entry[word::SEEN_US].load(Relaxed));
        match ranking {
            Ranking::Size if age > SIZE_KEPT_US => entry[word::WEIGHT].store(0, Relaxed),
            Ranking::Size => {}
            _ => {
                halve(&entry[word::WEIGHT]);
                halve(&entry[word::EXCESS]);
            }
        }
        if entry[word::WEIGHT].load(Relaxed) == 0 {
            entry[word::HASH].store(0, Relaxed);
        }
    }
}

/// Adds what a worker's sketch has to that of others. Weights that are due to be halved are.
pub(crate) fn merge(
    words: &[AtomicU64],
    ranking: Ranking,
    now_us: u64,
    keys: &mut HashMap<u64, HotKey>,
    total: &mut u64,
) {
    let words = part(words, ranking);
    let age_us = now_us.saturating_sub(words[HALVED_US].load(Relaxed));
    let halvings = match ranking {
        Ranking::Size => 0,
        _ => (age_us / HALF_LIFE_US).min(63) as u32,
    };
    *total += words[TOTAL].load(Relaxed) >> halvings;
    for at in 0..KEYS_MAX {
        let Some((hash, mut key)) = read(entry(words, at)) else { continue };
        key.weight >>= halvings;
        key.unseen >>= halvings;
        if key.weight == 0 {
            continue;
        }
        keys.entry(hash)
            .and_modify(|known| match ranking {
                Ranking::Size => known.weight = known.weight.max(key.weight),
                _ => {
                    known.weight += key.weight;
                    known.unseen += key.unseen;
                }
            })
            .or_insert(key);
    }
}

/// `None` if it is free, or is being written.
fn read(entry: &[AtomicU64]) -> Option<(u64, HotKey)> {
    let version = entry[word::VERSION].load(Acquire);
    if version % 2 == 1 {
        return None;
    }
    let words: [u64; word::COUNT] = std::array::from_fn(|at| entry[at].load(Relaxed));
    fence(Acquire);
    if entry[word::VERSION].load(Relaxed) != version || words[word::HASH] == 0 {
        return None;
    }
    let len = (words[word::PLACE] & 0xffff_ffff) as usize;
    let mut key: Vec<u8> = words[word::KEY..].iter().flat_map(|word| word.to_le_bytes()).collect();
    key.truncate(len);
    Some((
        words[word::HASH],
        HotKey {
            key,
            len,
            hash: words[word::HASH],
            server: (words[word::PLACE] >> 32) as u32,
            weight: words[word::WEIGHT].saturating_sub(words[word::EXCESS]),
            unseen: words[word::EXCESS],
        },
    ))
}

/// The heaviest of them.
pub(crate) fn top(keys: HashMap<u64, HotKey>, total: u64) -> HotKeys {
    let mut keys: Vec<HotKey> = keys.into_values().collect();
    keys.sort_by(|a, b| b.weight.cmp(&a.weight).then_with(|| a.key.cmp(&b.key)));
    HotKeys { keys, total }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sketch() -> Vec<AtomicU64> {
        (0..WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    fn sample(key: &[u8]) -> HotSample<'_> {
        HotSample { key, server: 2, weight: 10, request_bytes: 3, reply_bytes: 7, server_us: 5 }
    }

    fn ranked(words: &[AtomicU64], ranking: Ranking, now_us: u64) -> HotKeys {
        let (mut keys, mut total) = (HashMap::new(), 0);
        merge(words, ranking, now_us, &mut keys, &mut total);
        top(keys, total)
    }

    #[test]
    fn each_ranking_has_its_own_heaviest() {
        let words = sketch();
        for _ in 0..3 {
            note(&words, &sample(b"often"), 1);
        }
        note(&words, &HotSample { reply_bytes: 500, ..sample(b"large") }, 1);
        note(&words, &HotSample { server_us: 90, ..sample(b"slow") }, 1);
        for (ranking, key, weight, total) in [
            (Ranking::Requests, "often", 30, 50),
            (Ranking::Bytes, "large", 5030, 5030 + 400),
            (Ranking::Time, "slow", 900, 900 + 200),
            (Ranking::Size, "large", 500, 0),
        ] {
            let hot = ranked(&words, ranking, 1);
            let first = &hot.keys[0];
            let seen = (first.key.as_slice(), first.weight, first.unseen, first.server, hot.total);
            assert_eq!(seen, (key.as_bytes(), weight, 0, 2, total), "{ranking:?}");
        }
    }

    #[test]
    fn what_was_hot_is_forgotten_and_sizes_stay_for_an_hour() {
        let words = sketch();
        note(&words, &sample(b"old"), 1);
        assert_eq!(ranked(&words, Ranking::Requests, 1 + 2 * HALF_LIFE_US).keys[0].weight, 2);
        note(&words, &sample(b"new"), 4 * HALF_LIFE_US);
        let hot = ranked(&words, Ranking::Requests, 4 * HALF_LIFE_US);
        assert_eq!((hot.keys.len(), hot.keys[0].key.as_slice(), hot.total), (1, &b"new"[..], 10));
        assert_eq!(ranked(&words, Ranking::Size, 4 * HALF_LIFE_US).keys.len(), 2);
        note(&words, &sample(b"new"), SIZE_KEPT_US + 10 * HALF_LIFE_US);
        assert_eq!(ranked(&words, Ranking::Size, 0).keys.len(), 1);
    }

    /// A load as of a cache: the key of rank r is asked for with a probability of about 1/r.
    #[test]
    fn the_hottest_of_many_keys_are_found_with_their_shares() {
        const KEYS: usize = 100_000;
        const SAMPLES: usize = 50_000;
        let words = sketch();
        let weights: Vec<f64> = (1..=KEYS).map(|rank| 1.0 / (rank as f64).powf(0.99)).collect();
        let sum: f64 = weights.iter().sum();
        let ends: Vec<f64> = weights
            .iter()
            .scan(0.0, |end, weight| {
                *end += weight / sum;
                Some(*end)
            })
            .collect();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut exact = vec![0u64; KEYS];
        for _ in 0..SAMPLES {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let point = (state >> 11) as f64 / (1u64 << 53) as f64;
            let rank = ends.partition_point(|&end| end < point).min(KEYS - 1);
            exact[rank] += 1;
            let key = format!("key:{rank}");
            note(&words, &HotSample { weight: 1, ..sample(key.as_bytes()) }, 1);
        }
        let hot = ranked(&words, Ranking::Requests, 1);
        assert_eq!(hot.total, SAMPLES as u64);
        for (rank, &count) in exact.iter().enumerate().take(10) {
            let name = format!("key:{rank}");
            let place = hot.keys.iter().position(|key| key.key == name.as_bytes());
            let place = place.unwrap_or_else(|| panic!("{name} is not there"));
            let found = &hot.keys[place];
            assert!(place < 14, "{name} is at {place}");
            let (low, high) = (found.weight, found.weight + found.unseen);
            assert!((low..=high).contains(&count), "{name}: {count} is not in {low}..={high}");
            let off = (count - low) as f64 / SAMPLES as f64;
            assert!(off < 0.005, "{name}: {low} for {count}");
        }
    }
}
