//! What the admin process has made of single requests: spans that were sent, lines that were written. The counts
//! outlive it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::mapping::{Mapping, View};
use crate::record;

const ERROR_WORDS: usize = 64;
const ERRORS: usize = 16;
const TICKETS: usize = ERRORS - ExportKind::ALL.len();

/// Words of it all.
pub(crate) const WORDS: usize = ERRORS + ExportKind::ALL.len() * ERROR_WORDS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportCounter {
    /// Spans that the collector has taken.
    Spans,
    /// Spans that it has not: it refused them, or was away for too long.
    SpansDropped,
    /// Exports that failed, those included that are tried again.
    SpanErrors,
    /// Lines of the access log.
    AccessLines,
    /// Lines that could not be written.
    AccessLinesLost,
    /// Samples that were gone before they were read.
    SamplesMissed,
}

/// What may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportKind {
    Tracing,
    AccessLog,
}

impl ExportKind {
    const ALL: [Self; 2] = [Self::Tracing, Self::AccessLog];
}

/// Nothing is counted in memory that an older version made.
#[derive(Clone)]
pub struct Exports(Option<View>);

impl Exports {
    /// At the words that begin at `start`.
    pub(crate) fn new(mapping: &Arc<Mapping>, start: usize) -> Self {
        Self(View::of_part(mapping, start, WORDS))
    }

    fn words(&self) -> Option<&[AtomicU64]> {
        self.0.as_ref().map(View::words)
    }

    pub fn add(&self, counter: ExportCounter, count: u64) {
        if let Some(words) = self.words().filter(|_| count > 0) {
            words[counter as usize].fetch_add(count, Relaxed);
        }
    }

    pub fn count(&self, counter: ExportCounter) -> u64 {
        self.words().map_or(0, |words| words[counter as usize].load(Relaxed))
    }

    /// Keeps why it failed just now. For the admin process alone.
    pub fn failed(&self, kind: ExportKind, why: &str) {
        let Some(words) = self.words() else { return };
        let ticket = words[TICKETS + kind as usize].fetch_add(1, Relaxed);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let numbers = [now.as_secs()];
        record::write(error_of(words, kind), ticket, numbers, [(why.as_bytes(), usize::MAX)]);
    }

    /// Why it failed last, and when, in seconds since 1970.
    pub fn last_failure(&self, kind: ExportKind) -> Option<(String, u64)> {
        let words = self.words()?;
        let ticket = words[TICKETS + kind as usize].load(Relaxed).checked_sub(1)?;
        let record = record::read::<1, 1>(error_of(words, kind), ticket)?;
        let ([at], [why]) = (record.numbers, record.texts);
        Some((String::from_utf8_lossy(&why).into_owned(), at))
    }
}

fn error_of(words: &[AtomicU64], kind: ExportKind) -> &[AtomicU64] {
    let start = ERRORS + kind as usize * ERROR_WORDS;
    &words[start..start + ERROR_WORDS]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shared;

    #[test]
    fn counts_and_failures_are_seen_by_all() {
        let (fd, shared) = Shared::create().unwrap();
        let other = Shared::open(&fd).unwrap().exports();
        assert_eq!(other.last_failure(ExportKind::AccessLog), None);
        shared.exports().add(ExportCounter::Spans, 3);
        shared.exports().add(ExportCounter::SamplesMissed, 1);
        shared.exports().failed(ExportKind::Tracing, "refused");
        shared.exports().failed(ExportKind::Tracing, &"x".repeat(5000));
        shared.exports().failed(ExportKind::AccessLog, "no room");
        assert_eq!(
            (other.count(ExportCounter::Spans), other.count(ExportCounter::SpanErrors)),
            (3, 0)
        );
        assert_eq!(other.count(ExportCounter::SamplesMissed), 1);
        let (why, at) = other.last_failure(ExportKind::Tracing).unwrap();
        assert!(why.len() > 400 && why.bytes().all(|byte| byte == b'x') && at > 1_000_000_000);
        assert_eq!(other.last_failure(ExportKind::AccessLog).unwrap().0, "no room");
    }
}
