//! The two addresses of a client's connection.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use cashew_config::snapshot::Listen;
use cashew_driver::{Driver, Token};
use cashew_engine::{ConnId, Place};
use rustix::net::{AddressFamily, SocketAddrAny, getpeername, getsockname};

/// What proxies have told of their clients: where these come from, and where they have connected to.
pub(crate) type Told = HashMap<Token, Passed>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) client: SocketAddr,
    pub(crate) to: SocketAddr,
}

/// The client's addresses, written as Redis writes them: what a proxy has told, or the kernel's.
pub(crate) fn place(driver: &impl Driver, told: &Told, listen: &Listen, conn: ConnId) -> Place {
    let token = Token(conn.token());
    let Some(descriptor) = driver.descriptor(token) else { return Place::UNKNOWN };
    match told.get(&token) {
        Some(Passed { client, to }) => Place {
            peer: client.to_string(),
            local: to.to_string(),
            is_unix: false,
            descriptor: descriptor.as_raw_fd(),
        },
        None => place_of(descriptor, listen),
    }
}

/// Where a client comes from, as it is or was told; `None` once it is gone.
pub(crate) fn host(driver: &impl Driver, told: &Told, conn: Token) -> Option<Option<IpAddr>> {
    let descriptor = driver.descriptor(conn)?;
    let told = told.get(&conn).map(|passed| passed.client.ip());
    Some(told.or_else(|| host_of(descriptor)))
}

/// Where a connection comes from; `None` is a Unix socket, or one that is gone.
pub(crate) fn host_of(socket: BorrowedFd<'_>) -> Option<IpAddr> {
    let peer = SocketAddr::try_from(getpeername(socket).ok()??).ok()?;
    Some(peer.ip())
}

fn place_of(socket: impl AsFd, listen: &Listen) -> Place {
    let socket = socket.as_fd();
    let descriptor = socket.as_raw_fd();
    let local = getsockname(socket).ok();
    let is_unix = local.as_ref().is_some_and(|it| it.address_family() == AddressFamily::UNIX);
    if is_unix {
        // The kernel has the path at which the socket was bound, which may be gone, and no name for
        // the other end.
        let path = match listen {
            Listen::Unix { path, .. } => path.to_string_lossy(),
            Listen::Tcp(_) | Listen::Nowhere => "".into(),
        };
        let name = format!("{path}:0");
        return Place { peer: name.clone(), local: name, is_unix, descriptor };
    }
    let peer = getpeername(socket).ok().flatten();
    Place { peer: written(peer), local: written(local), is_unix: false, descriptor }
}

fn written(address: Option<SocketAddrAny>) -> String {
    let address = address.and_then(|address| SocketAddr::try_from(address).ok());
    address.map_or_else(String::new, |address| address.to_string())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn addresses_are_written_as_redis_does() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else {
                assert_ne!(host, "127.0.0.1:0", "there is no loopback");
                continue;
            };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (socket, from) = listener.accept().unwrap();
            let place = place_of(&socket, &Listen::Tcp(listener.local_addr().unwrap()));
            assert_eq!(place.peer, from.to_string());
            assert_eq!(place.peer, client.local_addr().unwrap().to_string());
            assert_eq!(place.local, listener.local_addr().unwrap().to_string());
            assert!(!place.is_unix && place.descriptor == socket.as_raw_fd());
        }
    }

    #[test]
    fn a_unix_socket_is_its_path() {
        let path = std::env::temp_dir().join(format!("cashew-place-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let _client = UnixStream::connect(&path).unwrap();
        let (socket, _) = listener.accept().unwrap();
        let place = place_of(&socket, &Listen::Unix { path: "/run/it".into(), mode: None });
        assert_eq!(place.peer, "/run/it:0");
        assert!(place.local == place.peer && place.is_unix);
        std::fs::remove_file(&path).unwrap();
    }
}
