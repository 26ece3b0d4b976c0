//! What sessions make the worker hold, and what becomes of them when that is too much: as with other clients, those that
//! hold most are not read, and closed if that is not enough. Who they are, [`crate::downstream`] says.

use cashew_metrics::PoolCounter;

use crate::base::action::Action;
use crate::base::id::{ConnId, ListenerId, PairId};
use crate::tcp::session::{Handoff, Session, Side, Stage};
use crate::tcp::{Context, Tcp};

/// A session by its client's connection, and the bytes that go with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holding {
    pub(crate) conn: ConnId,
    pub(crate) listener: ListenerId,
    pub(crate) id: u64,
    pub(crate) bytes: usize,
    pub(crate) is_throttled: bool,
}

impl Session {
    /// Bytes of the buffers of both sides.
    fn holding(&self) -> usize {
        self.client.output.capacity() + self.to_server.output.capacity()
    }
}

impl Tcp {
    /// Of all sessions that do not leave for another process just now.
    pub(crate) fn holdings(&self) -> impl Iterator<Item = Holding> {
        let sessions = self.sessions.indices().map(|index| &self.sessions[index]);
        sessions.filter(|session| session.handoff == Handoff::No).map(|session| Holding {
            conn: session.client.conn,
            listener: session.listener,
            id: session.id,
            bytes: session.holding(),
            is_throttled: session.is_throttled,
        })
    }

    /// Reads neither side of a session any more. One whose client is not known yet goes on: it holds nothing.
    pub(crate) fn throttle(&mut self, cx: &mut Context<'_>, conn: ConnId) {
        let Some((index, _)) = self.find(conn) else { return };
        let session = &mut self.sessions[index];
        let is_in_place = session.stage != Stage::Opening && session.handoff == Handoff::No;
        if !is_in_place || std::mem::replace(&mut session.is_throttled, true) {
            return;
        }
        cx.count(session.listener, PoolCounter::ClientsThrottled, 1);
        self.hold_back(cx, index);
    }

    /// Reads no side that there is, of a session that is throttled.
    pub(super) fn hold_back(&mut self, cx: &mut Context<'_>, index: PairId) {
        let session = &mut self.sessions[index];
        let has_server = session.stage == Stage::Open;
        for side in [Side::Client, Side::Server] {
            let end = session.end_mut(side);
            let is_read = end.is_there && (has_server || side == Side::Client);
            if is_read && !std::mem::replace(&mut end.is_paused, true) {
                cx.actions.push_back(Action::PauseRead { conn: end.conn });
            }
        }
    }

    /// Reads on where there is room.
    pub(crate) fn read_again(&mut self, cx: &mut Context<'_>, conn: ConnId) {
        if let Some((index, _)) = self.find(conn)
            && std::mem::take(&mut self.sessions[index].is_throttled)
        {
            self.let_on(cx, index);
        }
    }

    /// Resets both sides of a session. Returns whether it was there.
    pub(crate) fn shed(&mut self, cx: &mut Context<'_>, conn: ConnId) -> bool {
        let Some((index, _)) = self.find(conn) else { return false };
        let session = &self.sessions[index];
        cx.count(session.listener, PoolCounter::ClientsShed, 1);
        let has_server = session.stage == Stage::Open;
        for side in [Side::Client, Side::Server] {
            let end = self.sessions[index].end(side);
            if end.is_there && (has_server || side == Side::Client) {
                cx.actions.push_back(Action::Reset { conn: end.conn });
                self.release(index, side);
            }
        }
        self.end(cx, index);
        true
    }
}
