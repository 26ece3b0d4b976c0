//! Requests: from bytes to opcode, key and length.
//!
//! The header shows every reason for a refusal. So the parser refuses a request before its body has
//! come.

use super::super::{KEY_SIZE_MAX, VALUE_SIZE_LIMIT};
use super::header::{HEADER_SIZE, RequestHeader, Status};
use super::opcode::Opcode;
use crate::Span;

/// Largest name of a mechanism and its data together.
const SASL_SIZE_MAX: u32 = 64 * 1024;

/// What the buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A whole request of this length.
    Complete { len: usize },
    /// More bytes are needed; `need` is the least length that the request can have, and more than
    /// the buffer holds.
    Partial { need: usize },
    /// Not a request that can be served: answer `status`, drop `len` bytes of the buffer, then
    /// `swallow` further bytes that have not arrived. The connection stays open unless `close`.
    Reject { len: usize, swallow: u64, status: Status, close: bool },
    /// This is not a packet: close without a reply.
    Garbage,
}

/// Parses one request at a time; reset it between two.
#[derive(Clone, Debug)]
pub struct RequestParser {
    value_size_max: u64,
    header: RequestHeader,
    /// Length of the whole request; 0 until its header has been read.
    len: usize,
    opcode: Opcode,
    is_quiet: bool,
}

impl RequestParser {
    /// Values of more than `value_size_max` bytes are refused.
    pub fn new(value_size_max: u64) -> Self {
        Self {
            value_size_max: value_size_max.min(VALUE_SIZE_LIMIT),
            header: RequestHeader::default(),
            len: 0,
            opcode: Opcode::Noop,
            is_quiet: false,
        }
    }

    /// From the next request on, values of more than `value_size_max` bytes are refused.
    pub fn set_value_size_max(&mut self, value_size_max: u64) {
        self.value_size_max = value_size_max.min(VALUE_SIZE_LIMIT);
    }

    /// Call this before the next request.
    #[inline]
    pub fn reset(&mut self) {
        self.len = 0;
        self.header = RequestHeader::default();
    }

    /// `buf` starts at the first byte of the request on every call and only grows between calls.
    #[inline]
    pub fn parse(&mut self, buf: &[u8]) -> Parsed {
        if self.len == 0 {
            let Some(header) = buf.first_chunk() else {
                return match buf.first() {
                    Some(&super::super::BINARY_REQUEST) | None => {
                        Parsed::Partial { need: HEADER_SIZE }
                    }
                    Some(_) => Parsed::Garbage,
                };
            };
            let Some(header) = RequestHeader::read(header) else { return Parsed::Garbage };
            self.header = header;
            match self.judge() {
                Ok(()) => self.len = HEADER_SIZE + header.body_len as usize,
                Err(refusal) => {
                    // If a value is too large, the key before it is still needed.
                    let least = match refusal.names_key {
                        true => header.value_start(),
                        false => HEADER_SIZE,
                    };
                    if buf.len() < least {
                        return Parsed::Partial { need: least };
                    }
                    return refusal.at(&header, buf.len());
                }
            }
        }
        match buf.len() < self.len {
            true => Parsed::Partial { need: self.len },
            false => Parsed::Complete { len: self.len },
        }
    }

    /// The header of the current request; zeros before it has come.
    #[inline]
    pub fn header(&self) -> &RequestHeader {
        &self.header
    }

    /// The command of a complete request, or of one refused for its size.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    #[inline]
    pub fn key(&self) -> Span {
        Span::new(self.header.key_start(), usize::from(self.header.key_len))
    }

    #[inline]
    pub fn extras(&self) -> Span {
        Span::new(HEADER_SIZE, usize::from(self.header.extras_len))
    }

    /// The value's position; not all of its bytes may have come.
    #[inline]
    pub fn value(&self) -> Span {
        let start = self.header.value_start();
        Span::new(start, HEADER_SIZE + self.header.body_len as usize - start)
    }

    /// Whether the header was parsed and is valid.
    #[inline]
    pub fn is_begun(&self) -> bool {
        self.len > 0
    }

    /// Whether a value may follow the key.
    fn takes_value(&self) -> bool {
        matches!(
            self.opcode,
            Opcode::Set | Opcode::Add | Opcode::Replace | Opcode::Append | Opcode::Prepend
        )
    }

    fn judge(&mut self) -> Result<(), Refusal> {
        let RequestHeader { opcode, key_len, extras_len, body_len, .. } = self.header;
        let named = u32::from(key_len) + u32::from(extras_len);
        if named > body_len {
            return Err(Refusal::closing(Status::UnknownCommand));
        }
        if usize::from(key_len) > KEY_SIZE_MAX {
            return Err(Refusal::closing(Status::Invalid));
        }
        let Some((opcode, is_quiet)) = Opcode::from_byte(opcode) else {
            return Err(Refusal::going_on(Status::UnknownCommand));
        };
        self.opcode = opcode;
        self.is_quiet = is_quiet;
        let has_key = key_len > 0;
        let no_value = body_len == named;
        let is_valid = match opcode {
            Opcode::Get | Opcode::GetK | Opcode::Delete => has_key && extras_len == 0 && no_value,
            Opcode::Set | Opcode::Add | Opcode::Replace => has_key && extras_len == 8,
            Opcode::Append | Opcode::Prepend => has_key && extras_len == 0,
            Opcode::Increment | Opcode::Decrement => has_key && extras_len == 20 && no_value,
            Opcode::Touch | Opcode::Gat | Opcode::GatK => has_key && extras_len == 4 && no_value,
            Opcode::Flush => !has_key && no_value && matches!(extras_len, 0 | 4),
            Opcode::Verbosity => !has_key && no_value && extras_len == 4,
            Opcode::Noop | Opcode::Version | Opcode::Quit | Opcode::SaslList => body_len == 0,
            Opcode::Stat => extras_len == 0 && no_value,
            Opcode::SaslAuth | Opcode::SaslStep => has_key && extras_len == 0,
        };
        if !is_valid {
            return Err(Refusal::closing(Status::Invalid));
        }
        if self.takes_value() && u64::from(body_len - named) > self.value_size_max {
            return Err(Refusal { names_key: true, ..Refusal::going_on(Status::TooLarge) });
        }
        if !self.takes_value() && body_len > SASL_SIZE_MAX {
            return Err(Refusal::going_on(Status::OutOfMemory));
        }
        Ok(())
    }
}

impl Default for RequestParser {
    /// Takes values of any size.
    fn default() -> Self {
        Self::new(VALUE_SIZE_LIMIT)
    }
}

struct Refusal {
    status: Status,
    close: bool,
    names_key: bool,
}

impl Refusal {
    fn closing(status: Status) -> Self {
        Self { status, close: true, names_key: false }
    }

    fn going_on(status: Status) -> Self {
        Self { status, close: false, names_key: false }
    }

    #[cold]
    fn at(self, header: &RequestHeader, arrived: usize) -> Parsed {
        let whole = HEADER_SIZE as u64 + u64::from(header.body_len);
        let len = whole.min(arrived as u64);
        let (len, swallow) = match self.close {
            true => (HEADER_SIZE, 0),
            false => (len as usize, whole - len),
        };
        Parsed::Reject { len, swallow, status: self.status, close: self.close }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request with the given sizes.
    fn packet(opcode: u8, key_len: u16, extras_len: u8, body_len: u32) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_SIZE + body_len as usize];
        bytes[0] = 0x80;
        bytes[1] = opcode;
        bytes[2..4].copy_from_slice(&key_len.to_be_bytes());
        bytes[4] = extras_len;
        bytes[8..12].copy_from_slice(&body_len.to_be_bytes());
        bytes[12..16].copy_from_slice(b"opaq");
        bytes[23] = 7;
        for (at, byte) in bytes[HEADER_SIZE..].iter_mut().enumerate() {
            *byte = at as u8;
        }
        bytes
    }

    #[test]
    fn reads_good_requests() {
        use Opcode::*;
        for (byte, key_len, extras_len, body_len, opcode, is_quiet) in [
            (0x00, 1, 0, 1, Get, false),
            (0x09, 250, 0, 250, Get, true),
            (0x0d, 3, 0, 3, GetK, true),
            (0x01, 3, 8, 16, Set, false),
            (0x11, 3, 8, 11, Set, true),
            (0x12, 3, 8, 12, Add, true),
            (0x03, 3, 8, 12, Replace, false),
            (0x0e, 3, 0, 3, Append, false),
            (0x1a, 3, 0, 8, Prepend, true),
            (0x04, 3, 0, 3, Delete, false),
            (0x05, 3, 20, 23, Increment, false),
            (0x16, 3, 20, 23, Decrement, true),
            (0x1c, 3, 4, 7, Touch, false),
            (0x24, 3, 4, 7, GatK, true),
            (0x08, 0, 0, 0, Flush, false),
            (0x18, 0, 4, 4, Flush, true),
            (0x1b, 0, 4, 4, Verbosity, false),
            (0x0a, 0, 0, 0, Noop, false),
            (0x17, 0, 0, 0, Quit, true),
            (0x10, 0, 0, 0, Stat, false),
            (0x10, 5, 0, 5, Stat, false),
            (0x20, 0, 0, 0, SaslList, false),
            (0x21, 5, 0, 17, SaslAuth, false),
        ] {
            let bytes = packet(byte, key_len, extras_len, body_len);
            let more = [&bytes[..], b"\x80more"].concat();
            for buf in [&bytes, &more] {
                let mut parser = RequestParser::default();
                assert_eq!(parser.parse(buf), Parsed::Complete { len: bytes.len() }, "{byte:#x}");
                assert_eq!((parser.opcode(), parser.is_quiet()), (opcode, is_quiet));
                assert_eq!((parser.header().opaque, parser.header().cas), (*b"opaq", 7));
                let body = &bytes[HEADER_SIZE..];
                let (extras, rest) = body.split_at(usize::from(extras_len));
                let (key, value) = rest.split_at(usize::from(key_len));
                assert_eq!(parser.extras().of(buf), extras);
                assert_eq!(parser.key().of(buf), key);
                assert_eq!(parser.value().of(buf), value);
            }
        }
    }

    #[test]
    fn refuses_as_memcached_does() {
        use Status::*;
        for (byte, key_len, extras_len, body_len, status, close) in [
            (0x00, 5, 0, 4, UnknownCommand, true),
            (0x00, 0, 1, 0, UnknownCommand, true),
            (0x00, 251, 0, 251, Invalid, true),
            (0x00, 0, 0, 0, Invalid, true),
            (0x00, 1, 0, 2, Invalid, true),
            (0x00, 1, 4, 5, Invalid, true),
            (0x01, 1, 0, 5, Invalid, true),
            (0x01, 0, 8, 9, Invalid, true),
            (0x0e, 1, 8, 10, Invalid, true),
            (0x05, 1, 19, 20, Invalid, true),
            (0x05, 1, 20, 22, Invalid, true),
            (0x08, 0, 3, 3, Invalid, true),
            (0x0a, 0, 0, 1, Invalid, true),
            (0x0b, 1, 0, 1, Invalid, true),
            (0x10, 1, 1, 2, Invalid, true),
            (0x1d, 1, 0, 1, Invalid, true),
            (0x21, 0, 0, 1, Invalid, true),
            (0x30, 1, 0, 5, UnknownCommand, false),
            (0xff, 0, 0, 0, UnknownCommand, false),
        ] {
            let bytes = packet(byte, key_len, extras_len, body_len);
            let len = if close { HEADER_SIZE } else { bytes.len() };
            let expected = Parsed::Reject { len, swallow: 0, status, close };
            assert_eq!(RequestParser::default().parse(&bytes), expected, "{byte:#x}");
            let swallow = if close { 0 } else { (bytes.len() - HEADER_SIZE) as u64 };
            let expected = Parsed::Reject { len: HEADER_SIZE, swallow, status, close };
            assert_eq!(RequestParser::default().parse(&bytes[..HEADER_SIZE]), expected);
        }
    }

    #[test]
    fn swallows_what_is_too_large() {
        let bytes = packet(0x01, 3, 8, 22);
        for arrived in 0..bytes.len() {
            let mut parser = RequestParser::new(10);
            let parsed = parser.parse(&bytes[..arrived]);
            match arrived {
                0..HEADER_SIZE => assert_eq!(parsed, Parsed::Partial { need: HEADER_SIZE }),
                HEADER_SIZE..35 => assert_eq!(parsed, Parsed::Partial { need: 35 }),
                len => {
                    let (swallow, status) = ((bytes.len() - len) as u64, Status::TooLarge);
                    assert_eq!(parsed, Parsed::Reject { len, swallow, status, close: false });
                    assert_eq!(
                        (parser.opcode(), parser.key().of(&bytes)),
                        (Opcode::Set, &[8, 9, 10][..])
                    );
                }
            }
        }
        assert_eq!(RequestParser::new(11).parse(&bytes), Parsed::Complete { len: bytes.len() });
        let huge = &packet(0x21, 3, 0, 0)[..];
        let mut huge = huge.to_vec();
        huge[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
        let swallow = u64::from(u32::MAX);
        let status = Status::OutOfMemory;
        let expected = Parsed::Reject { len: HEADER_SIZE, swallow, status, close: false };
        assert_eq!(RequestParser::default().parse(&huge), expected);
    }

    #[test]
    fn tells_garbage_by_the_first_byte() {
        for bytes in [&b"get a\r\n"[..], b"\x81", &[0; HEADER_SIZE]] {
            assert_eq!(RequestParser::default().parse(bytes), Parsed::Garbage);
        }
        assert_eq!(RequestParser::default().parse(b"\x80"), Parsed::Partial { need: HEADER_SIZE });
    }
}
