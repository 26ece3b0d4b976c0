//! The memory under the segments, and all `unsafe` code of this crate.
//!
//! The memory is a shared mapping of a memfd whose size can no longer change, or comes from the
//! heap. Either way it is an array of atomic words that stays where it is until its last owner is
//! gone.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut, slice_from_raw_parts_mut};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::io;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

pub(crate) struct Mapping {
    /// Valid for reads and writes, and never moved or freed before `drop`.
    words: NonNull<[AtomicU64]>,
    kind: Kind,
}

enum Kind {
    Shared,
    Heap,
}

// SAFETY: the words are reached through atomics only, and freeing them is tied to no thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `words` words. The caller has checked that the file is at least that long
    /// and sealed against shrinking: touching a page beyond the end would kill the process.
    pub(crate) fn shared(fd: BorrowedFd<'_>, words: usize) -> io::Result<Self> {
        let bytes = words.checked_mul(size_of::<AtomicU64>()).ok_or(io::Errno::OVERFLOW)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address range that nothing else uses.
        let start = unsafe { mmap(null_mut(), bytes, protection, MapFlags::SHARED, fd, 0)? };
        // A mapping starts on a page, which is aligned for any word, and every bit pattern is a
        // valid word.
        let words = NonNull::new(slice_from_raw_parts_mut(start.cast(), words))
            .expect("the kernel maps nothing at address 0");
        Ok(Self { words, kind: Kind::Shared })
    }

    pub(crate) fn heap(words: usize) -> Self {
        // They come as zeros from the system, and none is touched before it is needed.
        let zeros = Box::leak(vec![0_u64; words].into_boxed_slice());
        const { assert!(align_of::<u64>() == align_of::<AtomicU64>(), "both are the same memory") };
        let words = NonNull::slice_from_raw_parts(NonNull::from(zeros).cast(), words);
        Self { words, kind: Kind::Heap }
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: see `words`; the borrow of `self` keeps `drop` away.
        unsafe { self.words.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        match self.kind {
            Kind::Shared => {
                let bytes = self.words.len() * size_of::<AtomicU64>();
                // SAFETY: exactly what `shared` mapped; nobody borrows it any more. It can fail
                // only for an address or length that was never mapped.
                let unmapped = unsafe { munmap(self.words.cast().as_ptr(), bytes) };
                debug_assert_eq!(unmapped, Ok(()));
            }
            // SAFETY: `heap` leaked this very box, whose layout is the same.
            Kind::Heap => drop(unsafe { Box::from_raw(self.words.as_ptr()) }),
        }
    }
}

/// Part of a mapping, kept alive by it; one step less per write than going through the mapping.
#[derive(Clone)]
pub(crate) struct View {
    words: NonNull<[AtomicU64]>,
    _owner: Arc<Mapping>,
}

// SAFETY: a view is a shared reference to atomics with its owner beside it.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    pub(crate) fn new(owner: &Arc<Mapping>, range: Range<usize>) -> Self {
        let words = NonNull::from(&owner.words()[range]);
        Self { words, _owner: Arc::clone(owner) }
    }

    /// So many words from there on. `None` in memory of an older version, which ends before.
    pub(crate) fn of_part(owner: &Arc<Mapping>, start: usize, words: usize) -> Option<Self> {
        let is_there = owner.words().len() >= start + words;
        is_there.then(|| Self::new(owner, start..start + words))
    }

    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: a part of the owner's words, which lie still as long as the owner is held.
        unsafe { self.words.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering::Relaxed;
    use std::thread;

    use super::*;

    fn numbers(words: &[AtomicU64]) -> Vec<u64> {
        words.iter().map(|word| word.load(Relaxed)).collect()
    }

    #[test]
    fn what_is_on_the_heap_is_zero_and_stays_until_its_last_view_is_gone() {
        let mapping = Arc::new(Mapping::heap(8));
        assert_eq!(numbers(mapping.words()), [0; 8]);
        let (one, other) = (View::new(&mapping, 2..6), View::new(&mapping, 4..8));
        mapping.words()[5].store(7, Relaxed);
        drop(mapping);
        assert_eq!(
            (numbers(one.words()), numbers(other.words())),
            (vec![0, 0, 0, 7], vec![0, 7, 0, 0])
        );
        drop(one);
        other.words()[3].store(8, Relaxed);
        assert_eq!(numbers(other.words()), [0, 7, 0, 8]);
    }

    #[test]
    fn a_part_that_an_older_version_has_not_is_none() {
        let mapping = Arc::new(Mapping::heap(8));
        assert_eq!(View::of_part(&mapping, 3, 5).map(|part| part.words().len()), Some(5));
        assert!(View::of_part(&mapping, 4, 5).is_none());
        assert_eq!(View::of_part(&mapping, 8, 0).map(|part| part.words().len()), Some(0));
        assert!(Mapping::heap(0).words().is_empty());
    }

    #[test]
    fn threads_write_through_views_and_whoever_is_last_frees() {
        const THREADS: u64 = 4;
        let mapping = Arc::new(Mapping::heap(2));
        let threads: Vec<_> = (1..=THREADS)
            .map(|number| {
                let view = View::new(&mapping, 1..2);
                thread::spawn(move || {
                    let again = view.clone();
                    drop(view);
                    again.words()[0].fetch_add(number, Relaxed) + number
                })
            })
            .collect();
        drop(mapping);
        let sums = threads.into_iter().map(|thread| thread.join().unwrap());
        assert_eq!(sums.max(), Some((1..=THREADS).sum()));
    }

    #[test]
    fn what_no_process_has_room_for_is_refused() {
        let input = std::io::stdin();
        assert_eq!(Mapping::shared(input.as_fd(), usize::MAX).err(), Some(io::Errno::OVERFLOW));
    }
}
