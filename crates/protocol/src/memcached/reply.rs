//! Replies: where each one ends.
//!
//! A scanner consumes the bytes that have arrived and keeps none, so that a reply of any size
//! passes through without being buffered. The result does not depend on how the bytes are cut.

use memchr::memchr;

use super::KEY_SIZE_MAX;
use super::answer::{Answer, OPENING_MAX, is_error_line, is_meta};
use super::request::VALUE_SIZE_LIMIT;
use super::values::value_line;

/// Longest line of a reply, including its end: several times memcached's longest.
pub const REPLY_LINE_SIZE_MAX: usize = 8192;

/// The shape of a reply, known from its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// One line, whatever its content.
    Line,
    /// One of the lines that answer the request.
    Answer(Answer),
    /// The same, and some of them are not for the client.
    AnswerQuiet(Answer),
    /// VALUE blocks closed by END, or an error line instead of the rest.
    Values,
    /// One VALUE block, or nothing if the key does not exist: of a `get` with further keys.
    Coalesced,
    /// The same and the end of that `get`.
    CoalescedLast,
    /// A reply to `mg`: a line, followed by a data block if it starts with VA.
    Meta,
    /// A reply to `ma`.
    MetaNumber,
    /// The same, and some of them are not for the client.
    MetaQuiet,
    /// The output of a meta command in quiet mode, if any, and the MN of the `mn` after it.
    Fenced,
    /// The unpredictable output of a command, if any, and the VERSION of the `version` after it.
    Told,
    /// Lines of statistics closed by END, or one line with the result or an error.
    Stats,
    /// One binary packet.
    Packet,
    /// The same, and some of them are not for the client.
    PacketQuiet,
    /// Binary packets up to one without a body, or an error.
    Packets,
}

impl Expect {
    /// Whether the reply is checked before it is passed on.
    #[inline]
    pub fn is_quiet_filtered(self) -> bool {
        matches!(
            self,
            Self::MetaQuiet | Self::AnswerQuiet(_) | Self::PacketQuiet | Self::Fenced | Self::Told
        )
    }

    /// Whether the key shows which part of the reply to several keys it is.
    #[inline]
    pub fn is_coalesced(self) -> bool {
        matches!(self, Self::Coalesced | Self::CoalescedLast)
    }
}

/// What a request's quiet mode omits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reticence {
    /// That the key does not exist.
    #[default]
    Miss,
    /// That it was done.
    Success,
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// The reply ends after this many of them.
    Complete(usize),
    /// All of them belong to the reply, and more is to come.
    Partial,
    /// This is not a reply: the connection is out of step.
    Invalid,
}

/// Finds the end of one reply after another.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplyScanner {
    /// The rest of a data block, or the value of the current number.
    number: u64,
    /// Bytes of the current line.
    line_len: u32,
    /// Bytes of the current word or field.
    field_len: u16,
    state: State,
    /// The first bytes of a line while its kind is not decided.
    opening: [u8; OPENING_MAX],
}

const _: () = assert!(size_of::<ReplyScanner>() <= 48);

impl ReplyScanner {
    /// Consumes `buf` up to the end of the reply. Ready for the next reply after `Complete`.
    #[inline]
    pub fn scan(&mut self, expect: Expect, buf: &[u8]) -> Scan {
        let scan = match expect {
            Expect::Line => self.scan_line(buf, 0),
            Expect::Answer(answer) | Expect::AnswerQuiet(answer) => self.scan_answer(answer, buf),
            Expect::Values => self.scan_values(buf),
            Expect::Coalesced | Expect::CoalescedLast => self.scan_block(buf),
            Expect::Meta | Expect::MetaQuiet => self.scan_meta(buf, &[b"HD", b"EN"], false),
            Expect::MetaNumber => self.scan_meta(buf, &[b"HD", b"NF", b"NS", b"EX"], false),
            Expect::Fenced => self.scan_meta(buf, &[b"HD", b"NF", b"NS", b"EX"], true),
            Expect::Told => self.scan_told(buf),
            Expect::Stats => self.scan_stats(buf),
            // These come on separate connections.
            Expect::Packet | Expect::PacketQuiet | Expect::Packets => Scan::Invalid,
        };
        if scan != Scan::Partial {
            *self = Self::default();
        }
        scan
    }

    /// Bytes of the current data block still to come, without its line end; 0 outside of one.
    #[inline]
    pub fn remaining_hint(&self) -> u64 {
        if self.state == State::Data { self.number } else { 0 }
    }

    #[inline]
    fn scan_line(&mut self, buf: &[u8], at: usize) -> Scan {
        let left = REPLY_LINE_SIZE_MAX - self.line_len as usize;
        let window = &buf[at..buf.len().min(at + left)];
        match memchr(b'\n', window) {
            Some(end) => Scan::Complete(at + end + 1),
            None if window.len() == left => Scan::Invalid,
            None => {
                self.line_len += window.len() as u32;
                Scan::Partial
            }
        }
    }

    /// A line whose start and length show whether it matches.
    fn scan_answer(&mut self, answer: Answer, buf: &[u8]) -> Scan {
        self.open_line(buf);
        let before = self.line_len as usize;
        match self.scan_line(buf, 0) {
            Scan::Complete(len) if !answer.is_whole(self.opened(), before + len) => Scan::Invalid,
            scan => scan,
        }
    }

    /// Keeps the first bytes of a line.
    fn open_line(&mut self, buf: &[u8]) {
        let at = usize::from(self.field_len);
        let end = memchr(b'\n', buf).map_or(buf.len(), |end| end + 1);
        let len = (OPENING_MAX - at).min(end);
        self.opening[at..at + len].copy_from_slice(&buf[..len]);
        self.field_len += len as u16;
    }

    fn opened(&self) -> &[u8] {
        &self.opening[..usize::from(self.field_len)]
    }

    /// Lines up to one with a version.
    fn scan_told(&mut self, buf: &[u8]) -> Scan {
        let mut at = 0;
        while at < buf.len() {
            self.open_line(&buf[at..]);
            match self.scan_line(buf, at) {
                Scan::Complete(end) => {
                    let is_fence = self.opened().starts_with(b"VERSION ");
                    *self = Self::default();
                    at = end;
                    if is_fence {
                        return Scan::Complete(at);
                    }
                }
                scan => return scan,
            }
        }
        Scan::Partial
    }

    #[inline]
    fn scan_values(&mut self, buf: &[u8]) -> Scan {
        let mut at = 0;
        while at < buf.len() {
            match self.state {
                State::Opening => {
                    if self.field_len == 0 {
                        if let Some(line) = value_line(&buf[at..]) {
                            at += line.len;
                            self.number = line.data_size;
                            self.state = State::Data;
                            continue;
                        }
                        if buf[at..].starts_with(b"END\r\n") {
                            return Scan::Complete(at + 5);
                        }
                    }
                    match self.open(buf[at]) {
                        Some(Opened::End) => return Scan::Complete(at + 1),
                        Some(Opened::Undecided | Opened::Value | Opened::Error) => {}
                        None => return Scan::Invalid,
                    }
                    at += 1;
                }
                State::Error => return self.scan_line(buf, at),
                State::Data => at += self.skip_data(buf.len() - at),
                State::Key
                | State::Flags
                | State::Size
                | State::Unique
                | State::LineFeed
                | State::DataReturn
                | State::DataLineFeed
                | State::Row => match self.step(buf[at]) {
                    Some(()) => at += 1,
                    None => return Scan::Invalid,
                },
            }
        }
        Scan::Partial
    }

    /// One VALUE block, whose line is complete: its owner has been looked up there.
    fn scan_block(&mut self, buf: &[u8]) -> Scan {
        let mut at = 0;
        while at < buf.len() {
            match self.state {
                State::Opening => {
                    let Some(line) = value_line(&buf[at..]) else { return Scan::Invalid };
                    at += line.len;
                    self.number = line.data_size;
                    self.state = State::Data;
                }
                State::Data => at += self.skip_data(buf.len() - at),
                State::DataLineFeed if buf[at] == b'\n' => return Scan::Complete(at + 1),
                State::DataReturn => match self.step(buf[at]) {
                    Some(()) => at += 1,
                    None => return Scan::Invalid,
                },
                _ => return Scan::Invalid,
            }
        }
        Scan::Partial
    }

    /// Skips data of which `available` bytes are there; returns how many.
    #[inline]
    fn skip_data(&mut self, available: usize) -> usize {
        let skip = available.min(usize::try_from(self.number).unwrap_or(usize::MAX));
        self.number -= skip as u64;
        if self.number == 0 {
            self.state = State::DataReturn;
        }
        skip
    }

    #[inline]
    fn scan_meta(&mut self, buf: &[u8], codes: &[&[u8]], is_fenced: bool) -> Scan {
        let mut at = 0;
        while at < buf.len() {
            let byte = buf[at];
            match self.state {
                State::Opening => {
                    self.opening[usize::from(self.field_len)] = byte;
                    self.field_len += 1;
                    self.line_len += 1;
                    at += 1;
                    let opened = self.opened();
                    if opened == b"VA " {
                        self.enter(State::Size);
                    } else if byte == b'\n' || opened.len() == OPENING_MAX {
                        if is_fenced && opened == b"MN\r\n" {
                            return Scan::Complete(at);
                        }
                        if !is_meta(opened, codes) && !is_error_line(opened) {
                            return Scan::Invalid;
                        }
                        self.enter(State::Error);
                        if byte == b'\n' {
                            *self = Self::default();
                            if !is_fenced {
                                return Scan::Complete(at);
                            }
                        }
                    }
                }
                State::Error => match self.scan_line(buf, at) {
                    Scan::Complete(end) if is_fenced => {
                        *self = Self::default();
                        at = end;
                    }
                    scan => return scan,
                },
                State::Size if byte == b' ' && self.field_len > 0 => {
                    self.line_len += u32::from(self.field_len) + 1;
                    self.enter(State::Flags);
                    at += 1;
                }
                State::Flags => match self.scan_line(buf, at) {
                    Scan::Complete(end) => {
                        self.enter(State::Data);
                        at = end;
                    }
                    scan => return scan,
                },
                State::Data => at += self.skip_data(buf.len() - at),
                State::DataLineFeed if byte == b'\n' => {
                    *self = Self::default();
                    at += 1;
                    if !is_fenced {
                        return Scan::Complete(at);
                    }
                }
                State::Size
                | State::LineFeed
                | State::DataReturn
                | State::DataLineFeed
                | State::Key
                | State::Unique
                | State::Row => match self.step(byte) {
                    Some(()) => at += 1,
                    None => return Scan::Invalid,
                },
            }
        }
        Scan::Partial
    }

    fn scan_stats(&mut self, buf: &[u8]) -> Scan {
        let mut at = 0;
        while at < buf.len() {
            match self.state {
                State::Opening => {
                    let len = usize::from(self.field_len);
                    let is =
                        |row: &[u8]| row.starts_with(&self.opening[..len]) && row[len] == buf[at];
                    let Some(opening) = STATS_OPENINGS.into_iter().find(|row| is(row)) else {
                        return Scan::Invalid;
                    };
                    self.opening[len] = buf[at];
                    self.field_len += 1;
                    self.line_len += 1;
                    at += 1;
                    if len + 1 == opening.len() {
                        match opening {
                            b"STAT " | b"ITEM " | b"PREFIX " => self.enter(State::Row),
                            _ if opening.ends_with(b"\n") => return Scan::Complete(at),
                            _ => self.enter(State::Error),
                        }
                    }
                }
                State::Row => match self.scan_line(buf, at) {
                    Scan::Complete(end) => {
                        *self = Self::default();
                        at = end;
                    }
                    scan => return scan,
                },
                _ => return self.scan_line(buf, at),
            }
        }
        Scan::Partial
    }

    /// One more byte of the beginning of a line.
    fn open(&mut self, byte: u8) -> Option<Opened> {
        let len = usize::from(self.field_len);
        *self.opening.get_mut(len)? = byte;
        self.field_len += 1;
        self.line_len += 1;
        let seen = &self.opening[..=len];
        let (opening, opened) =
            OPENINGS.into_iter().find(|(opening, _)| opening.starts_with(seen))?;
        if seen.len() < opening.len() {
            return Some(Opened::Undecided);
        }
        match opened {
            Opened::Value => self.enter(State::Key),
            Opened::Error => self.enter(State::Error),
            Opened::End | Opened::Undecided => {}
        }
        Some(opened)
    }

    /// One more byte of a VALUE line, or of the line end after its data. `None` if it is not valid
    /// there.
    fn step(&mut self, byte: u8) -> Option<()> {
        let next = match (self.state, byte) {
            (State::Key, b' ') if self.field_len > 0 => State::Flags,
            (State::Key, b'\n' | b' ') => return None,
            (State::Key, _) => {
                self.field_len += 1;
                return (usize::from(self.field_len) <= KEY_SIZE_MAX).then_some(());
            }
            (State::Flags, b' ') if self.field_len > 0 => State::Size,
            (State::Size, b' ') if self.field_len > 0 => State::Unique,
            (State::Size | State::Unique, b'\r') if self.field_len > 0 => State::LineFeed,
            (State::Flags | State::Unique, b'0'..=b'9') => {
                self.field_len += 1;
                return (usize::from(self.field_len) <= DIGITS_MAX).then_some(());
            }
            (State::Size, b'0'..=b'9') => {
                self.field_len += 1;
                self.number = self.number * 10 + u64::from(byte - b'0');
                return (self.number <= VALUE_SIZE_LIMIT
                    && usize::from(self.field_len) <= DIGITS_MAX)
                    .then_some(());
            }
            (State::LineFeed, b'\n') => State::Data,
            (State::DataReturn, b'\r') => State::DataLineFeed,
            (State::DataLineFeed, b'\n') => {
                *self = Self::default();
                return Some(());
            }
            _ => return None,
        };
        self.enter(next);
        Some(())
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.field_len = 0;
    }
}

/// Whether a whole reply is an error.
#[inline]
pub fn is_error(reply: &[u8]) -> bool {
    [&b"ERROR"[..], b"CLIENT_ERROR", b"SERVER_ERROR"].iter().any(|word| reply.starts_with(word))
}

/// Longest number of 64 bits.
pub(super) const DIGITS_MAX: usize = 20;
/// Where in a reply with values the next byte belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// The first word of a line.
    #[default]
    Opening,
    Key,
    Flags,
    Size,
    Unique,
    /// Of a VALUE line whose carriage return was the last byte.
    LineFeed,
    Data,
    DataReturn,
    DataLineFeed,
    /// The rest of a line that ends the reply.
    Error,
    /// The rest of a line that another one follows.
    Row,
}

/// The beginning of a line.
#[derive(Clone, Copy)]
enum Opened {
    Undecided,
    Value,
    End,
    Error,
}

/// None is a prefix of another.
const OPENINGS: [(&[u8], Opened); 5] = [
    (b"VALUE ", Opened::Value),
    (b"END\r\n", Opened::End),
    (b"ERROR", Opened::Error),
    (b"CLIENT_ERROR", Opened::Error),
    (b"SERVER_ERROR", Opened::Error),
];

/// Beginnings of the lines of a reply to `stats`; none is a prefix of another.
const STATS_OPENINGS: [&[u8]; 9] = [
    b"STAT ",
    b"END\r\n",
    b"ITEM ",
    b"PREFIX ",
    b"RESET\r\n",
    b"OK\r\n",
    b"ERROR",
    b"CLIENT_ERROR",
    b"SERVER_ERROR",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_end_of_replies() {
        for (expect, reply) in [
            (Expect::Line, "STORED\r\n"),
            (Expect::Line, "17\r\n"),
            (Expect::Line, "CLIENT_ERROR bad data chunk\r\n"),
            (Expect::Line, "VERSION 1.6.18\r\n"),
            (Expect::Values, "END\r\n"),
            (Expect::Values, "ERROR\r\n"),
            (Expect::Values, "CLIENT_ERROR bad command line format\r\n"),
            (Expect::Values, "SERVER_ERROR out of memory\r\n"),
            (Expect::Values, "VALUE a 0 0\r\n\r\nEND\r\n"),
            (Expect::Values, "VALUE a 4294967295 5\r\nEND\r\n\r\nEND\r\n"),
            (Expect::Values, "VALUE a\rb 0 1 18446744073709551615\r\n\n\r\nEND\r\n"),
            (Expect::Values, "VALUE a 0 1\r\nx\r\nVALUE b 1 2\r\nyy\r\nEND\r\n"),
            (Expect::Values, "VALUE a 0 1\r\nx\r\nSERVER_ERROR out of memory\r\n"),
            (Expect::Meta, "EN\r\n"),
            (Expect::Meta, "HD O1 kfoo\r\n"),
            (Expect::Meta, "VA 0\r\n\r\n"),
            (Expect::Meta, "VA 5 f0 kVA b\r\nMN\r\nx\r\n"),
            (Expect::Meta, "CLIENT_ERROR invalid flag\r\n"),
            (Expect::Meta, "ERROR\r\n"),
            (Expect::Meta, "SERVER_ERROR refcount overflow during fetch\r\n"),
            (Expect::MetaNumber, "NF\r\n"),
            (Expect::MetaNumber, "EX O1234567890123\r\n"),
            (Expect::MetaNumber, "VA 1 t-1\r\n5\r\n"),
            (Expect::Answer(Answer::Store), "STORED\r\n"),
            (Expect::Answer(Answer::Store), "NOT_STORED\r\n"),
            (Expect::Answer(Answer::Store), "SERVER_ERROR object too large for cache\r\n"),
            (Expect::Answer(Answer::Number), "18446744073709551615\r\n"),
            (Expect::Answer(Answer::Number), "7\r\n"),
            (Expect::Answer(Answer::Version), "VERSION 1.6.18\r\n"),
            (Expect::AnswerQuiet(Answer::MetaSet), "HD O1 kfoo\r\n"),
            (Expect::Told, "VERSION 1.6.18\r\n"),
            (Expect::Told, "OK\r\nVERSION 1.6.18\r\n"),
            (Expect::Told, "STAT sizes_status enabled\r\nEND\r\nVERSION 1.4\r\n"),
            (Expect::Told, "\n\r\nVERSION\r\nVERSION 1\r\n"),
            (Expect::Fenced, "MN\r\n"),
            (Expect::Fenced, "NF\r\nMN\r\n"),
            (Expect::Fenced, "VA 4\r\nMN\r\n\r\nMN\r\n"),
            (Expect::Fenced, "VA 1 t-1\r\n5\r\nMN\r\n"),
            (Expect::Fenced, "CLIENT_ERROR duplicate flag\r\nMN\r\n"),
            (Expect::Stats, "END\r\n"),
            (Expect::Stats, "RESET\r\n"),
            (Expect::Stats, "OK\r\n"),
            (Expect::Stats, "ERROR\r\n"),
            (Expect::Stats, "STAT END\r\nSTAT a b c\r\nEND\r\n"),
            (Expect::Stats, "ITEM a [1 b; 0 s]\r\nEND\r\n"),
            (Expect::Stats, "PREFIX a get 1\r\nEND\r\n"),
            (Expect::Stats, "STAT a 1\r\nSERVER_ERROR x\r\n"),
        ] {
            let mut scanner = ReplyScanner::default();
            let pipelined = [reply, "END\r\n"].concat();
            let whole = scanner.scan(expect, pipelined.as_bytes());
            assert_eq!(whole, Scan::Complete(reply.len()), "{reply:?}");
            for cut in 0..reply.len() {
                let (head, tail) = pipelined.split_at(cut);
                assert_eq!(scanner.scan(expect, head.as_bytes()), Scan::Partial, "{reply:?} {cut}");
                let end = Scan::Complete(reply.len() - cut);
                assert_eq!(scanner.scan(expect, tail.as_bytes()), end, "{reply:?} {cut}");
            }
        }
    }

    #[test]
    fn notices_what_is_no_reply() {
        let long = format!("VALUE {} 0 1\r\n", "k".repeat(KEY_SIZE_MAX + 1));
        for reply in [
            "STORED\r\n",
            "END\n",
            "END \r\n",
            "VALUE  0 1\r\n",
            "VALUE a\n",
            "VALUE a 0\r\n",
            "VALUE a x 1\r\n",
            "VALUE a 0 -1\r\n",
            "VALUE a 0 1\n",
            "VALUE a 0 1\r\r",
            "VALUE a 0 1 \r\n",
            "VALUE a 0 1 2 3\r\n",
            "VALUE a 0 2147483646\r\n",
            "VALUE a 0 000000000000000000001\r\n",
            "VALUE a 0 1\r\nxy\r\n",
            "VALUE a 0 1\r\nx\n",
            "\r\n",
            &long,
        ] {
            let mut whole = ReplyScanner::default();
            assert_eq!(whole.scan(Expect::Values, reply.as_bytes()), Scan::Invalid, "{reply:?}");
            let mut scanner = ReplyScanner::default();
            let scans = reply.bytes().map(|byte| scanner.scan(Expect::Values, &[byte]));
            let first = scans.into_iter().find(|&scan| scan != Scan::Partial);
            assert_eq!(first, Some(Scan::Invalid), "{reply:?}");
        }
    }

    #[test]
    fn notices_what_does_not_fit() {
        for (expect, reply) in [
            (Expect::Meta, "VAX\r\n"),
            (Expect::Meta, "MN\r\n"),
            (Expect::Meta, "MNX\r\n"),
            (Expect::Meta, "HDX\r\n"),
            (Expect::Meta, "EN\rHD\r\n"),
            (Expect::Meta, "NF\r\n"),
            (Expect::Meta, "\n"),
            (Expect::Meta, "VALUE a 0 1\r\n"),
            (Expect::Meta, "STORED\r\n"),
            (Expect::MetaNumber, "EN\r\n"),
            (Expect::Fenced, "END\r\n"),
            (Expect::Fenced, "VERSION 1.6.18 and more\r\n"),
            (Expect::Answer(Answer::Store), "HD\r\n"),
            (Expect::Answer(Answer::Store), "END\r\n"),
            (Expect::Answer(Answer::Store), "VALUE a 0 1\r\n"),
            (Expect::Answer(Answer::Store), "NOT_STORED.\r\n"),
            (Expect::Answer(Answer::Delete), "STORED\r\n"),
            (Expect::Answer(Answer::Number), "STORED\r\n"),
            (Expect::Answer(Answer::Number), "1 2\r\n"),
            (Expect::Answer(Answer::MetaSet), "ERROR\r\n"),
            (Expect::AnswerQuiet(Answer::MetaSet), "STORED\r\n"),
            (Expect::Stats, "STORED\r\n"),
            (Expect::Stats, "VALUE a 0 1\r\n"),
            (Expect::Stats, "OKAY\r\n"),
        ] {
            let mut whole = ReplyScanner::default();
            assert_eq!(whole.scan(expect, reply.as_bytes()), Scan::Invalid, "{expect:?} {reply:?}");
            let mut scanner = ReplyScanner::default();
            let scans = reply.bytes().map(|byte| scanner.scan(expect, &[byte]));
            let first = scans.into_iter().find(|&scan| scan != Scan::Partial);
            assert_eq!(first, Some(Scan::Invalid), "{expect:?} {reply:?}");
        }
    }

    #[test]
    fn notices_what_is_no_meta_reply() {
        for reply in [
            "VA x\r\n",
            "VA \r\n",
            "VA 2147483646\r\n",
            "VA 1\rx",
            "VA 1\r\nxy\r\n",
            "VA 1\r\nx\n",
            "VA 1 f0\r\nx\r\r",
        ] {
            for expect in [Expect::Meta, Expect::Fenced] {
                let mut whole = ReplyScanner::default();
                assert_eq!(whole.scan(expect, reply.as_bytes()), Scan::Invalid, "{reply:?}");
                let mut scanner = ReplyScanner::default();
                let scans = reply.bytes().map(|byte| scanner.scan(expect, &[byte]));
                let first = scans.into_iter().find(|&scan| scan != Scan::Partial);
                assert_eq!(first, Some(Scan::Invalid), "{reply:?}");
            }
        }
    }

    #[test]
    fn bounds_lines() {
        for (expect, start) in [
            (Expect::Line, ""),
            (Expect::Answer(Answer::Store), "CLIENT_ERROR "),
            (Expect::Values, "SERVER_ERROR "),
            (Expect::Meta, "HD "),
            (Expect::Stats, "ERROR "),
        ] {
            let fits = format!("{start}{}\n", "x".repeat(REPLY_LINE_SIZE_MAX - start.len() - 1));
            let mut scanner = ReplyScanner::default();
            let complete = Scan::Complete(fits.len());
            assert_eq!(scanner.scan(expect, fits.as_bytes()), complete);
            let long = format!("{start}{}\n", "x".repeat(REPLY_LINE_SIZE_MAX - start.len()));
            assert_eq!(scanner.scan(expect, long.as_bytes()), Scan::Invalid);
            assert_eq!(scanner.scan(expect, &long.as_bytes()[..100]), Scan::Partial);
            assert_eq!(scanner.scan(expect, &long.as_bytes()[100..]), Scan::Invalid);
        }
        for (expect, start) in [(Expect::Meta, "VA 1 "), (Expect::Stats, "STAT ")] {
            for over in [0, 1] {
                let len = REPLY_LINE_SIZE_MAX - start.len() - 1 + over;
                let line = format!("{start}{}\n", "x".repeat(len));
                let expected = if over > 0 { Scan::Invalid } else { Scan::Partial };
                assert_eq!(ReplyScanner::default().scan(expect, line.as_bytes()), expected);
                let mut scanner = ReplyScanner::default();
                assert_eq!(scanner.scan(expect, &line.as_bytes()[..100]), Scan::Partial);
                assert_eq!(scanner.scan(expect, &line.as_bytes()[100..]), expected);
            }
        }
    }

    #[test]
    fn tells_errors() {
        for reply in ["ERROR\r\n", "CLIENT_ERROR x\r\n", "SERVER_ERROR\r\n"] {
            assert!(is_error(reply.as_bytes()));
        }
        for reply in ["END\r\n", "VALUE ERROR 0 0\r\n\r\nEND\r\n", "NOT_FOUND\r\n", ""] {
            assert!(!is_error(reply.as_bytes()));
        }
    }
}
