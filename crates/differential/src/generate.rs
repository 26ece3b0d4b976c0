//! Random requests: by the grammar of each protocol, half right, and spoiled.

pub mod binary;
mod mutate;
pub mod redis;
pub mod text;

use crate::case::{Case, Request};
use crate::random::Random;

/// What the clients of a pool speak.
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

/// Numbers of odd forms. None asks a server for more than it can give at once: a count of elements is
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

/// Bytes that mean something somewhere.
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
