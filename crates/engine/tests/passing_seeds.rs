//! Pools with `protocol: tcp` at random: bytes arrive once and in order, ends behind them, little waits, and nothing is
//! left in the end. In every third world memory is so short that some are not read, or closed.

use std::collections::HashMap;

use cashew_config::Snapshot;
use cashew_engine::{Action, CloseReason, ConnId};
use cashew_metrics::Writer;

use crate::passing::{World, snapshot};
use crate::world::gets::random_of;

const SEEDS: u64 = 200;
const STEPS: usize = 500;
const READ_MAX: usize = 60_000;
/// What may wait for one side, and a read on top.
const WAITING_MAX: usize = 128 * 1024 + READ_MAX;

/// About what one or two sessions may hold.
const MEMORY_SHORT: u64 = 512 << 10;

const OPTIONS: [&str; 5] = [
    ", balance: least_connections",
    ", server_connections_max: 2, connection_wait: 1s",
    ", server_check_interval: 500, server_rise: 2, server_failure_limit: 1",
    ", balance: random, idle_timeout: 5s, server_retry_timeout: 1000",
    ", balance: source, backup: [s1], server_connect_timeout: 400",
];

/// A connection as the driver and the peer know it.
#[derive(Clone, Copy, Default)]
struct Socket {
    is_connected: bool,
    is_paused: bool,
    has_ended: bool,
    is_told_end: bool,
    partner: Option<ConnId>,
    /// Bytes that the peer has sent, and that it got.
    sent: usize,
    got: usize,
}

struct Net {
    world: World,
    memory_max: Option<u64>,
    sockets: HashMap<ConnId, Socket>,
    accepted: usize,
    departed: usize,
    /// Closed for want of memory.
    shed: u32,
}

fn with_memory(options: &str, servers: u32, memory_max: Option<u64>) -> Snapshot {
    let mut snapshot = snapshot(options, servers);
    snapshot.global.worker_memory_max = memory_max;
    snapshot
}

/// What a peer sends at that place.
fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

impl Net {
    fn new(options: &str, servers: u32, memory_max: Option<u64>) -> Self {
        let world = World::of(&with_memory(options, servers, memory_max));
        Self { world, memory_max, sockets: HashMap::new(), accepted: 0, departed: 0, shed: 0 }
    }

    /// Those that something can happen to, in an order that does not change.
    fn conns(&self, which: impl Fn(ConnId, &Socket) -> bool) -> Vec<ConnId> {
        let chosen = self.sockets.iter().filter(|(conn, socket)| which(**conn, socket));
        let mut conns: Vec<ConnId> = chosen.map(|(conn, _)| *conn).collect();
        conns.sort_by_key(|conn| conn.token());
        conns
    }

    fn socket(&mut self, conn: ConnId) -> &mut Socket {
        self.sockets.get_mut(&conn).unwrap_or_else(|| panic!("the driver has no {conn:?}"))
    }

    fn settle(&mut self) {
        let actions = self.world.settle();
        self.perform(actions);
    }

    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Connect { conn, .. } => self.connect(conn),
                Action::Close { conn } | Action::Reset { conn } => {
                    self.sockets.remove(&conn).unwrap_or_else(|| panic!("no {conn:?} to close"));
                }
                Action::PauseRead { conn } => self.socket(conn).is_paused = true,
                Action::ResumeRead { conn } => self.socket(conn).is_paused = false,
                Action::EndWriting { conn } => self.end_writing(conn),
                Action::Shed { clients, .. } => self.shed += clients,
                Action::HandOff { .. } => panic!("nobody is to leave"),
                _ => {}
            }
        }
        self.departed += std::iter::from_fn(|| self.world.engine.poll_departed()).count();
    }

    fn connect(&mut self, conn: ConnId) {
        let partner = self.world.engine.partner(conn);
        self.sockets.insert(conn, Socket { partner, ..Socket::default() });
        if let Some(client) = partner {
            self.socket(client).partner = Some(conn);
        }
    }

    fn end_writing(&mut self, conn: ConnId) {
        let socket = *self.socket(conn);
        assert!(!socket.is_told_end, "{conn:?} was told of the end");
        let partner = socket.partner.and_then(|partner| self.sockets.get(&partner));
        if let Some(partner) = partner {
            assert!(partner.has_ended, "nobody has ended its side to {conn:?}");
            assert_eq!(partner.sent, socket.got, "{conn:?} has not got everything");
        }
        self.socket(conn).is_told_end = true;
    }

    fn accept(&mut self) {
        let conn = self.world.accept();
        self.accepted += 1;
        self.sockets.insert(conn, Socket { is_connected: true, ..Socket::default() });
    }

    fn receive(&mut self, conn: ConnId, len: usize) {
        let socket = self.socket(conn);
        let bytes: Vec<u8> = (socket.sent..socket.sent + len).map(byte).collect();
        socket.sent += len;
        self.world.receive(conn, &bytes);
    }

    /// The kernel takes some of what waits for a connection.
    fn take(&mut self, conn: ConnId, most: usize) {
        let got = self.socket(conn).got;
        let piece = self.world.engine.front(conn).0;
        let piece = &piece[..piece.len().min(most)];
        let expected = piece.iter().zip(got..).all(|(it, at)| *it == byte(at));
        assert!(expected, "{conn:?} gets other bytes behind {got}");
        let len = piece.len();
        if len > 0 {
            self.world.engine.handle_sent(conn, len as u64, self.world.now);
            self.socket(conn).got += len;
        }
    }

    fn connected(&mut self, conn: ConnId, is_reached: bool) {
        match is_reached {
            true => {
                self.socket(conn).is_connected = true;
                self.world.engine.handle_connected(conn, self.world.now);
            }
            false => self.break_off(conn, CloseReason::Refused),
        }
    }

    fn end(&mut self, conn: ConnId) {
        self.socket(conn).has_ended = true;
        self.world.engine.handle_read_closed(conn, self.world.now);
    }

    fn break_off(&mut self, conn: ConnId, why: CloseReason) {
        self.sockets.remove(&conn);
        self.world.engine.handle_closed(conn, why, self.world.now);
    }

    fn reload(&mut self, options: &str, servers: u32) {
        let next = with_memory(options, servers, self.memory_max);
        let actions = self.world.commit(&next, &Writer::in_memory(&next));
        self.perform(actions);
    }

    /// All leave, and come back. Some end while they are on their way.
    fn hand_over(&mut self, mut below: impl FnMut(usize) -> usize) {
        self.world.engine.leave_all(self.world.now);
        let (leaving, others): (Vec<Action>, Vec<Action>) = self
            .world
            .settle()
            .into_iter()
            .partition(|action| matches!(action, Action::HandOff { .. }));
        self.world.engine.stay_all(self.world.now);
        self.perform(others);
        for action in leaving {
            let Action::HandOff { conn: client } = action else { unreachable!() };
            let server = self.world.engine.partner(client).unwrap();
            if below(4) == 0 {
                let conn = if below(2) == 0 { client } else { server };
                self.break_off(conn, CloseReason::Reset);
                self.settle();
                continue;
            }
            let (listener, parts) = self.world.engine.export_pair(client, self.world.now).unwrap();
            let sockets = [client, server].map(|conn| self.sockets.remove(&conn).unwrap());
            let (client, server) =
                self.world.engine.handle_adopted_pair(listener, parts, self.world.now);
            for (conn, partner, socket) in
                [(client, server, sockets[0]), (server, client, sockets[1])]
            {
                let socket = Socket { partner: Some(partner), is_paused: false, ..socket };
                self.sockets.insert(conn, socket);
            }
            for (conn, socket) in [client, server].into_iter().zip(sockets) {
                // Unless it is over by that.
                if socket.has_ended && self.sockets.contains_key(&conn) {
                    self.end(conn);
                    self.settle();
                }
            }
        }
        self.settle();
    }

    fn check(&self) {
        for (conn, socket) in &self.sockets {
            let partner = socket.partner.and_then(|partner| self.sockets.get(&partner));
            let waiting = partner.map_or(0, |partner| partner.sent - socket.got);
            assert!(waiting <= WAITING_MAX, "{waiting} bytes wait for {conn:?}");
        }
        if let Some(max) = self.memory_max {
            let held = self.world.engine.held_bytes();
            assert!(held <= max as usize + 4 * READ_MAX, "{held} bytes are held");
        }
    }

    fn step(&mut self, below: &mut impl FnMut(usize) -> usize) {
        let is_open = |_, socket: &Socket| socket.is_connected;
        let is_heard = |_, it: &Socket| it.is_connected && !it.is_paused && !it.has_ended;
        let conns = match below(16) {
            0 => return self.accept(),
            1..=2 => self.conns(|_, socket| !socket.is_connected),
            3..=6 => self.conns(is_heard),
            7..=11 => self.conns(is_open),
            12 => self.conns(is_heard),
            13 if below(3) == 0 => self.conns(is_open),
            14 => {
                let ms = [1, 30, 400, 1500, 6000][below(5)];
                let actions = self.world.wait(ms);
                return self.perform(actions);
            }
            15 if below(6) == 0 => {
                let (options, servers) = (OPTIONS[below(OPTIONS.len())], 2 + below(2) as u32);
                return self.reload(options, servers);
            }
            15 if below(4) == 0 => return self.hand_over(below),
            _ => return,
        };
        if conns.is_empty() {
            return;
        }
        let conn = conns[below(conns.len())];
        let socket = self.sockets[&conn];
        match below(24) {
            _ if !socket.is_connected => self.connected(conn, below(4) > 0),
            0 if !socket.is_paused && !socket.has_ended => self.end(conn),
            1 if below(3) == 0 => self.break_off(conn, CloseReason::Reset),
            2..=11 if !socket.is_paused && !socket.has_ended => {
                let most = [10, 2000, 20_000, READ_MAX][below(4)];
                self.receive(conn, 1 + below(most));
            }
            _ => {
                let most = [10, 30_000, 200_000][below(3)];
                self.take(conn, 1 + below(most));
            }
        }
    }
}

#[test]
fn whatever_comes_bytes_arrive_once_and_nothing_is_left() {
    let (mut ends, mut bytes, mut shed) = (0, 0, 0);
    for seed in 1..=SEEDS {
        let mut below = random_of(seed);
        let memory_max = (seed % 3 == 0).then_some(MEMORY_SHORT);
        let (options, servers) = (OPTIONS[below(OPTIONS.len())], 2 + below(2) as u32);
        let mut net = Net::new(options, servers, memory_max);
        for _ in 0..STEPS {
            net.step(&mut below);
            net.settle();
            net.check();
        }
        ends += net.sockets.values().filter(|socket| socket.is_told_end).count();
        bytes += net.sockets.values().map(|socket| socket.got).sum::<usize>();
        shed += net.shed;
        // Nobody is checked any more, and all leave.
        net.reload("", 3);
        while let Some(conn) = net.conns(|_, _| true).first().copied() {
            net.break_off(conn, CloseReason::Reset);
            net.settle();
        }
        let actions = net.world.wait(100_000);
        net.perform(actions);
        assert_eq!(net.world.engine.clients(), 0, "seed {seed}");
        assert_eq!(net.departed, net.accepted, "seed {seed}");
        assert!((0..3).all(|server| net.world.connections(server) == 0), "seed {seed}");
        assert!(net.sockets.is_empty(), "seed {seed}");
    }
    assert!(ends > 10 && bytes > 1 << 20, "{ends} ends, {bytes} bytes");
    assert!(shed > 10, "{shed} were closed for want of memory");
}
