//! Pools whose servers a source names: found before anybody serves, followed afterwards.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use cashew_config::Snapshot;
use cashew_control::{ToChild, unseal};
use cashew_discovery::{FoundServers, SourceStatus, find_once};
use cashew_metrics::EventKind;
use tracing::{error, info, warn};

use super::{Master, Phase};
use crate::child::Role;
use crate::found_state;

/// How long sources have to answer, at the start and in a reload.
const FIND_TIMEOUT: Duration = Duration::from_secs(3);

/// How long requests on their way are waited for when servers have joined or left. Servers that are gone answer none of
/// them, and who is there answers by then.
pub(super) const FOUND_DRAIN_MS: u64 = 200;

/// Asks which servers there are, before anybody serves.
pub(super) fn find_at_start(snapshot: &mut Snapshot) {
    if !snapshot.has_sources() {
        return;
    }
    let missing = find_once(snapshot, FIND_TIMEOUT);
    let mut kept = Vec::new();
    if let Some(path) = snapshot.global.discovery_state.clone() {
        match found_state::load(&path, snapshot) {
            Ok(pools) => kept = pools,
            // Before the first start there is none.
            Err(_) if !path.exists() => {}
            Err(why) => warn!("{} cannot be read: {why}", path.display()),
        }
    }
    for (pool, why) in &missing {
        match kept.contains(pool) {
            true => warn!(
                kind = EventKind::ServersUnknown.name(),
                pool, "pool '{pool}': {why}; its servers are taken to be those that it had before"
            ),
            false => error!(
                kind = EventKind::ServersUnknown.name(),
                pool, "pool '{pool}': {why}; it has no servers"
            ),
        }
    }
    for pool in snapshot.pools.iter().filter(|pool| !pool.found().is_empty()) {
        if let Some(source) = pool.source() {
            let (pool, servers) = (&pool.name, pool.found().len());
            info!(
                kind = EventKind::ServersKnown.name(),
                pool, "pool '{pool}': {source} names {servers} servers"
            );
        }
    }
}

/// Asks which servers there are where that is not known. Returns a line for each pool of which nothing is known, or in
/// what is not to be tried only an error.
pub(super) fn find(
    snapshot: &mut Snapshot,
    current: &Snapshot,
    is_dry: bool,
) -> Result<Vec<String>, String> {
    let missing = find_once(snapshot, FIND_TIMEOUT);
    let is_new = |name: &str| {
        let source = |snapshot: &Snapshot| {
            let pool = snapshot.pools.iter().find(|it| it.name == *name);
            pool.and_then(|pool| pool.source().cloned())
        };
        source(snapshot) != source(current)
    };
    // What had no servers before may stay so.
    let refused: Vec<String> = missing
        .iter()
        .filter(|(pool, _)| !is_dry && is_new(pool))
        .map(|(pool, why)| format!("pool '{pool}': {why}"))
        .collect();
    if !refused.is_empty() {
        return Err(refused.join("; "));
    }
    Ok(missing.into_iter().map(|(pool, why)| format!("pool '{pool}': {why}")).collect())
}

impl Master {
    /// Sources have named other servers.
    pub(super) fn found_told(&mut self, descriptors: Vec<OwnedFd>, now: Instant) {
        let read = || -> io::Result<Vec<FoundServers>> {
            let memfd = descriptors.first().ok_or_else(|| io::Error::other("it is missing"))?;
            Ok(serde_json::from_slice(&unseal(memfd)?)?)
        };
        match read() {
            Ok(found) => {
                let is_changing = self.epochs.is_changing() || self.reload.is_under_way();
                self.found.told(found, (&self.current.snapshot, is_changing));
            }
            Err(error) => {
                warn!("what sources name cannot be read: {error}");
                // As it is told once.
                self.restart(Role::Discovery, now);
            }
        }
    }

    pub(super) fn source_told(&mut self, json: String, now: Instant) {
        match serde_json::from_str::<SourceStatus>(&json) {
            Ok(status) => {
                self.found.set_status(status);
                self.post(Role::Admin, ToChild::Source { json }, Vec::new(), now);
            }
            Err(error) => warn!("how a source is cannot be read: {error}"),
        }
    }

    /// Tells the admin of all of them.
    pub(super) fn publish_sources(&mut self, now: Instant) {
        let snapshot = self.current.snapshot.clone();
        let statuses = snapshot.pools.iter().filter_map(|pool| self.found.status_of(pool));
        for status in statuses.collect::<Vec<_>>() {
            if let Ok(json) = serde_json::to_string(&status) {
                self.post(Role::Admin, ToChild::Source { json }, Vec::new(), now);
            }
        }
    }

    /// They are in effect since the last switch, before which this was.
    pub(super) fn found_done(&mut self, moves: &[FoundServers], before: &Snapshot) {
        for (pool, line) in self.found.done(moves, before, &self.current.snapshot) {
            info!(kind = EventKind::ServersChanged.name(), pool, "pool '{pool}': {line}");
        }
    }

    /// Keeps which servers there are, for a start without sources.
    pub(super) fn save_found(&self) {
        let snapshot = &self.current.snapshot;
        let Some(path) = snapshot.global.discovery_state.as_ref() else { return };
        if self.phase == Phase::Serving
            && (snapshot.has_sources() || snapshot.has_server_maintenance())
            && let Err(error) = found_state::save(path, snapshot)
        {
            warn!("{} cannot be written: {error}", path.display());
        }
    }
}
