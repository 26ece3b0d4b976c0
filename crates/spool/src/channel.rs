//! The way from a worker to its writer.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::record::{KEY_MAX, Record};
use crate::write::now_ms;

/// Records that may wait to be written.
pub const QUEUE_MAX: usize = 1 << 16;
/// Bytes of them.
const QUEUE_SIZE_MAX: u64 = 64 << 20;

/// Where a pool's records are kept.
#[derive(Debug)]
pub struct Place {
    pub directory: PathBuf,
    pub pool: String,
    /// Bytes that all workers may keep there.
    pub max: u64,
    /// It has as many, or cannot be written to.
    pub(crate) is_full: AtomicBool,
}

/// What is on its way to the writer.
#[derive(Debug)]
pub(crate) enum Letter {
    /// A place that will be written to.
    Place(Arc<Place>),
    Record(Queued),
}

/// A record on its way.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) place: Arc<Place>,
    pub(crate) server: String,
    pub(crate) record: Record,
}

/// The worker's end.
#[derive(Debug)]
pub struct Queue {
    sender: SyncSender<Letter>,
    unwritten: Arc<AtomicU64>,
    size: Arc<AtomicU64>,
}

/// The writer's end.
#[derive(Debug)]
pub struct Incoming {
    pub(crate) receiver: Receiver<Letter>,
    unwritten: Arc<AtomicU64>,
    size: Arc<AtomicU64>,
}

/// Both ends.
pub fn channel(max: usize) -> (Queue, Incoming) {
    let (sender, receiver) = sync_channel(max);
    let (unwritten, size) = (Arc::default(), Arc::default());
    let queue = Queue { sender, unwritten: Arc::clone(&unwritten), size: Arc::clone(&size) };
    (queue, Incoming { receiver, unwritten, size })
}

impl Place {
    pub fn new(directory: PathBuf, pool: String, max: u64) -> Self {
        Self { directory, pool, max, is_full: AtomicBool::new(false) }
    }
}

impl Queue {
    /// Has it tried whether a place can be written to. It takes nothing while it cannot.
    pub fn announce(&self, place: &Arc<Place>) {
        // With so many records waiting it is too late anyway.
        let _ = self.sender.try_send(Letter::Place(Arc::clone(place)));
    }

    /// Takes on that a server is to forget a key of a database. `false` if there is no room for it, in memory
    /// or on disk, or if the key is too long.
    pub fn put(&self, place: &Arc<Place>, server: &str, database: u32, key: &[u8]) -> bool {
        let len = key.len() as u64;
        if key.len() > KEY_MAX
            || place.is_full.load(Ordering::Relaxed)
            || self.size.load(Ordering::Relaxed) + len > QUEUE_SIZE_MAX
        {
            return false;
        }
        // Before it can be written.
        self.unwritten.fetch_add(1, Ordering::Relaxed);
        self.size.fetch_add(len, Ordering::Relaxed);
        let record = Record { at_ms: now_ms(), database, key: key.to_vec() };
        let queued = Queued { place: Arc::clone(place), server: server.to_owned(), record };
        let is_taken = self.sender.try_send(Letter::Record(queued)).is_ok();
        if !is_taken {
            self.unwritten.fetch_sub(1, Ordering::Relaxed);
            self.size.fetch_sub(len, Ordering::Relaxed);
        }
        is_taken
    }

    /// Whether all records are in files.
    pub fn is_written(&self) -> bool {
        self.unwritten.load(Ordering::Acquire) == 0
    }
}

impl Incoming {
    pub(crate) fn written(&self, records: &[Queued]) {
        let size = records.iter().map(|it| it.record.key.len() as u64).sum();
        self.size.fetch_sub(size, Ordering::Relaxed);
        self.unwritten.fetch_sub(records.len() as u64, Ordering::Release);
    }
}
