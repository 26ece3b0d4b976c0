//! What a server may reply to a request, parsed as strictly as the gateway promises to. Written
//! without the tested code.

use crate::packet::HEADER_SIZE;
use crate::request::line_end;

/// The required form of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Any one value of the connection's version of RESP.
    Value,
    /// An array of so many elements, as part of the reply to a split request.
    Array(usize),
    /// A number, likewise.
    Integer,
    /// A status line, likewise.
    Status,
    /// VALUE blocks of these keys, each once, and END.
    Blocks(Vec<Vec<u8>>),
    /// One of these lines.
    Line(&'static [&'static str]),
    /// A number, as the reply to `incr`.
    Count,
    Version,
    /// Any output before VERSION, which ends it.
    Told,
    /// One of these codes of the meta commands.
    Meta(&'static [&'static str]),
    /// The same or nothing, and MN.
    Fenced(&'static [&'static str]),
    Packet {
        opcode: u8,
        opaque: u32,
    },
}

/// Kinds of shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Replies of Redis.
    Value,
    Part,
    /// Replies of memcached to `get` and its variants, to other commands of the text protocol, to
    /// meta commands, and in packets.
    Blocks,
    Line,
    Meta,
    /// Replies to quiet commands followed by `mn`.
    Fence,
    Packet,
    /// The start of a reply to a quiet command. It may be taken for an omitted reply before the
    /// rest shows that it does not match.
    Opening,
}

/// Kinds of replies for which the engine does not detect every mismatch yet. When one of these does
/// not match, the consequences for its connection and clients are not checked. Crashes and endless
/// waits are still detected.
pub(crate) const NOT_YET_STRICT: &[Kind] = &[Kind::Blocks, Kind::Fence, Kind::Opening];

pub(crate) fn is_strict(kind: Kind) -> bool {
    !NOT_YET_STRICT.contains(&kind)
}

/// How bytes relate to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Its reply, of that length.
    Whole(usize),
    /// The start of one.
    Part,
    /// It cannot be the reply to this request.
    Misfit,
}

use Reading::{Misfit, Part, Whole};

impl Shape {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Value => Kind::Value,
            Self::Array(_) | Self::Integer | Self::Status => Kind::Part,
            Self::Blocks(_) => Kind::Blocks,
            Self::Line(_) | Self::Count | Self::Version | Self::Told => Kind::Line,
            Self::Meta(_) => Kind::Meta,
            Self::Fenced(_) => Kind::Fence,
            Self::Packet { .. } => Kind::Packet,
        }
    }

    /// Parses a reply at the start of `bytes`.
    pub(crate) fn read(&self, bytes: &[u8], resp3: bool) -> Reading {
        match self {
            Self::Value => value(bytes, 0, resp3),
            Self::Array(_) | Self::Integer | Self::Status => match value(bytes, 0, resp3) {
                Whole(len) if self.is_part(&bytes[..len]) => Whole(len),
                Whole(_) => Misfit,
                reading => reading,
            },
            Self::Blocks(keys) => blocks(bytes, keys),
            Self::Line(words) => line(bytes, |line| words.iter().any(|w| w.as_bytes() == line)),
            Self::Count => line(bytes, |line| {
                line == b"NOT_FOUND" || (!line.is_empty() && line.iter().all(u8::is_ascii_digit))
            }),
            Self::Version => line(bytes, |line| line.starts_with(b"VERSION ")),
            Self::Told => told(bytes),
            Self::Meta(codes) => meta(bytes, codes),
            Self::Fenced(codes) => match (bytes.starts_with(b"MN\r\n"), meta(bytes, codes)) {
                (true, _) => Whole(4),
                (false, Whole(len)) => match bytes[len..].first_chunk() {
                    Some(b"MN\r\n") => Whole(len + 4),
                    Some(_) => Misfit,
                    None if b"MN\r\n".starts_with(&bytes[len..]) => Part,
                    None => Misfit,
                },
                (false, reading) => reading,
            },
            &Self::Packet { opcode, opaque } => packet(bytes, opcode, opaque),
        }
    }

    fn is_part(&self, reply: &[u8]) -> bool {
        let head = &reply[..line_end(reply, 0).unwrap_or(reply.len())];
        reply[0] == b'-'
            || match self {
                Self::Array(count) => head == format!("*{count}\r\n").as_bytes(),
                Self::Integer => reply[0] == b':',
                _ => reply[0] == b'+',
            }
    }
}

fn digits(text: &[u8]) -> Option<usize> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

/// One value of RESP from `at` on; the length counts from the start.
pub(crate) fn value(bytes: &[u8], mut at: usize, resp3: bool) -> Reading {
    let mut left = 1u64;
    while left > 0 {
        let Some(&kind) = bytes.get(at) else { return Part };
        let is_known = match kind {
            b'+' | b'-' | b':' | b'$' | b'*' => true,
            b'_' | b'%' | b'>' => resp3,
            _ => false,
        };
        if !is_known {
            return Misfit;
        }
        let Some(end) = line_end(bytes, at) else { return Part };
        let text = &bytes[at + 1..end - 2];
        left -= 1;
        at = end;
        match (kind, digits(text)) {
            (b'+' | b'-' | b':' | b'_', _) => {}
            (b'$' | b'*', None) if text == b"-1" => {}
            (b'$', Some(len)) => match bytes.get(at + len..) {
                Some([b'\r', b'\n', ..]) => at += len + 2,
                Some([] | [b'\r']) | None => return Part,
                Some(_) => return Misfit,
            },
            (b'*' | b'>', Some(count)) => left += count as u64,
            (b'%', Some(count)) => left += 2 * count as u64,
            _ => return Misfit,
        }
    }
    Whole(at)
}

/// memcached's error lines, valid instead of any reply.
pub(crate) fn is_error(line: &[u8]) -> bool {
    line == b"ERROR" || line.starts_with(b"SERVER_ERROR ") || line.starts_with(b"CLIENT_ERROR ")
}

/// The same with its line end.
pub(crate) fn is_error_line(reply: &[u8]) -> bool {
    reply.strip_suffix(b"\r\n").is_some_and(is_error)
}

fn line(bytes: &[u8], fits: impl Fn(&[u8]) -> bool) -> Reading {
    match line_end(bytes, 0) {
        Some(end) if is_error(&bytes[..end - 2]) || fits(&bytes[..end - 2]) => Whole(end),
        Some(_) => Misfit,
        None => Part,
    }
}

fn told(bytes: &[u8]) -> Reading {
    let mut at = 0;
    while let Some(end) = line_end(bytes, at) {
        if bytes[at..end].starts_with(b"VERSION ") {
            return Whole(end);
        }
        at = end;
    }
    Part
}

/// Data and the line end after them, from `at` on.
fn data(bytes: &[u8], at: usize, size: usize) -> Reading {
    match bytes.get(at + size..) {
        Some([b'\r', b'\n', ..]) => Whole(at + size + 2),
        Some([] | [b'\r']) | None => Part,
        Some(_) => Misfit,
    }
}

/// The key and the number of bytes that a VALUE line announces.
fn value_line(line: &[u8]) -> Option<(&[u8], usize)> {
    let mut words = line.split(|&byte| byte == b' ');
    let is_value = words.next() == Some(b"VALUE");
    let key = words.next().filter(|_| is_value)?;
    digits(words.next()?)?;
    let size = digits(words.next()?)?;
    let is_end = words.next().is_none_or(|unique| digits(unique).is_some());
    (is_end && words.next().is_none()).then_some((key, size))
}

/// A key, and the block that names it.
type Block<'b> = (&'b [u8], &'b [u8]);

/// The blocks at the start of `bytes`, with their keys, and the rest.
pub(crate) fn split_blocks(bytes: &[u8]) -> (Vec<Block<'_>>, &[u8]) {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(end) = line_end(bytes, at)
        && let Some((key, size)) = value_line(&bytes[at..end - 2])
        && let Whole(next) = data(bytes, end, size)
    {
        found.push((key, &bytes[at..next]));
        at = next;
    }
    (found, &bytes[at..])
}

fn blocks(bytes: &[u8], keys: &[Vec<u8>]) -> Reading {
    let mut keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let (found, rest) = split_blocks(bytes);
    let at = bytes.len() - rest.len();
    for (key, _) in found {
        let Some(place) = keys.iter().position(|&asked| asked == key) else { return Misfit };
        keys.remove(place);
    }
    let Some(end) = line_end(rest, 0) else { return Part };
    match &rest[..end - 2] {
        b"END" => Whole(at + end),
        line if is_error(line) => Whole(at + end),
        line => match value_line(line) {
            Some((key, size)) if keys.contains(&key) => data(rest, end, size),
            _ => Misfit,
        },
    }
}

fn meta(bytes: &[u8], codes: &[&str]) -> Reading {
    let Some(end) = line_end(bytes, 0) else { return Part };
    let line = &bytes[..end - 2];
    if is_error(line) {
        return Whole(end);
    }
    let mut words = line.split(|&byte| byte == b' ');
    let code = words.next().unwrap_or_default();
    match codes.iter().any(|known| known.as_bytes() == code) {
        true if code == b"VA" => match words.next().and_then(digits) {
            Some(size) => data(bytes, end, size),
            None => Misfit,
        },
        true => Whole(end),
        false => Misfit,
    }
}

fn packet(bytes: &[u8], opcode: u8, opaque: u32) -> Reading {
    let Some(header) = bytes.get(..HEADER_SIZE) else { return Part };
    let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
    let named = usize::from(header[4]) + usize::from(u16::from_be_bytes([header[2], header[3]]));
    let is_it = header[..2] == [0x81, opcode] && header[12..16] == opaque.to_be_bytes();
    match bytes.len() >= HEADER_SIZE + body {
        _ if !is_it || named > body => Misfit,
        true => Whole(HEADER_SIZE + body),
        false => Part,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_fits_and_only_that() {
        let keys = || vec![b"a".to_vec(), b"b".to_vec()];
        let codes: &[&str] = &["HD", "NF"];
        let fitting: &[(Shape, &str)] = &[
            (Shape::Value, "*2\r\n$-1\r\n$3\r\nabc\r\n"),
            (Shape::Array(1), "*1\r\n:5\r\n"),
            (Shape::Array(1), "-ERR no\r\n"),
            (Shape::Integer, ":5\r\n"),
            (Shape::Blocks(keys()), "VALUE b 0 2\r\nxy\r\nVALUE a 0 0 7\r\n\r\nEND\r\n"),
            (Shape::Blocks(keys()), "VALUE b 0 2\r\nxy\r\nSERVER_ERROR no\r\n"),
            (Shape::Line(&["STORED"]), "STORED\r\n"),
            (Shape::Line(&["STORED"]), "ERROR\r\n"),
            (Shape::Count, "17\r\n"),
            (Shape::Told, "VERSION 1\r\n"),
            (Shape::Told, "a\r\n\r\nVERSION 1\r\n"),
            (Shape::Meta(&["VA"]), "VA 2 c5\r\nxy\r\n"),
            (Shape::Fenced(codes), "MN\r\n"),
            (Shape::Fenced(codes), "NF q\r\nMN\r\n"),
        ];
        for (shape, text) in fitting {
            let bytes = text.as_bytes();
            let longer = [bytes, b"+OK\r\n"].concat();
            assert_eq!(shape.read(&longer, false), Whole(bytes.len()), "{shape:?} {text}");
            for cut in 0..bytes.len() {
                assert_eq!(shape.read(&bytes[..cut], false), Part, "{shape:?} {text} {cut}");
            }
        }
        let misfits: &[(Shape, &str)] = &[
            (Shape::Value, "%1\r\n:1\r\n:2\r\n"),
            (Shape::Value, ">1\r\n:1\r\n"),
            (Shape::Value, "STORED\r\n"),
            (Shape::Value, "$3\r\nabcd\r\n"),
            (Shape::Value, "*-2\r\n"),
            (Shape::Array(2), "*1\r\n:5\r\n"),
            (Shape::Integer, "+OK\r\n"),
            (Shape::Status, ":1\r\n"),
            (Shape::Blocks(keys()), "VALUE c 0 2\r\n"),
            (Shape::Blocks(keys()), "VALUE a 0 0\r\n\r\nVALUE a 0 0\r\n\r\nEND\r\n"),
            (Shape::Blocks(keys()), "STORED\r\n"),
            (Shape::Blocks(keys()), "VALUE a 0 1\r\nxyz"),
            (Shape::Line(&["STORED"]), "END\r\n"),
            (Shape::Count, "\r\n"),
            (Shape::Meta(codes), "EN\r\n"),
            (Shape::Fenced(codes), "HD\r\nHD\r\n"),
        ];
        for (shape, text) in misfits {
            assert_eq!(shape.read(text.as_bytes(), false), Misfit, "{shape:?} {text}");
        }
    }
}
