//! What clients have asked and got since they connected.

use crate::base::id::ClientId;

/// Of one client. It moves with its session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub received: u64,
    pub sent: u64,
    pub requests: u64,
    /// Replies that are errors, the servers' or the gateway's.
    pub errors: u32,
    /// The longest from a request to its reply; `u32::MAX` is longer.
    pub slowest_us: u32,
}

impl Totals {
    /// Since the client's requests run in its order, only the first of those that end together can have
    /// taken longest.
    #[inline(always)]
    pub(crate) fn note_latency(&mut self, latency_us: u64) {
        if latency_us > self.slowest_us.into() {
            self.slowest_us = u32::try_from(latency_us).unwrap_or(u32::MAX);
        }
    }
}

/// How much of each client's totals is among those of its user already. Beside the clients, since few pools have
/// users.
#[derive(Default)]
pub(crate) struct Published(Vec<Totals>);

impl Published {
    /// All of it is. Returns how much was before.
    pub(crate) fn replace(&mut self, client: ClientId, now: Totals) -> Totals {
        let at = client.index();
        if self.0.len() <= at {
            self.0.resize(at + 1, Totals::default());
        }
        std::mem::replace(&mut self.0[at], now)
    }

    /// Nothing is, of a client that has come.
    pub(crate) fn forget(&mut self, client: ClientId) {
        if let Some(totals) = self.0.get_mut(client.index()) {
            *totals = Totals::default();
        }
    }
}
