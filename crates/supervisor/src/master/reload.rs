//! Reloads: the configuration is loaded beside the loop, then put into effect.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cashew_config::snapshot::TopologyState;
use cashew_config::{Difference, Snapshot};
use cashew_control::ToChild;
use cashew_discovery::{FoundServers, Relocated};
use cashew_metrics::EventKind;
use cashew_placement::SHARE_WHOLE;
use tracing::{error, info, warn};

use super::discovery::MOVE_DRAIN_MS;
use super::key_moves::{Hindrance, KeyWish};
use super::moves::May;
use super::sources::FOUND_DRAIN_MS;
use super::{Master, Phase, workers_of};
use crate::CommandLine;
use crate::background_task::BackgroundTask;
use crate::child::{Role, Spawn};
use crate::command::{self, Command, Nobody, Reply};
use crate::discovered::Move;
use crate::maps::MapMove;
use crate::names::Names;
use crate::ring::{RingConfig, Rings};
use crate::state::{Pack, ReloadAsker, Unpack, WantedReload};
use crate::status::Outcome;

/// Bytes of changes in an event.
const CHANGES_SHOWN_MAX: usize = 300;

/// One reload at a time. Commands that come meanwhile share the next one, which reads the file
/// after all of them.
#[derive(Default)]
pub(super) struct Reload {
    waiting: Vec<Asker>,
    stage: Stage,
    /// What the change under way changes, in one line, for the event.
    changes: String,
    /// How often it was asked whether keys can go.
    looks: u64,
}

#[derive(Default)]
enum Stage {
    #[default]
    Idle,
    Loading {
        askers: Vec<Asker>,
        /// Includes name lookups, which may take a while.
        loading: BackgroundTask<Result<Loaded, String>>,
        deadline: Instant,
    },
    /// It is asked whether the servers of keys that are to go answer. Nobody waits but who wants it.
    Asking { askers: Vec<Asker>, number: u64, deadline: Instant },
    /// Waits until no ring of a single pool is changing and no dying worker could still serve by
    /// the old epoch when the others do not any more.
    Quieting { askers: Vec<Asker>, wanted: Box<Wanted> },
    /// The workers are changing.
    Changing { askers: Vec<Asker>, cause: Cause, moves: Moves },
    /// All workers have changed; the admin process is being told, so that statistics read after the
    /// reload are those of the new epoch.
    Notifying { askers: Vec<Asker>, deadline: Instant },
}

/// How long a reload waits for the admin process, once all workers have changed.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the file may take to load. A read may never end on a file system that hangs.
const LOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the process that copies may take to find out whether keys can go. It takes less unless it hangs.
const LOOK_TIMEOUT: Duration = Duration::from_secs(15);

const NOTHING_CHANGES: &str = "nothing changes";

struct Asker {
    dry_run: bool,
    wish: Wish,
    reply: Box<dyn Reply>,
}

impl Wish {
    /// What was wished beside the file, and is not done.
    fn say_refused(&self, why: &str) {
        match self {
            Self::File => {}
            Self::Side(directory, _) => {
                let directory = directory.display();
                warn!(
                    "the move that is kept in {directory} is served by the pool that it was: {why}"
                );
            }
            Self::Keys(wish) => wish.say_refused(why),
        }
    }
}

enum Wish {
    /// The file is to be in effect.
    File,
    /// A move that is kept in this directory is to be served by the other pool, or by the first one.
    Side(PathBuf, bool),
    Keys(KeyWish),
}

struct Loaded {
    snapshot: Snapshot,
    warnings: Vec<String>,
    difference: Difference,
    /// Server names; empty in a dry run.
    names: Names,
}

/// What is to be put into effect.
struct Wanted {
    snapshot: Snapshot,
    /// Current addresses of server hosts, of those that were looked up.
    addresses: BTreeMap<String, Vec<IpAddr>>,
    /// The configuration is unchanged: only server addresses may have changed.
    is_same: bool,
    cause: Cause,
    moves: Moves,
}

/// Why there is another epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    File,
    /// An operator wants a move to be served by its other pool.
    Side,
    /// Primaries have moved, or what else discovery tells.
    Told,
}

/// What discovery has told that is put into effect.
#[derive(Default)]
struct Moves {
    /// Primaries that have moved.
    primaries: Vec<Move>,
    /// Clusters that have other maps.
    maps: Vec<MapMove>,
    /// Pools whose sources have named other servers.
    found: Vec<FoundServers>,
    /// Servers that have said that they moved.
    relocated: Vec<Relocated>,
}

impl Moves {
    /// How long requests on their way are waited for.
    fn drain_max_ms(&self) -> u64 {
        let is_urgent = !self.primaries.is_empty() || !self.maps.is_empty();
        match (is_urgent, self.found.is_empty()) {
            (true, _) => MOVE_DRAIN_MS,
            (false, false) => FOUND_DRAIN_MS,
            // They are there still, and answer.
            (false, true) => u64::MAX,
        }
    }

    fn is_empty(&self) -> bool {
        self.primaries.is_empty()
            && self.maps.is_empty()
            && self.found.is_empty()
            && self.relocated.is_empty()
    }
}

impl Reload {
    /// Becomes readable, or hangs up, when the file is loaded.
    pub(super) fn loading(&self) -> Option<BorrowedFd<'_>> {
        match &self.stage {
            Stage::Loading { loading, .. } => Some(loading.as_fd()),
            Stage::Idle
            | Stage::Asking { .. }
            | Stage::Quieting { .. }
            | Stage::Changing { .. }
            | Stage::Notifying { .. } => None,
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Loading { deadline, .. }
            | Stage::Asking { deadline, .. }
            | Stage::Notifying { deadline, .. } => Some(*deadline),
            Stage::Idle | Stage::Quieting { .. } | Stage::Changing { .. } => None,
        }
    }

    /// Begins nothing any more. What has begun has no effect unless it is decided.
    pub(super) fn cancel(&mut self, why: &str) {
        let mut askers = std::mem::take(&mut self.waiting);
        askers.extend(self.take_askers());
        fail(askers, why);
    }

    pub(super) fn is_under_way(&self) -> bool {
        !matches!(self.stage, Stage::Idle)
    }

    /// What discovery tells has to wait until the change that is under way is over.
    pub(super) fn is_changing(&self) -> bool {
        matches!(self.stage, Stage::Quieting { .. } | Stage::Changing { .. })
    }

    /// Whether lists of servers need not wait for a change or a file.
    pub(super) fn takes_lists(&self) -> bool {
        matches!(self.stage, Stage::Idle | Stage::Notifying { .. })
    }

    /// Commands that wait for the next reload, for the next program.
    pub(super) fn wanted(&self, pack: &mut Pack) -> io::Result<WantedReload> {
        let mut wanted = WantedReload::default();
        // Whoever wants another side, or keys elsewhere, asks the next program again.
        let askers = self.waiting.iter().filter(|asker| matches!(asker.wish, Wish::File));
        for Asker { dry_run, reply, .. } in askers {
            match reply.socket() {
                Some(socket) => {
                    let socket = pack.put_copy(socket)?;
                    wanted.reload_askers.push(ReloadAsker { socket, dry_run: *dry_run });
                }
                None => wanted.reload_wanted |= !dry_run,
            }
        }
        Ok(wanted)
    }

    pub(super) fn resume(wanted: WantedReload, descriptors: &Unpack) -> Result<Self, String> {
        let asker = |asker: ReloadAsker| {
            let reply = command::resume(descriptors.copy(asker.socket)?);
            Ok(Asker { dry_run: asker.dry_run, wish: Wish::File, reply })
        };
        let askers = wanted.reload_askers.into_iter().map(asker);
        let mut waiting = askers.collect::<Result<Vec<_>, String>>()?;
        if wanted.reload_wanted {
            waiting.push(Asker { dry_run: false, wish: Wish::File, reply: Box::new(Nobody) });
        }
        Ok(Self { waiting, ..Self::default() })
    }

    /// For operators whose reload is under way.
    pub(super) fn line(&mut self, line: &str) {
        let askers = match &mut self.stage {
            Stage::Idle => return,
            Stage::Loading { askers, .. }
            | Stage::Asking { askers, .. }
            | Stage::Quieting { askers, .. }
            | Stage::Changing { askers, .. }
            | Stage::Notifying { askers, .. } => askers,
        };
        askers.iter_mut().for_each(|asker| asker.reply.line(line));
    }

    fn take_askers(&mut self) -> Vec<Asker> {
        match std::mem::take(&mut self.stage) {
            Stage::Idle => Vec::new(),
            Stage::Loading { askers, .. }
            | Stage::Asking { askers, .. }
            | Stage::Quieting { askers, .. }
            | Stage::Changing { askers, .. }
            | Stage::Notifying { askers, .. } => askers,
        }
    }
}

impl Master {
    pub(super) fn command(&mut self, command: Command, reply: Box<dyn Reply>, now: Instant) {
        if let Err(why) = command.check() {
            return reply.failed(&why);
        }
        match command {
            Command::Reload { .. } if self.phase == Phase::Stopping => {
                reply.failed("the instance is stopping");
            }
            Command::Reload { dry_run } => {
                self.reload.waiting.push(Asker { dry_run, wish: Wish::File, reply })
            }
            Command::Status => self.publish_status(reply),
            Command::Events { since, kind } => self.publish_events(since, kind.as_deref(), reply),
            Command::LogLevel { level } => self.order_level(level, reply, now),
            Command::Failover { pool, group, server, force: true } => {
                self.fail_over(pool, group.as_deref(), &server, reply, now);
            }
            Command::Failover { pool, group, server, force: false } => {
                self.ask_and_fail_over(pool, group, server, reply, now);
            }
            Command::Migrate { .. } if self.phase != Phase::Serving => {
                reply.failed("the instance is starting, or is stopping");
            }
            Command::Migrate { action, route, overwrite, ignore_misplaced, evicting_target } => {
                let may = May { overwrite, ignore_misplaced, evict: evicting_target };
                self.migrate((action, may), route.as_deref(), reply, now);
            }
            Command::MoveKeys { .. } if self.phase != Phase::Serving => {
                reply.failed("the instance is starting, or is stopping");
            }
            Command::MoveKeys { route, from, to, keys, overwrite } => {
                self.move_keys(route, KeyWish::new((from, to), keys, overwrite), reply);
            }
            Command::HotKey { .. }
            | Command::DrainServer { .. }
            | Command::UndrainServer { .. }
            | Command::Weight { .. }
                if self.phase != Phase::Serving =>
            {
                reply.failed("the instance is starting, or is stopping");
            }
            Command::HotKey { pool, key, action, to, copies } => {
                self.act_on_hot_key((pool, &key), (action, to, copies), reply);
            }
            Command::DrainServer { pool, server, steps, every } => {
                let every = Duration::from_secs(every);
                self.share_out((pool, server), (0, steps, every), reply, now);
            }
            Command::UndrainServer { pool, server, steps, every } => {
                let every = Duration::from_secs(every);
                self.share_out((pool, server), (SHARE_WHOLE, steps, every), reply, now);
            }
            Command::Weight { pool, server, percent } => {
                let share = percent * (SHARE_WHOLE / 100);
                self.share_out((pool, server), (share, 1, Duration::ZERO), reply, now);
            }
            Command::Upgrade { binary } => self.begin_upgrade(binary, reply, now),
            Command::Drain { seconds } => self.drain_for(seconds, reply, now),
            Command::Undrain => self.undrain(reply, now),
        }
    }

    /// Whether files are loaded, and what discovery tells is put into effect.
    pub(super) fn may_change(&self) -> bool {
        self.phase == Phase::Serving && !self.upgrade.has_frozen()
    }

    /// Has a move served by the other pool, or by the first one, by another epoch.
    pub(super) fn want_side(
        &mut self,
        directory: PathBuf,
        is_cut_over: bool,
        reply: Box<dyn Reply>,
    ) {
        let wish = Wish::Side(directory, is_cut_over);
        self.reload.waiting.push(Asker { dry_run: false, wish, reply });
    }

    /// Has keys be in another pool, by another epoch.
    pub(super) fn want_keys(&mut self, wish: KeyWish, reply: Box<dyn Reply>) {
        self.reload.waiting.push(Asker { dry_run: false, wish: Wish::Keys(wish), reply });
    }

    pub(super) fn advance_reload(&mut self, now: Instant) {
        if !self.may_change() {
            return;
        }
        match std::mem::take(&mut self.reload.stage) {
            // An upgrade that waits for the instance to be idle also waits for a reload that has
            // begun.
            Stage::Idle if !self.reload.waiting.is_empty() && !self.upgrade.is_in_the_way() => {
                self.load(now);
            }
            // Primaries that have moved do not wait for a file. Lists of servers do: they may change all the time, and
            // what the file says would never come into effect.
            Stage::Loading { askers, .. } | Stage::Asking { askers, .. }
                if self.has_urgent_moves(now) =>
            {
                self.reload.waiting.splice(0..0, askers);
                self.begin_moves(now);
                if !self.reload.is_under_way() {
                    // They are where they were.
                    self.load(now);
                }
            }
            Stage::Notifying { askers, .. } if self.has_moves(now) => {
                self.succeed(askers);
                self.begin_moves(now);
            }
            Stage::Idle if self.has_moves(now) || self.joining.is_ripe() => {
                self.begin_moves(now);
            }
            // The thread is abandoned.
            Stage::Loading { askers, deadline, .. } if deadline <= now => {
                let seconds = LOAD_TIMEOUT.as_secs();
                let path = self.conf_file.display();
                let why = format!(
                    "{path}: reading it and looking up its names took more than {seconds} seconds"
                );
                self.fail(askers, &why);
            }
            Stage::Asking { askers, deadline, .. } if deadline <= now => {
                self.fail(askers, "the process that copies does not answer");
            }
            Stage::Quieting { askers, wanted }
                if self.rings.is_quiet() && !self.is_anybody_dying() =>
            {
                let Wanted { mut snapshot, mut addresses, is_same, cause, mut moves } = *wanted;
                if cause != Cause::Side {
                    // Some may have moved meanwhile: also those that have other names in this snapshot. A copy was
                    // compared with what is in effect, so nothing else changes with it.
                    let told = self.told();
                    moves.primaries.extend(self.discovered.take_moves(&mut snapshot));
                    self.maps.give_back(moves.maps, now);
                    moves.maps = self.maps.take(&mut snapshot, &self.current.snapshot);
                    self.found.give_back(moves.found);
                    moves.found = self.found.take(&mut snapshot, &self.current.snapshot);
                    moves.relocated.extend(self.relocations.take(&mut snapshot, &mut addresses));
                    if cause == Cause::File {
                        snapshot.keep_primaries(&told);
                    }
                }
                let is_same = is_same && moves.is_empty();
                let drain_max_ms =
                    if cause == Cause::Told { moves.drain_max_ms() } else { u64::MAX };
                let prepared = self.prepare_next(snapshot, addresses);
                self.reload.stage = Stage::Changing { askers, cause, moves };
                match prepared {
                    Ok(next) => self.begin_switch(next, is_same, drain_max_ms, now),
                    Err(why) => {
                        self.rings.thaw(now);
                        self.reload_failed(&why, now);
                    }
                }
            }
            Stage::Notifying { askers, deadline }
                if deadline <= now || !self.is_admin_notified() =>
            {
                self.succeed(askers);
            }
            stage => self.reload.stage = stage,
        }
    }

    /// Whether an admin process can confirm.
    pub(super) fn is_admin_notified(&self) -> bool {
        let admin = self.members.get(&Role::Admin).and_then(|admin| admin.running.as_ref());
        admin.is_some_and(|running| running.mail().is_some())
    }

    fn has_moves(&self, now: Instant) -> bool {
        self.has_urgent_moves(now) || self.found.are_due(now)
    }

    fn has_urgent_moves(&self, now: Instant) -> bool {
        self.discovered.has_moves(now) || self.maps.are_due(now) || self.relocations.are_due(now)
    }

    /// The snapshot in effect, with everything that discovery has told since.
    fn told(&self) -> Snapshot {
        let mut told = self.discovered.told(Snapshot::clone(&self.current.snapshot));
        self.maps.put(&mut told);
        self.found.put(&mut told);
        self.relocations.put(&mut told);
        told
    }

    /// Puts it into effect that primaries have moved, or that Sentinels name other replicas.
    fn begin_moves(&mut self, now: Instant) {
        let mut snapshot = Snapshot::clone(&self.current.snapshot);
        let (mut moves, mut addresses) = (Moves::default(), BTreeMap::new());
        if self.discovered.has_moves(now) {
            moves.primaries = self.discovered.take_moves(&mut snapshot);
        }
        if self.maps.are_due(now) {
            moves.maps = self.maps.take(&mut snapshot, &self.current.snapshot);
        }
        if self.found.are_due(now) {
            moves.found = self.found.take(&mut snapshot, &self.current.snapshot);
        }
        if self.relocations.are_due(now) {
            moves.relocated = self.relocations.take(&mut snapshot, &mut addresses);
        }
        let has_joined = self.joining.put(&mut snapshot, &self.current.snapshot);
        if moves.is_empty() && !has_joined {
            return;
        }
        self.rings.freeze();
        let (is_same, cause) = (false, Cause::Told);
        let wanted = Box::new(Wanted { snapshot, addresses, is_same, cause, moves });
        self.reload.stage = Stage::Quieting { askers: Vec::new(), wanted };
        self.advance_reload(now);
    }

    /// Has another pool of a move serve, or keys be in another pool: what is in effect, with nothing else changed. The
    /// file may be another one by now, and nobody has proven a copy to be like what that says.
    fn begin_wish(&mut self, mut asker: Asker, now: Instant) {
        let mut snapshot = Snapshot::clone(&self.current.snapshot);
        match &asker.wish {
            Wish::File => return,
            Wish::Side(directory, is_cut_over) => snapshot.set_cut_over(directory, *is_cut_over),
            Wish::Keys(wish) => match self.key_moves.begin(wish, &mut snapshot) {
                // From here on clients wait.
                Ok(true) => wish.is_hindered_by(Hindrance::Step),
                Ok(false) => {
                    asker.reply.line("all of these keys are there already");
                    return asker.reply.unchanged();
                }
                Err(why) => return self.fail(vec![asker], &why),
            },
        }
        let pools = 0..snapshot.pools.len() as u32;
        let states: Vec<TopologyState> = pools.map(|pool| self.rings.topology(pool)).collect();
        let difference =
            Difference::in_force((&self.current.snapshot, &states), (&snapshot, &states));
        if difference.is_empty() {
            self.key_moves.call_off();
            let why = "the move is over by another configuration, or that pool serves already";
            return self.fail(vec![asker], why);
        }
        self.notify.reloading();
        self.reload.changes = in_one_line(difference.lines());
        self.rings.freeze();
        let (addresses, is_same, moves) = (BTreeMap::new(), false, Moves::default());
        let cause = Cause::Side;
        let wanted = Box::new(Wanted { snapshot, addresses, is_same, cause, moves });
        self.reload.stage = Stage::Quieting { askers: vec![asker], wanted };
        self.advance_reload(now);
    }

    /// Before anybody waits for keys to go it is known that both of their servers answer.
    fn ask_about_keys(&mut self, asker: Asker, now: Instant) {
        let foreseen = match &asker.wish {
            Wish::Keys(wish) => {
                let foreseen = wish.foreseen(&self.current.snapshot);
                foreseen.map(|keys| (keys, wish.size_max))
            }
            Wish::File | Wish::Side(..) => None,
        };
        let Some((keys, size_max)) = foreseen else { return self.begin_wish(asker, now) };
        if self.members.get(&Role::Discovery).is_none_or(|it| it.running.is_none()) {
            let why = "the process that copies is being started: try again in a second";
            return self.fail(vec![asker], why);
        }
        self.reload.looks += 1;
        let number = self.reload.looks;
        self.post(Role::Discovery, ToChild::LookAtKeys { number, keys, size_max }, Vec::new(), now);
        let deadline = now + LOOK_TIMEOUT;
        self.reload.stage = Stage::Asking { askers: vec![asker], number, deadline };
    }

    /// Whether the keys that are to go can.
    pub(super) fn keys_looked_at(
        &mut self,
        number: u64,
        failure: Option<String>,
        pool: Option<String>,
        now: Instant,
    ) {
        let askers = match std::mem::take(&mut self.reload.stage) {
            Stage::Asking { askers, number: asked, .. } if asked == number => askers,
            stage => return self.reload.stage = stage,
        };
        if let Some(why) = failure {
            for asker in &askers {
                if let (Wish::Keys(wish), Some(pool)) = (&asker.wish, &pool) {
                    wish.is_hindered_by(Hindrance::Pool(pool.clone()));
                }
            }
            return self.fail(askers, &why);
        }
        askers.into_iter().for_each(|asker| self.begin_wish(asker, now));
    }

    /// Nobody finds that out any more.
    pub(super) fn look_at_keys_ended(&mut self, why: &str) {
        match std::mem::take(&mut self.reload.stage) {
            Stage::Asking { askers, .. } => self.fail(askers, why),
            stage => self.reload.stage = stage,
        }
    }

    fn load(&mut self, now: Instant) {
        if let Some(at) =
            self.reload.waiting.iter().position(|asker| !matches!(asker.wish, Wish::File))
        {
            let asker = self.reload.waiting.remove(at);
            return self.ask_about_keys(asker, now);
        }
        let askers = std::mem::take(&mut self.reload.waiting);
        info!("loading {}", self.conf_file.display());
        let is_dry = askers.iter().all(|asker| asker.dry_run);
        if !is_dry {
            self.notify.reloading();
        }
        let path = self.conf_file.clone();
        let current = self.told();
        let command_line = self.command_line.clone();
        let rings = self.rings.clone();
        let load = move || load(&path, &command_line, &current, &rings, is_dry);
        match BackgroundTask::start("load", load) {
            Ok(loading) => {
                let deadline = now + LOAD_TIMEOUT;
                self.reload.stage = Stage::Loading { askers, loading, deadline };
            }
            Err(error) => self.fail(askers, &format!("cannot load the configuration: {error}")),
        }
    }

    pub(super) fn handle_loaded(&mut self, now: Instant) {
        let (mut askers, loading) = match std::mem::take(&mut self.reload.stage) {
            Stage::Loading { askers, loading, .. } => (askers, loading),
            stage => return self.reload.stage = stage,
        };
        let panicked = || Err("loading the configuration panicked".into());
        let loaded = match loading.finish().unwrap_or_else(panicked) {
            Ok(loaded) => loaded,
            Err(why) => return self.fail(askers, &why),
        };
        let failures = loaded.names.failures();
        for line in loaded.warnings.iter().chain(loaded.difference.lines()) {
            askers.iter_mut().for_each(|asker| asker.reply.line(line));
        }
        let (mut dry, mut askers): (Vec<_>, Vec<_>) = askers.into_iter().partition(|it| it.dry_run);
        if loaded.difference.is_empty() {
            dry.iter_mut().for_each(|asker| asker.reply.line(NOTHING_CHANGES));
        }
        for line in &failures {
            askers.iter_mut().for_each(|asker| asker.reply.line(line));
        }
        let allowed = self.check(&loaded.snapshot);
        if let Err(why) = allowed {
            return self.fail(dry.into_iter().chain(askers).collect(), &why);
        }
        unchanged(dry);
        if askers.is_empty() {
            return;
        }
        loaded.warnings.iter().chain(&failures).for_each(|warning| warn!("{warning}"));
        let addresses = loaded.names.addresses;
        let is_same = loaded.difference.is_empty();
        if is_same && addresses.is_empty() {
            return self.nothing_changes(askers);
        }
        loaded.difference.lines().iter().for_each(|line| info!("{line}"));
        self.reload.changes = in_one_line(loaded.difference.lines());
        self.rings.freeze();
        let (snapshot, cause, moves) = (loaded.snapshot, Cause::File, Moves::default());
        let wanted = Box::new(Wanted { snapshot, addresses, is_same, cause, moves });
        self.reload.stage = Stage::Quieting { askers, wanted };
        self.advance_reload(now);
    }

    /// What cannot be changed in a running instance.
    fn check(&self, next: &Snapshot) -> Result<(), String> {
        let (old, new) = (&self.current.snapshot.global, &next.global);
        let (is_alone, is_to_be) = (old.worker_processes == 0, new.worker_processes == 0);
        if is_alone != is_to_be {
            let (from, to) = (old.worker_processes, new.worker_processes);
            return Err(format!(
                "worker_processes cannot change from {from} to {to} while the instance runs: \
                 without workers one process does everything; restart it"
            ));
        }
        let identity = (&old.user, &old.group) != (&new.user, &new.group);
        if identity && matches!(self.spawn, Spawn::Threads { .. }) {
            return Err("user and group cannot change while the instance runs with \
                        worker_processes: 0, since it has given its privileges up; restart it"
                .into());
        }
        Ok(())
    }

    /// All workers have changed, to what is in effect from what was before.
    pub(super) fn reload_done(&mut self, before: Option<Arc<Snapshot>>, now: Instant) {
        let (mut askers, cause, moves) = self.take_change();
        let is_told = cause == Cause::Told;
        let epoch = self.current.snapshot.epoch;
        match std::mem::take(&mut self.reload.changes) {
            changes if !is_told => {
                info!(
                    kind = EventKind::ReloadDone.name(),
                    "epoch {epoch} is in effect: {}",
                    if changes.is_empty() { "names lead to other addresses" } else { &changes }
                );
                if cause == Cause::Side {
                    askers.iter_mut().for_each(|asker| asker.reply.line(&changes));
                }
            }
            _ => info!("epoch {epoch} is in effect"),
        }
        if let Some(before) = before {
            let (from, to) = (workers_of(&before), workers_of(&self.current.snapshot));
            if from != to {
                info!(
                    kind = EventKind::WorkersResized.name(),
                    "{to} workers are to serve, no more {from}"
                );
            }
            self.maps_done(&moves.maps, &before, now);
            self.found_done(&moves.found, &before);
            self.relocations_done(&moves.relocated);
            self.moves_done(moves.primaries, &before, now);
            self.tell_of_sides(&before);
            self.key_moves.done();
            self.tell_joined(&before);
        }
        self.joining.changed(&self.current.snapshot, now);
        self.save_primaries();
        self.save_found();
        if is_told {
            return;
        }
        if self.phase != Phase::Serving || !self.is_admin_notified() {
            return self.succeed(askers);
        }
        self.reload.stage = Stage::Notifying { askers, deadline: now + NOTIFY_TIMEOUT };
    }

    pub(super) fn admin_notified(&mut self, epoch: u64) {
        if epoch != self.current.snapshot.epoch {
            return;
        }
        match std::mem::take(&mut self.reload.stage) {
            Stage::Notifying { askers, .. } => self.succeed(askers),
            stage => self.reload.stage = stage,
        }
    }

    /// The file is unchanged, and no server has moved.
    pub(super) fn reload_needless(&mut self) {
        let askers = self.reload.take_askers();
        self.nothing_changes(askers);
    }

    fn nothing_changes(&mut self, mut askers: Vec<Asker>) {
        info!(kind = EventKind::ReloadNeedless.name(), "the configuration has not changed");
        askers.iter_mut().for_each(|asker| asker.reply.line(NOTHING_CHANGES));
        self.end_well(askers, unchanged);
    }

    pub(super) fn reload_failed(&mut self, why: &str, now: Instant) {
        self.key_moves.call_off();
        let (askers, cause, moves) = self.take_change();
        for it in &moves.primaries {
            let Move { pool, server, to, .. } = it;
            error!(
                kind = EventKind::PrimaryNotChanged.name(),
                pool,
                server,
                "pool '{pool}': the primary of '{server}' is not taken to be {to} yet: {why}"
            );
        }
        for MapMove { pool, .. } in &moves.maps {
            error!(
                kind = EventKind::MapNotChanged.name(),
                pool, "pool '{pool}': the new map of its cluster is not in effect yet: {why}"
            );
        }
        for FoundServers { pool, .. } in &moves.found {
            error!(
                kind = EventKind::ServersNotChanged.name(),
                pool, "pool '{pool}': what its source names is not in effect yet: {why}"
            );
        }
        let has_failed = !moves.is_empty();
        let Moves { primaries, maps, found, relocated } = moves;
        self.relocations_failed(relocated, why, now);
        if !found.is_empty() {
            self.found.failed(found, &self.current.snapshot, now);
        }
        if !primaries.is_empty() {
            self.discovered.failed(primaries, now);
        }
        if !maps.is_empty() {
            self.maps.failed(maps, &self.current.snapshot, now);
        }
        self.joining.changed(&self.current.snapshot, now);
        if cause != Cause::Told {
            self.fail(askers, why);
        } else if !has_failed {
            error!("replicas that Sentinels name are not taken over yet: {why}");
        }
    }

    /// What is being changed, which is over.
    fn take_change(&mut self) -> (Vec<Asker>, Cause, Moves) {
        match std::mem::take(&mut self.reload.stage) {
            Stage::Changing { askers, cause, moves } => (askers, cause, moves),
            stage => {
                self.reload.stage = stage;
                (self.reload.take_askers(), Cause::File, Moves::default())
            }
        }
    }

    fn succeed(&mut self, askers: Vec<Asker>) {
        self.end_well(askers, finish);
    }

    fn end_well(&mut self, mut askers: Vec<Asker>, end: impl FnOnce(Vec<Asker>)) {
        let serves = format!("epoch {} serves", self.current.snapshot.epoch);
        askers.iter_mut().for_each(|asker| asker.reply.line(&serves));
        // What operators and rules wish beside the file says nothing of the file.
        if askers.iter().any(|asker| matches!(asker.wish, Wish::File)) {
            self.note_reload(None);
        }
        self.notify.ready(&self.summary());
        end(askers);
        // The file, the former snapshot and the comparison are not needed any more.
        cashew_process::memory::trim();
    }

    /// Stores the outcome for the status and the statistics.
    fn note_reload(&mut self, failure: Option<&str>) {
        let outcome = Outcome::new(failure.map(Into::into));
        self.shared.add_reload(outcome.at, failure);
        self.operators.last_reload = Some(outcome);
    }

    fn fail(&mut self, askers: Vec<Asker>, why: &str) {
        let is_file = |asker: &Asker| matches!(asker.wish, Wish::File);
        if !askers.iter().all(is_file) {
            askers.iter().for_each(|asker| asker.wish.say_refused(why));
            self.notify.ready(&self.summary());
        } else if askers.iter().any(|asker| !asker.dry_run) {
            error!(
                kind = EventKind::ReloadRefused.name(),
                "the configuration stays as it is: {why}"
            );
            self.note_reload(Some(why));
            // Whatever the outcome, the reload is over.
            self.notify.ready(&format!("{}; the last reload failed: {why}", self.summary()));
        }
        fail(askers, why);
    }
}

fn load(
    path: &Path,
    command_line: &CommandLine,
    current: &Snapshot,
    rings: &Rings,
    is_dry: bool,
) -> Result<Loaded, String> {
    let loaded = cashew_config::load(path).map_err(|errors| errors.to_string())?;
    // Epochs are numbered when they take effect.
    let mut snapshot = Snapshot { epoch: current.epoch, ..loaded.snapshot };
    let mut warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    warnings.extend(command_line.overrule(&mut snapshot.global));
    super::moves::check_sides(current, &snapshot)?;
    warnings.extend(cashew_config::warnings_of_change(current, &snapshot));
    warnings.extend(super::moves::warn_of_end(current, &snapshot));
    snapshot.keep_primaries(current);
    super::sources::find(&mut snapshot, current, is_dry).map(|lines| warnings.extend(lines))?;
    if !is_dry {
        warnings.extend(super::discovery::find(&mut snapshot));
    }
    let (topologies, undone) = rings.foreseen(RingConfig::of(&snapshot));
    warnings.extend(undone);
    let pools = 0..current.pools.len() as u32;
    let before: Vec<TopologyState> = pools.map(|pool| rings.topology(pool)).collect();
    let difference = Difference::in_force((current, &before), (&snapshot, &topologies));
    let names = if is_dry { Names::default() } else { Names::look_up(current, &snapshot) };
    Ok(Loaded { snapshot, warnings, difference, names })
}

/// As much of it as an event has room for.
fn in_one_line(changes: &[String]) -> String {
    let mut line = String::new();
    for (at, change) in changes.iter().enumerate() {
        if line.len() + change.len() > CHANGES_SHOWN_MAX && at > 0 {
            return format!("{line}; and {} more", changes.len() - at);
        }
        if at > 0 {
            line += "; ";
        }
        line += change;
    }
    line
}

fn finish(askers: Vec<Asker>) {
    askers.into_iter().for_each(|asker| asker.reply.done());
}

fn unchanged(askers: Vec<Asker>) {
    askers.into_iter().for_each(|asker| asker.reply.unchanged());
}

fn fail(askers: Vec<Asker>, why: &str) {
    askers.into_iter().for_each(|asker| asker.reply.failed(why));
}
