//! Retrievals of very many keys, a part at a time.
//!
//! Their values could be more than anybody wants to hold, and shared lanes do not wait for a client.
//! So a part of the keys is asked for when the client has been given what it was owed and takes it;
//! meanwhile the request stays at the front of what it has sent, where the next part is read on from
//! the last one's end: the whole is parsed once. What closes the reply comes from here, behind the
//! last part: an error if a part of it has failed.

use std::sync::Arc;

use cashew_protocol::Span;
use cashew_protocol::memcached::{
    COMMAND_SIZE_MAX, Expect, KEY_SIZE_MAX, RequestParser, Verb, is_error, next_word, words,
};
use cashew_protocol::redis::Access;

use crate::base::command_stats::Counting;
use crate::base::id::{ClientId, RequestId};
use crate::downstream::key_prefix::KeyPrefix;
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::exchange::dispatch::{FragmentText, Part};
use crate::request::{Gather, Merge};

/// Keys of a request that is not taken apart, and of the first part of one that is.
pub(super) const PART_KEYS: usize = 128;
const PART_KEYS_MAX: usize = 4096;
/// So many of the longest keys fit into the longest line that servers read, but for get and gets.
const TOUCHED_KEYS_MAX: usize = (COMMAND_SIZE_MAX - 64) / (KEY_SIZE_MAX + 1);
/// What the values of a part are meant to come to.
const PART_SIZE: usize = 1 << 20;

/// What a retrieval does: gat changes the expiry. A unique is good only where writes are judged by it.
pub(super) fn access(verb: Verb) -> Access {
    match verb {
        Verb::Gat | Verb::Gats => Access::Write,
        Verb::Gets => Access::Walk,
        _ => Access::Read,
    }
}

/// A key as it follows others, with the space in front of it. Every key has one: nothing else parts it
/// from the word before.
#[inline]
pub(super) fn behind_space(key: Span, bytes: &[u8]) -> &[u8] {
    &bytes[key.start as usize - 1..key.end()]
}

/// How far a request has come.
pub(crate) struct Many {
    /// Bytes of the request.
    len: usize,
    verb: Verb,
    /// Verb and, for gat, the expiry.
    head: Vec<u8>,
    /// From here on, to the end of the line, keys have not been asked for.
    at: usize,
    line_end: usize,
    /// What its parts count as, but for their keys and its length.
    counting: Counting,
    /// How many keys were in the last part, and the bytes of their values.
    part: usize,
    bytes: usize,
    /// What closes the reply.
    end: Vec<u8>,
    /// What its keys are to get in front of them.
    prefix: Option<Arc<KeyPrefix>>,
}

impl Many {
    /// Of a parsed request, `len` bytes long, of more than one key.
    fn new(
        parser: &RequestParser,
        bytes: &[u8],
        counting: Counting,
        prefix: Option<Arc<KeyPrefix>>,
    ) -> Self {
        let at = parser.keys()[0].start as usize;
        Self {
            len: bytes.len(),
            verb: parser.verb(),
            head: head(parser, &bytes[..at]),
            at,
            line_end: parser.line().end(),
            counting: Counting { size: 0, keys: 0, ..counting },
            part: 0,
            bytes: 0,
            end: b"END\r\n".to_vec(),
            prefix,
        }
    }

    /// Reads the keys to ask for next, and nothing but them.
    fn read_part(&mut self, bytes: &[u8]) -> Vec<Span> {
        let line = &bytes[..self.line_end];
        let mut at = self.at;
        let words = std::iter::from_fn(|| {
            let key = next_word(line, at)?;
            at = key.end();
            Some(key)
        });
        let keys: Vec<Span> = words.take(self.next_part()).collect();
        (self.at, self.part, self.bytes) = (at, keys.len(), 0);
        keys
    }

    /// How many keys to ask for next.
    fn next_part(&self) -> usize {
        if self.prefix.is_some() && matches!(self.verb, Verb::Gat | Verb::Gats) {
            return TOUCHED_KEYS_MAX;
        }
        if self.part == 0 {
            return PART_KEYS;
        }
        let fitting = PART_SIZE.saturating_mul(self.part) / self.bytes.max(1);
        fitting.clamp(1, (2 * self.part).min(PART_KEYS_MAX))
    }

    /// The keys of a part with their prefix, each behind a space.
    fn full_keys(&self, part: &[Span], bytes: &[u8]) -> Option<(Vec<Span>, Vec<u8>)> {
        let prefix = self.prefix.as_ref()?;
        let mut text = Vec::new();
        let write = |key: &Span| {
            text.push(b' ');
            let start = text.len();
            text.extend_from_slice(&prefix.full(key.of(bytes)));
            Span::new(start, text.len() - start)
        };
        Some((part.iter().map(write).collect(), text))
    }

    pub(crate) fn add_bytes(&mut self, bytes: usize) {
        self.bytes += bytes;
    }
}

/// What comes before the keys, one space between its words.
fn head(parser: &RequestParser, bytes: &[u8]) -> Vec<u8> {
    let mut words = words(bytes);
    let verb = words.next().unwrap_or_default();
    let mut head = if parser.verb() == Verb::Get { b"get".to_vec() } else { verb.to_vec() };
    for word in words {
        head.push(b' ');
        head.extend_from_slice(word);
    }
    head
}

impl Engine {
    /// Begins to ask for the keys of a request, a part at a time, if the client is owed nothing.
    #[cold]
    pub(super) fn retrieve_many(
        &mut self,
        client: ClientId,
        parser: &RequestParser,
        bytes: &[u8],
    ) -> Plan {
        if self.clients[client].requests > 0 {
            return Plan::Wait;
        }
        let prefix = self.key_prefix_of(client);
        let many = Many::new(parser, bytes, self.command_stats.current, prefix);
        self.clients[client].modes.enter().many = Some(Box::new(many));
        self.retrieve_parts(client, bytes)
    }

    /// Goes on with the request that is being taken apart, at the front of `buf`. Returns its length
    /// when all of it has been asked for.
    #[cold]
    pub(super) fn go_on_retrieving(&mut self, client: ClientId, buf: &[u8]) -> Option<usize> {
        let many = self.clients[client].modes.many()?;
        let (len, verb, counting) = (many.len, many.verb, many.counting);
        self.command_stats.current = counting;
        self.request_ctx.miss.clear();
        self.request_ctx.expect = Expect::Values;
        // A reload may have changed it since the last part.
        let asks = matches!(verb, Verb::Gets | Verb::Gats);
        self.request_ctx.is_tagged = asks && self.has_tags(client);
        self.request_ctx.names_cas_tags = false;
        let plan = self.retrieve_parts(client, &buf[..len]);
        self.settle_in_flight(client);
        self.fence(client, len, &plan);
        match plan {
            Plan::Wait => None,
            Plan::Done | Plan::Forward { .. } => Some(len),
        }
    }

    /// Asks for the next part of the keys whenever the client is owed nothing.
    fn retrieve_parts(&mut self, client: ClientId, bytes: &[u8]) -> Plan {
        let backend = self.backend_of(client);
        while self.clients[client].requests == 0 {
            let Some(many) = self.clients[client].modes.many() else { return Plan::Done };
            let part = many.read_part(bytes);
            if part.is_empty() {
                let end = std::mem::take(&mut many.end);
                self.command_stats.current.keys = 0;
                self.clients[client].modes.end_many();
                self.answer(client, |out| out.extend_from_slice(&end));
                return Plan::Done;
            }
            let full = many.full_keys(&part, bytes);
            let (part, bytes) = match &full {
                Some((part, text)) => (&part[..], &text[..]),
                None => (&part[..], bytes),
            };
            let start = std::mem::take(&mut many.head);
            self.command_stats.current.keys = part.len() as u32;
            let access = access(many.verb);
            let mut split = std::mem::take(&mut self.scratch.split);
            let texts = part.iter().map(|key| key.of(bytes));
            match self.place_keys(client, texts, access, &mut split) {
                Ok(_) => {
                    if access == Access::Write && self.writes_to_all(client) {
                        for (key, &owner) in part.iter().zip(&split.owners) {
                            let Part { backend, server, .. } = split.parts[owner as usize];
                            if self.stand_at(client, backend).is_ok() {
                                self.touch_key_at_others(client, server, &start, key.of(bytes));
                            }
                        }
                    }
                    let mut gather = self.gather_with_keys(&split, part, bytes);
                    gather.is_part = true;
                    let request = FragmentText {
                        head: &|out, _| out.extend_from_slice(&start),
                        keys: part.iter().map(|key| behind_space(*key, bytes)),
                        foot: b"\r\n",
                        expect: Expect::Values,
                        size: start.len()
                            + part.iter().map(|key| key.len as usize + 1).sum::<usize>(),
                    };
                    self.send_fragments_that_can(
                        client,
                        &mut split,
                        Merge::Values(gather),
                        request,
                    );
                }
                Err(failure) => self.request_ctx.failure = Some(failure.into()),
            }
            self.scratch.split = split;
            if let Some(many) = self.clients[client].modes.many() {
                many.head = start;
            }
            if let Some(failure) =
                self.request_ctx.failure.take().filter(|_| !self.destination_of(client).misses)
            {
                self.count_forward_error(backend);
                let mut text = Vec::new();
                failure.write_text(&mut text);
                self.end_with(client, &text);
            }
        }
        Plan::Wait
    }

    /// A part of the reply is an error: it takes the place of what closes the whole.
    fn end_with(&mut self, client: ClientId, error: &[u8]) {
        if let Some(many) = self.clients[client].modes.many()
            && !is_error(&many.end)
        {
            many.end = error.to_vec();
        }
    }

    /// Keeps errors of a part's fragments for the end of the whole reply.
    pub(crate) fn take_faults(&mut self, parent: RequestId, fragments: RequestId, gather: &Gather) {
        let client = self.requests[parent].client;
        let (mut at, mut ordinal) = (fragments, 0);
        while at != RequestId::NONE {
            let place = gather.places.get(ordinal).copied().unwrap_or_default();
            let rest = self.requests[at].reply.get(place..).unwrap_or_default();
            let mut values = cashew_protocol::memcached::Values::new(rest);
            while values.next().is_some() {}
            if is_error(values.rest()) {
                let error = values.rest().to_vec();
                self.end_with(client, &error);
            }
            let crate::request::Role::Fragment { next, .. } = self.requests[at].role else {
                return;
            };
            (at, ordinal) = (next, ordinal + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn many(request: &[u8]) -> (Many, RequestParser) {
        let mut parser = RequestParser::default();
        parser.parse(request);
        (Many::new(&parser, request, Counting::default(), None), parser)
    }

    #[test]
    fn parts_are_read_one_after_the_other() {
        let keys: String = (0..300).map(|n| " ".repeat(n % 3 + 1) + &n.to_string()).collect();
        for (start, head, end) in
            [("get", "get", "\r\n"), ("  gats  5", "gats 5", "  \n"), ("bget", "get", " \n")]
        {
            let request = format!("{start}{keys}{end}");
            let (mut many, parser) = many(request.as_bytes());
            assert_eq!((&many.head[..], many.len), (head.as_bytes(), request.len()));
            let mut read = Vec::new();
            for part in [128, 172, 0] {
                let keys = many.read_part(request.as_bytes());
                assert_eq!(keys.len(), part, "{head}");
                read.extend(keys);
            }
            assert_eq!((read.len(), &read[..]), (300, parser.keys()), "{head}");
        }
    }

    #[test]
    fn parts_go_by_the_size_of_values() {
        let (mut many, _) = many(b"get a b\r\n");
        assert_eq!(many.next_part(), PART_KEYS);
        for (part, bytes, next) in [
            (128, 0, 256),
            (4096, 100, PART_KEYS_MAX),
            (128, 128 << 20, 1),
            (128, 2 << 20, 64),
            (1, 8 << 20, 1),
            (1, 100, 2),
        ] {
            (many.part, many.bytes) = (part, bytes);
            assert_eq!(many.next_part(), next, "{part} {bytes}");
        }
    }
}
