//! A connection that is closed before its peer has taken everything.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::net::sockopt;

/// How long what was sent may be unacknowledged: less than any time after which it would be sent again.
const GIVE_UP_MS: u32 = 1;

/// Has the kernel deliver nothing later: see [`crate::Driver::give_up`]. A Unix socket needs none of it, as what is
/// sent is with the peer at once.
pub(crate) fn give_up(socket: impl AsFd) {
    let _ = sockopt::set_tcp_user_timeout(&socket, GIVE_UP_MS);
    if unacknowledged(&socket) > 0 {
        // Closing resets the connection then. With a timeout alone a peer that has no room would be asked again
        // whether it has some.
        let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
    }
}

/// Bytes that the peer's kernel has not taken: SIOCOUTQ of tcp(7), for which rustix has no call.
fn unacknowledged(socket: impl AsFd) -> libc::c_int {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes an integer during this call.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { bytes } else { 0 }
}
