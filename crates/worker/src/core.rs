//! The engine with what surrounds it in a worker; the driver's [`Handler`].

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use cashew_config::Snapshot;
use cashew_driver::{CloseKind, Handler, Token};
use cashew_engine::{Admission, CloseReason, ConnId, Engine, Time};
use cashew_metrics::{PoolGauge, PoolId, Segments};

use crate::clock::Clock;

/// What the driver watches for the worker.
pub(crate) const WATCH_CONTROL: u32 = 0;
pub(crate) const WATCH_RESOLVER: u32 = 1;

/// How often the log says the same of what happens again and again.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// What is said now and then only.
#[derive(Default)]
pub(crate) struct Report(Option<Time>);

impl Report {
    /// Whether it is to be said again.
    pub(crate) fn is_due(&mut self, now: Time) -> bool {
        let is_due = self.0.is_none_or(|last| now - last >= REPORT_INTERVAL);
        if is_due {
            self.0 = Some(now);
        }
        is_due
    }
}

/// Everything of a worker but its driver, so that the driver can call it.
pub(crate) struct Core {
    pub(crate) engine: Engine,
    pub(crate) clock: Clock,
    pub(crate) now: Time,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) pool_ids: Vec<PoolId>,
    pub(crate) clients_seen: u64,
    pub(crate) control_readable: bool,
    pub(crate) resolver_readable: bool,
    /// Addresses not tried yet, of connections being made to servers with several.
    pub(crate) addresses: HashMap<Token, VecDeque<SocketAddr>>,
    /// That clients have to wait for descriptors.
    pub(crate) blocked: Report,
    /// That new requests have to wait for memory.
    pub(crate) pressed: Report,
    /// That clients were closed for want of memory.
    pub(crate) shed: Report,
    /// Connections to servers that failed, which may have another address to try.
    pub(crate) failed_connects: Vec<(Token, CloseKind)>,
}

impl Core {
    pub(crate) fn tick(&mut self) {
        self.now = self.clock.now();
    }

    /// Whether the pool's limit of clients, counted over all workers, has room.
    fn admission(&self, pool: u32) -> Admission {
        let limit = self.snapshot.pools[pool as usize].client_connections;
        if limit == 0 {
            return Admission::Welcome;
        }
        let id = self.pool_ids[pool as usize];
        let connected = self.segments.sum_pool_gauge(id, PoolGauge::ClientConnections);
        if connected < u64::from(limit) { Admission::Welcome } else { Admission::Full }
    }

    pub(crate) fn report_closed(&mut self, conn: Token, why: CloseKind) {
        self.engine.handle_closed(ConnId::from_token(conn.0), close_reason(why), self.now);
    }
}

fn close_reason(kind: CloseKind) -> CloseReason {
    match kind {
        CloseKind::Refused => CloseReason::Refused,
        CloseKind::Reset => CloseReason::Reset,
        CloseKind::TimedOut => CloseReason::TimedOut,
        CloseKind::Unreachable => CloseReason::Unreachable,
        CloseKind::Exhausted => CloseReason::Exhausted,
    }
}

impl Handler for Core {
    fn woken(&mut self) {
        self.tick();
    }

    fn accepted(&mut self, listener: u32) -> Option<Token> {
        self.clients_seen += 1;
        let (admission, id) = (self.admission(listener), self.clients_seen);
        Some(Token(self.engine.handle_accepted(listener, admission, id, self.now).token()))
    }

    fn connected(&mut self, conn: Token) {
        // From here on its end is the end: another connection would know nothing of this one's.
        self.addresses.remove(&conn);
        self.engine.handle_connected(ConnId::from_token(conn.0), self.now);
    }

    fn accept_blocked(&mut self, listener: u32) {
        if self.blocked.is_due(self.now) {
            let pool = &self.snapshot.pools[listener as usize].name;
            tracing::warn!(
                "pool {pool}: out of file descriptors: clients wait until others leave; \
                 raise max_openfiles or lower client_connections"
            );
        }
    }

    #[inline]
    fn received(&mut self, conn: Token, bytes: &mut Vec<u8>) {
        self.engine.handle_received_buffer(ConnId::from_token(conn.0), bytes, self.now);
    }

    fn buffer(&mut self, capacity: usize) -> Vec<u8> {
        self.engine.buffer(capacity)
    }

    fn read_closed(&mut self, conn: Token) {
        self.engine.handle_read_closed(ConnId::from_token(conn.0), self.now);
    }

    fn detached(&mut self, conn: Token, _socket: OwnedFd) {
        self.report_closed(conn, CloseKind::Reset);
    }

    fn closed(&mut self, conn: Token, why: CloseKind) {
        if ConnId::from_token(conn.0).is_lane() {
            self.failed_connects.push((conn, why));
        } else {
            self.report_closed(conn, why);
        }
    }

    fn readable(&mut self, watch: u32) {
        match watch {
            WATCH_CONTROL => self.control_readable = true,
            _ => self.resolver_readable = true,
        }
    }

    #[inline]
    fn front(&self, conn: Token) -> (&[u8], bool) {
        self.engine.front(ConnId::from_token(conn.0))
    }

    #[inline]
    fn output<'a>(&'a self, conn: Token, slices: &mut [IoSlice<'a>]) -> usize {
        self.engine.output(ConnId::from_token(conn.0), slices)
    }

    #[inline]
    fn sent(&mut self, conn: Token, bytes: u64) {
        self.engine.handle_sent(ConnId::from_token(conn.0), bytes, self.now);
    }
}
