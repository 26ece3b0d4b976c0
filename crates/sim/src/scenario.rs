//! What a seed determines.

use std::net::{Ipv4Addr, SocketAddr};

use cashew_config::Snapshot;
use cashew_config::snapshot::{
    Affinity, AuditLog, CasUniques, ClientSources, CommandPolicy, Credentials, DEFAULT_USER,
    Endpoint, Global, Hedge, IoEngine, Limits, Listen, LogFormat, Memcached, PolicyBase, Pool,
    Protocol, ReadYourWrites, Reads, Server, ServerAuth, ServerGroup, StatsFormat, Topology,
};
use cashew_placement::{Distribution, Hash, HashTag};

use crate::client::Temper;
use crate::cluster::Cluster;
use crate::moves::Moves;
use crate::network::Weather;
use crate::random::Random;
use crate::redis_server::OLD_PASSWORD;
use crate::resharding::Resharding;
use crate::route::{self, Copies};
use crate::user;

const POOL_PORT: u16 = 6000;
const SERVER_PORT: u16 = 7000;
/// The most servers of one pool.
const SERVERS_MAX: u16 = 100;

/// The index of this pool in the universe.
pub(crate) fn pool_id(pool: &Pool) -> u32 {
    match pool.listen {
        Listen::Tcp(address) => u32::from(address.port() - POOL_PORT),
        Listen::Unix { .. } | Listen::Nowhere => unreachable!("all pools here listen on ports"),
    }
}

/// The index of this server in its pool in the universe.
pub(crate) fn server_id(server: &Server) -> u32 {
    match server.endpoint {
        Endpoint::Tcp { port, .. } => u32::from((port - SERVER_PORT) % SERVERS_MAX),
        Endpoint::Unix(_) => unreachable!("all servers here listen on ports"),
    }
}

/// The port of a node of the first pool.
pub(crate) fn port_of(node: u32) -> u16 {
    SERVER_PORT + node as u16
}

/// A fault of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A connection is reset, or closed regularly.
    HangUp {
        abruptly: bool,
    },
    /// A connection ends in the middle of a reply.
    Break,
    /// A reply is garbage.
    Garble,
    /// A reply comes without a request.
    Stray,
    Restart,
    Hang,
    Down,
    Unreachable,
    Slow,
    Unfriendly,
    Moody,
    /// A reply is different, missing or doubled. Only in runs where the oracle follows the
    /// connections.
    Surprise,
}

impl Fault {
    /// Resets and regular closes are two.
    pub(crate) const COUNT: usize = 13;
    /// By number.
    pub(crate) const NAMES: [&str; Self::COUNT] = [
        "reset",
        "close",
        "break",
        "garble",
        "stray",
        "restart",
        "hang",
        "down",
        "unreachable",
        "slow",
        "unfriendly",
        "moody",
        "surprise",
    ];

    pub(crate) fn number(self) -> usize {
        ALL_FAULTS.iter().position(|&fault| fault == self).unwrap_or(Self::COUNT - 1)
    }
}

const ALL_FAULTS: [Fault; 12] = [
    Fault::HangUp { abruptly: true },
    Fault::HangUp { abruptly: false },
    Fault::Break,
    Fault::Garble,
    Fault::Stray,
    Fault::Restart,
    Fault::Hang,
    Fault::Down,
    Fault::Unreachable,
    Fault::Slow,
    Fault::Unfriendly,
    Fault::Moody,
];

#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// What may happen; empty for nothing.
    pub(crate) kinds: Vec<Fault>,
    pub(crate) gap_max_us: u64,
    pub(crate) length_max_us: u64,
    pub(crate) count_max: u64,
}

impl Faults {
    pub(crate) fn any(&self) -> bool {
        !self.kinds.is_empty()
    }
}

/// Changes of one kind during the run, as of the configuration.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reloads {
    pub(crate) count: u64,
    pub(crate) gap_max_us: u64,
    /// They change what servers there are and nothing else, and that at large.
    pub(crate) names_anew: bool,
}

/// One run, before it is played.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub(crate) seed: u64,
    pub(crate) snapshot: Snapshot,
    /// All pools that may ever exist, each with all servers it may have; those of `snapshot` come
    /// first.
    pub(crate) universe: Vec<Pool>,
    pub(crate) reloads: Reloads,
    /// Workers that share the pools.
    pub(crate) gateways: u32,
    /// Clients at once, and in all.
    pub(crate) clients: u32,
    pub(crate) clients_total: u32,
    pub(crate) temper: Temper,
    pub(crate) weather: Weather,
    pub(crate) faults: Faults,
    /// Faults come over servers with transactions and calls that wait, if there are any.
    pub(crate) aims_at_sessions: bool,
    pub(crate) tight_queues: bool,
    /// Clients may be closed for letting output pile up.
    pub(crate) tight_outputs: bool,
    /// There may be too few connections for transactions and blocking calls.
    pub(crate) few_sessions: bool,
    /// The most clients of one gateway; beyond it they are refused.
    pub(crate) admitted: Option<u64>,
    /// When one gateway is told to stop, if ever.
    pub(crate) drain_at: Option<u64>,
    pub(crate) isolation: bool,
    /// Servers give surprising replies.
    pub(crate) surprises: bool,
    /// Whether and how gateways hand clients over.
    pub(crate) moves: Option<Moves>,
    /// Orders that another server of a group takes its writes.
    pub(crate) promotions: Reloads,
    /// The longest until a replica has what its primary has executed; 0 if it never has it.
    pub(crate) replication_lag_max_us: u64,
    /// Clients are to read what they have written.
    pub(crate) heeds_writes: bool,
    /// Servers are the nodes of a cluster, to which this happens.
    pub(crate) resharding: Option<Resharding>,
}

impl Scenario {
    /// About a quarter of all seeds have no faults.
    pub fn of_seed(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x5eed_0000_0000_0000);
        let random = &mut random;
        let is_clean = random.percent(25);
        let tight_queues = !is_clean && random.percent(15);
        let tight_outputs = !is_clean && random.percent(10);
        let gateways = random.pick(&[1, 1, 2, 3]);
        let value_size_max = random.pick(&[50, 500, 5_000, 40_000, 300_000]);
        let mut limits = limits(random);
        if tight_queues {
            limits.server_queue_max = random.range(1, 12) as u32;
            limits.server_queue_size_max = random.range(50, 5_000);
        }
        if tight_outputs {
            limits.client_output_max = random.range(200, 20_000);
            limits.client_output_pause = limits.client_output_max / 2;
        }
        let pools = (0..random.range(1, 2)).map(|index| pool(index, limits, random)).collect();
        // The smallest are full with two large values.
        let tight_memory =
            (!is_clean && random.percent(15)).then(|| random.range(500_000, 4_000_000));
        let mut snapshot = Snapshot {
            epoch: 1,
            global: Global {
                worker_processes: gateways,
                max_open_files: None,
                user: None,
                group: None,
                worker_shutdown_timeout_ms: 10_000,
                batch_window_max_us: 0,
                worker_memory_max: tight_memory,
                io_engine: IoEngine::Auto,
                reload_drain_timeout_ms: 5000,
                control_socket: None,
                worker_cpu_affinity: Affinity::Off,
                worker_heartbeat_timeout_ms: 700,
                rebalance_threshold: None,
                stats_listen: None,
                stats_raw: StatsFormat::Nutcracker,
                stats_token: None,
                operate_token: None,
                operate_from: Vec::new(),
                log_file: None,
                log_level: None,
                log_format: LogFormat::Plain,
                sentinel_state: None,
                discovery_state: None,
                ready_workers: 1,
                ready_needs_primaries: false,
                drain_delay_ms: 0,
                drain_to: None,
                tracing: None,
                access_log: None,
                // No draw of its own, as those that follow would be others.
                audit_log: (gateways % 3 == 2).then(|| AuditLog {
                    file: "/audit".into(),
                    commands: vec!["write".into()],
                    share_percent: 100,
                    denied: true,
                    logins: true,
                    operators: true,
                }),
            },
            pools,
        };
        for pool in &mut snapshot.pools {
            // No draw of its own, either.
            pool.coalesce_reads = seed % 3 == 1;
        }
        let faults = if is_clean { Faults::default() } else { faults(random) };
        let clients = random.range(1, 8) as u32;
        let heavy = value_size_max > 100_000;
        let temper = Temper {
            requests: random.range(10, if heavy { 40 } else { 120 }) as u32,
            pipeline: random.pick(&[1, 4, 16, 64]),
            think_max_us: random.pick(&[100, 2_000, 20_000]),
            stalls: random.pick(&[0, 0, 5, 20]),
            vanishes: if is_clean { 0 } else { random.pick(&[0, 0, 2, 20]) },
            value_size_max,
            large_values: 10,
            oddity: random.pick(&[0, 10, 40]),
            sessions: 0,
            unsettled: false,
            shares: true,
            request_size_max: limits.request_size_max,
            text: false,
        };
        let weather = Weather {
            latency_min_us: random.range(5, 100),
            latency_max_us: random.pick(&[100, 500, 3_000]),
            capacity: random.pick(&[200, 4_000, 64_000, 256_000]).max(value_size_max as usize / 16),
            cuts: random.pick(&[0, 10, 50, 90]),
            short_writes: random.pick(&[0, 5, 40]),
            tick_max_us: 60,
        };
        // Only an unhealthy server makes a request time out.
        let bytes = u64::from(clients) * temper.pipeline * 5 * (value_size_max + 100);
        let windows = bytes / weather.capacity as u64 + 10;
        let wait_max_ms = windows * (2 * weather.latency_max_us + 200) / 1000;
        for pool in &mut snapshot.pools {
            pool.timeout_ms = pool.timeout_ms.map(|timeout| timeout.max(wait_max_ms));
        }
        Self {
            seed,
            universe: snapshot.pools.clone(),
            reloads: Reloads::default(),
            snapshot,
            gateways,
            clients,
            clients_total: clients + random.range(0, 8) as u32,
            temper,
            weather,
            faults,
            tight_queues,
            tight_outputs: tight_outputs || tight_memory.is_some(),
            few_sessions: false,
            admitted: random.percent(10).then_some(2),
            drain_at: random.percent(12).then(|| random.range(5_000, 200_000)),
            isolation: false,
            surprises: false,
            moves: moves(seed, gateways),
            promotions: Reloads::default(),
            replication_lag_max_us: 0,
            heeds_writes: false,
            aims_at_sessions: false,
            resharding: None,
        }
    }

    /// As [`Scenario::of_seed`], with changes of the epoch.
    pub fn epochs(seed: u64) -> Self {
        Self::of_seed(seed).with_epochs()
    }

    /// As [`Scenario::uploads`], with changes of the epoch.
    pub fn epochs_of_uploads(seed: u64) -> Self {
        Self::uploads(seed).with_epochs()
    }

    fn with_epochs(self) -> Self {
        let mut scenario = self;
        let seed = scenario.seed;
        let mut random = Random::new(seed ^ 0xe90c_4000_0000_0000);
        let random = &mut random;
        scenario.tight_outputs |= scenario.snapshot.global.worker_memory_max.is_some();
        scenario.gateways = random.pick(&[1, 2, 3]);
        scenario.snapshot.global.worker_processes = scenario.gateways;
        scenario.snapshot.global.worker_shutdown_timeout_ms = random.pick(&[1, 30, 300, 2000]);
        scenario.clients_total += random.range(0, 8) as u32;
        scenario.reloads = Reloads {
            count: random.range(1, 20),
            gap_max_us: random.pick(&[2_000, 10_000, 50_000]),
            names_anew: false,
        };
        let limits = scenario.snapshot.pools[0].limits;
        let temper = &mut scenario.temper;
        temper.think_max_us = temper.think_max_us.clamp(2_000, 5_000);
        let first = scenario.snapshot.pools.len() as u64;
        let mut universe = scenario.snapshot.pools.clone();
        for index in first..first + random.range(0, 3) {
            let mut pool = pool(index, limits, random);
            pool.timeout_ms = scenario.snapshot.pools[0].timeout_ms;
            // The same name does not make a pool of another protocol the same pool.
            if random.percent(50) && pool.protocol != universe[0].protocol {
                pool.name.clone_from(&universe[0].name);
            }
            universe.push(pool);
        }
        for (index, pool) in universe.iter_mut().enumerate() {
            let count = pool.servers.len() as u64;
            pool.servers.extend((count..count + 3).map(|n| server(index as u64, n)));
        }
        scenario.universe = universe;
        scenario
    }

    /// Some servers hang and some clients never read; the others must not notice.
    pub fn isolation(seed: u64) -> Self {
        let mut scenario = Self::of_seed(seed);
        let mut random = Random::new(seed ^ 0x1501_a7ed_0000_0000);
        scenario.isolation = true;
        scenario.moves = None;
        scenario.gateways = 1;
        scenario.clients = 6;
        scenario.clients_total = 6;
        (scenario.admitted, scenario.drain_at) = (None, None);
        (scenario.tight_queues, scenario.tight_outputs) = (false, false);
        scenario.snapshot.global.worker_memory_max = None;
        scenario.faults = Faults::default();
        scenario.snapshot.pools.truncate(1);
        let pool = &mut scenario.snapshot.pools[0];
        pool.servers = (0..3).map(|index| server(0, index)).collect();
        pool.topology = Topology::Sharded;
        pool.distribution = Distribution::Ketama;
        pool.hash = Hash::Fnv1a64;
        pool.timeout_ms = None;
        pool.auto_eject_hosts = false;
        pool.limits = Limits::default();
        pool.limits.client_output_pause = random.pick(&[10_000, 1 << 20]);
        let temper = &mut scenario.temper;
        (temper.stalls, temper.vanishes, temper.oddity) = (0, 0, 0);
        temper.request_size_max = pool.limits.request_size_max;
        temper.value_size_max = 20_000;
        (temper.think_max_us, temper.pipeline) = (500, 4);
        scenario.weather = Weather {
            latency_min_us: 20,
            latency_max_us: 200,
            capacity: 64_000,
            cuts: 10,
            short_writes: 0,
            tick_max_us: 60,
        };
        scenario.universe.clone_from(&scenario.snapshot.pools);
        scenario
    }

    /// Servers hang for long and pools have short timeouts: every request is answered in time.
    pub fn impatience(seed: u64) -> Self {
        let mut scenario = Self::of_seed(seed);
        let mut random = Random::new(seed ^ 0x1a9a_71e4_0000_0000);
        (scenario.drain_at, scenario.moves) = (None, None);
        (scenario.tight_queues, scenario.tight_outputs) = (false, false);
        scenario.snapshot.global.worker_memory_max = None;
        for pool in &mut scenario.snapshot.pools {
            pool.timeout_ms = Some(random.pick(&[20, 60, 150]));
            pool.limits = Limits::default();
        }
        let temper = &mut scenario.temper;
        (temper.stalls, temper.value_size_max) = (0, 100);
        temper.request_size_max = Limits::default().request_size_max;
        temper.pipeline = temper.pipeline.min(16);
        scenario.weather = Weather {
            latency_min_us: 20,
            latency_max_us: 200,
            capacity: 64_000,
            ..scenario.weather
        };
        scenario.faults = Faults {
            kinds: vec![Fault::Hang, Fault::Hang, Fault::Unreachable, Fault::Down],
            gap_max_us: 50_000,
            length_max_us: 2_000_000,
            count_max: 20,
        };
        scenario.universe.clone_from(&scenario.snapshot.pools);
        scenario
    }

    /// Connections to servers end in the middle of large requests and large replies.
    pub fn torn(seed: u64) -> Self {
        let mut scenario = Self::of_seed(seed);
        let mut random = Random::new(seed ^ 0x7042_0000_0000_0000);
        scenario.drain_at = None;
        (scenario.tight_queues, scenario.tight_outputs) = (false, false);
        scenario.snapshot.global.worker_memory_max = None;
        for pool in &mut scenario.snapshot.pools {
            (pool.timeout_ms, pool.limits) = (None, Limits::default());
        }
        let temper = &mut scenario.temper;
        (temper.stalls, temper.oddity, temper.vanishes) = (0, 0, 0);
        (temper.requests, temper.value_size_max, temper.large_values) = (60, 100_000, 40);
        temper.request_size_max = Limits::default().request_size_max;
        temper.pipeline = random.pick(&[1, 8]);
        scenario.weather.latency_max_us = 300;
        scenario.weather.capacity = random.pick(&[8_000, 64_000]);
        scenario.faults = Faults {
            kinds: vec![
                Fault::Break,
                Fault::HangUp { abruptly: true },
                Fault::HangUp { abruptly: false },
            ],
            gap_max_us: 4_000,
            length_max_us: 1_000,
            count_max: 60,
        };
        scenario.universe.clone_from(&scenario.snapshot.pools);
        scenario
    }

    /// Requests so large that they are forwarded while they arrive, from clients that vanish and to
    /// servers that fail in the middle.
    pub fn uploads(seed: u64) -> Self {
        let mut scenario = Self::of_seed(seed);
        let mut random = Random::new(seed ^ 0x0b10_ad00_0000_0000);
        (scenario.tight_queues, scenario.tight_outputs) = (false, false);
        scenario.snapshot.global.worker_memory_max = None;
        scenario.clients = scenario.clients.min(6);
        scenario.clients_total = scenario.clients + 3;
        for pool in &mut scenario.snapshot.pools {
            (pool.timeout_ms, pool.limits) = (None, Limits::default());
        }
        let temper = &mut scenario.temper;
        (temper.requests, temper.value_size_max, temper.large_values) = (15, 3 << 20, 50);
        temper.request_size_max = Limits::default().request_size_max;
        temper.pipeline = random.pick(&[1, 4]);
        let is_clean = random.percent(25);
        temper.vanishes = if is_clean { 0 } else { random.pick(&[0, 5, 20]) };
        scenario.weather.capacity = random.pick(&[100_000, 400_000]);
        scenario.weather.latency_max_us = 300;
        scenario.faults = Faults::default();
        if !is_clean {
            let count = random.range(1, 4);
            scenario.faults = Faults {
                kinds: (0..count).map(|_| random.pick(&ALL_FAULTS)).collect(),
                gap_max_us: random.pick(&[4_000, 40_000]),
                length_max_us: random.pick(&[2_000, 100_000]),
                count_max: 30,
            };
        }
        scenario.universe.clone_from(&scenario.snapshot.pools);
        scenario
    }

    /// So many clients of memcached's text protocol, with such small requests, that most ticks of
    /// the gateway have requests and replies of several of them.
    pub fn crowds(seed: u64) -> Self {
        let mut scenario = Self::of_seed(seed);
        let mut random = Random::new(seed ^ 0xc20d_0000_0000_0000);
        scenario.gateways = 1;
        scenario.snapshot.global.worker_processes = 1;
        scenario.clients = random.range(6, 40) as u32;
        scenario.clients_total = scenario.clients + 8;
        (scenario.tight_queues, scenario.admitted) = (false, None);
        scenario.snapshot.pools.truncate(1);
        let pool = &mut scenario.snapshot.pools[0];
        pool.protocol = Protocol::Memcached;
        pool.topology = Topology::Sharded;
        (pool.redis_auth, pool.redis_db) = (None, 0);
        pool.server_auth = ServerAuth::default();
        pool.servers = (0..random.range(1, 2)).map(|index| server(0, index)).collect();
        pool.server_connections = 1;
        pool.limits = Limits::default();
        pool.timeout_ms = None;
        let temper = &mut scenario.temper;
        temper.text = true;
        (temper.requests, temper.pipeline) = (200, random.pick(&[1, 2]));
        temper.value_size_max = random.pick(&[50, 500, 500, 100_000]);
        temper.large_values = 2;
        temper.request_size_max = Limits::default().request_size_max;
        (temper.stalls, temper.oddity) = (0, random.pick(&[0, 10]));
        temper.think_max_us = random.pick(&[500, 2_000]);
        (scenario.weather.latency_min_us, scenario.weather.latency_max_us) = (5, 300);
        scenario.weather.capacity = 64_000;
        scenario.weather.cuts = random.pick(&[10, 50, 90]);
        scenario.weather.tick_max_us = random.pick(&[200, 600, 2_000]);
        scenario.universe.clone_from(&scenario.snapshot.pools);
        scenario
    }

    /// Servers give surprising replies.
    pub fn surprises(seed: u64) -> Self {
        let mut scenario = Self::of_seed(seed);
        let mut random = Random::new(seed ^ 0x5095_1e00_0000_0000);
        (scenario.drain_at, scenario.moves, scenario.admitted) = (None, None, None);
        (scenario.tight_queues, scenario.tight_outputs) = (false, false);
        scenario.snapshot.global.worker_memory_max = None;
        scenario.surprises = true;
        scenario.clients_total = scenario.clients + 20;
        for pool in &mut scenario.snapshot.pools {
            pool.timeout_ms = Some(random.pick(&[20, 60, 150]));
            pool.limits = Limits::default();
            // Clients see uniques as servers send them.
            pool.memcached.cas_uniques = CasUniques::Plain;
        }
        let temper = &mut scenario.temper;
        (temper.stalls, temper.vanishes, temper.shares) = (0, random.pick(&[0, 0, 2]), false);
        temper.requests = random.range(20, 200) as u32;
        temper.value_size_max = random.pick(&[50, 500, 3_000]);
        temper.request_size_max = Limits::default().request_size_max;
        temper.pipeline = random.pick(&[1, 4, 16]);
        temper.think_max_us = random.pick(&[500, 5_000]);
        temper.oddity = random.pick(&[0, 10]);
        scenario.weather = Weather {
            latency_min_us: 20,
            latency_max_us: random.pick(&[100, 500]),
            capacity: 64_000,
            ..scenario.weather
        };
        if random.percent(40) {
            // Gets of many clients are sent as one.
            let pool = &mut scenario.snapshot.pools[0];
            pool.protocol = Protocol::Memcached;
            pool.topology = Topology::Sharded;
            (pool.redis_auth, pool.redis_db) = (None, 0);
            pool.server_auth = ServerAuth::default();
            pool.servers.truncate(2);
            pool.server_connections = 1;
            scenario.clients += random.range(4, 20) as u32;
            scenario.clients_total = scenario.clients + 20;
            let temper = &mut scenario.temper;
            temper.text = random.percent(70);
            (temper.pipeline, temper.think_max_us) = (random.pick(&[1, 2, 4]), 2_000);
            scenario.weather.tick_max_us = random.pick(&[200, 600, 2_000]);
        }
        scenario.faults = Faults {
            kinds: vec![Fault::Surprise],
            gap_max_us: random.pick(&[5_000, 20_000, 100_000]),
            length_max_us: 1_000,
            count_max: random.pick(&[5, 40, 200]),
        };
        scenario.universe.clone_from(&scenario.snapshot.pools);
        scenario
    }

    /// As [`Scenario::surprises`], with transactions and blocking calls.
    pub fn surprising_sessions(seed: u64) -> Self {
        let mut scenario = Self::surprises(seed);
        let mut random = Random::new(seed ^ 0x5e55_5095_0000_0000);
        scenario.temper.sessions = random.pick(&[10, 30, 60]);
        scenario.temper.unsettled = true;
        for pool in &mut scenario.snapshot.pools {
            if pool.protocol == Protocol::Memcached {
                pool.protocol = Protocol::Redis;
            }
            pool.session_connections_idle = random.pick(&[0, 1, 2]);
        }
        scenario.universe.clone_from(&scenario.snapshot.pools);
        scenario
    }

    /// Transactions and blocking calls among everything else.
    pub fn sessions(seed: u64) -> Self {
        let mut scenario = Self::of_seed(seed);
        let mut random = Random::new(seed ^ 0x5e55_1000_0000_0000);
        scenario.tight_queues = false;
        scenario.temper.sessions = random.pick(&[10, 30, 60]);
        scenario.temper.unsettled = scenario.faults.any();
        scenario.few_sessions = random.percent(30);
        for pool in &mut scenario.snapshot.pools {
            pool.limits.server_queue_max = Limits::default().server_queue_max;
            pool.limits.server_queue_size_max = Limits::default().server_queue_size_max;
            if scenario.few_sessions {
                pool.session_connections = random.range(1, 4) as u32;
                pool.session_wait_ms = random.range(5, 3000);
            }
            pool.session_connections_idle = random.pick(&[0, 0, 1]);
        }
        scenario.universe.clone_from(&scenario.snapshot.pools);
        scenario
    }

    /// As [`Scenario::sessions`], with all kinds of faults, which come while transactions and calls are under way.
    pub fn faults_over_sessions(seed: u64) -> Self {
        let mut scenario = Self::sessions(seed);
        scenario.temper.sessions = 60;
        scenario.temper.unsettled = true;
        scenario.faults = Faults {
            kinds: ALL_FAULTS.to_vec(),
            gap_max_us: 4_000,
            length_max_us: 4_000,
            count_max: 60,
        };
        scenario.aims_at_sessions = true;
        scenario
    }

    /// As [`Scenario::sessions`], with changes of the epoch.
    pub fn epochs_of_sessions(seed: u64) -> Self {
        let mut scenario = Self::sessions(seed).with_epochs();
        scenario.temper.unsettled = true;
        scenario
    }

    /// As [`Scenario::sessions`], with clients that move between gateways.
    pub fn moving_sessions(seed: u64) -> Self {
        let mut scenario = Self::sessions(seed);
        let mut random = Random::new(seed ^ 0x0a0d_5e55_0000_0000);
        scenario.gateways = random.pick(&[1, 2, 3]);
        scenario.snapshot.global.worker_processes = scenario.gateways;
        let gap_max_us = random.pick(&[200, 1_000, 5_000]);
        scenario.moves = Some(Moves { gap_max_us, count_max: 300 });
        scenario
    }

    /// Clients move between gateways all the time.
    pub fn moving(seed: u64) -> Self {
        let mut scenario = Self::of_seed(seed);
        let mut random = Random::new(seed ^ 0x0a0d_0e00_0000_0000);
        scenario.gateways = random.pick(&[1, 2, 3, 4]);
        scenario.snapshot.global.worker_processes = scenario.gateways;
        let gap_max_us = random.pick(&[200, 1_000, 5_000]);
        scenario.moves = Some(Moves { gap_max_us, count_max: 300 });
        scenario
    }

    /// Users of whom each may do something else, and clients that become others, move between gateways and have
    /// transactions meanwhile; mostly while users change that are none of theirs.
    pub fn users(seed: u64) -> Self {
        let mut scenario = Self::moving_sessions(seed);
        let mut random = Random::new(seed ^ 0x05e2_5000_0000_0000);
        for pool in &mut scenario.snapshot.pools {
            pool.protocol = Protocol::Redis;
            pool.redis_auth = None;
            pool.server_auth = ServerAuth::default();
            if pool.distribution == Distribution::Random {
                pool.distribution = Distribution::Ketama;
            }
            pool.users = user::lines(&mut random);
        }
        scenario.temper.requests = scenario.temper.requests.max(60);
        scenario.universe.clone_from(&scenario.snapshot.pools);
        if random.percent(70) {
            let moves = scenario.moves;
            scenario = scenario.with_epochs();
            (scenario.moves, scenario.temper.unsettled) = (moves, true);
        }
        scenario
    }

    /// Groups of primaries and replicas, of which others become primaries all the time.
    pub fn groups(seed: u64) -> Self {
        let mut scenario = Self::of_groups(seed);
        let mut random = Random::new(seed ^ 0x9e0a_7000_0000_0000);
        scenario.promotions = Reloads {
            count: random.range(1, 40),
            gap_max_us: random.pick(&[2_000, 10_000, 50_000]),
            names_anew: false,
        };
        scenario.temper.sessions = random.pick(&[0, 0, 15]);
        scenario.temper.unsettled = true;
        scenario
    }

    /// Sources and Sentinels name other servers and groups all the time, while others become primaries.
    pub fn churn(seed: u64) -> Self {
        let scenario =
            if seed.is_multiple_of(2) { Self::groups(seed) } else { Self::sessions(seed) };
        let mut scenario = scenario.with_epochs();
        let mut random = Random::new(seed ^ 0xc402_0000_0000_0000);
        scenario.reloads = Reloads {
            count: random.range(10, 60),
            gap_max_us: random.pick(&[500, 2_000, 10_000]),
            names_anew: random.percent(80),
        };
        scenario.temper.unsettled = true;
        scenario
    }

    /// A route that leads to two pools of groups, mostly with copies in a third one, while its tree, servers, groups and
    /// primaries change.
    pub fn routes(seed: u64) -> Self {
        let mut scenario = Self::of_seed(seed);
        let mut random = Random::new(seed ^ 0x2007_e500_0000_0000);
        let random = &mut random;
        (scenario.tight_queues, scenario.tight_outputs) = (false, false);
        scenario.snapshot.global.worker_memory_max = None;
        scenario.temper.request_size_max = Limits::default().request_size_max;
        scenario.temper.sessions = random.pick(&[0, 0, 10]);
        scenario.temper.unsettled = true;
        let timeout_ms = random.pick(&[None, Some(3_000)]);
        let copies = random.pick(&[
            Copies::Nobody,
            Copies::Beside,
            Copies::Beside,
            Copies::Unawaited,
            Copies::Told,
            Copies::Split,
        ]);
        let count = if matches!(copies, Copies::Nobody | Copies::Split) { 3 } else { 4 };
        if copies == Copies::Split {
            // Transactions and calls that wait are refused.
            scenario.temper.sessions = 0;
        }
        let mut pools: Vec<Pool> =
            (0..count).map(|index| pool(index, Limits::default(), random)).collect();
        for (index, pool) in pools.iter_mut().enumerate() {
            group(index, pool, random);
            (pool.redis_auth, pool.server_auth) = (None, ServerAuth::default());
            (pool.redis_db, pool.databases) = (0, 1);
            pool.timeout_ms = timeout_ms;
        }
        let route = &mut pools[0];
        route.servers.clear();
        route.topology = Topology::Sharded;
        (route.timeout_ms, route.hedge, route.reads) = (None, None, None);
        route.route = Some(route::tree(copies, random));
        // A copy of a read is asked for once.
        pools[3..].iter_mut().for_each(|pool| pool.hedge = None);
        scenario.universe.clone_from(&pools);
        for (index, pool) in scenario.universe.iter_mut().enumerate().skip(1) {
            let count = pool.servers.len() as u64;
            pool.servers.extend((count..count + 3).map(|n| server(index as u64, n)));
        }
        scenario.snapshot.pools = pools;
        scenario.gateways = random.pick(&[1, 2, 3]);
        scenario.snapshot.global.worker_processes = scenario.gateways;
        let gap_max_us = random.pick(&[2_000, 10_000, 50_000]);
        scenario.moves = Some(Moves { gap_max_us, count_max: 100 });
        scenario.reloads = Reloads { count: random.range(1, 20), gap_max_us, names_anew: true };
        scenario.promotions = Reloads { count: random.range(1, 20), gap_max_us, names_anew: false };
        scenario
    }

    /// Groups whose replicas have what is written a while later, and clients that read what they wrote.
    pub fn replicated(seed: u64) -> Self {
        let mut scenario = Self::of_groups(seed);
        let mut random = Random::new(seed ^ 0x9ead_7000_0000_0000);
        let lag_ms = random.pick(&[1, 5, 30]);
        scenario.replication_lag_max_us = lag_ms * 1000;
        scenario.heeds_writes = true;
        // Data that is lost is no older data.
        scenario.faults.kinds.retain(|kind| !matches!(kind, Fault::Restart | Fault::Down));
        scenario.faults.kinds.retain(|kind| *kind != Fault::Unreachable);
        for pool in &mut scenario.snapshot.pools {
            pool.auto_eject_hosts = false;
            pool.replica_reads.read_your_writes = ReadYourWrites::For(lag_ms);
        }
        scenario.temper.think_max_us = random.pick(&[100, 2_000, 20_000]);
        scenario.universe.clone_from(&scenario.snapshot.pools);
        scenario
    }

    /// A cluster whose slots move, whose replicas take over, and whose nodes and maps disagree.
    pub fn cluster(seed: u64) -> Self {
        let mut scenario = Self::of_seed(seed);
        let mut random = Random::new(seed ^ 0xc105_7e20_0000_0000);
        let plan = Resharding::of(&mut random);
        scenario.snapshot.pools.truncate(1);
        let pool = &mut scenario.snapshot.pools[0];
        pool.protocol = Protocol::Redis;
        (pool.redis_auth, pool.redis_db, pool.databases) = (None, 0, 1);
        pool.server_auth = ServerAuth::default();
        pool.auto_eject_hosts = false;
        pool.distribution = Distribution::Ketama;
        // Clients put some of their keys into few slots.
        pool.hash_tag = Some(HashTag { open: b'{', close: b'}' });
        pool.timeout_ms = random.pick(&[None, None, Some(400), Some(3_000)]);
        pool.reads = random.percent(50).then(|| random.pick(&Reads::ALL).0);
        pool.failover_wait_ms = if plan.is_smooth { 1_000 } else { random.pick(&[0, 50, 1_000]) };
        pool.hedge = random.percent(20).then_some(Hedge { after_ms: 5, budget_percent: 100 });
        pool.session_connections_idle = random.pick(&[0, 1, 4]);
        pool.cluster = Some(cashew_config::snapshot::Cluster {
            seeds: Vec::new(),
            connections_max: 0,
            slots: Vec::new(),
            moving: Vec::new(),
            epoch: 0,
            changes: 0,
        });
        let temper = &mut scenario.temper;
        temper.sessions = random.pick(&[0, 0, 10, 30]);
        temper.unsettled = true;
        temper.oddity = random.pick(&[0, 0, 10]);
        temper.requests = temper.requests.max(60);
        scenario.faults.kinds.retain(|kind| *kind != Fault::Unfriendly);
        if plan.is_smooth {
            // The commands of larger transactions are not kept until EXEC, but sent, and refused, one by one.
            temper.value_size_max = temper.value_size_max.min(5_000);
        }
        if plan.is_smooth || random.percent(30) {
            (scenario.faults, temper.vanishes) = (Faults::default(), 0);
        }
        scenario.replication_lag_max_us = 0;
        scenario.universe.clone_from(&scenario.snapshot.pools);
        let all = Cluster::new(&plan.shards, plan.shards.len());
        scenario.universe[0].set_cluster_map(&all.map_of(0));
        let first = Cluster::new(&plan.shards, plan.sharers);
        scenario.snapshot.pools[0].set_cluster_map(&first.map_of(0));
        scenario.resharding = Some(plan);
        scenario
    }

    pub(crate) fn new_cluster(&self) -> Option<Cluster> {
        let plan = self.resharding.as_ref()?;
        Some(Cluster::new(&plan.shards, plan.sharers))
    }

    fn of_groups(seed: u64) -> Self {
        let mut scenario = Self::of_seed(seed);
        let mut random = Random::new(seed ^ 0x9e0a_5000_0000_0000);
        for (index, pool) in scenario.snapshot.pools.iter_mut().enumerate() {
            group(index, pool, &mut random);
        }
        scenario.universe.clone_from(&scenario.snapshot.pools);
        scenario
    }
    pub(crate) fn is_clean(&self) -> bool {
        let is_smooth = self.resharding.as_ref().is_none_or(|plan| plan.is_smooth);
        !self.faults.any()
            && self.temper.vanishes == 0
            && !self.tight_queues
            && !self.tight_outputs
            && is_smooth
    }
}

impl Scenario {
    /// How long a request of the pool may go without a reply while servers hang. It may wait for a
    /// connection, for another one, and for its reply; then the reply travels.
    pub(crate) fn wait_max_us(&self, pool: &Pool) -> Option<u64> {
        let limits = &pool.limits;
        let is_held_up = self.temper.stalls > 0
            || self.moves.is_some()
            || u64::from(limits.client_requests_max) < self.temper.pipeline
            || limits.client_output_pause < 1 << 20;
        let is_held_up = is_held_up || self.reloads.count > 0;
        let timeout_ms = pool.timeout_ms.filter(|_| !is_held_up)?;
        Some((4 * timeout_ms + 100) * 1000)
    }
}

/// A single gateway hands its clients over to itself, which must do no harm either.
fn moves(seed: u64, gateways: u32) -> Option<Moves> {
    let mut random = Random::new(seed ^ 0x30f3_5000_0000_0000);
    let chance = if gateways > 1 { 70 } else { 30 };
    random.percent(chance).then(|| Moves::of(&mut random))
}

/// Limits that slow clients down, without refusing anything.
fn limits(random: &mut Random) -> Limits {
    let mut limits = Limits::default();
    if random.percent(40) {
        limits.client_requests_max = random.range(1, 10) as u32;
    }
    if random.percent(40) {
        limits.client_output_pause = random.range(1, 4_000);
    }
    if random.percent(20) {
        limits.request_size_max = random.range(5_000, 30_000);
    }
    limits.pipeline_start = random.pick(&[0, 1, 5, 64]);
    limits.server_connect_timeout_ms = random.pick(&[50, 500, 5_000]);
    limits
}

fn pool(index: u64, limits: Limits, random: &mut Random) -> Pool {
    let protocol = random.pick(&[Protocol::Redis, Protocol::Redis, Protocol::Memcached]);
    let is_redis = protocol == Protocol::Redis;
    let servers: Vec<Server> = (0..random.range(1, 5)).map(|n| server(index, n)).collect();
    let topology = match random.percent(15) {
        // No configuration has memcached replicas.
        true if is_redis => {
            Topology::MasterReplica { master: random.below(servers.len() as u64) as u32 }
        }
        _ => Topology::Sharded,
    };
    let name = format!("p{index}");
    let mut pool = Pool {
        name,
        listen: Listen::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, POOL_PORT + index as u16))),
        protocol,
        hash: random.pick(&Hash::ALL),
        hash_tag: random.percent(30).then_some(HashTag { open: b'{', close: b'}' }),
        distribution: random.pick(&[
            Distribution::Ketama,
            Distribution::Ketama,
            Distribution::Modula,
            Distribution::Random,
        ]),
        topology,
        servers,
        timeout_ms: random.pick(&[None, Some(30), Some(100), Some(400)]),
        backlog: 512,
        client_connections: 0,
        tcp_keepalive: false,
        tcp_quickack: false,
        reuseport: false,
        users: Vec::new(),
        user_options: Vec::new(),
        user_routes: Vec::new(),
        external_auth: None,
        redis_auth: (is_redis && random.percent(25)).then(|| "secret word".to_owned()),
        server_auth: ServerAuth::default(),
        memcached: Memcached {
            cas_uniques: [CasUniques::Tagged, CasUniques::Plain][index as usize % 2],
            ..Memcached::default()
        },
        redis_db: if is_redis && random.percent(25) { 3 } else { 0 },
        databases: random.pick(&[1, 4, 16, 16]),
        preconnect: random.percent(40),
        auto_eject_hosts: random.percent(50),
        server_connections: random.range(1, 3) as u32,
        session_connections: 128,
        session_connections_idle: 0,
        session_wait_ms: 5000,
        server_retry_timeout_ms: random.range(10, 200),
        server_check_interval_ms: 0,
        fail_open_percent: 100,
        server_failure_limit: random.range(1, 3) as u32,
        cross_server_copy: false,
        limits,
        commands: Vec::new(),
        commands_from_servers: false,
        // The simulation's clients use all commands that the gateway serves.
        command_policy: Some(CommandPolicy::of(PolicyBase::Admin)),
        client_pause_max_ms: Some(60_000),
        failover_wait_ms: [0, 150, 0, 1000][index as usize % 4],
        pose: None,
        hide_topology: index % 2 == 1,
        sentinel: None,
        zone: None,
        reads: None,
        reads_by_class: Vec::new(),
        replica_reads: Default::default(),
        route: None,
        cluster: None,
        servers_from: None,
        hedge: None,
        spool: None,
        tls: None,
        tls_listen: None,
        server_tls: None,
        client_sources: ClientSources::default(),
        tcp: None,
        retry_reads: false,
        server_maintenance: None,
        coalesce_reads: false,
        tracking_keys_max: 100_000,
        redis_version: "7.0.15".to_owned(),
        slow_log_ms: 10,
        hot_keys: true,
        hot_rule: None,
        command_stats: index.is_multiple_of(2),
        prefixes: if index.is_multiple_of(4) { vec!["k".to_owned()] } else { Vec::new() },
    };
    pool.server_auth = ServerAuth::of_clients(pool.redis_auth.as_deref());
    if pool.redis_auth.is_some() && index.is_multiple_of(2) {
        let password = String::from_utf8_lossy(OLD_PASSWORD).into_owned();
        pool.server_auth.all.insert(0, Credentials { user: DEFAULT_USER.to_owned(), password });
    }
    pool
}

/// Makes it one of primaries and replicas.
fn group(index: usize, pool: &mut Pool, random: &mut Random) {
    pool.protocol = Protocol::Redis;
    if pool.distribution == Distribution::Random {
        pool.distribution = Distribution::Ketama;
    }
    let count = random.range(1, 3);
    let mut groups = Vec::new();
    pool.servers.clear();
    for number in 0..count {
        let first = pool.servers.len() as u32;
        // One has several, at least.
        let members = random.range(if number == 0 { 2 } else { 1 }, 3) as u32;
        for at in first..first + members {
            pool.servers.push(server(index as u64, at.into()));
        }
        groups.push(ServerGroup {
            name: format!("g{number}"),
            weight: random.range(1, 3) as u32,
            primary: first,
            replicas: (first + 1..first + members).collect(),
        });
    }
    pool.topology = Topology::Groups(groups);
    pool.reads = random.percent(80).then(|| random.pick(&Reads::ALL).0);
    pool.failover_wait_ms = random.pick(&[0, 20, 300]);
    let after_ms = random.pick(&[1, 5, 20]);
    pool.hedge = random.percent(60).then_some(Hedge { after_ms, budget_percent: 100 });
}

/// Ports distinguish servers of the same name.
fn server(pool: u64, index: u64) -> Server {
    let port = SERVER_PORT + pool as u16 * SERVERS_MAX + index as u16;
    Server {
        name: format!("s{index}"),
        endpoint: Endpoint::Tcp { host: "127.0.0.1".into(), port },
        weight: 1 + (index % 2) as u32,
        zone: None,
    }
}

fn faults(random: &mut Random) -> Faults {
    let count = random.range(1, 4);
    let kinds = (0..count).map(|_| random.pick(&ALL_FAULTS)).collect();
    Faults {
        kinds,
        gap_max_us: random.pick(&[2_000, 20_000, 100_000]),
        length_max_us: random.pick(&[2_000, 50_000, 500_000]),
        count_max: random.pick(&[1, 5, 50]),
    }
}
