//! When the worker sleeps before it looks for events: to be woken for each few of hundreds of clients is
//! dear, and what comes meanwhile is found together.

use super::Work;

/// With so many active clients, at least, the worker naps: fewer fit in one batch …
pub(super) const CLIENTS_MIN: u64 = 256;
/// … if it is busy for so much of its time, in percent: otherwise it waits for servers, and to sleep
/// once more costs more than it saves …
pub(super) const BUSY_MIN_PERCENT: u64 = 70;
/// … after a turn that found less than this part of them asking or answered …
const FOUND_PART: u64 = 6;
/// … for this part of the time that an answer takes …
const LATENCY_PART: u64 = 20;
/// … and no longer than this: beyond, queues grow and other processors idle.
const MAX_US: u64 = 50;

#[derive(Debug, Default)]
pub(super) struct Nap {
    /// How long one is, in microseconds; 0 where there is none.
    us: u64,
    /// Whether the last turn found little to do.
    found_little: bool,
}

impl Nap {
    /// Whether there are any.
    pub(super) fn is_on(&self) -> bool {
        self.us > 0
    }

    /// How long the next one is, in microseconds.
    pub(super) fn us(&self) -> u64 {
        if self.found_little { self.us } else { 0 }
    }

    /// A turn is over that found this to do, with so many active clients.
    pub(super) fn note_turn(&mut self, found: Work, active: u64) {
        self.found_little = (found.asked + found.answered) * FOUND_PART <= active;
    }

    /// From now on there are naps, given how long an answer takes.
    pub(super) fn adjust(&mut self, latency_us: u64) {
        self.us = (latency_us / LATENCY_PART).min(MAX_US);
    }

    pub(super) fn turn_off(&mut self) {
        self.us = 0;
    }
}
