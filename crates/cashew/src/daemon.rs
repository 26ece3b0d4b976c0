//! Running in the background. The process starts itself anew, as it does for every child, and stays
//! until the new one has said on a pipe how its start went. So `cashew -d` returns with 0 only when
//! the instance serves.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use crate::children::set_process_name;
use crate::tell::say;

/// The last lines of reports on a start that went well and on one that did not.
const READY: &str = "ready\n";
const FAILED: &str = "failed\n";

/// The part of the process that the operator started.
pub(crate) fn start() -> ExitCode {
    match start_and_listen() {
        Ok(report) => {
            if let Some(notes) = report.strip_suffix(READY) {
                notes.lines().for_each(say);
                return ExitCode::SUCCESS;
            }
            match report.strip_suffix(FAILED) {
                Some(notes) => notes.lines().for_each(say),
                None => say(format_args!("{report}cashew: ended before it served")),
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            say(format_args!("cashew: cannot run in the background: {error}"));
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
pub(crate) struct Report(RefCell<Option<File>>);

impl Report {
    /// Leaves the session of the terminal and takes the pipe from standard input.
    pub(crate) fn take() -> io::Result<Self> {
        set_process_name()?;
        rustix::process::setsid()?;
        let pipe = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        Ok(Self(RefCell::new(Some(pipe))))
    }

    pub(crate) fn ready(&self) {
        self.say(READY);
        self.0.take();
    }

    pub(crate) fn failed(&self, why: &str) {
        self.note(why);
        self.say(FAILED);
        self.0.take();
    }

    /// A line for who started this.
    pub(crate) fn note(&self, line: &str) {
        self.say(&format!("{line}\n"));
    }

    fn say(&self, text: &str) {
        if let Some(mut pipe) = self.0.borrow().as_ref() {
            // Who started this may have given up waiting.
            let _ = pipe.write_all(text.as_bytes());
        }
    }
}
