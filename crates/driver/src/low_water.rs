//! The receive low-water mark of a socket, for which rustix has no call.

use std::os::fd::{AsFd, AsRawFd};

/// Sets SO_RCVLOWAT (socket(7)). Since Linux 4.18 a poll respects it for TCP, and reports at once
/// if enough is there already. The kernel lowers values that it cannot buffer.
pub(crate) fn set(socket: impl AsFd, bytes: u32) {
    let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let size = size_of_val(&value) as libc::socklen_t;
    let descriptor = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads an integer of the given size during this call.
    let result = unsafe {
        let value = (&raw const value).cast();
        libc::setsockopt(descriptor, libc::SOL_SOCKET, libc::SO_RCVLOWAT, value, size)
    };
    debug_assert_eq!(result, 0, "every socket has this option");
}
