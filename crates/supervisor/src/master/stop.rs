//! The end of an instance.

use std::time::{Duration, Instant};

use cashew_control::ToChild;
use cashew_metrics::EventKind;
use tracing::info;

use super::{Master, Phase};
use crate::child::Role;
use crate::slots::KILL_GRACE;

/// What else a stop may take: the other processes end after the workers.
const STOP_GRACE: Duration = Duration::from_secs(10);

impl Master {
    /// How long a stop may take.
    pub(super) fn stop_max(&self) -> Duration {
        let timeout = self.current.snapshot.global.worker_shutdown_timeout_ms;
        Duration::from_millis(timeout).saturating_add(KILL_GRACE + STOP_GRACE)
    }

    pub(super) fn stop(&mut self, now: Instant) {
        let timeout = self.current.snapshot.global.worker_shutdown_timeout_ms;
        let timeout = Duration::from_millis(timeout);
        let why = if self.drain.is_some() { "drained" } else { "SIGTERM" };
        info!(kind = EventKind::InstanceStops.name(), "{why}: stopping, for at most {timeout:?}");
        self.begin_stop(now);
        // Workers observe the timeout themselves; the grace lets them exit.
        let deadline = now + timeout + KILL_GRACE;
        let workers: Vec<u32> = self.workers().map(|(slot, _)| slot).collect();
        for slot in workers {
            let role = Role::Worker { slot };
            self.post(role, ToChild::Shutdown, Vec::new(), now);
            self.member(role).slot.stop(deadline);
        }
        self.stop_admin(now);
    }

    pub(super) fn stop_now(&mut self, now: Instant, signal: &str) {
        info!(kind = EventKind::InstanceStops.name(), "{signal}: stopping at once");
        self.begin_stop(now);
        self.members.values_mut().for_each(|member| member.slot.stop(now));
    }

    fn begin_stop(&mut self, now: Instant) {
        self.phase = Phase::Stopping;
        self.shared.stops();
        self.drain_is_over();
        self.cancel_upgrade("the instance is stopping", now);
        self.notify.stopping(self.stop_max());
        self.epochs.abort("the instance is stopping".into());
        self.act_on_epochs(now);
        self.reload.cancel("the instance is stopping");
        self.rings.halt();
        self.deliver_rings(now);
        self.sessions.clear();
        self.listeners = None;
        self.stop_discovery(now);
    }

    /// The admin process ends last, so that statistics show the workers stopping.
    pub(super) fn stop_admin(&mut self, now: Instant) {
        if self.phase != Phase::Stopping
            || !self.members.contains_key(&Role::Admin)
            || self.workers().any(|(_, member)| !member.slot.is_closed())
        {
            return;
        }
        self.post(Role::Admin, ToChild::Shutdown, Vec::new(), now);
        self.member(Role::Admin).slot.stop(now + KILL_GRACE);
    }

    pub(super) fn is_over(&self) -> bool {
        self.phase == Phase::Stopping && self.members.values().all(|it| it.slot.is_closed())
    }
}
