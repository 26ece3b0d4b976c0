//! Which ring each gateway may route by, and when.

use std::collections::BTreeMap;

use cashew_config::Snapshot;
use cashew_config::snapshot::{Pool, Topology};
use cashew_placement::{Distribution, Node, Ring};

use crate::request::Access;

/// A gateway dispatched requests of a pool by the ring over `live` from `from` to `until`.
#[derive(Clone, Debug)]
pub(crate) struct Reign {
    pub(crate) version: u64,
    pub(crate) live: Vec<bool>,
    pub(crate) from: u64,
    pub(crate) until: u64,
}

pub(crate) struct Rings {
    pools: Vec<Pool>,
    /// By pool, by gateway: ascending. The last one is open, unless the gateway holds the pool.
    reigns: Vec<Vec<Vec<Reign>>>,
    built: BTreeMap<(usize, Vec<bool>), Ring>,
}

impl Rings {
    pub(crate) fn new(snapshot: &Snapshot, gateways: u32) -> Self {
        let first = |pool: &Pool| Reign {
            version: 0,
            live: vec![true; pool.servers.len()],
            from: 0,
            until: u64::MAX,
        };
        let reigns = snapshot.pools.iter().map(|pool| vec![vec![first(pool)]; gateways as usize]);
        Self { pools: snapshot.pools.clone(), reigns: reigns.collect(), built: BTreeMap::new() }
    }

    /// The gateway says that it dispatches nothing any more.
    pub(crate) fn held(&mut self, pool: u32, gateway: u32, now: u64) {
        let reign = self.reigns[pool as usize][gateway as usize].last_mut().expect("never empty");
        reign.until = reign.until.min(now);
    }

    /// The gateway goes on by a new ring: nobody may still go by another.
    pub(crate) fn released(
        &mut self,
        pool: u32,
        gateway: u32,
        version: u64,
        live: &[bool],
        now: u64,
    ) {
        for (other, reigns) in self.reigns[pool as usize].iter().enumerate() {
            let last = reigns.last().expect("never empty");
            assert!(
                last.until <= now || (other as u32 != gateway && last.live == live),
                "I5: gateway {gateway} routes pool {pool} by ring {version} while gateway {other} \
                 routes by ring {}",
                last.version
            );
        }
        let reign = Reign { version, live: live.to_vec(), from: now, until: u64::MAX };
        self.reigns[pool as usize][gateway as usize].push(reign);
    }

    /// The rings that a request may have been routed by that was dispatched within the times.
    fn candidates(&self, pool: u32, gateway: u32, from: u64, until: u64) -> Vec<Vec<bool>> {
        self.reigns[pool as usize][gateway as usize]
            .iter()
            .filter(|reign| reign.from <= until && reign.until >= from)
            .map(|reign| reign.live.clone())
            .collect()
    }

    /// How many servers are live by each of the rings that may have been in use.
    pub(crate) fn live_counts(&self, pool: u32, gateway: u32, from: u64, until: u64) -> Vec<usize> {
        let count = |live: Vec<bool>| live.iter().filter(|&&live| live).count();
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
        for live in self.candidates(pool, gateway, from, until) {
            owners.extend(self.owners_by(pool, live, key, access));
        }
        owners.sort_unstable();
        owners.dedup();
        owners
    }

    fn owners_by(&mut self, pool: u32, live: Vec<bool>, key: &[u8], access: Access) -> Vec<u32> {
        let config = &self.pools[pool as usize];
        let all = 0..config.servers.len() as u32;
        match config.topology {
            Topology::MasterReplica { master } => match access {
                Access::Write => vec![master],
                // Any replica may stand in for another, and the master for all.
                Access::Read => all.filter(|&s| s == master || live[s as usize]).collect(),
            },
            Topology::Sharded if config.distribution == Distribution::Random => {
                all.filter(|&server| live[server as usize]).collect()
            }
            Topology::Sharded => {
                let build = |live: &[bool]| {
                    let nodes: Vec<Node<'_>> = config
                        .servers
                        .iter()
                        .map(|s| Node { name: s.name.as_bytes(), weight: s.weight })
                        .collect();
                    Ring::build(config.distribution, &nodes, live)
                };
                let ring = self
                    .built
                    .entry((pool as usize, live))
                    .or_insert_with_key(|(_, live)| build(live));
                let point = ring.point(config.hash, config.hash_tag, key);
                ring.select(point).into_iter().collect()
            }
        }
    }
}
