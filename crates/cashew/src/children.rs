//! How the master's children are started and what they do first.

use std::error::Error;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cashew_process::log;
use cashew_supervisor::{Role, Spawn};
use tracing::{error, info, warn};

use crate::arguments::LogArguments;
use crate::{admin, discovery};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

pub(crate) fn spawn_processes() -> Spawn {
    Spawn::Processes(Box::new(|role, log_level, started| {
        let started_at = started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        // The running image, even if its file has been replaced.
        let mut command = Command::new("/proc/self/exe");
        // So `ps` shows "cashew: worker --slot 0".
        command.arg0("cashew:");
        match role {
            Role::Worker { slot } => command.args(["worker", "--slot", &slot.to_string()]),
            Role::Discovery => command.arg("discovery"),
            Role::Admin => command.args(["admin", "--started-at", &started_at.to_string()]),
        };
        command.args(["--log-level", &log_level.to_string()]);
        command.args(["--log-format", log::current_format().name()]);
        command
    }))
}

pub(crate) fn spawn_threads() -> Spawn {
    Spawn::Threads {
        worker: serve_worker,
        admin: |control| admin::serve(control, SystemTime::now()),
        discovery: discovery::serve,
    }
}

pub(crate) fn worker(slot: u32, log: &LogArguments) -> ExitCode {
    child(format!("worker-{slot}"), log, serve_worker)
}

pub(crate) fn admin(log: &LogArguments, started_at: u64) -> ExitCode {
    let started = UNIX_EPOCH + Duration::from_secs(started_at);
    child("admin".into(), log, |control| admin::serve(control, started))
}

pub(crate) fn discovery(log: &LogArguments) -> ExitCode {
    child("discovery".into(), log, discovery::serve)
}

fn serve_worker(control: OwnedFd) -> Result<()> {
    Ok(cashew_worker::run(control)?)
}

fn child(name: String, log: &LogArguments, serve: impl FnOnce(OwnedFd) -> Result<()>) -> ExitCode {
    log::init(name, log.log_level, log.log_format);
    if let Err(error) = cashew_process::leave_signals_to_master() {
        warn!("signals to all processes of the instance end this one: {error}");
    }
    if let Err(kept) = cashew_process::harden() {
        info!("this process could not give up all that it does not need: {kept}");
    }
    write_log_aside();
    let status = match take_control().map_err(Into::into).and_then(serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error}");
            ExitCode::FAILURE
        }
    };
    log::flush();
    status
}

/// The log may be slow, which clients are not to notice.
pub(crate) fn write_log_aside() {
    if let Err(error) = log::write_aside() {
        warn!("the log has no thread of its own: {error}");
    }
}

fn take_control() -> io::Result<OwnedFd> {
    set_process_name()?;
    take_stdin()
}

/// The descriptor passed as standard input. It is closed when its new owner closes it.
pub(crate) fn take_stdin() -> io::Result<OwnedFd> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(input)
}

/// Started from /proc/self/exe, the process would be named "exe".
pub(crate) fn set_process_name() -> io::Result<()> {
    Ok(rustix::thread::set_name(c"cashew")?)
}
