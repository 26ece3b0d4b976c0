//! A watched client: what it asks, and what it must be answered to the byte.

use std::collections::BTreeMap;

use crate::case::Request;
use crate::generate::binary::packet;
use crate::random::Random;

use super::WATCHED;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speech {
    Resp2,
    Resp3,
    Text,
    Binary,
}

/// A client with keys of its own, which nobody else changes.
pub(super) struct Client {
    speech: Speech,
    number: usize,
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    hashes: BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>>,
    /// In every value, so that no two are alike.
    count: u64,
}

const KEYS: usize = 4;

impl Client {
    pub(super) fn new(speech: Speech, number: usize) -> Self {
        let (values, hashes) = (BTreeMap::new(), BTreeMap::new());
        Self { speech, number, values, hashes, count: 0 }
    }

    pub(super) fn speech(&self) -> Speech {
        self.speech
    }

    /// What it says first, and the answer to it.
    pub(super) fn greeting(&self) -> &'static [u8] {
        match self.speech {
            Speech::Resp3 => b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n",
            Speech::Resp2 | Speech::Text | Speech::Binary => b"",
        }
    }

    fn key(&self, random: &mut Random) -> Vec<u8> {
        format!("{WATCHED}{}-{}", self.number, random.below(KEYS)).into_bytes()
    }

    fn value(&mut self, key: &[u8], random: &mut Random) -> Vec<u8> {
        self.count += 1;
        let mut value = [key, format!("={}", self.count).as_bytes()].concat();
        match random.below(16) {
            0 => value.resize(20_000, b'w'),
            1 => value.extend_from_slice(b"\r\nEND\r\n$-1\r\n"),
            _ => {}
        }
        value
    }

    /// Some requests at once, and the answer to all.
    pub(super) fn ask(&mut self, most: usize, random: &mut Random) -> (Vec<u8>, Vec<u8>) {
        let (mut asked, mut answer) = (Vec::new(), Vec::new());
        for _ in 0..=random.below(most) {
            let (request, reply) = match self.speech {
                Speech::Resp2 | Speech::Resp3 => self.ask_redis(random),
                Speech::Text => self.ask_text(random),
                Speech::Binary => self.ask_packets(random),
            };
            asked.extend(request);
            answer.extend(reply);
        }
        (asked, answer)
    }

    fn null(&self) -> Vec<u8> {
        if self.speech == Speech::Resp3 { b"_\r\n".to_vec() } else { b"$-1\r\n".to_vec() }
    }

    fn said(&self, key: &[u8]) -> Vec<u8> {
        self.values.get(key).map_or(self.null(), |value| bulk(value))
    }

    fn ask_redis(&mut self, random: &mut Random) -> (Vec<u8>, Vec<u8>) {
        let (key, other) = (self.key(random), self.key(random));
        let value = self.value(&key, random);
        match random.below(12) {
            0..=2 => {
                self.values.insert(key.clone(), value.clone());
                (words(&[b"SET", &key, &value]), b"+OK\r\n".to_vec())
            }
            3..=5 => (words(&[b"GET", &key]), self.said(&key)),
            6 => {
                let keys: Vec<Vec<u8>> = (0..KEYS)
                    .map(|at| format!("{WATCHED}{}-{at}", self.number).into_bytes())
                    .collect();
                let said: Vec<u8> = keys.iter().flat_map(|key| self.said(key)).collect();
                let all: Vec<&[u8]> =
                    [&b"MGET"[..]].into_iter().chain(keys.iter().map(Vec::as_slice)).collect();
                (words(&all), [format!("*{KEYS}\r\n").into_bytes(), said].concat())
            }
            7 => {
                let second = self.value(&other, random);
                self.values.insert(key.clone(), value.clone());
                self.values.insert(other.clone(), second.clone());
                (words(&[b"MSET", &key, &value, &other, &second]), b"+OK\r\n".to_vec())
            }
            8 => {
                let count = usize::from(self.values.remove(&key).is_some());
                (words(&[b"DEL", &key]), format!(":{count}\r\n").into_bytes())
            }
            9 => (words(&[b"ECHO", &value]), bulk(&value)),
            10 => {
                let hash = [&key[..], b"-h"].concat();
                let fields = self.hashes.entry(hash.clone()).or_default();
                let is_new = fields.insert(other.clone(), value.clone()).is_none();
                let said = format!(":{}\r\n", u8::from(is_new)).into_bytes();
                (words(&[b"HSET", &hash, &other, &value]), said)
            }
            _ => {
                let hash = [&key[..], b"-h"].concat();
                let none = BTreeMap::new();
                let fields = self.hashes.get(&hash).unwrap_or(&none);
                let head = match self.speech {
                    Speech::Resp3 => format!("%{}\r\n", fields.len()),
                    _ => format!("*{}\r\n", 2 * fields.len()),
                };
                let pairs = fields.iter().flat_map(|(name, value)| [bulk(name), bulk(value)]);
                let said = [head.into_bytes(), pairs.collect::<Vec<_>>().concat()].concat();
                (words(&[b"HGETALL", &hash]), said)
            }
        }
    }

    fn ask_text(&mut self, random: &mut Random) -> (Vec<u8>, Vec<u8>) {
        let (key, other) = (self.key(random), self.key(random));
        let name = String::from_utf8_lossy(&key).into_owned();
        let block = |client: &Self, key: &[u8]| match client.values.get(key) {
            Some(value) => {
                let size = value.len();
                [b"VALUE ", key, format!(" 7 {size}\r\n").as_bytes(), value, b"\r\n"].concat()
            }
            None => Vec::new(),
        };
        match random.below(10) {
            0 | 1 => {
                let value = self.value(&key, random);
                let line = format!("set {name} 7 0 {}\r\n", value.len());
                let asked = [line.as_bytes(), &value, b"\r\n"].concat();
                self.values.insert(key, value);
                (asked, b"STORED\r\n".to_vec())
            }
            2 | 3 => {
                let said = [block(self, &key), b"END\r\n".to_vec()].concat();
                (format!("get {name}\r\n").into_bytes(), said)
            }
            4 => {
                let second = String::from_utf8_lossy(&other).into_owned();
                let said = [block(self, &key), block(self, &other), b"END\r\n".to_vec()].concat();
                (format!("get {name} {second}\r\n").into_bytes(), said)
            }
            5 => {
                let had = self.values.remove(&key).is_some();
                let said = if had { "DELETED\r\n" } else { "NOT_FOUND\r\n" };
                (format!("delete {name}\r\n").into_bytes(), said.as_bytes().to_vec())
            }
            6 => {
                // Quiet: a miss is not told. What fails is.
                let said = match self.values.get(&key) {
                    Some(value) => {
                        let head = format!("VA {} k{name} f7\r\n", value.len());
                        [head.as_bytes(), value, b"\r\nMN\r\n"].concat()
                    }
                    None => b"MN\r\n".to_vec(),
                };
                (format!("mg {name} k f v q\r\nmn\r\n").into_bytes(), said)
            }
            7 => {
                let had = self.values.contains_key(&key);
                let said = if had { format!("HD k{name}\r\n") } else { "EN\r\n".to_owned() };
                (format!("mg {name} k\r\n").into_bytes(), said.into_bytes())
            }
            8 => {
                // Added where nothing is, quietly: only that it was not is told.
                let value = self.value(&key, random);
                let line = format!("ms {name} {} ME F7 q\r\n", value.len());
                let asked = [line.as_bytes(), &value, b"\r\nmn\r\n"].concat();
                let said: &[u8] = match self.values.contains_key(&key) {
                    true => b"NS\r\nMN\r\n",
                    false => b"MN\r\n",
                };
                self.values.entry(key).or_insert(value);
                (asked, said.to_vec())
            }
            _ => {
                let said = match self.values.contains_key(&key) {
                    true => "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
                    false => "NOT_FOUND\r\n",
                };
                (format!("incr {name} 1\r\n").into_bytes(), said.as_bytes().to_vec())
            }
        }
    }

    fn ask_packets(&mut self, random: &mut Random) -> (Vec<u8>, Vec<u8>) {
        let key = self.key(random);
        self.count += 1;
        let opaque = self.count as u32;
        let said = |opcode, extras: &[u8], key: &[u8], value: &[u8], status: u8| {
            let mut packet = packet(opcode, extras, key, value, opaque, 0);
            (packet[0], packet[7]) = (0x81, status);
            packet
        };
        let noop = |asked: Vec<u8>, answer: Vec<u8>| {
            let end = said(0x0a, b"", b"", b"", 0);
            ([asked, packet(0x0a, b"", b"", b"", opaque, 0)].concat(), [answer, end].concat())
        };
        let flags = [0, 0, 0, 7];
        let store = [0, 0, 0, 7, 0, 0, 0, 0];
        match random.below(8) {
            0 | 1 => {
                let value = self.value(&key, random);
                let asked = packet(0x01, &store, &key, &value, opaque, 0);
                self.values.insert(key, value);
                (asked, said(0x01, b"", b"", b"", 0))
            }
            2 | 3 => {
                let asked = packet(0x00, b"", &key, b"", opaque, 0);
                let answer = match self.values.get(&key) {
                    Some(value) => said(0x00, &flags, b"", value, 0),
                    None => said(0x00, b"", b"", b"Not found", 1),
                };
                (asked, answer)
            }
            4 => {
                let answer = match self.values.get(&key) {
                    Some(value) => said(0x0d, &flags, &key, value, 0),
                    None => Vec::new(),
                };
                noop(packet(0x0d, b"", &key, b"", opaque, 0), answer)
            }
            5 => {
                // Added quietly: only that it was not is told.
                let value = self.value(&key, random);
                let asked = packet(0x12, &store, &key, &value, opaque, 0);
                let answer = match self.values.contains_key(&key) {
                    true => said(0x12, b"", b"", b"Data exists for key.", 2),
                    false => Vec::new(),
                };
                self.values.entry(key).or_insert(value);
                noop(asked, answer)
            }
            6 => {
                let asked = packet(0x04, b"", &key, b"", opaque, 0);
                let answer = match self.values.remove(&key) {
                    Some(_) => said(0x04, b"", b"", b"", 0),
                    None => said(0x04, b"", b"", b"Not found", 1),
                };
                (asked, answer)
            }
            _ => noop(Vec::new(), Vec::new()),
        }
    }

    /// What it got, without what only servers know: the uniques of packets.
    pub(super) fn comparable(&self, mut got: Vec<u8>) -> Vec<u8> {
        let mut at = 0;
        while self.speech == Speech::Binary && at + 24 <= got.len() {
            got[at + 16..at + 24].fill(0);
            let body =
                got[at + 8..at + 12].iter().fold(0, |len, &byte| len << 8 | usize::from(byte));
            at += 24 + body;
        }
        got
    }
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

fn words(words: &[&[u8]]) -> Vec<u8> {
    Request::Words(words.iter().map(|word| word.to_vec()).collect()).bytes()
}
