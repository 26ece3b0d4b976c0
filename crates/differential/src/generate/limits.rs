//! Requests about keys that are nearly as long as servers take, with values that are commands. A gateway that makes
//! such a key longer, or empty, has the server refuse the line and run the value.

use super::Protocol;
use super::binary::packet;
use crate::case::Request;
use crate::random::Random;

/// 250 bytes are the most. In base64 that is 187 bytes, whose text is longer; 186 are 248 bytes of text. What is in front
/// of a key is a few bytes long.
const SIZES: &[usize] = &[
    1, 2, 183, 184, 185, 186, 187, 236, 238, 240, 241, 242, 243, 244, 245, 246, 247, 248, 249, 250,
    251,
];

/// What a route strips. A key that is nothing else is empty then.
const STRIPPED: &str = "blog:";

/// A key with line ends, in base64. A server tells the key of an item that `N` has made as its bytes are.
const LINES: &str = "a2V5DQpWQUxVRSB3MCAwIDYNCmZvcmdlZA0KRU5EDQo=";

/// Values of which each is a command, or looks like a reply.
const VALUES: &[&[u8]] = &[
    b"mg k1 v",
    b"set k1 0 0 1\r\nx",
    b"set k1 0 0 100",
    b"flush_all",
    b"quit",
    b"mn",
    b"get k1 k2",
    b"gets k1\r\nget k2",
    b"ms k1 1\r\nx",
    b"END",
    b"HD\r\nEN",
    b"*1\r\n$4\r\nPING",
    b"*3\r\n$3\r\nSET\r\n$2\r\nk1\r\n$1\r\nx",
    b"*2\r\n$3\r\nGET\r\n$2\r\nk1",
    b"$-1\r\n*-1",
    b"\x80\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\0",
    b"1",
];

fn key(random: &mut Random) -> String {
    let size = random.pick(SIZES);
    match random.below(8) {
        0 => STRIPPED.to_owned(),
        1 => format!("{STRIPPED}{}", "k".repeat(size)),
        2 => "n".repeat(size),
        // What is left is the word for silence.
        3 => format!("{STRIPPED}noreply"),
        _ => "k".repeat(size),
    }
}

/// So many bytes in base64.
fn base64(size: usize) -> String {
    let rest = ["", "AA==", "AAA="][size % 3];
    "AAAA".repeat(size / 3) + rest
}

pub fn request(protocol: Protocol, random: &mut Random) -> Request {
    match protocol {
        Protocol::Text => Request::Raw(text(random)),
        Protocol::Binary => Request::Raw(binary(random)),
        Protocol::Redis => Request::Words(redis(random)),
    }
}

fn with_data(line: &str, value: &[u8]) -> Vec<u8> {
    [line.as_bytes(), b"\r\n", value, b"\r\n"].concat()
}

fn text(random: &mut Random) -> Vec<u8> {
    let (key, value) = (key(random), random.pick(VALUES));
    let len = value.len();
    let line = match random.below(12) {
        0..=3 => {
            let verb = random.pick(&["set", "add", "replace", "append", "prepend", "cas"]);
            let unique = if verb == "cas" { " 1" } else { "" };
            let noreply = random.pick(&["", "", "", " noreply"]);
            return with_data(&format!("{verb} {key} 0 0 {len}{unique}{noreply}"), value);
        }
        4 | 5 => return meta_set(&key, value, random),
        6 => {
            let verb = random.pick(&["get", "gets", "gat 0", "gats 0"]);
            format!("{verb} {}", random.pick(&[&key, &format!("k1 {key}"), &format!("{key} k2")]))
        }
        7 => format!("delete {key}"),
        8 => format!("{} {key} 1", random.pick(&["incr", "decr", "touch"])),
        9 => {
            format!("{} {}", random.pick(&["mg", "md", "ma", "me"]), base64(random.pick(SIZES)))
                + " b"
        }
        10 => {
            let verb = random.pick(&["mg", "ma", "me"]);
            format!("{verb} {LINES} b{}", random.pick(&["", " N0", " N0 q", " k v", " k O1 q"]))
        }
        _ => {
            let verb = random.pick(&["mg", "md", "ma", "me"]);
            format!("{verb} {key}{}", random.pick(&["", " v", " k v", " q", " v q k O1", " N0 v"]))
        }
    };
    let noreply = if line.contains(['1', '0']) && random.percent(10) { " noreply" } else { "" };
    format!("{line}{noreply}\r\n").into_bytes()
}

/// Also with as many flags as servers take, which are 16: behind more they do not read the data either.
fn meta_set(key: &str, value: &[u8], random: &mut Random) -> Vec<u8> {
    let (key, base) = match random.percent(40) {
        true => (base64(random.pick(SIZES)), " b"),
        false => (key.to_owned(), ""),
    };
    let flags = match random.below(8) {
        0 => " c F1 I k O1 q s T0 MS".to_owned(),
        1 => " k".repeat(random.pick(&[14, 15, 16, 17])),
        2 => " c F1 I k O1 s T0 MS C1 N0 v h l t".to_owned(),
        _ => random.pick(&["", " q", " k", " I T0", " MA", " ME q", " C1", " E1"]).to_owned(),
    };
    with_data(&format!("ms {key} {}{base}{flags}", value.len()), value)
}

fn binary(random: &mut Random) -> Vec<u8> {
    let (key, value) = (key(random), random.pick(VALUES));
    let opaque = random.below(256) as u32;
    let (opcode, extras, value): (u8, &[u8], &[u8]) = match random.below(10) {
        0..=2 => (random.pick(&[1, 2, 3, 0x11, 0x12, 0x13]), &[0; 8], value),
        3 => (random.pick(&[0x0e, 0x0f, 0x19, 0x1a]), b"", value),
        4 => (random.pick(&[4, 0x14]), b"", b""),
        5 => (random.pick(&[5, 6, 0x15, 0x16]), &[0; 20], b""),
        6 => (random.pick(&[0x1c, 0x1d, 0x1e]), &[0; 4], b""),
        _ => (random.pick(&[0, 9, 0x0c, 0x0d]), b"", b""),
    };
    packet(opcode, extras, key.as_bytes(), value, opaque, 0)
}

fn redis(random: &mut Random) -> Vec<Vec<u8>> {
    let (key, other, value) = (key(random), key(random), random.pick(VALUES));
    let (key, other) = (key.as_bytes(), other.as_bytes());
    let words: Vec<&[u8]> = match random.below(12) {
        0..=2 => vec![b"SET", key, value],
        3 => vec![b"MSET", key, value, other, value],
        4 => vec![b"MGET", key, other],
        5 => vec![random.pick(&[b"DEL" as &[u8], b"UNLINK", b"EXISTS", b"TOUCH"]), key, other],
        6 => vec![random.pick(&[b"APPEND" as &[u8], b"SETNX", b"GETSET"]), key, value],
        7 => vec![b"HSET", key, other, value],
        8 => vec![random.pick(&[b"RENAME" as &[u8], b"COPY", b"SINTER"]), key, other],
        _ => vec![random.pick(&[b"GET" as &[u8], b"TYPE", b"INCR", b"GETDEL", b"STRLEN"]), key],
    };
    words.into_iter().map(<[u8]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_as_long_as_servers_take_and_longer_and_of_a_prefix_alone() {
        let mut random = Random::new(1);
        let keys: Vec<usize> = (0..2000).map(|_| key(&mut random).len()).collect();
        assert!([1, 5, 250, 251, 255].iter().all(|size| keys.contains(size)));
        assert_eq!([183, 184, 186, 187].map(|size| base64(size).len()), [244, 248, 248, 252]);
    }
}
