//! Wrong passwords: who gives several is let wait longer and longer before it may go on.
//!
//! Nobody else waits: the client's connection is not read meanwhile, that is all.

use cashew_metrics::PoolCounter;

use crate::base::action::Notice;
use crate::base::id::ClientId;
use crate::base::time::Time;
use crate::base::timers::Timer;
use crate::engine::Engine;

/// So many wrong passwords cost a client nothing.
const FREE: u8 = 3;
/// The first wait, which doubles with every further wrong password up to the longest.
const WAIT_MIN_MS: u64 = 100;
const WAIT_MAX_MS: u64 = 5_000;

impl Engine {
    /// A client gave a wrong user or password.
    #[cold]
    pub(crate) fn wrong_password(&mut self, client: ClientId) {
        let listener = self.clients[client].listener;
        self.metrics.add_pool(self.listeners[listener].metrics, PoolCounter::AuthFailures, 1);
        self.notice(client, Notice::WrongPassword);
        let given = &mut self.clients[client].wrong_passwords;
        *given = given.saturating_add(1);
        if let Some(wait_ms) = wait_ms(*given) {
            self.slow_down(client, wait_ms);
        }
    }

    /// Takes no further request of the client for so long.
    pub(crate) fn slow_down(&mut self, client: ClientId, wait_ms: u64) {
        let until = self.now.plus_millis(wait_ms);
        self.clients[client].modes.enter().slowed_until = Some(until);
        self.timers.arm(until, Timer::Slowed { client, generation: self.clients.entry(client).1 });
    }

    /// A client may have waited long enough.
    pub(crate) fn end_slow_down(&mut self, client: ClientId, generation: u32, at: Time) {
        if self.clients.is_current(client, generation)
            && self.clients[client].modes.slowed_until.is_some_and(|until| until <= at)
        {
            self.clients[client].modes.end_slow_down();
            self.unblock(client);
        }
    }
}

/// How long a client waits that has given so many wrong passwords.
fn wait_ms(given: u8) -> Option<u64> {
    let doublings = given.checked_sub(FREE + 1)?;
    Some(WAIT_MIN_MS.saturating_mul(1 << doublings.min(16)).min(WAIT_MAX_MS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        assert_eq!([0, 1, 3].map(wait_ms), [None; 3]);
        assert_eq!([4, 5, 9, 10, 255].map(wait_ms), [100, 200, 3200, 5000, 5000].map(Some));
    }
}
