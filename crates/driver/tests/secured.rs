//! Secured connections, over every driver.

#[macro_use]
mod bench;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use bench::{Bench, Event, PATIENCE, QUIET, client, pattern, reset, server};
use cashew_driver::{Address, CloseKind, Driver, Secured, Token};
use cashew_tls::{
    Acceptor, Certificate, Ciphers, ClientAuth, ClientNames, ClientUser, Connector, Failure,
    Identity, ListenerTls, ServerTls, Stream, TicketSecret, Version,
};

#[path = "../../../tests/rust/certificates.rs"]
mod certificates;

use certificates::{Authority, Pair};

contract! {
    serves_a_client
    serves_what_is_large_both_ways
    writes_no_faster_than_the_peer_reads
    reports_the_end_behind_the_data
    writes_to_a_peer_that_has_ended_its_side
    holds_the_end_back_while_paused
    says_goodbye
    loses_nothing_by_closing_when_all_is_sent
    ends_its_side_and_reads_on
    ends_its_side_behind_what_the_peer_has_not_read
    resets_its_peers
    refuses_plain_text
    gives_up_half_a_handshake
    reports_who_leaves_within_a_handshake
    refuses_with_silence_whom_the_handler_does_not_want
    serves_others_while_many_shake_hands
    serves_plain_and_secured_clients_side_by_side
    connects_to_a_server
    distrusts_a_server
    finds_that_a_server_speaks_no_tls
    gives_up_a_server_that_says_nothing
    reports_a_reset
    keeps_to_no_low_water_mark
    goes_on_with_another_driver
    goes_on_with_what_is_not_written
}

/// For all tests, since keys take a while to make.
static FILES: LazyLock<(String, Pair)> = LazyLock::new(|| {
    let authority = Authority::new();
    (authority.certificate(), authority.sign("DNS:localhost,IP:127.0.0.1", 10))
});

fn acceptor(handshake_timeout_ms: u64) -> Acceptor {
    let Pair { certificate, key } = FILES.1.clone();
    let Certificate { names, expires_at, .. } = Certificate::of_pem(&certificate).unwrap();
    let (file, key_file) = ("leaf.crt".to_owned(), "leaf.key".to_owned());
    let identity = Identity { file, key_file, chain: certificate, key, names, expires_at };
    let options = ListenerTls {
        identities: vec![identity],
        client_ca: None,
        client_auth: ClientAuth::None,
        client_user: ClientUser::Off,
        client_names: ClientNames::default(),
        min_version: Version::Tls12,
        ciphers: Ciphers::Default,
        handshake_timeout_ms,
        hand_over: true,
    };
    Acceptor::new(&options, TicketSecret::random().as_ref()).unwrap()
}

fn connector(ca: &str) -> Connector {
    let options = ServerTls {
        ca: ca.to_owned(),
        server_name: None,
        identity: None,
        verify: true,
        min_version: Version::Tls12,
        ciphers: Ciphers::Default,
        mark: 0,
        trust_mark: 0,
    };
    Connector::new(&options).unwrap()
}

/// A peer with a socket that blocks.
struct Peer {
    socket: TcpStream,
    stream: Stream,
    input: Vec<u8>,
    plain: Vec<u8>,
    is_ended: bool,
}

impl Peer {
    fn client(address: SocketAddr) -> Self {
        let stream = Stream::connect(&connector(&FILES.0), Some("localhost")).unwrap();
        Self::new(TcpStream::connect(address).unwrap(), stream)
    }

    fn server(socket: TcpStream) -> Self {
        Self::new(socket, Stream::accept(&acceptor(10_000)).unwrap())
    }

    fn new(socket: TcpStream, stream: Stream) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { socket, stream, input: vec![], plain: vec![], is_ended: false }
    }

    fn process(&mut self) -> Result<(), Failure> {
        let mut out = Vec::new();
        let result = self.stream.process(&mut self.input, &mut self.plain, &mut out);
        // Whoever does not listen any more gets no alert.
        let _ = self.socket.write_all(&out);
        let progress = result?;
        self.input.drain(..progress.consumed);
        self.is_ended = progress.is_ended;
        Ok(())
    }

    /// Reads once; whether there was anything.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 70_000];
        match self.socket.read(&mut bytes) {
            Ok(len) => {
                self.input.extend_from_slice(&bytes[..len]);
                self.process().unwrap();
                len > 0
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn shake_hands(mut self) -> Self {
        self.process().unwrap();
        while self.stream.is_handshaking() {
            assert!(self.read(), "the connection ended");
        }
        self
    }

    fn say(&mut self, plain: &[u8]) {
        let mut out = Vec::new();
        for part in plain.chunks(100_000) {
            self.stream.encrypt(part, &mut self.input, &mut out).unwrap();
        }
        self.socket.write_all(&out).unwrap();
    }

    fn end(&mut self) {
        let mut out = Vec::new();
        self.stream.close(&mut self.input, &mut out);
        self.socket.write_all(&out).unwrap();
    }

    /// Reads until so many bytes are there.
    fn hear(&mut self, len: usize) -> Vec<u8> {
        while self.plain.len() < len {
            assert!(self.read(), "the connection ended after {} bytes", self.plain.len());
        }
        std::mem::take(&mut self.plain)
    }
}

type Benches<D> = Bench<Secured<D>>;

fn new_bench<D: Driver>(new: fn() -> D) -> Benches<D> {
    let mut driver = Secured::new(new());
    driver.enable();
    let mut bench = Bench { driver, recorder: bench::Recorder::default() };
    bench.recorder.acceptor = Some(acceptor(10_000));
    bench
}

/// Lets `work` happen while the driver ticks.
fn during<D: Driver, T: Send>(bench: &mut Bench<D>, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let working = scope.spawn(work);
        let start = Instant::now();
        while !working.is_finished() {
            assert!(start.elapsed() < PATIENCE, "waited in vain: {:?}", bench.recorder.events);
            bench.tick(Duration::from_millis(5));
        }
        working.join().unwrap()
    })
}

/// A client that has got through its handshake.
fn accept<D: Driver>(bench: &mut Benches<D>, address: SocketAddr) -> (Peer, Token) {
    let before = bench.recorder.accepted().len();
    let peer = during(bench, || Peer::client(address).shake_hands());
    let conn = bench.recorder.accepted()[before];
    bench.until(|recorder| recorder.secured.iter().any(|(of, _)| *of == conn));
    (peer, conn)
}

fn serves_a_client<D: Driver>(new: fn() -> D) {
    let mut bench = new_bench(new);
    let address = bench.listen(3, "127.0.0.1:0");
    let (mut peer, conn) = accept(&mut bench, address);
    assert!(bench.driver.is_secured(conn));
    for round in 0..5 {
        peer.say(b"ping");
        bench.until(|recorder| recorder.received(conn).len() == 4 * (round + 1));
        bench.send(conn, "pong");
        assert!(bench.recorder.is_all_sent(conn));
        assert_eq!(peer.hear(4), b"pong");
    }
    assert_eq!(bench.recorder.received(conn), b"ping".repeat(5));
    let [(_, facts)] = bench.recorder.secured[..] else { panic!("one handshake") };
    assert_eq!((facts.version, facts.is_resumed), (Version::Tls13, false));
}

fn serves_what_is_large_both_ways<D: Driver>(new: fn() -> D) {
    const SIZE: usize = 3_000_000;
    let mut bench = new_bench(new);
    let address = bench.listen(3, "127.0.0.1:0");
    let (mut peer, conn) = accept(&mut bench, address);
    for part in pattern(SIZE).chunks(70_001) {
        bench.queue(conn, part);
    }
    bench.queue(conn, "z");
    bench.flush(conn);
    let mut peer = during(&mut bench, || {
        assert!(peer.hear(SIZE + 1)[..SIZE] == pattern(SIZE));
        peer.say(&pattern(SIZE));
        peer
    });
    bench.until(|recorder| recorder.received(conn).len() == SIZE);
    assert!(bench.recorder.received(conn) == pattern(SIZE));
    assert!(bench.recorder.is_all_sent(conn));
    bench.send(conn, "more");
    assert_eq!(peer.hear(4), b"more");
}

fn writes_no_faster_than_the_peer_reads<D: Driver>(new: fn() -> D) {
    const SIZE: usize = 40 << 20;
    let mut bench = new_bench(new);
    let address = bench.listen(3, "127.0.0.1:0");
    let (mut peer, conn) = accept(&mut bench, address);
    for _ in 0..40 {
        bench.queue(conn, pattern(1 << 20));
    }
    bench.flush(conn);
    bench.linger();
    // Most of it is left with the handler.
    assert!(!bench.recorder.is_all_sent(conn));
    during(&mut bench, || {
        assert_eq!(peer.hear(SIZE).len(), SIZE);
    });
    bench.until(|recorder| recorder.is_all_sent(conn));
}

fn reports_the_end_behind_the_data<D: Driver>(new: fn() -> D) {
    let mut bench = new_bench(new);
    let address = bench.listen(3, "127.0.0.1:0");
    let (mut polite, one) = accept(&mut bench, address);
    let (mut rude, other) = accept(&mut bench, address);
    polite.say(b"last");
    polite.end();
    polite.socket.shutdown(Shutdown::Write).unwrap();
    rude.say(b"last");
    rude.socket.shutdown(Shutdown::Write).unwrap();
    for conn in [one, other] {
        bench.until(|recorder| recorder.has(Event::ReadClosed(conn)));
        assert_eq!(bench.recorder.received(conn), b"last");
        let story = [Event::Accepted(3, conn), Event::Received(conn), Event::ReadClosed(conn)];
        bench.linger();
        assert_eq!(bench.recorder.story(conn), story);
    }
}

fn writes_to_a_peer_that_has_ended_its_side<D: Driver>(new: fn() -> D) {
    let mut bench = new_bench(new);
    let address = bench.listen(3, "127.0.0.1:0");
    let (mut peer, conn) = accept(&mut bench, address);
    peer.end();
    bench.until(|recorder| recorder.has(Event::ReadClosed(conn)));
    bench.send(conn, "reply");
    bench.driver.close(conn);
    assert_eq!(peer.hear(5), b"reply");
    while peer.read() {}
    assert!(peer.is_ended);
}

fn holds_the_end_back_while_paused<D: Driver>(new: fn() -> D) {
    let mut bench = new_bench(new);
    let address = bench.listen(3, "127.0.0.1:0");
    let (mut peer, conn) = accept(&mut bench, address);
    bench.driver.pause(conn);
    peer.say(b"unread");
    peer.end();
    bench.linger();
    assert!(!bench.recorder.has(Event::ReadClosed(conn)));
    bench.driver.resume(conn);
    bench.until(|recorder| recorder.has(Event::ReadClosed(conn)));
    assert_eq!(bench.recorder.received(conn), b"unread");
}

fn says_goodbye<D: Driver>(new: fn() -> D) {
    let mut bench = new_bench(new);
    let address = bench.listen(3, "127.0.0.1:0");
    let (mut peer, conn) = accept(&mut bench, address);
    bench.driver.close(conn);
    while peer.read() {}
    assert!(peer.is_ended);
    assert!(!bench.driver.is_secured(conn));
    assert!(!bench.linger().iter().any(|event| matches!(event, Event::Closed(..))));
}

fn loses_nothing_by_closing_when_all_is_sent<D: Driver>(new: fn() -> D) {
    const SIZE: usize = 8 << 20;
    let mut bench = new_bench(new);
    let address = bench.listen(3, "127.0.0.1:0");
    let (mut peer, conn) = accept(&mut bench, address);
    bench.send(conn, pattern(SIZE));
    let reading = thread::spawn(move || {
        let heard = peer.hear(SIZE);
        while peer.read() {}
        (heard, peer.is_ended)
    });
    bench.until(|recorder| recorder.is_all_sent(conn));
    bench.driver.close(conn);
    let (heard, is_ended) = reading.join().unwrap();
    assert!(heard == pattern(SIZE) && is_ended);
}

/// A secured peer and a plain one.
fn two_kinds<D: Driver>(bench: &mut Benches<D>) -> ((Peer, Token), (TcpStream, Token)) {
    let address = bench.listen(3, "127.0.0.1:0");
    let secured = accept(bench, address);
    bench.recorder.acceptor = None;
    (secured, bench.accept(address))
}

fn ends_its_side_and_reads_on<D: Driver>(new: fn() -> D) {
    let mut bench = new_bench(new);
    let ((mut secured, one), (mut plain, other)) = two_kinds(&mut bench);
    for conn in [one, other] {
        bench.send(conn, "last");
        bench.until(|recorder| recorder.is_all_sent(conn));
        bench.driver.end_writing(conn);
    }
    during(&mut bench, || {
        assert_eq!(secured.hear(4), b"last");
        while secured.read() {}
        assert!(secured.is_ended);
        let mut heard = Vec::new();
        plain.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"last");
    });
    secured.say(b"more");
    plain.write_all(b"more").unwrap();
    for conn in [one, other] {
        bench.until(|recorder| recorder.received(conn) == b"more");
    }
    assert!(!bench.linger().iter().any(|event| matches!(event, Event::Closed(..))));
}

fn ends_its_side_behind_what_the_peer_has_not_read<D: Driver>(new: fn() -> D) {
    const PIECE: usize = 4000;
    let mut bench = new_bench(new);
    let address = bench.listen(3, "127.0.0.1:0");
    // How many pieces the kernel takes of one who does not read. With about as many there is no room for what the peer is
    // told last.
    let mut capacity = None;
    for less in 0..12 {
        let (mut peer, conn) = accept(&mut bench, address);
        let mut pieces = 0;
        while bench.recorder.is_all_sent(conn) && capacity.is_none_or(|most| pieces + less < most) {
            bench.send(conn, pattern(PIECE));
            bench.tick(Duration::ZERO);
            pieces += 1;
        }
        capacity = capacity.or(Some(pieces));
        if bench.recorder.is_all_sent(conn) {
            bench.driver.end_writing(conn);
            bench.tick(Duration::ZERO);
        }
        let size = pieces * PIECE;
        let reading = thread::spawn(move || {
            let heard = peer.hear(size).len();
            while peer.read() {}
            (heard, peer.is_ended)
        });
        if !bench.recorder.is_all_sent(conn) {
            bench.until(|recorder| recorder.is_all_sent(conn));
            bench.driver.end_writing(conn);
        }
        let done = during(&mut bench, || reading.join().unwrap());
        assert_eq!(done, (size, true), "{less} less than {capacity:?}");
        bench.driver.close(conn);
    }
}

fn resets_its_peers<D: Driver>(new: fn() -> D) {
    let mut bench = new_bench(new);
    let ((secured, one), (plain, other)) = two_kinds(&mut bench);
    for (mut socket, conn) in [(secured.socket, one), (plain, other)] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        bench.driver.reset(conn);
        bench.tick(Duration::ZERO);
        // What has come before, such as tickets of TLS, is still there.
        let error = loop {
            match socket.read(&mut [0; 4096]) {
                Ok(bytes) => assert_ne!(bytes, 0, "it has ended in order"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    assert!(!bench.linger().iter().any(|event| matches!(event, Event::Closed(..))));
}

fn refuses_plain_text<D: Driver>(new: fn() -> D) {
    let mut bench = new_bench(new);
    let address = bench.listen(3, "127.0.0.1:0");
    let mut peer = TcpStream::connect(address).unwrap();
    peer.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
    bench.until(|recorder| !recorder.accepted().is_empty());
    let conn = bench.recorder.accepted()[0];
    bench.until(|recorder| recorder.close_kind(conn).is_some());
    let why = CloseKind::Insecure(Failure::NotTls);
    assert_eq!(bench.recorder.close_kind(conn), Some(why));
    assert_eq!(bench.recorder.received(conn), b"");
    // An alert at most, and the end.
    let mut heard = Vec::new();
    let _ = peer.read_to_end(&mut heard);
    assert!(heard.len() < 10, "{heard:?}");
}

fn gives_up_half_a_handshake<D: Driver>(new: fn() -> D) {
    let mut bench = new_bench(new);
    bench.recorder.acceptor = Some(acceptor(150));
    let address = bench.listen(3, "127.0.0.1:0");
    let began = Instant::now();
    let silent = TcpStream::connect(address).unwrap();
    let mut half = Peer::client(address);
    half.process().unwrap();
    bench.until(|recorder| recorder.accepted().len() == 2);
    // One that is through stays.
    let (mut peer, conn) = accept(&mut bench, address);
    for conn in [client(0, 7), client(1, 7)] {
        // Nothing happens that would end the wait.
        while bench.recorder.close_kind(conn).is_none() {
            assert!(began.elapsed() < PATIENCE);
            bench.driver.wait(None, &mut bench.recorder).unwrap();
        }
        let why = CloseKind::Insecure(Failure::TimedOut);
        assert_eq!(bench.recorder.close_kind(conn), Some(why));
    }
    assert!(began.elapsed() >= Duration::from_millis(150));
    drop(silent);
    peer.say(b"here");
    bench.until(|recorder| recorder.received(conn) == b"here");
}

fn reports_who_leaves_within_a_handshake<D: Driver>(new: fn() -> D) {
    let mut bench = new_bench(new);
    let address = bench.listen(3, "127.0.0.1:0");
    drop(TcpStream::connect(address).unwrap());
    bench.until(|recorder| recorder.close_kind(client(0, 7)).is_some());
    reset(TcpStream::connect(address).unwrap());
    let mut half = Peer::client(address);
    half.process().unwrap();
    half.socket.shutdown(Shutdown::Write).unwrap();
    bench.until(|recorder| recorder.accepted().len() >= 2);
    bench.until(|recorder| {
        let accepted = recorder.accepted();
        accepted.iter().all(|&conn| recorder.close_kind(conn).is_some())
    });
    for conn in bench.recorder.accepted() {
        let why = bench.recorder.close_kind(conn);
        assert_eq!(why, Some(CloseKind::Insecure(Failure::Closed)));
    }
}

fn refuses_with_silence_whom_the_handler_does_not_want<D: Driver>(new: fn() -> D) {
    let mut bench = new_bench(new);
    bench.recorder.is_full = true;
    let address = bench.listen(3, "127.0.0.1:0");
    let mut peer = TcpStream::connect(address).unwrap();
    bench.until(|recorder| recorder.refused == 1);
    let mut heard = Vec::new();
    peer.read_to_end(&mut heard).unwrap();
    assert_eq!(heard, b"");
}

fn serves_others_while_many_shake_hands<D: Driver>(new: fn() -> D) {
    const MANY: usize = 40;
    let mut bench = new_bench(new);
    let address = bench.listen(3, "127.0.0.1:0");
    let (mut peer, conn) = accept(&mut bench, address);
    let mut crowd: Vec<Peer> = (0..MANY).map(|_| Peer::client(address)).collect();
    crowd.iter_mut().for_each(|peer| peer.process().unwrap());
    bench.until(|recorder| recorder.accepted().len() == MANY + 1);
    thread::sleep(QUIET);
    peer.say(b"ping");
    // Whoever is through is heard before all hands are shaken: in a debug build one takes more than the time for all.
    let mut waits = 0;
    while bench.recorder.received(conn).is_empty() {
        bench.tick(Duration::from_millis(20));
        waits += 1;
    }
    assert!(waits < MANY / 2, "{waits}");
    let mut crowd =
        during(&mut bench, || crowd.into_iter().map(Peer::shake_hands).collect::<Vec<_>>());
    bench.until(|recorder| recorder.secured.len() == MANY + 1);
    for peer in &mut crowd {
        peer.say(b"hello");
    }
    let conns = bench.recorder.accepted();
    bench.until(|recorder| conns[1..].iter().all(|&conn| recorder.received(conn) == b"hello"));
}

fn serves_plain_and_secured_clients_side_by_side<D: Driver>(new: fn() -> D) {
    let mut bench = new_bench(new);
    let address = bench.listen(3, "127.0.0.1:0");
    let (mut secured, one) = accept(&mut bench, address);
    bench.recorder.acceptor = None;
    let (mut plain, other) = bench.accept(address);
    secured.say(b"secret");
    plain.write_all(b"open").unwrap();
    bench.until(|recorder| recorder.received(one) == b"secret");
    bench.until(|recorder| recorder.received(other) == b"open");
    bench.send(one, "secret");
    bench.send(other, "open");
    let mut back = [0; 4];
    plain.read_exact(&mut back).unwrap();
    assert_eq!((&back, &*secured.hear(6)), (b"open", &b"secret"[..]));
}

/// Connects to a server that does `serve` with the first connection, and waits for the outcome.
fn connect<D: Driver, T: Send>(
    bench: &mut Benches<D>,
    ca: &str,
    serve: impl FnOnce(TcpStream) -> T + Send,
) -> (Option<CloseKind>, T) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    let conn = server(0, 1);
    let (connector, host) = (connector(ca), Some("127.0.0.1"));
    bench.driver.connect_secured(conn, &address, &connector, host, PATIENCE / 2).unwrap();
    let served = during(bench, || serve(listener.accept().unwrap().0));
    bench.until(|recorder| {
        recorder.has(Event::Connected(conn)) || recorder.close_kind(conn).is_some()
    });
    (bench.recorder.close_kind(conn), served)
}

fn connects_to_a_server<D: Driver>(new: fn() -> D) {
    let mut bench = new_bench(new);
    let (why, mut peer) =
        connect(&mut bench, &FILES.0, |socket| Peer::server(socket).shake_hands());
    assert_eq!(why, None);
    let conn = server(0, 1);
    bench.send(conn, "question");
    assert_eq!(peer.hear(8), b"question");
    peer.say(b"answer");
    bench.until(|recorder| recorder.received(conn) == b"answer");
    let story = [Event::Connected(conn), Event::Received(conn)];
    assert_eq!(bench.recorder.story(conn), story);
    // What was given up is not written later.
    bench.driver.give_up(conn);
    bench.driver.close(conn);
    while peer.read() {}
    assert!(!peer.is_ended);
}

fn distrusts_a_server<D: Driver>(new: fn() -> D) {
    let mut bench = new_bench(new);
    let other = Authority::new().certificate();
    let (why, failure) = connect(&mut bench, &other, |socket| {
        let mut peer = Peer::server(socket);
        let mut bytes = [0; 70_000];
        loop {
            let len = peer.socket.read(&mut bytes).unwrap();
            peer.input.extend_from_slice(&bytes[..len]);
            if let Err(failure) = peer.process() {
                return failure;
            }
        }
    });
    assert_eq!(why, Some(CloseKind::Insecure(Failure::Untrusted)));
    // It is told why.
    assert_eq!(failure, Failure::Refused);
    assert!(!bench.recorder.has(Event::Connected(server(0, 1))));
}

fn finds_that_a_server_speaks_no_tls<D: Driver>(new: fn() -> D) {
    let mut bench = new_bench(new);
    let (why, ()) = connect(&mut bench, &FILES.0, |mut socket| {
        let _ = socket.read(&mut [0; 10]).unwrap();
        socket.write_all(b"-ERR unknown command\r\n").unwrap();
        let _ = socket.read_to_end(&mut Vec::new());
    });
    assert_eq!(why, Some(CloseKind::Insecure(Failure::NotTls)));
    let mut bench = new_bench(new);
    let (why, ()) = connect(&mut bench, &FILES.0, drop);
    assert_eq!(why, Some(CloseKind::Insecure(Failure::Closed)));
    // Where nobody listens that is still said.
    let address = Address::Tcp(bench::free_address());
    let conn = server(1, 1);
    let connector = connector(&FILES.0);
    let host = Some("127.0.0.1");
    let result = bench.driver.connect_secured(conn, &address, &connector, host, PATIENCE);
    if result.is_ok() {
        bench.until(|recorder| recorder.close_kind(conn).is_some());
    }
    let why = result.err().or(bench.recorder.close_kind(conn));
    assert_eq!(why, Some(CloseKind::Refused));
}

fn gives_up_a_server_that_says_nothing<D: Driver>(new: fn() -> D) {
    let mut bench = new_bench(new);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    let conn = server(0, 1);
    let (connector, timeout) = (connector(&FILES.0), Duration::from_millis(100));
    bench.driver.connect_secured(conn, &address, &connector, None, timeout).unwrap();
    bench.until(|recorder| recorder.close_kind(conn).is_some());
    let why = CloseKind::Insecure(Failure::TimedOut);
    assert_eq!(bench.recorder.close_kind(conn), Some(why));
}

fn reports_a_reset<D: Driver>(new: fn() -> D) {
    let mut bench = new_bench(new);
    let address = bench.listen(3, "127.0.0.1:0");
    let (peer, conn) = accept(&mut bench, address);
    reset(peer.socket);
    bench.until(|recorder| recorder.close_kind(conn).is_some());
    assert_eq!(bench.recorder.close_kind(conn), Some(CloseKind::Reset));
    assert!(!bench.driver.is_secured(conn));
}

fn keeps_to_no_low_water_mark<D: Driver>(new: fn() -> D) {
    let mut bench = new_bench(new);
    let address = bench.listen(3, "127.0.0.1:0");
    let (mut peer, conn) = accept(&mut bench, address);
    bench.driver.set_low_water(conn, 100_000);
    peer.say(b"little");
    bench.until(|recorder| recorder.received(conn) == b"little");
}

/// Moves a connection to another driver.
#[track_caller]
fn hand_over<D: Driver, E: Driver>(bench: &mut Benches<D>, conn: Token, to: &mut Benches<E>) {
    bench.driver.detach(conn);
    bench.until(|recorder| {
        recorder.luggage.contains_key(&conn) || recorder.close_kind(conn).is_some()
    });
    let (socket, luggage) = bench.recorder.luggage.remove(&conn).expect("it has not ended");
    assert!(!bench.driver.is_secured(conn));
    bench.move_record(conn, to);
    to.driver.adopt_secured(conn, socket, luggage).unwrap();
    to.flush(conn);
}

fn goes_on_with_another_driver<D: Driver>(new: fn() -> D) {
    let (mut here, mut there) = (new_bench(new), new_bench(new));
    let address = here.listen(3, "127.0.0.1:0");
    let (mut peer, conn) = accept(&mut here, address);
    let mut expected = Vec::new();
    for round in 0..10 {
        let text = format!("round {round} ").repeat(3000).into_bytes();
        peer.say(&text);
        expected.extend(&text);
        // What is under way goes along, or is found there.
        here.tick(Duration::from_millis(1));
        hand_over(&mut here, conn, &mut there);
        there.until(|recorder| recorder.received(conn).len() == expected.len());
        there.send(conn, text.clone());
        assert!(during(&mut there, || peer.hear(text.len())) == text);
        hand_over(&mut there, conn, &mut here);
    }
    here.until(|recorder| recorder.received(conn) == expected);
    peer.say(b"last");
    peer.end();
    here.until(|recorder| recorder.has(Event::ReadClosed(conn)));
    hand_over(&mut here, conn, &mut there);
    there.until(|recorder| recorder.has(Event::ReadClosed(conn)));
    there.send(conn, "words");
    there.driver.close(conn);
    assert_eq!(peer.hear(5), b"words");
    while peer.read() {}
    assert!(peer.is_ended);
}

fn goes_on_with_what_is_not_written<D: Driver>(new: fn() -> D) {
    const SIZE: usize = 30 << 20;
    let (mut here, mut there) = (new_bench(new), new_bench(new));
    let address = here.listen(3, "127.0.0.1:0");
    let (mut peer, conn) = accept(&mut here, address);
    here.send(conn, pattern(SIZE));
    here.linger();
    assert!(!here.recorder.is_all_sent(conn));
    hand_over(&mut here, conn, &mut there);
    let mut peer = during(&mut there, || {
        assert!(peer.hear(SIZE) == pattern(SIZE));
        peer
    });
    there.until(|recorder| recorder.is_all_sent(conn));
    peer.say(b"all");
    there.until(|recorder| recorder.received(conn) == b"all");
}
