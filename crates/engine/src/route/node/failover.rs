//! `failover`: the next child is asked if one has failed.

use cashew_config::snapshot::FailoverOn;

use super::super::answer::{Ask, Change, Kind, Repeats, Verdict};
use super::Answers;
use crate::base::outcome::Execution;

pub(super) fn begin() -> Verdict {
    Verdict::ask([0])
}

pub(super) fn judge(
    on: FailoverOn,
    ttl_ms: Option<u64>,
    ask: &Ask,
    answers: &Answers<'_>,
) -> Verdict {
    let (last, next) = (answers.last, answers.last + 1);
    let goes_on = match answers.kind(last) {
        // What surely did not run may run elsewhere, whatever it does.
        Some(Kind::Failed(Execution::No)) => on.refused,
        Some(Kind::Failed(Execution::Unknown)) => on.timeout && ask.repeats != Repeats::Never,
        Some(Kind::Refused) => on.error,
        _ => false,
    };
    if goes_on && next < answers.all.len() {
        return Verdict::Ask(vec![(next, ttl_ms.map_or(Change::None, Change::Ttl))]);
    }
    Verdict::Answer(last)
}
