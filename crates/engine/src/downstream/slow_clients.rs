//! Clients that are too slow for a connection that they have to themselves.
//!
//! A client sends a large request, or takes a large reply, as fast as it likes as long as nobody else
//! needs its connection to the server. When somebody does, who is slower than `transfer_rate_min`
//! gives it up: a request is answered with an error, and the rest of a reply is kept here, up to
//! [`COLLECTED_MAX`]. Nothing at all may move for `transfer_stall_timeout` only, whoever waits.

use cashew_metrics::PoolCounter;

use crate::base::action::{Action, SlowEnd};
use crate::base::failure::Failure;
use crate::base::id::{BackendId, ClientId, LaneId, ServerId};
use crate::base::pace::{PERIOD_US, Pace};
use crate::base::time::Time;
use crate::engine::Engine;
use crate::upstream::lane::Lane;

/// A large request that finds no connection is kept here until it is whole if it has no more bytes,
/// and what is left of a large reply whose connection others need.
pub(crate) const COLLECTED_MAX: u64 = 16 << 20;
/// Lanes are looked at so often at most when all are taken.
const LOOK_US: u64 = 100_000;
/// That all are taken is counted so often at most …
const COUNT_US: u64 = 1_000_000;
/// … and told.
pub(crate) const TELL_US: u64 = 10_000_000;

impl Engine {
    /// Somebody finds all private lanes to the server taken. Returns whether one may be free by now.
    #[cold]
    pub(crate) fn want_streaming_lane(&mut self, backend: BackendId, server: ServerId) -> bool {
        let state = &mut self.backends[backend].servers[server];
        if !is_due(&mut state.wanted_at, self.now, LOOK_US) {
            return false;
        }
        for at in 0..self.backends[backend].servers[server].streaming_lanes.len() {
            let lane = self.backends[backend].servers[server].streaming_lanes[at];
            self.check_pace(lane);
        }
        let state = &self.backends[backend].servers[server];
        state.streaming_lanes.iter().any(|&lane| self.lane(lane).is_free())
    }

    /// Somebody has to wait for others' large requests and replies.
    pub(crate) fn count_want(&mut self, backend: BackendId, server: ServerId) {
        let state = &mut self.backends[backend];
        let metrics = state.metrics;
        let state = &mut state.servers[server];
        if is_due(&mut state.want_counted_at, self.now, COUNT_US) {
            self.metrics.add_pool(metrics, PoolCounter::LargeWaits, 1);
        }
    }

    /// Somebody is worse off, since all private lanes to the server are taken: counts and tells it.
    #[cold]
    pub(crate) fn notify_want(&mut self, backend: BackendId, server: ServerId) {
        self.count_want(backend, server);
        let state = &mut self.backends[backend].servers[server];
        if is_due(&mut state.want_told_at, self.now, TELL_US) {
            self.actions.push_back(Action::LargeWaits { backend, server });
        }
    }

    /// Takes a private lane back from a client that is too slow for it, if it is.
    pub(crate) fn check_pace(&mut self, index: LaneId) {
        let Lane { backend, server, upload, paused, .. } = self.lanes[index];
        if upload == ClientId::NONE && !paused {
            return;
        }
        let state = &self.backends[backend];
        let (rate, stall_ms) = (state.limits.transfer_rate_min, state.limits.transfer_stall_ms);
        let state = &state.servers[server];
        let is_wanted = state.wanted_at.is_some_and(|at| self.now.micros_since(at) < PERIOD_US);
        let is_awaited = is_wanted || !state.waiting.is_empty();
        let Some((moved, moved_at)) = self.moved_by_client(index) else {
            // Whoever is slow is the server.
            let moved = if upload == ClientId::NONE { 0 } else { self.upload(upload).size };
            self.lanes[index].pace = Pace::new(self.now, moved);
            return;
        };
        let is_slow = self.lanes[index].pace.is_slow(self.now, moved, rate);
        let is_stalled =
            stall_ms > 0 && self.now.micros_since(moved_at) >= stall_ms.saturating_mul(1000);
        if is_stalled || (is_slow && is_awaited) {
            self.put_off(index, is_stalled);
        }
    }

    /// How much has moved of what is large on a private lane, and when any did last, if it is the
    /// client that it waits for.
    fn moved_by_client(&mut self, index: LaneId) -> Option<(u64, Time)> {
        let Lane { upload, paused, progress_at, head, .. } = self.lanes[index];
        if paused {
            let client = self.reader_of(&self.lanes[index]);
            let waits =
                if client == ClientId::NONE { 0 } else { self.clients[client].output.len() };
            return Some((self.requests[head].arrived.saturating_sub(waits), progress_at));
        }
        if !self.awaits_client(index) {
            return None;
        }
        let upload = self.upload(upload);
        Some((upload.size, upload.fed_at))
    }

    fn put_off(&mut self, index: LaneId, is_stalled: bool) {
        let Lane { backend, server, upload, paused, .. } = self.lanes[index];
        let client = if paused { self.reader_of(&self.lanes[index]) } else { upload };
        if client == ClientId::NONE {
            return;
        }
        let id = self.clients[client].session.id;
        let metrics = self.backends[backend].metrics;
        let end = if !paused {
            self.metrics.add_pool(metrics, PoolCounter::SlowClients, 1);
            self.detach_upload(index);
            let request = self.abandon(index);
            self.fail_request(request, Failure::TooSlow.into());
            SlowEnd::Refused
        } else if !is_stalled && self.may_collect(index, client) {
            self.metrics.add_pool(metrics, PoolCounter::SlowClients, 1);
            self.hurry(index);
            SlowEnd::Collected
        } else {
            // Half a reply cannot be taken back.
            self.cut_client(client, PoolCounter::SlowClients);
            SlowEnd::Closed
        };
        self.actions.push_back(Action::SlowClient { backend, server, id, end });
    }

    /// Whether there is room for the rest of a reply that its client does not take.
    fn may_collect(&self, index: LaneId, client: ClientId) -> bool {
        let client = &self.clients[client];
        let rest = self.lane(index).scanner.remaining();
        let allowed = self.listeners[client.listener].limits.client_output_max;
        (1..=COLLECTED_MAX).contains(&rest) && client.output.len() + client.held + rest <= allowed
    }

    /// Reads a reply to its end whether its client takes it or not.
    fn hurry(&mut self, index: LaneId) {
        let lane = &mut self.lanes[index];
        lane.paused = false;
        lane.is_hurried = true;
        let expiry = self.backends[lane.backend].expiry(self.now);
        lane.arm(index, expiry, &mut self.timers);
        self.take_kept(index);
        // It is read again as soon as nothing is kept.
        if self.lanes[index].is_hurried {
            self.balance(index);
        }
    }
}

/// Whether it is so long since the last time; then this is the last time.
pub(crate) fn is_due(last: &mut Option<Time>, now: Time, interval_us: u64) -> bool {
    let is_due = last.is_none_or(|last| now.micros_since(last) >= interval_us);
    if is_due {
        *last = Some(now);
    }
    is_due
}
