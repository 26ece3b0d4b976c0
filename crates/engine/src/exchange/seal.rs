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

use crate::base::action::Sequel;
use crate::base::id::{LaneId, RequestId};
use crate::engine::Engine;
use crate::request::{Due, Own, Role};
use crate::upstream::lane::Lane;

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

    fn next(&mut self) -> u64 {
        self.count += 1;
        let mut hasher = DefaultHasher::new();
        (self.key, self.count).hash(&mut hasher);
        hasher.finish()
    }
}

impl Seal {
    fn new(number: u64) -> Self {
        Self { number, matched: 0, is_told: false }
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

impl Engine {
    /// What seals are made of: nobody else is to know it.
    pub fn set_secret(&mut self, noise: [u64; 2]) {
        self.secret = Secret::new(noise);
    }

    /// Puts a seal behind what was sent last on a lane.
    pub(crate) fn seal(&mut self, lane: LaneId) {
        let seal = Seal::new(self.secret.next());
        let mut text = [0; ECHO.len() + SIZE];
        text[..ECHO.len()].copy_from_slice(ECHO);
        text[ECHO.len()..].copy_from_slice(&seal.reply());
        self.ask_with(lane, Own::Seal(seal), Due::Anything, &text);
    }

    /// Whether a seal is what the lane waits for. What comes before it answers nothing.
    #[inline]
    pub(crate) fn is_sealed(&self, index: LaneId) -> bool {
        let lane = &self.lanes[index];
        lane.head != RequestId::NONE
            && lane.scanner.at_start()
            && matches!(self.requests[lane.head].role, Role::Own(Own::Seal(_)))
    }

    /// Bytes come while a seal is waited for; returns what follows it.
    pub(crate) fn sealed_received<'b>(&mut self, index: LaneId, bytes: &'b [u8]) -> &'b [u8] {
        let Lane { head, in_flight, .. } = self.lanes[index];
        let Role::Own(Own::Seal(seal)) = &mut self.requests[head].role else {
            unreachable!("the lane's head is a seal");
        };
        let before = usize::from(seal.matched);
        let (len, is_found) = seal.find(bytes);
        // Before all of it is written nobody but who guesses can say it.
        let is_end = is_found && in_flight > 0;
        let is_pure = before + len == usize::from(seal.matched);
        if !is_pure && !std::mem::replace(&mut seal.is_told, true) {
            self.notify_misfit(index, "no line end in an error", Sequel::Dropped, bytes);
        }
        if is_end {
            self.pop_answered(index);
            self.free_request(head);
        }
        &bytes[len..]
    }

    /// What the server is to say next if that is a seal: for tests, which play servers.
    pub fn seal_awaited(&self, conn: crate::base::id::ConnId) -> Option<Vec<u8>> {
        let lane = self.lane(self.lane_elsewhere(conn)?);
        match self.requests[(lane.in_flight > 0).then_some(lane.head)?].role {
            Role::Own(Own::Seal(seal)) => Some(seal.reply()[usize::from(seal.matched)..].to_vec()),
            _ => None,
        }
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
