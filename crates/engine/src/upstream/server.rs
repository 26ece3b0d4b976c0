//! A server and what waits for it, as one worker sees it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use cashew_metrics::{ServerCounter, Writer};
use cashew_protocol::memcached::Tag;

use crate::base::failure::Failure;
use crate::base::id::{ConnId, LaneId};
use crate::base::time::Time;
use crate::upstream::absent_line::AbsentLine;
use crate::upstream::health::Latency;
use crate::upstream::lane::Lane;
use crate::upstream::misfit::Unknown;
use crate::upstream::trial::Trial;

/// A server as this worker knows it.
pub(crate) struct Server {
    pub(crate) metrics: cashew_metrics::ServerId,
    /// What was to be counted before its pool was served: see [`Server::count`].
    early: Vec<ServerCounter>,
    /// What errors about it end with, unless they are to name no servers.
    pub(crate) label: Option<Arc<str>>,
    /// The shared lanes of its backend's first variant come first, then their bulk lane.
    pub(crate) first_lane: LaneId,
    pub(crate) lanes: u32,
    /// The first lanes of the other variants, in their order: as many each, or [`LaneId::NONE`].
    pub(crate) others: Vec<LaneId>,
    /// What its CAS uniques are marked with.
    pub(crate) tag: Tag,
    pub(crate) connections: u32,
    /// Which of its credentials it took last, or is given next.
    pub(crate) credentials: usize,
    /// Failures in a row, over all lanes.
    pub(crate) failures: u32,
    /// When the last failure was counted: what fails together counts once.
    pub(crate) failed_at: Time,
    /// The last attempt to reach it failed.
    pub(crate) failing: bool,
    /// What of this machine the last attempt to reach it failed for, and when the log was last told
    /// of such.
    pub(crate) local_error: Option<Failure>,
    pub(crate) hindered_at: Option<Time>,
    /// When the log was last told of a reply that did not fit.
    pub(crate) misfit_at: Option<Time>,
    /// What it does not know.
    pub(crate) unknown: Unknown,
    /// When it was last told that it is no primary.
    pub(crate) demotion_told_at: Option<Time>,
    /// When any bytes came from it last.
    pub(crate) heard_at: Time,
    /// When it was last asked, for no client, whether it answers.
    pub(crate) asked_at: Time,
    /// Its next reply is news for the state that workers share.
    pub(crate) is_in_doubt: bool,
    /// How long its last connection took to stand, in microseconds; 0 if there was none.
    pub(crate) connect_us: u64,
    /// How long it takes to answer, where that matters for who gets reads.
    pub(crate) latency: Latency,
    /// What it gets of reads since it came back.
    pub(crate) trial: Trial,
    /// When the memory that workers share is looked at again for attempts of others.
    pub(crate) look_at: Time,
    /// Since when what is for it fails at once, since it answers nothing: see [`crate::upstream::liveness`].
    pub(crate) silent_since: Time,
    /// The number of the poll from which on it counts what discovery says of it.
    pub(crate) confirm_after: u64,
    /// Its connections are being ended: what fails there and is sent once more does not go there again.
    pub(crate) leaves: bool,
    /// Left out of the ring, by agreement of all workers.
    pub(crate) ejected: bool,
    /// When its ejection may be asked for. It was just before, and whoever decides may have reasons
    /// not to answer.
    pub(crate) ask_at: Time,
    /// When it is asked whether it is well, while it is ejected.
    pub(crate) probe_at: Time,
    pub(crate) queues: Queues,
    /// Lanes made for one client at a time.
    pub(crate) streaming_lanes: Vec<LaneId>,
    /// Clients that wait for one of these.
    pub(crate) waiting: Vec<ConnId>,
    /// Clients that wait to read a large value, on one of these or on the lane for all.
    pub(crate) reading: Vec<ConnId>,
    /// When somebody last found all of them taken, and when that was last counted, and told.
    pub(crate) wanted_at: Option<Time>,
    pub(crate) want_counted_at: Option<Time>,
    pub(crate) want_told_at: Option<Time>,
    /// When the log was last told that clients stand in line.
    pub(crate) line_told_at: Option<Time>,
    /// The subscriber lane, or [`LaneId::NONE`].
    pub(crate) feed_lane: LaneId,
    /// That of its tracker, or [`LaneId::NONE`].
    pub(crate) tracker_lane: LaneId,
    /// Lanes for transactions and blocking calls.
    pub(crate) session_lanes: Vec<LaneId>,
    /// Clients that wait for one of these, in the order of their coming, and until when.
    pub(crate) line: VecDeque<(ConnId, Time)>,
    /// Clients that want one of these while the server cannot be reached.
    pub(crate) absent_line: AbsentLine,
    /// Not before then has anybody waited for long enough for whom one of these is being connected.
    pub(crate) dials_until: Time,
    /// Of `session_lanes`, as counted.
    pub(crate) session_queues: Queues,
    /// How many of them are taken.
    pub(crate) sessions: u32,
}

/// What waits for a server over all its lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queues {
    pub(crate) unsent: u64,
    pub(crate) unsent_size: u64,
    pub(crate) in_flight: u64,
    pub(crate) in_flight_size: u64,
}

impl Queues {
    #[inline]
    pub(crate) fn add(&mut self, lane: &Lane) {
        self.unsent += u64::from(lane.unsent);
        self.unsent_size += lane.unsent_size();
        self.in_flight += u64::from(lane.in_flight);
        self.in_flight_size += lane.in_flight_size;
    }

    pub(crate) fn of(lane: &Lane) -> Self {
        let mut queues = Self::default();
        queues.add(lane);
        queues
    }

    /// Takes `other` for what was counted as `before`.
    pub(crate) fn replace(&mut self, before: Self, other: Self) {
        self.unsent = self.unsent + other.unsent - before.unsent;
        self.unsent_size = self.unsent_size + other.unsent_size - before.unsent_size;
        self.in_flight = self.in_flight + other.in_flight - before.in_flight;
        self.in_flight_size = self.in_flight_size + other.in_flight_size - before.in_flight_size;
    }
}

/// The most that is remembered of a server whose pool is not served yet.
const EARLY_MAX: usize = 64;

impl Server {
    /// Counts what happens to its connections, which are made before its pool is served: until then there is no place to
    /// count in.
    pub(crate) fn count(&mut self, metrics: &Writer, counter: ServerCounter) {
        if self.metrics != metrics.void_server() {
            metrics.add_server(self.metrics, counter, 1);
        } else if self.early.len() < EARLY_MAX {
            self.early.push(counter);
        }
    }

    /// Counts in another place from here on.
    pub(crate) fn count_at(&mut self, place: cashew_metrics::ServerId, metrics: &Writer) {
        self.metrics = place;
        if place != metrics.void_server() {
            for counter in std::mem::take(&mut self.early) {
                metrics.add_server(place, counter, 1);
            }
        }
    }

    /// A server with lanes from this one on, or with none if that is [`LaneId::NONE`].
    pub(crate) fn new(metrics: cashew_metrics::ServerId, first_lane: LaneId, lanes: u32) -> Self {
        Self {
            metrics,
            early: Vec::new(),
            label: None,
            first_lane,
            lanes,
            others: Vec::new(),
            tag: Tag::default(),
            connections: 0,
            credentials: 0,
            failures: 0,
            failed_at: Time::NEVER,
            failing: false,
            local_error: None,
            hindered_at: None,
            misfit_at: None,
            unknown: Unknown::default(),
            demotion_told_at: None,
            heard_at: Time::ZERO,
            asked_at: Time::ZERO,
            is_in_doubt: true,
            connect_us: 0,
            latency: Latency::new(),
            trial: Trial::default(),
            look_at: Time::ZERO,
            silent_since: Time::NEVER,
            // Where anybody polls, it must have been asked.
            confirm_after: 1,
            ejected: false,
            ask_at: Time::ZERO,
            probe_at: Time::NEVER,
            queues: Queues::default(),
            streaming_lanes: Vec::new(),
            waiting: Vec::new(),
            reading: Vec::new(),
            wanted_at: None,
            want_counted_at: None,
            want_told_at: None,
            line_told_at: None,
            feed_lane: LaneId::NONE,
            tracker_lane: LaneId::NONE,
            session_lanes: Vec::new(),
            line: VecDeque::new(),
            leaves: false,
            absent_line: AbsentLine::new(),
            dials_until: Time::NEVER,
            session_queues: Queues::default(),
            sessions: 0,
        }
    }

    /// Those that clients of the first variant share for requests that are not large.
    pub(crate) fn shared_lanes(&self) -> impl Iterator<Item = LaneId> + use<> {
        let first = self.first_lane.number();
        let count = if self.first_lane == LaneId::NONE { 0 } else { self.lanes };
        (first..first.wrapping_add(count)).map(LaneId::new)
    }

    /// The numbers of all that are made with the server, and for each variant.
    pub(crate) fn own_ranges(&self) -> impl Iterator<Item = Range<u32>> {
        let firsts = std::iter::once(self.first_lane).chain(self.others.iter().copied());
        let numbers = firsts.filter(|&first| first != LaneId::NONE).map(LaneId::number);
        numbers.map(|first| first..first + self.lanes + 1)
    }

    pub(crate) fn own_lanes(&self) -> impl Iterator<Item = LaneId> {
        self.own_ranges().flatten().map(LaneId::new)
    }

    pub(crate) fn all_lanes(&self) -> impl Iterator<Item = LaneId> {
        let private = self.streaming_lanes.iter().chain(&self.session_lanes);
        let told = [self.feed_lane(), self.tracker_lane()].into_iter().flatten();
        self.own_lanes().chain(private.copied()).chain(told)
    }

    pub(crate) fn tracker_lane(&self) -> Option<LaneId> {
        Some(self.tracker_lane).filter(|&lane| lane != LaneId::NONE)
    }

    pub(crate) fn feed_lane(&self) -> Option<LaneId> {
        Some(self.feed_lane).filter(|&lane| lane != LaneId::NONE)
    }

    #[inline(always)]
    fn first_of(&self, variant: u16) -> LaneId {
        match variant.checked_sub(1) {
            None => self.first_lane,
            Some(other) => self.others[usize::from(other)],
        }
    }

    /// Clients that wait for a lane to themselves.
    pub(crate) fn in_line(&self) -> u64 {
        (self.line.len() + self.absent_line.len()) as u64
    }

    /// Whether there are lanes of a variant.
    pub(crate) fn has_lanes(&self, variant: u16) -> bool {
        match variant.checked_sub(1) {
            None => self.first_lane != LaneId::NONE,
            Some(other) => {
                self.others.get(usize::from(other)).is_some_and(|&it| it != LaneId::NONE)
            }
        }
    }

    /// The place of a lane among those of all variants, the same at all servers of a backend.
    pub(crate) fn offset_of(&self, variant: u16, lane: LaneId) -> usize {
        let offset = lane.number().wrapping_sub(self.first_of(variant).number()) as usize;
        usize::from(variant) * (self.lanes as usize + 1) + offset
    }

    pub(crate) fn bulk_lane(&self, variant: u16) -> LaneId {
        LaneId::new(self.first_of(variant).number() + self.lanes)
    }

    /// The shared lane of a client.
    #[inline(always)]
    pub(crate) fn lane(&self, variant: u16, choice: u16) -> LaneId {
        // A division takes longer than all the rest.
        let offset = if self.lanes == 1 { 0 } else { u32::from(choice) % self.lanes };
        LaneId::new(self.first_of(variant).number() + offset)
    }

    #[inline]
    pub(crate) fn is_up(&self) -> bool {
        !self.failing && !self.ejected
    }
}
