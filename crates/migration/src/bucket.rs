//! How much may be copied in a second.

use std::time::{Duration, Instant};

/// Two limits, each of which may be 0 for none.
#[derive(Debug)]
pub(crate) struct Bucket {
    keys_per_second: f64,
    bytes_per_second: f64,
    /// What may be used at once. Below zero it is a debt.
    keys: f64,
    bytes: f64,
    at: Instant,
}

impl Bucket {
    pub(crate) fn new(keys_per_second: u64, bytes_per_second: u64) -> Self {
        let at = Instant::now();
        let (keys_per_second, bytes_per_second) = (keys_per_second as f64, bytes_per_second as f64);
        Self { keys_per_second, bytes_per_second, keys: 0.0, bytes: 0.0, at }
    }

    pub(crate) fn spend(&mut self, keys: u64, bytes: u64, now: Instant) {
        self.refill(now);
        self.keys -= keys as f64;
        self.bytes -= bytes as f64;
    }

    /// How long whoever walks has to wait.
    pub(crate) fn debt(&mut self, now: Instant) -> Duration {
        self.refill(now);
        let owed = |left: f64, rate: f64| if rate > 0.0 && left < 0.0 { -left / rate } else { 0.0 };
        let seconds = owed(self.keys, self.keys_per_second);
        Duration::from_secs_f64(seconds.max(owed(self.bytes, self.bytes_per_second)))
    }

    /// A tenth of a second's worth may gather.
    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        let filled = |left: f64, rate: f64| (left + passed * rate).min(rate / 10.0);
        self.keys = filled(self.keys, self.keys_per_second);
        self.bytes = filled(self.bytes, self.bytes_per_second);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spent_is_waited_for_by_whichever_limit_is_stricter() {
        let start = Instant::now();
        let mut bucket = Bucket { at: start, ..Bucket::new(100, 1000) };
        assert_eq!(bucket.debt(start), Duration::ZERO);
        bucket.spend(50, 100, start);
        assert_eq!(bucket.debt(start), Duration::from_millis(500));
        bucket.spend(0, 1900, start);
        assert_eq!(bucket.debt(start), Duration::from_secs(2));
        assert_eq!(bucket.debt(start + Duration::from_secs(2)), Duration::ZERO);
        let mut without = Bucket { at: start, ..Bucket::new(0, 0) };
        without.spend(1_000_000, 1 << 40, start);
        assert_eq!(without.debt(start), Duration::ZERO);
    }
}
