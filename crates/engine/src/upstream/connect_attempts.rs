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

use crate::base::failure::Failure;
use crate::base::id::{BackendId, LaneId, ServerId};
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
        )
    }
}

impl Engine {
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
        let server = self.server_of(index);
        let is_asking = server.is_silent() && server.first_lane == index;
        let poll = self.now.plus_millis(self.rng.jitter(POLL_MS));
        let lane = &self.lanes[index];
        let is_polling = is_asking || (lane.is_feed && lane.last_failure.may_pass_soon());
        let until = if is_polling { lane.due_at.min(poll) } else { lane.due_at };
        self.lanes[index].link = Link::Backoff { until };
        self.arm_lane(index, until);
    }

    /// A server that was failing has let itself be connected, or has answered: other workers go there,
    /// too, and so does its feed.
    pub(crate) fn note_reached(&mut self, backend: BackendId, server: ServerId) {
        let state = &self.backends[backend].servers[server];
        self.metrics.set_reached(state.metrics, self.now.as_micros());
        let Some(feed) = state.feed_lane() else { return };
        if matches!(self.lane(feed).link, Link::Backoff { .. }) && self.is_feed_wanted(feed) {
            self.try_again(feed);
        }
    }
}
