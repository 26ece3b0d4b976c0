//! Who clients are, and who the gateway is to servers.
//!
//! In the binary protocol both say so by SASL PLAIN, in text by a `set` whose value is user and
//! password, as memcached with `-Y` wants it.

use cashew_protocol::memcached::binary::{
    Opcode, RequestParser as BinaryParser, Response, Status, write_response,
};
use cashew_protocol::memcached::{RequestParser, Verb, words};

use crate::base::id::ClientId;
use crate::downstream::external_auth::Outside;
use crate::downstream::receive::Plan;
use crate::downstream::session::same_secret;
use crate::engine::Engine;
use crate::upstream::greeting::MECHANISM;

pub(super) const UNAUTHENTICATED: &[u8] = b"CLIENT_ERROR unauthenticated\r\n";
const AUTH_FAILURE: &[u8] = b"CLIENT_ERROR authentication failure\r\n";
/// Largest value of a client that is not known yet: user and password.
pub(super) const LOGIN_SIZE_MAX: u64 = 1024;

/// Longest name of a mechanism that memcached looks at.
const MECHANISM_SIZE_MAX: u32 = 32;

/// Why it is not said whether somebody is who it says.
enum Unknown {
    /// That is asked: the request is to be looked at again.
    Awaited,
    /// It may not have another connection, or nobody answers.
    Because(String),
}

impl Engine {
    /// Whether a user of the pool has that password, or is that elsewhere.
    fn knows(&mut self, client: ClientId, user: &[u8], password: &[u8]) -> Result<bool, Unknown> {
        if self.waits_to_log_in(client) {
            return Err(Unknown::Awaited);
        }
        if self.listener_of(client).has_users() {
            let known = self.listener_of(client).users.authenticate(user, password).cloned();
            match &known {
                Some(user) => {
                    if let Some(text) = self.refused_login(client, user.name()) {
                        self.audit_login(client, user.name().as_bytes(), Some("limit"));
                        return Err(Unknown::Because(text));
                    }
                    self.audit_login(client, user.name().as_bytes(), None);
                    self.become_user(client, known.clone());
                }
                None if self.listener_of(client).config.external_auth.is_some() => {
                    return self.knows_outside(client, user, password);
                }
                None => {
                    self.audit_login(client, user, Some("password"));
                    self.note_denial(client, "auth", b"AUTH", user);
                }
            }
            return Ok(known.is_some());
        }
        let listener = self.listener_of(client);
        let users = &listener.config.memcached.client_auth;
        // All are looked at, so that the time tells nothing.
        let is_known = users.iter().fold(false, |is_known, known| {
            let is_same = known.user.as_bytes() == user;
            is_known | (same_secret(known.password.as_bytes(), password) & is_same)
        });
        self.audit_login(client, user, (!is_known).then_some("password"));
        Ok(is_known)
    }

    fn knows_outside(
        &mut self,
        client: ClientId,
        name: &[u8],
        password: &[u8],
    ) -> Result<bool, Unknown> {
        match self.known_outside(client, name, password) {
            Outside::Awaited => Err(Unknown::Awaited),
            Outside::Unasked | Outside::Refused => {
                self.audit_login(client, name, Some("password"));
                self.note_denial(client, "auth", b"AUTH", name);
                Ok(false)
            }
            Outside::Failed(why) => {
                self.audit_login(client, name, Some("external"));
                Err(Unknown::Because(why.to_owned()))
            }
            Outside::User { user, until } => {
                if let Some(text) = self.refused_login(client, user.name()) {
                    self.audit_login(client, user.name().as_bytes(), Some("limit"));
                    return Err(Unknown::Because(text));
                }
                self.audit_outside_login(client, user.name(), name);
                self.become_user_until(client, user, until);
                Ok(true)
            }
        }
    }

    /// Takes a request of a client that has not logged in.
    pub(super) fn log_in_by_text(
        &mut self,
        client: ClientId,
        parser: &RequestParser,
        bytes: &[u8],
    ) -> Plan {
        let state = &self.clients[client];
        let is_owed = state.requests > 0 || state.modes.many.is_some();
        if is_owed && !self.listener_of(client).key_prefixes.is_empty() {
            // Its last login is over, and what it is owed is told with the names of whom it was.
            return Plan::Wait;
        }
        let refusal;
        let reply: &[u8] = match parser.data() {
            Some(data) if parser.verb() == Verb::Set => {
                let mut words = words(data.of(bytes));
                match (words.next(), words.next()) {
                    (Some(user), Some(password)) => match self.knows(client, user, password) {
                        Ok(true) => {
                            self.clients[client].session.authenticated = true;
                            b"STORED\r\n"
                        }
                        Ok(false) => AUTH_FAILURE,
                        Err(Unknown::Awaited) => return Plan::Wait,
                        Err(Unknown::Because(text)) => {
                            refusal = format!("SERVER_ERROR {text}\r\n").into_bytes();
                            &refusal
                        }
                    },
                    _ => b"CLIENT_ERROR bad authentication token format\r\n",
                }
            }
            _ => UNAUTHENTICATED,
        };
        self.answer(client, |out| out.extend_from_slice(reply));
        if reply == AUTH_FAILURE {
            self.wrong_password(client);
        }
        Plan::Done
    }

    /// Takes a request of SASL.
    pub(super) fn sasl(&mut self, client: ClientId, parser: &BinaryParser, bytes: &[u8]) -> Plan {
        let header = parser.header();
        let is_asked = {
            let listener = self.listener_of(client);
            listener.has_users() || !listener.config.memcached.client_auth.is_empty()
        };
        let mut status = Status::UnknownCommand;
        let mut value = &b""[..];
        let mut refusal = None;
        if is_asked {
            (status, value) = match parser.opcode() {
                Opcode::SaslList => (Status::Success, MECHANISM),
                _ if parser.key().len > MECHANISM_SIZE_MAX => (Status::Invalid, value),
                Opcode::SaslAuth => match self.is_plain_login(client, parser, bytes) {
                    Ok(true) => {
                        self.clients[client].session.authenticated = true;
                        (Status::Success, &b"Authenticated"[..])
                    }
                    Ok(false) => (Status::AuthError, value),
                    Err(Unknown::Awaited) => return Plan::Wait,
                    Err(Unknown::Because(text)) => {
                        refusal = Some(text);
                        (Status::TemporaryFailure, value)
                    }
                },
                // PLAIN has one step.
                _ => (Status::AuthError, value),
            };
        }
        if status == Status::AuthError {
            self.wrong_password(client);
        }
        let value = match &refusal {
            Some(text) => text.as_bytes(),
            None if status == Status::Success => value,
            None => status.text().as_bytes(),
        };
        let (opcode, opaque) = (header.opcode, header.opaque);
        let response = Response { opcode, status, opaque, key: b"", value };
        self.answer(client, |out| write_response(&response, out));
        Plan::Done
    }

    /// Whether this is who it should be: an identity, which is not looked at, user and password,
    /// with zeros between them.
    fn is_plain_login(
        &mut self,
        client: ClientId,
        parser: &BinaryParser,
        bytes: &[u8],
    ) -> Result<bool, Unknown> {
        let mut parts = parser.value().of(bytes).split(|&byte| byte == 0);
        let (_, user, password) = (parts.next(), parts.next(), parts.next());
        match user.zip(password) {
            Some((user, password))
                if parser.key().of(bytes) == MECHANISM && parts.next().is_none() =>
            {
                self.knows(client, user, password)
            }
            _ => Ok(false),
        }
    }
}
