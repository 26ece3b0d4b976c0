//! Another primary, as an operator wants it.

use std::time::{Duration, Instant};

use cashew_config::snapshot::ServerGroup;

use super::{Master, Phase};
use crate::command::Reply;

/// A change that is not through by then is withdrawn.
const PATIENCE: Duration = Duration::from_secs(5);

/// Operators who wait for a promotion.
#[derive(Default)]
pub(super) struct Failovers(Vec<Waiting>);

struct Waiting {
    pool: String,
    server: String,
    reply: Box<dyn Reply>,
    until: Instant,
}

impl Failovers {
    /// Whether somebody waits for an answer that only this program can give.
    pub(super) fn is_working(&self) -> bool {
        !self.0.is_empty()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.0.iter().map(|waiting| waiting.until).min()
    }
}

impl Master {
    pub(super) fn fail_over(
        &mut self,
        pool: String,
        group: Option<&str>,
        server: &str,
        reply: Box<dyn Reply>,
        now: Instant,
    ) {
        if self.phase == Phase::Stopping {
            return reply.failed("the instance is stopping");
        }
        let (at, place) = match self.place_of(&pool, group, server) {
            Ok(place) => place,
            Err(why) => return reply.failed(&why),
        };
        let why = "an operator asked for it".to_owned();
        if let Err(why) = self.rings.promote(at, place, why, now) {
            return reply.failed(&format!("pool '{pool}': {why}"));
        }
        let server = self.current.snapshot.pools[at as usize].servers[place as usize].name.clone();
        self.failovers.0.push(Waiting { pool, server, reply, until: now + PATIENCE });
        self.deliver_rings(now);
        self.end_failovers(now);
    }

    /// Where a pool and its server are in the snapshot. An error says what there is instead. A server
    /// of a group may be given by its address alone, where it is known which group is meant.
    fn place_of(
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

    /// Answers those whose promotion is through, or has been waited for long enough.
    pub(super) fn end_failovers(&mut self, now: Instant) {
        let mut late = Vec::new();
        for mut waiting in std::mem::take(&mut self.failovers.0) {
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
                self.failovers.0.push(waiting);
            }
        }
        for (pool, server) in late {
            // Somebody who has asked since may still wait for the same.
            let is_wanted =
                self.failovers.0.iter().any(|it| (&it.pool, &it.server) == (&pool, &server));
            let place = if is_wanted { None } else { self.place_of(&pool, None, &server).ok() };
            if let Some((pool, server)) = place {
                self.rings.withdraw(pool, server, now);
            }
        }
        self.deliver_rings(now);
    }
}
