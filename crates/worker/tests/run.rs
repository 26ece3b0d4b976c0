//! A worker in a thread, with a master and servers played by the test.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cashew_config::Context;
use cashew_control::{MasterChannel, ToChild, ToMaster, seal};
use cashew_metrics::{Layout, Segments};

/// Longer than anything here takes, on a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(20);

const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n";

struct Worker {
    master: Option<MasterChannel>,
    thread: JoinHandle<Result<(), cashew_worker::Error>>,
    address: SocketAddr,
}

impl Worker {
    /// Serves a pool with the options over one server, and is ready.
    fn start(server: &str, options: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let yaml = format!(
            "global:\n  worker_shutdown_timeout: 1\npools:\n  p:\n    listen: {address}\n    \
             redis: true\n    {options}\n    servers:\n    - {server}:1\n    - 127.0.0.1:1:1 spare\n"
        );
        let Ok(loaded) = cashew_config::parse("test.yml", &yaml, &Context::of_system()) else {
            panic!("{yaml}");
        };
        let snapshot = loaded.snapshot;
        let sealed = seal(&cashew_config::to_json(&snapshot)).unwrap();
        let (metrics, _) = Segments::create(&Layout::new(&snapshot)).unwrap();
        let (master, control) = cashew_control::pair().unwrap();
        let thread = thread::spawn(move || cashew_worker::run(control));
        let master = MasterChannel::new(master);
        let init = ToChild::Init { slot: 0, rank: 0, workers: 1 };
        master.send(&init, &[sealed.as_fd(), metrics.as_fd()]).unwrap();
        let listener = OwnedFd::from(listener);
        master.send(&ToChild::Listen { listener: 0, pool: 0 }, &[listener.as_fd()]).unwrap();
        // Whatever the keys: the spare server is out of the ring.
        let live: Vec<bool> =
            snapshot.pools[0].servers.iter().map(|server| server.name != "spare").collect();
        master.send(&ToChild::Release { pool: 0, version: 1, live }, &[]).unwrap();
        master.send(&ToChild::Start, &[]).unwrap();
        let mut worker = Self { master: Some(master), thread, address };
        assert_eq!(worker.message(), ToMaster::Ready);
        worker
    }

    /// The next message to the master.
    fn message(&mut self) -> ToMaster {
        let master = self.master.as_mut().expect("the master is there");
        let start = Instant::now();
        loop {
            if let Some((message, _)) = master.receive().expect("the worker is there") {
                return message;
            }
            assert!(start.elapsed() < PATIENCE, "no message came");
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn tell(&self, message: ToChild) {
        self.master.as_ref().expect("the master is there").send(&message, &[]).unwrap();
    }

    fn client(&self) -> TcpStream {
        patient(TcpStream::connect(self.address).unwrap())
    }

    /// It ends by itself.
    fn join(self) -> Duration {
        let start = Instant::now();
        while !self.thread.is_finished() {
            assert!(start.elapsed() < PATIENCE, "it does not end");
            thread::sleep(Duration::from_millis(2));
        }
        self.thread.join().unwrap().unwrap();
        start.elapsed()
    }
}

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn server() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

fn accept(listener: &TcpListener) -> TcpStream {
    patient(listener.accept().unwrap().0)
}

#[track_caller]
fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(got.escape_ascii().to_string(), bytes.escape_ascii().to_string());
}

#[track_caller]
fn expect_end(mut stream: TcpStream) {
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

/// One request there and back; returns both ends.
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
    let worker = Worker::start(&address, "");
    let (mut client, mut server) = exchange(&worker, &listener);
    client.write_all(GET).unwrap();
    expect(&mut server, GET);
    worker.tell(ToChild::Shutdown);
    let took = worker.join();
    assert!(took >= Duration::from_millis(500), "{took:?}");
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
fn it_holds_its_clients_when_told() {
    let (listener, address) = server();
    let mut worker = Worker::start(&address, "");
    let (mut client, mut server) = exchange(&worker, &listener);
    worker.tell(ToChild::Hold { pool: 0, version: 2, drain_ms: 0 });
    assert_eq!(worker.message(), ToMaster::Held { pool: 0, version: 2 });
    client.write_all(GET).unwrap();
    server.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert!(server.read(&mut [0]).is_err());
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    // The spare one comes first, for its shorter name.
    worker.tell(ToChild::Release { pool: 0, version: 2, live: vec![false, true] });
    expect(&mut server, GET);
    server.write_all(b"$-1\r\n").unwrap();
    expect(&mut client, b"$-1\r\n");
}

#[test]
fn it_reports_a_server_that_fails() {
    let (listener, address) = server();
    drop(listener);
    let options = "auto_eject_hosts: true\n    server_failure_limit: 1";
    let mut worker = Worker::start(&address, options);
    let mut client = worker.client();
    client.write_all(GET).unwrap();
    expect(&mut client, b"-ERR Connection refused\r\n");
    let why = "Connection refused".to_owned();
    let message = worker.message();
    assert!(matches!(&message, ToMaster::ServerDown { pool: 0, why: told, .. } if *told == why));
}

#[test]
fn it_refuses_a_master_that_makes_no_sense() {
    let (master, control) = cashew_control::pair().unwrap();
    let thread = thread::spawn(move || cashew_worker::run(control));
    let mut master = MasterChannel::new(master);
    master.send(&ToChild::Start, &[]).unwrap();
    assert!(thread.join().unwrap().is_err());
    assert!(matches!(master.receive(), Ok(Some((ToMaster::Failed { .. }, _)))));
}
