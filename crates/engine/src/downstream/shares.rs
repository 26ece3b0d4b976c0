//! Whose is what a worker holds: pools have equal shares of it, and so have the clients of a pool.

use crate::base::id::{ClientId, ListenerId};
use crate::downstream::pressure::REQUEST_SIZE;
use crate::engine::Engine;

/// What each pool makes the worker hold, at one moment.
pub(crate) struct Shares {
    /// What a pool may have while there is not enough for all.
    pub(crate) each: usize,
    pools: Vec<Holding>,
}

#[derive(Clone, Copy, Default)]
struct Holding {
    /// What goes when its clients go.
    by_clients: usize,
    /// What waits in its lanes.
    by_lanes: usize,
    requests: usize,
    /// Clients of which anything is held.
    clients: usize,
    /// It has more than its share.
    is_over: bool,
}

impl Holding {
    fn total(&self) -> usize {
        self.by_clients + self.by_lanes + self.requests * REQUEST_SIZE
    }
}

impl Shares {
    pub(crate) fn is_over(&self, listener: ListenerId) -> bool {
        self.pools[listener.index()].is_over
    }

    pub(crate) fn held_by(&self, listener: ListenerId) -> usize {
        self.pools[listener.index()].total()
    }

    /// Bytes that go when all clients go, about.
    pub(crate) fn held_by_clients(&self) -> usize {
        self.pools.iter().map(|pool| pool.by_clients).sum()
    }

    /// What one client causes: it goes with the client, or waits in a lane for a server.
    fn caused(&self, pool: ListenerId, held: usize, requests: u32) -> usize {
        let pool = &self.pools[pool.index()];
        let requests = requests as usize;
        held + requests * REQUEST_SIZE + pool.by_lanes / pool.requests.max(1) * requests
    }
}

impl Engine {
    /// Looks at all clients and lanes, of which `each` pool may have so much if there is one.
    #[cold]
    pub(crate) fn shares(&self, all: usize) -> Shares {
        let mut pools = vec![Holding::default(); self.listeners.len()];
        // What waits in the lanes of a backend counts for its first listener.
        let mut first = vec![None; self.backends.len()];
        for (listener, state) in self.listeners.entries() {
            first[state.backend.index()].get_or_insert(listener);
        }
        for lane in self.lanes.iter().filter(|lane| lane.upload == ClientId::NONE) {
            if let Some(listener) = first[lane.backend.index()] {
                pools[listener.index()].by_lanes += (lane.unsent_size() + lane.kept.len()) as usize;
            }
        }
        for index in self.clients.indices() {
            let client = &self.clients[index];
            let held = self.holding(index);
            let pool = &mut pools[client.listener.index()];
            pool.by_clients += held;
            pool.requests += client.requests as usize;
            pool.clients += usize::from(held > 0 || client.requests > 0);
        }
        let sharers = pools.iter().filter(|pool| pool.total() > 0).count().max(1);
        let each = all / sharers;
        // What nobody is known to hold counts, too: then nobody may be above the share.
        let most = pools.iter().map(Holding::total).max().unwrap_or(0);
        for pool in &mut pools {
            pool.is_over = pool.clients > 0 && pool.total() >= each.min(most);
        }
        Shares { each, pools }
    }

    /// Whether a client is one of those who cause that there is not enough: its pool has more than
    /// its share, and it has as much of that as the others or more.
    pub(crate) fn is_heavy(&self, index: ClientId, shares: &Shares) -> bool {
        let client = &self.clients[index];
        let pool = &shares.pools[client.listener.index()];
        let caused = shares.caused(client.listener, self.holding(index), client.requests.into());
        pool.is_over && caused > 0 && caused >= pool.total() / pool.clients
    }
}
