//! Time and counts: when the measured window opens and closes, and what fell into it.

use crate::wire::{Outcome, Pending};
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use std::io::Write;
use std::time::{Duration, Instant};

const HIGHEST_LATENCY: u64 = 120_000_000_000;

/// What bounds a run: a time after a warm-up, or a number of requests without one.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    Time { warmup: Duration, measured: Duration },
    Requests(u64),
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
    opened: u64,
    closed: u64,
    cpu_at_open: u64,
    cpu_at_close: u64,
    sent: u64,
    /// Requests finished in all phases.
    pub finished: u64,
    measured: u64,
    errors: u64,
    hits: u64,
    misses: u64,
    latency: Histogram<u64>,
    pub first_error: Option<String>,
}

impl Meter {
    pub fn new(bound: Bound, announce: bool) -> Self {
        let latency =
            Histogram::new_with_bounds(1, HIGHEST_LATENCY, 3).expect("fixed bounds are valid");
        Self {
            base: Instant::now(),
            bound,
            phase: Phase::Warmup,
            announce,
            opened: 0,
            closed: 0,
            cpu_at_open: 0,
            cpu_at_close: 0,
            sent: 0,
            finished: 0,
            measured: 0,
            errors: 0,
            hits: 0,
            misses: 0,
            latency,
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
        let (opens, closes) = match self.bound {
            Bound::Time { warmup, measured } => {
                (warmup.as_nanos() as u64, (warmup + measured).as_nanos() as u64)
            }
            Bound::Requests(count) => (0, if self.finished < count { u64::MAX } else { 0 }),
        };
        if self.phase == Phase::Warmup && now >= opens {
            self.phase = Phase::Measured;
            self.opened = now;
            self.cpu_at_open = own_cpu();
            self.event("start");
        }
        if self.phase == Phase::Measured && now >= closes {
            self.phase = Phase::Over;
            self.closed = now;
            self.cpu_at_close = own_cpu();
            self.event("stop");
        }
    }

    pub fn over(&self) -> bool {
        self.phase == Phase::Over
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

    pub fn finish(&mut self, now: u64, request: Pending, outcome: Outcome) {
        self.finished += 1;
        if self.phase != Phase::Measured {
            return;
        }
        self.measured += 1;
        self.errors += u64::from(outcome.error);
        self.hits += u64::from(outcome.hits);
        self.misses += u64::from(outcome.misses);
        self.latency.saturating_record(now.saturating_sub(request.since).max(1));
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
        let micros = |value: u64| value as f64 / 1e3;
        let at = |quantile: f64| micros(self.latency.value_at_quantile(quantile));
        let cpu = micros(self.cpu_at_close - self.cpu_at_open) / self.measured.max(1) as f64;
        format!(
            concat!(
                "{{\"event\":\"report\",\"mode\":\"{}\",\"seconds\":{:.6},\"requests\":{},",
                "\"ops_per_second\":{:.1},\"latency_us\":{{\"mean\":{:.1},\"p50\":{:.1},\"p90\":{:.1},",
                "\"p99\":{:.1},\"p99.9\":{:.1},\"max\":{:.1}}},\"hits\":{},\"misses\":{},",
                "\"errors\":{},\"first_error\":{},\"load_cpu_us_per_request\":{:.3}}}"
            ),
            mode,
            seconds,
            self.measured,
            self.measured as f64 / seconds,
            self.latency.mean() / 1e3,
            at(0.5),
            at(0.9),
            at(0.99),
            at(0.999),
            micros(self.latency.max()),
            self.hits,
            self.misses,
            self.errors,
            self.first_error.as_deref().map_or("null".into(), json_string),
            cpu,
        )
    }
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
