//! Servers that have said that they take longer for a while: `server_maintenance`.
//!
//! Discovery writes until when on the board, and workers look there only when something is overdue. So what waits gets
//! more time than `timeout`, also if it was sent before, and nothing is to be done where nothing is overdue.

use cashew_metrics::Writer;

use crate::base::id::ServerId;
use crate::base::time::Time;
use crate::upstream::backend::Backend;

/// So long a reply may take while its server says that it takes longer, if `timeout` is not more.
const RELAXED_MS: u64 = 10_000;
/// How often it is looked whether it still says so.
const LOOK_MS: u64 = 250;

impl Backend {
    /// When what has waited since `from` for a server has waited long enough, which it has at `expiry` as a rule.
    #[inline]
    pub(crate) fn relaxed(
        &self,
        server: ServerId,
        (from, expiry): (Time, Time),
        metrics: &Writer,
        now: Time,
    ) -> Time {
        if !self.may_relax || expiry > now {
            return expiry;
        }
        let until_ms = metrics.board().relaxed_until_ms(self.servers[server].metrics);
        let relaxed = self.relaxed_expiry(from, Time::from_micros(until_ms * 1000));
        if relaxed <= now { expiry } else { relaxed.min(now.plus_millis(LOOK_MS)) }
    }

    /// What waits while the server takes longer has its whole time from the end of that on, or [`RELAXED_MS`] in all.
    fn relaxed_expiry(&self, from: Time, until: Time) -> Time {
        match from < until {
            true => from.plus_millis(RELAXED_MS).min(self.expiry(until)),
            false => from,
        }
    }
}
