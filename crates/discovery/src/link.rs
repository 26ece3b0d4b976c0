//! One connection, which is made again when it ends.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use cashew_config::snapshot::{Address, Credentials};
use cashew_protocol::resp::encode::write_command;
use cashew_protocol::resp::{ReplyScanner, Scan};
use cashew_tls::{SecuredSocket, Security};
use rustix::event::PollFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// How long connecting, or an answer, may take.
const TIMEOUT: Duration = Duration::from_millis(1000);
/// How often it is looked whether a name is found.
const LOOK_UP_PAUSE: Duration = Duration::from_millis(10);
/// Pauses between attempts; each is twice the one before it.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A connection that has lasted so long, and on which something was answered, is no attempt that fails.
const GOOD_AFTER: Duration = Duration::from_secs(1);
/// Bytes of one answer. Who says more is closed.
const ANSWER_SIZE_MAX: usize = 1 << 20;
/// Bytes taken of one connection in a turn.
const READ_MAX: usize = 256 << 10;

/// What is asked first on a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) bytes: Vec<u8>,
    /// How many requests that are.
    pub(crate) answers: usize,
}

impl Greeting {
    pub(crate) fn of(credentials: &Credentials) -> Self {
        let mut bytes = Vec::new();
        write_command(&mut bytes, &credentials.auth_words());
        Self { bytes, answers: 1 }
    }

    /// One for each of the credentials.
    pub(crate) fn all(credentials: &[Credentials]) -> Vec<Self> {
        credentials.iter().map(Self::of).collect()
    }
}

/// How every connection begins, and what may come of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Opening {
    /// Bytes of one answer, if that is not [`ANSWER_SIZE_MAX`].
    pub(crate) answer_size_max: Option<usize>,
    /// TLS comes first.
    pub(crate) security: Option<Arc<Security>>,
    /// What is asked first. Of several the next one is used after one was refused.
    pub(crate) greetings: Vec<Greeting>,
    /// How long an answer may take, if that is not [`TIMEOUT`].
    pub(crate) patience: Option<Duration>,
}

pub(crate) struct Link {
    address: Address,
    opening: Opening,
    /// Which of the greetings is used.
    chosen: usize,
    state: State,
    pause: Duration,
    /// Why it ended last. A connection since then is no answer: the kernel accepts for a process that
    /// hangs.
    pub(crate) failure: Option<String>,
}

enum State {
    Idle {
        until: Instant,
    },
    /// As long as it takes, so that there is one thread for it at most.
    LookingUp {
        found: Receiver<io::Result<Vec<SocketAddr>>>,
    },
    Connecting {
        socket: OwnedFd,
        deadline: Instant,
    },
    Open(Open),
}

struct Open {
    socket: Socket,
    output: Vec<u8>,
    input: Vec<u8>,
    /// Bytes of the input that the scanner has seen.
    scanned: usize,
    scanner: ReplyScanner,
    /// Answers to the greeting that are still to come.
    greeting: usize,
    /// Answers that are still to come, those to the greeting counted.
    awaited: usize,
    /// By when something has to come, while any are.
    deadline: Instant,
    since: Instant,
    has_answered: bool,
    answer_size_max: usize,
    patience: Duration,
}

enum Socket {
    Plain(TcpStream),
    Secured(Box<SecuredSocket<TcpStream>>),
}

/// What has become of a connection in a turn.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Same,
    Opened,
    /// It has ended, or could not be made.
    Lost(String),
}

impl Link {
    pub(crate) fn new(address: Address, opening: Opening, now: Instant) -> Self {
        let state = State::Idle { until: now };
        Self { address, opening, chosen: 0, state, pause: PAUSE_MIN, failure: None }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Whether something can be asked: it is open, and owes nothing.
    pub(crate) fn is_at_rest(&self) -> bool {
        matches!(&self.state, State::Open(open) if open.awaited == 0)
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(&self.state, State::Open(open) if open.greeting == 0)
    }

    /// Asks for so many answers. Only at rest.
    pub(crate) fn ask(&mut self, requests: &[u8], answers: usize, now: Instant) {
        if let State::Open(open) = &mut self.state {
            open.output.extend_from_slice(requests);
            open.awaited += answers;
            open.deadline = now + open.patience;
        }
    }

    /// Who is at the other end of a connection that stands.
    pub(crate) fn peer(&self) -> Option<IpAddr> {
        match &self.state {
            State::Open(open) => Some(open.socket.tcp().peer_addr().ok()?.ip()),
            State::Idle { .. } | State::LookingUp { .. } | State::Connecting { .. } => None,
        }
    }

    /// The descriptor to wait for, and for what.
    pub(crate) fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match &self.state {
            State::Idle { .. } | State::LookingUp { .. } => None,
            State::Connecting { socket, .. } => Some((socket.as_fd(), PollFlags::OUT)),
            State::Open(open) => {
                let mut flags = PollFlags::IN;
                flags.set(PollFlags::OUT, !open.output.is_empty() || open.socket.is_writing());
                Some((open.socket.tcp().as_fd(), flags))
            }
        }
    }

    pub(crate) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        match &self.state {
            State::Idle { until } => Some(*until),
            // There is no descriptor that tells of an answer.
            State::LookingUp { .. } => Some(now + LOOK_UP_PAUSE),
            State::Connecting { deadline, .. } => Some(*deadline),
            State::Open(open) => (open.awaited > 0).then_some(open.deadline),
        }
    }

    /// Goes on as far as it can without waiting, and gives answers to `take`, but for those to the
    /// greeting. An answer that comes unasked is given, too.
    pub(crate) fn advance(&mut self, now: Instant, take: &mut dyn FnMut(&[u8])) -> Fate {
        match self.try_advance(now, take) {
            Ok(true) => Fate::Opened,
            Ok(false) => Fate::Same,
            Err(why) => {
                // A connection that was of use for a while is made again at once.
                let was_good = matches!(&self.state, State::Open(open) if open.was_good(now));
                // It was refused, or nothing came of it.
                if matches!(&self.state, State::Open(open) if open.greeting > 0) {
                    self.chosen = (self.chosen + 1) % self.opening.greetings.len().max(1);
                }
                let pause = if was_good { Duration::ZERO } else { self.pause };
                self.pause = if was_good { PAUSE_MIN } else { (self.pause * 2).min(PAUSE_MAX) };
                self.state = State::Idle { until: now + pause };
                self.failure = Some(why.clone());
                Fate::Lost(why)
            }
        }
    }

    /// Tries soon to connect, if it does not just now.
    pub(crate) fn hurry(&mut self, now: Instant, within: Duration) {
        if let State::Idle { until } = &mut self.state {
            *until = (*until).min(now + within);
        }
    }

    fn try_advance(&mut self, now: Instant, take: &mut dyn FnMut(&[u8])) -> Result<bool, String> {
        loop {
            match &mut self.state {
                State::Idle { until } if now < *until => return Ok(false),
                State::Idle { .. } => self.state = begin(&self.address, now)?,
                State::LookingUp { found } => match found.try_recv() {
                    Ok(found) => {
                        let found = found.map_err(|error| format!("is not found: {error}"))?;
                        let address = found.first().ok_or("has no address")?;
                        self.state = connect(*address, now)?;
                    }
                    Err(TryRecvError::Empty) => return Ok(false),
                    Err(TryRecvError::Disconnected) => return Err("cannot be looked up".into()),
                },
                State::Connecting { socket, deadline } => {
                    match rustix::net::sockopt::socket_error(&socket) {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) | Err(error) => return Err(refused(error.into())),
                    }
                    if !is_connected(socket) {
                        if now < *deadline {
                            return Ok(false);
                        }
                        return Err("does not answer".into());
                    }
                    let socket = socket.try_clone().map_err(|error| error.to_string())?;
                    let Opening { security, greetings, answer_size_max, patience } = &self.opening;
                    let chosen = greetings.get(self.chosen).cloned().unwrap_or_default();
                    let Greeting { bytes: output, answers: greeting } = chosen;
                    let socket = Socket::new(socket.into(), security.as_deref(), &self.address)?;
                    self.state = State::Open(Open {
                        socket,
                        output,
                        input: Vec::new(),
                        scanned: 0,
                        scanner: ReplyScanner::default(),
                        greeting,
                        awaited: greeting,
                        deadline: now + TIMEOUT,
                        since: now,
                        has_answered: false,
                        answer_size_max: answer_size_max.unwrap_or(ANSWER_SIZE_MAX),
                        patience: patience.unwrap_or(TIMEOUT),
                    });
                    if greeting == 0 {
                        return Ok(true);
                    }
                }
                State::Open(open) => {
                    let was_greeting = open.greeting > 0;
                    open.write()?;
                    open.read(now, take)?;
                    if open.awaited > 0 && now >= open.deadline {
                        return Err("does not answer".into());
                    }
                    return Ok(was_greeting && open.greeting == 0);
                }
            }
        }
    }
}

impl Socket {
    fn new(tcp: TcpStream, security: Option<&Security>, address: &Address) -> Result<Self, String> {
        let Some(security) = security else { return Ok(Self::Plain(tcp)) };
        let secured = security.secure(tcp, Some(&address.host)).map_err(refused)?;
        Ok(Self::Secured(Box::new(secured)))
    }

    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            Self::Secured(secured) => secured.socket(),
        }
    }

    fn is_writing(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Secured(secured) => secured.is_writing(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.read(buffer),
            Self::Secured(secured) => secured.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.write(bytes),
            Self::Secured(secured) => secured.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(tcp) => tcp.flush(),
            Self::Secured(secured) => secured.flush(),
        }
    }
}

impl Open {
    fn was_good(&self, now: Instant) -> bool {
        self.has_answered && now >= self.since + GOOD_AFTER
    }

    fn write(&mut self) -> Result<(), String> {
        while !self.output.is_empty() {
            match self.socket.write(&self.output) {
                Ok(written) => {
                    self.output.drain(..written);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(refused(error)),
            }
        }
        // What it has taken in and not passed on yet.
        match self.socket.flush() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            flushed => flushed.map_err(refused),
        }
    }

    fn read(&mut self, now: Instant, take: &mut dyn FnMut(&[u8])) -> Result<(), String> {
        let mut chunk = [0; 16 << 10];
        let mut taken = 0;
        while taken < READ_MAX {
            match self.socket.read(&mut chunk) {
                Ok(0) => return Err("has closed its connection".into()),
                Ok(read) => {
                    taken += read;
                    self.input.extend_from_slice(&chunk[..read]);
                    self.deadline = now + self.patience;
                    self.scan(take)?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(refused(error)),
            }
        }
        Ok(())
    }

    fn scan(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<(), String> {
        while self.scanned < self.input.len() {
            match self.scanner.scan(&self.input[self.scanned..]) {
                Scan::Complete(len) => {
                    let end = self.scanned + len;
                    let answer = &self.input[..end];
                    // What comes unasked answers nothing.
                    let is_push = answer.starts_with(b">");
                    let is_greeting = self.greeting > 0 && !is_push;
                    if is_greeting {
                        if let Some(error) = answer.strip_prefix(b"-") {
                            let error = String::from_utf8_lossy(error);
                            return Err(format!("refuses: {}", error.trim_end()));
                        }
                        self.greeting -= 1;
                    } else {
                        self.has_answered = true;
                        take(answer);
                    }
                    self.awaited = self.awaited.saturating_sub(usize::from(!is_push));
                    self.input.drain(..end);
                    self.scanned = 0;
                }
                Scan::Partial => self.scanned = self.input.len(),
                Scan::Invalid => return Err("does not speak Redis's protocol".into()),
            }
        }
        match self.input.len() > self.answer_size_max {
            true => Err(format!("answers with more than {} MiB", self.answer_size_max >> 20)),
            false => Ok(()),
        }
    }
}

fn begin(address: &Address, now: Instant) -> Result<State, String> {
    if let Ok(ip) = address.host.parse() {
        return connect(SocketAddr::new(ip, address.port), now);
    }
    let (answer, found) = channel();
    let name = (address.host.clone(), address.port);
    let look_up = move || {
        // Whether somebody still waits is all the same.
        let _ = answer.send(name.to_socket_addrs().map(Iterator::collect));
    };
    let thread = std::thread::Builder::new().name("names".into());
    thread.spawn(look_up).map_err(|error| format!("cannot be looked up: {error}"))?;
    Ok(State::LookingUp { found })
}

fn connect(address: SocketAddr, now: Instant) -> Result<State, String> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)
        .map_err(|error| error.to_string())?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(error) => return Err(refused(error.into())),
    }
    // It matters little, and small writes are all there are.
    let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
    Ok(State::Connecting { socket, deadline: now + TIMEOUT })
}

fn is_connected(socket: &OwnedFd) -> bool {
    rustix::net::getpeername(socket).is_ok()
}

fn refused(error: io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => "refuses connections".into(),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => "has closed its connection".into(),
        // Of TLS, which says what is wrong.
        ErrorKind::InvalidData => error.to_string(),
        _ => format!("cannot be reached: {error}"),
    }
}
