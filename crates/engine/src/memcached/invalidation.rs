//! Keys that some copies of a group may have otherwise than the one that leads, and are to forget.
//!
//! A copy has to forget a key in two cases. Writes of the key were on their way at once, on other connections, so
//! that they may have come in another order ([`cashew_metrics::WriteStamp`]). Or a copy has not got a write, or not
//! confirmed it. To forget is always safe: a cache may miss, but must not be wrong for good.
//!
//! It forgets a little later, when no more writes of the key are on their way, and not more often than that for one
//! key: many clients may write the same at once, as they have all missed it. If a write that was alone is confirmed by
//! all meanwhile, nobody has to forget. A copy that cannot be reached forgets when it is back.
//!
//! Why copies agree in the end: let the last that a copy got be a write that is not the leader's last. If it overlapped
//! with one that began later, it sees that, and the copy forgets afterwards. If not, the leader's last write began
//! earlier, was on its way then, sees it, and has the copy forget. That leaves a mark of its own, so that writes
//! that are on their way then have the copy forget again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cashew_config::snapshot;

use crate::base::id::{BackendId, ServerId};
use crate::base::time::Time;

/// So many keys a worker keeps in mind. Copies forget others at once, if they can be reached.
pub(super) const KEYS_MAX: usize = 4096;
/// How long nobody forgets a key since the last reason to.
pub(super) const SETTLE_MS: u64 = 250;
/// How often it is looked whether a copy can be reached again, and for how long in all.
pub(super) const RETRY_MS: u64 = 1000;
pub(super) const GIVE_UP_MS: u64 = 600_000;
/// Nothing is sent while a ring changes.
pub(super) const HELD_MS: u64 = 50;

#[derive(Default)]
pub(crate) struct Invalidations {
    pub(super) keys: BTreeMap<u32, Invalidation>,
    pub(super) numbers: HashMap<(BackendId, Vec<u8>), u32>,
    pub(super) due: BTreeSet<(Time, u32)>,
    pub(super) last: u32,
}

pub(super) struct Invalidation {
    pub(super) backend: BackendId,
    pub(super) key: Vec<u8>,
    /// Of the client, in case that the others cannot name the key.
    pub(super) variant: u16,
    pub(super) copies: Vec<Copy>,
    pub(super) due: Time,
    pub(super) until: Time,
}

/// Never taken out: requests on their way go by its place.
pub(super) struct Copy {
    pub(super) server: ServerId,
    /// By which the server is numbered.
    pub(super) config: Arc<snapshot::Pool>,
    pub(super) is_owed: bool,
    /// Since when, at the latest.
    pub(super) owed_at: Time,
    pub(super) in_flight: u32,
}

impl Invalidations {
    pub(super) fn set_due(&mut self, number: u32, at: Time) {
        let Some(it) = self.keys.get_mut(&number) else { return };
        self.due.remove(&(it.due, number));
        it.due = at;
        self.due.insert((at, number));
    }

    fn remove(&mut self, number: u32) {
        let Some(it) = self.keys.remove(&number) else { return };
        self.due.remove(&(it.due, number));
        self.numbers.remove(&(it.backend, it.key));
    }

    pub(super) fn remove_if_settled(&mut self, number: u32) {
        let is_settled =
            |it: &Invalidation| it.copies.iter().all(|copy| !copy.is_owed && copy.in_flight == 0);
        if self.keys.get(&number).is_some_and(is_settled) {
            self.remove(number);
        }
    }

    /// Whether copies are about to forget something.
    pub(crate) fn awaits_replies(&self) -> bool {
        self.keys.values().any(|it| it.copies.iter().any(|copy| copy.in_flight > 0))
    }

    /// Backends have other numbers now, or are gone.
    pub(crate) fn renumber(&mut self, place_of: impl Fn(BackendId) -> Option<BackendId>) {
        let before = std::mem::take(&mut self.keys);
        self.numbers.clear();
        for (number, mut it) in before {
            match place_of(it.backend) {
                Some(backend) => {
                    it.backend = backend;
                    self.numbers.insert((backend, it.key.clone()), number);
                    self.keys.insert(number, it);
                }
                None => {
                    self.due.remove(&(it.due, number));
                }
            }
        }
    }
}

impl Invalidation {
    pub(super) fn copy_of(
        &mut self,
        (server, config): (ServerId, &Arc<snapshot::Pool>),
    ) -> Option<&mut Copy> {
        let endpoint = &config.servers[server.index()].endpoint;
        self.copies.iter_mut().find(|it| it.config.servers[it.server.index()].endpoint == *endpoint)
    }
}
