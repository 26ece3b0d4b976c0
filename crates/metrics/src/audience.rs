//! How many clients share a worker's subscriptions, for other workers.
//!
//! A worker is one subscriber to a server, however many of its clients want a channel. After the
//! statistics of each slot there is room for what a server's count of subscribers misses: by
//! channel, and by pattern. Subscriptions without room are left out, so the sums are lower bounds.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

/// Entries that a channel may be in.
const WAYS: usize = 4;
const CHANNELS: usize = 8192;
/// The most patterns, and the longest of them.
const PATTERNS: usize = 64;
const PATTERN_WORDS: usize = 16;
pub const PATTERN_MAX: usize = (PATTERN_WORDS - 1) * 8;

/// Words of one slot: entries of channels, then those of patterns.
pub(crate) const WORDS: usize = CHANNELS + PATTERNS * PATTERN_WORDS;

/// The part of a slot with all this.
pub(crate) struct Audience<'a> {
    /// How many entries are used. It lies elsewhere, so that an unused part takes no memory.
    used: &'a AtomicU64,
    words: &'a [AtomicU64],
}

impl<'a> Audience<'a> {
    pub(crate) fn new(used: &'a AtomicU64, words: &'a [AtomicU64]) -> Self {
        debug_assert_eq!(words.len(), WORDS);
        Self { used, words }
    }

    /// Entries in which a channel may be.
    fn ways(&self, channel: u64) -> &[AtomicU64] {
        let set = (channel as usize % (CHANNELS / WAYS)) * WAYS;
        &self.words[set..set + WAYS]
    }

    fn pattern(&self, at: usize) -> (&AtomicU64, &[AtomicU64]) {
        let start = CHANNELS + at * PATTERN_WORDS;
        (&self.words[start], &self.words[start + 1..start + PATTERN_WORDS])
    }

    /// Clears everything. Usually there is nothing to clear; touching the entries would take
    /// memory.
    pub(crate) fn clear(&self) {
        if self.used.swap(0, Relaxed) > 0 {
            self.words.iter().for_each(|word| word.store(0, Relaxed));
        }
    }

    fn count_entry(&self, was: u64, is: u64) {
        let change = u64::from(is != 0).wrapping_sub(u64::from(was != 0));
        self.used.store(self.used.load(Relaxed).wrapping_add(change), Relaxed);
    }

    /// `more` clients beyond the first share the worker's subscription to a channel, which is given
    /// by a hash. Called by the slot's only writer.
    pub(crate) fn set_channel(&self, channel: u64, more: u32) {
        let is_it = |word: &&AtomicU64| {
            let entry = word.load(Relaxed);
            entry != 0 && tag_of(entry) == tag(channel)
        };
        let ways = self.ways(channel);
        let free = |word: &&AtomicU64| word.load(Relaxed) == 0;
        let place = ways.iter().find(is_it).or_else(|| ways.iter().find(free));
        let Some(place) = place else { return };
        let entry = if more == 0 { 0 } else { tag(channel) | u64::from(more) };
        self.count_entry(place.swap(entry, Relaxed), entry);
    }

    pub(crate) fn channel(&self, channel: u64) -> u64 {
        if self.used.load(Relaxed) == 0 {
            return 0;
        }
        let entries = self.ways(channel).iter().map(|word| word.load(Relaxed));
        entries.filter(|&entry| tag_of(entry) == tag(channel)).map(|entry| entry & MORE).sum()
    }

    /// Like [`Audience::set_channel`], for a pattern of a pool.
    pub(crate) fn set_pattern(&self, pool: u16, pattern: &[u8], more: u32) {
        if pattern.len() > PATTERN_MAX {
            return;
        }
        let mut text = [0; PATTERN_MAX];
        let places = || (0..PATTERNS).map(|at| self.pattern(at));
        let is_it = |(head, words): &(&AtomicU64, &[AtomicU64])| {
            let mut known = [0; PATTERN_MAX];
            let head = Head::of(head.load(Relaxed));
            head.is_some_and(|head| head.pool == pool && head.read(words, &mut known) == pattern)
        };
        let free = |(head, _): &(&AtomicU64, &[AtomicU64])| head.load(Relaxed) == 0;
        let Some((head, words)) = places().find(is_it).or_else(|| places().find(free)) else {
            return;
        };
        // A reader must not combine halves of two texts.
        let was = head.swap(0, Relaxed);
        fence(Release);
        text[..pattern.len()].copy_from_slice(pattern);
        for (word, bytes) in words.iter().zip(text.chunks_exact(8)) {
            word.store(u64::from_le_bytes(bytes.try_into().expect("eight of them")), Relaxed);
        }
        let is = match more {
            0 => 0,
            _ => Head { pool, len: pattern.len() as u8, more }.word(),
        };
        head.store(is, Release);
        self.count_entry(was, is);
    }

    /// How many clients beyond the first share patterns of the pool that match.
    pub(crate) fn patterns(&self, pool: u16, mut matches: impl FnMut(&[u8]) -> bool) -> u64 {
        if self.used.load(Relaxed) == 0 {
            return 0;
        }
        let mut sum = 0;
        for at in 0..PATTERNS {
            let (word, words) = self.pattern(at);
            let before = word.load(Acquire);
            let Some(head) = Head::of(before).filter(|head| head.pool == pool) else { continue };
            let mut text = [0; PATTERN_MAX];
            let is_match = matches(head.read(words, &mut text));
            fence(Acquire);
            if is_match && word.load(Relaxed) == before {
                sum += u64::from(head.more);
            }
        }
        sum
    }
}

const MORE: u64 = u32::MAX as u64;

/// Distinguishes channels in the same place; never 0.
fn tag(channel: u64) -> u64 {
    (channel | 1 << 32) & !MORE
}

fn tag_of(entry: u64) -> u64 {
    entry & !MORE
}

struct Head {
    pool: u16,
    len: u8,
    more: u32,
}

impl Head {
    fn of(word: u64) -> Option<Self> {
        let head = Self { pool: (word >> 48) as u16, len: (word >> 32) as u8, more: word as u32 };
        (word != 0 && usize::from(head.len) <= PATTERN_MAX).then_some(head)
    }

    fn word(&self) -> u64 {
        u64::from(self.pool) << 48 | u64::from(self.len) << 32 | u64::from(self.more)
    }

    fn read<'t>(&self, words: &[AtomicU64], text: &'t mut [u8; PATTERN_MAX]) -> &'t [u8] {
        for (word, bytes) in words.iter().zip(text.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        &text[..usize::from(self.len)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Vec<AtomicU64> {
        (0..1 + WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn channels_are_distinguished_and_forgotten() {
        let words = words();
        let audience = Audience::new(&words[0], &words[1..]);
        let hash = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for n in 0..1000 {
            audience.set_channel(hash(n), n as u32 + 1);
        }
        let told = (0..1000).filter(|&n| audience.channel(hash(n)) == n + 1).count();
        assert!(told > 950, "{told}");
        assert!((0..1000).all(|n| [0, n + 1].contains(&audience.channel(hash(n)))));
        assert_eq!((1000..2000).map(|n| audience.channel(hash(n))).sum::<u64>(), 0);
        for n in 0..1000 {
            audience.set_channel(hash(n), 0);
        }
        assert!(words.iter().all(|word| word.load(Relaxed) == 0));
    }

    #[test]
    fn subscriptions_without_room_are_left_out() {
        let words = words();
        let audience = Audience::new(&words[0], &words[1..]);
        let same_place = |n: u64| n << 33 | 5;
        for n in 0..10 {
            audience.set_channel(same_place(n), 7);
        }
        let told = (0..10).filter(|&n| audience.channel(same_place(n)) == 7).count();
        assert_eq!(told, WAYS);
        for n in 0..100 {
            audience.set_pattern(1, format!("p{n}*").as_bytes(), 1);
        }
        audience.set_pattern(1, &[b'x'; PATTERN_MAX + 1], 1);
        assert_eq!(audience.patterns(1, |_| true), PATTERNS as u64);
        audience.clear();
        assert!(words.iter().all(|word| word.load(Relaxed) == 0));
    }

    #[test]
    fn patterns_are_of_their_pools() {
        let words = words();
        let audience = Audience::new(&words[0], &words[1..]);
        audience.set_pattern(1, b"a*", 3);
        audience.set_pattern(1, b"a*", 5);
        audience.set_pattern(2, b"a*", 100);
        audience.set_pattern(1, b"b*", 1000);
        audience.set_pattern(0, b"", 10_000);
        assert_eq!(audience.patterns(1, |pattern| pattern == b"a*"), 5);
        assert_eq!(audience.patterns(1, |_| true), 1005);
        assert_eq!(audience.patterns(0, |pattern| pattern.is_empty()), 10_000);
        audience.set_pattern(1, b"a*", 0);
        assert_eq!(audience.patterns(1, |_| true), 1000);
    }
}
