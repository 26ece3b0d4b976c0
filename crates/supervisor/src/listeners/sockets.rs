//! The sockets of one address, bound so that they get no other program's clients.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use cashew_config::snapshot::{Listen, Pool};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::deal::ListenerId;
use crate::unix_socket::{self, BindError};

#[derive(Debug)]
pub(super) enum Sockets {
    /// At least one for each worker. The kernel spreads new connections over them.
    Tcp(Vec<Socket>),
    /// One for all: a second one cannot be bound to the same path.
    Unix { socket: Socket, path: PathBuf, inode: (u64, u64) },
    /// One for all, opened by whoever started the instance.
    Given(Socket),
}

#[derive(Debug)]
pub(super) struct Socket {
    /// Assigned when it comes into use, and again when it moves to another pool.
    pub(super) id: ListenerId,
    pub(super) fd: Rc<OwnedFd>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Why {
    #[error("another process already listens there")]
    InUse,
    #[error("{0} until the change is in effect; make it in two steps")]
    Ours(String),
    #[error("the path exists and is not a socket")]
    NotASocket,
    #[error("the socket was passed in, but no pool of the configuration listens there")]
    Unclaimed,
    #[error("{0}")]
    Io(io::Error),
}

impl Sockets {
    pub(super) fn all(&self) -> &[Socket] {
        match self {
            Self::Tcp(sockets) => sockets,
            Self::Unix { socket, .. } | Self::Given(socket) => std::slice::from_ref(socket),
        }
    }

    pub(super) fn all_mut(&mut self) -> &mut [Socket] {
        match self {
            Self::Tcp(sockets) => sockets,
            Self::Unix { socket, .. } | Self::Given(socket) => std::slice::from_mut(socket),
        }
    }
}

impl Socket {
    /// Not in use yet.
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self { id: ListenerId::MAX, fd: Rc::new(fd) }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        if let Self::Unix { path, inode, .. } = self {
            unix_socket::remove(path, *inode);
        }
    }
}

pub(super) fn backlog(pool: &Pool) -> i32 {
    i32::try_from(pool.backlog).unwrap_or(i32::MAX)
}

pub(super) fn bind_pool(
    pool: &Pool,
    listen: &Listen,
    workers: u32,
    overlaps: bool,
) -> Result<Sockets, Why> {
    match listen {
        Listen::Tcp(address) => {
            // With SO_REUSEPORT on both sides, a second instance, or a nutcracker with `reuseport`,
            // would share the port and take half of the clients. Without it the kernel refuses to
            // bind where anybody listens, this process included.
            if !overlaps {
                tcp_socket(*address, false)?;
            }
            let sockets = bind_tcp_group(*address, workers, backlog(pool), pool.tcp_keepalive)?;
            Ok(Sockets::Tcp(sockets.into_iter().map(Socket::new).collect()))
        }
        Listen::Unix { path, mode } => bind_unix(path, *mode, backlog(pool)),
        Listen::Nowhere => Ok(Sockets::Tcp(Vec::new())),
    }
}

pub(super) fn bind_tcp_group(
    address: SocketAddr,
    count: u32,
    backlog: i32,
    keepalive: bool,
) -> Result<Vec<OwnedFd>, Why> {
    let sockets: Vec<OwnedFd> =
        (0..count).map(|_| tcp_socket(address, true)).collect::<Result<_, _>>()?;
    // They listen only when all are bound, so that a failure has refused no connection.
    for socket in &sockets {
        listen_tcp(socket, backlog, keepalive)?;
    }
    Ok(sockets)
}

/// These options are inherited by accepted connections (tcp(7), socket(7)), which saves workers
/// system calls for each.
pub(super) fn listen_tcp(socket: &OwnedFd, backlog: i32, keepalive: bool) -> Result<(), Why> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, keepalive)?;
    Ok(rustix::net::listen(socket, backlog)?)
}

pub(super) fn tcp_socket(address: SocketAddr, share: bool) -> Result<OwnedFd, Why> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = stream_socket(family)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, share)?;
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

fn bind_unix(path: &Path, mode: Option<u32>, backlog: i32) -> Result<Sockets, Why> {
    let (fd, inode) = unix_socket::bind(path, mode, backlog)?;
    Ok(Sockets::Unix { socket: Socket::new(fd), path: path.into(), inode })
}

pub(super) fn stream_socket(family: AddressFamily) -> Result<OwnedFd, Why> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?)
}

impl From<BindError> for Why {
    fn from(error: BindError) -> Self {
        match error {
            BindError::InUse => Self::InUse,
            BindError::NotASocket => Self::NotASocket,
            BindError::Io(error) => Self::Io(error),
        }
    }
}

impl From<io::Error> for Why {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Errno> for Why {
    fn from(errno: Errno) -> Self {
        if errno == Errno::ADDRINUSE { Self::InUse } else { Self::Io(errno.into()) }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;
    use std::net::TcpStream;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::addresses::free_address;

    #[test]
    fn a_group_shares_one_port() {
        let address = free_address();
        let sockets = bind_tcp_group(address, 3, 16, false).unwrap();
        assert_eq!(sockets.len(), 3);
        for _ in 0..20 {
            TcpStream::connect(address).unwrap();
        }
    }

    #[test]
    fn a_stale_unix_socket_is_replaced_and_the_mode_set() {
        let dir = Directory::new("stale");
        let path = dir.0.join("socket");
        drop(UnixListener::bind(&path).unwrap());
        assert!(UnixStream::connect(&path).is_err());

        let group = bind_unix(&path, Some(0o600), 16).unwrap();
        UnixStream::connect(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 1, "no hidden name is left");
        drop(group);
        assert!(!path.exists());
    }

    #[test]
    fn of_two_processes_one_gets_a_stale_unix_socket() {
        let dir = Directory::new("two");
        let path = dir.0.join("socket");
        for _ in 0..100 {
            drop(UnixListener::bind(&path).unwrap());
            let both = Barrier::new(2);
            let is_bound = || {
                both.wait();
                let bound = bind_unix(&path, None, 16);
                both.wait();
                bound.is_ok()
            };
            let (one, other) = thread::scope(|scope| {
                let threads = [scope.spawn(is_bound), scope.spawn(is_bound)];
                threads.map(|thread| thread.join().unwrap()).into()
            });
            assert!(one != other, "{one} {other}");
        }
    }

    #[test]
    fn a_live_unix_socket_is_left_alone() {
        let dir = Directory::new("live");
        let path = dir.0.join("socket");
        let _theirs = UnixListener::bind(&path).unwrap();
        assert!(matches!(bind_unix(&path, None, 16), Err(Why::InUse)));
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_file_is_left_alone() {
        let dir = Directory::new("file");
        let path = dir.0.join("socket");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(bind_unix(&path, None, 16), Err(Why::NotASocket)));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn the_socket_of_a_successor_is_not_removed() {
        let dir = Directory::new("successor");
        let path = dir.0.join("socket");
        let group = bind_unix(&path, None, 16).unwrap();
        fs::remove_file(&path).unwrap();
        let _theirs = UnixListener::bind(&path).unwrap();
        drop(group);
        UnixStream::connect(&path).unwrap();
    }

    pub(crate) struct Directory(pub(crate) PathBuf);

    impl Directory {
        pub(crate) fn new(name: &str) -> Self {
            let path = std::env::temp_dir()
                .join(format!("cashew-listeners-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
