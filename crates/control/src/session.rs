//! A client's connection on its way from one worker to another.

use cashew_config::snapshot::Protocol;
use serde::{Deserialize, Serialize};

/// Raised when a session cannot be understood any more by who knows only the version before. A
/// field may be added without that, if its default is right for sessions that lack it.
pub const SESSION_VERSION: u32 = 2;

/// The oldest version of a session that is understood here.
pub const SESSION_VERSION_MIN: u32 = 1;

/// All that a client and its worker have agreed on, but for the bytes on their way.
///
/// Two binaries may have to understand it, during an upgrade: what is unknown is ignored, what is
/// missing has its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Session {
    pub version: u32,
    /// By name: its index may be another where the session goes.
    pub pool: String,
    /// A pool of that name may have another by now; `None` is taken for the pool's.
    pub protocol: Option<Protocol>,
    /// As CLIENT ID tells it; unique in the instance.
    pub id: u64,
    pub authenticated: bool,
    /// Set by CLIENT SETNAME; may hold any byte.
    pub name: Option<Vec<u8>>,
    /// Bytes still to come of a request that was refused, and are to be dropped.
    pub swallow: u64,
    /// What the client speaks, by name; the first of its protocol's if that is empty.
    pub dialect: String,
    /// Selected by the client; `None` for the pool's.
    pub database: Option<u32>,
    /// Set by CLIENT SETINFO.
    pub library: Vec<u8>,
    pub library_version: Vec<u8>,
    /// Set by CLIENT NO-EVICT.
    pub no_evict: bool,
    /// CLIENT REPLY OFF, and SKIP before the next request.
    pub reply_off: bool,
    pub reply_skip: bool,
    /// Monitors have been told of the request at the front of what was received.
    pub overheard: bool,
    /// What the client called last, by name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub called: String,
    /// Microseconds since the client connected.
    pub age_us: u64,
    /// Length of what was received and not consumed.
    pub input: u64,
    /// Length of what is still to be written.
    pub output: u64,
}
