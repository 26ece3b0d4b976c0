//! Replies: where each one ends.

use super::super::reply::{Expect, Scan};
use super::super::{KEY_SIZE_MAX, VALUE_SIZE_LIMIT};
use super::header::{HEADER_SIZE, ResponseHeader};

/// Largest body that is accepted.
const BODY_SIZE_MAX: u64 = VALUE_SIZE_LIMIT + KEY_SIZE_MAX as u64 + 255;

/// Finds the end of one reply after another.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplyScanner {
    header: [u8; HEADER_SIZE],
    /// Bytes of the header that have come.
    filled: u8,
    /// The packet whose body is arriving is the reply's last.
    is_last: bool,
    /// Bytes of that body still to come.
    body: u64,
}

const _: () = assert!(size_of::<ReplyScanner>() <= 48);

impl ReplyScanner {
    /// Consumes `buf` up to the end of the reply. Ready for the next reply after `Complete`.
    #[inline]
    pub fn scan(&mut self, expect: Expect, buf: &[u8]) -> Scan {
        let mut at = 0;
        loop {
            if usize::from(self.filled) < HEADER_SIZE {
                let filled = usize::from(self.filled);
                let len = (HEADER_SIZE - filled).min(buf.len() - at);
                self.header[filled..filled + len].copy_from_slice(&buf[at..at + len]);
                self.filled += len as u8;
                at += len;
                if usize::from(self.filled) < HEADER_SIZE {
                    return Scan::Partial;
                }
                let header = ResponseHeader::read(&self.header);
                let Some(header) = header.filter(|h| u64::from(h.body_len) <= BODY_SIZE_MAX) else {
                    *self = Self::default();
                    return Scan::Invalid;
                };
                self.body = u64::from(header.body_len);
                self.is_last =
                    expect != Expect::Packets || header.body_len == 0 || header.status != 0;
            }
            let len = self.body.min((buf.len() - at) as u64);
            self.body -= len;
            at += len as usize;
            if self.body > 0 {
                return Scan::Partial;
            }
            self.filled = 0;
            if self.is_last {
                return Scan::Complete(at);
            }
        }
    }

    /// The header of the current packet, or of the last one if the next has not begun.
    #[inline]
    pub fn header(&self) -> Option<&[u8; HEADER_SIZE]> {
        (usize::from(self.filled) == HEADER_SIZE || self.filled == 0).then_some(&self.header)
    }

    /// Bytes of the current body still to come; 0 outside of one.
    #[inline]
    pub fn remaining_hint(&self) -> u64 {
        if usize::from(self.filled) == HEADER_SIZE { self.body } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Response, Status, write_response};
    use super::*;

    fn response(status: Status, key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_response(&Response { opcode: 0, status, opaque: *b"1234", key, value }, &mut out);
        out
    }

    #[test]
    fn finds_the_end_of_replies() {
        let hit = response(Status::Success, b"", b"value");
        let stats = [
            response(Status::Success, b"pid", b"17"),
            response(Status::Success, b"up", b"1"),
            response(Status::Success, b"", b""),
        ]
        .concat();
        let refused = response(Status::NotFound, b"", b"Not found");
        for (expect, reply) in [
            (Expect::Packet, &hit),
            (Expect::Packet, &refused),
            (Expect::Packets, &stats),
            (Expect::Packets, &refused),
        ] {
            let more = [&reply[..], &hit].concat();
            let mut scanner = ReplyScanner::default();
            assert_eq!(scanner.scan(expect, &more), Scan::Complete(reply.len()));
            for cut in 0..reply.len() {
                let (head, tail) = more.split_at(cut);
                assert_eq!(scanner.scan(expect, head), Scan::Partial);
                assert_eq!(scanner.scan(expect, tail), Scan::Complete(reply.len() - cut), "{cut}");
            }
        }
    }

    #[test]
    fn notices_what_is_no_reply() {
        let mut wrong_sizes = response(Status::Success, b"", b"value");
        wrong_sizes[4] = 6;
        let mut huge = response(Status::Success, b"", b"");
        huge[8] = 0xff;
        for reply in [&b"VERSION 1.6.18 and something more\r\n"[..], &wrong_sizes, &huge] {
            assert_eq!(ReplyScanner::default().scan(Expect::Packet, reply), Scan::Invalid);
        }
    }
}
