//! Sockets opened for the instance by whoever started it: sd_listen_fds(3).

use std::io;
use std::os::fd::OwnedFd;

use listenfd::ListenFd;
use rustix::net::sockopt::socket_acceptconn;

use crate::listeners::Address;

/// Takes the sockets and removes the environment variables that announced them. Call it once, in a
/// process that has no children yet.
pub(crate) fn take() -> io::Result<Vec<(Address, OwnedFd)>> {
    let mut given = ListenFd::from_env();
    (0..given.len()).map(|index| take_one(&mut given, index)).collect()
}

fn take_one(given: &mut ListenFd, index: usize) -> io::Result<(Address, OwnedFd)> {
    // Descriptors begin at 3.
    let refuse = |why: &str| io::Error::other(format!("descriptor {}: {why}", index + 3));
    let (address, fd): (Address, OwnedFd) = if let Ok(Some(socket)) = given.take_tcp_listener(index)
    {
        socket.set_nonblocking(true)?;
        (Address::Tcp(socket.local_addr()?), socket.into())
    } else if let Ok(Some(socket)) = given.take_unix_listener(index) {
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let path = address.as_pathname().ok_or_else(|| refuse("the socket has no path"))?;
        (Address::Unix(path.into()), socket.into())
    } else {
        return Err(refuse("not a stream socket"));
    };
    // With `Accept=yes` systemd would pass a client's connection.
    if !socket_acceptconn(&fd)? {
        return Err(refuse("the socket does not listen"));
    }
    Ok((address, fd))
}
