//! Answers in the place of a server that failed.

use std::collections::HashMap;

use cashew_protocol::memcached::Expect;
use cashew_protocol::memcached::binary::{Opcode, Response, Status, write_response};

use super::Asked;
use crate::base::failure::NamedFailure;
use crate::base::id::{ClientId, RequestId};
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::request::Request;
use crate::request::slab::Requests;

/// More than an answer takes beside what a miss has of its own.
const FALLBACK_SIZE: usize = 256;

/// What misses of requests on their way look like, where `on_failure: miss` asks for them. Those of
/// requests that have been answered are forgotten later.
#[derive(Default)]
pub(crate) struct Notes(HashMap<RequestId, Box<[u8]>>);

impl Notes {
    pub(crate) fn keep(&mut self, request: RequestId, miss: &[u8], requests: &mut Requests) {
        requests[request].is_noted = true;
        self.0.insert(request, miss.into());
    }

    fn take(&mut self, request: RequestId, requests: &Requests) -> Box<[u8]> {
        let note = requests[request].is_noted.then(|| self.0.remove(&request)).flatten();
        note.unwrap_or_default()
    }

    /// Forgets notes of requests that are over.
    pub(crate) fn trim(&mut self, requests: &Requests) {
        self.0.retain(|&request, _| requests.get(request).is_some_and(|slot| slot.is_noted));
        self.0.shrink_to(2 * self.0.len());
    }
}

/// A request whose server failed.
struct Failed<'a> {
    asked: Asked,
    expect: Expect,
    miss: &'a [u8],
    failure: &'a NamedFailure,
}

impl Engine {
    /// Answers a request that was not sent.
    #[cold]
    pub(crate) fn fail_unsent_memcached(
        &mut self,
        client: ClientId,
        failure: &NamedFailure,
    ) -> Plan {
        let misses = self.destination_of(client).misses;
        let miss = std::mem::take(&mut self.request_ctx.miss);
        let failed = Failed {
            asked: self.request_ctx.asked,
            expect: self.request_ctx.expect,
            miss: &miss,
            failure,
        };
        let noreply = self.clients[client].noreply;
        let mut is_unwanted = false;
        let room = FALLBACK_SIZE + miss.len();
        let text = self.bufs.written(room, |out| failed.write(misses, out, &mut is_unwanted));
        self.clients[client].noreply |= is_unwanted;
        self.answer(client, |out| out.extend_from_slice(&text));
        self.clients[client].noreply = noreply;
        self.bufs.give(text);
        self.request_ctx.miss = miss;
        self.request_ctx.miss.clear();
        Plan::Done
    }

    /// Writes what is said of a server that could not be asked what is being dispatched.
    #[cold]
    pub(crate) fn write_memcached_failure(
        &self,
        expect: Expect,
        failure: &NamedFailure,
        out: &mut Vec<u8>,
    ) {
        let failed = Failed { asked: self.request_ctx.asked, expect, miss: b"", failure };
        failed.write(false, out, &mut false);
    }

    /// Writes what is said of a request that no server has answered.
    #[cold]
    pub(super) fn write_failure_of(
        &self,
        request: RequestId,
        failure: &NamedFailure,
        out: &mut Vec<u8>,
    ) {
        let Request { asked, expect, .. } = self.requests[request];
        Failed { asked, expect, miss: b"", failure }.write(false, out, &mut false);
    }

    /// Answers a request that has left its lane without a reply.
    #[cold]
    pub(crate) fn fail_sent_memcached(&mut self, index: RequestId, failure: &NamedFailure) {
        let miss = self.miss_notes.take(index, &self.requests);
        // Without a client nobody hears which it is.
        let client = self.waiting_client(index);
        let misses = client != ClientId::NONE && self.destination_of(client).misses;
        let request = &self.requests[index];
        let failed = Failed { asked: request.asked, expect: request.expect, miss: &miss, failure };
        let mut is_unwanted = false;
        let room = FALLBACK_SIZE + miss.len();
        let text = self.bufs.written(room, |out| failed.write(misses, out, &mut is_unwanted));
        self.requests[index].silent |= is_unwanted;
        self.restart_fragment(index);
        self.drop_reply(index);
        self.charge(index, text.len());
        self.deliver_buf(index, text);
    }
}

impl Failed<'_> {
    fn write(&self, misses: bool, out: &mut Vec<u8>, is_unwanted: &mut bool) {
        if misses && self.write_miss(out) {
            *is_unwanted = self.asked.is_quiet_filtered || self.expect.is_quiet_filtered();
            return;
        }
        match self.expect {
            Expect::Packet | Expect::PacketQuiet | Expect::Packets => {
                let mut words = Vec::new();
                self.failure.write_words(&mut words);
                self.write_packet(Status::TemporaryFailure, b"", &words, out);
            }
            Expect::Line
            | Expect::Answer(_)
            | Expect::AnswerQuiet(_)
            | Expect::Told
            | Expect::MetaNumber
            | Expect::Values
            | Expect::Coalesced
            | Expect::CoalescedLast
            | Expect::Meta
            | Expect::MetaQuiet
            | Expect::Fenced
            | Expect::Stats => self.failure.write_text(out),
        }
    }

    /// Returns whether the request can miss.
    fn write_miss(&self, out: &mut Vec<u8>) -> bool {
        let retrieves =
            || Opcode::from_byte(self.asked.opcode).is_some_and(|(op, _)| op.retrieves());
        match self.expect {
            Expect::Values | Expect::Coalesced | Expect::CoalescedLast => {
                out.extend_from_slice(b"END\r\n");
            }
            Expect::Meta | Expect::MetaQuiet if !self.miss.is_empty() => {
                out.extend_from_slice(self.miss);
            }
            Expect::Packet | Expect::PacketQuiet if retrieves() => {
                // A reply that has the key has no words.
                let text = if self.miss.is_empty() { Status::NotFound.text() } else { "" };
                self.write_packet(Status::NotFound, self.miss, text.as_bytes(), out);
            }
            _ => return false,
        }
        true
    }

    fn write_packet(&self, status: Status, key: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let Asked { opcode, opaque, .. } = self.asked;
        write_response(&Response { opcode, status, opaque, key, value }, out);
    }
}
