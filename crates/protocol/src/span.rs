//! A position in a buffer. Parsers return spans, not borrowed slices, so that input can be moved,
//! grown and compacted between two calls.

/// A part of a buffer: survives when the buffer moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub start: u32,
    pub len: u32,
}

impl Span {
    /// Both must fit in 32 bits: the parsers refuse requests long before that.
    #[inline]
    pub fn new(start: usize, len: usize) -> Self {
        debug_assert!(start + len <= u32::MAX as usize);
        Self { start: start as u32, len: len as u32 }
    }

    #[inline]
    pub fn end(self) -> usize {
        self.start as usize + self.len as usize
    }

    /// The bytes of this span in `buf`, which must be the buffer it was made for.
    #[inline]
    pub fn of(self, buf: &[u8]) -> &[u8] {
        &buf[self.start as usize..self.end()]
    }
}
