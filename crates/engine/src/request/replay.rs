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

    pub(crate) fn give_back(self, bufs: &mut BufPool) {
        bufs.give(self.0);
    }
}
