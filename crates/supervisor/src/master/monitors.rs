//! MONITOR over all workers: relays one worker's commands to the monitors at other workers.

use std::time::Instant;

use cashew_control::ToChild;

use super::Master;
use crate::child::Role;
use crate::member::Member;
use crate::monitors::Relieved;

/// With this many waiting messages a worker is sent no lines: other messages come first.
const MAIL_MAX: usize = 16;

impl Master {
    /// Clients of a worker monitor a pool, or none do any more.
    pub(super) fn take_monitors(&mut self, slot: u32, pool: String, any: bool, now: Instant) {
        if any {
            let is_serving = |(slot, member): (u32, &Member)| {
                let running = member.running.as_ref()?;
                (running.is_ready && !running.is_foreign()).then_some(slot)
            };
            let serving: Vec<u32> = self.workers().filter_map(is_serving).collect();
            let is_alone = self.monitors.begin(slot, &pool, serving.into_iter());
            // Workers that know it already are reminded.
            self.notify_watched(&pool, true, |other| other != slot, now);
            if is_alone {
                self.notify_monitored(slot, pool, now);
            }
        } else {
            let relieved = self.monitors.end(slot, &pool);
            self.relieve(&pool, relieved, now);
        }
    }

    /// A worker reports a pool's commands from now on.
    pub(super) fn take_watching(&mut self, slot: u32, pool: &str, now: Instant) {
        for slot in self.monitors.confirm(slot, pool) {
            self.notify_monitored(slot, pool.to_owned(), now);
        }
    }

    fn notify_monitored(&mut self, slot: u32, pool: String, now: Instant) {
        self.post(Role::Worker { slot }, ToChild::Monitored { pool }, Vec::new(), now);
    }

    /// The worker is gone.
    pub(super) fn forget_monitors(&mut self, slot: u32, now: Instant) {
        for (pool, relieved) in self.monitors.left(slot) {
            self.relieve(&pool, relieved, now);
        }
        for (slot, pool) in self.monitors.unneeded(slot) {
            self.notify_monitored(slot, pool, now);
        }
    }

    /// Tells a starting worker which pools' commands to report.
    pub(super) fn notify_of_monitors(&mut self, slot: u32, now: Instant) {
        for pool in self.monitors.watched(slot).collect::<Vec<String>>() {
            self.notify_watched(&pool, true, |other| other == slot, now);
        }
    }

    /// Relays lines to the workers that want them.
    pub(super) fn relay_observed(
        &mut self,
        from: u32,
        pool: &str,
        lines: &str,
        missed: u64,
        now: Instant,
    ) {
        let listeners = self.monitors.listeners(from, pool);
        if listeners.is_empty() {
            return self.notify_watched(pool, false, |other| other == from, now);
        }
        for slot in listeners {
            let role = Role::Worker { slot };
            let Some(mail) = self.mail_of(slot) else { continue };
            if mail >= MAIL_MAX {
                self.monitors.miss(slot, pool, lines.lines().count() as u64 + missed);
                continue;
            }
            let missed = missed + self.monitors.take_missed(slot, pool);
            let (pool, lines) = (pool.to_owned(), lines.to_owned());
            self.post(role, ToChild::Overheard { pool, lines, missed }, Vec::new(), now);
        }
    }

    fn mail_of(&self, slot: u32) -> Option<usize> {
        self.members.get(&Role::Worker { slot })?.running.as_ref()?.mail()
    }

    fn relieve(&mut self, pool: &str, relieved: Relieved, now: Instant) {
        match relieved {
            Relieved::Nobody => {}
            Relieved::Only(slot) => self.notify_watched(pool, false, |other| other == slot, now),
            Relieved::All => self.notify_watched(pool, false, |_| true, now),
        }
    }

    fn notify_watched(&mut self, pool: &str, on: bool, whom: impl Fn(u32) -> bool, now: Instant) {
        // The message is repeated, and expires when it is not.
        let reads = |slot| self.mail_of(slot).is_some_and(|mail| mail < MAIL_MAX);
        let slots = self.workers().map(|(slot, _)| slot);
        let slots: Vec<u32> = slots.filter(|&slot| whom(slot) && reads(slot)).collect();
        for slot in slots {
            let message = ToChild::Watched { pool: pool.to_owned(), on };
            self.post(Role::Worker { slot }, message, Vec::new(), now);
        }
    }
}
