//! Follows the sources of all pools, each in a thread of its own, and tells which servers are to be in effect.

use std::collections::VecDeque;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cashew_config::Snapshot;
use cashew_config::snapshot::{Pool, Server, ServerSource};
use cashew_metrics::EventKind;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::damping::{Damper, Held, Pace};
use super::status::{HeldStatus, SourceStatus};
use super::{Source, open};

/// Pauses before a source that has failed is asked again: each is twice the one before it.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often it is told how a source is. Whether it answers is told at once.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// Answers that may wait, of all sources together: each may have thousands of servers. Who has another one waits.
const ANSWERS_MAX: usize = 16;
/// Names of servers that are told of.
const NAMES_SHOWN_MAX: usize = 10;

/// The servers that a pool is to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundServers {
    pub pool: String,
    /// Who has named them: another one may have taken its place by now.
    pub source: ServerSource,
    pub servers: Vec<Server>,
}

pub struct Finder {
    pools: Vec<PoolFinder>,
    pace: Pace,
    /// The last number of a watch.
    numbers: u64,
    sender: SyncSender<(u64, Told)>,
    receiver: Receiver<(u64, Told)>,
    /// Readable when there is something to receive.
    bell: Bell,
    waking: PipeReader,
    found: VecDeque<Vec<FoundServers>>,
    statuses: VecDeque<SourceStatus>,
}

struct PoolFinder {
    number: u64,
    pool: Pool,
    source: ServerSource,
    damper: Damper,
    is_over: Arc<AtomicBool>,
    /// It is being asked once more.
    is_checking: bool,
    /// How it is, and what of it was told.
    status: SourceStatus,
    told: SourceStatus,
    told_at: Option<Instant>,
    held_told: Vec<String>,
}

/// What a thread has found.
enum Told {
    Answer(Result<Vec<Server>, String>),
    /// To a check.
    Checked(Result<Vec<Server>, String>),
}

#[derive(Clone)]
struct Bell(Arc<PipeWriter>);

impl Bell {
    fn ring(&self) {
        // Full is loud enough.
        _ = (&*self.0).write(&[1]);
    }
}

impl Finder {
    /// Of all pools of a snapshot, with their servers as it has them in effect.
    ///
    /// # Errors
    ///
    /// If there is no descriptor left.
    pub fn new(snapshot: &Snapshot, now: Instant) -> io::Result<Self> {
        let (waking, bell) = io::pipe()?;
        for fd in [waking.as_fd(), bell.as_fd()] {
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        let (sender, receiver) = sync_channel(ANSWERS_MAX);
        let mut finder = Self {
            pools: Vec::new(),
            pace: Pace::new(now),
            numbers: 0,
            sender,
            receiver,
            bell: Bell(Arc::new(bell)),
            waking,
            found: VecDeque::new(),
            statuses: VecDeque::new(),
        };
        finder.put_into_effect(snapshot);
        Ok(finder)
    }

    /// Goes by another snapshot: it is in effect.
    pub fn put_into_effect(&mut self, snapshot: &Snapshot) {
        let mut before = std::mem::take(&mut self.pools);
        for pool in &snapshot.pools {
            let Some(source) = pool.source() else { continue };
            let same =
                before.iter().position(|it| (&it.pool.name, &it.source) == (&pool.name, source));
            let finder = match same {
                Some(at) => PoolFinder { pool: pool.clone(), ..before.swap_remove(at) },
                None => self.follow(pool, source),
            };
            self.pools.push(finder);
        }
        for gone in before {
            gone.is_over.store(true, Ordering::Relaxed);
        }
    }

    fn follow(&mut self, pool: &Pool, source: &ServerSource) -> PoolFinder {
        self.numbers += 1;
        let (number, is_over) = (self.numbers, Arc::new(AtomicBool::new(false)));
        let tell = self.teller(number, &is_over);
        let opened = source.clone();
        spawn(move || follow(&mut *open(&opened), tell));
        let status = SourceStatus {
            pool: pool.name.clone(),
            kind: source.kind().to_owned(),
            source: source.to_string(),
            ..SourceStatus::default()
        };
        PoolFinder {
            number,
            pool: pool.clone(),
            source: source.clone(),
            damper: Damper::new(pool.found()),
            is_over,
            is_checking: false,
            told: SourceStatus::default(),
            status,
            told_at: None,
            held_told: Vec::new(),
        }
    }

    /// What tells of answers until it is over; false then.
    fn teller(
        &self,
        number: u64,
        is_over: &Arc<AtomicBool>,
    ) -> impl Fn(Result<Vec<Server>, String>) -> bool + use<> {
        let (sender, bell, ends) = (self.sender.clone(), self.bell.clone(), Arc::clone(is_over));
        move |answer| {
            // Full, somebody is about to look: all that is there has rung.
            let is_heard = sender.send((number, Told::Answer(answer))).is_ok();
            bell.ring();
            is_heard && !ends.load(Ordering::Relaxed)
        }
    }

    /// Becomes readable when there is something to advance for.
    pub fn waking(&self) -> BorrowedFd<'_> {
        self.waking.as_fd()
    }

    /// When there is something to advance for at the latest.
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let due = self.pools.iter().filter_map(|pool| pool.damper.due()).min();
        let due = due.map(|due| due.max(self.pace.next(now)));
        let others = self.pools.iter().filter_map(|pool| pool.poll_timeout(now)).min();
        due.into_iter().chain(others).min()
    }

    /// Does all there is to do without waiting.
    pub fn advance(&mut self, now: Instant) {
        let mut bytes = [0; 256];
        while self.waking.read(&mut bytes).is_ok_and(|size| size == bytes.len()) {}
        while let Ok((number, told)) = self.receiver.try_recv() {
            // Others are of those that are over.
            if let Some(pool) = self.pools.iter_mut().find(|it| it.number == number) {
                pool.take(told, now);
            }
        }
        let is_due = |pool: &PoolFinder| pool.damper.due().is_some_and(|due| now >= due);
        if self.pools.iter().any(is_due) && self.pace.take(now) {
            let found: Vec<_> = self.pools.iter_mut().filter_map(|it| it.found(now)).collect();
            if !found.is_empty() {
                self.found.push_back(found);
            }
        }
        for pool in &mut self.pools {
            if pool.damper.next_check(now).is_some_and(|at| now >= at) {
                pool.check(self.sender.clone(), self.bell.clone(), now);
            }
            self.statuses.extend(pool.tell(now));
        }
    }

    /// What is to be put into effect, together, since it was asked last.
    pub fn poll_found(&mut self) -> Option<Vec<FoundServers>> {
        self.found.pop_front()
    }

    /// How a source is, if it is to be told.
    pub fn poll_status(&mut self) -> Option<SourceStatus> {
        self.statuses.pop_front()
    }
}

impl Drop for Finder {
    fn drop(&mut self) {
        self.pools.iter().for_each(|pool| pool.is_over.store(true, Ordering::Relaxed));
    }
}

impl PoolFinder {
    fn take(&mut self, told: Told, now: Instant) {
        let is_check = matches!(told, Told::Checked(_));
        let (Told::Answer(answer) | Told::Checked(answer)) = told;
        let answer = answer.and_then(|found| self.pool.check_found(&found).map(|()| found));
        if is_check {
            self.is_checking = false;
            if answer.is_err() {
                // Who follows it finds that as well, if it lasts.
                return;
            }
        }
        match answer {
            Ok(found) => {
                self.damper.answered(&found, now);
                self.status.named = Some(found.len() as u64);
                self.status.answered_at = Some(unix_time());
                self.status.failure = None;
                self.set_answering(true);
            }
            Err(why) => {
                self.status.failure = Some(why);
                self.set_answering(false);
            }
        }
    }

    fn set_answering(&mut self, is_answering: bool) {
        let before = self.status.is_answering.replace(is_answering);
        let (pool, source) = (&self.pool.name, &self.source);
        match (before, is_answering) {
            (Some(true) | None, false) => {
                let why = self.status.failure.as_deref().unwrap_or_default();
                warn!(
                    kind = EventKind::SourceLost.name(),
                    pool,
                    "pool '{pool}': {source} does not tell which servers there are, and these stay: {why}"
                );
            }
            (Some(false), true) => {
                info!(
                    kind = EventKind::SourceFound.name(),
                    pool, "pool '{pool}': {source} answers"
                );
            }
            _ => {}
        }
    }

    fn found(&mut self, now: Instant) -> Option<FoundServers> {
        let servers = self.damper.take(now)?;
        Some(FoundServers { pool: self.pool.name.clone(), source: self.source.clone(), servers })
    }

    fn check(&mut self, sender: SyncSender<(u64, Told)>, bell: Bell, now: Instant) {
        self.damper.checking(now);
        if std::mem::replace(&mut self.is_checking, true) {
            return;
        }
        let (number, source) = (self.number, self.source.clone());
        spawn(move || {
            _ = sender.send((number, Told::Checked(open(&source).list())));
            bell.ring();
        });
    }

    fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let status =
            (self.status != self.told).then(|| self.told_at.map_or(now, |at| at + STATUS_INTERVAL));
        self.damper.next_check(now).into_iter().chain(status).min()
    }

    /// How it is, if that is to be told.
    fn tell(&mut self, now: Instant) -> Option<SourceStatus> {
        let held = self.damper.held(now);
        self.tell_held(held.as_ref());
        self.status.held = held.map(|held| held.status(now));
        let is_early = self.told_at.is_some_and(|at| now < at + STATUS_INTERVAL);
        let is_turn = self.status.is_answering != self.told.is_answering;
        if self.status == self.told || is_early && !is_turn {
            return None;
        }
        (self.told, self.told_at) = (self.status.clone(), Some(now));
        Some(self.status.clone())
    }

    fn tell_held(&mut self, held: Option<&Held>) {
        let names = held.map_or(&[][..], |held| &held.names);
        if *names == *self.held_told {
            return;
        }
        let is_more = names.iter().any(|name| !self.held_told.contains(name));
        self.held_told = names.to_vec();
        if let (true, Some(held)) = (is_more, held) {
            let (pool, source) = (&self.pool.name, &self.source);
            let (gone, of) = (held.names.len(), held.of);
            let shown = shown(&held.names);
            warn!(
                kind = EventKind::ServersHeld.name(),
                pool,
                "pool '{pool}': {source} does not name {gone} of {of} servers any more, which stay until it has said \
                 so three times over 30 seconds: {shown}"
            );
        }
    }
}

impl Held {
    fn status(&self, now: Instant) -> HeldStatus {
        HeldStatus {
            names: self.names.iter().take(NAMES_SHOWN_MAX).cloned().collect(),
            servers: self.names.len() as u64,
            of: self.of as u64,
            since: unix_time().saturating_sub(now.saturating_duration_since(self.since).as_secs()),
            answers: self.answers.into(),
        }
    }
}

/// Asks the sources of pools of which no server is known, and notes what they name. Takes no longer than `timeout`.
/// Returns the pools that still have none, each with why.
pub fn find_once(snapshot: &mut Snapshot, timeout: Duration) -> Vec<(String, String)> {
    let until = Instant::now() + timeout;
    let (sender, receiver) = channel();
    let is_unknown = |pool: &&Pool| pool.source().is_some() && pool.found().is_empty();
    let mut missing = Vec::new();
    for pool in snapshot.pools.iter().filter(is_unknown) {
        let Some(source) = pool.source().cloned() else { continue };
        missing.push((pool.name.clone(), format!("{source} does not answer in time")));
        let (name, sender) = (pool.name.clone(), sender.clone());
        spawn(move || _ = sender.send((name, open(&source).list())));
    }
    drop(sender);
    while let Ok((name, answer)) =
        receiver.recv_timeout(until.saturating_duration_since(Instant::now()))
    {
        let Some(pool) = snapshot.pools.iter_mut().find(|it| it.name == name) else { continue };
        let checked = answer.and_then(|found| pool.check_found(&found).map(|()| found));
        let source = pool.source().map(ToString::to_string).unwrap_or_default();
        let why = match checked {
            Ok(found) if pool.set_found(&found) => None,
            Ok(_) => Some(format!("{source} names no servers")),
            Err(why) => Some(format!("{source} does not tell which servers there are: {why}")),
        };
        match why {
            None => missing.retain(|(its, _)| *its != name),
            Some(why) => {
                missing
                    .iter_mut()
                    .filter(|(its, _)| *its == name)
                    .for_each(|it| it.1.clone_from(&why));
            }
        }
    }
    missing
}

/// Follows a source until nobody is told any more.
fn follow(source: &mut dyn Source, tell: impl Fn(Result<Vec<Server>, String>) -> bool) {
    let mut pause = PAUSE_MIN;
    loop {
        let mut answer = source.list().map(Some);
        while let Ok(Some(found)) = answer {
            if !tell(Ok(found)) {
                return;
            }
            let start = Instant::now();
            answer = source.wait();
            if answer.is_ok() && start.elapsed() >= PAUSE_MAX {
                pause = PAUSE_MIN;
            }
        }
        if let Err(why) = answer
            && !tell(Err(why))
        {
            return;
        }
        // Also before a list: whoever ends each watch at once is not asked all the time.
        thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Without a thread nobody is followed, which the next look at the status shows.
fn spawn(run: impl FnOnce() + Send + 'static) {
    if let Err(error) = thread::Builder::new().name("source".to_owned()).spawn(run) {
        warn!("a source is not asked: {error}");
    }
}

fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Some names, and how many more.
fn shown(names: &[String]) -> String {
    let list = names.iter().take(NAMES_SHOWN_MAX).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMES_SHOWN_MAX) {
        0 => list,
        more => format!("{list} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// It says something else all the time.
    struct Restless(Arc<AtomicUsize>);

    impl Source for Restless {
        fn list(&mut self) -> Result<Vec<Server>, String> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(Vec::new())
        }

        fn wait(&mut self) -> Result<Option<Vec<Server>>, String> {
            self.list().map(Some)
        }
    }

    #[test]
    fn who_changes_all_the_time_fills_no_memory_and_ends_with_those_who_listen() {
        let yaml = "a: {listen: 127.0.0.1:1, servers: [127.0.0.1:2:1]}\n";
        let loaded = cashew_config::parse("t.yml", yaml, &cashew_config::Context::of_system());
        let snapshot = loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot;
        let mut finder = Finder::new(&snapshot, Instant::now()).unwrap();
        let (said, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (tell, mut source) = (finder.teller(1, &is_over), Restless(Arc::clone(&said)));
        let thread = thread::spawn(move || follow(&mut source, tell));
        let until_said = |count: usize| {
            let until = Instant::now() + Duration::from_secs(20);
            while said.load(Ordering::Relaxed) < count {
                assert!(Instant::now() < until, "{} of {count}", said.load(Ordering::Relaxed));
                thread::sleep(Duration::from_millis(1));
            }
        };
        until_said(ANSWERS_MAX + 1);
        thread::sleep(Duration::from_millis(100));
        assert_eq!(said.load(Ordering::Relaxed), ANSWERS_MAX + 1);
        finder.advance(Instant::now());
        until_said(ANSWERS_MAX + 2);
        drop(finder);
        thread.join().unwrap();
    }
}
