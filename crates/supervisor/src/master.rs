//! The master's loop: it waits for signals, messages, deaths and timeouts, acts on them, and never
//! waits for anything else.

mod children;
mod clients;
mod discovery;
mod drain;
mod failover;
mod hot_keys;
mod hot_moves;
mod hot_waits;
mod key_moves;
mod log;
mod maintenance;
mod monitors;
mod moves;
mod operators;
mod reload;
mod relocations;
mod server_drains;
mod sources;
mod stop;
mod switch;
mod upgrade;
mod watch;
mod worker_queries;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use cashew_config::Snapshot;
use cashew_config::snapshot::Address;
use cashew_control::{Rest, ToChild, ToMaster};
use cashew_metrics::{EventKind, Layout, Segments, Shared, monotonic_ms};
use cashew_process::log::take_lost;
use cashew_process::{exec, is_out_of_room};
use rustix::event::PollFlags;
use tracing::{debug, info, warn};

use crate::activation;
use crate::audited::{self, Principal};
use crate::balance::Balance;
use crate::child::{Role, Spawn};
use crate::command::{Command, Nobody};
use crate::deal::Deal;
use crate::discovered::{Discovered, Known, Move};
use crate::epochs::Epochs;
use crate::found::Found;
use crate::handover;
use crate::interests::Interests;
use crate::joining::Joining;
use crate::limits::OpenFiles;
use crate::listeners::Listeners;
use crate::maps::Maps;
use crate::member::{Letter, Member};
use crate::monitors::Monitors;
use crate::notify::Notify;
use crate::pid_file::PidFile;
use crate::quotas::Quotas;
use crate::relocations::Relocations;
use crate::ring::{RingConfig, Rings};
use crate::sessions::Sessions;
use crate::signals::{Request, Signals};
use crate::watchdog::Watchdog;
use crate::worker_queries::{Asker, WorkerQueries};
use crate::{CommandLine, Error, Options, Program, Step, TakeOver};
use drain::Drain;
use failover::Failovers;
use hot_keys::Cooling;
use hot_moves::HotMoves;
use key_moves::KeyMoves;
use log::Log;
use maintenance::MaintenanceNotices;
use moves::Moves;
use operators::Operators;
use reload::Reload;
use switch::{InEffect, Next};
use upgrade::{Fallback, Upgrade};

/// The most messages read from one child per tick. A channel holds fewer, so one tick reads
/// everything that a dead child has sent.
const MESSAGES_PER_TURN: usize = 4096;
/// How long to wait for the addresses of an instance that was killed.
const ORPHANS_MAX: Duration = Duration::from_secs(5);

pub(crate) fn run(options: Options) -> Result<(), Error> {
    let mut master = Master::new(options)?;
    let result = master.run();
    master.kill_all();
    result
}

pub(crate) fn take_over(input: OwnedFd, options: TakeOver) -> Result<(), Error> {
    let (text, descriptors) = handover::receive(&input).step("take anything over")?;
    drop(input);
    let fallback = Fallback::new(text, descriptors);
    let program = options.program.clone();
    let mut master = match Master::resume(&fallback, options) {
        Ok(master) => master,
        Err(error) => return Err(fallback.give_back(&program, &error, None)),
    };
    master.may_go_back(fallback);
    let result = exec::release_signals().step("handle signals").and_then(|()| master.run());
    master.kill_all();
    match (result, master.take_fallback()) {
        (Err(error), Some(fallback)) => {
            Err(fallback.give_back(&program, &error, Some(master.asked())))
        }
        (result, _) => result,
    }
}

struct Master {
    spawn: Spawn,
    program: Program,
    files: OpenFiles,
    signals: Signals,
    conf_file: PathBuf,
    /// `None` once the instance is stopping: nobody should wait in a queue that will not be served.
    listeners: Option<Listeners>,
    deal: Deal,
    current: InEffect,
    /// The former epoch, while workers may still use it.
    previous: Option<InEffect>,
    /// The epoch being prepared, up to the commit.
    next: Option<Next>,
    /// The highest epoch number ever used, whether it took effect or not.
    last_epoch: u64,
    shared_memfd: Rc<OwnedFd>,
    shared: Shared,
    quotas: Quotas,
    rings: Rings,
    epochs: Epochs,
    watchdog: Watchdog,
    reload: Reload,
    moves: Moves,
    key_moves: KeyMoves,
    upgrade: Upgrade,
    operators: Operators,
    failovers: Failovers,
    maintenance: MaintenanceNotices,
    /// The instance is to stop.
    drain: Option<Drain>,
    /// It stops, as an operator's drain is over, and no signal has said so yet.
    stops_unsignalled: bool,
    joining: Joining,
    maps: Maps,
    found: Found,
    relocations: Relocations,
    notify: Notify,
    sessions: Sessions,
    monitors: Monitors,
    worker_queries: WorkerQueries,
    discovered: Discovered,
    balance: Balance,
    members: BTreeMap<Role, Member>,
    /// Workers of an earlier generation are replaced.
    generation: u64,
    /// The set of serving workers has changed, or should.
    is_unsettled: bool,
    /// When loads and quotas are checked next.
    look_at: Instant,
    cooling: Cooling,
    hot_moves: HotMoves,
    phase: Phase,
    /// The instance's start, not this program's.
    started: SystemTime,
    command_line: CommandLine,
    log: Log,
    pid_path: Option<PathBuf>,
    pid_file: Option<PidFile>,
    on_ready: Option<Box<dyn FnOnce()>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not all children have been ready yet; a failure of one fails the start.
    Starting,
    Serving,
    Stopping,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Signals,
    Channel(Role),
    Death(Role),
    Loaded,
    Trial,
    Operators,
    /// The status being computed under this number.
    Digested(u64),
    /// A server was asked for its role under this number.
    AskedRole(u64),
}

impl Master {
    fn new(options: Options) -> Result<Self, Error> {
        let Options {
            mut snapshot,
            conf_file,
            command_line,
            has_admin,
            spawn,
            program,
            standard_error,
            pid_file,
            on_ready,
        } = options;
        let now = Instant::now();
        // First of all, so that no early signal is lost.
        let signals = Signals::new().step("handle signals")?;
        for overruled in command_line.overrule(&mut snapshot.global) {
            warn!("{overruled}");
        }
        let log =
            Log::new(snapshot.global.log_level(), standard_error).step("keep standard error")?;
        // Before there is anything to tell.
        let (shared_memfd, shared) = Shared::create().step("make the memory of all processes")?;
        cashew_process::log::record_events(shared.events());
        let mut files = OpenFiles::new(matches!(spawn, Spawn::Processes(_)));
        match snapshot.global.max_open_files {
            Some(wanted) => files.want(wanted),
            None => files.raise_own(),
        }
        discovery::find_primaries(&mut snapshot);
        sources::find_at_start(&mut snapshot);
        relocations::find_at_start(&mut snapshot);
        let workers = workers_of(&snapshot);
        let given =
            activation::take().step("take the sockets that were opened for the instance")?;
        let patience = match Operators::were_abandoned(&snapshot, &conf_file) {
            true => ORPHANS_MAX,
            false => Duration::ZERO,
        };
        let listeners = Listeners::bind_after(&snapshot, workers, has_admin, given, patience)?;
        // The working directory may change.
        let conf_file = std::path::absolute(conf_file).step("find the configuration file")?;
        let operators = Operators::open(&snapshot, &conf_file)?;
        let quotas = Quotas::default().switched(&snapshot, |_| 0);
        let rings = Rings::new(RingConfig::of(&snapshot));
        let (metrics, segments) = Segments::create(&Layout::new(&snapshot))
            .step("make the shared memory of the metrics")?;
        // Before anybody serves.
        cashew_spool::mark_leftovers(&cashew_spool::targets(&snapshot, &[], &segments), &segments);
        let metrics = (Rc::new(metrics), Rc::new(segments));
        let watchdog = Watchdog::new(snapshot.global.worker_heartbeat_timeout_ms, now);
        let last_epoch = snapshot.epoch;
        let has_discovery = snapshot.needs_discovery();
        let current = InEffect::new(snapshot, BTreeMap::new(), metrics, &quotas, &rings, None)
            .step("seal the configuration")?;
        let ranks = (0..workers).map(|slot| (Role::Worker { slot }, slot));
        let admin = has_admin.then_some((Role::Admin, 0));
        let discovery = has_discovery.then_some((Role::Discovery, 0));
        let member = |(role, rank)| (role, Member::new(role, rank, now));
        Ok(Self {
            spawn,
            program,
            files,
            signals,
            conf_file,
            listeners: Some(listeners),
            deal: Deal::default(),
            current,
            previous: None,
            next: None,
            last_epoch,
            shared_memfd: Rc::new(shared_memfd),
            shared,
            quotas,
            rings,
            epochs: Epochs::default(),
            watchdog,
            reload: Reload::default(),
            moves: Moves::default(),
            key_moves: KeyMoves::default(),
            upgrade: Upgrade::default(),
            operators,
            failovers: Failovers::default(),
            maintenance: MaintenanceNotices::default(),
            drain: None,
            stops_unsignalled: false,
            joining: Joining::default(),
            maps: Maps::default(),
            found: Found::default(),
            relocations: Relocations::default(),
            notify: Notify::from_env(now),
            sessions: Sessions::default(),
            monitors: Monitors::default(),
            worker_queries: WorkerQueries::after(0),
            discovered: Discovered::default(),
            balance: Balance::new(),
            members: ranks.chain(admin).chain(discovery).map(member).collect(),
            generation: 0,
            is_unsettled: true,
            look_at: now,
            cooling: Cooling::default(),
            hot_moves: HotMoves::default(),
            phase: Phase::Starting,
            started: SystemTime::now(),
            command_line,
            log,
            pid_path: pid_file,
            pid_file: None,
            on_ready: Some(on_ready),
        })
    }

    fn run(&mut self) -> Result<(), Error> {
        loop {
            let now = Instant::now();
            self.handle_timeouts(now)?;
            self.settle(now);
            if self.is_over() {
                info!(kind = EventKind::InstanceStopped.name(), "stopped");
                return Ok(());
            }
            for source in self.wait().step("wait for events")? {
                let now = Instant::now();
                match source {
                    Source::Signals => self.handle_signals(now),
                    Source::Channel(role) => self.handle_channel(role, now)?,
                    Source::Death(role) => self.handle_death(role, now)?,
                    Source::Loaded => self.handle_loaded(now),
                    // Checked in `settle`.
                    Source::Trial => {}
                    Source::Operators => self.handle_operators(now),
                    Source::Digested(number) => self.handle_digested(number),
                    Source::AskedRole(number) => self.handle_role(number, now),
                }
                self.settle(now);
            }
        }
    }

    fn wait(&self) -> io::Result<Vec<Source>> {
        let mut interests = Interests::new();
        interests.add(Source::Signals, self.signals.as_fd(), PollFlags::IN);
        if let Some(loading) = self.reload.loading() {
            interests.add(Source::Loaded, loading, PollFlags::IN);
        }
        for event in self.upgrade.events().filter(|_| self.rings.is_quiet()) {
            interests.add(Source::Trial, event, PollFlags::IN);
        }
        self.operators.add_interests(&mut interests);
        self.failovers.add_interests(&mut interests);
        for (&role, member) in &self.members {
            let Some(running) = &member.running else { continue };
            let may_read = self.may_read(member);
            // Before its death: its last messages have the reason.
            if let Some((channel, has_mail)) = running.channel() {
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, may_read);
                flags.set(PollFlags::OUT, has_mail);
                if !flags.is_empty() {
                    interests.add(Source::Channel(role), channel, flags);
                }
            }
            // A child is not buried before all its messages are read.
            if may_read {
                interests.add(Source::Death(role), running.child.death(), PollFlags::IN);
            }
        }
        let timeout = self.poll_timeout().map(|at| at.saturating_duration_since(Instant::now()));
        interests.wait(timeout)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let is_undecided = self.epochs.is_undecided();
        // A start waits until it is known by which epoch.
        let awake = self.members.values().filter(|it| it.running.is_some() || !is_undecided);
        let slots = awake.filter_map(|member| member.slot.poll_timeout());
        let look_at = (self.phase == Phase::Serving).then_some(self.look_at);
        // What is due and is not done would be waited for without a pause.
        let changes = [
            self.reload.poll_timeout(),
            self.discovered.poll_timeout(),
            self.maps.poll_timeout().filter(|_| !self.reload.is_changing()),
            self.found.poll_timeout().filter(|_| self.reload.takes_lists()),
            self.relocations.poll_timeout().filter(|_| !self.reload.is_changing()),
        ];
        let changes = changes.into_iter().flatten().filter(|_| self.may_change());
        slots
            .chain(self.rings.poll_timeout())
            .chain(self.epochs.poll_timeout())
            .chain(changes)
            .chain(self.joining.poll_timeout())
            .chain(self.upgrade.poll_timeout())
            .chain(self.operators.poll_timeout())
            .chain(self.failovers.poll_timeout())
            .chain(self.drain.as_ref().map(Drain::ends_at))
            .chain(self.operators.server_drains.poll_timeout())
            .chain(self.notify.poll_timeout())
            .chain(self.watchdog.poll_timeout())
            .chain(self.worker_queries.poll_timeout())
            .chain(look_at)
            .min()
    }

    fn handle_timeouts(&mut self, now: Instant) -> Result<(), Error> {
        self.rings.handle_timeout(now);
        let members = &self.members;
        let running = |slot| members[&Role::Worker { slot }].running.as_ref();
        let has_served = |slot| running(slot).is_some_and(|running| running.is_ready);
        self.epochs.handle_timeout(has_served, now);
        self.operators.handle_timeout(now);
        self.end_drain(now);
        self.advance_server_drains(now);
        self.joining.handle_timeout(now);
        self.end_worker_queries(now);
        self.show_life(now);
        self.end_hangs(now);
        self.shared.add_log_lines_lost(take_lost());
        if self.phase == Phase::Serving && self.look_at <= now {
            self.look_at = now + crate::balance::INTERVAL;
            self.rebalance(now);
            self.repair_quotas(now);
            self.look_at_hot_keys(now);
            self.retry_pid_file();
        }
        self.handle_slots(now)
    }

    /// Does everything that the events made necessary, until there is nothing left to do.
    fn settle(&mut self, now: Instant) {
        self.deliver_rings(now);
        self.end_failovers(now);
        self.advance_reload(now);
        self.act_on_epochs(now);
        if std::mem::take(&mut self.is_unsettled) {
            self.deal_sockets(now);
            self.adjust_fleet(now);
        }
        self.forward_sessions(now);
        self.advance_upgrade(now);
        self.operators.deliver(now);
        self.tell_operators(now);
    }

    fn handle_channel(&mut self, role: Role, now: Instant) -> Result<(), Error> {
        self.member(role).flush(now);
        for _ in 0..MESSAGES_PER_TURN {
            if !self.may_read(&self.members[&role]) {
                break;
            }
            let Some((message, descriptors)) = self.member(role).receive(now) else { break };
            self.handle_message(role, message, descriptors, now)?;
        }
        Ok(())
    }

    /// Handles the unread messages of a dead child. Returns whether those were all: its sessions
    /// may have to wait for room.
    fn handle_last_words(&mut self, role: Role, now: Instant) -> Result<bool, Error> {
        for _ in 0..MESSAGES_PER_TURN {
            if !self.may_read(&self.members[&role]) {
                return Ok(false);
            }
            let Some((message, descriptors)) = self.member(role).receive(now) else { break };
            self.handle_message(role, message, descriptors, now)?;
        }
        Ok(true)
    }

    fn handle_message(
        &mut self,
        role: Role,
        message: ToMaster,
        descriptors: Option<Vec<OwnedFd>>,
        now: Instant,
    ) -> Result<(), Error> {
        match (message, role) {
            (ToMaster::Ready, _) => return self.handle_ready(role, now),
            (ToMaster::Failed { why }, _) => {
                let member = self.member(role);
                if let Some(running) = &mut member.running {
                    running.failed = Some(why);
                }
                member.slot.mark_dying(now);
                self.is_unsettled = true;
            }
            (ToMaster::Held { pool, version }, Role::Worker { slot }) => {
                self.rings.held(slot, pool, version, now);
            }
            (ToMaster::ServerDown { pool, server, why }, Role::Worker { slot }) => {
                debug!("worker {slot}: pool {pool}: server {server} is down: {why}");
                if let Some((pool, server)) = self.locate(slot, pool, server) {
                    self.rings.server_down(pool, server, why, now);
                }
            }
            (ToMaster::NotPrimary { pool, server }, Role::Worker { slot }) => {
                if let Some((pool, server)) = self.locate(slot, pool, server) {
                    self.ask_for_primary(pool, server, now);
                }
            }
            (ToMaster::MapDoubted { pool }, Role::Worker { slot }) => {
                self.doubt_map(slot, pool, now);
            }
            (ToMaster::Operate { number, command, place }, Role::Admin) => {
                self.operate(number, &command, place, now);
            }
            (ToMaster::Successor { pool, from, to }, Role::Discovery) => {
                self.follow_successor(&pool, &from, &to, now);
            }
            (ToMaster::ServerUp { pool, server }, Role::Worker { slot }) => {
                if let Some((pool, server)) = self.locate(slot, pool, server) {
                    self.rings.server_up(pool, server, now);
                }
            }
            (ToMaster::Moved { epoch, servers }, Role::Worker { .. }) => {
                self.servers_moved(epoch, servers);
            }
            (ToMaster::Prepared { epoch }, Role::Worker { slot }) => {
                self.epochs.prepared(slot, epoch, now);
            }
            (ToMaster::Refused { epoch, why }, Role::Worker { slot }) => {
                self.epochs.refused(slot, epoch, &why);
            }
            (ToMaster::Paused { epoch, unfinished }, Role::Worker { slot }) => {
                self.epochs.paused(slot, epoch, unfinished, now);
            }
            (ToMaster::Committed { epoch }, Role::Worker { slot }) => {
                self.epochs.committed(slot, epoch, now);
            }
            // No worker waits for the admin or for discovery: they serve no clients, and take part in
            // order.
            (ToMaster::Prepared { .. }, Role::Admin | Role::Discovery) => {}
            (ToMaster::Committed { .. }, Role::Discovery) => {}
            (ToMaster::Committed { epoch }, Role::Admin) => self.admin_notified(epoch),
            (ToMaster::Refused { why, .. }, Role::Admin) => {
                warn!("admin cannot apply the new configuration and is restarted: {why}");
                self.restart(Role::Admin, now);
            }
            (ToMaster::Refused { why, .. }, Role::Discovery) => {
                warn!("discovery cannot apply the new configuration and is restarted: {why}");
                self.restart(Role::Discovery, now);
            }
            (
                ToMaster::Primary { pool, server, host, port, config_epoch, why },
                Role::Discovery,
            ) => {
                let to = Address { host, port };
                self.primary_moved(Move { pool, server, to, config_epoch, why });
            }
            (
                ToMaster::Group { pool, server, state, config_epoch, primary, lineage },
                Role::Discovery,
            ) => {
                self.tell_of_group(&pool, &server, &state, now);
                self.discovered.group(pool.clone(), server.clone(), state, config_epoch);
                self.publish_group(&pool, &server, now);
                // A discovery of an older version does not tell.
                if let Some(primary) = primary {
                    self.know(Known { pool, server, primary, config_epoch, lineage });
                }
            }
            (ToMaster::Replicas { pool, server, primary, replicas }, Role::Discovery) => {
                let snapshot = &self.current.snapshot;
                self.joining.told((pool, server), primary, replicas, snapshot, now);
            }
            (ToMaster::Sentinel { pool, host, port, failure }, Role::Discovery) => {
                let address = Address { host, port };
                self.discovered.sentinel(pool.clone(), address.clone(), failure);
                self.publish_sentinel(pool, &address, now);
            }
            (ToMaster::Cluster { pool }, Role::Discovery) => {
                self.map_told(pool, descriptors.unwrap_or_default(), now);
            }
            (ToMaster::Seed { pool, seed, failure }, Role::Discovery) => {
                self.maps.seed(pool.clone(), seed.clone(), failure);
                self.publish_seed(pool, &seed, now);
            }
            (ToMaster::Found, Role::Discovery) => {
                self.found_told(descriptors.unwrap_or_default(), now);
            }
            (ToMaster::Source { json }, Role::Discovery) => self.source_told(json, now),
            (ToMaster::Relocated { json }, Role::Discovery) => self.relocated_told(&json),
            (ToMaster::Maintained { json }, Role::Discovery) => self.maintained_told(json, now),
            (ToMaster::Migrated { number, failure, notes }, Role::Discovery) => {
                self.migrated(number, (failure, notes), now);
            }
            (ToMaster::KeysLookedAt { number, failure, pool }, Role::Discovery) => {
                self.keys_looked_at(number, failure, pool, now);
            }
            (ToMaster::CaughtUp { epoch, failure }, Role::Discovery) => {
                self.caught_up(epoch, failure, now);
            }
            (ToMaster::Moves { json }, Role::Discovery) => self.take_moves_told(json, now),
            (ToMaster::HandOver { session }, Role::Worker { slot }) => {
                // It continues without its socket: the adopting worker uncounts it.
                self.take_session(slot, session, descriptors.unwrap_or_default(), now);
            }
            (ToMaster::Ask { ticket, pool, by }, Role::Worker { slot }) => {
                let asker = Asker { slot, ticket };
                match descriptors {
                    Some(question) => self.ask(asker, pool, by, question, now),
                    None => self.reply_to_asker(asker, Rest::Missing, Vec::new(), now),
                }
            }
            (ToMaster::Answer { number }, Role::Worker { slot }) => {
                // Without the answer the asker gets "missing" when its time is over.
                if let Some(answer) = descriptors {
                    self.take_answer(number, slot, answer, now);
                }
            }
            (ToMaster::Adopted, Role::Worker { .. }) => {
                if let Some(running) = &mut self.member(role).running {
                    running.adopted();
                }
            }
            (ToMaster::Kept, Role::Worker { .. }) => {
                if let Some(running) = &mut self.member(role).running {
                    running.kept();
                }
            }
            (ToMaster::Monitors { pool, any }, Role::Worker { slot }) => {
                self.take_monitors(slot, pool, any, now);
            }
            (ToMaster::Watching { pool }, Role::Worker { slot }) => {
                self.take_watching(slot, &pool, now);
            }
            (ToMaster::Overheard { pool, lines, missed }, Role::Worker { slot }) => {
                self.relay_observed(slot, &pool, &lines, missed, now);
            }
            (
                message @ (ToMaster::Held { .. }
                | ToMaster::ServerDown { .. }
                | ToMaster::NotPrimary { .. }
                | ToMaster::MapDoubted { .. }
                | ToMaster::ServerUp { .. }
                | ToMaster::Moved { .. }
                | ToMaster::Paused { .. }
                | ToMaster::Monitors { .. }
                | ToMaster::Watching { .. }
                | ToMaster::Overheard { .. }
                | ToMaster::HandOver { .. }
                | ToMaster::Ask { .. }
                | ToMaster::Answer { .. }
                | ToMaster::Adopted
                | ToMaster::Kept),
                Role::Admin | Role::Discovery,
            )
            | (
                message @ (ToMaster::Primary { .. }
                | ToMaster::Group { .. }
                | ToMaster::Replicas { .. }
                | ToMaster::Successor { .. }
                | ToMaster::Migrated { .. }
                | ToMaster::KeysLookedAt { .. }
                | ToMaster::CaughtUp { .. }
                | ToMaster::Moves { .. }
                | ToMaster::Cluster { .. }
                | ToMaster::Seed { .. }
                | ToMaster::Found
                | ToMaster::Source { .. }
                | ToMaster::Relocated { .. }
                | ToMaster::Maintained { .. }
                | ToMaster::Sentinel { .. }),
                Role::Admin | Role::Worker { .. },
            )
            | (message @ ToMaster::Operate { .. }, Role::Discovery | Role::Worker { .. }) => {
                warn!("unexpected message from {role}: {message:?}")
            }
        }
        Ok(())
    }

    fn started(&mut self) -> Result<(), Error> {
        self.phase = Phase::Serving;
        let pools = self.current.snapshot.pools.len();
        info!(
            kind = EventKind::InstanceServes.name(),
            pools,
            workers = workers_of(&self.current.snapshot),
            "serving"
        );
        self.write_pid_file()?;
        self.save_primaries();
        self.save_found();
        if let Some(on_ready) = self.on_ready.take() {
            on_ready();
        }
        self.notify.ready(&self.summary());
        self.end_take_over(Instant::now());
        Ok(())
    }

    /// A full disk must not prevent serving: the file is written when there is room.
    fn write_pid_file(&mut self) -> Result<(), Error> {
        let Some(path) = self.pid_path.take() else { return Ok(()) };
        match PidFile::write(&path) {
            Ok(file) => self.pid_file = Some(file),
            Err(error) if is_out_of_room(&error) => {
                let path = path.display();
                warn!("pid file {path} is written when there is room for it: {error}");
            }
            Err(source) => return Err(Error::PidFile { path, source }),
        }
        if self.pid_file.is_none() {
            self.pid_path = Some(path);
        }
        Ok(())
    }

    /// Retries the pid file that could not be written.
    fn retry_pid_file(&mut self) {
        let Some(path) = &self.pid_path else { return };
        if let Ok(file) = PidFile::write(path) {
            info!("pid file {} is written", path.display());
            self.pid_file = Some(file);
            self.pid_path = None;
        }
    }

    fn handle_signals(&mut self, now: Instant) {
        let requests = self.signals.receive();
        self.handle_requests(requests, now);
    }

    fn command_by_signal(&mut self, name: &str, command: Command, now: Instant) {
        let (audit, asker) = (self.shared.audit(), Principal::signal(name));
        let reply = audited::audited(audit, asker, &command, Box::new(Nobody));
        self.command(command, reply, now);
    }

    fn handle_requests(&mut self, requests: Vec<Request>, now: Instant) {
        for request in requests {
            match request {
                Request::Stop => {
                    if self.phase != Phase::Stopping {
                        audited::signalled(&self.shared.audit(), "SIGTERM", "stop");
                    }
                    self.stop_by_signal(now);
                }
                Request::StopNow => {
                    audited::signalled(&self.shared.audit(), "SIGINT", "stop at once");
                    self.stop_now(now, "SIGINT");
                }
                Request::LevelUp => self.log_more(now),
                Request::LevelDown => self.log_less(now),
                Request::LogReopen => self.reopen_log(now),
                Request::Reload => {
                    self.reopen_log(now);
                    self.command_by_signal("SIGHUP", Command::Reload { dry_run: false }, now);
                }
                Request::Upgrade => {
                    self.command_by_signal("SIGUSR2", Command::Upgrade { binary: None }, now);
                }
            }
        }
    }

    /// Sends the rings' messages to the workers.
    fn deliver_rings(&mut self, now: Instant) {
        let (mut held, mut released) = (BTreeSet::new(), BTreeSet::new());
        while let Some((slot, message)) = self.rings.poll_message() {
            match &message {
                ToChild::Hold { pool, .. } if held.insert(*pool) => {
                    self.tell_of_promotions(*pool, now);
                }
                ToChild::Release { pool, .. } => drop(released.insert(*pool)),
                _ => {}
            }
            self.post(Role::Worker { slot }, message, Vec::new(), now);
        }
        for pool in released {
            self.publish_topology(pool, now);
            self.tell_of_promoted(pool, now);
        }
        self.publish_open();
    }

    /// Tells the statistics which pools are open.
    fn publish_open(&self) {
        let (segments, pools) = (&self.current.segments, &self.current.snapshot.pools);
        for (index, _) in (0..).zip(pools).filter(|(_, pool)| pool.fail_open_percent < 100) {
            let pool = segments.layout().pool(index as usize);
            let is_open = self.rings.is_open(index);
            if segments.opened_ms(pool).is_some() != is_open {
                segments.set_opened_ms(pool, is_open.then(monotonic_ms));
            }
        }
    }

    fn post(&mut self, role: Role, message: ToChild, descriptors: Vec<Rc<OwnedFd>>, now: Instant) {
        if let Some(member) = self.members.get_mut(&role) {
            member.post(Letter { message, descriptors }, now);
        }
    }

    fn post_all(&mut self, message: &ToChild, descriptors: &[Rc<OwnedFd>], now: Instant) {
        for member in self.members.values_mut() {
            let descriptors = descriptors.to_vec();
            member.post(Letter { message: message.clone(), descriptors }, now);
        }
    }

    fn member(&mut self, role: Role) -> &mut Member {
        self.members.get_mut(&role).expect("events come from members")
    }

    /// The workers, with their slots.
    fn workers(&self) -> impl Iterator<Item = (u32, &Member)> {
        self.members.iter().filter_map(|(&role, member)| match role {
            Role::Worker { slot } => Some((slot, member)),
            Role::Admin | Role::Discovery => None,
        })
    }
}

/// The number of workers that a snapshot asks for.
fn workers_of(snapshot: &Snapshot) -> u32 {
    snapshot.global.worker_processes.max(1)
}
