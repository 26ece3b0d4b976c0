//! Finds children that hang, and ends them.

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
        let roles: Vec<Role> = self.members.keys().copied().collect();
        for role in roles {
            if let Some(hang) = self.hang_of(role, now) {
                self.member(role).end_hang(hang, now);
                self.is_unsettled = true;
            }
        }
    }

    /// Never for threads: there would be nobody to replace a process that aborts.
    fn hang_of(&mut self, role: Role, now: Instant) -> Option<Hang> {
        let member = &self.members[&role];
        // Metrics of another version cannot be read here.
        let running = member.running.as_ref().filter(|running| running.counts)?;
        let pid = running.child.pid()?;
        let since = match member.slot.duty()? {
            Duty::Start { since } => {
                return self.watchdog.judge_start(role, since, now, watchdog::look(pid));
            }
            Duty::Beat { since } => since,
        };
        let beat_ms = match role {
            Role::Worker { slot } => self.epoch_of(slot).segments.header(slot).heartbeat_ms,
            Role::Admin => self.shared.admin_beat_ms(),
            // It does not beat: what is stopped is killed.
            Role::Discovery => {
                return self.watchdog.judge_start(role, since, now, watchdog::look(pid));
            }
        };
        let age = Duration::from_millis(monotonic_ms().saturating_sub(beat_ms));
        if role == Role::Admin && age > now.saturating_duration_since(since) + LAG_MAX {
            // The admin process of an earlier version, found after an upgrade, never beats.
            return self.watchdog.judge_start(role, since, now, watchdog::look(pid));
        }
        let vitals = Vitals { role, since, beat_ms, age };
        self.watchdog.judge(vitals, now, || watchdog::look(pid))
    }
}

/// An admin's first beat may be this much older than the moment when it was known to serve.
const LAG_MAX: Duration = Duration::from_secs(1);
