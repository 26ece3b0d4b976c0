//! TLS, and the header of the PROXY protocol that may come before it, over any driver. A connection that is secured has a [`Session`] beside it, between the driver below and the
//! handler above; the others pass through.

mod headers;
mod session;

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, IoSlice};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use cashew_tls::{Connector, Failure, Stream};
use rustix::net::{SendFlags, Shutdown, connect_unspec, send, shutdown};

use self::headers::{Headers, Progress};
pub use self::session::Luggage;
use self::session::{Session, Turn};
use crate::{Address, CloseKind, Driver, Handler, TABLES, Token, Unintroduced};

/// Time that handshakes may take of one wait; the others have their turn in the next ones. A signature takes from a
/// tenth of that to all of it.
const HANDSHAKE_TIME: Duration = Duration::from_millis(1);

/// The most bytes of a peer whose handshake waits for its turn. A peer that speaks TLS waits after a few of them.
const WAITING_INPUT_MAX: usize = 64 * 1024;

/// How often it is looked whether a client that was not read can go on with its handshake.
const PAUSED_RETRY: Duration = Duration::from_secs(1);

/// The most bytes of an encrypted record, with its header.
const RECORD_SIZE_MAX: u64 = 16 * 1024 + 2048 + 5;

/// A driver that secures those connections that are to be.
pub struct Secured<D> {
    driver: D,
    /// There once some may be secured.
    sessions: Option<Box<Sessions>>,
}

/// The secured connections.
#[derive(Default)]
struct Sessions {
    tables: [Vec<Option<Box<Session>>>; TABLES],
    work: Work,
    /// Connections that have not told whose they are.
    headers: Headers,
}

/// What is to be done for them outside of the driver's events.
#[derive(Default)]
struct Work {
    /// Handshakes that wait for their turn.
    waiting: VecDeque<Token>,
    /// Time that handshakes took of this wait.
    spent: Duration,
    /// When clients must have got through their handshakes.
    deadlines: BTreeSet<(Instant, u64)>,
    /// Connections that have something to write which nobody has asked for.
    unsent: Vec<Token>,
    /// Connections whose own side ends once what is left of them is written.
    ending: Vec<Token>,
    /// Connections whose peers have ended them, to be reported by the next wait.
    ends: Vec<Token>,
    /// Connections to be closed.
    failed: Vec<(Token, Failure)>,
    /// Scratch space for what was decrypted, and for what is to be encrypted.
    plain: Vec<u8>,
    gathered: Vec<u8>,
}

impl Work {
    /// Whether another handshake may go on in this wait.
    fn may_shake(&self) -> bool {
        self.spent < HANDSHAKE_TIME
    }

    /// Whether nothing is to be done but wait.
    fn is_at_rest(&self) -> bool {
        self.waiting.is_empty()
            && self.unsent.is_empty()
            && self.ends.is_empty()
            && self.failed.is_empty()
    }
}

impl Sessions {
    #[inline]
    fn find(&self, conn: Token) -> Option<&Session> {
        let session = self.tables[conn.table()].get(conn.index())?.as_deref()?;
        (session.generation == conn.generation()).then_some(session)
    }

    #[inline]
    fn find_mut(&mut self, conn: Token) -> Option<&mut Session> {
        find_in(&mut self.tables, conn)
    }

    fn insert(&mut self, conn: Token, session: Session) {
        let table = &mut self.tables[conn.table()];
        if table.len() <= conn.index() {
            table.resize_with(conn.index() + 1, || None);
        }
        self.work.deadlines.extend(session.deadline.map(|at| (at, conn.0)));
        table[conn.index()] = Some(Box::new(session));
    }

    fn remove(&mut self, conn: Token) -> Option<Box<Session>> {
        self.find(conn)?;
        let table = &mut self.tables[conn.table()];
        let session = table[conn.index()].take()?;
        if conn.index() + 1 == table.len() {
            while table.last().is_some_and(Option::is_none) {
                table.pop();
            }
            table.shrink_to(2 * table.len() + 64);
        }
        if let Some(at) = session.deadline {
            self.work.deadlines.remove(&(at, conn.0));
        }
        Some(session)
    }

    /// Puts plaintext in the place of what has come from the connection, if that is secured. False if there is nothing
    /// to report.
    #[inline(never)]
    fn decrypt(&mut self, conn: Token, bytes: &mut Vec<u8>, handler: &mut impl Handler) -> bool {
        if !self.headers.is_empty() && !self.read_header(conn, bytes, handler) {
            return false;
        }
        let Self { tables, work, .. } = self;
        let Some(session) = find_in(tables, conn) else { return true };
        if session.is_failed {
            return false;
        }
        if session.is_opening() && (session.is_waiting || !work.may_shake()) {
            session.input.extend_from_slice(bytes);
            if session.input.len() > WAITING_INPUT_MAX {
                session.fail(conn, Failure::Broken, &mut work.failed);
            } else if !std::mem::replace(&mut session.is_waiting, true) {
                work.waiting.push_back(conn);
            }
            return false;
        }
        read(session, conn, bytes, work, handler);
        std::mem::swap(bytes, &mut work.plain);
        !bytes.is_empty()
    }

    /// Takes the header from the start of what has come, if the connection has not told whose it is. False if there is
    /// nothing else.
    #[inline(never)]
    fn read_header(
        &mut self,
        conn: Token,
        bytes: &mut Vec<u8>,
        handler: &mut impl Handler,
    ) -> bool {
        let (header, at) = match self.headers.read(conn, bytes) {
            Progress::None => return true,
            Progress::Partial => return false,
            Progress::Complete { header, deadline } => (header, deadline),
        };
        self.work.deadlines.remove(&(at, conn.0));
        let will_be_secured = self.find(conn).is_some();
        if let Err(why) = handler.introduced(conn, header, will_be_secured) {
            let why = if will_be_secured { b"" } else { why };
            self.headers.refuse(conn, why);
            return false;
        }
        !bytes.is_empty()
    }

    /// Lets the next handshake go on. Returns whether there was one.
    fn shake(&mut self, handler: &mut impl Handler) -> bool {
        let Some(conn) = self.work.waiting.pop_front() else { return false };
        let Self { tables, work, .. } = self;
        let Some(session) = find_in(tables, conn).filter(|session| !session.is_failed) else {
            return true;
        };
        session.is_waiting = false;
        let mut input = std::mem::take(&mut session.input);
        read(session, conn, &mut input, work, handler);
        if !work.plain.is_empty() {
            let mut plain = std::mem::take(&mut work.plain);
            handler.received_late(conn, &mut plain);
            work.plain = plain;
        }
        true
    }
}

fn find_in(tables: &mut [Vec<Option<Box<Session>>>; TABLES], conn: Token) -> Option<&mut Session> {
    let session = tables[conn.table()].get_mut(conn.index())?.as_deref_mut()?;
    (session.generation == conn.generation()).then_some(session)
}

/// Decrypts what has come into `work.plain`, and notes what follows from it.
fn read(
    session: &mut Session,
    conn: Token,
    bytes: &mut [u8],
    work: &mut Work,
    handler: &mut impl Handler,
) {
    work.plain.clear();
    let began = session.is_opening().then(Instant::now);
    let turn = session.read(bytes, &mut work.plain);
    work.spent += began.map_or(Duration::ZERO, |began| began.elapsed());
    if session.has_output() {
        work.unsent.push(conn);
    }
    match turn {
        Turn::On => {}
        Turn::Opened(facts) => {
            if let Some(at) = session.deadline.take() {
                work.deadlines.remove(&(at, conn.0));
            }
            handler.secured(conn, facts, &session.user_names());
            if conn.leads_to_server() {
                handler.connected(conn);
            }
            // The handler may have had something to say before.
            work.unsent.push(conn);
        }
        Turn::Failed(failure) => session.fail(conn, failure, &mut work.failed),
    }
    if session.is_ended && !std::mem::replace(&mut session.is_end_listed, true) {
        work.ends.push(conn);
    }
}

/// Encrypts what the handler has for the connection, as much as there is room for.
fn fill(session: &mut Session, conn: Token, work: &mut Work, handler: &mut impl Handler) {
    while session.has_room() {
        let sent = match session.encrypt(conn, handler, &mut work.gathered) {
            Ok(Some(sent)) => sent,
            Ok(None) => return,
            Err(failure) => return session.fail(conn, failure, &mut work.failed),
        };
        if sent > 0 {
            handler.sent(conn, sent);
        }
    }
}

/// Stands between the driver and the handler.
struct Between<'a, H> {
    handler: &'a mut H,
    sessions: Option<&'a mut Sessions>,
}

impl<H: Handler> Handler for Between<'_, H> {
    #[inline(always)]
    fn woken(&mut self) {
        self.handler.woken();
    }

    fn accepted(&mut self, listener: u32, socket: BorrowedFd<'_>) -> Result<Token, &'static [u8]> {
        let Some(sessions) = &mut self.sessions else {
            return self.handler.accepted(listener, socket);
        };
        let now = Instant::now();
        let mut deadline = now;
        let header_timeout = self.handler.header_timeout(listener, socket);
        deadline += header_timeout.unwrap_or_default();
        let conn = match self.handler.acceptor(listener) {
            None => self.handler.accepted(listener, socket)?,
            Some(acceptor) => {
                deadline += acceptor.handshake_timeout;
                // Words in plain text would be no answer to a handshake.
                let Some(stream) = Stream::accept(acceptor) else { return Err(b"") };
                let conn = self.handler.accepted(listener, socket).map_err(|_| &b""[..])?;
                sessions.insert(conn, Session::accepted(conn.generation(), stream, deadline));
                conn
            }
        };
        if let Some(timeout) = header_timeout {
            sessions.headers.expect(conn, now + timeout);
            sessions.work.deadlines.insert((now + timeout, conn.0));
        }
        Ok(conn)
    }

    fn accept_blocked(&mut self, listener: u32) {
        self.handler.accept_blocked(listener);
    }

    fn connected(&mut self, conn: Token) {
        if let Some(sessions) = &mut self.sessions
            && let Some(session) = find_in(&mut sessions.tables, conn)
        {
            // The first bytes are ours. They are for the handshake's turn, as they take keys to make.
            let deadline = session.connected(Instant::now());
            sessions.work.deadlines.insert((deadline, conn.0));
            sessions.work.waiting.push_back(conn);
            return;
        }
        self.handler.connected(conn);
    }

    #[inline(always)]
    fn received(&mut self, conn: Token, bytes: &mut Vec<u8>) {
        if let Some(sessions) = &mut self.sessions
            && !sessions.decrypt(conn, bytes, self.handler)
        {
            return;
        }
        self.handler.received(conn, bytes);
    }

    #[inline(always)]
    fn buffer(&mut self, capacity: usize) -> Vec<u8> {
        self.handler.buffer(capacity)
    }

    fn read_closed(&mut self, conn: Token) {
        let Some(sessions) = &mut self.sessions else { return self.handler.read_closed(conn) };
        if sessions.headers.fail(conn, Unintroduced::Closed) {
            return;
        }
        let Sessions { tables, work, .. } = &mut **sessions;
        let Some(session) = find_in(tables, conn) else { return self.handler.read_closed(conn) };
        session.is_ended = true;
        if session.is_opening() && !session.is_waiting {
            session.fail(conn, Failure::Closed, &mut work.failed);
        } else if !std::mem::replace(&mut session.is_end_listed, true) {
            work.ends.push(conn);
        }
    }

    fn detached(&mut self, conn: Token, socket: OwnedFd) {
        let session = self.sessions.as_mut().and_then(|sessions| {
            sessions.forget_header(conn);
            sessions.remove(conn)
        });
        match session.map(|session| session.part()) {
            None => self.handler.detached(conn, socket),
            Some(Some(luggage)) => self.handler.detached_secured(conn, socket, luggage),
            Some(None) => {
                drop(socket);
                self.handler.closed(conn, CloseKind::Reset);
            }
        }
    }

    fn closed(&mut self, conn: Token, why: CloseKind) {
        if let Some(sessions) = &mut self.sessions
            && sessions.forget_header(conn)
        {
            sessions.remove(conn);
            return self.handler.closed(conn, CloseKind::Unintroduced(Unintroduced::Closed));
        }
        if let Some(sessions) = &mut self.sessions
            && let Some(session) = sessions.remove(conn)
            && session.is_opening()
            && session.is_connected
        {
            // A peer that cannot make anything of a handshake may reset the connection.
            return self.handler.closed(conn, CloseKind::Insecure(Failure::Closed));
        }
        self.handler.closed(conn, why);
    }

    fn readable(&mut self, watch: u32) {
        self.handler.readable(watch);
    }

    #[inline(always)]
    fn front(&self, conn: Token) -> (&[u8], bool) {
        if let Some(sessions) = &self.sessions
            && let Some(session) = sessions.find(conn)
        {
            let output = session.output();
            let is_more = !output.is_empty() && session.is_more_of(self.handler.front(conn));
            return (output, is_more);
        }
        self.handler.front(conn)
    }

    #[inline]
    fn output<'a>(&'a self, conn: Token, slices: &mut [IoSlice<'a>]) -> usize {
        if let Some(sessions) = &self.sessions
            && let Some(session) = sessions.find(conn)
        {
            slices[0] = IoSlice::new(session.output());
            return 1;
        }
        self.handler.output(conn, slices)
    }

    #[inline(always)]
    fn sent(&mut self, conn: Token, bytes: u64) {
        if let Some(sessions) = &mut self.sessions {
            let Sessions { tables, work, .. } = &mut **sessions;
            if let Some(session) = find_in(tables, conn) {
                let sent = session.written(bytes);
                if sent > 0 {
                    self.handler.sent(conn, sent);
                }
                return fill(session, conn, work, self.handler);
            }
        }
        self.handler.sent(conn, bytes);
    }
}

impl<D: Driver> Secured<D> {
    pub fn new(driver: D) -> Self {
        Self { driver, sessions: None }
    }

    /// For tests.
    pub fn below(&mut self) -> &mut D {
        &mut self.driver
    }

    /// From now on connections may be secured, or begin with a header. Until then they all pass through at no cost.
    pub fn enable(&mut self) {
        self.sessions.get_or_insert_default();
    }

    /// As [`Driver::connect`], to a server at `host` (`None`: at a Unix socket) that is asked for its certificate.
    /// [`Handler::connected`] follows the handshake.
    ///
    /// # Errors
    /// If this fails at once.
    pub fn connect_secured(
        &mut self,
        conn: Token,
        address: &Address,
        connector: &Connector,
        host: Option<&str>,
        handshake_timeout: Duration,
    ) -> Result<(), CloseKind> {
        let stream = Stream::connect(connector, host);
        let stream = stream.ok_or(CloseKind::Insecure(Failure::WrongName))?;
        self.driver.connect(conn, address)?;
        self.enable();
        if let Some(sessions) = &mut self.sessions {
            sessions
                .insert(conn, Session::connecting(conn.generation(), stream, handshake_timeout));
        }
        Ok(())
    }

    /// As [`Driver::adopt`], of a secured connection.
    ///
    /// # Errors
    /// If it cannot go on.
    pub fn adopt_secured(
        &mut self,
        conn: Token,
        socket: OwnedFd,
        luggage: Luggage,
    ) -> io::Result<()> {
        let session = Session::adopted(conn.generation(), luggage);
        let session = session.ok_or(io::ErrorKind::InvalidData)?;
        self.driver.adopt(conn, socket)?;
        let sessions = self.sessions.get_or_insert_default();
        if session.has_output() {
            sessions.work.unsent.push(conn);
        }
        if session.is_ended {
            sessions.work.ends.push(conn);
        }
        sessions.insert(conn, session);
        Ok(())
    }

    /// Tells all peers that nothing more follows, before all is closed.
    pub fn take_leave(&mut self) {
        let Some(sessions) = self.sessions.as_deref_mut() else { return };
        for (table, slots) in (0..).zip(&mut sessions.tables) {
            for (index, slot) in (0..).zip(slots) {
                let Some(session) = slot else { continue };
                let conn = Token(u64::from(session.generation) << 32 | table << 30 | index);
                write_last(self.driver.descriptor(conn), session.close());
            }
        }
    }

    /// Tells the peer that nothing more follows what was written, and goes on reading. All of the handler's output must
    /// be written.
    pub fn end_writing(&mut self, conn: Token) {
        if let Some(sessions) = self.sessions.as_deref_mut() {
            let Sessions { tables, work, .. } = sessions;
            // With TLS the peer has that from the record, which it must have before the connection's own end.
            if let Some(session) = find_in(tables, conn)
                && !session.close().is_empty()
            {
                work.unsent.push(conn);
                return work.ending.push(conn);
            }
        }
        self.shut_down(conn);
    }

    fn shut_down(&self, conn: Token) {
        if let Some(descriptor) = self.driver.descriptor(conn) {
            // An error says that the connection is broken, which is reported as ever.
            let _ = shutdown(descriptor, Shutdown::Write);
        }
    }

    /// Ends the sides that are to end and of which all is written by now.
    fn end_written(&mut self) {
        let Some(sessions) = self.sessions.as_deref_mut() else { return };
        let (left, written) = std::mem::take(&mut sessions.work.ending)
            .into_iter()
            .filter(|&conn| sessions.find(conn).is_some())
            .partition::<Vec<_>, _>(|&conn| sessions.find(conn).is_some_and(Session::has_output));
        sessions.work.ending = left;
        written.into_iter().for_each(|conn| self.shut_down(conn));
    }

    /// Closes the connection so that its peer finds it reset: what was to come is not there.
    pub fn reset(&mut self, conn: Token) {
        self.driver.give_up(conn);
        if let Some(sessions) = self.sessions.as_deref_mut() {
            sessions.remove(conn);
            sessions.forget_header(conn);
        }
        if let Some(descriptor) = self.driver.descriptor(conn) {
            // The peer's end is told before the socket is closed, for which the kernel may have to end what it does
            // with it. A Unix socket has no such end.
            let _ = connect_unspec(descriptor);
        }
        self.driver.close(conn);
    }

    /// Whether the connection is secured.
    pub fn is_secured(&self, conn: Token) -> bool {
        self.sessions.as_ref().is_some_and(|sessions| sessions.find(conn).is_some())
    }

    fn pause_header(&mut self, conn: Token, is_paused: bool) {
        if let Some(sessions) = self.sessions.as_deref_mut()
            && !sessions.headers.is_empty()
        {
            sessions.headers.set_paused(conn, is_paused);
        }
    }

    /// Encrypts and writes.
    #[inline(never)]
    fn send_secured(&mut self, conn: Token, handler: &mut impl Handler) {
        let Some(sessions) = self.sessions.as_deref_mut() else { return };
        let Sessions { tables, work, .. } = &mut *sessions;
        if let Some(session) = find_in(tables, conn) {
            fill(session, conn, work, handler);
        }
        self.driver.send(conn, &mut Between { handler, sessions: Some(sessions) });
    }

    /// Does what is left of a wait.
    #[inline(never)]
    fn settle(&mut self, ends: Vec<Token>, handler: &mut impl Handler) {
        let Some(sessions) = self.sessions.as_deref_mut() else { return };
        while sessions.work.may_shake() && sessions.shake(handler) {}
        for conn in ends {
            let Sessions { tables, work, .. } = &mut *sessions;
            let Some(session) = find_in(tables, conn) else { continue };
            if session.is_opening() && !session.is_waiting {
                session.fail(conn, Failure::Closed, &mut work.failed);
            } else if session.is_waiting {
                work.ends.push(conn);
            } else if session.may_end() {
                handler.read_closed(conn);
            }
        }
        if !sessions.work.deadlines.is_empty() {
            sessions.give_up_late(Instant::now());
        }
        for conn in std::mem::take(&mut sessions.work.unsent) {
            self.send_secured(conn, handler);
        }
        self.driver.flush(&mut Between { handler, sessions: self.sessions.as_deref_mut() });
        self.close_failed(handler);
        self.end_written();
    }

    fn close_failed(&mut self, handler: &mut impl Handler) {
        let Some(sessions) = self.sessions.as_deref_mut() else { return };
        for (conn, why, words) in sessions.headers.take_failed() {
            // It may be gone already.
            if !sessions.forget_header(conn) {
                continue;
            }
            sessions.remove(conn);
            write_last(self.driver.descriptor(conn), words);
            self.driver.close(conn);
            handler.closed(conn, CloseKind::Unintroduced(why));
        }
        for (conn, failure) in std::mem::take(&mut sessions.work.failed) {
            // It may be gone already.
            let Some(session) = sessions.remove(conn) else { continue };
            write_last(self.driver.descriptor(conn), session.output());
            self.driver.close(conn);
            handler.closed(conn, CloseKind::Insecure(failure));
        }
    }
}

impl Sessions {
    /// The connection is gone. Returns whether it had not told whose it is.
    fn forget_header(&mut self, conn: Token) -> bool {
        let deadline = self.headers.forget(conn);
        deadline.inspect(|at| _ = self.work.deadlines.remove(&(*at, conn.0))).is_some()
    }

    /// Gives up handshakes, and waiting for headers, that take too long, but not of those who are not read.
    fn give_up_late(&mut self, now: Instant) {
        let Self { tables, work, headers } = self;
        while let Some(&(at, conn)) = work.deadlines.first().filter(|(at, _)| *at <= now) {
            work.deadlines.remove(&(at, conn));
            let conn = Token(conn);
            if headers.is_waiting(conn) {
                let later = headers.give_up(conn, now + PAUSED_RETRY);
                work.deadlines.extend(later.map(|at| (at, conn.0)));
                continue;
            }
            let Some(session) = find_in(tables, conn) else { continue };
            session.deadline = None;
            if session.is_paused {
                let later = now + PAUSED_RETRY;
                session.deadline = Some(later);
                work.deadlines.insert((later, conn.0));
            } else {
                session.fail(conn, Failure::TimedOut, &mut work.failed);
            }
        }
    }
}

/// Writes what the kernel takes of it, before the connection is closed.
fn write_last(descriptor: Option<BorrowedFd<'_>>, bytes: &[u8]) {
    if let Some(descriptor) = descriptor.filter(|_| !bytes.is_empty()) {
        // Whoever does not get it finds the connection closed.
        let _ = send(descriptor, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

impl<D: Driver> Driver for Secured<D> {
    /// What was left of a record may come on top.
    const LATE_MAX: u64 = match D::LATE_MAX {
        0 => 0,
        late => late + RECORD_SIZE_MAX,
    };

    fn listen(&mut self, listener: u32, socket: OwnedFd) -> io::Result<()> {
        self.driver.listen(listener, socket)
    }

    fn unlisten(&mut self, listener: u32, drain: bool, handler: &mut impl Handler) {
        let sessions = self.sessions.as_deref_mut();
        self.driver.unlisten(listener, drain, &mut Between { handler, sessions });
    }

    fn stop_listening(&mut self) {
        self.driver.stop_listening();
    }

    fn watch(&mut self, watch: u32, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.driver.watch(watch, descriptor)
    }

    fn unwatch(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.driver.unwatch(descriptor)
    }

    fn connect(&mut self, conn: Token, address: &Address) -> Result<(), CloseKind> {
        self.driver.connect(conn, address)
    }

    fn adopt(&mut self, conn: Token, socket: OwnedFd) -> io::Result<()> {
        self.driver.adopt(conn, socket)
    }

    fn detach(&mut self, conn: Token) {
        self.driver.detach(conn);
    }

    fn close(&mut self, conn: Token) {
        if let Some(sessions) = self.sessions.as_deref_mut()
            && let Some(mut session) = sessions.remove(conn)
        {
            write_last(self.driver.descriptor(conn), session.close());
        }
        if let Some(sessions) = self.sessions.as_deref_mut() {
            sessions.forget_header(conn);
        }
        self.driver.close(conn);
    }

    fn give_up(&mut self, conn: Token) {
        if let Some(session) = self.sessions.as_deref_mut().and_then(|it| it.find_mut(conn)) {
            session.is_given_up = true;
        }
        self.driver.give_up(conn);
    }

    fn pause(&mut self, conn: Token) {
        if let Some(session) = self.sessions.as_deref_mut().and_then(|it| it.find_mut(conn)) {
            session.is_paused = true;
        }
        self.pause_header(conn, true);
        self.driver.pause(conn);
    }

    fn resume(&mut self, conn: Token) {
        if let Some(sessions) = self.sessions.as_deref_mut() {
            let Sessions { tables, work, .. } = sessions;
            if let Some(session) = find_in(tables, conn)
                && std::mem::take(&mut session.is_paused)
                && session.is_end_held_back
            {
                work.ends.push(conn);
            }
        }
        self.pause_header(conn, false);
        self.driver.resume(conn);
    }

    /// Of a secured connection part of the bytes may have been read already, so that fewer would never come.
    fn set_low_water(&mut self, conn: Token, bytes: u32) {
        if self.sessions.is_none() || !self.is_secured(conn) {
            self.driver.set_low_water(conn, bytes);
        }
    }

    fn acknowledge(&mut self, conn: Token) {
        self.driver.acknowledge(conn);
    }

    fn descriptor(&self, conn: Token) -> Option<BorrowedFd<'_>> {
        self.driver.descriptor(conn)
    }

    #[inline(always)]
    fn send(&mut self, conn: Token, handler: &mut impl Handler) {
        if self.sessions.is_some() {
            return self.send_secured(conn, handler);
        }
        self.driver.send(conn, &mut Between { handler, sessions: None });
    }

    #[inline(always)]
    fn flush(&mut self, handler: &mut impl Handler) {
        let sessions = self.sessions.as_deref_mut();
        self.driver.flush(&mut Between { handler, sessions });
    }

    fn take_released(&mut self) -> usize {
        self.driver.take_released()
    }

    fn wait(&mut self, timeout: Option<Duration>, handler: &mut impl Handler) -> io::Result<()> {
        let Some(sessions) = self.sessions.as_deref_mut() else {
            return self.driver.wait(timeout, &mut Between { handler, sessions: None });
        };
        let mut timeout = timeout;
        let Work { deadlines, spent, .. } = &mut sessions.work;
        if let Some((at, _)) = deadlines.first() {
            let left = at.saturating_duration_since(Instant::now());
            timeout = Some(timeout.map_or(left, |timeout| timeout.min(left)));
        }
        *spent = Duration::ZERO;
        if !(sessions.work.is_at_rest() && sessions.headers.is_at_rest()) {
            timeout = Some(Duration::ZERO);
        }
        let ends = std::mem::take(&mut sessions.work.ends);
        self.driver.wait(timeout, &mut Between { handler, sessions: Some(sessions) })?;
        self.settle(ends, handler);
        Ok(())
    }

    #[inline]
    fn is_behind(&self) -> bool {
        self.driver.is_behind()
    }
}
