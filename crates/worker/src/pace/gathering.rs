//! Whether the clients are a crowd: clients that send their requests together are worth waiting
//! for.

use super::Share;

/// The fewest active clients that are a crowd.
const CLIENTS_MIN: u64 = 16;
/// They are one if this share of them, in percent, waits at the same time in a period …
const WAITING_PERCENT: u64 = 80;
/// … or if they keep the worker busy for this share of its time, in percent.
const BUSY_PERCENT: u64 = 70;
/// Under a wide window, this share of the batches, in percent, must be complete …
const COMPLETE_PERCENT: u64 = 50;
/// … or batches must have this many requests on average.
const BATCH_MIN: u64 = 20;
/// This share of the recent periods, in percent, must have had a crowd.
const PERIODS_PERCENT: u64 = 75;
/// Under a wide window, the worker must still be busy for this share of its time, in percent.
/// Otherwise there is time to spend on latency.
const BUSY_MIN_PERCENT: u64 = 40;

#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// Whether nearly all clients waited at the same time in this period.
    was_full: bool,
    /// Batches of this period that went because all the expected clients had sent something …
    complete: u64,
    /// … and because the window was over.
    expired: u64,
    /// The share of recent periods that had a crowd.
    crowded: Share,
}

/// What a period was like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Period {
    /// Clients that sent something recently.
    pub(super) active: u64,
    /// How often a client sent something while no reply was due to it.
    pub(super) asked: u64,
    /// Whether requests come before earlier ones are answered.
    pub(super) is_open_loop: bool,
    /// Whether batches waited long enough for a crowd.
    pub(super) is_wide: bool,
    pub(super) busy: Share,
}

impl Gathering {
    /// Whether most recent periods had a crowd.
    pub(super) fn is_crowd(&self) -> bool {
        self.crowded.is_at_least(PERIODS_PERCENT)
    }

    /// `waiting` of the `active` clients wait for a reply.
    pub(super) fn note_waiting(&mut self, waiting: u64, active: u64) {
        self.was_full |= active >= CLIENTS_MIN && waiting * 100 >= active * WAITING_PERCENT;
    }

    /// A batch goes because it is complete, or else because the window is over.
    pub(super) fn note_batch(&mut self, is_complete: bool) {
        self.complete += u64::from(is_complete);
        self.expired += u64::from(!is_complete);
    }

    pub(super) fn end_period(&mut self, period: Period) {
        let had_crowd = self.had_crowd(period);
        self.crowded.add(if had_crowd { Share::ALL } else { Share::NONE });
        (self.was_full, self.complete, self.expired) = (false, 0, 0);
    }

    /// Whether many clients sent their next request as soon as they had a reply. Waiting for all of
    /// them is free then, since there is nobody else to serve. Only a window wide enough for a
    /// crowd shows whether the crowd comes together and whether the wait was needed.
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
