//! Asks elsewhere who a client is, and goes by the answer: see [`crate::downstream::external_auth`].

use std::sync::Arc;

use cashew_acl::User;
use cashew_config::snapshot::Protocol;
use cashew_metrics::{PoolCounter, PoolGauge};
use sha1_smol::Sha1;

use crate::base::action::{Action, Login};
use crate::base::id::{ClientId, ListenerId};
use crate::base::time::Time;
use crate::base::timers::Timer;
use crate::downstream::external_auth::{Authenticated, Outside, Question, Verdict};
use crate::downstream::listener::DestinationNumber;
use crate::engine::Engine;

/// Longer ones are nobody's.
const NAME_MAX: usize = 256;
const PASSWORD_MAX: usize = 4096;
/// How often it is looked whether a client whose login is over has been answered.
const OWED_MS: u64 = 10;
/// How much later than it should an answer may come: whoever asks keeps to the time itself, once while the question
/// waits for its turn, and once while it is asked.
const GRACE_MS: u64 = 1000;

const NO_ANSWER: &str = "the external authoriser does not answer";
const NO_USER: &str = "the external authoriser names a user who is not configured here, or is off";

fn digest(name: &[u8], password: &[u8]) -> [u8; 20] {
    let mut digest = Sha1::new();
    digest.update(&(name.len() as u64).to_be_bytes());
    digest.update(name);
    digest.update(password);
    digest.digest().bytes()
}

impl Engine {
    /// Who a client is that gives this name and password, if the port has no such user and somebody can be asked.
    #[cold]
    pub(crate) fn known_outside(
        &mut self,
        client: ClientId,
        name: &[u8],
        password: &[u8],
    ) -> Outside {
        let question = self.clients[client].modes.end_question();
        let login = digest(name, password);
        let question = question.filter(|question| question.login == login);
        let listener = self.clients[client].listener;
        let Some(auth) = &self.listeners[listener].config.external_auth else {
            return Outside::Unasked;
        };
        let timeout_ms = auth.timeout_ms;
        if self.listeners[listener].users.named(name).is_some() {
            return Outside::Unasked;
        }
        if let Some(question) = question {
            return match question.answer {
                Some(verdict) => self.outside(client, verdict),
                None => Outside::Failed(NO_ANSWER),
            };
        }
        let is_short = name.len() <= NAME_MAX && password.len() <= PASSWORD_MAX;
        let is_text = is_short && std::str::from_utf8(password).is_ok();
        let Some(name) = std::str::from_utf8(name).ok().filter(|_| is_text) else {
            return Outside::Refused;
        };
        let asked = Box::new(Login { name: name.to_owned(), password: password.to_vec() });
        self.last_auth_ticket += 1;
        let (ticket, conn) = (self.last_auth_ticket, self.client_conn(client));
        self.actions.push_back(Action::Authenticate { conn, ticket, listener, login: asked });
        let metrics = self.listeners[listener].metrics;
        self.metrics.add_pool(metrics, PoolCounter::ExternalAuthAsked, 1);
        let question = Box::new(Question { ticket, login, answer: None });
        self.clients[client].modes.enter().question = Some(question);
        self.slow_down(client, 2 * timeout_ms + GRACE_MS);
        Outside::Awaited
    }

    fn outside(&self, client: ClientId, verdict: Verdict) -> Outside {
        match verdict {
            Verdict::Refused => Outside::Refused,
            Verdict::NoAnswer => Outside::Failed(NO_ANSWER),
            Verdict::User { user, expires_in_ms } => {
                let found = self.listener_of(client).users.named(user.as_bytes());
                match found.filter(|user| user.is_on()) {
                    Some(user) => Outside::User {
                        user: Arc::clone(user),
                        until: expires_in_ms.map(|millis| self.now.plus_millis(millis)),
                    },
                    None => Outside::Failed(NO_USER),
                }
            }
        }
    }

    /// Whether clients of the port can be this user.
    pub fn has_user(&self, listener: ListenerId, user: &str) -> bool {
        self.listeners[listener].users.named(user.as_bytes()).is_some_and(|user| user.is_on())
    }

    /// What became of a question. The client may be gone, or ask something else by now.
    pub fn handle_authenticated(&mut self, pool: &str, answer: Authenticated, now: Time) {
        self.now = now;
        let Authenticated { conn, ticket, verdict, is_cached } = answer;
        if let Some(listener) = self.listener_named(pool) {
            let metrics = self.listeners[listener].metrics;
            let is_lost = is_cached || verdict == Verdict::NoAnswer;
            for (counter, counts) in [
                (PoolCounter::ExternalAuthRefused, verdict == Verdict::Refused),
                (PoolCounter::ExternalAuthOutages, is_lost),
                (PoolCounter::ExternalAuthCached, is_cached),
            ] {
                self.metrics.add_pool(metrics, counter, u64::from(counts));
            }
            self.metrics.set_pool(metrics, PoolGauge::ExternalAuthLost, u64::from(is_lost));
        }
        let client = conn.client();
        if conn.is_lane() || !self.clients.is_current(client, conn.generation()) {
            return;
        }
        let modes = &mut self.clients[client].modes;
        if let Some(question) = modes.question().filter(|question| question.ticket == ticket) {
            question.answer = Some(verdict);
            modes.end_slow_down();
            self.unblock(client);
        }
    }

    /// The client is this user, until it has to say again who it is.
    pub(crate) fn become_user_until(
        &mut self,
        client: ClientId,
        user: Arc<User>,
        until: Option<Time>,
    ) {
        self.become_user(client, Some(user));
        if until.is_some() {
            self.change_profile(client, |profile| profile.expires_at = until);
            self.await_expiry(client);
        }
    }

    pub(crate) fn forget_expiry(&mut self, client: ClientId) {
        if self.clients[client].session.expires_at().is_some() {
            self.change_profile(client, |profile| profile.expires_at = None);
        }
    }

    /// Arms the timer of a client that is somebody until then.
    pub(crate) fn await_expiry(&mut self, client: ClientId) {
        if let Some(at) = self.clients[client].session.expires_at() {
            let (_, generation) = self.clients.entry(client);
            self.timers.arm(at, Timer::Expiry { client, generation });
        }
    }

    pub(crate) fn expires(&self, client: ClientId, generation: u32, at: Time) -> bool {
        self.clients.is_current(client, generation)
            && self.clients[client].session.expires_at() == Some(at)
    }

    /// The client has to say again who it is. What it has asked is answered; who gets what others send, or is in the
    /// middle of a transaction, is closed, since that would go on.
    pub(crate) fn expire(&mut self, client: ClientId, generation: u32, at: Time) {
        if !self.expires(client, generation, at) {
            return;
        }
        let modes = &self.clients[client].modes;
        if modes.transaction.is_some() || modes.subscriber.is_some() || modes.monitor.is_some() {
            // Before it is somebody else, whose requests may go elsewhere.
            self.finish(client);
            if self.clients.is_retired(client) {
                return;
            }
        }
        let state = &mut self.clients[client];
        state.session.authenticated = false;
        let is_owed = state.requests > 0 || state.modes.many.is_some();
        let is_memcached = self.listeners[state.listener].protocol == Protocol::Memcached;
        let goes_elsewhere = state.destination != DestinationNumber::OWN;
        let has_prefix = is_memcached && state.session.key_prefix().is_some();
        if is_owed && (has_prefix || goes_elsewhere) {
            // What it is owed is told with the names of whom it was, and goes on where it went. Requests of Redis
            // know the names by themselves.
            let again = self.now.plus_millis(OWED_MS);
            self.change_profile(client, |profile| profile.expires_at = Some(again));
            self.await_expiry(client);
        } else {
            let user = self.listener_of(client).first_user();
            self.become_user(client, user);
            self.clients[client].session.authenticated = false;
            // It may have waited until whom it was might ask more.
            self.unblock(client);
        }
        self.update_off_fast_path(client);
    }
}
