//! Latency histograms with fixed buckets, in whole microseconds.
//!
//! A bucket holds the values above its lower and up to and including its upper bound, so that
//! "at most x" is exact wherever x is a bound. Up to 100 µs every value has a bucket of its own.
//! Above, each decade is cut in three and each part evenly: 1..2 by 0.02, 2..5 by 0.04, 5..10 by
//! 0.1. No bucket is then wider than 2 % of its lower bound, and all of the
//! 1-2-5 series, and every whole multiple of a decade, is a bound. Beyond 100 s there is one
//! bucket without an upper bound.
//!
//! In memory a histogram is [`WORDS`] words of 8 bytes, 9 KiB.

/// Buckets with an upper bound: 100 up to 100 µs, 175 in each of the six decades from 100 µs to
/// 100 s.
const BOUNDED: usize = 100 + 6 * 175;
const BUCKETS: usize = BOUNDED + 1;
const BOUND_MAX: u64 = 100_000_000;

/// The buckets, then the sum of all values.
pub(crate) const WORDS: usize = BUCKETS + 1;
pub(crate) const SUM: usize = BUCKETS;

/// A run of buckets of the same width. Works on `value - 1`, which turns "above lower, up to and
/// including upper" into the usual half-open interval.
#[derive(Clone, Copy)]
struct Part {
    start: u64,
    /// Width of a bucket; that of the overflow bucket is never used.
    step: u64,
    /// `ceil(2^48 / step)`: exact as a divisor for what lies within a part, see below.
    reciprocal: u64,
    first_bucket: usize,
}

const PARTS: usize = 1 + 6 * 3 + 1;
const SHIFT: u32 = 48;

/// The division by multiplication is exact while `offset * (reciprocal * step - 2^48) < 2^48`;
/// the bracket is below `step`. It does not overflow because `offset / step` is at most 100.
const _: () = assert!((50_000_000u64 * 1_000_000) < 1 << SHIFT);

const TABLE: [Part; PARTS] = {
    let mut table = [Part { start: 0, step: 1, reciprocal: 1 << SHIFT, first_bucket: 0 }; PARTS];
    let mut at = 1;
    let mut unit = 100;
    let mut bucket = 100;
    while unit < BOUND_MAX {
        table[at] = part(unit, unit / 50, bucket);
        table[at + 1] = part(unit * 2, unit / 25, bucket + 50);
        table[at + 2] = part(unit * 5, unit / 10, bucket + 125);
        at += 3;
        unit *= 10;
        bucket += 175;
    }
    assert!(at == PARTS - 1 && bucket == BOUNDED);
    // Every offset into the overflow part leads to its one bucket.
    table[at] = Part { start: BOUND_MAX, step: 0, reciprocal: 0, first_bucket: BOUNDED };
    table
};

const fn part(start: u64, step: u64, first_bucket: usize) -> Part {
    Part { start, step, reciprocal: (1u64 << SHIFT).div_ceil(step), first_bucket }
}

/// For a value of so many bits, the part in which the smallest such value lies. Parts at least
/// double, so a larger value of as many bits lies there or in the next.
const PART_BY_BITS: [u8; 65] = {
    let mut by_bits = [0; 65];
    let mut bits = 1;
    while bits <= 64 {
        let smallest = 1u64 << (bits - 1);
        let mut at = 0;
        while at + 1 < PARTS && TABLE[at + 1].start <= smallest {
            at += 1;
        }
        by_bits[bits] = at as u8;
        bits += 1;
    }
    by_bits
};

/// The bucket of a value.
#[inline]
pub(crate) fn bucket(value_us: u64) -> usize {
    let value = value_us.saturating_sub(1);
    let bits = u64::BITS - value.leading_zeros();
    let mut at = usize::from(PART_BY_BITS[bits as usize]);
    if at + 1 < PARTS && value >= TABLE[at + 1].start {
        at += 1;
    }
    let part = &TABLE[at];
    let offset = (value - part.start).wrapping_mul(part.reciprocal) >> SHIFT;
    part.first_bucket + offset as usize
}

/// The largest value of each bounded bucket.
const UPPER: [u64; BOUNDED] = {
    let mut upper = [0; BOUNDED];
    let mut at = 0;
    while at + 1 < PARTS {
        let mut bucket = TABLE[at].first_bucket;
        while bucket < TABLE[at + 1].first_bucket {
            let within = (bucket - TABLE[at].first_bucket) as u64 + 1;
            upper[bucket] = TABLE[at].start + within * TABLE[at].step;
            bucket += 1;
        }
        at += 1;
    }
    upper
};

/// A copy of one histogram, or of several merged into one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    buckets: Box<[u64; BUCKETS]>,
    sum_us: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: Box::new([0; BUCKETS]), sum_us: 0 }
    }
}

impl Histogram {
    pub fn record(&mut self, value_us: u64) {
        self.buckets[bucket(value_us)] += 1;
        self.sum_us = self.sum_us.wrapping_add(value_us);
    }

    pub fn merge(&mut self, other: &Self) {
        self.add_words(|at| if at == SUM { other.sum_us } else { other.buckets[at] });
    }

    /// What was recorded since an earlier copy of the same histogram. A bucket that has less than before is
    /// empty.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut since = self.clone();
        for (count, before) in since.buckets.iter_mut().zip(&*earlier.buckets) {
            *count = count.saturating_sub(*before);
        }
        since.sum_us = since.sum_us.saturating_sub(earlier.sum_us);
        since
    }

    /// Adds a histogram as it lies in memory.
    pub(crate) fn add_words(&mut self, word: impl Fn(usize) -> u64) {
        for (at, count) in self.buckets.iter_mut().enumerate() {
            *count = count.wrapping_add(word(at));
        }
        self.sum_us = self.sum_us.wrapping_add(word(SUM));
    }

    /// The sum over all buckets. So it agrees with [`Self::count_le`] even if the histogram was
    /// copied while a worker wrote.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }

    pub fn sum_us(&self) -> u64 {
        self.sum_us
    }

    /// How many values were at most `bound_us`. Exact when that is a bound of a bucket; otherwise
    /// values in the bucket around it are left out.
    pub fn count_le(&self, bound_us: u64) -> u64 {
        let whole = UPPER.partition_point(|&upper| upper <= bound_us);
        self.buckets[..whole].iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }

    /// The value that a share `q` (0..=1) of all values does not exceed: the upper bound of its
    /// bucket, hence at most 2 % too much. 100 s stands for everything beyond. `None` if empty.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let count = self.count();
        let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0u64;
        let at = self.buckets.iter().position(|&in_bucket| {
            seen = seen.wrapping_add(in_bucket);
            seen >= rank
        })?;
        Some(UPPER.get(at).copied().unwrap_or(BOUND_MAX))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_bound_ends_its_bucket() {
        let mut lower = 0;
        for (at, &upper) in UPPER.iter().enumerate() {
            assert_eq!(bucket(lower + 1), at, "just above {lower}");
            assert_eq!(bucket(upper), at, "at {upper}");
            assert_eq!(bucket(upper + 1), at + 1, "just above {upper}");
            assert!(upper - lower == 1 || (upper - lower) * 50 <= lower, "{lower}..{upper}");
            lower = upper;
        }
        assert_eq!(lower, BOUND_MAX);
    }

    #[test]
    fn extremes_have_buckets() {
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(BOUND_MAX + 1), BOUNDED);
        assert_eq!(bucket(u64::MAX), BOUNDED);
    }

    #[test]
    fn usual_bounds_are_exact() {
        let fork_ms = [1, 10, 20, 50, 100, 200, 500, 1000, 2000, 3000];
        let fork = fork_ms.into_iter().map(|ms| ms * 1000);
        let decades = (0..8).map(|decade| 10u64.pow(decade));
        let series = decades.flat_map(|unit| [unit, 2 * unit, 5 * unit]);
        for bound in fork.chain(series).chain([BOUND_MAX]) {
            let mut histogram = Histogram::default();
            histogram.record(bound);
            histogram.record(bound + 1);
            assert_eq!(histogram.count_le(bound), 1, "{bound}");
            assert_eq!(histogram.count_le(bound - 1), 0, "{bound}");
        }
    }

    #[test]
    fn empty_and_overflowing_quantiles() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), None);
        histogram.record(u64::MAX);
        assert_eq!(histogram.quantile(0.5), Some(BOUND_MAX));
        assert_eq!((histogram.count(), histogram.count_le(u64::MAX)), (1, 0));
    }

    #[test]
    fn a_difference_has_what_was_recorded_since() {
        let mut histogram = Histogram::default();
        histogram.record(100);
        let before = histogram.clone();
        histogram.record(7);
        let since = histogram.since(&before);
        assert_eq!((since.count(), since.sum_us(), since.quantile(1.0)), (1, 7, Some(7)));
        assert_eq!(before.since(&histogram).count(), 0);
    }

    proptest! {
        #[test]
        fn a_value_lies_within_its_bucket_s_bounds(value in 0..=2 * BOUND_MAX) {
            prop_assert_eq!(bucket(value), UPPER.partition_point(|&upper| upper < value));
        }

        #[test]
        fn quantile_errs_within_the_width(
            values in prop::collection::vec((0u32..8).prop_flat_map(|decade| {
                let unit = 10u64.pow(decade);
                unit..=unit * 10
            }), 1..200),
            q in 0.0..=1.0f64,
        ) {
            let (mut one, mut other) = (Histogram::default(), Histogram::default());
            for (at, &value) in values.iter().enumerate() {
                if at % 2 == 0 { one.record(value) } else { other.record(value) }
            }
            one.merge(&other);
            let mut sorted = values;
            sorted.sort_unstable();
            prop_assert_eq!(one.count(), sorted.len() as u64);
            prop_assert_eq!(one.sum_us(), sorted.iter().sum::<u64>());
            let rank = ((q * sorted.len() as f64).ceil() as usize).max(1);
            let (truth, told) = (sorted[rank - 1], one.quantile(q).unwrap());
            prop_assert!(truth <= told && (told - truth) * 50 <= truth, "{} {}", truth, told);
        }
    }
}
