//! The io_uring driver. Multishot operations accept clients and receive bytes; all output of a tick
//! is written in one system call.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, shutdown, sockopt};

use crate::give_up::give_up;
use crate::low_water;
use crate::ring::{self, BUFFER_SIZE, Buffer, Completion, Ring};
use crate::socket::{
    ACCEPTS_PER_TICK, BYTES_PER_TICK, Drained, Draining, EVENTS_PER_TICK, PARKED_RETRY, SLICES_MAX,
    close_kind, drain, finish_connecting, refuse, start_connecting,
};
use crate::{Address, CloseKind, Driver, Handler, TABLES, Token};

/// Tags of operations: bits 0..32 are those of the token, or a number; bits 32..60 are the epoch,
/// which distinguishes successive users; bits 60..62 are the purpose. Epochs repeat after 2^28
/// connections, when the kernel no longer has operations of the last one.
const EPOCH_MASK: u32 = (1 << 28) - 1;
const PURPOSE_SHIFT: u32 = 60;

/// The purpose of a poll.
const WRITABLE: u64 = 0;
const CONNECTED: u64 = 1;
/// Only an error, while the connection is paused.
const BROKEN: u64 = 2;
const WATCHED: u64 = 3;

/// Why io_uring is not available, and what helps.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("the kernel has no io_uring; it needs Linux 6.1 or newer, built with CONFIG_IO_URING")]
    Missing,
    #[error(
        "io_uring is forbidden here; have the container's seccomp profile allow io_uring_setup, \
         io_uring_enter and io_uring_register, and set kernel.io_uring_disabled to 0"
    )]
    Forbidden,
    #[error("the kernel's io_uring lacks what is needed; it needs Linux 6.1 or newer")]
    Old,
    #[error("io_uring cannot be set up: {0}")]
    Failed(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        match Errno::from_io_error(&error) {
            Some(Errno::NOSYS) => Self::Missing,
            Some(Errno::PERM | Errno::ACCESS) => Self::Forbidden,
            Some(Errno::INVAL) => Self::Old,
            _ => Self::Failed(error),
        }
    }
}

pub struct UringDriver {
    ring: Ring,
    tables: [Vec<Socket>; TABLES],
    listeners: Vec<Listener>,
    watches: Vec<Watch>,
    epoch: u32,
    /// Accepted by the kernel, not reported yet.
    accepted: VecDeque<(u32, OwnedFd)>,
    /// Former listeners where connections still wait for a descriptor.
    draining: Vec<Draining>,
    /// When to retry accepting on parked listeners; set while there are any.
    unpark_at: Option<Instant>,
    /// Connections with output to write.
    dirty: VecDeque<Token>,
    /// Connections being written, and whether all their output is included; kept for its memory.
    writing: Vec<(Token, bool)>,
    /// Connections that are no longer paused and whose end was held back.
    resumed: Vec<Token>,
    /// Ends of connections, for the next tick.
    ends: Vec<Completion>,
    /// How many of the ring's completions belong to this round and have not been reported.
    unreported: usize,
    /// Connections to detach.
    detaching: Vec<Token>,
    /// Counts ticks, and wraps around.
    tick: u8,
    buffer: Vec<u8>,
}

struct Listener {
    id: u32,
    epoch: u32,
    socket: OwnedFd,
    is_accepting: bool,
    /// Out of descriptors: retried when one may be free.
    is_parked: bool,
}

struct Watch {
    id: u32,
    epoch: u32,
    descriptor: RawFd,
    is_polled: bool,
}

/// A slot of a table.
#[derive(Default)]
struct Socket {
    descriptor: Option<OwnedFd>,
    generation: u32,
    epoch: u32,
    /// The tick of the last bytes. A confusion with an earlier tick is harmless.
    read_at: u8,
    state: State,
}

#[derive(Clone, Copy, Default)]
struct State {
    connecting: bool,
    /// The kernel receives, or is asked to.
    receiving: bool,
    /// The kernel took less than there was.
    write_blocked: bool,
    /// The kernel will report when it takes more.
    write_polled: bool,
    /// The kernel will report an error.
    watched: bool,
    paused: bool,
    /// Listed in `dirty`.
    dirty: bool,
    /// The peer ended its side.
    ended: bool,
    /// The end has been reported.
    end_reported: bool,
    /// Listed in `detaching`.
    detaching: bool,
}

impl State {
    /// Whether the kernel still uses the socket.
    fn is_busy(self) -> bool {
        self.connecting || self.receiving || self.write_polled || self.watched
    }
}

impl UringDriver {
    /// The most bytes that one driver takes, beside its records of connections.
    pub const SIZE_MAX: u64 = ring::SIZE_MAX as u64;

    /// # Errors
    /// If the kernel does not allow it, or is too old.
    pub fn new() -> Result<Self, Refusal> {
        Ok(Self {
            ring: Ring::new()?,
            tables: Default::default(),
            listeners: Vec::new(),
            watches: Vec::new(),
            epoch: 0,
            accepted: VecDeque::new(),
            draining: Vec::new(),
            unpark_at: None,
            dirty: VecDeque::new(),
            writing: Vec::new(),
            resumed: Vec::new(),
            ends: Vec::new(),
            unreported: 0,
            detaching: Vec::new(),
            tick: 0,
            buffer: Vec::new(),
        })
    }

    /// A driver that works as on Linux 6.1 to 6.16, for tests.
    ///
    /// # Errors
    /// As [`UringDriver::new`].
    pub fn as_before_6_17() -> Result<Self, Refusal> {
        let mut driver = Self::new()?;
        driver.ring.forget_limit();
        Ok(driver)
    }

    #[inline]
    fn socket(&mut self, conn: Token) -> Option<&mut Socket> {
        let socket = self.tables[conn.table()].get_mut(conn.index())?;
        (socket.generation == conn.generation() && socket.descriptor.is_some()).then_some(socket)
    }

    /// The connection of an operation, if it still exists.
    #[inline]
    fn conn(&mut self, tag: u64) -> Option<Token> {
        let low = Token(tag & u64::from(u32::MAX));
        let socket = self.tables[low.table()].get_mut(low.index())?;
        (socket.epoch == epoch_of(tag) && socket.descriptor.is_some())
            .then_some(Token(u64::from(socket.generation) << 32 | low.0))
    }

    fn next_epoch(&mut self) -> u32 {
        self.epoch = (self.epoch + 1) & EPOCH_MASK;
        self.epoch
    }

    fn insert(&mut self, conn: Token, descriptor: OwnedFd, connecting: bool) {
        let epoch = self.next_epoch();
        let table = &mut self.tables[conn.table()];
        if table.len() <= conn.index() {
            table.resize_with(conn.index() + 1, Socket::default);
        }
        table[conn.index()] = Socket {
            descriptor: Some(descriptor),
            generation: conn.generation(),
            epoch,
            read_at: self.tick.wrapping_sub(1),
            state: State { connecting, ..State::default() },
        };
        if connecting {
            self.poll(conn, PollFlags::OUT, CONNECTED);
        } else {
            self.receive(conn);
        }
    }

    /// Removes the connection after submitting all of its operations, makes the kernel release the
    /// socket, and shrinks the table to the last slot in use.
    fn remove(&mut self, conn: Token) -> Option<(OwnedFd, State)> {
        let socket = self.socket(conn)?;
        let epoch = socket.epoch;
        let state = std::mem::take(&mut socket.state);
        let descriptor = socket.descriptor.take()?;
        if state.is_busy() {
            self.cancel_polls(conn, epoch, state);
            self.ring.submit();
            // This ends receiving and connecting. An error means that they have ended already.
            let _ = shutdown(&descriptor, Shutdown::Both);
        }
        let table = &mut self.tables[conn.table()];
        if conn.index() + 1 == table.len() {
            while table.last().is_some_and(|socket| socket.descriptor.is_none()) {
                table.pop();
            }
            table.shrink_to(2 * table.len() + 64);
        }
        Some((descriptor, state))
    }

    fn fail(&mut self, conn: Token, errno: Errno, handler: &mut impl Handler) {
        drop(self.remove(conn));
        self.unpark();
        handler.closed(conn, close_kind(errno));
    }

    /// Makes the kernel receive, unless it does already or should not.
    fn receive(&mut self, conn: Token) {
        let Some(socket) = self.tables[conn.table()].get_mut(conn.index()) else { return };
        let state = &mut socket.state;
        if state.receiving || state.paused || state.ended || state.detaching {
            return;
        }
        let Some(descriptor) = &socket.descriptor else { return };
        state.receiving = true;
        self.ring.receive(descriptor.as_fd(), tag(conn.0, socket.epoch, 0));
    }

    fn poll(&mut self, conn: Token, events: PollFlags, purpose: u64) {
        let Some(socket) = self.tables[conn.table()].get_mut(conn.index()) else { return };
        let Some(descriptor) = &socket.descriptor else { return };
        self.ring.poll(descriptor.as_raw_fd(), events, tag(conn.0, socket.epoch, purpose));
    }

    /// Used where [`UringDriver::poll`] would report the peer's end again and again.
    fn poll_changes(&mut self, conn: Token, events: PollFlags, purpose: u64) {
        let Some(socket) = self.tables[conn.table()].get_mut(conn.index()) else { return };
        let Some(descriptor) = &socket.descriptor else { return };
        self.ring.poll_changes(descriptor.as_raw_fd(), events, tag(conn.0, socket.epoch, purpose));
    }

    fn handle_received(
        &mut self,
        tag: u64,
        bytes: Result<Option<Buffer>, Errno>,
        goes_on: bool,
        handler: &mut impl Handler,
    ) {
        let Some(conn) = self.conn(tag) else {
            if let Ok(Some(buffer)) = bytes {
                self.ring.recycle(buffer);
            }
            return;
        };
        let tick = self.tick;
        let Some(socket) = self.socket(conn) else { return };
        socket.state.receiving = goes_on;
        match bytes {
            Ok(Some(mut buffer)) => {
                socket.read_at = tick;
                if goes_on && socket.state.paused && !socket.state.detaching {
                    // A cancellation fails if the operation is just about to continue.
                    self.ring.cancel_receive(tag);
                }
                handler.received(conn, &mut buffer.bytes);
                if buffer.bytes.capacity() < BUFFER_SIZE {
                    buffer.bytes = handler.buffer(BUFFER_SIZE);
                }
                self.ring.recycle(buffer);
            }
            Err(Errno::NOBUFS) => self.ring.want_buffers(),
            Err(Errno::CANCELED | Errno::INTR | Errno::AGAIN) => {}
            bytes if socket.read_at == tick => {
                self.ends.push(Completion::Received { tag, bytes, goes_on });
                return;
            }
            Ok(None) => {
                socket.state.ended = true;
                self.report_end(conn, handler);
            }
            Err(errno) => return self.fail(conn, errno, handler),
        }
        if !goes_on {
            self.receive(conn);
        }
    }

    fn report_end(&mut self, conn: Token, handler: &mut impl Handler) {
        let Some(socket) = self.socket(conn) else { return };
        let state = &mut socket.state;
        if state.ended && !state.paused && !std::mem::replace(&mut state.end_reported, true) {
            handler.read_closed(conn);
        }
    }

    fn handle_polled(
        &mut self,
        tag: u64,
        events: PollFlags,
        goes_on: bool,
        handler: &mut impl Handler,
    ) {
        if tag >> PURPOSE_SHIFT == WATCHED {
            let watch = self.watches.iter_mut().find(|watch| watch.epoch == epoch_of(tag));
            if let Some(watch) = watch {
                watch.is_polled = false;
                handler.readable(watch.id);
            }
            return;
        }
        let Some(conn) = self.conn(tag) else { return };
        match tag >> PURPOSE_SHIFT {
            WRITABLE => self.handle_writable(conn, events, goes_on),
            CONNECTED => self.finish_connecting(conn, handler),
            _ => self.handle_broken(conn, events, goes_on, handler),
        }
    }

    fn handle_writable(&mut self, conn: Token, events: PollFlags, goes_on: bool) {
        let Some(socket) = self.socket(conn) else { return };
        let state = &mut socket.state;
        state.write_polled = goes_on;
        if events.intersects(PollFlags::OUT | PollFlags::ERR | PollFlags::HUP) {
            state.write_blocked = false;
            self.mark_dirty(conn);
        } else if !goes_on && state.write_blocked && !state.detaching {
            state.write_polled = true;
            self.poll_changes(conn, PollFlags::OUT, WRITABLE);
        }
    }

    fn handle_broken(
        &mut self,
        conn: Token,
        events: PollFlags,
        goes_on: bool,
        handler: &mut impl Handler,
    ) {
        let Some(socket) = self.socket(conn) else { return };
        let (tag, state) = (tag(conn.0, socket.epoch, BROKEN), &mut socket.state);
        state.watched = goes_on;
        if events.intersects(PollFlags::ERR) {
            if state.paused || state.detaching {
                // Both directions are dead: nothing can be sent any more.
                self.fail(conn, Errno::CONNRESET, handler);
            } else if goes_on {
                // Receiving will report it, unless there is a pause before: then this is checked
                // again.
                self.ring.cancel_poll(tag);
            }
        } else if !goes_on && state.paused && !state.detaching {
            state.watched = true;
            self.poll_changes(conn, PollFlags::ERR, BROKEN);
        }
    }

    fn finish_connecting(&mut self, conn: Token, handler: &mut impl Handler) {
        let Some(socket) = self.socket(conn) else { return };
        let Some(descriptor) = &socket.descriptor else { return };
        socket.state.connecting = false;
        match finish_connecting(descriptor) {
            Ok(()) => {
                handler.connected(conn);
                self.receive(conn);
            }
            Err(errno) => self.fail(conn, errno, handler),
        }
    }

    fn mark_dirty(&mut self, conn: Token) {
        if let Some(socket) = self.socket(conn)
            && !socket.state.connecting
            && !socket.state.write_blocked
            && !socket.state.detaching
            && !std::mem::replace(&mut socket.state.dirty, true)
        {
            self.dirty.push_back(conn);
        }
    }

    /// Writes once for as many of the connections as fit in one batch.
    fn write(&mut self, handler: &mut impl Handler) {
        let mut writing = std::mem::take(&mut self.writing);
        let mut writes = self.ring.writes();
        {
            let handler = &*handler;
            while !writes.is_full()
                && let Some(conn) = self.dirty.pop_front()
            {
                let Some(socket) = self.tables[conn.table()].get_mut(conn.index()) else {
                    continue;
                };
                let Some(descriptor) = &socket.descriptor else { continue };
                if socket.generation != conn.generation() {
                    continue;
                }
                socket.state.dirty = false;
                if socket.state.detaching {
                    continue;
                }
                let (piece, is_more) = handler.front(conn);
                if is_more {
                    let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                    let count = handler.output(conn, &mut slices);
                    writes.push(descriptor.as_fd(), &slices[..count]);
                } else if piece.is_empty() {
                    continue;
                } else {
                    writes.push(descriptor.as_fd(), &[IoSlice::new(piece)]);
                }
                writing.push((conn, !is_more));
            }
            writes.submit();
        }
        for (index, (conn, is_all)) in writing.drain(..).enumerate() {
            self.handle_written(conn, index, is_all, handler);
        }
        self.writing = writing;
    }

    fn handle_written(
        &mut self,
        conn: Token,
        index: usize,
        is_all: bool,
        handler: &mut impl Handler,
    ) {
        let (wanted, result) = self.ring.written(index);
        let len = match result {
            Ok(len) => len,
            Err(Errno::AGAIN) => 0,
            Err(Errno::INTR) => return self.mark_dirty(conn),
            Err(errno) => return self.fail(conn, errno, handler),
        };
        if len < wanted {
            self.wait_writable(conn);
        } else if !is_all {
            self.mark_dirty(conn);
        }
        if len > 0 {
            handler.sent(conn, len as u64);
        }
    }

    fn wait_writable(&mut self, conn: Token) {
        let Some(socket) = self.socket(conn) else { return };
        socket.state.write_blocked = true;
        if !std::mem::replace(&mut socket.state.write_polled, true) {
            self.poll(conn, PollFlags::OUT, WRITABLE);
        }
    }

    fn handle_accepted(
        &mut self,
        tag: u64,
        socket: Result<OwnedFd, Errno>,
        goes_on: bool,
        handler: &mut impl Handler,
    ) {
        let listener = self.listeners.iter_mut().find(|listener| listener.epoch == epoch_of(tag));
        if let Some(listener) = listener {
            listener.is_accepting = goes_on;
        }
        match socket {
            Ok(socket) => self.accepted.push_back((tag as u32, socket)),
            // The connection was reset while it waited, or a signal came.
            Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO | Errno::AGAIN) => {}
            Err(Errno::CANCELED) => {}
            Err(_) => self.park(tag, handler),
        }
    }

    /// Pauses a listener that cannot accept.
    fn park(&mut self, tag: u64, handler: &mut impl Handler) {
        let listener = self.listeners.iter_mut().find(|listener| listener.epoch == epoch_of(tag));
        let Some(listener) = listener else { return };
        listener.is_parked = true;
        self.unpark_at = Some(Instant::now() + PARKED_RETRY);
        // The kernel takes a descriptor before it knows whether a client waits.
        let mut waiting = [PollFd::new(&listener.socket, PollFlags::IN)];
        if poll(&mut waiting, Some(&Timespec::default())) == Ok(1) {
            handler.accept_blocked(listener.id);
        }
    }

    /// A descriptor may be free again.
    fn unpark(&mut self) {
        if self.unpark_at.take().is_none() {
            return;
        }
        for listener in &mut self.listeners {
            listener.is_parked = false;
        }
    }

    /// Accepts all that wait, or as many as there are descriptors for.
    fn drain(&mut self, mut draining: Draining, goes_on: bool, handler: &mut impl Handler) {
        loop {
            match draining.accept(SocketFlags::CLOEXEC) {
                Drained::Accepted(socket) => drop(self.take(draining.id, socket, handler)),
                Drained::Empty => return,
                Drained::Blocked => {
                    handler.accept_blocked(draining.id);
                    if goes_on {
                        self.draining.push(draining);
                        self.unpark_at = Some(Instant::now() + PARKED_RETRY);
                    }
                    return;
                }
            }
        }
    }

    /// Returns whether the handler keeps the connection.
    fn take(&mut self, listener: u32, socket: OwnedFd, handler: &mut impl Handler) -> bool {
        match handler.accepted(listener, socket.as_fd()) {
            Ok(conn) => self.insert(conn, socket, false),
            Err(why) => {
                refuse(&socket, why, &mut self.buffer);
                return false;
            }
        }
        true
    }

    /// Makes the kernel release the connections to be detached.
    fn release_detaching(&mut self) {
        for index in 0..self.detaching.len() {
            let conn = self.detaching[index];
            let Some(socket) = self.socket(conn) else { continue };
            let (epoch, state) = (socket.epoch, socket.state);
            // A cancellation fails while the operation is running, so it is repeated until it
            // succeeds.
            if state.receiving {
                self.ring.cancel_receive(tag(conn.0, epoch, 0));
            }
            self.cancel_polls(conn, epoch, state);
        }
    }

    fn cancel_polls(&mut self, conn: Token, epoch: u32, state: State) {
        if state.write_polled {
            self.ring.cancel_poll(tag(conn.0, epoch, WRITABLE));
        }
        if state.watched {
            self.ring.cancel_poll(tag(conn.0, epoch, BROKEN));
        }
    }

    /// Reports the connections that the kernel has released. Not in the tick of their last bytes:
    /// an error may still come in the next one.
    fn report_detached(&mut self, handler: &mut impl Handler) {
        let tick = self.tick;
        for conn in std::mem::take(&mut self.detaching) {
            let Some(socket) = self.socket(conn) else { continue };
            if socket.state.is_busy() || socket.read_at == tick {
                self.detaching.push(conn);
                continue;
            }
            let Some((descriptor, _)) = self.remove(conn) else { continue };
            match sockopt::socket_error(&descriptor) {
                Ok(Ok(())) => handler.detached(conn, descriptor),
                Ok(Err(errno)) | Err(errno) => {
                    drop(descriptor);
                    self.unpark();
                    handler.closed(conn, close_kind(errno));
                }
            }
        }
    }

    /// Starts accepting for listeners that neither have enough to report nor are parked, and polls
    /// what is watched.
    fn arm(&mut self) {
        let has_surplus = self.accepted.len() > ACCEPTS_PER_TICK;
        for listener in &mut self.listeners {
            let tag = tag(u64::from(listener.id), listener.epoch, 0);
            if listener.is_accepting && has_surplus {
                self.ring.cancel_accept(tag);
            } else if !listener.is_accepting && self.accepted.is_empty() && !listener.is_parked {
                listener.is_accepting = true;
                self.ring.accept(listener.socket.as_fd(), tag);
            }
        }
        if self.unreported > 0 {
            // Whoever watches acts when all of the round is reported. Until then a descriptor is readable still, and
            // what would be told of it now would no longer be true when it is reported.
            return;
        }
        for watch in self.watches.iter_mut().filter(|watch| !watch.is_polled) {
            watch.is_polled = true;
            let tag = tag(u64::from(watch.id), watch.epoch, WATCHED);
            self.ring.poll(watch.descriptor, PollFlags::IN, tag);
        }
    }

    fn report(&mut self, handler: &mut impl Handler) {
        if self.unreported == 0 {
            // Later completions are for the next round.
            self.unreported = self.ring.pending().min(EVENTS_PER_TICK);
        }
        let mut taken = 0;
        while self.unreported > 0 && taken < BYTES_PER_TICK {
            self.unreported -= 1;
            let Some(completion) = self.ring.next() else { break };
            if let Completion::Received { bytes: Ok(Some(buffer)), .. } = &completion {
                taken += buffer.bytes.len();
            }
            self.handle(completion, handler);
        }
    }

    fn handle(&mut self, completion: Completion, handler: &mut impl Handler) {
        match completion {
            Completion::Received { tag, bytes, goes_on } => {
                self.handle_received(tag, bytes, goes_on, handler);
            }
            Completion::Accepted { tag, socket, goes_on } => {
                self.handle_accepted(tag, socket, goes_on, handler);
            }
            Completion::Polled { tag, events, goes_on } => {
                self.handle_polled(tag, events, goes_on, handler);
            }
        }
    }

    /// Reports what had to wait until now.
    fn report_delayed(&mut self, handler: &mut impl Handler) {
        for conn in std::mem::take(&mut self.resumed) {
            self.report_end(conn, handler);
        }
        for completion in std::mem::take(&mut self.ends) {
            self.handle(completion, handler);
        }
    }

    fn report_accepted(&mut self, handler: &mut impl Handler) {
        let mut taken = 0;
        while taken < ACCEPTS_PER_TICK {
            let Some((id, socket)) = self.accepted.pop_front() else { return };
            // Refused clients return their descriptors, so they do not count.
            taken += usize::from(self.take(id, socket, handler));
        }
    }
}

impl Driver for UringDriver {
    const LATE_MAX: u64 = ring::LATE_MAX as u64;

    fn listen(&mut self, id: u32, socket: OwnedFd) -> io::Result<()> {
        let epoch = self.next_epoch();
        self.listeners.push(Listener { id, epoch, socket, is_accepting: false, is_parked: false });
        Ok(())
    }

    fn unlisten(&mut self, id: u32, drain: bool, handler: &mut impl Handler) {
        while let Some(index) = self.listeners.iter().position(|listener| listener.id == id) {
            let Listener { epoch, socket, is_accepting, .. } = self.listeners.swap_remove(index);
            if is_accepting {
                let accepted = self.ring.stop_accepting(tag(u64::from(id), epoch, 0));
                self.accepted.extend(accepted.into_iter().map(|socket| (id, socket)));
            }
            for _ in 0..self.accepted.len() {
                match self.accepted.pop_front() {
                    Some((listener, socket)) if listener == id => {
                        self.take(id, socket, handler);
                    }
                    other => self.accepted.extend(other),
                }
            }
            self.drain(Draining::new(id, socket), drain, handler);
        }
    }

    /// Clients that the kernel has accepted already are still reported.
    fn stop_listening(&mut self) {
        self.draining.clear();
        for listener in &self.listeners {
            if listener.is_accepting {
                let tag = tag(u64::from(listener.id), listener.epoch, 0);
                self.ring.cancel_accept(tag);
            }
        }
        self.ring.submit();
        self.listeners.clear();
    }

    fn watch(&mut self, id: u32, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let epoch = self.next_epoch();
        let descriptor = descriptor.as_raw_fd();
        self.watches.push(Watch { id, epoch, descriptor, is_polled: false });
        Ok(())
    }

    fn unwatch(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let is_it = |watch: &Watch| watch.descriptor == descriptor.as_raw_fd();
        let index = self.watches.iter().position(is_it).ok_or(Errno::NOENT)?;
        let watch = self.watches.swap_remove(index);
        if watch.is_polled {
            self.ring.cancel_poll(tag(u64::from(watch.id), watch.epoch, WATCHED));
        }
        Ok(())
    }

    fn connect(&mut self, conn: Token, address: &Address) -> Result<(), CloseKind> {
        let descriptor = start_connecting(address)?;
        self.insert(conn, descriptor, true);
        Ok(())
    }

    fn adopt(&mut self, conn: Token, socket: OwnedFd) -> io::Result<()> {
        self.insert(conn, socket, false);
        Ok(())
    }

    fn detach(&mut self, conn: Token) {
        let Some(socket) = self.socket(conn) else { return };
        if std::mem::replace(&mut socket.state.detaching, true) {
            return;
        }
        self.detaching.push(conn);
    }

    fn close(&mut self, conn: Token) {
        let Some((descriptor, state)) = self.remove(conn) else { return };
        if !state.ended {
            drain(&descriptor, &mut self.buffer);
        }
        drop(descriptor);
        self.unpark();
    }

    fn give_up(&mut self, conn: Token) {
        if let Some(descriptor) = self.socket(conn).and_then(|socket| socket.descriptor.as_ref()) {
            give_up(descriptor);
        }
    }

    fn pause(&mut self, conn: Token) {
        let Some(socket) = self.socket(conn) else { return };
        let tag = tag(conn.0, socket.epoch, 0);
        let state = &mut socket.state;
        state.paused = true;
        if state.detaching {
            return;
        }
        let is_receiving = state.receiving;
        let is_unwatched = !state.connecting && !std::mem::replace(&mut state.watched, true);
        if is_receiving {
            self.ring.cancel_receive(tag);
        }
        if is_unwatched {
            self.poll(conn, PollFlags::ERR, BROKEN);
        }
    }

    fn resume(&mut self, conn: Token) {
        let Some(socket) = self.socket(conn) else { return };
        socket.state.paused = false;
        let State { connecting, ended, end_reported, .. } = socket.state;
        if ended && !end_reported {
            self.resumed.push(conn);
        }
        if !connecting {
            self.receive(conn);
        }
    }

    fn set_low_water(&mut self, conn: Token, bytes: u32) {
        if let Some(descriptor) = self.socket(conn).and_then(|socket| socket.descriptor.as_ref()) {
            low_water::set(descriptor, bytes);
        }
    }

    fn acknowledge(&mut self, conn: Token) {
        if let Some(descriptor) = self.socket(conn).and_then(|socket| socket.descriptor.as_ref()) {
            // A Unix socket has no such option, and needs none.
            let _ = sockopt::set_tcp_quickack(descriptor, true);
        }
    }

    fn descriptor(&self, conn: Token) -> Option<BorrowedFd<'_>> {
        let socket = self.tables[conn.table()].get(conn.index())?;
        let descriptor = socket.descriptor.as_ref()?;
        (socket.generation == conn.generation()).then(|| descriptor.as_fd())
    }

    #[inline]
    fn send(&mut self, conn: Token, _: &mut impl Handler) {
        self.mark_dirty(conn);
    }

    fn flush(&mut self, handler: &mut impl Handler) {
        while !self.dirty.is_empty() {
            self.write(handler);
        }
    }

    fn take_released(&mut self) -> usize {
        self.ring.take_released()
    }

    fn wait(&mut self, timeout: Option<Duration>, handler: &mut impl Handler) -> io::Result<()> {
        self.flush(handler);
        self.arm();
        self.release_detaching();
        let mut timeout = timeout;
        if self.unpark_at.is_some() {
            timeout = Some(timeout.map_or(PARKED_RETRY, |timeout| timeout.min(PARKED_RETRY)));
        }
        let is_draining = !self.draining.is_empty() && self.unpark_at.is_none();
        let is_at_rest = self.accepted.is_empty()
            && self.resumed.is_empty()
            && self.ends.is_empty()
            && self.detaching.is_empty();
        if !is_at_rest || is_draining {
            timeout = Some(Duration::ZERO);
        }
        self.ring.wait(timeout)?;
        handler.woken();
        if self.unpark_at.is_some_and(|at| at <= Instant::now()) {
            self.unpark();
        }
        self.tick = self.tick.wrapping_add(1);
        self.report_delayed(handler);
        self.report(handler);
        self.report_accepted(handler);
        self.report_detached(handler);
        if self.unpark_at.is_none() {
            for draining in std::mem::take(&mut self.draining) {
                self.drain(draining, true, handler);
            }
        }
        self.flush(handler);
        Ok(())
    }

    #[inline]
    fn is_behind(&self) -> bool {
        self.unreported > 0
    }
}

fn tag(low: u64, epoch: u32, purpose: u64) -> u64 {
    purpose << PURPOSE_SHIFT | u64::from(epoch) << 32 | low & u64::from(u32::MAX)
}

fn epoch_of(tag: u64) -> u32 {
    (tag >> 32) as u32 & EPOCH_MASK
}
