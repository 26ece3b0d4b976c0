//! What is asked of the executable without running an instance. As nutcracker does, it answers on
//! standard error.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use cashew_config::Snapshot;
use cashew_engine::MemoryBound;
use clap::error::ErrorKind;
use rustix::process::{Resource, getrlimit};

use crate::arguments::Arguments;

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The kernel's own limit, where there is no other (`fs.nr_open`).
const OPEN_FILES_MAX: u64 = 1 << 20;

/// A line on standard error. Who reads may have gone and the disk may be full, which changes nothing
/// of what the line tells, so that is no failure.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Version, help and statistics can be asked for at once.
pub(crate) fn about(arguments: &Arguments) -> ExitCode {
    say(format_args!("This is cashew-{VERSION}"));
    if arguments.help {
        say(format_args!("\n{}", Arguments::help()));
    }
    if arguments.describe_stats {
        say(format_args!("\n{}", cashew_admin::describe()));
    }
    ExitCode::SUCCESS
}

/// Exits with nutcracker's 1, where clap would with 2. The help of a command is no misuse.
pub(crate) fn misuse(error: &clap::Error) -> ExitCode {
    if error.kind() == ErrorKind::DisplayHelp {
        say(error);
        return ExitCode::SUCCESS;
    }
    let message = error.to_string();
    say(message.trim_end());
    if !message.contains("Usage:") {
        say("\nUsage: cashew [OPTIONS]");
    }
    say("\nFor more information, try '--help'.");
    ExitCode::FAILURE
}

pub(crate) fn test_conf(path: &Path) -> ExitCode {
    let file = path.display();
    match cashew_config::load(path) {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                say(warning);
            }
            say(format_args!("cashew: configuration file '{file}' syntax is ok"));
            say(memory_bound(&loaded.snapshot));
            ExitCode::SUCCESS
        }
        Err(errors) => {
            say(errors);
            say(format_args!("cashew: configuration file '{file}' syntax is invalid"));
            ExitCode::FAILURE
        }
    }
}

/// Of an instance that is started as this process was.
fn memory_bound(snapshot: &Snapshot) -> MemoryBound {
    let inherited = getrlimit(Resource::Nofile).current.unwrap_or(OPEN_FILES_MAX);
    let driver = cashew_worker::driver_memory(snapshot.global.io_engine);
    MemoryBound::new(snapshot, snapshot.global.max_open_files.unwrap_or(inherited), driver)
}
