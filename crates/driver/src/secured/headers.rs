//! Connections that are to begin with a header of the PROXY protocol, until it has come.

use std::collections::HashMap;
use std::time::Instant;

use cashew_protocol::proxy::{self, Header};

use crate::{Token, Unintroduced};

#[derive(Default)]
pub(super) struct Headers {
    waiting: HashMap<u64, Waiting>,
    /// Those to be closed, and what they are told.
    failed: Vec<(Token, Unintroduced, &'static [u8])>,
}

struct Waiting {
    /// What has come of the header.
    bytes: Vec<u8>,
    deadline: Instant,
    /// Not read at present, so that nothing can come.
    is_paused: bool,
    /// About to be closed: nothing more is read.
    is_failed: bool,
}

/// What reading has led to.
pub(super) enum Progress {
    /// No header is waited for.
    None,
    /// Nothing is to be made of what has come.
    Partial,
    Complete {
        header: Header,
        deadline: Instant,
    },
}

impl Headers {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether nobody is to be closed.
    pub(super) fn is_at_rest(&self) -> bool {
        self.failed.is_empty()
    }

    pub(super) fn expect(&mut self, conn: Token, deadline: Instant) {
        let waiting = Waiting { bytes: Vec::new(), deadline, is_paused: false, is_failed: false };
        self.waiting.insert(conn.0, waiting);
    }

    /// Takes the header, or a part of it, from the start of `bytes`.
    pub(super) fn read(&mut self, conn: Token, bytes: &mut Vec<u8>) -> Progress {
        let Some(waiting) = self.waiting.get_mut(&conn.0) else { return Progress::None };
        if waiting.is_failed {
            return Progress::Partial;
        }
        let before = waiting.bytes.len();
        // No more is needed for any header: the rest is not copied.
        let room = proxy::HEADER_SIZE_MAX - before;
        waiting.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        match proxy::parse(&waiting.bytes) {
            Ok(None) => Progress::Partial,
            Ok(Some((header, len))) => {
                bytes.drain(..len - before);
                let deadline = waiting.deadline;
                self.waiting.remove(&conn.0);
                Progress::Complete { header, deadline }
            }
            Err(proxy::Malformed) => {
                self.fail(conn, Unintroduced::Malformed);
                Progress::Partial
            }
        }
    }

    /// Lists it to be closed, if its header is waited for. Returns whether it is.
    pub(super) fn fail(&mut self, conn: Token, why: Unintroduced) -> bool {
        let Some(waiting) = self.waiting.get_mut(&conn.0) else { return false };
        let why = match why {
            Unintroduced::Closed if !waiting.bytes.is_empty() => Unintroduced::Malformed,
            why => why,
        };
        if !std::mem::replace(&mut waiting.is_failed, true) {
            self.failed.push((conn, why, b""));
        }
        true
    }

    /// Lists one to be closed whose header has come.
    pub(super) fn refuse(&mut self, conn: Token, words: &'static [u8]) {
        let (bytes, deadline) = (Vec::new(), Instant::now());
        self.waiting.insert(conn.0, Waiting { bytes, deadline, is_paused: false, is_failed: true });
        self.failed.push((conn, Unintroduced::Refused, words));
    }

    pub(super) fn set_paused(&mut self, conn: Token, is_paused: bool) {
        if let Some(waiting) = self.waiting.get_mut(&conn.0) {
            waiting.is_paused = is_paused;
        }
    }

    /// The time is up, if its header is waited for. Returns until when it is waited for on if it was not read.
    pub(super) fn give_up(&mut self, conn: Token, later: Instant) -> Option<Instant> {
        let waiting = self.waiting.get_mut(&conn.0)?;
        if waiting.is_paused {
            waiting.deadline = later;
            return Some(later);
        }
        self.fail(conn, Unintroduced::TimedOut);
        None
    }

    /// Whether its header is waited for.
    pub(super) fn is_waiting(&self, conn: Token) -> bool {
        self.waiting.contains_key(&conn.0)
    }

    pub(super) fn take_failed(&mut self) -> Vec<(Token, Unintroduced, &'static [u8])> {
        std::mem::take(&mut self.failed)
    }

    /// Returns when the header was to be there, if it was waited for.
    pub(super) fn forget(&mut self, conn: Token) -> Option<Instant> {
        self.waiting.remove(&conn.0).map(|waiting| waiting.deadline)
    }
}
