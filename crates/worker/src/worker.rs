//! The loop: wait, handle, time out, flush.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use cashew_config::snapshot::Endpoint;
use cashew_control::{ChildChannel, ReceiveError, SendError, ToChild, ToMaster};
use cashew_driver::{Address, Driver, Token};
use cashew_engine::{Action, CloseReason, ConnId, Engine, Identity, Setup, Time};
use cashew_metrics::{Writer, monotonic_ms};

use rustix::thread::set_current_timer_slack;

use crate::clock::{Clock, wall_us};
use crate::core::{Core, Report, WATCH_CONTROL, WATCH_RESOLVER};
use crate::pace::Pace;
use crate::resolver::Resolver;
use crate::start::{Error, Start, reopen_log};

/// How often the heartbeat is renewed at least; the engine's own timers wake an idle worker as
/// often.
const HEARTBEAT_MS: u64 = 500;

/// Bytes freed that are worth looking for.
const TRIM_MIN: usize = 1 << 20;

/// How late the kernel may end a pause.
const TIMER_SLACK_NS: u64 = 1_000;

pub(crate) struct Worker<D> {
    driver: D,
    core: Core,
    writer: Writer,
    last_beat_ms: u64,
    /// Bytes freed since the allocator gave back what it could.
    unreturned: usize,
    pace: Pace,
    /// When the last wait for events ended.
    woken_at: Time,
    resolver: Option<Resolver>,
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
            driver.listen(pool, socket).map_err(Error::Io)?;
        }
        let pool_ids = (0..snapshot.pools.len()).map(|pool| writer.pool(pool)).collect();
        let core = Core {
            engine,
            clock,
            now,
            snapshot: Arc::new(snapshot),
            segments,
            pool_ids,
            clients_seen: 0,
            control_readable: false,
            resolver_readable: false,
            addresses: HashMap::new(),
            blocked: Report::default(),
            pressed: Report::default(),
            shed: Report::default(),
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
            unreturned: 0,
            pace,
            woken_at: now,
            resolver: None,
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
        let mut is_watched = true;
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
            if !is_master_alive && std::mem::take(&mut is_watched) {
                // The end of a channel stays readable for ever.
                self.driver.unwatch(control.as_fd()).map_err(Error::Io)?;
                if self.deadline.is_none() {
                    tracing::warn!("the master is gone: finishing what is in flight");
                    self.begin_shutdown();
                }
            }
        }
    }

    /// Waits for events, or until what is held back is due.
    fn wait(&mut self) -> Result<(), Error> {
        self.core.tick();
        let began = self.core.now;
        let worked_us = began.micros_since(self.woken_at);
        let mut timeout = self.timeout();
        if let Some(due) = self.pace.due() {
            let left = due - began;
            timeout = Some(timeout.map_or(left, |timeout| timeout.min(left)));
        }
        self.driver.wait(timeout, &mut self.core).map_err(Error::Io)?;
        self.woken_at = self.core.now;
        let waited_us = self.woken_at.micros_since(began);
        if self.pace.turn(waited_us, worked_us, self.core.engine.answered()) {
            self.writer.set_window_us(self.pace.window_us());
        }
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
        // Writing may end connections, and what they owed is answered before the next wait.
        while self.flush() {
            self.act();
        }
    }

    /// Writes what is to be written now; returns whether there was anything.
    fn flush(&mut self) -> bool {
        let mut has_written = false;
        let engine = &mut self.core.engine;
        if engine.has_held_back() && self.pace.may_go(engine.crowd(), self.core.now) {
            engine.let_go();
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
                self.core.addresses.remove(&conn);
                self.driver.close(conn);
            }
            Action::HandOff { conn } => self.driver.detach(Token(conn.token())),
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
            Action::Pressed { held } => {
                cashew_process::memory::trim();
                if self.core.pressed.is_due(self.core.now) {
                    tracing::warn!(
                        "buffers hold {} MiB: no new requests are taken until it is less; raise \
                         memory_max or lower the limits of pools",
                        held >> 20
                    );
                }
            }
            Action::Shed { clients, bytes } => {
                if self.core.shed.is_due(self.core.now) {
                    tracing::warn!(
                        "buffers hold too much: the {clients} clients that held most, {} MiB, are \
                         closed",
                        bytes >> 20
                    );
                }
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
                self.core.addresses.insert(conn, VecDeque::new());
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
            if !self.core.addresses.contains_key(&answer.conn) {
                continue;
            }
            let mut addresses = VecDeque::from(answer.addresses);
            let Some(first) = addresses.pop_front() else {
                self.core.addresses.remove(&answer.conn);
                let conn = ConnId::from_token(answer.conn.0);
                self.core.engine.handle_closed(conn, CloseReason::Unresolved, self.core.now);
                continue;
            };
            self.core.addresses.insert(answer.conn, addresses);
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
            let next = self.core.addresses.get_mut(&conn).and_then(VecDeque::pop_front);
            match next {
                Some(address) => {
                    if let Err(why) = self.driver.connect(conn, &Address::Tcp(address)) {
                        self.core.failed_connects.push((conn, why));
                    }
                }
                None => {
                    self.core.addresses.remove(&conn);
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
            self.return_memory();
        }
    }

    /// Gives freed memory back to the system once a peak is over: while more is being freed, more
    /// is likely to be needed again.
    fn return_memory(&mut self) {
        let released = self.core.engine.take_released();
        self.unreturned += released;
        if self.unreturned >= TRIM_MIN && released < self.unreturned / 8 {
            self.unreturned = 0;
            cashew_process::memory::trim();
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
            ToChild::Hold { pool, version, .. } => self.core.engine.handle_hold(pool, version, now),
            ToChild::Release { pool, version, live } => {
                self.core.engine.handle_release(pool, version, &live, now, wall_us());
            }
            ToChild::LogLevel { level } => cashew_process::log::set_level(level),
            ToChild::LogReopen => reopen_log(descriptors),
            ToChild::Shutdown => self.begin_shutdown(),
            other => {
                tracing::warn!("the master sent {other:?} to a worker that serves already");
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::{self, IoSlice};
    use std::os::fd::{BorrowedFd, OwnedFd};
    use std::rc::Rc;

    use cashew_config::Context;
    use cashew_driver::{CloseKind, Handler};
    use cashew_metrics::{Layout, Segments};

    use super::*;

    const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n";

    /// Connects to nothing and writes into memory.
    #[derive(Default)]
    struct Fake {
        connects: Vec<(Token, Address)>,
        written: HashMap<Token, Vec<u8>>,
        /// Writing to these fails.
        broken: Vec<Token>,
        /// Something is watched, and can be read.
        is_watching: bool,
        waits: Rc<Cell<u32>>,
    }

    impl Driver for Fake {
        fn listen(&mut self, _: u32, _: OwnedFd) -> io::Result<()> {
            Ok(())
        }

        fn unlisten(&mut self, _: u32, _: bool, _: &mut impl Handler) {}

        fn stop_listening(&mut self) {}

        fn watch(&mut self, _: u32, _: BorrowedFd<'_>) -> io::Result<()> {
            self.is_watching = true;
            Ok(())
        }

        fn unwatch(&mut self, _: BorrowedFd<'_>) -> io::Result<()> {
            self.is_watching = false;
            Ok(())
        }

        fn connect(&mut self, conn: Token, address: &Address) -> Result<(), CloseKind> {
            self.connects.push((conn, address.clone()));
            Ok(())
        }

        fn adopt(&mut self, _: Token, _: OwnedFd) -> io::Result<()> {
            Ok(())
        }

        fn detach(&mut self, _: Token) {}

        fn close(&mut self, _: Token) {}

        fn pause(&mut self, _: Token) {}

        fn resume(&mut self, _: Token) {}

        fn send(&mut self, conn: Token, handler: &mut impl Handler) {
            if self.broken.contains(&conn) {
                handler.closed(conn, CloseKind::Reset);
                return;
            }
            let mut slices = [IoSlice::new(&[]); 8];
            let count = handler.output(conn, &mut slices);
            let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
            if !bytes.is_empty() {
                handler.sent(conn, bytes.len() as u64);
                self.written.entry(conn).or_default().extend(bytes);
            }
        }

        fn flush(&mut self, _: &mut impl Handler) {}

        fn wait(
            &mut self,
            timeout: Option<Duration>,
            handler: &mut impl Handler,
        ) -> io::Result<()> {
            self.waits.set(self.waits.get() + 1);
            if self.is_watching {
                handler.readable(WATCH_CONTROL);
            } else {
                std::thread::sleep(timeout.expect("there is a deadline"));
            }
            Ok(())
        }
    }

    fn worker<D: Driver>(driver: D) -> Worker<D> {
        let yaml = "p:\n  listen: 127.0.0.1:1\n  redis: true\n  servers:\n   - 127.0.0.1:2:1\n";
        let Ok(loaded) = cashew_config::parse("test.yml", yaml, &Context::of_system()) else {
            panic!("{yaml}");
        };
        let snapshot = loaded.snapshot;
        let segments = Arc::new(Segments::in_memory(&Layout::new(&snapshot), 1));
        let start = Start {
            slot: 0,
            workers: 1,
            snapshot,
            segments,
            listeners: Vec::new(),
            rings: Vec::new(),
        };
        Worker::new(start, driver).unwrap_or_else(|error| panic!("{error}"))
    }

    /// A client that waits for a connection to the server: both.
    fn with_request(worker: &mut Worker<Fake>) -> (Token, Token) {
        let client = worker.core.accepted(0).expect("it is welcome");
        worker.core.received(client, &mut GET.to_vec());
        worker.end_tick();
        let (conn, _) = worker.driver.connects.pop().expect("it connects");
        (client, conn)
    }

    #[test]
    fn other_addresses_are_for_connecting_only() {
        let mut worker = worker(Fake::default());
        let (client, conn) = with_request(&mut worker);
        let others = [SocketAddr::from(([127, 0, 0, 2], 2)), SocketAddr::from(([127, 0, 0, 3], 2))];
        worker.core.addresses.insert(conn, VecDeque::from(others));
        worker.core.closed(conn, CloseKind::Refused);
        worker.end_tick();
        assert_eq!(worker.driver.connects, [(conn, Address::Tcp(others[0]))]);
        worker.core.connected(conn);
        worker.end_tick();
        assert_eq!(worker.driver.written[&conn], GET);
        worker.core.closed(conn, CloseKind::Reset);
        worker.end_tick();
        assert_eq!(worker.driver.written[&client], b"-ERR Connection reset by peer\r\n");
        assert!(!worker.driver.connects.contains(&(conn, Address::Tcp(others[1]))));
        assert!(worker.core.addresses.is_empty());
    }

    #[test]
    fn what_a_failed_write_ends_is_answered_in_the_same_tick() {
        let mut worker = worker(Fake::default());
        let (client, conn) = with_request(&mut worker);
        worker.core.connected(conn);
        worker.end_tick();
        worker.core.received(client, &mut GET.to_vec());
        worker.driver.broken.push(conn);
        worker.end_tick();
        let told = b"-ERR Connection reset by peer\r\n".repeat(2);
        assert_eq!(worker.driver.written[&client], told);
    }

    #[test]
    fn a_master_that_dies_during_the_shutdown_is_no_reason_to_hurry() {
        let waits = Rc::default();
        let mut worker = worker(Fake { waits: Rc::clone(&waits), ..Fake::default() });
        // Its server never answers.
        let _ = with_request(&mut worker);
        worker.begin_shutdown();
        worker.deadline = Some(worker.core.now.plus_millis(300));
        let (master, control) = cashew_control::pair().unwrap();
        drop(master);
        worker.run(ChildChannel::new(control)).unwrap();
        assert!(waits.get() < 100, "it waited {} times", waits.get());
    }
}
