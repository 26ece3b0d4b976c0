//! CAS uniques that contain their server.
//!
//! Every memcached counts its own uniques from 1, so the same number has another meaning at another
//! server. The [`Tag`] of the server, in the high bits, is added to uniques that clients get and
//! removed from those that they send. At another server the wrong tag is removed, and the result is
//! a number that this server could not have given.

use memchr::memchr;

use super::binary::HEADER_SIZE;
use super::number::unsigned;
use super::values::value_line;
use super::words::next_word;
use super::{RequestParser, Verb};
use crate::Span;

const VALUE_PREFIX_SIZE: usize = "VALUE ".len();
const LINE_END_SIZE: u64 = 2;

/// The mark of one server's uniques. The default marks nothing.
///
/// Adding and removing are the same operation: every number maps to exactly one other, so numbers
/// larger than real counters work, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag(u64);

impl Tag {
    /// Servers' own counts are below this. Tags leave the highest bit unset, as many clients keep
    /// uniques as signed numbers.
    const SHIFT: u32 = 40;
    const COUNT: u64 = 1 << (63 - Self::SHIFT);

    /// The tag of an identity; two have the same tag once in eight million.
    pub fn of(identity: &[u8]) -> Self {
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        let fnv = identity.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(PRIME)
        });
        // Neighbouring ports differ in the last byte only: mix each bit into all others.
        let mixed = (fnv ^ (fnv >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        Self(((mixed ^ (mixed >> 33)) % (Self::COUNT - 1) + 1) << Self::SHIFT)
    }

    #[inline]
    pub fn is_some(self) -> bool {
        self.0 != 0
    }

    /// Adds or removes the tag. Zero, which is no unique, stays zero, and nothing else becomes
    /// zero.
    #[inline]
    pub fn apply(self, unique: u64) -> u64 {
        if unique == 0 || unique == self.0 { unique } else { unique ^ self.0 }
    }

    /// Removes the tag from a unique that has one.
    fn take_off(self, unique: u64) -> u64 {
        if unique >> Self::SHIFT == 0 { unique } else { self.apply(unique) }
    }
}

/// How a request relates to uniques.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uniques {
    /// The request contains some.
    pub named: bool,
    /// Its reply may contain some.
    pub asked: bool,
}

impl Uniques {
    /// For a complete request. The output of `me` is the server's own, unchanged.
    #[inline]
    pub fn of(parser: &RequestParser, request: &[u8]) -> Self {
        match parser.verb() {
            Verb::Gets | Verb::Gats => Self { named: false, asked: true },
            Verb::Cas => Self { named: true, asked: false },
            Verb::MetaGet | Verb::MetaSet | Verb::MetaDelete | Verb::MetaArithmetic => {
                let mut cas_tags = Self::default();
                for flag in flags(parser, request) {
                    match flag.of(request)[0] {
                        b'c' => cas_tags.asked = true,
                        b'C' | b'E' => cas_tags.named = true,
                        _ => {}
                    }
                }
                cas_tags
            }
            _ => Self::default(),
        }
    }
}

/// The flags of a meta command.
fn flags<'r>(parser: &RequestParser, request: &'r [u8]) -> impl Iterator<Item = Span> + use<'r> {
    let line = parser.line().of(request);
    let key = parser.keys().first().map_or(line.len(), |key| key.end());
    let mut at = match parser.verb() {
        Verb::MetaSet => next_word(line, key).map_or(line.len(), |size| size.end()),
        _ => key,
    };
    std::iter::from_fn(move || {
        let flag = next_word(line, at)?;
        at = flag.end();
        Some(flag)
    })
}

/// The uniques in a request, with their positions.
fn named<'r>(
    parser: &RequestParser,
    request: &'r [u8],
) -> impl Iterator<Item = (Span, u64)> + use<'r> {
    let line = parser.line().of(request);
    let is_cas = parser.verb() == Verb::Cas;
    // The verb, the key, flags, expiry and size come first.
    let word = is_cas.then(|| words_of(line).nth(5)).flatten();
    let is_named = |flag: &Span| matches!(flag.of(line)[0], b'C' | b'E');
    // A key that looks like a flag is not one.
    let has_flags = !is_cas && Uniques::of(parser, request).named;
    let flag = has_flags.then(|| flags(parser, request).filter(is_named));
    let flag = flag.into_iter().flatten();
    let flag = flag.map(|flag| Span::new(flag.start as usize + 1, flag.len as usize - 1));
    word.into_iter().chain(flag).filter_map(|span| Some((span, unsigned(span.of(line))?)))
}

/// Whether an older unique than the item's is accepted, too. A number without a tag then counts as
/// the server's own, so that it is older.
fn compares_by_size(parser: &RequestParser, request: &[u8]) -> bool {
    let has = |byte: u8| flags(parser, request).any(|flag| flag.of(request)[0] == byte);
    parser.verb() == Verb::MetaSet && has(b'I') && !has(b'E')
}

/// Writes the start of a request with the tag removed from its uniques, and without `cut`. Returns
/// how much of the request that was.
pub fn write_untagged(
    parser: &RequestParser,
    request: &[u8],
    mut cut: Option<Span>,
    tag: Tag,
    out: &mut Vec<u8>,
) -> usize {
    let mut at = 0;
    let is_compared = compares_by_size(parser, request);
    for (span, unique) in named(parser, request) {
        if let Some(cut) = cut.take_if(|cut| cut.start < span.start) {
            out.extend_from_slice(&request[at..cut.start as usize]);
            at = cut.end();
        }
        out.extend_from_slice(&request[at..span.start as usize]);
        write_number(if is_compared { tag.take_off(unique) } else { tag.apply(unique) }, out);
        at = span.end();
    }
    if let Some(cut) = cut {
        out.extend_from_slice(&request[at..cut.start as usize]);
        at = cut.end();
    }
    at
}

/// Adds a tag to the uniques in replies, which may come in pieces.
#[derive(Clone, Debug, Default)]
pub struct Tagger {
    tag: Tag,
    /// The start of a line or packet that is incomplete.
    start: Vec<u8>,
    /// Bytes to be passed on unchanged: data, or the body of a packet.
    left: u64,
}

impl Tagger {
    /// Before a reply, whose uniques get this tag.
    pub fn begin(&mut self, tag: Tag) {
        self.tag = tag;
        self.start.clear();
        self.left = 0;
    }

    /// After a reply.
    pub fn reset(&mut self) {
        self.begin(Tag::default());
    }

    /// The tag of the current reply, if any.
    #[inline]
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// Bytes of data have been forwarded elsewhere.
    pub fn skip(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
    }

    /// Writes `bytes` of a text reply with tags, as far as possible. A scanner has accepted them.
    pub fn write_text(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        loop {
            bytes = self.pass(bytes, out);
            let Some(end) = memchr(b'\n', bytes) else { break };
            let (line, rest) = bytes.split_at(end + 1);
            bytes = rest;
            let size = if self.start.is_empty() {
                write_line(self.tag, line, out)
            } else {
                self.start.extend_from_slice(line);
                write_line(self.tag, &self.start, out)
            };
            self.start.clear();
            self.left = size.map_or(0, |size| size.saturating_add(LINE_END_SIZE));
        }
        self.start.extend_from_slice(bytes);
    }

    /// The same for a packet.
    pub fn write_packet(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let bytes = self.pass(bytes, out);
        let (start, rest) = bytes.split_at(bytes.len().min(HEADER_SIZE - self.start.len()));
        self.start.extend_from_slice(start);
        if let Some(header) = self.start.first_chunk() {
            out.extend_from_slice(&retagged_header(self.tag, header));
            out.extend_from_slice(rest);
            self.start.clear();
            // Nobody resets it before the end of the packet.
            self.left = u64::MAX;
        }
    }

    fn pass<'b>(&mut self, bytes: &'b [u8], out: &mut Vec<u8>) -> &'b [u8] {
        let len = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let (data, rest) = bytes.split_at(len);
        self.left -= len as u64;
        out.extend_from_slice(data);
        rest
    }
}

/// A packet's header with the tag added to its unique, or removed.
#[inline]
pub fn retagged_header(tag: Tag, header: &[u8; HEADER_SIZE]) -> [u8; HEADER_SIZE] {
    let mut header = *header;
    if let Some(unique) = header.last_chunk_mut() {
        *unique = tag.apply(u64::from_be_bytes(*unique)).to_be_bytes();
    }
    header
}

/// Writes a line of a reply. Returns the size of the data after it, if there is any.
fn write_line(tag: Tag, line: &[u8], out: &mut Vec<u8>) -> Option<u64> {
    if let Some(value) = value_line(line) {
        let text = line.trim_ascii_end();
        let behind_key = &text[VALUE_PREFIX_SIZE + value.key.len()..];
        // Flags, size, and then the unique.
        match words_of(behind_key).nth(2) {
            Some(unique) => {
                let start = text.len() - unique.len as usize;
                write_number_of(tag, &line[start..text.len()], &line[..start], out);
                out.extend_from_slice(&line[text.len()..]);
            }
            None => out.extend_from_slice(line),
        }
        return Some(value.data_size);
    }
    // A code of two letters precedes the flags; everything else is an error's text.
    if line.get(2) != Some(&b' ') {
        out.extend_from_slice(line);
        return None;
    }
    let mut at = 0;
    let text = line.trim_ascii_end();
    for flag in words_of(text).skip(1).filter(|flag| flag.of(text)[0] == b'c') {
        let (start, end) = (flag.start as usize + 1, flag.end());
        write_number_of(tag, &line[start..end], &line[at..start], out);
        at = end;
    }
    out.extend_from_slice(&line[at..]);
    if !line.starts_with(b"VA ") {
        return None;
    }
    let size = words_of(text).nth(1)?;
    std::str::from_utf8(size.of(text)).ok()?.parse().ok()
}

/// Writes the text `before` a number, and the number with the tag.
fn write_number_of(tag: Tag, number: &[u8], before: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(before);
    match unsigned(number) {
        Some(unique) => write_number(tag.apply(unique), out),
        None => out.extend_from_slice(number),
    }
}

fn write_number(mut number: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

fn words_of(line: &[u8]) -> impl Iterator<Item = Span> + use<'_> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let word = next_word(line, at)?;
        at = word.end();
        Some(word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memcached::Parsed;

    const TAG: Tag = Tag(5 << Tag::SHIFT);

    /// With the tag on.
    fn on(unique: u64) -> u64 {
        unique | 5 << Tag::SHIFT
    }

    #[test]
    fn tags_differ_and_leave_room_for_numbers_below_and_a_sign() {
        let mut tags = std::collections::HashSet::new();
        for host in ["127.0.0.1", "cache-a", "cache-b", "10.1.2.3"] {
            for port in 11_211..11_261 {
                let Tag(tag) = Tag::of(format!("{host}:{port}").as_bytes());
                assert!(tag >> 63 == 0 && tag != 0 && tag.trailing_zeros() >= Tag::SHIFT);
                assert!(tags.insert(tag), "{host}:{port}");
            }
        }
    }

    #[test]
    fn a_tag_stays_what_it_is() {
        // Clients keep uniques over an upgrade of the gateway.
        assert_eq!(Tag::of(b"127.0.0.1:11211"), Tag(6_324_127 << Tag::SHIFT));
    }

    #[test]
    fn what_is_put_on_is_taken_off_and_nothing_becomes_no_unique() {
        let tag = Tag::of(b"a:1");
        for unique in [0, 1, 17, 1 << 40, tag.0, tag.0 ^ 1, tag.0 + 1, 1 << 63, u64::MAX] {
            assert_eq!(tag.apply(tag.apply(unique)), unique);
            assert_eq!(tag.apply(unique) == 0, unique == 0);
            assert_eq!(Tag::default().apply(unique), unique);
        }
        assert_eq!(TAG.apply(17), on(17));
        let other = Tag::of(b"b:1");
        assert!(other.apply(tag.apply(17)) > 1 << Tag::SHIFT);
    }

    fn parsed(request: &str) -> RequestParser {
        let mut parser = RequestParser::default();
        let len = request.len();
        assert_eq!(parser.parse(request.as_bytes()), Parsed::Complete { len }, "{request:?}");
        parser
    }

    #[test]
    fn finds_uniques_in_requests_and_takes_the_tag_off() {
        let none = Uniques::default();
        let named = Uniques { named: true, asked: false };
        let asked = Uniques { named: false, asked: true };
        let both = Uniques { named: true, asked: true };
        let tagged = on(17);
        for (request, cas_tags, cut, expected) in [
            ("get c\r\n", none, None, ""),
            ("gets C7 c C7\r\n", asked, None, ""),
            ("gats 0 c\r\n", asked, None, ""),
            ("set c 0 0 1\r\nx\r\n", none, None, ""),
            ("cas a 0  0 1 TAG\r\nx\r\n", named, None, "cas a 0  0 1 17"),
            ("cas a 0 0 1 0\r\nx\r\n", named, None, "cas a 0 0 1 0"),
            ("cas a 0 0 1  TAG  noreply\r\nx\r\n", named, Some("  noreply"), "cas a 0 0 1  17"),
            ("mg c v\r\n", none, None, ""),
            ("mg a v c Oc\r\n", asked, None, ""),
            ("ms c 1 Oc\r\nx\r\n", none, None, ""),
            ("ms C7 1 CTAG q  ETAG c\r\nx\r\n", both, Some(" q"), "ms C7 1 C17  E17"),
            ("ms a 1 q CTAG\r\nx\r\n", named, Some(" q"), "ms a 1 C17"),
            ("ms a 1 CTAG q\r\nx\r\n", named, Some(" q"), "ms a 1 C17"),
            ("ms a 1 C18 I\r\nx\r\n", named, None, "ms a 1 C18"),
            ("ms a 1 I CTAG\r\nx\r\n", named, None, "ms a 1 I C17"),
            ("ms a 1 CTAG I ETAG\r\nx\r\n", named, None, "ms a 1 C17 I E17"),
            ("md a CTAG I\r\n", named, None, "md a C17"),
            ("ma a CTAG c\r\n", both, None, "ma a C17"),
        ] {
            let request = request.replace("TAG", &tagged.to_string());
            let parser = parsed(&request);
            assert_eq!(Uniques::of(&parser, request.as_bytes()), cas_tags, "{request:?}");
            let cut = cut.map(|cut| Span::new(request.find(cut).unwrap(), cut.len()));
            let mut out = Vec::new();
            let at = write_untagged(&parser, request.as_bytes(), cut, TAG, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{request:?}");
            let end = at.max(cut.map_or(0, Span::end));
            assert!(request[at..end].is_empty(), "{request:?}");
        }
    }

    #[test]
    fn puts_the_tag_on_uniques_in_replies_however_they_come() {
        let unique = on(17).to_string();
        for (reply, expected) in [
            ("END\r\n", "END\r\n"),
            ("VALUE a 0 1 17\r\nx\r\nEND\r\n", "VALUE a 0 1 TAG\r\nx\r\nEND\r\n"),
            (
                "VALUE c17 5 14 17\r\nVALUE a 0 1 2\r\n\r\nVALUE b\r 0 0 0\r\n\r\nEND\r\n",
                "VALUE c17 5 14 TAG\r\nVALUE a 0 1 2\r\n\r\nVALUE b\r 0 0 0\r\n\r\nEND\r\n",
            ),
            ("VALUE a 0 1\r\nx\r\nEND\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n"),
            ("SERVER_ERROR c17 c17\r\n", "SERVER_ERROR c17 c17\r\n"),
            ("HD\r\n", "HD\r\n"),
            ("HD c17\r\n", "HD cTAG\r\n"),
            ("HD Oc17 c17 kc17 f1\r\n", "HD Oc17 cTAG kc17 f1\r\n"),
            ("VA 5 c17 t-1\r\nVA 9\n\r\n", "VA 5 cTAG t-1\r\nVA 9\n\r\n"),
            ("VA 0 c0\r\n\r\n", "VA 0 c0\r\n\r\n"),
            ("VA 2 c17\r\n12\r\nMN\r\n", "VA 2 cTAG\r\n12\r\nMN\r\n"),
            ("CLIENT_ERROR c17\r\n", "CLIENT_ERROR c17\r\n"),
        ] {
            let expected = expected.replace("TAG", &unique);
            let mut tagger = Tagger::default();
            for cut in 0..=reply.len() {
                let (head, tail) = reply.as_bytes().split_at(cut);
                let mut out = Vec::new();
                tagger.begin(TAG);
                tagger.write_text(head, &mut out);
                tagger.write_text(tail, &mut out);
                assert_eq!(String::from_utf8(out).unwrap(), expected, "{reply:?} {cut}");
                tagger.reset();
            }
        }
    }

    #[test]
    fn takes_whatever_a_scanner_takes_for_a_line() {
        for line in
            ["VA 18446744073709551615\r\n", "\n", "  \n", "HD c\r\n", "HD cx  c-1 \r\n", "VA x\n"]
        {
            let mut tagger = Tagger::default();
            let mut out = Vec::new();
            tagger.begin(TAG);
            tagger.write_text(line.as_bytes(), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), line);
        }
    }

    #[test]
    fn puts_the_tag_on_packets_however_they_come() {
        for (unique, expected) in [(17, on(17)), (0, 0)] {
            let packet = |unique: u64| {
                let mut packet = vec![0x81; HEADER_SIZE - 8];
                packet.extend_from_slice(&unique.to_be_bytes());
                packet.extend_from_slice(b"a value of a length that is more than a header's");
                packet
            };
            let reply = packet(unique);
            let mut tagger = Tagger::default();
            for cut in 0..=reply.len() {
                let mut out = Vec::new();
                tagger.begin(TAG);
                tagger.write_packet(&reply[..cut], &mut out);
                tagger.write_packet(&reply[cut..], &mut out);
                assert_eq!(out, packet(expected), "{cut}");
                tagger.reset();
            }
        }
    }
}
