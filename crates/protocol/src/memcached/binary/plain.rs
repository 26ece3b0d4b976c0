//! The fast parser for requests and replies in their usual form: complete in the buffer, with one
//! key, always with a reply, which does not contain the key. [`super::RequestParser`] and
//! [`super::ReplyScanner`] parse all the others, and these with the same result.

use super::super::KEY_SIZE_MAX;
use super::header::{HEADER_SIZE, RequestHeader, ResponseHeader};
use super::opcode::Opcode;

/// A request for one key, with a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainRequest<'b> {
    /// The whole request.
    pub bytes: &'b [u8],
    /// What follows it.
    pub rest: &'b [u8],
    pub key: &'b [u8],
    /// The opcode that the reply must have.
    pub opcode: u8,
    pub opaque: [u8; 4],
    /// It is a get; all others write.
    pub retrieves: bool,
    /// It contains a CAS unique.
    pub names_unique: bool,
}

/// The request at the start of the buffer, if it is plain.
#[inline(always)]
pub fn plain_request(buf: &[u8]) -> Option<PlainRequest<'_>> {
    let header = RequestHeader::read(buf.first_chunk()?)?;
    let no_value = header.body_len == u32::from(header.key_len) + u32::from(header.extras_len);
    let (extras_len, is_sized) = match Opcode::from_byte(header.opcode)? {
        (Opcode::Get | Opcode::Delete, false) => (0, no_value),
        (Opcode::Set | Opcode::Add | Opcode::Replace, false) => (8, true),
        (Opcode::Increment | Opcode::Decrement, false) => (20, no_value),
        (Opcode::Touch, false) => (4, no_value),
        _ => return None,
    };
    let key_len = usize::from(header.key_len);
    let is_plain =
        header.extras_len == extras_len && is_sized && (1..=KEY_SIZE_MAX).contains(&key_len);
    if !is_plain {
        return None;
    }
    let (bytes, rest) = buf.split_at_checked(HEADER_SIZE + header.body_len as usize)?;
    let key = bytes.get(header.key_start()..header.value_start())?;
    let retrieves = header.opcode == Opcode::Get.byte();
    let RequestHeader { opcode, opaque, cas, .. } = header;
    Some(PlainRequest { bytes, rest, key, opcode, opaque, retrieves, names_unique: cas != 0 })
}

/// The packet at the start of the buffer, if it is complete, and what follows it.
#[inline(always)]
pub fn plain_reply(buf: &[u8]) -> Option<(&[u8], &[u8])> {
    let header = ResponseHeader::read(buf.first_chunk()?)?;
    // Others are errors, which are counted, or rare.
    const EXISTS: u16 = 2;
    if header.status > EXISTS {
        return None;
    }
    buf.split_at_checked(HEADER_SIZE + header.body_len as usize)
}
