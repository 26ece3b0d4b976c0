//! What a key is known by where all of it would be too much.

/// What a key is known by; never zero for a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark(u32);

impl Mark {
    /// Of the key's ends and length: the same for all keys costs more than a rare mistake.
    #[inline(always)]
    pub(crate) fn of(key: &[u8]) -> Self {
        let ends = match (key.first_chunk::<8>(), key.last_chunk::<8>()) {
            (Some(first), Some(last)) => {
                u64::from_le_bytes(*first) ^ u64::from_le_bytes(*last).rotate_left(29)
            }
            _ => key.iter().fold(0, |ends, &byte| ends << 8 | u64::from(byte)),
        };
        let mixed = (ends ^ key.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self((mixed >> 32) as u32 | 1)
    }

    /// One of so many places for it.
    pub(crate) fn place(self, places: usize) -> usize {
        // The lowest bit is always set.
        (self.0 >> 1) as usize % places
    }
}
