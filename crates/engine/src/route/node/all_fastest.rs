//! `all_fastest`: every child is asked, and the first good answer is the client's.

use super::super::answer::{Ask, Kind, Verdict};
use super::{Answers, all};

pub(super) fn begin(children: usize, ask: &Ask) -> Verdict {
    Verdict::ask(all(children, ask))
}

pub(super) fn judge(miss_last: bool, answers: &Answers<'_>) -> Verdict {
    match answers.kind(answers.last) {
        Some(Kind::Hit) => Verdict::Answer(answers.last),
        Some(Kind::Miss) if !miss_last => Verdict::Answer(answers.last),
        _ if !answers.are_complete() => Verdict::Wait,
        _ => {
            let is_miss = |child: &usize| answers.kind(*child) == Some(Kind::Miss);
            let miss = (0..answers.all.len()).find(is_miss);
            Verdict::Answer(miss.unwrap_or(answers.last))
        }
    }
}
