//! A listening socket with a path.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use crate::state::{Pack, Place, Text};

/// How often to wait for another process that is replacing the socket.
const LOCK_TRIES: u32 = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Dropping it removes the path, unless another process owns it by now.
#[derive(Debug)]
pub(crate) struct UnixSocket {
    fd: OwnedFd,
    path: PathBuf,
    inode: Inode,
}

/// Device and inode of a file, which show who owns a path.
pub(crate) type Inode = (u64, u64);

#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    #[error("another process already listens there")]
    InUse,
    #[error("the path exists and is not a socket")]
    NotASocket,
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl UnixSocket {
    pub(crate) fn bind(path: &Path, mode: Option<u32>, backlog: i32) -> Result<Self, BindError> {
        let (fd, inode) = bind(path, mode, backlog)?;
        Ok(Self { fd, path: path.into(), inode })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn state(&self, pack: &mut Pack) -> io::Result<UnixSocketState> {
        let socket = pack.put_copy(&self.fd)?;
        Ok(UnixSocketState { socket, path: self.path().into(), inode: self.inode })
    }

    /// Resumes from a saved [`state`](Self::state) and its descriptor.
    pub(crate) fn resume(state: UnixSocketState, fd: OwnedFd) -> Self {
        Self { fd, path: state.path.into(), inode: state.inode }
    }
}

/// For the next program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct UnixSocketState {
    pub(crate) socket: Place,
    path: Text,
    inode: Inode,
}

impl AsFd for UnixSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        remove(&self.path, self.inode);
    }
}

impl From<Errno> for BindError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// Binds and listens under a hidden name, then renames. So a client of the path reaches either the
/// former socket or one that listens with the right mode. A socket of a dead process is replaced.
pub(crate) fn bind(
    path: &Path,
    mode: Option<u32>,
    backlog: i32,
) -> Result<(OwnedFd, Inode), BindError> {
    let _lock = lock_directory(path);
    clear_way(path)?;
    let hidden = path.with_file_name(format!(".cashew.{}", std::process::id()));
    // In a container, a process that was killed here may have had the same id.
    let _ = fs::remove_file(&hidden);
    let socket = stream_socket()?;
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
        Ok(inode) => Ok((socket, inode)),
        Err(error) => {
            // The earlier failure is the one to report.
            let _ = fs::remove_file(&hidden);
            Err(BindError::Io(error))
        }
    }
}

/// Removes the path of a socket, unless another instance has put its own there.
pub(crate) fn remove(path: &Path, inode: Inode) {
    if identity(path).ok() == Some(inode)
        && let Err(error) = fs::remove_file(path)
    {
        warn!("cannot remove {}: {error}", path.display());
    }
}

/// Serialises processes that replace a stale socket: otherwise the later one would take the path
/// from the earlier one. A lock that is held for long is for something else.
fn lock_directory(path: &Path) -> Option<fs::File> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = fs::File::open(parent.unwrap_or(Path::new("."))).ok()?;
    for _ in 0..LOCK_TRIES {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(directory),
            Err(Errno::WOULDBLOCK) => thread::sleep(LOCK_PAUSE),
            Err(_) => return None,
        }
    }
    None
}

/// Checks the path and removes nothing. Only a live listener or something that is not a socket is
/// in the way.
fn clear_way(path: &Path) -> Result<(), BindError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
        Ok(metadata) if !metadata.file_type().is_socket() => return Err(BindError::NotASocket),
        Ok(_) => {}
    }
    match connect(path) {
        Err(Errno::CONNREFUSED) => {
            info!("replacing {}, left by a process that is gone", path.display());
            Ok(())
        }
        Err(Errno::NOENT) => Ok(()),
        // EAGAIN: a busy listener. EPROTOTYPE: a socket of another type.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(BindError::InUse),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes a socket whose process is dead.
pub(crate) fn sweep(path: &Path) {
    if let (Ok(inode), Err(Errno::CONNREFUSED)) = (identity(path), connect(path)) {
        remove(path, inode);
    }
}

fn connect(path: &Path) -> Result<(), Errno> {
    rustix::net::connect(&stream_socket()?, &SocketAddrUnix::new(path)?)
}

fn stream_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

pub(crate) fn identity(path: &Path) -> io::Result<Inode> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}
