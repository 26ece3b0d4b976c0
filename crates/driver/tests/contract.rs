//! What every driver that works with sockets must do.

#[macro_use]
mod bench;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use bench::{Bench, Event, QUIET, SocketPath, client, free_address, pattern, reset, server};
use cashew_driver::{Address, CloseKind, Driver, Token};
use rustix::net::{SendFlags, sockopt};
use rustix::process::{Resource, Rlimit};

contract! {
    accepts_tcp
    accepts_ipv6
    accepts_unix
    tells_listeners_apart
    accepts_a_bounded_number_per_tick
    accepts_all_of_every_wave
    accepts_many_also_where_more_is_ready_than_one_wait_tells
    closes_whom_the_handler_does_not_want
    stops_listening_to_sockets_that_others_hold
    reads_in_order
    reads_what_is_larger_than_a_read
    reads_on_behind_an_urgent_byte
    lets_no_connection_hold_up_another
    leaves_the_rest_of_much_to_the_next_waits
    heeds_what_it_is_told_while_it_is_behind
    tells_once_of_what_is_watched_until_it_has_caught_up
    reports_the_end_behind_the_data
    writes_to_a_half_closed_peer
    reports_a_reset
    reports_a_reset_while_paused
    reports_a_reset_of_a_half_closed_peer_while_paused
    reports_the_end_only_after_a_pause
    reports_the_end_of_a_unix_peer_only_after_a_pause
    loses_nothing_by_pausing
    reads_once_in_a_wait
    keeps_to_a_low_water_mark
    reports_what_is_there_when_the_mark_is_lowered
    reports_an_end_below_the_mark
    reports_what_has_no_room_above_the_mark
    goes_on_writing_by_itself
    rests_while_a_half_closed_peer_does_not_read
    rests_while_a_half_closed_unix_peer_does_not_read
    writes_many_slices
    writes_in_the_order_that_it_is_told
    writes_nothing_when_there_is_nothing
    reports_a_write_to_nobody
    closes_behind_what_was_written
    has_nothing_sent_again_of_what_it_gives_up
    sends_nothing_that_a_peer_has_no_room_for_when_it_is_given_up
    keeps_nothing_of_what_it_closed
    reports_nothing_about_what_it_closed
    connects_to_tcp
    connects_to_ipv6
    connects_to_unix
    connects_to_a_server_that_speaks_first
    is_refused
    never_connects_to_itself
    is_refused_where_no_unix_socket_is
    cannot_reach_what_has_no_route
    gives_up_connecting
    ignores_stale_tokens
    ignores_tokens_it_never_had
    takes_any_generation
    watches_while_readable
    waits_as_long_as_told
    reports_each_wait
    waits_without_end
    serves_many_at_once
}

fn accepts_tcp<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(3, "127.0.0.1:0");
    let (mut peer, conn) = bench.accept(address);
    assert!(bench.recorder.has(Event::Accepted(3, conn)));
    exchange(&mut bench, &mut peer, conn);
}

fn accepts_ipv6<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    if TcpListener::bind("[::1]:0").is_err() {
        return;
    }
    let address = bench.listen(3, "[::1]:0");
    let (mut peer, conn) = bench.accept(address);
    exchange(&mut bench, &mut peer, conn);
}

fn accepts_unix<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let path = SocketPath::new("accepts");
    let listener = UnixListener::bind(&path.0).unwrap();
    let (mut peer, conn) = bench.accept_unix(&listener);
    exchange(&mut bench, &mut peer, conn);
}

/// Exchanges bytes in both directions.
fn exchange<D: Driver, P: Read + Write>(bench: &mut Bench<D>, peer: &mut P, conn: Token) {
    peer.write_all(b"ping").unwrap();
    bench.until(|recorder| recorder.received(conn) == b"ping");
    bench.send(conn, "pong");
    let mut back = [0; 4];
    peer.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"pong");
}

fn tells_listeners_apart<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let (one, two) = (bench.listen(1, "127.0.0.1:0"), bench.listen(2, "127.0.0.1:0"));
    let (_a, a) = bench.accept(two);
    let (_b, b) = bench.accept(one);
    assert!(bench.recorder.has(Event::Accepted(2, a)) && bench.recorder.has(Event::Accepted(1, b)));
    // Several listeners may have the same number.
    let three = bench.listen(1, "127.0.0.1:0");
    let (_c, c) = bench.accept(three);
    assert!(bench.recorder.has(Event::Accepted(1, c)));
}

fn accepts_a_bounded_number_per_tick<D: Driver>(new: fn() -> D) {
    const CLIENTS: usize = 100;
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let _peers: Vec<TcpStream> =
        (0..CLIENTS).map(|_| TcpStream::connect(address).unwrap()).collect();
    bench.tick(Duration::from_secs(5));
    let first = bench.recorder.accepted().len();
    assert!((1..CLIENTS).contains(&first), "{first}");
    bench.until(|recorder| recorder.accepted().len() == CLIENTS);
}

fn accepts_all_of_every_wave<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let mut peers = Vec::new();
    for size in [1, 20, 1, 3, 90, 2, 1, 1] {
        peers.extend((0..size).map(|_| TcpStream::connect(address).unwrap()));
        bench.until(|recorder| recorder.accepted().len() == peers.len());
    }
}

fn accepts_many_also_where_more_is_ready_than_one_wait_tells<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::io::write(&writer, b"x").unwrap();
    let limits = rustix::process::getrlimit(Resource::Nofile);
    let most = Rlimit { current: limits.maximum, ..limits };
    rustix::process::setrlimit(Resource::Nofile, most).unwrap();
    let readable: Vec<_> = (0..1600).map(|_| reader.try_clone().unwrap()).collect();
    for (watch, reader) in (10..).zip(&readable) {
        bench.driver.watch(watch, reader.as_fd()).unwrap();
    }
    let peers = [(); 60].map(|()| TcpStream::connect(address).unwrap());
    // Connections can be accepted a little later than they are connected.
    thread::sleep(QUIET);
    for _ in 0..40 {
        bench.tick(Duration::from_millis(1));
    }
    assert_eq!(bench.recorder.accepted().len(), peers.len());
}

fn closes_whom_the_handler_does_not_want<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    bench.recorder.is_full = true;
    let address = bench.listen(1, "127.0.0.1:0");
    let mut peers = [(); 100].map(|()| TcpStream::connect(address).unwrap());
    for peer in &mut peers {
        peer.write_all(b"unread").unwrap();
        peer.set_read_timeout(Some(bench::PATIENCE)).unwrap();
    }
    bench.until(|recorder| recorder.refused == 100);
    bench.linger();
    for mut peer in peers {
        let mut heard = String::new();
        peer.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "full");
    }
    assert_eq!(bench.recorder.events, []);
}

fn stops_listening_to_sockets_that_others_hold<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let shared = listener.try_clone().unwrap();
    bench.driver.listen(1, shared.into()).unwrap();
    let address = listener.local_addr().unwrap();
    let (mut peer, conn) = bench.accept(address);
    bench.driver.stop_listening();
    let _waiting = TcpStream::connect(address).unwrap();
    assert_eq!(bench.linger(), []);
    // Accepted connections stay; waiting ones are left to the other holder.
    exchange(&mut bench, &mut peer, conn);
    assert!(listener.accept().is_ok());
}

fn reads_in_order<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (mut peer, conn) = bench.accept(address);
    let mut expected = Vec::new();
    for n in 0..50 {
        let bytes = pattern(n * 7 + 1);
        peer.write_all(&bytes).unwrap();
        expected.extend(bytes);
        if n % 5 == 0 {
            bench.tick(Duration::from_millis(5));
        }
    }
    bench.until(|recorder| recorder.received(conn).len() >= expected.len());
    assert!(bench.recorder.received(conn) == expected);
}

fn reads_what_is_larger_than_a_read<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    for len in [64 * 1024, 64 * 1024 + 1, 3_000_000] {
        let (mut peer, conn) = bench.accept(address);
        let bytes = pattern(len);
        let expected = bytes.clone();
        let writer = thread::spawn(move || peer.write_all(&bytes).map(|()| peer));
        bench.until(|recorder| recorder.received(conn).len() >= len);
        assert!(bench.recorder.received(conn) == expected);
        drop(writer.join().unwrap().unwrap());
        bench.until(|recorder| recorder.has(Event::ReadClosed(conn)));
    }
}

fn reads_on_behind_an_urgent_byte<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (mut peer, conn) = bench.accept(address);
    for round in 1..=3 {
        // A read stops in front of such a byte, which is not part of the stream.
        peer.write_all(b"before").unwrap();
        rustix::net::send(&peer, b"!", SendFlags::OOB).unwrap();
        peer.write_all(b"behind").unwrap();
        bench.until(|recorder| recorder.received(conn) == b"beforebehind".repeat(round));
    }
    let woken = bench.recorder.woken;
    bench.linger();
    assert!(bench.recorder.woken - woken < 20, "it keeps nobody busy");
}

fn lets_no_connection_hold_up_another<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (mut busy, large) = bench.accept(address);
    let (mut quiet, small) = bench.accept(address);
    busy.set_nonblocking(true).unwrap();
    let mut stuffed = 0;
    while let Ok(len) = busy.write(&pattern(100_000)) {
        stuffed += len;
    }
    assert!(stuffed > 300_000, "{stuffed} bytes fit between the two");
    quiet.write_all(b"x").unwrap();
    thread::sleep(QUIET);
    bench.until(|recorder| recorder.received(small) == b"x");
    let before = bench.recorder.received(large).len();
    assert!(before < stuffed / 2, "{before} of {stuffed} bytes came first");
}

fn leaves_the_rest_of_much_to_the_next_waits<D: Driver>(new: fn() -> D) {
    const LEN: usize = 50_000;
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (reader, writer) = std::io::pipe().unwrap();
    bench.driver.watch(7, reader.as_fd()).unwrap();
    let (mut peers, conns): (Vec<_>, Vec<_>) = (0..12).map(|_| bench.accept(address)).unzip();
    for round in 1..=5 {
        for peer in &mut peers {
            peer.write_all(&pattern(LEN)).unwrap();
        }
        rustix::io::write(&writer, b"x").unwrap();
        thread::sleep(QUIET);
        let count = |recorder: &bench::Recorder| -> usize {
            conns.iter().map(|&conn| recorder.received(conn).len()).sum()
        };
        let all = round * LEN * conns.len();
        let mut waits = 0;
        while count(&bench.recorder) < all {
            let before = count(&bench.recorder);
            let asked = Instant::now();
            bench.tick(Duration::from_secs(5));
            assert!(asked.elapsed() < Duration::from_secs(4), "the rest is not waited for");
            let taken = count(&bench.recorder) - before;
            assert!(taken <= 128 * 1024 + 64 * 1024, "{taken} bytes in one wait");
            waits += 1;
        }
        assert!(waits >= 4, "{waits} waits");
        bench.linger();
        assert!(!bench.driver.is_behind(), "there is nothing more");
        bench.until(|recorder| recorder.has(Event::Readable(7)));
        rustix::io::read(&reader, &mut [0; 8]).unwrap();
        bench.recorder.events.clear();
    }
    let expected = pattern(LEN).repeat(5);
    for conn in conns {
        assert!(*bench.recorder.received(conn) == expected[..]);
    }
}

fn tells_once_of_what_is_watched_until_it_has_caught_up<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (mut peers, _conns): (Vec<_>, Vec<_>) = (0..12).map(|_| bench.accept(address)).unzip();
    let (reader, writer) = std::io::pipe().unwrap();
    bench.driver.watch(7, reader.as_fd()).unwrap();
    bench.tick(Duration::ZERO);
    rustix::io::write(&writer, b"x").unwrap();
    thread::sleep(QUIET);
    for peer in &mut peers {
        peer.write_all(&pattern(50_000)).unwrap();
    }
    thread::sleep(QUIET);
    let mut waits = 0;
    loop {
        bench.tick(Duration::from_secs(5));
        waits += 1;
        if !bench.driver.is_behind() {
            break;
        }
    }
    assert!(waits > 1, "it was behind");
    // Whoever reads now does so for what was told, and would wait if it were told again.
    rustix::io::read(&reader, &mut [0; 8]).unwrap();
    let told = bench.recorder.events.iter().filter(|event| **event == Event::Readable(7)).count();
    assert!(told <= 1, "{told} times");
    bench.recorder.events.clear();
    bench.linger();
    assert!(!bench.recorder.has(Event::Readable(7)));
}

fn heeds_what_it_is_told_while_it_is_behind<D: Driver>(new: fn() -> D) {
    const LEN: usize = 50_000;
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (mut peers, conns): (Vec<_>, Vec<_>) = (0..12).map(|_| bench.accept(address)).unzip();
    let (reader, writer) = std::io::pipe().unwrap();
    bench.driver.watch(7, reader.as_fd()).unwrap();
    bench.tick(Duration::ZERO);
    for peer in &mut peers {
        peer.write_all(&pattern(LEN)).unwrap();
    }
    rustix::io::write(&writer, b"x").unwrap();
    thread::sleep(QUIET);
    bench.tick(Duration::from_secs(5));
    assert!(bench.driver.is_behind());
    let unread = |bench: &Bench<D>| -> Vec<Token> {
        let conns = conns.iter().copied();
        conns.filter(|&conn| bench.recorder.received(conn).is_empty()).collect()
    };
    let [closed, paused, moved, ..] = unread(&bench)[..] else { panic!("some are not read") };
    bench.driver.close(closed);
    bench.driver.pause(paused);
    bench.driver.detach(moved);
    let was_told = bench.recorder.has(Event::Readable(7));
    bench.driver.unwatch(reader.as_fd()).unwrap();
    // Its index is reused before the rest is reported.
    bench.recorder.tokens.push_back(Token(closed.0 & 0xffff_ffff | 8 << 32));
    let (mut next, successor) = bench.accept(address);
    bench.until(|recorder| recorder.detached.contains_key(&moved));
    bench.linger();
    assert!(bench.recorder.received(closed).is_empty());
    assert!(bench.recorder.received(successor).is_empty());
    assert!(bench.recorder.received(paused).len() as u64 <= D::LATE_MAX);
    assert_eq!(bench.recorder.has(Event::Readable(7)), was_told);
    next.write_all(b"mine").unwrap();
    bench.driver.resume(paused);
    bench.until(|recorder| recorder.received(successor) == b"mine");
    for &conn in conns.iter().filter(|&&conn| conn != closed && conn != moved) {
        bench.until(|recorder| recorder.received(conn).len() == LEN);
        assert!(*bench.recorder.received(conn) == pattern(LEN)[..]);
    }
    // Bytes read already were reported; the rest is still in the socket.
    let mut socket = TcpStream::from(bench.recorder.detached.remove(&moved).unwrap());
    socket.set_nonblocking(false).unwrap();
    let mut rest = vec![0; LEN - bench.recorder.received(moved).len()];
    socket.read_exact(&mut rest).unwrap();
    assert!([bench.recorder.received(moved), &rest].concat() == pattern(LEN));
}

fn reports_the_end_behind_the_data<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    for len in [1, 64 * 1024, 200_000] {
        // All of it is there before the driver polls.
        let mut peer = TcpStream::connect(address).unwrap();
        let bytes = pattern(len);
        let expected = bytes.clone();
        let before = bench.recorder.accepted().len();
        let writer = thread::spawn(move || {
            peer.write_all(&bytes).unwrap();
            peer.shutdown(Shutdown::Write).unwrap();
            peer
        });
        thread::sleep(QUIET);
        bench.until(|recorder| recorder.accepted().len() > before);
        let conn = bench.recorder.accepted()[before];
        bench.until(|recorder| recorder.has(Event::ReadClosed(conn)));
        assert!(bench.recorder.received(conn) == expected);
        bench.linger();
        let story = bench.recorder.story(conn);
        let accepted = Event::Accepted(1, conn);
        assert_eq!(story, [accepted, Event::Received(conn), Event::ReadClosed(conn)]);
        drop(writer.join().unwrap());
    }
}

fn writes_to_a_half_closed_peer<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (mut peer, conn) = bench.accept(address);
    peer.shutdown(Shutdown::Write).unwrap();
    bench.until(|recorder| recorder.has(Event::ReadClosed(conn)));
    let bytes = pattern(5_000_000);
    bench.send(conn, bytes.clone());
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        peer.read_to_end(&mut got).map(|_| got)
    });
    bench.until(|recorder| recorder.is_all_sent(conn));
    bench.driver.close(conn);
    assert!(reader.join().unwrap().unwrap() == bytes);
}

fn reports_a_reset<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (peer, conn) = bench.accept(address);
    reset(peer);
    bench.until(|recorder| recorder.close_kind(conn).is_some());
    bench.linger();
    let story = bench.recorder.story(conn);
    assert_eq!(story, [Event::Accepted(1, conn), Event::Closed(conn, CloseKind::Reset)]);
}

fn reports_a_reset_while_paused<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (mut peer, conn) = bench.accept(address);
    pause(&mut bench, conn);
    peer.write_all(b"never read").unwrap();
    reset(peer);
    bench.until(|recorder| recorder.close_kind(conn).is_some());
    let story = bench.recorder.story(conn);
    assert_eq!(story, [Event::Accepted(1, conn), Event::Closed(conn, CloseKind::Reset)]);
}

fn reports_a_reset_of_a_half_closed_peer_while_paused<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (mut peer, conn) = bench.accept(address);
    pause(&mut bench, conn);
    peer.write_all(b"never read").unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(bench.linger(), []);
    reset(peer);
    bench.until(|recorder| recorder.close_kind(conn).is_some());
}

fn reports_the_end_only_after_a_pause<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (mut peer, conn) = bench.accept(address);
    bench.driver.pause(conn);
    peer.write_all(b"last words").unwrap();
    drop(peer);
    assert!(!bench.linger().contains(&Event::ReadClosed(conn)));
    bench.driver.resume(conn);
    bench.until(|recorder| recorder.has(Event::ReadClosed(conn)));
    assert_eq!(bench.recorder.received(conn), b"last words");
}

fn reports_the_end_of_a_unix_peer_only_after_a_pause<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let path = SocketPath::new("paused");
    let listener = UnixListener::bind(&path.0).unwrap();
    let (mut peer, conn) = bench.accept_unix(&listener);
    bench.driver.pause(conn);
    peer.write_all(b"last words").unwrap();
    drop(peer);
    assert!(!bench.linger().contains(&Event::ReadClosed(conn)));
    bench.driver.resume(conn);
    bench.until(|recorder| recorder.has(Event::ReadClosed(conn)));
    assert_eq!(bench.recorder.received(conn), b"last words");
}

fn has_nothing_sent_again_of_what_it_gives_up<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (mut peer, conn) = bench.accept(address);
    bench.driver.give_up(conn);
    let descriptor = bench.driver.descriptor(conn).unwrap();
    // The kernel sends nothing again before 200 ms have passed.
    let after_ms = sockopt::tcp_user_timeout(descriptor).unwrap();
    assert!((1..200).contains(&after_ms), "{after_ms}");
    // What has been written arrives all the same, if anybody is there.
    bench.send(conn, "last words");
    bench.driver.close(conn);
    let mut received = Vec::new();
    peer.read_to_end(&mut received).unwrap();
    assert_eq!(received, b"last words");
}

fn sends_nothing_that_a_peer_has_no_room_for_when_it_is_given_up<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (mut peer, conn) = bench.accept(address);
    let sent = pattern(16 << 20);
    bench.send(conn, &*sent);
    bench.linger();
    bench.driver.give_up(conn);
    bench.driver.close(conn);
    bench.linger();
    let mut received = Vec::new();
    let ended = peer.read_to_end(&mut received);
    assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    assert!(received.len() < sent.len());
}

fn keeps_to_a_low_water_mark<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (mut peer, conn) = bench.accept(address);
    // An io_uring takes what is there when it begins to receive.
    bench.linger();
    bench.driver.set_low_water(conn, 100_000);
    let expected = pattern(100_000);
    peer.write_all(&expected[..99_999]).unwrap();
    assert_eq!(bench.linger(), []);
    peer.write_all(&expected[99_999..]).unwrap();
    bench.until(|recorder| recorder.received(conn).len() == expected.len());
    assert_eq!(bench.recorder.received(conn), expected);
}

fn reports_what_is_there_when_the_mark_is_lowered<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (mut peer, conn) = bench.accept(address);
    // An io_uring takes what is there when it begins to receive.
    bench.linger();
    bench.driver.set_low_water(conn, 100_000);
    peer.write_all(&pattern(50_000)).unwrap();
    assert_eq!(bench.linger(), []);
    bench.driver.set_low_water(conn, 1);
    bench.until(|recorder| recorder.received(conn).len() == 50_000);
    peer.write_all(b"more").unwrap();
    bench.until(|recorder| recorder.received(conn).len() == 50_004);
}

fn reports_an_end_below_the_mark<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (mut peer, conn) = bench.accept(address);
    // An io_uring takes what is there when it begins to receive.
    bench.linger();
    bench.driver.set_low_water(conn, 100_000);
    peer.write_all(b"last words").unwrap();
    drop(peer);
    bench.until(|recorder| recorder.has(Event::ReadClosed(conn)));
    assert_eq!(bench.recorder.received(conn), b"last words");
}

fn reports_what_has_no_room_above_the_mark<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (mut peer, conn) = bench.accept(address);
    bench.driver.set_low_water(conn, 1 << 30);
    let expected = pattern(50_000_000);
    let bytes = expected.clone();
    let writer = thread::spawn(move || peer.write_all(&bytes).map(|()| peer));
    bench.until(|_| writer.is_finished());
    bench.driver.set_low_water(conn, 1);
    bench.until(|recorder| recorder.received(conn).len() == expected.len());
    assert!(bench.recorder.received(conn) == expected);
    writer.join().unwrap().unwrap();
}

/// Bytes that [`pour`] sends, far more than sockets hold.
const POURED: usize = 5_000_000;

/// A connection whose peer writes as fast as it is read.
fn pour<D: Driver>(
    new: fn() -> D,
) -> (Bench<D>, Token, thread::JoinHandle<std::io::Result<TcpStream>>) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (mut peer, conn) = bench.accept(address);
    let writer = thread::spawn(move || peer.write_all(&pattern(POURED)).map(|()| peer));
    (bench, conn, writer)
}

fn loses_nothing_by_pausing<D: Driver>(new: fn() -> D) {
    let (mut bench, conn, writer) = pour(new);
    let expected = pattern(POURED);
    let mut len = 0;
    while len < expected.len() {
        let before = len;
        bench.until(|recorder| recorder.received(conn).len() > before);
        len = pause(&mut bench, conn);
        let late = (len - before).saturating_sub(bench.recorder.largest) as u64;
        assert!(late <= D::LATE_MAX, "{late} bytes behind one read");
        bench.driver.resume(conn);
        // Twice is the same as once.
        bench.driver.resume(conn);
    }
    assert!(bench.recorder.received(conn) == expected);
    drop(writer.join().unwrap().unwrap());
}

/// A connection that will be paused because of one read is not read twice in a wait, even if more
/// bytes arrive meanwhile.
fn reads_once_in_a_wait<D: Driver>(new: fn() -> D) {
    let (mut bench, conn, writer) = pour(new);
    let expected = pattern(POURED);
    let mut len = 0;
    let begin = Instant::now();
    while len < expected.len() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{len} bytes were reported");
        // The bytes read make room for more.
        thread::sleep(Duration::from_millis(1));
        bench.tick(Duration::from_secs(5));
        let before = std::mem::replace(&mut len, bench.recorder.received(conn).len());
        let late = (len - before).saturating_sub(bench.recorder.largest) as u64;
        assert!(late <= D::LATE_MAX, "{late} bytes behind one read");
    }
    assert!(bench.recorder.received(conn) == expected);
    drop(writer.join().unwrap().unwrap());
}

/// Pauses the connection, and returns how much has been received when no more comes.
fn pause<D: Driver>(bench: &mut Bench<D>, conn: Token) -> usize {
    bench.driver.pause(conn);
    let mut wait = || {
        for _ in 0..5 {
            bench.tick(Duration::from_millis(2));
        }
        bench.recorder.received(conn).len()
    };
    let len = wait();
    assert_eq!(wait(), len, "paused is paused");
    len
}

fn goes_on_writing_by_itself<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (mut peer, conn) = bench.accept(address);
    let mut expected = pattern(20_000_000);
    bench.send(conn, expected.clone());
    assert!(!bench.recorder.is_all_sent(conn), "more than the kernel takes at once");
    // Output added meanwhile follows it.
    bench.send(conn, "tail");
    expected.extend(b"tail");
    assert_eq!(bench.linger(), []);
    let len = expected.len();
    let reader = thread::spawn(move || {
        let mut got = vec![0; len];
        peer.read_exact(&mut got).map(|()| got)
    });
    bench.until(|recorder| recorder.is_all_sent(conn));
    assert!(reader.join().unwrap().unwrap() == expected);
}

fn rests_while_a_half_closed_peer_does_not_read<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (peer, conn) = bench.accept(address);
    let half_close = |peer: &TcpStream| peer.shutdown(Shutdown::Write).unwrap();
    rests_while_it_does_not_read(&mut bench, peer, conn, half_close);
}

fn rests_while_a_half_closed_unix_peer_does_not_read<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let path = SocketPath::new("rests");
    let listener = UnixListener::bind(&path.0).unwrap();
    let (peer, conn) = bench.accept_unix(&listener);
    let half_close = |peer: &UnixStream| peer.shutdown(Shutdown::Write).unwrap();
    rests_while_it_does_not_read(&mut bench, peer, conn, half_close);
}

fn rests_while_it_does_not_read<D: Driver, P: Read + Send + 'static>(
    bench: &mut Bench<D>,
    mut peer: P,
    conn: Token,
    half_close: impl Fn(&P),
) {
    let bytes = pattern(20_000_000);
    bench.send(conn, bytes.clone());
    half_close(&peer);
    bench.until(|recorder| recorder.has(Event::ReadClosed(conn)));
    bench.linger();
    let woken = bench.recorder.woken;
    bench.linger();
    let woken = bench.recorder.woken - woken;
    assert!(woken < 20, "{woken} times it was woken for nothing");
    let reader = thread::spawn(move || {
        // The peer pauses now and then, so that writing blocks again.
        let mut got = vec![0; 20_000_000];
        for piece in got.chunks_mut(5_000_000) {
            peer.read_exact(piece).unwrap();
            thread::sleep(Duration::from_millis(10));
        }
        got
    });
    bench.until(|recorder| recorder.is_all_sent(conn));
    assert!(reader.join().unwrap() == bytes);
}

fn writes_many_slices<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (mut peer, conn) = bench.accept(address);
    let mut expected = Vec::new();
    for n in 0..5000 {
        let bytes = pattern(1 + n % 37);
        expected.extend_from_slice(&bytes);
        bench.queue(conn, bytes);
    }
    bench.flush(conn);
    bench.until(|recorder| recorder.is_all_sent(conn));
    let mut got = vec![0; expected.len()];
    peer.read_exact(&mut got).unwrap();
    assert!(got == expected);
}

fn writes_in_the_order_that_it_is_told<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (peers, conns): (Vec<TcpStream>, Vec<_>) = (0..9).map(|_| bench.accept(address)).unzip();
    for &conn in &conns {
        bench.queue(conn, b"x".to_vec());
        bench.driver.send(conn, &mut bench.recorder);
    }
    bench.driver.flush(&mut bench.recorder);
    assert_eq!(bench.recorder.sent, conns);
    drop(peers);
}

fn writes_nothing_when_there_is_nothing<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (mut peer, conn) = bench.accept(address);
    bench.flush(conn);
    assert_eq!(bench.linger(), []);
    exchange(&mut bench, &mut peer, conn);
}

fn reports_a_write_to_nobody<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (peer, conn) = bench.accept(address);
    // It has closed both directions, which shows only in the answer to the first write.
    drop(peer);
    bench.until(|recorder| recorder.has(Event::ReadClosed(conn)));
    let start = Instant::now();
    while bench.recorder.close_kind(conn).is_none() && start.elapsed() < bench::PATIENCE {
        bench.send(conn, "hello?");
        bench.tick(Duration::from_millis(5));
    }
    assert_eq!(bench.recorder.close_kind(conn), Some(CloseKind::Reset));
    let count = bench.recorder.events.len();
    bench.send(conn, "hello?");
    bench.linger();
    assert_eq!(bench.recorder.events.len(), count, "it is reported once");
}

fn closes_behind_what_was_written<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    for unread in [0, 1, 150_000] {
        let (mut peer, conn) = bench.accept(address);
        bench.driver.pause(conn);
        peer.write_all(&pattern(unread)).unwrap();
        thread::sleep(QUIET);
        bench.send(conn, "-ERR goodbye\r\n");
        assert!(bench.recorder.is_all_sent(conn));
        bench.driver.close(conn);
        let mut got = Vec::new();
        peer.read_to_end(&mut got).unwrap_or_else(|error| panic!("{unread} unread: {error}"));
        assert_eq!(got, b"-ERR goodbye\r\n");
    }
}

fn keeps_nothing_of_what_it_closed<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let path = SocketPath::new("keeps");
    let listener = UnixListener::bind(&path.0).unwrap();
    let (peer, conn) = bench.accept_unix(&listener);
    // Accepted sockets have the listener's name.
    let name = path.0.to_str().unwrap();
    let sockets = || {
        let all = std::fs::read_to_string("/proc/net/unix").unwrap();
        all.lines().filter(|line| line.ends_with(name)).count()
    };
    assert_eq!(sockets(), 2);
    bench.send(conn, pattern(20_000_000));
    peer.shutdown(Shutdown::Write).unwrap();
    bench.until(|recorder| recorder.has(Event::ReadClosed(conn)));
    bench.driver.pause(conn);
    bench.linger();
    bench.driver.close(conn);
    bench.linger();
    assert_eq!(sockets(), 1);
}

fn reports_nothing_about_what_it_closed<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (mut peer, conn) = bench.accept(address);
    peer.write_all(b"too late").unwrap();
    thread::sleep(QUIET);
    bench.driver.close(conn);
    // Twice is the same as once.
    bench.driver.close(conn);
    assert_eq!(bench.linger(), []);
}

fn connects_to_tcp<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    connects_to(&mut bench, TcpListener::bind("127.0.0.1:0").unwrap());
}

fn connects_to_ipv6<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    if let Ok(listener) = TcpListener::bind("[::1]:0") {
        connects_to(&mut bench, listener);
    }
}

fn connects_to<D: Driver>(bench: &mut Bench<D>, listener: TcpListener) {
    let conn = server(0, 1);
    let address = Address::Tcp(listener.local_addr().unwrap());
    assert_eq!(bench.connect(conn, &address), None);
    let (mut peer, _) = listener.accept().unwrap();
    exchange(bench, &mut peer, conn);
    drop(peer);
    bench.until(|recorder| recorder.has(Event::ReadClosed(conn)));
    bench.driver.close(conn);
    let story = bench.recorder.story(conn);
    assert_eq!(story, [Event::Connected(conn), Event::Received(conn), Event::ReadClosed(conn)]);
}

fn connects_to_unix<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let path = SocketPath::new("connects");
    let listener = UnixListener::bind(&path.0).unwrap();
    let conn = server(0, 1);
    assert_eq!(bench.connect(conn, &Address::Unix(path.0.clone())), None);
    let (mut peer, _) = listener.accept().unwrap();
    exchange(&mut bench, &mut peer, conn);
}

fn connects_to_a_server_that_speaks_first<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let conn = server(5, 1);
    let address = Address::Tcp(listener.local_addr().unwrap());
    bench.driver.connect(conn, &address).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    peer.write_all(b"welcome").unwrap();
    drop(peer);
    thread::sleep(QUIET);
    bench.until(|recorder| recorder.has(Event::ReadClosed(conn)));
    assert_eq!(bench.recorder.received(conn), b"welcome");
    assert_eq!(bench.recorder.story(conn)[0], Event::Connected(conn));
}

fn is_refused<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let conn = server(0, 1);
    assert_eq!(bench.connect(conn, &Address::Tcp(free_address())), Some(CloseKind::Refused));
    assert!(bench.recorder.events.len() <= 1, "{:?}", bench.recorder.events);
    // The token is free for another attempt.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    bench.recorder.events.clear();
    let address = Address::Tcp(listener.local_addr().unwrap());
    assert_eq!(bench.connect(conn, &address), None);
}

/// Nobody listens there, but one attempt in some thousands gets that very port as its own.
fn never_connects_to_itself<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    // The kernel prefers even local ports for connections.
    let even = (40_000..60_000).step_by(2).map(|port| (Ipv4Addr::LOCALHOST, port));
    let free = even.filter_map(|address| TcpListener::bind(address).ok()).next().unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    for generation in 0..30_000 {
        let refused = bench.connect(server(0, generation), &Address::Tcp(address));
        assert_eq!(refused, Some(CloseKind::Refused), "attempt {generation}");
        bench.recorder.events.clear();
    }
}

fn is_refused_where_no_unix_socket_is<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let path = SocketPath::new("nowhere");
    let address = Address::Unix(path.0.clone());
    assert_eq!(bench.connect(server(0, 1), &address), Some(CloseKind::Refused));
    // The path of a closed socket.
    drop(UnixListener::bind(&path.0).unwrap());
    assert_eq!(bench.connect(server(0, 2), &address), Some(CloseKind::Refused));
}

fn cannot_reach_what_has_no_route<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    // A broadcast address takes no connections.
    let address = SocketAddr::from((Ipv4Addr::new(127, 255, 255, 255), 7));
    let why = bench.connect(server(0, 1), &Address::Tcp(address));
    assert_eq!(why, Some(CloseKind::Unreachable));
}

fn gives_up_connecting<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    bench.driver.connect(server(0, 1), &address).unwrap();
    bench.driver.close(server(0, 1));
    bench.driver.connect(server(0, 2), &address).unwrap();
    bench.until(|recorder| recorder.has(Event::Connected(server(0, 2))));
    bench.linger();
    assert_eq!(bench.recorder.events, [Event::Connected(server(0, 2))]);
}

fn ignores_stale_tokens<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (old, new) = (client(4, 1), client(4, 2));
    bench.recorder.tokens.extend([old, new]);
    let (mut gone, _) = bench.accept(address);
    gone.write_all(b"not read").unwrap();
    thread::sleep(QUIET);
    bench.driver.close(old);
    let (mut peer, conn) = bench.accept(address);
    assert_eq!(conn, new);
    bench.driver.pause(old);
    bench.send(old, "to nobody");
    exchange(&mut bench, &mut peer, new);
    bench.driver.close(old);
    bench.driver.pause(new);
    bench.driver.resume(old);
    peer.write_all(b"more").unwrap();
    assert_eq!(bench.linger(), []);
    bench.driver.resume(new);
    bench.until(|recorder| recorder.received(new) == b"pingmore");
    assert_eq!(bench.recorder.received(old), b"");
}

fn ignores_tokens_it_never_had<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    for token in [client(0, 0), client(1 << 20, 3), server(0, 0), server(1 << 20, 3)] {
        bench.driver.pause(token);
        bench.driver.resume(token);
        bench.send(token, "to nobody");
        bench.driver.close(token);
    }
    assert_eq!(bench.linger(), []);
}

fn takes_any_generation<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    for generation in [0, 1, 0x8000_0000, 0xffff_fffe, 0xffff_ffff] {
        bench.recorder.tokens.extend([client(0, generation)]);
        let (mut peer, conn) = bench.accept(address);
        exchange(&mut bench, &mut peer, conn);
        bench.driver.close(conn);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let conn = server(0, generation);
        let address = Address::Tcp(listener.local_addr().unwrap());
        assert_eq!(bench.connect(conn, &address), None);
        let (mut peer, _) = listener.accept().unwrap();
        exchange(&mut bench, &mut peer, conn);
        bench.driver.close(conn);
    }
}

fn watches_while_readable<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let (reader, writer) = std::io::pipe().unwrap();
    let (_quiet, _other) = std::io::pipe().unwrap();
    bench.driver.watch(5, reader.as_fd()).unwrap();
    bench.driver.watch(6, _quiet.as_fd()).unwrap();
    assert_eq!(bench.linger(), []);
    rustix::io::write(&writer, b"x").unwrap();
    for _ in 0..3 {
        bench.recorder.events.clear();
        bench.until(|recorder| recorder.has(Event::Readable(5)));
    }
    rustix::io::read(&reader, &mut [0; 8]).unwrap();
    bench.linger();
    assert_eq!(bench.linger(), []);
    rustix::io::write(&writer, b"x").unwrap();
    bench.driver.unwatch(reader.as_fd()).unwrap();
    bench.linger();
    assert_eq!(bench.linger(), []);
    assert!(!bench.recorder.has(Event::Readable(6)));
}

fn waits_as_long_as_told<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let _address = bench.listen(1, "127.0.0.1:0");
    let start = Instant::now();
    bench.tick(Duration::from_millis(100));
    assert!(start.elapsed() >= Duration::from_millis(99), "{:?}", start.elapsed());
    let start = Instant::now();
    bench.tick(Duration::ZERO);
    assert!(start.elapsed() < Duration::from_secs(5));
}

fn reports_each_wait<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    for round in 1..4 {
        bench.tick(Duration::from_millis(1));
        assert_eq!(bench.recorder.woken, round);
    }
}

fn waits_without_end<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let (mut peer, conn) = bench.accept(address);
    bench.linger();
    let writer = thread::spawn(move || {
        thread::sleep(QUIET);
        peer.write_all(b"late").map(|()| peer)
    });
    bench.driver.wait(None, &mut bench.recorder).unwrap();
    assert_eq!(bench.recorder.received(conn), b"late");
    drop(writer.join().unwrap().unwrap());
}

fn serves_many_at_once<D: Driver>(new: fn() -> D) {
    const CLIENTS: usize = 100;
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    let mut peers: Vec<_> = (0..CLIENTS).map(|_| bench.accept(address)).collect();
    let mut expected = Vec::new();
    // Large messages after a pause.
    for len in [1, 50_000, 100] {
        bench.linger();
        let bytes = pattern(len);
        for (peer, _) in &mut peers {
            peer.write_all(&bytes).unwrap();
        }
        expected.extend(bytes);
        for (_, conn) in &peers {
            bench.until(|recorder| recorder.received(*conn).len() >= expected.len());
            assert!(bench.recorder.received(*conn) == expected);
            bench.send(*conn, expected.clone());
        }
        for (peer, _) in &mut peers {
            let mut back = vec![0; expected.len()];
            peer.read_exact(&mut back).unwrap();
            assert!(back == expected);
        }
    }
}

/// Other tests rely on this: a reset differs from an end.
#[test]
fn a_reset_is_not_an_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    reset(peer);
    let error = accepted.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}
