//! Lanes that one client has to itself for a while.
//!
//! They are made when they are needed, at most [`PRIVATE_LANES_MAX`] for each server, and lose their
//! connection when nobody has needed them for [`IDLE_MAX_US`].

use crate::action::Action;
use crate::engine::{Closed, Engine};
use crate::failure::Failure;
use crate::lane::{Lane, Link};
use crate::slab::NONE;

/// Each is a connection more to the server, from every worker.
pub(crate) const PRIVATE_LANES_MAX: usize = 4;
const IDLE_MAX_US: u64 = 10_000_000;
/// A client that sends nothing of its upload for so long gives way to one that waits.
const STALLED_AFTER_US: u64 = 10_000_000;

impl Engine {
    /// A lane to the server for this client alone. `None` when all are taken: it will be told
    /// when one is free.
    pub(crate) fn private_lane(
        &mut self,
        client: u32,
        server_index: u32,
    ) -> Result<Option<u32>, Failure> {
        let pool_index = self.clients[client].pool;
        let server = &self.pools[pool_index as usize].servers[server_index as usize];
        let rank = |lane: &u32| match self.lanes[*lane as usize].link {
            Link::Ready { .. } => 0,
            Link::Handshaking { .. } | Link::Connecting { .. } => 1,
            Link::Idle => 2,
            Link::Backoff { .. } => 3,
        };
        let free = |lane: &u32| self.lanes[*lane as usize].is_free();
        let best = server.private_lanes.iter().copied().filter(free).min_by_key(rank);
        let lane = match best {
            Some(lane) => lane,
            None if server.private_lanes.len() < PRIVATE_LANES_MAX => {
                self.add_private_lane(pool_index, server_index)
            }
            None => {
                let conn = self.client_conn(client);
                let pool = &mut self.pools[pool_index as usize];
                pool.servers[server_index as usize].waiting.push(conn);
                return Ok(None);
            }
        };
        match self.lanes[lane as usize].link {
            Link::Backoff { .. } => return Err(self.lanes[lane as usize].last_failure),
            Link::Idle => self.connect(lane),
            Link::Ready { .. } | Link::Handshaking { .. } | Link::Connecting { .. } => {}
        }
        Ok(Some(lane))
    }

    fn add_private_lane(&mut self, pool_index: u32, server_index: u32) -> u32 {
        let pool = &mut self.pools[pool_index as usize];
        let lane = self.lanes.len() as u32;
        self.lanes.push(Lane::new(pool_index, server_index, pool.protocol));
        pool.servers[server_index as usize].private_lanes.push(lane);
        self.private_lanes.push(lane);
        lane
    }

    /// Whether the lane is one of those made here.
    pub(crate) fn is_private(&self, index: u32) -> bool {
        let lane = &self.lanes[index as usize];
        index > self.pools[lane.pool as usize].servers[lane.server as usize].bulk_lane()
    }

    /// Lets clients try again that wait for a lane to the server, if one is free.
    #[cold]
    pub(crate) fn wake_waiting(&mut self, pool: u32, server: u32) {
        let server = &mut self.pools[pool as usize].servers[server as usize];
        if !server.private_lanes.iter().any(|&lane| self.lanes[lane as usize].is_free()) {
            return;
        }
        // All of them: it is not known here who still wants it.
        for conn in std::mem::take(&mut server.waiting) {
            if self.clients.is_current(conn.index(), conn.generation()) {
                self.unblock(conn.index());
            }
        }
    }

    /// Ends the connection under a request that will never be whole, so that it is not executed.
    /// Returns the request, which is in no queue of the lane any more. No fault of the server's.
    pub(crate) fn abandon(&mut self, index: u32) -> u32 {
        let lane = &mut self.lanes[index as usize];
        let request = lane.head;
        debug_assert!(
            request == lane.tail && lane.in_flight == 0,
            "a private lane has one request"
        );
        (lane.head, lane.tail, lane.first_unsent) = (NONE, NONE, NONE);
        (lane.unsent, lane.partial, lane.in_flight_size) = (0, 0, 0);
        lane.upload = NONE;
        lane.output.clear(&mut self.bufs);
        if lane.has_connection() {
            self.disconnect(index, Closed::ByUs);
        }
        self.publish_queues(index);
        request
    }

    /// Closes private connections that nobody needs, and takes lanes back from clients that do not
    /// use them while others wait.
    pub(crate) fn tend_private_lanes(&mut self) {
        for at in 0..self.private_lanes.len() {
            let index = self.private_lanes[at];
            let lane = &self.lanes[index as usize];
            if lane.upload != NONE {
                self.give_way(index);
            } else if lane.is_free()
                && matches!(lane.link, Link::Ready { .. })
                && self.now.micros_since(lane.progress_at) >= IDLE_MAX_US
            {
                self.disconnect(index, Closed::ByUs);
            }
        }
    }

    fn give_way(&mut self, index: u32) {
        let lane = &self.lanes[index as usize];
        let is_awaited =
            !self.pools[lane.pool as usize].servers[lane.server as usize].waiting.is_empty();
        let fed_at = self.upload(lane.upload).fed_at;
        let is_stalled = self.now.micros_since(fed_at) >= STALLED_AFTER_US;
        if is_awaited && is_stalled && self.awaits_client(index) {
            self.detach_upload(index);
            let request = self.abandon(index);
            self.fail_request(request, Failure::TimedOut);
        }
    }

    /// Ends the connection.
    pub(crate) fn disconnect(&mut self, index: u32, closed: Closed) -> Link {
        if closed == Closed::ByUs {
            let conn = self.lane_conn(index);
            self.actions.push_back(Action::Close { conn });
        }
        self.record_answered(index);
        let lane = &mut self.lanes[index as usize];
        let link = std::mem::replace(&mut lane.link, Link::Idle);
        lane.generation = lane.generation.wrapping_add(1);
        lane.dirty = false;
        lane.handshake.output.clear(&mut self.bufs);
        lane.handshake.reply.clear();
        lane.batches.clear();
        lane.written = 0;
        lane.answered = 0;
        lane.recorded = 0;
        if !matches!(link, Link::Connecting { .. }) {
            self.server_of(index).connections -= 1;
            self.publish_connections(index);
        }
        link
    }
}
