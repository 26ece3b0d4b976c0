//! One secured connection.

use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus,
};
use rustls::{CommonState, Error, HandshakeKind, ProtocolVersion};

use crate::acceptor::Acceptor;
use crate::certificate::names_for;
use crate::connector::Connector;
use crate::failure::Failure;
use crate::moved::{Parted, Records};
use crate::options::{ClientUser, Version};

/// Bytes that an encrypted record may be longer than its plaintext.
const OVERHEAD: usize = 64;
/// The most plaintext of a record.
pub(crate) const RECORD_MAX: usize = 16 * 1024;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the input that are done with.
    pub consumed: usize,
    /// The peer will send nothing more, and has said so.
    pub is_ended: bool,
}

/// What a handshake has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub version: Version,
    /// It continued an earlier session.
    pub is_resumed: bool,
    /// It may go on in another process.
    pub is_movable: bool,
}

/// The state of one connection.
pub struct Stream {
    side: Side,
    /// Something of the peer was understood.
    has_heard: bool,
    is_ended: bool,
    is_movable: bool,
    client_user: ClientUser,
    failure: Option<Failure>,
}

enum Side {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
    /// Its handshake was elsewhere.
    Moved(Box<Records>),
}

/// What one call of rustls has led to.
enum Step {
    Again,
    Ended,
    Idle,
    Failed(Error),
}

impl Stream {
    /// Of a client that has connected. `None` if this cannot be: the system gives no random bytes.
    pub fn accept(acceptor: &Acceptor) -> Option<Self> {
        let side = UnbufferedServerConnection::new(Arc::clone(&acceptor.config)).ok()?;
        let is_movable = acceptor.config.enable_secret_extraction;
        let client_user = acceptor.client_user;
        Some(Self { is_movable, client_user, ..Self::new(Side::Server(side)) })
    }

    /// To a server at `host`, or at a Unix socket. Its first bytes are written by the first
    /// [`process`](Self::process). `None` if there is no certificate for such a name.
    pub fn connect(connector: &Connector, host: Option<&str>) -> Option<Self> {
        let name = connector.name_of(host)?;
        let side = UnbufferedClientConnection::new(Arc::clone(&connector.config), name).ok()?;
        let is_movable = connector.config.enable_secret_extraction;
        Some(Self { is_movable, ..Self::new(Side::Client(side)) })
    }

    fn new(side: Side) -> Self {
        Self {
            side,
            has_heard: false,
            is_ended: false,
            is_movable: false,
            client_user: ClientUser::Off,
            failure: None,
        }
    }

    /// Of a connection that another process has had. `None` if that cannot be.
    pub fn resume(parted: Parted) -> Option<Self> {
        let records = Box::new(Records::new(parted)?);
        Some(Self { is_movable: true, ..Self::new(Side::Moved(records)) })
    }

    /// The connection as plain data, for another process to go on with what is left of its input. `None` if it has to
    /// stay, and so to end: its handshake is not over, it is not movable, or its keys are about to be used up.
    pub fn part(self) -> Option<Parted> {
        let version = self.version()?;
        if self.failure.is_some() || self.is_handshaking() || !self.is_movable {
            return None;
        }
        match self.side {
            Side::Server(side) => {
                let (secrets, _) = side.dangerous_into_kernel_connection().ok()?;
                Parted::of(secrets, version, self.is_ended)
            }
            Side::Client(side) => {
                let (secrets, _) = side.dangerous_into_kernel_connection().ok()?;
                Parted::of(secrets, version, self.is_ended)
            }
            Side::Moved(records) => records.into_parted(),
        }
    }

    /// Whether the peer has ended its side.
    pub fn is_ended(&self) -> bool {
        match &self.side {
            Side::Moved(records) => records.is_ended(),
            Side::Server(_) | Side::Client(_) => self.is_ended,
        }
    }

    /// `None` of one that has moved.
    fn common(&self) -> Option<&CommonState> {
        match &self.side {
            Side::Server(side) => Some(side),
            Side::Client(side) => Some(side),
            Side::Moved(_) => None,
        }
    }

    pub fn is_handshaking(&self) -> bool {
        self.common().is_some_and(CommonState::is_handshaking)
    }

    fn version(&self) -> Option<Version> {
        if let Side::Moved(records) = &self.side {
            return Some(records.version());
        }
        match self.common()?.protocol_version()? {
            ProtocolVersion::TLSv1_3 => Some(Version::Tls13),
            _ => Some(Version::Tls12),
        }
    }

    /// Of a finished handshake.
    pub fn facts(&self) -> Option<Facts> {
        let (version, is_movable) = (self.version()?, self.is_movable);
        let kind = self.common().and_then(CommonState::handshake_kind);
        Some(Facts { version, is_resumed: kind == Some(HandshakeKind::Resumed), is_movable })
    }

    /// The names of the client's certificate that may be its user's. The certificate was verified by the handshake, or
    /// by the one of the session that goes on.
    pub fn user_names(&self) -> Vec<String> {
        if self.client_user == ClientUser::Off {
            return Vec::new();
        }
        let chain = self.common().and_then(CommonState::peer_certificates);
        chain
            .and_then(|chain| chain.first())
            .map_or_else(Vec::new, |der| names_for(der, self.client_user))
    }

    /// Reads what has come: `input` begins with what was left by the last call. Appends plaintext to `plain`, and what
    /// the peer is to get to `out`; that too after a failure, where it is an alert.
    ///
    /// # Errors
    /// If the connection cannot go on. It fails the same way from then on.
    pub fn process(
        &mut self,
        input: &mut [u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<Progress, Failure> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        if let Side::Moved(records) = &mut self.side {
            return records
                .process(input, plain, out)
                .inspect_err(|failure| self.failure = Some(*failure));
        }
        let first = input.first().copied();
        let mut consumed = 0;
        loop {
            let (discard, step) = self.step(&mut input[consumed..], plain, out);
            consumed += discard;
            self.has_heard |= discard > 0;
            match step {
                Step::Again => {}
                Step::Ended => self.is_ended = true,
                Step::Idle => return Ok(Progress { consumed, is_ended: self.is_ended }),
                Step::Failed(error) => {
                    let failure = Failure::of(&error, !self.has_heard, first);
                    self.failure = Some(failure);
                    self.write_alert(input.len(), out);
                    return Err(failure);
                }
            }
        }
    }

    fn step(&mut self, input: &mut [u8], plain: &mut Vec<u8>, out: &mut Vec<u8>) -> (usize, Step) {
        match &mut self.side {
            Side::Server(side) => step(side.process_tls_records(input), plain, out),
            Side::Client(side) => step(side.process_tls_records(input), plain, out),
            Side::Moved(_) => (0, Step::Idle),
        }
    }

    /// What rustls wants the peer to be told of a failure. It may still refer to places of the input, which was `len`
    /// bytes long. It must not be made to read: after a failure that panics.
    fn write_alert(&mut self, len: usize, out: &mut Vec<u8>) {
        let mut blank = vec![0; len];
        while self.common().is_some_and(CommonState::wants_write) {
            self.step(&mut blank, &mut Vec::new(), out);
        }
    }

    /// Encrypts `plain` behind what is in `out`. `input` is what the last [`process`](Self::process) has left.
    ///
    /// # Errors
    /// If the handshake is not over, or the connection has failed.
    pub fn encrypt(
        &mut self,
        plain: &[u8],
        input: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        self.write(Outgoing::Data(plain), input, out)
    }

    /// Tells the peer that nothing more follows, behind what is in `out`, where that is possible.
    pub fn close(&mut self, input: &mut [u8], out: &mut Vec<u8>) {
        // A peer that cannot be told finds the connection closed.
        let _ = self.write(Outgoing::End, input, out);
    }

    fn write(
        &mut self,
        what: Outgoing<'_>,
        input: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        // What else is to be written goes first.
        let mut plain = Vec::new();
        let progress = self.process(input, &mut plain, out)?;
        debug_assert_eq!((progress.consumed, plain.len()), (0, 0), "a whole record was left");
        let result = match &mut self.side {
            Side::Server(side) => write(side.process_tls_records(input), what, out),
            Side::Client(side) => write(side.process_tls_records(input), what, out),
            Side::Moved(records) => match what {
                Outgoing::Data(plain) => {
                    return records
                        .encrypt(plain, out)
                        .inspect_err(|failure| self.failure = Some(*failure));
                }
                Outgoing::End => {
                    records.close(out);
                    Ok(())
                }
            },
        };
        result.map_err(|Unwritten| *self.failure.insert(Failure::Broken))
    }
}

/// What a peer is to get.
#[derive(Clone, Copy)]
enum Outgoing<'a> {
    Data(&'a [u8]),
    End,
}

struct Unwritten;

fn write<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    what: Outgoing<'_>,
    out: &mut Vec<u8>,
) -> Result<(), Unwritten> {
    let Ok(ConnectionState::WriteTraffic(mut traffic)) = status.state else {
        return Err(Unwritten);
    };
    let len = out.len();
    let mut room = match what {
        Outgoing::Data(plain) => plain.len() + (plain.len() / RECORD_MAX + 1) * OVERHEAD,
        Outgoing::End => OVERHEAD,
    };
    // The second time there is as much room as it has asked for.
    for _ in 0..2 {
        out.resize(len + room, 0);
        let written = match what {
            Outgoing::Data(plain) => traffic.encrypt(plain, &mut out[len..]),
            Outgoing::End => traffic.queue_close_notify(&mut out[len..]),
        };
        match written {
            Ok(written) => {
                out.truncate(len + written);
                return Ok(());
            }
            Err(EncryptError::InsufficientSize(InsufficientSizeError { required_size })) => {
                room = required_size;
            }
            Err(EncryptError::EncryptExhausted) => break,
        }
    }
    out.truncate(len);
    Err(Unwritten)
}

fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    plain: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> (usize, Step) {
    let UnbufferedStatus { mut discard, state } = status;
    let step = match state {
        Err(error) => Step::Failed(error),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => {
            let mut step = Step::Again;
            while let Some(record) = traffic.next_record() {
                match record {
                    Ok(record) => {
                        discard += record.discard;
                        plain.extend_from_slice(record.payload);
                    }
                    Err(error) => step = Step::Failed(error),
                }
            }
            step
        }
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            if let Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) =
                data.encode(&mut [])
            {
                let len = out.len();
                out.resize(len + required_size, 0);
                let written = data.encode(&mut out[len..]).unwrap_or(0);
                out.truncate(len + written);
            }
            Step::Again
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Step::Again
        }
        Ok(ConnectionState::PeerClosed) => Step::Ended,
        Ok(
            ConnectionState::BlockedHandshake
            | ConnectionState::WriteTraffic(_)
            | ConnectionState::Closed,
        ) => Step::Idle,
        // Early data is not allowed, so this is not reached.
        Ok(_) => Step::Failed(Error::HandshakeNotComplete),
    };
    (discard, step)
}
