//! Whatever clients and servers send and however they come and go, the engine does not panic, answers
//! everybody or closes, and has no request left when all have gone.

use std::collections::HashSet;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::LazyLock;

use cashew_config::{Context, Snapshot};
use cashew_differential::sole_engine::engine_of;
use cashew_engine::{
    Action, Admission, BackendId, CloseReason, ConnId, Engine, ListenerId, Place, Plan, PoolState,
    Rest, Time,
};
use cashew_metrics::Writer;

const CONFIG: &str = "
a:
  listen: 127.0.0.1:1
  command_policy: admin
  redis: true
  distribution: modula
  timeout: 100
  auto_eject_hosts: true
  server_retry_timeout: 200
  server_failure_limit: 2
  server_connections: 2
  client_requests_max: 3
  client_output_pause: 1kb
  client_output_max: 1mb
  request_size_max: 512kb
  server_queue_max: 6
  server_queue_size_max: 512kb
  servers:
   - 127.0.0.1:11:1 s0
   - 127.0.0.1:12:1 s1
b:
  listen: 127.0.0.1:2
  command_policy: admin
  distribution: modula
  timeout: 100
  auto_eject_hosts: true
  server_retry_timeout: 200
  client_requests_max: 3
  client_output_pause: 1kb
  client_output_max: 1mb
  request_size_max: 512kb
  server_queue_max: 6
  server_queue_size_max: 512kb
  servers:
   - 127.0.0.1:13:1 s0
   - 127.0.0.1:14:1 s1
c:
  listen: 127.0.0.1:3
  command_policy: admin
  redis: true
  redis_auth: secret
  redis_db: 1
  preconnect: true
  servers:
   - 127.0.0.1:15:1 s0
";

/// What the configuration may become: a pool has another server in place of one, with other limits,
/// the next is gone, another is as it was but stands elsewhere, and one has come.
const OTHER_CONFIG: &str = "
a:
  listen: 127.0.0.1:1
  command_policy: admin
  redis: true
  distribution: modula
  timeout: 50
  client_requests_max: 2
  client_output_pause: 1kb
  client_output_max: 1mb
  server_queue_max: 4
  servers:
   - 127.0.0.1:11:1 s0
   - 127.0.0.1:16:1 s2
c:
  listen: 127.0.0.1:3
  command_policy: admin
  redis: true
  redis_auth: secret
  redis_db: 1
  preconnect: true
  servers:
   - 127.0.0.1:15:1 s0
d:
  listen: 127.0.0.1:4
  command_policy: admin
  timeout: 100
  servers:
   - 127.0.0.1:13:1 s0
   - 127.0.0.1:14:1 s1
";

static SNAPSHOTS: LazyLock<[Snapshot; 2]> = LazyLock::new(|| {
    let resolve = |_: &str, port| Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    let context = Context {
        processors: 1,
        memory: None,
        resolve: &resolve,
        is_directory: &|_| true,
        ..Context::of_system()
    };
    [CONFIG, OTHER_CONFIG]
        .map(|config| cashew_config::parse("f", config, &context).expect("a good file").snapshot)
});

/// What clients say often, to get far with few bytes of script.
const REQUESTS: [&[u8]; 24] = [
    b"get a\r\n",
    b"get b\r\n",
    b"mget a b c d a\r\n",
    b"mset a 1 b 2 c 3\r\n",
    b"del a b c\r\n",
    b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n",
    b"*2\r\n$3\r\nGET\r\n$1\r\n",
    b"a\r\n",
    b"ping\r\n",
    b"quit\r\n",
    b"auth secret\r\n",
    b"hello 2\r\n",
    b"command\r\n",
    b"sunion a b c\r\n",
    b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$300000\r\n",
    b"set a 0 0 1\r\nx\r\n",
    b"set b 0 0 1 noreply\r\nx\r\n",
    b"set b 0 0 300000\r\n",
    b"set b 0 0 600000\r\n",
    b"get a b c d a\r\n",
    b"flush_all\r\n",
    b"flush_all noreply\r\n",
    b"version\r\n",
    b"*1\r\n$x\r\n",
];

/// The same for servers.
const REPLIES: [&[u8]; 18] = [
    b"+OK\r\n",
    b"$1\r\nx\r\n",
    b"$-1\r\n",
    b":1\r\n",
    b"-ERR no\r\n",
    b"*2\r\n$1\r\na\r\n$1\r\nb\r\n",
    b"*3\r\n$1\r\na\r\n$1\r\nb\r\n:1\r\n",
    b"$30000\r\n",
    b"$300000\r\n",
    b"END\r\n",
    b"VALUE a 0 1\r\nx\r\nEND\r\n",
    b"VALUE b 0 1\r\nx\r\nEND\r\n",
    b"VALUE a 0 30000\r\n",
    b"VALUE a 0 300000\r\n",
    b"STORED\r\n",
    b"OK\r\n",
    b"VERSION 1\r\n",
    b"SERVER_ERROR no\r\n",
];

/// The end of a value, of which [`LARGE_SIZES`] take more or less. Both what is referenced instead
/// of copied and what has a lane of its own is among them.
static LARGE: LazyLock<Vec<u8>> = LazyLock::new(|| [&[b'x'; 300_000][..], b"\r\n"].concat());

const LARGE_SIZES: [usize; 8] = [300_002, 270_000, 30_002, 30_002, 20_000, 10_002, 1_000, 2];

const REASONS: [CloseReason; 12] = [
    CloseReason::Eof,
    CloseReason::Refused,
    CloseReason::Reset,
    CloseReason::TimedOut,
    CloseReason::Unreachable,
    CloseReason::Unresolved,
    CloseReason::Exhausted,
    CloseReason::NoMemory,
    CloseReason::NoPort,
    CloseReason::Forbidden,
    CloseReason::NoSocket,
    CloseReason::NoLookUp,
];

struct World {
    engine: Engine,
    now: Time,
    clients: Vec<ConnId>,
    connecting: Vec<ConnId>,
    lanes: Vec<ConnId>,
    /// Closed by the engine or by a peer: whatever still comes for them is late.
    gone: Vec<ConnId>,
    paused: HashSet<ConnId>,
    read_closed: HashSet<ConnId>,
    /// Peers that do not read.
    stuck: HashSet<ConnId>,
    /// The master's part: each pool's ring, and what was asked to change in it.
    rings: Vec<Ring>,
    epoch: u64,
    change: Change,
    /// What it is to: the snapshot, and its rings.
    next: (usize, Vec<PoolState>),
    /// All are to go, so nobody can come back.
    is_retiring: bool,
    /// At rest, to go elsewhere.
    leaving: Vec<ConnId>,
}

/// How far a change of the epoch has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    Preparing,
    Prepared,
    Pausing,
    Paused,
}

#[derive(Clone)]
struct Ring {
    version: u64,
    held: bool,
    live: Vec<bool>,
}

/// The bytes that decide what happens.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    /// One of the ready texts, a large one, or so many bytes of the script itself.
    fn text(&mut self, ready: &'a [&'static [u8]]) -> Option<&'a [u8]> {
        let choice = usize::from(self.byte()?);
        Some(match choice {
            choice if choice < ready.len() => ready[choice],
            choice if choice < 32 => &LARGE[LARGE.len() - LARGE_SIZES[choice % 8]..],
            choice => {
                let (text, rest) = self.0.split_at((choice - 31).min(self.0.len()));
                self.0 = rest;
                text
            }
        })
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> Option<T> {
        let choice = usize::from(self.byte()?);
        (!list.is_empty()).then(|| list[choice % list.len()])
    }
}

pub fn play(data: &[u8]) {
    let mut world = World::new();
    let mut script = Script(data);
    while let Some(op) = script.byte() {
        world.step(op, &mut script);
    }
    world.end();
}

impl World {
    fn new() -> Self {
        let now = Time::from_micros(1);
        let engine = engine_of(&SNAPSHOTS[0], now);
        let mut world = Self {
            engine,
            now,
            clients: Vec::new(),
            connecting: Vec::new(),
            lanes: Vec::new(),
            gone: Vec::new(),
            paused: HashSet::new(),
            read_closed: HashSet::new(),
            stuck: HashSet::new(),
            rings: rings_of(&SNAPSHOTS[0]),
            epoch: SNAPSHOTS[0].epoch,
            change: Change::None,
            next: (0, Vec::new()),
            is_retiring: false,
            leaving: Vec::new(),
        };
        world.tick();
        world
    }

    /// One event. `None` when the script ends in the middle of it, or it concerns nobody.
    fn step(&mut self, op: u8, script: &mut Script<'_>) -> Option<()> {
        let now = self.now;
        // Most events end a tick, as with few clients they do.
        let ends_tick = op & 0x80 == 0;
        match op % 16 {
            0 => {
                let choice = script.byte()?;
                let admission = if choice < 240 { Admission::Welcome } else { Admission::Full };
                let pool = u32::from(choice) % 3;
                let conn = self.engine.handle_accepted(ListenerId::new(pool), admission, 1, now);
                self.clients.push(conn);
            }
            1..=3 => {
                let conn = script.pick(&self.clients)?;
                let text = script.text(&REQUESTS)?;
                // Within a tick the driver may still read what it is about to be told not to.
                if !text.is_empty() && !self.paused.contains(&conn) && !self.is_read_closed(conn) {
                    self.engine.handle_received(conn, text, now);
                }
            }
            4 | 5 => {
                let conn = script.pick(&self.lanes)?;
                let text = script.text(&REPLIES)?;
                if !text.is_empty() {
                    self.engine.handle_received(conn, text, now);
                }
            }
            6 => {
                let conn = script.pick(&self.connecting)?;
                self.connecting.retain(|&other| other != conn);
                self.lanes.push(conn);
                self.engine.handle_connected(conn, now);
            }
            7 => {
                let conn = script.pick(&self.connecting)?;
                let reason = script.pick(&REASONS)?;
                self.forget(conn);
                self.engine.handle_closed(conn, reason, now);
            }
            8 => {
                let conn = script.pick(&self.lanes)?;
                match script.pick(&REASONS)? {
                    CloseReason::Refused => self.engine.handle_read_closed(conn, now),
                    reason => {
                        self.forget(conn);
                        self.engine.handle_closed(conn, reason, now);
                    }
                }
            }
            9 => {
                let conn = script.pick(&self.clients)?;
                match script.pick(&REASONS)? {
                    CloseReason::Refused | CloseReason::Unresolved => {
                        if self.read_closed.insert(conn) {
                            self.engine.handle_read_closed(conn, now);
                        }
                    }
                    reason => {
                        self.forget(conn);
                        self.engine.handle_closed(conn, reason, now);
                    }
                }
            }
            10 => {
                let both = [self.clients.as_slice(), &self.lanes].concat();
                let conn = script.pick(&both)?;
                self.stuck.insert(conn);
                let bytes = usize::from(script.byte()?);
                self.write(conn, bytes);
            }
            11 => {
                let stuck: Vec<ConnId> = self.stuck.drain().collect();
                for conn in stuck {
                    self.write(conn, usize::MAX);
                }
            }
            12 => self.wait_ms(u64::from(script.byte()?)),
            13 => {
                let choice = script.byte()?;
                let pool = usize::from(choice) % self.rings.len();
                let ring = &mut self.rings[pool];
                if ring.held {
                    // Released with the same ring or with one server changed.
                    if choice & 0x80 != 0 {
                        let server = usize::from(choice >> 4) % ring.live.len();
                        ring.live[server] = !ring.live[server];
                    }
                    self.release(pool);
                } else if self.change == Change::None {
                    ring.held = true;
                    ring.version += 1;
                    let version = ring.version;
                    self.engine.handle_hold(BackendId::new(pool as u32), version, 100, now);
                }
            }
            14 => {
                let conn = script.pick(&self.gone)?;
                self.engine.handle_connected(conn, now);
                self.engine.handle_received(conn, b"+OK\r\n", now);
                self.engine.handle_sent(conn, 0, now);
                self.engine.handle_read_closed(conn, now);
                self.engine.handle_closed(conn, CloseReason::Reset, now);
            }
            _ => match script.byte()? {
                251.. => self.engine.handle_drain(now),
                120.. => self.change_epoch(script.byte()?),
                100.. => {
                    self.engine.leave_all(now);
                    self.is_retiring = true;
                }
                80.. => {
                    self.engine.stay_all(now);
                    self.is_retiring = false;
                }
                50.. => self.engine.handle_leave(script.pick(&self.clients)?, now),
                30.. => self.engine.handle_stay(script.pick(&self.clients)?),
                permille => {
                    self.engine.leave_share(u32::from(permille) * 40, now);
                }
            },
        }
        if ends_tick {
            self.tick();
        }
        Some(())
    }

    /// The next step of a change, or the end of it.
    fn change_epoch(&mut self, choice: u8) {
        let is_held = self.rings.iter().any(|ring| ring.held);
        match self.change {
            Change::None if !is_held => {
                self.epoch += 1;
                let mut next = SNAPSHOTS[usize::from(choice) % 2].clone();
                next.epoch = self.epoch;
                let state = |pool: &cashew_config::snapshot::Pool| PoolState {
                    topology: pool
                        .servers
                        .iter()
                        .map(|_| choice & 4 == 0)
                        .collect::<Vec<bool>>()
                        .into(),
                    ..PoolState::whole(pool)
                };
                let states: Vec<PoolState> = next.pools.iter().map(state).collect();
                self.engine.handle_prepare(Plan::new(&next, &states, 0, 1), self.now);
                self.change = Change::Preparing;
                self.next = (usize::from(choice) % 2, states);
            }
            Change::None => {}
            _ if choice < 40 => self.abort(),
            Change::Prepared => {
                self.engine.handle_pause(100, self.now);
                self.change = Change::Pausing;
            }
            Change::Paused => {
                let (snapshot, states) = self.next.clone();
                let metrics = Writer::in_memory(&SNAPSHOTS[snapshot]);
                self.engine.handle_commit(metrics, self.now);
                self.rings = rings_of(&SNAPSHOTS[snapshot]);
                for (ring, state) in self.rings.iter_mut().zip(states) {
                    ring.live = state.topology.live;
                }
                self.change = Change::None;
            }
            Change::Preparing | Change::Pausing => {}
        }
    }

    fn abort(&mut self) {
        self.engine.handle_abort(self.now);
        self.change = Change::None;
    }

    /// Clients that leave come back at once, as to another worker.
    fn move_clients(&mut self) {
        for conn in std::mem::take(&mut self.leaving) {
            let Some(export) = self.engine.export(conn, self.now) else { continue };
            let is_stuck = self.stuck.contains(&conn);
            self.forget(conn);
            let cashew_engine::Export { listener, parts, input, output } = export;
            if listener.index() < self.rings.len() && !self.is_retiring {
                let conn = self.engine.handle_adopted(listener, parts, input, output, self.now);
                self.clients.push(conn);
                if is_stuck {
                    self.stuck.insert(conn);
                }
            }
        }
    }

    fn is_read_closed(&self, conn: ConnId) -> bool {
        self.read_closed.contains(&conn)
    }

    fn release(&mut self, pool: usize) {
        let ring = &mut self.rings[pool];
        ring.held = false;
        let Ring { version, live, .. } = ring.clone();
        self.engine.handle_release(BackendId::new(pool as u32), version, live.into(), self.now, 1);
    }

    /// What a worker does at the end of a tick.
    fn tick(&mut self) {
        if self.engine.poll_timeout() <= self.now {
            self.engine.handle_timeout(self.now);
        }
        self.engine.settle(self.now);
        if let Some(observed) = self.engine.take_observed() {
            self.engine.return_observed(observed);
        }
        self.act();
        while let Some(conn) = self.engine.poll_dirty() {
            if !self.stuck.contains(&conn) {
                self.write(conn, usize::MAX);
            }
        }
        self.act();
        self.move_clients();
    }

    fn act(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Connect { conn, .. } => self.connecting.push(conn),
                Action::Close { conn } => self.forget(conn),
                Action::PauseRead { conn } => {
                    self.paused.insert(conn);
                }
                Action::ResumeRead { conn } => {
                    self.paused.remove(&conn);
                }
                Action::Prepared { epoch } => {
                    assert!(self.change == Change::Preparing && epoch == self.epoch);
                    self.change = Change::Prepared;
                }
                Action::Paused { epoch, .. } => {
                    assert!(self.change == Change::Pausing && epoch == self.epoch);
                    self.change = Change::Paused;
                }
                Action::HandOff { conn } => self.leaving.push(conn),
                Action::Ask { ticket, listener: pool, by, request, .. } => {
                    let place = |_| Place::UNKNOWN;
                    let own = self.engine.handle_question(pool, by, &request, &place, self.now);
                    self.engine.handle_answer(ticket, &own, Rest::None, self.now);
                }
                Action::Monitors { pool, .. } => {
                    if let Some(pool) = self.engine.listener_named(&pool) {
                        self.engine.handle_monitored(pool, self.now);
                    }
                }
                // A driver may tell of less all the same.
                Action::SetLowWater { .. }
                | Action::Reset { .. }
                | Action::EndWriting { .. }
                | Action::Notice { .. }
                | Action::Held { .. }
                | Action::Eject { .. }
                | Action::Readmit { .. }
                | Action::NotPrimary { .. }
                | Action::MapDoubted { .. }
                | Action::Authenticate { .. }
                | Action::Pressed { .. }
                | Action::HeldBack { .. }
                | Action::Shed { .. }
                | Action::LargeWaits { .. }
                | Action::SessionsWait { .. }
                | Action::SlowClient { .. }
                | Action::ServerMisfit { .. }
                | Action::ServerState { .. }
                | Action::ServerHindered { .. }
                | Action::CredentialsRefused { .. }
                | Action::KeepingRefused { .. }
                | Action::CopyRefused { .. }
                | Action::ServerRecovered { .. } => {}
            }
        }
    }

    fn forget(&mut self, conn: ConnId) {
        for list in [&mut self.clients, &mut self.connecting, &mut self.lanes] {
            list.retain(|&other| other != conn);
        }
        for set in [&mut self.paused, &mut self.read_closed, &mut self.stuck] {
            set.remove(&conn);
        }
        self.gone.push(conn);
    }

    /// The kernel takes at most so many bytes.
    fn write(&mut self, conn: ConnId, mut room: usize) {
        while room > 0 {
            let mut slices = [IoSlice::new(&[]); 4];
            let count = self.engine.output(conn, &mut slices);
            let size: usize = slices[..count].iter().map(|slice| slice.len()).sum();
            if size == 0 {
                return;
            }
            let taken = size.min(room);
            self.engine.handle_sent(conn, taken as u64, self.now);
            room -= taken;
        }
    }

    fn wait_ms(&mut self, millis: u64) {
        let end = self.now.plus_millis(millis);
        while self.engine.poll_timeout() <= end {
            self.now = self.engine.poll_timeout().max(self.now);
            self.tick();
        }
        self.now = end;
    }

    /// Everybody reads again, no server can be reached any more, and then all clients go.
    fn end(mut self) {
        if self.change != Change::None {
            self.abort();
        }
        self.engine.stay_all(self.now);
        for pool in 0..self.rings.len() {
            if self.rings[pool].held {
                self.release(pool);
            }
        }
        self.tick();
        for round in 0.. {
            let stuck: Vec<ConnId> = self.stuck.drain().collect();
            for conn in stuck {
                self.write(conn, usize::MAX);
            }
            let servers = [self.connecting.as_slice(), &self.lanes].concat();
            for conn in servers {
                self.forget(conn);
                self.engine.handle_closed(conn, CloseReason::Refused, self.now);
            }
            self.tick();
            let is_settled = self.connecting.is_empty() && self.lanes.is_empty();
            if is_settled && self.engine.poll_timeout() > self.now {
                break;
            }
            assert!(round < 10_000, "it never comes to rest");
        }
        assert_eq!(self.engine.requests_pending(), 0, "every request has been answered");
        let waiting: Vec<_> =
            self.paused.iter().filter(|conn| self.clients.contains(conn)).collect();
        assert!(waiting.is_empty(), "{waiting:?} are never read again");
        for conn in std::mem::take(&mut self.clients) {
            self.engine.handle_closed(conn, CloseReason::Eof, self.now);
        }
        self.tick();
        assert_eq!(self.engine.requests_pending(), 0);
        assert!(
            (0..self.rings.len())
                .all(|pool| self.engine.clients_of(ListenerId::new(pool as u32)) == 0)
        );
    }
}

fn rings_of(snapshot: &Snapshot) -> Vec<Ring> {
    let ring = |pool: &cashew_config::snapshot::Pool| Ring {
        version: 0,
        held: false,
        live: vec![true; pool.servers.len()],
    };
    snapshot.pools.iter().map(ring).collect()
}
