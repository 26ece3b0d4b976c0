//! What one client does that concerns several owners: the client, its listener, timers, the driver.
//!
//! What each of them makes of it is theirs: [`crate::downstream::notice`],
//! [`crate::downstream::password_guessing`], [`crate::downstream::window`], [`crate::base::work_budget`].

use cashew_metrics::{PoolCounter, UserCounter};
use cashew_protocol::Outcome;

use crate::base::action::{Action, Notice};
use crate::base::buffer::LARGE;
use crate::base::id::{ClientId, RequestId};
use crate::base::time::Time;
use crate::base::timers::Timer;
use crate::base::work_budget::LARGE_REQUEST;
use crate::engine::Engine;

impl Engine {
    /// A reply for a client is at hand, or all that matters of its start.
    #[inline]
    pub(crate) fn note_reply(&mut self, client: ClientId, reply: &[u8]) {
        let client = &mut self.clients[client];
        let form = client.session.wire_protocol.reply_form();
        if Outcome::is_error(form, reply) {
            client.totals.errors = client.totals.errors.saturating_add(1);
        }
    }

    /// Adds what clients have done to what their users have, where there are users; once a second.
    pub(crate) fn publish_users(&mut self) {
        if self.listeners.iter().all(|listener| listener.user_rows.is_empty()) {
            return;
        }
        let mut clients = std::mem::take(&mut self.scratch.clients);
        clients.clear();
        clients.extend(self.clients.indices());
        clients.drain(..).for_each(|client| self.publish_user(client));
        self.scratch.clients = clients;
    }

    /// Adds what a client has done since the last time to what its user has.
    pub(crate) fn publish_user(&mut self, client: ClientId) {
        let client = &mut self.clients[client];
        let listener = &self.listeners[client.listener];
        if listener.user_rows.is_empty() {
            return;
        }
        let (now, published) = (client.totals, client.published.get_or_insert_default());
        let before = std::mem::replace(&mut **published, now);
        if now == before {
            return;
        }
        let row = listener.user_row(client.session.user_name());
        for (counter, n) in [
            (UserCounter::Requests, now.requests - before.requests),
            (UserCounter::Errors, u64::from(now.errors - before.errors)),
            (UserCounter::BytesReceived, now.received - before.received),
            (UserCounter::BytesSent, now.sent - before.sent),
        ] {
            self.metrics.add_user(listener.metrics, row, counter, n);
        }
        if now.slowest_us > before.slowest_us {
            let slowest = u64::from(now.slowest_us);
            self.metrics.raise_user(listener.metrics, row, UserCounter::SlowestUs, slowest);
        }
    }

    /// A client does something that an operator should hear of.
    #[cold]
    pub(crate) fn notice(&mut self, client: ClientId, notice: Notice) {
        let listener = self.clients[client].listener;
        if let Some(times) = self.listeners[listener].notices.count(notice, self.now) {
            let conn = self.client_conn(client);
            self.actions.push_back(Action::Notice { listener, conn, notice, times });
        }
    }

    /// A client gave a wrong user or password.
    #[cold]
    pub(crate) fn wrong_password(&mut self, client: ClientId) {
        let listener = self.clients[client].listener;
        self.metrics.add_pool(self.listeners[listener].metrics, PoolCounter::AuthFailures, 1);
        self.notice(client, Notice::WrongPassword);
        if let Some(wait_ms) = self.clients[client].count_wrong_password() {
            self.slow_down(client, wait_ms);
        }
    }

    /// Takes no further request of the client for so long.
    fn slow_down(&mut self, client: ClientId, wait_ms: u64) {
        let until = self.now.plus_millis(wait_ms);
        self.clients[client].modes.enter().slowed_until = Some(until);
        self.timers.arm(until, Timer::Slowed { client, generation: self.clients.entry(client).1 });
    }

    /// A client may have waited long enough.
    pub(crate) fn end_slow_down(&mut self, client: ClientId, generation: u32, at: Time) {
        if self.clients.is_current(client, generation)
            && self.clients[client].modes.slowed_until.is_some_and(|until| until <= at)
        {
            self.clients[client].modes.end_slow_down();
            self.unblock(client);
        }
    }

    /// These bytes were looked at one by one, or written here.
    #[inline]
    pub(crate) fn spend(&mut self, bytes: usize) {
        self.work_budget.spend(bytes);
    }

    /// Whether so much was done since the last [`Engine::rest`] that whoever waits for the end of
    /// the turn should be told that it goes on.
    #[inline]
    pub fn has_overspent(&self) -> bool {
        self.work_budget.is_overspent()
    }

    /// Another stretch begins.
    #[inline]
    pub fn rest(&mut self) {
        self.work_budget.rest();
    }

    /// Whether clients wait with large requests, behind what is to be written now.
    #[inline]
    pub fn has_put_off(&self) -> bool {
        self.work_budget.has_put_off()
    }

    /// Whether a whole request of this length, of so many words, is not for this turn. Its client is
    /// resumed by itself then.
    #[inline]
    pub(crate) fn puts_off(&mut self, client: ClientId, len: usize, words: usize) -> bool {
        len >= LARGE_REQUEST && !self.must_wait(client, len) && self.puts_off_large(client, words)
    }

    #[inline(never)]
    fn puts_off_large(&mut self, client: ClientId, words: usize) -> bool {
        if self.work_budget.takes_on(words) {
            return false;
        }
        self.work_budget.put_off(self.client_conn(client));
        let client = &mut self.clients[client];
        // It is read on, up to a limit: its end is noticed, and the driver has nothing to do.
        (client.paused, client.resumable) = (true, true);
        true
    }

    /// Lets clients go on that were put off, as far as this turn's share goes, and ends the turn.
    #[inline]
    pub(crate) fn settle_work(&mut self) {
        if self.work_budget.may_catch_up() {
            self.catch_up_on_work();
        }
        self.work_budget.end_turn();
    }

    #[cold]
    fn catch_up_on_work(&mut self) {
        while let Some(conn) = self.work_budget.catch_up() {
            if self.clients.is_current(conn.client(), conn.generation()) {
                self.resume(conn.client());
            }
        }
    }

    /// How many requests of a client may be unanswered now.
    #[cold]
    pub(crate) fn pipeline_max(&self, index: ClientId) -> u32 {
        let client = &self.clients[index];
        client.pipeline_max(&self.listeners[client.listener].limits, self.activity.waiting)
    }

    /// Gives a client that has as many requests in flight as its window has room for a larger one, if
    /// there is room for it. Returns whether it did.
    #[inline]
    pub(crate) fn widen(&mut self, index: ClientId) -> bool {
        let client = &mut self.clients[index];
        client.fills_window()
            && client.widen(&self.listeners[client.listener].limits, self.activity.waiting)
    }

    /// The client has to wait for replies before it may ask more.
    #[cold]
    pub(crate) fn wait_at_window(&mut self, index: ClientId) {
        let client = &mut self.clients[index];
        let listener = &self.listeners[client.listener];
        if client.wait_at_window(&listener.limits) {
            self.metrics.add_pool(listener.metrics, PoolCounter::PipelinesPaused, 1);
        }
    }

    /// The client goes on after it waited for replies.
    #[cold]
    pub(crate) fn leave_window(&mut self, index: ClientId) {
        let client = &mut self.clients[index];
        client.leave_window(&self.listeners[client.listener].limits, self.activity.waiting);
    }

    /// A client gets a reply of so many bytes, or its header says that it will be of so many.
    #[inline]
    pub(crate) fn learn_window(&mut self, request: RequestId, size: u64) {
        if size >= LARGE as u64 {
            self.narrow_window(request, size);
        }
    }

    #[cold]
    fn narrow_window(&mut self, request: RequestId, size: u64) {
        let index = self.requests.waiting_client(request);
        if index != ClientId::NONE {
            let client = &mut self.clients[index];
            client.narrow_window(&self.listeners[client.listener].limits, size);
        }
    }
}
