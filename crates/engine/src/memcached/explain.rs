//! `stats route KEY [COMMAND]`: where a key goes, a statistic for each node of the route.
//!
//! No server is asked, and none has statistics of this name. The names are numbers, since clients may keep
//! statistics by name; the order, and the indents of the values, say what is below what.

use cashew_config::snapshot::Reach;
use cashew_protocol::memcached::{KEY_SIZE_MAX, Verb};
use cashew_protocol::redis::Access;

use crate::route::explain::{Explanation, once};
use crate::topology::route_tree::Operation;

/// What is asked about: a command of one key. Without a command it is read.
pub(super) struct Query<'a> {
    pub(super) key: &'a [u8],
    pub(super) access: Access,
    pub(super) operation: Operation,
    pub(super) reach: Reach,
    /// It must run once.
    once: Option<String>,
}

/// Whom a command of memcached's text protocol reaches in its plainest form where several are asked.
pub fn memcached_reach(word: &str) -> Reach {
    Verb::from_word(word.as_bytes()).map_or(Reach::Once, reach)
}

fn reach(verb: Verb) -> Reach {
    match verb {
        Verb::Add
        | Verb::Replace
        | Verb::Append
        | Verb::Prepend
        | Verb::Cas
        | Verb::Incr
        | Verb::Decr
        | Verb::MetaArithmetic => Reach::Once,
        _ => Reach::All,
    }
}

impl<'a> Query<'a> {
    /// Reads what is behind `route`; returns what is wrong with it.
    pub(super) fn parse(mut words: impl Iterator<Item = &'a [u8]>) -> Result<Self, String> {
        let key = words.next().unwrap_or_default();
        if key.is_empty() || key.len() > KEY_SIZE_MAX {
            return Err(format!("a key has 1 to {KEY_SIZE_MAX} bytes"));
        }
        let called = words.next().unwrap_or(b"get");
        let name = String::from_utf8_lossy(called);
        let Some(verb) = Verb::from_word(called) else {
            return Err(format!("there is no command '{}'", name.escape_debug()));
        };
        let (access, operation) = match verb {
            Verb::Get | Verb::MetaGet | Verb::MetaDebug => (Access::Read, Operation::Read),
            Verb::Gets => (Access::Walk, Operation::Read),
            Verb::Delete | Verb::MetaDelete => (Access::Write, Operation::Delete),
            Verb::Set | Verb::Touch | Verb::Gat | Verb::Gats | Verb::MetaSet => {
                (Access::Write, Operation::Write)
            }
            Verb::Add
            | Verb::Replace
            | Verb::Append
            | Verb::Prepend
            | Verb::Cas
            | Verb::Incr
            | Verb::Decr
            | Verb::MetaArithmetic => (Access::Write, Operation::Write),
            Verb::FlushAll
            | Verb::Verbosity
            | Verb::Version
            | Verb::Quit
            | Verb::Stats
            | Verb::Tune
            | Verb::Refused
            | Verb::MetaNoop => return Err(format!("{name} does not go by a key")),
        };
        let reach = reach(verb);
        let once = (reach == Reach::Once).then(|| once(&name));
        Ok(Self { key, access, operation, reach, once })
    }

    /// Name and value of each statistic.
    pub(super) fn rows(self, explanation: Explanation) -> impl Iterator<Item = (String, String)> {
        let Explanation { lines, is_forked } = explanation;
        let once = self.once.filter(|_| is_forked).map(|once| ("note".to_owned(), once));
        let lines = (1..).zip(lines).map(|(number, line): (u32, _)| (number.to_string(), line));
        once.into_iter().chain(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed<'a>(words: &[&'a str]) -> Result<Query<'a>, String> {
        Query::parse(words.iter().map(|word| word.as_bytes()))
    }

    #[test]
    fn commands_of_a_key_are_known_and_no_others() {
        for (words, expected) in [
            (&["k"][..], (Access::Read, Operation::Read)),
            (&["k", "gets"], (Access::Walk, Operation::Read)),
            (&["k", "gat"], (Access::Write, Operation::Write)),
            (&["k", "md"], (Access::Write, Operation::Delete)),
            (&["k", "incr"], (Access::Write, Operation::Write)),
        ] {
            let query = parsed(words).ok().map(|query| (query.access, query.operation));
            assert_eq!(query, Some(expected), "{words:?}");
        }
        for words in [&["k", "GET"][..], &["k", "stats"], &["k", "mn"], &["k", "\r"], &[""], &[]] {
            assert!(parsed(words).is_err(), "{words:?}");
        }
        assert!(parsed(&["k", "\r"]).err().is_some_and(|text| !text.contains('\r')));
    }

    #[test]
    fn what_must_run_once_is_noted_where_there_are_several_pools() {
        let rows = |command, is_forked| {
            let lines = vec!["all_sync".to_owned(), "  pool a".to_owned()];
            let rows = parsed(&["k", command]).unwrap().rows(Explanation { lines, is_forked });
            rows.map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(rows("incr", true), ["note", "1", "2"]);
        assert_eq!(rows("incr", false), ["1", "2"]);
        assert_eq!(rows("set", true), ["1", "2"]);
    }
}
