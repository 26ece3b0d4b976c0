//! Whether clients ask together: they are a crowd, which is worth waiting for.

use super::Share;

/// So many active clients, at least, are a crowd …
const CLIENTS_MIN: u64 = 16;
/// … if so many of them, in percent, wait at some time in a period …
const WAITING_PERCENT: u64 = 80;
/// … or keep the worker busy for so much of its time, in percent …
const BUSY_PERCENT: u64 = 70;
/// … and so many of its batches, in percent, go because those who were waited for have asked …
const COMPLETE_PERCENT: u64 = 50;
/// … or batches are of so many requests, on average …
const BATCH_MIN: u64 = 20;
/// … in so many of the periods lately, in percent …
const PERIODS_PERCENT: u64 = 75;
/// … and unless the worker is busy for less of its time, in percent, although it waits for the crowd:
/// there is time to be spent on latency.
const BUSY_MIN_PERCENT: u64 = 40;

#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// Whether nearly all waited at some time in this period.
    was_full: bool,
    /// Batches of this period that went because those who were waited for had asked …
    complete: u64,
    /// … and because the window was over.
    expired: u64,
    /// Of the periods, how many had a crowd.
    crowded: Share,
}

/// What a period was like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Period {
    /// Clients that asked lately.
    pub(super) active: u64,
    /// Times that a client asked that was owed nothing.
    pub(super) asked: u64,
    /// Whether requests come though those before them have not been answered.
    pub(super) is_open_loop: bool,
    /// Whether batches have waited long enough for a crowd.
    pub(super) is_wide: bool,
    pub(super) busy: Share,
}

impl Gathering {
    /// Whether there has been a crowd in most periods lately.
    pub(super) fn is_crowd(&self) -> bool {
        self.crowded.is_at_least(PERIODS_PERCENT)
    }

    /// So many of the active clients wait for an answer.
    pub(super) fn note_waiting(&mut self, waiting: u64, active: u64) {
        self.was_full |= active >= CLIENTS_MIN && waiting * 100 >= active * WAITING_PERCENT;
    }

    /// A batch goes, because those who were waited for have asked or because the window is over.
    pub(super) fn note_batch(&mut self, is_complete: bool) {
        self.complete += u64::from(is_complete);
        self.expired += u64::from(!is_complete);
    }

    pub(super) fn end_period(&mut self, period: Period) {
        let had_crowd = self.had_crowd(period);
        self.crowded.add(if had_crowd { Share::ALL } else { Share::NONE });
        (self.was_full, self.complete, self.expired) = (false, 0, 0);
    }

    /// Whether many clients asked in this period who ask again as soon as they are answered: to
    /// wait for all of them costs nobody anything, since nobody else could have been served. Only
    /// a window that is wide enough for a crowd tells whether it comes together, or at least much
    /// of it, and whether that was needed.
    fn had_crowd(&self, period: Period) -> bool {
        if period.is_open_loop || period.active < CLIENTS_MIN {
            return false;
        }
        if !period.is_wide {
            return self.was_full || period.busy.is_at_least(BUSY_PERCENT);
        }
        let batches = self.complete + self.expired;
        let comes_together = self.complete * 100 >= batches * COMPLETE_PERCENT
            || period.asked >= batches * BATCH_MIN;
        comes_together && period.busy.is_at_least(BUSY_MIN_PERCENT)
    }
}
