//! Children that do all that a master asks for, and misbehave when they are told to.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cashew_config::Snapshot;
use cashew_control::{
    ChildChannel, Epoch, ReceiveError, Rest, SendError, Session, ToChild, ToMaster, seal, unseal,
};
use cashew_metrics::{Layout, PoolCounter, PoolGauge, Segments, Shared, Writer, monotonic_ms};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Serves as a worker process.
pub(crate) fn worker() {
    let Some((scenario, _)) = super::scenario() else { return };
    let control = io::stdin().as_fd().try_clone_to_owned().unwrap();
    Worker::new(control, scenario).serve();
    std::process::exit(0);
}

/// Serves as the admin process, which leaves its process id in a file, and the epochs and log levels
/// it is told of in others.
pub(crate) fn admin() {
    let Some((scenario, directory)) = super::scenario() else { return };
    let control = io::stdin().as_fd().try_clone_to_owned().unwrap();
    let mut channel = ChildChannel::new(control);
    loop {
        match channel.receive() {
            Ok(Some((ToChild::Start, _))) => {
                fs::write(directory.join("admin"), std::process::id().to_string()).unwrap();
                channel.send(&ToMaster::Ready, &[]).unwrap();
            }
            Ok(Some((ToChild::Prepare { epoch, .. }, _))) if scenario.starts_with("refusing") => {
                let why = "no room for it".into();
                channel.send(&ToMaster::Refused { epoch, why }, &[]).unwrap();
            }
            Ok(Some((ToChild::Prepare { epoch, .. }, memfds))) => {
                assert_eq!(Epoch::unseal(&memfds[0]).unwrap().snapshot.epoch, epoch);
                channel.send(&ToMaster::Prepared { epoch }, &[]).unwrap();
            }
            Ok(Some((ToChild::Commit { epoch }, _))) => {
                fs::write(directory.join("admin-epoch"), epoch.to_string()).unwrap();
                channel.send(&ToMaster::Committed { epoch }, &[]).unwrap();
            }
            Ok(Some((ToChild::LogLevel { level }, _))) => {
                fs::write(directory.join("admin-level"), level.to_string()).unwrap();
            }
            Ok(Some((ToChild::Shutdown, _))) | Err(ReceiveError::Closed) => std::process::exit(0),
            Ok(Some(_)) => {}
            Ok(None) => {
                poll(&mut [PollFd::new(&channel, PollFlags::IN)], None).unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

pub(crate) fn serve_thread(control: OwnedFd) -> Result<(), Box<dyn Error + Send + Sync>> {
    Worker::new(control, "threads".into()).serve();
    Ok(())
}

/// One write, where `eprintln!` makes several that mingle with those of other processes.
fn note(line: &str) {
    io::stderr().write_all(line.as_bytes()).unwrap();
}

/// Whether there is a file of that name.
fn is_said(what: &str) -> bool {
    super::scenario().is_some_and(|(_, directory)| directory.join(what).exists())
}

/// A worker that answers one line per connection, see [`Worker::answer`]; or many, to who asks to
/// `stay`.
struct Worker {
    scenario: String,
    channel: ChildChannel,
    slot: u32,
    rank: u32,
    workers: u32,
    serving: Option<Serving>,
    prepared: Option<Serving>,
    shared: Option<Shared>,
    /// With the names of their pools.
    listeners: BTreeMap<u32, (String, OwnedFd)>,
    clients: Vec<Client>,
    /// By ticket, who wants to know of all workers, and what has been said.
    asking: BTreeMap<u64, (TcpStream, Vec<u8>)>,
    started: bool,
    held: bool,
    retiring: bool,
    live: Vec<bool>,
    /// Pools that others monitor, and what they asked of those that are monitored here.
    watched: BTreeSet<String>,
    heard: String,
}

/// By which epoch.
struct Serving {
    epoch: Epoch,
    segments: Arc<Segments>,
    writer: Writer,
    rank: u32,
    workers: u32,
}

struct Client {
    pool: String,
    id: u64,
    stream: TcpStream,
}

impl Serving {
    fn new(slot: u32, (rank, workers): (u32, u32), memfds: &[OwnedFd]) -> Self {
        let epoch = Epoch::unseal(&memfds[0]).unwrap();
        let layout = Layout::new(&epoch.snapshot);
        let segments = Arc::new(Segments::open(&memfds[1], &layout).unwrap());
        Self { writer: segments.writer(slot), epoch, segments, rank, workers }
    }

    fn snapshot(&self) -> &Snapshot {
        &self.epoch.snapshot
    }

    fn pool(&self, name: &str) -> Option<usize> {
        self.snapshot().pools.iter().position(|pool| pool.name == name)
    }
}

impl Worker {
    fn new(control: OwnedFd, scenario: String) -> Self {
        Self {
            scenario,
            channel: ChildChannel::new(control),
            slot: 0,
            rank: 0,
            workers: 0,
            serving: None,
            prepared: None,
            shared: None,
            listeners: BTreeMap::new(),
            clients: Vec::new(),
            asking: BTreeMap::new(),
            started: false,
            held: false,
            retiring: false,
            live: Vec::new(),
            watched: BTreeSet::new(),
            heard: String::new(),
        }
    }

    fn serve(mut self) {
        loop {
            match self.channel.receive() {
                Ok(Some((ToChild::Shutdown, _))) if !self.scenario.starts_with("stubborn") => {
                    return;
                }
                Ok(Some((message, descriptors))) => self.handle(message, descriptors),
                Ok(None) if self.retiring && self.clients.is_empty() => return,
                Ok(None) => self.turn(),
                Err(ReceiveError::Closed) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn handle(&mut self, message: ToChild, mut descriptors: Vec<OwnedFd>) {
        self.beat();
        match message {
            ToChild::Init { slot, rank, workers } => {
                self.slot = slot;
                (self.rank, self.workers) = (rank, workers);
                if self.scenario == "relapsing" && slot == 1 && !is_first() {
                    self.say(&ToMaster::Failed { why: "cannot become nobody".into() });
                    std::process::exit(1);
                }
                if self.scenario == "unready" && slot == 1 && !is_first() {
                    std::thread::sleep(Duration::from_secs(3600));
                }
                self.shared = Some(Shared::open(&descriptors[2]).unwrap());
                self.serving = Some(Serving::new(slot, (rank, workers), &descriptors));
            }
            ToChild::Listen { listener, pool } => {
                let pool = self.serving().snapshot().pools[pool as usize].name.clone();
                self.listeners.insert(listener, (pool, descriptors.remove(0)));
            }
            ToChild::Unlisten { listener, drain } => {
                let (pool, socket) = self.listeners.remove(&listener).expect("it listens there");
                while drain && self.accept(&pool, &socket) {}
            }
            ToChild::Start => self.start(),
            ToChild::Hold { pool, version, .. } => {
                self.held = true;
                self.say(&ToMaster::Held { pool, version });
            }
            ToChild::Release { pool: 0, topology, .. } => {
                self.live = topology.live;
                self.held = false;
            }
            ToChild::Release { .. } => {}
            ToChild::Prepare { epoch, rank, workers } => {
                self.prepare(epoch, (rank, workers), &descriptors);
            }
            ToChild::Pause { epoch, .. } => {
                self.held = true;
                self.say(&ToMaster::Paused { epoch, unfinished: 0 });
            }
            ToChild::Commit { epoch } => self.commit(epoch),
            ToChild::Abort { .. } => {
                self.prepared = None;
                self.held = false;
            }
            ToChild::Retire { .. } => {
                self.listeners.clear();
                self.retiring = true;
                if self.scenario != "upgrade-lingering-long" {
                    self.hand_over(self.clients.len());
                }
            }
            ToChild::Unretire => self.retiring = false,
            ToChild::Keep => {
                self.retiring = false;
                self.say(&ToMaster::Kept);
            }
            ToChild::Shed { permille } => {
                self.hand_over(self.clients.len() * permille as usize / 1000);
            }
            ToChild::Adopt { session } => {
                if self.scenario == "cruel" && is_first() {
                    std::process::exit(5);
                }
                self.say(&ToMaster::Adopted);
                let stream = TcpStream::from(descriptors.remove(0));
                self.clients.push(Client { pool: session.pool, id: session.id, stream });
                self.count_clients();
                if self.retiring {
                    self.hand_over(self.clients.len());
                }
            }
            ToChild::Watched { pool, on: true } => {
                self.watched.insert(pool.clone());
                self.say(&ToMaster::Watching { pool });
            }
            ToChild::Watched { pool, on: false } => drop(self.watched.remove(&pool)),
            ToChild::Monitored { pool } => self.heard += &format!("{pool}!"),
            ToChild::Overheard { pool, lines, missed } => {
                self.heard += &format!("{pool}:{missed}:{}", lines.replace("\r\n", ","));
            }
            ToChild::Question { number, .. } => self.be_asked(number, &descriptors[0]),
            ToChild::Answer { ticket, rest } => self.be_answered(ticket, rest, &descriptors),
            ToChild::LogLevel { level } => note(&format!("level is {level} here\n")),
            ToChild::LogReopen => {
                cashew_process::log::redirect(&descriptors[0]).unwrap();
                note("log is reopened here\n");
            }
            ToChild::Group { .. }
            | ToChild::Sentinel { .. }
            | ToChild::Seed { .. }
            | ToChild::Migrate { .. }
            | ToChild::LookAtKeys { .. }
            | ToChild::CatchUp { .. }
            | ToChild::Moves { .. }
            | ToChild::Source { .. }
            | ToChild::Maintained { .. }
            | ToChild::Operated { .. } => {
                unreachable!("none are configured")
            }
            ToChild::NotPrimary { .. } | ToChild::MapDoubted { .. } => {}
            ToChild::Maintenance { .. } => {}
            ToChild::Shutdown => {}
        }
    }

    fn start(&mut self) {
        assert!(!self.live.is_empty(), "the ring is known before the start");
        match (self.scenario.as_str(), self.slot) {
            ("failing", 1) => {
                self.say(&ToMaster::Failed { why: "no luck today".into() });
                std::process::exit(1);
            }
            ("dying", 1) => std::process::exit(3),
            _ => {}
        }
        match self.scenario.as_str() {
            _ if std::env::var_os(super::TAKEN_OVER).is_none() => {}
            "upgrade-failing" if self.rank == 1 => {
                self.say(&ToMaster::Failed { why: "no luck today".into() });
                std::process::exit(1);
            }
            "upgrade-dying" if self.rank == 1 => std::process::exit(3),
            "upgrade-slow" => return,
            "upgrade-lingering-long" => self.wait_to_start(),
            _ => {}
        }
        self.started = true;
        self.say(&ToMaster::Ready);
    }

    /// While there is a file that says so; until then it may be told to fail.
    fn wait_to_start(&self) {
        while is_said("wait") {
            if is_said("fail") {
                self.say(&ToMaster::Failed { why: "no luck today".into() });
                std::process::exit(1);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Pools of certain names make a worker of rank 1 misbehave.
    fn prepare(&mut self, epoch: u64, place: (u32, u32), memfds: &[OwnedFd]) {
        let prepared = Serving::new(self.slot, place, memfds);
        assert_eq!(prepared.snapshot().epoch, epoch);
        if self.rank == 1 && prepared.pool("refused").is_some() {
            return self.say(&ToMaster::Refused { epoch, why: "it is too hard".into() });
        }
        if self.rank == 1 && prepared.pool("deadly").is_some() {
            std::process::exit(4);
        }
        if self.rank != 1 || prepared.pool("endless").is_none() {
            self.say(&ToMaster::Prepared { epoch });
        }
        self.prepared = Some(prepared);
    }

    fn commit(&mut self, epoch: u64) {
        assert!(self.held, "nobody commits without a pause");
        let next = self.prepared.take().expect("only who has prepared commits");
        let old = self.serving.replace(next).unwrap();
        let new = self.serving();
        new.segments.carry(&old.segments, old.snapshot(), new.snapshot(), self.slot);
        new.writer.set_epoch(epoch);
        let live = new.epoch.pools[0].topology.live.clone();
        (self.rank, self.workers) = (new.rank, new.workers);
        self.live = live;
        self.held = false;
        if self.scenario == "unhurried-admin" && self.rank == 1 {
            self.wait_to_confirm();
        }
        self.say(&ToMaster::Committed { epoch });
    }

    /// Until there is a file that says so.
    fn wait_to_confirm(&self) {
        let (_, directory) = super::scenario().expect("a process has one");
        fs::write(directory.join("committing"), "").unwrap();
        while !directory.join("confirm").exists() {
            self.beat();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn serving(&self) -> &Serving {
        self.serving.as_ref().expect("the first message tells")
    }

    /// Whatever it does that takes its time: who is slow does not hang.
    fn beat(&self) {
        if let Some(serving) = &self.serving {
            serving.writer.beat(monotonic_ms());
        }
    }

    fn say(&self, message: &ToMaster) {
        self.send(message, &[]);
    }

    fn send(&self, message: &ToMaster, descriptors: &[BorrowedFd<'_>]) {
        loop {
            match self.channel.send(message, descriptors) {
                Ok(()) => return,
                Err(SendError::WouldBlock) => {
                    self.beat();
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(SendError::Closed) => std::process::exit(0),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn hand_over(&mut self, count: usize) {
        for client in self.clients.split_off(self.clients.len() - count) {
            let Client { pool, id, stream } = client;
            let session = Session { pool, id, ..Session::default() };
            self.send(&ToMaster::HandOver { session }, &[stream.as_fd()]);
        }
        self.count_clients();
    }

    fn count_clients(&self) {
        let serving = self.serving();
        for (index, pool) in serving.snapshot().pools.iter().enumerate() {
            let count = self.clients.iter().filter(|client| client.pool == pool.name).count();
            let pool = serving.writer.pool(index);
            serving.writer.set_pool(pool, PoolGauge::ClientConnections, count as u64);
        }
    }

    fn turn(&mut self) {
        // Its clients have come to rest.
        if self.retiring && !self.clients.is_empty() && is_said("rest") {
            return self.hand_over(self.clients.len());
        }
        self.beat();
        let mut fds = vec![PollFd::new(&self.channel, PollFlags::IN)];
        if self.started && !self.held {
            let listeners = self.listeners.values().map(|(_, socket)| socket.as_fd());
            let clients = self.clients.iter().map(|client| client.stream.as_fd());
            let all = listeners.chain(clients);
            fds.extend(all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        }
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 })).unwrap();
        let ready: Vec<bool> = fds[1..].iter().map(|fd| !fd.revents().is_empty()).collect();
        let (listeners, clients) = ready.split_at(self.listeners.len().min(ready.len()));
        let mut clients = clients.iter();
        let gone = |client: &mut Client| {
            clients.next().is_some_and(|&is_ready| is_ready) && !reply(&mut client.stream)
        };
        let gone: Vec<Client> = self.clients.extract_if(.., gone).collect();
        if !gone.is_empty() {
            gone.iter().for_each(|client| self.count_off(&client.pool));
            self.count_clients();
        }
        let readable: Vec<u32> = self
            .listeners
            .keys()
            .zip(listeners)
            .filter_map(|(&id, &is_ready)| is_ready.then_some(id))
            .collect();
        for id in readable {
            let (pool, socket) = &self.listeners[&id];
            let (pool, socket) = (pool.clone(), socket.try_clone().unwrap());
            self.accept(&pool, &socket);
        }
    }

    /// Returns whether there was somebody.
    fn accept(&mut self, pool: &str, socket: &OwnedFd) -> bool {
        let Ok(stream) = rustix::net::accept(socket) else { return false };
        // Who asks may have given up.
        let _ = self.welcome(pool, TcpStream::from(stream));
        true
    }

    fn welcome(&mut self, pool: &str, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        let question = self.on_answer(&mut stream)?;
        let serving = self.serving();
        if let Some(pool) = serving.pool(pool) {
            serving.writer.add_pool(serving.writer.pool(pool), PoolCounter::Requests, 1);
        }
        if let Some(how) = question.trim().strip_prefix("all ") {
            self.ask_all(how, stream);
            return Ok(());
        }
        if question.trim() != "stay" {
            let answer = self.answer(&question, &mut stream)?;
            return writeln!(stream, "{answer}");
        }
        let Some(index) = serving.pool(pool) else { return Ok(()) };
        let shared = self.shared.as_ref().unwrap();
        // Whoever has its answer counts.
        assert!(shared.take(serving.epoch.pools[index].quota, 0));
        let id = shared.next_client_id();
        if let Err(error) = writeln!(stream, "{}", std::process::id()) {
            self.count_off(pool);
            return Err(error);
        }
        self.clients.push(Client { pool: pool.to_owned(), id, stream });
        self.count_clients();
        Ok(())
    }

    /// Asks all other workers who they are, and tells one of them how to misbehave.
    fn ask_all(&mut self, how: &str, stream: TcpStream) {
        let ticket = self.asking.last_key_value().map_or(1, |(ticket, _)| ticket + 1);
        self.asking.insert(ticket, (stream, Vec::new()));
        let question = seal(how.as_bytes()).unwrap();
        let (pool, by) = ("alpha".to_owned(), 7);
        self.send(&ToMaster::Ask { ticket, pool, by }, &[question.as_fd()]);
    }

    fn be_asked(&self, number: u64, question: &OwnedFd) {
        let me = std::process::id().to_string();
        let question = String::from_utf8(unseal(question).unwrap()).unwrap();
        match question.split_whitespace().collect::<Vec<&str>>()[..] {
            ["die", pid] if pid == me => std::process::exit(6),
            ["hang", pid] if pid == me => {}
            // Who has nothing to say says that.
            ["shrug", pid] if pid == me => self.say(&ToMaster::Answer { number }),
            _ => {
                let answer = seal(format!("{me} ").as_bytes()).unwrap();
                self.send(&ToMaster::Answer { number }, &[answer.as_fd()]);
            }
        }
    }

    fn be_answered(&mut self, ticket: u64, rest: Rest, answer: &[OwnedFd]) {
        let (_, heard) = self.asking.get_mut(&ticket).expect("it has asked");
        heard.extend(answer.iter().flat_map(|answer| unseal(answer).unwrap()));
        if rest != Rest::Awaited {
            let (mut stream, heard) = self.asking.remove(&ticket).unwrap();
            let (me, heard) = (std::process::id(), String::from_utf8(heard).unwrap());
            let _ = writeln!(stream, "{me} {heard}{rest:?}");
        }
    }

    /// A line, for which it does not stop to live.
    fn on_answer(&self, stream: &mut TcpStream) -> io::Result<String> {
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        let (mut line, mut byte) = (Vec::new(), [0]);
        let from = Instant::now();
        while line.last() != Some(&b'\n') && from.elapsed() < super::PATIENCE {
            match stream.read(&mut byte) {
                Ok(0) => break,
                Ok(_) => line.push(byte[0]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.beat();
                }
                Err(error) => return Err(error),
            }
        }
        stream.set_read_timeout(Some(super::PATIENCE))?;
        Ok(String::from_utf8_lossy(&line).into_owned())
    }

    fn count_off(&self, pool: &str) {
        let serving = self.serving();
        if let Some(index) = serving.pool(pool) {
            self.shared.as_ref().unwrap().give(serving.epoch.pools[index].quota);
        }
    }

    /// `pid` and what is asked with it of this worker: the ring it uses, its place, how many
    /// clients it has, what it is to tell of and what it was told; `down N` and `up N` to report a server; `requests` and `taken` for numbers
    /// of all workers; how to misbehave, with the pid of whoever is to do so.
    fn answer(&self, question: &str, stream: &mut TcpStream) -> io::Result<String> {
        let me = std::process::id();
        let serving = self.serving();
        let words: Vec<&str> = question.split_whitespace().collect();
        Ok(match words[..] {
            ["pid"] => me.to_string(),
            ["pid", "live"] => {
                let live: String =
                    self.live.iter().map(|&live| if live { '1' } else { '0' }).collect();
                format!("{me} {live}")
            }
            ["pid", "place"] => {
                let epoch = serving.snapshot().epoch;
                format!("{me} epoch {epoch}, {} of {}", self.rank, self.workers)
            }
            ["pid", "clients"] => format!("{me} {}", self.clients.len()),
            ["pid", "watched"] => {
                let watched: Vec<&str> = self.watched.iter().map(String::as_str).collect();
                format!("{me} pools:{}", watched.join(","))
            }
            ["pid", "heard"] => format!("{me} lines:{}", self.heard),
            [what @ ("monitor" | "unmonitor"), pool, pid] => {
                if pid != me.to_string() {
                    return Ok("it is not me".into());
                }
                self.say(&ToMaster::Monitors { pool: pool.into(), any: what == "monitor" });
                "ok".into()
            }
            ["overhear", pool, line, pid] => {
                if pid != me.to_string() {
                    return Ok("it is not me".into());
                }
                let lines = format!("{line}\r\n");
                self.say(&ToMaster::Overheard { pool: pool.into(), lines, missed: 1 });
                "ok".into()
            }
            ["requests"] => {
                let pool = serving.writer.pool(0);
                let count = serving.segments.sum_pool_counter(pool, PoolCounter::Requests);
                count.to_string()
            }
            ["taken"] => {
                let quota = serving.epoch.pools[0].quota;
                self.shared.as_ref().unwrap().taken(quota).to_string()
            }
            ["busy", pid, permille] => {
                if pid != me.to_string() {
                    return Ok("it is not me".into());
                }
                serving.writer.set_busy(permille.parse().unwrap());
                "ok".into()
            }
            ["down", server] => {
                let (server, why) = (server.parse().unwrap(), "it refuses".into());
                self.say(&ToMaster::ServerDown { pool: 0, server, why });
                "ok".into()
            }
            ["up", server] => {
                self.say(&ToMaster::ServerUp { pool: 0, server: server.parse().unwrap() });
                "ok".into()
            }
            [how @ ("spin" | "lock" | "panic" | "abort"), pid] => {
                if pid == me.to_string() {
                    writeln!(stream, "ok")?;
                    misbehave(how);
                }
                "it is not me".into()
            }
            _ => format!("what is {question:?}"),
        })
    }
}

/// Answers one line of who stays. Returns whether there was one.
fn reply(stream: &mut TcpStream) -> bool {
    let mut line = [0; 64];
    match stream.read(&mut line) {
        Ok(0) | Err(_) => false,
        Ok(_) => writeln!(stream, "{}", std::process::id()).is_ok(),
    }
}

/// Tests run on other threads than the main one, which is watched: a program that is executed in
/// the place of this one has no other.
fn misbehave(how: &str) {
    let script = match how {
        "spin" => "while :; do :; done",
        "lock" => "exec sleep 1000",
        "panic" => panic!("as told"),
        _ => std::process::abort(),
    };
    panic!("{}", Command::new("sh").args(["-c", script]).exec());
}

/// Once, until somebody removes the file.
fn is_first() -> bool {
    let (_, directory) = super::scenario().expect("a process has one");
    fs::File::create_new(directory.join("second")).is_ok()
}
