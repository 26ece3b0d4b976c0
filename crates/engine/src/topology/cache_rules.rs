//! What a node `cache` may keep.

use cashew_config::snapshot::KeepRules;

/// Of one worker's store, after its share is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CacheRules {
    /// Of all workers.
    pub(crate) bytes: u64,
    /// The longest life of a reply, from when the server was asked.
    pub(crate) ttl_us: u64,
    /// The same of a reply that says that there is no such key; 0 keeps none.
    pub(crate) negative_us: u64,
    /// The longest reply.
    pub(crate) value_max: usize,
    /// What keys begin with that may be kept; all if it is empty.
    pub(crate) prefixes: Box<[Box<[u8]>]>,
    /// Only keys that are hot.
    pub(crate) hot_only: bool,
}

impl CacheRules {
    pub(crate) fn of(keep: &KeepRules) -> Self {
        let KeepRules { bytes, ttl_ms, negative_ms, value_max, keys, hot_only } = keep;
        Self {
            bytes: *bytes,
            ttl_us: ttl_ms.saturating_mul(1000),
            negative_us: negative_ms.saturating_mul(1000),
            value_max: usize::try_from(*value_max).unwrap_or(usize::MAX),
            prefixes: keys.iter().map(|prefix| prefix.as_bytes().into()).collect(),
            hot_only: *hot_only,
        }
    }
}
