//! The writer: one thread of each worker.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cashew_metrics::EventKind;
use tracing::{error, info};

use crate::channel::{Incoming, Letter, Place, Queued};
use crate::segment::{self, SEGMENT_MAX, Segment};

/// How long a record is in the page cache alone at most: so much of what was written last a machine that loses
/// its power loses.
const SYNC_INTERVAL: Duration = Duration::from_millis(100);
/// A write that failed is tried again after so long.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// Records that are written at once.
const BATCH_MAX: usize = 4096;
/// The log is told of a disk that is full so seldom at most.
const TELL_AGAIN: Duration = Duration::from_secs(10);

/// Writes what comes until nobody sends any more. Of a place's limit one part in so many is this worker's.
pub fn write(incoming: Incoming, workers: u32) {
    // Syncing takes long on some disks. What comes meanwhile is to be written all the same.
    let (to_sync, unsynced) = channel();
    let syncer = std::thread::Builder::new().name("spool-sync".to_owned());
    let syncer = match syncer.spawn(move || sync_all(&unsynced)) {
        Ok(syncer) => syncer,
        Err(failure) => return error!("the spool takes no keys: {failure}"),
    };
    let mut writer = Writer::new(workers, to_sync);
    loop {
        let first = match (writer.dirty_since, writer.unfit.is_empty()) {
            (None, true) => incoming.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            (None, false) => incoming.receiver.recv_timeout(RETRY_AFTER),
            (Some(since), _) => {
                let wait = SYNC_INTERVAL.saturating_sub(since.elapsed());
                incoming.receiver.recv_timeout(wait)
            }
        };
        writer.retry();
        match first {
            Ok(first) => {
                let rest = incoming.receiver.try_iter().take(BATCH_MAX - 1);
                let mut batch = Vec::new();
                for letter in std::iter::once(first).chain(rest) {
                    match letter {
                        Letter::Place(place) => writer.prepare(place),
                        Letter::Record(record) => batch.push(record),
                    }
                }
                writer.write_all(&batch);
                incoming.written(&batch);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if writer.dirty_since.is_some_and(|since| since.elapsed() >= SYNC_INTERVAL) {
            writer.sync();
        }
    }
    writer.sync();
    drop(writer);
    // It has only to finish what it has begun.
    let _ = syncer.join();
}

/// Syncs files, each once of those that have come meanwhile, until none comes any more.
fn sync_all(unsynced: &Receiver<Arc<File>>) {
    while let Ok(first) = unsynced.recv() {
        let mut files = vec![first];
        for file in unsynced.try_iter() {
            if !files.iter().any(|known| Arc::ptr_eq(known, &file)) {
                files.push(file);
            }
        }
        for file in files {
            if let Err(failure) = file.sync_data() {
                error!("cannot sync what servers are to forget: {failure}");
            }
        }
    }
}

struct Writer {
    /// By the directory of the server: what is written to.
    open: HashMap<PathBuf, Segment>,
    /// By the directory of the pool: what was written and may be there still.
    closed: HashMap<PathBuf, Vec<(PathBuf, u64)>>,
    /// Where nothing could be written, or there was no room, when that was tried last.
    unfit: Vec<Arc<Place>>,
    tried_at: Instant,
    number: u64,
    workers: u64,
    dirty_since: Option<Instant>,
    told_at: Option<Instant>,
    to_sync: Sender<Arc<File>>,
}

impl Writer {
    fn new(workers: u32, to_sync: Sender<Arc<File>>) -> Self {
        Self {
            open: HashMap::new(),
            closed: HashMap::new(),
            unfit: Vec::new(),
            tried_at: Instant::now(),
            number: 0,
            workers: workers.max(1).into(),
            dirty_since: None,
            told_at: None,
            to_sync,
        }
    }

    /// Tries whether a place can be written to.
    fn prepare(&mut self, place: Arc<Place>) {
        let result = Segment::create(&place.directory, now_ms(), 0)
            .and_then(|segment| std::fs::remove_file(segment.path));
        match result {
            Ok(()) => {
                let is_full = self.size_of(&place) >= place.max / self.workers;
                place.is_full.store(is_full, Ordering::Relaxed);
                match is_full {
                    true => self.is_full(place),
                    false => self.tell_of_end(&place),
                }
            }
            Err(failure) => {
                place.is_full.store(true, Ordering::Relaxed);
                self.tell(&place.pool, &place.directory, &failure);
                if !self.unfit.iter().any(|known| Arc::ptr_eq(known, &place)) {
                    self.unfit.push(place);
                }
            }
        }
    }

    fn retry(&mut self) {
        if !self.unfit.is_empty() && self.tried_at.elapsed() >= RETRY_AFTER {
            self.tried_at = Instant::now();
            std::mem::take(&mut self.unfit).into_iter().for_each(|place| self.prepare(place));
        }
    }

    /// Writes a batch, and goes on trying until it is written: its clients have been answered.
    fn write_all(&mut self, batch: &[Queued]) {
        let mut texts: HashMap<PathBuf, (Vec<u8>, Arc<Place>)> = HashMap::new();
        for Queued { place, server, record } in batch {
            let directory = segment::directory(&place.directory, &place.pool, server);
            let (text, _) =
                texts.entry(directory).or_insert_with(|| (Vec::new(), Arc::clone(place)));
            record.write(text);
        }
        for (directory, (text, place)) in texts {
            while let Err(failure) = self.append(&directory, &text, &place) {
                place.is_full.store(true, Ordering::Relaxed);
                self.tell(&place.pool, &directory, &failure);
                std::thread::sleep(RETRY_AFTER);
            }
            let is_full = self.size_of(&place) >= place.max / self.workers;
            place.is_full.store(is_full, Ordering::Relaxed);
            if is_full {
                self.is_full(place);
            } else {
                self.tell_of_end(&place);
            }
        }
        self.dirty_since.get_or_insert_with(Instant::now);
    }

    fn append(&mut self, directory: &PathBuf, text: &[u8], place: &Place) -> io::Result<()> {
        loop {
            let segment = match self.open.entry(directory.clone()) {
                std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::hash_map::Entry::Vacant(entry) => {
                    self.number += 1;
                    entry.insert(Segment::create(directory, now_ms(), self.number)?)
                }
            };
            let is_there = segment.append(text)?;
            if is_there && segment.size < SEGMENT_MAX {
                return Ok(());
            }
            if let Some(mut segment) = self.open.remove(directory).filter(|_| is_there) {
                if let Some(file) = segment.take_unsynced() {
                    let _ = self.to_sync.send(file);
                }
                let pool = place.directory.join(&place.pool);
                self.closed.entry(pool).or_default().push((segment.path, segment.size));
                return Ok(());
            }
        }
    }

    /// What this worker has in a pool's directory.
    fn size_of(&mut self, place: &Place) -> u64 {
        let pool = place.directory.join(&place.pool);
        let closed = self.closed.entry(pool).or_default();
        let written: u64 = closed.iter().map(|(_, size)| size).sum();
        let base = segment::directory(&place.directory, &place.pool, "");
        let open = self.open.iter().filter(|(directory, _)| directory.starts_with(&base));
        let open: u64 = open.map(|(_, segment)| segment.size).sum();
        if written + open >= place.max / self.workers {
            // Some may be gone: servers have been told what is in them.
            closed.retain(|(path, _)| path.exists());
            let written: u64 = closed.iter().map(|(_, size)| size).sum();
            self.open.retain(|_, segment| segment.path.exists());
            return written + open;
        }
        written + open
    }

    fn sync(&mut self) {
        self.dirty_since = None;
        for file in self.open.values_mut().filter_map(Segment::take_unsynced) {
            // It ends after this.
            let _ = self.to_sync.send(file);
        }
        self.open.retain(|_, segment| segment.path.exists());
    }

    /// It is looked now and then whether there is room again: its servers have been told.
    fn is_full(&mut self, place: Arc<Place>) {
        let why = io::Error::other("it has as much as \"max\" allows");
        self.tell(&place.pool, &place.directory, &why);
        if !self.unfit.iter().any(|known| Arc::ptr_eq(known, &place)) {
            self.unfit.push(place);
        }
    }

    fn tell_of_end(&mut self, place: &Place) {
        if self.told_at.take_if(|at| at.elapsed() >= TELL_AGAIN).is_some() {
            info!(
                kind = EventKind::SpoolWrites.name(),
                pool = place.pool,
                "the spool in {} takes keys again",
                place.directory.display()
            );
        }
    }

    fn tell(&mut self, pool: &str, directory: &std::path::Path, failure: &io::Error) {
        if self.told_at.is_none_or(|at| at.elapsed() >= TELL_AGAIN) {
            self.told_at = Some(Instant::now());
            error!(
                kind = EventKind::SpoolFull.name(),
                pool,
                "the spool in {} takes no keys, and clients get errors instead: {failure}",
                directory.display()
            );
        }
    }
}

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::channel;
    use crate::segment::{Reader, list};

    #[test]
    fn what_is_put_is_in_files_by_server_in_its_order() {
        let base = std::env::temp_dir().join(format!("cashew-spool-write-{}", std::process::id()));
        let place = Arc::new(Place::new(base.clone(), "pool".to_owned(), 1 << 30));
        let (queue, incoming) = channel(1000);
        queue.announce(&place);
        let writer = std::thread::spawn(move || write(incoming, 1));
        let key = |number: u32| format!("key{number}").into_bytes();
        for number in 0..200 {
            let server = if number % 2 == 0 { "even" } else { "odd" };
            assert!(queue.put(&place, server, 3, &key(number)));
        }
        drop(queue);
        writer.join().unwrap();
        for (server, first) in [("even", 0), ("odd", 1)] {
            let paths = list(&segment::directory(&base, "pool", server));
            assert_eq!(paths.len(), 1);
            let mut reader = Reader::open(&paths[0]).unwrap().unwrap();
            let (records, _) = reader.next(1000).unwrap();
            assert!(records.iter().all(|record| record.database == 3 && record.at_ms > 0));
            let expected: Vec<Vec<u8>> = (first..200).step_by(2).map(key).collect();
            assert_eq!(records.into_iter().map(|it| it.key).collect::<Vec<_>>(), expected);
        }
        std::fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn a_place_that_cannot_be_written_to_takes_nothing() {
        let base = std::env::temp_dir().join(format!("cashew-spool-none-{}", std::process::id()));
        std::fs::write(&base, "a file in its place").unwrap();
        let place = Arc::new(Place::new(base.clone(), "pool".to_owned(), 1000));
        let (queue, incoming) = channel(10);
        queue.announce(&place);
        let writer = std::thread::spawn(move || write(incoming, 1));
        let is_full = || place.is_full.load(Ordering::Relaxed);
        while !is_full() {
            std::thread::yield_now();
        }
        assert!(!queue.put(&place, "s", 0, b"k"));
        std::fs::remove_file(&base).unwrap();
        while is_full() {
            std::thread::yield_now();
        }
        assert!(queue.put(&place, "s", 0, b"k"));
        drop(queue);
        writer.join().unwrap();
        std::fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn what_finds_no_room_is_refused() {
        let base = std::env::temp_dir().join(format!("cashew-spool-full-{}", std::process::id()));
        let place = Arc::new(Place::new(base.clone(), "pool".to_owned(), 1000));
        let (queue, incoming) = channel(10);
        let put = || queue.put(&place, "s", 0, &[b'k'; 100]);
        for _ in 0..10 {
            assert!(put());
        }
        assert!(!put(), "nobody writes");
        assert!(!queue.is_written());
        let writer = std::thread::spawn(move || write(incoming, 1));
        while !queue.is_written() {
            std::thread::yield_now();
        }
        assert!(!put(), "it has as much as it may");
        std::fs::remove_dir_all(segment::directory(&base, "pool", "s")).unwrap();
        while place.is_full.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        assert!(put(), "the server was told");
        drop(queue);
        writer.join().unwrap();
        std::fs::remove_dir_all(base).unwrap();
    }
}
