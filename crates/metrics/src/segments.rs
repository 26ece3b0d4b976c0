//! The segments of all slots: made by the master, opened by workers and by whoever reads.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};

use crate::histogram;
use crate::ids::{PoolCounter, PoolGauge, ServerCounter, ServerGauge};
use crate::layout::{
    Layout, MAGIC, POOL_GAUGES, POOL_HISTOGRAM, PoolId, SERVER_GAUGES, SERVER_HISTOGRAM, ServerId,
    header,
};
use crate::mapping::{Mapping, View};
use crate::{Histogram, Writer};

/// All slots' segments, for reading; [`Segments::writer`] leads to writing one of them.
pub struct Segments {
    mapping: Arc<Mapping>,
    layout: Layout,
    slots: u32,
}

/// Who writes to a slot. All zero while nobody ever did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotHeader {
    pub pid: u32,
    /// Of the snapshot that the worker serves.
    pub epoch: u64,
    /// Told by [`monotonic_ms`](crate::monotonic_ms).
    pub heartbeat_ms: u64,
    /// Seconds since 1970.
    pub started_at: u64,
    /// Bytes that buffers and requests take.
    pub buffered: u64,
    /// Times that these were so many that no new requests were taken.
    pub pressed: u64,
    /// How long what gains from company may be held back, in microseconds.
    pub window_us: u64,
}

impl Segments {
    /// Makes segments that other processes can [open](Self::open) by the descriptor.
    pub fn create(layout: &Layout, slots: u32) -> io::Result<(OwnedFd, Self)> {
        let bytes = size(layout, slots)?;
        let fd = memfd_create("cashew-metrics", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, bytes)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Mapping::shared(fd.as_fd(), layout.slot_words() * slots as usize)?;
        Ok((fd, Self::initialized(mapping, layout, slots)))
    }

    /// Opens what [`create`](Self::create) made for the same layout and number of slots, and
    /// refuses everything else.
    pub fn open(fd: impl AsFd, layout: &Layout, slots: u32) -> io::Result<Self> {
        let bytes = size(layout, slots)?;
        if fstat(&fd)?.st_size as u64 != bytes {
            return Err(invalid("metrics segments have another size than the configuration needs"));
        }
        if !fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(invalid("metrics segments are not sealed against shrinking"));
        }
        let mapping = Mapping::shared(fd.as_fd(), layout.slot_words() * slots as usize)?;
        let segments = Self { mapping: Arc::new(mapping), layout: layout.clone(), slots };
        for slot in 0..slots {
            let word = |at: usize| segments.words(slot)[at].load(Relaxed);
            if word(header::MAGIC) != MAGIC {
                return Err(invalid("metrics segments are of another version of cashew"));
            }
            if word(header::FINGERPRINT) != layout.fingerprint() {
                return Err(invalid("metrics segments belong to another configuration"));
            }
        }
        Ok(segments)
    }

    /// Segments that only this process can see.
    pub fn in_memory(layout: &Layout, slots: u32) -> Self {
        let mapping = Mapping::heap(layout.slot_words() * slots as usize);
        Self::initialized(mapping, layout, slots)
    }

    fn initialized(mapping: Mapping, layout: &Layout, slots: u32) -> Self {
        let segments = Self { mapping: Arc::new(mapping), layout: layout.clone(), slots };
        for slot in 0..slots {
            let words = segments.words(slot);
            words[header::MAGIC].store(MAGIC, Relaxed);
            words[header::FINGERPRINT].store(layout.fingerprint(), Relaxed);
        }
        segments
    }

    /// The writer of a slot. There must be one at a time: two would undo each other's work.
    ///
    /// # Panics
    ///
    /// When there is no such slot.
    pub fn writer(self: &Arc<Self>, slot: u32) -> Writer {
        assert!(slot < self.slots, "{} slots, not one of index {slot}", self.slots);
        let start = slot as usize * self.layout.slot_words();
        let view = View::new(&self.mapping, start..start + self.layout.slot_words());
        Writer::new(view, Arc::clone(self))
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub fn slots(&self) -> u32 {
        self.slots
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
        self.histogram(0..self.slots, pool.base() + POOL_HISTOGRAM)
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

    pub fn sum_server_latency(&self, server: ServerId) -> Histogram {
        self.histogram(0..self.slots, server.base() + SERVER_HISTOGRAM)
    }

    /// Sets a slot's gauges to 0 and keeps its counters. For the master, once the slot's worker is
    /// dead and before the next one starts: what the gauges told of died with the worker.
    pub fn clear_gauges(&self, slot: u32) {
        let words = self.words(slot);
        words[header::BUFFERED].store(0, Relaxed);
        words[header::WINDOW_US].store(0, Relaxed);
        let clear = |from: usize, to: usize| {
            words[from..to].iter().for_each(|word| word.store(0, Relaxed));
        };
        for pool in self.layout.pools() {
            clear(pool.base() + POOL_GAUGES, pool.base() + POOL_HISTOGRAM);
        }
        for server in self.layout.servers() {
            clear(server.base() + SERVER_GAUGES, server.base() + SERVER_HISTOGRAM);
        }
    }

    fn sum(&self, of_slot: impl Fn(u32) -> u64) -> u64 {
        (0..self.slots).fold(0, |sum, slot| sum.wrapping_add(of_slot(slot)))
    }

    fn max(&self, of_slot: impl Fn(u32) -> u64) -> u64 {
        (0..self.slots).map(of_slot).max().unwrap_or(0)
    }

    fn histogram(&self, slots: std::ops::Range<u32>, base: usize) -> Histogram {
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
        let start = slot as usize * self.layout.slot_words();
        &self.mapping.words()[start..start + self.layout.slot_words()]
    }
}

fn size(layout: &Layout, slots: u32) -> io::Result<u64> {
    if slots == 0 {
        return Err(invalid("metrics need at least one slot"));
    }
    (layout.slot_words() as u64)
        .checked_mul(u64::from(slots) * 8)
        .filter(|&bytes| i64::try_from(bytes).is_ok())
        .ok_or_else(|| invalid("metrics of so many servers and workers fit in no memory"))
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::snapshot;

    fn layout() -> Layout {
        Layout::new(&snapshot(&[("a", &["x", "y"]), ("bb", &["x"])]))
    }

    #[test]
    fn another_mapping_sees_what_a_writer_wrote() {
        let layout = layout();
        let (fd, master) = Segments::create(&layout, 3).unwrap();
        let worker = Arc::new(Segments::open(&fd, &layout, 3).unwrap());
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
        };
        assert_eq!(master.header(1), header);
        master.clear_gauges(1);
        assert_eq!(master.header(1), SlotHeader { buffered: 0, window_us: 0, ..header });
        assert_eq!(master.header(2), SlotHeader::default());
    }

    #[test]
    fn slots_share_no_cache_line() {
        // Processors fetch lines of 64 bytes in pairs.
        const LINES: usize = 128;
        let (_fd, segments) = Segments::create(&layout(), 3).unwrap();
        for slot in 0..3 {
            let words = segments.words(slot).as_ptr_range();
            assert_eq!((words.start as usize % LINES, words.end as usize % LINES), (0, 0));
        }
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
        let (fd, reader) = Segments::create(&layout, 1).unwrap();
        let pool = layout.pool(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let writer = Arc::new(Segments::open(&fd, &layout, 1).unwrap()).writer(0);
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

    fn refusal(fd: impl AsFd, layout: &Layout, slots: u32) -> String {
        Segments::open(fd, layout, slots).err().expect("refused").to_string()
    }

    #[test]
    fn foreign_segments_are_refused() {
        let layout = layout();
        let (fd, master) = Segments::create(&layout, 2).unwrap();
        let renamed = Layout::new(&snapshot(&[("a", &["x", "z"]), ("bb", &["x"])]));
        assert!(refusal(&fd, &renamed, 2).contains("another configuration"));
        assert!(refusal(&fd, &layout, 3).contains("another size"));
        assert!(refusal(&fd, &layout, 0).contains("at least one slot"));
        master.words(1)[header::MAGIC].store(MAGIC + (1 << 56), Relaxed);
        assert!(refusal(&fd, &layout, 2).contains("another version"));
    }

    #[test]
    fn memory_that_may_shrink_is_refused() {
        let layout = layout();
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, layout.slot_words() as u64 * 8).unwrap();
        assert!(refusal(&fd, &layout, 1).contains("not sealed"));
        let (sealed, _segments) = Segments::create(&layout, 1).unwrap();
        assert!(ftruncate(&sealed, 0).is_err());
    }

    #[test]
    #[should_panic(expected = "2 slots, not one of index 2")]
    fn a_slot_beyond_the_last_has_no_writer() {
        Arc::new(Segments::in_memory(&layout(), 2)).writer(2);
    }
}
