//! What tells all workers that a key was written through any of them.
//!
//! A worker that keeps a reply notes the [stamp](Stamp) of its key before it asks the server. Whoever sends a write of
//! the key counts up the key's word, and once more before the write is acknowledged to its client. So a reply whose
//! stamp is still the key's was asked for after the last acknowledged write, and is no older than that.
//!
//! Keys that share a word look like one key: what is kept of the other is dropped for nothing, and nothing stays that
//! must not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::digest::fnv1a;
use crate::mapping::Mapping;

/// Words for keys: 1 MiB, of which only what is used takes memory.
const KEYS: usize = 1 << 17;

/// The first word counts writes of all keys.
pub(crate) const WORDS: usize = 512 + KEYS;

/// A key's hash, which says where it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyWord(u32);

impl KeyWord {
    /// That of a key.
    pub fn of(key: &[u8]) -> Self {
        let fnv = fnv1a(key);
        Self((fnv ^ fnv >> 32) as u32)
    }

    /// 32 bits of the key.
    pub fn hash(self) -> u32 {
        self.0
    }

    fn place(self) -> usize {
        (self.0 ^ self.0 >> 17) as usize % KEYS
    }
}

/// How often a key had been written when it was looked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    key: u64,
    all: u64,
}

/// The words, or none in memory that an older version made: then nothing is to be kept.
#[derive(Clone, Default)]
pub struct Generations(Option<(Arc<Mapping>, usize)>);

impl Generations {
    pub(crate) fn new(mapping: &Arc<Mapping>, start: usize) -> Self {
        let is_there = mapping.words().len() >= start + WORDS;
        Self(is_there.then(|| (Arc::clone(mapping), start)))
    }

    /// For tests and single processes: nobody else sees them.
    pub fn private() -> Self {
        Self::new(&Arc::new(Mapping::heap(WORDS)), 0)
    }

    fn words(&self) -> Option<(&AtomicU64, &[AtomicU64])> {
        let (mapping, start) = self.0.as_ref()?;
        let words = mapping.words().get(*start..start + WORDS)?;
        Some((&words[0], &words[WORDS - KEYS..]))
    }

    /// The stamp of a key now. `None` where there are no words.
    pub fn stamp(&self, key: KeyWord) -> Option<Stamp> {
        let (all, keys) = self.words()?;
        let word = keys.get(key.place())?;
        Some(Stamp { key: word.load(SeqCst), all: all.load(SeqCst) })
    }

    /// A key is about to be written, or a write of it is about to be acknowledged.
    pub fn count(&self, key: KeyWord) {
        if let Some((_, keys)) = self.words()
            && let Some(word) = keys.get(key.place())
        {
            word.fetch_add(1, SeqCst);
        }
    }

    /// The same of all keys.
    pub fn count_all(&self) {
        if let Some((all, _)) = self.words() {
            all.fetch_add(1, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::testing::repetitions;

    #[test]
    fn what_is_kept_is_no_older_than_the_last_write_that_was_acknowledged() {
        const WRITERS: usize = 2;
        let generations = Generations::private();
        let key = KeyWord::of(b"key");
        let (server, acknowledged) = (AtomicU64::new(0), AtomicU64::new(0));
        let write = |of_all: bool| {
            let count = || if of_all { generations.count_all() } else { generations.count(key) };
            for _ in 0..repetitions(20_000) {
                count();
                let written = server.fetch_add(1, SeqCst) + 1;
                count();
                acknowledged.fetch_max(written, SeqCst);
            }
        };
        thread::scope(|scope| {
            let writers: Vec<_> =
                (0..WRITERS).map(|at| scope.spawn(move || write(at > 0))).collect();
            let mut kept = None;
            while !writers.iter().all(|writer| writer.is_finished()) {
                let (stamp, reply) =
                    kept.take().unwrap_or_else(|| (generations.stamp(key), server.load(SeqCst)));
                let last = acknowledged.load(SeqCst);
                if generations.stamp(key) == stamp {
                    assert!(reply >= last, "{reply} is kept, and {last} was acknowledged");
                    kept = Some((stamp, reply));
                }
            }
        });
        assert_eq!(acknowledged.into_inner(), (WRITERS * repetitions(20_000)) as u64);
    }

    #[test]
    fn a_stamp_is_good_until_its_key_is_written_by_anybody() {
        let mapping = Arc::new(Mapping::heap(8 + WORDS));
        let [one, other] = [(); 2].map(|()| Generations::new(&mapping, 8));
        let [a, b] = [b"a", b"b"].map(|key| KeyWord::of(key));
        assert_ne!(a, b);
        let stamps = [a, b].map(|key| one.stamp(key).unwrap());
        other.count(a);
        assert_ne!(one.stamp(a).unwrap(), stamps[0]);
        assert_eq!(one.stamp(b).unwrap(), stamps[1]);
        other.count_all();
        assert_ne!(one.stamp(b).unwrap(), stamps[1]);
    }

    #[test]
    fn without_words_there_are_no_stamps() {
        for none in [Generations::default(), Generations::new(&Arc::new(Mapping::heap(8)), 8)] {
            none.count(KeyWord::of(b"a"));
            none.count_all();
            assert_eq!(none.stamp(KeyWord::of(b"a")), None);
        }
    }
}
