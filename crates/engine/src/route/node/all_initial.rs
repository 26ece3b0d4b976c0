//! `all_initial`: every child is asked, and the first child's answer is the client's.

use super::super::answer::{Ask, Verdict};
use super::{Answers, all};

pub(super) fn begin(children: usize, ask: &Ask) -> Verdict {
    Verdict::ask(all(children, ask))
}

pub(super) fn judge(answers: &Answers<'_>) -> Verdict {
    match answers.all[0] {
        Some(_) => Verdict::Answer(0),
        None => Verdict::Wait,
    }
}
