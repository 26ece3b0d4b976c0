//! The limit on the size of files (RLIMIT_FSIZE), which holds for the log as well as for memory that
//! processes share.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::io::Errno;
use signal_hook::consts::SIGXFSZ;

/// Survives writing beyond the limit: it fails from now on, in place of ending the process. For the
/// process to do first of all.
pub fn survive_limit() -> io::Result<()> {
    // A handler, not a blocked signal, which `exec::release_signals` would let come.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    Ok(())
}

/// Says of what kind the limit is that something failed by.
pub fn explain_limit(error: io::Error) -> io::Error {
    if error.raw_os_error() != Some(Errno::FBIG.raw_os_error()) {
        return error;
    }
    io::Error::other(format!("{error}; the limit on file sizes (ulimit -f) is too low"))
}

/// Whether something failed because there is no room for a file, which may change.
pub fn is_out_of_room(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}
