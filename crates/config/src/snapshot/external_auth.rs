//! Who is asked about names that are no user's here: `external_auth`.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// It says which user somebody is, and until when. What a user may is configured here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalAuth {
    pub source: AuthSource,
    /// How long an answer may take.
    pub timeout_ms: u64,
    /// How long a good answer stands in for one that does not come.
    pub cache_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthSource {
    File(PathBuf),
    Http {
        url: String,
        /// Whom to trust, where the URL is https.
        ca: Option<PathBuf>,
        /// What it holds goes with every question.
        token_file: Option<PathBuf>,
    },
}

/// Without what may be secret, as the query of a URL.
impl fmt::Display for AuthSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Http { url, .. } => f.write_str(url.split('?').next().unwrap_or_default()),
        }
    }
}
