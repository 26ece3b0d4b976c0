//! What a worker has done.

/// Where clients send something while they are still owed an answer, so often in a period at least …
const HASTY_MIN: u64 = 3;
/// … and with so many of all sends, in percent, the load is an open loop.
const HASTY_PERCENT: u64 = 5;
/// A client that comes is as much to do as so many requests: it is accepted, watched and closed, and
/// what it costs the kernel to connect and to part is more than a request is.
pub(super) const REQUESTS_PER_CLIENT: u64 = 8;

/// What has been done since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Requests that were answered.
    pub(crate) answered: u64,
    /// Clients that came.
    pub(crate) clients: u64,
    /// Times that a client asked that was owed nothing …
    pub(crate) asked: u64,
    /// … and that one sent something while it was still owed an answer.
    pub(crate) pipelined: u64,
}

impl Work {
    /// What has been done since `before`.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            answered: self.answered - before.answered,
            clients: self.clients - before.clients,
            asked: self.asked - before.asked,
            pipelined: self.pipelined - before.pipelined,
        }
    }

    /// Whether requests come though those before them have not been answered.
    pub(super) fn is_open_loop(self) -> bool {
        self.pipelined >= HASTY_MIN && self.pipelined * 100 >= self.sends() * HASTY_PERCENT
    }

    /// How often clients sent something.
    pub(super) fn sends(self) -> u64 {
        self.asked + self.pipelined
    }

    /// How much that is in requests.
    pub(super) fn requests(self) -> u64 {
        self.answered + self.clients * REQUESTS_PER_CLIENT
    }
}
