//! How many clients ask, and how many of them wait.

use crate::base::time::Time;

/// Clients that asked within one to two such periods are the active ones.
const PERIOD_US: u64 = 20_000;
/// What clients ask is counted over so many periods, about five seconds.
const PERIODS_COUNTED: u32 = 256;

/// Counts the clients of all pools that have asked something lately, and those of them that have
/// no answer yet: where nearly all wait, hardly anybody is left who could ask.
#[derive(Clone, Copy, Debug, Default)]
pub struct Activity {
    /// Clients that are owed an answer.
    pub waiting: u32,
    /// How often something came from a client, since the start.
    pub received: u64,
    /// How often a client asked that was owed nothing, since the start.
    pub asked: u64,
    /// How often a client sent something while it was still owed an answer, since the start.
    pub pipelined: u64,
    recent: u32,
    recent_before: u32,
    /// Of those counted in `recent`, how many have gone whose place nobody has taken.
    free_ids: u32,
    period: u32,
    until: Time,
}

impl Activity {
    /// So many clients that wait, of so many active ones.
    pub fn with(waiting: u32, active: u32) -> Self {
        Self { waiting, recent: active, ..Self::default() }
    }

    /// Clients that have asked lately.
    pub fn active(&self) -> u32 {
        self.recent.max(self.recent_before)
    }

    /// A client that was owed nothing asks; `last` is the period in which it asked before, and
    /// `count` how much it asked since its count was begun.
    #[inline(always)]
    pub(crate) fn join(&mut self, last: &mut u32, count: &mut u32) {
        self.waiting += 1;
        self.asked += 1;
        if *last != self.period {
            self.join_anew(last, count);
        }
    }

    /// The client has not asked in this period before.
    #[inline(never)]
    fn join_anew(&mut self, last: &mut u32, count: &mut u32) {
        if *last / PERIODS_COUNTED != self.period / PERIODS_COUNTED {
            *count = 0;
        }
        // Who has just connected takes the place of one who has gone, if there is any: of clients
        // that ask once and go, as many are active as there are at a time.
        match *last == 0 && self.free_ids > 0 {
            true => self.free_ids -= 1,
            false => self.recent += 1,
        }
        *last = self.period;
    }

    /// How much a client asked lately, given its `last` and `count` and whether it is owed
    /// something. Its count begins anew.
    pub(crate) fn take_count(&self, last: &mut u32, count: &mut u32, is_waiting: bool) -> u32 {
        let counted = std::mem::take(count);
        if *last / PERIODS_COUNTED == self.period / PERIODS_COUNTED {
            return counted;
        }
        if !is_waiting {
            return 0;
        }
        // It has been owed something ever since, so that its count was never begun anew.
        let periods = self.period.wrapping_sub(std::mem::replace(last, self.period));
        let lately = u64::from(counted) * u64::from(PERIODS_COUNTED.min(periods));
        (lately / u64::from(periods.max(1))) as u32
    }

    /// The name of this moment, for who is taken to have asked in it.
    pub(crate) fn period(&self) -> u32 {
        self.period
    }

    /// For how long a client that is owed nothing has not asked, given its `last`; `None` if it
    /// never has.
    pub(crate) fn silence_us(&self, last: u32, now: Time) -> Option<u64> {
        let periods = period_of(now).wrapping_sub(last);
        (last != 0).then(|| u64::from(periods) * PERIOD_US)
    }

    /// A client that had left waits again.
    pub(crate) fn come_back(&mut self) {
        self.waiting += 1;
    }

    /// A client is owed nothing any more, or has gone, or waits for something that nobody here can
    /// give.
    #[inline]
    pub(crate) fn leave(&mut self) {
        self.waiting -= 1;
    }

    /// A client has gone; `last` is the period in which it asked last.
    pub(crate) fn depart(&mut self, last: u32) {
        self.free_ids += u32::from(last == self.period && last != 0);
    }

    #[inline]
    pub(crate) fn tick(&mut self, now: Time) {
        if now >= self.until {
            // After a long silence both counts are of the past.
            let is_next = now.micros_since(self.until) < PERIOD_US;
            self.recent_before = if is_next { self.recent } else { 0 };
            self.recent = 0;
            self.free_ids = 0;
            self.until = Time::from_micros(now.as_micros() + PERIOD_US);
            self.period = period_of(now);
        }
    }
}

/// The period that has that time. None is 0, which is that of clients that never asked.
fn period_of(now: Time) -> u32 {
    ((now.as_micros() / PERIOD_US + 1) as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_count_once_in_a_period_and_are_forgotten_after_two() {
        let mut activity = Activity::default();
        let mut clients = [0; 3];
        let mut count = 0;
        activity.tick(Time::from_micros(1));
        for _ in 0..2 {
            clients.iter_mut().for_each(|last| activity.join(last, &mut count));
            (0..3).for_each(|_| activity.leave());
        }
        assert_eq!((activity.active(), activity.waiting), (3, 0));
        activity.tick(Time::from_micros(PERIOD_US + 1));
        activity.join(&mut clients[0], &mut count);
        assert_eq!((activity.active(), activity.waiting), (3, 1));
        activity.tick(Time::from_micros(2 * PERIOD_US + 1));
        assert_eq!(activity.active(), 1);
        activity.tick(Time::from_micros(9 * PERIOD_US));
        assert_eq!(activity.active(), 0);
    }

    #[test]
    fn who_comes_takes_the_place_of_who_has_gone() {
        let mut activity = Activity::default();
        activity.tick(Time::from_micros(1));
        let come = |activity: &mut Activity| {
            let mut last = 0;
            activity.join(&mut last, &mut 0);
            last
        };
        let stays = come(&mut activity);
        for _ in 0..10 {
            let (one, other) = (come(&mut activity), come(&mut activity));
            for last in [one, other] {
                activity.leave();
                activity.depart(last);
            }
        }
        assert_eq!((activity.active(), activity.waiting), (3, 1));
        // Who never asked, or not lately, leaves no place.
        activity.tick(Time::from_micros(PERIOD_US + 1));
        activity.leave();
        activity.depart(stays);
        activity.depart(0);
        come(&mut activity);
        come(&mut activity);
        activity.tick(Time::from_micros(2 * PERIOD_US + 1));
        assert_eq!(activity.active(), 2);
    }

    #[test]
    fn only_what_was_asked_lately_counts() {
        let mut activity = Activity::default();
        let mut periods = 0;
        let mut pass = |activity: &mut Activity, count| {
            for _ in 0..count {
                activity.tick(Time::from_micros(1 + periods * PERIOD_US));
                periods += 1;
            }
        };
        let mut client = (0, 0);
        pass(&mut activity, 1);
        activity.join(&mut client.0, &mut client.1);
        client.1 += 100;
        // Who is owed nothing and asks nothing does not count.
        let (mut silent, mut busy) = (client, client);
        busy.1 = 100 * PERIODS_COUNTED;
        assert_eq!(activity.take_count(&mut client.0, &mut client.1, false), 100);
        assert_eq!(activity.take_count(&mut client.0, &mut client.1, false), 0);
        pass(&mut activity, 10 * PERIODS_COUNTED);
        assert_eq!(activity.take_count(&mut silent.0, &mut silent.1, false), 0);
        // Of who asks on and on the average does.
        let count = 10 * busy.1;
        busy.1 = count;
        assert_eq!(activity.take_count(&mut busy.0, &mut busy.1, true), count / 10);
        // Who comes back begins anew.
        silent.1 = 7;
        silent.0 = 1;
        activity.join(&mut silent.0, &mut silent.1);
        assert_eq!(silent.1, 0);
    }
}
