//! Calls that the server lets wait: BLPOP and its like.
//!
//! Such a request has a lane to itself until it is answered, however long that takes; `timeout`
//! counts only from when the server should have answered. Its client is fenced: what it asks next
//! waits, as in Redis.
//!
//! The server is told to end a wait (CLIENT UNBLOCK) when the client has to leave this process, or
//! its keys may get another server. If the server had nothing to give until then, the request is put
//! back in front of what the client has sent since, and asked anew where it belongs. When the client
//! goes, the connection is closed, so that nothing is taken out of a list for nobody.
//!
//! The word is ERROR, not TIMEOUT, wherever nothing is lost by it. A call that came while the server held
//! writes back (CLIENT PAUSE, FAILOVER) is not blocked by its own rule yet, and TIMEOUT ends servers by an
//! assertion then: Redis 6.2 up to 8.0, Valkey up to 8.1. Newer ones refuse both words, so that they are told
//! again until the call is over. Up to Redis 7.0 such a call is executed after its error: its connection is
//! closed as soon as the error is here.

use std::sync::Arc;

use cashew_protocol::Span;
use cashew_protocol::memcached::Expect;
use cashew_protocol::redis::{self, Access, Command, Fan, Lookup, Rule, Wait};
use cashew_protocol::resp::{self, Parsed, Reply, RequestParser, encode};

use crate::base::failure::{Failure, NamedFailure};
use crate::base::id::{BackendId, ClientId, ConnId, LaneId, RequestId};
use crate::base::time::Time;
use crate::downstream::client::{Handoff, State};
use crate::downstream::key_prefix::KeyPrefix;
use crate::downstream::receive::Plan;
use crate::engine::{Closed, Engine};
use crate::exchange::dispatch::Payload;
use crate::exchange::flow::{Flow, FlowContext, Step};
use crate::redis::cluster::SentBack;
use crate::redis::keyless;
use crate::redis::redirects::is_redirect;
use crate::redis::tenant::{Named, named_by, stripped};
use crate::request::replay::Replay;
use crate::request::{Due, Own};
use crate::upstream::exclusive::{Lease, Turn};
use crate::upstream::lane::Link;
use crate::upstream::redirect::{ASKING, Elsewhere};
use crate::upstream::session_params::WireProtocol;

/// So much may come of a client while it is blocked before it is not read any more. It is read at
/// all so that its end is noticed.
pub(crate) const AHEAD_OF_BLOCKED_MAX: usize = 64 * 1024;

/// The request of a client that its server lets wait.
pub(crate) struct Blocking {
    pub(crate) lane: LaneId,
    pub(crate) request: RequestId,
    /// When the server should have answered at the latest.
    pub(crate) until: Time,
    /// When the client's own time is up.
    pub(crate) ends: Time,
    /// The request as it came.
    text: Replay,
    /// Nodes of a cluster have sent it back.
    sent_back: Option<SentBack>,
    /// The server was told to end the wait, and the call is asked anew.
    pub(crate) is_withdrawn: bool,
    /// Somebody wished that it ends, and was told that it does: it is not asked anew.
    ending: Option<Ending>,
    /// The server is to be told so as soon as it can be: it has yet to say what to call the connection, or to
    /// get the end of the call.
    is_due: bool,
    /// The server may still be about to do as it was told, so that nobody else may wait there.
    is_marked: bool,
    /// It is answered a number of replicas, also when it is ended.
    counts: bool,
}

/// How a call ends at somebody's wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// As if its time were up.
    TimeOver,
    Error,
}

/// What the reply to a call begins with that was ended by ERROR.
const ENDED: &[u8] = b"-UNBLOCKED client unblocked";

/// As Redis says it.
const UNBLOCKED: &str = "UNBLOCKED client unblocked via CLIENT UNBLOCK";

impl Engine {
    /// A command that may wait.
    pub(crate) fn block_redis(
        &mut self,
        client: ClientId,
        command: &'static Command,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        if self.clients[client].requests > 0 {
            return Plan::Wait;
        }
        if let Some(ending) = self.clients[client].modes.take_ending() {
            return self.reply_ended(client, command, ending);
        }
        self.with_keys(client, command, bytes, args, |engine, keys, split| {
            let texts = keys.iter().map(|key| key.of(bytes));
            let server = match keys {
                [] => match engine.any_server(client, Access::Write) {
                    Some(server) => server,
                    None => return engine.fail(client, Failure::NoServer),
                },
                _ => match engine.place_keys(client, texts, Access::Write, split) {
                    Ok(Some(server)) => server,
                    Ok(None) => {
                        let text = engine.crossing(client, command, bytes, keys, split);
                        return engine.reply_error(client, &text);
                    }
                    Err(failure) => return engine.fail(client, failure),
                },
            };
            let asked_at = engine.clients[client].modes.sent_back.as_ref().and_then(|it| it.ask_at);
            let server = asked_at.unwrap_or(server);
            let is_keyless = keys.is_empty();
            let lane = match engine.leased(client, server) {
                Some(lane) => {
                    engine.align(client, lane);
                    lane
                }
                None => match engine.lease(client, server) {
                    Lease::Lane(lane) => lane,
                    other => return engine.without_lease(client, server, &other),
                },
            };
            if is_keyless {
                engine.catch_up(lane);
            }
            // A reload may have left one server only of those that it was to ask.
            if !engine.tours.is_empty() {
                engine.tours.remove(&client);
            }
            let wait = command.wait(bytes, args);
            engine.block_on(client, lane, (wait, command, named_by(command)), bytes, bytes);
            if engine.leased(client, server).is_none() {
                // Until it is answered nobody else gets the lane.
                engine.release(lane);
            }
            Plan::Done
        })
    }

    /// WAIT counts from what its connection did last, which is to be later than all that the client
    /// wrote by others: from its last command (up to 7.0), or from its last one that replicas get.
    /// That one nobody sees who does not subscribe to this channel.
    pub(crate) fn catch_up(&mut self, lane: LaneId) {
        self.ask(lane, Own::Whatever, Due::Status, &["PING"]);
        self.ask(lane, Own::Whatever, Due::Integer, &["SPUBLISH", "cashew:wait", ""]);
    }

    /// Sends `sent`, which the server may let wait before it answers what is due; `bytes` is what the client has sent.
    pub(crate) fn block_on(
        &mut self,
        client: ClientId,
        lane: LaneId,
        (wait, command, named): (Wait, &'static Command, Named),
        bytes: &[u8],
        sent: &[u8],
    ) {
        if self.lane(lane).peer_id == 0 {
            self.ask(lane, Own::PeerId { lane }, Due::Integer, &["CLIENT", "ID"]);
        }
        let backend = &self.backends[self.backend_of(client)];
        let (until, ends) = match wait {
            Wait::AtMost { millis } => {
                let ends = self.now.plus_millis(millis);
                (backend.expiry(ends), ends)
            }
            Wait::ForEver | Wait::No => (Time::NEVER, Time::NEVER),
        };
        let text = Replay::new(bytes, &mut self.bufs);
        let sent_back = self.clients[client].modes.take_sent_back();
        let request = self.new_request(client);
        let slot = &mut self.requests[request];
        slot.expect = Expect::Line;
        slot.due = Due::of_wait(command.name);
        let prefix = self.clients[client].session.key_prefix().cloned();
        self.watch_reply(request, Box::new(Waiting { prefix, named }), None);
        let blocking = Blocking {
            lane,
            request,
            until,
            ends,
            text,
            sent_back,
            is_withdrawn: false,
            ending: None,
            is_due: false,
            is_marked: false,
            counts: matches!(command.name, "wait" | "waitaof"),
        };
        let state = &mut self.clients[client];
        state.modes.enter().blocking = Some(Box::new(blocking));
        state.modes.end_observed();
        state.fenced = true;
        // Whoever waits here is not somebody whom others wait for.
        self.activity.leave();
        if sent_back.is_some_and(|it| it.ask_at == Some(self.lanes[lane].server)) {
            self.ask_with(lane, Own::Whatever, Due::OK, ASKING);
        }
        self.send(lane, request, Payload::Bytes(sent));
    }

    /// Ends the wait of a client, at somebody's wish. Returns whether it waited.
    pub(crate) fn end_wait(&mut self, client: ClientId, ending: Ending) -> bool {
        let Some(blocking) = &self.clients[client].modes.blocking else {
            return self.end_before(client, ending);
        };
        if blocking.ending.is_some() {
            return false;
        }
        let (index, request, is_withdrawn) =
            (blocking.lane, blocking.request, blocking.is_withdrawn);
        let lane = self.lane(index);
        let is_known = self.is_engaged(index);
        let is_to_be_named = is_known && lane.peer_id == 0 && lane.head != request;
        // One that is withdrawn ends, and has only to stay so.
        if is_known && !is_to_be_named && !is_withdrawn && !self.tell_to_end(client, ending) {
            return false;
        }
        self.shorten_wait_all(client);
        if let Some(blocking) = self.clients[client].modes.blocking() {
            blocking.ending = Some(ending);
            // The server is about to say what to call the connection.
            blocking.is_due |= is_to_be_named;
        }
        if !is_known {
            self.break_session(index, Failure::Removed);
        }
        true
    }

    /// The same for a client whose call no server knows of: it waits for a lane, or for the end of a
    /// change.
    fn end_before(&mut self, client: ClientId, ending: Ending) -> bool {
        let state = &self.clients[client];
        let is_next = state.paused
            && state.requests == 0
            && state.state == State::Open
            && state.handoff != Handoff::HandedOff
            && matches!(state.modes.turn, Turn::No | Turn::Waits | Turn::Has { .. })
            && state.modes.ending.is_none()
            && !self.is_queueing(client);
        if !is_next || !self.is_call_in_front(client) {
            return false;
        }
        self.leave_line(client);
        self.shorten_wait_all(client);
        self.clients[client].modes.enter().ending = Some(ending);
        self.unblock(client);
        true
    }

    /// Whether what the client has sent begins with a call that may wait.
    fn is_call_in_front(&self, client: ClientId) -> bool {
        let state = &self.clients[client];
        let input = &state.input;
        let mut parser = RequestParser::default();
        if !matches!(state.session.wire_protocol, WireProtocol::Resp2 | WireProtocol::Resp3) {
            return false;
        }
        let Parsed::Complete { len } = parser.parse(input, input.len()) else { return false };
        let mut bytes = parser.inline_encoded().unwrap_or(&input[..len]);
        let mut args = parser.args();
        if args.is_empty() {
            return false;
        }
        let (renamed, is_gone) = self.renamed_request(client, bytes, args);
        if is_gone {
            return false;
        }
        if let Some((text, parser)) = &renamed {
            (bytes, args) = (text, parser.args());
        }
        matches!(redis::find(bytes, args), Lookup::Found(command) if command.blocks(bytes, args))
    }

    /// Answers a call that is over before a server knew of it, or before all did.
    pub(crate) fn reply_ended(
        &mut self,
        client: ClientId,
        command: &'static Command,
        ending: Ending,
    ) -> Plan {
        let wait_all = self.tours.remove(&client);
        match (ending, command.rule) {
            (Ending::Error, _) => self.reply_error(client, UNBLOCKED),
            (Ending::TimeOver, Rule::Fan(fan)) => self.reply_with(client, |out| match wait_all {
                Some(wait_all) if wait_all.has_heard() => wait_all.write_reply(out),
                // No replica is known to have anything.
                _ => match fan {
                    Fan::LeastEach => out.extend_from_slice(b"*2\r\n:0\r\n:0\r\n"),
                    _ => encode::write_integer(out, 0),
                },
            }),
            (Ending::TimeOver, _) => {
                let version = self.resp_of(client);
                self.reply_with(client, |out| encode::write_null_array(out, version))
            }
        }
    }

    /// Has the server end the wait of a client, whose request is put back then. It does nothing
    /// where the server cannot be told.
    pub(crate) fn withdraw(&mut self, client: ClientId) {
        let Some(blocking) = &self.clients[client].modes.blocking else { return };
        if blocking.ending.is_some() {
            return;
        }
        let (index, request) = (blocking.lane, blocking.request);
        if !self.is_engaged(index) {
            // The server knows nothing of it yet.
            self.break_session(index, Failure::Removed);
            return;
        }
        let lane = self.lane(index);
        let is_unnamed = lane.head != request && lane.peer_id == 0;
        if is_unnamed || lane.unsent > 0 {
            if let Some(blocking) = self.clients[client].modes.blocking() {
                blocking.is_due = true;
            }
            return;
        }
        if self.tell_to_end(client, Ending::TimeOver)
            && let Some(blocking) = self.clients[client].modes.blocking()
        {
            blocking.is_withdrawn = true;
        }
    }

    fn tell_to_end(&mut self, client: ClientId, ending: Ending) -> bool {
        let Some(blocking) = &self.clients[client].modes.blocking else { return false };
        let (lane, is_told) = (self.lane(blocking.lane), blocking.is_marked);
        // Only TIMEOUT gets the number out of it. It writes nothing, so that nobody holds it back alone.
        let by_timeout = blocking.counts && ending == Ending::TimeOver;
        let (peer, pool, server) = (lane.peer_id, lane.backend, lane.server);
        let is_sent = lane.in_flight > 0 && matches!(lane.link, Link::Ready { .. });
        let messenger = self.backends[pool].servers[server].lane(0, 0);
        let is_silent = self.backends[pool].servers[server].is_silent();
        let can_tell = !is_silent && !matches!(self.lane(messenger).link, Link::Backoff { .. });
        if peer == 0 || !is_sent || !can_tell {
            return false;
        }
        if is_told {
            return true;
        }
        if self.lane(messenger).link == Link::Idle {
            self.connect(messenger);
        }
        let peer = peer.to_string();
        let how = if by_timeout { "TIMEOUT" } else { "ERROR" };
        let words = ["CLIENT", "UNBLOCK", &peer, how];
        let client_conn = self.client_conn(client);
        self.ask(messenger, Own::Unblock { client: client_conn }, Due::Integer, &words);
        if let Some(blocking) = self.clients[client].modes.blocking() {
            blocking.is_marked = true;
        }
        true
    }

    /// The server has answered that it has ended no call: it is over, with its reply on the way, or is held back.
    pub(crate) fn note_not_ended(&mut self, client: ConnId, reply: &[u8]) {
        if reply == b":0\r\n" {
            self.not_ended.push(client);
        }
    }

    /// Tells servers again to end calls that they held back when they were told. To be called once a second.
    pub(crate) fn end_again(&mut self) {
        for conn in std::mem::take(&mut self.not_ended) {
            let client = conn.client();
            if !self.clients.is_current(client, conn.generation()) {
                continue;
            }
            let Some(blocking) = self.clients[client].modes.blocking() else { continue };
            if !std::mem::take(&mut blocking.is_marked) {
                continue;
            }
            let ending = blocking.ending.unwrap_or(Ending::TimeOver);
            if !self.tell_to_end(client, ending) {
                self.not_ended.push(conn);
            }
            if let Some(blocking) = self.clients[client].modes.blocking() {
                blocking.is_marked = true;
            }
        }
    }

    /// The server has said, or not, what to call the connection where the next request waits, or has got all
    /// of that request.
    pub(crate) fn withdraw_due(&mut self, lane: LaneId) {
        let Some(blocking) = self.blocked_at(lane).filter(|blocking| blocking.is_due) else {
            return;
        };
        let ending = blocking.ending;
        let client = self.requests[self.lane(lane).head].client;
        if let Some(blocking) = self.clients[client].modes.blocking() {
            blocking.is_due = false;
        }
        match ending {
            Some(ending) => {
                self.tell_to_end(client, ending);
            }
            None => self.withdraw(client),
        }
    }

    /// Withdraws what clients of these pools wait for. A route's clients wait at a pool where it leads, and may have to
    /// go elsewhere when either changes.
    pub(crate) fn withdraw_all(&mut self, pools: impl Fn(BackendId) -> bool) {
        for client in self.clients.indices().collect::<Vec<ClientId>>() {
            let state = &self.clients[client];
            let own = BackendId::new(state.listener.number());
            if state.modes.blocking.is_some() && (pools(self.backend_of(client)) || pools(own)) {
                self.withdraw(client);
            }
        }
    }

    /// Whether the request at the head of a lane waits there for as long as it likes.
    pub(crate) fn waits_at(&self, index: LaneId) -> bool {
        self.blocked_at(index).is_some_and(|blocking| !blocking.is_withdrawn && !blocking.is_due)
    }

    /// The request at the head of a lane, if it is one that may wait there.
    pub(crate) fn blocked_at(&self, index: LaneId) -> Option<&Blocking> {
        let lane = self.lane(index);
        if !lane.is_session || lane.head == RequestId::NONE {
            return None;
        }
        let client = self.requests[lane.head].client;
        if client == ClientId::NONE {
            return None;
        }
        let blocking = self.clients[client].modes.blocking.as_deref();
        blocking.filter(|blocking| blocking.request == lane.head)
    }

    /// The request of a client has waited, and got this reply.
    fn wait_over(&mut self, request: RequestId, reply: &[u8]) -> Over {
        let client = self.requests[request].client;
        let blocking = self.clients[client].modes.end_blocking();
        let mut blocking = blocking.expect("a request that waits is its client's blocking one");
        debug_assert_eq!(blocking.request, request);
        self.activity.come_back();
        let lane = self.lane(blocking.lane);
        if blocking.is_marked && lane.has_connection() {
            if lane.is_free() && lane.lease == ClientId::NONE {
                self.disconnect(blocking.lane, Closed::ByUs);
            } else if reply.starts_with(ENDED) {
                // Nothing that follows may get the reply to the call, if there is one after all.
                self.ask(blocking.lane, Own::Whatever, Due::Status, &["PING"]);
            }
        }
        // The wait is not counted among the times that answers take.
        self.requests[request].started = self.now;
        // One that is to ask nothing more has to make do with it.
        let may_ask = self.clients[client].state != State::Closing;
        let may_go_on = may_ask && blocking.ending != Some(Ending::TimeOver);
        let is_ended = reply.starts_with(ENDED);
        let is_vain = blocking.is_withdrawn
            && (is_nil(reply) || is_ended || (may_go_on && blocking.is_cut_short(reply, self.now)));
        let is_elsewhere =
            may_ask && blocking.ending.is_none() && self.call_goes_on(client, &blocking, reply);
        if is_vain || is_elsewhere || self.end_stop(client, reply) {
            return Over::AskAnew(self.asked_anew(client, *blocking));
        }
        blocking.text.give_back(&mut self.bufs);
        if is_ended && blocking.ending == Some(Ending::TimeOver) {
            return Over::Null;
        }
        Over::Reply
    }

    /// Whether a node of a cluster has not run a call, which is to be asked of another.
    fn call_goes_on(&mut self, client: ClientId, blocking: &Blocking, reply: &[u8]) -> bool {
        if !reply.starts_with(b"-") {
            return false;
        }
        let backend = self.lane(blocking.lane).backend;
        // The node takes writes no more.
        let is_demoted =
            reply.starts_with(b"-UNBLOCKED force") && self.backends[backend].topology.has_slots();
        if is_demoted {
            self.doubt_map(backend);
        }
        let noted = is_demoted.then_some(Elsewhere::Again);
        let before = blocking.sent_back.filter(|before| !before.has_waited(self.now));
        let sent_back = self.goes_on(client, blocking.lane, before, (noted, reply));
        if sent_back.is_some() {
            self.clients[client].modes.enter().sent_back = sent_back;
        }
        sent_back.is_some()
    }

    /// What the client has asked, which is asked anew, or answered here if it has come to its end.
    fn asked_anew(&mut self, client: ClientId, blocking: Blocking) -> Replay {
        let state = &mut self.clients[client];
        if self.listeners[state.listener].is_monitored {
            state.modes.enter().is_observed = true;
        }
        if blocking.ending.is_some() {
            state.modes.enter().ending = blocking.ending;
        }
        blocking.text
    }

    /// What a client that waits has sent is not what its server got.
    pub(crate) fn keep_asked(&mut self, client: ClientId, bytes: &[u8]) {
        if let Some(blocking) = self.clients[client].modes.blocking() {
            let text = Replay::new(bytes, &mut self.bufs);
            std::mem::replace(&mut blocking.text, text).give_back(&mut self.bufs);
        }
    }

    /// Whether the client is read though nothing of it is consumed.
    pub(crate) fn is_listened_to(&self, client: ClientId) -> bool {
        let state = &self.clients[client];
        state.modes.blocking.is_some()
            || state.modes.turn == Turn::Waits
            || self.is_held_back(client)
    }

    /// The client has gone: ends its wait.
    pub(crate) fn drop_blocking(&mut self, blocking: Blocking) {
        blocking.text.give_back(&mut self.bufs);
        self.activity.come_back();
    }
}

/// What becomes of a request that has waited.
enum Over {
    AskAnew(Replay),
    /// It is answered as if its time were up.
    Null,
    /// The reply is the client's.
    Reply,
}

/// The request that [`Blocking`] is about: it is answered, or asked anew.
#[derive(Debug)]
struct Waiting {
    /// That of the client's user.
    prefix: Option<Arc<KeyPrefix>>,
    /// Where the reply names keys.
    named: Named,
}

impl Flow for Waiting {
    fn on_reply(&mut self, cx: &mut FlowContext<'_>, _attempt: RequestId, reply: &[u8]) -> Step {
        match cx.engine.wait_over(cx.request, reply) {
            Over::AskAnew(replay) => Step::TakeBack(replay),
            Over::Null => {
                let version = cx.engine.resp_of(cx.engine.requests[cx.request].client);
                cx.reply(0, |out| encode::write_null_array(out, version))
            }
            Over::Reply
                if cx.engine.backends[cx.engine.requests[cx.request].backend]
                    .topology
                    .has_slots()
                    && is_redirect(reply) =>
            {
                Step::Fail(Failure::ClusterDown.into())
            }
            Over::Reply => stripped(cx, self.prefix.as_ref(), self.named, reply),
        }
    }

    fn on_failure(
        &mut self,
        cx: &mut FlowContext<'_>,
        _attempt: RequestId,
        why: NamedFailure,
    ) -> Step {
        let FlowContext { engine, request, .. } = cx;
        let (client, pool) = (engine.requests[*request].client, engine.requests[*request].backend);
        if matches!(why.why, Failure::Removed | Failure::Replaced) {
            // The server did not get to answer it.
            let Some(blocking) = engine.clients[client].modes.end_blocking() else {
                return Step::Fail(why);
            };
            engine.activity.come_back();
            return Step::TakeBack(engine.asked_anew(client, *blocking));
        }
        let mut error = Vec::new();
        why.write_reply(engine.backends[pool].protocol, &mut error);
        match engine.wait_over(*request, &error) {
            Over::AskAnew(replay) => Step::TakeBack(replay),
            Over::Null | Over::Reply => Step::Fail(why),
        }
    }
}

impl Blocking {
    /// Whether the reply is what WAIT or WAITAOF says whose time is not up: less than it asked for.
    /// Then the request asks for what is left of the time from here on.
    fn is_cut_short(&mut self, reply: &[u8], now: Time) -> bool {
        let mut parser = RequestParser::default();
        let text = self.text.bytes();
        let Parsed::Complete { .. } = parser.parse(text, text.len()) else {
            return false;
        };
        let [name, wanted @ .., last] = parser.args() else { return false };
        let name = name.of(text);
        let said = match resp::reply(reply) {
            Some(Reply::Integer(count)) if name.eq_ignore_ascii_case(b"wait") => vec![count],
            _ if name.eq_ignore_ascii_case(b"waitaof") => {
                keyless::integers(reply).unwrap_or_default()
            }
            _ => return false,
        };
        let mut pairs = wanted.iter().zip(said);
        let is_less = pairs.any(|(wanted, said)| {
            resp::integer(wanted.of(text)).is_some_and(|wanted| said < wanted)
        });
        let millis = self.ends.micros_since(now).div_ceil(1000);
        if !is_less || millis == 0 {
            return false;
        }
        if self.ends != Time::NEVER
            && let Some(at) = text[..last.start as usize].iter().rposition(|&it| it == b'$')
        {
            self.text.rewrite(at, |text| {
                encode::write_bulk(text, millis.to_string().as_bytes());
            });
        }
        true
    }
}

/// Nothing, in either dialect.
fn is_nil(reply: &[u8]) -> bool {
    matches!(reply, b"*-1\r\n" | b"$-1\r\n" | b"_\r\n")
}
