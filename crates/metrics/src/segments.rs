//! The segments of all slots: created by the master, opened by workers and readers.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cashew_config::Snapshot;
use cashew_protocol::CommandClass;
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};

use crate::audience::Audience;
use crate::board::{Board, BoardWriter};
use crate::histogram;
use crate::hot::{self, HotKeys, Ranking};
use crate::ids::{CommandCounter, PoolCounter, PoolGauge, ServerCounter, ServerGauge, UserCounter};
use crate::layout::{
    Layout, MAGIC, POOL_GAUGES, POOL_HISTOGRAM, POOL_WORDS, PoolId, SERVER_GAUGES,
    SERVER_HISTOGRAM, SERVER_REACHED, SERVER_TRIED, SERVER_WORDS, SLOTS_MAX, ServerId, common,
    detail, header,
};
use crate::mapping::{Mapping, View};
use crate::overlaps::Overlaps;
use crate::server_state::{LastError, ServerState, SharedState, SpoolState};
use crate::users::{Bucket, Rate, UserId, UserStat};
use crate::{Histogram, Writer};

/// Segments behind those of the slots.
const BOARDS: usize = 1;

/// All slots' segments, for reading; [`Segments::writer`] writes one of them.
pub struct Segments {
    mapping: Arc<Mapping>,
    layout: Layout,
    /// Slots that there is room for.
    slots_max: u32,
    /// Device and inode of the memfd.
    memory: Option<(u64, u64)>,
}

/// The newest attempt of all workers to connect to a failing server, and their newest success. Both
/// are in microseconds of the monotonic clock, 0 if there was none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    pub tried_us: u64,
    pub reached_us: u64,
}

/// The owner of a slot. All zero if there never was one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotHeader {
    pub pid: u32,
    /// The epoch of the snapshot that the worker serves.
    pub epoch: u64,
    /// In the time of [`monotonic_ms`](crate::monotonic_ms).
    pub heartbeat_ms: u64,
    /// Seconds since 1970.
    pub started_at: u64,
    /// Bytes held by buffers and requests.
    pub buffered: u64,
    /// How often these were so many that no new requests were taken.
    pub pressed: u64,
    /// How long output may be held back for batching, in microseconds.
    pub window_us: u64,
    /// Share of the last second, in permille, that the worker was not waiting for events.
    pub busy: u32,
    /// Sessions that came from other workers.
    pub sessions_in: u64,
    /// Sessions that went to other workers.
    pub sessions_out: u64,
    /// Sessions closed because they were not at rest within worker_shutdown_timeout.
    pub sessions_cut: u64,
}

impl Segments {
    /// Creates segments of [`SLOTS_MAX`] unused slots that other processes can [open](Self::open)
    /// by the descriptor.
    pub fn create(layout: &Layout) -> io::Result<(OwnedFd, Self)> {
        let words = words(layout)?;
        let fd = memfd_create("cashew-metrics", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, words as u64 * 8)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Mapping::shared(fd.as_fd(), words)?;
        let memory = Some(memory(&fd)?);
        Ok((fd, Self { memory, ..Self::initialized(mapping, layout, SLOTS_MAX) }))
    }

    /// Opens what [`create`](Self::create) made for the same layout, and refuses everything else.
    pub fn open(fd: impl AsFd, layout: &Layout) -> io::Result<Self> {
        let words = words(layout)?;
        let bytes = fstat(&fd)?.st_size as u64;
        if bytes < common::WORDS as u64 * 8 {
            return Err(invalid("metrics segments are cut short"));
        }
        if !fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(invalid("metrics segments are not sealed against shrinking"));
        }
        // The version comes first: of another one nothing else can be understood.
        let head = Mapping::shared(fd.as_fd(), common::WORDS)?;
        if head.words()[common::MAGIC].load(Relaxed) != MAGIC {
            return Err(invalid("metrics segments are of another version of cashew"));
        }
        if head.words()[common::FINGERPRINT].load(Relaxed) != layout.fingerprint() {
            return Err(invalid("metrics segments belong to another configuration"));
        }
        if bytes != words as u64 * 8 {
            return Err(invalid("metrics segments have another size than the configuration needs"));
        }
        let mapping = Mapping::shared(fd.as_fd(), words)?;
        Ok(Self {
            mapping: Arc::new(mapping),
            layout: layout.clone(),
            slots_max: SLOTS_MAX,
            memory: Some(memory(&fd)?),
        })
    }

    /// Private segments of this process, with so many slots, all used.
    pub fn in_memory(layout: &Layout, slots: u32) -> Self {
        let segments = slots as usize + BOARDS;
        let mapping = Mapping::heap(layout.common_words() + layout.slot_words() * segments);
        let segments = Self::initialized(mapping, layout, slots);
        segments.common()[common::SLOTS].store(u64::from(slots), Relaxed);
        segments
    }

    fn initialized(mapping: Mapping, layout: &Layout, slots_max: u32) -> Self {
        let mapping = Arc::new(mapping);
        let segments = Self { mapping, layout: layout.clone(), slots_max, memory: None };
        segments.common()[common::MAGIC].store(MAGIC, Relaxed);
        segments.common()[common::FINGERPRINT].store(layout.fingerprint(), Relaxed);
        segments
    }

    /// Whether both are the same memfd.
    pub fn is_same(&self, other: &Self) -> bool {
        self.memory.is_some() && self.memory == other.memory
    }

    /// The slot, and all below it, count in sums from now on. The master calls this before it
    /// starts a worker there.
    ///
    /// # Panics
    ///
    /// If there is no such slot.
    pub fn use_slot(&self, slot: u32) {
        assert!(slot < self.slots_max, "{} slots, not one of index {slot}", self.slots_max);
        self.common()[common::SLOTS].fetch_max(u64::from(slot) + 1, Relaxed);
    }

    /// The writer of a slot, which becomes [used](Self::use_slot). There must be one at a time: two
    /// would overwrite each other's numbers.
    ///
    /// # Panics
    ///
    /// If there is no such slot.
    pub fn writer(self: &Arc<Self>, slot: u32) -> Writer {
        self.use_slot(slot);
        let view = View::new(&self.mapping, self.range(slot));
        Writer::new(view, slot, Arc::clone(self))
    }

    /// What discovery has found out.
    pub fn board(&self) -> Board {
        Board::new(View::new(&self.mapping, self.range(self.slots_max)))
    }

    /// The writer of the [board](Self::board). There must be one at a time.
    pub fn board_writer(&self) -> BoardWriter {
        BoardWriter::new(self.board())
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Slots ever used. The others were never written, and reading them would take memory.
    pub fn slots(&self) -> u32 {
        (self.common()[common::SLOTS].load(Relaxed) as u32).min(self.slots_max)
    }

    pub fn header(&self, slot: u32) -> SlotHeader {
        let word = |at: usize| self.words(slot)[at].load(Relaxed);
        SlotHeader {
            pid: word(header::PID) as u32,
            epoch: word(header::EPOCH),
            heartbeat_ms: word(header::HEARTBEAT_MS),
            started_at: word(header::STARTED_AT),
            buffered: word(header::BUFFERED),
            pressed: word(header::PRESSED),
            window_us: word(header::WINDOW_US),
            busy: word(header::BUSY) as u32,
            sessions_in: word(header::SESSIONS_IN),
            sessions_out: word(header::SESSIONS_OUT),
            sessions_cut: word(header::SESSIONS_CUT),
        }
    }

    pub fn pool_counter(&self, slot: u32, pool: PoolId, counter: PoolCounter) -> u64 {
        self.word(slot, pool.base() + counter as usize)
    }

    pub fn pool_gauge(&self, slot: u32, pool: PoolId, gauge: PoolGauge) -> u64 {
        self.word(slot, pool.base() + POOL_GAUGES + gauge as usize)
    }

    pub fn pool_latency(&self, slot: u32, pool: PoolId) -> Histogram {
        self.histogram(slot..slot + 1, pool.base() + POOL_HISTOGRAM)
    }

    pub fn server_counter(&self, slot: u32, server: ServerId, counter: ServerCounter) -> u64 {
        self.word(slot, server.base() + counter as usize)
    }

    pub fn server_gauge(&self, slot: u32, server: ServerId, gauge: ServerGauge) -> u64 {
        self.word(slot, server.base() + SERVER_GAUGES + gauge as usize)
    }

    pub fn server_latency(&self, slot: u32, server: ServerId) -> Histogram {
        self.histogram(slot..slot + 1, server.base() + SERVER_HISTOGRAM)
    }

    pub fn sum_pool_counter(&self, pool: PoolId, counter: PoolCounter) -> u64 {
        self.sum(|slot| self.pool_counter(slot, pool, counter))
    }

    pub fn sum_pool_gauge(&self, pool: PoolId, gauge: PoolGauge) -> u64 {
        self.sum(|slot| self.pool_gauge(slot, pool, gauge))
    }

    pub fn max_pool_gauge(&self, pool: PoolId, gauge: PoolGauge) -> u64 {
        self.max(|slot| self.pool_gauge(slot, pool, gauge))
    }

    pub fn sum_pool_latency(&self, pool: PoolId) -> Histogram {
        self.histogram(0..self.slots(), pool.base() + POOL_HISTOGRAM)
    }

    pub fn sum_server_counter(&self, server: ServerId, counter: ServerCounter) -> u64 {
        self.sum(|slot| self.server_counter(slot, server, counter))
    }

    pub fn sum_server_gauge(&self, server: ServerId, gauge: ServerGauge) -> u64 {
        self.sum(|slot| self.server_gauge(slot, server, gauge))
    }

    pub fn max_server_gauge(&self, server: ServerId, gauge: ServerGauge) -> u64 {
        self.max(|slot| self.server_gauge(slot, server, gauge))
    }

    /// Of a class of commands, in a pool with `command_stats`.
    pub fn class_counter(
        &self,
        slot: u32,
        pool: PoolId,
        class: CommandClass,
        counter: CommandCounter,
    ) -> u64 {
        self.word(slot, self.layout().detail(pool) + detail::class(class) + counter as usize)
    }

    pub fn sum_class_counter(
        &self,
        pool: PoolId,
        class: CommandClass,
        counter: CommandCounter,
    ) -> u64 {
        self.sum(|slot| self.class_counter(slot, pool, class, counter))
    }

    /// Of the slots given, and a class of commands, in a pool with `command_stats`.
    pub fn class_latency(&self, slots: Range<u32>, pool: PoolId, class: CommandClass) -> Histogram {
        self.histogram(slots, self.layout().detail(pool) + detail::class(class) + detail::COUNTERS)
    }

    /// Of a prefix, which must be one of the pool's.
    pub fn prefix_counter(
        &self,
        slot: u32,
        pool: PoolId,
        prefix: usize,
        counter: CommandCounter,
    ) -> u64 {
        self.word(slot, self.layout().detail(pool) + detail::prefix(prefix) + counter as usize)
    }

    pub fn sum_prefix_counter(&self, pool: PoolId, prefix: usize, counter: CommandCounter) -> u64 {
        self.sum(|slot| self.prefix_counter(slot, pool, prefix, counter))
    }

    /// Of the slots given, and a prefix, which must be one of the pool's.
    pub fn prefix_latency(&self, slots: Range<u32>, pool: PoolId, prefix: usize) -> Histogram {
        self.histogram(
            slots,
            self.layout().detail(pool) + detail::prefix(prefix) + detail::COUNTERS,
        )
    }

    /// Of a user, by its place among those of its pool.
    pub fn user_counter(&self, slot: u32, pool: PoolId, row: usize, counter: UserCounter) -> u64 {
        self.word(slot, self.layout().user_row(pool, row) + counter as usize)
    }

    /// Over all workers: the sum, or the longest.
    pub fn sum_user_counter(&self, pool: PoolId, row: usize, counter: UserCounter) -> u64 {
        match counter {
            UserCounter::SlowestUs => self.max(|slot| self.user_counter(slot, pool, row, counter)),
            _ => self.sum(|slot| self.user_counter(slot, pool, row, counter)),
        }
    }

    /// The hottest keys of a pool over all workers, the hottest first. `now_us` is in microseconds of the monotonic
    /// clock.
    pub fn hot_keys(&self, pool: PoolId, ranking: Ranking, now_us: u64) -> HotKeys {
        let (mut keys, mut total) = (HashMap::new(), 0);
        let start = self.layout().detail(pool) + detail::HOT;
        for slot in 0..self.slots() {
            let words = &self.words(slot)[start..start + hot::WORDS];
            hot::merge(words, ranking, now_us, &mut keys, &mut total);
        }
        hot::top(keys, total)
    }

    pub(crate) fn attempts(&self, server: ServerId) -> Attempts {
        let newest = |at: usize| self.max(|slot| self.word(slot, server.base() + at));
        Attempts { tried_us: newest(SERVER_TRIED), reached_us: newest(SERVER_REACHED) }
    }

    /// When a pool began to use all servers since too many are down; `None` if it does not. In the time of
    /// [`monotonic_ms`](crate::monotonic_ms).
    pub fn opened_ms(&self, pool: PoolId) -> Option<u64> {
        Some(self.common()[self.layout().opened(pool)].load(Relaxed)).filter(|&at| at != 0)
    }

    /// For the master only.
    pub fn set_opened_ms(&self, pool: PoolId, at: Option<u64>) {
        self.common()[self.layout().opened(pool)].store(at.map_or(0, |at| at.max(1)), Relaxed);
    }

    /// What all workers together know of a server.
    pub fn server_state(&self, server: ServerId) -> ServerState {
        self.shared_state(server).get()
    }

    /// What last went wrong with a server.
    pub fn last_error(&self, server: ServerId) -> Option<LastError> {
        self.shared_state(server).last_error()
    }

    /// What a server is to forget.
    pub fn spool(&self, server: ServerId) -> SpoolState {
        self.shared_state(server).spool()
    }

    /// Something was noted that a server is to forget.
    pub fn note_spooled(&self, server: ServerId, now_us: u64) {
        self.shared_state(server).note_spooled(now_us);
    }

    /// When something was last noted that a server is to forget, in microseconds of the monotonic clock; 0 if
    /// never.
    pub fn spooled_us(&self, server: ServerId) -> u64 {
        self.shared_state(server).spooled_us()
    }

    /// A server has forgotten all that was noted up to then. For whoever tells servers only.
    pub fn set_forgotten(&self, server: ServerId, up_to_us: u64) {
        self.shared_state(server).set_forgotten(up_to_us);
    }

    /// How many keys a server has yet to be told to forget, and since when the first of them waits, in seconds
    /// since 1970. For whoever tells servers only.
    pub fn set_spool(&self, server: ServerId, depth: u64, oldest_at: u64) {
        self.shared_state(server).set_spool(depth, oldest_at);
    }

    /// A server has been told to forget so many keys.
    pub fn add_replayed(&self, server: ServerId, count: u64) {
        self.shared_state(server).add_replayed(count);
    }

    pub(crate) fn shared_state(&self, server: ServerId) -> SharedState<'_> {
        SharedState(&self.common()[server.state()])
    }

    pub(crate) fn bucket(&self, user: UserId, rate: Rate) -> Bucket<'_> {
        Bucket(&self.common()[self.layout.shared(user)][rate as usize])
    }

    /// What a user with limits uses, over all workers.
    pub fn sum_user(&self, user: UserId, stat: UserStat) -> u64 {
        let at = self.layout.user_stats(user).start + stat as usize;
        self.sum(|slot| self.word(slot, at))
    }

    pub(crate) fn overlaps(&self) -> Overlaps<'_> {
        Overlaps(&self.common()[self.layout.overlaps()])
    }

    pub fn sum_server_latency(&self, server: ServerId) -> Histogram {
        self.histogram(0..self.slots(), server.base() + SERVER_HISTOGRAM)
    }

    /// Takes over a slot from segments of another snapshot: its header, and the numbers of pools
    /// and servers that both snapshots have, by name. Called by the slot's only writer before it
    /// switches, or by the master for a slot without a living worker.
    pub fn carry(&self, from: &Self, old: &Snapshot, new: &Snapshot, slot: u32) {
        if slot >= from.slots() {
            return;
        }
        self.use_slot(slot);
        let (source, target) = (from.words(slot), self.words(slot));
        let copy = |at: usize, to: usize, words: usize| {
            for (source, target) in source[at..at + words].iter().zip(&target[to..to + words]) {
                target.store(source.load(Relaxed), Relaxed);
            }
        };
        copy(0, 0, header::WORDS);
        // The new holder publishes it again.
        target[header::AUDIENCE].store(0, Relaxed);
        let old_pools: HashMap<&str, usize> =
            old.pools.iter().enumerate().map(|(at, pool)| (pool.name.as_str(), at)).collect();
        for (pool, config) in new.pools.iter().enumerate() {
            let Some(&old_pool) = old_pools.get(config.name.as_str()) else { continue };
            let base = self.layout.pool(pool).base();
            copy(from.layout.pool(old_pool).base(), base, POOL_WORDS);
            let (before, after) = (from.layout.pool(old_pool), self.layout.pool(pool));
            // A part that was never used takes no memory.
            let carry_part = |at: usize, to: usize| {
                let at = from.layout.detail(before) + at;
                let to = self.layout.detail(after) + to;
                if source[at + CommandCounter::Requests as usize].load(Relaxed) > 0 {
                    copy(at, to, detail::PART_WORDS);
                }
            };
            if from.layout.has_commands(old_pool) && config.command_stats {
                for class in CommandClass::ALL.map(detail::class) {
                    carry_part(class, class);
                }
                let known = &old.pools[old_pool].prefixes;
                for (to, prefix) in config.prefixes.iter().enumerate() {
                    if let Some(at) = known.iter().position(|it| it == prefix) {
                        carry_part(detail::prefix(at), detail::prefix(to));
                    }
                }
            }
            let known = old.pools[old_pool].user_rows();
            for (to, user) in config.user_rows().iter().enumerate() {
                if let Some(at) = known.iter().position(|it| it == user) {
                    copy(
                        from.layout.user_row(before, at),
                        self.layout.user_row(after, to),
                        detail::USER_WORDS,
                    );
                }
            }
            let old_config = &old.pools[old_pool].servers;
            let old_servers: HashMap<&str, usize> = old.pools[old_pool]
                .servers
                .iter()
                .enumerate()
                .map(|(at, server)| (server.name.as_str(), at))
                .collect();
            for (server, config) in config.servers.iter().enumerate() {
                if let Some(&old_server) = old_servers.get(config.name.as_str()) {
                    let base = self.layout.server(pool, server).base();
                    let old_id = from.layout.server(old_pool, old_server);
                    copy(old_id.base(), base, SERVER_WORDS);
                    // Of another address nothing is known.
                    if old_config[old_server].endpoint == config.endpoint {
                        let state = from.shared_state(old_id);
                        self.shared_state(self.layout.server(pool, server)).carry(&state);
                    }
                }
            }
        }
    }

    /// Takes over what the master and discovery have written in another snapshot's segments about the pools and
    /// servers that both snapshots have, by name, and of servers by endpoint. For the master, before anybody writes here.
    pub fn carry_board(&self, from: &Self, old: &Snapshot, new: &Snapshot) {
        let (board, source) = (self.board_writer(), from.board());
        for (pool, config) in new.pools.iter().enumerate() {
            let Some(before) = old.pools.iter().position(|it| it.name == config.name) else {
                continue;
            };
            let opened_ms = from.opened_ms(from.layout.pool(before));
            self.set_opened_ms(self.layout.pool(pool), opened_ms);
            // Nothing is touched where discovery has written nothing.
            if source.begun(from.layout.pool(before)) == 0 {
                continue;
            }
            board.carry_pool(&source, from.layout.pool(before), self.layout.pool(pool));
            let old_servers: HashMap<_, usize> = old.pools[before]
                .servers
                .iter()
                .enumerate()
                .map(|(at, server)| ((&server.name, &server.endpoint), at))
                .collect();
            for (server, config) in config.servers.iter().enumerate() {
                if let Some(&at) = old_servers.get(&(&config.name, &config.endpoint)) {
                    let (at, to) =
                        (from.layout.server(before, at), self.layout.server(pool, server));
                    board.carry_server(&source, at, to);
                }
            }
        }
    }

    /// Like [`clear_gauges`](Self::clear_gauges), for a slot that no worker will hold for now: it
    /// is no longer shown as a worker's. Counters stay.
    pub fn vacate(&self, slot: u32) {
        self.clear_gauges(slot);
        let words = self.words(slot);
        for at in [header::PID, header::EPOCH, header::HEARTBEAT_MS, header::STARTED_AT] {
            words[at].store(0, Relaxed);
        }
    }

    /// Sets a slot's gauges to 0 and keeps its counters. For the master, after the slot's worker
    /// has died and before the next one starts.
    pub fn clear_gauges(&self, slot: u32) {
        let words = self.words(slot);
        words[header::BUFFERED].store(0, Relaxed);
        words[header::WINDOW_US].store(0, Relaxed);
        words[header::BUSY].store(0, Relaxed);
        let clear = |from: usize, to: usize| {
            words[from..to].iter().for_each(|word| word.store(0, Relaxed));
        };
        self.audience(slot).clear();
        for pool in self.layout.pools() {
            clear(pool.base() + POOL_GAUGES, pool.base() + POOL_HISTOGRAM);
        }
        for user in self.layout.users() {
            let stats = self.layout.user_stats(user);
            clear(stats.start + UserStat::GAUGES, stats.end);
        }
        for server in self.layout.servers() {
            clear(server.base() + SERVER_GAUGES, server.base() + SERVER_HISTOGRAM);
        }
    }

    fn audience(&self, slot: u32) -> Audience<'_> {
        let words = self.words(slot);
        Audience::new(&words[header::AUDIENCE], &words[self.layout.audience()])
    }

    /// How many clients beyond one per worker share subscriptions to a channel, without those of
    /// one slot.
    pub(crate) fn channel_elsewhere(&self, but: u32, channel: u64) -> u64 {
        let others = (0..self.slots()).filter(|&slot| slot != but);
        others.map(|slot| self.audience(slot).channel(channel)).sum()
    }

    /// Like [`channel_elsewhere`](Self::channel_elsewhere), for patterns that match.
    pub(crate) fn patterns_elsewhere(
        &self,
        but: u32,
        pool: u16,
        mut matches: impl FnMut(&[u8]) -> bool,
    ) -> u64 {
        let others = (0..self.slots()).filter(|&slot| slot != but);
        others.map(|slot| self.audience(slot).patterns(pool, &mut matches)).sum()
    }

    fn sum(&self, of_slot: impl Fn(u32) -> u64) -> u64 {
        (0..self.slots()).fold(0, |sum, slot| sum.wrapping_add(of_slot(slot)))
    }

    fn max(&self, of_slot: impl Fn(u32) -> u64) -> u64 {
        (0..self.slots()).map(of_slot).max().unwrap_or(0)
    }

    fn histogram(&self, slots: Range<u32>, base: usize) -> Histogram {
        let mut histogram = Histogram::default();
        for slot in slots {
            let words = &self.words(slot)[base..base + histogram::WORDS];
            histogram.add_words(|at| words[at].load(Relaxed));
        }
        histogram
    }

    fn word(&self, slot: u32, at: usize) -> u64 {
        self.words(slot)[at].load(Relaxed)
    }

    fn words(&self, slot: u32) -> &[AtomicU64] {
        &self.mapping.words()[self.range(slot)]
    }

    fn range(&self, slot: u32) -> Range<usize> {
        let start = self.layout.common_words() + slot as usize * self.layout.slot_words();
        start..start + self.layout.slot_words()
    }

    fn common(&self) -> &[AtomicU64] {
        &self.mapping.words()[..self.layout.common_words()]
    }
}

fn memory(fd: impl AsFd) -> io::Result<(u64, u64)> {
    let stat = fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Words of the whole memfd.
fn words(layout: &Layout) -> io::Result<usize> {
    layout
        .slot_words()
        .checked_mul(SLOTS_MAX as usize + BOARDS)
        .and_then(|words| words.checked_add(layout.common_words()))
        .filter(|words| words.checked_mul(8).is_some_and(|bytes| i64::try_from(bytes).is_ok()))
        .ok_or_else(|| invalid("metrics of so many servers fit in no memory"))
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Health;
    use crate::testing::snapshot;

    fn layout() -> Layout {
        Layout::new(&snapshot(&[("a", &["x", "y"]), ("bb", &["x"])]))
    }

    #[test]
    fn another_mapping_sees_what_a_writer_wrote() {
        let layout = layout();
        let (fd, master) = Segments::create(&layout).unwrap();
        let worker = Arc::new(Segments::open(&fd, &layout).unwrap());
        let writer = worker.writer(1);
        let (pool, server) = (layout.pool(1), layout.server(1, 0));
        writer.add_pool(pool, PoolCounter::Requests, 7);
        writer.set_server(server, ServerGauge::InQueue, 5);
        writer.record_server(server, 20, 1);
        writer.set_pid(42);
        writer.set_epoch(2);
        writer.set_started_at(1_700_000_000);
        writer.beat(99);
        writer.set_buffered(1 << 20);
        writer.add_pressed();
        writer.set_window_us(150);
        writer.set_busy(750);
        writer.add_sessions_in(3);
        writer.add_sessions_out(4);
        writer.add_sessions_cut(1);
        drop((writer, worker));

        assert_eq!(master.pool_counter(1, pool, PoolCounter::Requests), 7);
        assert_eq!(master.pool_counter(0, pool, PoolCounter::Requests), 0);
        assert_eq!(master.sum_pool_counter(pool, PoolCounter::Requests), 7);
        assert_eq!(master.sum_pool_counter(layout.pool(0), PoolCounter::Requests), 0);
        assert_eq!(master.server_latency(1, server).count_le(20), 1);
        assert_eq!(master.sum_server_latency(server).sum_us(), 20);
        let header = SlotHeader {
            pid: 42,
            epoch: 2,
            heartbeat_ms: 99,
            started_at: 1_700_000_000,
            buffered: 1 << 20,
            pressed: 1,
            window_us: 150,
            busy: 750,
            sessions_in: 3,
            sessions_out: 4,
            sessions_cut: 1,
        };
        assert_eq!(master.header(1), header);
        master.clear_gauges(1);
        assert_eq!(master.header(1), SlotHeader { buffered: 0, window_us: 0, busy: 0, ..header });
        assert_eq!(master.header(2), SlotHeader::default());
        master.vacate(1);
        let header = master.header(1);
        assert_eq!(
            (header.pid, header.epoch, header.heartbeat_ms, header.sessions_out),
            (0, 0, 0, 4)
        );
        assert_eq!(master.sum_pool_counter(pool, PoolCounter::Requests), 7);
    }

    #[test]
    fn only_used_slots_take_memory() {
        let layout = layout();
        let (fd, segments) = Segments::create(&layout).unwrap();
        let pages = || fstat(&fd).unwrap().st_blocks as usize * 512 / 4096;
        assert_eq!((segments.slots(), pages()), (0, 1));
        segments.use_slot(1);
        segments.use_slot(0);
        let other = Segments::open(&fd, &layout).unwrap();
        assert_eq!(other.slots(), 2);
        assert!(other.is_same(&segments));
        assert!(!other.is_same(&Segments::create(&layout).unwrap().1));
        let (pool, server) = (layout.pool(0), layout.server(1, 0));
        other.sum_pool_counter(pool, PoolCounter::Requests);
        other.sum_server_latency(server);
        assert!(pages() <= 1 + 2 * layout.slot_words() / 512, "{} pages", pages());
        let last = Arc::new(other).writer(SLOTS_MAX - 1);
        last.add_pool(pool, PoolCounter::Requests, 1);
        assert_eq!(segments.slots(), SLOTS_MAX);
        assert_eq!(segments.pool_counter(SLOTS_MAX - 1, pool, PoolCounter::Requests), 1);
    }

    #[test]
    fn numbers_that_both_snapshots_have_are_carried_by_name() {
        let old = snapshot(&[("a", &["x", "y"]), ("gone", &["x"]), ("b", &["z"])]);
        let new = snapshot(&[("b", &["z", "x"]), ("new", &["x"]), ("a", &["y"])]);
        let from = Arc::new(Segments::in_memory(&Layout::new(&old), 2));
        let (_fd, to) = Segments::create(&Layout::new(&new)).unwrap();
        let writer = from.writer(1);
        writer.set_pid(7);
        writer.add_sessions_out(3);
        for (pool, config) in old.pools.iter().enumerate() {
            let n = 100 * (pool as u64 + 1);
            writer.add_pool(writer.pool(pool), PoolCounter::Requests, n);
            writer.set_pool(writer.pool(pool), PoolGauge::ClientConnections, n + 1);
            writer.record_pool(writer.pool(pool), n, 1);
            for server in 0..config.servers.len() {
                let id = writer.server(pool, server);
                writer.add_server(id, ServerCounter::Requests, n + 10 + server as u64);
                writer.set_server(id, ServerGauge::InQueue, n + 20 + server as u64);
                writer.record_server(id, n, 2);
            }
        }
        to.carry(&from, &old, &new, 1);
        to.carry(&from, &old, &new, 2);
        assert_eq!(to.slots(), 2);
        let layout = to.layout();
        assert_eq!((to.header(1).pid, to.header(1).sessions_out), (7, 3));
        assert_eq!(to.header(0), SlotHeader::default());
        for (pool, n) in [(0, 300), (1, 0), (2, 100)] {
            let id = layout.pool(pool);
            assert_eq!(to.pool_counter(1, id, PoolCounter::Requests), n);
            let clients = if n == 0 { 0 } else { n + 1 };
            assert_eq!(to.pool_gauge(1, id, PoolGauge::ClientConnections), clients);
            assert_eq!(to.pool_latency(1, id).sum_us(), n);
        }
        for ((pool, server), n) in [((0, 0), 310), ((0, 1), 0), ((1, 0), 0), ((2, 0), 111)] {
            let id = layout.server(pool, server);
            assert_eq!(to.server_counter(1, id, ServerCounter::Requests), n);
            assert_eq!(to.server_latency(1, id).count(), if n == 0 { 0 } else { 2 });
        }
    }

    #[test]
    fn the_void_is_never_shown() {
        let layout = layout();
        let segments = Arc::new(Segments::in_memory(&layout, 1));
        let writer = segments.writer(0);
        writer.add_pool(writer.void_pool(), PoolCounter::Requests, 5);
        writer.add_server(writer.void_server(), ServerCounter::Requests, 5);
        for pool in layout.pools() {
            assert_eq!(segments.sum_pool_counter(pool, PoolCounter::Requests), 0);
        }
        for server in layout.servers() {
            assert_eq!(segments.sum_server_counter(server, ServerCounter::Requests), 0);
        }
    }

    #[test]
    fn slots_share_no_cache_line() {
        // Processors fetch lines of 64 bytes in pairs.
        const LINES: usize = 128;
        let (_fd, segments) = Segments::create(&layout()).unwrap();
        for slot in 0..3 {
            let words = segments.words(slot).as_ptr_range();
            assert_eq!((words.start as usize % LINES, words.end as usize % LINES), (0, 0));
        }
    }

    #[test]
    fn the_master_tells_which_pools_are_open() {
        let old = snapshot(&[("a", &["x", "y"]), ("b", &["x"])]);
        let new = snapshot(&[("b", &["x"]), ("c", &["x"])]);
        let segments = Arc::new(Segments::in_memory(&Layout::new(&old), 1));
        let layout = segments.layout();
        let (one, other) = (layout.pool(0), layout.pool(1));
        assert_eq!(segments.opened_ms(one), None);
        segments.set_opened_ms(one, Some(5));
        segments.set_opened_ms(layout.void_pool(), Some(6));
        assert_eq!((segments.opened_ms(one), segments.opened_ms(other)), (Some(5), None));
        segments.set_opened_ms(other, Some(7));
        segments.set_opened_ms(one, None);
        assert_eq!((segments.opened_ms(one), segments.opened_ms(other)), (None, Some(7)));
        // Nothing of a server or of a worker is there.
        for server in layout.servers().chain([layout.void_server()]) {
            assert_eq!(segments.server_state(server).health, Health::Untried);
        }
        assert_eq!(segments.sum_pool_counter(one, PoolCounter::Requests), 0);
        let next = Segments::in_memory(&Layout::new(&new), 1);
        next.carry_board(&segments, &old, &new);
        let opened = |pool| next.opened_ms(next.layout().pool(pool));
        assert_eq!((opened(0), opened(1)), (Some(7), None));
    }

    #[test]
    fn only_gauges_die_with_a_worker() {
        let layout = layout();
        let segments = Arc::new(Segments::in_memory(&layout, 2));
        let (pool, server) = (layout.pool(0), layout.server(0, 1));
        for slot in 0..2 {
            let writer = segments.writer(slot);
            writer.set_pool(pool, PoolGauge::ClientConnections, 3);
            writer.add_pool(pool, PoolCounter::Responses, 4);
            writer.set_server(server, ServerGauge::EjectedAt, 10 + u64::from(slot));
            writer.add_server(server, ServerCounter::ResponseBytes, 6);
            writer.record_pool(pool, 50, 1);
        }
        assert_eq!(segments.max_server_gauge(server, ServerGauge::EjectedAt), 11);
        segments.clear_gauges(1);
        assert_eq!(segments.sum_pool_gauge(pool, PoolGauge::ClientConnections), 3);
        assert_eq!(segments.sum_pool_counter(pool, PoolCounter::Responses), 8);
        assert_eq!(segments.sum_server_gauge(server, ServerGauge::EjectedAt), 10);
        assert_eq!(segments.sum_server_counter(server, ServerCounter::ResponseBytes), 12);
        assert_eq!(segments.sum_pool_latency(pool).count(), 2);
    }

    #[test]
    fn reading_while_writing_sees_growing_whole_numbers() {
        const WRITES: u64 = 200_000;
        const STEP: u64 = 1 << 33 | 1;
        let layout = layout();
        let (fd, reader) = Segments::create(&layout).unwrap();
        let pool = layout.pool(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let writer = Arc::new(Segments::open(&fd, &layout).unwrap()).writer(0);
                for value in 0..WRITES {
                    writer.add_pool(pool, PoolCounter::Requests, STEP);
                    writer.record_pool(pool, value, 1);
                }
            });
            let (mut requests, mut count) = (0, 0);
            while count < WRITES {
                let now = reader.pool_counter(0, pool, PoolCounter::Requests);
                assert!(now >= requests && now.is_multiple_of(STEP), "{requests} then {now}");
                let histogram = reader.pool_latency(0, pool);
                assert!(histogram.count() >= count);
                (requests, count) = (now, histogram.count());
            }
        });
        assert_eq!(reader.pool_counter(0, pool, PoolCounter::Requests), WRITES * STEP);
        assert_eq!(reader.pool_latency(0, pool).sum_us(), WRITES * (WRITES - 1) / 2);
    }

    fn refusal(fd: impl AsFd, layout: &Layout) -> String {
        Segments::open(fd, layout).err().expect("refused").to_string()
    }

    #[test]
    fn foreign_segments_are_refused() {
        let layout = layout();
        let (fd, master) = Segments::create(&layout).unwrap();
        let renamed = Layout::new(&snapshot(&[("a", &["x", "z"]), ("bb", &["x"])]));
        assert!(refusal(&fd, &renamed).contains("another configuration"));
        master.common()[common::MAGIC].store(MAGIC + (1 << 56), Relaxed);
        assert!(refusal(&fd, &layout).contains("another version"));
    }

    #[test]
    fn memory_that_may_shrink_is_refused() {
        let layout = layout();
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(refusal(&fd, &layout).contains("cut short"));
        ftruncate(&fd, words(&layout).unwrap() as u64 * 8).unwrap();
        assert!(refusal(&fd, &layout).contains("not sealed"));
        let (sealed, _segments) = Segments::create(&layout).unwrap();
        assert!(ftruncate(&sealed, 0).is_err());
    }

    #[test]
    #[should_panic(expected = "2 slots, not one of index 2")]
    fn a_slot_beyond_the_last_has_no_writer() {
        Arc::new(Segments::in_memory(&layout(), 2)).writer(2);
    }
}
