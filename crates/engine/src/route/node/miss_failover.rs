//! `miss_failover`: the next child is asked what one does not have.

use super::super::answer::{Kind, Verdict};
use super::Answers;

/// Writes do not get here: they go to the first child.
pub(super) fn begin() -> Verdict {
    Verdict::ask([0])
}

pub(super) fn judge(answers: &Answers<'_>) -> Verdict {
    let (last, next) = (answers.last, answers.last + 1);
    match answers.kind(last) {
        // Of an error about the request others would say the same.
        Some(Kind::Hit | Kind::Error) => Verdict::Answer(last),
        _ if next < answers.all.len() => Verdict::ask([next]),
        _ => Verdict::Answer(answers.best().unwrap_or(last)),
    }
}
