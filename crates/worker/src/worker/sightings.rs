//! Requests that the engine has looked at one by one, on their way to whoever shows them.

use cashew_driver::Driver;
use cashew_engine::Sighting;
use cashew_metrics::NewRequest;

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
            let address = self.address_of(sighting);
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

    /// The client's address; empty if it is gone.
    fn address_of(&self, sighting: &Sighting) -> String {
        let engine = &self.core.engine;
        let Some(conn) = sighting.client else { return String::new() };
        let Some(pool) = engine.listener_named(&sighting.pool) else { return String::new() };
        place(&self.driver, &self.core.told, &engine.listener_config(pool).listen, conn).peer
    }
}
