//! One of the two pools of a move: which server has which key, and how servers are reached.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use cashew_config::snapshot::{
    Cluster, Credentials, Endpoint, Pool, Protocol, ServerGroup, SlotRange, TopologyState,
};
use cashew_placement::{Distribution, Hash, HashTag, Ring, SLOTS, slot_of};
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
    /// Whoever is connected has all its answers until then, or an error. `None`: each answer may take its time.
    pub(crate) until: Option<Instant>,
}

/// A pool.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    pub(crate) pool: String,
    pub(crate) shards: Vec<Access>,
    /// What tells the servers of each shard from others; see [`Pool::shard_marks`].
    marks: Vec<Vec<String>>,
    ring: Ring,
    hash: Hash,
    tag: Option<HashTag>,
    /// In front of a cluster: by slot, the shard that owns it.
    owners: Option<Box<[Option<u32>]>>,
    /// Those that clients can use; of memcached one.
    pub(crate) databases: Range<u32>,
    pub(crate) identity: Identity,
}

/// Everything that a side is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pool: String,
    parts: Vec<(String, u32, Endpoint, Vec<Credentials>)>,
    placement: (Hash, Option<HashTag>, Distribution),
    /// In front of a cluster: of each shard.
    slots: Option<Vec<Vec<SlotRange>>>,
    tls: Option<ServerTls>,
    databases: Range<u32>,
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
                until: None,
            }
        };
        let shards: Vec<Access> = (0..).zip(groups.iter()).map(access).collect();
        let databases = match (pool.protocol, pool.databases) {
            (Protocol::Memcached | Protocol::Tcp, _) => 0..1,
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
            slots: pool.cluster.as_ref().map(|it| it.slots.clone()),
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
            owners: pool.cluster.as_ref().map(Cluster::owners),
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
            owners: self.owners.clone(),
            databases: self.databases.clone(),
            identity: self.identity.clone(),
        }
    }

    /// The same, of which everything is to be known by then.
    pub(crate) fn until(mut self, until: Instant) -> Self {
        self.shards.iter_mut().for_each(|access| access.until = Some(until));
        self
    }

    /// The shards that have some keys, each once.
    pub(crate) fn shards_of(&self, keys: &[Vec<u8>]) -> BTreeSet<usize> {
        keys.iter().map(|key| self.place(key)).collect()
    }

    /// Leaves those databases that another side has, too.
    pub(crate) fn limit(&mut self, other: &Range<u32>) {
        let (start, end) =
            (self.databases.start.max(other.start), self.databases.end.min(other.end));
        self.databases = start..end.max(start);
        self.identity.databases = self.databases.clone();
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.owners.is_some()
    }

    /// Why it cannot be said of every key where it is; `None` if it can.
    pub(crate) fn gap(&self) -> Option<String> {
        let owners = self.owners.as_ref()?;
        let owned = owners.iter().flatten().count();
        let pool = &self.pool;
        match owned {
            _ if self.shards.is_empty() => {
                Some(format!("the nodes of pool {pool} have not told who owns which slots yet"))
            }
            owned if owned < usize::from(SLOTS) => {
                Some(format!("pool {pool} has {owned} slots of {SLOTS}: the others have no owner"))
            }
            _ => None,
        }
    }

    /// Of a cluster: what a shard owns.
    pub(crate) fn slots_of(&self, shard: usize) -> Option<&[SlotRange]> {
        self.identity.slots.as_ref()?.get(shard).map(Vec::as_slice)
    }

    /// Which of the shards has a key.
    pub(crate) fn place(&self, key: &[u8]) -> usize {
        if let Some(owners) = &self.owners {
            // Nothing is copied while there are gaps.
            return owners[usize::from(slot_of(key))].unwrap_or(0) as usize;
        }
        if self.shards.len() == 1 {
            return 0;
        }
        let point = self.ring.point(self.hash, self.tag, key);
        self.ring.select(point).unwrap_or(0) as usize
    }
}

#[cfg(test)]
mod tests {
    use cashew_config::Context;

    use super::*;

    fn side(slots: &[(u16, u16)]) -> Side {
        let file = "pools:\n  a: {redis: true, listen: 127.0.0.1:22121, cluster: {seeds: [127.0.0.1:1]}}\n";
        let mut pool = cashew_config::parse("f", file, &Context::of_system())
            .unwrap()
            .snapshot
            .pools
            .remove(0);
        let mut map = cashew_config::snapshot::ClusterMap::default();
        for (at, &(first, last)) in slots.iter().enumerate() {
            let address = cashew_config::snapshot::Address {
                host: "127.0.0.1".into(),
                port: 7000 + at as u16,
            };
            map.shards.push(cashew_config::snapshot::ClusterShard {
                primary: cashew_config::snapshot::ClusterNode { address, zone: None },
                replicas: Vec::new(),
                slots: vec![SlotRange { first, last }],
                epoch: 1,
            });
        }
        pool.set_cluster_map(&map);
        Side::new(&pool, &TopologyState::whole(&pool))
    }

    #[test]
    fn keys_of_a_cluster_are_where_their_slots_are() {
        let whole = side(&[(0, 8000), (8001, 16383)]);
        assert_eq!(whole.gap(), None);
        // Its slot is 12182, that of "bar" 5061.
        assert_eq!((whole.place(b"foo"), whole.place(b"bar"), whole.place(b"{bar}foo")), (1, 0, 0));
        assert_eq!(whole.slots_of(1), Some(&[SlotRange { first: 8001, last: 16383 }][..]));
        assert!(side(&[(0, 8000)]).gap().unwrap().contains("8001 slots of 16384"));
        assert!(side(&[]).gap().unwrap().contains("have not told"));
        assert_ne!(whole.identity, side(&[(0, 8001), (8002, 16383)]).identity);
    }

    #[test]
    fn databases_are_those_that_both_sides_have() {
        let mut side = side(&[(0, 16383)]);
        assert_eq!(side.databases, 0..1);
        side.databases = 0..16;
        side.limit(&(0..1));
        assert_eq!((&side.databases, &side.identity.databases), (&(0..1), &(0..1)));
        side.limit(&(4..5));
        assert!(side.databases.is_empty());
    }
}
