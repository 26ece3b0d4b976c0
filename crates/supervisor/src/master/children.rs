//! Children: start, watch, bury and replace them, and deal the listening sockets.

use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use cashew_control::{MasterChannel, Rest, ToChild};
use cashew_metrics::{EventKind, SLOTS_MAX};
use tracing::{debug, error, info, warn};

use super::{Master, Phase, workers_of};
use crate::child::{Exit, Role};
use crate::deal::{Change, Player};
use crate::fleet::{self, Life};
use crate::listeners::Listeners;
use crate::member::{Member, Running, Waiting};
use crate::sessions::Parcel;
use crate::slots::{KILL_GRACE, Order};
use crate::{Error, Step};

/// Unread messages that a child may have, beyond those about all pools and their sockets.
const OUTBOX_SPARE: usize = 1024;

/// This many deaths in a row are logged as a crash loop.
const CRASH_LOOP: u32 = 3;

impl Master {
    pub(super) fn handle_slots(&mut self, now: Instant) -> Result<(), Error> {
        let roles: Vec<Role> = self.members.keys().copied().collect();
        for role in roles {
            // The epoch by which it has to start is about to be decided.
            if self.members[&role].running.is_none() && self.epochs.is_undecided() {
                continue;
            }
            match self.member(role).slot.poll(now) {
                // Only the admin and discovery can ask for it: the slots of workers are closed.
                Some(Order::Spawn) if self.phase == Phase::Stopping => {
                    self.member(role).slot.stop(now);
                }
                Some(Order::Spawn) => self.start(role, now)?,
                Some(Order::Abort) => self.condemn(role, "it does not get ready", now),
                Some(Order::Kill) => self.kill(role, now)?,
                None => {}
            }
        }
        Ok(())
    }

    fn start(&mut self, role: Role, now: Instant) -> Result<(), Error> {
        match self.spawn_child(role) {
            Ok(running) => {
                info!(
                    kind = role.event(EventKind::WorkerStarted, EventKind::HelperStarted),
                    worker = role.slot(),
                    "{role} is started: {}",
                    running.child
                );
                let generation = self.generation;
                let member = self.member(role);
                member.running = Some(running);
                member.generation = generation;
                member.slot.spawned(now);
                self.brief(role, now);
                Ok(())
            }
            Err(error) if self.phase == Phase::Starting && role != Role::Discovery => {
                Err(Error::Start { role, why: format!("cannot be run: {error}") })
            }
            Err(error) => {
                let pause = self.member(role).slot.died(now);
                error!("{role} cannot be started: {error}; next try in {pause:?}");
                Ok(())
            }
        }
    }

    fn spawn_child(&self, role: Role) -> io::Result<Running> {
        if let Role::Worker { slot } = role {
            self.current.segments.use_slot(slot);
        }
        let (ours, theirs) = cashew_control::pair()?;
        let child = self.spawn.spawn(role, self.log.level(), self.started, theirs)?;
        if let Some((pid, _)) = child.process() {
            self.files.give(pid);
        }
        Ok(Running::new(child, MasterChannel::new(ours), self.outbox_max()))
    }

    /// Any worker may lose or get every dealt socket: the last serving worker gets all.
    fn outbox_max(&self) -> usize {
        let pools = self.current.snapshot.pools.len();
        let sockets = self.listeners.as_ref().map_or(0, Listeners::dealt);
        let watched: usize = self
            .current
            .snapshot
            .pools
            .iter()
            .flat_map(|pool| &pool.sentinel)
            .map(|sentinel| sentinel.groups.len() + sentinel.addresses.len())
            .sum();
        2 * (pools + watched) + sockets + self.deal.owners().len() + OUTBOX_SPARE
    }

    /// Call this before more or other sockets are dealt than before.
    pub(super) fn allow_mail(&mut self) {
        let outbox_max = self.outbox_max();
        for running in self.members.values_mut().filter_map(|member| member.running.as_mut()) {
            running.set_outbox_max(outbox_max);
        }
    }

    /// Sends everything that a new child needs.
    fn brief(&mut self, role: Role, now: Instant) {
        let (slot, rank) = match role {
            Role::Worker { slot } => (slot, self.members[&role].rank),
            Role::Admin | Role::Discovery => (0, 0),
        };
        let init = ToChild::Init { slot, rank, workers: workers_of(&self.current.snapshot) };
        let current = &self.current;
        let sealed = match role {
            Role::Discovery => self.sealed_for_discovery(),
            Role::Worker { .. } => Rc::clone(&current.sealed),
            Role::Admin => Rc::clone(&current.public),
        };
        let memfds = vec![sealed, Rc::clone(&current.metrics), Rc::clone(&self.shared_memfd)];
        self.post(role, init, memfds, now);
        match role {
            Role::Worker { slot } => {
                self.rings.joined(slot);
                self.deliver_rings(now);
                self.deal_sockets(now);
            }
            Role::Admin => {
                let is_told = self.publish_stats_socket(now);
                assert!(is_told, "there is an admin only where there is a stats socket");
            }
            Role::Discovery => {
                for pool in 0..self.current.snapshot.pools.len() as u32 {
                    self.publish_topology(pool, now);
                }
            }
        }
        self.post(role, ToChild::Start, Vec::new(), now);
        match role {
            Role::Worker { slot } => {
                self.notify_of_monitors(slot, now);
                self.notify_of_drain(slot, now);
            }
            Role::Admin => self.publish_discovered(now),
            Role::Discovery => {}
        }
    }

    /// Returns false if there is none.
    pub(super) fn publish_stats_socket(&mut self, now: Instant) -> bool {
        let stats = self.listeners.as_ref().and_then(|listeners| listeners.of_stats());
        let Some(socket) = stats else { return false };
        self.post(Role::Admin, ToChild::Listen { listener: 0, pool: 0 }, vec![socket], now);
        true
    }

    /// Has the admin, or discovery, started anew, by this program. One that does not end by itself is
    /// killed.
    pub(super) fn restart(&mut self, role: Role, now: Instant) {
        self.post(role, ToChild::Shutdown, Vec::new(), now);
        if let Some(member) = self.members.get_mut(&role) {
            member.slot.mark_dying(now);
        }
    }

    pub(super) fn handle_ready(&mut self, role: Role, now: Instant) -> Result<(), Error> {
        debug!("{role} is ready");
        let member = self.member(role);
        member.slot.ready(now);
        if let Some(running) = &mut member.running {
            running.is_ready = true;
        }
        self.is_unsettled = true;
        if self.phase == Phase::Starting && self.is_everybody_ready() {
            self.started()?;
        }
        Ok(())
    }

    /// Nobody waits for discovery.
    fn is_everybody_ready(&self) -> bool {
        let mut needed = self.members.values().filter(|it| it.role != Role::Discovery);
        needed.all(|member| member.slot.is_serving())
    }

    pub(super) fn handle_death(&mut self, role: Role, now: Instant) -> Result<(), Error> {
        // Its last messages may not have been read yet.
        if !self.handle_last_words(role, now)? {
            return Ok(());
        }
        let Some(mut running) = self.member(role).running.take() else { return Ok(()) };
        let name = running.child.to_string();
        let failed = running.failed.take();
        let was_ready = running.is_ready;
        let (child, sessions) = running.into_parts();
        let exit = child.reap().step("learn how a child ended")?;
        let is_missed = is_missed(was_ready, self.members[&role].slot.life(), &exit);
        self.bury(role, is_missed, sessions, now);
        let how = match failed {
            Some(why) => format!("failed: {why}"),
            None => exit.to_string(),
        };
        if self.phase == Phase::Starting && role != Role::Discovery {
            return Err(Error::Start { role, why: how });
        }
        if role == Role::Discovery {
            self.discovered.forget_state();
            self.maps.forget_seeds();
            self.found.forget_statuses();
            self.relocations.forget_statuses();
            self.publish_discovered(now);
        }
        match self.vacate(role, now) {
            // It ends by itself only in order to be started anew.
            Some(_) if !role.is_worker() && is_clean(&exit) => {
                info!(
                    kind = role.event(EventKind::WorkerStopped, EventKind::HelperStopped),
                    worker = role.slot(),
                    "{role} ({name}) has stopped"
                )
            }
            Some(pause) => {
                let member = self.member(role);
                member.restarts += 1;
                self.shared.add_restart(role.kind());
                let member = self.member(role);
                error!(
                    kind = role.event(EventKind::WorkerCrashed, EventKind::HelperCrashed),
                    worker = role.slot(),
                    "{role} ({name}) {how}; restart {} in {pause:?}",
                    member.restarts
                );
                self.report_crash_loop(role);
            }
            None if is_clean(&exit) => info!(
                kind = role.event(EventKind::WorkerStopped, EventKind::HelperStopped),
                worker = role.slot(),
                "{role} ({name}) has stopped"
            ),
            None => warn!(
                kind = role.event(EventKind::WorkerStopped, EventKind::HelperStopped),
                worker = role.slot(),
                "{role} ({name}) has stopped: {how}"
            ),
        }
        self.forget_closed();
        if role == Role::Discovery {
            self.copier_gone();
            // It may be needed again since it was told to stop.
            self.adjust_discovery(now);
        }
        Ok(())
    }

    fn report_crash_loop(&self, role: Role) {
        let crashes = self.members[&role].slot.crashes();
        if crashes >= CRASH_LOOP {
            let serving = self.serving().count();
            error!(
                kind = role.event(EventKind::WorkerCrashesOn, EventKind::HelperCrashesOn),
                worker = role.slot(),
                "{role} crashes in a loop: {crashes} times in a row; {serving} workers serve"
            );
        }
    }

    /// Ends everything that the child took part in, and reroutes the sessions on their way to it.
    /// It is dead or abandoned.
    fn bury(&mut self, role: Role, is_missed: bool, sessions: Vec<Waiting>, now: Instant) {
        let Role::Worker { slot } = role else { return };
        self.release_slot(slot);
        self.epochs.left(slot, is_missed, now);
        self.rings.left(slot, now);
        self.deal.left(slot);
        self.forget_monitors(slot, now);
        for asker in self.worker_queries.gone(slot) {
            self.reply_to_asker(asker, Rest::None, Vec::new(), now);
        }
        self.is_unsettled = true;
        for (session, descriptors) in sessions {
            self.sessions.push_back(Parcel { from: slot, session, descriptors });
        }
    }

    /// Its place is empty. Returns for how long; `None` is for ever.
    fn vacate(&mut self, role: Role, now: Instant) -> Option<Duration> {
        let pause = self.member(role).slot.died(now);
        self.stop_admin(now);
        pause
    }

    /// Closed worker slots can be reused.
    pub(super) fn forget_closed(&mut self) {
        if self.phase == Phase::Stopping {
            return;
        }
        let before = self.members.len();
        self.members.retain(|_, member| !member.slot.is_closed());
        if self.members.len() < before {
            self.vacate_free_slots();
        }
    }

    /// The statistics must show only existing workers.
    pub(super) fn vacate_free_slots(&self) {
        let segments = &self.current.segments;
        let free = |slot: &u32| !self.members.contains_key(&Role::Worker { slot: *slot });
        for slot in (0..segments.slots()).filter(free) {
            if segments.header(slot).pid != 0 {
                segments.vacate(slot);
            }
        }
    }

    pub(super) fn condemn(&mut self, role: Role, why: &str, now: Instant) {
        self.member(role).condemn(why, now);
        self.is_unsettled = true;
    }

    fn kill(&mut self, role: Role, now: Instant) -> Result<(), Error> {
        let member = self.member(role);
        if member.kill() {
            return Ok(());
        }
        // A thread cannot be killed, and a second one would serve beside it.
        if self.phase != Phase::Stopping {
            return Err(Error::Stuck { role });
        }
        warn!(
            kind = role.event(EventKind::WorkerKilled, EventKind::HelperKilled),
            worker = role.slot(),
            "{role} does not end and is abandoned"
        );
        if let Some(running) = self.member(role).running.take() {
            let (_, sessions) = running.into_parts();
            self.bury(role, false, sessions, now);
        }
        self.vacate(role, now);
        Ok(())
    }

    /// Deals the sockets to the workers that serve now. Call this before a change that makes a
    /// worker stop serving.
    pub(super) fn deal_sockets(&mut self, now: Instant) {
        let Some(listeners) = &self.listeners else { return };
        // Clients accepted by a worker of a failed upgrade could not be given back.
        if self.upgrade.is_taking_over() {
            return;
        }
        let player = |(slot, member): (u32, &Member)| {
            let is_ready = member.slot.is_serving();
            let plays = is_ready || member.slot.is_starting();
            plays.then_some((member.generation, Player { slot, rank: member.rank, is_ready }))
        };
        let mut players: Vec<_> = self.workers().filter_map(player).collect();
        // Of two workers with the same rank the newer one comes later.
        players.sort_by_key(|(generation, player)| (player.rank, *generation));
        let players: Vec<Player> = players.into_iter().map(|(_, player)| player).collect();
        let changes = self.deal.update(&listeners.hands(), &players);
        if changes.is_empty() {
            return;
        }
        let sockets = listeners.sockets();
        let pools = self.current.snapshot.pools.iter().map(|pool| pool.name.as_str());
        let pools: HashMap<&str, u32> = pools.zip(0..).collect();
        let letters: Vec<_> = changes
            .into_iter()
            .map(|change| match change {
                Change::Listen { slot, listener } => {
                    let (pool, socket) = sockets[&listener];
                    let message = ToChild::Listen { listener, pool: pools[pool] };
                    (slot, message, vec![Rc::clone(socket)])
                }
                Change::Unlisten { slot, listener, drain } => {
                    (slot, ToChild::Unlisten { listener, drain }, Vec::new())
                }
            })
            .collect();
        for (slot, message, descriptors) in letters {
            self.post(Role::Worker { slot }, message, descriptors, now);
        }
    }

    /// Takes the next steps towards the wanted set of workers.
    pub(super) fn adjust_fleet(&mut self, now: Instant) {
        if self.phase != Phase::Serving {
            return;
        }
        // It is called again when that is over.
        if self.epochs.is_changing() || self.upgrade.is_keeping() {
            return;
        }
        let worker = |(slot, member): (u32, &Member)| fleet::Worker {
            slot,
            rank: member.rank,
            life: member.slot.life(),
            is_fresh: member.running.is_none() || member.generation == self.generation,
        };
        let workers: Vec<fleet::Worker> = self.workers().map(worker).collect();
        let mut is_to_deal = false;
        let mut retiring = Vec::new();
        for order in fleet::plan(&workers, workers_of(&self.current.snapshot), SLOTS_MAX) {
            if !self.holds(order) {
                self.is_unsettled = true;
                continue;
            }
            is_to_deal |= !matches!(order, fleet::Order::Add { .. });
            match order {
                fleet::Order::Add { slot, rank } => {
                    let role = Role::Worker { slot };
                    self.members.insert(role, Member::new(role, rank, now));
                }
                fleet::Order::Retire(slot) => {
                    self.retire(slot, now);
                    retiring.push(slot);
                }
                fleet::Order::Unretire(slot) => {
                    info!("worker {slot} no longer retires");
                    let role = Role::Worker { slot };
                    self.member(role).slot.unretire();
                    self.post(role, ToChild::Unretire, Vec::new(), now);
                }
                fleet::Order::Drop(slot) => {
                    let role = Role::Worker { slot };
                    self.post(role, ToChild::Shutdown, Vec::new(), now);
                    self.member(role).slot.stop(now + KILL_GRACE);
                }
            }
        }
        // Once for all of them, so that no retiring worker gets the socket of another. Sockets go
        // to others first, then sessions.
        if is_to_deal {
            self.deal_sockets(now);
        }
        for slot in retiring {
            let role = Role::Worker { slot };
            let farewell = self.farewell(role, self.shutdown_timeout_ms());
            self.post(role, farewell, Vec::new(), now);
        }
        self.forget_closed();
    }

    /// Whether the worker is still in the state that the order assumes.
    fn holds(&self, order: fleet::Order) -> bool {
        order.premise().is_none_or(|(slot, life)| {
            let member = self.members.get(&Role::Worker { slot });
            member.is_some_and(|member| member.slot.life() == life)
        })
    }

    /// It will serve no more, and is not told so yet.
    fn retire(&mut self, slot: u32, now: Instant) {
        let timeout_ms = self.shutdown_timeout_ms();
        info!(
            kind = EventKind::WorkerRetires.name(),
            worker = slot,
            "worker {slot} retires, within {timeout_ms} ms"
        );
        let deadline = now + Duration::from_millis(timeout_ms) + KILL_GRACE;
        self.member(Role::Worker { slot }).slot.retire(deadline);
    }

    fn shutdown_timeout_ms(&self) -> u64 {
        self.current.snapshot.global.worker_shutdown_timeout_ms
    }

    /// For the way out after an error. Waits only for what SIGKILL ends.
    pub(super) fn kill_all(&mut self) {
        for member in self.members.values_mut() {
            let killed = member.kill();
            let Some(running) = member.running.take() else { continue };
            if killed && let Err(error) = running.child.reap() {
                warn!("{}: {error}", member.role);
            }
        }
    }

    /// Whether a living worker cannot be sent anything any more.
    pub(super) fn is_anybody_dying(&self) -> bool {
        let mut running = self.workers().filter_map(|(_, member)| member.running.as_ref());
        running.any(|running| running.mail().is_none())
    }

    /// The workers that serve and are not retiring, with their slots.
    pub(super) fn serving(&self) -> impl Iterator<Item = (u32, &Member)> {
        self.workers().filter(|(_, member)| member.slot.life() == Life::Serving)
    }
}

/// Whether the death of a worker aborts a change of all workers. Not if it never served or was to
/// end, nor if it ended well: that is the end of retiring, possibly just before it was taken back.
fn is_missed(was_ready: bool, life: Life, exit: &Exit) -> bool {
    was_ready && !matches!(life, Life::Retiring | Life::Going) && !is_clean(exit)
}

fn is_clean(exit: &Exit) -> bool {
    match exit {
        Exit::Status(status) => status.success(),
        Exit::Returned => true,
        Exit::Unknown | Exit::Error(_) | Exit::Panicked => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn a_worker_that_was_to_end_or_ends_well_is_not_missed() {
        let [well, failed, killed] =
            [0, 1 << 8, 9].map(|status| Exit::Status(ExitStatus::from_raw(status)));
        let exits = [&well, &Exit::Returned, &failed, &killed, &Exit::Panicked, &Exit::Unknown];
        let missed = |was_ready, life| exits.map(|exit| is_missed(was_ready, life, exit));
        for life in [Life::Serving, Life::Pending] {
            // `Pending` includes a worker that served and has closed its channel.
            assert_eq!(missed(true, life), [false, false, true, true, true, true]);
            assert_eq!(missed(false, life), [false; 6]);
        }
        for life in [Life::Retiring, Life::Going] {
            assert_eq!(missed(true, life), [false; 6]);
        }
    }
}
