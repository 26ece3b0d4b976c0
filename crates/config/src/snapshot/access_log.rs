//! The file that has a line for each request that was looked at.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::LogFormat;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessLog {
    pub file: PathBuf,
    pub format: LogFormat,
    /// Of the samples.
    pub share_percent: u32,
    /// Slow requests have a line, too.
    pub slow: bool,
    /// Lines have what follows the command.
    pub arguments: bool,
}
