//! Requests that are looked at one by one: see [`crate::observe`].

use std::sync::Arc;

use cashew_config::snapshot::Protocol;
use cashew_metrics::{AUDITED_KEY_MAX, DeedOutcome, HotSample, Times};
use cashew_protocol::Span;
use cashew_protocol::redis::Command;

use crate::base::failure::Failure;
use crate::base::id::{BackendId, ClientId, LaneId, RequestId, ServerId};
use crate::base::time::Time;
use crate::downstream::audit::{AuditRules, Audited};
use crate::downstream::listener::Listener;
use crate::engine::Engine;
use crate::memcached::commands_of_keys;
use crate::observe::{STUCK_MAX, Scratch, Sighting, Stage, TEXT_MAX, WAITING_MAX, Waiting};
use crate::request::{Request, Role};

/// Bytes of a user that somebody says to be.
const NAME_MAX: usize = 64;
/// As many keys of a request are told of, at most.
const KEYS_MAX: usize = 64;
/// How many requests of a lane that fails are looked at.
const FAILED_MAX: usize = 16;

/// What is known of a request of a lane.
#[derive(Clone, Copy)]
struct Subject {
    request: RequestId,
    place: (BackendId, ServerId),
    /// When its last byte was written; `None` if it was not.
    sent: Option<Time>,
    wire_len: u64,
    reply_len: u64,
}

impl Engine {
    /// The worker was busy for so long from that time on, and looks at its connections `now`.
    #[inline]
    pub fn note_busy(&mut self, from: Time, busy_us: u64, now: Time) {
        self.observer.note_busy(from, busy_us, now);
    }

    /// Whether samples are wanted one by one from now on.
    pub fn want_samples(&mut self, wants: bool) {
        self.observer.wants_samples = wants;
    }

    /// The head of a lane is answered, and about to leave it: `end` are the last bytes of its reply.
    #[inline]
    pub(crate) fn observe_head(&mut self, index: LaneId, end: &[u8]) {
        let lane = &self.lanes[index];
        let request = &self.requests[lane.head];
        let age_us = self.now.micros_since(request.started);
        let is_suspect =
            self.observer.is_suspect(age_us, self.backends[lane.backend].slow_after_us);
        if self.observer.left > 1 && !is_suspect {
            self.observer.left -= 1;
            return;
        }
        self.look_at_head(index, end.len(), is_suspect);
    }

    #[cold]
    #[inline(never)]
    fn look_at_head(&mut self, index: LaneId, end: usize, mut is_suspect: bool) {
        let head = self.lanes[index].head;
        let mut weight = None;
        if self.observer.left <= 1 {
            weight = Some(self.observer.draw());
        } else {
            self.observer.left -= 1;
        }
        let is_own = matches!(self.requests[head].role, Role::Probe { .. } | Role::Own(_));
        if is_own || self.lanes[index].is_feed {
            return;
        }
        if self.blocked_at(index).is_some() {
            // What a client waited for is not the time that its server took.
            (is_suspect, weight) = (false, None);
        }
        let lane = &self.lanes[index];
        let place = (lane.backend, lane.server);
        let sent = lane.batches.front().map_or(self.now, |batch| batch.at);
        let request = &self.requests[head];
        let subject = Subject {
            request: head,
            place,
            sent: Some(sent),
            wire_len: request.wire_len,
            reply_len: request.arrived + end as u64,
        };
        let text = self.text_of_head(index);
        if let Some(weight) = weight.filter(|_| self.backends[place.0].config.hot_keys) {
            match self.key_of_copy(head) {
                // Who has a copy answers for the key.
                Some(key) => self.note_hot_copy(&subject, weight, &key),
                None => self.note_hot(&subject, weight, &text),
            }
        }
        let is_wanted = weight.is_some() && self.observer.wants_samples;
        if is_suspect || is_wanted {
            self.sight(&subject, &text, (is_wanted, ""));
        }
        self.observer.scratch.text = text;
    }

    /// What was sent of the lane's head, in the observer's buffer; empty if that is not known.
    fn text_of_head(&mut self, index: LaneId) -> Vec<u8> {
        let mut text = std::mem::take(&mut self.observer.scratch.text);
        text.clear();
        let lane = &mut self.lanes[index];
        let request = &self.requests[lane.head];
        if request.expect.is_coalesced() {
            text.extend_from_slice(b"get ");
            text.extend_from_slice(lane.coalesced.key(request));
        } else if let Some(start) = lane.start_of_head() {
            text.extend_from_slice(start);
        } else if lane.keeps_head(&mut self.bufs) {
            let len = usize::try_from(request.wire_len).unwrap_or(TEXT_MAX).min(TEXT_MAX);
            lane.sent.copy_front(len, &mut text);
        }
        text
    }

    /// A read is answered by what is kept of a server's replies. Such reads are sampled as those are that servers
    /// answer, so that a hot key stays one.
    #[inline]
    pub(crate) fn observe_kept(
        &mut self,
        place: (BackendId, ServerId),
        key: &[u8],
        reply_bytes: u64,
    ) {
        if self.observer.left > 1 {
            self.observer.left -= 1;
            return;
        }
        let weight = self.observer.draw();
        let backend = &self.backends[place.0];
        if backend.config.hot_keys {
            let (server, request_bytes) = (place.1.number(), key.len() as u64);
            let sample =
                HotSample { key, server, weight, request_bytes, reply_bytes, server_us: 0 };
            self.metrics.note_hot(backend.metrics, &sample, self.now.as_micros());
        }
    }

    /// Tells the sketch of the pool's hot keys of a sample.
    fn note_hot(&mut self, subject: &Subject, weight: u64, text: &[u8]) {
        let backend = &self.backends[subject.place.0];
        let Scratch { words, keys, .. } = &mut self.observer.scratch;
        words.read(backend.protocol, text);
        words.keys(backend.protocol, text, keys);
        if !keys.is_empty() {
            // Of many each of some stands for a few.
            let count = keys.len();
            let step = count.div_ceil(KEYS_MAX);
            let first = self.observer.rng.next() as usize % step;
            let sent = subject.sent.unwrap_or(self.now);
            let sample = HotSample {
                key: b"",
                server: subject.place.1.number(),
                weight: weight * step as u64,
                request_bytes: subject.wire_len / count as u64,
                reply_bytes: subject.reply_len / count as u64,
                server_us: self.now.micros_since(sent) / count as u64,
            };
            for key in keys.iter().skip(first).step_by(step) {
                let sample = HotSample { key: key.of(text), ..sample };
                self.metrics.note_hot(backend.metrics, &sample, self.now.as_micros());
            }
        }
    }

    /// The same of a copy of this key.
    fn note_hot_copy(&self, subject: &Subject, weight: u64, key: &[u8]) {
        let backend = &self.backends[subject.place.0];
        let sent = subject.sent.unwrap_or(self.now);
        let sample = HotSample {
            key,
            server: subject.place.1.number(),
            weight,
            request_bytes: subject.wire_len,
            reply_bytes: subject.reply_len,
            server_us: self.now.micros_since(sent),
        };
        self.metrics.note_hot(backend.metrics, &sample, self.now.as_micros());
    }

    /// Writes down what is known of a request, and waits for what is to become of its reply.
    fn sight(&mut self, subject: &Subject, text: &[u8], (is_wanted, failure): (bool, &str)) {
        let (backend_id, server) = subject.place;
        let backend = &self.backends[backend_id];
        let request = &self.requests[subject.request];
        let client = self.requests.waiting_client(subject.request);
        let Request { started, .. } = *request;
        let now = self.now;
        let sent = subject.sent.unwrap_or(now);
        let answered_in = now.micros_since(sent);
        // While the worker was busy the reply may have lain there.
        let late_us = self.observer.busy_before(now).min(answered_in);
        // While it was, it did not write either.
        let busy_us = self.observer.busy_between(started, sent);
        let times = Times {
            gateway_us: self.observer.busy_before(started) + busy_us + late_us,
            queue_us: sent.micros_since(started).saturating_sub(busy_us),
            server_us: answered_in - late_us,
            order_us: 0,
            client_us: 0,
        };
        let Scratch { words, keys, .. } = &mut self.observer.scratch;
        words.read(backend.protocol, text);
        words.keys(backend.protocol, text, keys);
        let key_hash = keys.first().map_or(0, |key| cashew_metrics::key_hash(key.of(text)));
        let server_name = &backend.config.servers.get(server.index());
        let mut sighting = Sighting {
            pool: backend.config.name.clone(),
            server: server_name.map_or_else(String::new, |server| server.name.clone()),
            arguments: words.arguments(backend.protocol, text),
            request_bytes: subject.wire_len,
            reply_bytes: subject.reply_len,
            times,
            key_hash,
            failure: failure.to_owned(),
            is_wanted,
            is_part: matches!(request.role, Role::Fragment { .. }),
            slow_after_us: backend.slow_after_us,
            ..Sighting::default()
        };
        self.name_client(&mut sighting, client);
        let goes_on =
            matches!(request.role, Role::Single) && client != ClientId::NONE && failure.is_empty();
        if goes_on {
            self.await_delivery(sighting, subject.request, client);
        } else {
            self.observer.finish(sighting);
        }
    }

    /// Whose request it was, and where that client is connected.
    fn name_client(&self, sighting: &mut Sighting, client: ClientId) {
        if client == ClientId::NONE {
            return;
        }
        let state = &self.clients[client];
        let listener = &self.listeners[state.listener];
        if listener.config.name != sighting.pool {
            if !sighting.server.is_empty() {
                sighting.server = format!("{}/{}", sighting.pool, sighting.server);
            }
            sighting.pool.clone_from(&listener.config.name);
        }
        sighting.client = Some(self.client_conn(client));
        sighting.client_id = state.session.id;
        sighting.client_name = state.session.name().unwrap_or_default().to_vec();
        if !listener.config.users.is_empty() {
            state.session.user_name().clone_into(&mut sighting.user);
        }
        if sighting.arguments.is_empty() {
            // What was sent is not kept, and may be another one.
            let last = state.called.name().map(|name| name.replace('|', " ").to_ascii_uppercase());
            let last =
                last.map_or_else(String::new, |name| format!(", the last one called was {name}"));
            sighting.arguments.push(format!("(not kept{last})").into_bytes());
        }
    }

    /// A lane's connection is lost: those that were sent on it will be answered by errors.
    pub(crate) fn observe_lost(&mut self, index: LaneId, failure: Failure) {
        let lane = &mut self.lanes[index];
        let slow_after_us = self.backends[lane.backend].slow_after_us;
        if slow_after_us == u64::MAX || lane.is_feed || lane.in_flight == 0 {
            return;
        }
        lane.trim_sent(&mut self.bufs);
        let unkept = lane.in_flight_size - lane.sent.len();
        let place = (lane.backend, lane.server);
        let (mut at, mut start, mut ordinal) = (lane.head, 0, lane.answered);
        let (mut skipped, mut shared) = (0, (0, 0));
        let (mut joined, mut is_coalesced) = (Vec::new(), false);
        for _ in 0..(lane.in_flight as usize).min(FAILED_MAX) {
            let lane = &self.lanes[index];
            ordinal += 1;
            let request = &self.requests[at];
            let next = request.next_in_lane;
            if !request.follows {
                shared = (start, request.wire_len);
                is_coalesced = request.expect.is_coalesced();
            }
            let (place_of_text, wire_len) = shared;
            let sent = lane.batches.iter().find(|batch| batch.end >= ordinal).map(|batch| batch.at);
            let is_own = matches!(request.role, Role::Probe { .. } | Role::Own(_));
            let age_us = self.now.micros_since(request.started);
            if is_coalesced && !request.follows {
                joined.clear();
                lane.coalesced.write_get(request, &mut skipped, &mut joined);
            }
            if !is_own && self.observer.is_suspect(age_us, slow_after_us) {
                let mut text = std::mem::take(&mut self.observer.scratch.text);
                text.clear();
                if is_coalesced {
                    text.extend_from_slice(&joined);
                } else if let Some(start) = u64::checked_sub(place_of_text, unkept) {
                    let len = wire_len.min(TEXT_MAX as u64) as usize;
                    lane.sent.copy_range(start as usize, len, &mut text);
                }
                let sent = Some(sent.unwrap_or(self.now));
                let subject = Subject { request: at, place, sent, wire_len, reply_len: 0 };
                self.sight(&subject, &text, (false, failure.text()));
                self.observer.scratch.text = text;
            }
            start += if self.requests[at].follows { 0 } else { wire_len };
            at = next;
        }
    }

    /// The first request of a lane that is not sent will be answered by an error.
    pub(crate) fn observe_unsent(&mut self, index: LaneId, failure: Failure) {
        let lane = &self.lanes[index];
        let request = &self.requests[lane.first_unsent];
        let slow_after_us = self.backends[lane.backend].slow_after_us;
        let age_us = self.now.micros_since(request.started);
        let is_own = matches!(request.role, Role::Probe { .. } | Role::Own(_));
        if is_own || lane.is_feed || !self.observer.is_suspect(age_us, slow_after_us) {
            return;
        }
        let mut text = std::mem::take(&mut self.observer.scratch.text);
        text.clear();
        let wire_len = request.wire_len;
        if !request.expect.is_coalesced() && lane.partial == 0 && wire_len <= lane.output.len() {
            lane.output.copy_front(wire_len.min(TEXT_MAX as u64) as usize, &mut text);
        }
        let place = (lane.backend, lane.server);
        let request = lane.first_unsent;
        let subject = Subject { request, place, sent: None, wire_len, reply_len: 0 };
        self.sight(&subject, &text, (false, failure.text()));
        self.observer.scratch.text = text;
    }
}

/// What became of replies: see [`crate::observe::Waiting`].
impl Engine {
    fn await_delivery(&mut self, sighting: Sighting, request: RequestId, client: ClientId) {
        if self.observer.waiting.len() >= WAITING_MAX {
            return self.observer.finish(sighting);
        }
        let started = self.requests[request].started;
        let stage = Stage::Order { request, started, answered: self.now, is_new: true };
        let client = self.client_conn(client);
        self.observer.waiting.push(Waiting { sighting, client, stage });
    }

    /// Bytes of a client's output are written, and some are left.
    #[inline]
    pub(crate) fn observe_sent(&mut self, index: ClientId, bytes: u64) {
        let client = &self.clients[index];
        let is_stuck = !client.output.is_empty();
        if is_stuck || !self.observer.waiting.is_empty() {
            self.note_sent(index, bytes, is_stuck);
        }
    }

    #[cold]
    fn note_sent(&mut self, index: ClientId, bytes: u64, is_stuck: bool) {
        let now = self.now;
        let client = self.client_conn(index);
        let (mut is_known, mut stuck) = (false, 0);
        for waiting in &mut self.observer.waiting {
            let Stage::Output { left, until, .. } = &mut waiting.stage else { continue };
            stuck += 1;
            if waiting.client == client && until.is_none() {
                is_known = true;
                *left = left.saturating_sub(bytes);
                if *left == 0 {
                    *until = Some(now);
                }
            }
        }
        let state = &self.clients[index];
        let slow_after_us = self.listeners[state.listener].slow_after_us;
        if !is_stuck || is_known || stuck >= STUCK_MAX || slow_after_us == u64::MAX {
            return;
        }
        let left = state.output.len();
        let mut sighting = Sighting {
            pool: self.listeners[state.listener].config.name.clone(),
            reply_bytes: left + bytes,
            slow_after_us,
            ..Sighting::default()
        };
        self.name_client(&mut sighting, index);
        let stage = Stage::Output { since: now, left, until: None };
        self.observer.waiting.push(Waiting { sighting, client, stage });
    }

    /// Finds out what became of replies. To be called when what there was to write is written.
    #[inline]
    pub(crate) fn settle_sightings(&mut self) {
        if !self.observer.waiting.is_empty() {
            self.look_at_waiting();
        }
    }

    #[cold]
    fn look_at_waiting(&mut self) {
        let mut waiting = Vec::new();
        for mut one in std::mem::take(&mut self.observer.waiting) {
            if self.is_over(&mut one) {
                self.observer.finish(one.sighting);
            } else {
                waiting.push(one);
            }
        }
        waiting.append(&mut self.observer.waiting);
        self.observer.waiting = waiting;
    }

    fn is_over(&self, waiting: &mut Waiting) -> bool {
        let Waiting { sighting, client, stage } = waiting;
        let now = self.now;
        let Some(state) = self.clients.get(client.client(), client.generation()) else {
            // It does not wait any more.
            match stage {
                Stage::Order { answered, .. } => {
                    sighting.times.order_us = now.micros_since(*answered)
                }
                Stage::Output { since, .. } => sighting.times.client_us = now.micros_since(*since),
            }
            return true;
        };
        if let Stage::Order { request, started, answered, is_new } = *stage {
            let is_queued = self.requests.get(request).is_some_and(|it| {
                it.client == client.client() && it.started == started && !it.in_lane
            });
            if is_queued && state.head != RequestId::NONE {
                *stage = Stage::Order { request, started, answered, is_new: false };
                return false;
            }
            match is_new {
                // It was its turn: what took its time was the turn of the worker.
                true => sighting.times.gateway_us += now.micros_since(answered),
                false => sighting.times.order_us = now.micros_since(answered),
            }
            *stage = Stage::Output { since: now, left: state.output.len(), until: None };
        }
        let Stage::Output { since, left, until } = *stage else { return false };
        let is_taken = left == 0 || until.is_some() || state.output.is_empty();
        if is_taken {
            sighting.times.client_us = until.unwrap_or(now).micros_since(since);
        }
        is_taken
    }

    /// Whether there is something for [`Engine::take_sightings`].
    #[inline]
    pub fn has_sightings(&self) -> bool {
        !self.observer.waiting.is_empty()
            || !self.observer.seen.is_empty()
            || self.observer.left_out > 0
    }

    /// Requests of which all is known by now, and how many slow ones were left out since there were too many. To be
    /// called when what there was to write is written.
    pub fn take_sightings(&mut self, now: Time) -> (Vec<Sighting>, u64) {
        self.now = now;
        self.settle_sightings();
        (std::mem::take(&mut self.observer.seen), std::mem::take(&mut self.observer.left_out))
    }
}

// What clients do is noted for the audit log: see [`crate::downstream::audit`]. Values are not, nor any argument but
// keys, so no secret can be in it.

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
            self.audit(
                client,
                Audited { outcome, keys, reason: reason.into(), ..audited(command, key) },
            );
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
            // What is no user's name may be a password in the wrong place.
            let is_known =
                failure.is_none() || self.listener_of(client).users.named(user).is_some();
            let shown = if is_known { &user[..user.len().min(NAME_MAX)] } else { b"" };
            self.audit(
                client,
                Audited {
                    outcome,
                    reason: reason.into(),
                    user: shown.to_vec(),
                    ..Audited::default()
                },
            );
        }
    }

    /// Notes that a client is that user now, since it is known by another name elsewhere.
    #[cold]
    pub(crate) fn audit_outside_login(&mut self, client: ClientId, user: &str, name: &[u8]) {
        if self.listener_of(client).audit.as_ref().is_some_and(|rules| rules.logins) {
            let name = String::from_utf8_lossy(&name[..name.len().min(NAME_MAX)]);
            let audited = Audited {
                outcome: DeedOutcome::LoggedIn,
                reason: format!("external: {name}").into(),
                user: user.as_bytes().to_vec(),
                ..Audited::default()
            };
            self.audit(client, audited);
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
        self.audits_keys = self.protocol == Protocol::Memcached
            && rules.as_ref().is_some_and(|it| commands_of_keys().any(|command| it.has(command)));
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

#[cfg(test)]
mod tests {
    use cashew_config::Context;
    use cashew_metrics::Writer;

    use crate::base::time::Time;
    use crate::engine::epoch::Plan;
    use crate::engine::{Engine, Identity, Setup};

    #[test]
    fn memcached_leaves_the_fast_path_only_where_what_takes_it_is_audited() {
        for (commands, is_clear) in [
            ("none", true),
            ("[admin, dangerous]", true),
            ("[flushall, scan]", true),
            ("[incrby]", false),
            ("[write]", false),
            ("all", false),
        ] {
            let text = format!(
                "global: {{worker_processes: 1, audit_log: {{file: /a, commands: {commands}}}}}\npools:\n  a: \
                 {{listen: '127.0.0.1:1', servers: ['h:1:1']}}\n"
            );
            let loaded = cashew_config::parse("f", &text, &Context::of_system());
            let snapshot = loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot;
            let engine = Engine::new(Setup {
                plan: Plan::whole(&snapshot, 0, 1),
                metrics: Writer::in_memory(&snapshot),
                seed: 1,
                slot: 0,
                identity: Identity { version: "0", process_id: 1 },
                now: Time::ZERO,
            });
            let listener = engine.listeners.iter().next().unwrap();
            assert_eq!(listener.destination.is_clear, is_clear, "{commands}");
        }
    }
}
