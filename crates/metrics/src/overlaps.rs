//! Whether writes of one key were on their way at once, over all workers.
//!
//! Where a write goes to several servers that are copies of each other, two writes of one key may reach them
//! in different orders, since each worker has connections of its own. Then the copies differ. That can only be
//! if both were on their way at the same time. So each write leaves its mark when it begins, in a word that is
//! chosen by the key's hash, and looks when it ends whether somebody else has left one since. Of two writes
//! that overlap, the one that began first sees the other's mark. It costs two instructions on memory that the
//! workers share, and no message.
//!
//! Keys that share a word, one in so many, look like one key. That is a false alarm, never a missed one.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::digest::fnv1a;

/// Words in the memory that all workers share: 256 KiB, of a configuration that has copies.
pub(crate) const WORDS: usize = 1 << 15;

/// A line of connections, one to each server, on which writes keep their order. Two writes on the same one reach
/// all copies in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteLane(u16);

/// How a write stands to others of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    /// Its outcome depends on its place among others.
    Ordered,
    /// One server decides, and the others get it later than what was sent behind it.
    Conditional,
    /// Others of this kind may come before it or after it: an increment, a touch.
    Commuting,
}

/// The mark of a write that is on its way.
#[derive(Clone, Copy, Debug)]
pub struct WriteStamp {
    place: usize,
    mark: Mark,
    kind: WriteKind,
}

/// What a word says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark {
    /// Who began last.
    lane: u16,
    /// How often that was another than the one before.
    turns: u16,
    /// How many have begun that do not commute.
    ordered: u16,
    /// How many have begun.
    all: u16,
}

impl WriteLane {
    const UNORDERED: u8 = u8::MAX;

    /// The lane of that number of a worker's slot. Numbers that are too large say nothing of order.
    pub fn new(slot: u32, lane: usize) -> Self {
        let lane = u8::try_from(lane).unwrap_or(Self::UNORDERED);
        Self((slot as u8 as u16) << 8 | u16::from(lane))
    }

    /// Of something that keeps no order with anything.
    pub fn unordered(slot: u32) -> Self {
        Self::new(slot, usize::MAX)
    }

    fn is_ordered(self) -> bool {
        self.0 as u8 != Self::UNORDERED
    }
}

impl Mark {
    fn of(word: u64) -> Self {
        let part = |at: u32| (word >> (16 * at)) as u16;
        Self { lane: part(3), turns: part(2), ordered: part(1), all: part(0) }
    }

    fn word(self) -> u64 {
        [self.lane, self.turns, self.ordered, self.all]
            .iter()
            .fold(0, |word, &part| word << 16 | u64::from(part))
    }

    fn after(self, lane: WriteLane, kind: WriteKind) -> Self {
        let is_turn = self.lane != lane.0 || !lane.is_ordered();
        Self {
            lane: lane.0,
            turns: self.turns.wrapping_add(is_turn.into()),
            ordered: self.ordered.wrapping_add((kind != WriteKind::Commuting).into()),
            all: self.all.wrapping_add(1),
        }
    }
}

/// The words. None where nobody has copies.
pub(crate) struct Overlaps<'a>(pub(crate) &'a [AtomicU64]);

impl Overlaps<'_> {
    /// A write is about to be sent. Where there are no words it never overlaps.
    pub(crate) fn begin(&self, key: &[u8], lane: WriteLane, kind: WriteKind) -> WriteStamp {
        let place = place_of(key);
        let Some(word) = self.0.get(place) else {
            return WriteStamp { place, mark: Mark::default(), kind };
        };
        let mut before = word.load(SeqCst);
        loop {
            let mark = Mark::of(before).after(lane, kind);
            match word.compare_exchange_weak(before, mark.word(), SeqCst, SeqCst) {
                Ok(_) => return WriteStamp { place, mark, kind },
                Err(other) => before = other,
            }
        }
    }

    /// Whether a write that has ended may have reached some copy in another order than another one.
    pub(crate) fn has_overlap(&self, stamp: &WriteStamp) -> bool {
        let Some(word) = self.0.get(stamp.place) else { return false };
        let (then, now) = (stamp.mark, Mark::of(word.load(SeqCst)));
        match stamp.kind {
            WriteKind::Conditional => then.all != now.all,
            WriteKind::Ordered => then.turns != now.turns,
            WriteKind::Commuting => then.turns != now.turns && then.ordered != now.ordered,
        }
    }
}

pub(crate) fn place_of(key: &[u8]) -> usize {
    let fnv = fnv1a(key);
    ((fnv ^ fnv >> 32 ^ fnv >> 17) as usize) % WORDS
}

#[cfg(test)]
mod tests {
    use super::*;
    use WriteKind::{Commuting, Conditional, Ordered};

    fn words() -> Vec<AtomicU64> {
        (0..WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn the_first_of_two_that_overlap_sees_the_other() {
        let words = words();
        let overlaps = Overlaps(&words);
        let (here, there) = (WriteLane::new(0, 0), WriteLane::new(1, 0));
        let unordered = WriteLane::unordered(0);
        for (one, lane, other, other_lane, is_seen) in [
            (Ordered, here, Ordered, there, true),
            (Ordered, here, Conditional, there, true),
            (Ordered, here, Commuting, there, true),
            (Ordered, here, Ordered, here, false),
            (Ordered, here, Conditional, here, false),
            (Ordered, unordered, Ordered, unordered, true),
            (Conditional, here, Ordered, here, true),
            (Conditional, here, Conditional, there, true),
            (Commuting, here, Commuting, there, false),
            (Commuting, here, Ordered, there, true),
            (Commuting, here, Ordered, here, false),
        ] {
            let first = overlaps.begin(b"key", lane, one);
            assert!(!overlaps.has_overlap(&first));
            overlaps.begin(b"another", there, Ordered);
            assert!(!overlaps.has_overlap(&first), "another key is no matter");
            let second = overlaps.begin(b"key", other_lane, other);
            let name = format!("{one:?} on {lane:?}, then {other:?} on {other_lane:?}");
            assert_eq!(overlaps.has_overlap(&first), is_seen, "{name}");
            assert!(!overlaps.has_overlap(&second), "{name}");
        }
    }

    #[test]
    fn who_comes_back_does_not_hide_who_came_between() {
        let words = words();
        let overlaps = Overlaps(&words);
        let lanes = [WriteLane::new(0, 0), WriteLane::new(1, 0)];
        let first = overlaps.begin(b"key", lanes[0], Ordered);
        overlaps.begin(b"key", lanes[1], Commuting);
        let counts = overlaps.begin(b"key", lanes[1], Commuting);
        overlaps.begin(b"key", lanes[0], Ordered);
        assert!(overlaps.has_overlap(&first));
        assert!(overlaps.has_overlap(&counts));
    }

    #[test]
    fn without_words_nothing_overlaps() {
        let overlaps = Overlaps(&[]);
        let stamp = overlaps.begin(b"key", WriteLane::new(0, 0), Ordered);
        overlaps.begin(b"key", WriteLane::new(1, 0), Ordered);
        assert!(!overlaps.has_overlap(&stamp));
    }

    #[test]
    fn words_keep_what_they_say() {
        let mark = Mark { lane: 1, turns: 2, ordered: 3, all: u16::MAX };
        assert_eq!(Mark::of(mark.word()), mark);
        let after = mark.after(WriteLane(1), Commuting);
        assert_eq!(after, Mark { all: 0, ..mark });
    }
}
