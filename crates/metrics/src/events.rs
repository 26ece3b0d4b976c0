//! What has changed, as all processes of an instance have seen it.
//!
//! The newest events are kept in the memory that all processes share, so whoever reads them there sees those of
//! processes that have died, too. There are two rings of entries: what befalls servers and clients can be much, as
//! where a whole rack fails, and must not push out what was done to the instance, which may be the reason.
//!
//! Each entry is a [record](crate::record) of its ring.

mod entry;
mod kind;
mod limits;

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::mapping::{Mapping, View};
use crate::monotonic_ms;

pub use entry::EventLevel;
pub use kind::{EventKind, EventRing};

/// Events that each ring keeps.
pub const EVENTS_MAX: usize = 512;

/// Kinds that there is room for.
const KINDS_MAX: usize = 128;

mod word {
    use super::{EVENTS_MAX, KINDS_MAX, entry, kind::RINGS, limits};

    /// The number of the newest event of all.
    pub(super) const NEWEST: usize = 0;
    /// How many entries were ever begun, for each ring. Apart, since writers of both meet at the first word already.
    pub(super) const TICKETS: usize = 8;
    /// How often each kind has happened, and how often of that it was left out.
    pub(super) const COUNTERS: usize = 64;
    pub(super) const LIMITS: usize = 512;
    pub(super) const RINGS_START: usize = LIMITS + limits::WORDS;
    pub(super) const RING_WORDS: usize = EVENTS_MAX * entry::WORDS;
    pub(super) const COUNT: usize = RINGS_START + RINGS * RING_WORDS;
    const _: () = assert!(COUNTERS + 2 * KINDS_MAX <= LIMITS);
}

/// Words in the memory that all processes share: about half a MiB, of which only what is used takes memory.
pub(crate) const WORDS: usize = word::COUNT;

/// Something that happens now.
#[derive(Clone, Copy, Debug)]
pub struct NewEvent<'a> {
    pub kind: EventKind,
    pub level: EventLevel,
    /// The name of the process that tells.
    pub process: &'a str,
    /// The slot of the worker that tells, or that is told of.
    pub worker: Option<u32>,
    /// Empty if it is about none, like the next.
    pub pool: &'a str,
    pub server: &'a str,
    pub text: &'a str,
}

/// Something that has happened. Long texts are cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Later events have higher numbers; the first is 1.
    pub number: u64,
    /// In milliseconds since 1970.
    pub at_ms: u64,
    pub kind: EventKind,
    pub level: EventLevel,
    pub process: String,
    pub worker: Option<u32>,
    pub pool: String,
    pub server: String,
    pub text: String,
    /// How many like it, of the same pool and server, were left out before it.
    pub left_out: u64,
}

/// The outcome of [`Events::record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// With how many like it were left out before it.
    Kept { left_out: u64 },
    /// There were too many like it lately.
    LeftOut,
}

/// The events of an instance. None are kept in memory that an older version made.
#[derive(Clone)]
pub struct Events(Option<View>);

impl Events {
    pub(crate) fn new(mapping: &Arc<Mapping>, start: usize) -> Self {
        Self(View::of_part(mapping, start, WORDS))
    }

    fn words(&self) -> Option<&[AtomicU64]> {
        self.0.as_ref().map(View::words)
    }

    /// Takes an event up, unless there were too many like it lately.
    pub fn record(&self, event: &NewEvent<'_>) -> Recorded {
        let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        self.record_at(event, at_ms as u64, monotonic_ms())
    }

    fn record_at(&self, event: &NewEvent<'_>, at_ms: u64, now_ms: u64) -> Recorded {
        let Some(words) = self.words() else { return Recorded::Kept { left_out: 0 } };
        let kind = event.kind as usize;
        words[word::COUNTERS + 2 * kind].fetch_add(1, Relaxed);
        let limits = &words[word::LIMITS..word::LIMITS + limits::WORDS];
        let Some(left_out) = limits::take(limits, key(event), event.kind.limit(), now_ms) else {
            words[word::COUNTERS + 2 * kind + 1].fetch_add(1, Relaxed);
            return Recorded::LeftOut;
        };
        let ring = event.kind.ring() as usize;
        let number = words[word::NEWEST].fetch_add(1, Relaxed) + 1;
        let ticket = words[word::TICKETS + ring].fetch_add(1, Relaxed);
        entry::write(entry_of(words, ring, ticket), ticket, event, (number, at_ms, left_out));
        Recorded::Kept { left_out }
    }

    /// The events that are kept with numbers above `since`, in order. One that is being written is not among them.
    pub fn since(&self, since: u64) -> Vec<Event> {
        let Some(words) = self.words() else { return Vec::new() };
        let mut events = Vec::new();
        if since >= words[word::NEWEST].load(Relaxed) {
            return events;
        }
        for ring in 0..kind::RINGS {
            let end = words[word::TICKETS + ring].load(Relaxed);
            let tickets = end.saturating_sub(EVENTS_MAX as u64)..end;
            let kept = tickets.filter_map(|it| entry::read(entry_of(words, ring, it), it));
            events.extend(kept.filter(|event| event.number > since));
        }
        events.sort_by_key(|event| event.number);
        events
    }

    /// The number of the newest event; 0 if there was none.
    pub fn newest(&self) -> u64 {
        self.words().map_or(0, |words| words[word::NEWEST].load(Relaxed))
    }

    /// How often something of this kind has happened.
    pub fn count(&self, kind: EventKind) -> u64 {
        self.words().map_or(0, |words| words[word::COUNTERS + 2 * kind as usize].load(Relaxed))
    }

    /// How often of that it was left out.
    pub fn left_out(&self, kind: EventKind) -> u64 {
        self.words().map_or(0, |words| words[word::COUNTERS + 2 * kind as usize + 1].load(Relaxed))
    }
}

fn entry_of(words: &[AtomicU64], ring: usize, ticket: u64) -> &[AtomicU64] {
    let index = (ticket % EVENTS_MAX as u64) as usize;
    let start = word::RINGS_START + ring * word::RING_WORDS + index * entry::WORDS;
    &words[start..start + entry::WORDS]
}

/// What counts as the same for limits. All processes of an instance are of one program, or of two for a moment.
fn key(event: &NewEvent<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (event.kind as u16, event.pool, event.server, event.worker_told_of()).hash(&mut hasher);
    hasher.finish()
}

impl NewEvent<'_> {
    /// What workers tell of servers and clients is the same whichever tells it.
    fn worker_told_of(&self) -> Option<u32> {
        self.worker.filter(|_| self.kind.ring() == EventRing::Instance)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;
    use crate::Shared;

    fn down(server: &str) -> NewEvent<'_> {
        NewEvent {
            kind: EventKind::ServerDown,
            level: EventLevel::Warn,
            process: "worker-3",
            worker: Some(3),
            pool: "alpha",
            server,
            text: "it fails",
        }
    }

    fn reload(text: &str) -> NewEvent<'_> {
        NewEvent {
            kind: EventKind::ReloadDone,
            level: EventLevel::Info,
            process: "master",
            worker: None,
            pool: "",
            server: "",
            text,
        }
    }

    #[test]
    fn events_are_seen_by_all_and_outlive_who_told_them() {
        let (fd, shared) = Shared::create().unwrap();
        let other = Shared::open(&fd).unwrap();
        shared.events().record_at(&down("one"), 1000, 5);
        other.events().record_at(&reload("tüo"), 2000, 6);
        drop(shared);
        let events = other.events().since(0);
        let first = Event {
            number: 1,
            at_ms: 1000,
            kind: EventKind::ServerDown,
            level: EventLevel::Warn,
            process: "worker-3".into(),
            worker: Some(3),
            pool: "alpha".into(),
            server: "one".into(),
            text: "it fails".into(),
            left_out: 0,
        };
        assert_eq!(events[0], first);
        let second = (events[1].number, events[1].text.as_str(), events[1].worker);
        assert_eq!(second, (2, "tüo", None));
        assert_eq!(other.events().since(1), events[1..]);
        assert_eq!((other.events().since(2), other.events().newest()), (vec![], 2));
        assert_eq!(other.events().count(EventKind::ServerDown), 1);
    }

    #[test]
    fn the_newest_stay_and_servers_do_not_push_out_what_was_done_to_the_instance() {
        let events = Shared::in_memory().events();
        events.record_at(&reload("first"), 1, 1);
        let total = EVENTS_MAX as u64 * 2 + 7;
        for at in 0..total {
            assert_eq!(
                events.record_at(&down(&at.to_string()), at, at),
                Recorded::Kept { left_out: 0 }
            );
        }
        let kept = events.since(0);
        assert_eq!(kept.len(), EVENTS_MAX + 1);
        assert_eq!((kept[0].text.as_str(), kept[0].number), ("first", 1));
        assert_eq!(kept[1].number, total + 2 - EVENTS_MAX as u64);
        assert_eq!(kept.last().unwrap().server, (total - 1).to_string());
    }

    #[test]
    fn a_flapping_server_is_limited_and_told_of_later_and_others_are_not() {
        let events = Shared::in_memory().events();
        let (burst, every_ms) =
            (EventKind::ServerDown.limit().burst, EventKind::ServerDown.limit().every_ms);
        let flaps = |now_ms| events.record_at(&down("one"), now_ms, now_ms);
        let kept = (0..1000).filter(|&at| flaps(1_000_000 + at) != Recorded::LeftOut).count();
        assert_eq!(kept as u64, burst);
        let left_out = 1000 - burst;
        assert_eq!(events.left_out(EventKind::ServerDown), left_out);
        assert_eq!(events.count(EventKind::ServerDown), 1000);
        // Another worker that tells of the same server makes no difference, another server does.
        let by_another = NewEvent { worker: Some(4), process: "worker-4", ..down("one") };
        assert_eq!(events.record_at(&by_another, 0, 1_001_000), Recorded::LeftOut);
        assert_eq!(events.record_at(&down("two"), 0, 1_001_000), Recorded::Kept { left_out: 0 });
        let later = 1_001_000 + every_ms;
        assert_eq!(flaps(later), Recorded::Kept { left_out: left_out + 1 });
        assert_eq!(flaps(later + 1), Recorded::LeftOut);
        let told: Vec<u64> = events.since(0).iter().map(|event| event.left_out).collect();
        assert_eq!(told.last(), Some(&(left_out + 1)));
        assert_eq!(told.iter().sum::<u64>(), left_out + 1);
    }

    #[test]
    fn long_texts_are_cut_at_letters() {
        let events = Shared::in_memory().events();
        let long = "ü".repeat(1000);
        let event =
            NewEvent { pool: &long, server: &long, text: &long, process: &long, ..down("") };
        events.record_at(&event, 1, 1);
        let kept = &events.since(0)[0];
        for (text, least) in
            [(&kept.pool, 60), (&kept.server, 60), (&kept.text, 200), (&kept.process, 10)]
        {
            assert!(text.len() >= least && text.chars().all(|letter| letter == 'ü'), "{text}");
        }
    }

    #[test]
    fn an_entry_that_was_never_finished_is_skipped() {
        let events = Shared::in_memory().events();
        events.record_at(&down("one"), 1, 1);
        events.record_at(&down("two"), 2, 2);
        // As where its writer died in the midst of it.
        let entry = entry_of(events.words().unwrap(), EventRing::Servers as usize, 0);
        crate::record::begin(entry, 0);
        let seen: Vec<String> = events.since(0).into_iter().map(|event| event.server).collect();
        assert_eq!(seen, ["two"]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "it fills a whole ring, which takes too long: see record::tests")]
    fn many_threads_write_and_no_torn_entry_is_seen() {
        const THREADS: usize = 4;
        const EACH: usize = 20_000;
        let events = Shared::in_memory().events();
        let is_over = AtomicBool::new(false);
        let check = |event: &Event| {
            // All texts of an entry are of one writer's call.
            let expected = format!("{}-{}", event.worker.unwrap(), event.server);
            assert_eq!(event.text, expected.repeat(20));
        };
        thread::scope(|scope| {
            let writers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let events = events.clone();
                    scope.spawn(move || {
                        for at in 0..EACH {
                            let server = at.to_string();
                            let text = format!("{thread}-{server}").repeat(20);
                            let event = NewEvent {
                                worker: Some(thread as u32),
                                text: &text,
                                ..down(&server)
                            };
                            // One event a minute: the limit is not what is tested here.
                            events.record_at(&event, 1, at as u64 * 60_000);
                        }
                    })
                })
                .collect();
            let reader = scope.spawn(|| {
                let mut seen = 0;
                while !is_over.load(Relaxed) {
                    let kept = events.since(0);
                    kept.iter().for_each(check);
                    seen += kept.len();
                }
                seen
            });
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            is_over.store(true, Relaxed);
            assert!(reader.join().unwrap() > 0);
        });
        let kept = events.since(0);
        kept.iter().for_each(check);
        // Two that met in one entry may have left it torn for good; more than a few would be a fault.
        assert!(kept.len() > EVENTS_MAX * 9 / 10, "{}", kept.len());
        let numbers: Vec<u64> = kept.iter().map(|event| event.number).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn memory_of_an_older_version_keeps_none() {
        let events = Events(None);
        assert_eq!(events.record(&down("one")), Recorded::Kept { left_out: 0 });
        assert_eq!((events.since(0), events.newest()), (vec![], 0));
        assert_eq!(events.count(EventKind::ServerDown), 0);
    }
}
