//! Headers, of requests and of replies.

use super::super::BINARY_REQUEST;

/// Before every body.
pub const HEADER_SIZE: usize = 24;
const RESPONSE: u8 = 0x81;

/// The first bytes of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestHeader {
    pub opcode: u8,
    pub key_len: u16,
    pub extras_len: u8,
    /// Extras, key and value.
    pub body_len: u32,
    /// A value that the client gets back unchanged.
    pub opaque: [u8; 4],
    pub cas: u64,
}

impl RequestHeader {
    /// `None` if it cannot be a request.
    #[inline]
    pub(super) fn read(bytes: &[u8; HEADER_SIZE]) -> Option<Self> {
        (bytes[0] == BINARY_REQUEST).then(|| Self {
            opcode: bytes[1],
            key_len: u16::from_be_bytes([bytes[2], bytes[3]]),
            extras_len: bytes[4],
            body_len: u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]),
            opaque: [bytes[12], bytes[13], bytes[14], bytes[15]],
            cas: u64::from_be_bytes(*bytes[16..].first_chunk().expect("a header has 24 bytes")),
        })
    }

    #[inline]
    pub(super) fn key_start(&self) -> usize {
        HEADER_SIZE + usize::from(self.extras_len)
    }

    /// Where the value starts.
    #[inline]
    pub(super) fn value_start(&self) -> usize {
        self.key_start() + usize::from(self.key_len)
    }
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Success,
    NotFound,
    Exists,
    TooLarge,
    Invalid,
    NotStored,
    NotNumeric,
    AuthError,
    AuthContinue,
    UnknownCommand,
    OutOfMemory,
    TemporaryFailure,
}

impl Status {
    pub fn code(self) -> u16 {
        match self {
            Self::Success => 0x00,
            Self::NotFound => 0x01,
            Self::Exists => 0x02,
            Self::TooLarge => 0x03,
            Self::Invalid => 0x04,
            Self::NotStored => 0x05,
            Self::NotNumeric => 0x06,
            Self::AuthError => 0x20,
            Self::AuthContinue => 0x21,
            Self::UnknownCommand => 0x81,
            Self::OutOfMemory => 0x82,
            Self::TemporaryFailure => 0x86,
        }
    }

    /// The body of the reply, with memcached's text.
    pub fn text(self) -> &'static str {
        match self {
            Self::Success | Self::AuthContinue => "",
            Self::NotFound => "Not found",
            Self::Exists => "Data exists for key.",
            Self::TooLarge => "Too large.",
            Self::Invalid => "Invalid arguments",
            Self::NotStored => "Not stored.",
            Self::NotNumeric => "Non-numeric server-side value for incr or decr",
            Self::AuthError => "Auth failure.",
            Self::UnknownCommand => "Unknown command",
            Self::OutOfMemory => "Out of memory",
            Self::TemporaryFailure => "Temporary failure",
        }
    }
}

/// A reply to be written.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    pub opcode: u8,
    pub status: Status,
    pub opaque: [u8; 4],
    pub key: &'a [u8],
    pub value: &'a [u8],
}

pub fn write_response(response: &Response<'_>, out: &mut Vec<u8>) {
    let Response { opcode, status, opaque, key, value } = *response;
    let mut header = [0; HEADER_SIZE];
    header[0] = RESPONSE;
    header[1] = opcode;
    header[2..4].copy_from_slice(&(key.len() as u16).to_be_bytes());
    header[6..8].copy_from_slice(&status.code().to_be_bytes());
    header[8..12].copy_from_slice(&((key.len() + value.len()) as u32).to_be_bytes());
    header[12..16].copy_from_slice(&opaque);
    out.extend_from_slice(&header);
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

/// What the header of a reply says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResponseHeader {
    pub(super) opcode: u8,
    pub(super) key_len: u16,
    pub(super) extras_len: u8,
    pub(super) status: u16,
    pub(super) body_len: u32,
    pub(super) opaque: [u8; 4],
}

impl ResponseHeader {
    /// `None` if this is not the header of a reply.
    #[inline]
    pub(super) fn read(bytes: &[u8; HEADER_SIZE]) -> Option<Self> {
        let header = Self {
            opcode: bytes[1],
            key_len: u16::from_be_bytes([bytes[2], bytes[3]]),
            extras_len: bytes[4],
            status: u16::from_be_bytes([bytes[6], bytes[7]]),
            body_len: u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]),
            opaque: [bytes[12], bytes[13], bytes[14], bytes[15]],
        };
        let least = u32::from(header.key_len) + u32::from(header.extras_len);
        (bytes[0] == RESPONSE && least <= header.body_len).then_some(header)
    }
}
