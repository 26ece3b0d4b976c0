//! What discovery has found out about the servers of groups, for all processes to read.
//!
//! It lies in a segment of its own behind those of the slots, at the places that pools and servers
//! have in every segment, and has one writer: discovery. Readers need no lock. A number is read
//! whole, and what belongs together is written in an order in which a reader that sees the later
//! part sees the earlier, too.
//!
//! Discovery asks the servers of a pool again and again. Such *polls* are numbered: numbers only
//! grow, also over restarts of discovery and from one board to the next. The number of a poll is
//! published before anybody is asked. So whoever learns of an event, for example by the reply to a
//! write, and then reads the number of the last poll that has begun, knows that all polls with higher
//! numbers ask after the event.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

use crate::layout::{PoolId, ServerId};
use crate::mapping::View;

/// A board that has not been written for longer says nothing any more: discovery is dead, or hangs.
pub const BOARD_STALE_AFTER_MS: u64 = 3000;

/// Words of a pool.
mod pool_word {
    pub(super) const BEGUN: usize = 0;
    /// In the time of `monotonic_ms`.
    pub(super) const BEAT: usize = 1;
}

/// Words of a server.
mod server_word {
    pub(super) const VERDICT: usize = 0;
    /// The number of the last poll that it has answered.
    pub(super) const POLLED: usize = 1;
    /// The poll whose position of the primary it has reached, and that primary.
    pub(super) const COVERS: usize = 2;
    pub(super) const LAG: usize = 3;
    /// Seconds, as the server says.
    pub(super) const LINK_DOWN: usize = 4;
    /// In the time of `monotonic_ms`.
    pub(super) const RELAXED_UNTIL: usize = 5;
}

/// What a number stands for that is not known.
const UNKNOWN: u64 = u64::MAX;

/// Bits of the words that name a primary beside something else.
const PRIMARY_BITS: u32 = 16;

/// What a server says that it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemberRole {
    #[default]
    Unknown,
    Primary,
    Replica,
}

impl MemberRole {
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Primary => "primary",
            Self::Replica => "replica",
        }
    }
}

/// Whether a server may answer reads in its primary's place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fitness {
    /// It has not been asked yet, or does not tell.
    #[default]
    Unknown,
    Fit,
    /// It does not answer.
    Unreachable,
    /// It takes writes by its own word.
    NotReplica,
    /// It has not had a copy since it started.
    NeverSynced,
    /// Its connection to the primary has been down for too long.
    LinkDown,
    /// It is taking over a copy.
    Syncing,
    /// It is reading its file.
    Loading,
    /// What it has is of another history than the primary's.
    OtherHistory,
    /// It is too far behind.
    Lagging,
    /// Sentinels say that it is down.
    SaidDown,
}

impl Fitness {
    const ALL: [Self; 11] = [
        Self::Unknown,
        Self::Fit,
        Self::Unreachable,
        Self::NotReplica,
        Self::NeverSynced,
        Self::LinkDown,
        Self::Syncing,
        Self::Loading,
        Self::OtherHistory,
        Self::Lagging,
        Self::SaidDown,
    ];

    /// In a word, as the status tells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Fit => "fit",
            Self::Unreachable => "unreachable",
            Self::NotReplica => "not a replica",
            Self::NeverSynced => "never synced",
            Self::LinkDown => "link down",
            Self::Syncing => "syncing",
            Self::Loading => "loading",
            Self::OtherHistory => "other history",
            Self::Lagging => "lagging",
            Self::SaidDown => "down by Sentinel",
        }
    }

    /// Whether it is known that it may not.
    pub fn is_unfit(self) -> bool {
        !matches!(self, Self::Unknown | Self::Fit)
    }
}

/// What is known of a server of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberState {
    pub role: MemberRole,
    pub fitness: Fitness,
    /// Of a replica: whether its connection to its primary is up.
    pub is_link_up: Option<bool>,
    /// For how many seconds it has been down; `None` if it is not, or never was up.
    pub link_down_secs: Option<u64>,
    pub is_loading: bool,
    pub is_syncing: bool,
    /// Whether its history is the primary's.
    pub is_of_primary: Option<bool>,
    /// Bytes that it is behind the primary.
    pub lag: Option<u64>,
}

/// How far a replica has come, by the last poll that it has answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The number of that poll, or 0.
    pub polled: u64,
    /// The newest poll by which the primary had no more than the replica has, or 0.
    pub covers: u64,
    /// The server that it was measured by, as its pool counts them.
    pub primary: u16,
}

/// Reads the board; [`BoardWriter`] writes it.
#[derive(Clone)]
pub struct Board(View);

impl Board {
    pub(crate) fn new(view: View) -> Self {
        Self(view)
    }

    /// The number of the last poll of a pool that has begun; 0 if none has.
    #[inline]
    pub fn begun(&self, pool: PoolId) -> u64 {
        // What is known of is before this.
        fence(SeqCst);
        self.of_pool(pool)[pool_word::BEGUN].load(Acquire)
    }

    /// Whether somebody writes what is here of a pool.
    #[inline]
    pub fn is_kept(&self, pool: PoolId, now_ms: u64) -> bool {
        let beat = self.of_pool(pool)[pool_word::BEAT].load(Relaxed);
        beat > 0 && now_ms.saturating_sub(beat) < BOARD_STALE_AFTER_MS
    }

    /// Whether a server may answer reads in its primary's place, by a poll with at least that number.
    #[inline]
    pub fn fitness(&self, server: ServerId, since: u64) -> Option<Fitness> {
        let words = self.of_server(server);
        // What comes of a poll is written before its number.
        let polled = words[server_word::POLLED].load(Acquire);
        let fitness = fitness_of(words[server_word::VERDICT].load(Relaxed));
        (polled >= since).then_some(fitness)
    }

    /// Whether a server has everything that this primary had when a poll with at least that number
    /// began.
    #[inline]
    pub fn covers(&self, server: ServerId, primary: u16, poll: u64) -> bool {
        let word = self.of_server(server)[server_word::COVERS].load(Acquire);
        word as u16 == primary && word >> PRIMARY_BITS >= poll
    }

    /// Until when a server's replies may take longer than usual, in the time of `monotonic_ms`, as it has said itself;
    /// 0 if it never has.
    #[inline]
    pub fn relaxed_until_ms(&self, server: ServerId) -> u64 {
        self.of_server(server)[server_word::RELAXED_UNTIL].load(Relaxed)
    }

    /// What the last poll has told of a server.
    pub fn member(&self, server: ServerId) -> MemberState {
        let words = self.of_server(server);
        let word = |at: usize| Some(words[at].load(Relaxed)).filter(|&word| word != UNKNOWN);
        let verdict = words[server_word::VERDICT].load(Relaxed);
        let flag = |at: u32| verdict >> at & 1 == 1;
        let told = |at: u32| flag(at).then(|| flag(at + 1));
        if verdict == 0 {
            return MemberState::default();
        }
        MemberState {
            role: match verdict & 3 {
                1 => MemberRole::Primary,
                2 => MemberRole::Replica,
                _ => MemberRole::Unknown,
            },
            fitness: fitness_of(verdict),
            is_link_up: told(8),
            link_down_secs: word(server_word::LINK_DOWN),
            is_loading: flag(10),
            is_syncing: flag(11),
            is_of_primary: told(12),
            lag: word(server_word::LAG),
        }
    }

    fn of_pool(&self, pool: PoolId) -> &[AtomicU64] {
        &self.0.words()[pool.base()..]
    }

    fn of_server(&self, server: ServerId) -> &[AtomicU64] {
        &self.0.words()[server.base()..]
    }
}

fn fitness_of(verdict: u64) -> Fitness {
    Fitness::ALL.get((verdict >> 2 & 15) as usize).copied().unwrap_or_default()
}

/// Writes the board. There must be one at a time.
pub struct BoardWriter(Board);

impl BoardWriter {
    pub(crate) fn new(board: Board) -> Self {
        Self(board)
    }

    /// Publishes that a poll of the pool begins; call it before anybody is asked.
    pub fn begin(&self, pool: PoolId, poll: u64) {
        self.0.of_pool(pool)[pool_word::BEGUN].store(poll, Release);
        fence(SeqCst);
    }

    /// The number of the last poll of a pool that has begun, here or where this was carried from.
    pub fn begun(&self, pool: PoolId) -> u64 {
        self.0.begun(pool)
    }

    /// Takes over what another board has of a pool.
    pub(crate) fn carry_pool(&self, from: &Board, old: PoolId, new: PoolId) {
        for at in [pool_word::BEGUN, pool_word::BEAT] {
            self.0.of_pool(new)[at].store(from.of_pool(old)[at].load(Acquire), Relaxed);
        }
    }

    /// Takes over what another board has of a server, but for the polls that it covers: they name the
    /// primary by its place there.
    pub(crate) fn carry_server(&self, from: &Board, old: ServerId, new: ServerId) {
        let (source, target) = (from.of_server(old), self.0.of_server(new));
        // In the order in which it is read.
        let polled = source[server_word::POLLED].load(Acquire);
        for at in [server_word::LAG, server_word::LINK_DOWN, server_word::VERDICT] {
            target[at].store(source[at].load(Relaxed), Relaxed);
        }
        target[server_word::POLLED].store(polled, Release);
    }

    /// Somebody writes what is here of the pool.
    pub fn beat(&self, pool: PoolId, now_ms: u64) {
        self.0.of_pool(pool)[pool_word::BEAT].store(now_ms, Relaxed);
    }

    /// Publishes until when a server's replies may take longer than usual.
    pub fn relax(&self, server: ServerId, until_ms: u64) {
        self.0.of_server(server)[server_word::RELAXED_UNTIL].store(until_ms, Relaxed);
    }

    /// Publishes what a poll has told.
    pub fn set(&self, server: ServerId, member: &MemberState, progress: Progress) {
        let words = self.0.of_server(server);
        let told = |at: u32, what: Option<bool>| {
            what.map_or(0, |what| 1 << at | u64::from(what) << (at + 1))
        };
        let fitness = Fitness::ALL.iter().position(|it| *it == member.fitness).unwrap_or_default();
        let role = match member.role {
            MemberRole::Unknown => 0,
            MemberRole::Primary => 1,
            MemberRole::Replica => 2,
        };
        let verdict = role
            | (fitness as u64) << 2
            | told(8, member.is_link_up)
            | u64::from(member.is_loading) << 10
            | u64::from(member.is_syncing) << 11
            | told(12, member.is_of_primary)
            // It differs from what was never written.
            | 1 << 63;
        words[server_word::LAG].store(member.lag.unwrap_or(UNKNOWN), Relaxed);
        words[server_word::LINK_DOWN].store(member.link_down_secs.unwrap_or(UNKNOWN), Relaxed);
        words[server_word::VERDICT].store(verdict, Relaxed);
        let covers = progress.covers << PRIMARY_BITS | u64::from(progress.primary);
        words[server_word::COVERS].store(covers, Release);
        words[server_word::POLLED].store(progress.polled, Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::snapshot;
    use crate::{Layout, Segments};

    fn layout() -> Layout {
        Layout::new(&snapshot(&[("a", &["x", "y"]), ("b", &["x"])]))
    }

    #[test]
    fn others_read_what_discovery_writes() {
        let layout = layout();
        let (fd, master) = Segments::create(&layout).unwrap();
        let writer = Segments::open(&fd, &layout).unwrap().board_writer();
        let board = master.board();
        let (pool, server) = (layout.pool(0), layout.server(0, 1));
        assert_eq!((board.begun(pool), board.is_kept(pool, 0)), (0, false));
        assert_eq!(board.member(server), MemberState::default());
        assert_eq!(board.fitness(server, 0), Some(Fitness::Unknown));
        assert!(!board.covers(server, 0, 1));

        writer.begin(pool, 7);
        writer.beat(pool, 100);
        let mut member = MemberState {
            role: MemberRole::Replica,
            fitness: Fitness::Lagging,
            is_link_up: Some(false),
            link_down_secs: Some(9),
            is_loading: true,
            is_syncing: true,
            is_of_primary: Some(true),
            lag: Some(1 << 40),
        };
        writer.set(server, &member, Progress { polled: 7, covers: 5, primary: 65_535 });
        assert_eq!(board.begun(pool), 7);
        assert!(board.is_kept(pool, 99 + BOARD_STALE_AFTER_MS));
        assert!(!board.is_kept(pool, 100 + BOARD_STALE_AFTER_MS));
        assert_eq!(board.member(server), member);
        assert_eq!(board.fitness(server, 7), Some(Fitness::Lagging));
        assert_eq!(board.fitness(server, 8), None);
        assert!(board.covers(server, 65_535, 5));
        writer.relax(server, 1234);
        assert_eq!(board.relaxed_until_ms(server), 1234);
        assert_eq!(board.relaxed_until_ms(layout.server(0, 0)), 0);
        assert!(!board.covers(server, 65_535, 6) && !board.covers(server, 65_534, 5));
        for fitness in Fitness::ALL {
            member = MemberState { fitness, ..MemberState::default() };
            writer.set(server, &member, Progress::default());
            assert_eq!(board.member(server), member);
            assert_eq!(board.fitness(server, 0), Some(fitness));
        }
        assert_eq!(board.member(layout.server(1, 0)), MemberState::default());
    }

    #[test]
    fn another_layout_takes_it_over_by_names() {
        let old = snapshot(&[("a", &["x", "y"]), ("b", &["x"])]);
        let mut new = snapshot(&[("b", &["x"]), ("a", &["w", "y"]), ("c", &["y"])]);
        let (from, to) = (Segments::in_memory(&Layout::new(&old), 1), Layout::new(&new));
        let (pool, server) = (from.layout().pool(0), from.layout().server(0, 1));
        let writer = from.board_writer();
        writer.begin(pool, 7);
        writer.beat(pool, 100);
        let member = MemberState { fitness: Fitness::Lagging, lag: Some(3), ..Default::default() };
        writer.set(server, &member, Progress { polled: 7, covers: 5, primary: 0 });
        let next = Segments::in_memory(&to, 1);
        next.carry_board(&from, &old, &new);
        let board = next.board();
        assert_eq!((board.begun(to.pool(1)), board.is_kept(to.pool(1), 101)), (7, true));
        assert_eq!(board.member(to.server(1, 1)), member);
        assert_eq!(board.fitness(to.server(1, 1), 7), Some(Fitness::Lagging));
        assert!(!board.covers(to.server(1, 1), 0, 1));
        for other in [to.server(1, 0), to.server(2, 0), to.server(0, 0)] {
            assert_eq!(board.member(other), MemberState::default());
        }
        // At another address it is another server.
        new.pools[1].servers[1].endpoint = cashew_config::snapshot::Endpoint::unknown();
        let next = Segments::in_memory(&to, 1);
        next.carry_board(&from, &old, &new);
        assert_eq!(next.board().member(to.server(1, 1)), MemberState::default());
    }

    #[test]
    fn it_touches_no_slot_and_no_slot_touches_it() {
        let layout = layout();
        let segments = Arc::new(Segments::in_memory(&layout, 2));
        let (pool, server) = (layout.pool(0), layout.server(0, 0));
        let writer = segments.board_writer();
        writer.begin(pool, u64::MAX >> 16);
        let member = MemberState { lag: Some(u64::MAX - 1), ..MemberState::default() };
        writer.set(server, &member, Progress { polled: 1, covers: 1, primary: 1 });
        for &counter in crate::PoolCounter::ALL {
            assert_eq!(segments.sum_pool_counter(pool, counter), 0);
        }
        let slot = segments.writer(1);
        for &counter in crate::ServerCounter::ALL {
            slot.add_server(server, counter, 3);
        }
        segments.clear_gauges(1);
        assert_eq!(segments.board().member(server), member);
        assert_eq!(segments.slots(), 2);
    }
}
