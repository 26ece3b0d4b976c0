//! What the choice of a server goes by, apart from the topology.

use crate::base::id::ServerId;

/// The servers of a topology, as whoever chooses knows them.
pub(crate) trait Health {
    /// Whether it can be reached.
    fn is_up(&self, server: ServerId) -> bool;

    /// Whether a replica's copy is good enough to answer reads.
    fn is_fit(&self, server: ServerId) -> bool;

    /// How long it takes to answer, in microseconds.
    fn latency(&self, server: ServerId) -> u32;

    /// Whether it is time to find that out again. Whoever is told so sends a request there.
    fn takes_measurement(&self, server: ServerId) -> bool;

    /// Whether it came back a moment ago, and is to get only a share of what others can answer.
    fn is_on_trial(&self, server: ServerId) -> bool;

    /// Whether a read that others can answer is for it: always, unless it is on trial. Whoever is told so
    /// sends a request there.
    fn admits(&self, server: ServerId) -> bool;

    /// Who takes longer than so many microseconds is passed by while another does not; `None` if nobody
    /// is.
    fn slow_from(&self) -> Option<u32>;
}

/// The same, as if one server could not be reached.
pub(crate) struct Without<'a, H> {
    pub(crate) health: &'a H,
    pub(crate) server: ServerId,
}

impl<H: Health> Health for Without<'_, H> {
    fn is_up(&self, server: ServerId) -> bool {
        server != self.server && self.health.is_up(server)
    }

    fn is_fit(&self, server: ServerId) -> bool {
        self.health.is_fit(server)
    }

    fn latency(&self, server: ServerId) -> u32 {
        self.health.latency(server)
    }

    fn takes_measurement(&self, _: ServerId) -> bool {
        false
    }

    fn is_on_trial(&self, server: ServerId) -> bool {
        self.health.is_on_trial(server)
    }

    fn admits(&self, server: ServerId) -> bool {
        self.health.admits(server)
    }

    fn slow_from(&self) -> Option<u32> {
        self.health.slow_from()
    }
}
