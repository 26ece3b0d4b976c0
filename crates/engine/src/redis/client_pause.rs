//! CLIENT PAUSE: the clients of a pool are held back, with all that they ask or with what writes.
//!
//! What is held back is not dispatched: it stays in front of its client's input, no time runs for it,
//! and what has been sent before is answered. A pause of everything holds the pool as a change of its
//! ring does. One of writes makes its clients special, so that what they ask is looked at one by one.

use cashew_protocol::redis::{self, Access, Command, Local, Lookup, Rule, SessionRule};
use cashew_protocol::resp::{Parsed, RequestParser};

use crate::base::id::{ClientId, ListenerId};
use crate::base::time::Time;
use crate::base::timers::Timer;
use crate::downstream::client::State;
use crate::downstream::listener::DestinationNumber;
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::redis::state::ListenerState;
use crate::upstream::exclusive::Turn;

/// Longest request that may pass a pause of everything.
const PASSING_SIZE_MAX: usize = 64 * 1024;

/// For how long the clients of a pool are held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientPause {
    pub until: Time,
    /// What reads goes on.
    pub writes_only: bool,
}

impl ClientPause {
    /// Both at once, as Redis has it.
    fn and(self, other: Self) -> Self {
        Self {
            until: self.until.max(other.until),
            writes_only: self.writes_only && other.writes_only,
        }
    }
}

impl ListenerState {
    pub(crate) fn holds_all_back(&self) -> bool {
        self.client_pause.is_some_and(|pause| !pause.writes_only)
    }

    #[inline]
    pub(crate) fn holds_writes_back(&self) -> bool {
        self.client_pause.is_some_and(|pause| pause.writes_only)
    }
}

impl Engine {
    /// How the clients of a pool are held back, if they are.
    pub fn client_pause(&self, listener: ListenerId) -> Option<ClientPause> {
        self.redis_listeners[listener].client_pause
    }

    pub(crate) fn prolong_client_pause(&mut self, listener: ListenerId, pause: ClientPause) {
        let before = self.client_pause(listener);
        self.set_client_pause(listener, Some(before.map_or(pause, |it| it.and(pause))), self.now);
    }

    /// From now on the clients of the pool are held back like this, or not any more.
    pub fn set_client_pause(
        &mut self,
        listener: ListenerId,
        pause: Option<ClientPause>,
        now: Time,
    ) {
        self.now = now;
        let pause = pause.filter(|pause| pause.until > now);
        let before = std::mem::replace(&mut self.redis_listeners[listener].client_pause, pause);
        self.update_held(listener);
        if let Some(pause) = pause {
            self.timers.arm(pause.until, Timer::ClientPause);
        }
        if before.map(|it| it.writes_only) == pause.map(|it| it.writes_only) {
            return;
        }
        for client in self.clients.indices().collect::<Vec<ClientId>>() {
            if self.clients[client].listener == listener {
                self.look_again(client);
            }
        }
    }

    /// What is held back of its client's has changed.
    fn look_again(&mut self, client: ClientId) {
        self.update_off_fast_path(client);
        if self.clients[client].modes.turn == Turn::HeldBack {
            self.clients[client].modes.end_turn();
        }
        self.unblock(client);
    }

    /// Ends the pauses that have lasted long enough.
    pub(crate) fn end_client_pauses(&mut self) {
        for listener in self.listeners.ids() {
            if self.client_pause(listener).is_some_and(|pause| pause.until <= self.now) {
                self.set_client_pause(listener, None, self.now);
            }
        }
    }

    /// Whether its requests may take the fast path has perhaps changed.
    pub(crate) fn update_off_fast_path(&mut self, client: ClientId) {
        let is_metered = self.meters.get(client).is_some();
        let state = &mut self.clients[client];
        let is_special = state.is_odd()
            || is_metered
            || self.redis_listeners[state.listener].holds_writes_back();
        let goes_elsewhere = state.destination != DestinationNumber::OWN;
        state.off_fast_path = is_special || goes_elsewhere;
        state.goes_elsewhere = goes_elsewhere && !is_special;
    }

    /// Whether all that holds the client back is CLIENT PAUSE, and what it asks next goes on all the
    /// same: who may end the pause, and what it has to say before it can.
    #[inline]
    pub(crate) fn passes_pause(&self, client: ClientId, bytes: &[u8]) -> bool {
        let listener = self.clients[client].listener;
        self.destination_of(client).held
            && self.redis_listeners[listener].holds_all_back()
            && self.is_about_pause(client, bytes)
    }

    #[cold]
    fn is_about_pause(&self, client: ClientId, bytes: &[u8]) -> bool {
        let state = &self.clients[client];
        let is_held_otherwise = self.backends[self.backend_of(client)].is_held();
        if is_held_otherwise || state.state == State::Closing || self.is_blocked_itself(client) {
            return false;
        }
        let mut parser = RequestParser::default();
        let Parsed::Complete { len } = parser.parse(bytes, PASSING_SIZE_MAX) else { return false };
        let text = parser.inline_encoded().unwrap_or(&bytes[..len]);
        let is_about_clients = match redis::find(text, parser.args()) {
            Lookup::Found(command) | Lookup::WrongArity(command) => is_about_clients(command),
            // Libraries ask for what only newer servers have.
            Lookup::UnknownSubcommand(container) => container.name == "client",
            Lookup::UnknownCommand => false,
        };
        is_about_clients && !self.is_queueing(client)
    }

    /// Whether a command of a special client is to wait for the end of a pause.
    pub(crate) fn is_postponed(&self, client: ClientId, command: &Command) -> bool {
        let state = &self.clients[client];
        if !self.redis_listeners[state.listener].holds_writes_back() || !state.session.authenticated
        {
            return false;
        }
        match command.rule {
            Rule::Session(SessionRule::Exec) => {
                state.modes.transaction.as_ref().is_some_and(|it| it.is_writing())
            }
            _ => may_write(command),
        }
    }

    /// Holds a request back that is to wait for the end of a pause.
    #[cold]
    pub(crate) fn postpone(&mut self, client: ClientId) -> Plan {
        self.leave_line(client);
        self.clients[client].modes.enter().turn = Turn::HeldBack;
        Plan::Wait
    }

    /// Whether the client waits for the end of a pause.
    pub(crate) fn is_held_back(&self, client: ClientId) -> bool {
        let state = &self.clients[client];
        state.paused
            && !state.throttled
            && (state.modes.turn == Turn::HeldBack
                || self.redis_listeners[state.listener].holds_all_back())
    }
}

/// Whether it ends a pause, tells of clients, or is what a library says before that on a connection
/// that it has just made.
fn is_about_clients(command: &Command) -> bool {
    matches!(
        command.rule,
        Rule::Local(Local::Auth | Local::Client | Local::Hello | Local::Quit | Local::Select)
    )
}

/// Whether replicas may get to know of it, in which Redis sees a write.
pub(crate) fn may_write(command: &Command) -> bool {
    command.access == Access::Write
        || command.rule == Rule::Publish
        || matches!(command.name, "eval" | "evalsha" | "fcall" | "pfcount")
}
