//! One entry of a ring of events: its words, and how they are written and read while others do the same.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

use super::{Event, EventKind, NewEvent};

/// Words of an entry: half a KiB.
pub(super) const WORDS: usize = 64;

mod word {
    /// Twice the writer's ticket plus 1 while it is written, plus 2 when it is whole. 0 before the first.
    pub(super) const STATE: usize = 0;
    /// Of all words behind it.
    pub(super) const CHECKSUM: usize = 1;
    pub(super) const NUMBER: usize = 2;
    pub(super) const AT_MS: usize = 3;
    /// Kind, level and worker.
    pub(super) const WHAT: usize = 4;
    pub(super) const LEFT_OUT: usize = 5;
    /// Of the texts, 16 bits each.
    pub(super) const SIZES: usize = 6;
    pub(super) const TEXTS: usize = 7;
}

const TEXTS_MAX: usize = (WORDS - word::TEXTS) * 8;
const PROCESS_MAX: usize = 16;
const NAME_MAX: usize = 80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EventLevel {
    Error,
    Warn,
    Info,
}

impl EventLevel {
    const ALL: [Self; 3] = [Self::Error, Self::Warn, Self::Info];

    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
        }
    }
}

/// From now on nobody takes it for whole.
pub(super) fn begin(entry: &[AtomicU64], ticket: u64) {
    entry[word::STATE].store(2 * ticket + 1, Relaxed);
    fence(Release);
}

pub(super) fn write(
    entry: &[AtomicU64],
    ticket: u64,
    event: &NewEvent<'_>,
    (number, at_ms, left_out): (u64, u64, u64),
) {
    let mut words = [0; WORDS];
    words[word::NUMBER] = number;
    words[word::AT_MS] = at_ms;
    let worker = event.worker.map_or(0, |slot| u64::from(slot) + 1);
    words[word::WHAT] = event.kind as u64 | (event.level as u64) << 16 | worker << 32;
    words[word::LEFT_OUT] = left_out;
    let mut texts = Vec::with_capacity(TEXTS_MAX);
    let pieces = [
        (event.process, PROCESS_MAX),
        (event.pool, NAME_MAX),
        (event.server, NAME_MAX),
        (event.text, TEXTS_MAX),
    ];
    for (at, (text, max)) in pieces.into_iter().enumerate() {
        let text = cut(text, max.min(TEXTS_MAX - texts.len()));
        words[word::SIZES] |= (text.len() as u64) << (16 * at);
        texts.extend_from_slice(text.as_bytes());
    }
    for (word, bytes) in words[word::TEXTS..].iter_mut().zip(texts.chunks(8)) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(padded);
    }
    words[word::CHECKSUM] = checksum(&words);
    begin(entry, ticket);
    for (word, value) in entry.iter().zip(words).skip(word::CHECKSUM) {
        word.store(value, Relaxed);
    }
    // Not if somebody else has begun to write here meanwhile.
    let (begun, whole) = (2 * ticket + 1, 2 * ticket + 2);
    let _ = entry[word::STATE].compare_exchange(begun, whole, Release, Relaxed);
}

/// `None` if it is not whole, or of another ticket by now.
pub(super) fn read(entry: &[AtomicU64], ticket: u64) -> Option<Event> {
    let state = entry[word::STATE].load(Acquire);
    if state != 2 * ticket + 2 {
        return None;
    }
    let words: [u64; WORDS] = std::array::from_fn(|at| entry[at].load(Relaxed));
    fence(Acquire);
    let is_whole = entry[word::STATE].load(Relaxed) == state;
    if !is_whole || words[word::CHECKSUM] != checksum(&words) {
        return None;
    }
    let bytes: Vec<u8> = words[word::TEXTS..].iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut rest = bytes.as_slice();
    let mut texts = (0..4).map(|at| {
        let size = (words[word::SIZES] >> (16 * at)) as u16;
        let (text, others) = rest.split_at_checked(size.into())?;
        rest = others;
        Some(String::from_utf8_lossy(text).into_owned())
    });
    let mut text = || texts.next().flatten();
    let what = words[word::WHAT];
    Some(Event {
        number: words[word::NUMBER],
        at_ms: words[word::AT_MS],
        // A later version may have more.
        kind: EventKind::numbered(what as u16)?,
        level: *EventLevel::ALL.get(usize::from((what >> 16) as u8))?,
        worker: (what >> 32).checked_sub(1).map(|slot| slot as u32),
        process: text()?,
        pool: text()?,
        server: text()?,
        text: text()?,
        left_out: words[word::LEFT_OUT],
    })
}

fn cut(text: &str, max: usize) -> &str {
    let end = (0..=text.len().min(max)).rfind(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

/// FNV-1a by words. Entries that were never written have 0, which is nobody's.
fn checksum(words: &[u64; WORDS]) -> u64 {
    let step = |hash: u64, word: &u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    words[word::NUMBER..].iter().fold(0xcbf2_9ce4_8422_2325, step)
}
