//! What clients do is noted for the audit log: see [`crate::downstream::audit`]. Values are not, nor any argument but
//! keys, so no secret can be in it.

use std::sync::Arc;

use cashew_metrics::{AUDITED_KEY_MAX, DeedOutcome};
use cashew_protocol::Span;
use cashew_protocol::redis::Command;

use crate::base::id::ClientId;
use crate::downstream::audit::{AuditRules, Audited};
use crate::downstream::listener::Listener;
use crate::engine::Engine;

/// Bytes of a user that somebody says to be.
const NAME_MAX: usize = 64;

impl Engine {
    /// Tells by these rules from here on.
    pub(crate) fn follow_audit(&mut self, rules: Option<AuditRules>) {
        let rules = rules.map(Arc::new);
        for listener in self.listeners.ids() {
            self.listeners[listener].set_audit(rules.clone());
            self.update_held(listener);
        }
    }

    /// Notes a command that is let through, with its keys.
    #[cold]
    pub(crate) fn audit_command<'k>(
        &mut self,
        client: ClientId,
        command: &Command,
        mut keys: impl ExactSizeIterator<Item = &'k [u8]>,
    ) {
        let Some(rules) = self.listener_of(client).audit.clone() else { return };
        if !rules.has(command) {
            return;
        }
        let share = u64::from(rules.share_percent);
        // What is looked at must not decide what else is done by chance.
        if share < 100 && self.observer.rng.next() % 100 >= share {
            return;
        }
        let count = keys.len() as u32;
        let key = keys.next().unwrap_or_default();
        let audited = Audited { keys: count, ..audited(command.name, key) };
        self.audit(client, audited);
    }

    /// The same for a request of Redis.
    #[cold]
    pub(crate) fn audit_redis(
        &mut self,
        client: ClientId,
        command: &'static Command,
        bytes: &[u8],
        args: &[Span],
    ) {
        if self.listener_of(client).audit.as_ref().is_none_or(|rules| !rules.has(command)) {
            return;
        }
        let mut keys = std::mem::take(&mut self.scratch.keys);
        keys.clear();
        if command.keys(bytes, args, &mut keys).is_err() {
            keys.clear();
        }
        self.audit_command(client, command, keys.iter().map(|key| key.of(bytes)));
        keys.clear();
        self.scratch.keys = keys;
    }

    /// Notes a command that is not let through.
    #[cold]
    pub(crate) fn audit_denial(
        &mut self,
        client: ClientId,
        command: &str,
        key: &[u8],
        reason: &'static str,
    ) {
        if self.listener_of(client).audit.as_ref().is_some_and(|rules| rules.denied) {
            let keys = u32::from(!key.is_empty());
            let outcome = DeedOutcome::Denied;
            self.audit(client, Audited { outcome, keys, reason, ..audited(command, key) });
        }
    }

    /// Notes that a client is that user now, or why it is not.
    #[cold]
    pub(crate) fn audit_login(
        &mut self,
        client: ClientId,
        user: &[u8],
        failure: Option<&'static str>,
    ) {
        if self.listener_of(client).audit.as_ref().is_some_and(|rules| rules.logins) {
            let outcome = match failure {
                None => DeedOutcome::LoggedIn,
                Some(_) => DeedOutcome::LoginFailed,
            };
            let reason = failure.unwrap_or_default();
            let user = user[..user.len().min(NAME_MAX)].to_vec();
            self.audit(client, Audited { outcome, reason, user, ..Audited::default() });
        }
    }

    fn audit(&mut self, client: ClientId, audited: Audited) {
        let state = &self.clients[client];
        let listener = &self.listeners[state.listener];
        let is_login = matches!(audited.outcome, DeedOutcome::LoggedIn | DeedOutcome::LoginFailed);
        let user = match listener.has_users() && !is_login {
            true => state.session.user_name().as_bytes().to_vec(),
            false => audited.user,
        };
        let audited = Audited {
            pool: listener.config.name.clone(),
            client: Some(self.client_conn(client)),
            client_id: state.session.id,
            client_name: state.session.name().unwrap_or_default().to_vec(),
            user,
            ..audited
        };
        self.audit_queue.push(audited);
    }

    /// Whether there is something for [`Engine::take_audited`].
    #[inline]
    pub fn has_audited(&self) -> bool {
        !self.audit_queue.is_empty()
    }

    /// What clients did that the audit log is to tell, and how much there was no room for. To be called before
    /// connections are closed, as their addresses are known until then.
    pub fn take_audited(&mut self) -> (Vec<Audited>, u64) {
        self.audit_queue.take()
    }
}

impl Listener {
    fn set_audit(&mut self, rules: Option<Arc<AuditRules>>) {
        self.audit = rules;
        self.decide_policy();
    }
}

fn audited(command: &str, key: &[u8]) -> Audited {
    Audited {
        command: command.replace('|', " ").to_ascii_uppercase(),
        key: key[..key.len().min(AUDITED_KEY_MAX)].to_vec(),
        ..Audited::default()
    }
}
