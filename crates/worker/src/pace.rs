//! When what gains from company is written: at once, or a little later together with others.
//!
//! Like interrupt moderation in a network card: when there is much to do, requests of many clients
//! meet in one write, and so do their replies on the way back. A reply that completes what its
//! client is owed never waits: the client asks again when it has it. Where nearly all clients wait
//! at a time they are a crowd, which is worth waiting for: all of it comes back when it has been
//! answered, sooner than a window for it is over. Clients that ask before they have been answered
//! are an open loop: their requests come whatever is done, and to wait costs them latency.
//!
//! Who is slow is not waited for: where batches go again and again after nothing has happened for long,
//! those who had not asked before are left out of the crowd for a while.
//!
//! A timer that rings within the kernel's tick costs about as much as being woken does. So under a
//! wide window the worker trusts that something will wake it before long, and sets a timer for the
//! longest only that anything may be held back; when that has rung, it does not trust for a while.
//!
//! While many such clients keep the worker busy and little comes at a time, it also naps: what comes
//! meanwhile, from clients and from servers, is found together.
//! docs/performance.md compares this policy with others.

use std::time::Duration;

use cashew_engine::{Crowd, Time};

/// The longest window, in microseconds, unless less is asked for: longer ones gain nothing.
const WINDOW_MAX_US: u64 = 600;
/// The window is adjusted after at least this much time.
const PERIOD_US: u64 = 2_000;
/// A wait longer than this found nothing to do.
const SLEEP_MIN_US: u64 = 3;
/// With so many requests answered between two sleeps there is no window …
const REQUESTS_PER_SLEEP_MIN: u64 = 5;
/// … with so many it is a third of the longest …
const REQUESTS_PER_SLEEP_THIRD: u64 = 10;
/// … and with so many it is the longest, unless the load is an open loop.
const REQUESTS_PER_SLEEP_MAX: u64 = 20;
/// A client that comes is as much to do as so many requests: it is accepted, watched and closed, and
/// what it costs the kernel to connect and to part is more than a request is.
const REQUESTS_PER_CLIENT: u64 = 8;
/// The window goes this part of the way to where it should be.
const SMOOTHING: u64 = 8;
/// A window is wide that has so much, in percent, of the longest.
const WIDE_PERCENT: u64 = 75;
/// When all active clients but one of so many wait, that one is not waited for …
const CLIENTS_PER_ABSENT: u64 = 50;
/// … nor is one of so many, if there are no more …
const CLIENTS_MIN_FOR_ABSENT: u64 = 20;
/// … if as many of the active ones, in percent, have sent something since the last batch went, or
/// the window is not wide. Where nearly all wait all the time, as with pipelines, batches are
/// otherwise of what a turn happens to find.
const ANEW_PERCENT: u64 = 40;

/// Where so many batches in succession go …
const SLOW_BATCHES: u32 = 3;
/// … after nothing has happened for so long, in microseconds, the clients that had not asked before
/// are slow: as many are not waited for …
const LULL_US: u64 = 150;
/// … for so many periods, about a second.
const SLOW_PERIODS: u32 = 500;

/// So many active clients, at least, are a crowd …
const CROWD_MIN: u64 = 16;
/// … if so many of them, in percent, wait at some time in a period …
const CROWD_WAITING_PERCENT: u64 = 80;
/// … or keep the worker busy for so much of its time, in percent …
const CROWD_BUSY_PERCENT: u64 = 70;
/// … and so many of its batches, in percent, go because those who were waited for have asked …
const CROWD_COMPLETE_PERCENT: u64 = 50;
/// … or batches are of so many requests, on average …
const CROWD_BATCH_MIN: u64 = 20;
/// … in so many of the periods lately, in percent …
const CROWD_PERIODS_PERCENT: u64 = 75;
/// … unless so few requests are answered between two sleeps: then it is the servers who are waited for.
const CROWD_REQUESTS_PER_SLEEP_MIN: u64 = 3;
/// … and unless the worker is busy for less of its time, in percent, although it waits for the crowd:
/// there is time to be spent on latency.
const CROWD_BUSY_MIN_PERCENT: u64 = 40;

/// Where clients send something while they are still owed an answer, so often in a period at least …
const HASTY_MIN: u64 = 3;
/// … and with so many of all sends, in percent, the load is an open loop …
const HASTY_PERCENT: u64 = 5;
/// … and is taken for one for so many periods more, about five seconds: to try a wider window on
/// it costs latency.
const OPEN_PERIODS: u32 = 2_500;

/// When a batch has waited for the longest time that it may, every window ends by a timer of its own
/// for so many periods, about a second: a batch in a thousand at most is so late.
const DISTRUST_PERIODS: u32 = 500;

/// With so many active clients, at least, and a wide window the worker naps …
const NAP_CLIENTS_MIN: u64 = 64;
/// … if it is busy for so much of its time, in percent: otherwise it waits for servers, and to sleep
/// once more costs more than it saves …
const NAP_BUSY_MIN_PERCENT: u64 = 70;
/// … after a turn that found less than this part of them asking or answered …
const NAP_FOUND_PART: u64 = 6;
/// … for this part of the time that an answer takes …
const NAP_LATENCY_PART: u64 = 20;
/// … and no longer than this: beyond, queues grow and other processors idle.
const NAP_MAX_US: u64 = 50;

/// Fractions of a microsecond, so that small steps are not lost.
const FRACTION: u64 = 256;

/// The policy: told what each turn of the loop did, it says whether what is held back goes now.
#[derive(Debug)]
pub(crate) struct Pace {
    window_max_us: u64,
    /// Nothing is ever held back for longer.
    hold_max: Duration,
    /// In microseconds times [`FRACTION`].
    window: u64,
    held: Option<Held>,
    /// How long nothing had happened when the last turn began, in microseconds.
    lull_us: u64,
    /// Batches that went in succession after a lull …
    idle_batches: u32,
    /// … and how many clients had not asked before it, at least.
    idle_absent: u64,
    /// How many clients are not waited for, because they are slow …
    slow: u64,
    /// … for so many periods more.
    slow_periods: u32,
    /// How often something had come from clients when the last batch went.
    received: u64,
    elapsed_us: u64,
    worked_us: u64,
    sleeps: u64,
    /// What had been done when the window was adjusted last.
    work: Work,
    /// Whether nearly all waited at some time in this period.
    was_full: bool,
    /// Batches of this period that went because those who were waited for had asked …
    complete: u64,
    /// … and because the window was over.
    expired: u64,
    /// The share of periods that had a crowd, smoothed, times [`FRACTION`].
    crowded: u64,
    /// For so many periods more nothing is trusted to wake the worker in time.
    distrust_periods: u32,
    /// The share of time that the worker was busy, smoothed, times [`FRACTION`].
    busy: u64,
    /// For so many periods more the load is taken for an open loop.
    open_periods: u32,
    /// How long a nap is, in microseconds; 0 for none.
    nap_us: u64,
    /// What had been done when the last turn ended.
    last: Work,
    /// Whether the last turn found little to do.
    found_little: bool,
}

/// By when that goes that is held back.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// The window is over: it goes as soon as anything happens.
    due: Time,
    /// It goes.
    latest: Time,
    /// So many clients waited when it was looked at last.
    waiting: u64,
}

/// What has been done since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Requests that were answered.
    pub(crate) answered: u64,
    /// Clients that came.
    pub(crate) clients: u64,
    /// Times that a client asked that was owed nothing …
    pub(crate) asked: u64,
    /// … and that one sent something while it was still owed an answer.
    pub(crate) hasty: u64,
}

impl Work {
    /// What has been done since `before`.
    fn since(self, before: Self) -> Self {
        Self {
            answered: self.answered - before.answered,
            clients: self.clients - before.clients,
            asked: self.asked - before.asked,
            hasty: self.hasty - before.hasty,
        }
    }

    /// Whether requests come though those before them have not been answered.
    fn is_open_loop(self) -> bool {
        let sends = self.asked + self.hasty;
        self.hasty >= HASTY_MIN && self.hasty * 100 >= sends * HASTY_PERCENT
    }

    /// How much that is in requests.
    fn requests(self) -> u64 {
        self.answered + self.clients * REQUESTS_PER_CLIENT
    }
}

impl Pace {
    /// Nothing is held back for longer than `hold_max_us` microseconds; 0 turns it off.
    pub(crate) fn new(hold_max_us: u64) -> Self {
        Self {
            window_max_us: hold_max_us.min(WINDOW_MAX_US),
            hold_max: Duration::from_micros(hold_max_us),
            window: 0,
            held: None,
            lull_us: 0,
            idle_batches: 0,
            idle_absent: 0,
            slow: 0,
            slow_periods: 0,
            received: 0,
            elapsed_us: 0,
            worked_us: 0,
            sleeps: 0,
            work: Work::default(),
            was_full: false,
            complete: 0,
            expired: 0,
            crowded: 0,
            distrust_periods: 0,
            busy: 0,
            open_periods: 0,
            nap_us: 0,
            last: Work::default(),
            found_little: false,
        }
    }

    /// From now on nothing is held back for longer than so many microseconds.
    pub(crate) fn set_hold_max_us(&mut self, hold_max_us: u64) {
        self.window_max_us = hold_max_us.min(WINDOW_MAX_US);
        self.hold_max = Duration::from_micros(hold_max_us);
        self.window = self.window.min(self.window_max_us * FRACTION);
        self.nap_us = 0;
    }

    /// How long something may be held back now, in microseconds.
    pub(crate) fn window_us(&self) -> u64 {
        self.window / FRACTION
    }

    /// Whether what is held back goes now: it has waited for the whole window, or so many clients
    /// wait for answers that hardly anybody is left who could ask, many of them with something new.
    pub(crate) fn may_go(&mut self, crowd: &Crowd, now: Time) -> bool {
        let (waiting, active) = (u64::from(crowd.waiting), u64::from(crowd.active()));
        let window = Duration::from_micros(self.window / FRACTION);
        let hold_max = self.hold_max;
        let first = Held { due: now + window, latest: now + hold_max, waiting: active };
        let held = *self.held.get_or_insert(first);
        self.was_full |= active >= CROWD_MIN && waiting * 100 >= active * CROWD_WAITING_PERCENT;
        let anew = crowd.received - self.received;
        let is_batch = anew * 100 >= active * ANEW_PERCENT || !self.is_wide();
        let is_complete = waiting + self.slow.max(absent_max(active)) >= active && is_batch;
        let may_go = is_complete || held.due <= now;
        if may_go {
            self.complete += u64::from(is_complete);
            self.expired += u64::from(!is_complete);
            if !is_complete && held.latest <= now {
                self.distrust_periods = DISTRUST_PERIODS;
            }
            self.learn_slow(active.saturating_sub(held.waiting));
            self.go(crowd);
        } else {
            self.held = Some(Held { waiting, ..held });
        }
        may_go
    }

    /// A batch goes for which so many clients had not asked before the last wait.
    fn learn_slow(&mut self, absent: u64) {
        if self.lull_us < LULL_US || absent == 0 {
            self.idle_batches = 0;
            return;
        }
        let before = if self.idle_batches == 0 { u64::MAX } else { self.idle_absent };
        self.idle_absent = absent.min(before);
        self.idle_batches += 1;
        if self.idle_batches >= SLOW_BATCHES {
            (self.slow, self.slow_periods) = (self.idle_absent, SLOW_PERIODS);
        }
    }

    /// What is held back goes now, whoever could still ask.
    pub(crate) fn go(&mut self, crowd: &Crowd) {
        self.held = None;
        self.received = crowd.received;
    }

    /// When [`Pace::may_go`] is to be asked again though nothing has happened.
    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.held.map(|held| if self.is_trusting() { held.latest } else { held.due })
    }

    /// How long to sleep before events are looked for.
    pub(crate) fn nap(&self) -> Duration {
        Duration::from_micros(if self.found_little { self.nap_us } else { 0 })
    }

    /// A turn is over: it waited for events, then worked on them, and this is what has been done up
    /// to now, with so many active clients. Returns whether the window was looked at.
    pub(crate) fn turn(&mut self, waited_us: u64, worked_us: u64, work: Work, active: u32) -> bool {
        self.elapsed_us += waited_us + worked_us;
        self.worked_us += worked_us;
        self.lull_us = waited_us;
        // A nap is no sign that there was nothing to do.
        let nap_us = self.nap().as_micros() as u64;
        self.sleeps += u64::from(waited_us > nap_us + SLEEP_MIN_US);
        let found = work.since(std::mem::replace(&mut self.last, work));
        self.found_little = (found.asked + found.answered) * NAP_FOUND_PART <= u64::from(active);
        if self.elapsed_us < PERIOD_US {
            return false;
        }
        let done = work.since(self.work);
        let per_sleep = done.requests() / self.sleeps.max(1);
        self.open_periods = match done.is_open_loop() {
            true => OPEN_PERIODS,
            false => self.open_periods.saturating_sub(1),
        };
        let busy = self.worked_us * FRACTION / self.elapsed_us;
        self.busy = self.busy - self.busy / SMOOTHING + busy / SMOOTHING;
        let now = if self.had_crowd(done.asked, active) { FRACTION } else { 0 };
        self.crowded = self.crowded - self.crowded / SMOOTHING + now / SMOOTHING;
        self.distrust_periods = self.distrust_periods.saturating_sub(1);
        self.slow_periods = self.slow_periods.saturating_sub(1);
        if self.slow_periods == 0 {
            self.slow = 0;
        }
        (self.was_full, self.complete, self.expired) = (false, 0, 0);
        let target = self.target(per_sleep);
        // After a long wait the past says nothing about the next turn.
        self.window = match waited_us < PERIOD_US {
            true => self.window - self.window / SMOOTHING + target / SMOOTHING,
            false => 0,
        };
        self.nap_us = self.nap_for(done.answered, u64::from(active));
        (self.elapsed_us, self.worked_us, self.sleeps, self.work) = (0, 0, 0, work);
        true
    }

    /// Whether many clients asked in this period who ask again as soon as they are answered: to
    /// wait for all of them costs nobody anything, since nobody else could have been served. Only
    /// a window that is wide enough for a crowd tells whether it comes together, or at least much
    /// of it, and whether that was needed.
    fn had_crowd(&self, asked: u64, active: u32) -> bool {
        if self.open_periods > 0 || u64::from(active) < CROWD_MIN {
            return false;
        }
        if !self.is_wide() {
            return self.was_full || self.is_busy_for(CROWD_BUSY_PERCENT);
        }
        let batches = self.complete + self.expired;
        let comes_together = self.complete * 100 >= batches * CROWD_COMPLETE_PERCENT
            || asked >= batches * CROWD_BATCH_MIN;
        comes_together && self.is_busy_for(CROWD_BUSY_MIN_PERCENT)
    }

    /// Whether something is taken to happen soon, so that the window's end needs no timer.
    fn is_trusting(&self) -> bool {
        self.is_wide() && self.open_periods == 0 && self.distrust_periods == 0
    }

    /// Whether the worker was busy for so much of its time lately.
    fn is_busy_for(&self, percent: u64) -> bool {
        self.busy * 100 >= FRACTION * percent
    }

    /// Whether the window is about as long as it may be.
    fn is_wide(&self) -> bool {
        self.window_max_us > 0 && self.window * 100 >= self.window_max_us * FRACTION * WIDE_PERCENT
    }

    /// How long a nap should be, in microseconds, if in this period so much was answered.
    fn nap_for(&self, answered: u64, active: u64) -> u64 {
        let is_busy = self.is_busy_for(NAP_BUSY_MIN_PERCENT);
        if active < NAP_CLIENTS_MIN || !is_busy || !self.is_wide() || self.open_periods > 0 {
            return 0;
        }
        // Little's law: an answer takes as long as so many take who wait at a time.
        let latency_us = active * self.elapsed_us / answered.max(1);
        (latency_us / NAP_LATENCY_PART).min(NAP_MAX_US)
    }

    /// Where the window should be, given how many requests were answered between two sleeps.
    fn target(&self, per_sleep: u64) -> u64 {
        let max = self.window_max_us * FRACTION;
        let is_crowd = self.crowded * 100 >= FRACTION * CROWD_PERIODS_PERCENT;
        if is_crowd && per_sleep >= CROWD_REQUESTS_PER_SLEEP_MIN {
            return max;
        }
        let between =
            |from: u64, to: u64| (per_sleep.clamp(from, to) - from) * FRACTION / (to - from);
        let third = between(REQUESTS_PER_SLEEP_MIN, REQUESTS_PER_SLEEP_THIRD);
        let rest = match self.open_periods {
            0 => between(REQUESTS_PER_SLEEP_THIRD, REQUESTS_PER_SLEEP_MAX),
            _ => 0,
        };
        max / 3 * (third + 2 * rest) / FRACTION
    }
}

/// How many of the active clients are not waited for.
fn absent_max(active: u64) -> u64 {
    (active + CLIENTS_PER_ABSENT - CLIENTS_MIN_FOR_ABSENT) / CLIENTS_PER_ABSENT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns of 100 µs with so many requests, which begin with a sleep or not.
    fn run(pace: &mut Pace, turns: u64, requests: u64, sleeps: bool) -> u64 {
        run_with(pace, turns, Work { answered: requests, ..Work::default() }, sleeps)
    }

    /// Turns of 100 µs that do so much each.
    fn run_with(pace: &mut Pace, turns: u64, each: Work, sleeps: bool) -> u64 {
        for _ in 0..turns {
            let mut work = pace.work;
            work.answered += each.answered * (pace.elapsed_us / 100 + 1);
            work.clients += each.clients * (pace.elapsed_us / 100 + 1);
            work.asked += each.asked * (pace.elapsed_us / 100 + 1);
            work.hasty += each.hasty * (pace.elapsed_us / 100 + 1);
            let waited_us = if sleeps { 20 } else { 0 };
            pace.turn(waited_us, 100 - waited_us, work, 10);
        }
        pace.window_us()
    }

    /// Periods in which so many of fifty clients wait at most. They are answered four to a sleep, and
    /// the worker is busy for so much of its time.
    fn run_crowd(pace: &mut Pace, periods: u64, waiting: u32, busy_percent: u64) -> u64 {
        run_asking(pace, periods, waiting, busy_percent, 0)
    }

    /// As [`run_crowd`]: periods of one batch of so many requests, for which the window is over.
    fn run_batches(pace: &mut Pace, periods: u64, requests: u64) -> u64 {
        run_asking(pace, periods, 30, 90, requests)
    }

    fn run_asking(
        pace: &mut Pace,
        periods: u64,
        waiting: u32,
        busy_percent: u64,
        asked: u64,
    ) -> u64 {
        let mut now = Time::from_micros(1_000_000);
        let mut crowd = Crowd::with(waiting, 50);
        crowd.received = pace.received;
        for _ in 0..periods {
            crowd.received += 50;
            pace.may_go(&crowd, now);
            now = pace.wake_at().unwrap_or(now);
            pace.may_go(&crowd, now);
            let mut work = pace.work;
            work.answered += 4;
            work.asked += asked;
            let worked_us = PERIOD_US * busy_percent / 100;
            pace.turn(PERIOD_US - worked_us - 1, worked_us + 1, work, 50);
            // That was several waits.
            pace.lull_us = 0;
        }
        pace.window_us()
    }

    #[test]
    fn much_to_do_opens_the_window() {
        let mut pace = Pace::new(600);
        assert!((190..=200).contains(&run(&mut pace, 2000, 10, true)));
        let mut pace = Pace::new(600);
        assert!((390..=400).contains(&run(&mut pace, 2000, 15, true)));
        let mut pace = Pace::new(600);
        assert!((590..=600).contains(&run(&mut pace, 2000, 1, false)));
    }

    #[test]
    fn an_open_loop_has_a_third_of_it_at_most() {
        let mut pace = Pace::new(600);
        let closed = Work { answered: 30, asked: 30, ..Work::default() };
        run_with(&mut pace, 2000, closed, true);
        let start = pace.window_us();
        let hasty = Work { hasty: 2, ..closed };
        assert!((190..=210).contains(&run_with(&mut pace, 2000, hasty, true)), "from {start}");
        // It is remembered for a while, and forgotten.
        assert!((190..=210).contains(&run_with(&mut pace, 2000, closed, true)));
        let turns = u64::from(OPEN_PERIODS) * PERIOD_US / 100;
        assert!((590..=600).contains(&run_with(&mut pace, turns, closed, true)));
        // A few clients that do not wait make no open loop.
        let few = Work { answered: 300, asked: 300, hasty: 1, ..Work::default() };
        assert!((590..=600).contains(&run_with(&mut pace, 2000, few, true)));
        // Nor do they hide a crowd …
        pace.open_periods = 0;
        assert!(run_crowd(&mut pace, 200, 49, 90) > 590);
        // … which an open loop is not.
        pace.open_periods = OPEN_PERIODS;
        assert_eq!(run_crowd(&mut pace, 200, 49, 90), 0);
    }

    #[test]
    fn a_crowd_that_comes_together_opens_it_to_the_maximum() {
        let mut pace = Pace::new(600);
        assert!((590..=600).contains(&run_crowd(&mut pace, 200, 49, 90)));
        // Fewer clients wait, and the worker has time to serve each of them at once.
        assert_eq!(run_crowd(&mut pace, 200, 30, 60), 0);
    }

    #[test]
    fn clients_that_keep_the_worker_busy_open_it_if_batches_are_large() {
        let mut pace = Pace::new(600);
        assert!((590..=600).contains(&run_batches(&mut pace, 200, 25)));
        let least = (0..50).map(|_| run_batches(&mut pace, 1, 15)).min().unwrap();
        assert!(least < 450, "{least}");
    }

    #[test]
    fn a_crowd_that_does_not_come_together_or_is_not_needed_closes_it_again() {
        let mut pace = Pace::new(600);
        let start = run_crowd(&mut pace, 200, 49, 90);
        // Many wait, and those who are waited for do not come in time.
        let least = (0..50).map(|_| run_crowd(&mut pace, 1, 42, 90)).min().unwrap();
        assert!(least < start * 3 / 4, "{least}");
        run_crowd(&mut pace, 200, 49, 90);
        // They come, but the worker would have the time to serve each at once.
        let least = (0..50).map(|_| run_crowd(&mut pace, 1, 49, 30)).min().unwrap();
        assert!(least < start * 3 / 4, "{least}");
    }

    /// Turns of 100 µs, busy for so much of them, in which so many of the active clients ask and are
    /// answered.
    fn run_turns(pace: &mut Pace, turns: u64, found: u64, active: u32, busy_percent: u64) -> u64 {
        for _ in 0..turns {
            let mut work = pace.last;
            work.asked += found / 2;
            work.answered += found / 2;
            pace.turn(100 - busy_percent, busy_percent, work, active);
        }
        pace.nap().as_micros() as u64
    }

    #[test]
    fn many_clients_that_come_a_few_at_a_time_are_met_after_a_nap() {
        let mut pace = Pace::new(600);
        run(&mut pace, 2000, 30, true);
        // An answer takes 2,500 µs: 100 clients at 4 requests in 100 µs.
        assert_eq!(run_turns(&mut pace, 100, 8, 100, 90), 50);
        // The shorter it takes the shorter is the nap.
        run_turns(&mut pace, 100, 60, 100, 90);
        assert_eq!(pace.nap_us, 16);
        // With much to do there is none.
        assert_eq!(pace.nap(), Duration::ZERO);
        // What is found after a nap is no sign of little to do.
        pace.found_little = true;
        let sleeps = pace.sleeps;
        pace.turn(10, 10, pace.last, 100);
        assert_eq!(pace.sleeps, sleeps);
        pace.turn(60, 10, pace.last, 100);
        assert_eq!(pace.sleeps, sleeps + 1);
    }

    #[test]
    fn nobody_naps_who_has_time_or_few_clients_or_an_open_loop_or_no_window() {
        let wide = || {
            let mut pace = Pace::new(600);
            run(&mut pace, 2000, 30, true);
            pace
        };
        assert!(run_turns(&mut wide(), 100, 8, 100, 90) > 0);
        assert_eq!(run_turns(&mut wide(), 100, 8, 100, 60), 0);
        assert_eq!(run_turns(&mut wide(), 100, 4, 63, 90), 0);
        let mut open = wide();
        open.open_periods = OPEN_PERIODS;
        assert_eq!(run_turns(&mut open, 100, 8, 100, 90), 0);
        let mut off = wide();
        off.set_hold_max_us(0);
        assert_eq!(off.nap(), Duration::ZERO);
        assert_eq!(run_turns(&mut off, 100, 8, 100, 90), 0);
        // Silence ends it.
        let mut silent = wide();
        run_turns(&mut silent, 100, 8, 100, 90);
        silent.turn(10_000, 10, silent.last, 100);
        assert_eq!(silent.nap(), Duration::ZERO);
    }

    #[test]
    fn a_few_clients_are_no_crowd() {
        let mut pace = Pace::new(600);
        for _ in 0..200 {
            pace.may_go(&Crowd::with(10, 10), Time::ZERO);
            let mut work = pace.work;
            work.answered += 4;
            pace.turn(100, PERIOD_US, work, 10);
        }
        assert_eq!(pace.window_us(), 0);
    }

    #[test]
    fn little_to_do_closes_it() {
        let mut pace = Pace::new(600);
        run(&mut pace, 2000, 12, true);
        assert_eq!(run(&mut pace, 2000, 4, true), 0);
    }

    #[test]
    fn clients_that_come_for_one_request_open_it() {
        let mut pace = Pace::new(600);
        // One or two of them find company in a wake-up; one alone takes three for itself.
        let window =
            run_with(&mut pace, 2000, Work { answered: 1, clients: 1, ..Work::default() }, true);
        assert!(window > 100, "{window}");
        assert_eq!(run(&mut pace, 2000, (1 + REQUESTS_PER_CLIENT) / 3, true), 0);
    }

    #[test]
    fn silence_closes_it_at_once() {
        let mut pace = Pace::new(600);
        run(&mut pace, 2000, 12, true);
        let work = pace.work;
        assert!(pace.turn(10_000, 10, work, 10));
        assert_eq!(pace.window_us(), 0);
    }

    #[test]
    fn a_smaller_maximum_counts_at_once() {
        let mut pace = Pace::new(600);
        run(&mut pace, 2000, 12, true);
        pace.set_hold_max_us(20);
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
        let mut pace = Pace::new(600);
        run(&mut pace, 2000, 12, true);
        let window = Duration::from_micros(pace.window_us());
        let mut crowd = Crowd::with(8, 10);
        let now = Time::from_micros(1_000_000);
        assert!(!pace.may_go(&crowd, now));
        assert_eq!(pace.wake_at(), Some(now + window));
        assert!(!pace.may_go(&crowd, now + window / 2));
        assert!(pace.may_go(&crowd, now + window));
        assert_eq!(pace.wake_at(), None);
        crowd = Crowd::with(19, 20);
        crowd.received = 8;
        assert!(pace.may_go(&crowd, now));
    }

    #[test]
    fn one_of_fifty_is_not_waited_for_and_of_fewer_one_of_twenty() {
        let absent = [1, 16, 19, 20, 50, 69, 70, 100, 200, 1000].map(absent_max);
        assert_eq!(absent, [0, 0, 0, 1, 1, 1, 2, 2, 4, 20]);
    }

    /// When it wakes by itself if something is held back at `now` and nothing else happens, in
    /// microseconds from then.
    fn wakes_after(pace: &mut Pace, now: Time) -> u64 {
        assert!(!pace.may_go(&Crowd::with(8, 10), now));
        pace.wake_at().unwrap().micros_since(now)
    }

    #[test]
    fn a_wide_window_needs_no_timer_until_one_for_the_longest_wait_has_rung() {
        let mut pace = Pace::new(5000);
        let window = run(&mut pace, 2000, 20, true);
        assert!((590..=WINDOW_MAX_US).contains(&window), "{window}");
        let now = Time::from_micros(1_000_000);
        assert_eq!(wakes_after(&mut pace, now), 5000);
        // What happens meanwhile ends the window.
        let crowd = Crowd::with(8, 10);
        assert!(!pace.may_go(&crowd, now + Duration::from_micros(window - 1)));
        assert!(pace.may_go(&crowd, now + Duration::from_micros(window)));
        assert_eq!(wakes_after(&mut pace, now), 5000);
        // Nothing happened.
        assert!(pace.may_go(&crowd, now + Duration::from_micros(5000)));
        assert_eq!(wakes_after(&mut pace, now), window);
        let turns = u64::from(DISTRUST_PERIODS) * PERIOD_US / 100;
        run(&mut pace, turns - 20, 20, true);
        assert_eq!(pace.wake_at().unwrap().micros_since(now), window);
        run(&mut pace, 20, 20, true);
        assert_eq!(pace.wake_at().unwrap().micros_since(now), 5000);
    }

    #[test]
    fn windows_of_open_loops_and_narrow_ones_end_by_a_timer_and_all_within_the_longest_wait() {
        let now = Time::from_micros(1_000_000);
        let mut narrow = Pace::new(5000);
        let window = run(&mut narrow, 2000, 12, true);
        assert!(window < WINDOW_MAX_US);
        assert_eq!(wakes_after(&mut narrow, now), window);
        let mut open = Pace::new(5000);
        let window = run(&mut open, 2000, 20, true);
        open.open_periods = OPEN_PERIODS;
        assert_eq!(wakes_after(&mut open, now), window);
        for hold_max_us in [30, 600, 900] {
            let mut pace = Pace::new(hold_max_us);
            assert!(run(&mut pace, 2000, 20, true) <= hold_max_us);
            assert_eq!(wakes_after(&mut pace, now), hold_max_us);
        }
    }

    /// Holds something back at `now` until the window has run out, for so many waiting clients of
    /// fifty and after such a lull, unless it goes at once.
    fn run_out(pace: &mut Pace, waiting: u32, lull_us: u64, now: Time) -> bool {
        let mut crowd = Crowd::with(waiting, 50);
        crowd.received = pace.received + 50;
        let goes_at_once = pace.may_go(&crowd, now);
        if !goes_at_once {
            pace.lull_us = lull_us;
            assert!(pace.may_go(&crowd, now + Duration::from_micros(WINDOW_MAX_US)));
        }
        goes_at_once
    }

    #[test]
    fn clients_that_come_after_a_lull_again_and_again_are_not_waited_for() {
        let now = Time::from_micros(1_000_000);
        let mut pace = Pace::new(5000);
        run(&mut pace, 2000, 20, true);
        // A pause of all of them says nothing of each.
        assert!(!run_out(&mut pace, 5, 150, now));
        assert!(!run_out(&mut pace, 45, 150, now));
        assert!(!run_out(&mut pace, 44, 150, now));
        assert_eq!(pace.slow, 6 - 1);
        assert!(run_out(&mut pace, 45, 150, now));
        assert!(!run_out(&mut pace, 44, 150, now));
        assert!(run_out(&mut pace, 49, 150, now));
        // Whose asking ends the wait is no faster for it.
        let mut crowd = Crowd::with(42, 50);
        for _ in 0..SLOW_BATCHES {
            crowd.received = pace.received + 50;
            crowd.waiting = 42;
            assert!(!pace.may_go(&crowd, now));
            crowd.waiting = 45;
            assert!(pace.may_go(&crowd, now));
        }
        assert_eq!(pace.slow, 8);
        // It is tried again after a while.
        run(&mut pace, u64::from(SLOW_PERIODS) * PERIOD_US / 100, 20, true);
        assert!(!run_out(&mut pace, 45, 150, now));
    }

    #[test]
    fn who_is_late_now_and_then_or_while_others_ask_is_waited_for() {
        let now = Time::from_micros(1_000_000);
        let mut pace = Pace::new(5000);
        run(&mut pace, 2000, 20, true);
        for _ in 0..10 {
            assert!(!run_out(&mut pace, 45, 150, now));
            assert!(!run_out(&mut pace, 45, 150, now));
            assert!(run_out(&mut pace, 49, 150, now));
            assert!(!run_out(&mut pace, 45, 150, now));
            assert!(!run_out(&mut pace, 45, 150, now));
            assert!(!run_out(&mut pace, 45, 149, now));
        }
        assert_eq!(pace.slow, 0);
    }

    #[test]
    fn under_a_wide_window_a_batch_waits_for_much_of_the_crowd_to_have_asked_anew() {
        let mut pace = Pace::new(600);
        run(&mut pace, 2000, 20, true);
        let now = Time::from_micros(1_000_000);
        let mut crowd = Crowd::with(50, 50);
        crowd.received = 20;
        assert!(pace.may_go(&crowd, now));
        crowd.received += 19;
        assert!(!pace.may_go(&crowd, now));
        crowd.received += 1;
        assert!(pace.may_go(&crowd, now));
        // The window bounds the wait.
        crowd.received += 1;
        assert!(!pace.may_go(&crowd, now));
        assert!(pace.may_go(&crowd, pace.wake_at().unwrap()));
        // A narrow one gathers what comes of a burst, and nothing more.
        run(&mut pace, 2000, 12, true);
        crowd.received += 1;
        assert!(pace.may_go(&crowd, now));
    }
}
