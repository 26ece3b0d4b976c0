//! A client's connection on its way from one worker to another.

use std::net::SocketAddr;

use cashew_config::snapshot::Protocol;
use cashew_tls::Parted;
use serde::{Deserialize, Serialize};

/// Raised when workers that know only the version before cannot understand a session any more. A
/// field may be added without that, if its default is right for sessions without it.
pub const SESSION_VERSION: u32 = 2;

/// The oldest version of a session that is understood here.
pub const SESSION_VERSION_MIN: u32 = 1;

/// The version of sessions with TLS. Whoever does not know it must not take such a session for one without.
pub const SESSION_VERSION_SECURED: u32 = 3;

/// The version of sessions whose client is told of changes: whoever does not know of that must not take them.
pub const SESSION_VERSION_TRACKING: u32 = 4;

/// The version of sessions whose bytes pass through, with the connection to the server: whoever does not know of that
/// must not take them.
pub const SESSION_VERSION_PAIRED: u32 = 5;

/// All state of a client's session, except for its pending bytes.
///
/// Two binaries may have to understand it, during an upgrade: unknown fields are ignored, missing
/// fields have their defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Session {
    pub version: u32,
    /// By name: the target may have another index for it.
    pub pool: String,
    /// The pool's protocol may have changed; `None` is taken for the pool's.
    pub protocol: Option<Protocol>,
    /// As in CLIENT ID; unique in the instance.
    pub id: u64,
    pub authenticated: bool,
    /// Who it is, by name; empty where the pool has no users.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Set by CLIENT SETNAME; may hold any byte.
    pub name: Option<Vec<u8>>,
    /// Bytes of a refused request that are still to come and are dropped.
    pub swallow: u64,
    /// The client's wire protocol, by name; if empty, the first of the pool's protocol.
    pub dialect: String,
    /// Selected by the client; `None` for the pool's.
    pub database: Option<u32>,
    /// Set by CLIENT SETINFO.
    pub library: Vec<u8>,
    pub library_version: Vec<u8>,
    /// It has to log in again after so long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in_us: Option<u64>,
    /// Set by CLIENT NO-EVICT.
    pub no_evict: bool,
    /// Set by CLIENT TRACKING, if it is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracking: Option<Box<TrackingSession>>,
    /// Set by CLIENT MAINT_NOTIFICATIONS, by its number; 0 if it wants to know nothing.
    pub notified: u8,
    /// Set by CLIENT READS, by name; empty if it is left to the pool.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reads: String,
    /// CLIENT REPLY OFF, and SKIP before the next request.
    pub reply_off: bool,
    pub reply_skip: bool,
    /// The request at the front of the input has been reported to monitors.
    pub overheard: bool,
    /// The client's last command, by name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub called: String,
    /// Microseconds since the client connected.
    pub age_us: u64,
    /// Bytes received and sent since, requests, errors, and microseconds that the slowest took.
    pub totals: [u64; 5],
    /// Length of the unconsumed input.
    pub input: u64,
    /// Length of the unwritten output.
    pub output: u64,
    /// What a proxy has told: the client's address, and the one that it has connected to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passed_from: Option<Box<SocketAddr>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passed_to: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secured: Option<Box<SecuredSession>>,
    /// Of a session whose bytes pass through: the socket of the connection to the server follows the client's. Its
    /// `input` is what is to be written to the server, its `output` to the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paired: Option<Box<PairedSession>>,
}

/// What a session whose bytes pass through has beside the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PairedSession {
    /// The server's name; empty if it is not configured any more.
    pub server: String,
    /// The client was told that nothing more comes, and the server.
    pub client_told_end: bool,
    pub server_told_end: bool,
    /// The connection to the server, if that is secured. Its bytes follow those of the client's connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secured: Option<Box<SecuredSession>>,
}

/// What a session with TLS has beside the rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecuredSession {
    /// Its keys.
    pub parted: Parted,
    /// Length of what was received and not decrypted, which follows the output.
    pub input: u64,
    /// Length of what was encrypted and not written, which follows that.
    pub output: u64,
    /// The first byte of the session's output is the last that was encrypted.
    pub holds_byte: bool,
}

/// What a client is told of, of what has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrackingSession {
    /// As CLIENT TRACKINGINFO names it, with the prefixes behind it.
    pub words: Vec<Vec<u8>>,
}
