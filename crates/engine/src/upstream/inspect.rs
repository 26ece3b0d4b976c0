//! What a test may know of a connection to a server: what the engine believes is still owed there.

use crate::base::id::{ClientId, ConnId};
use crate::engine::Engine;
use crate::upstream::lane::Link;

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

impl Engine {
    /// What is believed of a connection to a server; `None` when it is gone.
    pub fn lane_state(&self, conn: ConnId) -> Option<LaneState> {
        if !conn.is_lane() {
            return None;
        }
        let lane = self.lane(self.lane_elsewhere(conn)?);
        let kind = if lane.is_feed {
            LaneKind::Subscriber
        } else if lane.is_session {
            LaneKind::Exclusive
        } else if lane.is_private {
            LaneKind::Streaming
        } else {
            LaneKind::Multiplexed
        };
        Some(LaneState {
            kind,
            is_ready: matches!(lane.link, Link::Ready { .. }),
            in_flight: lane.in_flight,
            unsent: lane.unsent,
            is_taken: lane.lease != ClientId::NONE || lane.upload != ClientId::NONE,
        })
    }
}
