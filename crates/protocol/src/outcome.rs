//! What replies say of requests: whether they failed, and how many values they brought.
//!
//! Only requests that get values by their keys are looked into, so a value counts as a hit wherever it
//! stands in such a reply. What is looked at has been found to be a reply already.

use crate::memcached;

/// What a reply says of its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Keys whose values it brings.
    pub hits: u32,
    /// Keys that are not there.
    pub misses: u32,
    pub is_error: bool,
}

/// How the replies of a protocol are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyForm {
    Resp,
    Text,
    Packet,
}

impl Outcome {
    /// Of a reply that has come whole, if that takes no more than a look at its start. It answers a request
    /// that asks memcached for so many keys.
    #[inline(always)]
    pub fn of(form: ReplyForm, gets: bool, keys: u32, reply: &[u8]) -> Option<Self> {
        match form {
            ReplyForm::Resp if gets && reply.first() == Some(&b'*') => None,
            ReplyForm::Resp => Some(Self::of_element(gets, reply)),
            ReplyForm::Text | ReplyForm::Packet if gets && (keys != 1 || reply.is_empty()) => None,
            ReplyForm::Text => Some(Self::of_text(gets, reply)),
            ReplyForm::Packet => Some(Self::of_packet(gets, reply)),
        }
    }

    /// The same for the most usual replies, which is a matter of two bytes: whether they bring the value, and
    /// whether the key is not there. None of these is an error.
    #[inline(always)]
    pub fn usual(form: ReplyForm, gets: bool, keys: u32, reply: &[u8]) -> Option<(bool, bool)> {
        let [first, second, ..] = *reply else { return None };
        match form {
            ReplyForm::Resp => match first {
                b'$' => Some((gets && second != b'-', gets && second == b'-')),
                b'+' | b':' => Some((false, false)),
                _ => None,
            },
            ReplyForm::Text if gets => match (first, second) {
                _ if keys != 1 => None,
                (b'V', b'A') | (b'H', b'D') => Some((true, false)),
                (b'E', b'N') => Some((false, true)),
                _ => None,
            },
            ReplyForm::Text => match (first, second) {
                (b'S', b'T') => Some((false, false)),
                (b'S' | b'C' | b'E', _) => None,
                _ => Some((false, false)),
            },
            ReplyForm::Packet => None,
        }
    }

    /// Whether a reply that begins so is an error.
    #[inline(always)]
    pub fn is_error(form: ReplyForm, reply: &[u8]) -> bool {
        match form {
            ReplyForm::Resp => matches!(reply.first(), Some(b'-' | b'!')),
            ReplyForm::Text => is_text_error(reply),
            ReplyForm::Packet => Self::of_packet(false, reply).is_error,
        }
    }

    /// Of a reply in RESP that has come whole, and is no array.
    #[inline(always)]
    pub fn of_element(gets: bool, reply: &[u8]) -> Self {
        let (first, second) = match reply {
            &[first, second, ..] => (first, second),
            _ => return Self::default(),
        };
        let is_nil = (first == b'$' && second == b'-') || first == b'_';
        Self {
            hits: u32::from(gets && first == b'$' && !is_nil),
            misses: u32::from(gets && is_nil),
            is_error: matches!(first, b'-' | b'!'),
        }
    }

    /// Of memcached's reply in text that has come whole, about one key. It is empty where a key of
    /// several is not there.
    #[inline(always)]
    pub fn of_text(gets: bool, reply: &[u8]) -> Self {
        let is_hit = gets && matches!(reply, [b'V' | b'H', ..]);
        let is_error = is_text_error(reply);
        Self { hits: u32::from(is_hit), misses: u32::from(gets && !is_hit && !is_error), is_error }
    }

    /// Of memcached's reply in a packet, about one key.
    #[inline(always)]
    pub fn of_packet(gets: bool, reply: &[u8]) -> Self {
        let status = reply.get(6..8).map_or(0, |status| u16::from_be_bytes([status[0], status[1]]));
        Self {
            hits: u32::from(gets && status == SUCCESS),
            misses: u32::from(gets && status == NOT_FOUND),
            is_error: is_failure(status),
        }
    }
}

const SUCCESS: u16 = 0;
const NOT_FOUND: u16 = 1;
/// The key is there, or has another unique.
const EXISTS: u16 = 2;
const NOT_STORED: u16 = 5;
/// A login that goes on.
const CONTINUE: u16 = 0x21;

/// Whether a packet of this status is an error: not what a request may come to as it is meant.
#[inline]
fn is_failure(status: u16) -> bool {
    !matches!(status, SUCCESS | NOT_FOUND | EXISTS | NOT_STORED | CONTINUE)
}

#[inline(always)]
fn is_text_error(reply: &[u8]) -> bool {
    matches!(reply, [b'S', b'E', ..] | [b'E', b'R', ..] | [b'C', b'L', ..])
        && memcached::is_error(reply)
}

/// Reads replies that are passed on in pieces. The first piece of one has its opening: a packet's
/// header, or a line's first word.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutcomeReader {
    outcome: Outcome,
    is_begun: bool,
    line: Line,
    /// Bytes of a value to come, with its line end.
    data: u64,
}

/// The line before a value in RESP: its length, and that of the value.
#[inline(always)]
fn bulk_head(bytes: &[u8]) -> Option<(usize, u64)> {
    let digits = bytes.strip_prefix(b"$")?;
    let mut data = 0;
    for (len, &byte) in digits.iter().enumerate().take(DIGITS_MAX + 1) {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            let is_end = len > 0 && digits[len..].starts_with(b"\r\n");
            return is_end.then_some((1 + len + 2, data));
        }
        data = data * 10 + u64::from(digit);
    }
    None
}

/// The line before a value of memcached's, likewise.
#[inline(always)]
fn value_line(bytes: &[u8]) -> Option<(usize, u64)> {
    let (size, rest) = memcached::plain_value_head(bytes)?;
    Some((bytes.len() - rest.len(), size))
}

/// Of the length of a value in its usual form.
const DIGITS_MAX: usize = 18;

/// What has come of the current line.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    /// Its first bytes.
    opening: [u8; 3],
    len: u8,
    /// Spaces before what comes next.
    spaces: u8,
    is_negative: bool,
    /// Of the digits so far, in the word that tells a value's length.
    number: u64,
}

impl OutcomeReader {
    /// A piece of a reply to a request that perhaps gets values.
    pub fn read(&mut self, form: ReplyForm, gets: bool, piece: &[u8]) {
        match form {
            ReplyForm::Resp => self.read_resp(gets, piece),
            ReplyForm::Text => self.read_text(gets, piece),
            ReplyForm::Packet => self.read_packet(gets, piece),
        }
    }

    /// A piece of a reply in RESP.
    fn read_resp(&mut self, gets: bool, piece: &[u8]) {
        if self.begin(piece) {
            self.outcome.is_error = matches!(piece.first(), Some(b'-' | b'!'));
        }
        if gets && !self.outcome.is_error {
            self.read_lines(
                piece,
                bulk_head,
                |_| true,
                |line, outcome| match line.opening[0] {
                    b'$' if !line.is_negative => Some(outcome),
                    b'$' | b'_' => {
                        outcome.misses += 1;
                        None
                    }
                    _ => None,
                },
            );
        }
    }

    /// A piece of memcached's reply in text, or of the values in one.
    fn read_text(&mut self, gets: bool, piece: &[u8]) {
        if self.begin(piece) {
            self.outcome.is_error = is_text_error(piece);
        }
        if gets && !self.outcome.is_error {
            // Of `VALUE key flags size`, or `VA size`.
            let is_length = |line: &Line| line.spaces == if line.is_meta() { 1 } else { 3 };
            self.read_lines(piece, value_line, is_length, |line, outcome| match &line.opening {
                b"VAL" | b"VA " => Some(outcome),
                [b'H', b'D', _] => {
                    outcome.hits += 1;
                    None
                }
                // The server broke off behind its first values.
                b"SER" | b"ERR" | b"CLI" => {
                    outcome.is_error = true;
                    None
                }
                _ => None,
            });
        }
    }

    /// A piece of memcached's reply in packets.
    fn read_packet(&mut self, gets: bool, piece: &[u8]) {
        if self.begin(piece) {
            self.outcome = Outcome::of_packet(gets, piece);
        }
    }

    /// The reply is over; what follows is another. Of `keys` that were asked for, those that it does not
    /// bring are not there: memcached leaves them out.
    pub fn finish(&mut self, keys: u32) -> Outcome {
        let Self { mut outcome, .. } = std::mem::take(self);
        if !outcome.is_error {
            outcome.misses = outcome.misses.max(keys.saturating_sub(outcome.hits));
        }
        outcome
    }

    /// Whether a reply begins with this piece.
    fn begin(&mut self, piece: &[u8]) -> bool {
        !piece.is_empty() && !std::mem::replace(&mut self.is_begun, true)
    }

    /// Reads lines, and skips the values behind those for which `end` returns where to count them. `usual`
    /// knows at once how long a line that begins here is, and how much data a value behind it has: it may
    /// leave any to the rest, which comes to the same result byte by byte.
    #[inline(always)]
    fn read_lines(
        &mut self,
        piece: &[u8],
        usual: impl Fn(&[u8]) -> Option<(usize, u64)>,
        is_length: impl Fn(&Line) -> bool,
        end: impl for<'o> Fn(&Line, &'o mut Outcome) -> Option<&'o mut Outcome>,
    ) {
        let mut at = 0;
        while at < piece.len() {
            if self.data > 0 {
                let len = self.data.min((piece.len() - at) as u64);
                self.data -= len;
                at += len as usize;
                continue;
            }
            if self.line.len == 0
                && let Some((len, data)) = usual(&piece[at..])
            {
                self.outcome.hits += 1;
                (self.data, at) = (data + 2, at + len);
                continue;
            }
            let (line, byte) = (&mut self.line, piece[at]);
            at += 1;
            if byte != b'\n' {
                line.add(byte, &is_length);
                continue;
            }
            if let Some(outcome) = end(line, &mut self.outcome) {
                outcome.hits += 1;
                self.data = line.number.saturating_add(2);
            }
            *line = Line::default();
        }
    }
}

impl Line {
    fn add(&mut self, byte: u8, is_length: impl Fn(&Self) -> bool) {
        if let Some(opening) = self.opening.get_mut(usize::from(self.len)) {
            *opening = byte;
            self.len += 1;
        }
        match byte {
            b' ' => self.spaces = self.spaces.saturating_add(1),
            b'-' => self.is_negative = true,
            b'0'..=b'9' if is_length(self) => {
                self.number = self.number.saturating_mul(10).saturating_add((byte - b'0').into());
            }
            _ => {}
        }
    }

    fn is_meta(&self) -> bool {
        self.opening[2] == b' '
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Read = fn(&mut OutcomeReader, bool, &[u8]);

    fn outcome(hits: u32, misses: u32, is_error: bool) -> Outcome {
        Outcome { hits, misses, is_error }
    }

    /// Reads a reply cut anywhere behind its first word.
    fn read(read: Read, (gets, keys): (bool, u32), reply: &[u8]) -> Outcome {
        let mut reader = OutcomeReader::default();
        read(&mut reader, gets, reply);
        let whole = reader.finish(keys);
        for cut in reply.len().min(14)..reply.len() {
            read(&mut reader, gets, &reply[..cut]);
            read(&mut reader, gets, &reply[cut..]);
            assert_eq!(reader.finish(keys), whole, "cut at {cut}");
        }
        let mut bytes = reply.chunks(1);
        read(&mut reader, gets, &bytes.next().map_or(vec![], <[u8]>::to_vec));
        bytes.for_each(|byte| read(&mut reader, gets, byte));
        if !whole.is_error {
            assert_eq!(reader.finish(keys), whole, "byte by byte");
        }
        whole
    }

    /// What is known by two bytes is what all of them say.
    fn assert_usual(form: ReplyForm, (gets, keys): (bool, u32), reply: &str, whole: Outcome) {
        if let Some((hit, miss)) = Outcome::usual(form, gets, keys, reply.as_bytes()) {
            let (hits, misses) = (u32::from(hit), u32::from(miss));
            assert_eq!(outcome(hits, misses, false), whole, "{reply:?}");
        }
    }

    #[test]
    fn the_most_usual_replies_are_known_by_two_bytes() {
        use ReplyForm::{Packet, Resp, Text};
        for (form, gets, reply, known) in [
            (Resp, true, "$1\r\nx\r\n", Some((true, false))),
            (Resp, true, "$-1\r\n", Some((false, true))),
            (Resp, false, "$-1\r\n", Some((false, false))),
            (Resp, false, "+OK\r\n", Some((false, false))),
            (Resp, true, "*1\r\n$1\r\nx\r\n", None),
            (Resp, false, "-ERR\r\n", None),
            (Resp, true, "", None),
            (Text, true, "VALUE k 0 1\r\nx\r\nEND\r\n", Some((true, false))),
            (Text, true, "END\r\n", Some((false, true))),
            (Text, true, "SERVER_ERROR\r\n", None),
            (Text, true, "ERROR\r\n", None),
            (Text, false, "STORED\r\n", Some((false, false))),
            (Text, false, "NOT_STORED\r\n", Some((false, false))),
            (Text, false, "ERROR\r\n", None),
            (Text, false, "SERVER_ERROR\r\n", None),
            (Text, false, "CLIENT_ERROR\r\n", None),
            (Packet, true, "\u{1}\0\0\0\0\0\0\0", None),
        ] {
            assert_eq!(
                Outcome::usual(form, gets, 1, reply.as_bytes()),
                known,
                "{form:?} {reply:?}"
            );
        }
        assert_eq!(Outcome::usual(Text, true, 2, b"VALUE k 0 1\r\nx\r\nEND\r\n"), None);
    }

    #[test]
    fn values_and_nils_of_redis_are_counted() {
        let resp = |gets, reply: &str| {
            let whole = read(OutcomeReader::read_resp, (gets, 0), reply.as_bytes());
            assert_usual(ReplyForm::Resp, (gets, 0), reply, whole);
            if !reply.starts_with('*') {
                assert_eq!(Outcome::of_element(gets, reply.as_bytes()), whole, "{reply:?}");
            }
            whole
        };
        let cases = [
            ("$2\r\nab\r\n", outcome(1, 0, false)),
            ("$0\r\n\r\n", outcome(1, 0, false)),
            ("$-1\r\n", outcome(0, 1, false)),
            ("_\r\n", outcome(0, 1, false)),
            ("+QUEUED\r\n", outcome(0, 0, false)),
            ("-WRONGTYPE\r\n$-1\r\n", outcome(0, 0, true)),
            ("!5\r\n$-1\r\n\r\n", outcome(0, 0, true)),
            ("*4\r\n$5\r\n$-1\r\n\r\n$-1\r\n$1\r\nx\r\n_\r\n", outcome(2, 2, false)),
            ("*0\r\n", outcome(0, 0, false)),
        ];
        for (reply, expected) in cases {
            assert_eq!(resp(true, reply), expected, "{reply:?}");
            let expected = outcome(0, 0, expected.is_error);
            assert_eq!(resp(false, reply), expected, "{reply:?} to another command");
        }
    }

    #[test]
    fn what_memcached_leaves_out_is_a_miss() {
        let text = |keys, reply: &str| {
            let whole = read(OutcomeReader::read_text, (true, keys), reply.as_bytes());
            assert_usual(ReplyForm::Text, (true, keys), reply, whole);
            if keys == 1 {
                assert_eq!(Outcome::of_text(true, reply.as_bytes()), whole, "{reply:?}");
            }
            whole
        };
        let cases = [
            (1, "END\r\n", outcome(0, 1, false)),
            (1, "VALUE k 12 3\r\nabc\r\nEND\r\n", outcome(1, 0, false)),
            (
                3,
                "VALUE 11 7 14\r\nEND\r\nVALUE k 0\r\nVALUE VA 0 0 99\r\n\r\nEND\r\n",
                outcome(2, 1, false),
            ),
            (1, "VA 5 f0 s9\r\nHD\r\nx\r\n", outcome(1, 0, false)),
            (1, "HD t1\r\n", outcome(1, 0, false)),
            (1, "EN\r\n", outcome(0, 1, false)),
            (1, "", outcome(0, 1, false)),
            (1, "SERVER_ERROR out of memory\r\n", outcome(0, 0, true)),
            (2, "VALUE key 0 1\r\nx\r\nSERVER_ERROR broken\r\n", outcome(1, 0, true)),
        ];
        for (keys, reply, expected) in cases {
            assert_eq!(text(keys, reply), expected, "{reply:?}");
        }
        for line in ["STORED\r\n", "EXISTS\r\n", "NOT_FOUND\r\n", "5\r\n", "EN\r\n"] {
            assert_eq!(Outcome::of_text(false, line.as_bytes()), outcome(0, 0, false));
            let whole = read(OutcomeReader::read_text, (false, 0), line.as_bytes());
            assert_usual(ReplyForm::Text, (false, 0), line, whole);
            assert_eq!(whole, outcome(0, 0, false));
        }
    }

    /// What is read at once is what is read byte by byte.
    #[test]
    fn the_usual_lines_are_known_at_once() {
        for (line, known) in [
            ("$12\r\nx", Some((5, 12))),
            ("$0\r\n", Some((4, 0))),
            ("$-1\r\n", None),
            ("$\r\n", None),
            ("$12\n", None),
            ("$12", None),
            ("$1234567890123456789\r\n", None),
            ("*1\r\n", None),
        ] {
            assert_eq!(bulk_head(line.as_bytes()), known, "{line:?}");
        }
        for (line, known) in [
            ("VALUE k 0 12\r\nx", Some((14, 12))),
            ("VALUE k 7 12 345\r\n", Some((18, 12))),
            ("VALUE k 0\r\n", None),
            ("VALUE k 0 12", None),
            ("VALUE k 0 1x\r\n", None),
            ("VA 12\r\n", None),
            ("END\r\n", None),
        ] {
            assert_eq!(value_line(line.as_bytes()), known, "{line:?}");
        }
        // Cut within its line a reply is read byte by byte, see `read`.
        let values = "VALUE key 0 10\r\n$1\r\nEND\r\nx\r\nVALUE k 1 2 3\r\nab\r\nEND\r\n";
        assert_eq!(
            read(OutcomeReader::read_text, (true, 3), values.as_bytes()),
            outcome(2, 1, false)
        );
    }

    #[test]
    fn packets_are_told_by_their_status() {
        let packet = |gets, status: u16| {
            let mut packet = [0; 24];
            packet[6..8].copy_from_slice(&status.to_be_bytes());
            let whole = Outcome::of_packet(gets, &packet);
            let mut reader = OutcomeReader::default();
            reader.read_packet(gets, &packet);
            reader.read_packet(gets, b"more");
            assert_eq!(reader.finish(0), whole);
            whole
        };
        assert_eq!(packet(true, 0), outcome(1, 0, false));
        assert_eq!(packet(true, 1), outcome(0, 1, false));
        assert_eq!(packet(true, 0x81), outcome(0, 0, true));
        assert_eq!(packet(false, 2), outcome(0, 0, false));
        assert_eq!(packet(false, 4), outcome(0, 0, true));
    }
}
