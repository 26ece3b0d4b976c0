//! `migrate`: keys move from one child to another, a share of them at a time.

use super::super::answer::{Ask, Change, Kind, Repeats, Verdict};
use super::Answers;
use crate::topology::route_tree::Operation;

/// The child that serves the key, and the other one.
fn children(share: u32, ask: &Ask) -> [usize; 2] {
    let current = usize::from(ask.share < share);
    [current, 1 - current]
}

pub(super) fn begin(share: u32, dual_write: bool, ask: &Ask) -> Verdict {
    let [current, other] = children(share, ask);
    if ask.operation == Operation::Read || !dual_write {
        return Verdict::ask([current]);
    }
    // What may not run twice could come out otherwise there: rather nothing than something else.
    let change = if ask.repeats == Repeats::Never { Change::Delete } else { Change::None };
    Verdict::Ask(vec![(current, Change::None), (other, change)])
}

pub(super) fn judge(share: u32, read_other: bool, ask: &Ask, answers: &Answers<'_>) -> Verdict {
    let [current, other] = children(share, ask);
    if ask.operation != Operation::Read {
        // Both are waited for, so that nobody who reads either finds what was before.
        return match answers.are_complete() {
            true => Verdict::Answer(current),
            false => Verdict::Wait,
        };
    }
    match (answers.kind(current), answers.kind(other)) {
        (Some(Kind::Miss), None) if read_other => Verdict::ask([other]),
        (Some(Kind::Miss), Some(Kind::Hit)) => Verdict::Answer(other),
        _ => Verdict::Answer(current),
    }
}
