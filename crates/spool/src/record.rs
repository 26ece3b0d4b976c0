//! One key that a server is to forget, as it is on disk.

use cashew_placement::Hash;

/// Longest key that is kept.
pub(crate) const KEY_MAX: usize = 64 * 1024;
/// Length and checksum.
pub(crate) const HEADER: usize = 8;
/// Time and database.
const FIXED: usize = 12;

/// One key that a server is to forget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// Of Redis.
    pub database: u32,
    pub key: Vec<u8>,
}

/// What is at a place of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A record, and how many bytes it takes.
    Record(Record, usize),
    /// The start of one, perhaps.
    Partial,
    /// Nothing that a writer has finished.
    Torn,
}

impl Record {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER]);
        out.extend_from_slice(&self.at_ms.to_le_bytes());
        out.extend_from_slice(&self.database.to_le_bytes());
        out.extend_from_slice(&self.key);
        let body = &out[start + HEADER..];
        let (len, sum) = (body.len() as u32, Hash::Crc32a.hash(body));
        out[start..start + 4].copy_from_slice(&len.to_le_bytes());
        out[start + 4..start + HEADER].copy_from_slice(&sum.to_le_bytes());
    }

    pub(crate) fn read(bytes: &[u8]) -> Found {
        let Some((header, rest)) = bytes.split_at_checked(HEADER) else { return Found::Partial };
        let len = u32_of(&header[..4]) as usize;
        if !(FIXED..=FIXED + KEY_MAX).contains(&len) {
            return Found::Torn;
        }
        let Some(body) = rest.get(..len) else { return Found::Partial };
        if Hash::Crc32a.hash(body) != u32_of(&header[4..]) {
            return Found::Torn;
        }
        let mut at_ms = [0; 8];
        at_ms.copy_from_slice(&body[..8]);
        let at_ms = u64::from_le_bytes(at_ms);
        let record = Self { at_ms, database: u32_of(&body[8..12]), key: body[FIXED..].to_vec() };
        Found::Record(record, HEADER + len)
    }
}

/// For tests of what comes from outside: reads bytes as the records of a segment. A record is written as it was read.
#[doc(hidden)]
pub fn read_records(mut bytes: &[u8]) {
    while let Found::Record(record, size) = Record::read(bytes) {
        let mut written = Vec::new();
        record.write(&mut written);
        assert_eq!(written, &bytes[..size]);
        bytes = &bytes[size..];
    }
}

fn u32_of(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u32::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &[u8]) -> Record {
        Record { at_ms: 1_700_000_000_123, database: 3, key: key.to_vec() }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for key in [&b""[..], b"a", b"\0\r\n \xff", &[7; KEY_MAX]] {
            let mut bytes = Vec::new();
            record(key).write(&mut bytes);
            let len = bytes.len();
            bytes.extend_from_slice(b"more");
            assert_eq!(Record::read(&bytes), Found::Record(record(key), len));
            for cut in [0, 1, HEADER - 1, HEADER, len - 1] {
                assert_eq!(Record::read(&bytes[..cut]), Found::Partial, "{cut}");
            }
        }
    }

    #[test]
    fn what_is_torn_is_no_record() {
        let mut bytes = Vec::new();
        record(b"key").write(&mut bytes);
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert!(!matches!(Record::read(&other), Found::Record(..)), "{at}");
        }
        assert_eq!(Record::read(&[0; 64]), Found::Torn, "a hole");
    }
}
