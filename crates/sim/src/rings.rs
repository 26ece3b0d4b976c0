//! Which ring each gateway may route by, and when. Pools and servers are given by their places in
//! the universe.

use std::collections::BTreeMap;
use std::rc::Rc;

use cashew_config::Snapshot;
use cashew_config::snapshot::{Pool, Reads, ServerGroup, Topology, TopologyState};
use cashew_placement::{Distribution, Node, Ring};

use crate::request::Access;
use crate::route;
use crate::scenario::{pool_id, server_id};

/// A gateway dispatched requests of a pool by this topology from `from` to `until`.
#[derive(Clone, Debug)]
pub(crate) struct Reign {
    pub(crate) version: u64,
    pub(crate) config: Rc<Pool>,
    pub(crate) topology: TopologyState,
    pub(crate) from: u64,
    pub(crate) until: u64,
}

#[derive(Default)]
pub(crate) struct Rings {
    /// By pool and gateway: ascending. The last one is open, unless the gateway holds the pool.
    reigns: BTreeMap<(u32, u32), Vec<Reign>>,
    built: BTreeMap<(usize, Vec<bool>), Ring>,
    /// Their addresses identify them in `built`.
    kept: Vec<Rc<Pool>>,
    /// Some of them lead to others.
    has_routes: bool,
}

/// Whether both send every key to the same server.
pub(crate) fn places_alike(one: &Pool, other: &Pool) -> bool {
    one.servers == other.servers
        && one.hash == other.hash
        && one.hash_tag == other.hash_tag
        && one.distribution == other.distribution
        && one.topology == other.topology
        && one.route == other.route
}

impl Rings {
    pub(crate) fn new(snapshot: &Snapshot, gateways: u32) -> Self {
        let mut rings = Self::default();
        for config in &snapshot.pools {
            let config = rings.keep(config);
            let topology = TopologyState::whole(&config);
            let id = pool_id(&config);
            let first = Reign { version: 0, config, topology, from: 0, until: u64::MAX };
            for gateway in 0..gateways {
                rings.reigns.insert((id, gateway), vec![first.clone()]);
            }
        }
        rings
    }

    fn keep(&mut self, config: &Pool) -> Rc<Pool> {
        if let Some(known) = self.kept.iter().find(|known| ***known == *config) {
            return Rc::clone(known);
        }
        self.has_routes |= config.route.is_some();
        let config = Rc::new(config.clone());
        self.kept.push(Rc::clone(&config));
        config
    }

    fn of(&self, pool: u32, gateway: u32) -> &[Reign] {
        self.reigns.get(&(pool, gateway)).map_or(&[], |reigns| reigns)
    }

    /// The gateway reports that it dispatches nothing any more.
    pub(crate) fn held(&mut self, pool: u32, gateway: u32, now: u64) {
        if let Some(reign) = self.reigns.get_mut(&(pool, gateway)).and_then(|r| r.last_mut()) {
            reign.until = reign.until.min(now);
        }
    }

    /// The gateway uses a new ring: no other gateway may still use an old one. Returns whether other
    /// servers take writes than before.
    pub(crate) fn released(
        &mut self,
        config: &Pool,
        gateway: u32,
        version: u64,
        topology: &TopologyState,
        now: u64,
    ) -> bool {
        let pool = pool_id(config);
        // Nodes of a cluster refuse what is not theirs, so gateways may differ.
        let has_ring = !config.is_cluster();
        for (&(of, other), reigns) in self.reigns.iter().filter(|_| has_ring) {
            let Some(last) = reigns.last().filter(|_| of == pool) else { continue };
            let is_same = last.topology == *topology && places_alike(&last.config, config);
            assert!(
                last.until <= now || is_same,
                "I5: gateway {gateway} routes pool {pool} by ring {version} while gateway {other} \
                 routes by ring {}",
                last.version
            );
        }
        self.held(pool, gateway, now);
        let config = self.keep(config);
        let topology = topology.clone();
        let reign = Reign { version, config, topology, from: now, until: u64::MAX };
        let reigns = self.reigns.entry((pool, gateway)).or_default();
        let moves = reigns.last().is_some_and(|last| last.writers() != reign.writers());
        reigns.push(reign);
        moves && has_ring
    }

    /// The gateway continues with the ring it had.
    pub(crate) fn resumed(&mut self, pool: u32, gateway: u32, now: u64) {
        if let Some(reigns) = self.reigns.get_mut(&(pool, gateway))
            && let Some(last) = reigns.last().cloned()
            && last.until != u64::MAX
        {
            reigns.push(Reign { from: now, until: u64::MAX, ..last });
        }
    }

    /// Whether the gateway routes by this ring already.
    pub(crate) fn is_same(&self, config: &Pool, gateway: u32, topology: &TopologyState) -> bool {
        let last = self.of(pool_id(config), gateway).last();
        last.is_some_and(|last| last.topology == *topology && places_alike(&last.config, config))
    }

    /// The rings by which a request dispatched between these times may have been routed.
    fn candidates(&self, pool: u32, gateway: u32, from: u64, until: u64) -> Vec<Reign> {
        let reigns = self.of(pool, gateway).iter();
        reigns.filter(|reign| reign.from <= until && reign.until >= from).cloned().collect()
    }

    /// The pools whose servers a request of the pool's clients may have gone to: its own, or those of a route.
    pub(crate) fn leaves(
        &self,
        pool: u32,
        gateway: u32,
        key: &[u8],
        from: u64,
        until: u64,
    ) -> Vec<u32> {
        if !self.has_routes {
            return vec![pool];
        }
        let leaf = |reign: Reign| match &reign.config.route {
            Some(route) => route::leaf(route, key),
            None => pool,
        };
        self.candidates(pool, gateway, from, until).into_iter().map(leaf).collect()
    }

    /// Whether a copy of a request may have been sent to another pool.
    pub(crate) fn are_copied(
        &self,
        pool: u32,
        gateway: u32,
        key: &[u8],
        from: u64,
        until: u64,
    ) -> bool {
        let reigns = self.candidates(pool, gateway, from, until);
        let mut routes = reigns.iter().filter_map(|reign| reign.config.route.as_ref());
        routes.any(|route| route::is_copied(route, key))
    }

    /// Whether the pool's clients are led to other pools.
    pub(crate) fn is_route(&self, pool: u32) -> bool {
        self.has_routes && self.kept.iter().any(|it| pool_id(it) == pool && it.route.is_some())
    }

    /// The number of live servers in each ring that may have been in use.
    pub(crate) fn live_counts(&self, pool: u32, gateway: u32, from: u64, until: u64) -> Vec<usize> {
        let is_live = |reign: &Reign, server: u32| reign.topology.live[server as usize];
        let count = |reign: Reign| match reign.config.topology {
            Topology::Groups(_) => {
                let primaries = reign.primaries();
                primaries.into_iter().filter(|&primary| is_live(&reign, primary)).count()
            }
            _ => reign.topology.live.iter().filter(|&&live| live).count(),
        };
        self.candidates(pool, gateway, from, until).into_iter().map(count).collect()
    }

    /// The servers that a key may have gone to.
    pub(crate) fn owners(
        &mut self,
        pool: u32,
        gateway: u32,
        key: &[u8],
        access: Access,
        from: u64,
        until: u64,
    ) -> Vec<u32> {
        let mut owners = Vec::new();
        let reigns = self.candidates(pool, gateway, from, until);
        for (at, reign) in reigns.iter().enumerate() {
            let here = self.owners_by(reign, key, access);
            owners.extend(
                here.into_iter().map(|server| server_id(&reign.config.servers[server as usize])),
            );
            // What waits for a primary goes to the one that its group has next, though the key is another group's then.
            if access == Access::Write {
                let later = &reigns[at + 1..];
                owners.extend(later.iter().filter_map(|next| self.heir(reign, next, key)));
            }
        }
        owners.sort_unstable();
        owners.dedup();
        owners
    }

    /// Who is primary under the next reign of the group that the key has under this one.
    fn heir(&mut self, reign: &Reign, next: &Reign, key: &[u8]) -> Option<u32> {
        let Topology::Groups(_) = reign.config.topology else { return None };
        let shard = self.shard_by(reign, key)?;
        let name = &reign.config.shards()[shard].name;
        let shards = next.config.shards();
        let shard = shards.iter().position(|group| group.name == *name)?;
        Some(server_id(&next.config.servers[next.primaries()[shard] as usize]))
    }

    fn owners_by(&mut self, reign: &Reign, key: &[u8], access: Access) -> Vec<u32> {
        let Reign { config, topology, .. } = reign;
        let live = &topology.live;
        let all = 0..config.servers.len() as u32;
        match config.topology {
            Topology::Groups(_) => {
                let Some(shard) = self.shard_by(reign, key) else { return Vec::new() };
                match (access, config.reads) {
                    (Access::Read, Some(reads)) if reads != Reads::Primary => {
                        config.shards()[shard].members().collect()
                    }
                    _ => vec![reign.primaries()[shard]],
                }
            }
            Topology::MasterReplica { master } => match access {
                Access::Write => vec![master],
                // Any replica may stand in for another, and the master for all.
                Access::Read => all.filter(|&s| s == master || live[s as usize]).collect(),
            },
            Topology::Sharded if config.distribution == Distribution::Random => {
                all.filter(|&server| live[server as usize]).collect()
            }
            Topology::Sharded => {
                self.shard_by(reign, key).into_iter().map(|shard| shard as u32).collect()
            }
        }
    }

    /// The shard of a key: the ring knows their names and weights. One that is alone needs no ring.
    fn shard_by(&mut self, reign: &Reign, key: &[u8]) -> Option<usize> {
        let config = &reign.config;
        if config.is_one_shard() {
            return Some(0);
        }
        let is_live = |server: u32| reign.topology.live[server as usize];
        let live: Vec<bool> = reign.primaries().into_iter().map(is_live).collect();
        let build = |live: &[bool]| {
            let shards = config.shards();
            let nodes: Vec<Node<'_>> = shards
                .iter()
                .map(|it| Node { name: it.name.as_bytes(), weight: it.weight })
                .collect();
            Ring::build(config.distribution, &nodes, live)
        };
        let ring = self
            .built
            .entry((Rc::as_ptr(config) as usize, live))
            .or_insert_with_key(|(_, live)| build(live));
        ring.select(ring.point(config.hash, config.hash_tag, key)).map(|shard| shard as usize)
    }

    /// Whether reads of the pool may be sent to a second server.
    pub(crate) fn hedges(&self, pool: u32) -> bool {
        let is_it = |config: &&Rc<Pool>| pool_id(config) == pool;
        self.kept.iter().find(is_it).is_some_and(|config| config.hedge.is_some())
    }

    pub(crate) fn has_groups(&self, pool: u32) -> bool {
        let is_it = |config: &&Rc<Pool>| pool_id(config) == pool;
        let config = self.kept.iter().find(is_it);
        config.is_some_and(|config| matches!(config.topology, Topology::Groups(_)))
    }

    /// Whether the gateway sends no writes to a server any more that it sent some to before: another one
    /// has its place.
    pub(crate) fn is_superseded(&self, pool: u32, gateway: u32, server: u32) -> bool {
        let Some(last) = self.of(pool, gateway).last() else { return false };
        let places = 0..last.config.servers.len() as u32;
        let mut places =
            places.filter(|&at| server_id(&last.config.servers[at as usize]) == server);
        matches!(last.config.topology, Topology::Groups(_))
            && places.next().is_some_and(|place| !last.primaries().contains(&place))
    }
}

impl Reign {
    /// By shard: its name, and who takes the writes, by its place in the universe.
    fn writers(&self) -> Vec<(String, u32)> {
        let shards = self.config.shards();
        let names = shards.iter().map(|shard| shard.name.clone());
        let server = |at: u32| server_id(&self.config.servers[at as usize]);
        names.zip(self.primaries().into_iter().map(server)).collect()
    }

    /// By shard: who takes the writes.
    fn primaries(&self) -> Vec<u32> {
        let shards = self.config.shards();
        let primary =
            |(shard, group): (u32, &ServerGroup)| self.topology.primary_of(shard, group.primary);
        (0..).zip(shards.iter()).map(primary).collect()
    }
}
