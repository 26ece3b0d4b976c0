//! A task that may take longer than the master's loop allows. A thread runs it, and the loop
//! fetches the result.

use std::io::{self, PipeReader};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread::{self, JoinHandle};

pub(crate) struct BackgroundTask<T> {
    thread: JoinHandle<T>,
    /// Closed when the thread ends.
    pipe: PipeReader,
}

impl<T: Send + 'static> BackgroundTask<T> {
    pub(crate) fn start(name: &str, run: impl FnOnce() -> T + Send + 'static) -> io::Result<Self> {
        let (pipe, end) = io::pipe()?;
        let run = move || {
            let _end = end;
            run()
        };
        let thread = thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(Self { thread, pipe })
    }

    /// The result; `None` if the task panicked. Blocks unless [its descriptor](Self::as_fd) has
    /// become readable.
    pub(crate) fn finish(self) -> Option<T> {
        self.thread.join().ok()
    }
}

/// Becomes readable, or hangs up, when the task is done.
impl<T> AsFd for BackgroundTask<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}
