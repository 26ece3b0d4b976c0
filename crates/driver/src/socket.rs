//! Common to all drivers: making and ending connections, and the causes of failures.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use crate::{Address, CloseKind};

/// Connections accepted in one tick.
pub(crate) const ACCEPTS_PER_TICK: usize = 64;
pub(crate) const EVENTS_PER_TICK: usize = 512;
/// After this many reported bytes the rest is left to the next tick. See [`crate::Driver::wait`].
pub(crate) const BYTES_PER_TICK: usize = 128 * 1024;
/// The most connections accepted from a released listener: more than any queue has.
const DRAINED_MAX: usize = 65_536;
/// The most buffers of one write.
pub(crate) const SLICES_MAX: usize = 16;
/// How often accepting is retried after running out of descriptors: they may have become free
/// elsewhere.
pub(crate) const PARKED_RETRY: Duration = Duration::from_millis(100);

/// How often a connection is read before it is closed: unread bytes would make the kernel send a
/// reset, which could overtake the last reply.
const FINAL_READS_MAX: usize = 4;
const FINAL_READ_SIZE: usize = 64 * 1024;

/// Time until the first probe of an idle server connection, interval of the next ones, and how many
/// may fail.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// A non-blocking socket that becomes writable when it is connected or has failed.
pub(crate) fn start_connecting(address: &Address) -> Result<OwnedFd, CloseKind> {
    let socket = new_socket(address).map_err(socket_kind)?;
    let result = match address {
        Address::Tcp(address) => net::connect(&socket, address),
        Address::Unix(path) => {
            SocketAddrUnix::new(path).and_then(|address| net::connect(&socket, &address))
        }
    };
    match result {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(connect_kind(address, errno)),
    }
}

fn new_socket(address: &Address) -> Result<OwnedFd, Errno> {
    let family = match address {
        Address::Tcp(address) if address.is_ipv4() => AddressFamily::INET,
        Address::Tcp(_) => AddressFamily::INET6,
        Address::Unix(_) => AddressFamily::UNIX,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let descriptor = net::socket_with(family, SocketType::STREAM, flags, None)?;
    if let Address::Tcp(_) = address {
        sockopt::set_tcp_nodelay(&descriptor, true)?;
        // The loss of a server's host must be noticed even while nothing is sent.
        sockopt::set_socket_keepalive(&descriptor, true)?;
        sockopt::set_tcp_keepidle(&descriptor, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(&descriptor, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&descriptor, KEEPALIVE_PROBES)?;
    }
    Ok(descriptor)
}

/// Whether a finished attempt to connect has succeeded.
pub(crate) fn finish_connecting(socket: impl AsFd) -> Result<(), Errno> {
    sockopt::socket_error(&socket)??;
    // When a server on this host does not listen, the kernel may choose its very port as the local
    // one. The socket is then connected to itself, and requests would be taken for their replies.
    match (net::getsockname(&socket), net::getpeername(&socket)) {
        (Ok(here), Ok(Some(there))) if here == there => Err(Errno::CONNREFUSED),
        _ => Ok(()),
    }
}

/// A listening socket that is released when no connection waits any more.
pub(crate) struct Draining {
    pub(crate) id: u32,
    socket: OwnedFd,
    /// How many it may still accept.
    left: usize,
}

/// The result of one more accept.
pub(crate) enum Drained {
    Accepted(OwnedFd),
    /// No connection waits.
    Empty,
    /// Out of descriptors.
    Blocked,
}

impl Draining {
    pub(crate) fn new(id: u32, socket: OwnedFd) -> Self {
        Self { id, socket, left: DRAINED_MAX }
    }

    pub(crate) fn accept(&mut self, flags: SocketFlags) -> Drained {
        while self.left > 0 {
            match net::accept_with(&self.socket, flags) {
                Ok(socket) => {
                    self.left -= 1;
                    return Drained::Accepted(socket);
                }
                // The connection was reset while it waited, or a signal came.
                Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO) => {}
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    return Drained::Blocked;
                }
                Err(_) => break,
            }
        }
        Drained::Empty
    }
}

/// Reads unread bytes, within limits. `buffer` is scratch space; its content is lost.
pub(crate) fn drain(socket: impl AsFd, buffer: &mut Vec<u8>) {
    for _ in 0..FINAL_READS_MAX {
        buffer.clear();
        // The handler may have taken the buffer.
        buffer.reserve(FINAL_READ_SIZE);
        let room = buffer.capacity();
        match net::recv(&socket, spare_capacity(buffer), RecvFlags::DONTWAIT) {
            Ok((len, _)) if len == room && len > 0 => {}
            _ => break,
        }
    }
}

/// Sends a final message to a client that was just accepted and is closed now. `buffer` is scratch
/// space; its content is lost.
pub(crate) fn refuse(socket: impl AsFd, why: &[u8], buffer: &mut Vec<u8>) {
    // The few bytes usually fit; if not, it is closed anyway.
    let _ = net::send(&socket, why, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    // Unread bytes would reset the connection, and the client might not get the message.
    drain(socket, buffer);
}

pub(crate) fn close_kind(errno: Errno) -> CloseKind {
    match errno {
        // A Unix socket without a listener, or whose backlog is full.
        Errno::CONNREFUSED | Errno::NOENT | Errno::AGAIN => CloseKind::Refused,
        Errno::TIMEDOUT => CloseKind::TimedOut,
        Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::HOSTDOWN | Errno::NETDOWN => {
            CloseKind::Unreachable
        }
        Errno::MFILE | Errno::NFILE => CloseKind::Exhausted,
        Errno::NOBUFS | Errno::NOMEM => CloseKind::NoMemory,
        _ => CloseKind::Reset,
    }
}

/// Why no socket could be created: there is no peer yet.
fn socket_kind(errno: Errno) -> CloseKind {
    match errno {
        Errno::ACCESS | Errno::PERM => CloseKind::Forbidden,
        _ => match close_kind(errno) {
            kind if kind.is_local() => kind,
            _ => CloseKind::NoSocket,
        },
    }
}

/// Why connecting failed before anything was sent. The same errors may mean something else later: a
/// router that forbids IPv6 packets causes EACCES, too.
fn connect_kind(address: &Address, errno: Errno) -> CloseKind {
    match (address, errno) {
        (_, Errno::ADDRNOTAVAIL) | (Address::Tcp(_), Errno::AGAIN) => CloseKind::NoPort,
        (_, Errno::ACCESS | Errno::PERM) => CloseKind::Forbidden,
        (_, Errno::AFNOSUPPORT) => CloseKind::NoSocket,
        _ => close_kind(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What returned an error.
    #[derive(Clone, Copy, Debug)]
    enum Call {
        /// socket(2).
        Socket,
        /// connect(2), to either kind of address.
        Connect,
        ConnectTcp,
        ConnectUnix,
        /// SO_ERROR, or a call on a connected socket.
        Later,
    }

    use Call::{Connect, ConnectTcp, ConnectUnix, Later, Socket};

    impl Call {
        fn kinds(self, errno: Errno) -> Vec<CloseKind> {
            let tcp = Address::Tcp(([127, 0, 0, 1], 1).into());
            let unix = Address::Unix("/nowhere".into());
            match self {
                Self::Socket => vec![socket_kind(errno)],
                Self::Connect => vec![connect_kind(&tcp, errno), connect_kind(&unix, errno)],
                Self::ConnectTcp => vec![connect_kind(&tcp, errno)],
                Self::ConnectUnix => vec![connect_kind(&unix, errno)],
                Self::Later => vec![close_kind(errno)],
            }
        }
    }

    #[track_caller]
    fn check(call: Call, errno: Errno, kind: CloseKind, is_local: bool, meaning: &str) {
        for found in call.kinds(errno) {
            assert_eq!(found, kind, "{call:?}: {errno}: {meaning}");
        }
        assert_eq!(kind.is_local(), is_local, "{call:?}: {errno}: {meaning}");
    }

    /// According to socket(2), connect(2), ip(7) and unix(7).
    #[test]
    fn errors_of_this_machine_do_not_count_against_the_server() {
        use CloseKind::{Exhausted, Forbidden, NoMemory, NoPort, NoSocket};
        for (call, errno, kind, meaning) in [
            (Socket, Errno::MFILE, Exhausted, "the process's limit of descriptors is reached"),
            (Socket, Errno::NFILE, Exhausted, "the system's limit of open files is reached"),
            (Socket, Errno::NOBUFS, NoMemory, "insufficient memory is available"),
            (Socket, Errno::NOMEM, NoMemory, "insufficient memory is available"),
            (Socket, Errno::ACCESS, Forbidden, "permission to create such a socket is denied"),
            (Socket, Errno::PERM, Forbidden, "a seccomp filter or security module denies it"),
            (Socket, Errno::AFNOSUPPORT, NoSocket, "the address family is not supported"),
            (Socket, Errno::PROTONOSUPPORT, NoSocket, "the protocol is not supported there"),
            (Socket, Errno::INVAL, NoSocket, "the protocol family is not available"),
            (Connect, Errno::ADDRNOTAVAIL, NoPort, "all ephemeral ports are in use"),
            (ConnectTcp, Errno::AGAIN, NoPort, "insufficient entries in the routing cache"),
            (Connect, Errno::ACCESS, Forbidden, "a policy, or the socket file's mode, denies it"),
            (Connect, Errno::PERM, Forbidden, "a local firewall rule denies it"),
            (Connect, Errno::AFNOSUPPORT, NoSocket, "the family is none of this socket"),
            (Connect, Errno::NOBUFS, NoMemory, "not enough free memory"),
            (Connect, Errno::NOMEM, NoMemory, "not enough free memory"),
            (ConnectUnix, Errno::NFILE, Exhausted, "the system's limit of open files is reached"),
            (Later, Errno::NOBUFS, NoMemory, "not enough free memory"),
            (Later, Errno::NOMEM, NoMemory, "not enough free memory"),
        ] {
            check(call, errno, kind, true, meaning);
        }
    }

    /// If a local cause looks like one of the network or the server, the server counts as down.
    #[test]
    fn errors_of_the_server_and_of_the_way_there_count_against_it() {
        use CloseKind::{Refused, Reset, TimedOut, Unreachable};
        for (call, errno, kind, meaning) in [
            (Connect, Errno::CONNREFUSED, Refused, "nobody listens on the remote address"),
            (ConnectUnix, Errno::NOENT, Refused, "the pathname does not exist: no server made it"),
            (ConnectUnix, Errno::AGAIN, Refused, "the server's backlog is full"),
            (ConnectUnix, Errno::PROTOTYPE, Reset, "what is there is no stream socket"),
            (ConnectTcp, Errno::TIMEDOUT, TimedOut, "timeout: the server may be too busy"),
            (ConnectTcp, Errno::NETUNREACH, Unreachable, "the network is unreachable"),
            (
                ConnectTcp,
                Errno::HOSTUNREACH,
                Unreachable,
                "no route, by a router or the table here",
            ),
            (ConnectTcp, Errno::NETDOWN, Unreachable, "the network is down"),
            (ConnectTcp, Errno::HOSTDOWN, Unreachable, "the host is down"),
            (Later, Errno::CONNREFUSED, Refused, "nobody listens on the remote address"),
            (Later, Errno::TIMEDOUT, TimedOut, "no answer, or no probe of it was answered"),
            (Later, Errno::NETUNREACH, Unreachable, "a router knows no such network"),
            (Later, Errno::HOSTUNREACH, Unreachable, "a router, or nobody, knows the host"),
            (Later, Errno::NETDOWN, Unreachable, "the network is down"),
            (Later, Errno::HOSTDOWN, Unreachable, "the host is down"),
            (Later, Errno::CONNRESET, Reset, "the peer reset the connection"),
            (Later, Errno::PIPE, Reset, "the peer has closed it"),
            // After packets were sent, it is the answer to them.
            (Later, Errno::ACCESS, Reset, "a router forbids packets"),
        ] {
            check(call, errno, kind, false, meaning);
        }
    }
}
