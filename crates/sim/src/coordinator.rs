//! The master's part in changing rings, as small as it can be.

use std::collections::{BTreeMap, BTreeSet};

/// A message to all gateways.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    Hold { pool: u32, version: u64 },
    Release { pool: u32, version: u64, live: Vec<bool> },
}

/// Changes rings in two phases: everybody holds, then everybody is released.
pub(crate) struct Coordinator {
    gateways: u32,
    pools: Vec<State>,
    pub(crate) changes: u64,
}

struct State {
    version: u64,
    live: Vec<bool>,
    /// Who has not said yet that it holds.
    waiting: BTreeSet<u32>,
    /// What the change under way makes of which servers; empty when there is none.
    change: BTreeMap<u32, bool>,
    wanted: BTreeMap<u32, bool>,
}

impl Coordinator {
    pub(crate) fn new(gateways: u32, servers: impl Iterator<Item = usize>) -> Self {
        let state = |servers| State {
            version: 0,
            live: vec![true; servers],
            waiting: BTreeSet::new(),
            change: BTreeMap::new(),
            wanted: BTreeMap::new(),
        };
        Self { gateways, pools: servers.map(state).collect(), changes: 0 }
    }

    pub(crate) fn want(&mut self, pool: u32, server: u32, live: bool) -> Vec<Order> {
        let state = &mut self.pools[pool as usize];
        let coming = state.change.get(&server).copied().unwrap_or(state.live[server as usize]);
        if coming == live {
            state.wanted.remove(&server);
        } else {
            state.wanted.insert(server, live);
        }
        self.advance(pool)
    }

    pub(crate) fn held(&mut self, pool: u32, gateway: u32, version: u64) -> Vec<Order> {
        let state = &mut self.pools[pool as usize];
        if version == state.version {
            state.waiting.remove(&gateway);
        }
        self.advance(pool)
    }

    /// All servers of all pools are live, and nobody wants it otherwise.
    pub(crate) fn is_whole(&self) -> bool {
        self.pools.iter().all(|state| {
            state.live.iter().all(|&live| live)
                && state.change.is_empty()
                && state.wanted.is_empty()
        })
    }

    fn advance(&mut self, pool: u32) -> Vec<Order> {
        let state = &mut self.pools[pool as usize];
        let mut orders = Vec::new();
        if !state.waiting.is_empty() {
            return orders;
        }
        if !state.change.is_empty() {
            for (server, live) in std::mem::take(&mut state.change) {
                state.live[server as usize] = live;
            }
            self.changes += 1;
            let (version, live) = (state.version, state.live.clone());
            orders.push(Order::Release { pool, version, live });
        }
        if !state.wanted.is_empty() {
            state.change = std::mem::take(&mut state.wanted);
            state.version += 1;
            state.waiting = (0..self.gateways).collect();
            orders.push(Order::Hold { pool, version: state.version });
        }
        orders
    }
}
