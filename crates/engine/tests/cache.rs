//! Replies that a route's node `cache` keeps.

use cashew_config::Snapshot;
use cashew_engine::{Action, CloseReason, ConnId};
use cashew_metrics::{HotAct, HotActs, HotCause, PoolCounter, PoolGauge, Ranking};

use crate::world::{World, redis, snapshot};

const TRACK: &str = "CLIENT TRACKING ON BCAST";
const PROTO: &str = "%1\r\n+proto\r\n:3\r\n";

fn config(options: &str, more: &str) -> Snapshot {
    snapshot(&format!(
        "global: {{worker_processes: 1}}
pools:
  a: {{redis: true, listen: '127.0.0.1:6001', preconnect: true, servers: ['127.0.0.1:7000:1'], hide_topology: true}}
routes:
  main: {{redis: true, listen: '127.0.0.1:6000', route: {{cache: {{to: a{options}}}}}{more}}}
"
    ))
}

struct Played {
    world: World,
    lane: ConnId,
    tracker: ConnId,
    client: ConnId,
}

/// Which of two connections to a server is its tracker shows by what it says first.
fn played(config: &Snapshot) -> Played {
    let mut world = World::new(config);
    let conns = [world.accept(0), world.accept(0)];
    assert!(!world.connects_to(0));
    let [one, other] = conns.map(|conn| world.received(conn));
    let (lane, tracker, said) = match one.is_empty() {
        true => (conns[0], conns[1], other),
        false => (conns[1], conns[0], one),
    };
    assert_eq!(said, redis("HELLO 3").as_bytes());
    world.send(tracker, PROTO);
    let main = world.engine.listener_named("main").unwrap();
    let client = world.client_of(main.number());
    Played { world, lane, tracker, client }
}

impl Played {
    fn tracked(config: &Snapshot) -> Self {
        let mut played = played(config);
        let asked = played.world.received(played.tracker);
        let end = redis(TRACK)["*4".len()..].to_owned();
        assert!(asked[b"*4".len()..].starts_with(end.as_bytes()));
        played.world.send(played.tracker, "+OK\r\n");
        played
    }

    /// Time passes, and the server answers when it is asked whether it is there.
    fn rest(&mut self, mut ms: u64) {
        while ms > 0 {
            let step = ms.min(500);
            self.world.wait_ms(step);
            ms -= step;
            let asked = self.world.received(self.tracker);
            if !asked.is_empty() {
                assert_eq!(asked, redis("PING").as_bytes());
                self.world.send(self.tracker, "+PONG\r\n");
            }
        }
    }

    fn another(&mut self) -> ConnId {
        let main = self.world.engine.listener_named("main").unwrap();
        self.world.client_of(main.number())
    }

    /// A read goes to the server, which answers.
    #[track_caller]
    fn read(&mut self, key: &str, reply: &str) {
        self.world.send(self.client, redis(&format!("GET {key}")));
        self.world.expect(self.lane, redis(&format!("GET {key}")));
        self.world.send(self.lane, reply);
        self.world.expect(self.client, reply);
    }

    /// A read goes to the server, and its reply is kept if nothing comes between.
    #[track_caller]
    fn ask_to_keep(&mut self, key: &str) {
        self.world.send(self.client, redis(&format!("GET {key}")));
        let asked = redis(&format!("GET {key}")) + &redis(&format!("PTTL {key}"));
        self.world.expect(self.lane, asked);
    }

    #[track_caller]
    fn keep(&mut self, key: &str, reply: &str) {
        self.read(key, reply);
        self.ask_to_keep(key);
        self.world.send(self.lane, reply);
        self.world.expect(self.client, reply);
        self.world.send(self.lane, ":-1\r\n");
    }

    /// A read is answered from what is kept.
    #[track_caller]
    fn hit(&mut self, key: &str, reply: &str) {
        self.world.send(self.client, redis(&format!("GET {key}")));
        self.world.expect(self.client, reply);
        self.world.expect(self.lane, "");
    }

    fn counts(&self) -> [u64; 5] {
        let id = self.world.metrics.pool(self.main());
        [
            PoolCounter::CacheHits,
            PoolCounter::CacheMisses,
            PoolCounter::CacheFills,
            PoolCounter::CacheWritten,
            PoolCounter::CacheInvalidations,
        ]
        .map(|counter| self.world.metrics.pool_counter(id, counter))
    }

    fn main(&self) -> usize {
        self.world.engine.listener_named("main").unwrap().number() as usize
    }
}

const X: &str = "$1\r\nx\r\n";
const Y: &str = "$1\r\ny\r\n";

#[test]
fn a_key_that_is_read_again_is_answered_without_its_server() {
    let mut it = Played::tracked(&config("", ""));
    it.keep("k", X);
    for _ in 0..3 {
        it.hit("k", X);
    }
    let another = it.another();
    it.world.send(another, redis("GET k"));
    it.world.expect(another, X);
    assert_eq!(it.counts(), [4, 2, 1, 0, 0]);
    // As long as it may, and no longer.
    it.rest(9_000);
    it.hit("k", X);
    it.rest(1_001);
    it.ask_to_keep("k");
}

/// What a node with `hot_only` keeps is on a list that all workers read.
#[test]
fn only_what_is_hot_is_kept_as_long_as_it_is() {
    let mut world = World::new(&config(", hot_only: true", ""));
    let lane = world.accept(0);
    world.wait_ms(3000);
    assert!(!world.connects_to(0), "there is nothing that a server should tell of");
    let acts = HotActs::private();
    world.engine.set_hot_acts(acts.clone());
    let main = world.engine.listener_named("main").unwrap();
    let client = world.client_of(main.number());
    let mut it = Played { world, lane, tracker: lane, client };
    for _ in 0..3 {
        it.read("k", X);
    }
    let act = |key: &[u8]| HotAct::of_key("a", key, HotCause::Command);
    let elsewhere = HotAct::of_key("b", b"other", HotCause::Command);
    acts.set(&[act(b"k"), elsewhere]);
    it.world.wait_ms(1000);
    it.tracker = it.world.accept(0);
    it.world.expect(it.tracker, redis("HELLO 3"));
    // What is asked for before the server tells of it is not kept.
    it.read("k", X);
    it.read("k", X);
    it.world.send(it.tracker, PROTO);
    it.world.expect(it.tracker, redis("CLIENT TRACKING ON BCAST PREFIX k"));
    it.world.send(it.tracker, "+OK\r\n");
    it.ask_to_keep("k");
    it.world.send(it.lane, format!("{X}:-1\r\n"));
    it.world.expect(it.client, X);
    for _ in 0..2000 {
        it.hit("k", X);
    }
    for _ in 0..3 {
        it.read("other", Y);
        it.read("kk", Y);
    }
    // What is answered here is in the sketch as if its server had answered.
    let pool = it.world.engine.listener_named("a").unwrap().number() as usize;
    let pool = it.world.metrics.pool(pool);
    let now_us = it.world.now.as_micros();
    let hot = it.world.metrics.hot_keys(pool, Ranking::Requests, now_us);
    assert_eq!(hot.keys[0].key, b"k");
    assert!(hot.keys[0].weight > 1000, "{hot:?}");
    // Writes are heeded as everywhere.
    let writer = it.another();
    it.world.send(writer, redis("SET k y"));
    it.world.expect(it.lane, redis("SET k y"));
    it.world.send(it.lane, "+OK\r\n");
    it.world.expect(writer, "+OK\r\n");
    it.ask_to_keep("k");
    it.world.send(it.lane, format!("{Y}:-1\r\n"));
    it.world.expect(it.client, Y);
    it.hit("k", Y);
    // It is cool.
    acts.set(&[]);
    it.world.wait_ms(1000);
    it.read("k", Y);
    it.read("k", Y);
    it.world.wait_ms(3000);
    assert!(!it.world.connects_to(0));
}

/// A write that was on its way before the key was hot is heeded, too.
#[test]
fn a_write_from_before_a_key_was_hot_is_heeded() {
    let mut world = World::new(&config(", hot_only: true", ""));
    let lane = world.accept(0);
    let acts = HotActs::private();
    world.engine.set_hot_acts(acts.clone());
    let main = world.engine.listener_named("main").unwrap();
    let client = world.client_of(main.number());
    let mut it = Played { world, lane, tracker: lane, client };
    let writer = it.another();
    it.world.send(writer, redis("SET k y"));
    it.world.expect(it.lane, redis("SET k y"));
    acts.set(&[HotAct::of_key("a", b"k", HotCause::Rule)]);
    it.world.wait_ms(1000);
    it.tracker = it.world.accept(0);
    it.world.expect(it.tracker, redis("HELLO 3"));
    it.world.send(it.tracker, PROTO);
    it.world.expect(it.tracker, redis("CLIENT TRACKING ON BCAST PREFIX k"));
    it.world.send(it.tracker, "+OK\r\n");
    it.world.send(it.client, redis("GET k"));
    it.world.send(it.client, redis("GET k"));
    let asked = redis("GET k") + &redis("GET k") + &redis("PTTL k");
    it.world.expect(it.lane, asked);
    it.world.send(it.lane, "+OK\r\n");
    it.world.expect(writer, "+OK\r\n");
    it.world.send(it.lane, format!("{X}{X}:-1\r\n"));
    it.world.expect(it.client, format!("{X}{X}"));
    // It may be older than what was acknowledged.
    it.ask_to_keep("k");
}

#[test]
fn a_reply_lives_no_longer_than_its_key() {
    let mut it = Played::tracked(&config("", ""));
    it.read("k", X);
    it.ask_to_keep("k");
    it.world.send(it.lane, format!("{X}:50\r\n"));
    it.world.expect(it.client, X);
    it.hit("k", X);
    it.world.wait_ms(50);
    it.ask_to_keep("k");
    it.world.send(it.lane, format!("{X}:-2\r\n"));
    it.world.expect(it.client, X);
    // It was gone in between.
    it.world.send(it.client, redis("GET k"));
    it.world.expect(it.lane, redis("GET k") + &redis("PTTL k"));
}

#[test]
fn a_write_through_this_instance_is_seen_at_once() {
    let mut it = Played::tracked(&config("", ""));
    it.keep("k", X);
    let writer = it.another();
    it.world.send(writer, redis("SET k y"));
    it.world.expect(it.lane, redis("SET k y"));
    // It is on its way: whoever reads now may have either.
    it.ask_to_keep("k");
    it.world.send(it.lane, "+OK\r\n");
    it.world.expect(writer, "+OK\r\n");
    it.world.send(it.lane, format!("{Y}:-1\r\n"));
    it.world.expect(it.client, Y);
    // It was asked for before the write was acknowledged, so that it might have been older.
    it.ask_to_keep("k");
    it.world.send(it.lane, format!("{Y}:-1\r\n"));
    it.world.expect(it.client, Y);
    it.hit("k", Y);
}

#[test]
fn a_write_through_another_port_or_worker_is_seen_at_once() {
    let mut it = Played::tracked(&config("", ""));
    it.keep("k", X);
    let pool = it.world.engine.listener_named("a").unwrap();
    let elsewhere = it.world.client_of(pool.number());
    it.world.send(elsewhere, redis("SET k y"));
    it.world.expect(it.lane, redis("SET k y"));
    it.world.send(it.lane, "+OK\r\n");
    it.world.expect(elsewhere, "+OK\r\n");
    it.ask_to_keep("k");
    assert_eq!(it.counts()[3], 1);
}

#[test]
fn what_a_client_has_pipelined_is_in_its_order() {
    let mut it = Played::tracked(&config("", ""));
    it.keep("k", X);
    let both = redis("SET other 1") + &redis("GET k");
    it.world.send(it.client, &both);
    // Another key's reply would be right, but nothing overtakes a write of its own.
    it.world.expect(it.lane, redis("SET other 1") + &redis("GET k"));
    it.world.send(it.lane, format!("+OK\r\n{X}"));
    it.world.expect(it.client, format!("+OK\r\n{X}"));
    it.world.send(it.client, redis("GET absent") + &redis("GET k"));
    it.world.expect(it.lane, redis("GET absent"));
    it.world.expect(it.client, "");
    it.world.send(it.lane, "$-1\r\n");
    it.world.expect(it.client, format!("$-1\r\n{X}"));
}

#[test]
fn a_change_that_the_server_tells_of_drops_what_is_kept() {
    let mut it = Played::tracked(&config("", ""));
    it.keep("k", X);
    it.world.send(it.tracker, ">2\r\n$10\r\ninvalidate\r\n*2\r\n$1\r\na\r\n$1\r\nk\r\n");
    it.ask_to_keep("k");
    // While it is on its way, too.
    it.world.send(it.tracker, ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n");
    it.world.send(it.lane, format!("{X}:-1\r\n"));
    it.world.expect(it.client, X);
    it.ask_to_keep("k");
    it.world.send(it.lane, format!("{Y}:-1\r\n"));
    it.world.expect(it.client, Y);
    it.hit("k", Y);
    // A flush, in pieces.
    for piece in [">2\r\n$10\r\ninva", "lidate\r\n", "_\r\n"] {
        it.world.send(it.tracker, piece);
    }
    it.ask_to_keep("k");
    assert_eq!(it.counts()[4], 3);
}

#[test]
fn without_a_tracker_nothing_is_kept() {
    let mut it = played(&config("", ""));
    it.world.expect(it.tracker, redis(TRACK));
    for _ in 0..3 {
        it.read("k", X);
    }
    it.world.send(it.tracker, "+OK\r\n");
    it.ask_to_keep("k");
    it.world.send(it.lane, format!("{X}:-1\r\n"));
    it.world.expect(it.client, X);
    it.hit("k", X);
    // Lost, nobody knows what has changed since.
    it.world.close(it.tracker, CloseReason::Eof);
    it.read("k", X);
    it.world.wait_ms(1000);
    it.tracker = it.world.accept(0);
    it.world.expect(it.tracker, redis("HELLO 3"));
    it.read("k", X);
    it.world.send(it.tracker, PROTO);
    it.world.expect(it.tracker, redis(TRACK));
    it.world.send(it.tracker, "+OK\r\n");
    it.ask_to_keep("k");
}

#[test]
fn a_tracker_that_says_nothing_is_asked_and_given_up() {
    let mut it = Played::tracked(&config("", ""));
    it.keep("k", X);
    it.world.wait_ms(2000);
    it.world.expect(it.tracker, redis("PING"));
    it.world.send(it.tracker, "+PONG\r\n");
    it.hit("k", X);
    it.world.wait_ms(2000);
    it.world.expect(it.tracker, redis("PING"));
    it.world.wait_ms(2500);
    assert!(it.world.closed.contains(&it.tracker));
    it.read("k", X);
}

#[test]
fn a_server_that_cannot_tell_is_left_alone_for_a_while() {
    let mut it = played(&config("", ""));
    it.world.expect(it.tracker, redis(TRACK));
    it.world.send(it.tracker, "-ERR unknown subcommand\r\n");
    assert!(it.world.closed.contains(&it.tracker));
    it.world.wait_ms(20_000);
    assert!(!it.world.connects_to(0));
    it.world.wait_ms(11_000);
    assert!(it.world.connects_to(0));
}

#[test]
fn whoever_is_in_a_transaction_or_elsewhere_reads_from_the_server() {
    let mut it = Played::tracked(&config("", ""));
    it.keep("k", X);
    it.world.send(it.client, redis("CLIENT REPLY SKIP") + &redis("GET k"));
    it.world.expect(it.lane, redis("GET k"));
    it.world.send(it.lane, X);
    it.world.expect(it.client, "");
    let third = it.another();
    it.world.send(third, redis("HELLO 3"));
    assert!(it.world.received(third).starts_with(b"%"));
    it.world.send(third, redis("GET k"));
    it.world.expect(third, X);
    it.world.send(it.client, redis("WATCH k"));
    let session = it.world.accept(0);
    it.world.expect(session, redis("WATCH k"));
    it.world.send(session, "+OK\r\n");
    it.world.expect(it.client, "+OK\r\n");
    it.world.send(it.client, redis("GET k"));
    it.world.expect(session, redis("GET k"));
}

#[test]
fn what_a_transaction_writes_is_dropped_when_it_is_done() {
    let mut it = Played::tracked(&config("", ""));
    it.keep("k", X);
    it.keep("other", X);
    let writer = it.another();
    it.world.send(writer, redis("MULTI") + &redis("SET k y"));
    let session = it.world.accept(0);
    it.world.expect(session, redis("MULTI") + &redis("SET k y"));
    it.world.send(session, "+OK\r\n+QUEUED\r\n");
    // It is not done yet, and a reader may keep what it finds.
    it.ask_to_keep("k");
    it.world.send(it.lane, format!("{X}:-1\r\n"));
    it.world.expect(it.client, X);
    it.hit("k", X);
    it.world.send(writer, redis("EXEC"));
    it.world.expect(session, redis("EXEC"));
    it.ask_to_keep("k");
    it.world.send(session, "*1\r\n+OK\r\n");
    it.world.send(it.lane, format!("{Y}:-1\r\n"));
    it.world.expect(it.client, Y);
    it.ask_to_keep("k");
    it.world.send(it.lane, format!("{Y}:-1\r\n"));
    it.world.expect(it.client, Y);
    it.hit("k", Y);
    it.hit("other", X);
}

#[test]
fn what_may_write_any_key_drops_all() {
    for command in ["FLUSHALL", "EVAL x 0"] {
        let mut it = Played::tracked(&config("", ", command_policy: application"));
        it.keep("k", X);
        let writer = it.another();
        it.world.send(writer, redis(command));
        let sent = it.world.received(it.lane);
        assert!(sent.starts_with(redis(command).as_bytes()), "{command}");
        it.ask_to_keep("k");
    }
}

#[test]
fn only_what_may_be_kept_is() {
    let mut it = Played::tracked(&config(", keys: ['user:'], value_max: 64, negative: 1s", ""));
    for _ in 0..3 {
        it.read("k", X);
    }
    let long = format!("$100\r\n{}\r\n", "x".repeat(100));
    it.read("user:1", &long);
    for _ in 0..2 {
        it.ask_to_keep("user:1");
        it.world.send(it.lane, format!("{long}:-1\r\n"));
        it.world.expect(it.client, &long);
    }
    // That there is none, as well.
    it.read("user:2", "$-1\r\n");
    it.ask_to_keep("user:2");
    it.world.send(it.lane, "$-1\r\n:-2\r\n");
    it.world.expect(it.client, "$-1\r\n");
    it.hit("user:2", "$-1\r\n");
    it.world.send(it.client, redis("HELLO 3"));
    assert!(it.world.received(it.client).starts_with(b"%"));
    it.world.send(it.client, redis("GET user:2"));
    it.world.expect(it.client, "_\r\n");
    it.world.wait_ms(1000);
    assert_eq!(it.counts()[..3], [2, 5, 1]);
}

#[test]
fn many_keys_are_answered_if_all_are_kept() {
    let mut it = Played::tracked(&config("", ""));
    it.keep("a", X);
    it.keep("b", Y);
    it.world.send(it.client, redis("MGET b a b"));
    it.world.expect(it.client, format!("*3\r\n{Y}{X}{Y}"));
    it.world.send(it.client, redis("MGET a c"));
    it.world.expect(it.lane, redis("MGET a c"));
}

#[test]
fn a_reload_and_a_lost_connection_leave_nothing_half_kept() {
    let mut it = Played::tracked(&config("", ""));
    it.keep("k", X);
    let next = config(", ttl: 5s", "");
    it.read("k2", X);
    it.ask_to_keep("k2");
    it.world.prepare(&next);
    it.world.pause(1000);
    it.world.commit(&next);
    it.world.send(it.lane, format!("{X}:-1\r\n"));
    it.world.expect(it.client, X);
    it.read("k", X);
    it.ask_to_keep("k");
    it.world.close(it.lane, CloseReason::Eof);
    assert!(it.world.received(it.client).starts_with(b"-ERR"));
    it.world.wait_ms(2000);
}

#[test]
fn without_the_node_nothing_is_tracked() {
    let mut it = Played::tracked(&config("", ""));
    it.keep("k", X);
    let text = "global: {worker_processes: 1}
pools:
  a: {redis: true, listen: '127.0.0.1:6001', preconnect: true, servers: ['127.0.0.1:7000:1'], hide_topology: true}
routes:
  main: {redis: true, listen: '127.0.0.1:6000', route: {prefix: {'': a}}}
";
    let next = snapshot(text);
    it.world.prepare(&next);
    it.world.pause(1000);
    it.world.commit(&next);
    assert!(it.world.closed.contains(&it.tracker));
    for _ in 0..3 {
        it.read("k", X);
    }
    assert_eq!(it.world.engine.held_bytes(), 0);
}

#[test]
fn memcached_values_are_kept_until_they_are_written_or_old() {
    let config = snapshot(
        "global: {worker_processes: 1}
pools:
  a: {listen: '127.0.0.1:6001', preconnect: true, servers: ['127.0.0.1:7000:1'], hide_topology: true}
routes:
  main: {listen: '127.0.0.1:6000', route: {cache: {to: a}}}
",
    );
    let (mut world, [lane]) = World::connected(&config);
    let main = world.engine.listener_named("main").unwrap().number();
    let client = world.client_of(main);
    let value = "VALUE k 7 1\r\nx\r\nEND\r\n";
    let read = |world: &mut World| {
        world.send(client, "get k\r\n");
        world.expect(lane, "get k\r\n");
        world.send(lane, value);
        world.expect(client, value);
    };
    // The second miss in a while: it is to be kept, and has no end.
    let ask = |world: &mut World| {
        world.send(client, "get k\r\n");
        world.expect(lane, "get k\r\nme k\r\n");
        world.send(lane, format!("{value}ME k exp=-1 la=0\r\n"));
        world.expect(client, value);
        world.expect(lane, "mg k t\r\n");
        world.send(lane, "HD t-1\r\n");
    };
    let hit = |world: &mut World| {
        world.send(client, "get k\r\n");
        world.expect(client, value);
        world.expect(lane, "");
    };
    read(&mut world);
    ask(&mut world);
    hit(&mut world);
    world.wait_ms(1000);
    ask(&mut world);
    hit(&mut world);
    for (write, answer) in [
        ("set k 0 0 1\r\ny\r\n", "STORED\r\n"),
        ("incr k 1\r\n", "8\r\n"),
        ("md k\r\n", "HD\r\n"),
        ("flush_all\r\n", "OK\r\n"),
    ] {
        let writer = world.client_of(main);
        world.send(writer, write);
        world.expect(lane, write);
        world.send(lane, answer);
        world.expect(writer, answer);
        ask(&mut world);
        hit(&mut world);
    }
}

/// A cache in front of one memcached, a client of it, and a read that goes to the server.
fn memcached_kept_for(ttl: &str) -> (World, ConnId, ConnId) {
    let config = snapshot(&format!(
        "global: {{worker_processes: 1}}
pools:
  a: {{listen: '127.0.0.1:6001', preconnect: true, servers: ['127.0.0.1:7000:1'], hide_topology: true}}
routes:
  main: {{listen: '127.0.0.1:6000', route: {{cache: {{to: a, ttl: {ttl}}}}}}}
"
    ));
    let (mut world, [lane]) = World::connected(&config);
    let main = world.engine.listener_named("main").unwrap().number();
    let client = world.client_of(main);
    (world, lane, client)
}

const VALUE: &str = "VALUE k 0 1\r\nx\r\nEND\r\n";

/// The key is read, and more is asked than that.
#[track_caller]
fn get_from_server(world: &mut World, lane: ConnId, client: ConnId, more: &str) {
    world.send(client, "get k\r\n");
    world.expect(lane, format!("get k\r\n{more}"));
    world.send(lane, VALUE);
    world.expect(client, VALUE);
}

#[track_caller]
fn get_kept(world: &mut World, lane: ConnId, client: ConnId) {
    world.send(client, "get k\r\n");
    world.expect(client, VALUE);
    world.expect(lane, "");
}

#[test]
fn memcached_values_are_kept_no_longer_than_their_keys_live() {
    let (mut world, lane, client) = memcached_kept_for("20s");
    get_from_server(&mut world, lane, client, "");
    // It is gone between one second and two after it was asked.
    for told in ["ME k exp=-2 la=0\r\n", "ME k exp=2 la=0\r\n"] {
        get_from_server(&mut world, lane, client, "me k\r\n");
        world.send(lane, told);
        world.wait_ms(999);
        get_kept(&mut world, lane, client);
        world.wait_ms(1);
    }
    // With minus signs one second is the same as no end.
    get_from_server(&mut world, lane, client, "me k\r\n");
    world.send(lane, "ME k exp=-1 la=0\r\n");
    world.expect(lane, "mg k t\r\n");
    world.send(lane, "HD t1\r\n");
    get_from_server(&mut world, lane, client, "me k\r\n");
    // What is marked stale is not kept, and its mark is left alone.
    world.send(lane, "ME k exp=-1 la=0\r\n");
    world.expect(lane, "mg k t\r\n");
    world.send(lane, "HD t-1 X Z\r\n");
    get_from_server(&mut world, lane, client, "me k\r\n");
    // It is gone meanwhile, or written.
    world.send(lane, "EN\r\n");
    get_from_server(&mut world, lane, client, "me k\r\n");
    let other = world.client_of(world.engine.listener_named("main").unwrap().number());
    world.send(other, "set k 0 0 1\r\ny\r\n");
    world.expect(lane, "set k 0 0 1\r\ny\r\n");
    world.send(lane, "ME k exp=9 la=0\r\n");
    world.send(lane, "STORED\r\n");
    world.expect(other, "STORED\r\n");
    get_from_server(&mut world, lane, client, "me k\r\n");
    world.send(lane, "ME k exp=30 la=0\r\n");
    world.wait_ms(19_999);
    get_kept(&mut world, lane, client);
    world.wait_ms(1);
    get_from_server(&mut world, lane, client, "me k\r\n");
}

#[test]
fn a_memcached_that_cannot_tell_how_long_keys_live_is_asked_now_and_then() {
    let (mut world, lane, client) = memcached_kept_for("2s");
    get_from_server(&mut world, lane, client, "");
    get_from_server(&mut world, lane, client, "me k\r\n");
    world.send(lane, "ERROR\r\n");
    world.wait_ms(1999);
    get_kept(&mut world, lane, client);
    world.wait_ms(1);
    get_from_server(&mut world, lane, client, "");
    get_kept(&mut world, lane, client);
    world.wait_ms(60_000);
    get_from_server(&mut world, lane, client, "me k\r\n");
    // One that hangs up is not asked for a while, and nothing of it is kept.
    world.close(lane, CloseReason::Eof);
    let lane = loop {
        world.wait_ms(10);
        if world.connects_to(0) {
            break world.accept(0);
        }
    };
    for _ in 0..4 {
        get_from_server(&mut world, lane, client, "");
    }
    world.wait_ms(10_000);
    get_from_server(&mut world, lane, client, "me k\r\n");
}

/// What was told of servers whose replies cannot be kept, or can again, since the last time.
fn told_of_keeping(world: &mut World) -> Vec<Option<String>> {
    let told = world.actions.drain(..).filter_map(|action| match action {
        Action::KeepingRefused { why, .. } => Some(why.map(String::from)),
        _ => None,
    });
    told.collect()
}

#[test]
fn a_server_that_refuses_what_keeping_takes_is_told_of_once() {
    const TRACKING: &str =
        "NOPERM User default has no permissions to run the 'client|tracking' command";
    const LIFE: &str = "NOPERM User default has no permissions to run the 'pttl' command";
    let mut it = played(&config("", ""));
    let refused = |world: &World| {
        let main = world.engine.listener_named("main").unwrap().number() as usize;
        world.metrics.pool_gauge(world.metrics.pool(main), PoolGauge::CacheRefused)
    };
    assert!(!it.world.received(it.tracker).is_empty());
    it.world.send(it.tracker, format!("-{TRACKING}\r\n"));
    assert_eq!(told_of_keeping(&mut it.world), [Some(TRACKING.to_owned())]);
    it.world.wait_ms(1000);
    assert_eq!(refused(&it.world), 1);
    // It is asked again now and then, and nobody is told of it again.
    let mut again = 0;
    for _ in 0..80 {
        it.world.wait_ms(1000);
        if it.world.connects_to(0) {
            let tracker = it.world.accept(0);
            it.world.expect(tracker, redis("HELLO 3"));
            it.world.send(tracker, PROTO);
            assert!(!it.world.received(tracker).is_empty());
            again += 1;
            match again {
                1 => it.world.send(tracker, format!("-{TRACKING}\r\n")),
                _ => {
                    it.world.send(tracker, "+OK\r\n");
                    it.tracker = tracker;
                    break;
                }
            }
            assert_eq!(told_of_keeping(&mut it.world), []);
        }
    }
    assert_eq!((again, told_of_keeping(&mut it.world)), (2, vec![None]));
    it.rest(1000);
    assert_eq!(refused(&it.world), 0);
    // The same of how long keys live.
    it.read("k", X);
    for _ in 0..2 {
        it.ask_to_keep("k");
        it.world.send(it.lane, format!("{X}-{LIFE}\r\n"));
        it.world.expect(it.client, X);
    }
    assert_eq!(told_of_keeping(&mut it.world), [Some(LIFE.to_owned())]);
    it.ask_to_keep("k");
    it.world.send(it.lane, format!("{X}-LOADING Redis is loading the dataset in memory\r\n"));
    it.world.expect(it.client, X);
    assert_eq!(told_of_keeping(&mut it.world), []);
    it.ask_to_keep("k");
    it.world.send(it.lane, format!("{X}:-1\r\n"));
    it.world.expect(it.client, X);
    assert_eq!(told_of_keeping(&mut it.world), [None]);
    it.hit("k", X);
}
