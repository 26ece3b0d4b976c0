//! The only place where the data plane reads clocks.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use cashew_engine::Time;

/// Turns the monotonic clock into the engine's time.
#[derive(Clone, Copy)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(&self) -> Time {
        // The engine takes zero for "long ago".
        Time::from_micros(1 + self.0.elapsed().as_micros() as u64)
    }
}

/// Microseconds since 1970.
pub(crate) fn wall_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}
