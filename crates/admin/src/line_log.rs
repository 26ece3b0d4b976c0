//! A file of lines that the admin process writes: the access log, and the audit log. A thread writes it, so the
//! statistics never wait for a disk.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cashew_process::log::{self, LineWriter};
use tokio::time::Instant;
use tracing::{error, info};

/// Lines that may wait to be written.
const WAITING_MAX: usize = 8192;
/// How long no line may be lost before the log says that it is well again.
const WELL_AFTER: Duration = Duration::from_secs(5);
/// How long it is before a file that cannot be opened is tried again.
const OPEN_PAUSE: Duration = Duration::from_secs(2);

/// Where it is counted what became of lines.
pub(crate) trait Tally {
    /// In messages.
    const NAME: &str;
    fn written(&self, lines: u64);
    fn lost(&self, lines: u64);
    fn failed(&self, why: &str);
}

pub(crate) struct LineLog<T> {
    tally: T,
    open: Option<(PathBuf, LineWriter)>,
    /// Not before then.
    next_try: Option<Instant>,
    /// When lines were lost last, until the log says that they are no more.
    last_loss: Option<Instant>,
    /// Lines since it was looked whether all of them were written.
    unsettled: u64,
    /// Lines that were counted as written and are lost.
    owed: u64,
}

impl<T: Tally> LineLog<T> {
    pub(crate) fn new(tally: T) -> Self {
        Self { tally, open: None, next_try: None, last_loss: None, unsettled: 0, owed: 0 }
    }

    /// Opens the file of the configuration, and leaves another one.
    pub(crate) fn follow(&mut self, file: Option<&Path>) {
        let Some(file) = file else { return self.close() };
        if self.open.as_ref().is_some_and(|(path, _)| path == file) {
            return;
        }
        if self.open.is_some() {
            self.close();
        }
        if self.next_try.is_some_and(|at| Instant::now() < at) {
            return;
        }
        match LineWriter::open(file, WAITING_MAX) {
            Ok(writer) => {
                self.next_try = None;
                self.open = Some((file.to_owned(), writer));
            }
            Err(error) => {
                let why = format!("cannot open {}: {error}", file.display());
                self.tally.failed(&why);
                // Once, not at each try.
                if self.next_try.is_none() {
                    error!("the {}: {why}", T::NAME);
                }
                self.next_try = Some(Instant::now() + OPEN_PAUSE);
            }
        }
    }

    /// Opens the file anew, as after it was moved away. The old one is kept if that fails.
    pub(crate) fn reopen(&mut self) {
        self.next_try = None;
        let Some((path, writer)) = &self.open else { return };
        let reopened = log::open(path).map(|file| writer.reopen(file));
        let why = match reopened {
            Ok(true) => return,
            Ok(false) => "it takes nothing".to_owned(),
            Err(error) => error.to_string(),
        };
        let why = format!("cannot reopen {}: {why}", path.display());
        self.tally.failed(&why);
        error!("the {}: {why}", T::NAME);
    }

    /// Of a line with its end.
    pub(crate) fn write(&mut self, line: Vec<u8>) {
        match &self.open {
            Some((_, writer)) => {
                writer.write(line);
                self.unsettled += 1;
            }
            None => self.tally.lost(1),
        }
    }

    /// Counts the lines since the last time, and says when some begin to be lost.
    pub(crate) fn settle(&mut self) {
        let Some((path, writer)) = &self.open else { return };
        // Those that wait count as written until they are known to be lost. Then later ones make up for them.
        let lost = writer.take_lost();
        let written = std::mem::take(&mut self.unsettled);
        self.owed += lost;
        let paid = self.owed.min(written);
        self.owed -= paid;
        self.tally.written(written - paid);
        self.tally.lost(lost);
        if lost > 0 {
            let why = format!("lines cannot be written to {}", path.display());
            self.tally.failed(&why);
            if self.last_loss.replace(Instant::now()).is_none() {
                error!("the {}: {why}: is the disk full?", T::NAME);
            }
        } else if written > 0 && self.last_loss.is_some_and(|at| at.elapsed() >= WELL_AFTER) {
            self.last_loss = None;
            info!("the {} is written again", T::NAME);
        }
    }

    /// Lines that wait are written first, by the thread that has them.
    fn close(&mut self) {
        self.settle();
        self.open = None;
        self.next_try = None;
    }

    /// As [`close`](Self::close), and waits for it.
    pub(crate) fn part(mut self) {
        self.settle();
        if let Some((_, writer)) = self.open.take() {
            writer.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use cashew_metrics::{ExportCounter, ExportKind, Exports, Shared};

    use super::*;

    #[test]
    fn what_cannot_be_written_is_counted_and_told() {
        let exports: Exports = Shared::in_memory().exports();
        let mut log = LineLog::new(exports.clone());
        log.follow(Some(Path::new("/nowhere/access")));
        log.write(b"a\n".to_vec());
        assert_eq!(exports.count(ExportCounter::AccessLinesLost), 1);
        let (why, _) = exports.last_failure(ExportKind::AccessLog).unwrap();
        assert!(why.starts_with("cannot open /nowhere/access: "), "{why}");

        let path = std::env::temp_dir().join(format!("cashew-access-{}", std::process::id()));
        log.next_try = None;
        log.follow(Some(&path));
        log.write(b"b\n".to_vec());
        log.part();
        assert_eq!(exports.count(ExportCounter::AccessLines), 1);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        assert_eq!(text, "b\n");
    }
}
