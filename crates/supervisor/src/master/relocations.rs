//! Servers that say when they go, and where to.

use std::time::Instant;

use cashew_config::Snapshot;
use cashew_control::ToChild;
use cashew_discovery::{MaintenanceStatus, Relocated};
use cashew_metrics::EventKind;
use tracing::{error, info, warn};

use super::Master;
use crate::child::Role;
use crate::found_state;

/// Puts servers where they have said that they went, before anybody serves.
pub(super) fn find_at_start(snapshot: &mut Snapshot) {
    let Some(path) = snapshot.global.discovery_state.clone() else { return };
    if !snapshot.has_server_maintenance() || !path.exists() {
        return;
    }
    match found_state::load_relocations(&path, snapshot) {
        Ok(lines) => lines.iter().for_each(|line| info!("{line}")),
        Err(why) => warn!("{} cannot be read: {why}", path.display()),
    }
}

impl Master {
    /// A server is somewhere else.
    pub(super) fn relocated_told(&mut self, json: &str) {
        match serde_json::from_str::<Relocated>(json) {
            Ok(relocated) => self.relocations.told(relocated),
            Err(error) => warn!("where a server has moved cannot be read: {error}"),
        }
    }

    pub(super) fn maintained_told(&mut self, json: String, now: Instant) {
        match serde_json::from_str::<MaintenanceStatus>(&json) {
            Ok(status) => {
                let name = (&*status.pool, &*status.server);
                self.tell_of_server(name, status.is_relaxed, now);
                self.relocations.set_status(status);
                self.post(Role::Admin, ToChild::Maintained { json }, Vec::new(), now);
            }
            Err(error) => warn!("how it is with a server cannot be read: {error}"),
        }
    }

    /// Tells the admin of all of them.
    pub(super) fn publish_maintained(&mut self, now: Instant) {
        let snapshot = self.current.snapshot.clone();
        let statuses = snapshot.pools.iter().flat_map(|pool| self.relocations.statuses_of(pool));
        for status in statuses.collect::<Vec<_>>() {
            if let Ok(json) = serde_json::to_string(&status) {
                self.post(Role::Admin, ToChild::Maintained { json }, Vec::new(), now);
            }
        }
    }

    /// They are in effect.
    pub(super) fn relocations_done(&mut self, moves: &[Relocated]) {
        for Relocated { pool, server, why, .. } in moves {
            let named = self.current.snapshot.pools.iter().find(|it| it.name == *pool);
            let at = named.and_then(|it| it.servers.iter().find(|it| it.name == *server));
            if let Some(at) = at.map(|it| &it.endpoint) {
                info!(
                    kind = EventKind::ServerRelocated.name(),
                    pool, server, "pool '{pool}': server '{server}' is {at} from now on: {why}"
                );
            }
        }
        self.relocations.done();
    }

    /// They are not, and are tried again.
    pub(super) fn relocations_failed(&mut self, moves: Vec<Relocated>, why: &str, now: Instant) {
        for Relocated { pool, server, .. } in &moves {
            error!(
                kind = EventKind::ServerRelocated.name(),
                pool,
                server,
                "pool '{pool}': server '{server}' has moved, and is not followed yet: {why}"
            );
        }
        if !moves.is_empty() {
            self.relocations.failed(moves, now);
        }
    }
}
