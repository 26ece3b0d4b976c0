//! `regions`: writes go to one region, whose answer is the client's, and from there to the others.
//!
//! What stores a whole value, and what deletes, is sent on as it is. What else the primary region has done, or may
//! have, the others have to forget the key for: a part of a value means nothing where the rest may be missing.

use super::super::answer::{Ask, Change, Kind, Repeats, Verdict};
use super::Answers;
use crate::base::outcome::Execution;
use crate::topology::route_tree::Operation;

pub(super) fn begin(primary: usize) -> Verdict {
    Verdict::ask([primary])
}

pub(super) fn judge(primary: usize, ask: &Ask, answers: &Answers<'_>) -> Verdict {
    let is_whole = ask.overwrites && ask.repeats == Repeats::Alike;
    let change = match (answers.kind(primary), ask.operation) {
        (None, _) => return Verdict::Wait,
        (_, Operation::Read) => None,
        (Some(Kind::Miss), Operation::Write) if ask.misses_change => Some(Change::Delete),
        (Some(Kind::Hit | Kind::Miss), Operation::Delete) => Some(Change::None),
        (Some(Kind::Hit), Operation::Write) if is_whole => Some(Change::None),
        (Some(Kind::Hit | Kind::Failed(Execution::Unknown) | Kind::Said), _) => {
            Some(Change::Delete)
        }
        // A value that was not stored may have been removed for that.
        (Some(Kind::Miss | Kind::Error | Kind::Refused), Operation::Write) if is_whole => {
            Some(Change::Delete)
        }
        (Some(Kind::Miss | Kind::Error | Kind::Refused | Kind::Failed(Execution::No)), _) => None,
    };
    let Some(change) = change else { return Verdict::Answer(primary) };
    let others = (0..answers.all.len()).filter(|&at| at != primary);
    Verdict::AnswerAndCopy(primary, others.map(|at| (at, change)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::answer::{Answer, Text, Word};

    const SET: Ask = Ask {
        operation: Operation::Write,
        repeats: Repeats::Alike,
        share: 0,
        random: 0,
        has_word: true,
        overwrites: true,
        misses_change: false,
        removes: false,
        is_copy: false,
    };

    #[test]
    fn others_get_what_the_primary_has_done_and_forget_what_it_may_have() {
        let says = |ask: &Ask, kind| {
            let answer = Answer { kind, digest: 0, text: Text::Word(Word::Unknown) };
            let all = [None, Some(answer), None];
            judge(1, ask, &Answers { all: &all, asked: &[false, true, false], last: 1 })
        };
        let all = |change| Verdict::AnswerAndCopy(1, vec![(0, change), (2, change)]);
        let (copy, forget, nothing) = (all(Change::None), all(Change::Delete), Verdict::Answer(1));
        let delete = Ask { operation: Operation::Delete, overwrites: false, ..SET };
        let hset = Ask { overwrites: false, ..SET };
        let incr = Ask { overwrites: false, repeats: Repeats::Never, ..SET };
        let set_nx = Ask { repeats: Repeats::Never, ..SET };
        let decr = Ask { misses_change: true, ..incr };
        let unknown = Kind::Failed(Execution::Unknown);
        for (ask, hit, miss) in [
            (&SET, &copy, &forget),
            (&delete, &copy, &copy),
            (&hset, &forget, &nothing),
            (&incr, &forget, &nothing),
            (&set_nx, &forget, &nothing),
            (&decr, &forget, &forget),
        ] {
            assert_eq!(&says(ask, Kind::Hit), hit, "{ask:?}");
            assert_eq!(&says(ask, Kind::Miss), miss, "{ask:?}");
            assert_eq!(says(ask, unknown), forget, "{ask:?}");
            assert_eq!(says(ask, Kind::Failed(Execution::No)), nothing, "{ask:?}");
        }
        assert_eq!(says(&incr, Kind::Error), nothing);
        assert_eq!(begin(1), Verdict::ask([1]));
    }
}
