//! What goes on after a reply.
//!
//! A merge combines replies. A [`Flow`] decides what comes next: it is a small state machine that is
//! attached to a request, sees each reply, and answers with a [`Step`]. Exchange carries the steps
//! out and knows none of the flows; they are in `redis/` and `memcached/`, one file each.
//!
//! A flow is attached in one of two ways.
//!
//! - [`Engine::watch_reply`]: the request itself goes to a server, as it would without the flow, which
//!   sees the reply before the client does. Most replies it passes on ([`Step::Answer`]).
//! - [`Engine::begin_flow`]: the flow sends *attempts* in the request's place. The first step, and
//!   any later one, may be [`Step::Send`]. One attempt may be on its way, or several: a flow that
//!   needs all replies waits while [`FlowContext::pending`] is not 0.
//!
//! A watched request may become one with attempts: that is what a redirect or a retry does.
//!
//! # How to add one
//!
//! Write a file with a type for the state, and `impl Flow` for it. Attach it where the request is
//! planned. Nothing in `exchange/` or `request/` changes. For example:
//!
//! - A redirect (MOVED, ASK): `watch_reply` with the request's [`Replay`]; [`Flow::on_start`] keeps
//!   only errors; `on_reply` of `-MOVED` is [`Step::Send`] of [`Text::Replay`] to the server that it
//!   names.
//! - A retry on another server: `watch_reply` with the replay; `on_failure` is [`Step::Send`] to the
//!   next server where that is safe, else [`Step::Fail`].
//! - A hedge: `begin_flow` with the request as the first attempt, and [`Engine::wake_flow`];
//!   [`Flow::on_timeout`] is [`Step::Send`] to another server, and `on_reply` is [`Step::Answer`]:
//!   the attempt that is left is for nobody then.
//! - A wait for a failover: `on_failure` calls `wake_flow` and is [`Step::Wait`], and `on_timeout`
//!   sends the replay again.
//! - The next page: as the redirect, but `on_reply` sends a text of its own until there is no page
//!   left, and then answers with [`Step::Reply`].
//!
//! `flow/tests.rs` has a redirect, a retry and a hedge as they could be written.
//!
//! What to know:
//!
//! - While a watched request is on its way itself, nothing can be sent in its place.
//! - The client's next requests overtake what a flow sends later, unless the client is fenced
//!   ([`FlowContext::fence`]).
//! - A flow ends when its client has gone, unless it [outlives](Flow::outlives_client) that; then
//!   it sees the first bytes of replies, and sends on lanes that it has chosen itself.
//! - Server numbers may mean other servers after a reload: a flow that keeps one compares the pool's
//!   `walk` first.
//! - A flow must come to an end: it counts what it sends.

#[cfg(test)]
mod tests;

use std::fmt::Debug;

use cashew_metrics::PoolCounter;
use cashew_protocol::memcached::Expect;

use crate::base::buffer::BufPool;
use crate::base::failure::{Failure, NamedFailure};
use crate::base::id::{BackendId, ClientId, FlowId, LaneId, RequestId, ServerId};
use crate::base::slab::Slab;
use crate::base::time::Time;
use crate::base::timers::Timer;
use crate::engine::Engine;
use crate::exchange::deliver::PROBE_REPLY_MAX;
use crate::exchange::dispatch::Payload;
use crate::request::replay::Replay;
use crate::request::{Own, Request, Role};

/// What goes on after the reply to a request.
pub(crate) trait Flow: Debug {
    /// It was just attached, by [`Engine::start_flow`].
    fn on_begin(&mut self, _cx: &mut FlowContext<'_>) -> Step {
        Step::Wait
    }

    /// A reply is here, whole. `attempt` is the request itself where that is watched.
    fn on_reply(&mut self, cx: &mut FlowContext<'_>, attempt: RequestId, reply: &[u8]) -> Step;

    /// An attempt got no reply, or nothing could be sent ([`RequestId::NONE`]).
    fn on_failure(
        &mut self,
        _cx: &mut FlowContext<'_>,
        _attempt: RequestId,
        why: NamedFailure,
    ) -> Step {
        Step::Fail(why)
    }

    /// It is the time that [`Engine::wake_flow`] was called for, and there is no answer yet.
    fn on_timeout(&mut self, _cx: &mut FlowContext<'_>) -> Step {
        Step::Wait
    }

    /// The reply to a watched request begins so, and more of it is to come. Returns whether it has to
    /// be here whole for [`Flow::on_reply`]; otherwise the flow is over, and the reply goes to the
    /// client as it arrives.
    fn on_start(&mut self, _cx: &mut FlowContext<'_>, _start: &[u8]) -> bool {
        true
    }

    /// Whether it goes on when the client has gone.
    fn outlives_client(&self) -> bool {
        false
    }

    /// So much of a reply is kept for it when nobody else waits.
    fn keeps(&self) -> usize {
        PROBE_REPLY_MAX
    }

    /// Bytes allocated, which do not change while it is attached.
    fn size(&self) -> usize {
        0
    }

    /// It is over: gives back what is to be used again.
    fn recycle(self: Box<Self>, _engine: &mut Engine) {}
}

/// What a flow does next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Waits for other attempts, or for somebody who answers in its place
    /// ([`Engine::deliver_buf`]); the reply to a watched request is kept meanwhile.
    Wait,
    /// Sends attempts, beside those that are on their way.
    Send(Attempts),
    /// The reply that was seen last is the answer.
    Answer,
    /// The answer, in a buffer of the pool's: see [`FlowContext::reply`].
    Reply(Vec<u8>),
    /// The answer is an error of the gateway's.
    Fail(NamedFailure),
    /// The request itself is sent there, in these words, which are in a buffer of the pool's. From here on it is like any
    /// other, and has begun now.
    Again(LaneId, Vec<u8>),
    /// The client's only request is taken back, as if it had just been received.
    TakeBack(Replay),
}

/// Requests that a flow sends together, on one lane, in this order.
#[derive(Debug)]
pub(crate) struct Attempts {
    to: Target,
    texts: [Option<Text>; 2],
    is_sealed: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// A lane of the client's to a server, as long as it is there.
    Server(ServerId),
    /// A lane that has room.
    Lane(LaneId),
}

#[derive(Debug)]
pub(crate) enum Text {
    /// The request as it was kept.
    Replay,
    /// In a buffer of the pool's.
    Owned(Vec<u8>),
}

impl Attempts {
    pub(crate) fn one(to: Target, text: Text) -> Self {
        Self { to, texts: [Some(text), None], is_sealed: false }
    }

    pub(crate) fn two(to: Target, first: Text, second: Text) -> Self {
        Self { to, texts: [Some(first), Some(second)], is_sealed: false }
    }

    /// Each with a seal behind it: see [`crate::request::seal`].
    pub(crate) fn sealed(self) -> Self {
        Self { is_sealed: true, ..self }
    }

    fn give_back(self, bufs: &mut BufPool) {
        for text in self.texts.into_iter().flatten() {
            if let Text::Owned(text) = text {
                bufs.give(text);
            }
        }
    }
}

/// What a flow may look at and use while it decides.
pub(crate) struct FlowContext<'e> {
    pub(crate) engine: &'e mut Engine,
    /// The request that it is attached to.
    pub(crate) request: RequestId,
    replay: Option<&'e Replay>,
    /// The attempt that it is about, and its reply.
    seen: (RequestId, &'e [u8]),
}

impl FlowContext<'_> {
    /// [`ClientId::NONE`] if it has gone.
    pub(crate) fn client(&self) -> ClientId {
        self.engine.requests[self.request].client
    }

    pub(crate) fn backend(&self) -> BackendId {
        self.engine.requests[self.request].backend
    }

    /// How many attempts are still on their way.
    pub(crate) fn pending(&self) -> u32 {
        match self.engine.requests[self.request].role {
            Role::Flow { pending, .. } => pending,
            _ => 0,
        }
    }

    /// The request, if it was kept.
    pub(crate) fn replay(&self) -> &[u8] {
        self.replay.map(Replay::bytes).unwrap_or_default()
    }

    /// The replies of all attempts, in their order; those on their way have none yet.
    pub(crate) fn replies(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let requests = &self.engine.requests;
        let (seen, reply) = self.seen;
        let mut at = match requests[self.request].role {
            Role::Flow { attempts, .. } => attempts,
            _ => RequestId::NONE,
        };
        std::iter::from_fn(move || {
            let attempt = at;
            if attempt == RequestId::NONE {
                return None;
            }
            at = requests.next_fragment(attempt);
            Some(if attempt == seen { reply } else { requests[attempt].reply.as_slice() })
        })
    }

    /// What the client asks next waits until this request is answered.
    pub(crate) fn fence(&mut self) {
        let client = self.client();
        if client != ClientId::NONE {
            self.engine.clients[client].fenced = true;
        }
    }

    /// The attempt that it is about, and its reply.
    pub(crate) fn seen(&self) -> (RequestId, &[u8]) {
        self.seen
    }

    /// An answer, written into a buffer that has room for so many bytes and may grow.
    pub(crate) fn reply(&mut self, room: usize, write: impl FnOnce(&mut Vec<u8>)) -> Step {
        Step::Reply(self.engine.written(room, write))
    }

    /// The same, where what servers have replied may make no sense: then `write` returns `None`.
    pub(crate) fn reply_or_bad(
        &mut self,
        room: usize,
        write: impl FnOnce(&mut Self, &mut Vec<u8>) -> Option<()>,
    ) -> Step {
        let mut out = self.engine.bufs.take_for(room);
        let before = out.capacity();
        let written = write(self, &mut out);
        self.engine.bufs.charge(out.capacity() - before);
        if written.is_some() {
            return Step::Reply(out);
        }
        self.engine.bufs.give(out);
        let pool = self.backend();
        self.engine.count_forward_error(pool);
        Step::Fail(Failure::BadReply.into())
    }
}

/// The flows of requests that are on their way.
pub(crate) struct Flows(Slab<FlowId, Slot>);

struct Slot {
    request: RequestId,
    wakes_at: Time,
    /// `None` while it decides something.
    attached: Option<Attached>,
}

struct Attached {
    flow: Box<dyn Flow>,
    replay: Option<Replay>,
}

impl Flows {
    pub(crate) const fn new() -> Self {
        Self(Slab::new())
    }

    pub(crate) fn shrink(&mut self) {
        self.0.shrink();
    }

    /// Takes it out for as long as it decides.
    fn take(&mut self, id: FlowId) -> Attached {
        self.0[id].attached.take().expect("a flow decides one thing at a time")
    }

    /// Whether something is under way that goes on without its client.
    pub(crate) fn any_outlives_client(&self) -> bool {
        self.0.indices().any(|id| self.outlives_client(id))
    }

    fn outlives_client(&self, id: FlowId) -> bool {
        self.0[id].attached.as_ref().is_some_and(|attached| attached.flow.outlives_client())
    }

    pub(crate) fn keeps(&self, id: FlowId) -> usize {
        self.0[id].attached.as_ref().map_or(PROBE_REPLY_MAX, |attached| attached.flow.keeps())
    }

    /// Whether a timer that was armed for this time is still of interest.
    pub(crate) fn wakes(&self, id: FlowId, generation: u32, at: Time) -> bool {
        self.0.get(id, generation).is_some_and(|slot| slot.wakes_at == at)
    }
}

impl Engine {
    /// A buffer of the pool's with what is written, which may be more than `room` bytes.
    pub(crate) fn written(&mut self, room: usize, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        self.bufs.written(room, write)
    }

    /// A request that is about to be sent as it is: the flow sees what comes of it.
    pub(crate) fn watch_reply(
        &mut self,
        request: RequestId,
        flow: Box<dyn Flow>,
        replay: Option<Replay>,
    ) {
        self.attach(request, flow, replay, (RequestId::NONE, 0));
    }

    /// What the flow of a request would ask anew is this, not what was sent.
    pub(crate) fn keep_replay(&mut self, request: RequestId, bytes: &[u8]) {
        let Role::Flow { flow, .. } = self.requests[request].role else { return };
        let Some(attached) = &mut self.flows.0[flow].attached else { return };
        let replay = Replay::new(bytes, &mut self.bufs);
        if let Some(before) = attached.replay.replace(replay) {
            before.give_back(&mut self.bufs);
        }
    }

    /// A request in whose place a flow sends attempts, beginning with this step.
    pub(crate) fn begin_flow(
        &mut self,
        request: RequestId,
        flow: Box<dyn Flow>,
        replay: Option<Replay>,
        step: Step,
    ) {
        self.watch_reply(request, flow, replay);
        self.take_step(request, RequestId::NONE, step);
    }

    /// The same, where the flow itself says what it begins with.
    pub(crate) fn start_flow(&mut self, request: RequestId, flow: Box<dyn Flow>) {
        self.watch_reply(request, flow, None);
        let none = (RequestId::NONE, &b""[..]);
        let step = self.consult(request, none, |flow, cx| flow.on_begin(cx));
        self.take_step(request, RequestId::NONE, step);
    }

    /// The same, but the attempts have been sent, or have failed: so many are on their way.
    pub(crate) fn go_on_with(
        &mut self,
        request: RequestId,
        flow: Box<dyn Flow>,
        (attempts, pending): (RequestId, u32),
    ) {
        self.attach(request, flow, None, (attempts, pending));
        let metrics = self.backends[self.requests[request].backend].metrics;
        self.metrics.add_pool(metrics, PoolCounter::Fragments, u64::from(pending));
        if pending == 0 {
            let none = (RequestId::NONE, &b""[..]);
            let step = self.consult(request, none, |flow, cx| {
                flow.on_failure(cx, RequestId::NONE, Failure::NoServer.into())
            });
            self.take_step(request, RequestId::NONE, step);
        }
    }

    /// The same, without counting the attempts.
    pub(crate) fn attach(
        &mut self,
        request: RequestId,
        flow: Box<dyn Flow>,
        replay: Option<Replay>,
        (attempts, pending): (RequestId, u32),
    ) {
        self.bufs.charge(flow.size());
        let attached = Some(Attached { flow, replay });
        let slot = Slot { request, wakes_at: Time::NEVER, attached };
        let (flow, _) = self.flows.0.insert(slot);
        self.requests[request].role = Role::Flow { flow, attempts, pending };
    }

    /// Has [`Flow::on_timeout`] called then, and not at a time that was set before.
    pub(crate) fn wake_flow(&mut self, request: RequestId, at: Time) {
        let Role::Flow { flow, .. } = self.requests[request].role else { return };
        self.flows.0[flow].wakes_at = at;
        let generation = self.flows.0.generation(flow);
        self.timers.arm(at, Timer::Flow { flow, generation });
    }

    pub(crate) fn flow_timeout(&mut self, flow: FlowId, generation: u32, at: Time) {
        if !self.flows.wakes(flow, generation, at) {
            return;
        }
        let request = self.flows.0[flow].request;
        if self.requests[request].client == ClientId::NONE && !self.flows.outlives_client(flow) {
            return;
        }
        let none = (RequestId::NONE, &b""[..]);
        let step = self.consult(request, none, |flow, cx| flow.on_timeout(cx));
        self.take_step(request, RequestId::NONE, step);
    }

    /// The last bytes of the reply to a watched request, which has left its lane.
    #[inline(never)]
    pub(crate) fn watched_reply(&mut self, request: RequestId, bytes: &[u8]) {
        let has_begun = !self.requests[request].reply.is_empty();
        let step = if has_begun {
            self.hold(request, bytes);
            self.consult_about_kept(request, request, None)
        } else {
            let seen = (request, bytes);
            self.consult(request, seen, |flow, cx| flow.on_reply(cx, request, bytes))
        };
        match step {
            Step::Wait if !has_begun => self.hold(request, bytes),
            Step::Wait => {}
            Step::Answer => {
                self.end_flow(request);
                if has_begun {
                    let reply = std::mem::take(&mut self.requests[request].reply);
                    self.deliver_buf(request, reply);
                } else {
                    self.deliver(request, bytes);
                }
            }
            step => {
                self.drop_reply(request);
                self.take_step(request, request, step);
            }
        }
    }

    /// The first bytes of the reply to a watched request.
    #[inline(never)]
    pub(crate) fn watched_start(&mut self, request: RequestId, bytes: &[u8]) {
        if !self.consult(request, (request, bytes), |flow, cx| flow.on_start(cx, bytes)) {
            self.end_flow(request);
        }
    }

    /// A watched request got no reply. Returns the failure if that is the answer.
    #[cold]
    pub(crate) fn watched_failure(
        &mut self,
        request: RequestId,
        failure: NamedFailure,
    ) -> Option<NamedFailure> {
        let none = (RequestId::NONE, &b""[..]);
        match self.consult(request, none, |flow, cx| flow.on_failure(cx, request, failure)) {
            Step::Fail(failure) => {
                self.end_flow(request);
                Some(failure)
            }
            step => {
                self.drop_reply(request);
                self.take_step(request, request, step);
                None
            }
        }
    }

    /// Whether this is an attempt of a flow's.
    pub(crate) fn is_attempt(&self, request: RequestId) -> bool {
        match self.requests[request].role {
            Role::Fragment { parent, .. } => {
                matches!(self.requests[parent].role, Role::Flow { .. })
            }
            _ => false,
        }
    }

    /// An attempt is answered: the reply is with it. `failure` is why that is the gateway's.
    #[inline(never)]
    pub(crate) fn attempt_done(
        &mut self,
        request: RequestId,
        attempt: RequestId,
        failure: Option<NamedFailure>,
    ) {
        let slot = &mut self.requests[request];
        let Role::Flow { flow, pending, .. } = &mut slot.role else {
            unreachable!("only a flow has attempts");
        };
        *pending -= 1;
        if slot.client == ClientId::NONE && !self.flows.outlives_client(*flow) {
            if *pending == 0 {
                self.free_request(request);
            }
            return;
        }
        let step = self.consult_about_kept(request, attempt, failure);
        self.take_step(request, attempt, step);
    }

    /// An attempt, which has left its lane, got no reply.
    #[cold]
    pub(crate) fn attempt_failed(&mut self, attempt: RequestId, failure: NamedFailure) {
        let Role::Fragment { parent, .. } = self.requests[attempt].role else {
            unreachable!("it is an attempt");
        };
        self.fail_attempt(attempt, &failure);
        self.attempt_done(parent, attempt, Some(failure));
    }

    /// An attempt gets the gateway's words for a reply.
    #[cold]
    pub(crate) fn fail_attempt(&mut self, attempt: RequestId, failure: &NamedFailure) {
        self.drop_reply(attempt);
        let backend = self.requests[attempt].backend;
        self.count_forward_error(backend);
        let protocol = self.backends[backend].protocol;
        let reply = self.bufs.written(0, |out| failure.write_reply(protocol, out));
        self.charge(attempt, reply.len());
        let slot = &mut self.requests[attempt];
        slot.reply = reply;
        slot.done = true;
    }

    /// What a flow does about a reply that is kept with its request, and stays there.
    fn consult_about_kept(
        &mut self,
        request: RequestId,
        attempt: RequestId,
        failure: Option<NamedFailure>,
    ) -> Step {
        let reply = std::mem::take(&mut self.requests[attempt].reply);
        let step = self.consult(request, (attempt, &reply), |flow, cx| match failure {
            None => flow.on_reply(cx, attempt, &reply),
            Some(why) => flow.on_failure(cx, attempt, why),
        });
        self.requests[attempt].reply = reply;
        step
    }

    fn consult<T>(
        &mut self,
        request: RequestId,
        seen: (RequestId, &[u8]),
        decide: impl FnOnce(&mut dyn Flow, &mut FlowContext<'_>) -> T,
    ) -> T {
        let Role::Flow { flow: id, .. } = self.requests[request].role else {
            unreachable!("it has a flow");
        };
        let mut attached = self.flows.take(id);
        let replay = attached.replay.as_ref();
        let step =
            decide(&mut *attached.flow, &mut FlowContext { engine: self, request, replay, seen });
        self.flows.0[id].attached = Some(attached);
        step
    }

    /// Does what a flow has decided, about the reply to this attempt.
    fn take_step(&mut self, request: RequestId, attempt: RequestId, mut step: Step) {
        while let Step::Send(attempts) = step {
            let none = (RequestId::NONE, &b""[..]);
            let Err(failure) = self.send_attempts(request, attempts) else { return };
            step = self
                .consult(request, none, |flow, cx| flow.on_failure(cx, RequestId::NONE, failure));
        }
        let reply = match step {
            Step::Wait => return,
            Step::Send(_) => unreachable!("it was sent above"),
            Step::Answer => {
                // It stays counted for the same client.
                let reply = std::mem::take(&mut self.requests[attempt].reply);
                self.end_flow(request);
                reply
            }
            Step::Reply(reply) => {
                self.end_flow(request);
                self.spend(reply.len());
                self.charge(request, reply.len());
                reply
            }
            Step::TakeBack(replay) => {
                self.end_flow(request);
                return self.put_back(request, replay);
            }
            Step::Again(lane, text) => {
                self.end_flow(request);
                let slot = &mut self.requests[request];
                // What has waited for another server has not waited for this one.
                (slot.started, slot.arrived, slot.hops) = (self.now, 0, 0);
                slot.next_in_lane = RequestId::NONE;
                return self.send(lane, request, Payload::Owned(text));
            }
            Step::Fail(failure) => {
                self.end_flow(request);
                let protocol = self.backends[self.requests[request].backend].protocol;
                return self.answer_instead(request, |out| failure.write_reply(protocol, out));
            }
        };
        self.deliver_buf(request, reply);
    }

    fn send_attempts(
        &mut self,
        request: RequestId,
        mut attempts: Attempts,
    ) -> Result<(), NamedFailure> {
        debug_assert!(!self.requests[request].in_lane, "it is on its way itself");
        let Request { client, role: Role::Flow { flow, .. }, .. } = self.requests[request] else {
            unreachable!("it has a flow");
        };
        let attached = self.flows.take(flow);
        let replay = attached.replay.as_ref().map(Replay::bytes).unwrap_or_default();
        let size = attempts.texts.iter().flatten().map(|text| match text {
            Text::Replay => replay.len(),
            Text::Owned(text) => text.len(),
        });
        let size = size.sum();
        let lane = match attempts.to {
            Target::Lane(lane) => Ok(lane),
            Target::Server(server) if client != ClientId::NONE => {
                let backend = self.backend_of(client);
                let lane = self.lane_for(client, server, size);
                lane.map_err(|why| self.backends[backend].named(server, why))
            }
            // Only the client could say for which database.
            Target::Server(_) => Err(Failure::NoServer.into()),
        };
        let sent = lane.map(|lane| {
            self.forget_answered(request);
            let slot = &mut self.requests[request];
            slot.expect = Expect::Line;
            slot.arrived = 0;
            let mut last = RequestId::NONE;
            for text in attempts.texts.iter_mut().filter_map(Option::take) {
                let attempt = self.add_attempt(request, last);
                last = attempt;
                match text {
                    Text::Replay => self.send(lane, attempt, Payload::Bytes(replay)),
                    Text::Owned(text) => self.send(lane, attempt, Payload::Owned(text)),
                }
                if attempts.is_sealed {
                    self.seal(lane);
                }
            }
        });
        self.flows.0[flow].attached = Some(attached);
        attempts.give_back(&mut self.bufs);
        sent
    }

    /// One more attempt, behind `last`, or in front of all others.
    pub(crate) fn add_attempt(&mut self, request: RequestId, last: RequestId) -> RequestId {
        let backend = self.requests[request].backend;
        let (attempt, _) = self.requests.add(backend, ClientId::NONE, self.now);
        let next = match last {
            RequestId::NONE => match &mut self.requests[request].role {
                Role::Flow { attempts, .. } => std::mem::replace(attempts, attempt),
                _ => unreachable!("it has a flow"),
            },
            last => match &mut self.requests[last].role {
                Role::Fragment { next, .. } => std::mem::replace(next, attempt),
                _ => unreachable!("it is an attempt"),
            },
        };
        self.requests[attempt].role = Role::Fragment { parent: request, next };
        if let Role::Flow { pending, .. } = &mut self.requests[request].role {
            *pending += 1;
        }
        let metrics = self.backends[backend].metrics;
        self.metrics.add_pool(metrics, PoolCounter::Fragments, 1);
        attempt
    }

    /// Lets go of the attempts that are answered.
    fn forget_answered(&mut self, request: RequestId) {
        let Role::Flow { attempts, pending, .. } = &mut self.requests[request].role else {
            unreachable!("it has a flow");
        };
        if *pending == 0 {
            let first = std::mem::replace(attempts, RequestId::NONE);
            self.free_fragments(first);
        }
    }

    /// The request is like others from here on. Replies to attempts that are still on their way will
    /// be for nobody.
    pub(crate) fn end_flow(&mut self, request: RequestId) {
        let role = std::mem::replace(&mut self.requests[request].role, Role::Single);
        let Role::Flow { flow, attempts, pending } = role else {
            unreachable!("it has a flow");
        };
        if pending > 0 {
            self.abandon_attempts(attempts);
        } else {
            self.free_fragments(attempts);
        }
        let Some(Attached { flow, replay }) = self.flows.0.remove(flow).attached else { return };
        self.bufs.discharge(flow.size());
        if let Some(replay) = replay {
            replay.give_back(&mut self.bufs);
        }
        flow.recycle(self);
    }

    /// Nobody wants the attempts from this one on.
    #[cold]
    fn abandon_attempts(&mut self, mut at: RequestId) {
        while at != RequestId::NONE {
            let next = self.requests.next_fragment(at);
            self.drop_reply(at);
            let slot = &mut self.requests[at];
            match slot.done {
                true => self.free_request(at),
                false => slot.role = Role::Own(Own::Whatever),
            }
            at = next;
        }
    }
}
