//! Where the requests of a route's clients go, in memcached's words.

use std::borrow::Cow;
use std::sync::Arc;

use cashew_protocol::Span;
use cashew_protocol::memcached::binary::{self, HEADER_SIZE, Opcode, Status};
use cashew_protocol::memcached::{
    Answer, Expect, KEY_SIZE_MAX, RequestParser, Reticence, Uniques, Verb, decode_key, encode_key,
    words, write_delete, write_meta_miss,
};
use cashew_protocol::redis::Access;

use super::meta::{UNKNOWN_FLAG, UNKNOWN_SET, access_of_get, breaks_replies, plain_key};
use super::{Asked, warm_up};
use crate::base::failure::NamedFailure;
use crate::base::id::{BackendId, ClientId, LaneId};
use crate::base::time::Time;
use crate::downstream::key_prefix::KeyPrefix;
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::route::answer::{Dialect, Fill, Kind, Question, Repeats, Seat, Word, digest};
use crate::route::flow::Errand;
use crate::topology::route_tree::{Operation, Tree, Way};
use crate::upstream::misfit::Unknown;

const NO_ROUTE: &[u8] = b"SERVER_ERROR no route for the key\r\n";
const NO_ROUTE_WORDS: &[u8] = b"no route for the key";
const UNFIT_KEY: &[u8] = b"CLIENT_ERROR the route makes the key empty, or too long for servers\r\n";
const UNFIT_KEY_WORDS: &[u8] = b"the route makes the key empty, or too long for servers";
const ABOUT_ALL_KEYS: &[u8] =
    b"SERVER_ERROR flush_all is about all keys, and this route leads to several pools: ask them\r\n";
const ABOUT_ALL_KEYS_WORDS: &[u8] = b"this route leads to several pools: ask them";

/// What a text command does with its keys.
fn operation_of(parser: &RequestParser, bytes: &[u8]) -> Operation {
    match parser.verb() {
        Verb::MetaGet if access_of_get(parser, bytes) == Access::Write => Operation::Write,
        Verb::Get | Verb::Gets | Verb::MetaGet | Verb::MetaDebug => Operation::Read,
        Verb::Delete | Verb::MetaDelete => Operation::Delete,
        _ => Operation::Write,
    }
}

fn operation_of_packet(opcode: Opcode) -> Operation {
    match opcode {
        Opcode::Get | Opcode::GetK => Operation::Read,
        Opcode::Delete => Operation::Delete,
        _ => Operation::Write,
    }
}

/// Where the keys of a request go.
enum Ways {
    One(BackendId),
    Several,
    Forked,
    None,
}

impl Ways {
    fn of(tree: &Tree, keys: impl Iterator<Item = impl AsRef<[u8]>>, operation: Operation) -> Self {
        let (mut found, mut is_forked) = (None, false);
        for key in keys {
            match (tree.way(key.as_ref(), operation), &found) {
                (Way::None | Way::Straight(BackendId::NONE), _) => return Self::None,
                (Way::Forked(_), _) => is_forked = true,
                (Way::Straight(backend), None) => found = Some(Self::One(backend)),
                (Way::Straight(backend), Some(Self::One(one))) if backend == *one => {}
                (Way::Straight(_), _) => found = Some(Self::Several),
            }
        }
        if is_forked { Self::Forked } else { found.unwrap_or(Self::None) }
    }
}

/// A key with the prefix that it lacks.
fn full_key<'k>(prefix: Option<&KeyPrefix>, key: &'k [u8]) -> Cow<'k, [u8]> {
    prefix.map_or(Cow::Borrowed(key), |prefix| prefix.full(key).into())
}

impl Engine {
    /// Has a route's client stand where its request goes. Returns what becomes of the request if that is all.
    #[cold]
    pub(super) fn route_text(
        &mut self,
        client: ClientId,
        parser: &RequestParser,
        bytes: &[u8],
    ) -> Option<Plan> {
        let tree = Arc::clone(self.destination_of(client).route.as_ref()?);
        let keys = parser.keys();
        // Those of a request that is taken apart are as the client names them.
        let prefix = match self.request_ctx.is_apart {
            true => self.key_prefix_of(client),
            _ => None,
        };
        let prefix = prefix.as_deref();
        let plan = match parser.verb() {
            Verb::FlushAll if tree.backends().len() > 1 => {
                self.answer(client, |out| out.extend_from_slice(ABOUT_ALL_KEYS));
                Some(Plan::Done)
            }
            _ if keys.is_empty() => self.go(client, self.keyless_backend(client)),
            _ => {
                let operation = operation_of(parser, bytes);
                let mut buf = [0; KEY_SIZE_MAX];
                if tree.has_caches()
                    && parser.verb() == Verb::Get
                    && let [key] = keys
                    && let Some(plan) = self.get_kept(client, &tree, key.of(bytes))
                {
                    return Some(plan);
                }
                let ways = match keys {
                    [_] => {
                        let key = plain_key(parser, bytes, &mut buf);
                        Ways::of(&tree, std::iter::once(key), operation)
                    }
                    keys => {
                        let keys = keys.iter().map(|key| full_key(prefix, key.of(bytes)));
                        Ways::of(&tree, keys, operation)
                    }
                };
                match ways {
                    Ways::None => {
                        self.answer(client, |out| out.extend_from_slice(NO_ROUTE));
                        Some(Plan::Done)
                    }
                    Ways::One(backend) => self.go(client, backend),
                    Ways::Several => None,
                    Ways::Forked => {
                        self.fork_text(client, &tree, parser, bytes, (operation, prefix))
                    }
                }
            }
        };
        if plan.is_none() {
            self.ask_cas_tags(client, parser, bytes);
            let mut backends = tree.backends().iter().filter_map(|&it| self.backends.get(it));
            if keys.len() > 1 && backends.any(|backend| backend.has_tags()) {
                // Of each key by the backend that has it.
                self.request_ctx.is_tagged = Uniques::of(parser, bytes).asked;
            }
        }
        plan
    }

    /// The same for a packet.
    #[cold]
    pub(super) fn route_packet(
        &mut self,
        client: ClientId,
        parser: &binary::RequestParser,
        bytes: &[u8],
    ) -> Option<Plan> {
        let tree = Arc::clone(self.destination_of(client).route.as_ref()?);
        let opcode = parser.opcode();
        if opcode == Opcode::Flush && tree.backends().len() > 1 {
            self.answer_binary(client, parser, Status::TemporaryFailure, ABOUT_ALL_KEYS_WORDS);
            return Some(Plan::Done);
        }
        if !opcode.has_key() {
            return self.go(client, self.keyless_backend(client));
        }
        let operation = operation_of_packet(opcode);
        match tree.way(parser.key().of(bytes), operation) {
            Way::None | Way::Straight(BackendId::NONE) => {
                self.answer_binary(client, parser, Status::TemporaryFailure, NO_ROUTE_WORDS);
                Some(Plan::Done)
            }
            Way::Straight(backend) => self.go(client, backend),
            Way::Forked(_) => self.fork_packet(client, &tree, parser, bytes, operation),
        }
    }

    fn go(&mut self, client: ClientId, backend: BackendId) -> Option<Plan> {
        self.stand_at(client, backend).err().map(|failure| self.fail(client, failure))
    }
}

/// The text protocol, meta commands included.
#[derive(Debug)]
struct Text;

/// The binary protocol.
#[derive(Debug)]
struct Packet;

static TEXT: Text = Text;
static PACKET: Packet = Packet;

/// memcached takes longer lives for points in time.
const LIFE_MAX_S: i64 = 30 * 24 * 3600;

/// An expiry that is no later than so many milliseconds from now, where it is none already. Points in time are
/// taken for later: what time it is is not known here.
fn limited(expiry: i64, ttl_ms: u64) -> i64 {
    let ttl = i64::try_from(ttl_ms.div_ceil(1000)).unwrap_or(LIFE_MAX_S).clamp(1, LIFE_MAX_S);
    match expiry {
        i64::MIN..=-1 => expiry,
        1..=LIFE_MAX_S => expiry.min(ttl),
        _ => ttl,
    }
}

fn repeats(parser: &RequestParser, bytes: &[u8]) -> Repeats {
    let flags = || words(parser.line().of(bytes)).skip(2);
    let has = |letters: &[u8]| flags().any(|flag| letters.contains(&flag[0]));
    match parser.verb() {
        Verb::Get | Verb::Gets | Verb::MetaDebug => Repeats::Freely,
        Verb::MetaGet if has(b"NRTE") => Repeats::Alike,
        Verb::MetaGet => Repeats::Freely,
        Verb::Set | Verb::Delete | Verb::Touch | Verb::Gat | Verb::Gats => Repeats::Alike,
        Verb::MetaSet if !has(b"CIM") => Repeats::Alike,
        Verb::MetaDelete if !has(b"CIqx") => Repeats::Alike,
        _ => Repeats::Never,
    }
}

impl Engine {
    /// Asks several backends, or in other words. `None` if it has to go the usual way. The prefix is what the
    /// keys still lack.
    fn fork_text(
        &mut self,
        client: ClientId,
        tree: &Arc<Tree>,
        parser: &RequestParser,
        bytes: &[u8],
        (operation, prefix): (Operation, Option<&KeyPrefix>),
    ) -> Option<Plan> {
        let mut buf = [0; KEY_SIZE_MAX];
        if breaks_replies(parser, plain_key(parser, bytes, &mut buf)) {
            return Some(self.refuse_untellable(client));
        }
        if TEXT.is_risky(parser.expect()) {
            // It takes another connection than what comes before and after it.
            if self.clients[client].requests > 0 {
                return Some(Plan::Wait);
            }
            self.clients[client].fenced = true;
        }
        let uniques = Uniques::of(parser, bytes);
        let meta = parser.meta();
        let question = |text: Vec<u8>, key_at: Span, expect: Expect| {
            let mut buf = [0; KEY_SIZE_MAX];
            let key = key_at.of(&text);
            let key = match meta.is_base64 {
                true => decode_key(key, &mut buf).unwrap_or(key).to_vec(),
                false => key.to_vec(),
            };
            Question {
                key,
                key_at,
                text,
                expect,
                asked: Asked::default(),
                asks_unique: uniques.asked,
                names_unique: uniques.named,
                is_quiet: meta.quiet.is_some(),
                is_base64: meta.is_base64,
                opcode: 0,
            }
        };
        let keys = parser.keys();
        let retrieves = matches!(parser.verb(), Verb::Get | Verb::Gets | Verb::Gat | Verb::Gats);
        let questions = match keys {
            _ if retrieves => {
                let head = &bytes[..keys[0].start as usize];
                let of_key = |key: &Span| {
                    let key = full_key(prefix, key.of(bytes));
                    let text = [head, &key, b"\r\n"].concat();
                    question(text, Span::new(head.len(), key.len()), Expect::Values)
                };
                keys.iter().map(of_key).collect()
            }
            keys => {
                // In the form that is always answered: the key is in front of what is cut.
                let text = match parser.noreply().or(meta.quiet) {
                    Some(cut) => [&bytes[..cut.start as usize], &bytes[cut.end()..]].concat(),
                    None => bytes.to_vec(),
                };
                vec![question(text, keys[0], parser.expect())]
            }
        };
        let repeats = repeats(parser, bytes);
        // What these do is for the item that is there.
        let has = |letters: &[u8]| {
            let mut flags = words(parser.line().of(bytes)).skip(2);
            parser.verb() == Verb::MetaGet && flags.any(|flag| letters.contains(&flag[0]))
        };
        let errand = Errand {
            operation,
            repeats,
            dialect: &TEXT,
            is_joined: retrieves && keys.len() > 1,
            overwrites: operation == Operation::Write && repeats == Repeats::Alike && !has(b"NRE"),
            misses_change: has(b"NRE"),
        };
        Some(self.ask_route(client, tree, errand, questions))
    }

    /// The same for a packet.
    fn fork_packet(
        &mut self,
        client: ClientId,
        tree: &Arc<Tree>,
        parser: &binary::RequestParser,
        bytes: &[u8],
        operation: Operation,
    ) -> Option<Plan> {
        let opcode = parser.opcode();
        let mut text = bytes.to_vec();
        text[1] = opcode.byte();
        let header = parser.header();
        let question = Question {
            key: parser.key().of(bytes).to_vec(),
            key_at: parser.key(),
            text,
            expect: Expect::Packet,
            asked: Asked { opcode: opcode.byte(), opaque: header.opaque, ..Asked::default() },
            asks_unique: opcode.retrieves(),
            names_unique: header.cas != 0,
            is_quiet: parser.is_quiet(),
            is_base64: false,
            opcode: header.opcode,
        };
        let repeats = match opcode {
            Opcode::Get | Opcode::GetK => Repeats::Freely,
            Opcode::Set | Opcode::Delete | Opcode::Touch | Opcode::Gat | Opcode::GatK
                if header.cas == 0 =>
            {
                Repeats::Alike
            }
            _ => Repeats::Never,
        };
        let overwrites = operation == Operation::Write && repeats == Repeats::Alike;
        let dialect = &PACKET;
        let (is_joined, misses_change) = (false, false);
        let errand = Errand { operation, repeats, dialect, is_joined, overwrites, misses_change };
        Some(self.ask_route(client, tree, errand, vec![question]))
    }
}

/// Says again what a reply to a meta command says of its request, in the order of the request.
fn repeat_flags(text: &[u8], out: &mut Vec<u8>) {
    let line = text.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let mut words = words(line).skip(1);
    let key = words.next().unwrap_or_default();
    let is_encoded = words.clone().any(|word| word == b"b");
    for word in words {
        match word.first() {
            Some(b'O') => out.extend_from_slice(&[b" ", word].concat()),
            Some(b'k') => {
                let form: &[u8] = if is_encoded { b" b" } else { b"" };
                out.extend_from_slice(&[b" k", key, form].concat());
            }
            _ => {}
        }
    }
}

impl Text {
    fn parsed(text: &[u8]) -> RequestParser {
        let mut parser = RequestParser::default();
        parser.parse(text);
        parser
    }

    /// The key as it stands in a request.
    fn written(question: &Question, key: &[u8]) -> Vec<u8> {
        match question.is_base64 {
            true => {
                let mut out = Vec::new();
                encode_key(key, &mut out);
                out
            }
            false => key.to_vec(),
        }
    }
}

impl Dialect for Text {
    fn about(&self, question: &Question, key: &[u8]) -> Vec<u8> {
        let Question { text, key_at, .. } = question;
        let key = Self::written(question, key);
        let text = [&text[..key_at.start as usize], &key, &text[key_at.end()..]].concat();
        // Later versions take the bare word for an order to be silent.
        if text == b"delete noreply\r\n" { b"delete noreply 0\r\n".to_vec() } else { text }
    }

    fn takes(&self, question: &Question, key: &[u8]) -> bool {
        (1..=KEY_SIZE_MAX).contains(&Self::written(question, key).len())
    }

    fn is_risky(&self, expect: Expect) -> bool {
        matches!(expect, Expect::Answer(Answer::MetaSetGiven))
    }

    fn refusal(&self, expect: Expect, unknown: &Unknown, now: Time) -> Option<Word> {
        let (Expect::Answer(answer) | Expect::AnswerQuiet(answer)) = expect else { return None };
        match answer {
            Answer::MetaSet | Answer::MetaSetGiven if now < unknown.sets => Some(Word::UnknownSet),
            Answer::MetaSetGiven if now < unknown.given => Some(Word::UnknownFlag),
            _ => None,
        }
    }

    fn removal(&self, question: &Question, key: &[u8]) -> (Vec<u8>, Expect, Asked) {
        let (text, answer) = match question.is_base64 {
            true => {
                let key = Self::written(question, key);
                ([b"md ", &key[..], b" b\r\n"].concat(), Answer::MetaDelete)
            }
            false => {
                let mut text = Vec::new();
                write_delete(key, &mut text);
                (text, Answer::Delete)
            }
        };
        (text, Expect::Answer(answer), Asked::default())
    }

    fn limit_life(
        &self,
        _: &Question,
        text: &mut Vec<u8>,
        _: &[u8],
        ttl_ms: u64,
    ) -> Option<Vec<u8>> {
        let parser = Self::parsed(text);
        let line = parser.line().of(text).to_vec();
        let mut parts: Vec<Vec<u8>> = words(&line).map(<[u8]>::to_vec).collect();
        let limit = |word: &mut Vec<u8>, skip: usize| {
            let number = std::str::from_utf8(&word[skip..]).ok().and_then(|it| it.parse().ok());
            if let Some(number) = number {
                word.truncate(skip);
                word.extend_from_slice(limited(number, ttl_ms).to_string().as_bytes());
            }
        };
        match parser.verb() {
            Verb::Set | Verb::Add | Verb::Replace | Verb::Cas => limit(parts.get_mut(3)?, 0),
            Verb::Touch => limit(parts.get_mut(2)?, 0),
            Verb::Gat | Verb::Gats => limit(parts.get_mut(1)?, 0),
            Verb::MetaSet | Verb::MetaGet | Verb::MetaArithmetic => {
                let is_set = parser.verb() == Verb::MetaSet;
                let flags = parts.iter_mut().skip(if is_set { 3 } else { 2 });
                let mut has_life = false;
                for flag in flags.filter(|flag| matches!(flag[0], b'T' | b'N')) {
                    has_life |= flag[0] == b'T';
                    limit(flag, 1);
                }
                if is_set && !has_life {
                    parts.push(format!("T{}", limited(0, ttl_ms)).into_bytes());
                }
            }
            _ => return None,
        }
        let mut out = parts.join(&b' ');
        out.extend_from_slice(&text[line.len()..]);
        *text = out;
        None
    }

    fn kind(&self, _: &Question, reply: &[u8]) -> Kind {
        let word = reply.split(|byte| byte.is_ascii_whitespace()).next().unwrap_or_default();
        match word {
            b"END" | b"EN" | b"NF" | b"NS" | b"EX" | b"NOT_FOUND" | b"NOT_STORED" | b"EXISTS" => {
                Kind::Miss
            }
            b"SERVER_ERROR" => Kind::Refused,
            b"ERROR" | b"CLIENT_ERROR" => Kind::Error,
            _ => Kind::Hit,
        }
    }

    fn write_word(&self, question: &Question, word: Word, out: &mut Vec<u8>) {
        let text = match word {
            Word::Overloaded => "SERVER_ERROR overloaded: the route lets no more requests through",
            Word::NoRoute => "SERVER_ERROR no route for the key",
            Word::UnfitKey => return out.extend_from_slice(UNFIT_KEY),
            Word::UnknownSet => return out.extend_from_slice(UNKNOWN_SET),
            Word::UnknownFlag => return out.extend_from_slice(UNKNOWN_FLAG),
            Word::NoMajority(hits, misses, failed) => {
                let text = format!(
                    "SERVER_ERROR no majority: {hits} have it or did it, {misses} do not, {failed} \
                     failed\r\n"
                );
                return out.extend_from_slice(text.as_bytes());
            }
            Word::Unknown => match Self::parsed(&question.text).verb() {
                Verb::Delete | Verb::Touch | Verb::Incr | Verb::Decr => "NOT_FOUND",
                Verb::MetaSet => "NS",
                Verb::MetaDelete | Verb::MetaArithmetic => "NF",
                _ => "NOT_STORED",
            },
        };
        out.extend_from_slice(text.as_bytes());
        if matches!(text, "NS" | "NF") {
            repeat_flags(&question.text, out);
        }
        out.extend_from_slice(b"\r\n");
    }

    /// Replies to meta commands have the key in base64 if the item was stored so, however it was asked for.
    fn restored(&self, question: &Question, asked: &[u8], reply: &[u8]) -> Option<Vec<u8>> {
        let end = reply.iter().position(|&byte| byte == b'\r')?;
        let (line, rest) = reply.split_at(end);
        let encoded = |key: &[u8]| {
            let mut out = Vec::new();
            encode_key(key, &mut out);
            out
        };
        let own = &question.key;
        let (asked_encoded, own_encoded) = (encoded(asked), encoded(own));
        let is_encoded = words(line).skip(1).any(|word| word == b"b");
        let own_of = |key: &[u8]| match key {
            key if !is_encoded && key == asked => Some(&own[..]),
            key if key == asked_encoded => Some(&own_encoded[..]),
            key if key == asked => Some(&own[..]),
            _ => None,
        };
        // `VALUE key` and `ME key`; others tell it by a flag.
        let has_it_first = line.starts_with(b"VALUE ") || line.starts_with(b"ME ");
        let mut found = false;
        let parts: Vec<Vec<u8>> = words(line)
            .enumerate()
            .map(|(at, word)| {
                let new = match word {
                    word if has_it_first && at == 1 => own_of(word).map(<[u8]>::to_vec),
                    [b'k', key @ ..] if !has_it_first && at > 0 => {
                        own_of(key).map(|own| [b"k", own].concat())
                    }
                    _ => None,
                };
                found |= new.is_some();
                new.unwrap_or_else(|| word.to_vec())
            })
            .collect();
        found.then(|| [&parts.join(&b' ')[..], rest].concat())
    }

    fn join(&self, _: &Question, replies: &[Vec<u8>]) -> Vec<u8> {
        const END: &[u8] = b"END\r\n";
        let mut out: Vec<u8> = Vec::new();
        for reply in replies {
            out.extend_from_slice(reply.strip_suffix(END).unwrap_or(reply));
        }
        out.extend_from_slice(END);
        out
    }

    fn write_failure(
        &self,
        question: &Question,
        failure: &NamedFailure,
        misses: bool,
        out: &mut Vec<u8>,
    ) {
        match question.expect {
            Expect::Values if misses => out.extend_from_slice(b"END\r\n"),
            Expect::Meta if misses => {
                let line = question.text.split(|&byte| byte == b'\r').next().unwrap_or_default();
                write_meta_miss(line, out);
            }
            _ => failure.write_text(out),
        }
    }

    fn untag(&self, engine: &Engine, lane: LaneId, text: &[u8]) -> Option<Vec<u8>> {
        let parser = Self::parsed(text);
        let end = parser.data().map_or(text.len(), |data| data.start as usize);
        let mut out = engine.untagged_head(lane, &parser, &text[..end]);
        out.extend_from_slice(&text[end..]);
        Some(out)
    }

    /// What is answered by a word alone.
    fn has_word(&self, question: &Question) -> bool {
        matches!(
            Self::parsed(&question.text).verb(),
            Verb::Set
                | Verb::Add
                | Verb::Replace
                | Verb::Append
                | Verb::Prepend
                | Verb::Delete
                | Verb::Touch
        )
    }

    /// Without uniques, of which each server has its own. What `me` tells is about the server's copy.
    fn digest(&self, _: &Question, reply: &[u8]) -> u64 {
        let end = reply.iter().position(|&byte| byte == b'\r').unwrap_or(reply.len());
        let (line, rest) = reply.split_at(end);
        if line.starts_with(b"ME ") {
            return 0;
        }
        let is_value = line.starts_with(b"VALUE ");
        let is_unique = |at: usize, word: &[u8]| match is_value {
            true => at == 4,
            false => at > 0 && word.first() == Some(&b'c'),
        };
        let kept = words(line).enumerate().filter(|&(at, word)| !is_unique(at, word));
        let kept: Vec<&[u8]> = kept.map(|(_, word)| word).collect();
        digest(&[&kept.join(&b' ')[..], rest].concat())
    }

    /// What quiet mode leaves out: of `mg` misses, of `ms` and `md` success, of `ma` either.
    fn is_unwanted(&self, question: &Question, reply: &mut [u8]) -> bool {
        let is = |word: &[u8]| reply.starts_with(word);
        question.is_quiet
            && match &question.text[..2] {
                b"mg" => is(b"EN"),
                b"ms" | b"md" => is(b"HD"),
                _ => is(b"HD") || is(b"NF"),
            }
    }

    fn fill(&self, engine: &mut Engine, seat: Seat, fill: Fill) -> bool {
        warm_up::begin(engine, seat, fill)
    }
}

/// Lengths in a header.
const KEY_LEN: std::ops::Range<usize> = 2..4;
const EXTRAS_LEN: usize = 4;
const BODY_LEN: std::ops::Range<usize> = 8..12;

/// A packet with another key in the place of the one that is there.
fn with_key(packet: &[u8], key_at: Span, key: &[u8]) -> Vec<u8> {
    let mut out = [&packet[..key_at.start as usize], key, &packet[key_at.end()..]].concat();
    out[KEY_LEN].copy_from_slice(&(key.len() as u16).to_be_bytes());
    let body = (out.len() - HEADER_SIZE) as u32;
    out[BODY_LEN].copy_from_slice(&body.to_be_bytes());
    out
}

impl Packet {
    fn answer(question: &Question, status: Status, key: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let Question { opcode, asked, .. } = question;
        let opaque = asked.opaque;
        binary::write_response(
            &binary::Response { opcode: *opcode, status, opaque, key, value },
            out,
        );
    }
}

impl Dialect for Packet {
    fn about(&self, question: &Question, key: &[u8]) -> Vec<u8> {
        with_key(&question.text, question.key_at, key)
    }

    fn takes(&self, _: &Question, key: &[u8]) -> bool {
        (1..=KEY_SIZE_MAX).contains(&key.len())
    }

    fn removal(&self, question: &Question, key: &[u8]) -> (Vec<u8>, Expect, Asked) {
        let (mut text, opcode) = (Vec::new(), Opcode::Delete.byte());
        binary::write_request(opcode, key, b"", &mut text);
        let opaque = question.asked.opaque;
        text[12..16].copy_from_slice(&opaque);
        (text, Expect::Packet, Asked { opcode, opaque, ..Asked::default() })
    }

    fn limit_life(
        &self,
        _: &Question,
        text: &mut Vec<u8>,
        _: &[u8],
        ttl_ms: u64,
    ) -> Option<Vec<u8>> {
        /// A counter that is not to be made.
        const NOT_MADE: u32 = u32::MAX;
        let extras = usize::from(text[EXTRAS_LEN]);
        // It is the last of what there is beside key and value.
        let at = HEADER_SIZE + extras.checked_sub(4)?;
        let (opcode, _) = Opcode::from_byte(text[1])?;
        let has_life = matches!(
            opcode,
            Opcode::Set
                | Opcode::Add
                | Opcode::Replace
                | Opcode::Touch
                | Opcode::Gat
                | Opcode::GatK
                | Opcode::Increment
                | Opcode::Decrement
        );
        let expiry = u32::from_be_bytes(text.get(at..at + 4)?.try_into().ok()?);
        if has_life && expiry != NOT_MADE {
            let limited = limited(expiry.into(), ttl_ms) as u32;
            text[at..at + 4].copy_from_slice(&limited.to_be_bytes());
        }
        None
    }

    fn kind(&self, _: &Question, reply: &[u8]) -> Kind {
        const OUT_OF_MEMORY: u16 = 0x82;
        const INTERNAL: u16 = 0x84;
        let status = reply.get(6..8).map(|status| u16::from_be_bytes([status[0], status[1]]));
        match status {
            Some(0) => Kind::Hit,
            // Not found, exists, not stored.
            Some(1 | 2 | 5) => Kind::Miss,
            Some(OUT_OF_MEMORY | INTERNAL..) => Kind::Refused,
            _ => Kind::Error,
        }
    }

    fn write_word(&self, question: &Question, word: Word, out: &mut Vec<u8>) {
        let text;
        let (status, words): (_, &[u8]) = match word {
            Word::Overloaded => {
                (Status::TemporaryFailure, b"overloaded: the route lets no more requests through")
            }
            Word::NoRoute => (Status::TemporaryFailure, NO_ROUTE_WORDS),
            Word::UnfitKey => (Status::Invalid, UNFIT_KEY_WORDS),
            Word::UnknownSet | Word::UnknownFlag => unreachable!("{word:?} is said of text alone"),
            Word::NoMajority(hits, misses, failed) => {
                text = format!(
                    "no majority: {hits} have it or did it, {misses} do not, {failed} failed"
                );
                (Status::TemporaryFailure, text.as_bytes())
            }
            Word::Unknown => match Opcode::from_byte(question.asked.opcode) {
                Some((Opcode::Delete | Opcode::Touch, _)) => (Status::NotFound, b"Not found"),
                _ => (Status::NotStored, b"Not stored."),
            },
        };
        Self::answer(question, status, b"", words, out);
    }

    fn restored(&self, question: &Question, asked: &[u8], reply: &[u8]) -> Option<Vec<u8>> {
        let len = u16::from_be_bytes(reply.get(KEY_LEN)?.try_into().ok()?);
        let start = HEADER_SIZE + usize::from(reply[EXTRAS_LEN]);
        let key_at = Span::new(start, usize::from(len));
        let names_it = len > 0 && reply.get(start..key_at.end()) == Some(asked);
        names_it.then(|| with_key(reply, key_at, &question.key))
    }

    fn join(&self, _: &Question, replies: &[Vec<u8>]) -> Vec<u8> {
        replies.concat()
    }

    fn write_failure(
        &self,
        question: &Question,
        failure: &NamedFailure,
        misses: bool,
        out: &mut Vec<u8>,
    ) {
        let found = Opcode::from_byte(question.asked.opcode);
        match found.map(|(opcode, _)| opcode) {
            Some(opcode) if misses && opcode.retrieves() => {
                let key: &[u8] = if opcode.returns_key() { &question.key } else { b"" };
                let text = if key.is_empty() { Status::NotFound.text() } else { "" };
                Self::answer(question, Status::NotFound, key, text.as_bytes(), out);
            }
            _ => {
                let mut words = Vec::new();
                failure.write_words(&mut words);
                Self::answer(question, Status::TemporaryFailure, b"", &words, out);
            }
        }
    }

    fn has_word(&self, question: &Question) -> bool {
        let opcode = Opcode::from_byte(question.asked.opcode).map(|(opcode, _)| opcode);
        let is_worded = matches!(
            opcode,
            Some(
                Opcode::Set
                    | Opcode::Add
                    | Opcode::Replace
                    | Opcode::Append
                    | Opcode::Prepend
                    | Opcode::Delete
                    | Opcode::Touch
            )
        );
        is_worded && !question.names_unique
    }

    /// Without the unique, of which each server has its own.
    fn digest(&self, _: &Question, reply: &[u8]) -> u64 {
        const UNIQUE: std::ops::Range<usize> = 16..24;
        match reply.len() >= HEADER_SIZE {
            true => digest(&[&reply[..UNIQUE.start], &reply[UNIQUE.end..]].concat()),
            false => digest(reply),
        }
    }

    fn untag(&self, engine: &Engine, lane: LaneId, text: &[u8]) -> Option<Vec<u8>> {
        let (header, rest) = text.split_first_chunk::<HEADER_SIZE>()?;
        Some([&engine.untagged_header(lane, header)[..], rest].concat())
    }

    fn is_unwanted(&self, question: &Question, reply: &mut [u8]) -> bool {
        let quiet = Opcode::from_byte(question.opcode).map(|(opcode, _)| opcode.quiet());
        if let Some(opcode) = reply.get_mut(1) {
            *opcode = question.opcode;
        }
        question.is_quiet
            && match quiet {
                Some(Reticence::Miss) => reply.get(6..8) == Some(&[0, 1]),
                _ => reply.get(6..8) == Some(&[0, 0]),
            }
    }

    fn fill(&self, engine: &mut Engine, seat: Seat, fill: Fill) -> bool {
        warm_up::begin(engine, seat, fill)
    }
}
