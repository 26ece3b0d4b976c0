//! How much of what others ask may stand between a client's request and its being sent.

use crate::world::{World, pool, redis};
use cashew_engine::ConnId;
use cashew_metrics::PoolCounter;

const READ_SIZE: usize = 64 * 1024;
/// Keys of large requests in one turn, but for the request with which they are reached.
const SHARE: usize = 1 << 16;
const GET: &str = "*2\r\n$3\r\nGET\r\n$1\r\na\r\n";

fn del(client: usize, keys: usize) -> String {
    let words: Vec<String> = (0..keys).map(|key| format!("c{client}:{key}")).collect();
    redis(&format!("DEL {}", words.join(" ")))
}

/// Clients whose requests lack nothing but their last reads.
struct Activity {
    world: World,
    polite: ConnId,
    pending: Vec<(ConnId, Vec<u8>)>,
}

impl Activity {
    fn new(options: &str, requests: impl Iterator<Item = String>) -> Self {
        let options = format!("timeout: 60000\npreconnect: true\n{options}");
        let mut world = World::new(&pool(&options, 2));
        world.accept_all::<2>();
        let polite = world.client();
        let pending = requests.map(|request| {
            let client = world.client();
            let bytes = request.into_bytes();
            let last = (bytes.len() - 1) / READ_SIZE * READ_SIZE;
            bytes[..last].chunks(READ_SIZE).for_each(|read| world.send(client, read));
            (client, bytes[last..].to_vec())
        });
        let pending = pending.collect();
        Self { world, polite, pending }
    }

    /// All of them send what they lack at once.
    fn complete(&mut self) {
        for (client, mut read) in std::mem::take(&mut self.pending) {
            self.world.engine.handle_received_buffer(client, &mut read, self.world.now);
        }
    }

    fn dispatched(&self) -> u64 {
        let metrics = &self.world.metrics;
        metrics.pool_counter(metrics.pool(0), PoolCounter::Requests)
    }

    /// A turn in which a client asks for little: how many requests of others were dispatched before
    /// that was sent.
    fn turn(&mut self, request: &str) -> u64 {
        let before = self.dispatched();
        let mut read = request.as_bytes().to_vec();
        self.world.engine.handle_received_buffer(self.polite, &mut read, self.world.now);
        self.world.turn();
        let lanes: Vec<ConnId> = self.world.lanes.values().flatten().copied().collect();
        let sent: Vec<u8> = lanes.iter().flat_map(|&lane| self.world.received(lane)).collect();
        let sent = String::from_utf8_lossy(&sent);
        assert_eq!(sent.matches(request).count(), 1, "it is sent in the turn in which it came");
        self.dispatched() - before - 1
    }

    /// All complete their requests at once, and there are turns until nobody is put off: how many
    /// requests each of these dispatched.
    fn turns(&mut self, request: &str) -> Vec<u64> {
        let before = self.dispatched();
        self.complete();
        let at_once = self.dispatched() - before;
        let mut turns = vec![at_once + self.turn(request)];
        while self.world.engine.has_put_off() {
            assert!(turns.len() < 1000, "{turns:?}");
            turns.push(self.turn(request));
        }
        turns
    }
}

/// Whoever comes while one turn works waits for the rest of it and for the next one.
#[track_caller]
fn assert_bounded(turns: &[u64], most: u64) {
    let is_bounded = |turns: &[u64]| turns.iter().sum::<u64>() <= most;
    assert!(turns.chunks(1).chain(turns.windows(2)).all(is_bounded), "{turns:?}");
}

#[test]
fn a_small_request_waits_for_one_large_one_at_most() {
    let mut activity = Activity::new("redis: true", (0..20).map(|client| del(client, SHARE)));
    let turns = activity.turns(GET);
    assert_bounded(&turns, 1);
    assert_eq!((turns[0], turns.iter().sum::<u64>()), (1, 20), "what comes first need not wait");
}

#[test]
fn many_requests_of_some_size_are_taken_a_share_at_a_time() {
    let keys = 10_000;
    let mut activity = Activity::new("redis: true", (0..40).map(|client| del(client, keys)));
    let turns = activity.turns(GET);
    let share = SHARE.div_ceil(keys) as u64;
    assert_bounded(&turns, share);
    assert_eq!(turns.iter().sum::<u64>(), 40);
    assert!(turns.len() <= 2 * 40_usize.div_ceil(share as usize), "{turns:?}");
}

#[test]
fn lines_of_many_keys_are_read_a_share_at_a_time() {
    let get = |client| {
        let keys: String = (0..SHARE).map(|key| format!(" c{client}:{key}")).collect();
        format!("get{keys}\r\n")
    };
    let mut activity = Activity::new("", (0..5).map(get));
    let turns = activity.turns("set a 0 0 1\r\nx\r\n");
    assert_bounded(&turns, 1);
    assert_eq!(turns.iter().sum::<u64>(), 5, "{turns:?}");
}

#[test]
fn nobody_overtakes_those_who_were_put_off() {
    let mut activity = Activity::new("redis: true", (0..5).map(|client| del(client, SHARE)));
    // Their lanes are made by the first of them.
    activity.world.send(activity.polite, del(99, SHARE));
    activity.world.accept_all::<2>();
    let lanes: Vec<ConnId> = activity.world.lanes.values().flatten().copied().collect();
    activity.complete();
    let mut order = Vec::new();
    for newcomer in 5..8 {
        let client = activity.world.client();
        activity.world.send(client, del(newcomer, SHARE));
    }
    while activity.world.turn() {}
    for lane in lanes {
        let sent = String::from_utf8(activity.world.received(lane)).unwrap();
        let firsts = sent.split("DEL\r\n").skip(1).filter_map(|del| del.split("\r\nc").nth(1));
        order.push(firsts.map(|key| key[..1].to_owned()).collect::<String>());
    }
    order.retain(|order| !order.is_empty());
    assert_eq!(order, ["901234567", "901234567"]);
}

#[test]
fn what_is_put_off_is_answered_in_order_unless_its_client_leaves() {
    let mut activity =
        Activity::new("redis: true", (0..4).map(|client| del(client, 10 * SHARE / 16)));
    activity.world.send(activity.polite, del(9, SHARE));
    activity.world.accept_all::<2>();
    let clients: Vec<ConnId> = activity.pending.iter().map(|(client, _)| *client).collect();
    activity.pending.insert(0, (activity.polite, redis("PING").into_bytes()));
    activity.complete();
    for &client in &clients[1..3] {
        let mut read = redis("ECHO b").into_bytes();
        activity.world.engine.handle_received_buffer(client, &mut read, activity.world.now);
    }
    assert!(activity.world.engine.has_put_off());
    activity.world.close(clients[2], cashew_engine::CloseReason::Reset);
    activity.world.read_closed(clients[3]);
    let lanes: Vec<ConnId> = activity.world.lanes.values().flatten().copied().collect();
    for lane in lanes {
        let sent = String::from_utf8(activity.world.received(lane)).unwrap();
        let replies = ":1\r\n".repeat(sent.matches("DEL\r\n").count());
        if !replies.is_empty() {
            activity.world.send(lane, replies);
        }
    }
    activity.world.expect(activity.polite, ":2\r\n+PONG\r\n");
    activity.world.expect(clients[0], ":2\r\n");
    activity.world.expect(clients[1], ":2\r\n$1\r\nb\r\n");
    activity.world.expect(clients[3], ":2\r\n");
    assert!(activity.world.closed.contains(&clients[3]));
    assert!(!activity.world.paused.contains(&clients[1]), "it is read again");
    activity.world.wait_ms(5000);
    activity.world.assert_idle();
}
