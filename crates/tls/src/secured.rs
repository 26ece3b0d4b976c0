//! A socket below TLS, for who reads and writes by the traits of the standard library.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::OnceLock;

use crate::connector::Connector;
use crate::options::ServerTls;
use crate::stream::Stream;

/// Bytes read of a socket at once.
const READ_SIZE: usize = 16 * 1024;

/// What servers are secured with. The connector is made when it is first needed.
#[derive(Debug)]
pub struct Security {
    options: ServerTls,
    connector: OnceLock<Result<Connector, String>>,
}

impl Security {
    pub fn new(options: ServerTls) -> Self {
        Self { options, connector: OnceLock::new() }
    }

    /// Begins with TLS on a socket that is connected to the server at `host`, or at a Unix socket.
    ///
    /// # Errors
    /// If the options cannot be used, or no certificate is for such a host.
    pub fn secure<S: Read + Write>(
        &self,
        socket: S,
        host: Option<&str>,
    ) -> io::Result<SecuredSocket<S>> {
        let connector = self.connector.get_or_init(|| Connector::new(&self.options));
        let connector = connector.as_ref().map_err(|why| io::Error::other(why.clone()))?;
        let stream = Stream::connect(connector, host)
            .ok_or_else(|| io::Error::other("no certificate can be for its name"))?;
        Ok(SecuredSocket::new(socket, stream))
    }
}

impl PartialEq for Security {
    fn eq(&self, other: &Self) -> bool {
        self.options.mark == other.options.mark
    }
}

impl Eq for Security {}

/// A socket and the TLS on it. What is written is kept until the socket takes it: with a socket that does not wait,
/// call [`flush`](Write::flush) when it is writable, while [`is_writing`](Self::is_writing).
pub struct SecuredSocket<S> {
    socket: S,
    stream: Stream,
    /// What has come and is not done with.
    input: Vec<u8>,
    /// What nobody has read yet.
    plain: Vec<u8>,
    /// What the socket has to take.
    output: Vec<u8>,
    /// What is to be encrypted once the handshake is over.
    early: Vec<u8>,
}

impl<S: Read + Write> SecuredSocket<S> {
    fn new(socket: S, stream: Stream) -> Self {
        let [input, plain, output, early] = [const { Vec::new() }; 4];
        Self { socket, stream, input, plain, output, early }
    }

    pub fn socket(&self) -> &S {
        &self.socket
    }

    /// Whether there is something that the socket has yet to take.
    pub fn is_writing(&self) -> bool {
        !self.output.is_empty()
    }

    /// Goes on with what has come.
    fn process(&mut self) -> io::Result<()> {
        let progress = self.stream.process(&mut self.input, &mut self.plain, &mut self.output);
        let failed =
            |failure: crate::Failure| io::Error::new(ErrorKind::InvalidData, failure.of_server());
        let progress = match progress {
            Ok(progress) => progress,
            Err(failure) => {
                // The server may be told why, if it can be just now.
                let _ = self.send();
                return Err(failed(failure));
            }
        };
        self.input.drain(..progress.consumed);
        if !self.early.is_empty() && !self.stream.is_handshaking() {
            let early = std::mem::take(&mut self.early);
            self.stream.encrypt(&early, &mut self.input, &mut self.output).map_err(failed)?;
        }
        Ok(())
    }

    fn send(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.socket.write(&self.output) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => drop(self.output.drain(..written)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// As [`send`](Self::send); what a socket does not take now it takes later.
    fn try_send(&mut self) -> io::Result<()> {
        match self.send() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            sent => sent,
        }
    }
}

impl<S: Read + Write> Read for SecuredSocket<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.plain.is_empty() {
                let len = self.plain.len().min(buffer.len());
                buffer[..len].copy_from_slice(&self.plain[..len]);
                self.plain.drain(..len);
                return Ok(len);
            }
            if self.stream.is_ended() {
                return Ok(0);
            }
            self.process()?;
            self.try_send()?;
            if !self.plain.is_empty() || self.stream.is_ended() {
                continue;
            }
            let mut chunk = [0; READ_SIZE];
            match self.socket.read(&mut chunk)? {
                0 => return Ok(0),
                read => self.input.extend_from_slice(&chunk[..read]),
            }
        }
    }
}

impl<S: Read + Write> Write for SecuredSocket<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.early.extend_from_slice(bytes);
        self.process()?;
        self.try_send()?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}
