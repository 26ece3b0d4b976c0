//! `all_async`: every child gets what is written, and nobody waits for an answer.

use super::super::answer::{Ask, Change, Verdict, Word};
use super::all;

/// Reads do not get here: they go to the first child.
pub(super) fn begin(children: usize, ask: &Ask) -> Verdict {
    let children = all(children, ask).map(|child| (child, Change::None));
    Verdict::SayAndAsk(Word::Unknown, children.collect())
}
