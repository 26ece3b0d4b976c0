//! Whether another program may replace this one: it tests the configuration, then rehearses the
//! take-over with a copy of the state. Both run in a separate process, which only a pidfd waits
//! for.
//!
//! The file is opened once. What is tried is what will run, whatever happens to its path.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, PipeReader, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid,
};
use serde::{Deserialize, Serialize};

/// How long the test of the configuration may take: it looks names up.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

const REHEARSAL_TIMEOUT: Duration = Duration::from_secs(10);

/// How much of a program's output is kept, from the end: it has the reason of a failure, and the
/// verdict.
const OUTPUT_MAX: usize = 64 * 1024;

/// How much is read at a time, so that a large output does not delay the master.
const READ_MAX: u64 = 256 * 1024;

/// How a program is started for another purpose than to run an instance. Earlier and later versions
/// are started the same way, so cashew's arguments for these must never change.
#[derive(Clone, Debug)]
pub struct Program {
    /// The path of the next version.
    pub path: PathBuf,
    /// The arguments that this process was started with.
    pub argv: Vec<OsString>,
    /// Arguments to test the configuration and exit with 0.
    pub test: Vec<OsString>,
    /// Arguments to [rehearse](crate::rehearse) with standard input and print a [`Verdict`] on
    /// standard output.
    pub rehearse: Vec<OsString>,
    /// Added to `argv`: standard input has what is to be [taken over](crate::take_over).
    pub take_over: Vec<OsString>,
    /// Cashew's version, to tell it from the next.
    pub version: String,
}

/// The result of a rehearsal, as a line of JSON. Only additions are allowed, ever.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verdict {
    pub ready: bool,
    pub version: String,
    /// Why it is not ready.
    pub why: Option<String>,
    /// What the operator should know in advance.
    pub notes: Vec<String>,
}

/// A program that is being tried. Dropping it ends the trial.
#[derive(Debug)]
pub(crate) struct Trial {
    path: PathBuf,
    file: OwnedFd,
    step: Step,
    helper: Helper,
    deadline: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Test,
    Rehearsal,
}

/// A program that has passed.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) path: PathBuf,
    pub(crate) file: OwnedFd,
    pub(crate) verdict: Verdict,
}

/// A process of the program that is tried.
#[derive(Debug)]
struct Helper {
    pid: Pid,
    pidfd: OwnedFd,
    /// `None` once nobody can write to it any more.
    pipe: Option<PipeReader>,
    output: Vec<u8>,
    reaped: bool,
}

impl Trial {
    pub(crate) fn begin(program: &Program, path: &Path, now: Instant) -> Result<Self, String> {
        let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| format!("cannot open {}: {errno}", path.display()))?;
        let helper = run(&file, path, &program.test, Stdio::null())?;
        let deadline = now + TEST_TIMEOUT;
        Ok(Self { path: path.to_owned(), file, step: Step::Test, helper, deadline })
    }

    /// One of them becomes readable when [poll](Self::poll) has something to do.
    pub(crate) fn events(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let pipe = self.helper.pipe.as_ref().map(|pipe| pipe.as_fd());
        std::iter::once(self.helper.pidfd.as_fd()).chain(pipe)
    }

    pub(crate) fn poll_timeout(&self) -> Instant {
        self.deadline
    }

    /// Continues if possible. `copy` creates the socket for the rehearsal.
    pub(crate) fn poll(
        &mut self,
        program: &Program,
        copy: impl FnOnce() -> io::Result<OwnedFd>,
        now: Instant,
    ) -> Option<Result<Candidate, String>> {
        match self.advance(program, copy, now) {
            Ok(None) => None,
            Ok(Some(verdict)) => {
                let file = self.file.try_clone().map_err(|error| error.to_string());
                Some(file.map(|file| Candidate { path: self.path.clone(), file, verdict }))
            }
            Err(why) => Some(Err(format!("{}: {why}", self.path.display()))),
        }
    }

    fn advance(
        &mut self,
        program: &Program,
        copy: impl FnOnce() -> io::Result<OwnedFd>,
        now: Instant,
    ) -> Result<Option<Verdict>, String> {
        let what = match self.step {
            Step::Test => "the test of the configuration",
            Step::Rehearsal => "the rehearsal",
        };
        let status = self.helper.status().map_err(|error| error.to_string())?;
        // A full pipe would keep it from ending.
        self.helper.read();
        let Some(status) = status else {
            if now >= self.deadline {
                return Err(format!("{what} takes too long"));
            }
            return Ok(None);
        };
        let output = String::from_utf8_lossy(&self.helper.output).into_owned();
        match self.step {
            Step::Test if status.success() => {
                let socket = copy().map_err(|error| format!("cannot copy the state: {error}"))?;
                self.helper = run(&self.file, &self.path, &program.rehearse, socket.into())?;
                self.step = Step::Rehearsal;
                self.deadline = now + REHEARSAL_TIMEOUT;
                Ok(None)
            }
            Step::Test => Err(failure(what, status, &output)),
            Step::Rehearsal => {
                let verdict =
                    output.lines().rev().find_map(|it| serde_json::from_str::<Verdict>(it).ok());
                match verdict {
                    Some(verdict) if verdict.ready && status.success() => Ok(Some(verdict)),
                    Some(Verdict { why: Some(why), .. }) => Err(why),
                    _ => Err(failure(what, status, &output)),
                }
            }
        }
    }
}

fn failure(what: &str, status: ExitStatus, output: &str) -> String {
    let mut why = match (status.code(), status.signal()) {
        (Some(code), _) => format!("{what} exited with status {code}"),
        (None, Some(signal)) => format!("{what} was killed by signal {signal}"),
        (None, None) => format!("{what} ended: {status}"),
    };
    // The whole output: the first line or the last may be the one that matters.
    let lines: Vec<&str> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if !lines.is_empty() {
        let _ = write!(why, ": {}", lines.join("; "));
    }
    why
}

fn run(
    file: &OwnedFd,
    path: &Path,
    arguments: &[OsString],
    input: Stdio,
) -> Result<Helper, String> {
    let start = || {
        let (pipe, end) = io::pipe()?;
        rustix::io::ioctl_fionbio(&pipe, true)?;
        // The child's own descriptor of that number, while it still has it.
        let mut command = Command::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
        command.arg0(path).args(arguments).process_group(0);
        command.stdin(input).stdout(end.try_clone()?).stderr(end);
        let mut process = command.spawn()?;
        let pid = Pid::from_child(&process);
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => {
                Ok(Helper { pid, pidfd, pipe: Some(pipe), output: Vec::new(), reaped: false })
            }
            Err(errno) => {
                process.kill()?;
                process.wait()?;
                Err(io::Error::from(errno))
            }
        }
    };
    start().map_err(|error| format!("{} cannot be run: {error}", path.display()))
}

impl Helper {
    fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        let status = waitpid(Some(self.pid), WaitOptions::NOHANG)?;
        self.reaped |= status.is_some();
        Ok(status.map(|(_, status)| ExitStatus::from_raw(status.as_raw())))
    }

    /// Reads the output so far. Its children may outlive it and write more.
    fn read(&mut self) {
        let Some(pipe) = &self.pipe else { return };
        let before = self.output.len();
        // It ends with an error if somebody can still write.
        let is_whole = pipe.take(READ_MAX).read_to_end(&mut self.output).is_ok();
        if is_whole && self.output.len() - before < READ_MAX as usize {
            self.pipe = None;
        }
        let spare = self.output.len().saturating_sub(OUTPUT_MAX);
        self.output.drain(..spare);
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if !self.reaped {
            let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
            let _ = waitpid(Some(self.pid), WaitOptions::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::{fs, thread};

    use super::*;

    #[test]
    fn a_file_that_is_not_a_program_is_refused() {
        let place = Place::new("none");
        assert!(attempt(&place.0.join("missing")).unwrap_err().contains("cannot open"));
        assert!(attempt(&place.0).unwrap_err().contains("cannot be run"));
        let elf = fs::read("/bin/true").unwrap();
        let path = place.file("truncated", &elf[..100]);
        assert!(attempt(&path).unwrap_err().contains("cannot be run"));
        let path = place.file("no-format", b"GIF89a");
        assert!(attempt(&path).unwrap_err().contains("cannot be run"));
        // The path by which a script's interpreter would open it leads nowhere any more.
        let path = place.file("script", b"#!/bin/sh\nexit 0\n");
        assert!(attempt(&path).unwrap_err().contains("the test of the configuration exited"));
    }

    #[test]
    fn a_program_that_fails_the_test_is_refused() {
        let why = attempt(Path::new("/bin/false")).unwrap_err();
        assert_eq!(why, "/bin/false: the test of the configuration exited with status 1");
    }

    #[test]
    fn a_program_that_cannot_rehearse_is_refused() {
        let why = attempt(Path::new("/bin/true")).unwrap_err();
        assert_eq!(why, "/bin/true: the rehearsal exited with status 0");
        let why = shell("exit 0", "echo oh; echo dear >&2; exit 3").unwrap_err();
        assert!(why.ends_with("the rehearsal exited with status 3: oh; dear"), "{why}");
        let why = shell("exit 0", "kill -9 $$").unwrap_err();
        assert!(why.ends_with("the rehearsal was killed by signal 9"), "{why}");
        let why = shell("exit 0", r#"echo '{"ready":false,"why":"too new"}'"#).unwrap_err();
        assert!(why.ends_with(": too new"), "{why}");
        let why = shell("exit 0", r#"echo '{"ready":true}'; exit 1"#).unwrap_err();
        assert!(why.contains("exited with status 1"), "{why}");
    }

    #[test]
    fn a_program_that_passes_both_is_a_candidate() {
        let say = r#"echo some warning; echo '{"ready":true,"version":"9","later":1}'"#;
        let verdict = shell("echo fine; exit 0", say).unwrap().verdict;
        assert_eq!(verdict, Verdict { ready: true, version: "9".into(), ..Verdict::default() });
    }

    #[test]
    fn output_larger_than_a_pipe_is_read_to_the_end() {
        let much = "head -c 1000000 /dev/zero | tr '\\0' '\\n'";
        let say = format!(r#"{much}; echo '{{"ready":true,"version":"9"}}'"#);
        let verdict = shell(&format!("{much} >&2"), &say).unwrap().verdict;
        assert_eq!(verdict.version, "9");
        let why = shell(&format!("{much}; echo dear; exit 3"), "").unwrap_err();
        assert!(why.ends_with("exited with status 3: dear"), "{why}");
    }

    #[test]
    fn a_program_that_takes_too_long_is_refused_and_killed() {
        let program = shell_program("exec sleep 1000", "");
        let now = Instant::now();
        let mut trial = Trial::begin(&program, &program.path, now).unwrap();
        let copy = || -> io::Result<OwnedFd> { unreachable!("it is not tested yet") };
        assert!(trial.poll(&program, copy, now).is_none());
        assert_eq!(trial.poll_timeout(), now + TEST_TIMEOUT);
        let result = trial.poll(&program, copy, now + TEST_TIMEOUT).unwrap();
        assert!(result.unwrap_err().contains("takes too long"));
        let pid = trial.helper.pid;
        drop(trial);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }

    fn shell(test: &str, rehearse: &str) -> Result<Candidate, String> {
        let program = shell_program(test, rehearse);
        try_out(&program, &program.path)
    }

    fn shell_program(test: &str, rehearse: &str) -> Program {
        let script = |text: &str| vec!["-c".into(), text.into()];
        Program {
            path: "/bin/sh".into(),
            argv: vec!["sh".into()],
            test: script(test),
            rehearse: script(rehearse),
            take_over: Vec::new(),
            version: "1".into(),
        }
    }

    fn attempt(path: &Path) -> Result<Candidate, String> {
        try_out(&shell_program("", ""), path)
    }

    fn try_out(program: &Program, path: &Path) -> Result<Candidate, String> {
        let mut trial = Trial::begin(program, path, Instant::now())?;
        loop {
            let copy = || crate::handover::send(b"state", &[]);
            if let Some(result) = trial.poll(program, copy, Instant::now()) {
                return result;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("cashew-trial-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn file(&self, name: &str, content: &[u8]) -> PathBuf {
            let (path, source) = (self.0.join(name), self.0.join(format!("{name}.source")));
            fs::write(&source, content).unwrap();
            // A process that another test starts at this moment inherits what this process has open
            // for writing, and a file that is open for writing cannot be executed.
            assert!(Command::new("cp").args([&source, &path]).status().unwrap().success());
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
