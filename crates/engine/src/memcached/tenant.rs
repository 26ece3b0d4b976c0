//! A user's key prefix with memcached: added to the keys of all requests before anything else is decided
//! about them, and removed from what is about to be written to the client.
//!
//! So all in between – placement, routes, copies, gets that are joined – knows full keys only.

use cashew_protocol::memcached::binary::{self, RequestParser as BinaryParser};
use cashew_protocol::memcached::{
    COMMAND_SIZE_MAX, KEY_SIZE_MAX, KeyStripper, Parsed, RequestParser, Verb,
    write_packet_with_prefix,
};

use crate::downstream::key_prefix::KeyPrefix;

pub(super) const TOO_LONG: &str = "key is too long with the prefix of the user";
pub(super) const REFUSED: &str = "is not for users with a key prefix";

/// How a client's replies lose their prefix.
pub(crate) struct Stripping {
    pub(super) stripper: KeyStripper,
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

    pub(super) fn fits_all(&self, parser: &RequestParser) -> bool {
        parser.keys().iter().all(|key| self.fits(key.len as usize))
    }

    pub(super) fn fits(&self, key_len: usize) -> bool {
        self.0.len() + key_len <= KEY_SIZE_MAX
    }
}
