//! Surprising replies of a server.

use cashew_config::snapshot::Protocol;

use crate::packet::Packet;
use crate::random::Random;
use crate::request::line_end;

/// The surprise for one reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Surprise {
    /// It is omitted.
    Nothing,
    Twice,
    /// It comes after the one to the next request.
    Late,
    /// It is replaced by one of any shape.
    Odd,
    /// It is replaced by one of the same shape.
    Alike,
    /// An error comes in the middle of it.
    Interrupted,
    /// It is cut short, and another follows.
    Cut,
}

use Surprise::*;

impl Surprise {
    const ALL: [Self; 9] = [Nothing, Twice, Late, Odd, Odd, Odd, Alike, Interrupted, Cut];

    pub(crate) fn any(random: &mut Random) -> Self {
        random.pick(&Self::ALL)
    }

    /// Whether it may replace a reply to the gateway's handshake: a server with a wrong reply to
    /// that counts as another one, or as hanging.
    pub(crate) fn may_greet(self) -> bool {
        self == Twice
    }

    pub(crate) fn code(self) -> u64 {
        self as u64
    }

    /// The immediate replacement for `reply`; [`Late`] keeps it.
    pub(crate) fn instead(
        self,
        reply: &[u8],
        protocol: Protocol,
        resp3: bool,
        random: &mut Random,
    ) -> Vec<u8> {
        let is_packet = reply.first() == Some(&0x81);
        let odd = |random: &mut Random| match protocol {
            Protocol::Redis => odd_value(resp3, random),
            Protocol::Memcached if is_packet => odd_packet(reply, random),
            Protocol::Memcached | Protocol::Tcp => odd_text(random),
        };
        match self {
            Nothing | Late => Vec::new(),
            Twice => reply.repeat(2),
            Odd => odd(random),
            Alike => alike(reply),
            Interrupted => {
                let at = line_end(reply, 0).unwrap_or(0);
                let error: &[u8] = match protocol {
                    Protocol::Redis => b"-ERR surprise\r\n",
                    Protocol::Memcached | Protocol::Tcp => b"SERVER_ERROR surprise\r\n",
                };
                let at = if random.percent(50) { behind_block(reply).unwrap_or(at) } else { at };
                [&reply[..at], error].concat()
            }
            Cut => {
                let len = random.below(reply.len() as u64 + 1) as usize;
                [&reply[..len], &odd(random)].concat()
            }
        }
    }
}

/// Where the first VALUE block ends, or the first element of an array.
fn behind_block(reply: &[u8]) -> Option<usize> {
    let head = line_end(reply, 0)?;
    let next = line_end(reply, head)?;
    match reply.first()? {
        b'*' if reply.get(head) == Some(&b'$') => line_end(reply, next),
        b'V' | b'*' => Some(next),
        _ => None,
    }
}

/// The same with other content.
fn alike(reply: &[u8]) -> Vec<u8> {
    let mut reply = reply.to_vec();
    let len = reply.len();
    // The last byte of the content, before its line end or that of END.
    let end = if reply.ends_with(b"\r\nEND\r\n") { len - 5 } else { len };
    match reply.first() {
        Some(0x81) if len > 24 + usize::from(reply[4]) => reply[len - 1] ^= 1,
        Some(b'$' | b'V') if end > 3 && reply[end - 3].is_ascii_alphanumeric() => {
            reply[end - 3] = b'!';
        }
        Some(b':') => reply = b":77\r\n".to_vec(),
        Some(b'0'..=b'9') => reply = b"77\r\n".to_vec(),
        _ => {}
    }
    reply
}

fn odd_value(resp3: bool, random: &mut Random) -> Vec<u8> {
    let texts: &[&str] = &[
        ":77\r\n",
        "+STORED\r\n",
        "+QUEUED\r\n",
        "$8\r\nsurprise\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*3\r\n:1\r\n:2\r\n:3\r\n",
        "*1\r\n*2\r\n$1\r\na\r\n-ERR surprise\r\n",
        "-ERR surprise\r\n",
        "-MOVED 17 127.0.0.1:7\r\n",
        "?what\r\n",
        "STORED\r\n",
        "$-5\r\n",
        "*x\r\n",
        "$5\r\nabcdefgh\r\n",
        "$99999999999999999999\r\n",
        ">2\r\n+surprise\r\n:1\r\n",
        "%1\r\n$1\r\na\r\n:1\r\n",
        "_\r\n",
        "\r\n",
        "\0",
    ];
    let text = random.pick(texts);
    // The model's client cannot distinguish what only the newer version has.
    let _ = resp3;
    text.into()
}

fn odd_text(random: &mut Random) -> Vec<u8> {
    let texts: &[&str] = &[
        "STORED\r\n",
        "NOT_STORED\r\n",
        "DELETED\r\n",
        "TOUCHED\r\n",
        "EXISTS\r\n",
        "NOT_FOUND\r\n",
        "OK\r\n",
        "END\r\n",
        "17\r\n",
        "VERSION surprise\r\n",
        "VALUE surprise 0 3\r\nabc\r\nEND\r\n",
        "VALUE c0:1 0 3\r\nabc\r\nEND\r\n",
        "VALUE c1:1 0 3 9\r\nabc\r\n",
        "VALUE surprise 0 x\r\nEND\r\n",
        "VALUE\r\n",
        "STAT surprise 1\r\nEND\r\n",
        "STAT surprise 1\r\n",
        "MN\r\n",
        "HD\r\n",
        "EN\r\n",
        "NF\r\n",
        "NS\r\n",
        "EX\r\n",
        "VA 3\r\nabc\r\n",
        "VA x\r\nabc\r\n",
        "ME surprise\r\n",
        "SERVER_ERROR surprise\r\n",
        "CLIENT_ERROR surprise\r\n",
        "ERROR\r\n",
        "surprise\r\n",
        "\r\n",
        "+OK\r\n",
    ];
    match random.below(20) {
        0 => vec![b'x'; 10_000],
        1 => Packet::REPLY.bytes(),
        _ => random.pick(texts).into(),
    }
}

/// A header with an error.
fn odd_packet(reply: &[u8], random: &mut Random) -> Vec<u8> {
    let mut reply = reply.to_vec();
    match random.below(9) {
        0 => reply[0] = 0x80,
        1 => reply[1] ^= 1,
        2 => reply[1] = random.below(256) as u8,
        3 => reply[12] ^= 0x55,
        4 => reply[15] ^= 1,
        5 => reply[4] = 255,
        // An unknown status is passed on to the client.
        6 => (reply[6], reply[7]) = (0x77, 0x77),
        7 => reply = b"SERVER_ERROR surprise, which is no packet\r\n".to_vec(),
        _ => reply[8] = 0xff,
    }
    reply
}
