//! What became of replies: for how long those of earlier requests were waited for, and then the client.
//!
//! A reply leaves when those to earlier requests of its client have, and when the client takes it. Where the client
//! does not take all at once, it is noted how many bytes have to be written until it has. Clients that take long are
//! noticed so whatever they asked for.

use crate::base::id::{ConnId, RequestId};
use crate::base::time::Time;
use crate::observe::Sighting;

/// More are not waited for.
pub(crate) const WAITING_MAX: usize = 1024;
/// Clients that do not take all at once, and of which nothing else is known, that are looked at at a time.
pub(crate) const STUCK_MAX: usize = 64;

pub(crate) struct Waiting {
    pub(crate) sighting: Sighting,
    pub(crate) client: ConnId,
    pub(crate) stage: Stage,
}

pub(crate) enum Stage {
    /// Until the request has left its client's queue.
    Order { request: RequestId, started: Time, answered: Time, is_new: bool },
    /// Until the client has taken so many bytes.
    Output { since: Time, left: u64, until: Option<Time> },
}
