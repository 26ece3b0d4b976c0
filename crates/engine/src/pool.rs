//! A pool and its servers, as one worker sees them.

use cashew_config::snapshot::{self, Limits, Protocol};
use cashew_metrics::{PoolId, ServerId};

use crate::bulk::LargeReplies;
use crate::id::ConnId;
use crate::lane::Lane;
use crate::router::Router;
use crate::time::Time;

pub(crate) struct Pool {
    pub(crate) protocol: Protocol,
    pub(crate) metrics: PoolId,
    pub(crate) router: Router,
    pub(crate) servers: Vec<Server>,
    /// How long requests wait, in microseconds; the largest number if there is no limit.
    timeout_us: u64,
    pub(crate) limits: Limits,
    pub(crate) auth: Option<String>,
    pub(crate) database: u32,
    pub(crate) preconnect: bool,
    pub(crate) auto_eject: bool,
    pub(crate) retry_ms: u64,
    pub(crate) failure_limit: u32,
    pub(crate) large_replies: LargeReplies,
    pub(crate) clients: u64,
    /// Number of the ring in use; grows with every change.
    pub(crate) ring_version: u64,
    /// Set while a change of the ring is under way: nothing is dispatched.
    pub(crate) held: bool,
}

/// A server as this worker knows it.
pub(crate) struct Server {
    pub(crate) metrics: ServerId,
    /// Its shared lanes come first, then the bulk lane.
    pub(crate) first_lane: u32,
    pub(crate) lanes: u32,
    pub(crate) connections: u32,
    /// Failures in a row, over all lanes.
    pub(crate) failures: u32,
    /// When the last failure was counted: what fails together counts once.
    pub(crate) failed_at: Time,
    /// The last attempt to reach it failed.
    pub(crate) failing: bool,
    /// Left out of the ring, by agreement of all workers.
    pub(crate) ejected: bool,
    /// When its ejection may be asked for. It was just before, and whoever decides may have reasons
    /// not to answer.
    pub(crate) ask_at: Time,
    /// When it is asked whether it is well, while it is ejected.
    pub(crate) probe_at: Time,
    pub(crate) queues: Queues,
    /// Lanes made for one client at a time.
    pub(crate) private_lanes: Vec<u32>,
    /// Clients that wait for one of these.
    pub(crate) waiting: Vec<ConnId>,
}

/// What waits for a server over all its lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queues {
    pub(crate) unsent: u64,
    pub(crate) unsent_size: u64,
    pub(crate) in_flight: u64,
    pub(crate) in_flight_size: u64,
}

impl Queues {
    #[inline]
    pub(crate) fn add(&mut self, lane: &Lane) {
        self.unsent += u64::from(lane.unsent);
        self.unsent_size += lane.output.len();
        self.in_flight += u64::from(lane.in_flight);
        self.in_flight_size += lane.in_flight_size;
    }
}

impl Pool {
    pub(crate) fn new(pool: &snapshot::Pool, metrics: PoolId, servers: Vec<Server>) -> Self {
        Self {
            protocol: pool.protocol,
            metrics,
            router: Router::new(pool),
            servers,
            timeout_us: pool.timeout_ms.map_or(u64::MAX, |timeout| timeout.saturating_mul(1000)),
            limits: pool.limits,
            auth: pool.redis_auth.clone(),
            database: pool.redis_db,
            preconnect: pool.preconnect,
            auto_eject: pool.auto_eject_hosts,
            retry_ms: pool.server_retry_timeout_ms,
            failure_limit: pool.server_failure_limit.max(1),
            large_replies: LargeReplies::new(),
            clients: 0,
            ring_version: 0,
            held: false,
        }
    }

    /// When a request that starts to wait at `from` has waited long enough.
    #[inline]
    pub(crate) fn expiry(&self, from: Time) -> Time {
        from.plus_micros(self.timeout_us)
    }

    pub(crate) fn connect_deadline(&self, now: Time) -> Time {
        now.plus_millis(self.limits.server_connect_timeout_ms).min(self.expiry(now))
    }
}

impl Server {
    pub(crate) fn bulk_lane(&self) -> u32 {
        self.first_lane + self.lanes
    }

    /// The shared lane of a client.
    #[inline]
    pub(crate) fn lane(&self, choice: u32) -> u32 {
        // A division takes longer than all the rest.
        if self.lanes == 1 { self.first_lane } else { self.first_lane + choice % self.lanes }
    }

    #[inline]
    pub(crate) fn is_up(&self) -> bool {
        !self.failing && !self.ejected
    }
}
