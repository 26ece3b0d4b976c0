//! Switching from one epoch to the next.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use cashew_config::Snapshot;
use cashew_config::snapshot::ClientSources;
use cashew_control::ToMaster;
use cashew_driver::{Driver, Token};
use cashew_engine::ListenerId;
use cashew_metrics::EventKind;

use super::{TRIM_MIN, Worker};
use crate::core::WATCH_PREPARER;
use crate::place::host;
use crate::preparer::{Next, Order, Preparer};

/// The stage of a change of the epoch.
pub(super) enum Change {
    None,
    /// Being read on another thread, as the order of this number.
    Reading {
        epoch: u64,
        order: u64,
    },
    /// The engine has the plan.
    Ready(Box<Next>),
}

impl<D: Driver> Worker<D> {
    pub(super) fn prepare(
        &mut self,
        epoch: u64,
        rank: u32,
        workers: u32,
        descriptors: Vec<OwnedFd>,
    ) {
        if let Change::Ready(_) = std::mem::replace(&mut self.change, Change::None) {
            tracing::error!("the master prepares epoch {epoch} on top of another");
            self.core.engine.handle_abort(self.core.now);
        }
        let order = Order {
            epoch,
            slot: self.slot,
            rank,
            workers,
            descriptors,
            snapshot: Arc::clone(&self.core.snapshot),
            segments: Arc::clone(&self.core.segments),
            processors: self.processors.for_thread(),
        };
        match self.start_preparing(order) {
            Ok(order) => self.change = Change::Reading { epoch, order },
            Err(error) => self.refuse(epoch, error.to_string()),
        }
    }

    fn start_preparing(&mut self, order: Order) -> std::io::Result<u64> {
        let preparer = match &mut self.preparer {
            Some(preparer) => preparer,
            none => {
                let preparer = Preparer::new()?;
                self.driver.watch(WATCH_PREPARER, preparer.wake())?;
                none.insert(preparer)
            }
        };
        preparer.prepare(order)
    }

    #[inline(never)]
    pub(super) fn take_prepared(&mut self) {
        let answers = self.preparer.as_mut().map(Preparer::answers).unwrap_or_default();
        for answer in answers {
            // It may have been aborted meanwhile.
            let epoch = match self.change {
                Change::Reading { epoch, order } if order == answer.number => epoch,
                _ => continue,
            };
            match answer.result {
                Ok((next, mut plan)) => {
                    self.follow_names(&next, &mut plan);
                    self.core.tls.expect(&next.tls);
                    self.change = Change::Ready(Box::new(next));
                    self.core.engine.handle_prepare(plan, self.core.now);
                }
                Err(why) => self.refuse(epoch, why),
            }
        }
    }

    fn refuse(&mut self, epoch: u64, why: String) {
        self.change = Change::None;
        self.outbox.push(ToMaster::Refused { epoch, why });
    }

    /// Call this before anybody is accepted who is to be secured, or to begin with a header.
    pub(super) fn enable_tls(&mut self) {
        let mut pools = self.core.snapshot.pools.iter();
        let has_headers = pools.any(|pool| pool.client_sources.proxy_protocol.is_some());
        if has_headers || !self.core.tls.is_empty() {
            self.driver.enable();
        }
    }

    /// Closes clients that come from where none may any more, once they have what they asked for.
    fn dismiss_denied(&mut self, before: &Snapshot) {
        for (at, pool) in (0..).map(ListenerId::new).zip(&self.core.snapshot.pools) {
            let sources = &pool.client_sources;
            let mut earlier = before.pools.iter().filter(|it| it.name == pool.name);
            let is_known = earlier.any(|it| {
                let ClientSources { allow_from, deny_from, .. } = &it.client_sources;
                *allow_from == sources.allow_from && *deny_from == sources.deny_from
            });
            if is_known || sources.allows_all() {
                continue;
            }
            let mut count = 0;
            for conn in self.core.engine.clients_at(at) {
                let token = Token(conn.token());
                if self.core.awaited.contains_key(&token) {
                    continue;
                }
                let Some(host) = host(&self.driver, &self.core.told, token) else { continue };
                if !sources.allows(host) {
                    count += 1;
                    self.core.engine.dismiss(conn, self.core.now);
                }
            }
            if count > 0 {
                tracing::warn!(
                    kind = EventKind::ClientDenied.name(),
                    pool = pool.name,
                    "pool {}: {count} clients are closed, since allow_from and deny_from do not let \
                     them in any more",
                    pool.name
                );
            }
        }
    }

    pub(super) fn commit(&mut self, epoch: u64) {
        let Next { rank, snapshot, segments, tls, .. } =
            match std::mem::replace(&mut self.change, Change::None) {
                Change::Ready(next) if next.epoch == epoch => *next,
                other => {
                    self.change = other;
                    tracing::error!("the master commits epoch {epoch}, which is not prepared");
                    return;
                }
            };
        // Pools are renumbered.
        self.answer_all_queries();
        self.notify_monitors();
        // Closed clients are counted in the epoch in which they left.
        self.core.give_quotas();
        if !segments.is_same(&self.core.segments) {
            segments.carry(&self.core.segments, &self.core.snapshot, &snapshot, self.slot);
        }
        self.core.writer = segments.writer(self.slot);
        self.core.writer.set_epoch(epoch);
        self.core.engine.handle_commit(segments.writer(self.slot), self.core.now);
        for listener in self.unlistened.drain(..) {
            self.core.listeners.remove(&listener);
        }
        self.core.segments = segments;
        self.pace.set_hold_max_us(snapshot.global.batch_window_max_us);
        self.processors.pin(&snapshot.global.worker_cpu_affinity, rank);
        cashew_process::log::set_format(snapshot.global.log_format);
        self.core.tls.replace(tls);
        let before = Arc::clone(&self.core.snapshot);
        self.core.set_snapshot(snapshot);
        self.enable_tls();
        self.dismiss_denied(&before);
        self.core.keep_spool();
        self.core.reserve_files();
        if rank == 0 {
            self.core.check_files();
        }
        // The memory of the last epoch returns to the system, including the preparing thread's
        // heap.
        self.unreturned += TRIM_MIN;
        self.outbox.push(ToMaster::Committed { epoch });
    }
}
