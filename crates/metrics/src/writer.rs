//! Writing one slot's segment.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cashew_config::Snapshot;
use cashew_protocol::CommandClass;

use crate::audience::Audience;
use crate::board::Board;
use crate::histogram::{self, SUM};
use crate::hot::{self, HotSample};
use crate::ids::{CommandCounter, PoolCounter, PoolGauge, ServerCounter, ServerGauge, UserCounter};
use crate::layout::{
    Layout, POOL_GAUGES, POOL_HISTOGRAM, PoolId, SERVER_GAUGES, SERVER_HISTOGRAM, SERVER_REACHED,
    SERVER_TRIED, ServerId, detail, header,
};
use crate::mapping::View;
use crate::overlaps::{WriteKind, WriteLane, WriteStamp};
use crate::server_state::{Evidence, LastError, ServerState, StateChange};
use crate::users::{Rate, UserId, UserStat};
use crate::{Attempts, CommandCounts, Histogram, Segments};

/// Writes the numbers of one slot.
///
/// Ids must be those of the segments' layout; ids of another layout lead to other numbers or panic.
/// Clones write the same slot and stay on the thread of the original.
#[derive(Clone)]
pub struct Writer {
    view: View,
    slot: u32,
    segments: Arc<Segments>,
    board: Board,
    /// Adding is not atomic, so a writer must not be shared between threads.
    _not_sync: PhantomData<Cell<()>>,
}

impl Writer {
    pub(crate) fn new(view: View, slot: u32, segments: Arc<Segments>) -> Self {
        let board = segments.board();
        Self { view, slot, segments, board, _not_sync: PhantomData }
    }

    /// A writer whose numbers nobody else sees, for tests and simulation.
    pub fn in_memory(snapshot: &Snapshot) -> Self {
        Arc::new(Segments::in_memory(&Layout::new(snapshot), 1)).writer(0)
    }

    /// # Panics
    ///
    /// If the snapshot has no such pool.
    pub fn pool(&self, pool: usize) -> PoolId {
        self.segments.layout().pool(pool)
    }

    /// # Panics
    ///
    /// If the snapshot has no such pool or the pool no such server.
    pub fn server(&self, pool: usize, server: usize) -> ServerId {
        self.segments.layout().server(pool, server)
    }

    /// For a pool that is no longer configured.
    pub fn void_pool(&self) -> PoolId {
        self.segments.layout().void_pool()
    }

    /// For a server that is no longer configured.
    pub fn void_server(&self) -> ServerId {
        self.segments.layout().void_server()
    }

    #[inline]
    pub fn add_pool(&self, pool: PoolId, counter: PoolCounter, n: u64) {
        self.add(pool.base() + counter as usize, n);
    }

    #[inline]
    pub fn set_pool(&self, pool: PoolId, gauge: PoolGauge, value: u64) {
        self.set(pool.base() + POOL_GAUGES + gauge as usize, value);
    }

    #[inline]
    pub fn add_server(&self, server: ServerId, counter: ServerCounter, n: u64) {
        self.add(server.base() + counter as usize, n);
    }

    #[inline]
    pub fn set_server(&self, server: ServerId, gauge: ServerGauge, value: u64) {
        self.set(server.base() + SERVER_GAUGES + gauge as usize, value);
    }

    /// Publishes to other workers that a failing server is tried now.
    pub fn set_tried(&self, server: ServerId, now_us: u64) {
        self.set(server.base() + SERVER_TRIED, now_us);
    }

    /// Publishes to other workers that a failing server works again.
    pub fn set_reached(&self, server: ServerId, now_us: u64) {
        self.set(server.base() + SERVER_REACHED, now_us);
    }

    /// The newest attempts of all workers.
    pub fn attempts(&self, server: ServerId) -> Attempts {
        self.segments.attempts(server)
    }

    /// Has a server's state follow from what was seen of it. The change, if this made one: exactly one
    /// worker is told of each. Of a server that is no longer configured there is no state.
    pub fn note(&self, server: ServerId, evidence: Evidence, now_us: u64) -> Option<StateChange> {
        if server == self.void_server() {
            return None;
        }
        self.segments.shared_state(server).note(evidence, now_us)
    }

    pub fn last_error(&self, server: ServerId) -> Option<LastError> {
        self.segments.last_error(server)
    }

    /// Something was noted that the server is to forget.
    pub fn note_spooled(&self, server: ServerId, now_us: u64) {
        if server != self.void_server() {
            self.segments.note_spooled(server, now_us);
        }
    }

    /// Whether the server has yet to forget something.
    #[inline]
    pub fn is_held(&self, server: ServerId) -> bool {
        self.segments.shared_state(server).is_held()
    }

    pub fn server_state(&self, server: ServerId) -> ServerState {
        self.segments.server_state(server)
    }

    /// A server's replies cannot be kept by caches, or can. Returns whether that is news, to one worker alone.
    pub fn note_keeping(&self, server: ServerId, is_refused: bool) -> bool {
        server != self.void_server() && self.segments.shared_state(server).note_keeping(is_refused)
    }

    /// Whether this worker is the one to check the server now: nobody has for so long.
    pub fn claim_check(&self, server: ServerId, now_us: u64, interval_us: u64) -> bool {
        server != self.void_server()
            && self.segments.shared_state(server).claim_check(now_us, interval_us)
    }

    /// A write of a key is about to be sent to servers that are copies of each other.
    pub fn begin_write(&self, key: &[u8], lane: WriteLane, kind: WriteKind) -> WriteStamp {
        self.segments.overlaps().begin(key, lane, kind)
    }

    /// Whether such a write, which has ended, may have reached some copy in another order than another one.
    /// That one may be any worker's. The write must have begun with the same segments.
    pub fn has_overlap(&self, stamp: &WriteStamp) -> bool {
        self.segments.overlaps().has_overlap(stamp)
    }

    /// See [`Layout::user`].
    pub fn user(&self, pool: PoolId, user: usize) -> UserId {
        self.segments.layout().user(pool, user)
    }

    pub fn add_limited(&self, user: UserId, stat: UserStat, n: u64) {
        self.add(self.segments.layout().user_stats(user).start + stat as usize, n);
    }

    pub fn set_user(&self, user: UserId, stat: UserStat, value: u64) {
        self.set(self.segments.layout().user_stats(user).start + stat as usize, value);
    }

    /// Over all workers.
    pub fn sum_user(&self, user: UserId, stat: UserStat) -> u64 {
        self.segments.sum_user(user, stat)
    }

    /// How many microseconds it is until a user may have more; 0 if it may now. Time is that of the
    /// monotonic clock, as for all workers.
    pub fn quota_wait_us(&self, user: UserId, rate: Rate, now_us: u64) -> u64 {
        self.segments.bucket(user, rate).wait_us(now_us)
    }

    /// A user has had so much.
    pub fn take_quota(&self, user: UserId, rate: Rate, count: u64, per_second: u64, now_us: u64) {
        self.segments.bucket(user, rate).take(count, per_second, now_us);
    }

    /// Over all workers.
    pub fn sum_server_gauge(&self, server: ServerId, gauge: ServerGauge) -> u64 {
        self.segments.sum_server_gauge(server, gauge)
    }

    /// What discovery has found out.
    #[inline]
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Counts requests by the time from their arrival to their reply.
    #[inline]
    pub fn record_pool(&self, pool: PoolId, latency_us: u64, count: u64) {
        self.record(pool.base() + POOL_HISTOGRAM, latency_us, count);
    }

    /// Counts a server's replies by the time from the last byte of their requests.
    #[inline]
    pub fn record_server(&self, server: ServerId, latency_us: u64, count: u64) {
        self.record(server.base() + SERVER_HISTOGRAM, latency_us, count);
    }

    /// Adds to the counters of a class of commands, in a pool with `command_stats`. The requests among them
    /// took so long each, from their arrival to their reply.
    pub fn count_class(
        &self,
        pool: PoolId,
        class: CommandClass,
        latency_us: u64,
        counts: &CommandCounts,
    ) {
        let base = self.segments.layout().detail(pool) + detail::class(class);
        self.count_commands(base, latency_us, counts);
    }

    /// The same for a prefix, which must be one of the pool's.
    pub fn count_prefix(
        &self,
        pool: PoolId,
        prefix: usize,
        latency_us: u64,
        counts: &CommandCounts,
    ) {
        let base = self.segments.layout().detail(pool) + detail::prefix(prefix);
        self.count_commands(base, latency_us, counts);
    }

    fn count_commands(&self, base: usize, latency_us: u64, counts: &CommandCounts) {
        for (at, &count) in counts.iter().enumerate() {
            if count > 0 {
                self.add(base + at, count);
            }
        }
        let requests = counts[CommandCounter::Requests as usize];
        self.record(base + detail::COUNTERS, latency_us, requests);
    }

    /// Adds to a counter of a user, whose place must be one of the pool's.
    pub fn add_user(&self, pool: PoolId, row: usize, counter: UserCounter, n: u64) {
        self.add(self.segments.layout().user_row(pool, row) + counter as usize, n);
    }

    /// Raises a maximum of a user.
    pub fn raise_user(&self, pool: PoolId, row: usize, counter: UserCounter, value: u64) {
        let word = self.word(self.segments.layout().user_row(pool, row) + counter as usize);
        word.store(word.load(Relaxed).max(value), Relaxed);
    }

    /// Takes a sample up in the sketch of a pool's hot keys. `now_us` is in microseconds of the monotonic clock.
    pub fn note_hot(&self, pool: PoolId, sample: &HotSample<'_>, now_us: u64) {
        let start = self.segments.layout().detail(pool) + detail::HOT;
        hot::note(&self.view.words()[start..start + hot::WORDS], sample, now_us);
    }

    /// The hottest keys of a pool, over all workers.
    pub fn hot_keys(&self, pool: PoolId, ranking: hot::Ranking, now_us: u64) -> hot::HotKeys {
        self.segments.hot_keys(pool, ranking, now_us)
    }

    fn audience(&self) -> Audience<'_> {
        let words = self.view.words();
        Audience::new(&words[header::AUDIENCE], &words[self.segments.layout().audience()])
    }

    /// Publishes how many clients beyond the first share the subscription to a channel, which is
    /// given by a hash.
    pub fn set_channel(&self, channel: u64, more: u32) {
        self.audience().set_channel(channel, more);
    }

    /// Like [`set_channel`](Self::set_channel), for a pattern of a pool. Patterns longer than
    /// [`PATTERN_MAX`](crate::PATTERN_MAX) are left out.
    pub fn set_pattern(&self, pool: u16, pattern: &[u8], more: u32) {
        self.audience().set_pattern(pool, pattern, more);
    }

    /// What other workers published for a channel.
    pub fn channel_elsewhere(&self, channel: u64) -> u64 {
        self.segments.channel_elsewhere(self.slot, channel)
    }

    /// What other workers published for matching patterns.
    pub fn patterns_elsewhere(&self, pool: u16, matches: impl FnMut(&[u8]) -> bool) -> u64 {
        self.segments.patterns_elsewhere(self.slot, pool, matches)
    }

    /// `now_ms` is in the time of [`monotonic_ms`](crate::monotonic_ms).
    #[inline]
    pub fn beat(&self, now_ms: u64) {
        self.set(header::HEARTBEAT_MS, now_ms);
    }

    /// Bytes held by buffers and requests.
    pub fn set_buffered(&self, bytes: u64) {
        self.set(header::BUFFERED, bytes);
    }

    /// Counts that these became so many that no new requests are taken.
    pub fn add_pressed(&self) {
        self.add(header::PRESSED, 1);
    }

    /// How long output may be held back now, to be written together.
    #[inline]
    pub fn set_window_us(&self, window_us: u64) {
        self.set(header::WINDOW_US, window_us);
    }

    /// Share of the last second, in permille, that the worker was not waiting for events.
    pub fn set_busy(&self, permille: u32) {
        self.set(header::BUSY, u64::from(permille));
    }

    /// Counts sessions that came from another worker.
    pub fn add_sessions_in(&self, n: u64) {
        self.add(header::SESSIONS_IN, n);
    }

    /// Counts sessions that went to another worker.
    pub fn add_sessions_out(&self, n: u64) {
        self.add(header::SESSIONS_OUT, n);
    }

    /// Counts sessions closed because they were not at rest within worker_shutdown_timeout.
    pub fn add_sessions_cut(&self, n: u64) {
        self.add(header::SESSIONS_CUT, n);
    }

    pub fn set_epoch(&self, epoch: u64) {
        self.set(header::EPOCH, epoch);
    }

    pub fn set_pid(&self, pid: u32) {
        self.set(header::PID, u64::from(pid));
    }

    /// In seconds since 1970.
    pub fn set_started_at(&self, started_at: u64) {
        self.set(header::STARTED_AT, started_at);
    }

    pub fn pool_counter(&self, pool: PoolId, counter: PoolCounter) -> u64 {
        self.word(pool.base() + counter as usize).load(Relaxed)
    }

    /// Over all workers.
    pub fn sum_pool_counter(&self, pool: PoolId, counter: PoolCounter) -> u64 {
        self.segments.sum_pool_counter(pool, counter)
    }

    pub fn class_counter(&self, pool: PoolId, class: CommandClass, counter: CommandCounter) -> u64 {
        self.word(self.segments.layout().detail(pool) + detail::class(class) + counter as usize)
            .load(Relaxed)
    }

    pub fn class_latency(&self, pool: PoolId, class: CommandClass) -> Histogram {
        self.histogram(
            self.segments.layout().detail(pool) + detail::class(class) + detail::COUNTERS,
        )
    }

    pub fn prefix_counter(&self, pool: PoolId, prefix: usize, counter: CommandCounter) -> u64 {
        self.word(self.segments.layout().detail(pool) + detail::prefix(prefix) + counter as usize)
            .load(Relaxed)
    }

    pub fn pool_gauge(&self, pool: PoolId, gauge: PoolGauge) -> u64 {
        self.word(pool.base() + POOL_GAUGES + gauge as usize).load(Relaxed)
    }

    pub fn pool_latency(&self, pool: PoolId) -> Histogram {
        self.histogram(pool.base() + POOL_HISTOGRAM)
    }

    pub fn server_counter(&self, server: ServerId, counter: ServerCounter) -> u64 {
        self.word(server.base() + counter as usize).load(Relaxed)
    }

    pub fn server_gauge(&self, server: ServerId, gauge: ServerGauge) -> u64 {
        self.word(server.base() + SERVER_GAUGES + gauge as usize).load(Relaxed)
    }

    pub fn server_latency(&self, server: ServerId) -> Histogram {
        self.histogram(server.base() + SERVER_HISTOGRAM)
    }

    #[inline]
    fn record(&self, base: usize, latency_us: u64, count: u64) {
        self.add(base + histogram::bucket(latency_us), count);
        self.add(base + SUM, latency_us.wrapping_mul(count));
    }

    /// Nobody else writes here, so nothing is lost between the load and the store.
    #[inline]
    fn add(&self, at: usize, n: u64) {
        let word = self.word(at);
        word.store(word.load(Relaxed).wrapping_add(n), Relaxed);
    }

    #[inline]
    fn set(&self, at: usize, value: u64) {
        self.word(at).store(value, Relaxed);
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        &self.view.words()[at]
    }

    fn histogram(&self, base: usize) -> Histogram {
        let mut histogram = Histogram::default();
        histogram.add_words(|at| self.word(base + at).load(Relaxed));
        histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::snapshot;

    #[test]
    fn every_number_has_a_place_of_its_own() {
        let writer = Writer::in_memory(&snapshot(&[("a", &["x", "y"]), ("bb", &["x"])]));
        let pools = [writer.pool(0), writer.pool(1)];
        let servers = [writer.server(0, 0), writer.server(0, 1), writer.server(1, 0)];
        let mut next = 1..;
        let mut expected = Vec::new();
        for pool in pools {
            for &counter in PoolCounter::ALL {
                expected.push(next.next().unwrap());
                writer.add_pool(pool, counter, expected[expected.len() - 1]);
            }
            for &gauge in PoolGauge::ALL {
                expected.push(next.next().unwrap());
                writer.set_pool(pool, gauge, expected[expected.len() - 1]);
            }
            writer.record_pool(pool, u64::MAX, 1);
        }
        for server in servers {
            for &counter in ServerCounter::ALL {
                expected.push(next.next().unwrap());
                writer.add_server(server, counter, expected[expected.len() - 1]);
            }
            for &gauge in ServerGauge::ALL {
                expected.push(next.next().unwrap());
                writer.set_server(server, gauge, expected[expected.len() - 1]);
            }
            writer.record_server(server, 0, 1);
        }
        let mut told = Vec::new();
        for pool in pools {
            told.extend(PoolCounter::ALL.iter().map(|&c| writer.pool_counter(pool, c)));
            told.extend(PoolGauge::ALL.iter().map(|&g| writer.pool_gauge(pool, g)));
            assert_eq!(writer.pool_latency(pool).count(), 1);
        }
        for server in servers {
            told.extend(ServerCounter::ALL.iter().map(|&c| writer.server_counter(server, c)));
            told.extend(ServerGauge::ALL.iter().map(|&g| writer.server_gauge(server, g)));
            assert_eq!(writer.server_latency(server).count_le(1), 1);
        }
        assert_eq!(told, expected);
    }

    #[test]
    fn attempts_of_all_workers_are_seen_by_each() {
        let layout = Layout::new(&snapshot(&[("a", &["x", "y"])]));
        let segments = Arc::new(Segments::in_memory(&layout, 2));
        let writers = [segments.writer(0), segments.writer(1)];
        let server = layout.server(0, 1);
        writers[0].set_tried(server, 40);
        writers[1].set_tried(server, 30);
        writers[1].set_reached(server, 35);
        for writer in &writers {
            assert_eq!(writer.attempts(server), Attempts { tried_us: 40, reached_us: 35 });
            assert_eq!(writer.attempts(layout.server(0, 0)), Attempts::default());
        }
        // A worker's attempts end with it.
        segments.clear_gauges(0);
        assert_eq!(writers[1].attempts(server), Attempts { tried_us: 30, reached_us: 35 });
    }

    #[test]
    fn counters_go_on_where_the_last_worker_stopped() {
        let layout = Layout::new(&snapshot(&[("a", &["x"])]));
        let segments = Arc::new(Segments::in_memory(&layout, 1));
        for _ in 0..2 {
            segments.writer(0).add_pool(layout.pool(0), PoolCounter::ClientEof, 2);
        }
        assert_eq!(segments.pool_counter(0, layout.pool(0), PoolCounter::ClientEof), 4);
    }
}
