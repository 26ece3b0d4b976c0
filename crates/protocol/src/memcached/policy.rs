//! Which of memcached's commands that affect all clients of a server the clients of a pool may use.
//!
//! Commands that read or store values are not included: they are always allowed.

use super::words;
use crate::redis::Clearance;

/// By name, as in a configuration: a command, or a word of `stats` after it.
const CHORES: [(&str, Clearance); 12] = [
    ("cache_memlimit", Clearance::Admin),
    ("extstore", Clearance::Admin),
    ("flush_all", Clearance::Application),
    ("lru", Clearance::Admin),
    ("lru_crawler", Clearance::Admin),
    ("refresh_certs", Clearance::Admin),
    ("slabs", Clearance::Admin),
    ("stats|detail", Clearance::Admin),
    ("stats|reset", Clearance::Admin),
    ("stats|sizes_disable", Clearance::Admin),
    ("stats|sizes_enable", Clearance::Admin),
    ("verbosity", Clearance::Admin),
];

/// The names of all of them.
pub fn chores() -> impl Iterator<Item = &'static str> {
    CHORES.iter().map(|&(name, _)| name)
}

/// The decision for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChorePolicy {
    refused: u16,
}

impl ChorePolicy {
    /// `deny` decides if both lists have the same entry.
    pub fn new(base: Clearance, allow: &[String], deny: &[String]) -> Self {
        let has = |list: &[String], name: &str| list.iter().any(|entry| entry == name);
        let is_refused = |&(name, clearance): &(&str, Clearance)| {
            has(deny, name) || clearance > base && !has(allow, name)
        };
        let refused = CHORES.iter().enumerate().filter(|(_, chore)| is_refused(chore));
        Self { refused: refused.map(|(at, _)| 1 << at).sum() }
    }

    /// The name of the command in this line if clients may not use it.
    pub fn refusal(self, line: &[u8]) -> Option<&'static str> {
        let mut words = words(line);
        let name = words.next()?;
        match name {
            b"stats" => self.refusal_of_stats(words.next()?),
            _ => self.refused_named(|chore| chore.as_bytes() == name),
        }
    }

    /// The same for the word after `stats`, or in a packet for statistics.
    pub fn refusal_of_stats(self, word: &[u8]) -> Option<&'static str> {
        self.refused_named(|chore| {
            chore.strip_prefix("stats|").is_some_and(|of_it| of_it.as_bytes() == word)
        })
    }

    /// All that are refused.
    pub fn refused(self) -> impl Iterator<Item = &'static str> {
        CHORES
            .iter()
            .enumerate()
            .filter(move |(at, _)| self.refused & 1 << at != 0)
            .map(|(_, c)| c.0)
    }

    fn refused_named(self, is_it: impl Fn(&str) -> bool) -> Option<&'static str> {
        self.refused().find(|name| is_it(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_base_allows_what_those_below_do() {
        let count = |base| ChorePolicy::new(base, &[], &[]).refused().count();
        let [cache, application, admin] =
            [Clearance::Cache, Clearance::Application, Clearance::Admin].map(count);
        assert_eq!((cache, application, admin), (CHORES.len(), CHORES.len() - 1, 0));
    }

    #[test]
    fn lines_are_looked_up_by_their_words() {
        let policy = ChorePolicy::new(Clearance::Application, &["slabs".into()], &[]);
        for (line, expected) in [
            ("slabs automove 0", None),
            ("lru tune 1 2", Some("lru")),
            ("lru_crawler crawl all", Some("lru_crawler")),
            ("  stats  reset", Some("stats|reset")),
            ("stats detail on", Some("stats|detail")),
            ("stats sizes_enable", Some("stats|sizes_enable")),
            ("stats sizes", None),
            ("stats", None),
            ("stats items", None),
            ("flush_all 0", None),
            ("verbosity 1", Some("verbosity")),
            ("", None),
        ] {
            assert_eq!(policy.refusal(line.as_bytes()), expected, "{line}");
        }
        let deny = ["flush_all".into(), "slabs".into()];
        let policy = ChorePolicy::new(Clearance::Admin, &["slabs".into()], &deny);
        assert_eq!(policy.refusal(b"flush_all"), Some("flush_all"));
        assert_eq!(policy.refusal(b"slabs automove 1"), Some("slabs"));
        assert_eq!(policy.refusal_of_stats(b"reset"), None);
    }
}
