//! Slots with stable indices, reused last in, first out so that the hot ones stay in cache.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use crate::base::id::Id;

/// The index that names no slot.
const NONE: u32 = u32::MAX;

/// A growing array of slots. Every value put in gets a generation of its own, never given out
/// again before 2^32 others, so that an (index, generation) pair can go stale safely.
pub(crate) struct Slab<I, T> {
    entries: Vec<Entry<T>>,
    id: PhantomData<I>,
    /// Used slots whose values are gone, see [`Slab::retire`]. Empty but for the rest of a tick.
    retired: Vec<u32>,
    free: u32,
    len: u32,
    /// The largest `len` since the last [`Slab::shrink`].
    peak: u32,
    generation: u32,
}

enum Entry<T> {
    Used { generation: u32, value: T },
    Free { next: u32 },
}

impl<I: Id, T> Slab<I, T> {
    /// Bytes of a slot.
    #[cfg(test)]
    pub(crate) const SLOT_SIZE: usize = size_of::<Entry<T>>();

    pub(crate) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            id: PhantomData,
            retired: Vec::new(),
            free: NONE,
            len: 0,
            peak: 0,
            generation: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns the index and the generation of the new slot.
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> (I, u32) {
        self.generation = self.generation.wrapping_add(1);
        let entry = Entry::Used { generation: self.generation, value };
        self.len += 1;
        self.peak = self.peak.max(self.len);
        if self.free == NONE {
            let index = self.entries.len() as u32;
            assert!(index < NONE >> 1, "slab is full");
            self.entries.push(entry);
            return (I::new(index), self.generation);
        }
        let index = self.free;
        match std::mem::replace(&mut self.entries[index as usize], entry) {
            Entry::Free { next } => self.free = next,
            Entry::Used { .. } => unreachable!("the free list holds free slots only"),
        }
        (I::new(index), self.generation)
    }

    #[inline]
    pub(crate) fn remove(&mut self, index: I) -> T {
        let index = index.number();
        let entry =
            std::mem::replace(&mut self.entries[index as usize], Entry::Free { next: self.free });
        match entry {
            Entry::Used { value, .. } => {
                self.free = index;
                self.len -= 1;
                value
            }
            Entry::Free { .. } => panic!("slot {index} is removed twice"),
        }
    }

    /// Takes a value out and has another stand in for it until [`Slab::free_retired`]: whoever still
    /// has the index finds that, and no other value. It has a generation of its own, so ids of the
    /// value that is gone are stale at once; it is neither counted nor listed.
    pub(crate) fn retire(&mut self, index: I, stand_in: T) -> T {
        self.generation = self.generation.wrapping_add(1);
        let entry = Entry::Used { generation: self.generation, value: stand_in };
        debug_assert!(!self.is_retired(index), "a slot is retired twice");
        match std::mem::replace(&mut self.entries[index.number() as usize], entry) {
            Entry::Used { value, .. } => {
                self.retired.push(index.number());
                self.len -= 1;
                value
            }
            Entry::Free { .. } => free_slot(index.number()),
        }
    }

    #[inline]
    pub(crate) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Whether the value is gone, and its slot not free yet.
    pub(crate) fn is_retired(&self, index: I) -> bool {
        self.retired.contains(&index.number())
    }

    /// Frees the slot of a value that is gone; returns what stood in for it.
    pub(crate) fn free_retired(&mut self) -> Option<T> {
        let index = self.retired.pop()?;
        // It is counted for a moment, as what is removed was.
        self.len += 1;
        Some(self.remove(I::new(index)))
    }

    /// The value that was given this generation, if the slot still holds it.
    #[inline(always)]
    pub(crate) fn get(&self, index: I, generation: u32) -> Option<&T> {
        let index = index.number();
        match self.entries.get(index as usize) {
            Some(Entry::Used { generation: g, value }) if *g == generation => Some(value),
            _ => None,
        }
    }

    /// As [`Slab::get`].
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, index: I, generation: u32) -> Option<&mut T> {
        let index = index.number();
        match self.entries.get_mut(index as usize) {
            Some(Entry::Used { generation: g, value }) if *g == generation => Some(value),
            _ => None,
        }
    }

    /// Whether the slot still holds the value that was given this generation.
    #[inline]
    pub(crate) fn is_current(&self, index: I, generation: u32) -> bool {
        let index = index.number();
        matches!(self.entries.get(index as usize),
            Some(Entry::Used { generation: g, .. }) if *g == generation)
    }

    pub(crate) fn generation(&self, index: I) -> u32 {
        let index = index.number();
        match &self.entries[index as usize] {
            Entry::Used { generation, .. } => *generation,
            Entry::Free { .. } => free_slot(index),
        }
    }

    /// A value and its generation.
    #[inline(always)]
    pub(crate) fn entry(&mut self, index: I) -> (&mut T, u32) {
        let index = index.number();
        match &mut self.entries[index as usize] {
            Entry::Used { generation, value } => (value, *generation),
            Entry::Free { .. } => free_slot(index),
        }
    }

    pub(crate) fn indices(&self) -> impl Iterator<Item = I> + '_ {
        let used = |(i, e): (usize, &Entry<T>)| {
            let index = I::new(i as u32);
            (matches!(e, Entry::Used { .. }) && !self.is_retired(index)).then_some(index)
        };
        self.entries.iter().enumerate().filter_map(used)
    }

    /// Gives trailing free slots back when most of the array was unused since the last call:
    /// O(slots), so only for now and then.
    pub(crate) fn shrink(&mut self) {
        const KEPT: usize = 256;
        let needed = std::mem::replace(&mut self.peak, self.len) as usize;
        if self.entries.len() < KEPT.max(4 * needed) {
            return;
        }
        while self.entries.len() > KEPT.max(2 * needed)
            && matches!(self.entries.last(), Some(Entry::Free { .. }))
        {
            self.entries.pop();
        }
        self.free = NONE;
        for (index, entry) in self.entries.iter_mut().enumerate().rev() {
            if let Entry::Free { next } = entry {
                *next = self.free;
                self.free = index as u32;
            }
        }
        self.entries.shrink_to(self.entries.len() * 2);
    }
}

#[cold]
#[inline(never)]
fn free_slot(index: u32) -> ! {
    panic!("slot {index} is free")
}

impl<I: Id, T> Index<I> for Slab<I, T> {
    type Output = T;

    #[inline(always)]
    fn index(&self, index: I) -> &T {
        let index = index.number();
        match &self.entries[index as usize] {
            Entry::Used { value, .. } => value,
            Entry::Free { .. } => free_slot(index),
        }
    }
}

impl<I: Id, T> IndexMut<I> for Slab<I, T> {
    #[inline(always)]
    fn index_mut(&mut self, index: I) -> &mut T {
        let index = index.number();
        match &mut self.entries[index as usize] {
            Entry::Used { value, .. } => value,
            Entry::Free { .. } => free_slot(index),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::id::ClientId;

    #[test]
    fn a_removed_slot_is_reused_under_another_generation() {
        let mut slab: Slab<ClientId, _> = Slab::new();
        let (a, first) = slab.insert('a');
        assert_eq!(slab.remove(a), 'a');
        let (b, second) = slab.insert('b');
        assert_eq!(a, b);
        assert!(!slab.is_current(a, first));
        assert!(slab.is_current(b, second));
    }

    #[test]
    fn a_retired_slot_has_its_stand_in_until_it_is_freed() {
        let mut slab: Slab<ClientId, _> = Slab::new();
        let (a, first) = slab.insert('a');
        assert_eq!(slab.retire(a, '-'), 'a');
        assert_eq!((slab[a], slab.len(), slab.indices().count()), ('-', 0, 0));
        assert!(slab.is_retired(a) && !slab.is_current(a, first) && slab.get(a, first).is_none());
        let (b, second) = slab.insert('b');
        assert_ne!(a, b);
        assert_eq!(slab.free_retired(), Some('-'));
        assert_eq!(slab.free_retired(), None);
        let (c, third) = slab.insert('c');
        assert!(a == c && slab.is_current(c, third) && slab.is_current(b, second));
    }

    #[test]
    fn shrinking_keeps_values_and_frees_the_rest() {
        let mut slab: Slab<ClientId, _> = Slab::new();
        let indices: Vec<ClientId> = (0..10_000).map(|i| slab.insert(i).0).collect();
        for &index in &indices[1..] {
            slab.remove(index);
        }
        // The first one still sees the peak.
        slab.shrink();
        slab.shrink();
        assert!(slab.entries.len() <= 256 && slab.entries.capacity() < 1024);
        assert_eq!(slab[ClientId::new(0)], 0);
        let again: Vec<ClientId> = (0..500).map(|i| slab.insert(i).0).collect();
        assert_eq!(slab.len(), 501);
        assert!(again.iter().all(|&index| index != ClientId::new(0)));
    }
}
