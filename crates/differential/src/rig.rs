//! The engine between simulated clients and a real server, with every byte checked.
//!
//! The engine's output on a connection is written to the server, followed by a [`Fence`] that the
//! engine does not know. The input before the fence's reply is given to the engine, cut at random.
//! With the last byte of it the engine must have received all replies that it waits for, with no
//! bytes left over.
//!
//! Time stands still within a case, so that nothing times out. The engine, its clients and the
//! connections are kept from case to case, as in a gateway.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use cashew_engine::{
    Action, Admission, CloseReason, ConnId, Engine, LaneKind, LaneState, ListenerId, Place, Rest,
    Time,
};

use crate::case::{Case, excerpt};
use crate::companion::Companion;
use crate::fence::Fence;
use crate::generate::Protocol;
use crate::random::Random;
use crate::servers::Server;
use crate::setup::Setup;
use crate::sole_engine::engine_of;

/// How long a call on an exclusive connection may block.
const BLOCKED_MAX: Duration = Duration::from_millis(300);
/// The most exchanges of one case; a command to all servers takes a few each.
const EXCHANGES_MAX: usize = 400;
/// The most bytes of one read of a driver.
const READ_SIZE: usize = 64 * 1024;
/// The state of shared connections is checked after so many cases.
const STATE_EVERY: u64 = 8;

/// How gateway and server differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Misfit {
    /// The server's output was more or different than the gateway expects.
    TooMuch,
    /// The server's output was less than the gateway waits for.
    TooLittle,
    /// The server waits for more than the gateway sent.
    Waits,
    /// The server closed a shared connection.
    Closes,
    /// The server died.
    Dies,
    /// A client got a reply to another request.
    Foreign,
    /// A client gets no reply, though nothing is in flight.
    Unanswered,
    /// The state of a connection that others use next has changed.
    State,
    /// The engine panicked.
    Panics,
}

impl Misfit {
    /// Whether the same cause may show as either, depending on other clients and cuts.
    pub fn is_like(self, other: Self) -> bool {
        self.family() == other.family()
    }

    pub fn family(self) -> &'static str {
        match self {
            Self::TooMuch | Self::TooLittle | Self::Waits | Self::Foreign | Self::Unanswered => {
                "replies"
            }
            Self::Closes => "closes",
            Self::Dies => "dies",
            Self::State => "state",
            Self::Panics => "panic",
        }
    }

    pub fn meaning(self) -> &'static str {
        match self {
            Self::TooMuch => {
                "the server says more than the gateway takes as its replies, or what is no reply"
            }
            Self::TooLittle => "the server says less than the gateway waits for",
            Self::Waits => {
                "the server waits for more bytes where the gateway thinks that the request is whole"
            }
            Self::Closes => {
                "the server closes a connection that clients share (others are held up)"
            }
            Self::Dies => "the server dies",
            Self::Foreign => "another client gets a reply that is not its own",
            Self::Unanswered => "another client gets no reply",
            Self::State => "the request changes the state of a connection that others use next",
            Self::Panics => "the engine panics",
        }
    }
}

/// The finding of one case.
#[derive(Clone, Debug)]
pub struct Found {
    pub misfit: Misfit,
    pub detail: String,
}

/// Anything that ends a case early.
pub enum Stop {
    Found(Found),
    /// A problem of the test itself.
    Broken(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

type Outcome<T = ()> = Result<T, Stop>;

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Writes to a server whose replies were compared.
    pub exchanges: u64,
    pub cases: u64,
    pub requests: u64,
    /// Calls on exclusive connections that blocked too long to be compared.
    pub blocked: u64,
    /// Connections of a single client that a server closed.
    pub own_closed: u64,
    /// Replies that came too late once, and in time when the same was replayed.
    pub stalls: u64,
}

impl Counts {
    pub fn add(&mut self, other: Self) {
        self.exchanges += other.exchanges;
        self.cases += other.cases;
        self.requests += other.requests;
        self.blocked += other.blocked;
        self.own_closed += other.own_closed;
        self.stalls += other.stalls;
    }
}

struct Wire {
    stream: UnixStream,
    /// The server's description of the new connection: see [`Rig::check_state`].
    state: Option<String>,
    is_used: bool,
}

pub struct Rig<'a> {
    setup: Setup,
    server: &'a mut Server,
    engine: Engine,
    now: Time,
    /// By their tokens.
    wires: BTreeMap<u64, Wire>,
    pending: VecDeque<ConnId>,
    received: BTreeMap<u64, Vec<u8>>,
    closed: BTreeSet<u64>,
    /// Determines where bytes are cut.
    cuts: Random,
    /// Makes fences.
    tokens: Random,
    companions: Vec<Companion>,
    clients: u64,
    /// The longest time until a fence's reply.
    patience: Duration,
    /// The transcript of this case, for a report.
    transcript: Vec<String>,
    pub counts: Counts,
    /// Something in flight would disturb the next case.
    pub is_spent: bool,
}

impl<'a> Rig<'a> {
    pub fn new(setup: Setup, server: &'a mut Server, patience: Duration) -> Outcome<Self> {
        let snapshot = setup.snapshot(&server.socket);
        let now = Time::from_micros(1_000_000);
        let engine = engine_of(&snapshot, now);
        let mut rig = Self {
            setup,
            server,
            engine,
            now,
            wires: BTreeMap::new(),
            pending: VecDeque::new(),
            received: BTreeMap::new(),
            closed: BTreeSet::new(),
            cuts: Random::new(1),
            tokens: Random::new(2),
            companions: Vec::new(),
            clients: 0,
            patience,
            transcript: Vec::new(),
            counts: Counts::default(),
            is_spent: false,
        };
        for companion in Companion::of(setup.protocol) {
            let conn = rig.accept();
            rig.companions.push(Companion { conn: Some(conn), ..companion });
        }
        rig.store()?;
        Ok(rig)
    }

    /// Lets the companions store what they request later.
    fn store(&mut self) -> Outcome {
        for at in 0..self.companions.len() {
            let conn = self.companions[at].conn();
            let store = self.companions[at].store.clone();
            self.receive(conn, &store)?;
            self.exchange_all()?;
            self.received.remove(&conn.token());
        }
        Ok(())
    }

    pub fn transcript(&self) -> String {
        self.transcript.join("\n")
    }

    fn found<T>(&self, misfit: Misfit, detail: impl Into<String>) -> Outcome<T> {
        Err(Stop::Found(Found { misfit, detail: detail.into() }))
    }

    /// Plays a case.
    pub fn play(&mut self, case: &Case) -> Outcome {
        self.transcript.clear();
        self.cuts = Random::new(case.cuts);
        self.now = self.now.plus_millis(1);
        self.counts.cases += 1;
        self.counts.requests += case.requests.len() as u64;
        let client = self.accept();
        if case.resp3 {
            self.receive(client, b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n")?;
            self.exchange_all()?;
        }
        let bytes = case.bytes();
        let first = match self.cuts.percent(25) {
            true => self.cuts.below(bytes.len() + 1),
            false => bytes.len(),
        };
        self.receive(client, &bytes[..first])?;
        if first < bytes.len() {
            if self.cuts.percent(50) {
                self.exchange_all()?;
            }
            self.receive(client, &bytes[first..])?;
        }
        let mut asked = Vec::new();
        if case.accompanied {
            for at in 0..self.companions.len() {
                let question = self.cuts.below(self.companions[at].questions.len());
                let conn = self.companions[at].conn();
                self.received.remove(&conn.token());
                let bytes = self.companions[at].questions[question].ask.clone();
                self.receive(conn, &bytes)?;
                asked.push((at, question));
            }
        }
        self.exchange_all()?;
        let mut has_missed = false;
        for (at, question) in asked {
            has_missed |= self.check_companion(at, question)?;
        }
        if !self.closed.contains(&client.token()) {
            self.engine.handle_closed(client, CloseReason::Eof, self.now);
        }
        self.tick();
        self.exchange_all()?;
        self.received.remove(&client.token());
        self.closed.clear();
        self.check_states()?;
        if has_missed {
            self.store()?;
        }
        Ok(())
    }

    /// Whether the companion had a miss, which is allowed.
    fn check_companion(&mut self, at: usize, question: usize) -> Outcome<bool> {
        let companion = &self.companions[at];
        let conn = companion.conn();
        let question = &companion.questions[question];
        let said = self.received.remove(&conn.token()).unwrap_or_default();
        let said = Companion::comparable(self.setup.protocol, said);
        if said == question.hit {
            return Ok(false);
        }
        if question.misses.contains(&said) {
            return Ok(true);
        }
        let is_waiting = self.wires.keys().any(|&token| {
            let state = self.engine.lane_state(ConnId::from_token(token));
            state.is_some_and(|state| state.kind == LaneKind::Multiplexed && state.in_flight > 0)
        });
        if said.is_empty() && !is_waiting && self.is_spent {
            return Ok(true);
        }
        let misfit = if said.is_empty() { Misfit::Unanswered } else { Misfit::Foreign };
        let detail = format!("{} was answered {}", excerpt(&question.ask), excerpt(&said));
        self.found(misfit, detail)
    }

    fn accept(&mut self) -> ConnId {
        self.clients += 1;
        self.engine.handle_accepted(ListenerId::new(0), Admission::Welcome, self.clients, self.now)
    }

    /// Gives the engine bytes of a client.
    fn receive(&mut self, conn: ConnId, bytes: &[u8]) -> Outcome {
        for piece in bytes.chunks(READ_SIZE) {
            if self.closed.contains(&conn.token()) {
                return Ok(());
            }
            self.engine.handle_received_buffer(conn, &mut piece.to_vec(), self.now);
            self.tick();
            if piece.len() == READ_SIZE {
                self.exchange_all()?;
            }
        }
        Ok(())
    }

    /// Runs the engine until only output to servers is left.
    fn tick(&mut self) {
        loop {
            self.engine.settle(self.now);
            let mut is_idle = !self.act();
            self.relay_observed();
            while let Some(conn) = self.engine.poll_dirty() {
                is_idle = false;
                if !conn.is_lane() {
                    let bytes = self.take_output(conn);
                    self.received.entry(conn.token()).or_default().extend(bytes);
                } else if !self.pending.contains(&conn) {
                    self.pending.push_back(conn);
                }
            }
            if is_idle && self.engine.poll_timeout() > self.now {
                return;
            }
            self.engine.handle_timeout(self.now);
        }
    }

    fn take_output(&mut self, conn: ConnId) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            let mut slices = [IoSlice::new(&[]); 8];
            let count = self.engine.output(conn, &mut slices);
            let len: usize = slices[..count].iter().map(|slice| slice.len()).sum();
            if len == 0 {
                return bytes;
            }
            slices[..count].iter().for_each(|slice| bytes.extend_from_slice(slice));
            self.engine.handle_sent(conn, len as u64, self.now);
        }
    }

    fn act(&mut self) -> bool {
        let mut has_acted = false;
        while self.engine.poll_departed().is_some() {}
        while let Some(action) = self.engine.poll_action() {
            has_acted = true;
            match action {
                Action::Connect { conn, .. } => match self.server.connect() {
                    Ok(stream) => {
                        let wire = Wire { stream, state: None, is_used: false };
                        self.wires.insert(conn.token(), wire);
                        self.engine.handle_connected(conn, self.now);
                    }
                    Err(_) => self.engine.handle_closed(conn, CloseReason::Refused, self.now),
                },
                Action::Close { conn } if conn.is_lane() => {
                    self.wires.remove(&conn.token());
                }
                Action::Close { conn } => {
                    self.closed.insert(conn.token());
                }
                Action::Monitors { pool, any: true } => {
                    if let Some(pool) = self.engine.listener_named(&pool) {
                        self.engine.handle_monitored(pool, self.now);
                    }
                }
                Action::Ask { ticket, listener: pool, by, request, .. } => {
                    let place = |conn: ConnId| Place {
                        peer: format!("127.0.0.1:{}", conn.token()),
                        local: "127.0.0.1:6000".to_owned(),
                        is_unix: false,
                        descriptor: 42,
                    };
                    let own = self.engine.handle_question(pool, by, &request, &place, self.now);
                    self.engine.handle_answer(ticket, &own, Rest::None, self.now);
                }
                _ => {}
            }
        }
        has_acted
    }

    fn relay_observed(&mut self) {
        let Some(observed) = self.engine.take_observed() else { return };
        for (hearing, head, tail) in observed.lines() {
            if hearing.here {
                let line = [head, b"127.0.0.1:1", tail].concat();
                self.engine.handle_observed(hearing.listener, &line, 0, self.now);
            }
        }
        self.engine.return_observed(observed);
    }

    /// Writes the engine's output to the server and returns the server's output to the engine,
    /// until nothing is left.
    fn exchange_all(&mut self) -> Outcome {
        for _ in 0..EXCHANGES_MAX {
            self.tick();
            let Some(conn) = self.pending.pop_front() else { return Ok(()) };
            self.exchange(conn)?;
        }
        self.found(Misfit::Unanswered, "the gateway asks servers again and again")
    }

    fn exchange(&mut self, conn: ConnId) -> Outcome {
        let Some(before) = self.engine.lane_state(conn) else { return Ok(()) };
        let is_new = self.wires.get(&conn.token()).is_some_and(|wire| !wire.is_used);
        if is_new && self.is_checked(before) {
            self.check_state(conn)?;
        }
        let bytes = self.take_output(conn);
        if bytes.is_empty() || !self.wires.contains_key(&conn.token()) {
            return Ok(());
        }
        let state = self.engine.lane_state(conn).unwrap_or(before);
        self.transcript.push(format!("  {:?} <- {}", state.kind, excerpt(&bytes)));
        self.counts.exchanges += 1;
        self.wire(conn).is_used = true;
        if !before.is_ready {
            // It may agree on other session parameters than before.
            self.relay(conn, &bytes, state, |state| !state.is_ready)?;
            if let Some(wire) = self.wires.get_mut(&conn.token()) {
                (wire.state, wire.is_used) = (None, false);
            }
            return Ok(());
        }
        if state.is_taken {
            return self.relay(conn, &bytes, state, |state| state.in_flight > 0);
        }
        // A binary client's verbosity uses a connection for text.
        let protocol = match (self.setup.protocol, bytes[0]) {
            (Protocol::Redis, _) => Protocol::Redis,
            (_, 0x80) => Protocol::Binary,
            _ => Protocol::Text,
        };
        let fence = Fence::new(protocol, &mut self.tokens);
        let sent = [&bytes[..], &fence.question].concat();
        let said = match self.converse(conn, &sent, &fence.answer)? {
            Received::Whole(said) => said,
            Received::TimedOut(said) => return self.silent(conn, state, &said),
            Received::Closed(said) => return self.ended(conn, state, &said),
        };
        let said = match state.kind {
            // There PING has another form of reply.
            LaneKind::Subscriber => {
                said.strip_suffix(b"*2\r\n$4\r\npong\r\n").map(<[u8]>::to_vec).unwrap_or(said)
            }
            _ => said,
        };
        self.transcript.push(format!("  {:?} -> {}", state.kind, excerpt(&said)));
        self.feed(conn, &said);
        let Some(after) = self.engine.lane_state(conn) else {
            // A request that an old server may not know uses an exclusive connection, which is not
            // reused.
            if state.kind == LaneKind::Streaming && said == b"CLIENT_ERROR invalid flag\r\n" {
                self.counts.own_closed += 1;
                return Ok(());
            }
            let detail = format!(
                "{} were in flight; the gateway closed the connection at {}",
                state.in_flight,
                excerpt(&said)
            );
            return self.found(Misfit::TooMuch, detail);
        };
        if after.in_flight > 0 {
            let detail = format!(
                "{} were in flight, {} still are after {}",
                state.in_flight,
                after.in_flight,
                excerpt(&said)
            );
            return self.found(Misfit::TooLittle, detail);
        }
        Ok(())
    }

    fn wire(&mut self, conn: ConnId) -> &mut Wire {
        self.wires.get_mut(&conn.token()).expect("it is connected")
    }

    /// Gives the engine a server's output, cut at random.
    fn feed(&mut self, conn: ConnId, said: &[u8]) {
        let pieces: Vec<usize> = match self.cuts.below(4) {
            0 if said.len() > 1 => vec![said.len() - 1, 1],
            1 if said.len() <= 2000 => vec![1; said.len()],
            2 if said.len() > 2 => {
                let (a, b) = (self.cuts.below(said.len()), self.cuts.below(said.len()));
                vec![a.min(b), a.max(b) - a.min(b), said.len() - a.max(b)]
            }
            _ => vec![said.len()],
        };
        let mut at = 0;
        for len in pieces {
            for piece in said[at..at + len].chunks(READ_SIZE) {
                if !self.wires.contains_key(&conn.token()) {
                    return;
                }
                self.engine.handle_received_buffer(conn, &mut piece.to_vec(), self.now);
                self.tick();
            }
            at += len;
        }
    }

    /// Writes to a connection of one client, or one being made, and passes on the input as long as
    /// something is expected. A fence would be part of a transaction there.
    fn relay(
        &mut self,
        conn: ConnId,
        bytes: &[u8],
        state: LaneState,
        is_awaited: impl Fn(LaneState) -> bool,
    ) -> Outcome {
        if let Err(error) = self.write(conn, bytes) {
            return self.write_failed(conn, state, error);
        }
        let until = Instant::now() + if state.is_ready { BLOCKED_MAX } else { self.patience };
        while self.engine.lane_state(conn).is_some_and(&is_awaited) {
            let Some(left) =
                until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            else {
                if !state.is_ready {
                    return self.found(Misfit::Waits, "a handshake is not answered");
                }
                self.counts.blocked += 1;
                self.is_spent = true;
                return Ok(());
            };
            let mut piece = vec![0; READ_SIZE];
            let stream = &mut self.wire(conn).stream;
            stream.set_read_timeout(Some(left))?;
            match stream.read(&mut piece) {
                Ok(0) => return self.ended(conn, state, b""),
                Ok(len) => {
                    piece.truncate(len);
                    self.transcript.push(format!("  {:?} -> {}", state.kind, excerpt(&piece)));
                    self.feed(conn, &piece);
                }
                Err(error) if is_timeout(&error) => {}
                Err(_) => return self.ended(conn, state, b""),
            }
        }
        Ok(())
    }

    fn write(&mut self, conn: ConnId, bytes: &[u8]) -> io::Result<()> {
        let patience = self.patience;
        let stream = &mut self.wire(conn).stream;
        stream.set_write_timeout(Some(patience))?;
        stream.write_all(bytes)
    }

    fn write_failed(&mut self, conn: ConnId, state: LaneState, error: io::Error) -> Outcome {
        match is_timeout(&error) {
            true => self.silent(conn, state, b""),
            false => self.ended(conn, state, b""),
        }
    }

    /// Writes, and reads until the input ends with that reply, which is removed.
    fn converse(&mut self, conn: ConnId, bytes: &[u8], answer: &[u8]) -> Outcome<Received> {
        match self.write(conn, bytes) {
            Ok(()) => {}
            Err(error) if is_timeout(&error) => return Ok(Received::TimedOut(Vec::new())),
            // The server's output before the close may still be there.
            Err(_) => {}
        }
        let until = Instant::now() + self.patience;
        let patience = self.patience;
        let stream = &mut self.wire(conn).stream;
        stream.set_read_timeout(Some(patience))?;
        let mut said = Vec::new();
        let mut piece = [0; READ_SIZE];
        while !said.ends_with(answer) {
            match stream.read(&mut piece) {
                Ok(0) => return Ok(Received::Closed(said)),
                Ok(len) => said.extend_from_slice(&piece[..len]),
                Err(error) if is_timeout(&error) => return Ok(Received::TimedOut(said)),
                Err(_) => return Ok(Received::Closed(said)),
            }
            if Instant::now() > until + patience {
                return Ok(Received::TimedOut(said));
            }
        }
        said.truncate(said.len() - answer.len());
        Ok(Received::Whole(said))
    }

    /// The fence has no reply in time.
    fn silent(&mut self, conn: ConnId, state: LaneState, said: &[u8]) -> Outcome {
        self.is_spent = true;
        if state.kind == LaneKind::Exclusive {
            // It blocks, perhaps for ever, as its client requested.
            self.counts.blocked += 1;
            self.feed(conn, said);
            return Ok(());
        }
        self.transcript.push(format!("  {:?} -> {} (and nothing more)", state.kind, excerpt(said)));
        self.found(Misfit::Waits, format!("after {}", excerpt(said)))
    }

    /// The server closed the connection.
    fn ended(&mut self, conn: ConnId, state: LaneState, said: &[u8]) -> Outcome {
        self.transcript.push(format!("  {:?} -> {} (and closed)", state.kind, excerpt(said)));
        if !self.server.is_running() {
            return self.found(Misfit::Dies, format!("after {}", excerpt(said)));
        }
        if state.kind == LaneKind::Multiplexed {
            return self.found(Misfit::Closes, format!("after {}", excerpt(said)));
        }
        self.counts.own_closed += 1;
        self.feed(conn, said);
        if self.wires.remove(&conn.token()).is_some() {
            self.engine.handle_closed(conn, CloseReason::Eof, self.now);
            self.tick();
        }
        Ok(())
    }

    fn is_checked(&self, state: LaneState) -> bool {
        let is_idle = state.in_flight == 0 && !state.is_taken && state.is_ready;
        self.setup.protocol == Protocol::Redis && is_idle && state.kind != LaneKind::Subscriber
    }

    /// The state of connections that others use next is unchanged.
    fn check_states(&mut self) -> Outcome {
        let is_due = self.counts.cases.is_multiple_of(STATE_EVERY);
        let tokens: Vec<u64> = self.wires.keys().copied().collect();
        for token in tokens {
            let conn = ConnId::from_token(token);
            let Some(state) = self.engine.lane_state(conn) else { continue };
            let is_due = is_due || state.kind == LaneKind::Exclusive;
            if self.is_checked(state) && is_due && state.unsent == 0 && self.wires[&token].is_used {
                self.check_state(conn)?;
                self.wire(conn).is_used = false;
            }
        }
        Ok(())
    }

    /// CLIENT INFO shows the same for the connection as at first, and no other output comes.
    fn check_state(&mut self, conn: ConnId) -> Outcome {
        let Some(state) = self.engine.lane_state(conn) else { return Ok(()) };
        let fence = Fence::new(self.setup.protocol, &mut self.tokens);
        let sent = [b"*2\r\n$6\r\nCLIENT\r\n$4\r\nINFO\r\n", &fence.question[..]].concat();
        let said = match self.converse(conn, &sent, &fence.answer)? {
            Received::Whole(said) => said,
            Received::TimedOut(said) => {
                self.is_spent = true;
                return self.found(
                    Misfit::State,
                    format!("{:?}: {} and no more", state.kind, excerpt(&said)),
                );
            }
            Received::Closed(said) => return self.ended(conn, state, &said),
        };
        let text = String::from_utf8_lossy(&said);
        let told = facts(&text);
        let is_alone = text.starts_with(['$', '=']) && text.matches("\r\n").count() == 2;
        let wire = self.wire(conn);
        let is_right = match &wire.state {
            Some(before) => *before == told,
            None => true,
        };
        if is_alone && is_right {
            wire.state = Some(told);
            return Ok(());
        }
        let before = wire.state.clone().unwrap_or_default();
        let detail = format!("{:?}: {before} became {told}; said {}", state.kind, excerpt(&said));
        self.found(Misfit::State, detail)
    }
}

enum Received {
    Whole(Vec<u8>),
    TimedOut(Vec<u8>),
    Closed(Vec<u8>),
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// The parts of CLIENT INFO that matter to a connection's users.
fn facts(text: &str) -> String {
    // The flags show whether a transaction is open; `multi` is 0 after one with Valkey.
    const KEPT: [&str; 12] = [
        "name", "flags", "db", "sub", "psub", "ssub", "watch", "user", "redir", "resp", "lib-name",
        "lib-ver",
    ];
    let fields = text.split_whitespace().filter_map(|field| field.split_once('='));
    let kept = fields.filter(|(name, _)| KEPT.contains(name));
    kept.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}
