//! MONITOR over all workers: what clients of one ask, told to those who monitor at others.

use std::time::Instant;

use cashew_control::ToChild;

use super::Master;
use crate::child::Role;
use crate::member::Member;
use crate::monitors::Relieved;

/// With so many messages waiting for a worker it is sent no lines: what it needs comes first.
const MAIL_MAX: usize = 16;

impl Master {
    /// Clients of a worker monitor a pool, or none do any more.
    pub(super) fn take_monitors(&mut self, slot: u32, pool: String, any: bool, now: Instant) {
        if any {
            let tells = |(slot, member): (u32, &Member)| {
                let running = member.running.as_ref()?;
                (running.is_ready && !running.is_foreign()).then_some(slot)
            };
            let serving: Vec<u32> = self.workers().filter_map(tells).collect();
            let is_alone = self.monitors.begin(slot, &pool, serving.into_iter());
            // Those who know it already had better hear it again.
            self.tell_watched(&pool, true, |other| other != slot, now);
            if is_alone {
                self.tell_monitored(slot, pool, now);
            }
        } else {
            let relieved = self.monitors.end(slot, &pool);
            self.relieve(&pool, relieved, now);
        }
    }

    /// A worker tells of a pool from here on.
    pub(super) fn take_watching(&mut self, slot: u32, pool: &str, now: Instant) {
        for slot in self.monitors.confirm(slot, pool) {
            self.tell_monitored(slot, pool.to_owned(), now);
        }
    }

    fn tell_monitored(&mut self, slot: u32, pool: String, now: Instant) {
        self.post(Role::Worker { slot }, ToChild::Monitored { pool }, Vec::new(), now);
    }

    /// The worker is gone.
    pub(super) fn forget_monitors(&mut self, slot: u32, now: Instant) {
        for (pool, relieved) in self.monitors.left(slot) {
            self.relieve(&pool, relieved, now);
        }
        for (slot, pool) in self.monitors.unneeded(slot) {
            self.tell_monitored(slot, pool, now);
        }
    }

    /// Tells a worker that begins what it is to tell others.
    pub(super) fn brief_on_monitors(&mut self, slot: u32, now: Instant) {
        for pool in self.monitors.watched(slot).collect::<Vec<String>>() {
            self.tell_watched(&pool, true, |other| other == slot, now);
        }
    }

    /// Passes lines on to the workers that want them.
    pub(super) fn relay_overheard(
        &mut self,
        from: u32,
        pool: &str,
        lines: &str,
        missed: u64,
        now: Instant,
    ) {
        let listeners = self.monitors.listeners(from, pool);
        if listeners.is_empty() {
            return self.tell_watched(pool, false, |other| other == from, now);
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
            Relieved::Only(slot) => self.tell_watched(pool, false, |other| other == slot, now),
            Relieved::All => self.tell_watched(pool, false, |_| true, now),
        }
    }

    fn tell_watched(&mut self, pool: &str, on: bool, whom: impl Fn(u32) -> bool, now: Instant) {
        // It is said again, and forgotten when it is not.
        let reads = |slot| self.mail_of(slot).is_some_and(|mail| mail < MAIL_MAX);
        let slots = self.workers().map(|(slot, _)| slot);
        let slots: Vec<u32> = slots.filter(|&slot| whom(slot) && reads(slot)).collect();
        for slot in slots {
            let message = ToChild::Watched { pool: pool.to_owned(), on };
            self.post(Role::Worker { slot }, message, Vec::new(), now);
        }
    }
}
