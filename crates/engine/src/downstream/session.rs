//! What a Redis client agrees on with its connection: who it is, which protocol version it speaks,
//! and which database it has.
//!
//! The latter two decide which lanes its requests take. They change only while it is owed nothing,
//! as what follows must not overtake what is on its way.

use std::borrow::Cow;
use std::sync::Arc;

use cashew_acl::User;
use cashew_metrics::PoolCounter;
use cashew_protocol::Span;
use cashew_protocol::redis::Command;
use cashew_protocol::resp::{self, Version, encode};

use crate::base::id::{BackendId, ClientId, ConnId, LaneId};
use crate::base::time::Time;
use crate::downstream::client::{Client, Profile, Selected, Session, Skip, State, Wishes};
use crate::downstream::external_auth::Outside;
use crate::downstream::listener::Destination;
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::upstream::backend::Backend;
use crate::upstream::session_params::{SessionParams, WireProtocol};

/// The Redis whose behaviour the gateway's own answers follow; clients decide by it what they may
/// use.
pub(crate) const REDIS_VERSION: &str = "7.0.15";

/// How long after a server did not speak RESP3 clients are told so, before it is tried again.
const DIALECT_REFUSED_MS: u64 = 60_000;

const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the \
                           default user. Are you sure your configuration is correct?";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NO_PROTO: &str = "NOPROTO unsupported protocol version";
pub(crate) const NO_VARIANT: &str =
    "ERR too many databases are in use through this gateway at the moment";
pub(crate) const NO_DATABASE: &str = "ERR DB index is out of range";

/// What HELLO asks for.
#[derive(Default)]
struct Hello<'b> {
    version: Option<Version>,
    user: Option<(&'b [u8], &'b [u8])>,
    name: Option<&'b [u8]>,
}

/// Why a client is not who it says.
pub(crate) enum NotLoggedIn {
    /// That is asked: the request is to be looked at again.
    Awaited,
    Because(Cow<'static, str>),
}

impl From<&'static str> for NotLoggedIn {
    fn from(why: &'static str) -> Self {
        Self::Because(why.into())
    }
}

impl From<String> for NotLoggedIn {
    fn from(why: String) -> Self {
        Self::Because(why.into())
    }
}

/// Whether a client has what it asked for.
enum Agreed {
    Yes,
    /// When it is owed nothing any more.
    Later,
}

impl Engine {
    /// The version that the client is answered in.
    pub(crate) fn resp_of(&self, client: ClientId) -> Version {
        self.clients[client].session.wire_protocol.resp()
    }

    /// Checks a password. A wrong one takes back what an earlier right one gave, as in twemproxy.
    pub(crate) fn authenticate(
        &mut self,
        client: ClientId,
        user: Option<&[u8]>,
        password: &[u8],
    ) -> Result<(), NotLoggedIn> {
        let listener = self.clients[client].listener;
        if self.listeners[listener].has_users() {
            return self.log_in(client, user, password);
        }
        let right = match (&self.listeners[listener].auth, user) {
            (None, None) => {
                return Err(NO_PASSWORD.into());
            }
            (None, Some(user)) => user == b"default",
            (Some(expected), user) => {
                let user_ok = user.is_none_or(|user| user == b"default");
                user_ok & same_secret(expected.as_bytes(), password)
            }
        };
        self.clients[client].session.authenticated =
            right || self.listeners[listener].auth.is_none();
        self.audit_login(client, user.unwrap_or(b"default"), (!right).then_some("password"));
        if right {
            Ok(())
        } else {
            self.wrong_password(client);
            Err(WRONG_PASSWORD.into())
        }
    }

    /// Has the client be a user of its port, if that is the password. Otherwise it stays who it is, as
    /// in Redis.
    fn log_in(
        &mut self,
        client: ClientId,
        user: Option<&[u8]>,
        password: &[u8],
    ) -> Result<(), NotLoggedIn> {
        if self.waits_to_log_in(client) {
            return Err(NotLoggedIn::Awaited);
        }
        let users = &self.listener_of(client).users;
        if user.is_none() && users.open_default().is_some() {
            return Err(NO_PASSWORD.into());
        }
        let name = user.unwrap_or(b"default");
        match users.authenticate(name, password).cloned() {
            None if self.listener_of(client).config.external_auth.is_some() => {
                self.log_in_outside(client, name, password)
            }
            Some(user) => match self.refused_login(client, user.name()) {
                Some(text) => {
                    self.audit_login(client, name, Some("limit"));
                    Err(format!("ERR {text}").into())
                }
                None => {
                    self.audit_login(client, name, None);
                    self.become_user(client, Some(user));
                    Ok(())
                }
            },
            None => Err(self.refuse_login(client, name)),
        }
    }

    /// Whether the client is owed something that another user's requests must not overtake, as they would go
    /// elsewhere.
    pub(crate) fn waits_to_log_in(&self, client: ClientId) -> bool {
        let Client { requests, modes, .. } = &self.clients[client];
        self.listener_of(client).has_user_routes() && (*requests > 0 || modes.many.is_some())
    }

    fn refuse_login(&mut self, client: ClientId, name: &[u8]) -> NotLoggedIn {
        self.audit_login(client, name, Some("password"));
        self.note_denial(client, "auth", b"AUTH", name);
        self.wrong_password(client);
        WRONG_PASSWORD.into()
    }

    /// The same for one whom no user here has that password.
    fn log_in_outside(
        &mut self,
        client: ClientId,
        name: &[u8],
        password: &[u8],
    ) -> Result<(), NotLoggedIn> {
        match self.known_outside(client, name, password) {
            Outside::Awaited => Err(NotLoggedIn::Awaited),
            Outside::Unasked | Outside::Refused => Err(self.refuse_login(client, name)),
            Outside::Failed(why) => {
                self.audit_login(client, name, Some("external"));
                Err(format!("ERR {why}").into())
            }
            Outside::User { user, until } => match self.refused_login(client, user.name()) {
                Some(text) => {
                    self.audit_login(client, user.name().as_bytes(), Some("limit"));
                    Err(format!("ERR {text}").into())
                }
                None => {
                    self.audit_outside_login(client, user.name(), name);
                    self.become_user_until(client, user, until);
                    Ok(())
                }
            },
        }
    }

    /// A client has proved before its first request that it has one of these names. It is the first user of its port
    /// that has one, and stays who it was if none has, or if that one has all the connections that it may.
    pub fn handle_identified(&mut self, conn: ConnId, names: &[String], now: Time) {
        self.now = now;
        if conn.is_lane() || !self.clients.is_current(conn.client(), conn.generation()) {
            return;
        }
        let listener = self.listener_of(conn.client());
        let tls = listener.config.tls.as_ref();
        let meant: Vec<&str> = match tls {
            Some(tls) => tls.client_names.users(names).collect(),
            None => names.iter().map(String::as_str).collect(),
        };
        let mut users = meant.iter().filter_map(|name| listener.users.named(name.as_bytes()));
        let user = users.find(|user| user.is_on()).cloned();
        let Some(user) = user.filter(|_| listener.has_users()) else { return };
        let is_refused = self.refused_login(conn.client(), user.name()).is_some();
        self.audit_login(conn.client(), user.name().as_bytes(), is_refused.then_some("limit"));
        if !is_refused {
            self.become_user(conn.client(), Some(user));
        }
    }

    /// The client is this user from here on, without an end.
    pub(crate) fn become_user(&mut self, client: ClientId, user: Option<Arc<User>>) {
        self.clients[client].session.authenticated = true;
        self.clients[client].modes.end_question();
        self.forget_expiry(client);
        self.set_user(client, user);
        self.update_off_fast_path(client);
    }

    fn set_user(&mut self, client: ClientId, user: Option<Arc<User>>) {
        if user.is_some() || self.clients[client].session.user().is_some() {
            // What it did before was done by whom it was.
            self.publish_user(client);
            let (listener, state) = (self.listener_of(client), &self.clients[client].session);
            let reads = state.user().and_then(|user| listener.reads_of(user.name()));
            self.change_profile(client, |profile| profile.user = user);
            self.meter(client);
            self.follow_destination(client);
            self.follow_user_reads(client, reads);
            self.follow_tracking(client);
        }
    }

    /// Has the client's requests go where its user's go from here on. What it is owed is answered before. Who
    /// cannot be served there as it has agreed is closed, and so is who is subscribed to something elsewhere.
    fn follow_destination(&mut self, client: ClientId) {
        let Client { listener, ref session, destination: before, state, .. } = self.clients[client];
        let destination = self.listeners[listener].destination_of(session.user());
        // Who asks nothing more has no other place than that of what it still has.
        if destination == before || state == State::Closing {
            return;
        }
        let (backend, keyless) = (self.backend_of(client), self.keyless_backend(client));
        let is_subscriber = self.leave_behind(client, backend, Some(keyless));
        let state = &mut self.clients[client];
        let variant = std::mem::take(&mut state.variant);
        state.destination = destination;
        state.fenced |= state.requests > 0;
        self.leave_variant(backend, variant);
        self.standpoints.forget(client);
        self.write_marks.carry(client);
        self.settle_there(client);
        if is_subscriber {
            self.cut_client(client, PoolCounter::ClientErr);
        }
    }

    /// A client is to go elsewhere than to `stood`: nothing of it stays there but what is to be answered. What it has
    /// begun for a transaction is void, and subscriptions at `keyless` are ended. Returns whether there were any: who
    /// had some is to be closed.
    pub(crate) fn leave_behind(
        &mut self,
        client: ClientId,
        stood: BackendId,
        keyless: Option<BackendId>,
    ) -> bool {
        self.leave_line_at(client, stood);
        self.abandon_transaction(client);
        self.clients[client].modes.take_sent_back();
        self.tours.remove(&client);
        let Some(keyless) = keyless else { return false };
        let Some(subscriber) = self.clients[client].modes.end_subscriber() else { return false };
        self.forget_subscriber(client, keyless, *subscriber);
        true
    }

    /// Gives a client lanes of where its requests go now. Who has agreed on what is not there is closed.
    #[cold]
    pub(crate) fn settle_there(&mut self, client: ClientId) {
        if !self.has_its_database(client) || !self.follow_session(client) {
            self.finish(client);
        }
        self.update_off_fast_path(client);
    }

    /// Whether the database that the client has selected may be selected where its requests go.
    pub(crate) fn has_its_database(&self, client: ClientId) -> bool {
        let number = self.clients[client].session.database.number();
        number.is_none_or(|number| self.destination_of(client).has_database(number))
    }

    /// Why a client cannot become a user now whose requests go elsewhere.
    pub(crate) fn refused_destination(&self, client: ClientId, name: &str) -> Option<String> {
        let Client { listener, ref session, ref modes, destination: before, .. } =
            self.clients[client];
        let listener = &self.listeners[listener];
        let number = listener.destination_named(name);
        if number == before {
            return None;
        }
        let to = listener.destination(number);
        let speaks_resp3 = session.wire_protocol == WireProtocol::Resp3;
        let why = match session.database.number() {
            _ if modes.subscriber.is_some() => "a subscriber",
            _ if modes.transaction.is_some() => "a client with a transaction or WATCH",
            Some(index) if !to.has_database(index) => "a client with this database",
            _ if speaks_resp3 && !self.may_speak_resp3(to.backend) => "a client that speaks RESP3",
            _ => return None,
        };
        Some(format!("{why} cannot become user '{name}', whose requests go elsewhere"))
    }

    /// Whether none of the backend's servers has said lately that it does not speak RESP3.
    fn may_speak_resp3(&self, backend: BackendId) -> bool {
        self.backends[backend].no_resp3_until <= self.now
    }

    /// Notes for ACL LOG what the client was denied, as this user.
    pub(crate) fn note_denial(
        &mut self,
        client: ClientId,
        reason: &'static str,
        object: &[u8],
        user: &[u8],
    ) {
        let context = if self.is_queueing(client) { "multi" } else { "toplevel" };
        let Client { listener, session, .. } = &self.clients[client];
        let (by, log) = ((session.id, self.now), &mut self.listeners[*listener].acl_log);
        log.add((reason, context), object, user, by);
    }

    /// SELECT index
    pub(crate) fn select(&mut self, client: ClientId, index: &[u8]) -> Plan {
        let wire_protocol = self.clients[client].session.wire_protocol;
        let agreed = match self.destination_of(client).database_named(index) {
            Ok(database) => self.agree(client, wire_protocol, database.into()),
            Err(text) => return self.reply_error(client, &text),
        };
        match agreed {
            Ok(Agreed::Yes) => self.say(client, b"+OK\r\n"),
            Ok(Agreed::Later) => Plan::Wait,
            Err(text) => self.reply_error(client, text),
        }
    }

    /// Whether the command is about a database that clients may not select.
    pub(crate) fn names_other_database(
        &self,
        client: ClientId,
        command: &Command,
        bytes: &[u8],
        args: &[Span],
    ) -> bool {
        let arg = |at: usize| args.get(at).map(|span| span.of(bytes));
        let to = self.destination_of(client);
        let is_other = |text: Option<&[u8]>| {
            // What is no number is for the server to refuse.
            let index = text.and_then(resp::integer).and_then(|index| i32::try_from(index).ok());
            index.is_some_and(|index| !to.has_database(u32::try_from(index).unwrap_or(u32::MAX)))
        };
        match command.name {
            "move" => is_other(arg(2)),
            "swapdb" => is_other(arg(1)) || is_other(arg(2)),
            "copy" => {
                let is_db = |at: &usize| arg(*at).is_some_and(|a| a.eq_ignore_ascii_case(b"db"));
                (3..args.len()).find(is_db).is_some_and(|at| is_other(arg(at + 1)))
            }
            _ => false,
        }
    }

    /// HELLO [protover [AUTH user password] [SETNAME name]]
    pub(crate) fn hello(&mut self, client: ClientId, bytes: &[u8], args: &[Span]) -> Plan {
        let hello = match Hello::parse(args[1..].iter().map(|span| span.of(bytes))) {
            Ok(hello) => hello,
            Err(text) => return self.reply_error(client, &text),
        };
        // Who will be somebody else is served where that one's requests go.
        let listener = self.listener_of(client);
        let user = hello.user.and_then(|(user, _)| std::str::from_utf8(user).ok());
        let named = user.filter(|user| listener.users.named(user.as_bytes()).is_some());
        let backend = match named.map(|user| listener.destination_named(user)) {
            Some(to) if to != self.clients[client].destination => listener.destination(to).backend,
            _ => self.backend_of(client),
        };
        let Client { session, requests, .. } = &self.clients[client];
        let database = session.database;
        let wire_protocol = match hello.version {
            None => session.wire_protocol,
            Some(Version::Resp2) => WireProtocol::Resp2,
            Some(Version::Resp3) if !self.may_speak_resp3(backend) => {
                return self.reply_error(client, NO_PROTO);
            }
            Some(Version::Resp3) => WireProtocol::Resp3,
        };
        if wire_protocol != session.wire_protocol && *requests > 0 {
            return Plan::Wait;
        }
        if let Some((user, password)) = hello.user
            && let Err(why) = self.authenticate(client, Some(user), password)
        {
            return match why {
                NotLoggedIn::Awaited => Plan::Wait,
                NotLoggedIn::Because(text) => self.reply_error(client, &text),
            };
        }
        if !self.clients[client].session.authenticated {
            return self.reply_error(
                client,
                "NOAUTH HELLO must be called with the client already authenticated, otherwise \
                 the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the \
                 client and select the RESP protocol version at the same time",
            );
        }
        // Somebody else says who a client is that is known elsewhere.
        let is_new = wire_protocol != self.clients[client].session.wire_protocol;
        if is_new
            && wire_protocol == WireProtocol::Resp3
            && !self.may_speak_resp3(self.backend_of(client))
        {
            return self.reply_error(client, NO_PROTO);
        }
        if let Err(text) = self.agree(client, wire_protocol, database) {
            return self.reply_error(client, text);
        }
        if let Some(name) = hello.name {
            self.set_name(client, name);
        }
        if is_new {
            // What it was not told in RESP2.
            self.follow_tracking(client);
        }
        let (id, resp) = (self.clients[client].session.id, wire_protocol.resp());
        let mode: &[u8] = if self.poses(client) { b"cluster" } else { b"standalone" };
        let version = self.listener_of(client).config.redis_version.clone();
        self.reply_with(client, |out| write_greeting(out, (resp, &version), id, mode))
    }

    /// Has the client speak a dialect and have a database from here on.
    fn agree(
        &mut self,
        client: ClientId,
        wire_protocol: WireProtocol,
        database: Selected,
    ) -> Result<Agreed, &'static str> {
        let backend = self.backend_of(client);
        let Client { listener, destination, requests, session, .. } = &mut self.clients[client];
        let is_routed = self.listeners[*listener].destination(*destination).route.is_some();
        let backend = &self.backends[backend];
        let before = backend.variant_of(session);
        let old = (session.wire_protocol, session.database);
        (session.wire_protocol, session.database) = (wire_protocol, database);
        // Other backends of a route may have other databases to begin with.
        if backend.variant_of(session) == before && (!is_routed || old == (wire_protocol, database))
        {
            return Ok(Agreed::Yes);
        }
        let is_owed = *requests > 0;
        if !is_owed && self.follow_session(client) {
            return Ok(Agreed::Yes);
        }
        let session = &mut self.clients[client].session;
        (session.wire_protocol, session.database) = old;
        if is_owed { Ok(Agreed::Later) } else { Err(NO_VARIANT) }
    }

    /// Gives a client that is owed nothing lanes of the dialect and the database it has agreed on.
    /// `false` if its pool has as many variants as it may have, and all are in use.
    pub(crate) fn follow_session(&mut self, client: ClientId) -> bool {
        let backend = self.backend_of(client);
        let wanted = self.backends[backend].variant_of(&self.clients[client].session);
        let Some(index) = self.variant(backend, wanted) else { return false };
        self.enter_variant(backend, index);
        let before = std::mem::replace(&mut self.clients[client].variant, index);
        self.leave_variant(backend, before);
        true
    }

    /// Has the client, which is owed nothing, start over: what RESET does to the session. The name of
    /// its library stays, as that does not change.
    pub(crate) fn reset_session(&mut self, client: ClientId) {
        self.end_monitor(client);
        self.clients[client].modes.end_tracking();
        let Client { listener, session, requests, noreply, skip, reads, .. } =
            &mut self.clients[client];
        *reads = None;
        debug_assert_eq!(*requests, 0, "what is on its way was asked in another dialect");
        // Whether this very request is answered is not for it to change.
        if *skip != Skip::This {
            (*noreply, *skip) = (false, Skip::No);
        }
        session.wishes = Wishes::default();
        let listener = &self.listeners[*listener];
        session.wire_protocol =
            self.backends[listener.destination.backend].params_set[0].wire_protocol;
        session.database = Selected::NONE;
        session.authenticated = listener.is_open();
        let user = listener.first_user();
        self.forget_expiry(client);
        self.set_user(client, user);
        self.set_name(client, b"");
        self.update_off_fast_path(client);
        let is_followed = self.follow_session(client);
        debug_assert!(is_followed, "there is always the first variant");
    }

    /// A server does not speak RESP3: so it is for the clients of its pool, or their requests would
    /// fail or not by their keys. Those who speak it have to agree on something else.
    pub(crate) fn wire_protocol_refused(&mut self, lane: LaneId) {
        let backend = self.lanes[lane].backend;
        let until = self.now.plus_millis(DIALECT_REFUSED_MS);
        self.backends[backend].no_resp3_until = until;
        for client in self.clients.indices().collect::<Vec<ClientId>>() {
            let session = &self.clients[client].session;
            if self.backend_of(client) == backend && session.wire_protocol == WireProtocol::Resp3 {
                self.finish(client);
            }
        }
    }
}

impl Backend {
    /// What lanes a client of this session takes.
    pub(crate) fn variant_of(&self, session: &Session) -> SessionParams {
        SessionParams {
            wire_protocol: session.wire_protocol,
            database: self.database_of(session.database),
        }
    }

    pub(crate) fn database_of(&self, selected: Selected) -> u32 {
        selected.number().unwrap_or(self.params_set[0].database)
    }
}

impl Destination {
    /// Whether clients may have this database.
    fn has_database(&self, index: u32) -> bool {
        match self.databases {
            1 => index == self.redis_db,
            databases => index < databases,
        }
    }

    /// What a client has that selects this; `None` is the pool's own. Where there is only that one,
    /// it is also what clients without a word about it have, so that it is called 0 as well.
    pub(crate) fn database_named(&self, text: &[u8]) -> Result<Option<u32>, String> {
        let number = database_index(text)?;
        let index = u32::try_from(number).map_err(|_| NO_DATABASE)?;
        match self.databases {
            1 if index == 0 || index == self.redis_db => Ok(None),
            1 => Err(NO_DATABASE.to_owned()),
            databases if index < databases => Ok(Some(index)),
            _ => Err(NO_DATABASE.to_owned()),
        }
    }
}

/// A number as Redis takes it where a database is to be named.
fn database_index(text: &[u8]) -> Result<i32, String> {
    let number = resp::integer(text).ok_or("ERR value is not an integer or out of range")?;
    i32::try_from(number).map_err(|_| {
        let (least, most) = (i32::MIN, i32::MAX);
        format!("ERR value is out of range, value must between {least} and {most}")
    })
}

impl<'b> Hello<'b> {
    fn parse(mut args: impl Iterator<Item = &'b [u8]>) -> Result<Self, String> {
        let version = match args.next().map(resp::integer) {
            None => None,
            Some(Some(2)) => Some(Version::Resp2),
            Some(Some(3)) => Some(Version::Resp3),
            Some(Some(_)) => return Err(NO_PROTO.to_owned()),
            Some(None) => {
                return Err("ERR Protocol version is not an integer or out of range".to_owned());
            }
        };
        let mut hello = Self { version, ..Self::default() };
        while let Some(option) = args.next() {
            let parsed = if option.eq_ignore_ascii_case(b"auth") {
                hello.user = args.next().zip(args.next());
                hello.user.is_some()
            } else if option.eq_ignore_ascii_case(b"setname") {
                hello.name = args.next();
                hello.name.map(check_name).transpose()?.is_some()
            } else {
                false
            };
            if !parsed {
                let option = String::from_utf8_lossy(option);
                return Err(format!("ERR Syntax error in HELLO option '{option}'"));
            }
        }
        Ok(hello)
    }
}

impl Engine {
    /// By a name that has been found good.
    pub(crate) fn set_name(&mut self, client: ClientId, name: &[u8]) {
        if !name.is_empty() || self.clients[client].session.profile.is_some() {
            self.change_profile(client, |profile| profile.name = name.to_vec());
        }
    }

    /// Notes what a client says of itself.
    pub(crate) fn change_profile(&mut self, client: ClientId, change: impl FnOnce(&mut Profile)) {
        if self.clients.is_retired(client) {
            // What stands in for it says nothing of itself.
            return;
        }
        let session = &mut self.clients[client].session;
        self.bufs.discharge(session.profile_size());
        let profile = session.profile.get_or_insert_default();
        change(profile);
        if **profile == Profile::default() {
            session.profile = None;
        }
        self.bufs.charge(session.profile_size());
    }
}

fn write_greeting(out: &mut Vec<u8>, (resp, version): (Version, &str), id: u64, mode: &[u8]) {
    encode::write_map_header(out, resp, 7);
    encode::write_bulk(out, b"server");
    encode::write_bulk(out, b"redis");
    encode::write_bulk(out, b"version");
    encode::write_bulk(out, version.as_bytes());
    encode::write_bulk(out, b"proto");
    encode::write_integer(out, resp.number());
    encode::write_bulk(out, b"id");
    encode::write_integer(out, id as i64);
    encode::write_bulk(out, b"mode");
    encode::write_bulk(out, mode);
    encode::write_bulk(out, b"role");
    encode::write_bulk(out, b"master");
    encode::write_bulk(out, b"modules");
    encode::write_array_header(out, 0);
}

/// Longest name of a client. Redis has no limit, but here it has to fit a message when the client
/// moves to another process.
pub(crate) const NAME_MAX: usize = 4096;

/// Whether a client may be called so.
pub(crate) fn check_name(name: &[u8]) -> Result<(), &'static str> {
    if name.len() > NAME_MAX {
        return Err("ERR Client name is too long.");
    }
    if !is_attribute(name) {
        return Err("ERR Client names cannot contain spaces, newlines or special characters.");
    }
    Ok(())
}

/// As Redis's validateClientAttr.
pub(crate) fn is_attribute(text: &[u8]) -> bool {
    text.iter().all(|byte| (b'!'..=b'~').contains(byte))
}

/// Compares without telling by its duration where the difference is.
pub(crate) fn same_secret(expected: &[u8], given: &[u8]) -> bool {
    let mut difference = usize::from(expected.len() != given.len());
    for (at, &byte) in given.iter().enumerate() {
        let other = expected.get(at % expected.len().max(1)).copied().unwrap_or_default();
        difference |= usize::from(byte ^ other);
    }
    difference == 0
}
