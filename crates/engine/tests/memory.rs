//! What a worker takes is no more than is said: a test with a process of its own, since it measures
//! it.

mod world;

use std::fs;

use cashew_engine::{ConnId, MemoryBound};
use world::{World, pool, redis};

const MAX: u64 = 128 << 20;
const OPEN_FILES: u64 = 2000;

/// Resident bytes of this process that are its own.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
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

#[test]
fn a_peak_of_requests_and_then_of_bytes() {
    let mut snapshot = pool(
        "redis: true\npreconnect: true\nrequest_size_max: 1mb\nclient_output_max: 1mb\n\
         client_output_pause: 1mb\nserver_queue_max: 16777216",
        1,
    );
    snapshot.global.worker_memory_max = Some(MAX);
    let limit = MemoryBound::new(&snapshot, OPEN_FILES, 0).total();
    let before = resident();
    let (mut world, [lane]) = World::connected::<1>(&snapshot);
    let count = ask(&mut world, lane, MAX / 4 * 3 - (1 << 20));
    for _ in 0..count / 1000 - 1 {
        world.send(lane, "$-1\r\n".repeat(1000));
    }
    world.send(lane, "$-1\r\n".repeat(999));
    // The last request is still on its way.
    for _ in 0..10 {
        world.wait_ms(5000);
    }
    assert!(world.engine.held_bytes() < 1 << 20, "{}", world.engine.held_bytes());
    let clients: Vec<ConnId> = (0..MAX / (1 << 20) - 8).map(|_| world.client()).collect();
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
    let taken = resident() - before;
    assert!(taken <= limit, "{} of {} MiB", taken >> 20, limit >> 20);
}
