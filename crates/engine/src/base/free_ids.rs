//! Numbers of lanes that are free to be used again.

use std::collections::BTreeMap;
use std::ops::Range;

/// Free numbers below those in use at the end, as disjoint ranges that do not touch.
#[derive(Debug, Default)]
pub(crate) struct FreeIds(BTreeMap<u32, u32>);

impl FreeIds {
    /// So many numbers in a row, the lowest there are.
    pub(crate) fn take(&mut self, count: u32) -> Option<u32> {
        let fits = |&(&start, &end): &(&u32, &u32)| end - start >= count;
        let (start, end) = self.0.iter().find(fits).map(|(&start, &end)| (start, end))?;
        self.0.remove(&start);
        if start + count < end {
            self.0.insert(start + count, end);
        }
        Some(start)
    }

    /// Takes all numbers in a row that reach up to `end`; returns the first.
    pub(crate) fn cut(&mut self, end: u32) -> Option<u32> {
        let (&start, _) = self.0.last_key_value().filter(|&(_, &last)| last == end)?;
        self.0.remove(&start);
        Some(start)
    }

    pub(crate) fn give(&mut self, mut range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        if let Some(end) = self.0.remove(&range.end) {
            range.end = end;
        }
        match self.0.range_mut(..range.start).next_back() {
            Some((_, end)) if *end == range.start => *end = range.end,
            _ => {
                self.0.insert(range.start, range.end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_range_that_fits_is_taken_and_neighbours_grow_together() {
        let mut free_ids = FreeIds::default();
        assert_eq!(free_ids.take(1), None);
        for range in [2..4, 10..14, 5..6, 7..7] {
            free_ids.give(range);
        }
        assert_eq!(
            (free_ids.take(3), free_ids.take(2), free_ids.take(2)),
            (Some(10), Some(2), None)
        );
        assert_eq!(
            (free_ids.take(1), free_ids.take(1), free_ids.take(1)),
            (Some(5), Some(13), None)
        );
        for range in [4..5, 0..2, 6..8, 2..4, 5..6] {
            free_ids.give(range);
        }
        assert_eq!((free_ids.take(8), free_ids.take(1)), (Some(0), None));
        for range in [2..4, 6..8] {
            free_ids.give(range);
        }
        assert_eq!((free_ids.cut(9), free_ids.cut(4), free_ids.cut(8)), (None, None, Some(6)));
        assert_eq!((free_ids.cut(8), free_ids.cut(4), free_ids.cut(4)), (None, Some(2), None));
    }
}
