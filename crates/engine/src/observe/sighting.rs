//! A request that was looked at, when all is known of it.

use cashew_metrics::Times;

use crate::base::id::ConnId;

/// A request that took long, or a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sighting {
    /// Where its client is connected, or the server's pool if that is not known.
    pub pool: String,
    /// `pool/server` if that pool is another one. Empty if none was asked.
    pub server: String,
    /// `None` if it is gone.
    pub client: Option<ConnId>,
    pub client_id: u64,
    pub client_name: Vec<u8>,
    /// Empty where its pool has no users.
    pub user: String,
    /// The command and what follows it, cut. The command alone where nothing more is known.
    pub arguments: Vec<Vec<u8>>,
    pub request_bytes: u64,
    pub reply_bytes: u64,
    pub times: Times,
    /// Of its first key; 0 if it has none.
    pub key_hash: u64,
    /// Why it was not answered by its server. Empty if it was.
    pub failure: String,
    /// It is what one server got of a client's request, whose keys are on several.
    pub is_part: bool,
    /// It took longer than its pool's `slow_log`.
    pub is_slow: bool,
    /// It is a sample that somebody wants.
    pub is_wanted: bool,
    pub(crate) slow_after_us: u64,
}
