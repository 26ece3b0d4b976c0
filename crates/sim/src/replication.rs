//! Groups of servers: what one executes, the others have a while later.

use std::collections::BTreeMap;

use cashew_config::snapshot::Pool;

use crate::clock::Event;
use crate::server::Place;
use crate::world::{Fabric, World};

/// What a write has left at a place; `None` for nothing.
type Value = Option<Vec<u8>>;

/// Copies on their way, and what those who write have by now.
#[derive(Default)]
pub(crate) struct Replication {
    /// The longest that a copy takes; 0 if nothing is copied.
    lag_max_us: u64,
    /// By pool: each server's group, by their indices. All servers of a group of one have none.
    groups: Vec<Vec<Vec<u32>>>,
    /// By pool and place.
    latest: BTreeMap<(u32, Place), Value>,
    copies: Vec<Copied>,
    /// By server: when its last copy arrives, so that they arrive in order.
    last: BTreeMap<u32, u64>,
}

struct Copied {
    server: u32,
    place: Place,
    value: Value,
}

impl Replication {
    pub(crate) fn new(lag_max_us: u64, pools: &[Pool]) -> Self {
        let members = |pool: &Pool| {
            pool.replicated().iter().map(|(_, group)| group.members().collect()).collect()
        };
        Self { lag_max_us, groups: pools.iter().map(members).collect(), ..Self::default() }
    }

    /// Whether a server has something else at a place than the last write left there.
    pub(crate) fn is_stale(&self, pool: u32, place: &Place, value: Option<&Vec<u8>>) -> bool {
        let latest = self.latest.get(&(pool, place.clone()));
        self.lag_max_us > 0 && latest.is_some_and(|latest| latest.as_ref() != value)
    }
}

impl Fabric {
    /// A server has executed a write.
    pub(crate) fn replicate(&mut self, server: u32, place: Place, value: Value) {
        let (pool, index) = self.server_of(server);
        let Self { replication, clock, random, .. } = self;
        let groups = &replication.groups[pool as usize];
        let Some(group) = groups.iter().find(|group| group.contains(&index)) else { return };
        if replication.lag_max_us == 0 {
            return;
        }
        replication.latest.insert((pool, place.clone()), value.clone());
        for &member in group.iter().filter(|&&member| member != index) {
            let other = server - index + member;
            let at = clock.now() + random.below(replication.lag_max_us);
            let last = replication.last.entry(other).or_default();
            *last = at.max(*last);
            let letter = replication.copies.len() as u32;
            let (place, value) = (place.clone(), value.clone());
            replication.copies.push(Copied { server: other, place, value });
            clock.plan(*last, Event::Replicate { letter });
        }
    }
}

impl World<'_> {
    /// A copy arrives.
    pub(crate) fn copy(&mut self, letter: u32) {
        let Copied { server, place, value } = &self.fabric.replication.copies[letter as usize];
        self.servers[*server as usize].copy(place.clone(), value.clone());
    }
}
