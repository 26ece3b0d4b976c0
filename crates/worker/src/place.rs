//! The two addresses of a client's connection.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use cashew_config::snapshot::Listen;
use cashew_driver::{Driver, Token};
use cashew_engine::{ConnId, Place};
use rustix::net::{AddressFamily, SocketAddrAny, getpeername, getsockname};

/// The kernel's addresses, written as Redis writes them.
pub(crate) fn place(driver: &impl Driver, listen: &Listen, conn: ConnId) -> Place {
    match driver.descriptor(Token(conn.token())) {
        Some(descriptor) => place_of(descriptor, listen),
        None => Place::UNKNOWN,
    }
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
