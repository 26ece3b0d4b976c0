//! Another epoch, made ready before it is used.

use std::collections::BTreeSet;

use cashew_config::Snapshot;
use cashew_config::snapshot::{self, TopologyState};

use crate::base::id::{BackendId, ServerId};
use crate::downstream::audit::AuditRules;
use crate::engine::lanes_here;
use crate::topology::Topology;

/// A snapshot as one worker will serve by it, with its rings already built. Building them is what
/// takes long, so it is done on another thread; see `Engine::handle_prepare`.
pub struct Plan {
    pub(crate) epoch: u64,
    pub(crate) rank: u32,
    pub(crate) workers: u32,
    pub(crate) memory_max: Option<u64>,
    /// How long clients of pools that are removed may stay.
    pub(crate) leave_ms: u64,
    /// What is told of clients.
    pub(crate) audit: Option<AuditRules>,
    pub(crate) pools: Vec<PlannedPool>,
}

pub(crate) struct PlannedPool {
    pub(crate) config: snapshot::Pool,
    pub(crate) topology: Topology,
    pub(crate) ring_version: u64,
    pub(crate) quota: u32,
    /// Shared lanes of each server.
    pub(crate) lanes: u32,
    /// Servers that are another one now, though they are configured as before.
    pub(crate) moved: BTreeSet<ServerId>,
}

/// What is known of a pool that is not configured. The control crate has the like, which the
/// engine knows nothing of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolState {
    /// Where the pool's clients are counted, over all workers: see [`crate::Engine::poll_departed`].
    pub quota: u32,
    pub ring_version: u64,
    pub topology: TopologyState,
}

impl PoolState {
    /// Of a pool that has all of its servers.
    pub fn whole(pool: &snapshot::Pool) -> Self {
        Self { quota: 0, ring_version: 0, topology: TopologyState::whole(pool) }
    }
}

impl Plan {
    /// For the worker that is the `rank`th of so many, which share the servers' connections.
    ///
    /// # Panics
    ///
    /// Unless there is one state for each pool, which is of that pool.
    pub fn new(snapshot: &Snapshot, states: &[PoolState], rank: u32, workers: u32) -> Self {
        assert_eq!(snapshot.pools.len(), states.len(), "one state for each pool");
        let workers = workers.max(1);
        let planned = |(config, state): (&snapshot::Pool, &PoolState)| PlannedPool {
            topology: Topology::new(config, state.topology.clone()),
            ring_version: state.ring_version,
            quota: state.quota,
            // Where bytes pass through, clients have connections to servers for themselves.
            lanes: match config.tcp {
                Some(_) => 0,
                None => lanes_here(config.server_connections, rank, workers),
            },
            config: config.clone(),
            moved: BTreeSet::new(),
        };
        Self {
            epoch: snapshot.epoch,
            rank,
            workers,
            memory_max: snapshot.global.worker_memory_max,
            leave_ms: snapshot.global.worker_shutdown_timeout_ms,
            audit: snapshot.global.audit_log.as_ref().and_then(AuditRules::new),
            pools: snapshot.pools.iter().zip(states).map(planned).collect(),
        }
    }

    /// As [`Plan::new`], with all servers on the rings.
    pub fn whole(snapshot: &Snapshot, rank: u32, workers: u32) -> Self {
        let states: Vec<PoolState> = snapshot.pools.iter().map(PoolState::whole).collect();
        Self::new(snapshot, &states, rank, workers)
    }

    /// What the server is connected to now is not it any more: it gets connections of its own.
    pub fn move_server(&mut self, backend: BackendId, server: ServerId) {
        self.pools[backend.index()].moved.insert(server);
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_can_be_made_on_another_thread() {
        fn is_send<T: Send>() {}
        is_send::<Plan>();
    }
}
