//! Keys that a transaction is to write in one region only, and that the others have to forget.

use std::collections::BTreeSet;

/// Of one transaction, about: whoever writes more has the transaction refused.
const KEYS_MAX: usize = 10_000;
const SIZE_MAX: usize = 4 << 20;

/// What an entry of the set takes besides the key.
const ENTRY_SIZE: usize = 48;

/// Each once, with the database that the transaction has selected before, if it has selected one.
#[derive(Debug, Default)]
pub(crate) struct WrittenKeys {
    keys: BTreeSet<(Option<u32>, Box<[u8]>)>,
    size: usize,
}

impl WrittenKeys {
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.keys.len() >= KEYS_MAX || self.size >= SIZE_MAX
    }

    /// Bytes allocated, about.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn add(&mut self, database: Option<u32>, key: &[u8]) {
        if self.keys.insert((database, key.into())) {
            self.size += key.len() + ENTRY_SIZE;
        }
    }

    pub(crate) fn into_keys(self) -> impl Iterator<Item = (Option<u32>, Box<[u8]>)> {
        self.keys.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_counts_once_in_each_database_until_it_is_too_much() {
        let mut keys = WrittenKeys::default();
        assert!(keys.is_empty());
        for (database, key) in [(None, b"a"), (None, b"a"), (Some(1), b"a"), (None, b"b")] {
            keys.add(database, key);
        }
        assert_eq!((keys.keys.len(), keys.size()), (3, 3 + 3 * ENTRY_SIZE));
        assert!(!keys.is_full());
        keys.add(None, &vec![0; SIZE_MAX]);
        assert!(keys.is_full());
    }
}
