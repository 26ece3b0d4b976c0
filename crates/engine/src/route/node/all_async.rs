//! `all_async`: every child gets what is written, and nobody waits for an answer. For what cannot be answered
//! without one, as it tells what was there, the first child's is waited for.

use super::super::answer::{Ask, Change, Repeats, Verdict, Word};
use super::{Answers, all};

/// Reads do not get here: they go to the first child.
pub(super) fn begin(children: usize, ask: &Ask) -> Verdict {
    if !ask.has_word || ask.repeats == Repeats::Never {
        return Verdict::ask(all(children, ask));
    }
    let children = (0..children).map(|child| (child, Change::None));
    Verdict::SayAndAsk(Word::Unknown, children.collect())
}

pub(super) fn judge(answers: &Answers<'_>) -> Verdict {
    match answers.all[0] {
        Some(_) => Verdict::Answer(0),
        None => Verdict::Wait,
    }
}
