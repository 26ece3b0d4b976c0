//! Groups of memcached whose servers are copies of each other: nobody replicates between them, so
//! that what is written goes to all.
//!
//! One of a group leads: the primary, or the first that can be reached. Its reply is the client's;
//! if it fails, that of the next. The client is answered when all have replied: what it has been told is
//! written, nobody finds otherwise at any copy that was reached. A copy that was not, or has not done it,
//! is counted, and fails no command.
//!
//! What is written on a condition (`add`, `replace`, `cas`) goes to the one that leads first, which
//! decides. The others are then given the same without the condition: theirs could come out another way,
//! and uniques are different on each. The client waits meanwhile, so that nothing overtakes it.
//!
//! What `gat` and its like do beside retrieving is done at the other copies by a `touch` that nobody waits
//! for.

use std::sync::Arc;

use cashew_config::snapshot;
use cashew_metrics::ServerCounter;
use cashew_protocol::memcached::binary::{self, HEADER_SIZE, Opcode, write_request};
use cashew_protocol::memcached::{Answer, Expect, RequestParser, Verb, is_error, words};

use super::Asked;
use super::text::payload;
use crate::base::failure::NamedFailure;
use crate::base::id::{BackendId, ClientId, LaneId, RequestId, ServerId};
use crate::downstream::client::Client;
use crate::engine::Engine;
use crate::exchange::dispatch::Payload;
use crate::exchange::flow::{Flow, FlowContext, Step};
use crate::request::{Own, Role};
use crate::upstream::backend::Backend;

/// A write on its way to the servers of a group.
#[derive(Debug)]
struct Copies {
    /// The one that leads is the first.
    sent: Vec<Sent>,
    /// What the others get once the first has done it.
    then: Option<Then>,
    /// By which servers are numbered here.
    config: Arc<snapshot::Pool>,
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

    /// The number that a server has now: a reload may have given it another.
    fn number_of(&self, server: ServerId, backend: &Backend) -> Option<ServerId> {
        if Arc::ptr_eq(&self.config, &backend.config) {
            return Some(server);
        }
        let endpoint = &self.config.servers[server.index()].endpoint;
        let found = backend.config.servers.iter().position(|it| it.endpoint == *endpoint)?;
        Some(ServerId::new(found as u32))
    }

    /// Gives the others what the first one has done. Returns whether there is something to wait for.
    fn go_on(&mut self, cx: &mut FlowContext<'_>, then: Then) -> bool {
        let backend = cx.backend();
        let Then { text: Unconditional { text, expect, opcode }, variant, lane_choice, .. } = then;
        let opaque = cx.engine.requests[cx.request].asked.opaque;
        for before in then.servers {
            let engine = &mut *cx.engine;
            let Some(server) = self.number_of(before, &engine.backends[backend]) else { continue };
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
                Err(_) => engine.count_missed(backend, server),
            }
        }
        cx.engine.bufs.give(text);
        cx.pending() > 0
    }

    /// All have replied, or failed. `seen` is the attempt that was the last to.
    fn end(
        &self,
        cx: &mut FlowContext<'_>,
        seen: RequestId,
        failure: Option<NamedFailure>,
    ) -> Step {
        let Some(answer) = self.sent.iter().find(|sent| sent.outcome != Outcome::None) else {
            let failure = failure.expect("the last one failed, as all have");
            let mut out = cx.engine.bufs.take();
            cx.engine.write_failure_of(cx.request, &failure, &mut out);
            return Step::Reply(out);
        };
        if answer.outcome == Outcome::Reply {
            let backend = cx.backend();
            for sent in self.sent.iter().filter(|sent| sent.outcome != Outcome::Reply) {
                if let Some(server) = self.number_of(sent.server, &cx.engine.backends[backend]) {
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

    /// What the first one has done, the others are to do.
    fn outlives_client(&self) -> bool {
        self.then.is_some()
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.sent.capacity() * size_of::<Sent>()
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
        let others = self.other_copies(backend, leader);
        if others.is_empty() {
            return false;
        }
        let Client { variant, lane_choice, .. } = self.clients[client];
        let mut sent = Vec::with_capacity(1 + others.len());
        sent.push((leader, lane));
        let then = match self.unconditional(write) {
            Some(text) => {
                self.clients[client].fenced = true;
                Some(Then { text, servers: others, variant, lane_choice })
            }
            None => {
                for server in others {
                    match self.lane_of((backend, server), variant, lane_choice, write.len()) {
                        Ok(lane) => sent.push((server, lane)),
                        Err(_) => self.count_missed(backend, server),
                    }
                }
                None
            }
        };
        let room = then.as_ref().map_or(0, |then| then.servers.len());
        let mut copies = Copies {
            sent: Vec::with_capacity(sent.len() + room),
            then,
            config: Arc::clone(&self.backends[backend].config),
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

    /// The servers of a group but one that are to get what is written. Those that cannot are counted.
    fn other_copies(&mut self, backend: BackendId, leader: ServerId) -> Vec<ServerId> {
        let topology = &self.backends[backend].topology;
        let mut others: Vec<ServerId> =
            topology.members(leader).filter(|&server| server != leader).collect();
        others.retain(|&server| {
            let state = &self.backends[backend];
            let is_reached = state.topology.live()[server.index()] && state.servers[server].is_up();
            if !is_reached {
                self.count_missed(backend, server);
            }
            is_reached
        });
        others
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
        for server in self.other_copies(backend, leader) {
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

impl Write<'_> {
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
