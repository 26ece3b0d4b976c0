//! Watched clients: their requests and the correct replies.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::case::excerpt;
use crate::generate::Protocol;
use crate::generate::binary::packet;
use crate::random::Random;

/// Requests that a watched client sends at once.
const PIPELINE_MAX: usize = 12;
const KEYS: usize = 12;

/// A problem of a watched client.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    pub(super) what: &'static str,
    pub(super) detail: String,
}

/// The correct replies to a request.
struct Expected {
    asked: Vec<u8>,
    /// Any of these.
    replies: Vec<Vec<u8>>,
    /// The deleted key and its former value, if any reply but the first one came.
    missing: Option<(String, Vec<u8>)>,
}

pub(super) struct Watcher {
    protocol: Protocol,
    name: String,
    stream: UnixStream,
    /// The value of each key; a key that is not here may be missing.
    model: BTreeMap<String, Vec<u8>>,
    counter: u64,
    random: Random,
    input: Vec<u8>,
    resp3: bool,
    /// The most requests that it sends at once.
    pipeline: usize,
    patience: Duration,
    pub(super) replies: u64,
    pub(super) misses: u64,
    pub(super) slowest: Duration,
}

impl Watcher {
    pub(super) fn connect(
        protocol: Protocol,
        name: String,
        address: &Path,
        patience: Duration,
        random: Random,
    ) -> io::Result<Self> {
        let stream = UnixStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self {
            protocol,
            name,
            stream,
            model: BTreeMap::new(),
            counter: 0,
            random,
            input: Vec::new(),
            resp3: false,
            pipeline: PIPELINE_MAX,
            patience,
            replies: 0,
            misses: 0,
            slowest: Duration::ZERO,
        })
    }

    /// Whether each request waits for the answer to the one before.
    pub(super) fn one_at_a_time(mut self, is_it: bool) -> Self {
        self.pipeline = if is_it { 1 } else { PIPELINE_MAX };
        self
    }

    /// Closes the connection and makes another one: possibly to another worker.
    pub(super) fn reconnect(&mut self, address: &Path) -> io::Result<()> {
        self.stream = UnixStream::connect(address)?;
        self.stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        self.stream.set_write_timeout(Some(self.patience))?;
        self.input.clear();
        self.resp3 = false;
        if self.protocol == Protocol::Redis && self.random.percent(40) {
            self.stream.write_all(b"HELLO 3\r\n")?;
            // The reply is a map of server facts; the next reply shows its end.
            self.stream.write_all(b"PING watched-hello\r\n")?;
            let until = Instant::now() + self.patience;
            while !self.input.ends_with(b"$13\r\nwatched-hello\r\n") {
                if Instant::now() > until || !self.read()? {
                    return Err(ErrorKind::TimedOut.into());
                }
            }
            self.input.clear();
            self.resp3 = true;
        }
        Ok(())
    }

    /// One pipeline of requests, and their replies.
    pub(super) fn tick(&mut self) -> Result<(), Trouble> {
        let count = 1 + self.random.below(self.pipeline);
        let mut expected = Vec::with_capacity(count);
        for _ in 0..count {
            match self.protocol {
                Protocol::Redis => self.ask_redis(&mut expected),
                Protocol::Text => self.ask_text(&mut expected),
                Protocol::Binary => self.ask_binary(&mut expected),
            }
        }
        if self.protocol == Protocol::Text {
            // Commands without a reply are done before another connection is used.
            expected.push(noop());
        }
        let bytes: Vec<u8> = expected.iter().flat_map(|one| one.asked.clone()).collect();
        let trouble = |what, detail| Err(Trouble { what, detail });
        if let Err(error) = self.stream.write_all(&bytes) {
            return trouble("is not read from", error.to_string());
        }
        let started = Instant::now();
        for one in &expected {
            loop {
                match self.taken(one) {
                    Taken::Reply => break,
                    Taken::Partly => {}
                    Taken::Other => {
                        let wanted: Vec<String> =
                            one.replies.iter().map(|reply| excerpt(reply)).collect();
                        let detail = format!(
                            "{} asked {} and got {}, not {}",
                            self.name,
                            excerpt(&one.asked),
                            excerpt(&self.input[..self.input.len().min(600)]),
                            wanted.join(" or ")
                        );
                        let is_error = [&b"-"[..], b"SERVER_ERROR", b"ERROR", b"CLIENT_ERROR"]
                            .iter()
                            .any(|start| self.input.starts_with(start));
                        let what =
                            if is_error { "gets an error" } else { "gets what is not its reply" };
                        return trouble(what, detail);
                    }
                }
                let is_open = match self.read() {
                    Ok(is_open) => is_open,
                    Err(error) => return trouble("loses its connection", error.to_string()),
                };
                if !is_open {
                    return trouble(
                        "loses its connection",
                        format!("after {}", excerpt(&one.asked)),
                    );
                }
                if started.elapsed() > self.patience {
                    let detail = format!(
                        "{} asked {} and has {} so far",
                        self.name,
                        excerpt(&one.asked),
                        excerpt(&self.input)
                    );
                    return trouble("waits too long", detail);
                }
            }
            self.replies += 1;
        }
        self.slowest = self.slowest.max(started.elapsed());
        if !self.input.is_empty() {
            return trouble("gets more than its replies", excerpt(&self.input));
        }
        Ok(())
    }

    fn read(&mut self) -> io::Result<bool> {
        let mut piece = [0; 16 * 1024];
        match self.stream.read(&mut piece) {
            Ok(0) => Ok(false),
            Ok(len) => {
                self.input.extend_from_slice(&piece[..len]);
                Ok(true)
            }
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) =>
            {
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    /// Takes a reply from the front of the input.
    fn taken(&mut self, expected: &Expected) -> Taken {
        if self.protocol == Protocol::Binary && self.input.len() >= 24 {
            // Only the server knows the unique.
            self.input[16..24].fill(0);
        }
        let mut is_begun = false;
        for (at, reply) in expected.replies.iter().enumerate() {
            if self.input.starts_with(reply) {
                self.input.drain(..reply.len());
                if at > 0
                    && let Some((key, value)) = &expected.missing
                {
                    self.misses += 1;
                    if self.model.get(key) == Some(value) {
                        self.model.remove(key);
                    }
                }
                return Taken::Reply;
            }
            is_begun |= reply.starts_with(&self.input);
        }
        if is_begun || (self.protocol == Protocol::Binary && self.input.len() < 24) {
            Taken::Partly
        } else {
            Taken::Other
        }
    }

    fn key(&mut self) -> String {
        format!("{}:{}", self.name, self.random.below(KEYS))
    }

    /// A value that contains its key and a counter.
    fn value(&mut self, key: &str) -> Vec<u8> {
        self.counter += 1;
        let mut value = format!("<{key}#{}>", self.counter).into_bytes();
        if self.random.percent(4) {
            let filling = value.clone();
            while value.len() < 20_000 {
                value.extend_from_slice(&filling);
            }
        }
        value
    }

    fn ask_redis(&mut self, expected: &mut Vec<Expected>) {
        let key = self.key();
        let null: &[u8] = if self.resp3 { b"_\r\n" } else { b"$-1\r\n" };
        let bulk = |value: Option<&Vec<u8>>| match value {
            Some(value) => [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat(),
            None => null.to_vec(),
        };
        let words = |words: &[&[u8]]| {
            let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
            words.iter().for_each(|word| bytes.extend(bulk(Some(&word.to_vec()))));
            bytes
        };
        let (asked, reply) = match self.random.below(7) {
            0 | 1 => {
                let value = self.value(&key);
                let asked = words(&[b"SET", key.as_bytes(), &value]);
                self.model.insert(key, value);
                (asked, b"+OK\r\n".to_vec())
            }
            2 => {
                let was = self.model.remove(&key);
                (
                    words(&[b"DEL", key.as_bytes()]),
                    format!(":{}\r\n", u8::from(was.is_some())).into_bytes(),
                )
            }
            3 => {
                let other = self.key();
                let (one, two) = (bulk(self.model.get(&key)), bulk(self.model.get(&other)));
                (
                    words(&[b"MGET", key.as_bytes(), other.as_bytes()]),
                    [b"*2\r\n", &one[..], &two].concat(),
                )
            }
            4 => {
                let echo = self.value(&key);
                (words(&[b"ECHO", &echo]), bulk(Some(&echo)))
            }
            _ => (words(&[b"GET", key.as_bytes()]), bulk(self.model.get(&key))),
        };
        expected.push(Expected { asked, replies: vec![reply], missing: None });
    }

    fn ask_text(&mut self, expected: &mut Vec<Expected>) {
        let key = self.key();
        let block = |key: &str, value: &[u8]| {
            [format!("VALUE {key} 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
        };
        let end = b"END\r\n".to_vec();
        let known = self.model.get(&key).cloned();
        let one = match self.random.below(8) {
            0 | 1 => {
                let value = self.value(&key);
                let noreply = self.random.percent(30);
                let line = format!(
                    "set {key} 0 0 {}{}\r\n",
                    value.len(),
                    if noreply { " noreply" } else { "" }
                );
                let asked = [line.as_bytes(), &value, b"\r\n"].concat();
                self.model.insert(key, value);
                Expected {
                    asked,
                    replies: vec![if noreply { Vec::new() } else { b"STORED\r\n".to_vec() }],
                    missing: None,
                }
            }
            2 => {
                let value = self.value(&key);
                let asked =
                    [format!("ms {key} {}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
                self.model.insert(key, value);
                Expected { asked, replies: vec![b"HD\r\n".to_vec()], missing: None }
            }
            3 => {
                let mut replies = vec![b"EN\r\n".to_vec()];
                if let Some(value) = &known {
                    replies.insert(
                        0,
                        [format!("VA {} k{key}\r\n", value.len()).as_bytes(), value, b"\r\n"]
                            .concat(),
                    );
                }
                replies.push(format!("EN k{key}\r\n").into_bytes());
                let missing = known.map(|value| (key.clone(), value));
                Expected { asked: format!("mg {key} v k\r\n").into_bytes(), replies, missing }
            }
            4 => {
                self.model.remove(&key);
                let replies = vec![b"DELETED\r\n".to_vec(), b"NOT_FOUND\r\n".to_vec()];
                Expected { asked: format!("delete {key}\r\n").into_bytes(), replies, missing: None }
            }
            5 => noop(),
            6 => {
                let other = self.key();
                let blocks: Vec<Vec<u8>> = [&key, &other]
                    .iter()
                    .map(|key| {
                        self.model.get(*key).map(|value| block(key, value)).unwrap_or_default()
                    })
                    .collect();
                let replies = [(true, true), (true, false), (false, true), (false, false)].map(
                    |(one, two)| {
                        let (one, two) = (
                            if one { &blocks[0][..] } else { b"" },
                            if two { &blocks[1][..] } else { b"" },
                        );
                        [one, two, &end[..]].concat()
                    },
                );
                Expected {
                    asked: format!("get {key} {other}\r\n").into_bytes(),
                    replies: replies.to_vec(),
                    missing: None,
                }
            }
            _ => {
                let mut replies = vec![end.clone()];
                if let Some(value) = &known {
                    replies.insert(0, [block(&key, value), end].concat());
                }
                let missing = known.map(|value| (key.clone(), value));
                Expected { asked: format!("get {key}\r\n").into_bytes(), replies, missing }
            }
        };
        expected.push(one);
    }

    fn ask_binary(&mut self, expected: &mut Vec<Expected>) {
        let key = self.key();
        let opaque = self.random.number() as u32;
        let reply = |opcode: u8, status: u8, extras: &[u8], key: &[u8], value: &[u8]| {
            let mut packet = packet(opcode, extras, key, value, opaque, 0);
            packet[0] = 0x81;
            packet[7] = status;
            packet
        };
        let one = match self.random.below(5) {
            0 | 1 => {
                let value = self.value(&key);
                let asked = packet(0x01, &[0; 8], key.as_bytes(), &value, opaque, 0);
                self.model.insert(key, value);
                Expected { asked, replies: vec![reply(0x01, 0, b"", b"", b"")], missing: None }
            }
            2 => Expected {
                asked: packet(0x0a, b"", b"", b"", opaque, 0),
                replies: vec![reply(0x0a, 0, b"", b"", b"")],
                missing: None,
            },
            _ => {
                let mut replies = vec![
                    reply(0x0c, 1, b"", key.as_bytes(), b""),
                    reply(0x0c, 1, b"", b"", b"Not found"),
                ];
                let known = self.model.get(&key);
                let missing = known.map(|value| (key.clone(), value.clone()));
                if let Some(value) = known {
                    replies.insert(0, reply(0x0c, 0, &[0; 4], key.as_bytes(), value));
                }
                Expected {
                    asked: packet(0x0c, b"", key.as_bytes(), b"", opaque, 0),
                    replies,
                    missing,
                }
            }
        };
        expected.push(one);
    }
}

enum Taken {
    Reply,
    Partly,
    Other,
}

fn noop() -> Expected {
    Expected { asked: b"mn\r\n".to_vec(), replies: vec![b"MN\r\n".to_vec()], missing: None }
}
