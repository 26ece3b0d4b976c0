//! A memcached that is asked in binary packets, as far as framing goes.

use super::text_model::{Done, KEY_MAX, Store, counted};

const HEADER: usize = 24;
const NOT_FOUND: u16 = 1;
const EXISTS: u16 = 2;
const TOO_LARGE: u16 = 3;
const NOT_STORED: u16 = 5;
const NOT_NUMERIC: u16 = 6;
const UNKNOWN: u16 = 0x81;
const VALUE_MAX: usize = 1024 * 1024;

/// A packet with the given status in answer to one with this header.
fn reply(
    header: &[u8],
    status: u16,
    extras: &[u8],
    key: &[u8],
    value: &[u8],
    unique: u64,
) -> Vec<u8> {
    let mut packet = vec![0x81, header[1]];
    packet.extend_from_slice(&(key.len() as u16).to_be_bytes());
    packet.extend_from_slice(&[extras.len() as u8, 0]);
    packet.extend_from_slice(&status.to_be_bytes());
    packet.extend_from_slice(&((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    packet.extend_from_slice(&header[12..16]);
    packet.extend_from_slice(&unique.to_be_bytes());
    [&packet, extras, key, value].concat()
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Executes the packet at the front.
///
/// # Panics
/// If it is no packet, or its lengths contradict each other: servers end the connection then.
pub(super) fn execute(input: &[u8], store: &mut Store) -> Done {
    let Some(header) = input.get(..HEADER) else { return Done::Wait };
    assert_eq!(header[0], 0x80, "I9: a server is out of step: {}", header.escape_ascii());
    let key_len = number(&header[2..4]) as usize;
    let (extras_len, body) = (usize::from(header[4]), number(&header[8..12]) as usize);
    assert!(extras_len + key_len <= body, "I9: the lengths of a packet: {}", header.escape_ascii());
    let Some(rest) = input.get(HEADER..HEADER + body) else { return Done::Wait };
    let (extras, rest) = rest.split_at(extras_len);
    let (key, value) = rest.split_at(key_len);
    let used = HEADER + body;
    let (opcode, is_quiet) = loud(header[1]);
    if opcode == 7 {
        return Done::Close;
    }
    if key_len > KEY_MAX || !fits(opcode, extras_len, key_len, value.len()) {
        return Done::Refused("status 4, and the end");
    }
    let unique = number(&header[16..24]);
    let answer = carry_out(opcode, extras, key, value, unique, store);
    let (status, ref more) = answer;
    // Statistics come in several packets.
    if opcode == 0x10 && status == 0 {
        let one = reply(header, 0, b"", b"pid", b"1", 0);
        return Done::Used(used, [one, reply(header, 0, b"", b"", b"", 0)].concat());
    }
    let is_retrieval = matches!(opcode, 0 | 0x0c | 0x1d | 0x23);
    let is_silent = is_quiet && if is_retrieval { status == NOT_FOUND } else { status == 0 };
    if is_silent {
        return Done::Used(used, Vec::new());
    }
    let names_key = matches!(opcode, 0x0c | 0x23);
    let named = if names_key && status <= NOT_FOUND { key } else { b"" };
    let Answer { extras, value, unique } = more;
    Done::Used(used, reply(header, status, extras, named, value, *unique))
}

/// Whether a packet has the parts that its command has. A server ends the connection otherwise.
fn fits(opcode: u8, extras: usize, key: usize, value: usize) -> bool {
    let (has_key, has_value) = (key > 0, value > 0);
    match opcode {
        0x00 | 0x04 | 0x0c => extras == 0 && has_key && !has_value,
        0x01..=0x03 => extras == 8 && has_key,
        0x05 | 0x06 => extras == 20 && has_key && !has_value,
        0x08 => matches!(extras, 0 | 4) && !has_key && !has_value,
        0x0a | 0x0b => extras == 0 && !has_key && !has_value,
        0x0e | 0x0f => extras == 0 && has_key,
        0x1c | 0x1d | 0x23 => extras == 4 && has_key && !has_value,
        _ => true,
    }
}

/// The opcode that is not quiet, and whether this one was.
fn loud(opcode: u8) -> (u8, bool) {
    match opcode {
        0x09 => (0x00, true),
        0x0d => (0x0c, true),
        0x11..=0x19 => (
            match opcode {
                0x11..=0x16 => opcode - 0x10,
                0x17 => 7,
                0x18 => 8,
                _ => 0x0e,
            },
            true,
        ),
        0x1a => (0x0f, true),
        0x1e => (0x1d, true),
        0x24 => (0x23, true),
        other => (other, false),
    }
}

#[derive(Default)]
struct Answer {
    extras: Vec<u8>,
    value: Vec<u8>,
    unique: u64,
}

fn failed(status: u16, text: &str) -> (u16, Answer) {
    (status, Answer { value: text.into(), ..Answer::default() })
}

fn carry_out(
    opcode: u8,
    extras: &[u8],
    key: &[u8],
    value: &[u8],
    unique: u64,
    store: &mut Store,
) -> (u16, Answer) {
    let old = store.items.get(key).map(|item| item.unique);
    let done = |unique| (0, Answer { unique, ..Answer::default() });
    match opcode {
        // Get, GetK, Gat, GatK
        0x00 | 0x0c | 0x1d | 0x23 => match store.items.get(key) {
            Some(item) => {
                let extras = item.flags.to_be_bytes().to_vec();
                (0, Answer { extras, value: item.data.clone(), unique: item.unique })
            }
            None if opcode == 0x0c || opcode == 0x23 => failed(NOT_FOUND, ""),
            None => failed(NOT_FOUND, "Not found"),
        },
        0x01..=0x03 if value.len() > VALUE_MAX => failed(TOO_LARGE, "Too large."),
        0x02 if old.is_some() => failed(EXISTS, "Data exists for key."),
        0x03 if old.is_none() => failed(NOT_FOUND, "Not found"),
        0x01..=0x03 if unique != 0 && old.is_none() => failed(NOT_FOUND, "Not found"),
        0x01..=0x03 if unique != 0 && old != Some(unique) => failed(EXISTS, "Data exists for key."),
        0x01..=0x03 => done(store.put(key, number(&extras[..4]) as u32, value.to_vec())),
        0x04 => match store.items.remove(key) {
            Some(_) => done(0),
            None => failed(NOT_FOUND, "Not found"),
        },
        0x05 | 0x06 => {
            let (by, initial) = (number(&extras[..8]), number(&extras[8..16]));
            if old.is_none() && extras[16..] != [0xff; 4] {
                store.put(key, 0, initial.to_string().into_bytes());
                let value = initial.to_be_bytes().to_vec();
                return (0, Answer { value, unique: store.stores, ..Answer::default() });
            }
            match counted(key, by, opcode == 5, store) {
                Ok(Some(new)) => {
                    let value = new.to_be_bytes().to_vec();
                    (0, Answer { value, unique: old.unwrap_or(0), ..Answer::default() })
                }
                Ok(None) => failed(NOT_FOUND, "Not found"),
                Err(()) => failed(NOT_NUMERIC, "Non-numeric server-side value for incr or decr"),
            }
        }
        0x08 => {
            store.flush();
            done(0)
        }
        0x0a | 0x10 => done(0),
        0x0b => (0, Answer { value: b"1.6.18".to_vec(), ..Answer::default() }),
        0x0e | 0x0f => match store.items.get_mut(key) {
            Some(item) if opcode == 0x0e => {
                item.data.extend_from_slice(value);
                done(item.unique)
            }
            Some(item) => {
                item.data.splice(..0, value.iter().copied());
                done(item.unique)
            }
            None => failed(NOT_STORED, "Not stored."),
        },
        0x1b => done(0),
        0x1c if old.is_some() => (0, Answer { extras: vec![0; 4], ..Answer::default() }),
        0x1c => failed(NOT_FOUND, "Not found"),
        _ => failed(UNKNOWN, "Unknown command"),
    }
}
