//! What one client does that concerns several owners: the client, its listener, timers, the driver.
//!
//! What each of them makes of it is theirs: [`crate::downstream::notice`],
//! [`crate::downstream::password_guessing`], [`crate::downstream::window`], [`crate::base::work_budget`].

use std::collections::VecDeque;

use cashew_config::snapshot::{Maintenance, Notified, Protocol, Reads, UserOptions};
use cashew_metrics::{PoolCounter, UserCounter, UserStat};
use cashew_protocol::redis::{self, Lookup};
use cashew_protocol::resp::{Parsed, RequestParser};
use cashew_protocol::{Outcome, Span};

use crate::base::action::{Action, Notice};
use crate::base::buffer::LARGE;
use crate::base::id::{BackendId, ClientId, ListenerId, RequestId};
use crate::base::outcome::Refusal;
use crate::base::time::Time;
use crate::base::timers::Timer;
use crate::base::work_budget::LARGE_REQUEST;
use crate::downstream::client::{Client, Skip};
use crate::downstream::listener::Listener;
use crate::downstream::receive::Plan;
use crate::downstream::user_limits::{
    LOOK_EVERY_US, Meter, SHARE, TURNS_MORE, UserLimits, YieldsTo,
};
use crate::engine::Engine;
use crate::redis::maintenance::{MovingAway, frame, may_be_told, notified};
use crate::upstream::session_params::WireProtocol;

/// What is let in without room: it ends something, or says who the client is.
/// Or whether it hears anything.
const ALWAYS: [&str; 8] =
    ["auth", "hello", "quit", "reset", "exec", "discard", "unwatch", "client|reply"];
/// Longer requests are none of these.
const LET_IN_SIZE_MAX: usize = 16 * 1024;
/// Bytes of pushes that wait for the end of one reply. Those beyond it are left out.
const ANNOUNCEMENTS_MAX: usize = 4096;
const SYNTAX: &str = "ERR syntax error";
const NEEDS_RESP3: &str = "ERR CLIENT MAINT_NOTIFICATIONS needs RESP3: say HELLO 3 before";
/// Of a reply in memcached's binary protocol.
const BINARY_HEADER: usize = 24;

impl Engine {
    /// A reply for a client is at hand, or all that matters of its start.
    #[inline]
    pub(crate) fn note_reply(&mut self, client: ClientId, reply: &[u8]) {
        let form = self.clients[client].session.wire_protocol.reply_form();
        if Outcome::is_error(form, reply) {
            self.note_error(client, reply);
        }
    }

    #[cold]
    fn note_error(&mut self, client: ClientId, reply: &[u8]) {
        let totals = &mut self.clients[client].totals;
        totals.errors = totals.errors.saturating_add(1);
        if Refusal::is_of_cluster(reply) && !self.knows_of_cluster(client) {
            let metrics = self.listener_of(client).metrics;
            self.metrics.add_pool(metrics, PoolCounter::RedirectsPassedOn, 1);
            self.notice(client, Notice::Redirected);
        }
    }

    /// Whether an error of a node is no news: as its pool, or one of those of its route, is a cluster's.
    fn knows_of_cluster(&self, client: ClientId) -> bool {
        let is_cluster = |backend: BackendId| self.backends[backend].config.is_cluster();
        let destination = self.destination_of(client);
        match &destination.route {
            Some(route) => route.backends().iter().copied().any(is_cluster),
            None => {
                self.listener_of(client).protocol != Protocol::Redis
                    || is_cluster(destination.backend)
            }
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
        let Client { listener, totals: now, ref session, .. } = self.clients[client];
        let listener = &self.listeners[listener];
        if listener.user_rows.is_empty() {
            return;
        }
        let before = self.published.replace(client, now);
        if now == before {
            return;
        }
        let row = listener.user_row(session.user_name());
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
    pub(crate) fn slow_down(&mut self, client: ClientId, wait_ms: u64) {
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

/// Keeps clients within the limits of their users: see [`crate::downstream::user_limits`].
///
/// A request is let in or not before it is looked at further, and paid for once it is dispatched. Who
/// waits is not read; when there is room, those who wait go on in the order in which they came.
impl Engine {
    fn user_limits(&mut self, client: ClientId, meter: Meter) -> &mut UserLimits {
        let listener = self.clients[client].listener;
        &mut self.listeners[listener].user_limits[meter.user as usize]
    }

    /// Whether the client's user has limits.
    #[inline]
    pub(crate) fn is_metered(&self, client: ClientId) -> bool {
        self.clients[client].off_fast_path && self.meters.get(client).is_some()
    }

    /// Has the client count for its user, if that one has limits, and not for another one.
    pub(crate) fn meter(&mut self, client: ClientId) {
        self.unmeter(client);
        let state = &self.clients[client];
        let listener = &mut self.listeners[state.listener];
        let place = state
            .session
            .user()
            .and_then(|user| listener.limits_of(user.name()).or(listener.common_limits()));
        if let Some(place) = place {
            listener.user_limits[place].enter(&self.metrics);
            self.meters.set(client, Meter::new(place, state.totals.requests));
        }
        let prefix =
            state.session.user().and_then(|user| listener.key_prefix_of(user.name())).cloned();
        if self.clients[client].session.key_prefix() != prefix.as_ref() {
            self.change_profile(client, |profile| profile.key_prefix = prefix);
            self.follow_key_prefix(client);
        }
        self.update_off_fast_path(client);
    }

    /// Has the client's reads answered as those of its user are, who was this one before or none.
    pub(crate) fn follow_user_reads(&mut self, client: ClientId, before: Option<Reads>) {
        let Client { listener, ref session, reads, .. } = self.clients[client];
        let listener = &self.listeners[listener];
        let own = session.user().and_then(|user| listener.reads_of(user.name()));
        // What the client itself has said stays.
        if reads == before && own != reads {
            self.set_reads(client, own);
        }
    }

    /// Has a client that has just come count for the user who it is, if it is one. Returns why it may
    /// not stay.
    #[cold]
    pub(crate) fn meter_new(&mut self, client: ClientId) -> Option<String> {
        let name = self.clients[client].session.user()?.name().to_owned();
        let refusal = self.refused_login(client, &name);
        if refusal.is_none() {
            self.meter(client);
            self.follow_user_reads(client, None);
        }
        refusal
    }

    /// The client counts for nobody any more, since it goes or is somebody else.
    pub(crate) fn unmeter(&mut self, client: ClientId) {
        if let Some(meter) = self.meters.take(client) {
            let listener = self.clients[client].listener;
            self.note_pressing((listener, meter.user), meter.pressing, 0);
            let limits = &mut self.listeners[listener].user_limits[meter.user as usize];
            limits.leave(meter, &self.metrics);
            // Whoever has it be somebody else lets it go on.
            self.clients[client].modes.end_quota_wait();
            self.hurry_waiting(meter.in_flight > 0);
        }
    }

    /// Users of all ports have other limits perhaps, and are counted elsewhere.
    pub(crate) fn renew_user_limits(&mut self) {
        let clients: Vec<ClientId> = self.clients.indices().collect();
        let mut reads_before = Vec::new();
        for &client in &clients {
            self.unmeter(client);
            let user = self.clients[client].session.user();
            reads_before.push(user.and_then(|user| self.listener_of(client).reads_of(user.name())));
        }
        let metrics = &self.metrics;
        for listener in self.listeners.iter_mut() {
            // Statistics know nothing of the users of a port that is to go.
            let users = listener.config.limited_users().filter(|_| listener.is_in_use());
            let users: Vec<&UserOptions> = users.collect();
            let has_high = users.iter().any(|user| user.is_high());
            let users = users.into_iter().enumerate().map(|(place, options)| {
                let id = metrics.user(listener.metrics, place);
                let mut limits = UserLimits::new(options.clone(), id, has_high);
                limits.publish(metrics);
                limits
            });
            listener.user_limits = users.collect();
            listener.set_common_limits(has_high, metrics);
            listener.renew_user_reads();
        }
        for (client, reads) in clients.into_iter().zip(reads_before) {
            self.follow_user_reads(client, reads);
            let before = self.clients[client].session.key_prefix().cloned();
            self.meter(client);
            self.settle_in_flight(client);
            if self.clients[client].session.key_prefix() != before.as_ref() {
                // What it has begun is about other keys.
                self.finish(client);
            }
        }
    }

    /// Why no other client of the port may be this user now.
    pub(crate) fn refused_login(&self, client: ClientId, name: &str) -> Option<String> {
        let listener = self.listener_of(client);
        let Client { session, modes, .. } = &self.clients[client];
        if modes.subscriber.is_some() && session.key_prefix() != listener.key_prefix_of(name) {
            return Some("a subscriber cannot become a user with another key prefix".to_owned());
        }
        if let Some(why) = self.refused_destination(client, name) {
            return Some(why);
        }
        let place = listener.limits_of(name)?;
        let is_it = self.meters.get(client).is_some_and(|meter| meter.user as usize == place);
        if is_it {
            return None;
        }
        listener.user_limits[place].refused_login(&self.metrics)
    }

    /// Whether a client waits, which has something to ask, until its user may ask more. `bytes` begin with what it
    /// asks.
    #[cold]
    pub(crate) fn awaits_quota(&mut self, client: ClientId, bytes: &[u8]) -> bool {
        let Some(meter) = self.meters.get(client) else { return false };
        // What has begun goes on to its end.
        if self.clients[client].modes.many.is_some() {
            return false;
        }
        let now = self.now;
        let user = (self.clients[client].listener, meter.user);
        let yields = self.yields(user);
        let is_next = !yields && self.is_next(user);
        let limits = &self.listeners[user.0].user_limits[meter.user as usize];
        // Who gets errors is looked at when they are written.
        let reached = match limits.delays() {
            true => limits.reached(&self.metrics, now),
            false => None,
        };
        let wait_us = match reached {
            Some((_, wait_us)) => wait_us,
            None if yields => LOOK_EVERY_US,
            None if !is_next => 0,
            None => return false,
        };
        if self.is_let_in_always(client, bytes) {
            return false;
        }
        let conn = self.client_conn(client);
        let limits = &mut self.listeners[user.0].user_limits[meter.user as usize];
        limits.count(UserStat::Delayed, &self.metrics);
        limits.waiting.push_back(conn);
        self.clients[client].modes.enter().awaits_quota = true;
        self.note_waiting(user, now.plus_micros(wait_us));
        true
    }

    /// Whether it is the user's turn to have the room that there is for all who wait for others: who comes stands
    /// behind those who have waited, and who has had its share behind the rest.
    fn is_next(&mut self, (listener, user): (ListenerId, u32)) -> bool {
        let yields_to = self.listeners[listener].user_limits[user as usize].yields_to();
        let is_over = match (self.users_share, yields_to) {
            (_, YieldsTo::Nobody) | (Some(1..), _) => false,
            (Some(0), _) => true,
            (None, _) => {
                let limits = |(of, user): (ListenerId, u32)| {
                    self.listeners.get(of)?.user_limits.get(user as usize)
                };
                let waits = |it: &&UserLimits| !it.waiting.is_empty() && !it.delays();
                let in_line = self.users_waiting.iter().filter_map(|&it| Some((it.0, limits(it)?)));
                in_line.filter(|(_, it)| waits(it)).any(|(of, it)| {
                    it.yields_to() == yields_to && (of == listener || yields_to == YieldsTo::All)
                })
            }
        };
        !is_over
            || match yields_to {
                YieldsTo::Nobody => true,
                YieldsTo::High => !self.is_high_active(listener),
                YieldsTo::All => !self.are_others_active(),
            }
    }

    /// Whether what the client asks needs no room.
    fn is_let_in_always(&self, client: ClientId, bytes: &[u8]) -> bool {
        match self.clients[client].session.wire_protocol {
            WireProtocol::Resp2 | WireProtocol::Resp3 => {}
            // Who has not said who it is has no user there.
            WireProtocol::Text | WireProtocol::Binary => return false,
        }
        let mut parser = RequestParser::default();
        let Parsed::Complete { len } = parser.parse(bytes, LET_IN_SIZE_MAX) else { return false };
        let text = parser.inline_encoded().unwrap_or(&bytes[..len]);
        match redis::find(text, parser.args()) {
            Lookup::Found(command) => ALWAYS.contains(&command.name),
            _ => false,
        }
    }

    /// Whether the client's user is to have what others leave.
    pub(crate) fn is_low(&self, client: ClientId) -> bool {
        let limits = &self.listeners[self.clients[client].listener].user_limits;
        self.meters.get(client).is_some_and(|meter| limits[meter.user as usize].is_low())
    }

    /// Whether the client's user is served before others.
    pub(crate) fn is_high(&self, client: ClientId) -> bool {
        let limits = &self.listeners[self.clients[client].listener].user_limits;
        self.meters.get(client).is_some_and(|meter| limits[meter.user as usize].is_high())
    }

    /// Whether a user has to wait as others ask, whose requests are not to stand behind many of its own.
    fn yields(&mut self, (listener, user): (ListenerId, u32)) -> bool {
        match self.listeners[listener].user_limits[user as usize].yields_to() {
            YieldsTo::Nobody => false,
            YieldsTo::High => {
                !self.listeners[listener].high.others.has_room() && self.is_high_active(listener)
            }
            YieldsTo::All => !self.priorities.low.has_room() && self.are_others_active(),
        }
    }

    /// Whether users of high priority of the port ask.
    fn is_high_active(&mut self, listener: ListenerId) -> bool {
        let Listener { high, user_limits, .. } = &mut self.listeners[listener];
        if high.others.is_due(self.now) {
            let of_high = user_limits.iter().filter(|user| user.is_high());
            let taken = of_high.map(|user| user.taken(&self.metrics));
            let (counters, asked) = taken.fold((0, 0), |(n, sum), it| (n + 1, sum + it));
            high.others.look(asked, counters, self.now);
        }
        let has_waiting = high.has_waiting();
        high.others.look_who_waits(has_waiting, self.now);
        high.others.are_active(self.now)
    }

    /// Whether others than those of low priority ask.
    fn are_others_active(&mut self) -> bool {
        if self.priorities.low.is_due(self.now) {
            let (mut asked, mut own, mut counters) = (0u64, 0u64, 0);
            for listener in self.listeners.iter().filter(|it| it.is_in_use()) {
                asked += self.metrics.sum_pool_counter(listener.metrics, PoolCounter::Requests);
                counters += 1;
                for user in listener.user_limits.iter().filter(|user| user.is_low()) {
                    own += user.taken(&self.metrics);
                    counters += 1;
                }
            }
            self.priorities.low.look(asked.saturating_sub(own), counters, self.now);
        }
        let others_wait = self.activity.waiting > self.priorities.low.clients();
        self.priorities.low.look_who_waits(others_wait, self.now);
        self.priorities.low.are_active(self.now)
    }

    /// Why a client may not ask anything now.
    fn over_quota(&mut self, client: ClientId) -> Option<String> {
        let meter = self.meters.get(client)?;
        let (listener, now) = (self.clients[client].listener, self.now);
        let limits = &self.listeners[listener].user_limits[meter.user as usize];
        if limits.delays() {
            return None;
        }
        let (reached, _) = limits.reached(&self.metrics, now)?;
        limits.count(UserStat::Refused, &self.metrics);
        let text = limits.text(reached);
        let Client { session, skip, noreply, .. } = &self.clients[client];
        let frame = match session.wire_protocol {
            WireProtocol::Resp2 | WireProtocol::Resp3 => "-ERR \r\n".len(),
            WireProtocol::Text => "SERVER_ERROR \r\n".len(),
            WireProtocol::Binary => BINARY_HEADER,
        };
        if *skip == Skip::No && !noreply {
            self.meters.let_pass(client, frame + text.len());
        }
        self.request_ctx.is_over_quota = true;
        self.notice(client, Notice::OverQuota { user: meter.user });
        Some(text)
    }

    /// Answers a request of Redis for which there is no room.
    #[cold]
    pub(crate) fn refuse_over_quota(&mut self, client: ClientId, lookup: Lookup) -> Option<Plan> {
        let is_exempt = matches!(lookup, Lookup::Found(command) if ALWAYS.contains(&command.name));
        if is_exempt {
            return None;
        }
        let text = format!("ERR {}", self.over_quota(client)?);
        Some(match self.is_queueing(client) {
            true => self.refuse_queued(client, &text),
            false => self.reply_error(client, &text),
        })
    }

    /// Why a request of memcached is refused.
    #[cold]
    pub(crate) fn memcached_over_quota(&mut self, client: ClientId) -> Option<String> {
        self.over_quota(client)
    }

    /// A request of so many bytes was taken, or answered with an error for want of room.
    #[cold]
    pub(crate) fn pay_request(&mut self, client: ClientId, len: usize) {
        let was_refused = std::mem::take(&mut self.request_ctx.is_over_quota);
        let Some(mut meter) = self.meters.get(client) else { return };
        let Client { listener, totals, .. } = self.clients[client];
        let limits = &self.listeners[listener].user_limits[meter.user as usize];
        // Of users who wait for others all is counted that is counted of their pool, to know what is others'.
        let count = match limits.is_low() {
            true => totals.requests.saturating_sub(meter.counted),
            false => 1,
        };
        if !was_refused {
            limits.take_request(count, len, &self.metrics, self.now);
        } else if limits.is_low() {
            limits.count_more(UserStat::Requests, count, &self.metrics);
        }
        meter.counted = totals.requests;
        if let Some(share) = &mut self.users_share {
            *share = share.saturating_sub(1);
        }
        self.meters.set(client, meter);
        self.settle_in_flight(client);
    }

    /// Replies of so many bytes were written.
    #[cold]
    pub(crate) fn pay_sent(&mut self, client: ClientId, bytes: u64) {
        let Some(meter) = self.meters.get(client) else { return };
        let (listener, now) = (self.clients[client].listener, self.now);
        let limits = &self.listeners[listener].user_limits[meter.user as usize];
        let bytes = bytes - self.meters.free_of(client, bytes);
        limits.take_bytes(bytes, &self.metrics, now);
        self.settle_in_flight(client);
    }

    /// Counts what the client is owed.
    #[cold]
    pub(crate) fn settle_in_flight(&mut self, client: ClientId) {
        let Client { requests, listener, ref modes, .. } = self.clients[client];
        let Some(mut meter) = self.meters.get(client) else { return };
        let pressing = if modes.blocking.is_none() { requests } else { 0 };
        if meter.in_flight == requests && meter.pressing == pressing {
            return;
        }
        self.note_pressing((listener, meter.user), meter.pressing, pressing);
        meter.pressing = pressing;
        let metrics = self.metrics.clone();
        let is_fewer =
            self.user_limits(client, meter).set_in_flight(&mut meter, requests, &metrics);
        self.meters.set(client, meter);
        self.hurry_waiting(is_fewer);
    }

    /// A client of the user has so many requests that press, and had so many.
    fn note_pressing(&mut self, (listener, user): (ListenerId, u32), from: u16, to: u16) {
        let listener = &mut self.listeners[listener];
        let limits = &listener.user_limits[user as usize];
        match limits.yields_to() {
            YieldsTo::All => self.priorities.low.change(from, to),
            YieldsTo::High | YieldsTo::Nobody => listener.high.change(limits, from, to),
        }
    }

    /// Somebody of the user waits, for so long.
    fn note_waiting(&mut self, user: (ListenerId, u32), until: Time) {
        if !self.users_waiting.contains(&user) {
            self.users_waiting.push(user);
        }
        self.arm_waiting(until);
    }

    fn arm_waiting(&mut self, at: Time) {
        if at < self.users_wake_at {
            self.users_wake_at = at;
            self.timers.arm(at, Timer::UserLimits);
        }
    }

    /// There may be room for who waits.
    fn hurry_waiting(&mut self, is_room: bool) {
        if is_room && !self.users_waiting.is_empty() {
            self.arm_waiting(self.now);
        }
    }

    /// Lets those go on for whom there is room.
    pub(crate) fn release_waiting(&mut self, at: Time) {
        if at != self.users_wake_at {
            // Replaced by another one.
            return;
        }
        self.users_wake_at = Time::NEVER;
        // One client of each user after the other, and the next time whoever is next.
        let mut in_turn = VecDeque::from(std::mem::take(&mut self.users_waiting));
        let lines = in_turn.iter().map(|&user| self.clients_waiting(user));
        let mut turns = TURNS_MORE + lines.sum::<usize>();
        let mut stopped = Vec::new();
        while turns > 0
            && let Some(user) = in_turn.pop_front()
        {
            turns -= 1;
            match self.release_one(user) {
                true => in_turn.push_back(user),
                false => stopped.push(user),
            }
        }
        let has_turns = turns > 0;
        // Some are in line again.
        let again = std::mem::take(&mut self.users_waiting);
        for user in in_turn.into_iter().chain(stopped).chain(again) {
            if self.clients_waiting(user) == 0 {
                continue;
            }
            let limits = &self.listeners[user.0].user_limits[user.1 as usize];
            let reached = limits.reached(&self.metrics, self.now).filter(|_| limits.delays());
            let wait_us = match reached {
                Some((_, wait_us)) => wait_us,
                None if limits.yields_to() != YieldsTo::Nobody && has_turns => LOOK_EVERY_US,
                None => 1,
            };
            self.note_waiting(user, self.now.plus_micros(wait_us.max(1)));
        }
    }

    /// How many clients of a user are in line.
    fn clients_waiting(&self, (listener, user): (ListenerId, u32)) -> usize {
        let limits = self.listeners.get(listener).and_then(|it| it.user_limits.get(user as usize));
        limits.map_or(0, |limits| limits.waiting.len())
    }

    /// Lets the first client of the user's line go on, if there is room for it: of one that waits for others only a
    /// few requests. Who wants more goes to the end of the line. Returns whether one went on.
    fn release_one(&mut self, user: (ListenerId, u32)) -> bool {
        while self.clients_waiting(user) > 0 {
            let (now, yields) = (self.now, self.yields(user));
            let limits = &mut self.listeners[user.0].user_limits[user.1 as usize];
            if yields || limits.delays() && limits.reached(&self.metrics, now).is_some() {
                return false;
            }
            let Some(conn) = limits.waiting.pop_front() else { return false };
            let client = conn.client();
            if self.clients.is_current(client, conn.generation())
                && self.clients[client].modes.awaits_quota
            {
                self.users_share = Some(SHARE);
                self.clients[client].modes.end_quota_wait();
                self.resume(client);
                self.users_share = None;
                return true;
            }
        }
        false
    }
}

/// Tells clients of maintenance that want to know: see [`crate::redis::maintenance`].
///
/// A push stands between any two replies: while part of one is with the client, it waits.
impl Engine {
    /// Tells clients of it that want to know: all of them, or those whose requests may go to the backend.
    /// Returns how many there are.
    pub fn handle_maintenance(
        &mut self,
        backend: Option<BackendId>,
        event: &Maintenance,
        now: Time,
    ) -> usize {
        self.now = now;
        match event {
            Maintenance::Moving { seq, seconds, to } => {
                let until = now.plus_millis(seconds.saturating_mul(1000));
                self.moving_away = Some(MovingAway { seq: *seq, until, to: to.clone() });
            }
            Maintenance::Staying => self.moving_away = None,
            Maintenance::FailingOver { .. } | Maintenance::FailedOver { .. } => {}
        }
        let concerned = |engine: &Self, client: ClientId| {
            backend.is_none_or(|backend| engine.listener_of(client).leads_to(backend))
        };
        let clients = self.clients.indices().collect::<Vec<ClientId>>().into_iter();
        clients.filter(|&it| concerned(self, it) && self.announce(it, event)).count()
    }

    /// CLIENT MAINT_NOTIFICATIONS ON|OFF [MOVING-ENDPOINT-TYPE type]
    pub(crate) fn client_maint_notifications(
        &mut self,
        client: ClientId,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        let notified = match notified(args[2..].iter().map(|arg| arg.of(bytes))) {
            Some(notified) => notified,
            None => return self.reply_error(client, SYNTAX),
        };
        let session = &mut self.clients[client].session;
        if notified != Notified::No && session.wire_protocol != WireProtocol::Resp3 {
            return self.reply_error(client, NEEDS_RESP3);
        }
        session.wishes.set_notified(notified);
        let plan = self.say(client, b"+OK\r\n");
        self.announce_move(client);
        plan
    }

    /// Tells a client that comes while the instance is about to go: it has less time than others.
    pub(crate) fn announce_move(&mut self, client: ClientId) {
        if let Some(MovingAway { seq, until, to }) = self.moving_away.clone() {
            let seconds = until.micros_since(self.now).div_ceil(1_000_000).max(1);
            self.announce(client, &Maintenance::Moving { seq, seconds, to });
        }
    }

    /// Tells one client, if it wants to know and may be told. Returns whether it is told.
    fn announce(&mut self, client: ClientId, event: &Maintenance) -> bool {
        let owner = &self.clients[client];
        let notified = owner.session.wishes.notified();
        if notified == Notified::No || !may_be_told(owner) {
            return false;
        }
        let config = &self.listeners[owner.listener].config;
        let Some(frame) = frame(event, notified, config) else { return false };
        let metrics = self.listeners[owner.listener].metrics;
        let is_amid_reply = owner.head != RequestId::NONE && self.requests[owner.head].streaming;
        let owner = &mut self.clients[client];
        if is_amid_reply {
            if owner.modes.announcements.len() + frame.len() > ANNOUNCEMENTS_MAX {
                return false;
            }
            owner.modes.enter().announcements.extend_from_slice(&frame);
            self.update_off_fast_path(client);
        } else {
            owner.output.push(&frame, &mut self.bufs);
            self.mark_client(client);
        }
        self.metrics.add_pool(metrics, PoolCounter::MaintenanceNotices, 1);
        true
    }

    /// Writes the pushes that waited for the end of a reply, if it has come.
    #[inline]
    pub(crate) fn release_announcements(&mut self, client: ClientId) {
        if self.clients[client].modes.has_announcements() {
            self.release_waiting_announcements(client);
        }
    }

    #[cold]
    fn release_waiting_announcements(&mut self, client: ClientId) {
        let owner = &mut self.clients[client];
        if owner.head != RequestId::NONE && self.requests[owner.head].streaming {
            return;
        }
        let announcements = owner.modes.take_announcements();
        owner.output.push(&announcements, &mut self.bufs);
        self.mark_client(client);
        self.update_off_fast_path(client);
    }
}
