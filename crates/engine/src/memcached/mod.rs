//! Pools of memcached: two protocols on one port, and what memcached promises its clients.
//!
//! Whatever is sent to a server has exactly one answer, whichever way the client asked: a request
//! that wants to hear less is sent in its loud form, or with something behind it that is always
//! answered, and what the client does not want to hear is left out here. So replies keep their
//! places on shared connections, and what closes a batch of quiet requests – `mn`, a binary NOOP –
//! needs no server: it is answered here when all before it is.

mod auth;
mod binary;
mod cached_writes;
mod cas_tag;
mod copies;
mod explain;
mod fallback;
mod get_coalescing;
mod invalidation;
pub(crate) mod key_life;
mod meta;
mod multiget_paging;
mod own_stats;
mod permission;
mod quiet_filter;
mod routed;
mod stats;
mod stream;
mod tenant;
mod text;
mod warm_up;

pub(crate) use cached_writes::{KeyWritten, key_written};
pub use explain::memcached_reach;
pub(crate) use fallback::Notes;
pub(crate) use get_coalescing::{Coalesced, END, Part};
pub(crate) use invalidation::Invalidations;
pub(crate) use multiget_paging::Many;
pub(crate) use permission::commands_of_keys;
pub(crate) use tenant::Stripping;

use std::sync::Arc;

use cashew_config::snapshot::{Protocol, Wire};
use cashew_protocol::memcached::binary::Opcode;
use cashew_protocol::memcached::{
    BINARY_REQUEST, COMMAND_SIZE_MAX, Expect, KeyStripper, RequestParser, Verb, words,
};

use self::multiget_paging::PART_KEYS;
use self::tenant::REFUSED;
use crate::base::failure::NamedFailure;
use crate::base::id::{ClientId, ListenerId, RequestId};
use crate::downstream::key_prefix::KeyPrefix;
use crate::engine::Engine;
pub(crate) use crate::request::Asked;
use crate::upstream::session_params::WireProtocol;

/// The request of memcached that is being dispatched.
pub(crate) struct RequestCtx {
    pub(crate) asked: Asked,
    pub(crate) expect: Expect,
    /// Uniques of its servers come in the reply and get tags.
    pub(crate) is_tagged: bool,
    /// It names uniques, with tags.
    pub(crate) names_cas_tags: bool,
    /// What a server that has not got the key would say, where that is more than the words for it.
    pub(crate) miss: Vec<u8>,
    /// Why some of its fragments were not sent.
    pub(crate) failure: Option<NamedFailure>,
    /// It was answered with an error, as its user has used up a limit.
    pub(crate) is_over_quota: bool,
    /// It is asked a part at a time, and its keys are as the client has named them.
    pub(crate) is_apart: bool,
}

impl Default for RequestCtx {
    fn default() -> Self {
        Self {
            asked: Asked::default(),
            expect: Expect::Line,
            is_tagged: false,
            names_cas_tags: false,
            miss: Vec::new(),
            failure: None,
            is_over_quota: false,
            is_apart: false,
        }
    }
}

impl Engine {
    /// Whether the client's first byte is still to tell what it speaks.
    pub(crate) fn is_undecided(&self, listener: ListenerId) -> bool {
        let config = &self.listeners[listener].config;
        config.protocol == Protocol::Memcached && config.memcached.wire == Wire::Auto
    }

    /// Takes a client for what its first byte says. Returns whether it speaks the binary protocol.
    #[cold]
    fn decide_wire_protocol(&mut self, index: ClientId, first: u8) -> bool {
        self.clients[index].undecided = false;
        self.update_off_fast_path(index);
        if first != BINARY_REQUEST {
            return false;
        }
        self.clients[index].session.wire_protocol = WireProtocol::Binary;
        let is_followed = self.follow_session(index);
        debug_assert!(is_followed, "two protocols are no more than a pool may have");
        true
    }

    /// Notes what the answer to the request that is dispatched is to be like if its server fails.
    fn note_miss(&mut self, request: RequestId) {
        if !self.request_ctx.miss.is_empty() {
            self.miss_notes.keep(request, &self.request_ctx.miss, &mut self.requests);
        }
    }
}

/// Users with a key prefix: see [`tenant`].
impl Engine {
    /// The prefix of the client's keys, of which few have one.
    #[inline]
    pub(super) fn key_prefix_of(&self, client: ClientId) -> Option<Arc<KeyPrefix>> {
        let client = &self.clients[client];
        if !client.off_fast_path {
            return None;
        }
        client.session.key_prefix().cloned()
    }

    /// Whether a retrieval is asked a part at a time: its keys have no prefix before.
    pub(super) fn is_taken_apart(parser: &RequestParser, prefix: Option<&Arc<KeyPrefix>>) -> bool {
        parser.keys().len() > PART_KEYS || prefix.is_some_and(|prefix| prefix.overflows(parser))
    }

    /// Why a user with a prefix may not have a command without a key.
    pub(super) fn refused_tenant_text(
        &self,
        client: ClientId,
        parser: &RequestParser,
        bytes: &[u8],
    ) -> Option<String> {
        let is_about_all =
            matches!(parser.verb(), Verb::FlushAll | Verb::Verbosity | Verb::Tune | Verb::Stats);
        if !is_about_all || self.clients[client].session.key_prefix().is_none() {
            return None;
        }
        let verb = words(parser.line().of(bytes)).next().unwrap_or_default();
        Some(format!("{} {REFUSED}", String::from_utf8_lossy(verb)))
    }

    /// The same in the binary protocol.
    pub(super) fn refused_tenant_packet(&self, client: ClientId, opcode: Opcode) -> Option<String> {
        let name = match opcode {
            Opcode::Flush => "flush",
            Opcode::Verbosity => "verbosity",
            Opcode::Stat => "stat",
            _ => return None,
        };
        self.clients[client].session.key_prefix().map(|_| format!("{name} {REFUSED}"))
    }

    /// The client is another user now, perhaps: removes the prefix of that one from here on.
    #[cold]
    pub(crate) fn follow_key_prefix(&mut self, index: ClientId) {
        let client = &self.clients[index];
        if self.listeners[client.listener].protocol != Protocol::Memcached {
            return;
        }
        let prefix = client.session.key_prefix().map(|prefix| prefix.0.clone());
        let before = client.modes.stripping.as_ref().map(|it| it.stripper.prefix());
        // What it is owed has the former prefix: a reload has changed it, and the client is closed behind it.
        if before == prefix.as_deref() || client.requests > 0 {
            return;
        }
        self.strip_output(index);
        let client = &mut self.clients[index];
        let ready = client.output.len();
        match prefix {
            Some(prefix) => {
                let stripper = KeyStripper::new(&prefix);
                client.modes.enter().stripping = Some(Box::new(Stripping { stripper, ready }));
            }
            None => client.modes.end_stripping(),
        }
    }

    /// Removes the prefix from what was answered to the client since the last time.
    #[cold]
    pub(crate) fn strip_output(&mut self, index: ClientId) {
        let client = &mut self.clients[index];
        let is_binary = client.session.wire_protocol == WireProtocol::Binary;
        let (output, bufs) = (&mut client.output, &mut self.bufs);
        let Some(Stripping { stripper, ready }) = client.modes.stripping() else { return };
        let mut out = bufs.take();
        for piece in output.take_behind(*ready, bufs) {
            if stripper.passes(piece.len()) {
                output.push(&out, bufs);
                out.clear();
                output.push_buf(piece, bufs);
                continue;
            }
            // What was kept of the piece before is short.
            bufs.reserve(&mut out, piece.len() + COMMAND_SIZE_MAX);
            match is_binary {
                true => stripper.write_packets(&piece, &mut out),
                false => stripper.write_text(&piece, &mut out),
            }
            bufs.give(piece);
        }
        output.push_buf(out, bufs);
        *ready = output.len();
    }
}
