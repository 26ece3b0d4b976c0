//! Random requests by the grammar of each protocol, half of them valid, the others corrupted.

pub mod binary;
pub mod limits;
mod mutate;
pub mod redis;
pub mod text;

use crate::case::{Case, Request};
use crate::random::Random;

/// The protocol of a pool's clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Redis,
    /// memcached's text and meta commands.
    Text,
    Binary,
}

/// The case of that number.
pub fn case(protocol: Protocol, random: &mut Random) -> Case {
    let count = random.pick(&[1, 1, 1, 1, 1, 2, 2, 3]);
    let requests = (0..count).map(|_| request(protocol, random)).collect();
    Case {
        requests,
        resp3: protocol == Protocol::Redis && random.percent(40),
        accompanied: random.percent(40),
        cuts: random.number(),
    }
}

pub fn request(protocol: Protocol, random: &mut Random) -> Request {
    match protocol {
        Protocol::Redis => redis::request(random),
        Protocol::Text => text::request(random),
        Protocol::Binary => binary::request(random),
    }
}

/// Unusual numbers. None requests more of a server than it can give at once: a count of elements is
/// small, or refused.
pub(crate) const NUMBERS: &[&str] = &[
    "0",
    "1",
    "2",
    "3",
    "5",
    "7",
    "10",
    "100",
    "-1",
    "-2",
    "-5",
    "+1",
    "01",
    "007",
    "-0",
    "0x10",
    "1e3",
    "1.5",
    "-1.5",
    ".5",
    "1.",
    " 1",
    "1 ",
    "",
    "1a",
    "a1",
    "inf",
    "-inf",
    "nan",
    "65535",
    "65536",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999",
    "--1",
    "1,2",
    "٣",
];

pub(crate) fn number(random: &mut Random) -> Vec<u8> {
    if random.percent(60) {
        return random.pick(&["0", "1", "2", "3", "10"]).as_bytes().to_vec();
    }
    random.pick(NUMBERS).as_bytes().to_vec()
}

/// Bytes with a special meaning somewhere.
pub(crate) const ODD: &[&[u8]] = &[
    b"\0",
    b"\r",
    b"\n",
    b"\r\n",
    b"\t",
    b" ",
    b"\"",
    b"'",
    b"\\",
    b"\xff",
    b"\x80",
    b"\r\n\r\n",
    b"\0\r\n",
    b"\n\r",
    b"\\x00",
    b"\\r\\n",
    b"$",
    b"*",
    b"-",
    b"+",
    b":",
    b"%",
    b"END\r\n",
    b"VALUE a 0 1\r\na\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
    b"-ERR\r\n",
    b"HD\r\n",
    b"EN\r\n",
    b"VA 1\r\n",
];

pub(crate) use mutate::{mutated_bytes, mutated_words};

#[cfg(test)]
mod tests {
    use super::*;

    const PROTOCOLS: [Protocol; 3] = [Protocol::Redis, Protocol::Text, Protocol::Binary];

    #[test]
    fn a_seed_always_makes_the_same_cases() {
        for protocol in PROTOCOLS {
            let cases = |seed| -> Vec<Case> {
                let mut random = Random::new(seed);
                (0..300).map(|_| case(protocol, &mut random)).collect()
            };
            assert_eq!(cases(1), cases(1));
            assert_ne!(cases(1), cases(2));
        }
    }

    #[test]
    fn requests_are_of_all_kinds_and_not_too_large() {
        for protocol in PROTOCOLS {
            let mut random = Random::new(3);
            let requests: Vec<Vec<u8>> =
                (0..20_000).map(|_| request(protocol, &mut random).bytes()).collect();
            let mut openings: Vec<&[u8]> =
                requests.iter().map(|bytes| &bytes[..bytes.len().min(12)]).collect();
            openings.sort_unstable();
            openings.dedup();
            assert!(openings.len() > 100, "{protocol:?}: {}", openings.len());
            let largest = requests.iter().map(Vec::len).max().unwrap_or(0);
            assert!((250_000..4_000_000).contains(&largest), "{protocol:?}: {largest}");
        }
    }
}
