//! Pools of which so many servers are down that leaving them out does more harm than good.
//!
//! If more than `fail_open` percent of a pool's shards were off the ring, the rest would get the keys of
//! all, which may well be what brings it down, too; or it is the gateway that cannot reach anybody. Then
//! the pool is *open*: nobody is ejected any more and all servers return, so that each key has its own
//! server, which serves it or not. It ends when so many answer again that the others may be ejected.
//!
//! A group counts once, by its primary. Its replicas have no keys of their own: they come and go as ever.

use std::collections::BTreeMap;

use cashew_metrics::EventKind;
use tracing::{info, warn};

use super::pool::{Ring, Wanted};

/// Ejected when the pool opened: what for is in the log.
const EJECTED_BEFORE: &str = "it has not answered since it was last ejected";

impl Ring {
    /// A server that may be ejected is down.
    pub(super) fn went_down(&mut self, server: u32, why: String) {
        let is_counted = self.is_counted(server);
        match &mut self.down_while_open {
            Some(down) if is_counted => _ = down.entry(server).or_insert(why),
            Some(_) | None => self.wish(server, Wanted { live: false, why }),
        }
        self.weigh_and_tell();
    }

    pub(super) fn came_up(&mut self, server: u32) {
        if self.down_while_open.as_mut().is_some_and(|down| down.remove(&server).is_some()) {
            self.weigh_and_tell();
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.down_while_open.is_some()
    }

    pub(super) fn weigh_and_tell(&mut self) {
        let was_open = self.is_open();
        self.weigh();
        self.tell_if_open_now(was_open);
    }

    /// Tells the log what has changed.
    pub(super) fn tell_if_open_now(&self, was_open: bool) {
        let (name, percent) = (&self.config.name, self.config.fail_open_percent);
        match (was_open, &self.down_while_open) {
            (false, Some(down)) => warn!(
                kind = EventKind::PoolFailsOpen.name(),
                pool = name,
                "pool '{name}' fails open: {} of {} servers are down, more than {percent} %: all are \
                 used, and none is ejected",
                down.len(),
                self.counted().len()
            ),
            (true, None) => info!(
                kind = EventKind::PoolRecovered.name(),
                pool = name,
                "pool '{name}' does not fail open any more: no more than {percent} % of its servers \
                 are down, and those are ejected"
            ),
            (false, None) | (true, Some(_)) => {}
        }
    }

    /// Opens the pool if too many shards are or would be off the ring, and ends that if they would not.
    pub(super) fn weigh(&mut self) {
        let percent = u64::from(self.config.fail_open_percent);
        if percent >= 100 && self.down_while_open.is_none() {
            return;
        }
        let counted = self.counted();
        let down: BTreeMap<u32, String> =
            counted.iter().filter_map(|&server| Some((server, self.down(server)?))).collect();
        let is_open = down.len() as u64 * 100 > counted.len() as u64 * percent;
        match (self.down_while_open.is_some(), is_open) {
            (false, true) => {
                for &server in down.keys() {
                    let why = format!("more than {percent} % are down");
                    self.wish(server, Wanted { live: true, why });
                }
                self.down_while_open = Some(down);
            }
            (true, false) => {
                self.down_while_open = None;
                for (server, why) in down {
                    self.wish(server, Wanted { live: false, why });
                }
            }
            (true, true) => self.down_while_open = Some(down),
            (false, false) => {}
        }
    }

    /// Why a server is to be left out, if it is: after the change under way, and the next one.
    fn down(&self, server: u32) -> Option<String> {
        if let Some(down) = &self.down_while_open {
            // Those that may not be ejected any more do not count.
            return down.get(&server).filter(|_| self.may_eject(server)).cloned();
        }
        let change = self.change.as_ref().and_then(|change| change.servers.get(&server));
        match self.wanted.get(&server).or(change) {
            Some(wanted) => (!wanted.live).then(|| wanted.why.clone()),
            None => (!self.servers[server as usize].live).then(|| EJECTED_BEFORE.to_owned()),
        }
    }

    /// Those that are counted: one of each shard.
    fn counted(&self) -> Vec<u32> {
        let servers = 0..self.config.servers.len() as u32;
        servers.filter(|&server| self.is_counted(server)).collect()
    }

    /// Whether keys are without a server while it is off the ring.
    fn is_counted(&self, server: u32) -> bool {
        self.group_of(server).is_none_or(|shard| self.primaries[&shard] == server)
    }
}
