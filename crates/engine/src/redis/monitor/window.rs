//! Lines of several workers in the order of their times: each is held until those of the same time have
//! come from elsewhere, too.

use std::ops::Range;

use cashew_protocol::resp;

use crate::base::time::Time;

/// How old a line is told. Other workers collect theirs for ten milliseconds; the rest is for the way.
pub(super) const HELD_MS: u64 = 15;
/// Held lines are looked at this often, so that little is moved more than once.
const STEP_MS: u64 = 5;
/// Bytes of lines that are held. Of more, the oldest are told before their time.
const HELD_SIZE_MAX: usize = 1 << 20;

#[derive(Default)]
pub(super) struct Window {
    text: Vec<u8>,
    lines: Vec<Line>,
    /// How many have come, since the start.
    pub(super) count: u64,
    /// The timer is armed for this time.
    pub(super) armed: Option<Time>,
}

struct Line {
    /// As it says itself, in microseconds since 1970.
    wall_us: i64,
    /// Which one it was in the order of coming.
    number: u64,
    due: Time,
    place: Range<usize>,
}

/// Lines in the order of their times.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Released {
    pub(super) text: Vec<u8>,
    /// Of each line its number, and where it ends.
    pub(super) ends: Vec<(u64, usize)>,
}

impl Released {
    /// The lines that are not among the first so many that have come.
    pub(super) fn since(&self, number: u64) -> Vec<u8> {
        let (mut start, mut text) = (0, Vec::new());
        for &(of, end) in &self.ends {
            if of >= number {
                text.extend_from_slice(&self.text[start..end]);
            }
            start = end;
        }
        text
    }
}

impl Window {
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn push(&mut self, lines: &[u8], wall_us: i64, now: Time) {
        for line in lines.split_inclusive(|&byte| byte == b'\n') {
            let at_us = time_of(line).unwrap_or(wall_us);
            // Whoever's clock is wrong: it is held for no longer.
            let age_us = (wall_us - at_us).clamp(0, HELD_MS as i64 * 1000) as u64;
            let start = self.text.len();
            self.text.extend_from_slice(line);
            self.lines.push(Line {
                wall_us: at_us,
                number: self.count,
                due: now.plus_micros(HELD_MS * 1000 - age_us),
                place: start..self.text.len(),
            });
            self.count += 1;
        }
    }

    /// When to look again.
    pub(super) fn next(&self, now: Time) -> Option<Time> {
        let first = self.lines.iter().map(|line| line.due).min()?;
        Some(first.max(now.plus_millis(STEP_MS)))
    }

    pub(super) fn is_full(&self) -> bool {
        self.text.len() > HELD_SIZE_MAX
    }

    /// Takes out what is due, and of what is too much the half.
    pub(super) fn release(&mut self, now: Time) -> Released {
        self.lines.sort_by_key(|line| (line.wall_us, line.number));
        let is_held = |line: &Line| line.due > now;
        // What is held for longer holds up nothing behind it.
        let mut count = self.lines.iter().rposition(|line| !is_held(line)).map_or(0, |at| at + 1);
        if self.is_full() {
            count = count.max(self.lines.len().div_ceil(2));
        }
        self.take(count)
    }

    /// Takes out everything.
    pub(super) fn release_all(&mut self) -> Released {
        self.lines.sort_by_key(|line| (line.wall_us, line.number));
        self.take(self.lines.len())
    }

    fn take(&mut self, count: usize) -> Released {
        if count == 0 {
            return Released::default();
        }
        let text = std::mem::take(&mut self.text);
        let mut released = Released::default();
        for line in self.lines.drain(..count) {
            released.text.extend_from_slice(&text[line.place]);
            released.ends.push((line.number, released.text.len()));
        }
        for line in &mut self.lines {
            let start = self.text.len();
            self.text.extend_from_slice(&text[line.place.clone()]);
            line.place = start..self.text.len();
        }
        if self.lines.is_empty() {
            self.lines = Vec::new();
        }
        released
    }
}

/// `+1339518083.107412 [0 …`
fn time_of(line: &[u8]) -> Option<i64> {
    let (seconds, rest) = split(line.strip_prefix(b"+")?, b'.')?;
    let (micros, _) = split(rest, b' ')?;
    // A number has no zeros in front.
    let micros: i64 = str::from_utf8(micros).ok()?.parse().ok()?;
    resp::integer(seconds)?.checked_mul(1_000_000)?.checked_add(micros)
}

fn split(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|&byte| byte == at)?;
    Some((&text[..at], &text[at + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL_US: i64 = 1_700_000_000_000_000;

    fn line(micros: i64, word: &str) -> String {
        let at = WALL_US + micros;
        format!("+{}.{:06} [0 a:1] \"{word}\"\r\n", at / 1_000_000, at % 1_000_000)
    }

    fn words(released: &Released) -> Vec<String> {
        let text = String::from_utf8(released.text.clone()).unwrap();
        text.lines().map(|line| line.split('"').nth(1).unwrap().to_owned()).collect()
    }

    #[test]
    fn lines_come_in_the_order_of_their_times() {
        let mut window = Window::default();
        let at = |millis: u64| (WALL_US + millis as i64 * 1000, Time::ZERO.plus_millis(millis));
        let push = |window: &mut Window, millis, text: String| {
            let (wall_us, now) = at(millis);
            window.push(text.as_bytes(), wall_us, now);
        };
        push(&mut window, 4, line(3000, "b") + &line(4000, "d"));
        // From elsewhere, later.
        push(&mut window, 12, line(2000, "a") + &line(3500, "c") + &line(12_000, "e"));
        assert_eq!(window.next(at(12).1), Some(at(17).1));
        assert!(words(&window.release(at(16).1)).is_empty());
        assert_eq!(words(&window.release(at(17).1)), ["a"]);
        assert_eq!(words(&window.release(at(19).1)), ["b", "c", "d"]);
        // Too late to be in order.
        push(&mut window, 40, line(5000, "late"));
        let released = window.release(at(40).1);
        assert_eq!(words(&released), ["late", "e"]);
        assert_eq!(released.since(5), line(5000, "late").as_bytes());
        assert!(window.is_empty() && window.text.is_empty());
        // A clock that is ahead.
        push(&mut window, 50, line(1_000_000, "ahead") + &line(50_000, "now"));
        assert_eq!(words(&window.release(at(65).1)), ["now", "ahead"]);
    }

    #[test]
    fn so_much_is_held_and_no_more() {
        let mut window = Window::default();
        let count = HELD_SIZE_MAX / line(0, "x").len() + 2;
        for n in 0..count {
            window.push(line(n as i64 % 7, "x").as_bytes(), WALL_US, Time::ZERO);
        }
        assert!(window.is_full());
        let released = window.release(Time::ZERO);
        assert_eq!(released.ends.len(), count.div_ceil(2));
        assert!(!window.is_full());
        assert_eq!(window.release_all().ends.len(), count - count.div_ceil(2));
    }
}
