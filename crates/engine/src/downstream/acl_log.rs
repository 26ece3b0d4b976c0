//! What users of a port were denied, as ACL LOG tells it: of one worker, and lost with it.

use std::collections::VecDeque;

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

    /// The latest first.
    pub(crate) fn entries(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.entries.iter()
    }

    pub(crate) fn clear(&mut self) {
        self.entries = VecDeque::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            log.entries().map(|entry| (entry.object.clone(), entry.count)).collect()
        };
        assert_eq!(shown(&log), [(b"a".to_vec(), 2), (b"b".to_vec(), 1)]);
        add(&mut log, "b", GROUP_MS + 2);
        assert_eq!(shown(&log)[0], (b"b".to_vec(), 1), "another entry, as it was long ago");
        let long = "x".repeat(TEXT_MAX + 1);
        add(&mut log, &long, 0);
        assert_eq!(shown(&log)[0].0.len(), TEXT_MAX);
        (0..200).for_each(|i| add(&mut log, &i.to_string(), 0));
        assert_eq!(log.entries().len(), ENTRIES_MAX);
        log.clear();
        assert_eq!(log.entries().len(), 0);
    }
}
