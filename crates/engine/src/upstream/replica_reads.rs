//! Which replicas may answer which reads, by what discovery has found out about them.
//!
//! A replica that is known to be unfit answers none. A connection that was lost is no proof of
//! anything: who answers on the next one may be another process, with nothing. So a replica is asked
//! again only when it is fit by a poll that began after its connection was lost, and after the next
//! one stood. Where nobody polls, replicas are taken as they always were, for all that is up.
//!
//! A client that has written is to read what it wrote. It remembers the number of the next poll that
//! begins after the reply, and a replica answers it once it has what the primary had at that poll. Or
//! it reads from the primary for a time. Until the reply it does so anyway.

use cashew_config::snapshot::{ReadYourWrites, Reads};
use cashew_metrics::{Fitness, Writer};

use crate::base::id::{ClientId, LaneId, ServerId};
use crate::base::table::Table;
use crate::base::time::Time;
use crate::upstream::backend::Backend;
use crate::upstream::lane::{Lane, Link};

/// Since when a client's reads have to be new: the number of a poll, or the millisecond until which
/// only the primary will do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WriteMark(u64);

impl WriteMark {
    /// It has not written.
    pub(crate) const NONE: Self = Self(0);
    /// It is owed the reply to a write.
    pub(crate) const OPEN: Self = Self(u64::MAX);
}

/// By client. Beside the clients, since where nobody heeds writes it is empty.
#[derive(Default)]
pub(crate) struct WriteMarks(Vec<WriteMark>);

impl WriteMarks {
    #[inline]
    pub(crate) fn of(&self, client: ClientId) -> WriteMark {
        self.0.get(client.index()).copied().unwrap_or_default()
    }

    pub(crate) fn set(&mut self, client: ClientId, mark: WriteMark) {
        if self.0.len() <= client.index() {
            self.0.resize(client.index() + 1, WriteMark::NONE);
        }
        self.0[client.index()] = mark;
    }

    /// Another client has the number.
    #[inline]
    pub(crate) fn forget(&mut self, client: ClientId) {
        if let Some(mark) = self.0.get_mut(client.index()) {
            *mark = WriteMark::NONE;
        }
    }

    /// What the client has written counts as written at another backend, too, and until its next reply.
    pub(crate) fn carry(&mut self, client: ClientId) {
        if let Some(mark) = self.0.get_mut(client.index())
            && *mark != WriteMark::NONE
        {
            *mark = WriteMark::OPEN;
        }
    }

    /// All but those who are owed a reply count as if they had not written.
    pub(crate) fn forget_answered(&mut self) {
        for mark in self.0.iter_mut().filter(|mark| **mark != WriteMark::OPEN) {
            *mark = WriteMark::NONE;
        }
    }
}

/// Who reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadingClient {
    pub(crate) variant: u16,
    pub(crate) lane_choice: u16,
    pub(crate) written: WriteMark,
    /// Its own policy for what it reads, or the command's, where that is not the pool's.
    pub(crate) reads: Option<Reads>,
}

/// What a backend's reads need of replicas.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReplicaRules {
    pub(crate) has_replicas: bool,
    read_your_writes: ReadYourWrites,
    /// The mark of everybody, at least: of what was written before the primary was this one, or the
    /// configuration.
    floor: u64,
}

impl ReplicaRules {
    /// Whether it matters what clients have written.
    #[inline]
    pub(crate) fn heed_writes(&self) -> bool {
        self.read_your_writes != ReadYourWrites::Off
    }
}

impl Backend {
    pub(crate) fn configure_replica_reads(&mut self) {
        self.replica_rules.has_replicas = self.config.has_replicas();
        self.replica_rules.read_your_writes = match self.replica_rules.has_replicas {
            true => self.config.replica_reads.read_your_writes,
            false => ReadYourWrites::Off,
        };
    }

    /// What was written up to now is marked with.
    #[cold]
    pub(crate) fn write_mark(&self, metrics: &Writer, now: Time) -> WriteMark {
        WriteMark(self.next_mark(metrics, now))
    }

    fn next_mark(&self, metrics: &Writer, now: Time) -> u64 {
        match self.replica_rules.read_your_writes {
            ReadYourWrites::Off => 0,
            // Not a part of a millisecond less.
            ReadYourWrites::For(ms) => now.as_micros() / 1000 + ms + 1,
            ReadYourWrites::Offset => metrics.board().begun(self.metrics) + 1,
        }
    }

    /// From here on nobody is answered by replicas that may not have what was written before.
    pub(crate) fn distrust_replicas(&mut self, metrics: &Writer, now: Time) {
        self.replica_rules.floor = self.next_mark(metrics, now);
    }

    /// Whether a server may answer a read, as far as its copy is concerned.
    #[inline(never)]
    pub(crate) fn is_good_for(
        &self,
        server: ServerId,
        reader: ReadingClient,
        lanes: &Table<LaneId, Lane>,
        metrics: &Writer,
        now: Time,
    ) -> bool {
        let primary = self.topology.primary_of(server);
        if primary == server || !self.replica_rules.has_replicas {
            return true;
        }
        let (board, state) = (metrics.board(), &self.servers[server]);
        let now_ms = now.as_micros() / 1000;
        let is_kept = || board.is_kept(self.metrics, now_ms);
        let is_fit = match board.fitness(state.metrics, state.confirm_after) {
            Some(Fitness::Fit | Fitness::Unknown) => {
                let lane = lanes.get(state.lane(reader.variant, reader.lane_choice));
                !lane.is_some_and(Lane::is_made_anew)
            }
            Some(_) | None => false,
        };
        if !is_fit && is_kept() {
            return false;
        }
        let needed = reader.written.0.max(self.replica_rules.floor);
        match self.replica_rules.read_your_writes {
            ReadYourWrites::Off => true,
            _ if needed == 0 => true,
            ReadYourWrites::For(_) => now_ms >= needed,
            ReadYourWrites::Offset => {
                board.covers(state.metrics, primary.index() as u16, needed) && is_kept()
            }
        }
    }
}

impl Lane {
    /// It is being connected after it was lost.
    fn is_made_anew(&self) -> bool {
        self.was_lost
            && match self.link {
                Link::Connecting { .. } | Link::Handshaking { .. } | Link::Backoff { .. } => true,
                Link::Idle | Link::Ready { .. } => false,
            }
    }
}
