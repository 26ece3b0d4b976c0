//! The pools of a file, with what a running instance says of them.

use std::cell::OnceCell;
use std::collections::HashMap;

use cashew_config::Snapshot;
use cashew_config::snapshot::{Operation, Pool, TopologyState};
use cashew_placement::Ring;
use cashew_supervisor::{PoolStatus, ServerStatus};

use super::{Place, Route, of, ring_of, take_primaries, tree};
use crate::arguments::RouteArguments;
use crate::operate;
use crate::output::print_line;

/// All pools of a file, each with who is down and who the primaries are.
pub(super) struct Pools {
    pub(super) snapshot: Snapshot,
    states: Vec<TopologyState>,
    rings: Vec<OnceCell<Ring>>,
    /// By pool and server: how it is, and whether it is down.
    known: HashMap<(String, String), (String, bool)>,
}

/// Where a pool has a key, for one who reads it or writes it.
pub(super) struct Home {
    pub(super) group: Option<String>,
    pub(super) server: Option<Place>,
    pub(super) by: Option<String>,
    pub(super) state: Option<String>,
    pub(super) is_down: bool,
    pub(super) why: String,
}

impl Pools {
    /// `chosen` are those that are asked for.
    pub(super) fn new(
        snapshot: &Snapshot,
        chosen: &[&str],
        arguments: &RouteArguments,
    ) -> Result<Self, String> {
        let mut pools = Self::of_file(snapshot);
        if let Some(status) = operate::status_if_running(&arguments.instance) {
            pools.take_status(&status.pools, chosen);
        }
        for wish in &arguments.as_if {
            pools.pretend(wish, chosen)?;
        }
        Ok(pools)
    }

    /// By the file alone.
    pub(super) fn of_file(snapshot: &Snapshot) -> Self {
        let states = snapshot.pools.iter().map(TopologyState::whole).collect();
        let rings = snapshot.pools.iter().map(|_| OnceCell::new()).collect();
        Self { snapshot: snapshot.clone(), states, rings, known: HashMap::new() }
    }

    pub(super) fn find(&self, name: &str) -> Option<&Pool> {
        self.snapshot.pools.iter().find(|pool| pool.name == name)
    }

    /// Where a pool has a key.
    pub(super) fn of(&self, pool: &str, key: &str) -> Route {
        let at = self.snapshot.pools.iter().position(|it| it.name == pool);
        let at = at.expect("routes lead to pools, and others are looked up before");
        let (pool, state) = (&self.snapshot.pools[at], &self.states[at]);
        of(pool, state, self.rings[at].get_or_init(|| ring_of(pool, state)), key)
    }

    /// Whether a pool has to do with those that are asked for: it is one, or routes among them lead there.
    fn concerns(&self, chosen: &[&str], pool: &str) -> bool {
        chosen.contains(&pool)
            || chosen.iter().filter_map(|name| self.find(name)).any(|chosen| {
                chosen.route.as_ref().is_some_and(|route| route.pools().contains(&pool))
            })
    }

    fn take_status(&mut self, status: &[PoolStatus], chosen: &[&str]) {
        for at in 0..self.snapshot.pools.len() {
            let pool = &self.snapshot.pools[at];
            let is_said = self.concerns(chosen, &pool.name);
            let found = status.iter().find(|status| {
                status.name == pool.name && status.servers as usize == pool.servers.len()
            });
            let Some(status) = found else {
                if is_said {
                    print_line(format_args!(
                        "cashew: pool '{}' is not in use like this",
                        pool.name
                    ));
                }
                continue;
            };
            let shards = status.shards.iter().map(|shard| (&*shard.name, &*shard.primary));
            take_primaries(pool, &mut self.states[at], &status.primary, shards);
            let ejected = status.servers - status.live;
            if ejected > 0 && is_said {
                print_line(format_args!(
                    "cashew: pool '{}': {ejected} of its servers are ejected now: keys of these are \
                     elsewhere; --as-if SERVER=down shows where",
                    pool.name
                ));
            }
            for ServerStatus { name, state, .. } in &status.server_states {
                let place = (pool.name.clone(), name.clone());
                self.known.insert(place, (state.clone(), state == "out"));
            }
        }
    }

    fn pretend(&mut self, wish: &str, chosen: &[&str]) -> Result<(), String> {
        let name = wish.strip_suffix("=down").ok_or_else(|| {
            format!("--as-if {wish}: expected SERVER=down, with a server's name or address")
        })?;
        let mut is_known = false;
        for at in 0..self.snapshot.pools.len() {
            if !self.concerns(chosen, &self.snapshot.pools[at].name) {
                continue;
            }
            let pool = &self.snapshot.pools[at];
            for (server, is_live) in pool.servers.iter().zip(&mut self.states[at].live) {
                if server.name == name || server.endpoint.to_string() == name {
                    *is_live = false;
                    is_known = true;
                    let place = (pool.name.clone(), server.name.clone());
                    self.known.insert(place, ("down, as if".to_owned(), true));
                }
            }
        }
        match is_known {
            true => Ok(()),
            false => Err(format!("--as-if {wish}: there is no server \"{name}\"")),
        }
    }

    /// Where a pool has a key, for who does this.
    pub(super) fn home(&self, pool: &str, key: &[u8], operation: Operation) -> Home {
        let Route { group, writes, writes_by, reads, reads_by, why, .. } =
            self.of(pool, &tree::shown(key));
        let (server, by) = match operation {
            Operation::Read => (reads, reads_by.map(|by| format!("reads {by}"))),
            Operation::Write | Operation::Delete => {
                (writes, writes_by.map(|_| "and the others of the group".to_owned()))
            }
        };
        let known = server
            .as_ref()
            .and_then(|place| self.known.get(&(pool.to_owned(), place.server.clone())));
        let state = known.map(|(state, _)| state.clone());
        let is_down = known.is_some_and(|(_, is_down)| *is_down);
        // That it is down is the state.
        let why = why.strip_suffix("; writes fail: it is down").map_or(why.clone(), str::to_owned);
        Home { group, server, by, state, is_down, why }
    }
}
