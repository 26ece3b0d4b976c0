//! How many clients ask, and how many of them wait.

use crate::time::Time;

/// Clients that asked within one to two such periods are the active ones.
const PERIOD_US: u64 = 20_000;

/// Counts the clients of all pools that have asked something lately, and those of them that have
/// no answer yet: where nearly all wait, hardly anybody is left who could ask.
#[derive(Clone, Copy, Debug, Default)]
pub struct Crowd {
    /// Clients that are owed an answer.
    pub waiting: u32,
    asked: u32,
    asked_before: u32,
    period: u32,
    until: Time,
}

impl Crowd {
    /// So many clients that wait, of so many active ones.
    pub fn with(waiting: u32, active: u32) -> Self {
        Self { waiting, asked: active, ..Self::default() }
    }

    /// Clients that have asked lately.
    pub fn active(&self) -> u32 {
        self.asked.max(self.asked_before)
    }

    /// A client that was owed nothing asks; `last` is the period in which it asked before.
    #[inline]
    pub(crate) fn join(&mut self, last: &mut u32) {
        self.waiting += 1;
        if *last != self.period {
            *last = self.period;
            self.asked += 1;
        }
    }

    /// A client is owed nothing any more, or has gone.
    #[inline]
    pub(crate) fn leave(&mut self) {
        self.waiting -= 1;
    }

    #[inline]
    pub(crate) fn tick(&mut self, now: Time) {
        if now >= self.until {
            // After a long silence both counts are of the past.
            let is_next = now.micros_since(self.until) < PERIOD_US;
            self.asked_before = if is_next { self.asked } else { 0 };
            self.asked = 0;
            self.until = Time::from_micros(now.as_micros() + PERIOD_US);
            self.period = self.period.wrapping_add(1).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_count_once_in_a_period_and_are_forgotten_after_two() {
        let mut crowd = Crowd::default();
        let mut clients = [0; 3];
        crowd.tick(Time::from_micros(1));
        for _ in 0..2 {
            clients.iter_mut().for_each(|last| crowd.join(last));
            (0..3).for_each(|_| crowd.leave());
        }
        assert_eq!((crowd.active(), crowd.waiting), (3, 0));
        crowd.tick(Time::from_micros(PERIOD_US + 1));
        crowd.join(&mut clients[0]);
        assert_eq!((crowd.active(), crowd.waiting), (3, 1));
        crowd.tick(Time::from_micros(2 * PERIOD_US + 1));
        assert_eq!(crowd.active(), 1);
        crowd.tick(Time::from_micros(9 * PERIOD_US));
        assert_eq!(crowd.active(), 0);
    }
}
