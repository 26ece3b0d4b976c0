//! When the worker sleeps before it polls for events. With hundreds of clients, a wake-up for a few
//! of them is expensive; after a short sleep more are found together.

use super::Work;

/// The fewest active clients for which the worker naps: fewer fit in one batch.
pub(super) const CLIENTS_MIN: u64 = 256;
/// The worker naps only while it is busy for this share of its time, in percent. Otherwise it waits
/// for servers, and one more sleep costs more than it saves.
pub(super) const BUSY_MIN_PERCENT: u64 = 70;
/// It naps after a tick that found requests or replies of at most one in this many clients.
const FOUND_PART: u64 = 6;
/// A nap lasts one part in this many of the latency.
const LATENCY_PART: u64 = 20;
/// The longest nap, in microseconds. Beyond this, queues grow and other processors idle.
const MAX_US: u64 = 50;

#[derive(Debug, Default)]
pub(super) struct Nap {
    /// Length of a nap in microseconds; 0 if there is none.
    us: u64,
    /// Whether the last tick found little to do.
    found_little: bool,
}

impl Nap {
    /// Whether naps are enabled.
    pub(super) fn is_on(&self) -> bool {
        self.us > 0
    }

    /// Length of the next nap, in microseconds.
    pub(super) fn us(&self) -> u64 {
        if self.found_little { self.us } else { 0 }
    }

    /// Ends a tick that found this work, with so many active clients.
    pub(super) fn note_tick(&mut self, found: Work, active: u64) {
        self.found_little = (found.asked + found.answered) * FOUND_PART <= active;
    }

    /// Enables naps, given the latency.
    pub(super) fn adjust(&mut self, latency_us: u64) {
        self.us = (latency_us / LATENCY_PART).min(MAX_US);
    }

    pub(super) fn turn_off(&mut self) {
        self.us = 0;
    }
}
