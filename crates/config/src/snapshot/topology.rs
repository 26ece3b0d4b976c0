//! How servers share the keys of a pool, and what of that changes while a snapshot is in use.

use std::borrow::Cow;
use std::fmt;

use cashew_placement::{Node, Ring, SHARE_WHOLE};
use serde::{Deserialize, Serialize};

use super::{Address, Endpoint, Pool, Server, live};
use crate::groups::REPLICAS_MAX;
use crate::resolve::by_length_then_bytes;

/// How servers share the keys of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Topology {
    /// Every server holds its own share of the keys.
    Sharded,
    /// One server, by index, takes the writes; the others are its replicas and share the reads
    /// by the pool's ring.
    MasterReplica { master: u32 },
    /// Groups share the keys; the servers of a group hold the same ones. In the order of their
    /// names, as the ring numbers them. Each server is of one group, and some group has several.
    Groups(Vec<ServerGroup>),
}

/// Which server of a shard answers reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reads {
    Primary,
    /// A replica while the primary cannot be reached.
    PreferPrimary,
    /// Replicas in turn, and nobody else.
    Replica,
    /// The primary while no replica can be reached.
    PreferReplica,
    /// All in turn.
    Any,
    /// Of two at random, the one that answers sooner.
    Nearest,
    /// Those in the gateway's zone first, replicas before the primary.
    Zone,
}

impl Reads {
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Primary, "primary"),
        (Self::PreferPrimary, "prefer_primary"),
        (Self::Replica, "replica"),
        (Self::PreferReplica, "prefer_replica"),
        (Self::Any, "any"),
        (Self::Nearest, "nearest"),
        (Self::Zone, "zone"),
    ];

    /// In any case.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|(_, known)| known.eq_ignore_ascii_case(name)).map(|(reads, _)| reads)
    }
}

impl fmt::Display for Reads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, name) =
            Self::ALL.into_iter().find(|(reads, _)| reads == self).expect("all are there");
        f.write_str(name)
    }
}

/// Servers that hold the same share of the keys. Servers are given by their index in the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerGroup {
    /// What the ring knows it by.
    pub name: String,
    /// At least 1.
    pub weight: u32,
    /// Who takes the writes.
    pub primary: u32,
    /// Who has copies, in the order of the file.
    pub replicas: Vec<u32>,
}

impl ServerGroup {
    pub fn has(&self, server: u32) -> bool {
        self.primary == server || self.replicas.contains(&server)
    }

    /// The configured primary first.
    pub fn members(&self) -> impl Iterator<Item = u32> {
        std::iter::once(self.primary).chain(self.replicas.iter().copied())
    }
}

/// What of a pool's topology changes while its snapshot is in use. It is always handed on whole: who
/// gets it needs to know nothing of what was before.
///
/// Versions of before it had `primaries` read and write the same where there are none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyState {
    /// By server: whether it is not ejected. A shard is on the ring while its primary is not, or where
    /// all of its servers take the writes, while any of them is not. A replica that is gets no reads.
    #[serde(with = "live")]
    pub live: Vec<bool>,
    /// Shards whose primary is another of their servers than the configured one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub primaries: Vec<Promoted>,
    /// How often another server has begun to take a shard's writes, in this instance and without
    /// Sentinels: the shard, and the number. Shards where that never happened are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reigns: Vec<(u32, u32)>,
    /// Servers that are drained: each with the share of its keys that it still has, in thousandths. One that has none
    /// is not `live`, and is well all the same. All others have the whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<(u32, u16)>,
}

/// A server that takes the writes of a shard in the place of the configured one, by their indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promoted {
    pub shard: u32,
    pub server: u32,
}

impl TopologyState {
    /// As configured, with all servers on the ring.
    pub fn whole(pool: &Pool) -> Self {
        vec![true; pool.servers.len()].into()
    }

    /// Whether it can be that of this pool: a flag for each server, and primaries that are servers of
    /// their shards.
    pub fn is_of(&self, pool: &Pool) -> bool {
        let servers = pool.servers.len();
        let is_member = |&Promoted { shard, server }: &Promoted| match &pool.topology {
            Topology::Sharded => shard == server,
            Topology::MasterReplica { .. } => shard == 0,
            Topology::Groups(groups) => {
                groups.get(shard as usize).is_some_and(|group| group.has(server))
            }
        } && (server as usize) < servers;
        let is_server =
            |(server, share): &(u32, u16)| (*server as usize) < servers && *share < SHARE_WHOLE;
        self.live.len() == servers
            && self.primaries.iter().all(is_member)
            && self.shares.iter().all(is_server)
    }

    /// The share of its keys that a server has, in thousandths.
    pub fn share_of(&self, server: u32) -> u16 {
        let share = self.shares.iter().find(|(its, _)| *its == server);
        share.map_or(SHARE_WHOLE, |&(_, share)| share)
    }

    /// How often another server has begun to take the writes of a shard.
    pub fn reign(&self, shard: u32) -> u32 {
        self.reigns.iter().find(|(its, _)| *its == shard).map_or(0, |&(_, reign)| reign)
    }

    /// Who takes the writes of a shard.
    pub fn primary_of(&self, shard: u32, configured: u32) -> u32 {
        let promoted = self.primaries.iter().find(|promoted| promoted.shard == shard);
        promoted.map_or(configured, |promoted| promoted.server)
    }
}

impl From<Vec<bool>> for TopologyState {
    /// With the configured primaries.
    fn from(live: Vec<bool>) -> Self {
        Self { live, primaries: Vec::new(), reigns: Vec::new(), shares: Vec::new() }
    }
}

impl Pool {
    /// The shares of the keys by their numbers, each with its servers. Where each server has its own,
    /// that is a group of one of its name.
    pub fn shards(&self) -> Cow<'_, [ServerGroup]> {
        let group = |primary: u32, replicas: Vec<u32>| {
            let server = &self.servers[primary as usize];
            ServerGroup { name: server.name.clone(), weight: server.weight, primary, replicas }
        };
        let servers = 0..self.servers.len() as u32;
        match &self.topology {
            Topology::Sharded => servers.map(|server| group(server, Vec::new())).collect(),
            Topology::MasterReplica { master } => {
                let replicas = servers.filter(|server| server != master).collect();
                vec![group(*master, replicas)].into()
            }
            Topology::Groups(groups) => groups.into(),
        }
    }

    /// Whether the replicas that Sentinels name answer reads: some reads are for others than primaries.
    pub fn takes_replicas(&self) -> bool {
        let is_for_others = |reads: Reads| reads != Reads::Primary;
        let by_class = || self.reads_by_class.iter().any(|&(_, reads)| is_for_others(reads));
        self.sentinel.is_some() && (self.reads.is_some_and(is_for_others) || by_class())
    }

    /// Where the replicas of a group are whose primary is `server`.
    pub fn replicas_of(&self, server: &str) -> Vec<Address> {
        let shards = self.shards();
        let is_it = |group: &&ServerGroup| self.servers[group.primary as usize].name == server;
        let replicas = shards.iter().find(is_it).into_iter().flat_map(|group| &group.replicas);
        replicas.filter_map(|&it| self.servers[it as usize].endpoint.address()).collect()
    }

    /// Takes these for the replicas of a group whose primary, the server, Sentinels name. False if they
    /// are so already. Other servers of the pool are nobody's replicas.
    pub fn set_replicas(&mut self, server: &str, replicas: &[Address]) -> bool {
        let Topology::Groups(groups) = &self.topology else { return false };
        let is_sentinel_s = |name: &str| {
            self.sentinel.iter().flat_map(|it| &it.groups).any(|group| group.server == name)
        };
        if !self.takes_replicas() || !is_sentinel_s(server) {
            return false;
        }
        let name = |server: u32| self.servers[server as usize].name.clone();
        // By names: places change with the list.
        let mut named: Vec<(ServerGroup, String, Vec<String>)> = groups
            .iter()
            .map(|group| {
                let replicas = group.replicas.iter().map(|&it| name(it)).collect();
                (group.clone(), name(group.primary), replicas)
            })
            .collect();
        let Some((group, _, before)) = named.iter_mut().find(|(_, primary, _)| primary == server)
        else {
            return false;
        };
        let is_other = |it: &Server| !before.contains(&it.name);
        let mut wanted: Vec<Server> = Vec::new();
        for address in replicas {
            let endpoint = Endpoint::from(address.clone());
            let name = format!("{}/{endpoint}", group.name);
            let is_taken = |it: &Server| it.endpoint == endpoint || it.name == name;
            let is_free = !wanted.iter().any(is_taken)
                && !self.servers.iter().filter(|it| is_other(it)).any(is_taken);
            if is_free && wanted.len() < REPLICAS_MAX {
                wanted.push(Server { name, endpoint, weight: group.weight, zone: None });
            }
        }
        wanted.sort_by(|a, b| by_length_then_bytes(&a.name, &b.name));
        let names: Vec<String> = wanted.iter().map(|it| it.name.clone()).collect();
        if names.len() == before.len() && names.iter().all(|name| before.contains(name)) {
            return false;
        }
        self.servers.retain(|it| !before.contains(&it.name));
        self.servers.extend(wanted);
        self.servers.sort_by(|a, b| by_length_then_bytes(&a.name, &b.name));
        *before = names;
        let place = |name: &String| {
            let place = self.servers.iter().position(|it| it.name == *name);
            place.expect("it is among them") as u32
        };
        let placed = named.iter().map(|(group, primary, replicas)| ServerGroup {
            primary: place(primary),
            replicas: replicas.iter().map(place).collect(),
            ..group.clone()
        });
        self.topology = Topology::Groups(placed.collect());
        true
    }

    /// The groups of several servers, each with its number among the shards.
    pub fn replicated(&self) -> Vec<(u32, ServerGroup)> {
        if self.topology == Topology::Sharded {
            return Vec::new();
        }
        let shards = self.shards().into_owned();
        (0..).zip(shards).filter(|(_, shard)| !shard.replicas.is_empty()).collect()
    }

    /// Whether any server that may answer for one key may answer for all.
    pub fn is_one_shard(&self) -> bool {
        match &self.topology {
            Topology::Sharded => false,
            Topology::MasterReplica { .. } => true,
            // The slots of a cluster's only node may be on their way to another.
            Topology::Groups(groups) => groups.len() == 1 && !self.is_cluster(),
        }
    }

    /// By server: the name of its group. A node of a cluster has none, as it is the same in whatever group. A server is the same in another snapshot if this name and its
    /// endpoint are, also where a line has become a group.
    pub fn group_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.servers.iter().map(|server| &*server.name).collect();
        if let Topology::Groups(groups) = &self.topology
            && !self.is_cluster()
        {
            for group in groups {
                group.members().for_each(|member| names[member as usize] = &group.name);
            }
        }
        names
    }

    /// As if the file named the primaries that are in force.
    pub fn in_force(&self, state: &TopologyState) -> Self {
        let mut pool = self.clone();
        match &mut pool.topology {
            Topology::Sharded => {}
            Topology::MasterReplica { master } => *master = state.primary_of(0, *master),
            Topology::Groups(groups) => {
                for (shard, group) in (0..).zip(groups) {
                    let primary = state.primary_of(shard, group.primary);
                    for replica in group.replicas.iter_mut().filter(|it| **it == primary) {
                        *replica = std::mem::replace(&mut group.primary, primary);
                    }
                }
            }
        }
        pool
    }

    /// The ring over the shards whose primaries are live; with one master, over its replicas.
    pub fn ring(&self, state: &TopologyState) -> Ring {
        let shards = self.shards();
        // By their indices among the nodes.
        let mut writers: Vec<u32> = (0..self.servers.len() as u32).collect();
        let (nodes, on_ring): (Vec<Node<'_>>, Vec<bool>) = match self.topology {
            Topology::MasterReplica { master } => {
                let mut replicas = state.live.clone();
                replicas[state.primary_of(0, master) as usize] = false;
                let servers = self.servers.iter();
                let nodes = servers
                    .map(|server| Node { name: server.name.as_bytes(), weight: server.weight });
                (nodes.collect(), replicas)
            }
            Topology::Sharded | Topology::Groups(_) => {
                let nodes = shards
                    .iter()
                    .map(|shard| Node { name: shard.name.as_bytes(), weight: shard.weight });
                let writes_to_all = self.writes_to_all();
                let writer =
                    |(number, shard): (u32, &ServerGroup)| state.primary_of(number, shard.primary);
                writers = (0..).zip(shards.iter()).map(writer).collect();
                let is_live = |(number, shard): (u32, &ServerGroup)| {
                    let live = |server: u32| state.live[server as usize];
                    match writes_to_all {
                        true => shard.members().any(live),
                        false => live(state.primary_of(number, shard.primary)),
                    }
                };
                (nodes.collect(), (0..).zip(shards.iter()).map(is_live).collect())
            }
        };
        let share = |node: u32| state.share_of(writers[node as usize]);
        Ring::build_with_shares(self.distribution, &nodes, &on_ring, share)
    }
}
