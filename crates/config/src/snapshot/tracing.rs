//! Where spans of requests are sent.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Requests are exported as spans.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tracing {
    pub endpoint: CollectorUrl,
    /// Of the samples; slow requests are exported all the same.
    pub share_percent: u32,
    /// What is sent with each export. Values may be secrets.
    pub headers: Vec<(String, String)>,
    pub service_name: String,
    pub keys: KeysShown,
}

/// An address that takes OTLP over HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectorUrl {
    /// A name, or an address without brackets.
    pub host: String,
    pub port: u16,
    /// Where traces are posted, with its slash.
    pub path: String,
}

impl CollectorUrl {
    /// Host and port as in a URL.
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Display for CollectorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority(), self.path)
    }
}

/// What is told of the key of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeysShown {
    /// A digest, so that requests for the same key can be found.
    Hash,
    /// The key, and the digest.
    Full,
    None,
}

impl KeysShown {
    pub fn name(self) -> &'static str {
        match self {
            Self::Hash => "hash",
            Self::Full => "full",
            Self::None => "none",
        }
    }
}
