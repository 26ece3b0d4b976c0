//! What users who have limits use of them, over all workers.
//!
//! Rates are kept by buckets in the memory that all workers share: each is one word, which says when
//! the bucket will be full (the virtual scheduling form of the generic cell rate algorithm, ITU-T
//! I.371). Who finds room takes it later, when it is known how much was used, so that workers that
//! look at the same moment overdraw the bucket; what follows pays for it, and over time the rate
//! holds exactly, however unevenly clients are spread over workers.
//!
//! Of connections and requests in flight each slot has its own count, which ends with its worker.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Words of each user that all workers share: the buckets of requests and of bytes.
pub(crate) const SHARED_WORDS: usize = 2;

/// Time in a bucket's word: microseconds, times this. Then a byte at 100 GB/s is a unit, and the word
/// is good for more than eight years.
const SCALE: u64 = 1 << 16;
/// So much may come at once: what comes in a tenth of a second.
const BURST_US: u64 = 100_000;

/// A user of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UserId {
    /// Among the users with limits of all pools; behind them is one who is never shown.
    pub(crate) number: u32,
}

/// What is counted of a user in a slot; the order is that of the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserStat {
    Requests,
    /// Of requests and replies.
    Bytes,
    /// Requests that got an error for a limit, and logins.
    Refused,
    /// How often a client had to wait.
    Delayed,
    Connections,
    InFlight,
}

impl UserStat {
    pub const ALL: [Self; 6] = [
        Self::Requests,
        Self::Bytes,
        Self::Refused,
        Self::Delayed,
        Self::Connections,
        Self::InFlight,
    ];

    pub(crate) const WORDS: usize = Self::ALL.len();
    /// From here on they are gauges.
    pub(crate) const GAUGES: usize = Self::Connections as usize;

    pub fn is_gauge(self) -> bool {
        self as usize >= Self::GAUGES
    }
}

/// What is limited by the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    Requests,
    Bytes,
}

/// A bucket, in a word that all workers share.
pub(crate) struct Bucket<'a>(pub(crate) &'a AtomicU64);

impl Bucket<'_> {
    /// How many microseconds it is until there is room; 0 if there is.
    pub(crate) fn wait_us(&self, now_us: u64) -> u64 {
        let full_at = self.0.load(Relaxed);
        let limit = (now_us + BURST_US).saturating_mul(SCALE);
        if full_at < limit { 0 } else { (full_at - limit) / SCALE + 1 }
    }

    /// Takes `count`, whether there is room or not.
    pub(crate) fn take(&self, count: u64, per_second: u64, now_us: u64) {
        let cost =
            u128::from(count) * u128::from(SCALE * 1_000_000) / u128::from(per_second.max(1));
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        let now = now_us.saturating_mul(SCALE);
        // No memory but the word itself is ordered by it.
        let _ = self
            .0
            .fetch_update(Relaxed, Relaxed, |full_at| Some(full_at.max(now).saturating_add(cost)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What passes in so many milliseconds, of clients that always ask.
    fn passed(word: &AtomicU64, per_second: u64, from_ms: u64, to_ms: u64) -> u64 {
        let mut count = 0;
        for now_us in (from_ms * 1000..to_ms * 1000).step_by(100) {
            while Bucket(word).wait_us(now_us) == 0 {
                Bucket(word).take(1, per_second, now_us);
                count += 1;
            }
        }
        count
    }

    #[test]
    fn a_tenth_of_a_second_at_once_and_then_the_rate() {
        for per_second in [10, 1000, 30_000, 333_333] {
            let word = AtomicU64::new(0);
            let first = passed(&word, per_second, 1000, 1001);
            let expected = per_second / 10 + per_second / 1000;
            assert!(
                first.abs_diff(expected) <= per_second / 10_000 + 1,
                "{first} of {per_second}/s"
            );
            let later = passed(&word, per_second, 1001, 11_001);
            assert!(later.abs_diff(per_second * 10) <= per_second / 1000 + 1, "{later}");
        }
    }

    #[test]
    fn what_is_large_is_paid_for_later() {
        let word = AtomicU64::new(0);
        let bucket = Bucket(&word);
        assert_eq!(bucket.wait_us(0), 0);
        bucket.take(5_000_000, 1_000_000, 0);
        assert_eq!(bucket.wait_us(0), 4_900_001);
        assert_eq!(bucket.wait_us(4_900_000), 1);
        assert_eq!(bucket.wait_us(4_900_001), 0);
        // An hour of nothing gives no more than a burst.
        bucket.take(100_000, 1_000_000, 3_600_000_000);
        assert_eq!(bucket.wait_us(3_600_000_000), 1);
    }

    #[test]
    fn there_is_no_overflow() {
        let word = AtomicU64::new(0);
        Bucket(&word).take(u64::MAX, 1, u64::MAX / SCALE);
        assert!(Bucket(&word).wait_us(0) > 0);
    }
}
