//! Requests from clients: RESP arrays of bulk strings, and inline commands.
//!
//! The parser reads headers only, never the bytes of a value, and keeps its position: the work is
//! linear in the input however the input is cut. It owns no input; the connection does.

use std::fmt;

use memchr::memchr;

use super::tail::Tail;
use super::{decimal, encode, inline, plain};
use crate::Span;

/// Longest inline command and longest header line, as in Redis (`PROTO_INLINE_MAX_SIZE`).
pub const LINE_BYTES_MAX: usize = 64 * 1024;
/// Most arguments of one request. Redis had this limit until 6.2; 7.0 counts up to `INT_MAX`, which
/// would let ten bytes announce gigabytes of spans.
pub const ARGS_MAX: usize = 1024 * 1024;
/// Longest argument: Redis's default `proto-max-bulk-len`.
pub const BULK_BYTES_MAX: usize = 512 * 1024 * 1024;

/// The shortest argument on the wire: `$0\r\n\r\n`.
pub(super) const ARG_BYTES_MIN: usize = 6;
/// Room reserved at once for announced arguments; beyond it, room grows with the arguments that
/// arrive.
const ARGS_RESERVE_MAX: usize = 1024;
/// Spans kept allocated between requests (2 KiB).
const ARGS_SPARE_MAX: usize = 256;
/// Bytes of re-encoded requests kept allocated between requests.
const ENCODED_SPARE_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A whole request of this many bytes from the start of the buffer. Without arguments (an empty
    /// inline line, `*0` or `*-1`) there is nothing to do and nothing to reply.
    Complete { len: usize },
    /// `need` is the least total length that the request can have. It is longer than the buffer and
    /// never longer than the limit given to `parse`.
    Partial { need: usize },
    /// The stream cannot be parsed any further: reply with the error and close.
    Invalid(ProtocolError),
}

/// An error of a request, with Redis's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    InvalidMultibulkLength,
    InvalidBulkLength,
    /// The byte found where an argument should start.
    ExpectedBulk(u8),
    UnbalancedQuotes,
    TooBigInline,
    TooBigMultibulkCount,
    TooBigBulkCount,
    /// Longer than the gateway's own limit.
    RequestTooLarge,
}

impl ProtocolError {
    /// The text after `-ERR `.
    pub fn write_message(self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"Protocol error: ");
        match self {
            Self::ExpectedBulk(got) => {
                out.extend_from_slice(b"expected '$', got '");
                encode::write_sanitised(out, &[got]);
                out.push(b'\'');
            }
            other => out.extend_from_slice(other.text().as_bytes()),
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::InvalidMultibulkLength => "invalid multibulk length",
            Self::InvalidBulkLength => "invalid bulk length",
            Self::ExpectedBulk(_) => "expected '$'",
            Self::UnbalancedQuotes => "unbalanced quotes in request",
            Self::TooBigInline => "too big inline request",
            Self::TooBigMultibulkCount => "too big mbulk count string",
            Self::TooBigBulkCount => "too big bulk count string",
            Self::RequestTooLarge => "request too large",
        }
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Protocol error: {}", self.text())?;
        match self {
            Self::ExpectedBulk(got) => write!(f, ", got '{}'", got.escape_ascii()),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for ProtocolError {}

#[derive(Debug, Default)]
pub struct RequestParser {
    args: Vec<Span>,
    /// Announced by the array header; `None` until that has been parsed.
    count: Option<usize>,
    /// Where the next header line starts.
    line: usize,
    /// `line <= scanned`: there is no line end between the two.
    scanned: usize,
    /// A CRLF had another byte in one of its places, which Redis does not check.
    irregular: bool,
    /// The request in plain RESP, if the original is not.
    encoded: Vec<u8>,
}

impl RequestParser {
    /// `buf` starts at the first byte of the request on every call and only grows between calls.
    /// Call `reset` after `Complete`, before the next request. After `Invalid` there are no more
    /// calls.
    #[inline]
    pub fn parse(&mut self, buf: &[u8], request_size_max: usize) -> Parsed {
        let max = request_size_max.min(u32::MAX as usize);
        let Some(&first) = buf.first() else {
            return Parsed::Partial { need: 1 };
        };
        let result = if first == b'*' { self.array(buf, max) } else { self.inline(buf, max) };
        result.unwrap_or_else(Parsed::Invalid)
    }

    /// The arguments of a complete request, as parts of the buffer it was parsed from, or of
    /// [`Self::inline_encoded`] if there is one.
    #[inline]
    pub fn args(&self) -> &[Span] {
        &self.args
    }

    /// How many arguments a partial request announces, if it is an array.
    pub fn announced(&self) -> Option<usize> {
        self.count
    }

    /// For forwarding a partial request while it arrives: how many bytes its complete arguments
    /// take, and a scanner for the end of the rest. `None` if these bytes must not be forwarded
    /// unchanged.
    pub fn tail(&self) -> Option<(usize, Tail)> {
        let count = self.count.filter(|_| !self.irregular)?;
        Some((self.line, Tail::new(count - self.args.len())))
    }

    /// The request as a plain RESP array, if the original must not be forwarded unchanged: an
    /// inline command, or an array with other bytes instead of a CRLF. Redis accepts both, but
    /// other servers may not, and a server connection is shared.
    #[inline]
    pub fn inline_encoded(&self) -> Option<&[u8]> {
        if self.encoded.is_empty() { None } else { Some(&self.encoded) }
    }

    /// Bytes allocated for arguments and re-encoded requests.
    pub fn allocated(&self) -> usize {
        self.args.capacity() * size_of::<Span>() + self.encoded.capacity()
    }

    /// Call this before the next request. Frees room that only unusual requests need.
    #[inline]
    pub fn reset(&mut self) {
        self.args.clear();
        self.args.shrink_to(ARGS_SPARE_MAX);
        self.encoded.clear();
        self.encoded.shrink_to(ENCODED_SPARE_MAX);
        self.count = None;
        self.line = 0;
        self.scanned = 0;
        self.irregular = false;
    }

    #[inline]
    fn array(&mut self, buf: &[u8], max: usize) -> Result<Parsed, ProtocolError> {
        let count = match self.count {
            Some(count) => count,
            None => match self.array_header(buf, max)? {
                Some(count) => count,
                None => return Ok(self.partial(buf, self.line + 1)),
            },
        };
        self.whole_arguments(buf, count);
        // Arguments only make the request longer, so one that is too long stays so.
        if self.line + (count - self.args.len()) * ARG_BYTES_MIN > max {
            return Err(ProtocolError::RequestTooLarge);
        }
        while self.args.len() < count {
            let unfinished = (count - self.args.len()) * ARG_BYTES_MIN;
            let Some((len, value)) = self.bulk_header(buf, max)? else {
                return Ok(self.partial(buf, self.line + unfinished));
            };
            let (span, end) = (Span::new(value, len), value + len + 2);
            let need = end + unfinished - ARG_BYTES_MIN;
            if need > max {
                return Err(ProtocolError::RequestTooLarge);
            }
            let Some(terminator) = buf.get(end - 2..end) else {
                return Ok(self.partial(buf, need));
            };
            self.irregular |= terminator != b"\r\n";
            self.args.push(span);
            self.line = end;
            self.scanned = end;
        }
        if self.irregular {
            self.encode_again(buf);
        }
        Ok(Parsed::Complete { len: self.line })
    }

    #[inline]
    fn array_header(&mut self, buf: &[u8], max: usize) -> Result<Option<usize>, ProtocolError> {
        let (count, end) = match decimal::line(buf, 1) {
            Some(header) => header,
            None => match self.header_line(buf, max, ProtocolError::TooBigMultibulkCount)? {
                Some((text, end)) => {
                    let count = decimal::integer(&text[1..])
                        .ok_or(ProtocolError::InvalidMultibulkLength)?;
                    // Every negative count means an empty request.
                    (usize::try_from(count).unwrap_or(0), end)
                }
                None => return Ok(None),
            },
        };
        // The line's end is checked before its content, as when the line comes in parts.
        if end > max {
            return Err(ProtocolError::RequestTooLarge);
        }
        if count > ARGS_MAX {
            return Err(ProtocolError::InvalidMultibulkLength);
        }
        if end + count * ARG_BYTES_MIN > max {
            return Err(ProtocolError::RequestTooLarge);
        }
        self.args.reserve(count.min(ARGS_RESERVE_MAX));
        self.count = Some(count);
        self.line = end;
        self.scanned = end;
        Ok(Some(count))
    }

    /// Parses arguments up to the first that is not plain, or incomplete.
    #[inline]
    fn whole_arguments(&mut self, buf: &[u8], count: usize) {
        let mut rest = buf.get(self.line..).unwrap_or_default();
        let start = rest.len();
        while self.args.len() < count
            && let Some((value, behind)) = plain::bulk(rest)
            && value.len() <= BULK_BYTES_MAX
        {
            let end = buf.len() - behind.len();
            self.args.push(Span::new(end - 2 - value.len(), value.len()));
            rest = behind;
        }
        if rest.len() < start {
            self.line = buf.len() - rest.len();
            self.scanned = self.line;
        }
    }

    /// Length of the bulk whose header is next, and where its value starts.
    #[inline]
    fn bulk_header(
        &mut self,
        buf: &[u8],
        max: usize,
    ) -> Result<Option<(usize, usize)>, ProtocolError> {
        if buf.get(self.line) == Some(&b'$')
            && let Some((len, value)) = decimal::line(buf, self.line + 1)
            && len <= BULK_BYTES_MAX
        {
            return Ok(Some((len, value)));
        }
        let Some((text, value)) = self.header_line(buf, max, ProtocolError::TooBigBulkCount)?
        else {
            return Ok(None);
        };
        match text {
            [b'$', digits @ ..] => {
                let len = decimal::integer(digits).and_then(|len| usize::try_from(len).ok());
                match len {
                    Some(len) if len <= BULK_BYTES_MAX => Ok(Some((len, value))),
                    _ => Err(ProtocolError::InvalidBulkLength),
                }
            }
            // Redis has found the line's end, so an empty line shows its carriage return.
            _ => Err(ProtocolError::ExpectedBulk(*text.first().unwrap_or(&b'\r'))),
        }
    }

    /// The header line at `self.line` and the index after it, for lines that the fast path does not
    /// parse. Like Redis, it looks for the carriage return and skips the byte after it.
    #[cold]
    fn header_line<'a>(
        &mut self,
        buf: &'a [u8],
        max: usize,
        too_long: ProtocolError,
    ) -> Result<Option<(&'a [u8], usize)>, ProtocolError> {
        let Some(end) = self.line_end(buf, b'\r', max, too_long)? else {
            return Ok(None);
        };
        let Some(&byte) = buf.get(end + 1) else {
            return Ok(None);
        };
        self.irregular |= byte != b'\n';
        Ok(Some((&buf[self.line..end], end + 2)))
    }

    fn inline(&mut self, buf: &[u8], max: usize) -> Result<Parsed, ProtocolError> {
        let Some(end) = self.line_end(buf, b'\n', max, ProtocolError::TooBigInline)? else {
            return Ok(self.partial(buf, 0));
        };
        let line = &buf[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let mut text = Vec::new();
        if !inline::split(line, &mut text, &mut self.args) {
            return Err(ProtocolError::UnbalancedQuotes);
        }
        if !self.args.is_empty() {
            self.encode_again(&text);
        }
        Ok(Parsed::Complete { len: end + 1 })
    }

    /// Index of the `terminator` of the line at `self.line`. Its maximum position depends on the
    /// bytes only, never on how they were cut, so the result does not either.
    fn line_end(
        &mut self,
        buf: &[u8],
        terminator: u8,
        max: usize,
        too_long: ProtocolError,
    ) -> Result<Option<usize>, ProtocolError> {
        let behind = usize::from(terminator == b'\r');
        let last = max.saturating_sub(1 + behind);
        let (last, error) = if last >= self.line + LINE_BYTES_MAX {
            (self.line + LINE_BYTES_MAX, too_long)
        } else {
            (last, ProtocolError::RequestTooLarge)
        };
        let searched = buf.get(self.scanned..).unwrap_or_default();
        if let Some(at) = memchr(terminator, searched) {
            let end = self.scanned + at;
            // A resumed search finds the same line end again while the byte after it is missing.
            self.scanned = end;
            return if end <= last { Ok(Some(end)) } else { Err(error) };
        }
        self.scanned = buf.len();
        if buf.len() > last { Err(error) } else { Ok(None) }
    }

    #[cold]
    fn partial(&self, buf: &[u8], need: usize) -> Parsed {
        Parsed::Partial { need: need.max(buf.len() + 1) }
    }

    /// Fills `encoded` from arguments in `text`, and points the arguments there.
    #[cold]
    fn encode_again(&mut self, text: &[u8]) {
        encode::write_array_header(&mut self.encoded, self.args.len());
        for arg in &mut self.args {
            let value = arg.of(text);
            encode::write_bulk(&mut self.encoded, value);
            *arg = Span::new(self.encoded.len() - 2 - value.len(), value.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 1 << 30;

    fn parse(buf: &[u8]) -> (Parsed, Vec<Vec<u8>>) {
        let mut parser = RequestParser::default();
        let parsed = parser.parse(buf, MAX);
        let text = parser.inline_encoded().unwrap_or(buf);
        let args = match parsed {
            Parsed::Complete { .. } => parser.args().iter().map(|a| a.of(text).to_vec()).collect(),
            Parsed::Partial { .. } | Parsed::Invalid(_) => Vec::new(),
        };
        (parsed, args)
    }

    #[test]
    fn whole_requests_end_where_redis_ends_them() {
        type Case = (&'static [u8], usize, &'static [&'static [u8]]);
        let cases: &[Case] = &[
            (b"*1\r\n$4\r\nPING\r\n", 14, &[b"PING"]),
            (b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*1\r\n", 20, &[b"GET", b"a"]),
            (b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n", 19, &[b"GET", b""]),
            (b"*1\r\n$2\r\n\r\n\r\n", 12, &[b"\r\n"]),
            (b"*0\r\n", 4, &[]),
            (b"*-1\r\nPING\r\n", 5, &[]),
            (b"*-99\r\n", 6, &[]),
            (b"\r\nPING\r\n", 2, &[]),
            (b"\nPING\r\n", 1, &[]),
            (b"  \t\n", 4, &[]),
            (b"PING\r\nPING\r\n", 6, &[b"PING"]),
            (b"PING\n", 5, &[b"PING"]),
            (b"set a \"b c\"\n", 12, &[b"set", b"a", b"b c"]),
            (b"*1\rx$4\rxPINGxx", 14, &[b"PING"]),
        ];
        for (buf, len, args) in cases {
            let args: Vec<Vec<u8>> = args.iter().map(|arg| arg.to_vec()).collect();
            let expected = (Parsed::Complete { len: *len }, args);
            assert_eq!(parse(buf), expected, "{}", buf.escape_ascii());
        }
    }

    #[test]
    fn bad_requests_get_redis_words() {
        let cases: &[(&[u8], &str)] = &[
            (b"*a\r\n", "invalid multibulk length"),
            (b"*\r\n", "invalid multibulk length"),
            (b"*+1\r\n", "invalid multibulk length"),
            (b"*01\r\n", "invalid multibulk length"),
            (b"*-0\r\n", "invalid multibulk length"),
            (b"* 1\r\n", "invalid multibulk length"),
            (b"*1\n$4\r\nPING\r\n", "invalid multibulk length"),
            (b"*1048577\r\n", "invalid multibulk length"),
            (b"*9223372036854775808\r\n", "invalid multibulk length"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$a\r\n", "invalid bulk length"),
            (b"*1\r\n$\r\n", "invalid bulk length"),
            (b"*1\r\n$04\r\n", "invalid bulk length"),
            (b"*1\r\n$-0\r\n", "invalid bulk length"),
            (b"*1\r\n$536870913\r\n", "invalid bulk length"),
            (b"*1\r\nabc\r\n", "expected '$', got 'a'"),
            (b"*1\r\n\r\n", "expected '$', got ' '"),
            (b"ECHO \"a\r\n", "unbalanced quotes in request"),
            (b"ECHO 'a'b\r\n", "unbalanced quotes in request"),
        ];
        for (buf, expected) in cases {
            let (Parsed::Invalid(error), _) = parse(buf) else {
                panic!("{} was accepted", buf.escape_ascii());
            };
            let mut message = Vec::new();
            error.write_message(&mut message);
            let expected = format!("Protocol error: {expected}");
            assert_eq!(String::from_utf8(message).unwrap(), expected, "{}", buf.escape_ascii());
        }
    }

    #[test]
    fn every_prefix_of_a_request_is_partial_and_need_is_never_too_much() {
        let requests: &[&[u8]] = &[
            b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$12\r\n0123456789ab\r\n",
            b"SET a \"b\r\"\r\n",
            b"*2\rx$3\rxGETxx$0\r\n\r\n",
            b"*-1\r\n",
        ];
        for request in requests {
            for len in 0..request.len() {
                let (Parsed::Partial { need }, _) = parse(&request[..len]) else {
                    panic!("{}", request[..len].escape_ascii());
                };
                assert!(len < need && need <= request.len(), "{len} {need}");
            }
        }
    }

    #[test]
    fn need_tells_how_large_a_value_is() {
        let (parsed, _) = parse(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1000000\r\n");
        assert_eq!(parsed, Parsed::Partial { need: 20 + 10 + 1_000_000 + 2 });
        // Four announced arguments take six bytes each at least.
        assert_eq!(parse(b"*4\r\n$3\r\nS").0, Parsed::Partial { need: 8 + 5 + 3 * 6 });
    }

    #[test]
    fn lines_are_bounded() {
        let cases: &[(&str, u8, ProtocolError)] = &[
            ("", b'x', ProtocolError::TooBigInline),
            ("*", b'1', ProtocolError::TooBigMultibulkCount),
            ("*1\r\n", b'$', ProtocolError::TooBigBulkCount),
        ];
        for (start, fill, error) in cases {
            let line = if start.len() == 4 { 4 } else { 0 };
            let mut buf = start.as_bytes().to_vec();
            buf.resize(line + LINE_BYTES_MAX, *fill);
            assert!(matches!(parse(&buf).0, Parsed::Partial { .. }), "{start}");
            buf.push(*fill);
            assert_eq!(parse(&buf).0, Parsed::Invalid(*error), "{start}");
        }
        let mut longest = vec![b'x'; LINE_BYTES_MAX];
        longest.push(b'\n');
        assert_eq!(parse(&longest).0, Parsed::Complete { len: LINE_BYTES_MAX + 1 });
    }

    #[test]
    fn the_gateways_own_limit_is_exact_and_seen_from_headers() {
        let request = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n";
        let too_large = Parsed::Invalid(ProtocolError::RequestTooLarge);
        let mut parser = RequestParser::default();
        assert_eq!(parser.parse(request, request.len()), Parsed::Complete { len: request.len() });
        for max in 0..request.len() {
            assert_eq!(RequestParser::default().parse(request, max), too_large, "{max}");
        }
        assert_eq!(RequestParser::default().parse(b"*1\r\n$100\r\n", 100), too_large);
        assert_eq!(RequestParser::default().parse(b"*100\r\n", 100), too_large);
        assert_eq!(RequestParser::default().parse(b"PING\r\n", 6), Parsed::Complete { len: 6 });
        assert_eq!(RequestParser::default().parse(b"PING\r\n", 5), too_large);
    }

    #[test]
    fn what_is_not_plain_resp_is_encoded_again() {
        let plain: &[u8] = b"*2\r\n$4\r\nECHO\r\n$3\r\na b\r\n";
        let inputs: [&[u8]; 6] = [
            b"ECHO 'a b'\r\n",
            b"ECHO \"a\\x20b\"\n",
            b"*2\r\n$4\rxECHO\r\n$3\r\na b\n\n",
            b"*2\r\n$4\rxECHO\r\n$3\r\na b\r\n",
            b"*2\r\n$4\r\nECHOx\n$3\r\na b\r\n",
            b"*2\r\n$4\r\nECHO\r\n$3\r\na b\rx",
        ];
        for input in inputs {
            let mut parser = RequestParser::default();
            assert_eq!(parser.parse(input, MAX), Parsed::Complete { len: input.len() });
            assert_eq!(parser.inline_encoded(), Some(plain));
            assert_eq!(parser.args()[1].of(plain), b"a b");
            parser.reset();
            assert_eq!(parser.parse(plain, MAX), Parsed::Complete { len: plain.len() });
            assert_eq!(parser.inline_encoded(), None);
        }
    }

    #[test]
    fn room_for_unusual_requests_is_given_back() {
        let mut parser = RequestParser::default();
        let mut many = Vec::new();
        encode::write_command(&mut many, &[b"".as_slice(); 5000]);
        assert_eq!(parser.parse(&many, MAX), Parsed::Complete { len: many.len() });
        parser.reset();
        assert!(parser.args.capacity() <= ARGS_SPARE_MAX);
        // An announcement alone takes no more room than the bound says.
        assert!(matches!(parser.parse(b"*1048576\r\n", MAX), Parsed::Partial { .. }));
        assert!(parser.args.capacity() <= ARGS_RESERVE_MAX);
    }
}
