//! What a lane's server has refused to run, while replies to the rest are awaited.
//!
//! A server that becomes a replica, or loads its data, refuses all that is on its way there, and surely
//! runs none of it. These requests are not answered: nothing more is sent on the connection, and once all
//! replies have come it is closed, and they stand in front of what was not sent, in their order. There they
//! wait as what else was not sent (see [`crate::upstream::connect_attempts`]), or go to another server.
//!
//! A client's requests run in the order in which it sent them. So where one behind a refused one has run, or
//! may have, the refused one is not sent again: its client gets the server's error. A read that has run
//! behind it is as good as not run, and sent again with it.

use crate::base::failure::Failure;
use crate::base::id::RequestId;

pub(crate) struct Refused {
    /// Why the lane's server is of no use for now.
    pub(crate) why: Failure,
    pub(crate) requests: Vec<RefusedRequest>,
}

/// A request that is to be sent again. It still counts as being in the lane.
pub(crate) struct RefusedRequest {
    pub(crate) request: RequestId,
    /// As it was sent.
    pub(crate) bytes: Vec<u8>,
    /// What it is answered if it is not sent again.
    pub(crate) reply: Vec<u8>,
}
