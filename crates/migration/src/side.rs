//! One of the two pools of a move: which server has which key, and how servers are reached.

use std::sync::Arc;

use cashew_config::snapshot::{Credentials, Endpoint, Pool, Protocol, ServerGroup, TopologyState};
use cashew_placement::{Distribution, Hash, HashTag, Ring};
use cashew_tls::{Security, ServerTls};

/// A server that takes the writes of its keys.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// Of the server, or of its group.
    pub(crate) name: String,
    pub(crate) endpoint: Endpoint,
    pub(crate) protocol: Protocol,
    /// In the order in which they are tried.
    pub(crate) credentials: Vec<Credentials>,
    /// TLS comes first.
    pub(crate) security: Option<Arc<Security>>,
}

/// A pool.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) pool: String,
    pub(crate) shards: Vec<Access>,
    /// What tells the servers of each shard from others; see [`Pool::shard_marks`].
    marks: Vec<Vec<String>>,
    ring: Ring,
    hash: Hash,
    tag: Option<HashTag>,
    /// Those that clients can use; of memcached one.
    pub(crate) databases: std::ops::Range<u32>,
    pub(crate) identity: Identity,
}

/// Everything that a side is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pool: String,
    parts: Vec<(String, u32, Endpoint, Vec<Credentials>)>,
    placement: (Hash, Option<HashTag>, Distribution),
    tls: Option<ServerTls>,
    databases: std::ops::Range<u32>,
}

impl Side {
    pub(crate) fn new(pool: &Pool, state: &TopologyState) -> Self {
        let security = pool.server_tls.clone().map(Security::new).map(Arc::new);
        // Who is down keeps its keys.
        let state = TopologyState { live: vec![true; pool.servers.len()], ..state.clone() };
        let groups = pool.shards();
        let access = |(number, group): (u32, &ServerGroup)| {
            let server = &pool.servers[state.primary_of(number, group.primary) as usize];
            Access {
                name: group.name.clone(),
                endpoint: server.endpoint.clone(),
                protocol: pool.protocol,
                credentials: pool.server_auth.of(&server.name).to_vec(),
                security: security.clone(),
            }
        };
        let shards: Vec<Access> = (0..).zip(groups.iter()).map(access).collect();
        let databases = match (pool.protocol, pool.databases) {
            (Protocol::Memcached, _) => 0..1,
            (Protocol::Redis, 0 | 1) => pool.redis_db..pool.redis_db + 1,
            (Protocol::Redis, count) => 0..count,
        };
        let part = |(group, it): (&ServerGroup, &Access)| {
            (it.name.clone(), group.weight, it.endpoint.clone(), it.credentials.clone())
        };
        let identity = Identity {
            pool: pool.name.clone(),
            parts: groups.iter().zip(&shards).map(part).collect(),
            placement: (pool.hash, pool.hash_tag, pool.distribution),
            tls: pool.server_tls.clone(),
            databases: databases.clone(),
        };
        let ring = pool.ring(&state);
        Self {
            pool: pool.name.clone(),
            shards,
            marks: pool.shard_marks(true),
            ring,
            hash: pool.hash,
            tag: pool.hash_tag,
            databases,
            identity,
        }
    }

    /// The shards of which no server is among these.
    pub(crate) fn strangers(&self, known: &[String]) -> Vec<usize> {
        let is_known = |&at: &usize| self.marks[at].iter().any(|mark| known.contains(mark));
        (0..self.shards.len()).filter(|at| !is_known(at)).collect()
    }

    /// Some of the shards. It places no keys.
    pub(crate) fn part(&self, shards: &[usize]) -> Self {
        Self {
            pool: self.pool.clone(),
            shards: shards.iter().map(|&at| self.shards[at].clone()).collect(),
            marks: shards.iter().map(|&at| self.marks[at].clone()).collect(),
            ring: self.ring.clone(),
            hash: self.hash,
            tag: self.tag,
            databases: self.databases.clone(),
            identity: self.identity.clone(),
        }
    }

    /// Which of the shards has a key.
    pub(crate) fn place(&self, key: &[u8]) -> usize {
        if self.shards.len() == 1 {
            return 0;
        }
        let point = self.ring.point(self.hash, self.tag, key);
        self.ring.select(point).unwrap_or(0) as usize
    }
}
