//! What outlives configurations and binaries: the few numbers that all workers write, and the
//! outcomes that the master records.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};

use crate::audit::AuditTrail;
use crate::events::Events;
use crate::exports::Exports;
use crate::generations::Generations;
use crate::hot_acts::HotActs;
use crate::mapping::Mapping;
use crate::passages::Passages;
use crate::requests::RequestRing;

/// Quota numbers are below this.
pub const QUOTAS_MAX: u32 = 4096;

/// How many bytes of a failure's reason are kept.
pub const FAILURE_MAX: usize = 256;

/// The most pools whose clients may be paused at a time.
pub const PAUSES_MAX: usize = 15;

/// How often a reader retries to see the reloads between two writes.
const READS_MAX: u32 = 1000;

/// Raised whenever a number changes its place or its meaning.
const VERSION: u64 = 1;
const MAGIC: u64 = u64::from_le_bytes(*b"csh-all\0") | VERSION << 56;

/// What the word of an instance that stops says.
const STOPS: u64 = 1;
const DRAINS: u64 = 2;

mod word {
    pub(super) const MAGIC: usize = 0;
    /// Entries that are 0 are free.
    pub(super) const PAUSES: usize = 1;
    pub(super) const CLIENT_ID: usize = 16;
    /// In the time of `monotonic_ms`. 0 before the first, and if the admin process's version has no
    /// heartbeat.
    pub(super) const ADMIN_BEAT: usize = 24;
    pub(super) const LOG_LINES_LOST: usize = 25;
    /// 1 since the instance stops, 2 while it drains before.
    pub(super) const STOPPING: usize = 26;
    /// One for each kind of child.
    pub(super) const RESTARTS: usize = 27;
    /// Apart from the rest, since it is written at every accept.
    pub(super) const QUOTAS: usize = 32;
    /// Odd while the master writes what follows.
    pub(super) const RELOADS_VERSION: usize = QUOTAS + super::QUOTAS_MAX as usize;
    pub(super) const RELOADS_OK: usize = RELOADS_VERSION + 1;
    pub(super) const RELOADS_FAILED: usize = RELOADS_VERSION + 2;
    /// In seconds since 1970, 0 before the first.
    pub(super) const RELOADED_AT: usize = RELOADS_VERSION + 3;
    /// 1 if the last one was a success.
    pub(super) const RELOAD_IS_OK: usize = RELOADS_VERSION + 4;
    pub(super) const FAILURE_BYTES: usize = RELOADS_VERSION + 5;
    pub(super) const FAILURE: usize = RELOADS_VERSION + 6;
    /// Up to here it was in versions without regions.
    pub(super) const COUNT_MIN: usize = FAILURE + super::FAILURE_MAX / 8;
    pub(super) const PASSAGES: usize = COUNT_MIN.next_multiple_of(512);
    /// Up to here it was in versions without events.
    pub(super) const EVENTS: usize = PASSAGES + crate::passages::WORDS;
    /// Up to here it was in versions without single requests.
    pub(super) const REQUESTS: usize = EVENTS + crate::events::WORDS;
    /// Up to here it was in versions without exports.
    pub(super) const EXPORTS: usize = REQUESTS + crate::requests::WORDS;
    /// Up to here it was in versions without an audit log.
    pub(super) const AUDIT: usize = EXPORTS + crate::exports::WORDS;
    /// Up to here it was in versions without caches.
    pub(super) const GENERATIONS: usize = (AUDIT + crate::audit::WORDS).next_multiple_of(512);
    /// Up to here it was in versions that did nothing about hot keys.
    pub(super) const HOT_ACTS: usize = GENERATIONS + crate::generations::WORDS;
    pub(super) const COUNT: usize = HOT_ACTS + crate::hot_acts::WORDS;
}

/// The processes that the master starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildKind {
    Worker,
    Admin,
    Discovery,
}

impl ChildKind {
    pub const ALL: [Self; 3] = [Self::Worker, Self::Admin, Self::Discovery];

    pub fn name(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Admin => "admin",
            Self::Discovery => "discovery",
        }
    }
}

/// For how long the clients of a pool are paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// In the time of [`monotonic_ms`](crate::monotonic_ms).
    pub until_ms: u64,
    /// Reads are not paused.
    pub writes_only: bool,
}

impl Pause {
    const QUOTA_BITS: u32 = QUOTAS_MAX.trailing_zeros();
    const UNTIL_MAX_MS: u64 = u64::MAX >> (Self::QUOTA_BITS + 1);

    /// In one word, which is not 0.
    fn word(self, quota: u32) -> u64 {
        let until_ms = self.until_ms.clamp(1, Self::UNTIL_MAX_MS);
        (until_ms << 1 | u64::from(self.writes_only)) << Self::QUOTA_BITS | u64::from(quota)
    }

    fn of_word(word: u64) -> (u32, Self) {
        let quota = word as u32 % QUOTAS_MAX;
        let rest = word >> Self::QUOTA_BITS;
        (quota, Self { until_ms: rest >> 1, writes_only: rest % 2 == 1 })
    }
}

/// The outcomes of an instance's reloads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloads {
    pub ok: u64,
    pub failed: u64,
    /// The last one.
    pub last: Option<LastReload>,
    /// The reason of the last failure, possibly cut.
    pub failure: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastReload {
    /// In seconds since 1970.
    pub at: u64,
    pub is_ok: bool,
}

/// What all processes of an instance share for its life: the next client id, the number of clients
/// of each pool over all workers, pauses, the outcomes of reloads, the admin process's heartbeat,
/// lost log lines, and [events](Events). A quota is a pool's number for this, below [`QUOTAS_MAX`].
#[derive(Clone)]
pub struct Shared {
    mapping: Arc<Mapping>,
}

impl Shared {
    /// Creates it, for other processes to [open](Self::open) by the descriptor.
    pub fn create() -> io::Result<(OwnedFd, Self)> {
        let fd = memfd_create("cashew-shared", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, word::COUNT as u64 * 8)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Mapping::shared(fd.as_fd(), word::COUNT)?;
        Ok((fd, Self::initialized(mapping)))
    }

    /// Opens what [`create`](Self::create) made, and refuses everything else.
    pub fn open(fd: impl AsFd) -> io::Result<Self> {
        let words = usize::try_from(fstat(&fd)?.st_size).unwrap_or(0) / 8;
        if words < word::COUNT_MIN {
            return Err(invalid("what all workers share is cut short"));
        }
        if !fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(invalid("what all workers share is not sealed against shrinking"));
        }
        let mapping = Mapping::shared(fd.as_fd(), words.min(word::COUNT))?;
        if mapping.words()[word::MAGIC].load(Relaxed) != MAGIC {
            return Err(invalid("what all workers share is of another version of cashew"));
        }
        Ok(Self { mapping: Arc::new(mapping) })
    }

    /// For tests: private to this process.
    pub fn in_memory() -> Self {
        Self::initialized(Mapping::heap(word::COUNT))
    }

    fn initialized(mapping: Mapping) -> Self {
        mapping.words()[word::MAGIC].store(MAGIC, Relaxed);
        Self { mapping: Arc::new(mapping) }
    }

    /// The writes that are under way to several regions. None in memory that an older version made.
    pub fn passages(&self) -> Passages {
        Passages::new(&self.mapping, word::PASSAGES)
    }

    /// What tells that keys were written. Nothing in memory that an older version made.
    pub fn generations(&self) -> Generations {
        Generations::new(&self.mapping, word::GENERATIONS)
    }

    /// What is done about hot keys. Nothing in memory that an older version made.
    pub fn hot_acts(&self) -> HotActs {
        HotActs::new(&self.mapping, word::HOT_ACTS)
    }

    /// What has changed lately. Nothing in memory that an older version made.
    pub fn events(&self) -> Events {
        Events::new(&self.mapping, word::EVENTS)
    }

    /// The newest slow requests. None in memory that an older version made.
    pub fn slow_requests(&self) -> RequestRing {
        RequestRing::slow(&self.mapping, word::REQUESTS)
    }

    /// The newest samples of requests, while somebody wants them. None in memory that an older version made.
    pub fn sampled_requests(&self) -> RequestRing {
        RequestRing::samples(&self.mapping, word::REQUESTS)
    }

    /// What the admin process has made of single requests. Nothing in memory that an older version made.
    pub fn exports(&self) -> Exports {
        Exports::new(&self.mapping, word::EXPORTS)
    }

    /// What is on its way to the audit log. Nothing in memory that an older version made.
    pub fn audit(&self) -> AuditTrail {
        AuditTrail::new(&self.mapping, word::AUDIT)
    }

    /// An id that no other client ever has; the first is 1.
    pub fn next_client_id(&self) -> u64 {
        self.mapping.words()[word::CLIENT_ID].fetch_add(1, Relaxed) + 1
    }

    /// Renews the admin process's heartbeat.
    pub fn admin_beats(&self, now_ms: u64) {
        self.mapping.words()[word::ADMIN_BEAT].store(now_ms, Relaxed);
    }

    /// The admin process's last heartbeat.
    pub fn admin_beat_ms(&self) -> u64 {
        self.mapping.words()[word::ADMIN_BEAT].load(Relaxed)
    }

    /// The instance stops. For the master.
    pub fn stops(&self) {
        self.mapping.words()[word::STOPPING].store(STOPS, Relaxed);
    }

    /// Whether the instance stops.
    pub fn is_stopping(&self) -> bool {
        self.mapping.words()[word::STOPPING].load(Relaxed) == STOPS
    }

    /// The instance is to stop, and not ready meanwhile. For the master.
    pub fn drains(&self) {
        self.mapping.words()[word::STOPPING].store(DRAINS, Relaxed);
    }

    /// It is not to stop after all. For the master.
    pub fn stays(&self) {
        self.mapping.words()[word::STOPPING].store(0, Relaxed);
    }

    /// Whether the instance drains. A process of a version without this takes it for one that stops.
    pub fn is_draining(&self) -> bool {
        self.mapping.words()[word::STOPPING].load(Relaxed) == DRAINS
    }

    /// Counts lines that a process could not write to its log.
    pub fn add_log_lines_lost(&self, lines: u64) {
        if lines > 0 {
            self.mapping.words()[word::LOG_LINES_LOST].fetch_add(lines, Relaxed);
        }
    }

    /// Lines that could not be written to the log, of all processes.
    pub fn log_lines_lost(&self) -> u64 {
        self.mapping.words()[word::LOG_LINES_LOST].load(Relaxed)
    }

    /// Counts a child that ended though it was not to, and is started anew. For the master alone.
    pub fn add_restart(&self, kind: ChildKind) {
        self.mapping.words()[word::RESTARTS + kind as usize].fetch_add(1, Relaxed);
    }

    /// How often children were started anew in the life of the instance.
    pub fn restarts(&self, kind: ChildKind) -> u64 {
        self.mapping.words()[word::RESTARTS + kind as usize].load(Relaxed)
    }

    /// Counts one client more, unless there are `limit` already; 0 is no limit. Returns whether it
    /// did.
    pub fn take(&self, quota: u32, limit: u32) -> bool {
        // One step, not an addition that is undone if too large: that would briefly refuse others
        // within the limit.
        self.quota(quota)
            .fetch_update(Relaxed, Relaxed, |taken| {
                (limit == 0 || taken < u64::from(limit)).then_some(taken + 1)
            })
            .is_ok()
    }

    /// Undoes one successful [`take`](Self::take).
    pub fn give(&self, quota: u32) {
        self.adjust(quota, -1);
    }

    pub fn taken(&self, quota: u32) -> u64 {
        self.quota(quota).load(Relaxed)
    }

    /// Corrects the number of clients; it does not get below 0.
    pub fn adjust(&self, quota: u32, by: i64) {
        let corrected = |taken: u64| Some(taken.saturating_add_signed(by));
        self.quota(quota)
            .fetch_update(Relaxed, Relaxed, corrected)
            .expect("there is always a corrected number");
    }

    /// The pause of a pool's clients, if there is one.
    pub fn pause(&self, quota: u32, now_ms: u64) -> Option<Pause> {
        let pauses = self.pauses().iter().map(|word| word.load(Relaxed)).filter(|&word| word != 0);
        let pauses = pauses.map(Pause::of_word);
        let mut own = pauses.filter(|(of, pause)| *of == quota && pause.until_ms > now_ms);
        own.next().map(|(_, pause)| pause)
    }

    /// Sets or ends the pause of a pool's clients. Returns whether there was room for it.
    pub fn set_pause(&self, quota: u32, pause: Option<Pause>, now_ms: u64) -> bool {
        let mut to_set = pause.map(|pause| pause.word(quota));
        for word in self.pauses() {
            let set = word.fetch_update(Relaxed, Relaxed, |before| {
                let (of, old) = Pause::of_word(before);
                let is_own = before != 0 && of == quota;
                let is_free = before == 0 || is_own || old.until_ms <= now_ms;
                match to_set {
                    Some(to_set) if is_free => Some(to_set),
                    _ => is_own.then_some(0),
                }
            });
            if set.is_ok() {
                to_set = None;
            }
        }
        to_set.is_none()
    }

    fn pauses(&self) -> &[AtomicU64] {
        &self.mapping.words()[word::PAUSES..word::PAUSES + PAUSES_MAX]
    }

    /// Counts a reload, with the reason if it failed. For the master alone.
    pub fn add_reload(&self, at: u64, failure: Option<&str>) {
        let words = self.mapping.words();
        let add = |at: usize| words[at].store(words[at].load(Relaxed) + 1, Relaxed);
        add(word::RELOADS_VERSION);
        fence(Release);
        add(if failure.is_none() { word::RELOADS_OK } else { word::RELOADS_FAILED });
        words[word::RELOADED_AT].store(at, Relaxed);
        words[word::RELOAD_IS_OK].store(u64::from(failure.is_none()), Relaxed);
        if let Some(why) = failure {
            let is_whole = |end: &usize| why.is_char_boundary(*end);
            let end = (0..=why.len().min(FAILURE_MAX)).rfind(is_whole).expect("0 is one");
            let why = &why[..end];
            words[word::FAILURE_BYTES].store(why.len() as u64, Relaxed);
            for (word, bytes) in words[word::FAILURE..].iter().zip(why.as_bytes().chunks(8)) {
                let mut padded = [0; 8];
                padded[..bytes.len()].copy_from_slice(bytes);
                word.store(u64::from_le_bytes(padded), Relaxed);
            }
        }
        words[word::RELOADS_VERSION].store(words[word::RELOADS_VERSION].load(Relaxed) + 1, Release);
    }

    /// The outcomes of reloads. Nothing, as before the first, if the master died while it wrote
    /// them.
    pub fn reloads(&self) -> Reloads {
        let version = &self.mapping.words()[word::RELOADS_VERSION];
        for _ in 0..READS_MAX {
            let before = version.load(Acquire);
            let reloads = self.read_reloads();
            fence(Acquire);
            if before.is_multiple_of(2) && version.load(Relaxed) == before {
                return reloads;
            }
            std::thread::yield_now();
        }
        Reloads::default()
    }

    /// Whatever is there; it is inconsistent while the master writes.
    fn read_reloads(&self) -> Reloads {
        let read = |at: usize| self.mapping.words()[at].load(Relaxed);
        let at = Some(read(word::RELOADED_AT)).filter(|&at| at != 0);
        let mut why: Vec<u8> =
            (word::FAILURE..word::COUNT_MIN).flat_map(|at| read(at).to_le_bytes()).collect();
        why.truncate(read(word::FAILURE_BYTES) as usize);
        let failed = read(word::RELOADS_FAILED);
        Reloads {
            ok: read(word::RELOADS_OK),
            failed,
            last: at.map(|at| LastReload { at, is_ok: read(word::RELOAD_IS_OK) == 1 }),
            failure: (failed > 0).then(|| String::from_utf8_lossy(&why).into_owned()),
        }
    }

    /// # Panics
    ///
    /// If there is no such quota.
    fn quota(&self, quota: u32) -> &AtomicU64 {
        assert!(quota < QUOTAS_MAX, "{QUOTAS_MAX} quotas, not one of index {quota}");
        &self.mapping.words()[word::QUOTAS + quota as usize]
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::AtomicU32;
    use std::thread;

    use super::*;
    use crate::testing::repetitions;

    const THREADS: usize = 4;

    #[test]
    #[cfg_attr(miri, ignore = "it has no memory of descriptors")]
    fn pauses_are_seen_by_all_until_they_are_over() {
        let (fd, shared) = Shared::create().unwrap();
        let other = Shared::open(&fd).unwrap();
        let pause = |until_ms, writes_only| Some(Pause { until_ms, writes_only });
        assert_eq!(other.pause(0, 0), None);
        assert!(shared.set_pause(0, pause(500, true), 100));
        assert!(shared.set_pause(QUOTAS_MAX - 1, pause(u64::MAX, false), 100));
        assert_eq!(other.pause(0, 499), pause(500, true));
        assert_eq!(other.pause(0, 500), None);
        assert_eq!(other.pause(1, 0), None);
        let endless = other.pause(QUOTAS_MAX - 1, 1 << 50).unwrap();
        assert!(!endless.writes_only && endless.until_ms > 1 << 50);
        assert!(other.set_pause(0, pause(600, false), 100));
        assert_eq!(shared.pause(0, 550), pause(600, false));
        assert!(other.set_pause(0, None, 100));
        assert_eq!(shared.pause(0, 0), None);
        // Expired pauses make room.
        for quota in 1..PAUSES_MAX as u32 {
            assert!(shared.set_pause(quota, pause(700, true), 100), "{quota}");
        }
        assert!(!shared.set_pause(77, pause(800, true), 699));
        assert_eq!(shared.pause(77, 0), None);
        assert!(shared.set_pause(3, pause(800, false), 699));
        assert!(shared.set_pause(77, pause(800, true), 700));
        assert_eq!(shared.pause(77, 700), pause(800, true));
        assert_eq!(shared.pause(3, 700), pause(800, false));
        assert!(shared.set_pause(78, None, 0), "there is nothing to forget");
    }

    #[test]
    #[cfg_attr(miri, ignore = "it has no memory of descriptors")]
    fn heartbeats_and_lost_lines_disturb_nobody() {
        let (fd, shared) = Shared::create().unwrap();
        let other = Shared::open(&fd).unwrap();
        let id = shared.next_client_id();
        shared.admin_beats(u64::MAX);
        shared.add_log_lines_lost(3);
        other.add_log_lines_lost(4);
        assert_eq!((other.admin_beat_ms(), shared.log_lines_lost()), (u64::MAX, 7));
        shared.add_restart(ChildKind::Discovery);
        other.add_restart(ChildKind::Worker);
        other.add_restart(ChildKind::Worker);
        assert_eq!(ChildKind::ALL.map(|child| shared.restarts(child)), [2, 0, 1]);
        assert!(!other.is_stopping() && !other.is_draining());
        shared.drains();
        assert!(!other.is_stopping() && other.is_draining());
        shared.stays();
        assert!(!other.is_stopping() && !other.is_draining());
        shared.stops();
        assert!(other.is_stopping() && !other.is_draining());
        assert_eq!(other.next_client_id(), id + 1);
        assert!((0..QUOTAS_MAX).all(|quota| shared.taken(quota) == 0));
        assert!((0..QUOTAS_MAX).all(|quota| shared.pause(quota, 0).is_none()));
    }

    #[test]
    #[cfg_attr(miri, ignore = "it has no memory of descriptors")]
    fn the_limit_is_never_exceeded_and_always_reached() {
        const LIMIT: u32 = 3;
        let (fd, shared) = Shared::create().unwrap();
        let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let shared = Shared::open(&fd).unwrap();
                    for _ in 0..repetitions(50_000) {
                        if shared.take(7, LIMIT) {
                            most.fetch_max(inside.fetch_add(1, Relaxed) + 1, Relaxed);
                            inside.fetch_sub(1, Relaxed);
                            shared.give(7);
                        }
                    }
                });
            }
        });
        assert!(most.into_inner() <= LIMIT);
        assert_eq!(shared.taken(7), 0);
        for _ in 0..LIMIT {
            assert!(shared.take(7, LIMIT));
        }
        assert!(!shared.take(7, LIMIT));
        assert!(shared.take(6, LIMIT) && shared.take(8, LIMIT), "others are not concerned");
    }

    #[test]
    fn clients_within_the_limit_are_never_refused() {
        // As many threads as places, each holding one at a time: none may be refused, however many
        // others beyond the limit are.
        let shared = Shared::in_memory();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..repetitions(50_000) {
                        assert!(shared.take(0, 2));
                        assert!(!shared.take(0, 1), "one at least is taken");
                        shared.give(0);
                    }
                });
            }
        });
    }

    #[test]
    fn ids_are_unique_and_begin_with_1() {
        let shared = Shared::in_memory();
        let ids: Vec<u64> = thread::scope(|scope| {
            let take =
                || (0..repetitions(10_000)).map(|_| shared.next_client_id()).collect::<Vec<_>>();
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(take)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let unique: HashSet<u64> = ids.iter().copied().collect();
        assert_eq!(unique.len(), ids.len());
        assert_eq!((ids.iter().min(), ids.iter().max()), (Some(&1), Some(&(ids.len() as u64))));
    }

    #[test]
    fn without_a_limit_clients_are_counted_still() {
        let shared = Shared::in_memory();
        for _ in 0..5 {
            assert!(shared.take(4095, 0));
        }
        assert!(!shared.take(4095, 5), "a limit that comes later counts who is there");
        shared.adjust(4095, -3);
        assert_eq!(shared.taken(4095), 2);
        shared.adjust(4095, -3);
        assert_eq!(shared.taken(4095), 0);
        shared.adjust(4095, 2);
        shared.give(4095);
        assert_eq!(shared.taken(4095), 1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "it has no memory of descriptors")]
    fn reloads_are_recorded() {
        let (fd, master) = Shared::create().unwrap();
        let admin = Shared::open(fd).unwrap();
        assert_eq!(admin.reloads(), Reloads::default());
        master.add_reload(1000, None);
        let last = Some(LastReload { at: 1000, is_ok: true });
        assert_eq!(admin.reloads(), Reloads { ok: 1, last, ..Reloads::default() });
        let failure = Some("it is tüo hard".to_owned());
        master.add_reload(1001, failure.as_deref());
        let last = Some(LastReload { at: 1001, is_ok: false });
        assert_eq!(admin.reloads(), Reloads { ok: 1, failed: 1, last, failure: failure.clone() });
        master.add_reload(1002, None);
        let last = Some(LastReload { at: 1002, is_ok: true });
        assert_eq!(admin.reloads(), Reloads { ok: 2, failed: 1, last, failure });
        // Cut at the beginning of a letter.
        let why = format!("{}ü", "x".repeat(FAILURE_MAX - 1));
        master.add_reload(1003, Some(&why));
        assert_eq!(admin.reloads().failure.unwrap(), "x".repeat(FAILURE_MAX - 1));
        master.add_reload(1004, Some("short"));
        assert_eq!(admin.reloads().failure.unwrap(), "short");
    }

    #[test]
    fn reloads_are_never_seen_half_written() {
        let shared = Shared::in_memory();
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for at in 1..repetitions(20_000) as u64 {
                    shared.add_reload(at, Some(&at.to_string().repeat(40)));
                }
            });
            while !writer.is_finished() {
                let reloads = shared.reloads();
                // Nothing was seen at all if the writer took that long.
                let Some(last) = reloads.last else { continue };
                assert_eq!(reloads.failed, last.at);
                let expected = last.at.to_string().repeat(40);
                assert_eq!(reloads.failure.unwrap(), &expected[..expected.len().min(FAILURE_MAX)]);
            }
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "it has no memory of descriptors")]
    fn memory_of_a_version_without_regions_and_events_is_taken_as_it_is() {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, word::COUNT_MIN as u64 * 8).unwrap();
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let mapping = Mapping::shared(fd.as_fd(), word::COUNT_MIN).unwrap();
        mapping.words()[word::MAGIC].store(MAGIC, Relaxed);
        let shared = Shared::open(&fd).unwrap();
        shared.add_reload(1, Some("why"));
        assert_eq!(shared.reloads().failure.as_deref(), Some("why"));
        assert_eq!((shared.events().since(0), shared.events().newest()), (vec![], 0));
    }

    #[test]
    #[cfg_attr(miri, ignore = "it has no memory of descriptors")]
    fn foreign_memory_is_refused() {
        let (fd, shared) = Shared::create().unwrap();
        shared.mapping.words()[word::MAGIC].store(MAGIC + (1 << 56), Relaxed);
        let why = Shared::open(&fd).err().expect("refused").to_string();
        assert!(why.contains("another version"), "{why}");
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(Shared::open(&fd).is_err());
        ftruncate(&fd, word::COUNT as u64 * 8).unwrap();
        let why = Shared::open(&fd).err().expect("refused").to_string();
        assert!(why.contains("not sealed"), "{why}");
    }
}
