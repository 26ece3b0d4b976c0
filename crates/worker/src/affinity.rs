//! Processor affinity of the worker.

use cashew_config::snapshot::Affinity;
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that this thread could use before it was pinned.
pub(crate) struct Processors {
    allowed: Option<CpuSet>,
    is_pinned: bool,
}

impl Processors {
    pub(crate) fn of_this_thread() -> Self {
        Self { allowed: sched_getaffinity(None).ok(), is_pinned: false }
    }

    /// Pins this thread to the processor for a worker of that rank.
    pub(crate) fn pin(&mut self, affinity: &Affinity, rank: u32) {
        if let Err(errno) = self.try_to_pin(affinity, rank) {
            tracing::warn!("worker_cpu_affinity: {errno}");
        }
    }

    fn try_to_pin(&mut self, affinity: &Affinity, rank: u32) -> Result<(), Errno> {
        let processor = match affinity {
            Affinity::Off => None,
            Affinity::Auto => self.allowed.and_then(|allowed| {
                nth((0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)), rank)
            }),
            Affinity::List(list) => nth(list.iter().map(|&cpu| cpu as usize), rank),
        };
        match (processor, self.is_pinned) {
            (None, false) => return Ok(()),
            (None, true) => self.free()?,
            (Some(processor), _) => {
                let mut set = CpuSet::new();
                set.set(processor);
                sched_setaffinity(None, &set)?;
            }
        }
        self.is_pinned = processor.is_some();
        Ok(())
    }

    /// Undoes the pinning for the calling thread. Threads that the worker starts inherit its
    /// processor and would compete with it.
    pub(crate) fn free(&self) -> Result<(), Errno> {
        self.allowed.map_or(Ok(()), |allowed| sched_setaffinity(None, &allowed))
    }

    /// A copy for another thread.
    pub(crate) fn for_thread(&self) -> Self {
        Self { allowed: self.allowed, is_pinned: false }
    }
}

/// Wraps around when there are fewer processors than workers.
fn nth(mut processors: impl Iterator<Item = usize> + Clone, rank: u32) -> Option<usize> {
    let count = processors.clone().count();
    let rank = (rank as usize).checked_rem(count)?;
    processors.nth(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now_on() -> Vec<usize> {
        let set = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
    }

    #[test]
    fn workers_are_spread_over_the_processors_in_turn() {
        // A separate thread, since pinning it must not affect other tests.
        std::thread::spawn(|| {
            let mut processors = Processors::of_this_thread();
            let allowed = now_on();
            for rank in 0..2 * allowed.len() {
                processors.pin(&Affinity::Auto, rank as u32);
                assert_eq!(now_on(), [allowed[rank % allowed.len()]]);
            }
            let list = Affinity::List(allowed.iter().rev().map(|&cpu| cpu as u32).collect());
            processors.pin(&list, 0);
            assert_eq!(now_on(), [allowed[allowed.len() - 1]]);
            let helper = processors.for_thread();
            std::thread::spawn(move || helper.free()).join().unwrap().unwrap();
            processors.pin(&Affinity::Off, 0);
            assert_eq!(now_on(), allowed);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_processor_that_is_not_there_changes_nothing() {
        std::thread::spawn(|| {
            let mut processors = Processors::of_this_thread();
            let allowed = now_on();
            processors.pin(&Affinity::List(vec![1000]), 0);
            assert_eq!(now_on(), allowed);
        })
        .join()
        .unwrap();
    }
}
