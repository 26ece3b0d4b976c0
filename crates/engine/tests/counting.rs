//! What is counted of requests, by class of commands and by prefix.

use crate::world::{World, all, pool, redis};
use cashew_engine::{Action, ConnId};
use cashew_metrics::{CommandCounter, PoolCounter};
use cashew_protocol::CommandClass;

/// Requests, errors, hits and misses.
type Counts = [u64; 4];

const COUNTERS: [CommandCounter; 4] = [
    CommandCounter::Requests,
    CommandCounter::Errors,
    CommandCounter::Hits,
    CommandCounter::Misses,
];

/// `a e i` are keys of the first of the four servers, `b f j` and `miss` of the second, `c g k` of the third,
/// `d h l` of the fourth.
fn four_servers(options: &str) -> (World, ConnId, [ConnId; 4]) {
    World::with_client(&pool(&format!("timeout: 400\npreconnect: true\n{options}"), 4))
}

fn by_class(world: &World, class: CommandClass) -> Counts {
    let pool = world.metrics.pool(0);
    COUNTERS.map(|counter| world.metrics.class_counter(pool, class, counter))
}

fn by_prefix(world: &World, prefix: usize) -> Counts {
    let pool = world.metrics.pool(0);
    COUNTERS.map(|counter| world.metrics.prefix_counter(pool, prefix, counter))
}

/// All that clients have sent and got is in some class.
#[track_caller]
fn assert_complete(world: &World) {
    let pool = world.metrics.pool(0);
    let sum = |counter| {
        CommandClass::ALL
            .map(|class| world.metrics.class_counter(pool, class, counter))
            .iter()
            .sum::<u64>()
    };
    let pool_counter = |counter| world.metrics.pool_counter(pool, counter);
    assert_eq!(sum(CommandCounter::Requests), pool_counter(PoolCounter::Responses));
    assert_eq!(sum(CommandCounter::Requests), world.metrics.pool_latency(pool).count());
    assert_eq!(sum(CommandCounter::RequestBytes), pool_counter(PoolCounter::ClientBytesReceived));
    assert_eq!(sum(CommandCounter::ReplyBytes), pool_counter(PoolCounter::ClientBytesSent));
}

#[test]
fn requests_of_redis_are_counted_by_class_whichever_way_they_go() {
    let (mut world, client, [a, b, ..]) = four_servers("redis: true\ncommand_stats: true");
    // Pipelined: some replies come before their turn.
    world.send(client, all(&["GET b", "GET a", "SET a 1", "GET a", "HGET a x", "GET a"]));
    world.send(a, "$-1\r\n+OK\r\n$1\r\n1\r\n-WRONGTYPE no hash\r\n$3\r\nabc\r\n");
    world.send(b, "$2\r\n$-\r\n");
    world
        .expect(client, "$2\r\n$-\r\n$-1\r\n+OK\r\n$1\r\n1\r\n-WRONGTYPE no hash\r\n$3\r\nabc\r\n");
    assert_eq!(by_class(&world, CommandClass::Get), [4, 0, 3, 1]);
    assert_eq!(by_class(&world, CommandClass::Store), [1, 0, 0, 0]);
    assert_eq!(by_class(&world, CommandClass::Hash), [1, 1, 0, 0]);
    // On one server, and on two.
    world.send(client, all(&["MGET a e", "MGET a b e miss"]));
    world.send(a, "*2\r\n$1\r\n1\r\n$-1\r\n*2\r\n$-1\r\n$5\r\n$-1\r\n\r\n");
    world.send(b, "*2\r\n$1\r\nx\r\n$-1\r\n");
    world.received(client);
    assert_eq!(by_class(&world, CommandClass::Get), [6, 0, 6, 4]);
    // What fails as a whole finds nothing.
    world.send(client, redis("MGET a b"));
    world.send(a, "*1\r\n$1\r\n1\r\n");
    world.send(b, "-LOADING\r\n");
    world.expect(client, "-LOADING\r\n");
    world.send(client, all(&["DEL a b", "INCR a", "NO such", "ECHO x"]));
    world.send(a, ":1\r\n:7\r\n");
    world.send(b, ":0\r\n");
    world.received(client);
    assert_eq!(by_class(&world, CommandClass::Get), [7, 1, 6, 4]);
    assert_eq!(by_class(&world, CommandClass::Delete), [1, 0, 0, 0]);
    assert_eq!(by_class(&world, CommandClass::Counter), [1, 0, 0, 0]);
    assert_eq!(by_class(&world, CommandClass::Other), [2, 1, 0, 0]);
    assert_complete(&world);
    world.assert_idle();
}

#[test]
fn what_is_passed_on_in_pieces_is_counted_as_well() {
    let (mut world, client, [a, ..]) = four_servers("redis: true\ncommand_stats: true");
    let value = "x".repeat(300_000);
    let reply = format!("*3\r\n${}\r\n{value}\r\n$-1\r\n$6\r\n$-1\r\n-\r\n", value.len());
    world.send(client, redis("MGET a e i"));
    for piece in reply.as_bytes().chunks(10_007) {
        world.send(a, piece);
    }
    assert_eq!(world.received(client).len(), reply.len());
    assert_eq!(by_class(&world, CommandClass::Get), [1, 0, 2, 1]);
    assert_complete(&world);
    world.assert_idle();
}

#[test]
fn requests_of_memcached_are_counted_by_class() {
    let (mut world, client, [a, b, ..]) = four_servers("command_stats: true");
    world.send(client, "get a\r\nget a\r\nset a 0 0 1\r\nx\r\nmg a v\r\nmg a v\r\nmd a\r\n");
    world.send(a, "END\r\nVALUE a 0 4\r\nEND\r\r\nEND\r\nSTORED\r\nEN\r\nVA 1\r\nx\r\nNF\r\n");
    world.received(client);
    assert_eq!(by_class(&world, CommandClass::Get), [4, 0, 2, 2]);
    assert_eq!(by_class(&world, CommandClass::Store), [1, 0, 0, 0]);
    assert_eq!(by_class(&world, CommandClass::Delete), [1, 0, 0, 0]);
    // A quiet one of which nobody hears is a miss.
    world.send(client, "mg a v q\r\nmg e v q\r\nmn\r\n");
    world.send(a, "EN\r\nVA 2\r\nxy\r\n");
    world.expect(client, "VA 2\r\nxy\r\nMN\r\n");
    assert_eq!(by_class(&world, CommandClass::Get), [6, 0, 3, 3]);
    // On one server; on two; and broken off.
    world.send(client, "gets a e i\r\n");
    world.send(a, "VALUE e 0 1 9\r\nx\r\nEND\r\n");
    world.received(client);
    assert_eq!(by_class(&world, CommandClass::Get), [7, 0, 4, 5]);
    world.send(client, "gets a e b\r\n");
    world.send(a, "VALUE e 0 1 9\r\nx\r\nEND\r\n");
    world.send(b, "VALUE b 0 1 9\r\nx\r\nEND\r\n");
    world.received(client);
    assert_eq!(by_class(&world, CommandClass::Get), [8, 0, 6, 6]);
    world.send(client, "get a\r\nincr a 1\r\ntouch a 1\r\n");
    world.send(a, "SERVER_ERROR out of memory\r\nCLIENT_ERROR no number\r\nTOUCHED\r\n");
    world.received(client);
    assert_eq!(by_class(&world, CommandClass::Get), [9, 1, 6, 6]);
    assert_eq!(by_class(&world, CommandClass::Counter), [1, 1, 0, 0]);
    assert_eq!(by_class(&world, CommandClass::Key), [1, 0, 0, 0]);
    assert_complete(&world);
    world.assert_idle();
}

#[test]
fn of_several_prefixes_the_longest_counts_and_of_several_keys_the_first() {
    let (mut world, client, [a, b, ..]) = four_servers("redis: true\nprefixes: [a, \"bb\", b]");
    world.send(client, all(&["GET a", "GET b", "SET c 1", "MGET a b"]));
    world.send(a, "$1\r\n1\r\n*1\r\n$1\r\n1\r\n");
    world.send(b, "-ERR\r\n*1\r\n$-1\r\n");
    world.received(client);
    let server = world.lanes[&2][0];
    world.send(server, "+OK\r\n");
    world.received(client);
    assert_eq!(by_prefix(&world, 0), [2, 0, 2, 1]);
    assert_eq!(by_prefix(&world, 1), [0, 0, 0, 0]);
    assert_eq!(by_prefix(&world, 2), [1, 1, 0, 0]);
    assert_complete(&world);
    world.assert_idle();
}

#[test]
fn requests_that_are_under_way_count_by_the_prefixes_of_the_new_configuration() {
    let (mut world, client, [a, b, ..]) = four_servers("redis: true\nprefixes: [a, b]");
    world.send(client, all(&["GET a", "GET b"]));
    let mut next = pool("redis: true\ntimeout: 400\npreconnect: true\nprefixes: [x, a]", 4);
    next.epoch = 2;
    world.prepare(&next);
    assert_eq!(world.epoch_answers(), [Action::Prepared { epoch: 2 }]);
    world.pause(0);
    world.commit(&next);
    world.send(a, "$1\r\n1\r\n");
    world.send(b, "$1\r\n1\r\n");
    world.expect(client, "$1\r\n1\r\n$1\r\n1\r\n");
    assert_eq!(by_prefix(&world, 0), [0, 0, 0, 0]);
    assert_eq!(by_prefix(&world, 1), [1, 0, 1, 0]);
    assert_eq!(by_class(&world, CommandClass::Get), [2, 0, 2, 0]);
    world.assert_idle();
}
