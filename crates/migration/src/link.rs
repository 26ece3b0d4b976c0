//! A connection to a server of either side.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use cashew_config::snapshot::{Endpoint, Protocol};
use cashew_protocol::resp::encode::write_command;

use crate::reply::Reply;
use crate::side::Access;

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long each answer may take: a server that reads or writes a value of hundreds of megabytes does nothing else.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);
/// How long a script may keep a server busy, and how long until it is asked again.
const BUSY_MAX: Duration = Duration::from_secs(60);
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// How long one read waits; more of them follow until an answer is late.
const READ_TIMEOUT: Duration = Duration::from_millis(10);
/// Least bytes that are read at once.
const READ_SIZE: usize = 64 << 10;
const READ_SIZE_MAX: usize = 8 << 20;
/// Output that is written without waiting for more.
pub(crate) const OUTPUT_MAX: usize = 1 << 20;
/// Longest line of memcached.
const LINE_MAX: usize = 64 << 10;

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

enum Timed {
    Tcp(TcpStream),
    Unix(UnixStream),
}

pub(crate) struct Link {
    stream: Box<dyn Stream>,
    name: String,
    output: Vec<u8>,
    input: Vec<u8>,
    /// Bytes of the input that are done with.
    taken: usize,
    database: u32,
    /// See [`Access::until`].
    until: Option<Instant>,
}

impl Link {
    /// Connects, logs in, and asks whether the server serves.
    pub(crate) fn connect(access: &Access) -> io::Result<Self> {
        let connect_timeout = left(CONNECT_TIMEOUT, access.until)?;
        let write_timeout = left(TIMEOUT, access.until)?;
        // The timeout of a socket is that of its copies.
        let (stream, timed): (Box<dyn Stream>, Timed) = match &access.endpoint {
            Endpoint::Tcp { host, port } => {
                let address = (host.as_str(), *port).to_socket_addrs()?.next();
                let address = address.ok_or_else(|| io::Error::other("the name has no address"))?;
                let stream = TcpStream::connect_timeout(&address, connect_timeout)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(connect_timeout))?;
                stream.set_write_timeout(Some(write_timeout))?;
                let timed = Timed::Tcp(stream.try_clone()?);
                (secured(stream, Some(host), access)?, timed)
            }
            Endpoint::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(connect_timeout))?;
                stream.set_write_timeout(Some(write_timeout))?;
                let timed = Timed::Unix(stream.try_clone()?);
                (secured(stream, None, access)?, timed)
            }
        };
        let mut link = Self {
            stream,
            name: access.name.clone(),
            output: Vec::new(),
            input: Vec::new(),
            taken: 0,
            database: 0,
            until: access.until,
        };
        match access.protocol {
            Protocol::Redis => link.greet_redis(access)?,
            Protocol::Memcached | Protocol::Tcp => link.greet_memcached(access)?,
        }
        // A handshake is not to be interrupted, and it is over.
        match timed {
            Timed::Tcp(stream) => stream.set_read_timeout(Some(READ_TIMEOUT))?,
            Timed::Unix(stream) => stream.set_read_timeout(Some(READ_TIMEOUT))?,
        }
        Ok(link)
    }

    fn greet_redis(&mut self, access: &Access) -> io::Result<()> {
        let mut refusal = None;
        for credentials in &access.credentials {
            let answer = self.ask(&credentials.auth_words())?;
            refusal = match answer {
                Reply::Error(why) => Some(why.replace(&credentials.password, "***")),
                _ => None,
            };
            if refusal.is_none() {
                break;
            }
        }
        if let Some(why) = refusal {
            return Err(io::Error::other(format!("it refuses the login: {why}")));
        }
        match self.ask(&[b"PING"])? {
            Reply::Status(pong) if pong == b"PONG" => Ok(()),
            Reply::Error(why) => Err(io::Error::other(why)),
            _ => Err(io::Error::other("it is no server of Redis")),
        }
    }

    fn greet_memcached(&mut self, access: &Access) -> io::Result<()> {
        let mut is_refused = false;
        for credentials in &access.credentials {
            let data = format!("{} {}", credentials.user, credentials.password);
            self.say(format!("set auth 0 0 {}\r\n{data}\r\n", data.len()).as_bytes());
            is_refused = self.line()? != b"STORED";
            if !is_refused {
                break;
            }
        }
        if is_refused {
            return Err(io::Error::other("it refuses the login"));
        }
        self.say(b"version\r\n");
        match self.line()? {
            line if line.starts_with(b"VERSION") => Ok(()),
            line => Err(io::Error::other(String::from_utf8_lossy(&line).into_owned())),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Takes bytes that go out with the next [`Link::flush`], or the next answer that is waited for.
    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }

    pub(crate) fn send(&mut self, words: &[&[u8]]) {
        write_command(&mut self.output, words);
    }

    /// Writes if there is much.
    pub(crate) fn flush_some(&mut self) -> io::Result<()> {
        if self.output.len() >= OUTPUT_MAX { self.flush() } else { Ok(()) }
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if !self.output.is_empty() {
            self.stream.write_all(&self.output).map_err(late)?;
            self.stream.flush().map_err(late)?;
            self.output.clear();
            self.output.shrink_to(OUTPUT_MAX);
        }
        Ok(())
    }

    /// Reads once. `false` if nothing has come.
    fn fill(&mut self) -> io::Result<bool> {
        if self.taken > 0 {
            self.input.drain(..self.taken);
            self.taken = 0;
            if self.input.is_empty() {
                self.input.shrink_to(READ_SIZE_MAX);
            }
        }
        let len = self.input.len();
        // As much again as there is: what is looked at from its start each time is not looked at often.
        self.input.resize(len + len.clamp(READ_SIZE, READ_SIZE_MAX), 0);
        let read = self.stream.read(&mut self.input[len..]);
        self.input.truncate(len + read.as_ref().map_or(0, |&count| count));
        match read {
            Ok(0) => Err(io::Error::other("it has closed the connection")),
            Ok(_) => Ok(true),
            Err(error) if is_early(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// As [`Link::fill`], until something has come, or it is late.
    fn wait(&mut self) -> io::Result<()> {
        let deadline = sooner(Instant::now() + TIMEOUT, self.until);
        while !self.fill()? {
            if Instant::now() >= deadline {
                return Err(io::Error::new(ErrorKind::TimedOut, "it does not answer in time"));
            }
        }
        Ok(())
    }

    fn next_reply(&mut self) -> io::Result<Option<Reply>> {
        let found = Reply::parse(&self.input[self.taken..]).map_err(io::Error::other)?;
        Ok(found.map(|(reply, len)| {
            self.taken += len;
            reply
        }))
    }

    /// The next reply that has come by now, if any. Waits a moment at most.
    pub(crate) fn poll(&mut self) -> io::Result<Option<Reply>> {
        self.flush()?;
        if let Some(reply) = self.next_reply()? {
            return Ok(Some(reply));
        }
        self.fill()?;
        self.next_reply()
    }

    pub(crate) fn reply(&mut self) -> io::Result<Reply> {
        self.flush()?;
        loop {
            if let Some(reply) = self.next_reply()? {
                return Ok(reply);
            }
            self.wait()?;
        }
    }

    pub(crate) fn ask(&mut self, words: &[&[u8]]) -> io::Result<Reply> {
        self.send(words);
        self.reply()
    }

    /// The answer, unless it is an error. Scripts that run for long are waited for.
    pub(crate) fn demand(&mut self, words: &[&[u8]]) -> io::Result<Reply> {
        let deadline = sooner(Instant::now() + BUSY_MAX, self.until);
        loop {
            match self.ask(words)? {
                Reply::Error(why) if why.starts_with("BUSY ") && Instant::now() < deadline => {
                    std::thread::sleep(BUSY_PAUSE);
                }
                Reply::Error(why) => return Err(io::Error::other(why)),
                reply => return Ok(reply),
            }
        }
    }

    pub(crate) fn select(&mut self, database: u32) -> io::Result<()> {
        if self.database != database {
            self.demand(&[b"SELECT", database.to_string().as_bytes()])?;
            self.database = database;
        }
        Ok(())
    }

    /// A line of memcached, without its end.
    pub(crate) fn line(&mut self) -> io::Result<Vec<u8>> {
        self.flush()?;
        loop {
            let rest = &self.input[self.taken..];
            if let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
                let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]).to_vec();
                self.taken += end + 1;
                return Ok(line);
            }
            if rest.len() > LINE_MAX {
                return Err(io::Error::other("it does not speak memcached's protocol"));
            }
            self.wait()?;
        }
    }

    /// Calls with each line, without its end, until that returns `false`.
    pub(crate) fn each_line(&mut self, mut with: impl FnMut(&[u8]) -> bool) -> io::Result<()> {
        self.flush()?;
        loop {
            while let Some(end) = self.input[self.taken..].iter().position(|&byte| byte == b'\n') {
                let line = &self.input[self.taken..self.taken + end];
                let is_over = !with(line.strip_suffix(b"\r").unwrap_or(line));
                self.taken += end + 1;
                if is_over {
                    return Ok(());
                }
            }
            if self.input.len() - self.taken > LINE_MAX {
                return Err(io::Error::other("it does not speak memcached's protocol"));
            }
            self.wait()?;
        }
    }

    /// A value of memcached, behind its line.
    pub(crate) fn data(&mut self, len: usize) -> io::Result<Vec<u8>> {
        while self.input.len() - self.taken < len + 2 {
            self.wait()?;
        }
        let data = self.input[self.taken..self.taken + len].to_vec();
        self.taken += len + 2;
        Ok(data)
    }
}

fn sooner(at: Instant, until: Option<Instant>) -> Instant {
    until.map_or(at, |until| until.min(at))
}

/// How long something may take that takes so long at most. An error if there is no time left.
fn left(most: Duration, until: Option<Instant>) -> io::Result<Duration> {
    let left =
        until.map_or(most, |until| until.saturating_duration_since(Instant::now()).min(most));
    match left.is_zero() {
        true => Err(io::Error::new(ErrorKind::TimedOut, "there is no time left to ask it")),
        false => Ok(left),
    }
}

fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn late(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            io::Error::new(ErrorKind::TimedOut, "it does not read in time")
        }
        _ => error,
    }
}

fn secured<S: Stream + 'static>(
    stream: S,
    host: Option<&str>,
    access: &Access,
) -> io::Result<Box<dyn Stream>> {
    Ok(match &access.security {
        Some(security) => Box::new(security.secure(stream, host)?),
        None => Box::new(stream),
    })
}
