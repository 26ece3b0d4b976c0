//! Large requests that go to their server while they arrive.

use crate::world::{World, pool, redis};
use cashew_engine::{Action, BackendId, CloseReason, ConnId, Failure, ServerId};
use cashew_metrics::{PoolCounter, ServerCounter, ServerGauge};

const MIB: usize = 1 << 20;
/// The most of an upload that may wait in the gateway: the limit, and one read more.
const AHEAD_MAX: usize = MIB + READ_SIZE;
/// With so much of it there, an upload begins.
const START: usize = 256 * 1024;
/// What a driver reads at once.
const READ_SIZE: usize = 64 * 1024;

fn world(options: &str, servers: usize) -> World {
    let mut world = World::new(&pool(&format!("{options}\npreconnect: true"), servers));
    let _: [Option<ConnId>; 4] = world.accept_all();
    world
}

/// A request that sets `key` to a value of that size.
fn set(key: &str, size: usize) -> Vec<u8> {
    let mut request = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${size}\r\n", key.len());
    request.extend((0..size).map(|at| char::from(b'a' + (at % 23) as u8)));
    request.push_str("\r\n");
    request.into_bytes()
}

fn memcached_set(words: &str, size: usize) -> Vec<u8> {
    [format!("{words}\r\n").as_bytes(), &vec![b'v'; size], b"\r\n"].concat()
}

/// Sends as much as the gateway takes; returns what it does not.
fn feed<'b>(world: &mut World, client: ConnId, mut bytes: &'b [u8]) -> &'b [u8] {
    while !bytes.is_empty() && !world.paused.contains(&client) {
        let (now, later) = bytes.split_at(READ_SIZE.min(bytes.len()));
        world.send(client, now);
        bytes = later;
    }
    bytes
}

fn server_counter(world: &World, counter: ServerCounter) -> u64 {
    world.metrics.server_counter(world.metrics.server(0, 0), counter)
}

fn pool_counter(world: &World, counter: PoolCounter) -> u64 {
    world.metrics.pool_counter(world.metrics.pool(0), counter)
}

/// Sends the first bytes; the server accepts the connection made for them.
#[track_caller]
fn begin(world: &mut World, client: ConnId, bytes: &[u8]) -> ConnId {
    world.send(client, bytes);
    world.accept(0)
}

#[test]
fn a_large_request_goes_on_while_it_arrives() {
    let mut world = world("redis: true", 1);
    let client = world.client();
    let request = set("key", 8 * MIB);
    let lane = begin(&mut world, client, &request[..START]);
    assert_eq!(feed(&mut world, client, &request[START..3 * MIB]), b"");
    let mut seen = world.received(lane);
    assert!(seen.len() > 2 * MIB, "{}", seen.len());
    assert_eq!(feed(&mut world, client, &request[3 * MIB..]), b"");
    seen.extend(world.received(lane));
    assert!(seen == request);
    world.send(lane, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.send(client, redis("GET a"));
    let shared = world.lanes[&0][0];
    world.expect(shared, redis("GET a"));
    world.send(shared, "$-1\r\n");
    world.expect(client, "$-1\r\n");
    world.assert_idle();
    let sent = request.len() + redis("GET a").len();
    assert_eq!(server_counter(&world, ServerCounter::RequestBytes), sent as u64);
    assert_eq!(server_counter(&world, ServerCounter::Requests), 2);
    assert_eq!(pool_counter(&world, PoolCounter::Requests), 2);
}

#[test]
fn a_server_that_reads_slowly_is_waited_for() {
    let mut world = world("redis: true\ntimeout: 400", 1);
    let client = world.client();
    let request = set("key", 8 * MIB);
    // Nothing is written before the connection stands.
    let mut rest = feed(&mut world, client, &request);
    assert!(request.len() - rest.len() <= AHEAD_MAX);
    let lane = world.accept(0);
    world.stuck.push(lane);
    rest = feed(&mut world, client, rest);
    let mut seen = world.received(lane);
    while !rest.is_empty() {
        let before = rest.len();
        let waits = request.len() - before - seen.len();
        assert!(waits <= AHEAD_MAX, "{waits} bytes wait");
        world.write_some(lane, (300 * 1024).min(waits));
        seen.extend(world.received(lane));
        // Longer in all than the timeout, but never without progress.
        world.wait_ms(300);
        rest = feed(&mut world, client, rest);
    }
    world.stuck.clear();
    world.write(lane);
    seen.extend(world.received(lane));
    assert!(seen == request);
    world.send(lane, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.assert_idle();
    assert!(world.closed.is_empty());
}

#[test]
fn a_server_that_reads_nothing_times_out() {
    let mut world = world("redis: true\ntimeout: 400", 1);
    let client = world.client();
    let request = set("key", 4 * MIB);
    let lane = begin(&mut world, client, &request[..START]);
    world.stuck.push(lane);
    let rest = feed(&mut world, client, &request[START..]);
    assert!(!rest.is_empty());
    world.wait_ms(450);
    world.expect(client, "-ERR Connection timed out\r\n");
    assert!(world.closed.contains(&lane));
    // The rest goes nowhere, and the connection goes on.
    assert_eq!(feed(&mut world, client, rest), b"");
    world.send(client, "PING\r\n");
    world.expect(client, "+PONG\r\n");
    world.assert_idle();
}

#[test]
fn a_client_that_sends_slowly_is_waited_for() {
    let mut world = world("redis: true\ntimeout: 400", 1);
    let client = world.client();
    let request = set("key", 2 * MIB);
    let lane = begin(&mut world, client, &request[..START]);
    for piece in request[START..].chunks(200_000) {
        world.wait_ms(2000);
        world.send(client, piece);
    }
    assert!(world.received(lane) == request);
    world.wait_ms(350);
    world.send(lane, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    world.assert_idle();
}

#[test]
fn nothing_is_executed_when_the_client_vanishes() {
    for is_gone in [true, false] {
        let mut world = world("redis: true", 1);
        let client = world.client();
        let request = set("key", 4 * MIB);
        let lane = begin(&mut world, client, &request[..START]);
        feed(&mut world, client, &request[START..2 * MIB]);
        assert!(world.received(lane).len() < request.len());
        match is_gone {
            true => world.close(client, CloseReason::Reset),
            false => world.read_closed(client),
        }
        assert!(world.closed.contains(&lane));
        world.assert_idle();
        let failing = crate::world::is_failure;
        assert!(!world.actions.iter().any(failing), "it is not the server's fault");
        let connections = world.metrics.server(0, 0);
        assert_eq!(world.metrics.server_gauge(connections, ServerGauge::ServerConnections), 1);
        assert_eq!(world.metrics.server_gauge(connections, ServerGauge::InQueueBytes), 0);
        // The lane is used again.
        let other = world.client();
        let again = begin(&mut world, other, &request[..START]);
        feed(&mut world, other, &request[START..]);
        assert!(world.received(again) == request);
    }
}

#[test]
fn a_server_that_dies_is_told_about_once() {
    for followed in [false, true] {
        let mut world = world("redis: true", 1);
        let client = world.client();
        let request = set("key", 4 * MIB);
        let lane = begin(&mut world, client, &request[..START]);
        feed(&mut world, client, &request[START..2 * MIB]);
        world.close(lane, CloseReason::Reset);
        world.expect(client, "-ERR Connection reset by peer\r\n");
        let mut rest = request[2 * MIB..].to_vec();
        if followed {
            rest.extend_from_slice(b"PING\r\n");
        }
        assert_eq!(feed(&mut world, client, &rest), b"");
        if !followed {
            world.send(client, "PING\r\n");
        }
        world.expect(client, "+PONG\r\n");
        world.assert_idle();
        assert!(!world.closed.contains(&client));
    }
}

#[test]
fn a_client_that_was_not_read_is_read_when_the_server_dies() {
    let mut world = world("redis: true", 1);
    let client = world.client();
    let request = set("key", 8 * MIB);
    let lane = begin(&mut world, client, &request[..START]);
    world.stuck.push(lane);
    let rest = feed(&mut world, client, &request[START..]);
    assert!(!rest.is_empty());
    world.close(lane, CloseReason::Reset);
    world.expect(client, "-ERR Connection reset by peer\r\n");
    assert_eq!(feed(&mut world, client, rest), b"");
    world.assert_idle();
}

#[test]
fn a_server_that_cannot_be_reached_fails_it_at_once() {
    let mut world = world("redis: true", 1);
    let client = world.client();
    let request = set("key", 2 * MIB);
    world.send(client, &request[..START]);
    world.refuse(0);
    world.expect(client, "-ERR Connection refused\r\n");
    assert_eq!(feed(&mut world, client, &request[START..]), b"");
    // A lane that failed is not tried again at once, and does not try by itself.
    world.wait_ms(5000);
    assert!(!world.connects_to(0));
    world.send(client, "PING\r\n");
    world.expect(client, "+PONG\r\n");
    world.assert_idle();
}

#[test]
fn an_early_refusal_is_passed_on_and_the_rest_goes_to_its_end() {
    let mut world = world("", 1);
    let client = world.client();
    let request = memcached_set("set key 0 0 4194304", 4 * MIB);
    let lane = begin(&mut world, client, &request[..START]);
    feed(&mut world, client, &request[START..MIB]);
    world.send(lane, "SERVER_ERROR object too large for cache\r\n");
    world.expect(client, "SERVER_ERROR object too large for cache\r\n");
    assert_eq!(feed(&mut world, client, &request[MIB..]), b"");
    assert!(world.received(lane) == request);
    world.send(client, "get a\r\n");
    let shared = world.lanes[&0][0];
    world.send(shared, "END\r\n");
    world.expect(client, "END\r\n");
    world.assert_idle();
    // The lane is as good as before.
    feed(&mut world, client, &request);
    assert!(world.received(lane) == request);
    world.send(lane, "STORED\r\n");
    world.expect(client, "STORED\r\n");
    assert!(world.closed.is_empty());
}

#[test]
fn a_client_that_leaves_after_an_early_refusal_gets_it() {
    let mut world = world("", 1);
    let client = world.client();
    let request = memcached_set("set key 0 0 4194304", 4 * MIB);
    let lane = begin(&mut world, client, &request[..START]);
    feed(&mut world, client, &request[START..MIB]);
    world.stuck.push(client);
    world.send(lane, "SERVER_ERROR object too large for cache\r\n");
    world.read_closed(client);
    assert!(!world.closed.contains(&client));
    world.stuck.clear();
    world.write(client);
    world.expect(client, "SERVER_ERROR object too large for cache\r\n");
    world.tick();
    assert!(world.closed.contains(&client) && world.closed.contains(&lane));
    world.assert_idle();
}

#[test]
fn noreply_is_cut_out() {
    let mut world = world("", 1);
    let client = world.client();
    let request = memcached_set("set key 0 0 1048576 noreply", MIB);
    let lane = begin(&mut world, client, &request[..START]);
    feed(&mut world, client, &request[START..]);
    assert!(world.received(lane) == memcached_set("set key 0 0 1048576", MIB));
    world.send(client, "version\r\n");
    world.send(lane, "STORED\r\n");
    let shared = world.lanes[&0][0];
    world.send(shared, "VERSION 1\r\n");
    world.expect(client, "VERSION 1\r\n");
    world.assert_idle();
}

#[test]
fn a_bad_chunk_is_never_whole() {
    for (cr, lf) in [(b'x', b'\n'), (b'\r', b'x')] {
        let mut world = world("", 1);
        let client = world.client();
        let mut request = memcached_set("set key 0 0 1048576", MIB);
        let len = request.len();
        (request[len - 2], request[len - 1]) = (cr, lf);
        request.extend_from_slice(b"get a\r\n");
        let lane = begin(&mut world, client, &request[..START]);
        feed(&mut world, client, &request[START..]);
        world.expect(client, "CLIENT_ERROR bad data chunk\r\n");
        assert!(world.received(lane).len() < len && world.closed.contains(&lane));
        let shared = world.lanes[&0][0];
        world.expect(shared, "get a\r\n");
    }
}

#[test]
fn order_is_kept() {
    let mut world = world("redis: true", 1);
    let client = world.client();
    let shared = world.lanes[&0][0];
    let request = set("key", MIB);
    let pipeline = [redis("GET a").as_bytes(), &request, redis("GET b").as_bytes()].concat();
    let rest = feed(&mut world, client, &pipeline);
    world.expect(shared, redis("GET a"));
    assert!(!world.connects_to(0), "it waits for the reply");
    world.send(shared, "$-1\r\n");
    let lane = world.accept(0);
    let rest = feed(&mut world, client, rest);
    assert!(rest.is_empty() && world.received(lane) == request);
    world.expect(shared, "");
    world.send(lane, "+OK\r\n");
    world.expect(shared, redis("GET b"));
    world.send(shared, "$-1\r\n");
    world.expect(client, "$-1\r\n+OK\r\n$-1\r\n");
    world.assert_idle();
}

/// A request that is too large to be kept here while no lane is free.
fn huge() -> Vec<u8> {
    set("key", 17 * MIB)
}

#[test]
fn no_more_than_four_at_a_time() {
    let mut world = world("redis: true", 1);
    let request = huge();
    let clients: [ConnId; 6] = std::array::from_fn(|_| world.client());
    for client in clients {
        world.send(client, &request[..START]);
    }
    let lanes: [ConnId; 4] = std::array::from_fn(|_| world.accept(0));
    assert!(!world.connects_to(0));
    assert_eq!(world.paused, clients[4..]);
    // One is done: the next begins.
    feed(&mut world, clients[0], &request[START..]);
    world.send(lanes[0], "+OK\r\n");
    assert!(!world.paused.contains(&clients[4]) && world.paused.contains(&clients[5]));
    // One is gone: its connection goes, and the last one begins.
    world.close(clients[1], CloseReason::Eof);
    assert!(world.paused.is_empty());
    let last = world.accept(0);
    feed(&mut world, clients[5], &request[START..]);
    assert!(world.received(last) == request);
    world.send(last, "+OK\r\n");
    world.expect(clients[5], "+OK\r\n");
    assert_eq!(pool_counter(&world, PoolCounter::LargeWaits), 1);
    let told = |action: &&Action| matches!(action, Action::LargeWaits { backend: pool, server } if (pool.number(), server.number()) == (0, 0));
    assert_eq!(world.actions.iter().filter(told).count(), 1);
}

#[test]
fn who_finds_no_lane_is_collected_if_he_is_not_huge() {
    for (options, request, reply) in [
        ("redis: true", set("key", 2 * MIB), "+OK\r\n"),
        ("", memcached_set("set key 0 0 2097152", 2 * MIB), "STORED\r\n"),
    ] {
        let mut world = world(options, 1);
        let clients: [ConnId; 4] = std::array::from_fn(|_| world.client());
        for client in clients {
            begin(&mut world, client, &request[..START]);
        }
        let other = world.client();
        assert_eq!(feed(&mut world, other, &request), b"", "it is read all the time");
        let bulk = world.accept(0);
        assert!(world.received(bulk) == request);
        world.send(bulk, reply);
        world.expect(other, reply);
        assert_eq!(pool_counter(&world, PoolCounter::LargeWaits), 1);
    }
}

#[test]
fn who_sends_little_has_no_lane() {
    let mut world = world("redis: true", 1);
    let request = huge();
    for _ in 0..40 {
        let client = world.client();
        world.send(client, &request[..1000]);
        world.send(client, &request[1000..1001]);
    }
    assert!(!world.connects_to(0));
    let other = world.client();
    let lane = begin(&mut world, other, &request[..START]);
    feed(&mut world, other, &request[START..]);
    assert!(world.received(lane) == request);
}

/// Four clients have begun, and from then on send so many bytes each second, until `millis` are over.
fn slow_ones(world: &mut World, request: &[u8], bytes: usize, millis: u64) -> [ConnId; 4] {
    let clients: [ConnId; 4] = std::array::from_fn(|_| world.client());
    for &client in &clients {
        begin(world, client, &request[..START]);
    }
    let mut at = START;
    for _ in 0..millis / 1000 {
        for &client in &clients {
            world.send(client, &request[at..at + bytes]);
        }
        at += bytes;
        world.wait_ms(1000);
    }
    clients
}

const TOO_SLOW: &str = "-ERR Large request was given up, since it came more slowly than \
                        transfer_rate_min or transfer_stall_timeout allow\r\n";

#[test]
fn who_is_slow_gives_way_at_once_to_who_waits() {
    let mut world = world("redis: true\ntransfer_rate_min: 10kb", 1);
    let request = huge();
    let clients = slow_ones(&mut world, &request, 9000, 4000);
    assert!(world.paused.is_empty() && world.closed.is_empty(), "nobody waits");
    let waiting = world.client();
    world.send(waiting, &request[..START]);
    assert!(!world.paused.contains(&waiting));
    let told: Vec<&ConnId> =
        clients.iter().filter(|&&client| world.received(client) == TOO_SLOW.as_bytes()).collect();
    assert_eq!(told.len(), 4, "all of them are");
    world.accept(0);
    assert_eq!(pool_counter(&world, PoolCounter::SlowClients), 4);
    let said = |action: &&Action| matches!(action, Action::SlowClient { backend: pool, server, .. } if (pool.number(), server.number()) == (0, 0));
    assert_eq!(world.actions.iter().filter(said).count(), 4);
    // What they go on to send is dropped, and they are served as ever.
    feed(&mut world, clients[0], &request[START + 4 * 9000..]);
    world.send(clients[0], "PING\r\n");
    world.expect(clients[0], "+PONG\r\n");
}

#[test]
fn who_is_fast_enough_keeps_its_lane_and_who_waits_goes_on_waiting() {
    let mut world = world("redis: true\ntransfer_rate_min: 10kb", 1);
    let request = huge();
    let clients = slow_ones(&mut world, &request, 11_000, 4000);
    let waiting = world.client();
    world.send(waiting, &request[..START]);
    assert_eq!(world.paused, [waiting]);
    assert!(world.closed.is_empty());
    // From here on they stall.
    world.wait_ms(5000);
    assert!(world.paused.is_empty());
    assert!(clients.iter().any(|&client| world.received(client) == TOO_SLOW.as_bytes()));
}

#[test]
fn a_slow_server_is_not_its_clients_fault() {
    let mut world = world("redis: true\ntimeout: 60000", 1);
    let request = huge();
    let clients: [ConnId; 4] = std::array::from_fn(|_| world.client());
    for client in clients {
        let lane = begin(&mut world, client, &request[..START]);
        world.stuck.push(lane);
        assert!(!feed(&mut world, client, &request[START..]).is_empty());
    }
    let waiting = world.client();
    world.send(waiting, &request[..START]);
    world.wait_ms(20_000);
    assert!(world.paused.contains(&waiting) && world.closed.is_empty());
    assert_eq!(pool_counter(&world, PoolCounter::SlowClients), 0);
}

#[test]
fn who_sends_nothing_for_long_is_not_waited_for() {
    let mut world = world("redis: true\ntransfer_stall_timeout: 20000", 1);
    let client = world.client();
    let request = huge();
    let lane = begin(&mut world, client, &request[..START]);
    world.wait_ms(19_000);
    assert!(world.closed.is_empty());
    world.wait_ms(2000);
    assert_eq!(world.closed, [lane]);
    world.expect(client, TOO_SLOW);
}

#[test]
fn idle_connections_are_closed() {
    let mut world = world("redis: true", 1);
    let client = world.client();
    let request = set("key", MIB);
    let lane = begin(&mut world, client, &request[..START]);
    feed(&mut world, client, &request[START..]);
    world.send(lane, "+OK\r\n");
    world.wait_ms(8000);
    assert!(world.closed.is_empty());
    world.wait_ms(5000);
    assert_eq!(world.closed, [lane]);
    world.wait_ms(5000);
    assert!(!world.connects_to(0), "preconnect is for shared lanes");
    let again = begin(&mut world, client, &request[..START]);
    feed(&mut world, client, &request[START..]);
    assert!(world.received(again) == request);
}

#[test]
fn limits_hold_for_what_comes_later() {
    let mut world = world("redis: true\nrequest_size_max: 3mb", 1);
    let client = world.client();
    let big = "v".repeat(2 * MIB);
    let request =
        format!("*4\r\n$5\r\nRPUSH\r\n$1\r\nk\r\n${0}\r\n{big}\r\n${0}\r\n{big}\r\n", big.len());
    let lane = begin(&mut world, client, &request.as_bytes()[..START]);
    feed(&mut world, client, &request.as_bytes()[START..]);
    world.expect(client, "-ERR Protocol error: request too large\r\n");
    assert!(world.closed.contains(&lane) && world.closed.contains(&client));
    assert_eq!(pool_counter(&world, PoolCounter::ClientErr), 1);
    world.assert_idle();
}

#[test]
fn many_arguments_are_passed_on_too() {
    let mut world = world("redis: true", 1);
    let client = world.client();
    let request = redis(&format!("RPUSH key{}", " element".repeat(200_000))).into_bytes();
    let lane = begin(&mut world, client, &request[..START]);
    for piece in request[START..].chunks(997) {
        world.send(client, piece);
    }
    assert!(world.received(lane) == request);
    world.send(lane, ":200000\r\n");
    world.expect(client, ":200000\r\n");
}

#[test]
fn what_one_server_alone_cannot_be_told_by_is_collected() {
    let mut world = world("redis: true", 1);
    let client = world.client();
    let big = "v".repeat(2 * MIB);
    let request = format!("*3\r\n$4\r\nMSET\r\n$1\r\nk\r\n${}\r\n{big}\r\n", big.len());
    feed(&mut world, client, &request.as_bytes()[..MIB]);
    assert!(!world.connects_to(0));
    feed(&mut world, client, &request.as_bytes()[MIB..]);
    let bulk = world.accept(0);
    assert!(world.received(bulk) == request.as_bytes());
}

#[test]
fn strangers_are_told_so_and_not_listened_to() {
    let mut world = World::new(&pool("redis: true\nredis_auth: secret", 1));
    let client = world.client();
    let request = set("key", 4 * MIB);
    assert_eq!(feed(&mut world, client, &request), b"");
    world.expect(client, "-NOAUTH Authentication required.\r\n");
    assert!(!world.connects_to(0));
    world.send(client, redis("AUTH secret"));
    world.expect(client, "+OK\r\n");
}

#[test]
fn subscribers_are_refused_what_they_are_refused_in_small() {
    let mut world = world("redis: true", 1);
    let client = world.client();
    world.send(client, redis("SUBSCRIBE news"));
    let pushes = world.accept(0);
    world.send(pushes, "*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
    world.received(client);
    assert_eq!(feed(&mut world, client, &set("key", 2 * MIB)), b"");
    assert!(!world.connects_to(0));
    world.expect(
        client,
        "-ERR Can't execute 'set': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET \
         are allowed in this context\r\n",
    );
    world.send(client, redis("PING"));
    world.expect(client, "*2\r\n$4\r\npong\r\n$0\r\n\r\n");
    // In RESP3 they may ask what they like.
    let client = world.client();
    world.send(client, redis("HELLO 3") + &redis("SUBSCRIBE news"));
    world.received(client);
    let request = set("key", 2 * MIB);
    let lane = begin(&mut world, client, &request[..START]);
    world.expect(lane, redis("HELLO 3"));
}

#[test]
fn monitors_are_refused_what_they_are_refused_in_small() {
    let mut world = world("redis: true", 1);
    let client = world.client();
    world.send(client, redis("MONITOR"));
    world.expect(client, "+OK\r\n");
    assert_eq!(feed(&mut world, client, &set("key", 2 * MIB)), b"");
    assert!(!world.connects_to(0));
    world.expect(client, "-ERR Replica can't interact with the keyspace\r\n");
    world.send(client, redis("RESET"));
    world.wait_ms(20);
    world.expect(client, "+RESET\r\n");
}

#[test]
fn a_new_connection_introduces_itself() {
    let mut world = World::new(&pool("redis: true\nredis_auth: secret\nredis_db: 3", 1));
    let client = world.client();
    world.send(client, redis("AUTH secret"));
    world.expect(client, "+OK\r\n");
    let request = set("key", 2 * MIB);
    let lane = begin(&mut world, client, &request[..START]);
    world.expect(lane, [redis("AUTH secret"), redis("SELECT 3")].concat());
    let rest = feed(&mut world, client, &request[START..]);
    world.expect(lane, "");
    world.send(lane, "+OK\r\n+OK\r\n");
    feed(&mut world, client, rest);
    assert!(world.received(lane) == request);
}

#[test]
fn a_drain_lets_it_come_to_its_end() {
    let mut world = world("redis: true", 1);
    let client = world.client();
    let request = set("key", 2 * MIB);
    let lane = begin(&mut world, client, &request[..START]);
    world.engine.handle_drain(world.now);
    world.tick();
    assert!(!world.engine.is_drained());
    feed(&mut world, client, &request[START..]);
    world.send(client, "PING\r\n");
    assert!(world.received(lane) == request);
    world.send(lane, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    assert!(world.engine.is_drained() && world.closed.contains(&client));
}

#[test]
fn a_ring_change_lets_it_come_to_its_end_and_keeps_the_next_one() {
    let mut world = world("redis: true", 2);
    let (client, other) = (world.client(), world.client());
    let request = set("key", 2 * MIB);
    world.send(client, &request[..START]);
    let server = u32::from(world.connects_to(1));
    let lane = world.accept(server);
    world.engine.handle_hold(BackendId::new(0), 1, 0, world.now);
    world.send(other, &request[..START]);
    assert!(!world.connects_to(server), "the pool is held");
    feed(&mut world, client, &request[START..]);
    assert!(world.received(lane) == request);
    world.send(lane, "+OK\r\n");
    world.expect(client, "+OK\r\n");
    let live = [server == 1, server == 0];
    world.engine.handle_release(BackendId::new(0), 1, live.to_vec().into(), world.now, 0);
    world.tick();
    let lane = world.accept(1 - server);
    feed(&mut world, other, &request[START..]);
    assert!(world.received(lane) == request);
}

#[test]
fn a_failure_in_the_middle_counts_for_ejection() {
    let options = "redis: true\nauto_eject_hosts: true\nserver_failure_limit: 1";
    let mut world = world(options, 2);
    let client = world.client();
    let request = set("key", 2 * MIB);
    world.send(client, &request[..START]);
    let server = u32::from(world.connects_to(1));
    let lane = world.accept(server);
    feed(&mut world, client, &request[START..MIB]);
    world.close(lane, CloseReason::Reset);
    let eject = Action::Eject {
        backend: BackendId::new(0),
        server: ServerId::new(server),
        why: Failure::Reset,
    };
    assert!(world.actions.contains(&eject));
}
