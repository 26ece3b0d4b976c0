//! Requests that cannot be served, with memcached's errors.

use super::request::Parsed;

pub(super) const END: &[u8] = b"END\r\n";
pub(super) const ERROR: &[u8] = b"ERROR\r\n";
pub(super) const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
pub(super) const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
pub(super) const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
pub(super) const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";
pub(super) const DELETE_USAGE: &[u8] =
    b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
pub(super) const LINE_TOO_LONG: &[u8] = b"CLIENT_ERROR line too long\r\n";
pub(super) const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
pub(super) const BAD_FLAG: &[u8] = b"CLIENT_ERROR invalid flag\r\n";
pub(super) const DUPLICATE_FLAG: &[u8] = b"CLIENT_ERROR duplicate flag\r\n";
pub(super) const BAD_OR_DUPLICATE_FLAG: &[u8] = b"CLIENT_ERROR invalid or duplicate flag\r\n";
pub(super) const BAD_TOKEN: &[u8] = b"CLIENT_ERROR bad token in command line format\r\n";
pub(super) const BAD_INITIAL: &[u8] = b"CLIENT_ERROR invalid numeric initial value\r\n";
pub(super) const BAD_META_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta value\r\n";
pub(super) const BAD_MODE: &[u8] = b"CLIENT_ERROR incorrect length for M token\r\n";
pub(super) const LONG_OPAQUE: &[u8] = b"CLIENT_ERROR opaque token too long\r\n";
pub(super) const BAD_KEY: &[u8] = b"CLIENT_ERROR error decoding key\r\n";
pub(super) const BAD_CLASS: &[u8] = b"BADCLASS invalid class id\r\n";
pub(super) const ROUTE_USAGE: &[u8] = b"CLIENT_ERROR usage: stats route <key> [<command>]\r\n";
pub(super) const DETAIL_USAGE: &[u8] = b"CLIENT_ERROR usage: stats detail on|off|dump\r\n";
pub(super) const BAD_COMMAND_LINE: &[u8] = b"CLIENT_ERROR bad command line\r\n";
pub(super) const TOO_MANY_FLAGS: &[u8] = b"CLIENT_ERROR options flags too long\r\n";
pub(super) const TOO_MANY_FLAGS_OF_GET: &[u8] = b"CLIENT_ERROR options flags are too long\r\n";
/// The error of a server that was started without the permission.
pub(super) const NO_SHUTDOWN: &[u8] = b"ERROR: shutdown not enabled\r\n";
pub(super) const NO_WATCH: &[u8] = b"CLIENT_ERROR watch commands not allowed\r\n";
pub(super) const NO_METADUMP: &[u8] = b"ERROR metadump not allowed\r\n";

/// A `Parsed::Reject` before its position in the buffer is known.
#[derive(Clone, Copy)]
pub(super) struct Refusal {
    pub(super) reply: &'static [u8],
    pub(super) noreply: bool,
    pub(super) close: bool,
    /// How much to drop after the line, whether or not it has arrived.
    pub(super) swallow: u64,
}

impl Refusal {
    pub(super) fn new(reply: &'static [u8]) -> Self {
        Self { reply, noreply: false, close: false, swallow: 0 }
    }

    pub(super) fn closing(reply: &'static [u8]) -> Self {
        Self { close: true, ..Self::new(reply) }
    }

    #[cold]
    pub(super) fn at(self, len: usize, buf: &[u8]) -> Parsed {
        let Self { reply, noreply, close, swallow } = self;
        let arrived = ((buf.len() - len) as u64).min(swallow);
        let (len, swallow) = (len + arrived as usize, swallow - arrived);
        Parsed::Reject { len, swallow, reply, noreply, close }
    }
}
