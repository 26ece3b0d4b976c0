//! Becoming another version of the program, and back again if that one does not get ready.
//!
//! The running program first tries the next one ([`Trial`]), waits until the instance is idle, and
//! becomes it: the process keeps its id and its children. The next program starts its own workers
//! beside those that serve. It neither reads from nor writes to the old ones. If all of its own get
//! ready, the old ones retire, and their sessions move. If not, it kills its own and becomes the
//! previous program again, with the unchanged state that it was given.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use cashew_control::{SESSION_VERSION, ToChild, VERSION};
use cashew_metrics::{EventKind, Layout, SLOTS_MAX, Segments, monotonic_ms};
use cashew_process::exec;
use rustix::fs::{Mode, OFlags};
use tracing::{error, info, warn};

use super::failover::Failovers;
use super::hot_keys::Cooling;
use super::hot_moves::HotMoves;
use super::key_moves::KeyMoves;
use super::log::Log;
use super::maintenance::MaintenanceNotices;
use super::moves::Moves;
use super::operators::Operators;
use super::reload::Reload;
use super::switch::InEffect;
use super::{Master, Phase, workers_of};
use crate::audited::upgraded;
use crate::child::{Role, Spawn};
use crate::command::Reply;
use crate::deal::Deal;
use crate::discovered::Discovered;
use crate::found::Found;
use crate::joining::Joining;
use crate::limits::OpenFiles;
use crate::listeners::Listeners;
use crate::maps::Maps;
use crate::member::{Letter, Member, Running};
use crate::notify::Notify;
use crate::pid_file::PidFile;
use crate::quotas::Quotas;
use crate::rehearsal::{Kit, understands_sessions};
use crate::relocations::Relocations;
use crate::ring::{RingConfig, Rings};
use crate::signals::Signals;
use crate::slots::KILL_GRACE;
use crate::state::{FORMAT, Head, Pack, REHEARSED, State, Unpack};
use crate::status::Outcome;
use crate::trial::{Candidate, Trial};
use crate::watchdog::Watchdog;
use crate::worker_queries::WorkerQueries;
use crate::{Error, Program, Step, TakeOver};

/// How long the instance may take to become idle, once a program has passed its trial.
const REST_TIMEOUT: Duration = Duration::from_secs(10);

/// The upgrade under way, and the outcome of the last one.
#[derive(Default)]
pub(super) struct Upgrade {
    stage: Stage,
    askers: Vec<Box<dyn Reply>>,
    /// The way back while there is one: this program has taken over and is not ready yet.
    fallback: Option<Fallback>,
    /// Workers that serve meanwhile, untouched.
    held: BTreeMap<Role, Member>,
    /// Since when workers hand nothing over: nobody would take sessions before the next program
    /// serves, or this one continues.
    kept_since: Option<Instant>,
    /// Rings and epochs do not change while there are workers that cannot follow.
    frozen: bool,
    /// How the last one ended.
    pub(super) last: Option<Outcome>,
}

#[derive(Default)]
enum Stage {
    #[default]
    Idle,
    Trying(Trial),
    /// Waits until nothing is under way.
    Resting {
        candidate: Candidate,
        deadline: Instant,
    },
}

/// The whole handover, to hand it back.
pub(crate) struct Fallback {
    text: Vec<u8>,
    descriptors: Unpack,
}

impl Fallback {
    pub(crate) fn new(text: Vec<u8>, descriptors: Vec<OwnedFd>) -> Self {
        Self { text, descriptors: Unpack::new(descriptors) }
    }

    /// Becomes the previous program. Returns only if that fails. `asked` has the commands received
    /// meanwhile, if any could be.
    pub(crate) fn give_back(
        self,
        program: &Program,
        failed: &Error,
        asked: Option<Asked<'_>>,
    ) -> Error {
        let why = &match failed {
            Error::TakeOver(why) => why.clone(),
            other => other.to_string(),
        };
        error!(
            kind = EventKind::UpgradeFailed.name(),
            "the upgrade has failed, the previous program continues: {why}"
        );
        // A signal that came before the program is ready to take it would end the instance.
        if let Err(error) = exec::hold_signals() {
            warn!("cannot hold signals back: {error}");
        }
        let mut pack = self.descriptors.repack();
        let wanted = asked.and_then(|Asked { signals, files, reload }| {
            signals.put_back();
            files.restore();
            let wanted = reload.wanted(&mut pack);
            wanted.inspect_err(|error| warn!("pending reload commands are lost: {error}")).ok()
        });
        let result = Head::read(&self.text).and_then(|head| {
            if head.failed.is_some() {
                return Err("it has handed this back already".into());
            }
            let before = self.descriptors.get(head.program)?;
            let text = State::write_failed(&self.text, why, wanted.as_ref());
            Err(become_program(&before, program, &text, &pack).to_string())
        });
        let Err::<Infallible, _>(error) = result;
        Error::TakeOver(format!("{why}; and the previous program cannot continue: {error}"))
    }
}

/// Commands for a program that has not carried them out.
pub(crate) struct Asked<'a> {
    signals: &'a mut Signals,
    files: &'a OpenFiles,
    reload: &'a Reload,
}

impl Upgrade {
    pub(super) fn events(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let trial = match &self.stage {
            Stage::Trying(trial) => Some(trial),
            Stage::Idle | Stage::Resting { .. } => None,
        };
        trial.into_iter().flat_map(Trial::events)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Trying(trial) => Some(trial.poll_timeout()),
            Stage::Resting { deadline, .. } => Some(*deadline),
            Stage::Idle => None,
        }
    }

    /// Whether this program has taken over and its own workers are not ready yet.
    pub(super) fn is_taking_over(&self) -> bool {
        self.fallback.is_some()
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.is_taking_over() || !matches!(self.stage, Stage::Idle)
    }

    /// Whether there are workers that cannot take part in a change.
    pub(super) fn has_frozen(&self) -> bool {
        self.frozen
    }

    /// Whether workers were told to hand nothing over.
    pub(super) fn is_keeping(&self) -> bool {
        self.kept_since.is_some()
    }

    /// Whether no change that affects workers may begin.
    pub(super) fn is_in_the_way(&self) -> bool {
        self.frozen || matches!(self.stage, Stage::Resting { .. })
    }
}

impl Master {
    pub(super) fn begin_upgrade(
        &mut self,
        binary: Option<PathBuf>,
        reply: Box<dyn Reply>,
        now: Instant,
    ) {
        let refuse = |reply: Box<dyn Reply>, why: &str| {
            error!(kind = EventKind::UpgradeFailed.name(), "the upgrade is refused: {why}");
            reply.failed(why);
        };
        if matches!(self.spawn, Spawn::Threads { .. }) {
            let why = "with worker_processes: 0 there is nobody who could serve meanwhile; restart \
                       the instance";
            return refuse(reply, why);
        }
        if self.phase != Phase::Serving {
            return refuse(reply, "the instance is starting or stopping");
        }
        if self.drain.is_some() {
            return refuse(reply, "the instance drains");
        }
        if !matches!(self.upgrade.stage, Stage::Idle) {
            return refuse(reply, "an upgrade is under way already");
        }
        let workers = workers_of(&self.current.snapshot);
        if let Err(why) = places_for(workers, workers) {
            return refuse(reply, &why);
        }
        let path = binary.unwrap_or_else(|| self.program.path.clone());
        info!(kind = EventKind::UpgradeBegun.name(), "trying {} for an upgrade", path.display());
        match Trial::begin(&self.program, &path, now) {
            Ok(trial) => {
                self.upgrade.stage = Stage::Trying(trial);
                self.upgrade.askers.push(reply);
            }
            Err(why) => {
                self.upgrade.askers.push(reply);
                self.upgrade_failed(&why, now);
            }
        }
    }

    pub(super) fn advance_upgrade(&mut self, now: Instant) {
        if self.upgrade.frozen && !self.has_foreigners() {
            self.upgrade.frozen = false;
            self.rings.thaw(now);
        }
        match std::mem::take(&mut self.upgrade.stage) {
            Stage::Idle => {}
            // Its state is copied for the rehearsal, which must not contain a change under way.
            Stage::Trying(trial) if !self.rings.is_quiet() => {
                self.upgrade.stage = Stage::Trying(trial);
            }
            Stage::Trying(mut trial) => {
                let program = self.program.clone();
                let copy = || {
                    let (text, pack) = self.state(program.path.clone(), now)?;
                    pack.send(&text, REHEARSED)
                };
                match trial.poll(&program, copy, now) {
                    None => self.upgrade.stage = Stage::Trying(trial),
                    Some(Ok(candidate)) => {
                        for note in &candidate.verdict.notes {
                            warn!("upgrade: {note}");
                            self.upgrade.askers.iter_mut().for_each(|asker| asker.line(note));
                        }
                        let deadline = now + REST_TIMEOUT;
                        self.upgrade.stage = Stage::Resting { candidate, deadline };
                        self.advance_upgrade(now);
                    }
                    Some(Err(why)) => self.upgrade_failed(&why, now),
                }
            }
            Stage::Resting { candidate, deadline } => self.rest(candidate, deadline, now),
        }
    }

    /// Becomes the candidate as soon as nothing is under way.
    fn rest(&mut self, candidate: Candidate, deadline: Instant, now: Instant) {
        // A reload freezes and thaws the rings itself.
        if !self.reload.is_under_way() {
            self.rings.freeze();
        }
        match self.unrest().or_else(|| self.keep_sessions(now)) {
            None => {}
            Some(what) if deadline <= now => {
                let why = format!("the instance does not become idle: {what}");
                if !self.reload.is_under_way() {
                    self.thaw_rings(now);
                }
                return self.upgrade_failed(&why, now);
            }
            Some(_) => {
                self.upgrade.stage = Stage::Resting { candidate, deadline };
                return;
            }
        }
        // Signals from now on are for the next program.
        if let Err(error) = exec::hold_signals() {
            warn!("cannot hold signals back: {error}");
        }
        let requests = self.signals.receive();
        let error = if requests.is_empty() { Some(self.exchange(&candidate, now)) } else { None };
        if let Err(error) = exec::release_signals() {
            warn!("signals are still held back: {error}");
        }
        match error {
            Some(error) => {
                self.thaw_rings(now);
                let path = candidate.path.display();
                self.upgrade_failed(&format!("{path} cannot take over: {error}"), now);
            }
            None => {
                self.upgrade.stage = Stage::Resting { candidate, deadline };
                self.handle_requests(requests, now);
            }
        }
    }

    /// What is still under way that another program could not continue.
    fn unrest(&self) -> Option<String> {
        if self.reload.is_under_way() || self.epochs.is_changing() {
            return Some("the configuration is being changed".into());
        }
        if !self.rings.is_quiet() {
            return Some("a ring is being changed".into());
        }
        let taken = self.workers().count() as u32;
        if let Err(why) = places_for(workers_of(&self.current.snapshot), taken) {
            return Some(why);
        }
        if self.operators.is_working() || self.failovers.is_working() {
            return Some("operators wait for an answer".into());
        }
        if !self.sessions.is_empty() {
            return Some("sessions are on their way".into());
        }
        let restless = self.members.iter().find(|(_, member)| match &member.running {
            Some(running) => {
                let is_well = member.slot.is_serving() || member.slot.is_retiring();
                !is_well || running.mail() != Some(0)
            }
            None => false,
        });
        restless.map(|(role, _)| format!("{role} is starting, stopping or slow to read"))
    }

    /// Tells the workers to hand nothing over until [`Self::let_sessions_go`]. Sessions that come
    /// before all have confirmed are passed on as usual. `None` if none come any more.
    fn keep_sessions(&mut self, now: Instant) -> Option<String> {
        self.upgrade.kept_since.get_or_insert(now);
        let mut late = None;
        for (&role, member) in self.members.iter_mut().filter(|(role, _)| role.is_worker()) {
            let Some(running) = &mut member.running else { continue };
            if running.keeps() {
                continue;
            }
            late = Some(format!("{role} still hands sessions over"));
            if running.keep() {
                member.post(Letter { message: ToChild::Keep, descriptors: Vec::new() }, now);
            }
        }
        late
    }

    /// Retiring workers are told again. Their time has stood still meanwhile.
    fn let_sessions_go(&mut self, now: Instant) {
        self.postpone_retirements(now);
        if self.upgrade.kept_since.take().is_none() {
            return;
        }
        let mut retiring = Vec::new();
        for (&role, member) in &mut self.members {
            if let Some(running) = &mut member.running {
                running.let_go();
            }
            if let (true, Some(left)) = (member.slot.is_retiring(), member.slot.retire_within(now))
            {
                retiring.push((role, left.saturating_sub(KILL_GRACE)));
            }
        }
        for (role, left) in retiring {
            let farewell = self.farewell(role, left.as_millis() as u64);
            self.post(role, farewell, Vec::new(), now);
        }
        self.is_unsettled = true;
    }

    fn postpone_retirements(&mut self, now: Instant) {
        let Some(since) = &mut self.upgrade.kept_since else { return };
        let kept_for = now.saturating_duration_since(*since);
        *since = now;
        self.members.values_mut().for_each(|member| member.slot.postpone(kept_for));
    }

    fn exchange(&mut self, candidate: &Candidate, now: Instant) -> io::Error {
        let path = candidate.path.display();
        info!("becoming cashew {} from {path}", candidate.verdict.version);
        self.operators.deliver(now);
        self.postpone_retirements(now);
        match self.state(candidate.path.clone(), now) {
            Ok((text, pack)) => {
                self.files.restore();
                let error = become_program(&candidate.file, &self.program, &text, &pack);
                self.files.raise_own();
                error
            }
            Err(error) => error,
        }
    }

    /// Everything that another program needs to continue.
    fn state(&self, next_path: PathBuf, now: Instant) -> io::Result<(Vec<u8>, Pack)> {
        let mut pack = Pack::default();
        let epoch = pack.put(&self.current.sealed);
        let metrics = pack.put(&self.current.metrics);
        let shared = pack.put(&self.shared_memfd);
        debug_assert_eq!(pack.len(), REHEARSED);
        let running =
            rustix::fs::open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let program = pack.put(&Rc::new(running));
        let members = self.members.values().filter(|member| member.role != Role::Discovery);
        let members =
            members.map(|member| member.state(&mut pack, now)).collect::<io::Result<_>>()?;
        let discovery = self.members.get(&Role::Discovery);
        let discovery = discovery.map(|member| member.state(&mut pack, now)).transpose()?;
        let listeners = self.listeners.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let listeners = listeners.state(&mut pack);
        let sockets = self.upgrade.askers.iter().filter_map(|asker| asker.socket());
        let askers = sockets.map(|socket| pack.put_copy(socket)).collect::<io::Result<_>>()?;
        let wanted = self.reload.wanted(&mut pack)?;
        let standard_error = self.log.state(&mut pack);
        let state = State {
            format: FORMAT,
            version: self.program.version.clone(),
            program,
            failed: None,
            path: self.program.path.as_path().into(),
            next_path: next_path.as_path().into(),
            epoch,
            metrics,
            shared,
            last_epoch: self.last_epoch,
            control_version: VERSION,
            session_version: SESSION_VERSION,
            listeners,
            owners: self.deal.owners().clone(),
            members,
            discovery,
            generation: self.generation,
            known: self.discovered.known(),
            switches: self.discovered.switches(),
            rings: self.rings.state(now),
            quotas: self.quotas.numbers().clone(),
            log_level: self.log.level(),
            log_format: self.current.snapshot.global.log_format,
            standard_error: Some(standard_error),
            started_at: self.started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            operators: self.operators.state(&mut pack)?,
            askers,
            wanted,
        };
        Ok((state.write(), pack))
    }

    /// Continues where another program has stopped. No child is started or sent anything yet.
    pub(crate) fn resume(fallback: &Fallback, options: TakeOver) -> Result<Self, Error> {
        let Fallback { text, descriptors } = fallback;
        let state = State::read(text).map_err(Error::TakeOver)?;
        let kit = Kit::open(&state, descriptors).map_err(Error::TakeOver)?;
        let TakeOver { conf_file, spawn, mut program, command_line, pid_file } = options;
        let now = Instant::now();
        let signals = Signals::new().step("handle signals")?;
        let looks = (state.log_level, state.log_format);
        let log = Log::resume(looks, state.standard_error, descriptors).map_err(Error::TakeOver)?;
        cashew_process::log::record_events(kit.shared.events());
        let is_back = state.failed.is_some();
        let started = state.started();
        program.path = if is_back { state.path } else { state.next_path }.into();

        let mut members = BTreeMap::new();
        for member in state.members {
            if let Some(member) =
                Member::resume(member, descriptors, now).map_err(Error::TakeOver)?
            {
                members.insert(member.role, member);
            }
        }
        if let Some(discovery) = state.discovery
            && let Some(mut member) =
                Member::resume(discovery, descriptors, now).map_err(Error::TakeOver)?
        {
            member.role = Role::Discovery;
            members.insert(member.role, member);
        }
        let is_there = |slot| {
            let member = members.get(&Role::Worker { slot });
            member.is_some_and(|member| member.running.is_some())
        };
        let configs = RingConfig::of(&kit.epoch.snapshot);
        let rings = Rings::from_state(state.rings, &configs, is_there, now);
        let quotas = Quotas::from_numbers(state.quotas);
        let (metrics, segments) = match kit.segments {
            Ok(segments) => (descriptors.get(state.metrics).map_err(Error::TakeOver)?, segments),
            Err(why) => {
                warn!(kind = EventKind::CountersLost.name(), "counters start from zero: {why}");
                members.values_mut().for_each(Member::lose_count);
                let (metrics, segments) = Segments::create(&Layout::new(&kit.epoch.snapshot))
                    .step("make the shared memory of the metrics")?;
                let targets = cashew_spool::targets(&kit.epoch.snapshot, &[], &segments);
                cashew_spool::mark_leftovers(&targets, &segments);
                (Rc::new(metrics), segments)
            }
        };
        let tickets = kit.epoch.tickets;
        let mut snapshot = kit.epoch.snapshot;
        // The previous program may be of a version that does not know a flag.
        command_line.overrule(&mut snapshot.global);
        for pool in cashew_config::pools_without_policy(&snapshot) {
            warn!(
                "pool '{}': clients may call all commands, as in the previous version, until the \
                 next reload applies command_policy; cashew reload --dry-run shows what that \
                 changes",
                pool.name
            );
        }
        let discovered = Discovered::resume(state.known, state.switches, &snapshot);
        let workers = workers_of(&snapshot);
        let heartbeat_timeout_ms = snapshot.global.worker_heartbeat_timeout_ms;
        let metrics = (metrics, Rc::new(segments));
        let current = InEffect::new(snapshot, BTreeMap::new(), metrics, &quotas, &rings, tickets)
            .step("seal the configuration")?;
        let askers = state.askers.into_iter().map(|place| descriptors.copy(place));
        let askers = askers.collect::<Result<Vec<_>, _>>().map_err(Error::TakeOver)?;
        let reload = Reload::resume(state.wanted, descriptors).map_err(Error::TakeOver)?;
        let shared_memfd = descriptors.get(state.shared).map_err(Error::TakeOver)?;
        let operators = state.operators.socket.as_ref();
        let operators = operators.map(|it| descriptors.copy(it.socket)).transpose();
        let operators = operators.map_err(Error::TakeOver)?;
        if !is_back {
            let taken = members.keys().filter(|role| role.is_worker()).count() as u32;
            places_for(workers, taken).map_err(Error::TakeOver)?;
        }
        // These come last, since dropping them would remove files.
        let listeners = Listeners::resume(state.listeners, descriptors).map_err(Error::TakeOver)?;
        let files = OpenFiles::new(matches!(spawn, Spawn::Processes(_)));
        let (pid_path, pid_file) = pid_file.map_or((None, None), |path| {
            let file = PidFile::resume(&path);
            // There may have been no room for the file so far.
            if file.is_unwritten() { (Some(path), None) } else { (None, Some(file)) }
        });
        let mut master = Self {
            spawn,
            files,
            signals,
            conf_file: std::path::absolute(&conf_file).unwrap_or(conf_file),
            program,
            listeners: Some(listeners),
            deal: Deal::resume(state.owners),
            current,
            previous: None,
            next: None,
            last_epoch: state.last_epoch,
            shared_memfd,
            shared: kit.shared,
            quotas,
            rings,
            epochs: Default::default(),
            watchdog: Watchdog::new(heartbeat_timeout_ms, now),
            reload,
            moves: Moves::default(),
            key_moves: KeyMoves::default(),
            upgrade: Upgrade::default(),
            // As at the first start: the environment survives an exec.
            notify: Notify::from_env(now),
            sessions: Default::default(),
            // Workers with monitors report them again.
            monitors: Default::default(),
            worker_queries: WorkerQueries::after(monotonic_ms() << 20),
            discovered,
            balance: crate::balance::Balance::new(),
            members,
            generation: state.generation,
            is_unsettled: true,
            look_at: now,
            cooling: Cooling::default(),
            hot_moves: HotMoves::default(),
            phase: Phase::Serving,
            command_line,
            log,
            pid_path,
            pid_file,
            on_ready: None,
            started,
            operators: Operators::resume(state.operators, operators),
            failovers: Failovers::default(),
            maintenance: MaintenanceNotices::default(),
            drain: None,
            stops_unsignalled: false,
            joining: Joining::default(),
            maps: Maps::default(),
            found: Found::default(),
            relocations: Relocations::default(),
        };
        master.allow_mail();
        // Slots of workers that the previous program has killed.
        master.vacate_free_slots();
        master.upgrade.kept_since = Some(now);
        master.upgrade.askers =
            askers.into_iter().map(|socket| crate::command::resume(socket)).collect();
        match state.failed {
            Some(why) => {
                // The previous program may have had workers that could not follow rings, just after
                // an upgrade.
                master.upgrade.frozen = master.has_foreigners();
                master.thaw_rings(now);
                master.upgrade_failed(&why, now);
            }
            None => master.hold_members(workers, now),
        }
        // Nothing can fail any more: otherwise the previous program would find the limit raised.
        master.files.raise_own();
        Ok(master)
    }

    /// Sets the serving workers aside, and makes places for the workers of this program; there are
    /// enough.
    fn hold_members(&mut self, workers: u32, now: Instant) {
        self.phase = Phase::Starting;
        self.generation += 1;
        self.upgrade.held = std::mem::take(&mut self.members);
        let taken: BTreeSet<Role> = self.upgrade.held.keys().copied().collect();
        let free =
            (0..SLOTS_MAX).map(|slot| Role::Worker { slot }).filter(|role| !taken.contains(role));
        self.members =
            free.zip(0..workers).map(|(role, rank)| (role, Member::new(role, rank, now))).collect();
    }

    /// Keeps the way back open: this program has all it needs to try.
    pub(super) fn may_go_back(&mut self, fallback: Fallback) {
        if self.phase == Phase::Starting {
            self.upgrade.fallback = Some(fallback);
        }
    }

    pub(super) fn asked(&mut self) -> Asked<'_> {
        Asked { signals: &mut self.signals, files: &self.files, reload: &self.reload }
    }

    /// Takes the way back, if it is still open.
    pub(super) fn take_fallback(&mut self) -> Option<Fallback> {
        self.upgrade.fallback.take()
    }

    /// All workers of this program are ready, or it is stopping: the way back ends.
    pub(super) fn end_take_over(&mut self, now: Instant) {
        if self.upgrade.fallback.take().is_none() {
            return;
        }
        self.members.append(&mut self.upgrade.held);
        self.is_unsettled = true;
        self.upgrade.frozen = true;
        if self.phase == Phase::Stopping {
            return;
        }
        self.upgrade.last = Some(Outcome::new(None));
        upgraded(&self.shared.audit(), None);
        let version = self.program.version.clone();
        info!(
            kind = EventKind::UpgradeDone.name(),
            "the upgrade is done: this is cashew {version}, the previous workers retire"
        );
        self.let_sessions_go(now);
        self.restart(Role::Admin, now);
        self.restart(Role::Discovery, now);
        self.adjust_discovery(now);
        let done = format!("this is cashew {version}");
        for mut asker in std::mem::take(&mut self.upgrade.askers) {
            asker.line(&done);
            asker.done();
        }
    }

    /// Lets rings change again, unless some worker cannot follow: then the last of those to end
    /// triggers this.
    fn thaw_rings(&mut self, now: Instant) {
        if !self.upgrade.frozen {
            self.rings.thaw(now);
        }
    }

    /// Whether some child has another control version.
    pub(super) fn has_foreigners(&self) -> bool {
        self.members.values().any(|member| member.running.as_ref().is_some_and(Running::is_foreign))
    }

    pub(super) fn cancel_upgrade(&mut self, why: &str, now: Instant) {
        if !matches!(self.upgrade.stage, Stage::Idle) {
            self.upgrade_failed(why, now);
        }
        for asker in std::mem::take(&mut self.upgrade.askers) {
            asker.failed(why);
        }
        self.end_take_over(now);
    }

    fn upgrade_failed(&mut self, why: &str, now: Instant) {
        error!(
            kind = EventKind::UpgradeFailed.name(),
            "the upgrade has failed, nothing is changed: {why}"
        );
        self.upgrade.stage = Stage::Idle;
        self.upgrade.last = Some(Outcome::new(Some(why.to_owned())));
        upgraded(&self.shared.audit(), Some(why));
        self.let_sessions_go(now);
        for asker in std::mem::take(&mut self.upgrade.askers) {
            asker.failed(why);
        }
    }

    /// The message for a worker that is to end, so that its sessions move if possible.
    pub(super) fn farewell(&self, role: Role, timeout_ms: u64) -> ToChild {
        let running = self.members.get(&role).and_then(|member| member.running.as_ref());
        match running {
            Some(running) if !understands_sessions(running.session_version) => {
                warn!(
                    "{role} closes its connections when they are idle: its sessions are of \
                     version {}, this program uses {SESSION_VERSION}",
                    running.session_version
                );
                ToChild::Shutdown
            }
            _ => ToChild::Retire { timeout_ms },
        }
    }
}

/// Whether as many workers can be started while others take up slots.
fn places_for(workers: u32, taken: u32) -> Result<(), String> {
    let free = SLOTS_MAX.saturating_sub(taken);
    if workers <= free {
        return Ok(());
    }
    Err(format!(
        "no room for {workers} workers beside {taken} that serve or retire: there are {SLOTS_MAX} \
         slots"
    ))
}

/// Returns only if that fails; then nothing has changed.
fn become_program(file: &OwnedFd, program: &Program, text: &[u8], pack: &Pack) -> io::Error {
    let attempt = || -> io::Result<io::Error> {
        let socket = pack.send(text, pack.len())?;
        rustix::stdio::dup2_stdin(&socket)?;
        drop(socket);
        let argv: Vec<_> = program.argv.iter().chain(&program.take_over).cloned().collect();
        cashew_process::log::flush();
        let error = exec::replace(file, &argv);
        // This also drops the socket's content.
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        Ok(error)
    };
    attempt().unwrap_or_else(|error| error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_new_workers_need_places_beside_the_old_ones() {
        assert_eq!(places_for(4, 4), Ok(()));
        assert_eq!(places_for(SLOTS_MAX / 2, SLOTS_MAX / 2), Ok(()));
        let why = places_for(129, 128).unwrap_err();
        assert!(why.contains("129 workers beside 128"), "{why}");
        assert!(places_for(SLOTS_MAX, SLOTS_MAX).is_err());
    }
}
