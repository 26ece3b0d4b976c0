//! What servers could not be told to forget, as far as a worker is concerned: see [`cashew_spool`].
//!
//! A deletion that fails is kept ([`Spooling::keep`]), and its client is told that nothing was there. From then
//! on the server is *held*: it gets nothing but deletions, and, where failed writes count as such, writes of whole
//! values, until it has forgotten everything. That is asked whenever something is about to be sent to a server of
//! such a pool, of memory that all workers share: the one that keeps a key says so first, and answers then.

use std::sync::Arc;

use cashew_config::snapshot::Pool;
use cashew_metrics::{ServerCounter, Writer};
use cashew_spool::{Place, Queue};

use crate::base::id::{BackendId, ServerId};
use crate::base::table::Table;
use crate::base::time::Time;
use crate::base::timers::{Timer, Timers};
use crate::upstream::backend::Backend;

/// How often it is looked whether records are on disk, while any may not be.
const WATCH_MS: u64 = 100;

/// Where a backend's keys are kept, and under which names.
pub(crate) struct SpoolOf {
    place: Arc<Place>,
    /// By shard.
    names: Box<[String]>,
    /// What failed writes of whole values wrote over is kept, too.
    pub(crate) overwrites: bool,
}

/// A worker's way to the disk.
#[derive(Default)]
pub(crate) struct Spooling {
    /// Without it nothing is kept.
    pub(crate) queue: Option<Queue>,
    is_watched: bool,
}

impl SpoolOf {
    pub(crate) fn change(before: Option<Self>, config: &Pool) -> Option<Self> {
        let spool = config.spool.as_ref()?;
        let is_same = |place: &Arc<Place>| {
            (&place.directory, &place.pool, place.max)
                == (&spool.directory, &config.name, spool.max)
        };
        let place = before.map(|before| before.place).filter(is_same).unwrap_or_else(|| {
            Arc::new(Place::new(spool.directory.clone(), config.name.clone(), spool.max))
        });
        let names = config.shards().iter().map(|group| group.name.clone()).collect();
        Some(Self { place, names, overwrites: spool.overwrites })
    }
}

impl Spooling {
    /// Keeps it that a server is to forget a key of a database. `false` if that cannot be.
    #[cold]
    pub(crate) fn keep(
        &mut self,
        backend: &Backend,
        server: ServerId,
        (database, key): (u32, &[u8]),
        metrics: &Writer,
        (now, timers): (Time, &mut Timers),
    ) -> bool {
        let (Some(spool), Some(queue)) = (&backend.spool, &self.queue) else { return false };
        let shard = backend.topology.shard_of(server);
        let Some(name) = spool.names.get(shard.index()) else { return false };
        let server = backend.servers[server].metrics;
        let is_kept = queue.put(&spool.place, name, database, key);
        if is_kept {
            // Before the client hears of it: nobody reads the server from here on, until it is told.
            metrics.note_spooled(server, now.as_micros());
        }
        let counter = if is_kept { ServerCounter::Spooled } else { ServerCounter::SpoolRefused };
        metrics.add_server(server, counter, 1);
        self.watch(now, timers);
        is_kept
    }

    /// Has it tried whether what backends keep can be written.
    pub(crate) fn announce(&self, backends: &Table<BackendId, Backend>) {
        let Some(queue) = &self.queue else { return };
        for spool in backends.iter().filter_map(|backend| backend.spool.as_ref()) {
            queue.announce(&spool.place);
        }
    }

    fn watch(&mut self, now: Time, timers: &mut Timers) {
        if !std::mem::replace(&mut self.is_watched, true) {
            timers.arm(now.plus_millis(WATCH_MS), Timer::Spool);
        }
    }

    /// While records are on their way to the disk, servers count as having got one now: so nobody takes
    /// what is on disk for all.
    pub(crate) fn maintain(
        &mut self,
        backends: &Table<BackendId, Backend>,
        metrics: &Writer,
        now: Time,
        timers: &mut Timers,
    ) {
        self.is_watched = false;
        if self.queue.as_ref().is_none_or(Queue::is_written) {
            return;
        }
        self.watch(now, timers);
        for backend in backends.iter().filter(|backend| backend.spool.is_some()) {
            for server in backend.servers.iter() {
                if metrics.is_held(server.metrics) {
                    metrics.note_spooled(server.metrics, now.as_micros());
                }
            }
        }
    }
}

impl Backend {
    /// Whether a server has yet to forget something before it is asked anything.
    #[inline]
    pub(crate) fn has_to_forget(&self, server: ServerId, metrics: &Writer) -> bool {
        self.spool.is_some() && self.awaits_forgetting(server, metrics)
    }

    /// Whoever takes the writes of a group is held for all of it: it may have taken another's place since.
    fn awaits_forgetting(&self, server: ServerId, metrics: &Writer) -> bool {
        let is_held = |it: ServerId| metrics.is_held(self.servers[it].metrics);
        is_held(server)
            || self.topology.primary_of(server) == server
                && self.topology.members(server).any(is_held)
    }
}
