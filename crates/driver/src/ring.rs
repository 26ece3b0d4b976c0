//! An io_uring with its receive buffers: nearly all unsafe code of this crate. What it hands out is
//! safe to use in any way; at worst a descriptor that was closed too early is waited for in vain.

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

/// Submissions that fit between two calls of the kernel.
const SUBMISSIONS: u32 = 256;
const COMPLETIONS: u32 = 4096;
/// Writes submitted together.
const WRITES_MAX: usize = SUBMISSIONS as usize;

/// What one receive takes at most. Of a buffer that has seen only small messages, one page is
/// resident; and as workers tell glibc to map what is this large by itself, one that is let go of
/// goes back to the system.
pub(crate) const BUFFER_SIZE: usize = 64 * 1024;
/// Buffers the kernel has when little is going on, and at most; powers of two.
const BUFFERS_MIN: usize = 16;
const BUFFERS_MAX: usize = 128;
/// What the allocator adds to a buffer that has a mapping of its own: a page, for its header and
/// the shift of its beginning.
const BUFFER_ROOM: usize = 4096;
/// The kernel's queues, and what is kept of completions and of writes for as long as it lives.
const QUEUES_SIZE_MAX: usize = 1 << 20;
/// The most bytes that all of it takes.
pub(crate) const SIZE_MAX: usize = BUFFERS_MAX * (BUFFER_SIZE + BUFFER_ROOM) + QUEUES_SIZE_MAX;
/// After so many bytes, rounded up to buffers, the kernel stops receiving of a connection until it is
/// asked again, where it can be told to (Linux 6.17). Without end it would take up to 32 buffers,
/// 2 MiB, at once, of one that is to be paused as soon as its first bytes are seen: where it cannot be
/// told it is asked for each buffer.
const RECEIVED_MAX: u32 = 4 * BUFFER_SIZE as u32;
/// What comes of a connection beside one buffer when it is to be paused: the kernel is asked for more
/// as soon as a wait has reported what it was asked for, and is told to stop behind that wait.
pub(crate) const LATE_MAX: usize = 2 * (RECEIVED_MAX as usize + BUFFER_SIZE);
const GROUP: u16 = 0;
/// After so many waits – a wait in vain counts for several – surplus buffers are let go of.
const TRIM_AGE: u32 = 256;
const IDLE_AGE: u32 = 64;

/// How often accepting is told to stop: it does not when it is just going on.
const CANCELS_MAX: usize = 16;

/// The kind of an operation, in the upper bits of its user data; the caller's tag is below.
const KIND_SHIFT: u32 = 62;
const RECEIVE: u64 = 0;
const ACCEPT: u64 = 1;
const POLL: u64 = 2;
/// Of no concern to the caller: the index of a write, or `UNHEARD`.
const OWN: u64 = 3;
const TAG_MASK: u64 = (1 << KIND_SHIFT) - 1;
const UNHEARD: u64 = TAG_MASK;

/// What became of an operation.
pub(crate) enum Completion {
    /// `None` is the end. Unless `goes_on`, receiving is over.
    Received { tag: u64, bytes: Result<Option<Buffer>, Errno>, goes_on: bool },
    /// Unless `goes_on`, accepting is over.
    Accepted { tag: u64, socket: Result<OwnedFd, Errno>, goes_on: bool },
    /// Empty if it was cancelled. Unless `goes_on`, polling is over.
    Polled { tag: u64, events: PollFlags, goes_on: bool },
}

/// Bytes received. Goes back by [`Ring::recycle`].
pub(crate) struct Buffer {
    id: u16,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) struct Ring {
    io: IoUring,
    /// Completions taken out of the kernel's queue, which so never overflows for long.
    pending: VecDeque<cqueue::Entry>,
    pool: Pool,
    enter_flags: EnterFlags,
    /// Whether the kernel knows of `RECEIVED_MAX`.
    has_limit: bool,
    writes: Vec<Write>,
    /// Of all writes; what it points to lives as long as the [`Writes`] they were made of.
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
    /// When the kernel has no io_uring, forbids it, or is older than 6.1.
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
        // A worker that waits for clients is not waiting for a disk.
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
        // What allows the set-up may still forbid the use.
        ring.push(&opcode::Nop::new().build().user_data(OWN << KIND_SHIFT | UNHEARD));
        ring.enter(1, None)?;
        ring.has_limit = ring.probe_limit()?;
        Ok(ring)
    }

    /// As a kernel that has no limit would have it.
    pub(crate) fn forget_limit(&mut self) {
        self.has_limit = false;
    }

    /// Older kernels refuse a limit (io_recvmsg_prep in io_uring/net.c), which is looked at before
    /// the descriptor is.
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

    /// Receives until the end, or a failure – among them, that there is no buffer – or until it is
    /// cancelled, or `RECEIVED_MAX` bytes have come, or any at all where the kernel knows no limit.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>, tag: u64) {
        let socket = Fd(socket.as_raw_fd());
        let entry = match self.has_limit {
            true => receive_up_to_limit(socket),
            false => receive_once(socket),
        };
        self.push(&entry.user_data(RECEIVE << KIND_SHIFT | tag));
    }

    /// Waits once for one of the events, or for an error, or for the peer to end its side: the
    /// kernel adds that, and what is so already is told at once.
    pub(crate) fn poll(&mut self, descriptor: RawFd, events: PollFlags, tag: u64) {
        let entry = opcode::PollAdd::new(Fd(descriptor), events.bits().into()).build();
        self.push(&entry.user_data(POLL << KIND_SHIFT | tag));
    }

    /// The same until it is cancelled: what is so is told at first, and then when it is so anew.
    pub(crate) fn poll_changes(&mut self, descriptor: RawFd, events: PollFlags, tag: u64) {
        let entry = opcode::PollAdd::new(Fd(descriptor), events.bits().into()).multi(true).build();
        self.push(&entry.user_data(POLL << KIND_SHIFT | tag));
    }

    pub(crate) fn cancel_receive(&mut self, tag: u64) {
        self.cancel(RECEIVE << KIND_SHIFT | tag);
    }

    /// Ends accepting, and returns those accepted of whom [`Ring::next`] has not told.
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
        // SAFETY: the kernel has made these descriptors for us, and their completions are gone.
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

    /// Hands everything queued to the kernel.
    pub(crate) fn submit(&mut self) {
        if self.io.submission().is_empty() {
            return;
        }
        if let Err(error) = self.enter(0, None) {
            // Going on would leave the kernel pointers into memory that is used for other things.
            give_up(&error);
        }
    }

    /// Begins a batch of writes.
    pub(crate) fn writes<'b>(&mut self) -> Writes<'_, 'b> {
        self.writes.clear();
        self.slices.clear();
        Writes { ring: self, bytes: PhantomData }
    }

    /// What became of the write of this index of the last batch: how much was to be written, and
    /// how much was.
    pub(crate) fn written(&self, index: usize) -> (usize, Result<usize, Errno>) {
        let write = &self.writes[index];
        (write.wanted, count(write.result))
    }

    /// Waits until something has happened, at most for `timeout`.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let has_pending = !self.pending.is_empty();
        if std::mem::take(&mut self.pool.is_short) {
            self.pool.grow((2 * self.pool.buffers.len()).min(BUFFERS_MAX));
        } else if !has_pending && !self.io.submission().cq_overflow() {
            // Of those that the kernel keeps for want of room some have buffers.
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

    /// How many things have happened that [`Ring::next`] has not told of.
    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// The next thing that happened.
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
                // out of `pending` once.
                let own = |fd| unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
                Completion::Accepted { tag, socket: count(entry.result()).map(own), goes_on }
            }
            _ => {
                let events = count(entry.result()).unwrap_or(0);
                let events = PollFlags::from_bits_retain(events as u16);
                Completion::Polled { tag, events, goes_on }
            }
        })
    }

    /// Gives a buffer, or what stands for it now, back to the kernel.
    pub(crate) fn recycle(&mut self, buffer: Buffer) {
        self.pool.taken -= 1;
        self.pool.publish(buffer.id, buffer.bytes);
    }

    /// The kernel ran out of buffers: with the next wait it gets more, within the limit.
    pub(crate) fn want_buffers(&mut self) {
        self.pool.is_short = true;
    }

    /// Bytes of buffers that went back to the allocator since the last call.
    pub(crate) fn take_released(&mut self) -> usize {
        std::mem::take(&mut self.pool.released)
    }

    /// Lets go of buffers that were not needed for some time.
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
        // Nothing is lost: a receive looks for its group when bytes arrive, and runs only while
        // this thread is in the kernel, as DEFER_TASKRUN has it.
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
        // completion has been seen, see `Writes::submit`; the others point to nothing.
        while unsafe { self.io.submission().push(entry) }.is_err() {
            self.submit();
        }
    }

    /// Submits what is queued, waits for `want` completions as `args` say and takes those there
    /// are.
    fn enter(&mut self, want: u32, args: Option<&SubmitArgs<'_, '_>>) -> io::Result<()> {
        let (submitter, mut queue, _) = self.io.split();
        queue.sync();
        let count = queue.len() as u32;
        let flags = self.enter_flags;
        // SAFETY: the arguments are what the flags say they are; about the queue see `push`.
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
            // The time is over; a signal came; the completion queue was full; out of memory for a
            // moment. What was not submitted is still queued.
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
        // Descriptors nobody has been told of.
        while self.next().is_some() {}
        if self.io.submitter().unregister_buf_ring(GROUP).is_err() {
            // The kernel may still write to them.
            std::mem::forget(std::mem::take(&mut self.pool.buffers));
            return;
        }
        // SAFETY: allocated in `Pool::new` with this layout; the kernel has let go of it.
        unsafe { dealloc(self.pool.entries.as_ptr().cast(), Pool::LAYOUT) };
    }
}

/// An entry that receives again and again.
fn receive_up_to_limit(socket: Fd) -> squeue::Entry {
    /// Of a receive's limit, which the crate does not know of, in io_uring_sqe: `optlen`
    /// (include/uapi/linux/io_uring.h).
    const LIMIT_AT: usize = 44;
    const { assert!(size_of::<squeue::Entry>() == 64, "an entry is an io_uring_sqe") };
    let mut entry = opcode::RecvMulti::new(socket, GROUP).build();
    // SAFETY: an entry is the kernel's structure, in which these four bytes, aligned, may be anything.
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

    /// Writes as much as goes without waiting.
    pub(crate) fn submit(self) {
        let ring = self.ring;
        ring.messages.clear();
        let mut first = 0;
        for write in &ring.writes {
            // SAFETY: an empty message is all zeros.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            // In bounds: the writes' slices stand one behind the other.
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
        // MSG_DONTWAIT makes the kernel finish each write while it is submitted (io_sendmsg_prep in
        // io_uring/net.c sets REQ_F_NOWAIT: what would wait fails with EAGAIN), so this is one
        // call. Nothing that the entries point to may change before: the loop makes sure of it.
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
    // A panic would let go of it on its way.
    let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("io_uring_enter: {error}\n"));
    abort();
}

/// The buffers that the kernel receives into, of all connections together. See
/// `io_uring_register_buf_ring(3)`.
struct Pool {
    entries: NonNull<BufRingEntry>,
    /// By identifier. Those that are taken are empty here.
    buffers: Vec<Vec<u8>>,
    tail: u16,
    /// Buffers with bytes that have not come back.
    taken: usize,
    /// The most since the last trim.
    taken_max: usize,
    age: u32,
    is_short: bool,
    /// Bytes given back to the allocator.
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

    /// Forgets all buffers. The kernel must not have them.
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
        // SAFETY: within `entries`; a buffer has its identifier to itself, so there are never more
        // than BUFFERS_MAX and this entry is not in use.
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
