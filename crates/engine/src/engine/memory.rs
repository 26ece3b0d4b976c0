//! The most memory that a worker takes, by its configuration.

use std::fmt;

use cashew_config::Snapshot;
use cashew_config::snapshot::{KeepRules, Pool, Protocol, Wire};
use cashew_placement::Distribution;
use cashew_protocol::{Span, memcached, resp};

use crate::base::buffer::{POOLED_SIZE_MAX, READ_SIZE_MAX};
use crate::downstream::pressure::REQUEST_SIZE;
use crate::engine::lanes_here;
use crate::engine::open_files::{OpenFiles, sessions_max};
use crate::redis::pubsub::subscription_size;
use crate::redis::scripts::SCRIPTS_SIZE_MAX;
use crate::redis::transaction::EARLY_SIZE_MAX;
use crate::request::Request;
use crate::request::slab::KEPT_SIZE_MAX;
use crate::tcp;
use crate::upstream::exclusive::UNSENT_MAX;
use crate::upstream::session_params::VARIANTS_MAX;
use crate::upstream::streaming::{AHEAD_MAX, PRIVATE_LANES_MAX};

/// The executable and its libraries, its stack, the resolver's thread.
const PROGRAM: u64 = 12 << 20;
/// What a pool takes beside its servers: marks of large replies, statistics.
const POOL: u64 = 16 << 10;
/// What a server takes beside its lanes: 160 points of two rings while one takes the other's
/// place, statistics, names.
const SERVER: u64 = 12 << 10;
/// A slot of `distribution: modula`, of which a server has as many as its weight, likewise.
const SLOT: u64 = 24;
/// What a lane takes at rest.
const LANE: u64 = 1 << 10;
/// What a client takes at rest, in the engine, the driver and the lists of both, and what of it is among its user's
/// numbers.
const CLIENT: u64 = 320;

/// The same of one whose bytes pass through, with its connection to a server and what is to be looked at when.
const SESSION: u64 = 640;

/// What a store of replies takes beside them: what it knows of keys that were missed.
const STORE: u64 = 64 << 10;

/// What TLS takes of a connection: its state, three or four records that are encrypted and not written, and what has
/// come and is no whole record, or waits for its handshake.
const SECURED: u64 = (5 + 64 + 64) << 10;

/// Room for one argument while a request is taken apart: its place in three lists that grow by
/// doubling, and its owner.
const SCRATCH_OF_ARGUMENT: u64 = 3 * 2 * size_of::<Span>() as u64;
/// The shortest argument on the wire.
const ARGUMENT_MIN: u64 = 6;
/// What is kept of a key of a split request until it is answered: for Redis its owner, for
/// memcached itself, which has at least two bytes with its space, its place and its owner.
const GATHER_OF_REDIS_KEY: u64 = 4;
const GATHER_OF_MEMCACHED_BYTE: u64 = 7;
/// A small reply that waits in its request has a buffer of its own; so much of it stays empty.
const BUFFER_ROOM_MAX: u64 = 64 << 10;
/// Buffers of the smaller sizes are four times the size of the next.
const BUFFER_ROOM_FACTOR: u64 = 4;
/// The heap does not give back what lies between what is used: one part in so many of what is
/// held.
const HEAP_LOSS: u64 = 8;

/// What a worker's driver takes, whichever that is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverMemory {
    /// Bytes of its own, beside what clients make it hold.
    pub size: u64,
    /// Bytes of one connection that still come, behind one read, when it is to be paused.
    pub late: u64,
}

/// The most memory that one worker takes, in parts, and why. Sockets' memory is the kernel's and
/// not among it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBound {
    workers: u32,
    pools: u64,
    servers: u64,
    clients: u64,
    /// Bytes of a client at rest: of the pools' kinds the largest.
    client: u64,
    /// Whether the number of clients is what open files leave to them.
    by_files: bool,
    fixed: u64,
    /// Of the driver.
    driver: u64,
    /// Connections that may have TLS.
    secured: u64,
    /// What the limits of pools allow clients and servers to make a worker hold.
    allowed: u64,
    memory_max: Option<u64>,
    /// The largest request or reply, which has a copy while it is split or merged.
    largest: u64,
    /// The largest request of Redis, which is written anew if it is not plain.
    rewritten: u64,
}

impl MemoryBound {
    /// For workers that may open so many files each.
    pub fn new(snapshot: &Snapshot, open_files: u64, driver: DriverMemory) -> Self {
        let global = &snapshot.global;
        let workers = global.worker_processes.max(1);
        let pools = &snapshot.pools;
        let files = OpenFiles::of(snapshot, open_files);
        let most = files.clients();
        let by_limits = pools.iter().map(|pool| u64::from(pool.client_connections)).sum();
        let by_files = pools.iter().any(|pool| pool.client_connections == 0) || by_limits > most;
        let clients = if by_files { most } else { by_limits };
        let scratch = pools.iter().map(scratch).max().unwrap_or(0);
        let kept = pools.iter().map(|pool| kept_by(pool, workers)).sum::<u64>();
        let fixed = pools.iter().map(|pool| pool_at_rest(pool, workers)).sum::<u64>() + kept;
        let of_client = |pool| held_by_client(pool, driver.late);
        let per_client = pools.iter().map(of_client).max().unwrap_or(0);
        let session_lanes = |pool: &Pool| files.sessions().min(sessions_max(pool, 0, workers));
        let by_lanes = pools.iter().fold(0, |sum: u64, pool| {
            sum.saturating_add(held_by_lane(pool).saturating_mul(lanes(pool, workers)))
                .saturating_add(streaming_lanes(pool) * held_by_private_lane(pool, driver.late))
                .saturating_add(held_by_subscriptions(pool))
                .saturating_add(session_lanes(pool).saturating_mul(held_by_session(pool)))
        });
        Self {
            workers,
            pools: pools.len() as u64,
            servers: pools.iter().map(|pool| pool.servers.len() as u64).sum(),
            clients,
            client: if pools.iter().any(is_passing) { SESSION } else { CLIENT },
            by_files,
            fixed: PROGRAM + (POOLED_SIZE_MAX + KEPT_SIZE_MAX) as u64 + scratch + fixed,
            driver: driver.size,
            secured: secured_connections(pools, clients, workers, &files),
            allowed: clients.saturating_mul(per_client).saturating_add(by_lanes),
            memory_max: global.worker_memory_max,
            largest: pools
                .iter()
                .map(|pool| pool.limits.request_size_max.max(pool.limits.client_output_max))
                .max()
                .unwrap_or(0),
            rewritten: pools.iter().map(rewritten_max).max().unwrap_or(0),
        }
    }

    /// Bytes of one worker.
    pub fn total(&self) -> u64 {
        let waits = [self.held(), self.copy(), self.rewritten(), self.slots(), self.loss()];
        let parts = [self.fixed, self.driver, self.clients_at_rest(), self.tls()];
        parts.into_iter().chain(waits).fold(0, u64::saturating_add)
    }

    fn clients_at_rest(&self) -> u64 {
        self.clients.saturating_mul(self.client)
    }

    fn tls(&self) -> u64 {
        self.secured.saturating_mul(SECURED)
    }

    fn held(&self) -> u64 {
        self.memory_max.map_or(self.allowed, |max| max.min(self.allowed))
    }

    /// What one event may add before it is noticed: a copy of what is held already, and a read.
    fn copy(&self) -> u64 {
        self.largest.min(self.held()) + READ_SIZE_MAX as u64
    }

    /// What is written anew is written before it is copied to a server.
    fn rewritten(&self) -> u64 {
        self.rewritten.min(self.held())
    }

    /// Slots of requests stay as long as one behind them is in use. All of them were held once, and
    /// then no more is held of them.
    fn slots(&self) -> u64 {
        self.held() / REQUEST_SIZE as u64 * size_of::<Request>() as u64
    }

    fn loss(&self) -> u64 {
        self.held() / HEAP_LOSS
    }
}

fn is_passing(pool: &Pool) -> bool {
    pool.protocol == Protocol::Tcp
}

/// All clients, where some may have TLS, and the connections to servers that have it: where bytes pass through, each
/// client's.
fn secured_connections(pools: &[Pool], clients: u64, workers: u32, files: &OpenFiles) -> u64 {
    let of_clients = if pools.iter().any(|pool| pool.tls.is_some()) { clients } else { 0 };
    let secured = || pools.iter().filter(|pool| pool.server_tls.is_some());
    let passing = if secured().any(is_passing) { clients } else { 0 };
    let of_pool = |pool: &Pool| {
        let sessions = files.sessions().min(sessions_max(pool, 0, workers));
        lanes(pool, workers) + streaming_lanes(pool) + sessions
    };
    of_clients + passing + secured().filter(|pool| !is_passing(pool)).map(of_pool).sum::<u64>()
}

fn lanes(pool: &Pool, workers: u32) -> u64 {
    let shared = lanes_here(pool.server_connections, 0, workers);
    (u64::from(shared) + 1) * pool.servers.len() as u64 * params_set(pool)
}

/// Of the lanes: of each protocol, or version of it, and database.
fn params_set(pool: &Pool) -> u64 {
    match pool.protocol {
        Protocol::Redis => (2 * u64::from(pool.databases)).min(VARIANTS_MAX as u64),
        Protocol::Memcached => match pool.memcached.wire {
            Wire::Auto | Wire::Tcp => 2,
            Wire::Text | Wire::Binary => 1,
        },
        Protocol::Tcp => 1,
    }
}

fn streaming_lanes(pool: &Pool) -> u64 {
    (PRIVATE_LANES_MAX * pool.servers.len()) as u64
}

/// What a worker's caches of a route's nodes take at most, with a fill each that is on its way.
fn kept_by(pool: &Pool, workers: u32) -> u64 {
    let routes = pool.route.iter().chain(pool.user_routes.iter().map(|it| &it.route));
    let of_node = |keep: &KeepRules| keep.bytes / u64::from(workers) + STORE;
    routes.flat_map(|route| route.kept()).map(of_node).sum()
}

fn pool_at_rest(pool: &Pool, workers: u32) -> u64 {
    let servers = pool.servers.len() as u64;
    let slots: u64 = match pool.distribution {
        Distribution::Modula => pool.servers.iter().map(|server| u64::from(server.weight)).sum(),
        _ => 0,
    };
    let feeds = if pool.protocol == Protocol::Redis { servers } else { 0 };
    let lanes = lanes(pool, workers) + streaming_lanes(pool) + sessions_max(pool, 0, workers);
    let lanes = lanes + feeds;
    let scripts = if pool.protocol == Protocol::Redis { SCRIPTS_SIZE_MAX as u64 } else { 0 };
    POOL + scripts + servers * SERVER + slots * SLOT + lanes * LANE
}

fn arguments(pool: &Pool) -> u64 {
    if pool.protocol == Protocol::Tcp {
        return 0;
    }
    (pool.limits.request_size_max / ARGUMENT_MIN).min(resp::ARGS_MAX as u64)
}

fn rewritten_max(pool: &Pool) -> u64 {
    match pool.protocol {
        Protocol::Redis => pool.limits.request_size_max,
        Protocol::Memcached | Protocol::Tcp => 0,
    }
}

fn scratch(pool: &Pool) -> u64 {
    arguments(pool) * SCRATCH_OF_ARGUMENT
}

fn held_by_client(pool: &Pool, late: u64) -> u64 {
    if pool.protocol == Protocol::Tcp {
        // What waits to be written to either side.
        return 2 * BUFFER_ROOM_FACTOR * (tcp::WAITING_MAX + READ_SIZE_MAX as u64 + late);
    }
    let limits = &pool.limits;
    let requests = u64::from(limits.client_requests_max);
    let gathers = match pool.protocol {
        Protocol::Redis => arguments(pool) * GATHER_OF_REDIS_KEY,
        Protocol::Memcached => {
            limits.request_size_max.min(memcached::MULTIGET_SIZE_MAX as u64)
                * GATHER_OF_MEMCACHED_BYTE
        }
        Protocol::Tcp => 0,
    };
    let input = 2 * (limits.request_size_max + READ_SIZE_MAX as u64 + late);
    let output = limits.client_output_max + READ_SIZE_MAX as u64;
    let room = (output * (BUFFER_ROOM_FACTOR - 1)).min(requests * BUFFER_ROOM_MAX);
    let early = match pool.protocol {
        Protocol::Redis => EARLY_SIZE_MAX as u64,
        Protocol::Memcached | Protocol::Tcp => 0,
    };
    input + early + scratch(pool) + output + room + requests * (REQUEST_SIZE as u64 + gathers)
}

/// An upload, or the reply to it that its client is to wait for.
fn held_by_private_lane(pool: &Pool, late: u64) -> u64 {
    BUFFER_ROOM_FACTOR * (AHEAD_MAX.min(pool.limits.request_size_max) + late)
}

/// All subscriptions of different topics, and the message that comes from each server.
fn held_by_subscriptions(pool: &Pool) -> u64 {
    if pool.protocol != Protocol::Redis {
        return 0;
    }
    let limits = &pool.limits;
    let messages = (pool.servers.len() as u64).saturating_mul(limits.pubsub_output_max);
    let subscriptions = u64::from(limits.subscriptions_max).saturating_mul(subscription_size());
    subscriptions.saturating_add(BUFFER_ROOM_FACTOR.saturating_mul(messages))
}

/// What one client may have said there that is not written, beside its last request.
fn held_by_session(pool: &Pool) -> u64 {
    BUFFER_ROOM_FACTOR * (UNSENT_MAX + pool.limits.request_size_max)
}

fn held_by_lane(pool: &Pool) -> u64 {
    let limits = &pool.limits;
    let requests = u64::from(limits.server_queue_max) * REQUEST_SIZE as u64;
    BUFFER_ROOM_FACTOR * limits.server_queue_size_max.max(limits.request_size_max) + requests
}

impl fmt::Display for MemoryBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workers, pools, servers, clients, .. } = self;
        let total = self.total();
        let why = if self.by_files { "open files" } else { "client_connections" };
        writeln!(f, "memory of a worker is at most {}:", Size(total))?;
        let mut part = |bytes, text: &str| writeln!(f, "  {:>9}  {text}", Size(bytes).to_string());
        part(
            self.fixed,
            &format!(
                "the program, spare buffers, room to take requests apart, {pools} pools, {servers} servers"
            ),
        )?;
        if self.driver > 0 {
            part(self.driver, "io_uring: its queues, and the buffers that it receives into")?;
        }
        let client = self.client;
        part(self.clients_at_rest(), &format!("{clients} clients ({why}) of {client} bytes"))?;
        if self.secured > 0 {
            let text = format!(
                "TLS of {} connections, of 5 KiB at rest and {} at most",
                self.secured,
                Size(SECURED)
            );
            part(self.tls(), &text)?;
        }
        let limits = "request_size_max, client_requests_max, client_output_max, server_queue_max, \
                      server_queue_size_max and subscriptions_max";
        let limits = match self.client {
            SESSION => {
                format!(
                    "{limits} (and of sessions with protocol: tcp, what may wait for each side)"
                )
            }
            _ => limits.to_owned(),
        };
        match self.memory_max {
            Some(max) if max < self.allowed => part(
                max,
                &format!(
                    "memory_max, of one worker: what waits; {limits} allow {}",
                    Size(self.allowed)
                ),
            )?,
            Some(_) | None => part(self.allowed, &format!("what waits, by {limits}"))?,
        }
        part(self.copy(), "the largest request or reply once more, while it is split or merged")?;
        if self.rewritten > 0 {
            part(self.rewritten(), "the largest request in plain RESP, if it did not come so")?;
        }
        part(
            self.slots(),
            "requests that are over, of which the last is not: as many as may wait",
        )?;
        part(self.loss(), "what the heap loses between buffers, an eighth of what waits")?;
        write!(
            f,
            "memory of {workers} workers is at most {}",
            Size(total.saturating_mul(u64::from(*workers)))
        )
    }
}

/// Bytes as people say them.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        let mut size = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while size >= 1024.0 && unit + 1 < UNITS.len() {
            size /= 1024.0;
            unit += 1;
        }
        if size < 10.0 {
            write!(f, "{size:.1} {}", UNITS[unit])
        } else {
            write!(f, "{size:.0} {}", UNITS[unit])
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::base::id::ClientId;
    use cashew_config::Context;

    use super::*;
    use crate::base::slab::Slab;
    use crate::downstream::client::Client;
    use crate::downstream::totals::Totals;

    fn bound(text: &str) -> MemoryBound {
        bound_with(DriverMemory::default(), text)
    }

    fn bound_with(driver: DriverMemory, text: &str) -> MemoryBound {
        let text = format!("{text}\n    listen: 127.0.0.1:1\n    servers:\n     - 127.0.0.1:2:1\n");
        match cashew_config::parse("f", &text, &Context::of_system()) {
            Ok(loaded) => MemoryBound::new(&loaded.snapshot, 1000, driver),
            Err(errors) => panic!("{errors}"),
        }
    }

    #[test]
    fn connections_with_tls_take_more() {
        let text = |more: &str| format!("p:\n    redis: true\n    client_connections: 100{more}");
        let (plain, secured) =
            (bound(&text("")), bound(&text("\n    server_tls: {verify: false}")));
        assert!(!plain.to_string().contains("TLS"));
        let connections = secured.secured;
        assert!(connections > 100, "{connections}");
        assert_eq!(secured.total() - plain.total(), connections * SECURED);
        let line =
            format!("TLS of {connections} connections, of 5 KiB at rest and 133 KiB at most");
        assert!(secured.to_string().contains(&line), "{secured}");
    }

    #[test]
    fn the_cap_counts_unless_less_is_possible() {
        let global = "global: {worker_processes: 2, memory_max: 512mb}\npools:\n  p:\n";
        let capped = bound(&format!("{global}    client_connections: 5000"));
        assert_eq!((capped.clients, capped.by_files), (1000 - 39, true));
        assert_eq!((capped.held(), capped.copy() >> 20), (256 << 20, 256));
        assert!((770 << 20..850 << 20).contains(&capped.total()), "{capped}");
        let small = bound(&format!(
            "{global}    protocol: text\n    client_connections: 2\n    request_size_max: 64kb\n    \
             client_output_pause: 64kb\n    \
             client_output_max: 64kb\n    client_requests_max: 4\n    server_queue_max: 100\n    \
             server_queue_size_max: 64kb"
        ));
        assert_eq!((small.clients, small.by_files), (2, false));
        assert!(small.held() < 8 << 20 && small.total() < 40 << 20, "{small}");
        assert!(small.to_string().starts_with("memory of a worker is at most "), "{small}");
    }

    #[test]
    fn lanes_of_all_that_clients_may_agree_on_count() {
        let bound = |options: &str| {
            bound(&format!(
                "global: {{memory_max: 0, worker_processes: 1}}\npools:\n  p:\n    {options}"
            ))
        };
        // There is a server with two lanes of each kind.
        let more = |options, than| {
            let (more, less) = (bound(options), bound(than));
            assert!(more.allowed > less.allowed, "{} {}", more.allowed, less.allowed);
            (more.fixed - less.fixed) / LANE / 2
        };
        assert_eq!(more("redis: true", "redis: true\n    databases: 1"), 30);
        assert_eq!(more("protocol: auto", "protocol: text"), 1);
        assert_eq!(more("protocol: auto", "protocol: binary"), 1);
    }

    #[test]
    fn what_comes_of_paused_connections_counts() {
        let text = "global: {memory_max: 0, worker_processes: 1}\npools:\n  p:\n    \
                    client_connections: 10";
        let without = bound(text);
        let with = bound_with(DriverMemory { size: 1 << 20, late: 1 << 19 }, text);
        assert_eq!(with.driver, 1 << 20);
        // Of ten clients, and of the server's four connections for large values.
        assert!(with.allowed - without.allowed >= 14 << 19);
    }

    #[test]
    fn limits_that_multiply_beyond_all_numbers_stay_numbers() {
        let text = "global: {memory_max: 0}\npools:\n  p:\n    request_size_max: 4gb\n    \
                    client_output_max: 16gb\n    client_requests_max: 1048576";
        let loaded = bound(text);
        assert!(loaded.total() > 1 << 40);
        assert!(
            MemoryBound { clients: u64::MAX, allowed: u64::MAX, ..loaded }.to_string().len() > 100
        );
    }

    #[test]
    fn sessions_whose_bytes_pass_through_count_with_both_connections() {
        let text = "global: {worker_processes: 1, memory_max: 0}\npools:\n  p:\n    protocol: tcp\n    \
                    client_connections: 10";
        let (plain, secured) =
            (bound(text), bound(&format!("{text}\n    server_tls: {{verify: false}}")));
        assert_eq!(plain.clients_at_rest(), 10 * SESSION);
        // Both sides, with one read beyond what may wait.
        assert!(plain.allowed >= 10 * 2 * (tcp::WAITING_MAX + READ_SIZE_MAX as u64), "{plain}");
        assert!(plain.to_string().contains("what may wait for each side"), "{plain}");
        assert_eq!(secured.secured, 10);
    }

    #[test]
    fn a_session_at_rest_takes_what_is_said() {
        assert!(
            tcp::Tcp::SESSION_SIZE as u64 + 2 * (16 + 4 * 8) <= SESSION,
            "{}",
            tcp::Tcp::SESSION_SIZE
        );
    }

    /// The driver keeps 16 bytes of each client, and a list of either may name it twice.
    #[test]
    fn a_client_at_rest_takes_what_is_said() {
        assert!(
            Slab::<ClientId, Client>::SLOT_SIZE as u64 + 16 + 4 * 8 + size_of::<Totals>() as u64
                <= CLIENT,
            "{}",
            Slab::<ClientId, Client>::SLOT_SIZE
        );
    }

    #[test]
    fn sizes_are_short() {
        let shown = [0, 1 << 10, 1536, 300 << 20, 5 << 30].map(|bytes| Size(bytes).to_string());
        assert_eq!(shown, ["0.0 KiB", "1.0 KiB", "1.5 KiB", "300 MiB", "5.0 GiB"]);
    }
}
