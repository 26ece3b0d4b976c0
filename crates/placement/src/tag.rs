//! Hash tags: the part of a key that decides its server.

use serde::{Deserialize, Serialize};

/// The two delimiters of `hash_tag:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashTag {
    pub open: u8,
    pub close: u8,
}
