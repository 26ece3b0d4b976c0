//! Where lines of the log go: standard error, which is written to without ever waiting.
//!
//! A pipe and a terminal that nobody reads from would make the writer wait. Non-blocking is a
//! property of the open file, which standard error shares with whoever started this process, so the
//! pipe is opened anew for this instance alone. Where that is refused, and for a socket, there are
//! other means.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::backlog::{Backlog, Order, Refused};
use super::line::Line;
use cashew_metrics::EventKind;
use chrono::Local;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::io::Errno;
use rustix::net::SendFlags;
use tracing::Level;

static STATE: Mutex<State> = Mutex::new(State { means: Means::Write, is_torn: false, lost: None });

/// Lines for the thread that writes them, if there is one.
static BACKLOG: Backlog = Backlog::new();

/// Lines lost since somebody asked.
static LOST: AtomicU64 = AtomicU64::new(0);

struct State {
    means: Means,
    /// The last line is there in part.
    is_torn: bool,
    /// What the next line that gets through has to tell of.
    lost: Option<Lost>,
}

#[derive(Clone, Copy)]
struct Lost {
    lines: u64,
    /// Of the last one.
    why: Errno,
}

/// How standard error is written to without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    /// It does not make anybody wait, or no longer than a disk does.
    Write,
    /// Only while it has room. Who shares it may still take the room away in between.
    WriteIfReady,
    Send,
}

/// Writes a line in one piece, or has it written. Takes all of it, written or lost: who logs has no use for the
/// failure.
pub(super) fn write(process: &str, line: Vec<u8>) {
    match BACKLOG.push(Order::Line(process.to_owned(), line)) {
        Ok(()) | Err(Refused::NoWriter(Order::Redirect(_))) => {}
        Err(Refused::NoWriter(Order::Line(process, line))) => write_now(&process, &line),
        Err(Refused::NoRoom { is_first }) => {
            LOST.fetch_add(1, Relaxed);
            if is_first {
                super::tell_of_lost(process, &reason(Errno::NOBUFS));
            }
        }
    }
}

/// Has a thread write from now on.
pub(super) fn write_aside() -> io::Result<()> {
    if !BACKLOG.enter() {
        return Ok(());
    }
    let run = || BACKLOG.run(carry_out);
    let started = thread::Builder::new().name("log".to_owned()).spawn(run);
    started.map(drop).inspect_err(|_| BACKLOG.leave())
}

fn carry_out(order: Order, lost: u64) -> bool {
    if lost > 0 {
        // The next line that gets through tells of them.
        let mut state = state();
        let lines = state.lost.map_or(0, |lost| lost.lines) + lost;
        state.lost = Some(Lost { lines, why: Errno::NOBUFS });
    }
    match order {
        Order::Line(process, line) => write_now(&process, &line),
        // As before, lines go where they went.
        Order::Redirect(file) => {
            if let Err(error) = redirect(file) {
                tracing::error!("cannot reopen the log: {error}");
            }
        }
    }
    true
}

pub(super) fn flush(limit: Duration) {
    BACKLOG.flush(limit);
}

pub(super) fn redirect_aside(file: OwnedFd) -> io::Result<()> {
    match BACKLOG.push(Order::Redirect(file)) {
        Err(Refused::NoWriter(Order::Redirect(file))) => redirect(file),
        _ => Ok(()),
    }
}

fn write_now(process: &str, line: &[u8]) {
    let outcome = state().write(process, line, |means, bytes| means.write(bytes));
    if let Some(why) = outcome.begins_to_lose {
        super::tell_of_lost(process, &reason(why));
    }
}

/// What came of a line.
#[derive(Debug, Default)]
struct Outcome {
    /// It is the first of those that are lost.
    begins_to_lose: Option<Errno>,
}

/// Sees to it that standard error as it was inherited makes nobody wait.
pub(super) fn adopt_stderr() {
    let mut state = state();
    state.means = prepare_stderr();
}

pub(super) fn redirect(file: impl AsFd) -> io::Result<()> {
    let mut state = state();
    rustix::stdio::dup2_stderr(file)?;
    state.is_torn = false;
    state.means = prepare_stderr();
    Ok(())
}

pub(super) fn take_lost() -> u64 {
    // Most of the time there is nothing to take.
    if LOST.load(Relaxed) == 0 { 0 } else { LOST.swap(0, Relaxed) }
}

pub(super) fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed());
    if fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo()) {
        // Reading, too, it neither fails nor waits while there is no reader, before one comes and
        // after it has gone.
        options.read(true);
    } else {
        options.create(true);
    }
    options.open(path)
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn prepare_stderr() -> Means {
    let stderr = io::stderr();
    let Ok(stat) = fstat(&stderr) else { return Means::Write };
    let is_shared = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => return Means::Send,
        FileType::Fifo => true,
        FileType::CharacterDevice => rustix::termios::isatty(&stderr),
        _ => false,
    };
    let is_nonblocking = || fcntl_getfl(&stderr).is_ok_and(|it| it.contains(OFlags::NONBLOCK));
    if !is_shared || is_nonblocking() {
        return Means::Write;
    }
    let mut own = OpenOptions::new();
    own.append(true).custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed());
    let replaced = own.open("/proc/self/fd/2").map(rustix::stdio::dup2_stderr);
    if matches!(replaced, Ok(Ok(()))) { Means::Write } else { Means::WriteIfReady }
}

impl Means {
    fn write(self, bytes: &[u8]) -> Result<usize, Errno> {
        let stderr = io::stderr();
        match self {
            Self::Write => rustix::io::write(&stderr, bytes),
            Self::WriteIfReady => {
                let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                // As much fits a pipe that is ready.
                let bytes = &bytes[..bytes.len().min(PIPE_BUF)];
                match poll(&mut fds, Some(&now))? {
                    0 => Err(Errno::AGAIN),
                    _ => rustix::io::write(&stderr, bytes),
                }
            }
            Self::Send => {
                rustix::net::send(&stderr, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            }
        }
    }
}

/// See pipe(7).
const PIPE_BUF: usize = 4096;

impl State {
    fn write(
        &mut self,
        name: &str,
        line: &[u8],
        write: impl Fn(Means, &[u8]) -> Result<usize, Errno>,
    ) -> Outcome {
        let attempt = self.tell_of_lost(name, &write).and_then(|()| self.put(line, &write));
        let Err(why) = attempt else { return Outcome::default() };
        LOST.fetch_add(1, Relaxed);
        let is_first = self.lost.is_none();
        let lines = self.lost.map_or(0, |lost| lost.lines) + 1;
        self.lost = Some(Lost { lines, why });
        Outcome { begins_to_lose: is_first.then_some(why) }
    }

    fn tell_of_lost(
        &mut self,
        name: &str,
        write: &impl Fn(Means, &[u8]) -> Result<usize, Errno>,
    ) -> Result<(), Errno> {
        if self.is_torn {
            self.put(b"\n", write)?;
        }
        let Some(Lost { lines, why }) = self.lost else { return Ok(()) };
        let line = Line {
            at: Local::now(),
            level: Level::WARN,
            process: name,
            kind: EventKind::LogLinesLost.name(),
            pool: "",
            server: "",
            worker: None,
            text: &format!("{lines} lines of the log are lost: {}", reason(why)),
            left_out: 0,
        };
        let text = line.format(super::current_format());
        self.put(text.as_bytes(), write)?;
        self.lost = None;
        Ok(())
    }

    fn put(
        &mut self,
        mut bytes: &[u8],
        write: &impl Fn(Means, &[u8]) -> Result<usize, Errno>,
    ) -> Result<(), Errno> {
        while !bytes.is_empty() {
            match write(self.means, bytes) {
                Ok(0) => return Err(Errno::IO),
                Ok(written) => {
                    bytes = &bytes[written..];
                    self.is_torn = !bytes.is_empty();
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

fn reason(why: Errno) -> String {
    match why {
        Errno::AGAIN => "nobody read them".to_owned(),
        Errno::NOBUFS => "they came faster than they could be written".to_owned(),
        errno => io::Error::from(errno).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io::Write;

    use super::*;

    /// Takes so many bytes in all.
    struct Disk {
        room: usize,
        content: Vec<u8>,
    }

    impl Disk {
        fn write(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
            let taken = bytes.len().min(self.room);
            if taken == 0 {
                return Err(Errno::NOSPC);
            }
            self.room -= taken;
            self.content.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }
    }

    #[test]
    fn what_is_lost_is_told_when_there_is_room_again() {
        let disk = RefCell::new(Disk { room: 8, content: Vec::new() });
        let mut state = State { means: Means::Write, is_torn: false, lost: None };
        let mut say = |line: &str| {
            let write = |_, bytes: &[u8]| disk.borrow_mut().write(bytes);
            state.write("master", line.as_bytes(), write).begins_to_lose
        };
        assert_eq!(say("one\n"), None);
        assert_eq!(say("second\n"), Some(Errno::NOSPC));
        assert_eq!(say("third\n"), None, "it was told");
        assert_eq!(disk.borrow().content, b"one\nseco");
        disk.borrow_mut().room = 4096;
        say("fourth\n");
        say("fifth\n");
        let text = String::from_utf8(disk.borrow().content.clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[0], lines[1], &lines[3..]), ("one", "seco", &["fourth", "fifth"][..]));
        let why = "WARN master 2 lines of the log are lost: No space left on device";
        assert!(lines[2].contains(why), "{}", lines[2]);
    }

    #[test]
    fn a_fifo_is_opened_and_written_to_without_a_reader() {
        let path = std::env::temp_dir().join(format!("cashew-log-fifo-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let mut fifo = open(&path).unwrap();
        let line = [b'x'; 1024];
        let error = std::iter::repeat_with(|| fifo.write_all(&line)).find_map(Result::err).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        fs::remove_file(&path).unwrap();
    }
}
