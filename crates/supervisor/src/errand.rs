//! What takes longer than the master's loop may: done by a thread, fetched when it is done.

use std::io::{self, PipeReader};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread::{self, JoinHandle};

pub(crate) struct Errand<T> {
    thread: JoinHandle<T>,
    /// Closed when the thread ends.
    pipe: PipeReader,
}

impl<T: Send + 'static> Errand<T> {
    pub(crate) fn start(name: &str, run: impl FnOnce() -> T + Send + 'static) -> io::Result<Self> {
        let (pipe, end) = io::pipe()?;
        let run = move || {
            let _end = end;
            run()
        };
        let thread = thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(Self { thread, pipe })
    }

    /// `None` if it panicked. Waits when [its descriptor](Self::as_fd) has not told of the end.
    pub(crate) fn finish(self) -> Option<T> {
        self.thread.join().ok()
    }
}

/// Becomes readable, or hangs up, when the errand is done.
impl<T> AsFd for Errand<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}
