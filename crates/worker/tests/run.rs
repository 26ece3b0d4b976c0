//! One worker from start to end.

#[path = "../../../tests/rust/addresses.rs"]
mod addresses;
mod harness;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::{Deref, DerefMut};
use std::thread;
use std::time::{Duration, Instant};

use cashew_control::{MasterChannel, ToChild, ToMaster};

use harness::{Instance, PATIENCE, expect, expect_end, patient};

const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n";

/// A worker that serves one pool.
struct Worker {
    worker: harness::Worker,
    instance: Instance,
    _socket: TcpListener,
    address: SocketAddr,
}

impl Worker {
    /// Starts a worker for a pool with these options over one server.
    fn start(server: &str, options: &str) -> Self {
        Self::start_to_stop_within(PATIENCE.as_secs(), server, options)
    }

    fn start_to_stop_within(seconds: u64, server: &str, options: &str) -> Self {
        let (socket, address) = harness::listener();
        let yaml = format!(
            "global:\n  worker_shutdown_timeout: {seconds}\npools:\n  p:\n    listen: {address}\n    \
             redis: true\n    {options}\n    servers:\n    - {server}:1\n    - 127.0.0.1:1:1 spare\n"
        );
        let instance = Instance::new(&yaml);
        // All keys go to this server: the spare server is out of the ring.
        let servers = &instance.snapshot.pools[0].servers;
        let live: Vec<bool> = servers.iter().map(|server| server.name != "spare").collect();
        let release = ToChild::Release { pool: 0, version: 1, topology: live.into() };
        let worker = harness::Worker::begin(&instance, 0, 1, &[release]);
        worker.listen(0, 0, &socket);
        Self { worker, instance, _socket: socket, address }
    }

    fn client(&self) -> TcpStream {
        patient(TcpStream::connect(self.address).unwrap())
    }

    /// Waits until it has ended by itself.
    fn join(self) -> Duration {
        self.worker.join()
    }
}

impl Deref for Worker {
    type Target = harness::Worker;

    fn deref(&self) -> &harness::Worker {
        &self.worker
    }
}

impl DerefMut for Worker {
    fn deref_mut(&mut self) -> &mut harness::Worker {
        &mut self.worker
    }
}

fn server() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

fn accept(listener: &TcpListener) -> TcpStream {
    patient(listener.accept().unwrap().0)
}

/// Sends one request and its reply. Returns both ends.
fn exchange(worker: &Worker, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let mut client = worker.client();
    client.write_all(GET).unwrap();
    let mut server = accept(listener);
    expect(&mut server, GET);
    server.write_all(b"$3\r\nabc\r\n").unwrap();
    expect(&mut client, b"$3\r\nabc\r\n");
    (client, server)
}

#[test]
fn it_serves() {
    let (listener, address) = server();
    let worker = Worker::start(&address, "");
    let (mut client, mut server) = exchange(&worker, &listener);
    let value = vec![b'v'; 1_000_000];
    let reply = [b"$1000000\r\n", value.as_slice(), b"\r\n"].concat();
    client.write_all(&GET.repeat(2)).unwrap();
    expect(&mut server, &GET.repeat(2));
    let sent = [reply.as_slice(), b"$-1\r\n"].concat();
    let writer = thread::spawn(move || server.write_all(&sent).map(|()| server));
    let mut got = vec![0; reply.len()];
    client.read_exact(&mut got).unwrap();
    assert!(got == reply);
    expect(&mut client, b"$-1\r\n");
    writer.join().unwrap().unwrap();
    worker.tell(ToChild::Shutdown);
    expect_end(client);
    worker.join();
}

#[test]
fn it_finds_servers_by_name() {
    // A name may have an address of each family; nobody listens at the other one.
    let (listener, address) = server();
    let port = address.rsplit(':').next().unwrap();
    let worker = Worker::start(&format!("localhost:{port}"), "preconnect: true");
    let (_client, _server) = exchange(&worker, &listener);
}

#[test]
fn a_shutdown_finishes_what_is_in_flight() {
    let (listener, address) = server();
    let worker = Worker::start(&address, "");
    let (mut client, mut server) = exchange(&worker, &listener);
    let idle = worker.client();
    client.write_all(GET).unwrap();
    expect(&mut server, GET);
    worker.tell(ToChild::Shutdown);
    expect_end(idle);
    server.write_all(b"+late\r\n").unwrap();
    expect(&mut client, b"+late\r\n");
    expect_end(client);
    worker.join();
}

#[test]
fn a_shutdown_waits_no_longer_than_it_may() {
    let (listener, address) = server();
    let worker = Worker::start_to_stop_within(1, &address, "");
    let (mut client, mut server) = exchange(&worker, &listener);
    client.write_all(GET).unwrap();
    expect(&mut server, GET);
    let at = Instant::now();
    worker.tell(ToChild::Shutdown);
    worker.join();
    assert!(at.elapsed() >= Duration::from_millis(990), "{:?}", at.elapsed());
    expect_end(server);
}

#[test]
fn without_a_master_it_finishes_and_ends() {
    let (listener, address) = server();
    let mut worker = Worker::start(&address, "");
    let (mut client, mut server) = exchange(&worker, &listener);
    client.write_all(GET).unwrap();
    expect(&mut server, GET);
    worker.master = None;
    server.write_all(b"+late\r\n").unwrap();
    expect(&mut client, b"+late\r\n");
    expect_end(client);
    worker.join();
}

#[test]
fn it_holds_its_clients_on_order() {
    let (listener, address) = server();
    let mut worker = Worker::start(&address, "");
    let (mut client, mut server) = exchange(&worker, &listener);
    worker.tell(ToChild::Hold { pool: 0, version: 2, drain_ms: 0 });
    assert_eq!(worker.message(), ToMaster::Held { pool: 0, version: 2 });
    client.write_all(GET).unwrap();
    server.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert!(server.read(&mut [0]).is_err());
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    // The spare server comes first, since its name is shorter.
    worker.tell(ToChild::Release { pool: 0, version: 2, topology: vec![false, true].into() });
    expect(&mut server, GET);
    server.write_all(b"$-1\r\n").unwrap();
    expect(&mut client, b"$-1\r\n");
}

#[test]
fn it_shows_that_it_lives_and_how_busy_it_is() {
    let (_listener, address) = server();
    let worker = Worker::start(&address, "");
    let header = || worker.instance.segments.header(0);
    let measure = || {
        let start = Instant::now();
        let mut beats = vec![header().heartbeat_ms];
        while start.elapsed() < Duration::from_millis(1200) {
            let beat = header().heartbeat_ms;
            if beats.last() != Some(&beat) {
                beats.push(beat);
            }
            thread::sleep(Duration::from_millis(5));
        }
        (beats, header().busy)
    };
    let begin = Instant::now();
    loop {
        // Every 100 ms. A busy machine may miss some or almost all; then it is measured again.
        let (beats, busy) = measure();
        if (6..=13).contains(&beats.len()) && busy < 500 {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{beats:?}, busy: {busy}");
    }
}

#[test]
fn it_listens_elsewhere_on_order() {
    let (listener, address) = server();
    let worker = Worker::start(&address, "");
    let (_client, mut server) = exchange(&worker, &listener);
    let (socket, other) = harness::listener();
    // Clients that wait there already are taken in.
    let mut waiting = TcpStream::connect(other).map(patient).unwrap();
    worker.listen(1, 0, &socket);
    worker.tell(ToChild::Unlisten { listener: 1, drain: true });
    worker.tell(ToChild::Unlisten { listener: 0, drain: false });
    waiting.write_all(GET).unwrap();
    expect(&mut server, GET);
    server.write_all(b"$-1\r\n").unwrap();
    expect(&mut waiting, b"$-1\r\n");
    for address in [other, worker.address] {
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        client.write_all(GET).unwrap();
        assert!(client.read(&mut [0]).is_err(), "nobody accepts there");
    }
}

/// The shortest of several times for a request in two small writes, from a client that leaves
/// Nagle's algorithm on, as many do.
fn time_in_two_parts(options: &str) -> Duration {
    let record = harness::Record::default();
    let address = harness::Server::start('a', &record).address;
    let worker = Worker::start(&address.to_string(), options);
    let mut client = TcpStream::connect(worker.address).map(patient).unwrap();
    client.set_nodelay(false).unwrap();
    let request = harness::get(1);
    let mut ask = |parts: [&[u8]; 2]| {
        let start = Instant::now();
        parts.iter().for_each(|part| client.write_all(part).unwrap());
        expect(&mut client, &harness::value(1));
        start.elapsed()
    };
    // At first the kernel acknowledges at once, until it has seen that replies follow soon.
    for _ in 0..50 {
        ask([&request, b""]);
    }
    (0..8).map(|_| ask([&request[..9], &request[9..]])).min().unwrap()
}

#[test]
fn quick_acknowledgements_spare_clients_a_wait() {
    let delayed = time_in_two_parts("");
    // Tried again if the machine is busy with other things.
    let mut quick = (0..20).map(|_| time_in_two_parts("tcp_quickack: true"));
    let quick = quick.find(|time| *time < Duration::from_millis(20));
    eprintln!("delayed: {delayed:?}, quick: {quick:?}");
    assert!(quick.is_some(), "as long as {delayed:?}");
}

#[test]
fn it_reports_a_server_that_fails() {
    let address = addresses::free_address().to_string();
    let options = "auto_eject_hosts: true\n    server_failure_limit: 1";
    let mut worker = Worker::start(&address, options);
    let mut client = worker.client();
    client.write_all(GET).unwrap();
    expect(&mut client, format!("-ERR Connection refused (server {address})\r\n").as_bytes());
    let why = "Connection refused".to_owned();
    let message = worker.message();
    assert!(matches!(&message, ToMaster::ServerDown { pool: 0, why: told, .. } if *told == why));
}

#[test]
fn it_refuses_an_invalid_start() {
    let (master, control) = cashew_control::pair().unwrap();
    let thread = thread::spawn(move || cashew_worker::run(control));
    let mut master = MasterChannel::new(master);
    master.send(&ToChild::Start, &[]).unwrap();
    assert!(thread.join().unwrap().is_err());
    assert!(matches!(master.receive(), Ok(Some((ToMaster::Failed { .. }, _)))));
}
