//! The work that a worker has done.

/// The load is an open loop if clients send something before they have their reply this often in a
/// period …
const PIPELINED_MIN: u64 = 3;
/// … and in this share of all sends, in percent.
const PIPELINED_PERCENT: u64 = 5;
/// A new client counts as this many requests: it is accepted, watched and closed, and the kernel's
/// work for it exceeds that for a request.
pub(super) const REQUESTS_PER_CLIENT: u64 = 8;

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Requests answered.
    pub(crate) answered: u64,
    /// Clients accepted.
    pub(crate) clients: u64,
    /// How often a client sent something while no reply was due to it …
    pub(crate) asked: u64,
    /// … and while one was.
    pub(crate) pipelined: u64,
}

impl Work {
    /// The work done since `before`.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            answered: self.answered - before.answered,
            clients: self.clients - before.clients,
            asked: self.asked - before.asked,
            pipelined: self.pipelined - before.pipelined,
        }
    }

    /// Whether requests come before earlier ones are answered.
    pub(super) fn is_open_loop(self) -> bool {
        self.pipelined >= PIPELINED_MIN && self.pipelined * 100 >= self.sends() * PIPELINED_PERCENT
    }

    /// How often clients sent something.
    pub(super) fn sends(self) -> u64 {
        self.asked + self.pipelined
    }

    /// The work as a number of requests.
    pub(super) fn requests(self) -> u64 {
        self.answered + self.clients * REQUESTS_PER_CLIENT
    }
}
