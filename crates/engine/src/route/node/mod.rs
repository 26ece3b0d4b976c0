//! The kinds of nodes that ask children: what they ask first, and what they do about each answer.
//!
//! All here is a function of the request and the answers so far. `answers` has a place for each child, `None`
//! while it has not answered; `asked` says which were asked.

mod all_async;
mod all_fastest;
mod all_initial;
mod all_majority;
mod all_sync;
mod failover;
mod key_split;
mod limit;
mod migrate;
mod miss_failover;
mod outstanding;
mod regions;
mod shadow;
mod spool;
mod warm_up;

#[cfg(test)]
mod tests;

use super::answer::{Answer, Ask, Verdict};
use crate::base::time::Time;
use crate::topology::route_tree::Node;

/// What children have said.
pub(crate) struct Answers<'a> {
    pub(crate) all: &'a [Option<Answer>],
    pub(crate) asked: &'a [bool],
    /// The child that has answered last.
    pub(crate) last: usize,
}

impl Answers<'_> {
    fn kind(&self, child: usize) -> Option<super::answer::Kind> {
        self.all[child].as_ref().map(|answer| answer.kind)
    }

    /// Whether all that were asked have answered.
    fn are_complete(&self) -> bool {
        self.all.iter().zip(self.asked).all(|(answer, asked)| !asked || answer.is_some())
    }

    /// The worst of all, the first one's among equals.
    fn worst(&self) -> Option<usize> {
        let answers = self.all.iter().enumerate();
        let severities = answers.filter_map(|(at, it)| Some((it.as_ref()?.kind.severity(), at)));
        severities.max_by_key(|&(severity, at)| (severity, usize::MAX - at)).map(|(_, at)| at)
    }

    /// The best of all, the first one's among equals.
    fn best(&self) -> Option<usize> {
        let answers = self.all.iter().enumerate();
        let severities = answers.filter_map(|(at, it)| Some((it.as_ref()?.kind.severity(), at)));
        severities.min().map(|(_, at)| at)
    }
}

/// What a node does about a request.
pub(crate) fn begin(node: &Node, ask: &Ask, now: Time) -> Verdict {
    match node {
        Node::AllSync(to) => all_sync::begin(to.len(), ask),
        Node::AllAsync(to) => all_async::begin(to.len(), ask),
        Node::AllMajority(to) => all_majority::begin(to.len(), ask),
        Node::AllFastest { to, .. } => all_fastest::begin(to.len(), ask),
        Node::AllInitial(to) => all_initial::begin(to.len(), ask),
        Node::Failover { .. } => failover::begin(),
        Node::MissFailover(_) => miss_failover::begin(),
        Node::WarmUp { .. } => warm_up::begin(),
        Node::Shadow { share, .. } => shadow::begin(*share, ask),
        Node::Migrate { share, dual_write, .. } => migrate::begin(*share, *dual_write, ask),
        Node::KeySplit { copies, .. } => key_split::begin(*copies, ask),
        Node::Limit { bucket, .. } => limit::begin(bucket, now),
        Node::Outstanding { max, busy, .. } => outstanding::begin(*max, busy),
        Node::Spool { .. } => spool::begin(),
        Node::Regions { primary, .. } => regions::begin(*primary),
        Node::Leaf(_)
        | Node::Prefix(_)
        | Node::Keys { .. }
        | Node::Operation { .. }
        | Node::Cache { .. } => {
            unreachable!("what only chooses asks nobody")
        }
    }
}

/// What a node does when a child has answered.
pub(crate) fn judge(node: &Node, ask: &Ask, answers: &Answers<'_>) -> Verdict {
    match node {
        Node::AllSync(_) => all_sync::judge(answers),
        Node::AllMajority(to) => all_majority::judge(to.len(), ask, answers),
        Node::AllFastest { miss_last, .. } => all_fastest::judge(*miss_last, answers),
        Node::AllInitial(_) => all_initial::judge(answers),
        Node::Failover { on, ttl_ms, .. } => failover::judge(*on, *ttl_ms, ask, answers),
        Node::MissFailover(_) => miss_failover::judge(answers),
        Node::WarmUp { .. } => warm_up::judge(answers),
        Node::Shadow { .. } => shadow::judge(answers),
        Node::Migrate { share, read_other, .. } => {
            migrate::judge(*share, *read_other, ask, answers)
        }
        Node::KeySplit { .. } => key_split::judge(ask, answers),
        Node::AllAsync(_) => all_async::judge(answers),
        Node::Spool { overwrites, .. } => spool::judge(*overwrites, ask, answers),
        Node::Regions { primary, .. } => regions::judge(*primary, ask, answers),
        Node::Limit { .. } | Node::Outstanding { .. } => Verdict::Answer(answers.last),
        Node::Leaf(_)
        | Node::Prefix(_)
        | Node::Keys { .. }
        | Node::Operation { .. }
        | Node::Cache { .. } => {
            unreachable!("what only chooses asks nobody")
        }
    }
}

/// The children that get a request of all of them: what must run once is for the first alone.
fn all(children: usize, ask: &Ask) -> std::ops::Range<usize> {
    match ask.repeats {
        super::answer::Repeats::Never => 0..1,
        _ => 0..children,
    }
}
