//! How fast something large moves, measured now and then.

use crate::base::time::Time;

/// What moves is measured over so long.
pub(crate) const PERIOD_US: u64 = 2_000_000;

/// How much of a large request or reply had moved when it was measured last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    since: Time,
    moved: u64,
    is_slow: bool,
}

impl Pace {
    pub(crate) fn new(now: Time, moved: u64) -> Self {
        Self { since: now, moved, is_slow: false }
    }

    /// Whether it was begun before that time.
    pub(crate) fn is_older(&self, than: Time) -> bool {
        self.since < than
    }

    /// Whether less than `rate` bytes per second moved in the last whole period; `moved` is all there
    /// was so far.
    pub(crate) fn is_slow(&mut self, now: Time, moved: u64, rate: u64) -> bool {
        let elapsed = now.micros_since(self.since);
        if elapsed >= PERIOD_US {
            let expected = u128::from(rate) * u128::from(elapsed) / 1_000_000;
            self.is_slow = u128::from(moved.saturating_sub(self.moved)) < expected;
            (self.since, self.moved) = (now, moved);
        }
        self.is_slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_decides_until_the_next_one_is_over() {
        let at = |millis| Time::ZERO.plus_millis(millis);
        let mut pace = Pace::new(at(0), 0);
        assert!(!pace.is_slow(at(1999), 1, 100), "it is too early to tell");
        assert!(pace.is_slow(at(2000), 199, 100));
        assert!(pace.is_slow(at(3000), 100_000, 100), "a burst counts when its period is over");
        assert!(!pace.is_slow(at(4000), 100_000, 100));
        assert!(pace.is_slow(at(9000), 100_001, 100));
        assert!(!pace.is_slow(at(20_000), 100_001, 0), "there is no limit");
    }
}
