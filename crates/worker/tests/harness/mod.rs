//! Workers in threads, with a master, clients and servers played by the test.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use cashew_config::snapshot::TopologyState;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cashew_config::{Context, Snapshot};
use cashew_control::{Epoch, MasterChannel, PoolState, ToChild, ToMaster};
use cashew_metrics::{Layout, Segments, Shared};

/// Longer than anything here takes, on a machine that is busy with something else.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// An epoch, as the master keeps it.
pub struct Instance {
    pub snapshot: Snapshot,
    pub states: Vec<PoolState>,
    pub segments: Segments,
    metrics: OwnedFd,
    pub shared: Shared,
    shared_memory: Arc<OwnedFd>,
}

impl Instance {
    pub fn new(yaml: &str) -> Self {
        let (shared_memory, shared) = Shared::create().unwrap();
        Self::with(snapshot(yaml), shared, Arc::new(shared_memory))
    }

    /// The next epoch, with its own metrics.
    pub fn next(&self, yaml: &str) -> Self {
        let mut snapshot = snapshot(yaml);
        snapshot.epoch = self.snapshot.epoch + 1;
        Self::with(snapshot, self.shared.clone(), Arc::clone(&self.shared_memory))
    }

    fn with(snapshot: Snapshot, shared: Shared, shared_memory: Arc<OwnedFd>) -> Self {
        let (metrics, segments) = Segments::create(&Layout::new(&snapshot)).unwrap();
        let states = snapshot.pools.iter().zip(0..).map(|(pool, quota)| PoolState {
            quota,
            ring_version: snapshot.epoch,
            topology: TopologyState::whole(pool),
        });
        Self { states: states.collect(), snapshot, segments, metrics, shared, shared_memory }
    }

    pub fn epoch(&self) -> u64 {
        self.snapshot.epoch
    }

    pub fn sealed(&self) -> OwnedFd {
        let (snapshot, pools) = (self.snapshot.clone(), self.states.clone());
        let epoch = Epoch { snapshot, pools, addresses: BTreeMap::new(), tickets: None };
        epoch.seal().unwrap()
    }
}

fn snapshot(yaml: &str) -> Snapshot {
    match cashew_config::parse("test.yml", yaml, &Context::of_system()) {
        Ok(loaded) => loaded.snapshot,
        Err(_) => panic!("{yaml}"),
    }
}

/// A worker with its master's end of the channel.
pub struct Worker {
    pub master: Option<MasterChannel>,
    /// How many sessions it has confirmed.
    pub adopted: usize,
    thread: JoinHandle<Result<(), cashew_worker::Error>>,
}

impl Worker {
    /// Serves, and accepts from nowhere yet.
    pub fn start(instance: &Instance, slot: u32, workers: u32) -> Self {
        Self::begin(instance, slot, workers, &[])
    }

    /// Is told these before it starts.
    pub fn begin(instance: &Instance, slot: u32, workers: u32, first: &[ToChild]) -> Self {
        let (master, control) = cashew_control::pair().unwrap();
        let thread = thread::spawn(move || cashew_worker::run(control));
        instance.segments.use_slot(slot);
        let mut worker = Self { master: Some(MasterChannel::new(master)), adopted: 0, thread };
        let descriptors = [instance.sealed(), dup(&instance.metrics), dup(&instance.shared_memory)];
        worker.send(ToChild::Init { slot, rank: slot, workers }, &descriptors);
        for message in first {
            worker.tell(message.clone());
        }
        worker.tell(ToChild::Start);
        assert_eq!(worker.message(), ToMaster::Ready);
        worker
    }

    /// The next message to the master.
    pub fn message(&mut self) -> ToMaster {
        self.receive().0
    }

    pub fn receive(&mut self) -> (ToMaster, Vec<OwnedFd>) {
        let start = Instant::now();
        loop {
            if let Some(message) = self.try_receive() {
                return message;
            }
            assert!(start.elapsed() < PATIENCE, "no message came");
            thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn try_receive(&mut self) -> Option<(ToMaster, Vec<OwnedFd>)> {
        let master = self.master.as_mut().expect("the master is there");
        loop {
            match master.receive().expect("the worker is there") {
                Some((ToMaster::Adopted, _)) => self.adopted += 1,
                other => return other,
            }
        }
    }

    pub fn tell(&self, message: ToChild) {
        self.send(message, &[]);
    }

    pub fn send(&self, message: ToChild, descriptors: &[OwnedFd]) {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let master = self.master.as_ref().expect("the master is there");
        let start = Instant::now();
        loop {
            match master.send(&message, &descriptors) {
                Err(cashew_control::SendError::WouldBlock) => {
                    assert!(start.elapsed() < PATIENCE, "it reads nothing");
                    thread::sleep(Duration::from_millis(1));
                }
                result => return result.unwrap(),
            }
        }
    }

    /// Has it accept from this.
    pub fn listen(&self, listener: u32, pool: u32, socket: &TcpListener) {
        socket.set_nonblocking(true).unwrap();
        self.send(ToChild::Listen { listener, pool }, &[dup(socket)]);
    }

    pub fn prepare(&self, next: &Instance, rank: u32, workers: u32) {
        let prepare = ToChild::Prepare { epoch: next.epoch(), rank, workers };
        self.send(prepare, &[next.sealed(), dup(&next.metrics)]);
    }

    /// It ends by itself.
    pub fn join(self) -> Duration {
        let start = Instant::now();
        while !self.thread.is_finished() {
            assert!(start.elapsed() < PATIENCE, "it does not end");
            thread::sleep(Duration::from_millis(2));
        }
        self.thread.join().unwrap().unwrap();
        start.elapsed()
    }
}

pub fn dup(fd: impl AsFd) -> OwnedFd {
    fd.as_fd().try_clone_to_owned().unwrap()
}

/// All of them change to the next epoch.
pub fn change_epoch(workers: &mut [Worker], next: &Instance) {
    let (epoch, count) = (next.epoch(), workers.len() as u32);
    for (rank, worker) in (0..).zip(workers.iter()) {
        worker.prepare(next, rank, count);
    }
    each(workers, |message| *message == ToMaster::Prepared { epoch });
    workers.iter().for_each(|worker| worker.tell(ToChild::Pause { epoch, drain_ms: 10_000 }));
    each(workers, |message| *message == ToMaster::Paused { epoch, unfinished: 0 });
    workers.iter().for_each(|worker| worker.tell(ToChild::Commit { epoch }));
    each(workers, |message| *message == ToMaster::Committed { epoch });
}

#[track_caller]
fn each(workers: &mut [Worker], is_expected: impl Fn(&ToMaster) -> bool) {
    for worker in workers {
        let message = worker.message();
        assert!(is_expected(&message), "{message:?}");
    }
}

pub fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

pub fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[track_caller]
pub fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(got.escape_ascii().to_string(), bytes.escape_ascii().to_string());
}

#[track_caller]
pub fn expect_end(mut stream: TcpStream) {
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

/// `GET` of a key that is this number.
pub fn get(number: u64) -> Vec<u8> {
    format!("*2\r\n$3\r\nGET\r\n$8\r\n{number:08}\r\n").into_bytes()
}

/// What servers here answer to that.
pub fn value(number: u64) -> Vec<u8> {
    format!("$8\r\n{number:08}\r\n").into_bytes()
}

/// In which order requests came, over all servers: the name of the server, once for each.
pub type Record = Arc<Mutex<Vec<char>>>;

/// A server that answers each `GET` with its key, until the test ends.
pub struct Server {
    pub address: SocketAddr,
}

impl Server {
    pub fn start(name: char, record: &Record) -> Self {
        let (listener, address) = listener();
        let record = Arc::clone(record);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, record) = (stream.unwrap(), Arc::clone(&record));
                thread::spawn(move || answer(stream, name, &record));
            }
        });
        Self { address }
    }
}

fn answer(mut stream: TcpStream, name: char, record: &Record) {
    let (mut buffer, mut filled) = (vec![0; 1 << 16], 0);
    let len = get(0).len();
    loop {
        let Ok(count @ 1..) = stream.read(&mut buffer[filled..]) else { return };
        filled += count;
        let mut replies = Vec::new();
        let whole = filled / len;
        for request in buffer[..whole * len].chunks(len) {
            replies.extend_from_slice(b"$8\r\n");
            replies.extend_from_slice(&request[len - 10..]);
        }
        record.lock().unwrap().extend(std::iter::repeat_n(name, whole));
        buffer.copy_within(whole * len..filled, 0);
        filled -= whole * len;
        if stream.write_all(&replies).is_err() {
            return;
        }
    }
}

/// Clients that each send so many requests at a time on one connection and check every reply,
/// until they are told to stop.
pub struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    pub fn start(addresses: &[SocketAddr], pipeline: u64) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let clients: Vec<_> =
            addresses.iter().map(|address| patient(TcpStream::connect(address).unwrap())).collect();
        let threads = clients
            .into_iter()
            .map(|stream| {
                let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
                thread::spawn(move || ask(stream, pipeline, &stop, &answered))
            })
            .collect();
        let load = Self { stop, answered, threads };
        load.wait(1);
        load
    }

    /// Waits until so many more requests are answered.
    pub fn wait(&self, requests: u64) {
        let (start, from) = (Instant::now(), self.answered.load(SeqCst));
        while self.answered.load(SeqCst) < from + requests {
            assert!(start.elapsed() < PATIENCE, "nothing is answered");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops, and returns how many requests were answered: all.
    pub fn stop(self) -> u64 {
        self.stop.store(true, SeqCst);
        for thread in self.threads {
            thread.join().unwrap();
        }
        self.answered.load(SeqCst)
    }
}

fn ask(mut stream: TcpStream, pipeline: u64, stop: &AtomicBool, answered: &AtomicU64) {
    let mut number = 0;
    while !stop.load(SeqCst) {
        let numbers: Vec<u64> = (number..number + pipeline).map(|n| n % 100_000_000).collect();
        number += pipeline;
        let requests: Vec<u8> = numbers.iter().flat_map(|&number| get(number)).collect();
        stream.write_all(&requests).unwrap();
        let replies: Vec<u8> = numbers.iter().flat_map(|&number| value(number)).collect();
        expect(&mut stream, &replies);
        answered.fetch_add(pipeline, SeqCst);
    }
}
