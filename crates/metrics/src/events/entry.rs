//! One event as a record of a ring.

use std::sync::atomic::AtomicU64;

use super::{Event, EventKind, NewEvent};
use crate::record;

/// Words of an entry: half a KiB.
pub(super) const WORDS: usize = 64;

/// Its number, the time, what it is, and how many were left out before it.
const NUMBERS: usize = 4;
/// The process, the pool, the server and the text.
const TEXTS: usize = 4;

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

pub(super) fn write(
    entry: &[AtomicU64],
    ticket: u64,
    event: &NewEvent<'_>,
    (number, at_ms, left_out): (u64, u64, u64),
) {
    let worker = event.worker.map_or(0, |slot| u64::from(slot) + 1);
    let what = event.kind as u64 | (event.level as u64) << 16 | worker << 32;
    let mut room = record::texts_max(WORDS, NUMBERS, TEXTS);
    let mut cut = |text, max: usize| {
        let text = cut(text, max.min(room));
        room -= text.len();
        (text.as_bytes(), text.len())
    };
    let texts = [
        cut(event.process, PROCESS_MAX),
        cut(event.pool, NAME_MAX),
        cut(event.server, NAME_MAX),
        cut(event.text, usize::MAX),
    ];
    record::write(entry, ticket, [number, at_ms, what, left_out], texts);
}

/// `None` if it is not whole, or of another ticket by now.
pub(super) fn read(entry: &[AtomicU64], ticket: u64) -> Option<Event> {
    let record::Record { numbers, texts } = record::read::<NUMBERS, TEXTS>(entry, ticket)?;
    let [number, at_ms, what, left_out] = numbers;
    let [process, pool, server, text] =
        texts.map(|text| String::from_utf8_lossy(&text).into_owned());
    Some(Event {
        number,
        at_ms,
        // A later version may have more.
        kind: EventKind::numbered(what as u16)?,
        level: *EventLevel::ALL.get(usize::from((what >> 16) as u8))?,
        worker: (what >> 32).checked_sub(1).map(|slot| slot as u32),
        process,
        pool,
        server,
        text,
        left_out,
    })
}

fn cut(text: &str, max: usize) -> &str {
    let end = (0..=text.len().min(max)).rfind(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}
