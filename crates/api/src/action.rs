//! What has been asked for by HTTP, and what has become of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Something that an operator has asked for by HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Action {
    /// Its number, higher than those of earlier ones.
    pub id: u64,
    /// When it was asked for, as RFC 3339 has it.
    pub time: String,
    /// What was asked for: the `operationId`.
    pub operation: String,
    /// The address of whoever asked.
    pub by: String,
    pub state: ActionState,
    /// At the end: whether anything has changed by it. An action that was carried out before changes nothing.
    pub changed: Option<bool>,
    /// What the instance says of it, at most 100 lines. The last one of an action that has failed is the reason.
    pub lines: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActionState {
    Running,
    Done,
    Failed,
}

/// The actions that the admin process remembers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ActionList {
    /// The newest first, at most 64. A new admin process knows of none; the audit log has them all.
    pub actions: Vec<Action>,
}
