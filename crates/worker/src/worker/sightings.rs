//! Requests that the engine has looked at one by one, on their way to whoever shows them.

use cashew_driver::Driver;
use cashew_engine::ConnId;
use cashew_metrics::{NewDeed, NewRequest};

use super::Worker;
use crate::place::place;

impl<D: Driver> Worker<D> {
    /// Records what the engine has seen, where other processes find it.
    #[cold]
    pub(super) fn record_sightings(&mut self) {
        self.core.tick();
        let (sightings, left_out) = self.core.engine.take_sightings(self.core.now);
        let slow = self.core.shared.slow_requests();
        if left_out > 0 {
            slow.leave_out(left_out);
        }
        if sightings.is_empty() {
            return;
        }
        let samples = self.core.shared.sampled_requests();
        for sighting in &sightings {
            let address = self.address_of(&sighting.pool, sighting.client);
            let request = NewRequest {
                pool: &sighting.pool,
                server: &sighting.server,
                client: &address,
                client_id: sighting.client_id,
                client_name: &sighting.client_name,
                user: &sighting.user,
                worker: self.slot,
                arguments: &sighting.arguments,
                request_bytes: sighting.request_bytes,
                reply_bytes: sighting.reply_bytes,
                times: sighting.times,
                key_hash: sighting.key_hash,
                failure: &sighting.failure,
                is_part: sighting.is_part,
                is_slow: sighting.is_slow,
            };
            if sighting.is_slow {
                slow.record(&request);
            }
            // Whoever wants samples wants slow ones, too.
            if samples.is_wanted() {
                samples.record(&request);
            }
        }
    }

    /// Records what the audit log is to tell, where the admin process finds it.
    #[cold]
    pub(super) fn record_audited(&mut self) {
        let (seen, lost) = self.core.engine.take_audited();
        let audit = self.core.shared.audit();
        audit.add_lost(lost);
        for audited in &seen {
            let address = self.address_of(&audited.pool, audited.client);
            audit.record(&NewDeed {
                outcome: audited.outcome,
                pool: &audited.pool,
                client: &address,
                client_id: audited.client_id,
                client_name: &audited.client_name,
                user: &audited.user,
                worker: Some(self.slot),
                command: &audited.command,
                key: &audited.key,
                keys: audited.keys,
                reason: &audited.reason,
            });
        }
    }

    /// The client's address; empty if it is gone.
    fn address_of(&self, pool: &str, client: Option<ConnId>) -> String {
        let engine = &self.core.engine;
        let Some(conn) = client else { return String::new() };
        let Some(pool) = engine.listener_named(pool) else { return String::new() };
        place(&self.driver, &self.core.told, &engine.listener_config(pool).listen, conn).peer
    }
}
