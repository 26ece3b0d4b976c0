//! Out of descriptors: a test in its own process, since the limit is per process.

mod bench;

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use bench::{Bench, PATIENCE, epoll_driver, has_uring, uring_driver};
use cashew_driver::Driver;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// One after the other, since the limit is per process.
#[test]
fn waits_for_descriptors_to_be_free() {
    waits_for_descriptors(epoll_driver);
    stops_listening_without_descriptors(epoll_driver);
    if has_uring() {
        waits_for_descriptors(uring_driver);
        stops_listening_without_descriptors(uring_driver);
    }
}

fn set_limit(current: u64) {
    let limit = Rlimit { current: Some(current), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
}

fn waits_for_descriptors<D: Driver>(new: fn() -> D) {
    const CLIENTS: usize = 20;
    const ROOM: usize = 5;
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let mut peers: Vec<TcpStream> =
        (0..CLIENTS).map(|_| TcpStream::connect(address).unwrap()).collect();
    let before = getrlimit(Resource::Nofile).current.expect("a limit");
    let next = File::open("/dev/null").unwrap().as_raw_fd();
    set_limit(next as u64 + ROOM as u64);

    bench.until(|recorder| recorder.accepted().len() == ROOM);
    assert_no_hurry(&mut bench);
    assert_eq!(bench.recorder.accepted().len(), ROOM);
    assert!(bench.recorder.blocked > 0);
    // Accepted clients are served.
    let first = bench.recorder.accepted()[0];
    peers[0].write_all(b"ping").unwrap();
    bench.until(|recorder| recorder.received(first) == b"ping");
    bench.send(first, "pong");
    peers[0].read_exact(&mut [0; 4]).unwrap();

    // Each that leaves makes room for another one.
    for left in 0..3 {
        let conn = bench.recorder.accepted()[left];
        bench.driver.close(conn);
        bench.until(|recorder| recorder.accepted().len() == ROOM + 1 + left);
        assert_no_hurry(&mut bench);
    }

    // Descriptors may also become free elsewhere in the process.
    set_limit(before);
    bench.until(|recorder| recorder.accepted().len() == CLIENTS);
    let last = TcpStream::connect(address).unwrap();
    bench.until(|recorder| recorder.accepted().len() == CLIENTS + 1);
    drop(last);
}

/// Connections that wait at a parked listener when it is released are accepted as descriptors
/// become free.
fn stops_listening_without_descriptors<D: Driver>(new: fn() -> D) {
    const CLIENTS: usize = 30;
    const ROOM: usize = 5;
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let other = bench.listen(2, "127.0.0.1:0");
    let mut peers: Vec<TcpStream> =
        (0..CLIENTS).map(|_| TcpStream::connect(address).unwrap()).collect();
    let before = getrlimit(Resource::Nofile).current.expect("a limit");
    let next = File::open("/dev/null").unwrap().as_raw_fd();
    set_limit(next as u64 + ROOM as u64);
    bench.until(|recorder| recorder.accepted().len() == ROOM);
    bench.linger();

    bench.driver.unlisten(1, true, &mut bench.recorder);
    assert_no_hurry(&mut bench);
    assert_eq!(bench.recorder.accepted().len(), ROOM);
    // The descriptor of the other listener becomes free, too.
    bench.driver.unlisten(2, false, &mut bench.recorder);
    bench.until(|recorder| recorder.accepted().len() == ROOM + 1);
    for left in 0..3 {
        let conn = bench.recorder.accepted()[left];
        bench.driver.close(conn);
        bench.until(|recorder| recorder.accepted().len() == ROOM + 2 + left);
        assert_no_hurry(&mut bench);
    }
    set_limit(before);
    bench.until(|recorder| recorder.accepted().len() == CLIENTS);
    let start = Instant::now();
    while TcpStream::connect(address).is_ok() {
        assert!(start.elapsed() < PATIENCE, "the socket is let go of in the end");
        bench.tick(Duration::from_millis(10));
    }
    assert!(TcpStream::connect(other).is_err());
    peers[CLIENTS - 1].write_all(b"ping").unwrap();
    let last = bench.recorder.accepted()[CLIENTS - 1];
    bench.until(|recorder| recorder.received(last) == b"ping");
}

/// A listener that cannot accept must not be reported again and again.
fn assert_no_hurry<D: Driver>(bench: &mut Bench<D>) {
    let (start, before) = (Instant::now(), bench.recorder.woken);
    while start.elapsed() < Duration::from_millis(500) {
        bench.tick(Duration::from_millis(250));
    }
    let woken = bench.recorder.woken - before;
    assert!(woken <= 20, "woken {woken} times in {:?}", start.elapsed());
    assert!(start.elapsed() < PATIENCE);
}
