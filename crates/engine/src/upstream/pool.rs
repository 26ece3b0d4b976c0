//! A pool and its servers, as one worker sees them.

use std::collections::VecDeque;
use std::ops::Range;

use cashew_config::snapshot::{self, Limits, OnFailure, Protocol};
use cashew_protocol::memcached::{ChorePolicy, Tag};
use cashew_protocol::redis::{Clearance, CustomCommands, Definition, Policy, Rules};

use crate::base::failure::Failure;
use crate::base::id::{ConnId, LaneId, ServerId};
use crate::base::table::Table;
use crate::base::time::Time;
use crate::downstream::client::{Selected, Session};
use crate::downstream::notice::Notices;
use crate::downstream::session_params::{SessionParams, Usage, WireProtocol};
use crate::memcached::tags;
use crate::redis::client_list::Reach;
use crate::redis::client_pause::ClientPause;
use crate::redis::keyless::Walk;
use crate::redis::monitor::Watch;
use crate::redis::pubsub::{Feed, PubSub};
use crate::redis::scripts::{Scripts, Seen};
use crate::topology::Topology;
use crate::upstream::bulk::LargeReplies;
use crate::upstream::lane::Lane;
use crate::upstream::misfit::Unknown;

pub(crate) struct Pool {
    pub(crate) config: Box<snapshot::Pool>,
    pub(crate) standing: Standing,
    pub(crate) protocol: Protocol,
    pub(crate) metrics: cashew_metrics::PoolId,
    pub(crate) topology: Topology,
    pub(crate) servers: Table<ServerId, Server>,
    /// What clients have agreed on; by index, see [`SessionParams`].
    pub(crate) params_set: Vec<SessionParams>,
    /// Who uses them, by the same index.
    pub(crate) usage: Vec<Usage>,
    /// How long requests wait, in microseconds; the largest number if there is no limit.
    timeout_us: u64,
    pub(crate) limits: Limits,
    pub(crate) auth: Option<String>,
    /// A get whose server fails is a miss.
    pub(crate) misses: bool,
    pub(crate) preconnect: bool,
    pub(crate) auto_eject: bool,
    pub(crate) retry_ms: u64,
    pub(crate) failure_limit: u32,
    pub(crate) large_replies: LargeReplies,
    pub(crate) pubsub: PubSub,
    /// Who is told what its clients ask.
    pub(crate) watch: Watch,
    /// Those that are not in the table.
    pub(crate) commands: CustomCommands,
    /// What clients may call, by Redis's protocol and by memcached's.
    pub(crate) policy: Policy,
    pub(crate) chores: ChorePolicy,
    /// What they may do to others.
    pub(crate) reach: Reach,
    pub(crate) notices: Notices,
    /// What servers told of them.
    pub(crate) learnt: Vec<Definition>,
    /// Another one when what was learnt is forgotten; never 0.
    pub(crate) commands_version: u8,
    /// A server refused RESP3: until then clients are, too.
    pub(crate) no_resp3_until: Time,
    /// What cursors of SCAN are about.
    pub(crate) walk: Walk,
    pub(crate) scripts: Scripts,
    pub(crate) clients: u64,
    /// How many of them count for `client_connections`.
    pub(crate) places_taken: u64,
    /// Where they are counted over all workers.
    pub(crate) quota: u32,
    /// Number of the ring in use; grows with every change.
    pub(crate) ring_version: u64,
    /// Nothing is dispatched: a change of the ring or of the epoch is under way, or a client said so.
    pub(crate) held: bool,
    /// Somebody is told of its requests.
    pub(crate) is_monitored: bool,
    /// Requests may take the express way: it is neither held nor monitored.
    pub(crate) is_clear: bool,
    /// The change of the ring, if it is that.
    pub(crate) hold: Option<Hold>,
    /// It is held for a change of the epoch.
    pub(crate) paused: bool,
    /// Its clients are held back by one of them.
    pub(crate) client_pause: Option<ClientPause>,
}

/// What a pool is to the epoch in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// One of its pools.
    InUse,
    /// Belongs to an epoch that is being prepared: it has lanes, for servers that are new, and no
    /// clients.
    Coming,
    /// Was removed then: serves the clients it has, until that time.
    Leaving { since: Time, until: Time },
    /// Nothing is left of it.
    Gone,
}

/// First phase of a change of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) version: u64,
    /// So long what is on its way may take.
    pub(crate) until: Time,
    /// [`Action::Held`](crate::Action::Held) has been said.
    pub(crate) is_told: bool,
}

/// A server as this worker knows it.
pub(crate) struct Server {
    pub(crate) metrics: cashew_metrics::ServerId,
    /// The shared lanes of its pool's first variant come first, then their bulk lane.
    pub(crate) first_lane: LaneId,
    pub(crate) lanes: u32,
    /// The first lanes of the other variants, in their order: as many each, or [`LaneId::NONE`].
    pub(crate) others: Vec<LaneId>,
    /// What its CAS uniques are marked with.
    pub(crate) tag: Tag,
    pub(crate) connections: u32,
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
    /// When any bytes came from it last.
    pub(crate) heard_at: Time,
    /// How long its last connection took to stand, in microseconds; 0 if there was none.
    pub(crate) connect_us: u64,
    /// When the memory that workers share is looked at again for attempts of others.
    pub(crate) look_at: Time,
    /// Since when what is for it fails at once, since it answers nothing: see [`crate::upstream::liveness`].
    pub(crate) silent_since: Time,
    /// Left out of the ring, by agreement of all workers.
    pub(crate) ejected: bool,
    /// When its ejection may be asked for. It was just before, and whoever decides may have reasons
    /// not to answer.
    pub(crate) ask_at: Time,
    /// When it is asked whether it is well, while it is ejected.
    pub(crate) probe_at: Time,
    pub(crate) queues: Queues,
    pub(crate) scripts_seen: Seen,
    /// Some function has been called there since it was connected.
    pub(crate) functions_seen: bool,
    /// When it may be given those of another server.
    pub(crate) functions_at: Time,
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
    /// What its messages come on, once somebody has subscribed to anything there.
    pub(crate) feed: Option<Box<Feed>>,
    /// Lanes for transactions and blocking calls.
    pub(crate) session_lanes: Vec<LaneId>,
    /// Clients that wait for one of these, in the order of their coming, and until when.
    pub(crate) line: VecDeque<(ConnId, Time)>,
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

impl Pool {
    /// A pool that comes; nobody is to be asked to eject its servers before it is in use.
    pub(crate) fn new(
        config: snapshot::Pool,
        topology: Topology,
        metrics: cashew_metrics::PoolId,
        servers: Table<ServerId, Server>,
    ) -> Self {
        let wire_protocol = WireProtocol::first_of(&config);
        let mut pool = Self {
            protocol: config.protocol,
            standing: Standing::Coming,
            metrics,
            topology,
            servers,
            params_set: vec![SessionParams { wire_protocol, database: config.redis_db }],
            usage: vec![Usage::OPEN],
            timeout_us: u64::MAX,
            limits: config.limits,
            auth: None,
            misses: false,
            preconnect: false,
            auto_eject: false,
            retry_ms: 0,
            failure_limit: 1,
            large_replies: LargeReplies::new(),
            pubsub: PubSub::new(&config.name),
            watch: Watch::new(),
            commands: CustomCommands::default(),
            policy: Policy::new(&Rules::of(Clearance::Cache), &CustomCommands::default()),
            chores: ChorePolicy::new(Clearance::Cache, &[], &[]),
            reach: Reach::default(),
            notices: Notices::default(),
            learnt: Vec::new(),
            commands_version: 0,
            no_resp3_until: Time::ZERO,
            walk: Walk::new(&config.servers),
            scripts: Scripts::default(),
            clients: 0,
            places_taken: 0,
            quota: 0,
            ring_version: 0,
            held: false,
            is_monitored: false,
            is_clear: true,
            hold: None,
            paused: false,
            client_pause: None,
            config: Box::new(config),
        };
        pool.configure();
        pool.auto_eject = false;
        pool
    }

    /// Goes by what `config` says, but for the state of its servers and what places keys.
    pub(crate) fn configure(&mut self) {
        let config = &*self.config;
        self.walk = Walk::new(&config.servers);
        let timeout_us = |timeout: u64| timeout.saturating_mul(1000);
        self.timeout_us = config.timeout_ms.map_or(u64::MAX, timeout_us);
        self.limits = config.limits;
        self.auth.clone_from(&config.redis_auth);
        self.misses = config.memcached.on_failure == OnFailure::Miss;
        for (server, tag) in self.servers.iter_mut().zip(tags(config)) {
            server.tag = tag;
        }
        self.params_set[0].database = config.redis_db;
        self.preconnect = config.preconnect;
        self.auto_eject = config.auto_eject_hosts;
        self.retry_ms = config.server_retry_timeout_ms;
        self.failure_limit = config.server_failure_limit.max(1);
        self.commands_version = self.commands_version % u8::MAX + 1;
        self.learnt.clear();
        self.define_commands();
    }

    /// What lanes a client of this session takes.
    pub(crate) fn variant_of(&self, session: &Session) -> SessionParams {
        SessionParams {
            wire_protocol: session.wire_protocol,
            database: self.database_of(session.database),
        }
    }

    pub(crate) fn database_of(&self, selected: Selected) -> u32 {
        selected.number().unwrap_or(self.params_set[0].database)
    }

    /// Whether clients need not say who they are.
    pub(crate) fn is_open(&self) -> bool {
        self.auth.is_none() && self.config.memcached.client_auth.is_empty()
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.standing == Standing::InUse
    }

    /// Whether clients may come.
    pub(crate) fn serves(&self) -> bool {
        matches!(self.standing, Standing::InUse | Standing::Leaving { .. })
    }

    /// Dispatches again, unless it is held for another reason; or who is told of its requests has
    /// changed.
    pub(crate) fn update_held(&mut self) {
        self.held = self.hold.is_some() || self.paused || self.holds_all_back();
        self.is_monitored = self.watch.is_on();
        self.is_clear = !self.held && !self.is_monitored;
    }

    /// When a request that starts to wait at `from` has waited long enough.
    #[inline]
    pub(crate) fn expiry(&self, from: Time) -> Time {
        from.plus_micros(self.timeout_us)
    }

    pub(crate) fn connect_deadline(&self, now: Time) -> Time {
        now.plus_millis(self.limits.server_connect_timeout_ms).min(self.expiry(now))
    }
}

impl Server {
    /// A server with lanes from this one on, or with none if that is [`LaneId::NONE`].
    pub(crate) fn new(metrics: cashew_metrics::ServerId, first_lane: LaneId, lanes: u32) -> Self {
        Self {
            metrics,
            first_lane,
            lanes,
            others: Vec::new(),
            tag: Tag::default(),
            connections: 0,
            failures: 0,
            failed_at: Time::NEVER,
            failing: false,
            local_error: None,
            hindered_at: None,
            misfit_at: None,
            unknown: Unknown::default(),
            heard_at: Time::ZERO,
            connect_us: 0,
            look_at: Time::ZERO,
            silent_since: Time::NEVER,
            ejected: false,
            ask_at: Time::ZERO,
            probe_at: Time::NEVER,
            queues: Queues::default(),
            scripts_seen: Seen::default(),
            functions_seen: false,
            functions_at: Time::ZERO,
            streaming_lanes: Vec::new(),
            waiting: Vec::new(),
            reading: Vec::new(),
            wanted_at: None,
            want_counted_at: None,
            want_told_at: None,
            line_told_at: None,
            feed: None,
            session_lanes: Vec::new(),
            line: VecDeque::new(),
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
        let feed = self.feed.iter().map(|feed| feed.lane);
        let private = self.streaming_lanes.iter().chain(&self.session_lanes);
        self.own_lanes().chain(private.copied()).chain(feed)
    }

    #[inline(always)]
    fn first_of(&self, variant: u16) -> LaneId {
        match variant.checked_sub(1) {
            None => self.first_lane,
            Some(other) => self.others[usize::from(other)],
        }
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
