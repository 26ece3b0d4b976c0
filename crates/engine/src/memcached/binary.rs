//! The binary protocol, from bytes to requests.
//!
//! It has lanes of its own. To have its requests travel as meta commands would spare connections,
//! but not all of them can: a key of more than 186 bytes that is not text has no form there, and a
//! server older than 1.6 knows no meta commands.

use std::sync::Arc;

use cashew_protocol::CommandClass;
use cashew_protocol::memcached::binary::{
    HEADER_SIZE, Opcode, Parsed, RequestParser, Response, Status, write_request, write_response,
};
use cashew_protocol::memcached::{Expect, knows_statistics};
use cashew_protocol::redis::Access;

use super::Asked;
use super::copies::Write;
use super::stats::{InPackets, Kind};
use super::tenant::TOO_LONG;
use crate::base::command_stats::Counting;
use crate::base::id::{ClientId, LaneId, RequestId};
use crate::downstream::client::{Parser, State};
use crate::downstream::key_prefix::KeyPrefix;
use crate::downstream::listener::Choice;
use crate::downstream::receive::{Plan, Step, fills};
use crate::downstream::upload::{Begun, Extent, Head, Tail, UPLOAD_SIZE_MIN};
use crate::engine::Engine;
use crate::exchange::dispatch::Payload;
use crate::request::Merge;
use crate::upstream::session_params::WireProtocol;

impl Engine {
    /// Parses and dispatches whole requests from the start of `buf`: see [`Engine::consume`].
    pub(crate) fn consume_binary(&mut self, index: ClientId, buf: &[u8], owned: bool) -> Step {
        let mut used = self.swallow(index, buf.len());
        if used == buf.len() {
            return Step::Rest { used, need: 0 };
        }
        let mut parser = match self.unpark(index) {
            Some(Parser::Binary(parser)) => parser,
            _ => self.scratch.binary.take().unwrap_or_default(),
        };
        parser.set_value_size_max(self.value_size_max(index));
        while used < buf.len() && self.may_consume(index, &buf[used..]) {
            let bytes = &buf[used..];
            match parser.parse(bytes) {
                Parsed::Complete { len } => {
                    self.spend(len);
                    let prefix = self.key_prefix_of(index).filter(|_| parser.opcode().has_key());
                    let anew = prefix.as_ref().and_then(|prefix| prefix.packet(&bytes[..len]));
                    let is_too_long = prefix.is_some() && anew.is_none();
                    let is_anew = anew.is_some();
                    let (parser_of, text) = match &anew {
                        Some((anew, text)) => (anew, &text[..]),
                        None => (&*parser, &bytes[..len]),
                    };
                    self.count_packet(index, parser_of, (text, len));
                    let plan = match self.must_wait(index, len) {
                        true => Plan::Wait,
                        false if is_too_long => {
                            let why = TOO_LONG.as_bytes();
                            self.answer_binary(index, &parser, Status::Invalid, why);
                            Plan::Done
                        }
                        false => self.binary_request(index, parser_of, text),
                    };
                    self.fence(index, len, &plan);
                    if let Plan::Wait = plan {
                        parser.reset();
                        break;
                    }
                    if self.is_metered(index) {
                        self.pay_request(index, len);
                    }
                    let is_copied = match plan {
                        Plan::Forward { lane, request } if self.writes_to_all(index) => {
                            let packet = Write::Packet(parser_of, text);
                            self.write_to_all(index, (lane, request), packet)
                        }
                        _ => false,
                    };
                    if let Plan::Forward { lane, request } = plan
                        && !is_copied
                    {
                        let unique = parser.header().cas != 0 && self.has_tags(index);
                        let is_loud = !parser.is_quiet() && !unique && !is_anew;
                        if is_loud && owned && used == 0 && fills(len, buf) {
                            parser.reset();
                            self.scratch.binary.give(parser);
                            return Step::Large { len, lane, request };
                        }
                        if unique || parser.is_quiet() {
                            let header = self.header_for(lane, parser_of, text);
                            let rest = &text[header.len()..];
                            self.send(lane, request, Payload::Two(&header, rest));
                        } else {
                            self.send(lane, request, Payload::Bytes(text));
                        }
                    }
                    parser.reset();
                    parser.set_value_size_max(self.value_size_max(index));
                    used += len;
                    used = buf.len() - self.fast_further(index, &buf[used..]).len();
                }
                Parsed::Partial { need } => {
                    if need >= UPLOAD_SIZE_MIN {
                        let begun = self.upload_packet(index, &parser, bytes);
                        if let Some(step) = self.step_of(index, begun, used) {
                            parser.reset();
                            self.scratch.binary.give(parser);
                            return step;
                        }
                    }
                    self.park(index, Parser::Binary(parser));
                    return Step::Rest { used, need };
                }
                Parsed::Reject { len, swallow, status, close } => {
                    self.command_stats.current = Counting::default();
                    let close = self.refuse_binary(index, &parser, bytes, status) || close;
                    parser.reset();
                    if close {
                        self.give_up(index);
                        used = buf.len();
                    } else {
                        used += len;
                        used += self.swallow_next(index, swallow, buf.len() - used);
                    }
                }
                Parsed::Garbage => {
                    self.give_up(index);
                    used = buf.len();
                }
            }
        }
        parser.reset();
        self.scratch.binary.give(parser);
        Step::Rest { used, need: 0 }
    }

    /// What the request that begins with `bytes`, and is so long, counts as.
    fn count_packet(
        &mut self,
        client: ClientId,
        parser: &RequestParser,
        (bytes, len): (&[u8], usize),
    ) {
        if !self.counts(client) {
            return;
        }
        let class = parser.opcode().class();
        let keys = u32::from(class == CommandClass::Get);
        let counting = Counting { size: len as u64, keys, class, ..Counting::default() };
        let key = parser.opcode().has_key().then(|| parser.key().of(bytes));
        self.count_as(client, counting, key);
    }

    /// Begins to pass a request on while it arrives.
    #[cold]
    fn upload_packet(&mut self, client: ClientId, parser: &RequestParser, bytes: &[u8]) -> Begun {
        let value = parser.value();
        if !parser.is_begun() || !parser.opcode().has_key() || bytes.len() < value.start as usize {
            return Begun::No;
        }
        if !self.stands_for(client, parser.key().of(bytes)) || self.writes_to_all(client) {
            return Begun::No;
        }
        self.ask_binary(client, parser, bytes);
        let opcode = Some(parser.opcode().byte());
        let head = Head { len: value.start as usize, opcode, ..Head::default() };
        let tail = Tail::Packet { left: value.len as usize };
        let extent = Extent { here: bytes.len(), need: value.end() };
        self.count_packet(client, parser, (bytes, extent.need));
        let key = parser.key().of(bytes);
        let begun = self.begin_memcached_upload(client, key, (tail, head), extent);
        if let Begun::Yes = begun
            && self.listener_of(client).is_monitored
        {
            self.audit_packet(client, parser, bytes);
        }
        if let Begun::Yes = begun
            && parser.header().cas != 0
            && let Some((lane, _)) = self.upload_request(client)
        {
            let header = self.header_for(lane, parser, bytes);
            let head = [&header, &bytes[header.len()..value.start as usize]].concat();
            self.upload(client).replace_head(head);
        }
        begun
    }

    /// The header of a request in its loud form, with its unique as the lane's server knows it.
    pub(super) fn header_for(
        &self,
        lane: LaneId,
        parser: &RequestParser,
        bytes: &[u8],
    ) -> [u8; HEADER_SIZE] {
        let mut header = *bytes.first_chunk().expect("the header of a complete request is there");
        header[1] = parser.opcode().byte();
        self.untagged_header(lane, &header)
    }

    /// Answers what was refused by its header. Returns whether the client has to go for another
    /// reason than that.
    fn refuse_binary(
        &mut self,
        client: ClientId,
        parser: &RequestParser,
        bytes: &[u8],
        status: Status,
    ) -> bool {
        let is_known = self.clients[client].session.authenticated;
        let status = if is_known { status } else { Status::AuthError };
        let is_set = status == Status::TooLarge && parser.opcode() == Opcode::Set;
        let prefix = self.key_prefix_of(client);
        let fits = |prefix: &Arc<KeyPrefix>| prefix.fits(usize::from(parser.header().key_len));
        if is_set
            && prefix.as_ref().is_none_or(fits)
            && self.packet_denial(client, parser, bytes, false).is_none()
        {
            // Like memcached: the client takes what is stored to be overwritten.
            let key = parser.key().of(bytes);
            let full = prefix.map(|prefix| prefix.full(key));
            let key = full.as_deref().unwrap_or(key);
            let mut text = self.bufs.take();
            write_request(Opcode::Delete.byte(), key, b"", &mut text);
            self.request_ctx.asked = Asked { opcode: Opcode::Delete.byte(), ..Asked::default() };
            self.send_silently(client, key, Expect::Packet, text);
        }
        self.answer_binary(client, parser, status, status.text().as_bytes());
        !is_known
    }

    pub(super) fn answer_binary(
        &mut self,
        client: ClientId,
        parser: &RequestParser,
        status: Status,
        value: &[u8],
    ) {
        let header = parser.header();
        let (opcode, opaque) = (header.opcode, header.opaque);
        let response = Response { opcode, status, opaque, key: b"", value };
        self.answer(client, |out| write_response(&response, out));
    }

    /// What the request that is being dispatched is to be answered like.
    pub(crate) fn ask_binary(&mut self, client: ClientId, parser: &RequestParser, bytes: &[u8]) {
        let header = parser.header();
        let opcode = parser.opcode();
        let quiet = opcode.quiet();
        self.request_ctx.asked =
            Asked { opcode: header.opcode, opaque: header.opaque, quiet, is_quiet_filtered: false };
        self.request_ctx.is_tagged = false;
        self.request_ctx.expect = match parser.is_quiet() {
            true => Expect::PacketQuiet,
            false => Expect::Packet,
        };
        self.request_ctx.miss.clear();
        if opcode.returns_key() && self.destination_of(client).misses {
            self.request_ctx.miss.extend_from_slice(parser.key().of(bytes));
        }
    }

    /// Decides about one parsed request; `bytes` is the request as it came.
    fn binary_request(&mut self, client: ClientId, parser: &RequestParser, bytes: &[u8]) -> Plan {
        let opcode = parser.opcode();
        if opcode == Opcode::SaslAuth
            && self.clients[client].requests > 0
            && !self.listener_of(client).key_prefixes.is_empty()
        {
            // What it is owed is told with the names of whom it was.
            return Plan::Wait;
        }
        let is_open = matches!(
            opcode,
            Opcode::SaslList | Opcode::SaslAuth | Opcode::SaslStep | Opcode::Version
        );
        if !self.clients[client].session.authenticated && !is_open {
            let status = Status::AuthError;
            self.answer_binary(client, parser, status, status.text().as_bytes());
            self.give_up(client);
            return Plan::Done;
        }
        if let Some(text) = self.binary_refusal(client, opcode, parser.key().of(bytes)) {
            self.answer_binary(client, parser, Status::UnknownCommand, text.as_bytes());
            return Plan::Done;
        }
        if self.clients[client].off_fast_path
            && let Some(text) = self.refused_tenant_packet(client, opcode)
        {
            self.answer_binary(client, parser, Status::UnknownCommand, text.as_bytes());
            return Plan::Done;
        }
        if self.is_metered(client)
            && !matches!(
                opcode,
                Opcode::Quit
                    | Opcode::Noop
                    | Opcode::SaslList
                    | Opcode::SaslAuth
                    | Opcode::SaslStep
            )
            && let Some(why) = self.memcached_over_quota(client)
        {
            self.answer_binary(client, parser, Status::TemporaryFailure, why.as_bytes());
            return Plan::Done;
        }
        if self.clients[client].off_fast_path
            && let Some(why) = self.packet_denial(client, parser, bytes, true)
        {
            self.answer_binary(client, parser, Status::AuthError, why.as_bytes());
            return Plan::Done;
        }
        let is_told = self.listener_of(client).is_monitored;
        let plan = self.plan_packet(client, parser, bytes);
        if is_told && !matches!(plan, Plan::Wait) {
            self.audit_packet(client, parser, bytes);
        }
        plan
    }

    fn plan_packet(&mut self, client: ClientId, parser: &RequestParser, bytes: &[u8]) -> Plan {
        let opcode = parser.opcode();
        self.ask_binary(client, parser, bytes);
        if self.destination_of(client).choice == Choice::Backends
            && let Some(plan) = self.route_packet(client, parser, bytes)
        {
            return plan;
        }
        let expect = self.request_ctx.expect;
        match opcode {
            Opcode::Get
            | Opcode::GetK
            | Opcode::Set
            | Opcode::Add
            | Opcode::Replace
            | Opcode::Delete
            | Opcode::Increment
            | Opcode::Decrement
            | Opcode::Append
            | Opcode::Prepend
            | Opcode::Touch
            | Opcode::Gat
            | Opcode::GatK => {
                // A reply always has a unique, which is good only where writes are judged by it.
                let is_read = matches!(opcode, Opcode::Get | Opcode::GetK);
                let access = if is_read { Access::Walk } else { Access::Write };
                let key = parser.key().of(bytes);
                let plan = self.forward_key(client, key, access, expect, bytes.len());
                if let Plan::Forward { lane, request } = plan {
                    self.note_miss(request);
                    if self.writes_to_all(client) {
                        let leader = self.lane(lane).server;
                        self.touch_others(client, leader, Write::Packet(parser, bytes));
                    }
                }
                plan
            }
            Opcode::Version => {
                let plan = self.forward_anywhere(client, Access::Read, bytes.len());
                if let Plan::Forward { request, .. } = plan {
                    self.requests[request].expect = expect;
                }
                plan
            }
            Opcode::Noop => {
                self.answer_binary(client, parser, Status::Success, b"");
                Plan::Done
            }
            Opcode::Quit => {
                if !parser.is_quiet() {
                    self.answer_binary(client, parser, Status::Success, b"");
                }
                self.clients[client].state = State::Closing;
                Plan::Done
            }
            Opcode::Flush => {
                let mut text = bytes.to_vec();
                text[1] = opcode.byte();
                let merge = Merge::Whole(Box::new(InPackets(self.aggregate(client, Kind::Told))));
                let plan = self.send_to_all(client, &text, Expect::Packet, merge);
                let owner = &self.clients[client];
                if owner.head != RequestId::NONE {
                    // The last request is this one, or an answer that is complete.
                    self.requests[owner.tail].expect = expect;
                }
                plan
            }
            Opcode::Verbosity => self.verbosity_by_binary(client, parser, bytes),
            // As servers say of what they do not know.
            Opcode::Stat if !knows_statistics(parser.key().of(bytes)) => {
                let status = Status::NotFound;
                self.answer_binary(client, parser, status, status.text().as_bytes());
                Plan::Done
            }
            Opcode::Stat => self.stats_by_binary(client, parser.key().of(bytes)),
            Opcode::SaslList | Opcode::SaslAuth | Opcode::SaslStep => {
                self.sasl(client, parser, bytes)
            }
        }
    }

    /// Servers know verbosity in text only, and are told by lanes for that.
    fn verbosity_by_binary(
        &mut self,
        client: ClientId,
        parser: &RequestParser,
        bytes: &[u8],
    ) -> Plan {
        let (backend, variant) = (self.backend_of(client), self.clients[client].variant);
        if self.backends[backend].params_set[0].wire_protocol != WireProtocol::Text {
            let status = Status::UnknownCommand;
            self.answer_binary(client, parser, status, status.text().as_bytes());
            return Plan::Done;
        }
        let level = parser.extras().of(bytes).iter().fold(0u64, |n, &b| n << 8 | u64::from(b));
        let line = format!("verbosity {level}\r\n");
        self.clients[client].noreply = true;
        self.clients[client].variant = 0;
        self.administer(client, Kind::Told, line.as_bytes());
        self.clients[client].variant = variant;
        self.clients[client].noreply = false;
        self.answer_binary(client, parser, Status::Success, b"");
        Plan::Done
    }
}
