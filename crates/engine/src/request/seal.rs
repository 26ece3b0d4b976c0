//! Seals behind requests whose replies a server may fail to keep in one line.
//!
//! Some servers repeat in an error, line ends and all, what a client has sent, or what its script has
//! made: the text of an error that a script raises, an unknown argument of FUNCTION
//! LIST, a word of a library that does not compile, or whatever a module says. What stands behind the
//! first line end would be taken for the replies of those who ask next on the connection. So such a
//! request ([`Command::is_sealed`]) is followed by ECHO of a number that nobody can guess. What comes
//! between the reply and that number is no reply, and is dropped: nobody gets it, and the connection
//! goes on.
//!
//! Raw text is only in errors that are the whole reply, so that the first line end of one ends it for
//! the scanner, too, and none of them can swallow the seal.
//!
//! [`Command::is_sealed`]: cashew_protocol::redis::Command::is_sealed

use std::hash::{DefaultHasher, Hash, Hasher};

/// What the ECHO's argument, and its reply, begins with.
const HEADER: &[u8; 5] = b"$16\r\n";
const ECHO: &[u8; 14] = b"*2\r\n$4\r\nECHO\r\n";
/// Of the reply.
const SIZE: usize = HEADER.len() + 16 + 2;

/// What a server says to a seal, and how much of that has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seal {
    number: u64,
    matched: u8,
    /// Something else has come, which is logged once.
    is_told: bool,
}

/// Numbers that nobody can tell from those before them.
#[derive(Debug)]
pub(crate) struct Secret {
    key: [u64; 2],
    count: u64,
}

impl Secret {
    /// `noise` is all that makes it differ from others.
    pub(crate) fn new(noise: [u64; 2]) -> Self {
        Self { key: noise, count: 0 }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.count += 1;
        let mut hasher = DefaultHasher::new();
        (self.key, self.count).hash(&mut hasher);
        hasher.finish()
    }
}

impl Seal {
    pub(crate) fn new(number: u64) -> Self {
        Self { number, matched: 0, is_told: false }
    }

    /// What is sent.
    pub(crate) fn text(self) -> [u8; ECHO.len() + SIZE] {
        let mut text = [0; ECHO.len() + SIZE];
        text[..ECHO.len()].copy_from_slice(ECHO);
        text[ECHO.len()..].copy_from_slice(&self.reply());
        text
    }

    /// What is still to come of the reply.
    pub(crate) fn awaited(self) -> Vec<u8> {
        self.reply()[usize::from(self.matched)..].to_vec()
    }

    /// Bytes have come: how many of them were looked at, whether the reply is whole, and whether something
    /// else has come for the first time.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> (usize, bool, bool) {
        let before = usize::from(self.matched);
        let (len, is_whole) = self.find(bytes);
        let is_pure = before + len == usize::from(self.matched);
        (len, is_whole, !is_pure && !std::mem::replace(&mut self.is_told, true))
    }

    fn reply(self) -> [u8; SIZE] {
        let mut reply = [0; SIZE];
        reply[..HEADER.len()].copy_from_slice(HEADER);
        for (at, digit) in reply[HEADER.len()..SIZE - 2].iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(self.number >> (4 * at) & 15) as usize];
        }
        reply[SIZE - 2..].copy_from_slice(b"\r\n");
        reply
    }

    /// Looks for the rest of the reply: how many bytes were looked at, and whether it is whole.
    fn find(&mut self, bytes: &[u8]) -> (usize, bool) {
        let reply = self.reply();
        let mut at = 0;
        while at < bytes.len() {
            let matched = usize::from(self.matched);
            if bytes[at] == reply[matched] {
                self.matched += 1;
                at += 1;
                if usize::from(self.matched) == SIZE {
                    return (at, true);
                }
            } else if matched > 0 {
                // It begins with the only `$` in it, so that no part of it is a start of it.
                self.matched = 0;
            } else {
                let junk = bytes[at..].iter().position(|&byte| byte == HEADER[0]);
                at += junk.unwrap_or(bytes.len() - at);
            }
        }
        (at, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_is_found_behind_anything_wherever_it_is_cut() {
        let seal = Seal::new(0x0123_4567_89ab_cdef);
        assert_eq!(&seal.reply(), b"$16\r\nfedcba9876543210\r\n");
        let junk = b"+forged\r\n$16\r\nfedcba987654321$16\r$$1$16\r\n";
        let text = [&junk[..], &seal.reply(), b":1\r\n"].concat();
        for cut in 0..=junk.len() + SIZE {
            let mut seal = seal;
            let (start, rest) = text.split_at(cut);
            let (used, is_found) = seal.find(start);
            let end = match is_found {
                true => used,
                false => cut + seal.find(rest).0,
            };
            assert_eq!(end, junk.len() + SIZE, "cut at {cut}");
        }
    }

    #[test]
    fn numbers_differ() {
        let mut secret = Secret::new([1, 2]);
        let numbers: std::collections::HashSet<u64> = (0..1000).map(|_| secret.next()).collect();
        assert_eq!(numbers.len(), 1000);
        assert_ne!(Secret::new([1, 3]).next(), Secret::new([1, 2]).next());
    }
}
