//! A memcached: the text protocol here, the others in separate files.

use std::collections::BTreeMap;

use cashew_protocol::memcached::Tag;

use crate::oracle::owner_of;
use crate::request::{Outcome, line_end};
use crate::server::Done;

pub(crate) struct MemcachedServer {
    pub(crate) items: BTreeMap<Vec<u8>, Item>,
    pub(crate) stores: u64,
    /// The tag of its uniques, as clients see them.
    pub(crate) tag: Tag,
}

pub(crate) struct Item {
    pub(crate) flags: Vec<u8>,
    pub(crate) data: Vec<u8>,
    pub(crate) unique: u64,
}

pub(crate) const VERSION: &[u8] = b"VERSION 1.6.18\r\n";
pub(crate) const OK: &[u8] = b"OK\r\n";
/// The bytes of the longest key that it takes.
const KEY_MAX: usize = 250;
/// Broadcasts carry a number that identifies client and request; this is the number of requests per
/// client.
pub(crate) const REQUESTS_MAX: u64 = 100_000;

impl MemcachedServer {
    pub(crate) fn new(tag: Tag) -> Self {
        Self { items: BTreeMap::new(), stores: 0, tag }
    }

    pub(crate) fn forget(&mut self) {
        self.items.clear();
    }

    /// Executes the command at the front of `input`, if it is complete.
    pub(crate) fn execute(&mut self, input: &[u8], refuse: bool) -> Option<Done> {
        let done = self.executed(input, refuse)?;
        for (key, ..) in &done.keys {
            // A memcached refuses the line, and runs the data behind it as commands.
            assert!(
                (1..=KEY_MAX).contains(&key.len()),
                "I9: a server is sent a key of {} bytes",
                key.len()
            );
        }
        Some(done)
    }

    fn executed(&mut self, input: &[u8], refuse: bool) -> Option<Done> {
        if input.first() == Some(&0x80) {
            return self.execute_packet(input, refuse);
        }
        let end = line_end(input, 0)?;
        if let Some(b"mg " | b"ms " | b"md " | b"ma " | b"mn\r") = input.first_chunk() {
            return self.execute_meta(input, end, refuse);
        }
        let line = &input[..end - 2];
        let indent = line.iter().take_while(|&&byte| byte == b' ').count();
        let words: Vec<&[u8]> =
            line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).collect();
        assert!(words.last() != Some(&&b"noreply"[..]), "I1: noreply is sent to a server");
        let verb = words[0];
        let tag = line[..indent + verb.len()].to_vec();
        let mut done = Done::new(end, &tag, "");
        match verb {
            b"get" | b"gets" | b"gat" | b"gats" => {
                let is_touch = verb.starts_with(b"gat");
                let first = if is_touch { 2 } else { 1 };
                // The oracle does not track commands on shared keys, so they never fail, nor does
                // anything that the gateway sends together with them.
                let refuse = refuse && words[first..].iter().all(|key| owner_of(key).is_some());
                for &key in &words[first..] {
                    let payload = is_touch.then(|| words[1].to_vec());
                    let outcome = match refuse {
                        true => Outcome::refused(REFUSAL),
                        false => Outcome::good(self.block(key, verb.ends_with(b"s"), self.tag)),
                    };
                    if !refuse {
                        let told = self.block(key, verb.ends_with(b"s"), Tag::default());
                        done.reply.extend_from_slice(&told);
                    }
                    done.keys.push((key.to_vec(), payload, outcome));
                }
                if refuse {
                    done.reply = REFUSAL.to_vec();
                } else {
                    done.reply.extend_from_slice(b"END\r\n");
                }
                return Some(done);
            }
            b"version" => {
                done.reply = VERSION.to_vec();
                return Some(done);
            }
            b"flush_all" | b"verbosity" => {
                let number = std::str::from_utf8(words[1]).ok().and_then(|text| text.parse().ok());
                let number: u64 = number.expect("clients send numbers");
                done.keys.push((broadcast_key(number), None, Outcome::good(OK)));
                done.reply = OK.to_vec();
                return Some(done);
            }
            b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => {
                let size: usize = std::str::from_utf8(words[4]).ok()?.parse().ok()?;
                done.used = end + size + 2;
                let data = input.get(end..end + size)?.to_vec();
                assert_eq!(input.get(end + size..done.used)?, b"\r\n", "I1: a data block's end");
                let reply = match refuse {
                    true => REFUSAL,
                    false => self.store(verb, &words, &data),
                };
                done.reply = reply.to_vec();
                done.keys.push((words[1].to_vec(), Some(data), Outcome::good(reply)));
            }
            _ => {
                let reply = match refuse {
                    true => REFUSAL.to_vec(),
                    false => self.change(verb, &words),
                };
                let payload = words.get(2).map(|word| word.to_vec());
                done.keys.push((words[1].to_vec(), payload, Outcome::good(reply.clone())));
                done.reply = reply;
            }
        }
        Some(done)
    }

    fn block(&self, key: &[u8], with_unique: bool, tag: Tag) -> Vec<u8> {
        if key.starts_with(b"s:") {
            return shared(key, with_unique);
        }
        let Some(item) = self.items.get(key) else { return Vec::new() };
        block(key, &item.flags, &item.data, with_unique.then(|| tag.apply(item.unique)))
    }

    fn store(&mut self, verb: &[u8], words: &[&[u8]], data: &[u8]) -> &'static [u8] {
        self.stores += 1;
        let (key, unique) = (words[1], self.stores);
        let old = self.items.get_mut(key);
        match (verb, old) {
            (b"append", Some(item)) => item.data.extend_from_slice(data),
            (b"prepend", Some(item)) => {
                item.data.splice(..0, data.iter().copied());
            }
            (b"cas", None) => return b"NOT_FOUND\r\n",
            (b"cas", Some(item)) if item.unique.to_string().as_bytes() != words[5] => {
                return b"EXISTS\r\n";
            }
            (b"add", Some(_)) | (b"replace" | b"append" | b"prepend", None) => {
                return b"NOT_STORED\r\n";
            }
            _ => {
                let item = Item { flags: words[2].to_vec(), data: data.to_vec(), unique };
                self.items.insert(key.to_vec(), item);
            }
        }
        b"STORED\r\n"
    }

    fn change(&mut self, verb: &[u8], words: &[&[u8]]) -> Vec<u8> {
        let key = words[1];
        let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<u64>().ok();
        match (verb, self.items.get_mut(key)) {
            (b"delete", Some(_)) => {
                self.items.remove(key);
                b"DELETED\r\n".to_vec()
            }
            (b"touch", Some(_)) => b"TOUCHED\r\n".to_vec(),
            (b"incr" | b"decr", Some(item)) => match (number(&item.data), number(words[2])) {
                (Some(old), Some(by)) => {
                    let new = match verb {
                        b"incr" => old.wrapping_add(by),
                        _ => old.saturating_sub(by),
                    };
                    item.data = new.to_string().into_bytes();
                    format!("{new}\r\n").into_bytes()
                }
                _ => b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n".to_vec(),
            },
            (b"delete" | b"touch" | b"incr" | b"decr", None) => b"NOT_FOUND\r\n".to_vec(),
            _ => panic!("I1: a server is sent {}", verb.escape_ascii()),
        }
    }
}

pub(crate) const REFUSAL: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";

/// The reply of any server for a shared key, which always exists, and has no unique.
pub(crate) fn shared(key: &[u8], with_unique: bool) -> Vec<u8> {
    block(key, b"7", &[b"value of ", key].concat(), with_unique.then_some(0))
}

/// The key under which the oracle tracks a broadcast.
pub(crate) fn broadcast_key(number: u64) -> Vec<u8> {
    format!("c{}:{number}", number / REQUESTS_MAX).into_bytes()
}

fn block(key: &[u8], flags: &[u8], data: &[u8], unique: Option<u64>) -> Vec<u8> {
    let mut text = [b"VALUE ", key, b" ", flags].concat();
    text.extend_from_slice(format!(" {}", data.len()).as_bytes());
    if let Some(unique) = unique {
        text.extend_from_slice(format!(" {unique}").as_bytes());
    }
    text.extend_from_slice(b"\r\n");
    text.extend_from_slice(data);
    text.extend_from_slice(b"\r\n");
    text
}
