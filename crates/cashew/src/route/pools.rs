//! The pools of a file, with what a running instance says of them.

use std::cell::OnceCell;
use std::collections::HashMap;

use cashew_config::Snapshot;
use cashew_config::snapshot::{Address, Endpoint, Operation, Pool, TopologyState};
use cashew_placement::{Ring, SHARE_WHOLE};
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
    /// Why the running instance has not said how a pool is; by the file alone nobody was asked.
    not_by_instance: Vec<Option<String>>,
    /// By pool and server: how it is, and whether it is down.
    known: HashMap<(String, String), (String, bool)>,
    /// What else whoever asks should know, in words.
    pub(super) notes: Vec<String>,
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
        match operate::status_if_running(&arguments.instance) {
            Ok(status) => pools.take_status(&status.pools, chosen),
            Err(why) => {
                let why = format!("the running instance was not reached: {why}");
                pools.notes.push(format!("{why}; this is what the file says"));
                pools.not_by_instance.fill(Some(why));
            }
        }
        for wish in &arguments.as_if {
            pools.pretend(wish, chosen)?;
        }
        pools.notes.iter().for_each(|note| print_line(format_args!("cashew: {note}")));
        Ok(pools)
    }

    /// By what is in effect, and by how it is. `wish` is as of `--as-if`.
    pub(super) fn of_instance(
        snapshot: &Snapshot,
        status: &[PoolStatus],
        chosen: &[&str],
        wish: Option<&str>,
    ) -> Result<Self, String> {
        let mut pools = Self::of_file(snapshot);
        pools.take_status(status, chosen);
        wish.map_or(Ok(()), |wish| pools.pretend(wish, chosen))?;
        Ok(pools)
    }

    /// By the file alone.
    pub(super) fn of_file(snapshot: &Snapshot) -> Self {
        let states = snapshot.pools.iter().map(TopologyState::whole).collect();
        let rings = snapshot.pools.iter().map(|_| OnceCell::new()).collect();
        let not_by_instance = vec![Some("nobody was asked".to_owned()); snapshot.pools.len()];
        let (known, notes) = (HashMap::new(), Vec::new());
        Self { snapshot: snapshot.clone(), states, rings, not_by_instance, known, notes }
    }

    pub(super) fn find(&self, name: &str) -> Option<&Pool> {
        self.snapshot.pools.iter().find(|pool| pool.name == name)
    }

    /// Where a pool has a key.
    pub(super) fn of(&self, pool: &str, key: &str) -> Route {
        let at = self.snapshot.pools.iter().position(|it| it.name == pool);
        let at = at.expect("routes lead to pools, and others are looked up before");
        let (pool, state) = (&self.snapshot.pools[at], &self.states[at]);
        let ring = self.rings[at].get_or_init(|| ring_of(pool, state));
        Route {
            by_instance: self.not_by_instance[at].is_none(),
            not_by_instance: self.not_by_instance[at].clone(),
            ..of(pool, state, ring, key)
        }
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
            let is_said = self.concerns(chosen, &self.snapshot.pools[at].name);
            let pool = &mut self.snapshot.pools[at];
            let found = status.iter().find(|status| status.name == pool.name);
            if let Some(status) = found {
                take_groups(pool, status);
                self.states[at] = TopologyState::whole(pool);
            }
            let pool = &self.snapshot.pools[at];
            let Some(status) = found.filter(|it| it.servers as usize == pool.servers.len()) else {
                let why = format!("pool '{}' is not in use like this", pool.name);
                if is_said {
                    self.notes.push(format!("{why}; this is what the file says"));
                }
                self.not_by_instance[at] = Some(why);
                continue;
            };
            self.not_by_instance[at] = None;
            let shards = status.shards.iter().map(|shard| (&*shard.name, &*shard.primary));
            take_primaries(pool, &mut self.states[at], &status.primary, shards);
            let states = (0..).zip(&pool.servers).filter_map(|(index, server)| {
                let state = status.server_states.iter().find(|it| it.name == server.name)?;
                Some((index, state.drained_permille)).filter(|(_, drained)| *drained > 0)
            });
            let drained: Vec<(u32, u32)> = states.collect();
            let share = |drained: u32| SHARE_WHOLE - (drained as u16).min(SHARE_WHOLE);
            self.states[at].shares =
                drained.iter().map(|&(index, drained)| (index, share(drained))).collect();
            let off = drained.iter().filter(|(_, drained)| *drained == 1000).count() as u32;
            let ejected = (status.servers - status.live).saturating_sub(off);
            if ejected > 0 && is_said {
                self.notes.push(format!(
                    "pool '{}': {ejected} of its servers are ejected now: keys of these are \
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

/// Where Sentinels have said that the servers of groups are.
fn take_groups(pool: &mut Pool, status: &PoolStatus) {
    let address = |text: &str| {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Some(Address { host, port: port.parse().ok()? })
    };
    for group in &status.groups {
        let primary = group.primary.as_deref().and_then(address);
        let server = pool.servers.iter_mut().find(|server| server.name == group.server);
        if let (Some(server), Some(primary)) = (server, primary) {
            server.endpoint = Endpoint::from(primary);
        }
        let start = format!("{}/", group.server);
        let replicas = status.server_states.iter().filter(|it| it.name.starts_with(&start));
        let replicas: Vec<Address> = replicas.filter_map(|it| address(&it.address)).collect();
        pool.set_replicas(&group.server, &replicas);
    }
}
