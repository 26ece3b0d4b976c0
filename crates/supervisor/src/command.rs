//! Operators' commands and the answers to them.
//!
//! On the control socket a command is one line of JSON. Each answer is a line of JSON too; the last
//! one is [`Answer::Done`] or [`Answer::Failed`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cashew_process::log::EventRecord;
use rustix::net::SendFlags;
use tracing::debug;

use crate::status::Status;

pub use cashew_api::{Answer, COMMAND_SIZE_MAX, Command, DRAIN_MAX_SECONDS, HotAction, MoveAction};

/// The answer to a command: any number of lines, then the outcome.
pub(crate) trait Reply {
    fn line(&mut self, text: &str);
    fn status(&mut self, status: Status);
    fn events(&mut self, events: Vec<EventRecord>);
    fn done(self: Box<Self>);
    /// It is done, and there was nothing to change.
    fn unchanged(self: Box<Self>);
    fn failed(self: Box<Self>, why: &str);

    /// The socket on which the answers go, so that the next program can continue with [`resume`].
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// False once whoever asked has left.
    fn is_awaited(&self) -> bool {
        true
    }
}

/// The operator whose command was received by the program before this one.
struct Handed(OwnedFd);

/// The reply for an operator whose socket the previous program handed over.
pub(crate) fn resume(socket: OwnedFd) -> Box<dyn Reply> {
    Box::new(Handed(socket))
}

impl Handed {
    /// Never blocks: an operator who does not read gets what fits in the socket's buffer.
    fn write(&self, answer: &Answer) {
        let mut line = serde_json::to_vec(answer).expect("answers are plain JSON");
        line.push(b'\n');
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if let Err(errno) = rustix::net::send(&self.0, &line, flags) {
            debug!("an operator has left before the answer: {errno}");
        }
    }
}

impl Reply for Handed {
    fn line(&mut self, text: &str) {
        self.write(&Answer::Say(text.into()));
    }

    fn status(&mut self, status: Status) {
        self.write(&Answer::Status(Box::new(status)));
    }

    fn events(&mut self, events: Vec<EventRecord>) {
        self.write(&Answer::Events(events));
    }

    fn done(self: Box<Self>) {
        self.write(&Answer::Done(true));
    }

    fn unchanged(self: Box<Self>) {
        self.write(&Answer::Done(false));
    }

    fn failed(self: Box<Self>, why: &str) {
        self.write(&Answer::Failed(why.into()));
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

/// For a signal: its sender reads the log.
pub(crate) struct Nobody;

impl Reply for Nobody {
    fn line(&mut self, _: &str) {}
    fn status(&mut self, _: Status) {}
    fn events(&mut self, _: Vec<EventRecord>) {}
    fn done(self: Box<Self>) {}
    fn unchanged(self: Box<Self>) {}
    fn failed(self: Box<Self>, _: &str) {}
}
