//! `all_majority`: every child is asked, and the client has what more than half of them say.

use super::super::answer::{Answer, Ask, Kind, Repeats, Verdict, Word};
use super::{Answers, all};

pub(super) fn begin(children: usize, ask: &Ask) -> Verdict {
    Verdict::ask(all(children, ask))
}

pub(super) fn judge(children: usize, ask: &Ask, answers: &Answers<'_>) -> Verdict {
    if ask.repeats == Repeats::Never {
        return Verdict::Answer(0);
    }
    // Reads agree on values, what is written on what became of it.
    let agree = |one: &Answer, other: &Answer| match ask.repeats {
        Repeats::Freely => one.kind == other.kind && one.digest == other.digest,
        _ => one.kind == other.kind,
    };
    let Some(last) = &answers.all[answers.last] else { return Verdict::Wait };
    let votes = answers.all.iter().flatten().filter(|other| agree(last, other)).count();
    if last.kind.is_good() && votes > children / 2 {
        let first = answers.all.iter().position(|it| it.as_ref().is_some_and(|it| agree(last, it)));
        return Verdict::Answer(first.unwrap_or(answers.last));
    }
    if !answers.are_complete() {
        return Verdict::Wait;
    }
    let failed = answers.all.iter().flatten().filter(|answer| !answer.kind.is_good()).count();
    if failed > children / 2 {
        // Most could not say: that is why.
        return Verdict::Answer(answers.worst().unwrap_or(answers.last));
    }
    let count = |kind: Kind| {
        answers.all.iter().flatten().filter(|answer| answer.kind == kind).count() as u8
    };
    Verdict::Say(Word::NoMajority(count(Kind::Hit), count(Kind::Miss), failed as u8))
}
