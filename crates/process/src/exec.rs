//! Becoming another program, with the same process id, parent and children.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;

use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};

/// Goes on as another program, given by its file, with the environment as it is; returns only when
/// that fails. What is not to survive it must be closed on exec. What signals do is forgotten, so
/// they should be [held](hold_signals).
pub fn replace(program: impl AsFd, argv: &[OsString]) -> io::Error {
    let run = || {
        let argv = argv.iter().cloned().map(c_string).collect::<io::Result<Vec<_>>>()?;
        let variables = std::env::vars_os().map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            c_string(name)
        });
        let environment = variables.collect::<io::Result<Vec<_>>>()?;
        match nix::unistd::fexecve(program.as_fd(), &argv, &environment) {
            Ok(never) => match never {},
            Err(errno) => Err(errno.into()),
        }
    };
    let result: io::Result<()> = run();
    result.expect_err("another program does not return")
}

/// Lets signals wait from now on, also in the program that this process [becomes](replace). For a
/// process with one thread.
pub fn hold_signals() -> io::Result<()> {
    Ok(sigprocmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::all()), None)?)
}

/// Lets signals come, and those that waited.
pub fn release_signals() -> io::Result<()> {
    Ok(sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&SigSet::all()), None)?)
}

fn c_string(text: OsString) -> io::Result<CString> {
    Ok(CString::new(text.into_vec())?)
}
