//! The engine and its surroundings in a worker; the driver's [`Handler`].

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use cashew_config::Snapshot;
use cashew_driver::{CloseKind, Handler, Luggage, ProxyHeader, Token, Unintroduced};
use cashew_engine::{Admission, CloseReason, ConnId, Engine, ListenerId, OpenFiles, Source, Time};
use cashew_metrics::{
    EventKind, PoolCounter, Segments, ServerCounter, Shared, Writer, monotonic_ms,
};
use cashew_tls::{Acceptor, Facts, Failure};
use rustix::net::{getpeername, getsockname};
use rustix::process::{Resource, getrlimit};

use crate::clock::now;
use crate::place::{Passed, Told, host_of};
use crate::resolver::Name;
use crate::secured::{self, Failed, Place, Tls};

/// Descriptors that the driver watches for the worker.
pub(crate) const WATCH_CONTROL: u32 = 0;
pub(crate) const WATCH_RESOLVER: u32 = 1;
pub(crate) const WATCH_PREPARER: u32 = 2;
pub(crate) const WATCH_AUTHORISER: u32 = 3;

/// How often a repeated condition is logged.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Limits how often a condition is logged.
#[derive(Default)]
pub(crate) struct Report(Option<Time>);

impl Report {
    /// Whether to log the condition again.
    pub(crate) fn is_due(&mut self, now: Time) -> bool {
        let is_due = self.0.is_none_or(|last| now - last >= REPORT_INTERVAL);
        if is_due {
            self.0 = Some(now);
        }
        is_due
    }
}

/// A listening socket.
pub(crate) struct Listener {
    pub(crate) owner: Owner,
    pub(crate) place: Place,
    /// What its clients are secured with.
    pub(crate) acceptor: Option<Acceptor>,
}

/// The owner of a listening socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Pool(ListenerId),
    /// A pool of this name, which the snapshot no longer has.
    Removed(String),
}

/// A connection attempt to a server with a host name.
pub(crate) struct Attempt {
    pub(crate) name: Name,
    /// The address being tried, once the name is resolved.
    pub(crate) address: Option<SocketAddr>,
    /// Addresses not tried yet.
    pub(crate) others: VecDeque<SocketAddr>,
    /// How the server failed at an earlier address.
    pub(crate) failure: Option<CloseKind>,
}

impl Attempt {
    /// The next address to try after this one has failed, if any is left.
    pub(crate) fn next(&mut self, why: CloseKind) -> Option<SocketAddr> {
        if !why.is_local() {
            self.failure = Some(why);
        }
        self.address = self.others.pop_front();
        self.address
    }
}

/// How long a lookup's result is reused: an unreachable server is tried many times a second.
const FOUND_MAX: Duration = Duration::from_secs(1);

/// The result of a name lookup.
pub(crate) struct Found {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) at: Time,
}

impl Found {
    pub(crate) fn is_fresh(&self, now: Time) -> bool {
        now - self.at < FOUND_MAX
    }
}

/// All of a worker but its driver, which calls this.
pub(crate) struct Core {
    pub(crate) engine: Engine,
    /// This worker's counters.
    pub(crate) writer: Writer,
    pub(crate) now: Time,
    /// Since when, and for how long, in microseconds, nothing was read before the wait that goes on.
    pub(crate) worked_from: Time,
    pub(crate) worked_us: u64,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) tls: Tls,
    /// Handshakes of clients that failed.
    pub(crate) insecure: Failed,
    /// Clients that come from where none may.
    pub(crate) denied: Failed,
    /// Connections that did not tell whose they are.
    pub(crate) unintroduced: Failed,
    /// Connections that are to tell whose they are, and where they themselves come from.
    pub(crate) awaited: HashMap<Token, Option<IpAddr>>,
    /// What others have told.
    pub(crate) told: Told,
    pub(crate) segments: Arc<Segments>,
    pub(crate) shared: Shared,
    pub(crate) listeners: BTreeMap<u32, Listener>,
    pub(crate) control_readable: bool,
    pub(crate) resolver_readable: bool,
    pub(crate) authoriser_readable: bool,
    pub(crate) preparer_readable: bool,
    /// Connection attempts to servers with host names.
    pub(crate) attempts: HashMap<Token, Attempt>,
    /// The name and address of each connection to a server with a host name.
    pub(crate) peers: HashMap<Token, (Name, SocketAddr)>,
    /// Recent lookup results; empty if the lookup failed.
    pub(crate) found: HashMap<Name, Found>,
    /// For each name, the address whose last connection attempt timed out.
    pub(crate) unresponsive: HashMap<Name, SocketAddr>,
    /// The budget of open files, without listening sockets.
    pub(crate) files: OpenFiles,
    /// Clients are refused, since the remaining files are reserved for servers.
    pub(crate) refused: Report,
    /// Clients wait for descriptors.
    pub(crate) blocked: Report,
    /// New requests wait for memory.
    pub(crate) pressed: Report,
    /// Clients were closed to free memory.
    pub(crate) shed: Report,
    /// Clients are too slow for their exclusive connections.
    pub(crate) slow: Report,
    pub(crate) odd_users: Report,
    /// Clients are not read until memory is free.
    pub(crate) held_back: Report,
    /// Failed connection attempts to servers; another address may be left.
    pub(crate) failed_connects: Vec<(Token, CloseKind)>,
    /// Connections that the driver was told to detach and has not yet.
    pub(crate) detaching: HashSet<Token>,
    /// Detached connections.
    pub(crate) detached: Vec<(Token, OwnedFd, Option<Luggage>)>,
    /// Those of them whose session has another connection that the driver has not let go of yet.
    pub(crate) halves: HashMap<Token, (OwnedFd, Option<Luggage>)>,
    /// Where clients come from that are to be passed through once they are secured, or have told whose they are.
    pub(crate) sources: HashMap<Token, Source>,
    /// Whether some pool has `tcp_quickack`.
    pub(crate) has_quickack: bool,
    /// Clients whose bytes are to be acknowledged now.
    pub(crate) unacknowledged: Vec<Token>,
}

impl Core {
    pub(crate) fn tick(&mut self) {
        self.now = now();
    }

    /// Renews the heartbeat within a long tick, so that the watchdog does not take the worker for
    /// hung.
    #[cold]
    pub(crate) fn show_life(&mut self) {
        self.engine.rest();
        self.writer.beat(monotonic_ms());
    }

    /// Replaces the snapshot and matches what belongs to pools by name.
    pub(crate) fn set_snapshot(&mut self, snapshot: Arc<Snapshot>) {
        let places: HashMap<&str, ListenerId> = (0..)
            .map(ListenerId::new)
            .zip(&snapshot.pools)
            .map(|(at, pool)| (pool.name.as_str(), at))
            .collect();
        for listener in self.listeners.values_mut() {
            let name = match &listener.owner {
                Owner::Pool(pool) => &self.snapshot.pools[pool.index()].name,
                Owner::Removed(name) => name,
            };
            match places.get(name.as_str()) {
                Some(&pool) => {
                    let (at, config) = (pool.index(), &snapshot.pools[pool.index()]);
                    listener.acceptor = self.tls.acceptor(at, config, &listener.place);
                    listener.owner = Owner::Pool(pool);
                }
                None => listener.owner = Owner::Removed(name.clone()),
            }
        }
        (self.unresponsive, self.found) = (HashMap::new(), HashMap::new());
        self.has_quickack = snapshot.pools.iter().any(|pool| pool.tcp_quickack);
        self.snapshot = snapshot;
    }

    /// The engine's index of the listener's pool. A removed pool keeps its index while it has
    /// clients.
    fn pool_of(&self, listener: u32) -> Option<ListenerId> {
        match &self.listeners.get(&listener)?.owner {
            Owner::Pool(pool) => Some(*pool),
            Owner::Removed(name) => self.engine.listener_named(name),
        }
    }

    /// A socket of a pool of the snapshot.
    pub(crate) fn add_listener(&mut self, listener: u32, pool: ListenerId, place: Place) {
        let config = &self.snapshot.pools[pool.index()];
        let acceptor = self.tls.acceptor(pool.index(), config, &place);
        let owner = Owner::Pool(pool);
        self.listeners.insert(listener, Listener { owner, place, acceptor });
    }

    /// Begins to write down what servers are to forget, if that is asked for.
    pub(crate) fn keep_spool(&mut self) {
        let is_wanted = self.snapshot.pools.iter().any(|pool| pool.spool.is_some());
        if !is_wanted || self.engine.has_spool() {
            return;
        }
        let (queue, incoming) = cashew_spool::channel(cashew_spool::QUEUE_MAX);
        let workers = self.snapshot.global.worker_processes;
        let thread = std::thread::Builder::new().name("spool".to_owned());
        match thread.spawn(move || cashew_spool::write(incoming, workers)) {
            Ok(_) => self.engine.set_spool(queue),
            Err(error) => tracing::error!("nothing is written to the spool: {error}"),
        }
    }

    /// Reserves as many files as the current servers may need.
    pub(crate) fn reserve_files(&mut self) {
        self.files = OpenFiles {
            limit: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
            listeners: self.listeners.len() as u64,
            server_connections: self.engine.server_connections_max(),
            session_connections: self.engine.session_connections_max(),
            alone: self.snapshot.global.worker_processes == 0,
        };
        self.engine.set_session_connections_max(self.files.sessions());
    }

    /// Warns if the servers' share of files is too large.
    pub(crate) fn check_files(&self) {
        if self.files.is_short() {
            tracing::warn!(
                kind = EventKind::FilesShort.name(),
                "each worker may open {} files and reserves {} of them for servers and itself: {} \
                 clients are let in all the same, and there may be no files left to connect to \
                 servers with; raise max_openfiles",
                self.files.limit,
                self.files.reserved(),
                self.files.clients()
            );
        }
    }

    /// Whether clients use all files that they may.
    fn is_full(&mut self, pool: ListenerId) -> bool {
        let clients = self.engine.files_of_clients();
        if clients < self.files.clients() {
            return false;
        }
        if self.refused.is_due(self.now) {
            let pool = &self.engine.listener_config(pool).name;
            tracing::warn!(
                kind = EventKind::ClientsRefused.name(),
                pool,
                "pool {pool}: a client is refused: there are {clients}, and the rest of the {} files \
                 is for servers; raise max_openfiles or lower client_connections",
                self.files.limit
            );
        }
        true
    }

    /// Whether the pool's limit of clients, counted over all workers, has room. If so, this client
    /// is counted.
    fn admission(&self, pool: ListenerId) -> Admission {
        let limit = self.engine.listener_config(pool).client_connections;
        match self.shared.take(self.engine.quota(pool), limit) {
            true => Admission::Welcome,
            false => Admission::Full,
        }
    }

    /// Forgets a closed connection. All maps are usually empty; a lookup would cost a hash of the
    /// name.
    pub(crate) fn forget(&mut self, conn: Token) {
        self.forget_peer(conn);
        if !self.attempts.is_empty()
            && let Some(attempt) = self.attempts.remove(&conn)
        {
            // The time ran out before the other addresses were tried: the next attempt begins with
            // those.
            let address = attempt.address.filter(|_| !attempt.others.is_empty());
            if let Some(address) = address {
                self.unresponsive.insert(attempt.name, address);
            }
        }
        if !self.detaching.is_empty() {
            self.detaching.remove(&conn);
        }
        self.forget_half(conn);
        self.forget_source(conn);
    }

    /// Closes one connection of a pair that the driver has let go of, as the session is over.
    fn forget_half(&mut self, conn: Token) {
        if !self.halves.is_empty() {
            self.halves.remove(&conn);
        }
    }

    /// Where a client comes from that has just connected, if that matters to anybody.
    fn source_of(&self, conn: ConnId, socket: BorrowedFd<'_>) -> Option<Source> {
        if !conn.is_paired() {
            return None;
        }
        let client = SocketAddr::try_from(getpeername(socket).ok()??).ok()?;
        let to = SocketAddr::try_from(getsockname(socket).ok()?).ok()?;
        Some(Source { client, to })
    }

    /// It is known where the client comes from, and it is secured if it is to be.
    fn note_ready(&mut self, conn: Token) {
        let id = ConnId::from_token(conn.0);
        if id.is_paired() {
            let own = self.sources.remove(&conn);
            let told = self.told.get(&conn).map(|&Passed { client, to }| Source { client, to });
            self.engine.handle_ready(id, told.or(own), self.now);
        }
    }

    /// Forgets where a client came from.
    fn forget_source(&mut self, conn: Token) {
        if !self.awaited.is_empty() {
            self.awaited.remove(&conn);
        }
        if !self.told.is_empty() {
            self.told.remove(&conn);
        }
        if !self.sources.is_empty() {
            self.sources.remove(&conn);
        }
    }

    pub(crate) fn forget_peer(&mut self, conn: Token) {
        if !self.peers.is_empty() {
            self.peers.remove(&conn);
        }
    }

    /// Returns the quotas of closed clients.
    pub(crate) fn give_quotas(&mut self) {
        while let Some(quota) = self.engine.poll_departed() {
            self.shared.give(quota);
        }
    }

    /// Of a client that comes from where none may.
    #[cold]
    pub(crate) fn note_denied(&mut self, pool: ListenerId, host: Option<IpAddr>) {
        let Some(count) = self.denied.note(self.now) else { return };
        let pool = &self.engine.listener_config(pool).name;
        let host = host.map_or_else(|| "a Unix socket".to_owned(), |host| host.to_string());
        let more = match count {
            1 => String::new(),
            _ => format!("; it is the last of {count} that were"),
        };
        tracing::warn!(
            kind = EventKind::ClientDenied.name(),
            pool,
            "pool {pool}: a client from {host} is not let in, see allow_from and deny_from{more}"
        );
    }

    /// Of a connection that did not tell whose it is, or told so of one that is not let in.
    #[cold]
    fn note_unintroduced(&mut self, conn: Token, why: Unintroduced) {
        let id = ConnId::from_token(conn.0);
        let Some(pool) = self.engine.listener_of_client(id) else { return };
        let why = match why {
            // It has been noted.
            Unintroduced::Refused => {
                return self.engine.count_client(id, PoolCounter::ClientsDenied);
            }
            // Whoever only looks whether somebody listens is no news.
            Unintroduced::Closed => return,
            Unintroduced::Malformed => "does not begin with a header of the PROXY protocol",
            Unintroduced::TimedOut => "has not sent its header of the PROXY protocol in time",
        };
        self.engine.count_client(id, PoolCounter::ProxyHeaderErrors);
        let Some(count) = self.unintroduced.note(self.now) else { return };
        let pool = &self.engine.listener_config(pool).name;
        let from = match self.awaited.get(&conn).copied().flatten() {
            Some(host) => host.to_string(),
            None => "a Unix socket".to_owned(),
        };
        let more = match count {
            1 => String::new(),
            _ => format!("; it is the last of {count} such connections"),
        };
        tracing::warn!(
            kind = EventKind::ClientUnintroduced.name(),
            pool,
            "pool {pool}: a connection from {from} is closed: it {why}{more}"
        );
    }

    /// Of a client's connection, or one to a server, whose handshake has failed.
    #[cold]
    fn note_insecure(&mut self, conn: ConnId, failure: Failure) {
        if conn.is_lane() {
            return self.engine.count_server(conn, ServerCounter::TlsFailures);
        }
        self.engine.count_client(conn, secured::counter_of(failure));
        let Some(pool) = self.engine.listener_of_client(conn) else { return };
        let (pool, why) = (&self.engine.listener_config(pool).name, failure.of_client());
        // Whoever only looks whether somebody listens is no news.
        if failure == Failure::Closed {
            tracing::debug!("pool {pool}: a client is closed: {why}");
        } else if let Some(count) = self.insecure.note(self.now) {
            let more = match count {
                1 => String::new(),
                _ => format!("; it is the last of {count} whose handshakes failed"),
            };
            tracing::warn!(
                kind = EventKind::ClientInsecure.name(),
                pool,
                "pool {pool}: a client is closed: {why}{more}"
            );
        }
    }

    pub(crate) fn report_closed(&mut self, conn: Token, why: CloseKind) {
        self.engine.handle_closed(ConnId::from_token(conn.0), close_reason(why), self.now);
        if self.engine.has_overspent() {
            self.show_life();
        }
    }
}

fn close_reason(kind: CloseKind) -> CloseReason {
    match kind {
        CloseKind::Refused => CloseReason::Refused,
        CloseKind::Reset => CloseReason::Reset,
        CloseKind::TimedOut => CloseReason::TimedOut,
        CloseKind::Unreachable => CloseReason::Unreachable,
        CloseKind::Exhausted => CloseReason::Exhausted,
        CloseKind::NoMemory => CloseReason::NoMemory,
        CloseKind::NoPort => CloseReason::NoPort,
        CloseKind::Forbidden => CloseReason::Forbidden,
        CloseKind::NoSocket => CloseReason::NoSocket,
        CloseKind::Unintroduced(_) => CloseReason::Reset,
        CloseKind::Insecure(failure) => CloseReason::Insecure(secured::cause_of(failure)),
    }
}

impl Handler for Core {
    fn woken(&mut self) {
        self.tick();
        let worked_us = std::mem::take(&mut self.worked_us);
        self.engine.note_busy(self.worked_from, worked_us, self.now);
    }

    fn accepted(&mut self, listener: u32, socket: BorrowedFd<'_>) -> Result<Token, &'static [u8]> {
        let Some(pool) = self.pool_of(listener) else { return Err(b"") };
        let sources = &self.engine.listener_config(pool).client_sources;
        let mut awaited = None;
        if !sources.is_empty() {
            let host = host_of(socket);
            if sources.header_timeout_ms(host).is_some() {
                awaited = Some(host);
            } else if !sources.allows(host) {
                self.note_denied(pool, host);
                return Err(self.engine.handle_denied(pool));
            }
        }
        // This check comes first: a refused client must not take a place in the pool's limit.
        if self.is_full(pool) {
            return Err(self.engine.handle_refused(pool));
        }
        let (admission, id) = (self.admission(pool), self.shared.next_client_id());
        self.follow_pause(pool);
        let conn = self.engine.handle_accepted(pool, admission, id, self.now);
        let is_secured = self.listeners.get(&listener).is_some_and(|it| it.acceptor.is_some());
        let source = self.source_of(conn, socket);
        if is_secured || awaited.is_some() {
            self.engine.tie(conn);
            self.sources.extend(source.map(|source| (Token(conn.token()), source)));
        } else {
            self.engine.handle_ready(conn, source, self.now);
        }
        let conn = Token(conn.token());
        if let Some(host) = awaited {
            self.awaited.insert(conn, host);
        }
        Ok(conn)
    }

    fn header_timeout(&self, listener: u32, socket: BorrowedFd<'_>) -> Option<Duration> {
        let sources = &self.engine.listener_config(self.pool_of(listener)?).client_sources;
        sources.proxy_protocol.as_ref()?;
        sources.header_timeout_ms(host_of(socket)).map(Duration::from_millis)
    }

    fn introduced(
        &mut self,
        conn: Token,
        header: ProxyHeader,
        will_be_secured: bool,
    ) -> Result<(), &'static [u8]> {
        let id = ConnId::from_token(conn.0);
        let Some(pool) = self.engine.listener_of_client(id) else { return Err(b"") };
        let own = self.awaited.get(&conn).copied().flatten();
        let host = match header {
            ProxyHeader::Own => own,
            ProxyHeader::Passed { client, to } => {
                let canonical = |it: SocketAddr| SocketAddr::new(it.ip().to_canonical(), it.port());
                let (client, to) = (canonical(client), canonical(to));
                self.told.insert(conn, Passed { client, to });
                Some(client.ip())
            }
        };
        if !self.engine.listener_config(pool).client_sources.allows(host) {
            self.note_denied(pool, host);
            return Err(self.engine.refusal_of_source(pool));
        }
        self.awaited.remove(&conn);
        if !will_be_secured {
            self.engine.untie(id);
            self.note_ready(conn);
        }
        Ok(())
    }

    fn acceptor(&self, listener: u32) -> Option<&Acceptor> {
        self.listeners.get(&listener)?.acceptor.as_ref()
    }

    fn secured(&mut self, conn: Token, facts: Facts, user_names: &[String]) {
        let token = conn;
        let conn = ConnId::from_token(conn.0);
        if conn.is_lane() {
            secured::server_counters_of(facts).for_each(|it| self.engine.count_server(conn, it));
        } else {
            secured::counters_of(facts).for_each(|it| self.engine.count_client(conn, it));
            if !user_names.is_empty() {
                self.engine.handle_identified(conn, user_names, self.now);
            }
            if facts.is_movable {
                self.engine.untie(conn);
            }
            self.note_ready(token);
        }
    }

    fn connected(&mut self, conn: Token) {
        // The connection stands: no other address may be tried after this.
        if let Some(Attempt { name, address: Some(address), .. }) = self.attempts.remove(&conn) {
            self.peers.insert(conn, (name, address));
        }
        self.engine.handle_connected(ConnId::from_token(conn.0), self.now);
    }

    fn accept_blocked(&mut self, listener: u32) {
        if self.blocked.is_due(self.now) {
            let pool = self.pool_of(listener).map(|pool| self.engine.listener_config(pool));
            let pool = pool.map_or("", |pool| &pool.name);
            tracing::warn!(
                kind = EventKind::ClientsWait.name(),
                pool,
                "pool {pool}: out of file descriptors: clients wait until others leave; \
                 raise max_openfiles or lower client_connections"
            );
        }
    }

    #[inline(always)]
    fn received(&mut self, conn: Token, bytes: &mut Vec<u8>) {
        let id = ConnId::from_token(conn.0);
        self.engine.handle_received_buffer(id, bytes, self.now);
        if self.has_quickack && self.engine.is_amid_request(id) {
            self.unacknowledged.push(conn);
        }
        if self.engine.has_overspent() {
            self.show_life();
        }
    }

    #[inline(never)]
    fn received_late(&mut self, conn: Token, bytes: &mut Vec<u8>) {
        self.received(conn, bytes);
    }

    fn buffer(&mut self, capacity: usize) -> Vec<u8> {
        self.engine.buffer(capacity)
    }

    fn read_closed(&mut self, conn: Token) {
        self.engine.handle_read_closed(ConnId::from_token(conn.0), self.now);
        if self.engine.has_overspent() {
            self.show_life();
        }
    }

    fn detached(&mut self, conn: Token, socket: OwnedFd) {
        self.detaching.remove(&conn);
        self.detached.push((conn, socket, None));
    }

    fn detached_secured(&mut self, conn: Token, socket: OwnedFd, luggage: Luggage) {
        self.detaching.remove(&conn);
        self.detached.push((conn, socket, Some(luggage)));
    }

    fn closed(&mut self, conn: Token, why: CloseKind) {
        self.detaching.remove(&conn);
        if let CloseKind::Insecure(failure) = why {
            self.note_insecure(ConnId::from_token(conn.0), failure);
        }
        if let CloseKind::Unintroduced(why) = why {
            self.note_unintroduced(conn, why);
        }
        if ConnId::from_token(conn.0).is_lane() {
            self.failed_connects.push((conn, why));
        } else {
            self.forget_source(conn);
            self.report_closed(conn, why);
        }
    }

    fn readable(&mut self, watch: u32) {
        match watch {
            WATCH_CONTROL => self.control_readable = true,
            WATCH_AUTHORISER => self.authoriser_readable = true,
            WATCH_PREPARER => self.preparer_readable = true,
            _ => self.resolver_readable = true,
        }
    }

    #[inline(always)]
    fn front(&self, conn: Token) -> (&[u8], bool) {
        self.engine.front(ConnId::from_token(conn.0))
    }

    #[inline]
    fn output<'a>(&'a self, conn: Token, slices: &mut [IoSlice<'a>]) -> usize {
        self.engine.output(ConnId::from_token(conn.0), slices)
    }

    #[inline(always)]
    fn sent(&mut self, conn: Token, bytes: u64) {
        self.engine.handle_sent(ConnId::from_token(conn.0), bytes, self.now);
    }
}
