//! Lines on their way to the thread that writes them, so that whoever logs never waits for a disk.
//!
//! A disk may take long, and a network file system for ever. There is room for so many lines; those beyond it are
//! lost, and counted.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of lines that wait.
const ROOM: usize = 1 << 20;

#[derive(Debug)]
pub(super) enum Order {
    /// With its end, and the process that says so.
    Line(String, Vec<u8>),
    /// What follows goes there.
    Redirect(OwnedFd),
}

impl Order {
    fn size(&self) -> usize {
        match self {
            Self::Line(process, line) => process.len() + line.len(),
            Self::Redirect(_) => 0,
        }
    }
}

pub(super) struct Backlog {
    state: Mutex<State>,
    /// There is an order.
    filled: Condvar,
    /// All orders are carried out.
    idle: Condvar,
}

struct State {
    orders: VecDeque<Order>,
    size: usize,
    /// Somebody carries them out.
    has_writer: bool,
    /// It is about one that is not among them any more.
    is_busy: bool,
    /// Lines that found no room, and that the writer does not know of yet.
    lost: u64,
}

/// Why an order was not taken.
#[derive(Debug)]
pub(super) enum Refused {
    /// Nobody would carry it out.
    NoWriter(Order),
    /// It is lost. Whether it is the first since the writer was told.
    NoRoom { is_first: bool },
}

impl Backlog {
    pub(super) const fn new() -> Self {
        let state =
            State { orders: VecDeque::new(), size: 0, has_writer: false, is_busy: false, lost: 0 };
        Self { state: Mutex::new(state), filled: Condvar::new(), idle: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether there was none yet. From now on somebody has to [run](Self::run), or [leave](Self::leave).
    pub(super) fn enter(&self) -> bool {
        !std::mem::replace(&mut self.state().has_writer, true)
    }

    /// Undoes [`enter`](Self::enter).
    pub(super) fn leave(&self) {
        self.state().has_writer = false;
    }

    /// Never waits for the writer.
    pub(super) fn push(&self, order: Order) -> Result<(), Refused> {
        let mut state = self.state();
        if !state.has_writer {
            return Err(Refused::NoWriter(order));
        }
        let size = order.size();
        if size > 0 && state.size + size > ROOM {
            state.lost += 1;
            return Err(Refused::NoRoom { is_first: state.lost == 1 });
        }
        state.size += size;
        state.orders.push_back(order);
        self.filled.notify_one();
        Ok(())
    }

    /// Waits until all that was ordered is done, or for so long.
    pub(super) fn flush(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let mut state = self.state();
        while state.has_writer && (state.is_busy || !state.orders.is_empty()) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.idle.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Carries orders out, each with the number of lines that were lost before it was taken, for as long as it
    /// returns true.
    pub(super) fn run(&self, mut carry_out: impl FnMut(Order, u64) -> bool) {
        loop {
            let (order, lost) = self.next();
            if !carry_out(order, lost) {
                return;
            }
        }
    }

    fn next(&self) -> (Order, u64) {
        let mut state = self.state();
        loop {
            if let Some(order) = state.orders.pop_front() {
                state.size -= order.size();
                state.is_busy = true;
                return (order, std::mem::take(&mut state.lost));
            }
            state.is_busy = false;
            self.idle.notify_all();
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    fn line(at: usize) -> Order {
        Order::Line("master".to_owned(), format!("{at:100}\n").into_bytes())
    }

    #[test]
    fn without_a_writer_nothing_is_taken() {
        let backlog = Backlog::new();
        assert!(matches!(backlog.push(line(0)), Err(Refused::NoWriter(Order::Line(..)))));
        backlog.flush(Duration::from_secs(60));
        assert!(backlog.enter() && !backlog.enter());
        backlog.leave();
        assert!(matches!(backlog.push(line(0)), Err(Refused::NoWriter(_))));
    }

    #[test]
    fn nobody_waits_for_a_writer_that_hangs() {
        const LINES: usize = 30_000;
        let backlog = Arc::new(Backlog::new());
        assert!(backlog.enter());
        let (release, released) = channel::<()>();
        let (told, hear) = channel();
        let writer = thread::spawn({
            let backlog = Arc::clone(&backlog);
            move || {
                // The disk hangs until it is released.
                let mut hangs = Some(released);
                backlog.run(|order, lost| {
                    if let Some(released) = hangs.take() {
                        released.recv().unwrap();
                    }
                    let Order::Line(_, line) = order else { return false };
                    told.send((line, lost)).is_ok()
                });
            }
        });
        let mut firsts = 0;
        let mut refused = 0;
        for at in 0..LINES {
            match backlog.push(line(at)) {
                Ok(()) => {}
                Err(Refused::NoRoom { is_first }) => {
                    refused += 1;
                    firsts += u64::from(is_first);
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        // Once while nothing is taken, twice if the first was taken meanwhile.
        assert!(refused > 0 && (1..=2).contains(&firsts), "{refused} {firsts}");
        backlog.flush(Duration::from_millis(10));
        assert!(hear.try_recv().is_err(), "it hangs");
        release.send(()).unwrap();
        backlog.flush(Duration::from_secs(60));
        let all: Vec<(Vec<u8>, u64)> = hear.try_iter().collect();
        let numbers: Vec<usize> = all
            .iter()
            .map(|(line, _)| str::from_utf8(line).unwrap().trim().parse().unwrap())
            .collect();
        assert!(numbers.is_sorted() && numbers[0] == 0);
        assert_eq!(numbers.len() as u64 + refused, LINES as u64);
        assert_eq!(all.iter().map(|(_, lost)| lost).sum::<u64>(), refused);
        let null = std::fs::File::open("/dev/null").unwrap();
        backlog.push(Order::Redirect(null.into())).unwrap();
        writer.join().unwrap();
    }
}
