//! Which server a connection goes to.

use std::collections::VecDeque;
use std::net::IpAddr;

use cashew_config::snapshot::{Balance, Tcp as Options};
use cashew_metrics::{Health, ServerGauge};
use cashew_placement::SHARE_WHOLE;

use crate::base::id::{BackendId, ConnId, ServerId};
use crate::base::rng::Rng;
use crate::base::time::Time;
use crate::tcp::Context;
use crate::tcp::session::Source;

/// So many servers are tried for a client that cannot be connected to any of them.
const TRIES_MAX: usize = 8;
/// So many if all servers left are known to be out: its client may ask again sooner.
const TRIES_MAX_OUT: usize = 2;

/// A backend's servers, as one worker's sessions use them.
#[derive(Default)]
pub(super) struct Balancer {
    pub(super) servers: Vec<Load>,
    /// Clients that wait for a place, by their connections.
    pub(super) line: VecDeque<ConnId>,
    pub(super) look_at: Time,
    /// When servers are checked next, and which of them is the first.
    pub(super) check_at: Option<Time>,
    pub(super) check_from: usize,
}

/// What a worker has at a server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    /// Sessions that have it, or are being connected.
    pub(super) connections: u32,
    /// Failures in a row, and checks in a row that succeeded.
    pub(super) failures: u32,
    pub(super) successes: u32,
    pub(super) is_being_checked: bool,
    /// By how much it is ahead of its turn, or behind.
    turn: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Server(ServerId),
    /// All that could be used have as many connections as they may.
    Full,
    None,
}

/// A server that could be used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) server: ServerId,
    /// Thousandths of what is configured count, as it may be drained.
    pub(super) weight: u64,
    /// Over all workers.
    pub(super) connections: u64,
    /// What its name and the client's address make together.
    pub(super) hash: u64,
}

impl Balancer {
    /// The server that the next connection goes to. Servers that are out or drained get none, nor backups while others are
    /// in use; if all are out, one that this client has not tried is tried all the same. A client has so many tries.
    pub(super) fn choose(
        &mut self,
        cx: &mut Context<'_>,
        backend: BackendId,
        source: Option<Source>,
        tried: &[ServerId],
    ) -> Choice {
        let state = &cx.backends[backend];
        let Some(options) = &state.config.tcp else { return Choice::None };
        if tried.len() >= TRIES_MAX {
            return Choice::None;
        }
        self.resize(state.servers.len());
        let left: Vec<ServerId> = state.servers.ids().filter(|it| !tried.contains(it)).collect();
        let is_backup = |server: ServerId| {
            let name = &state.config.servers[server.index()].name;
            options.backup.iter().any(|it| it == name)
        };
        let health =
            |server: ServerId| cx.metrics.server_state(state.servers[server].metrics).health;
        let connections = |server: ServerId| {
            let metrics = state.servers[server].metrics;
            cx.metrics.sum_server_gauge(metrics, ServerGauge::ServerConnections)
        };
        let max = u64::from(options.connections_max);
        let weight = |server: ServerId| {
            let left = SHARE_WHOLE - state.topology.drained(server);
            u64::from(state.config.servers[server.index()].weight.max(1)) * u64::from(left)
        };
        let again = left.iter().copied().find(|&server| {
            !is_backup(server)
                && weight(server) > 0
                && (max == 0 || connections(server) < max)
                && self.is_tried_again(cx, backend, server)
        });
        if let Some(server) = again {
            return Choice::Server(server);
        }
        let in_use = |&server: &ServerId| is_in_use(health(server)) && weight(server) > 0;
        let (mut backups, mut first): (Vec<_>, Vec<_>) =
            left.iter().copied().filter(in_use).partition(|&server| is_backup(server));
        if first.is_empty() {
            first = std::mem::take(&mut backups);
        }
        if first.is_empty() {
            if tried.len() >= TRIES_MAX_OUT {
                return Choice::None;
            }
            first = left;
            // Those that are drained only if there is nobody else.
            if first.iter().any(|&server| weight(server) > 0) {
                first.retain(|&server| weight(server) > 0);
            }
        }
        let address = source.map(|source| source.client.ip());
        let candidate = |&server: &ServerId| {
            let config = &state.config.servers[server.index()];
            let counts = match options.balance {
                Balance::LeastConnections | Balance::Random => true,
                Balance::RoundRobin | Balance::Source => max > 0,
            };
            let connections = if counts { connections(server) } else { 0 };
            let hash = match options.balance {
                Balance::Source => hash(&config.name, address),
                _ => 0,
            };
            Candidate { server, weight: weight(server).max(1), connections, hash }
        };
        let mut candidates: Vec<Candidate> = first.iter().map(candidate).collect();
        if candidates.is_empty() {
            return Choice::None;
        }
        candidates.retain(|it| max == 0 || it.connections < max);
        match self.pick(options, &candidates, cx.rng) {
            Some(server) => Choice::Server(server),
            None => Choice::Full,
        }
    }

    fn pick(
        &mut self,
        options: &Options,
        candidates: &[Candidate],
        rng: &mut Rng,
    ) -> Option<ServerId> {
        match options.balance {
            Balance::RoundRobin => self.in_turn(candidates.iter().copied()),
            Balance::LeastConnections => {
                let least = candidates.iter().min_by(|a, b| fewer(a, b))?;
                let as_few = candidates.iter().filter(|it| fewer(it, least).is_eq());
                self.in_turn(as_few.copied())
            }
            Balance::Source => {
                let best = candidates.iter().max_by(|a, b| score(a).total_cmp(&score(b)));
                best.map(|it| it.server)
            }
            Balance::Random => {
                let (one, other) = (draw(candidates, rng)?, draw(candidates, rng)?);
                Some(if fewer(other, one).is_lt() { other.server } else { one.server })
            }
        }
    }

    /// Each as often as its weight says, evenly spread: the one that is furthest behind its share.
    fn in_turn(&mut self, candidates: impl Iterator<Item = Candidate> + Clone) -> Option<ServerId> {
        let total: i64 = candidates.clone().map(|it| it.weight as i64).sum();
        for it in candidates.clone() {
            self.servers[it.server.index()].turn += it.weight as i64;
        }
        let turn =
            |it: &Candidate| (self.servers[it.server.index()].turn, -(it.server.number() as i64));
        let next = candidates.max_by_key(turn)?.server;
        self.servers[next.index()].turn -= total;
        Some(next)
    }

    pub(super) fn resize(&mut self, servers: usize) {
        if self.servers.len() != servers {
            self.servers.resize(servers, Load::default());
        }
    }

    /// Another connection to the server.
    pub(super) fn take(&mut self, cx: &mut Context<'_>, backend: BackendId, server: ServerId) {
        self.resize(cx.backends[backend].servers.len());
        self.servers[server.index()].connections += 1;
        self.publish_one(cx, backend, server);
    }

    /// One less.
    pub(super) fn give(&mut self, cx: &mut Context<'_>, backend: BackendId, server: ServerId) {
        if let Some(load) = self.servers.get_mut(server.index()) {
            load.connections = load.connections.saturating_sub(1);
            self.publish_one(cx, backend, server);
        }
    }

    fn publish_one(&self, cx: &Context<'_>, backend: BackendId, server: ServerId) {
        let connections = u64::from(self.servers[server.index()].connections);
        let metrics = cx.backends[backend].servers[server].metrics;
        cx.metrics.set_server(metrics, ServerGauge::ServerConnections, connections);
    }

    /// Shows all of them, in another place perhaps.
    pub(super) fn publish(&mut self, cx: &Context<'_>, backend: BackendId) {
        self.resize(cx.backends[backend].servers.len());
        for server in cx.backends[backend].servers.ids() {
            self.publish_one(cx, backend, server);
        }
    }

    /// By the numbers that servers have after a change of the epoch.
    pub(super) fn renumbered(self, place: impl Fn(ServerId) -> Option<ServerId>) -> Self {
        let mut servers = Vec::new();
        for (before, load) in (0..).map(ServerId::new).zip(self.servers) {
            let Some(now) = place(before) else { continue };
            if servers.len() <= now.index() {
                servers.resize(now.index() + 1, Load::default());
            }
            servers[now.index()] = load;
        }
        Self { servers, check_at: None, ..self }
    }

    /// Whether the next connection is to find out whether a server that is out is back: now and then, where no checks
    /// do.
    fn is_tried_again(&self, cx: &Context<'_>, backend: BackendId, server: ServerId) -> bool {
        let state = &cx.backends[backend];
        let metrics = state.servers[server].metrics;
        let known = cx.metrics.server_state(metrics);
        let is_checked = state.config.server_check_interval_ms > 0;
        if is_in_use(known.health) || is_checked {
            return false;
        }
        let retry_us = state.config.server_retry_timeout_ms.saturating_mul(1000);
        let now_us = cx.now.as_micros();
        now_us >= known.since_ms.saturating_mul(1000).saturating_add(retry_us)
            && cx.metrics.claim_check(metrics, now_us, retry_us)
    }
}

/// Whether a server gets connections that is so.
pub(super) fn is_in_use(health: Health) -> bool {
    match health {
        Health::Untried | Health::Well | Health::Suspect => true,
        Health::Out | Health::Trial => false,
    }
}

/// Which of them has fewer connections for its weight, with one more.
fn fewer(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    let with_one_more = |it: &Candidate, other: &Candidate| {
        (u128::from(it.connections) + 1) * u128::from(other.weight)
    };
    with_one_more(a, b).cmp(&with_one_more(b, a))
}

/// One at random, by the weights.
fn draw<'a>(candidates: &'a [Candidate], rng: &mut Rng) -> Option<&'a Candidate> {
    let total: u64 = candidates.iter().map(|it| it.weight).sum();
    let mut at = rng.next().checked_rem(total)?;
    candidates.iter().find(|it| {
        let is_here = at < it.weight;
        at = at.saturating_sub(it.weight);
        is_here
    })
}

/// Rendezvous by weights: the highest wins. A server that goes moves its own clients only, and one that comes takes its
/// share from each.
fn score(candidate: &Candidate) -> f64 {
    // Above 0 and below 1.
    let unit = ((candidate.hash >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    candidate.weight as f64 / -unit.ln()
}

/// The same in all workers, and in every release.
fn hash(name: &str, address: Option<IpAddr>) -> u64 {
    let octets = match address.map(|address| address.to_canonical()) {
        Some(IpAddr::V4(address)) => address.octets().to_vec(),
        Some(IpAddr::V6(address)) => address.octets().to_vec(),
        None => Vec::new(),
    };
    // FNV-1a, and the finisher of SplitMix64, which spreads what differs in the last bytes.
    let fnv = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let bytes = octets.iter().chain(name.as_bytes());
    Rng::new(bytes.fold(0xcbf2_9ce4_8422_2325, fnv)).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(weights: &[u64]) -> Vec<Candidate> {
        let candidate = |(at, &weight): (usize, &u64)| Candidate {
            server: ServerId::new(at as u32),
            weight,
            connections: 0,
            hash: 0,
        };
        weights.iter().enumerate().map(candidate).collect()
    }

    fn options(balance: Balance) -> Options {
        Options {
            balance,
            idle_timeout_ms: 0,
            connections_max: 0,
            wait_ms: 0,
            send_proxy: Default::default(),
            backup: Vec::new(),
            rise: 1,
        }
    }

    fn picks(balance: Balance, candidates: &[Candidate], count: usize) -> Vec<u32> {
        let mut balancer = Balancer::default();
        balancer.resize(candidates.len());
        let (options, mut rng) = (options(balance), Rng::new(7));
        let mut pick = || balancer.pick(&options, candidates, &mut rng);
        (0..count).filter_map(|_| Some(pick()?.number())).collect()
    }

    #[test]
    fn turns_go_by_weights_and_are_spread() {
        let all = candidates(&[5, 1, 1]);
        assert_eq!(picks(Balance::RoundRobin, &all, 7), [0, 0, 1, 0, 2, 0, 0]);
        assert_eq!(picks(Balance::RoundRobin, &candidates(&[1, 1, 1]), 6), [0, 1, 2, 0, 1, 2]);
        assert_eq!(picks(Balance::RoundRobin, &[], 1).len(), 0);
    }

    #[test]
    fn the_fewest_connections_are_counted_by_weight() {
        let mut all = candidates(&[1, 2, 1]);
        (all[0].connections, all[1].connections, all[2].connections) = (3, 6, 4);
        // 4/1, 7/2, 5/1
        assert_eq!(picks(Balance::LeastConnections, &all, 2), [1, 1]);
        // Those that have as few take turns.
        all[1].connections = 7;
        assert_eq!(picks(Balance::LeastConnections, &all[..2], 3), [1, 0, 1]);
    }

    #[test]
    fn an_address_has_its_server_and_moves_only_when_that_is_gone() {
        let of = |names: &[&str], address: u32| {
            let mut all = candidates(&vec![1; names.len()]);
            let address = IpAddr::V4(address.into());
            for (candidate, name) in all.iter_mut().zip(names) {
                candidate.hash = hash(name, Some(address));
            }
            names[picks(Balance::Source, &all, 1)[0] as usize].to_owned()
        };
        let mut counts = std::collections::HashMap::new();
        for address in 0..3000 {
            let before = of(&["a", "b", "c"], address);
            let after = of(&["a", "c"], address);
            assert!(before == "b" || before == after, "{address} left {before} for {after}");
            *counts.entry(before).or_insert(0) += 1;
        }
        assert!(counts.values().all(|count| (900..1100).contains(count)), "{counts:?}");
    }

    #[test]
    fn of_two_at_random_the_less_busy_one_is_taken() {
        let mut all = candidates(&[1, 1, 2]);
        let count = |all: &[Candidate]| {
            let mut counts = vec![0; all.len()];
            picks(Balance::Random, all, 4000).iter().for_each(|&it| counts[it as usize] += 1);
            counts
        };
        let even = count(&all);
        // The weight counts twice: in the draw, and in how busy it is.
        assert!(even[2] > even[0] + even[1] && even[0] > 100 && even[1] > 100, "{even:?}");
        all[2].connections = 1000;
        let busy = count(&all);
        assert!(busy[2] < 1200 && busy[2] > 500, "only if drawn twice: {busy:?}");
    }
}
