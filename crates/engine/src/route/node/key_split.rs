//! `key_split`: a key has several copies under names of their own. Reads take one of them, writes go to all.

use super::super::answer::{Ask, Change, Kind, Repeats, Verdict};
use super::Answers;
use crate::topology::route_tree::Operation;

/// Copies are children of the node, of which the first has the key's own name.
pub(super) fn begin(copies: u32, ask: &Ask) -> Verdict {
    let copy = |copy: u32| match copy {
        0 => (0, Change::None),
        copy => (copy as usize, Change::Copy(copy)),
    };
    match (ask.operation, ask.repeats) {
        (Operation::Read, _) => Verdict::Ask(vec![copy(ask.random % copies)]),
        // Where it may not run twice, copies would come out otherwise: they are made anew by who reads next.
        (_, Repeats::Never) => {
            let others = (1..copies).map(|copy| (copy as usize, Change::DeleteCopy(copy)));
            Verdict::Ask(std::iter::once(copy(0)).chain(others).collect())
        }
        _ => Verdict::Ask((0..copies).map(copy).collect()),
    }
}

pub(super) fn judge(ask: &Ask, answers: &Answers<'_>) -> Verdict {
    if ask.operation != Operation::Read {
        return match answers.are_complete() {
            true => Verdict::Answer(0),
            false => Verdict::Wait,
        };
    }
    match answers.kind(answers.last) {
        // A copy may be gone, or never have been there.
        Some(Kind::Hit) => Verdict::Answer(answers.last),
        _ if answers.last != 0 => Verdict::ask([0]),
        _ => Verdict::Answer(0),
    }
}
