//! Retrievals of very many keys, a part at a time.
//!
//! Their values could be more than anybody wants to hold, and shared lanes do not wait for a client.
//! So a part of the keys is asked for when the client has been given what it was owed and takes it;
//! meanwhile the request stays at the front of what it has sent. What closes the reply comes from
//! here, behind the last part: an error if a part of it has failed.

use cashew_protocol::memcached::{Expect, RequestParser, is_error};
use cashew_protocol::redis::Access;

use crate::clients::Plan;
use crate::dispatch::FragmentText;
use crate::engine::Engine;
use crate::request::{Gather, Merge};
use crate::slab::NONE;

/// Keys of a request that is not taken apart, and of the first part of one that is.
pub(super) const PART_KEYS: usize = 128;
const PART_KEYS_MAX: usize = 4096;
/// What the values of a part are meant to come to.
const PART_SIZE: usize = 1 << 20;

/// How far a request has come.
pub(crate) struct Many {
    /// Keys that have been asked for.
    asked: usize,
    /// How many of them in the last part, and the bytes of their values.
    part: usize,
    bytes: usize,
    /// What closes the reply.
    end: Vec<u8>,
}

impl Many {
    fn new() -> Self {
        Self { asked: 0, part: 0, bytes: 0, end: b"END\r\n".to_vec() }
    }

    /// How many keys to ask for next.
    fn next_part(&self) -> usize {
        if self.part == 0 {
            return PART_KEYS;
        }
        let fitting = PART_SIZE.saturating_mul(self.part) / self.bytes.max(1);
        fitting.clamp(1, (2 * self.part).min(PART_KEYS_MAX))
    }

    pub(crate) fn add_bytes(&mut self, bytes: usize) {
        self.bytes += bytes;
    }
}

impl Engine {
    /// Asks for the next part of the keys, if the client is owed nothing.
    #[cold]
    pub(super) fn retrieve_part(
        &mut self,
        client: u32,
        parser: &RequestParser,
        bytes: &[u8],
        access: Access,
    ) -> Plan {
        let keys = parser.keys();
        let pool = self.clients[client].pool;
        while self.clients[client].requests == 0 {
            let many = self.clients[client]
                .modes
                .enter()
                .many
                .get_or_insert_with(|| Box::new(Many::new()));
            let part = &keys[many.asked..];
            if part.is_empty() {
                let end = std::mem::take(&mut many.end);
                self.clients[client].modes.end_many();
                self.answer(client, |out| out.extend_from_slice(&end));
                return Plan::Done;
            }
            let part = &part[..part.len().min(many.next_part())];
            (many.asked, many.part, many.bytes) = (many.asked + part.len(), part.len(), 0);
            let mut split = std::mem::take(&mut self.scratch.split);
            let texts = part.iter().map(|key| key.of(bytes));
            match self.place_keys(pool, texts, access, &mut split) {
                Ok(_) => {
                    let mut gather = self.gather_with_keys(&split, part, bytes);
                    gather.is_part = true;
                    let start = bytes[..keys[0].start as usize].trim_ascii_end();
                    let request = FragmentText {
                        head: &|out, _| out.extend_from_slice(start),
                        separator: b" ",
                        keys: part.iter().map(|key| key.of(bytes)),
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
                Err(failure) => self.asking.failure = Some(failure),
            }
            self.scratch.split = split;
            if let Some(failure) =
                self.asking.failure.take().filter(|_| !self.pools[pool as usize].misses)
            {
                self.count_forward_error(pool);
                let mut text = Vec::new();
                failure.write_text(&mut text);
                self.end_with(client, &text);
            }
        }
        Plan::Wait
    }

    /// A part of the reply is an error: it takes the place of what closes the whole.
    fn end_with(&mut self, client: u32, error: &[u8]) {
        if let Some(many) = self.clients[client].modes.many()
            && !is_error(&many.end)
        {
            many.end = error.to_vec();
        }
    }

    /// Keeps errors of a part's fragments for the end of the whole reply.
    pub(crate) fn take_faults(&mut self, parent: u32, fragments: u32, gather: &Gather) {
        let client = self.requests[parent].client;
        let (mut at, mut ordinal) = (fragments, 0);
        while at != NONE {
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

    #[test]
    fn parts_go_by_the_size_of_values() {
        let mut many = Many::new();
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
