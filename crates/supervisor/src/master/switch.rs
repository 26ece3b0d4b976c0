//! Puts another epoch into effect.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use cashew_config::Snapshot;
use cashew_config::snapshot::{Endpoint, Global, Pool};
use cashew_control::{Epoch, PoolState, ToChild};
use cashew_metrics::{EventKind, Layout, Segments, monotonic_ms};
use cashew_process::explain_limit;
use cashew_tls::TicketSecret;
use tracing::{info, warn};

use super::log::Destination;
use super::{Master, key_moves, moves, workers_of};
use crate::child::Role;
use crate::epochs::{Output, Step};
use crate::listeners::Bound;
use crate::quotas::Quotas;
use crate::ring::{RingConfig, Rings};
use crate::unix_socket::UnixSocket;

/// Servers with changed addresses beyond this number are counted, not named.
const MOVED_SHOWN_MAX: usize = 100;

/// What all children work by.
pub(super) struct InEffect {
    /// Shared with the thread that loads the next one.
    pub(super) snapshot: Arc<Snapshot>,
    /// The [`Epoch`], as workers get it.
    pub(super) sealed: Rc<OwnedFd>,
    /// The same for discovery: without listeners' keys and what tickets are made by.
    pub(super) for_discovery: Rc<OwnedFd>,
    /// The same for the admin process: without any files of TLS.
    pub(super) public: Rc<OwnedFd>,
    tickets: Option<TicketSecret>,
    pub(super) metrics: Rc<OwnedFd>,
    pub(super) segments: Rc<Segments>,
}

/// An epoch that is being prepared, with all that the master needs for it.
pub(super) struct Next {
    in_effect: InEffect,
    bound: Bound,
    /// The next operators' socket, unless it stays.
    control: Option<UnixSocket>,
    /// The next destination of the log, unless it stays.
    log: Option<Destination>,
    quotas: Quotas,
    /// Current addresses of server hosts, of those that were looked up.
    addresses: BTreeMap<String, Vec<IpAddr>>,
    /// Servers to which some worker has a connection at an address that the host no longer resolves
    /// to.
    moved: BTreeSet<(u32, u32)>,
}

impl Next {
    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.in_effect.snapshot
    }
}

impl InEffect {
    pub(super) fn new(
        snapshot: Snapshot,
        addresses: BTreeMap<String, Vec<IpAddr>>,
        (metrics, segments): (Rc<OwnedFd>, Rc<Segments>),
        quotas: &Quotas,
        rings: &Rings,
        tickets: Option<TicketSecret>,
    ) -> io::Result<Self> {
        let state = |(index, pool): (u32, &Pool)| PoolState {
            quota: quotas.number(&pool.name).expect("the quotas are for these pools"),
            ring_version: rings.version(index),
            topology: rings.topology(index),
        };
        let pools = (0..).zip(&snapshot.pools).map(state).collect();
        // There is one from the first snapshot on that has a use for it, and as long as the instance lives.
        let needs_tickets = snapshot.pools.iter().any(|pool| pool.tls.is_some());
        let tickets = match tickets {
            Some(tickets) => Some(tickets.brought_forward()),
            None => needs_tickets.then(TicketSecret::random).flatten(),
        };
        let mut epoch = Epoch { snapshot, pools, addresses, tickets: tickets.clone() };
        let sealed = Rc::new(epoch.seal()?);
        let snapshot = Arc::new(epoch.snapshot.clone());
        let mut for_discovery = Rc::clone(&sealed);
        if tickets.is_some() {
            epoch.tickets = None;
            epoch.snapshot.forget_listeners_tls_files();
            for_discovery = Rc::new(epoch.seal()?);
        }
        let mut public = Rc::clone(&for_discovery);
        if snapshot.has_secured_servers() {
            epoch.snapshot.forget_tls_files();
            public = Rc::new(epoch.seal()?);
        }
        Ok(Self { snapshot, sealed, for_discovery, public, tickets, metrics, segments })
    }

    pub(super) fn tickets(&self) -> Option<TicketSecret> {
        self.tickets.clone()
    }

    /// Carries the counters of a slot that nobody writes to now.
    pub(super) fn carry(&self, from: &Self, slot: u32) {
        if !Rc::ptr_eq(&self.segments, &from.segments) {
            self.segments.carry(&from.segments, &from.snapshot, &self.snapshot, slot);
        }
    }
}

impl Master {
    /// Creates everything that the new epoch needs. Nothing changes yet, except that groups of
    /// sockets may have grown.
    pub(super) fn prepare_next(
        &mut self,
        mut snapshot: Snapshot,
        addresses: BTreeMap<String, Vec<IpAddr>>,
    ) -> Result<Next, String> {
        let workers = workers_of(&snapshot);
        let listeners = self.listeners.as_mut().ok_or("the instance is stopping")?;
        let bound = listeners.bind_new(&snapshot, workers).map_err(|error| error.to_string())?;
        let grown = listeners.grow(&snapshot, workers).map_err(|error| error.to_string());
        // Even if not all did: those that have already listen.
        self.is_unsettled = true;
        self.allow_mail();
        grown?;
        let control = self.operators.bind_next(&snapshot, &self.conf_file)?;
        let log = self.open_log(&snapshot.global)?;
        self.last_epoch += 1;
        snapshot.epoch = self.last_epoch;
        self.discovered.fill(&mut snapshot);
        let quotas = self.quotas.switched(&snapshot, |quota| self.shared.taken(quota));
        let added = quotas.numbers().iter().filter(|(pool, _)| self.quotas.number(pool).is_none());
        for (_, &quota) in added {
            // The number may have belonged to another pool whose clients were paused.
            self.shared.set_pause(quota, None, monotonic_ms());
        }
        let rings = self.rings.switched(RingConfig::of(&snapshot));
        let metrics = self
            .metrics_for(&snapshot)
            .map_err(explain_limit)
            .map_err(|error| format!("cannot make the shared memory of the metrics: {error}"))?;
        let tickets = self.current.tickets();
        let in_effect =
            InEffect::new(snapshot, addresses.clone(), metrics, &quotas, &rings, tickets)
                .map_err(explain_limit)
                .map_err(|error| format!("cannot seal the configuration: {error}"))?;
        let moved = BTreeSet::new();
        Ok(Next { in_effect, bound, control, log, quotas, addresses, moved })
    }

    /// The current metrics, if the snapshot has the same pools and servers.
    fn metrics_for(&self, snapshot: &Snapshot) -> io::Result<(Rc<OwnedFd>, Rc<Segments>)> {
        let layout = Layout::new(snapshot);
        let current = &self.current.segments;
        if layout.fingerprint() == current.layout().fingerprint() {
            return Ok((Rc::clone(&self.current.metrics), Rc::clone(current)));
        }
        let (metrics, segments) = Segments::create(&layout)?;
        segments.use_slot(current.slots() - 1);
        // Workers may go by it before discovery has written there.
        segments.carry_board(current, &self.current.snapshot, snapshot);
        cashew_spool::mark_leftovers(&cashew_spool::targets(snapshot, &[], &segments), &segments);
        Ok((Rc::new(metrics), Rc::new(segments)))
    }

    /// Starts the change with all running children.
    pub(super) fn begin_switch(
        &mut self,
        next: Next,
        only_if_moved: bool,
        drain_max_ms: u64,
        now: Instant,
    ) {
        let runs = self.workers().filter(|(_, member)| member.running.is_some());
        let workers: Vec<u32> = runs.map(|(slot, _)| slot).collect();
        let snapshot = &next.in_effect.snapshot;
        let mut drain_ms = snapshot.global.reload_drain_timeout_ms.min(drain_max_ms);
        if self.key_moves.is_under_way() {
            drain_ms = drain_ms.min(key_moves::DRAIN_MAX_MS);
            self.epochs.pause_within(key_moves::PAUSE_MAX);
        }
        let is_gated = !moves::sides_changed(&self.current.snapshot, snapshot).is_empty()
            || self.key_moves.is_under_way();
        self.epochs.expect(snapshot.pools.iter().map(|pool| pool.servers.len()).sum());
        self.epochs.begin(snapshot.epoch, workers, (drain_ms, is_gated), now);
        self.next = Some(next);
        if only_if_moved {
            self.epochs.only_if_wanted();
        }
        self.publish_prepare(Role::Admin, now);
        self.publish_prepare(Role::Discovery, now);
    }

    pub(super) fn act_on_epochs(&mut self, now: Instant) {
        while let Some(output) = self.epochs.poll_output() {
            match output {
                Output::Send(slot, step) => self.send_step(Role::Worker { slot }, step, now),
                Output::CatchUp => self.catch_up(now),
                Output::Switch { unfinished } => {
                    if unfinished > 0 {
                        warn!(
                            kind = EventKind::RequestsCut.name(),
                            "{unfinished} requests were not answered in time before the change"
                        );
                    }
                    self.report_moved();
                    self.switch(now);
                }
                Output::Condemn(slot, why) => {
                    self.condemn(Role::Worker { slot }, why, now);
                }
                Output::Done => {
                    let stats = |it: InEffect| it.snapshot.global.stats_listen();
                    let before = self.previous.as_ref().map(|it| Arc::clone(&it.snapshot));
                    let stats_before = self.previous.take().map(stats);
                    if stats_before != Some(self.current.snapshot.global.stats_listen()) {
                        self.publish_stats_socket(now);
                    }
                    // Only now: a worker's new counters are lower than the old ones until it has
                    // carried them over.
                    self.send_step(Role::Admin, Step::Commit, now);
                    self.send_step(Role::Discovery, Step::Commit, now);
                    self.adjust_discovery(now);
                    self.rings.thaw(now);
                    self.is_unsettled = true;
                    self.reload_done(before, now);
                }
                Output::Needless => {
                    self.end_change(now);
                    self.reload_needless();
                }
                Output::Aborted(why) => {
                    self.tell_of_no_side(&why);
                    self.end_change(now);
                    self.reload_failed(&why, now);
                }
            }
        }
    }

    /// The epoch in effect stays.
    fn end_change(&mut self, now: Instant) {
        self.next = None;
        self.send_step(Role::Admin, Step::Abort, now);
        self.send_step(Role::Discovery, Step::Abort, now);
        self.rings.thaw(now);
        // The fleet was not adjusted meanwhile.
        self.is_unsettled = true;
    }

    pub(super) fn servers_moved(&mut self, epoch: u64, servers: Vec<(u32, u32)>) {
        if let Some(next) = &mut self.next
            && next.in_effect.snapshot.epoch == epoch
        {
            next.moved.extend(servers);
            self.epochs.wanted(epoch);
        }
    }

    /// Reports the servers whose hosts resolve to other addresses and that are reconnected.
    fn report_moved(&mut self) {
        let Some(next) = &self.next else { return };
        let pools = &next.in_effect.snapshot.pools;
        let line = |&(pool, server): &(u32, u32)| {
            let pool = pools.get(pool as usize)?;
            let server = pool.servers.get(server as usize)?;
            let Endpoint::Tcp { host, .. } = &server.endpoint else { return None };
            let found: Vec<String> =
                next.addresses.get(host)?.iter().map(IpAddr::to_string).collect();
            let (name, pool, found) = (&server.name, &pool.name, found.join(", "));
            let line = format!("server '{name}' of pool '{pool}': {host} now resolves to {found}");
            info!(kind = EventKind::ServerMoved.name(), pool, server = name, "{line}");
            Some(line)
        };
        let mut lines: Vec<String> =
            next.moved.iter().take(MOVED_SHOWN_MAX).filter_map(line).collect();
        let more = next.moved.len().saturating_sub(MOVED_SHOWN_MAX);
        if more > 0 {
            let line = format!("{more} more servers are at other addresses now");
            info!(kind = EventKind::ServerMoved.name(), "{line}");
            lines.push(line);
        }
        for line in lines {
            self.reload.line(&line);
        }
    }

    fn send_step(&mut self, role: Role, step: Step, now: Instant) {
        let epoch = self.last_epoch;
        let message = match step {
            Step::Prepare => return self.publish_prepare(role, now),
            Step::Pause { drain_ms } => ToChild::Pause { epoch, drain_ms },
            Step::Commit => ToChild::Commit { epoch },
            Step::Abort => ToChild::Abort { epoch },
        };
        self.post(role, message, Vec::new(), now);
    }

    fn publish_prepare(&mut self, role: Role, now: Instant) {
        let (Some(next), Some(member)) = (&self.next, self.members.get(&role)) else { return };
        let InEffect { snapshot, sealed, for_discovery, public, metrics, .. } = &next.in_effect;
        let sealed = match role {
            Role::Worker { .. } => sealed,
            Role::Discovery => for_discovery,
            Role::Admin => public,
        };
        let (epoch, workers) = (snapshot.epoch, workers_of(snapshot));
        let prepare = ToChild::Prepare { epoch, rank: member.rank, workers };
        let memfds = vec![Rc::clone(sealed), Rc::clone(metrics)];
        self.post(role, prepare, memfds, now);
    }

    /// Puts the next epoch into effect. The workers commit after this, so no message that refers to
    /// it may be sent to them before.
    fn switch(&mut self, now: Instant) {
        let Next { in_effect, bound, control, log, quotas, .. } =
            self.next.take().expect("it was begun with one");
        self.deliver_rings(now);
        self.rings.switch(RingConfig::of(&in_effect.snapshot));
        if let Some(listeners) = &mut self.listeners {
            listeners.adopt(bound, &in_effect.snapshot);
        }
        if let Some(socket) = control {
            self.operators.move_to(socket);
        }
        self.quotas = quotas;
        let previous = std::mem::replace(&mut self.current, in_effect);
        let living = |slot| {
            let member = self.members.get(&Role::Worker { slot });
            member.is_some_and(|member| member.running.is_some())
        };
        for slot in (0..previous.segments.slots()).filter(|&slot| !living(slot)) {
            self.current.carry(&previous, slot);
        }
        let (old, new) = (&previous.snapshot.global, &self.current.snapshot.global);
        if is_for_new_processes(old, new) {
            self.generation += 1;
        }
        if let Some(wanted) =
            new.max_open_files.filter(|_| old.max_open_files != new.max_open_files)
        {
            self.files.want(wanted);
        }
        self.watchdog.set_timeout(new.worker_heartbeat_timeout_ms, now);
        self.allow_mail();
        self.follow_log(&previous.snapshot.global, log, now);
        self.previous = Some(previous);
        self.is_unsettled = true;
    }

    /// The epoch by which a worker counts.
    pub(super) fn epoch_of(&self, slot: u32) -> &InEffect {
        match &self.previous {
            Some(previous) if self.epochs.is_behind(slot) => previous,
            _ => &self.current,
        }
    }

    /// The pool and server that a worker refers to; their indices may have changed.
    pub(super) fn locate(&self, slot: u32, pool: u32, server: u32) -> Option<(u32, u32)> {
        let meant = &self.epoch_of(slot).snapshot;
        if Arc::ptr_eq(meant, &self.current.snapshot) {
            return Some((pool, server));
        }
        let meant = meant.pools.get(pool as usize)?;
        let name = &meant.servers.get(server as usize)?.name;
        let (pool, found) =
            (0..).zip(&self.current.snapshot.pools).find(|(_, pool)| pool.name == meant.name)?;
        let (server, _) = (0..).zip(&found.servers).find(|(_, server)| server.name == *name)?;
        Some((pool, server))
    }
}

/// Whether an option has changed that only new processes apply.
fn is_for_new_processes(old: &Global, new: &Global) -> bool {
    let taken_on = |global: &Global| {
        (global.io_engine, global.max_open_files, global.user.clone(), global.group.clone())
    };
    taken_on(old) != taken_on(new)
}
