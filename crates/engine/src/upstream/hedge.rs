//! Reads that are sent to a second server, since the first takes long: `hedge`.
//!
//! When the oldest reads in flight on a lane have waited for so long without a byte of a reply, each is sent
//! once more, to another server that may answer it, if the budget has room ([`Hedging`]). From then on a
//! *twin* stands in its place in either lane, and the request itself in none. The first twin whose reply
//! begins with something else than an error gives its place back to the request, which is answered in the
//! usual way; the other one's reply is nobody's. A twin whose reply is an error, or that gets none, is out
//! of it, unless it is the last one.
//!
//! So what is right about the order of replies holds by itself. About the order of requests: a read is
//! sent elsewhere only while its client waits for nothing but reads, so that it overtakes no write, sent or
//! [refused](crate::upstream::refused), and none has overtaken it. What the client asks later stands behind
//! the twins, on lanes that both have; where a replica is asked beside the primary, which shares no lane with
//! the writes, the client is fenced until it is answered. Whether a replica is good for what its client has
//! written is asked as for any read.
//!
//! Whether a lane has such reads is looked at by its timer, which goes by what was written together. A read
//! is looked at once.
//!
//! What is done about it is in [`crate::upstream::lanes`].

use cashew_config::snapshot;

use crate::base::id::RequestId;

/// What one read more costs.
const TOKEN: u64 = 100;
/// So many may be sent at once after a time without any.
const BURST: u64 = 10 * TOKEN;

/// A read that is on its way to two servers. It is in no lane itself meanwhile.
pub(crate) struct Hedge {
    pub(crate) request: RequestId,
    /// In the lane that it was sent on, and in the other one; [`RequestId::NONE`] is one that has got no
    /// answer of use.
    pub(crate) twins: [RequestId; 2],
}

impl Hedge {
    /// A twin has got no answer of use, or is the answer. Returns the other one.
    pub(crate) fn take(&mut self, twin: RequestId) -> RequestId {
        for it in self.twins.iter_mut().filter(|it| **it == twin) {
            *it = RequestId::NONE;
        }
        let [first, second] = self.twins;
        if first == RequestId::NONE { second } else { first }
    }
}

/// When a backend's reads are sent to a second server, and how many still may be.
///
/// What servers answer pays for it, not time: if all of them are slow there are few answers, and so hardly
/// any reads more.
pub(crate) struct Hedging {
    /// Microseconds without a reply.
    pub(crate) after_us: u64,
    percent: u64,
    tokens: u64,
}

impl Hedging {
    pub(crate) fn of(config: &snapshot::Hedge) -> Self {
        let percent = config.budget_percent.into();
        Self { after_us: config.after_ms * 1000, percent, tokens: BURST }
    }

    /// The same, but what was saved up is kept.
    pub(crate) fn change(before: Option<Self>, config: &snapshot::Hedge) -> Self {
        let tokens = before.map_or(BURST, |before| before.tokens);
        Self { tokens, ..Self::of(config) }
    }

    /// So many replies have come.
    pub(crate) fn answered(&mut self, count: u64) {
        self.tokens = (self.tokens + count * self.percent).min(BURST);
    }

    /// Whether one more may be sent, which counts then. Its own reply does not pay for others.
    pub(crate) fn spend(&mut self) -> bool {
        let rest = self.tokens.checked_sub(TOKEN + self.percent);
        self.tokens = rest.unwrap_or(self.tokens);
        rest.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_pay_for_a_share_of_them_and_for_a_burst_at_most() {
        let mut hedging = Hedging::of(&snapshot::Hedge { after_ms: 3, budget_percent: 5 });
        assert_eq!((0..100).filter(|_| hedging.spend()).count(), 9, "to begin with");
        let sent = (0..10_000).filter(|_| {
            hedging.answered(1);
            let is_sent = hedging.spend();
            hedging.answered(is_sent.into());
            is_sent
        });
        let sent = sent.count();
        assert!((490..=500).contains(&sent), "{sent}");
        hedging.answered(1_000_000);
        assert_eq!((0..100).filter(|_| hedging.spend()).count(), 9, "not more is saved up");
    }
}
