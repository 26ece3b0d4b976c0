//! The loop: wait for a signal, a message, a death or a moment; act on it; never wait for anything
//! else.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use cashew_control::{MasterChannel, ToChild, ToMaster};
use cashew_metrics::{Layout, Segments, monotonic_ms};
use cashew_process::log;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing::{debug, error, info, warn};

use crate::child::{Exit, Role, Spawn};
use crate::limits::raise_open_files;
use crate::listeners::Listeners;
use crate::member::{Letter, Member, Running};
use crate::pid_file::PidFile;
use crate::ring::Rings;
use crate::signals::{Request, Signals};
use crate::slots::{KILL_GRACE, Order, Reason};
use crate::{Error, Options, Step};

/// Unread messages that a child is allowed, beyond those that start it: two for each pool.
const OUTBOX_SPARE: usize = 1024;

/// How much one child may say before others are listened to. More than its channel can hold, so
/// that one turn reads all that a dead one said.
const MESSAGES_PER_TURN: usize = 4096;

pub(crate) fn run(options: Options) -> Result<(), Error> {
    let mut master = Master::new(options)?;
    let result = master.run();
    master.kill_all();
    result
}

struct Master {
    spawn: Spawn,
    signals: Signals,
    /// `None` from the moment the instance is told to stop: nobody is to wait in a queue that will
    /// not be served.
    listeners: Option<Listeners>,
    snapshot: Rc<OwnedFd>,
    metrics: Rc<OwnedFd>,
    segments: Segments,
    rings: Rings,
    /// The workers by slot, then the admin if there is one.
    members: Vec<Member>,
    workers: u32,
    pools: u32,
    phase: Phase,
    shutdown_timeout: Duration,
    log_level: u8,
    log_file: Option<PathBuf>,
    pid_path: Option<PathBuf>,
    pid_file: Option<PidFile>,
    on_ready: Option<Box<dyn FnOnce()>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not everybody has been ready yet; whoever fails makes the start fail.
    Starting,
    Serving,
    Stopping,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Signals,
    Channel(usize),
    Death(usize),
}

impl Master {
    fn new(options: Options) -> Result<Self, Error> {
        let Options { snapshot, stats, spawn, log_level, log_file, pid_file, on_ready } = options;
        let now = Instant::now();
        // First of all, so that a signal that comes early is not lost.
        let signals = Signals::new().step("handle signals")?;
        if let Some(wanted) = snapshot.global.max_open_files {
            raise_open_files(wanted);
        }
        let workers = snapshot.global.worker_processes.max(1);
        let listeners = Listeners::bind(&snapshot, workers, stats)?;
        let memfd = cashew_control::seal(&cashew_config::to_json(&snapshot))
            .step("seal the configuration")?;
        let (metrics, segments) = Segments::create(&Layout::new(&snapshot))
            .step("make the shared memory of the metrics")?;
        segments.use_slot(workers - 1);
        let names = snapshot.pools.iter().map(|pool| {
            (&*pool.name, pool.servers.iter().map(|server| server.name.clone()).collect())
        });
        let roles = (0..workers).map(|slot| Role::Worker { slot });
        let admin = stats.is_some().then_some(Role::Admin);
        Ok(Self {
            spawn,
            signals,
            listeners: Some(listeners),
            snapshot: Rc::new(memfd),
            metrics: Rc::new(metrics),
            segments,
            rings: Rings::new(names),
            members: roles.chain(admin).map(|role| Member::new(role, now)).collect(),
            workers,
            pools: u32::try_from(snapshot.pools.len())
                .expect("pools fit in the file that has them"),
            phase: Phase::Starting,
            shutdown_timeout: Duration::from_millis(snapshot.global.worker_shutdown_timeout_ms),
            log_level,
            log_file,
            pid_path: pid_file,
            pid_file: None,
            on_ready: Some(on_ready),
        })
    }

    fn run(&mut self) -> Result<(), Error> {
        loop {
            self.handle_timeouts(Instant::now())?;
            self.deliver(Instant::now());
            if self.is_over() {
                info!("stopped");
                return Ok(());
            }
            for source in self.wait().step("wait for events")? {
                let now = Instant::now();
                match source {
                    Source::Signals => self.handle_signals(now),
                    Source::Channel(index) => self.handle_channel(index, now)?,
                    Source::Death(index) => self.handle_death(index, now)?,
                }
                self.deliver(now);
            }
        }
    }

    fn wait(&self) -> io::Result<Vec<Source>> {
        let mut sources = vec![Source::Signals];
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        for (index, member) in self.members.iter().enumerate() {
            let Some(running) = &member.running else { continue };
            // Before the death: its last words say why.
            if let Some((channel, has_mail)) = running.channel() {
                let out = if has_mail { PollFlags::OUT } else { PollFlags::empty() };
                sources.push(Source::Channel(index));
                fds.push(PollFd::from_borrowed_fd(channel, PollFlags::IN | out));
            }
            sources.push(Source::Death(index));
            fds.push(PollFd::from_borrowed_fd(running.child.death(), PollFlags::IN));
        }
        let timeout = self.poll_timeout().map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.map(|left| Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(errno) => return Err(errno.into()),
        }
        let ready = sources.into_iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        Ok(ready.map(|(source, _)| source).collect())
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let slots = self.members.iter().filter_map(|member| member.slot.poll_timeout());
        slots.chain(self.rings.poll_timeout()).min()
    }

    fn handle_timeouts(&mut self, now: Instant) -> Result<(), Error> {
        self.rings.handle_timeout(now);
        for index in 0..self.members.len() {
            let age = self.heartbeat_age(index);
            match self.members[index].slot.poll(now, age) {
                // Only the admin can ask for it: the slots of workers are closed.
                Some(Order::Spawn) if self.phase == Phase::Stopping => {
                    self.members[index].slot.stop(now);
                }
                Some(Order::Spawn) => self.start(index, now)?,
                Some(Order::Abort(reason)) => {
                    let why = match reason {
                        Reason::StartTimeout => "it does not get ready",
                        Reason::OldHeartbeat => "its heart has stopped",
                    };
                    self.members[index].condemn(why, now);
                }
                Some(Order::Kill) => self.kill(index, now)?,
                None => {}
            }
        }
        Ok(())
    }

    /// Threads are not watched: there is nobody left to replace a process that aborts.
    fn heartbeat_age(&self, index: usize) -> Option<Duration> {
        let member = &self.members[index];
        match (member.role, &member.running) {
            (Role::Worker { slot }, Some(running)) if running.child.is_process() => {
                let beat = self.segments.header(slot).heartbeat_ms;
                Some(Duration::from_millis(monotonic_ms().saturating_sub(beat)))
            }
            _ => None,
        }
    }

    fn start(&mut self, index: usize, now: Instant) -> Result<(), Error> {
        let role = self.members[index].role;
        match self.spawn_child(role) {
            Ok(running) => {
                info!("{role} is started: {}", running.child);
                let member = &mut self.members[index];
                member.running = Some(running);
                member.slot.spawned(now);
                self.brief(index, now);
                Ok(())
            }
            Err(error) if self.phase == Phase::Starting => {
                Err(Error::Start { role, why: format!("cannot be run: {error}") })
            }
            Err(error) => {
                let pause = self.members[index].slot.died(now);
                error!("{role} cannot be started: {error}; next try in {pause:?}");
                Ok(())
            }
        }
    }

    fn spawn_child(&self, role: Role) -> io::Result<Running> {
        let (ours, theirs) = cashew_control::pair()?;
        let child = self.spawn.spawn(role, self.log_level, theirs)?;
        let outbox_max = 2 * self.pools as usize + OUTBOX_SPARE;
        Ok(Running::new(child, MasterChannel::new(ours), outbox_max))
    }

    /// Hands everything over that a new child needs.
    fn brief(&mut self, index: usize, now: Instant) {
        let listeners = self.listeners.as_ref().expect("nobody is started while stopping");
        let (slot, sockets) = match self.members[index].role {
            Role::Worker { slot } => {
                let sockets =
                    (0..self.pools).map(|pool| (pool, listeners.of_pool(pool as usize, slot)));
                (slot, sockets.collect::<Vec<_>>())
            }
            Role::Admin => {
                (self.workers, listeners.of_stats().map(|fd| (0, fd)).into_iter().collect())
            }
        };
        let init = ToChild::Init { slot, rank: slot, workers: self.workers };
        self.post(index, init, vec![Rc::clone(&self.snapshot), Rc::clone(&self.metrics)], now);
        for (pool, socket) in sockets {
            self.post(index, ToChild::Listen { listener: pool, pool }, vec![socket], now);
        }
        if let Role::Worker { slot } = self.members[index].role {
            self.rings.joined(slot);
            self.deliver(now);
        }
        self.post(index, ToChild::Start, Vec::new(), now);
    }

    fn handle_channel(&mut self, index: usize, now: Instant) -> Result<(), Error> {
        self.members[index].flush(now);
        for _ in 0..MESSAGES_PER_TURN {
            let Some(message) = self.members[index].receive(now) else { break };
            self.handle_message(index, message, now)?;
        }
        Ok(())
    }

    fn handle_message(
        &mut self,
        index: usize,
        message: ToMaster,
        now: Instant,
    ) -> Result<(), Error> {
        let member = &mut self.members[index];
        match (message, member.role) {
            (ToMaster::Ready, role) => {
                debug!("{role} is ready");
                member.slot.ready(now);
                if self.phase == Phase::Starting
                    && self.members.iter().all(|member| member.slot.is_serving())
                {
                    self.started()?;
                }
            }
            (ToMaster::Failed { why }, _) => {
                if let Some(running) = &mut member.running {
                    running.failed = Some(why);
                }
                member.slot.doomed(now);
            }
            (ToMaster::Held { pool, version }, Role::Worker { slot }) => {
                self.rings.held(slot, pool, version, now);
            }
            (ToMaster::ServerDown { pool, server, why }, Role::Worker { slot }) => {
                debug!("worker {slot}: pool {pool}: server {server} is down: {why}");
                self.rings.server_down(pool, server, why, now);
            }
            (ToMaster::ServerUp { pool, server }, Role::Worker { .. }) => {
                self.rings.server_up(pool, server, now);
            }
            (
                message @ (ToMaster::Held { .. }
                | ToMaster::ServerDown { .. }
                | ToMaster::ServerUp { .. }),
                Role::Admin,
            ) => warn!("admin has no business to say {message:?}"),
            (message, role) => warn!("{role} says {message:?}, which nobody asked"),
        }
        Ok(())
    }

    fn started(&mut self) -> Result<(), Error> {
        self.phase = Phase::Serving;
        info!(pools = self.pools, workers = self.workers, "serving");
        if let Some(path) = self.pid_path.take() {
            let file = PidFile::write(&path).map_err(|source| Error::PidFile { path, source })?;
            self.pid_file = Some(file);
        }
        if let Some(on_ready) = self.on_ready.take() {
            on_ready();
        }
        Ok(())
    }

    fn handle_death(&mut self, index: usize, now: Instant) -> Result<(), Error> {
        // What it said before it died may not have been read yet.
        self.handle_channel(index, now)?;
        let Some(running) = self.members[index].running.take() else { return Ok(()) };
        let name = running.child.to_string();
        let exit = running.child.reap().step("learn how a child ended")?;
        let role = self.members[index].role;
        let how = match running.failed {
            Some(why) => format!("failed: {why}"),
            None => exit.to_string(),
        };
        let pause = self.bury(index, now);
        if self.phase == Phase::Starting {
            return Err(Error::Start { role, why: how });
        }
        match pause {
            Some(pause) => {
                let member = &mut self.members[index];
                member.restarts += 1;
                error!("{role} ({name}) {how}; restart {} in {pause:?}", member.restarts);
            }
            None if is_clean(&exit) => info!("{role} ({name}) has stopped"),
            None => warn!("{role} ({name}) has stopped: {how}"),
        }
        Ok(())
    }

    /// Its place is empty. Tells how long it stays so, unless for ever.
    fn bury(&mut self, index: usize, now: Instant) -> Option<Duration> {
        if let Role::Worker { slot } = self.members[index].role {
            self.segments.clear_gauges(slot);
            self.rings.left(slot, now);
        }
        let pause = self.members[index].slot.died(now);
        self.stop_admin(now);
        pause
    }

    fn kill(&mut self, index: usize, now: Instant) -> Result<(), Error> {
        let member = &mut self.members[index];
        if member.kill() {
            return Ok(());
        }
        // A thread cannot be killed, and a second one in its place would serve beside it.
        if self.phase != Phase::Stopping {
            return Err(Error::Stuck { role: member.role });
        }
        warn!("{} does not end and is left behind", member.role);
        member.running = None;
        self.bury(index, now);
        Ok(())
    }

    fn handle_signals(&mut self, now: Instant) {
        for request in self.signals.receive() {
            match request {
                Request::Stop if self.phase == Phase::Stopping => self.stop_now(now, "SIGTERM"),
                Request::Stop => self.stop(now),
                Request::StopNow => self.stop_now(now, "SIGINT"),
                Request::LevelUp => {
                    self.change_level("SIGTTIN", self.log_level.saturating_add(1), now)
                }
                Request::LevelDown => {
                    self.change_level("SIGTTOU", self.log_level.saturating_sub(1), now)
                }
                Request::LogReopen => self.reopen_log(now),
                Request::Unknown(name) => info!("{name} means nothing here"),
            }
        }
    }

    fn stop(&mut self, now: Instant) {
        info!("SIGTERM: stopping, for at most {:?}", self.shutdown_timeout);
        self.phase = Phase::Stopping;
        self.rings.halt();
        self.deliver(now);
        self.listeners = None;
        // Workers keep to the timeout by themselves; the grace is for saying good-bye.
        let deadline = now + self.shutdown_timeout + KILL_GRACE;
        for index in 0..self.workers as usize {
            self.post(index, ToChild::Shutdown, Vec::new(), now);
            self.members[index].slot.stop(deadline);
        }
        self.stop_admin(now);
    }

    /// The admin goes last, to tell how the workers are getting on.
    fn stop_admin(&mut self, now: Instant) {
        let admin = self.workers as usize;
        if self.phase != Phase::Stopping
            || self.members.len() == admin
            || self.members[..admin].iter().any(|member| !member.slot.is_closed())
        {
            return;
        }
        self.post(admin, ToChild::Shutdown, Vec::new(), now);
        self.members[admin].slot.stop(now + KILL_GRACE);
    }

    fn stop_now(&mut self, now: Instant, signal: &str) {
        info!("{signal}: stopping at once");
        self.phase = Phase::Stopping;
        self.rings.halt();
        self.listeners = None;
        self.members.iter_mut().for_each(|member| member.slot.stop(now));
    }

    fn is_over(&self) -> bool {
        self.members.iter().all(|member| member.slot.is_closed())
    }

    fn change_level(&mut self, signal: &str, level: u8, now: Instant) {
        let level = level.min(log::LEVEL_MAX);
        self.log_level = level;
        log::set_level(level);
        info!("{signal}: log level is {level}");
        for index in 0..self.members.len() {
            self.post(index, ToChild::LogLevel { level }, Vec::new(), now);
        }
    }

    fn reopen_log(&mut self, now: Instant) {
        let Some(path) = &self.log_file else {
            info!("the log is standard error, there is nothing to reopen");
            return;
        };
        let file = match log::open(path).and_then(|file| log::redirect(&file).map(|()| file)) {
            Ok(file) => Rc::new(OwnedFd::from(file)),
            Err(error) => {
                error!("cannot reopen log file {}: {error}", path.display());
                return;
            }
        };
        info!("log file is reopened");
        for index in 0..self.members.len() {
            self.post(index, ToChild::LogReopen, vec![Rc::clone(&file)], now);
        }
    }

    /// Takes the mail of the rings to the workers.
    fn deliver(&mut self, now: Instant) {
        while let Some((slot, message)) = self.rings.poll_message() {
            self.post(slot as usize, message, Vec::new(), now);
        }
    }

    fn post(
        &mut self,
        index: usize,
        message: ToChild,
        descriptors: Vec<Rc<OwnedFd>>,
        now: Instant,
    ) {
        self.members[index].post(Letter { message, descriptors }, now);
    }

    /// For the way out after an error. Waits only for what SIGKILL ends.
    fn kill_all(&mut self) {
        for member in &mut self.members {
            let killed = member.kill();
            let Some(running) = member.running.take() else { continue };
            if killed && let Err(error) = running.child.reap() {
                warn!("{}: {error}", member.role);
            }
        }
    }
}

fn is_clean(exit: &Exit) -> bool {
    match exit {
        Exit::Status(status) => status.success(),
        Exit::Returned => true,
        Exit::Error(_) | Exit::Panicked => false,
    }
}
