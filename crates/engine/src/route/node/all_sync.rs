//! `all_sync`: every child is asked, and the worst answer is the client's.

use super::super::answer::{Ask, Verdict};
use super::{Answers, all};

pub(super) fn begin(children: usize, ask: &Ask) -> Verdict {
    Verdict::ask(all(children, ask))
}

pub(super) fn judge(answers: &Answers<'_>) -> Verdict {
    match answers.worst().filter(|_| answers.are_complete()) {
        Some(worst) => Verdict::Answer(worst),
        None => Verdict::Wait,
    }
}
