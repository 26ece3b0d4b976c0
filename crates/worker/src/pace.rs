//! When to write output that benefits from batching: at once, or a little later together with more.
//!
//! This works like interrupt moderation in a network card. Under load, requests of many clients
//! meet in one write, and so do their replies. A reply that completes what its client waits for is
//! never held back: the client sends its next request when it has it.
//!
//! When nearly all clients wait at the same time, they are a crowd: each sends its next request
//! once it has its reply. Waiting for a crowd is worthwhile, since all of it comes back before a
//! window for it is over. When clients send requests before earlier ones are answered, the load is
//! an open loop. Its requests come whatever we do, so waiting only costs latency.
//!
//! Polling for events costs little and is not a wait. So, with or without a window, as long as the
//! last tick found requests, the worker polls once more before it writes anything.
//!
//! A timer that fires within the kernel's tick costs about as much as being woken. So under a wide
//! window the worker relies on the next event to wake it, and sets a timer only for the longest
//! time that anything may be held back. After that timer has fired, the worker does not rely on
//! events for a while.
//!
//! `docs/notes/pacing.md` has the reasons for its numbers, `docs/notes/tried.md` other policies.

mod gathering;
mod nap;
mod slow;
mod work;

use std::time::Duration;

use cashew_engine::{Activity, Time};

use self::gathering::{Gathering, Period};
use self::nap::Nap;
use self::slow::SlowClients;
pub(crate) use self::work::Work;

/// The longest window, in microseconds, unless the configured maximum is lower.
const WINDOW_MAX_US: u64 = 600;
/// For a large crowd the longest window is the latency divided by this, if that is longer. Less
/// gathers too little of the crowd; more makes processors wait for each other.
const CROWD_LATENCY_PART: u64 = 2;
/// The upper bound of a large crowd's window.
const CROWD_WINDOW_MAX_US: u64 = 4_000;
/// A large crowd has a longer window only while the worker is busy for this share of its time, in
/// percent. Otherwise clients may pause between requests, and waiting for them costs latency.
const CROWD_BUSY_MIN_PERCENT: u64 = 60;
/// The shortest period after which the window is adjusted.
const PERIOD_US: u64 = 2_000;
const PERIODS_PER_SECOND: u32 = 500;
/// A wait longer than this had found no event ready.
const SLEEP_MIN_US: u64 = 3;
/// There is no window below this number of requests answered between two sleeps.
const REQUESTS_PER_SLEEP_MIN: u64 = 5;
/// At this number the window is a third of the longest.
const REQUESTS_PER_SLEEP_THIRD: u64 = 10;
/// At this number the window is the longest, unless the load is an open loop.
const REQUESTS_PER_SLEEP_MAX: u64 = 20;
/// A crowd has the longest window from this number on. Below it, the worker waits for servers.
const CROWD_REQUESTS_PER_SLEEP_MIN: u64 = 3;
/// A window is wide from this share of the longest on, in percent.
const WIDE_PERCENT: u64 = 75;
/// Of the waiting clients, one in this many may be missing when a batch goes.
const CLIENTS_PER_ABSENT: u64 = 50;
/// With fewer clients, one of this many may be missing.
const CLIENTS_MIN_FOR_ABSENT: u64 = 20;
/// Such a batch goes only if this share of the active clients, in percent, has sent something since
/// the last batch, or if the window is not wide. With pipelines nearly all clients wait all the
/// time; a batch would otherwise be whatever one tick happens to find.
const ANEW_PERCENT: u64 = 40;
/// For how many periods the load counts as an open loop after the last period in which it was one:
/// trying a wider window on an open loop costs latency.
const OPEN_PERIODS: u32 = 5 * PERIODS_PER_SECOND;
/// For how many periods every window ends by its own timer, after a batch had to wait for the
/// longest time. This bounds late batches to one in a thousand.
const DISTRUST_PERIODS: u32 = PERIODS_PER_SECOND;

/// How many polls may delay a batch whose window is over. A busy worker's polls always find more.
const LOOKS_MAX: u32 = 8;

/// Unit of fractions, of a microsecond or of a whole, so that small steps are not lost.
const FRACTION: u64 = 256;
/// Each step of a smoothed value covers one part in this many of the distance to the target.
const SMOOTHING: u64 = 8;

fn smooth(value: u64, target: u64) -> u64 {
    value - value / SMOOTHING + target / SMOOTHING
}

/// A smoothed share of a whole, times [`FRACTION`].
#[derive(Clone, Copy, Debug, Default)]
struct Share(u64);

impl Share {
    const NONE: u64 = 0;
    const ALL: u64 = FRACTION;

    /// Adds the share of the last period, times [`FRACTION`].
    fn add(&mut self, part: u64) {
        self.0 = smooth(self.0, part);
    }

    fn is_at_least(self, percent: u64) -> bool {
        self.0 * 100 >= FRACTION * percent
    }
}

/// The policy. It learns what each tick did and decides whether held-back output goes now.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    window_max_us: u64,
    /// The longest time that anything may be held back.
    hold_max: Duration,
    /// In microseconds, times [`FRACTION`].
    window: u64,
    held: Option<Held>,
    /// How often clients sent something in the last tick.
    found: u64,
    /// How often clients had sent something when the last batch went.
    received: u64,
    gathering: Gathering,
    slow: SlowClients,
    nap: Nap,
    /// In this period.
    elapsed_us: u64,
    worked_us: u64,
    sleeps: u64,
    /// The work done when the period began …
    work: Work,
    /// … and when the last tick ended.
    last: Work,
    /// The share of time that the worker was busy.
    busy: Share,
    /// For how many more periods the worker does not rely on events to wake it.
    distrust_periods: u32,
    /// For how many more periods the load counts as an open loop.
    open_periods: u32,
}

/// Deadlines of held-back output.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// The end of the window: the output goes at the next event.
    due: Time,
    /// The output goes at this time, whatever happens.
    latest: Time,
    /// How many clients waited at the last check.
    waiting: u64,
    /// Ticks that have ended since.
    looks: u32,
}

impl Pace {
    /// `hold_max_us` is the longest time, in microseconds, that anything is held back; 0 turns it
    /// off.
    pub(crate) fn new(hold_max_us: u64) -> Self {
        let mut pace = Self::default();
        pace.set_hold_max_us(hold_max_us);
        pace
    }

    /// Changes the longest time, in microseconds, that anything is held back.
    pub(crate) fn set_hold_max_us(&mut self, hold_max_us: u64) {
        self.window_max_us = hold_max_us.min(WINDOW_MAX_US);
        self.hold_max = Duration::from_micros(hold_max_us);
        self.window = self.window.min(hold_max_us * FRACTION);
        self.nap.turn_off();
    }

    /// How long something may be held back now, in microseconds.
    pub(crate) fn window_us(&self) -> u64 {
        self.window / FRACTION
    }

    /// Whether held-back output goes now. It does when its window is over and no request has just
    /// come, or when so many clients wait for replies that hardly any is left who could send more,
    /// and many of them have sent something new.
    // Not inlined, like `end_tick`.
    #[inline(never)]
    pub(crate) fn may_go(&mut self, activity: &Activity, now: Time) -> bool {
        let (waiting, active) = (u64::from(activity.waiting), u64::from(activity.active()));
        let due = now + Duration::from_micros(self.window_us());
        let first = Held { due, latest: now + self.hold_max, waiting: active, looks: 0 };
        let held = *self.held.get_or_insert(first);
        self.gathering.note_waiting(waiting, active);
        let anew = activity.received - self.received;
        let is_batch = anew * 100 >= active * ANEW_PERCENT || !self.is_wide();
        let absent_max = self.slow.count().max(absent_max(active));
        let is_complete = waiting + absent_max >= active && is_batch;
        // A worker that relies on events would sleep here, not poll.
        let is_worth_a_look = self.found > 0 && held.looks < LOOKS_MAX && !self.is_trusting();
        let may_go = is_complete || (held.due <= now && !is_worth_a_look);
        if may_go {
            self.gathering.note_batch(is_complete);
            self.slow.note_batch(active.saturating_sub(held.waiting), absent_max);
            if !is_complete && held.latest <= now {
                self.distrust_periods = DISTRUST_PERIODS;
            }
            self.go(activity);
        } else {
            self.held = Some(Held { waiting, ..held });
        }
        may_go
    }

    /// Held-back output goes now, whatever else may come.
    pub(crate) fn go(&mut self, activity: &Activity) {
        self.held = None;
        self.received = activity.received;
    }

    /// When to call [`Pace::may_go`] again even if nothing has happened.
    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.held.map(|held| if self.is_trusting() { held.latest } else { held.due })
    }

    /// How long to sleep before polling for events.
    pub(crate) fn nap(&self) -> Duration {
        Duration::from_micros(self.nap.us())
    }

    /// Ends a tick, which waited for events and then handled them. `work` is the total so far,
    /// `active` the number of active clients. Returns whether the window was adjusted.
    // Not inlined: the loop keeps its registers, which saves 30 instructions a request.
    #[inline(never)]
    pub(crate) fn end_tick(
        &mut self,
        waited_us: u64,
        worked_us: u64,
        work: Work,
        active: u32,
    ) -> bool {
        self.elapsed_us += waited_us + worked_us;
        self.worked_us += worked_us;
        // A nap does not mean that there was nothing to do.
        self.sleeps += u64::from(waited_us > self.nap.us() + SLEEP_MIN_US);
        self.slow.note_lull(waited_us);
        let found = work.since(std::mem::replace(&mut self.last, work));
        self.found = found.sends();
        if let Some(held) = &mut self.held {
            held.looks += 1;
        }
        self.nap.note_tick(found, u64::from(active));
        let is_over = self.elapsed_us >= PERIOD_US;
        if is_over {
            self.end_period(work, u64::from(active));
            if waited_us >= PERIOD_US {
                // After a long wait the past does not predict the next tick.
                self.window = 0;
                self.nap.turn_off();
            }
        }
        is_over
    }

    #[cold]
    fn end_period(&mut self, work: Work, active: u64) {
        let done = work.since(self.work);
        self.open_periods = match done.is_open_loop() {
            true => OPEN_PERIODS,
            false => self.open_periods.saturating_sub(1),
        };
        self.busy.add(self.worked_us * FRACTION / self.elapsed_us);
        self.gathering.end_period(Period {
            active,
            asked: done.asked,
            is_open_loop: self.open_periods > 0,
            is_wide: self.is_wide(),
            busy: self.busy,
        });
        self.distrust_periods = self.distrust_periods.saturating_sub(1);
        self.slow.end_period();
        let requests_per_sleep = done.requests() / self.sleeps.max(1);
        // Little's law: with one request at a time per client, latency is the number of waiting
        // clients divided by throughput. With pipelines this is less: the time between two replies
        // to a client.
        let latency_us = active * self.elapsed_us / done.answered.max(1);
        self.window = smooth(self.window, self.target(requests_per_sleep, latency_us));
        match self.is_to_nap(active) {
            true => self.nap.adjust(latency_us),
            false => self.nap.turn_off(),
        }
        (self.elapsed_us, self.worked_us, self.sleeps, self.work) = (0, 0, 0, work);
    }

    /// The target for the window.
    fn target(&self, requests_per_sleep: u64, latency_us: u64) -> u64 {
        if self.gathering.is_crowd() && requests_per_sleep >= CROWD_REQUESTS_PER_SLEEP_MIN {
            return self.crowd_window_us(latency_us) * FRACTION;
        }
        let max = self.window_max_us * FRACTION;
        let between = |from: u64, to: u64| {
            (requests_per_sleep.clamp(from, to) - from) * FRACTION / (to - from)
        };
        let third = between(REQUESTS_PER_SLEEP_MIN, REQUESTS_PER_SLEEP_THIRD);
        let rest = match self.open_periods {
            0 => between(REQUESTS_PER_SLEEP_THIRD, REQUESTS_PER_SLEEP_MAX),
            _ => 0,
        };
        max / 3 * (third + 2 * rest) / FRACTION
    }

    /// The longest window for a crowd.
    fn crowd_window_us(&self, latency_us: u64) -> u64 {
        if !self.busy.is_at_least(CROWD_BUSY_MIN_PERCENT) {
            return self.window_max_us;
        }
        let max = (self.hold_max.as_micros() as u64).min(CROWD_WINDOW_MAX_US);
        (latency_us / CROWD_LATENCY_PART).clamp(self.window_max_us, max)
    }

    fn is_to_nap(&self, active: u64) -> bool {
        active >= nap::CLIENTS_MIN
            && self.is_wide()
            && self.open_periods == 0
            && self.busy.is_at_least(nap::BUSY_MIN_PERCENT)
    }

    /// Whether an event is expected soon, so that the window's end needs no timer. Beside naps a
    /// timer is cheaper.
    fn is_trusting(&self) -> bool {
        self.is_wide() && self.open_periods == 0 && self.distrust_periods == 0 && !self.nap.is_on()
    }

    /// Whether the window is about as long as it may be, or longer.
    fn is_wide(&self) -> bool {
        self.window_max_us > 0 && self.window * 100 >= self.window_max_us * FRACTION * WIDE_PERCENT
    }
}

/// How many of the active clients may be missing from a batch.
fn absent_max(active: u64) -> u64 {
    (active + CLIENTS_PER_ABSENT - CLIENTS_MIN_FOR_ABSENT) / CLIENTS_PER_ABSENT
}

#[cfg(test)]
mod tests;
