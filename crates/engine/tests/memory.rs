//! What a worker takes is no more than is said: a test with a process of its own, since it measures
//! it.

mod world;

use std::fs;

use cashew_engine::{ConnId, DriverMemory, MemoryBound};
use world::{World, pool, redis};

const OPEN_FILES: u64 = 2000;
const MIB: u64 = 1 << 20;

/// Resident bytes of this process, or the most since [`forget_peak`].
fn resident(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn forget_peak() {
    fs::write("/proc/self/clear_refs", "5").unwrap();
}

/// A worker that may hold so much, with what it takes at most.
fn worker(max: u64, options: &str) -> (World, ConnId, u64) {
    let mut snapshot = pool(
        &format!(
            "redis: true\npreconnect: true\nclient_output_max: 1mb\nclient_output_pause: 1mb\n\
             server_queue_max: 16777216\n{options}"
        ),
        1,
    );
    snapshot.global.worker_memory_max = Some(max);
    let (world, [lane]) = World::connected::<1>(&snapshot);
    let driver = DriverMemory::default();
    (world, lane, MemoryBound::new(&snapshot, OPEN_FILES, driver).total())
}

/// Clients that each ask as often as they may, until so much is held. Returns how often they asked.
fn ask(world: &mut World, lane: ConnId, held: u64) -> usize {
    const EACH: usize = 1000;
    let requests = redis("GET k").repeat(EACH);
    let mut count = 0;
    while (world.engine.held_bytes() as u64) < held {
        let client = world.client();
        world.send(client, &requests);
        world.received(lane);
        count += EACH;
    }
    count
}

/// As many requests as there is room for; all but the last are answered.
fn peak_of_requests(world: &mut World, lane: ConnId, max: u64) {
    let count = ask(world, lane, max / 4 * 3 - MIB);
    for _ in 0..count / 1000 - 1 {
        world.send(lane, "$-1\r\n".repeat(1000));
    }
    world.send(lane, "$-1\r\n".repeat(999));
    for _ in 0..10 {
        world.wait_ms(5000);
    }
    assert!((world.engine.held_bytes() as u64) < MIB, "{}", world.engine.held_bytes());
}

/// One after the other, since memory is the process's.
#[test]
fn no_more_is_taken_than_is_said() {
    for load in [a_peak_of_requests_and_then_of_bytes, a_large_request_that_is_written_anew] {
        forget_peak();
        let before = resident("VmRSS:");
        let limit = load();
        let taken = resident("VmHWM:") - before;
        assert!(taken <= limit, "{} of {} MiB", taken / MIB, limit / MIB);
    }
}

fn a_peak_of_requests_and_then_of_bytes() -> u64 {
    const MAX: u64 = 128 * MIB;
    let (mut world, lane, limit) = worker(MAX, "request_size_max: 1mb");
    peak_of_requests(&mut world, lane, MAX);
    let clients: Vec<ConnId> = (0..MAX / MIB - 8).map(|_| world.client()).collect();
    for &client in &clients {
        world.send(client, "*3\r\n$4\r\nMSET\r\n$1\r\nk\r\n$1000000\r\n");
    }
    let piece = vec![b'x'; 60_000];
    for _ in 0..16 {
        for &client in &clients {
            world.send(client, &piece);
        }
    }
    assert!(world.closed.is_empty(), "there is room for all");
    limit
}

fn a_large_request_that_is_written_anew() -> u64 {
    const MAX: u64 = 320 * MIB;
    const SIZE: u64 = MAX - 12 * MIB;
    let (mut world, lane, limit) =
        worker(MAX, "request_size_max: 320mb\nserver_queue_size_max: 1gb");
    peak_of_requests(&mut world, lane, MAX);
    let client = world.client();
    // Where the name ends, a CRLF is something else.
    world.send(client, format!("*3\r\n$3\r\nSET..$1\r\nk\r\n${SIZE}\r\n"));
    let piece = vec![b'x'; 1 << 16];
    for _ in 0..SIZE >> 16 {
        world.send(client, &piece);
    }
    world.send(client, "\r\n");
    limit
}
