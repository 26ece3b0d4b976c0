//! MONITOR over all workers. Commands of clients here are reported to monitors here at once, and to
//! those of other workers through the master, in batches.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use cashew_control::ToMaster;
use cashew_driver::Driver;
use cashew_engine::{ConnId, ListenerId, Observed, Place, Time};

use super::Worker;
use crate::place::place;

/// How long lines are collected for other workers.
const PERIOD_MS: u64 = 10;
/// The most bytes of lines that all workers together send to the master in that time.
const PERIOD_SIZE_MAX: usize = 64 * 1024;
/// The least that each worker may send, however many there are.
const SHARE_MIN: usize = 1024;
/// The most bytes of lines in one message. As JSON they may take twice as much.
const BATCH_SIZE_MAX: usize = 24 * 1024;
/// With this many unsent messages, the master is sent no more lines.
const UNSENT_MAX: usize = 4;
/// How many addresses are cached, for a short time.
const ADDRESSES_MAX: usize = 16 * 1024;

#[derive(Default)]
pub(super) struct Monitors {
    /// Lines collected for other workers.
    batches: Vec<Batch>,
    /// When the lines are sent.
    due: Option<Time>,
    addresses: HashMap<ConnId, String>,
}

#[derive(Default)]
struct Batch {
    pool: String,
    lines: String,
    missed: u64,
}

impl Monitors {
    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }

    /// Includes those of closed clients.
    pub(super) fn forget_addresses(&mut self) {
        if !self.addresses.is_empty() {
            self.addresses = HashMap::new();
        }
    }

    fn batch(&mut self, pool: &str) -> &mut Batch {
        let at = self.batches.iter().position(|batch| batch.pool == pool);
        let at = at.unwrap_or_else(|| {
            self.batches.push(Batch { pool: pool.to_owned(), ..Batch::default() });
            self.batches.len() - 1
        });
        &mut self.batches[at]
    }
}

impl Batch {
    /// Drops the line if there is no room.
    fn push(&mut self, line: &str) {
        if self.lines.len() + line.len() > BATCH_SIZE_MAX {
            self.missed += 1;
        } else {
            self.lines.push_str(line);
        }
    }
}

impl<D: Driver> Worker<D> {
    /// Delivers the commands observed since the last call.
    #[inline(always)]
    pub(super) fn notify_monitors(&mut self) {
        if let Some(observed) = self.core.engine.take_observed() {
            self.pass_on(&observed);
            self.core.engine.return_observed(observed);
        }
        if self.monitors.due.is_some_and(|due| due <= self.core.now) {
            self.publish_elsewhere();
        }
    }

    #[inline(never)]
    fn pass_on(&mut self, observed: &Observed) {
        let now = self.core.now;
        let mut here = String::new();
        let mut lines = observed.lines().peekable();
        while let Some((hearing, head, tail)) = lines.next() {
            let start = here.len();
            // They are ASCII.
            here.push_str(&String::from_utf8_lossy(head));
            here.push_str(self.address(hearing.listener, hearing.client));
            here.push_str(&String::from_utf8_lossy(tail));
            if hearing.elsewhere
                && let Some(name) = self.core.engine.listener_name(hearing.listener)
            {
                self.monitors.batch(name).push(&here[start..]);
                self.monitors.due.get_or_insert(now.plus_millis(PERIOD_MS));
            }
            if !hearing.here {
                here.truncate(start);
            }
            let is_last = lines.peek().is_none_or(|(next, ..)| next.listener != hearing.listener);
            if is_last && !here.is_empty() {
                self.core.engine.handle_observed(hearing.listener, here.as_bytes(), 0, now);
                here.clear();
            }
        }
    }

    fn address(&mut self, pool: ListenerId, client: ConnId) -> &str {
        let addresses = &mut self.monitors.addresses;
        if addresses.len() >= ADDRESSES_MAX {
            addresses.clear();
        }
        match addresses.entry(client) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                // The pool may be gone, and its clients with it.
                let is_there = self.core.engine.listener_name(pool).is_some();
                let listen = is_there.then(|| &self.core.engine.listener_config(pool).listen);
                let place =
                    listen.map(|listen| place(&self.driver, &self.core.told, listen, client));
                entry.insert(address_of(&place.unwrap_or(Place::UNKNOWN)))
            }
        }
    }

    /// Sends the lines collected for other workers.
    #[inline(never)]
    pub(super) fn publish_elsewhere(&mut self) {
        if self.monitors.due.take().is_none() {
            return;
        }
        let engine = &mut self.core.engine;
        while let Some((pool, count)) = engine.poll_left_out() {
            if let Some(name) = engine.listener_name(pool) {
                self.monitors.batch(name).missed += count;
            }
        }
        self.allow_elsewhere();
        let mut kept = Vec::new();
        for mut batch in std::mem::take(&mut self.monitors.batches) {
            if self.outbox.len() < UNSENT_MAX {
                let Batch { pool, lines, missed } = batch;
                self.outbox.push(ToMaster::Overheard { pool, lines, missed });
                continue;
            }
            batch.missed += batch.lines.lines().count() as u64;
            batch.lines.clear();
            kept.push(batch);
        }
        if !kept.is_empty() {
            self.monitors.batches = kept;
            self.monitors.due = Some(self.core.now.plus_millis(PERIOD_MS));
        }
    }

    /// Grants this worker's share of what the master can relay in a period.
    fn allow_elsewhere(&mut self) {
        let workers = self.core.snapshot.global.worker_processes.max(1) as usize;
        let share = (PERIOD_SIZE_MAX / workers).clamp(SHARE_MIN, BATCH_SIZE_MAX);
        self.core.engine.allow_elsewhere(share);
    }

    /// Announces that clients here monitor a pool, or that none do any more.
    pub(super) fn announce_monitors(&mut self, pool: String, any: bool) {
        // The announcement is repeated, so one may be skipped.
        if any && self.outbox.len() >= UNSENT_MAX {
            return;
        }
        if !self.is_master_alive {
            return self.monitored(&pool);
        }
        self.outbox.push(ToMaster::Monitors { pool, any });
    }

    /// All other workers now report to the monitors here.
    pub(super) fn monitored(&mut self, pool: &str) {
        if let Some(pool) = self.core.engine.listener_named(pool) {
            self.core.engine.handle_monitored(pool, self.core.now);
        }
    }

    /// Clients of other workers monitor a pool, or none do any more.
    pub(super) fn watch(&mut self, pool: String, on: bool) {
        if let Some(pool) = self.core.engine.listener_named(&pool) {
            self.core.engine.handle_watched(pool, on, self.core.now);
            if self.monitors.due.is_none() {
                self.allow_elsewhere();
            }
        }
        if on {
            self.outbox.push(ToMaster::Watching { pool });
        }
    }

    /// Delivers commands observed by other workers.
    pub(super) fn relay_observed(&mut self, pool: &str, lines: &str, missed: u64) {
        if let Some(pool) = self.core.engine.listener_named(pool) {
            self.core.engine.handle_observed(pool, lines.as_bytes(), missed, self.core.now);
        }
    }
}

/// The client's address as Redis writes it.
fn address_of(place: &Place) -> String {
    match place.peer.strip_suffix(":0").filter(|_| place.is_unix) {
        Some(path) => format!("unix:{}", path.replace(|byte: char| byte.is_control(), "?")),
        None if place.peer.is_empty() => "?:0".to_owned(),
        None => place.peer.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_redis() {
        let of = |peer: &str, is_unix| {
            address_of(&Place { peer: peer.to_owned(), is_unix, ..Place::UNKNOWN })
        };
        assert_eq!(of("127.0.0.1:60866", false), "127.0.0.1:60866");
        assert_eq!(of("[::1]:60866", false), "[::1]:60866");
        assert_eq!(of("/run/a.sock:0", true), "unix:/run/a.sock");
        assert_eq!(of("", false), "?:0");
    }
}
