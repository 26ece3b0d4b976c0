//! Has a server forget keys.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use cashew_config::snapshot::{Credentials, Endpoint, Protocol};
use cashew_protocol::memcached::binary::{HEADER_SIZE, Opcode, write_request};
use cashew_protocol::memcached::{can_name_key, write_delete};
use cashew_protocol::resp::encode::write_command;
use cashew_tls::Security;

use crate::record::Record;

/// How long connecting, and each answer, may take.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The status of a packet about a key that is not there.
const NOT_FOUND: u16 = 1;
/// Longest line that a server may answer.
const LINE_MAX: u64 = 64 * 1024;

/// How a server is talked to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Speech {
    pub(crate) protocol: Protocol,
    /// In the order in which they are tried.
    pub(crate) credentials: Vec<Credentials>,
    /// TLS comes first.
    pub(crate) security: Option<Arc<Security>>,
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A connection to a server that answers.
pub(crate) struct Forgetting {
    stream: BufReader<Box<dyn Stream>>,
    endpoint: Endpoint,
    speech: Speech,
    database: u32,
}

impl Forgetting {
    /// Connects, and asks whether the server serves.
    pub(crate) fn connect(endpoint: &Endpoint, speech: &Speech) -> io::Result<Self> {
        let stream = BufReader::new(Self::dial(endpoint, speech)?);
        let (endpoint, speech) = (endpoint.clone(), speech.clone());
        let mut it = Self { stream, endpoint, speech, database: 0 };
        it.greet()?;
        Ok(it)
    }

    fn dial(endpoint: &Endpoint, speech: &Speech) -> io::Result<Box<dyn Stream>> {
        Ok(match endpoint {
            Endpoint::Tcp { host, port } => {
                let address = (host.as_str(), *port).to_socket_addrs()?.next();
                let address = address.ok_or_else(|| io::Error::other("the name has no address"))?;
                let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                secured(stream, Some(host), speech)?
            }
            Endpoint::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                secured(stream, None, speech)?
            }
        })
    }

    fn greet(&mut self) -> io::Result<()> {
        let credentials = self.speech.credentials.clone();
        let mut refusal = None;
        for credentials in &credentials {
            let (mut out, mut taken) = (Vec::new(), "+OK");
            match self.speech.protocol {
                Protocol::Redis => write_command(&mut out, &credentials.auth_words()),
                Protocol::Memcached | Protocol::Tcp => {
                    let data = format!("{} {}", credentials.user, credentials.password);
                    out = format!("set auth 0 0 {}\r\n{data}\r\n", data.len()).into_bytes();
                    taken = "STORED";
                }
            }
            let answer = self.ask(&out)?;
            let is_taken = answer.starts_with(taken);
            refusal = (!is_taken).then_some(answer);
            if is_taken {
                break;
            }
        }
        let (mut out, mut sign) = (b"version\r\n".to_vec(), "VERSION");
        if self.speech.protocol == Protocol::Redis {
            out.clear();
            write_command(&mut out, &[b"PING"]);
            sign = "+PONG";
        }
        let answer = match refusal {
            Some(refusal) => refusal,
            None => self.ask(&out)?,
        };
        match answer.starts_with(sign) {
            true => Ok(()),
            false => Err(io::Error::other(format!("the server says {answer:?}"))),
        }
    }

    fn ask(&mut self, question: &[u8]) -> io::Result<String> {
        self.say(question)?;
        self.line()
    }

    /// Has the server forget the keys of records, and waits until it has.
    pub(crate) fn forget(&mut self, records: &[&Record]) -> io::Result<()> {
        let (mut out, mut answers, mut unnamed) = (Vec::new(), 0, Vec::new());
        for record in records {
            match self.speech.protocol {
                Protocol::Redis => {
                    if record.database != self.database {
                        self.database = record.database;
                        write_command(
                            &mut out,
                            &[b"SELECT", record.database.to_string().as_bytes()],
                        );
                        answers += 1;
                    }
                    write_command(&mut out, &[b"DEL", &record.key]);
                }
                Protocol::Memcached | Protocol::Tcp if !can_name_key(&record.key) => {
                    unnamed.push(&*record.key);
                    continue;
                }
                Protocol::Memcached | Protocol::Tcp => write_delete(&record.key, &mut out),
            }
            answers += 1;
        }
        self.say(&out)?;
        for _ in 0..answers {
            let line = self.line()?;
            let is_fit = match self.speech.protocol {
                Protocol::Redis => line.starts_with(':') || line.starts_with("+OK"),
                Protocol::Memcached | Protocol::Tcp => {
                    ["DELETED", "NOT_FOUND", "HD", "NF", "CLIENT_ERROR"]
                        .iter()
                        .any(|start| line.starts_with(start))
                }
            };
            if !is_fit {
                return Err(io::Error::other(format!("the server says {line:?}")));
            }
        }
        self.forget_in_packets(&unnamed)
    }

    /// The same of keys that no line can name: clients of the binary protocol have made them. Servers that ask for a password
    /// in text do not speak it.
    fn forget_in_packets(&self, keys: &[&[u8]]) -> io::Result<()> {
        if keys.is_empty() || !self.speech.credentials.is_empty() {
            return Ok(());
        }
        let mut stream = Self::dial(&self.endpoint, &self.speech)?;
        let mut out = Vec::new();
        keys.iter().for_each(|key| write_request(Opcode::Delete.byte(), key, b"", &mut out));
        stream.write_all(&out)?;
        for _ in keys {
            let mut header = [0; HEADER_SIZE];
            stream.read_exact(&mut header)?;
            let status = u16::from_be_bytes([header[6], header[7]]);
            let size = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
            if header[0] != 0x81 || !matches!(status, 0 | NOT_FOUND) {
                return Err(io::Error::other(format!("the server says {header:x?}")));
            }
            io::copy(&mut (&mut stream).take(size.into()), &mut io::sink())?;
        }
        Ok(())
    }

    fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        (&mut self.stream).take(LINE_MAX).read_until(b'\n', &mut line)?;
        match line.ends_with(b"\n") {
            true => Ok(String::from_utf8_lossy(&line).trim_end().to_owned()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

fn secured<S: Stream + 'static>(
    stream: S,
    host: Option<&str>,
    speech: &Speech,
) -> io::Result<Box<dyn Stream>> {
    Ok(match &speech.security {
        Some(security) => Box::new(security.secure(stream, host)?),
        None => Box::new(stream),
    })
}
