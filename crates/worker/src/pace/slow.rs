//! Slow clients beside a busy crowd.

use super::PERIODS_PER_SECOND;

/// When nothing has happened for this long, in microseconds, before a batch goes, the batch has
/// waited for clients that had not sent anything.
const LULL_US: u64 = 150;
/// This many such batches …
const LULLS: u32 = 5;
/// … of this many in succession show that these clients are slow, not late for once. Chance decides
/// which clients are in a batch, so some batches between need not wait for any of them.
pub(super) const BATCHES: u32 = 16;
/// For how many periods slow clients are not waited for before they get another trial.
pub(super) const PERIODS: u32 = 2 * PERIODS_PER_SECOND;

/// The number of clients that batches do not wait for, since batches repeatedly went without them
/// or only got them after a lull. They get a trial now and then: if they are still slow, one batch
/// shows it.
#[derive(Debug, Default)]
pub(super) struct SlowClients {
    /// How long nothing had happened when the last tick began, in microseconds.
    lull_us: u64,
    count: u64,
    /// For how many more periods they are not waited for.
    periods: u32,
    /// How many more batches the trial lasts …
    trial: u32,
    /// … and the count from before the trial.
    known: u64,
    /// How many more batches are observed …
    left: u32,
    /// … how many of those went after a lull …
    lulls: u32,
    /// … and the fewest clients that were missing before one of them.
    absent: u64,
}

impl SlowClients {
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// A tick begins after nothing has happened for so long.
    pub(super) fn note_lull(&mut self, waited_us: u64) {
        self.lull_us = waited_us;
    }

    /// A batch goes. `absent` clients had not sent anything before the last wait; `absent_max` may
    /// be missing.
    pub(super) fn note_batch(&mut self, absent: u64, absent_max: u64) {
        let is_trial = self.trial > 0;
        self.trial = self.trial.saturating_sub(1);
        self.left = self.left.saturating_sub(1);
        if self.lull_us < LULL_US || absent <= absent_max {
            return;
        }
        if is_trial {
            self.leave_out(absent.min(self.known));
        }
        if self.left == 0 {
            (self.left, self.lulls, self.absent) = (BATCHES, 0, absent);
        }
        self.lulls += 1;
        self.absent = self.absent.min(absent);
        if self.lulls == LULLS {
            self.leave_out(self.absent);
            self.left = 0;
        }
    }

    fn leave_out(&mut self, count: u64) {
        self.count = self.count.max(count);
        self.periods = PERIODS;
    }

    pub(super) fn end_period(&mut self) {
        self.periods = self.periods.saturating_sub(1);
        if self.periods == 0 && self.count > 0 {
            self.known = std::mem::take(&mut self.count);
            self.trial = BATCHES;
        }
    }
}
