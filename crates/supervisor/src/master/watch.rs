//! Workers that hang, and their end.

use std::time::{Duration, Instant};

use cashew_metrics::monotonic_ms;

use super::Master;
use crate::child::Role;
use crate::slots::Duty;
use crate::watchdog::{self, Hang, Vitals};

impl Master {
    pub(super) fn end_hangs(&mut self, now: Instant) {
        if !self.watchdog.begin(now) {
            return;
        }
        let slots: Vec<u32> = self.workers().map(|(slot, _)| slot).collect();
        for slot in slots {
            if let Some(hang) = self.hang_of(slot, now) {
                self.member(Role::Worker { slot }).end_hang(hang, now);
                self.is_unsettled = true;
            }
        }
    }

    /// Never of threads: there is nobody left to replace a process that aborts.
    fn hang_of(&mut self, slot: u32, now: Instant) -> Option<Hang> {
        let member = &self.members[&Role::Worker { slot }];
        // Of another version's metrics nothing can be read here.
        let running = member.running.as_ref().filter(|running| running.counts)?;
        let pid = running.child.pid()?;
        match member.slot.duty()? {
            Duty::Start { since } => {
                self.watchdog.judge_start(slot, since, now, watchdog::look(pid))
            }
            Duty::Beat { since } => {
                let beat_ms = self.epoch_of(slot).segments.header(slot).heartbeat_ms;
                let age = Duration::from_millis(monotonic_ms().saturating_sub(beat_ms));
                let vitals = Vitals { slot, since, beat_ms, age };
                self.watchdog.judge(vitals, now, || watchdog::look(pid))
            }
        }
    }
}
