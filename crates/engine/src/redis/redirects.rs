//! Requests that a node of a cluster does not run, as their slot is another node's.
//!
//! MOVED names the owner: the request is sent there at once, under its place in its client's order, and so is
//! what comes for the slot until the next map. ASK names who has the key while the slot is moving: this request
//! alone goes there, behind ASKING. TRYAGAIN says that some of the request's keys are here and some there: it is
//! sent again a little later. CLUSTERDOWN is no redirect, but a refusal: see [`crate::upstream::refused`].
//!
//! A client's requests for one slot run in its order. Those that are on their way to the former owner are sent on
//! as their replies come, which is in that order; so that none overtakes them, clients with requests there are
//! fenced once the owner is known to be another. What must not overtake others on their way elsewhere waits for them:
//! see [`crate::redis::sent_on`].
//!
//! A client may have gone meanwhile. Its reads are dropped then; its writes are sent elsewhere as others are, since
//! nobody could repeat them. Those that a node has refused for now are dropped, too.
//!
//! What a script answers may look like a redirect. It is followed, at most [`HOPS_OF_SCRIPTS_MAX`]
//! times, but nothing is learned of it for others.
//!
//! Replicas may not know that a slot moves: of keys that have left it they say that there are none. So its primary answers
//! its reads as soon as that is known, by the map or by ASK.
//!
//! TRYAGAIN says of a request with several keys that some of them are at the one node and some at the other. Others are sent
//! again until they are together. A script may say so itself when it has run, and may not run again and again. So it is not
//! sent: EXISTS with its keys is, which the node refuses for the same reason. When that is answered, the script goes where
//! it was.

use cashew_config::snapshot::Endpoint;
use cashew_metrics::PoolCounter;
use cashew_protocol::redis::{self, Access, Group, Lookup};
use cashew_protocol::resp::{Parsed, RequestParser, encode};

use crate::base::action::Action;
use crate::base::failure::Failure;
use crate::base::id::{BackendId, ClientId, LaneId, RequestId, ServerId};
use crate::base::outcome::Refusal;
use crate::base::time::Time;
use crate::base::timers::Timer;
use crate::engine::Engine;
use crate::exchange::dispatch::Payload;
use crate::redis::sent_on::{Gap, Key};
use crate::redis::transaction::EXEC;
use crate::request::{Due, Own, Request, Role};
use crate::upstream::backend::Backend;
use crate::upstream::bulk::BULK_SIZE;
use crate::upstream::lane::{Lane, Link};
use crate::upstream::redirect::{
    ASKING, Elsewhere, Node, READONLY, READWRITE, Redirect, RefusedPart, Upto, Users,
};
use crate::upstream::refused::RefusedRequest;

/// So often a request is sent elsewhere each time that it is asked anew; then its client gets an error.
const HOPS_MAX: u8 = 5;
/// The same of scripts, which may say so themselves when they have run.
const HOPS_OF_SCRIPTS_MAX: u8 = 2;
/// The longest reply that is looked at: a host name has up to 253 bytes.
const REPLY_MAX: usize = 512;
/// So much is kept of why a part of a transaction was refused.
const REFUSED_TEXT_MAX: usize = 256;
/// How long a request waits that is to be tried again, at first and later.
const TRY_AGAIN_FIRST_MS: u64 = 5;
const TRY_AGAIN_MS: u64 = 50;
/// How long the answer of EXISTS is waited for before it is asked once more: its connection may have failed.
const ASK_AGAIN_MS: u64 = 250;
/// As long as `failover_wait` it is tried, or this if that is shorter.
const TRY_AGAIN_LONGEST_US: u64 = 1_000_000;
/// How often it is looked whether the map names a node that is not known yet. It mostly does before that.
const LOOK_MS: u64 = 50;
/// The map is doubted so seldom at most.
const DOUBT_AGAIN_MS: u64 = 100;

/// A request that is to be sent again. It counts as being in a lane.
pub(crate) struct Waiting {
    back: SentBack,
    why: Wait,
    /// Where it is to go, if that is not the owner of its slot, and how many changes of the epoch there were when a node
    /// said so: servers have other numbers then.
    to: Option<(Target, u64)>,
}

/// A node, and whether ASKING is said before the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Target {
    server: ServerId,
    asks: bool,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// A map that names the node; by the number of changes that the map in use has seen. It is looked then whether there is
    /// one.
    Map { changes: u32, look_at: Time },
    /// The slot to have moved a little more.
    Keys { until: Time },
    /// Its client's earlier requests, which nodes have sent to others.
    Turn,
}

/// What a place in a queue takes of memory, about: in the queue, and for finding it.
const PLACE_SIZE: usize =
    size_of::<(RequestId, Waiting)>() + 3 * size_of::<(RequestId, Key)>() + size_of::<RequestId>();

/// A request that a node has sent back.
struct SentBack {
    request: RequestId,
    bytes: Vec<u8>,
    /// No buffer of the pool's, which would be many times as large.
    reply: Vec<u8>,
    variant: u16,
    /// It goes by the lane of large values, or its reply does.
    is_large: bool,
    is_sealed: bool,
}

impl SentBack {
    /// What decides by which lane it goes.
    fn lane_size(&self) -> usize {
        if self.is_large { self.bytes.len().max(BULK_SIZE) } else { self.bytes.len() }
    }
}

impl Waiting {
    /// Where it goes, if that is not the owner of its slot.
    fn target(&self, epoch: u64) -> Option<Target> {
        self.to.filter(|&(_, of)| of == epoch).map(|(to, _)| to)
    }

    /// Whether it is a script whose keys are to be together before it is sent.
    fn is_script(&self) -> bool {
        self.back.is_sealed && matches!(self.why, Wait::Keys { .. })
    }

    /// It is looked at once more at once.
    fn hurry(&mut self) {
        match &mut self.why {
            Wait::Map { look_at: at, .. } | Wait::Keys { until: at } => *at = Time::ZERO,
            Wait::Turn => {}
        }
    }
}

/// What is to be done about the first that waits in a queue.
enum Step {
    /// There is none.
    None,
    /// It is looked at then, or when what stands before it has gone.
    Later(Time),
    Now,
    /// It is a script that is not sent before its keys are together.
    AskForKeys,
}

impl Engine {
    /// A whole error, of which `end` are the last bytes, to a lane's head. Returns whether the request is sent
    /// elsewhere.
    #[inline]
    pub(crate) fn is_redirected(&mut self, index: LaneId, end: &[u8]) -> bool {
        self.backends[self.lanes[index].backend].topology.has_slots()
            && self.takes_redirect(index, end)
    }

    #[cold]
    fn takes_redirect(&mut self, index: LaneId, end: &[u8]) -> bool {
        let lane = &self.lanes[index];
        let (backend, server, request) = (lane.backend, lane.server, lane.head);
        let slot = &self.requests[request];
        let is_candidate = match slot.role {
            Role::Single | Role::Fragment { .. } | Role::Flow { .. } => true,
            Role::Parent { .. } | Role::Probe { .. } | Role::Own(_) => false,
        };
        let len = slot.reply.len() + end.len();
        let is_watching = || self.watches_on(slot.client, index);
        let is_fit = !lane.is_session || (matches!(slot.role, Role::Single) && is_watching());
        if !is_candidate || slot.streaming || !is_fit || len > REPLY_MAX {
            return false;
        }
        let reply = [&slot.reply, end].concat();
        let Some(redirect) = Redirect::of(&reply) else { return false };
        let Some(back) = self.sent_back(index, &reply) else {
            // It is not kept: its client gets an error.
            if let Redirect::Moved { slot, to } = redirect {
                self.learn_owner(backend, server, slot, to);
            }
            return false;
        };
        let client = self.requests.waiting_client(request);
        let started = self.requests[request].started;
        let state = &self.backends[backend];
        // A slot may be left half moved for ever.
        let is_late = state.expiry(started) <= self.now
            || (redirect == Redirect::TryAgain && state.tries_end(started) <= self.now);
        let hops_max = if back.is_sealed { HOPS_OF_SCRIPTS_MAX } else { HOPS_MAX };
        // Each time a script may have run.
        let is_hop = redirect != Redirect::TryAgain || back.is_sealed;
        let is_spent = is_hop && self.requests[request].hops >= hops_max;
        let to = match redirect {
            Redirect::Moved { slot, to } if back.is_sealed => {
                self.doubt_map(backend);
                self.node(backend, server, to).map(|to| (to, slot, false)).ok_or(slot)
            }
            Redirect::Moved { slot, to } => {
                self.learn_owner(backend, server, slot, to).map(|to| (to, slot, false)).ok_or(slot)
            }
            Redirect::Ask { slot, to } => {
                self.node(backend, server, to).map(|to| (to, slot, true)).ok_or(slot)
            }
            Redirect::TryAgain => Err(slot_of_request(&back.bytes).unwrap_or_default()),
        };
        if !back.is_sealed
            && let Redirect::Ask { slot, .. } = redirect
        {
            self.learn_moving(backend, slot);
        }
        // A script with one key says so of its own.
        let is_followed = match redirect {
            Redirect::TryAgain => {
                (!back.is_sealed || keys_request(&back.bytes).is_some())
                    && !self.has_more_behind(index)
            }
            Redirect::Moved { .. } | Redirect::Ask { .. } => true,
        };
        if is_for_nothing(client, &back.bytes) || is_late || is_spent || !is_followed {
            self.drop_back(back);
            return false;
        }
        if client != ClientId::NONE && self.has_refused(index, request) {
            if back.is_sealed {
                // Its seal has been answered: sent with others it would have none.
                self.drop_back(back);
                return false;
            }
            // What it is behind waits on the lane, and so must it.
            self.keep_behind_refused(index, back);
            return true;
        }
        let counter = match redirect {
            Redirect::Moved { .. } => PoolCounter::Moved,
            Redirect::Ask { .. } => PoolCounter::Asked,
            Redirect::TryAgain => PoolCounter::TriedAgain,
        };
        let metrics = self.backends[backend].metrics;
        self.metrics.add_pool(metrics, counter, 1);
        if self.lanes[index].is_session {
            // What it watches has moved.
            self.lose_watch(client);
        }
        self.drop_reply(request);
        self.pop_answered(index);
        let slot = &mut self.requests[request];
        (slot.next_in_lane, slot.arrived) = (RequestId::NONE, 0);
        slot.hops = match redirect {
            // It is asked anew a little later, from the slot's owner on. Time ends that, not the number of times.
            Redirect::TryAgain if !is_hop => 0,
            Redirect::TryAgain | Redirect::Moved { .. } | Redirect::Ask { .. } => slot.hops + 1,
        };
        let is_first_try = self.now.micros_since(slot.started) < TRY_AGAIN_FIRST_MS * 1000;
        match to {
            Ok((server, slot, asks)) => self.send_on(back, slot, Target { server, asks }),
            Err(slot) if redirect == Redirect::TryAgain => {
                let ms = if is_first_try { TRY_AGAIN_FIRST_MS } else { TRY_AGAIN_MS };
                let until = self.now.plus_millis(ms);
                self.wait_in_place(back, slot, Wait::Keys { until });
            }
            Err(slot) => {
                self.doubt_map(backend);
                let changes = self.map_changes(backend);
                let look_at = self.now.plus_millis(LOOK_MS);
                self.wait_in_place(back, slot, Wait::Map { changes, look_at });
            }
        }
        true
    }

    /// A redirect to a lane's head that is not followed, of which `end` are the last bytes. Returns whether its client
    /// has got the gateway's words instead: it is to know nothing of a cluster. Flows with a lane of their own decide by
    /// the node's words, and hide them by themselves.
    pub(crate) fn hides_redirect(&mut self, index: LaneId, end: &[u8]) -> bool {
        let lane = &self.lanes[index];
        let (backend, request) = (lane.backend, lane.head);
        let is_told = self.requests.waiting_client(request) != ClientId::NONE;
        let Request { role, reply, streaming, next_in_lane, .. } = &self.requests[request];
        let is_answer = match role {
            Role::Single | Role::Fragment { .. } => true,
            Role::Flow { .. } => !lane.is_session,
            Role::Parent { .. } | Role::Probe { .. } | Role::Own(_) => false,
        };
        let is_short = reply.len() + end.len() <= REPLY_MAX;
        // What a server answers before it was sent whole goes the general way.
        let is_sent = lane.in_flight > 0;
        let is_fit = is_told && is_answer && is_short && is_sent && !streaming;
        let has_slots = self.backends[backend].topology.has_slots();
        if !has_slots || !is_fit || !is_redirect(&[reply, end].concat()) {
            return false;
        }
        let next = *next_in_lane;
        let has_seal =
            next != RequestId::NONE && matches!(self.requests[next].role, Role::Own(Own::Seal(_)));
        let back = self.sent_back(index, end);
        let is_exec = back.as_ref().is_some_and(|back| back.bytes == EXEC);
        let is_sealed = has_seal || back.as_ref().is_some_and(|back| back.is_sealed);
        back.into_iter().for_each(|back| self.drop_back(back));
        if is_sealed && !is_exec {
            return false;
        }
        self.drop_reply(request);
        self.pop_answered(index);
        let slot = &mut self.requests[request];
        (slot.next_in_lane, slot.arrived) = (RequestId::NONE, 0);
        self.note_answered_elsewhere(request);
        match is_exec {
            true => self.answer_instead(request, |out| out.extend_from_slice(ABORTED)),
            false => self.fail_request(request, Failure::ClusterDown.into()),
        }
        true
    }

    /// A request that nodes have refused, and that is not sent again, has left its lane: its client gets what they have
    /// said, if that is no redirect, or is a script's own.
    pub(crate) fn answer_unfollowed(&mut self, request: RequestId, reply: &[u8], bytes: &[u8]) {
        self.note_answered_elsewhere(request);
        let has_slots = self.backends[self.requests[request].backend].topology.has_slots();
        let is_told = has_slots && self.requests.waiting_client(request) != ClientId::NONE;
        match is_told && is_redirect(reply) && !is_sealed(bytes) {
            true => self.fail_request(request, Failure::ClusterDown.into()),
            false => self.deliver(request, reply),
        }
    }

    /// The lane's head has not run, and stands behind a request of its client's that the node has refused: they are
    /// sent again together.
    fn keep_behind_refused(&mut self, index: LaneId, back: SentBack) {
        let SentBack { request, bytes, reply, .. } = back;
        let Some(why) = self.lanes[index].refused.as_ref().map(|refused| refused.why) else {
            return;
        };
        self.drop_reply(request);
        self.pop_answered(index);
        let reply = self.bufs.copy_of(&reply);
        let slot = &mut self.requests[request];
        (slot.in_lane, slot.arrived) = (true, 0);
        let asker = self.asker_of(request);
        self.lanes[index].keep_refused(why, RefusedRequest { request, asker, bytes, reply });
    }

    /// Where something goes that was answered so on a lane.
    pub(crate) fn elsewhere(&mut self, index: LaneId, reply: &[u8]) -> Option<Elsewhere> {
        let Lane { backend, server, .. } = self.lanes[index];
        if !self.backends[backend].topology.has_slots() || reply.len() > REPLY_MAX {
            return None;
        }
        let Some(redirect) = Redirect::of(reply) else {
            let is_for_now = matches!(
                Refusal::of(reply),
                Some(Refusal::ClusterDown | Refusal::Loading | Refusal::MasterDown)
            );
            return is_for_now.then(|| {
                self.doubt_map(backend);
                Elsewhere::Again
            });
        };
        // A node that is not known is in the next map.
        Some(match redirect {
            Redirect::Moved { slot, to } => match self.learn_owner(backend, server, slot, to) {
                Some(_) => Elsewhere::Owner,
                None => Elsewhere::Again,
            },
            Redirect::Ask { slot, to } => {
                self.learn_moving(backend, slot);
                self.doubt_map(backend);
                self.node(backend, server, to).map_or(Elsewhere::Again, Elsewhere::Ask)
            }
            Redirect::TryAgain => Elsewhere::Again,
        })
    }

    /// The reply to a command of a transaction that was sent as a whole.
    pub(crate) fn note_refused_part(&mut self, index: LaneId, reply: &[u8]) {
        if !reply.starts_with(b"-") {
            return;
        }
        let part = self.lanes[index].refused_part.as_ref();
        let elsewhere = match part.and_then(|part| part.elsewhere) {
            None => self.elsewhere(index, reply),
            known => known,
        };
        let part = self.lanes[index].refused_part.get_or_insert_with(|| {
            let text = &reply[1..reply.len().min(REFUSED_TEXT_MAX)];
            Box::new(RefusedPart { elsewhere: None, text: text.trim_ascii_end().into() })
        });
        part.elsewhere = elsewhere;
    }

    /// The lane's head as it was sent, if that is kept.
    fn sent_back(&mut self, index: LaneId, reply: &[u8]) -> Option<SentBack> {
        let lane = &mut self.lanes[index];
        let backend = &self.backends[lane.backend];
        let is_bulk = backend.servers[lane.server].bulk_lane(lane.variant) == index;
        let request = &self.requests[lane.head];
        if lane.in_flight == 0 || !lane.keeps_head(&mut self.bufs) {
            return None;
        }
        let wire_len = request.wire_len as usize;
        let mut bytes = self.bufs.take_for(wire_len);
        lane.sent.copy_front(wire_len, &mut bytes);
        Some(SentBack {
            request: lane.head,
            is_sealed: is_sealed(&bytes),
            bytes,
            reply: reply.to_vec(),
            variant: lane.variant,
            is_large: is_bulk || (lane.is_private && !lane.is_session),
        })
    }

    /// Whether more of the requests of who has asked for a lane's head are on the lane behind it.
    fn has_more_behind(&mut self, index: LaneId) -> bool {
        self.note_users(index);
        let asker = self.asker_of(self.lanes[index].head);
        let lane = &self.lanes[index];
        lane.users.as_ref().is_some_and(|users| users.last_of(asker) > lane.answered + 1)
    }

    /// Whether something that whoever has asked for a request has asked before is to be sent again on its lane.
    pub(crate) fn has_refused(&mut self, index: LaneId, request: RequestId) -> bool {
        self.lanes[index].refused.is_some() && {
            let asker = self.asker_of(request);
            let refused = self.lanes[index].refused.as_ref();
            refused.is_some_and(|refused| refused.has_of(asker))
        }
    }

    /// The number by which who has asked for something is known.
    pub(crate) fn asker_of(&mut self, request: RequestId) -> u32 {
        let client = self.requests.waiting_client(request);
        let whole = match self.requests[request].role {
            Role::Fragment { parent, .. } => parent,
            _ => request,
        };
        let known = match client {
            ClientId::NONE => &mut self.requests[whole].asker,
            client => &mut self.clients[client].asker,
        };
        if *known == 0 {
            *known = self.sent_on.new_asker();
        }
        *known
    }

    /// Sends a request to another node than before, or, if that would overtake something of its client's, keeps it
    /// until then.
    fn send_on(&mut self, back: SentBack, slot: u16, to: Target) {
        let (key, gap) = self.take_out_of_queue(back.request, slot);
        self.send_from(key, gap, back, to);
    }

    fn take_out_of_queue(&mut self, request: RequestId, slot: u16) -> (Key, Gap) {
        let asker = self.asker_of(request);
        let client = self.requests.waiting_client(request);
        if client != ClientId::NONE {
            self.clients[client].fenced = true;
        }
        let key = Key { asker, slot };
        self.leave_queue(request);
        (key, self.sent_on.take_out(request, key))
    }

    fn send_from(&mut self, key: Key, gap: Gap, back: SentBack, to: Target) {
        let request = back.request;
        if !self.sent_on.may_send(key, gap, self.lane_to(&back, to.server)) {
            let is_owner = !to.asks && !back.is_sealed;
            let to = (!is_owner).then_some((to, self.epoch));
            return self.keep_waiting(key, gap, Waiting { back, why: Wait::Turn, to });
        }
        // If there is none it has failed.
        if let Some(lane) = self.send_elsewhere(back, to) {
            self.sent_on.send(key, gap, request, lane);
            self.enter_queue(request);
        }
    }

    /// The same of one that goes nowhere yet.
    fn wait_in_place(&mut self, back: SentBack, slot: u16, why: Wait) {
        let (key, gap) = self.take_out_of_queue(back.request, slot);
        self.keep_waiting(key, gap, Waiting { back, why, to: None });
    }

    fn keep_waiting(&mut self, key: Key, gap: Gap, waiting: Waiting) {
        let request = waiting.back.request;
        let backend = &mut self.backends[self.requests[request].backend];
        if backend.sent_back >= backend.limits.server_queue_max {
            return self.answer_kept(waiting.back);
        }
        backend.sent_back += 1;
        self.requests[request].in_lane = true;
        self.enter_queue(request);
        self.bufs.charge(waiting.back.reply.capacity());
        self.sent_on.wait(key, gap, request, waiting);
    }

    /// A request that waited is not sent again.
    fn answer_kept(&mut self, back: SentBack) {
        self.requests[back.request].in_lane = false;
        self.answer_unfollowed(back.request, &back.reply, &back.bytes);
        self.drop_back(back);
    }

    fn drop_back(&mut self, back: SentBack) {
        self.bufs.give(back.bytes);
    }

    /// A request has a place in a queue from here on.
    fn enter_queue(&mut self, request: RequestId) {
        self.requests[request].is_sent_on = true;
        self.bufs.charge(PLACE_SIZE);
    }

    /// It has none any more, if it had one.
    fn leave_queue(&mut self, request: RequestId) {
        if std::mem::take(&mut self.requests[request].is_sent_on) {
            self.bufs.discharge(PLACE_SIZE);
        }
    }

    /// A pool is closed: what waits to be sent again to its nodes is not.
    pub(crate) fn end_waiting(&mut self, backend: BackendId) {
        if self.backends[backend].sent_back == 0 {
            return;
        }
        let requests = &self.requests;
        let ended = self.sent_on.take_waiting(|request| requests[request].backend == backend);
        for Waiting { back, .. } in ended {
            self.backends[backend].sent_back -= 1;
            self.leave_queue(back.request);
            self.bufs.discharge(back.reply.capacity());
            self.answer_kept(back);
        }
    }

    /// A request is about to be answered, or fails: what stands behind it may go on.
    #[inline]
    pub(crate) fn note_answered_elsewhere(&mut self, request: RequestId) {
        if self.requests[request].is_sent_on {
            self.forget_sent_on(request);
        }
    }

    #[cold]
    fn forget_sent_on(&mut self, request: RequestId) {
        self.leave_queue(request);
        if let Some(waiting) = self.sent_on.forget(request) {
            self.backends[self.requests[request].backend].sent_back -= 1;
            self.bufs.discharge(waiting.back.reply.capacity());
            self.drop_back(waiting.back);
        }
    }

    /// Sends again what may go on since something else has been answered, or sent to another node.
    #[cold]
    pub(crate) fn send_ready(&mut self) {
        while let Some(key) = self.sent_on.next_ready() {
            self.send_waiting(key);
        }
    }

    /// The time of some that wait has come.
    pub(crate) fn maintain_sent_on(&mut self) {
        self.sent_on_armed = None;
        while let Some(key) = self.sent_on.pop_due(self.now) {
            self.send_waiting(key);
        }
        self.send_ready();
        self.arm_sent_on();
    }

    fn arm_sent_on(&mut self) {
        if let Some(due) = self.sent_on.next_due()
            && self.sent_on_armed.is_none_or(|armed| due < armed)
        {
            self.sent_on_armed = Some(due);
            self.timers.arm(due, Timer::SentOn);
        }
    }

    /// Sends again what waits in a queue, as far as it may go.
    fn send_waiting(&mut self, key: Key) {
        let due = loop {
            match self.next_step(key) {
                Step::None => break None,
                Step::Later(due) => break Some(due),
                Step::Now => self.send_first_waiting(key),
                Step::AskForKeys => self.ask_for_keys(key),
            }
        };
        self.sent_on.arm(key, due.filter(|&due| due != Time::NEVER));
        self.arm_sent_on();
    }

    /// What is to be done about the first that waits in a queue.
    fn next_step(&mut self, key: Key) -> Step {
        let (now, owner) = (self.now, |engine: &Self, backend: BackendId| {
            engine.backends[backend].topology.owner(key.slot)
        });
        let Some((request, gap, waiting)) = self.sent_on.first_waiting(key) else {
            return Step::None;
        };
        let Request { backend, started, .. } = self.requests[request];
        let is_wanted = !is_for_nothing(self.requests.waiting_client(request), &waiting.back.bytes);
        let is_script = waiting.is_script();
        let expiry = self.backends[backend].waits_until(started, is_script);
        if expiry <= now || !is_wanted {
            return Step::Now;
        }
        let step = if is_script { Step::AskForKeys } else { Step::Now };
        let later = match waiting.why {
            Wait::Map { look_at: at, .. } | Wait::Keys { until: at } => at,
            Wait::Turn => Time::ZERO,
        };
        if later > now {
            return Step::Later(later.min(expiry));
        }
        if gap.is_first() {
            return step;
        }
        // It may go behind others that go there, too.
        let to = waiting.target(self.epoch);
        let (variant, size) = (waiting.back.variant, waiting.back.lane_size());
        let may = to.map(|to| to.server).or_else(|| owner(self, backend)).is_none_or(|server| {
            let lane = self.lane_elsewhere_for(request, variant, size, (backend, server));
            self.sent_on.may_send(key, gap, lane)
        });
        if may { step } else { Step::Later(expiry) }
    }

    fn send_first_waiting(&mut self, key: Key) {
        let Some((request, gap, waiting)) = self.sent_on.take_first_waiting(key) else { return };
        let Request { backend, started, .. } = self.requests[request];
        let to = waiting.target(self.epoch);
        let is_script = waiting.is_script();
        let Waiting { back, why, .. } = waiting;
        self.bufs.discharge(back.reply.capacity());
        self.leave_queue(request);
        let state = &mut self.backends[backend];
        state.sent_back -= 1;
        let is_wanted = !is_for_nothing(self.requests.waiting_client(request), &back.bytes);
        let waited_until = started.plus_micros(state.failover_wait_us);
        let is_late = state.waits_until(started, is_script) <= self.now;
        let owner = state.topology.owner(key.slot);
        let to = to.or_else(|| owner.map(|server| Target { server, asks: false }));
        let still_waits = match why {
            Wait::Map { changes, .. } => {
                self.map_changes(backend) == changes && waited_until > self.now
            }
            Wait::Keys { .. } | Wait::Turn => false,
        };
        match to.filter(|_| is_wanted && !is_late) {
            Some(_) if still_waits => {
                self.doubt_map(backend);
                let changes = self.map_changes(backend);
                let look_at = self.now.plus_millis(LOOK_MS);
                let why = Wait::Map { changes, look_at };
                self.keep_waiting(key, gap, Waiting { back, why, to: None });
            }
            Some(to) => self.send_from(key, gap, back, to),
            None => self.answer_kept(back),
        }
    }

    /// The first that waits in a queue is not sent again.
    fn give_up_waiting(&mut self, key: Key) {
        let Some((request, _, waiting)) = self.sent_on.take_first_waiting(key) else { return };
        self.bufs.discharge(waiting.back.reply.capacity());
        self.leave_queue(request);
        self.backends[self.requests[request].backend].sent_back -= 1;
        self.answer_kept(waiting.back);
    }

    /// How many steps were taken so far to keep requests in order that nodes have sent to others: for tests.
    pub fn steps_of_redirects(&self) -> u64 {
        self.sent_on.steps
    }

    fn map_changes(&self, backend: BackendId) -> u32 {
        self.backends[backend].config.cluster.as_ref().map_or(0, |cluster| cluster.changes)
    }

    /// The server at an address that another has named.
    fn node(&self, backend: BackendId, by: ServerId, node: Node<'_>) -> Option<ServerId> {
        let servers = &self.backends[backend].config.servers;
        let own = match &servers[by.index()].endpoint {
            Endpoint::Tcp { host, .. } => host.as_str(),
            Endpoint::Unix(_) => "",
        };
        let wanted = if node.host.is_empty() { own } else { node.host };
        let is_it = |endpoint: &Endpoint| match endpoint {
            Endpoint::Tcp { host, port } => host == wanted && *port == node.port,
            Endpoint::Unix(_) => false,
        };
        let place = servers.iter().position(|server| is_it(&server.endpoint))?;
        Some(ServerId::new(place as u32))
    }

    /// A slot is another node's than the map says: that holds until the next map. Returns the owner, if it is
    /// known.
    pub(crate) fn learn_owner(
        &mut self,
        backend: BackendId,
        by: ServerId,
        slot: u16,
        to: Node<'_>,
    ) -> Option<ServerId> {
        let owner = self.node(backend, by, to);
        let before = self.backends[backend].topology.owner(slot);
        if let Some(owner) = owner
            && self.backends[backend].topology.set_owner(slot, owner)
        {
            // The new owner's replicas may not have yet what its former owner gave it.
            let state = &mut self.backends[backend];
            if state.replica_rules.has_replicas {
                state.topology.note_arrived(slot, self.now);
                state.distrust_replicas(&self.metrics, self.now);
            }
            self.fence_users_of(backend, by);
            // Another node may have said so than the one where requests for the slot still are.
            if let Some(before) = before.filter(|&before| before != by) {
                self.fence_users_of(backend, before);
                self.wake_absent(backend, before);
                self.wake_all_connecting(backend, before);
            }
            self.wake_absent(backend, by);
            self.wake_all_connecting(backend, by);
            // It was a replica perhaps, and may be one again before there is a map.
            self.tell_roles(backend, owner, false);
        }
        self.doubt_map(backend);
        owner
    }

    /// Who has requests on their way to a server sends no more before they are answered.
    fn fence_users_of(&mut self, backend: BackendId, server: ServerId) {
        let lanes: Vec<LaneId> = self.backends[backend].servers[server].all_lanes().collect();
        for lane in lanes {
            let mut users = self.users_of(lane);
            while let Some(request) = self.look_at_next(lane, &mut users.fenced) {
                self.fence_who_asked(request);
            }
            self.keep_users(lane, users);
            let Some(refused) = &mut self.lanes[lane].refused else { continue };
            for request in refused.take_unfenced() {
                self.sent_on.steps += 1;
                self.fence_who_asked(request);
            }
        }
    }

    fn fence_who_asked(&mut self, request: RequestId) {
        let client = self.requests.waiting_client(request);
        if client != ClientId::NONE {
            self.clients[client].fenced = true;
        }
    }

    /// Finds out who has requests on a lane. They may ask more, which is looked at the next time.
    fn note_users(&mut self, index: LaneId) {
        let mut users = self.users_of(index);
        while let Some(request) = self.look_at_next(index, &mut users.seen) {
            let client = self.requests.waiting_client(request);
            let is_own = matches!(self.requests[request].role, Role::Probe { .. } | Role::Own(_));
            if !is_own || client != ClientId::NONE {
                users.note(self.asker_of(request));
            }
        }
        self.keep_users(index, users);
    }

    /// What is known of who has requests on a lane. Who had some on another connection has none on this one.
    fn users_of(&mut self, index: LaneId) -> Box<Users> {
        let Lane { conn, answered, .. } = self.lanes[index];
        let end = self.lanes[index].end_ordinal();
        self.sent_on.steps += 1;
        let known = self.lanes[index].users.take().filter(|users| users.conn == conn);
        let mut users = known.unwrap_or_else(|| Box::new(Users::none(conn, answered)));
        for upto in [&mut users.seen, &mut users.fenced] {
            if !(answered + 1..=end).contains(&upto.end) {
                *upto = Upto::start(answered);
            }
        }
        users
    }

    fn keep_users(&mut self, index: LaneId, mut users: Box<Users>) {
        let lane = &mut self.lanes[index];
        let (answered, end) = (lane.answered, lane.end_ordinal());
        users.trim(answered, end - answered);
        if users.seen.end.max(users.fenced.end) > answered {
            lane.users = Some(users);
        }
    }

    /// The next request of a lane behind those that were looked at.
    fn look_at_next(&mut self, index: LaneId, upto: &mut Upto) -> Option<RequestId> {
        let next = match upto.last {
            RequestId::NONE => self.lanes[index].head,
            last => self.requests[last].next_in_lane,
        };
        if next == RequestId::NONE || upto.end >= self.lanes[index].end_ordinal() {
            debug_assert!(upto.last == RequestId::NONE || upto.last == self.lanes[index].tail);
            return None;
        }
        self.sent_on.steps += 1;
        *upto = Upto { last: next, end: upto.end + 1 };
        Some(next)
    }

    /// The map of a cluster may be old: discovery looks. Said seldom, and of other backends not at all.
    #[cold]
    pub(crate) fn doubt_map(&mut self, backend: BackendId) {
        let now = self.now;
        let state = &mut self.backends[backend];
        let is_told = state.map_doubted_at.is_some_and(|at| now < at.plus_millis(DOUBT_AGAIN_MS));
        if state.topology.has_slots() && state.is_in_use() && !is_told {
            state.map_doubted_at = Some(now);
            self.actions.push_back(Action::MapDoubted { backend });
        }
    }

    /// Sends a request to another node than before. Returns the connection, or nothing if it has failed.
    fn send_elsewhere(&mut self, back: SentBack, to: Target) -> Option<LaneId> {
        let size = back.lane_size();
        let SentBack { request, bytes, reply, variant, is_sealed, .. } = back;
        // What it was in front of at the other node is not behind it here.
        let slot = &mut self.requests[request];
        (slot.in_lane, slot.next_in_lane) = (false, RequestId::NONE);
        let (backend, server) = (slot.backend, to.server);
        let choice = self.choice_of(request);
        match self.lane_of((backend, server), variant, choice, size) {
            Ok(lane) => {
                if to.asks {
                    self.ask_with(lane, Own::Whatever, Due::OK, ASKING);
                }
                self.send(lane, request, Payload::Owned(bytes));
                if is_sealed {
                    self.seal(lane);
                }
                Some(lane)
            }
            Err(failure) => {
                self.bufs.give(bytes);
                if is_sealed {
                    self.note_answered_elsewhere(request);
                    self.deliver(request, &reply);
                } else {
                    let failure = self.backends[backend].named(server, failure);
                    self.fail_request(request, failure);
                }
                None
            }
        }
    }

    fn choice_of(&self, request: RequestId) -> u16 {
        match self.requests.waiting_client(request) {
            ClientId::NONE => 0,
            client => self.clients[client].lane_choice,
        }
    }

    /// The connection that a request goes by to a node.
    fn lane_to(&self, back: &SentBack, server: ServerId) -> LaneId {
        let backend = self.requests[back.request].backend;
        self.lane_elsewhere_for(back.request, back.variant, back.lane_size(), (backend, server))
    }

    fn lane_elsewhere_for(
        &self,
        request: RequestId,
        variant: u16,
        size: usize,
        (backend, server): (BackendId, ServerId),
    ) -> LaneId {
        let server = &self.backends[backend].servers[server];
        match size < BULK_SIZE {
            true => server.lane(variant, self.choice_of(request)),
            false => server.bulk_lane(variant),
        }
    }

    /// Another map is in use: what waited for a node, or for the map, goes to the owner of its slot.
    pub(crate) fn follow_map(&mut self, backend: BackendId) {
        for server in self.backends[backend].servers.ids() {
            let waiting = self.take_waiting_unconnected(backend, server);
            self.deal_again((backend, Some(server)), waiting);
            self.follow_role(backend, server);
        }
        self.wake_all_absent(backend);
        let requests = &self.requests;
        self.sent_on.each_waiting(|request, waiting| {
            let is_its = requests[request].backend == backend;
            if is_its {
                waiting.to = None;
                if let Wait::Map { .. } | Wait::Keys { .. } = waiting.why {
                    waiting.hurry();
                }
            }
            is_its
        });
        self.send_ready();
    }

    /// Sends requests that were for a node, and were not sent, to the owners of their slots. What is for none, or is
    /// a read that any of the shard may answer, stays with the node, or fails where that is gone.
    pub(crate) fn deal_again(
        &mut self,
        (backend, server): (BackendId, Option<ServerId>),
        waiting: Vec<(u16, bool, RequestId, Vec<u8>)>,
    ) {
        for (variant, is_large, request, bytes) in waiting {
            if let Role::Own(_) = self.requests[request].role {
                // What it was said for goes elsewhere, or is said again on the next connection.
                self.bufs.give(bytes);
                self.fail_request(request, Failure::Replaced.into());
                continue;
            }
            let topology = &self.backends[backend].topology;
            let slot = slot_of_request(&bytes);
            let owner = slot.and_then(|slot| topology.owner(slot));
            let is_read =
                access_of(&bytes) == Some(Access::Read) && self.requests[request].moves_left > 0;
            let stays = server.filter(|&server| match owner {
                Some(owner) => is_read && topology.shard_of(owner) == topology.shard_of(server),
                None => true,
            });
            let is_sealed = is_sealed(&bytes);
            let reply = b"-CLUSTERDOWN Hash slot not served\r\n".to_vec();
            let back = SentBack { request, bytes, reply, variant, is_large, is_sealed };
            let to = stays.or(owner).map(|server| Target { server, asks: false });
            match (to, slot) {
                (Some(to), Some(slot)) => self.send_on(back, slot, to),
                (Some(to), None) => {
                    self.send_elsewhere(back, to);
                }
                (None, _) => {
                    self.note_answered_elsewhere(request);
                    self.deliver(request, &back.reply);
                    self.drop_back(back);
                }
            }
        }
    }

    /// Connections to replicas answer reads, others do not, even if the node has become a replica.
    pub(crate) fn follow_role(&mut self, backend: BackendId, server: ServerId) {
        let reads = self.backends[backend].topology.primary_of(server) != server;
        self.tell_roles(backend, server, reads);
    }

    fn tell_roles(&mut self, backend: BackendId, server: ServerId, reads: bool) {
        let lanes: Vec<LaneId> = self.backends[backend].servers[server].own_lanes().collect();
        for lane in lanes {
            self.tell_reads(lane, reads);
        }
    }

    /// Says on a connection of a cluster whether reads are answered there.
    pub(crate) fn tell_role(&mut self, index: LaneId) {
        let lane = &self.lanes[index];
        let topology = &self.backends[lane.backend].topology;
        if topology.has_slots() {
            // Servers may have said that it is none any more.
            let is_replica = topology.primary_of(lane.server) != lane.server;
            let reads = is_replica && !topology.may_have_keys(lane.server);
            self.tell_reads(index, reads);
        }
    }

    fn tell_reads(&mut self, index: LaneId, reads: bool) {
        let lane = &self.lanes[index];
        let is_ready = matches!(lane.link, Link::Ready { .. });
        if is_ready && lane.is_shared() && reads != lane.reads_replica {
            self.lanes[index].reads_replica = reads;
            self.ask_with(index, Own::Whatever, Due::OK, if reads { READONLY } else { READWRITE });
        }
    }
}

impl Engine {
    /// A slot has keys elsewhere, of which replicas may not know: the primary answers its reads. The map says so soon, or
    /// says that all of the slot has moved.
    pub(crate) fn learn_moving(&mut self, backend: BackendId, slot: u16) {
        let state = &mut self.backends[backend];
        if state.replica_rules.has_replicas && state.topology.note_moving(slot, self.now) {
            self.doubt_map(backend);
        }
    }

    pub(crate) fn maintain_moving_slots(&mut self) {
        let now = self.now;
        self.backends.iter_mut().for_each(|backend| backend.topology.forget_moving(now));
    }

    /// Whether another server of the shard may answer a read as well: not if replicas may not know where the key is.
    pub(crate) fn is_readable_elsewhere(&self, backend: BackendId, bytes: &[u8]) -> bool {
        let topology = &self.backends[backend].topology;
        !topology.has_moving()
            || slot_of_request(bytes).is_none_or(|slot| !topology.is_moving(slot))
    }

    /// Asks for the keys of the script that waits first in a queue, to find out whether they are together.
    pub(crate) fn ask_for_keys(&mut self, key: Key) {
        let until = self.now.plus_millis(ASK_AGAIN_MS);
        let Some((request, _, waiting)) = self.sent_on.first_waiting(key) else { return };
        waiting.why = Wait::Keys { until };
        let to = waiting.target(self.epoch);
        let backend = self.requests[request].backend;
        let owner = self.backends[backend].topology.owner(key.slot);
        if let Some(to) = to.or(owner.map(|server| Target { server, asks: false })) {
            self.ask_for_keys_at(key, to);
        }
    }

    fn ask_for_keys_at(&mut self, key: Key, to: Target) {
        let Some((request, _, waiting)) = self.sent_on.first_waiting(key) else { return };
        let (variant, text) = (waiting.back.variant, keys_request(&waiting.back.bytes));
        let (Some(text), backend) = (text, self.requests[request].backend) else { return };
        let place = (backend, to.server);
        let Ok(lane) = self.lane_of(place, variant, self.choice_of(request), text.len()) else {
            return;
        };
        if to.asks {
            self.ask_with(lane, Own::Whatever, Due::OK, ASKING);
        }
        let Key { asker, slot } = key;
        let own = Own::Together { asker, slot, lane, asks: to.asks };
        self.ask_with(lane, own, Due::Anything, &text);
    }

    /// A node has answered whether the keys of a script are together there.
    #[cold]
    pub(crate) fn keys_answered(
        &mut self,
        (asker, slot): (u32, u16),
        (lane, asks): (LaneId, bool),
        reply: &[u8],
    ) {
        let key = Key { asker, slot };
        let (backend, server) = (self.lanes[lane].backend, self.lanes[lane].server);
        let again = self.now.plus_millis(TRY_AGAIN_MS);
        let epoch = self.epoch;
        // It may have been sent, or have failed, since.
        let waits =
            |waiting: &Waiting| waiting.back.is_sealed && matches!(waiting.why, Wait::Keys { .. });
        let first = self.sent_on.first_waiting(key);
        let Some((request, _, waiting)) = first.filter(|(_, _, it)| waits(it)) else { return };
        if self.requests[request].backend != backend {
            return;
        }
        match Redirect::of(reply) {
            Some(Redirect::TryAgain) => waiting.why = Wait::Keys { until: again },
            // Asked on behalf of ASK, or not: it goes where it would find its keys.
            None if reply.starts_with(b":") => {
                waiting.why = Wait::Turn;
                waiting.to = asks.then_some((Target { server, asks }, epoch));
            }
            None if reply.starts_with(b"-CLUSTERDOWN") || reply.starts_with(b"-LOADING") => {
                waiting.why = Wait::Keys { until: again };
            }
            None => return self.give_up_waiting(key),
            Some(Redirect::Moved { slot, to }) => {
                waiting.why = Wait::Keys { until: again };
                if !asks && self.learn_owner(backend, server, slot, to).is_some() {
                    self.ask_for_keys(key);
                }
            }
            Some(Redirect::Ask { slot, to }) => {
                waiting.why = Wait::Keys { until: again };
                self.learn_moving(backend, slot);
                if let Some(server) = self.node(backend, server, to).filter(|_| !asks) {
                    self.ask_for_keys_at(key, Target { server, asks: true });
                }
            }
        }
        self.send_waiting(key);
        self.send_ready();
    }
}

impl Backend {
    /// Until then it is tried again what has its keys at two nodes, if that began then.
    fn tries_end(&self, started: Time) -> Time {
        started.plus_micros(self.failover_wait_us.max(TRY_AGAIN_LONGEST_US))
    }

    /// Until then something waits here that began then.
    fn waits_until(&self, started: Time, is_script: bool) -> Time {
        let expiry = self.expiry(started);
        if is_script { expiry.min(self.tries_end(started)) } else { expiry }
    }
}

/// What EXEC is answered if a node sends it elsewhere that has queued the transaction.
pub(crate) const ABORTED: &[u8] =
    b"-EXECABORT Transaction discarded because of: CLUSTERDOWN Hash slot not served\r\n";

pub(crate) fn is_redirect(reply: &[u8]) -> bool {
    Redirect::of(reply).is_some()
}

/// What a whole request is.
fn found(bytes: &[u8]) -> Option<(&'static redis::Command, RequestParser)> {
    let mut parser = RequestParser::default();
    if !matches!(parser.parse(bytes, usize::MAX), Parsed::Complete { len } if len == bytes.len()) {
        return None;
    }
    match redis::find(bytes, parser.args()) {
        Lookup::Found(command) => Some((command, parser)),
        _ => None,
    }
}

/// Whether what it answers may be of a script's or a module's own making.
fn is_sealed(bytes: &[u8]) -> bool {
    found(bytes).is_some_and(|(command, _)| command.is_sealed() || command.group == Group::Module)
}

/// Whether it is only read, and the client has gone. What is written is written all the same.
fn is_for_nothing(client: ClientId, bytes: &[u8]) -> bool {
    client == ClientId::NONE && access_of(bytes).is_none_or(|access| access == Access::Read)
}

fn access_of(bytes: &[u8]) -> Option<Access> {
    found(bytes).map(|(command, _)| command.access)
}

/// The slot of a request's first key.
pub(crate) fn slot_of_request(bytes: &[u8]) -> Option<u16> {
    let (command, parser) = found(bytes)?;
    let mut keys = Vec::new();
    command.keys(bytes, parser.args(), &mut keys).ok()?;
    keys.first().map(|key| cashew_placement::slot_of(key.of(bytes)))
}

/// EXISTS with the keys of a request, if these are several: nodes do not refuse less for being at two of them.
fn keys_request(bytes: &[u8]) -> Option<Vec<u8>> {
    let (command, parser) = found(bytes)?;
    let mut keys = Vec::new();
    command.keys(bytes, parser.args(), &mut keys).ok()?;
    if keys.len() < 2 {
        return None;
    }
    let words: Vec<&[u8]> =
        std::iter::once(&b"EXISTS"[..]).chain(keys.iter().map(|key| key.of(bytes))).collect();
    let mut text = Vec::new();
    encode::write_command(&mut text, &words);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_slot_of_its_first_key() {
        let slot = |text: &str| slot_of_request(text.as_bytes());
        assert_eq!(slot("*2\r\n$3\r\nGET\r\n$3\r\nfoo\r\n"), Some(12182));
        assert_eq!(slot("*2\r\n$3\r\nGET\r\n$10\r\nfoo{hello}\r\n"), Some(866));
        assert_eq!(slot("*1\r\n$4\r\nPING\r\n"), None);
        assert_eq!(slot("*2\r\n$3\r\nGET\r\n$3\r\nfo"), None);
    }
    #[test]
    fn a_script_s_keys_are_asked_for_if_they_are_several() {
        let asked = |words: &[&[u8]]| {
            let mut text = Vec::new();
            encode::write_command(&mut text, words);
            keys_request(&text)
        };
        let mut expected = Vec::new();
        encode::write_command(&mut expected, &[b"EXISTS", b"a", b"b"]);
        assert_eq!(asked(&[b"EVAL", b"return 1", b"2", b"a", b"b", b"c"]), Some(expected));
        assert_eq!(asked(&[b"EVAL", b"return 1", b"1", b"a", b"b"]), None);
        assert_eq!(asked(&[b"EVAL", b"return 1", b"0"]), None);
    }
}
