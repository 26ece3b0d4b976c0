//! Pools with `protocol: tcp`: what the engine makes of connections, without a socket.

use std::net::SocketAddr;

use cashew_config::{Context, Snapshot};
use cashew_engine::{
    Action, Admission, BackendId, CloseReason, ConnId, Engine, Identity, ListenerId, Plan, Setup,
    Source, Time,
};
use cashew_metrics::{PoolCounter, ServerCounter, ServerGauge, Writer};

const LISTENER: ListenerId = ListenerId::new(0);
/// More than may wait for one side.
const MUCH: usize = 200 * 1024;

pub(crate) struct World {
    pub(crate) engine: Engine,
    metrics: Writer,
    pub(crate) now: Time,
}

pub(crate) fn snapshot(options: &str, servers: u32) -> Snapshot {
    let servers: Vec<String> =
        (1..=servers).map(|number| format!("'h:{number}:1 s{number}'")).collect();
    let text = format!(
        "global: {{worker_processes: 1}}\npools:\n  a: {{protocol: tcp, listen: 127.0.0.1:1, \
         servers: [{}]{options}}}",
        servers.join(", ")
    );
    match cashew_config::parse("f", &text, &Context::of_system()) {
        Ok(loaded) => loaded.snapshot,
        Err(errors) => panic!("{errors}"),
    }
}

impl World {
    pub(crate) fn new(options: &str, servers: u32) -> Self {
        Self::of(&snapshot(options, servers))
    }

    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        let now = Time::from_micros(1_000_000_000);
        let metrics = Writer::in_memory(snapshot);
        let engine = Engine::new(Setup {
            plan: Plan::whole(snapshot, 0, 1),
            metrics: metrics.clone(),
            seed: 1,
            slot: 0,
            identity: Identity { version: "0", process_id: 1 },
            now,
        });
        Self { engine, metrics, now }
    }

    /// What is to be done meanwhile.
    pub(crate) fn commit(&mut self, next: &Snapshot, metrics: &Writer) -> Vec<Action> {
        self.engine.handle_prepare(Plan::whole(next, 0, 1), self.now);
        let mut actions = self.wait(1);
        self.engine.handle_pause(0, self.now);
        actions.extend(self.wait(1));
        self.engine.handle_commit(metrics.clone(), self.now);
        self.metrics = metrics.clone();
        actions
    }

    /// Ends a tick; what is to be done since the last one.
    pub(crate) fn settle(&mut self) -> Vec<Action> {
        self.engine.settle(self.now);
        while self.engine.poll_dirty().is_some() {}
        std::iter::from_fn(|| self.engine.poll_action()).collect()
    }

    pub(crate) fn wait(&mut self, ms: u64) -> Vec<Action> {
        self.now = self.now.plus_millis(ms);
        self.engine.handle_timeout(self.now);
        self.settle()
    }

    /// A client that has connected, and may go on.
    pub(crate) fn accept(&mut self) -> ConnId {
        let conn = self.engine.handle_accepted(LISTENER, Admission::Welcome, 1, self.now);
        self.engine.handle_ready(conn, None, self.now);
        conn
    }

    /// The connection that is to be made, and the number of the server.
    fn connects(&mut self) -> (ConnId, u32) {
        let actions = self.settle();
        let mut connects = actions.iter().filter_map(|action| match action {
            Action::Connect { conn, server, .. } => Some((*conn, server.number())),
            _ => None,
        });
        let connect = connects.next().unwrap_or_else(|| panic!("{actions:?}"));
        assert_eq!(connects.next(), None);
        connect
    }

    /// A client and its server, connected.
    pub(crate) fn pair(&mut self) -> (ConnId, ConnId) {
        let client = self.accept();
        let (server, _) = self.connects();
        self.engine.handle_connected(server, self.now);
        self.settle();
        (client, server)
    }

    pub(crate) fn receive(&mut self, conn: ConnId, bytes: &[u8]) {
        self.engine.handle_received_buffer(conn, &mut bytes.to_vec(), self.now);
    }

    /// Takes all that waits for a connection, as a driver does.
    pub(crate) fn take(&mut self, conn: ConnId) -> Vec<u8> {
        let mut taken = Vec::new();
        loop {
            let piece = self.engine.front(conn).0.to_vec();
            if piece.is_empty() {
                return taken;
            }
            self.engine.handle_sent(conn, piece.len() as u64, self.now);
            taken.extend_from_slice(&piece);
        }
    }

    pub(crate) fn pool(&self, counter: PoolCounter) -> u64 {
        self.metrics.pool_counter(self.metrics.pool(0), counter)
    }

    fn server(&self, server: usize, counter: ServerCounter) -> u64 {
        self.metrics.server_counter(self.metrics.server(0, server), counter)
    }

    pub(crate) fn connections(&self, server: usize) -> u64 {
        let server = self.metrics.server(0, server);
        self.metrics.server_gauge(server, ServerGauge::ServerConnections)
    }
}

#[test]
fn bytes_pass_and_the_ends_follow_them() {
    let mut world = World::new("", 1);
    let client = world.accept();
    world.receive(client, b"early ");
    let (server, _) = world.connects();
    assert_eq!(world.connections(0), 1, "it counts while it is made");
    world.engine.handle_connected(server, world.now);
    world.settle();
    world.receive(client, b"late");
    assert_eq!(world.take(server), b"early late");
    world.receive(server, b"answer");
    world.engine.handle_read_closed(client, world.now);
    assert_eq!(world.settle(), [Action::EndWriting { conn: server }]);
    world.engine.handle_read_closed(server, world.now);
    assert_eq!(world.settle(), [], "the client is owed something");
    assert_eq!(world.take(client), b"answer");
    let actions = world.settle();
    assert_eq!(
        actions,
        [
            Action::EndWriting { conn: client },
            Action::Close { conn: client },
            Action::Close { conn: server }
        ]
    );
    assert_eq!((world.engine.clients(), world.connections(0)), (0, 0));
    assert_eq!(world.pool(PoolCounter::ClientBytesReceived), 10);
    assert_eq!(world.pool(PoolCounter::ClientBytesSent), 6);
    assert_eq!(world.server(0, ServerCounter::RequestBytes), 10);
    assert_eq!(world.pool(PoolCounter::ClientEof), 1);
}

#[test]
fn who_sends_too_much_is_not_read_until_the_other_has_taken_it() {
    let mut world = World::new("", 1);
    let (client, server) = world.pair();
    world.receive(client, &[1; MUCH]);
    assert_eq!(world.settle(), [Action::PauseRead { conn: client }]);
    // What was read already is kept all the same.
    world.receive(client, b"more");
    assert_eq!(world.settle(), []);
    world.engine.handle_sent(server, MUCH as u64 / 2, world.now);
    assert_eq!(world.settle(), []);
    assert_eq!(world.take(server).len(), MUCH / 2 + 4);
    assert_eq!(world.settle(), [Action::ResumeRead { conn: client }]);
}

#[test]
fn a_server_that_cannot_be_reached_is_passed_over_and_then_out() {
    let mut world = World::new(", server_failure_limit: 2, server_retry_timeout: 1000", 2);
    for round in 0..2 {
        let client = world.accept();
        world.receive(client, b"x");
        let (first, server) = world.connects();
        if server == 1 {
            world.engine.handle_connected(first, world.now);
            world.engine.handle_closed(client, CloseReason::Reset, world.now);
            world.settle();
            continue;
        }
        world.engine.handle_closed(first, CloseReason::Refused, world.now);
        let (second, server) = world.connects();
        assert_eq!(server, 1, "in round {round}");
        world.engine.handle_connected(second, world.now);
        assert_eq!(world.take(second), b"x", "it was not sent to the first");
        world.engine.handle_closed(client, CloseReason::Reset, world.now);
        assert!(world.settle().contains(&Action::Reset { conn: second }));
    }
    // Turns go on until the second failure.
    let mut failures = world.server(0, ServerCounter::ConnectErrors);
    while failures < 2 {
        world.accept();
        let (conn, server) = world.connects();
        let why = CloseReason::Refused;
        if server == 0 {
            world.engine.handle_closed(conn, why, world.now);
            world.connects();
        }
        failures = world.server(0, ServerCounter::ConnectErrors);
    }
    for _ in 0..4 {
        world.accept();
        assert_eq!(world.connects().1, 1);
    }
    // One connection finds out whether it is back.
    world.wait(1001);
    world.accept();
    world.accept();
    let connects = world.settle();
    let to_first = connects
        .iter()
        .filter(|action| matches!(action, Action::Connect { server, .. } if server.number() == 0));
    assert_eq!(to_first.count(), 1, "{connects:?}");
}

#[test]
fn without_a_server_the_client_is_reset() {
    let mut world = World::new(", server_connect_timeout: 100", 1);
    let client = world.accept();
    let (conn, _) = world.connects();
    let actions = world.wait(101);
    assert!(actions.contains(&Action::Close { conn }), "{actions:?}");
    assert!(actions.contains(&Action::Reset { conn: client }), "{actions:?}");
    assert_eq!(world.pool(PoolCounter::ConnectionsFailed), 1);
    assert_eq!(world.server(0, ServerCounter::ServerTimedout), 1);
    assert_eq!((world.engine.clients(), world.connections(0)), (0, 0));
    assert!(world.engine.poll_departed().is_some());
}

/// Fails each connection of a client until it has no more tries; how many it had.
fn tries(world: &mut World) -> usize {
    let client = world.accept();
    for count in 0.. {
        let actions = world.settle();
        let connect = actions.iter().find_map(|action| match action {
            Action::Connect { conn, .. } => Some(*conn),
            _ => None,
        });
        match connect {
            Some(conn) => world.engine.handle_closed(conn, CloseReason::Refused, world.now),
            None => {
                assert!(actions.contains(&Action::Reset { conn: client }), "{actions:?}");
                return count;
            }
        }
    }
    unreachable!()
}

#[test]
fn a_client_has_so_many_tries_and_fewer_if_all_servers_are_known_to_be_out() {
    let mut world = World::new(", server_failure_limit: 1, server_retry_timeout: 100000", 20);
    assert_eq!((tries(&mut world), tries(&mut world)), (8, 8));
    // Four are left.
    assert_eq!((tries(&mut world), tries(&mut world)), (4, 2));
}

#[test]
fn checks_of_many_servers_are_spread_over_the_interval() {
    let mut world = World::new(", server_check_interval: 1000", 120);
    let mut checked = Vec::new();
    for step in 0..10 {
        let actions = if step == 0 { world.wait(0) } else { world.wait(100) };
        let connects = actions.iter().filter_map(|action| match action {
            Action::Connect { conn, server, .. } => Some((*conn, server.number())),
            _ => None,
        });
        let connects: Vec<_> = connects.collect();
        assert!(connects.len() <= 50, "{}", connects.len());
        for (conn, server) in connects {
            world.engine.handle_connected(conn, world.now);
            checked.push(server);
        }
    }
    checked.sort_unstable();
    assert_eq!(checked, (0..120).collect::<Vec<_>>(), "each once");
}

#[test]
fn what_came_before_a_reset_goes_before_it() {
    let mut world = World::new("", 1);
    let (client, server) = world.pair();
    world.receive(server, b"last words");
    world.engine.handle_closed(server, CloseReason::Reset, world.now);
    assert_eq!(world.settle(), []);
    assert_eq!(world.take(client), b"last words");
    assert_eq!(world.settle(), [Action::Reset { conn: client }]);
    assert_eq!(world.engine.clients(), 0);
}

#[test]
fn a_reset_waits_for_who_reads_and_not_for_who_does_not() {
    let mut world = World::new("", 1);
    let (client, server) = world.pair();
    world.receive(client, &[b'x'; 1000]);
    world.engine.handle_closed(client, CloseReason::Reset, world.now);
    for _ in 0..3 {
        assert_eq!(world.wait(4_000), []);
        world.engine.handle_sent(server, 1, world.now);
    }
    assert_eq!(world.wait(5_001), [Action::Reset { conn: server }]);
    assert_eq!((world.engine.clients(), world.connections(0)), (0, 0));
}

#[test]
fn a_session_over_which_nothing_goes_ends() {
    let mut world = World::new(", idle_timeout: 10s", 1);
    let (client, server) = world.pair();
    for _ in 0..3 {
        assert_eq!(world.wait(9_000), []);
        world.receive(server, b"x");
        world.take(client);
    }
    let actions = world.wait(10_001);
    assert_eq!(actions, [Action::Close { conn: client }, Action::Close { conn: server }]);
    assert_eq!(world.pool(PoolCounter::ConnectionsIdle), 1);
}

#[test]
fn who_finds_no_place_waits_for_one() {
    let mut world = World::new(", server_connections_max: 1, connection_wait: 1s", 1);
    let (first, _) = world.pair();
    let (second, third) = (world.accept(), world.accept());
    assert_eq!(world.settle(), []);
    world.engine.handle_closed(first, CloseReason::Reset, world.now);
    let (conn, _) = world.connects();
    world.engine.handle_connected(conn, world.now);
    world.receive(second, b"x");
    assert_eq!(world.take(conn), b"x", "who came first is first");
    let actions = world.wait(1001);
    assert!(actions.contains(&Action::Reset { conn: third }), "{actions:?}");
    assert_eq!(world.pool(PoolCounter::ConnectionsWaited), 2);
}

#[test]
fn a_server_is_told_of_the_client_before_anything_else() {
    let mut world = World::new(", send_proxy: v1", 1);
    let client = world.engine.handle_accepted(LISTENER, Admission::Welcome, 1, world.now);
    assert_eq!(world.settle(), [], "it is not known whose connection it is");
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let source = Source { client: address("10.0.0.1:5"), to: address("10.0.0.2:6") };
    world.engine.handle_ready(client, Some(source), world.now);
    world.receive(client, b"hello");
    let (server, _) = world.connects();
    world.engine.handle_connected(server, world.now);
    assert_eq!(world.take(server), b"PROXY TCP4 10.0.0.1 10.0.0.2 5 6\r\nhello");
}

#[test]
fn a_session_goes_to_another_process_with_what_is_on_its_way() {
    let mut world = World::new("", 2);
    let (client, server) = world.pair();
    world.receive(client, b"to the server");
    world.receive(server, b"to the client");
    world.engine.handle_read_closed(server, world.now);
    world.engine.leave_all(world.now);
    assert_eq!(world.settle(), [Action::HandOff { conn: client }]);
    assert_eq!(world.engine.partner(client), Some(server));
    assert_eq!(world.engine.partner(server), Some(client));
    let (listener, parts) = world.engine.export_pair(client, world.now).unwrap();
    assert_eq!((listener, &*parts.server), (LISTENER, "s1"));
    assert!(world.engine.clients() == 0 && world.connections(0) == 0);
    assert!(world.engine.poll_departed().is_none(), "its place goes with it");

    let mut next = World::new("", 2);
    let (client, server) = next.engine.handle_adopted_pair(LISTENER, parts, next.now);
    assert_eq!(next.connections(0), 1);
    assert_eq!(next.take(server), b"to the server");
    // The driver tells of the end anew.
    next.engine.handle_read_closed(server, next.now);
    assert_eq!(next.settle(), []);
    assert_eq!(next.take(client), b"to the client");
    assert_eq!(next.settle(), [Action::EndWriting { conn: client }]);
    next.engine.handle_read_closed(client, next.now);
    let actions = next.settle();
    assert!(actions.contains(&Action::Close { conn: client }), "{actions:?}");
}

#[test]
fn checks_find_out_without_clients() {
    let mut world =
        World::new(", server_check_interval: 1000, server_failure_limit: 2, server_rise: 2", 2);
    let checks = |world: &mut World, is_well: [bool; 2]| {
        let connects: Vec<(ConnId, u32)> = world
            .wait(1000)
            .iter()
            .filter_map(|action| match action {
                Action::Connect { conn, server, .. } => Some((*conn, server.number())),
                _ => None,
            })
            .collect();
        assert_eq!(connects.len(), 2);
        for (conn, server) in connects {
            match is_well[server as usize] {
                true => world.engine.handle_connected(conn, world.now),
                false => world.engine.handle_closed(conn, CloseReason::Refused, world.now),
            }
        }
        world.settle();
    };
    let used = |world: &mut World| {
        let mut servers: Vec<u32> = (0..4)
            .map(|_| {
                world.accept();
                world.connects().1
            })
            .collect();
        servers.sort_unstable();
        servers.dedup();
        servers
    };
    checks(&mut world, [true, true]);
    checks(&mut world, [false, true]);
    assert_eq!(used(&mut world), [0, 1], "one failure is none");
    checks(&mut world, [false, true]);
    assert_eq!(used(&mut world), [1]);
    checks(&mut world, [true, true]);
    assert_eq!(used(&mut world), [1], "one success is none");
    checks(&mut world, [true, true]);
    assert_eq!(used(&mut world), [0, 1]);
}

/// Without what is only to be told.
fn doings(actions: &[Action]) -> Vec<Action> {
    let is_told = |action: &&Action| !matches!(action, Action::ServerState { .. });
    actions.iter().filter(is_told).cloned().collect()
}

#[test]
fn checks_count_and_say_what_they_are() {
    let local = [b"\r\n\r\n\0\r\nQUIT\n".as_slice(), &[0x20, 0, 0, 0]].concat();
    let versions: [(&str, &[u8]); 3] = [("off", b""), ("v1", b"PROXY UNKNOWN\r\n"), ("v2", &local)];
    for (version, told) in versions {
        let options = format!(", server_check_interval: 1000, send_proxy: {version}");
        let mut world = World::new(&options, 1);
        world.engine.handle_timeout(world.now);
        let (check, _) = world.connects();
        world.now = world.now.plus_millis(3);
        world.engine.handle_connected(check, world.now);
        if !told.is_empty() {
            assert_eq!(doings(&world.settle()), [], "it is not closed before it is told");
            // In two pieces.
            assert_eq!(world.engine.front(check).0, told);
            world.engine.handle_sent(check, 5, world.now);
            assert_eq!(doings(&world.settle()), []);
            assert_eq!(world.take(check), &told[5..]);
        }
        assert_eq!(doings(&world.settle()), [Action::Close { conn: check }]);
        assert_eq!(world.server(0, ServerCounter::Connects), 1);
        assert_eq!(world.server(0, ServerCounter::ConnectUs), 3000);
        // The next one fails.
        let actions = doings(&world.wait(1000));
        let [Action::Connect { conn, .. }] = actions[..] else { panic!("{actions:?}") };
        world.engine.handle_closed(conn, CloseReason::Refused, world.now);
        assert_eq!(world.server(0, ServerCounter::Connects), 1);
        assert_eq!(world.server(0, ServerCounter::ConnectErrors), 1);
        assert_eq!(world.engine.held_bytes(), 0);
    }
}

#[test]
fn a_server_that_does_not_take_what_a_check_says_is_left() {
    let options = ", server_check_interval: 60000, server_connect_timeout: 400, send_proxy: v1";
    for is_reset in [true, false] {
        let mut world = World::new(options, 1);
        world.engine.handle_timeout(world.now);
        let (check, _) = world.connects();
        world.engine.handle_connected(check, world.now);
        world.settle();
        if is_reset {
            world.engine.handle_closed(check, CloseReason::Reset, world.now);
            assert_eq!(doings(&world.wait(401)), []);
        } else {
            assert_eq!(doings(&world.wait(401)), [Action::Close { conn: check }]);
        }
        assert_eq!(world.server(0, ServerCounter::ConnectErrors), 0, "it has accepted");
        assert_eq!(world.engine.held_bytes(), 0);
    }
}

#[test]
fn a_pool_goes_while_its_servers_are_being_checked() {
    let parse = |pools: &str| {
        let text = format!("global: {{worker_processes: 1}}\npools: {{{pools}}}");
        cashew_config::parse("f", &text, &Context::of_system()).unwrap().snapshot
    };
    let kept = "a: {protocol: tcp, listen: 127.0.0.1:1, servers: ['h:1:1']}";
    let gone = "b: {protocol: tcp, listen: 127.0.0.1:2, servers: ['h:2:1'], \
                server_check_interval: 1000, server_connect_timeout: 60000}";
    let mut world = World::of(&parse(&format!("{kept}, {gone}")));
    world.engine.handle_timeout(world.now);
    let (check, _) = world.connects();
    let next = parse(kept);
    let metrics = Writer::in_memory(&next);
    world.commit(&next, &metrics);
    // It is removed though the check goes on.
    let actions: Vec<Action> = (0..4).flat_map(|_| world.wait(1000)).collect();
    assert!(actions.contains(&Action::Close { conn: check }), "{actions:?}");
    // It may have been reported before.
    world.engine.handle_closed(check, CloseReason::TimedOut, world.now);
    world.engine.handle_connected(check, world.now);
    assert_eq!(world.wait(60_000), []);
    world.pair();
}

#[test]
fn a_line_that_many_have_left_keeps_its_order() {
    let mut world = World::new(", server_connections_max: 1, connection_wait: 1h", 1);
    let (first, _) = world.pair();
    let last = world.accept();
    for _ in 0..1000 {
        let client = world.accept();
        world.engine.handle_closed(client, CloseReason::Reset, world.now);
    }
    let other = world.accept();
    world.settle();
    // Who has waited longest is still the first.
    world.engine.handle_closed(first, CloseReason::Reset, world.now);
    let (conn, _) = world.connects();
    world.engine.handle_connected(conn, world.now);
    world.receive(last, b"x");
    assert_eq!(world.take(conn), b"x");
    world.engine.handle_closed(last, CloseReason::Reset, world.now);
    let (conn, _) = world.connects();
    world.engine.handle_connected(conn, world.now);
    world.receive(other, b"y");
    assert_eq!(world.take(conn), b"y");
}

#[test]
fn a_reload_takes_a_server_out_and_leaves_its_sessions() {
    let mut world = World::new("", 2);
    let (one, other) = (world.pair(), world.pair());
    let next = snapshot(", idle_timeout: 1s", 1);
    let metrics = Writer::in_memory(&next);
    world.commit(&next, &metrics);
    assert_eq!(world.settle(), []);
    assert_eq!(world.connections(0), 1);
    for (client, server) in [one, other] {
        world.receive(client, b"on");
        assert_eq!(world.take(server), b"on");
    }
    assert_eq!(
        world.engine.server_of_conn(one.1).map(|(backend, _)| backend),
        Some(BackendId::new(0))
    );
    assert_eq!(world.engine.server_of_conn(other.1), None);
    let actions = world.wait(1001);
    assert_eq!(actions.len(), 4, "the new time limit is theirs, too: {actions:?}");
}
