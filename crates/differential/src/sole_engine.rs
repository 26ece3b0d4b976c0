//! The engine of an instance with one worker, without sockets.

use cashew_config::Snapshot;
use cashew_engine::{Engine, Identity, Plan, Setup, Time};
use cashew_metrics::Writer;

/// It draws the same numbers each time.
pub fn engine_of(snapshot: &Snapshot, now: Time) -> Engine {
    Engine::new(Setup {
        plan: Plan::whole(snapshot, 0, 1),
        metrics: Writer::in_memory(snapshot),
        seed: 7,
        slot: 0,
        identity: Identity { version: "0.0.0", process_id: 1 },
        now,
    })
}
