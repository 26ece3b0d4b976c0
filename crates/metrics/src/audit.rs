//! Who did what, on its way from all processes to the audit log.
//!
//! It is kept in a ring in the memory that all processes share, as workers must not wait for a file. Each entry is a
//! [record](crate::record) of its ring. The admin process writes them down. How far it has come is kept here as well, so
//! one that is started anew goes on where the last one was.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::clock::monotonic_ms;
use crate::mapping::{Mapping, View};
use crate::record;

/// Entries that may wait to be written. The admin process looks ten times a second.
const DEEDS_MAX: usize = 8192;
/// Words of an entry: half a KiB.
const WORDS_EACH: usize = 64;
const NUMBERS: usize = 5;
const TEXTS: usize = 7;
const NAME_MAX: usize = 64;
const ADDRESS_MAX: usize = 64;
/// How long an entry is waited for that somebody has begun: a machine that is busy may keep its writer from it.
const PENDING_MAX_MS: u64 = 1000;
/// Bytes kept of a key.
pub const AUDITED_KEY_MAX: usize = 128;
const FAILURE_WORDS: usize = 64;

mod word {
    /// How many entries were ever begun.
    pub(super) const TICKETS: usize = 0;
    /// Those of lower tickets were taken.
    pub(super) const TAKEN: usize = 1;
    pub(super) const LINES: usize = 2;
    pub(super) const LOST: usize = 3;
    pub(super) const FAILURES: usize = 4;
    /// The ticket after that of the entry that was not whole at the last look.
    pub(super) const PENDING: usize = 5;
    pub(super) const TOKENS_REFUSED: usize = 6;
    /// Since when that one is waited for, in milliseconds of the monotonic clock.
    pub(super) const PENDING_SINCE_MS: usize = 7;
    pub(super) const FAILURE: usize = 8;
    pub(super) const ENTRIES: usize = FAILURE + super::FAILURE_WORDS;
}

/// Words of it all: 4 MiB, of which only what is used takes memory.
pub(crate) const WORDS: usize = word::ENTRIES + DEEDS_MAX * WORDS_EACH;

/// What became of what somebody wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeedOutcome {
    /// A command that was let through. Whether its server likes it is not known yet.
    #[default]
    Allowed,
    /// A command that was not.
    Denied,
    LoggedIn,
    LoginFailed,
    /// An operator's command was taken up.
    Asked,
    Done,
    Failed,
}

impl DeedOutcome {
    const ALL: [Self; 7] = [
        Self::Allowed,
        Self::Denied,
        Self::LoggedIn,
        Self::LoginFailed,
        Self::Asked,
        Self::Done,
        Self::Failed,
    ];

    pub fn is_of_operators(self) -> bool {
        self.event() == "operator"
    }

    /// What kind of thing it is the outcome of.
    pub fn event(self) -> &'static str {
        match self {
            Self::Allowed | Self::Denied => "command",
            Self::LoggedIn | Self::LoginFailed => "login",
            Self::Asked | Self::Done | Self::Failed => "operator",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::LoggedIn => "ok",
            Self::LoginFailed | Self::Failed => "failed",
            Self::Asked => "asked",
            Self::Done => "done",
        }
    }
}

/// Something that somebody does just now. Long texts are cut.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewDeed<'a> {
    pub outcome: DeedOutcome,
    /// Empty if it is about none.
    pub pool: &'a str,
    /// Where it comes from.
    pub client: &'a str,
    /// 0 for operators.
    pub client_id: u64,
    pub client_name: &'a [u8],
    pub user: &'a [u8],
    /// The slot of the worker; `None` if it is no worker that tells.
    pub worker: Option<u32>,
    pub command: &'a str,
    /// The first key.
    pub key: &'a [u8],
    /// How many keys there are.
    pub keys: u32,
    /// Why it was denied, or has failed.
    pub reason: &'a str,
}

/// Something that somebody did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deed {
    /// In microseconds since 1970.
    pub at_us: u64,
    pub outcome: DeedOutcome,
    pub pool: String,
    pub client: String,
    pub client_id: u64,
    pub client_name: Vec<u8>,
    pub user: Vec<u8>,
    pub worker: Option<u32>,
    pub command: String,
    pub key: Vec<u8>,
    pub keys: u32,
    pub reason: String,
}

/// Nothing is kept in memory that an older version made.
#[derive(Clone)]
pub struct AuditTrail(Option<View>);

impl AuditTrail {
    pub(crate) fn new(mapping: &Arc<Mapping>, start: usize) -> Self {
        Self(View::of_part(mapping, start, WORDS))
    }

    fn words(&self) -> Option<&[AtomicU64]> {
        self.0.as_ref().map(View::words)
    }

    pub fn record(&self, deed: &NewDeed<'_>) {
        let Some(words) = self.words() else { return };
        let ticket = words[word::TICKETS].fetch_add(1, Relaxed);
        let numbers = [
            now_us(),
            deed.outcome as u64,
            deed.client_id,
            deed.worker.map_or(0, |slot| u64::from(slot) + 1),
            deed.keys.into(),
        ];
        let texts = [
            (deed.pool.as_bytes(), NAME_MAX),
            (deed.client.as_bytes(), ADDRESS_MAX),
            (deed.client_name, NAME_MAX),
            (deed.user, NAME_MAX),
            (deed.command.as_bytes(), NAME_MAX),
            // Before the key, which is the longest.
            (deed.reason.as_bytes(), NAME_MAX),
            (deed.key, AUDITED_KEY_MAX),
        ];
        record::write::<NUMBERS, TEXTS>(entry_of(words, ticket), ticket, numbers, texts);
    }

    /// The first of those that nobody has taken yet, in order, so many at most. Counts those as lost that were
    /// overwritten before, and those whose writers have died. For one process at a time.
    pub fn take(&self, most: usize) -> Vec<Deed> {
        self.take_at(most, monotonic_ms())
    }

    fn take_at(&self, most: usize, now_ms: u64) -> Vec<Deed> {
        let Some(words) = self.words() else { return Vec::new() };
        let end = words[word::TICKETS].load(Relaxed);
        let taken = words[word::TAKEN].load(Relaxed);
        let from = taken.max(end.saturating_sub(DEEDS_MAX as u64)).min(end);
        let end = end.min(from.saturating_add(most as u64));
        let mut lost = from - taken.min(from);
        let mut deeds = Vec::new();
        let mut until = end;
        for ticket in from..end {
            let entry = entry_of(words, ticket);
            match record::read(entry, ticket) {
                Some(record) => deeds.push(deed(record)),
                // Somebody writes it just now, or has died there.
                None if !record::is_past(entry, ticket) && is_awaited(words, ticket, now_ms) => {
                    until = ticket;
                    break;
                }
                None => lost += 1,
            }
        }
        words[word::TAKEN].store(until, Relaxed);
        self.add(word::LOST, lost);
        deeds
    }

    /// Forgets those that nobody has taken: nobody wants them.
    pub fn skip(&self) {
        if let Some(words) = self.words() {
            words[word::TAKEN].store(words[word::TICKETS].load(Relaxed), Relaxed);
        }
    }

    fn add(&self, at: usize, count: u64) {
        if let Some(words) = self.words().filter(|_| count > 0) {
            words[at].fetch_add(count, Relaxed);
        }
    }

    /// Counts lines that were written.
    pub fn add_lines(&self, count: u64) {
        self.add(word::LINES, count);
    }

    /// Counts deeds that have no line.
    pub fn add_lost(&self, count: u64) {
        self.add(word::LOST, count);
    }

    /// Counts a request by HTTP with a token that is none.
    pub fn add_token_refused(&self) {
        self.add(word::TOKENS_REFUSED, 1);
    }

    pub fn tokens_refused(&self) -> u64 {
        self.words().map_or(0, |words| words[word::TOKENS_REFUSED].load(Relaxed))
    }

    pub fn lines(&self) -> u64 {
        self.words().map_or(0, |words| words[word::LINES].load(Relaxed))
    }

    pub fn lost(&self) -> u64 {
        self.words().map_or(0, |words| words[word::LOST].load(Relaxed))
    }

    /// Keeps why lines cannot be written. For the admin process alone.
    pub fn failed(&self, why: &str) {
        let Some(words) = self.words() else { return };
        let ticket = words[word::FAILURES].fetch_add(1, Relaxed);
        let numbers = [now_us() / 1_000_000];
        record::write(failure_of(words), ticket, numbers, [(why.as_bytes(), usize::MAX)]);
    }

    /// Why they could not be written last, and when, in seconds since 1970.
    pub fn last_failure(&self) -> Option<(String, u64)> {
        let words = self.words()?;
        let ticket = words[word::FAILURES].load(Relaxed).checked_sub(1)?;
        let record = record::read::<1, 1>(failure_of(words), ticket)?;
        let ([at], [why]) = (record.numbers, record.texts);
        Some((String::from_utf8_lossy(&why).into_owned(), at))
    }
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

/// Whether the entry of this ticket may still become whole.
fn is_awaited(words: &[AtomicU64], ticket: u64, now_ms: u64) -> bool {
    if words[word::PENDING].swap(ticket + 1, Relaxed) != ticket + 1 {
        words[word::PENDING_SINCE_MS].store(now_ms, Relaxed);
        return true;
    }
    now_ms.saturating_sub(words[word::PENDING_SINCE_MS].load(Relaxed)) < PENDING_MAX_MS
}

fn failure_of(words: &[AtomicU64]) -> &[AtomicU64] {
    &words[word::FAILURE..word::FAILURE + FAILURE_WORDS]
}

fn entry_of(words: &[AtomicU64], ticket: u64) -> &[AtomicU64] {
    let start = word::ENTRIES + (ticket % DEEDS_MAX as u64) as usize * WORDS_EACH;
    &words[start..start + WORDS_EACH]
}

fn deed(record: record::Record<NUMBERS, TEXTS>) -> Deed {
    let [at_us, outcome, client_id, worker, keys] = record.numbers;
    let [pool, client, client_name, user, command, reason, key] = record.texts;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Deed {
        at_us,
        outcome: DeedOutcome::ALL.get(outcome as usize).copied().unwrap_or_default(),
        pool: text(pool),
        client: text(client),
        client_id,
        client_name,
        user,
        worker: worker.checked_sub(1).map(|slot| slot as u32),
        command: text(command),
        key,
        keys: keys as u32,
        reason: text(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shared;

    fn deed_of(id: u64) -> NewDeed<'static> {
        NewDeed { client_id: id, pool: "alpha", command: "SET", ..NewDeed::default() }
    }

    fn ids(deeds: &[Deed]) -> Vec<u64> {
        deeds.iter().map(|deed| deed.client_id).collect()
    }

    #[test]
    fn deeds_are_taken_once_and_by_whoever_comes_next() {
        let (fd, shared) = Shared::create().unwrap();
        let whole = NewDeed {
            outcome: DeedOutcome::Denied,
            client: "10.0.0.1:5",
            client_name: b"a\xff",
            user: b"ann",
            worker: Some(0),
            key: &[b'k'; 500],
            keys: 2,
            reason: "key",
            ..deed_of(7)
        };
        shared.audit().record(&whole);
        let other = Shared::open(&fd).unwrap().audit();
        let taken = other.take(usize::MAX);
        let expected = Deed {
            at_us: taken[0].at_us,
            outcome: DeedOutcome::Denied,
            pool: "alpha".into(),
            client: "10.0.0.1:5".into(),
            client_id: 7,
            client_name: b"a\xff".to_vec(),
            user: b"ann".to_vec(),
            worker: Some(0),
            command: "SET".into(),
            key: vec![b'k'; AUDITED_KEY_MAX],
            keys: 2,
            reason: "key".into(),
        };
        assert_eq!(taken, [expected]);
        shared.audit().record(&deed_of(8));
        assert_eq!(
            (ids(&shared.audit().take(usize::MAX)), ids(&other.take(usize::MAX))),
            (vec![8], vec![])
        );
        shared.audit().record(&deed_of(9));
        other.skip();
        assert_eq!((ids(&other.take(usize::MAX)), other.lost()), (vec![], 0));
    }

    #[test]
    fn what_was_overwritten_is_counted_as_lost() {
        let audit = Shared::in_memory().audit();
        let count = DEEDS_MAX as u64 + 100;
        (0..count).for_each(|id| audit.record(&deed_of(id)));
        let taken = audit.take(usize::MAX);
        assert_eq!((taken.len(), taken[0].client_id), (DEEDS_MAX, 100));
        assert_eq!(audit.lost(), 100);
    }

    #[test]
    fn a_writer_is_waited_for_and_one_that_has_died_is_not_for_ever() {
        let audit = Shared::in_memory().audit();
        let words = audit.words().unwrap();
        let begin = || {
            let ticket = words[word::TICKETS].fetch_add(1, Relaxed);
            record::begin(entry_of(words, ticket), ticket);
            ticket
        };
        let take_at = |now_ms| ids(&audit.take_at(usize::MAX, now_ms));
        let slow = begin();
        audit.record(&deed_of(1));
        // However often it is looked at.
        for now_ms in [5000, 5000, 5000, 5000 + PENDING_MAX_MS - 1] {
            assert_eq!((take_at(now_ms), audit.lost()), (vec![], 0));
        }
        let numbers = [0, 0, 7, 0, 0];
        record::write::<NUMBERS, TEXTS>(entry_of(words, slow), slow, numbers, [(b"", 0); TEXTS]);
        assert_eq!((take_at(5000 + PENDING_MAX_MS), audit.lost()), (vec![7, 1], 0));
        begin();
        audit.record(&deed_of(2));
        assert_eq!((take_at(9000), audit.lost()), (vec![], 0));
        assert_eq!((take_at(9000 + PENDING_MAX_MS), audit.lost()), (vec![2], 1));
    }

    #[test]
    fn what_is_overwritten_while_it_is_looked_at_is_lost_at_once() {
        let audit = Shared::in_memory().audit();
        let words = audit.words().unwrap();
        (0..DEEDS_MAX as u64).for_each(|id| audit.record(&deed_of(id)));
        // Who has drawn the next ticket after the look at how many there are.
        record::begin(entry_of(words, 0), DEEDS_MAX as u64);
        let taken = ids(&audit.take_at(usize::MAX, 5000));
        assert_eq!((taken.len(), taken[0], audit.lost()), (DEEDS_MAX - 1, 1, 1));
    }

    #[test]
    fn counts_and_failures_are_kept() {
        let audit = Shared::in_memory().audit();
        assert_eq!(audit.last_failure(), None);
        audit.failed("no room");
        audit.add_lines(3);
        audit.add_lost(2);
        assert_eq!((audit.lines(), audit.lost()), (3, 2));
        assert_eq!(audit.last_failure().unwrap().0, "no room");
    }
}
