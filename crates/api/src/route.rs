//! Where keys go, as it is asked and answered.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Where which key goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteQuestion {
    /// As clients name it.
    pub key: String,
    /// Only this pool or route, instead of each that clients connect to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// What is done with the key, as in `DEL`, instead of reads, writes and deletions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Where it goes while this server does not answer: `SERVER=down`, by its name or address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_if: Option<String>,
}

/// Where it goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RouteList {
    /// For each pool, and for each way through a route: what `cashew route --json` prints.
    pub routes: Vec<Map<String, Value>>,
    /// In words, such as that servers are ejected.
    pub notes: Vec<String>,
}
