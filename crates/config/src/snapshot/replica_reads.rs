//! What reads need of a replica.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Move, Pool, Protocol, Reads, Snapshot, Writes};

/// When a replica may answer reads in its primary's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplicaReads {
    /// Bytes that it may be behind; `None` is no limit.
    pub lag_max: Option<u64>,
    /// How long its connection to the primary may be down.
    pub link_down_max_ms: u64,
    pub read_your_writes: ReadYourWrites,
}

impl Default for ReplicaReads {
    fn default() -> Self {
        Self { lag_max: None, link_down_max_ms: 60_000, read_your_writes: ReadYourWrites::Off }
    }
}

/// When a read is sent to a second server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hedge {
    /// How long the first may take to begin its reply.
    pub after_ms: u64,
    /// So many reads more there may be, of a hundred that are answered.
    pub budget_percent: u32,
}

/// Whether a client's reads see its own writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadYourWrites {
    #[default]
    Off,
    /// It reads from the primary for so many milliseconds after a write.
    For(u64),
    /// It reads from replicas that have reached the position at which the primary was after its
    /// last write.
    Offset,
}

impl Snapshot {
    /// Whether there is something for discovery: Sentinels, replicas, servers that are told later what to forget,
    /// servers that tell of their maintenance, or keys that are copied to other pools, or may be.
    pub fn needs_discovery(&self) -> bool {
        let has_spool = self.pools.iter().any(|pool| pool.spool.is_some());
        has_spool
            || self.has_sentinels()
            || self.has_clusters()
            || self.has_sources()
            || self.has_server_maintenance()
            || self.pools.iter().any(Pool::has_replicas)
            || self.moves().next().is_some()
            || !self.key_routes().is_empty()
    }

    /// The pools that are copied to others, each with the route that they belong to.
    pub fn moves(&self) -> impl Iterator<Item = (&str, Move<'_>)> {
        let routes = self.pools.iter().filter_map(|pool| Some((&*pool.name, pool.route.as_ref()?)));
        routes.flat_map(|(name, route)| route.moves().into_iter().map(move |it| (name, it)))
    }

    /// Has a route's move that is kept in this directory served by the other side.
    pub fn set_cut_over(&mut self, directory: &Path, is_cut_over: bool) {
        for route in self.pools.iter_mut().filter_map(|pool| pool.route.as_mut()) {
            route.set_cut_over(directory, is_cut_over);
        }
    }
}

impl Pool {
    /// Whether any server follows another one, which replicates to it.
    pub fn has_replicas(&self) -> bool {
        self.protocol == Protocol::Redis && !self.replicated().is_empty()
    }

    /// Whether replicas answer reads of clients that have not asked for it themselves.
    pub fn reads_from_replicas(&self) -> bool {
        let is_other = |reads: &Reads| *reads != Reads::Primary;
        self.reads.as_ref().is_some_and(is_other)
            || self.reads_by_class.iter().any(|(_, reads)| is_other(reads))
            || self.user_options.iter().filter_map(|user| user.reads.as_ref()).any(is_other)
    }

    /// Whether several servers have the same keys, so that reads have a choice.
    pub fn has_copies(&self) -> bool {
        !self.replicated().is_empty()
    }

    /// Whether equal reads that wait to be written are sent once.
    pub fn coalesces(&self) -> bool {
        self.coalesce_reads && self.hedge.is_none()
    }

    /// Whether the gateway writes to all servers of a group: nobody replicates between them.
    pub fn writes_to_all(&self) -> bool {
        let is_asked = self.protocol == Protocol::Memcached && self.memcached.writes == Writes::All;
        is_asked && self.has_copies()
    }
}
