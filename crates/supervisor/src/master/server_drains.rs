//! Servers that are drained: their keys go away in steps, each by a change of the ring, until they have none, and come
//! back in the same way.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use cashew_config::snapshot::Pool;
use cashew_metrics::EventKind;
use cashew_placement::{Distribution, SHARE_WHOLE};
use tracing::info;

use super::{Master, Phase};
use crate::command::Reply;
use crate::state::ServerDrainState;

/// What is under way.
#[derive(Default)]
pub(super) struct ServerDrains {
    plans: Vec<Plan>,
}

struct Plan {
    pool: String,
    server: String,
    /// The shares that the server is to have, one after the other, in thousandths of its keys.
    shares: VecDeque<u16>,
    every: Duration,
    due: Instant,
    /// The first of the shares is asked for.
    is_asked: bool,
    waiting: Vec<Box<dyn Reply>>,
}

impl ServerDrains {
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.plans.iter().filter(|plan| !plan.is_asked).map(|plan| plan.due).min()
    }

    /// For the next program. Whoever waits for the end does so no more.
    pub(super) fn state(&self) -> Vec<ServerDrainState> {
        let state = |plan: &Plan| ServerDrainState {
            pool: plan.pool.clone(),
            server: plan.server.clone(),
            shares: plan.shares.iter().copied().collect(),
            every_ms: plan.every.as_millis() as u64,
        };
        self.plans.iter().map(state).collect()
    }

    pub(super) fn resume(state: Vec<ServerDrainState>, now: Instant) -> Self {
        let plan = |state: ServerDrainState| {
            let every = Duration::from_millis(state.every_ms);
            Plan {
                pool: state.pool,
                server: state.server,
                shares: state.shares.into(),
                every,
                due: now + every,
                is_asked: false,
                waiting: Vec::new(),
            }
        };
        Self { plans: state.into_iter().map(plan).collect() }
    }

    fn take(&mut self, pool: &str, server: &str) -> Option<Plan> {
        let at = self.plans.iter().position(|it| (&*it.pool, &*it.server) == (pool, server))?;
        Some(self.plans.remove(at))
    }
}

impl Plan {
    fn say(&mut self, line: &str) {
        self.waiting.iter_mut().for_each(|reply| reply.line(line));
    }
}

/// From one share to another in so many steps.
fn steps(from: u16, to: u16, steps: u16) -> VecDeque<u16> {
    let (from, to, count) = (i32::from(from), i32::from(to), i32::from(steps));
    let mut shares: VecDeque<u16> =
        (1..=count).map(|step| (from + (to - from) * step / count) as u16).collect();
    // A step that changes nothing is none.
    let mut before = from as u16;
    shares.retain(|&share| std::mem::replace(&mut before, share) != share);
    shares
}

fn percent(share: u16) -> String {
    format!("{}.{} %", share / 10, share % 10).replace(".0 %", " %")
}

impl Master {
    /// Has a server have that share of its keys, in so many steps.
    pub(super) fn share_out(
        &mut self,
        (pool, server): (String, String),
        (to, count, every): (u16, u16, Duration),
        mut reply: Box<dyn Reply>,
        now: Instant,
    ) {
        let (at, place) = match self.place_of(&pool, None, &server) {
            Ok(place) => place,
            Err(why) => return reply.failed(&why),
        };
        let config = &self.current.snapshot.pools[at as usize];
        let server = config.servers[place as usize].name.clone();
        let from = self.rings.share(at, place);
        let drains = &self.operators.server_drains.plans;
        let is_its = |it: &&Plan| it.pool == pool && it.server == server;
        if let Some(plan) = drains.iter().find(is_its)
            && plan.shares.back() == Some(&to)
        {
            reply.line(&format!("pool '{pool}': server '{server}' is on its way there already"));
            let plan = self.operators.server_drains.take(&pool, &server);
            let mut plan = plan.expect("it was found");
            plan.waiting.push(reply);
            return self.operators.server_drains.plans.push(plan);
        }
        let is_under_way = drains.iter().any(|it| is_its(&it));
        if from == to && !is_under_way {
            let has = percent(to);
            reply.line(&format!("pool '{pool}': server '{server}' has {has} of its keys already"));
            return reply.unchanged();
        }
        if to < from
            && let Err(why) = self.may_drain(at, place, to)
        {
            return reply.failed(&format!("pool '{pool}': {why}"));
        }
        let is_alone = self.rings.group_of(at, place).is_none();
        let count = if is_alone && goes_in_steps(config) { count } else { 1 };
        for line in self.foretold((at, place), (from, to), (count, every)) {
            reply.line(&line);
        }
        if let Some(before) = self.operators.server_drains.take(&pool, &server) {
            let why = "another order for the server has come";
            before.waiting.into_iter().for_each(|reply| reply.failed(why));
        }
        info!(
            kind = EventKind::ServerDrains.name(),
            pool,
            server,
            "pool '{pool}': server '{server}' is to have {} of its keys instead of {}, in {count} steps",
            percent(to),
            percent(from)
        );
        let shares = steps(from, to, count);
        let (is_asked, waiting) = (false, vec![reply]);
        let plan = Plan { pool, server, shares, every, due: now, is_asked, waiting };
        self.operators.server_drains.plans.push(plan);
        self.advance_server_drains(now);
    }

    /// Why a server cannot lose its keys, if it can't.
    fn may_drain(&self, at: u32, place: u32, to: u16) -> Result<(), String> {
        let pool = &self.current.snapshot.pools[at as usize];
        let server = &pool.servers[place as usize].name;
        if pool.is_cluster() {
            return Err(format!(
                "the cluster says which keys '{server}' has: move its slots, as by redis-cli --cluster reshard"
            ));
        }
        if pool.writes_to_all() {
            return Err(format!(
                "'{server}' is to get all writes of its group: take it out of the file, and reload"
            ));
        }
        if let Some(shard) = self.rings.group_of(at, place) {
            if self.rings.primaries(at).get(&shard) == Some(&place) {
                let group = pool.group_names()[place as usize];
                return Err(format!(
                    "'{server}' takes the writes of its group: have another server take them first, with \
                     `cashew failover {} {group} SERVER`, or have Sentinels do so",
                    pool.name
                ));
            }
            return Ok(());
        }
        let has_keys = |other: u32| {
            other != place
                && self.rings.share(at, other) > 0
                && self
                    .rings
                    .group_of(at, other)
                    .is_none_or(|shard| self.rings.primaries(at).get(&shard) == Some(&other))
        };
        match to > 0 || (0..pool.servers.len() as u32).any(has_keys) {
            true => Ok(()),
            false => Err(format!("no other server than '{server}' has keys: add one first")),
        }
    }

    /// What the change will do, for operators.
    fn foretold(
        &self,
        (at, place): (u32, u32),
        (from, to): (u16, u16),
        (count, every): (u16, Duration),
    ) -> Vec<String> {
        let pool = &self.current.snapshot.pools[at as usize];
        let server = &pool.servers[place as usize].name;
        if self.rings.group_of(at, place).is_some() {
            let gets = if to == 0 { "gets no reads any more" } else { "gets reads again" };
            return vec![format!("pool '{}': replica '{server}' {gets}; keys stay", pool.name)];
        }
        if pool.tcp.is_some() {
            return vec![format!(
                "pool '{}': server '{server}' gets {} of its share of new connections, and is to get {}, in {count} \
                 steps, one each {} s; connections that are there stay",
                pool.name,
                percent(from),
                percent(to),
                every.as_secs()
            )];
        }
        let mut lines = vec![match pool.distribution {
            Distribution::Random => {
                format!("pool '{}': requests are spread over the servers by chance", pool.name)
            }
            Distribution::Modula => format!(
                "pool '{}': with `distribution: modula` nearly all keys of all servers go to another server at once, \
                 and caches miss them until they are written again",
                pool.name
            ),
            Distribution::Ketama => format!(
                "pool '{}': server '{server}' has {} of its keys, and is to have {}, in {count} steps, one each {} s; \
                 data does not move: caches miss the keys until they are written again",
                pool.name,
                percent(from),
                percent(to),
                every.as_secs()
            ),
        }];
        if to > from {
            lines.push(format!(
                "what '{server}' has from before is served again unless it has expired: FLUSHALL there first if it \
                 is not to be"
            ));
        }
        lines
    }

    /// Does the steps that are due, and ends those that are in effect.
    pub(super) fn advance_server_drains(&mut self, now: Instant) {
        let plans = std::mem::take(&mut self.operators.server_drains.plans);
        for plan in plans {
            if let Some(plan) = self.advanced(plan, now) {
                self.operators.server_drains.plans.push(plan);
            }
        }
    }

    /// `None` if it is over.
    fn advanced(&mut self, mut plan: Plan, now: Instant) -> Option<Plan> {
        if self.phase == Phase::Stopping {
            plan.waiting.into_iter().for_each(|reply| reply.failed("the instance is stopping"));
            return None;
        }
        let found = self.place_of(&plan.pool, None, &plan.server);
        let Ok((at, place)) = found else {
            let why = "the server is not in the configuration any more";
            plan.waiting.into_iter().for_each(|reply| reply.failed(why));
            return None;
        };
        let share = *plan.shares.front()?;
        if plan.is_asked {
            if self.rings.share(at, place) != share {
                // A failover, or another file, has given it everything.
                if self.rings.wanted_share(at, place).is_none() {
                    let why = "the server has its keys again, as they are needed there";
                    plan.waiting.into_iter().for_each(|reply| reply.failed(why));
                    return None;
                }
                return Some(plan);
            }
            plan.is_asked = false;
            plan.shares.pop_front();
            let has = percent(share);
            plan.say(&format!("server '{}' has {has} of its keys", plan.server));
            if plan.shares.is_empty() {
                self.tell_of_share(&plan, share);
                plan.waiting.into_iter().for_each(|reply| reply.done());
                return None;
            }
            plan.due = now + plan.every;
        }
        if plan.due <= now {
            plan.is_asked = true;
            self.rings.set_share(at, place, *plan.shares.front()?, now);
            self.deliver_rings(now);
            // Without workers it is in effect at once.
            return self.advanced_if_through(plan, (at, place), now);
        }
        Some(plan)
    }

    fn advanced_if_through(
        &mut self,
        plan: Plan,
        (at, place): (u32, u32),
        now: Instant,
    ) -> Option<Plan> {
        match plan.shares.front() == Some(&self.rings.share(at, place)) {
            true => self.advanced(plan, now),
            false => Some(plan),
        }
    }

    fn tell_of_share(&self, plan: &Plan, share: u16) {
        let Plan { pool, server, .. } = plan;
        match share {
            0 => info!(
                kind = EventKind::ServerDrained.name(),
                pool,
                server,
                "pool '{pool}': server '{server}' is drained: it gets no requests any more"
            ),
            SHARE_WHOLE => info!(
                kind = EventKind::ServerUndrained.name(),
                pool, server, "pool '{pool}': server '{server}' has all its keys again"
            ),
            share => info!("pool '{pool}': server '{server}' has {} of its keys", percent(share)),
        }
    }
}

/// Whether a part of a server's keys can go elsewhere with the rest of all keys where they are.
fn goes_in_steps(pool: &Pool) -> bool {
    pool.distribution == Distribution::Ketama
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_lead_from_one_share_to_the_other() {
        assert_eq!(steps(1000, 0, 4), [750, 500, 250, 0]);
        assert_eq!(steps(0, 1000, 3), [333, 666, 1000]);
        assert_eq!(steps(500, 0, 1), [0]);
        assert_eq!(steps(1000, 998, 100).len(), 2);
        assert!(steps(7, 7, 5).is_empty());
        assert_eq!([percent(1000), percent(125), percent(0)], ["100 %", "12.5 %", "0 %"]);
    }

    #[test]
    fn the_next_program_goes_on() {
        let now = Instant::now();
        let drains = ServerDrains::resume(
            vec![ServerDrainState {
                pool: "p".into(),
                server: "s".into(),
                shares: vec![500, 0],
                every_ms: 7000,
            }],
            now,
        );
        assert_eq!(drains.poll_timeout(), Some(now + Duration::from_secs(7)));
        assert_eq!(drains.state()[0].shares, [500, 0]);
    }
}
