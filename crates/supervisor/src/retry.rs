//! When a change that could not be put into effect is tried again.

use std::time::{Duration, Instant};

/// The pause after the first failure; each is twice the one before it.
pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct Retry {
    not_before: Option<Instant>,
    pause: Option<Duration>,
}

impl Retry {
    /// Before then nothing is tried. `None` if the last change is in effect.
    pub(crate) fn not_before(&self) -> Option<Instant> {
        self.not_before
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|at| now >= at)
    }

    pub(crate) fn done(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn failed(&mut self, now: Instant) {
        let pause = self.pause.map_or(PAUSE_MIN, |pause| (pause * 2).min(PAUSE_MAX));
        (self.pause, self.not_before) = (Some(pause), Some(now + pause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_limit_until_it_is_done() {
        let (mut retry, now) = (Retry::default(), Instant::now());
        assert!(retry.is_due(now) && retry.not_before().is_none());
        let pauses: Vec<u64> = (0..8)
            .map(|_| {
                retry.failed(now);
                let at = retry.not_before().unwrap();
                assert!(!retry.is_due(now) && retry.is_due(at));
                (at - now).as_millis() as u64
            })
            .collect();
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        retry.done();
        assert!(retry.is_due(now));
        retry.failed(now);
        assert_eq!(retry.not_before(), Some(now + PAUSE_MIN));
    }
}
