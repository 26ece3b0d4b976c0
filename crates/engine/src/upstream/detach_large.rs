//! Shared lanes whose connection is set aside, since a large reply comes on it.
//!
//! That a reply is large shows when its first bytes come. From there on the connection is for that
//! reply and for what was asked behind it: it changes places with a private one, so that nobody
//! else's requests wait for its end. Who has requests there is fenced, as these must not be
//! overtaken by later ones on another connection.

use crate::base::id::{ClientId, ConnId, LaneId, RequestId};
use crate::base::time::Time;
use crate::engine::{Closed, Engine};
use crate::upstream::bulk::BULK_SIZE;
use crate::upstream::lane::{Lane, Link};
use crate::upstream::streaming::PRIVATE_LANES_MAX;

impl Engine {
    /// Whether the reply that is coming on a shared lane is so large that it would hold others up. Its
    /// client asks accordingly from here on.
    pub(crate) fn brings_large(&mut self, index: LaneId) -> bool {
        let lane = &self.lanes[index];
        let remaining = lane.scanner.remaining();
        if remaining == 0
            || lane.is_private
            || lane.refused.is_some()
            || lane.head == RequestId::NONE
        {
            return false;
        }
        let request = lane.head;
        let size = self.requests[request].arrived + remaining;
        self.learn_window(request, size);
        size >= BULK_SIZE as u64
    }

    /// Gives a shared lane another connection. What is on it stays with the one it has, as a
    /// private lane, whose number is returned; the lane's own if there is none to be had.
    #[cold]
    pub(crate) fn detach_large(&mut self, index: LaneId) -> LaneId {
        let Some(other) = self.lane_to_change_with(index) else {
            let Lane { backend, server, .. } = self.lanes[index];
            self.notify_want(backend, server);
            return index;
        };
        // The list of lanes that the statistics are behind of has their numbers.
        self.publish_lanes();
        // Each keeps the slot that its connections are named by: the driver has one for each.
        self.lanes.swap(index.index(), other.index());
        for lane in [index, other] {
            let state = &mut self.lanes[lane];
            state.is_private = lane == other;
            state.sent.clear(&mut self.bufs);
            state.armed = Time::NEVER;
            self.lane_at[state.slot as usize] = lane;
        }
        if self.lane(index).link == Link::Idle {
            self.connect(index);
        }
        [index, other].into_iter().for_each(|lane| self.rearm(lane));
        self.fence_all(other);
        other
    }

    /// A private lane that nobody has and that can take a shared one's place.
    fn lane_to_change_with(&mut self, index: LaneId) -> Option<LaneId> {
        let Lane { backend, server, .. } = self.lanes[index];
        let lane = self.free_lane_to_change_with(index);
        if lane.is_none() && self.want_streaming_lane(backend, server) {
            return self.free_lane_to_change_with(index);
        }
        lane
    }

    fn free_lane_to_change_with(&mut self, index: LaneId) -> Option<LaneId> {
        let Lane { backend, server, variant, .. } = self.lanes[index];
        let state = &self.backends[backend].servers[server];
        let is_free = |lane: &LaneId| self.lane(*lane).is_free();
        let suits = |lane: &LaneId| {
            let lane = self.lane(*lane);
            matches!(lane.link, Link::Ready { .. }) && lane.variant == variant
        };
        let free = || state.streaming_lanes.iter().copied().filter(is_free);
        if let Some(lane) = free().find(suits) {
            return Some(lane);
        }
        let lane = match free().find(|&lane| self.lane(lane).link == Link::Idle) {
            Some(lane) => lane,
            None if state.streaming_lanes.len() < PRIVATE_LANES_MAX => {
                self.add_private_lane(backend, server, variant)
            }
            None => free().next()?,
        };
        if self.lane(lane).has_connection() {
            self.disconnect(lane, Closed::ByUs);
        }
        let state = &mut self.lanes[lane];
        (state.link, state.variant) = (Link::Idle, variant);
        Some(lane)
    }

    /// What clients ask who have requests on the lane waits until these are answered. So does what nodes of a cluster
    /// send elsewhere: the shared lane of that number has another connection.
    fn fence_all(&mut self, lane: LaneId) {
        let mut at = self.lane(lane).head;
        while at != RequestId::NONE {
            if self.requests[at].is_sent_on {
                self.sent_on.scatter(at);
            }
            let client = self.waiting_client(at);
            if client != ClientId::NONE {
                self.clients[client].fenced = true;
            }
            at = self.requests[at].next_in_lane;
        }
    }

    /// The lane that has this connection, if it is not the one of that number.
    #[cold]
    pub(crate) fn lane_elsewhere(&self, conn: ConnId) -> Option<LaneId> {
        let index = *self.lane_at.get(conn.client().index())?;
        let lane = self.lane(index);
        (lane.conn == conn && lane.has_connection()).then_some(index)
    }
}
