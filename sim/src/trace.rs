//! The last events, for debugging.

use std::collections::VecDeque;
use std::fmt;

use crate::random::mix;

/// How many notes are kept.
const KEPT: usize = 120;
/// How many bytes of quoted data are kept.
const QUOTED: usize = 90;

struct Note {
    at: u64,
    what: &'static str,
    numbers: [u64; 3],
    text: Vec<u8>,
    size: usize,
}

/// The last notes of a run, and a hash over all of them.
#[derive(Default)]
pub(crate) struct Trace {
    notes: VecDeque<Note>,
    hash: u64,
    pub(crate) steps: u64,
}

impl Trace {
    pub(crate) fn note(&mut self, at: u64, what: &'static str, numbers: [u64; 3]) {
        self.quote(at, what, numbers, b"");
    }

    pub(crate) fn quote(&mut self, at: u64, what: &'static str, numbers: [u64; 3], text: &[u8]) {
        self.steps += 1;
        self.hash = mix(self.hash ^ at);
        for &byte in what.as_bytes().iter().take(4) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        for number in numbers {
            self.hash = mix(self.hash ^ number);
        }
        for chunk in text.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.hash = (self.hash ^ u64::from_le_bytes(word)).wrapping_mul(0x100_0000_01b3);
        }
        let mut note = match self.notes.len() {
            KEPT => self.notes.pop_front().expect("there are some"),
            _ => Note { at, what, numbers, text: Vec::new(), size: 0 },
        };
        (note.at, note.what, note.numbers, note.size) = (at, what, numbers, text.len());
        note.text.clear();
        note.text.extend_from_slice(&text[..text.len().min(QUOTED)]);
        self.notes.push_back(note);
    }

    pub(crate) fn hash(&self) -> u64 {
        mix(self.hash)
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Note { at, what, numbers: [a, b, c], text, size } in &self.notes {
            write!(f, "{:>9}.{:03} ms  {what} {a} {b} {c}", at / 1000, at % 1000)?;
            if *size > 0 {
                write!(f, "  [{size}] {}", text.escape_ascii())?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
