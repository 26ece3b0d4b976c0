//! The only source of randomness of a run.

use std::collections::VecDeque;

/// SplitMix64, or bytes of a fuzzer. Equal seeds, and equal bytes, give equal runs on every machine.
#[derive(Clone, Debug)]
pub struct Random(Source);

#[derive(Clone, Debug)]
enum Source {
    Seed(u64),
    /// What is left of a tape. Small choices take one byte each, so that a fuzzer that changes a byte
    /// changes a choice. At its end every choice is the first.
    Tape(VecDeque<u8>),
}

/// Bytes that [`Random::bytes`] takes from a tape at most; the rest repeats them.
const TAPE_BYTES: usize = 16;

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(Source::Seed(mix(seed ^ 0x5851_f42d_4c95_7f2d)))
    }

    /// A stream for one part of a run, independent of other parts' choices.
    pub fn of(seed: u64, part: u64) -> Self {
        Self(Source::Seed(mix(seed) ^ mix(part.wrapping_add(0x9e37_79b9_7f4a_7c15))))
    }

    /// The choices that a fuzzer's bytes stand for.
    pub fn of_tape(tape: &[u8]) -> Self {
        Self(Source::Tape(tape.iter().copied().collect()))
    }

    /// Whether a tape is at its end. A seed never is.
    pub fn is_over(&self) -> bool {
        matches!(&self.0, Source::Tape(tape) if tape.is_empty())
    }

    pub fn number(&mut self) -> u64 {
        self.draw(u64::MAX)
    }

    /// A number that is meant to be reduced to one in `0..limit`.
    fn draw(&mut self, limit: u64) -> u64 {
        match &mut self.0 {
            Source::Seed(state) => {
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                mix(*state)
            }
            Source::Tape(tape) => {
                let width = match limit {
                    0..=0x100 => 1,
                    0x101..=0x1_0000 => 2,
                    _ => 8,
                };
                let width = width.min(tape.len());
                tape.drain(..width).fold(0, |number, byte| number << 8 | u64::from(byte))
            }
        }
    }

    /// A number in `0..limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.draw(limit as u64) % limit as u64) as usize
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.draw(100) % 100 < chance
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        match &mut self.0 {
            Source::Seed(_) => (0..len).map(|_| self.number() as u8).collect(),
            Source::Tape(tape) => {
                let mut some: Vec<u8> = tape.drain(..len.min(TAPE_BYTES).min(tape.len())).collect();
                some.push(b'x');
                some.into_iter().cycle().take(len).collect()
            }
        }
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tape_gives_its_bytes_and_then_first_choices() {
        let mut random = Random::of_tape(&[7, 1, 2, 99, 100]);
        assert_eq!(random.below(10), 7);
        assert_eq!(random.below(0x1000), 0x102);
        assert!(!random.percent(99) && random.percent(1) && random.is_over());
        assert_eq!((random.below(10), random.number()), (0, 0));
        assert!(!Random::new(1).is_over());
    }
}
