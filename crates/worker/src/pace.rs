//! When what gains from company is written: at once, or a little later together with others.
//!
//! Like interrupt moderation in a network card: when there is much to do, requests of many clients
//! meet in one write, and so do their replies on the way back. A reply that completes what its
//! client is owed never waits: the client asks again when it has it. Where nearly all clients wait
//! at a time they are a crowd, which is worth waiting for: all of it comes back when it has been
//! answered, sooner than a window for it is over. Clients that ask before they have been answered
//! are an open loop: their requests come whatever is done, and to wait costs them latency.
//!
//! To look costs little, and is not to wait. So, window or not, as long as somebody asked in the turn
//! just over, another look is taken before anything is written: what came during the work on one turn
//! goes with it.
//!
//! A timer that rings within the kernel's tick costs about as much as being woken does. So under a
//! wide window the worker trusts that something will wake it before long, and sets a timer for the
//! longest only that anything may be held back; when that has rung, it does not trust for a while.
//!
//! docs/notes/pacing.md compares this policy with others.

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

/// The longest window, in microseconds, unless less is asked for …
const WINDOW_MAX_US: u64 = 600;
/// … or a crowd is so large that this part of the time that an answer takes is longer: less gathers too
/// little of it, and for more of it the processors wait for each other …
const CROWD_LATENCY_PART: u64 = 2;
/// … but no longer than this …
const CROWD_WINDOW_MAX_US: u64 = 4_000;
/// … and only while the worker is busy for so much of its time, in percent, although it waits: otherwise
/// clients may take their time before they ask again, and to wait for them costs them latency.
const CROWD_BUSY_MIN_PERCENT: u64 = 60;
/// The window is adjusted after at least this much time.
const PERIOD_US: u64 = 2_000;
const PERIODS_PER_SECOND: u32 = 500;
/// A wait longer than this found nothing to do.
const SLEEP_MIN_US: u64 = 3;
/// With so many requests answered between two sleeps there is no window …
const REQUESTS_PER_SLEEP_MIN: u64 = 5;
/// … with so many it is a third of the longest …
const REQUESTS_PER_SLEEP_THIRD: u64 = 10;
/// … and with so many it is the longest, unless the load is an open loop.
const REQUESTS_PER_SLEEP_MAX: u64 = 20;
/// A crowd has the longest, unless so few requests are answered between two sleeps: then it is the
/// servers who are waited for.
const CROWD_REQUESTS_PER_SLEEP_MIN: u64 = 3;
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
/// The load is taken for an open loop for so many periods after one in which it was: to try a wider
/// window on it costs latency.
const OPEN_PERIODS: u32 = 5 * PERIODS_PER_SECOND;
/// When a batch has waited for the longest time that it may, every window ends by a timer of its own
/// for so many periods: a batch in a thousand at most is so late.
const DISTRUST_PERIODS: u32 = PERIODS_PER_SECOND;

/// Looked at so often at most, what has waited for its window goes though each look has found more: a
/// busy worker always finds more.
const LOOKS_MAX: u32 = 8;

/// Fractions of a microsecond or of a whole, so that small steps are not lost.
const FRACTION: u64 = 256;
/// What is smoothed goes this part of the way to where it should be.
const SMOOTHING: u64 = 8;

fn smooth(value: u64, target: u64) -> u64 {
    value - value / SMOOTHING + target / SMOOTHING
}

/// A part of a whole, smoothed, times [`FRACTION`].
#[derive(Clone, Copy, Debug, Default)]
struct Share(u64);

impl Share {
    const NONE: u64 = 0;
    const ALL: u64 = FRACTION;

    /// In the last period it was so much, times [`FRACTION`].
    fn add(&mut self, part: u64) {
        self.0 = smooth(self.0, part);
    }

    fn is_at_least(self, percent: u64) -> bool {
        self.0 * 100 >= FRACTION * percent
    }
}

/// The policy: told what each turn of the loop did, it says whether what is held back goes now.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    window_max_us: u64,
    /// Nothing is ever held back for longer.
    hold_max: Duration,
    /// In microseconds times [`FRACTION`].
    window: u64,
    held: Option<Held>,
    /// How often clients sent something in the last turn.
    found: u64,
    /// How often something had come from clients when the last batch went.
    received: u64,
    gathering: Gathering,
    slow: SlowClients,
    nap: Nap,
    /// Of this period.
    elapsed_us: u64,
    worked_us: u64,
    sleeps: u64,
    /// What had been done when it began …
    work: Work,
    /// … and when the last turn ended.
    last: Work,
    /// Of the time, for how much the worker was busy.
    busy: Share,
    /// For so many periods more nothing is trusted to wake the worker in time.
    distrust_periods: u32,
    /// For so many periods more the load is taken for an open loop.
    open_periods: u32,
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
    /// Turns that have ended since.
    looks: u32,
}

impl Pace {
    /// Nothing is held back for longer than `hold_max_us` microseconds; 0 turns it off.
    pub(crate) fn new(hold_max_us: u64) -> Self {
        let mut pace = Self::default();
        pace.set_hold_max_us(hold_max_us);
        pace
    }

    /// From now on nothing is held back for longer than so many microseconds.
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

    /// Whether what is held back goes now: it has waited for the whole window and nobody asks at the
    /// moment, or so many clients wait for answers that hardly anybody is left who could ask, many of
    /// them with something new.
    // Out of the loop, like `turn`.
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
        // Who trusts to be woken would not look, but sleep.
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

    /// What is held back goes now, whoever could still ask.
    pub(crate) fn go(&mut self, activity: &Activity) {
        self.held = None;
        self.received = activity.received;
    }

    /// When [`Pace::may_go`] is to be asked again though nothing has happened.
    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.held.map(|held| if self.is_trusting() { held.latest } else { held.due })
    }

    /// How long to sleep before events are looked for.
    pub(crate) fn nap(&self) -> Duration {
        Duration::from_micros(self.nap.us())
    }

    /// A turn is over: it waited for events, then worked on them, and this is what has been done up
    /// to now, with so many active clients. Returns whether the window was looked at.
    // Out of the loop, which has the registers: a request is 30 instructions dearer otherwise.
    #[inline(never)]
    pub(crate) fn turn(&mut self, waited_us: u64, worked_us: u64, work: Work, active: u32) -> bool {
        self.elapsed_us += waited_us + worked_us;
        self.worked_us += worked_us;
        // A nap is no sign that there was nothing to do.
        self.sleeps += u64::from(waited_us > self.nap.us() + SLEEP_MIN_US);
        self.slow.note_lull(waited_us);
        let found = work.since(std::mem::replace(&mut self.last, work));
        self.found = found.sends();
        if let Some(held) = &mut self.held {
            held.looks += 1;
        }
        self.nap.note_turn(found, u64::from(active));
        let is_over = self.elapsed_us >= PERIOD_US;
        if is_over {
            self.end_period(work, u64::from(active));
            if waited_us >= PERIOD_US {
                // After a long wait the past says nothing about the next turn.
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
        // Little's law: an answer takes as long as so many take who wait at a time, if each asks one thing
        // at a time. With pipelines this is less: the time from one answer of a client to its next.
        let latency_us = active * self.elapsed_us / done.answered.max(1);
        self.window = smooth(self.window, self.target(requests_per_sleep, latency_us));
        match self.is_to_nap(active) {
            true => self.nap.adjust(latency_us),
            false => self.nap.turn_off(),
        }
        (self.elapsed_us, self.worked_us, self.sleeps, self.work) = (0, 0, 0, work);
    }

    /// Where the window should be, given how many requests were answered between two sleeps and how
    /// long an answer takes.
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

    /// The longest window of a crowd.
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

    /// Whether something is taken to happen soon, so that the window's end needs no timer. Beside naps
    /// the timer is the cheaper way.
    fn is_trusting(&self) -> bool {
        self.is_wide() && self.open_periods == 0 && self.distrust_periods == 0 && !self.nap.is_on()
    }

    /// Whether the window is about as long as it may be, or longer.
    fn is_wide(&self) -> bool {
        self.window_max_us > 0 && self.window * 100 >= self.window_max_us * FRACTION * WIDE_PERCENT
    }
}

/// How many of the active clients are not waited for.
fn absent_max(active: u64) -> u64 {
    (active + CLIENTS_PER_ABSENT - CLIENTS_MIN_FOR_ABSENT) / CLIENTS_PER_ABSENT
}

#[cfg(test)]
mod tests;
