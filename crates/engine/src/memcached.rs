//! What to do with each memcached command.

use cashew_protocol::memcached::{Expect, RequestParser, Verb};
use cashew_protocol::redis::Access;

use crate::client::State;
use crate::clients::Plan;
use crate::dispatch::{FragmentText, Payload};
use crate::engine::Engine;
use crate::request::Merge;

impl Engine {
    /// Decides about one parsed request; `bytes` is the request as it came.
    ///
    /// A request with noreply is forwarded without it, and its reply is dropped here: what is
    /// sent to a server is always answered, so that an error memcached reports in spite of
    /// noreply cannot be taken for the next request's reply.
    #[inline]
    pub(crate) fn memcached_request(
        &mut self,
        client: u32,
        parser: &RequestParser,
        bytes: &[u8],
    ) -> Plan {
        self.clients[client].noreply = parser.noreply().is_some();
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
                self.forward_key(client, key, Access::Write, Expect::Line, bytes.len())
            }
            Verb::FlushAll | Verb::Verbosity => {
                let line = parser.line().of(bytes);
                let text = match parser.noreply() {
                    Some(cut) => &line[..cut.start as usize],
                    None => line,
                };
                let text = [text, b"\r\n"].concat();
                self.broadcast(client, &text)
            }
            Verb::Version => self.forward_anywhere(client, Access::Read, bytes.len()),
            Verb::Quit => {
                self.clients[client].state = State::Closing;
                Plan::Done
            }
        };
        self.clients[client].noreply = false;
        plan
    }

    /// The value of a set was too large: like memcached, drops what is stored, which the client
    /// takes to be overwritten.
    pub(crate) fn drop_stored(&mut self, client: u32, key: &[u8]) {
        let mut text = self.bufs.take();
        text.extend_from_slice(b"delete ");
        text.extend_from_slice(key);
        text.extend_from_slice(b"\r\n");
        self.clients[client].noreply = true;
        let server = self.route(self.clients[client].pool, key, Access::Write);
        let plan = self.forward_to(client, server, Expect::Line, text.len());
        self.clients[client].noreply = false;
        match plan {
            Plan::Forward { lane, request } => self.send(lane, request, Payload::Owned(text)),
            Plan::Done | Plan::Wait => self.bufs.give(text),
        }
    }

    /// get, gets, gat, gats: split by server when the keys are on several.
    #[inline]
    fn retrieve(&mut self, client: u32, parser: &RequestParser, bytes: &[u8]) -> Plan {
        let keys = parser.keys();
        // gat changes the expiry.
        let access = match parser.verb() {
            Verb::Gat | Verb::Gats => Access::Write,
            _ => Access::Read,
        };
        if let [key] = keys {
            let key = key.of(bytes);
            return self.forward_key(client, key, access, Expect::Values, bytes.len());
        }
        let mut split = std::mem::take(&mut self.scratch.split);
        let pool = self.clients[client].pool;
        let placed =
            self.place_keys(pool, keys.iter().map(|key| key.of(bytes)), access, &mut split);
        let plan = match placed {
            Ok(Some(server)) => self.forward_to(client, Some(server), Expect::Values, bytes.len()),
            Ok(None) => {
                let gather = self.gather_with_keys(&split, keys, bytes);
                // Verb and, for gat, the expiry.
                let start = &bytes[..keys[0].start as usize];
                let start = start.trim_ascii_end();
                let request = FragmentText {
                    head: &|out, _| out.extend_from_slice(start),
                    key: &|out, position| {
                        out.push(b' ');
                        out.extend_from_slice(keys[position].of(bytes));
                    },
                    foot: b"\r\n",
                    expect: Expect::Values,
                    size: bytes.len(),
                };
                self.send_fragments(client, &mut split, Merge::Values(gather), request)
            }
            Err(failure) => self.fail(client, failure),
        };
        self.scratch.split = split;
        plan
    }
}
