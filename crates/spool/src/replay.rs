//! The replayer: has servers forget what was kept for them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cashew_config::Snapshot;
use cashew_config::snapshot::{Endpoint, TopologyState};
use cashew_metrics::{EventKind, Segments, ServerId, monotonic_ms};
use cashew_tls::Security;
use tracing::{info, warn};

use crate::forget::{Forgetting, Speech};
use crate::record::Record;
use crate::segment::{self, Reader};
use crate::write::now_ms;

/// How often it is looked whether there is something to forget, and a server that cannot be reached is tried.
const LOOK_INTERVAL: Duration = Duration::from_millis(25);
/// A server that refuses what it is told is left alone for so long.
const PAUSE: Duration = Duration::from_millis(250);
/// A server that hung, or could not be reached, may have taken writes that it has yet to run: they came before what
/// it is to forget, on connections of their own. It has so long for them.
const SETTLE: Duration = Duration::from_millis(200);
/// Nothing comes any more if nothing has for so long: workers say every tenth of a second that records are on
/// their way.
const QUIET_US: u64 = 300_000;
/// Records that are read at once.
const BATCH: usize = 4096;
/// Keys that a server is told at once, and the pause behind that: so it has time for others.
const CHUNK: usize = 256;
const PACE: Duration = Duration::from_millis(3);
/// Keys that are remembered as forgotten, so that they are not told twice.
const SEEN_MAX: usize = 1 << 20;
/// The log is told of a server that refuses what it is told so seldom at most.
const TELL_AGAIN: Duration = Duration::from_secs(10);
/// How often it is counted what waits, while a server cannot be reached.
const COUNT_INTERVAL: Duration = Duration::from_millis(500);

/// A share of a pool's keys, and who is to forget some of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Of the server, or of the group.
    name: String,
    pool: String,
    directory: PathBuf,
    /// Who takes the writes.
    endpoint: Endpoint,
    primary: ServerId,
    /// All who may answer reads.
    members: Vec<ServerId>,
    hold: Duration,
    ttl_ms: Option<u64>,
    speech: Speech,
}

/// All targets of a configuration, in the states of its pools' topologies.
pub fn targets(snapshot: &Snapshot, states: &[TopologyState], segments: &Segments) -> Vec<Target> {
    let mut targets = Vec::new();
    for (at, pool) in snapshot.pools.iter().enumerate() {
        let Some(spool) = &pool.spool else { continue };
        let security = pool.server_tls.clone().map(Security::new).map(Arc::new);
        for (shard, group) in pool.shards().iter().enumerate() {
            let primary = states
                .get(at)
                .map_or(group.primary, |state| state.primary_of(shard as u32, group.primary));
            targets.push(Target {
                name: group.name.clone(),
                pool: pool.name.clone(),
                directory: segment::directory(&spool.directory, &pool.name, &group.name),
                endpoint: pool.servers[primary as usize].endpoint.clone(),
                primary: segments.layout().server(at, primary as usize),
                members: group
                    .members()
                    .map(|it| segments.layout().server(at, it as usize))
                    .collect(),
                hold: Duration::from_millis(spool.hold_ms),
                ttl_ms: spool.ttl_ms,
                speech: Speech {
                    protocol: pool.protocol,
                    credentials: pool.server_auth.of(&pool.servers[primary as usize].name).to_vec(),
                    security: security.clone(),
                },
            });
        }
    }
    targets
}

/// Tells the log of what no server will be told: those that it was kept for are in no pool any more.
fn tell_of_strangers(targets: &BTreeMap<PathBuf, Target>) {
    let pools: BTreeSet<&Path> = targets.keys().filter_map(|it| it.parent()).collect();
    for entry in
        pools.into_iter().filter_map(|pool| std::fs::read_dir(pool).ok()).flatten().flatten()
    {
        let directory = entry.path();
        if !targets.contains_key(&directory) && !segment::list(&directory).is_empty() {
            warn!(
                "nobody is told what is in {}: no server of its pool has this name",
                directory.display()
            );
        }
    }
}

/// Has servers held that are to forget what an earlier instance has kept. To be called before anybody serves.
pub fn mark_leftovers(targets: &[Target], segments: &Segments) {
    for target in targets.iter().filter(|it| !segment::list(&it.directory).is_empty()) {
        segments.note_spooled(target.primary, now_us());
    }
}

/// What is followed at the moment.
struct Followed {
    targets: BTreeMap<PathBuf, Target>,
    segments: Arc<Segments>,
    /// Whoever has an older number looks again.
    version: u64,
    busy: HashSet<PathBuf>,
}

type Shared = Arc<Mutex<Option<Followed>>>;

/// The threads that have servers forget. They end when it is dropped.
#[derive(Default)]
pub struct Replayer {
    shared: Shared,
    thread: Option<JoinHandle<()>>,
}

impl Replayer {
    /// Takes these targets for those before.
    pub fn follow(&mut self, targets: Vec<Target>, segments: Arc<Segments>) {
        let targets: BTreeMap<PathBuf, Target> =
            targets.into_iter().map(|target| (target.directory.clone(), target)).collect();
        let is_idle = targets.is_empty();
        tell_of_strangers(&targets);
        {
            let mut shared = lock(&self.shared);
            let before = shared.take();
            let version = before.as_ref().map_or(0, |before| before.version) + 1;
            let busy = before.map(|before| before.busy).unwrap_or_default();
            *shared = Some(Followed { targets, segments, version, busy });
        }
        if self.thread.is_none() && !is_idle {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("spool".to_owned());
            self.thread = thread
                .spawn(move || watch(&shared))
                .map_err(|error| warn!("servers are not told what to forget: {error}"))
                .ok();
        }
    }
}

impl Drop for Replayer {
    fn drop(&mut self) {
        *lock(&self.shared) = None;
    }
}

fn lock(shared: &Mutex<Option<Followed>>) -> MutexGuard<'_, Option<Followed>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins with each target that has something to forget.
fn watch(shared: &Shared) {
    let mut seen = 0;
    loop {
        {
            let mut followed = lock(shared);
            let Some(Followed { targets, segments, busy, version }) = &mut *followed else {
                return;
            };
            // Whatever is kept later has its server held.
            let is_new = std::mem::replace(&mut seen, *version) != *version;
            let is_due = |target: &Target| {
                let is_held = target.members.iter().any(|&it| segments.spool(it).is_held);
                is_held || is_new && !segment::list(&target.directory).is_empty()
            };
            let due = targets.values().filter(|it| !busy.contains(&it.directory) && is_due(it));
            let due: Vec<PathBuf> = due.map(|target| target.directory.clone()).collect();
            for directory in due {
                let shared = Arc::clone(shared);
                let place = directory.clone();
                let thread = std::thread::Builder::new().name("spool-server".to_owned());
                match thread.spawn(move || replay(&shared, &place)) {
                    Ok(_) => drop(busy.insert(directory)),
                    Err(error) => warn!("a server is not told what to forget: {error}"),
                }
            }
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Replays what is in a directory, until nothing is left or nobody wants it any more.
fn replay(shared: &Shared, directory: &Path) {
    let mut replay = Replay::new(directory);
    let mut is_told = false;
    while let Some((target, segments)) = replay.target(shared) {
        if !std::mem::replace(&mut is_told, true) {
            info!(
                kind = EventKind::SpoolBegun.name(),
                pool = target.pool,
                server = target.name,
                "pool {}: server {} missed writes: it is told what to forget when it is there",
                target.pool,
                target.name
            );
        }
        if replay.advance(&target, &segments) {
            break;
        }
    }
    if let Some(followed) = &mut *lock(shared) {
        followed.busy.remove(directory);
    }
}

struct Replay<'d> {
    directory: &'d Path,
    readers: BTreeMap<PathBuf, Reader>,
    connection: Option<Forgetting>,
    /// Nobody was there when it was last tried: whoever is there next has taken nothing before.
    was_refused: bool,
    settled_at: Option<Instant>,
    /// In milliseconds since 1970.
    connected_ms: u64,
    /// Since when the server is there, whatever it says to what it is told.
    back_since: Option<Instant>,
    told_at: Option<Instant>,
    /// What was forgotten on this connection.
    seen: HashSet<(u32, Vec<u8>)>,
    count: u64,
    counted_at: Option<Instant>,
    /// The reads of the server were let through before everything was forgotten.
    is_let_go: bool,
    version: u64,
}

impl<'d> Replay<'d> {
    fn new(directory: &'d Path) -> Self {
        Self {
            directory,
            readers: BTreeMap::new(),
            connection: None,
            was_refused: false,
            settled_at: None,
            connected_ms: 0,
            back_since: None,
            told_at: None,
            seen: HashSet::new(),
            count: 0,
            counted_at: None,
            is_let_go: false,
            version: 0,
        }
    }

    /// Whom it is about now. With another configuration, or another primary, it connects anew.
    fn target(&mut self, shared: &Shared) -> Option<(Target, Arc<Segments>)> {
        let followed = lock(shared);
        let Followed { targets, segments, version, .. } = followed.as_ref()?;
        if *version != self.version {
            self.version = *version;
            self.connection = None;
        }
        Some((targets.get(self.directory)?.clone(), Arc::clone(segments)))
    }

    /// One step. Returns whether everything is forgotten.
    fn advance(&mut self, target: &Target, segments: &Segments) -> bool {
        if self.counted_at.is_none_or(|at| at.elapsed() >= COUNT_INTERVAL) {
            self.count_waiting(target, segments);
        }
        if self.connection.is_none() {
            match Forgetting::connect(&target.endpoint, &target.speech) {
                Ok(connection) => {
                    self.connection = Some(connection);
                    let is_new = std::mem::take(&mut self.was_refused);
                    self.settled_at = (!is_new).then(|| Instant::now() + SETTLE);
                    self.connected_ms = now_ms();
                    self.back_since.get_or_insert_with(Instant::now);
                    self.seen.clear();
                }
                Err(error) => {
                    self.was_refused = error.kind() == io::ErrorKind::ConnectionRefused;
                    self.note_failure(target, &error);
                    std::thread::sleep(LOOK_INTERVAL);
                }
            }
        }
        let is_over = self.back_since.is_some_and(|since| since.elapsed() >= target.hold);
        if !self.is_let_go && is_over {
            self.is_let_go = true;
            if target.members.iter().any(|&it| segments.spool(it).is_held) {
                warn!(
                    kind = EventKind::SpoolHoldOver.name(),
                    pool = target.pool,
                    server = target.name,
                    "pool {}: server {} answers reads before it has forgotten everything: \"hold\" is over",
                    target.pool,
                    target.name
                );
            }
        }
        if self.is_let_go {
            target.members.iter().for_each(|&it| segments.set_forgotten(it, now_us()));
        }
        if self.connection.is_none() {
            return false;
        }
        if self.settled_at.is_some_and(|at| Instant::now() < at) {
            std::thread::sleep(LOOK_INTERVAL);
            return false;
        }
        if self.settled_at.take().is_some() {
            self.connected_ms = now_ms();
        }
        // Before the files are looked at.
        let newest = target.members.iter().map(|&it| segments.spooled_us(it)).max().unwrap_or(0);
        match self.forget_some(target, segments) {
            Ok(0) => self.settle(target, segments, newest),
            Ok(_) => false,
            Err(error) => {
                self.note_failure(target, &error);
                self.connection = None;
                std::thread::sleep(PAUSE);
                false
            }
        }
    }

    /// A server that refuses what it is told is there all the same, and is not kept from reads for ever. One that
    /// reads its data, or cannot be reached, is not.
    fn note_failure(&mut self, target: &Target, error: &io::Error) {
        let refusal = error.to_string();
        if error.kind() != io::ErrorKind::Other || refusal.contains("-LOADING") {
            (self.back_since, self.is_let_go) = (None, false);
            return;
        }
        self.back_since.get_or_insert_with(Instant::now);
        if self.told_at.is_none_or(|at| at.elapsed() >= TELL_AGAIN) {
            self.told_at = Some(Instant::now());
            warn!(
                kind = EventKind::SpoolRefused.name(),
                pool = target.pool,
                server = target.name,
                "pool {}: server {} cannot be told what to forget: {refusal}",
                target.pool,
                target.name
            );
        }
    }

    /// Has the server forget the next keys. Returns how many records that was.
    fn forget_some(&mut self, target: &Target, segments: &Segments) -> io::Result<u64> {
        let Some(connection) = &mut self.connection else { return Ok(0) };
        for path in segment::list(self.directory) {
            let reader = match self.readers.entry(path) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    match Reader::open(entry.key()) {
                        Ok(Some(reader)) => entry.insert(reader),
                        Ok(None) => continue,
                        Err(error) => {
                            warn!("{} is left alone: {error}", entry.key().display());
                            let aside = entry.key().with_extension("unreadable");
                            let _ = std::fs::rename(entry.key(), aside);
                            continue;
                        }
                    }
                }
            };
            // A file that cannot be read is no reason to keep its server from reads for ever.
            let (records, end) = reader.next(BATCH).map_err(io::Error::other)?;
            if records.is_empty() {
                continue;
            }
            let oldest = target.ttl_ms.map_or(0, |ttl_ms| now_ms().saturating_sub(ttl_ms));
            let seen = &self.seen;
            let is_due = |record: &&Record| {
                // What was noted before a key was forgotten is done with it.
                let is_done = record.at_ms < self.connected_ms
                    && seen.contains(&(record.database, record.key.clone()));
                record.at_ms >= oldest && !is_done
            };
            let due: Vec<&Record> = records.iter().filter(is_due).collect();
            for chunk in due.chunks(CHUNK) {
                connection.forget(chunk)?;
                std::thread::sleep(PACE);
            }
            if self.seen.len() + due.len() > SEEN_MAX {
                self.seen.clear();
            }
            self.seen.extend(due.iter().map(|record| (record.database, record.key.clone())));
            let count = records.len() as u64;
            reader.take(count, end);
            self.count += count;
            if let Some(&first) = target.members.first() {
                segments.add_replayed(first, count);
            }
            return Ok(count);
        }
        Ok(0)
    }

    /// All is forgotten that is in files. Returns whether nothing comes any more.
    fn settle(&mut self, target: &Target, segments: &Segments, newest: u64) -> bool {
        // Also while more is on its way: it may wait for the room that they take.
        self.remove_told(target);
        if now_us().saturating_sub(newest) < QUIET_US {
            std::thread::sleep(LOOK_INTERVAL);
            return false;
        }
        target.members.iter().for_each(|&it| segments.set_forgotten(it, newest));
        self.count_waiting(target, segments);
        if !segment::list(self.directory).is_empty() {
            std::thread::sleep(LOOK_INTERVAL);
            return false;
        }
        if self.count > 0 {
            info!(
                kind = EventKind::SpoolFinished.name(),
                pool = target.pool,
                server = target.name,
                "pool {}: server {} has forgotten {} keys that it could not be told to before",
                target.pool,
                target.name,
                self.count
            );
        }
        true
    }

    /// Removes the files whose keys are all told.
    fn remove_told(&mut self, target: &Target) {
        let removed = |(path, reader): (&PathBuf, &Reader)| match reader.remove(path) {
            Ok(is_removed) => {
                if is_removed && reader.has_lost() {
                    warn!(
                        pool = target.pool,
                        server = target.name,
                        "has not forgotten all: parts of {} were damaged",
                        path.display()
                    );
                }
                is_removed.then(|| path.clone())
            }
            Err(error) => {
                warn!("cannot remove {}: {error}", path.display());
                None
            }
        };
        let removed: Vec<PathBuf> = self.readers.iter().filter_map(removed).collect();
        removed.iter().for_each(|path| drop(self.readers.remove(path)));
    }

    fn count_waiting(&mut self, target: &Target, segments: &Segments) {
        self.counted_at = Some(Instant::now());
        let (mut depth, mut oldest) = (0, 0);
        for path in segment::list(self.directory) {
            let reader = match self.readers.get_mut(&path) {
                Some(reader) => reader,
                None => match Reader::open(&path) {
                    Ok(Some(reader)) => self.readers.entry(path).or_insert(reader),
                    Ok(None) | Err(_) => continue,
                },
            };
            depth += reader.count().unwrap_or(0);
            if oldest == 0
                && let Ok((records, _)) = reader.next(1)
            {
                oldest = records.first().map_or(0, |record| record.at_ms / 1000);
            }
        }
        if let Some(&first) = target.members.first() {
            segments.set_spool(first, depth, oldest);
        }
    }
}

fn now_us() -> u64 {
    // Of the same clock as that of workers; a part of a millisecond later rather than earlier.
    monotonic_ms() * 1000 + 999
}
