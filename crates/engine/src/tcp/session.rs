//! A client's connection, a server's, and what is on its way between them.

use std::net::SocketAddr;

use crate::base::buffer::Output;
use crate::base::id::{BackendId, ConnId, ListenerId, ServerId};
use crate::base::time::Time;

pub(crate) struct Session {
    /// Unique in the instance.
    pub(super) id: u64,
    pub(super) listener: ListenerId,
    pub(super) backend: BackendId,
    /// [`ServerId::NONE`] if it has none, or one that is not configured any more.
    pub(super) server: ServerId,
    pub(super) stage: Stage,
    pub(super) client: End,
    pub(super) to_server: End,
    /// Servers that could not be reached.
    pub(super) tried: Vec<ServerId>,
    pub(super) source: Option<Source>,
    /// It counts for `client_connections`.
    pub(super) has_place: bool,
    pub(super) is_in_line: bool,
    /// Neither side is read, since there is too little memory.
    pub(super) is_throttled: bool,
    /// It cannot go to another process.
    pub(super) is_tied: bool,
    pub(super) handoff: Handoff,
    /// When the client came, in microseconds, by which others may have begun.
    pub(super) since_us: i64,
    /// When a place must be found.
    pub(super) until: Time,
    pub(super) connects_since: Time,
    /// When bytes last came or went.
    pub(super) active_at: Time,
    /// When it is looked at next.
    pub(super) deadline: Time,
    /// Bytes from the client and to it.
    pub(super) received: u64,
    pub(super) sent: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Whose the connection is, is not known yet, or it is not secured yet.
    Opening,
    Waiting,
    Connecting,
    Open,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handoff {
    No,
    /// The driver is to let go of its connections.
    HandedOff,
}

/// Where a client comes from, and where it has connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    pub client: SocketAddr,
    pub to: SocketAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

impl Side {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// One of a session's connections.
pub(crate) struct End {
    pub(super) conn: ConnId,
    /// What is to be written to it.
    pub(crate) output: Output,
    /// The driver has it.
    pub(super) is_there: bool,
    pub(super) is_dirty: bool,
    pub(super) is_paused: bool,
    /// The peer sends nothing more.
    pub(super) has_ended: bool,
    /// The peer was told that nothing more comes.
    pub(super) is_told_end: bool,
    /// It was reset, or failed.
    pub(super) is_broken: bool,
}

impl End {
    pub(super) fn new(is_there: bool) -> Self {
        Self {
            conn: ConnId::from_token(u64::MAX),
            output: Output::default(),
            is_there,
            is_dirty: false,
            is_paused: false,
            has_ended: false,
            is_told_end: false,
            is_broken: false,
        }
    }
}

impl Session {
    pub(super) fn new(
        id: u64,
        listener: ListenerId,
        backend: BackendId,
        has_place: bool,
        now: Time,
    ) -> Self {
        Self {
            id,
            listener,
            backend,
            server: ServerId::NONE,
            stage: Stage::Opening,
            client: End::new(true),
            to_server: End::new(false),
            tried: Vec::new(),
            source: None,
            has_place,
            is_in_line: false,
            is_throttled: false,
            is_tied: false,
            handoff: Handoff::No,
            since_us: now.as_micros() as i64,
            until: now,
            connects_since: now,
            active_at: now,
            deadline: Time::NEVER,
            received: 0,
            sent: 0,
        }
    }

    pub(super) fn end(&self, side: Side) -> &End {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.to_server,
        }
    }

    pub(super) fn end_mut(&mut self, side: Side) -> &mut End {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.to_server,
        }
    }

    /// The side that is left once the other one was reset.
    pub(super) fn left_of_reset(&self) -> Option<Side> {
        [Side::Client, Side::Server].into_iter().find(|&side| self.end(side.other()).is_broken)
    }

    pub(super) fn age_us(&self, now: Time) -> u64 {
        (now.as_micros() as i64 - self.since_us).max(0) as u64
    }

    pub(crate) fn listener(&self) -> ListenerId {
        self.listener
    }

    /// What is to be written to that connection of the two.
    pub(crate) fn output_of(&self, conn: ConnId) -> &Output {
        match conn.is_lane() {
            true => &self.to_server.output,
            false => &self.client.output,
        }
    }
}
