//! Clients that go to another process, and those that come from one.
//!
//! A client that is told to leave has nothing more dispatched, so that it comes to rest: it is owed
//! no answer and is not in the middle of an upload. Then the driver is to let go of its connection,
//! and it is exported with what it has sent and what it has not been sent yet. The start of a
//! request is parsed again where it goes to, from its first byte.

use cashew_config::snapshot::{Notified, Reads};
use cashew_metrics::PoolGauge;
use cashew_protocol::redis;

use crate::base::action::Action;
use crate::base::id::{ClientId, ConnId, ListenerId, RequestId};
use crate::base::time::Time;
use crate::downstream::client::{
    Client, Dirty, Handoff, Parser, Profile, Session, Skip, State, Wishes,
};
use crate::downstream::listener::DestinationNumber;
use crate::downstream::totals::Totals;
use crate::downstream::tracking_mode::TrackingMode;
use crate::engine::{Closed, Engine, shrink};
use crate::upstream::session_params::WireProtocol;

/// When all leave, so many at most are on their way out at once: they are served by nobody
/// meanwhile, and whoever takes them takes one after the other.
const DEPARTING_MAX: usize = 256;
/// Clients that one call of [`Engine::leave_share`] picks.
const SHARE_CLIENTS_MAX: usize = 256;

/// What a client and this process have agreed on, as far as it holds elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionParts {
    /// As CLIENT ID tells it.
    pub id: u64,
    pub authenticated: bool,
    /// Bytes to come that belong to a request refused already.
    pub swallow: u64,
    /// As the client has asked for; `None` for the pool's.
    pub wire_protocol: Option<WireProtocol>,
    pub database: Option<u32>,
    pub profile: Profile,
    /// It has to log in again after so long. The time in the profile means nothing elsewhere.
    pub expires_in_us: Option<u64>,
    /// Set by CLIENT NO-EVICT.
    pub no_evict: bool,
    /// What it has asked for by CLIENT TRACKING, in words; empty if nothing.
    pub tracking: Vec<Vec<u8>>,
    /// Set by CLIENT MAINT_NOTIFICATIONS.
    pub notified: Notified,
    /// Set by CLIENT READS, READONLY and READWRITE.
    pub reads: Option<Reads>,
    /// Which requests are not answered, set by CLIENT REPLY.
    pub silence: Silence,
    /// Monitors have been told of the request at the front of what was received.
    pub is_observed: bool,
    /// What it called last, by name; empty if nothing that Redis knows.
    pub called: String,
    /// How long ago the client connected.
    pub age_us: u64,
    /// What it has asked and got since.
    pub totals: Totals,
}

/// Requests that are not answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Silence {
    #[default]
    None,
    Next,
    All,
}

/// A client that is no longer here, but for its socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    pub listener: ListenerId,
    pub parts: SessionParts,
    /// Received and not consumed.
    pub input: Vec<u8>,
    /// To be written before anything else.
    pub output: Vec<u8>,
}

/// Who is leaving.
#[derive(Default)]
pub(crate) struct Moving {
    /// All are to leave, those too who come yet.
    all: bool,
    /// Clients that are to be told when others are gone.
    next: Vec<ConnId>,
    /// Clients that were told and are not at rest yet.
    departing: Vec<ConnId>,
    /// Clients of which the driver is to let go.
    handed_off: usize,
    /// How many may be in either state because all are to leave.
    allowed: usize,
    /// Somebody waits only for the end of the tick.
    is_pressing: bool,
}

impl Moving {
    /// Whether [`Engine::settle`] is to be called again at once.
    #[inline]
    pub(crate) fn is_pressing(&self) -> bool {
        self.is_pressing && self.is_busy()
    }

    /// Whether there is anybody to look after.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        !(self.departing.is_empty() && self.next.is_empty())
    }

    /// A client of which the driver was to let go is gone.
    pub(crate) fn forget_handed_off(&mut self) {
        self.handed_off -= 1;
    }
}

impl Engine {
    /// The client is to go to another process: nothing more of it is dispatched, and
    /// [`Action::HandOff`] follows when it is at rest. One that is about to be closed stays.
    pub fn handle_leave(&mut self, conn: ConnId, now: Time) {
        self.now = now;
        if !conn.is_lane() && self.clients.is_current(conn.client(), conn.generation()) {
            self.leave(conn.client());
        }
    }

    /// The client need not leave after all, unless it has been handed off.
    pub fn handle_stay(&mut self, conn: ConnId) {
        if conn.is_lane() || !self.clients.is_current(conn.client(), conn.generation()) {
            return;
        }
        let client = &mut self.clients[conn.client()];
        if client.handoff == Handoff::Asked {
            client.handoff = Handoff::No;
            self.unblock(conn.client());
        }
    }

    /// Every client is to leave, and who comes later too. See [`Engine::handle_leave`]. Those of
    /// pools that were removed stay: others may not have these pools any more.
    pub fn leave_all(&mut self, now: Time) {
        self.now = now;
        self.moving.all = true;
        self.moving.allowed = DEPARTING_MAX;
        let movable = self.clients.indices().filter(|&index| self.is_movable(index));
        self.moving.next = movable.map(|index| self.client_conn(index)).collect();
        self.leave_pairs();
    }

    /// The connection of a client that has just come cannot go to another process.
    pub fn tie(&mut self, conn: ConnId) {
        if conn.is_paired() {
            return self.tie_pair(conn, true);
        }
        if !conn.is_lane() && self.clients.is_current(conn.client(), conn.generation()) {
            self.clients[conn.client()].handoff = Handoff::Tied;
        }
    }

    /// It can, now.
    pub fn untie(&mut self, conn: ConnId) {
        if conn.is_paired() {
            return self.tie_pair(conn, false);
        }
        let is_there = self.clients.is_current(conn.client(), conn.generation());
        if !conn.is_lane() && is_there && self.clients[conn.client()].handoff == Handoff::Tied {
            self.clients[conn.client()].handoff = Handoff::No;
            self.leave_new(conn.client());
        }
    }

    /// Closes those who are tied to this process, once what they are owed is written.
    pub fn finish_tied(&mut self, now: Time) {
        self.now = now;
        for index in self.clients.indices().collect::<Vec<ClientId>>() {
            let client = &self.clients[index];
            if client.handoff == Handoff::Tied
                && client.state == State::Open
                && client.modes.transaction.is_none()
            {
                self.finish(index);
            }
        }
    }

    fn is_movable(&self, index: ClientId) -> bool {
        self.listener_of(index).is_in_use() && !self.is_pinned(index)
    }

    /// Takes [`Engine::leave_all`] back, and all that was told to leave, but for those who have been
    /// handed off already.
    pub fn stay_all(&mut self, now: Time) {
        self.now = now;
        self.stay_pairs();
        self.moving.all = false;
        self.moving.is_pressing = false;
        self.moving.next = Vec::new();
        for conn in std::mem::take(&mut self.moving.departing) {
            self.handle_stay(conn);
        }
    }

    /// Whether all were to leave and nobody is left.
    pub fn is_left(&self) -> bool {
        self.moving.all && self.clients() == 0
    }

    /// Tells clients to leave that together made at most this share of the requests lately: since
    /// the last call, or in the last seconds. Those who ask most come first, as far as they fit.
    /// Returns how many leave.
    pub fn leave_share(&mut self, permille: u32, now: Time) -> usize {
        self.now = now;
        let mut total = 0;
        let mut movable = Vec::new();
        for index in self.clients.indices().collect::<Vec<ClientId>>() {
            let client = &mut self.clients[index];
            let is_owed = client.head != RequestId::NONE;
            let asked = self.activity.take_count(&mut client.asked_in, &mut client.asked, is_owed);
            total += u64::from(asked);
            let stays = client.handoff != Handoff::No
                || client.state == State::Closing
                || client.modes.transaction.is_some();
            if asked > 0 && !stays && self.is_movable(index) {
                movable.push((asked, index));
            }
        }
        let mut budget = total * u64::from(permille.min(1000)) / 1000;
        movable.sort_unstable_by(|a, b| b.cmp(a));
        let mut count = 0;
        for (asked, index) in movable {
            if count < SHARE_CLIENTS_MAX && u64::from(asked) <= budget {
                budget -= u64::from(asked);
                count += 1;
                self.leave(index);
            }
        }
        count
    }

    fn leave(&mut self, index: ClientId) {
        let is_pinned = self.is_pinned(index);
        let client = &mut self.clients[index];
        if client.handoff != Handoff::No || client.state == State::Closing || is_pinned {
            return;
        }
        client.handoff = Handoff::Asked;
        if client.state == State::Open && client.modes.transaction.is_none() {
            self.pause(index);
        }
        self.withdraw(index);
        let conn = self.client_conn(index);
        self.moving.departing.push(conn);
    }

    /// Somebody new.
    pub(crate) fn leave_new(&mut self, index: ClientId) {
        if self.moving.all && self.is_movable(index) {
            let conn = self.client_conn(index);
            self.moving.next.push(conn);
        }
    }

    /// Lets others leave than those who cannot come to rest, such as clients of a server that hangs.
    /// To be called once a second.
    pub(crate) fn allow_handoffs(&mut self) {
        if self.moving.is_busy() {
            self.moving.allowed = self.moving.departing.len() + DEPARTING_MAX;
        }
    }

    /// Clients that were handed off are closed: there is nobody to whom they could go.
    pub fn close_handed_off(&mut self, now: Time) {
        self.now = now;
        for index in self.clients.indices().collect::<Vec<ClientId>>() {
            if self.clients[index].handoff == Handoff::HandedOff {
                self.drop_client(index, Closed::ByUs);
            }
        }
        self.close_pairs_handed_off();
    }

    /// Hands off who has come to rest; for the end of a tick.
    #[cold]
    pub(crate) fn maintain_detached(&mut self) {
        self.moving.is_pressing = false;
        let mut departing = std::mem::take(&mut self.moving.departing);
        departing.retain(|&conn| !self.depart(conn));
        departing.append(&mut self.moving.departing);
        self.moving.departing = departing;
        shrink(&mut self.moving.departing);
        for _ in self.moving.handed_off + self.moving.departing.len()..self.moving.allowed {
            let Some(conn) = self.moving.next.pop() else { break };
            if self.clients.is_current(conn.client(), conn.generation()) {
                self.leave(conn.client());
                self.moving.is_pressing = true;
            }
        }
    }

    /// Hands the client off if it is at rest. Returns whether it need not be looked at again.
    fn depart(&mut self, conn: ConnId) -> bool {
        let index = conn.client();
        let Some(client) = self.clients.get(index, conn.generation()) else { return true };
        if client.handoff != Handoff::Asked || client.state == State::Closing {
            return true;
        }
        // A transaction goes on to its end, and it can begin to listen meanwhile. Then it stays as
        // if it had listened before.
        if self.is_pinned(index) {
            self.handle_stay(conn);
            return true;
        }
        let client = &self.clients[index];
        let is_amidst = client.state == State::Uploading
            || client.modes.transaction.is_some()
            || client.modes.many.is_some()
            || client.modes.ending.is_some();
        debug_assert!(
            client.head != RequestId::NONE || !client.modes.has_announcements(),
            "they wait for the end of a reply"
        );
        if client.head != RequestId::NONE || is_amidst {
            return false;
        }
        // What it is answered goes by the next write, as a rule; it would take longer elsewhere.
        if client.dirty != Dirty::No {
            self.moving.is_pressing = true;
            return false;
        }
        self.leave_line(index);
        self.pause(index);
        self.clients[index].handoff = Handoff::HandedOff;
        self.moving.handed_off += 1;
        self.actions.push_back(Action::HandOff { conn });
        true
    }

    /// Takes a client that was handed off out of here, now that the driver has let go of its
    /// connection; `None` if it is gone. Whoever is told to may still take it in, here too.
    pub fn export(&mut self, conn: ConnId, now: Time) -> Option<Export> {
        self.now = now;
        let client = self.clients.get(conn.client(), conn.generation())?;
        if client.handoff != Handoff::HandedOff {
            return None;
        }
        debug_assert!(
            client.head == RequestId::NONE && client.state == State::Open,
            "it is at rest"
        );
        let swallow = match self.unpark(conn.client()) {
            Some(Parser::Swallow(bytes)) => bytes,
            _ => 0,
        };
        // Where it goes to, the request that stands in front of its input begins anew.
        self.tours.remove(&conn.client());
        let backend = self.backend_of(conn.client());
        self.publish_user(conn.client());
        self.unmeter(conn.client());
        self.strip_output(conn.client());
        let mut client = self.clients.remove(conn.client());
        self.moving.forget_handed_off();
        self.activity.depart(client.asked_in);
        let output = client.output.to_vec();
        client.output.clear(&mut self.bufs);
        self.bufs.discharge(client.input.capacity() + client.session.profile_size());
        let listener = &mut self.listeners[client.listener];
        listener.clients -= 1;
        // Its place moves with it.
        listener.places_taken -= u64::from(client.has_place);
        self.metrics.set_pool(
            listener.metrics,
            PoolGauge::ClientConnections,
            listener.places_taken,
        );
        self.leave_variant(backend, client.variant);
        let silence = match (client.skip, client.noreply) {
            (Skip::This, _) => Silence::Next,
            (Skip::No | Skip::AfterThis, true) => Silence::All,
            (Skip::No | Skip::AfterThis, false) => Silence::None,
        };
        let Session {
            id, authenticated, wire_protocol, database, profile, wishes, since_us, ..
        } = client.session;
        let expires_at = profile.as_ref().and_then(|profile| profile.expires_at);
        let parts = SessionParts {
            id,
            authenticated,
            swallow,
            wire_protocol: (!client.undecided).then_some(wire_protocol),
            database: database.number(),
            profile: profile.map(|profile| *profile).unwrap_or_default(),
            expires_in_us: expires_at.map(|at| at.micros_since(now)),
            no_evict: wishes.no_evict(),
            tracking: client.modes.tracking.as_ref().map(|mode| mode.words()).unwrap_or_default(),
            notified: wishes.notified(),
            reads: client.reads,
            silence,
            is_observed: client.modes.is_observed,
            called: client.called.name().unwrap_or_default().to_owned(),
            age_us: (now.as_micros() as i64 - since_us).max(0) as u64,
            totals: client.totals,
        };
        Some(Export { listener: client.listener, parts, input: client.input, output })
    }

    /// A client comes from another process, where it was welcome. Returns the id of the connection, which the driver is
    /// to be given before the next [`Engine::settle`].
    pub fn handle_adopted(
        &mut self,
        listener: ListenerId,
        parts: SessionParts,
        input: Vec<u8>,
        output: Vec<u8>,
        now: Time,
    ) -> ConnId {
        self.now = now;
        self.clients_seen += 1;
        let SessionParts { id, authenticated, swallow, wire_protocol, database, profile, .. } =
            parts;
        let undecided = wire_protocol.is_none() && self.is_undecided(listener);
        let config = &mut self.listeners[listener];
        let first = self.backends[config.destination.backend].params_set[0];
        // It may have been somebody where there were no users, or is nobody any more.
        let (is_known, user) = config.user_again(authenticated, profile.user_name());
        let expires_at = parts.expires_in_us.filter(|_| is_known).map(|us| now.plus_micros(us));
        let profile = Profile { user, expires_at, ..profile };
        let session = Session {
            id,
            protocol: config.protocol,
            wire_protocol: wire_protocol.unwrap_or(first.wire_protocol),
            database: database.into(),
            authenticated: is_known,
            profile: (profile != Profile::default()).then(|| Box::new(profile)),
            wishes: Wishes::new(parts.no_evict, parts.notified),
            since_us: now.as_micros() as i64 - parts.age_us as i64,
        };
        self.bufs.charge(session.profile_size());
        config.clients += 1;
        config.places_taken += 1;
        self.metrics.set_pool(config.metrics, PoolGauge::ClientConnections, config.places_taken);
        let mut client = Client::new(listener, self.clients_seen as u16, session);
        client.has_place = true;
        client.destination = config.destination_of(client.session.user());
        client.called = redis::CommandId::named(&parts.called);
        client.totals = parts.totals;
        let has_user_row = !config.user_rows.is_empty();
        client.parser = (swallow > 0).then_some(Parser::Swallow(swallow));
        client.undecided = undecided;
        client.off_fast_path = undecided;
        (client.noreply, client.skip) = match parts.silence {
            Silence::None => (false, Skip::No),
            Silence::Next => (true, Skip::This),
            Silence::All => (true, Skip::No),
        };
        if parts.is_observed {
            client.modes.enter().is_observed = true;
        }
        if let Some(mode) = TrackingMode::of_words(&parts.tracking) {
            client.modes.enter().tracking = Some(Box::new(mode));
        }
        client.asked_in = self.activity.period();
        self.bufs.charge(output.capacity());
        client.output.push_buf(output, &mut self.bufs);
        self.bufs.charge(input.capacity());
        client.input = input;
        let (is_asking, is_owed) = (!client.input.is_empty(), !client.output.is_empty());
        let (index, generation) = self.clients.insert(client);
        self.write_marks.forget(index);
        self.standpoints.forget(index);
        self.published.forget(index);
        if has_user_row {
            // Where it comes from they are with its user's already.
            self.published.replace(index, parts.totals);
        }
        self.set_reads(index, parts.reads);
        // It may have written a moment ago, where it was.
        self.note_write(index);
        self.settle_write(index);
        self.leave_new(index);
        self.meter(index);
        self.await_expiry(index);
        let is_elsewhere = self.clients[index].destination != DestinationNumber::OWN;
        let is_followed =
            (!is_elsewhere || self.has_its_database(index)) && self.follow_session(index);
        if is_owed {
            self.mark_client(index);
        }
        self.follow_tracking(index);
        // It could not be served as it has asked for: a worker has room for so many variants.
        if self.draining || !is_followed || authenticated && !is_known {
            self.finish(index);
        } else {
            self.throttle_new(index);
            self.announce_move(index);
            if is_asking {
                // What it asked is looked at in its turn.
                self.pause(index);
                self.unblock(index);
            }
        }
        ConnId::of_client(index, generation)
    }
}
