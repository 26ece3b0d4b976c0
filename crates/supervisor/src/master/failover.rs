//! Another primary, as an operator wants it.

use std::time::{Duration, Instant};

use super::{Master, Phase};
use crate::command::Reply;

/// A change that is not through by then goes on being tried, but nobody waits for it.
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
        server: String,
        reply: Box<dyn Reply>,
        now: Instant,
    ) {
        if self.phase == Phase::Stopping {
            return reply.failed("the instance is stopping");
        }
        let (at, place) = match self.place_of(&pool, &server) {
            Ok(place) => place,
            Err(why) => return reply.failed(&why),
        };
        let why = "an operator asked for it".to_owned();
        if let Err(why) = self.rings.promote(at, place, why, now) {
            return reply.failed(&format!("pool '{pool}': {why}"));
        }
        self.failovers.0.push(Waiting { pool, server, reply, until: now + PATIENCE });
        self.deliver_rings(now);
        self.end_failovers(now);
    }

    /// Where a pool and its server are in the snapshot. An error says what there is instead.
    fn place_of(&self, pool: &str, server: &str) -> Result<(u32, u32), String> {
        let pools = &self.current.snapshot.pools;
        let Some(at) = pools.iter().position(|it| it.name == pool) else {
            let names: Vec<&str> = pools.iter().map(|pool| &*pool.name).collect();
            return Err(format!("there is no pool '{pool}'; there are: {}", names.join(", ")));
        };
        let servers = &pools[at].servers;
        let Some(place) = servers.iter().position(|it| it.name == server) else {
            let names: Vec<&str> = servers.iter().map(|server| &*server.name).collect();
            let names = names.join(", ");
            return Err(format!("pool '{pool}' has no server '{server}'; it has: {names}"));
        };
        Ok((at as u32, place as u32))
    }

    /// Answers those whose promotion is through, or has been waited for long enough.
    pub(super) fn end_failovers(&mut self, now: Instant) {
        for mut waiting in std::mem::take(&mut self.failovers.0) {
            let Waiting { pool, server, .. } = &waiting;
            let pools = &self.current.snapshot.pools;
            let primary = pools.iter().position(|it| it.name == *pool).and_then(|at| {
                let primary = self.rings.primary(at as u32)?;
                Some(&pools[at].servers[primary as usize].name)
            });
            if primary == Some(server) {
                let text = format!("pool '{pool}': '{server}' takes the writes now");
                waiting.reply.line(&text);
                waiting.reply.done();
            } else if self.phase == Phase::Stopping {
                waiting.reply.failed("the instance is stopping");
            } else if waiting.until <= now {
                let text = format!(
                    "pool '{pool}': workers have not stopped using the old primary within \
                     {PATIENCE:?}; it goes on being tried, see the log"
                );
                waiting.reply.failed(&text);
            } else {
                self.failovers.0.push(waiting);
            }
        }
    }
}
