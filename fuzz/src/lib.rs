//! What fuzz targets share: input that arrives in pieces.
#![forbid(unsafe_code)]

/// Bytes at the start of a test case that choose the sizes of the pieces.
const CUTS: usize = 8;

/// Splits a test case into the sizes of pieces and the input that arrives in them.
pub fn split(data: &[u8]) -> (&[u8], &[u8]) {
    data.split_at(data.len().min(CUTS))
}

/// How much of `len` bytes has arrived after each piece; the sizes repeat. Without sizes all of it
/// arrives at once.
pub fn arrivals(sizes: &[u8], len: usize) -> impl Iterator<Item = usize> {
    let mut sizes = sizes.iter().cycle();
    let mut arrived = 0;
    std::iter::from_fn(move || {
        if arrived == len {
            return None;
        }
        let size = sizes.next().map_or(len, |&size| usize::from(size) + 1);
        arrived = len.min(arrived + size);
        Some(arrived)
    })
}
