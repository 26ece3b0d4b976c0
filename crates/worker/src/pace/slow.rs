//! Who is slow beside a busy crowd.

use super::PERIODS_PER_SECOND;

/// Where so many batches in succession go …
pub(super) const BATCHES: u32 = 3;
/// … after nothing has happened for so long, in microseconds, the clients that had not asked before are
/// slow.
const LULL_US: u64 = 150;

/// How many clients are not waited for, because batches went again and again without them, or only when
/// they had asked after a lull. It is tried anew after a second.
#[derive(Debug, Default)]
pub(super) struct SlowClients {
    /// How long nothing had happened when the last turn began, in microseconds.
    lull_us: u64,
    /// Batches that went in succession after a lull …
    batches: u32,
    /// … and how many clients had not asked before it, at least.
    absent: u64,
    count: u64,
    /// For so many periods more they are not waited for.
    periods: u32,
}

impl SlowClients {
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// A turn begins after nothing has happened for so long.
    pub(super) fn note_lull(&mut self, waited_us: u64) {
        self.lull_us = waited_us;
    }

    /// A batch goes for which so many clients had not asked before the last wait.
    pub(super) fn note_batch(&mut self, absent: u64) {
        if self.lull_us < LULL_US || absent == 0 {
            self.batches = 0;
            return;
        }
        let before = if self.batches == 0 { u64::MAX } else { self.absent };
        self.absent = absent.min(before);
        self.batches += 1;
        if self.batches >= BATCHES {
            (self.count, self.periods) = (self.absent, PERIODS_PER_SECOND);
        }
    }

    pub(super) fn end_period(&mut self) {
        self.periods = self.periods.saturating_sub(1);
        if self.periods == 0 {
            self.count = 0;
        }
    }
}
