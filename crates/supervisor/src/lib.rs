//! The master. It owns what must outlive a worker, the listening sockets, the configuration and
//! the shared memory of the metrics, and it starts, watches and replaces the children: the workers,
//! which serve, and the admin, which tells. It serves nobody itself and never waits for a child.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used))]

mod activation;
#[cfg(test)]
#[path = "../../../tests/rust/addresses.rs"]
mod addresses;
mod balance;
mod child;
mod command;
mod command_line;
mod control_socket;
mod deal;
mod epochs;
mod errand;
mod fleet;
mod handover;
mod inquiries;
mod interests;
mod limits;
mod listeners;
mod master;
mod member;
mod monitors;
mod names;
mod notify;
mod pid_file;
mod quotas;
mod rehearsal;
mod ring;
mod sessions;
mod signals;
mod slots;
mod state;
mod status;
mod trial;
mod unix_socket;
mod watchdog;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use cashew_config::Snapshot;
use cashew_process::explain_limit;

pub use child::{Role, Serve, Spawn};
pub use command::{Answer, Command};
pub use command_line::CommandLine;
pub use control_socket::{AskError, ControlSocketError, ask, default_paths};
pub use listeners::ListenError;
pub use rehearsal::{Rehearsal, rehearse};
pub use status::{AdminStatus, Outcome, PoolStatus, Status, WorkerStatus};
pub use trial::{Program, Verdict};

/// What an instance is to be.
pub struct Options {
    pub snapshot: Snapshot,
    /// Where the snapshot came from, to be loaded again when asked for.
    pub conf_file: PathBuf,
    /// What overrules the snapshot, and those after it.
    pub command_line: CommandLine,
    /// Whether there is one, which tells the statistics.
    pub has_admin: bool,
    pub spawn: Spawn,
    /// To become another version of it.
    pub program: Program,
    /// As it was before the log file took its place, where there is one.
    pub standard_error: Option<OwnedFd>,
    /// Written when everybody is ready, removed at the end.
    pub pid_file: Option<PathBuf>,
    /// Called once, when everybody is ready.
    pub on_ready: Box<dyn FnOnce()>,
}

/// What another program that takes over has to know beside what is handed over.
pub struct TakeOver {
    pub conf_file: PathBuf,
    pub spawn: Spawn,
    pub program: Program,
    /// Both as at the start of the instance.
    pub command_line: CommandLine,
    pub pid_file: Option<PathBuf>,
}

/// Why an instance did not start, or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A child ended or failed before everybody was ready.
    #[error("{role} did not start: it {why}")]
    Start { role: Role, why: String },
    #[error(transparent)]
    ControlSocket(#[from] ControlSocketError),
    #[error("{role} can neither go on nor be stopped alone")]
    Stuck { role: Role },
    #[error("cannot write pid file {path}: {source}")]
    PidFile { path: PathBuf, source: io::Error },
    #[error("cannot take over: {0}")]
    TakeOver(String),
    #[error("cannot {step}: {source}")]
    System { step: &'static str, source: io::Error },
}

/// Runs an instance until it is told to stop. SIGTERM stops it gracefully, SIGINT or a second
/// SIGTERM at once; both are a success.
pub fn run(options: Options) -> Result<(), Error> {
    master::run(options)
}

/// Goes on with an instance where another program of the same process has stopped, with what that
/// one handed over. When its own workers do not get ready this process becomes that program again.
pub fn take_over(input: OwnedFd, options: TakeOver) -> Result<(), Error> {
    master::take_over(input, options)
}

trait Step<T> {
    fn step(self, step: &'static str) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, step: &'static str) -> Result<T, Error> {
        self.map_err(|source| Error::System { step, source: explain_limit(source.into()) })
    }
}
