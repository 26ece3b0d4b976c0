//! What listeners and backends are to the epoch in use.

use crate::base::time::Time;

/// What a listener or a backend is to the epoch in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Belongs to it.
    InUse,
    /// Belongs to an epoch that is being prepared: it has lanes, for servers that are new, and no
    /// clients.
    Coming,
    /// Was removed then: serves the clients it has, until that time.
    Leaving { since: Time, until: Time },
    /// Nothing is left of it.
    Gone,
}
