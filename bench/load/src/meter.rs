//! Time and counts: when the measured window opens and closes, and what fell into it.

use crate::wire::{Outcome, Pending};
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use std::io::Write;
use std::time::{Duration, Instant};

const HIGHEST_LATENCY: u64 = 120_000_000_000;
/// A request that took longer met Linux's delayed acknowledgement (40 ms), or worse.
const SLOW: u64 = 35_000_000;

/// What bounds a run: a time after a warm-up, or a number of requests without one.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    Time { warmup: Duration, measured: Duration },
    Requests(u64),
}

/// Whose request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Main,
    /// The greedy client or the slow ones beside the others.
    Beside,
}

/// What is counted for each group.
struct Tally {
    /// Finished within the window.
    measured: u64,
    latency: Histogram<u64>,
    slow: u64,
}

impl Tally {
    fn new() -> Self {
        let latency =
            Histogram::new_with_bounds(1, HIGHEST_LATENCY, 3).expect("fixed bounds are valid");
        Self { measured: 0, latency, slow: 0 }
    }

    fn record(&mut self, latency: u64) {
        self.latency.saturating_record(latency.max(1));
        self.slow += u64::from(latency > SLOW);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Warmup,
    Measured,
    Over,
}

pub struct Meter {
    base: Instant,
    bound: Bound,
    phase: Phase,
    announce: bool,
    /// Who asks in an open loop: timed are the requests that were due within the window, even if they
    /// end later.
    by_due: Option<Group>,
    opens: u64,
    closes: u64,
    opened: u64,
    closed: u64,
    cpu_at_open: u64,
    cpu_at_close: u64,
    sent: u64,
    /// Requests finished in all phases.
    pub finished: u64,
    errors: u64,
    hits: u64,
    misses: u64,
    main: Tally,
    beside: Tally,
    pub first_error: Option<String>,
}

impl Meter {
    pub fn new(bound: Bound, announce: bool, by_due: Option<Group>) -> Self {
        let (opens, closes) = match bound {
            Bound::Time { warmup, measured } => {
                (warmup.as_nanos() as u64, (warmup + measured).as_nanos() as u64)
            }
            Bound::Requests(_) => (0, u64::MAX),
        };
        Self {
            base: Instant::now(),
            bound,
            phase: Phase::Warmup,
            announce,
            by_due,
            opens,
            closes,
            opened: 0,
            closed: 0,
            cpu_at_open: 0,
            cpu_at_close: 0,
            sent: 0,
            finished: 0,
            errors: 0,
            hits: 0,
            misses: 0,
            main: Tally::new(),
            beside: Tally::new(),
            first_error: None,
        }
    }

    /// Starts the clock: connecting is over.
    pub fn begin(&mut self) {
        self.base = Instant::now();
        self.advance(0);
    }

    pub fn now(&self) -> u64 {
        self.base.elapsed().as_nanos() as u64
    }

    /// Opens or closes the measured window when it is time.
    pub fn advance(&mut self, now: u64) {
        if self.phase == Phase::Warmup && now >= self.opens {
            self.phase = Phase::Measured;
            self.opened = now;
            self.cpu_at_open = own_cpu();
            self.event("start");
        }
        let complete = match self.bound {
            Bound::Time { .. } => now >= self.closes,
            Bound::Requests(count) => self.finished >= count,
        };
        if self.phase == Phase::Measured && complete {
            self.phase = Phase::Over;
            self.closed = now;
            self.cpu_at_close = own_cpu();
            self.event("stop");
        }
    }

    pub fn over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// When the measured window closed.
    pub fn closed(&self) -> u64 {
        self.closed
    }

    /// Open loop: whether a request that is due then belongs to the run.
    pub fn wants(&self, due: u64) -> bool {
        match self.bound {
            Bound::Requests(count) => self.sent < count,
            Bound::Time { .. } => due < self.closes,
        }
    }

    /// Takes one request out of the budget.
    pub fn send(&mut self) {
        self.sent += 1;
    }

    /// Takes one request out of the budget, if there is one left.
    pub fn may_send(&mut self) -> bool {
        let allowed = match self.bound {
            Bound::Requests(count) => self.sent < count,
            Bound::Time { .. } => self.phase != Phase::Over,
        };
        self.sent += u64::from(allowed);
        allowed
    }

    pub fn finish(&mut self, group: Group, now: u64, request: Pending, outcome: Outcome) {
        self.finished += 1;
        let within = self.phase == Phase::Measured;
        let timed = self.times(group, request, within);
        if !within && !timed {
            return;
        }
        self.errors += u64::from(outcome.error);
        self.hits += u64::from(outcome.hits);
        self.misses += u64::from(outcome.misses);
        let tally = self.tally(group);
        tally.measured += u64::from(within);
        if timed {
            tally.record(now.saturating_sub(request.since));
        }
    }

    /// Counts a request that has waited until now and is waited for no longer.
    pub fn abandon(&mut self, group: Group, now: u64, request: Pending) {
        if self.times(group, request, false) {
            self.tally(group).record(now.saturating_sub(request.since));
            self.fail("no reply within 5 s after the measured window");
        }
    }

    fn times(&self, group: Group, request: Pending, within: bool) -> bool {
        if self.by_due == Some(group) {
            (self.opens..self.closes).contains(&request.since)
        } else {
            within
        }
    }

    fn tally(&mut self, group: Group) -> &mut Tally {
        match group {
            Group::Main => &mut self.main,
            Group::Beside => &mut self.beside,
        }
    }

    /// Counts a request that got no reply at all.
    pub fn fail(&mut self, reason: &str) {
        self.finished += 1;
        self.errors += 1;
        self.first_error.get_or_insert_with(|| reason.to_owned());
    }

    fn event(&self, name: &str) {
        if self.announce {
            println!("{{\"event\":\"{name}\",\"finished\":{}}}", self.finished);
            // Whoever samples at this moment must see it at this moment.
            std::io::stdout().flush().ok();
        }
    }

    pub fn report(&self, mode: &str) -> String {
        let seconds = self.closed.saturating_sub(self.opened).max(1) as f64 / 1e9;
        let requests = self.main.measured + self.beside.measured;
        let cpu = micros(self.cpu_at_close - self.cpu_at_open) / requests.max(1) as f64;
        format!(
            concat!(
                "{{\"event\":\"report\",\"mode\":\"{}\",\"seconds\":{:.6},\"requests\":{},",
                "\"ops_per_second\":{:.1},\"latency_us\":{},\"slow\":{},\"timed\":{},",
                "\"beside_ops_per_second\":{:.1},\"beside_latency_us\":{},",
                "\"hits\":{},\"misses\":{},\"errors\":{},\"first_error\":{},",
                "\"load_cpu_us_per_request\":{:.3}}}"
            ),
            mode,
            seconds,
            requests,
            self.main.measured as f64 / seconds,
            latency(&self.main.latency),
            self.main.slow,
            self.main.latency.len(),
            self.beside.measured as f64 / seconds,
            latency(&self.beside.latency),
            self.hits,
            self.misses,
            self.errors,
            self.first_error.as_deref().map_or("null".into(), json_string),
            cpu,
        )
    }
}

fn latency(histogram: &Histogram<u64>) -> String {
    let at = |quantile: f64| micros(histogram.value_at_quantile(quantile));
    format!(
        concat!(
            "{{\"mean\":{:.1},\"p50\":{:.1},\"p90\":{:.1},\"p99\":{:.1},",
            "\"p99.9\":{:.1},\"max\":{:.1}}}"
        ),
        histogram.mean() / 1e3,
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        micros(histogram.max()),
    )
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

fn json_string(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            control if control.is_control() => out.push(' '),
            other => out.push(other),
        }
    }
    out + "\""
}

/// CPU time this process has used, in nanoseconds.
fn own_cpu() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
