//! Looks up server names on separate threads, since getaddrinfo blocks.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use cashew_driver::Token;

/// How many names are looked up at a time, so that one slow lookup does not delay the others.
const THREADS_MAX: usize = 8;

/// Looks up names, each once for all who ask meanwhile. The threads end when there is nothing to
/// look up, or soon after this is dropped.
pub(crate) struct Resolver {
    shared: Arc<Shared>,
    answers: Receiver<Answer>,
    /// Readable when there may be answers.
    wake: PipeReader,
}

/// The addresses of a name in order of preference; empty if the lookup failed.
pub(crate) struct Answer {
    pub(crate) conn: Token,
    pub(crate) addresses: Vec<SocketAddr>,
}

/// A host and a port.
pub(crate) type Name = (String, u16);
type LookUp = dyn Fn(&Name) -> Vec<SocketAddr> + Send + Sync;

struct Shared {
    questions: Mutex<Questions>,
    answer: Sender<Answer>,
    waker: PipeWriter,
    look_up: Box<LookUp>,
}

#[derive(Default)]
struct Questions {
    /// Names that no thread has taken yet, oldest first.
    waiting: VecDeque<Name>,
    /// Who waits for each name that is queued or being looked up.
    askers: HashMap<Name, Vec<Token>>,
    threads: usize,
}

impl Resolver {
    pub(crate) fn start() -> io::Result<Self> {
        Self::with(|name| name.to_socket_addrs().map(Iterator::collect).unwrap_or_default())
    }

    pub(crate) fn with(
        look_up: impl Fn(&Name) -> Vec<SocketAddr> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (answer, answers) = channel();
        let (wake, waker) = io::pipe()?;
        let (questions, look_up) = (Mutex::default(), Box::new(look_up));
        Ok(Self { shared: Arc::new(Shared { questions, answer, waker, look_up }), answers, wake })
    }

    /// Of several attempts to connect one lane only the last is answered: the others were given up.
    pub(crate) fn ask(&self, conn: Token, host: &str, port: u16) {
        let mut guard = self.shared.questions();
        let questions = &mut *guard;
        match questions.askers.entry((host.to_owned(), port)) {
            Entry::Occupied(mut askers) => {
                // The upper half of a token is the attempt's generation.
                let lane = |conn: Token| conn.0 as u32;
                let askers = askers.get_mut();
                askers.retain(|&asker| lane(asker) != lane(conn));
                askers.push(conn);
            }
            Entry::Vacant(askers) => {
                questions.waiting.push_back(askers.key().clone());
                askers.insert(vec![conn]);
            }
        }
        if questions.threads < THREADS_MAX.min(questions.askers.len()) {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name("resolver".to_owned());
            match thread.spawn(move || shared.work()) {
                Ok(_) => questions.threads += 1,
                Err(error) => tracing::error!("cannot look names up: {error}"),
            }
        }
    }

    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Takes the answers that are there. Call it when [`Resolver::wake`] is readable.
    pub(crate) fn answers(&mut self) -> Vec<Answer> {
        // One byte per answer. A read never blocks, and the rest is read the next time.
        let mut bytes = [0; 64];
        let count = self.wake.read(&mut bytes).unwrap_or(0);
        self.answers.try_iter().take(count).collect()
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.shared.questions().waiting.clear();
    }
}

impl Shared {
    fn questions(&self) -> MutexGuard<'_, Questions> {
        self.questions.lock().expect("nothing panics while it holds the questions")
    }

    /// Looks up names until none is left.
    fn work(&self) {
        while let Some(name) = self.next() {
            let addresses = (self.look_up)(&name);
            let askers = self.questions().askers.remove(&name).unwrap_or_default();
            for conn in askers {
                let is_heard =
                    self.answer.send(Answer { conn, addresses: addresses.clone() }).is_ok();
                if !is_heard || (&self.waker).write_all(&[0]).is_err() {
                    break;
                }
            }
        }
    }

    fn next(&self) -> Option<Name> {
        let mut questions = self.questions();
        let name = questions.waiting.pop_front();
        if name.is_none() {
            questions.threads -= 1;
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_slow_lookup_delays_no_other() {
        let hangs = Arc::new(Barrier::new(2));
        let wait = Arc::clone(&hangs);
        let mut resolver = Resolver::with(move |(host, port)| {
            if host == "dead" {
                wait.wait();
            }
            vec![SocketAddr::from(([127, 0, 0, 1], *port))]
        })
        .unwrap();
        resolver.ask(lane(0, 0), "dead", 1);
        for index in 1..100 {
            resolver.ask(lane(index, 0), &format!("host{index}"), index as u16);
        }
        let mut answered = answers(&mut resolver, 99);
        answered.sort_by_key(|(conn, _)| conn.0);
        let expected = (1..100).map(|index| (lane(index, 0), index as u16));
        assert!(answered.into_iter().eq(expected));
        hangs.wait();
        assert_eq!(answers(&mut resolver, 1), [(lane(0, 0), 1)]);
    }

    #[test]
    fn concurrent_lookups_share_one_answer_and_given_up_attempts_get_none() {
        let (hangs, look_ups) = (Arc::new(Barrier::new(2)), Arc::new(AtomicUsize::new(0)));
        let (wait, count) = (Arc::clone(&hangs), Arc::clone(&look_ups));
        let mut resolver = Resolver::with(move |(_, port)| {
            count.fetch_add(1, Ordering::Relaxed);
            wait.wait();
            vec![SocketAddr::from(([127, 0, 0, 1], *port))]
        })
        .unwrap();
        for attempt in 0..1000 {
            resolver.ask(lane(0, attempt), "host", 1);
            resolver.ask(lane(1, attempt), "host", 1);
        }
        hangs.wait();
        assert_eq!(answers(&mut resolver, 2), [(lane(0, 999), 1), (lane(1, 999), 1)]);
        assert_eq!(look_ups.load(Ordering::Relaxed), 1);
        // The result is not cached here: the next lookup is a fresh one.
        resolver.ask(lane(0, 1000), "host", 1);
        hangs.wait();
        assert_eq!(answers(&mut resolver, 1), [(lane(0, 1000), 1)]);
    }

    fn lane(index: u32, generation: u32) -> Token {
        Token(u64::from(generation) << 32 | 1 << 31 | u64::from(index))
    }

    /// Waits for `count` answers; returns the connection and the port of the first address of each.
    fn answers(resolver: &mut Resolver, count: usize) -> Vec<(Token, u16)> {
        let mut answered = Vec::new();
        while answered.len() < count {
            let some = resolver.answers();
            answered
                .extend(some.into_iter().map(|answer| (answer.conn, answer.addresses[0].port())));
        }
        answered
    }
}
