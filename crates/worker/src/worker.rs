//! The event loop: wait, handle events, run timeouts, flush.

mod authenticating;
mod connecting;
mod epochs;
mod monitors;
mod moving;
mod notices;
mod orders;
mod sightings;
mod worker_queries;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use cashew_authoriser::Authoriser;
use cashew_control::{ChildChannel, Session, ToMaster};
use cashew_driver::{Driver, Secured, Token};
use cashew_engine::{
    Action, BackendId, ConnId, Engine, Identity, ListenerId, OpenFiles, Sequel, ServerId, Setup,
    SlowEnd, Time,
};
use cashew_metrics::{Cause, EventKind, Health, StateChange, monotonic_ms};

use rustix::thread::set_current_timer_slack;

use crate::affinity::Processors;
use crate::clock::{now, wall_us};
use crate::core::{Core, Listener, Owner, Report, WATCH_CONTROL};
use crate::pace::{Pace, Work};
use crate::preparer::Preparer;
use crate::resolver::Resolver;
use crate::secured::{Failed, Place};
use crate::sessions::Outbox;
use crate::start::{Error, Start};
use epochs::Change;
use monitors::Monitors;
use worker_queries::WorkerQuery;

/// How often the heartbeat is renewed, even when the worker is idle.
const HEARTBEAT: Duration = Duration::from_millis(100);

/// How often freed memory is returned to the system, if there is any.
const RETURN: Duration = Duration::from_millis(500);

/// The period over which the busy share is measured.
const BUSY_PERIOD_US: u64 = 1_000_000;

/// Pause before a message that the channel did not take is sent again.
const RESEND: Duration = Duration::from_millis(1);

/// The fewest freed bytes for which a trim is worthwhile.
const TRIM_MIN: usize = 64 << 10;

/// Timer slack: how late the kernel may end a sleep.
const TIMER_SLACK_NS: u64 = 1_000;

pub(crate) struct Worker<D> {
    driver: Secured<D>,
    core: Core,
    slot: u32,
    next_beat: Time,
    next_return: Time,
    /// The earliest time of the next trim under memory pressure.
    next_trim: Time,
    /// Bytes freed since the last trim.
    unreturned: usize,
    busy: Busy,
    pace: Pace,
    /// When the last wait for events ended.
    woken_at: Time,
    processors: Processors,
    resolver: Option<Resolver>,
    /// Once somebody is to be asked who a client is.
    authoriser: Option<Authoriser<(ConnId, u64)>>,
    preparer: Option<Preparer>,
    change: Change,
    outbox: Outbox,
    /// Queries from clients about the clients of all workers, not answered yet.
    worker_queries: VecDeque<WorkerQuery>,
    /// Pools that a client of this worker has paused.
    pauses_begun: Vec<String>,
    monitors: Monitors,
    is_master_alive: bool,
    /// Idle clients that wait to be handed to another worker.
    handoffs: VecDeque<ConnId>,
    /// Sessions from other workers that are not confirmed to the master yet.
    arrivals: VecDeque<(Session, Vec<OwnedFd>)>,
    /// Reserved descriptors. They are freed while messages from the master are received.
    spare_descriptors: Vec<OwnedFd>,
    /// Former listeners that may still report connections from their backlog.
    unlistened: Vec<u32>,
    /// Set while another process takes over.
    retiring: Option<Retiring>,
    /// The master wants no more handoffs; this is not confirmed to it yet.
    is_to_keep: bool,
    /// Set while stopping: the time limit for requests in flight.
    deadline: Option<Time>,
}

struct Retiring {
    timeout_ms: u64,
    /// When those are closed who cannot go elsewhere, once they are at rest; `None` when this is done.
    finish_at: Option<Time>,
    until: Time,
}

/// Time that was worked and waited in this period.
#[derive(Default)]
struct Busy {
    worked_us: u64,
    waited_us: u64,
}

impl Busy {
    /// Ends a tick. Returns the busy share of the period in permille when the period is over.
    fn end_tick(&mut self, waited_us: u64, worked_us: u64) -> Option<u32> {
        self.waited_us += waited_us;
        self.worked_us += worked_us;
        let elapsed_us = self.waited_us + self.worked_us;
        (elapsed_us >= BUSY_PERIOD_US).then(|| {
            let permille = self.worked_us * 1000 / elapsed_us;
            *self = Self::default();
            permille as u32
        })
    }
}

impl<D: Driver> Worker<D> {
    pub(crate) fn new(start: Start, driver: D) -> Result<Self, Error> {
        let Start { slot, rank, snapshot, plan, tls, segments, shared, listeners, rings } = start;
        let mut driver = Secured::new(driver);
        let now = now();
        let writer = segments.writer(slot);
        writer.set_pid(std::process::id());
        writer.set_epoch(snapshot.epoch);
        writer.set_started_at(wall_us() / 1_000_000);
        let mut processors = Processors::of_this_thread();
        processors.pin(&snapshot.global.worker_cpu_affinity, rank);
        let mut engine = Engine::new(Setup {
            plan,
            metrics: segments.writer(slot),
            seed: wall_us() ^ u64::from(slot) << 48 ^ u64::from(std::process::id()),
            slot,
            identity: Identity {
                version: env!("CARGO_PKG_VERSION"),
                process_id: std::process::id(),
            },
            now,
        });
        let noise = RandomState::new();
        engine.set_passages(shared.passages());
        engine.set_generations(shared.generations());
        engine.set_hot_acts(shared.hot_acts());
        engine.set_slow_log(shared.slow_requests());
        engine.set_secret([noise.hash_one(0), noise.hash_one(1)]);
        let mut pools = BTreeMap::new();
        for (listener, pool, socket) in listeners {
            let place = Place::of(&socket);
            driver.listen(listener, socket).map_err(Error::Io)?;
            let owner = Owner::Pool(ListenerId::new(pool));
            pools.insert(listener, Listener { owner, place, acceptor: None });
        }
        let snapshot = Arc::new(snapshot);
        let mut core = Core {
            engine,
            writer,
            now,
            worked_from: now,
            worked_us: 0,
            snapshot: Arc::clone(&snapshot),
            tls,
            insecure: Failed::default(),
            denied: Failed::default(),
            unintroduced: Failed::default(),
            awaited: HashMap::new(),
            told: HashMap::new(),
            segments,
            shared,
            listeners: pools,
            control_readable: false,
            resolver_readable: false,
            authoriser_readable: false,
            preparer_readable: false,
            attempts: HashMap::new(),
            peers: HashMap::new(),
            found: HashMap::new(),
            unresponsive: HashMap::new(),
            files: OpenFiles::of(&snapshot, u64::MAX),
            refused: Report::default(),
            blocked: Report::default(),
            pressed: Report::default(),
            shed: Report::default(),
            held_back: Report::default(),
            slow: Report::default(),
            odd_users: Report::default(),
            failed_connects: Vec::new(),
            detaching: HashSet::new(),
            detached: Vec::new(),
            halves: HashMap::new(),
            sources: HashMap::new(),
            has_quickack: false,
            unacknowledged: Vec::new(),
        };
        core.set_snapshot(snapshot);
        core.keep_spool();
        core.reserve_files();
        if rank == 0 {
            core.check_files();
        }
        let pace = Pace::new(core.snapshot.global.batch_window_max_us);
        // By default the kernel may wake us 50 µs late, which is as long as the whole window.
        if let Err(errno) = set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NS)) {
            tracing::warn!("cannot set the timer slack: {errno}");
        }
        let mut worker = Self {
            driver,
            core,
            slot,
            next_beat: now,
            next_return: now,
            next_trim: now,
            unreturned: 0,
            busy: Busy::default(),
            pace,
            woken_at: now,
            processors,
            resolver: None,
            authoriser: None,
            preparer: None,
            change: Change::None,
            outbox: Outbox::default(),
            worker_queries: VecDeque::new(),
            pauses_begun: Vec::new(),
            monitors: Monitors::default(),
            is_master_alive: true,
            handoffs: VecDeque::new(),
            arrivals: VecDeque::new(),
            spare_descriptors: Vec::new(),
            unlistened: Vec::new(),
            retiring: None,
            is_to_keep: false,
            deadline: None,
        };
        worker.enable_tls();
        for ring in rings {
            worker.obey(ring, Vec::new());
        }
        Ok(worker)
    }

    pub(crate) fn run(mut self, mut control: ChildChannel) -> Result<(), Error> {
        self.driver.watch(WATCH_CONTROL, control.as_fd()).map_err(Error::Io)?;
        self.outbox.push(ToMaster::Ready);
        self.keep_spare_descriptors(&control);
        let mut is_watched = true;
        loop {
            if !self.arrivals.is_empty() {
                self.take_arrivals(&control);
            }
            self.end_tick();
            if self.next_beat <= self.core.now {
                self.beat();
            }
            if !self.outbox.is_empty() {
                self.send_messages(&control);
            }
            if self.is_over() {
                self.cut();
                return Ok(());
            }
            self.wait()?;
            if std::mem::take(&mut self.core.resolver_readable) {
                self.take_addresses();
            }
            if std::mem::take(&mut self.core.authoriser_readable) {
                self.take_verdicts();
            }
            if std::mem::take(&mut self.core.preparer_readable) {
                self.take_prepared();
            }
            if std::mem::take(&mut self.core.control_readable) {
                self.receive_messages(&mut control);
            }
            if !self.is_master_alive && std::mem::take(&mut is_watched) {
                // A closed channel stays readable for ever.
                self.driver.unwatch(control.as_fd()).map_err(Error::Io)?;
                if self.deadline.is_none() {
                    tracing::warn!(
                        kind = EventKind::MasterGone.name(),
                        "the master is gone: finishing what is in flight"
                    );
                    self.begin_shutdown();
                }
            }
        }
    }

    /// Waits for events, or until held-back output is due. A tick covers everything that was found
    /// until the driver has caught up: limits per tick, timing and batching do not restart in
    /// between.
    fn wait(&mut self) -> Result<(), Error> {
        self.core.tick();
        let began = self.core.now;
        let worked_us = began.micros_since(self.woken_at);
        (self.core.worked_from, self.core.worked_us) = (self.woken_at, worked_us);
        let mut timeout = self.timeout();
        if let Some(at) = self.pace.wake_at() {
            timeout = timeout.min(at - began);
        }
        timeout -= self.nap(timeout);
        self.driver.wait(Some(timeout), &mut self.core).map_err(Error::Io)?;
        self.woken_at = self.core.now;
        while self.driver.is_behind() {
            self.act();
            self.write();
            self.driver.wait(Some(Duration::ZERO), &mut self.core).map_err(Error::Io)?;
        }
        let waited_us = self.woken_at.micros_since(began);
        let engine = &self.core.engine;
        let activity = engine.activity();
        let work = Work {
            answered: engine.answered().count,
            clients: engine.clients_seen(),
            asked: activity.asked,
            pipelined: activity.pipelined,
        };
        if self.pace.end_tick(waited_us, worked_us, work, activity.active()) {
            self.core.writer.set_window_us(self.pace.window_us());
        }
        if let Some(permille) = self.busy.end_tick(waited_us, worked_us) {
            self.core.writer.set_busy(permille);
        }
        Ok(())
    }

    /// Sleeps so that more events come together, for `limit` at most. Returns how long.
    fn nap(&self, limit: Duration) -> Duration {
        let nap = self.pace.nap().min(limit);
        if !nap.is_zero() {
            std::thread::sleep(nap);
        }
        nap
    }

    /// Runs the engine's timeouts and decisions, then writes.
    fn end_tick(&mut self) {
        let core = &mut self.core;
        core.tick();
        if core.engine.poll_timeout() <= core.now {
            core.engine.handle_timeout(core.now);
        }
        if let Some(retiring) = &mut self.retiring
            && retiring.finish_at.take_if(|at| *at <= core.now).is_some()
        {
            core.engine.finish_tied(core.now);
        }
        core.engine.settle(core.now);
        self.notify_monitors();
        if self.core.engine.has_audited() {
            self.record_audited();
        }
        self.act();
        if !self.worker_queries.is_empty() {
            self.answer_some_queries();
            self.act();
        }
        if !self.pauses_begun.is_empty() {
            self.log_ended_pauses();
        }
        self.write();
        if self.core.engine.has_sightings() {
            self.record_sightings();
        }
        self.core.give_quotas();
        if !(self.handoffs.is_empty() && self.core.detached.is_empty()) {
            self.move_sessions();
        }
        if self.is_to_keep {
            self.confirm_kept();
        }
        for conn in self.core.unacknowledged.drain(..) {
            self.driver.acknowledge(conn);
        }
    }

    /// Writes all output that is due, then runs the actions that follow from it.
    fn write(&mut self) {
        // A write may close connections; their requests are answered before the next wait.
        while self.flush() {
            self.act();
        }
    }

    /// Writes all output that is due once. Returns whether there was any.
    fn flush(&mut self) -> bool {
        let mut has_written = false;
        if self.core.engine.has_held_back() && self.may_go() {
            self.core.engine.let_go();
            while let Some(conn) = self.core.engine.poll_dirty_lane() {
                self.driver.send(Token(conn.token()), &mut self.core);
                has_written = true;
            }
        }
        while let Some(conn) = self.core.engine.poll_dirty_client() {
            self.driver.send(Token(conn.token()), &mut self.core);
            has_written = true;
        }
        if has_written {
            self.driver.flush(&mut self.core);
        }
        has_written
    }

    /// Whether held-back output goes now.
    fn may_go(&mut self) -> bool {
        let (engine, now) = (&self.core.engine, self.core.now);
        if engine.has_put_off() {
            // The next tick may be long, so nothing waits for more output.
            self.pace.go(engine.activity());
            return true;
        }
        self.pace.may_go(engine.activity(), now)
    }

    #[inline]
    fn act(&mut self) {
        if !self.core.failed_connects.is_empty() {
            self.retry_connects();
        }
        while let Some(action) = self.core.engine.poll_action() {
            self.carry_out(action);
        }
    }

    #[inline(never)]
    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Connect { conn, backend, server } => self.connect(conn, backend, server),
            Action::Close { conn } => {
                let (is_lane, is_paired) = (conn.is_lane(), conn.is_paired());
                let conn = Token(conn.token());
                self.core.forget(conn);
                // What was said to a server is to arrive, if it is a client's own word.
                if is_lane && !is_paired {
                    self.driver.give_up(conn);
                }
                self.driver.close(conn);
            }
            Action::Reset { conn } => {
                let conn = Token(conn.token());
                self.core.forget(conn);
                self.driver.reset(conn);
            }
            Action::EndWriting { conn } => self.driver.end_writing(Token(conn.token())),
            Action::PauseRead { conn } => self.driver.pause(Token(conn.token())),
            Action::ResumeRead { conn } => self.driver.resume(Token(conn.token())),
            Action::SetLowWater { conn, bytes } => {
                self.driver.set_low_water(Token(conn.token()), bytes);
            }
            Action::Held { backend, version } => {
                self.outbox.push(ToMaster::Held { pool: backend.number(), version });
            }
            Action::Prepared { epoch } => self.outbox.push(ToMaster::Prepared { epoch }),
            Action::Paused { epoch, unfinished } => {
                self.outbox.push(ToMaster::Paused { epoch, unfinished });
            }
            Action::HandOff { conn } => self.handoffs.push_back(conn),
            Action::Monitors { pool, any } => self.announce_monitors(pool, any),
            Action::Ask { ticket, scope, listener: pool, by, request } => {
                self.worker_queries.push_back(WorkerQuery { ticket, scope, pool, by, request });
            }
            Action::Eject { backend, server, why } => {
                let why = why.text().to_owned();
                self.outbox.push(ToMaster::ServerDown {
                    pool: backend.number(),
                    server: server.number(),
                    why,
                });
            }
            Action::NotPrimary { backend, server } => {
                let (pool, server) = (backend.number(), server.number());
                self.outbox.push(ToMaster::NotPrimary { pool, server });
            }
            Action::MapDoubted { backend } => {
                self.outbox.push(ToMaster::MapDoubted { pool: backend.number() });
            }
            Action::Readmit { backend, server } => {
                self.outbox
                    .push(ToMaster::ServerUp { pool: backend.number(), server: server.number() });
            }
            Action::Authenticate { conn, ticket, listener, login } => {
                self.authenticate((conn, ticket), listener, *login);
            }
            Action::Notice { listener, conn, notice, times } => {
                self.log_notice(listener, conn, notice, times)
            }
            Action::Pressed { held } => {
                self.trim_now_and_then();
                if self.core.pressed.is_due(self.core.now) {
                    tracing::warn!(
                        kind = EventKind::MemoryPressed.name(),
                        "buffers hold {} MiB, which closing clients does not free: no new requests \
                         are taken until it is less; raise memory_max or lower the limits of pools",
                        held >> 20
                    );
                }
            }
            Action::HeldBack { listener, clients, held, share } => {
                self.trim_now_and_then();
                if self.core.held_back.is_due(self.core.now) {
                    let pool = &self.core.engine.listener_config(listener).name;
                    tracing::warn!(
                        kind = EventKind::ClientsHeldBack.name(),
                        pool,
                        "pool {pool} holds {} MiB, more than its share of memory_max, {} MiB: the \
                         {clients} clients that hold most are not read until it is less",
                        held >> 20,
                        share >> 20
                    );
                }
            }
            Action::Shed { listener, clients, bytes, most, held, share } => {
                if self.core.shed.is_due(self.core.now) {
                    let pool = &self.core.engine.listener_config(listener).name;
                    tracing::warn!(
                        kind = EventKind::ClientsShed.name(),
                        pool,
                        "pool {pool} holds {} MiB, its share of memory_max is {} MiB: the {clients} \
                         clients that held most are closed, which frees {} MiB; the first had id {most}",
                        held >> 20,
                        share >> 20,
                        bytes >> 20
                    );
                }
            }
            Action::LargeWaits { backend, server } => {
                let (pool, server) = self.names(backend, server);
                tracing::warn!(
                    kind = EventKind::ServerCrowded.name(),
                    pool,
                    server,
                    "pool {pool}: all connections of this worker to server {server} for large \
                     requests and replies are taken: such wait, or hold others up; see \
                     transfer_rate_min"
                );
            }
            Action::SessionsWait { backend, server, clients } => {
                let (pool, server) = self.names(backend, server);
                tracing::warn!(
                    kind = EventKind::ServerCrowded.name(),
                    pool,
                    server,
                    "pool {pool}: {clients} clients wait for a connection to server {server} for \
                     transactions and blocking calls: all of session_connections are in use"
                );
            }
            Action::SlowClient { backend, server, id, end } => {
                if self.core.slow.is_due(self.core.now) {
                    let (pool, server) = self.names(backend, server);
                    let what = match end {
                        SlowEnd::Refused => "its large request is answered with an error",
                        SlowEnd::Collected => "the rest of its large reply is kept here",
                        SlowEnd::Closed => "it is closed",
                    };
                    tracing::warn!(
                        kind = EventKind::ClientSlow.name(),
                        pool,
                        server,
                        "pool {pool}: the client of id {id} is too slow for its connection to server \
                         {server}: {what}"
                    );
                }
            }
            Action::ServerState { backend, server, change } => {
                self.log_server_state(backend, server, change);
            }
            Action::ServerHindered { backend, server, why } => {
                let (pool, server) = self.names(backend, server);
                tracing::warn!(
                    kind = EventKind::ServerHindered.name(),
                    pool,
                    server,
                    "pool {pool}: cannot connect to server {server} from this machine, which does \
                     not count against the server: {}",
                    why.text()
                );
            }
            Action::CredentialsRefused { backend, server } => {
                let (pool, server) = self.names(backend, server);
                tracing::warn!(
                    kind = EventKind::CredentialsRefused.name(),
                    pool,
                    server,
                    "pool {pool}: server {server} does not take the credentials that come first in \
                     server_auth, and is given the next"
                );
            }
            Action::KeepingRefused { backend, server, why: Some(why) } => {
                let (pool, server) = self.names(backend, server);
                tracing::warn!(
                    kind = EventKind::CacheRefused.name(),
                    pool,
                    server,
                    "pool {pool}: replies of server {server} are not kept by the cache of routes, since it refuses \
                     what that takes: {why}"
                );
            }
            Action::KeepingRefused { backend, server, why: None } => {
                let (pool, server) = self.names(backend, server);
                tracing::info!(
                    kind = EventKind::CacheTaken.name(),
                    pool,
                    server,
                    "pool {pool}: replies of server {server} can be kept by the cache of routes again"
                );
            }
            Action::CopyRefused { backend, server, why } => {
                let (pool, server) = self.names(backend, server);
                tracing::warn!(
                    kind = EventKind::CopyRefused.name(),
                    pool,
                    server,
                    "pool {pool}: server {server} refuses copies of hot keys, which are served without them: {why}"
                );
            }
            Action::ServerMisfit { backend, server, expected, excerpt, sequel } => {
                let (pool, server) = self.names(backend, server);
                let excerpt: String = excerpt.iter().map(|byte| format!("{byte:02x}")).collect();
                let sequel = match sequel {
                    Sequel::Closed => "so a connection to it was closed",
                    Sequel::Dropped => "behind an error, so that much was dropped",
                };
                tracing::warn!(
                    kind = EventKind::ServerMisfit.name(),
                    pool,
                    server,
                    "pool {pool}: server {server} sent what does not fit, {sequel}: expected \
                     {expected}, got {excerpt} (hex)"
                );
            }
            Action::ServerRecovered { backend, server } => {
                let (pool, server) = self.names(backend, server);
                tracing::info!(
                    kind = EventKind::ServerReconnected.name(),
                    pool,
                    server,
                    "pool {pool}: server {server} is connected again"
                );
            }
        }
    }

    fn log_server_state(&self, backend: BackendId, server: ServerId, change: StateChange) {
        let (pool, server) = self.names(backend, server);
        let why = change.cause.text();
        match (change.to, change.cause) {
            _ if change.is_relapse => {
                tracing::debug!("pool {pool}: server {server} fails again: {why}");
            }
            // The master says so, and why.
            (Health::Out, Cause::Ejected) => {}
            (Health::Out, Cause::Silent) => tracing::warn!(
                kind = EventKind::ServerDown.name(),
                pool,
                server,
                "pool {pool}: server {server} does not answer: its requests fail at once"
            ),
            (Health::Out, _) => tracing::warn!(
                kind = EventKind::ServerDown.name(),
                pool,
                server,
                "pool {pool}: server {server} fails: {why}; it is out until it answers"
            ),
            (Health::Suspect, _) => tracing::warn!(
                kind = EventKind::ServerInDoubt.name(),
                pool,
                server,
                "pool {pool}: server {server} fails: {why}"
            ),
            (Health::Well, _) if change.lasted_ms > 0 => {
                let (seconds, millis) = (change.lasted_ms / 1000, change.lasted_ms % 1000);
                tracing::info!(
                    kind = EventKind::ServerUp.name(),
                    pool,
                    server,
                    "pool {pool}: server {server} answers again, after {seconds}.{millis:03} s"
                );
            }
            (Health::Well, _) => tracing::debug!("pool {pool}: server {server} answers"),
            (Health::Trial, _) => {
                tracing::debug!("pool {pool}: server {server} accepts connections");
            }
            (Health::Untried, _) => {}
        }
    }

    fn names(&self, backend: BackendId, server: ServerId) -> (&str, &str) {
        let pool = self.core.engine.backend_config(backend);
        (&pool.name, &pool.servers[server.index()].name)
    }

    #[inline(never)]
    fn beat(&mut self) {
        self.core.tick();
        let now = self.core.now;
        self.next_beat = now + HEARTBEAT;
        self.core.writer.beat(monotonic_ms());
        self.core.shared.add_log_lines_lost(cashew_process::log::take_lost());
        self.core.engine.tell_time(wall_us(), now);
        self.core.engine.want_samples(self.core.shared.sampled_requests().is_wanted());
        self.core.follow_pauses();
        self.core.engine.check_servers(now);
        if self.next_return <= now {
            self.next_return = now + RETURN;
            self.monitors.forget_addresses();
            self.return_memory();
            // Removed pools may be gone by now.
            self.core.reserve_files();
        }
    }

    /// Trims under memory pressure, not too often: a trim takes long where there is much memory.
    fn trim_now_and_then(&mut self) {
        if self.next_trim <= self.core.now {
            self.next_trim = self.core.now + RETURN;
            cashew_process::memory::trim();
        }
    }

    /// Trims once a peak is over. While more memory is being freed, more is likely to be needed
    /// again.
    fn return_memory(&mut self) {
        let released = self.core.engine.take_released() + self.driver.take_released();
        self.unreturned += released;
        if self.unreturned >= TRIM_MIN && released < self.unreturned / 8 {
            self.unreturned = 0;
            cashew_process::memory::trim();
        }
    }

    /// The longest time to wait for events.
    fn timeout(&self) -> Duration {
        let now = self.core.now;
        let mut at = self.core.engine.poll_timeout().min(now + HEARTBEAT);
        if let Some(deadline) = self.deadline {
            at = at.min(deadline);
        }
        if let Some(retiring) = &self.retiring {
            at = at.min(retiring.finish_at.unwrap_or(retiring.until));
        }
        if let Some(due) = self.monitors.due() {
            at = at.min(due);
        }
        if !self.worker_queries.is_empty() {
            at = now;
        }
        let has_mail =
            !(self.outbox.is_empty() && self.handoffs.is_empty() && self.arrivals.is_empty());
        if has_mail && self.is_master_alive {
            at = at.min(now + RESEND);
        }
        at - now
    }

    fn is_over(&self) -> bool {
        let now = self.core.now;
        if let Some(deadline) = self.deadline {
            return self.core.engine.is_drained() || now >= deadline;
        }
        self.retiring.as_ref().is_some_and(|retiring| {
            let engine = &self.core.engine;
            let has_left = engine.clients() == 0 && engine.owes_nothing() && self.outbox.is_empty();
            now >= retiring.until || (has_left && self.arrivals.is_empty())
        })
    }

    /// Closes the clients that are left when the time is up.
    #[inline(never)]
    fn cut(&mut self) {
        // Whoever clears the slot's gauges returns the quotas of these clients.
        let clients = self.core.engine.clients() as u64;
        let unsent = self.outbox.give_up();
        unsent.iter().for_each(|&quota| self.core.shared.give(quota));
        self.driver.take_leave();
        let cut = clients + unsent.len() as u64;
        if cut > 0 {
            let timeout_ms = match &self.retiring {
                Some(retiring) if self.deadline.is_none() => retiring.timeout_ms,
                _ => self.core.snapshot.global.worker_shutdown_timeout_ms,
            };
            tracing::warn!(
                kind = EventKind::ClientsCut.name(),
                "{cut} clients are closed: they were not at rest within {timeout_ms} ms"
            );
            self.core.writer.add_sessions_cut(cut);
        }
    }

    #[inline(never)]
    fn send_messages(&mut self, control: &ChildChannel) {
        if !self.is_master_alive {
            return;
        }
        let sent = self.outbox.send(control);
        for quota in sent.lost {
            self.core.shared.give(quota);
            self.core.writer.add_sessions_cut(1);
        }
        self.is_master_alive = sent.is_master_alive;
    }
}

#[cfg(test)]
mod tests;
