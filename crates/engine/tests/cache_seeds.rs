//! The cache of a route in two workers, in front of one server that others write to as well: seeds choose who does
//! what when, what is on its way for how long, and what is lost. An oracle knows how old a reply may be. It plays a cache
//! of hot keys only, too, which become hot and cool; equal reads that are sent once, without a cache; and
//! primaries and configurations that change while all that goes on: a replica takes over as the master has it, when all
//! workers have paused, and the workers go on one after the other; and slots of a cluster that move. While these change,
//! it plays keys that are split, too, whose copies are late, lost and refused.

mod copies;
mod slots;

use std::collections::HashMap;

use cashew_config::Snapshot;
use cashew_config::snapshot::{Promoted, TopologyState};
use cashew_engine::{Action, BackendId, CloseReason, ConnId, Plan, PoolState};
use cashew_metrics::{Generations, HotAct, HotActs, HotCause, HotDeed, PoolCounter};
use cashew_protocol::resp::{Parsed, ReplyScanner, RequestParser, Scan};

use self::copies::{CopiesAt, TWO_GROUPS, is_copy};
use self::slots::{Slots, Stand};
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
const OK: &str = "+OK\r\n";
const TTL_US: u64 = 2_000_000;
const KEYS: usize = 4;
const STEPS: usize = 3000;
/// Of all kinds, at most.
const SERVERS: u32 = 3;

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
    /// There is a cluster, whose slots move.
    Moving,
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
    /// A slot is on its way from one node to the other.
    Moving,
    /// It is there, and no worker has the new map.
    Finding,
}

/// A connection from a worker, as the server has it.
#[derive(Default)]
struct Peer {
    input: Vec<u8>,
    output: Vec<u8>,
    tracks: bool,
    /// The next command is for a slot that is being imported.
    is_asking: bool,
    /// What was queued since MULTI; `None` of it if something was refused.
    transaction: Option<Option<Vec<(usize, u64)>>>,
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

impl Asked {
    fn writes(&self, which: u64) -> bool {
        matches!(self, Self::Set { value, .. } | Self::Exec { value, .. } if *value == which)
    }

    fn is_about(&self, which: usize) -> bool {
        match self {
            Self::Get { key, .. } | Self::Set { key, .. } | Self::Exec { key, .. } => *key == which,
            Self::Other => false,
        }
    }
}

struct Client {
    worker: usize,
    conn: ConnId,
    asked: Vec<Asked>,
    replies: Vec<u8>,
}

struct Play {
    kind: Kind,
    /// Keys are split, as long as they are hot.
    splits: bool,
    copies: CopiesAt,
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
    /// By key: the last write that removed it.
    removed: [u64; KEYS],
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
    slots: Slots,
    failovers: u64,
    reloads: u64,
    /// What was counted under former configurations.
    counted: Vec<(PoolCounter, u64)>,
    now_us: u64,
    seed: u64,
}

impl Play {
    fn new((kind, splits): (Kind, bool), seed: u64) -> Self {
        let config = match kind {
            Kind::Changing if splits => snapshot(
                &CONFIG
                    .replace("['127.0.0.1:7000:1']", TWO_GROUPS)
                    .replace("ttl: 2s", "ttl: 2s, hot_only: true"),
            ),
            Kind::Cache => snapshot(CONFIG),
            Kind::HotOnly => snapshot(&CONFIG.replace("ttl: 2s", "ttl: 2s, hot_only: true")),
            Kind::Sharing => snapshot(SHARING),
            Kind::Changing => snapshot(&CONFIG.replace(
                "['127.0.0.1:7000:1']",
                "[{name: s, primary: '127.0.0.1:7000', replicas: ['127.0.0.1:7001']}], reads: primary",
            )),
            Kind::Moving if splits => {
                Slots::new().config(&CONFIG.replace("ttl: 2s", "ttl: 2s, hot_only: true"))
            }
            Kind::Moving => Slots::new().config(CONFIG),
        };
        let acts = HotActs::private();
        let generations = Generations::private();
        let workers = [0, 1].map(|number| {
            let mut world = World::new(&config);
            // No name of a copy is another worker's.
            world.engine.set_secret([seed, number]);
            world.engine.set_generations(generations.clone());
            world.engine.set_hot_acts(acts.clone());
            world
        });
        let mut play = Self {
            kind,
            splits,
            copies: CopiesAt::default(),
            acts,
            random: Random(seed),
            workers,
            peers: Default::default(),
            clients: Vec::new(),
            data: Default::default(),
            writes: HashMap::new(),
            last_value: 0,
            removed: [0; KEYS],
            acknowledged: [0; KEYS],
            foreign: Default::default(),
            told: [[0; KEYS]; 2],
            config,
            primary: 0,
            former: Default::default(),
            stage: Stage::Still,
            version: 0,
            slots: Slots::new(),
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
            27 if self.splits && self.random.below(3) == 0 => self.heat(),
            28 if self.splits => self.lose_copies(),
            // Copies are there after a while without.
            30 if self.splits && self.random.below(3) > 0 => self.ask(),
            30 if self.kind == Kind::Changing && self.stage == Stage::Still => self.change(),
            30 if self.kind == Kind::Moving && self.stage == Stage::Still => self.send_slot_away(),
            0..30 => self.ask(),
            30 if self.kind == Kind::HotOnly => self.heat(),
            30..55 => self.serve(),
            55..88 => self.deliver(),
            88..92 if self.splits && self.random.below(3) > 0 => self.serve(),
            88..92 => self.write_elsewhere(),
            92..98 => self.wait(),
            _ if self.splits && self.random.below(4) > 0 => self.ask(),
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
                    self.promote_copies();
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
            Stage::Moving if self.random.below(10) == 0 => self.move_slot(),
            Stage::Finding if self.random.below(10) == 0 => {
                let first = self.random.below(2);
                self.reload(first);
                self.stage = Stage::Reloading(1 - first);
                self.reloads += 1;
            }
            Stage::Releasing(_) | Stage::Reloading(_) | Stage::Moving | Stage::Finding => {}
        }
    }

    fn topology(&self) -> TopologyState {
        // The configured one is not named.
        let promoted = Promoted { shard: 0, server: self.primary };
        let primaries = if self.primary == 0 { Vec::new() } else { vec![promoted] };
        TopologyState {
            primaries,
            ..vec![true; self.config.pools[POOL.index()].servers.len()].into()
        }
    }

    fn release(&mut self, worker: usize) {
        let topology = self.topology();
        let world = &mut self.workers[worker];
        world.engine.handle_release(POOL, self.version, topology, world.now, 0);
        world.tick();
        // What was kept of the former primary is forgotten.
        self.told[worker] = self.numbers();
    }

    /// Of each key, the number of its last write.
    fn numbers(&self) -> [u64; KEYS] {
        self.data.map(|(_, number)| number)
    }

    fn reload(&mut self, worker: usize) {
        let next = self.config.clone();
        let mut states: Vec<PoolState> = next.pools.iter().map(PoolState::whole).collect();
        if self.kind == Kind::Changing {
            states[POOL.index()].ring_version = self.version;
            states[POOL.index()].topology = self.topology();
        }
        for counter in OF_CACHES.into_iter().chain(OF_COPIES.into_iter().take(3)) {
            let count = self.count_of(worker, counter);
            self.counted.push((counter, count));
        }
        let world = &mut self.workers[worker];
        world.engine.handle_prepare(Plan::new(&next, &states, 0, 1), world.now);
        world.tick();
        world.pause(DRAIN_MS);
        world.commit(&next);
        // Caches are empty.
        self.told[worker] = self.numbers();
    }

    fn connect(&mut self) {
        for worker in 0..2 {
            for server in 0..SERVERS {
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
        let mut hot = self.random.below(1 << KEYS);
        if self.splits {
            hot |= self.random.below(1 << KEYS);
        }
        let hot = (0..KEYS).filter(|key| hot >> key & 1 == 1);
        let splits = self.splits;
        let random = &mut self.random;
        let act = |key| {
            let deed = match splits && random.below(8) > 0 {
                true => HotDeed::Split { copies: 2 + random.below(2) as u8 },
                false => HotDeed::Cache,
            };
            HotAct { deed, ..HotAct::of_key("a", format!("k{key}").as_bytes(), HotCause::Rule) }
        };
        let acts: Vec<HotAct> = hot.map(act).collect();
        self.acts.set(&acts);
    }

    fn question(&mut self, at: usize) -> String {
        let mut text = String::new();
        // Of its own pipeline: what it has written there it reads.
        for _ in 0..=self.random.below(3) {
            let key = self.some_key();
            let reads = if self.splits { 40 } else { 7 };
            match self.random.below(reads + 3) {
                choice if choice < reads => {
                    let least = self.least(self.clients[at].worker, key);
                    self.clients[at].asked.push(Asked::Get { key, least });
                    text += &redis(&format!("GET k{key}"));
                }
                choice if choice < reads + 2 => {
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
                    assert!(
                        !client.asked.iter().any(|later| later.writes(value)),
                        "seed {}: {value} of k{key} is what its client writes later",
                        self.seed
                    );
                    // Of two removals nobody can say which one a reply has seen.
                    let found = match value {
                        0 => self.removed[key],
                        _ => self.writes[&value],
                    };
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
        let reply = self.answer((worker, conn), &words);
        let peer = self.peers[worker].get_mut(&conn).unwrap();
        // It lasts for a transaction.
        peer.is_asking = words == ["ASKING"] || peer.is_asking && peer.transaction.is_some();
        peer.output.extend(reply.into_bytes());
    }

    /// What the server says to a command.
    fn answer(&mut self, (worker, conn): (usize, ConnId), words: &[&str]) -> String {
        let key = |name: &str| name[1..].parse::<usize>().unwrap();
        if words.get(1).is_some_and(|name| is_copy(name)) {
            return self.answer_for_copy((worker, conn), words);
        }
        if let ["GET" | "PTTL" | "SET", name, ..] = *words {
            self.copies.note_home(key(name), self.peers[worker][&conn].server);
        }
        let refusal = match *words {
            ["GET" | "PTTL" | "SET", name, ..] => self.refusal((worker, conn), words[0], key(name)),
            _ => None,
        };
        let peer = self.peers[worker].get_mut(&conn).unwrap();
        if let Some(error) = refusal {
            peer.transaction = peer.transaction.take().map(|_| None);
            return error;
        }
        let server = peer.server;
        match *words {
            ["HELLO", "3"] => "%1\r\n+proto\r\n:3\r\n".to_owned(),
            ["PING"] => "+PONG\r\n".to_owned(),
            ["CLIENT", "TRACKING", "ON", "BCAST", ref prefixes @ ..] => {
                peer.tracks = true;
                peer.prefixes = prefixes.chunks(2).map(|words| words[1].to_owned()).collect();
                OK.to_owned()
            }
            ["GET", name] => match self.data_at(server)[key(name)].0 {
                0 => "$-1\r\n".to_owned(),
                value => format!("${}\r\n{value}\r\n", value.to_string().len()),
            },
            ["PTTL", name] => match self.data_at(server)[key(name)].0 {
                0 => ":-2\r\n".to_owned(),
                _ => ":-1\r\n".to_owned(),
            },
            ["SET", name, value] => {
                let (key, value) = (key(name), value.parse().unwrap());
                if let Some(queued) = &mut peer.transaction {
                    if let Some(queued) = queued {
                        queued.push((key, value));
                    }
                    return "+QUEUED\r\n".to_owned();
                }
                self.write(key, value, server);
                OK.to_owned()
            }
            ["MULTI"] => {
                peer.transaction = Some(Some(Vec::new()));
                OK.to_owned()
            }
            ["EXEC"] => self.execute((worker, conn)),
            ["DISCARD"] => {
                peer.transaction = None;
                OK.to_owned()
            }
            ["UNWATCH"] | ["ASKING"] => OK.to_owned(),
            ["CLIENT", "ID"] => ":7\r\n".to_owned(),
            ref other => panic!("seed {}: unexpected {other:?}", self.seed),
        }
    }

    /// What a server has: one that is no primary any more has what there was then.
    fn data_at(&self, server: u32) -> &[(u64, u64); KEYS] {
        // The third one is the primary of another group.
        let is_current = self.kind == Kind::Moving || server == self.primary || server == 2;
        if is_current { &self.data } else { &self.former }
    }

    /// Why a server does not do a command about a key, if it does not.
    fn refusal(&self, (worker, conn): (usize, ConnId), verb: &str, key: usize) -> Option<String> {
        let peer = &self.peers[worker][&conn];
        if self.kind != Kind::Moving {
            let is_refused = verb == "SET" && peer.server == 1 - self.primary;
            return is_refused.then(|| REFUSED.to_owned());
        }
        let is_there = self.data[key].0 != 0;
        match self.slots.stand(peer.server, key, peer.is_asking, is_there) {
            Stand::Here => None,
            Stand::Elsewhere(error) => Some(error),
        }
    }

    fn execute(&mut self, (worker, conn): (usize, ConnId)) -> String {
        let peer = self.peers[worker].get_mut(&conn).unwrap();
        let server = peer.server;
        let Some(Some(queued)) = peer.transaction.take() else {
            return "-EXECABORT Transaction discarded because of previous errors.\r\n".to_owned();
        };
        // The slot may have gone since.
        let refusal = |&(key, _): &(usize, u64)| self.refusal((worker, conn), "SET", key);
        if let Some(error) = queued.iter().find_map(refusal) {
            return error;
        }
        let reply = format!("*{}\r\n{}", queued.len(), OK.repeat(queued.len()));
        queued.into_iter().for_each(|(key, value)| _ = self.write(key, value, server));
        reply
    }

    fn write(&mut self, key: usize, value: u64, server: u32) -> u64 {
        self.came_to_be(key, server);
        let number = self.data[key].1 + 1;
        self.data[key] = (value, number);
        match value {
            0 => self.removed[key] = number,
            _ => _ = self.writes.insert(value, number),
        }
        self.tell_of(key, server);
        number
    }

    /// A server tells of a key that has changed there.
    fn tell_of(&mut self, key: usize, server: u32) {
        let push = format!(">2\r\n$10\r\ninvalidate\r\n*1\r\n$2\r\nk{key}\r\n");
        let name = format!("k{key}");
        let peers = self.peers.iter_mut().flat_map(HashMap::values_mut);
        for peer in peers.filter(|it| it.server == server && it.is_told_of(&name)) {
            peer.output.extend(push.bytes());
        }
    }

    fn write_elsewhere(&mut self) {
        let key = self.some_key();
        let is_there = self.data[key].0 != 0;
        let server = match (self.kind, self.splits) {
            (Kind::Moving, _) => self.place_of(key),
            (_, true) => match self.home(key) {
                Some(server) => server,
                None => return,
            },
            (_, false) => self.primary,
        };
        // Where slots move, who has no key has something to say of it.
        let removed_once_in = if self.kind == Kind::Moving { 2 } else { 4 };
        let number = if is_there && self.random.below(removed_once_in) == 0 {
            self.write(key, 0, server)
        } else {
            self.last_value += 1;
            self.write(key, self.last_value, server)
        };
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
        let told_by = (peer.tracks && peer.output.is_empty()).then_some(peer.server);
        self.workers[worker].send(conn, bytes);
        if let Some(server) = told_by {
            self.note_told(worker, server);
        }
    }

    /// A worker has been told of all changes at a server, or has forgotten what it had from there.
    fn note_told(&mut self, worker: usize, server: u32) {
        if self.kind != Kind::Moving && self.splits {
            let numbers = self.numbers();
            for (key, number) in numbers.into_iter().enumerate() {
                if self.home(key) == Some(server) {
                    self.told[worker][key] = number;
                }
            }
            return;
        }
        if self.kind != Kind::Moving {
            if server == self.primary {
                self.told[worker] = self.numbers();
            }
            return;
        }
        // A key may have come from the other node, which has to have told of that.
        let is_behind = |peer: &Peer| peer.tracks && !peer.output.is_empty();
        if self.peers[worker].values().any(is_behind) {
            return;
        }
        let numbers = self.numbers();
        for key in (0..KEYS).filter(|&key| self.slots.holder(key) == server) {
            self.told[worker][key] = numbers[key];
        }
    }

    fn wait(&mut self) {
        let most = if self.splits { 120 } else { 400 };
        let ms = 1 + self.random.below(most) as u64;
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
        let peer = self.peers[worker].remove(&conn).unwrap();
        if !self.workers[worker].closed.contains(&conn) {
            self.workers[worker].close(conn, CloseReason::Eof);
        }
        if peer.tracks {
            self.note_told(worker, peer.server);
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

/// So many seeds, or `CASHEW_CACHE_TIMES` times as many; or as many as `CASHEW_SIM_SEEDS` says.
fn played<const N: usize>(kind: Kind, seeds: u64, counters: [PoolCounter; N]) -> [u64; N] {
    played_with((kind, false), seeds, counters)
}

fn played_with<const N: usize>(
    (kind, splits): (Kind, bool),
    seeds: u64,
    counters: [PoolCounter; N],
) -> [u64; N] {
    let mut sums = [0; N];
    let (mut failovers, mut reloads, mut moves) = (0, 0, 0);
    let number = |name: &str| std::env::var(name).ok().map(|it| it.parse::<u64>().unwrap());
    let seeds = seeds * number("CASHEW_CACHE_TIMES").unwrap_or(1);
    let seeds = number("CASHEW_SIM_SEEDS").unwrap_or(seeds);
    for seed in 0..seeds {
        let mut play = Play::new((kind, splits), seed);
        play.connect();
        for _ in 0..STEPS {
            play.step();
        }
        for (sum, counter) in sums.iter_mut().zip(counters) {
            *sum += play.count(counter);
        }
        failovers += play.failovers;
        reloads += play.reloads;
        moves += play.slots.moves;
    }
    let (changes, moving) = (kind == Kind::Changing, kind == Kind::Moving);
    assert_eq!(
        [failovers, reloads, moves].map(|count| count > seeds),
        [changes, changes || moving, moving]
    );
    sums
}

const OF_CACHES: [PoolCounter; 4] = [
    PoolCounter::CacheHits,
    PoolCounter::CacheFills,
    PoolCounter::CacheWritten,
    PoolCounter::CacheInvalidations,
];
const OF_COPIES: [PoolCounter; 5] = [
    PoolCounter::CopyReads,
    PoolCounter::CopiesWritten,
    PoolCounter::CopiesMissing,
    PoolCounter::CacheWritten,
    PoolCounter::CacheInvalidations,
];

#[test]
fn no_reply_is_older_than_it_may_be() {
    let sums = played(Kind::Cache, 30, OF_CACHES);
    // All of it was played.
    assert!(sums.iter().all(|&sum| sum > 50), "{sums:?}");
}

#[test]
fn no_reply_is_older_than_it_may_be_where_keys_become_hot_and_cool() {
    let sums = played(Kind::HotOnly, 40, OF_CACHES);
    assert!(sums.iter().all(|&sum| sum > 5), "{sums:?}");
}

#[test]
fn no_reply_is_older_than_it_may_be_when_primaries_and_configurations_change() {
    let sums = played(Kind::Changing, 30, OF_CACHES);
    assert!(sums.iter().all(|&sum| sum > 5), "{sums:?}");
}

#[test]
fn no_reply_is_older_than_it_may_be_while_slots_move() {
    let sums = played(Kind::Moving, 40, OF_CACHES);
    assert!(sums.iter().all(|&sum| sum > 5), "{sums:?}");
}

#[test]
fn no_reply_of_a_split_key_is_older_than_it_may_be() {
    let sums = played_with((Kind::Changing, true), 50, OF_COPIES);
    assert!(sums.iter().all(|&sum| sum > 5), "{sums:?}");
}

#[test]
fn no_reply_of_a_split_key_is_older_than_it_may_be_while_slots_move() {
    let sums = played_with((Kind::Moving, true), 50, OF_COPIES);
    assert!(sums.iter().all(|&sum| sum > 5), "{sums:?}");
}

#[test]
fn no_reply_that_is_shared_is_older_than_it_may_be() {
    let [shared] = played(Kind::Sharing, 30, [PoolCounter::ReadsCoalesced]);
    assert!(shared > 1000, "{shared}");
}
