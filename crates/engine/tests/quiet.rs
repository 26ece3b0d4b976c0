//! After warm-up requests cost no allocation, and what a peak took is given back.
//!
//! One test, since the allocator counts for the whole process.

mod world;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

use cashew_engine::{Admission, CloseReason, ConnId, ListenerId};
use world::{World, pool, redis};

struct Counting;

/// Whether allocations are counted.
static WATCHING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);

fn count(bytes: i64) {
    LIVE_BYTES.fetch_add(bytes, Relaxed);
    if WATCHING.load(Relaxed) {
        ALLOCATIONS.fetch_add(1, Relaxed);
        if let Some(limit) = TRACE.get()
            && ALLOCATIONS.load(Relaxed) <= *limit
        {
            WATCHING.store(false, Relaxed);
            eprintln!("{}", std::backtrace::Backtrace::force_capture());
            WATCHING.store(true, Relaxed);
        }
    }
}

/// With CASHEW_TRACE_ALLOCATIONS=n, the first n that should not be are shown.
static TRACE: std::sync::OnceLock<u64> = std::sync::OnceLock::new();

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as i64, Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Long enough for several rounds of housekeeping.
const ROUNDS: u32 = 40;

/// What clients send and servers answer, again and again.
struct Exchange {
    /// By client, in pieces.
    requests: Vec<Vec<Vec<u8>>>,
    /// By server, in pieces.
    replies: Vec<Vec<Vec<u8>>>,
}

/// Cuts `bytes` in pieces of `size`.
fn pieces(bytes: impl AsRef<[u8]>, size: usize) -> Vec<Vec<u8>> {
    bytes.as_ref().chunks(size).map(<[u8]>::to_vec).collect()
}

/// Writes what the engine has to whoever it is for; returns the bytes.
fn flush(world: &mut World) -> u64 {
    let mut written = 0;
    loop {
        world.engine.settle(world.now);
        while world.engine.poll_action().is_some() {}
        let mut is_idle = true;
        while let Some(conn) = world.engine.poll_dirty() {
            is_idle = false;
            loop {
                let mut slices = [IoSlice::new(&[]); 8];
                let count = world.engine.output(conn, &mut slices);
                let bytes = slices[..count].iter().map(|slice| slice.len() as u64).sum();
                if bytes == 0 {
                    break;
                }
                written += bytes;
                world.engine.handle_sent(conn, bytes, world.now);
            }
        }
        if is_idle && world.engine.poll_timeout() > world.now {
            return written;
        }
        world.engine.handle_timeout(world.now);
    }
}

fn round(world: &mut World, clients: &[ConnId], lanes: &[ConnId], exchange: &Exchange) -> u64 {
    world.now = world.now.plus_millis(250);
    let longest = exchange.requests.iter().map(Vec::len).max().unwrap_or(0);
    let mut written = 0;
    // Pieces of all clients come in turns, as they do from a network.
    for at in 0..longest {
        for (&client, pieces) in clients.iter().zip(&exchange.requests) {
            if let Some(piece) = pieces.get(at) {
                world.engine.handle_received(client, piece, world.now);
            }
        }
        written += flush(world);
    }
    for (&lane, pieces) in lanes.iter().zip(&exchange.replies) {
        for piece in pieces {
            world.engine.handle_received(lane, piece, world.now);
        }
        written += flush(world);
    }
    written
}

#[track_caller]
fn assert_quiet(name: &str, options: &str, exchange: &Exchange) {
    let servers = exchange.replies.len();
    let (mut world, lanes): (World, [Option<ConnId>; 4]) = {
        let mut world = World::new(&pool(&format!("preconnect: true\n{options}"), servers));
        let lanes = world.accept_all();
        (world, lanes)
    };
    let lanes: Vec<ConnId> = lanes.into_iter().flatten().collect();
    let clients: Vec<ConnId> = exchange.requests.iter().map(|_| world.client()).collect();
    if !options.contains("redis: true") {
        // From its first bytes on it is known which protocol a client speaks.
        clients.iter().for_each(|&client| world.send(client, "what\r\n"));
    }
    let mut written = 0;
    for _ in 0..ROUNDS {
        written = round(&mut world, &clients, &lanes, exchange);
    }
    assert_eq!(world.engine.requests_pending(), 0, "{name}");
    ALLOCATIONS.store(0, Relaxed);
    WATCHING.store(true, Relaxed);
    for _ in 0..ROUNDS {
        assert_eq!(round(&mut world, &clients, &lanes, exchange), written);
    }
    WATCHING.store(false, Relaxed);
    world.assert_idle();
    assert!(
        world.engine.clients_of(ListenerId::new(0)) == clients.len() as u64,
        "{name}: a client was closed"
    );
    assert_eq!(ALLOCATIONS.load(Relaxed), 0, "allocations of {name}");
}

fn requests_are_quiet() {
    let redis_options = "redis: true\ntimeout: 400";
    let get_set = redis("GET a") + &redis("SET e 0123456789") + &redis("INCR i");
    let get_set_replies = "$3\r\nabc\r\n+OK\r\n:1\r\n";
    for pipeline in [1, 16, 250] {
        assert_quiet(
            &format!("GET and SET, pipelines of {pipeline}"),
            redis_options,
            &Exchange {
                requests: vec![pieces(get_set.repeat(pipeline), 60_000); 5],
                replies: vec![pieces(get_set_replies.repeat(pipeline).repeat(5), 60_000)],
            },
        );
    }
    assert_quiet(
        "GET and SET in pieces",
        redis_options,
        &Exchange {
            requests: (1..20).map(|size| pieces(get_set.repeat(3), size)).collect(),
            replies: vec![pieces(get_set_replies.repeat(3).repeat(19), 7)],
        },
    );
    let value = "v".repeat(3000);
    assert_quiet(
        "values of some kilobytes",
        redis_options,
        &Exchange {
            requests: vec![pieces(redis(&format!("SET a {value}")) + &redis("GET a"), 2000); 40],
            replies: vec![pieces(format!("+OK\r\n$3000\r\n{value}\r\n").repeat(40), 2000)],
        },
    );
    let keys = "a b c d e f g h i j k l";
    let split =
        redis(&format!("MGET {keys}")) + &redis("MSET a 1 b 2") + &redis(&format!("DEL {keys}"));
    let values = "*3\r\n$1\r\n1\r\n$-1\r\n$1\r\n3\r\n";
    let (with_set, without) = (format!("{values}+OK\r\n:3\r\n"), format!("{values}:3\r\n"));
    for (clients, pipeline) in [(1, 1), (100, 1), (10, 10)] {
        let replies = [&with_set, &with_set, &without, &without]
            .map(|replies| pieces(replies.repeat(clients * pipeline), 60_000));
        assert_quiet(
            &format!("MGET, MSET and DEL of {clients} clients over servers, {pipeline} deep"),
            redis_options,
            &Exchange {
                requests: vec![pieces(split.repeat(pipeline), 60_000); clients],
                replies: replies.to_vec(),
            },
        );
    }
    assert_quiet(
        "what is answered here",
        redis_options,
        &Exchange {
            requests: vec![
                pieces(
                    (redis("PING") + &redis("ECHO x") + &redis("NOSUCH a")).repeat(9),
                    50
                );
                5
            ],
            replies: vec![vec![]],
        },
    );
    let memcached = "set e 0 0 3\r\nabc\r\nget a\r\nset e 0 0 3 noreply\r\nabc\r\ngets b\r\nincr i 1\r\n\
                     gat 9 a b c d miss\r\n";
    for (clients, pipeline) in [(1, 1), (10, 20)] {
        let replies = [
            "STORED\r\nEND\r\nSTORED\r\n5\r\nVALUE a 0 1\r\n1\r\nEND\r\n",
            "VALUE b 0 1 7\r\n1\r\nEND\r\nEND\r\n",
            "VALUE c 0 1\r\n1\r\nEND\r\n",
            "END\r\n",
        ]
        .map(|replies| pieces(replies.repeat(clients * pipeline), 60_000));
        assert_quiet(
            &format!("memcached's get and set of {clients} clients, {pipeline} deep"),
            "timeout: 400",
            &Exchange {
                requests: vec![pieces(memcached.repeat(pipeline), 60_000); clients],
                replies: replies.to_vec(),
            },
        );
    }
}

/// All that a server has of them leaves as one get; of two keys one is there.
fn joined_gets_are_quiet() {
    for (requests, of_second) in [("get a\r\nget e\r\n", ""), ("get b e a\r\n", "END\r\n")] {
        for (clients, pipeline) in [(1, 20), (10, 1), (10, 20)] {
            let values = "VALUE a 0 1\r\n1\r\n".repeat(clients * pipeline);
            let replies = [values + "END\r\n", of_second.to_owned(), String::new(), String::new()];
            assert_quiet(
                &format!("{requests:?} of {clients} clients, {pipeline} deep"),
                "timeout: 400",
                &Exchange {
                    requests: vec![pieces(requests.repeat(pipeline), 60_000); clients],
                    replies: replies.map(|replies| pieces(replies, 60_000)).to_vec(),
                },
            );
        }
    }
}

/// Requests of one kind, so that the order in which clients finish theirs does not matter.
fn requests_in_pieces_are_quiet() {
    let gats = "gat 9 a b\r\n".repeat(5);
    let sets = "set a 0 0 3\r\nabc\r\nset a 0 0 3 noreply\r\nabc\r\n".repeat(5);
    let mgets = redis("MGET a b").repeat(5);
    let hits = ["VALUE a 0 1\r\n1\r\nEND\r\n", "END\r\n"];
    let elements = ["*1\r\n$1\r\n1\r\n", "*1\r\n$-1\r\n"];
    for (name, options, requests, replies) in [
        ("gat", "timeout: 400", gats, hits.map(|reply| reply.repeat(50))),
        ("set", "timeout: 400", sets, ["STORED\r\n".repeat(100), String::new()]),
        ("MGET", "redis: true\ntimeout: 400", mgets, elements.map(|reply| reply.repeat(50))),
    ] {
        assert_quiet(
            &format!("{name} in pieces"),
            options,
            &Exchange {
                requests: (1..=10).map(|size| pieces(&requests, size)).collect(),
                replies: replies.map(|replies| pieces(replies, 7)).to_vec(),
            },
        );
    }
}

fn live_bytes() -> i64 {
    LIVE_BYTES.load(Relaxed)
}

/// Long enough for whatever a peak left to be given back.
fn rest(world: &mut World) {
    for _ in 0..60 {
        world.now = world.now.plus_millis(1000);
        flush(world);
    }
}

fn peaks_leave_nothing_behind() {
    let (mut world, [lane]): (World, [ConnId; 1]) =
        World::connected(&pool("redis: true\npreconnect: true", 1));
    rest(&mut world);
    let before = live_bytes();
    let value = "v".repeat(1000);
    let set = redis(&format!("SET a {value}")) + &redis("MGET a e i") + "*2\r\n$3\r\nGET\r\n";
    let mut clients = Vec::new();
    for _ in 0..5000 {
        let client =
            world.engine.handle_accepted(ListenerId::new(0), Admission::Welcome, 1, world.now);
        world.engine.handle_received(client, set.as_bytes(), world.now);
        clients.push(client);
    }
    flush(&mut world);
    assert!(live_bytes() > before + 1_000_000);
    for _ in &clients {
        world.engine.handle_received(lane, b"+OK\r\n*3\r\n$-1\r\n$-1\r\n$-1\r\n", world.now);
    }
    flush(&mut world);
    for client in clients.drain(..) {
        world.engine.handle_received(client, b"$1\r\na\r\n", world.now);
    }
    flush(&mut world);
    for _ in 0..5000 {
        world.engine.handle_received(lane, b"$-1\r\n", world.now);
    }
    flush(&mut world);
    world.assert_idle();
    rest(&mut world);
    let kept = live_bytes() - before;
    assert!(kept < 3_000_000, "{kept} bytes are kept for 5000 idle clients");
}

fn a_client_that_left_keeps_no_reply() {
    let (mut world, [a, b]): (World, [ConnId; 2]) =
        World::connected(&pool("redis: true\npreconnect: true", 2));
    let client = world.client();
    world.engine.handle_received(client, redis("MGET a b").as_bytes(), world.now);
    flush(&mut world);
    world.engine.handle_closed(client, CloseReason::Reset, world.now);
    world.engine.handle_received(a, b"*1\r\n$10000000\r\n", world.now);
    let piece = vec![b'x'; 100_000];
    let before = live_bytes();
    for _ in 0..100 {
        world.engine.handle_received(a, &piece, world.now);
    }
    assert!(live_bytes() - before < 200_000, "{}", live_bytes() - before);
    world.engine.handle_received(a, b"\r\n", world.now);
    world.engine.handle_received(b, b"*1\r\n$-1\r\n", world.now);
    world.assert_idle();
}

fn reconnecting_costs_no_memory() {
    let mut world = World::new(&pool("redis: true\npreconnect: true\ntimeout: 30000", 1));
    let client = world.client();
    let get = redis("GET a");
    let reconnect = |world: &mut World| {
        for _ in 0..100 {
            while !world.connects_to(0) {
                world.wait_ms(100);
            }
            let lane = world.accept(0);
            for _ in 0..3 {
                world.send(client, &get);
                world.wait_ms(500);
                world.send(lane, "$-1\r\n");
            }
            world.send(client, &get);
            world.close(lane, CloseReason::Reset);
            world.received(client);
            world.received(lane);
            world.actions.clear();
            world.sightings.clear();
            world.closed.clear();
        }
    };
    reconnect(&mut world);
    let before = live_bytes();
    for _ in 0..10 {
        reconnect(&mut world);
    }
    assert!(live_bytes() - before < 4096, "{}", live_bytes() - before);
}

#[test]
fn the_engine_is_quiet() {
    if let Ok(limit) = std::env::var("CASHEW_TRACE_ALLOCATIONS") {
        TRACE.set(limit.parse().expect("a number")).expect("it is set once");
    }
    requests_are_quiet();
    joined_gets_are_quiet();
    requests_in_pieces_are_quiet();
    a_client_that_left_keeps_no_reply();
    reconnecting_costs_no_memory();
    peaks_leave_nothing_behind();
}
