//! `shadow`: a share of the keys is asked of another child as well, whose answers nobody waits for.

use super::super::answer::{Ask, Verdict};
use super::Answers;

pub(super) const MAIN: usize = 0;
pub(super) const SHADOW: usize = 1;

pub(super) fn begin(share: u32, ask: &Ask) -> Verdict {
    match ask.share < share {
        true => Verdict::ask([MAIN, SHADOW]),
        false => Verdict::ask([MAIN]),
    }
}

pub(super) fn judge(answers: &Answers<'_>) -> Verdict {
    match answers.all[MAIN] {
        Some(_) => Verdict::Answer(MAIN),
        None => Verdict::Wait,
    }
}
