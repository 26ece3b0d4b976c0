//! The threads that copy: one for each primary of Redis, one for each move of memcached.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cashew_config::snapshot::{Pool, Protocol, TopologyState};
use cashew_config::{MoveState, Snapshot};
use cashew_metrics::EventKind;
use tracing::{info, warn};

use crate::job::{Control, Job, MoveStatus, PAUSE_MAX};
use crate::memcached::Passes;
use crate::redis::Follower;
use crate::side::Side;
use crate::{apart, memcached, redis};

/// Pauses after a loss of a server; each is twice the one before it.
const PAUSE_AFTER_LOSS_MIN: Duration = Duration::from_millis(100);
const PAUSE_AFTER_LOSS_MAX: Duration = Duration::from_secs(3);
/// A connection that has lasted so long is no attempt that fails.
const GOOD_AFTER: Duration = Duration::from_secs(5);
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A pool that is to be what another one is.
#[derive(Clone, Debug)]
pub struct Task {
    pub(crate) route: String,
    pub(crate) directory: PathBuf,
    /// The side that serves.
    pub(crate) from: Arc<Side>,
    /// The copy.
    pub(crate) to: Arc<Side>,
    pub(crate) is_cut_over: bool,
    pub(crate) protocol: Protocol,
    pub(crate) keys_per_second: u64,
    pub(crate) bytes_per_second: u64,
}

impl PartialEq for Task {
    fn eq(&self, other: &Self) -> bool {
        let parts = |it: &Self| {
            let rates = (it.keys_per_second, it.bytes_per_second);
            (it.route.clone(), it.directory.clone(), it.is_cut_over, rates)
        };
        parts(self) == parts(other)
            && self.from.identity == other.from.identity
            && self.to.identity == other.to.identity
    }
}

/// All moves of a configuration, in the states of its pools' topologies.
pub fn tasks(snapshot: &Snapshot, states: &[TopologyState]) -> Vec<Task> {
    let find = |name: &str| {
        let at = snapshot.pools.iter().position(|pool| pool.name == name)?;
        let pool: &Pool = &snapshot.pools[at];
        let state = states.get(at).filter(|state| state.is_of(pool)).cloned();
        let state = state.unwrap_or_else(|| TopologyState::whole(pool));
        Some((Arc::new(Side::new(pool, &state)), pool.protocol))
    };
    let task = |(route, it): (&str, cashew_config::snapshot::Move<'_>)| {
        let (served, copy) = if it.is_cut_over { (it.to, it.from) } else { (it.from, it.to) };
        let ((from, protocol), (to, _)) = (find(served)?, find(copy)?);
        Some(Task {
            route: route.to_owned(),
            directory: it.follow.directory.clone(),
            from,
            to,
            is_cut_over: it.is_cut_over,
            protocol,
            keys_per_second: it.follow.keys_per_second,
            bytes_per_second: it.follow.bytes_per_second,
        })
    };
    snapshot.moves().filter_map(task).collect()
}

/// Has the copies made. All threads end when it is dropped.
#[derive(Default)]
pub struct Migrator {
    jobs: BTreeMap<PathBuf, Arc<Job>>,
    /// Those that take over when the epoch being prepared is committed.
    standby: Vec<Arc<Job>>,
}

impl Drop for Migrator {
    fn drop(&mut self) {
        self.jobs.values().chain(&self.standby).for_each(|job| end(job));
    }
}

fn end(job: &Job) {
    job.change(|control| control.is_ended = true);
}

impl Migrator {
    /// Takes these tasks for those before.
    pub fn follow(&mut self, tasks: Vec<Task>) {
        let mut before = std::mem::take(&mut self.jobs);
        let mut standby = std::mem::take(&mut self.standby);
        let former: Vec<Arc<Job>> = before.values().cloned().collect();
        for job in former.iter().filter(|job| !tasks.contains(&job.task)) {
            end(job);
        }
        for task in tasks {
            let directory = task.directory.clone();
            let same = before.get(&directory).filter(|job| job.task == task).cloned();
            if same.is_some() {
                before.remove(&directory);
            }
            let ready = standby.iter().position(|job| job.task == task);
            let job = match (same, ready) {
                (Some(job), _) => job,
                (None, Some(at)) => {
                    let job = standby.remove(at);
                    job.change(|control| control.is_standby = false);
                    job
                }
                (None, None) => {
                    let others = former.iter().filter(|job| job.is_ended()).cloned().collect();
                    start(task, Control::default(), others)
                }
            };
            self.jobs.insert(directory, job);
        }
        before.values().chain(&standby).for_each(|job| end(job));
    }

    /// How all moves are.
    pub fn status(&self) -> Vec<MoveStatus> {
        self.jobs.values().map(|job| job.status()).collect()
    }

    fn job(&self, directory: &Path) -> Result<&Arc<Job>, String> {
        self.jobs.get(directory).ok_or_else(|| "there is no such move".to_owned())
    }

    /// Whether a move can begin. It looks at all servers, which may take some seconds: call what is returned where
    /// nobody waits.
    pub fn check_start(
        &self,
        directory: &Path,
        may_overwrite: bool,
    ) -> Result<impl FnOnce() -> Result<(), String> + Send + use<>, String> {
        let job = Arc::clone(self.job(directory)?);
        if job.control().is_started {
            return Err("it has begun already".to_owned());
        }
        let others = self.jobs.values().filter(|it| it.task.directory != directory);
        let others: Vec<Arc<Side>> =
            others.flat_map(|it| [Arc::clone(&it.task.from), Arc::clone(&it.task.to)]).collect();
        let its = Arc::clone(&job);
        let check = move || match job.task.protocol {
            Protocol::Redis => {
                redis::check_source(&job.task.from)?;
                if may_overwrite { Ok(()) } else { redis::check_empty(&job.task.to) }
            }
            Protocol::Memcached => {
                memcached::check(&job.task.from, false)?;
                memcached::check(&job.task.to, !may_overwrite)
            }
        };
        Ok(move || {
            let others: Vec<&Side> = others.iter().map(|it| &**it).collect();
            apart::check(&its.task.from, &its.task.to, &others)?;
            check()
        })
    }

    /// Begins, pauses or goes on, as is kept in the directory.
    pub fn obey(&self, directory: &Path) -> Result<(), String> {
        let job = self.job(directory)?;
        let state = MoveState::load(directory)?.ok_or("nothing is kept of it")?;
        job.change(|control| {
            (control.is_started, control.is_paused) = (state.is_started, state.is_paused);
        });
        Ok(())
    }

    /// Compares both sides from the start.
    pub fn verify(&self, directory: &Path) -> Result<(), String> {
        let job = self.job(directory)?;
        let control = job.control();
        if !control.is_started || !control.parts.iter().all(|part| part.is_in_step) {
            return Err("not everything is copied yet: there is nothing to compare".to_owned());
        }
        drop(control);
        job.change(|control| control.comparison += 1);
        Ok(())
    }

    /// Why the copy cannot serve now, if it cannot.
    pub fn obstacle(&self, directory: &Path) -> Option<String> {
        match self.job(directory) {
            Ok(job) => job.obstacle(),
            Err(why) => Some(why),
        }
    }

    /// Nobody writes to these moves' pools any more. Returns what waits until the copies are complete, and until those
    /// that go the other way listen; the next [`Migrator::follow`] lets these begin.
    pub fn catch_up(
        &mut self,
        directories: &[PathBuf],
        next: Vec<Task>,
    ) -> impl FnOnce() -> Result<(), String> + Send + use<> {
        self.call_off();
        let mut jobs: Vec<(Arc<Job>, u64)> = Vec::new();
        let mut failure = None;
        for directory in directories {
            match self.job(directory) {
                Ok(job) => match job.obstacle() {
                    Some(why) => failure = Some(why),
                    None => {
                        let mut number = 0;
                        job.change(|control| {
                            control.barrier += 1;
                            number = control.barrier;
                        });
                        jobs.push((Arc::clone(job), number));
                    }
                },
                Err(why) => failure = Some(why),
            }
        }
        let mut reverse = Vec::new();
        if failure.is_none() {
            for task in next.into_iter().filter(|task| directories.contains(&task.directory)) {
                // Of memcached the list of what is there has to be that of the end.
                let is_late = task.protocol == Protocol::Memcached;
                match is_late {
                    true => reverse.push(prepare(task, Control::standby(), Vec::new())),
                    false => reverse.push(start(task, Control::standby(), Vec::new())),
                }
            }
        }
        self.standby = reverse.clone();
        move || {
            if let Some(why) = failure {
                return Err(why);
            }
            let deadline = Instant::now() + PAUSE_MAX;
            let wait = |what: &str, is_done: &dyn Fn() -> bool| {
                while !is_done() {
                    if Instant::now() >= deadline {
                        return Err(format!("{what} within {} s", PAUSE_MAX.as_secs()));
                    }
                    thread::sleep(LOOK_INTERVAL);
                }
                Ok(())
            };
            for (job, number) in &jobs {
                let is_done = || job.control().parts.iter().all(|it| it.barrier >= *number);
                wait("the last changes could not be copied", &is_done)?;
            }
            for job in reverse.iter().filter(|job| job.task.protocol == Protocol::Memcached) {
                spawn(job);
            }
            for job in &reverse {
                let is_done = || job.control().parts.iter().all(|it| it.is_connected);
                wait("the way back could not be prepared", &is_done)?;
            }
            for (job, number) in &jobs {
                // Unless nobody waits for this any more.
                job.change(|control| control.is_frozen = control.called_off < *number);
            }
            // A feed that was lost meanwhile may have missed something.
            match jobs.iter().find_map(|(job, _)| job.obstacle()) {
                Some(why) => Err(why),
                None => Ok(()),
            }
        }
    }

    /// The epoch that was being prepared is not committed.
    pub fn call_off(&mut self) {
        std::mem::take(&mut self.standby).iter().for_each(|job| end(job));
        for job in self.jobs.values() {
            job.change(|control| {
                (control.called_off, control.is_frozen) = (control.barrier, false);
            });
        }
    }
}

fn prepare(task: Task, control: Control, before: Vec<Arc<Job>>) -> Arc<Job> {
    let parts = match task.protocol {
        Protocol::Redis => task.from.shards.len(),
        Protocol::Memcached => 1,
    };
    Arc::new(Job::new(task, parts, control, before))
}

fn start(task: Task, mut control: Control, before: Vec<Arc<Job>>) -> Arc<Job> {
    if !control.is_standby {
        match MoveState::load(&task.directory) {
            Ok(Some(state)) => {
                (control.is_started, control.is_paused) = (state.is_started, state.is_paused);
            }
            Ok(None) => {}
            Err(why) => warn!("{}: {why}: nothing is copied", task.directory.display()),
        }
    }
    if control.is_started && !control.is_standby {
        let Task { route, from, to, .. } = &task;
        info!(
            kind = EventKind::MoveBegun.name(),
            pool = route,
            "route {route}: pool {} is copied to pool {}",
            from.pool,
            to.pool
        );
    }
    let job = prepare(task, control, before);
    spawn(&job);
    job
}

fn spawn(job: &Arc<Job>) {
    let parts = job.control().parts.len();
    for part in 0..parts {
        let its = Arc::clone(job);
        job.change(|control| control.running += 1);
        let thread = thread::Builder::new().name(format!("move-{part}"));
        let run = move || {
            let its = Running(its);
            its.0.wait_for_others();
            follow(&its.0, part);
        };
        if let Err(error) = thread.spawn(run) {
            job.lost(part, &format!("a thread cannot be started: {error}"));
        }
    }
}

/// A thread of a job, until it ends, however it does.
struct Running(Arc<Job>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.change(|control| control.running -= 1);
    }
}

/// Copies and follows, from the start again after each loss, until the job ends.
fn follow(job: &Job, part: usize) {
    let mut pause = PAUSE_AFTER_LOSS_MIN;
    // What stands by has the same as the other side, until it has lost something.
    let mut has_all = job.control().is_standby;
    while !job.is_ended() {
        if !has_all && job.wait_to_copy().is_err() {
            return;
        }
        let began = Instant::now();
        let outcome = match job.task.protocol {
            Protocol::Redis => follow_redis(job, part, has_all),
            Protocol::Memcached => follow_memcached(job, has_all),
        };
        has_all = false;
        let Err(error) = outcome else { return };
        if job.is_ended() {
            return;
        }
        job.lost(part, &error.to_string());
        pause = match began.elapsed() >= GOOD_AFTER {
            true => PAUSE_AFTER_LOSS_MIN,
            false => (pause * 2).min(PAUSE_AFTER_LOSS_MAX),
        };
        let until = Instant::now() + pause;
        while Instant::now() < until && !job.is_ended() {
            job.wait(until.saturating_duration_since(Instant::now()));
        }
    }
}

fn follow_redis(job: &Job, part: usize, has_all: bool) -> io::Result<()> {
    let mut follower = Follower::open(job, part)?;
    job.part(part, |it| it.is_connected = true);
    if job.wait_to_copy().is_err() {
        return Ok(());
    }
    follower.run(has_all)
}

fn follow_memcached(job: &Job, has_all: bool) -> io::Result<()> {
    let mut passes = Passes::open(job, has_all)?;
    job.part(0, |it| it.is_connected = true);
    if job.wait_to_copy().is_err() {
        return Ok(());
    }
    passes.run(has_all)
}
