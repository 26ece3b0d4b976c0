//! Running in the background. The process starts itself again, as it does for every child, and
//! waits until the new one has reported its start on a pipe. So `cashew -d` returns 0 only when the
//! instance serves.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use crate::children::set_process_name;
use crate::output::print_line;

/// The last line of a report: the start succeeded or failed.
const READY: &str = "ready\n";
const FAILED: &str = "failed\n";

/// Runs in the process that the operator started.
pub(crate) fn start() -> ExitCode {
    match start_and_listen() {
        Ok(report) => {
            if let Some(notes) = report.strip_suffix(READY) {
                notes.lines().for_each(print_line);
                return ExitCode::SUCCESS;
            }
            match report.strip_suffix(FAILED) {
                Some(notes) => notes.lines().for_each(print_line),
                None => print_line(format_args!("{report}cashew: ended before it served")),
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            print_line(format_args!("cashew: cannot run in the background: {error}"));
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
    // The command holds the writing end and would keep the pipe open.
    drop(command);
    let mut report = String::new();
    reader.read_to_string(&mut report)?;
    Ok(report)
}

/// The background process's end of the pipe. Closed once the report is made.
pub(crate) struct Report(RefCell<Option<File>>);

impl Report {
    /// Leaves the terminal's session and takes the pipe from standard input.
    pub(crate) fn take() -> io::Result<Self> {
        set_process_name()?;
        rustix::process::setsid()?;
        let pipe = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        Ok(Self(RefCell::new(Some(pipe))))
    }

    pub(crate) fn ready(&self) {
        self.write(READY);
        self.0.take();
    }

    pub(crate) fn failed(&self, why: &str) {
        self.note(why);
        self.write(FAILED);
        self.0.take();
    }

    /// A line for the operator.
    pub(crate) fn note(&self, line: &str) {
        self.write(&format!("{line}\n"));
    }

    fn write(&self, text: &str) {
        if let Some(mut pipe) = self.0.borrow().as_ref() {
            // The operator may have stopped waiting.
            let _ = pipe.write_all(text.as_bytes());
        }
    }
}
