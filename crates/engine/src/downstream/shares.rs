//! Whose is what a worker holds: pools have equal shares of it, and so have the clients of a pool.

use crate::base::id::{ClientId, LaneId, ListenerId};
use crate::base::slab::Slab;
use crate::base::table::Table;
use crate::downstream::client::{Client, Parser};
use crate::downstream::listener::Listener;
use crate::downstream::pressure::REQUEST_SIZE;
use crate::upstream::lane::Lane;

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
    /// Looks at all clients and lanes, and at what `others` of a listener hold whose bytes pass through. There is room
    /// for `all` bytes.
    #[cold]
    pub(crate) fn new(
        listeners: &Table<ListenerId, Listener>,
        lanes: &Table<LaneId, Lane>,
        clients: &Slab<ClientId, Client>,
        others: impl Iterator<Item = (ListenerId, usize)>,
        all: usize,
    ) -> Self {
        let mut pools = vec![Holding::default(); listeners.len()];
        // What waits in the lanes of a backend counts for its first listener.
        let backends =
            listeners.iter().map(|state| state.destination.backend.index() + 1).max().unwrap_or(0);
        let mut first = vec![None; backends];
        for (listener, state) in listeners.entries() {
            first[state.destination.backend.index()].get_or_insert(listener);
        }
        for lane in lanes.iter().filter(|lane| lane.upload == ClientId::NONE) {
            if let Some(&Some(listener)) = first.get(lane.backend.index()) {
                pools[listener.index()].by_lanes += (lane.unsent_size() + lane.kept.len()) as usize;
            }
        }
        for index in clients.indices() {
            let client = &clients[index];
            let held = client.holding(lanes);
            let pool = &mut pools[client.listener.index()];
            pool.by_clients += held;
            pool.requests += client.requests as usize;
            pool.clients += usize::from(held > 0 || client.requests > 0);
        }
        for (listener, held) in others {
            let pool = &mut pools[listener.index()];
            pool.by_clients += held;
            pool.clients += usize::from(held > 0);
        }
        let sharers = pools.iter().filter(|pool| pool.total() > 0).count().max(1);
        let each = all / sharers;
        // What nobody is known to hold counts, too: then nobody may be above the share.
        let most = pools.iter().map(Holding::total).max().unwrap_or(0);
        for pool in &mut pools {
            pool.is_over = pool.clients > 0 && pool.total() >= each.min(most);
        }
        Self { each, pools }
    }

    /// Whether a client is one of those who cause that there is not enough: its pool has more than
    /// its share, and it has as much of that as the others or more.
    pub(crate) fn is_heavy(&self, client: &Client, lanes: &Table<LaneId, Lane>) -> bool {
        let held = client.holding(lanes);
        self.is_much(client.listener, self.caused(client.listener, held, client.requests.into()))
    }

    /// The same of one of those whose bytes pass through, which holds so many bytes.
    pub(crate) fn is_much(&self, listener: ListenerId, caused: usize) -> bool {
        let pool = &self.pools[listener.index()];
        pool.is_over && caused > 0 && caused >= pool.total() / pool.clients
    }

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

impl Client {
    /// Bytes that go when it goes, about.
    pub(crate) fn holding(&self, lanes: &Table<LaneId, Lane>) -> usize {
        let parser = self.parser.as_ref().map_or(0, Parser::size);
        let passing = match &self.parser {
            Some(Parser::Upload(upload)) if upload.lane != LaneId::NONE => {
                lanes[upload.lane].output.len()
            }
            _ => 0,
        };
        let said = self.input.capacity() + parser + self.session.profile_size();
        said + (self.output.len() + self.held + passing) as usize
    }
}
