//! How much of a large reply has to be there before it is read.
//!
//! A server's connection that is read whenever something comes wakes the worker for each piece that
//! the server happens to write, and makes the server write small pieces. What is read early is not
//! passed on early: see [`STREAM_WRITE_MIN`]. So while a connection's one value goes on for longer than
//! that, the kernel keeps what comes until it is as much.

use crate::base::action::Action;
use crate::base::time::Time;
use crate::upstream::lane::Lane;

/// A reply that is passed on while it arrives is written in pieces of at least this size.
pub(crate) const STREAM_WRITE_MIN: u64 = 512 * 1024;

/// What the driver was told of a lane's connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LowWater {
    /// Tell of every byte.
    #[default]
    Byte,
    /// Of as much as is worth a write. At least as much of a value is still to come.
    Write,
    /// Of every byte until the end of the value: it comes too slowly.
    Trickle,
}

impl Lane {
    /// Something came of a reply that is passed on while it arrives, or that began like one. Returns what
    /// the driver is to be told.
    #[inline]
    pub(crate) fn adjust_low_water(&mut self) -> Option<Action> {
        let goes_on = self.is_private && self.scanner.remaining() >= STREAM_WRITE_MIN;
        let (next, bytes) = match (self.low_water, goes_on) {
            (LowWater::Byte, true) => (LowWater::Write, STREAM_WRITE_MIN as u32),
            (LowWater::Write, false) => (LowWater::Byte, 1),
            (LowWater::Trickle, false) => {
                self.low_water = LowWater::Byte;
                return None;
            }
            (LowWater::Byte, false) | (LowWater::Write | LowWater::Trickle, true) => return None,
        };
        self.low_water = next;
        Some(Action::SetLowWater { conn: self.conn, bytes })
    }

    /// Nothing was told of the lane for too long. If something may have come all the same, it is told of
    /// from now on, as the driver is to know, and counts as if it had come now.
    pub(crate) fn may_trickle(&mut self, now: Time) -> Option<Action> {
        if self.low_water != LowWater::Write {
            return None;
        }
        self.low_water = LowWater::Trickle;
        self.progress_at = now;
        Some(Action::SetLowWater { conn: self.conn, bytes: 1 })
    }
}
