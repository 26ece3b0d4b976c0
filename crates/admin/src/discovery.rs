//! What the master tells of groups whose primaries Sentinels name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cashew_config::snapshot::{Cluster, ClusterMap, Pool, Server};
use cashew_discovery::{MaintenanceStatus, SourceStatus};
use cashew_migration::MoveStatus;

/// Kept over all epochs; each of its copies is the same.
#[derive(Clone, Debug, Default)]
pub struct Discovery(Arc<Mutex<Told>>);

#[derive(Debug, Default)]
struct Told {
    /// By the names of the pool and of the server.
    groups: BTreeMap<(String, String), GroupState>,
    /// By the name of the pool and the address.
    sentinels: BTreeMap<(String, String), bool>,
    /// In the order of their directories.
    moves: Vec<MoveStatus>,
    /// Likewise the seeds of clusters.
    seeds: BTreeMap<(String, String), bool>,
    /// By the name of the pool.
    sources: BTreeMap<String, SourceStatus>,
    /// By the names of the pool and of the server.
    maintained: BTreeMap<(String, String), MaintenanceStatus>,
}

/// How a group is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupState {
    pub state: String,
    pub config_epoch: Option<u64>,
    /// How often its primary has moved, and when it did last, in seconds since 1970, and why.
    pub switches: u64,
    pub switched_at: Option<u64>,
    pub why: String,
}

/// A group as it is told of.
pub(crate) struct Group<'a> {
    pub(crate) pool: &'a str,
    pub(crate) server: &'a str,
    pub(crate) master: &'a str,
    pub(crate) primary: Option<String>,
    pub(crate) state: GroupState,
}

/// The map of a cluster, and the seeds that it was learned from, as they are told of.
pub(crate) struct ClusterState<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) cluster: &'a Cluster,
    /// Without shards while there is none.
    pub(crate) map: ClusterMap,
    /// Whether they answer; `None` while that is not known.
    pub(crate) seeds: Vec<(String, Option<bool>)>,
}

/// A Sentinel as it is told of.
pub(crate) struct Sentinel<'a> {
    pub(crate) pool: &'a str,
    pub(crate) address: String,
    /// `None` while that is not known.
    pub(crate) is_answering: Option<bool>,
}

impl Discovery {
    pub fn group(&self, pool: String, server: String, state: GroupState) {
        self.told().groups.insert((pool, server), state);
    }

    pub fn moves(&self, moves: Vec<MoveStatus>) {
        self.told().moves = moves;
    }

    /// Pools that are copied to others, as discovery told last.
    pub(crate) fn all_moves(&self) -> Vec<MoveStatus> {
        self.told().moves.clone()
    }

    pub fn sentinel(&self, pool: String, address: String, is_answering: Option<bool>) {
        let sentinels = &mut self.told().sentinels;
        match is_answering {
            Some(answers) => _ = sentinels.insert((pool, address), answers),
            None => _ = sentinels.remove(&(pool, address)),
        }
    }

    pub fn seed(&self, pool: String, address: String, is_answering: Option<bool>) {
        let seeds = &mut self.told().seeds;
        match is_answering {
            Some(answers) => _ = seeds.insert((pool, address), answers),
            None => _ = seeds.remove(&(pool, address)),
        }
    }

    pub fn source(&self, status: SourceStatus) {
        self.told().sources.insert(status.pool.clone(), status);
    }

    pub fn maintained(&self, status: MaintenanceStatus) {
        let name = (status.pool.clone(), status.server.clone());
        self.told().maintained.insert(name, status);
    }

    /// Of servers that are asked to tell of their maintenance.
    pub(crate) fn all_maintained(&self, pools: &[Pool]) -> Vec<MaintenanceStatus> {
        let told = self.told();
        let asked = pools.iter().filter(|pool| pool.server_maintenance.is_some());
        let status = |(pool, server): (&Pool, &Server)| {
            let name = (pool.name.clone(), server.name.clone());
            told.maintained.get(&name).cloned().unwrap_or_else(|| MaintenanceStatus {
                pool: pool.name.clone(),
                server: server.name.clone(),
                address: server.endpoint.to_string(),
                state: "asked".to_owned(),
                ..MaintenanceStatus::default()
            })
        };
        asked.flat_map(|pool| pool.servers.iter().map(move |it| (pool, it))).map(status).collect()
    }

    /// Of pools whose servers a source names, each with how often they have changed.
    pub(crate) fn sources<'a>(&self, pools: &'a [Pool]) -> Vec<(&'a Pool, SourceStatus)> {
        let told = self.told();
        let state = |pool: &'a Pool| {
            let source = pool.source()?.to_string();
            let status = told.sources.get(&pool.name).filter(|it| it.source == source);
            Some((pool, status.cloned().unwrap_or_default()))
        };
        pools.iter().filter_map(state).collect()
    }

    pub(crate) fn clusters<'a>(&self, pools: &'a [Pool]) -> Vec<ClusterState<'a>> {
        let told = self.told();
        let state = |pool: &'a Pool| {
            let cluster = pool.cluster.as_ref()?;
            let seed = |address: String| {
                let is_answering = told.seeds.get(&(pool.name.clone(), address.clone())).copied();
                (address, is_answering)
            };
            let seeds = cluster.seeds.iter().map(|it| seed(it.to_string())).collect();
            let map = pool.cluster_map().unwrap_or_default();
            Some(ClusterState { pool, cluster, map, seeds })
        };
        pools.iter().filter_map(state).collect()
    }

    /// Those of a snapshot: what was told of others is of an earlier one.
    pub(crate) fn groups<'a>(&self, pools: &'a [Pool]) -> Vec<Group<'a>> {
        let told = self.told();
        let of_pool = |pool: &'a Pool| {
            let groups = pool.sentinel.iter().flat_map(|sentinel| &sentinel.groups);
            groups.map(move |group| (pool, group))
        };
        let group = |(pool, group): (&'a Pool, &'a cashew_config::snapshot::Group)| {
            let server = pool.servers.iter().find(|server| server.name == group.server);
            let primary = server.and_then(|server| server.endpoint.address());
            let name = (pool.name.clone(), group.server.clone());
            let unknown = || GroupState {
                state: "not watched".to_owned(),
                config_epoch: group.config_epoch,
                ..GroupState::default()
            };
            Group {
                pool: &pool.name,
                server: &group.server,
                master: &group.master,
                primary: primary.map(|address| address.to_string()),
                state: told.groups.get(&name).cloned().unwrap_or_else(unknown),
            }
        };
        pools.iter().flat_map(of_pool).map(group).collect()
    }

    pub(crate) fn sentinels<'a>(&self, pools: &'a [Pool]) -> Vec<Sentinel<'a>> {
        let told = self.told();
        let of_pool = |pool: &'a Pool| {
            let addresses = pool.sentinel.iter().flat_map(|sentinel| &sentinel.addresses);
            addresses.map(move |address| (pool, address.to_string()))
        };
        let sentinel = |(pool, address): (&'a Pool, String)| {
            let is_answering = told.sentinels.get(&(pool.name.clone(), address.clone())).copied();
            Sentinel { pool: &pool.name, address, is_answering }
        };
        pools.iter().flat_map(of_pool).map(sentinel).collect()
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
