//! Lines of so many keys that they are asked for in parts: what they cost grows with their length.

mod world;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use world::{World, pool};

struct Counting;

thread_local! {
    /// Bytes that the test of this thread has allocated, those given back included. Whatever reads
    /// keys writes down where they are, so that they tell how many have been read.
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: usize) {
    ALLOCATED.set(ALLOCATED.get() + bytes);
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size.saturating_sub(layout.size()));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Asks for keys of which the server has every third. Returns what is allocated from the first part
/// of the reply on.
fn retrieve(keys: usize) -> usize {
    let (mut world, client, [lane]) =
        World::with_client::<1>(&pool("timeout: 400\npreconnect: true", 1));
    let line: String = (0..keys).map(|n| format!(" {n:x}")).collect();
    for piece in format!("get{line}\r\nmn\r\n").as_bytes().chunks(65_536) {
        world.send(client, piece);
    }
    let block = |key: &str| format!("VALUE {key} 0 1\r\nx\r\n");
    let is_there = |key: &&str| usize::from_str_radix(key, 16).unwrap().is_multiple_of(3);
    let (mut asked, mut told) = (String::new(), Vec::new());
    let mut allocated = 0;
    loop {
        let part = String::from_utf8(world.received(lane)).unwrap();
        let Some(keys) = part.strip_prefix("get") else { break };
        let keys = keys.strip_suffix("\r\n").unwrap();
        asked.push_str(keys);
        let hits: String = keys.split_whitespace().filter(is_there).map(block).collect();
        let before = ALLOCATED.get();
        world.send(lane, hits + "END\r\n");
        world.wait_ms(1);
        allocated += ALLOCATED.get() - before;
        told.extend(world.received(client));
    }
    assert!(asked == line);
    let hits: String = line.split_whitespace().filter(is_there).map(block).collect();
    assert!(told == (hits + "END\r\nMN\r\n").into_bytes());
    world.assert_idle();
    allocated
}

#[test]
fn each_key_of_a_long_line_is_read_once() {
    let [once, twice] = [100_000, 200_000].map(retrieve);
    assert!(2 * twice < 5 * once, "{once} bytes, of twice as many keys {twice}");
}
