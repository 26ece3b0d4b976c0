//! The packets of a complete reply, and the gateway's own requests.

use super::super::BINARY_REQUEST;
use super::header::{HEADER_SIZE, ResponseHeader};

/// One packet of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    pub opcode: u8,
    pub status: u16,
    pub opaque: [u8; 4],
    pub key: &'a [u8],
    pub value: &'a [u8],
    /// All of it.
    pub bytes: &'a [u8],
}

/// Iterates over the packets of a complete reply, up to anything else.
#[derive(Clone, Copy, Debug)]
pub struct Packets<'a>(&'a [u8]);

impl<'a> Packets<'a> {
    pub fn new(reply: &'a [u8]) -> Self {
        Self(reply)
    }

    /// The rest.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Iterator for Packets<'a> {
    type Item = Packet<'a>;

    fn next(&mut self) -> Option<Packet<'a>> {
        let header = ResponseHeader::read(self.0.first_chunk()?)?;
        let len = HEADER_SIZE.checked_add(header.body_len as usize)?;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        let body = &bytes[HEADER_SIZE + usize::from(header.extras_len)..];
        let (key, value) = body.split_at(usize::from(header.key_len));
        let ResponseHeader { opcode, status, opaque, .. } = header;
        Some(Packet { opcode, status, opaque, key, value, bytes })
    }
}

/// Writes a request; `key` and `value` fit a packet.
pub fn write_request(opcode: u8, key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let mut header = [0; HEADER_SIZE];
    header[0] = BINARY_REQUEST;
    header[1] = opcode;
    header[2..4].copy_from_slice(&(key.len() as u16).to_be_bytes());
    header[8..12].copy_from_slice(&((key.len() + value.len()) as u32).to_be_bytes());
    out.extend_from_slice(&header);
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}
