//! How many clients a worker may have, by its limit of open files: what servers need is not given
//! to clients.

use cashew_config::Snapshot;
use cashew_config::snapshot::{self, Protocol};

use crate::engine::{Engine, lanes_here};
use crate::upstream::backend::Backend;
use crate::upstream::streaming::PRIVATE_LANES_MAX;

/// The log, the channel to the master, epoll or io_uring with what wakes it, memory that is mapped,
/// and what looking up a name takes for a moment.
const WORKER: u64 = 16;
/// Where others are asked who clients are: connections to a service, files that are read, and what wakes the worker.
const AUTHORISER: u64 = 68;
/// Sessions on their way in, out, or being refused: each has a socket and perhaps a memfd that are
/// not a client's here, or not any more.
const MOVING: u64 = 16;
/// The master and the admin, which are in the same process when there is but one: the connections
/// of the statistics and of operators, above all.
const ALONE: u64 = 64;
/// Connections for sessions are not reserved beyond one part in so many of the limit: who finds
/// none waits for one.
const SESSIONS_SHARE: u64 = 4;
/// When even what is reserved is too much, clients have one part in so many of the limit: servers
/// without clients are of no use.
const LEAST_SHARE: u64 = 8;

/// What a worker does with the files it may open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFiles {
    /// RLIMIT_NOFILE, the soft one.
    pub limit: u64,
    /// Listening sockets.
    pub listeners: u64,
    /// Connections to servers that there may be at once, but for those that clients lease, and those to whoever is
    /// asked who clients are.
    pub server_connections: u64,
    /// Connections to servers that clients may lease, if there are files for all of them.
    pub session_connections: u64,
    /// Master, worker and admin are one process.
    pub alone: bool,
}

impl OpenFiles {
    /// Of the worker with the largest share of the servers' connections.
    pub fn of(snapshot: &Snapshot, limit: u64) -> Self {
        let workers = snapshot.global.worker_processes;
        let connections = snapshot.pools.iter().map(|pool| {
            let shared = lanes_here(pool.server_connections, 0, workers);
            connections_max(pool.protocol, pool.servers.len(), shared, 0)
        });
        let sessions = snapshot.pools.iter().map(|pool| sessions_max(pool, 0, workers));
        let asks = snapshot.pools.iter().any(|pool| pool.external_auth.is_some());
        Self {
            limit,
            listeners: snapshot.pools.len() as u64,
            server_connections: connections.sum::<u64>() + if asks { AUTHORISER } else { 0 },
            session_connections: sessions.sum(),
            alone: workers == 0,
        }
    }

    /// What clients are not to have.
    pub fn reserved(&self) -> u64 {
        let connections = self.server_connections + self.sessions();
        let process = WORKER + MOVING + self.listeners + connections;
        // The master has the listening sockets, too.
        process + if self.alone { ALONE + self.listeners } else { 0 }
    }

    /// Connections that clients may lease.
    pub fn sessions(&self) -> u64 {
        self.session_connections.min(self.limit / SESSIONS_SHARE)
    }

    pub fn clients(&self) -> u64 {
        self.limit.saturating_sub(self.reserved()).max(self.least())
    }

    /// Clients may have what was reserved.
    pub fn is_short(&self) -> bool {
        self.reserved().saturating_add(self.least()) > self.limit
    }

    fn least(&self) -> u64 {
        (self.limit / LEAST_SHARE).max(1)
    }
}

/// For so many variants of a Redis pool clients leave files in any case: most speak RESP2 or RESP3,
/// and stay in the database that they begin with.
const VARIANTS_RESERVED: usize = 2;

/// Connections to that many servers at once: shared lanes and one for what is large, of each variant,
/// private ones, and one that messages come on.
fn connections_max(
    protocol: Protocol,
    servers: usize,
    shared_lanes: u32,
    params_set: usize,
) -> u64 {
    let (reserved, feeds) = match protocol {
        Protocol::Redis => (VARIANTS_RESERVED, 1),
        Protocol::Memcached => (1, 0),
        // They are counted with the clients that have them.
        Protocol::Tcp => return servers as u64,
    };
    let of_variants = params_set.max(reserved) as u64 * (u64::from(shared_lanes) + 1);
    servers as u64 * (of_variants + PRIVATE_LANES_MAX as u64 + feeds)
}

/// Connections to all servers of a pool that clients may lease.
pub(crate) fn sessions_max(pool: &snapshot::Pool, rank: u32, workers: u32) -> u64 {
    match pool.protocol {
        Protocol::Redis => {
            let each = lanes_here(pool.session_connections, rank, workers);
            pool.servers.len() as u64 * u64::from(each)
        }
        Protocol::Memcached | Protocol::Tcp => 0,
    }
}

impl Engine {
    /// As [`Engine::server_connections_max`], for those that clients lease.
    pub fn session_connections_max(&self) -> u64 {
        let backends = self.backends.iter().map(|backend| &backend.config);
        backends.map(|config| sessions_max(config, self.rank, self.workers)).sum()
    }

    /// How many connections to servers there may be at once, those of removed pools that still have
    /// clients among them.
    pub fn server_connections_max(&self) -> u64 {
        let of_backend = |backend: &Backend| -> u64 {
            let open = backend.usage.iter().filter(|usage| usage.is_open).count();
            let servers = backend.servers.iter();
            servers.map(|server| connections_max(backend.protocol, 1, server.lanes, open)).sum()
        };
        self.backends.iter().map(of_backend).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cashew_config::Context;
    use cashew_metrics::{Layout, Segments};

    use super::*;
    use crate::{Identity, Plan, Setup, Time};

    fn snapshot(workers: u32) -> Snapshot {
        let text = format!(
            "global: {{worker_processes: {workers}}}
pools:
  a: {{listen: 127.0.0.1:1, server_connections: 5, servers: ['h:1:1', 'h:2:1', 'h:3:1']}}
  b: {{redis: true, session_connections: 7, listen: 127.0.0.1:2, servers: ['h:1:1']}}"
        );
        match cashew_config::parse("f", &text, &Context::of_system()) {
            Ok(loaded) => loaded.snapshot,
            Err(errors) => panic!("{errors}"),
        }
    }

    #[test]
    fn clients_have_what_is_not_reserved() {
        // Of five connections the first of two workers has three.
        let files = OpenFiles::of(&snapshot(2), 1024);
        assert_eq!(files.server_connections, 3 * (3 + 5) + (2 * 2 + 5));
        assert_eq!((files.session_connections, files.sessions()), (4, 4));
        assert_eq!(files.reserved(), 33 + 4 + 2 + 32);
        assert_eq!((files.clients(), files.is_short()), (1024 - 71, false));
        assert_eq!(OpenFiles::of(&snapshot(2), 12).sessions(), 3);
        let alone = OpenFiles::of(&snapshot(0), 1024);
        assert_eq!(alone.server_connections, 3 * (5 + 5) + (2 * 2 + 5));
        assert_eq!(alone.clients(), 1024 - (39 + 7 + 2 + 32 + 2 + 64));
    }

    #[test]
    fn some_clients_are_let_in_by_the_smallest_limit() {
        let files = |limit| OpenFiles::of(&snapshot(2), limit);
        assert_eq!((files(77).clients(), files(77).is_short()), (9, true));
        assert_eq!((files(81).clients(), files(81).is_short()), (10, false));
        assert_eq!((files(64).clients(), files(64).is_short()), (8, true));
        assert_eq!((files(3).clients(), files(3).is_short()), (1, true));
        assert_eq!(files(u64::MAX).clients(), u64::MAX - 71);
    }

    #[test]
    fn an_engine_connects_as_often_as_was_reckoned() {
        for workers in [0, 1, 2, 7] {
            let snapshot = snapshot(workers);
            let segments = Arc::new(Segments::in_memory(&Layout::new(&snapshot), 1));
            let engine = Engine::new(Setup {
                plan: Plan::whole(&snapshot, 0, workers),
                metrics: segments.writer(0),
                seed: 0,
                slot: 0,
                identity: Identity { version: "0", process_id: 1 },
                now: Time::ZERO,
            });
            let reckoned = OpenFiles::of(&snapshot, 1024);
            assert_eq!(engine.server_connections_max(), reckoned.server_connections);
            assert_eq!(engine.session_connections_max(), reckoned.session_connections);
        }
    }
}
