//! The bytes of a request, kept so that they can be sent again.

use crate::base::buffer::BufPool;

/// A request as its client sent it.
///
/// Only a request that has been received whole is kept, so `request_size_max` bounds it. It is in a
/// buffer of the pool's, which memory limits count, until it is given back.
#[derive(Debug, Default)]
pub(crate) struct Replay(Vec<u8>);

impl Replay {
    pub(crate) fn new(bytes: &[u8], bufs: &mut BufPool) -> Self {
        Self(bufs.copy_of(bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Writes another end, which must not be longer than the one that began at `at`.
    pub(crate) fn rewrite(&mut self, at: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.0.len();
        self.0.truncate(at);
        write(&mut self.0);
        debug_assert!(self.0.len() <= before, "the buffer is counted as large as it was");
    }

    /// The buffer, to go on with the request in another way. It stays counted.
    pub(crate) fn into_buffer(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn give_back(self, bufs: &mut BufPool) {
        bufs.give(self.0);
    }
}
