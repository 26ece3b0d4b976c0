//! Segments: where they are, and how they are written and read.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};

use crate::record::{Found, Record};

/// What a segment begins with.
pub const MAGIC: &[u8; 8] = b"cshspl1\n";
/// From this size on the next one is begun.
pub(crate) const SEGMENT_MAX: u64 = 8 << 20;
const SUFFIX: &str = ".spool";
/// So far behind what is damaged the next record is looked for: beyond the longest one.
const SEARCH_MAX: usize = 128 * 1024;
/// Bytes that are read at once.
const READ_MAX: usize = 256 * 1024;

/// Where a server's segments are. Names may have any characters but those that are a path's.
pub(crate) fn directory(base: &Path, pool: &str, server: &str) -> PathBuf {
    base.join(encoded(pool)).join(encoded(server))
}

fn encoded(name: &str) -> OsString {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_:[]".contains(&byte);
    let mut out = Vec::new();
    for (at, &byte) in name.as_bytes().iter().enumerate() {
        match is_safe(byte) || byte == b'.' && at > 0 {
            true => out.push(byte),
            false => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
    OsString::from_vec(out)
}

/// A server's segments in their order. None if there is no directory.
pub(crate) fn list(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    let is_segment = |path: &PathBuf| path.as_os_str().as_bytes().ends_with(SUFFIX.as_bytes());
    let mut paths: Vec<PathBuf> = paths.filter(is_segment).collect();
    paths.sort();
    paths
}

/// One that is written.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) path: PathBuf,
    file: Arc<File>,
    pub(crate) size: u64,
    /// Something was written that may not be on disk.
    is_dirty: bool,
}

impl Segment {
    pub(crate) fn create(directory: &Path, at_ms: u64, number: u64) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let pid = std::process::id();
        let path = directory.join(format!("{at_ms:015}-{pid}-{number}{SUFFIX}"));
        let mut options = File::options();
        let file = options.append(true).create_new(true).mode(0o600).open(&path)?;
        let mut segment = Self { path, file: Arc::new(file), size: 0, is_dirty: true };
        let result = segment.append(MAGIC);
        if result.is_err() {
            let _ = fs::remove_file(&segment.path);
        }
        result.map(|_| segment)
    }

    /// Writes all of it, or nothing. `false` if the segment is no more.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<bool> {
        flock(&self.file, FlockOperation::LockExclusive)?;
        let result = self.append_locked(bytes);
        flock(&self.file, FlockOperation::Unlock)?;
        result
    }

    fn append_locked(&mut self, bytes: &[u8]) -> io::Result<bool> {
        if self.file.metadata()?.nlink() == 0 {
            return Ok(false);
        }
        if let Err(error) = (&*self.file).write_all(bytes) {
            self.file.set_len(self.size)?;
            return Err(error);
        }
        self.size += bytes.len() as u64;
        self.is_dirty = true;
        Ok(true)
    }

    /// The file, if something of it may not be on disk. Whoever takes it syncs it.
    pub(crate) fn take_unsynced(&mut self) -> Option<Arc<File>> {
        std::mem::take(&mut self.is_dirty).then(|| Arc::clone(&self.file))
    }
}

/// One that is read.
#[derive(Debug)]
pub(crate) struct Reader {
    file: File,
    /// Up to where records are counted.
    counted: u64,
    count: u64,
    /// Up to where they are taken.
    taken: u64,
    taken_count: u64,
    /// What is behind that is no record.
    is_torn: bool,
    /// Between records is something else.
    is_damaged: bool,
}

impl Reader {
    /// `None` if there is no start of a segment yet.
    pub(crate) fn open(path: &Path) -> io::Result<Option<Self>> {
        let mut file = File::open(path)?;
        let mut start = [0; MAGIC.len()];
        let mut len = 0;
        while len < start.len() {
            match file.read(&mut start[len..])? {
                0 => return Ok(None),
                read => len += read,
            }
        }
        if start != *MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no segment"));
        }
        let at = start.len() as u64;
        Ok(Some(Self {
            file,
            counted: at,
            count: 0,
            taken: at,
            taken_count: 0,
            is_torn: false,
            is_damaged: false,
        }))
    }

    /// Counts what was written since. Returns how many records are not taken.
    pub(crate) fn count(&mut self) -> io::Result<u64> {
        loop {
            let (records, end) = self.records(self.counted, usize::MAX)?;
            if records.is_empty() {
                return Ok(self.count - self.taken_count);
            }
            self.count += records.len() as u64;
            self.counted = end;
        }
    }

    /// The next records, so many at most; they are taken when [`take`](Self::take) says so.
    pub(crate) fn next(&mut self, max: usize) -> io::Result<(Vec<Record>, u64)> {
        self.records(self.taken, max)
    }

    pub(crate) fn take(&mut self, count: u64, end: u64) {
        self.taken = end;
        self.taken_count += count;
        if self.counted < end {
            (self.counted, self.count) = (end, self.taken_count);
        }
    }

    fn records(&mut self, from: u64, max: usize) -> io::Result<(Vec<Record>, u64)> {
        let mut bytes = vec![0; READ_MAX];
        self.file.seek(SeekFrom::Start(from))?;
        let len = self.file.read(&mut bytes)?;
        let is_end = from + len as u64 >= self.file.metadata()?.len();
        let (mut records, mut at) = (Vec::new(), 0);
        while records.len() < max {
            match Record::read(&bytes[at..len]) {
                Found::Record(record, size) => {
                    records.push(record);
                    at += size;
                }
                Found::Partial if !is_end => break,
                found => match next_record(&bytes[at..len]) {
                    Some(skipped) => {
                        self.is_damaged = true;
                        at += skipped;
                    }
                    None => {
                        self.is_torn |= found == Found::Torn && at < len;
                        break;
                    }
                },
            }
        }
        Ok((records, from + at as u64))
    }

    /// Whether some of it can no longer be read.
    pub(crate) fn has_lost(&self) -> bool {
        self.is_torn || self.is_damaged
    }

    /// Removes the segment if all of its records are taken, unless its writer is about to write. `false` if it
    /// stays.
    pub(crate) fn remove(&self, path: &Path) -> io::Result<bool> {
        if flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(false);
        }
        // What is torn nobody goes on with: a writer that lives takes it back while it has the lock.
        let is_done = self.is_torn || self.file.metadata()?.len() <= self.taken || self.is_left();
        if is_done {
            fs::remove_file(path)?;
        }
        flock(&self.file, FlockOperation::Unlock)?;
        Ok(is_done)
    }

    /// Behind the records is the start of one, which nobody finishes as nobody has the lock.
    fn is_left(&self) -> bool {
        let Ok(mut file) = self.file.try_clone() else { return false };
        let mut bytes = vec![0; READ_MAX];
        let is_read = file.seek(SeekFrom::Start(self.taken)).and_then(|_| file.read(&mut bytes));
        is_read.is_ok_and(|len| !matches!(Record::read(&bytes[..len]), Found::Record(..)))
    }
}

/// How far away the next whole record is.
fn next_record(bytes: &[u8]) -> Option<usize> {
    let is_record = |at: &usize| matches!(Record::read(&bytes[*at..]), Found::Record(..));
    (1..bytes.len().min(SEARCH_MAX)).find(is_record)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("cashew-spool-{name}-{}", std::process::id()))
    }

    fn record(number: u32) -> Record {
        Record { at_ms: 5, database: 0, key: format!("key{number}").into_bytes() }
    }

    fn text(numbers: std::ops::Range<u32>) -> Vec<u8> {
        let mut out = Vec::new();
        numbers.for_each(|number| record(number).write(&mut out));
        out
    }

    #[test]
    fn what_was_written_is_read_counted_taken_and_removed() {
        let place = place("taken");
        let mut segment = Segment::create(&place, 7, 0).unwrap();
        let paths = list(&place);
        assert_eq!(paths, [segment.path.clone()]);
        let mut reader = Reader::open(&segment.path).unwrap().unwrap();
        assert_eq!(reader.count().unwrap(), 0);
        assert!(segment.append(&text(0..3)).unwrap());
        assert_eq!(reader.count().unwrap(), 3);
        let (records, end) = reader.next(2).unwrap();
        assert_eq!(records, [record(0), record(1)]);
        assert!(!reader.remove(&segment.path).unwrap(), "not all are taken");
        reader.take(2, end);
        assert_eq!(reader.count().unwrap(), 1);
        assert!(segment.append(&text(3..4)).unwrap());
        let (records, end) = reader.next(100).unwrap();
        assert_eq!(records, [record(2), record(3)]);
        reader.take(2, end);
        assert!(reader.remove(&segment.path).unwrap());
        assert!(!segment.append(&text(4..5)).unwrap(), "it is gone: the writer begins another");
        assert_eq!(list(&place), Vec::<PathBuf>::new());
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn what_is_torn_at_the_end_is_not_taken_and_goes_with_the_rest() {
        let place = place("torn");
        let mut segment = Segment::create(&place, 7, 0).unwrap();
        let whole = text(0..2);
        for cut in [1, 9, text(0..1).len() - 1] {
            segment.file.set_len(0).unwrap();
            segment.size = 0;
            segment.append(&[&MAGIC[..], &whole[..text(0..1).len() + cut]].concat()).unwrap();
            let mut reader = Reader::open(&segment.path).unwrap().unwrap();
            let (records, end) = reader.next(100).unwrap();
            assert_eq!(records, [record(0)]);
            reader.take(1, end);
            assert_eq!(reader.next(100).unwrap().0, []);
        }
        let mut reader = Reader::open(&segment.path).unwrap().unwrap();
        let (records, end) = reader.next(100).unwrap();
        reader.take(records.len() as u64, end);
        assert!(reader.remove(&segment.path).unwrap());
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn what_is_behind_damage_is_read() {
        let place = place("damaged");
        let whole = text(0..9);
        let size = text(0..1).len();
        for at in 0..whole.len() {
            let mut segment = Segment::create(&place, 7, at as u64).unwrap();
            let mut bytes = whole.clone();
            bytes[at] ^= 0x40;
            segment.append(&bytes).unwrap();
            let mut reader = Reader::open(&segment.path).unwrap().unwrap();
            let (records, end) = reader.next(100).unwrap();
            let lost = at / size;
            let expected: Vec<Record> =
                (0..9).filter(|&it| it as usize != lost).map(record).collect();
            assert_eq!(records, expected, "{at}");
            reader.take(8, end);
            assert!(reader.has_lost() || lost == 8);
            assert!(reader.remove(&segment.path).unwrap());
        }
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn names_cannot_leave_their_directory() {
        let base = Path::new("/base");
        assert_eq!(directory(base, "a", "10.0.0.1:6379"), Path::new("/base/a/10.0.0.1:6379"));
        assert_eq!(directory(base, "..", "/x/../y"), Path::new("/base/%2E./%2Fx%2F..%2Fy"));
        assert_eq!(directory(base, "ä", "."), Path::new("/base/%C3%A4/%2E"));
    }
}
