//! Why nothing was done, or not all.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::action::Action;

/// The body of every answer whose status is 400 or higher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    pub error: FailureKind,
    /// What is wrong, in a sentence.
    pub cause: String,
    /// What to do about it, in a sentence.
    pub remedy: String,
    /// What was asked for, if it was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// 400: a parameter is missing or is not what it may be.
    BadRequest,
    /// 401: a token is missing, or is none.
    Unauthorized,
    /// 403: nothing may be changed by HTTP, or not from this address.
    Forbidden,
    /// 404: no such path, or no such action.
    NotFound,
    /// 405: the path has other methods.
    MethodNotAllowed,
    /// 408: the body did not come in time.
    Timeout,
    /// 409: the instance has not done it. `action` says more.
    Failed,
    /// 413: the body is too large.
    TooLarge,
    /// 503: the instance is busy, and has done nothing.
    Busy,
}

impl FailureKind {
    pub const ALL: [Self; 9] = [
        Self::BadRequest,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::Timeout,
        Self::Failed,
        Self::TooLarge,
        Self::Busy,
    ];

    /// The HTTP status that goes with it.
    pub fn status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::Timeout => 408,
            Self::Failed => 409,
            Self::TooLarge => 413,
            Self::Busy => 503,
        }
    }

    /// What an answer of that status means.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::BadRequest => {
                "A parameter is missing or is not what it may be. Nothing was done."
            }
            Self::Unauthorized => "The token is missing, or is none. Nothing was done.",
            Self::Forbidden => {
                "Nothing may be changed by HTTP, or not from this address. Nothing was done."
            }
            Self::NotFound => "There is none of that number.",
            Self::MethodNotAllowed => "The path has other methods. Nothing was done.",
            Self::Timeout => "The body did not come in time. Nothing was done.",
            Self::Failed => "The instance has not done it. `action` has what it says of it.",
            Self::TooLarge => "The body is too large. Nothing was done.",
            Self::Busy => "The instance is busy. Try again.",
        }
    }
}

impl Failure {
    /// `cause` and `remedy` become sentences.
    pub fn new(error: FailureKind, cause: &str, remedy: &str) -> Self {
        Self { error, cause: sentence(cause), remedy: sentence(remedy), action: None }
    }
}

/// With a capital and a full stop. Names in it stay as they are.
fn sentence(text: &str) -> String {
    let text = text.trim();
    let mut letters = text.chars();
    let first = letters.next();
    // A word in all lower case begins a sentence; a name may have other characters.
    let word = text.split_whitespace().next().unwrap_or_default();
    let is_plain = word.bytes().all(|byte| byte.is_ascii_lowercase());
    let mut done = match first {
        Some(first) if is_plain => first.to_ascii_uppercase().to_string() + letters.as_str(),
        _ => text.to_owned(),
    };
    if !done.ends_with(['.', '!', '?']) {
        done.push('.');
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_sentences() {
        for (text, expected) in [
            ("the master is busy", "The master is busy."),
            ("/etc/c.yml: no such file.", "/etc/c.yml: no such file."),
            ("pool 'a': there is no server", "Pool 'a': there is no server."),
            ("stats_token is needed", "stats_token is needed."),
        ] {
            assert_eq!(sentence(text), expected);
        }
        let failure = Failure::new(FailureKind::Busy, "it is busy", "try again");
        let json = serde_json::to_value(&failure).unwrap();
        assert_eq!(json["error"], "busy");
        assert!(json.get("action").is_none());
    }

    #[test]
    fn each_kind_has_a_status_of_its_own() {
        let mut seen: Vec<u16> = FailureKind::ALL.iter().map(|kind| kind.status()).collect();
        seen.dedup();
        assert!(seen.is_sorted() && seen.len() == FailureKind::ALL.len());
    }
}
