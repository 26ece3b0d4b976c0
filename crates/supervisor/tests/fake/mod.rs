//! A master and its children as real processes. The children are fakes: the test executable starts
//! itself again, with the name of the "test" to be, see [`fake_processes`].
#![allow(dead_code, reason = "each file of tests needs another part")]

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use cashew_supervisor::{CommandLine, Options, Program, Role, Spawn, TakeOver};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

#[path = "../../../../tests/rust/addresses.rs"]
mod addresses;
mod child;

pub(crate) use addresses::free_address;
pub(crate) use child::{admin, worker};

/// Longer than anything here takes, on a machine that is busy with something else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The processes that a test starts, as "tests" of the same executable.
macro_rules! fake_processes {
    () => {
        #[test]
        #[ignore = "not a test but the master of the others"]
        fn master_process() {
            crate::fake::master();
        }

        #[test]
        #[ignore = "not a test but a worker of the others"]
        fn child_process() {
            crate::fake::worker();
        }

        #[test]
        #[ignore = "not a test but the admin of the others"]
        fn admin_process() {
            crate::fake::admin();
        }
    };
}
pub(crate) use fake_processes;

/// An instance whose name is also the scenario that its processes play.
pub(crate) struct Instance {
    scenario: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) directory: PathBuf,
    master: Option<Child>,
}

impl Instance {
    pub(crate) fn new(scenario: &'static str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Two tests may play one scenario, at one time.
        let number = COUNT.fetch_add(1, Relaxed);
        let name = format!("cashew-{}-{number}-{scenario}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        // Another process may have had the number, and left it behind.
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        Self { scenario, address: free_address(), directory, master: None }
    }

    pub(crate) fn start(mut self) -> Self {
        self.spawn();
        wait_until(|| {
            let status = self.master.as_mut().unwrap().try_wait().unwrap();
            assert!(status.is_none(), "{}", self.log());
            self.path("pid").exists()
        });
        self
    }

    pub(crate) fn run(&mut self) -> ExitStatus {
        self.spawn();
        self.wait()
    }

    pub(crate) fn spawn(&mut self) {
        let log = File::create(self.path("log")).unwrap();
        let mut command = myself("master_process", self.scenario, &self.directory);
        command.env("CASHEW_ADDRESS", self.address.to_string());
        command.env("CASHEW_STATS", free_address().to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.master = Some(command.spawn().unwrap());
    }

    pub(crate) fn stop(&mut self, signal: Signal) -> ExitStatus {
        self.signal(signal);
        self.wait()
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until(|| {
            status = self.master.as_mut().unwrap().try_wait().unwrap();
            status.is_some()
        });
        self.master = None;
        status.unwrap()
    }

    pub(crate) fn config(&self) -> Config {
        Config::new(self.address)
    }

    /// Starts with a configuration of the test's.
    pub(crate) fn start_with(self, config: &Config) -> Self {
        config.write(&self.directory);
        self.start()
    }

    /// Has the master reload, and waits for the number of lines that tell how it ended.
    pub(crate) fn reload(&self, config: &Config) {
        config.write(&self.directory);
        let before = self.ends();
        self.signal(Signal::HUP);
        wait_until(|| self.ends() > before);
    }

    fn ends(&self) -> usize {
        let log = self.log();
        let ends = ["is in effect", "the configuration has not changed", "stays as it is"];
        ends.iter().map(|end| log.matches(end).count()).sum()
    }

    /// Where all workers are: "epoch N, RANK of WORKERS".
    pub(crate) fn places(&self, count: usize) -> Vec<String> {
        let answers = self.collect(count, "pid place").into_iter();
        let mut places: Vec<String> =
            answers.map(|answer| answer.split_once(' ').unwrap().1.to_owned()).collect();
        places.sort();
        places
    }

    /// A client that keeps its connection.
    pub(crate) fn stay(&self) -> Guest {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut guest = Guest(BufReader::new(stream));
        guest.0.get_mut().write_all(b"stay\n").unwrap();
        guest.read();
        guest
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.id(), signal);
    }

    pub(crate) fn id(&self) -> u32 {
        self.master.as_ref().unwrap().id()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    pub(crate) fn ask(&self, question: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        writeln!(stream, "{question}").unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        assert!(!answer.is_empty(), "{}", self.log());
        answer.trim().to_owned()
    }

    /// Asks until that worker is the one to answer.
    pub(crate) fn tell(&self, pid: u32, what: &str) {
        wait_until(|| self.ask(&format!("{what} {pid}")) == "ok");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.ask("pid").parse().unwrap()
    }

    pub(crate) fn admin(&self) -> u32 {
        let mut pid = None;
        wait_until(|| {
            pid = fs::read_to_string(self.path("admin")).unwrap().parse().ok();
            pid.is_some()
        });
        pid.unwrap()
    }

    /// The process ids of the workers, found by asking until `count` have answered.
    pub(crate) fn workers(&self, count: usize) -> Vec<u32> {
        self.collect(count, "pid").into_iter().map(|pid| pid.parse().unwrap()).collect()
    }

    /// Waits until those workers have all guests that take new ones. Who retires may take one more until
    /// it has heard of it, so they are asked for again each time.
    pub(crate) fn gather(&self, guests: &mut [Guest], count: usize) {
        wait_until(|| {
            let current = self.workers(count);
            guests.iter_mut().all(|guest| current.contains(&guest.pid()))
        });
    }

    /// The rings that the workers use.
    pub(crate) fn live(&self, count: usize) -> Vec<String> {
        let mut live: Vec<String> = self
            .collect(count, "pid live")
            .into_iter()
            .map(|answer| answer.split(' ').nth(1).unwrap().to_owned())
            .collect();
        live.dedup();
        live
    }

    pub(crate) fn collect(&self, count: usize, question: &str) -> Vec<String> {
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

/// Who stays.
pub(crate) struct Guest(BufReader<TcpStream>);

impl Guest {
    /// The process that serves it now.
    pub(crate) fn pid(&mut self) -> u32 {
        self.0.get_mut().write_all(b"pid\n").unwrap();
        self.read()
    }

    fn read(&mut self) -> u32 {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim().parse().expect("the connection is still there")
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

/// Waits until nobody listens there. A process that another thread has just started has what this one
/// had open until it executes its program, so that what is closed here may be open there for a moment.
pub(crate) fn wait_refused(address: SocketAddr) {
    wait_until(|| TcpStream::connect(address).is_err());
}

pub(crate) fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// A zombie does not count.
pub(crate) fn is_alive(pid: u32) -> bool {
    test_kill_process(Pid::from_raw(pid as i32).unwrap()).is_ok()
        && !fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
}

pub(crate) fn wait_until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "it does not come to pass");
        sleep(Duration::from_millis(5));
    }
}

pub(crate) fn myself(test: &str, scenario: &str, directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--ignored", "--nocapture"]);
    command.env("CASHEW_SCENARIO", scenario).env("CASHEW_DIRECTORY", directory);
    command
}

/// The environment of a process that another test started.
pub(crate) fn scenario() -> Option<(String, PathBuf)> {
    let scenario = std::env::var("CASHEW_SCENARIO").ok()?;
    Some((scenario, std::env::var_os("CASHEW_DIRECTORY")?.into()))
}

/// Runs the master of a scenario.
pub(crate) fn master() {
    let Some((scenario, directory)) = scenario() else { return };
    cashew_process::log::init("master", 5, cashew_config::snapshot::LogFormat::Plain);
    let takes_over = std::env::args().any(|argument| argument == TAKE_OVER);
    let spawn = if scenario.starts_with("threads") {
        Spawn::Threads {
            worker: child::serve_thread,
            admin: child::serve_thread,
            discovery: child::serve_thread,
        }
    } else {
        let (scenario, directory) = (scenario.clone(), directory.clone());
        Spawn::Processes(Box::new(move |role, _, _| {
            let test = match role {
                Role::Worker { .. } => "child_process",
                Role::Admin => "admin_process",
                Role::Discovery => unreachable!("no pool of these tests asks Sentinels"),
            };
            let mut command = myself(test, &scenario, &directory);
            if takes_over {
                command.env(TAKEN_OVER, "1");
            }
            command
        }))
    };
    if takes_over {
        let input = io::stdin().as_fd().try_clone_to_owned().unwrap();
        rustix::stdio::dup2_stdin(File::open("/dev/null").unwrap()).unwrap();
        exit(cashew_supervisor::take_over(
            input,
            TakeOver {
                conf_file: directory.join("cashew.yml"),
                spawn,
                program: program(&scenario),
                command_line: command_line(&directory),
                pid_file: Some(directory.join("pid")),
            },
        ));
    }
    let options = Options {
        snapshot: snapshot(&scenario, &directory),
        conf_file: directory.join("cashew.yml"),
        command_line: command_line(&directory),
        has_admin: scenario.ends_with("admin"),
        spawn,
        program: program(&scenario),
        standard_error: None,
        pid_file: Some(directory.join("pid")),
        on_ready: Box::new(|| {}),
    };
    exit(cashew_supervisor::run(options));
}

fn command_line(directory: &Path) -> CommandLine {
    let stats: SocketAddr = std::env::var("CASHEW_STATS").unwrap().parse().unwrap();
    CommandLine {
        stats_host: Some(stats),
        stats_port: Some(stats.port()),
        log_file: Some(directory.join("log")),
        ..CommandLine::default()
    }
}

fn exit(result: Result<(), cashew_supervisor::Error>) -> ! {
    if let Err(error) = result {
        eprintln!("{error}");
        std::process::exit(1);
    }
    std::process::exit(0);
}

/// An argument of a master that takes over: it matches no test, and can be found.
const TAKE_OVER: &str = "take-over";

/// In the environment of its children.
pub(crate) const TAKEN_OVER: &str = "CASHEW_TAKEN_OVER";

/// This executable as the next version of itself.
fn program(scenario: &str) -> Program {
    let role = |test: &str| -> Vec<OsString> {
        [test, "--exact", "--ignored", "--nocapture"].map(Into::into).to_vec()
    };
    Program {
        path: std::env::current_exe().unwrap(),
        argv: std::env::args_os().filter(|argument| argument != TAKE_OVER).collect(),
        test: if scenario == "untested" { role("bad_process") } else { vec!["--list".into()] },
        rehearse: role("rehearsal_process"),
        take_over: vec![TAKE_OVER.into()],
        version: "test".into(),
    }
}

fn snapshot(scenario: &str, directory: &Path) -> cashew_config::Snapshot {
    let path = directory.join("cashew.yml");
    // Unless the test has written one.
    if !path.exists() {
        let address = std::env::var("CASHEW_ADDRESS").unwrap().parse().unwrap();
        let workers = if scenario.starts_with("threads") { 0 } else { 2 };
        let timeout = match scenario {
            _ if scenario.ends_with("long") => 300,
            // Nobody is waited for who stops when told to.
            _ if scenario.starts_with("stubborn") => 1,
            _ => 20,
        };
        Config { workers, timeout, ..Config::new(address) }.write(directory);
    }
    cashew_config::load(&path).unwrap_or_else(|errors| panic!("{errors}")).snapshot
}

/// What a test may want to be different in a configuration.
#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) workers: u32,
    /// In seconds.
    pub(crate) timeout: u32,
    /// More lines of the section `global`.
    pub(crate) global: String,
    /// Where the pool `alpha` listens.
    pub(crate) address: SocketAddr,
    /// Of the pool `alpha`, by name; their addresses follow from their places.
    pub(crate) servers: Vec<&'static str>,
    /// The other pools, with where they listen.
    pub(crate) pools: Vec<(&'static str, String)>,
}

impl Config {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self {
            workers: 2,
            timeout: 20,
            global: String::new(),
            address,
            servers: vec!["a", "b"],
            pools: vec![("second", "socket".into())],
        }
    }

    pub(crate) fn write(&self, directory: &Path) {
        let Self { workers, timeout, global, address, servers, pools } = self;
        let control = directory.join("control");
        let control = control.display();
        let mut text = format!(
            "global:
  worker_processes: {workers}
  worker_shutdown_timeout: {timeout}
  control_socket: {control}
{global}pools:
  alpha:
    listen: {address}
    auto_eject_hosts: true
    servers:
"
        );
        for (port, server) in (1..).zip(servers) {
            text += &format!("      - 127.0.0.1:{port}:1 {server}\n");
        }
        for (name, listen) in pools {
            // A path is one in the test's directory.
            let listen = match listen.contains(':') {
                true => listen.clone(),
                false => directory.join(listen).display().to_string(),
            };
            text += &format!("  {name}:\n    listen: {listen}\n    servers:\n");
            text += "      - 127.0.0.1:1:1 a\n";
        }
        // At once, as an operator should: it may be read any moment.
        let hidden = directory.join("cashew.new");
        fs::write(&hidden, text).unwrap();
        fs::rename(hidden, directory.join("cashew.yml")).unwrap();
    }
}
