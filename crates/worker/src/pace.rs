//! When what gains from company is written: at once, or a little later together with others.
//!
//! Like interrupt moderation in a network card: when there is much to do, requests of many clients
//! meet in one write, and so do their replies on the way back. A reply that completes what its
//! client is owed never waits: the client asks again when it has it. docs/performance.md compares
//! this policy with others.

use std::time::Duration;

use cashew_engine::{Crowd, Time};

/// The window is adjusted after at least this much time.
const PERIOD_US: u64 = 2_000;
/// A wait longer than this found nothing to do.
const SLEEP_MIN_US: u64 = 3;
/// With so many requests answered between two sleeps there is no window …
const REQUESTS_PER_SLEEP_MIN: u64 = 5;
/// … and with so many it is the longest.
const REQUESTS_PER_SLEEP_MAX: u64 = 10;
/// A client that comes is as much to do as so many requests: it is accepted, watched and closed, and
/// what it costs the kernel to connect and to part is more than a request is.
const REQUESTS_PER_CLIENT: u64 = 8;
/// The window goes this part of the way to where it should be.
const SMOOTHING: u64 = 8;
/// When so many of the active clients wait, in percent, the others are not waited for.
const WAITING_PERCENT: u64 = 70;
/// Fractions of a microsecond, so that small steps are not lost.
const FRACTION: u64 = 256;

/// The policy: told what each turn of the loop did, it says whether what is held back goes now.
#[derive(Debug)]
pub(crate) struct Pace {
    window_max_us: u64,
    /// In microseconds times [`FRACTION`].
    window: u64,
    /// By when that goes that is held back.
    due: Option<Time>,
    elapsed_us: u64,
    sleeps: u64,
    /// What had been done when the window was adjusted last.
    work: Work,
}

/// What has been done since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Requests that were answered.
    pub(crate) answered: u64,
    /// Clients that came.
    pub(crate) clients: u64,
}

impl Work {
    /// How much that is in requests.
    fn requests(self) -> u64 {
        self.answered + self.clients * REQUESTS_PER_CLIENT
    }
}

impl Pace {
    /// A window of at most `window_max_us` microseconds; 0 turns it off.
    pub(crate) fn new(window_max_us: u64) -> Self {
        Self {
            window_max_us,
            window: 0,
            due: None,
            elapsed_us: 0,
            sleeps: 0,
            work: Work::default(),
        }
    }

    /// From now on a window of at most so many microseconds.
    pub(crate) fn set_window_max_us(&mut self, window_max_us: u64) {
        self.window_max_us = window_max_us;
        self.window = self.window.min(window_max_us * FRACTION);
    }

    /// How long something may be held back now, in microseconds.
    pub(crate) fn window_us(&self) -> u64 {
        self.window / FRACTION
    }

    /// Whether what is held back goes now: it has waited for the whole window, or so many clients
    /// wait for answers that hardly anybody is left who could ask.
    pub(crate) fn may_go(&mut self, crowd: &Crowd, now: Time) -> bool {
        let window = Duration::from_micros(self.window_us());
        let due = *self.due.get_or_insert(now + window);
        let is_crowd_complete =
            u64::from(crowd.waiting) * 100 >= u64::from(crowd.active()) * WAITING_PERCENT;
        let may_go = is_crowd_complete || due <= now;
        if may_go {
            self.due = None;
        }
        may_go
    }

    /// By when [`Pace::may_go`] is to be asked again.
    pub(crate) fn due(&self) -> Option<Time> {
        self.due
    }

    /// A turn is over: it waited for events, then worked on them, and this is what has been done up
    /// to now. Returns whether the window was looked at.
    pub(crate) fn turn(&mut self, waited_us: u64, worked_us: u64, work: Work) -> bool {
        self.elapsed_us += waited_us + worked_us;
        self.sleeps += u64::from(waited_us > SLEEP_MIN_US);
        if self.elapsed_us < PERIOD_US {
            return false;
        }
        let per_sleep = (work.requests() - self.work.requests()) / self.sleeps.max(1);
        let span = REQUESTS_PER_SLEEP_MAX - REQUESTS_PER_SLEEP_MIN;
        let degree = per_sleep.saturating_sub(REQUESTS_PER_SLEEP_MIN).min(span);
        let target = self.window_max_us * FRACTION * degree / span;
        // After a long wait the past says nothing about the next turn.
        self.window = match waited_us < PERIOD_US {
            true => self.window - self.window / SMOOTHING + target / SMOOTHING,
            false => 0,
        };
        (self.elapsed_us, self.sleeps, self.work) = (0, 0, work);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns of 100 µs with so many requests, which begin with a sleep or not.
    fn run(pace: &mut Pace, turns: u64, requests: u64, sleeps: bool) -> u64 {
        run_with(pace, turns, Work { answered: requests, clients: 0 }, sleeps)
    }

    /// Turns of 100 µs that do so much each.
    fn run_with(pace: &mut Pace, turns: u64, each: Work, sleeps: bool) -> u64 {
        for _ in 0..turns {
            let mut work = pace.work;
            work.answered += each.answered * (pace.elapsed_us / 100 + 1);
            work.clients += each.clients * (pace.elapsed_us / 100 + 1);
            let waited_us = if sleeps { 20 } else { 0 };
            pace.turn(waited_us, 100 - waited_us, work);
        }
        pace.window_us()
    }

    #[test]
    fn much_to_do_opens_the_window_up_to_the_maximum() {
        let mut pace = Pace::new(200);
        assert!((190..=200).contains(&run(&mut pace, 2000, 12, true)));
        let mut pace = Pace::new(200);
        assert!((190..=200).contains(&run(&mut pace, 2000, 1, false)));
    }

    #[test]
    fn little_to_do_closes_it() {
        let mut pace = Pace::new(200);
        run(&mut pace, 2000, 12, true);
        assert_eq!(run(&mut pace, 2000, 4, true), 0);
    }

    #[test]
    fn clients_that_come_for_one_request_open_it() {
        let mut pace = Pace::new(200);
        // One or two of them find company in a wake-up; one alone takes three for itself.
        let window = run_with(&mut pace, 2000, Work { answered: 1, clients: 1 }, true);
        assert!(window > 100, "{window}");
        assert_eq!(run(&mut pace, 2000, (1 + REQUESTS_PER_CLIENT) / 3, true), 0);
    }

    #[test]
    fn silence_closes_it_at_once() {
        let mut pace = Pace::new(200);
        run(&mut pace, 2000, 12, true);
        let work = pace.work;
        assert!(pace.turn(10_000, 10, work));
        assert_eq!(pace.window_us(), 0);
    }

    #[test]
    fn a_smaller_maximum_counts_at_once() {
        let mut pace = Pace::new(200);
        run(&mut pace, 2000, 12, true);
        pace.set_window_max_us(20);
        assert_eq!(pace.window_us(), 20);
        run(&mut pace, 2000, 12, true);
        assert!(pace.window_us() <= 20);
    }

    #[test]
    fn zero_turns_it_off() {
        let mut pace = Pace::new(0);
        assert_eq!(run(&mut pace, 2000, 12, true), 0);
        assert!(pace.may_go(&Crowd::default(), Time::ZERO));
    }

    #[test]
    fn what_is_held_back_goes_when_the_window_is_over_or_nobody_is_left() {
        let mut pace = Pace::new(200);
        run(&mut pace, 2000, 12, true);
        let window = Duration::from_micros(pace.window_us());
        let mut crowd = Crowd::with(6, 10);
        let now = Time::from_micros(1_000_000);
        assert!(!pace.may_go(&crowd, now));
        assert_eq!(pace.due(), Some(now + window));
        assert!(!pace.may_go(&crowd, now + window / 2));
        assert!(pace.may_go(&crowd, now + window));
        assert_eq!(pace.due(), None);
        crowd = Crowd::with(7, 10);
        assert!(pace.may_go(&crowd, now));
    }
}
