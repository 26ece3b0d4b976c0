//! Changes of one pool's ring: hold, then release.

use cashew_config::snapshot::TopologyState;
use cashew_metrics::{PoolCounter, PoolGauge, ServerGauge};

use crate::base::action::Action;
use crate::base::id::{ClientId, LaneId, PoolId, ServerId};
use crate::base::time::Time;
use crate::base::timers::Timer;
use crate::engine::Engine;
use crate::upstream::lane::{Lane, Link};
use crate::upstream::pool::{Hold, Server};

impl Engine {
    /// First phase of a change of a pool's ring: from here on the pool dispatches nothing.
    /// [`Action::Held`] says when nothing is on its way any more to servers that are well, or that
    /// `drain_ms` are over.
    pub fn handle_hold(&mut self, pool: PoolId, version: u64, drain_ms: u64, now: Time) {
        self.now = now;
        let until = now.plus_millis(drain_ms);
        let index = pool;
        let pool = &mut self.pools[pool];
        pool.hold = Some(Hold { version, until, is_told: false });
        pool.update_held();
        self.withdraw_all(|of| of == index);
        self.watch_until(until);
    }

    /// Second phase: the pool goes on, by this topology. `wall_us` is the time of day for the
    /// statistics, in microseconds since 1970.
    ///
    /// # Panics
    ///
    /// Unless the topology has a flag for each server of the pool.
    pub fn handle_release(
        &mut self,
        pool: PoolId,
        version: u64,
        topology: TopologyState,
        now: Time,
        wall_us: u64,
    ) {
        self.now = now;
        let state = &mut self.pools[pool];
        state.hold = None;
        state.update_held();
        state.ring_version = version;
        self.metrics.set_pool(state.metrics, PoolGauge::RingVersion, version);
        let live = topology.live.clone();
        let is_other = *state.topology.state() != topology;
        if is_other {
            state.topology.set_state(topology);
            self.invalidate_leases(|of| of == pool);
        }
        for (server, live) in (0..).map(ServerId::new).zip(live) {
            self.set_ejected(pool, server, !live, wall_us);
        }
        if is_other {
            self.place_topics(pool);
        }
        self.unblock_clients(|of| of == pool);
    }

    /// Lets the clients of these pools go on that have no other reason to wait.
    pub(crate) fn unblock_clients(&mut self, pools: impl Fn(PoolId) -> bool) {
        for client in self.clients.indices().collect::<Vec<ClientId>>() {
            if pools(self.clients[client].pool) {
                self.unblock(client);
            }
        }
    }

    fn set_ejected(&mut self, pool_index: PoolId, index: ServerId, ejected: bool, wall_us: u64) {
        let pool = &mut self.pools[pool_index];
        let server = &mut pool.servers[index];
        server.ask_at = Time::ZERO;
        if server.ejected == ejected {
            return;
        }
        server.ejected = ejected;
        server.failures = 0;
        self.metrics.set_server(server.metrics, ServerGauge::Ejected, u64::from(ejected));
        if !ejected {
            self.readmitted(pool_index, index);
            return;
        }
        self.metrics.set_server(server.metrics, ServerGauge::EjectedAt, wall_us);
        // All workers eject, one counts.
        if self.rank == 0 {
            self.metrics.add_pool(pool.metrics, PoolCounter::ServerEjects, 1);
        }
        self.arm_probe(pool_index, index);
    }

    /// Another worker found the server well; what is known of it here is out of date.
    pub(crate) fn readmitted(&mut self, pool: PoolId, index: ServerId) {
        let server = &self.pools[pool].servers[index];
        let (first, own, is_failing) =
            (server.first_lane, server.own_lanes().collect::<Vec<LaneId>>(), server.failing);
        let is_silent = server.is_silent();
        let feed = server.feed.as_ref().map(|feed| feed.lane);
        let private = server.streaming_lanes.iter().chain(&server.session_lanes);
        for &lane in private.chain(&feed) {
            let link = &mut self.lanes[lane].link;
            if let Link::Backoff { .. } = link {
                *link = Link::Idle;
            }
        }
        if is_silent {
            self.end_silence(pool, index);
        }
        for lane in own {
            let state = &mut self.lanes[lane];
            state.attempts = 0;
            match state.link {
                Link::Backoff { .. } => self.connect(lane),
                Link::Idle if is_failing && lane == first => self.connect(lane),
                _ => {}
            }
        }
    }

    /// Looks at the end of every tick whether there is something to say about changes, and at that
    /// time at the latest.
    pub(crate) fn watch_until(&mut self, at: Time) {
        self.is_watching = true;
        self.timers.arm(at, Timer::Change);
    }

    /// Says what has become true about changes.
    #[cold]
    pub(crate) fn watch_changes(&mut self) {
        self.is_watching = self.watch_epoch();
        for index in self.pools.ids().take(self.pools_in_use) {
            let pool = &self.pools[index];
            let Some(hold) = pool.hold.filter(|hold| !hold.is_told) else { continue };
            let awaits = |server: &Server| {
                server.is_up() && server.all_lanes().any(|lane| self.is_busy(lane))
            };
            if self.now < hold.until && pool.servers.iter().any(awaits) {
                self.is_watching = true;
                continue;
            }
            self.pools[index].hold = Some(Hold { is_told: true, ..hold });
            let (pool, version) = (index, hold.version);
            self.actions.push_back(Action::Held { pool, version });
        }
    }

    pub(crate) fn lane(&self, index: LaneId) -> &Lane {
        &self.lanes[index]
    }
}
