//! The servers of a backend as reads are dealt to them.

use std::cell::Cell;

use cashew_metrics::Writer;

use crate::base::id::{LaneId, ServerId};
use crate::base::table::Table;
use crate::base::time::Time;
use crate::topology::Health;
use crate::upstream::backend::Backend;
use crate::upstream::lane::Lane;
use crate::upstream::replica_reads::ReadingClient;

/// A server that was not measured for so long is, by the next read.
const MEASURE_EVERY_MS: u64 = 1000;

/// How much of the difference each measurement counts: one part in so many.
const WEIGHT: i64 = 8;

/// What one worker knows of servers at one time.
pub(crate) struct Servers<'a> {
    pub(crate) backend: &'a Backend,
    pub(crate) now: Time,
    /// For whom: without it replicas are not to be asked.
    pub(crate) reading: Option<Reading<'a>>,
}

/// Who reads, and what decides on whether a replica is good for that.
pub(crate) struct Reading<'a> {
    pub(crate) reader: ReadingClient,
    pub(crate) lanes: &'a Table<LaneId, Lane>,
    pub(crate) metrics: &'a Writer,
}

impl Health for Servers<'_> {
    #[inline]
    fn is_up(&self, server: ServerId) -> bool {
        self.backend.servers[server].is_up()
    }

    fn is_fit(&self, server: ServerId) -> bool {
        let Some(Reading { reader, lanes, metrics }) = &self.reading else { return false };
        self.backend.is_good_for(server, *reader, lanes, metrics, self.now)
    }

    fn latency(&self, server: ServerId) -> u32 {
        self.backend.servers[server].latency.average_us
    }

    fn takes_measurement(&self, server: ServerId) -> bool {
        self.backend.servers[server].latency.takes_measurement(self.now)
    }

    #[inline]
    fn is_on_trial(&self, server: ServerId) -> bool {
        self.backend.servers[server].trial.is_on(self.now)
    }

    #[inline]
    fn admits(&self, server: ServerId) -> bool {
        self.backend.servers[server].trial.admits(self.now)
    }

    #[inline]
    fn slow_from(&self) -> Option<u32> {
        let hedging = self.backend.hedging.as_ref()?;
        Some(u32::try_from(hedging.after_us).unwrap_or(u32::MAX))
    }
}

/// How long a server takes to answer, of late.
pub(crate) struct Latency {
    average_us: u32,
    /// When somebody has to find out anew.
    due_at: Cell<Time>,
}

impl Latency {
    pub(crate) fn new() -> Self {
        Self { average_us: 0, due_at: Cell::new(Time::ZERO) }
    }

    /// A reply took so long.
    pub(crate) fn add(&mut self, micros: u64, now: Time) {
        self.average_in(micros);
        self.due_at.set(now.plus_millis(MEASURE_EVERY_MS));
    }

    /// A reply has taken so long already.
    pub(crate) fn is_overdue(&mut self, micros: u64) {
        self.average_in(micros.max(self.average_us.into()));
    }

    fn average_in(&mut self, micros: u64) {
        let micros = i64::try_from(micros).unwrap_or(i64::MAX).min(u32::MAX.into());
        let average = i64::from(self.average_us);
        let next = if average == 0 { micros } else { average + (micros - average) / WEIGHT };
        self.average_us = u32::try_from(next).unwrap_or(u32::MAX).max(1);
    }

    fn takes_measurement(&self, now: Time) -> bool {
        let is_due = self.due_at.get() <= now;
        if is_due {
            self.due_at.set(now.plus_millis(MEASURE_EVERY_MS));
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_follows_and_is_asked_for_once_a_second() {
        let now = Time::ZERO.plus_millis(5000);
        let mut latency = Latency::new();
        assert!(latency.takes_measurement(now));
        assert!(!latency.takes_measurement(now), "it is on its way");
        latency.add(1000, now);
        assert_eq!(latency.average_us, 1000);
        for _ in 0..60 {
            latency.add(20_000, now);
        }
        assert!((19_900..=20_000).contains(&latency.average_us), "{}", latency.average_us);
        latency.add(u64::MAX, now);
        assert!(!latency.takes_measurement(now.plus_millis(999)));
        assert!(latency.takes_measurement(now.plus_millis(1000)));
    }
}
