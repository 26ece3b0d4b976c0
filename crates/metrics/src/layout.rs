//! Where in a slot's segment each number lies.
//!
//! First comes what all slots share, a page, the [states](crate::ServerState) of all servers, a word for each pool,
//! the buckets of [users](crate::UserId) with limits and, where a pool's servers are copies, marks of writes, padded to
//! whole pages, then the segments of [`SLOTS_MAX`] slots, then one for the [board](crate::Board).
//!
//! A segment is, in words of 8 bytes: a header; then per pool its counters, gauges and histogram,
//! followed by the same for each of its servers; then the void, a pool and a server that are never
//! shown; then the audience; then per pool, the void included, its [details](detail); then what users with limits use
//! of them. It is padded to whole pages, so that workers share no cache line. With histograms of 9 KiB a segment takes
//! `73856 + (pools + 1) * (9864 + 49408) + (servers + 1) * 9472 + (limited users + 1) * 48` bytes; a pool with
//! `command_stats` takes 148224 more, 9264 for each of its prefixes, and 40 for each of its users. Only touched pages
//! are ever allocated.

use std::ops::Range;

use cashew_config::Snapshot;
use cashew_protocol::CommandClass;

use crate::audience;
use crate::histogram;
use crate::hot;
use crate::ids::{CommandCounter, PoolCounter, PoolGauge, ServerCounter, ServerGauge, UserCounter};
use crate::overlaps;
use crate::server_state;
use crate::users::{self, UserId, UserStat};

/// Raised whenever the same snapshot would be laid out differently, or a number changes its
/// meaning.
///
/// With `CASHEW_TEST_BUMP` in the compiler's environment it is one more, as in a later release.
/// This is for tests of upgrades only.
const VERSION: u64 = 22 + option_env!("CASHEW_TEST_BUMP").is_some() as u64;

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"cashew\0\0") | VERSION << 56;

/// Slots that there is address space for. A slot that was never used takes no memory.
pub const SLOTS_MAX: u32 = 256;

/// What all slots share: words of the page before the first slot.
pub(crate) mod common {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const FINGERPRINT: usize = 1;
    /// Slots ever used: the highest index plus one.
    pub(crate) const SLOTS: usize = 2;
    /// Behind them are the states of the servers.
    pub(crate) const WORDS: usize = super::PAGE_WORDS;
}

pub(crate) mod header {
    pub(crate) const PID: usize = 0;
    pub(crate) const EPOCH: usize = 1;
    pub(crate) const HEARTBEAT_MS: usize = 2;
    pub(crate) const STARTED_AT: usize = 3;
    pub(crate) const BUFFERED: usize = 4;
    pub(crate) const PRESSED: usize = 5;
    pub(crate) const WINDOW_US: usize = 6;
    pub(crate) const BUSY: usize = 7;
    pub(crate) const SESSIONS_IN: usize = 8;
    pub(crate) const SESSIONS_OUT: usize = 9;
    pub(crate) const SESSIONS_CUT: usize = 10;
    /// Entries of the audience.
    pub(crate) const AUDIENCE: usize = 11;
    pub(crate) const WORDS: usize = 16;
}

pub(crate) const POOL_GAUGES: usize = PoolCounter::ALL.len();
pub(crate) const POOL_HISTOGRAM: usize = POOL_GAUGES + PoolGauge::ALL.len();
pub(crate) const POOL_WORDS: usize = POOL_HISTOGRAM + histogram::WORDS;

pub(crate) const SERVER_GAUGES: usize = ServerCounter::ALL.len();
/// When the worker last tried to connect to the failing server, and when it last found that the
/// server works again: see [`Attempts`](crate::Attempts).
pub(crate) const SERVER_TRIED: usize = SERVER_GAUGES + ServerGauge::ALL.len();
pub(crate) const SERVER_REACHED: usize = SERVER_TRIED + 1;
pub(crate) const SERVER_HISTOGRAM: usize = SERVER_REACHED + 1;
pub(crate) const SERVER_WORDS: usize = SERVER_HISTOGRAM + histogram::WORDS;

/// What is counted of a pool beside its own numbers, from its place on.
pub(crate) mod detail {
    use super::{CommandClass, CommandCounter, UserCounter, histogram, hot};

    pub(crate) const HOT: usize = 0;
    /// Of each class of commands, and behind them of each prefix, counters and a histogram; only of pools
    /// with `command_stats`.
    pub(crate) const CLASSES: usize = HOT + hot::WORDS;
    pub(crate) const COUNTERS: usize = CommandCounter::ALL.len();
    pub(crate) const PART_WORDS: usize = COUNTERS + histogram::WORDS;
    pub(crate) const PREFIXES: usize = CLASSES + CommandClass::COUNT * PART_WORDS;

    /// Where a class has its counters, and behind them its histogram.
    #[inline]
    pub(crate) const fn class(class: CommandClass) -> usize {
        CLASSES + class as usize * PART_WORDS
    }

    /// Where a prefix has the same.
    #[inline]
    pub(crate) const fn prefix(prefix: usize) -> usize {
        PREFIXES + prefix * PART_WORDS
    }

    /// Of each user its counters, behind all else.
    pub(crate) const USER_WORDS: usize = UserCounter::ALL.len();

    pub(crate) const fn words(has_commands: bool, prefixes: usize) -> usize {
        if has_commands { prefix(prefixes) } else { CLASSES }
    }
}

/// Words in 4 KiB. On machines with larger pages neighbours share one, which is harmless.
const PAGE_WORDS: usize = 512;

/// A pool's place in every segment of one layout. It is compared for each reply, so it is small; where else something
/// is told of the pool, the layout knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolId {
    base: u32,
    /// Among the pools of the layout; the void comes last.
    number: u32,
}

/// A server's place in every segment of one layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServerId {
    base: u32,
    /// Among the servers of all pools.
    number: u32,
}

impl PoolId {
    #[inline]
    pub(crate) fn base(self) -> usize {
        self.base as usize
    }
}

impl ServerId {
    #[inline]
    pub(crate) fn base(self) -> usize {
        self.base as usize
    }

    /// Where its state is, among what all slots share.
    pub(crate) fn state(self) -> Range<usize> {
        let start = common::WORDS + self.number as usize * server_state::WORDS;
        start..start + server_state::WORDS
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pools: Vec<PoolLayout>,
    void_pool: u32,
    void_server: u32,
    void_detail: u32,
    audience: u32,
    /// Servers of all pools.
    servers: u32,
    /// Where the words of the first user with limits are; those of the others follow, and the void's.
    user_stats: u32,
    /// Users with limits of all pools.
    limited: u32,
    /// Words for marks of writes.
    overlaps: usize,
    slot_words: usize,
    fingerprint: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PoolLayout {
    base: u32,
    detail: u32,
    /// Whether requests are counted by class of commands, and by how many prefixes.
    has_commands: bool,
    prefixes: usize,
    users: usize,
    servers: usize,
    /// The number of its first server among those of all pools.
    first_server: u32,
    /// The same of its users with limits.
    first_limited: u32,
}

impl Layout {
    /// # Panics
    ///
    /// If the servers of all pools together number more than eight million.
    pub fn new(snapshot: &Snapshot) -> Self {
        let mut end = header::WORDS;
        let mut pools = Vec::with_capacity(snapshot.pools.len());
        let mut servers: u32 = 0;
        let mut limited: u32 = 0;
        for pool in &snapshot.pools {
            let base = u32::try_from(end).expect("a segment has at most 2^32 words");
            let count = pool.servers.len();
            pools.push(PoolLayout {
                base,
                detail: 0,
                has_commands: pool.command_stats,
                prefixes: pool.prefixes.len(),
                users: pool.user_rows().len(),
                servers: count,
                first_server: servers,
                first_limited: limited,
            });
            limited += pool.limited_users().count() as u32;
            servers += u32::try_from(count).expect("a segment has at most 2^32 words");
            end += POOL_WORDS + pool.servers.len() * SERVER_WORDS;
        }
        let void_pool = u32::try_from(end).expect("a segment has at most 2^32 words");
        end += POOL_WORDS;
        let void_server = u32::try_from(end).expect("a segment has at most 2^32 words");
        end += SERVER_WORDS;
        let audience = u32::try_from(end).expect("a segment has at most 2^32 words");
        end += audience::WORDS;
        for pool in &mut pools {
            pool.detail = u32::try_from(end).expect("a segment has at most 2^32 words");
            end += detail::words(pool.has_commands, pool.prefixes);
            end += pool.users * detail::USER_WORDS;
        }
        let void_detail = u32::try_from(end).expect("a segment has at most 2^32 words");
        end += detail::words(false, 0);
        let user_stats = u32::try_from(end).expect("a segment has at most 2^32 words");
        end += (limited as usize + 1) * UserStat::WORDS;
        assert!(u32::try_from(end).is_ok(), "a segment has at most 2^32 words");
        let slot_words = end.next_multiple_of(PAGE_WORDS);
        let has_copies = snapshot.pools.iter().any(|pool| pool.writes_to_all());
        let overlaps = if has_copies { overlaps::WORDS } else { 0 };
        let fingerprint = fingerprint(snapshot, overlaps);
        Self {
            pools,
            void_pool,
            void_server,
            void_detail,
            audience,
            servers,
            user_stats,
            limited,
            overlaps,
            slot_words,
            fingerprint,
        }
    }

    /// Size of one slot's segment in words of 8 bytes.
    pub fn slot_words(&self) -> usize {
        self.slot_words
    }

    /// Words that all slots share.
    pub(crate) fn common_words(&self) -> usize {
        self.overlaps().end.next_multiple_of(PAGE_WORDS)
    }

    /// Where writes leave their marks, among what all slots share.
    pub(crate) fn overlaps(&self) -> Range<usize> {
        let start = self.shared(UserId { number: self.limited }).end;
        start..start + self.overlaps
    }

    /// Where a user's buckets are, among what all slots share.
    pub(crate) fn shared(&self, user: UserId) -> Range<usize> {
        let start = self.opened(self.void_pool()) + 1;
        let start = start + user.number as usize * users::SHARED_WORDS;
        start..start + users::SHARED_WORDS
    }

    /// Where it is counted in a slot what a user uses.
    pub(crate) fn user_stats(&self, user: UserId) -> Range<usize> {
        let start = self.user_stats as usize + user.number as usize * UserStat::WORDS;
        start..start + UserStat::WORDS
    }

    /// A user by its place among those of its pool that have limits. Of a pool that the snapshot no
    /// longer has there is only the void's.
    pub fn user(&self, pool: PoolId, user: usize) -> UserId {
        let first =
            self.pools.get(pool.number as usize).map_or(self.limited, |it| it.first_limited);
        UserId { number: self.limited.min(first.saturating_add(user as u32)) }
    }

    pub(crate) fn users(&self) -> impl Iterator<Item = UserId> {
        (0..self.limited).map(|number| UserId { number })
    }

    /// Where it is told when a pool opened, among what all slots share: behind the states of servers, of which there is
    /// one for the void, too.
    pub(crate) fn opened(&self, pool: PoolId) -> usize {
        let states = (self.servers as usize + 1) * server_state::WORDS;
        common::WORDS + states + pool.number as usize
    }

    /// Where a pool's [details](detail) are.
    pub(crate) fn detail(&self, pool: PoolId) -> usize {
        self.pools.get(pool.number as usize).map_or(self.void_detail, |it| it.detail) as usize
    }

    /// Where the counters of a pool's user are. The void has no users: what they would count there is among its
    /// details, which nobody sees.
    pub(crate) fn user_row(&self, pool: PoolId, row: usize) -> usize {
        let Some(&PoolLayout { detail, has_commands, prefixes, .. }) =
            self.pools.get(pool.number as usize)
        else {
            return self.void_detail as usize;
        };
        detail as usize + detail::words(has_commands, prefixes) + row * detail::USER_WORDS
    }

    /// A digest of the pools, servers and users with limits, by name and order, of their statistics, and of whether any
    /// are copies.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// # Panics
    ///
    /// If the snapshot has no such pool.
    pub fn pool(&self, pool: usize) -> PoolId {
        PoolId { base: self.pools[pool].base, number: pool as u32 }
    }

    /// # Panics
    ///
    /// If the snapshot has no such pool or the pool no such server.
    pub fn server(&self, pool: usize, server: usize) -> ServerId {
        let PoolLayout { base, servers, first_server, .. } = self.pools[pool];
        assert!(server < servers, "pool {pool} has {servers} servers, not one of index {server}");
        let base = base + (POOL_WORDS + server * SERVER_WORDS) as u32;
        ServerId { base, number: first_server + server as u32 }
    }

    /// Where a pool counts that the snapshot no longer has; never shown.
    pub fn void_pool(&self) -> PoolId {
        PoolId { base: self.void_pool, number: self.pools.len() as u32 }
    }

    /// Where a server counts that the snapshot no longer has; never shown.
    pub fn void_server(&self) -> ServerId {
        ServerId { base: self.void_server, number: self.servers }
    }

    /// Whether requests of a pool are counted by class of commands.
    ///
    /// # Panics
    ///
    /// If the snapshot has no such pool.
    pub fn has_commands(&self, pool: usize) -> bool {
        self.pools[pool].has_commands
    }

    /// How many prefixes of a pool are counted.
    ///
    /// # Panics
    ///
    /// If the snapshot has no such pool.
    pub fn prefixes(&self, pool: usize) -> usize {
        self.pools[pool].prefixes
    }

    pub(crate) fn audience(&self) -> Range<usize> {
        self.audience as usize..self.audience as usize + audience::WORDS
    }

    pub(crate) fn pools(&self) -> impl Iterator<Item = PoolId> {
        (0..self.pools.len()).map(|pool| self.pool(pool))
    }

    pub(crate) fn servers(&self) -> impl Iterator<Item = ServerId> {
        (0..self.pools.len()).flat_map(move |pool| {
            (0..self.pools[pool].servers).map(move |server| self.server(pool, server))
        })
    }
}

/// FNV-1a, 64 bits. Lengths are hashed before names so that no two lists of names look alike.
fn fingerprint(snapshot: &Snapshot, overlaps: usize) -> u64 {
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    let sizes = [POOL_GAUGES, POOL_HISTOGRAM, SERVER_GAUGES, SERVER_HISTOGRAM, histogram::WORDS];
    for size in sizes.into_iter().chain([
        detail::PREFIXES,
        detail::PART_WORDS,
        detail::USER_WORDS,
        UserStat::WORDS,
    ]) {
        hash.number(size);
    }
    hash.number(overlaps);
    hash.number(snapshot.pools.len());
    for pool in &snapshot.pools {
        hash.text(&pool.name);
        hash.number(usize::from(pool.command_stats));
        hash.number(pool.prefixes.len());
        pool.prefixes.iter().for_each(|prefix| hash.text(prefix));
        let users = pool.user_rows();
        hash.number(users.len());
        users.iter().for_each(|user| hash.text(user));
        hash.number(pool.servers.len());
        for server in &pool.servers {
            hash.text(&server.name);
        }
        hash.number(pool.limited_users().count());
        for user in pool.limited_users() {
            hash.text(&user.name);
        }
    }
    hash.0
}

struct Fnv(u64);

impl Fnv {
    fn text(&mut self, text: &str) {
        self.number(text.len());
        self.bytes(text.as_bytes());
    }

    fn number(&mut self, number: usize) {
        self.bytes(&(number as u64).to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::snapshot;

    #[test]
    fn places_do_not_overlap() {
        let layout = Layout::new(&snapshot(&[("a", &["x", "y"]), ("bb", &["x"])]));
        let mut areas: Vec<_> = layout.pools().map(|id| (id.base(), POOL_WORDS)).collect();
        areas.extend(layout.servers().map(|id| (id.base(), SERVER_WORDS)));
        areas.push((layout.void_pool().base(), POOL_WORDS));
        areas.push((layout.void_server().base(), SERVER_WORDS));
        areas.sort_unstable();
        areas.push((layout.audience().start, audience::WORDS));
        assert_eq!(areas.len(), 8);
        assert_eq!(areas[0].0, header::WORDS);
        assert!(areas.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0));
        let (base, words) = areas[7];
        assert!(base + words <= layout.slot_words());
        assert_eq!(layout.slot_words() % PAGE_WORDS, 0);
    }

    #[test]
    fn users_of_a_pool_that_is_gone_count_where_nobody_sees_it() {
        let layout = Layout::new(&snapshot(&[("a", &["x"])]));
        let (void, start) = (layout.void_pool(), layout.detail(layout.void_pool()));
        let row = layout.user_row(void, 7);
        assert!(row >= start && row + detail::USER_WORDS <= start + detail::words(false, 0));
    }

    #[test]
    fn the_fingerprint_depends_on_names_and_order() {
        let all = [
            snapshot(&[("a", &["x", "y"])]),
            snapshot(&[("a", &["y", "x"])]),
            snapshot(&[("a", &["xy"])]),
            snapshot(&[("a", &["x"]), ("y", &[])]),
            snapshot(&[("b", &["x", "y"])]),
        ];
        for (at, one) in all.iter().enumerate() {
            for other in &all[at + 1..] {
                assert_ne!(Layout::new(one).fingerprint(), Layout::new(other).fingerprint());
            }
        }
        let mut later = all[0].clone();
        later.epoch += 1;
        assert_eq!(Layout::new(&later), Layout::new(&all[0]));
    }

    #[test]
    #[should_panic(expected = "not one of index 2")]
    fn a_server_of_another_pool_is_refused() {
        Layout::new(&snapshot(&[("a", &["x", "y"]), ("bb", &["x"])])).server(0, 2);
    }

    #[test]
    fn the_documented_sizes_hold() {
        assert_eq!((POOL_WORDS * 8, SERVER_WORDS * 8, header::WORDS * 8), (9864, 9472, 128));
        let layout = Layout::new(&snapshot(&[("a", &["x", "y"]), ("bb", &["x"])]));
        let bytes: usize = 128 + (2 + 1) * 9864 + (3 + 1) * 9472;
        let bytes = bytes + audience::WORDS * 8 + (2 + 1) * 49_408 + 48;
        assert_eq!(audience::WORDS * 8, 73_728);
        assert_eq!((detail::words(false, 0) * 8, detail::PART_WORDS * 8), (49_408, 9264));
        assert_eq!((detail::words(true, 0) - detail::words(false, 0)) * 8, 148_224);
        assert_eq!(layout.slot_words() * 8, bytes.next_multiple_of(4096));
        let mut counting = snapshot(&[("a", &["x", "y"]), ("bb", &["x"])]);
        counting.pools[1].command_stats = true;
        counting.pools[1].prefixes = vec!["p".to_owned()];
        let counting = Layout::new(&counting);
        let bytes = bytes + 148_224 + 9264;
        assert_eq!(counting.slot_words() * 8, bytes.next_multiple_of(4096));
        assert_ne!(counting.fingerprint(), layout.fingerprint());
    }
}
