//! So many a second, and so many at once.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::time::Time;

/// A bucket of tokens, of which each request takes one. It can be shared, though one worker has it.
#[derive(Debug)]
pub(crate) struct Bucket {
    per_second: u64,
    /// When it would be full, as microseconds: the later, the emptier it is (the virtual scheduling form of
    /// the generic cell rate algorithm, ITU-T I.371).
    full_at: AtomicU64,
    burst_us: u64,
}

impl Bucket {
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        let per_second = u64::from(per_second.max(1));
        let burst_us = u64::from(burst.max(1)) * 1_000_000 / per_second;
        Self { per_second, full_at: AtomicU64::new(0), burst_us }
    }

    pub(crate) fn take(&self, now: Time) -> bool {
        let now = now.as_micros();
        let next = self.full_at.load(Ordering::Relaxed).max(now) + 1_000_000 / self.per_second;
        let has_one = next - now <= self.burst_us.max(1_000_000 / self.per_second);
        if has_one {
            self.full_at.store(next, Ordering::Relaxed);
        }
        has_one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let bucket = Bucket::new(100, 10);
        let at = |ms: u64| Time::ZERO.plus_millis(1000 + ms);
        let taken = |now| (0..100).filter(|_| bucket.take(now)).count();
        assert_eq!(taken(at(0)), 10);
        assert_eq!(taken(at(0)), 0);
        assert_eq!(taken(at(50)), 5);
        assert_eq!(taken(at(1050)), 10);
    }
}
