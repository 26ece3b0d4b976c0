//! Hot keys, and pools, that are left alone for a while since a key could not go.

use std::time::{Duration, Instant};

use cashew_metrics::HotAct;

use super::hot_keys::shown;
use crate::status::HotWaitStatus;

/// So long at first, twice as long each time, and no longer.
pub(super) const WAIT_MIN: Duration = Duration::from_secs(60);
pub(super) const WAIT_MAX: Duration = Duration::from_secs(480);
/// Failures that are kept. There are fewer keys than that which go anywhere.
const WAITS_MAX: usize = 1024;

/// What is left alone.
#[derive(Clone, Debug)]
pub(super) enum Off {
    Key(HotAct),
    /// A server of it does not answer: nothing goes there, and nothing comes from it.
    Pool(String),
    /// Clients have waited for nothing when a key was to go from the one pool to the other.
    Way(String, String),
}

impl Off {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Key(it), Self::Key(other)) => it.is_like(other),
            (Self::Pool(it), Self::Pool(other)) => it == other,
            (Self::Way(from, to), Self::Way(other_from, other_to)) => {
                (from, to) == (other_from, other_to)
            }
            _ => false,
        }
    }
}

struct Wait {
    what: Off,
    why: String,
    until: Instant,
    wait: Duration,
}

#[derive(Default)]
pub(super) struct HotWaits(Vec<Wait>);

impl HotWaits {
    /// Leaves something alone from now on, for as long as is answered: longer than the last time.
    pub(super) fn put_off(
        &mut self,
        what: Off,
        why: &str,
        least: Duration,
        now: Instant,
    ) -> Duration {
        // What has been well, or was not tried, for so long begins anew.
        self.0.retain(|it| now < it.until + WAIT_MAX);
        let before = self.0.iter().find(|it| it.what.is(&what)).map(|it| it.wait);
        let wait = before.map_or(least, |wait| wait * 2).clamp(least, WAIT_MAX);
        self.forget(&what);
        if self.0.len() >= WAITS_MAX {
            self.0.remove(0);
        }
        self.0.push(Wait { what, why: why.to_owned(), until: now + wait, wait });
        wait
    }

    /// It has gone well.
    pub(super) fn forget(&mut self, what: &Off) {
        self.0.retain(|it| !it.what.is(what));
    }

    pub(super) fn is_off(&self, what: &Off, now: Instant) -> bool {
        self.0.iter().any(|it| now < it.until && it.what.is(what))
    }

    /// What is left alone of a pool's: its keys, ways from it, and the pool itself.
    pub(super) fn statuses_of(&self, pool: &str, now: Instant) -> Vec<HotWaitStatus> {
        let status = |it: &Wait| {
            let (key, to) = match &it.what {
                Off::Key(act) if act.is_of_pool(pool) => (shown(&act.key, act.len), String::new()),
                Off::Pool(name) if name == pool => (String::new(), String::new()),
                Off::Way(from, to) if from == pool => (String::new(), to.clone()),
                _ => return None,
            };
            let left = it.until.checked_duration_since(now).filter(|left| !left.is_zero())?;
            // Until it is 0 it is left alone.
            let left_s = left.as_millis().div_ceil(1000) as u64;
            Some(HotWaitStatus { key, to, left_s, why: it.why.clone() })
        };
        self.0.iter().filter_map(status).collect()
    }
}

#[cfg(test)]
mod tests {
    use cashew_metrics::HotCause;

    use super::*;

    #[test]
    fn what_fails_again_waits_longer_until_it_goes_well() {
        let (mut waits, start) = (HotWaits::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let pool = |name: &str| Off::Pool(name.to_owned());
        let key = |key: &str| Off::Key(HotAct::of_key("p", key.as_bytes(), HotCause::Rule));
        assert!(!waits.is_off(&pool("a"), start));
        assert_eq!(waits.put_off(pool("a"), "", WAIT_MIN, start).as_secs(), 60);
        assert!(waits.is_off(&pool("a"), at(59)) && !waits.is_off(&pool("a"), at(60)));
        for other in [pool("b"), key("a"), Off::Way("a".into(), "a".into())] {
            assert!(!waits.is_off(&other, start), "{other:?}");
        }
        // Longer each time, but not for ever.
        for (now, wait) in [(60, 120), (180, 240), (420, 480), (900, 480)] {
            assert_eq!(waits.put_off(pool("a"), "", WAIT_MIN, at(now)).as_secs(), wait);
        }
        waits.forget(&pool("b"));
        assert!(waits.is_off(&pool("a"), at(1379)));
        waits.forget(&pool("a"));
        assert!(!waits.is_off(&pool("a"), at(901)));
        assert_eq!(waits.put_off(pool("a"), "", WAIT_MIN, at(901)).as_secs(), 60);
        // What was long ago does not count.
        assert_eq!(waits.put_off(pool("a"), "", WAIT_MIN, at(961 + 480)).as_secs(), 60);
        // Each key for itself, and a way has two ends.
        waits.put_off(key("k"), "", 2 * WAIT_MIN, start);
        assert!(waits.is_off(&key("k"), at(119)) && !waits.is_off(&key("l"), start));
        waits.put_off(Off::Way("a".into(), "b".into()), "", WAIT_MIN, start);
        assert!(waits.is_off(&Off::Way("a".into(), "b".into()), start));
        assert!(!waits.is_off(&Off::Way("b".into(), "a".into()), start));
    }

    #[test]
    fn no_more_is_kept_than_fits() {
        let (mut waits, now) = (HotWaits::default(), Instant::now());
        for number in 0..=WAITS_MAX {
            waits.put_off(Off::Pool(number.to_string()), "", WAIT_MIN, now);
        }
        assert_eq!(waits.0.len(), WAITS_MAX);
        assert!(waits.is_off(&Off::Pool(WAITS_MAX.to_string()), now));
    }

    #[test]
    fn each_pool_tells_what_is_left_alone_for_its_keys() {
        let (mut waits, start) = (HotWaits::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let key = Off::Key(HotAct::of_key("a", b"k\n", HotCause::Rule));
        waits.put_off(key, "it is large", WAIT_MIN, start);
        waits.put_off(Off::Way("a".into(), "b".into()), "clients waited", WAIT_MIN, at(1000));
        waits.put_off(Off::Pool("b".into()), "it does not answer", 2 * WAIT_MIN, start);
        let told = |pool: &str, ms| -> Vec<(String, String, u64, String)> {
            let statuses = waits.statuses_of(pool, at(ms)).into_iter();
            statuses.map(|it| (it.key, it.to, it.left_s, it.why)).collect()
        };
        let status = |key: &str, to: &str, left_s, why: &str| {
            (key.to_owned(), to.to_owned(), left_s, why.to_owned())
        };
        let way = |left_s| status("", "b", left_s, "clients waited");
        assert_eq!(told("a", 1001), [status("\"k\\n\"", "", 59, "it is large"), way(60)]);
        assert_eq!(told("a", 59_999)[0].2, 1);
        assert_eq!(told("a", 60_000), [way(1)]);
        assert_eq!(told("a", 61_000), []);
        assert_eq!(told("b", 60_000), [status("", "", 60, "it does not answer")]);
        assert_eq!(told("c", 0), []);
    }
}
