//! The shortest way of a request and of its reply: plain, for one key, nothing in its way.
//!
//! Both stop at whatever gives cause for thought – a limit, a fence, a server that is not connected,
//! a reply that is merged – and leave it to the general way, which comes to the same result for
//! those that pass here.

use cashew_config::snapshot::Protocol;
use cashew_metrics::PoolCounter;
use cashew_protocol::{redis, resp};

use crate::buffer::LARGE;
use crate::bulk::Mark;
use crate::client::State;
use crate::engine::Engine;
use crate::id::ConnId;
use crate::lane::{Link, Scanner};
use crate::request::Role;
use crate::slab::NONE;

impl Engine {
    /// Dispatches requests from the start of `buf`; returns what it leaves.
    #[inline]
    pub(crate) fn express_requests<'b>(&mut self, index: u32, mut buf: &'b [u8]) -> &'b [u8] {
        let client = &mut self.clients[index];
        let pool_index = client.pool;
        let pool = &self.pools[pool_index as usize];
        let limits = &pool.limits;
        let is_clear = client.session.protocol == Protocol::Redis
            && client.session.authenticated
            && client.state == State::Open
            && client.parser.is_none()
            && !pool.held
            && !client.fenced
            && client.output.len() + client.held < limits.client_output_pause;
        if !is_clear {
            return buf;
        }
        let requests_before = client.requests;
        let size_max = (LARGE as u64 - 1).min(limits.request_size_max) as usize;
        let expiry = pool.expiry(self.now);
        while client.requests < limits.client_requests_max
            && let Some(plain) = resp::plain_request(buf)
            && plain.bytes.len() <= size_max
            && let Some(command) = redis::find_plain(&plain)
        {
            let mark = Mark::of(plain.key);
            if pool.large_replies.contains(mark) {
                break;
            }
            let is_up = |server: u32| pool.servers[server as usize].is_up();
            let Some(server) = pool.router.select(plain.key, command.access, &mut self.rng, is_up)
            else {
                break;
            };
            let lane_index = pool.servers[server as usize].lane(client.lane_choice);
            let lane = &mut self.lanes[lane_index as usize];
            if !lane.has_connection() || lane.is_full(limits, plain.bytes.len()) {
                break;
            }
            let request = self.requests.add(pool_index, index, self.now);
            self.requests[request].mark = mark;
            client.append(request, &mut self.requests, &mut self.crowd);
            lane.output.push(plain.bytes, &mut self.bufs);
            lane.append(request, plain.bytes.len() as u64, &mut self.requests);
            lane.mark(lane_index, &mut self.dirty_lanes);
            lane.arm(lane_index, expiry, &mut self.timers);
            buf = plain.rest;
        }
        let count = u64::from(client.requests - requests_before);
        self.metrics.add_pool(pool.metrics, PoolCounter::Requests, count);
        buf
    }

    /// Delivers replies from the start of `buf`, which come from a lane; returns what it leaves.
    #[inline]
    pub(crate) fn express_replies<'b>(&mut self, index: u32, mut buf: &'b [u8]) -> &'b [u8] {
        let lane = &mut self.lanes[index as usize];
        let pool = &self.pools[lane.pool as usize];
        let Scanner::Redis(scanner) = &lane.scanner else { return buf };
        let is_clear = matches!(lane.link, Link::Ready { .. })
            && scanner.at_start()
            && pool.large_replies.is_empty();
        if !is_clear {
            return buf;
        }
        let batch_end = lane.batches.front().map_or(u64::MAX, |batch| batch.end);
        let mut unblocked = NONE;
        while lane.in_flight > 0
            && let Some((reply, rest)) = resp::plain_reply(buf)
            && reply.len() < LARGE
        {
            let len = reply.len() as u64;
            let head = lane.head;
            let request = &mut self.requests[head];
            let is_plain = matches!(request.role, Role::Single)
                && request.client != NONE
                && !request.silent
                && request.arrived == 0;
            if !is_plain {
                break;
            }
            let owner = request.client;
            let (client, generation) = self.clients.entry(owner);
            if client.output.len() + client.held + len > pool.limits.client_output_max {
                break;
            }
            buf = rest;
            request.in_lane = false;
            request.done = true;
            lane.pop_head(request.next_in_lane, request.wire_len);
            if client.head != head {
                request.hold(reply, &mut self.bufs);
                client.held += len;
            } else {
                client.output.push(reply, &mut self.bufs);
                let (requests, bufs) = (&mut self.requests, &mut self.bufs);
                client.deliver_done(requests, bufs, &mut self.crowd, |started| {
                    let latency = self.now.micros_since(started);
                    self.tally.add(pool.metrics, latency, &self.metrics);
                });
                if client.paused {
                    unblocked = owner;
                }
                let conn = ConnId::client(owner, generation);
                client.mark(conn, &mut self.dirty_clients, &mut self.patient_clients);
            }
            if unblocked != NONE || lane.answered == batch_end {
                break;
            }
        }
        if unblocked != NONE {
            self.unblock(unblocked);
        }
        self.end_batch(index);
        buf
    }
}
