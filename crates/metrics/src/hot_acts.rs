//! What is done about hot keys: a short list that the master writes and all processes read.
//!
//! Workers take it up within a second. Nothing depends on their doing so at the same time: whether a worker keeps the
//! replies to a key is its own affair, as what it keeps is right in any case.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

use crate::digest::fnv1a;
use crate::hot::{self, KEY_SIZE_MAX};
use crate::mapping::Mapping;

/// The most keys of all pools together that something is done about.
pub const HOT_ACTS_MAX: usize = 64;

/// How often a reader tries to see the list between two writes.
const READS_MAX: u32 = 1000;

/// Where it begins in the word of flags over how many servers a key is split.
const COPIES: u32 = 40;

mod word {
    pub(super) const KEY_HASH: usize = 0;
    pub(super) const POOL_HASH: usize = 1;
    /// The length of the key. Above it a bit if an operator wanted it, one if the key goes elsewhere, one if it is split,
    /// and from [`COPIES`](super::COPIES) on over how many servers.
    pub(super) const PLACE: usize = 2;
    pub(super) const SINCE: usize = 3;
    pub(super) const LIMIT_PPM: usize = 4;
    pub(super) const KEY: usize = 5;
    pub(super) const COUNT: usize = KEY + super::KEY_SIZE_MAX / 8;
}

/// Odd while the master writes.
const VERSION: usize = 0;
const LEN: usize = 1;
const ENTRIES: usize = 8;
pub(crate) const WORDS: usize = ENTRIES + HOT_ACTS_MAX * word::COUNT;

/// Why something is done about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HotCause {
    /// The pool's `hot_keys` says so.
    Rule,
    /// An operator did.
    Command,
}

impl HotCause {
    pub fn name(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::Command => "command",
        }
    }
}

/// What is done about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HotDeed {
    /// Replies to reads of it may be kept.
    Cache,
    /// It is in another pool, by the list of keys of a route.
    Move,
    /// Reads of it may go to copies: to so many servers in all, its own among them.
    Split { copies: u8 },
}

impl HotDeed {
    /// Whether both are the same, over however many servers.
    pub fn is_like(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }

    /// Whether nodes `cache` have a part in it.
    pub fn is_of_caches(self) -> bool {
        matches!(self, Self::Cache | Self::Split { .. })
    }

    /// Above the length of a key. A version that does not know what is split takes it for something that is kept, which
    /// is as right.
    fn flags(self) -> u64 {
        match self {
            Self::Cache => 0,
            Self::Move => 1 << 33,
            Self::Split { copies } => 1 << 34 | u64::from(copies) << COPIES,
        }
    }

    fn of_flags(place: u64) -> Self {
        match (place >> 33 & 1, place >> 34 & 1) {
            (1, _) => Self::Move,
            (_, 1) => Self::Split { copies: (place >> COPIES) as u8 },
            _ => Self::Cache,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Cache => "cache",
            Self::Move => "move",
            Self::Split { .. } => "split",
        }
    }
}

/// A key that something is done about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotAct {
    /// Of the pool's name.
    pub pool_hash: u64,
    /// Of the whole key, as in the sketch.
    pub key_hash: u64,
    /// The first [`KEY_SIZE_MAX`] bytes.
    pub key: Vec<u8>,
    /// Bytes of the whole key.
    pub len: usize,
    pub deed: HotDeed,
    pub cause: HotCause,
    /// In seconds since 1970.
    pub since: u64,
    /// It is taken back when its share of the pool's requests, in millionths, stays below this.
    pub limit_ppm: u32,
}

impl HotAct {
    /// About a whole key of a pool.
    pub fn of_key(pool: &str, key: &[u8], cause: HotCause) -> Self {
        let kept = &key[..key.len().min(KEY_SIZE_MAX)];
        Self::of_hot(pool, (kept, key.len(), hot::hash(key)), cause)
    }

    /// About a key that the sketch of a pool has.
    pub fn of_sketch(pool: &str, key: &hot::HotKey, cause: HotCause) -> Self {
        Self::of_hot(pool, (&key.key, key.len, key.hash), cause)
    }

    fn of_hot(pool: &str, (key, len, key_hash): (&[u8], usize, u64), cause: HotCause) -> Self {
        let pool_hash = fnv1a(pool.as_bytes());
        Self {
            pool_hash,
            key_hash,
            key: key.into(),
            len,
            deed: HotDeed::Cache,
            cause,
            since: 0,
            limit_ppm: 0,
        }
    }

    pub fn is_of_pool(&self, pool: &str) -> bool {
        self.pool_hash == fnv1a(pool.as_bytes())
    }

    /// Whether it is about this whole key.
    #[inline]
    pub fn is_about(&self, key: &[u8]) -> bool {
        key.len() == self.len
            && key.starts_with(&self.key)
            && (self.len <= KEY_SIZE_MAX || hot::hash(key) == self.key_hash)
    }

    /// Whether it is about a key of the sketch of its pool.
    pub fn is_about_hot(&self, key: &hot::HotKey) -> bool {
        self.key_hash == key.hash && self.len == key.len
    }

    /// Whether both are about the same key of the same pool.
    pub fn is_like(&self, other: &Self) -> bool {
        (self.pool_hash, self.key_hash, self.len) == (other.pool_hash, other.key_hash, other.len)
    }

    fn write(&self, entry: &[AtomicU64]) {
        let by_command = u64::from(self.cause == HotCause::Command);
        let flags = by_command << 32 | self.deed.flags();
        entry[word::KEY_HASH].store(self.key_hash, Relaxed);
        entry[word::POOL_HASH].store(self.pool_hash, Relaxed);
        entry[word::PLACE].store(flags | self.len as u64 & 0xffff_ffff, Relaxed);
        entry[word::SINCE].store(self.since, Relaxed);
        entry[word::LIMIT_PPM].store(u64::from(self.limit_ppm), Relaxed);
        for (word, bytes) in entry[word::KEY..].iter().zip(self.key.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(padded), Relaxed);
        }
    }

    fn read(entry: &[AtomicU64]) -> Self {
        let words: [u64; word::COUNT] = std::array::from_fn(|at| entry[at].load(Relaxed));
        let len = (words[word::PLACE] & 0xffff_ffff) as usize;
        let mut key: Vec<u8> =
            words[word::KEY..].iter().flat_map(|word| word.to_le_bytes()).collect();
        key.truncate(len);
        Self {
            pool_hash: words[word::POOL_HASH],
            key_hash: words[word::KEY_HASH],
            key,
            len,
            deed: HotDeed::of_flags(words[word::PLACE]),
            cause: match words[word::PLACE] >> 32 & 1 {
                0 => HotCause::Rule,
                _ => HotCause::Command,
            },
            since: words[word::SINCE],
            limit_ppm: words[word::LIMIT_PPM].try_into().unwrap_or(u32::MAX),
        }
    }
}

/// The list, or nothing in memory that an older version made: then nothing is done.
#[derive(Clone, Default)]
pub struct HotActs(Option<(Arc<Mapping>, usize)>);

impl HotActs {
    pub(crate) fn new(mapping: &Arc<Mapping>, start: usize) -> Self {
        let is_there = mapping.words().len() >= start + WORDS;
        Self(is_there.then(|| (Arc::clone(mapping), start)))
    }

    /// For tests and single processes: nobody else sees it.
    pub fn private() -> Self {
        Self::new(&Arc::new(Mapping::heap(WORDS)), 0)
    }

    /// Whether there is memory for it.
    pub fn is_there(&self) -> bool {
        self.0.is_some()
    }

    fn words(&self) -> Option<&[AtomicU64]> {
        let (mapping, start) = self.0.as_ref()?;
        mapping.words().get(*start..start + WORDS)
    }

    /// Another number whenever the list is another one.
    pub fn version(&self) -> u64 {
        self.words().map_or(0, |words| words[VERSION].load(Acquire))
    }

    /// The list; empty if the master died while it wrote it.
    pub fn all(&self) -> Vec<HotAct> {
        let Some(words) = self.words() else { return Vec::new() };
        for _ in 0..READS_MAX {
            let before = words[VERSION].load(Acquire);
            let len = (words[LEN].load(Relaxed) as usize).min(HOT_ACTS_MAX);
            let entries = words[ENTRIES..].chunks_exact(word::COUNT).take(len);
            let acts = entries.map(HotAct::read).collect();
            fence(Acquire);
            if before.is_multiple_of(2) && words[VERSION].load(Relaxed) == before {
                return acts;
            }
            std::thread::yield_now();
        }
        Vec::new()
    }

    /// Replaces the list; what is beyond [`HOT_ACTS_MAX`] is left out. For the master alone.
    pub fn set(&self, acts: &[HotAct]) {
        let Some(words) = self.words() else { return };
        // It is odd already if a master has died while it wrote.
        let version = words[VERSION].load(Relaxed) | 1;
        words[VERSION].store(version, Relaxed);
        fence(Release);
        words[LEN].store(acts.len().min(HOT_ACTS_MAX) as u64, Relaxed);
        for (act, entry) in acts.iter().zip(words[ENTRIES..].chunks_exact(word::COUNT)) {
            act.write(entry);
        }
        words[VERSION].store(version + 1, Release);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::testing::repetitions;

    fn act(key: &[u8], cause: HotCause) -> HotAct {
        HotAct { since: 77, limit_ppm: 25_000, ..HotAct::of_key("p", key, cause) }
    }

    #[test]
    fn what_is_written_is_read() {
        let acts = HotActs::private();
        assert!(acts.all().is_empty());
        let long = [b'k'; 100];
        let written = [act(b"", HotCause::Rule), act(b"a\0b", HotCause::Command)];
        let moved = HotAct { deed: HotDeed::Move, ..act(&long, HotCause::Rule) };
        let split =
            HotAct { deed: HotDeed::Split { copies: 16 }, ..act(b"split", HotCause::Command) };
        let written = [&written[..], &[moved, split]].concat();
        let before = acts.version();
        acts.set(&written);
        assert!(acts.version() != before && acts.all() == written);
        assert_eq!(written[2].key.len(), KEY_SIZE_MAX);
        acts.set(&written[1..2]);
        assert_eq!(acts.all(), written[1..2]);
    }

    #[test]
    fn keys_and_pools_are_told_apart() {
        let mut other = [b'k'; 100];
        let one = act(&other, HotCause::Rule);
        assert!(one.is_about(&other) && one.is_like(&act(&other, HotCause::Command)));
        other[99] = b'x';
        assert!(!one.is_about(&other), "it begins alike, and is as long");
        assert!(!one.is_about(&other[..48]) && !one.is_like(&act(&other, HotCause::Rule)));
        assert!(one.is_of_pool("p") && !one.is_of_pool("q"));
        assert!(!one.is_like(&HotAct::of_key("q", &[b'k'; 100], HotCause::Rule)));
    }

    #[test]
    fn a_list_that_is_too_long_is_cut() {
        let acts = HotActs::private();
        let many: Vec<HotAct> = (0..HOT_ACTS_MAX + 5)
            .map(|at| act(at.to_string().as_bytes(), HotCause::Rule))
            .collect();
        acts.set(&many);
        assert_eq!(acts.all(), many[..HOT_ACTS_MAX]);
    }

    #[test]
    fn it_is_never_seen_half_written() {
        let acts = HotActs::private();
        let both: Vec<Vec<HotAct>> = [&b"a"[..], b"bb"]
            .iter()
            .map(|key| (0..=key.len()).map(|_| act(key, HotCause::Rule)).collect())
            .collect();
        thread::scope(|scope| {
            let writer =
                scope.spawn(|| (0..repetitions(20_000)).for_each(|at| acts.set(&both[at % 2])));
            while !writer.is_finished() {
                let seen = acts.all();
                assert!(seen.is_empty() || both.contains(&seen), "{seen:?}");
            }
        });
        assert_eq!(acts.all(), both[1]);
    }
}
