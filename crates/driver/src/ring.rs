//! An io_uring with its receive buffers: nearly all unsafe code of this crate. Its interface is
//! safe; at worst, it waits in vain for a descriptor that was closed too early.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::process::abort;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use io_uring::types::{BufRingEntry, Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use rustix::event::PollFlags;
use rustix::io::Errno;

/// Submissions that fit between two system calls.
const SUBMISSIONS: u32 = 256;
const COMPLETIONS: u32 = 4096;
/// Writes submitted together.
const WRITES_MAX: usize = SUBMISSIONS as usize;

/// The most bytes of one receive. A buffer that has only seen small messages has one page resident.
/// Since workers tell glibc to map buffers of this size separately, a freed one returns to the
/// system.
pub(crate) const BUFFER_SIZE: usize = 64 * 1024;
/// The number of buffers at low load, and the maximum; powers of two.
const BUFFERS_MIN: usize = 16;
const BUFFERS_MAX: usize = 128;
/// The allocator's overhead for a buffer with its own mapping: a page, for its header and the
/// alignment of its beginning.
const BUFFER_ROOM: usize = 4096;
/// Memory of the kernel's queues, and of the records of completions and writes.
const QUEUES_SIZE_MAX: usize = 1 << 20;
/// The most bytes that all of it takes.
pub(crate) const SIZE_MAX: usize = BUFFERS_MAX * (BUFFER_SIZE + BUFFER_ROOM) + QUEUES_SIZE_MAX;
/// After this many bytes, rounded up to buffers, the kernel stops receiving on a connection until
/// it is asked again, if it supports a limit (Linux 6.17). Without a limit it would take up to 32
/// buffers, 2 MiB, at once, from a connection that is paused as soon as its first bytes are seen.
/// So kernels without support are asked for each buffer.
const RECEIVED_MAX: u32 = 4 * BUFFER_SIZE as u32;
/// The most bytes that still come, beside one buffer, from a connection to be paused: the kernel is
/// asked for more as soon as a wait has reported the last bytes, and is told to stop after that
/// wait.
pub(crate) const LATE_MAX: usize = 2 * (RECEIVED_MAX as usize + BUFFER_SIZE);
const GROUP: u16 = 0;
/// After this many waits – a wait without events counts several times – surplus buffers are
/// released.
const TRIM_AGE: u32 = 256;
const IDLE_AGE: u32 = 64;

/// How often accepting is cancelled: a cancellation fails while it is just running.
const CANCELS_MAX: usize = 16;

/// The kind of an operation, in the upper bits of its user data; the caller's tag is in the lower
/// bits.
const KIND_SHIFT: u32 = 62;
const RECEIVE: u64 = 0;
const ACCEPT: u64 = 1;
const POLL: u64 = 2;
/// Internal: the index of a write, or `UNHEARD`.
const OWN: u64 = 3;
const TAG_MASK: u64 = (1 << KIND_SHIFT) - 1;
const UNHEARD: u64 = TAG_MASK;

/// The outcome of an operation.
pub(crate) enum Completion {
    /// `None` is the end. Unless `goes_on`, receiving is over.
    Received { tag: u64, bytes: Result<Option<Buffer>, Errno>, goes_on: bool },
    /// Unless `goes_on`, accepting is over.
    Accepted { tag: u64, socket: Result<OwnedFd, Errno>, goes_on: bool },
    /// Empty if it was cancelled. Unless `goes_on`, polling is over.
    Polled { tag: u64, events: PollFlags, goes_on: bool },
}

/// Received bytes. Return it with [`Ring::recycle`].
pub(crate) struct Buffer {
    id: u16,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) struct Ring {
    io: IoUring,
    /// Completions taken from the kernel's queue, so that it never overflows for long.
    pending: VecDeque<cqueue::Entry>,
    pool: Pool,
    enter_flags: EnterFlags,
    /// Whether the kernel supports `RECEIVED_MAX`.
    has_limit: bool,
    writes: Vec<Write>,
    /// Slices of all writes. What they point to lives as long as the [`Writes`] they were made
    /// from.
    slices: Vec<libc::iovec>,
    messages: Vec<libc::msghdr>,
    /// Writes without a result.
    open_writes: usize,
}

struct Write {
    descriptor: RawFd,
    slices: usize,
    wanted: usize,
    result: i32,
}

impl Ring {
    /// # Errors
    /// If the kernel has no io_uring, forbids it, or is older than 6.1.
    pub(crate) fn new() -> io::Result<Self> {
        let io: IoUring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_clamp()
            .setup_cqsize(COMPLETIONS)
            .build(SUBMISSIONS)?;
        let params = io.params();
        if !params.is_feature_ext_arg() || !params.is_feature_nodrop() {
            return Err(Errno::INVAL.into());
        }
        let mut enter_flags = EnterFlags::GETEVENTS;
        // A worker that waits for clients does not wait for a disk.
        enter_flags.set(EnterFlags::NO_IOWAIT, params.is_feature_no_iowait());
        let mut ring = Self {
            io,
            pending: VecDeque::new(),
            pool: Pool::new(),
            enter_flags,
            has_limit: false,
            writes: Vec::new(),
            slices: Vec::new(),
            messages: Vec::new(),
            open_writes: 0,
        };
        ring.register_buffers(BUFFERS_MIN)?;
        // A filter may allow the set-up and still forbid the use.
        ring.push(&opcode::Nop::new().build().user_data(OWN << KIND_SHIFT | UNHEARD));
        ring.enter(1, None)?;
        ring.has_limit = ring.probe_limit()?;
        Ok(ring)
    }

    /// Behaves as on a kernel without the limit.
    pub(crate) fn forget_limit(&mut self) {
        self.has_limit = false;
    }

    /// Older kernels refuse a limit (io_recvmsg_prep in io_uring/net.c) before they check the
    /// descriptor.
    fn probe_limit(&mut self) -> io::Result<bool> {
        self.push(&receive_up_to_limit(Fd(-1)).user_data(RECEIVE << KIND_SHIFT));
        self.enter(1, None)?;
        let result = self.pending.pop_front().map(|entry| count(entry.result()));
        Ok(result == Some(Err(Errno::BADF)))
    }

    /// Accepts until that fails or is cancelled.
    pub(crate) fn accept(&mut self, listener: BorrowedFd<'_>, tag: u64) {
        let entry =
            opcode::AcceptMulti::new(Fd(listener.as_raw_fd())).flags(libc::SOCK_CLOEXEC).build();
        self.push(&entry.user_data(ACCEPT << KIND_SHIFT | tag));
    }

    /// Receives until the end, a failure – such as no free buffer –, a cancellation, or
    /// `RECEIVED_MAX` bytes; on kernels without the limit, until any bytes have come.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>, tag: u64) {
        let socket = Fd(socket.as_raw_fd());
        let entry = match self.has_limit {
            true => receive_up_to_limit(socket),
            false => receive_once(socket),
        };
        self.push(&entry.user_data(RECEIVE << KIND_SHIFT | tag));
    }

    /// Waits once for one of the events, an error, or the peer's end: the kernel adds that. A state
    /// that holds already is reported at once.
    pub(crate) fn poll(&mut self, descriptor: RawFd, events: PollFlags, tag: u64) {
        let entry = opcode::PollAdd::new(Fd(descriptor), events.bits() as u32).build();
        self.push(&entry.user_data(POLL << KIND_SHIFT | tag));
    }

    /// The same until it is cancelled: reports the state at first, and then each change.
    pub(crate) fn poll_changes(&mut self, descriptor: RawFd, events: PollFlags, tag: u64) {
        let entry = opcode::PollAdd::new(Fd(descriptor), events.bits() as u32).multi(true).build();
        self.push(&entry.user_data(POLL << KIND_SHIFT | tag));
    }

    pub(crate) fn cancel_receive(&mut self, tag: u64) {
        self.cancel(RECEIVE << KIND_SHIFT | tag);
    }

    /// Stops accepting, and returns accepted sockets that [`Ring::next`] has not returned.
    pub(crate) fn stop_accepting(&mut self, tag: u64) -> Vec<OwnedFd> {
        let user_data = ACCEPT << KIND_SHIFT | tag;
        for _ in 0..CANCELS_MAX {
            let is_end = |entry: &cqueue::Entry| {
                entry.user_data() == user_data && !cqueue::more(entry.flags())
            };
            if self.pending.iter().any(is_end) {
                break;
            }
            self.cancel(user_data);
            self.submit();
        }
        let (ours, others): (Vec<_>, Vec<_>) =
            self.pending.drain(..).partition(|entry| entry.user_data() == user_data);
        self.pending.extend(others);
        let accepted = ours.into_iter().filter_map(|entry| count(entry.result()).ok());
        // SAFETY: the kernel has made these descriptors for us, and their completions are removed.
        accepted.map(|fd| unsafe { OwnedFd::from_raw_fd(fd as RawFd) }).collect()
    }

    pub(crate) fn cancel_accept(&mut self, tag: u64) {
        self.cancel(ACCEPT << KIND_SHIFT | tag);
    }

    pub(crate) fn cancel_poll(&mut self, tag: u64) {
        self.cancel(POLL << KIND_SHIFT | tag);
    }

    fn cancel(&mut self, user_data: u64) {
        let entry = opcode::AsyncCancel::new(user_data).build();
        self.push(&entry.user_data(OWN << KIND_SHIFT | UNHEARD));
    }

    /// Submits everything that is queued to the kernel.
    pub(crate) fn submit(&mut self) {
        if self.io.submission().is_empty() {
            return;
        }
        if let Err(error) = self.enter(0, None) {
            // Continuing would leave the kernel with pointers into memory that is reused.
            give_up(&error);
        }
    }

    /// Begins a batch of writes.
    pub(crate) fn writes<'b>(&mut self) -> Writes<'_, 'b> {
        self.writes.clear();
        self.slices.clear();
        Writes { ring: self, bytes: PhantomData }
    }

    /// The result of the write of this index in the last batch: how much there was to write, and
    /// how much was written.
    pub(crate) fn written(&self, index: usize) -> (usize, Result<usize, Errno>) {
        let write = &self.writes[index];
        (write.wanted, count(write.result))
    }

    /// Waits for a completion, at most for `timeout`.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let has_pending = !self.pending.is_empty();
        if std::mem::take(&mut self.pool.is_short) {
            self.pool.grow((2 * self.pool.buffers.len()).min(BUFFERS_MAX));
        } else if !has_pending && !self.io.submission().cq_overflow() {
            // Some of the completions that the kernel holds back for lack of room have buffers.
            self.trim()?;
        }
        match timeout {
            _ if has_pending => Ok(()),
            None => self.enter(1, None),
            Some(Duration::ZERO) => self.enter(0, None),
            Some(timeout) => {
                let timeout = Timespec::from(timeout);
                self.enter(1, Some(&SubmitArgs::new().timespec(&timeout)))
            }
        }
    }

    /// The number of completions that [`Ring::next`] has not returned.
    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// The next completion.
    pub(crate) fn next(&mut self) -> Option<Completion> {
        let entry = self.pending.pop_front()?;
        let tag = entry.user_data() & TAG_MASK;
        let goes_on = cqueue::more(entry.flags());
        Some(match entry.user_data() >> KIND_SHIFT {
            RECEIVE => {
                let len = count(entry.result());
                let buffer = cqueue::buffer_select(entry.flags())
                    .map(|id| self.pool.take(id, len.unwrap_or(0)));
                let bytes = match (len, buffer) {
                    (Ok(1..), buffer) => Ok(buffer),
                    (len, buffer) => {
                        buffer.into_iter().for_each(|buffer| self.recycle(buffer));
                        len.map(|_| None)
                    }
                };
                Completion::Received { tag, bytes, goes_on }
            }
            ACCEPT => {
                // SAFETY: the kernel has made this descriptor for us, and each completion is taken
                // from `pending` once.
                let own = |fd| unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
                Completion::Accepted { tag, socket: count(entry.result()).map(own), goes_on }
            }
            _ => {
                let events = count(entry.result()).unwrap_or(0);
                let events = PollFlags::from_bits_retain(events as _);
                Completion::Polled { tag, events, goes_on }
            }
        })
    }

    /// Returns a buffer, or its replacement, to the kernel.
    pub(crate) fn recycle(&mut self, buffer: Buffer) {
        self.pool.taken -= 1;
        self.pool.publish(buffer.id, buffer.bytes);
    }

    /// The kernel ran out of buffers: it gets more with the next wait, within the limit.
    pub(crate) fn want_buffers(&mut self) {
        self.pool.is_short = true;
    }

    /// Bytes of buffers returned to the allocator since the last call.
    pub(crate) fn take_released(&mut self) -> usize {
        std::mem::take(&mut self.pool.released)
    }

    /// Releases buffers that were not needed for some time.
    fn trim(&mut self) -> io::Result<()> {
        if self.pool.age < TRIM_AGE {
            return Ok(());
        }
        debug_assert_eq!(self.pool.taken, 0, "nothing is pending");
        let needed = (2 * self.pool.taken_max).next_power_of_two().max(BUFFERS_MIN);
        (self.pool.age, self.pool.taken_max) = (0, 0);
        if self.pool.buffers.len() <= needed {
            return Ok(());
        }
        // Nothing is lost: a receive looks for its buffer group when bytes arrive, and runs only
        // while this thread is in the kernel, because of DEFER_TASKRUN.
        self.io.submitter().unregister_buf_ring(GROUP)?;
        self.pool.clear();
        self.register_buffers(needed)
    }

    fn register_buffers(&mut self, count: usize) -> io::Result<()> {
        let address = self.pool.entries.as_ptr() as u64;
        let submitter = self.io.submitter();
        // SAFETY: `entries` has BUFFERS_MAX of them and lives until `drop` has unregistered it.
        unsafe {
            submitter.register_buf_ring_with_flags(address, BUFFERS_MAX as u16, GROUP, 0)?;
        }
        self.pool.grow(count);
        Ok(())
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: what entries point to – a batch's messages and slices – stays until their
        // completions have been seen, see `Writes::submit`; the others point to nothing.
        while unsafe { self.io.submission().push(entry) }.is_err() {
            self.submit();
        }
    }

    /// Submits the queue, waits for `want` completions as `args` say, and takes those that are
    /// there.
    fn enter(&mut self, want: u32, args: Option<&SubmitArgs<'_, '_>>) -> io::Result<()> {
        let (submitter, mut queue, _) = self.io.split();
        queue.sync();
        let count = queue.len() as u32;
        let flags = self.enter_flags;
        // SAFETY: the arguments match the flags; for the queue see `push`.
        let result = unsafe {
            match args {
                Some(_) => {
                    let flags = flags | EnterFlags::EXT_ARG;
                    submitter.enter(count, want, flags.bits(), args)
                }
                None => submitter.enter::<libc::sigset_t>(count, want, flags.bits(), None),
            }
        };
        drop(queue);
        self.reap();
        match result.as_ref().map_err(io::Error::raw_os_error) {
            // Timeout; signal; full completion queue; temporarily out of memory. Unsubmitted
            // entries are still queued.
            Err(Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)) => Ok(()),
            _ => result.map(drop),
        }
    }

    fn reap(&mut self) {
        let before = self.pending.len();
        for entry in self.io.completion() {
            let user_data = entry.user_data();
            if user_data >> KIND_SHIFT != OWN {
                self.pool.taken += usize::from(cqueue::buffer_select(entry.flags()).is_some());
                self.pending.push_back(entry);
            } else if user_data & TAG_MASK != UNHEARD {
                self.writes[(user_data & TAG_MASK) as usize].result = entry.result();
                self.open_writes -= 1;
            }
        }
        self.pool.taken_max = self.pool.taken_max.max(self.pool.taken);
        self.pool.age += if self.pending.len() == before { IDLE_AGE } else { 1 };
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Closes descriptors that were not returned yet.
        while self.next().is_some() {}
        if self.io.submitter().unregister_buf_ring(GROUP).is_err() {
            // The kernel may still write to them.
            std::mem::forget(std::mem::take(&mut self.pool.buffers));
            return;
        }
        // SAFETY: allocated in `Pool::new` with this layout; the kernel no longer uses it.
        unsafe { dealloc(self.pool.entries.as_ptr().cast(), Pool::LAYOUT) };
    }
}

/// An entry that receives repeatedly.
fn receive_up_to_limit(socket: Fd) -> squeue::Entry {
    /// Offset of a receive's limit in io_uring_sqe, unknown to the crate: `optlen`
    /// (include/uapi/linux/io_uring.h).
    const LIMIT_AT: usize = 44;
    const { assert!(size_of::<squeue::Entry>() == 64, "an entry is an io_uring_sqe") };
    let mut entry = opcode::RecvMulti::new(socket, GROUP).build();
    // SAFETY: an entry is the kernel's structure, in which these four aligned bytes may have any
    // value.
    unsafe { (&raw mut entry).byte_add(LIMIT_AT).cast::<u32>().write(RECEIVED_MAX) };
    entry
}

/// An entry that receives into one buffer.
fn receive_once(socket: Fd) -> squeue::Entry {
    let entry = opcode::Recv::new(socket, std::ptr::null_mut(), 0).buf_group(GROUP).build();
    entry.flags(squeue::Flags::BUFFER_SELECT)
}

fn count(result: i32) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result))
}

/// A batch of writes of bytes borrowed for `'b`.
pub(crate) struct Writes<'r, 'b> {
    ring: &'r mut Ring,
    bytes: PhantomData<&'b [u8]>,
}

impl<'b> Writes<'_, 'b> {
    pub(crate) fn is_full(&self) -> bool {
        self.ring.writes.len() == WRITES_MAX
    }

    pub(crate) fn push(&mut self, socket: BorrowedFd<'_>, slices: &[IoSlice<'b>]) {
        self.ring.slices.extend(slices.iter().map(|slice| libc::iovec {
            iov_base: slice.as_ptr().cast_mut().cast(),
            iov_len: slice.len(),
        }));
        self.ring.writes.push(Write {
            descriptor: socket.as_raw_fd(),
            slices: slices.len(),
            wanted: slices.iter().map(|slice| slice.len()).sum(),
            result: 0,
        });
    }

    /// Writes as much as possible without waiting.
    pub(crate) fn submit(self) {
        let ring = self.ring;
        ring.messages.clear();
        let mut first = 0;
        for write in &ring.writes {
            // SAFETY: an empty message is all zeros.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            // In bounds: the writes' slices are consecutive.
            message.msg_iov = ring.slices[first..].as_ptr().cast_mut();
            message.msg_iovlen = write.slices as _;
            ring.messages.push(message);
            first += write.slices;
        }
        ring.open_writes = ring.writes.len();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        for index in 0..ring.writes.len() {
            let write = &ring.writes[index];
            let socket = Fd(write.descriptor);
            let message = &ring.messages[index];
            let entry = if write.slices == 1 {
                // SAFETY: the message's first slice exists.
                let slice = unsafe { *message.msg_iov };
                let len = slice.iov_len.min(i32::MAX as usize) as u32;
                opcode::Send::new(socket, slice.iov_base.cast(), len).flags(flags).build()
            } else {
                opcode::SendMsg::new(socket, message).flags(flags as u32).build()
            };
            ring.push(&entry.user_data(OWN << KIND_SHIFT | index as u64));
        }
        // MSG_DONTWAIT makes the kernel finish each write during submission (io_sendmsg_prep in
        // io_uring/net.c sets REQ_F_NOWAIT: what would wait fails with EAGAIN), so this is one
        // call. Nothing that the entries point to may change before: the loop ensures this.
        while ring.open_writes > 0 {
            let is_submitted = ring.io.submission().is_empty();
            if is_submitted {
                if let Err(error) = ring.enter(1, None) {
                    give_up(&error);
                }
            } else {
                ring.submit();
            }
        }
    }
}

/// For when the kernel has not taken what its entries point to.
#[cold]
fn give_up(error: &io::Error) -> ! {
    // A panic would free that memory while unwinding.
    let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("io_uring_enter: {error}\n"));
    abort();
}

/// The buffers that the kernel receives into, for all connections. See
/// `io_uring_register_buf_ring(3)`.
struct Pool {
    entries: NonNull<BufRingEntry>,
    /// By identifier. Taken ones are empty here.
    buffers: Vec<Vec<u8>>,
    tail: u16,
    /// Buffers with bytes that have not been returned.
    taken: usize,
    /// The most since the last trim.
    taken_max: usize,
    age: u32,
    is_short: bool,
    /// Bytes returned to the allocator.
    released: usize,
}

impl Pool {
    const LAYOUT: Layout =
        match Layout::from_size_align(BUFFERS_MAX * size_of::<BufRingEntry>(), 4096) {
            Ok(layout) => layout,
            Err(_) => panic!("a page is a valid layout"),
        };

    fn new() -> Self {
        // SAFETY: the layout is not empty.
        let entries = unsafe { alloc_zeroed(Self::LAYOUT) };
        let Some(entries) = NonNull::new(entries.cast()) else { handle_alloc_error(Self::LAYOUT) };
        Self {
            entries,
            buffers: Vec::new(),
            tail: 0,
            taken: 0,
            taken_max: 0,
            age: 0,
            is_short: false,
            released: 0,
        }
    }

    fn grow(&mut self, count: usize) {
        for id in self.buffers.len()..count {
            self.buffers.push(Vec::new());
            self.publish(id as u16, Vec::with_capacity(BUFFER_SIZE));
        }
    }

    /// Forgets all buffers. The kernel must not use them.
    fn clear(&mut self) {
        self.released += self.buffers.iter().map(Vec::capacity).sum::<usize>();
        self.buffers = Vec::new();
        self.tail = 0;
        self.store_tail();
    }

    /// The kernel may write into the buffer from now on, while this thread calls it.
    fn publish(&mut self, id: u16, mut bytes: Vec<u8>) {
        bytes.clear();
        bytes.reserve(BUFFER_SIZE);
        let index = usize::from(self.tail) % BUFFERS_MAX;
        // SAFETY: within `entries`. Each buffer has its own identifier, so there are never more
        // than BUFFERS_MAX, and this entry is not in use.
        let entry = unsafe { self.entries.add(index).as_mut() };
        entry.set_addr(bytes.as_mut_ptr() as u64);
        entry.set_len(BUFFER_SIZE as u32);
        entry.set_bid(id);
        self.buffers[usize::from(id)] = bytes;
        self.tail = self.tail.wrapping_add(1);
        self.store_tail();
    }

    /// A buffer that the kernel has written `len` bytes into.
    fn take(&mut self, id: u16, len: usize) -> Buffer {
        let mut bytes = std::mem::take(&mut self.buffers[usize::from(id)]);
        assert!(len <= bytes.capacity(), "the kernel keeps to the buffer's length");
        // SAFETY: there is room, and the kernel has initialized them.
        unsafe { bytes.set_len(len) };
        Buffer { id, bytes }
    }

    fn store_tail(&mut self) {
        // SAFETY: the tail is a field of the first entry that only this thread writes, aligned for
        // a u16; the kernel reads it.
        let tail = unsafe { &*BufRingEntry::tail(self.entries.as_ptr()).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::with_exposed_provenance_mut;

    use super::*;

    /// What the kernel does with a pool of buffers, for tools that see no kernel.
    struct Kernel {
        entries: *mut BufRingEntry,
        head: u16,
    }

    impl Kernel {
        /// Writes to the next buffer, and says which it was; `None` if there is none.
        fn receives(&mut self, bytes: &[u8]) -> Option<u16> {
            // SAFETY: the first entry is there as long as its pool.
            let tail = unsafe { &*BufRingEntry::tail(self.entries).cast::<AtomicU16>() };
            if tail.load(Ordering::Acquire) == self.head {
                return None;
            }
            // SAFETY: within the entries, see `Pool::publish`.
            let entry = unsafe { &*self.entries.add(usize::from(self.head) % BUFFERS_MAX) };
            self.head = self.head.wrapping_add(1);
            let len = bytes.len().min(entry.len() as usize);
            let buffer = with_exposed_provenance_mut::<u8>(entry.addr() as usize);
            // SAFETY: the pool has lent this buffer, which has so much room, until it is taken.
            unsafe { buffer.copy_from_nonoverlapping(bytes.as_ptr(), len) };
            Some(entry.bid())
        }
    }

    fn free(pool: Pool) {
        // SAFETY: allocated in `Pool::new` with this layout.
        unsafe { dealloc(pool.entries.as_ptr().cast(), Pool::LAYOUT) };
    }

    #[test]
    fn buffers_are_lent_and_taken_back_until_there_are_none() {
        let mut pool = Pool::new();
        let mut kernel = Kernel { entries: pool.entries.as_ptr(), head: 0 };
        assert_eq!(kernel.receives(b"too early"), None);
        pool.grow(2);
        let [first, second] =
            [&b"first"[..], b"second"].map(|bytes| kernel.receives(bytes).unwrap());
        assert_eq!(kernel.receives(b"too much"), None);
        let first = pool.take(first, 5);
        assert_eq!(first.bytes, b"first");
        pool.publish(first.id, first.bytes);
        // Around the ring and again, one of them held.
        let held = pool.take(second, 6);
        for round in 0..2 * BUFFERS_MAX {
            let text = round.to_string();
            let id = kernel.receives(text.as_bytes()).unwrap();
            let buffer = pool.take(id, text.len());
            assert_eq!(buffer.bytes, text.as_bytes());
            // A handler may have kept the bytes: then another buffer is lent.
            let bytes = if round % 2 == 0 { Vec::new() } else { buffer.bytes };
            pool.publish(buffer.id, bytes);
        }
        assert_eq!(
            (held.bytes.as_slice(), kernel.receives(b"").map(|_| kernel.receives(b""))),
            (&b"second"[..], Some(None))
        );
        free(pool);
    }

    #[test]
    fn a_pool_that_was_cleared_begins_anew() {
        let mut pool = Pool::new();
        pool.grow(4);
        pool.clear();
        assert_eq!(pool.released, 4 * BUFFER_SIZE);
        let mut kernel = Kernel { entries: pool.entries.as_ptr(), head: 0 };
        assert_eq!(kernel.receives(b"too early"), None);
        pool.grow(BUFFERS_MAX);
        let whole = vec![7; BUFFER_SIZE + 1];
        let ids: Vec<u16> = (0..BUFFERS_MAX).map(|_| kernel.receives(&whole).unwrap()).collect();
        assert_eq!((ids, kernel.receives(&whole)), ((0..BUFFERS_MAX as u16).collect(), None));
        assert!(pool.take(7, BUFFER_SIZE).bytes == whole[..BUFFER_SIZE]);
        free(pool);
    }

    #[test]
    fn only_the_limit_makes_an_entry_another_one() {
        let words = |entry: squeue::Entry| {
            // SAFETY: an entry is the kernel's structure of 64 bytes, all of which were written.
            unsafe { std::mem::transmute::<squeue::Entry, [u32; 16]>(entry) }
        };
        let plain = words(opcode::RecvMulti::new(Fd(5), GROUP).build());
        let mut expected = plain;
        expected[11] = RECEIVED_MAX;
        assert_eq!(words(receive_up_to_limit(Fd(5))), expected);
    }
}
