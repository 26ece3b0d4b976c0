//! Lines for a file that many may come for, as a log of requests: a thread writes them, so that who has a line never
//! waits for the disk.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

/// The most bytes that are written at once.
const BATCH: usize = 256 << 10;

/// Writes lines in order, each whole or not at all, as far as the file takes them.
#[derive(Debug)]
pub struct LineWriter {
    orders: SyncSender<Order>,
    lost: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

#[derive(Debug)]
enum Order {
    /// With its end.
    Line(Vec<u8>),
    /// What follows goes there.
    Reopen(File),
}

impl LineWriter {
    /// Appends to the file. `capacity` lines may wait to be written.
    pub fn open(path: &Path, capacity: usize) -> io::Result<Self> {
        let file = super::open(path)?;
        let (orders, incoming) = sync_channel(capacity);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&lost);
        let write = move || write_all(file, &incoming, &counted);
        let thread = thread::Builder::new().name("lines".to_owned()).spawn(write)?;
        Ok(Self { orders, lost, thread })
    }

    /// Never waits: a line for which there is no room is lost, and counted.
    pub fn write(&self, line: Vec<u8>) {
        debug_assert_eq!(line.last(), Some(&b'\n'));
        if self.orders.try_send(Order::Line(line)).is_err() {
            self.lost.fetch_add(1, Relaxed);
        }
    }

    /// Later lines go to this file, as after the old one was moved away. Returns whether that was taken: while
    /// nothing is written, there may be no room for an order.
    pub fn reopen(&self, file: File) -> bool {
        self.orders.try_send(Order::Reopen(file)).is_ok()
    }

    /// How many lines were lost since this was asked last.
    pub fn take_lost(&self) -> u64 {
        self.lost.swap(0, Relaxed)
    }

    /// Waits until all lines are written. Dropping it does not.
    pub fn close(self) {
        drop(self.orders);
        // It has nothing to return.
        let _ = self.thread.join();
    }
}

fn write_all(mut file: File, incoming: &Receiver<Order>, lost: &AtomicU64) {
    let mut batch = Vec::new();
    while let Ok(first) = incoming.recv() {
        let mut lines = 0;
        let mut next = Some(first);
        let mut reopened = None;
        while let Some(order) = next {
            match order {
                Order::Line(line) => {
                    lines += 1;
                    batch.extend_from_slice(&line);
                }
                Order::Reopen(file) => reopened = Some(file),
            }
            next = match &reopened {
                None if batch.len() < BATCH => incoming.try_recv().ok(),
                _ => None,
            };
        }
        // Where it fails in the midst, some may be there all the same: nobody can tell which.
        if lines > 0 && file.write_all(&batch).is_err() {
            lost.fetch_add(lines, Relaxed);
        }
        batch.clear();
        if let Some(reopened) = reopened {
            file = reopened;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn lines_come_in_order_to_the_file_that_is_open_then() {
        let [first, second] = ["a", "b"].map(|name| {
            std::env::temp_dir().join(format!("cashew-lines-{name}-{}", std::process::id()))
        });
        let writer = LineWriter::open(&first, 4096).unwrap();
        (0..1000).for_each(|at| writer.write(format!("{at}\n").into_bytes()));
        assert!(writer.reopen(super::super::open(&second).unwrap()));
        writer.write(b"last\n".to_vec());
        assert_eq!(writer.take_lost(), 0);
        writer.close();
        let expected: String = (0..1000).map(|at| format!("{at}\n")).collect();
        assert_eq!(fs::read_to_string(&first).unwrap(), expected);
        assert_eq!(fs::read_to_string(&second).unwrap(), "last\n");
        fs::remove_file(first).unwrap();
        fs::remove_file(second).unwrap();
    }

    #[test]
    fn nobody_waits_for_a_file_that_takes_nothing() {
        let writer = LineWriter::open(Path::new("/dev/full"), 8).unwrap();
        (0..10_000).for_each(|_| writer.write(b"line\n".to_vec()));
        let lost = Arc::clone(&writer.lost);
        writer.close();
        assert_eq!(lost.load(Relaxed), 10_000);
    }
}
