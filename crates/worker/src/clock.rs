//! The only place where the data plane reads clocks.

use std::time::{SystemTime, UNIX_EPOCH};

use cashew_engine::Time;
use rustix::time::{ClockId, clock_gettime};

/// The engine's time, from the monotonic clock.
#[inline]
pub(crate) fn now() -> Time {
    let now = clock_gettime(ClockId::Monotonic);
    // Zero means "long ago" to the engine, and this may be the very start of the machine.
    Time::from_micros(1 + now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000)
}

/// Microseconds since 1970.
pub(crate) fn wall_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}
