//! The few numbers that all workers write: they outlive configurations and binaries.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};

use crate::mapping::Mapping;

/// Numbers of quotas are below this.
pub const QUOTAS_MAX: u32 = 4096;

/// Raised whenever a number changes its place or its sense.
const VERSION: u64 = 1;
const MAGIC: u64 = u64::from_le_bytes(*b"csh-all\0") | VERSION << 56;

mod word {
    pub(super) const MAGIC: usize = 0;
    pub(super) const CLIENT_ID: usize = 16;
    /// Apart from the rest, since it is written at every accept.
    pub(super) const QUOTAS: usize = 32;
    pub(super) const COUNT: usize = QUOTAS + super::QUOTAS_MAX as usize;
}

/// What all processes of an instance share for its whole life: the next client id, and how many
/// clients each pool has over all workers. A quota is a pool's number for that, and is below
/// [`QUOTAS_MAX`].
#[derive(Clone)]
pub struct Shared {
    mapping: Arc<Mapping>,
}

impl Shared {
    /// Makes it, for other processes to [open](Self::open) by the descriptor.
    pub fn create() -> io::Result<(OwnedFd, Self)> {
        let fd = memfd_create("cashew-shared", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, word::COUNT as u64 * 8)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Mapping::shared(fd.as_fd(), word::COUNT)?;
        Ok((fd, Self::initialized(mapping)))
    }

    /// Opens what [`create`](Self::create) made, and refuses everything else.
    pub fn open(fd: impl AsFd) -> io::Result<Self> {
        if (fstat(&fd)?.st_size as u64) < word::COUNT as u64 * 8 {
            return Err(invalid("what all workers share is cut short"));
        }
        if !fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(invalid("what all workers share is not sealed against shrinking"));
        }
        let mapping = Mapping::shared(fd.as_fd(), word::COUNT)?;
        if mapping.words()[word::MAGIC].load(Relaxed) != MAGIC {
            return Err(invalid("what all workers share is of another version of cashew"));
        }
        Ok(Self { mapping: Arc::new(mapping) })
    }

    /// For tests: nobody else sees it.
    pub fn in_memory() -> Self {
        Self::initialized(Mapping::heap(word::COUNT))
    }

    fn initialized(mapping: Mapping) -> Self {
        mapping.words()[word::MAGIC].store(MAGIC, Relaxed);
        Self { mapping: Arc::new(mapping) }
    }

    /// An id that no other client ever has; the first is 1.
    pub fn next_client_id(&self) -> u64 {
        self.mapping.words()[word::CLIENT_ID].fetch_add(1, Relaxed) + 1
    }

    /// Counts one client more, unless there are as many as `limit` says already; 0 is no limit.
    /// Returns whether it did.
    pub fn take(&self, quota: u32, limit: u32) -> bool {
        // One step, not an addition undone when it was too much: that would for a moment refuse
        // others who are within the limit.
        self.quota(quota)
            .fetch_update(Relaxed, Relaxed, |taken| {
                (limit == 0 || taken < u64::from(limit)).then_some(taken + 1)
            })
            .is_ok()
    }

    /// Undoes one successful [`take`](Self::take).
    pub fn give(&self, quota: u32) {
        self.adjust(quota, -1);
    }

    pub fn taken(&self, quota: u32) -> u64 {
        self.quota(quota).load(Relaxed)
    }

    /// Corrects the number of clients; it does not get below 0.
    pub fn adjust(&self, quota: u32, by: i64) {
        let corrected = |taken: u64| Some(taken.saturating_add_signed(by));
        self.quota(quota)
            .fetch_update(Relaxed, Relaxed, corrected)
            .expect("there is always a corrected number");
    }

    /// # Panics
    ///
    /// When there is no such quota.
    fn quota(&self, quota: u32) -> &AtomicU64 {
        assert!(quota < QUOTAS_MAX, "{QUOTAS_MAX} quotas, not one of index {quota}");
        &self.mapping.words()[word::QUOTAS + quota as usize]
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::AtomicU32;
    use std::thread;

    use super::*;

    const THREADS: usize = 4;

    #[test]
    fn the_limit_is_never_exceeded_and_always_reached() {
        const LIMIT: u32 = 3;
        let (fd, shared) = Shared::create().unwrap();
        let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let shared = Shared::open(&fd).unwrap();
                    for _ in 0..50_000 {
                        if shared.take(7, LIMIT) {
                            most.fetch_max(inside.fetch_add(1, Relaxed) + 1, Relaxed);
                            inside.fetch_sub(1, Relaxed);
                            shared.give(7);
                        }
                    }
                });
            }
        });
        assert!(most.into_inner() <= LIMIT);
        assert_eq!(shared.taken(7), 0);
        for _ in 0..LIMIT {
            assert!(shared.take(7, LIMIT));
        }
        assert!(!shared.take(7, LIMIT));
        assert!(shared.take(6, LIMIT) && shared.take(8, LIMIT), "others are not concerned");
    }

    #[test]
    fn who_is_within_the_limit_is_never_refused() {
        // As many threads as places, each holding one at a time: none may be refused, however many
        // others are, who ask for what is not there.
        let shared = Shared::in_memory();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        assert!(shared.take(0, 2));
                        assert!(!shared.take(0, 1), "one at least is taken");
                        shared.give(0);
                    }
                });
            }
        });
    }

    #[test]
    fn ids_are_unique_and_begin_with_1() {
        let shared = Shared::in_memory();
        let ids: Vec<u64> = thread::scope(|scope| {
            let take = || (0..10_000).map(|_| shared.next_client_id()).collect::<Vec<_>>();
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(take)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let unique: HashSet<u64> = ids.iter().copied().collect();
        assert_eq!(unique.len(), ids.len());
        assert_eq!((ids.iter().min(), ids.iter().max()), (Some(&1), Some(&(ids.len() as u64))));
    }

    #[test]
    fn without_a_limit_clients_are_counted_still() {
        let shared = Shared::in_memory();
        for _ in 0..5 {
            assert!(shared.take(4095, 0));
        }
        assert!(!shared.take(4095, 5), "a limit that comes later counts who is there");
        shared.adjust(4095, -3);
        assert_eq!(shared.taken(4095), 2);
        shared.adjust(4095, -3);
        assert_eq!(shared.taken(4095), 0);
        shared.adjust(4095, 2);
        shared.give(4095);
        assert_eq!(shared.taken(4095), 1);
    }

    #[test]
    fn what_is_foreign_is_refused() {
        let (fd, shared) = Shared::create().unwrap();
        shared.mapping.words()[word::MAGIC].store(MAGIC + (1 << 56), Relaxed);
        let why = Shared::open(&fd).err().expect("refused").to_string();
        assert!(why.contains("another version"), "{why}");
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(Shared::open(&fd).is_err());
        ftruncate(&fd, word::COUNT as u64 * 8).unwrap();
        let why = Shared::open(&fd).err().expect("refused").to_string();
        assert!(why.contains("not sealed"), "{why}");
    }
}
