//! Operators' commands, and the answers at the control socket.

use std::path::PathBuf;
use std::time::Duration;

use cashew_process::log::{EventRecord, LEVEL_MAX};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::status::Status;

/// The longest that an instance may be asked to drain, as `drain_delay`.
pub const DRAIN_MAX_SECONDS: u64 = 3600;

/// Longest command at the control socket, in bytes of JSON. What it carries fits in a message to the process that does it.
pub const COMMAND_SIZE_MAX: usize = 48 << 10;

/// In how many steps a server is drained, and how many seconds are between two.
pub const STEPS_DEFAULT: u16 = 4;
pub const EVERY_DEFAULT: u64 = 15;
pub const STEPS_MAX: u16 = 100;
pub const EVERY_MAX: u64 = 3600;

fn steps_default() -> u16 {
    STEPS_DEFAULT
}

fn every_default() -> u64 {
    EVERY_DEFAULT
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// Load the configuration file and put it into effect.
    Reload {
        /// Only say what would change, and the share of keys that would move.
        #[serde(default)]
        dry_run: bool,
    },
    /// Replace the program by another version.
    Upgrade {
        /// `None`: the path that this program was started from.
        #[serde(default)]
        binary: Option<PathBuf>,
    },
    /// How the instance is.
    Status,
    /// Have another server of a group, which has its data already, take the writes.
    Failover {
        /// One that has a master and its replicas, or groups with replicas.
        pool: String,
        /// The group, where the pool has several and the server's name does not say it.
        #[serde(default)]
        group: Option<String>,
        /// By its name or address. It has been promoted, as by REPLICAOF NO ONE.
        server: String,
        /// Also if the server does not say that it is a master.
        #[serde(default)]
        force: bool,
    },
    /// The events that are kept.
    Events {
        /// Only those with higher numbers than this.
        #[serde(default)]
        since: u64,
        /// Only those of this kind.
        #[serde(default)]
        kind: Option<String>,
    },
    /// Something about the move of a pool to another.
    Migrate {
        action: MoveAction,
        /// The route whose `migrate` node it is about. It may be left out where there is one.
        #[serde(default)]
        route: Option<String>,
        /// With `start`: what the other pool has is removed.
        #[serde(default)]
        overwrite: bool,
        /// With `cut_over` and `roll_back`: keys are left behind that are not where their names place them.
        #[serde(default)]
        ignore_misplaced: bool,
        /// With `start`: servers of the other pool may evict keys for lack of memory.
        #[serde(default)]
        evicting_target: bool,
    },
    /// Has keys go to another pool, by the list of keys of a route, with what they have.
    MoveKeys {
        /// It may be left out where one route lists keys.
        #[serde(default)]
        route: Option<String>,
        /// The pool that they are in.
        from: String,
        /// The pool that they are to be in.
        to: String,
        keys: Vec<String>,
        /// What the other pool has by these names is lost.
        #[serde(default)]
        overwrite: bool,
    },
    /// Something about a hot key.
    HotKey {
        /// It may be left out where one pool has a node that keeps its hot keys.
        #[serde(default)]
        pool: Option<String>,
        /// With escapes, as `cashew hot` shows it.
        #[serde(with = "crate::key")]
        #[schemars(with = "String")]
        key: Vec<u8>,
        action: HotAction,
        /// The pool that it goes to. It may be left out where `hot_keys` names one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
        /// With `split`, over how many servers, its own among them. Without it, as many as the rule says, or 4.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 2, max = 16))]
        copies: Option<u8>,
    },
    /// Stop when load balancers and clients have had time to notice.
    Drain {
        /// How long that is. Without it, `drain_delay` of the configuration, or 10 if that is 0.
        #[serde(default)]
        #[schemars(range(min = 0, max = 3600))]
        seconds: Option<u64>,
    },
    /// Take that back.
    Undrain,
    /// Take the keys of a server away in steps, until it has none.
    DrainServer {
        pool: String,
        /// By its name or address.
        server: String,
        /// In how many steps.
        #[serde(default = "steps_default")]
        #[schemars(range(min = 1, max = 100))]
        steps: u16,
        /// Seconds from each step to the next.
        #[serde(default = "every_default")]
        #[schemars(range(min = 1, max = 3600))]
        every: u64,
    },
    /// Give the server its keys again, in steps.
    UndrainServer {
        pool: String,
        /// By its name or address.
        server: String,
        /// In how many steps.
        #[serde(default = "steps_default")]
        #[schemars(range(min = 1, max = 100))]
        steps: u16,
        /// Seconds from each step to the next.
        #[serde(default = "every_default")]
        #[schemars(range(min = 1, max = 3600))]
        every: u64,
    },
    /// Have a server have a share of its keys, at once.
    Weight {
        pool: String,
        /// By its name or address.
        server: String,
        /// Of the keys that it has by its weight in the configuration. With 0 it is drained, with 100 it has them all.
        #[schemars(range(min = 0, max = 100))]
        percent: u16,
    },
    /// Log more or less.
    LogLevel {
        /// 0 to 3 are errors, 4 warnings, 5 and 6 information, 7 debugging, 8 to 11 everything.
        #[schemars(range(min = 0, max = 11))]
        level: u8,
    },
}

/// What an operator does about a hot key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HotAction {
    /// Replies to reads of it are kept.
    Cache,
    /// It goes to another pool, by the list of keys of a route.
    Move,
    /// Reads of it may go to copies on other servers.
    Split,
    /// None of these is so any more.
    Undo,
}

/// What an operator does about a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// Whether its numbers are within their limits. An error says what they are.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::LogLevel { level } if *level > LEVEL_MAX => {
                Err(format!("level is a number from 0 to {LEVEL_MAX}"))
            }
            Self::Drain { seconds: Some(seconds) } if *seconds > DRAIN_MAX_SECONDS => {
                Err(format!("a drain takes at most {DRAIN_MAX_SECONDS} s"))
            }
            Self::DrainServer { steps, every, .. } | Self::UndrainServer { steps, every, .. }
                if !(1..=STEPS_MAX).contains(steps) || !(1..=EVERY_MAX).contains(every) =>
            {
                Err(format!(
                    "steps are from 1 to {STEPS_MAX}, and every is from 1 to {EVERY_MAX} s"
                ))
            }
            Self::Weight { percent, .. } if *percent > 100 => {
                Err("percent is a number from 0 to 100".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// How long the instance may take to the next line of its answer.
    pub fn answer_timeout(&self) -> Duration {
        match self {
            // Requests in flight may be waited for as long as `reload_drain_timeout` can be.
            Self::Reload { .. }
            | Self::Upgrade { .. }
            | Self::Migrate { .. }
            | Self::MoveKeys { .. } => Duration::from_secs(3600 + 120),
            Self::Drain { .. } => Duration::from_secs(DRAIN_MAX_SECONDS + 30),
            // Each step has a line.
            Self::DrainServer { every, .. } | Self::UndrainServer { every, .. } => {
                Duration::from_secs(every + 3600 + 120)
            }
            Self::Weight { .. } => Duration::from_secs(3600 + 120),
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
    pub fn unanswered(&self) -> &'static str {
        match self {
            Self::Failover { .. } => "it is withdrawn, unless it has happened already",
            Self::Reload { .. }
            | Self::Upgrade { .. }
            | Self::Migrate { .. }
            | Self::MoveKeys { .. }
            | Self::HotKey { .. }
            | Self::Drain { .. }
            | Self::Undrain
            | Self::DrainServer { .. }
            | Self::UndrainServer { .. }
            | Self::Weight { .. }
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
    /// Whether something has changed. Versions before this one always say so.
    Done(bool),
    /// The reason of the failure.
    Failed(String),
}
