//! How much of a large reply has to be there before it is read.
//!
//! A server's connection that is read whenever something comes wakes the worker for each piece that
//! the server happens to write, and makes the server write small pieces. What is read early is not
//! passed on early: see [`STREAM_WRITE_MIN`]. So while a connection's one value goes on for longer than
//! that, the kernel keeps what comes until it is as much.

use crate::base::action::Action;
use crate::base::id::LaneId;
use crate::engine::Engine;
use crate::exchange::deliver::STREAM_WRITE_MIN;

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

impl Engine {
    /// Something came of a reply that is passed on while it arrives, or that began like one.
    #[inline]
    pub(crate) fn adjust_low_water(&mut self, index: LaneId) {
        let lane = &mut self.lanes[index];
        let goes_on = lane.is_private && lane.scanner.remaining() >= STREAM_WRITE_MIN;
        let conn = lane.conn;
        match (lane.low_water, goes_on) {
            (LowWater::Byte, true) => {
                lane.low_water = LowWater::Write;
                let bytes = STREAM_WRITE_MIN as u32;
                self.actions.push_back(Action::SetLowWater { conn, bytes });
            }
            (LowWater::Write, false) => {
                lane.low_water = LowWater::Byte;
                self.actions.push_back(Action::SetLowWater { conn, bytes: 1 });
            }
            (LowWater::Trickle, false) => lane.low_water = LowWater::Byte,
            (LowWater::Byte, false) | (LowWater::Write | LowWater::Trickle, true) => {}
        }
    }

    /// Nothing was told of the lane for too long. Returns whether something may have come all the
    /// same: then it is told of from now on, and counts as if it had come now.
    pub(crate) fn may_trickle(&mut self, index: LaneId) -> bool {
        let lane = &mut self.lanes[index];
        if lane.low_water != LowWater::Write {
            return false;
        }
        lane.low_water = LowWater::Trickle;
        lane.progress_at = self.now;
        let conn = lane.conn;
        self.actions.push_back(Action::SetLowWater { conn, bytes: 1 });
        true
    }
}
