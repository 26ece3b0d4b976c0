//! The fast parser for requests and replies in their usual form: complete in the buffer, canonical,
//! with few arguments. [`super::RequestParser`] and [`super::ReplyScanner`] parse all the others,
//! and these with the same result.

use super::decimal;

/// The start of a request with a short command name and one or more arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainHead<'b> {
    /// Arguments, the name included.
    pub args: usize,
    /// The name's bytes with bit 5 set, which makes letters lower case; the first is the lowest.
    pub name: u64,
    buf: &'b [u8],
    behind_name: &'b [u8],
}

/// A whole request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainRequest<'b> {
    /// The whole request.
    pub bytes: &'b [u8],
    /// What follows it.
    pub rest: &'b [u8],
    /// The argument after the name.
    pub key: &'b [u8],
}

/// `*<n>\r\n$<n>\r\n` with one digit each, as a little-endian word, and which of its bits are fixed.
const HEAD: u64 = u64::from_le_bytes(*b"*\0\r\n$\0\r\n");
const HEAD_MASK: u64 = u64::from_le_bytes([255, 0, 255, 255, 255, 0, 255, 255]);
const NAME_AT: usize = 8;
const LOWER: u64 = 0x2020_2020_2020_2020;

/// `$<n>\r
/// ` with one to three digits, without the digits' own bits, and the remaining bits.
const BULK: [u64; 3] = [
    u64::from_le_bytes(*b"$0\r\n\0\0\0\0"),
    u64::from_le_bytes(*b"$00\r\n\0\0\0"),
    u64::from_le_bytes(*b"$000\r\n\0\0"),
];
const BULK_MASK: [u64; 3] = [0xffff_f0ff, 0xff_fff0_f0ff, 0xffff_f0f0_f0ff];

/// A name in the form of [`PlainHead::name`]; `None` if it is too long or has other bytes than
/// letters.
/// letters.
pub(crate) const fn name_word(name: &[u8]) -> Option<u64> {
    if name.len() > 8 {
        return None;
    }
    let mut word = 0;
    let mut at = 0;
    while at < name.len() {
        if !name[at].is_ascii_alphabetic() {
            return None;
        }
        word |= ((name[at] | 0x20) as u64) << (8 * at);
        at += 1;
    }
    Some(word)
}

/// The start of the request in the buffer, if it is plain: an array of two to nine arguments whose
/// first has one to eight bytes.
#[inline(always)]
pub fn plain_head(buf: &[u8]) -> Option<PlainHead<'_>> {
    let start = buf.first_chunk::<{ 2 * NAME_AT }>()?;
    let ([head, name], _) = start.as_chunks() else { return None };
    let (head, name) = (u64::from_le_bytes(*head), u64::from_le_bytes(*name));
    let args = digit(head >> 8);
    let name_len = digit(head >> 40);
    if head & HEAD_MASK != HEAD || !(2..=9).contains(&args) || !(1..=8).contains(&name_len) {
        return None;
    }
    let behind_name = behind_line_end(&buf[NAME_AT + name_len..])?;
    let name = (name | LOWER) & (u64::MAX >> (64 - 8 * name_len));
    Some(PlainHead { args, name, buf, behind_name })
}

impl<'b> PlainHead<'b> {
    /// The request, if it is complete.
    #[inline(always)]
    pub fn request(self) -> Option<PlainRequest<'b>> {
        let (key, mut rest) = bulk(self.behind_name)?;
        for _ in 2..self.args {
            (_, rest) = bulk(rest)?;
        }
        let bytes = &self.buf[..self.buf.len() - rest.len()];
        Some(PlainRequest { bytes, rest, key })
    }
}

/// The reply at the start of the buffer, if it is plain, and what follows it: a whole status, error,
/// bulk or null, a number or a truth value.
#[inline(always)]
pub fn plain_reply(buf: &[u8]) -> Option<(&[u8], &[u8])> {
    plain_reply_of::<true>(buf)
}

/// The same if the server may use RESP3's types, or not.
#[inline(always)]
pub fn plain_reply_of<const RESP3: bool>(buf: &[u8]) -> Option<(&[u8], &[u8])> {
    if *buf.first()? == b'$'
        && let Some((_, rest)) = bulk(buf)
    {
        return Some((&buf[..buf.len() - rest.len()], rest));
    }
    if buf.starts_with(b"+OK\r\n") {
        return Some(buf.split_at(5));
    }
    plain_line::<RESP3>(buf)
}

/// The same, or an array of such replies.
#[inline(always)]
pub fn plain_reply_or_array<const RESP3: bool>(buf: &[u8]) -> Option<(&[u8], &[u8])> {
    if *buf.first()? != b'*' {
        return plain_reply_of::<RESP3>(buf);
    }
    let (count, start) = decimal::line(buf, 1)?;
    let mut rest = &buf[start..];
    for _ in 0..count {
        (_, rest) = plain_reply_of::<RESP3>(rest)?;
    }
    Some(buf.split_at(buf.len() - rest.len()))
}

/// A single-line reply at the start of the buffer, and what follows it.
#[inline(never)]
fn plain_line<const RESP3: bool>(buf: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = match buf.first()? {
        b'$' if buf.starts_with(b"$-1\r\n") => 5,
        b'_' | b',' | b'#' if !RESP3 => return None,
        b'_' if buf.starts_with(b"_\r\n") => 3,
        // Errors are counted, which is not for the shortest way.
        b'+' | b':' | b',' | b'#' => {
            let end = memchr::memchr(b'\n', buf)?;
            if buf[end - 1] != b'\r' {
                return None;
            }
            end + 1
        }
        _ => return None,
    };
    buf.split_at_checked(len)
}

/// Maps digits to 0..=9 and everything else to more.
#[inline(always)]
fn digit(word: u64) -> usize {
    usize::from((word as u8).wrapping_sub(b'0'))
}

/// The bulk string at the start of the buffer, and what follows it.
#[inline(always)]
pub(super) fn bulk(buf: &[u8]) -> Option<(&[u8], &[u8])> {
    let word = match buf.first_chunk() {
        Some(head) => u64::from_le_bytes(*head),
        None => short_word(buf),
    };
    let is_head = |digits: usize| word & BULK_MASK[digits - 1] == BULK[digits - 1];
    let digit = |at: u32| (word >> (8 * at)) as usize & 15;
    let (a, b, c) = (digit(1), digit(2), digit(3));
    let (start, len) = if is_head(2) {
        (5, 10 * a + b)
    } else if is_head(3) {
        (6, 100 * a + 10 * b + c)
    } else if is_head(1) {
        (4, a)
    } else {
        return long_bulk(buf);
    };
    // A value above 9 sets one of the next four bits.
    if word.wrapping_add(0x0606_0600) & 0x4040_4000 != 0 {
        return long_bulk(buf);
    }
    // Only a length of one digit begins with 0.
    if a == 0 && start != 4 {
        return long_bulk(buf);
    }
    let (bulk, rest) = buf.split_at_checked(start + len + 2)?;
    let (bulk, end) = bulk.split_last_chunk()?;
    (end == b"\r\n").then(|| (&bulk[start..], rest))
}

/// The buffer's content, which is shorter than a word.
#[cold]
fn short_word(buf: &[u8]) -> u64 {
    buf.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// Like [`bulk`], for any length.
#[cold]
fn long_bulk(buf: &[u8]) -> Option<(&[u8], &[u8])> {
    let b'$' = *buf.first()? else { return None };
    let (len, start) = decimal::line(buf, 1)?;
    let (value, rest) = buf.get(start..)?.split_at_checked(len)?;
    Some((value, behind_line_end(rest)?))
}

#[inline(always)]
fn behind_line_end(buf: &[u8]) -> Option<&[u8]> {
    let (end, rest) = buf.split_first_chunk::<2>()?;
    (end == b"\r\n").then_some(rest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::resp::{Parsed, ReplyScanner, RequestParser, Scan};

    fn plain_request(buf: &[u8]) -> Option<PlainRequest<'_>> {
        plain_head(buf)?.request()
    }

    #[test]
    fn plain_requests_are_read() {
        let request = b"*3\r\n$3\r\nSeT\r\n$2\r\nab\r\n$11\r\nhello\r\nhell\r\nrest";
        let (bytes, rest) = request.split_at(request.len() - 4);
        let head = plain_head(request).unwrap();
        assert_eq!((head.args, Some(head.name)), (3, name_word(b"set")));
        assert_eq!(head.request(), Some(PlainRequest { bytes, rest, key: b"ab" }));
    }

    #[test]
    fn heads_of_bulks_are_canonical_and_may_end_the_buffer() {
        for bulk in [&b"$0\r\n\r\n"[..], b"$1\r\nx\r\n"] {
            let request = [b"*3\r\n$3\r\nset\r\n$1\r\nk\r\n", bulk].concat();
            assert_eq!(plain_request(&request).map(|plain| plain.bytes), Some(&request[..]));
            assert_eq!(plain_request(&request[..request.len() - 1]), None);
            assert_eq!(plain_reply(bulk), Some((bulk, &b""[..])));
        }
        // Any even length would end before the end of a line.
        let lines = "\r\n".repeat(200);
        for head in ["$:", "$02", "$1:", "$1.", "$020", "$1?0", "$10*"] {
            assert_eq!(plain_reply(format!("{head}\r\n{lines}").as_bytes()), None, "{head}");
        }
        assert!(plain_reply(format!("$24\r\n{lines}").as_bytes()).is_some());
    }

    #[test]
    fn plain_replies_are_read() {
        assert_eq!(plain_reply(b"-ERR x\r\n"), None);
        let replies: [&[u8]; 5] =
            [b"+OK\r\n", b"+PONG\r\n", b":12\r\n", b"$-1\r\n", b"$4\r\na\r\nb\r\n"];
        for reply in replies {
            assert_eq!(plain_reply(&[reply, b"+"].concat()), Some((reply, &b"+"[..])));
            assert_eq!(plain_reply(&reply[..reply.len() - 1]), None);
        }
    }

    #[test]
    fn plain_arrays_are_read() {
        let replies: [&[u8]; 5] = [
            b"*0\r\n",
            b"*1\r\n$-1\r\n",
            b"*3\r\n$4\r\na\r\nb\r\n:1\r\n$-1\r\n",
            b":12\r\n",
            b"$1\r\nx\r\n",
        ];
        for reply in replies {
            assert_eq!(
                plain_reply_or_array::<true>(&[reply, b"*"].concat()),
                Some((reply, &b"*"[..]))
            );
            assert_eq!(plain_reply_or_array::<true>(&reply[..reply.len() - 1]), None);
        }
        for other in ["*-1\r\n", "*1\r\n*1\r\n:1\r\n", "*01\r\n:1\r\n", "*?\r\n.\r\n"] {
            assert_eq!(plain_reply_or_array::<true>(other.as_bytes()), None, "{other:?}");
        }
    }

    /// Bytes that are often nearly plain.
    fn almost(whole: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
        let text = prop::sample::select(whole);
        (
            text,
            any::<prop::sample::Index>(),
            any::<u8>(),
            any::<bool>(),
            any::<prop::sample::Index>(),
        )
            .prop_map(|(text, at, byte, change, cut)| {
                let mut text = text.as_bytes().to_vec();
                if change {
                    let at = at.index(text.len());
                    text[at] = byte;
                }
                text.truncate(cut.index(text.len()) + 1);
                text.extend_from_slice(b"$1\r\nx\r\n\r\n");
                text
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5000))]

        #[test]
        fn the_parser_reads_what_is_plain_in_the_same_way(buf in almost(&[
            "*2\r\n$3\r\nGET\r\n$1\r\na\r\n",
            "*3\r\n$3\r\nset\r\n$10\r\n0123456789\r\n$2\r\n12\r\n",
            "*2\r\n$8\r\ngetrange\r\n$0\r\n\r\n",
            "*1\r\n$4\r\nPING\r\n",
        ])) {
            if let Some(head) = plain_head(&buf) && let Some(plain) = head.request() {
                let mut parser = RequestParser::default();
                prop_assert_eq!(parser.parse(&buf, 1 << 20), Parsed::Complete { len: plain.bytes.len() });
                prop_assert!(parser.inline_encoded().is_none());
                let args = parser.args();
                prop_assert_eq!(args.len(), head.args);
                prop_assert_eq!(args[1].of(&buf), plain.key);
                let name = args[0].of(&buf);
                let folded = name.iter().rev().fold(0, |w, &b| w << 8 | u64::from(b | 0x20));
                prop_assert_eq!(folded, head.name);
            }
        }

        #[test]
        fn the_scanner_reads_what_is_plain_in_the_same_way(buf in almost(&[
            "+OK\r\n", "$3\r\nabc\r\n", "$-1\r\n", ":17\r\n", "-ERR no\r\n", "$12\r\nabcdefghijkl\r\n",
        ])) {
            let whole = plain_reply(&buf);
            if let Some((reply, _)) = whole {
                let expected = Scan::Complete(reply.len());
                prop_assert_eq!(ReplyScanner::default().scan(&buf), expected);
            }
            if buf[0] != b'*' {
                prop_assert_eq!(plain_reply_or_array::<true>(&buf), whole);
            }
        }

        #[test]
        fn the_scanner_reads_plain_arrays_in_the_same_way(buf in almost(&[
            "*0\r\n", "*1\r\n$-1\r\n", "*2\r\n$3\r\nabc\r\n:17\r\n",
            "*3\r\n$12\r\nabcdefghijkl\r\n$0\r\n\r\n-ERR no\r\n", "*1\r\n*1\r\n+OK\r\n",
        ])) {
            if let Some((reply, _)) = plain_reply_or_array::<true>(&buf) {
                let expected = Scan::Complete(reply.len());
                prop_assert_eq!(ReplyScanner::default().scan(&buf), expected);
            }
        }
    }
}
