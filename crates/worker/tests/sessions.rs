//! Sessions that move from worker to worker.

mod harness;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use cashew_config::snapshot::Protocol;
use cashew_control::{SESSION_VERSION, Session, ToChild, ToMaster, seal};
use cashew_metrics::PoolGauge;

use harness::{
    Instance, Load, PATIENCE, Record, Server, Worker, change_epoch, expect, expect_end, get,
    listener, patient, value,
};

fn yaml(io_engine: &str, servers: &[&Server]) -> String {
    let mut text = format!(
        "global:\n  worker_shutdown_timeout: 1\n  io_engine: {io_engine}\npools:\n  p:\n    \
         listen: 127.0.0.1:1\n    redis: true\n    client_connections: 100\n    servers:\n"
    );
    for server in servers {
        text += &format!("    - {}:1\n", server.address);
    }
    text
}

/// Two workers, and the socket that the first accepts from.
struct Pair {
    instance: Instance,
    workers: Vec<Worker>,
    _socket: TcpListener,
    address: SocketAddr,
}

impl Pair {
    fn start(io_engine: &str, server: &Server) -> Self {
        let instance = Instance::new(&yaml(io_engine, &[server]));
        let workers: Vec<Worker> = (0..2).map(|slot| Worker::start(&instance, slot, 2)).collect();
        let (socket, address) = listener();
        workers[0].listen(0, 0, &socket);
        Self { instance, workers, _socket: socket, address }
    }

    fn client(&self) -> TcpStream {
        patient(TcpStream::connect(self.address).unwrap())
    }

    /// Gives what the worker hands over to the other one, until `count` sessions have moved.
    fn move_from(&mut self, from: usize, count: usize) -> Vec<Session> {
        let start = Instant::now();
        let mut moved = Vec::new();
        while moved.len() < count {
            assert!(start.elapsed() < PATIENCE, "{} of {count} moved", moved.len());
            match self.workers[from].try_receive() {
                Some((ToMaster::HandOver { session }, descriptors)) => {
                    let adopt = ToChild::Adopt { session: session.clone() };
                    self.workers[1 - from].send(adopt, &descriptors);
                    moved.push(session);
                }
                Some((other, _)) => panic!("{other:?}"),
                None => thread::sleep(Duration::from_millis(1)),
            }
        }
        moved
    }

    /// Moves all clients, which all send requests, from the worker to the other one.
    fn shed_all(&mut self, from: usize, clients: u64) {
        let start = Instant::now();
        while self.clients(1 - from as u32) < clients {
            assert!(start.elapsed() < PATIENCE, "{} left", self.clients(from as u32));
            self.workers[from].tell(ToChild::Shed { permille: 1000 });
            let pause = Instant::now();
            while pause.elapsed() < Duration::from_millis(10) {
                match self.workers[from].try_receive() {
                    Some((ToMaster::HandOver { session }, descriptors)) => {
                        self.workers[1 - from].send(ToChild::Adopt { session }, &descriptors);
                    }
                    Some((other, _)) => panic!("{other:?}"),
                    None => thread::sleep(Duration::from_millis(1)),
                }
            }
        }
    }

    fn clients(&self, slot: u32) -> u64 {
        let pool = self.instance.segments.layout().pool(0);
        self.instance.segments.pool_gauge(slot, pool, PoolGauge::ClientConnections)
    }

    fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < PATIENCE, "{what}");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn exchange_under_load(io_engine: &str) {
    const CLIENTS: usize = 40;
    const ROUNDS: usize = 10;
    let server = Server::start('a', &Record::default());
    let mut pair = Pair::start(io_engine, &server);
    let load = Load::start(&[pair.address; CLIENTS], 30);
    pair.wait("all are there", |pair| pair.clients(0) == CLIENTS as u64);
    let start = Instant::now();
    for round in 0..ROUNDS {
        pair.shed_all(round % 2, CLIENTS as u64);
        load.wait(500);
        assert_eq!(pair.instance.shared.taken(0), CLIENTS as u64);
    }
    eprintln!("{io_engine}: {} sessions in {:?}", ROUNDS * CLIENTS, start.elapsed());
    load.stop();
    pair.wait("all are gone", |pair| {
        pair.instance.shared.taken(0) == 0 && pair.clients(0) + pair.clients(1) == 0
    });
    let headers = [0, 1].map(|slot| pair.instance.segments.header(slot));
    let moved = (ROUNDS * CLIENTS / 2) as u64;
    assert_eq!(headers.map(|header| header.sessions_out), [moved; 2]);
    assert_eq!(headers.map(|header| header.sessions_in), [moved; 2]);
    assert_eq!(headers.map(|header| header.sessions_cut), [0; 2]);
}

#[test]
fn two_workers_exchange_their_sessions_under_pipelined_load() {
    exchange_under_load("epoll");
}

#[test]
fn two_workers_exchange_their_sessions_with_io_uring() {
    exchange_under_load("uring");
}

#[test]
fn a_session_moves_with_its_state_and_its_bytes() {
    let server = Server::start('a', &Record::default());
    let mut pair = Pair::start("auto", &server);
    let mut client = pair.client();
    client.write_all(b"*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$3\r\nben\r\n").unwrap();
    expect(&mut client, b"+OK\r\n");
    client.write_all(b"*2\r\n$6\r\nCLIENT\r\n$2\r\nID\r\n").unwrap();
    expect(&mut client, b":1\r\n");
    // The worker has received the partial request once it has answered what came with it.
    let request = get(7);
    client.write_all(&[&get(6), &request[..15]].concat()).unwrap();
    expect(&mut client, &value(6));
    pair.workers[0].tell(ToChild::Retire { timeout_ms: 60_000 });
    let session = pair.move_from(0, 1).remove(0);
    assert_eq!(session.name.as_deref(), Some(&b"ben"[..]));
    assert_eq!((&*session.pool, session.id, session.input), ("p", 1, 15));
    client.write_all(&request[15..]).unwrap();
    expect(&mut client, &value(7));
    client.write_all(b"*2\r\n$6\r\nCLIENT\r\n$2\r\nID\r\n").unwrap();
    expect(&mut client, b":1\r\n");
    let retired = pair.workers.remove(0);
    retired.join();
    client.write_all(&get(8)).unwrap();
    expect(&mut client, &value(8));
}

#[test]
fn a_worker_that_retires_may_be_asked_to_stay() {
    // The first client is not at rest: its request has no answer.
    let (silent, address) = listener();
    let mut pair = Pair::start("auto", &Server { address });
    let mut busy = pair.client();
    busy.write_all(&get(1)).unwrap();
    let mut server = patient(silent.accept().unwrap().0);
    expect(&mut server, &get(1));
    let idle: Vec<TcpStream> = (0..20).map(|_| pair.client()).collect();
    pair.wait("all are there", |pair| pair.clients(0) == 21);
    pair.workers[0].tell(ToChild::Retire { timeout_ms: 60_000 });
    pair.move_from(0, 20);
    pair.workers[0].tell(ToChild::Unretire);
    let (socket, address) = listener();
    pair.workers[0].listen(9, 0, &socket);
    let mut late = patient(TcpStream::connect(address).unwrap());
    server.write_all(&value(1)).unwrap();
    expect(&mut busy, &value(1));
    for (number, client) in [(2, &mut late), (3, &mut busy)] {
        client.write_all(&get(number)).unwrap();
        expect(&mut server, &get(number));
        server.write_all(&value(number)).unwrap();
        expect(client, &value(number));
    }
    pair.wait("all have moved", |pair| (pair.clients(0), pair.clients(1)) == (2, 20));
    drop(idle);
}

#[test]
fn a_worker_that_keeps_its_sessions_confirms_after_the_last_handover() {
    for (io_engine, delay_us) in [("epoll", 0), ("epoll", 300), ("uring", 0), ("uring", 300)] {
        // One client is not at rest: its request has no answer.
        let (silent, address) = listener();
        let mut pair = Pair::start(io_engine, &Server { address });
        let mut busy = pair.client();
        busy.write_all(&get(1)).unwrap();
        let mut server = patient(silent.accept().unwrap().0);
        expect(&mut server, &get(1));
        let mut idle: Vec<TcpStream> = (0..90).map(|_| pair.client()).collect();
        pair.wait("all are there", |pair| pair.clients(0) == 91);
        pair.workers[0].tell(ToChild::Retire { timeout_ms: 60_000 });
        thread::sleep(Duration::from_micros(delay_us));
        pair.workers[0].tell(ToChild::Keep);
        let mut moved = Vec::new();
        loop {
            match pair.workers[0].receive() {
                (ToMaster::HandOver { session }, descriptors) => moved.push((session, descriptors)),
                (ToMaster::Kept, _) => break,
                (other, _) => panic!("{other:?}"),
            }
        }
        let left = 90 - moved.len();
        eprintln!("{io_engine}: {left} of 90 are kept");
        assert_eq!(pair.clients(0), left as u64 + 1);
        for (session, descriptors) in moved {
            pair.workers[1].send(ToChild::Adopt { session }, &descriptors);
        }
        server.write_all(&value(1)).unwrap();
        expect(&mut busy, &value(1));
        for client in &mut idle {
            client.write_all(b"PING\r\n").unwrap();
            expect(client, b"+PONG\r\n");
        }
        assert_eq!(pair.workers[0].try_receive().map(|(message, _)| message), None);
        // It retires when it gets another Retire.
        pair.workers[0].tell(ToChild::Retire { timeout_ms: 60_000 });
        pair.move_from(0, left + 1);
        pair.wait("all have moved", |pair| pair.clients(1) == 91);
    }
}

#[test]
fn a_part_of_the_load_can_be_shed() {
    let server = Server::start('a', &Record::default());
    let mut pair = Pair::start("auto", &server);
    let load = Load::start(&[pair.address; 8], 10);
    load.wait(2000);
    pair.workers[0].tell(ToChild::Shed { permille: 500 });
    pair.move_from(0, 1);
    load.wait(2000);
    let start = Instant::now();
    let mut moved = 1;
    // All have moved, and no more come.
    while start.elapsed() < Duration::from_millis(300)
        || (pair.clients(0), pair.clients(1)) != (8 - moved, moved)
    {
        assert!(start.elapsed() < PATIENCE, "{moved} moved, {} there", pair.clients(1));
        match pair.workers[0].try_receive() {
            Some((ToMaster::HandOver { session }, descriptors)) => {
                pair.workers[1].send(ToChild::Adopt { session }, &descriptors);
                moved += 1;
            }
            Some((other, _)) => panic!("{other:?}"),
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
    assert!((1..=4).contains(&moved), "{moved}");
    load.stop();
}

#[test]
fn clients_not_at_rest_in_time_are_closed_and_counted() {
    // The server never answers.
    let (silent, address) = listener();
    let instance = Instance::new(&yaml("auto", &[&Server { address }]));
    let worker = Worker::start(&instance, 0, 1);
    let (socket, address) = listener();
    worker.listen(0, 0, &socket);
    let mut client = patient(TcpStream::connect(address).unwrap());
    client.write_all(&get(1)).unwrap();
    let _server = silent.accept().unwrap();
    let start = Instant::now();
    worker.tell(ToChild::Retire { timeout_ms: 300 });
    worker.join();
    assert!(start.elapsed() >= Duration::from_millis(300));
    expect_end(client);
    assert_eq!(instance.segments.header(0).sessions_cut, 1);
    // Whoever clears the slot returns its quotas.
    let pool = instance.segments.layout().pool(0);
    assert_eq!(instance.segments.pool_gauge(0, pool, PoolGauge::ClientConnections), 1);
    assert_eq!(instance.shared.taken(0), 1);
}

#[test]
fn invalid_sessions_are_closed() {
    let server = Server::start('a', &Record::default());
    let pair = Pair::start("auto", &server);
    let version = SESSION_VERSION;
    let good = Session { version, pool: "p".to_owned(), id: 5, ..Session::default() };
    let bad = [
        (Session { pool: "q".to_owned(), ..good.clone() }, None),
        (Session { protocol: Some(Protocol::Memcached), ..good.clone() }, None),
        (Session { version: 99, ..good.clone() }, None),
        (Session { input: 3, ..good.clone() }, Some(seal(b"ab").unwrap())),
    ];
    for (session, bytes) in bad {
        let (ours, theirs) = connection();
        let descriptors: Vec<OwnedFd> = [theirs].into_iter().chain(bytes).collect();
        pair.workers[1].send(ToChild::Adopt { session }, &descriptors);
        drop(descriptors);
        expect_end(ours);
    }
    pair.wait("theirs are given back", |pair| pair.instance.shared.taken(0) == 0);
    assert!(pair.instance.shared.take(0, 100));
    let (mut ours, theirs) = connection();
    ours.write_all(&get(1)).unwrap();
    let output = seal(b"+first\r\n").unwrap();
    let session = Session { output: 8, ..good };
    pair.workers[1].send(ToChild::Adopt { session }, &[theirs, output]);
    expect(&mut ours, b"+first\r\n");
    expect(&mut ours, &value(1));
    drop(ours);
    pair.wait("its place is given back", |pair| pair.instance.shared.taken(0) == 0);
    assert_eq!(pair.instance.segments.header(1).sessions_cut, 4);
}

#[test]
fn a_session_is_confirmed_before_it_is_served_or_is_not_served() {
    let server = Server::start('a', &Record::default());
    let instance = Instance::new(&yaml("auto", &[&server]));
    let mut served = 0;
    for round in 0..40 {
        let mut worker = Worker::start(&instance, 0, 1);
        // It has no clients, so it may have ended before the session arrives.
        worker.tell(ToChild::Retire { timeout_ms: 60_000 });
        thread::sleep(Duration::from_micros(round * 20));
        let master = worker.master.as_mut().unwrap();
        let (mut ours, theirs) = connection();
        ours.write_all(&get(round)).unwrap();
        let session =
            Session { version: SESSION_VERSION, pool: "p".to_owned(), id: 5, ..Session::default() };
        let is_sent = master.send(&ToChild::Unretire, &[]).is_ok()
            && master.send(&ToChild::Adopt { session }, &[theirs.as_fd()]).is_ok();
        drop(theirs);
        let mut reply = vec![0; value(round).len()];
        let is_served = ours.read_exact(&mut reply).is_ok();
        let is_confirmed = match master.receive() {
            Ok(Some((ToMaster::Adopted, _))) => true,
            Ok(Some(other)) => panic!("{other:?}"),
            Ok(None) | Err(_) => false,
        };
        assert_eq!(is_confirmed, is_served, "{is_sent}");
        served += u32::from(is_served);
        if is_served {
            drop(ours);
            worker.tell(ToChild::Shutdown);
        }
        worker.join();
    }
    eprintln!("{served} of 40 were served");
}

/// A client, and its connection as a worker would have accepted it.
fn connection() -> (TcpStream, OwnedFd) {
    let (listener, address) = listener();
    let client = patient(TcpStream::connect(address).unwrap());
    (client, listener.accept().unwrap().0.into())
}

#[test]
fn sessions_move_between_changes_of_the_epoch() {
    let record = Record::default();
    let servers = [Server::start('a', &record), Server::start('b', &record)];
    let mut pair = Pair::start("auto", &servers[0]);
    let load = Load::start(&[pair.address; 10], 10);
    pair.wait("all are there", |pair| pair.clients(0) == 10);
    for round in 0..6 {
        pair.shed_all(round % 2, 10);
        let next = pair.instance.next(&yaml("auto", &[&servers[(round + 1) % 2]]));
        change_epoch(&mut pair.workers, &next);
        pair.instance = next;
        load.wait(200);
    }
    load.stop();
    let record = record.lock().unwrap();
    assert_eq!(record.chunk_by(|one, other| one == other).count(), 7);
}
