//! What operators ask the master for, by signals and by its control socket, and what they are
//! answered.
//!
//! On the socket one line of JSON asks, lines of JSON answer, the last of them [`Answer::Done`] or
//! [`Answer::Failed`].

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::status::Status;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// Go on by the configuration file as it is now.
    Reload {
        /// Only tell what would change.
        #[serde(default)]
        dry_run: bool,
    },
    /// Let another program take over.
    Upgrade {
        /// `None` is the path that this one was started from.
        #[serde(default)]
        binary: Option<PathBuf>,
    },
    Status,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Something worth telling on the way.
    Say(String),
    Status(Box<Status>),
    Done(bool),
    /// Why not.
    Failed(String),
}

/// Who asked, and hears of it: any number of lines, then how it ended.
pub(crate) trait Reply {
    fn say(&mut self, text: &str);
    fn status(&mut self, status: Status);
    fn done(self: Box<Self>);
    fn failed(self: Box<Self>, why: &str);
}

/// For a signal, whose sender has the log to look at.
pub(crate) struct Nobody;

impl Reply for Nobody {
    fn say(&mut self, _: &str) {}
    fn status(&mut self, _: Status) {}
    fn done(self: Box<Self>) {}
    fn failed(self: Box<Self>, _: &str) {}
}
