//! One request of a client and its correct reply, as far as that is known.

use crate::meta_server;
use crate::packet::{self, Packet};
use crate::shape;

/// A server's result for one key of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The key's share of the reply: an array element, a number, a VALUE block, or all of it.
    pub(crate) reply: Vec<u8>,
    /// The server refused the whole command that had this key.
    pub(crate) refused: bool,
}

impl Outcome {
    pub(crate) fn good(reply: impl Into<Vec<u8>>) -> Self {
        Self { reply: reply.into(), refused: false }
    }

    pub(crate) fn refused(reply: impl Into<Vec<u8>>) -> Self {
        Self { reply: reply.into(), refused: true }
    }
}

/// One key of a request.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) key: Vec<u8>,
    pub(crate) outcome: Option<Outcome>,
    /// What a server must receive with the key.
    pub(crate) payload: Option<Vec<u8>>,
    /// The key belongs to no client: servers do not report its executions, and `outcome` is known
    /// from the start.
    pub(crate) shared: bool,
    /// In runs with surprises: the connection to a server that it was written on, and the reply
    /// read in its place.
    pub(crate) wire: Option<u32>,
    pub(crate) told: Option<Outcome>,
}

impl Part {
    pub(crate) fn new(key: Vec<u8>, payload: Option<Vec<u8>>) -> Self {
        Self { key, outcome: None, payload, shared: false, wire: None, told: None }
    }
}

/// The session parameters of a connection to a Redis server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionParams {
    pub(crate) resp3: bool,
    pub(crate) database: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// How the parts of a reply are combined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The gateway's own reply.
    Local(Vec<u8>),
    /// The gateway's reply to HELLO, in the requested protocol version.
    Greeting,
    /// Every live server gives the same reply.
    Constant(&'static [u8]),
    Forward,
    Gather,
    Sum,
    Same,
    Values,
    /// Parts that were sent quietly, and then this.
    Batch(Vec<u8>),
    /// Every live server must execute it and reply this.
    Broadcast(&'static [u8]),
    /// In a transaction: this, or one of these if keys may have moved meanwhile. Its parts are
    /// executed with EXEC, if at all.
    Session {
        good: Vec<u8>,
        fair: Vec<&'static [u8]>,
    },
    /// The server's reply after a while, or none if that is `nil`.
    Wait {
        nil: bool,
    },
}

/// How the end of a reply is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Resp,
    Resp3,
    Line,
    Values,
    Meta,
    MetaBatch,
    Packet,
    PacketBatch,
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) bytes: Vec<u8>,
    /// Identifies the command in the server's report, so that no two requests in flight for one key
    /// have the same.
    pub(crate) tag: Vec<u8>,
    pub(crate) access: Access,
    pub(crate) parts: Vec<Part>,
    /// The session parameters of the connection on which a server must see it.
    pub(crate) params: SessionParams,
    pub(crate) answer: Answer,
    pub(crate) framing: Framing,
    /// The client wants no reply.
    pub(crate) no_reply: bool,
    /// The gateway closes the connection after the reply.
    pub(crate) last: bool,
    /// When its transaction began: faults since then may show now.
    pub(crate) began: Option<u64>,
    /// The expected reply depends on what the gateway reads, not on what servers do.
    pub(crate) by_wire: bool,
    /// Errors that servers have sent after the values of some of the parts.
    pub(crate) ended_by: Vec<Vec<u8>>,
    /// What the gateway has read in its place, if one server has the whole request.
    pub(crate) told: Option<Vec<u8>>,
}

impl Request {
    pub(crate) fn new(bytes: impl Into<Vec<u8>>, answer: Answer, framing: Framing) -> Self {
        Self {
            bytes: bytes.into(),
            tag: Vec::new(),
            access: Access::Read,
            parts: Vec::new(),
            params: SessionParams::default(),
            answer,
            framing,
            no_reply: false,
            last: false,
            began: None,
            by_wire: false,
            ended_by: Vec::new(),
            told: None,
        }
    }

    /// Whether the gateway counts it as a guess.
    pub(crate) fn is_wrong_password(&self) -> bool {
        matches!(&self.answer, Answer::Local(reply) if reply.starts_with(b"-WRONGPASS "))
    }

    /// What is known of a part's share of the reply.
    pub(crate) fn share<'p>(&self, part: &'p Part) -> Option<&'p Outcome> {
        if self.by_wire { part.told.as_ref() } else { part.outcome.as_ref() }
    }

    /// The reply, once all parts are done.
    pub(crate) fn expected(&self) -> Option<Vec<u8>> {
        match &self.answer {
            Answer::Local(text) => return Some(text.clone()),
            Answer::Constant(text) | Answer::Broadcast(text) => return Some(text.to_vec()),
            Answer::Greeting => return None,
            Answer::Session { good, .. } => return Some(good.clone()),
            Answer::Wait { .. } if self.parts.is_empty() => return None,
            Answer::Forward
            | Answer::Gather
            | Answer::Sum
            | Answer::Same
            | Answer::Values
            | Answer::Batch(_)
            | Answer::Wait { .. } => {}
        }
        let outcomes: Option<Vec<&Outcome>> =
            self.parts.iter().map(|part| self.share(part)).collect();
        let outcomes = outcomes?;
        if let Some(refused) = outcomes.iter().find(|outcome| outcome.refused) {
            return Some(refused.reply.clone());
        }
        let replies = outcomes.iter().map(|outcome| outcome.reply.as_slice());
        Some(match &self.answer {
            Answer::Gather => {
                let mut all = format!("*{}\r\n", self.parts.len()).into_bytes();
                replies.for_each(|reply| all.extend_from_slice(reply));
                all
            }
            Answer::Values => {
                let mut all = replies.collect::<Vec<_>>().concat();
                all.extend_from_slice(b"END\r\n");
                all
            }
            Answer::Batch(fence) => {
                let mut all = Vec::new();
                for part in &self.parts {
                    all.extend(self.quiet_answer(part)?);
                }
                all.extend_from_slice(fence);
                all
            }
            Answer::Sum => {
                let number = |reply: &[u8]| {
                    let text = std::str::from_utf8(reply.strip_prefix(b":")?).ok()?;
                    text.trim_end().parse::<i64>().ok()
                };
                let sum: Option<i64> = replies.map(number).sum();
                format!(":{}\r\n", sum?).into_bytes()
            }
            Answer::Forward | Answer::Same | Answer::Wait { .. } => outcomes[0].reply.clone(),
            Answer::Local(_)
            | Answer::Greeting
            | Answer::Constant(_)
            | Answer::Broadcast(_)
            | Answer::Session { .. } => return None,
        })
    }

    /// The reply to an executed part of a batch.
    pub(crate) fn quiet_answer(&self, part: &Part) -> Option<Vec<u8>> {
        let reply = &self.share(part)?.reply;
        if self.by_wire {
            return Some(reply.clone());
        }
        Some(match (self.framing, &part.payload) {
            (Framing::MetaBatch, Some(payload)) => meta_server::quieten(payload, reply),
            _ => packet::quieten(reply),
        })
    }

    /// Part of it was written and not answered, which the start of a reply may hide.
    pub(crate) fn is_torn(&self) -> bool {
        let is_cut = |part: &Part| part.wire.is_some() && part.told.is_none();
        self.by_wire && !shape::is_strict(shape::Kind::Opening) && self.parts.iter().any(is_cut)
    }

    /// The individual replies within the reply to a batch.
    pub(crate) fn pieces<'r>(&self, mut reply: &'r [u8]) -> Vec<&'r [u8]> {
        let mut pieces = Vec::new();
        while let Some(len) = match self.framing {
            Framing::MetaBatch => meta_server::frame(reply),
            _ => Packet::read(reply).map(|(_, len)| len),
        } {
            let (piece, rest) = reply.split_at(len);
            pieces.push(piece);
            reply = rest;
        }
        pieces
    }

    /// Whether it is a correct reply.
    pub(crate) fn is_answered_by(&self, reply: &[u8]) -> bool {
        if self.answer == Answer::Greeting {
            let (start, version) = match self.framing {
                Framing::Resp3 => ("%7\r\n$6\r\nserver\r\n", "\r\n$5\r\nproto\r\n:3\r\n"),
                _ => ("*14\r\n$6\r\nserver\r\n", "\r\n$5\r\nproto\r\n:2\r\n"),
            };
            let has_version = reply.windows(version.len()).any(|part| part == version.as_bytes());
            return reply.starts_with(start.as_bytes()) && has_version;
        }
        self.told.as_deref() == Some(reply)
            || self.expected().is_some_and(|expected| expected == reply)
    }

    /// Length of the reply at the start of `bytes`, if it is complete.
    pub(crate) fn frame(&self, bytes: &[u8]) -> Result<Option<usize>, &'static str> {
        match self.framing {
            Framing::Resp => resp_frame(bytes, false),
            Framing::Resp3 => resp_frame(bytes, true),
            Framing::Line => Ok(line_end(bytes, 0)),
            Framing::Values => values_frame(bytes),
            Framing::Meta => Ok(meta_server::frame(bytes)),
            Framing::Packet => match bytes[0] {
                0x81 => Ok(Packet::read(bytes).map(|(_, len)| len)),
                _ => Err("no packet"),
            },
            Framing::MetaBatch | Framing::PacketBatch => {
                let Answer::Batch(fence) = &self.answer else { return Err("no batch") };
                let mut len = 0;
                for piece in self.pieces(bytes) {
                    len += piece.len();
                    if piece == fence {
                        return Ok(Some(len));
                    }
                }
                Ok(None)
            }
        }
    }
}

/// Index after the line that starts at `at`.
pub(crate) fn line_end(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = bytes.get(at..)?;
    rest.windows(2).position(|pair| pair == b"\r\n").map(|len| at + len + 2)
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn resp_frame(bytes: &[u8], resp3: bool) -> Result<Option<usize>, &'static str> {
    let (mut at, mut left) = (0, 1);
    while left > 0 {
        let Some(end) = line_end(bytes, at) else { return Ok(None) };
        let (kind, text) = (bytes[at], &bytes[at + 1..end - 2]);
        left -= 1;
        at = end;
        match kind {
            b'+' | b'-' | b':' => {}
            b'$' => {
                let len = number(text).ok_or("a bulk of no length")?;
                if len >= 0 {
                    at += len as usize + 2;
                    if at > bytes.len() {
                        return Ok(None);
                    }
                }
            }
            b'*' => left += number(text).ok_or("an array of no length")?.max(0),
            b'%' if resp3 => left += 2 * number(text).ok_or("a map of no length")?,
            b'_' if resp3 => {}
            _ => return Err("no type of its protocol version"),
        }
    }
    Ok(Some(at))
}

fn values_frame(bytes: &[u8]) -> Result<Option<usize>, &'static str> {
    let mut at = 0;
    loop {
        let Some(end) = line_end(bytes, at) else { return Ok(None) };
        let line = &bytes[at..end - 2];
        if line == b"END" || shape::is_error(line) {
            return Ok(Some(end));
        }
        let mut words = line.split(|&byte| byte == b' ');
        let is_value = words.next() == Some(b"VALUE");
        let size = words.nth(2).and_then(number);
        let (true, Some(size)) = (is_value, size) else { return Err("no VALUE line") };
        at = end + size as usize + 2;
        if at > bytes.len() {
            return Ok(None);
        }
    }
}
