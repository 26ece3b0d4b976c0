//! Who is slow beside a busy crowd.

use super::PERIODS_PER_SECOND;

/// After nothing has happened for so long, in microseconds, a batch has waited for clients that had not
/// asked before.
const LULL_US: u64 = 150;
/// So many such batches …
const LULLS: u32 = 5;
/// … of so many in succession show that these are slow, not late for once. Which of them ask is a matter
/// of chance, so that batches between may need to wait for nobody.
pub(super) const BATCHES: u32 = 16;
/// For so long they are not waited for, before it is tried anew.
pub(super) const PERIODS: u32 = 2 * PERIODS_PER_SECOND;

/// How many clients are not waited for, because batches went again and again without them, or only when
/// they had asked after a lull. It is tried anew now and then: if they are slow still, one batch shows it.
#[derive(Debug, Default)]
pub(super) struct SlowClients {
    /// How long nothing had happened when the last turn began, in microseconds.
    lull_us: u64,
    count: u64,
    /// For so many periods more they are not waited for.
    periods: u32,
    /// It is tried anew for so many batches more …
    trial: u32,
    /// … and so many were not waited for before.
    known: u64,
    /// So many batches more are looked at …
    left: u32,
    /// … of which so many went after a lull …
    lulls: u32,
    /// … before which so many clients had not asked, at least.
    absent: u64,
}

impl SlowClients {
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// A turn begins after nothing has happened for so long.
    pub(super) fn note_lull(&mut self, waited_us: u64) {
        self.lull_us = waited_us;
    }

    /// A batch goes for which so many clients had not asked before the last wait, and so many need not
    /// have.
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
