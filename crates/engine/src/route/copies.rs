//! Names of copies of a hot key's value, which other servers than its own have.
//!
//! Here is only what a worker knows of them. What is sent to them, and why it is right, is in
//! [`crate::engine::copies`].

use cashew_acl::OWN_KEYS;

use crate::base::id::ServerId;
use crate::base::time::Time;
use crate::route::cache::Origin;

/// The names that a worker gives. None of them is given twice, by whomever: they begin with noise that is this worker's,
/// and have a number that is one fill's.
#[derive(Debug, Default)]
pub(crate) struct Names {
    noise: [u64; 2],
    fills: u64,
}

impl Names {
    /// `noise` is all that makes them differ from other workers' names.
    pub(crate) fn new(noise: [u64; 2]) -> Self {
        Self { noise, fills: 0 }
    }

    /// Another fill, whose copies have names of their own.
    pub(crate) fn next_fill(&mut self) -> u64 {
        self.fills += 1;
        self.fills
    }

    /// The name of a copy. It has no braces: a hash tag would have all copies on one server. Its number stands in front, as
    /// pools' default hash puts names close together that differ in their last bytes alone.
    pub(crate) fn name(&self, fill: u64, number: u8) -> Vec<u8> {
        let [one, other] = self.noise;
        [OWN_KEYS, format!("{number}:{one:016x}{other:016x}-{fill:x}").as_bytes()].concat()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Its server has not said yet that it has it.
    Writing,
    There,
    /// It was not there, its server did not answer, or does not take it.
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) server: ServerId,
    /// Of its name.
    pub(crate) number: u8,
    pub(crate) state: State,
}

/// The copies of what one fill has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copies {
    /// Of their names.
    pub(crate) fill: u64,
    /// Bytes of a reply that has the value.
    pub(crate) reply_len: usize,
    pub(crate) all: Vec<Copy>,
    /// How many reads went to them.
    pub(crate) reads: u64,
}

impl Copies {
    /// Those that may be read.
    pub(crate) fn there(&self) -> impl Iterator<Item = &Copy> {
        self.all.iter().filter(|copy| copy.state == State::There)
    }

    /// The copy of this number, if it may be read.
    pub(crate) fn readable(&self, number: u8) -> Option<Copy> {
        self.there().find(|copy| copy.number == number).copied()
    }

    pub(crate) fn set_state(&mut self, number: u8, state: State) {
        self.all.iter_mut().filter(|it| it.number == number).for_each(|it| it.state = state);
    }

    /// Whether there are fewer than there were to be.
    pub(crate) fn are_short(&self) -> bool {
        self.all.is_empty() || self.all.iter().any(|copy| copy.state == State::Lost)
    }

    /// Whether they were read more often than it took commands to write and to remove them.
    pub(crate) fn have_paid(&self) -> bool {
        self.reads > 2 * self.all.len() as u64
    }
}

/// A fill that is ready, of which copies are to be written.
#[derive(Debug)]
pub(crate) struct Unwritten {
    /// As the server replied.
    pub(crate) reply: Box<[u8]>,
    pub(crate) origin: Origin,
    pub(crate) expires: Time,
    /// How many are to be written at most.
    pub(crate) copies: u8,
}

/// Whether a reply to the read of a copy, by its start, has the value.
pub(crate) fn is_value(start: &[u8]) -> bool {
    matches!(start, [b'$', b'0'..=b'9', ..])
}

/// Bytes of the whole reply that has a value, by its start, if that is all of its first line.
pub(crate) fn whole_len(start: &[u8]) -> Option<usize> {
    let rest = start.strip_prefix(b"$")?;
    let end = rest.iter().take(20).position(|&byte| byte == b'\r')?;
    let len: usize = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
    len.checked_add(1 + end + 2 + 2)
}

/// The value that a whole reply has.
pub(crate) fn value_of(reply: &[u8]) -> Option<&[u8]> {
    let start = reply.iter().position(|&byte| byte == b'\n')? + 1;
    reply.get(start..reply.len().checked_sub(2)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_given_twice_and_none_has_a_hash_tag() {
        let (mut one, mut other) = (Names::new([1, 2]), Names::new([2, 1]));
        let mut all: Vec<Vec<u8>> = Vec::new();
        for _ in 0..40 {
            let fills = [one.next_fill(), other.next_fill()];
            for number in 0..64 {
                all.extend([one.name(fills[0], number), other.name(fills[1], number)]);
            }
        }
        assert!(all.iter().all(|it| it.starts_with(OWN_KEYS) && !it.contains(&b'{')));
        assert!(all.iter().all(|name| name.len() < 64));
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn values_are_told_from_other_replies() {
        assert!(is_value(b"$0") && is_value(b"$12\r\nab") && is_value(b"$1\r\nx\r\n"));
        for none in [&b""[..], b"$", b"$-1\r\n", b"_\r\n", b"-ERR no\r\n", b"+OK\r\n"] {
            assert!(!is_value(none));
        }
        assert_eq!(whole_len(b"$12\r\nab"), Some(19));
        assert_eq!(whole_len(b"$0\r\n\r\n"), Some(6));
        for none in [&b"$1"[..], b"$-1\r\n", b"-ERR\r\n", b"$99999999999999999999999\r\n"] {
            assert_eq!(whole_len(none), None);
        }
        assert_eq!(value_of(b"$3\r\na\nb\r\n"), Some(&b"a\nb"[..]));
        assert_eq!(value_of(b"$0\r\n\r\n"), Some(&b""[..]));
        assert_eq!(value_of(b"x"), None);
    }
}
