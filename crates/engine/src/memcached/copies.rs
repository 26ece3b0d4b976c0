//! Groups of memcached whose servers are copies of each other: nobody replicates between them, so
//! that what is written goes to all.
//!
//! One of a group leads: the primary, or the first that can be reached. Its reply is the client's;
//! if it fails, that of the next. The client is answered when all have replied: what it has been told is
//! written, nobody finds otherwise at any copy that was reached. A copy that was not, or has not done it,
//! is counted, and fails no command.
//!
//! Two writes of one key that are on their way at once, on different connections, may reach the copies in
//! different orders. Then all but the one that has answered are to forget the key: see
//! [`crate::memcached::invalidation`]. So is a copy that a write has not reached.
//!
//! What is written on a condition (`add`, `replace`, `cas`) goes to the one that leads first, which
//! decides. The others are then given the same without the condition: theirs could come out another way,
//! and uniques are different on each. The client waits meanwhile, so that nothing overtakes it.
//!
//! What `gat` and its like do beside retrieving is done at the other copies by a `touch` that nobody waits
//! for.

use std::sync::Arc;

use cashew_config::snapshot;
use cashew_metrics::{ServerCounter, WriteKind, WriteLane, WriteStamp};
use cashew_protocol::memcached::binary::{self, HEADER_SIZE, Opcode, write_request};
use cashew_protocol::memcached::{
    Answer, Expect, KEY_SIZE_MAX, RequestParser, Verb, can_name_key, is_error, is_plain_key, words,
    write_delete,
};

use super::Asked;
use super::invalidation::{Copy, GIVE_UP_MS, HELD_MS, Invalidation, KEYS_MAX, RETRY_MS, SETTLE_MS};
use super::meta::plain_key;
use super::text::payload;
use crate::base::failure::NamedFailure;
use crate::base::id::{BackendId, ClientId, LaneId, RequestId, ServerId};
use crate::base::time::Time;
use crate::base::timers::Timer;
use crate::downstream::client::Client;
use crate::engine::Engine;
use crate::exchange::dispatch::Payload;
use crate::exchange::flow::{Flow, FlowContext, Step};
use crate::request::{Own, Role};
use crate::upstream::backend::Backend;
use crate::upstream::lane::Lane;
use crate::upstream::session_params::WireProtocol;

/// A write on its way to the servers of a group.
#[derive(Debug)]
struct Copies {
    /// The one that leads is the first.
    sent: Vec<Sent>,
    /// What the others get once the first has done it.
    then: Option<Then>,
    /// What the first was asked on a condition, it has not done.
    is_declined: bool,
    /// Copies that could not be reached, of what is on a condition.
    missed: Vec<ServerId>,
    /// By which servers are numbered here.
    config: Arc<snapshot::Pool>,
    key: Vec<u8>,
    stamp: WriteStamp,
    kind: WriteKind,
    /// What it leaves depends on what was there.
    is_relative: bool,
    /// A stamp is good for one epoch.
    epoch: u64,
    variant: u16,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    attempt: RequestId,
    server: ServerId,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// None yet.
    Open,
    Reply,
    /// An error of the server's, which has not done it.
    Error,
    /// No reply.
    None,
}

/// A write without its condition.
#[derive(Debug)]
struct Then {
    text: Unconditional,
    servers: Vec<ServerId>,
    /// As the client has them, which may be gone.
    variant: u16,
    lane_choice: u16,
}

#[derive(Debug, PartialEq, Eq)]
struct Unconditional {
    text: Vec<u8>,
    expect: Expect,
    /// Only of a packet.
    opcode: u8,
}

/// A write as it was parsed.
#[derive(Clone, Copy)]
pub(super) enum Write<'a> {
    Text(&'a RequestParser, &'a [u8]),
    Packet(&'a binary::RequestParser, &'a [u8]),
}

impl Copies {
    fn note(&mut self, attempt: RequestId, outcome: Outcome) {
        let sent = self.sent.iter_mut().find(|sent| sent.attempt == attempt);
        sent.expect("it sent the attempt").outcome = outcome;
    }

    /// Gives the others what the first one has done. Returns whether there is something to wait for.
    fn go_on(&mut self, cx: &mut FlowContext<'_>, then: Then) -> bool {
        let backend = cx.backend();
        let Then { text: Unconditional { text, expect, opcode }, variant, lane_choice, .. } = then;
        let opaque = cx.engine.requests[cx.request].asked.opaque;
        for before in then.servers {
            let engine = &mut *cx.engine;
            let Some(server) = number_of(&self.config, before, &engine.backends[backend]) else {
                continue;
            };
            match engine.lane_of((backend, server), variant, lane_choice, text.len()) {
                Ok(lane) => {
                    let last = self.sent.last().map_or(RequestId::NONE, |sent| sent.attempt);
                    let attempt = engine.add_attempt(cx.request, last);
                    let slot = &mut engine.requests[attempt];
                    slot.expect = expect;
                    slot.asked = Asked { opcode, opaque, ..Asked::default() };
                    engine.send(lane, attempt, Payload::Bytes(&text));
                    self.sent.push(Sent { attempt, server: before, outcome: Outcome::Open });
                }
                Err(_) => {
                    engine.count_missed(backend, server);
                    self.missed.push(before);
                }
            }
        }
        cx.engine.bufs.give(text);
        cx.pending() > 0
    }

    /// The write has ended, answered by that server or by nobody: sees to it that the copies will agree.
    fn reconcile(&mut self, cx: &mut FlowContext<'_>, answer: Option<Sent>) {
        let backend = cx.backend();
        let of = (backend, self.variant);
        if self.is_declined {
            return;
        }
        let Some(answer) = answer else {
            // Nobody has done it, but for the one that was to decide, perhaps.
            let leader = self.sent[0].server;
            if self.then.is_some() {
                if let Some(server) = number_of(&self.config, leader, &cx.engine.backends[backend])
                {
                    cx.engine.count_missed(backend, server);
                }
                cx.engine.invalidate(of, &self.key, &self.config, [leader].into_iter());
            }
            return;
        };
        let is_mixed = self.epoch != cx.engine.epoch || cx.engine.metrics.has_overlap(&self.stamp);
        let is_failed = answer.outcome == Outcome::Error;
        let mut behind = std::mem::take(&mut self.missed);
        let others = self.sent.iter().filter(|sent| sent.server != answer.server);
        let differs = others.filter(|sent| match sent.outcome {
            Outcome::Reply => is_mixed || is_failed,
            Outcome::Error => is_mixed || !is_failed,
            Outcome::Open | Outcome::None => true,
        });
        behind.extend(differs.map(|sent| sent.server));
        if !is_mixed && self.is_relative && self.kind == WriteKind::Ordered && behind.is_empty() {
            behind.extend(self.differing(cx));
        }
        if !behind.is_empty() {
            cx.engine.invalidate(of, &self.key, &self.config, behind.into_iter());
        } else if !is_failed && !is_mixed && !self.is_relative {
            let servers = self.sent.iter().map(|sent| sent.server);
            let began = cx.engine.requests[cx.request].started;
            cx.engine.absolve((backend, began), &self.key, &self.config, servers);
        }
    }

    /// Copies that show to have something else than the one that leads, by their replies. What commutes may be
    /// answered otherwise though all have the same.
    fn differing(&self, cx: &FlowContext<'_>) -> Vec<ServerId> {
        let expect = cx.engine.requests[cx.request].expect;
        let mut replies = cx.replies().map(|reply| outcome_of(expect, reply));
        let first = replies.next().flatten();
        let others = self.sent.iter().skip(1).zip(replies);
        let others = others.filter(|(_, reply)| reply.is_some() && *reply != first);
        others.map(|(sent, _)| sent.server).collect()
    }

    /// All have replied, or failed. `seen` is the attempt that was the last to.
    fn end(
        &mut self,
        cx: &mut FlowContext<'_>,
        seen: RequestId,
        failure: Option<NamedFailure>,
    ) -> Step {
        let answer = self.sent.iter().copied().find(|sent| sent.outcome != Outcome::None);
        self.reconcile(cx, answer);
        let Some(answer) = answer else {
            let failure = failure.expect("the last one failed, as all have");
            let mut out = cx.engine.bufs.take();
            let before = out.capacity();
            cx.engine.write_failure_of(cx.request, &failure, &mut out);
            cx.engine.bufs.charge(out.capacity() - before);
            return Step::Reply(out);
        };
        if answer.outcome == Outcome::Reply {
            let backend = cx.backend();
            for sent in self.sent.iter().filter(|sent| sent.outcome != Outcome::Reply) {
                let state = &cx.engine.backends[backend];
                if let Some(server) = number_of(&self.config, sent.server, state) {
                    cx.engine.count_missed(backend, server);
                }
            }
        }
        let is_unwanted = cx.engine.requests[answer.attempt].silent;
        cx.engine.requests[cx.request].silent |= is_unwanted;
        match answer.attempt == seen {
            true => Step::Answer,
            false => Step::Reply(cx.engine.take_reply(answer.attempt)),
        }
    }
}

impl Flow for Copies {
    fn on_reply(&mut self, cx: &mut FlowContext<'_>, attempt: RequestId, reply: &[u8]) -> Step {
        let slot = &cx.engine.requests[attempt];
        let (expect, is_unwanted) = (slot.expect, slot.silent);
        let is_bad = is_bad(expect, reply);
        self.note(attempt, if is_bad { Outcome::Error } else { Outcome::Reply });
        // What a quiet request leaves out is what it has done.
        if let Some(then) = self.then.take() {
            if is_unwanted || is_done(expect, reply) {
                if self.go_on(cx, then) {
                    return Step::Wait;
                }
            } else {
                cx.engine.bufs.give(then.text.text);
                self.is_declined = true;
            }
        }
        match cx.pending() {
            0 => self.end(cx, attempt, None),
            _ => Step::Wait,
        }
    }

    fn on_failure(
        &mut self,
        cx: &mut FlowContext<'_>,
        attempt: RequestId,
        why: NamedFailure,
    ) -> Step {
        self.note(attempt, Outcome::None);
        match cx.pending() {
            0 => self.end(cx, attempt, Some(why)),
            _ => Step::Wait,
        }
    }

    /// What the first one has done, the others are to do, and they are to agree.
    fn outlives_client(&self) -> bool {
        true
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.sent.capacity() * size_of::<Sent>() + self.key.capacity()
    }

    fn recycle(self: Box<Self>, engine: &mut Engine) {
        if let Some(then) = self.then {
            engine.bufs.give(then.text.text);
        }
    }
}

impl Engine {
    /// Whether what a client writes goes to all servers of a group.
    #[inline]
    pub(super) fn writes_to_all(&self, client: ClientId) -> bool {
        self.backends[self.backend_of(client)].topology.writes_to_all()
    }

    /// Sends a write, which is about to be sent on a lane, to all servers of the group. Returns `false` if
    /// it is no write, or nobody else is to get it: then it is to be sent there as ever.
    #[cold]
    pub(super) fn write_to_all(
        &mut self,
        client: ClientId,
        (lane, request): (LaneId, RequestId),
        write: Write<'_>,
    ) -> bool {
        if !write.is_write() {
            return false;
        }
        let backend = self.requests[request].backend;
        let leader = self.lane(lane).server;
        let (others, missed) = self.other_copies(backend, leader);
        let mut buf = [0; KEY_SIZE_MAX];
        let key = write.key(&mut buf);
        let Client { variant, lane_choice, .. } = self.clients[client];
        if others.is_empty() {
            self.note_missed((backend, variant), key, missed);
            return false;
        }
        let mut sent = Vec::with_capacity(1 + others.len());
        sent.push((leader, lane));
        let mut kept = Vec::new();
        let then = match self.unconditional(write) {
            Some(text) => {
                self.clients[client].fenced = true;
                kept = missed;
                Some(Then { text, servers: others, variant, lane_choice })
            }
            None => {
                let mut missed = missed;
                for server in others {
                    match self.lane_of((backend, server), variant, lane_choice, write.len()) {
                        Ok(lane) => sent.push((server, lane)),
                        Err(_) => {
                            self.count_missed(backend, server);
                            missed.push(server);
                        }
                    }
                }
                self.note_missed((backend, variant), key, missed);
                None
            }
        };
        let kind = if then.is_some() { WriteKind::Conditional } else { write.kind() };
        let offset = self.backends[backend].servers[leader].offset_of(variant, lane);
        let lane_of_all = WriteLane::new(self.slot, offset);
        let room = then.as_ref().map_or(0, |then| then.servers.len());
        let mut copies = Copies {
            sent: Vec::with_capacity(sent.len() + room),
            then,
            is_declined: false,
            missed: kept,
            config: Arc::clone(&self.backends[backend].config),
            key: key.to_vec(),
            stamp: self.metrics.begin_write(key, lane_of_all, kind),
            kind,
            is_relative: write.is_relative(),
            epoch: self.epoch,
            variant,
        };
        let (mut next, pending) = (RequestId::NONE, sent.len() as u32);
        for (server, lane) in sent.into_iter().rev() {
            let slot = &self.requests[request];
            let (expect, asked, is_tagged) = (slot.expect, slot.asked, slot.is_tagged);
            let (attempt, slot) = self.requests.add(backend, ClientId::NONE, self.now);
            slot.role = Role::Fragment { parent: request, next };
            (slot.expect, slot.asked, slot.is_tagged) = (expect, asked, is_tagged);
            write.send(self, lane, attempt);
            copies.sent.push(Sent { attempt, server, outcome: Outcome::Open });
            next = attempt;
        }
        copies.sent.reverse();
        self.go_on_with(request, Box::new(copies), (next, pending));
        true
    }

    /// The servers of a group but one that are to get what is written, and those that cannot, which are
    /// counted.
    fn other_copies(
        &mut self,
        backend: BackendId,
        leader: ServerId,
    ) -> (Vec<ServerId>, Vec<ServerId>) {
        let state = &self.backends[backend];
        let others = state.topology.members(leader).filter(|&server| server != leader);
        let is_reached = |server: &ServerId| {
            state.topology.live()[server.index()] && state.servers[*server].is_up()
        };
        let (reached, missed): (Vec<ServerId>, Vec<ServerId>) = others.partition(is_reached);
        missed.iter().for_each(|&server| self.count_missed(backend, server));
        (reached, missed)
    }

    /// Copies that are not reached forget what they miss when they are.
    fn note_missed(&mut self, of: (BackendId, u16), key: &[u8], missed: Vec<ServerId>) {
        if !missed.is_empty() {
            let config = Arc::clone(&self.backends[of.0].config);
            self.invalidate(of, key, &config, missed.into_iter());
        }
    }

    fn count_missed(&self, backend: BackendId, server: ServerId) {
        let server = self.backends[backend].servers[server].metrics;
        self.metrics.add_server(server, ServerCounter::WritesMissed, 1);
    }

    /// Sends the servers of a group but one what nobody waits for.
    #[cold]
    pub(super) fn send_to_others(
        &mut self,
        client: ClientId,
        leader: ServerId,
        (expect, asked): (Expect, Asked),
        text: &[u8],
    ) {
        let backend = self.backend_of(client);
        let Client { variant, lane_choice, .. } = self.clients[client];
        for server in self.other_copies(backend, leader).0 {
            match self.lane_of((backend, server), variant, lane_choice, text.len()) {
                Ok(lane) => {
                    let (request, slot) = self.requests.add(backend, ClientId::NONE, self.now);
                    slot.role = Role::Own(Own::Whatever);
                    (slot.expect, slot.asked) = (expect, asked);
                    self.send(lane, request, Payload::Bytes(text));
                }
                Err(_) => self.count_missed(backend, server),
            }
        }
    }

    /// A route has sent what changes a key on this lane, and nowhere else: the other copies forget the key, since
    /// what they would make of it is not followed there.
    #[cold]
    pub(crate) fn forget_at_copies(&mut self, lane: LaneId, key: &[u8]) {
        let Lane { backend, server, variant, .. } = *self.lane(lane);
        let topology = &self.backends[backend].topology;
        let others = topology.members(server).filter(|&it| it != server);
        let others: Vec<ServerId> = others.collect();
        let config = Arc::clone(&self.backends[backend].config);
        self.invalidate((backend, variant), key, &config, others.into_iter());
    }

    /// Does at the other copies what a retrieval does beside retrieving.
    #[cold]
    pub(super) fn touch_others(&mut self, client: ClientId, leader: ServerId, write: Write<'_>) {
        let touch = match write {
            Write::Text(parser, bytes) => touch_of_meta(parser, bytes),
            Write::Packet(parser, bytes) => touch_of_packet(parser, bytes),
        };
        if let Some((text, expect, asked)) = touch {
            self.send_to_others(client, leader, (expect, asked), &text);
        }
    }

    /// The same for a key of `gat`, whose `head` is the verb and the expiry.
    #[cold]
    pub(super) fn touch_key_at_others(
        &mut self,
        client: ClientId,
        leader: ServerId,
        head: &[u8],
        key: &[u8],
    ) {
        let Some(expiry) = words(head).nth(1) else { return };
        let text = [b"touch ", key, b" ", expiry, b"\r\n"].concat();
        let expect = Expect::Answer(Answer::Touch);
        self.send_to_others(client, leader, (expect, Asked::default()), &text);
    }

    /// What the others are given of a write on a condition.
    fn unconditional(&mut self, write: Write<'_>) -> Option<Unconditional> {
        let mut out = self.bufs.take_for(write.len());
        let room = out.capacity();
        let found = match write {
            Write::Text(parser, bytes) => {
                write_unconditional(parser, bytes, &mut out).map(|expect| (expect, 0))
            }
            Write::Packet(parser, bytes) => write_unconditional_packet(parser, bytes, &mut out)
                .map(|opcode| (Expect::Packet, opcode.byte())),
        };
        self.bufs.charge(out.capacity() - room);
        let Some((expect, opcode)) = found else {
            self.bufs.give(out);
            return None;
        };
        Some(Unconditional { text: out, expect, opcode })
    }
}

/// Of a key, what is sent to have a server forget it.
struct Order {
    text: Vec<u8>,
    variant: u16,
    expect: Expect,
    asked: Asked,
}

impl Engine {
    /// These servers are to forget a key when no write of it is on its way any more.
    pub(crate) fn invalidate(
        &mut self,
        (backend, variant): (BackendId, u16),
        key: &[u8],
        config: &Arc<snapshot::Pool>,
        servers: impl Iterator<Item = ServerId>,
    ) {
        let (now, due) = (self.now, self.now.plus_millis(SETTLE_MS));
        let all = &mut self.invalidations;
        let name = (backend, key.to_vec());
        let number = match all.numbers.get(&name) {
            Some(&number) => number,
            None if all.keys.len() >= KEYS_MAX => {
                let reached: Vec<ServerId> = servers
                    .filter_map(|server| number_of(config, server, &self.backends[backend]))
                    .filter(|&server| self.backends[backend].servers[server].is_up())
                    .collect();
                self.have_forgotten((backend, variant), key, &reached, |_| Own::Whatever);
                return;
            }
            None => {
                all.last = all.last.wrapping_add(1);
                let number = all.last;
                let it = Invalidation {
                    backend,
                    key: key.to_vec(),
                    variant,
                    copies: Vec::new(),
                    due,
                    until: now.plus_millis(GIVE_UP_MS),
                };
                all.keys.insert(number, it);
                all.numbers.insert(name, number);
                number
            }
        };
        let it = all.keys.get_mut(&number).expect("it was there, or is now");
        for server in servers {
            match it.copy_of((server, config)) {
                Some(copy) => (copy.is_owed, copy.owed_at) = (true, now),
                None => {
                    let config = Arc::clone(config);
                    let copy = Copy { server, config, is_owed: true, owed_at: now, in_flight: 0 };
                    it.copies.push(copy);
                }
            }
        }
        all.set_due(number, due);
        all.remove_if_settled(number);
        match self.draining {
            true => drop(self.settle_invalidation(number, true)),
            false => self.timers.arm(due, Timer::Invalidations),
        }
    }

    /// The worker is about to go, or nothing else is on its way to these backends, and another copy may lead
    /// next: nobody waits any longer. Returns whether something was sent.
    pub(crate) fn hurry_invalidations(&mut self, of: impl Fn(BackendId) -> bool) -> bool {
        let keys = self.invalidations.keys.iter().filter(|(_, it)| of(it.backend));
        let numbers: Vec<u32> = keys.map(|(&number, _)| number).collect();
        let sent: Vec<bool> =
            numbers.into_iter().map(|number| self.settle_invalidation(number, true)).collect();
        sent.contains(&true)
    }

    /// These copies have confirmed a write of a key, which was alone and began at that time. So they need not
    /// forget it for anything that was over before. What was on its way may have come behind it.
    #[inline]
    pub(crate) fn absolve(
        &mut self,
        (backend, began): (BackendId, Time),
        key: &[u8],
        config: &Arc<snapshot::Pool>,
        servers: impl Iterator<Item = ServerId>,
    ) {
        let all = &mut self.invalidations;
        if all.keys.is_empty() {
            return;
        }
        let Some(&number) = all.numbers.get(&(backend, key.to_vec())) else { return };
        let it = all.keys.get_mut(&number).expect("each number is of one");
        for server in servers {
            if let Some(copy) = it.copy_of((server, config)) {
                copy.is_owed &= copy.owed_at >= began;
            }
        }
        all.remove_if_settled(number);
    }

    pub(crate) fn maintain_invalidations(&mut self) {
        while let Some(&(due, number)) = self.invalidations.due.first()
            && due <= self.now
        {
            self.settle_invalidation(number, false);
        }
        if let Some(&(due, _)) = self.invalidations.due.first() {
            self.timers.arm(due, Timer::Invalidations);
        }
    }

    /// Has copies forget a key that can be reached. Returns whether there were any. While a ring changes they wait,
    /// unless `is_urgent`.
    fn settle_invalidation(&mut self, number: u32, is_urgent: bool) -> bool {
        let now = self.now;
        let Some(it) = self.invalidations.keys.get_mut(&number) else { return false };
        let state = &self.backends[it.backend];
        if state.is_held() && !is_urgent {
            self.invalidations.set_due(number, now.plus_millis(HELD_MS));
            return false;
        }
        let is_over = it.until <= now;
        let mut reached = Vec::new();
        for (place, copy) in it.copies.iter_mut().enumerate().filter(|(_, copy)| copy.is_owed) {
            match number_of(&copy.config, copy.server, state) {
                Some(server) if state.servers[server].is_up() => reached.push((server, place)),
                Some(_) if !is_over => {}
                // It is in the group no more, or has been away for too long.
                _ => copy.is_owed = false,
            }
        }
        let (of, key) = ((it.backend, it.variant), it.key.clone());
        let servers: Vec<ServerId> = reached.iter().map(|&(server, _)| server).collect();
        let place_of = |server: ServerId| {
            let found = reached.iter().find(|&&(it, _)| it == server);
            found.map_or(0, |&(_, place)| place as u32)
        };
        let own = |server| Own::Invalidation { number, copy: place_of(server) };
        let sent = self.have_forgotten(of, &key, &servers, own);
        let is_sent = !sent.is_empty();
        if let Some(it) = self.invalidations.keys.get_mut(&number) {
            for server in sent {
                let copy = &mut it.copies[place_of(server) as usize];
                copy.is_owed = false;
                copy.in_flight += 1;
            }
        }
        self.invalidations.set_due(number, now.plus_millis(RETRY_MS));
        self.invalidations.remove_if_settled(number);
        is_sent
    }

    /// Has servers forget a key. Returns those that it was sent to.
    fn have_forgotten(
        &mut self,
        (backend, variant): (BackendId, u16),
        key: &[u8],
        servers: &[ServerId],
        own: impl Fn(ServerId) -> Own,
    ) -> Vec<ServerId> {
        if servers.is_empty() {
            return Vec::new();
        }
        let lane = WriteLane::unordered(self.slot);
        self.metrics.begin_write(key, lane, WriteKind::Ordered);
        let mut sent = Vec::new();
        for &server in servers {
            let Some(order) = self.order_for((backend, server), variant, key) else { continue };
            let lane = self.lane_of((backend, server), order.variant, 0, order.text.len());
            let Ok(lane) = lane else { continue };
            let (request, slot) = self.requests.add(backend, ClientId::NONE, self.now);
            slot.role = Role::Own(own(server));
            (slot.expect, slot.asked) = (order.expect, order.asked);
            self.send(lane, request, Payload::Bytes(&order.text));
            let metrics = self.backends[backend].servers[server].metrics;
            self.metrics.add_server(metrics, ServerCounter::Invalidated, 1);
            sent.push(server);
        }
        sent
    }

    /// By a connection of the first variant, or else of the client's: each protocol has keys that it
    /// cannot name.
    fn order_for(
        &self,
        (backend, server): (BackendId, ServerId),
        variant: u16,
        key: &[u8],
    ) -> Option<Order> {
        let state = &self.backends[backend];
        let wire = |variant: u16| {
            let params = state.params_set.get(usize::from(variant))?;
            let has_lanes = state.servers[server].has_lanes(variant);
            has_lanes.then_some(params.wire_protocol)
        };
        for variant in [0, variant] {
            match wire(variant) {
                Some(WireProtocol::Text) if is_plain_key(key) => {
                    let mut text = Vec::new();
                    write_delete(key, &mut text);
                    let expect = Expect::Answer(Answer::Delete);
                    return Some(Order { text, variant, expect, asked: Asked::default() });
                }
                Some(WireProtocol::Binary) => {
                    let opcode = Opcode::Delete.byte();
                    let mut text = Vec::new();
                    write_request(opcode, key, b"", &mut text);
                    let asked = Asked { opcode, ..Asked::default() };
                    return Some(Order { text, variant, expect: Expect::Packet, asked });
                }
                _ => {}
            }
        }
        let variant = [0, variant].into_iter().find(|&it| wire(it) == Some(WireProtocol::Text))?;
        if !can_name_key(key) {
            return None;
        }
        let mut text = Vec::new();
        write_delete(key, &mut text);
        let expect = Expect::Answer(Answer::MetaDelete);
        Some(Order { text, variant, expect, asked: Asked::default() })
    }

    /// A copy has answered that it forgets a key.
    pub(crate) fn invalidated(&mut self, request: RequestId, own: Own, reply: &[u8]) {
        let is_failed = is_bad(self.requests[request].expect, reply);
        self.settle_copy(own, is_failed);
    }

    /// A copy has not answered.
    pub(crate) fn not_invalidated(&mut self, own: Own) {
        self.settle_copy(own, true);
    }

    fn settle_copy(&mut self, own: Own, is_failed: bool) {
        let Own::Invalidation { number, copy } = own else { return };
        let now = self.now;
        let Some(it) = self.invalidations.keys.get_mut(&number) else { return };
        let Some(copy) = it.copies.get_mut(copy as usize) else { return };
        copy.in_flight -= 1;
        if is_failed {
            (copy.is_owed, copy.owed_at) = (true, now);
        }
        self.invalidations.remove_if_settled(number);
    }
}

impl<'a> Write<'a> {
    /// As its bytes are, out of base64.
    fn key<'k>(self, buf: &'k mut [u8; KEY_SIZE_MAX]) -> &'k [u8]
    where
        'a: 'k,
    {
        match self {
            Self::Text(parser, bytes) => plain_key(parser, bytes, buf),
            Self::Packet(parser, bytes) => parser.key().of(bytes),
        }
    }

    /// How it stands to others of its key, without a condition. What makes a key that is not there does not
    /// commute. (A decrement ends at 0, where it commutes with no increment. That is left out of account.)
    fn kind(self) -> WriteKind {
        let commutes = match self {
            Self::Text(parser, bytes) => match parser.verb() {
                Verb::Incr | Verb::Decr | Verb::Touch => true,
                Verb::MetaArithmetic => words(parser.line().of(bytes))
                    .skip(2)
                    .all(|flag| !matches!(flag[0], b'N' | b'T' | b'E' | b'I')),
                _ => false,
            },
            Self::Packet(parser, bytes) => match parser.opcode() {
                Opcode::Increment | Opcode::Decrement => {
                    parser.extras().of(bytes).ends_with(&[0xff; 4])
                }
                opcode => opcode == Opcode::Touch,
            },
        };
        if commutes { WriteKind::Commuting } else { WriteKind::Ordered }
    }

    /// Whether what it leaves depends on what was there.
    fn is_relative(self) -> bool {
        match self {
            Self::Text(parser, bytes) => match parser.verb() {
                Verb::Set | Verb::Add | Verb::Replace | Verb::Cas | Verb::Delete => false,
                Verb::MetaSet => words(parser.line().of(bytes))
                    .skip(3)
                    .any(|flag| matches!(flag, [b'M', b'A' | b'a' | b'P' | b'p'])),
                Verb::MetaDelete => words(parser.line().of(bytes))
                    .skip(2)
                    .any(|flag| matches!(flag[0], b'I' | b'x' | b'T')),
                _ => true,
            },
            Self::Packet(parser, _) => !matches!(
                parser.opcode(),
                Opcode::Set | Opcode::Add | Opcode::Replace | Opcode::Delete
            ),
        }
    }

    fn len(self) -> usize {
        match self {
            Self::Text(_, bytes) | Self::Packet(_, bytes) => bytes.len(),
        }
    }

    /// Whether it stores or removes something. What retrieves does neither, or something beside it.
    fn is_write(self) -> bool {
        match self {
            Self::Text(parser, _) => matches!(
                parser.verb(),
                Verb::Set
                    | Verb::Add
                    | Verb::Replace
                    | Verb::Append
                    | Verb::Prepend
                    | Verb::Cas
                    | Verb::Delete
                    | Verb::Incr
                    | Verb::Decr
                    | Verb::Touch
                    | Verb::MetaSet
                    | Verb::MetaDelete
                    | Verb::MetaArithmetic
            ),
            Self::Packet(parser, _) => {
                let opcode = parser.opcode();
                opcode.has_key() && !opcode.retrieves()
            }
        }
    }

    fn send(self, engine: &mut Engine, lane: LaneId, attempt: RequestId) {
        match self {
            Self::Text(parser, bytes) => match engine.request_ctx.names_cas_tags {
                true => engine.send_untagged(lane, attempt, parser, bytes),
                false => engine.send(lane, attempt, payload(parser, bytes)),
            },
            Self::Packet(parser, bytes) => {
                let header = engine.header_for(lane, parser, bytes);
                engine.send(lane, attempt, Payload::Two(&header, &bytes[HEADER_SIZE..]));
            }
        }
    }
}

/// The number that a server has now: a reload may have given it another.
fn number_of(
    config: &Arc<snapshot::Pool>,
    server: ServerId,
    backend: &Backend,
) -> Option<ServerId> {
    if Arc::ptr_eq(config, &backend.config) {
        return Some(server);
    }
    let endpoint = &config.servers[server.index()].endpoint;
    let found = backend.config.servers.iter().position(|it| it.endpoint == *endpoint)?;
    Some(ServerId::new(found as u32))
}

/// What a reply to a write that is relative says of what a server has now, if it says that it has something.
fn outcome_of(expect: Expect, reply: &[u8]) -> Option<&[u8]> {
    if is_packet(expect) {
        return reply.get(HEADER_SIZE..).filter(|_| status(reply) == Some(0));
    }
    let is_number = reply.first().is_some_and(u8::is_ascii_digit);
    // The rest of it may be of the one server only.
    let word = [&b"TOUCHED"[..], b"STORED", b"HD"].into_iter().find(|it| reply.starts_with(it));
    match reply.strip_prefix(b"VA ") {
        Some(rest) => rest.splitn(2, |&byte| byte == b'\n').nth(1),
        None => word.or(is_number.then_some(reply)),
    }
}

/// The status in a packet.
fn status(packet: &[u8]) -> Option<u16> {
    packet.get(6..8).map(|status| u16::from_be_bytes([status[0], status[1]]))
}

fn is_packet(expect: Expect) -> bool {
    matches!(expect, Expect::Packet | Expect::PacketQuiet)
}

/// Whether a reply says that its server has failed to do what it was asked, and not that there was
/// nothing to do.
fn is_bad(expect: Expect, reply: &[u8]) -> bool {
    const TOO_LARGE: u16 = 3;
    const UNKNOWN: u16 = 0x81;
    match is_packet(expect) {
        true => status(reply).is_some_and(|status| status == TOO_LARGE || status >= UNKNOWN),
        false => is_error(reply),
    }
}

/// Whether a reply says that it is done.
fn is_done(expect: Expect, reply: &[u8]) -> bool {
    match is_packet(expect) {
        true => status(reply) == Some(0),
        false => [&b"STORED"[..], b"HD", b"VA"].iter().any(|word| reply.starts_with(word)),
    }
}

/// Writes a request of text without its condition. `None` if it has none.
fn write_unconditional(parser: &RequestParser, bytes: &[u8], out: &mut Vec<u8>) -> Option<Expect> {
    let line = parser.line().of(bytes);
    let mut words = words(line).skip(1);
    let expect = match parser.verb() {
        Verb::Cas | Verb::Add | Verb::Replace => {
            out.extend_from_slice(b"set");
            // The key, its flags, its expiry and the size.
            words.by_ref().take(4).for_each(|word| push_word(word, out));
            Expect::Answer(Answer::Store)
        }
        Verb::MetaSet | Verb::MetaDelete | Verb::MetaArithmetic => {
            let is_set = parser.verb() == Verb::MetaSet;
            let is_mode = |flag: &[u8]| is_set && matches!(flag, [b'M', b'E' | b'e' | b'R' | b'r']);
            let is_condition = |flag: &[u8]| flag[0] == b'C' || is_mode(flag);
            // Behind the key, and of a set the size.
            let flags = words.clone().skip(if is_set { 2 } else { 1 });
            if !flags.clone().any(is_condition) {
                return None;
            }
            out.extend_from_slice(&line[..2]);
            words.take(if is_set { 2 } else { 1 }).for_each(|word| push_word(word, out));
            // Of a set, `I` says what to do about a unique that is an older one.
            let is_left_out =
                |flag: &[u8]| is_condition(flag) || flag == b"q" || is_set && flag == b"I";
            flags.filter(|flag| !is_left_out(flag)).for_each(|flag| push_word(flag, out));
            parser.expect()
        }
        _ => return None,
    };
    out.extend_from_slice(b"\r\n");
    if let Some(data) = parser.data() {
        out.extend_from_slice(data.of(bytes));
        out.extend_from_slice(b"\r\n");
    }
    Some(expect)
}

fn push_word(word: &[u8], out: &mut Vec<u8>) {
    out.push(b' ');
    out.extend_from_slice(word);
}

/// The same for a packet; returns what it asks for.
fn write_unconditional_packet(
    parser: &binary::RequestParser,
    bytes: &[u8],
    out: &mut Vec<u8>,
) -> Option<Opcode> {
    const UNIQUE: std::ops::Range<usize> = 16..24;
    let opcode = match parser.opcode() {
        Opcode::Add | Opcode::Replace => Opcode::Set,
        _ if parser.header().cas == 0 => return None,
        opcode => opcode,
    };
    out.extend_from_slice(bytes);
    out[1] = opcode.byte();
    out[UNIQUE].fill(0);
    Some(opcode)
}

/// What `mg` does beside retrieving, if it does anything, as a request that retrieves nothing.
fn touch_of_meta(parser: &RequestParser, bytes: &[u8]) -> Option<(Vec<u8>, Expect, Asked)> {
    let mut words = words(parser.line().of(bytes)).skip(1);
    let key = words.next()?;
    let flags = words.filter(|flag| matches!(flag[0], b'b' | b'N' | b'T'));
    if parser.verb() != Verb::MetaGet || !flags.clone().any(|flag| flag[0] != b'b') {
        return None;
    }
    let mut text = b"mg".to_vec();
    push_word(key, &mut text);
    flags.for_each(|flag| push_word(flag, &mut text));
    text.extend_from_slice(b"\r\n");
    Some((text, Expect::Meta, Asked::default()))
}

fn touch_of_packet(
    parser: &binary::RequestParser,
    bytes: &[u8],
) -> Option<(Vec<u8>, Expect, Asked)> {
    if !matches!(parser.opcode(), Opcode::Gat | Opcode::GatK) {
        return None;
    }
    let extras = parser.extras().of(bytes);
    let opcode = Opcode::Touch.byte();
    let mut text = Vec::new();
    write_request(opcode, parser.key().of(bytes), b"", &mut text);
    let body_len = (parser.key().len as usize + extras.len()) as u32;
    text[4] = extras.len() as u8;
    text[8..12].copy_from_slice(&body_len.to_be_bytes());
    text.splice(HEADER_SIZE..HEADER_SIZE, extras.iter().copied());
    Some((text, Expect::Packet, Asked { opcode, ..Asked::default() }))
}
