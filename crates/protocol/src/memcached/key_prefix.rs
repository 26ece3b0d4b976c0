//! Keys of one user among those of others: a prefix that is added to what a request names, and removed
//! from what replies name.

use memchr::memchr;

use super::binary::HEADER_SIZE;
use super::values::value_line;
use super::words::next_word;
use super::{KEY_SIZE_MAX, RequestParser, decode_key, encode_key};

const VALUE_PREFIX_SIZE: usize = "VALUE ".len();
const LINE_END_SIZE: u64 = 2;
/// The first byte of a binary reply.
const BINARY_RESPONSE: u8 = 0x81;

/// Longest prefix: a key in base64 has room for so much, and for as much again.
pub const KEY_PREFIX_MAX: usize = 93;

impl RequestParser {
    /// Writes a whole request in the form that every server parses alike, with the prefix on its keys. It
    /// may be longer than a request can be.
    #[cold]
    pub fn write_with_prefix(&self, prefix: &[u8], bytes: &[u8], out: &mut Vec<u8>) {
        self.write_words(bytes, out, |key, out| {
            if !self.meta().is_base64 {
                out.extend_from_slice(prefix);
                out.extend_from_slice(key);
                return;
            }
            match decode_key(key, &mut [0; KEY_SIZE_MAX]) {
                Some(key) => encode_key(&[prefix, key].concat(), out),
                // Longer than any key, so that it is refused: what it is to a server is not known.
                None => out.resize(out.len() + KEY_SIZE_MAX + 1, b'A'),
            }
        });
    }
}

/// Writes a whole packet with the prefix on its key, if that is no longer than a key can be.
#[cold]
pub fn write_packet_with_prefix(prefix: &[u8], packet: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let header = packet.get(..HEADER_SIZE)?;
    let (key_len, body_len) = lengths(header);
    let full_len = key_len + prefix.len();
    if key_len == 0 || full_len > KEY_SIZE_MAX {
        return None;
    }
    let start = out.len();
    let (before, behind) = packet.split_at_checked(named_end(header) - key_len)?;
    out.extend_from_slice(before);
    out.extend_from_slice(prefix);
    out.extend_from_slice(behind);
    let body_len = body_len as u32 + prefix.len() as u32;
    out[start + 2..start + 4].copy_from_slice(&(full_len as u16).to_be_bytes());
    out[start + 8..start + 12].copy_from_slice(&body_len.to_be_bytes());
    Some(())
}

/// Removes the prefix from the keys in replies, which may come in pieces, one behind the other.
#[derive(Clone, Debug)]
pub struct KeyStripper {
    prefix: Box<[u8]>,
    /// The start of a line, or of a packet up to the end of its key.
    start: Vec<u8>,
    /// Bytes to be passed on unchanged.
    left: u64,
}

impl KeyStripper {
    pub fn new(prefix: &[u8]) -> Self {
        Self { prefix: prefix.into(), start: Vec::new(), left: 0 }
    }

    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Whether so many bytes that come next are to be passed on unchanged; they are taken to be, if so.
    pub fn passes(&mut self, bytes: usize) -> bool {
        let passes = bytes as u64 <= self.left;
        if passes {
            self.left -= bytes as u64;
        }
        passes
    }

    /// Writes `bytes` of replies in text, as far as possible.
    pub fn write_text(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        loop {
            bytes = self.pass(bytes, out);
            let Some(end) = memchr(b'\n', bytes) else { break };
            let (line, rest) = bytes.split_at(end + 1);
            bytes = rest;
            let size = if self.start.is_empty() {
                write_line(&self.prefix, line, out)
            } else {
                self.start.extend_from_slice(line);
                write_line(&self.prefix, &self.start, out)
            };
            self.start.clear();
            self.left = size.map_or(0, |size| size.saturating_add(LINE_END_SIZE));
        }
        self.start.extend_from_slice(bytes);
    }

    /// The same for packets.
    pub fn write_packets(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        loop {
            bytes = self.pass(bytes, out);
            if bytes.is_empty() {
                return;
            }
            let wanted = match self.start.get(..HEADER_SIZE) {
                None => HEADER_SIZE,
                Some(header) => named_end(header),
            };
            let more = wanted.saturating_sub(self.start.len()).min(bytes.len());
            let (start, rest) = bytes.split_at(more);
            self.start.extend_from_slice(start);
            bytes = rest;
            let Some(header) = self.start.get(..HEADER_SIZE) else { return };
            if header[0] != BINARY_RESPONSE {
                // It is no packet: whatever follows has no key.
                out.append(&mut self.start);
                self.left = u64::MAX;
                continue;
            }
            if self.start.len() < named_end(header) {
                continue;
            }
            self.end_of_key(out);
        }
    }

    /// A packet is there up to the end of its key.
    fn end_of_key(&mut self, out: &mut Vec<u8>) {
        let start = &mut self.start;
        let (key_len, body_len) = lengths(start);
        let key_start = start.len() - key_len;
        self.left = body_len.saturating_sub((start.len() - HEADER_SIZE) as u64);
        let prefix = self.prefix.len();
        if start[key_start..].starts_with(&self.prefix) {
            start[2..4].copy_from_slice(&((key_len - prefix) as u16).to_be_bytes());
            let body_len = (body_len as u32).saturating_sub(prefix as u32);
            start[8..12].copy_from_slice(&body_len.to_be_bytes());
            start.drain(key_start..key_start + prefix);
        }
        out.append(start);
    }

    fn pass<'b>(&mut self, bytes: &'b [u8], out: &mut Vec<u8>) -> &'b [u8] {
        let len = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let (data, rest) = bytes.split_at(len);
        self.left -= len as u64;
        out.extend_from_slice(data);
        rest
    }
}

/// Length of a key and of a whole body.
fn lengths(header: &[u8]) -> (usize, u64) {
    let key_len = u16::from_be_bytes([header[2], header[3]]);
    let body_len = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
    (key_len.into(), body_len.into())
}

/// Where a packet's key ends.
fn named_end(header: &[u8]) -> usize {
    HEADER_SIZE + usize::from(header[4]) + lengths(header).0
}

/// Writes a line of a reply. Returns the size of the data after it, if there is any.
fn write_line(prefix: &[u8], line: &[u8], out: &mut Vec<u8>) -> Option<u64> {
    if let Some(value) = value_line(line) {
        let (verb, rest) = line.split_at(VALUE_PREFIX_SIZE);
        out.extend_from_slice(verb);
        out.extend_from_slice(rest.strip_prefix(prefix).unwrap_or(rest));
        return Some(value.data_size);
    }
    // A code of two letters precedes the flags; everything else is an error or a word.
    let text = line.trim_ascii_end();
    if text.get(2) != Some(&b' ') {
        out.extend_from_slice(line);
        return None;
    }
    let words = || {
        let mut at = 0;
        std::iter::from_fn(move || {
            let word = next_word(text, at)?;
            at = word.end();
            Some(word)
        })
    };
    let is_key = |at: usize, word: &[u8]| match text.starts_with(b"ME ") {
        true => at == 1,
        false => at > 0 && word.starts_with(b"k"),
    };
    let is_base64 = words().skip(1).any(|word| word.of(text) == b"b");
    let mut at = 0;
    for (place, word) in words().enumerate().filter(|(place, word)| is_key(*place, word.of(text))) {
        let start = word.start as usize + usize::from(!text.starts_with(b"ME "));
        out.extend_from_slice(&line[at..start]);
        write_key(prefix, &text[start..word.end()], (is_base64, place == 1), out);
        at = word.end();
    }
    out.extend_from_slice(&line[at..]);
    if !line.starts_with(b"VA ") {
        return None;
    }
    let size = words().nth(1)?;
    std::str::from_utf8(size.of(text)).ok()?.parse().ok()
}

/// Writes a key without the prefix: one that is in base64, or may be.
fn write_key(prefix: &[u8], key: &[u8], (is_base64, may_be): (bool, bool), out: &mut Vec<u8>) {
    // Some prefixes look alike in base64.
    let literal = || key.strip_prefix(prefix);
    if let Some(key) = literal().filter(|_| !is_base64) {
        return out.extend_from_slice(key);
    }
    let mut buf = [0; KEY_SIZE_MAX];
    let plain = decode_key(key, &mut buf).filter(|_| is_base64 || may_be);
    match plain.and_then(|plain| plain.strip_prefix(prefix)) {
        Some(plain) => encode_key(plain, out),
        None => out.extend_from_slice(literal().unwrap_or(key)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Parsed;
    use super::super::binary::{Opcode, write_request};
    use super::*;

    fn with_prefix(request: &str) -> String {
        let mut parser = RequestParser::default();
        let parsed = parser.parse(request.as_bytes());
        assert_eq!(parsed, Parsed::Complete { len: request.len() }, "{request:?}");
        let mut out = Vec::new();
        parser.write_with_prefix(b"a:", request.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn requests_name_full_keys() {
        for (request, full) in [
            ("get k\r\n", "get a:k\r\n"),
            ("get  get k \n", "get a:get a:k\r\n"),
            ("gats 5 5 k\r\n", "gats 5 a:5 a:k\r\n"),
            ("set 1 1 0 1\r\nk\r\n", "set a:1 1 0 1\r\nk\r\n"),
            ("cas k 1 2 1 4 noreply\r\nx\r\n", "cas a:k 1 2 1 4 noreply\r\nx\r\n"),
            ("delete noreply\r\n", "delete a:noreply\r\n"),
            ("delete k noreply\r\n", "delete a:k noreply\r\n"),
            ("incr 1 1\r\n", "incr a:1 1\r\n"),
            ("touch k 9 noreply\r\n", "touch a:k 9 noreply\r\n"),
            ("mg k k v Ok\r\n", "mg a:k k v Ok\r\n"),
            ("mg aw== b k\r\n", "mg YTpr b k\r\n"),
            ("ms aw== 1 b T0\r\nk\r\n", "ms YTpr 1 b T0\r\nk\r\n"),
            ("ma k N0 J1\r\n", "ma a:k N0 J1\r\n"),
            ("md md q\r\n", "md a:md q\r\n"),
            ("me k\r\n", "me a:k\r\n"),
        ] {
            assert_eq!(with_prefix(request), full, "{request:?}");
        }
    }

    #[test]
    fn packets_name_full_keys() {
        let mut packet = Vec::new();
        write_request(Opcode::Get.byte(), b"k", b"", &mut packet);
        let mut full = Vec::new();
        write_request(Opcode::Get.byte(), b"a:k", b"", &mut full);
        let mut out = b"before".to_vec();
        assert_eq!(write_packet_with_prefix(b"a:", &packet, &mut out), Some(()));
        assert_eq!(out, [b"before", &full[..]].concat());
        for (key, fits) in [(249, false), (248, true)] {
            let mut packet = Vec::new();
            write_request(Opcode::Get.byte(), &vec![b'k'; key], b"", &mut packet);
            let written = write_packet_with_prefix(b"a:", &packet, &mut Vec::new());
            assert_eq!(written.is_some(), fits);
        }
    }

    /// In one piece, and in pieces of every size.
    fn in_pieces(stream: &[u8], write: fn(&mut KeyStripper, &[u8], &mut Vec<u8>)) -> Vec<u8> {
        let mut whole = Vec::new();
        write(&mut KeyStripper::new(b"a:"), stream, &mut whole);
        for size in 1..stream.len() {
            let (mut stripper, mut out) = (KeyStripper::new(b"a:"), Vec::new());
            for piece in stream.chunks(size) {
                match stripper.passes(piece.len()) {
                    true => out.extend_from_slice(piece),
                    false => write(&mut stripper, piece, &mut out),
                }
            }
            assert_eq!(out, whole, "pieces of {size}");
        }
        whole
    }

    #[test]
    fn replies_name_the_clients_keys() {
        let replies = [
            ("VALUE a:k 0 16\r\nVALUE a:k 0 1\r\nx\r\n", "VALUE k 0 16\r\nVALUE a:k 0 1\r\nx\r\n"),
            ("VALUE a:a:k 0 0 7\r\n\r\n", "VALUE a:k 0 0 7\r\n\r\n"),
            ("END\r\n", "END\r\n"),
            ("HD ka:k Oka:k\r\n", "HD kk Oka:k\r\n"),
            ("VA 8 ka:k s8\r\nHD ka:k\r\n\r\n", "VA 8 kk s8\r\nHD ka:k\r\n\r\n"),
            ("HD kYTpr b\r\n", "HD kaw== b\r\n"),
            ("HD Ob kYTpr\r\n", "HD Ob kYTpr\r\n"),
            ("ME a:k exp=-1 size=5\r\n", "ME k exp=-1 size=5\r\n"),
            ("ME YTpr exp=-1 size=5\r\n", "ME aw== exp=-1 size=5\r\n"),
            ("EN\r\n", "EN\r\n"),
            ("MN\r\n", "MN\r\n"),
            ("17\r\n", "17\r\n"),
            ("STAT a: 1\r\n", "STAT a: 1\r\n"),
            ("CLIENT_ERROR a: bad\r\n", "CLIENT_ERROR a: bad\r\n"),
        ];
        let stream: String = replies.iter().map(|(reply, _)| *reply).collect();
        let expected: String = replies.iter().map(|(_, expected)| *expected).collect();
        let stripped = in_pieces(stream.as_bytes(), KeyStripper::write_text);
        assert_eq!(String::from_utf8(stripped).unwrap(), expected);
    }

    #[test]
    fn prefixes_that_look_alike_in_base64_are_removed_from_the_key_itself() {
        for prefix in ["V", "Vm", "Vm0"] {
            let full = |key: &[u8]| {
                let mut text = Vec::new();
                encode_key(key, &mut text);
                String::from_utf8(text).unwrap()
            };
            let key = full(&[prefix.as_bytes(), b"aaa"].concat());
            assert!(key.starts_with(prefix), "{key}");
            let replies = format!("HD k{key} b\r\nHD b k{key}\r\nHD k{key}\r\n");
            let (own, literal) = (full(b"aaa"), &key[prefix.len()..]);
            let expected = format!("HD k{own} b\r\nHD b k{own}\r\nHD k{literal}\r\n");
            let mut out = Vec::new();
            KeyStripper::new(prefix.as_bytes()).write_text(replies.as_bytes(), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn packets_name_the_clients_keys() {
        let packet = |key: &[u8], extras: &[u8], value: &[u8]| {
            let mut bytes = vec![0; HEADER_SIZE];
            bytes[0] = BINARY_RESPONSE;
            bytes[2..4].copy_from_slice(&(key.len() as u16).to_be_bytes());
            bytes[4] = extras.len() as u8;
            let body_len = (key.len() + extras.len() + value.len()) as u32;
            bytes[8..12].copy_from_slice(&body_len.to_be_bytes());
            [&bytes, extras, key, value].concat()
        };
        let all = [
            (packet(b"a:k", b"flag", b"a:value"), packet(b"k", b"flag", b"a:value")),
            (packet(b"", b"", b""), packet(b"", b"", b"")),
            (packet(b"a:k", b"", b"Not found"), packet(b"k", b"", b"Not found")),
            (packet(b"", b"a:xx", b"a:"), packet(b"", b"a:xx", b"a:")),
            (packet(b"ba:k", b"", b""), packet(b"ba:k", b"", b"")),
        ];
        let stream: Vec<u8> = all.iter().flat_map(|(packet, _)| packet.clone()).collect();
        let expected: Vec<u8> = all.iter().flat_map(|(_, expected)| expected.clone()).collect();
        assert_eq!(in_pieces(&stream, KeyStripper::write_packets), expected);
        // What is no packet is left alone.
        let stream = b"ERROR of somebody else who does not know packets a:k\r\n";
        assert_eq!(in_pieces(stream, KeyStripper::write_packets), stream);
    }
}
