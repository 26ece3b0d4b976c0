//! Byte buffers: a pool that recycles them, and what waits to be written on a connection.

use std::collections::VecDeque;
use std::io::IoSlice;

/// At least this much is referenced where it lies instead of being copied. Below, the copy costs
/// less than an iovec entry of its own.
pub(crate) const LARGE: usize = 16 * 1024;

/// Larger buffers go back to the allocator instead of into the pool.
const POOLED_CAPACITY_MAX: usize = 64 * 1024;
const POOLED_SIZE_MAX: usize = 8 << 20;
const FRESH_CAPACITY: usize = 512;

/// Recycles buffers, last in, first out.
#[derive(Default)]
pub(crate) struct BufPool {
    free: Vec<Vec<u8>>,
    /// Bytes of all buffers in `free`.
    size: usize,
    /// Fewest buffers that lay unused since the last [`BufPool::trim`].
    idle: usize,
}

impl BufPool {
    /// An empty buffer with some capacity.
    #[inline]
    pub(crate) fn take(&mut self) -> Vec<u8> {
        match self.free.pop() {
            Some(buf) => {
                self.size -= buf.capacity();
                self.idle = self.idle.min(self.free.len());
                buf
            }
            None => Vec::with_capacity(FRESH_CAPACITY),
        }
    }

    /// An empty buffer of at least this capacity.
    pub(crate) fn take_large(&mut self, capacity: usize) -> Vec<u8> {
        // Large ones lie on top if any were given back of late; looking further is not worth it.
        match self.free.last() {
            Some(buf) if buf.capacity() >= capacity => self.take(),
            _ => Vec::with_capacity(capacity),
        }
    }

    #[inline]
    pub(crate) fn give(&mut self, mut buf: Vec<u8>) {
        let capacity = buf.capacity();
        if capacity == 0 || capacity > POOLED_CAPACITY_MAX {
            return;
        }
        if self.size + capacity <= POOLED_SIZE_MAX {
            buf.clear();
            self.size += capacity;
            self.free.push(buf);
        }
    }

    /// Drops half of the buffers that nobody needed since the last call.
    pub(crate) fn trim(&mut self) {
        let surplus = self.idle.div_ceil(2);
        // The front of the stack is what has been idle longest.
        let dropped = self.free.drain(..surplus.min(self.free.len()));
        self.size -= dropped.map(|buf| buf.capacity()).sum::<usize>();
        self.free.shrink_to(self.free.len() * 2 + 16);
        self.idle = self.free.len();
    }
}

/// Bytes that wait to be written on one connection, in order. Holds no memory when empty.
#[derive(Default)]
pub(crate) struct Output {
    /// Written before `tail`. Allocated only while something large waits.
    #[expect(clippy::box_collection, reason = "8 bytes in each connection instead of 32")]
    front: Option<Box<VecDeque<Vec<u8>>>>,
    tail: Vec<u8>,
    /// Bytes of the first buffer that are written already.
    written: usize,
    /// Bytes still to be written.
    len: u64,
}

impl Output {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(crate) fn push(&mut self, bytes: &[u8], pool: &mut BufPool) {
        self.tail(pool).extend_from_slice(bytes);
        self.len += bytes.len() as u64;
    }

    /// Appends what `write` appends to the buffer.
    #[inline]
    pub(crate) fn write_with(&mut self, pool: &mut BufPool, write: impl FnOnce(&mut Vec<u8>)) {
        let tail = self.tail(pool);
        let before = tail.len();
        write(tail);
        debug_assert!(tail.len() >= before);
        self.len += (tail.len() - before) as u64;
    }

    /// Appends a whole buffer, without a copy if it is large.
    pub(crate) fn push_buf(&mut self, buf: Vec<u8>, pool: &mut BufPool) {
        if buf.len() < LARGE {
            self.push(&buf, pool);
            pool.give(buf);
            return;
        }
        self.len += buf.len() as u64;
        let tail = std::mem::take(&mut self.tail);
        let front = self.front.get_or_insert_default();
        if tail.is_empty() {
            pool.give(tail);
        } else {
            front.push_back(tail);
        }
        front.push_back(buf);
    }

    #[inline]
    fn tail(&mut self, pool: &mut BufPool) -> &mut Vec<u8> {
        if self.tail.capacity() == 0 {
            self.tail = pool.take();
        } else if self.tail.len() >= POOLED_CAPACITY_MAX {
            // One buffer that keeps growing would be copied again and again.
            let full = std::mem::replace(&mut self.tail, pool.take());
            self.front.get_or_insert_default().push_back(full);
        }
        &mut self.tail
    }

    /// Fills `slices` with what comes first and returns how many were filled.
    #[inline]
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        let mut skip = self.written;
        let front = self.front.iter().flat_map(|front| front.iter());
        for buf in front.chain(std::iter::once(&self.tail)) {
            if count == slices.len() {
                break;
            }
            if buf.len() > skip {
                slices[count] = IoSlice::new(&buf[skip..]);
                count += 1;
            }
            skip = 0;
        }
        count
    }

    /// Drops the first `bytes` bytes: they are written, or need not be.
    ///
    /// # Panics
    /// When there are fewer.
    #[inline]
    pub(crate) fn advance(&mut self, bytes: u64, pool: &mut BufPool) {
        assert!(bytes <= self.len, "more written than there was");
        self.len -= bytes;
        if self.len == 0 {
            self.clear(pool);
            return;
        }
        let mut written = self.written + bytes as usize;
        if let Some(front) = &mut self.front {
            while let Some(first) = front.front() {
                if written < first.len() {
                    break;
                }
                written -= first.len();
                let first = front.pop_front().expect("it was just looked at");
                pool.give(first);
            }
            if front.is_empty() {
                self.front = None;
            }
        }
        self.written = written;
    }

    pub(crate) fn clear(&mut self, pool: &mut BufPool) {
        if let Some(front) = self.front.take() {
            front.into_iter().for_each(|buf| pool.give(buf));
        }
        pool.give(std::mem::take(&mut self.tail));
        self.written = 0;
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(output: &Output) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 64];
        let count = output.slices(&mut slices);
        slices[..count].iter().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn bytes_leave_in_the_order_in_which_they_came() {
        let mut pool = BufPool::default();
        let mut output = Output::default();
        output.push(b"one", &mut pool);
        output.push_buf(vec![b'x'; LARGE], &mut pool);
        output.push(b"two", &mut pool);
        let mut expected = b"one".to_vec();
        expected.extend(vec![b'x'; LARGE]);
        expected.extend(b"two");
        assert_eq!(contents(&output), expected);
        for step in [1, 2, 5, LARGE - 5, 1, 2] {
            output.advance(step as u64, &mut pool);
            expected.drain(..step);
            assert_eq!(contents(&output), expected);
            assert_eq!(output.len(), expected.len() as u64);
        }
        assert!(output.is_empty());
    }

    #[test]
    fn an_empty_output_holds_no_memory() {
        let mut pool = BufPool::default();
        let mut output = Output::default();
        for _ in 0..10_000 {
            output.push(&[0; 100], &mut pool);
        }
        output.advance(output.len(), &mut pool);
        assert_eq!(output.tail.capacity(), 0);
        assert!(output.front.is_none());
    }

    #[test]
    fn the_pool_forgets_what_a_peak_left() {
        let mut pool = BufPool::default();
        let peak: Vec<_> = (0..1000).map(|_| pool.take()).collect();
        peak.into_iter().for_each(|buf| pool.give(buf));
        for _ in 0..16 {
            pool.trim();
        }
        assert!(pool.free.len() <= 1);
    }
}
