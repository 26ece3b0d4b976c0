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

use crate::base::id::{ClientId, ConnId};
use crate::engine::Engine;

/// Some milliseconds of work.
const EFFORT_MAX: usize = 1 << 20;

/// What is shorter comes with one read, of which each client has one in a turn.
const LARGE_REQUEST: usize = 64 * 1024;

/// The share of a turn: words of large requests, which take some milliseconds.
const WORDS_MAX: usize = 1 << 16;

/// The large requests of this turn, and those that are put off.
#[derive(Default)]
pub(crate) struct WorkBudget {
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

    fn is_spent(&self) -> bool {
        self.words >= WORDS_MAX
    }

    /// Whether another large request has to wait. Nobody overtakes those who wait already.
    fn is_over(&self) -> bool {
        let is_behind = !self.is_catching_up && !self.put_off.is_empty();
        self.is_spent() || self.is_resting || is_behind
    }
}

impl Engine {
    /// These bytes were looked at one by one, or written here.
    #[inline]
    pub(crate) fn spend(&mut self, bytes: usize) {
        self.work = self.work.saturating_add(bytes);
    }

    /// Whether so much was done since the last [`Engine::rest`] that whoever waits for the end of
    /// the turn should be told that it goes on.
    #[inline]
    pub fn has_overspent(&self) -> bool {
        self.work >= EFFORT_MAX
    }

    /// Another stretch begins.
    #[inline]
    pub fn rest(&mut self) {
        self.work = 0;
    }

    /// Whether a whole request of this length, of so many words, is not for this turn. Its client is
    /// resumed by itself then.
    #[inline]
    pub(crate) fn puts_off(&mut self, client: ClientId, len: usize, words: usize) -> bool {
        len >= LARGE_REQUEST && !self.must_wait(client, len) && self.puts_off_large(client, words)
    }

    #[inline(never)]
    fn puts_off_large(&mut self, client: ClientId, words: usize) -> bool {
        if !self.work_budget.is_over() {
            self.work_budget.words += words;
            return false;
        }
        let conn = self.client_conn(client);
        self.work_budget.put_off.push_back(conn);
        let client = &mut self.clients[client];
        // It is read on, up to a limit: its end is noticed, and the driver has nothing to do.
        (client.paused, client.resumable) = (true, true);
        true
    }

    /// Whether clients wait with large requests, behind what is to be written now.
    #[inline]
    pub fn has_put_off(&self) -> bool {
        !self.work_budget.put_off.is_empty()
    }

    /// Lets clients go on that were put off, as far as this turn's share goes, and ends the turn.
    #[inline]
    pub(crate) fn settle_work(&mut self) {
        if self.has_put_off() && !self.work_budget.is_resting && !self.work_budget.is_spent() {
            self.catch_up_on_work();
        }
        self.work_budget.is_resting = self.work_budget.is_spent();
        self.work_budget.words = 0;
    }

    #[cold]
    fn catch_up_on_work(&mut self) {
        self.work_budget.is_catching_up = true;
        while !self.work_budget.is_spent()
            && let Some(conn) = self.work_budget.put_off.pop_front()
        {
            if self.clients.is_current(conn.client(), conn.generation()) {
                self.resume(conn.client());
            }
        }
        self.work_budget.is_catching_up = false;
    }
}
