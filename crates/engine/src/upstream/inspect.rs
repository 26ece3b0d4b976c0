//! What a test may know of a connection to a server: what the engine believes is still owed there.

use crate::base::id::ClientId;
use crate::upstream::lane::{Lane, Link};

/// Who may use a connection to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneKind {
    /// Requests of many clients share it.
    Multiplexed,
    /// One large request or reply at a time.
    Streaming,
    /// One client at a time, for transactions and calls that wait.
    Exclusive,
    /// Messages come on it.
    Subscriber,
}

/// What the engine believes of a connection to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneState {
    pub kind: LaneKind,
    /// The handshake is over.
    pub is_ready: bool,
    /// Requests that are written and not answered.
    pub in_flight: u32,
    /// Requests that are not wholly written.
    pub unsent: u32,
    /// A client has it for its next requests, too, or the rest of an upload is to come.
    pub is_taken: bool,
}

impl Lane {
    pub(crate) fn state(&self) -> LaneState {
        let kind = if self.is_feed {
            LaneKind::Subscriber
        } else if self.is_session {
            LaneKind::Exclusive
        } else if self.is_private {
            LaneKind::Streaming
        } else {
            LaneKind::Multiplexed
        };
        LaneState {
            kind,
            is_ready: matches!(self.link, Link::Ready { .. }),
            in_flight: self.in_flight,
            unsent: self.unsent,
            is_taken: self.lease != ClientId::NONE || self.upload != ClientId::NONE,
        }
    }
}
