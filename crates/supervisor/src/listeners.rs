//! The listening sockets of the whole instance. The master makes them once, before any worker, and
//! keeps them: a worker that dies takes no connection along that waits to be accepted.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use cashew_config::Snapshot;
use cashew_config::snapshot::{Listen, Pool};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use tracing::{info, warn};

/// Dropping it closes the sockets and removes the paths of those that have one.
#[derive(Debug)]
pub(crate) struct Listeners {
    pools: Vec<Group>,
    stats: Option<Rc<OwnedFd>>,
}

/// The sockets of one pool.
#[derive(Debug)]
enum Group {
    /// One for each slot. The kernel spreads new connections over them.
    Tcp(Vec<Rc<OwnedFd>>),
    /// One for all: a second one cannot be bound to the same path.
    Unix { socket: Rc<OwnedFd>, path: PathBuf, inode: (u64, u64) },
}

#[derive(Debug, thiserror::Error)]
#[error("{whose}: cannot listen on {address}: {why}")]
pub struct ListenError {
    whose: String,
    address: String,
    why: Why,
}

#[derive(Debug, thiserror::Error)]
enum Why {
    #[error("another process already listens there")]
    InUse,
    #[error("the path exists and is not a socket")]
    NotASocket,
    #[error("{0}")]
    Io(io::Error),
}

impl Listeners {
    pub(crate) fn bind(
        snapshot: &Snapshot,
        slots: u32,
        stats: Option<SocketAddr>,
    ) -> Result<Self, ListenError> {
        // Filled one by one, so that a failure removes the paths made before it.
        let mut listeners = Self { pools: Vec::new(), stats: None };
        for pool in &snapshot.pools {
            let group = bind_pool(pool, slots).map_err(|why| ListenError {
                whose: format!("pool '{}'", pool.name),
                address: display(&pool.listen),
                why,
            })?;
            listeners.pools.push(group);
        }
        if let Some(address) = stats {
            let socket = bind_stats(address).map_err(|why| ListenError {
                whose: "statistics".into(),
                address: address.to_string(),
                why,
            })?;
            listeners.stats = Some(socket);
        }
        Ok(listeners)
    }

    /// What the worker of `slot` accepts the clients of `pool` from.
    pub(crate) fn of_pool(&self, pool: usize, slot: u32) -> Rc<OwnedFd> {
        match &self.pools[pool] {
            Group::Tcp(sockets) => Rc::clone(&sockets[slot as usize]),
            Group::Unix { socket, .. } => Rc::clone(socket),
        }
    }

    pub(crate) fn of_stats(&self) -> Option<Rc<OwnedFd>> {
        self.stats.clone()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let Self::Unix { path, inode, .. } = self else { return };
        // Another instance may have put a socket of its own there.
        if identity(path).ok() == Some(*inode)
            && let Err(error) = fs::remove_file(&*path)
        {
            warn!("cannot remove {}: {error}", path.display());
        }
    }
}

fn bind_pool(pool: &Pool, slots: u32) -> Result<Group, Why> {
    let backlog = i32::try_from(pool.backlog).unwrap_or(i32::MAX);
    match &pool.listen {
        Listen::Tcp(address) => {
            bind_tcp_group(*address, slots, backlog, pool.tcp_keepalive).map(Group::Tcp)
        }
        Listen::Unix { path, mode } => bind_unix(path, *mode, backlog),
    }
}

fn bind_tcp_group(
    address: SocketAddr,
    slots: u32,
    backlog: i32,
    keepalive: bool,
) -> Result<Vec<Rc<OwnedFd>>, Why> {
    // With SO_REUSEPORT on both sides a second instance, or a nutcracker with `reuseport`, would
    // share the port and take half of the clients. Without it the kernel refuses to bind where
    // anybody listens.
    tcp_socket(address, false)?;
    let sockets: Vec<OwnedFd> =
        (0..slots).map(|_| tcp_socket(address, true)).collect::<Result<_, _>>()?;
    // They listen only when all are bound, so that a failure has refused no one's connection.
    for socket in &sockets {
        // What is set here holds for the connections accepted (tcp(7), socket(7)), which saves
        // workers system calls for each.
        sockopt::set_tcp_nodelay(socket, true)?;
        sockopt::set_socket_keepalive(socket, keepalive)?;
        rustix::net::listen(socket, backlog)?;
    }
    Ok(sockets.into_iter().map(Rc::new).collect())
}

fn bind_stats(address: SocketAddr) -> Result<Rc<OwnedFd>, Why> {
    let socket = tcp_socket(address, false)?;
    rustix::net::listen(&socket, 128)?;
    Ok(Rc::new(socket))
}

fn tcp_socket(address: SocketAddr, share: bool) -> Result<OwnedFd, Why> {
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

/// Binds and listens under a name nobody knows, then renames: who connects to the path reaches
/// either who was there before or a socket that listens with the right mode.
fn bind_unix(path: &Path, mode: Option<u32>, backlog: i32) -> Result<Group, Why> {
    clear_way(path)?;
    let hidden = path.with_file_name(format!(".cashew.{}", std::process::id()));
    let socket = stream_socket(AddressFamily::UNIX)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(&hidden)?)?;
    let publish = || {
        if let Some(mode) = mode {
            fs::set_permissions(&hidden, fs::Permissions::from_mode(mode))?;
        }
        rustix::net::listen(&socket, backlog)?;
        let inode = identity(&hidden)?;
        fs::rename(&hidden, path)?;
        Ok(inode)
    };
    match publish() {
        Ok(inode) => Ok(Group::Unix { socket: Rc::new(socket), path: path.into(), inode }),
        Err(error) => {
            // The failure before this one is the one to tell.
            let _ = fs::remove_file(&hidden);
            Err(Why::Io(error))
        }
    }
}

/// Nothing is removed here; only somebody who listens at the path, or something there that is not
/// a socket, is in the way.
fn clear_way(path: &Path) -> Result<(), Why> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Why::Io(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => return Err(Why::NotASocket),
        Ok(_) => {}
    }
    let socket = stream_socket(AddressFamily::UNIX)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => {
            info!("{} is left over from a process that is gone", path.display());
            Ok(())
        }
        Err(Errno::NOENT) => Ok(()),
        // EAGAIN: somebody listens and is busy. EPROTOTYPE: somebody has a socket of another type.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(Why::InUse),
        Err(errno) => Err(errno.into()),
    }
}

fn stream_socket(family: AddressFamily) -> Result<OwnedFd, Why> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?)
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

fn display(listen: &Listen) -> String {
    match listen {
        Listen::Tcp(address) => address.to_string(),
        Listen::Unix { path, .. } => path.display().to_string(),
    }
}

impl From<Errno> for Why {
    fn from(errno: Errno) -> Self {
        if errno == Errno::ADDRINUSE { Self::InUse } else { Self::Io(errno.into()) }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

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
    fn a_port_that_somebody_shares_is_in_use_all_the_same() {
        let address = free_address();
        let theirs = tcp_socket(address, true).unwrap();
        rustix::net::listen(&theirs, 1).unwrap();
        assert!(matches!(bind_tcp_group(address, 2, 16, false), Err(Why::InUse)));
        drop(theirs);
        bind_tcp_group(address, 2, 16, false).unwrap();
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

    fn free_address() -> SocketAddr {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
    }

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
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
