//! Handles the master's messages.

use cashew_engine::{BackendId, ListenerId};
use std::os::fd::OwnedFd;

use cashew_control::{ChildChannel, ReceiveError, ToChild};
use cashew_driver::Driver;
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use super::epochs::Change;
use super::{Retiring, Worker};
use crate::clock::wall_us;
use crate::secured::Place;
use crate::start::reopen_log;

/// The most descriptors that come with one message to a running worker.
const SPARES: usize = 2;

impl<D: Driver> Worker<D> {
    #[inline(never)]
    pub(super) fn receive_messages(&mut self, control: &mut ChildChannel) {
        while self.is_master_alive {
            self.spare_descriptors.clear();
            let received = control.receive();
            let has_spare_descriptors = self.keep_spare_descriptors(control);
            match received {
                Ok(Some((ToChild::Adopt { session }, mut descriptors))) => {
                    if !has_spare_descriptors {
                        descriptors.clear();
                        self.keep_spare_descriptors(control);
                    }
                    self.arrivals.push_back((session, descriptors));
                    self.take_arrivals(control);
                }
                // An empty answer comes without a descriptor, too.
                Ok(Some((ToChild::Answer { ticket, .. }, descriptors)))
                    if control.is_stripped() =>
                {
                    tracing::error!("an answer cannot be read: {}", Errno::MFILE);
                    let rest = cashew_control::Rest::Missing;
                    self.obey(ToChild::Answer { ticket, rest }, descriptors);
                }
                Ok(Some((message, descriptors))) => self.obey(message, descriptors),
                Ok(None) => return,
                Err(ReceiveError::Closed) => self.is_master_alive = false,
                Err(error) => {
                    tracing::error!("the master's channel failed: {error}");
                    self.is_master_alive = false;
                }
            }
        }
    }

    /// Reserves descriptors for the master's messages. Only a session may be lost for lack of
    /// descriptors, not a listening socket, at which nobody else accepts. Returns whether there are
    /// enough.
    pub(super) fn keep_spare_descriptors(&mut self, control: &ChildChannel) -> bool {
        while self.spare_descriptors.len() < SPARES {
            let Ok(spare) = fcntl_dupfd_cloexec(control, 0) else { return false };
            self.spare_descriptors.push(spare);
        }
        true
    }

    pub(super) fn obey(&mut self, message: ToChild, mut descriptors: Vec<OwnedFd>) {
        self.core.tick();
        let now = self.core.now;
        // Before anything is renumbered or cancelled.
        self.act();
        match message {
            ToChild::Listen { listener, pool } => {
                self.listen(listener, ListenerId::new(pool), descriptors.pop())
            }
            ToChild::Unlisten { listener, drain } => self.unlisten(listener, drain),
            ToChild::Hold { pool, version, drain_ms } => {
                self.core.engine.handle_hold(BackendId::new(pool), version, drain_ms, now);
            }
            ToChild::Release { pool, version, topology } => {
                let pool = BackendId::new(pool);
                self.core.engine.handle_release(pool, version, topology, now, wall_us());
            }
            ToChild::Prepare { epoch, rank, workers } => {
                self.prepare(epoch, rank, workers, descriptors);
            }
            ToChild::Pause { epoch, drain_ms } => match &self.change {
                Change::Ready(next) if next.epoch == epoch => {
                    self.core.engine.handle_pause(drain_ms, now);
                }
                _ => tracing::error!("the master pauses for epoch {epoch}, which is not prepared"),
            },
            ToChild::Commit { epoch } => self.commit(epoch),
            ToChild::Abort { .. } => {
                if let Change::Ready(_) = std::mem::replace(&mut self.change, Change::None) {
                    self.core.engine.handle_abort(now);
                }
            }
            ToChild::Retire { timeout_ms } => {
                self.accept_no_more();
                self.core.engine.leave_all(now);
                let finish_at = Some(now.plus_millis(timeout_ms / 2));
                let until = now.plus_millis(timeout_ms);
                self.retiring = Some(Retiring { timeout_ms, finish_at, until });
            }
            ToChild::Unretire => {
                self.retiring = None;
                self.core.engine.stay_all(now);
            }
            ToChild::Keep => {
                self.retiring = None;
                self.core.engine.stay_all(now);
                self.is_to_keep = true;
            }
            ToChild::Shed { permille } => {
                self.core.engine.leave_share(permille, now);
            }
            ToChild::Watched { pool, on } => self.watch(pool, on),
            ToChild::Monitored { pool } => self.monitored(&pool),
            ToChild::Overheard { pool, lines, missed } => {
                self.relay_observed(&pool, &lines, missed)
            }
            ToChild::Question { number, pool, by } => {
                self.answer(number, &pool, by, &descriptors);
            }
            ToChild::Answer { ticket, rest } => self.take_answer(ticket, rest, &descriptors),
            ToChild::Maintenance { pool, event } => {
                let pool = pool.map(BackendId::new);
                let told = self.core.engine.handle_maintenance(pool, &event, now);
                tracing::debug!("{told} clients are told: {event:?}");
            }
            ToChild::LogLevel { level } => cashew_process::log::set_level(level),
            ToChild::LogReopen => reopen_log(descriptors),
            ToChild::Shutdown => self.begin_shutdown(),
            other @ (ToChild::Init { .. }
            | ToChild::Start
            | ToChild::Adopt { .. }
            | ToChild::Group { .. }
            | ToChild::Sentinel { .. }
            | ToChild::NotPrimary { .. }
            | ToChild::Operated { .. }
            | ToChild::Seed { .. }
            | ToChild::Migrate { .. }
            | ToChild::LookAtKeys { .. }
            | ToChild::CatchUp { .. }
            | ToChild::Moves { .. }
            | ToChild::Source { .. }
            | ToChild::Maintained { .. }
            | ToChild::MapDoubted { .. }) => {
                tracing::warn!("unexpected message from the master: {other:?}");
            }
        }
    }

    fn listen(&mut self, listener: u32, pool: ListenerId, socket: Option<OwnedFd>) {
        let (Some(socket), true) = (socket, pool.index() < self.core.snapshot.pools.len()) else {
            tracing::error!("the master sent a listener without a socket or for no pool");
            return;
        };
        let place = Place::of(&socket);
        match self.driver.listen(listener, socket) {
            Ok(()) => {
                self.core.add_listener(listener, pool, place);
                self.core.reserve_files();
            }
            Err(error) => tracing::error!("cannot accept clients: {error}"),
        }
    }

    fn unlisten(&mut self, listener: u32, drain: bool) {
        self.driver.unlisten(listener, drain, &mut self.core);
        if drain {
            // Without a free descriptor, some of the waiting clients are accepted later.
            self.unlistened.push(listener);
        } else {
            self.core.listeners.remove(&listener);
            self.core.reserve_files();
        }
    }

    /// Does not use [`Driver::stop_listening`]. Clients that the kernel has accepted already, and
    /// those that wait, must be taken in before the listener's pool is forgotten.
    fn accept_no_more(&mut self) {
        let is_over = |listener: &&u32| !self.unlistened.contains(listener);
        let listeners: Vec<u32> = self.core.listeners.keys().filter(is_over).copied().collect();
        for listener in listeners {
            self.unlisten(listener, false);
        }
    }

    #[inline(never)]
    pub(super) fn begin_shutdown(&mut self) {
        self.core.tick();
        self.accept_no_more();
        self.driver.stop_listening();
        if !self.is_master_alive {
            // Nobody takes over clients any more.
            let unsent = self.outbox.give_up();
            unsent.iter().for_each(|&quota| self.core.shared.give(quota));
            self.core.writer.add_sessions_cut(unsent.len() as u64);
            self.core.engine.stay_all(self.core.now);
            self.core.engine.close_handed_off(self.core.now);
        }
        self.core.engine.handle_drain(self.core.now);
        let limit = self.core.snapshot.global.worker_shutdown_timeout_ms;
        self.deadline = Some(self.core.now.plus_millis(limit));
    }
}
