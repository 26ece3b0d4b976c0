//! Reads that are sent again since their server failed when it had been sent them: `retry_reads`.
//!
//! Nobody knows whether such a read ran, and it does not matter: it changes nothing. It stands in front of
//! what was not sent on its lane, as what a server has [refused](crate::upstream::refused) does, and goes to
//! another server of the group at once, or waits like all that is not sent. That happens once to a read, and
//! as often as the budget lets it.
//!
//! A client's requests run in the order in which it sent them. So a read is not sent again if something
//! else of its client is in flight behind it, which may have run.
//!
//! What is done about it is in [`crate::upstream::outage`].

use cashew_config::snapshot::Protocol;
use cashew_protocol::memcached::{self, BINARY_REQUEST, binary};

use crate::base::time::Time;
use crate::upstream::refused::may_run_again;

/// So many a second always may, of all workers together.
const FLOOR: u64 = 10;
/// And one of so many that were answered.
const SHARE: u64 = 5;

/// What was answered in this second or the one before pays for what is sent again, so that servers which
/// answer nothing are asked little more than without it.
#[derive(Default)]
pub(crate) struct RetryBudget {
    second: u64,
    answered: u64,
    answered_before: u64,
    spent: u64,
    /// Replies to come that are none: servers refused to run what they were asked.
    refused: u64,
}

impl RetryBudget {
    fn turn(&mut self, now: Time) {
        let second = now.as_micros() / 1_000_000;
        if second != self.second {
            let is_next = second == self.second + 1;
            self.answered_before = if is_next { self.answered } else { 0 };
            (self.second, self.answered, self.spent) = (second, 0, 0);
        }
    }

    /// So many replies have come.
    pub(crate) fn answered(&mut self, count: u64, now: Time) {
        self.turn(now);
        let good = count.saturating_sub(self.refused);
        self.refused -= count - good;
        self.answered += good;
    }

    /// One of the replies that will be counted says that the request did not run.
    pub(crate) fn refused(&mut self) {
        self.refused += 1;
    }

    /// Whether one more may be sent again, which counts then.
    pub(crate) fn spend(&mut self, workers: u32, now: Time) -> bool {
        self.turn(now);
        let floor = FLOOR.div_ceil(u64::from(workers.max(1)));
        let max = floor + self.answered.max(self.answered_before) / SHARE;
        let may = self.spent < max;
        self.spent += u64::from(may);
        may
    }
}

/// Whether a request, as it was sent, changes nothing, and any server that has the key may answer it.
pub(crate) fn is_read(protocol: Protocol, bytes: &[u8]) -> bool {
    match protocol {
        Protocol::Redis => may_run_again(bytes, false),
        Protocol::Memcached if bytes.first() == Some(&BINARY_REQUEST) => {
            binary::plain_request(bytes).is_some_and(|it| it.retrieves && it.rest.is_empty())
        }
        Protocol::Memcached if bytes.starts_with(b"get ") => true,
        _ => memcached::plain_request(bytes).is_some_and(|it| it.retrieves && it.rest.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_of_the_last_second_and_a_few_may() {
        let mut budget = RetryBudget::default();
        let spent = |budget: &mut RetryBudget, workers: u32, ms: u64| {
            let now = Time::ZERO.plus_millis(ms);
            (0..1000).filter(|_| budget.spend(workers, now)).count()
        };
        assert_eq!([spent(&mut budget, 1, 0), spent(&mut budget, 1, 999)], [10, 0]);
        assert_eq!([spent(&mut budget, 4, 1000), spent(&mut budget, 0, 2000)], [3, 10]);
        budget.refused();
        budget.answered(101, Time::ZERO.plus_millis(3000));
        assert_eq!([spent(&mut budget, 1, 3500), spent(&mut budget, 1, 3600)], [30, 0]);
        assert_eq!(spent(&mut budget, 1, 4999), 30, "by the second before");
        assert_eq!(spent(&mut budget, 1, 5000), 10);
        budget.answered(100, Time::ZERO.plus_millis(6000));
        assert_eq!(spent(&mut budget, 1, 8000), 10, "it is long ago");
    }
}
