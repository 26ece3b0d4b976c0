//! What ties a request on its way to what is kept of replies.

/// The number of a request's mark, or none: see [`crate::engine::cache`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheMark(u32);

impl CacheMark {
    pub(crate) const NONE: Self = Self(0);

    pub(crate) fn at(place: usize) -> Self {
        Self(place as u32 + 1)
    }

    #[inline(always)]
    pub(crate) fn is_some(self) -> bool {
        self.0 != 0
    }

    /// Where what it means is kept, if it is one.
    pub(crate) fn place(self) -> Option<usize> {
        Some(self.0.checked_sub(1)? as usize)
    }
}
