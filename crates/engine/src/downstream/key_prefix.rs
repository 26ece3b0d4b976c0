//! What all keys of a user begin with: see [`crate::redis::tenant`].

/// Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPrefix(pub(crate) Box<[u8]>);
