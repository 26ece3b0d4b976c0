//! What one server says that it is, asked once by who may wait for the answer.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use cashew_config::snapshot::{Credentials, Endpoint};
use cashew_protocol::resp::encode::write_command;
use cashew_protocol::resp::{ReplyScanner, Scan};
use cashew_tls::{SecuredSocket, Security};

/// More is no answer to ROLE.
const ANSWER_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Primary,
    Replica,
}

trait Stream: Read + Write {
    fn limit(&self, left: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn limit(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left)).and_then(|()| self.set_write_timeout(Some(left)))
    }
}

impl Stream for UnixStream {
    fn limit(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left)).and_then(|()| self.set_write_timeout(Some(left)))
    }
}

impl<S: Stream> Stream for SecuredSocket<S> {
    fn limit(&self, left: Duration) -> io::Result<()> {
        self.socket().limit(left)
    }
}

/// Asks a server of Redis for its role. Waits no longer than `timeout` for each address of the server, but
/// for the look-up of its name.
pub fn role_of(
    endpoint: &Endpoint,
    security: Option<&Security>,
    credentials: &[Credentials],
    timeout: Duration,
) -> Result<Role, String> {
    let deadline = Instant::now() + timeout;
    let mut stream: Box<dyn Stream> = match endpoint {
        Endpoint::Unix(path) => {
            let stream = UnixStream::connect(path).map_err(describe)?;
            secured(stream, None, security)?
        }
        Endpoint::Tcp { host, port } => {
            secured(connect(host, *port, timeout)?, Some(host), security)?
        }
    };
    let mut refusal = None;
    for credentials in credentials {
        let answer = ask(&mut *stream, &credentials.auth_words(), deadline)?;
        let is_taken = answer == b"+OK\r\n";
        refusal = (!is_taken).then_some(answer);
        if is_taken {
            break;
        }
    }
    if let Some(answer) = refusal {
        return Err(format!("it answers AUTH with {}", line(&answer)));
    }
    let answer = ask(&mut *stream, &[b"ROLE"], deadline)?;
    let is_said = |role: &[u8]| {
        let start = [b"$", role.len().to_string().as_bytes(), b"\r\n", role, b"\r\n"].concat();
        let behind_header = answer.iter().position(|&byte| byte == b'\n').unwrap_or(0) + 1;
        answer.first() == Some(&b'*') && answer[behind_header..].starts_with(&start)
    };
    match () {
        () if is_said(b"master") => Ok(Role::Primary),
        () if is_said(b"slave") => Ok(Role::Replica),
        () => Err(format!("it answers ROLE with {}", line(&answer))),
    }
}

fn secured<S: Stream + 'static>(
    stream: S,
    host: Option<&str>,
    security: Option<&Security>,
) -> Result<Box<dyn Stream>, String> {
    let Some(security) = security else { return Ok(Box::new(stream)) };
    Ok(Box::new(security.secure(stream, host).map_err(describe)?))
}

fn connect(host: &str, port: u16, timeout: Duration) -> Result<TcpStream, String> {
    let mut why = "its name has no address".to_owned();
    for address in (host, port).to_socket_addrs().map_err(describe)? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => why = describe(error),
        }
    }
    Err(why)
}

/// The whole answer.
fn ask(stream: &mut dyn Stream, words: &[&[u8]], deadline: Instant) -> Result<Vec<u8>, String> {
    let mut request = Vec::new();
    write_command(&mut request, words);
    let limit = |stream: &dyn Stream| {
        let left = deadline.saturating_duration_since(Instant::now());
        stream.limit(left.max(Duration::from_millis(1))).map_err(describe)
    };
    limit(stream)?;
    stream.write_all(&request).map_err(describe)?;
    let (mut answer, mut scanner, mut buffer) = (Vec::new(), ReplyScanner::default(), [0; 4096]);
    loop {
        limit(stream)?;
        let count = stream.read(&mut buffer).map_err(describe)?;
        if count == 0 {
            return Err("it closes the connection".to_owned());
        }
        let read = &buffer[..count];
        answer.extend_from_slice(read);
        match scanner.scan(read) {
            Scan::Complete(len) if len == count => return Ok(answer),
            Scan::Partial if answer.len() < ANSWER_MAX && Instant::now() < deadline => {}
            Scan::Partial => return Err("it does not answer in time".to_owned()),
            Scan::Complete(_) | Scan::Invalid => return Err("it is no server of Redis".to_owned()),
        }
    }
}

fn describe(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "it does not answer in time".to_owned()
        }
        // Of TLS: what the server does.
        io::ErrorKind::InvalidData => format!("it {error}"),
        _ => error.to_string(),
    }
}

/// The first line of an answer, as far as it can be printed.
fn line(answer: &[u8]) -> String {
    let end = answer.iter().position(|&byte| byte == b'\r').unwrap_or(answer.len());
    String::from_utf8_lossy(&answer[..end.min(200)]).escape_debug().to_string()
}
