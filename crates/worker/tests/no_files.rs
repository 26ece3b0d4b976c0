//! A worker without a free descriptor. In its own file, since the limit is per process.

mod harness;

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use cashew_control::{Rest, SESSION_VERSION, Session, ToChild, ToMaster};
use harness::{Instance, PATIENCE, Record, Server, Worker, expect, get, listener, patient, value};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than the test has open.
const LIMIT: u64 = 256;

#[test]
fn lack_of_descriptors_affects_only_what_needs_one() {
    let server = Server::start('a', &Record::default());
    let yaml = format!(
        "global:\n  worker_shutdown_timeout: 1\npools:\n  p:\n    listen: 127.0.0.1:1\n    \
         redis: true\n    servers:\n    - {}:1\n",
        server.address
    );
    let instance = Instance::new(&yaml);
    let mut worker = Worker::start(&instance, 0, 1);
    let (socket, address) = listener();
    worker.listen(0, 0, &socket);
    let mut client = patient(TcpStream::connect(address).unwrap());
    client.write_all(&get(1)).unwrap();
    expect(&mut client, &value(1));
    assert_eq!(instance.shared.taken(0), 1);

    let (other, at) = listener();
    let _moving = TcpStream::connect(at).unwrap();
    let theirs = [OwnedFd::from(other.accept().unwrap().0)];
    let (late, late_address) = listener();
    late.set_nonblocking(true).unwrap();
    let late = [OwnedFd::from(late)];
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), ..before }).unwrap();
    let taken: Vec<OwnedFd> =
        std::iter::from_fn(|| fcntl_dupfd_cloexec(&theirs[0], 0).ok()).collect();
    assert!(!taken.is_empty());

    // The listener comes through: nobody else accepts there.
    worker.send(ToChild::Listen { listener: 1, pool: 0 }, &late);
    for _ in 0..3 {
        worker.send(ToChild::Answer { ticket: 77, rest: Rest::None }, &theirs);
        worker.send(ToChild::Question { number: 5, pool: "p".to_owned(), by: 1 }, &theirs);
    }
    worker.tell(ToChild::LogReopen);
    // The session counts where it came from until it is lost.
    instance.shared.adjust(0, 1);
    let session =
        Session { version: SESSION_VERSION, pool: "p".to_owned(), id: 5, ..Session::default() };
    worker.send(ToChild::Adopt { session }, &theirs);
    let start = Instant::now();
    while instance.segments.header(0).sessions_cut == 0 || worker.adopted == 0 {
        let said = worker.try_receive().map(|(message, _)| message);
        assert!(!matches!(said, Some(ToMaster::Answer { .. } | ToMaster::Failed { .. })));
        assert!(start.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(2));
    }
    drop(taken);
    setrlimit(Resource::Nofile, before).unwrap();
    assert_eq!(instance.shared.taken(0), 1);

    client.write_all(&get(2)).unwrap();
    expect(&mut client, &value(2));
    let mut client = patient(TcpStream::connect(late_address).unwrap());
    client.write_all(&get(3)).unwrap();
    expect(&mut client, &value(3));
}
