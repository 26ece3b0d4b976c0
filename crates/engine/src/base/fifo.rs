//! A queue that is emptied as a whole, again and again.

/// First in, first out. Room is used anew only when everything has been taken out, which a
/// `VecDeque` does not need, and pays for with every item.
pub(crate) struct Fifo<T> {
    items: Vec<T>,
    /// How many of `items` have been taken out.
    taken: usize,
}

impl<T: Copy> Fifo<T> {
    pub(crate) fn new() -> Self {
        Self { items: Vec::new(), taken: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.items.len()
    }

    #[inline]
    pub(crate) fn push(&mut self, item: T) {
        self.items.push(item);
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        let item = self.items.get(self.taken).copied();
        if item.is_some() {
            self.taken += 1;
        } else {
            self.items.clear();
            self.taken = 0;
        }
        item
    }

    /// Moves everything out of another one, to the end of this one.
    #[inline]
    pub(crate) fn take_over(&mut self, other: &mut Self) {
        if !other.is_empty() {
            self.items.extend_from_slice(&other.items[other.taken..]);
            other.items.clear();
            other.taken = 0;
        }
    }

    /// Lets go of room for more than `kept` that nobody needs.
    pub(crate) fn shrink(&mut self, kept: usize) {
        if self.items.capacity() > kept {
            self.items.shrink_to(kept.max(2 * self.items.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_first_goes_first_also_from_another_one() {
        let (mut one, mut other) = (Fifo::new(), Fifo::new());
        [1, 2].into_iter().for_each(|item| one.push(item));
        [3, 4].into_iter().for_each(|item| other.push(item));
        assert_eq!((one.pop(), other.pop()), (Some(1), Some(3)));
        one.take_over(&mut other);
        one.push(5);
        assert!(other.is_empty() && other.pop().is_none());
        let rest: Vec<i32> = std::iter::from_fn(|| one.pop()).collect();
        assert_eq!(rest, [2, 4, 5]);
        assert!(one.is_empty() && one.items.is_empty());
        one.shrink(1);
        assert!(one.items.capacity() <= 1);
    }
}
