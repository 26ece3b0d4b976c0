//! Why a request got no reply from its server, and why a connection ended.

use std::sync::Arc;

use cashew_config::snapshot::Protocol;
use cashew_metrics::Cause;

/// Why a connection ended, as the driver saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The peer closed its side in good order.
    Eof,
    Refused,
    Reset,
    TimedOut,
    /// No route, network down and the like.
    Unreachable,
    /// The server's name has no address.
    Unresolved,
    /// There was no descriptor for it.
    Exhausted,
    /// The kernel had no memory for it.
    NoMemory,
    /// This machine had no free port to connect from, or no address.
    NoPort,
    /// This machine does not let the gateway connect there.
    Forbidden,
    /// This machine makes no such sockets.
    NoSocket,
    /// There was nothing to look the server's name up with.
    NoLookUp,
    /// It could not be secured.
    Insecure(Cause),
}

/// Why the gateway itself has to answer a request, with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    Refused,
    TimedOut,
    Reset,
    Unreachable,
    Unresolved,
    /// The gateway has no descriptor to connect with.
    Exhausted,
    /// The kernel has no memory for the connection.
    NoMemory,
    /// No port is free to connect from, or there is no address to connect from.
    NoPort,
    /// The gateway's own machine does not let it connect.
    Forbidden,
    /// The gateway's own machine has no sockets for such addresses.
    NoSocket,
    /// The gateway has no descriptor or memory to look the server's name up with.
    NoLookUp,
    /// The connection could not be secured.
    Insecure(Cause),
    /// The server closed the connection while a reply was owed.
    Closed,
    /// The server sent what is no reply, or a reply that nobody asked for.
    BadReply,
    /// The server refused AUTH, or what else the configuration asks of it.
    HandshakeRefused,
    /// The server runs a script for too long to take on a new connection.
    Busy,
    /// The server reads its data from disk and takes on no new connection yet.
    Loading,
    /// The server is a replica whose primary is gone, and gives out nothing that may be old.
    MasterDown,
    /// The server takes no writes: it is a replica.
    ReadOnly,
    /// The node's cluster serves no keys, or not those of a slot, for now.
    ClusterDown,
    /// The server has no such database as a client selected.
    DatabaseRefused,
    /// The server does not speak RESP3.
    WireProtocolRefused,
    QueueFull,
    /// It has let requests wait for too long and said nothing since. Nothing was sent.
    Silent,
    /// Every server that could answer is ejected.
    NoServer,
    /// The server is not configured any more.
    Removed,
    /// Another server has its name and its keys now, as after a failover.
    Replaced,
    /// Nothing was made of it while others waited.
    Unused,
    /// It was held for long while others waited.
    Held,
    /// Its client sent too little of it.
    TooSlow,
    /// The server is back, and has yet to forget keys that it could not be told to.
    Forgetting,
}

impl Failure {
    /// What clients and logs are told; twemproxy's words where it has any.
    pub fn text(self) -> &'static str {
        match self {
            Self::Refused | Self::NoServer => "Connection refused",
            Self::TimedOut => "Connection timed out",
            Self::Reset => "Connection reset by peer",
            Self::Unreachable => "No route to host",
            Self::Unresolved => "Host is down",
            Self::Exhausted => "Too many open files",
            Self::NoMemory => "Cannot allocate memory for a connection to the server",
            Self::NoPort => {
                "Cannot assign requested address: no local port or address to connect from"
            }
            Self::Forbidden => "Permission denied to connect to the server",
            Self::NoSocket => "Address family not supported: no socket to connect with",
            Self::NoLookUp => "Cannot look up the server's name: no descriptor or memory for it",
            Self::Insecure(cause) => cause.text(),
            Self::Closed => "Server closed the connection",
            Self::BadReply => "Server sent an invalid reply",
            Self::HandshakeRefused => "Server refused AUTH or SELECT",
            Self::Busy => {
                "Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
            }
            Self::Loading => "Redis is loading the dataset in memory",
            Self::MasterDown => {
                "Link with MASTER is down and replica-serve-stale-data is set to 'no'."
            }
            Self::ReadOnly => "You can't write against a read only replica.",
            Self::ClusterDown => "Hash slot not served",
            Self::DatabaseRefused => "DB index is out of range",
            Self::WireProtocolRefused => "unsupported protocol version",
            Self::QueueFull => "Server queue is full",
            Self::Silent => "Server does not answer",
            Self::Unused => "Connection was taken back, since it was not used while others waited",
            Self::Held => {
                "Connection was taken back, since it was held longer than session_hold_timeout while \
                 others waited"
            }
            Self::TooSlow => {
                "Large request was given up, since it came more slowly than transfer_rate_min or \
                 transfer_stall_timeout allow"
            }
            Self::Forgetting => "Server has to be told what to forget first",
            Self::Removed => "Server was removed from the configuration",
            Self::Replaced => "Server was replaced by another",
        }
    }

    /// Whether it shows that the server is not well. What is wrong with this machine does not, nor does
    /// that it refuses what one client has asked for, or says what it is busy with.
    pub(crate) fn is_of_server(self) -> bool {
        let is_unfit = matches!(
            self,
            Self::Busy | Self::Loading | Self::MasterDown | Self::ReadOnly | Self::ClusterDown
        );
        !is_unfit && !self.is_local() && !self.is_of_variant()
    }

    /// Whether this machine kept the gateway from connecting, so that nothing is known of the server.
    pub(crate) fn is_local(self) -> bool {
        matches!(
            self,
            Self::Exhausted
                | Self::NoMemory
                | Self::NoPort
                | Self::Forbidden
                | Self::NoSocket
                | Self::NoLookUp
        )
    }

    /// Whether something was there that said so, though no reply to what was asked.
    pub(crate) fn is_sign_of_life(self) -> bool {
        matches!(
            self,
            Self::Refused
                | Self::Reset
                | Self::Closed
                | Self::BadReply
                | Self::HandshakeRefused
                | Self::Loading
                | Self::MasterDown
                | Self::ReadOnly
                | Self::ClusterDown
        )
    }

    /// Whether it concerns only those who want the same dialect and database.
    pub(crate) fn is_of_variant(self) -> bool {
        matches!(self, Self::DatabaseRefused | Self::WireProtocolRefused)
    }

    /// The word by which Redis's clients tell errors apart.
    fn code(self) -> &'static [u8] {
        match self {
            Self::WireProtocolRefused => b"-NOPROTO ",
            Self::Busy => b"-BUSY ",
            Self::Loading => b"-LOADING ",
            Self::MasterDown => b"-MASTERDOWN ",
            Self::ReadOnly => b"-READONLY ",
            Self::ClusterDown => b"-CLUSTERDOWN ",
            _ => b"-ERR ",
        }
    }
}

/// A failure as clients are told of it, with the server that failed where one did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedFailure {
    pub(crate) why: Failure,
    /// As [`label`] makes it.
    server: Option<Arc<str>>,
}

impl From<Failure> for NamedFailure {
    fn from(why: Failure) -> Self {
        Self { why, server: None }
    }
}

/// What errors about a server end with.
pub(crate) fn label(name: &str, address: &str) -> Arc<str> {
    match name == address {
        true => format!(" (server {address})").into(),
        false => format!(" (server {name}, {address})").into(),
    }
}

impl NamedFailure {
    pub(crate) fn of(why: Failure, server: Option<&Arc<str>>) -> Self {
        Self { why, server: server.cloned() }
    }

    pub(crate) fn write_reply(&self, protocol: Protocol, out: &mut Vec<u8>) {
        match protocol {
            Protocol::Redis => self.write_line(self.why.code(), out),
            _ => self.write_text(out),
        }
    }

    /// As memcached's text protocol has it.
    pub(crate) fn write_text(&self, out: &mut Vec<u8>) {
        self.write_line(b"SERVER_ERROR ", out);
    }

    /// Without what protocols put around it.
    pub(crate) fn write_words(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.why.text().as_bytes());
        out.extend_from_slice(self.server.as_deref().unwrap_or_default().as_bytes());
    }

    fn write_line(&self, prefix: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(prefix);
        self.write_words(out);
        out.extend_from_slice(b"\r\n");
    }
}

impl From<CloseReason> for Failure {
    fn from(reason: CloseReason) -> Self {
        match reason {
            CloseReason::Eof => Self::Closed,
            CloseReason::Refused => Self::Refused,
            CloseReason::Reset => Self::Reset,
            CloseReason::TimedOut => Self::TimedOut,
            CloseReason::Unreachable => Self::Unreachable,
            CloseReason::Unresolved => Self::Unresolved,
            CloseReason::Exhausted => Self::Exhausted,
            CloseReason::NoMemory => Self::NoMemory,
            CloseReason::NoPort => Self::NoPort,
            CloseReason::Forbidden => Self::Forbidden,
            CloseReason::NoSocket => Self::NoSocket,
            CloseReason::NoLookUp => Self::NoLookUp,
            CloseReason::Insecure(cause) => Self::Insecure(cause),
        }
    }
}

impl From<Failure> for Cause {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused => Self::Refused,
            Failure::TimedOut => Self::TimedOut,
            Failure::Reset => Self::Reset,
            Failure::Unreachable => Self::Unreachable,
            Failure::Unresolved => Self::Unresolved,
            Failure::Closed => Self::Closed,
            Failure::BadReply => Self::BadReply,
            Failure::Busy => Self::Busy,
            Failure::Loading => Self::Loading,
            Failure::MasterDown => Self::MasterDown,
            Failure::ReadOnly => Self::ReadOnly,
            Failure::ClusterDown => Self::ClusterDown,
            Failure::Silent => Self::Silent,
            Failure::Insecure(cause) => cause,
            Failure::HandshakeRefused | Failure::DatabaseRefused | Failure::WireProtocolRefused => {
                Self::HandshakeRefused
            }
            Failure::Exhausted
            | Failure::NoMemory
            | Failure::NoPort
            | Failure::Forbidden
            | Failure::NoSocket
            | Failure::NoLookUp => Self::Local,
            Failure::QueueFull
            | Failure::NoServer
            | Failure::Removed
            | Failure::Replaced
            | Failure::Unused
            | Failure::Held
            | Failure::TooSlow
            | Failure::Forgetting => Self::None,
        }
    }
}
