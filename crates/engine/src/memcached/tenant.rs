//! A user's key prefix with memcached: added to the keys of all requests before anything else is decided
//! about them, and removed from what is about to be written to the client.
//!
//! So all in between – placement, routes, copies, gets that are joined – knows full keys only.

use std::sync::Arc;

use cashew_config::snapshot::Protocol;
use cashew_protocol::memcached::binary::{self, Opcode, RequestParser as BinaryParser};
use cashew_protocol::memcached::{
    COMMAND_SIZE_MAX, KEY_SIZE_MAX, KeyStripper, Parsed, RequestParser, Verb, words,
    write_packet_with_prefix,
};

use super::multiget_paging::PART_KEYS;
use crate::base::id::ClientId;
use crate::downstream::key_prefix::KeyPrefix;
use crate::engine::Engine;
use crate::upstream::session_params::WireProtocol;

pub(super) const TOO_LONG: &str = "key is too long with the prefix of the user";
const REFUSED: &str = "is not for users with a key prefix";

/// How a client's replies lose their prefix.
pub(crate) struct Stripping {
    stripper: KeyStripper,
    /// So many bytes of the client's output are as the client is to see them: no more are written.
    pub(crate) ready: u64,
}

impl KeyPrefix {
    /// The request with full keys; `None` if one is too long.
    #[cold]
    pub(super) fn text(
        &self,
        parser: &RequestParser,
        bytes: &[u8],
    ) -> Option<(RequestParser, Vec<u8>)> {
        let (mut text, mut anew) =
            (Vec::with_capacity(bytes.len() + 2 * self.0.len()), RequestParser::default());
        parser.write_with_prefix(&self.0, bytes, &mut text);
        let is_whole = anew.parse(&text) == Parsed::Complete { len: text.len() };
        is_whole.then_some((anew, text))
    }

    /// The same for a packet.
    #[cold]
    pub(super) fn packet(&self, bytes: &[u8]) -> Option<(BinaryParser, Vec<u8>)> {
        let (mut text, mut anew) =
            (Vec::with_capacity(bytes.len() + self.0.len()), BinaryParser::default());
        write_packet_with_prefix(&self.0, bytes, &mut text)?;
        let is_whole = anew.parse(&text) == binary::Parsed::Complete { len: text.len() };
        is_whole.then_some((anew, text))
    }

    /// Whether a retrieval would be a longer line than servers read, but for its parts.
    pub(super) fn overflows(&self, parser: &RequestParser) -> bool {
        let keys = parser.keys().len();
        let len = parser.line().len as usize + keys * self.0.len() + 2;
        matches!(parser.verb(), Verb::Gat | Verb::Gats) && keys > 1 && len > COMMAND_SIZE_MAX
    }

    pub(super) fn fits(&self, key_len: usize) -> bool {
        self.0.len() + key_len <= KEY_SIZE_MAX
    }
}

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
