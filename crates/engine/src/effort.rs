//! How much was done at a stretch.
//!
//! A request may be so large, or ask for so much, that a few of them together take longer than a turn
//! of the loop should, however fast each event is otherwise. What that takes goes by the bytes that
//! are looked at or written for it.

use crate::engine::Engine;

/// Some milliseconds of work.
const EFFORT_MAX: usize = 1 << 20;

impl Engine {
    /// These bytes were looked at one by one, or written here.
    #[inline]
    pub(crate) fn exert(&mut self, bytes: usize) {
        self.effort = self.effort.saturating_add(bytes);
    }

    /// Whether so much was done since the last [`Engine::rest`] that whoever waits for the end of
    /// the turn should be told that it goes on.
    #[inline]
    pub fn has_toiled(&self) -> bool {
        self.effort >= EFFORT_MAX
    }

    /// Another stretch begins.
    #[inline]
    pub fn rest(&mut self) {
        self.effort = 0;
    }
}
