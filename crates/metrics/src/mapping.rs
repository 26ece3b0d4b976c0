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
        let words: Box<[AtomicU64]> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let words = NonNull::from(Box::leak(words));
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
            // SAFETY: `heap` leaked this very box.
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
