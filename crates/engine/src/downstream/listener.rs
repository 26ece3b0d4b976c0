//! What a port promises its clients, as one worker sees it.

use std::sync::Arc;

use cashew_acl::{User, Users};
use cashew_config::snapshot::{self, Limits, OnFailure, Protocol, Reads};
use cashew_protocol::memcached::ChorePolicy;
use cashew_protocol::redis::{Clearance, CustomCommands, Definition, Policy, Rules};

use crate::base::id::BackendId;
use crate::base::prefixes::Prefixes;
use crate::base::standing::Standing;
use crate::downstream::acl_log::AclLog;
use crate::downstream::audit::AuditRules;
use crate::downstream::key_prefix::KeyPrefix;
use crate::downstream::notice::Notices;
use crate::downstream::user_limits::UserLimits;
use crate::topology::route_tree::Tree;

/// It has no servers: its requests go to a [backend](crate::upstream::backend::Backend).
pub(crate) struct Listener {
    /// Where its requests go; of a route those without a key.
    pub(crate) backend: BackendId,
    /// Where its requests go by their keys, if that is not to one backend.
    pub(crate) route: Option<Arc<Tree>>,
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
    /// Those who have limits, sorted by name.
    pub(crate) user_limits: Vec<UserLimits>,
    /// What keys of users begin with who have a prefix, sorted by their names.
    pub(crate) key_prefixes: Vec<(String, Arc<KeyPrefix>)>,
    /// What is told of its clients.
    pub(crate) audit: Option<Arc<AuditRules>>,
    /// Who answers the reads of users, if not the same as for others, sorted by their names.
    user_reads: Vec<(String, Reads)>,
    /// What users were denied lately, the latest first.
    pub(crate) acl_log: AclLog,
    /// A get whose server fails is a miss.
    pub(crate) misses: bool,
    /// Reads have a choice of servers, as far as the configuration goes.
    pub(crate) has_replicas: bool,
    /// What its requests have a choice of.
    pub(crate) choice: Choice,
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
    /// Nothing of its clients is dispatched: its backend is held, or a client said so.
    pub(crate) held: bool,
    /// Somebody is told of its requests: a monitor, or the audit log.
    pub(crate) is_monitored: bool,
    /// The audit log is told of requests that the fast path of memcached, which goes by no policy, would take.
    pub(crate) audits_keys: bool,
    /// Requests may take the fast path, as far as `fast_policy` goes: it is neither held nor monitored.
    pub(crate) is_clear: bool,
}

/// What a port's requests have a choice of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    None,
    /// Servers that have the same keys.
    Replicas,
    /// The backends of a route.
    Backends,
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
            backend,
            route: None,
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
            key_prefixes: Vec::new(),
            audit: None,
            user_reads: Vec::new(),
            acl_log: AclLog::default(),
            misses: false,
            has_replicas: false,
            choice: Choice::None,
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
            held: false,
            is_monitored: false,
            audits_keys: false,
            is_clear: true,
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
        self.misses = config.memcached.on_failure == OnFailure::Miss;
        self.has_replicas = config.has_copies();
        self.choice = if self.has_replicas { Choice::Replicas } else { Choice::None };
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
        match &self.route {
            None => self.backend == backend,
            Some(route) => route.backends().contains(&backend),
        }
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
        self.user_limits.binary_search_by(|user| user.options.name.as_str().cmp(name)).ok()
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

    /// Whether its clients' requests wait, and whether somebody is told of them, has changed.
    pub(crate) fn set_off_fast_path(&mut self, held: bool, is_monitored: bool) {
        let audits = self.audit.as_ref().is_some_and(|rules| rules.has_commands());
        (self.held, self.is_monitored) = (held, is_monitored || audits);
        let is_plain = self.route.as_ref().is_none_or(|route| !route.tells_deletions());
        self.is_clear = !held && !is_monitored && !self.audits_keys && is_plain;
    }
}
