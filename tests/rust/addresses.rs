//! Addresses for tests, in several crates.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
};

/// An address of loopback for somebody to listen at, which is nobody else's until this process ends. A
/// socket is bound to it that does not listen: the kernel gives the port to nobody who asks for any, and
/// refuses who connects, but lets those listen who name it and set SO_REUSEADDR.
pub(crate) fn free_address() -> SocketAddr {
    static TAKEN: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());
    let socket =
        socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = getsockname(&socket).unwrap();
    TAKEN.lock().unwrap().push(socket);
    address.try_into().unwrap()
}
