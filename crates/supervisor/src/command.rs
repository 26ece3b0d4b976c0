//! What operators ask the master for, by signals and by its control socket, and what they are
//! answered.
//!
//! On the socket one line of JSON asks, lines of JSON answer, the last of them [`Answer::Done`] or
//! [`Answer::Failed`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::net::SendFlags;
use serde::{Deserialize, Serialize};
use tracing::debug;

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
    /// Have another server of a pool, which has its data already, take the writes.
    Failover {
        pool: String,
        server: String,
    },
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

    /// Where it says so, for another program to go on saying it with [`resume`].
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Who asked the program before this one.
struct Handed(OwnedFd);

/// The reply to somebody whose socket another program has handed over.
pub(crate) fn resume(socket: OwnedFd) -> Box<dyn Reply> {
    Box::new(Handed(socket))
}

impl Handed {
    /// Never waits: who asked and does not read has its socket's buffer, and no more.
    fn write(&self, answer: &Answer) {
        let mut line = serde_json::to_vec(answer).expect("answers are plain JSON");
        line.push(b'\n');
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if let Err(errno) = rustix::net::send(&self.0, &line, flags) {
            debug!("who asked is gone: {errno}");
        }
    }
}

impl Reply for Handed {
    fn say(&mut self, text: &str) {
        self.write(&Answer::Say(text.into()));
    }

    fn status(&mut self, status: Status) {
        self.write(&Answer::Status(Box::new(status)));
    }

    fn done(self: Box<Self>) {
        self.write(&Answer::Done(true));
    }

    fn failed(self: Box<Self>, why: &str) {
        self.write(&Answer::Failed(why.into()));
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

/// For a signal, whose sender has the log to look at.
pub(crate) struct Nobody;

impl Reply for Nobody {
    fn say(&mut self, _: &str) {}
    fn status(&mut self, _: Status) {}
    fn done(self: Box<Self>) {}
    fn failed(self: Box<Self>, _: &str) {}
}
