//! The discovery child: what the master says on one side, Sentinels and servers on the other.

use std::error::Error;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cashew_config::snapshot::TopologyState;
use cashew_control::{
    ChildChannel, Epoch, KeysCarried, MoveAct, ReceiveError, SendError, ToChild, ToMaster,
};
use cashew_discovery::{Finder, Members, News, ServerMaintenances, Watch};
use cashew_metrics::{Layout, Segments, Shared};
use cashew_migration::{Carriage, Carrier, Migrator, Refusal};
use cashew_process::drop_privileges;
use cashew_spool::Replayer;
use rustix::event::{PollFd, PollFlags, poll};
use tracing::warn;

use crate::admin::log_or_warn;

/// How often the master is told how moves are, where it has changed.
const MOVES_INTERVAL: Duration = Duration::from_millis(250);
/// Moves that it is told of: more do not go into a message.
const MOVES_TOLD_MAX: usize = 50;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Watches until the master says to stop or is gone.
pub(crate) fn serve(control: OwnedFd) -> Result<()> {
    let mut child =
        Child { channel: ChildChannel::new(control), watching: None, begun: None, prepared: None };
    loop {
        while let Some((message, descriptors)) = match child.channel.receive() {
            Ok(message) => message,
            Err(ReceiveError::Closed) => return Ok(()),
            Err(error) => return Err(error.into()),
        } {
            if message == ToChild::Shutdown {
                return Ok(());
            }
            if let Err(error) = child.obey(message, descriptors) {
                child.say(&ToMaster::Failed { why: error.to_string() })?;
                return Err(error);
            }
        }
        child.watch()?;
    }
}

struct Child {
    channel: ChildChannel,
    /// Once the master has said to start.
    watching: Option<Watching>,
    begun: Option<Basis>,
    /// The next epoch, until it is committed or aborted.
    prepared: Option<(u64, Basis)>,
}

struct Watching {
    basis: Basis,
    watch: Watch,
    members: Members,
    maintenances: ServerMaintenances,
    /// Asks who names the servers of pools.
    finder: Finder,
    /// Has servers forget what they could not be told to.
    replayer: Replayer,
    /// Copies pools to others.
    migrator: Migrator,
    /// Carries single keys to others.
    carrier: Carrier,
    /// What the master was told of that, and when.
    moves_told: String,
    moves_told_at: Option<Instant>,
}

/// What it goes by.
struct Basis {
    epoch: Epoch,
    /// Where it publishes.
    segments: Arc<Segments>,
}

impl Basis {
    fn open(descriptors: Vec<OwnedFd>) -> Result<Self> {
        let mut descriptors = descriptors.into_iter();
        let epoch = Epoch::unseal(descriptors.next().ok_or("the epoch is missing")?)?;
        let metrics = descriptors.next().ok_or("the metrics are missing")?;
        let segments = Arc::new(Segments::open(metrics, &Layout::new(&epoch.snapshot))?);
        Ok(Self { epoch, segments })
    }

    /// By pool.
    fn states(&self) -> Vec<TopologyState> {
        self.epoch.pools.iter().map(|pool| pool.topology.clone()).collect()
    }
}

impl Basis {
    fn moves(&self) -> Vec<cashew_migration::Task> {
        cashew_migration::tasks(&self.epoch.snapshot, &self.states())
    }
}

impl Watching {
    fn new(basis: Basis, now: Instant) -> Result<Self> {
        let watch = Watch::new(&basis.epoch.snapshot, now);
        let members = Members::default();
        let finder = Finder::new(&basis.epoch.snapshot, now)?;
        let mut watching = Self {
            basis,
            watch,
            members,
            maintenances: ServerMaintenances::default(),
            finder,
            replayer: Replayer::default(),
            migrator: Migrator::default(),
            carrier: Carrier::default(),
            moves_told: String::new(),
            moves_told_at: None,
        };
        watching.follow(now);
        Ok(watching)
    }

    fn put_into_effect(&mut self, basis: Basis, now: Instant) {
        self.watch.put_into_effect(&basis.epoch.snapshot, now);
        self.finder.put_into_effect(&basis.epoch.snapshot);
        self.basis = basis;
        self.follow(now);
    }

    fn follow(&mut self, now: Instant) {
        let Basis { epoch, segments } = &self.basis;
        self.members.put_into_effect(&epoch.snapshot, &self.basis.states(), segments, now);
        self.maintenances.put_into_effect(&epoch.snapshot, segments, now);
        self.follow_spool();
        self.follow_moves();
    }

    fn follow_moves(&mut self) {
        self.migrator.follow(self.basis.moves());
    }

    /// How moves are, as JSON, if it is to be told.
    fn moves_to_tell(&mut self, now: Instant) -> Result<Option<String>> {
        if self.moves_told_at.is_some_and(|at| now < at + MOVES_INTERVAL) {
            return Ok(None);
        }
        self.moves_told_at = Some(now);
        let mut statuses = self.migrator.status();
        statuses.truncate(MOVES_TOLD_MAX);
        let json = serde_json::to_string(&statuses)?;
        if json == self.moves_told || statuses.is_empty() && self.moves_told.is_empty() {
            return Ok(None);
        }
        self.moves_told.clone_from(&json);
        Ok(Some(json))
    }

    fn follow_spool(&mut self) {
        let Basis { epoch, segments } = &self.basis;
        let targets = cashew_spool::targets(&epoch.snapshot, &self.basis.states(), segments);
        self.replayer.follow(targets, Arc::clone(segments));
    }

    fn set_topology(&mut self, pool: u32, topology: TopologyState) {
        let Epoch { snapshot, pools, .. } = &mut self.basis.epoch;
        let at = pool as usize;
        if let (Some(config), Some(state)) = (snapshot.pools.get(at), pools.get_mut(at))
            && state.topology != topology
            && topology.is_of(config)
        {
            self.members.set_topology(config, &topology);
            state.topology = topology;
            self.follow_spool();
            self.follow_moves();
        }
    }
}

impl Child {
    fn obey(&mut self, message: ToChild, mut descriptors: Vec<OwnedFd>) -> Result<()> {
        match message {
            ToChild::Init { .. } => {
                let memory = descriptors.pop().ok_or("what all share is missing")?;
                cashew_process::log::record_events(Shared::open(memory)?.events());
                let basis = Basis::open(descriptors)?;
                let snapshot = &basis.epoch.snapshot;
                drop_privileges(snapshot.global.user.as_deref(), snapshot.global.group.as_deref())?;
                self.begun = Some(basis);
            }
            ToChild::Start => {
                let basis = self.begun.take().ok_or("there is nothing to watch")?;
                self.watching = Some(Watching::new(basis, Instant::now())?);
                self.say(&ToMaster::Ready)?;
            }
            ToChild::Prepare { epoch, .. } => {
                let answer = match Basis::open(descriptors) {
                    Ok(basis) => {
                        if let Some(Watching { members, maintenances, .. }) = &mut self.watching {
                            members.prepare(&basis.epoch.snapshot, &basis.segments, Instant::now());
                            maintenances.prepare(&basis.epoch.snapshot, &basis.segments);
                        }
                        self.prepared = Some((epoch, basis));
                        ToMaster::Prepared { epoch }
                    }
                    Err(error) => ToMaster::Refused { epoch, why: error.to_string() },
                };
                self.say(&answer)?;
            }
            ToChild::Commit { epoch } => {
                let prepared = self.prepared.take().filter(|(number, _)| *number == epoch);
                // Who was started since the change was decided began with its epoch.
                if let (Some((_, basis)), Some(watching)) = (prepared, &mut self.watching) {
                    cashew_process::log::set_format(basis.epoch.snapshot.global.log_format);
                    watching.put_into_effect(basis, Instant::now());
                    watching.carrier.commit();
                }
                self.say(&ToMaster::Committed { epoch })?;
            }
            ToChild::Abort { .. } => {
                self.prepared = None;
                if let Some(Watching { members, maintenances, migrator, carrier, .. }) =
                    &mut self.watching
                {
                    members.abort();
                    maintenances.abort();
                    migrator.call_off();
                    carrier.call_off();
                }
            }
            ToChild::Release { pool, topology, .. } => {
                if let Some(watching) = &mut self.watching {
                    watching.set_topology(pool, topology);
                } else if let Some(state) =
                    self.begun.as_mut().and_then(|basis| basis.epoch.pools.get_mut(pool as usize))
                {
                    state.topology = topology;
                }
            }
            ToChild::NotPrimary { pool, server } => {
                if let Some(Watching { watch, members, .. }) = &mut self.watching {
                    let now = Instant::now();
                    watch.suspect(&pool, &server, now);
                    members.suspect(&pool, now);
                }
            }
            ToChild::MapDoubted { pool } => {
                if let Some(Watching { watch, .. }) = &mut self.watching {
                    watch.doubt(&pool, Instant::now());
                }
            }
            ToChild::Migrate { number, directory, act } => {
                self.migrate(number, directory, act)?;
            }
            ToChild::LookAtKeys { number, keys, size_max } => {
                self.look_at_keys(number, (carriage(keys), size_max))?;
            }
            ToChild::CatchUp { epoch, directories, keys } => {
                self.catch_up(epoch, &directories, keys)?;
            }
            other => log_or_warn(other, descriptors),
        }
        Ok(())
    }

    /// Does something about a move. What takes a while answers from a thread of its own.
    fn migrate(&mut self, number: u64, directory: PathBuf, act: MoveAct) -> Result<()> {
        let migrated = move |failure: Option<String>| ToMaster::Migrated {
            number,
            failure,
            notes: Vec::new(),
        };
        let Some(Watching { migrator, .. }) = &self.watching else {
            return self.say(&migrated(Some("it is being started: try again".to_owned())));
        };
        let failure = match act {
            MoveAct::CheckStart { may_overwrite, may_evict } => {
                match migrator.check_start(&directory, may_overwrite, may_evict) {
                    Ok(check) => {
                        return self.answer_later(move || {
                            let (notes, failure) = match check() {
                                Ok(notes) => (notes, None),
                                Err(why) => (Vec::new(), Some(why)),
                            };
                            ToMaster::Migrated { number, failure, notes }
                        });
                    }
                    Err(why) => Some(why),
                }
            }
            MoveAct::Obey => migrator.obey(&directory).err(),
            MoveAct::Verify => migrator.verify(&directory).err(),
            MoveAct::CheckChange { ignore_misplaced } => {
                migrator.obstacle(&directory, ignore_misplaced)
            }
        };
        // Whoever asks how it goes once it is answered sees it.
        if failure.is_none()
            && matches!(act, MoveAct::Obey | MoveAct::Verify)
            && let Some(watching) = &mut self.watching
        {
            watching.moves_told_at = None;
            if let Some(json) = watching.moves_to_tell(Instant::now())? {
                self.say(&ToMaster::Moves { json })?;
            }
        }
        self.say(&migrated(failure))
    }

    /// Finds out whether keys can go, and answers from a thread of its own.
    fn look_at_keys(&mut self, number: u64, wanted: (Carriage, Option<u64>)) -> Result<()> {
        let Some(Watching { carrier, basis, .. }) = &mut self.watching else {
            let failure = Some("it is being started: try again".to_owned());
            return self.say(&ToMaster::KeysLookedAt { number, failure, pool: None });
        };
        let channel = ChildChannel::new(self.channel.as_fd().try_clone_to_owned()?);
        let then = move |outcome: std::result::Result<(), Refusal>| {
            let (failure, pool) = match outcome {
                Ok(()) => (None, None),
                Err(Refusal { why, pool }) => (Some(why), pool),
            };
            answer_on(&channel, &ToMaster::KeysLookedAt { number, failure, pool });
        };
        carrier.look((&basis.epoch.snapshot, &basis.states()), wanted, then);
        Ok(())
    }

    fn catch_up(
        &mut self,
        epoch: u64,
        directories: &[PathBuf],
        keys: Option<KeysCarried>,
    ) -> Result<()> {
        let caught_up = move |failure: Option<String>| ToMaster::CaughtUp { epoch, failure };
        let next = self.prepared.as_ref().filter(|(number, _)| *number == epoch);
        let (Some((_, next)), Some(Watching { migrator, carrier, .. })) =
            (next, &mut self.watching)
        else {
            return self
                .say(&caught_up(Some("the epoch is not known where copies are made".into())));
        };
        if let Some(keys) = keys {
            let carriage = carriage(keys);
            let channel = ChildChannel::new(self.channel.as_fd().try_clone_to_owned()?);
            let then = move |outcome: std::result::Result<(), String>| {
                answer_on(&channel, &caught_up(outcome.err()));
            };
            carrier.carry((&next.epoch.snapshot, &next.states()), carriage, then);
            return Ok(());
        }
        let wait = migrator.catch_up(directories, next.moves());
        self.answer_later(move || caught_up(wait().err()))
    }

    fn answer_later(&self, answer: impl FnOnce() -> ToMaster + Send + 'static) -> Result<()> {
        let channel = ChildChannel::new(self.channel.as_fd().try_clone_to_owned()?);
        let thread = std::thread::Builder::new().name("move-answer".to_owned());
        thread.spawn(move || answer_on(&channel, &answer()))?;
        Ok(())
    }

    /// Goes on watching, tells the master what has come about, and waits for more.
    fn watch(&mut self) -> Result<()> {
        let Some(Watching { watch, members, migrator, .. }) = &mut self.watching else {
            return wait(&self.channel, PollFlags::IN);
        };
        let now = Instant::now();
        migrator.take_doubts().iter().for_each(|pool| watch.doubt(pool, now));
        watch.advance(now);
        let (mut messages, mut maps) = (Vec::new(), Vec::new());
        while let Some(news) = watch.poll_news() {
            match news {
                News::Down { pool, server, down } => members.set_down(&pool, &server, down),
                News::Map { pool, seeds, map } => maps.push((pool, (seeds, map))),
                news => messages.extend(message(news)),
            }
        }
        members.advance(now);
        messages.extend(std::iter::from_fn(|| members.poll_news()).filter_map(message));
        for message in messages {
            self.say(&message)?;
        }
        for (pool, found) in maps {
            let sealed = cashew_control::seal(&serde_json::to_vec(&found)?)?;
            self.say_with(&ToMaster::Cluster { pool }, &[sealed.as_fd()])?;
        }
        self.tell_found(now)?;
        self.tell_maintenance(now)?;
        let Some(watching) = &mut self.watching else { return Ok(()) };
        if let Some(json) = watching.moves_to_tell(now)? {
            self.say(&ToMaster::Moves { json })?;
        }
        let Some(Watching { watch, members, maintenances, finder, moves_told, .. }) =
            &self.watching
        else {
            return Ok(());
        };
        let until = (!moves_told.is_empty()).then(|| now + MOVES_INTERVAL);
        let until = until.into_iter().chain(finder.poll_timeout(now)).min();
        Ok(watch.wait((members, maintenances), &[self.channel.as_fd(), finder.waking()], until)?)
    }

    /// Tells the master what servers tell of their maintenance.
    fn tell_maintenance(&mut self, now: Instant) -> Result<()> {
        let Some(Watching { maintenances, .. }) = &mut self.watching else { return Ok(()) };
        maintenances.advance(now);
        let relocated: Vec<_> = std::iter::from_fn(|| maintenances.poll_relocated()).collect();
        let statuses: Vec<_> = std::iter::from_fn(|| maintenances.poll_status()).collect();
        for relocated in relocated {
            self.say(&ToMaster::Relocated { json: serde_json::to_string(&relocated)? })?;
        }
        for status in statuses {
            self.say(&ToMaster::Maintained { json: serde_json::to_string(&status)? })?;
        }
        Ok(())
    }

    /// Tells the master which servers sources name.
    fn tell_found(&mut self, now: Instant) -> Result<()> {
        let Some(Watching { finder, .. }) = &mut self.watching else { return Ok(()) };
        finder.advance(now);
        let found: Vec<_> = std::iter::from_fn(|| finder.poll_found()).collect();
        let statuses: Vec<_> = std::iter::from_fn(|| finder.poll_status()).collect();
        for found in found {
            let sealed = cashew_control::seal(&serde_json::to_vec(&found)?)?;
            self.say_with(&ToMaster::Found, &[sealed.as_fd()])?;
        }
        for status in statuses {
            self.say(&ToMaster::Source { json: serde_json::to_string(&status)? })?;
        }
        Ok(())
    }

    fn say(&self, message: &ToMaster) -> Result<()> {
        self.say_with(message, &[])
    }

    fn say_with(&self, message: &ToMaster, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        say_on(&self.channel, message, descriptors)
    }
}

fn carriage(KeysCarried { from, to, keys, may_overwrite }: KeysCarried) -> Carriage {
    Carriage { from, to, keys, may_overwrite }
}

/// From another thread than that which listens.
fn answer_on(channel: &ChildChannel, message: &ToMaster) {
    if let Err(error) = say_on(channel, message, &[]) {
        warn!("the master is not answered: {error}");
    }
}

/// The master always reads on, so waiting for it to do so ends.
fn say_on(
    channel: &ChildChannel,
    message: &ToMaster,
    descriptors: &[BorrowedFd<'_>],
) -> Result<()> {
    loop {
        match channel.send(message, descriptors) {
            Err(SendError::WouldBlock) => wait(channel, PollFlags::OUT)?,
            // It is gone, which receiving tells.
            Err(SendError::Closed) => return Ok(()),
            Err(error @ SendError::TooLarge(_)) => {
                warn!("{error}");
                return Ok(());
            }
            done => return Ok(done?),
        }
    }
}

/// What the master is told of it.
fn message(news: News) -> Option<ToMaster> {
    Some(match news {
        News::Down { .. } | News::Map { .. } => return None,
        News::Replicas { pool, server, primary, replicas } => {
            ToMaster::Replicas { pool, server, primary, replicas }
        }
        News::Primary { pool, server, to, config_epoch, why } => {
            ToMaster::Primary { pool, server, host: to.host, port: to.port, config_epoch, why }
        }
        News::Group { pool, server, state, config_epoch, primary, lineage } => {
            let state = state.name().to_owned();
            ToMaster::Group { pool, server, state, config_epoch, primary, lineage }
        }
        News::Successor { pool, from, to } => ToMaster::Successor { pool, from, to },
        News::Seed { pool, seed, failure } => ToMaster::Seed { pool, seed, failure },
        News::Sentinel { pool, sentinel, failure } => {
            ToMaster::Sentinel { pool, host: sentinel.host, port: sentinel.port, failure }
        }
    })
}

fn wait(channel: &ChildChannel, until: PollFlags) -> Result<()> {
    match poll(&mut [PollFd::new(channel, until)], None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
