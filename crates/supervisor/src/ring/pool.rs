//! The ring of one pool: which servers are live, and which changes are wanted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use cashew_config::Snapshot;
use cashew_config::snapshot::{Endpoint, Pool, Promoted, Topology, TopologyState};
use cashew_control::ToChild;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::flaps::Flaps;
use super::{DRAIN_MS, Slot};

/// The part of a pool's configuration that matters here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RingConfig {
    pub(crate) name: String,
    pub(crate) retry_timeout_ms: u64,
    pub(crate) servers: Vec<ServerConfig>,
    /// Of a pool whose servers are one primary and its replicas: who is configured to be the primary.
    #[serde(default)]
    pub(crate) primary: Option<u32>,
}

/// A server is the same in another epoch if its name and endpoint are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerConfig {
    pub(crate) name: String,
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
    /// `None` is the configured one.
    #[serde(default)]
    primary: Option<u32>,
    #[serde(default)]
    promotion: Option<Promotion>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ServerState {
    live: bool,
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
    /// Who is the primary, of a pool that has one.
    pub(super) primary: Option<u32>,
    /// Who is to become it by the next change.
    pub(super) promotion: Option<Promotion>,
    pub(super) not_before: Option<Instant>,
}

#[derive(Clone, Copy)]
pub(super) struct Server {
    pub(super) live: bool,
    pub(super) flaps: Flaps,
}

/// A change whose hold has been sent and whose release has not.
#[derive(Clone)]
pub(super) struct Change {
    pub(super) servers: BTreeMap<u32, Wanted>,
    pub(super) promotion: Option<Promotion>,
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
            && self.primary.is_none_or(|server| (server as usize) < servers)
            && self.promotion.as_ref().is_none_or(|it| (it.server as usize) < servers)
    }
}

impl RingConfig {
    /// The pools of a snapshot.
    pub(crate) fn of(snapshot: &Snapshot) -> Vec<Self> {
        let of_pool = |pool: &Pool| {
            let master = match pool.topology {
                Topology::Sharded => None,
                Topology::MasterReplica { master } => Some(master),
            };
            let of_server = |server: &cashew_config::snapshot::Server| {
                let may_eject = pool.auto_eject_hosts;
                let (name, endpoint) = (server.name.clone(), server.endpoint.clone());
                ServerConfig { name, endpoint, may_eject }
            };
            Self {
                name: pool.name.clone(),
                retry_timeout_ms: pool.server_retry_timeout_ms,
                servers: pool.servers.iter().map(of_server).collect(),
                primary: master,
            }
        };
        snapshot.pools.iter().map(of_pool).collect()
    }
}

impl Ring {
    pub(super) fn new(config: RingConfig) -> Self {
        Self {
            version: 0,
            servers: vec![Server { live: true, flaps: Flaps::default() }; config.servers.len()],
            primary: config.primary,
            config,
            change: None,
            wanted: BTreeMap::new(),
            promotion: None,
            not_before: None,
        }
    }

    /// The ring of the pool of the same name in another epoch.
    pub(super) fn reconfigured(mut self, config: RingConfig, halted: bool) -> Self {
        let old: HashMap<(&str, &Endpoint), u32> = (0..)
            .zip(&self.config.servers)
            .map(|(index, server)| ((&*server.name, &server.endpoint), index))
            .collect();
        let mut ring =
            Self { version: self.version, not_before: self.not_before, ..Self::new(config) };
        let named = |config: &RingConfig, server: Option<u32>| {
            server.map(|server| config.servers[server as usize].name.clone())
        };
        // Who is promoted stays so until the file names another.
        let is_as_before =
            named(&self.config, self.config.primary) == named(&ring.config, ring.config.primary);
        for (index, server) in (0..).zip(&ring.config.servers) {
            let Some(&before) = old.get(&(&*server.name, &server.endpoint)) else { continue };
            if is_as_before && ring.primary.is_some() {
                if self.primary == Some(before) {
                    ring.primary = Some(index);
                }
                if let Some(promotion) = self.promotion.take_if(|it| it.server == before) {
                    ring.promotion = Some(Promotion { server: index, ..promotion });
                }
            }
            let state = self.servers[before as usize];
            ring.servers[index as usize] = state;
            let wanted = self.wanted.remove(&before);
            let is_primary = ring.primary == Some(index);
            if server.may_eject && !is_primary {
                ring.wanted.extend(wanted.map(|wanted| (index, wanted)));
            } else if !state.live && !halted {
                let why = "it is not to be ejected any more".to_owned();
                ring.wanted.insert(index, Wanted { live: true, why });
            }
        }
        ring
    }

    pub(super) fn state(&self, now: Instant) -> RingState {
        let millis = |span: Duration| span.as_millis().try_into().unwrap_or(u64::MAX);
        let of_server = |server: &Server| ServerState {
            live: server.live,
            pause_ms: millis(server.flaps.pause),
            changed_ms_ago: server.flaps.changed_at.map(|at| millis(now - at)),
        };
        RingState {
            config: self.config.clone(),
            version: self.version,
            servers: self.servers.iter().map(of_server).collect(),
            wanted: self.wanted.clone(),
            primary: self.primary.filter(|_| self.primary != self.config.primary),
            promotion: self.promotion.clone(),
        }
    }

    pub(super) fn from_state(state: RingState, config: RingConfig, now: Instant) -> Self {
        let of_server = |server: ServerState| {
            let ago = server.changed_ms_ago.map(Duration::from_millis);
            let flaps = Flaps {
                pause: Duration::from_millis(server.pause_ms),
                changed_at: ago.and_then(|ago| now.checked_sub(ago)),
            };
            Server { live: server.live, flaps }
        };
        Self {
            primary: state.primary.or(config.primary),
            promotion: state.promotion,
            config,
            version: state.version,
            servers: state.servers.into_iter().map(of_server).collect(),
            change: None,
            wanted: state.wanted,
            not_before: None,
        }
    }

    pub(super) fn topology(&self) -> TopologyState {
        let promoted = self.primary.filter(|_| self.primary != self.config.primary);
        let primaries = promoted.map(|server| Promoted { shard: 0, server }).into_iter().collect();
        TopologyState { live: self.live(), primaries }
    }

    pub(super) fn live(&self) -> Vec<bool> {
        self.servers.iter().map(|server| server.live).collect()
    }

    /// Whether the pause of a flapping server is over. It is while no other server is live: a
    /// flapping server is better than none.
    pub(super) fn may_return(&self, server: u32, now: Instant) -> bool {
        let Some(Server { live, flaps }) = self.servers.get(server as usize) else { return false };
        *live
            || flaps.changed_at.is_none_or(|ejected_at| now >= ejected_at + flaps.pause)
            || !self.servers.iter().any(|server| server.live)
    }

    pub(super) fn change_server(&mut self, index: u32, wanted: Wanted, now: Instant) {
        let server = &mut self.servers[index as usize];
        let (pool, name) = (&self.config.name, &self.config.servers[index as usize].name);
        server.live = wanted.live;
        if wanted.live {
            server.flaps.changed_at = Some(now);
            info!("pool '{pool}': server '{name}' is readmitted: {}", wanted.why);
            return;
        }
        let retry = Duration::from_millis(self.config.retry_timeout_ms);
        match server.flaps.ejected(retry, now) {
            Some(served) => warn!(
                "pool '{pool}': server '{name}' is ejected: {}; it was readmitted {served:.1?} \
                 ago, so it stays out for {:?} at least",
                wanted.why, server.flaps.pause
            ),
            None => warn!("pool '{pool}': server '{name}' is ejected: {}", wanted.why),
        }
    }

    /// Whether the server may be left out of the ring: the primary has no substitute.
    pub(super) fn may_eject(&self, server: u32) -> bool {
        let config = self.config.servers.get(server as usize);
        let promotions = self
            .promotion
            .iter()
            .chain(self.change.iter().filter_map(|change| change.promotion.as_ref()));
        config.is_some_and(|config| config.may_eject)
            && self.primary != Some(server)
            && promotions.into_iter().all(|it| it.server != server)
    }

    /// Another server takes the writes.
    pub(super) fn promote(&mut self, Promotion { server, why }: Promotion) {
        let name_of = |server: u32| &self.config.servers[server as usize].name;
        let (pool, name) = (&self.config.name, name_of(server));
        let before = self.primary.map_or("", |before| name_of(before));
        warn!("pool '{pool}': server '{name}' is the primary now, no more '{before}': {why}");
        self.primary = Some(server);
        self.servers[server as usize].live = true;
    }

    pub(super) fn has_wishes(&self) -> bool {
        !self.wanted.is_empty() || self.promotion.is_some()
    }

    pub(super) fn hold(&self, pool: u32) -> ToChild {
        ToChild::Hold { pool, version: self.version, drain_ms: DRAIN_MS }
    }

    pub(super) fn release(&self, pool: u32) -> ToChild {
        ToChild::Release { pool, version: self.version, topology: self.topology() }
    }
}
