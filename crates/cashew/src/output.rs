//! Answers without a running instance: version, help, statistics, a test of the configuration. They
//! go to standard error, as with nutcracker.

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

/// The kernel's own limit if there is no other (`fs.nr_open`).
const OPEN_FILES_MAX: u64 = 1 << 20;

/// Prints a line on standard error. A failure is ignored: the reader may be gone or the disk full.
pub(crate) fn print_line(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Version, help and statistics may be requested together.
pub(crate) fn about(arguments: &Arguments) -> ExitCode {
    print_line(format_args!("This is cashew-{VERSION}"));
    if arguments.help {
        print_line(format_args!("\n{}", Arguments::help()));
    }
    if arguments.describe_stats {
        print_line(format_args!("\n{}", cashew_admin::describe()));
    }
    ExitCode::SUCCESS
}

/// Exits with 1, as nutcracker does, where clap would use 2. A command's help is no misuse.
pub(crate) fn misuse(error: &clap::Error) -> ExitCode {
    if error.kind() == ErrorKind::DisplayHelp {
        print_line(error);
        return ExitCode::SUCCESS;
    }
    let message = error.to_string();
    print_line(message.trim_end());
    if !message.contains("Usage:") {
        print_line("\nUsage: cashew [OPTIONS]");
    }
    print_line("\nFor more information, try '--help'.");
    ExitCode::FAILURE
}

pub(crate) fn test_conf(path: &Path) -> ExitCode {
    let file = path.display();
    match cashew_config::load(path) {
        Ok(loaded) => {
            for remark in loaded.warnings.iter().chain(&loaded.notes) {
                print_line(remark);
            }
            print_line(format_args!("cashew: configuration file '{file}' syntax is ok"));
            for line in route_lines(&loaded.snapshot) {
                print_line(line);
            }
            print_line(memory_bound(&loaded.snapshot));
            ExitCode::SUCCESS
        }
        Err(errors) => {
            print_line(errors);
            print_line(format_args!("cashew: configuration file '{file}' syntax is invalid"));
            ExitCode::FAILURE
        }
    }
}

/// The tree of each route.
fn route_lines(snapshot: &Snapshot) -> Vec<String> {
    let mut lines = Vec::new();
    for pool in &snapshot.pools {
        if let Some(route) = &pool.route {
            lines.push(format!("route {}, at {}", pool.name, pool.listen));
            lines.extend(route.lines().into_iter().map(|line| format!("  {line}")));
        }
    }
    lines
}

/// The bound for an instance started like this process.
pub(crate) fn memory_bound(snapshot: &Snapshot) -> MemoryBound {
    let inherited = getrlimit(Resource::Nofile).current.unwrap_or(OPEN_FILES_MAX);
    let driver = cashew_worker::driver_memory(snapshot.global.io_engine);
    MemoryBound::new(snapshot, snapshot.global.max_open_files.unwrap_or(inherited), driver)
}
