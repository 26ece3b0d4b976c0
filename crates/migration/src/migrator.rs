//! The threads that copy: one for each primary of Redis, one for each move of memcached.

use std::collections::{BTreeMap, BTreeSet};
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

/// Why a move that has begun cannot begin, in an operator's words.
pub const HAS_BEGUN: &str = "it has begun already";

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

impl Task {
    /// Why nobody can say where keys are; `None` if that is known of both sides.
    fn gap(&self) -> Option<String> {
        self.from.gap().or_else(|| self.to.gap())
    }

    /// Why this copy, proven complete, would not be what serves by these tasks; `None` if it would.
    fn is_not_reverse(&self, next: &[Self]) -> Option<String> {
        let Some(next) = next.iter().find(|task| task.directory == self.directory) else {
            return Some("the move is over by the next epoch".to_owned());
        };
        let is_reverse = next.is_cut_over != self.is_cut_over
            && next.from.identity == self.to.identity
            && next.to.identity == self.from.identity;
        (!is_reverse).then(|| {
            "the servers of its pools would be others than those that were copied: try again"
                .to_owned()
        })
    }
}

/// All moves of a configuration, in the states of its pools' topologies.
pub fn tasks(snapshot: &Snapshot, states: &[TopologyState]) -> Vec<Task> {
    let find = |name: &str| {
        let at = snapshot.pools.iter().position(|pool| pool.name == name)?;
        let pool: &Pool = &snapshot.pools[at];
        let state = states.get(at).filter(|state| state.is_of(pool)).cloned();
        let state = state.unwrap_or_else(|| TopologyState::whole(pool));
        Some((Side::new(pool, &state), pool.protocol))
    };
    let task = |(route, it): (&str, cashew_config::snapshot::Move<'_>)| {
        let (served, copy) = if it.is_cut_over { (it.to, it.from) } else { (it.from, it.to) };
        let ((mut from, protocol), (mut to, _)) = (find(served)?, find(copy)?);
        // Clients of the route cannot use others.
        from.limit(&to.databases);
        to.limit(&from.databases);
        Some(Task {
            route: route.to_owned(),
            directory: it.follow.directory.clone(),
            from: Arc::new(from),
            to: Arc::new(to),
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
    /// Those that are over, as long as threads of theirs may write still.
    ended: Vec<Arc<Job>>,
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
        self.ended.retain(|job| job.control().running > 0);
        for job in former.iter().filter(|job| !tasks.contains(&job.task)) {
            end(job);
            self.ended.push(Arc::clone(job));
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
                (None, None) => start(task, Control::default(), self.ended.clone()),
            };
            self.jobs.insert(directory, job);
        }
        before.values().chain(&standby).for_each(|job| end(job));
    }

    /// Pools of clusters whose maps may be out of date, as their nodes have told since this was called last.
    pub fn take_doubts(&self) -> BTreeSet<String> {
        self.jobs.values().flat_map(|job| job.take_doubts()).collect()
    }

    /// How all moves are.
    pub fn status(&self) -> Vec<MoveStatus> {
        self.jobs.values().map(|job| job.status()).collect()
    }

    fn job(&self, directory: &Path) -> Result<&Arc<Job>, String> {
        self.jobs.get(directory).ok_or_else(|| "there is no such move".to_owned())
    }

    /// Whether a move can begin, and what an operator should know if so. It looks at all servers, which may take some
    /// seconds: call what is returned where nobody waits.
    pub fn check_start(
        &self,
        directory: &Path,
        may_overwrite: bool,
        may_evict: bool,
    ) -> Result<impl FnOnce() -> Result<Vec<String>, String> + Send + use<>, String> {
        let job = Arc::clone(self.job(directory)?);
        if job.control().is_started {
            return Err(HAS_BEGUN.to_owned());
        }
        if let Some(why) = job.task.gap() {
            return Err(why);
        }
        // Of those that it was begun with, what they have is a copy.
        let known = MoveState::load(directory)?.filter(|state| state.is_started);
        let strangers = job.task.to.strangers(&known.map(|it| it.servers).unwrap_or_default());
        let strangers = job.task.to.part(&strangers);
        let others = self.jobs.values().filter(|it| it.task.directory != directory);
        let others: Vec<Arc<Side>> =
            others.flat_map(|it| [Arc::clone(&it.task.from), Arc::clone(&it.task.to)]).collect();
        let its = Arc::clone(&job);
        let check = move || match job.task.protocol {
            Protocol::Redis => {
                redis::check_source(&job.task.from)?;
                if !may_overwrite {
                    redis::check_empty(&strangers)?;
                }
                redis::check_eviction(&job.task.from, &job.task.to, may_evict)
            }
            Protocol::Memcached | Protocol::Tcp => {
                memcached::check(&job.task.from, false)?;
                memcached::check(&job.task.to, false)?;
                memcached::check(&strangers, !may_overwrite)?;
                Ok(Vec::new())
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
        job.change(|control| learn(&job.task, control, &state));
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

    /// Why the copy cannot serve now, if it cannot. Keys that are not where they belong are no obstacle if these are
    /// to be ignored, here and in the [`Migrator::catch_up`] that follows.
    pub fn obstacle(&self, directory: &Path, ignores_misplaced: bool) -> Option<String> {
        match self.job(directory) {
            Ok(job) => {
                job.change(|control| control.ignores_misplaced = ignores_misplaced);
                job.obstacle()
            }
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
                Ok(job) => match job.obstacle().or_else(|| job.task.is_not_reverse(&next)) {
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
                // Of memcached it has to know what is there in the end.
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
                        let seconds = PAUSE_MAX.as_secs();
                        let why = jobs.iter().find_map(|(job, _)| job.obstacle());
                        let why = why.map_or_else(String::new, |why| format!(": {why}"));
                        return Err(format!("{what} within {seconds} s{why}"));
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
                let forth = jobs.iter().find(|(it, _)| it.task.directory == job.task.directory);
                if let Some(inventory) = forth.and_then(|(it, _)| it.take_inventory()) {
                    job.leave_inventory(inventory);
                }
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
        Protocol::Memcached | Protocol::Tcp => 1,
    };
    Arc::new(Job::new(task, parts, control, before))
}

/// Takes over what is kept. Servers of the copy that it was not begun with may have something that nobody has looked at.
fn learn(task: &Task, control: &mut Control, state: &MoveState) {
    let strangers = task.to.strangers(&state.servers);
    let stranger = strangers.first().map(|&at| {
        let (server, pool) = (&task.to.shards[at].name, &task.to.pool);
        format!(
            "server {server} of pool {pool} is none of those that it was begun with: `cashew migrate start` looks at what it has, and begins"
        )
    });
    control.held = stranger.or_else(|| task.gap()).filter(|_| state.is_started);
    control.is_started = state.is_started && control.held.is_none();
    control.is_paused = state.is_paused;
}

fn start(task: Task, mut control: Control, before: Vec<Arc<Job>>) -> Arc<Job> {
    if !control.is_standby {
        match MoveState::load(&task.directory) {
            Ok(Some(state)) => learn(&task, &mut control, &state),
            Ok(None) => {}
            Err(why) => warn!("{}: {why}: nothing is copied", task.directory.display()),
        }
    }
    if let Some(why) = &control.held {
        let route = &task.route;
        warn!(
            kind = EventKind::MoveInterrupted.name(),
            pool = route,
            "route {route}: nothing is copied: {why}"
        );
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
            Protocol::Memcached | Protocol::Tcp => follow_memcached(job, has_all),
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

#[cfg(test)]
mod tests {
    use cashew_config::Context;

    use super::*;

    const FILE: &str = "\
pools:
  a: {redis: true, servers: [127.0.0.1:1:1]}
  b: {redis: true, servers: [127.0.0.1:2:1]}
routes:
  main:
    listen: 127.0.0.1:22121
    redis: true
    route: {migrate: {from: a, to: b, directory: /run/cashew-of-tests}}
";

    fn task(edit: impl FnOnce(String) -> String, is_cut_over: bool) -> Task {
        let mut snapshot = cashew_config::parse("f", &edit(FILE.to_owned()), &Context::of_system())
            .unwrap()
            .snapshot;
        snapshot.set_cut_over(Path::new("/run/cashew-of-tests"), is_cut_over);
        tasks(&snapshot, &[]).remove(0)
    }

    fn rated(rate: u64) -> Task {
        Task { keys_per_second: rate, ..task(|text| text, false) }
    }

    #[test]
    fn who_may_write_still_is_waited_for_however_many_reloads_ago_it_ended() {
        let mut migrator = Migrator::default();
        let find = |migrator: &Migrator| Arc::clone(migrator.jobs.values().next().unwrap());
        migrator.follow(vec![rated(1)]);
        let first = find(&migrator);
        // A thread of it waits for a server.
        first.change(|control| control.running += 1);
        migrator.follow(vec![rated(2)]);
        migrator.follow(vec![rated(3)]);
        // Also if there was no move meanwhile.
        migrator.follow(Vec::new());
        migrator.follow(vec![rated(4)]);
        let last = find(&migrator);
        let (told, waits) = std::sync::mpsc::channel();
        let waiter = Arc::clone(&last);
        let thread = thread::spawn(move || {
            waiter.wait_for_others();
            told.send(()).unwrap();
        });
        assert!(waits.recv_timeout(Duration::from_millis(300)).is_err());
        first.change(|control| control.running -= 1);
        waits.recv_timeout(Duration::from_secs(10)).unwrap();
        thread.join().unwrap();
    }

    #[test]
    fn only_what_was_copied_may_serve() {
        let same = |text: String| text;
        let now = task(same, false);
        assert_eq!(now.is_not_reverse(&[task(same, true)]), None);
        assert!(now.is_not_reverse(&[]).is_some());
        assert!(now.is_not_reverse(&[task(same, false)]).is_some());
        for (is, other) in [
            ("[127.0.0.1:2:1]", "[127.0.0.1:2:1, 127.0.0.1:3:1]"),
            ("[127.0.0.1:1:1]", "[127.0.0.1:4:1]"),
            ("b: {redis: true", "b: {redis: true, hash: murmur"),
        ] {
            let next = task(|text| text.replace(is, other), true);
            assert!(now.is_not_reverse(&[next]).is_some(), "{other}");
        }
    }

    #[test]
    fn a_server_that_the_move_was_not_begun_with_holds_it() {
        let two = |text: String| text.replace("[127.0.0.1:2:1]", "[127.0.0.1:2:1, 127.0.0.1:3:1]");
        let (one, two) = (task(|text| text, false), task(two, false));
        let known =
            ["127.0.0.1:1", "127.0.0.1:2"].map(|it| format!("server {it} databases 0 to 15"));
        let state =
            MoveState { is_started: true, servers: known.to_vec(), ..MoveState::new("a", "b") };
        let mut control = Control::default();
        learn(&one, &mut control, &state);
        assert!(control.is_started && control.held.is_none());
        learn(&two, &mut control, &state);
        let why = control.held.as_deref().unwrap();
        assert!(!control.is_started && why.starts_with("server 127.0.0.1:3"), "{why}");
        learn(&one, &mut control, &MoveState::new("a", "b"));
        assert!(!control.is_started && control.held.is_none());
    }
}
