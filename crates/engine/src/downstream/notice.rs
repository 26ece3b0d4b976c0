//! What clients do that an operator should hear of: told to the log with the client's address, but
//! so seldom that nobody fills it.

use crate::base::action::Notice;
use crate::base::time::Time;

/// What has been told of a pool's clients.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notices([Told; Notice::KINDS]);

#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// When the next one may be told.
    next: Option<Time>,
    /// How many have not been.
    untold: u64,
}

impl Notices {
    /// How many there have been since one was told, this one included, if it is to be told.
    pub(crate) fn count(&mut self, notice: Notice, now: Time) -> Option<u64> {
        let told = &mut self.0[notice.kind()];
        told.untold += 1;
        if told.next.is_some_and(|next| now < next) {
            return None;
        }
        told.next = Some(now.plus_millis(notice.every_ms()));
        Some(std::mem::take(&mut told.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_kind_is_told_and_the_others_are_counted() {
        let mut notices = Notices::default();
        let at = |millis| Time::ZERO.plus_millis(millis);
        let every_ms = Notice::Http.every_ms();
        assert_eq!(notices.count(Notice::Http, at(0)), Some(1));
        assert_eq!(notices.count(Notice::WrongPassword, at(1)), Some(1));
        for _ in 0..3 {
            assert_eq!(notices.count(Notice::Http, at(every_ms - 1)), None);
        }
        assert_eq!(notices.count(Notice::Http, at(every_ms)), Some(4));
        let refused = |command| Notice::Refused { command };
        assert_eq!(notices.count(refused("a"), at(0)), Some(1));
        assert_eq!(notices.count(refused("b"), at(1)), None);
    }
}
