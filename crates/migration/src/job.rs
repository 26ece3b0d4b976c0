//! A move that is under way: what it is to do, and how far it is.

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cashew_metrics::EventKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use crate::bucket::Bucket;
use crate::memcached::Inventory;
use crate::migrator::Task;

/// How a move is, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MoveStatus {
    pub route: String,
    pub directory: String,
    /// The pool that serves.
    pub from: String,
    /// The copy.
    pub to: String,
    /// `ready`, `paused`, `connecting`, `copying`, `in step` or `comparing`.
    pub state: String,
    /// What `to` was in the configuration serves.
    pub is_cut_over: bool,
    /// All that the walk has to look at, about.
    pub keys: u64,
    pub keys_walked: u64,
    pub keys_copied: u64,
    pub keys_removed: u64,
    pub bytes_copied: u64,
    /// Keys copied in the last second.
    pub keys_per_second: u64,
    /// Keys that have changed and are not copied yet, and for how long the first has waited.
    pub keys_behind: u64,
    pub lag_ms: u64,
    /// `None` if it is in step, or if nobody knows.
    pub eta_s: Option<u64>,
    /// Keys that were compared in the last comparison, or in the one under way.
    pub keys_compared: u64,
    /// Keys that differed though nobody had changed them. Each was copied again.
    pub mismatches: u64,
    /// When a comparison last found none, in seconds since 1970.
    pub verified_at: Option<u64>,
    /// Keys that the other side does not take.
    pub keys_refused: u64,
    /// Keys that are at servers where their names do not place them. They are not copied.
    pub keys_misplaced: u64,
    /// How often it began from the start.
    pub walks: u64,
    /// Since when all this is counted, in nanoseconds since 1970. Another one if the copier has begun anew.
    pub counted_since: u64,
    pub errors: u64,
    pub last_error: Option<String>,
}

/// Parts of a job, each of which one thread does: of Redis one for each primary, of memcached one.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub(crate) is_connected: bool,
    pub(crate) is_in_step: bool,
    pub(crate) keys: u64,
    pub(crate) keys_walked: u64,
    pub(crate) keys_behind: u64,
    pub(crate) lag: Duration,
    /// Of memcached: what changes is found by lists, and the lag is the time between two.
    pub(crate) is_listed: bool,
    /// The other side has refused the last keys as it takes none for now.
    pub(crate) is_stuck: bool,
    /// The barriers that it has passed.
    pub(crate) barrier: u64,
    /// The comparisons that it has made, and what the last one found.
    pub(crate) comparison: u64,
    pub(crate) mismatches: u64,
    pub(crate) compared: u64,
    /// How long a pause for cutting over would be, about.
    pub(crate) pause: Duration,
    /// Of a cluster: why nobody can say which keys it has, such as slots that are being moved.
    pub(crate) unsettled: Option<String>,
    /// When others than this gateway were last seen to write while its clients waited, and a key of theirs.
    pub(crate) foreign: Option<(Instant, Vec<u8>)>,
    /// Keys that are here though their names place them elsewhere.
    misplaced: u64,
    /// What its server was when it was last looked at.
    known: Option<Known>,
}

/// What a source was, by which it is seen that it has lost what it had. It is kept in the directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Known {
    pub(crate) pool: String,
    pub(crate) server: String,
    pub(crate) run_id: String,
    pub(crate) keys: u64,
}

impl Known {
    /// Whether it is worth being kept in the place of another one.
    fn is_news(&self, kept: &Self) -> bool {
        let names = |it: &Self| (it.pool.clone(), it.server.clone(), it.run_id.clone());
        names(self) != names(kept) || self.keys.abs_diff(kept.keys) > kept.keys / 8
    }
}

#[derive(Debug, Default)]
pub(crate) struct Control {
    pub(crate) is_started: bool,
    pub(crate) is_paused: bool,
    pub(crate) is_ended: bool,
    /// Why it does not go on though it was begun.
    pub(crate) held: Option<String>,
    /// It connects and listens, and writes nothing yet: the other side serves still, and has the same.
    pub(crate) is_standby: bool,
    pub(crate) barrier: u64,
    /// Whoever has passed a barrier writes nothing until it is called off, or ends.
    pub(crate) called_off: u64,
    /// All have passed it: nobody begins anew behind it either.
    pub(crate) is_frozen: bool,
    pub(crate) comparison: u64,
    pub(crate) parts: Vec<Part>,
    /// Threads that work at it.
    pub(crate) running: usize,
    keys_copied: u64,
    keys_removed: u64,
    bytes_copied: u64,
    /// Those that the other side did not take last.
    refused: HashSet<Vec<u8>>,
    walks: u64,
    errors: u64,
    last_error: Option<String>,
    total_mismatches: u64,
    /// The last comparison that found nothing, and when that was.
    clean: u64,
    verified_at: Option<u64>,
    /// How often it has compared by itself.
    tries: u32,
    /// Pools of clusters that have told of other owners of slots.
    doubts: BTreeSet<String>,
    /// Keys that are not where they belong need not be copied.
    pub(crate) ignores_misplaced: bool,
    /// The last whole second, what was copied by then, and how much that was in a second.
    second: Option<(Instant, u64, u64)>,
    was_in_step: bool,
}

pub(crate) struct Job {
    pub(crate) task: Task,
    control: Mutex<Control>,
    changed: Condvar,
    bucket: Mutex<Bucket>,
    /// Of memcached: what the source of this one has, or at a barrier that of the one that goes the other way.
    inventory: Mutex<Option<Inventory>>,
    /// Nanoseconds since 1970.
    since: u64,
    /// Those that it takes the place of. Nothing is copied before they have ended.
    before: Mutex<Vec<Arc<Self>>>,
}

/// Keys that are remembered as refused. With one of them nothing is cut over.
const REFUSED_MAX: usize = 10_000;
/// Comparisons that it makes by itself, until one finds nothing.
const TRIES_MAX: u32 = 3;

/// Mismatches that are each told of; of those beyond it is one of as many.
const MISMATCHES_TOLD: u64 = 1000;
/// For how long it is an obstacle that others were seen to write.
const FOREIGN_FOR: Duration = Duration::from_secs(5);

/// The job is over for whoever works at it.
pub(crate) struct Ended;

impl Control {
    pub(crate) fn refused_count(&self) -> usize {
        self.refused.len()
    }

    fn may_copy(&self) -> bool {
        self.is_started && !self.is_paused && !self.is_standby && !self.is_frozen && !self.is_ended
    }

    /// Of a copy that is like what it is copied from, and stands by.
    pub(crate) fn standby() -> Self {
        Self { is_standby: true, is_started: true, clean: 1, ..Self::default() }
    }
}

impl Job {
    pub(crate) fn new(task: Task, parts: usize, control: Control, before: Vec<Arc<Self>>) -> Self {
        let before = Mutex::new(before);
        let bucket = Mutex::new(Bucket::new(task.keys_per_second, task.bytes_per_second));
        let parts = (0..parts).map(|_| Part::default()).collect();
        let control = Mutex::new(Control { parts, ..control });
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        Self {
            task,
            control,
            changed: Condvar::new(),
            bucket,
            inventory: Mutex::default(),
            since: since as u64,
            before,
        }
    }

    pub(crate) fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Control)) {
        change(&mut self.control());
        self.changed.notify_all();
    }

    pub(crate) fn part(&self, part: usize, change: impl FnOnce(&mut Part)) {
        change(&mut self.control().parts[part]);
        self.changed.notify_all();
    }

    /// Waits a moment for something to change.
    pub(crate) fn wait(&self, moment: Duration) {
        let control = self.control();
        if !control.is_ended {
            drop(self.changed.wait_timeout(control, moment));
        }
    }

    /// Waits until it may copy.
    pub(crate) fn wait_to_copy(&self) -> Result<(), Ended> {
        let mut control = self.control();
        loop {
            if control.is_ended {
                return Err(Ended);
            }
            if control.may_copy() {
                return Ok(());
            }
            control = self.changed.wait(control).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until nobody else copies to the same servers.
    pub(crate) fn wait_for_others(&self) {
        let before = || self.before.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            before().retain(|job| job.control().running > 0);
            if before().is_empty() || self.is_ended() {
                return;
            }
            self.wait(Duration::from_millis(10));
        }
    }

    pub(crate) fn leave_inventory(&self, inventory: Inventory) {
        *self.inventory.lock().unwrap_or_else(PoisonError::into_inner) = Some(inventory);
    }

    pub(crate) fn take_inventory(&self) -> Option<Inventory> {
        self.inventory.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.control().is_ended
    }

    pub(crate) fn may_copy(&self) -> bool {
        self.control().may_copy()
    }

    /// Whether a barrier that a part has passed holds.
    pub(crate) fn is_held(&self, barrier: u64) -> bool {
        let control = self.control();
        control.called_off < barrier && !control.is_ended
    }

    pub(crate) fn copied(&self, keys: u64, bytes: u64, removed: u64) {
        let mut control = self.control();
        control.keys_copied += keys;
        control.bytes_copied += bytes;
        control.keys_removed += removed;
    }

    /// A walk has copied as much. What follows changes is not limited, or it would never be in step.
    pub(crate) fn spend(&self, keys: u64, bytes: u64) {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.spend(keys, bytes, Instant::now());
    }

    /// How long a walk has to wait.
    pub(crate) fn debt(&self) -> Duration {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner).debt(Instant::now())
    }

    pub(crate) fn refused(&self, key: &[u8], server: &str, why: &str) {
        let mut control = self.control();
        if control.refused.len() < REFUSED_MAX {
            control.refused.insert(key.to_vec());
        }
        drop(control);
        self.warn_of_key(key, server, &format!("cannot be copied: {why}"));
    }

    fn warn_of_key(&self, key: &[u8], server: &str, what: &str) {
        let Task { route, .. } = &self.task;
        warn!(
            kind = EventKind::MoveKeyRefused.name(),
            pool = route,
            server,
            "route {route}: key \"{}\" {what}",
            key.escape_ascii()
        );
    }

    /// The other side has these keys now.
    pub(crate) fn accepted<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        let mut control = self.control();
        if !control.refused.is_empty() {
            keys.for_each(|key| {
                control.refused.remove(key);
            });
        }
    }

    /// Keys that are gone need not be copied.
    pub(crate) fn forget_refused(&self, is_there: impl Fn(&Vec<u8>) -> bool) {
        self.control().refused.retain(is_there);
    }

    /// Somebody else has written to the copy: what was compared holds no more.
    pub(crate) fn unverified(&self) {
        let mut control = self.control();
        (control.clean, control.verified_at) = (0, None);
    }

    /// The map that a cluster was found by may be out of date.
    pub(crate) fn doubt(&self, pool: &str) {
        self.control().doubts.insert(pool.to_owned());
    }

    pub(crate) fn take_doubts(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.control().doubts)
    }

    pub(crate) fn mismatch(&self, key: &[u8]) {
        let mut control = self.control();
        control.total_mismatches += 1;
        // Who writes to the copy all the time is not to fill the log.
        let is_told = control.total_mismatches <= MISMATCHES_TOLD
            || control.total_mismatches.is_multiple_of(MISMATCHES_TOLD);
        drop(control);
        if !is_told {
            return;
        }
        let Task { route, .. } = &self.task;
        warn!(
            kind = EventKind::MoveMismatch.name(),
            pool = route,
            "route {route}: key \"{}\" differs in the copy though it has not changed; it is copied again",
            key.escape_ascii()
        );
    }

    /// Nothing is copied until an operator says so.
    pub(crate) fn hold(&self, why: &str) {
        let Task { route, .. } = &self.task;
        self.change(|control| {
            control.is_paused = true;
            control.errors += 1;
            control.last_error = Some(why.to_owned());
        });
        warn!(
            kind = EventKind::MovePaused.name(),
            pool = route,
            "route {route}: nothing is copied for now: {why}"
        );
    }

    fn known_file(&self, part: usize) -> PathBuf {
        self.task.directory.join(format!("source-{part}.json"))
    }

    /// What a part's source was, also before this process was started.
    pub(crate) fn known(&self, part: usize) -> Option<Known> {
        if let Some(known) = self.control().parts[part].known.clone() {
            return Some(known);
        }
        let text = std::fs::read(self.known_file(part)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub(crate) fn know(&self, part: usize, known: Known) {
        let mut control = self.control();
        let kept = &mut control.parts[part].known;
        let is_news = kept.as_ref().is_none_or(|kept| known.is_news(kept));
        if !is_news {
            return;
        }
        *kept = Some(known.clone());
        drop(control);
        let (file, next) = (self.known_file(part), self.known_file(part).with_extension("next"));
        let text = serde_json::to_vec(&known).unwrap_or_default();
        // Without it only this process knows.
        if let Err(error) = std::fs::write(&next, text).and_then(|()| std::fs::rename(next, &file))
        {
            warn!("{}: {error}", file.display());
        }
    }

    pub(crate) fn misplaced(&self, part: usize, count: u64, example: Option<&[u8]>, server: &str) {
        let mut control = self.control();
        let before = std::mem::replace(&mut control.parts[part].misplaced, count);
        drop(control);
        if let Some(key) = example.filter(|_| before == 0 && count > 0) {
            let what = "is not where its name places it, and is not copied";
            self.warn_of_key(key, server, what);
        }
    }

    /// The copy has dropped keys for lack of memory: what was compared holds no more.
    pub(crate) fn evicts(&self, server: &str, keys: u64) {
        self.failed(server, &format!("it has evicted {keys} keys: it lacks memory"));
        self.change(|control| (control.clean, control.verified_at) = (0, None));
    }

    pub(crate) fn failed(&self, server: &str, why: &str) {
        let mut control = self.control();
        control.errors += 1;
        control.last_error = Some(format!("{server}: {why}"));
    }

    /// A part has lost a server, and begins from the start.
    pub(crate) fn lost(&self, part: usize, why: &str) {
        let Task { route, .. } = &self.task;
        let mut control = self.control();
        control.errors += 1;
        control.last_error = Some(why.to_owned());
        let was_connected = control.parts[part].is_connected;
        (control.parts[part].is_connected, control.parts[part].is_in_step) = (false, false);
        (control.was_in_step, control.verified_at, control.clean) = (false, None, 0);
        drop(control);
        self.changed.notify_all();
        if was_connected {
            warn!(
                kind = EventKind::MoveInterrupted.name(),
                pool = route,
                "route {route}: copying begins from the start: {why}"
            );
        }
    }

    pub(crate) fn walk_begins(&self, part: usize, keys: u64) {
        let mut control = self.control();
        control.walks += 1;
        let it = &mut control.parts[part];
        (it.is_connected, it.is_in_step, it.keys, it.keys_walked) = (true, false, keys, 0);
    }

    /// A part has copied everything, and follows what changes. When all have, what there is is compared.
    pub(crate) fn in_step(&self, part: usize) {
        let Task { route, from, to, .. } = &self.task;
        let mut control = self.control();
        control.parts[part].is_in_step = true;
        let is_news = control.parts.iter().all(|it| it.is_in_step) && !control.was_in_step;
        if is_news {
            control.was_in_step = true;
            control.tries = 1;
            control.comparison += 1;
            info!(
                kind = EventKind::MoveInStep.name(),
                pool = route,
                "route {route}: pool {} has what pool {} has, and follows; both are compared",
                to.pool,
                from.pool
            );
        }
        drop(control);
        self.changed.notify_all();
    }

    /// The comparison that a part is to make, if there is one.
    pub(crate) fn wanted_comparison(&self, part: usize) -> Option<u64> {
        let control = self.control();
        let wanted = control.comparison;
        (control.parts[part].comparison < wanted && control.parts[part].is_in_step)
            .then_some(wanted)
    }

    pub(crate) fn wanted_barrier(&self, part: usize) -> Option<u64> {
        let control = self.control();
        (control.parts[part].barrier < control.barrier).then_some(control.barrier)
    }

    /// A part has made a comparison.
    pub(crate) fn compared(&self, part: usize, number: u64, mismatches: u64) {
        let Task { route, from, to, .. } = &self.task;
        let mut control = self.control();
        (control.parts[part].comparison, control.parts[part].mismatches) = (number, mismatches);
        let is_over = control.parts.iter().all(|it| it.comparison >= control.comparison);
        if is_over {
            let found: u64 = control.parts.iter().map(|it| it.mismatches).sum();
            let keys: u64 = control.parts.iter().map(|it| it.compared).sum();
            if found == 0 {
                control.clean = number;
                control.verified_at = Some(unix_s());
            } else {
                (control.clean, control.verified_at) = (0, None);
                if control.tries < TRIES_MAX {
                    control.tries += 1;
                    control.comparison += 1;
                }
            }
            info!(
                kind = EventKind::MoveCompared.name(),
                pool = route,
                "route {route}: {keys} keys are compared: {found} differ{}",
                if from.is_cluster() || to.is_cluster() {
                    ", or are on their way between nodes"
                } else {
                    ""
                }
            );
        }
        drop(control);
        self.changed.notify_all();
    }

    /// Why clients cannot be served by the copy now.
    pub(crate) fn obstacle(&self) -> Option<String> {
        let control = self.control();
        let lost =
            || control.last_error.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
        if control.held.is_some() {
            return control.held.clone();
        }
        if !control.is_started {
            return Some("nothing is copied yet: begin with `cashew migrate start`".to_owned());
        }
        if control.is_paused {
            return Some("it is paused: go on with `cashew migrate resume`".to_owned());
        }
        if !control.parts.iter().all(|it| it.is_in_step) {
            let what = "not everything is copied yet: `cashew migrate status` tells how far it is";
            return Some(format!("{what}{}", lost()));
        }
        let is_late = |at: Instant| at.elapsed() < FOREIGN_FOR;
        let foreign = control.parts.iter().filter_map(|it| it.foreign.as_ref());
        if let Some((_, key)) = foreign.into_iter().find(|(at, _)| is_late(*at)) {
            return Some(format!(
                "others than this gateway write to pool {}, such as key \"{}\": they would go on doing so; stop them, or have \
                 them lead here",
                self.task.from.pool,
                key.escape_ascii()
            ));
        }
        if let Some(why) = control.parts.iter().find_map(|it| it.unsettled.clone()) {
            return Some(format!("{why}: wait until that is over"));
        }
        if control.parts.iter().any(|it| it.is_stuck) {
            return Some(format!("the copy takes nothing for now{}", lost()));
        }
        if let Some(part) = control.parts.iter().find(|it| !it.is_listed && it.lag > PAUSE_MAX) {
            let seconds = part.lag.as_secs();
            return Some(format!(
                "changes wait for {seconds} s to be copied: wait until it has caught up"
            ));
        }
        if !control.refused.is_empty() {
            let keys = control.refused.len();
            return Some(format!("{keys} keys cannot be copied: `cashew events` tells which"));
        }
        let misplaced: u64 = control.parts.iter().map(|it| it.misplaced).sum();
        if misplaced > 0 && !control.ignores_misplaced {
            return Some(format!(
                "{misplaced} keys are not where their names place them, and are not copied: `cashew events` names one; \
                 with --ignore-misplaced they are left behind"
            ));
        }
        if control.clean == 0 {
            let what = match control.parts.iter().all(|it| it.comparison >= control.comparison) {
                true => {
                    "the last comparison found keys that differ: `cashew migrate verify` repeats it"
                }
                false => "both sides are being compared",
            };
            return Some(what.to_owned());
        }
        let pause = control.parts.iter().map(|it| it.pause).max().unwrap_or_default();
        if pause > PAUSE_MAX {
            return Some(format!(
                "clients would have to wait for about {} s, and {} s are allowed: too many keys have to be looked at",
                pause.as_secs(),
                PAUSE_MAX.as_secs()
            ));
        }
        None
    }

    pub(crate) fn status(&self) -> MoveStatus {
        let Task { route, directory, from, to, is_cut_over, .. } = &self.task;
        let debt = self.debt();
        let mut control = self.control();
        let now = Instant::now();
        let (since, before, mut rate) = control.second.unwrap_or((now, control.keys_copied, 0));
        let passed = now.saturating_duration_since(since);
        if control.second.is_none() || passed >= Duration::from_secs(1) {
            if passed >= Duration::from_secs(1) {
                let copied = (control.keys_copied - before) as f64;
                rate = (copied / passed.as_secs_f64()) as u64;
            }
            control.second = Some((now, control.keys_copied, rate));
        }
        let sum = |of: fn(&Part) -> u64| control.parts.iter().map(of).sum::<u64>();
        let (keys, walked) = (sum(|it| it.keys), sum(|it| it.keys_walked));
        let is_in_step = control.parts.iter().all(|it| it.is_in_step);
        let is_compared = control.parts.iter().all(|it| it.comparison >= control.comparison);
        let state = match () {
            () if !control.is_started => "ready",
            () if control.is_paused => "paused",
            () if !control.parts.iter().all(|it| it.is_connected) => "connecting",
            () if !is_in_step => "copying",
            () if !is_compared => "comparing",
            () => "in step",
        };
        let left = keys.saturating_sub(walked);
        let eta_s = match rate {
            0 if debt.is_zero() => None,
            0 => Some(debt.as_secs()),
            rate => Some(left.div_ceil(rate)),
        };
        MoveStatus {
            route: route.clone(),
            directory: directory.display().to_string(),
            from: from.pool.clone(),
            to: to.pool.clone(),
            state: state.to_owned(),
            is_cut_over: *is_cut_over,
            keys,
            keys_walked: walked,
            keys_copied: control.keys_copied,
            keys_removed: control.keys_removed,
            bytes_copied: control.bytes_copied,
            keys_per_second: rate,
            keys_behind: sum(|it| it.keys_behind),
            lag_ms: control.parts.iter().map(|it| it.lag.as_millis() as u64).max().unwrap_or(0),
            eta_s: eta_s.filter(|_| state == "copying"),
            keys_compared: sum(|it| it.compared),
            mismatches: control.total_mismatches,
            verified_at: control.verified_at,
            keys_refused: control.refused.len() as u64,
            keys_misplaced: sum(|it| it.misplaced),
            walks: control.walks,
            counted_since: self.since,
            errors: control.errors,
            last_error: control.held.clone().or_else(|| control.last_error.clone()),
        }
    }
}

/// Clients wait no longer while it is cut over.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(4);

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
