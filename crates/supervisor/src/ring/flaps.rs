//! How long a flapping server stays out.

use std::time::{Duration, Instant};

/// A server that is ejected again within this time plus the pool's retry timeout flaps.
pub(super) const FLAP_WINDOW: Duration = Duration::from_secs(30);

/// The minimum pause of a flapping server, for very short retry timeouts.
const FLAP_PAUSE_MIN: Duration = Duration::from_millis(100);

/// The maximum pause, or the retry timeout if that is longer.
pub(super) const FLAP_PAUSE_MAX: Duration = Duration::from_secs(300);

/// Flapping is forgotten after a server has served well for this many times its last pause.
pub(super) const FLAP_MEMORY: u32 = 10;

/// History of a server that was ejected once.
///
/// An ejection within [`FLAP_WINDOW`] and the retry timeout of the readmission doubles the pause
/// before the next readmission, beginning with the retry timeout. A later one, before the server
/// has served [`FLAP_MEMORY`] times the pause, leaves the pause unchanged. After that it begins
/// anew.
#[derive(Clone, Copy, Default)]
pub(super) struct Flaps {
    /// The minimum time the server stays out when it is ejected, or did the last time.
    pub(super) pause: Duration,
    /// When it was last ejected or readmitted.
    pub(super) changed_at: Option<Instant>,
}

impl Flaps {
    /// Sets the pause. Returns how long the server has served if that was too short to go without a
    /// pause.
    pub(super) fn ejected(&mut self, retry: Duration, now: Instant) -> Option<Duration> {
        let served = self.changed_at.replace(now).map(|readmitted_at| now - readmitted_at)?;
        if served < FLAP_WINDOW + retry {
            let pause_min = retry.max(FLAP_PAUSE_MIN);
            self.pause = (self.pause * 2).clamp(pause_min, pause_min.max(FLAP_PAUSE_MAX));
        } else if served >= self.pause * FLAP_MEMORY {
            self.pause = Duration::ZERO;
        }
        (self.pause > Duration::ZERO).then_some(served)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_follows_the_retry_timeout_where_that_is_extreme() {
        let ejected = |retry, times| {
            let now = Instant::now();
            let mut flaps = Flaps::default();
            for _ in 0..times {
                flaps.ejected(retry, now);
            }
            flaps.pause
        };
        assert_eq!(ejected(Duration::ZERO, 1), Duration::ZERO);
        assert_eq!(ejected(Duration::ZERO, 2), FLAP_PAUSE_MIN);
        assert_eq!(ejected(Duration::ZERO, 3), 2 * FLAP_PAUSE_MIN);
        assert_eq!(ejected(Duration::ZERO, 30), FLAP_PAUSE_MAX);
        let hour = Duration::from_secs(3600);
        assert_eq!(ejected(hour, 3), hour);
    }
}
