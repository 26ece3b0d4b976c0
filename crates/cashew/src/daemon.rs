//! Running in the background. The process starts itself anew, as it does for every child, and stays
//! until the new one has said on a pipe how its start went. So `cashew -d` returns with 0 only when
//! the instance serves.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use crate::arguments::Arguments;
use crate::children::set_process_name;

const READY: &str = "ready";

/// The part of the process that the operator started.
pub(crate) fn start(arguments: &Arguments) -> ExitCode {
    if arguments.output.is_none() {
        eprintln!("cashew: there is no log: running in the background needs --output for one");
    }
    match start_and_listen() {
        Ok(report) if report == READY => ExitCode::SUCCESS,
        Ok(report) if report.is_empty() => {
            eprintln!("cashew: ended before it served");
            ExitCode::FAILURE
        }
        Ok(report) => {
            eprintln!("{report}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("cashew: cannot run in the background: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start_and_listen() -> io::Result<String> {
    let (mut reader, writer) = io::pipe()?;
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| OsString::from("cashew"));
    let mut command = Command::new("/proc/self/exe");
    command.arg0(name).args(arguments).arg("--report-on-stdin");
    command.stdin(writer).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn()?;
    // The command has the writing end, and would keep the pipe open.
    drop(command);
    let mut report = String::new();
    reader.read_to_string(&mut report)?;
    Ok(report)
}

/// The background process's end of the pipe. Closes when a report is made.
pub(crate) struct Report(Cell<Option<File>>);

impl Report {
    /// Leaves the session of the terminal and takes the pipe from standard input.
    pub(crate) fn take() -> io::Result<Self> {
        set_process_name()?;
        rustix::process::setsid()?;
        let pipe = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        Ok(Self(Cell::new(Some(pipe))))
    }

    pub(crate) fn ready(&self) {
        self.say(READY);
    }

    pub(crate) fn failed(&self, why: &str) {
        self.say(why);
    }

    fn say(&self, text: &str) {
        if let Some(mut pipe) = self.0.take() {
            // Who started this may have given up waiting.
            let _ = pipe.write_all(text.as_bytes());
        }
    }
}
