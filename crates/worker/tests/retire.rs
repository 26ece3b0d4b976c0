//! A worker that gets Retire and nothing else, as from a master of another control version: the
//! frozen messages have no Unlisten.

mod harness;

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use cashew_control::ToChild;
use harness::{Instance, PATIENCE, Record, Server, Worker, listener};

const CLIENTS: usize = 120;

fn lost(io_engine: &str) -> usize {
    let server = Server::start('a', &Record::default());
    let yaml = format!(
        "global:\n  worker_shutdown_timeout: 20\n  io_engine: {io_engine}\npools:\n  p:\n    \
         listen: 127.0.0.1:1\n    redis: true\n    servers:\n    - {}:1\n",
        server.address
    );
    let instance = Instance::new(&yaml);
    let mut lost = 0;
    for round in 0..60 {
        let mut worker = Worker::start(&instance, 0, 1);
        let (socket, address) = listener();
        let clients: Vec<TcpStream> =
            (0..CLIENTS).map(|_| TcpStream::connect(address).unwrap()).collect();
        worker.listen(0, 0, &socket);
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(round * 20) {}
        worker.tell(ToChild::Retire { timeout_ms: 20_000 });
        // The sessions that it hands over, and clients that wait for another accept.
        let mut kept = Vec::new();
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            match worker.master.as_mut().unwrap().receive() {
                Ok(Some((_, descriptors))) => kept.extend(descriptors),
                Ok(None) => thread::sleep(Duration::from_millis(1)),
                Err(_) => break,
            }
        }
        for mut client in clients {
            client.set_nonblocking(true).unwrap();
            match client.read(&mut [0]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ => lost += 1,
            }
        }
        worker.join();
    }
    lost
}

#[test]
fn no_client_is_lost_with_epoll() {
    assert_eq!(lost("epoll"), 0);
}

#[test]
fn no_client_is_lost_with_io_uring() {
    assert_eq!(lost("uring"), 0);
}
