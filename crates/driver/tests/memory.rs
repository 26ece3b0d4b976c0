//! The maximum memory of io_uring: a test in its own process, since it measures that.

mod bench;

use std::fs;
use std::io::{ErrorKind, IoSlice, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bench::{client, has_uring, uring_driver};
use cashew_driver::{CloseKind, Driver, Handler, Token, UringDriver};

/// Ignores everything.
struct Nobody;

impl Handler for Nobody {
    fn woken(&mut self) {}

    fn accepted(&mut self, _: u32, _: BorrowedFd<'_>) -> Result<Token, &'static [u8]> {
        Err(b"")
    }

    fn accept_blocked(&mut self, _: u32) {}

    fn connected(&mut self, _: Token) {}

    fn received(&mut self, _: Token, _: &mut Vec<u8>) {}

    fn buffer(&mut self, capacity: usize) -> Vec<u8> {
        Vec::with_capacity(capacity)
    }

    fn read_closed(&mut self, _: Token) {}

    fn detached(&mut self, _: Token, _: OwnedFd) {}

    fn closed(&mut self, _: Token, _: CloseKind) {}

    fn readable(&mut self, _: u32) {}

    fn front(&self, _: Token) -> (&[u8], bool) {
        (&[], false)
    }

    fn output<'a>(&'a self, _: Token, _: &mut [IoSlice<'a>]) -> usize {
        0
    }

    fn sent(&mut self, _: Token, _: u64) {}
}

/// Private resident bytes of this process.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn all_buffers_in_use_take_what_is_said() {
    const CLIENTS: u64 = 200;
    if !has_uring() {
        return;
    }
    let bytes = vec![b'x'; 128 << 10];
    let mut peers = Vec::new();
    let before = resident();
    let mut driver = uring_driver();
    for index in 0..CLIENTS {
        let (peer, ours) = UnixStream::pair().unwrap();
        peer.set_nonblocking(true).unwrap();
        ours.set_nonblocking(true).unwrap();
        driver.adopt(client(index, 1), ours.into()).unwrap();
        peers.push(peer);
    }
    let mut most = 0;
    for _ in 0..100 {
        for mut peer in &peers {
            if let Err(error) = peer.write(&bytes) {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
            }
        }
        driver.wait(Some(Duration::ZERO), &mut Nobody).unwrap();
        most = most.max(resident() - before);
    }
    assert!(most <= UringDriver::SIZE_MAX, "{most}");
    assert!(most >= 7 << 20, "hardly any of 128 buffers of 64 KiB is empty: {most}");
    assert_eq!(driver.take_released(), 0);
    drop(peers);
    // Each wait reports at least two buffers of the at most four per client.
    for _ in 0..2 * CLIENTS + 100 {
        driver.wait(Some(Duration::from_millis(1)), &mut Nobody).unwrap();
    }
    assert!(driver.take_released() >= 7 << 20, "nobody needs them any more");
    assert_eq!(driver.take_released(), 0);
}
