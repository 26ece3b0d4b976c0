//! The clock of heartbeats, and what it means on the wall.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds of `CLOCK_MONOTONIC`: the same in all processes of a machine, never set back.
pub fn monotonic_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Tells when something was on the wall. Of one of these a moment is always the same.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    /// The start of the monotonic clock, in milliseconds since 1970.
    start_ms: u64,
}

impl WallClock {
    pub fn now() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        Self { start_ms: now_ms.saturating_sub(monotonic_ms()) }
    }

    /// Milliseconds since 1970.
    pub fn unix_ms(self, monotonic_ms: u64) -> u64 {
        self.start_ms.saturating_add(monotonic_ms)
    }
}
