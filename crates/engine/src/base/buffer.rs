//! Byte buffers: a pool that recycles them, and what waits to be written on a connection.

use std::collections::VecDeque;
use std::io::IoSlice;

use crate::base::recycler::Recycler;

/// At least this much is referenced where it lies instead of being copied. Below, the copy costs
/// less than an iovec entry of its own.
pub(crate) const LARGE: usize = 16 * 1024;

/// Buffers are made with capacities of this times a power of two, but for those for reading. Each is
/// pooled apart from the others, so that small things do not sit in large buffers, nor large ones have
/// to grow.
const POOLED_CAPACITY_MIN: usize = 512;
/// Buffers for reading have room for a value of this size …
const READ_POWER: usize = 64 * 1024;
/// … and for the command or the line around it, so that it is whole after one read.
const ENVELOPE: usize = 512;
/// Larger buffers go back to the allocator instead of into the pool.
const POOLED_CAPACITY_MAX: usize = POOLED_CAPACITY_MIN << (CLASSES - 1);
const CLASSES: usize = 9;
/// A buffer that is too small is replaced by one of at least so many times its capacity.
const GROWTH: usize = 4;
pub(crate) const POOLED_SIZE_MAX: usize = 8 << 20;
/// The driver reads no more at once.
pub(crate) const READ_SIZE_MAX: usize = 128 * 1024;
/// A full buffer of this length is followed by another: one that keeps growing would be copied again
/// and again. What is added at once, usually one read at most, leaves it small enough to be pooled.
const TAIL_SIZE_MAX: usize = POOLED_CAPACITY_MAX / 2 - ENVELOPE;

/// In a box, for 8 bytes in each connection instead of 32.
type Front = Box<VecDeque<Vec<u8>>>;

/// Recycles buffers, last in, first out.
#[derive(Default)]
pub(crate) struct BufPool {
    /// By capacity: at least [`POOLED_CAPACITY_MIN`] shifted by the index.
    free: [Recycler<Vec<u8>>; CLASSES],
    /// Bytes of all buffers in `free`.
    size: usize,
    /// These, and what connections hold: buffers taken and not given back, and what else was
    /// charged.
    total: usize,
    /// Bytes given back to the allocator.
    released: usize,
    fronts: Recycler<Front>,
}

impl BufPool {
    /// An empty buffer with some capacity.
    #[inline]
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.take_for(0)
    }

    /// An empty buffer with room for `len` bytes.
    #[inline]
    pub(crate) fn take_for(&mut self, len: usize) -> Vec<u8> {
        let class = class_of(len.max(POOLED_CAPACITY_MIN) * 2 - 1);
        let Some(buf) = self.free.get_mut(class).and_then(Recycler::take) else {
            return self.make(len, class);
        };
        self.size -= buf.capacity();
        buf
    }

    /// An empty buffer of the smallest class, which is enough for most writes, if there is one.
    #[inline]
    fn take_small(&mut self) -> Option<Vec<u8>> {
        let buf = self.free[0].take()?;
        self.size -= buf.capacity();
        Some(buf)
    }

    /// As [`BufPool::take_for`], for what the driver reads at once, which may be a little more than a
    /// power of two.
    pub(crate) fn take_for_reading(&mut self, len: usize) -> Vec<u8> {
        let class = class_of(len.max(POOLED_CAPACITY_MIN));
        if class >= CLASSES || capacity_of(class) < len {
            return self.take_for(len);
        }
        match self.free[class].take() {
            Some(buf) if buf.capacity() >= len => {
                self.size -= buf.capacity();
                buf
            }
            Some(small) => {
                self.size -= small.capacity();
                self.let_go(small);
                self.make(len, class)
            }
            None => self.make(len, class),
        }
    }

    #[cold]
    fn make(&mut self, len: usize, class: usize) -> Vec<u8> {
        let is_pooled = class < CLASSES;
        let buf = Vec::with_capacity(if is_pooled { capacity_of(class) } else { len });
        self.total += buf.capacity();
        buf
    }

    /// Bytes of buffers that connections hold, used or not, and of what else they were charged
    /// with.
    #[inline]
    pub(crate) fn held(&self) -> usize {
        self.total - self.size
    }

    /// Counts bytes that a connection holds beside its buffers, or in one that is not from here.
    #[inline]
    pub(crate) fn charge(&mut self, bytes: usize) {
        self.total += bytes;
    }

    /// Takes back a [`BufPool::charge`].
    #[inline]
    pub(crate) fn discharge(&mut self, bytes: usize) {
        debug_assert!(self.held() >= bytes, "more is given back than was taken");
        self.total -= bytes;
    }

    /// Memory was freed that is none of these buffers.
    pub(crate) fn note_released(&mut self, bytes: usize) {
        self.released += bytes;
    }

    /// Bytes that went back to the allocator since the last call.
    pub(crate) fn take_released(&mut self) -> usize {
        std::mem::take(&mut self.released)
    }

    /// A buffer with these bytes.
    pub(crate) fn copy_of(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buf = self.take_for(bytes.len());
        buf.extend_from_slice(bytes);
        buf
    }

    /// A buffer with what is written, which may be more than `room` bytes. What a writer adds to a buffer beyond its
    /// room would not be counted, but taken off when it is given back.
    pub(crate) fn written(&mut self, room: usize, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut buf = self.take_for(room);
        let before = buf.capacity();
        write(&mut buf);
        self.total += buf.capacity() - before;
        buf
    }

    /// Makes room for `more` bytes in the buffer.
    #[inline]
    pub(crate) fn reserve(&mut self, buf: &mut Vec<u8>, more: usize) {
        if !has_room(buf, more) {
            self.grow(buf, more, Vec::reserve);
        }
    }

    /// Appends the bytes to the buffer.
    #[inline]
    pub(crate) fn extend(&mut self, buf: &mut Vec<u8>, bytes: &[u8]) {
        if !append_within(buf, bytes) {
            self.grow(buf, bytes.len(), Vec::reserve);
            buf.extend_from_slice(bytes);
        }
    }

    /// As [`BufPool::reserve`], but not for more to come: who calls it knows how much will.
    pub(crate) fn reserve_exact(&mut self, buf: &mut Vec<u8>, more: usize) {
        if !has_room(buf, more) {
            self.grow(buf, more, Vec::reserve_exact);
        }
    }

    #[cold]
    fn grow(&mut self, buf: &mut Vec<u8>, more: usize, reserve: fn(&mut Vec<u8>, usize)) {
        let needed = buf.len().saturating_add(more);
        if needed > POOLED_CAPACITY_MAX {
            let before = buf.capacity();
            reserve(buf, more);
            self.total += buf.capacity() - before;
            return;
        }
        let roomy = (GROWTH * buf.capacity()).min(POOLED_CAPACITY_MAX);
        let mut larger = self.take_for(needed.max(roomy));
        larger.extend_from_slice(buf);
        self.give(std::mem::replace(buf, larger));
    }

    #[inline]
    pub(crate) fn give(&mut self, mut buf: Vec<u8>) {
        self.take_back(&mut buf);
    }

    /// As [`BufPool::give`], and leaves an empty buffer without capacity.
    #[inline]
    pub(crate) fn take_back(&mut self, buf: &mut Vec<u8>) {
        if buf.capacity() == POOLED_CAPACITY_MIN && self.has_room(POOLED_CAPACITY_MIN) {
            buf.clear();
            self.size += POOLED_CAPACITY_MIN;
            self.free[0].give(std::mem::take(buf));
        } else {
            self.give_other(std::mem::take(buf));
        }
    }

    #[inline(never)]
    fn give_other(&mut self, mut buf: Vec<u8>) {
        let capacity = buf.capacity();
        let is_pooled = (POOLED_CAPACITY_MIN..=POOLED_CAPACITY_MAX).contains(&capacity);
        if is_pooled && self.has_room(capacity) {
            buf.clear();
            self.size += capacity;
            self.free[class_of(capacity)].give(buf);
            return;
        }
        self.let_go(buf);
    }

    /// Gives a buffer back to the allocator.
    fn let_go(&mut self, buf: Vec<u8>) {
        self.discharge(buf.capacity());
        self.released += buf.capacity();
    }

    /// Whether a buffer of this capacity may be kept.
    #[inline]
    fn has_room(&self, capacity: usize) -> bool {
        debug_assert!(self.held() >= capacity, "more is given back than was taken");
        self.size + capacity <= POOLED_SIZE_MAX
    }

    /// Lets go of all that is free.
    pub(crate) fn clear(&mut self) {
        for buf in self.free.iter_mut().flat_map(|free| std::iter::from_fn(|| free.take())) {
            self.released += buf.capacity();
        }
        self.total -= std::mem::take(&mut self.size);
    }

    /// Lets go of what nobody needed since the last call.
    pub(crate) fn trim(&mut self) {
        for free in &mut self.free {
            free.trim(|buf| {
                self.size -= buf.capacity();
                self.total -= buf.capacity();
                self.released += buf.capacity();
            });
        }
        self.fronts.trim(drop);
    }
}

/// What the buffers of a class are made with.
const fn capacity_of(class: usize) -> usize {
    let power = POOLED_CAPACITY_MIN << class;
    if power == READ_POWER { power + ENVELOPE } else { power }
}

/// The class of buffers with this capacity, which is at least the smallest.
#[inline]
fn class_of(capacity: usize) -> usize {
    (capacity.ilog2() - POOLED_CAPACITY_MIN.ilog2()) as usize
}

/// Appends the bytes if there is room for them; returns whether there is.
// By itself, so that the copy is all that is left of `extend_from_slice` before this is inlined.
fn append_within(buf: &mut Vec<u8>, bytes: &[u8]) -> bool {
    let has_room = has_room(buf, bytes.len());
    if has_room {
        buf.extend_from_slice(bytes);
    }
    has_room
}

#[inline(always)]
fn has_room(buf: &Vec<u8>, more: usize) -> bool {
    buf.capacity() - buf.len() >= more
}

/// Bytes that wait to be written on one connection, in order. Holds no memory when empty.
#[derive(Default)]
pub(crate) struct Output {
    /// Written before `tail`. Allocated only while something large waits.
    front: Option<Front>,
    tail: Vec<u8>,
    /// Bytes of the first buffer that are written already.
    written: usize,
    /// Bytes still to be written.
    len: u64,
    /// How long `tail` was when it was last written, as a rule, or [`TAIL_SIZE_MAX`] if there was more
    /// than one: the next one has room for as much.
    usual: u32,
}

impl Output {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of its buffers, used or not.
    pub(crate) fn capacity(&self) -> usize {
        let front = self.front.iter().flat_map(|front| front.iter());
        front.chain([&self.tail]).map(Vec::capacity).sum()
    }

    /// The first piece, and whether there is another behind it.
    #[inline]
    pub(crate) fn front(&self) -> (&[u8], bool) {
        match &self.front {
            None => (&self.tail[self.written..], false),
            Some(front) => match front.front() {
                Some(first) => (&first[self.written..], true),
                None => (&self.tail[self.written..], false),
            },
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the first bytes, of which there are so many.
    pub(crate) fn copy_front(&self, size: usize, out: &mut Vec<u8>) {
        self.copy_range(0, size, out);
    }

    /// Copies so many bytes from this place on.
    pub(crate) fn copy_range(&self, at: usize, mut size: usize, out: &mut Vec<u8>) {
        let mut skip = self.written + at;
        for buf in self.front.iter().flat_map(|front| front.iter()).chain([&self.tail]) {
            let part = &buf[skip.min(buf.len())..];
            skip = skip.saturating_sub(buf.len());
            let part = &part[..part.len().min(size)];
            out.extend_from_slice(part);
            size -= part.len();
        }
        debug_assert_eq!(size, 0, "so many bytes are there");
    }

    /// The same into another output, behind what is there.
    pub(crate) fn copy_front_to(&self, mut size: usize, to: &mut Self, pool: &mut BufPool) {
        let mut skip = self.written;
        for buf in self.front.iter().flat_map(|front| front.iter()).chain([&self.tail]) {
            let part = &buf[skip..];
            let part = &part[..part.len().min(size)];
            if !part.is_empty() {
                to.push(part, pool);
            }
            size -= part.len();
            skip = 0;
        }
        debug_assert_eq!(size, 0, "so many bytes are there");
    }

    /// Moves all that waits to the end of another output, without a copy if that is empty and this is in one piece.
    #[inline]
    pub(crate) fn move_to(&mut self, to: &mut Self, pool: &mut BufPool) {
        if to.is_empty() && self.front.is_none() {
            std::mem::swap(self, to);
            self.usual = to.usual;
        } else {
            self.copy_front_to(self.len as usize, to, pool);
            self.clear(pool);
        }
    }

    /// Appends all that waits in another output.
    pub(crate) fn append(&mut self, mut other: Self, pool: &mut BufPool) {
        other.copy_front_to(other.len as usize, self, pool);
        other.clear(pool);
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, bytes: &[u8], pool: &mut BufPool) {
        self.len += bytes.len() as u64;
        if !has_room(&self.tail, bytes.len()) {
            self.begin(bytes.len(), pool);
        }
        if !append_within(&mut self.tail, bytes) {
            self.push_behind(bytes, pool);
        }
    }

    /// Takes a small buffer if there is none and a small one will do: once for each write, as a
    /// rule.
    #[inline(never)]
    fn begin(&mut self, more: usize, pool: &mut BufPool) {
        let is_small = more.max(self.usual as usize) <= POOLED_CAPACITY_MIN;
        if self.tail.capacity() == 0
            && is_small
            && let Some(buf) = pool.take_small()
        {
            self.tail = buf;
        }
    }

    /// As [`Output::push`], where that is not it.
    #[cold]
    fn push_behind(&mut self, bytes: &[u8], pool: &mut BufPool) {
        self.tail(pool, bytes.len()).extend_from_slice(bytes);
    }

    /// Appends what `write` appends to the buffer, which has room for `room` bytes.
    #[inline]
    pub(crate) fn write_with(
        &mut self,
        pool: &mut BufPool,
        room: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let tail = self.tail(pool, room);
        let (before, capacity) = (tail.len(), tail.capacity());
        write(tail);
        debug_assert!(tail.len() >= before);
        let (written, grown) = (tail.len() - before, tail.capacity() - capacity);
        self.len += written as u64;
        pool.charge(grown);
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
        let front = self.front_mut(pool);
        if tail.is_empty() {
            pool.give(tail);
        } else {
            front.push_back(tail);
        }
        front.push_back(buf);
    }

    fn front_mut(&mut self, pool: &mut BufPool) -> &mut Front {
        self.front.get_or_insert_with(|| pool.fronts.take().unwrap_or_default())
    }

    /// The last buffer, with room for `more` bytes.
    #[inline(always)]
    fn tail(&mut self, pool: &mut BufPool, more: usize) -> &mut Vec<u8> {
        if self.tail.capacity() == 0 {
            self.tail = pool.take_for(more.max(self.usual as usize));
        } else if self.tail.len() >= TAIL_SIZE_MAX {
            let full = std::mem::replace(&mut self.tail, pool.take_for(more));
            self.front_mut(pool).push_back(full);
            self.usual = TAIL_SIZE_MAX as u32;
        } else {
            pool.reserve(&mut self.tail, more);
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

    /// All that waits, in one piece that is not from a pool.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len as usize);
        let mut skip = self.written;
        for buf in self.front.iter().flat_map(|front| front.iter()).chain([&self.tail]) {
            bytes.extend_from_slice(&buf[skip..]);
            skip = 0;
        }
        bytes
    }

    /// The first piece of the first so many bytes, and whether there is another behind it.
    pub(crate) fn front_within(&self, most: u64) -> (&[u8], bool) {
        let (piece, is_more) = self.front();
        match usize::try_from(most) {
            Ok(most) if most <= piece.len() => (&piece[..most], false),
            _ => (piece, is_more),
        }
    }

    /// As [`Output::slices`], of the first so many bytes.
    pub(crate) fn slices_within<'a>(&'a self, mut most: u64, slices: &mut [IoSlice<'a>]) -> usize {
        let (mut count, mut skip) = (0, self.written);
        for buf in self.front.iter().flat_map(|front| front.iter()).chain([&self.tail]) {
            let piece = &buf[skip..];
            let piece = &piece[..piece.len().min(usize::try_from(most).unwrap_or(usize::MAX))];
            skip = 0;
            if piece.is_empty() || count == slices.len() {
                continue;
            }
            slices[count] = IoSlice::new(piece);
            count += 1;
            most -= piece.len() as u64;
        }
        count
    }

    /// Takes out what is behind the first so many bytes, in pieces.
    pub(crate) fn take_behind(&mut self, bytes: u64, pool: &mut BufPool) -> Vec<Vec<u8>> {
        let mut taken = Vec::new();
        let mut left = self.len.saturating_sub(bytes) as usize;
        self.len -= left as u64;
        while left > 0 {
            let before = self.front.as_mut().and_then(|front| front.pop_back());
            let written = if before.is_none() { self.written } else { 0 };
            if written > 0 || left < self.tail.len() {
                let at = self.tail.len() - left;
                taken.push(pool.copy_of(&self.tail[at..]));
                self.tail.truncate(at);
                left = 0;
                if let (Some(before), Some(front)) = (before, &mut self.front) {
                    front.push_back(before);
                }
            } else {
                left -= self.tail.len();
                taken.push(std::mem::replace(&mut self.tail, before.unwrap_or_default()));
            }
        }
        if let Some(front) = self.front.take_if(|front| front.is_empty()) {
            pool.fronts.give(front);
        }
        if self.len == 0 {
            self.clear(pool);
        }
        taken.reverse();
        taken
    }

    /// Takes the first buffer out. Nothing of it may be written already.
    pub(crate) fn pop(&mut self, pool: &mut BufPool) -> Option<Vec<u8>> {
        debug_assert_eq!(self.written, 0);
        if self.is_empty() {
            return None;
        }
        let first = self.front.as_mut().and_then(|front| front.pop_front());
        if let Some(front) = self.front.take_if(|front| front.is_empty()) {
            pool.fronts.give(front);
        }
        let buf = first.unwrap_or_else(|| std::mem::take(&mut self.tail));
        self.len -= buf.len() as u64;
        Some(buf)
    }

    /// Drops the first `bytes` bytes: they are written, or need not be.
    ///
    /// # Panics
    /// When there are fewer.
    #[inline]
    pub(crate) fn advance(&mut self, bytes: u64, pool: &mut BufPool) {
        if bytes == self.len {
            self.clear(pool);
        } else {
            self.advance_part(bytes, pool);
        }
    }

    #[inline(never)]
    fn advance_part(&mut self, bytes: u64, pool: &mut BufPool) {
        assert!(bytes < self.len, "more written than there was");
        self.len -= bytes;
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
            if front.is_empty()
                && let Some(front) = self.front.take()
            {
                pool.fronts.give(front);
            }
        }
        self.written = written;
    }

    #[inline]
    pub(crate) fn clear(&mut self, pool: &mut BufPool) {
        if self.front.is_some() {
            return self.clear_front(pool);
        }
        // Small it is anyway. It falls slowly, so that one short write between long ones is nothing.
        if self.tail.capacity() > POOLED_CAPACITY_MIN {
            let len = self.tail.len().min(TAIL_SIZE_MAX) as u32;
            self.usual = len.max(self.usual - self.usual / 8);
        }
        self.written = 0;
        self.len = 0;
        pool.take_back(&mut self.tail);
    }

    #[cold]
    fn clear_front(&mut self, pool: &mut BufPool) {
        if let Some(mut front) = self.front.take() {
            front.drain(..).for_each(|buf| pool.give(buf));
            pool.fronts.give(front);
        }
        self.clear(pool);
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
        let mut large = pool.take_for(LARGE);
        large.resize(LARGE, b'x');
        output.push_buf(large, &mut pool);
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
        assert_eq!(pool.held(), 0);
    }

    #[test]
    fn what_is_behind_some_bytes_is_taken_out() {
        let mut pool = BufPool::default();
        let large = |pool: &mut BufPool| {
            let mut large = pool.take_for(LARGE);
            large.resize(LARGE, b'x');
            large
        };
        let all = [b"one", &vec![b'x'; LARGE][..], b"two"].concat();
        for written in [0, 1, 3, 4, LARGE, all.len() - 1] {
            for kept in 0..=all.len() - written {
                // Most are like those beside them.
                if kept > 8 && kept + 8 < all.len() - written && !kept.is_multiple_of(997) {
                    continue;
                }
                let mut output = Output::default();
                output.push(b"one", &mut pool);
                let buf = large(&mut pool);
                output.push_buf(buf, &mut pool);
                output.push(b"two", &mut pool);
                output.advance(written as u64, &mut pool);
                let (start, behind) = all[written..].split_at(kept);
                let (piece, is_more) = output.front_within(kept as u64);
                assert!(start.starts_with(piece) && (is_more || piece == start));
                let mut slices = [IoSlice::new(&[]); 4];
                let count = output.slices_within(kept as u64, &mut slices);
                let seen: Vec<u8> =
                    slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                assert_eq!(seen, start);
                let taken = output.take_behind(kept as u64, &mut pool);
                assert_eq!(taken.concat(), behind, "{written} {kept}");
                taken.into_iter().for_each(|piece| pool.give(piece));
                output.push(b"more", &mut pool);
                assert_eq!(contents(&output), [start, b"more"].concat());
                assert_eq!(output.len() as usize, kept + 4);
                output.clear(&mut pool);
                assert_eq!(pool.held(), 0);
            }
        }
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
    fn a_buffer_that_grows_changes_its_class() {
        let mut pool = BufPool::default();
        let buf = pool.take_for(4 * POOLED_CAPACITY_MIN);
        pool.give(buf);
        let mut buf = pool.take();
        buf.extend_from_slice(&[7; 500]);
        pool.reserve(&mut buf, 100);
        assert_eq!((buf.len(), buf.capacity()), (500, 4 * POOLED_CAPACITY_MIN));
        assert_eq!(pool.size, POOLED_CAPACITY_MIN);
        pool.reserve(&mut buf, 10 << 20);
        assert!(buf.capacity() > 10 << 20 && buf == [7; 500]);
        assert_eq!(pool.held(), buf.capacity());
        pool.give(buf);
        assert_eq!(pool.held(), 0);
        assert_eq!(pool.size, POOLED_CAPACITY_MIN);
    }

    #[test]
    fn a_buffer_for_reading_has_the_room_that_was_asked_for_and_is_used_again() {
        let mut pool = BufPool::default();
        let len = READ_POWER + ENVELOPE;
        let buf = pool.take_for_reading(len);
        assert_eq!((buf.capacity(), pool.held()), (len, len));
        let place = buf.as_ptr();
        pool.give(buf);
        let buf = pool.take_for_reading(len);
        assert_eq!((buf.capacity(), buf.as_ptr(), pool.held()), (len, place, len));
        pool.give(buf);
        // One of its class that is too small makes way.
        let small = Vec::with_capacity(len - 1);
        pool.charge(small.capacity());
        pool.give(small);
        let buf = pool.take_for_reading(len);
        assert_eq!((buf.capacity(), pool.held(), pool.size), (len, len, len));
        assert_eq!(pool.take_released(), len - 1);
        for other in [1, READ_POWER, len + 1, 10 * len] {
            assert!(pool.take_for_reading(other).capacity() >= other, "{other}");
        }
    }

    #[test]
    fn a_buffer_from_elsewhere_is_counted_as_large_as_it_is() {
        let mut pool = BufPool::default();
        let mut odd = Vec::with_capacity(POOLED_CAPACITY_MIN + 100);
        pool.charge(odd.capacity());
        odd.push(1);
        pool.give(odd);
        let mut output = Output::default();
        output.push(b"one", &mut pool);
        assert_eq!((pool.held(), pool.size), (output.tail.capacity(), 0));
        output.clear(&mut pool);
        assert_eq!((pool.held(), pool.size), (0, POOLED_CAPACITY_MIN + 100));
    }

    #[test]
    fn what_a_writer_adds_beyond_the_room_is_held_too() {
        let mut pool = BufPool::default();
        let mut output = Output::default();
        output.write_with(&mut pool, 10, |out| out.extend_from_slice(&[1; 100_000]));
        assert_eq!(pool.held(), output.tail.capacity());
        output.clear(&mut pool);
        assert_eq!(pool.held(), 0);
    }

    #[test]
    fn the_pool_forgets_what_a_peak_left() {
        let mut pool = BufPool::default();
        let peak: Vec<_> = (0..1000).map(|_| pool.take()).collect();
        peak.into_iter().for_each(|buf| pool.give(buf));
        for _ in 0..16 {
            pool.trim();
        }
        assert!(pool.size <= POOLED_CAPACITY_MIN);
    }
}
