//! The ring of one pool: which servers are live, and which changes are wanted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use cashew_config::Snapshot;
use cashew_config::snapshot::{Endpoint, Pool, Promoted, ServerGroup, TopologyState};
use cashew_control::ToChild;
use cashew_metrics::EventKind;
use cashew_placement::SHARE_WHOLE;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::flaps::Flaps;
use super::{DRAIN_MS, PROMOTION_DRAIN_MS, Slot};

/// The part of a pool's configuration that matters here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RingConfig {
    pub(crate) name: String,
    pub(crate) retry_timeout_ms: u64,
    pub(crate) servers: Vec<ServerConfig>,
    /// The groups of several servers, by their numbers among the shards.
    #[serde(default)]
    pub(crate) groups: BTreeMap<u32, GroupConfig>,
    /// Nothing can stand in for the only primary.
    #[serde(default)]
    pub(crate) is_one_shard: bool,
    /// The share of its shards, in percent, beyond which none is left out.
    #[serde(default = "cashew_config::snapshot::fail_open_percent")]
    pub(crate) fail_open_percent: u32,
}

/// A primary and its replicas, as configured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupConfig {
    pub(crate) name: String,
    pub(crate) primary: u32,
    pub(crate) replicas: Vec<u32>,
}

impl GroupConfig {
    fn has(&self, server: u32) -> bool {
        self.members().any(|it| it == server)
    }

    fn members(&self) -> impl Iterator<Item = u32> {
        std::iter::once(self.primary).chain(self.replicas.iter().copied())
    }
}

/// A server is the same in another epoch if the name of its group and its endpoint are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerConfig {
    pub(crate) name: String,
    /// The server's own name, unless there are several in its group.
    #[serde(default)]
    pub(crate) group: String,
    pub(crate) endpoint: Endpoint,
    pub(crate) may_eject: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RingState {
    config: RingConfig,
    version: u64,
    /// One for each server.
    servers: Vec<ServerState>,
    wanted: BTreeMap<u32, Wanted>,
    /// Who is promoted: by shard.
    #[serde(default)]
    primaries: BTreeMap<u32, u32>,
    #[serde(default)]
    promotions: BTreeMap<u32, Promotion>,
    #[serde(default)]
    reigns: BTreeMap<u32, u32>,
    #[serde(default)]
    down_while_open: Option<BTreeMap<u32, String>>,
    #[serde(default)]
    wanted_shares: BTreeMap<u32, u16>,
}

fn whole() -> u16 {
    SHARE_WHOLE
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ServerState {
    live: bool,
    #[serde(default = "whole")]
    share: u16,
    pause_ms: u64,
    changed_ms_ago: Option<u64>,
}

#[derive(Clone)]
pub(super) struct Ring {
    pub(super) config: RingConfig,
    /// Version of the last change that was begun. Each change has its own, so a late answer to a
    /// former change is told from one to the current change.
    pub(super) version: u64,
    /// One for each configured server.
    pub(super) servers: Vec<Server>,
    pub(super) change: Option<Change>,
    /// Servers to be ejected or readmitted by the next change. Has no entry that is already true or
    /// that the current change makes true.
    pub(super) wanted: BTreeMap<u32, Wanted>,
    /// Who takes the writes of each group: by shard.
    pub(super) primaries: BTreeMap<u32, u32>,
    /// Who is to take them by the next change: by shard.
    pub(super) promotions: BTreeMap<u32, Promotion>,
    /// How often another server has begun to take the writes: by shard, those where it has.
    reigns: BTreeMap<u32, u32>,
    pub(super) not_before: Option<Instant>,
    /// The pool is [open](super::open): who is down all the same, and why.
    pub(super) down_while_open: Option<BTreeMap<u32, String>>,
    /// The shares of their keys that servers are to have by the next change.
    pub(super) wanted_shares: BTreeMap<u32, u16>,
}

#[derive(Clone, Copy)]
pub(super) struct Server {
    pub(super) live: bool,
    /// Of its keys, in thousandths, if it is live. Less than all of one that is drained.
    pub(super) share: u16,
    pub(super) flaps: Flaps,
}

/// A change whose hold has been sent and whose release has not.
#[derive(Clone)]
pub(super) struct Change {
    pub(super) servers: BTreeMap<u32, Wanted>,
    pub(super) promotions: BTreeMap<u32, Promotion>,
    pub(super) shares: BTreeMap<u32, u16>,
    /// Workers that may still dispatch by the old ring.
    pub(super) waiting: BTreeSet<Slot>,
    pub(super) deadline: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Wanted {
    pub(super) live: bool,
    pub(super) why: String,
}

/// A server that is to take the writes, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Promotion {
    pub(super) server: u32,
    pub(super) why: String,
}

impl RingState {
    pub(super) fn is_of(&self, pool: &Pool) -> bool {
        let servers = self.servers.len();
        self.config.name == pool.name
            && (self.config.servers.len(), pool.servers.len()) == (servers, servers)
            && self.wanted.keys().all(|&server| (server as usize) < servers)
            && self.down_while_open.iter().flatten().all(|(&it, _)| (it as usize) < servers)
            && self.promoted().is_of(pool)
    }

    /// Who is promoted, or is to be.
    fn promoted(&self) -> TopologyState {
        let promotions = self.promotions.iter().map(|(shard, it)| (shard, &it.server));
        let all = self.primaries.iter().chain(promotions);
        let primaries = all.map(|(&shard, &server)| Promoted { shard, server }).collect();
        TopologyState { primaries, ..vec![true; self.servers.len()].into() }
    }
}

impl RingConfig {
    /// The pools of a snapshot.
    pub(crate) fn of(snapshot: &Snapshot) -> Vec<Self> {
        let of_pool = |pool: &Pool| {
            let of_server = |(server, group): (&cashew_config::snapshot::Server, &str)| {
                let may_eject = pool.auto_eject_hosts;
                let (name, endpoint) = (server.name.clone(), server.endpoint.clone());
                ServerConfig { name, group: group.to_owned(), endpoint, may_eject }
            };
            let of_group = |(shard, group): (u32, ServerGroup)| {
                let ServerGroup { name, primary, replicas, .. } = group;
                (shard, GroupConfig { name, primary, replicas })
            };
            Self {
                name: pool.name.clone(),
                retry_timeout_ms: pool.server_retry_timeout_ms,
                servers: pool.servers.iter().zip(pool.group_names()).map(of_server).collect(),
                groups: pool.replicated().into_iter().map(of_group).collect(),
                is_one_shard: pool.is_one_shard(),
                fail_open_percent: pool.fail_open_percent,
            }
        };
        snapshot.pools.iter().map(of_pool).collect()
    }
}

impl RingConfig {
    /// By shard: the configured primary.
    fn configured(&self) -> BTreeMap<u32, u32> {
        self.groups.iter().map(|(&shard, group)| (shard, group.primary)).collect()
    }
}

impl Ring {
    pub(super) fn new(config: RingConfig) -> Self {
        Self {
            version: 0,
            servers: vec![
                Server { live: true, share: SHARE_WHOLE, flaps: Flaps::default() };
                config.servers.len()
            ],
            primaries: config.configured(),
            config,
            change: None,
            wanted: BTreeMap::new(),
            promotions: BTreeMap::new(),
            reigns: BTreeMap::new(),
            not_before: None,
            down_while_open: None,
            wanted_shares: BTreeMap::new(),
        }
    }

    /// The ring of the pool of the same name in another epoch.
    pub(super) fn reconfigured(mut self, config: RingConfig, halted: bool) -> Self {
        let old: HashMap<(&str, &Endpoint), u32> = (0..)
            .zip(&self.config.servers)
            .map(|(index, server)| ((&*server.group, &server.endpoint), index))
            .collect();
        let mut ring =
            Self { version: self.version, not_before: self.not_before, ..Self::new(config) };
        let new: HashMap<u32, u32> = (0..)
            .zip(&ring.config.servers)
            .filter_map(|(index, it)| Some((*old.get(&(&*it.group, &it.endpoint))?, index)))
            .collect();
        let primary = |config: &RingConfig, group: &GroupConfig| {
            config.servers[group.primary as usize].name.clone()
        };
        // Who is promoted stays so until the file names another.
        for (&shard, group) in &ring.config.groups {
            let is_same = |before: &&u32| {
                let before = &self.config.groups[before];
                before.name == group.name
                    && primary(&self.config, before) == primary(&ring.config, group)
            };
            let Some(&before) = self.config.groups.keys().find(is_same) else { continue };
            if let Some(&promoted) = new.get(&self.primaries[&before]) {
                ring.primaries.insert(shard, promoted);
            }
            if let Some(promotion) = self.promotions.remove(&before)
                && let Some(&server) = new.get(&promotion.server)
            {
                ring.promotions.insert(shard, Promotion { server, ..promotion });
            }
        }
        ring.reigns = self.reigns_in(&ring);
        for (index, server) in (0..).zip(&ring.config.servers) {
            let Some(&before) = old.get(&(&*server.group, &server.endpoint)) else { continue };
            let state = self.servers[before as usize];
            ring.servers[index as usize] = state;
            let share = self.wanted_shares.remove(&before);
            ring.wanted_shares.extend(share.map(|share| (index, share)));
            let wanted = self.wanted.remove(&before);
            let is_only = ring.is_only_primary(index);
            if server.may_eject && !is_only {
                ring.wanted.extend(wanted.map(|wanted| (index, wanted)));
            } else if !state.live && !halted {
                let why = "it is not to be ejected any more".to_owned();
                ring.wanted.insert(index, Wanted { live: true, why });
            }
        }
        ring.down_while_open = self.down_while_open.map(|down| {
            let place = |(before, why)| Some((*new.get(&before)?, why));
            down.into_iter().filter_map(place).collect()
        });
        ring.keep_one_undrained();
        ring.weigh();
        ring
    }

    /// A file may leave no servers but those that are drained, or make one of them the primary of others: these have
    /// their keys again.
    fn keep_one_undrained(&mut self) {
        let has_keys = self.servers.iter().any(|server| server.share > 0);
        for index in 0..self.servers.len() {
            let is_primary = self.primaries.values().any(|&primary| primary == index as u32);
            if is_primary || !has_keys {
                self.servers[index].share = SHARE_WHOLE;
                self.wanted_shares.remove(&(index as u32));
            }
        }
    }

    /// The reigns of the groups of the next ring. Another primary by the file is another one, too.
    fn reigns_in(&self, next: &Self) -> BTreeMap<u32, u32> {
        let primary = |ring: &Self, shard: u32| {
            ring.config.servers[ring.primaries[&shard] as usize].endpoint.clone()
        };
        let reign = |(&shard, group): (&u32, &GroupConfig)| {
            let mut groups = self.config.groups.iter();
            let (&before, _) = groups.find(|(_, before)| before.name == group.name)?;
            let is_other = primary(self, before) != primary(next, shard);
            let reign = self.reigns.get(&before).copied().unwrap_or(0);
            Some((shard, reign.wrapping_add(u32::from(is_other)))).filter(|(_, reign)| *reign > 0)
        };
        next.config.groups.iter().filter_map(reign).collect()
    }

    fn begin_reign(&mut self, shard: u32) {
        let reign = self.reigns.entry(shard).or_insert(0);
        *reign = reign.wrapping_add(1);
    }

    pub(super) fn state(&self, now: Instant) -> RingState {
        let millis = |span: Duration| span.as_millis().try_into().unwrap_or(u64::MAX);
        let of_server = |server: &Server| ServerState {
            live: server.live,
            share: server.share,
            pause_ms: millis(server.flaps.pause),
            changed_ms_ago: server.flaps.changed_at.map(|at| millis(now - at)),
        };
        RingState {
            config: self.config.clone(),
            version: self.version,
            servers: self.servers.iter().map(of_server).collect(),
            wanted: self.wanted.clone(),
            primaries: self.promoted(),
            promotions: self.promotions.clone(),
            reigns: self.reigns.clone(),
            down_while_open: self.down_while_open.clone(),
            wanted_shares: self.wanted_shares.clone(),
        }
    }

    pub(super) fn from_state(state: RingState, config: RingConfig, now: Instant) -> Self {
        let of_server = |server: ServerState| {
            let ago = server.changed_ms_ago.map(Duration::from_millis);
            let flaps = Flaps {
                pause: Duration::from_millis(server.pause_ms),
                changed_at: ago.and_then(|ago| now.checked_sub(ago)),
            };
            Server { live: server.live, share: server.share.min(SHARE_WHOLE), flaps }
        };
        Self {
            primaries: config.configured().into_iter().chain(state.primaries).collect(),
            promotions: state.promotions,
            reigns: state.reigns,
            config,
            version: state.version,
            servers: state.servers.into_iter().map(of_server).collect(),
            change: None,
            wanted: state.wanted,
            not_before: None,
            down_while_open: state.down_while_open,
            wanted_shares: state.wanted_shares,
        }
    }

    pub(super) fn topology(&self) -> TopologyState {
        let promoted = self.promoted().into_iter();
        let primaries = promoted.map(|(shard, server)| Promoted { shard, server }).collect();
        let reigns = self.reigns.iter().map(|(&shard, &reign)| (shard, reign)).collect();
        let is_drained = |(_, server): &(u32, &Server)| server.share < SHARE_WHOLE;
        let drained = (0..).zip(&self.servers).filter(is_drained);
        let shares = drained.map(|(index, server)| (index, server.share)).collect();
        TopologyState { live: self.live(), primaries, reigns, shares }
    }

    /// The shards whose primary is not the configured one.
    fn promoted(&self) -> BTreeMap<u32, u32> {
        let groups = &self.config.groups;
        let is_other = |(shard, primary): &(u32, u32)| groups[shard].primary != *primary;
        self.primaries.iter().map(|(&shard, &primary)| (shard, primary)).filter(is_other).collect()
    }

    /// A line for each group whose promoted server does not take its writes in the next ring. `next` is
    /// the ring of the pool of that name, or those of all pools that are new.
    pub(super) fn undone(&self, next: &[&Self]) -> Vec<String> {
        let line = |(shard, promoted): (u32, u32)| {
            let (ring, found) =
                next.iter().find_map(|it| Some((it, it.group_like(self, shard)?)))?;
            let was = &self.config.servers[promoted as usize];
            let is = &ring.config.servers[ring.writer_of(&found) as usize];
            if is.endpoint == was.endpoint {
                return None;
            }
            let GroupConfig { name, primary, .. } = &self.config.groups[&shard];
            let is_was = |it: u32| ring.config.servers[it as usize].endpoint == was.endpoint;
            let why = if ring.config.name != self.config.name {
                "the pool has another name in the file"
            } else if !ring.config.servers.iter().any(|it| it.endpoint == was.endpoint) {
                "the file has it no more"
            } else if !found.members().any(is_was) {
                "it is not in the group any more"
            } else if is.endpoint != self.config.servers[*primary as usize].endpoint {
                "the file names another primary"
            } else if found.name != *name {
                "the group has another name in the file"
            } else {
                "the server has another name in the file"
            };
            Some(format!(
                "pool '{}': the failover of '{name}' to '{}' ({}) is undone, since {why}: writes go to \
                 '{}' ({})",
                self.config.name, was.name, was.endpoint, is.name, is.endpoint
            ))
        };
        self.promoted().into_iter().filter_map(line).collect()
    }

    /// What a group of a former ring is now: the group of its name, or else one that has the address of
    /// one of its servers. A server alone is a group of one, and a pool with a master is one group,
    /// whatever the master is called.
    fn group_like(&self, former: &Self, shard: u32) -> Option<GroupConfig> {
        let is_whole = former.config.is_one_shard && self.config.is_one_shard;
        let group = &former.config.groups[&shard];
        let is_alone = |(server, _): &(u32, &ServerConfig)| self.group_of(*server).is_none();
        let alone = (0..).zip(&self.config.servers).filter(is_alone).map(|(primary, server)| {
            GroupConfig { name: server.name.clone(), primary, replicas: Vec::new() }
        });
        let mut groups: Vec<GroupConfig> =
            self.config.groups.values().cloned().chain(alone).collect();
        let endpoints = |ring: &Self, group: &GroupConfig| -> Vec<Endpoint> {
            group.members().map(|it| ring.config.servers[it as usize].endpoint.clone()).collect()
        };
        let promoted = &former.config.servers[former.primaries[&shard] as usize].endpoint;
        let former = endpoints(former, group);
        let is_named = |it: &GroupConfig| is_whole || it.name == group.name;
        let has_it = |it: &GroupConfig| endpoints(self, it).contains(promoted);
        let has_one = |it: &GroupConfig| endpoints(self, it).iter().any(|it| former.contains(it));
        let found = groups.iter().position(is_named);
        let found = found.or_else(|| groups.iter().position(has_it));
        let found = found.or_else(|| groups.iter().position(has_one))?;
        Some(groups.swap_remove(found))
    }

    fn writer_of(&self, group: &GroupConfig) -> u32 {
        match self.group_of(group.primary) {
            Some(shard) => self.primaries[&shard],
            None => group.primary,
        }
    }

    fn is_only_primary(&self, server: u32) -> bool {
        self.config.is_one_shard && self.primaries.values().any(|&primary| primary == server)
    }

    pub(super) fn live(&self) -> Vec<bool> {
        self.servers.iter().map(|server| server.live && server.share > 0).collect()
    }

    /// Whether the pause of a flapping server is over. It is while no other server is live: a
    /// flapping server is better than none.
    pub(super) fn may_return(&self, server: u32, now: Instant) -> bool {
        let Some(Server { live, flaps, .. }) = self.servers.get(server as usize) else {
            return false;
        };
        *live
            || flaps.changed_at.is_none_or(|ejected_at| now >= ejected_at + flaps.pause)
            || !self.servers.iter().any(|server| server.live && server.share > 0)
    }

    /// Has the next change eject or readmit a server, unless it is so already or soon will be.
    pub(super) fn wish(&mut self, server: u32, wanted: Wanted) {
        let Some(&Server { live, .. }) = self.servers.get(server as usize) else { return };
        let change = self.change.as_ref().and_then(|change| change.servers.get(&server));
        if change.map_or(live, |change| change.live) == wanted.live {
            self.wanted.remove(&server);
        } else {
            // The first reason counts.
            self.wanted.entry(server).or_insert(wanted);
        }
    }

    pub(super) fn change_server(&mut self, index: u32, wanted: Wanted, now: Instant) {
        let is_open = self.down_while_open.is_some();
        let server = &mut self.servers[index as usize];
        let (pool, name) = (&self.config.name, &self.config.servers[index as usize].name);
        server.live = wanted.live;
        if wanted.live {
            // Who returns since all are needed has not recovered, and does not flap when it goes again.
            server.flaps.changed_at = Some(now).filter(|_| !is_open);
            info!(
                kind = EventKind::ServerReadmitted.name(),
                pool,
                server = name,
                "pool '{pool}': server '{name}' is readmitted: {}",
                wanted.why
            );
            return;
        }
        let retry = Duration::from_millis(self.config.retry_timeout_ms);
        match server.flaps.ejected(retry, now) {
            Some(served) => warn!(
                kind = EventKind::ServerEjected.name(),
                pool,
                server = name,
                "pool '{pool}': server '{name}' is ejected: {}; it was readmitted {served:.1?} \
                 ago, so it stays out for {:?} at least",
                wanted.why,
                server.flaps.pause
            ),
            None => warn!(
                kind = EventKind::ServerEjected.name(),
                pool,
                server = name,
                "pool '{pool}': server '{name}' is ejected: {}",
                wanted.why
            ),
        }
    }

    /// Whether the server may be left out of the ring: the only primary has no substitute, and who is to
    /// become one is needed.
    pub(super) fn may_eject(&self, server: u32) -> bool {
        let config = self.config.servers.get(server as usize);
        let changed = self.change.iter().flat_map(|change| change.promotions.values());
        let mut promotions = self.promotions.values().chain(changed);
        config.is_some_and(|config| config.may_eject)
            && !self.is_only_primary(server)
            && promotions.all(|it| it.server != server)
    }

    /// The shard that a server is of, if it has several servers.
    pub(super) fn group_of(&self, server: u32) -> Option<u32> {
        self.config.groups.iter().find(|(_, group)| group.has(server)).map(|(&shard, _)| shard)
    }

    /// Who is about to take the writes of a shard.
    pub(super) fn pending(&self, shard: u32) -> Option<u32> {
        let changed = self.change.as_ref().and_then(|change| change.promotions.get(&shard));
        self.promotions.get(&shard).or(changed).map(|promotion| promotion.server)
    }

    /// Another server takes the writes of a shard.
    pub(super) fn promote(&mut self, shard: u32, Promotion { server, why }: Promotion) {
        let name_of = |server: u32| &self.config.servers[server as usize].name;
        let (pool, name) = (&self.config.name, name_of(server));
        let before = name_of(self.primaries[&shard]);
        let group = match self.config.is_one_shard {
            true => String::new(),
            false => format!(" of group '{}'", self.config.groups[&shard].name),
        };
        warn!(
            kind = EventKind::PrimaryChanged.name(),
            pool,
            server = name,
            "pool '{pool}': server '{name}' is the primary{group} now, no more '{before}': {why}"
        );
        self.primaries.insert(shard, server);
        self.begin_reign(shard);
        self.servers[server as usize].live = true;
        self.servers[server as usize].share = SHARE_WHOLE;
        self.wanted_shares.remove(&server);
    }

    pub(super) fn has_wishes(&self) -> bool {
        !self.wanted.is_empty() || !self.promotions.is_empty() || !self.wanted_shares.is_empty()
    }

    pub(super) fn hold(&self, pool: u32) -> ToChild {
        let promotes = self.change.as_ref().is_some_and(|change| !change.promotions.is_empty());
        let drain_ms = if promotes { PROMOTION_DRAIN_MS } else { DRAIN_MS };
        ToChild::Hold { pool, version: self.version, drain_ms }
    }

    pub(super) fn release(&self, pool: u32) -> ToChild {
        ToChild::Release { pool, version: self.version, topology: self.topology() }
    }
}
