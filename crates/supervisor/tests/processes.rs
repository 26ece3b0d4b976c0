//! A master and its children as real processes. The children are fakes that live in this file: the
//! test executable starts itself again, with the name of the "test" to be, see [`master_process`]
//! and [`child_process`].

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use cashew_control::{ChildChannel, ReceiveError, ToChild, ToMaster};
use cashew_metrics::{Layout, Segments, Writer, monotonic_ms};
use cashew_supervisor::{Options, Role, Spawn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// Longer than anything here takes, on a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn a_killed_worker_is_replaced_within_a_second_and_no_connection_is_lost() {
    let instance = Instance::new("respawn").start();
    let before = instance.workers(2);
    let killed = before[0];
    kill(killed, Signal::KILL);
    let at = Instant::now();
    // Some of these wait in the queue of the socket whose worker is dead.
    let answers: Vec<u32> = (0..40).map(|_| instance.pid()).collect();
    assert!(answers.iter().all(|pid| *pid != killed));
    while !instance.workers(2).iter().any(|pid| !before.contains(pid)) {}
    assert!(at.elapsed() < Duration::from_secs(1), "{:?}", at.elapsed());
    assert!(instance.log().contains("was killed by signal 9; restart 1 in 0ns"));
}

#[test]
fn a_crash_loop_slows_down_and_harms_nobody_else() {
    let mut instance = Instance::new("crash-loop").start();
    let [steady, mut victim] = instance.workers(2)[..] else { panic!() };
    for _ in 0..4 {
        kill(victim, Signal::KILL);
        wait_until(|| {
            instance
                .workers(2)
                .iter()
                .find(|&&pid| pid != steady && pid != victim)
                .copied()
                .inspect(|pid| victim = *pid)
                .is_some()
        });
    }
    assert!(instance.log().contains("restart 4 in 400ms"));
    assert!(instance.workers(2).contains(&steady));
    assert_eq!(instance.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn sigterm_stops_gracefully() {
    let mut instance = Instance::new("term").start();
    let workers = instance.workers(2);
    assert_eq!(fs::read_to_string(instance.path("pid")).unwrap(), format!("{}\n", instance.id()));
    assert_eq!(instance.stop(Signal::TERM).code(), Some(0));
    assert!(!instance.path("pid").exists());
    assert!(TcpStream::connect(instance.address).is_err());
    assert!(workers.iter().all(|pid| !is_alive(*pid)));
    assert!(!instance.path("socket").exists());
}

#[test]
fn sigterm_kills_who_does_not_stop_in_time() {
    let mut instance = Instance::new("stubborn").start();
    let workers = instance.workers(2);
    let at = Instant::now();
    assert_eq!(instance.stop(Signal::TERM).code(), Some(0));
    assert!((2..10).contains(&at.elapsed().as_secs()), "{:?}", at.elapsed());
    assert!(workers.iter().all(|pid| !is_alive(*pid)));
}

#[test]
fn a_second_sigterm_stops_at_once() {
    let mut instance = Instance::new("stubborn-long").start();
    instance.signal(Signal::TERM);
    wait_until(|| instance.log().contains("SIGTERM: stopping, for at most 300s"));
    assert_eq!(instance.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn an_admin_that_dies_while_workers_stop_is_not_replaced() {
    let mut instance = Instance::new("stubborn-admin").start();
    let admin = instance.admin();
    instance.signal(Signal::TERM);
    wait_until(|| instance.log().contains("SIGTERM: stopping"));
    kill(admin, Signal::KILL);
    assert_eq!(instance.wait().code(), Some(0));
}

#[test]
fn the_admin_is_replaced_and_stops_last() {
    let mut instance = Instance::new("admin").start();
    let admin = instance.admin();
    kill(admin, Signal::KILL);
    wait_until(|| instance.log().contains("admin (process") && instance.admin() != admin);
    assert_eq!(instance.stop(Signal::TERM).code(), Some(0));
    let log = instance.log();
    let stopped: Vec<&str> = log.lines().filter(|line| line.ends_with("has stopped")).collect();
    assert!(stopped.len() == 3 && stopped[2].contains("admin"), "{stopped:?}");
}

#[test]
fn sigint_stops_at_once() {
    let mut instance = Instance::new("stubborn-int-long").start();
    let workers = instance.workers(2);
    assert_eq!(instance.stop(Signal::INT).code(), Some(0));
    assert!(workers.iter().all(|pid| !is_alive(*pid)));
    assert!(!instance.path("pid").exists());
}

#[test]
fn a_worker_that_fails_at_the_start_fails_the_start() {
    let mut instance = Instance::new("failing");
    assert_eq!(instance.run().code(), Some(1));
    assert!(instance.log().contains("worker 1 did not start: it failed: no luck today"));
    assert!(!instance.path("pid").exists());
    assert!(!instance.path("socket").exists());
}

#[test]
fn a_worker_that_dies_at_the_start_fails_the_start() {
    let mut instance = Instance::new("dying");
    assert_eq!(instance.run().code(), Some(1));
    assert!(instance.log().contains("worker 1 did not start: it exited with status 3"));
}

#[test]
fn a_port_in_use_fails_the_start() {
    let mut instance = Instance::new("port");
    let _theirs = TcpListener::bind(instance.address).unwrap();
    assert_eq!(instance.run().code(), Some(1));
    let expected = format!(
        "pool 'alpha': cannot listen on {}: another process already listens there",
        instance.address
    );
    assert!(instance.log().contains(&expected));
}

#[test]
fn two_instances_do_not_share_a_port() {
    let first = Instance::new("sharing").start();
    let mut second = Instance::new("shared");
    second.address = first.address;
    assert_eq!(second.run().code(), Some(1));
    assert!(second.log().contains("another process already listens there"));
    first.pid();
}

#[test]
fn all_workers_change_a_ring_together() {
    let instance = Instance::new("ring").start();
    assert_eq!(instance.ask("down 1"), "ok");
    wait_until(|| instance.live(2) == ["10"]);
    assert!(instance.log().contains("pool 'alpha': server 'b' is ejected: it refuses"));
    // The next worker learns of it before it serves.
    let before = instance.workers(2);
    kill(before[0], Signal::KILL);
    wait_until(|| instance.workers(2).iter().any(|pid| !before.contains(pid)));
    assert_eq!(instance.live(2), ["10"]);
    assert_eq!(instance.ask("up 1"), "ok");
    wait_until(|| instance.live(2) == ["11"]);
}

#[test]
fn the_log_is_reopened_by_everybody_and_its_level_changes() {
    let mut instance = Instance::new("log").start();
    fs::rename(instance.path("log"), instance.path("log.1")).unwrap();
    instance.signal(Signal::HUP);
    wait_until(|| instance.log().matches("log is reopened here").count() == 2);
    instance.signal(Signal::TTIN);
    wait_until(|| instance.log().matches("level is 6 here").count() == 2);
    instance.signal(Signal::TTOU);
    wait_until(|| instance.log().matches("level is 5 here").count() == 2);
    instance.signal(Signal::USR2);
    wait_until(|| instance.log().contains("SIGUSR2 means nothing here"));
    assert_eq!(instance.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn workers_notice_the_death_of_the_master() {
    let mut instance = Instance::new("orphans").start();
    let workers = instance.workers(2);
    assert_eq!(instance.stop(Signal::KILL).code(), None);
    wait_until(|| workers.iter().all(|pid| !is_alive(*pid)));
}

#[test]
fn a_wedged_worker_is_replaced() {
    let instance = Instance::new("wedged").start();
    let before = instance.workers(2);
    kill(before[0], Signal::STOP);
    wait_until(|| !is_alive(before[0]));
    assert!(instance.log().contains("is aborted: its heart has stopped"));
    wait_until(|| instance.workers(2).iter().any(|pid| !before.contains(pid)));
}

#[test]
fn one_process_does_without_children() {
    let mut instance = Instance::new("threads").start();
    assert_eq!(instance.workers(1), [instance.id()]);
    assert_eq!(instance.ask("down 0"), "ok");
    wait_until(|| instance.live(1) == ["01"]);
    assert_eq!(instance.stop(Signal::TERM).code(), Some(0));
    assert!(!instance.path("pid").exists());
}

/// An instance whose name is also the scenario that its processes play.
struct Instance {
    scenario: &'static str,
    address: SocketAddr,
    directory: PathBuf,
    master: Option<Child>,
}

impl Instance {
    fn new(scenario: &'static str) -> Self {
        let directory =
            std::env::temp_dir().join(format!("cashew-{}-{scenario}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        Self { scenario, address: free_address(), directory, master: None }
    }

    fn start(mut self) -> Self {
        self.spawn();
        wait_until(|| {
            let status = self.master.as_mut().unwrap().try_wait().unwrap();
            assert!(status.is_none(), "{}", self.log());
            self.path("pid").exists()
        });
        self
    }

    fn run(&mut self) -> ExitStatus {
        self.spawn();
        self.wait()
    }

    fn spawn(&mut self) {
        let log = File::create(self.path("log")).unwrap();
        let mut command = myself("master_process", self.scenario, &self.directory);
        command.env("CASHEW_ADDRESS", self.address.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.master = Some(command.spawn().unwrap());
    }

    fn stop(&mut self, signal: Signal) -> ExitStatus {
        self.signal(signal);
        self.wait()
    }

    fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until(|| {
            status = self.master.as_mut().unwrap().try_wait().unwrap();
            status.is_some()
        });
        self.master = None;
        status.unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill(self.id(), signal);
    }

    fn id(&self) -> u32 {
        self.master.as_ref().unwrap().id()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn ask(&self, question: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        writeln!(stream, "{question}").unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        assert!(!answer.is_empty(), "{}", self.log());
        answer.trim().to_owned()
    }

    fn pid(&self) -> u32 {
        self.ask("pid").parse().unwrap()
    }

    fn admin(&self) -> u32 {
        let mut pid = None;
        wait_until(|| {
            pid = fs::read_to_string(self.path("admin")).unwrap().parse().ok();
            pid.is_some()
        });
        pid.unwrap()
    }

    /// The process ids of the workers, found by asking until `count` have answered.
    fn workers(&self, count: usize) -> Vec<u32> {
        self.collect(count, "pid").into_iter().map(|pid| pid.parse().unwrap()).collect()
    }

    /// The rings that the workers use.
    fn live(&self, count: usize) -> Vec<String> {
        let mut live: Vec<String> = self
            .collect(count, "pid live")
            .into_iter()
            .map(|answer| answer.split(' ').nth(1).unwrap().to_owned())
            .collect();
        live.dedup();
        live
    }

    fn collect(&self, count: usize, question: &str) -> Vec<String> {
        let mut answers = Vec::<String>::new();
        let same = |one: &str, other: &str| one.split(' ').next() == other.split(' ').next();
        wait_until(|| {
            let answer = self.ask(question);
            if !answers.iter().any(|known| same(known, &answer)) {
                answers.push(answer);
            }
            answers.len() >= count
        });
        answers
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(mut master) = self.master.take() {
            // Its workers notice.
            let _ = master.kill();
            let _ = master.wait();
        }
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// A zombie does not count.
fn is_alive(pid: u32) -> bool {
    test_kill_process(Pid::from_raw(pid as i32).unwrap()).is_ok()
        && !fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "it does not come to pass");
        sleep(Duration::from_millis(5));
    }
}

fn myself(test: &str, scenario: &str, directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--ignored", "--nocapture"]);
    command.env("CASHEW_SCENARIO", scenario).env("CASHEW_DIRECTORY", directory);
    command
}

/// The environment of a process that another test started.
fn scenario() -> Option<(String, PathBuf)> {
    let scenario = std::env::var("CASHEW_SCENARIO").ok()?;
    Some((scenario, std::env::var_os("CASHEW_DIRECTORY")?.into()))
}

#[test]
#[ignore = "not a test but the master of the others"]
fn master_process() {
    let Some((scenario, directory)) = scenario() else { return };
    cashew_process::log::init("master", 5);
    let spawn = if scenario == "threads" {
        Spawn::Threads { worker: serve_thread, admin: serve_thread }
    } else {
        let (scenario, directory) = (scenario.clone(), directory.clone());
        Spawn::Processes(Box::new(move |role, _| {
            let test = match role {
                Role::Worker { .. } => "child_process",
                Role::Admin => "admin_process",
            };
            myself(test, &scenario, &directory)
        }))
    };
    let options = Options {
        snapshot: snapshot(&scenario, &directory),
        stats: scenario.ends_with("admin").then(free_address),
        spawn,
        log_level: 5,
        log_file: Some(directory.join("log")),
        pid_file: Some(directory.join("pid")),
        on_ready: Box::new(|| {}),
    };
    if let Err(error) = cashew_supervisor::run(options) {
        eprintln!("{error}");
        std::process::exit(1);
    }
    std::process::exit(0);
}

fn snapshot(scenario: &str, directory: &Path) -> cashew_config::Snapshot {
    let text = format!(
        "global:
  worker_processes: {workers}
  worker_shutdown_timeout: {timeout}
pools:
  alpha:
    listen: {address}
    servers:
      - 127.0.0.1:1:1 a
      - 127.0.0.1:2:1 b
  second:
    listen: {directory}/socket
    servers:
      - 127.0.0.1:1:1 a
",
        workers = if scenario == "threads" { 0 } else { 2 },
        timeout = if scenario.ends_with("long") { 300 } else { 1 },
        address = std::env::var("CASHEW_ADDRESS").unwrap(),
        directory = directory.display(),
    );
    let path = directory.join("cashew.yml");
    fs::write(&path, text).unwrap();
    cashew_config::load(&path).unwrap_or_else(|errors| panic!("{errors}")).snapshot
}

#[test]
#[ignore = "not a test but a worker of the others"]
fn child_process() {
    let Some((scenario, _)) = scenario() else { return };
    let control = io::stdin().as_fd().try_clone_to_owned().unwrap();
    Worker::new(control, scenario).serve();
    std::process::exit(0);
}

#[test]
#[ignore = "not a test but the admin of the others"]
fn admin_process() {
    let Some((_, directory)) = scenario() else { return };
    let control = io::stdin().as_fd().try_clone_to_owned().unwrap();
    let mut channel = ChildChannel::new(control);
    loop {
        match channel.receive() {
            Ok(Some((ToChild::Start, _))) => {
                fs::write(directory.join("admin"), std::process::id().to_string()).unwrap();
                channel.send(&ToMaster::Ready, &[]).unwrap();
            }
            Ok(Some((ToChild::Shutdown, _))) | Err(ReceiveError::Closed) => std::process::exit(0),
            Ok(Some(_)) => {}
            Ok(None) => sleep(Duration::from_millis(5)),
            Err(error) => panic!("{error}"),
        }
    }
}

fn serve_thread(control: OwnedFd) -> Result<(), Box<dyn Error + Send + Sync>> {
    Worker::new(control, "threads".into()).serve();
    Ok(())
}

/// One write, where `eprintln!` makes several that mingle with those of other processes.
fn note(line: &str) {
    io::stderr().write_all(line.as_bytes()).unwrap();
}

/// A worker that answers one line per connection: `pid`, `pid live` with the ring it uses, `down N`
/// and `up N` to report a server.
struct Worker {
    scenario: String,
    channel: ChildChannel,
    slot: u32,
    writer: Option<Writer>,
    listeners: Vec<TcpListener>,
    started: bool,
    held: bool,
    live: Vec<bool>,
}

impl Worker {
    fn new(control: OwnedFd, scenario: String) -> Self {
        Self {
            scenario,
            channel: ChildChannel::new(control),
            slot: 0,
            writer: None,
            listeners: Vec::new(),
            started: false,
            held: false,
            live: Vec::new(),
        }
    }

    fn serve(mut self) {
        loop {
            match self.channel.receive() {
                Ok(Some((ToChild::Shutdown, _))) if !self.scenario.starts_with("stubborn") => {
                    return;
                }
                Ok(Some((message, descriptors))) => self.handle(message, descriptors),
                Ok(None) => self.turn(),
                Err(ReceiveError::Closed) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn handle(&mut self, message: ToChild, mut descriptors: Vec<OwnedFd>) {
        match message {
            ToChild::Init { slot, .. } => {
                let bytes = cashew_control::unseal(&descriptors[0]).unwrap();
                let snapshot = cashew_config::from_json(&bytes).unwrap();
                let layout = Layout::new(&snapshot);
                let segments = Arc::new(Segments::open(&descriptors[1], &layout).unwrap());
                self.slot = slot;
                self.writer = Some(segments.writer(slot));
            }
            ToChild::Listen { pool: 0, .. } => {
                self.listeners.push(TcpListener::from(descriptors.remove(0)));
            }
            ToChild::Listen { .. } => assert_eq!(descriptors.len(), 1),
            ToChild::Start => self.start(),
            ToChild::Hold { pool, version, .. } => {
                self.held = true;
                self.say(&ToMaster::Held { pool, version });
            }
            ToChild::Release { pool: 0, live, .. } => {
                self.live = live;
                self.held = false;
            }
            ToChild::Release { .. } => {}
            ToChild::LogLevel { level } => note(&format!("level is {level} here\n")),
            ToChild::LogReopen => {
                cashew_process::log::redirect(&descriptors[0]).unwrap();
                note("log is reopened here\n");
            }
            ToChild::Shutdown => {}
            other => panic!("unexpected {other:?}"),
        }
    }

    fn start(&mut self) {
        assert_eq!(self.live.len(), 2, "the ring is known before the start");
        match (self.scenario.as_str(), self.slot) {
            ("failing", 1) => {
                self.say(&ToMaster::Failed { why: "no luck today".into() });
                std::process::exit(1);
            }
            ("dying", 1) => std::process::exit(3),
            _ => {}
        }
        self.started = true;
        self.say(&ToMaster::Ready);
    }

    fn say(&self, message: &ToMaster) {
        self.channel.send(message, &[]).unwrap();
    }

    fn turn(&mut self) {
        if let Some(writer) = &self.writer {
            writer.beat(monotonic_ms());
        }
        let mut fds: Vec<BorrowedFd<'_>> = vec![self.channel.as_fd()];
        if self.started && !self.held {
            fds.extend(self.listeners.iter().map(|listener| listener.as_fd()));
        }
        let mut fds: Vec<_> =
            fds.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 })).unwrap();
        if fds[1..].iter().any(|fd| !fd.revents().is_empty())
            && let Ok((stream, _)) = self.listeners[0].accept()
        {
            // Who asks may have given up.
            let _ = self.answer(stream);
        }
    }

    fn answer(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        let mut question = String::new();
        BufReader::new(Read::by_ref(&mut stream)).read_line(&mut question)?;
        let words: Vec<&str> = question.split_whitespace().collect();
        let answer = match words[..] {
            ["pid"] => std::process::id().to_string(),
            ["pid", "live"] => {
                let live: String =
                    self.live.iter().map(|&live| if live { '1' } else { '0' }).collect();
                format!("{} {live}", std::process::id())
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
            _ => format!("what is {question:?}"),
        };
        writeln!(stream, "{answer}")
    }
}
