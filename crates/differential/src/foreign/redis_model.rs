//! A Redis as far as framing goes: how many replies a request has, of what type, and what a connection's state does
//! to them. What commands do to data is modelled where watched clients use them; the others have any reply of a type
//! that the command may have, or an error.
//!
//! It reads more strictly than Redis: what the gateway sends must be RESP to the letter.

use std::collections::{BTreeMap, BTreeSet};

use cashew_protocol::redis::{COMMANDS, Rule};

use crate::random::Random;

use super::is_watched;

#[derive(Default)]
pub(super) struct Store {
    strings: BTreeMap<Vec<u8>, Vec<u8>>,
    hashes: BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>>,
}

/// What a connection has agreed on, and what it is in the middle of.
#[derive(Default)]
pub(super) struct Session {
    is_resp3: bool,
    queued: Option<Vec<Vec<Vec<u8>>>>,
    channels: [BTreeSet<Vec<u8>>; 3],
    tracks: bool,
}

/// What others hear of a command.
pub(super) enum Heard {
    Message { channel: Vec<u8>, text: Vec<u8>, is_sharded: bool },
    Changed { key: Vec<u8> },
}

/// The words of the request at the front, and its length; `None` if more is to come.
///
/// # Panics
/// If it is not strictly RESP.
pub(super) fn request(input: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let mut at = 0;
    let count = header(input, &mut at, b'*')?;
    let mut words = Vec::new();
    for _ in 0..count {
        let len = header(input, &mut at, b'$')?;
        let end = at + len;
        let line_end = input.get(end..end + 2)?;
        assert_eq!(line_end, b"\r\n", "I9: another end of a word was sent to a server");
        words.push(input[at..end].to_vec());
        at = end + 2;
    }
    assert!(count > 0, "I9: a request without words was sent to a server");
    Some((words, at))
}

fn header(input: &[u8], at: &mut usize, mark: u8) -> Option<usize> {
    let rest = &input[*at..];
    let first = *rest.first()?;
    assert_eq!(char::from(first), char::from(mark), "I9: a server is out of step: {}", shown(rest));
    let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
        assert!(rest.len() < 16, "I9: a header without an end: {}", shown(rest));
        return None;
    };
    let line = &rest[1..end];
    let digits = line.strip_suffix(b"\r").unwrap_or(line);
    let number = std::str::from_utf8(digits).ok().and_then(|text| text.parse::<usize>().ok());
    let is_strict = number.is_some_and(|number| format!("{number}\r").as_bytes() == line);
    assert!(is_strict, "I9: a server may read this header otherwise: {}", shown(rest));
    *at += end + 1;
    number
}

fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(80)].escape_ascii().to_string()
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

fn array(elements: &[Vec<u8>]) -> Vec<u8> {
    [format!("*{}\r\n", elements.len()).into_bytes(), elements.concat()].concat()
}

fn number(number: i64) -> Vec<u8> {
    format!(":{number}\r\n").into_bytes()
}

const OK: &[u8] = b"+OK\r\n";
const NO: &[u8] = b"-ERR the model does not do this\r\n";

impl Session {
    fn null(&self) -> Vec<u8> {
        if self.is_resp3 { b"_\r\n".to_vec() } else { b"$-1\r\n".to_vec() }
    }

    fn null_array(&self) -> Vec<u8> {
        if self.is_resp3 { b"_\r\n".to_vec() } else { b"*-1\r\n".to_vec() }
    }

    fn map(&self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
        let (mark, count) = if self.is_resp3 { ('%', pairs.len()) } else { ('*', 2 * pairs.len()) };
        let mut reply = format!("{mark}{count}\r\n").into_bytes();
        for (name, value) in pairs {
            reply.extend_from_slice(name);
            reply.extend_from_slice(value);
        }
        reply
    }

    fn push(&self, elements: &[Vec<u8>]) -> Vec<u8> {
        let mut reply = array(elements);
        if self.is_resp3 {
            reply[0] = b'>';
        }
        reply
    }

    /// What comes on this connection as others did something.
    pub(super) fn hear(&self, heard: &Heard) -> Vec<u8> {
        match heard {
            Heard::Changed { key } if self.tracks && self.is_resp3 => {
                self.push(&[bulk(b"invalidate"), array(&[bulk(key)])])
            }
            Heard::Changed { .. } => Vec::new(),
            Heard::Message { channel, text, is_sharded } => {
                let of = if *is_sharded { 2 } else { 0 };
                let kind: &[u8] = if *is_sharded { b"smessage" } else { b"message" };
                let mut said = Vec::new();
                if self.channels[of].contains(channel) {
                    said.extend(self.push(&[bulk(kind), bulk(channel), bulk(text)]));
                }
                for pattern in self.channels[1].iter().filter(|_| !is_sharded) {
                    if cashew_protocol::redis::glob_matches(pattern, channel) {
                        let words = [bulk(b"pmessage"), bulk(pattern), bulk(channel), bulk(text)];
                        said.extend(self.push(&words));
                    }
                }
                said
            }
        }
    }

    fn subscribe(&mut self, verb: &[u8], channels: &[Vec<u8>]) -> Vec<u8> {
        let verb = verb.to_ascii_lowercase();
        let of = match verb[0] {
            b'p' => 1,
            b's' if verb.starts_with(b"ss") || verb.starts_with(b"sun") => 2,
            _ => 0,
        };
        let is_end = verb.ends_with(b"unsubscribe");
        let all: Vec<Vec<u8>> = self.channels[of].iter().cloned().collect();
        let channels = if is_end && channels.is_empty() { &all } else { channels };
        let mut reply = Vec::new();
        for channel in channels {
            match is_end {
                true => _ = self.channels[of].remove(channel),
                false => _ = self.channels[of].insert(channel.clone()),
            }
            let words = [bulk(&verb), bulk(channel), number(self.subscriptions(of))];
            reply.extend(self.push(&words));
        }
        if channels.is_empty() {
            let words = [bulk(&verb), self.null(), number(self.subscriptions(of))];
            reply.extend(self.push(&words));
        }
        reply
    }

    /// Sharded channels are counted apart.
    fn subscriptions(&self, of: usize) -> i64 {
        let [channels, patterns, sharded] = self.channels.each_ref().map(|set| set.len() as i64);
        if of == 2 { sharded } else { channels + patterns }
    }
}

/// Executes a request; returns the reply, and what others hear of it.
pub(super) fn execute(
    words: &[Vec<u8>],
    session: &mut Session,
    store: &mut Store,
    random: &mut Random,
) -> (Vec<u8>, Option<Heard>) {
    let verb = words[0].to_ascii_uppercase();
    let is_of_transaction =
        matches!(verb.as_slice(), b"MULTI" | b"EXEC" | b"DISCARD" | b"WATCH" | b"RESET" | b"QUIT");
    if let Some(queued) = &mut session.queued
        && !is_of_transaction
    {
        queued.push(words.to_vec());
        return (b"+QUEUED\r\n".to_vec(), None);
    }
    let args = &words[1..];
    let first = args.first().map(Vec::as_slice).unwrap_or_default();
    let mut heard = None;
    let reply = match verb.as_slice() {
        b"MULTI" if session.queued.is_some() => b"-ERR MULTI calls can not be nested\r\n".to_vec(),
        b"MULTI" => {
            session.queued = Some(Vec::new());
            OK.to_vec()
        }
        b"EXEC" => match session.queued.take() {
            None => b"-ERR EXEC without MULTI\r\n".to_vec(),
            Some(queued) => {
                let all: Vec<Vec<u8>> = queued
                    .iter()
                    .map(|words| {
                        let (reply, told) = execute(words, session, store, random);
                        heard = told.or(heard.take());
                        reply
                    })
                    .collect();
                array(&all)
            }
        },
        b"DISCARD" if session.queued.take().is_none() => b"-ERR DISCARD without MULTI\r\n".to_vec(),
        b"WATCH" if session.queued.is_some() => b"-ERR WATCH inside MULTI\r\n".to_vec(),
        b"RESET" => {
            *session = Session::default();
            b"+RESET\r\n".to_vec()
        }
        b"HELLO" => {
            match first {
                b"2" => session.is_resp3 = false,
                b"3" => session.is_resp3 = true,
                b"" => {}
                _ => return (b"-NOPROTO unsupported protocol version\r\n".to_vec(), None),
            }
            let version = number(if session.is_resp3 { 3 } else { 2 });
            let pair = |name: &[u8], value: Vec<u8>| (bulk(name), value);
            session.map(&[
                pair(b"server", bulk(b"redis")),
                pair(b"version", bulk(b"7.0.15")),
                pair(b"proto", version),
                pair(b"id", number(5)),
                pair(b"mode", bulk(b"standalone")),
                pair(b"role", bulk(b"master")),
                pair(b"modules", array(&[])),
            ])
        }
        b"SUBSCRIBE" | b"PSUBSCRIBE" | b"SSUBSCRIBE" if args.is_empty() => NO.to_vec(),
        b"SUBSCRIBE" | b"PSUBSCRIBE" | b"SSUBSCRIBE" | b"UNSUBSCRIBE" | b"PUNSUBSCRIBE"
        | b"SUNSUBSCRIBE" => session.subscribe(&verb, args),
        b"PUBLISH" | b"SPUBLISH" if args.len() == 2 => {
            let is_sharded = verb[0] == b'S';
            let (channel, text) = (args[0].clone(), args[1].clone());
            heard = Some(Heard::Message { channel, text, is_sharded });
            number(1)
        }
        b"CLIENT" if first.eq_ignore_ascii_case(b"tracking") => {
            session.tracks = args.get(1).is_some_and(|word| word.eq_ignore_ascii_case(b"on"));
            OK.to_vec()
        }
        b"CLIENT" if first.eq_ignore_ascii_case(b"id") => number(7),
        b"CLIENT" if first.eq_ignore_ascii_case(b"unblock") => number(0),
        b"CLIENT" if first.eq_ignore_ascii_case(b"reply") => {
            panic!("I1: CLIENT REPLY was sent to a server")
        }
        b"PING" if args.is_empty() => match session.subscriptions(0) + session.subscriptions(2) {
            1.. if !session.is_resp3 => array(&[bulk(b"pong"), bulk(b"")]),
            _ => b"+PONG\r\n".to_vec(),
        },
        b"PING" | b"ECHO" => bulk(first),
        b"DISCARD" | b"WATCH" | b"UNWATCH" | b"AUTH" | b"SELECT" | b"CLIENT" | b"READONLY"
        | b"READWRITE" | b"ASKING" | b"FLUSHALL" | b"FLUSHDB" | b"MONITOR" => OK.to_vec(),
        b"GET" if args.len() == 1 => match store.strings.get(first) {
            Some(value) => bulk(value),
            None => session.null(),
        },
        b"MGET" => {
            let value = |key| store.strings.get(key).map_or(session.null(), |value| bulk(value));
            array(&args.iter().map(value).collect::<Vec<_>>())
        }
        b"SET" if args.len() == 2 => {
            store.strings.insert(args[0].clone(), args[1].clone());
            heard = Some(Heard::Changed { key: args[0].clone() });
            OK.to_vec()
        }
        b"MSET" if args.len().is_multiple_of(2) => {
            for pair in args.chunks_exact(2) {
                store.strings.insert(pair[0].clone(), pair[1].clone());
                heard = Some(Heard::Changed { key: pair[0].clone() });
            }
            OK.to_vec()
        }
        b"DEL" | b"UNLINK" => {
            let has = |key: &&Vec<u8>| {
                store.strings.remove(*key).is_some() | store.hashes.remove(*key).is_some()
            };
            heard = Some(Heard::Changed { key: first.to_vec() });
            number(args.iter().filter(has).count() as i64)
        }
        b"EXISTS" | b"TOUCH" => {
            let has = |key: &&Vec<u8>| {
                store.strings.contains_key(*key) || store.hashes.contains_key(*key)
            };
            number(args.iter().filter(has).count() as i64)
        }
        b"INCR" if args.len() == 1 => {
            let old = store.strings.get(first).map_or(Some(0), |value| {
                std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok())
            });
            match old.and_then(|old| old.checked_add(1)) {
                None => b"-ERR value is not an integer or out of range\r\n".to_vec(),
                Some(new) => {
                    store.strings.insert(first.to_vec(), new.to_string().into_bytes());
                    number(new)
                }
            }
        }
        b"HSET" if args.len() == 3 => {
            let hash = store.hashes.entry(first.to_vec()).or_default();
            number(i64::from(hash.insert(args[1].clone(), args[2].clone()).is_none()))
        }
        b"HGETALL" if args.len() == 1 => {
            let pairs: Vec<_> = store.hashes.get(first).map_or(Vec::new(), |hash| {
                hash.iter().map(|(name, value)| (bulk(name), bulk(value))).collect()
            });
            session.map(&pairs)
        }
        b"SCAN" => array(&[bulk(b"0"), array(&[])]),
        b"KEYS" => array(&[]),
        b"DBSIZE" | b"WAIT" => number(0),
        b"RANDOMKEY" => session.null(),
        b"BLPOP" | b"BRPOP" | b"BZPOPMIN" | b"BZPOPMAX" | b"BLMPOP" | b"BZMPOP" | b"XREAD"
        | b"XREADGROUP" => session.null_array(),
        b"BLMOVE" | b"BRPOPLPUSH" => session.null(),
        _ if is_forwarded(&verb) && !args.iter().any(|word| is_watched(word)) => {
            session.any(random, 2)
        }
        _ => NO.to_vec(),
    };
    (reply, heard)
}

/// Whether the gateway passes on whatever one server answers.
fn is_forwarded(verb: &[u8]) -> bool {
    let name = String::from_utf8_lossy(verb).to_ascii_lowercase();
    COMMANDS.iter().any(|command| command.name == name && matches!(command.rule, Rule::Forward))
}

impl Session {
    /// Any reply, such as a script may give.
    fn any(&self, random: &mut Random, depth: u32) -> Vec<u8> {
        const TEXTS: [&[u8]; 6] =
            [b"", b"x", b"a\r\nb", b"$-1\r\n", b"+OK\r\n*1\r\n:1\r\n", b"-ERR no\r\n"];
        let texts = TEXTS;
        let kinds = match (depth > 0, self.is_resp3) {
            (false, false) => 6,
            (true, false) => 8,
            (false, true) => 12,
            (true, true) => 15,
        };
        let some = |random: &mut Random| -> Vec<Vec<u8>> {
            (0..random.below(4)).map(|_| self.any(random, depth - 1)).collect()
        };
        match random.below(kinds) {
            0 => b"-ERR of the model\r\n".to_vec(),
            1 => OK.to_vec(),
            2 => number(random.below(1000) as i64 - 500),
            3 => bulk(random.pick(&texts)),
            4 => self.null(),
            5 => bulk(&vec![b'y'; random.below(20_000)]),
            6 | 7 if depth > 0 => array(&some(random)),
            6 => b",1.5\r\n".to_vec(),
            7 => b"#t\r\n".to_vec(),
            8 => b"(12345678901234567890\r\n".to_vec(),
            9 => b"=7\r\ntxt:abc\r\n".to_vec(),
            10 => b",inf\r\n".to_vec(),
            11 => b"#f\r\n".to_vec(),
            12 => {
                let mut set = array(&some(random));
                set[0] = b'~';
                set
            }
            _ => {
                let pairs: Vec<_> =
                    some(random).into_iter().map(|value| (bulk(b"k"), value)).collect();
                self.map(&pairs)
            }
        }
    }
}
