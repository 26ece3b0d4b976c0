//! Virtual time and the agenda.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use cashew_engine::Time;

use crate::network::Side;
use crate::resharding::Passing;

/// A future event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A gateway's loop wakes up.
    Tick {
        gateway: u32,
    },
    /// Something arrives at one end of a connection.
    Arrive {
        conn: u32,
        at: Side,
    },
    /// There is room again for one end to write.
    Writable {
        conn: u32,
        at: Side,
    },
    /// A step of a gateway's attempt to connect.
    Connect {
        attempt: u32,
    },
    /// A client does something.
    Client {
        client: u32,
    },
    /// A server handles a connection.
    Serve {
        conn: u32,
    },
    /// A message between a gateway and the coordinator arrives.
    Mail {
        letter: u32,
    },
    /// A fault occurs.
    Fault,
    /// Clients are ordered to another gateway.
    Shift,
    /// The configuration changes.
    Reload,
    /// Another server of a group becomes its primary.
    Promote,
    /// A replica gets what its primary has written.
    Replicate {
        letter: u32,
    },
    /// A server recovers, if it has not already.
    Recover {
        server: u32,
    },
    /// Something happens to the cluster, or comes to an end.
    Reshard,
    Pass {
        passing: Passing,
    },
    /// One more key of a slot moves.
    MoveKey {
        slot: u16,
    },
    /// A node hears what has become of the cluster.
    Gossip {
        node: u32,
    },
    /// A node's map is put into effect.
    Map,
}

/// Microseconds since the run began, and an agenda. Events of one instant happen in the order in
/// which they were planned.
#[derive(Default)]
pub(crate) struct Clock {
    now: u64,
    planned: u64,
    agenda: BinaryHeap<Reverse<(u64, u64, Event)>>,
}

impl Clock {
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// The time that engines get. They must never see time zero, which means "at once".
    pub(crate) fn time(&self) -> Time {
        Time::from_micros(self.now + 1)
    }

    /// The instant at which [`Clock::time`] is `time`.
    pub(crate) fn instant(time: Time) -> u64 {
        time.as_micros().saturating_sub(1)
    }

    pub(crate) fn plan(&mut self, at: u64, event: Event) {
        self.planned += 1;
        self.agenda.push(Reverse((at.max(self.now), self.planned, event)));
    }

    /// Moves on to the next event, if it is due by `end`; else to `end`.
    pub(crate) fn next(&mut self, end: u64) -> Option<Event> {
        match self.agenda.peek() {
            Some(Reverse((at, ..))) if *at <= end => {}
            _ => {
                self.now = self.now.max(end);
                return None;
            }
        }
        let Reverse((at, _, event)) = self.agenda.pop()?;
        self.now = at;
        Some(event)
    }
}
