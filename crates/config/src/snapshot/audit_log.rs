//! The file that has a line for each thing that somebody did.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditLog {
    pub file: PathBuf,
    /// Commands and categories, lower case. `all` stands for every command.
    pub commands: Vec<String>,
    /// Of the commands that were let through.
    pub share_percent: u32,
    /// What was denied has a line, too.
    pub denied: bool,
    pub logins: bool,
    /// What operators do has a line, too.
    pub operators: bool,
}

impl AuditLog {
    /// Every command, also of modules.
    pub const ALL: &'static str = "all";

    /// Whether clients are of any interest.
    pub fn is_about_clients(&self) -> bool {
        self.denied || self.logins || !self.commands.is_empty() && self.share_percent > 0
    }
}
