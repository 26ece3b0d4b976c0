//! Names of connections, shared with the driver.

/// A client's or a server's connection. A stale id (its connection closed, its slot used anew)
/// names nothing: the generation differs.
///
/// As a token: bits 0..31 index, bit 31 set for a server connection, bits 32..64 generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId(u64);

const LANE: u64 = 1 << 31;

impl ConnId {
    pub(crate) fn client(index: u32, generation: u32) -> Self {
        debug_assert!(u64::from(index) < LANE);
        Self(u64::from(generation) << 32 | u64::from(index))
    }

    pub(crate) fn lane(index: u32, generation: u32) -> Self {
        debug_assert!(u64::from(index) < LANE);
        Self(u64::from(generation) << 32 | LANE | u64::from(index))
    }

    pub fn from_token(token: u64) -> Self {
        Self(token)
    }

    pub fn token(self) -> u64 {
        self.0
    }

    /// Whether this is a connection to a server.
    pub fn is_lane(self) -> bool {
        self.0 & LANE != 0
    }

    pub(crate) fn index(self) -> u32 {
        (self.0 & (LANE - 1)) as u32
    }

    pub(crate) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}
