//! The master. It owns what must outlive a worker: the listening sockets, the configuration and the
//! shared memory of the metrics. It starts, watches and replaces the children: the workers, which
//! serve clients, and the admin process, which serves statistics. It serves no clients itself and
//! never waits for a child.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used))]

mod activation;
#[cfg(test)]
#[path = "../../../tests/rust/addresses.rs"]
mod addresses;
mod audited;
mod background_task;
mod balance;
mod child;
mod command;
mod command_line;
mod control_socket;
mod deal;
mod discovered;
mod epochs;
mod fleet;
mod foreign;
mod found;
mod found_state;
mod handover;
mod interests;
mod joining;
mod limits;
mod listeners;
mod maps;
mod master;
mod member;
mod monitors;
mod names;
mod notify;
mod pid_file;
mod primaries;
mod quotas;
mod rehearsal;
mod relocations;
mod retry;
mod ring;
mod sessions;
mod signals;
mod slots;
mod state;
mod state_file;
mod trial;
mod unix_socket;
mod watchdog;
mod worker_queries;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use cashew_api::status;
use cashew_config::Snapshot;
use cashew_process::explain_limit;

pub use cashew_discovery::{HeldStatus, MaintenanceStatus, SourceStatus};
pub use child::{Role, Serve, Spawn};
pub use command::{Answer, COMMAND_SIZE_MAX, Command, DRAIN_MAX_SECONDS, HotAction, MoveAction};
pub use command_line::CommandLine;
pub use control_socket::{AskError, ControlSocketError, ask, default_paths};
pub use foreign::read_state;
pub use listeners::ListenError;
pub use rehearsal::{Rehearsal, rehearse};
pub use status::{
    AccessLogStatus, AdminStatus, AuditLogStatus, CacheStatus, CertificateStatus, ClusterStatus,
    DrainStatus, ExternalAuthStatus, GroupStatus, HotKeyStatus, HotWaitStatus, MemberStatus,
    Outcome, PoolStatus, SeedStatus, SentinelStatus, ServerStatus, ShardSlotsStatus, ShardStatus,
    SourceChange, Status, SwitchStatus, TracingStatus, UserStatus, WorkerStatus,
};
pub use trial::{Program, Verdict};

/// Options of an instance.
pub struct Options {
    pub snapshot: Snapshot,
    /// The file that the snapshot was loaded from, for reloads.
    pub conf_file: PathBuf,
    /// Overrides this snapshot and later ones.
    pub command_line: CommandLine,
    /// Whether there is an admin process, for statistics.
    pub has_admin: bool,
    pub spawn: Spawn,
    /// For an upgrade to another version.
    pub program: Program,
    /// Standard error from before a log file replaced it.
    pub standard_error: Option<OwnedFd>,
    /// Written when all children are ready, removed at the end.
    pub pid_file: Option<PathBuf>,
    /// Called once, when all children are ready.
    pub on_ready: Box<dyn FnOnce()>,
}

/// What a program that takes over needs beside the handover.
pub struct TakeOver {
    pub conf_file: PathBuf,
    pub spawn: Spawn,
    pub program: Program,
    /// Both as at the start of the instance.
    pub command_line: CommandLine,
    pub pid_file: Option<PathBuf>,
}

/// Why an instance did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A child ended or failed before all were ready.
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

/// Runs an instance until it is told to stop. SIGTERM stops it gracefully; SIGINT or a second
/// SIGTERM at once. Both are a success.
pub fn run(options: Options) -> Result<(), Error> {
    master::run(options)
}

/// Continues an instance where another program of the same process has stopped, from its handover.
/// If this program's workers do not get ready, the process becomes the previous program again.
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
