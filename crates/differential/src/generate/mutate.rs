//! Corrupts valid requests.

use super::{ODD, number};
use crate::random::Random;

/// Changes some words: doubles, removes, exchanges, extends or inserts one.
pub(crate) fn mutated_words(
    mut words: Vec<Vec<u8>>,
    vocabulary: &[&str],
    random: &mut Random,
) -> Vec<Vec<u8>> {
    for _ in 0..=random.below(3) {
        if words.is_empty() {
            return words;
        }
        let at = random.below(words.len());
        match random.below(12) {
            0 => words.insert(at, words[at].clone()),
            1 => drop(words.remove(at)),
            2 => {
                let other = random.below(words.len());
                words.swap(at, other);
            }
            3 | 4 => words
                .insert(random.below(words.len() + 1), random.pick(vocabulary).as_bytes().to_vec()),
            5 => words[at] = random.pick(vocabulary).as_bytes().to_vec(),
            6 => words[at] = number(random),
            7 => insert(&mut words[at], ODD[random.below(ODD.len())], random),
            8 => words[at] = long(random),
            9 => words.push(random.pick(vocabulary).as_bytes().to_vec()),
            10 => words.truncate(at + 1),
            _ => flip_case(&mut words[at]),
        }
    }
    words
}

/// Changes some bytes.
pub(crate) fn mutated_bytes(mut bytes: Vec<u8>, random: &mut Random) -> Vec<u8> {
    for _ in 0..=random.below(2) {
        if bytes.is_empty() {
            return bytes;
        }
        let at = random.below(bytes.len());
        match random.below(10) {
            0 => bytes[at] = random.number() as u8,
            1 => drop(bytes.remove(at)),
            2 | 3 => insert(&mut bytes, ODD[random.below(ODD.len())], random),
            4 => bytes.truncate(at),
            5 => {
                let digits: Vec<usize> =
                    (0..bytes.len()).filter(|&at| bytes[at].is_ascii_digit()).collect();
                if !digits.is_empty() {
                    bytes[random.pick(&digits)] = b'0' + random.below(10) as u8;
                }
            }
            6 => {
                let digits: Vec<usize> =
                    (0..bytes.len()).filter(|&at| bytes[at].is_ascii_digit()).collect();
                if !digits.is_empty() {
                    let at = random.pick(&digits);
                    let put = random.pick(b"-+0 9x");
                    bytes.insert(at, put);
                }
            }
            7 => {
                let end = (at + 1 + random.below(8)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            8 => bytes.truncate(bytes.len().saturating_sub(2)),
            _ => bytes.extend_from_slice(ODD[random.below(ODD.len())]),
        }
    }
    bytes
}

fn insert(bytes: &mut Vec<u8>, piece: &[u8], random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    bytes.splice(at..at, piece.iter().copied());
}

/// Longer than a key, a line, or an inline request may be.
fn long(random: &mut Random) -> Vec<u8> {
    let len = random.pick(&[249, 250, 251, 255, 256, 1020, 2047, 2048, 2049, 8192, 16_400, 66_000]);
    vec![random.pick(b"kx1 "); len]
}

fn flip_case(word: &mut [u8]) {
    for byte in word {
        *byte = if byte.is_ascii_lowercase() {
            byte.to_ascii_uppercase()
        } else {
            byte.to_ascii_lowercase()
        };
    }
}
