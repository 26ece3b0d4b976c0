//! Wrong passwords: who gives several is let wait longer and longer before it may go on.
//!
//! Nobody else waits: the client's connection is not read meanwhile, that is all.

use crate::downstream::client::Client;

/// So many wrong passwords cost a client nothing.
const FREE: u8 = 3;
/// The first wait, which doubles with every further wrong password up to the longest.
const WAIT_MIN_MS: u64 = 100;
const WAIT_MAX_MS: u64 = 5_000;

impl Client {
    /// It gave a wrong user or password. Returns for how many milliseconds it is to wait.
    pub(crate) fn count_wrong_password(&mut self) -> Option<u64> {
        self.wrong_passwords = self.wrong_passwords.saturating_add(1);
        wait_ms(self.wrong_passwords)
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
