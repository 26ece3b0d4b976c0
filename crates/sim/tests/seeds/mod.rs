//! Which seeds a test plays, as the environment says, and playing them on all processors.

use std::num::NonZero;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;

/// The number in a variable of the environment.
pub(crate) fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// So many seeds, or `CASHEW_SIM_TIMES` times as many, unless `CASHEW_SIM_SEEDS` says how many; from
/// `CASHEW_SIM_FROM` on, or 1.
pub(crate) fn range(count: u64) -> Range<u64> {
    let from = number("CASHEW_SIM_FROM").unwrap_or(1);
    let count = count * number("CASHEW_SIM_TIMES").unwrap_or(1);
    from..from + number("CASHEW_SIM_SEEDS").unwrap_or(count)
}

/// Runs all of the seeds; returns what came of each, in any order.
///
/// # Panics
/// When runs have, naming their seeds.
pub(crate) fn play<T: Send>(seeds: Range<u64>, run: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let count = seeds.end - seeds.start;
    let (left, results, failed) = (Mutex::new(seeds), Mutex::default(), Mutex::default());
    let work = || {
        loop {
            let Some(seed) = left.lock().unwrap().next() else { return };
            match catch_unwind(AssertUnwindSafe(|| run(seed))) {
                Ok(result) => Vec::push(&mut results.lock().unwrap(), result),
                Err(_) => Vec::push(&mut failed.lock().unwrap(), seed),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} of {count} seeds fail: {failed:?}", failed.len());
    results.into_inner().unwrap()
}
