//! Things that are kept to be used again.

/// Recycles values, last in, first out, and lets go of those that nobody needs any more.
pub(crate) struct Recycler<T> {
    free: Vec<T>,
    /// Fewest values that lay unused since the last [`Recycler::trim`].
    idle: usize,
}

impl<T> Default for Recycler<T> {
    fn default() -> Self {
        Self { free: Vec::new(), idle: 0 }
    }
}

impl<T> Recycler<T> {
    pub(crate) fn take(&mut self) -> Option<T> {
        let value = self.free.pop()?;
        self.idle = self.idle.min(self.free.len());
        Some(value)
    }

    #[inline]
    pub(crate) fn give(&mut self, value: T) {
        self.free.push(value);
    }

    /// Drops half of the values that nobody needed since the last call, and twice their room: a list
    /// that has grown has room for twice as many as it had to hold, at most.
    pub(crate) fn trim(&mut self, dropped: impl FnMut(T)) {
        let surplus = self.idle.div_ceil(2);
        // The front of the stack is what has been idle longest.
        self.free.drain(..surplus).for_each(dropped);
        self.free.shrink_to(self.free.capacity().saturating_sub(2 * surplus));
        self.idle = self.free.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_is_kept_and_a_peak_is_forgotten() {
        let mut recycler = Recycler::default();
        for n in 0..1000 {
            recycler.give(n);
        }
        for _ in 0..20 {
            recycler.trim(drop);
            let taken: Vec<i32> = (0..100).filter_map(|_| recycler.take()).collect();
            assert_eq!(taken.len(), 100);
            taken.into_iter().for_each(|value| recycler.give(value));
        }
        assert!(recycler.free.len() <= 101, "{}", recycler.free.len());
    }
}
