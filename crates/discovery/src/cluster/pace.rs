//! When the nodes of a cluster are asked.

use std::time::{Duration, Instant};

/// How often, as a rule: for the map, and where reads of slots that move must not go to replicas.
const INTERVAL: Duration = Duration::from_secs(10);
const INTERVAL_OF_REPLICAS: Duration = Duration::from_secs(2);
/// From one time to the next, however often the map is doubted.
const DOUBTED_INTERVAL: Duration = Duration::from_millis(100);
/// While the cluster is about to fail over, or nobody answers.
const TROUBLE_INTERVAL: Duration = Duration::from_millis(50);
/// How long that is so often. What lasts longer is for somebody to mend.
const TROUBLE_MAX: Duration = Duration::from_secs(30);
const LASTING_TROUBLE_INTERVAL: Duration = Duration::from_secs(1);
/// How long a doubt lasts that asking does not end: nodes notice later than clients that one is gone.
const DOUBT_LASTS: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(crate) struct Pace {
    interval: Duration,
    begun: Option<Instant>,
    is_asking: bool,
    due: Instant,
    /// The map was doubted since the nodes were asked, so their answers may be older than that.
    is_doubted: bool,
    doubted_until: Option<Instant>,
    in_trouble_since: Option<Instant>,
}

impl Pace {
    /// `reads_replicas` says that replicas answer reads.
    pub(crate) fn new(reads_replicas: bool, now: Instant) -> Self {
        Self {
            interval: if reads_replicas { INTERVAL_OF_REPLICAS } else { INTERVAL },
            begun: None,
            is_asking: false,
            due: now,
            is_doubted: false,
            doubted_until: None,
            in_trouble_since: None,
        }
    }

    /// Something does not go with the map.
    pub(crate) fn doubt(&mut self, now: Instant) {
        self.doubted_until = Some(now + DOUBT_LASTS);
        match self.is_asking {
            true => self.is_doubted = true,
            false => self.due = self.due.min(self.earliest(DOUBTED_INTERVAL).max(now)),
        }
    }

    pub(crate) fn is_asking(&self) -> bool {
        self.is_asking
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        !self.is_asking && now >= self.due
    }

    /// When they are to be asked.
    pub(crate) fn due(&self) -> Option<Instant> {
        (!self.is_asking).then_some(self.due)
    }

    pub(crate) fn begin(&mut self, now: Instant) {
        (self.begun, self.is_asking, self.is_doubted) = (Some(now), true, false);
    }

    /// All have answered that will. `is_settled` says that the map has changed, so whoever doubted the one before
    /// may be content.
    pub(crate) fn end(&mut self, is_in_trouble: bool, is_settled: bool, now: Instant) {
        self.is_asking = false;
        if is_settled {
            self.doubted_until = None;
        }
        self.in_trouble_since = match is_in_trouble {
            true => self.in_trouble_since.or(Some(now)),
            false => None,
        };
        let interval = match self.in_trouble_since {
            Some(since) if now < since + TROUBLE_MAX => TROUBLE_INTERVAL,
            _ if self.is_doubted || self.doubted_until.is_some_and(|until| now < until) => {
                DOUBTED_INTERVAL
            }
            Some(_) => LASTING_TROUBLE_INTERVAL,
            None => self.interval,
        };
        self.due = self.earliest(interval).max(now);
    }

    fn earliest(&self, interval: Duration) -> Instant {
        self.begun.map_or(self.due, |begun| begun + interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Asks when it is due; an answer takes 5 ms. Returns how long that was after `from`.
    fn ask(pace: &mut Pace, from: Instant, trouble: bool, settled: bool) -> Duration {
        let at = pace.due().unwrap();
        assert!(pace.is_due(at) && !pace.is_due(at - ms(1)));
        pace.begin(at);
        assert!(pace.due().is_none() && !pace.is_due(at + INTERVAL));
        pace.end(trouble, settled, at + ms(5));
        at - from
    }

    #[test]
    fn they_are_asked_at_once_and_then_every_ten_seconds() {
        let start = Instant::now();
        let mut pace = Pace::new(false, start);
        assert_eq!(ask(&mut pace, start, false, true), ms(0));
        assert_eq!(ask(&mut pace, start, false, false), ms(10_000));
        assert_eq!(ask(&mut pace, start, false, false), ms(20_000));
    }

    #[test]
    fn a_doubt_is_followed_at_once_and_for_a_second() {
        let start = Instant::now();
        let mut pace = Pace::new(false, start);
        ask(&mut pace, start, false, true);
        let doubt = start + ms(3000);
        pace.doubt(doubt);
        let asked: Vec<u128> =
            (0..12).map(|_| ask(&mut pace, doubt, false, false).as_millis()).collect();
        assert_eq!(asked, [0, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 11_000]);
        // Not a second, where another map comes of it.
        let doubt = doubt + ms(12_000);
        pace.doubt(doubt);
        assert_eq!(ask(&mut pace, doubt, false, true), ms(0));
        assert_eq!(ask(&mut pace, doubt, false, false), ms(10_000));
    }

    #[test]
    fn doubts_meanwhile_are_followed_once_and_not_too_soon() {
        let start = Instant::now();
        let mut pace = Pace::new(false, start);
        pace.begin(start);
        for at in [1, 2, 3] {
            pace.doubt(start + ms(at));
        }
        pace.end(false, true, start + ms(5));
        assert_eq!(ask(&mut pace, start, false, true), ms(100));
        pace.doubt(start + ms(110));
        assert_eq!(ask(&mut pace, start, false, true), ms(200));
        assert_eq!(ask(&mut pace, start, false, true), ms(10_200));
    }

    #[test]
    fn trouble_is_watched_closely_for_half_a_minute() {
        let start = Instant::now();
        let mut pace = Pace::new(false, start);
        let mut asked = Vec::new();
        for _ in 0..605 {
            asked.push(ask(&mut pace, start, true, false).as_millis());
        }
        assert_eq!(asked[..3], [0, 50, 100]);
        assert_eq!(asked[600..604], [30_000, 31_000, 32_000, 33_000]);
        assert_eq!(ask(&mut pace, start, false, true), ms(35_000));
        assert_eq!(ask(&mut pace, start, true, false), ms(45_000));
        assert_eq!(ask(&mut pace, start, true, false), ms(45_050));
    }
}
