//! The log is what a process writes to its standard error. A log file takes the place of standard
//! error itself, so that children inherit it, a panic lands in it, and a process without the right
//! to open the file is given it by descriptor.
//!
//! Nobody waits for the log: a line that a pipe or a disk has no room for is lost, counted, and
//! told of by the next line that is written.

mod output;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::OnceLock;

use output::Output;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::{LookupSpan, Registry};
use tracing_subscriber::reload;

/// nutcracker's default: up to INFO.
pub const LEVEL_DEFAULT: u8 = 5;
pub const LEVEL_MAX: u8 = 11;

static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// Starts logging to standard error. `name` says in each line which process wrote it. Does nothing
/// when called again.
pub fn init(name: impl Into<String>, level: u8) {
    let (filter, handle) = reload::Layer::new(filter(level));
    if LEVEL.set(handle).is_err() {
        return;
    }
    output::adopt_stderr();
    let name = name.into();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(Output::new(name.clone()))
        .with_ansi(false)
        .event_format(Line { name });
    let subscriber = tracing_subscriber::registry().with(filter).with(lines);
    // Whoever set another subscriber before wants that one.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// `level` is nutcracker's `-v`.
pub fn set_level(level: u8) {
    if let Some(handle) = LEVEL.get() {
        // Fails only when there is no subscriber any more, and then nothing is logged anyway.
        let _ = handle.modify(|current| *current = filter(level));
    }
}

/// Opens a log file to append to. Each line is one write, so processes can share it. Never waits: a
/// FIFO keeps what it has room for until somebody reads it.
pub fn open(path: &Path) -> io::Result<File> {
    output::open(path)
}

/// Makes `file` this process's standard error, and so its log.
pub fn redirect(file: impl AsFd) -> io::Result<()> {
    output::redirect(file)
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

/// `[2026-01-31 23:59:59.999] LEVEL name/module text`, in local time as nutcracker has it.
struct Line {
    name: String,
}

impl<S, F> FormatEvent<S, F> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    F: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, F>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let module = metadata.target().trim_start_matches("cashew_");
        write!(writer, "[{}] {} {}/{module} ", now(), metadata.level(), self.name)?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// As each line begins.
fn now() -> impl fmt::Display {
    chrono::Local::now().format("%Y-%m-%d %H:%M:%S%.3f")
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn a_line_has_time_level_place_and_text() {
        let written = Written::default();
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_writer({
                let written = written.clone();
                move || written.clone()
            })
            .event_format(Line { name: "worker-1".into() });
        let subscriber = tracing_subscriber::registry().with(lines);
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(target: "cashew_engine::server", pool = "alpha", "server is down");
        });
        let line = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let (time, rest) = line.split_at("[2026-01-31 23:59:59.999] ".len());
        let shape: String =
            time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(shape, "[0000-00-00 00:00:00.000] ");
        assert_eq!(rest, "WARN worker-1/engine::server server is down pool=\"alpha\"\n");
    }

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

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
