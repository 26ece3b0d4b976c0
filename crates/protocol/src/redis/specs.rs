//! COMMAND's key specifications: the positions of keys and their use.

use super::{Command, Keys};
use crate::Span;

/// The position of some of a command's keys, and their use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpec {
    /// Separated by spaces.
    pub uses: &'static str,
    pub begin: BeginSearch,
    pub find: FindKeys,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeginSearch {
    Index(u16),
    /// After the first such word from this index on; a negative index counts from the end.
    Keyword(&'static str, i16),
    Unknown,
}

/// Counted from where the search begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindKeys {
    /// A negative `last` counts from the end; `limit` is the part of the rest that has keys: 2 is
    /// the first half.
    Range {
        last: i16,
        step: u16,
        limit: u16,
    },
    Keynum {
        first: u16,
        step: u16,
    },
    Unknown,
}

const ONE: FindKeys = FindKeys::Range { last: 0, step: 1, limit: 0 };
const TO_THE_END: FindKeys = FindKeys::Range { last: -1, step: 1, limit: 0 };

impl Command {
    /// The use of the keys, by groups of keys.
    fn uses(&self) -> impl Iterator<Item = &'static str> + Clone {
        self.facts.uses.split(", ").filter(|uses| !uses.is_empty())
    }

    pub fn key_specs(&self) -> Vec<KeySpec> {
        let places = self.places();
        let uses = self.uses();
        uses.zip(places).map(|(uses, (begin, find))| KeySpec { uses, begin, find }).collect()
    }

    /// The positions of the keys of each group.
    fn places(&self) -> Vec<(BeginSearch, FindKeys)> {
        use BeginSearch::{Index, Keyword, Unknown};
        let unknown = (Unknown, FindKeys::Unknown);
        match self.keys {
            Keys::None => Vec::new(),
            Keys::Range { first, last, step } => {
                let behind = |index: u16| match last {
                    0.. => last - index as i16,
                    _ => last,
                };
                let range = |index| FindKeys::Range { last: behind(index), step, limit: 0 };
                match self.uses().count() {
                    2 if behind(first) == 0 => vec![(Index(first), ONE), unknown],
                    2 => vec![(Index(first), ONE), (Index(first + 1), range(first + 1))],
                    _ => vec![(Index(first), range(first))],
                }
            }
            Keys::Pairs { .. } => {
                vec![(Index(1), FindKeys::Range { last: -1, step: 2, limit: 0 })]
            }
            Keys::Numkeys { at, first, step, destination, .. } => {
                let keys = (Index(at), FindKeys::Keynum { first: first - at, step });
                match destination {
                    0 => vec![keys],
                    destination => vec![(Index(destination), ONE), keys],
                }
            }
            Keys::Sort { stores: true } => vec![(Index(1), ONE), unknown, unknown],
            Keys::Sort { stores: false } => vec![(Index(1), ONE), unknown],
            Keys::Georadius => {
                let options = self.arity.unsigned_abs() as i16;
                ["STORE", "STOREDIST"].iter().fold(vec![(Index(1), ONE)], |mut places, word| {
                    places.push((Keyword(word, options), ONE));
                    places
                })
            }
            Keys::Streams => {
                let options = if self.name == "xreadgroup" { 4 } else { 1 };
                let half = FindKeys::Range { last: -1, step: 1, limit: 2 };
                vec![(Keyword("STREAMS", options), half)]
            }
            Keys::Migrate => vec![(Index(3), ONE), (Keyword("KEYS", -2), TO_THE_END)],
        }
    }

    /// Whether the table's keys are names of other things: of channels.
    pub fn has_no_true_keys(&self) -> bool {
        self.keys == Keys::None || self.facts.uses == "not_key"
    }

    /// The use of a call's key at this position among its keys, in the words of COMMAND's key
    /// specifications, separated by spaces.
    pub fn uses_in(&self, buf: &[u8], args: &[Span], position: usize) -> &'static str {
        match self.name {
            "set" if is_among(b"get", buf, args.get(3..)) => return "RW access update",
            "set" => return "OW update",
            "bitfield" if only_reads(buf, args) => return "RO access",
            "bitfield" => return "RW access update",
            _ => {}
        }
        let uses = self.uses();
        let group = match self.keys {
            // The last group has the destination.
            Keys::Sort { .. } if position > 0 => usize::MAX,
            _ => position,
        };
        uses.clone().nth(group).or(uses.last()).unwrap_or_default()
    }
}

fn is_among(word: &[u8], buf: &[u8], args: Option<&[Span]>) -> bool {
    args.unwrap_or_default().iter().any(|arg| arg.of(buf).eq_ignore_ascii_case(word))
}

/// Whether a BITFIELD has nothing but GETs.
fn only_reads(buf: &[u8], args: &[Span]) -> bool {
    let mut rest = args.get(2..).unwrap_or_default();
    while let [operation, arguments @ ..] = rest {
        let operation = operation.of(buf);
        let taken = match arguments.len() {
            2.. if operation.eq_ignore_ascii_case(b"get") => 2,
            1.. if operation.eq_ignore_ascii_case(b"overflow") => 1,
            _ => return false,
        };
        rest = &arguments[taken..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::COMMANDS;

    #[test]
    fn every_group_of_keys_has_a_place() {
        for command in COMMANDS.iter().filter(|command| !command.name.starts_with("debug|")) {
            let (uses, places) = (command.uses().count(), command.places().len());
            // One use may be that of all keys.
            assert!(uses == places, "{}: {uses} {places}", command.name);
            assert_eq!(uses == 0, command.keys == Keys::None, "{}", command.name);
        }
    }
}
