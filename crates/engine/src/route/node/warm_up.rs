//! `warm_up`: what the cold child does not have is asked of the warm one, and added to the cold one.

use super::super::answer::{Kind, Verdict};
use super::Answers;

pub(super) const COLD: usize = 0;
pub(super) const WARM: usize = 1;

/// Writes do not get here: they go to the cold child.
pub(super) fn begin() -> Verdict {
    Verdict::ask([COLD])
}

pub(super) fn judge(answers: &Answers<'_>) -> Verdict {
    match (answers.kind(COLD), answers.kind(WARM)) {
        // Of an error about the request the other one would say the same.
        (Some(Kind::Hit | Kind::Error), _) => Verdict::Answer(COLD),
        (Some(_), None) => Verdict::ask([WARM]),
        (Some(Kind::Miss), Some(Kind::Hit)) => Verdict::AnswerAndFill(WARM, COLD),
        // One that cannot be reached cannot be filled.
        (_, Some(Kind::Hit)) => Verdict::Answer(WARM),
        _ => Verdict::Answer(answers.best().unwrap_or(COLD)),
    }
}
