//! How many clients a worker may have, by its limit of open files: what servers need is not given
//! to clients.

use cashew_config::Snapshot;
use cashew_config::snapshot::Protocol;

use crate::engine::{Engine, lanes_here};
use crate::pool::Pool;
use crate::private::PRIVATE_LANES_MAX;

/// The log, the channel to the master, epoll or io_uring with what wakes it, memory that is mapped,
/// and what looking up a name takes for a moment.
const WORKER: u64 = 16;
/// Sessions on their way in, out, or being refused: each has a socket and perhaps a memfd that are
/// not a client's here, or not any more.
const MOVING: u64 = 16;
/// The master and the admin, which are in the same process when there is but one: the connections
/// of the statistics and of operators, above all.
const ALONE: u64 = 64;
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
    /// Connections to servers that there may be at once.
    pub server_connections: u64,
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
        Self {
            limit,
            listeners: snapshot.pools.len() as u64,
            server_connections: connections.sum(),
            alone: workers == 0,
        }
    }

    /// What clients are not to have.
    pub fn reserved(&self) -> u64 {
        let process = WORKER + MOVING + self.listeners + self.server_connections;
        // The master has the listening sockets, too.
        process + if self.alone { ALONE + self.listeners } else { 0 }
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
fn connections_max(protocol: Protocol, servers: usize, shared_lanes: u32, variants: usize) -> u64 {
    let (reserved, feeds) = match protocol {
        Protocol::Redis => (VARIANTS_RESERVED, 1),
        Protocol::Memcached => (1, 0),
    };
    let of_variants = variants.max(reserved) as u64 * (u64::from(shared_lanes) + 1);
    servers as u64 * (of_variants + PRIVATE_LANES_MAX as u64 + feeds)
}

impl Engine {
    /// How many connections to servers there may be at once, those of removed pools that still have
    /// clients among them.
    pub fn server_connections_max(&self) -> u64 {
        let of_pool = |pool: &Pool| -> u64 {
            let open = pool.usage.iter().filter(|usage| usage.is_open).count();
            let servers = pool.servers.iter();
            servers.map(|server| connections_max(pool.protocol, 1, server.lanes, open)).sum()
        };
        self.pools.iter().map(of_pool).sum()
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
  b: {{redis: true, listen: 127.0.0.1:2, servers: ['h:1:1']}}"
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
        assert_eq!(files.reserved(), 33 + 2 + 32);
        assert_eq!((files.clients(), files.is_short()), (1024 - 67, false));
        let alone = OpenFiles::of(&snapshot(0), 1024);
        assert_eq!(alone.server_connections, 3 * (5 + 5) + (2 * 2 + 5));
        assert_eq!(alone.clients(), 1024 - (39 + 2 + 32 + 2 + 64));
    }

    #[test]
    fn some_clients_are_let_in_by_the_smallest_limit() {
        let files = |limit| OpenFiles::of(&snapshot(2), limit);
        assert_eq!((files(72).clients(), files(72).is_short()), (9, true));
        assert_eq!((files(77).clients(), files(77).is_short()), (10, false));
        assert_eq!((files(64).clients(), files(64).is_short()), (8, true));
        assert_eq!((files(3).clients(), files(3).is_short()), (1, true));
        assert_eq!(files(u64::MAX).clients(), u64::MAX - 67);
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
            let reckoned = OpenFiles::of(&snapshot, 1024).server_connections;
            assert_eq!(engine.server_connections_max(), reckoned);
        }
    }
}
