//! Looks up server names on a thread of its own, since getaddrinfo blocks.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use cashew_driver::Token;

/// A thread that looks names up, one after the other. It ends when this is dropped.
pub(crate) struct Resolver {
    questions: Sender<Question>,
    answers: Receiver<Answer>,
    /// Readable while there may be answers.
    wake: PipeReader,
}

struct Question {
    conn: Token,
    host: String,
    port: u16,
}

/// The addresses of a name, in the order of preference; none if there are none.
pub(crate) struct Answer {
    pub(crate) conn: Token,
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Resolver {
    pub(crate) fn start() -> io::Result<Self> {
        let (questions, asked) = channel();
        let (answer, answers) = channel();
        let (wake, waker) = io::pipe()?;
        thread::Builder::new()
            .name("resolver".to_owned())
            .spawn(move || serve(&asked, &answer, waker))?;
        Ok(Self { questions, answers, wake })
    }

    pub(crate) fn ask(&self, conn: Token, host: &str, port: u16) {
        // The thread ends only after `questions`.
        let _ = self.questions.send(Question { conn, host: host.to_owned(), port });
    }

    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Answers that are there. Call it when [`Resolver::wake`] is readable.
    pub(crate) fn answers(&mut self) -> Vec<Answer> {
        // One byte per answer: a read never waits, and what it leaves is read the next time.
        let mut bytes = [0; 64];
        let count = self.wake.read(&mut bytes).unwrap_or(0);
        self.answers.try_iter().take(count).collect()
    }
}

fn serve(asked: &Receiver<Question>, answer: &Sender<Answer>, mut waker: PipeWriter) {
    while let Ok(Question { conn, host, port }) = asked.recv() {
        let found = (host.as_str(), port).to_socket_addrs();
        let addresses = found.map(Iterator::collect).unwrap_or_default();
        let is_heard = answer.send(Answer { conn, addresses }).is_ok();
        if !is_heard || waker.write_all(&[0]).is_err() {
            return;
        }
    }
}
