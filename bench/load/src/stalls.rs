//! How long the machine itself stands still: spins on the clock and notes where it jumps.

use crate::Failure;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, pread};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// A jump of the clock this long was no interrupt.
const STALL: u64 = 500_000;
/// CPU time of a thread, the time it waited for a processor (nanoseconds), and its turns.
const SCHEDSTAT: &str = "/proc/thread-self/schedstat";

/// The stalls of one processor: with nothing else to do, none is this program's own.
#[derive(Debug, Default, PartialEq, Eq)]
struct Stalls {
    /// Those in which nobody here had the processor: who lent it to this machine took it away.
    count: u64,
    lost: u64,
    longest: u64,
    /// Those in which this program waited for another one.
    elsewhere: u64,
}

impl Stalls {
    /// Takes the time between two looks at the clock, and how much of it was spent waiting.
    fn note(&mut self, elapsed: u64, waited: u64) {
        if elapsed < STALL {
            return;
        }
        if waited >= elapsed / 2 {
            self.elsewhere += elapsed;
            return;
        }
        self.count += 1;
        self.lost += elapsed;
        self.longest = self.longest.max(elapsed);
    }

    fn report(&self, nanos: u64) -> String {
        format!(
            concat!(
                "{{\"event\":\"report\",\"mode\":\"stalls\",\"seconds\":{:.6},\"stalls\":{},",
                "\"lost_ms\":{:.3},\"longest_ms\":{:.3},\"elsewhere_ms\":{:.3}}}"
            ),
            nanos as f64 / 1e9,
            self.count,
            millis(self.lost),
            millis(self.longest),
            millis(self.elsewhere),
        )
    }
}

/// Spins for this long on the processor that it was started on.
pub fn run(duration: Duration) -> Result<String, Failure> {
    // A kernel that does not count this has its own processes among the stalls.
    let schedstat = open(SCHEDSTAT, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
    let mut stalls = Stalls::default();
    let opened = now();
    let closes = opened + duration.as_nanos() as u64;
    let (mut last, mut last_waited) = (opened, waited(schedstat.as_ref())?);
    while last < closes {
        let look = (now(), waited(schedstat.as_ref())?);
        stalls.note(look.0 - last, look.1 - last_waited);
        (last, last_waited) = look;
    }
    Ok(stalls.report(last - opened))
}

/// For how long this thread was ready to run and did not.
fn waited(schedstat: Option<&OwnedFd>) -> Result<u64, Errno> {
    let mut text = [0; 64];
    let count = schedstat.map_or(Ok(0), |file| pread(file, &mut text, 0))?;
    Ok(second(&text[..count]).unwrap_or(0))
}

/// The second of the numbers in a line.
fn second(line: &[u8]) -> Option<u64> {
    str::from_utf8(line).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_no_stall() {
        let mut stalls = Stalls::default();
        stalls.note(STALL - 1, 0);
        stalls.note(0, 0);
        assert_eq!(stalls, Stalls::default());
    }

    #[test]
    fn stalls_add_up_and_the_longest_is_kept() {
        let mut stalls = Stalls::default();
        for elapsed in [STALL, 9_000_000, 1_000_000] {
            stalls.note(elapsed, elapsed / 2 - 1);
        }
        assert_eq!(stalls, Stalls { count: 3, lost: 10_500_000, longest: 9_000_000, elsewhere: 0 });
    }

    #[test]
    fn time_given_to_another_process_is_apart() {
        let mut stalls = Stalls::default();
        stalls.note(4_000_000, 3_990_000);
        assert_eq!(stalls, Stalls { elsewhere: 4_000_000, ..Stalls::default() });
    }

    #[test]
    fn reports_in_seconds_and_milliseconds() {
        let stalls =
            Stalls { count: 2, lost: 10_250_000, longest: 9_000_000, elsewhere: 1_500_000 };
        assert_eq!(
            stalls.report(2_000_000_500),
            concat!(
                r#"{"event":"report","mode":"stalls","seconds":2.000001,"stalls":2,"#,
                r#""lost_ms":10.250,"longest_ms":9.000,"elsewhere_ms":1.500}"#
            )
        );
    }

    #[test]
    fn reads_how_long_it_waited() {
        assert_eq!(second(b"2417735 61325 12\n"), Some(61_325));
        assert_eq!(second(b"2417735"), None);
    }

    #[test]
    fn ends_by_itself() {
        let report = run(Duration::from_millis(5)).expect("a report");
        assert!(report.contains(r#""mode":"stalls""#));
    }
}
