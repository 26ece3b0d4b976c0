//! What operators ask the master for, by signals and by its control socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::net::SendFlags;
use serde_json::json;
use tracing::debug;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Put the configuration file into effect; `dry_run` only tells what that would change.
    Reload { dry_run: bool },
    /// Become another version of the program; where the one that runs was found, by default.
    Upgrade { binary: Option<PathBuf> },
}

/// Who asked, and hears of it: any number of lines, then how it ended.
pub(crate) trait Reply {
    fn say(&mut self, text: &str);
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
    fn write(&self, line: serde_json::Value) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if let Err(errno) = rustix::net::send(&self.0, format!("{line}\n").as_bytes(), flags) {
            debug!("who asked for the upgrade is gone: {errno}");
        }
    }
}

impl Reply for Handed {
    fn say(&mut self, text: &str) {
        self.write(json!({ "say": text }));
    }

    fn done(self: Box<Self>) {
        self.write(json!({ "done": true }));
    }

    fn failed(self: Box<Self>, why: &str) {
        self.write(json!({ "failed": why }));
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

/// For a signal, whose sender has the log to look at.
pub(crate) struct Nobody;

impl Reply for Nobody {
    fn say(&mut self, _: &str) {}
    fn done(self: Box<Self>) {}
    fn failed(self: Box<Self>, _: &str) {}
}
