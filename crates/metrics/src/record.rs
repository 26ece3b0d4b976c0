//! One record of a ring in shared memory: numbers and texts, and how they are written and read while others do
//! the same.
//!
//! Writers draw a ticket each and write to the record of that ticket. A word tells whether the record is whole, and
//! a checksum tells if two writers met in it, which takes one that sleeps while the others go once around. Nobody
//! waits for anybody.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

/// Twice the writer's ticket plus 1 while it is written, plus 2 when it is whole. 0 before the first.
const STATE: usize = 0;
/// Of all words behind it.
const CHECKSUM: usize = 1;
const NUMBERS: usize = 2;
/// Sizes of texts in a word, 16 bits each.
const SIZES_PER_WORD: usize = 4;

/// What a record has that was read.
pub(crate) struct Record<const NUMBERS: usize, const TEXTS: usize> {
    pub(crate) numbers: [u64; NUMBERS],
    pub(crate) texts: [Vec<u8>; TEXTS],
}

/// Words of the sizes of so many texts.
const fn size_words(texts: usize) -> usize {
    texts.div_ceil(SIZES_PER_WORD)
}

/// Bytes of texts that a record of so many words has room for.
pub(crate) const fn texts_max(words: usize, numbers: usize, texts: usize) -> usize {
    (words - NUMBERS - numbers - size_words(texts)) * 8
}

/// From now on nobody takes it for whole.
pub(crate) fn begin(record: &[AtomicU64], ticket: u64) {
    record[STATE].store(2 * ticket + 1, Relaxed);
    fence(Release);
}

/// Writes a record. Each text is cut to its limit, and to the room that is left.
pub(crate) fn write<const COUNT: usize, const TEXTS: usize>(
    record: &[AtomicU64],
    ticket: u64,
    numbers: [u64; COUNT],
    pieces: [(&[u8], usize); TEXTS],
) {
    let most = texts_max(record.len(), COUNT, TEXTS);
    let mut words = vec![0; record.len()];
    words[NUMBERS..NUMBERS + COUNT].copy_from_slice(&numbers);
    let sizes = NUMBERS + COUNT;
    let start = sizes + size_words(TEXTS);
    let mut texts = Vec::with_capacity(most);
    for (at, (text, max)) in pieces.into_iter().enumerate() {
        let text = &text[..text.len().min(max).min(most - texts.len())];
        words[sizes + at / SIZES_PER_WORD] |= (text.len() as u64) << (16 * (at % SIZES_PER_WORD));
        texts.extend_from_slice(text);
    }
    for (word, bytes) in words[start..].iter_mut().zip(texts.chunks(8)) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(padded);
    }
    words[CHECKSUM] = checksum(&words);
    begin(record, ticket);
    for (word, value) in record.iter().zip(words).skip(CHECKSUM) {
        word.store(value, Relaxed);
    }
    // Not if somebody else has begun to write here meanwhile.
    let (begun, whole) = (2 * ticket + 1, 2 * ticket + 2);
    let _ = record[STATE].compare_exchange(begun, whole, Release, Relaxed);
}

/// `None` if it is not whole, or of another ticket by now.
pub(crate) fn read<const COUNT: usize, const TEXTS: usize>(
    record: &[AtomicU64],
    ticket: u64,
) -> Option<Record<COUNT, TEXTS>> {
    let state = record[STATE].load(Acquire);
    if state != 2 * ticket + 2 {
        return None;
    }
    let words: Vec<u64> = record.iter().map(|word| word.load(Relaxed)).collect();
    fence(Acquire);
    let is_whole = record[STATE].load(Relaxed) == state;
    if !is_whole || words[CHECKSUM] != checksum(&words) {
        return None;
    }
    let sizes = NUMBERS + COUNT;
    let bytes: Vec<u8> =
        words[sizes + size_words(TEXTS)..].iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut rest = bytes.as_slice();
    let mut texts = [const { Vec::new() }; TEXTS];
    for (at, text) in texts.iter_mut().enumerate() {
        let size = (words[sizes + at / SIZES_PER_WORD] >> (16 * (at % SIZES_PER_WORD))) as u16;
        let (piece, others) = rest.split_at_checked(size.into())?;
        rest = others;
        *text = piece.to_vec();
    }
    let mut numbers = [0; COUNT];
    numbers.copy_from_slice(&words[NUMBERS..sizes]);
    Some(Record { numbers, texts })
}

/// Whether the record is of a later ticket by now: that of this one is lost.
pub(crate) fn is_past(record: &[AtomicU64], ticket: u64) -> bool {
    record[STATE].load(Relaxed) > 2 * ticket + 2
}

/// One of the numbers of a record, if it is whole by its state. It is not held against the checksum.
pub(crate) fn number(record: &[AtomicU64], ticket: u64, at: usize) -> Option<u64> {
    let is_whole = record[STATE].load(Acquire) == 2 * ticket + 2;
    is_whole.then(|| record[NUMBERS + at].load(Relaxed))
}

/// FNV-1a by words. Records that were never written have 0, which is nobody's.
fn checksum(words: &[u64]) -> u64 {
    let step = |hash: u64, word: &u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    words[NUMBERS..].iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::testing::repetitions;

    const WORDS: usize = 16;
    const RECORDS: u64 = 2;

    fn record_of(ring: &[AtomicU64], ticket: u64) -> &[AtomicU64] {
        let start = (ticket % RECORDS) as usize * WORDS;
        &ring[start..start + WORDS]
    }

    fn write_of(ring: &[AtomicU64], ticket: u64) {
        let text = ticket.to_string();
        let numbers = [ticket, !ticket];
        write(record_of(ring, ticket), ticket, numbers, [(text.as_bytes(), 20), (b"end", 3)]);
    }

    /// Whether it was there; what is there is whole.
    fn is_read(ring: &[AtomicU64], ticket: u64) -> bool {
        let Some(record) = read::<2, 2>(record_of(ring, ticket), ticket) else { return false };
        assert_eq!(record.numbers, [ticket, !ticket]);
        assert_eq!(record.texts, [ticket.to_string().into_bytes(), b"end".to_vec()]);
        true
    }

    #[test]
    fn what_is_read_is_whole_whoever_else_writes_it() {
        const WRITERS: usize = 2;
        const EACH: usize = repetitions(10_000);
        let ring: Vec<AtomicU64> =
            (0..RECORDS as usize * WORDS).map(|_| AtomicU64::new(0)).collect();
        let tickets = AtomicU64::new(0);
        thread::scope(|scope| {
            let write = || (0..EACH).for_each(|_| write_of(&ring, tickets.fetch_add(1, Relaxed)));
            let writers = [(); WRITERS].map(|()| scope.spawn(write));
            while !writers.iter().all(|writer| writer.is_finished()) {
                let next = tickets.load(Relaxed);
                (next.saturating_sub(RECORDS)..next).for_each(|ticket| _ = is_read(&ring, ticket));
            }
        });
        // Whoever writes alone is read.
        let next = tickets.into_inner();
        write_of(&ring, next);
        assert!(is_read(&ring, next) && !is_read(&ring, next - RECORDS));
    }
}
