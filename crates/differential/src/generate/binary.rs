//! memcached's binary protocol.

use super::mutated_bytes;
use crate::case::Request;
use crate::random::Random;

const KEYS: &[&[u8]] =
    &[b"k1", b"k2", b"k3", b"n1", b"", b"\0\r\n \xff", b"k\r\nVALUE w0 0 6\r\nforged\r\nEND\r\n"];

/// A packet of a request.
pub fn packet(
    opcode: u8,
    extras: &[u8],
    key: &[u8],
    value: &[u8],
    opaque: u32,
    unique: u64,
) -> Vec<u8> {
    let mut bytes = vec![0x80, opcode];
    bytes.extend_from_slice(&(key.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
    bytes.extend_from_slice(&((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    bytes.extend_from_slice(&opaque.to_be_bytes());
    bytes.extend_from_slice(&unique.to_be_bytes());
    for part in [extras, key, value] {
        bytes.extend_from_slice(part);
    }
    bytes
}

pub fn request(random: &mut Random) -> Request {
    let opcode = match random.percent(92) {
        true => random.below(0x25) as u8,
        false => random.number() as u8,
    };
    let key: Vec<u8> = match random.percent(4) {
        true => vec![b'k'; random.pick(&[249, 250, 251, 300])],
        false => random.pick(KEYS).to_vec(),
    };
    let value: Vec<u8> = match random.below(8) {
        0 => Vec::new(),
        1 => b"7".to_vec(),
        2 => random.bytes(300),
        3 if random.percent(10) => random.bytes(300_000),
        4 if random.percent(4) => random.bytes(1_100_000),
        _ => b"value".to_vec(),
    };
    let exptime = random.pick(&[0u32, 0, 0, 100, u32::MAX]);
    let count = random.pick(&[0u64, 1, 5, u64::MAX]);
    let is_store = matches!(opcode, 1..=3 | 0x11..=0x13);
    let is_count = matches!(opcode, 5 | 6 | 0x15 | 0x16);
    let is_touch = matches!(opcode, 0x1c..=0x1e | 0x23 | 0x24);
    let is_join = matches!(opcode, 0x0e | 0x0f | 0x19 | 0x1a);
    let has_key = is_store
        || is_count
        || is_touch
        || is_join
        || matches!(opcode, 0 | 4 | 9 | 0x0c | 0x0d | 0x14);
    let mut extras = Vec::new();
    if is_store {
        extras.extend_from_slice(&7u32.to_be_bytes());
        extras.extend_from_slice(&exptime.to_be_bytes());
    } else if is_count {
        extras.extend_from_slice(&count.to_be_bytes());
        extras.extend_from_slice(&10u64.to_be_bytes());
        extras.extend_from_slice(&exptime.to_be_bytes());
    } else if is_touch || opcode == 0x1b || (matches!(opcode, 8 | 0x18) && random.percent(30)) {
        extras.extend_from_slice(&exptime.to_be_bytes());
    }
    let stats: &[u8] = random.pick(&[
        b"" as &[u8],
        b"items",
        b"slabs",
        b"settings",
        b"sizes",
        b"detail on",
        b"detail off",
        b"detail dump",
        b"reset",
        b"conns",
        b"cachedump 1 5",
        b"sizes_enable",
        b"sizes_disable",
        b"nonsense",
        b"detail",
    ]);
    let sasl: &[u8] = random.pick(&[b"PLAIN" as &[u8], b"", b"NONSENSE"]);
    let (key, value) = match opcode {
        0x10 => (stats, &b""[..]),
        0x20..=0x22 => (sasl, &b"\0user\0secret"[..]),
        _ if has_key => (&key[..], if is_store || is_join { &value[..] } else { b"" }),
        _ if random.percent(90) => (&b""[..], &b""[..]),
        _ => (&key[..], &value[..]),
    };
    let opaque = random.number() as u32;
    let unique = random.pick(&[0u64, 0, 0, 0, 1, u64::MAX]);
    let mut bytes = packet(opcode, &extras, key, value, opaque, unique);
    if random.percent(25) {
        spoil_header(&mut bytes, random);
    }
    if random.percent(8) {
        bytes = mutated_bytes(bytes, random);
    }
    Request::Raw(bytes)
}

/// Changes a field of the header: wrong lengths, and fields that should be zero.
fn spoil_header(bytes: &mut Vec<u8>, random: &mut Random) {
    let add = |byte: &mut u8, random: &mut Random| {
        *byte = byte.wrapping_add(random.pick(&[1, 255, 4, 252, 8, 20, 128]));
    };
    match random.below(9) {
        0 => add(&mut bytes[3], random),
        1 => add(&mut bytes[2], random),
        2 | 3 => add(&mut bytes[4], random),
        4 => add(&mut bytes[11], random),
        5 => add(&mut bytes[5], random),
        6 => add(&mut bytes[7], random),
        7 => {
            // One more byte of extras, key or value, which the header includes.
            bytes.push(b'x');
            bytes[11] = bytes[11].wrapping_add(1);
            if random.percent(50) {
                let at = random.pick(&[3, 4]);
                bytes[at] = bytes[at].wrapping_add(1);
            }
        }
        _ => {
            // Without extras.
            let len = usize::from(bytes[4]);
            if bytes.len() >= 24 + len {
                bytes.drain(24..24 + len);
                bytes[4] = 0;
                bytes[11] = bytes[11].wrapping_sub(len as u8);
            }
        }
    }
}
