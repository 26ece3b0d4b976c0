//! An engine with hand-played clients and servers: tests read like transcripts.
#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod gets;

use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::Arc;

use cashew_config::{Context, Snapshot};
use cashew_engine::{
    Action, Admission, CloseReason, ConnId, Engine, Export, Identity, ListenerId, Place, Plan,
    Rest, Scope, Setup, Sighting, Time,
};
use cashew_metrics::{Health, Segments, ServerGauge, Writer};
use cashew_protocol::resp::{ReplyScanner, Scan};

/// The configuration in `yaml`, a flat file.
pub(crate) fn snapshot(yaml: &str) -> Snapshot {
    match cashew_config::parse("test.yml", yaml, &Context::of_system()) {
        Ok(loaded) => loaded.snapshot,
        Err(errors) => panic!("{errors}"),
    }
}

/// A pool `p` with the options given, one per line, over servers named `s0`, `s1`, … that
/// modula deals keys to by their hash.
pub(crate) fn pool(options: &str, servers: usize) -> Snapshot {
    let options: String = options
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| format!("  {}\n", line.trim()))
        .collect();
    let servers: String =
        (0..servers).map(|n| format!("   - 127.0.0.1:{}:1 s{n}\n", 7000 + n)).collect();
    // Pipelines are as long as they are, but in tests about that.
    // Errors are compared by their words.
    let hidden = if options.contains("hide_topology") { "" } else { "  hide_topology: true\n" };
    let window = if options.contains("pipeline_start") { "" } else { "  pipeline_start: 0\n" };
    snapshot(&format!(
        "p:\n  listen: 127.0.0.1:6000\n  distribution: modula\n{window}{hidden}{options}  servers:\n{servers}"
    ))
}

/// The words of `line` as a Redis request.
pub(crate) fn redis(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let bulks: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{bulks}", words.len())
}

/// Redis requests, one for each line.
pub(crate) fn all(lines: &[&str]) -> String {
    lines.iter().map(|line| redis(line)).collect()
}

/// Whether the log is told that a server is not well.
pub(crate) fn is_failure(action: &Action) -> bool {
    matches!(action, Action::ServerState { change, .. }
        if matches!(change.to, Health::Suspect | Health::Out))
}

pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) metrics: Writer,
    pub(crate) now: Time,
    /// What the engine did, for tests to look at; connects and closes are also kept below.
    pub(crate) actions: Vec<Action>,
    /// Connections that the engine wants and that are not answered yet, by server.
    pub(crate) connecting: HashMap<u32, Vec<ConnId>>,
    /// Established connections to servers, in the order of their making.
    pub(crate) lanes: HashMap<u32, Vec<ConnId>>,
    pub(crate) closed: Vec<ConnId>,
    pub(crate) paused: Vec<ConnId>,
    received: HashMap<ConnId, Vec<u8>>,
    /// Connections whose peers do not read.
    pub(crate) stuck: Vec<ConnId>,
    /// Clients that have come.
    pub(crate) ids: u64,
    /// Their numbers, by which monitors are told of them.
    numbers: HashMap<ConnId, u64>,
    /// What monitors of other workers are to be told.
    pub(crate) told_elsewhere: String,
    /// Other workers do not say that they tell monitors.
    pub(crate) is_unconfirmed: bool,
    /// There are other workers, and the test answers for them.
    pub(crate) has_others: bool,
    /// Clients that come from another host than the rest.
    pub(crate) elsewhere: Vec<ConnId>,
    /// What is behind requests that are sealed is shown to the test, which has to answer it.
    pub(crate) shows_seals: bool,
    has_seals: bool,
    /// Requests that the engine has looked at.
    pub(crate) sightings: Vec<Sighting>,
}

impl World {
    pub(crate) fn new(snapshot: &Snapshot) -> Self {
        Self::with(snapshot, Writer::in_memory(snapshot), 0, 1)
    }

    /// One of several workers.
    pub(crate) fn of_worker(
        snapshot: &Snapshot,
        segments: &Arc<Segments>,
        slot: u32,
        workers: u32,
    ) -> Self {
        Self::with(snapshot, segments.writer(slot), slot, workers)
    }

    fn with(snapshot: &Snapshot, metrics: Writer, slot: u32, workers: u32) -> Self {
        let now = Time::from_micros(1);
        let mut engine = Engine::new(Setup {
            plan: Plan::whole(snapshot, slot, workers),
            metrics: metrics.clone(),
            seed: 7,
            slot,
            identity: Identity { version: "0.0.0", process_id: 1 },
            now,
        });
        engine.set_generations(cashew_metrics::Generations::private());
        let mut world = Self {
            engine,
            metrics,
            now,
            actions: Vec::new(),
            connecting: HashMap::new(),
            lanes: HashMap::new(),
            closed: Vec::new(),
            paused: Vec::new(),
            received: HashMap::new(),
            stuck: Vec::new(),
            sightings: Vec::new(),
            ids: 0,
            numbers: HashMap::new(),
            told_elsewhere: String::new(),
            is_unconfirmed: false,
            has_others: false,
            elsewhere: Vec::new(),
            shows_seals: false,
            has_seals: false,
        };
        world.tick();
        world
    }

    /// Lets the engine work until nothing is left to do.
    pub(crate) fn tick(&mut self) {
        while self.turn() {}
    }

    /// One turn of the loop, after its events; returns whether there is another one to follow at once.
    pub(crate) fn turn(&mut self) -> bool {
        self.engine.settle(self.now);
        let mut idle = !self.act();
        self.tell();
        while let Some(conn) = self.engine.poll_dirty() {
            idle = false;
            self.write(conn);
        }
        self.sightings.extend(self.engine.take_sightings(self.now).0);
        if idle && self.engine.poll_timeout() > self.now {
            return false;
        }
        self.engine.handle_timeout(self.now);
        true
    }

    /// Passes what was overheard on.
    fn tell(&mut self) {
        let Some(observed) = self.engine.take_observed() else { return };
        for (hearing, head, tail) in observed.lines() {
            let address = format!("127.0.0.1:{}", self.numbers[&hearing.client]);
            let line = [head, address.as_bytes(), tail].concat();
            if hearing.elsewhere {
                self.told_elsewhere.push_str(std::str::from_utf8(&line).unwrap());
            }
            if hearing.here {
                self.engine.handle_observed(hearing.listener, &line, 0, self.now);
            }
        }
        self.engine.return_observed(observed);
    }

    fn act(&mut self) -> bool {
        let mut acted = false;
        while let Some(action) = self.engine.poll_action() {
            acted = true;
            match action {
                Action::Connect { conn, server, .. } => {
                    let slot = |conn: ConnId| conn.token() as u32;
                    let mut open = self.lanes.values().chain(self.connecting.values()).flatten();
                    let is_free = open.all(|&other| slot(other) != slot(conn));
                    assert!(is_free, "a driver has one connection for each slot");
                    self.connecting.entry(server.number()).or_default().push(conn);
                }
                Action::Close { conn } => {
                    self.closed.push(conn);
                    self.forget(conn);
                }
                Action::PauseRead { conn } => self.paused.push(conn),
                Action::ResumeRead { conn } => self.paused.retain(|&other| other != conn),
                Action::Monitors { ref pool, any: true } if !self.is_unconfirmed => {
                    let pool = self.engine.listener_named(pool).expect("it is monitored");
                    self.engine.handle_monitored(pool, self.now);
                }
                Action::Ask { ticket, scope, listener: pool, by, ref request } => {
                    let own = self.own_answer(pool, by, request);
                    let is_alone = scope == Scope::Here || !self.has_others;
                    let rest = if is_alone { Rest::None } else { Rest::Awaited };
                    self.engine.handle_answer(ticket, &own, rest, self.now);
                }
                _ => {}
            }
            self.actions.push(action);
        }
        acted
    }

    /// What this worker answers to a question of another one, or its own: its clients come from
    /// ports that are called like their tokens.
    pub(crate) fn answer(&mut self, pool: u32, by: u64, request: &[u8]) -> Vec<u8> {
        let answer = self.own_answer(ListenerId::new(pool), by, request);
        self.tick();
        answer
    }

    fn own_answer(&mut self, pool: ListenerId, by: u64, request: &[u8]) -> Vec<u8> {
        let place = |conn: ConnId| Place {
            peer: match self.elsewhere.contains(&conn) {
                true => format!("10.0.0.7:{}", conn.token()),
                false => format!("10.0.0.1:{}", conn.token()),
            },
            local: "10.0.0.2:6000".to_owned(),
            is_unix: false,
            descriptor: 42,
        };
        self.engine.handle_question(pool, by, request, &place, self.now)
    }

    /// The question that was asked last.
    #[track_caller]
    pub(crate) fn question(&self) -> (u64, u64, Vec<u8>) {
        let question = self.actions.iter().rev().find_map(|action| match action {
            Action::Ask { ticket, by, request, .. } => Some((*ticket, *by, request.clone())),
            _ => None,
        });
        question.expect("nobody has asked anything")
    }

    /// One of the other workers answers, or the master does in its place.
    pub(crate) fn answered(&mut self, ticket: u64, answer: &[u8], rest: Rest) {
        self.engine.handle_answer(ticket, answer, rest, self.now);
        self.tick();
    }

    fn forget(&mut self, conn: ConnId) {
        for list in self.lanes.values_mut().chain(self.connecting.values_mut()) {
            list.retain(|&other| other != conn);
        }
    }

    pub(crate) fn write(&mut self, conn: ConnId) {
        if self.stuck.contains(&conn) {
            return;
        }
        loop {
            let mut slices = [IoSlice::new(&[]); 8];
            let count = self.engine.output(conn, &mut slices);
            let bytes =
                slices[..count].iter().flat_map(|slice| slice.to_vec()).collect::<Vec<u8>>();
            if bytes.is_empty() {
                return;
            }
            let shown = self.without_seals(&bytes);
            self.received.entry(conn).or_default().extend_from_slice(&shown);
            self.engine.handle_sent(conn, bytes.len() as u64, self.now);
        }
    }

    /// What is sent, but for seals, which are answered in [`World::send`].
    fn without_seals(&mut self, bytes: &[u8]) -> Vec<u8> {
        const ECHO: &[u8] = b"*2\r\n$4\r\nECHO\r\n$16\r\n";
        let mut rest = bytes;
        let mut kept = Vec::new();
        while !self.shows_seals
            && let Some(at) = rest.windows(ECHO.len()).position(|window| window == ECHO)
        {
            kept.extend_from_slice(&rest[..at]);
            rest = &rest[at + ECHO.len() + 16 + 2..];
            self.has_seals = true;
        }
        kept.extend_from_slice(rest);
        kept
    }

    /// Writes only the first `bytes` bytes of what waits.
    pub(crate) fn write_some(&mut self, conn: ConnId, bytes: usize) {
        let mut slices = [IoSlice::new(&[]); 8];
        let count = self.engine.output(conn, &mut slices);
        let all = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect::<Vec<u8>>();
        self.received.entry(conn).or_default().extend_from_slice(&all[..bytes]);
        self.engine.handle_sent(conn, bytes as u64, self.now);
    }

    /// Time passes, with all timers on the way.
    pub(crate) fn wait_ms(&mut self, millis: u64) {
        let end = self.now.plus_millis(millis);
        while self.engine.poll_timeout() <= end {
            self.now = self.engine.poll_timeout().max(self.now);
            self.engine.handle_timeout(self.now);
            self.tick();
        }
        self.now = end;
        self.tick();
    }

    pub(crate) fn client(&mut self) -> ConnId {
        self.client_of(0)
    }

    pub(crate) fn client_of(&mut self, pool: u32) -> ConnId {
        self.ids += 1;
        let conn = self.engine.handle_accepted(
            ListenerId::new(pool),
            Admission::Welcome,
            self.ids,
            self.now,
        );
        self.numbers.insert(conn, self.ids);
        self.tick();
        conn
    }

    pub(crate) fn send(&mut self, conn: ConnId, bytes: impl AsRef<[u8]>) {
        let mut bytes = bytes.as_ref();
        if self.has_seals && conn.is_lane() {
            // One reply after the other, with what seals are owed behind them.
            let mut scanner = ReplyScanner::default();
            scanner.set_resp3(true);
            while let Scan::Complete(len) = scanner.scan(bytes) {
                self.engine.handle_received_buffer(conn, &mut bytes[..len].to_vec(), self.now);
                self.answer_seals(conn);
                bytes = &bytes[len..];
            }
        }
        if !bytes.is_empty() {
            self.engine.handle_received_buffer(conn, &mut bytes.to_vec(), self.now);
        }
        if self.has_seals && conn.is_lane() {
            // The end of a reply that came in pieces.
            self.answer_seals(conn);
        }
        self.tick();
    }

    fn answer_seals(&mut self, conn: ConnId) {
        while let Some(mut seal) = self.engine.seal_awaited(conn) {
            self.engine.handle_received_buffer(conn, &mut seal, self.now);
        }
    }

    /// All that the connection's peer received since the last call.
    pub(crate) fn received(&mut self, conn: ConnId) -> Vec<u8> {
        self.received.remove(&conn).unwrap_or_default()
    }

    #[track_caller]
    pub(crate) fn expect(&mut self, conn: ConnId, bytes: impl AsRef<[u8]>) {
        let received = self.received(conn);
        assert_eq!(String::from_utf8_lossy(&received), String::from_utf8_lossy(bytes.as_ref()));
    }

    /// The server accepts what the engine wants to connect; returns the connection.
    #[track_caller]
    pub(crate) fn accept(&mut self, server: u32) -> ConnId {
        let waiting = self.connecting.get_mut(&server).expect("nobody connects");
        assert!(!waiting.is_empty(), "nobody connects to server {server}");
        let conn = waiting.remove(0);
        self.lanes.entry(server).or_default().push(conn);
        self.engine.handle_connected(conn, self.now);
        self.tick();
        conn
    }

    /// Accepts all that the engine wants to connect; returns the newest connection of each of the
    /// first `servers` servers, connected or not.
    pub(crate) fn accept_all<const N: usize>(&mut self) -> [Option<ConnId>; N] {
        std::array::from_fn(|server| {
            let server = server as u32;
            while self.connects_to(server) {
                self.accept(server);
            }
            self.lanes.get(&server).and_then(|lanes| lanes.last().copied())
        })
    }

    /// A pool whose servers are all connected: the connections, by server.
    #[track_caller]
    pub(crate) fn connected<const N: usize>(snapshot: &Snapshot) -> (Self, [ConnId; N]) {
        let mut world = Self::new(snapshot);
        let lanes = world.accept_all().map(|lane| lane.expect("a pool with preconnect"));
        (world, lanes)
    }

    /// The same with a client.
    #[track_caller]
    pub(crate) fn with_client<const N: usize>(snapshot: &Snapshot) -> (Self, ConnId, [ConnId; N]) {
        let (mut world, lanes) = Self::connected(snapshot);
        let client = world.client();
        (world, client, lanes)
    }

    /// The server refuses the connection.
    #[track_caller]
    pub(crate) fn refuse(&mut self, server: u32) {
        let conn = self.connecting.get_mut(&server).expect("nobody connects").remove(0);
        self.close(conn, CloseReason::Refused);
    }

    pub(crate) fn close(&mut self, conn: ConnId, reason: CloseReason) {
        self.forget(conn);
        self.engine.handle_closed(conn, reason, self.now);
        self.tick();
    }

    pub(crate) fn read_closed(&mut self, conn: ConnId) {
        self.engine.handle_read_closed(conn, self.now);
        self.tick();
    }

    pub(crate) fn connects_to(&self, server: u32) -> bool {
        self.connecting.get(&server).is_some_and(|list| !list.is_empty())
    }

    /// Another epoch is prepared, with this worker as the only one.
    pub(crate) fn prepare(&mut self, next: &Snapshot) {
        self.engine.handle_prepare(Plan::whole(next, 0, 1), self.now);
        self.tick();
    }

    pub(crate) fn pause(&mut self, drain_ms: u64) {
        self.engine.handle_pause(drain_ms, self.now);
        self.tick();
    }

    pub(crate) fn commit(&mut self, next: &Snapshot) {
        self.metrics = Writer::in_memory(next);
        self.engine.handle_commit(self.metrics.clone(), self.now);
        self.tick();
    }

    /// What was said of epochs since the last call.
    pub(crate) fn epoch_answers(&mut self) -> Vec<Action> {
        let is_answer =
            |action: &Action| matches!(action, Action::Prepared { .. } | Action::Paused { .. });
        self.actions.drain(..).filter(is_answer).collect()
    }

    /// Connections of the server that clients have to themselves.
    pub(crate) fn sessions(&self, server: usize) -> u64 {
        self.metrics.server_gauge(self.metrics.server(0, server), ServerGauge::Sessions)
    }

    /// A client of another engine comes.
    pub(crate) fn adopt(&mut self, export: Export) -> ConnId {
        let Export { listener, parts, input, output } = export;
        let id = parts.id;
        let conn = self.engine.handle_adopted(listener, parts, input, output, self.now);
        self.numbers.insert(conn, id);
        self.tick();
        conn
    }

    pub(crate) fn is_handed_off(&self, conn: ConnId) -> bool {
        self.actions.contains(&Action::HandOff { conn })
    }

    #[track_caller]
    pub(crate) fn assert_idle(&self) {
        assert_eq!(self.engine.requests_pending(), 0);
        assert_eq!(self.engine.held_bytes(), 0);
    }
}
