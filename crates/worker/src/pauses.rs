//! CLIENT PAUSE over all workers. Pauses are kept in shared memory. So workers that start later see
//! them, and a client that moves to another worker stays paused.

use cashew_engine::{ClientPause, ListenerId};
use cashew_metrics::{Pause, monotonic_ms};

use crate::core::Core;

/// Tolerance in comparisons, since clocks are read one after the other.
const SAME_MS: u64 = 50;

impl Core {
    /// Applies the shared pauses to the engine.
    pub(crate) fn follow_pauses(&mut self) {
        for pool in self.engine.listeners() {
            self.follow_pause(pool);
        }
    }

    /// The same for one pool.
    pub(crate) fn follow_pause(&mut self, pool: ListenerId) {
        let shared = self.shared.pause(self.engine.quota(pool), monotonic_ms());
        let (pause, known) =
            (shared.map(|it| self.engine_pause(it)), self.engine.client_pause(pool));
        let is_same = match (pause, known) {
            (Some(pause), Some(known)) => {
                let apart = pause.until.max(known.until) - pause.until.min(known.until);
                pause.writes_only == known.writes_only && apart.as_millis() < u128::from(SAME_MS)
            }
            (None, None) => true,
            (None, Some(_)) | (Some(_), None) => false,
        };
        if !is_same {
            self.engine.set_client_pause(pool, pause, self.now);
        }
    }

    /// Publishes the engine's pause of a pool to all workers. If there is no room for another pool,
    /// the engine's pause is undone too.
    pub(crate) fn share_pause(&mut self, pool: ListenerId) -> bool {
        let pause = self.engine.client_pause(pool).map(|ClientPause { until, writes_only }| {
            let left_ms = until.micros_since(self.now).div_ceil(1000);
            Pause { until_ms: monotonic_ms().saturating_add(left_ms), writes_only }
        });
        let is_shared = self.shared.set_pause(self.engine.quota(pool), pause, monotonic_ms());
        if !is_shared {
            tracing::warn!(
                "pool {}: clients are not held back, since those of too many pools are",
                self.engine.listener_config(pool).name
            );
            self.follow_pause(pool);
        }
        is_shared
    }

    fn engine_pause(&self, pause: Pause) -> ClientPause {
        let left_ms = pause.until_ms.saturating_sub(monotonic_ms());
        ClientPause { until: self.now.plus_millis(left_ms), writes_only: pause.writes_only }
    }
}
