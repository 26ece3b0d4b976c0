//! What users of a port were denied, as ACL LOG tells it: each worker keeps its own, lost with it, and who asks
//! puts those of all together.

use std::cmp::Reverse;
use std::collections::VecDeque;

use cashew_protocol::resp::{Parsed, RequestParser, encode};

use crate::base::time::Time;

/// Entries that are kept, as in Redis unless it is configured otherwise.
const ENTRIES_MAX: usize = 128;
/// Bytes that are kept of a key, a channel or a name.
const TEXT_MAX: usize = 256;
/// Denials of one kind within such a time are one entry, if it is among the latest few.
const GROUP_MS: u64 = 60_000;
const GROUP_ENTRIES: usize = 10;

#[derive(Default)]
pub(crate) struct AclLog {
    entries: VecDeque<Entry>,
}

/// Denials that are alike.
pub(crate) struct Entry {
    pub(crate) count: u64,
    /// "command", "key", "channel" or "auth".
    pub(crate) reason: &'static str,
    /// "toplevel" or "multi".
    pub(crate) context: &'static str,
    /// The command, the key or the channel.
    pub(crate) object: Vec<u8>,
    pub(crate) user: Vec<u8>,
    pub(crate) last: Time,
    /// By whom: the last one's id.
    pub(crate) client: u64,
}

impl AclLog {
    pub(crate) fn add(
        &mut self,
        (reason, context): (&'static str, &'static str),
        object: &[u8],
        user: &[u8],
        (client, now): (u64, Time),
    ) {
        let object = &object[..object.len().min(TEXT_MAX)];
        let user = &user[..user.len().min(TEXT_MAX)];
        let is_like = |entry: &Entry| {
            (entry.reason, entry.context) == (reason, context)
                && (&*entry.object, &*entry.user) == (object, user)
                && now <= entry.last.plus_millis(GROUP_MS)
        };
        let known = self.entries.iter().take(GROUP_ENTRIES).position(is_like);
        let mut entry = known.and_then(|at| self.entries.remove(at)).unwrap_or_else(|| {
            let (object, user) = (object.to_vec(), user.to_vec());
            Entry { count: 0, reason, context, object, user, last: now, client }
        });
        entry.count += 1;
        (entry.last, entry.client) = (now, client);
        self.entries.push_front(entry);
        self.entries.truncate(ENTRIES_MAX);
    }

    /// As other workers, whose clock is the same, are told of it: each entry is written like a request.
    pub(crate) fn encoded(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for entry in &self.entries {
            let numbers = [entry.count, entry.last.as_micros(), entry.client];
            let [count, last, client] = numbers.map(|number| number.to_string());
            let [count, last, client] = [&count, &last, &client].map(|text| text.as_bytes());
            let (reason, context) = (entry.reason.as_bytes(), entry.context.as_bytes());
            let words = [count, last, client, reason, context, &entry.object, &entry.user];
            encode::write_command(&mut out, &words);
        }
        out
    }

    pub(crate) fn clear(&mut self) {
        self.entries = VecDeque::new();
    }
}

/// An entry of the logs of several workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told<'b> {
    pub(crate) count: u64,
    pub(crate) last: Time,
    pub(crate) client: u64,
    pub(crate) reason: &'b [u8],
    pub(crate) context: &'b [u8],
    pub(crate) object: &'b [u8],
    pub(crate) user: &'b [u8],
}

impl<'b> Told<'b> {
    fn parse(words: &[&'b [u8]]) -> Option<Self> {
        let &[count, last, client, reason, context, object, user] = words else { return None };
        let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<u64>().ok();
        let [count, last, client] = [number(count)?, number(last)?, number(client)?];
        let last = Time::from_micros(last);
        Some(Self { count, last, client, reason, context, object, user })
    }

    /// Whether it belongs to an entry that is not older.
    fn is_like(&self, other: &Self) -> bool {
        (self.reason, self.context, self.object, self.user)
            == (other.reason, other.context, other.object, other.user)
            && other.last <= self.last.plus_millis(GROUP_MS)
    }
}

/// What workers have told, as one log: the latest first.
pub(crate) fn put_together(mut told: &[u8]) -> Vec<Told<'_>> {
    let mut all = Vec::new();
    let mut parser = RequestParser::default();
    while let Parsed::Complete { len } = parser.parse(told, told.len()) {
        let words: Vec<&[u8]> = parser.args().iter().map(|arg| arg.of(told)).collect();
        all.extend(Told::parse(&words));
        told = &told[len..];
        parser = RequestParser::default();
    }
    all.sort_by_key(|told| Reverse(told.last));
    let mut log: Vec<Told<'_>> = Vec::new();
    for told in all {
        if let Some(known) = log.iter_mut().find(|known| told.is_like(known)) {
            known.count = known.count.saturating_add(told.count);
        } else if log.len() < ENTRIES_MAX {
            log.push(told);
        }
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_of_workers_are_one() {
        let at = |ms: u64| Time::default().plus_millis(ms);
        let mut logs = [AclLog::default(), AclLog::default()];
        for (worker, client, object, ms) in
            [(0, 1, "a", 0), (0, 1, "b\r\n", 5), (1, 2, "a", 10), (1, 2, "c", GROUP_MS + 11)]
        {
            let key = ("key", "toplevel");
            logs[worker].add(key, object.as_bytes(), b"ann", (client, at(ms)));
        }
        logs[0].add(("key", "toplevel"), b"c", b"ann", (1, at(11)));
        let told = [logs[0].encoded(), logs[1].encoded()].concat();
        let seen: Vec<(&[u8], u64, Time, u64)> = put_together(&told)
            .iter()
            .map(|told| (told.object, told.count, told.last, told.client))
            .collect();
        assert_eq!(
            seen,
            [(&b"c"[..], 2, at(GROUP_MS + 11), 2), (b"a", 2, at(10), 2), (b"b\r\n", 1, at(5), 1),]
        );
        let many = [&b"1"[..], b"5", b"7", b"key", b"toplevel"];
        let mut told = Vec::new();
        (0..200).for_each(|i: u32| {
            let object = i.to_string();
            encode::write_command(&mut told, &[&many[..], &[object.as_bytes(), b"u"]].concat());
        });
        assert_eq!(put_together(&told).len(), ENTRIES_MAX);
        assert_eq!(put_together(b"*1\r\n$1\r\nx\r\n*7\r\n$1"), []);
    }

    #[test]
    fn denials_that_are_alike_are_one_entry_and_the_oldest_go() {
        let mut log = AclLog::default();
        let at = |ms: u64| Time::default().plus_millis(ms);
        let add = |log: &mut AclLog, object: &str, ms| {
            log.add(("key", "toplevel"), object.as_bytes(), b"ann", (7, at(ms)));
        };
        add(&mut log, "a", 0);
        add(&mut log, "b", 1);
        add(&mut log, "a", 2);
        let shown = |log: &AclLog| -> Vec<(Vec<u8>, u64)> {
            log.entries.iter().map(|entry| (entry.object.clone(), entry.count)).collect()
        };
        assert_eq!(shown(&log), [(b"a".to_vec(), 2), (b"b".to_vec(), 1)]);
        add(&mut log, "b", GROUP_MS + 2);
        assert_eq!(shown(&log)[0], (b"b".to_vec(), 1), "another entry, as it was long ago");
        let long = "x".repeat(TEXT_MAX + 1);
        add(&mut log, &long, 0);
        assert_eq!(shown(&log)[0].0.len(), TEXT_MAX);
        (0..200).for_each(|i| add(&mut log, &i.to_string(), 0));
        assert_eq!(log.entries.len(), ENTRIES_MAX);
        log.clear();
        assert_eq!(log.entries.len(), 0);
    }
}
