//! Workers that hang, and their end.

use std::time::{Duration, Instant};

use cashew_metrics::monotonic_ms;

use super::Master;
use crate::child::Role;
use crate::watchdog::{self, Vitals};

impl Master {
    pub(super) fn end_hangs(&mut self, now: Instant) {
        if !self.watchdog.begin(now) {
            return;
        }
        let slots: Vec<u32> = self.workers().map(|(slot, _)| slot).collect();
        for slot in slots {
            let Some((pid, vitals)) = self.vitals(slot) else { continue };
            if let Some(hang) = self.watchdog.judge(vitals, now, || watchdog::look(pid)) {
                self.member(Role::Worker { slot }).end_hang(hang, now);
                self.is_unsettled = true;
            }
        }
    }

    /// Threads have none: there is nobody left to replace a process that aborts.
    fn vitals(&self, slot: u32) -> Option<(u32, Vitals)> {
        let member = &self.members[&Role::Worker { slot }];
        // Of another version's metrics nothing can be read here.
        let running = member.running.as_ref().filter(|running| running.counts)?;
        let pid = running.child.pid()?;
        let since = member.slot.beats_since()?;
        let beat_ms = self.epoch_of(slot).segments.header(slot).heartbeat_ms;
        let age = Duration::from_millis(monotonic_ms().saturating_sub(beat_ms));
        Some((pid, Vitals { slot, since, beat_ms, age }))
    }
}
