//! A driver with a handler that records all reports, and peers made of ordinary sockets.
#![allow(dead_code, unused_macros, reason = "each test file uses its own part")]

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cashew_driver::{
    Address, CloseKind, Driver, EpollDriver, Handler, Luggage, Refusal, Secured, Token, UringDriver,
};
use cashew_tls::{Acceptor, Facts};

#[path = "../../../../tests/rust/addresses.rs"]
mod addresses;

pub(crate) use addresses::free_address;

/// Tests that every driver passes.
macro_rules! contract {
    ($($name:ident)*) => {
        mod epoll {
            $(#[test]
            fn $name() {
                super::$name(crate::bench::epoll_driver);
            })*
        }

        mod secured {
            $(#[test]
            fn $name() {
                super::$name(crate::bench::secured_driver);
            })*
        }

        mod uring {
            $(#[test]
            fn $name() {
                if crate::bench::has_uring() {
                    super::$name(crate::bench::uring_driver);
                }
            })*
        }

        mod older_uring {
            $(#[test]
            fn $name() {
                if crate::bench::has_uring() {
                    super::$name(crate::bench::older_uring_driver);
                }
            })*
        }
    };
}

/// Longer than anything here takes, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough for an unwanted event to happen.
pub(crate) const QUIET: Duration = Duration::from_millis(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Accepted(u32, Token),
    Connected(Token),
    Received(Token),
    ReadClosed(Token),
    Closed(Token, CloseKind),
    Detached(Token),
    Readable(u32),
}

pub(crate) fn epoll_driver() -> EpollDriver {
    EpollDriver::new().expect("epoll")
}

/// For connections that are not secured where others may be.
pub(crate) fn secured_driver() -> Secured<EpollDriver> {
    let mut driver = Secured::new(epoll_driver());
    driver.enable();
    driver
}

pub(crate) fn uring_driver() -> UringDriver {
    UringDriver::new().expect("io_uring")
}

pub(crate) fn older_uring_driver() -> UringDriver {
    UringDriver::as_before_6_17().expect("io_uring")
}

/// Whether io_uring can be tested: a container may forbid it, an old kernel does not have it.
pub(crate) fn has_uring() -> bool {
    match UringDriver::new() {
        Ok(_) => true,
        Err(Refusal::Failed(error)) => panic!("io_uring: {error}"),
        Err(refusal) => {
            eprintln!("skipped: {refusal}");
            false
        }
    }
}

/// A token of the first table, where accepted connections go.
pub(crate) fn client(index: u64, generation: u64) -> Token {
    Token(generation << 32 | index)
}

/// A token of the second table.
pub(crate) fn server(index: u64, generation: u64) -> Token {
    Token(generation << 32 | 1 << 31 | index)
}

#[derive(Default)]
pub(crate) struct Recorder {
    /// Tokens for the next connections; after these they are numbered.
    pub(crate) tokens: VecDeque<Token>,
    accepted: u64,
    /// What clients are secured with.
    pub(crate) acceptor: Option<Acceptor>,
    /// Finished handshakes.
    pub(crate) secured: Vec<(Token, Facts)>,
    /// Accepts no client.
    pub(crate) is_full: bool,
    /// How many it has not accepted.
    pub(crate) refused: usize,
    pub(crate) events: Vec<Event>,
    /// Detached sockets.
    pub(crate) detached: HashMap<Token, OwnedFd>,
    /// Detached sockets of secured connections.
    pub(crate) luggage: HashMap<Token, (OwnedFd, Luggage)>,
    /// How often accepting was blocked.
    pub(crate) blocked: usize,
    pub(crate) woken: usize,
    /// The value of `woken` when a connection's last bytes came.
    received_at: HashMap<Token, usize>,
    received: HashMap<Token, Vec<u8>>,
    /// The most bytes received at once.
    pub(crate) largest: usize,
    output: HashMap<Token, VecDeque<Vec<u8>>>,
    /// Bytes of the first buffer that are written.
    written: HashMap<Token, usize>,
    /// The connections that were written to, in order.
    pub(crate) sent: Vec<Token>,
}

impl Recorder {
    pub(crate) fn accepted(&self) -> Vec<Token> {
        let accepted = self.events.iter().filter_map(|event| match event {
            Event::Accepted(_, conn) => Some(*conn),
            _ => None,
        });
        accepted.collect()
    }

    pub(crate) fn has(&self, event: Event) -> bool {
        self.events.contains(&event)
    }

    pub(crate) fn close_kind(&self, conn: Token) -> Option<CloseKind> {
        self.events.iter().find_map(|event| match event {
            Event::Closed(closed, why) if *closed == conn => Some(*why),
            _ => None,
        })
    }

    pub(crate) fn received(&self, conn: Token) -> &[u8] {
        self.received.get(&conn).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn is_all_sent(&self, conn: Token) -> bool {
        self.output.get(&conn).is_none_or(VecDeque::is_empty)
    }

    /// The events of a connection, in order; consecutive reads count as one.
    pub(crate) fn story(&self, conn: Token) -> Vec<Event> {
        let mut story: Vec<Event> = self
            .events
            .iter()
            .copied()
            .filter(|event| match event {
                Event::Accepted(_, of)
                | Event::Connected(of)
                | Event::Received(of)
                | Event::ReadClosed(of)
                | Event::Detached(of)
                | Event::Closed(of, _) => *of == conn,
                Event::Readable(_) => false,
            })
            .collect();
        story.dedup();
        story
    }
}

impl Handler for Recorder {
    fn woken(&mut self) {
        self.woken += 1;
    }

    fn accepted(&mut self, listener: u32, _: BorrowedFd<'_>) -> Result<Token, &'static [u8]> {
        if self.is_full {
            self.refused += 1;
            return Err(b"full");
        }
        let conn = self.tokens.pop_front().unwrap_or_else(|| client(self.accepted, 7));
        self.accepted += 1;
        self.events.push(Event::Accepted(listener, conn));
        Ok(conn)
    }

    fn acceptor(&self, _: u32) -> Option<&Acceptor> {
        self.acceptor.as_ref()
    }

    fn secured(&mut self, conn: Token, facts: Facts, _: &[String]) {
        self.secured.push((conn, facts));
    }

    fn connected(&mut self, conn: Token) {
        self.events.push(Event::Connected(conn));
    }

    fn accept_blocked(&mut self, _listener: u32) {
        self.blocked += 1;
    }

    fn received(&mut self, conn: Token, bytes: &mut Vec<u8>) {
        assert!(!bytes.is_empty());
        self.events.push(Event::Received(conn));
        self.received_at.insert(conn, self.woken);
        self.largest = self.largest.max(bytes.len());
        self.received.entry(conn).or_default().extend_from_slice(bytes);
        // The handler may take the buffer or leave it.
        if self.events.len().is_multiple_of(2) {
            drop(std::mem::take(bytes));
        }
    }

    fn buffer(&mut self, capacity: usize) -> Vec<u8> {
        Vec::with_capacity(capacity)
    }

    fn read_closed(&mut self, conn: Token) {
        let received_at = self.received_at.get(&conn);
        assert!(received_at.is_none_or(|at| *at < self.woken), "the end has a tick of its own");
        self.events.push(Event::ReadClosed(conn));
    }

    fn detached(&mut self, conn: Token, socket: OwnedFd) {
        self.events.push(Event::Detached(conn));
        assert!(self.detached.insert(conn, socket).is_none(), "it is let go of once");
    }

    fn detached_secured(&mut self, conn: Token, socket: OwnedFd, luggage: Luggage) {
        assert!(self.luggage.insert(conn, (socket, luggage)).is_none(), "it is let go of once");
    }

    fn closed(&mut self, conn: Token, why: CloseKind) {
        self.events.push(Event::Closed(conn, why));
    }

    fn readable(&mut self, watch: u32) {
        self.events.push(Event::Readable(watch));
    }

    fn front(&self, conn: Token) -> (&[u8], bool) {
        let written = self.written.get(&conn).copied().unwrap_or(0);
        match self.output.get(&conn).map(|output| (output.front(), output.len())) {
            Some((Some(first), count)) => (&first[written..], count > 1),
            _ => (&[], false),
        }
    }

    fn output<'a>(&'a self, conn: Token, slices: &mut [IoSlice<'a>]) -> usize {
        let mut skip = self.written.get(&conn).copied().unwrap_or(0);
        let mut count = 0;
        for buf in self.output.get(&conn).into_iter().flatten().take(slices.len()) {
            slices[count] = IoSlice::new(&buf[skip..]);
            count += 1;
            skip = 0;
        }
        count
    }

    fn sent(&mut self, conn: Token, bytes: u64) {
        self.sent.push(conn);
        let output = self.output.get_mut(&conn).expect("only what there is is sent");
        let written = self.written.entry(conn).or_default();
        *written += bytes as usize;
        while output.front().is_some_and(|first| first.len() <= *written) {
            *written -= output.pop_front().expect("it was just looked at").len();
        }
        assert!(*written == 0 || !output.is_empty(), "no more is sent than there is");
    }
}

pub(crate) struct Bench<D> {
    pub(crate) driver: D,
    pub(crate) recorder: Recorder,
}

impl<D: Driver> Bench<D> {
    pub(crate) fn new(new: fn() -> D) -> Self {
        Self { driver: new(), recorder: Recorder::default() }
    }

    pub(crate) fn tick(&mut self, timeout: Duration) {
        self.driver.wait(Some(timeout), &mut self.recorder).expect("waiting works");
    }

    /// Ticks until a condition holds.
    #[track_caller]
    pub(crate) fn until(&mut self, is_so: impl Fn(&Recorder) -> bool) {
        let start = Instant::now();
        while !is_so(&self.recorder) {
            assert!(start.elapsed() < PATIENCE, "waited in vain: {:?}", self.recorder.events);
            self.tick(Duration::from_millis(20));
        }
    }

    /// Ticks for a while; returns what happened.
    pub(crate) fn linger(&mut self) -> Vec<Event> {
        let before = self.recorder.events.len();
        let start = Instant::now();
        while start.elapsed() < QUIET {
            self.tick(Duration::from_millis(10));
        }
        self.recorder.events[before..].to_vec()
    }

    /// Listens with number `id`; returns the address.
    pub(crate) fn listen(&mut self, id: u32, address: &str) -> SocketAddr {
        let listener = match address {
            // So that nobody else gets it after the listener is released.
            "127.0.0.1:0" => TcpListener::bind(free_address()),
            _ => TcpListener::bind(address),
        };
        let listener = listener.expect("a free port");
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        self.driver.listen(id, listener.into()).unwrap();
        address
    }

    /// A connected client: its end, and its token.
    #[track_caller]
    pub(crate) fn accept(&mut self, address: SocketAddr) -> (TcpStream, Token) {
        let before = self.recorder.accepted().len();
        let peer = TcpStream::connect(address).unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        peer.set_write_timeout(Some(PATIENCE)).unwrap();
        self.until(|recorder| recorder.accepted().len() > before);
        (peer, self.recorder.accepted()[before])
    }

    /// The same with Unix sockets.
    pub(crate) fn accept_unix(&mut self, listener: &UnixListener) -> (UnixStream, Token) {
        listener.set_nonblocking(true).unwrap();
        let socket = listener.try_clone().unwrap();
        self.driver.listen(9, socket.into()).unwrap();
        let path = listener.local_addr().unwrap().as_pathname().unwrap().to_owned();
        let peer = UnixStream::connect(path).unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        self.until(|recorder| !recorder.accepted().is_empty());
        (peer, self.recorder.accepted()[0])
    }

    /// Gives the connection output and writes as much as possible.
    pub(crate) fn send(&mut self, conn: Token, bytes: impl Into<Vec<u8>>) {
        self.queue(conn, bytes);
        self.flush(conn);
    }

    /// Writes as much of the connection's output as possible.
    pub(crate) fn flush(&mut self, conn: Token) {
        self.driver.send(conn, &mut self.recorder);
        self.driver.flush(&mut self.recorder);
    }

    /// Adds output without a call to the driver.
    pub(crate) fn queue(&mut self, conn: Token, bytes: impl Into<Vec<u8>>) {
        self.recorder.output.entry(conn).or_default().push_back(bytes.into());
    }

    /// Detaches a connection. `None` if it ended.
    #[track_caller]
    pub(crate) fn detach(&mut self, conn: Token) -> Option<OwnedFd> {
        self.driver.detach(conn);
        self.until(|recorder| {
            recorder.has(Event::Detached(conn)) || recorder.close_kind(conn).is_some()
        });
        self.recorder.detached.remove(&conn)
    }

    /// Moves a connection to another driver, with its token and its unsent output.
    #[track_caller]
    pub(crate) fn hand_over<E: Driver>(&mut self, conn: Token, to: &mut Bench<E>) {
        let socket = self.detach(conn).expect("it has not ended");
        self.recorder.events.retain(|event| *event != Event::Detached(conn));
        self.move_record(conn, to);
        to.driver.adopt(conn, socket).expect("it is a good socket");
        to.flush(conn);
    }

    /// Moves what the recorder knows of a connection, but for its events.
    pub(crate) fn move_record<E>(&mut self, conn: Token, to: &mut Bench<E>) {
        if let Some(received) = self.recorder.received.remove(&conn) {
            to.recorder.received.entry(conn).or_default().extend(received);
        }
        if let Some(output) = self.recorder.output.remove(&conn) {
            to.recorder.output.insert(conn, output);
        }
        if let Some(written) = self.recorder.written.remove(&conn) {
            to.recorder.written.insert(conn, written);
        }
        self.recorder.received_at.remove(&conn);
    }

    /// Connects, and returns the error, however it is reported.
    pub(crate) fn connect(&mut self, conn: Token, address: &Address) -> Option<CloseKind> {
        if let Err(why) = self.driver.connect(conn, address) {
            return Some(why);
        }
        let is_over = |recorder: &Recorder| {
            recorder.has(Event::Connected(conn)) || recorder.close_kind(conn).is_some()
        };
        self.until(is_over);
        self.recorder.close_kind(conn)
    }
}

/// Closes the connection with a reset.
pub(crate) fn reset(peer: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
}

/// A path for a Unix socket that nobody else uses; removed with the value.
pub(crate) struct SocketPath(pub(crate) PathBuf);

impl SocketPath {
    pub(crate) fn new(name: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let file = format!("cashew-driver-{}-{number}-{name}", std::process::id());
        Self(std::env::temp_dir().join(file))
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Bytes of which any two ranges differ.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len.div_ceil(8))
        .flat_map(|n| (n as u64).wrapping_mul(0x9e37_79b9).to_le_bytes())
        .take(len)
        .collect()
}
