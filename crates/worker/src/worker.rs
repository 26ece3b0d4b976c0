//! The loop: wait, handle, time out, flush.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use cashew_config::snapshot::Endpoint;
use cashew_control::{ChildChannel, ReceiveError, SendError, ToChild, ToMaster};
use cashew_driver::{Address, ClientOptions, Driver, Token};
use cashew_engine::{Action, CloseReason, ConnId, Engine, Identity, Setup, Time};
use cashew_metrics::{Writer, monotonic_ms};

use rustix::thread::set_current_timer_slack;

use crate::clock::{Clock, wall_us};
use crate::core::{Core, WATCH_CONTROL, WATCH_RESOLVER};
use crate::pace::Pace;
use crate::resolver::Resolver;
use crate::start::{Error, Start, reopen_log};

/// How often the heartbeat is renewed at least; the engine's own timers wake an idle worker as
/// often.
const HEARTBEAT_MS: u64 = 500;

/// How late the kernel may end a pause.
const TIMER_SLACK_NS: u64 = 1_000;

pub(crate) struct Worker<D> {
    driver: D,
    core: Core,
    writer: Writer,
    last_beat_ms: u64,
    pace: Pace,
    resolver: Option<Resolver>,
    /// Addresses not tried yet, of connections being made to servers with several.
    addresses: HashMap<Token, VecDeque<SocketAddr>>,
    /// Messages that the channel did not take yet.
    outbox: VecDeque<ToMaster>,
    /// Set while stopping: when to stop waiting for what is in flight.
    deadline: Option<Time>,
}

impl<D: Driver> Worker<D> {
    pub(crate) fn new(start: Start, mut driver: D) -> Result<Self, Error> {
        let Start { slot, workers, snapshot, segments, listeners, rings } = start;
        let clock = Clock::start();
        let now = clock.now();
        let writer = segments.writer(slot);
        writer.set_pid(std::process::id());
        writer.set_epoch(snapshot.epoch);
        writer.set_started_at(wall_us() / 1_000_000);
        let engine = Engine::new(Setup {
            snapshot: &snapshot,
            metrics: segments.writer(slot),
            seed: wall_us() ^ u64::from(slot) << 48 ^ u64::from(std::process::id()),
            slot,
            workers,
            identity: Identity {
                version: env!("CARGO_PKG_VERSION"),
                process_id: std::process::id(),
            },
            now,
        });
        for (pool, socket) in listeners {
            let keepalive = snapshot.pools[pool as usize].tcp_keepalive;
            driver.listen(pool, socket, ClientOptions { keepalive }).map_err(Error::Io)?;
        }
        let pool_ids = (0..snapshot.pools.len()).map(|pool| writer.pool(pool)).collect();
        let core = Core {
            engine,
            clock,
            now,
            woken_at: now,
            events: 0,
            snapshot: Arc::new(snapshot),
            segments,
            pool_ids,
            control_readable: false,
            resolver_readable: false,
            last_blocked: None,
            failed_connects: Vec::new(),
        };
        let pace = Pace::new(core.snapshot.global.batch_window_max_us);
        // The kernel may otherwise wake us 50 µs late, which is as long as the whole window.
        if let Err(errno) = set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NS)) {
            tracing::warn!("cannot set the timer slack: {errno}");
        }
        let mut worker = Self {
            driver,
            core,
            writer,
            last_beat_ms: 0,
            pace,
            resolver: None,
            addresses: HashMap::new(),
            outbox: VecDeque::new(),
            deadline: None,
        };
        for ring in rings {
            worker.obey(ring, &[]);
        }
        Ok(worker)
    }

    pub(crate) fn run(mut self, mut control: ChildChannel) -> Result<(), Error> {
        self.driver.watch(WATCH_CONTROL, control.as_fd()).map_err(Error::Io)?;
        self.outbox.push_back(ToMaster::Ready);
        let mut is_master_alive = true;
        loop {
            self.end_tick();
            self.beat();
            if is_master_alive {
                is_master_alive = self.send_messages(&control);
            }
            if self.is_over() {
                return Ok(());
            }
            self.wait()?;
            if std::mem::take(&mut self.core.resolver_readable) {
                self.take_addresses();
            }
            if std::mem::take(&mut self.core.control_readable) && is_master_alive {
                is_master_alive = self.receive_messages(&mut control);
            }
            if !is_master_alive && self.deadline.is_none() {
                tracing::warn!("the master is gone: finishing what is in flight");
                // The end of a channel stays readable for ever.
                self.driver.unwatch(control.as_fd()).map_err(Error::Io)?;
                self.begin_shutdown();
            }
        }
    }

    /// Waits for events, after as much of a pause as pays.
    fn wait(&mut self) -> Result<(), Error> {
        self.core.tick();
        let began = self.core.now;
        let worked_us = began.micros_since(self.core.woken_at);
        let events = self.core.events;
        let window = self.pace.window();
        let timeout = self.timeout();
        if window > Duration::ZERO {
            std::thread::sleep(window.min(timeout.unwrap_or(window)));
        }
        let timeout = timeout.map(|timeout| timeout.saturating_sub(window));
        self.driver.wait(timeout, &mut self.core).map_err(Error::Io)?;
        let waited_us = self.core.woken_at.micros_since(began);
        self.pace.turn(waited_us, worked_us, events);
        Ok(())
    }

    /// Lets the engine draw its conclusions, then writes.
    fn end_tick(&mut self) {
        let core = &mut self.core;
        core.tick();
        if core.engine.poll_timeout() <= core.now {
            core.engine.handle_timeout(core.now);
        }
        core.engine.settle(core.now);
        self.act();
        while let Some(conn) = self.core.engine.poll_dirty() {
            self.driver.send(Token(conn.token()), &mut self.core);
        }
        self.act();
    }

    fn act(&mut self) {
        self.retry_connects();
        while let Some(action) = self.core.engine.poll_action() {
            self.carry_out(action);
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Connect { conn, pool, server } => self.connect(conn, pool, server),
            Action::Close { conn } => {
                let conn = Token(conn.token());
                self.addresses.remove(&conn);
                self.driver.close(conn);
            }
            Action::PauseRead { conn } => self.driver.pause(Token(conn.token())),
            Action::ResumeRead { conn } => self.driver.resume(Token(conn.token())),
            Action::Held { pool, version } => {
                self.outbox.push_back(ToMaster::Held { pool, version });
            }
            Action::Eject { pool, server, why } => {
                let why = why.text().to_owned();
                self.outbox.push_back(ToMaster::ServerDown { pool, server, why });
            }
            Action::Readmit { pool, server } => {
                self.outbox.push_back(ToMaster::ServerUp { pool, server });
            }
            Action::ServerFailing { pool, server, why } => {
                let (pool, server) = self.names(pool, server);
                tracing::warn!("pool {pool}: server {server} fails: {}", why.text());
            }
            Action::ServerRecovered { pool, server } => {
                let (pool, server) = self.names(pool, server);
                tracing::info!("pool {pool}: server {server} is connected again");
            }
        }
    }

    fn names(&self, pool: u32, server: u32) -> (&str, &str) {
        let pool = &self.core.snapshot.pools[pool as usize];
        (&pool.name, &pool.servers[server as usize].name)
    }

    fn connect(&mut self, conn: ConnId, pool: u32, server: u32) {
        let snapshot = Arc::clone(&self.core.snapshot);
        let endpoint = &snapshot.pools[pool as usize].servers[server as usize].endpoint;
        let token = Token(conn.token());
        match endpoint {
            Endpoint::Unix(path) => self.start_connecting(token, &Address::Unix(path.clone())),
            Endpoint::Tcp { host, port } => match host.parse::<IpAddr>() {
                Ok(ip) => {
                    self.start_connecting(token, &Address::Tcp(SocketAddr::new(ip, *port)));
                }
                Err(_) => self.resolve(token, host, *port),
            },
        }
    }

    fn resolve(&mut self, conn: Token, host: &str, port: u16) {
        if self.resolver.is_none() {
            let started = Resolver::start().and_then(|resolver| {
                self.driver.watch(WATCH_RESOLVER, resolver.wake())?;
                Ok(resolver)
            });
            match started {
                Ok(resolver) => self.resolver = Some(resolver),
                Err(error) => tracing::error!("cannot look names up: {error}"),
            }
        }
        match &self.resolver {
            Some(resolver) => {
                self.addresses.insert(conn, VecDeque::new());
                resolver.ask(conn, host, port);
            }
            None => self.core.engine.handle_closed(
                ConnId::from_token(conn.0),
                CloseReason::Unresolved,
                self.core.now,
            ),
        }
    }

    fn take_addresses(&mut self) {
        let answers = self.resolver.as_mut().map(Resolver::answers).unwrap_or_default();
        for answer in answers {
            // An attempt that was given up meanwhile is not listed any more.
            if !self.addresses.contains_key(&answer.conn) {
                continue;
            }
            let mut addresses = VecDeque::from(answer.addresses);
            let Some(first) = addresses.pop_front() else {
                self.addresses.remove(&answer.conn);
                let conn = ConnId::from_token(answer.conn.0);
                self.core.engine.handle_closed(conn, CloseReason::Unresolved, self.core.now);
                continue;
            };
            self.addresses.insert(answer.conn, addresses);
            self.start_connecting(answer.conn, &Address::Tcp(first));
        }
    }

    fn start_connecting(&mut self, conn: Token, address: &Address) {
        if let Err(why) = self.driver.connect(conn, address) {
            self.core.failed_connects.push((conn, why));
            self.retry_connects();
        }
    }

    /// Tries the next address of servers that could not be reached at one; reports the others.
    fn retry_connects(&mut self) {
        while let Some((conn, why)) = self.core.failed_connects.pop() {
            let next = self.addresses.get_mut(&conn).and_then(VecDeque::pop_front);
            match next {
                Some(address) => {
                    if let Err(why) = self.driver.connect(conn, &Address::Tcp(address)) {
                        self.core.failed_connects.push((conn, why));
                    }
                }
                None => {
                    self.addresses.remove(&conn);
                    self.core.report_closed(conn, why);
                }
            }
        }
    }

    fn beat(&mut self) {
        let now_ms = monotonic_ms();
        if now_ms >= self.last_beat_ms + HEARTBEAT_MS {
            self.last_beat_ms = now_ms;
            self.writer.beat(now_ms);
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let deadline = self.deadline.unwrap_or(Time::NEVER);
        let at = self.core.engine.poll_timeout().min(deadline);
        (at != Time::NEVER).then(|| at - self.core.now)
    }

    fn is_over(&self) -> bool {
        self.deadline
            .is_some_and(|deadline| self.core.engine.is_drained() || self.core.now >= deadline)
    }

    /// Returns whether the master is there.
    fn send_messages(&mut self, control: &ChildChannel) -> bool {
        while let Some(message) = self.outbox.front() {
            match control.send(message, &[]) {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(SendError::WouldBlock) => return true,
                Err(_) => return false,
            }
        }
        true
    }

    /// Returns whether the master is there.
    fn receive_messages(&mut self, control: &mut ChildChannel) -> bool {
        loop {
            match control.receive() {
                Ok(Some((message, descriptors))) => self.obey(message, &descriptors),
                Ok(None) => return true,
                Err(ReceiveError::Closed) => return false,
                Err(error) => {
                    tracing::error!("the master's channel failed: {error}");
                    return false;
                }
            }
        }
    }

    fn obey(&mut self, message: ToChild, descriptors: &[std::os::fd::OwnedFd]) {
        self.core.tick();
        let now = self.core.now;
        match message {
            ToChild::Hold { pool, version } => self.core.engine.handle_hold(pool, version, now),
            ToChild::Release { pool, version, live } => {
                self.core.engine.handle_release(pool, version, &live, now, wall_us());
            }
            ToChild::LogLevel { level } => cashew_process::log::set_level(level),
            ToChild::LogReopen => reopen_log(descriptors),
            ToChild::Shutdown => self.begin_shutdown(),
            ToChild::Init { .. } | ToChild::Listen { .. } | ToChild::Start => {
                tracing::warn!("the master sent {message:?} to a worker that serves already");
            }
        }
    }

    fn begin_shutdown(&mut self) {
        self.core.tick();
        self.driver.stop_listening();
        self.core.engine.handle_drain(self.core.now);
        let limit = self.core.snapshot.global.worker_shutdown_timeout_ms;
        self.deadline = Some(self.core.now.plus_millis(limit));
    }
}
