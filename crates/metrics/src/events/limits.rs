//! How many events of the same kind, pool and server are taken up.
//!
//! All processes share the limits: whichever worker tells of a server, it is the same server. Each key has a place
//! in a table, which it keeps until it has been quiet for long.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Keys that there is room for. One more shares the limit of another.
const PLACES: usize = 2048;
const PLACE_WORDS: usize = 3;
pub(super) const WORDS: usize = PLACES * PLACE_WORDS;

/// How many places a key may be at.
const PROBES: usize = 16;

/// After this long a key is forgotten, even if something was left out that nobody was told of.
const FORGET_AFTER_MS: u64 = 3_600_000;

mod word {
    /// 0 if the place is free.
    pub(super) const KEY: usize = 0;
    /// When all that it may have is there again, in milliseconds of the monotonic clock.
    pub(super) const FULL_AT: usize = 1;
    pub(super) const LEFT_OUT: usize = 2;
}

/// So many at once, and one more each time that so long has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) burst: u64,
    pub(super) every_ms: u64,
}

/// Takes one event up. Returns how many were left out before it, or `None` if it is left out itself.
pub(super) fn take(words: &[AtomicU64], key: u64, limit: Limit, now_ms: u64) -> Option<u64> {
    let place = place_of(words, key.max(1), now_ms);
    let taken = place[word::FULL_AT].fetch_update(AcqRel, Relaxed, |full_at| {
        let next = full_at.max(now_ms) + limit.every_ms;
        (next <= now_ms + limit.burst * limit.every_ms).then_some(next)
    });
    if taken.is_err() {
        place[word::LEFT_OUT].fetch_add(1, Release);
        return None;
    }
    // Most of the time there is nothing to take.
    let left_out = &place[word::LEFT_OUT];
    Some(if left_out.load(Relaxed) == 0 { 0 } else { left_out.swap(0, Relaxed) })
}

fn place_of(words: &[AtomicU64], key: u64, now_ms: u64) -> &[AtomicU64] {
    let place = |probe: usize| {
        let index = (key as usize).wrapping_add(probe) % PLACES;
        &words[index * PLACE_WORDS..(index + 1) * PLACE_WORDS]
    };
    let places = (0..PROBES).map(place);
    if let Some(own) = places.clone().find(|place| place[word::KEY].load(Relaxed) == key) {
        return own;
    }
    for place in places {
        let holder = place[word::KEY].load(Relaxed);
        if holder == key {
            // Another process has told of the same meanwhile.
            return place;
        }
        // First: whoever counts here has a place that is not full for now.
        let left_out = place[word::LEFT_OUT].load(Acquire);
        let full_at = place[word::FULL_AT].load(Relaxed);
        let is_quiet = full_at <= now_ms && (left_out == 0 || full_at + FORGET_AFTER_MS <= now_ms);
        if holder != 0 && !is_quiet {
            continue;
        }
        if holder != 0 && left_out > 0 {
            // It is forgotten before anybody can count for the new key.
            let _ = place[word::LEFT_OUT].compare_exchange(left_out, 0, Relaxed, Relaxed);
        }
        match place[word::KEY].compare_exchange(holder, key, AcqRel, Relaxed) {
            Ok(_) => return place,
            Err(other) if other == key => return place,
            Err(_) => {}
        }
    }
    place(0)
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Mutex};

    use super::*;
    use crate::testing::repetitions;

    const LIMIT: Limit = Limit { burst: 3, every_ms: 100 };

    fn words() -> Vec<AtomicU64> {
        (0..WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn a_burst_is_taken_and_then_one_at_a_time() {
        let words = words();
        let at = |now_ms| take(&words, 7, LIMIT, now_ms);
        assert_eq!([at(5000), at(5000), at(5001), at(5002)], [Some(0), Some(0), Some(0), None]);
        assert_eq!([at(5099), at(5100), at(5101)], [None, Some(2), None]);
        assert_eq!([at(9000), at(9000), at(9000), at(9000)], [Some(1), Some(0), Some(0), None]);
    }

    #[test]
    fn keys_are_apart_until_there_is_no_place_left() {
        let words = words();
        for key in 1..=PLACES as u64 {
            let taken = [0; 4].map(|_| take(&words, key, LIMIT, 1000));
            assert_eq!(taken, [Some(0), Some(0), Some(0), None], "{key}");
        }
        assert_eq!(take(&words, PLACES as u64 + 1, LIMIT, 1000), None, "it shares a limit");
        // Who has been quiet makes room once it is known, or long ago, what was left out.
        assert_eq!(take(&words, PLACES as u64 + 9, LIMIT, 1000 + 2 * FORGET_AFTER_MS), Some(0));
    }

    #[test]
    fn many_threads_with_a_new_key_share_its_limit() {
        const THREADS: usize = 4;
        const EACH: u64 = 2;
        let words = words();
        let (all, seen) = (Barrier::new(THREADS), Mutex::new(Vec::new()));
        let [taken, told] = [(); 2].map(|()| AtomicU64::new(0));
        let tell = || {
            for round in 1..=repetitions(5000) as u64 {
                let now_ms = round * 4 * FORGET_AFTER_MS;
                all.wait();
                for _ in 0..EACH {
                    if let Some(left_out) = take(&words, round, LIMIT, now_ms) {
                        taken.fetch_add(1, Relaxed);
                        told.fetch_add(left_out, Relaxed);
                    }
                }
                if all.wait().is_leader() {
                    // Each second time the place keeps what was left out, for the next key to forget.
                    let told = told.swap(0, Relaxed);
                    let after = |_| told + take(&words, round, LIMIT, now_ms + 10_000).unwrap();
                    let left_out = Some(()).filter(|()| round % 2 == 0).map(after);
                    seen.lock().unwrap().push((taken.swap(0, Relaxed), left_out));
                }
            }
        };
        std::thread::scope(|scope| (0..THREADS).for_each(|_| _ = scope.spawn(tell)));
        let left_out = THREADS as u64 * EACH - LIMIT.burst;
        for (at, seen) in seen.into_inner().unwrap().into_iter().enumerate() {
            assert_eq!(seen, (LIMIT.burst, (at % 2 == 1).then_some(left_out)), "{at}");
        }
    }

    #[test]
    fn many_threads_take_no_more_than_there_is() {
        const THREADS: usize = 4;
        const EACH: usize = repetitions(1000);
        let words = words();
        let taken = AtomicU64::new(0);
        let told = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        if let Some(left_out) = take(&words, 9, LIMIT, 50_000) {
                            taken.fetch_add(1, Relaxed);
                            told.fetch_add(left_out, Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(taken.into_inner(), LIMIT.burst);
        let after = take(&words, 9, LIMIT, 60_000).unwrap();
        assert_eq!(told.into_inner() + after, (THREADS * EACH) as u64 - LIMIT.burst);
    }
}
