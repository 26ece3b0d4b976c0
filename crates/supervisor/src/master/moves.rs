//! Moves of one pool to another: what operators do about them, and which pool serves. The copier is in discovery.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use cashew_config::{MoveState, Snapshot};
use cashew_control::{MoveAct, ToChild};
use cashew_metrics::EventKind;
use cashew_migration::MoveStatus;
use tracing::{error, info, warn};

use super::Master;
use crate::child::Role;
use crate::command::{MoveAction, Reply};

#[derive(Default)]
pub(super) struct Moves {
    /// As discovery has told last.
    statuses: Vec<MoveStatus>,
    json: String,
    /// By the number of the message to discovery.
    asked: BTreeMap<u64, Asked>,
    last: u64,
}

struct Asked {
    action: MoveAction,
    at: Place,
    /// `None` once it has its answer.
    reply: Option<Box<dyn Reply>>,
}

/// A move, as it is named everywhere.
#[derive(Clone)]
struct Place {
    route: String,
    from: String,
    to: String,
    directory: PathBuf,
    is_cut_over: bool,
    /// What is kept of the servers of both pools.
    servers: Vec<String>,
}

/// What an operator puts up with.
#[derive(Clone, Copy)]
pub(super) struct May {
    pub(super) overwrite: bool,
    pub(super) ignore_misplaced: bool,
    pub(super) evict: bool,
}

impl Place {
    fn serves(&self) -> &str {
        if self.is_cut_over { &self.to } else { &self.from }
    }

    /// Whether both are about the same two pools, whichever is copied to the other one.
    fn is_of_same_pools(&self, other: &Self) -> bool {
        (&self.from, &self.to) == (&other.from, &other.to)
            || (&self.from, &self.to) == (&other.to, &other.from)
    }
}

impl Moves {
    /// Those of a snapshot. Nothing is known of one that discovery has not told of yet.
    pub(super) fn statuses(&self, snapshot: &Snapshot) -> Vec<MoveStatus> {
        let status = |at: Place| {
            let is_of = |it: &&MoveStatus| {
                it.directory == at.directory.to_string_lossy() && it.is_cut_over == at.is_cut_over
            };
            let told = self.statuses.iter().find(is_of).cloned();
            let (from, to) = if at.is_cut_over { (at.to, at.from) } else { (at.from, at.to) };
            told.unwrap_or_else(|| MoveStatus {
                route: at.route,
                directory: at.directory.display().to_string(),
                from,
                to,
                state: "connecting".to_owned(),
                is_cut_over: at.is_cut_over,
                ..MoveStatus::default()
            })
        };
        places(snapshot).into_iter().map(status).collect()
    }
}

fn places(snapshot: &Snapshot) -> Vec<Place> {
    let marks = |name: &str| {
        let pool = snapshot.pools.iter().find(|pool| pool.name == name);
        pool.map(|pool| pool.shard_marks(true).concat()).unwrap_or_default()
    };
    let place = |(route, it): (&str, cashew_config::snapshot::Move<'_>)| Place {
        route: route.to_owned(),
        from: it.from.to_owned(),
        to: it.to.to_owned(),
        directory: it.follow.directory.clone(),
        is_cut_over: it.is_cut_over,
        servers: [it.from, it.to].into_iter().flat_map(marks).collect(),
    };
    snapshot.moves().map(place).collect()
}

/// The moves that are served by another pool in the second snapshot than in the first.
pub(super) fn sides_changed(before: &Snapshot, after: &Snapshot) -> Vec<PathBuf> {
    let before = places(before);
    let has_changed = |it: &Place| {
        before.iter().any(|was| was.directory == it.directory && was.is_cut_over != it.is_cut_over)
    };
    places(after).into_iter().filter(has_changed).map(|it| it.directory).collect()
}

impl Master {
    pub(super) fn migrate(
        &mut self,
        (action, may): (MoveAction, May),
        route: Option<&str>,
        mut reply: Box<dyn Reply>,
        now: Instant,
    ) {
        let all = places(&self.current.snapshot);
        let named: Vec<&Place> =
            all.iter().filter(|it| route.is_none_or(|route| it.route == route)).collect();
        let at = match (&named[..], route) {
            ([at], _) => Place::clone(at),
            ([], None) => {
                return reply.failed(
                    "no route moves a pool: give its `migrate` node a `directory`, and reload",
                );
            }
            ([], Some(route)) => {
                return reply.failed(&format!("no route '{route}' moves a pool"));
            }
            (several, _) => {
                let names: Vec<&str> = several.iter().map(|it| it.route.as_str()).collect();
                let names = names.join(", ");
                return reply.failed(&format!("there are several moves: name one of {names}"));
            }
        };
        match action {
            MoveAction::Start => {
                let act =
                    MoveAct::CheckStart { may_overwrite: may.overwrite, may_evict: may.evict };
                self.ask_copier(act, action, at, Some(reply), now);
            }
            MoveAction::Pause | MoveAction::Resume => self.set_paused(action, at, reply, now),
            MoveAction::Verify => {
                self.ask_copier(MoveAct::Verify, action, at, Some(reply), now);
            }
            MoveAction::CutOver if at.is_cut_over => {
                reply.line(&format!("pool {} serves already", at.to));
                reply.unchanged();
            }
            MoveAction::RollBack if !at.is_cut_over => {
                reply.line(&format!("pool {} serves: nothing was cut over", at.from));
                reply.unchanged();
            }
            MoveAction::CutOver | MoveAction::RollBack => {
                let act = MoveAct::CheckChange { ignore_misplaced: may.ignore_misplaced };
                self.ask_copier(act, action, at, Some(reply), now);
            }
        }
    }

    fn ask_copier(
        &mut self,
        act: MoveAct,
        action: MoveAction,
        at: Place,
        reply: Option<Box<dyn Reply>>,
        now: Instant,
    ) {
        let runs = |it: &crate::member::Member| it.running.is_some();
        if !self.members.get(&Role::Discovery).is_some_and(runs) {
            if let Some(reply) = reply {
                reply.failed("the process that copies is being started: try again in a second");
            }
            return;
        }
        self.moves.last += 1;
        let number = self.moves.last;
        let message = ToChild::Migrate { number, directory: at.directory.clone(), act };
        self.moves.asked.insert(number, Asked { action, at, reply });
        self.post(Role::Discovery, message, Vec::new(), now);
    }

    fn set_paused(
        &mut self,
        action: MoveAction,
        at: Place,
        mut reply: Box<dyn Reply>,
        now: Instant,
    ) {
        let is_paused = action == MoveAction::Pause;
        let state = match MoveState::load(&at.directory) {
            // What is to go on may be held by the copier itself, which has to hear of it.
            Ok(Some(state)) if state.is_started && state.is_paused && is_paused => {
                reply.line("the copying is paused already");
                return reply.unchanged();
            }
            Ok(Some(state)) if state.is_started => state,
            Ok(_) => {
                return reply.failed("nothing is copied yet: begin with `cashew migrate start`");
            }
            Err(why) => return reply.failed(&format!("{}: {why}", at.directory.display())),
        };
        if let Err(error) = (MoveState { is_paused, ..state }).save(&at.directory) {
            return reply.failed(&format!("{}: {error}", at.directory.display()));
        }
        if is_paused {
            let route = &at.route;
            info!(
                kind = EventKind::MovePaused.name(),
                pool = route,
                "route {route}: nothing is copied from pool {} to pool {} for now",
                at.from,
                at.to
            );
        }
        self.ask_copier(MoveAct::Obey, action, at, Some(reply), now);
    }

    /// Discovery has done something about a move, or cannot.
    pub(super) fn migrated(
        &mut self,
        number: u64,
        (failure, notes): (Option<String>, Vec<String>),
        now: Instant,
    ) {
        let Some(Asked { action, at, reply }) = self.moves.asked.remove(&number) else { return };
        let Some(mut reply) = reply else {
            if let Some(why) = failure {
                warn!("route {}: {why}", at.route);
            }
            return;
        };
        if failure.as_deref() == Some(cashew_migration::HAS_BEGUN) {
            reply.line(cashew_migration::HAS_BEGUN);
            return reply.unchanged();
        }
        if let Some(why) = failure {
            return reply.failed(&why);
        }
        for note in &notes {
            warn!("route {}: {note}", at.route);
            reply.line(note);
        }
        match action {
            MoveAction::Start => {
                let all = places(&self.current.snapshot);
                let Some(now_at) = all.into_iter().find(|it| it.directory == at.directory) else {
                    return reply.failed("the move is over by another configuration");
                };
                let state = MoveState {
                    is_started: true,
                    is_cut_over: now_at.is_cut_over,
                    // Those that were looked at.
                    servers: at.servers.clone(),
                    ..MoveState::new(&at.from, &at.to)
                };
                if let Err(error) = state.save(&at.directory) {
                    return reply.failed(&format!("{}: {error}", at.directory.display()));
                }
                let route = &at.route;
                let (from, to) = match now_at.is_cut_over {
                    true => (&at.to, &at.from),
                    false => (&at.from, &at.to),
                };
                info!(
                    kind = EventKind::MoveBegun.name(),
                    pool = route,
                    "route {route}: pool {from} is copied to pool {to}"
                );
                reply.line(&format!("pool {from} is copied to pool {to}"));
                // It is done once the copier has begun.
                self.ask_copier(MoveAct::Obey, MoveAction::Resume, at, Some(reply), now);
            }
            MoveAction::CutOver | MoveAction::RollBack => {
                self.want_side(at.directory, action == MoveAction::CutOver, reply);
            }
            MoveAction::Pause | MoveAction::Resume | MoveAction::Verify => reply.done(),
        }
    }

    /// Nobody answers any more.
    pub(super) fn copier_gone(&mut self) {
        self.moves.statuses.clear();
        for asked in std::mem::take(&mut self.moves.asked).into_values() {
            if let Some(reply) = asked.reply {
                reply.failed("the process that copies has died, and is started again: try again");
            }
        }
        self.look_at_keys_ended(
            "the process that copies has died, and is started again: try again",
        );
        if self.epochs.is_catching_up(self.last_epoch) {
            self.epochs.abort("the process that copies has died".to_owned());
        }
    }

    pub(super) fn take_moves_told(&mut self, json: String, now: Instant) {
        if let Ok(statuses) = serde_json::from_str(&json) {
            self.moves.statuses = statuses;
            self.moves.json = json;
            self.publish_moves(now);
        }
    }

    /// Tells the admin of all moves.
    pub(super) fn publish_moves(&mut self, now: Instant) {
        let json = self.moves.json.clone();
        if !json.is_empty() {
            self.post(Role::Admin, ToChild::Moves { json }, Vec::new(), now);
        }
    }

    /// All workers have paused: has the copies made complete.
    pub(super) fn catch_up(&mut self, now: Instant) {
        let Some(next) = &self.next else { return };
        let directories = sides_changed(&self.current.snapshot, next.snapshot());
        let epoch = self.last_epoch;
        if self.members.get(&Role::Discovery).is_none_or(|it| it.running.is_none()) {
            return self.epochs.abort("the process that copies does not run".to_owned());
        }
        let keys = self.key_moves.carried();
        self.post(Role::Discovery, ToChild::CatchUp { epoch, directories, keys }, Vec::new(), now);
    }

    /// The copies are complete, and nobody writes. First it is kept who serves: whoever starts from here on without
    /// having seen the commit goes by it, and both pools have the same.
    pub(super) fn caught_up(&mut self, epoch: u64, failure: Option<String>, now: Instant) {
        if !self.epochs.is_catching_up(epoch) {
            return;
        }
        let Some(next) = &self.next else { return };
        let keep = |at: &Place| {
            let state = MoveState::load(&at.directory)?.ok_or("nothing is kept of it")?;
            let servers = at.servers.clone();
            let state = MoveState { is_cut_over: at.is_cut_over, servers, ..state };
            state.save(&at.directory).map_err(|error| error.to_string())
        };
        let changed = sides_changed(&self.current.snapshot, next.snapshot());
        let changed =
            places(next.snapshot()).into_iter().filter(|it| changed.contains(&it.directory));
        let mut outcome: Result<(), String> = failure.map_or(Ok(()), Err);
        let mut kept: Vec<Place> = Vec::new();
        for at in changed {
            if outcome.is_ok() {
                outcome = keep(&at).map_err(|why| format!("{}: {why}", at.directory.display()));
                kept.push(at);
            }
        }
        match outcome.and_then(|()| self.key_moves.decide()) {
            Ok(()) => self.epochs.caught_up(epoch, now),
            Err(why) => {
                for at in &mut kept {
                    at.is_cut_over = !at.is_cut_over;
                    if let Err(why) = keep(at) {
                        error!("{}: {why}", at.directory.display());
                    }
                }
                self.epochs.abort(why);
            }
        }
    }

    /// The epoch that would have changed who serves has no effect.
    pub(super) fn tell_of_no_side(&self, why: &str) {
        let Some(next) = &self.next else { return };
        let changed = sides_changed(&self.current.snapshot, next.snapshot());
        for at in places(next.snapshot()).iter().filter(|it| changed.contains(&it.directory)) {
            let (route, pool) = (&at.route, if at.is_cut_over { &at.to } else { &at.from });
            warn!(
                kind = EventKind::MoveNotChanged.name(),
                pool = route,
                "route {route}: pool {pool} does not serve: {why}"
            );
        }
    }

    /// Which moves are served by another pool since that epoch.
    pub(super) fn tell_of_sides(&self, before: &Snapshot) {
        let changed = sides_changed(before, &self.current.snapshot);
        for at in places(&self.current.snapshot).iter().filter(|it| changed.contains(&it.directory))
        {
            let route = &at.route;
            match at.is_cut_over {
                true => info!(
                    kind = EventKind::MoveCutOver.name(),
                    pool = route,
                    "route {route}: pool {} serves, and pool {} follows",
                    at.to,
                    at.from
                ),
                false => info!(
                    kind = EventKind::MoveRolledBack.name(),
                    pool = route,
                    "route {route}: pool {} serves again, and pool {} follows",
                    at.from,
                    at.to
                ),
            }
        }
    }
}

/// Why another file must not take effect: it has another pool of a move serve than the one that does.
pub(super) fn check_sides(before: &Snapshot, after: &Snapshot) -> Result<(), String> {
    let before = places(before);
    for it in places(after) {
        let was = before.iter().find(|was| was.is_of_same_pools(&it));
        if let Some(was) = was.filter(|was| was.serves() != it.serves()) {
            return Err(format!(
                "route {}: pool {} serves, as {} says, and by {} pool {} would, without having been proven to have \
                 everything: keep the directory, and change who serves with `cashew migrate`",
                it.route,
                was.serves(),
                MoveState::file(&was.directory).display(),
                MoveState::file(&it.directory).display(),
                it.serves(),
            ));
        }
    }
    Ok(())
}

/// Whether another file has ended a move whose pools are not alike.
pub(super) fn warn_of_end(before: &Snapshot, after: &Snapshot) -> Vec<String> {
    let kept = |directory: &Path| places(after).iter().any(|it| it.directory == directory);
    let ended = places(before).into_iter().filter(|it| !kept(&it.directory));
    let warning = |it: Place| {
        let serves = if it.is_cut_over { &it.to } else { &it.from };
        format!(
            "route {}: the move from pool {} to pool {} ends: only pool {serves} is sure to have everything",
            it.route, it.from, it.to
        )
    };
    ended.map(warning).collect()
}
