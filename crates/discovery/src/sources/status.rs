//! How it is with a source, for operators.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SourceStatus {
    pub pool: String,
    /// `file`, `dns`, `etcd`, `consul` or `kubernetes`.
    pub kind: String,
    /// Where it is.
    pub source: String,
    /// `None` while that is not known.
    pub is_answering: Option<bool>,
    /// Why it does not.
    pub failure: Option<String>,
    /// The last answer, in seconds since 1970.
    pub answered_at: Option<u64>,
    /// Servers that it names.
    pub named: Option<u64>,
    pub held: Option<HeldStatus>,
}

/// Servers that stay in use although the source does not name them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HeldStatus {
    /// Some of them.
    pub names: Vec<String>,
    pub servers: u64,
    /// How many servers the pool has.
    pub of: u64,
    /// In seconds since 1970.
    pub since: u64,
    /// How many answers have said so.
    pub answers: u64,
}
