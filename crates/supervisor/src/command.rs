//! Operators' commands and the answers to them.
//!
//! On the control socket a command is one line of JSON. Each answer is a line of JSON too; the last
//! one is [`Answer::Done`] or [`Answer::Failed`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use cashew_process::log::EventRecord;
use rustix::net::SendFlags;
use serde::{Deserialize, Serialize};
use tracing::debug;

use crate::status::Status;

/// The longest that an instance may be asked to drain, as `drain_delay`.
pub const DRAIN_MAX_SECONDS: u64 = 3600;

/// A command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// Load the configuration file and put it into effect.
    Reload {
        /// Only report what would change.
        #[serde(default)]
        dry_run: bool,
    },
    /// Replace the program by another version.
    Upgrade {
        /// `None`: the path that this program was started from.
        #[serde(default)]
        binary: Option<PathBuf>,
    },
    Status,
    /// Have another server of a group, which has its data already, take the writes.
    Failover {
        pool: String,
        /// `None` where the server's name says it, or there is one group.
        #[serde(default)]
        group: Option<String>,
        server: String,
        /// Also if the server does not say that it is a master.
        #[serde(default)]
        force: bool,
    },
    /// The events that are kept.
    Events {
        /// Only those with higher numbers.
        #[serde(default)]
        since: u64,
        /// Only those of this kind.
        #[serde(default)]
        kind: Option<String>,
    },
    /// Something about the move of a pool to another.
    Migrate {
        action: MoveAction,
        /// `None` where there is one move.
        #[serde(default)]
        route: Option<String>,
        /// With [`MoveAction::Start`]: what the other pool has is removed.
        #[serde(default)]
        overwrite: bool,
        /// With those that change who serves: keys are left behind that are not where their names place them.
        #[serde(default)]
        ignore_misplaced: bool,
        /// With [`MoveAction::Start`]: servers of the other pool may evict keys for lack of memory.
        #[serde(default)]
        evicting_target: bool,
    },
    /// Has keys go to another pool, by the list of keys of a route, with what they have.
    MoveKeys {
        /// `None` where one route lists keys.
        #[serde(default)]
        route: Option<String>,
        from: String,
        to: String,
        keys: Vec<String>,
        /// What the other pool has by these names is lost.
        #[serde(default)]
        overwrite: bool,
    },
    /// Something about a hot key.
    HotKey {
        /// `None` where one pool has a node that keeps its hot keys.
        #[serde(default)]
        pool: Option<String>,
        key: Vec<u8>,
        action: HotAction,
    },
    /// Stop when load balancers and clients have had time to notice.
    Drain {
        /// How long that is; `None` is `drain_delay`.
        #[serde(default)]
        seconds: Option<u64>,
    },
    /// Take that back.
    Undrain,
    /// Log more or less: 0..=11 as nutcracker's `-v`.
    LogLevel {
        level: u8,
    },
}

/// What an operator does about a hot key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HotAction {
    /// Replies to reads of it are kept.
    Cache,
    /// They are not any more.
    Undo,
}

/// What an operator does about a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveAction {
    Start,
    Pause,
    Resume,
    Verify,
    CutOver,
    RollBack,
}

impl MoveAction {
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Verify => "verify",
            Self::CutOver => "cut-over",
            Self::RollBack => "roll-back",
        }
    }
}

impl Command {
    /// How long the instance may take to the next line of its answer.
    pub fn answer_timeout(&self) -> Duration {
        match self {
            // Requests in flight may be waited for as long as `reload_drain_timeout` can be.
            Self::Reload { .. }
            | Self::Upgrade { .. }
            | Self::Migrate { .. }
            | Self::MoveKeys { .. } => Duration::from_secs(3600 + 120),
            Self::Drain { .. } => Duration::from_secs(DRAIN_MAX_SECONDS + 30),
            Self::Status
            | Self::Events { .. }
            | Self::LogLevel { .. }
            | Self::HotKey { .. }
            | Self::Undrain => Duration::from_secs(30),
            // The server is asked for its role, and workers have five seconds.
            Self::Failover { .. } => Duration::from_secs(15),
        }
    }

    /// What becomes of it if nobody waits for its answer any more.
    pub(crate) fn unanswered(&self) -> &'static str {
        match self {
            Self::Failover { .. } => "it is withdrawn, unless it has happened already",
            Self::Reload { .. }
            | Self::Upgrade { .. }
            | Self::Migrate { .. }
            | Self::MoveKeys { .. }
            | Self::HotKey { .. }
            | Self::Drain { .. }
            | Self::Undrain
            | Self::Status
            | Self::Events { .. }
            | Self::LogLevel { .. } => "the command may still be carried out",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// A line of information.
    Say(String),
    Status(Box<Status>),
    Events(Vec<EventRecord>),
    Done(bool),
    /// The reason of the failure.
    Failed(String),
}

/// The answer to a command: any number of lines, then the outcome.
pub(crate) trait Reply {
    fn line(&mut self, text: &str);
    fn status(&mut self, status: Status);
    fn events(&mut self, events: Vec<EventRecord>);
    fn done(self: Box<Self>);
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
    fn failed(self: Box<Self>, _: &str) {}
}
