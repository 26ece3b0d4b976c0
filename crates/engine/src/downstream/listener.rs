//! What a port promises its clients, as one worker sees it.

use std::sync::Arc;

use cashew_acl::{User, Users};
use cashew_config::snapshot::{self, Limits, OnFailure, Protocol, Reads, UserOptions};
use cashew_protocol::memcached::ChorePolicy;
use cashew_protocol::redis::{Clearance, CustomCommands, Definition, Policy, Rules};

use crate::base::id::BackendId;
use crate::base::prefixes::Prefixes;
use crate::base::standing::Standing;
use crate::downstream::acl_log::AclLog;
use crate::downstream::audit::AuditRules;
use crate::downstream::key_prefix::KeyPrefix;
use crate::downstream::notice::Notices;
use crate::downstream::user_limits::{HighPriority, UserLimits};
use crate::topology::route_tree::Tree;

/// It has no servers: its requests go to a [backend](crate::upstream::backend::Backend).
pub(crate) struct Listener {
    /// Where its requests go, but for those of some users.
    pub(crate) destination: Destination,
    /// Where the requests of these go.
    pub(crate) user_destinations: Vec<Destination>,
    /// Who they are, sorted by name.
    user_routes: Vec<(String, DestinationNumber)>,
    pub(crate) config: Arc<snapshot::Pool>,
    /// As far as clients are concerned.
    pub(crate) standing: Standing,
    /// What its clients speak.
    pub(crate) protocol: Protocol,
    pub(crate) metrics: cashew_metrics::PoolId,
    /// Those of clients count here, those of servers and lanes at the backend.
    pub(crate) limits: Limits,
    /// Requests are counted by class of commands, and by these prefixes of keys.
    pub(crate) counts: bool,
    /// Users whose numbers are shown, by name; empty where there are none.
    pub(crate) user_rows: Vec<String>,
    pub(crate) prefixes: Prefixes,
    /// Clients that take longer to read a reply are recorded, in microseconds.
    pub(crate) slow_after_us: u64,
    pub(crate) auth: Option<String>,
    /// Those of its configuration, or of Redis's protocol the only one there is without.
    pub(crate) users: Arc<Users>,
    /// Those who have limits, sorted by name; behind them, where [`has_common_limits`](Self::has_common_limits) says
    /// so, what is of all clients whose users have none.
    pub(crate) user_limits: Vec<UserLimits>,
    has_common_limits: bool,
    /// Whom its users wait for.
    pub(crate) high: HighPriority,
    /// What keys of users begin with who have a prefix, sorted by their names.
    pub(crate) key_prefixes: Vec<(String, Arc<KeyPrefix>)>,
    /// What is told of its clients.
    pub(crate) audit: Option<Arc<AuditRules>>,
    /// Who answers the reads of users, if not the same as for others, sorted by their names.
    user_reads: Vec<(String, Reads)>,
    /// What users were denied lately, the latest first.
    pub(crate) acl_log: AclLog,
    /// Those that are not in the table.
    pub(crate) commands: CustomCommands,
    /// What clients may call, by Redis's protocol and by memcached's.
    pub(crate) policy: Policy,
    /// The same, without commands that are told: what the fast path goes by.
    pub(crate) fast_policy: Policy,
    pub(crate) chores: ChorePolicy,
    pub(crate) notices: Notices,
    /// Commands that servers told of.
    pub(crate) learnt: Vec<Definition>,
    /// Another one when what was learnt is forgotten; never 0.
    pub(crate) commands_version: u8,
    pub(crate) clients: u64,
    /// How many of them count for `client_connections`.
    pub(crate) places_taken: u64,
    /// Where they are counted over all workers.
    pub(crate) quota: u32,
    /// Somebody is told of its requests: a monitor, or the audit log.
    pub(crate) is_monitored: bool,
    /// The audit log is told of requests that the fast path of memcached, which goes by no policy, would take.
    pub(crate) audits_keys: bool,
}

/// Where requests go: those of a port's clients, or of some users among them.
pub(crate) struct Destination {
    /// All of them; of a route those without a key.
    pub(crate) backend: BackendId,
    /// By their keys, if that is not to one backend.
    pub(crate) route: Option<Arc<Tree>>,
    /// A get whose server fails is a miss.
    pub(crate) misses: bool,
    /// Reads have a choice of servers, as far as the configuration goes.
    pub(crate) has_replicas: bool,
    /// Equal reads share a reply, at one of the backends at least.
    pub(crate) shares_reads: bool,
    /// What requests have a choice of.
    pub(crate) choice: Choice,
    /// RENAME and COPY go from one server to another.
    pub(crate) copies_across: bool,
    /// Clients may select those below; if it is 1, only `redis_db`.
    pub(crate) databases: u32,
    pub(crate) redis_db: u32,
    /// Nothing is dispatched: a backend is held, or a client said so.
    pub(crate) held: bool,
    /// Requests may take the fast path, as far as the port's `fast_policy` goes: it is neither held nor
    /// monitored.
    pub(crate) is_clear: bool,
}

/// Which of its port's destinations a client has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DestinationNumber(u8);

impl DestinationNumber {
    /// That of all who have no other.
    pub(crate) const OWN: Self = Self(0);

    fn of_users(place: usize) -> Self {
        // The configuration allows fewer.
        u8::try_from(place + 1).map_or(Self::OWN, Self)
    }
}

impl Destination {
    /// To one backend, which is as this says.
    pub(crate) fn new(backend: BackendId, config: &snapshot::Pool) -> Self {
        let has_replicas = config.has_copies();
        let choice = match has_replicas {
            _ if config.coalesces() => Choice::Sharing,
            true => Choice::Replicas,
            false => Choice::None,
        };
        Self {
            backend,
            route: None,
            misses: config.memcached.on_failure == OnFailure::Miss,
            has_replicas,
            shares_reads: config.coalesces(),
            choice,
            copies_across: config.cross_server_copy,
            databases: config.databases,
            redis_db: config.redis_db,
            held: false,
            is_clear: true,
        }
    }

    /// Whether requests may go to that backend.
    pub(crate) fn leads_to(&self, backend: BackendId) -> bool {
        self.backends().contains(&backend)
    }

    /// All that requests may go to.
    pub(crate) fn backends(&self) -> &[BackendId] {
        match &self.route {
            None => std::slice::from_ref(&self.backend),
            Some(route) => route.backends(),
        }
    }
}

/// What a port's requests have a choice of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    None,
    /// Servers that have the same keys.
    Replicas,
    /// The backends of a route.
    Backends,
    /// Replies that others' equal reads get, and perhaps servers that have the same keys.
    Sharing,
}

impl Listener {
    /// One that comes.
    pub(crate) fn new(
        config: Arc<snapshot::Pool>,
        backend: BackendId,
        metrics: cashew_metrics::PoolId,
        quota: u32,
    ) -> Self {
        let mut listener = Self {
            destination: Destination::new(backend, &config),
            user_destinations: Vec::new(),
            user_routes: Vec::new(),
            protocol: config.protocol,
            standing: Standing::Coming,
            metrics,
            limits: config.limits,
            counts: false,
            user_rows: Vec::new(),
            prefixes: Prefixes::default(),
            slow_after_us: u64::MAX,
            auth: None,
            users: Arc::new(Users::only_default(None)),
            user_limits: Vec::new(),
            has_common_limits: false,
            high: HighPriority::default(),
            key_prefixes: Vec::new(),
            audit: None,
            user_reads: Vec::new(),
            acl_log: AclLog::default(),
            commands: CustomCommands::default(),
            policy: Policy::new(&Rules::of(Clearance::Cache), &CustomCommands::default()),
            fast_policy: Policy::new(&Rules::of(Clearance::Cache), &CustomCommands::default()),
            chores: ChorePolicy::new(Clearance::Cache, &[], &[]),
            notices: Notices::default(),
            learnt: Vec::new(),
            commands_version: 0,
            clients: 0,
            places_taken: 0,
            quota,
            is_monitored: false,
            audits_keys: false,
            config,
        };
        listener.configure();
        listener.renew_user_reads();
        listener
    }

    /// Goes by what `config` says, but for its clients. What its clients may call is to be decided
    /// next.
    pub(crate) fn configure(&mut self) {
        let config = &*self.config;
        self.limits = config.limits;
        self.counts = config.command_stats;
        self.user_rows = config.user_rows().into_iter().map(str::to_owned).collect();
        self.prefixes = Prefixes::new(&config.prefixes);
        self.slow_after_us = config.slow_after_us();
        self.auth.clone_from(&config.redis_auth);
        self.users = Arc::new(match config.users.is_empty() {
            true => Users::only_default(config.redis_auth.as_deref()),
            false => Users::of_lines(&config.users),
        });
        let prefixed = config.user_options.iter().filter(|user| !user.key_prefix.is_empty());
        let prefix = |prefix: &str| Arc::new(KeyPrefix(prefix.as_bytes().into()));
        self.key_prefixes =
            prefixed.map(|user| (user.name.clone(), prefix(&user.key_prefix))).collect();
        let Destination { backend, held, is_clear, .. } = self.destination;
        self.destination = Destination { held, is_clear, ..Destination::new(backend, config) };
        self.commands_version = self.commands_version % u8::MAX + 1;
        self.learnt.clear();
    }

    /// The place of a user among those whose numbers are shown: the last is for all others.
    pub(crate) fn user_row(&self, name: &str) -> usize {
        let last = self.user_rows.len().saturating_sub(1);
        self.user_rows[..last].binary_search_by(|row| (**row).cmp(name)).unwrap_or(last)
    }

    /// Whether its requests may go to that backend.
    pub(crate) fn leads_to(&self, backend: BackendId) -> bool {
        self.destinations().any(|destination| destination.leads_to(backend))
    }

    /// That of its own first.
    pub(crate) fn destinations(&self) -> impl Iterator<Item = &Destination> {
        std::iter::once(&self.destination).chain(&self.user_destinations)
    }

    pub(crate) fn destination(&self, number: DestinationNumber) -> &Destination {
        match number.0 {
            0 => &self.destination,
            number => self.destination_of_users(number),
        }
    }

    #[cold]
    fn destination_of_users(&self, number: u8) -> &Destination {
        // While an epoch is changed they have no numbers.
        self.user_destinations.get(usize::from(number) - 1).unwrap_or(&self.destination)
    }

    /// Where the requests of whoever is this user go.
    pub(crate) fn destination_of(&self, user: Option<&Arc<User>>) -> DestinationNumber {
        user.map_or(DestinationNumber::OWN, |user| self.destination_named(user.name()))
    }

    /// Where a user's requests go.
    pub(crate) fn destination_named(&self, user: &str) -> DestinationNumber {
        let found = self.user_routes.binary_search_by(|(name, _)| name.as_str().cmp(user));
        found.map_or(DestinationNumber::OWN, |at| self.user_routes[at].1)
    }

    /// Whether requests of some users go elsewhere than others'.
    pub(crate) fn has_user_routes(&self) -> bool {
        !self.user_routes.is_empty()
    }

    /// Users of its configuration have these destinations from here on, one for each of its `user_routes`.
    pub(crate) fn set_user_destinations(&mut self, destinations: Vec<Destination>) {
        let routes = &self.config.user_routes;
        let number_of = |name: &str| routes.iter().position(|it| it.name == name);
        let options = self.config.user_options.iter();
        let found = options.filter_map(|user| {
            let place = number_of(user.route.as_deref()?)?;
            Some((user.name.clone(), DestinationNumber::of_users(place)))
        });
        self.user_routes = found.collect();
        self.user_destinations = destinations;
    }

    /// Whether clients need not say who they are.
    pub(crate) fn is_open(&self) -> bool {
        match self.has_users() {
            true => self.users.open_default().is_some(),
            false => self.auth.is_none() && self.config.memcached.client_auth.is_empty(),
        }
    }

    /// Whether clients are users, each with rules of its own.
    pub(crate) fn has_users(&self) -> bool {
        !self.config.users.is_empty()
    }

    /// Whether a client is known that was known before, perhaps where other users were or none, and who
    /// it is now: a user who is gone or off is nobody.
    pub(crate) fn user_again(&self, was_known: bool, name: &str) -> (bool, Option<Arc<User>>) {
        if !self.has_users() {
            // Who was a user never gave the password that is wanted now.
            return (was_known && name.is_empty() || self.is_open(), None);
        }
        if !was_known {
            return (self.is_open(), self.first_user());
        }
        let name = if name.is_empty() { "default" } else { name };
        let user = self.users.named(name.as_bytes()).filter(|user| user.is_on()).cloned();
        (user.is_some(), user)
    }

    /// What a user's keys begin with, if it has a prefix.
    pub(crate) fn key_prefix_of(&self, name: &str) -> Option<&Arc<KeyPrefix>> {
        let found = self.key_prefixes.binary_search_by(|(user, _)| user.as_str().cmp(name));
        found.ok().map(|at| &self.key_prefixes[at].1)
    }

    /// Who answers a user's reads, if that is said of it.
    pub(crate) fn reads_of(&self, name: &str) -> Option<Reads> {
        let found = self.user_reads.binary_search_by(|(user, _)| user.as_str().cmp(name)).ok()?;
        Some(self.user_reads[found].1)
    }

    /// Goes by what its configuration says of users' reads from here on.
    pub(crate) fn renew_user_reads(&mut self) {
        let options = self.config.user_options.iter();
        let reads = options.filter_map(|user| Some((user.name.clone(), user.reads?)));
        self.user_reads = reads.collect();
    }

    /// A user's place among those who have limits.
    pub(crate) fn limits_of(&self, name: &str) -> Option<usize> {
        let named = self.user_limits.len() - usize::from(self.has_common_limits);
        let named = &self.user_limits[..named];
        named.binary_search_by(|user| user.options.name.as_str().cmp(name)).ok()
    }

    /// The place of what is of all clients whose users have no limits: they have to wait for a user of high priority.
    pub(crate) fn common_limits(&self) -> Option<usize> {
        self.has_common_limits.then(|| self.user_limits.len() - 1)
    }

    /// Where a user has a high priority, all others have to wait for it.
    pub(crate) fn set_common_limits(&mut self, has_high: bool, metrics: &cashew_metrics::Writer) {
        self.has_common_limits = has_high;
        if has_high {
            // Statistics do not know it.
            let id = metrics.user(self.metrics, usize::MAX);
            self.user_limits.push(UserLimits::new(UserOptions::of(""), id, true));
        }
    }

    /// Who a client is that has not said so.
    pub(crate) fn first_user(&self) -> Option<Arc<User>> {
        self.users.open_default().filter(|_| self.has_users()).cloned()
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.standing == Standing::InUse
    }

    /// Whether clients may come.
    pub(crate) fn serves(&self) -> bool {
        matches!(self.standing, Standing::InUse | Standing::Leaving { .. })
    }

    /// Whether clients have asked for all to wait, whether somebody is told of requests, or whether backends are
    /// held has changed.
    pub(crate) fn set_off_fast_path(
        &mut self,
        waits: bool,
        is_monitored: bool,
        is_held: impl Fn(BackendId) -> bool,
        is_cached: impl Fn(BackendId) -> bool,
    ) {
        let audits = self.audit.as_ref().is_some_and(|rules| rules.has_commands());
        self.is_monitored = is_monitored || audits;
        let is_open = !is_monitored && !self.audits_keys;
        for it in std::iter::once(&mut self.destination).chain(&mut self.user_destinations) {
            it.held = waits || is_held(it.backend) || it.backends().iter().any(|&it| is_held(it));
            let is_plain = it.route.as_ref().is_none_or(|route| !route.tells_deletions());
            // What goes where replies are kept is looked at.
            let is_cached = is_cached(it.backend) || it.backends().iter().any(|&it| is_cached(it));
            it.is_clear = !it.held && is_open && is_plain && !is_cached;
        }
    }
}
