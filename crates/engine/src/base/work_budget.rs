//! How much was done at a stretch, and what of it is put off.
//!
//! A request may be so large, or ask for so much, that a few of them together take longer than a turn
//! of the loop should, however fast each event is otherwise. What that takes goes by the bytes that
//! are looked at or written for it, and for a large request by its words, each of which may be a key
//! that is dealt to a server.
//!
//! What a turn has been told of is written at its end, so that a client with a small request waits for
//! all that others ask for in the same turn. A turn that has done its share of large requests therefore
//! puts others off; clients that wait so are let go on one after the other. The turn after it does none
//! at all: whoever came while it worked is served there, so that nobody waits for more than one share,
//! or one request that is larger.

use std::collections::VecDeque;

use crate::base::id::ConnId;

/// Some milliseconds of work.
const EFFORT_MAX: usize = 1 << 20;

/// What is shorter comes with one read, of which each client has one in a turn.
pub(crate) const LARGE_REQUEST: usize = 64 * 1024;

/// The share of a turn: words of large requests, which take some milliseconds.
const WORDS_MAX: usize = 1 << 16;

/// What was done since the last pause, the large requests of this turn, and those that are put off.
#[derive(Default)]
pub(crate) struct WorkBudget {
    /// Bytes since the last [`WorkBudget::rest`].
    spent: usize,
    words: usize,
    /// The turn before did its share.
    is_resting: bool,
    /// Those who were put off are being let go on.
    is_catching_up: bool,
    /// Clients whose next request is whole and waits for its turn, the first to come first.
    put_off: VecDeque<ConnId>,
}

impl WorkBudget {
    /// Gives the room back that only a peak needed.
    pub(crate) fn trim(&mut self) {
        if self.put_off.is_empty() {
            self.put_off = VecDeque::new();
        }
    }

    /// These bytes were looked at one by one, or written here.
    #[inline]
    pub(crate) fn spend(&mut self, bytes: usize) {
        self.spent = self.spent.saturating_add(bytes);
    }

    /// Whether so much was done since the last [`WorkBudget::rest`] that whoever waits for the end of
    /// the turn should be told that it goes on.
    #[inline]
    pub(crate) fn is_overspent(&self) -> bool {
        self.spent >= EFFORT_MAX
    }

    /// Another stretch begins.
    #[inline]
    pub(crate) fn rest(&mut self) {
        self.spent = 0;
    }

    /// Takes a large request of so many words on in this turn, if it may come now.
    pub(crate) fn takes_on(&mut self, words: usize) -> bool {
        let takes_on = !self.is_over();
        if takes_on {
            self.words += words;
        }
        takes_on
    }

    /// A client has to wait with a large request.
    pub(crate) fn put_off(&mut self, client: ConnId) {
        self.put_off.push_back(client);
    }

    /// Whether clients wait with large requests, behind what is to be written now.
    #[inline]
    pub(crate) fn has_put_off(&self) -> bool {
        !self.put_off.is_empty()
    }

    /// Whether clients that wait may go on in this turn.
    #[inline]
    pub(crate) fn may_catch_up(&self) -> bool {
        self.has_put_off() && !self.is_resting && !self.is_spent()
    }

    /// The next client that may go on, which overtakes nobody.
    pub(crate) fn catch_up(&mut self) -> Option<ConnId> {
        let next = if self.is_spent() { None } else { self.put_off.pop_front() };
        self.is_catching_up = next.is_some();
        next
    }

    /// Ends the turn.
    #[inline]
    pub(crate) fn end_turn(&mut self) {
        self.is_resting = self.is_spent();
        self.words = 0;
    }

    fn is_spent(&self) -> bool {
        self.words >= WORDS_MAX
    }

    /// Whether another large request has to wait. Nobody overtakes those who wait already.
    fn is_over(&self) -> bool {
        let is_behind = !self.is_catching_up && !self.put_off.is_empty();
        self.is_spent() || self.is_resting || is_behind
    }
}
