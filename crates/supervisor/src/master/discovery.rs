//! Groups whose primaries Sentinels name: found before anybody serves, followed afterwards.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cashew_config::Snapshot;
use cashew_config::snapshot::{Address, ClusterMap, Pool};
use cashew_control::{Epoch, ToChild, unseal};
use cashew_metrics::EventKind;
use tracing::{error, info, warn};

use super::{Master, Phase};
use crate::child::Role;
use crate::discovered::{Known, Move};
use crate::maps::{self, MapMove};
use crate::member::Member;
use crate::primaries;
use crate::slots::KILL_GRACE;
use crate::status::{GroupStatus, SentinelStatus};

/// How long Sentinels and seeds have to answer, at the start and in a reload.
const FIND_TIMEOUT: Duration = Duration::from_secs(3);

/// How long requests on their way are waited for when a primary has moved: nothing that comes of them
/// at a dead one, and little at one that was superseded.
pub(super) const MOVE_DRAIN_MS: u64 = 50;

/// Asks where the primaries of groups are of which that is not known, and for the maps of clusters.
pub(super) fn find_primaries(snapshot: &mut Snapshot) {
    let missing = cashew_discovery::ask_once(snapshot, FIND_TIMEOUT);
    for (kind, line) in &missing {
        error!(kind = kind.name(), "{line}");
    }
    // Before the first start there is none.
    let file = snapshot.global.sentinel_state.clone();
    if let Some(path) = file.filter(|path| !missing.is_empty() || path.exists()) {
        match primaries::load(&path, snapshot) {
            Ok(lines) => lines.iter().for_each(|line| warn!("{line}")),
            Err(why) => warn!("{} cannot be read: {why}", path.display()),
        }
    }
    for (pool, group, endpoint) in snapshot.groups().filter(|(.., it)| !it.is_unknown()) {
        let (pool, server, master) = (&pool.name, &group.server, &group.master);
        info!(
            kind = EventKind::PrimaryKnown.name(),
            pool, server, "pool '{pool}': the primary of '{server}' ({master}) is {endpoint}"
        );
    }
    for pool in snapshot.pools.iter().filter(|pool| pool.cluster_map().is_some()) {
        let (pool, what) = (&pool.name, maps::summary(pool));
        info!(kind = EventKind::MapKnown.name(), pool, "pool '{pool}': the cluster has {what}");
    }
}

/// Returns a line for each that was not found.
pub(super) fn find(snapshot: &mut Snapshot) -> Vec<String> {
    let missing = cashew_discovery::ask_once(snapshot, FIND_TIMEOUT);
    missing.into_iter().map(|(_, line)| line).collect()
}

impl Master {
    /// Has discovery run where there is something for it, and only there.
    pub(super) fn adjust_discovery(&mut self, now: Instant) {
        if self.phase == Phase::Stopping {
            return;
        }
        self.discovered.keep(&self.current.snapshot);
        self.maps.keep(&self.current.snapshot);
        self.found.keep(&self.current.snapshot);
        self.relocations.keep(&self.current.snapshot);
        match self.current.snapshot.needs_discovery() {
            true => {
                let member = || Member::new(Role::Discovery, 0, now);
                let member = self.members.entry(Role::Discovery).or_insert_with(member);
                if member.slot.is_closed() {
                    *member = Member::new(Role::Discovery, 0, now);
                }
            }
            false => self.stop_discovery(now),
        }
    }

    pub(super) fn stop_discovery(&mut self, now: Instant) {
        if !self.members.contains_key(&Role::Discovery) {
            return;
        }
        self.post(Role::Discovery, ToChild::Shutdown, Vec::new(), now);
        self.member(Role::Discovery).slot.stop(now + KILL_GRACE);
    }

    pub(super) fn know(&mut self, known: Known) {
        let is_for_disk = self.discovered.know(known);
        if is_for_disk && self.phase == Phase::Serving {
            self.save_primaries();
        }
    }

    pub(super) fn primary_moved(&mut self, to: Move) {
        let is_news = Snapshot::clone(&self.current.snapshot).set_primary(
            &to.pool,
            &to.server,
            &to.to,
            to.config_epoch,
        );
        // Or it is about to be somewhere else.
        if is_news || self.epochs.is_changing() || self.reload.is_under_way() {
            self.discovered.moved(to);
        }
    }

    /// Tells discovery who the primary is that replicas are measured by.
    pub(super) fn publish_topology(&mut self, pool: u32, now: Instant) {
        let config = self.current.snapshot.pools.get(pool as usize);
        if config.is_some_and(Pool::has_replicas) {
            let (version, topology) = (self.rings.version(pool), self.rings.topology(pool));
            let message = ToChild::Release { pool, version, topology };
            self.post(Role::Discovery, message, Vec::new(), now);
        }
    }

    /// Tells the admin of a group.
    pub(super) fn publish_group(&mut self, pool: &str, server: &str, now: Instant) {
        let Some(found) = self.current.snapshot.pools.iter().find(|it| it.name == pool) else {
            return;
        };
        let groups = self.discovered.groups_of(found);
        if let Some(group) = groups.into_iter().find(|group| group.server == server) {
            self.post(Role::Admin, group_message(pool.to_owned(), group), Vec::new(), now);
        }
    }

    pub(super) fn publish_sentinel(&mut self, pool: String, address: &Address, now: Instant) {
        let (address, is_answering) =
            (address.to_string(), self.discovered.is_answering(&pool, address));
        let message = ToChild::Sentinel { pool, address, is_answering };
        self.post(Role::Admin, message, Vec::new(), now);
    }

    /// Tells the admin of all of them.
    pub(super) fn publish_discovered(&mut self, now: Instant) {
        let snapshot = Arc::clone(&self.current.snapshot);
        for pool in snapshot.pools.iter().filter(|pool| pool.sentinel.is_some()) {
            for group in self.discovered.groups_of(pool) {
                self.post(Role::Admin, group_message(pool.name.clone(), group), Vec::new(), now);
            }
            for status in self.discovered.sentinels_of(pool) {
                let SentinelStatus { address, is_answering, .. } = status;
                let message = ToChild::Sentinel { pool: pool.name.clone(), address, is_answering };
                self.post(Role::Admin, message, Vec::new(), now);
            }
        }
        self.publish_moves(now);
        self.publish_sources(now);
        self.publish_maintained(now);
        for pool in &snapshot.pools {
            for seed in pool.cluster.iter().flat_map(|cluster| &cluster.seeds) {
                self.publish_seed(pool.name.clone(), seed, now);
            }
        }
    }

    /// The epoch in effect, with what the discovery before has come to know.
    pub(super) fn sealed_for_discovery(&self) -> Rc<OwnedFd> {
        let fill = || -> io::Result<OwnedFd> {
            let mut epoch = Epoch::unseal(&self.current.for_discovery)?;
            self.discovered.fill(&mut epoch.snapshot);
            epoch.seal()
        };
        match fill() {
            Ok(sealed) => Rc::new(sealed),
            Err(error) => {
                warn!("discovery starts without what was known of the groups: {error}");
                Rc::clone(&self.current.for_discovery)
            }
        }
    }

    /// Keeps where primaries are, for a start without Sentinels.
    pub(super) fn save_primaries(&self) {
        let Some(path) = self.current.snapshot.global.sentinel_state.as_ref() else { return };
        if self.current.snapshot.has_sentinels()
            && let Err(error) = primaries::save(
                path,
                &self.discovered.told(Snapshot::clone(&self.current.snapshot)),
            )
        {
            warn!("{} cannot be written: {error}", path.display());
        }
    }

    /// They are in effect since the last switch, before which this was.
    pub(super) fn moves_done(&mut self, moves: Vec<Move>, before: &Arc<Snapshot>, now: Instant) {
        for Move { pool, server, to, why, .. } in &moves {
            warn!(
                kind = EventKind::PrimaryChanged.name(),
                pool, server, "pool '{pool}': the primary of '{server}' is {to} now: {why}"
            );
        }
        let names: Vec<_> = moves.iter().map(|it| (it.pool.clone(), it.server.clone())).collect();
        self.discovered.done(moves, before);
        for (pool, server) in names {
            self.publish_group(&pool, &server, now);
        }
    }
}

impl Master {
    /// A worker has found something that does not go with the map of a cluster.
    pub(super) fn doubt_map(&mut self, slot: u32, pool: u32, now: Instant) {
        // By its name: the worker may refer to the epoch before.
        let pools = &self.epoch_of(slot).snapshot.pools;
        if let Some(pool) = pools.get(pool as usize).map(|pool| pool.name.clone()) {
            self.ask_for_map(pool, now);
        }
    }

    /// The map of a cluster is another one.
    pub(super) fn map_told(&mut self, pool: String, descriptors: Vec<OwnedFd>, now: Instant) {
        let read = || -> io::Result<(Vec<Address>, ClusterMap)> {
            let memfd = descriptors.first().ok_or_else(|| io::Error::other("it is missing"))?;
            Ok(serde_json::from_slice(&unseal(memfd)?)?)
        };
        match read() {
            Ok(found) => {
                let is_changing = self.epochs.is_changing() || self.reload.is_under_way();
                self.maps.told(pool, found, (&self.current.snapshot, is_changing), now);
            }
            Err(error) => {
                warn!("pool '{pool}': the map of its cluster cannot be read: {error}");
                // As it is told once.
                self.restart(Role::Discovery, now);
            }
        }
    }

    /// They are in effect since the last switch, before which this was.
    pub(super) fn maps_done(&mut self, moves: &[MapMove], before: &Snapshot, now: Instant) {
        for (pool, line) in self.maps.done(moves, before, &self.current.snapshot, now) {
            warn!(kind = EventKind::MapChanged.name(), pool, "pool '{pool}': {line}");
        }
    }

    pub(super) fn publish_seed(&mut self, pool: String, seed: &Address, now: Instant) {
        let (address, is_answering) = (seed.to_string(), self.maps.is_answering(&pool, seed));
        let message = ToChild::Seed { pool, address, is_answering };
        self.post(Role::Admin, message, Vec::new(), now);
    }

    pub(super) fn ask_for_map(&mut self, pool: String, now: Instant) {
        if self.members.contains_key(&Role::Discovery) {
            self.post(Role::Discovery, ToChild::MapDoubted { pool }, Vec::new(), now);
        }
    }
}

impl Master {
    /// Logs which replicas answer reads now that did not before, and the reverse.
    pub(super) fn tell_joined(&self, before: &Snapshot) {
        for (pool, group, _) in self.current.snapshot.groups() {
            let was = before.pools.iter().find(|it| it.name == pool.name);
            let was = was.map_or_else(Vec::new, |was| was.replicas_of(&group.server));
            let is = pool.replicas_of(&group.server);
            if was != is {
                let list: Vec<String> = is.iter().map(Address::to_string).collect();
                let list = if list.is_empty() { "none".to_owned() } else { list.join(", ") };
                info!(
                    kind = EventKind::ReplicasChanged.name(),
                    pool = pool.name,
                    server = group.server,
                    "pool '{}': the replicas of '{}' ({}) are {list} now, as Sentinels name them",
                    pool.name,
                    group.server,
                    group.master
                );
            }
        }
    }
}

fn group_message(pool: String, group: GroupStatus) -> ToChild {
    let GroupStatus { server, state, config_epoch, last_switch, .. } = group;
    let (switches, switched_at, why) = match last_switch {
        Some(last) => (last.switches, Some(last.at), last.why),
        None => (0, None, String::new()),
    };
    ToChild::Group { pool, server, state, config_epoch, switches, switched_at, why }
}
