//! Changes of the epoch, from the workers' side.

mod harness;

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use cashew_control::{ToChild, ToMaster};
use cashew_metrics::{PoolCounter, PoolGauge};

use harness::{
    Instance, Load, Record, Server, Worker, change_epoch, expect, expect_end, get, listener,
    patient, value,
};

/// Pools `(name, options, servers)`.
fn yaml(pools: &[(&str, &str, &[&Server])]) -> String {
    let mut text = "global:\n  worker_shutdown_timeout: 5\npools:\n".to_owned();
    for (port, (name, options, servers)) in (1..).zip(pools) {
        text += &format!("  {name}:\n    listen: 127.0.0.1:{port}\n    redis: true\n");
        if !options.is_empty() {
            text += &format!("    {options}\n");
        }
        text += "    servers:\n";
        for server in *servers {
            text += &format!("    - {}:1\n", server.address);
        }
    }
    text
}

fn connect(address: std::net::SocketAddr) -> TcpStream {
    patient(TcpStream::connect(address).unwrap())
}

fn ask(stream: &mut TcpStream, number: u64) {
    stream.write_all(&get(number)).unwrap();
    expect(stream, &value(number));
}

#[test]
fn all_workers_switch_at_once_and_no_request_fails() {
    let record = Record::default();
    let servers = [Server::start('a', &record), Server::start('b', &record)];
    let mut instance = Instance::new(&yaml(&[("p", "", &[&servers[0]])]));
    let (mut sockets, mut workers, mut addresses) = (Vec::new(), Vec::new(), Vec::new());
    for slot in 0..2 {
        let (socket, address) = listener();
        let worker = Worker::start(&instance, slot, 2);
        worker.listen(slot, 0, &socket);
        sockets.push(socket);
        workers.push(worker);
        addresses.extend([address; 3]);
    }
    let load = Load::start(&addresses, 20);
    const CHANGES: usize = 10;
    for change in 1..=CHANGES {
        load.wait(500);
        let next = instance.next(&yaml(&[("p", "", &[&servers[change % 2]])]));
        change_epoch(&mut workers, &next);
        instance = next;
    }
    load.wait(500);
    let answered = load.stop();
    let record = record.lock().unwrap();
    assert!(record.len() as u64 >= answered);
    let blocks = record.chunk_by(|one, other| one == other).count();
    assert_eq!(blocks, CHANGES + 1, "two rings were in use at a time");
    // Counters were carried over.
    let id = instance.segments.layout().pool(0);
    let requests = instance.segments.sum_pool_counter(id, PoolCounter::Requests);
    assert_eq!(requests, record.len() as u64);
    assert_eq!(instance.segments.header(1).epoch, instance.epoch());
}

#[test]
fn pools_come_and_go_and_keep_their_clients_and_listeners() {
    let record = Record::default();
    let servers = [Server::start('a', &record), Server::start('b', &record)];
    let (first, second) = (("first", "", &[&servers[0]][..]), ("second", "", &[&servers[1]][..]));
    let mut instance = Instance::new(&yaml(&[first, second]));
    let mut workers = [Worker::start(&instance, 0, 1)];
    let (sockets, addresses): (Vec<_>, Vec<_>) = (0..3).map(|_| listener()).unzip();
    workers[0].listen(10, 0, &sockets[0]);
    workers[0].listen(11, 1, &sockets[1]);
    let mut clients = [connect(addresses[0]), connect(addresses[1])];
    ask(&mut clients[0], 1);
    ask(&mut clients[1], 2);

    // The second takes the first's place; the first is removed.
    let third = ("a-third-pool", "", &[&servers[0]][..]);
    let mut next = instance.next(&yaml(&[second, third]));
    (next.states[0].quota, next.states[1].quota) = (1, 2);
    change_epoch(&mut workers, &next);
    instance = next;
    workers[0].listen(12, 1, &sockets[2]);
    ask(&mut clients[0], 3);
    ask(&mut clients[1], 4);
    let mut late = connect(addresses[0]);
    ask(&mut late, 5);
    ask(&mut connect(addresses[1]), 6);
    ask(&mut connect(addresses[2]), 7);
    let layout = instance.segments.layout();
    let requests =
        |pool| instance.segments.pool_counter(0, layout.pool(pool), PoolCounter::Requests);
    let start = Instant::now();
    while (requests(0), requests(1)) != (3, 1) {
        assert!(start.elapsed() < harness::PATIENCE, "{} and {}", requests(0), requests(1));
        thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(instance.shared.taken(0), 2, "clients of a removed pool are still counted");

    // Their time limit ends; then nobody else can come.
    let [old, mut kept] = clients;
    expect_end(old);
    expect_end(late);
    expect_end(connect(addresses[0]));
    ask(&mut kept, 8);
    let start = Instant::now();
    while instance.shared.taken(0) != 0 {
        assert!(start.elapsed() < harness::PATIENCE);
        thread::sleep(Duration::from_millis(2));
    }
    workers[0].tell(ToChild::Unlisten { listener: 11, drain: true });
    workers[0].tell(ToChild::Shutdown);
    expect_end(kept);
    for worker in workers {
        worker.join();
    }
}

#[test]
fn an_invalid_epoch_is_refused_and_one_may_be_aborted() {
    let record = Record::default();
    let servers = [Server::start('a', &record), Server::start('b', &record)];
    let instance = Instance::new(&yaml(&[("p", "", &[&servers[0]])]));
    let mut workers = [Worker::start(&instance, 0, 1)];
    let (socket, address) = listener();
    workers[0].listen(0, 0, &socket);
    let mut client = connect(address);
    ask(&mut client, 1);

    let next = instance.next(&yaml(&[("p", "", &[&servers[1]])]));
    let prepare = |epoch| ToChild::Prepare { epoch, rank: 0, workers: 1 };
    workers[0].send(prepare(2), &[next.sealed()]);
    assert!(matches!(workers[0].message(), ToMaster::Refused { epoch: 2, .. }));
    let metrics = |instance: &Instance| -> OwnedFd {
        cashew_metrics::Segments::create(&cashew_metrics::Layout::new(&instance.snapshot))
            .unwrap()
            .0
    };
    workers[0].send(prepare(3), &[next.sealed(), metrics(&next)]);
    assert!(matches!(workers[0].message(), ToMaster::Refused { epoch: 3, .. }), "it is epoch 2");
    let other = instance.next(&yaml(&[("q", "", &[&servers[1]])]));
    workers[0].send(prepare(2), &[next.sealed(), metrics(&other)]);
    let message = workers[0].message();
    assert!(
        matches!(&message, ToMaster::Refused { why, .. } if why.contains("another configuration")),
        "{message:?}"
    );
    // Aborted without an answer, both while it is read and when it is ready.
    for _ in 0..50 {
        workers[0].prepare(&next, 0, 1);
        workers[0].tell(ToChild::Abort { epoch: 2 });
        ask(&mut client, 2);
    }
    // Messages about those may still be on the way.
    let next = next.next(&yaml(&[("p", "", &[&servers[1]])]));
    workers[0].prepare(&next, 0, 1);
    while workers[0].message() != (ToMaster::Prepared { epoch: 3 }) {}
    workers[0].tell(ToChild::Pause { epoch: 3, drain_ms: 1000 });
    assert_eq!(workers[0].message(), ToMaster::Paused { epoch: 3, unfinished: 0 });
    client.write_all(&get(3)).unwrap();
    thread::sleep(Duration::from_millis(50));
    assert_eq!(record.lock().unwrap().len(), 51, "it is paused");
    workers[0].tell(ToChild::Abort { epoch: 3 });
    expect(&mut client, &value(3));
    assert!(record.lock().unwrap().iter().all(|&server| server == 'a'));
    change_epoch(&mut workers, &next);
    ask(&mut client, 4);
    assert_eq!(record.lock().unwrap().last(), Some(&'b'));
}

#[test]
fn the_limit_of_clients_is_exact_over_workers_and_changes_with_the_epoch() {
    let record = Record::default();
    let server = Server::start('a', &record);
    let limited = |limit: u32| yaml(&[("p", &format!("client_connections: {limit}"), &[&server])]);
    let mut instance = Instance::new(&limited(20));
    let (mut workers, mut sockets, mut addresses) = (Vec::new(), Vec::new(), Vec::new());
    for slot in 0..2 {
        let (socket, address) = listener();
        let worker = Worker::start(&instance, slot, 2);
        worker.listen(slot, 0, &socket);
        sockets.push(socket);
        workers.push(worker);
        addresses.push(address);
    }
    // Many clients at once that connect, send a request and stay.
    let storm = |count: usize| -> Vec<TcpStream> {
        let threads: Vec<_> = (0..count)
            .map(|number| {
                let address = addresses[number % 2];
                thread::spawn(move || {
                    let mut client = connect(address);
                    // A refused client may get the error and be closed before it sends a request.
                    let _ = client.write_all(&get(1));
                    let mut first = [0];
                    std::io::Read::read_exact(&mut client, &mut first).unwrap();
                    (first[0] == b'$').then_some(client)
                })
            })
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    };
    let clients = storm(60);
    assert_eq!(clients.len(), 20);
    settle(&instance, 20);
    let mut refused = connect(addresses[0]);
    expect(&mut refused, b"-ERR max number of clients reached\r\n");
    expect_end(refused);
    drop(clients);
    settle(&instance, 0);

    let next = instance.next(&limited(5));
    change_epoch(&mut workers, &next);
    instance = next;
    let clients = storm(30);
    assert_eq!(clients.len(), 5);
    assert_eq!(instance.shared.taken(0), 5);
    drop(clients);
    settle(&instance, 0);
}

fn gauge(instance: &Instance) -> u64 {
    let pool = instance.segments.layout().pool(0);
    instance.segments.sum_pool_gauge(pool, PoolGauge::ClientConnections)
}

fn settle(instance: &Instance, clients: u64) {
    let start = Instant::now();
    while (instance.shared.taken(0), gauge(instance)) != (clients, clients) {
        assert!(start.elapsed() < harness::PATIENCE, "{} taken", instance.shared.taken(0));
        thread::sleep(Duration::from_millis(2));
    }
}
