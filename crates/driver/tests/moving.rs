//! What every driver must do with connections that move between drivers, and with listeners that
//! are added and removed.

#[macro_use]
mod bench;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::thread;
use std::time::{Duration, Instant};

use bench::{
    Bench, Event, PATIENCE, QUIET, SocketPath, client, epoll_driver, has_uring, pattern, reset,
    uring_driver,
};
use cashew_driver::{CloseKind, Driver, Token};

contract! {
    loses_and_doubles_nothing_on_the_way_to_and_fro
    hands_over_what_nobody_has_read
    leaves_unsent_output_to_the_handler
    sends_nothing_while_letting_go
    hands_over_a_half_closed_peer
    hands_over_a_half_closed_peer_that_does_not_read
    hands_over_a_unix_socket
    lets_go_of_a_paused_connection
    reports_what_it_has_read_before_it_lets_go
    closes_what_breaks_while_letting_go
    reports_nothing_about_what_it_let_go_of
    closes_what_it_was_letting_go_of
    lets_go_once
    lets_go_of_no_stale_token
    closes_what_it_adopted
    lets_the_next_one_close
    listens_at_any_time
    accepts_all_who_wait_before_it_stops_listening
    leaves_those_who_come_later_to_others_that_hold_the_socket
    accepts_who_waited_before_it_listens
    forgets_nobody_when_another_listens_too
    stops_listening_to_one_of_several
    reports_whom_the_kernel_accepted_when_it_stops_listening
}

/// Two drivers and a connection of the first one.
fn two<D: Driver>(new: fn() -> D) -> (Bench<D>, Bench<D>, TcpStream, Token) {
    let (mut one, two) = (Bench::new(new), Bench::new(new));
    let address = one.listen(1, "127.0.0.1:0");
    let (peer, conn) = one.accept(address);
    (one, two, peer, conn)
}

/// Moves a connection back and forth while its peer writes and reads back what it wrote.
fn echo<D: Driver, E: Driver>(
    mut here: Bench<D>,
    mut there: Bench<E>,
    peer: TcpStream,
    conn: Token,
) {
    const LEN: usize = 4_000_000;
    let mut writing = peer.try_clone().unwrap();
    let writer = thread::spawn(move || {
        let (bytes, mut at) = (pattern(LEN), 0);
        for n in 0.. {
            let len = (1 + n * 7919 % 50_000).min(LEN - at);
            writing.write_all(&bytes[at..at + len]).unwrap();
            at += len;
            if at == LEN {
                return;
            }
            if n % 16 == 0 {
                thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let mut reading = peer;
    let reader = thread::spawn(move || {
        let mut back = vec![0; LEN];
        for piece in back.chunks_mut(30_011) {
            reading.read_exact(piece).unwrap();
        }
        assert!(back == pattern(LEN));
    });
    let start = Instant::now();
    let mut echoed = 0;
    let mut moves = 0;
    while !reader.is_finished() {
        assert!(start.elapsed() < 3 * PATIENCE, "{echoed} of {LEN} bytes after {moves} moves");
        echoed += echo_for_a_while(&mut here, conn, echoed, moves % 4);
        here.hand_over(conn, &mut there);
        echoed += echo_for_a_while(&mut there, conn, echoed, moves % 3);
        there.hand_over(conn, &mut here);
        moves += 2;
    }
    writer.join().unwrap();
    reader.join().unwrap();
    assert!(here.recorder.received(conn) == pattern(LEN));
    assert!(moves > 20, "{moves}");
}

fn echo_for_a_while<D: Driver>(
    bench: &mut Bench<D>,
    conn: Token,
    echoed: usize,
    ticks: usize,
) -> usize {
    for _ in 0..ticks {
        bench.tick(Duration::from_millis(1));
    }
    let bytes = bench.recorder.received(conn)[echoed..].to_vec();
    if !bytes.is_empty() {
        bench.send(conn, bytes.clone());
    }
    bytes.len()
}

fn loses_and_doubles_nothing_on_the_way_to_and_fro<D: Driver>(new: fn() -> D) {
    let (one, two, peer, conn) = two(new);
    echo(one, two, peer, conn);
}

/// One kind can serve what the other has accepted.
#[test]
fn goes_from_one_kind_to_the_other() {
    if !has_uring() {
        return;
    }
    let (one, _, peer, conn) = two(epoll_driver);
    echo(one, Bench::new(uring_driver), peer, conn);
    let (one, _, peer, conn) = two(uring_driver);
    echo(one, Bench::new(epoll_driver), peer, conn);
}

fn hands_over_what_nobody_has_read<D: Driver>(new: fn() -> D) {
    let (mut one, mut two, mut peer, conn) = two(new);
    peer.write_all(b"first").unwrap();
    thread::sleep(QUIET);
    let socket = one.detach(conn).expect("it lives");
    peer.write_all(b"second").unwrap();
    thread::sleep(QUIET);
    let other = client(9, 1);
    two.driver.adopt(other, socket).unwrap();
    peer.write_all(b"third").unwrap();
    let first = one.recorder.received(conn).to_vec();
    two.until(|recorder| first.len() + recorder.received(other).len() >= 16);
    let all = [&first, two.recorder.received(other)].concat();
    assert_eq!(all, b"firstsecondthird");
    two.send(other, "answer");
    let mut back = [0; 6];
    peer.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"answer");
}

fn leaves_unsent_output_to_the_handler<D: Driver>(new: fn() -> D) {
    let (mut one, mut two, mut peer, conn) = two(new);
    let expected = pattern(20_000_000);
    one.send(conn, expected.clone());
    assert!(!one.recorder.is_all_sent(conn), "more than the kernel takes at once");
    one.hand_over(conn, &mut two);
    let len = expected.len();
    let reader = thread::spawn(move || {
        let mut got = vec![0; len];
        peer.read_exact(&mut got).map(|()| got)
    });
    two.until(|recorder| recorder.is_all_sent(conn));
    assert!(reader.join().unwrap().unwrap() == expected);
    assert_eq!(one.linger(), []);
}

fn sends_nothing_while_letting_go<D: Driver>(new: fn() -> D) {
    let (mut one, mut two, mut peer, conn) = two(new);
    // Whether the driver knew of it or not.
    one.queue(conn, "early ");
    one.driver.send(conn, &mut one.recorder);
    one.driver.detach(conn);
    one.send(conn, "late");
    assert!(!one.recorder.is_all_sent(conn));
    one.hand_over(conn, &mut two);
    assert!(two.recorder.is_all_sent(conn));
    let mut got = [0; 10];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"early late");
}

fn hands_over_a_half_closed_peer<D: Driver>(new: fn() -> D) {
    for is_seen in [true, false] {
        let (mut one, mut two, mut peer, conn) = two(new);
        peer.write_all(b"last words").unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        if is_seen {
            one.until(|recorder| recorder.has(Event::ReadClosed(conn)));
        }
        one.hand_over(conn, &mut two);
        two.until(|recorder| recorder.has(Event::ReadClosed(conn)));
        assert_eq!(two.recorder.received(conn), b"last words");
        two.send(conn, "goodbye");
        two.driver.close(conn);
        let mut got = Vec::new();
        peer.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"goodbye");
        assert_eq!(one.linger(), []);
    }
}

fn hands_over_a_half_closed_peer_that_does_not_read<D: Driver>(new: fn() -> D) {
    let (mut one, mut two, mut peer, conn) = two(new);
    let bytes = pattern(20_000_000);
    one.send(conn, bytes.clone());
    peer.shutdown(Shutdown::Write).unwrap();
    one.until(|recorder| recorder.has(Event::ReadClosed(conn)));
    one.linger();
    one.hand_over(conn, &mut two);
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        peer.read_to_end(&mut got).map(|_| got)
    });
    two.until(|recorder| recorder.is_all_sent(conn));
    // Nobody else has the socket any more.
    two.driver.close(conn);
    assert!(reader.join().unwrap().unwrap() == bytes);
}

fn hands_over_a_unix_socket<D: Driver>(new: fn() -> D) {
    let (mut one, mut two) = (Bench::new(new), Bench::new(new));
    let path = SocketPath::new("moves");
    let listener = UnixListener::bind(&path.0).unwrap();
    let (mut peer, conn) = one.accept_unix(&listener);
    peer.write_all(b"ping").unwrap();
    one.hand_over(conn, &mut two);
    two.until(|recorder| recorder.received(conn) == b"ping");
    two.send(conn, "pong");
    let mut back = [0; 4];
    peer.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"pong");
    drop(peer);
    two.until(|recorder| recorder.has(Event::ReadClosed(conn)));
}

fn lets_go_of_a_paused_connection<D: Driver>(new: fn() -> D) {
    let (mut one, mut two, mut peer, conn) = two(new);
    one.driver.pause(conn);
    one.linger();
    peer.write_all(b"unread").unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    thread::sleep(QUIET);
    // Neither has any effect any more.
    one.driver.detach(conn);
    one.driver.resume(conn);
    one.driver.pause(conn);
    one.hand_over(conn, &mut two);
    two.driver.pause(conn);
    assert!(!two.linger().contains(&Event::ReadClosed(conn)), "paused is paused");
    two.driver.resume(conn);
    two.until(|recorder| recorder.has(Event::ReadClosed(conn)));
    assert_eq!(two.recorder.received(conn), b"unread");
}

fn reports_what_it_has_read_before_it_lets_go<D: Driver>(new: fn() -> D) {
    for round in 0..20 {
        let (mut one, mut two, mut peer, conn) = two(new);
        let expected = pattern(100_000);
        // It arrives during the call.
        let bytes = expected.clone();
        let writer = thread::spawn(move || peer.write_all(&bytes).map(|()| peer));
        thread::sleep(Duration::from_micros(100 * round));
        one.driver.pause(conn);
        one.tick(Duration::from_millis(round % 3));
        if round % 2 == 0 {
            one.driver.resume(conn);
        }
        one.hand_over(conn, &mut two);
        two.until(|recorder| recorder.received(conn).len() >= expected.len());
        assert!(two.recorder.received(conn) == expected);
        drop(writer.join().unwrap().unwrap());
    }
}

fn closes_what_breaks_while_letting_go<D: Driver>(new: fn() -> D) {
    for is_paused in [false, true] {
        let (mut one, _, mut peer, conn) = two(new);
        peer.write_all(b"some").unwrap();
        one.until(|recorder| recorder.received(conn) == b"some");
        if is_paused {
            one.driver.pause(conn);
        }
        one.driver.detach(conn);
        reset(peer);
        assert!(one.detach(conn).is_none());
        one.linger();
        let story = one.recorder.story(conn);
        let end = Event::Closed(conn, CloseKind::Reset);
        assert_eq!(story, [Event::Accepted(1, conn), Event::Received(conn), end]);
    }
}

fn reports_nothing_about_what_it_let_go_of<D: Driver>(new: fn() -> D) {
    let (mut one, _, mut peer, conn) = two(new);
    let socket = one.detach(conn).expect("it lives");
    peer.write_all(b"for somebody else").unwrap();
    one.send(conn, "nothing");
    one.driver.pause(conn);
    one.driver.resume(conn);
    assert_eq!(one.linger(), []);
    reset(peer);
    drop(socket);
    assert_eq!(one.linger(), []);
    one.driver.close(conn);
}

fn closes_what_it_was_letting_go_of<D: Driver>(new: fn() -> D) {
    let (mut one, _, mut peer, conn) = two(new);
    one.driver.detach(conn);
    one.driver.close(conn);
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
    assert_eq!(one.linger(), []);
}

fn lets_go_once<D: Driver>(new: fn() -> D) {
    let (mut one, _, _peer, conn) = two(new);
    one.driver.detach(conn);
    one.driver.detach(conn);
    one.linger();
    assert_eq!(one.recorder.story(conn), [Event::Accepted(1, conn), Event::Detached(conn)]);
    one.driver.detach(conn);
    assert_eq!(one.linger(), []);
}

fn lets_go_of_no_stale_token<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let address = bench.listen(1, "127.0.0.1:0");
    bench.recorder.tokens.extend([client(4, 1), client(4, 2)]);
    let (_gone, old) = bench.accept(address);
    bench.driver.close(old);
    let (mut peer, conn) = bench.accept(address);
    bench.driver.detach(old);
    bench.driver.detach(client(1 << 20, 1));
    assert_eq!(bench.linger(), []);
    peer.write_all(b"ping").unwrap();
    bench.until(|recorder| recorder.received(conn) == b"ping");
}

fn closes_what_it_adopted<D: Driver>(new: fn() -> D) {
    let (mut one, mut two, mut peer, conn) = two(new);
    one.hand_over(conn, &mut two);
    two.send(conn, "bye");
    two.driver.close(conn);
    let mut got = Vec::new();
    peer.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"bye");
}

/// A driver that has detached a connection does not keep it open.
fn lets_the_next_one_close<D: Driver>(new: fn() -> D) {
    let (mut one, _, mut peer, conn) = two(new);
    // With everything that may be pending in the kernel.
    one.driver.pause(conn);
    one.send(conn, pattern(20_000_000));
    one.linger();
    let socket = one.detach(conn).expect("it lives");
    drop(socket);
    let mut got = Vec::new();
    peer.read_to_end(&mut got).unwrap();
    assert!(got.len() < 20_000_000 && pattern(20_000_000).starts_with(&got));
}

fn listens_at_any_time<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let mut peers = Vec::new();
    for id in 0..20 {
        let address = bench.listen(id, "127.0.0.1:0");
        let (peer, conn) = bench.accept(address);
        assert!(bench.recorder.has(Event::Accepted(id, conn)));
        peers.push(peer);
        if id % 3 != 0 {
            bench.driver.unlisten(id, id % 2 == 0, &mut bench.recorder);
            assert!(TcpStream::connect(address).is_err(), "nobody else holds the socket");
        }
    }
    // Repeated and unknown numbers have no effect.
    for id in [1, 2, 100] {
        bench.driver.unlisten(id, true, &mut bench.recorder);
    }
    assert_eq!(bench.recorder.accepted().len(), peers.len());
}

fn accepts_all_who_wait_before_it_stops_listening<D: Driver>(new: fn() -> D) {
    const CLIENTS: usize = 110;
    let mut bench = Bench::new(new);
    let address = bench.listen(7, "127.0.0.1:0");
    // Some of them may have been accepted already.
    bench.tick(Duration::ZERO);
    let mut peers: Vec<TcpStream> =
        (0..CLIENTS).map(|_| TcpStream::connect(address).unwrap()).collect();
    // Connections can be accepted a little later than they are connected.
    thread::sleep(QUIET);
    bench.tick(Duration::ZERO);
    bench.driver.unlisten(7, true, &mut bench.recorder);
    assert_eq!(bench.recorder.accepted().len(), CLIENTS);
    assert!(TcpStream::connect(address).is_err(), "nobody else holds the socket");
    for peer in &mut peers {
        peer.write_all(b"ping").unwrap();
    }
    for conn in bench.recorder.accepted() {
        assert!(bench.recorder.has(Event::Accepted(7, conn)));
        bench.until(|recorder| recorder.received(conn) == b"ping");
    }
}

fn leaves_those_who_come_later_to_others_that_hold_the_socket<D: Driver>(new: fn() -> D) {
    let (mut one, mut two) = (Bench::new(new), Bench::new(new));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    one.driver.listen(1, listener.try_clone().unwrap().into()).unwrap();
    one.driver.listen(2, listener.try_clone().unwrap().into()).unwrap();
    one.linger();
    one.driver.unlisten(1, false, &mut one.recorder);
    one.driver.unlisten(2, false, &mut one.recorder);
    let _peer = TcpStream::connect(address).unwrap();
    assert_eq!(one.linger(), []);
    two.driver.listen(3, listener.into()).unwrap();
    two.until(|recorder| recorder.accepted().len() == 1);
}

fn accepts_who_waited_before_it_listens<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    bench.linger();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let _peers: Vec<TcpStream> = (0..5).map(|_| TcpStream::connect(address).unwrap()).collect();
    bench.driver.listen(1, listener.into()).unwrap();
    bench.until(|recorder| recorder.accepted().len() == 5);
}

fn forgets_nobody_when_another_listens_too<D: Driver>(new: fn() -> D) {
    hand_over_listener(new, new);
}

#[test]
fn forgets_nobody_when_a_driver_of_the_other_kind_listens_too() {
    if has_uring() {
        hand_over_listener(epoll_driver, uring_driver);
        hand_over_listener(uring_driver, epoll_driver);
    }
}

/// A client comes when two drivers wait for it, of which one is about to stop: that one may be the
/// only one that the kernel has woken.
fn hand_over_listener<D: Driver, E: Driver>(old: fn() -> D, new: fn() -> E) {
    let (mut old, mut new) = (Bench::new(old), Bench::new(new));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    old.driver.listen(1, listener.try_clone().unwrap().into()).unwrap();
    old.linger();
    new.driver.listen(1, listener.into()).unwrap();
    new.linger();
    let _peers: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
    // Connections can be accepted a little later than they are connected.
    thread::sleep(QUIET);
    old.driver.unlisten(1, false, &mut old.recorder);
    let taken = old.recorder.accepted().len();
    new.until(|recorder| taken + recorder.accepted().len() == 3);
}

fn stops_listening_to_one_of_several<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let addresses: Vec<_> = (0..4).map(|id| bench.listen(id, "127.0.0.1:0")).collect();
    let waiting = TcpStream::connect(addresses[3]).unwrap();
    bench.driver.unlisten(0, true, &mut bench.recorder);
    bench.driver.unlisten(2, false, &mut bench.recorder);
    bench.until(|recorder| recorder.accepted().len() == 1);
    drop(waiting);
    for id in [1, 3] {
        let (_peer, conn) = bench.accept(addresses[id as usize]);
        assert!(bench.recorder.has(Event::Accepted(id, conn)));
    }
}

fn reports_whom_the_kernel_accepted_when_it_stops_listening<D: Driver>(new: fn() -> D) {
    let mut bench = Bench::new(new);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    bench.driver.listen(1, listener.try_clone().unwrap().into()).unwrap();
    bench.tick(Duration::ZERO);
    let _peers: Vec<TcpStream> = (0..90).map(|_| TcpStream::connect(address).unwrap()).collect();
    // Connections can be accepted a little later than they are connected.
    thread::sleep(QUIET);
    bench.tick(Duration::ZERO);
    bench.driver.unlisten(1, false, &mut bench.recorder);
    let accepted = bench.recorder.accepted().len();
    let mut left = 0;
    while listener.accept().is_ok() {
        left += 1;
    }
    assert_eq!(accepted + left, 90);
    assert_eq!(bench.linger(), []);
}
