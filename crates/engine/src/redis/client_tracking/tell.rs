//! What clients are told: keys that may have changed, or that all may have.

use std::collections::BTreeMap;

use cashew_metrics::PoolCounter;
use cashew_protocol::Span;
use cashew_protocol::memcached::Expect;
use cashew_protocol::redis::{Command, Group, Lookup, Rule, SessionRule};
use cashew_protocol::resp::{Version, encode};

use crate::base::id::{BackendId, ClientId, ConnId, RequestId};
use crate::downstream::client::State;
use crate::downstream::receive::Plan;
use crate::downstream::tracking_mode::Scope;
use crate::engine::Engine;
use crate::upstream::session_params::WireProtocol;

impl Engine {
    /// The plan of a request of a client that is told of changes: its keys are noted before it is sent.
    #[cold]
    pub(crate) fn plan_tracked(
        &mut self,
        client: ClientId,
        lookup: Lookup,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        self.note_read(client, lookup, bytes, args);
        let plan = self.plan_seen(client, lookup, bytes, args);
        if !matches!(plan, Plan::Wait) {
            self.tell_of_untold(client, lookup, bytes, args);
            self.end_caching(client, lookup);
        }
        // Now that the request has its place: one of its own keys may be what falls out.
        self.make_room_for_tracked(client);
        plan
    }

    fn note_read(&mut self, client: ClientId, lookup: Lookup, bytes: &[u8], args: &[Span]) {
        let Lookup::Found(command) = lookup else { return };
        let remembers =
            self.clients[client].modes.tracking.as_ref().is_some_and(|it| it.remembers());
        if !remembers || !may_read(command) {
            return;
        }
        let (backend, conn) = (self.backend_of(client), self.client_conn(client));
        let mut keys = std::mem::take(&mut self.scratch.keys);
        keys.clear();
        if command.keys(bytes, args, &mut keys).is_ok() {
            keys.iter().for_each(|key| self.note_reader(backend, key.of(bytes), conn));
        }
        keys.clear();
        self.scratch.keys = keys;
    }

    /// The request is dispatched. Where no server would tell that its keys change, the client is told so right behind the
    /// reply, so that it does not keep what it reads.
    fn tell_of_untold(&mut self, client: ClientId, lookup: Lookup, bytes: &[u8], args: &[Span]) {
        let Lookup::Found(command) = lookup else { return };
        let backend = self.backend_of(client);
        if self.clients[client].modes.tracking.is_none() || self.all_tell(backend) {
            return;
        }
        if command.name == "exec" {
            // What it has read is not known any more.
            return self.tell_client_of_all(client);
        }
        if !may_read(command) || self.is_queueing(client) {
            return;
        }
        let mut spans = std::mem::take(&mut self.scratch.keys);
        spans.clear();
        if command.keys(bytes, args, &mut spans).is_ok() {
            let keys = spans.iter().map(|key| key.of(bytes));
            let keys: Vec<&[u8]> = keys.filter(|key| !self.is_told_of(backend, key)).collect();
            let keys = self.kept_by(client, &keys);
            if !keys.is_empty() {
                let conn = self.client_conn(client);
                self.tell(conn, &keys);
            }
        }
        spans.clear();
        self.scratch.keys = spans;
    }

    /// The keys that a client may keep once it has read them, by what it has asked for.
    fn kept_by<'k>(&self, client: ClientId, keys: &[&'k [u8]]) -> Vec<&'k [u8]> {
        let state = &self.clients[client];
        match state.modes.tracking.as_deref() {
            Some(mode) => match &mode.scope {
                Scope::Prefixes(prefixes) => {
                    let own = state.session.key_prefix().map_or(&b""[..], |prefix| &prefix.0);
                    let is_meant = |key: &&&[u8]| {
                        let Some(rest) = key.strip_prefix(own) else { return false };
                        prefixes.iter().any(|prefix| rest.starts_with(prefix))
                    };
                    keys.iter().filter(is_meant).copied().collect()
                }
                _ if mode.remembers() => keys.to_vec(),
                _ => Vec::new(),
            },
            None => Vec::new(),
        }
    }

    /// The request is dispatched: CLIENT CACHING was about it, unless it is one of a transaction.
    fn end_caching(&mut self, client: ClientId, lookup: Lookup) {
        let is_queueing = self.is_queueing(client);
        let Some(mode) = self.clients[client].modes.tracking() else { return };
        if let Lookup::Found(command) = lookup {
            let goes_on = match command.rule {
                Rule::Local(_) => command.name.starts_with("client|"),
                Rule::Session(SessionRule::Multi) => true,
                _ => false,
            };
            if goes_on || is_queueing {
                return;
            }
        }
        mode.is_excepted = false;
    }

    /// Keeps the table within its limit: who has read what falls out is told that it may have changed.
    fn make_room_for_tracked(&mut self, client: ClientId) {
        let backend = self.backend_of(client);
        let max = self.backends[backend].config.tracking_keys_max as usize;
        while self.tracking.table.keys_of(backend) > max {
            let before = self.tracking.table.size();
            let taken = self.tracking.table.take_any(backend, &mut self.rng);
            self.bufs.discharge(before - self.tracking.table.size());
            let Some((key, readers)) = taken else { return };
            for conn in readers {
                self.tell(conn, &[&key]);
            }
        }
    }

    /// A server tells that these keys have changed.
    pub(crate) fn tell_of(&mut self, backend: BackendId, keys: &[&[u8]]) {
        let mut told: BTreeMap<u64, Vec<&[u8]>> = BTreeMap::new();
        for &key in keys {
            let readers = self.change_table(|table| table.take(backend, key));
            for conn in readers {
                if self.is_in_transaction(conn) {
                    // It may be read yet.
                    self.note_reader(backend, key, conn);
                }
                told.entry(conn.token()).or_default().push(key);
            }
        }
        for client in self.tracked_at(backend, &self.tracking.broadcast) {
            let mode = self.clients[client].modes.tracking.as_deref();
            if !mode.is_some_and(|it| matches!(it.scope, Scope::Prefixes(_))) {
                continue;
            }
            let meant = self.kept_by(client, keys);
            if !meant.is_empty() {
                told.insert(self.client_conn(client).token(), meant);
            }
        }
        for (token, keys) in told {
            self.tell(ConnId::from_token(token), &keys);
        }
    }

    fn is_in_transaction(&self, conn: ConnId) -> bool {
        self.clients.is_current(conn.client(), conn.generation())
            && self.clients[conn.client()].modes.transaction.is_some()
    }

    /// All keys of a backend may have changed.
    pub(crate) fn tell_of_all(&mut self, backend: BackendId) {
        if self.tracking.clients.is_empty() {
            return;
        }
        let clients = self.tracked_at(backend, &self.tracking.clients);
        // Who is in a transaction may read what it has named so far.
        let in_transaction = clients.iter().any(|&it| self.clients[it].modes.transaction.is_some());
        if !in_transaction {
            self.change_table(|table| table.clear(backend));
        }
        for client in clients {
            self.tell_client_of_all(client);
        }
    }

    /// All that a client has read may have changed, for it.
    pub(crate) fn tell_client_of_all(&mut self, client: ClientId) {
        if self.clients[client].modes.tracking.is_none() {
            return;
        }
        let mut text = Vec::new();
        encode::write_push_header(&mut text, Version::Resp3, 2);
        encode::write_bulk(&mut text, b"invalidate");
        encode::write_null(&mut text, Version::Resp3);
        self.push_to(client, &text);
    }

    /// Tells a client of keys, by its names and as far as it may know of them.
    fn tell(&mut self, conn: ConnId, keys: &[&[u8]]) {
        if !self.clients.is_current(conn.client(), conn.generation()) {
            return;
        }
        let client = conn.client();
        let session = &self.clients[client].session;
        if self.clients[client].modes.tracking.is_none() {
            return;
        }
        let own = session.key_prefix().map_or(&b""[..], |prefix| &prefix.0);
        let user = session.restricted_user();
        let may_know = |key: &&[u8]| user.is_none_or(|user| user.may_read(key));
        let keys = keys.iter().filter_map(|key| key.strip_prefix(own)).filter(may_know);
        let keys: Vec<&[u8]> = keys.collect();
        if keys.is_empty() {
            return;
        }
        let mut text = Vec::new();
        encode::write_push_header(&mut text, Version::Resp3, 2);
        encode::write_bulk(&mut text, b"invalidate");
        encode::write_array_header(&mut text, keys.len());
        keys.iter().for_each(|key| encode::write_bulk(&mut text, key));
        let metrics = self.listener_of(client).metrics;
        self.metrics.add_pool(metrics, PoolCounter::KeysInvalidated, keys.len() as u64);
        self.push_to(client, &text);
    }

    /// Sends a client a push: behind what it is owed, as that may be what the push is about. Who waits for a blocking
    /// call gets it at once as well.
    fn push_to(&mut self, client: ClientId, text: &[u8]) {
        let owner = &self.clients[client];
        if owner.session.wire_protocol != WireProtocol::Resp3 || owner.state == State::Closing {
            return;
        }
        self.spend(text.len());
        let is_owed = self.clients[client].head != RequestId::NONE;
        if is_owed {
            self.push_behind(client, text);
        }
        let owner = &mut self.clients[client];
        if !is_owed || owner.modes.blocking.is_some() {
            owner.output.push(text, &mut self.bufs);
            self.mark_client(client);
        }
        self.check_output(client);
    }

    /// Puts a push into the client's queue as if it were the answer to a request, or to the last such.
    fn push_behind(&mut self, client: ClientId, text: &[u8]) {
        let tail = self.clients[client].tail;
        let is_push = self.requests[tail].done && self.requests[tail].expect == Expect::Told;
        let request = match is_push {
            true => tail,
            false => self.new_request(client),
        };
        let slot = &mut self.requests[request];
        (slot.silent, slot.done, slot.expect) = (false, true, Expect::Told);
        slot.hold(text, &mut self.bufs);
        self.clients[client].held += text.len() as u64;
    }

    /// The client's first request is to be asked anew: what stands behind it that is only told goes out before.
    #[cold]
    pub(crate) fn release_pushes(&mut self, client: ClientId) {
        let head = self.clients[client].head;
        let mut at = std::mem::replace(&mut self.requests[head].next_in_client, RequestId::NONE);
        while at != RequestId::NONE {
            debug_assert!(self.requests[at].expect == Expect::Told, "there is no other request");
            let next = self.requests[at].next_in_client;
            let text = self.take_reply(at);
            self.clients[client].output.push_buf(text, &mut self.bufs);
            self.clients[client].requests -= 1;
            self.free_request(at);
            at = next;
        }
        self.clients[client].tail = head;
        self.mark_client(client);
    }

    /// Whether the client has asked for nothing behind a request.
    pub(crate) fn is_asked_last(&self, client: ClientId, request: RequestId) -> bool {
        let mut at = self.requests[request].next_in_client;
        while at != RequestId::NONE && self.requests[at].expect == Expect::Told {
            at = self.requests[at].next_in_client;
        }
        at == RequestId::NONE && self.requests[request].client == client
    }
}

/// Whether the keys of a command are read, as far as it is known: a script's may be.
fn may_read(command: &Command) -> bool {
    command.access.reads() || command.group == Group::Scripting
}
