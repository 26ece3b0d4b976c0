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
}
