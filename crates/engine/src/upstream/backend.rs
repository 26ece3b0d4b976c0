//! A set of servers and what places keys on them, as one worker sees it.

use std::borrow::Cow;
use std::sync::Arc;

use cashew_config::snapshot::{self, Limits, Protocol};

use crate::base::failure::{Failure, NamedFailure, label};
use crate::base::id::ServerId;
use crate::base::standing::Standing;
use crate::base::table::Table;
use crate::base::time::Time;
use crate::topology::Topology;
use crate::upstream::bulk::LargeReplies;
use crate::upstream::hedge::Hedging;
use crate::upstream::replica_reads::ReplicaRules;
use crate::upstream::retry::RetryBudget;
use crate::upstream::server::Server;
use crate::upstream::session_params::{SessionParams, Usage, WireProtocol};
use crate::upstream::spool::SpoolOf;
use crate::upstream::tracking::TrackedKeys;

/// It knows no client: the ports whose requests it answers are
/// [listeners](crate::downstream::listener::Listener).
pub(crate) struct Backend {
    pub(crate) config: Arc<snapshot::Pool>,
    /// As far as lanes are concerned.
    pub(crate) standing: Standing,
    /// What takes longer is recorded, in microseconds.
    pub(crate) slow_after_us: u64,
    /// Requests are looked at one by one that take long, or are samples: see [`crate::observe`].
    pub(crate) is_observed: bool,
    /// What its servers speak.
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
    /// Its servers may say that they take longer.
    pub(crate) may_relax: bool,
    /// How long those wait that were not sent while their server cannot be reached, in microseconds:
    /// see [`crate::upstream::connect_attempts`].
    pub(crate) failover_wait_us: u64,
    /// What a server refuses to run is sent again: see [`crate::upstream::refused`].
    pub(crate) repeats_refused: bool,
    /// Lanes that clients share must keep what is in flight, for that, or to send it to another server, too.
    pub(crate) keeps_sent: bool,
    /// Reads that take long are sent to another server, too.
    pub(crate) hedging: Option<Hedging>,
    /// Equal reads that wait to be written share a reply: see [`crate::upstream::equal_reads`].
    pub(crate) shares_reads: bool,
    /// Reads whose server fails are sent again.
    pub(crate) retries: Option<RetryBudget>,
    /// What servers answer is looked at: how soon they do, or how often.
    pub(crate) watches_answers: bool,
    /// The fast path has to look closer at replies: for that, or since reads have a choice of servers.
    pub(crate) looks_closer: bool,
    /// Those of servers and their lanes count here, those of clients at the listener.
    pub(crate) limits: Limits,
    pub(crate) preconnect: bool,
    pub(crate) auto_eject: bool,
    /// Whoever decides on ejections wants to know, too, of servers on the ring that answer again.
    pub(crate) fails_open: bool,
    pub(crate) retry_ms: u64,
    pub(crate) failure_limit: u32,
    pub(crate) large_replies: LargeReplies,
    pub(crate) replica_rules: ReplicaRules,
    /// A server refused RESP3: until then clients are, too.
    pub(crate) no_resp3_until: Time,
    /// Requests that nodes have sent back, and that wait to be sent again.
    pub(crate) sent_back: u32,
    /// When it was said last that the map of its cluster may be old.
    pub(crate) map_doubted_at: Option<Time>,
    /// Number of the ring in use; grows with every change.
    pub(crate) ring_version: u64,
    /// The change of the ring that nothing is dispatched for.
    pub(crate) hold: Option<Hold>,
    /// Nothing is dispatched for a change of the epoch.
    pub(crate) paused: bool,
    /// What servers could not be told to forget is kept there.
    pub(crate) spool: Option<SpoolOf>,
    /// Of which keys its servers tell that they change, if anybody wants to know: see [`crate::redis::tracking`].
    pub(crate) tracked: Option<TrackedKeys>,
    /// Some node keeps replies of its servers: what goes there is looked at.
    pub(crate) is_cached: bool,
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

impl Backend {
    /// One that comes; nobody is to be asked to eject its servers before it is in use.
    pub(crate) fn new(
        config: Arc<snapshot::Pool>,
        topology: Topology,
        metrics: cashew_metrics::PoolId,
        servers: Table<ServerId, Server>,
    ) -> Self {
        let wire_protocol = WireProtocol::first_of(&config);
        let mut backend = Self {
            protocol: config.protocol,
            standing: Standing::Coming,
            metrics,
            topology,
            servers,
            params_set: vec![SessionParams { wire_protocol, database: config.redis_db }],
            usage: vec![Usage::OPEN],
            slow_after_us: u64::MAX,
            is_observed: false,
            timeout_us: u64::MAX,
            may_relax: false,
            failover_wait_us: 0,
            repeats_refused: false,
            keeps_sent: false,
            hedging: None,
            shares_reads: false,
            retries: None,
            watches_answers: false,
            looks_closer: false,
            limits: config.limits,
            preconnect: false,
            auto_eject: false,
            fails_open: false,
            retry_ms: 0,
            failure_limit: 1,
            large_replies: LargeReplies::new(),
            replica_rules: ReplicaRules::default(),
            no_resp3_until: Time::ZERO,
            sent_back: 0,
            map_doubted_at: None,
            ring_version: 0,
            hold: None,
            paused: false,
            spool: None,
            tracked: None,
            is_cached: false,
            config,
        };
        backend.configure();
        backend.auto_eject = false;
        backend.fails_open = false;
        backend
    }

    /// Goes by what `config` says, but for the state of its servers and what places keys.
    pub(crate) fn configure(&mut self) {
        let config = &*self.config;
        let timeout_us = |timeout: u64| timeout.saturating_mul(1000);
        self.timeout_us = config.timeout_ms.map_or(u64::MAX, timeout_us);
        self.may_relax = config.server_maintenance.is_some();
        self.failover_wait_us = (config.failover_wait_ms * 1000).min(self.timeout_us);
        self.slow_after_us = config.slow_after_us();
        self.is_observed = config.slow_log_ms > 0 || config.hot_keys;
        self.limits = config.limits;
        self.params_set[0].database = config.redis_db;
        self.preconnect = config.preconnect;
        self.auto_eject = config.auto_eject_hosts;
        self.fails_open = self.auto_eject && config.fail_open_percent < 100;
        self.retry_ms = config.server_retry_timeout_ms;
        self.failure_limit = config.server_failure_limit.max(1);
        for (server, named) in self.servers.iter_mut().zip(&config.servers) {
            let label = || label(&named.name, &named.endpoint.to_string());
            server.label = (!config.hide_topology).then(label);
        }
        self.spool = SpoolOf::change(self.spool.take(), config);
        self.configure_replica_reads();
        let may_send_again = self.failover_wait_us > 0
            || self.topology.has_slots()
            || self.topology.moves_reads(None)
            || !self.config.reads_by_class.is_empty();
        self.repeats_refused = self.protocol == Protocol::Redis && may_send_again;
        let hedge = self.config.hedge.filter(|_| self.config.has_copies());
        self.hedging = hedge.map(|hedge| Hedging::change(self.hedging.take(), &hedge));
        self.shares_reads = self.config.coalesces();
        self.retries = self.config.retry_reads.then(|| self.retries.take().unwrap_or_default());
        self.keeps_sent = self.repeats_refused || self.hedging.is_some() || self.retries.is_some();
        self.looks_closer = self.repeats_refused || self.replica_rules.has_replicas;
        self.watches_answers =
            self.topology.is_by_latency() || self.hedging.is_some() || self.retries.is_some();
    }

    /// A client wants its reads to go by how long servers take.
    #[cold]
    pub(crate) fn heed_latency(&mut self) {
        self.topology.heed_latency();
        self.watches_answers = true;
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.standing == Standing::InUse
    }

    /// Nothing is dispatched: a change of the ring or of the epoch is under way.
    pub(crate) fn is_held(&self) -> bool {
        self.hold.is_some() || self.paused
    }

    /// When a request that starts to wait at `from` has waited long enough.
    #[inline]
    pub(crate) fn expiry(&self, from: Time) -> Time {
        from.plus_micros(self.timeout_us)
    }

    /// What clients know a server by: its name, or where the pool hides those, its number.
    pub(crate) fn shown_name(&self, server: ServerId) -> Cow<'_, str> {
        match self.config.hide_topology {
            true => format!("server{}", server.number()).into(),
            false => self.config.servers[server.index()].name.as_str().into(),
        }
    }

    /// A failure of that server, as clients are told of it.
    pub(crate) fn named(&self, server: ServerId, why: Failure) -> NamedFailure {
        NamedFailure::of(why, self.servers[server].label.as_ref())
    }

    pub(crate) fn connect_deadline(&self, now: Time) -> Time {
        now.plus_millis(self.limits.server_connect_timeout_ms).min(self.expiry(now))
    }
}
