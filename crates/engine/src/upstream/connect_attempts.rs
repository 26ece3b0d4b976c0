//! Attempts to connect to a server whose last connection failed.
//!
//! Each lane backs off, up to a second. A request does not wait for the end of that: if nobody has tried
//! the server for a moment it begins an attempt, and waits for it together with all that come meanwhile.
//! So does, without a request, what wants the server all the time: a feed with topics, and the lane that
//! asks a silent server. Such an *early* attempt that fails changes nothing: it is no further failure for
//! ejection, and the backoff ends when it would have ended.
//!
//! Workers see each other's attempts in the memory that they share. So all lanes of all workers try a
//! failing server about as often as one would, and all go there when one has reached it.
//!
//! # Requests that wait
//!
//! What was not sent did surely not run. So where `failover_wait` lets it, it does not fail with the
//! connection: it stays in its lane, in its order, until the server is back or another has taken its place
//! (see `engine/hold.rs`), and counts against the lane's limits. So do requests that come meanwhile. Each fails
//! when it has waited for so long in all, with the reason for which the server could not be reached last. Only
//! lanes that clients share have requests that wait.

use crate::base::failure::Failure;
use crate::base::id::{BackendId, LaneId, ServerId};
use crate::base::outcome::Outcome;
use crate::base::time::Time;
use crate::engine::Engine;
use crate::upstream::lane::{Lane, Link};

/// A request tries the server again if the last attempt is older than this.
const PACE_MS: u64 = 25;
/// What wants the server all the time looks so often whether it may try: half of it to all.
const POLL_MS: u64 = 40;
/// The same as [`PACE_MS`] for a silent server, where an attempt lasts until it is given up.
const SILENT_PACE_MS: u64 = 250;
/// The memory that workers share is looked at so seldom at most for one server.
const LOOK_MS: u64 = 1;

impl Failure {
    /// Whether the next attempt may end differently at any moment. A password that was refused, a name
    /// without an address or a lack of files will hardly be put right while a request waits.
    fn may_pass_soon(self) -> bool {
        matches!(
            self,
            Self::Refused
                | Self::Reset
                | Self::Closed
                | Self::TimedOut
                | Self::Unreachable
                | Self::Busy
                | Self::Loading
                | Self::MasterDown
                | Self::ReadOnly
                | Self::ClusterDown
        )
    }
}

impl Engine {
    /// Whether requests wait on this lane while its server cannot be reached.
    pub(crate) fn may_wait(&self, index: LaneId) -> bool {
        let lane = self.lane(index);
        let backend = &self.backends[lane.backend];
        backend.failover_wait_us > 0
            && lane.is_shared()
            && !backend.servers[lane.server].ejected
            && Outcome::of(lane.last_failure, false).is_worth_waiting()
    }

    /// Whether something may be sent on a lane that one client has to itself: where requests wait for a server only
    /// one that is connected, since nothing waits there.
    pub(crate) fn may_trust(&self, index: LaneId) -> bool {
        let lane = self.lane(index);
        let waits = self.backends[lane.backend].failover_wait_us > 0;
        !waits || matches!(lane.link, Link::Ready { .. })
    }

    /// Whether a request that fails so before it is sent may wait on a lane that clients share.
    pub(crate) fn is_worth_waiting(&self, backend: BackendId, why: Failure) -> bool {
        self.backends[backend].failover_wait_us > 0 && Outcome::of(why, false).is_worth_waiting()
    }

    /// When the first of those that wait has waited long enough, while a lane is being connected to a server
    /// that could not be reached before.
    pub(crate) fn trial_expiry(&self, index: LaneId) -> Option<Time> {
        let lane = self.lane(index);
        let server = &self.backends[lane.backend].servers[lane.server];
        let is_trial = server.failing || server.is_silent();
        self.wait_expiry(index).filter(|_| is_trial && self.may_wait(index))
    }

    /// When the first of those that wait has waited long enough.
    pub(crate) fn wait_expiry(&self, index: LaneId) -> Option<Time> {
        let lane = self.lane(index);
        let wait_us = self.backends[lane.backend].failover_wait_us;
        (lane.unsent > 0 && lane.in_flight == 0)
            .then(|| self.requests[lane.first_unsent].started.plus_micros(wait_us))
    }

    /// Fails those that have waited long enough.
    pub(crate) fn expire_waiting(&mut self, index: LaneId) {
        let why = self.lane(index).absence();
        while self.wait_expiry(index).is_some_and(|expiry| expiry <= self.now) {
            self.fail_first_unsent(index, why);
        }
        self.publish_queues(index);
    }

    /// A request is about to wait on a lane that has no connection, and its next attempt is due soon; or
    /// that may not be.
    #[cold]
    pub(crate) fn wait_or(&mut self, index: LaneId, why: Failure) -> Result<(), Failure> {
        if !self.may_wait(index) {
            return Err(why);
        }
        if let Link::Idle | Link::Backoff { .. } = self.lane(index).link
            && self.lane(index).unsent == 0
        {
            self.await_attempt_with(index, true);
        }
        Ok(())
    }

    /// Has a lane connected, for a request that is to wait for it there. An error if its server could not
    /// be reached a moment ago.
    pub(crate) fn reach(&mut self, index: LaneId) -> Result<(), Failure> {
        let Lane { link, attempts, asks, .. } = self.lanes[index];
        match link {
            Link::Ready { .. } => {}
            Link::Connecting { .. } | Link::Handshaking { .. } => {
                // It was begun for nobody, who had time.
                let server = self.server_of(index);
                let is_trial = server.failing && !server.ejected && attempts > 0;
                if is_trial && !asks && self.lane(index).is_shared() {
                    self.ask_for_sign(index);
                }
            }
            Link::Idle if attempts == 0 => self.connect(index),
            Link::Idle => self.try_again(index),
            Link::Backoff { .. } if self.may_try(index) => self.try_again(index),
            Link::Backoff { .. } => return Err(self.lane(index).absence()),
        }
        Ok(())
    }

    /// Whether the lane's server may be tried before the lane's backoff is over.
    pub(crate) fn may_try(&mut self, index: LaneId) -> bool {
        let now = self.now;
        let lane = &self.lanes[index];
        let server = &mut self.backends[lane.backend].servers[lane.server];
        let is_silent = server.is_silent();
        let is_soon = now < lane.tried_at.plus_millis(PACE_MS) || now < server.look_at;
        if is_soon || server.ejected || !(is_silent || lane.last_failure.may_pass_soon()) {
            return false;
        }
        if !server.failing && !is_silent {
            return true;
        }
        let attempts = self.metrics.attempts(server.metrics);
        let pace = if is_silent { SILENT_PACE_MS } else { PACE_MS };
        let due = Time::from_micros(attempts.tried_us).plus_millis(pace);
        let is_reached = Time::from_micros(attempts.reached_us) >= lane.failed_at;
        if is_reached || due <= now {
            return true;
        }
        server.look_at = due.min(now.plus_millis(LOOK_MS));
        false
    }

    /// Connects a lane whose last connection failed. A server that is still failing has little time to
    /// answer, as requests wait meanwhile: on a lane that clients share it is asked for a sign of life.
    pub(crate) fn try_again(&mut self, index: LaneId) {
        let lane = &mut self.lanes[index];
        lane.is_early = matches!(lane.link, Link::Backoff { .. }) && self.now < lane.due_at;
        let server = &self.backends[lane.backend].servers[lane.server];
        let is_trial = server.failing && !server.ejected;
        lane.asks |= is_trial && lane.is_shared();
        let deadline = is_trial.then(|| self.backends[lane.backend].first_sign(self.now));
        self.connect_until(index, deadline);
    }

    /// The lane waits for its next attempt: until its backoff is over, or less if it tries in between
    /// without a request.
    pub(crate) fn await_attempt(&mut self, index: LaneId) {
        let is_wanted = self.lane(index).unsent > 0 && self.may_wait(index);
        self.await_attempt_with(index, is_wanted);
    }

    /// The same, where requests wait for it or do not. Does nothing while it is being connected: what failed with its
    /// last connection may have left something to do there.
    pub(crate) fn await_attempt_with(&mut self, index: LaneId, is_wanted: bool) {
        if !matches!(self.lane(index).link, Link::Idle | Link::Backoff { .. }) {
            return;
        }
        let server = self.server_of(index);
        let is_asking = server.is_silent() && server.first_lane == index;
        let poll = self.now.plus_millis(self.rng.jitter(POLL_MS));
        let lane = &self.lanes[index];
        let is_polling =
            is_asking || is_wanted || (lane.is_feed && lane.last_failure.may_pass_soon());
        let mut until = if is_polling { lane.due_at.min(poll) } else { lane.due_at };
        if is_wanted {
            until = until.max(self.now.plus_millis(1));
        }
        if let Some(expiry) = self.wait_expiry(index).filter(|_| is_wanted) {
            until = until.min(expiry);
        }
        self.lanes[index].link = Link::Backoff { until };
        self.arm_lane(index, until);
    }

    /// A server that was failing has let itself be connected, or has answered: other workers go there,
    /// too, and so does its feed.
    pub(crate) fn note_reached(&mut self, backend: BackendId, server: ServerId) {
        let state = &self.backends[backend].servers[server];
        self.metrics.set_reached(state.metrics, self.now.as_micros());
        for feed in [state.feed_lane(), state.tracker_lane()].into_iter().flatten() {
            if matches!(self.lane(feed).link, Link::Backoff { .. }) && self.is_feed_wanted(feed) {
                self.try_again(feed);
            }
        }
    }
}
