//! `spool`, an option of pools: what a server could not be told to delete, or to write over, is kept, and it is
//! told when it is back.

use super::super::answer::{Answer, Ask, Kind, Verdict};
use super::Answers;
use crate::topology::route_tree::Operation;

pub(super) fn begin() -> Verdict {
    Verdict::ask([0])
}

/// What the server itself has refused did not run either. A write that has failed is an error all the same: only what was there before is to go.
pub(super) fn judge(overwrites: bool, ask: &Ask, answers: &Answers<'_>) -> Verdict {
    if ask.is_copy {
        // Whatever went wrong: this region is not to have another value.
        let is_good = answers.kind(0).is_some_and(Kind::is_good);
        return if is_good { Verdict::Answer(0) } else { Verdict::Keep(0) };
    }
    // A server that is well would be kept from its readers for the sake of a deletion that may be repeated at once.
    let is_too_much = answers.all[0].as_ref().is_some_and(Answer::is_too_much);
    let has_failed =
        !is_too_much && matches!(answers.kind(0), Some(Kind::Failed(_) | Kind::Refused));
    let is_kept = match ask.operation {
        Operation::Delete => true,
        Operation::Write => ask.removes || (overwrites && ask.overwrites),
        Operation::Read => ask.removes,
    };
    match has_failed && is_kept {
        true => Verdict::Keep(0),
        false => Verdict::Answer(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::outcome::Execution;
    use crate::route::answer::{Repeats, Text, Word};

    #[test]
    fn failed_deletions_are_kept_and_failed_writes_of_values_where_that_is_said() {
        let ask = |operation, overwrites| Ask {
            operation,
            repeats: Repeats::Alike,
            share: 0,
            random: 0,
            has_word: true,
            overwrites,
            misses_change: false,
            removes: false,
            is_copy: false,
        };
        let verdict = |ask: &Ask, kind, overwrites| {
            let all = [Some(Answer { kind, digest: 0, text: Text::Word(Word::Unknown) })];
            judge(overwrites, ask, &Answers { all: &all, asked: &[true], last: 0 })
        };
        let (keep, answer) = (Verdict::Keep(0), Verdict::Answer(0));
        let delete = ask(Operation::Delete, false);
        for failed in [Kind::Failed(Execution::No), Kind::Failed(Execution::Unknown), Kind::Refused]
        {
            assert_eq!(verdict(&delete, failed, false), keep);
            assert_eq!(verdict(&ask(Operation::Write, true), failed, true), keep);
            assert_eq!(verdict(&ask(Operation::Write, true), failed, false), answer);
            assert_eq!(verdict(&ask(Operation::Write, false), failed, true), answer);
            assert_eq!(verdict(&ask(Operation::Read, false), failed, true), answer);
            let removal = Ask { removes: true, ..ask(Operation::Write, false) };
            assert_eq!(verdict(&removal, failed, false), keep);
        }
        let copy = Ask { is_copy: true, ..ask(Operation::Write, true) };
        assert_eq!(verdict(&copy, Kind::Error, false), keep);
        assert_eq!(verdict(&copy, Kind::Hit, false), answer);
        for done in [Kind::Hit, Kind::Miss, Kind::Error] {
            assert_eq!(verdict(&delete, done, true), answer);
        }
    }
}
