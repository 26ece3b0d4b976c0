//! The cache of a route in two workers, in front of one server that others write to as well: seeds choose who does
//! what when, what is on its way for how long, and what is lost. An oracle knows how old a reply may be. It plays a cache
//! of hot keys only, too, which become hot and cool; equal reads that are sent once, without a cache; and
//! primaries and configurations that change while all that goes on: a replica takes over as the master has it, when all
//! workers have paused, and the workers go on one after the other.

use std::collections::HashMap;

use cashew_config::Snapshot;
use cashew_config::snapshot::{Promoted, TopologyState};
use cashew_engine::{Action, BackendId, CloseReason, ConnId, Plan, PoolState};
use cashew_metrics::{Generations, HotAct, HotActs, HotCause, PoolCounter};
use cashew_protocol::resp::{Parsed, ReplyScanner, RequestParser, Scan};

use crate::world::gets::together;
use crate::world::{World, redis, snapshot};

const CONFIG: &str = "global: {worker_processes: 1}
pools:
  a: {redis: true, preconnect: true, timeout: 60000, servers: ['127.0.0.1:7000:1'], hide_topology: true}
routes:
  main: {redis: true, listen: '127.0.0.1:6000', route: {cache: {to: a, ttl: 2s, negative: 1s, bytes: 64kb, value_max: 1kb}}}
";
const SHARING: &str = "global: {worker_processes: 1}
pools:
  main: {redis: true, listen: '127.0.0.1:6000', preconnect: true, timeout: 60000, coalesce_reads: true,
    servers: ['127.0.0.1:7000:1'], hide_topology: true}
";
/// The pool `a`.
const POOL: BackendId = BackendId::new(0);
/// A pause for another primary is over when nothing is on its way any more, however long that takes.
const DRAIN_MS: u64 = 10_000_000;
const REFUSED: &str = "-READONLY You can't write against a read only replica.\r\n";
const TTL_US: u64 = 2_000_000;
const KEYS: usize = 4;
const STEPS: usize = 3000;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Cache,
    /// Only hot keys are kept, and which ones these are changes.
    HotOnly,
    /// There is no cache, and equal reads are sent once.
    Sharing,
    /// There is a replica, which becomes the primary at times, and the configuration changes.
    Changing,
}

/// What is under way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Still,
    /// All workers pause the pool.
    Holding,
    /// The other server is the primary; this worker does not go on yet.
    Releasing(usize),
    /// This worker has the former configuration.
    Reloading(usize),
}

/// A connection from a worker, as the server has it.
#[derive(Default)]
struct Peer {
    input: Vec<u8>,
    output: Vec<u8>,
    tracks: bool,
    server: u32,
    /// What keys begin with of which it is told; all if there is none.
    prefixes: Vec<String>,
}

impl Peer {
    fn is_told_of(&self, key: &str) -> bool {
        let is_wanted = |prefix: &String| key.starts_with(prefix);
        self.tracks && (self.prefixes.is_empty() || self.prefixes.iter().any(is_wanted))
    }
}

/// What a client has asked and not been answered.
enum Asked {
    /// How new the reply has to be.
    Get {
        key: usize,
        least: u64,
    },
    Set {
        key: usize,
        value: u64,
    },
    /// A transaction of one write: the first two replies.
    Other,
    Exec {
        key: usize,
        value: u64,
    },
}

struct Client {
    worker: usize,
    conn: ConnId,
    asked: Vec<Asked>,
    replies: Vec<u8>,
}

struct Play {
    kind: Kind,
    acts: HotActs,
    random: Random,
    workers: [World; 2],
    peers: [HashMap<ConnId, Peer>; 2],
    clients: Vec<Client>,
    /// By key: the value, 0 if there is none, and how often it has been written.
    data: [(u64, u64); KEYS],
    /// By value: the number of the write.
    writes: HashMap<u64, u64>,
    last_value: u64,
    /// By key: the newest write that was acknowledged through the instance.
    acknowledged: [u64; KEYS],
    /// By key: when others wrote, and the number.
    foreign: [Vec<(u64, u64)>; KEYS],
    /// By worker and key: the newest write that it has been told of.
    told: [[u64; KEYS]; 2],
    config: Snapshot,
    primary: u32,
    /// What the other server has: it gets nothing while it is none.
    former: [(u64, u64); KEYS],
    stage: Stage,
    /// Of the pool's topology.
    version: u64,
    failovers: u64,
    reloads: u64,
    /// What was counted under former configurations.
    counted: Vec<(PoolCounter, u64)>,
    now_us: u64,
    seed: u64,
}

impl Play {
    fn new(kind: Kind, seed: u64) -> Self {
        let config = match kind {
            Kind::Cache => snapshot(CONFIG),
            Kind::HotOnly => snapshot(&CONFIG.replace("ttl: 2s", "ttl: 2s, hot_only: true")),
            Kind::Sharing => snapshot(SHARING),
            Kind::Changing => snapshot(&CONFIG.replace(
                "['127.0.0.1:7000:1']",
                "[{name: s, primary: '127.0.0.1:7000', replicas: ['127.0.0.1:7001']}], reads: primary",
            )),
        };
        let acts = HotActs::private();
        let generations = Generations::private();
        let workers = [(); 2].map(|()| {
            let mut world = World::new(&config);
            world.engine.set_generations(generations.clone());
            world.engine.set_hot_acts(acts.clone());
            world
        });
        let mut play = Self {
            kind,
            acts,
            random: Random(seed),
            workers,
            peers: Default::default(),
            clients: Vec::new(),
            data: Default::default(),
            writes: HashMap::new(),
            last_value: 0,
            acknowledged: [0; KEYS],
            foreign: Default::default(),
            told: [[0; KEYS]; 2],
            config,
            primary: 0,
            former: Default::default(),
            stage: Stage::Still,
            version: 0,
            failovers: 0,
            reloads: 0,
            counted: Vec::new(),
            now_us: 0,
            seed,
        };
        for number in 0..6 {
            let worker = number % 2;
            let main = play.workers[worker].engine.listener_named("main").unwrap().number();
            let conn = play.workers[worker].client_of(main);
            play.clients.push(Client { worker, conn, asked: Vec::new(), replies: Vec::new() });
        }
        play
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..30 if self.kind == Kind::Sharing => self.ask_together(),
            30 if self.kind == Kind::Changing && self.stage == Stage::Still => self.change(),
            0..30 => self.ask(),
            30 if self.kind == Kind::HotOnly => self.heat(),
            30..55 => self.serve(),
            55..88 => self.deliver(),
            88..92 => self.write_elsewhere(),
            92..98 => self.wait(),
            _ => self.lose(),
        }
        self.go_on();
        self.connect();
        self.collect();
    }

    /// The replica is to take over, or another configuration to be in effect.
    fn change(&mut self) {
        if self.random.below(2) == 0 {
            self.version += 1;
            for world in &mut self.workers {
                world.engine.handle_hold(POOL, self.version, DRAIN_MS, world.now);
                world.tick();
            }
            self.stage = Stage::Holding;
        } else {
            self.config.epoch += 1;
            let pool = &mut self.config.pools[POOL.index()];
            pool.slow_log_ms = 10 + self.config.epoch;
            let first = self.random.below(2);
            self.reload(first);
            self.stage = Stage::Reloading(1 - first);
            self.reloads += 1;
        }
    }

    /// What is under way goes on, sooner or later.
    fn go_on(&mut self) {
        match self.stage {
            Stage::Still => {}
            Stage::Holding => {
                let held = Action::Held { backend: POOL, version: self.version };
                if self.workers.iter().all(|world| world.actions.contains(&held)) {
                    self.former = self.data;
                    self.primary = 1 - self.primary;
                    self.failovers += 1;
                    let first = self.random.below(2);
                    self.release(first);
                    self.stage = Stage::Releasing(1 - first);
                }
            }
            Stage::Releasing(worker) if self.random.below(10) == 0 => {
                self.release(worker);
                self.stage = Stage::Still;
            }
            Stage::Reloading(worker) if self.random.below(10) == 0 => {
                self.reload(worker);
                self.stage = Stage::Still;
            }
            Stage::Releasing(_) | Stage::Reloading(_) => {}
        }
    }

    fn topology(&self) -> TopologyState {
        // The configured one is not named.
        let promoted = Promoted { shard: 0, server: self.primary };
        let primaries = if self.primary == 0 { Vec::new() } else { vec![promoted] };
        TopologyState { primaries, ..vec![true; 2].into() }
    }

    fn release(&mut self, worker: usize) {
        let topology = self.topology();
        let world = &mut self.workers[worker];
        world.engine.handle_release(POOL, self.version, topology, world.now, 0);
        world.tick();
    }

    fn reload(&mut self, worker: usize) {
        let next = self.config.clone();
        let mut states: Vec<PoolState> = next.pools.iter().map(PoolState::whole).collect();
        states[POOL.index()].ring_version = self.version;
        states[POOL.index()].topology = self.topology();
        for counter in OF_CACHES {
            let count = self.count_of(worker, counter);
            self.counted.push((counter, count));
        }
        let world = &mut self.workers[worker];
        world.engine.handle_prepare(Plan::new(&next, &states, 0, 1), world.now);
        world.tick();
        world.pause(DRAIN_MS);
        world.commit(&next);
    }

    fn connect(&mut self) {
        for worker in 0..2 {
            for server in 0..2 {
                while self.workers[worker].connects_to(server) {
                    let conn = self.workers[worker].accept(server);
                    self.peers[worker].insert(conn, Peer { server, ..Peer::default() });
                }
            }
        }
    }

    /// What workers have sent is at the server and at the clients.
    fn collect(&mut self) {
        for worker in 0..2 {
            let world = &mut self.workers[worker];
            let closed = &world.closed;
            self.peers[worker].retain(|conn, _| !closed.contains(conn));
            for (&conn, peer) in &mut self.peers[worker] {
                peer.input.extend(world.received(conn));
            }
        }
        for at in 0..self.clients.len() {
            let Client { worker, conn, .. } = self.clients[at];
            let bytes = self.workers[worker].received(conn);
            self.clients[at].replies.extend(bytes);
            self.read_replies(at);
        }
    }

    fn ask(&mut self) {
        let at = self.random.below(self.clients.len());
        if self.clients[at].asked.is_empty() {
            let text = self.question(at);
            let Client { worker, conn, .. } = self.clients[at];
            self.workers[worker].send(conn, text);
        }
    }

    /// All clients of a worker that wait for nothing ask before it writes to the server.
    fn ask_together(&mut self) {
        let worker = self.random.below(2);
        let mut texts = Vec::new();
        for at in 0..self.clients.len() {
            let Client { worker: its, conn, .. } = self.clients[at];
            if its == worker && self.clients[at].asked.is_empty() {
                texts.push((conn, self.question(at)));
            }
        }
        let texts: Vec<(ConnId, &str)> =
            texts.iter().map(|(conn, text)| (*conn, text.as_str())).collect();
        together(&mut self.workers[worker], &texts);
    }

    /// Other keys are hot.
    fn heat(&mut self) {
        let hot = self.random.below(1 << KEYS);
        let hot = (0..KEYS).filter(|key| hot >> key & 1 == 1);
        let act = |key| HotAct::of_key("a", format!("k{key}").as_bytes(), HotCause::Rule);
        self.acts.set(&hot.map(act).collect::<Vec<_>>());
    }

    fn question(&mut self, at: usize) -> String {
        let mut text = String::new();
        // Of its own pipeline: what it has written there it reads.
        for _ in 0..=self.random.below(3) {
            let key = self.random.below(KEYS);
            match self.random.below(10) {
                0..7 => {
                    let least = self.least(self.clients[at].worker, key);
                    self.clients[at].asked.push(Asked::Get { key, least });
                    text += &redis(&format!("GET k{key}"));
                }
                7..9 => {
                    self.last_value += 1;
                    let value = self.last_value;
                    self.clients[at].asked.push(Asked::Set { key, value });
                    text += &redis(&format!("SET k{key} {value}"));
                }
                _ => {
                    self.last_value += 1;
                    let value = self.last_value;
                    let all = [Asked::Other, Asked::Other, Asked::Exec { key, value }];
                    self.clients[at].asked.extend(all);
                    text +=
                        &(redis("MULTI") + &redis(&format!("SET k{key} {value}")) + &redis("EXEC"));
                }
            }
        }
        text
    }

    /// How new a reply to a read has to be that is sent now.
    fn least(&self, worker: usize, key: usize) -> u64 {
        if self.kind == Kind::Sharing {
            // It is asked for from here on.
            return self.data[key].1;
        }
        let long_ago = |&&(at, _): &&(u64, u64)| at + TTL_US < self.now_us;
        let foreign = self.foreign[key].iter().rev().find(long_ago).map_or(0, |it| it.1);
        foreign.max(self.acknowledged[key]).max(self.told[worker][key])
    }

    fn read_replies(&mut self, at: usize) {
        let mut own: HashMap<usize, u64> = HashMap::new();
        loop {
            let client = &mut self.clients[at];
            let Scan::Complete(len) = ReplyScanner::default().scan(&client.replies) else { break };
            let reply: Vec<u8> = client.replies.drain(..len).collect();
            let asked = client.asked.remove(0);
            let is_error = reply.starts_with(b"-") || reply.starts_with(b"*-1");
            match asked {
                _ if is_error => {}
                Asked::Other => {}
                Asked::Set { key, value } | Asked::Exec { key, value } => {
                    let number = self.writes[&value];
                    self.acknowledged[key] = self.acknowledged[key].max(number);
                    own.insert(key, number);
                }
                Asked::Get { key, least } => {
                    let text = String::from_utf8_lossy(&reply);
                    let value = text.lines().nth(1).map_or(0, |it| it.parse().unwrap());
                    let found = self.writes.get(&value).copied().unwrap_or(0);
                    let least = least.max(own.get(&key).copied().unwrap_or(0));
                    assert!(
                        found >= least,
                        "seed {}: write {found} of k{key}, not {least}",
                        self.seed
                    );
                }
            }
        }
    }

    /// One request of one connection runs.
    fn serve(&mut self) {
        let worker = self.random.below(2);
        let mut conns: Vec<ConnId> = self.peers[worker].keys().copied().collect();
        conns.sort_by_key(|conn| conn.token());
        conns.retain(|conn| !self.peers[worker][conn].input.is_empty());
        if conns.is_empty() {
            return;
        }
        let conn = conns[self.random.below(conns.len())];
        let peer = self.peers[worker].get_mut(&conn).unwrap();
        let mut parser = RequestParser::default();
        let Parsed::Complete { len } = parser.parse(&peer.input, 1 << 20) else { return };
        let bytes: Vec<u8> = peer.input.drain(..len).collect();
        let words: Vec<String> = parser
            .args()
            .iter()
            .map(|arg| String::from_utf8_lossy(arg.of(&bytes)).into())
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let key = |name: &str| name[1..].parse::<usize>().unwrap();
        let is_primary = peer.server == self.primary;
        let data = if is_primary { &self.data } else { &self.former };
        let reply = match words[..] {
            ["HELLO", "3"] => "%1\r\n+proto\r\n:3\r\n".to_owned(),
            ["PING"] => "+PONG\r\n".to_owned(),
            ["CLIENT", "TRACKING", "ON", "BCAST", ref prefixes @ ..] => {
                peer.tracks = true;
                peer.prefixes = prefixes.chunks(2).map(|words| words[1].to_owned()).collect();
                "+OK\r\n".to_owned()
            }
            ["GET", name] => match data[key(name)].0 {
                0 => "$-1\r\n".to_owned(),
                value => format!("${}\r\n{value}\r\n", value.to_string().len()),
            },
            ["PTTL", name] => match data[key(name)].0 {
                0 => ":-2\r\n".to_owned(),
                _ => ":-1\r\n".to_owned(),
            },
            ["SET" | "MULTI", ..] if !is_primary => REFUSED.to_owned(),
            ["SET", name, value] => return self.serve_set(worker, conn, key(name), value),
            ["MULTI"] => return self.serve_multi(worker, conn),
            ["DISCARD"] | ["UNWATCH"] => "+OK\r\n".to_owned(),
            ["CLIENT", "ID"] => ":7\r\n".to_owned(),
            ref other => panic!("seed {}: unexpected {other:?}", self.seed),
        };
        self.peers[worker].get_mut(&conn).unwrap().output.extend(reply.into_bytes());
    }

    fn serve_set(&mut self, worker: usize, conn: ConnId, key: usize, value: &str) {
        self.write(key, value.parse().unwrap());
        self.peers[worker].get_mut(&conn).unwrap().output.extend(b"+OK\r\n");
    }

    /// A transaction of one write runs when all of it is here, as nothing of it does before EXEC.
    fn serve_multi(&mut self, worker: usize, conn: ConnId) {
        let peer = self.peers[worker].get_mut(&conn).unwrap();
        let text = String::from_utf8_lossy(&peer.input).into_owned();
        let end = redis("EXEC");
        let Some(at) = text.find(&end) else {
            peer.input.splice(..0, redis("MULTI").into_bytes());
            // Whoever waits for its first replies has them.
            return self.serve_queued(worker, conn);
        };
        let words: Vec<&str> = text[..at].lines().collect();
        let (name, value) = (words[4], words[6]);
        let (key, value) = (name[1..].parse().unwrap(), value.parse().unwrap());
        peer.input.drain(..at + end.len());
        peer.output.extend(b"+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
        self.write(key, value);
    }

    fn serve_queued(&mut self, worker: usize, conn: ConnId) {
        let peer = &self.peers[worker][&conn];
        assert!(!peer.input.is_empty(), "seed {}: a transaction in pieces", self.seed);
    }

    fn write(&mut self, key: usize, value: u64) -> u64 {
        let number = self.data[key].1 + 1;
        self.data[key] = (value, number);
        self.writes.insert(value, number);
        let push = format!(">2\r\n$10\r\ninvalidate\r\n*1\r\n$2\r\nk{key}\r\n");
        for peers in &mut self.peers {
            for peer in peers
                .values_mut()
                .filter(|peer| peer.server == self.primary && peer.is_told_of(&format!("k{key}")))
            {
                peer.output.extend(push.bytes());
            }
        }
        number
    }

    fn write_elsewhere(&mut self) {
        let key = self.random.below(KEYS);
        self.last_value += 1;
        let number = self.write(key, self.last_value);
        self.foreign[key].push((self.now_us, number));
    }

    /// Some of what the server has said on a connection arrives.
    fn deliver(&mut self) {
        let worker = self.random.below(2);
        let mut conns: Vec<ConnId> = self.peers[worker].keys().copied().collect();
        conns.sort_by_key(|conn| conn.token());
        conns.retain(|conn| !self.peers[worker][conn].output.is_empty());
        if conns.is_empty() {
            return;
        }
        let conn = conns[self.random.below(conns.len())];
        let peer = self.peers[worker].get_mut(&conn).unwrap();
        let len = match self.random.below(3) {
            0 => 1 + self.random.below(peer.output.len()),
            _ => peer.output.len(),
        };
        let bytes: Vec<u8> = peer.output.drain(..len).collect();
        let is_told = peer.tracks && peer.server == self.primary && peer.output.is_empty();
        self.workers[worker].send(conn, bytes);
        if is_told {
            self.told[worker] = self.data.map(|(_, number)| number);
        }
    }

    fn wait(&mut self) {
        let ms = 1 + self.random.below(400) as u64;
        self.now_us += ms * 1000;
        self.workers.iter_mut().for_each(|world| world.wait_ms(ms));
    }

    /// A connection to the server is lost, with all that is on its way there.
    fn lose(&mut self) {
        let worker = self.random.below(2);
        let mut conns: Vec<ConnId> = self.peers[worker].keys().copied().collect();
        conns.sort_by_key(|conn| conn.token());
        if conns.is_empty() {
            return;
        }
        let conn = conns[self.random.below(conns.len())];
        self.peers[worker].remove(&conn);
        if !self.workers[worker].closed.contains(&conn) {
            self.workers[worker].close(conn, CloseReason::Eof);
        }
    }

    fn count(&self, counter: PoolCounter) -> u64 {
        let before = self.counted.iter().filter(|(it, _)| *it == counter).map(|(_, count)| count);
        (0..2).map(|worker| self.count_of(worker, counter)).chain(before.copied()).sum()
    }

    /// Over all pools and routes, since the last change of the configuration.
    fn count_of(&self, worker: usize, counter: PoolCounter) -> u64 {
        let metrics = &self.workers[worker].metrics;
        let pools = 0..self.config.pools.len();
        pools.map(|pool| metrics.pool_counter(metrics.pool(pool), counter)).sum()
    }
}

/// So many seeds, or as many as `CASHEW_SIM_SEEDS` says.
fn played<const N: usize>(kind: Kind, seeds: u64, counters: [PoolCounter; N]) -> [u64; N] {
    let mut sums = [0; N];
    let (mut failovers, mut reloads) = (0, 0);
    let seeds = std::env::var("CASHEW_SIM_SEEDS").map_or(seeds, |it| it.parse().unwrap());
    for seed in 0..seeds {
        let mut play = Play::new(kind, seed);
        play.connect();
        for _ in 0..STEPS {
            play.step();
        }
        for (sum, counter) in sums.iter_mut().zip(counters) {
            *sum += play.count(counter);
        }
        failovers += play.failovers;
        reloads += play.reloads;
    }
    let changes = kind == Kind::Changing;
    assert_eq!([failovers, reloads].map(|count| count > seeds), [changes; 2]);
    sums
}

const OF_CACHES: [PoolCounter; 4] = [
    PoolCounter::CacheHits,
    PoolCounter::CacheFills,
    PoolCounter::CacheWritten,
    PoolCounter::CacheInvalidations,
];

#[test]
fn no_reply_is_older_than_it_may_be() {
    let sums = played(Kind::Cache, 60, OF_CACHES);
    // All of it was played.
    assert!(sums.iter().all(|&sum| sum > 100), "{sums:?}");
}

#[test]
fn no_reply_is_older_than_it_may_be_where_keys_become_hot_and_cool() {
    let sums = played(Kind::HotOnly, 60, OF_CACHES);
    assert!(sums.iter().all(|&sum| sum > 50), "{sums:?}");
}

#[test]
fn no_reply_is_older_than_it_may_be_when_primaries_and_configurations_change() {
    let sums = played(Kind::Changing, 40, OF_CACHES);
    assert!(sums.iter().all(|&sum| sum > 50), "{sums:?}");
}

#[test]
fn no_reply_that_is_shared_is_older_than_it_may_be() {
    let [shared] = played(Kind::Sharing, 60, [PoolCounter::ReadsCoalesced]);
    assert!(shared > 1000, "{shared}");
}
