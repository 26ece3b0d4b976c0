//! Finds the ends of replies in a server's output, without storing any of it.
//!
//! RESP3, of which RESP2 is a subset. Nesting is counted, not followed: a reply ends when no
//! announced element is outstanding, so depth costs neither memory nor recursion. Only aggregates
//! without an announced length are stored, each while it is open.

use super::{decimal, plain};

/// Digits of a length that cannot overflow 64 bits. Replies have no smaller limit: DUMP of a large
/// collection is longer than any value a client may send.
const LENGTH_DIGITS_MAX: u8 = 18;
/// Maximum nesting of streamed aggregates. No server is known to send even one.
const STREAMS_MAX: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// The reply, or the push, ends after this many bytes of the buffer.
    Complete(usize),
    /// All of the buffer belongs to it, and more has to come.
    Partial,
    /// Not RESP; nothing more can be known about the stream.
    Invalid,
}

/// Consumes all bytes: the next call starts with the first new byte.
#[derive(Clone, Debug, Default)]
pub struct ReplyScanner {
    /// Elements that still have to end, including the current one; 0 before a reply. Inside a
    /// streamed aggregate, whose length is unknown, 1 stands for all of its elements.
    outstanding: u64,
    /// In a length line, the number so far; in a bulk, the bytes still to come, including CRLF.
    remaining: u64,
    /// The outstanding count around each open streamed aggregate, the innermost last.
    streams: Vec<u64>,
    state: State,
    /// The type byte of a length line.
    kind: u8,
    digits: u8,
    announced: Announced,
    /// The current element is a push.
    push: bool,
    /// Types that only RESP3 has are not accepted, except pushes.
    is_resp2: bool,
}

const _: () = assert!(size_of::<ReplyScanner>() <= 48);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Type,
    /// In an element of one line.
    Line,
    LineCr,
    Length,
    LengthCr,
    Bulk,
    /// Before a chunk of a streamed string.
    Chunk,
}

/// The first character of a length line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Announced {
    #[default]
    Number,
    Null,
    /// `?`: streamed; an end marker follows.
    Streamed,
}

impl ReplyScanner {
    /// Whether the connection uses RESP3: otherwise RESP3's types are invalid.
    pub fn set_resp3(&mut self, is_resp3: bool) {
        self.is_resp2 = !is_resp3;
    }

    #[inline]
    pub fn is_resp3(&self) -> bool {
        !self.is_resp2
    }

    #[inline]
    pub fn scan(&mut self, buf: &[u8]) -> Scan {
        if buf.is_empty() {
            return Scan::Partial;
        }
        let mut next = if self.outstanding == 0 { self.begin(buf) } else { self.step(buf, 0) };
        while let Some(at) = next {
            if self.outstanding == 0 {
                return Scan::Complete(at);
            }
            if at == buf.len() {
                return Scan::Partial;
            }
            next = self.step(buf, at);
        }
        Scan::Invalid
    }

    /// No byte of a reply has been consumed yet.
    #[inline]
    pub fn at_start(&self) -> bool {
        self.outstanding == 0
    }

    /// Whether the element that continues, or begins, with these bytes is a push: it answers no
    /// request.
    #[inline]
    pub fn is_push(&self, buf: &[u8]) -> bool {
        if self.at_start() { buf.first() == Some(&b'>') } else { self.push }
    }

    /// Bytes of the current bulk still to come, including its line end; 0 if unknown.
    #[inline]
    pub fn remaining_hint(&self) -> u64 {
        if self.state == State::Bulk { self.remaining } else { 0 }
    }

    /// The first byte of a reply or of a push, which is never nested.
    #[inline]
    fn begin(&mut self, buf: &[u8]) -> Option<usize> {
        self.outstanding = 1;
        self.push = buf[0] == b'>';
        if self.push { self.aggregate(buf, 0) } else { self.element(buf, 0) }
    }

    #[inline]
    fn step(&mut self, buf: &[u8], at: usize) -> Option<usize> {
        match self.state {
            State::Type => self.element(buf, at),
            State::Line | State::LineCr => self.line(buf, at),
            State::Bulk => self.bulk(buf, at),
            State::Length | State::LengthCr => self.length(buf[at]).map(|()| at + 1),
            State::Chunk => self.chunk(buf, at),
        }
    }

    /// An element from its type byte on: all of it if it is complete and plain, else its first
    /// byte.
    #[inline]
    fn element(&mut self, buf: &[u8], at: usize) -> Option<usize> {
        if !self.streams.is_empty() && self.outstanding == 1 {
            if buf[at] == b'.' {
                return self.end_stream(buf, at);
            }
            self.outstanding = 2;
        }
        match buf[at] {
            b'$' => self.string(buf, at),
            b'+' | b'-' | b':' => {
                self.state = State::Line;
                self.line(buf, at + 1)
            }
            b'*' => self.aggregate(buf, at),
            _ if self.is_resp2 => None,
            b'!' | b'=' => self.string(buf, at),
            b'_' | b'#' | b',' | b'(' => {
                self.state = State::Line;
                self.line(buf, at + 1)
            }
            b'%' | b'~' | b'|' => self.aggregate(buf, at),
            _ => None,
        }
    }

    #[inline]
    fn string(&mut self, buf: &[u8], at: usize) -> Option<usize> {
        if let Some((_, rest)) = plain::bulk(&buf[at..]) {
            self.end_element();
            return Some(buf.len() - rest.len());
        }
        self.kind = buf[at];
        if let Some((len, value)) = decimal::line(buf, at + 1) {
            self.begin_bulk(len as u64);
            return self.bulk(buf, value);
        }
        self.begin_length();
        Some(at + 1)
    }

    #[inline]
    fn aggregate(&mut self, buf: &[u8], at: usize) -> Option<usize> {
        self.kind = buf[at];
        if let Some((len, end)) = decimal::line(buf, at + 1) {
            self.begin_aggregate(len as u64)?;
            return Some(end);
        }
        self.begin_length();
        Some(at + 1)
    }

    #[cold]
    fn chunk(&mut self, buf: &[u8], at: usize) -> Option<usize> {
        if buf[at] != b';' {
            return None;
        }
        self.kind = b';';
        self.begin_length();
        Some(at + 1)
    }

    /// A carriage return without a newline is part of the text, as it is for hiredis.
    #[inline]
    fn line(&mut self, buf: &[u8], mut at: usize) -> Option<usize> {
        let mut after_cr = self.state == State::LineCr;
        while let Some(&byte) = buf.get(at) {
            at += 1;
            if after_cr && byte == b'\n' {
                self.end_element();
                return Some(at);
            }
            after_cr = byte == b'\r';
        }
        self.state = if after_cr { State::LineCr } else { State::Line };
        Some(at)
    }

    #[inline]
    fn bulk(&mut self, buf: &[u8], at: usize) -> Option<usize> {
        let available = (buf.len() - at) as u64;
        if available >= self.remaining && self.remaining >= 2 {
            let end = at + self.remaining as usize;
            if buf[end - 2..end] != *b"\r\n" {
                return None;
            }
            self.end_bulk();
            return Some(end);
        }
        self.part_of_bulk(buf, at)
    }

    #[cold]
    fn part_of_bulk(&mut self, buf: &[u8], mut at: usize) -> Option<usize> {
        let value = self.remaining.saturating_sub(2).min((buf.len() - at) as u64);
        at += value as usize;
        self.remaining -= value;
        while let Some(&byte) = buf.get(at) {
            let expected = if self.remaining == 2 { b'\r' } else { b'\n' };
            if byte != expected {
                return None;
            }
            at += 1;
            self.remaining -= 1;
            if self.remaining == 0 {
                self.end_bulk();
                break;
            }
        }
        Some(at)
    }

    /// One byte of a length line that was incomplete, or that has no number.
    #[cold]
    fn length(&mut self, byte: u8) -> Option<()> {
        let at_first = self.digits == 0 && self.announced == Announced::Number;
        match byte {
            b'\n' if self.state == State::LengthCr => return self.end_length(),
            _ if self.state == State::LengthCr => return None,
            b'\r' if self.digits > 0 || self.announced == Announced::Streamed => {
                self.state = State::LengthCr;
            }
            // The nulls of RESP2 are the only negative lengths.
            b'-' if at_first && matches!(self.kind, b'$' | b'*') => {
                self.announced = Announced::Null
            }
            b'?' if at_first && matches!(self.kind, b'$' | b'*' | b'%' | b'~') => {
                self.announced = Announced::Streamed;
            }
            b'0'..=b'9' if self.announced != Announced::Streamed => {
                let leading_zero = self.digits > 0 && self.remaining == 0;
                if self.digits == LENGTH_DIGITS_MAX || leading_zero {
                    return None;
                }
                self.digits += 1;
                self.remaining = self.remaining * 10 + u64::from(byte - b'0');
            }
            _ => return None,
        }
        Some(())
    }

    fn end_length(&mut self) -> Option<()> {
        match (self.announced, self.kind) {
            (Announced::Null, _) => {
                if self.remaining != 1 {
                    return None;
                }
                self.end_element();
            }
            (Announced::Streamed, b'$') => self.state = State::Chunk,
            (Announced::Streamed, _) => return self.begin_stream(),
            // The last chunk is empty.
            (Announced::Number, b';') if self.remaining == 0 => self.end_element(),
            (Announced::Number, b'$' | b'!' | b'=' | b';') => self.begin_bulk(self.remaining),
            (Announced::Number, _) => return self.begin_aggregate(self.remaining),
        }
        Some(())
    }

    fn begin_length(&mut self) {
        self.state = State::Length;
        self.remaining = 0;
        self.digits = 0;
        self.announced = Announced::Number;
    }

    #[inline]
    fn begin_bulk(&mut self, len: u64) {
        self.state = State::Bulk;
        self.remaining = len + 2;
    }

    #[inline]
    fn end_bulk(&mut self) {
        if self.kind == b';' {
            self.state = State::Chunk;
        } else {
            self.end_element();
        }
    }

    /// The header is an element that ends here and announces others. An attribute's header is not:
    /// its element follows.
    #[inline]
    fn begin_aggregate(&mut self, len: u64) -> Option<()> {
        self.state = State::Type;
        let (ended, announced) = match self.kind {
            b'*' | b'~' | b'>' => (1, len),
            b'%' => (1, 2 * len),
            _ => (0, 2 * len),
        };
        self.outstanding = (self.outstanding - ended).checked_add(announced)?;
        Some(())
    }

    #[cold]
    fn begin_stream(&mut self) -> Option<()> {
        if self.streams.len() == STREAMS_MAX {
            return None;
        }
        self.streams.push(self.outstanding);
        self.state = State::Type;
        self.outstanding = 1;
        Some(())
    }

    /// The line that ends a streamed aggregate counts as the aggregate.
    #[cold]
    fn end_stream(&mut self, buf: &[u8], at: usize) -> Option<usize> {
        self.outstanding = self.streams.pop().expect("inside a stream");
        self.state = State::Line;
        self.line(buf, at + 1)
    }

    #[inline]
    fn end_element(&mut self) {
        self.state = State::Type;
        self.outstanding -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &[&[u8]] = &[
        b"+OK\r\n",
        b"+\r\n",
        b"-ERR a\rb\nc\r\r\n",
        b":-12\r\n",
        b"$0\r\n\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"$5\r\na\r\nbc\r\n",
        b"*2\r\n$1\r\na\r\n$-1\r\n",
        b"*3\r\n*0\r\n*2\r\n:1\r\n*1\r\n+a\r\n$2\r\nbb\r\n",
        b"*1\r\n*1\r\n*1\r\n*1\r\n*-1\r\n",
        b"_\r\n",
        b"#t\r\n",
        b",-1.5e10\r\n",
        b"(3492890328409238509324850943850943825024385\r\n",
        b"!9\r\nERR a\r\n b\r\n",
        b"=8\r\ntxt:a\r\nb\r\n",
        b"%0\r\n",
        b"%2\r\n+a\r\n:1\r\n$1\r\nb\r\n%1\r\n_\r\n~0\r\n",
        b"~3\r\n#f\r\n,inf\r\n(0\r\n",
        // Attributes, of the whole and of an element.
        b"|1\r\n+ttl\r\n:60\r\n$1\r\nx\r\n",
        b"|0\r\n|1\r\n+a\r\n*0\r\n*0\r\n",
        b"*2\r\n:1\r\n|1\r\n+a\r\n|1\r\n:1\r\n:2\r\n:3\r\n:4\r\n",
        // Without an announced length.
        b"$?\r\n;0\r\n",
        b"$?\r\n;4\r\na\r\nb\r\n;10\r\n0123456789\r\n;0\r\n",
        b"*?\r\n.\r\n",
        b"*?\r\n:1\r\n*1\r\n:2\r\n$?\r\n;1\r\n.\r\n;0\r\n$1\r\n.\r\n.\r\n",
        b"*2\r\n%?\r\n+a\r\n*?\r\n~?\r\n.\r\n.\r\n.\r\n:1\r\n",
        b"~?\r\n|1\r\n+a\r\n*?\r\n:1\r\n.\r\n_\r\n*2\r\n+.\r\n*0\r\n.\r\n",
        // Pushes.
        b">0\r\n",
        b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n",
    ];

    #[test]
    fn replies_end_where_they_end() {
        for reply in WHOLE {
            let mut scanner = ReplyScanner::default();
            let stream = [reply, b"+next\r\n".as_slice()].concat();
            assert_eq!(scanner.scan(&stream), Scan::Complete(reply.len()));
            assert!(scanner.at_start());
            assert_eq!(scanner.scan(&stream[reply.len()..]), Scan::Complete(7));
        }
    }

    #[test]
    fn every_cut_in_two_and_every_single_byte_give_the_same_end() {
        for reply in WHOLE {
            for cut in 1..reply.len() {
                let mut scanner = ReplyScanner::default();
                assert_eq!(scanner.scan(&reply[..cut]), Scan::Partial);
                assert!(!scanner.at_start());
                assert_eq!(scanner.scan(&reply[cut..]), Scan::Complete(reply.len() - cut));
            }
            let mut scanner = ReplyScanner::default();
            for (at, byte) in reply.chunks(1).enumerate() {
                let last = at + 1 == reply.len();
                let expected = if last { Scan::Complete(1) } else { Scan::Partial };
                assert_eq!(scanner.scan(byte), expected, "{}", reply.escape_ascii());
            }
        }
    }

    #[test]
    fn what_is_not_resp_is_invalid_however_it_is_cut() {
        let bad: &[&[u8]] = &[
            b"x",
            b"\r\n",
            b"%-1\r\n",
            b"~-1\r\n",
            b"!-1\r\n",
            b"$?1\r\n",
            b"$1?\r\n",
            b"$-?\r\n",
            b"!?\r\n",
            b"|?\r\n",
            b">?\r\n",
            b";1\r\n",
            b".\r\n",
            b"$?\r\n$1\r\n",
            b"$?\r\n.\r\n",
            b"*1\r\n.\r\n",
            b"*?\r\n*1\r\n.\r\n",
            b"*?\r\n|1\r\n+a\r\n+b\r\n.\r\n",
            // A push is never nested, and has no attributes.
            b"*1\r\n>1\r\n",
            b">1\r\n>0\r\n",
            b"*?\r\n>0\r\n",
            b"|0\r\n>0\r\n",
            b"$a\r\n",
            b"$\r\n",
            b"$-2\r\n",
            b"$-0\r\n",
            b"$--1\r\n",
            b"$01\r\n",
            b"$1\n",
            b"$1\rx",
            b"$1\r\nab\r",
            b"$1\r\na\r\r",
            b"$0\r\nab",
            b"*1\r\nx",
            b"*-2\r\n",
            b"*+1\r\n",
            b"$1111111111111111111\r\n",
            // More outstanding elements than can be counted.
            b"*999999999999999999\r\n",
        ];
        for (at, bytes) in bad.iter().enumerate() {
            let bytes = if at + 1 == bad.len() { bytes.repeat(20) } else { bytes.to_vec() };
            assert_eq!(ReplyScanner::default().scan(&bytes), Scan::Invalid, "{at}");
            let mut scanner = ReplyScanner::default();
            let results: Vec<Scan> = bytes.chunks(1).map(|byte| scanner.scan(byte)).collect();
            assert!(results.contains(&Scan::Invalid), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn depth_costs_nothing() {
        let depth = 1_000_000;
        let mut bytes = b"*1\r\n".repeat(depth);
        bytes.extend_from_slice(b":1\r\n");
        assert_eq!(ReplyScanner::default().scan(&bytes), Scan::Complete(bytes.len()));
    }

    #[test]
    fn pushes_are_told_from_replies_however_they_are_cut() {
        let push = b">1\r\n+a\r\n";
        let stream = [push.as_slice(), b"*1\r\n+>\r\n", push, push, b":1\r\n"].concat();
        for size in 1..=stream.len() {
            let mut scanner = ReplyScanner::default();
            let (mut kinds, mut at) = (Vec::new(), 0);
            for chunk in stream.chunks(size) {
                let mut rest = chunk;
                while !rest.is_empty() {
                    let is_push = scanner.is_push(rest);
                    match scanner.scan(rest) {
                        Scan::Complete(len) => {
                            kinds.push((is_push, at + len));
                            at += len;
                            rest = &rest[len..];
                        }
                        Scan::Partial => {
                            assert_eq!(scanner.is_push(b""), is_push);
                            at += rest.len();
                            break;
                        }
                        Scan::Invalid => panic!("valid"),
                    }
                }
            }
            let expected = [(true, 8), (false, 16), (true, 24), (true, 32), (false, 36)];
            assert_eq!(kinds, expected, "{size}");
        }
    }

    #[test]
    fn streams_are_nested_so_deep_and_no_deeper() {
        let nested = |depth| [b"*?\r\n".repeat(depth), b".\r\n".repeat(depth)].concat();
        let most = nested(STREAMS_MAX);
        assert_eq!(ReplyScanner::default().scan(&most), Scan::Complete(most.len()));
        assert_eq!(ReplyScanner::default().scan(&nested(STREAMS_MAX + 1)), Scan::Invalid);
    }

    #[test]
    fn the_hint_counts_down_the_bulk_and_its_line_end() {
        let mut scanner = ReplyScanner::default();
        assert_eq!(scanner.remaining_hint(), 0);
        assert_eq!(scanner.scan(b"$1000000\r\n"), Scan::Partial);
        assert_eq!(scanner.remaining_hint(), 1_000_002);
        assert_eq!(scanner.scan(b"abc"), Scan::Partial);
        assert_eq!(scanner.remaining_hint(), 999_999);
        assert_eq!(scanner.scan(&[b'x'; 999_997]), Scan::Partial);
        assert_eq!(scanner.scan(b"\r"), Scan::Partial);
        assert_eq!(scanner.remaining_hint(), 1);
        assert_eq!(scanner.scan(b"\n"), Scan::Complete(1));
        assert_eq!(scanner.remaining_hint(), 0);
    }
}
