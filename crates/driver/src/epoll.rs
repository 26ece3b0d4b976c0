//! The epoll driver: every descriptor is registered once, edge-triggered, and read until a short
//! read; no `epoll_ctl` per request.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{self, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, sockopt};

use crate::give_up::give_up;
use crate::low_water;
use crate::precise::PreciseWait;
use crate::socket::{
    ACCEPTS_PER_TICK, BYTES_PER_TICK, Drained, Draining, EVENTS_PER_TICK, PARKED_RETRY, SLICES_MAX,
    close_kind, drain, finish_connecting, refuse, start_connecting,
};
use crate::{Address, CloseKind, Driver, Handler, TABLES, Token};

/// One read takes at most this much, so that one connection cannot delay the others. A little more
/// than a power of two, as values are: a value of 64 KiB with its framing arrives in one read.
const READ_SIZE: usize = 64 * 1024 + 512;

/// Event tokens of descriptors that are not connections: a listener's key, or the number of a
/// watch. No connection has such an index.
const SPECIAL: u64 = 1 << 29;
const WATCH: u64 = 1 << 31;

const ACCEPT_FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

pub struct EpollDriver {
    epoll: OwnedFd,
    precise: PreciseWait,
    /// Events of this round. A round is over when all of them have been reported and `reading` has
    /// been read, usually within one tick.
    events: Vec<Event>,
    /// How many of them have been reported.
    reported: usize,
    /// The kernel may have more events than the last round fetched.
    is_cut: bool,
    tables: [Vec<Socket>; TABLES],
    listeners: Vec<Listener>,
    /// The key of the next listener.
    next_key: u32,
    /// Former listeners where connections still wait for a descriptor.
    draining: Vec<Draining>,
    /// When to retry accepting on parked listeners; set while there are any.
    unpark_at: Option<Instant>,
    intake: Intake,
    /// Connections that were `unread` when this round began, and have not been read since.
    reading: VecDeque<Token>,
    /// Connections to detach.
    detaching: Vec<Token>,
}

/// State that all reads share.
struct Intake {
    buffer: Vec<u8>,
    /// Connections that may have more to read, for the next round.
    unread: VecDeque<Token>,
    /// Counts rounds, and wraps around.
    round: u8,
    /// Bytes read in this tick.
    taken: usize,
}

impl Intake {
    /// Whether this tick may read more.
    #[inline(always)]
    fn has_room(&self) -> bool {
        self.taken < BYTES_PER_TICK
    }
}

struct Listener {
    id: u32,
    /// Identifies the listener in its events.
    key: u32,
    socket: OwnedFd,
    /// Out of descriptors: not watched until one is free again.
    parked: bool,
    /// How many connections to accept at once: as many as waited the last time. Asking for one that
    /// is not there costs the kernel a socket; one that is left is reported again by the next
    /// round.
    expected: usize,
    /// How many were accepted since none was left, and in which round the last one.
    accepted: usize,
    accepted_at: u8,
}

/// A slot of a table.
#[derive(Default)]
struct Socket {
    descriptor: Option<OwnedFd>,
    generation: u32,
    /// The round of the last bytes. A confusion with an earlier round is harmless.
    read_at: u8,
    state: State,
}

#[derive(Clone, Copy, Default)]
struct State {
    connecting: bool,
    /// The kernel took less than there was; it will report when it takes more.
    write_blocked: bool,
    paused: bool,
    /// There may be something to read.
    readable: bool,
    /// Listed in `unread` or `reading`.
    listed: bool,
    /// After a short read there may be more without a new edge: the peer ended its side, or sent an
    /// urgent byte, where a read stops. Read until the kernel reports that there is nothing.
    thorough: bool,
    /// The end of the peer's side has been reported.
    ended: bool,
    /// Listed in `detaching`.
    detaching: bool,
}

/// The connection's slot, if the generation matches.
#[inline]
fn find(tables: &mut [Vec<Socket>; TABLES], conn: Token) -> Option<&mut Socket> {
    let socket = tables[conn.table()].get_mut(conn.index())?;
    (socket.generation == conn.generation() && socket.descriptor.is_some()).then_some(socket)
}

impl Socket {
    /// One read, the only one of the round; the rest is for the next.
    ///
    /// # Errors
    /// If the connection has failed.
    #[inline(always)]
    fn read(
        &mut self,
        conn: Token,
        intake: &mut Intake,
        handler: &mut impl Handler,
    ) -> Result<(), Errno> {
        let Some(descriptor) = &self.descriptor else { return Ok(()) };
        if self.state.paused || self.state.listed || !self.state.readable {
            return Ok(());
        }
        let Intake { buffer, unread, round, taken } = intake;
        if buffer.capacity() < READ_SIZE {
            *buffer = handler.buffer(READ_SIZE);
        }
        buffer.clear();
        let room = buffer.capacity();
        match net::recv(descriptor, spare_capacity(buffer), RecvFlags::empty()) {
            // The end is reported in a separate round.
            Ok((0, _)) if self.read_at == *round => self.list(conn, unread),
            Ok((0, _)) => {
                self.state.readable = false;
                if !std::mem::replace(&mut self.state.ended, true) {
                    handler.read_closed(conn);
                }
            }
            Ok((len, _)) => {
                self.read_at = *round;
                *taken += len;
                // A short read means empty: the next bytes make a new edge.
                if len == room || self.state.thorough {
                    self.list(conn, unread);
                } else {
                    self.state.readable = false;
                }
                handler.received(conn, buffer);
            }
            Err(Errno::AGAIN) => self.state.readable = false,
            Err(Errno::INTR) => self.list(conn, unread),
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    /// Schedules it for the next round.
    fn list(&mut self, conn: Token, unread: &mut VecDeque<Token>) {
        if !std::mem::replace(&mut self.state.listed, true) {
            unread.push_back(conn);
        }
    }
}

impl EpollDriver {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            precise: PreciseWait::new(),
            events: Vec::with_capacity(EVENTS_PER_TICK),
            reported: 0,
            is_cut: false,
            tables: Default::default(),
            listeners: Vec::new(),
            next_key: 0,
            draining: Vec::new(),
            unpark_at: None,
            reading: VecDeque::new(),
            detaching: Vec::new(),
            intake: Intake {
                buffer: Vec::with_capacity(READ_SIZE),
                unread: VecDeque::new(),
                round: 0,
                taken: 0,
            },
        })
    }

    #[inline]
    fn socket(&mut self, conn: Token) -> Option<&mut Socket> {
        find(&mut self.tables, conn)
    }

    fn insert(&mut self, conn: Token, descriptor: OwnedFd, connecting: bool) -> io::Result<()> {
        epoll::add(
            &self.epoll,
            &descriptor,
            EventData::new_u64(conn.0),
            EventFlags::IN | EventFlags::OUT | EventFlags::PRI | EventFlags::RDHUP | EventFlags::ET,
        )?;
        let table = &mut self.tables[conn.table()];
        if table.len() <= conn.index() {
            table.resize_with(conn.index() + 1, Socket::default);
        }
        table[conn.index()] = Socket {
            descriptor: Some(descriptor),
            generation: conn.generation(),
            read_at: self.intake.round.wrapping_sub(1),
            state: State { connecting, ..State::default() },
        };
        Ok(())
    }

    /// Closes the descriptor and shrinks the table to the last slot in use.
    fn remove(&mut self, conn: Token) -> Option<OwnedFd> {
        let descriptor = self.socket(conn)?.descriptor.take();
        let table = &mut self.tables[conn.table()];
        if conn.index() + 1 == table.len() {
            while table.last().is_some_and(|socket| socket.descriptor.is_none()) {
                table.pop();
            }
            table.shrink_to(2 * table.len() + 64);
        }
        descriptor
    }

    fn fail(&mut self, conn: Token, errno: Errno, handler: &mut impl Handler) {
        drop(self.remove(conn));
        self.unpark();
        handler.closed(conn, close_kind(errno));
    }

    fn handle_event(&mut self, event: Event, handler: &mut impl Handler) {
        let token = event.data.u64();
        if token & SPECIAL != 0 {
            let number = (token & (SPECIAL - 1)) as u32;
            if token & WATCH == 0 {
                self.accept(number, handler);
            } else {
                handler.readable(number);
            }
            return;
        }
        let conn = Token(token);
        let flags = event.flags;
        let Some(socket) = find(&mut self.tables, conn) else { return };
        let special = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR | EventFlags::PRI;
        socket.state.thorough |= flags.intersects(special);
        if socket.state.connecting {
            self.finish_connecting(conn, handler);
            return;
        }
        let is_unblocked = flags.intersects(EventFlags::OUT) && socket.state.write_blocked;
        if flags.intersects(special | EventFlags::IN) {
            socket.state.readable = true;
            if socket.state.paused && flags.intersects(EventFlags::ERR) {
                // Both directions are dead: nothing can be sent any more.
                self.fail(conn, Errno::CONNRESET, handler);
                return;
            }
            if let Err(errno) = socket.read(conn, &mut self.intake, handler) {
                self.fail(conn, errno, handler);
            }
        }
        if is_unblocked && let Some(socket) = self.socket(conn) {
            socket.state.write_blocked = false;
            self.send_on(conn, handler);
        }
    }

    /// Sends what the kernel did not take before.
    #[inline(never)]
    fn send_on(&mut self, conn: Token, handler: &mut impl Handler) {
        self.send(conn, handler);
    }

    #[inline(never)]
    fn finish_connecting(&mut self, conn: Token, handler: &mut impl Handler) {
        let Some(socket) = self.socket(conn) else { return };
        let Some(descriptor) = &socket.descriptor else { return };
        match finish_connecting(descriptor) {
            Ok(()) => {
                socket.state.connecting = false;
                // Data and even the end may have come with the connection: this event was their
                // edge.
                socket.state.readable = true;
                handler.connected(conn);
                self.read_on(conn, handler);
            }
            Err(errno) => self.fail(conn, errno, handler),
        }
    }

    /// Reads without an event.
    #[inline(never)]
    fn read_on(&mut self, conn: Token, handler: &mut impl Handler) {
        let Some(socket) = find(&mut self.tables, conn) else { return };
        if let Err(errno) = socket.read(conn, &mut self.intake, handler) {
            self.fail(conn, errno, handler);
        }
    }

    fn accept(&mut self, key: u32, handler: &mut impl Handler) {
        let Some(index) = self.listeners.iter().position(|listener| listener.key == key) else {
            return;
        };
        let round = self.intake.round;
        let listener = &mut self.listeners[index];
        // With more events than fit into a round, not every round reports the listener.
        let is_cut = self.is_cut;
        if is_cut || listener.accepted_at == round.wrapping_sub(1) {
            // Some connections were left, or may have been.
            listener.expected = (2 * listener.expected).min(ACCEPTS_PER_TICK);
        } else {
            listener.accepted = 0;
        }
        for _ in 0..listener.expected {
            let listener = &mut self.listeners[index];
            let id = listener.id;
            match net::accept_with(&listener.socket, ACCEPT_FLAGS) {
                Ok(descriptor) => {
                    listener.accepted += 1;
                    listener.accepted_at = round;
                    self.take(id, descriptor, handler);
                }
                Err(Errno::AGAIN) => {
                    listener.expected = listener.accepted.clamp(1, ACCEPTS_PER_TICK);
                    // No connection is left.
                    listener.accepted_at = round.wrapping_sub(1);
                    return;
                }
                // The connection was reset while it waited, or a signal came.
                Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO) => {}
                Err(_) => {
                    self.park(index);
                    handler.accept_blocked(id);
                    return;
                }
            }
        }
    }

    fn take(&mut self, listener: u32, descriptor: OwnedFd, handler: &mut impl Handler) {
        match handler.accepted(listener, descriptor.as_fd()) {
            Ok(conn) => {
                if self.insert(conn, descriptor, false).is_err() {
                    handler.closed(conn, CloseKind::Reset);
                }
            }
            Err(why) => refuse(&descriptor, why, &mut self.intake.buffer),
        }
    }

    /// Accepts all that wait, or as many as there are descriptors for.
    fn drain(&mut self, mut draining: Draining, goes_on: bool, handler: &mut impl Handler) {
        loop {
            match draining.accept(ACCEPT_FLAGS) {
                Drained::Accepted(descriptor) => self.take(draining.id, descriptor, handler),
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

    /// Accepts from former listeners.
    #[inline(never)]
    fn drain_all(&mut self, handler: &mut impl Handler) {
        for draining in std::mem::take(&mut self.draining) {
            self.drain(draining, true, handler);
        }
    }

    /// Reports the connections to be detached.
    #[inline(never)]
    fn report_detached(&mut self, handler: &mut impl Handler) {
        for conn in std::mem::take(&mut self.detaching) {
            let Some(descriptor) = self.remove(conn) else { continue };
            // The new owner keeps the socket open, and so the registration.
            let _ = epoll::delete(&self.epoll, &descriptor);
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

    /// Waits for events and stores them: a round begins.
    fn fetch(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.events.clear();
        self.reported = 0;
        match self.precise.wait(&self.epoll, &mut self.events, timeout) {
            Ok(()) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.is_cut = self.events.len() == EVENTS_PER_TICK;
        self.intake.round = self.intake.round.wrapping_add(1);
        if !self.intake.unread.is_empty() {
            std::mem::swap(&mut self.intake.unread, &mut self.reading);
        }
        Ok(())
    }

    /// Reports the events, and continues the last round's reading, within this tick's limit.
    #[inline]
    fn report(&mut self, handler: &mut impl Handler) {
        self.intake.taken = 0;
        let events = std::mem::take(&mut self.events);
        let mut unreported = events[self.reported..].iter();
        while self.intake.has_room()
            && let Some(&event) = unreported.next()
        {
            self.handle_event(event, handler);
        }
        self.reported = events.len() - unreported.len();
        self.events = events;
        if !self.reading.is_empty() {
            self.catch_up(handler);
        }
    }

    /// Continues the last round's reading.
    #[inline(never)]
    fn catch_up(&mut self, handler: &mut impl Handler) {
        while self.intake.has_room()
            && let Some(conn) = self.reading.pop_front()
        {
            if let Some(socket) = self.socket(conn) {
                socket.state.listed = false;
                self.read_on(conn, handler);
            }
        }
    }

    /// Stops watching a listener that cannot accept; otherwise it would be reported again and
    /// again.
    fn park(&mut self, index: usize) {
        let Some(listener) = self.listeners.get_mut(index) else { return };
        if epoll::delete(&self.epoll, &listener.socket).is_ok() {
            listener.parked = true;
            self.unpark_at = Some(Instant::now() + PARKED_RETRY);
        }
    }

    /// A descriptor may be free again.
    fn unpark(&mut self) {
        if self.unpark_at.take().is_none() {
            return;
        }
        for listener in &mut self.listeners {
            if listener.parked {
                let Listener { key, socket, .. } = listener;
                listener.parked = watch_listener(&self.epoll, *key, socket).is_err();
                if listener.parked {
                    self.unpark_at = Some(Instant::now() + PARKED_RETRY);
                }
            }
        }
    }
}

impl Driver for EpollDriver {
    const LATE_MAX: u64 = 0;

    fn listen(&mut self, id: u32, socket: OwnedFd) -> io::Result<()> {
        let key = self.next_key;
        watch_listener(&self.epoll, key, &socket)?;
        self.next_key = (key + 1) & (SPECIAL - 1) as u32;
        self.listeners.push(Listener {
            id,
            key,
            socket,
            parked: false,
            expected: 1,
            accepted: 0,
            accepted_at: self.intake.round,
        });
        Ok(())
    }

    fn unlisten(&mut self, id: u32, drain: bool, handler: &mut impl Handler) {
        while let Some(index) = self.listeners.iter().position(|listener| listener.id == id) {
            let Listener { socket, parked, .. } = self.listeners.swap_remove(index);
            if !parked {
                // Other processes have the socket, too.
                let _ = epoll::delete(&self.epoll, &socket);
            }
            self.drain(Draining::new(id, socket), drain, handler);
        }
    }

    fn stop_listening(&mut self) {
        self.draining.clear();
        for listener in self.listeners.drain(..) {
            // The master keeps the socket open, so closing it here would not end the watch.
            if !listener.parked {
                let _ = epoll::delete(&self.epoll, &listener.socket);
            }
        }
    }

    fn watch(&mut self, watch: u32, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let token = SPECIAL | WATCH | u64::from(watch);
        epoll::add(&self.epoll, descriptor, EventData::new_u64(token), EventFlags::IN)?;
        Ok(())
    }

    fn unwatch(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        epoll::delete(&self.epoll, descriptor)?;
        // One of its events may not have been reported yet. Those of others are reported again.
        let is_watch = |event: &Event| event.data.u64() & (SPECIAL | WATCH) == SPECIAL | WATCH;
        self.events.drain(..std::mem::take(&mut self.reported));
        self.events.retain(|event| !is_watch(event));
        Ok(())
    }

    fn connect(&mut self, conn: Token, address: &Address) -> Result<(), CloseKind> {
        let descriptor = start_connecting(address)?;
        self.insert(conn, descriptor, true).map_err(|_| CloseKind::NoMemory)
    }

    fn adopt(&mut self, conn: Token, socket: OwnedFd) -> io::Result<()> {
        // Another kind of driver may have accepted it.
        ioctl_fionbio(&socket, true)?;
        self.insert(conn, socket, false)
    }

    fn detach(&mut self, conn: Token) {
        if let Some(socket) = self.socket(conn)
            && !std::mem::replace(&mut socket.state.detaching, true)
        {
            self.detaching.push(conn);
        }
    }

    fn close(&mut self, conn: Token) {
        let has_ended = self.socket(conn).is_some_and(|socket| socket.state.ended);
        let Some(descriptor) = self.remove(conn) else { return };
        if !has_ended {
            drain(&descriptor, &mut self.intake.buffer);
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
        if let Some(socket) = self.socket(conn) {
            socket.state.paused = true;
        }
    }

    fn resume(&mut self, conn: Token) {
        let Some(socket) = find(&mut self.tables, conn) else { return };
        socket.state.paused = false;
        if socket.state.readable {
            socket.list(conn, &mut self.intake.unread);
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

    // Inlined, so that the calling loop saves no registers for each connection.
    #[inline(always)]
    fn send(&mut self, conn: Token, handler: &mut impl Handler) {
        loop {
            let Some(socket) = self.tables[conn.table()].get_mut(conn.index()) else { return };
            if socket.generation != conn.generation()
                || socket.state.write_blocked
                || socket.state.connecting
                || socket.state.detaching
            {
                return;
            }
            let Some(descriptor) = &socket.descriptor else { return };
            let (piece, is_more) = handler.front(conn);
            let (wanted, result) = if is_more {
                send_pieces(descriptor, conn, handler)
            } else if piece.is_empty() {
                return;
            } else {
                (piece.len(), net::send(descriptor, piece, SendFlags::NOSIGNAL))
            };
            match result {
                Ok(len) => {
                    socket.state.write_blocked = len < wanted;
                    handler.sent(conn, len as u64);
                    if len < wanted || !is_more {
                        return;
                    }
                }
                Err(Errno::AGAIN) => {
                    socket.state.write_blocked = true;
                    return;
                }
                Err(Errno::INTR) => {}
                Err(errno) => {
                    self.fail(conn, errno, handler);
                    return;
                }
            }
        }
    }

    /// Nothing to do: [`Driver::send`] has written everything.
    #[inline]
    fn flush(&mut self, _: &mut impl Handler) {}

    fn take_released(&mut self) -> usize {
        0
    }

    fn wait(&mut self, timeout: Option<Duration>, handler: &mut impl Handler) -> io::Result<()> {
        let mut timeout = timeout;
        let is_draining = !self.draining.is_empty() && self.unpark_at.is_none();
        if !(self.intake.unread.is_empty() && self.detaching.is_empty()) || is_draining {
            timeout = Some(Duration::ZERO);
        }
        if self.unpark_at.is_some() {
            timeout = Some(timeout.map_or(PARKED_RETRY, |timeout| timeout.min(PARKED_RETRY)));
        }
        if !self.is_behind() {
            self.fetch(timeout)?;
        }
        handler.woken();
        if self.unpark_at.is_some_and(|at| at <= Instant::now()) {
            self.unpark();
        }
        if self.unpark_at.is_none() && !self.draining.is_empty() {
            self.drain_all(handler);
        }
        self.report(handler);
        if !self.detaching.is_empty() {
            self.report_detached(handler);
        }
        Ok(())
    }

    #[inline]
    fn is_behind(&self) -> bool {
        self.reported < self.events.len() || !self.reading.is_empty()
    }
}

/// A connection wakes only one of the processes that watch a listener.
fn watch_listener(epoll: &OwnedFd, key: u32, socket: &OwnedFd) -> io::Result<()> {
    let token = SPECIAL | u64::from(key);
    let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
    epoll::add(epoll, socket, EventData::new_u64(token), flags)?;
    Ok(())
}

/// Writes several pieces at once. Returns how many bytes there were, and the result.
#[cold]
fn send_pieces(
    descriptor: &OwnedFd,
    conn: Token,
    handler: &impl Handler,
) -> (usize, Result<usize, Errno>) {
    let mut slices = [IoSlice::new(&[]); SLICES_MAX];
    let count = handler.output(conn, &mut slices);
    let slices = &slices[..count];
    let wanted = slices.iter().map(|slice| slice.len()).sum();
    let mut ancillary = SendAncillaryBuffer::default();
    (wanted, net::sendmsg(descriptor, slices, &mut ancillary, SendFlags::NOSIGNAL))
}
