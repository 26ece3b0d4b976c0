//! Writes that are under way to several regions, over all workers.
//!
//! Two writes of one key that are under way at once may reach regions in different orders. Then each has to be
//! undone in the regions that got a copy, so that all have the same or nothing. So each write counts itself in a
//! word that is chosen by the key's hash: whoever begins while another is under way marks the word, and the mark
//! stays until nobody is. Both see it when their copies have arrived, whoever is last.
//!
//! Keys that share a word look like one key: a false alarm, never a missed one. So do the keys of a worker that was
//! killed amid a write, until the instance ends: what they get is undone each time.
//!
//! The words outlive configurations: a write that begins before a reload may end after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::mapping::Mapping;
use crate::overlaps::place_of;

/// Words in the memory that all workers share for the life of their instance: 256 KiB, of which only what is used
/// takes memory.
pub(crate) const WORDS: usize = 1 << 15;

const MARK: u64 = 1 << 63;

/// A write that is under way. It has to be [ended](Passages::end).
#[derive(Debug)]
pub struct Passage(usize);

/// The words, or none: then every write counts as crossed, which is safe.
#[derive(Clone, Default)]
pub struct Passages(Option<(Arc<Mapping>, usize)>);

impl Passages {
    pub(crate) fn new(mapping: &Arc<Mapping>, start: usize) -> Self {
        let is_there = mapping.words().len() >= start + WORDS;
        Self(is_there.then(|| (Arc::clone(mapping), start)))
    }

    fn word(&self, passage: &Passage) -> Option<&AtomicU64> {
        let (mapping, start) = self.0.as_ref()?;
        mapping.words().get(start + passage.0)
    }

    /// A write of a key is about to be sent to the first of several regions.
    pub fn begin(&self, key: &[u8]) -> Passage {
        let passage = Passage(place_of(key) % WORDS);
        if let Some(word) = self.word(&passage) {
            let before = word.fetch_add(1, SeqCst);
            if before & !MARK > 0 {
                word.fetch_or(MARK, SeqCst);
            }
        }
        passage
    }

    /// Whether another write of the key has been under way at the same time.
    pub fn is_crossed(&self, passage: &Passage) -> bool {
        self.word(passage).is_none_or(|word| word.load(SeqCst) & MARK != 0)
    }

    /// The write, and all that followed from it, has arrived or failed.
    pub fn end(&self, passage: &Passage) {
        let Some(word) = self.word(passage) else { return };
        let end = |word: u64| match word & !MARK {
            0 | 1 => Some(0),
            count => Some(word & MARK | (count - 1)),
        };
        // It never fails.
        let _ = word.fetch_update(SeqCst, SeqCst, end);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::testing::repetitions;

    #[test]
    fn threads_that_meet_all_see_it() {
        const THREADS: usize = 3;
        let passages = Passages::new(&Arc::new(Mapping::heap(WORDS)), 0);
        let under_way = AtomicU64::new(0);
        let write = || {
            for _ in 0..repetitions(20_000) {
                let passage = passages.begin(b"key");
                let is_not_first = under_way.fetch_add(1, SeqCst) > 0;
                // Everyone that is counted here has begun and not ended.
                let has_met = is_not_first || under_way.load(SeqCst) > 1;
                assert!(passages.is_crossed(&passage) || !has_met);
                under_way.fetch_sub(1, SeqCst);
                passages.end(&passage);
            }
        };
        thread::scope(|scope| (0..THREADS).for_each(|_| _ = scope.spawn(write)));
        assert!(!passages.is_crossed(&passages.begin(b"key")), "nobody is under way any more");
    }

    #[test]
    fn both_of_two_that_cross_see_it_whoever_is_last() {
        let passages = Passages::new(&Arc::new(Mapping::heap(8 + WORDS)), 8);
        let alone = passages.begin(b"key");
        assert!(!passages.is_crossed(&alone));
        let other = passages.begin(b"key");
        let elsewhere = passages.begin(b"another");
        assert!(passages.is_crossed(&alone) && passages.is_crossed(&other));
        assert!(!passages.is_crossed(&elsewhere));
        passages.end(&alone);
        assert!(passages.is_crossed(&other));
        let third = passages.begin(b"key");
        passages.end(&other);
        assert!(passages.is_crossed(&third));
        passages.end(&third);
        assert!(!passages.is_crossed(&passages.begin(b"key")));
    }

    #[test]
    fn without_words_everything_crosses() {
        for passages in [Passages::default(), Passages::new(&Arc::new(Mapping::heap(8)), 8)] {
            let one = passages.begin(b"key");
            assert!(passages.is_crossed(&one));
            passages.end(&one);
        }
    }
}
