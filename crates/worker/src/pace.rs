//! How long the loop waits before it looks for events, so that requests of many clients meet.
//!
//! Like interrupt moderation in a network card: when the worker is busy, a short pause lets more
//! requests and replies arrive, and what arrives together is written by one system call, here and
//! on the servers. When it is not busy a pause would only be delay.

use std::time::Duration;

/// The busy share is looked at over at least this much time.
const PERIOD_US: u64 = 2_000;
/// The window grows while the worker is busier than this, in percent …
const BUSY_PERCENT: u64 = 60;
/// … and shrinks while it is less busy than this.
const CALM_PERCENT: u64 = 40;
const STEP_US: u64 = 5;
/// With fewer events per turn there is nobody to wait for: those connected wait for each other.
const EVENTS_PER_TURN_MIN: u64 = 3;

/// The policy: told what each turn of the loop did, it says how long to wait before the next.
#[derive(Debug)]
pub(crate) struct Pace {
    window_us: u64,
    window_max_us: u64,
    busy_us: u64,
    total_us: u64,
    turns: u64,
    events: u64,
}

impl Pace {
    /// A window of at most `window_max_us` microseconds; 0 turns it off.
    pub(crate) fn new(window_max_us: u64) -> Self {
        Self { window_us: 0, window_max_us, busy_us: 0, total_us: 0, turns: 0, events: 0 }
    }

    pub(crate) fn window(&self) -> Duration {
        Duration::from_micros(self.window_us)
    }

    /// A turn is over: it waited (for events, or for the window), then worked on `events` events.
    pub(crate) fn turn(&mut self, waited_us: u64, worked_us: u64, events: u64) {
        self.busy_us += worked_us;
        self.total_us += waited_us + worked_us;
        self.turns += 1;
        self.events += events;
        if self.total_us < PERIOD_US {
            return;
        }
        let busy_percent = self.busy_us * 100 / self.total_us;
        let is_crowd = self.events >= EVENTS_PER_TURN_MIN * self.turns;
        if busy_percent < CALM_PERCENT || !is_crowd {
            self.window_us -= (2 * STEP_US).min(self.window_us);
        } else if busy_percent > BUSY_PERCENT {
            self.window_us = (self.window_us + STEP_US).min(self.window_max_us);
        }
        // After a long wait the past says nothing about the next turn.
        if waited_us >= PERIOD_US {
            self.window_us = 0;
        }
        (self.busy_us, self.total_us, self.turns, self.events) = (0, 0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pace: &mut Pace, turns: u32, waited_us: u64, worked_us: u64, events: u64) -> u64 {
        for _ in 0..turns {
            pace.turn(waited_us, worked_us, events);
        }
        pace.window_us
    }

    #[test]
    fn a_busy_worker_with_many_clients_waits_up_to_the_maximum() {
        let mut pace = Pace::new(50);
        assert_eq!(run(&mut pace, 1000, 10, 90, 10), 50);
    }

    #[test]
    fn a_calm_worker_does_not_wait() {
        let mut pace = Pace::new(50);
        run(&mut pace, 1000, 10, 90, 10);
        assert_eq!(run(&mut pace, 1000, 80, 20, 10), 0);
    }

    #[test]
    fn few_clients_wait_for_each_other_and_are_not_kept() {
        let mut pace = Pace::new(50);
        assert_eq!(run(&mut pace, 1000, 1, 99, 2), 0);
    }

    #[test]
    fn silence_ends_the_window_at_once() {
        let mut pace = Pace::new(50);
        run(&mut pace, 1000, 10, 90, 10);
        assert_eq!(run(&mut pace, 1, 10_000, 90, 10), 0);
    }

    #[test]
    fn zero_turns_it_off() {
        let mut pace = Pace::new(0);
        assert_eq!(run(&mut pace, 1000, 10, 90, 10), 0);
    }
}
