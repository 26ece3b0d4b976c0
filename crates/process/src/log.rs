//! The log is what a process writes to its standard error. A log file takes the place of standard
//! error itself, so that children inherit it, a panic lands in it, and a process without the right
//! to open the file is given it by descriptor.
//!
//! Nobody waits for the log: a line that a pipe or a disk has no room for is lost, counted, and
//! told of by the next line that is written. A process that serves clients leaves [writing](write_aside) to a
//! thread: a disk may be slow, too.

mod backlog;
mod event_record;
mod line;
mod line_writer;
mod output;
mod subscriber;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

use cashew_config::snapshot::LogFormat;
use cashew_metrics::{EventKind, EventLevel, Events, NewEvent};
use tracing::callsite::rebuild_interest_cache;
use tracing::level_filters::LevelFilter;

pub use event_record::EventRecord;
pub use line::{in_one_line, rfc3339_us};
pub use line_writer::LineWriter;
use subscriber::Log;

/// nutcracker's default: up to INFO.
pub const LEVEL_DEFAULT: u8 = 5;
pub const LEVEL_MAX: u8 = 11;

/// The names of levels, for people, with the lowest number that means the same.
pub const LEVEL_NAMES: [(&str, u8); 5] =
    [("error", 3), ("warn", 4), ("info", LEVEL_DEFAULT), ("debug", 7), ("trace", LEVEL_MAX)];

static IS_BEGUN: AtomicBool = AtomicBool::new(false);
static LEVEL: AtomicU8 = AtomicU8::new(LEVEL_DEFAULT);
static FORMAT: AtomicU8 = AtomicU8::new(LogFormat::Plain as u8);
/// Where events are kept.
static EVENTS: OnceLock<Events> = OnceLock::new();

/// Starts logging to standard error. `name` says in each line which process wrote it. Does nothing
/// when called again.
pub fn init(name: impl Into<String>, level: u8, format: LogFormat) {
    if IS_BEGUN.swap(true, Relaxed) {
        return;
    }
    LEVEL.store(level, Relaxed);
    set_format(format);
    output::adopt_stderr();
    // Whoever set another subscriber before wants that one.
    let _ = tracing::subscriber::set_global_default(Log::new(name.into()));
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // What led to it comes first.
        flush();
        match current_format() {
            LogFormat::Plain => default(panic),
            // Each line is an object.
            LogFormat::Json => tracing::error!("{panic}"),
        }
        flush();
    }));
}

/// How long the end of a process may wait for the log.
const FLUSH_MAX: Duration = Duration::from_millis(500);

/// Has a thread write the log from now on, so that whoever logs waits for no disk. For processes that serve
/// clients. Those that do are to [flush] at their end. Without a thread it stays as it is.
pub fn write_aside() -> io::Result<()> {
    output::write_aside()
}

/// Waits until all lines are written, but not for long: whoever hangs there may hang for ever.
pub fn flush() {
    output::flush(FLUSH_MAX);
}

/// `level` is nutcracker's `-v`.
pub fn set_level(level: u8) {
    if LEVEL.swap(level, Relaxed) != level {
        rebuild_interest_cache();
    }
}

/// How lines look from now on.
pub fn set_format(format: LogFormat) {
    FORMAT.store(format as u8, Relaxed);
}

pub fn current_format() -> LogFormat {
    if FORMAT.load(Relaxed) == LogFormat::Json as u8 { LogFormat::Json } else { LogFormat::Plain }
}

/// Keeps what has the field `kind` there, from now on. Only the first call counts: all that one process opens is
/// the same memory.
pub fn record_events(events: Events) {
    let _ = EVENTS.set(events);
}

fn events() -> Option<&'static Events> {
    EVENTS.get()
}

fn current_filter() -> LevelFilter {
    filter(LEVEL.load(Relaxed))
}

/// The log cannot tell.
fn tell_of_lost(process: &str, why: &str) {
    if let Some(events) = events() {
        events.record(&NewEvent {
            kind: EventKind::LogLinesLost,
            level: EventLevel::Warn,
            process,
            worker: None,
            pool: "",
            server: "",
            text: &format!("lines of the log are lost: {why}"),
        });
    }
}

/// Opens a log file to append to. Each line is one write, so processes can share it. Never waits: a
/// FIFO keeps what it has room for until somebody reads it.
pub fn open(path: &Path) -> io::Result<File> {
    output::open(path)
}

/// Makes `file` this process's standard error, and so its log.
pub fn redirect(file: impl AsFd) -> io::Result<()> {
    flush();
    output::redirect(file)
}

/// As [`redirect`], but behind the lines that wait to be written, without waiting for them.
pub fn redirect_aside(file: OwnedFd) -> io::Result<()> {
    output::redirect_aside(file)
}

/// How many lines this process has lost since this was asked last.
pub fn take_lost() -> u64 {
    output::take_lost()
}

/// nutcracker's levels: 0 emergency, 1 alert, 2 critical, 3 error, 4 warning, 5 notice, 6 info,
/// 7 debug, 8 to 11 ever more verbose.
fn filter(level: u8) -> LevelFilter {
    match level {
        0..=3 => LevelFilter::ERROR,
        4 => LevelFilter::WARN,
        5..=6 => LevelFilter::INFO,
        7 => LevelFilter::DEBUG,
        8.. => LevelFilter::TRACE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_those_of_nutcracker() {
        let expected = [
            (0, LevelFilter::ERROR),
            (3, LevelFilter::ERROR),
            (4, LevelFilter::WARN),
            (LEVEL_DEFAULT, LevelFilter::INFO),
            (6, LevelFilter::INFO),
            (7, LevelFilter::DEBUG),
            (LEVEL_MAX, LevelFilter::TRACE),
            (u8::MAX, LevelFilter::TRACE),
        ];
        for (level, wanted) in expected {
            assert_eq!(filter(level), wanted, "{level}");
        }
    }

    #[test]
    fn the_names_of_levels_mean_what_they_say() {
        for (name, level) in LEVEL_NAMES {
            assert_eq!(filter(level).to_string(), name);
        }
    }
}
