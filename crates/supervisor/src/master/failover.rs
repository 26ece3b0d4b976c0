//! Another primary, as an operator wants it.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use cashew_config::snapshot::{Protocol, ServerGroup};
use cashew_control::ToChild;
use cashew_discovery::{Role, role_of};
use cashew_metrics::EventKind;
use cashew_tls::Security;
use rustix::event::PollFlags;
use tracing::{debug, info};

use super::{Master, Phase, Source};
use crate::background_task::BackgroundTask;
use crate::command::Reply;
use crate::interests::Interests;

/// A change that is not through by then is withdrawn.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a server may take to say what it is.
const ROLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Operators who wait for a promotion.
#[derive(Default)]
pub(super) struct Failovers {
    waiting: Vec<Waiting>,
    /// By number: servers that are asked first whether they are masters.
    asking: BTreeMap<u64, Asking>,
    last_asking: u64,
}

struct Asking {
    pool: String,
    group: Option<String>,
    server: String,
    reply: Box<dyn Reply>,
    answer: BackgroundTask<Result<Role, String>>,
}

struct Waiting {
    pool: String,
    server: String,
    reply: Box<dyn Reply>,
    until: Instant,
}

impl Failovers {
    /// Whether somebody waits for an answer that only this program can give.
    pub(super) fn is_working(&self) -> bool {
        !self.waiting.is_empty() || !self.asking.is_empty()
    }

    pub(super) fn add_interests<'a>(&'a self, interests: &mut Interests<'a, Source>) {
        for (&number, asking) in &self.asking {
            interests.add(Source::AskedRole(number), asking.answer.as_fd(), PollFlags::IN);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.iter().map(|waiting| waiting.until).min()
    }
}

impl Master {
    /// As [`Master::fail_over`], if the server says that it is a master.
    pub(super) fn ask_and_fail_over(
        &mut self,
        pool: String,
        group: Option<String>,
        server: String,
        reply: Box<dyn Reply>,
        now: Instant,
    ) {
        let (at, place) = match self.place_of(&pool, group.as_deref(), &server) {
            Ok(place) => place,
            Err(why) => return reply.failed(&why),
        };
        if let Err(why) = self.check_no_sentinels((at, place)) {
            return reply.failed(&why);
        }
        let config = &self.current.snapshot.pools[at as usize];
        if config.protocol != Protocol::Redis {
            return self.fail_over(pool, group.as_deref(), &server, reply, now);
        }
        let endpoint = config.servers[place as usize].endpoint.clone();
        let credentials = config.server_auth.of(&config.servers[place as usize].name).to_vec();
        let security = config.server_tls.clone().map(Security::new);
        let ask = move || role_of(&endpoint, security.as_ref(), &credentials, ROLE_TIMEOUT);
        match BackgroundTask::start("role", ask) {
            Ok(answer) => {
                self.failovers.last_asking += 1;
                let asking = Asking { pool, group, server, reply, answer };
                self.failovers.asking.insert(self.failovers.last_asking, asking);
            }
            Err(error) => reply.failed(&format!("cannot ask '{server}' for its role: {error}")),
        }
    }

    pub(super) fn handle_role(&mut self, number: u64, now: Instant) {
        let Some(asking) = self.failovers.asking.remove(&number) else { return };
        let Asking { pool, group, server, reply, answer } = asking;
        if !reply.is_awaited() {
            return;
        }
        let Some(answer) = answer.finish() else {
            return reply.failed("asking the server for its role panicked");
        };
        let why = match answer {
            Ok(Role::Primary) => {
                return self.fail_over_to(number, (pool, group.as_deref(), &server), reply, now);
            }
            Ok(Role::Replica) => "says that it is a replica: promote it first (REPLICAOF NO ONE), \
                                  or it refuses writes"
                .to_owned(),
            Err(why) => format!("does not say that it is a master: {why}"),
        };
        reply.failed(&format!("pool '{pool}': '{server}' {why}; --force goes on all the same"));
    }

    pub(super) fn fail_over(
        &mut self,
        pool: String,
        group: Option<&str>,
        server: &str,
        reply: Box<dyn Reply>,
        now: Instant,
    ) {
        self.failovers.last_asking += 1;
        self.fail_over_to(self.failovers.last_asking, (pool, group, server), reply, now);
    }

    /// `number` is that of the command: what was asked for before it does not happen any more.
    fn fail_over_to(
        &mut self,
        number: u64,
        (pool, group, server): (String, Option<&str>, &str),
        mut reply: Box<dyn Reply>,
        now: Instant,
    ) {
        if self.phase == Phase::Stopping {
            return reply.failed("the instance is stopping");
        }
        let (at, place) = match self.place_of(&pool, group, server) {
            Ok(place) => place,
            Err(why) => return reply.failed(&why),
        };
        if let Err(why) = self.check_no_sentinels((at, place)) {
            return reply.failed(&why);
        }
        let why = "an operator asked for it".to_owned();
        match self.rings.promote(at, place, why, now) {
            Ok(true) => {}
            Ok(false) => {
                reply.line(&format!("pool '{pool}': '{server}' takes the writes already"));
                return reply.unchanged();
            }
            Err(why) => return reply.failed(&format!("pool '{pool}': {why}")),
        }
        self.replace_failovers(Some(number), (at, place));
        let server = self.current.snapshot.pools[at as usize].servers[place as usize].name.clone();
        self.failovers.waiting.push(Waiting { pool, server, reply, until: now + PATIENCE });
        self.deliver_rings(now);
        self.end_failovers(now);
    }

    /// Who takes the writes of a group that Sentinels watch, or of a cluster, is for them to say.
    fn check_no_sentinels(&self, (at, place): (u32, u32)) -> Result<(), String> {
        let pool = &self.current.snapshot.pools[at as usize];
        let name = pool.group_names()[place as usize];
        let mut groups = pool.sentinel.iter().flat_map(|sentinel| &sentinel.groups);
        if pool.is_cluster() {
            return Err(format!(
                "pool '{}': the cluster says who takes the writes of '{name}': CLUSTER FAILOVER at a replica",
                pool.name
            ));
        }
        match groups.find(|group| group.server == name) {
            Some(group) => Err(format!(
                "pool '{}': Sentinels say who takes the writes of '{name}': SENTINEL FAILOVER {}",
                pool.name, group.master
            )),
            None => Ok(()),
        }
    }

    /// Ends those for other servers of the same group: those that wait, and those of commands before
    /// this number whose servers are asked still.
    fn replace_failovers(&mut self, before: Option<u64>, (at, place): (u32, u32)) {
        let name = self.current.snapshot.pools[at as usize].servers[place as usize].name.clone();
        let is_other = |pool: &str, group: Option<&str>, server: &str| {
            let other = self.place_of(pool, group, server).ok();
            other.is_some_and(|(its, other)| {
                (its, self.rings.group_of(its, other)) == (at, self.rings.group_of(at, place))
                    && other != place
            })
        };
        let is_replaced = |it: &Waiting| is_other(&it.pool, None, &it.server);
        let replaced: Vec<bool> = self.failovers.waiting.iter().map(is_replaced).collect();
        let is_asked_before = |(number, it): &(&u64, &Asking)| {
            before.is_some_and(|before| **number < before)
                && is_other(&it.pool, it.group.as_deref(), &it.server)
        };
        let asked: Vec<u64> = self
            .failovers
            .asking
            .iter()
            .filter(is_asked_before)
            .map(|(&number, _)| number)
            .collect();
        let end = |pool: &str, reply: Box<dyn Reply>| {
            reply.failed(&format!("pool '{pool}': replaced by a later failover to '{name}'"));
        };
        let waiting = std::mem::take(&mut self.failovers.waiting);
        for (waiting, is_replaced) in waiting.into_iter().zip(replaced) {
            match is_replaced {
                true => end(&waiting.pool, waiting.reply),
                false => self.failovers.waiting.push(waiting),
            }
        }
        for number in asked {
            if let Some(asking) = self.failovers.asking.remove(&number) {
                end(&asking.pool, asking.reply);
            }
        }
    }

    /// A worker's server refuses writes as a replica does: discovery asks who is the primary.
    pub(super) fn ask_for_primary(&mut self, pool: u32, server: u32, now: Instant) {
        let config = &self.current.snapshot.pools[pool as usize];
        if config.is_cluster() {
            return self.ask_for_map(config.name.clone(), now);
        }
        let (pool, server) = (config.name.clone(), config.servers[server as usize].name.clone());
        if self.members.contains_key(&crate::child::Role::Discovery) {
            let message = ToChild::NotPrimary { pool, server };
            self.post(crate::child::Role::Discovery, message, Vec::new(), now);
        }
    }

    /// A primary has become the replica of another server of its group: that one takes the writes.
    pub(super) fn follow_successor(&mut self, pool: &str, from: &str, to: &str, now: Instant) {
        let (Ok((at, former)), Ok((_, place))) =
            (self.place_of(pool, None, from), self.place_of(pool, None, to))
        else {
            return;
        };
        let is_current = self.rings.primaries(at).values().any(|&primary| primary == former)
            && self.check_no_sentinels((at, place)).is_ok();
        if self.phase != Phase::Serving || !is_current {
            return;
        }
        let why = format!("'{from}' is a replica of it now");
        match self.rings.promote(at, place, why, now) {
            Ok(_) => self.replace_failovers(None, (at, place)),
            Err(why) => debug!("pool '{pool}': '{to}' is not made the primary: {why}"),
        }
        self.deliver_rings(now);
    }

    /// Where a pool and its server are in the snapshot. An error says what there is instead. A server
    /// of a group may be given by its address alone, where it is known which group is meant.
    pub(super) fn place_of(
        &self,
        pool: &str,
        group: Option<&str>,
        server: &str,
    ) -> Result<(u32, u32), String> {
        let pools = &self.current.snapshot.pools;
        let Some(at) = pools.iter().position(|it| it.name == pool) else {
            let names: Vec<&str> = pools.iter().map(|pool| &*pool.name).collect();
            return Err(format!("there is no pool '{pool}'; there are: {}", names.join(", ")));
        };
        let servers = &pools[at].servers;
        let groups: Vec<ServerGroup> =
            pools[at].replicated().into_iter().map(|(_, group)| group).collect();
        let meant = match group {
            Some(name) => Some(groups.iter().find(|it| it.name == name).ok_or_else(|| {
                let names: Vec<&str> = groups.iter().map(|group| &*group.name).collect();
                match names.is_empty() {
                    true => format!("pool '{pool}' has no groups with replicas"),
                    false => format!(
                        "pool '{pool}' has no group '{name}' with replicas; it has: {}",
                        names.join(", ")
                    ),
                }
            })?),
            None => Some(&groups).filter(|groups| groups.len() == 1).map(|groups| &groups[0]),
        };
        let is_it = |place: &u32| {
            let it = &servers[*place as usize];
            let is_addressed = || it.endpoint.to_string() == server;
            it.name == server || meant.is_some_and(|meant| meant.has(*place) && is_addressed())
        };
        let mut places: Vec<u32> = match (group, meant) {
            (Some(_), Some(meant)) => meant.members().collect(),
            _ => (0..servers.len() as u32).collect(),
        };
        let Some(&place) = places.iter().find(|place| is_it(place)) else {
            places.sort_unstable();
            let names: Vec<&str> =
                places.iter().map(|&place| &*servers[place as usize].name).collect();
            let of = match group {
                Some(group) => format!("group '{group}' of pool '{pool}'"),
                None => format!("pool '{pool}'"),
            };
            return Err(format!("{of} has no server '{server}'; it has: {}", names.join(", ")));
        };
        Ok((at as u32, place))
    }

    /// Answers those whose promotion is through, or has been waited for long enough. One that nobody waits
    /// for any more does not happen.
    pub(super) fn end_failovers(&mut self, now: Instant) {
        let mut late = Vec::new();
        self.failovers.asking.retain(|_, asking| asking.reply.is_awaited());
        for mut waiting in std::mem::take(&mut self.failovers.waiting) {
            let Waiting { pool, server, .. } = &waiting;
            let pools = &self.current.snapshot.pools;
            let is_through = pools.iter().position(|it| it.name == *pool).is_some_and(|at| {
                let name = |primary: &u32| &pools[at].servers[*primary as usize].name;
                self.rings.primaries(at as u32).values().any(|it| name(it) == server)
            });
            if is_through {
                let text = format!("pool '{pool}': '{server}' takes the writes now");
                waiting.reply.line(&text);
                waiting.reply.done();
            } else if !waiting.reply.is_awaited() {
                info!(
                    kind = EventKind::PrimaryNotChanged.name(),
                    pool,
                    server,
                    "pool '{pool}': the failover to '{server}' is withdrawn: who asked has left"
                );
                late.push((waiting.pool, waiting.server));
            } else if self.phase == Phase::Stopping {
                waiting.reply.failed("the instance is stopping");
            } else if waiting.until <= now {
                let text = format!(
                    "pool '{pool}': workers have not stopped using the old primary within \
                     {PATIENCE:?}; it stays the primary, see the log"
                );
                waiting.reply.failed(&text);
                late.push((waiting.pool, waiting.server));
            } else {
                self.failovers.waiting.push(waiting);
            }
        }
        for (pool, server) in late {
            // Somebody who has asked since may still wait for the same.
            let is_wanted =
                self.failovers.waiting.iter().any(|it| (&it.pool, &it.server) == (&pool, &server));
            let place = if is_wanted { None } else { self.place_of(&pool, None, &server).ok() };
            if let Some((pool, server)) = place {
                self.rings.withdraw(pool, server, now);
            }
        }
        self.deliver_rings(now);
    }
}
