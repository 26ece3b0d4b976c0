//! The source of the statistics, and how numbers of several workers are combined.

use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use cashew_api::status::Status;
use cashew_api::{RouteList, RouteQuestion};
use cashew_config::Snapshot;
use cashew_config::snapshot::{LogFormat, Pool, Server, Tracing};
use cashew_discovery::{MaintenanceStatus, SourceStatus};
use cashew_metrics::{
    ChildKind, CommandCounter, Events, Exports, Health, Histogram, HotKeys, LastError, Layout,
    MemberRole, MemberState, PoolCounter, PoolGauge, PoolId, Ranking, Reloads, RequestRing,
    Segments, ServerCounter, ServerGauge, ServerId, ServerState, Shared, SlotHeader, SpoolState,
    UserCounter, UserId, UserStat, WallClock, monotonic_ms,
};
use cashew_migration::MoveStatus;
use cashew_protocol::CommandClass;

use crate::counted::{CommandTable, UserTable};
use crate::discovery::{ClusterState, Discovery, Group, Sentinel};
use crate::events::EventTable;
use crate::hot::HotTable;
use crate::section::Section;
use crate::slow::SlowTable;

/// A worker whose heartbeat is older is not healthy.
const HEARTBEAT_AGE_MAX_MS: u64 = 10_000;

pub struct Source {
    snapshot: Arc<Snapshot>,
    segments: Arc<Segments>,
    shared: Shared,
    discovery: Discovery,
    started_at: u64,
    version: String,
    host: String,
    clock: WallClock,
    sections: Vec<Arc<dyn Section>>,
    routes: Option<TellRoutes>,
}

/// Finds out where a key goes, by a configuration and by how an instance is. An error says what cannot be asked so.
pub type TellRoutes = fn(&Snapshot, &Status, &RouteQuestion) -> Result<RouteList, String>;

/// A server, how it is, and what last went wrong with it.
pub(crate) struct ServerStatus<'a> {
    pub(crate) pool: &'a str,
    pub(crate) name: &'a str,
    pub(crate) address: String,
    pub(crate) state: ServerState,
    /// In milliseconds since 1970; `None` if it was never tried.
    pub(crate) since_ms: Option<u64>,
    /// In milliseconds since 1970.
    pub(crate) last_error: Option<(&'static str, u64)>,
    /// What it is to forget, where that is kept.
    pub(crate) spool: Option<SpoolState>,
}

impl Source {
    /// # Panics
    ///
    /// If the segments were made for another snapshot's pools and servers.
    pub fn new(
        snapshot: Arc<Snapshot>,
        segments: Arc<Segments>,
        shared: Shared,
        started: SystemTime,
        version: impl Into<String>,
    ) -> Self {
        assert_eq!(
            segments.layout().fingerprint(),
            Layout::new(&snapshot).fingerprint(),
            "segments and snapshot belong together"
        );
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let version = version.into();
        let (discovery, started_at) = (Discovery::default(), unix_seconds(started));
        let clock = WallClock::now();
        let sections: Vec<Arc<dyn Section>> = vec![
            Arc::new(EventTable),
            Arc::new(SlowTable),
            Arc::new(HotTable),
            Arc::new(CommandTable),
            Arc::new(UserTable),
        ];
        let routes = None;
        Self {
            snapshot,
            segments,
            shared,
            discovery,
            started_at,
            version,
            host,
            clock,
            sections,
            routes,
        }
    }

    /// Tells of what is told there, too.
    pub fn with_discovery(self, discovery: Discovery) -> Self {
        Self { discovery, ..self }
    }

    /// Tells where keys go, too.
    pub fn with_routes(self, routes: TellRoutes) -> Self {
        Self { routes: Some(routes), ..self }
    }

    pub(crate) fn routes(&self) -> Option<TellRoutes> {
        self.routes
    }

    /// Has another table in `/state.json`.
    pub fn with_section(mut self, section: Arc<dyn Section>) -> Self {
        self.sections.push(section);
        self
    }

    pub(crate) fn sections(&self) -> impl Iterator<Item = &dyn Section> {
        self.sections.iter().map(|section| &**section).filter(|section| section.is_there(self))
    }

    /// What a server is to forget.
    pub(crate) fn spool(&self, server: ServerId) -> SpoolState {
        self.segments.spool(server)
    }

    /// All servers of all pools.
    pub(crate) fn servers(&self) -> impl Iterator<Item = ServerStatus<'_>> {
        let pools = self.snapshot.pools.iter().enumerate();
        pools.flat_map(move |(pool_index, pool)| {
            let servers = pool.servers.iter().enumerate();
            servers.map(move |(index, server)| {
                let id = self.layout().server(pool_index, index);
                let state = self.segments.server_state(id);
                let unix_ms = |ms| self.clock.unix_ms(ms);
                let told = |LastError { cause, at_ms }| (cause.text(), unix_ms(at_ms));
                ServerStatus {
                    pool: &pool.name,
                    name: &server.name,
                    address: server.endpoint.to_string(),
                    state,
                    since_ms: Some(state.since_ms).filter(|&ms| ms > 0).map(unix_ms),
                    last_error: self.segments.last_error(id).map(told),
                    spool: pool.spool.as_ref().map(|_| self.segments.spool(id)),
                }
            })
        })
    }

    /// The pools that fail open when too many servers are down, and whether they do now.
    pub(crate) fn open_pools(&self) -> Vec<(&str, bool)> {
        let pools = self.snapshot.pools.iter().enumerate();
        let is_open = |at| self.segments.opened_ms(self.layout().pool(at)).is_some();
        pools
            .filter(|(_, pool)| pool.fail_open_percent < 100)
            .map(|(at, pool)| (pool.name.as_str(), is_open(at)))
            .collect()
    }

    pub(crate) fn groups(&self) -> Vec<Group<'_>> {
        self.discovery.groups(&self.snapshot.pools)
    }

    pub(crate) fn clusters(&self) -> Vec<ClusterState<'_>> {
        self.discovery.clusters(&self.snapshot.pools)
    }

    /// Of pools whose servers a source names.
    pub(crate) fn sources(&self) -> Vec<(&Pool, SourceStatus)> {
        self.discovery.sources(&self.snapshot.pools)
    }

    /// Of servers that are asked to tell of their maintenance.
    pub(crate) fn maintained(&self) -> Vec<MaintenanceStatus> {
        self.discovery.all_maintained(&self.snapshot.pools)
    }

    /// Of routes that have a move still.
    pub(crate) fn moves(&self) -> Vec<MoveStatus> {
        let mut moves = self.discovery.all_moves();
        let is_there = |it: &MoveStatus| self.snapshot.moves().any(|(route, _)| route == it.route);
        moves.retain(is_there);
        moves
    }

    pub(crate) fn sentinels(&self) -> Vec<Sentinel<'_>> {
        self.discovery.sentinels(&self.snapshot.pools)
    }

    /// The servers of pools that have replicas, while discovery asks them.
    pub(crate) fn members(&self) -> Vec<Member<'_>> {
        let (layout, board) = (self.segments.layout(), self.segments.board());
        let now_ms = monotonic_ms();
        let pools = self.snapshot.pools.iter().enumerate();
        let kept = pools
            .filter(|(at, pool)| pool.has_replicas() && board.is_kept(layout.pool(*at), now_ms));
        let members = kept.flat_map(|(at, pool)| {
            let board = &board;
            pool.servers.iter().enumerate().map(move |(index, server)| {
                let state = board.member(layout.server(at, index));
                let is_replica = state.role != MemberRole::Primary || state.fitness.is_unfit();
                Member { pool: &pool.name, server: &server.name, state, is_replica }
            })
        });
        members.collect()
    }

    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    pub fn log_format(&self) -> LogFormat {
        self.snapshot.global.log_format
    }

    pub(crate) fn layout(&self) -> &Layout {
        self.segments.layout()
    }

    pub(crate) fn started_at(&self) -> u64 {
        self.started_at
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Renews this process's heartbeat, and counts the lines that its log has lost.
    pub fn beat(&self) {
        self.shared.admin_beats(monotonic_ms());
        self.shared.add_log_lines_lost(cashew_process::log::take_lost());
    }

    pub(crate) fn log_lines_lost(&self) -> u64 {
        self.shared.log_lines_lost()
    }

    /// Where spans are sent.
    pub(crate) fn tracing(&self) -> Option<&Tracing> {
        self.snapshot.global.tracing.as_ref()
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(crate) fn exports(&self) -> Exports {
        self.shared.exports()
    }

    pub(crate) fn restarts(&self, kind: ChildKind) -> u64 {
        self.shared.restarts(kind)
    }

    pub(crate) fn events(&self) -> Events {
        self.shared.events()
    }

    pub(crate) fn slow_requests(&self) -> RequestRing {
        self.shared.slow_requests()
    }

    /// Whether the file has a pool, or a route, of this name.
    pub(crate) fn has_pool(&self, name: &str) -> bool {
        self.snapshot.pools.iter().any(|pool| pool.name == name)
    }

    /// Whether the pool, or any of them, has a server of this name.
    pub(crate) fn has_server(&self, pool: Option<&str>, name: &str) -> bool {
        let mut pools =
            self.snapshot.pools.iter().filter(|it| pool.is_none_or(|pool| it.name == pool));
        pools.any(|pool| pool.servers.iter().any(|server| server.name == name))
    }

    /// The pools whose requests are sampled, and that had any. Of others nothing is read, since reading would take
    /// memory where nothing was written.
    pub(crate) fn observed_pools(&self) -> Vec<ObservedPool<'_>> {
        let numbers = self.total();
        let pools = self.snapshot.pools.iter().enumerate();
        let layout = self.layout();
        // Requests that come by a route are counted there, and at the servers.
        let is_asked = |at: usize, servers: usize| {
            let requests =
                |server| numbers.server_counter(layout.server(at, server), ServerCounter::Requests);
            (0..servers).any(|server| requests(server) > 0)
        };
        pools
            .filter(|(at, pool)| {
                let own = numbers.pool_counter(layout.pool(*at), PoolCounter::Requests);
                pool.hot_keys && (own > 0 || is_asked(*at, pool.servers.len()))
            })
            .map(|(at, pool)| (layout.pool(at), pool))
            .map(|(id, pool)| ObservedPool { id, name: &pool.name, servers: &pool.servers })
            .collect()
    }

    /// The heaviest keys of a pool now.
    pub(crate) fn hot_keys(&self, pool: PoolId, ranking: Ranking) -> HotKeys {
        self.segments.hot_keys(pool, ranking, monotonic_ms() * 1000)
    }

    pub(crate) fn reloads(&self) -> Reloads {
        self.shared.reloads()
    }

    /// The slots that a worker holds, or will hold again shortly.
    pub(crate) fn workers(&self) -> impl Iterator<Item = Worker> {
        self.slots().filter(|worker| worker.header.pid != 0)
    }

    /// All slots that a worker ever held, with their counters.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Worker> {
        let of_slot = |slot| Worker { slot, header: self.segments.header(slot) };
        (0..self.segments.slots()).map(of_slot)
    }

    /// Whether some worker beats, or none ever did.
    pub(crate) fn is_healthy(&self) -> bool {
        let mut ages = self.workers().filter_map(|worker| worker.heartbeat_age_ms()).peekable();
        ages.peek().is_none() || ages.any(|age| age <= HEARTBEAT_AGE_MAX_MS)
    }

    /// Whether the instance is to stop, and is not ready until then.
    pub(crate) fn is_draining(&self) -> bool {
        self.shared.is_draining()
    }

    /// Whether the instance stops.
    pub(crate) fn is_stopping(&self) -> bool {
        self.shared.is_stopping()
    }

    #[cfg(test)]
    pub(crate) fn stops(&self) {
        self.shared.stops();
    }

    pub(crate) fn health(&self, server: ServerId) -> Health {
        self.segments.server_state(server).health
    }

    /// The numbers of all slots together.
    pub(crate) fn total(&self) -> Numbers<'_> {
        Numbers { segments: &self.segments, slot: None }
    }

    pub(crate) fn of_slot(&self, slot: u32) -> Numbers<'_> {
        Numbers { segments: &self.segments, slot: Some(slot) }
    }
}

/// A pool whose requests are sampled.
pub(crate) struct ObservedPool<'a> {
    pub(crate) id: PoolId,
    pub(crate) name: &'a str,
    pub(crate) servers: &'a [Server],
}

/// A server of a pool that has replicas.
pub(crate) struct Member<'a> {
    pub(crate) pool: &'a str,
    pub(crate) server: &'a str,
    pub(crate) state: MemberState,
    /// It is none that takes the writes.
    pub(crate) is_replica: bool,
}

pub(crate) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

pub(crate) struct Worker {
    pub(crate) slot: u32,
    pub(crate) header: SlotHeader,
}

impl Worker {
    /// `None` before the first beat.
    pub(crate) fn heartbeat_age_ms(&self) -> Option<u64> {
        match self.header.heartbeat_ms {
            0 => None,
            beat => Some(monotonic_ms().saturating_sub(beat)),
        }
    }
}

/// The numbers of one slot or of all.
#[derive(Clone, Copy)]
pub(crate) struct Numbers<'a> {
    segments: &'a Segments,
    slot: Option<u32>,
}

impl Numbers<'_> {
    pub(crate) fn pool_counter(self, pool: PoolId, counter: PoolCounter) -> u64 {
        match self.slot {
            Some(slot) => self.segments.pool_counter(slot, pool, counter),
            None => self.segments.sum_pool_counter(pool, counter),
        }
    }

    /// Of all slots, whichever it is about.
    pub(crate) fn user(self, user: UserId, stat: UserStat) -> u64 {
        self.segments.sum_user(user, stat)
    }

    pub(crate) fn pool_gauge(self, pool: PoolId, gauge: PoolGauge) -> u64 {
        match (self.slot, gauge) {
            (Some(slot), _) => self.segments.pool_gauge(slot, pool, gauge),
            (
                None,
                PoolGauge::ClientConnections
                | PoolGauge::Subscriptions
                | PoolGauge::CacheEntries
                | PoolGauge::CacheBytes
                | PoolGauge::ExternalAuthLost,
            ) => self.segments.sum_pool_gauge(pool, gauge),
            (None, PoolGauge::RingVersion | PoolGauge::CacheBoundMs | PoolGauge::CacheRefused) => {
                self.segments.max_pool_gauge(pool, gauge)
            }
        }
    }

    pub(crate) fn pool_latency(self, pool: PoolId) -> Histogram {
        match self.slot {
            Some(slot) => self.segments.pool_latency(slot, pool),
            None => self.segments.sum_pool_latency(pool),
        }
    }

    pub(crate) fn class_counter(
        self,
        pool: PoolId,
        class: CommandClass,
        counter: CommandCounter,
    ) -> u64 {
        match self.slot {
            Some(slot) => self.segments.class_counter(slot, pool, class, counter),
            None => self.segments.sum_class_counter(pool, class, counter),
        }
    }

    pub(crate) fn class_latency(self, pool: PoolId, class: CommandClass) -> Histogram {
        self.segments.class_latency(self.slots(), pool, class)
    }

    /// Of a prefix, which must be one of the pool's.
    pub(crate) fn prefix_counter(
        self,
        pool: PoolId,
        prefix: usize,
        counter: CommandCounter,
    ) -> u64 {
        match self.slot {
            Some(slot) => self.segments.prefix_counter(slot, pool, prefix, counter),
            None => self.segments.sum_prefix_counter(pool, prefix, counter),
        }
    }

    /// Of a prefix, which must be one of the pool's.
    pub(crate) fn prefix_latency(self, pool: PoolId, prefix: usize) -> Histogram {
        self.segments.prefix_latency(self.slots(), pool, prefix)
    }

    /// Of a user, by its place among those of its pool.
    pub(crate) fn user_counter(self, pool: PoolId, row: usize, counter: UserCounter) -> u64 {
        match self.slot {
            Some(slot) => self.segments.user_counter(slot, pool, row, counter),
            None => self.segments.sum_user_counter(pool, row, counter),
        }
    }

    fn slots(self) -> Range<u32> {
        self.slot.map_or(0..self.segments.slots(), |slot| slot..slot + 1)
    }

    pub(crate) fn server_counter(self, server: ServerId, counter: ServerCounter) -> u64 {
        match self.slot {
            Some(slot) => self.segments.server_counter(slot, server, counter),
            None => self.segments.sum_server_counter(server, counter),
        }
    }

    pub(crate) fn server_gauge(self, server: ServerId, gauge: ServerGauge) -> u64 {
        match (self.slot, gauge) {
            (Some(slot), _) => self.segments.server_gauge(slot, server, gauge),
            (
                None,
                ServerGauge::EjectedAt
                | ServerGauge::Ejected
                | ServerGauge::Silent
                | ServerGauge::Drained,
            ) => self.segments.max_server_gauge(server, gauge),
            (
                None,
                ServerGauge::ServerConnections
                | ServerGauge::Sessions
                | ServerGauge::InLine
                | ServerGauge::InQueue
                | ServerGauge::InQueueBytes
                | ServerGauge::OutQueue
                | ServerGauge::OutQueueBytes,
            ) => self.segments.sum_server_gauge(server, gauge),
        }
    }

    pub(crate) fn server_latency(self, server: ServerId) -> Histogram {
        match self.slot {
            Some(slot) => self.segments.server_latency(slot, server),
            None => self.segments.sum_server_latency(server),
        }
    }
}
