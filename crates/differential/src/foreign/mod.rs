//! A hostile client and watched ones that share connections to model servers.
//!
//! The choices of a [`Random`] are what happens: which requests the hostile client sends, how they are spoilt, cut and
//! glued, what the others ask meanwhile, and where the network cuts. A watched client must be answered to the byte
//! what a model says; an error is none of its answers. A server must never be sent what it may read otherwise than the
//! gateway does. A fuzzer's bytes may be the choices ([`Random::of_tape`]), or a seed ([`Random::new`]).

mod client;
mod packet_model;
mod redis_model;
mod text_model;

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::OnceLock;

use cashew_config::{Context, Snapshot};
use cashew_engine::{
    Action, Admission, BackendId, CloseReason, ConnId, Engine, LaneKind, ListenerId, Place, Rest,
    ServerId, Time,
};

use crate::case::excerpt;
use crate::generate::{self, Protocol};
use crate::port::{self, Port, trees};
use crate::random::Random;
use crate::sole_engine::engine_of;
use client::{Client, Speech};
use text_model::Done;

/// How the keys of watched clients begin. The hostile client does not know it.
const WATCHED: &str = "watched-";

fn is_watched(key: &[u8]) -> bool {
    key.windows(WATCHED.len()).any(|part| part == WATCHED.as_bytes())
}

/// A pool with its options, what the hostile client speaks there, and the watched ones.
struct Pair {
    name: &'static str,
    options: &'static [&'static str],
    servers: usize,
    hostile: Speech,
    watched: &'static [Speech],
    /// The route in front of its pools, each of which has so many servers.
    tree: Option<&'static str>,
}

const REDIS: &[Speech] = &[Speech::Resp2, Speech::Resp3];
const AUTO: &[Speech] = &[Speech::Text, Speech::Binary];

const fn pair(
    name: &'static str,
    options: &'static [&'static str],
    servers: usize,
    hostile: Speech,
    watched: &'static [Speech],
) -> Pair {
    Pair { name, options, servers, hostile, watched, tree: None }
}

/// Pools behind a route.
const fn routed(
    name: &'static str,
    tree: &'static str,
    options: &'static [&'static str],
    servers: usize,
    hostile: Speech,
) -> Pair {
    let watched = match hostile {
        Speech::Resp2 | Speech::Resp3 => REDIS,
        Speech::Text | Speech::Binary => AUTO,
    };
    Pair { tree: Some(tree), ..pair(name, options, servers, hostile, watched) }
}

const ADMIN: &str = "command_policy: admin";
const PREFIX: &str = "users: {default: {rules: 'on nopass ~* &* +@all', key_prefix: 'p:'}}";

/// Every protocol of clients beside every one that may share its pool.
const PAIRS: &[Pair] = &[
    pair("resp2", &["redis: true", ADMIN], 1, Speech::Resp2, REDIS),
    pair("resp3", &["redis: true", ADMIN], 1, Speech::Resp3, REDIS),
    pair("resp2-2", &["redis: true"], 2, Speech::Resp2, REDIS),
    pair("resp3-2", &["redis: true", ADMIN], 2, Speech::Resp3, REDIS),
    pair("resp2-prefix", &["redis: true", PREFIX], 2, Speech::Resp2, REDIS),
    pair("resp3-auth", &["redis: true", "redis_auth: secret"], 1, Speech::Resp3, REDIS),
    pair("auto-text", &[ADMIN], 1, Speech::Text, AUTO),
    pair("auto-binary", &[ADMIN], 1, Speech::Binary, AUTO),
    pair("auto-text-2", &[], 2, Speech::Text, AUTO),
    pair("auto-binary-2", &[ADMIN], 2, Speech::Binary, AUTO),
    pair("text", &["protocol: text", ADMIN], 1, Speech::Text, &[Speech::Text]),
    pair("text-prefix", &["protocol: text", PREFIX], 2, Speech::Text, &[Speech::Text]),
    pair("binary", &["protocol: binary", ADMIN], 1, Speech::Binary, &[Speech::Binary]),
    pair("binary-prefix", &["protocol: binary", PREFIX], 2, Speech::Binary, &[Speech::Binary]),
    routed("text-rewrite", trees::REWRITE, &[ADMIN], 1, Speech::Text),
    routed("binary-rewrite", trees::REWRITE, &[ADMIN], 1, Speech::Binary),
    routed("text-rewrite-prefix", trees::REWRITE, &[PREFIX], 2, Speech::Text),
    routed("binary-rewrite-prefix", trees::REWRITE, &[PREFIX], 2, Speech::Binary),
    routed("text-strip", trees::STRIP, &[ADMIN], 1, Speech::Text),
    routed("binary-strip", trees::STRIP, &[ADMIN], 1, Speech::Binary),
    routed("text-split", trees::SPLIT, &[ADMIN], 2, Speech::Text),
    routed("binary-split", trees::SPLIT, &[ADMIN], 2, Speech::Binary),
    routed("text-split-prefix", trees::SPLIT, &[PREFIX], 2, Speech::Text),
    routed("text-initial", trees::INITIAL, &[ADMIN], 1, Speech::Text),
    routed("binary-initial-prefix", trees::INITIAL, &[PREFIX], 1, Speech::Binary),
    routed("text-shadow-prefix", trees::SHADOW, &[PREFIX], 1, Speech::Text),
    routed("binary-shadow", trees::SHADOW, &[ADMIN], 1, Speech::Binary),
    routed("text-failover", trees::FAILOVER, &[ADMIN], 1, Speech::Text),
    routed("binary-failover-prefix", trees::FAILOVER, &[PREFIX], 1, Speech::Binary),
    routed("resp2-rewrite", trees::REWRITE, &["redis: true", ADMIN], 2, Speech::Resp2),
    routed("resp3-rewrite-prefix", trees::REWRITE, &["redis: true", PREFIX], 1, Speech::Resp3),
    routed("resp3-strip", trees::STRIP, &["redis: true", ADMIN], 1, Speech::Resp3),
    routed("resp2-split", trees::SPLIT, &["redis: true", ADMIN], 2, Speech::Resp2),
    routed("resp3-split-prefix", trees::SPLIT, &["redis: true", PREFIX], 2, Speech::Resp3),
];

/// The number of pairs of protocols.
pub fn pairs() -> usize {
    PAIRS.len()
}

pub fn name_of(pair: usize) -> &'static str {
    PAIRS[pair].name
}

/// The pools' configurations, in the order of [`PAIRS`].
fn snapshots() -> &'static [Snapshot] {
    static ALL: OnceLock<Vec<Snapshot>> = OnceLock::new();
    ALL.get_or_init(|| {
        let resolve = |_: &str, port| Ok(SocketAddr::from(([127, 0, 0, 1], port)));
        let context = Context {
            processors: 1,
            memory: None,
            resolve: &resolve,
            is_directory: &|_| true,
            ..Context::of_system()
        };
        let snapshot = |pair: &Pair| {
            let server = |pool, at| format!("127.0.0.1:{}", 7000 + 10 * pool + at);
            let of_pool = |pool| (0..pair.servers).map(|at| server(pool, at)).collect();
            let servers: Vec<Vec<String>> = (0..port::pools(pair.tree)).map(of_pool).collect();
            let yaml = port::yaml(&[Port {
                name: "p",
                listen: "127.0.0.1:6000",
                options: pair.options,
                tree: pair.tree,
                servers: &servers,
            }]);
            match cashew_config::parse("f", &yaml, &context) {
                Ok(loaded) => loaded.snapshot,
                Err(errors) => panic!("{errors}\n{yaml}"),
            }
        };
        PAIRS.iter().map(snapshot).collect()
    })
}

/// Requests that a watched client sends at once.
const PIPELINE_MAX: usize = 4;
/// The most events of one run.
const EVENTS_MAX: usize = 200;
/// Rounds in which nothing but the network moves until all is at rest.
const ROUNDS_MAX: usize = 2000;
/// Lines of a transcript that are shown: what led to a wrong answer is mostly among the last.
const TRANSCRIPT_SHOWN: usize = 60;
/// Words that concern other clients, or their keys, if the gateway allows them.
const NOT_SAID: [&[u8]; 3] = [b"kill", b"pause", b"watched"];

/// Whether a word is in it, in whatever case.
fn says(mut bytes: &[u8], word: &[u8]) -> bool {
    let is_first = |byte: &u8| byte.eq_ignore_ascii_case(&word[0]);
    while let Some(at) = bytes.iter().position(is_first) {
        bytes = &bytes[at..];
        if bytes.get(..word.len()).is_some_and(|part| part.eq_ignore_ascii_case(word)) {
            return true;
        }
        bytes = &bytes[1..];
    }
    false
}

/// One connection to a server, as the server sees it.
struct Wire {
    server: (BackendId, ServerId),
    input: Vec<u8>,
    output: Vec<u8>,
    session: redis_model::Session,
    ends: bool,
}

impl Wire {
    /// The numbers of its pool and of the server in that.
    fn name(&self) -> String {
        format!("{}.{}", self.server.0.index(), self.server.1.index())
    }
}

#[derive(Default)]
struct Model {
    redis: redis_model::Store,
    memcached: text_model::Store,
}

struct Watched {
    conn: ConnId,
    client: Client,
    expected: Vec<u8>,
    got: Vec<u8>,
}

struct World<'a> {
    pair: &'static Pair,
    random: &'a mut Random,
    engine: Engine,
    now: Time,
    listener: ListenerId,
    models: BTreeMap<(BackendId, ServerId), Model>,
    wires: BTreeMap<u64, Wire>,
    watched: Vec<Watched>,
    hostile: Option<ConnId>,
    /// The end of what it sent, and what it has begun and sends later.
    said: Vec<u8>,
    rest: Vec<u8>,
    does_read: bool,
    paused: BTreeSet<u64>,
    closed: BTreeSet<u64>,
    clients: u64,
    transcript: Vec<String>,
}

/// What a run has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Bytes of the hostile client, and answers to watched ones.
    pub hostile_bytes: usize,
    pub watched_bytes: usize,
}

/// Plays what the choices stand for, with the protocols of that number.
///
/// # Panics
/// At the first wrong answer, after a transcript.
pub fn play(pair: usize, random: &mut Random) -> Report {
    let mut world = World::new(pair, random);
    let mut report = Report::default();
    world.settle(&mut report);
    for _ in 0..EVENTS_MAX {
        if world.random.is_over() {
            break;
        }
        world.step(&mut report);
    }
    world.hostile_leaves();
    world.settle(&mut report);
    world.all_ask(&mut report);
    report
}

impl<'a> World<'a> {
    fn new(number: usize, random: &'a mut Random) -> Self {
        let (pair, snapshot) = (&PAIRS[number], &snapshots()[number]);
        let now = Time::from_micros(1_000_000);
        let engine = engine_of(snapshot, now);
        let listener = engine.listener_named("p").expect("it is configured");
        let mut world = Self {
            pair,
            random,
            engine,
            now,
            listener,
            models: BTreeMap::new(),
            wires: BTreeMap::new(),
            watched: Vec::new(),
            hostile: None,
            said: Vec::new(),
            rest: Vec::new(),
            does_read: true,
            paused: BTreeSet::new(),
            closed: BTreeSet::new(),
            clients: 0,
            transcript: Vec::new(),
        };
        for (number, &speech) in pair.watched.iter().enumerate() {
            let conn = world.accept();
            let client = Client::new(speech, number);
            let greeting = [world.password(speech), client.greeting()].concat();
            world.watched.push(Watched { conn, client, expected: Vec::new(), got: Vec::new() });
            if !greeting.is_empty() {
                world.receive(conn, &greeting);
                world.rest();
                world.watched[number].got.clear();
            }
        }
        world
    }

    /// Clients of a pool with a password say it.
    fn password(&self, speech: Speech) -> &'static [u8] {
        let has_password = self.pair.options.iter().any(|option| option.starts_with("redis_auth"));
        let is_redis = matches!(speech, Speech::Resp2 | Speech::Resp3);
        if has_password && is_redis { b"*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n" } else { b"" }
    }

    fn accept(&mut self) -> ConnId {
        self.clients += 1;
        self.engine.handle_accepted(self.listener, Admission::Welcome, self.clients, self.now)
    }

    fn step(&mut self, report: &mut Report) {
        match self.random.below(16) {
            0..=5 => self.hostile_asks(report),
            6 => {
                let bytes = std::mem::take(&mut self.rest);
                self.hostile_says(&bytes, report);
            }
            7 | 8 => {
                let at = self.random.below(self.watched.len());
                self.watched_asks(at);
            }
            9 => self.tick(),
            10 => _ = self.exchange(),
            11 if self.random.percent(40) => self.hostile_leaves(),
            12 => self.does_read = !self.does_read,
            13 => {
                let millis = self.random.below(40) as u64;
                self.now = self.now.plus_millis(millis);
            }
            14 => self.all_ask(report),
            _ => self.settle(report),
        }
    }

    /// Some requests of the hostile client, of which the last may be sent in part only.
    fn hostile_asks(&mut self, report: &mut Report) {
        let mut bytes = std::mem::take(&mut self.rest);
        for _ in 0..=self.random.below(3) {
            bytes.extend(self.hostile_request());
        }
        // Enough for what is told apart by size, and no more: it would only be copied.
        bytes.truncate(330_000);
        if self.random.percent(20) {
            let at = bytes.len() - self.random.below(bytes.len() + 1);
            self.rest = bytes.split_off(at);
        }
        self.hostile_says(&bytes, report);
    }

    fn hostile_request(&mut self) -> Vec<u8> {
        if self.random.percent(15) {
            let len = self.random.below(64);
            return self.random.bytes(len);
        }
        let protocol = match self.pair.hostile {
            // Who speaks one protocol of a pool may speak the other next.
            Speech::Text | Speech::Binary if self.random.percent(5) => {
                self.random.pick(&[Protocol::Text, Protocol::Binary])
            }
            Speech::Resp2 | Speech::Resp3 => Protocol::Redis,
            Speech::Text => Protocol::Text,
            Speech::Binary => Protocol::Binary,
        };
        // Routes make keys longer, or empty.
        match self.pair.tree.is_some() && self.random.percent(50) {
            true => generate::limits::request(protocol, self.random).bytes(),
            false => generate::request(protocol, self.random).bytes(),
        }
    }

    fn hostile_says(&mut self, bytes: &[u8], report: &mut Report) {
        let conn = match self.hostile {
            Some(conn) => conn,
            None => {
                let conn = self.accept();
                self.hostile = Some(conn);
                (self.does_read, self.said) = (true, Vec::new());
                let hello = Client::new(self.pair.hostile, 0);
                let greeting = [self.password(hello.speech()), hello.greeting()].concat();
                if !greeting.is_empty() {
                    self.receive(conn, &greeting);
                }
                conn
            }
        };
        if bytes.is_empty() || self.paused.contains(&conn.token()) {
            return;
        }
        self.said.extend_from_slice(bytes);
        if NOT_SAID.iter().any(|word| says(&self.said, word)) {
            return self.hostile_leaves();
        }
        let kept = self.said.len().saturating_sub(16);
        self.said.drain(..kept);
        report.hostile_bytes += bytes.len();
        self.transcript.push(format!("hostile: {}", excerpt(bytes)));
        let cut = match self.random.percent(30) {
            true => self.random.below(bytes.len()),
            false => 0,
        };
        self.receive(conn, &bytes[..cut]);
        self.receive(conn, &bytes[cut..]);
    }

    fn hostile_leaves(&mut self) {
        let Some(conn) = self.hostile.take() else { return };
        self.transcript.push("hostile: leaves".to_owned());
        if !self.closed.contains(&conn.token()) {
            self.engine.handle_closed(conn, CloseReason::Eof, self.now);
        }
        self.rest.clear();
        self.said.clear();
    }

    fn watched_asks(&mut self, at: usize) {
        // A read that misses a copy goes to the key itself, and may see what its client has written after it.
        let has_order = self.pair.tree != Some(trees::SPLIT);
        if !has_order {
            self.rest();
        }
        let most = if has_order { PIPELINE_MAX } else { 1 };
        let watched = &mut self.watched[at];
        let (asked, answer) = watched.client.ask(most, self.random);
        watched.expected.extend(answer);
        let conn = watched.conn;
        self.transcript.push(format!("watched {at}: {}", excerpt(&asked)));
        let cut = if self.random.percent(20) { self.random.below(asked.len()) } else { 0 };
        self.receive(conn, &asked[..cut]);
        self.receive(conn, &asked[cut..]);
    }

    fn all_ask(&mut self, report: &mut Report) {
        for at in 0..self.watched.len() {
            self.watched_asks(at);
        }
        self.settle(report);
    }

    /// Gives the engine bytes of a client.
    fn receive(&mut self, conn: ConnId, bytes: &[u8]) {
        for piece in bytes.chunks(64 * 1024) {
            if self.closed.contains(&conn.token()) {
                return;
            }
            self.engine.handle_received_buffer(conn, &mut piece.to_vec(), self.now);
            // Others may ask within the same tick.
            if piece.len() == 64 * 1024 || self.random.percent(50) {
                self.tick();
            }
        }
    }

    /// Everything is at rest, and the watched clients have what they must have.
    fn settle(&mut self, report: &mut Report) {
        self.rest();
        for at in 0..self.watched.len() {
            let watched = &mut self.watched[at];
            let got = watched.client.comparable(std::mem::take(&mut watched.got));
            let expected = std::mem::take(&mut watched.expected);
            report.watched_bytes += got.len();
            if got != expected {
                let problem = format!(
                    "I1, I3: watched client {at} of {}\n got      {}\n expected {}",
                    self.pair.name,
                    excerpt(&got),
                    excerpt(&expected)
                );
                self.fail(&problem);
            }
            if self.closed.contains(&self.watched[at].conn.token()) {
                self.fail("I6: a watched client's connection was closed");
            }
        }
    }

    fn fail(&self, problem: &str) -> ! {
        let shown = self.transcript.len().saturating_sub(TRANSCRIPT_SHOWN);
        panic!("{}\n{problem}", self.transcript[shown..].join("\n"));
    }

    fn rest(&mut self) {
        for _ in 0..ROUNDS_MAX {
            self.tick();
            if !self.exchange() {
                return;
            }
        }
        self.fail("I3: it never comes to rest");
    }

    /// What a worker does at the end of a tick.
    fn tick(&mut self) {
        loop {
            self.engine.settle(self.now);
            let mut is_idle = !self.act();
            if let Some(observed) = self.engine.take_observed() {
                self.engine.return_observed(observed);
            }
            while let Some(conn) = self.engine.poll_dirty() {
                is_idle &= !self.write(conn);
            }
            if is_idle && self.engine.poll_timeout() > self.now {
                return;
            }
            self.engine.handle_timeout(self.now);
        }
    }

    /// Returns whether there was anything to write.
    fn write(&mut self, conn: ConnId) -> bool {
        if Some(conn) == self.hostile && !self.does_read {
            return false;
        }
        let mut bytes = Vec::new();
        loop {
            let mut slices = [IoSlice::new(&[]); 8];
            let count = self.engine.output(conn, &mut slices);
            let len: usize = slices[..count].iter().map(|slice| slice.len()).sum();
            if len == 0 {
                break;
            }
            slices[..count].iter().for_each(|slice| bytes.extend_from_slice(slice));
            self.engine.handle_sent(conn, len as u64, self.now);
        }
        if bytes.is_empty() {
            return false;
        }
        if let Some(wire) = self.wires.get_mut(&conn.token()).filter(|_| conn.is_lane()) {
            let line =
                format!("  {}: server {} gets {}", conn.token(), wire.name(), excerpt(&bytes));
            self.transcript.push(line);
            wire.input.extend_from_slice(&bytes);
        } else if let Some(watched) = self.watched.iter_mut().find(|it| it.conn == conn) {
            watched.got.extend_from_slice(&bytes);
        }
        true
    }

    fn act(&mut self) -> bool {
        let mut has_acted = false;
        while self.engine.poll_departed().is_some() {}
        while let Some(action) = self.engine.poll_action() {
            has_acted = true;
            match action {
                Action::Connect { conn, backend, server } => {
                    let wire = Wire {
                        server: (backend, server),
                        input: Vec::new(),
                        output: Vec::new(),
                        session: redis_model::Session::default(),
                        ends: false,
                    };
                    self.wires.insert(conn.token(), wire);
                    self.engine.handle_connected(conn, self.now);
                }
                Action::Close { conn } if conn.is_lane() => _ = self.wires.remove(&conn.token()),
                Action::Close { conn } => {
                    self.closed.insert(conn.token());
                    if self.hostile == Some(conn) {
                        self.hostile = None;
                        self.rest.clear();
                    }
                }
                Action::PauseRead { conn } => _ = self.paused.insert(conn.token()),
                Action::ResumeRead { conn } => _ = self.paused.remove(&conn.token()),
                Action::Ask { ticket, listener, by, request, .. } => {
                    let place = |_| Place::UNKNOWN;
                    let own = self.engine.handle_question(listener, by, &request, &place, self.now);
                    self.engine.handle_answer(ticket, &own, Rest::None, self.now);
                }
                Action::Monitors { pool, any: true } => {
                    if let Some(pool) = self.engine.listener_named(&pool) {
                        self.engine.handle_monitored(pool, self.now);
                    }
                }
                Action::ServerMisfit { expected, excerpt: said, .. } => {
                    let said = said.escape_ascii();
                    self.transcript.push(format!("misfit: expected {expected}, got {said}"));
                }
                _ => {}
            }
        }
        has_acted
    }

    /// Servers execute what they have, and some of what they say arrives. Returns whether anything moved.
    fn exchange(&mut self) -> bool {
        let mut has_moved = false;
        let tokens: Vec<u64> = self.wires.keys().copied().collect();
        for &token in &tokens {
            while self.serve(token) {
                has_moved = true;
            }
        }
        for token in tokens {
            has_moved |= self.deliver(token);
        }
        has_moved
    }

    /// Executes one request of a connection.
    fn serve(&mut self, token: u64) -> bool {
        let Some(wire) = self.wires.get_mut(&token).filter(|wire| !wire.input.is_empty()) else {
            return false;
        };
        if wire.ends {
            return false;
        }
        let model = self.models.entry(wire.server).or_default();
        let is_redis = matches!(self.pair.hostile, Speech::Resp2 | Speech::Resp3);
        let mut heard = None;
        let (used, reply) = if is_redis {
            let Some((words, used)) = redis_model::request(&wire.input) else { return false };
            let session = &mut wire.session;
            let (reply, told) =
                redis_model::execute(&words, session, &mut model.redis, self.random);
            heard = told;
            (used, reply)
        } else {
            let done = match wire.input[0] {
                0x80 => packet_model::execute(&wire.input, &mut model.memcached),
                _ => text_model::execute(&wire.input, &mut model.memcached),
            };
            match done {
                Done::Wait => return false,
                Done::Used(used, reply) => (used, reply),
                Done::Refused(text) => {
                    let problem = format!(
                        "I9: server {} does not take what it is sent: {text}: {}",
                        wire.name(),
                        excerpt(&wire.input)
                    );
                    self.fail(&problem);
                }
                Done::Close => {
                    wire.ends = true;
                    return true;
                }
            }
        };
        wire.input.drain(..used);
        wire.output.extend_from_slice(&reply);
        if let Some(heard) = heard {
            let others = self.wires.values_mut();
            others.for_each(|wire| wire.output.extend(wire.session.hear(&heard)));
        }
        true
    }

    /// Some of a server's output arrives, or all of it.
    fn deliver(&mut self, token: u64) -> bool {
        let conn = ConnId::from_token(token);
        let Some(wire) = self.wires.get_mut(&token) else { return false };
        if wire.output.is_empty() {
            if !wire.ends {
                return false;
            }
            let state = self.engine.lane_state(conn);
            if state.is_some_and(|state| state.kind == LaneKind::Multiplexed) {
                self.fail("I9: a server ends a connection that clients share");
            }
            self.wires.remove(&token);
            self.engine.handle_closed(conn, CloseReason::Eof, self.now);
            return true;
        }
        // Behind the end of a tape a choice is always the same, which would be a byte at a time.
        let len = match !self.random.is_over() && self.random.percent(25) {
            true => 1 + self.random.below(wire.output.len()),
            false => wire.output.len(),
        };
        let mut said: Vec<u8> = wire.output.drain(..len.min(64 * 1024)).collect();
        self.transcript.push(format!("  {token}: says {}", excerpt(&said)));
        self.engine.handle_received_buffer(conn, &mut said, self.now);
        if self.random.percent(50) {
            self.tick();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs of each pair, and of one behind a route.
    const SEEDS: u64 = 30;
    const ROUTED_SEEDS: u64 = 12;

    fn play_seeds(pair: usize) {
        let from = std::env::var("CASHEW_FOREIGN_FROM").ok().and_then(|text| text.parse().ok());
        let seeds = std::env::var("CASHEW_FOREIGN_SEEDS").ok().and_then(|text| text.parse().ok());
        let from = from.unwrap_or(0);
        let usual = if PAIRS[pair].tree.is_some() { ROUTED_SEEDS } else { SEEDS };
        let mut total = Report::default();
        for seed in from..from + seeds.unwrap_or(usual) {
            println!("{} seed {seed}", name_of(pair));
            let report = play(pair, &mut Random::of(seed, pair as u64));
            total.hostile_bytes += report.hostile_bytes;
            total.watched_bytes += report.watched_bytes;
        }
        assert!(total.hostile_bytes > 0 && total.watched_bytes > 0, "{total:?}");
    }

    /// A test for each pair, so that they run side by side.
    macro_rules! pairs {
        ($($number:literal $test:ident)*) => {
            $(#[test]
            fn $test() {
                assert_eq!(name_of($number).replace('-', "_"), stringify!($test));
                play_seeds($number);
            })*

            #[test]
            fn every_pair_has_a_test() {
                assert_eq!([$($number),*].len(), pairs());
            }
        };
    }

    pairs! {
        0 resp2 1 resp3 2 resp2_2 3 resp3_2 4 resp2_prefix 5 resp3_auth 6 auto_text 7 auto_binary
        8 auto_text_2 9 auto_binary_2 10 text 11 text_prefix 12 binary 13 binary_prefix
        14 text_rewrite 15 binary_rewrite 16 text_rewrite_prefix 17 binary_rewrite_prefix
        18 text_strip 19 binary_strip 20 text_split 21 binary_split 22 text_split_prefix
        23 text_initial 24 binary_initial_prefix 25 text_shadow_prefix 26 binary_shadow
        27 text_failover 28 binary_failover_prefix 29 resp2_rewrite 30 resp3_rewrite_prefix
        31 resp3_strip 32 resp2_split 33 resp3_split_prefix
    }
}
