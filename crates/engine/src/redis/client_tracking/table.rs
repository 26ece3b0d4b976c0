//! Which clients have read which keys.

use std::collections::BTreeMap;

use crate::base::id::{BackendId, ConnId};
use crate::base::rng::Rng;

/// What an entry takes beside the key and its clients, about.
const ENTRY_SIZE: usize = 96;

/// A key of a backend. Of each they are in the order of hashes, so that what makes room is any of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Known {
    backend: BackendId,
    hash: u64,
    key: Box<[u8]>,
}

impl Known {
    fn of(backend: BackendId, key: &[u8]) -> Self {
        // FNV, and mixed, as its upper bits hardly know of the last bytes.
        let hash = key.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self {
            backend,
            hash: (hash ^ hash >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            key: key.into(),
        }
    }
}

#[derive(Default)]
pub(crate) struct Table {
    /// By key: the clients, in order.
    readers: BTreeMap<Known, Vec<ConnId>>,
    /// How many keys of each backend there are.
    counts: BTreeMap<BackendId, usize>,
    /// Bytes allocated, about.
    size: usize,
}

impl Table {
    /// How many keys of a backend there are.
    pub(crate) fn keys_of(&self, backend: BackendId) -> usize {
        self.counts.get(&backend).copied().unwrap_or_default()
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The client has read the key, or is about to. `is_there` is whether another one wants to hear of it still: those
    /// that do not make room before others take more.
    pub(crate) fn add(
        &mut self,
        backend: BackendId,
        key: &[u8],
        client: ConnId,
        is_there: impl Fn(ConnId) -> bool,
    ) {
        let known = Known::of(backend, key);
        let readers = self.readers.entry(known).or_insert_with(|| {
            self.size += ENTRY_SIZE + key.len();
            *self.counts.entry(backend).or_default() += 1;
            Vec::new()
        });
        let place =
            |readers: &[ConnId]| readers.binary_search_by_key(&client.token(), |it| it.token());
        if let Err(mut at) = place(readers) {
            let before = readers.capacity();
            if readers.len() == before && before > 0 {
                readers.retain(|&reader| is_there(reader));
                // So that the next one who comes need not look at all of them again.
                if readers.len() > before / 4 * 3 {
                    readers.reserve(before);
                }
                at = place(readers).unwrap_or_else(|at| at);
            }
            readers.insert(at, client);
            self.size += (readers.capacity() - before) * size_of::<ConnId>();
        }
    }

    /// Who has read the key. It is forgotten.
    pub(crate) fn take(&mut self, backend: BackendId, key: &[u8]) -> Vec<ConnId> {
        let known = Known::of(backend, key);
        let readers = self.readers.remove(&known);
        let Some(readers) = readers else { return Vec::new() };
        self.forget(backend, key.len(), &readers);
        readers
    }

    /// Makes room: any key of a backend, and who has read it.
    pub(crate) fn take_any(
        &mut self,
        backend: BackendId,
        rng: &mut Rng,
    ) -> Option<(Box<[u8]>, Vec<ConnId>)> {
        let first = |hash| Known { backend, hash, key: Box::default() };
        let behind = |from: Known| self.readers.range(from..).next();
        let is_its = |(known, _): &(&Known, &Vec<ConnId>)| known.backend == backend;
        let found = behind(first(rng.next())).filter(is_its);
        let found = found.or_else(|| behind(first(0)).filter(is_its));
        let known = found.map(|(known, _)| known.clone())?;
        let readers = self.readers.remove(&known)?;
        self.forget(backend, known.key.len(), &readers);
        Some((known.key, readers))
    }

    /// Forgets all keys of a backend.
    pub(crate) fn clear(&mut self, backend: BackendId) {
        let mut freed = 0;
        self.readers.retain(|known, readers| {
            let stays = known.backend != backend;
            if !stays {
                freed += ENTRY_SIZE + known.key.len() + readers.capacity() * size_of::<ConnId>();
            }
            stays
        });
        self.counts.remove(&backend);
        self.size -= freed;
    }

    /// Forgets who has read what, but for those of whom `stays` says so.
    pub(crate) fn forget_readers(&mut self, stays: impl Fn(ConnId) -> bool) {
        let mut size = 0;
        self.counts.clear();
        self.readers.retain(|known, readers| {
            readers.retain(|&reader| stays(reader));
            readers.shrink_to_fit();
            if !readers.is_empty() {
                *self.counts.entry(known.backend).or_default() += 1;
                size += ENTRY_SIZE + known.key.len() + readers.capacity() * size_of::<ConnId>();
            }
            !readers.is_empty()
        });
        self.size = size;
    }

    pub(crate) fn clear_all(&mut self) {
        self.readers.clear();
        self.counts.clear();
        self.size = 0;
    }

    fn forget(&mut self, backend: BackendId, key_len: usize, readers: &Vec<ConnId>) {
        if let Some(count) = self.counts.get_mut(&backend) {
            *count -= 1;
        }
        self.size -= ENTRY_SIZE + key_len + readers.capacity() * size_of::<ConnId>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::id::ClientId;

    fn client(number: u32) -> ConnId {
        ConnId::of_client(ClientId::new(number), 1)
    }

    #[test]
    fn each_is_named_once_and_what_is_taken_is_forgotten() {
        let (mut table, [a, b]) = (Table::default(), [BackendId::new(0), BackendId::new(1)]);
        for number in [3, 1, 2, 1, 3] {
            table.add(a, b"k", client(number), |_| true);
        }
        table.add(b, b"k", client(4), |_| true);
        assert_eq!([a, b].map(|it| table.keys_of(it)), [1, 1]);
        assert_eq!(table.take(a, b"k"), [1, 2, 3].map(client));
        assert_eq!(table.take(a, b"k"), []);
        table.clear(a);
        assert_eq!(table.take(b, b"k"), [client(4)]);
        assert_eq!((table.keys_of(a), table.keys_of(b), table.size()), (0, 0, 0));
    }

    #[test]
    fn who_does_not_want_to_hear_of_it_takes_no_room() {
        let (mut table, backend) = (Table::default(), BackendId::new(0));
        // The first stay, of all others only the newest does.
        for number in 0..10_000 {
            let is_there = |it: ConnId| it.client().number() < 5;
            table.add(backend, b"k", client(number), is_there);
        }
        assert!(table.size() < 512, "{}", table.size());
        let readers = table.take(backend, b"k");
        assert!((0..5).all(|number| readers.contains(&client(number))));
        assert_eq!(table.size(), 0);
        let looks = std::cell::Cell::new(0);
        for number in 0..10_000 {
            let is_there = |it: ConnId| {
                looks.set(looks.get() + 1);
                !it.client().number().is_multiple_of(10)
            };
            table.add(backend, b"k", client(number), is_there);
        }
        assert!(looks.get() < 100_000, "{}", looks.get());
    }

    #[test]
    fn room_is_made_among_the_keys_of_one_backend() {
        let (mut table, mut rng) = (Table::default(), Rng::new(7));
        let [a, b, c] = [1, 2, 3].map(BackendId::new);
        for number in 0..100u32 {
            table.add(a, &number.to_le_bytes(), client(1), |_| true);
            table.add(c, &number.to_le_bytes(), client(3), |_| true);
        }
        assert!(table.take_any(b, &mut rng).is_none());
        table.add(b, b"k", client(2), |_| true);
        assert_eq!(table.take_any(b, &mut rng), Some(((*b"k").into(), vec![client(2)])));
        assert_eq!([a, b, c].map(|it| table.keys_of(it)), [100, 0, 100]);
    }

    #[test]
    fn any_key_makes_room_until_there_is_none() {
        let (mut table, backend) = (Table::default(), BackendId::new(0));
        let mut rng = Rng::new(7);
        for number in 0..100u32 {
            table.add(backend, &number.to_le_bytes(), client(number), |_| true);
        }
        for _ in 0..100 {
            let (key, readers) = table.take_any(backend, &mut rng).expect("there are some");
            let number = u32::from_le_bytes((*key).try_into().expect("it is a number"));
            assert_eq!(readers, [client(number)]);
        }
        assert!(table.take_any(backend, &mut rng).is_none());
        assert_eq!(table.size(), 0);
        for number in 1..3 {
            table.add(backend, b"k", client(number), |_| true);
            table.add(backend, &[number as u8], client(number), |_| true);
        }
        table.forget_readers(|it| it == client(2));
        assert_eq!(table.keys_of(backend), 2);
        assert_eq!(table.take(backend, b"k"), [client(2)]);
        table.clear(backend);
        assert_eq!(table.size(), 0);
    }
}
