//! Where a client's connection leads from and to.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use cashew_driver::{Driver, Token};
use cashew_engine::{ConnId, Place};
use rustix::net::{SocketAddrAny, SocketAddrUnix, getpeername, getsockname};

/// As the kernel has it, written as Redis writes it.
pub(crate) fn place(driver: &impl Driver, conn: ConnId) -> Place {
    match driver.descriptor(Token(conn.token())) {
        Some(descriptor) => place_of(descriptor),
        None => Place::UNKNOWN,
    }
}

fn place_of(socket: impl AsFd) -> Place {
    let socket = socket.as_fd();
    let local = getsockname(socket).ok();
    let unix = local.clone().and_then(|local| SocketAddrUnix::try_from(local).ok());
    let descriptor = socket.as_raw_fd();
    if let Some(unix) = unix {
        // The other end has no name.
        let path = unix.path_bytes().map(|path| String::from_utf8_lossy(path).into_owned());
        let name = format!("{}:0", path.unwrap_or_default());
        return Place { peer: name.clone(), local: name, is_unix: true, descriptor };
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
            let place = place_of(&socket);
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
        let place = place_of(&socket);
        assert_eq!(place.peer, format!("{}:0", path.display()));
        assert!(place.local == place.peer && place.is_unix);
        std::fs::remove_file(&path).unwrap();
    }
}
