//! What servers tell of the keys that change: their *trackers*.
//!
//! A tracker is a connection of its own from a worker to a primary, in RESP3, on which `CLIENT TRACKING ON BCAST` was
//! said. The server then names each key that is written, deleted, evicted or expired, by whomever. What goes on with
//! a tracker is in [`crate::redis::tracking`].
//!
//! # Why not on the lanes
//!
//! Per key, on the lane that has read it (`OPTIN` and `CLIENT CACHING YES`), the server would name only what was read,
//! and in the order of the replies. But a lane speaks what its clients do, and most speak RESP2, which has no pushes:
//! there the names would come on another connection all the same, and nothing would be left of the order.
//!
//! # What whoever keeps a reply has to heed
//!
//! - The tracker must [be up](Tracker::is_up) when the read is *sent*, with an [epoch](Tracker::epoch) that is still its
//!   epoch when the reply is kept.
//! - A key that is named while its read is on its way must not be kept: the reply may be older. A name may come before
//!   the reply, or after it.
//! - What was kept of a key that is named is dropped; and when the epoch ends, all that was read from the server.
//!
//! With that nothing is kept that the server has changed and told of. How long it takes to tell is the network's
//! affair; whoever keeps a reply gives it a longest life as well.

use std::collections::BTreeSet;

use cashew_protocol::resp::{self, Reply, encode};

use crate::base::id::LaneId;
use crate::base::time::Time;

/// A server that has told nothing for so long is asked whether it is there.
pub(crate) const SILENCE_MAX_MS: u64 = 1000;
/// So long its answer may take. Then all is forgotten that was read from it.
pub(crate) const ANSWER_MAX_MS: u64 = 2000;
/// Names of more bytes in one message are not kept: then any key may be among them.
pub(crate) const MESSAGE_MAX: usize = 16 << 20;
/// A server that does not know how to tell is asked again after so long.
pub(crate) const REFUSED_FOR_MS: u64 = 30_000;

/// What begins the keys that somebody wants to be told of: the shortest of prefixes that begin alike. Empty where
/// that is all keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrackedKeys(BTreeSet<Box<[u8]>>);

impl TrackedKeys {
    /// Keys with one of these prefixes; all if there is none, or an empty one.
    pub(crate) fn new<'p>(prefixes: impl IntoIterator<Item = &'p [u8]>) -> Self {
        let mut kept: BTreeSet<Box<[u8]>> = BTreeSet::new();
        // Sorted, what begins as another comes behind it. Redis refuses prefixes that overlap.
        for prefix in prefixes.into_iter().collect::<BTreeSet<&[u8]>>() {
            match kept.last() {
                _ if prefix.is_empty() => return Self::default(),
                Some(last) if prefix.starts_with(last) => {}
                _ => _ = kept.insert(prefix.into()),
            }
        }
        Self(kept)
    }

    /// All that either wants.
    pub(crate) fn with(&self, other: &Self) -> Self {
        if self.0.is_empty() || other.0.is_empty() {
            return Self::default();
        }
        Self::new(self.0.iter().chain(&other.0).map(|prefix| &**prefix))
    }

    /// What asks a server to tell of them.
    fn write_request(&self, out: &mut Vec<u8>) {
        let mut words: Vec<&[u8]> = vec![b"CLIENT", b"TRACKING", b"ON", b"BCAST"];
        for prefix in &self.0 {
            words.extend([&b"PREFIX"[..], prefix]);
        }
        encode::write_command(out, &words);
    }
}

/// How far a tracker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// There is no connection that stands.
    Away,
    /// HELLO is not answered yet.
    Greeting,
    /// CLIENT TRACKING is not answered yet.
    Asking,
    Up,
    /// The server knows none of it.
    Refused {
        until: Time,
    },
}

/// What a worker knows of a tracker.
#[derive(Debug)]
pub(crate) struct Tracker {
    pub(crate) lane: LaneId,
    keys: TrackedKeys,
    progress: Progress,
    /// Another one whenever something may have changed that was not told.
    epoch: u64,
    heard_at: Time,
    /// When PING was said that is not answered.
    asked_at: Option<Time>,
    /// The start of what is coming.
    partial: Vec<u8>,
    /// It was lost before the server told: since then it never has.
    has_failed: bool,
    /// What is coming is too large to be kept.
    is_oversized: bool,
    /// Why it does not tell, in the server's words.
    refusal: Box<str>,
    refuses: Refuses,
}

/// What a server refuses of what it takes to keep its replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Refuses {
    /// HELLO or CLIENT TRACKING.
    tracking: bool,
    /// PTTL.
    life: bool,
}

impl Refuses {
    fn any(self) -> bool {
        self.tracking || self.life
    }
}

/// Which of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needed {
    Tracking,
    Life,
}

/// What something that came on a tracker means.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard<'b> {
    /// These keys have changed: the rest of a push.
    Keys(Names<'b>),
    /// Any key may have.
    Everything,
    /// It is up.
    Up,
    /// Say this next.
    Say(Vec<u8>),
    /// The server does not tell.
    Refused,
    Nothing,
    /// It is no answer to what was asked.
    Misfit,
}

/// Names of keys, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names<'b> {
    bytes: &'b [u8],
    left: u64,
}

impl<'b> Iterator for Names<'b> {
    type Item = &'b [u8];

    fn next(&mut self) -> Option<&'b [u8]> {
        self.left = self.left.checked_sub(1)?;
        let (len, rest) = number_line(self.bytes.strip_prefix(b"$")?)?;
        let (name, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
        self.bytes = rest.strip_prefix(b"\r\n")?;
        Some(name)
    }
}

fn number_line(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let end = bytes.iter().position(|&byte| byte == b'\r')?;
    let number = std::str::from_utf8(&bytes[..end]).ok()?.parse().ok()?;
    Some((number, bytes[end..].strip_prefix(b"\r\n")?))
}

impl Tracker {
    pub(crate) fn new(lane: LaneId, keys: TrackedKeys) -> Self {
        Self {
            lane,
            keys,
            progress: Progress::Away,
            epoch: 0,
            heard_at: Time::ZERO,
            asked_at: None,
            partial: Vec::new(),
            has_failed: false,
            is_oversized: false,
            refusal: Box::default(),
            refuses: Refuses::default(),
        }
    }

    /// The server has refused something that it takes to keep its replies, or has not. Returns whether they can be kept
    /// now, if that is news.
    pub(crate) fn note_needed(&mut self, needed: Needed, is_refused: bool) -> Option<bool> {
        let could = !self.refuses.any();
        match needed {
            Needed::Tracking => self.refuses.tracking = is_refused,
            Needed::Life => self.refuses.life = is_refused,
        }
        let can = !self.refuses.any();
        (can != could).then_some(can)
    }

    /// Nobody wants to keep its replies any more. Returns whether they could not be kept.
    pub(crate) fn forget_needed(&mut self) -> bool {
        std::mem::take(&mut self.refuses).any()
    }

    /// Whether its replies cannot be kept, since it refuses what that takes.
    pub(crate) fn refuses_keeping(&self) -> bool {
        self.refuses.any()
    }

    /// The server has answered that it does not tell.
    pub(crate) fn note_refusal(&mut self, message: &[u8]) {
        let text = message.strip_prefix(b"-").unwrap_or(message);
        self.refusal = String::from_utf8_lossy(text).trim_end().into();
    }

    /// Why it has said that lately.
    pub(crate) fn refusal(&self, now: Time) -> Option<&str> {
        self.is_refused(now).then_some(&self.refusal)
    }

    /// Whether the server tells of changes now.
    pub(crate) fn is_up(&self) -> bool {
        self.progress == Progress::Up
    }

    /// Whether it was lost before the server told, and has not been up since: it may take long.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// By which it is known whether something may have been missed since.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether it tells of other keys than it is to.
    pub(crate) fn tells_of_others(&self, keys: &TrackedKeys) -> bool {
        self.keys != *keys
    }

    pub(crate) fn set_keys(&mut self, keys: TrackedKeys) {
        self.keys = keys;
    }

    /// Whether the server has said that it cannot tell, lately.
    pub(crate) fn is_refused(&self, now: Time) -> bool {
        matches!(self.progress, Progress::Refused { until } if now < until)
    }

    /// The connection stands. Returns what is said first.
    pub(crate) fn begin(&mut self, now: Time) -> Vec<u8> {
        (self.progress, self.heard_at, self.asked_at) = (Progress::Greeting, now, Some(now));
        let mut text = Vec::new();
        encode::write_command(&mut text, &[b"HELLO", b"3"]);
        text
    }

    /// The connection is lost: whatever was read before may have changed. Returns what was kept of a message.
    pub(crate) fn end(&mut self) -> Vec<u8> {
        self.has_failed = !self.is_up();
        if !matches!(self.progress, Progress::Refused { .. }) {
            self.progress = Progress::Away;
        }
        self.epoch += 1;
        self.asked_at = None;
        self.is_oversized = false;
        std::mem::take(&mut self.partial)
    }

    /// When the server has to have said something.
    pub(crate) fn deadline(&self) -> Time {
        let from = self.asked_at.map(|at| at.max(self.heard_at));
        from.map_or(Time::NEVER, |from| from.plus_millis(ANSWER_MAX_MS))
    }

    /// What asks the server whether it is there, if it has been silent for long.
    pub(crate) fn question(&mut self, now: Time) -> Option<&'static [u8]> {
        let is_silent = now.micros_since(self.heard_at) >= SILENCE_MAX_MS * 1000;
        if !self.is_up() || !is_silent || self.asked_at.is_some() {
            return None;
        }
        self.asked_at = Some(now);
        Some(b"*1\r\n$4\r\nPING\r\n")
    }

    /// Part of a message has come. What was kept of it is in a buffer of the caller's pool.
    pub(crate) fn keep(&mut self, bytes: &[u8], now: Time, extend: impl FnOnce(&mut Vec<u8>)) {
        self.heard_at = now;
        self.is_oversized |= self.partial.len() + bytes.len() > MESSAGE_MAX;
        if !self.is_oversized {
            extend(&mut self.partial);
        }
    }

    /// The rest of a message has come: what was kept of it, and whether that is all.
    pub(crate) fn take_partial(&mut self, now: Time) -> (Vec<u8>, bool) {
        self.heard_at = now;
        (std::mem::take(&mut self.partial), !std::mem::take(&mut self.is_oversized))
    }

    /// A whole message has come.
    pub(crate) fn hear<'b>(&mut self, message: &'b [u8], now: Time) -> Heard<'b> {
        if message.first() == Some(&b'>') {
            return self.hear_push(message);
        }
        let is_error = resp::is_error(message);
        match (self.progress, message.first()) {
            (Progress::Greeting, Some(b'%')) => {
                self.progress = Progress::Asking;
                let mut text = Vec::new();
                self.keys.write_request(&mut text);
                Heard::Say(text)
            }
            (Progress::Asking, _) if message == b"+OK\r\n" => {
                (self.progress, self.asked_at, self.has_failed) = (Progress::Up, None, false);
                Heard::Up
            }
            (Progress::Greeting | Progress::Asking, _) if is_error => {
                let until = now.plus_millis(REFUSED_FOR_MS);
                (self.progress, self.asked_at) = (Progress::Refused { until }, None);
                Heard::Refused
            }
            // A script is running, or the data are loaded: it is there.
            (Progress::Up, _) if message == b"+PONG\r\n" || is_error => {
                self.asked_at = None;
                Heard::Nothing
            }
            _ => Heard::Misfit,
        }
    }

    fn hear_push<'b>(&mut self, message: &'b [u8]) -> Heard<'b> {
        const INVALIDATE: &[u8] = b">2\r\n$10\r\ninvalidate\r\n";
        let Some(rest) = message.strip_prefix(INVALIDATE) else { return Heard::Nothing };
        let names = rest.strip_prefix(b"*").and_then(number_line);
        match names {
            Some((left, bytes)) => Heard::Keys(Names { bytes, left }),
            None => {
                // All keys were flushed.
                self.epoch += 1;
                Heard::Everything
            }
        }
    }

    /// Something was told that was not kept.
    pub(crate) fn miss(&mut self) {
        self.epoch += 1;
    }
}

/// Whether a reply to PTTL says that it may not be asked, or is not known by that name.
pub(crate) fn is_question_refused(reply: &[u8]) -> bool {
    reply.starts_with(b"-NOPERM") || reply.starts_with(b"-ERR unknown command")
}

/// Whether a reply says in how many milliseconds its key expires: `Some(None)` if never, `None` if it is not there.
pub(crate) fn time_to_live(reply: &[u8]) -> Option<Option<u64>> {
    match resp::reply(reply)? {
        Reply::Integer(-1) => Some(None),
        Reply::Integer(left) => u64::try_from(left).ok().map(Some),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracker() -> Tracker {
        Tracker::new(LaneId::NONE, TrackedKeys::default())
    }

    fn up() -> Tracker {
        let mut tracker = tracker();
        assert_eq!(tracker.begin(Time::ZERO), b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n");
        let heard = tracker.hear(b"%1\r\n+proto\r\n:3\r\n", Time::ZERO);
        assert!(matches!(heard, Heard::Say(text) if text.starts_with(b"*4\r\n$6\r\nCLIENT")));
        assert_eq!(tracker.hear(b"+OK\r\n", Time::ZERO), Heard::Up);
        tracker
    }

    #[test]
    fn prefixes_that_others_begin_with_stand_for_them() {
        let keys = TrackedKeys::new([&b"user:1"[..], b"b", b"user:", b"a", b"ab"]);
        assert_eq!(keys, TrackedKeys::new([&b"a"[..], b"b", b"user:"]));
        assert_eq!(keys.with(&TrackedKeys::new([&b"u"[..]])).0.len(), 3);
        for all in [TrackedKeys::new([]), TrackedKeys::new([&b"a"[..], b""])] {
            assert_eq!(keys.with(&all), TrackedKeys::default());
        }
        let mut text = Vec::new();
        TrackedKeys::new([&b"a"[..]]).write_request(&mut text);
        assert!(text.ends_with(b"$5\r\nBCAST\r\n$6\r\nPREFIX\r\n$1\r\na\r\n"));
    }

    #[test]
    fn names_are_read_in_their_order() {
        let mut tracker = up();
        let push = b">2\r\n$10\r\ninvalidate\r\n*3\r\n$1\r\na\r\n$0\r\n\r\n$4\r\n\r\n$1\r\n";
        let Heard::Keys(names) = tracker.hear(push, Time::ZERO) else { panic!("names") };
        let names: Vec<&[u8]> = names.collect();
        assert_eq!(names, [&b"a"[..], b"", b"\r\n$1"]);
        assert_eq!(tracker.epoch(), 0);
    }

    #[test]
    fn a_flush_and_a_lost_connection_end_the_epoch() {
        for nothing in [&b"_\r\n"[..], b"*-1\r\n"] {
            let mut tracker = up();
            let push = [&b">2\r\n$10\r\ninvalidate\r\n"[..], nothing].concat();
            assert_eq!(tracker.hear(&push, Time::ZERO), Heard::Everything);
            assert_eq!((tracker.epoch(), tracker.is_up()), (1, true));
            tracker.end();
            assert_eq!((tracker.epoch(), tracker.is_up()), (2, false));
        }
    }

    #[test]
    fn a_server_that_does_not_know_it_is_left_alone_for_a_while() {
        let mut tracker = tracker();
        tracker.begin(Time::ZERO);
        assert_eq!(tracker.hear(b"-ERR unknown command 'HELLO'\r\n", Time::ZERO), Heard::Refused);
        tracker.end();
        assert!(tracker.is_refused(Time::ZERO));
        assert!(!tracker.is_refused(Time::ZERO.plus_millis(REFUSED_FOR_MS)));
    }

    #[test]
    fn silence_is_asked_about_once() {
        let mut tracker = up();
        assert_eq!(tracker.deadline(), Time::NEVER);
        let later = Time::ZERO.plus_millis(SILENCE_MAX_MS);
        assert_eq!(tracker.question(Time::ZERO), None);
        assert!(tracker.question(later).is_some());
        assert_eq!(tracker.question(later), None);
        assert_eq!(tracker.deadline(), later.plus_millis(ANSWER_MAX_MS));
        assert_eq!(tracker.hear(b"+PONG\r\n", later), Heard::Nothing);
        assert_eq!(tracker.deadline(), Time::NEVER);
        assert_eq!(tracker.hear(b":1\r\n", later), Heard::Misfit);
    }

    #[test]
    fn it_is_news_once_that_replies_cannot_be_kept() {
        let mut tracker = tracker();
        assert_eq!(tracker.note_needed(Needed::Life, false), None);
        assert_eq!(tracker.note_needed(Needed::Tracking, true), Some(false));
        assert_eq!(tracker.note_needed(Needed::Tracking, true), None);
        assert_eq!(tracker.note_needed(Needed::Life, true), None);
        assert_eq!(tracker.note_needed(Needed::Tracking, false), None);
        assert!(tracker.refuses_keeping());
        assert_eq!(tracker.note_needed(Needed::Life, false), Some(true));
        assert_eq!(tracker.note_needed(Needed::Life, true), Some(false));
        assert!(tracker.forget_needed() && !tracker.forget_needed());
        assert!(!tracker.refuses_keeping());
        assert!(is_question_refused(b"-NOPERM User default has no permissions\r\n"));
        assert!(!is_question_refused(b"-LOADING Redis is loading\r\n"));
    }

    #[test]
    fn times_to_live_are_told_apart() {
        assert_eq!(time_to_live(b":-1\r\n"), Some(None));
        assert_eq!(time_to_live(b":1500\r\n"), Some(Some(1500)));
        for none in [&b":-2\r\n"[..], b"-ERR no\r\n", b"+OK\r\n"] {
            assert_eq!(time_to_live(none), None);
        }
    }
}
