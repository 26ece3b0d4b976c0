//! What clients are told of that want to know: drains, and groups without a server that takes their writes.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use cashew_config::snapshot::Maintenance;
use cashew_control::ToChild;

use super::Master;
use crate::child::Role;

/// How long a failover may take, as clients are told. They wait for replies as long, or longer.
const FAILOVER_SECONDS: u64 = 10;

/// Who has found out that a group is without a primary, or that a server takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Finder {
    /// Another server takes the writes, by a change of the ring.
    Ring,
    /// Sentinels, or the servers themselves.
    Discovery,
    /// The server, which was asked to tell of its maintenance.
    Server,
}

#[derive(Default)]
pub(super) struct MaintenanceNotices {
    last_seq: u64,
    /// By the names of the pool and of the group, and by who has found it out: the number by which clients know
    /// the event.
    failing: BTreeMap<(String, String, Finder), u64>,
}

impl MaintenanceNotices {
    /// The number of another event. It grows from one instance, and from one program, to the next, as long as
    /// there is no more than one event a second.
    pub(super) fn next_seq(&mut self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.last_seq = now.max(self.last_seq + 1);
        self.last_seq
    }

    /// `None` if clients have been told that already.
    fn begin(&mut self, pool: &str, group: &str, finder: Finder) -> Option<Maintenance> {
        let name = (pool.to_owned(), group.to_owned(), finder);
        if self.failing.contains_key(&name) {
            return None;
        }
        let seq = self.next_seq();
        self.failing.insert(name, seq);
        let group = group.to_owned();
        Some(Maintenance::FailingOver { seq, seconds: FAILOVER_SECONDS, group })
    }

    /// `None` if clients were not told that it had begun. The end has a number of its own: clients that have seen a
    /// number ignore what comes with it.
    fn end(&mut self, pool: &str, group: &str, finder: Finder) -> Option<Maintenance> {
        self.failing.remove(&(pool.to_owned(), group.to_owned(), finder))?;
        Some(Maintenance::FailedOver { seq: self.next_seq(), group: group.to_owned() })
    }

    /// The groups of a pool that fail over as this one has found out.
    fn failing(&self, pool: &str, finder: Finder) -> Vec<String> {
        let is_its = |(its, _, by): &&(String, String, Finder)| its == pool && *by == finder;
        self.failing.keys().filter(is_its).map(|(_, group, _)| group.clone()).collect()
    }
}

impl Master {
    /// Tells clients of it that want to know: those of a pool, or all.
    pub(super) fn tell_clients(&mut self, pool: Option<u32>, event: Maintenance, now: Instant) {
        let workers: Vec<u32> = self.workers().map(|(slot, _)| slot).collect();
        for slot in workers {
            let message = ToChild::Maintenance { pool, event: event.clone() };
            self.post(Role::Worker { slot }, message, Vec::new(), now);
        }
    }

    /// A pool is held for a change of its ring. Comes before workers are told to hold it.
    pub(super) fn tell_of_promotions(&mut self, pool: u32, now: Instant) {
        for group in self.rings.promoting(pool) {
            let name = &self.current.snapshot.pools[pool as usize].name;
            if let Some(event) = self.maintenance.begin(name, &group, Finder::Ring) {
                self.tell_clients(Some(pool), event, now);
            }
        }
    }

    /// A pool goes on. Comes after workers are told so.
    pub(super) fn tell_of_promoted(&mut self, pool: u32, now: Instant) {
        let name = self.current.snapshot.pools[pool as usize].name.clone();
        let still = self.rings.promoting(pool);
        for group in self.maintenance.failing(&name, Finder::Ring) {
            if !still.contains(&group)
                && let Some(event) = self.maintenance.end(&name, &group, Finder::Ring)
            {
                self.tell_clients(Some(pool), event, now);
            }
        }
    }

    /// A server has said whether it takes long for now. Clients are told so of it as of a group, by its name.
    pub(super) fn tell_of_server(
        &mut self,
        (pool, server): (&str, &str),
        is_relaxed: bool,
        now: Instant,
    ) {
        let event = match is_relaxed {
            true => self.maintenance.begin(pool, server, Finder::Server),
            false => self.maintenance.end(pool, server, Finder::Server),
        };
        let at = self.current.snapshot.pools.iter().position(|it| it.name == pool);
        if let (Some(event), Some(at)) = (event, at) {
            self.tell_clients(Some(at as u32), event, now);
        }
    }

    /// Discovery says how a group is.
    pub(super) fn tell_of_group(&mut self, pool: &str, group: &str, state: &str, now: Instant) {
        let event = match state {
            "suspect" | "switching" => self.maintenance.begin(pool, group, Finder::Discovery),
            "stable" => self.maintenance.end(pool, group, Finder::Discovery),
            _ => None,
        };
        let pools = &self.current.snapshot.pools;
        let at = pools.iter().position(|it| it.name == pool);
        if let (Some(event), Some(at)) = (event, at) {
            self.tell_clients(Some(at as u32), event, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_grow_and_no_event_is_told_twice() {
        let mut notices = MaintenanceNotices::default();
        let seq = |event: Option<Maintenance>| match event {
            Some(Maintenance::FailingOver { seq, .. } | Maintenance::FailedOver { seq, .. }) => seq,
            other => panic!("{other:?}"),
        };
        assert_eq!(notices.end("p", "g", Finder::Ring), None);
        let first = seq(notices.begin("p", "g", Finder::Ring));
        assert_eq!(notices.begin("p", "g", Finder::Ring), None);
        let second = seq(notices.begin("p", "h", Finder::Ring));
        assert_eq!(notices.failing("p", Finder::Ring), ["g", "h"]);
        assert_eq!(notices.failing("p", Finder::Discovery), [""; 0]);
        let third = seq(notices.end("p", "g", Finder::Ring));
        assert_eq!(notices.end("p", "g", Finder::Ring), None);
        assert!(first < second && second < third, "{first} {second} {third}");
        // After a start within the same seconds numbers may be the same, but not smaller.
        assert!(first > 1_700_000_000);
    }
}
