//! Logins of clients that somebody else is asked about.

use std::sync::Arc;
use std::time::Duration;

use cashew_authoriser::{Authoriser, Question, Verdict as Known};
use cashew_driver::Driver;
use cashew_engine::{Authenticated, ConnId, ListenerId, Login, Verdict};
use cashew_metrics::EventKind;
use zeroize::Zeroizing;

use super::Worker;
use crate::core::WATCH_AUTHORISER;
use crate::place::place;

impl<D: Driver> Worker<D> {
    pub(super) fn authenticate(
        &mut self,
        (conn, ticket): (ConnId, u64),
        listener: ListenerId,
        login: Login,
    ) {
        let password = Zeroizing::new(login.password);
        let config = self.core.engine.listener_config(listener);
        let pool = config.name.clone();
        let auth = config.external_auth.clone().map(Arc::new);
        let address = place(&self.driver, &self.core.told, &config.listen, conn).peer;
        if self.authoriser.is_none() {
            let started = Authoriser::start().and_then(|authoriser| {
                self.driver.watch(WATCH_AUTHORISER, authoriser.wake())?;
                Ok(authoriser)
            });
            match started {
                Ok(authoriser) => self.authoriser = Some(authoriser),
                Err(error) => tracing::error!("nobody can be asked who clients are: {error}"),
            }
        }
        match (&self.authoriser, auth) {
            (Some(authoriser), Some(auth)) => {
                let key = (conn, ticket);
                let question = Question { key, pool, name: login.name, password, address };
                authoriser.ask(question, &auth);
            }
            _ => {
                let verdict = Verdict::NoAnswer;
                let answer = Authenticated { conn, ticket, verdict, is_cached: false };
                self.core.engine.handle_authenticated(&pool, answer, self.core.now);
            }
        }
    }

    #[inline(never)]
    pub(super) fn take_verdicts(&mut self) {
        let answers = self.authoriser.as_mut().map(Authoriser::answers).unwrap_or_default();
        for answer in answers {
            let (conn, ticket) = answer.key;
            let verdict = match answer.verdict {
                Known::Refused => Verdict::Refused,
                Known::NoAnswer => Verdict::NoAnswer,
                Known::User { user, expires_in } => {
                    self.note_unknown_user(&answer.pool, &user);
                    let millis = |span: Duration| span.as_millis().try_into().unwrap_or(u64::MAX);
                    Verdict::User { user, expires_in_ms: expires_in.map(millis) }
                }
            };
            let is_cached = answer.is_cached;
            let known = Authenticated { conn, ticket, verdict, is_cached };
            self.core.engine.handle_authenticated(&answer.pool, known, self.core.now);
        }
    }

    /// Tells of a user whom only the authoriser knows, now and then.
    fn note_unknown_user(&mut self, pool: &str, user: &str) {
        let engine = &self.core.engine;
        let is_unknown = engine.listener_named(pool).is_some_and(|at| !engine.has_user(at, user));
        if is_unknown && self.core.odd_users.is_due(self.core.now) {
            tracing::warn!(
                kind = EventKind::AuthoriserOdd.name(),
                pool,
                "pool {pool}: the external authoriser names the user {user:?}, who is not configured here or is \
                 off: its clients get errors"
            );
        }
    }
}
