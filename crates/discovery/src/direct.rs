//! A connection to one server, for who may wait for its answers.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use cashew_config::snapshot::{Credentials, Endpoint};
use cashew_protocol::resp::encode::write_command;
use cashew_protocol::resp::{ReplyScanner, Scan};
use cashew_tls::{SecuredSocket, Security};

/// More is no answer to what is asked.
const ANSWER_MAX: usize = 1 << 20;

/// Nothing takes longer than the time that it was opened with, but for the look-up of a name.
pub struct Direct {
    stream: Box<dyn Stream>,
    deadline: Instant,
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

impl Direct {
    /// Connects, for no longer than `timeout` to each address of the server.
    pub fn open(
        endpoint: &Endpoint,
        security: Option<&Security>,
        timeout: Duration,
    ) -> Result<Self, String> {
        let deadline = Instant::now() + timeout;
        let stream: Box<dyn Stream> = match endpoint {
            Endpoint::Unix(path) => {
                secured(UnixStream::connect(path).map_err(describe)?, None, security)?
            }
            Endpoint::Tcp { host, port } => {
                secured(connect(host, *port, timeout)?, Some(host), security)?
            }
        };
        Ok(Self { stream, deadline })
    }

    /// Logs in to a server of Redis with the first of the credentials that it takes. If it takes none, returns
    /// its answer.
    pub fn log_in(&mut self, credentials: &[Credentials]) -> Result<Option<String>, String> {
        let mut refusal = None;
        for credentials in credentials {
            let answer = self.ask(&credentials.auth_words())?;
            if answer == b"+OK\r\n" {
                return Ok(None);
            }
            refusal = Some(without_secret(&answer, &credentials.password));
        }
        Ok(refusal)
    }

    /// As [`log_in`](Self::log_in), to a server of memcached that speaks text.
    pub fn log_in_to_memcached(
        &mut self,
        credentials: &[Credentials],
    ) -> Result<Option<String>, String> {
        let mut refusal = None;
        for Credentials { user, password } in credentials {
            let value = format!("{user} {password}");
            let request = format!("set auth 0 0 {}\r\n{value}\r\n", value.len());
            let answer = self.ask_memcached(request.as_bytes(), &[])?;
            if answer == b"STORED\r\n" {
                return Ok(None);
            }
            refusal = Some(without_secret(&answer, password));
        }
        Ok(refusal)
    }

    /// The whole answer of a server of Redis.
    pub fn ask(&mut self, words: &[&[u8]]) -> Result<Vec<u8>, String> {
        let mut request = Vec::new();
        write_command(&mut request, words);
        let mut scanner = ReplyScanner::default();
        self.exchange(&request, |read, _| match scanner.scan(read) {
            Scan::Complete(len) if len == read.len() => Ok(true),
            Scan::Partial => Ok(false),
            Scan::Complete(_) | Scan::Invalid => Err("it is no server of Redis".to_owned()),
        })
    }

    /// The answer of a server of memcached that speaks text: one line, or all up to the line `end`, or an error.
    pub fn ask_memcached(&mut self, request: &[u8], end: &[u8]) -> Result<Vec<u8>, String> {
        self.exchange(request, |_, answer| {
            let is_error = [&b"ERROR"[..], b"CLIENT_ERROR", b"SERVER_ERROR"]
                .iter()
                .any(|it| answer.starts_with(it));
            let last = if is_error { &b"\r\n"[..] } else { end };
            Ok(answer.ends_with(last) && answer.ends_with(b"\r\n"))
        })
    }

    /// Reads until `is_whole` of what was read last, and of all.
    fn exchange(
        &mut self,
        request: &[u8],
        mut is_whole: impl FnMut(&[u8], &[u8]) -> Result<bool, String>,
    ) -> Result<Vec<u8>, String> {
        self.limit()?;
        self.stream.write_all(request).map_err(describe)?;
        let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            self.limit()?;
            let count = self.stream.read(&mut buffer).map_err(describe)?;
            if count == 0 {
                return Err("it closes the connection".to_owned());
            }
            answer.extend_from_slice(&buffer[..count]);
            if is_whole(&buffer[..count], &answer)? {
                return Ok(answer);
            }
            if answer.len() >= ANSWER_MAX || Instant::now() >= self.deadline {
                return Err("it does not answer in time".to_owned());
            }
        }
    }

    fn limit(&self) -> Result<(), String> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        self.stream.limit(left.max(Duration::from_millis(1))).map_err(describe)
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

/// The first line of an answer to a login. Servers that do not know the command repeat what came with it.
fn without_secret(answer: &[u8], password: &str) -> String {
    let text = String::from_utf8_lossy(answer);
    let text = text.split(", with args").next().unwrap_or_default();
    line(text.replace(password, "***").as_bytes())
}

/// The first line of an answer, as far as it can be printed.
pub(crate) fn line(answer: &[u8]) -> String {
    let end = answer.iter().position(|&byte| byte == b'\r').unwrap_or(answer.len());
    String::from_utf8_lossy(&answer[..end.min(200)]).escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_answer_to_a_login_repeats_a_password() {
        let unknown = b"-ERR unknown command 'AUTH', with args beginning with: 'sec' \r\n";
        assert_eq!(without_secret(unknown, "secret"), "-ERR unknown command \\'AUTH\\'");
        assert_eq!(without_secret(b"-ERR no secret here\r\n", "secret"), "-ERR no *** here");
        assert_eq!(without_secret(b"-WRONGPASS no\r\n", "secret"), "-WRONGPASS no");
    }
}
