//! A server that came back gets reads bit by bit, where others can answer them.
//!
//! Its caches are cold, and all connections to it begin at once. So for a tenth of a second it gets one in
//! ten of the reads that are its turn, then two, four, eight, and then all. What only it can answer it gets
//! at once.

use std::cell::Cell;

use crate::base::time::Time;

/// How long each share lasts.
const STEP_MS: u64 = 100;
/// So many reads of [`WHOLE`] it gets, step by step.
const SHARES: [u32; 4] = [1, 2, 4, 8];
const WHOLE: u32 = 10;

/// The trial of one server, as one worker knows it. Over to begin with.
#[derive(Default)]
pub(crate) struct Trial {
    /// When it came back, while that matters.
    since: Cell<Option<Time>>,
    turn: Cell<u32>,
}

impl Trial {
    pub(crate) fn begin(&self, now: Time) {
        self.since.set(Some(now));
        self.turn.set(0);
    }

    #[inline]
    pub(crate) fn is_on(&self, now: Time) -> bool {
        self.since.get().is_some() && self.share(now).is_some()
    }

    /// Whether it gets this read.
    #[inline]
    pub(crate) fn admits(&self, now: Time) -> bool {
        self.since.get().is_none() || self.takes_turn(now)
    }

    #[cold]
    fn takes_turn(&self, now: Time) -> bool {
        let Some(share) = self.share(now) else { return true };
        let turn = self.turn.get();
        self.turn.set((turn + 1) % WHOLE);
        // Spread out: two of ten are the first and the sixth.
        turn * share % WHOLE < share
    }

    /// Of ten reads; `None` when the trial is over.
    #[cold]
    fn share(&self, now: Time) -> Option<u32> {
        let since = self.since.get()?;
        let step = now.micros_since(since) / (STEP_MS * 1000);
        let share = SHARES.get(step as usize).copied();
        if share.is_none() {
            self.since.set(None);
        }
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_back_gets_a_share_that_doubles_and_then_all() {
        let began = Time::ZERO.plus_millis(7000);
        let trial = Trial::default();
        assert!(trial.admits(began) && !trial.is_on(began), "it never failed");
        trial.begin(began);
        for (at, share) in [(0, 10), (99, 10), (100, 20), (200, 40), (399, 80), (400, 100)] {
            let now = began.plus_millis(at);
            assert_eq!(trial.is_on(now), share < 100, "at {at}");
            let admitted = (0..100).filter(|_| trial.admits(now)).count();
            assert_eq!(admitted, share, "at {at}");
        }
        trial.begin(began.plus_millis(1000));
        assert!(trial.is_on(began.plus_millis(1000)), "it failed again");
    }

    #[test]
    fn a_share_is_spread() {
        let trial = Trial::default();
        trial.begin(Time::ZERO);
        let now = Time::ZERO.plus_millis(150);
        let turns: Vec<usize> = (0..10).filter(|_| trial.admits(now)).collect();
        assert_eq!(turns.len(), 2);
        assert_eq!(turns[1] - turns[0], 5, "{turns:?}");
    }
}
