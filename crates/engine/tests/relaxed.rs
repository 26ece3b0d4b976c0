//! Servers that have said that they take longer for a while.

use std::sync::Arc;

use crate::world::{World, pool, redis};
use cashew_engine::ConnId;
use cashew_metrics::{Layout, Segments};

const LATE: &str = "-ERR Connection timed out\r\n";

struct Relaxed {
    world: World,
    segments: Arc<Segments>,
    lane: ConnId,
}

impl Relaxed {
    fn new(options: &str) -> Self {
        let snapshot = pool(&format!("redis: true\ntimeout: 400\npreconnect: true\n{options}"), 1);
        let segments = Arc::new(Segments::in_memory(&Layout::new(&snapshot), 1));
        let mut world = World::of_worker(&snapshot, &segments, 0, 1);
        let lane = world.accept(0);
        Self { world, segments, lane }
    }

    /// The server has said that it takes longer until so many milliseconds from now.
    fn say(&self, millis: u64) {
        let server = self.segments.layout().server(0, 0);
        let until = self.world.now.plus_millis(millis);
        self.segments.board_writer().relax(server, until.as_micros() / 1000);
    }
}

#[test]
fn a_reply_may_take_ten_seconds_while_its_server_says_so() {
    let mut it = Relaxed::new("server_maintenance: true");
    let client = it.world.client();
    it.say(60_000);
    it.world.send(client, redis("GET a"));
    it.world.wait_ms(9_900);
    it.world.expect(client, "");
    it.world.send(it.lane, "$1\r\n1\r\n");
    it.world.expect(client, "$1\r\n1\r\n");
    it.world.send(client, redis("GET a"));
    it.world.wait_ms(10_300);
    it.world.expect(client, LATE);
}

#[test]
fn what_is_on_its_way_when_it_is_said_gets_more_time_and_what_comes_after_the_end_does_not() {
    let mut it = Relaxed::new("server_maintenance: true");
    let client = it.world.client();
    it.world.send(client, redis("GET a"));
    it.world.wait_ms(300);
    it.say(2_000);
    it.world.wait_ms(2_300);
    it.world.expect(client, "");
    // It has its whole time from the end on.
    it.world.wait_ms(400);
    it.world.expect(client, LATE);
    let sign = it.world.accept(0);
    it.world.expect(sign, redis("PING"));
    it.world.send(sign, "+PONG\r\n");
    it.world.send(client, redis("GET a"));
    it.world.wait_ms(401);
    it.world.expect(client, LATE);
}

#[test]
fn it_ends_when_the_server_says_so() {
    let mut it = Relaxed::new("server_maintenance: true");
    let client = it.world.client();
    it.say(60_000);
    it.world.send(client, redis("GET a"));
    it.world.wait_ms(1_000);
    it.say(0);
    it.world.wait_ms(700);
    it.world.expect(client, LATE);
}

#[test]
fn what_nobody_asked_for_is_not_heeded() {
    let mut it = Relaxed::new("");
    let client = it.world.client();
    it.say(60_000);
    it.world.send(client, redis("GET a"));
    it.world.wait_ms(401);
    it.world.expect(client, LATE);
}
