//! The fast parser for requests and replies in their usual form: complete in the buffer, canonical,
//! with one key. [`super::RequestParser`] and [`super::ReplyScanner`] parse all the others, and
//! these with the same result.

use memchr::memchr;

use super::KEY_SIZE_MAX;
use super::answer::{Answer, is_meta};
use super::reply::{Expect, REPLY_LINE_SIZE_MAX};
use super::request::VALUE_SIZE_LIMIT;
use crate::CommandClass;

/// A request for one key, with a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainRequest<'b> {
    /// The whole request.
    pub bytes: &'b [u8],
    /// What follows it.
    pub rest: &'b [u8],
    pub key: &'b [u8],
    /// It is `get`, `gets` or an `mg` that changes nothing; all others write.
    pub retrieves: bool,
    /// It contains CAS uniques, or its reply may.
    pub cas_tags: bool,
    pub expect: Expect,
}

/// What follows the key.
#[derive(Clone, Copy)]
enum Form {
    Retrieval,
    /// The same, for values with their uniques.
    Uniques,
    /// Of `delete`.
    Key,
    Number,
    /// The number is an expiry.
    Touch,
    /// Flags, expiry, size; then the data block.
    Storage,
    /// The same, with the unique after the size.
    Cas,
    /// Flags, each a word, of `md`.
    Meta,
    MetaGet,
    /// Size and flags; then the data block.
    MetaSet,
}

const OTHERS: [(&[u8], Form); 13] = [
    (b"mg ", Form::MetaGet),
    (b"ms ", Form::MetaSet),
    (b"md ", Form::Meta),
    (b"gets ", Form::Uniques),
    (b"delete ", Form::Key),
    (b"incr ", Form::Number),
    (b"decr ", Form::Number),
    (b"touch ", Form::Touch),
    (b"cas ", Form::Cas),
    (b"add ", Form::Storage),
    (b"replace ", Form::Storage),
    (b"append ", Form::Storage),
    (b"prepend ", Form::Storage),
];

/// More than any client needs, and fewer than memcached accepts.
const FLAGS_MAX: usize = 12;

/// Maximum number of digits: all 64-bit numbers, signed or not, can have as many.
const DIGITS_MAX: usize = 18;

/// A space and as many digits as a number of 32 bits has at most.
const NUMBER_SIZE_MAX: usize = 11;

/// The request at the start of the buffer, if it is plain: single spaces between words, numbers of
/// digits only, and no `noreply`.
#[inline(always)]
pub fn plain_request(buf: &[u8]) -> Option<PlainRequest<'_>> {
    let (form, rest) = match buf.split_first_chunk::<4>()? {
        (b"get ", rest) => (Form::Retrieval, rest),
        (b"set ", rest) => (Form::Storage, rest),
        _ => other(buf)?,
    };
    let (key, rest) = key(rest)?;
    let mut retrieves = matches!(form, Form::Retrieval | Form::Uniques);
    let mut cas_tags = matches!(form, Form::Uniques | Form::Cas);
    let (rest, expect) = match form {
        Form::Retrieval | Form::Uniques => (rest, Expect::Values),
        // Newer servers treat a key of this name as the word.
        Form::Key if key == b"noreply" => return None,
        Form::Key => (rest, Expect::Answer(Answer::Delete)),
        Form::Meta => {
            let flags = flags(rest)?;
            cas_tags = flags.cas_tags;
            (flags.rest, Expect::Answer(Answer::MetaDelete))
        }
        Form::MetaGet => {
            let flags = flags(rest)?;
            cas_tags = flags.cas_tags;
            retrieves = !flags.changes;
            (flags.rest, Expect::Meta)
        }
        Form::MetaSet => {
            let (size, rest) = size(rest)?;
            let flags = flags(rest)?;
            cas_tags = flags.cas_tags;
            if flags.is_new {
                return None;
            }
            let rest = data(size, behind_line_end(flags.rest)?)?;
            (rest, Expect::Answer(Answer::MetaSet))
        }
        Form::Number => (number(rest)?.1, Expect::Answer(Answer::Number)),
        Form::Touch => (behind_expiry(rest)?, Expect::Answer(Answer::Touch)),
        Form::Storage | Form::Cas => {
            let (size, rest) = size(behind_expiry(behind_client_flags(rest)?)?)?;
            let rest = if let Form::Cas = form { number(rest)?.1 } else { rest };
            (data(size, behind_line_end(rest)?)?, Expect::Answer(Answer::Store))
        }
    };
    let rest = behind_line_end(rest)?;
    let bytes = &buf[..buf.len() - rest.len()];
    Some(PlainRequest { bytes, rest, key, retrieves, cas_tags, expect })
}

/// What a plain request counts as, by what it expects.
#[inline(always)]
pub fn plain_class(expect: Expect) -> CommandClass {
    match expect {
        Expect::Values | Expect::Meta => CommandClass::Get,
        Expect::Answer(Answer::Store | Answer::MetaSet) => CommandClass::Store,
        Expect::Answer(Answer::Delete | Answer::MetaDelete) => CommandClass::Delete,
        Expect::Answer(Answer::Number) => CommandClass::Counter,
        Expect::Answer(Answer::Touch) => CommandClass::Key,
        _ => CommandClass::Other,
    }
}

/// The reply at the start of the buffer, if it is plain, and what follows it: a whole line, or at
/// most one value and `END`.
#[inline(always)]
pub fn plain_reply(expect: Expect, buf: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = match expect {
        Expect::Answer(Answer::Store) if buf.starts_with(b"STORED\r\n") => 8,
        // Errors begin so, which are counted, and little else.
        Expect::Answer(_) if matches!(buf.first()?, b'C' | b'E' | b'S') => return None,
        Expect::Answer(answer) => {
            let len = memchr(b'\n', &buf[..buf.len().min(REPLY_LINE_SIZE_MAX)])? + 1;
            if !answer.fits(&buf[..len]) {
                return None;
            }
            len
        }
        Expect::Line => memchr(b'\n', &buf[..buf.len().min(REPLY_LINE_SIZE_MAX)])? + 1,
        Expect::Values => {
            let rest = match buf.strip_prefix(b"VALUE ") {
                Some(rest) => behind_line_end(value(rest)?)?,
                None => buf,
            };
            buf.len() - rest.strip_prefix(b"END\r\n")?.len()
        }
        Expect::Meta => {
            let line = memchr(b'\n', &buf[..buf.len().min(REPLY_LINE_SIZE_MAX)])? + 1;
            match buf.strip_prefix(b"VA") {
                Some(rest) => {
                    let (size, rest) = number(rest)?;
                    if !rest.starts_with(b" ") && !rest.starts_with(b"\r\n") {
                        return None;
                    }
                    buf.len() - behind_line_end(data(size, &buf[line..])?)?.len()
                }
                None if is_plain_meta(&buf[..line]) => line,
                None => return None,
            }
        }
        Expect::Coalesced
        | Expect::CoalescedLast
        | Expect::MetaNumber
        | Expect::MetaQuiet
        | Expect::AnswerQuiet(_)
        | Expect::Fenced
        | Expect::Told
        | Expect::Stats
        | Expect::Packet
        | Expect::PacketQuiet
        | Expect::Packets => return None,
    };
    buf.split_at_checked(len)
}

/// The key in a whole reply to a retrieval, if it has a value.
#[inline(always)]
pub fn plain_key(reply: &[u8]) -> Option<&[u8]> {
    Some(key(reply.strip_prefix(b"VALUE ")?)?.0)
}

/// The reply at the start of the buffer to a retrieval of several keys, if it is plain, and what
/// follows it: whole values and `END`.
#[inline(always)]
pub fn plain_values(buf: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut rest = buf;
    while let Some(line) = rest.strip_prefix(b"VALUE ") {
        rest = behind_line_end(value(line)?)?;
    }
    let rest = rest.strip_prefix(b"END\r\n")?;
    Some(buf.split_at(buf.len() - rest.len()))
}

/// The size of the data of the value whose line is at the start of the buffer, and what follows the line.
#[inline(always)]
pub fn plain_value_head(buf: &[u8]) -> Option<(u64, &[u8])> {
    let (_, size, rest) = value_head(buf.strip_prefix(b"VALUE ")?)?;
    Some((size, rest))
}

/// The part of a reply to several keys that belongs to this key, and what follows it: one VALUE
/// block, or nothing if the reply continues with another key's or ends. `None` if it is incomplete.
#[inline(always)]
pub fn plain_block<'b>(key: &[u8], buf: &'b [u8]) -> Option<(&'b [u8], &'b [u8])> {
    let len = match buf.strip_prefix(b"VALUE ") {
        Some(rest) if rest.get(key.len())? == &b' ' && starts_with(rest, key) => {
            buf.len() - behind_line_end(behind_value(&rest[key.len()..])?)?.len()
        }
        Some(_) => 0,
        None if buf.starts_with(b"END\r\n") => 0,
        None => return None,
    };
    buf.split_at_checked(len)
}

/// A request other than `get` and `set`: its form and what follows its verb.
#[inline(never)]
fn other(buf: &[u8]) -> Option<(Form, &[u8])> {
    OTHERS.iter().find_map(|(verb, form)| Some((*form, buf.strip_prefix(*verb)?)))
}

/// Whether a line without data is a reply to `mg`.
#[inline(always)]
fn is_plain_meta(line: &[u8]) -> bool {
    line == b"EN\r\n" || (line.ends_with(b"\r\n") && is_meta(line, &[b"HD", b"EN"]))
}

/// The flags of a meta command.
struct Flags<'b> {
    /// One of them may change the item.
    changes: bool,
    /// One of them is a unique, or requests it.
    cas_tags: bool,
    /// One of them is `E`, which not every server knows.
    is_new: bool,
    /// What follows them.
    rest: &'b [u8],
}

/// The argument of a flag in plain requests: its kind by its letter.
const NOTHING: u8 = 1;
const SIGNED: u8 = 2;
const TEXT: u8 = 3;
const FLAG_KINDS: [u8; 128] = {
    let mut kinds = [0; 128];
    let (bare, signed) = (b"cfhklstuvI", b"NRT");
    let mut at = 0;
    while at < bare.len() {
        kinds[bare[at] as usize] = NOTHING;
        at += 1;
    }
    at = 0;
    while at < signed.len() {
        kinds[signed[at] as usize] = SIGNED;
        at += 1;
    }
    kinds[b'O' as usize] = TEXT;
    kinds
};
/// Longest opaque, the flag itself included.
const OPAQUE_SIZE_MAX: usize = 32;

/// The flags at the start of the buffer, each after a space, if each occurs once with a valid
/// argument, without base64 keys and quiet mode.
#[inline(always)]
fn flags(buf: &[u8]) -> Option<Flags<'_>> {
    let mut flags = Flags { changes: false, cas_tags: false, is_new: false, rest: buf };
    let mut seen = 0u128;
    for _ in 0..=FLAGS_MAX {
        let [b' ', flag, ..] = *flags.rest else { return Some(flags) };
        let bit = 1u128.checked_shl(flag.into()).unwrap_or(0);
        if bit == 0 || seen & bit != 0 {
            return None;
        }
        seen |= bit;
        let len = flags.rest[1..].iter().position(|&byte| byte <= b' ')?;
        let (word, rest) = flags.rest[1..].split_at(len);
        let text = word.get(1..)?;
        match FLAG_KINDS[usize::from(flag & 127)] {
            NOTHING if text.is_empty() => {}
            SIGNED if is_short_number(text) => flags.changes = true,
            TEXT if len <= OPAQUE_SIZE_MAX && !text.contains(&0x7f) => {}
            _ => long_flag(flag, text)?,
        }
        match flag {
            b'E' => (flags.changes, flags.cas_tags, flags.is_new) = (true, true, true),
            b'c' | b'C' => flags.cas_tags = true,
            _ => {}
        }
        flags.rest = rest;
    }
    None
}

/// Whether a number has only digits, so few that it cannot be too large.
#[inline(always)]
fn is_short_number(text: &[u8]) -> bool {
    (1..=9).contains(&text.len()) && text.iter().all(u8::is_ascii_digit)
}

/// A less usual flag.
#[inline(never)]
fn long_flag(flag: u8, text: &[u8]) -> Option<()> {
    let is_good = match flag {
        b'F' => is_short_number(text),
        b'C' | b'D' | b'E' | b'J' => {
            (1..=19).contains(&text.len()) && text.iter().all(u8::is_ascii_digit)
        }
        b'M' => matches!(text, [mode] if mode.is_ascii_alphabetic()),
        _ => false,
    };
    is_good.then_some(())
}

/// What follows the data of the value whose key is at the start of the buffer.
#[inline(always)]
fn value(buf: &[u8]) -> Option<&[u8]> {
    let (_, size, rest) = value_head(buf)?;
    data(size, rest)
}

/// The key, the size of the data and what follows the line of the value whose key is at the start
/// of the buffer.
#[inline(always)]
pub(super) fn value_head(buf: &[u8]) -> Option<(&[u8], u64, &[u8])> {
    let (key, rest) = key(buf)?;
    let (size, rest) = number(behind_number(rest)?)?;
    let rest = if rest.first() == Some(&b' ') { number(rest)?.1 } else { rest };
    Some((key, size, behind_line_end(rest)?))
}

/// What follows the data of the value, given what follows its key.
#[inline(always)]
fn behind_value(buf: &[u8]) -> Option<&[u8]> {
    let (size, rest) = number(behind_number(buf)?)?;
    let rest = if rest.first() == Some(&b' ') { number(rest)?.1 } else { rest };
    data(size, behind_line_end(rest)?)
}

/// The key at the start of the buffer and what follows it. It ends at a space or a control
/// character; the caller checks which.
#[inline(always)]
fn key(buf: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut len = 0;
    loop {
        let ends = match buf[len..].first_chunk() {
            Some(word) => ends(u64::from_le_bytes(*word)),
            None => {
                let tail = buf[len..].iter().position(|&byte| byte < SPACE_NEXT)?;
                len += tail;
                break;
            }
        };
        if ends != 0 {
            len += ends.trailing_zeros() as usize / 8;
            break;
        }
        len += 8;
        if len > KEY_SIZE_MAX {
            return None;
        }
    }
    (1..=KEY_SIZE_MAX).contains(&len).then(|| buf.split_at(len))
}

/// The lowest byte of a key.
const SPACE_NEXT: u8 = b' ' + 1;

/// Bit 7 of the first byte that is a space or below, and possibly of later ones.
#[inline(always)]
fn ends(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 255;
    word.wrapping_sub(ONES * SPACE_NEXT as u64) & !word & (ONES << 7)
}

/// A space and the number after it; returns what follows both.
#[inline(always)]
fn number(buf: &[u8]) -> Option<(u64, &[u8])> {
    let (b' ', digits) = buf.split_first()? else { return None };
    let mut value = 0;
    for (len, &byte) in digits.iter().enumerate().take(DIGITS_MAX + 1) {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return (len > 0).then(|| (value, &digits[len..]));
        }
        value = value * 10 + u64::from(digit);
    }
    None
}

/// What follows a space and a number, which is mostly 0.
#[inline(always)]
fn behind_number(buf: &[u8]) -> Option<&[u8]> {
    match buf {
        [b' ', b'0', rest @ ..] if rest.first() == Some(&b' ') => Some(rest),
        _ => Some(number(buf)?.1),
    }
}

/// The same, if it fits memcached's 32 bits.
#[inline(always)]
fn behind_client_flags(buf: &[u8]) -> Option<&[u8]> {
    behind_bounded(buf, u64::from(u32::MAX))
}

/// The same, with a sign.
#[inline(always)]
fn behind_expiry(buf: &[u8]) -> Option<&[u8]> {
    behind_bounded(buf, i32::MAX as u64)
}

/// A space and the size of a data block; returns what follows both.
#[inline(always)]
fn size(buf: &[u8]) -> Option<(u64, &[u8])> {
    number(buf).filter(|(_, rest)| buf.len() - rest.len() <= NUMBER_SIZE_MAX)
}

#[inline(always)]
fn behind_bounded(buf: &[u8], max: u64) -> Option<&[u8]> {
    match buf {
        [b' ', b'0', rest @ ..] if matches!(rest.first(), Some(b' ' | b'\r')) => Some(rest),
        _ => {
            let (value, rest) = number(buf)?;
            (value <= max && buf.len() - rest.len() <= NUMBER_SIZE_MAX).then_some(rest)
        }
    }
}

/// Like the method of slices, without a call for keys of the usual lengths.
#[inline(always)]
fn starts_with(buf: &[u8], key: &[u8]) -> bool {
    match (key.first_chunk::<8>(), key.last_chunk::<8>(), buf.get(..key.len())) {
        (Some(first), Some(last), Some(start)) if key.len() <= 16 => {
            start.first_chunk() == Some(first) && start.last_chunk() == Some(last)
        }
        _ => buf.starts_with(key),
    }
}

/// What follows a data block of that size.
#[inline(always)]
fn data(size: u64, buf: &[u8]) -> Option<&[u8]> {
    if size > VALUE_SIZE_LIMIT {
        return None;
    }
    buf.get(size as usize..)
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
    use crate::memcached::{Meta, Parsed, ReplyScanner, RequestParser, Scan, Verb};

    const REQUESTS: [(&str, bool); 19] = [
        ("get some:key:1\r\n", true),
        ("gets k\r\n", true),
        ("set a 0 0 5\r\nhe\r\no\r\n", false),
        ("set some:longer:key 4294967295 86400 12\r\n0123456789ab\r\n", false),
        ("add a 1 2 0\r\n\r\n", false),
        ("replace a 007 2 1\r\nx\r\n", false),
        ("append abcdefgh 0 0 1\r\nx\r\n", false),
        ("prepend a 0 0 1\r\nx\r\n", false),
        ("cas a 0 0 1 123456789012345678\r\nx\r\n", false),
        ("delete abc\r\n", false),
        ("incr n 12\r\n", false),
        ("touch n 600\r\n", false),
        ("mg a\r\n", true),
        ("mg some:key:1 v t Obq k\r\n", true),
        ("mg a v T60\r\n", false),
        ("ms a 2\r\nhi\r\n", false),
        ("ms some:key 0 T0 F5 c O17 MS\r\n\r\n", false),
        ("md a\r\n", false),
        ("md a I T30\r\n", false),
    ];

    #[test]
    fn what_servers_may_read_otherwise_is_not_plain() {
        for request in [
            "delete noreply\r\n",
            "set a 4294967296 0 1\r\nx\r\n",
            "set a 0 2147483648 1\r\nx\r\n",
            "set a 0 0 00000000001\r\nx\r\n",
            "touch a 2147483648\r\n",
            "mg a vv\r\n",
            "mg a v v\r\n",
            "mg a z\r\n",
            "mg a N\r\n",
            "mg a !\r\n",
            "mg a \u{e9}\r\n",
            "ms a 1 E5\r\nx\r\n",
            "ms a 1 F4294967296\r\nx\r\n",
            "ms a 00000000001\r\nx\r\n",
            "ms a 1 !\r\nx\r\n",
        ] {
            assert_eq!(plain_request(request.as_bytes()), None, "{request:?}");
        }
    }

    const UNIQUES: [&str; 3] = [
        "gets k\r\n",
        "cas a 0 0 1 123456789012345678\r\nx\r\n",
        "ms some:key 0 T0 F5 c O17 MS\r\n\r\n",
    ];

    const VALUES: [&str; 6] = [
        "END\r\n",
        "VALUE a 0 5\r\nEND\r\n\r\nEND\r\n",
        "VALUE some:key:1 4294967295 12\r\n0123456789ab\r\nEND\r\n",
        "VALUE abcdefgh 1 0 18\r\n\r\nEND\r\n",
        "VALUE a 0 1\r\nx\r\nVALUE b 0 1\r\ny\r\nEND\r\n",
        "SERVER_ERROR out of memory\r\n",
    ];

    const METAS: [&str; 6] = [
        "EN\r\n",
        "HD f0 O12\r\n",
        "VA 0\r\n\r\n",
        "VA 5 f0 kVA\r\nMN\r\nx\r\n",
        "VA 2 c18446744073709551615\r\n\n\r\r\n",
        "CLIENT_ERROR invalid flag\r\n",
    ];

    const LINES: [(Answer, &str); 5] = [
        (Answer::Store, "STORED\r\n"),
        (Answer::Delete, "NOT_FOUND\r\n"),
        (Answer::Number, "12\r\n"),
        (Answer::Touch, "CLIENT_ERROR x\r\n"),
        (Answer::MetaSet, "HD c1\r\n"),
    ];

    #[test]
    fn plain_requests_are_read() {
        for (request, retrieves) in REQUESTS {
            let pipelined = [request, "get next\r\n"].concat();
            for buf in [request.as_bytes(), pipelined.as_bytes()] {
                let (bytes, rest) = buf.split_at(request.len());
                let key = request.split([' ', '\r']).nth(1).unwrap().as_bytes();
                let expect = match request.split(' ').next().unwrap() {
                    "get" | "gets" => Expect::Values,
                    "mg" => Expect::Meta,
                    "ms" => Expect::Answer(Answer::MetaSet),
                    "md" => Expect::Answer(Answer::MetaDelete),
                    "delete" => Expect::Answer(Answer::Delete),
                    "incr" => Expect::Answer(Answer::Number),
                    "touch" => Expect::Answer(Answer::Touch),
                    _ => Expect::Answer(Answer::Store),
                };
                let cas_tags = UNIQUES.contains(&request);
                let expected = PlainRequest { bytes, rest, key, retrieves, cas_tags, expect };
                assert_eq!(plain_request(buf), Some(expected), "{request:?}");
                let verb = Verb::from_word(request.split(' ').next().unwrap().as_bytes());
                assert_eq!(Some(plain_class(expect)), verb.map(Verb::class), "{request:?}");
            }
            assert_eq!(plain_request(&request.as_bytes()[..request.len() - 1]), None);
        }
    }

    #[test]
    fn keys_have_their_limit() {
        for (len, is_plain) in [(0, false), (1, true), (250, true), (251, false), (260, false)] {
            let key = "k".repeat(len);
            let request = format!("get {key}\r\n");
            assert_eq!(plain_request(request.as_bytes()).is_some(), is_plain, "{len}");
            let reply = format!("VALUE {key} 0 1\r\nx\r\nEND\r\n");
            assert_eq!(plain_reply(Expect::Values, reply.as_bytes()).is_some(), is_plain, "{len}");
        }
    }

    #[test]
    fn plain_replies_are_read() {
        let values = VALUES[..4].iter().map(|reply| (Expect::Values, reply));
        let metas = METAS.iter().map(|reply| (Expect::Meta, reply));
        let lines = LINES.iter().map(|(answer, reply)| (Expect::Answer(*answer), reply));
        for (expect, reply) in values.chain(metas).chain(lines) {
            let (reply, more) = (reply.as_bytes(), [reply, "END"].concat());
            let is_error = reply.starts_with(b"CLIENT_ERROR");
            let expected = (!is_error).then_some((reply, &b"END"[..]));
            assert_eq!(plain_reply(expect, more.as_bytes()), expected);
            assert_eq!(plain_reply(expect, &reply[..reply.len() - 1]), None);
        }
    }

    /// Bytes that are often nearly plain.
    fn almost(whole: Vec<&'static str>) -> impl Strategy<Value = Vec<u8>> {
        let index = any::<prop::sample::Index>;
        let special = prop::sample::select(b" \r\n\0\t-09a\xff".to_vec());
        let byte = prop_oneof![special, any::<u8>()];
        (prop::sample::select(whole), index(), byte, 0..3u8, index(), any::<bool>()).prop_map(
            |(text, at, byte, change, cut, is_cut)| {
                let mut text = text.as_bytes().to_vec();
                let at = at.index(text.len());
                match change {
                    0 => text[at] = byte,
                    1 => text.insert(at, byte),
                    _ => {}
                }
                if is_cut {
                    text.truncate(cut.index(text.len()) + 1);
                }
                text.extend_from_slice(b"k 0 0 1\r\nx\r\n\r\n");
                text
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn the_parser_reads_what_is_plain_in_the_same_way(
            buf in almost(REQUESTS.iter().map(|(request, _)| *request).collect())
        ) {
            if let Some(plain) = plain_request(&buf) {
                let mut parser = RequestParser::default();
                prop_assert_eq!(parser.parse(&buf), Parsed::Complete { len: plain.bytes.len() });
                prop_assert_eq!(plain.rest, &buf[plain.bytes.len()..]);
                let keys: Vec<_> = parser.keys().iter().map(|key| key.of(&buf)).collect();
                prop_assert_eq!(keys, [plain.key]);
                prop_assert_eq!(parser.noreply(), None);
                prop_assert_eq!(parser.meta(), Meta::default());
                prop_assert_eq!(parser.expect(), plain.expect);
                prop_assert!(!parser.is_odd());
            }
        }

        #[test]
        fn the_scanner_reads_what_is_plain_in_the_same_way(
            buf in almost([&VALUES[..], &METAS[..], &LINES.map(|(_, line)| line)[..]].concat())
        ) {
            let lines = LINES.map(|(answer, _)| Expect::Answer(answer));
            for expect in [Expect::Line, Expect::Values, Expect::Meta].into_iter().chain(lines) {
                if let Some((reply, rest)) = plain_reply(expect, &buf) {
                    let expected = Scan::Complete(reply.len());
                    prop_assert_eq!(ReplyScanner::default().scan(expect, &buf), expected);
                    prop_assert_eq!(reply.len() + rest.len(), buf.len());
                }
            }
            if let Some((reply, rest)) = plain_values(&buf) {
                let expected = Scan::Complete(reply.len());
                prop_assert_eq!(ReplyScanner::default().scan(Expect::Values, &buf), expected);
                prop_assert_eq!(reply.len() + rest.len(), buf.len());
            }
        }
    }
}
