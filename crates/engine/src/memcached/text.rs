//! The text protocol, from bytes to requests.

use cashew_protocol::memcached::{
    Answer, Expect, KEY_SIZE_MAX, Parsed, RequestParser, Reticence, Verb, encode_key,
};
use cashew_protocol::redis::Access;
use cashew_protocol::{CommandClass, Span};

use super::auth::{LOGIN_SIZE_MAX, UNAUTHENTICATED};
use super::copies::Write;
use super::get_coalescing::JOINED_KEYS_MAX;
use super::meta::{FENCE, plain_key};
use super::multiget_paging::{PART_KEYS, access, behind_space};
use super::stats::{Kind, Lines};
use super::tenant::TOO_LONG;
use crate::base::command_stats::Counting;
use crate::base::id::ClientId;
use crate::downstream::client::{Parser, State};
use crate::downstream::key_prefix::KeyPrefix;
use crate::downstream::listener::Choice;
use crate::downstream::receive::{Plan, Step, fills};
use crate::downstream::upload::{Begun, Extent, Head, Tail, UPLOAD_SIZE_MIN};
use crate::engine::Engine;
use crate::exchange::dispatch::{FragmentText, Part, Payload};
use crate::request::Merge;

/// What every server answers, whatever its version, and in a way that nothing else is answered.
const VERSION: &[u8] = b"version\r\n";

impl Engine {
    /// Parses and dispatches whole requests from the start of `buf`: see [`Engine::consume`].
    pub(crate) fn consume_text(&mut self, index: ClientId, buf: &[u8], owned: bool) -> Step {
        if self.clients[index].undecided
            && let Some(&first) = buf.first()
            && self.decide_wire_protocol(index, first)
        {
            return self.consume_binary(index, buf, owned);
        }
        let mut used = self.swallow(index, buf.len());
        if used == buf.len() {
            return Step::Rest { used, need: 0 };
        }
        let mut parser = match self.unpark(index) {
            Some(Parser::Memcached(parser)) => parser,
            _ => {
                let mut parser = self.scratch.memcached.take().unwrap_or_default();
                parser.set_value_size_max(self.value_size_max(index));
                parser
            }
        };
        if self.clients[index].modes.many.is_some() {
            match self.go_on_retrieving(index, buf) {
                Some(len) => used = len,
                None => {
                    self.scratch.memcached.give(parser);
                    return Step::Rest { used, need: 0 };
                }
            }
        }
        while used < buf.len() && self.may_consume(index, &buf[used..]) {
            let bytes = &buf[used..];
            match parser.parse(bytes) {
                Parsed::Complete { len } => {
                    if self.puts_off(index, len, parser.keys().len()) {
                        self.park(index, Parser::Memcached(parser));
                        return Step::Rest { used, need: 0 };
                    }
                    self.spend(len);
                    let prefix = self.key_prefix_of(index);
                    // Retrievals of many keys are written anew a part at a time.
                    let is_apart = Self::is_taken_apart(&parser, prefix.as_ref());
                    let mut anew = match &prefix {
                        _ if is_apart => None,
                        Some(prefix) => prefix.text(&parser, &bytes[..len]),
                        None => parser.is_odd().then(|| write_anew(&parser, &bytes[..len])),
                    };
                    let is_too_long = prefix.as_ref().is_some_and(|prefix| match is_apart {
                        true => !prefix.fits_all(&parser),
                        false => anew.is_none(),
                    });
                    let is_odd = anew.is_some();
                    let (parser_of, text) = match &mut anew {
                        Some((anew, text)) => (anew, &text[..]),
                        None => (&mut *parser, &bytes[..len]),
                    };
                    let raw = prefix.as_deref().filter(|_| !is_odd);
                    self.count_text(index, parser_of, (text, len), raw);
                    self.request_ctx.is_apart = is_apart;
                    let plan = match self.must_wait(index, len) {
                        true => Plan::Wait,
                        false if is_too_long => self.refuse_key(index, parser_of),
                        false => self.text_request(index, parser_of, text),
                    };
                    self.fence(index, len, &plan);
                    if self.is_metered(index)
                        && (!matches!(plan, Plan::Wait) || self.clients[index].modes.many.is_some())
                    {
                        self.pay_request(index, len);
                    }
                    if let Plan::Wait = plan {
                        parser.reset();
                        break;
                    }
                    if let Plan::Forward { lane, request } = plan {
                        self.requests[request].is_tagged = self.request_ctx.is_tagged;
                        let names_cas_tags = self.request_ctx.names_cas_tags;
                        let is_copied = self.writes_to_all(index)
                            && self.write_to_all(
                                index,
                                (lane, request),
                                Write::Text(parser_of, text),
                            );
                        let is_untouched = parser_of.noreply().or(parser_of.meta().quiet).is_none()
                            && !names_cas_tags
                            && !is_odd;
                        if !is_copied && is_untouched && owned && used == 0 && fills(len, buf) {
                            parser.reset();
                            self.scratch.memcached.give(parser);
                            return Step::Large { len, lane, request };
                        }
                        match names_cas_tags {
                            _ if is_copied => {}
                            true => self.send_untagged(lane, request, parser_of, text),
                            false => self.send(lane, request, payload(parser_of, text)),
                        }
                    }
                    if is_odd {
                        // It may have been a login.
                        parser.set_value_size_max(self.value_size_max(index));
                    }
                    parser.reset();
                    used += len;
                    if used < buf.len() {
                        used = buf.len() - self.fast_further(index, &buf[used..]).len();
                    }
                }
                Parsed::Partial { need } => {
                    if need >= UPLOAD_SIZE_MIN {
                        let begun = self.upload_value(index, &parser, bytes);
                        if let Some(step) = self.step_of(index, begun, used) {
                            parser.reset();
                            self.scratch.memcached.give(parser);
                            return step;
                        }
                    }
                    self.park(index, Parser::Memcached(parser));
                    return Step::Rest { used, need };
                }
                Parsed::Reject { len, swallow, reply, noreply, close } => {
                    self.command_stats.current = Counting::default();
                    let is_known = self.clients[index].session.authenticated;
                    if is_known {
                        self.drop_stored(index, &parser, bytes);
                    }
                    parser.reset();
                    if !is_known {
                        self.answer(index, |out| out.extend_from_slice(UNAUTHENTICATED));
                    } else if !noreply {
                        self.answer(index, |out| out.extend_from_slice(reply));
                    }
                    if close {
                        self.give_up(index);
                        used = buf.len();
                    } else {
                        used += len;
                        used += self.swallow_next(index, swallow, buf.len() - used);
                    }
                }
            }
        }
        self.scratch.memcached.give(parser);
        Step::Rest { used, need: 0 }
    }

    /// What the request that begins with `bytes`, and is so long, counts as. The prefix is what its
    /// keys still lack.
    fn count_text(
        &mut self,
        client: ClientId,
        parser: &RequestParser,
        (bytes, len): (&[u8], usize),
        prefix: Option<&KeyPrefix>,
    ) {
        if !self.counts(client) {
            return;
        }
        let class = parser.verb().class();
        let is_get = class == CommandClass::Get;
        // What is asked a part at a time is counted so.
        let (keys, size) = (parser.keys().len(), len as u64);
        let keys = if is_get && keys <= PART_KEYS { keys as u32 } else { 0 };
        let counting = Counting { size, keys, class, ..Counting::default() };
        let mut buf = [0; KEY_SIZE_MAX];
        let key = (!parser.keys().is_empty()).then(|| plain_key(parser, bytes, &mut buf));
        match key.zip(prefix) {
            Some((key, prefix)) => self.count_as(client, counting, Some(&prefix.full(key))),
            None => self.count_as(client, counting, key),
        }
    }

    /// Begins to pass a request on while it arrives.
    #[cold]
    fn upload_value(&mut self, client: ClientId, parser: &RequestParser, bytes: &[u8]) -> Begun {
        let is_odd = parser.is_odd() || self.key_prefix_of(client).is_some();
        let (Some(data), [_], false) = (parser.data(), parser.keys(), is_odd) else {
            return Begun::No;
        };
        let mut buf = [0; KEY_SIZE_MAX];
        let key = plain_key(parser, bytes, &mut buf);
        if !self.stands_for(client, key) || self.writes_to_all(client) {
            return Begun::No;
        }
        let tail = Tail::Memcached { left: data.len as usize + 2, is_bad: false };
        let quiet = parser.meta().quiet;
        let (cut, _) = edits(parser);
        let len = data.start as usize;
        let head = Head { len, cut, ..Head::default() };
        let extent = Extent { here: bytes.len(), need: len + data.len as usize + 2 };
        self.count_text(client, parser, (bytes, extent.need), None);
        self.request_ctx.miss.clear();
        self.request_ctx.asked.quiet = Reticence::Success;
        self.request_ctx.expect = match (parser.expect(), quiet) {
            (Expect::Answer(answer), Some(_)) => Expect::AnswerQuiet(answer),
            (expect, _) => expect,
        };
        self.clients[client].noreply = parser.noreply().is_some();
        let begun = self.begin_memcached_upload(client, key, (tail, head), extent);
        self.clients[client].noreply = false;
        self.ask_cas_tags(client, parser, bytes);
        if let Begun::Yes = begun
            && self.listener_of(client).is_monitored
        {
            self.audit_text(client, parser, bytes);
        }
        if let Begun::Yes = begun
            && let Some((lane, request)) = self.upload_request(client)
        {
            self.requests[request].is_tagged = self.request_ctx.is_tagged;
            if self.request_ctx.names_cas_tags {
                let text = self.untagged_head(lane, parser, &bytes[..len]);
                self.upload(client).replace_head(text);
            }
        }
        begun
    }

    /// Largest value of the client's next request.
    pub(super) fn value_size_max(&self, index: ClientId) -> u64 {
        let client = &self.clients[index];
        match client.session.authenticated {
            true => self.listeners[client.listener].limits.request_size_max,
            false => LOGIN_SIZE_MAX,
        }
    }

    /// Decides about one parsed request; `bytes` is the request as it came.
    fn text_request(&mut self, client: ClientId, parser: &mut RequestParser, bytes: &[u8]) -> Plan {
        if !self.clients[client].session.authenticated {
            let plan = self.log_in_by_text(client, parser, bytes);
            parser.set_value_size_max(self.value_size_max(client));
            return plan;
        }
        self.request_ctx.miss.clear();
        self.request_ctx.expect = parser.expect();
        self.ask_cas_tags(client, parser, bytes);
        self.clients[client].noreply = parser.noreply().is_some();
        if let Some(refusal) = self.text_refusal(client, parser, bytes) {
            self.answer(client, |out| out.extend_from_slice(&refusal));
            self.clients[client].noreply = false;
            return Plan::Done;
        }
        if self.clients[client].off_fast_path
            && let Some(why) = self.refused_tenant_text(client, parser, bytes)
        {
            let refusal = format!("CLIENT_ERROR {why}\r\n");
            self.answer(client, |out| out.extend_from_slice(refusal.as_bytes()));
            self.clients[client].noreply = false;
            return Plan::Done;
        }
        if self.is_metered(client)
            && !matches!(parser.verb(), Verb::Quit | Verb::MetaNoop)
            && let Some(why) = self.memcached_over_quota(client)
        {
            let refusal = format!("SERVER_ERROR {why}\r\n");
            self.answer(client, |out| out.extend_from_slice(refusal.as_bytes()));
            self.clients[client].noreply = false;
            return Plan::Done;
        }
        if self.clients[client].off_fast_path
            && let Some(why) = self.text_denial(client, parser, bytes, !self.request_ctx.is_apart)
        {
            let refusal = format!("CLIENT_ERROR {why}\r\n");
            self.answer(client, |out| out.extend_from_slice(refusal.as_bytes()));
            self.clients[client].noreply = false;
            return Plan::Done;
        }
        let is_told = self.listener_of(client).is_monitored;
        let plan = self.plan_text(client, parser, bytes);
        if is_told && !matches!(plan, Plan::Wait) {
            self.audit_text(client, parser, bytes);
        }
        plan
    }

    fn plan_text(&mut self, client: ClientId, parser: &mut RequestParser, bytes: &[u8]) -> Plan {
        if self.destination_of(client).choice == Choice::Backends
            && let Some(plan) = self.route_text(client, parser, bytes)
        {
            self.clients[client].noreply = false;
            return plan;
        }
        let plan = match parser.verb() {
            Verb::Get | Verb::Gets | Verb::Gat | Verb::Gats => self.retrieve(client, parser, bytes),
            Verb::Set
            | Verb::Add
            | Verb::Replace
            | Verb::Append
            | Verb::Prepend
            | Verb::Cas
            | Verb::Delete
            | Verb::Incr
            | Verb::Decr
            | Verb::Touch => {
                let key = parser.keys()[0].of(bytes);
                let expect = self.request_ctx.expect;
                self.forward_key(client, key, Access::Write, expect, bytes.len())
            }
            Verb::MetaGet
            | Verb::MetaSet
            | Verb::MetaDelete
            | Verb::MetaArithmetic
            | Verb::MetaDebug => self.meta_request(client, parser, bytes),
            Verb::MetaNoop => {
                self.answer(client, |out| out.extend_from_slice(b"MN\r\n"));
                Plan::Done
            }
            Verb::FlushAll => {
                let text = told(parser, bytes);
                let merge = Merge::Whole(Box::new(Lines(self.aggregate(client, Kind::Told))));
                self.send_to_all(client, &text, self.request_ctx.expect, merge)
            }
            Verb::Verbosity | Verb::Tune => {
                self.administer(client, Kind::Told, &told(parser, bytes))
            }
            Verb::Stats => self.stats_by_text(client, parser.line().of(bytes)),
            Verb::Version => {
                let plan = self.forward_anywhere(client, Access::Read, bytes.len());
                if let Plan::Forward { request, .. } = plan {
                    self.requests[request].expect = Expect::Answer(Answer::Version);
                }
                plan
            }
            Verb::Quit => {
                self.clients[client].state = State::Closing;
                Plan::Done
            }
            Verb::Refused => {
                self.answer(client, |out| out.extend_from_slice(b"ERROR\r\n"));
                Plan::Done
            }
        };
        self.clients[client].noreply = false;
        plan
    }

    /// A key is longer with its prefix than servers take.
    #[cold]
    fn refuse_key(&mut self, client: ClientId, parser: &RequestParser) -> Plan {
        self.clients[client].noreply = parser.noreply().is_some();
        let refusal = format!("CLIENT_ERROR {TOO_LONG}\r\n");
        self.answer(client, |out| out.extend_from_slice(refusal.as_bytes()));
        self.clients[client].noreply = false;
        Plan::Done
    }

    /// Tells all servers what administers them. Whether a server answers, and how, is its version's to
    /// say: what is behind the line is always answered, and ends the reply.
    pub(super) fn administer(&mut self, client: ClientId, kind: Kind, line: &[u8]) -> Plan {
        let text = [line, VERSION].concat();
        self.request_ctx.expect = Expect::Told;
        let merge = Merge::Whole(Box::new(Lines(self.aggregate(client, kind))));
        self.send_to_all(client, &text, Expect::Told, merge)
    }

    /// If the value of a set was too large: like memcached, drops what is stored, which the client
    /// takes to be overwritten.
    fn drop_stored(&mut self, client: ClientId, parser: &RequestParser, bytes: &[u8]) {
        let sets = matches!(parser.verb(), Verb::Set | Verb::MetaSet);
        if !sets || parser.data().is_some() || parser.keys().len() != 1 {
            return;
        }
        if self.text_denial(client, parser, bytes, false).is_some() {
            return;
        }
        let mut buf = [0; KEY_SIZE_MAX];
        let mut key = plain_key(parser, bytes, &mut buf);
        let full;
        if let Some(prefix) = self.key_prefix_of(client) {
            if !prefix.fits(key.len()) {
                return;
            }
            full = prefix.full(key);
            key = &full;
        }
        if !self.stands_for(client, key) {
            return;
        }
        let text = self.bufs.written(key.len() + 16, |out| {
            if parser.meta().is_base64 {
                out.extend_from_slice(b"md ");
                encode_key(key, out);
                out.extend_from_slice(b" b\r\n");
            } else {
                out.extend_from_slice(b"delete ");
                out.extend_from_slice(key);
                out.extend_from_slice(if key == b"noreply" { b" 0\r\n" } else { b"\r\n" });
            }
        });
        let answer = if parser.meta().is_base64 { Answer::MetaDelete } else { Answer::Delete };
        self.send_silently(client, key, Expect::Answer(answer), text);
    }

    /// Sends a request of the gateway's own in the client's turn, of whose reply nobody hears.
    pub(super) fn send_silently(
        &mut self,
        client: ClientId,
        key: &[u8],
        expect: Expect,
        text: Vec<u8>,
    ) {
        self.clients[client].noreply = true;
        self.request_ctx.expect = expect;
        let server = self.route(self.backend_of(client), key, Access::Write);
        let plan = self.forward_to(client, server, expect, text.len());
        self.clients[client].noreply = false;
        if let Some(server) = server.filter(|_| self.writes_to_all(client)) {
            self.send_to_others(client, server, (expect, self.request_ctx.asked), &text);
        }
        match plan {
            Plan::Forward { lane, request } => self.send(lane, request, Payload::Owned(text)),
            Plan::Done | Plan::Wait => self.bufs.give(text),
        }
    }

    /// get, gets, gat, gats: split by server when the keys are on several.
    #[inline]
    fn retrieve(&mut self, client: ClientId, parser: &RequestParser, bytes: &[u8]) -> Plan {
        let keys = parser.keys();
        let access = access(parser.verb());
        let touches = access == Access::Write && self.writes_to_all(client);
        let head = &bytes[..keys[0].start as usize];
        if let [key] = keys {
            let key = key.of(bytes);
            let plan = self.forward_key(client, key, access, Expect::Values, bytes.len());
            if let Plan::Forward { lane, .. } = plan
                && touches
            {
                self.touch_key_at_others(client, self.lane(lane).server, head, key);
            }
            return plan;
        }
        if self.request_ctx.is_apart {
            return self.retrieve_many(client, parser, bytes);
        }
        let mut split = std::mem::take(&mut self.scratch.split);
        let placed =
            self.place_keys(client, keys.iter().map(|key| key.of(bytes)), access, &mut split);
        if touches && placed.is_ok() {
            for (key, &owner) in keys.iter().zip(&split.owners) {
                let Part { backend, server, .. } = split.parts[owner as usize];
                if self.stand_at(client, backend).is_ok() {
                    self.touch_key_at_others(client, server, head, key.of(bytes));
                }
            }
        }
        let plan = match placed {
            Ok(Some(server)) => {
                let plan = self.forward_to(client, Some(server), Expect::Values, bytes.len());
                if let Plan::Forward { request, .. } = plan {
                    self.note_access(self.backend_of(client), request, access);
                }
                plan
            }
            Ok(None) => {
                let gather = self.gather_with_keys(&split, keys, bytes);
                let is_plain = parser.verb() == Verb::Get
                    && keys[0].start as usize == b"get ".len()
                    && self.destination_of(client).route.is_none();
                if is_plain && keys.len() <= JOINED_KEYS_MAX {
                    let keys_of = || keys.iter().map(|key| key.of(bytes));
                    if self.find_lanes_to_join(client, &mut split, keys_of(), bytes.len()) {
                        let words = keys.iter().map(|key| behind_space(*key, bytes));
                        self.join_gets(client, &split, gather, words);
                        self.scratch.split = split;
                        return Plan::Done;
                    }
                }
                // Verb and, for gat, the expiry.
                let start = &bytes[..keys[0].start as usize];
                let start = start.trim_ascii_end();
                let request = FragmentText {
                    head: &|out, _| out.extend_from_slice(start),
                    keys: keys.iter().map(|key| behind_space(*key, bytes)),
                    foot: b"\r\n",
                    expect: Expect::Values,
                    size: bytes.len(),
                };
                let merge = Merge::Values(gather);
                match self.destination_of(client).misses {
                    true => {
                        self.send_fragments_that_can(client, &mut split, merge, request);
                        self.request_ctx
                            .failure
                            .take()
                            .filter(|_| split.is_unsent())
                            .map_or(Plan::Done, |failure| self.fail(client, failure))
                    }
                    false => self.send_fragments(client, &mut split, merge, request),
                }
            }
            Err(failure) => self.fail(client, failure),
        };
        self.scratch.split = split;
        plan
    }
}

/// What a server gets to see of a request otherwise than it came: what is cut out of it, and what
/// comes behind it.
pub(super) fn edits(parser: &RequestParser) -> (Option<Span>, &'static [u8]) {
    let is_fenced = matches!(parser.verb(), Verb::MetaDelete | Verb::MetaArithmetic);
    match (parser.noreply(), parser.meta().quiet) {
        (None, Some(_)) if is_fenced => (None, FENCE),
        (noreply, quiet) => (noreply.or(quiet), b""),
    }
}

/// What is sent of a request that goes to one server.
pub(super) fn payload<'b>(parser: &RequestParser, bytes: &'b [u8]) -> Payload<'b> {
    match edits(parser) {
        (Some(cut), _) => Payload::Two(&bytes[..cut.start as usize], &bytes[cut.end()..]),
        (None, b"") => Payload::Bytes(bytes),
        (None, foot) => Payload::Two(bytes, foot),
    }
}

/// A request as every server reads it, and what it says.
#[cold]
fn write_anew(parser: &RequestParser, bytes: &[u8]) -> (RequestParser, Vec<u8>) {
    let (mut text, mut anew) = (Vec::new(), RequestParser::default());
    parser.write_anew(bytes, &mut text);
    let parsed = anew.parse(&text);
    assert_eq!(parsed, Parsed::Complete { len: text.len() }, "a request stays one");
    (anew, text)
}

/// What every server is told.
fn told(parser: &RequestParser, bytes: &[u8]) -> Vec<u8> {
    let line = parser.line().of(bytes);
    let line = parser.noreply().map_or(line, |cut| &line[..cut.start as usize]);
    [line, b"\r\n"].concat()
}
