//! Requests that are looked at one by one: those that take long, and samples.
//!
//! Requests are looked at when their server has answered. Their text is what the lane keeps of what is in flight
//! (see [`Lane::sent`]). A sample is due after so many replies, drawn at random around a mean that follows the load, so
//! that samples cost less than a hundredth of what requests do. The fast path leaves such replies to the general way.
//!
//! What became of a reply is known later: see [`waiting`]. Who does the looking is [`Engine`](crate::Engine).
//!
//! [`Lane::sent`]: crate::upstream::lane::Lane::sent

mod shown;
mod sighting;
mod text;
mod waiting;

use std::collections::VecDeque;

use cashew_metrics::RequestRing;
use cashew_protocol::Span;

use crate::base::rng::Rng;
use crate::base::time::Time;

pub(crate) use shown::{share, times, word};
pub use sighting::Sighting;
pub(crate) use text::{TEXT_MAX, Words};
pub(crate) use waiting::{STUCK_MAX, Stage, WAITING_MAX, Waiting};

/// The mean number of requests that a sample stands for under load.
const INTERVAL_MAX: u64 = 128;
/// Where less is asked, so many samples are taken in a second …
const SAMPLES_WANTED: u64 = 20;
/// … or up to this, where that could not be foreseen.
const SAMPLES_MAX: u64 = 1000;
/// Requests that are recorded as slow in a second.
const SLOW_MAX: u32 = 100;
/// More are not kept for whoever takes them.
const SEEN_MAX: usize = 256;
/// A shorter time without a look at connections is no reason for anything.
const BUSY_MIN_US: u64 = 500;
/// So many of these are remembered, for as long as requests may be under way that came in them …
const BUSY_COUNT_MAX: usize = 64;
/// … but for a while they are no reason any more to take every request for slow.
const BUSY_FOR_US: u64 = 1_000_000;
const SECOND_US: u64 = 1_000_000;

pub(crate) struct Observer {
    pub(crate) rng: Rng,
    /// Replies up to the next sample, that one included; never 0.
    pub(crate) left: u32,
    /// For how many the next sample stands.
    weight: u32,
    /// The mean of `weight`.
    interval: u64,
    /// In the current second: samples, and the requests that they stand for.
    samples: u64,
    sampled: u64,
    second_ends: Time,
    /// Requests that may still be recorded as slow in this second.
    slow_left: u32,
    /// Slow requests for which there was no room in their second, and that nobody was told of.
    pub(crate) left_out: u64,
    /// When the worker had no eye for its connections.
    busy: VecDeque<Busy>,
    /// The longest of the last second.
    busy_us: u64,
    pub(crate) waiting: Vec<Waiting>,
    /// Of which all is known.
    pub(crate) seen: Vec<Sighting>,
    /// Somebody wants samples one by one.
    pub(crate) wants_samples: bool,
    /// Those of all workers.
    pub(crate) slow_log: RequestRing,
    /// Memory for the moment of looking, kept to be used again.
    pub(crate) scratch: Scratch,
}

/// The worker did something for so long.
#[derive(Clone, Copy)]
struct Busy {
    from: Time,
    busy_us: u64,
    /// When it looked at its connections next.
    until: Time,
}

/// What is looked at.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) text: Vec<u8>,
    pub(crate) words: Words,
    pub(crate) keys: Vec<Span>,
}

impl Observer {
    pub(crate) fn new(now: Time, seed: u64) -> Self {
        Self {
            // What is looked at must not decide what else is done by chance.
            rng: Rng::new(!seed),
            left: 1,
            weight: 1,
            interval: 1,
            samples: 0,
            sampled: 0,
            second_ends: now.plus_micros(SECOND_US),
            slow_left: SLOW_MAX,
            left_out: 0,
            busy: VecDeque::new(),
            busy_us: 0,
            waiting: Vec::new(),
            seen: Vec::new(),
            wants_samples: false,
            slow_log: RequestRing::none(),
            scratch: Scratch::default(),
        }
    }

    /// Whether a request of this age may have taken longer than `slow_after_us`.
    #[inline(always)]
    pub(crate) fn is_suspect(&self, age_us: u64, slow_after_us: u64) -> bool {
        age_us.saturating_add(self.busy_us) >= slow_after_us && self.slow_left > 0
    }

    /// A tick begins or ends.
    #[inline]
    pub(crate) fn tick(&mut self, now: Time) {
        if now >= self.second_ends {
            self.begin_second(now);
        }
    }

    #[cold]
    fn begin_second(&mut self, now: Time) {
        let seconds = 1 + now.micros_since(self.second_ends) / SECOND_US;
        self.second_ends = now.plus_micros(SECOND_US);
        self.slow_left = SLOW_MAX;
        self.interval = (self.sampled / seconds / SAMPLES_WANTED).clamp(1, INTERVAL_MAX);
        (self.samples, self.sampled) = (0, 0);
        // A sample may be far off by the measure of a second that was full.
        let left = u64::from(self.left).min(2 * self.interval) as u32;
        self.weight -= self.left - left;
        self.left = left.max(1);
        let since = Time::from_micros(now.as_micros().saturating_sub(BUSY_FOR_US));
        let of_late = self.busy.iter().filter(|busy| busy.until > since);
        self.busy_us = of_late.map(|busy| busy.busy_us).max().unwrap_or(0);
    }

    /// The next sample is drawn. Returns for how many requests the current one stands.
    pub(crate) fn draw(&mut self) -> u64 {
        let weight = u64::from(self.weight);
        self.samples += 1;
        self.sampled += weight;
        if self.samples >= SAMPLES_MAX {
            self.interval = INTERVAL_MAX;
        }
        self.left = 1 + (self.rng.next() % (2 * self.interval - 1)) as u32;
        self.weight = self.left;
        weight
    }

    /// The worker was busy for so long from that time on, and looks at its connections now.
    #[inline]
    pub(crate) fn note_busy(&mut self, from: Time, busy_us: u64, now: Time) {
        if busy_us >= BUSY_MIN_US {
            self.remember_busy(Busy { from, busy_us, until: now });
        }
    }

    #[cold]
    fn remember_busy(&mut self, busy: Busy) {
        if self.busy.len() == BUSY_COUNT_MAX {
            self.busy.pop_front();
        }
        self.busy_us = self.busy_us.max(busy.busy_us);
        self.busy.push_back(busy);
    }

    /// For how long of this time the worker was busy.
    pub(crate) fn busy_between(&self, from: Time, to: Time) -> u64 {
        let within = |busy: &Busy| {
            let end = busy.from.plus_micros(busy.busy_us);
            end.min(to).micros_since(busy.from.max(from))
        };
        self.busy.iter().map(within).sum()
    }

    /// All is known of a request. It is told of if it was slow, or is a sample that somebody wants.
    pub(crate) fn finish(&mut self, mut sighting: Sighting) {
        sighting.is_slow = sighting.times.total_us() >= sighting.slow_after_us;
        if sighting.is_slow {
            match self.slow_left.checked_sub(1) {
                Some(left) => self.slow_left = left,
                None => {
                    self.left_out += 1;
                    sighting.is_slow = false;
                }
            }
        }
        if !(sighting.is_slow || sighting.is_wanted) {
            return;
        }
        match self.seen.len() < SEEN_MAX {
            true => self.seen.push(sighting),
            false => self.left_out += u64::from(sighting.is_slow),
        }
    }

    /// For how long what was read at that time may have lain there.
    pub(crate) fn busy_before(&self, at: Time) -> u64 {
        let found = self.busy.iter().rev().find(|busy| busy.until == at);
        found.map_or(0, |busy| busy.busy_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_requests_are_all_sampled_and_many_by_the_hundred() {
        let mut observer = Observer::new(Time::ZERO, 1);
        let serve = |observer: &mut Observer, requests: u64| {
            let (mut samples, mut weights) = (0u64, 0u64);
            for _ in 0..requests {
                if observer.left > 1 {
                    observer.left -= 1;
                } else {
                    weights += observer.draw();
                    samples += 1;
                }
            }
            (samples, weights)
        };
        assert_eq!(serve(&mut observer, 10), (10, 10));
        observer.tick(Time::from_micros(SECOND_US));
        for second in 2..10 {
            serve(&mut observer, 100_000);
            observer.tick(Time::from_micros(second * SECOND_US));
        }
        let (samples, weights) = serve(&mut observer, 100_000);
        assert!((700..900).contains(&samples), "{samples}");
        assert!((99_000..101_000).contains(&weights), "{weights}");
        observer.tick(Time::from_micros(10 * SECOND_US));
        observer.tick(Time::from_micros(11 * SECOND_US));
        let (samples, _) = serve(&mut observer, 40);
        assert!(samples >= 38, "{samples}");
        observer.tick(Time::from_micros(12 * SECOND_US));
        let (samples, _) = serve(&mut observer, 4000);
        assert!(samples <= 1050, "{samples}");
    }

    #[test]
    fn a_busy_worker_makes_requests_suspect_for_a_second() {
        let mut observer = Observer::new(Time::ZERO, 1);
        assert!(!observer.is_suspect(1000, 10_000));
        observer.note_busy(Time::ZERO, 100, Time::from_micros(5));
        assert!(!observer.is_suspect(1000, 10_000));
        observer.note_busy(Time::from_micros(4000), 20_000, Time::from_micros(25_000));
        assert!(observer.is_suspect(0, 10_000));
        assert_eq!(observer.busy_before(Time::from_micros(25_000)), 20_000);
        assert_eq!(observer.busy_before(Time::from_micros(25_001)), 0);
        let between =
            |from, to| observer.busy_between(Time::from_micros(from), Time::from_micros(to));
        assert_eq!(
            [between(0, 5000), between(4000, 24_000), between(24_000, 25_000)],
            [1000, 20_000, 0]
        );
        observer.tick(Time::from_micros(1_100_000));
        assert!(!observer.is_suspect(0, 10_000));
    }
}
