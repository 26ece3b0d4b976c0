//! What fuzz targets share: input that arrives in pieces.
#![forbid(unsafe_code)]

#[path = "../../crates/protocol/tests/pieces/mod.rs"]
mod pieces;

pub use pieces::{Step, ends, feed};

/// All of it at once.
pub const WHOLE: &[usize] = &[usize::MAX];
/// One byte after the other.
pub const BYTES: &[usize] = &[1];

/// Bytes at the start of a test case that choose the sizes of the pieces.
const CUTS: usize = 8;

/// Splits a test case into the sizes of pieces and the input that arrives in them.
pub fn split(data: &[u8]) -> (Vec<usize>, &[u8]) {
    let (sizes, input) = data.split_at(data.len().min(CUTS));
    (sizes.iter().map(|&size| usize::from(size) + 1).collect(), input)
}
