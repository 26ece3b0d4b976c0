//! Finding the ends of replies in what a server sends, without keeping any of it.
//!
//! RESP2. Nesting is counted, not followed: a reply ends when no announced element is outstanding,
//! so depth costs neither memory nor recursion.

use super::decimal;

/// Digits of a length that cannot overflow 64 bits. Replies have no smaller limit: DUMP of a large
/// collection is longer than any value a client may send.
const LENGTH_DIGITS_MAX: u8 = 18;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// The reply ends after this many bytes of the buffer.
    Complete(usize),
    /// All of the buffer belongs to the reply, and more has to come.
    Partial,
    /// Not RESP2; nothing more can be known about the stream.
    Invalid,
}

/// Consumes every byte it is shown: the next call starts with the first byte not seen yet.
#[derive(Clone, Debug, Default)]
pub struct ReplyScanner {
    /// Elements that still have to end, the current one included; 0 before a reply.
    outstanding: u64,
    /// In a length line, the number so far; in a bulk, its bytes still to come, CRLF included.
    remaining: u64,
    state: State,
    digits: u8,
    negative: bool,
}

const _: () = assert!(size_of::<ReplyScanner>() <= 40);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Type,
    /// In a status, an error or an integer.
    Line,
    LineCr,
    BulkLength,
    BulkLengthCr,
    ArrayLength,
    ArrayLengthCr,
    Bulk,
}

impl ReplyScanner {
    #[inline]
    pub fn scan(&mut self, buf: &[u8]) -> Scan {
        if buf.is_empty() {
            return Scan::Partial;
        }
        if self.outstanding == 0 {
            self.outstanding = 1;
        }
        let mut at = 0;
        while at < buf.len() {
            let next = match self.state {
                State::Type => self.element(buf, at),
                State::Line | State::LineCr => self.line(buf, at),
                State::Bulk => self.bulk(buf, at),
                State::BulkLength
                | State::BulkLengthCr
                | State::ArrayLength
                | State::ArrayLengthCr => self.length(buf[at]).map(|()| at + 1),
            };
            match next {
                Some(next) => at = next,
                None => return Scan::Invalid,
            }
            if self.outstanding == 0 {
                return Scan::Complete(at);
            }
        }
        Scan::Partial
    }

    /// No byte of a reply has been consumed yet.
    #[inline]
    pub fn at_start(&self) -> bool {
        self.outstanding == 0
    }

    /// Bytes of the current bulk still to come, its line end included; 0 when that is not known.
    #[inline]
    pub fn remaining_hint(&self) -> u64 {
        if self.state == State::Bulk { self.remaining } else { 0 }
    }

    /// An element from its type byte on: all of it if it is whole and plain, else its first byte.
    #[inline]
    fn element(&mut self, buf: &[u8], at: usize) -> Option<usize> {
        match buf[at] {
            b'$' => {
                if let Some((len, value)) = decimal::line(buf, at + 1) {
                    self.begin_bulk(len as u64);
                    return self.bulk(buf, value);
                }
                self.begin_length(State::BulkLength);
            }
            b'+' | b'-' | b':' => {
                self.state = State::Line;
                return self.line(buf, at + 1);
            }
            b'*' => {
                if let Some((len, end)) = decimal::line(buf, at + 1) {
                    self.begin_array(len as u64)?;
                    return Some(end);
                }
                self.begin_length(State::ArrayLength);
            }
            _ => return None,
        }
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
            self.end_element();
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
                self.end_element();
                break;
            }
        }
        Some(at)
    }

    /// One byte of a length line that did not come whole.
    #[cold]
    fn length(&mut self, byte: u8) -> Option<()> {
        match (self.state, byte) {
            (State::BulkLengthCr | State::ArrayLengthCr, b'\n') => return self.end_length(),
            (State::BulkLength, b'\r') if self.digits > 0 => self.state = State::BulkLengthCr,
            (State::ArrayLength, b'\r') if self.digits > 0 => self.state = State::ArrayLengthCr,
            (State::BulkLength | State::ArrayLength, b'-')
                if self.digits == 0 && !self.negative =>
            {
                self.negative = true;
            }
            (State::BulkLength | State::ArrayLength, b'0'..=b'9') => {
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
        if self.negative {
            // The nulls of RESP2 are the only negative lengths.
            if self.remaining != 1 {
                return None;
            }
            self.end_element();
            return Some(());
        }
        if self.state == State::BulkLengthCr {
            self.begin_bulk(self.remaining);
            return Some(());
        }
        self.begin_array(self.remaining)
    }

    fn begin_length(&mut self, state: State) {
        self.state = state;
        self.remaining = 0;
        self.digits = 0;
        self.negative = false;
    }

    #[inline]
    fn begin_bulk(&mut self, len: u64) {
        self.state = State::Bulk;
        self.remaining = len + 2;
    }

    /// The header is an element that ends here and announces `len` more.
    #[inline]
    fn begin_array(&mut self, len: u64) -> Option<()> {
        self.state = State::Type;
        self.outstanding = (self.outstanding - 1).checked_add(len)?;
        Some(())
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
    fn what_is_not_resp2_is_invalid_however_it_is_cut() {
        let bad: &[&[u8]] = &[
            b"x",
            b"\r\n",
            b"%1\r\n",
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
